/* Tables of `spillway bench`: see bench.h. */
#include "tools/command/bench/bench.h"

#include <math.h>
#include <stdlib.h>

int bench_table_open(struct bench_table *t, const struct bench_line *lines, size_t n_lines,
                     size_t most_runs, struct spw_error *err)
{
    *t = (struct bench_table){.lines = lines, .n_lines = n_lines, .most_runs = most_runs};
    t->samples[0] = spw_alloc_zero(n_lines * most_runs, sizeof(double));
    if (!t->samples[0])
        return spw_fail(err, -ENOMEM, "out of memory");
    for (size_t i = 0; i < n_lines * most_runs; i++)
        t->samples[0][i] = NAN;
    for (size_t i = 1; i < n_lines; i++)
        t->samples[i] = t->samples[0] + i * most_runs;
    return 0;
}

void bench_table_close(struct bench_table *t)
{
    spw_free(t->samples[0]);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of all complete runs; NAN if any has none. */
struct summary {
    double median, least, most;
};

static struct summary summarize(const struct bench_table *t, size_t line)
{
    const size_t n = t->n_runs;
    double *sorted = spw_alloc(n * sizeof *sorted);
    struct summary s = {NAN, NAN, NAN};
    bool measured = sorted != NULL && n > 0;
    for (size_t i = 0; i < n && measured; i++)
        measured = isfinite(sorted[i] = t->samples[line][i]);
    if (measured) {
        qsort(sorted, n, sizeof *sorted, compare);
        s = (struct summary){n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2,
                             sorted[0], sorted[n - 1]};
    }
    spw_free(sorted);
    return s;
}

static const char *format(char out[24], enum bench_unit unit, double value)
{
    switch (unit) { /* literal formats: the compiler checks them */
    case BENCH_RATE:
        snprintf(out, 24, "%.2f GB/s", value * 1e-9);
        break;
    case BENCH_TOKENS:
        snprintf(out, 24, "%.2f/s", value);
        break;
    case BENCH_RATIO:
        snprintf(out, 24, "%.1f %%", value * 100);
        break;
    case BENCH_FACTOR:
        snprintf(out, 24, "%.2f x", value);
        break;
    case BENCH_SECONDS:
        snprintf(out, 24, "%.2f ms", value * 1e3);
        break;
    case BENCH_NUMBER:
        snprintf(out, 24, "%.2f", value);
        break;
    }
    return out;
}

void bench_table_print(const struct bench_table *t)
{
    char median[24], least[24], most[24];
    printf("%-42s%14s%14s%14s\n", "", "median", "least", "most");
    for (size_t i = 0; i < t->n_lines; i++) {
        const struct bench_line *l = &t->lines[i];
        const struct summary s = summarize(t, i);
        if (isfinite(s.median))
            printf("%-42s%14s%14s%14s\n", l->what, format(median, l->unit, s.median),
                   format(least, l->unit, s.least), format(most, l->unit, s.most));
    }
}

void bench_table_json(json_t **into, const struct bench_table *t)
{
    for (size_t i = 0; i < t->n_lines; i++) {
        const struct summary s = summarize(t, i);
        const struct cli_field fields[] = {
            CLI_FIELD(&s, median),
            CLI_FIELD(&s, least),
            CLI_FIELD(&s, most),
        };
        cli_json_add(into, t->lines[i].name, CLI_OBJECT(fields));
    }
}
