/* How fast a drive is, measured through the disk tier itself: see drive.h and measure.h.
 *
 * The measurement writes records of 1 MiB in order to an anonymous file, at most 128 MiB or for
 * 0.25 s. It reads them in order, again and again, with 1, 8, 16, ... 64 requests in flight. One
 * request alone gives the latency. The others show how many requests are enough. With that number
 * it reads once more, for longer; this bandwidth counts. Then it reads requests of 64 KiB. That
 * shows the cost of a request beside its bytes, which matters for rings of small slots. Tiles have
 * 64 KiB and checksums, as in a run. If a pass has smaller slots, the file has more of them.
 *
 *     file   | slot 0 | slot 1 | ... | slot n - 1 |     a slot is one job
 *     memory | slot 0 | ... | slot MAX_DEPTH - 1 |      buffers of the jobs in flight, in turn
 *
 * If the filesystem refuses O_DIRECT, the numbers are those of the page cache in front of the
 * drive. The disk tier uses the page cache there, too, as long as the cache holds the data. */
#include "offload/kv/tier_disk.h"
#include "runtime/engine/memory.h"
#include "runtime/measure/drive.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <time.h>

#define RECORD_BYTES ((uint64_t)1 << 20)
#define SMALL_BYTES ((uint64_t)64 << 10) /* a tile */
enum {
    MAX_RECORDS = 128,
    MIN_RECORDS = 8,
    MAX_DEPTH = 64,
    MIN_DEPTH = 8,
    WRITE_DEPTH = 16,
    BESIDE_RECORDS = 16, /* memory of the process beside its slots, in records */
};
static const double WRITE_SECONDS = 0.25, ALONE_SECONDS = 0.06, DEPTH_SECONDS = 0.03,
                    READ_SECONDS = 0.15, SMALL_SECONDS = 0.03;
/* A slow drive gets no more requests at once than it can serve in this time. */
static const double FLIGHT_SECONDS = 0.25;
static const double ENOUGH = 0.95; /* of the best bandwidth */

struct bench {
    const char *directory;
    struct spw_io *io; /* owned, like the fields below */
    struct spw_disk *disk;
    uint8_t *memory; /* [MAX_DEPTH][RECORD_BYTES], mapped */
    struct spw_disk_job jobs[MAX_DEPTH];
    uint32_t n_frames, n_written; /* of the file; a frame is a tile */
};

/* ---- the file ---- */

/* How many records to use: what the write limit allows, and at most half of the free space. */
static int count_records(uint64_t *n, const struct spw_drive_options *o, struct spw_error *err)
{
    struct statvfs v;
    if (statvfs(o->directory, &v) != 0)
        return spw_fail(err, -errno, "%s: %s", o->directory, strerror(errno));
    uint64_t room = (uint64_t)v.f_bavail * v.f_frsize / 2 / RECORD_BYTES;
    uint64_t limit = o->write_limit_bytes ? o->write_limit_bytes / RECORD_BYTES : MAX_RECORDS;
    if (limit < MIN_RECORDS)
        return spw_fail(err, -EDQUOT,
                        "%s: measuring the drive writes at least %d MiB, the write limit is %llu "
                        "bytes; raise the limit, or measure the drive beforehand",
                        o->directory, MIN_RECORDS, (unsigned long long)o->write_limit_bytes);
    if (room < MIN_RECORDS)
        return spw_fail(err, -ENOSPC, "%s: found %llu MiB free, expected at least %d to measure it",
                        o->directory, (unsigned long long)room * 2, 2 * MIN_RECORDS);
    *n = spw_min_u64(MAX_RECORDS, spw_min_u64(room, limit));
    return 0;
}

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

static int take_memory(struct bench *b, struct spw_error *err)
{
    const uint64_t bytes = MAX_DEPTH * RECORD_BYTES;
    void *memory = spw_alloc_fails() ? MAP_FAILED
                                     : mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return spw_fail(err, -ENOMEM, "%s: no memory to measure it with", b->directory);
    b->memory = memory;
    madvise(memory, bytes, MADV_HUGEPAGE); /* like the arenas of the tiers */
    fill(memory, bytes);
    return 0;
}

