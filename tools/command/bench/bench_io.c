/* `spillway bench --io`: the disk tier compared with fio, on the same file system in the same
 * minutes.
 *
 * A pair measures these things one after the other; odd pairs use the opposite order:
 *
 *   the path alone   writes a fresh file of the tier and reads it back, in slots of the size of the
 *                    engine's ring, with checksums; fio writes a fresh file beside it and reads the
 *                    same file (through /proc)
 *   decode, prompt   the engine with 3/4 of the KV on disk, and with all KV on the device. The
 *                    bytes from disk of a token are compared with fio and with the path alone,
 *                    before and after
 *
 * The table shows the median, least and most of the pairs. */
#include "tools/command/bench/bench.h"
#include "quant/types.h"
#include "tools/command/engine.h"
#include "tools/command/bench/fio.h"
#include "tools/command/output/progress.h"

#include <math.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#define FILE_BYTES ((uint64_t)1 << 30)
#define FEWEST_BYTES ((uint64_t)16 << 20)
/* Twice the bytes that fio has in flight: one half of the ring receives data. */
#define RING_BYTES ((uint64_t)32 << 20)
#define GIB ((double)(1 << 30))
enum { PAIRS = 5, CONTEXT = 16384, TILE_TOKENS = 128, SPLIT_TILES = 4 };
static const double ON_DISK = 0.75; /* fraction of the KV */

/* Each has one sample a pair. A ratio of 1 is the limit. */
enum io_measure {
    IO_READ,       /* bytes a second: slots from the file, checksums compared */
    IO_FIO_READ,   /* fio, the same file */
    IO_READ_RATIO, /* of this pair */
    IO_WRITE,      /* a fresh file, preallocated, checksums taken */
    IO_FIO_WRITE,  /* fio, another fresh file, preallocated */
    IO_WRITE_RATIO,
    IO_READ_CPU, /* core-seconds a GiB, of the whole process */
    IO_WRITE_CPU,
    IO_STEP,       /* seconds a token, 3/4 of the KV on disk */
    IO_STEP_ALONE, /* the same with all KV on the device */
    IO_STEP_LINK,  /* the bytes from disk at the rate of fio, mean of before and after */
    IO_STEP_RATIO, /* link / step */
    IO_STEP_PATH,  /* bytes from disk a second of the step / of the path alone */
    IO_STEP_WAIT,  /* waiting that computation did not hide */
    IO_PREDICTED,  /* predicted with the limits of the profile / step */
    IO_PROMPT,     /* seconds of the prompt, spilling */
    IO_PROMPT_ALONE,
    IO_PROMPT_RATIO, /* spilling / alone */
    IO_MEASURES,
};

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
};

struct io_bench {
    const struct cli_options *o;
    struct cli_model model;
    struct spw_options options; /* with the disk */
    struct spw_plan_info plan;  /* the plan of `options` */
    struct cli_limits limits;
    struct spw_prediction predicted;
    int32_t *tokens;               /* owned: [context + decode_tokens + 1] */
    struct spw_drive_bench *drive; /* owned: the file that is read */
    char engine[128], file[128];   /* the I/O engine of the path alone */
    uint64_t context, file_bytes, slot_bytes, fio_bytes, step_bytes; /* step: from disk, a token */
    uint32_t n_slots;
    struct bench_table table; /* owned */
    char no_fio[320];         /* why there are no numbers of fio; "" if there are */
};

static double process_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- fio ---- */

/* Runs fio. NAN without fio: then the other numbers are shown alone. */
static double fio(struct io_bench *b, const char *file, bool write)
{
    struct spw_error why = {0};
    double rate;
    if (*b->no_fio)
        return NAN;
    if (cli_fio_run(file, write, b->fio_bytes, &rate, &why) == 0)
        return rate;
    snprintf(b->no_fio, sizeof b->no_fio, "%.300s", why.text);
    return NAN;
}

static double fio_read(struct io_bench *b)
{
    char file[64];
    int fd;
    bool direct;
    spw_drive_bench_file(b->drive, &fd, &direct);
    snprintf(file, sizeof file, "/proc/%ld/fd/%d", (long)getpid(), fd);
    return fio(b, file, false);
}

static double fio_write(struct io_bench *b)
{
    char file[4200];
    snprintf(file, sizeof file, "%s/spillway-fio.%ld", b->options.disk_dir, (long)getpid());
    double rate = fio(b, file, true);
    unlink(file);
    return rate;
}

/* ---- the path alone ---- */

