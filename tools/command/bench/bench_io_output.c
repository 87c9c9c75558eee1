/* The output of `spillway bench --io`: see bench_io.h. */
#include "quant/types.h"
#include "tools/command/bench/bench_io.h"
#include "tools/command/bench/bench_lines.h"
#include "tools/command/output/output.h"

#include <string.h>

static const struct bench_line lines[IO_MEASURES] = {
    [IO_READ] = {"read_bytes_per_second", "KV into slots, checksums compared", BENCH_RATE, 0},
    [IO_FIO_READ] = {"fio_read_bytes_per_second", "fio, the same file", BENCH_RATE, 0},
    [IO_READ_RATIO] = {"read_over_fio", "  of fio", BENCH_RATIO, 0.95},
    [IO_WRITE] = {"write_bytes_per_second", "KV written to the drive, checksums taken", BENCH_RATE,
                  0},
    [IO_FIO_WRITE] = {"fio_write_bytes_per_second", "fio, a file beside it", BENCH_RATE, 0},
    [IO_WRITE_RATIO] = {"write_over_fio", "  of fio", BENCH_RATIO, 0.90},
    [IO_READ_CPU] = {"read_core_seconds_per_gib", "core-seconds a GiB, reading", BENCH_CPU, -0.15},
    [IO_WRITE_CPU] = {"write_core_seconds_per_gib", "core-seconds a GiB, writing", BENCH_CPU,
                      -0.15},
    [IO_STEP] = {"step_seconds", "a token, KV on disk", BENCH_SECONDS, 0},
    [IO_STEP_ALONE] = {"resident_step_seconds", "a token, KV on the device", BENCH_SECONDS, 0},
    [IO_STEP_LINK] = {"link_seconds", "its bytes from disk, at fio's rate", BENCH_SECONDS, 0},
    [IO_STEP_RATIO] = {"link_over_step", "  of the token", BENCH_RATIO, 0.90},
    [IO_STEP_PATH] = {"step_over_path", "its bytes a second, of the path alone", BENCH_RATIO, 0.85},
    [IO_STEP_WAIT] = {"unhidden_wait_seconds", "waiting not hidden, a token", BENCH_SECONDS, 0},
    [IO_PREDICTED] = {"predicted_over_step", "predicted / measured token", BENCH_FACTOR, 0},
    [IO_PROMPT] = {"prompt_seconds", "the prompt, spilling to disk", BENCH_SECONDS, 0},
    [IO_PROMPT_ALONE] = {"resident_prompt_seconds", "the prompt, without", BENCH_SECONDS, 0},
    [IO_PROMPT_RATIO] = {"prompt_over_resident", "  spilling / without", BENCH_FACTOR, -1.10},
    [IO_BLOCKING] = {"blocking_read_seconds", "its bytes by pread, layer by layer", BENCH_SECONDS,
                     0},
    [IO_FACTOR] = {"blocking_over_step", "  token with those / token", BENCH_FACTOR, 1.3},
};

static void print_table(const struct io_bench *b)
{
    const struct spw_plan_info *p = &b->plan;
    const struct spw_drive *d = &b->limits.drive;
    const struct spw_machine *m = &b->limits.machine.typical;
    char a[32], c[32], f[32], slot[32];
    printf("machine   %s, %u threads\n"
           "drive     %s, %s: %s; %s\n"
           "model     %s, %llu tokens of context, %s for KV\n"
           "KV        %s on the device; %s, the oldest %.1f %% of the tokens, on disk\n"
           "runs      medians of %zu pairs, a file of %s, slots of %s, %u of them, %llu tokens "
           "decoded in each\n",
           *m->gpu ? m->gpu : m->cpu, m->threads, d->device, d->filesystem, b->file, b->engine,
           b->o->operand, (unsigned long long)b->context, spw_dtype_name(p->kv),
           cli_format_bytes(a, p->device.kv_resident), cli_format_bytes(c, p->disk.kv),
           100 * (double)p->waterlines.disk_end / (double)p->waterlines.n_tokens, b->n_pairs,
           cli_format_bytes(f, b->file_bytes), cli_format_bytes(slot, b->slot_bytes), b->n_slots,
           (unsigned long long)b->o->decode_tokens);
    if (*b->no_fio)
        printf("fio       no comparison: %s\n", b->no_fio);
    bench_lines_print(lines, b->samples, IO_MEASURES, b->n_pairs);
    printf("\npredicted   %.4g s a token, bound by %s; %s a token come from disk\n",
           b->predicted.seconds, spw_bound_name(b->predicted.bound),
           cli_format_bytes(a, b->step_bytes));
}

static int write_json(const struct io_bench *b)
{
    const struct cli_field fields[] = {
        {"model", CLI_JSON(b->o->operand)},
        CLI_FIELD(b, context),
        {"pairs", CLI_JSON(b->n_pairs)},
        CLI_FIELD(b, file_bytes),
        {"step_bytes_from_disk", CLI_JSON(b->step_bytes)},
        CLI_FIELD(b, file),
        CLI_FIELD(b, engine),
        {"fio", *b->no_fio ? CLI_JSON(b->no_fio) : json_true()},
        {"machine", cli_machine_json(&b->limits.machine)},
        {"drive", cli_drive_json(&b->limits.drive)},
        {"predicted_step", cli_prediction_json(&b->predicted)},
    };
    json_t *o = CLI_OBJECT(fields);
    bench_lines_add(&o, lines, b->samples, IO_MEASURES, b->n_pairs);
    return cli_write_json(b->o->report, o);
}

int bench_io_print(const struct io_bench *b)
{
    if (!bench_csv_alone(b->o))
        print_table(b);
    int code = bench_lines_csv(b->o, lines, b->samples, IO_MEASURES, b->n_pairs);
    return code || !b->o->report ? code : write_json(b);
}
