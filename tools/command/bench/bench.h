/* What the measurements of `spillway bench` share: an engine with one session, random tokens, and
 * tables with a line for each measure. */
#ifndef SPW_TOOLS_COMMAND_BENCH_BENCH_H
#define SPW_TOOLS_COMMAND_BENCH_BENCH_H

#include "tools/command/input/input.h"
#include "tools/command/limits.h"

/* ---- tables ---- */

enum bench_unit {
    BENCH_RATE,    /* bytes a second */
    BENCH_TOKENS,  /* tokens a second */
    BENCH_RATIO,   /* shown in percent */
    BENCH_FACTOR,  /* shown as "1.10 x" */
    BENCH_SECONDS, /* shown in milliseconds */
    BENCH_CPU,     /* seconds, shown as they are */
};

/* `target`: 0 means none, a negative one means "at most -target". */
struct bench_line {
    const char *name, *what;
    enum bench_unit unit;
    double target;
};

enum { BENCH_MOST_LINES = 24 };
struct bench_table {
    const struct bench_line *lines; /* borrowed: [n_lines] */
    size_t n_lines, n_runs, most_runs;
    double *samples[BENCH_MOST_LINES]; /* owned: [n_lines][most_runs], of which n_runs are complete;
                                          NAN: not measured, as all are at first */
};

int bench_table_open(struct bench_table *t, const struct bench_line *lines, size_t n_lines,
                     size_t most_runs, struct spw_error *err);
void bench_table_close(struct bench_table *t);
/* To stdout: median, least and most of the runs, and the target. Lines that were not measured in
 * any run and have no target are left out. */
void bench_table_print(const struct bench_table *t);
/* An object for each line: median, least, most (null: not measured), and at_least or at_most. */
void bench_table_json(json_t **into, const struct bench_table *t);
/* Lines of CSV, each with the texts before, which end in a comma or are empty. */
void bench_table_csv(FILE *to, const char *before, const struct bench_table *t);
bool bench_csv_alone(const struct cli_options *o); /* --csv - replaces the table */

/* What a measurement of pairs shows: a text with the conditions of the runs, the table, and an
 * object with the conditions, which it takes. Writes also the files of --csv and --report. Returns
 * an exit code. */
int bench_show(const struct cli_options *o, void (*print_head)(const void *of), const void *of,
               json_t *report, const struct bench_table *t);

/* ---- runs ---- */

struct bench_run {
    struct spw_engine *engine;
    struct spw_session *session;
    double opened; /* seconds that opening took */
};
/* After a failure, too, bench_close is due. */
int bench_open(struct bench_run *r, const char *model, const struct spw_options *options,
               struct spw_error *err);
void bench_close(struct bench_run *r);
/* Brings the session to these tokens in one step and measures the time. -ECANCELED: interrupted. */
int bench_sync(struct bench_run *r, const int32_t *tokens, size_t n, double *seconds,
               struct spw_error *err);
/* [n] random tokens; NULL when out of memory. The caller frees. */
int32_t *bench_random_tokens(uint32_t vocab, uint64_t seed, size_t n);

/* `spillway bench --io`: see bench_io.c. */
int bench_io(const struct cli_options *o);
/* `spillway bench --prefix`: see bench_prefix.c. */
int bench_prefix(const struct cli_options *o);

#endif