static int open_file(struct io_bench *b, struct spw_error *err)
{
    const struct spw_model_config *c = &b->model.config;
    uint64_t tile =
        2 * (uint64_t)TILE_TOKENS * c->kv[c->full_kind].n_heads * c->kv[c->full_kind].head_dim;
    struct spw_drive_bench_options o = {.directory = b->options.disk_dir,
                                        .io = b->options.io,
                                        .queue_depth = b->limits.drive.queue_depth,
                                        .tile_bytes =
                                            spw_align_up(spw_row_bytes(b->plan.kv, tile), 4096),
                                        .slot_tiles = SPLIT_TILES * b->plan.prefetch_splits,
                                        .file_bytes = b->file_bytes};
    int fd;
    bool direct;
    b->slot_bytes = o.slot_tiles * o.tile_bytes;
    o.n_slots =
        (uint32_t)spw_max_u64(b->plan.prefetch_slots, spw_div_up(RING_BYTES, b->slot_bytes));
    b->n_slots = o.n_slots;
    o.file_bytes -= o.file_bytes % b->slot_bytes;
    b->fio_bytes =
        o.file_bytes; /* the size of the file; for a larger size fio would write a new file */
    spw_drive_bench_close(b->drive);
    SPW_TRY(spw_drive_bench_open(&b->drive, &o, err));
    snprintf(b->engine, sizeof b->engine, "%s", spw_drive_bench_engine(b->drive));
    snprintf(b->file, sizeof b->file, "%s", spw_drive_bench_file(b->drive, &fd, &direct));
    return 0;
}

static int pass(struct io_bench *b, bool write, double *rate, double *cpu, struct spw_error *err)
{
    struct spw_drive_pass_options o = {.write = write};
    struct spw_drive_pass p;
    double start = process_seconds();
    SPW_TRY(spw_drive_bench_pass(b->drive, &o, &p, err));
    *cpu = (process_seconds() - start) / ((double)p.bytes / GIB);
    *rate = (double)p.bytes / p.seconds;
    return cli_interrupted() ? -ECANCELED : 0;
}

static int path_pair(struct io_bench *b, size_t i, struct spw_error *err)
{
    double *const *s = b->table.samples;
    bool fio_first = i % 2;
    if (fio_first)
        s[IO_FIO_WRITE][i] = fio_write(b);
    SPW_TRY(open_file(b, err));
    SPW_TRY(pass(b, true, &s[IO_WRITE][i], &s[IO_WRITE_CPU][i], err));
    if (!fio_first)
        s[IO_FIO_WRITE][i] = fio_write(b);
    if (fio_first)
        s[IO_FIO_READ][i] = fio_read(b);
    SPW_TRY(pass(b, false, &s[IO_READ][i], &s[IO_READ_CPU][i], err));
    if (!fio_first)
        s[IO_FIO_READ][i] = fio_read(b);
    s[IO_READ_RATIO][i] = s[IO_READ][i] / s[IO_FIO_READ][i];
    s[IO_WRITE_RATIO][i] = s[IO_WRITE][i] / s[IO_FIO_WRITE][i];
    return 0;
}

/* ---- the engine ---- */

struct timed {
    double prompt, step, wait; /* seconds; step and wait are for a token */
    uint64_t from_disk;        /* bytes a token */
};

/* Runs a prompt in one step, then decodes tokens. The first token is not timed, because it finds
 * the ring empty. */
static int run_session(struct io_bench *b, struct bench_run *r, struct timed *out,
                       struct spw_error *err)
{
    struct spw_stats before, after;
    size_t n = b->o->decode_tokens;
    double seconds;
    SPW_TRY(bench_sync(r, b->tokens, b->context, &out->prompt, err));
    for (size_t i = 0; i <= n; i++) {
        if (i == 1)
            spw_engine_stats(r->engine, &before);
        SPW_TRY(bench_sync(r, b->tokens, b->context + i + 1, &seconds, err));
        out->step += i ? seconds / (double)n : 0;
    }
    spw_engine_stats(r->engine, &after);
    out->wait = (after.unhidden_wait_seconds - before.unhidden_wait_seconds) / (double)n;
    out->from_disk =
        (after.moved_bytes[SPW_MOVED_DISK_TO_HOST] - before.moved_bytes[SPW_MOVED_DISK_TO_HOST]) /
        n;
    return 0;
}

static int run_engine(struct io_bench *b, const struct spw_options *options, struct timed *out,
                      struct spw_error *err)
{
    struct bench_run r;
    *out = (struct timed){0};
    int rc = bench_open(&r, b->o->operand, options, err);
    if (!rc)
        rc = run_session(b, &r, out, err);
    bench_close(&r);
    return rc;
}

/* Options for the same machine with all KV on the device. */
static struct spw_options resident_options(const struct io_bench *b)
{
    struct spw_options o = b->options;
    o.device_bytes = 0;
    if (!cli_given(b->o, "host-memory"))
        o.host_bytes = 0;
    o.disk_dir = NULL;
    o.drive = NULL;
    o.disk_bytes = o.disk_write_limit = 0;
    return o;
}

