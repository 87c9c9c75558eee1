/* Timed passes over a file of the disk tier: see measure.h.
 *
 *     file   | slot 0 | slot 1 | ... | slot n - 1 |     slot = slot_tiles tiles, one job
 *     memory | slot 0 | ... | slot n_slots - 1 |        buffers of the jobs in flight, in turn
 *
 * If a pass has smaller slots, the file has more of them, adjacent. In memory they are not
 * adjacent. */
#include "offload/kv/tier_disk.h"
#include "runtime/measure.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

struct spw_drive_bench {
    struct spw_drive_bench_options o;
    struct spw_io *io; /* owned, like the fields below */
    struct spw_disk *disk;
    uint8_t *memory; /* [n_slots][slot_tiles][tile_bytes], mapped */
    uint64_t slot_bytes;
    struct spw_disk_job *jobs;    /* [n_slots] */
    uint32_t n_frames, n_written; /* of the file; a frame is a tile */
};

/* Numbers that no drive or filesystem can compress. */
static void fill(uint8_t *memory, uint64_t bytes)
{
    uint64_t state = (uint64_t)(uintptr_t)memory;
    for (uint64_t i = 0; i + 8 <= bytes; i += 8) {
        state ^= state << 13; /* xorshift64 (G. Marsaglia, 2003) */
        state ^= state >> 7;
        state ^= state << 17;
        memcpy(memory + i, &state, sizeof state);
    }
}

static int take_memory(struct spw_drive_bench *b, struct spw_error *err)
{
    uint64_t bytes = b->o.n_slots * b->slot_bytes;
    void *memory = spw_alloc_fails() ? MAP_FAILED
                                     : mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    b->jobs = spw_alloc_zero(b->o.n_slots, sizeof *b->jobs);
    if (memory != MAP_FAILED)
        b->memory = memory;
    if (!b->jobs || !b->memory)
        return spw_fail(err, -ENOMEM, "%s: no memory to measure it with", b->o.directory);
    madvise(b->memory, bytes, MADV_HUGEPAGE); /* like the arenas of the tiers */
    fill(b->memory, bytes);
    return 0;
}

/* Takes all frames of the file in order, as a new tier gives them. */
static int take_frames(struct spw_drive_bench *b)
{
    for (uint32_t i = 0, last = SPW_DISK_NONE; i < b->n_frames; i++)
        SPW_TRY(spw_disk_take(b->disk, last, &last));
    return 0;
}

static int take(struct spw_drive_bench *b, struct spw_error *err)
{
    const struct spw_drive_bench_options *o = &b->o;
    SPW_TRY(take_memory(b, err));
    struct spw_io_span span = {b->memory, o->n_slots * b->slot_bytes};
    struct spw_io_options io = {
        .kind = o->io, .queue_depth = o->queue_depth, .memory = &span, .n_memory = 1};
    SPW_TRY(spw_io_open(&b->io, &io, err));
    struct spw_disk_options disk = {.directory = o->directory,
                                    .io = b->io,
                                    .tile_bytes = o->tile_bytes,
                                    .n_frames = b->n_frames,
                                    .run = b->n_frames};
    SPW_TRY(spw_disk_open(&b->disk, &disk, err));
    int rc = take_frames(b);
    return rc ? spw_fail(err, rc, "%s: no memory to measure it with", o->directory) : 0;
}

int spw_drive_bench_open(struct spw_drive_bench **out, const struct spw_drive_bench_options *o,
                         struct spw_error *err)
{
    spw_error_clear(err);
    struct spw_drive_bench *b = spw_alloc_zero(1, sizeof *b);
    *out = NULL;
    if (!b)
        return spw_fail(err, -ENOMEM, "%s: no memory to measure it with", o->directory);
    b->o = *o;
    b->slot_bytes = o->slot_tiles * o->tile_bytes;
    b->n_frames = (uint32_t)spw_min_u64(o->file_bytes / b->slot_bytes * o->slot_tiles,
                                        UINT32_MAX / 2 / o->slot_tiles * o->slot_tiles);
    int rc = b->n_frames ? take(b, err)
                         : spw_fail(err, -EINVAL, "%s: a file of %llu bytes holds no slot",
                                    o->directory, (unsigned long long)o->file_bytes);
    if (rc) {
        spw_drive_bench_close(b);
        return rc;
    }
    *out = b;
    return 0;
}

