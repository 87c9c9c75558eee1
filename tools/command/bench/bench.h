/* The measurements of `spillway bench`, and their output. */
#ifndef SPW_TOOLS_COMMAND_BENCH_BENCH_H
#define SPW_TOOLS_COMMAND_BENCH_BENCH_H

#include "tools/command/input/input.h"
#include "tools/command/limits.h"

enum measure {
    PREFILL_SECONDS,
    DECODE_SECONDS, /* a token */
    FIRST_SECONDS,
    WEIGHTS_SECONDS,
    WAIT_SECONDS,     /* of a decoded token: waiting that computation did not hide */
    PREFILL_FRACTION, /* fraction of the limits of that run */
    DECODE_FRACTION,
    READ_LIMIT, /* mean of the probes before and after decoding */
    COPY_LIMIT,
    PREDICTED,    /* predicted seconds of a decoded token, with these limits */
    PREDICTION,   /* predicted / measured */
    MATRIX_LIMIT, /* mean of the probes before and after the prompt, for the type of the computation
                   */
    MEASURES,
};

/* If two probes differ by more than this factor, both are shown. */
#define MUCH 1.1

struct bench_case {
    uint64_t context, budget;
    struct spw_plan_info plan; /* the plan for `context` + half of the decoded tokens */
    double *samples[MEASURES]; /* owned, [repeat] each; n_runs of them are filled, in any order */
    size_t n_runs;             /* complete runs */
    double median[MEASURES];
    uint64_t device_peak_bytes, host_peak_bytes;
    uint64_t moved_bytes; /* of a decoded token, both directions */
    uint64_t card_bytes;  /* GPU: memory of the card that is in use at the end, by the driver */
    struct spw_machine_range before, after; /* the probes of the run in which they differ most */
    double drift; /* larger / smaller, the larger of the ratios for reads and for copies */
};

/* The kinds of tiles that attention is measured on, alone. */
enum { BENCH_EXACT, BENCH_INT8, BENCH_INT4, BENCH_FORMS };

struct bench {
    const struct cli_options *o;
    struct cli_model model;
    struct spw_machine_range machine; /* the latest probe */
    struct cli_limits limits;         /* the limits for plans with a disk */
    char backend[80];
    int32_t *tokens;          /* owned: for the longest prompt and the decoded tokens */
    struct bench_case *cases; /* owned */
    size_t n_cases;
    /* Owned, [n_cases][BENCH_FORMS]: attention alone, for the first case of a context; GPU only. */
    struct spw_attention_speed *attention;
    double *samples; /* owned: the samples of all cases */
};

/* The number of cases of a context. They are adjacent, in the order of the budgets. */
static inline size_t bench_n_budgets(const struct bench *b)
{
    return b->o->budgets.n ? b->o->budgets.n : 1;
}

/* An engine with one session, for the measurements of one run. */
struct bench_run {
    struct spw_engine *engine;
    struct spw_session *session;
    double opened; /* seconds that opening took */
};
/* After a failure, too, bench_close is due. */
int bench_open(struct bench_run *r, const char *model, const struct spw_options *options,
               struct spw_error *err);
void bench_close(struct bench_run *r);

/* [n] random tokens; NULL when out of memory. The caller frees. */
int32_t *bench_random_tokens(uint32_t vocab, uint64_t seed, size_t n);
/* Brings a session to these tokens in one step and measures the time. -ECANCELED: interrupted. */
int bench_sync(struct spw_engine *e, struct spw_session *s, const int32_t *tokens, size_t n,
               double *seconds, struct spw_error *err);
double bench_median(double *values, size_t n); /* sorts them */

/* `spillway bench --io`: see bench_io.c. */
int bench_io(const struct cli_options *o);
/* `spillway bench --prefix`: see bench_prefix.c. */
int bench_prefix(const struct cli_options *o);

/* Prints the cases with a complete run to stdout, as a table or as CSV. */
void bench_print(const struct bench *b);
/* Writes the cases as CSV and JSON to the files of the options. Returns an exit code. */
int bench_write(const struct bench *b);

#endif