/* The least time for the bytes from disk: at fio's rate or, on a GPU, at the rate of the copies to
 * the device if that is lower. Both run at the same time. */
static double link_seconds(const struct io_bench *b, uint64_t bytes, double fio_rate)
{
    const struct spw_machine *m = &b->limits.machine.best;
    double rate =
        *m->gpu && m->copy_bytes_per_second < fio_rate ? m->copy_bytes_per_second : fio_rate;
    return (double)bytes / rate;
}

static int engine_pair(struct io_bench *b, size_t i, struct spw_error *err)
{
    double *const *s = b->table.samples;
    struct spw_options resident = resident_options(b);
    struct timed alone, disk;
    if (i % 2)
        SPW_TRY(run_engine(b, &resident, &alone, err));
    double fio_before = fio_read(b), path_before, path_after, cpu;
    SPW_TRY(pass(b, false, &path_before, &cpu, err));
    SPW_TRY(run_engine(b, &b->options, &disk, err));
    SPW_TRY(pass(b, false, &path_after, &cpu, err));
    double fio_after = fio_read(b);
    if (i % 2 == 0)
        SPW_TRY(run_engine(b, &resident, &alone, err));
    b->step_bytes = disk.from_disk;
    s[IO_STEP][i] = disk.step;
    s[IO_STEP_ALONE][i] = alone.step;
    s[IO_STEP_LINK][i] = link_seconds(b, disk.from_disk, (fio_before + fio_after) / 2);
    s[IO_STEP_RATIO][i] = s[IO_STEP_LINK][i] / disk.step;
    s[IO_STEP_PATH][i] = (double)disk.from_disk / disk.step / ((path_before + path_after) / 2);
    s[IO_STEP_WAIT][i] = disk.wait;
    s[IO_PREDICTED][i] = b->predicted.seconds / disk.step;
    s[IO_PROMPT][i] = disk.prompt;
    s[IO_PROMPT_ALONE][i] = alone.prompt;
    s[IO_PROMPT_RATIO][i] = disk.prompt / alone.prompt;
    return 0;
}

/* ---- runs ---- */

static int query(struct io_bench *b, uint64_t device_bytes, struct spw_error *err)
{
    b->options.device_bytes = device_bytes;
    return spw_plan_query(&b->plan, b->o->operand, &b->options, err);
}

static double on_disk(const struct spw_plan_info *p)
{
    return (double)p->waterlines.disk_end / (double)p->waterlines.n_tokens;
}

/* Chooses the budget of the host: room for all weights, for everything except KV next to a device
 * with a quarter of the KV, and for the bounce buffers of a GPU. KV fills host memory before the
 * disk, so with this budget KV goes to the disk and weights do not. */
static int bound_host(struct io_bench *b, struct spw_error *err)
{
    if (cli_given(b->o, "host-memory"))
        return 0;
    SPW_TRY(query(b, 0, err));
    double kv = (double)(b->plan.kv_bytes_per_token * b->context);
    SPW_TRY(query(b, b->plan.smallest_device_bytes + (uint64_t)((1 - ON_DISK) * kv), err));
    b->options.host_bytes = b->plan.smallest_host_bytes + b->plan.weights_bytes +
                            b->plan.host.hidden + b->plan.host.staging +
                            (*b->limits.machine.typical.gpu ? 4 * RING_BYTES : 0);
    return 0;
}

/* Finds the largest device budget that leaves 3/4 of the KV to the disk, to 1 part in 1000. A
 * smaller budget leaves more KV to the disk. --device-memory replaces it. */
static int find_budget(struct io_bench *b, struct spw_error *err)
{
    if (cli_given(b->o, "device-memory"))
        return query(b, b->options.device_bytes, err);
    SPW_TRY(query(b, 0, err));
    uint64_t low = b->plan.smallest_device_bytes;
    uint64_t high = b->plan.weights_bytes + b->plan.kv_bytes_per_token * b->context * 2 + low;
    while (high - low > high / 1000) {
        uint64_t middle = low + (high - low) / 2;
        SPW_TRY(query(b, middle, err));
        *(on_disk(&b->plan) >= ON_DISK ? &low : &high) = middle;
    }
    return query(b, low, err);
}

/* Chooses the size of the file that is read in turn with fio: 1 GiB, or a quarter of the free
 * space. With --disk-memory the engine gets one half of it, and the other half is for our file and
 * fio's. */
