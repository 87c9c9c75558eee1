/* The state of one `spillway generate`, for generate.c and generate_report.c. */
#ifndef SPW_TOOLS_COMMAND_GENERATE_GENERATE_H
#define SPW_TOOLS_COMMAND_GENERATE_GENERATE_H

#include "tools/command/engine.h"
#include "tools/command/experts.h"
#include "tools/command/input/saved.h"
#include "tools/command/output/npy.h"

struct run {
    const struct cli_options *o;
    struct cli_model model;
    struct cli_inputs inputs;
    struct cli_saved saved; /* the saved run that this run continues; empty: none */
    struct spw_engine *engine;
    struct cli_events events;
    struct spw_session *session; /* the session of --save and --resume, owned */
    struct spw_batch *batch;     /* owned */
    struct spw_result result;    /* owned, once the request has ended */
    uint64_t n_text;             /* bytes of the answer's text so far */
    uint64_t saved_bytes, n_saves;
    struct cli_npy *npy;
    struct spw_expert_trace_writer *trace; /* owned, until the last step */
    struct cli_output *trace_file;         /* owned, as the trace */
    bool ids;                              /* print token ids instead of text */
    bool any_id;                           /* one was printed */
    uint64_t n_expected;                   /* the most new tokens of all inputs */
    int write_error;                       /* -errno of a failed write to stdout */
    bool npy_failed;                       /* a row of --dump-logits could not be written */
    struct cli_limits limits;
};

/* Writes --report. An exit code. */
int run_write_report(const struct run *r, const struct spw_batch_times *times);

#endif
