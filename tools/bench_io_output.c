/* Showing what was measured of the disk tier: see bench_io.h. */
#include "tools/bench_io.h"

#include <math.h>
#include <string.h>

enum unit { RATE, RATIO, FACTOR, SECONDS, CPU };

/* A line of the table. `target`: 0: none; negative: at most so much. */
static const struct line {
    const char *name, *what;
    enum unit unit;
    double target;
} lines[IO_MEASURES] = {
    [IO_READ] = {"read_bytes_per_second", "KV into slots, checksums compared", RATE, 0},
    [IO_FIO_READ] = {"fio_read_bytes_per_second", "fio, the same file", RATE, 0},
    [IO_READ_RATIO] = {"read_over_fio", "  of fio", RATIO, 0.95},
    [IO_WRITE] = {"write_bytes_per_second", "KV written down, checksums taken", RATE, 0},
    [IO_FIO_WRITE] = {"fio_write_bytes_per_second", "fio, a file beside it", RATE, 0},
    [IO_WRITE_RATIO] = {"write_over_fio", "  of fio", RATIO, 0.90},
    [IO_READ_CPU] = {"read_core_seconds_per_gib", "core-seconds a GiB, reading", CPU, -0.15},
    [IO_WRITE_CPU] = {"write_core_seconds_per_gib", "core-seconds a GiB, writing", CPU, -0.15},
    [IO_STEP] = {"step_seconds", "a token, KV on disk", SECONDS, 0},
    [IO_STEP_ALONE] = {"resident_step_seconds", "a token, KV on the device", SECONDS, 0},
    [IO_STEP_LINK] = {"link_seconds", "its bytes from disk, at fio's rate", SECONDS, 0},
    [IO_STEP_RATIO] = {"link_over_step", "  of the token", RATIO, 0.90},
    [IO_STEP_WAIT] = {"unhidden_wait_seconds", "waiting not hidden, a token", SECONDS, 0},
    [IO_PREDICTED] = {"predicted_over_step", "predicted / measured token", FACTOR, 0},
    [IO_PROMPT] = {"prompt_seconds", "the prompt, spilling to disk", SECONDS, 0},
    [IO_PROMPT_ALONE] = {"resident_prompt_seconds", "the prompt, without", SECONDS, 0},
    [IO_PROMPT_RATIO] = {"prompt_over_resident", "  spilling / without", FACTOR, -1.10},
    [IO_BLOCKING] = {"blocking_read_seconds", "its bytes by pread, layer by layer", SECONDS, 0},
    [IO_FACTOR] = {"blocking_over_step", "  token with those / token", FACTOR, 0},
};

/* Of the pairs; NAN where any of them is not there. */
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

static void format(char out[24], enum unit unit, double value)
{
    snprintf(out, 24, "-");
    if (!isfinite(value))
        return;
    switch (unit) { /* literal formats, so that the compiler can check them */
    case RATE:
        snprintf(out, 24, "%.2f GB/s", value * 1e-9);
        return;
    case RATIO:
        snprintf(out, 24, "%.1f %%", value * 100);
        return;
    case FACTOR:
        snprintf(out, 24, "%.2f x", value);
        return;
    case SECONDS:
        snprintf(out, 24, "%.2f ms", value * 1e3);
        return;
    case CPU:
        snprintf(out, 24, "%.3f s", value);
        return;
    }
}

static bool is_met(const struct line *l, double median)
{
    return l->target >= 0 ? median >= l->target : median <= -l->target;
}

static void print_line(const struct line *l, const struct summary *s)
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