/* Takes all frames of the file in order, as a new tier gives them. */
static int open_file(struct bench *b, enum spw_io_kind kind, struct spw_error *err)
{
    SPW_TRY(take_memory(b, err));
    struct spw_io_span span = {b->memory, MAX_DEPTH * RECORD_BYTES};
    struct spw_io_options io = {
        .kind = kind, .queue_depth = MAX_DEPTH, .memory = &span, .n_memory = 1};
    SPW_TRY(spw_io_open(&b->io, &io, err));
    struct spw_disk_options disk = {.directory = b->directory,
                                    .io = b->io,
                                    .tile_bytes = SMALL_BYTES,
                                    .n_frames = b->n_frames,
                                    .run = b->n_frames};
    SPW_TRY(spw_disk_open(&b->disk, &disk, err));
    for (uint32_t i = 0, last = SPW_DISK_NONE; i < b->n_frames; i++) {
        int rc = spw_disk_take(b->disk, last, &last);
        if (rc)
            return spw_fail(err, rc, "%s: no memory to measure it with", b->directory);
    }
    return 0;
}

static void close_file(struct bench *b)
{
    spw_io_close(b->io);
    spw_disk_close(b->disk);
    if (b->memory)
        munmap(b->memory, MAX_DEPTH * RECORD_BYTES);
}

/* ---- passes ---- */

/* What a pass reads or writes, and what came of it. */
struct pass {
    bool write;
    uint32_t depth;  /* slots in flight */
    uint64_t bytes;  /* of a slot */
    double seconds;  /* the pass ends after this time; reads go through the file again and again */
    uint64_t n_done; /* slots */
    double bytes_per_second;
};

static void submit(struct bench *b, const struct pass *p, uint64_t n, uint64_t n_slots)
{
    const uint32_t slot = (uint32_t)(n % p->depth), tiles = (uint32_t)(p->bytes / SMALL_BYTES);
    struct spw_disk_job *job = &b->jobs[slot];
    spw_disk_prepare(b->disk, job, p->write, (uint32_t)(n % n_slots) * tiles, tiles,
                     b->memory + slot * RECORD_BYTES);
    spw_io_submit(b->io, &job->io);
}

/* Keeps slots in flight until the time is over or a write has all slots. After a failure it still
 * waits for what is in flight. */
static int run(struct bench *b, struct pass *p, struct spw_error *err)
{
    const uint64_t n_slots =
        (p->write ? b->n_frames : b->n_written) / (uint32_t)(p->bytes / SMALL_BYTES);
    const double start = spw_now_seconds();
    uint64_t over = 0;
    int rc = 0;
    for (;;) {
        bool more = !rc && (p->n_done < n_slots || !p->write) &&
                    (!p->n_done || spw_now_seconds() - start < p->seconds);
        if (more && p->n_done - over < p->depth) {
            submit(b, p, p->n_done++, n_slots);
        } else if (over < p->n_done) {
            int done = spw_io_wait(b->io, &b->jobs[over++ % p->depth].io);
            rc = rc ? rc : done;
        } else {
            break;
        }
    }
    p->bytes_per_second = (double)(p->n_done * p->bytes) / (spw_now_seconds() - start);
    return rc ? spw_fail(err, rc, "%s: %s: %s", b->directory, p->write ? "writing" : "reading",
                         strerror(-rc))
              : 0;
}

/* `bytes`: of a request. */
static int read_at(struct bench *b, uint64_t bytes, uint32_t depth, double seconds, double *rate,
                   struct spw_error *err)
{
    struct pass p = {.depth = depth, .bytes = bytes, .seconds = seconds};
    int rc = run(b, &p, err);
    *rate = p.bytes_per_second;
    return rc;
}

/* ---- all of them ---- */