static int choose_file(struct io_bench *b, struct spw_error *err)
{
    struct statvfs v;
    if (statvfs(b->options.disk_dir, &v) != 0)
        return spw_fail(err, -errno, "--disk: %s: %s", b->options.disk_dir, strerror(errno));
    b->file_bytes = spw_min_u64(FILE_BYTES, (uint64_t)v.f_bavail * v.f_frsize / 4);
    if (cli_given(b->o, "disk-memory")) {
        b->options.disk_bytes = b->o->disk_memory / 2;
        b->file_bytes = spw_min_u64(b->file_bytes, b->o->disk_memory / 4);
    }
    if (b->file_bytes < FEWEST_BYTES)
        return spw_fail(err, -ENOSPC,
                        "--disk: %s: the file to measure would have %llu bytes, expected at least "
                        "%llu: a quarter of the free space, or of --disk-memory",
                        b->options.disk_dir, (unsigned long long)b->file_bytes,
                        (unsigned long long)FEWEST_BYTES);
    return 0;
}

static int prepare(struct io_bench *b, struct spw_error *err)
{
    b->context = b->o->contexts.n ? b->o->contexts.items[0] : CONTEXT;
    b->options = cli_engine_options(b->o, b->context + b->o->decode_tokens + 1, 1);
    b->options.on_progress = cli_progress_callback();
    if (!b->options.disk_dir)
        return spw_fail(err, -EINVAL, "--io: found no --disk, expected the directory to measure");
    SPW_TRY(choose_file(b, err));
    cli_limits_read(&b->limits, b->o, &b->options, SPW_PROBE_UNKNOWN);
    if (!b->limits.has_drive || !b->limits.has_machine)
        return spw_fail(err, cli_interrupted() ? -ECANCELED : -EINVAL, "%s", b->limits.why.text);
    SPW_TRY(bound_host(b, err));
    SPW_TRY(find_budget(b, err));
    if (b->plan.waterlines.disk_end == 0)
        return spw_fail(err, -EINVAL,
                        "--io: with these budgets no KV lies on disk; lower --device-memory or "
                        "--host-memory, or raise --contexts");
    spw_predict_step(&b->predicted, &b->plan, &b->limits.machine.typical, &b->limits.drive);
    b->tokens = bench_random_tokens(b->model.config.vocab, b->o->seed,
                                    b->context + b->o->decode_tokens + 1);
    if (!b->tokens)
        return spw_fail(err, -ENOMEM, "out of memory");
    return bench_table_open(&b->table, lines, IO_MEASURES,
                            cli_given(b->o, "repeat") ? b->o->repeat : PAIRS, err);
}

static int measure(struct io_bench *b, struct spw_error *err)
{
    cli_progress_start((enum cli_progress_mode)b->o->progress, false);
    for (size_t i = 0; i < b->table.most_runs; i++) {
        SPW_TRY(path_pair(b, i, err));
        SPW_TRY(engine_pair(b, i, err));
        b->table.n_runs++;
    }
    return 0;
}

/* ---- output ---- */

static void print_head(const void *of)
{
    const struct io_bench *b = of;
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
           100 * (double)p->waterlines.disk_end / (double)p->waterlines.n_tokens, b->table.n_runs,
           cli_format_bytes(f, b->file_bytes), cli_format_bytes(slot, b->slot_bytes), b->n_slots,
           (unsigned long long)b->o->decode_tokens);
    if (*b->no_fio)
        printf("fio       no comparison: %s\n", b->no_fio);
    printf("predicted %.4g s a token, bound by %s; %s a token come from disk\n",
           b->predicted.seconds, spw_bound_name(b->predicted.bound),
           cli_format_bytes(a, b->step_bytes));
}

static json_t *head_json(const struct io_bench *b)
{
    const struct cli_field fields[] = {
        {"model", CLI_JSON(b->o->operand)},
        CLI_FIELD(b, context),
        {"pairs", CLI_JSON(b->table.n_runs)},
        CLI_FIELD(b, file_bytes),
        {"step_bytes_from_disk", CLI_JSON(b->step_bytes)},
        CLI_FIELD(b, file),
        CLI_FIELD(b, engine),
        {"fio", *b->no_fio ? CLI_JSON(b->no_fio) : json_true()},
        {"machine", cli_machine_json(&b->limits.machine)},
        {"drive", cli_drive_json(&b->limits.drive)},
        {"predicted_step", cli_prediction_json(&b->predicted)},
    };
    return CLI_OBJECT(fields);
}

int bench_io(const struct cli_options *o)
{
    struct io_bench b = {.o = o};
    struct spw_error err = {0};
    int code = cli_model_open(&b.model, o->operand, false);
    if (code)
        return code;
    int rc = prepare(&b, &err);
    if (rc)
        code = cli_fail_error(rc, &err, rc != -ENOMEM || !b.tokens);
    if (!rc)
        rc = measure(&b, &err);
    cli_progress_end();
    if (!code)
        code = rc ? cli_fail_error(rc, &err, false)
                  : bench_show(o, print_head, &b, head_json(&b), &b.table);
    spw_drive_bench_close(b.drive);
    bench_table_close(&b.table);
    spw_free(b.tokens);
    cli_model_close(&b.model);
    return code;
}
