/* See bench_lines.h. */
#include "tools/command/bench/bench_lines.h"
#include "tools/command/output/output.h"

#include <math.h>
#include <string.h>

/* Median, least and most of the pairs; NAN if any pair has none. */
struct summary {
    double median, least, most;
};

static struct summary summarize(double *values, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(values[i]))
            return (struct summary){NAN, NAN, NAN};
    double median = bench_median(values, n); /* sorts */
    return (struct summary){median, values[0], values[n - 1]};
}

static void format(char out[24], enum bench_unit unit, double value)
{
    snprintf(out, 24, "-");
    if (!isfinite(value))
        return;
    switch (unit) { /* literal formats: the compiler checks them */
    case BENCH_RATE:
        snprintf(out, 24, "%.2f GB/s", value * 1e-9);
        return;
    case BENCH_RATIO:
        snprintf(out, 24, "%.1f %%", value * 100);
        return;
    case BENCH_FACTOR:
        snprintf(out, 24, "%.2f x", value);
        return;
    case BENCH_SECONDS:
        snprintf(out, 24, "%.2f ms", value * 1e3);
        return;
    case BENCH_CPU:
        snprintf(out, 24, "%.3f s", value);
        return;
    }
}

static bool is_met(const struct bench_line *l, double median)
{
    return l->target >= 0 ? median >= l->target : median <= -l->target;
}

static void print_line(const struct bench_line *l, const struct summary *s)
{
    char median[24], least[24], most[24], target[24];
    format(median, l->unit, s->median);
    format(least, l->unit, s->least);
    format(most, l->unit, s->most);
    printf("%-36s%14s%14s%14s", l->what, median, least, most);
    if (l->target != 0) {
        format(target, l->unit, fabs(l->target));
        printf("  %s %s: %s", l->target > 0 ? "at least" : "at most", target,
               !isfinite(s->median)   ? "not measured"
               : is_met(l, s->median) ? "held"
                                      : "missed");
    }
    putchar('\n');
}

void bench_lines_print(const struct bench_line *lines, double *const *samples, size_t n_lines,
                       size_t n_pairs)
{
    printf("\n%-36s%14s%14s%14s\n", "", "median", "least", "most");
    for (size_t i = 0; i < n_lines; i++) {
        struct summary s = summarize(samples[i], n_pairs);
        print_line(&lines[i], &s);
    }
}

static json_t *summary_json(const struct bench_line *l, const struct summary *s)
{
    const char *target = l->target > 0 ? "at_least" : l->target < 0 ? "at_most" : NULL;
    const struct cli_field fields[] = {
        CLI_FIELD(s, median),
        CLI_FIELD(s, least),
        CLI_FIELD(s, most),
        {target, CLI_JSON(fabs(l->target))},
    };
    return CLI_OBJECT(fields);
}

void bench_lines_add(json_t **into, const struct bench_line *lines, double *const *samples,
                     size_t n_lines, size_t n_pairs)
{
    for (size_t i = 0; i < n_lines; i++) {
        struct summary s = summarize(samples[i], n_pairs);
        cli_json_add(into, lines[i].name, summary_json(&lines[i], &s));
    }
}

bool bench_csv_alone(const struct cli_options *o)
{
    return o->csv && strcmp(o->csv, "-") == 0;
}

int bench_lines_csv(const struct cli_options *o, const struct bench_line *lines,
                    double *const *samples, size_t n_lines, size_t n_pairs)
{
    struct cli_output *out = NULL;
    if (!o->csv)
        return 0;
    int code = bench_csv_alone(o) ? 0 : cli_output_open(&out, o->csv);
    if (code)
        return code;
    FILE *to = out ? cli_output_file(out) : stdout;
    fputs("measure,median,least,most,target\n", to);
    for (size_t i = 0; i < n_lines; i++) {
        struct summary s = summarize(samples[i], n_pairs);
        fprintf(to, "%s,%.6g,%.6g,%.6g,%.6g\n", lines[i].name, s.median, s.least, s.most,
                lines[i].target);
    }
    return out ? cli_output_commit(out) : 0;
}