uint32_t spw_drive_choose_depth(const struct spw_drive_point *points, unsigned n,
                                double latency_seconds, uint64_t request_bytes)
{
    const struct spw_drive_point *best = points;
    for (unsigned i = 1; i < n; i++)
        best = points[i].bytes_per_second > best->bytes_per_second ? &points[i] : best;
    double in_flight = best->bytes_per_second * latency_seconds / (double)request_bytes;
    for (unsigned i = 0; i < n; i++)
        if (points[i].depth >= in_flight &&
            points[i].bytes_per_second >= ENOUGH * best->bytes_per_second)
            return points[i].depth;
    return best->depth;
}

/* Measures each depth twice and takes the better result: other users of the drive only make it
 * slower. */
static int measure_depths(struct spw_drive_point *points, unsigned *n, struct bench *b,
                          struct spw_error *err)
{
    double rate;
    *n = 0;
    for (int round = 0; round < 2; round++) {
        unsigned i = 0;
        for (uint32_t depth = MIN_DEPTH; depth <= MAX_DEPTH; depth *= 2, i++) {
            if (i > 0 &&
                depth * (double)RECORD_BYTES > FLIGHT_SECONDS * points[i - 1].bytes_per_second)
                break;
            SPW_TRY(read_at(b, RECORD_BYTES, depth, DEPTH_SECONDS, &rate, err));
            points[i] = (struct spw_drive_point){
                depth, i < *n ? fmax(points[i].bytes_per_second, rate) : rate};
            *n = i < *n ? *n : i + 1;
        }
    }
    return 0;
}

static int measure_reads(struct spw_drive *out, struct bench *b, struct spw_error *err)
{
    struct spw_drive_point points[8];
    double alone, small;
    unsigned n;
    SPW_TRY(read_at(b, RECORD_BYTES, 1, ALONE_SECONDS, &alone, err));
    out->latency_seconds = (double)RECORD_BYTES / alone;
    SPW_TRY(measure_depths(points, &n, b, err));
    out->queue_depth = spw_drive_choose_depth(points, n, out->latency_seconds, RECORD_BYTES);
    SPW_TRY(
        read_at(b, RECORD_BYTES, out->queue_depth, READ_SECONDS, &out->read_bytes_per_second, err));
    out->request_bytes = RECORD_BYTES;
    out->small_request_bytes = SMALL_BYTES;
    out->small_read_bytes_per_second = 0;
    for (int round = 0; round < 2; round++) { /* the better result, as above */
        SPW_TRY(read_at(b, SMALL_BYTES, out->queue_depth, SMALL_SECONDS, &small, err));
        out->small_read_bytes_per_second = fmax(out->small_read_bytes_per_second, small);
    }
    return 0;
}

static int measure(struct spw_drive *out, struct bench *b, struct spw_error *err)
{
    struct pass write = {
        .write = true, .depth = WRITE_DEPTH, .bytes = RECORD_BYTES, .seconds = WRITE_SECONDS};
    SPW_TRY(run(b, &write, err));
    b->n_written = (uint32_t)(write.n_done * (RECORD_BYTES / SMALL_BYTES));
    out->written_bytes = write.n_done * RECORD_BYTES;
    out->write_bytes_per_second = write.bytes_per_second;
    SPW_TRY(measure_reads(out, b, err));
    out->direct = spw_disk_is_direct(b->disk);
    snprintf(out->engine, sizeof out->engine, "%s", spw_io_describe(b->io));
    out->measured_at = (int64_t)time(NULL);
    return 0;
}

int spw_drive_measure(struct spw_drive *out, const struct spw_drive_options *o,
                      struct spw_error *err)
{
    struct bench b = {.directory = o->directory};
    uint64_t n_records = 0;
    SPW_TRY(spw_memory_to_measure(o->directory, (MAX_DEPTH + BESIDE_RECORDS) * RECORD_BYTES, err));
    SPW_TRY(count_records(&n_records, o, err));
    b.n_frames = (uint32_t)(n_records * (RECORD_BYTES / SMALL_BYTES));
    int rc = open_file(&b, o->io, err);
    if (!rc)
        rc = measure(out, &b, err);
    close_file(&b);
    return rc;
}
