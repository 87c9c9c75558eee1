/* Tables of `spillway bench`, with a line for each measure, and the reading of weight files. */
#ifndef SPW_TOOLS_COMMAND_BENCH_BENCH_H
#define SPW_TOOLS_COMMAND_BENCH_BENCH_H

#include "tools/command/common.h"

enum bench_unit {
    BENCH_RATE,    /* bytes a second */
    BENCH_TOKENS,  /* tokens a second */
    BENCH_RATIO,   /* shown in percent */
    BENCH_FACTOR,  /* shown as "1.10 x" */
    BENCH_SECONDS, /* shown in milliseconds */
    BENCH_NUMBER,
};

struct bench_line {
    const char *name, *what;
    enum bench_unit unit;
};

enum { BENCH_MOST_LINES = 32 };
struct bench_table {
    const struct bench_line *lines; /* borrowed: [n_lines] */
    size_t n_lines, n_runs, most_runs;
    double *samples[BENCH_MOST_LINES]; /* owned: [n_lines][most_runs], of which n_runs are complete;
                                          NAN: not measured, as all are at first */
};

int bench_table_open(struct bench_table *t, const struct bench_line *lines, size_t n_lines,
                     size_t most_runs, struct spw_error *err);
void bench_table_close(struct bench_table *t);
/* To stdout: median, least and most of the runs. Lines that were not measured in any run are left
 * out. */
void bench_table_print(const struct bench_table *t);
/* An object for each line: median, least, most (null: not measured). */
void bench_table_json(json_t **into, const struct bench_table *t);

/* n_new tokens follow the first one after the prompt. */
struct bench_prompt {
    const int32_t *tokens; /* [context + n_new + 1 + BENCH_ROW_TOKENS] */
    size_t context, n_new;
};
/* Steps of 1, 2, 4 and 8 rows, in several rounds. */
enum { BENCH_ROW_STEPS = 4, BENCH_ROW_ROUNDS = 4, BENCH_ROW_TOKENS = 15 * BENCH_ROW_ROUNDS };
struct bench_drafts {
    double seconds_per_token, drafted, accepted, rows_per_step;
    uint64_t moved_bytes[SPW_MOVED_COUNT]; /* of a token */
    double step_seconds[BENCH_ROW_STEPS];
};
/* Computes an answer with the drafts of the engine's options in this session, then the steps of
 * several rows. -ECANCELED: interrupted. */
int bench_drafts(struct bench_drafts *out, struct spw_session *s, struct spw_engine *e,
                 const struct bench_prompt *p, struct spw_error *err);

/* --simulate: returns an exit code. */
int bench_simulate(const struct cli_options *o);

/* Reads every byte of the model's weight files once with read calls, on `threads` threads, and
 * measures the time: the limit of the page cache. 0 or -errno; -ECANCELED after an interrupt. */
int bench_read_weights(const char *model, uint32_t threads, double *seconds);

#endif