static void print_table(const struct io_bench *b, const struct summary *s)
{
    const struct spw_plan_info *p = &b->plan;
    const struct spw_drive *d = &b->limits.drive;
    char a[32], c[32], f[32], slot[32];
    printf("machine   %s, %u threads\n"
           "drive     %s, %s: %s; %s\n"
           "model     %s, %llu tokens of context, %s for KV\n"
           "KV        %s on the device; %s, the oldest %.1f %% of the tokens, on disk\n"
           "runs      medians of %zu pairs, a file of %s, slots of %s, %u of them, %llu tokens "
           "decoded in each\n",
           *b->limits.machine.gpu ? b->limits.machine.gpu : b->limits.machine.cpu,
           b->limits.machine.threads, d->device, d->filesystem, b->file, b->engine, b->o->operand,
           (unsigned long long)b->context, spw_dtype_name(p->kv),
           cli_format_bytes(a, p->device.kv_resident), cli_format_bytes(c, p->disk.kv),
           100 * (double)p->waterlines.disk_end / (double)p->waterlines.n_tokens, b->n_pairs,
           cli_format_bytes(f, b->file_bytes), cli_format_bytes(slot, b->slot_bytes), b->n_slots,
           (unsigned long long)b->o->decode_tokens);
    if (*b->no_fio)
        printf("fio       nothing is set beside it: %s\n", b->no_fio);
    printf("\n%-36s%14s%14s%14s\n", "", "median", "least", "most");
    for (int m = 0; m < IO_MEASURES; m++)
        print_line(&lines[m], &s[m]);
    printf("\npredicted   %.4g s a token, bound by %s; %s a token come from disk\n",
           b->predicted.seconds, spw_bound_name(b->predicted.bound),
           cli_format_bytes(a, b->step_bytes));
}

static void write_csv(const struct summary *s, FILE *to)
{
    fputs("measure,median,least,most,target\n", to);
    for (int m = 0; m < IO_MEASURES; m++)
        fprintf(to, "%s,%.6g,%.6g,%.6g,%.6g\n", lines[m].name, s[m].median, s[m].least, s[m].most,
                lines[m].target);
}

static json_t *summary_json(const struct line *l, const struct summary *s)
{
    json_t *o = json_object();
    int failed = json_object_set_new(o, "median", cli_json_real(s->median));
    failed |= json_object_set_new(o, "least", cli_json_real(s->least));
    failed |= json_object_set_new(o, "most", cli_json_real(s->most));
    if (l->target != 0)
        failed |= json_object_set_new(o, l->target > 0 ? "at_least" : "at_most",
                                      cli_json_real(fabs(l->target)));
    if (!failed)
        return o;
    json_decref(o);
    return NULL;
}

static int write_json(const struct io_bench *b, const struct summary *s)
{
    json_t *o = json_object();
    int failed = json_object_set_new(o, "model", json_string(b->o->operand));
    failed |= json_object_set_new(o, "context", cli_json_count(b->context));
    failed |= json_object_set_new(o, "pairs", cli_json_count(b->n_pairs));
    failed |= json_object_set_new(o, "file_bytes", cli_json_count(b->file_bytes));
    failed |= json_object_set_new(o, "step_bytes_from_disk", cli_json_count(b->step_bytes));
    failed |= json_object_set_new(o, "file", json_string(b->file));
    failed |= json_object_set_new(o, "engine", json_string(b->engine));
    failed |= json_object_set_new(o, "fio", *b->no_fio ? json_string(b->no_fio) : json_true());
    failed |= json_object_set_new(o, "machine", cli_machine_json(&b->limits.machine));
    failed |= json_object_set_new(o, "drive", cli_drive_json(&b->limits.drive));
    failed |= json_object_set_new(o, "predicted_step", cli_prediction_json(&b->predicted));
    for (int m = 0; m < IO_MEASURES; m++)
        failed |= json_object_set_new(o, lines[m].name, summary_json(&lines[m], &s[m]));
    if (failed) {
        json_decref(o);
        o = NULL;
    }
    return cli_write_json(b->o->report, o);
}

int bench_io_print(struct io_bench *b)
{
    struct summary s[IO_MEASURES];
    const char *path = b->o->csv;
    bool to_stdout = path && strcmp(path, "-") == 0;
    for (int m = 0; m < IO_MEASURES; m++)
        s[m] = summarize(b->samples[m], b->n_pairs);
    if (!to_stdout)
        print_table(b, s);
    FILE *file = to_stdout ? stdout : path ? fopen(path, "w") : NULL;
    if (path && !file)
        return cli_fail(CLI_FAILED, "%s: %s", path, strerror(errno));
    if (path)
        write_csv(s, file);
    if (path && !to_stdout && fclose(file) != 0)
        return cli_fail(CLI_FAILED, "%s: %s", path, strerror(errno));
    return b->o->report ? write_json(b, s) : 0;
}
