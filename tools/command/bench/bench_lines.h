/* Tables for benchmarks that measure in pairs: a line for each measure, with median, least and most
 * of all pairs, and with its target. */
#ifndef SPW_TOOLS_COMMAND_BENCH_BENCH_LINES_H
#define SPW_TOOLS_COMMAND_BENCH_BENCH_LINES_H

#include "tools/command/bench/bench.h"

enum bench_unit { BENCH_RATE, BENCH_RATIO, BENCH_FACTOR, BENCH_SECONDS, BENCH_CPU };

/* `target`: 0 means none, a negative one means "at most -target". */
struct bench_line {
    const char *name, *what;
    enum bench_unit unit;
    double target;
};

/* samples[i]: [n_pairs] of line i; NAN: not measured. Each function sorts them. */
void bench_lines_print(const struct bench_line *lines, double *const *samples, size_t n_lines,
                       size_t n_pairs);
void bench_lines_add(json_t **into, const struct bench_line *lines, double *const *samples,
                     size_t n_lines, size_t n_pairs);
/* Writes CSV to the file of --csv, if it was given. Returns an exit code. */
int bench_lines_csv(const struct cli_options *o, const struct bench_line *lines,
                    double *const *samples, size_t n_lines, size_t n_pairs);
bool bench_csv_alone(const struct cli_options *o); /* --csv - replaces the table */

#endif
