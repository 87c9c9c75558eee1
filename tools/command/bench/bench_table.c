/* What the measurements of `spillway bench` share: see bench.h. */
#include "tools/command/bench/bench.h"
#include "tools/command/engine.h"
#include "tools/command/output/output.h"
#include "tools/command/output/progress.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- tables ---- */

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
    snprintf(out, 24, "-");
    if (!isfinite(value))
        return out;
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
    case BENCH_CPU:
        snprintf(out, 24, "%.3f s", value);
        break;
    }
    return out;
}

static const char *verdict(const struct bench_line *l, double median)
{
    if (!isfinite(median))
        return "not measured";
    return (l->target > 0 ? median >= l->target : median <= -l->target) ? "held" : "missed";
}

void bench_table_print(const struct bench_table *t)
{
    char median[24], least[24], most[24], target[24];
    printf("%-42s%14s%14s%14s\n", "", "median", "least", "most");
    for (size_t i = 0; i < t->n_lines; i++) {
        const struct bench_line *l = &t->lines[i];
        const struct summary s = summarize(t, i);
        if (!isfinite(s.median) && l->target == 0)
            continue;
        printf("%-42s%14s%14s%14s", l->what, format(median, l->unit, s.median),
               format(least, l->unit, s.least), format(most, l->unit, s.most));
        if (l->target != 0)
            printf("  %s %s: %s", l->target > 0 ? "at least" : "at most",
                   format(target, l->unit, fabs(l->target)), verdict(l, s.median));
        putchar('\n');
    }
}

void bench_table_json(json_t **into, const struct bench_table *t)
{
    for (size_t i = 0; i < t->n_lines; i++) {
        const struct bench_line *l = &t->lines[i];
        const struct summary s = summarize(t, i);
        const char *target = l->target > 0 ? "at_least" : l->target < 0 ? "at_most" : NULL;
        const struct cli_field fields[] = {
            CLI_FIELD(&s, median),
            CLI_FIELD(&s, least),
            CLI_FIELD(&s, most),
            {target, CLI_JSON(fabs(l->target))},
        };
        cli_json_add(into, l->name, CLI_OBJECT(fields));
    }
}

void bench_table_csv(FILE *to, const char *before, const struct bench_table *t)
{
    for (size_t i = 0; i < t->n_lines; i++) {
        const struct summary s = summarize(t, i);
        fprintf(to, "%s%s,%.6g,%.6g,%.6g,%.6g\n", before, t->lines[i].name, s.median, s.least,
                s.most, t->lines[i].target);
    }
}

bool bench_csv_alone(const struct cli_options *o)
{
    return o->csv && strcmp(o->csv, "-") == 0;
}

static int write_csv(const struct cli_options *o, const struct bench_table *t)
{
    struct cli_output *out = NULL;
    if (!o->csv)
        return 0;
    int code = bench_csv_alone(o) ? 0 : cli_output_open(&out, o->csv);
    if (code)
        return code;
    FILE *to = out ? cli_output_file(out) : stdout;
    fputs("measure,median,least,most,target\n", to);
    bench_table_csv(to, "", t);
    return out ? cli_output_commit(out) : 0;
}

int bench_show(const struct cli_options *o, void (*print_head)(const void *of), const void *of,
               json_t *report, const struct bench_table *t)
{
    if (!bench_csv_alone(o)) {
        print_head(of);
        putchar('\n');
        bench_table_print(t);
    }
    int code = write_csv(o, t);
    bench_table_json(&report, t);
    if (!code && o->report)
        return cli_write_json(o->report, report);
    json_decref(report);
    return code;
}

/* ---- runs ---- */

int bench_open(struct bench_run *r, const char *model, const struct spw_options *options,
               struct spw_error *err)
{
    double start = cli_now_seconds();
    *r = (struct bench_run){0};
    SPW_TRY(spw_engine_open(&r->engine, model, options, err));
    cli_progress_engine(r->engine, NULL);
    int rc = spw_session_open(&r->session, r->engine, err);
    r->opened = cli_now_seconds() - start;
    return rc;
}

void bench_close(struct bench_run *r)
{
    cli_progress_engine(NULL, NULL);
    cli_progress_clear();
    spw_session_close(r->session);
    spw_engine_close(r->engine);
}

int bench_sync(struct bench_run *r, const int32_t *tokens, size_t n, double *seconds,
               struct spw_error *err)
{
    struct spw_span span = {.session = r->session, .tokens = tokens, .n_tokens = n, .n_logits = 1};
    struct cli_events events = {.quiet_reuse = true}; /* bench --prefix measures it */
    double start = cli_now_seconds();
    int rc = spw_sync(r->engine, &span, 1, NULL, NULL, err);
    *seconds = cli_now_seconds() - start;
    cli_read_events(&events, r->engine);
    cli_events_free(&events);
    return rc < 0 ? rc : cli_interrupted() ? -ECANCELED : 0;
}

/* splitmix64 (G. Steele, D. Lea, C. Flood, 2014) */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int32_t *bench_random_tokens(uint32_t vocab, uint64_t seed, size_t n)
{
    int32_t *tokens = spw_alloc_zero(n, sizeof *tokens);
    for (size_t i = 0; tokens && i < n; i++)
        tokens[i] = (int32_t)(next_random(&seed) % vocab);
    return tokens;
}