void spw_drive_bench_close(struct spw_drive_bench *b)
{
    if (!b)
        return;
    spw_io_close(b->io);
    spw_disk_close(b->disk);
    if (b->memory)
        munmap(b->memory, b->o.n_slots * b->slot_bytes);
    spw_free(b->jobs);
    spw_free(b);
}

/* What a pass reads or writes. */
struct round {
    bool write;
    uint32_t slots, tiles, of; /* slots in flight; tiles of a slot; slots in the file */
};

static void submit(struct spw_drive_bench *b, const struct round *r, uint64_t n)
{
    uint32_t slot = (uint32_t)(n % r->slots), frame = (uint32_t)(n % r->of) * r->tiles;
    struct spw_disk_job *job = &b->jobs[slot];
    spw_disk_prepare(b->disk, job, r->write, frame, r->tiles, b->memory + slot * b->slot_bytes);
    spw_io_submit(b->io, &job->io);
}

/* Keeps slots in flight until all work is done or the time is over. After a failure it still
 * waits for what is in flight. */
static int pass(struct spw_drive_bench *b, const struct round *r, double seconds, uint64_t *n_done)
{
    double start = spw_now_seconds();
    uint64_t asked = 0, over = 0;
    bool round_and_round = !r->write && seconds > 0;
    int rc = 0;
    for (;;) {
        bool more = !rc && (asked < r->of || round_and_round) &&
                    (!asked || seconds <= 0 || spw_now_seconds() - start < seconds);
        if (more && asked - over < r->slots) {
            submit(b, r, asked++);
        } else if (over < asked) {
            int done = spw_io_wait(b->io, &b->jobs[over++ % r->slots].io);
            rc = rc ? rc : done;
        } else {
            break;
        }
    }
    *n_done = asked;
    return rc;
}

static int fail_pass(const struct spw_drive_bench *b, bool write, int rc, struct spw_error *err)
{
    return spw_fail(err, rc, "%s: %s: %s", b->o.directory, write ? "writing" : "reading",
                    strerror(-rc));
}

int spw_drive_bench_pass(struct spw_drive_bench *b, const struct spw_drive_pass_options *p,
                         struct spw_drive_pass *out, struct spw_error *err)
{
    spw_error_clear(err);
    struct round r = {.write = p->write,
                      .slots = p->slots ? p->slots : b->o.n_slots,
                      .tiles = p->slot_tiles ? p->slot_tiles : b->o.slot_tiles};
    uint64_t n;
    r.of = (p->write ? b->n_frames : b->n_written) / r.tiles;
    double start = spw_now_seconds();
    int rc = pass(b, &r, p->seconds, &n);
    *out = (struct spw_drive_pass){.bytes = n * r.tiles * b->o.tile_bytes,
                                   .seconds = spw_now_seconds() - start};
    if (p->write)
        b->n_written = (uint32_t)n * r.tiles;
    return rc ? fail_pass(b, p->write, rc, err) : 0;
}

const char *spw_drive_bench_engine(const struct spw_drive_bench *b)
{
    return spw_io_describe(b->io);
}

const char *spw_drive_bench_file(const struct spw_drive_bench *b, int *fd, bool *direct)
{
    struct spw_disk_job job;
    spw_disk_prepare(b->disk, &job, false, 0, 1, b->memory);
    *fd = job.io.file->fd;
    *direct = job.io.file->align > 1;
    return spw_disk_describe(b->disk);
}
