/* How fast a drive is, measured through the disk tier itself: see drive.h and spillway.h.
 *
 * An anonymous file of records of 1 MiB is written in order, at most 256 MiB or 0.35 s of it, and
 * read in order, round and round, with 1, 4, 8, ... 64 requests in flight, 0.1 s each. One request
 * alone gives the latency, the others say how many are enough; with that many it is read once more,
 * for longer, and this is the bandwidth that counts. Records pass through checksums as tiles do, so
 * that the time of the processor is the real one as well.
 *
 * Where O_DIRECT is refused the numbers are those of the page cache in front of the drive. That is
 * what the tier will use there, as long as the cache holds it. */
#include "runtime/drive.h"
#include "offload/tier_disk.h"
#include "runtime/profile.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <time.h>

#define RECORD_BYTES ((uint64_t)1 << 20)
enum {
    MOST_RECORDS = 256,
    FEWEST_RECORDS = 8,
    MOST_DEPTH = 64,
    FEWEST_DEPTH = 4,
    WRITE_DEPTH = 16,
};
static const double WRITE_SECONDS = 0.35, ALONE_SECONDS = 0.12, DEPTH_SECONDS = 0.08,
                    READ_SECONDS = 0.25;
/* Of a slow drive's requests, no more than this is put in flight: it must be waited for. */
static const double FLIGHT_SECONDS = 0.25;
static const double ENOUGH = 0.95; /* of the best bandwidth */

struct bench {
    struct spw_io *io;     /* owned, as what follows */
    struct spw_disk *disk; /* [n_frames] frames of one record */
    uint8_t *memory;       /* [MOST_DEPTH][RECORD_BYTES], mapped */
    struct spw_disk_job jobs[MOST_DEPTH];
    uint32_t frames[MOST_RECORDS];
    uint32_t n_frames, n_written;
};

static double now_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
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

/* How many records: what the limit and the filesystem leave, half of it for others. */
static int count_records(struct bench *b, const struct spw_drive_options *o, struct spw_error *err)
{
    struct statvfs v;
    if (statvfs(o->directory, &v) != 0)
        return spw_fail(err, -errno, "%s: %s", o->directory, strerror(errno));
    uint64_t room = (uint64_t)v.f_bavail * v.f_frsize / 2 / RECORD_BYTES;
    uint64_t limit = o->write_limit_bytes ? o->write_limit_bytes / RECORD_BYTES : MOST_RECORDS;
    if (limit < FEWEST_RECORDS)
        return spw_fail(err, -EDQUOT,
                        "%s: measuring the drive writes at least %d MiB, the write limit is %llu "
                        "bytes; raise it, or have the drive measured beforehand",
                        o->directory, FEWEST_RECORDS, (unsigned long long)o->write_limit_bytes);
    if (room < FEWEST_RECORDS)
        return spw_fail(err, -ENOSPC, "%s: found %llu MiB free, expected at least %d to measure it",
                        o->directory, (unsigned long long)room * 2, 2 * FEWEST_RECORDS);
    b->n_frames = (uint32_t)spw_min_u64(MOST_RECORDS, spw_min_u64(room, limit));
    return 0;
}

static int take(struct bench *b, const struct spw_drive_options *o, struct spw_error *err)
{
    SPW_TRY(count_records(b, o, err));
    void *memory = spw_alloc_fails() ? MAP_FAILED
                                     : mmap(NULL, MOST_DEPTH * RECORD_BYTES, PROT_READ | PROT_WRITE,
                                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return spw_fail(err, -ENOMEM, "%s: no memory to measure it with", o->directory);
    b->memory = memory;
    fill(b->memory, MOST_DEPTH * RECORD_BYTES);
    struct spw_io_span span = {memory, MOST_DEPTH * RECORD_BYTES};
    struct spw_io_options io = {.kind = o->io,
                                .queue_depth = MOST_DEPTH,
                                .request_bytes = RECORD_BYTES,
                                .memory = &span,
                                .n_memory = 1};
    SPW_TRY(spw_io_open(&b->io, &io, err));
    struct spw_disk_options disk = {.directory = o->directory,
                                    .io = b->io,
                                    .tile_bytes = RECORD_BYTES,
                                    .n_frames = b->n_frames,
                                    .run = b->n_frames};
    SPW_TRY(spw_disk_open(&b->disk, &disk, err));
    for (uint32_t i = 0, last = SPW_DISK_NONE; i < b->n_frames; last = b->frames[i++])
        SPW_TRY(spw_disk_take(b->disk, last, &b->frames[i]));
    return 0;
}

static void give(struct bench *b)
{
    spw_io_close(b->io);
    spw_disk_close(b->disk);
    if (b->memory)
        munmap(b->memory, MOST_DEPTH * RECORD_BYTES);
}

static void submit(struct bench *b, bool write, uint32_t slot, uint32_t frame)
{
    struct spw_disk_job *job = &b->jobs[slot];
    spw_disk_prepare(b->disk, job, write, frame, 1, b->memory + slot * RECORD_BYTES);
    spw_io_submit(b->io, &job->io);
}

/* Keeps `depth` requests in flight over the first n records until `seconds` are over (writing: also
 * until there is no record left). What is in flight is waited for after a failure, too. */
static int pass(struct bench *b, bool write, uint32_t depth, uint32_t n, double seconds,
                double *bytes_per_second)
{
    double start = now_seconds();
    uint64_t asked = 0, over = 0;
    int rc = 0;
    for (;;) {
        bool more = !rc && !(write && asked == n) && (!asked || now_seconds() - start < seconds);
        if (more && asked - over < depth) {
            submit(b, write, (uint32_t)(asked % depth), b->frames[asked % n]);
            asked++;
        } else if (over < asked) {
            int done = spw_io_wait(b->io, &b->jobs[over++ % depth].io);
            rc = rc ? rc : done;
        } else {
            break;
        }
    }
    *bytes_per_second = (double)(asked * RECORD_BYTES) / (now_seconds() - start);
    b->n_written = write ? (uint32_t)asked : b->n_written;
    return rc;
}

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

static int measure_reads(struct spw_drive *out, struct bench *b)
{
    struct spw_drive_point points[8];
    struct spw_io_usage before, after;
    double alone;
    unsigned n = 0;
    SPW_TRY(pass(b, false, 1, b->n_written, ALONE_SECONDS, &alone));
    out->latency_seconds = (double)RECORD_BYTES / alone;
    for (uint32_t depth = FEWEST_DEPTH; depth <= MOST_DEPTH; depth *= 2) {
        if (n > 0 && depth * (double)RECORD_BYTES > FLIGHT_SECONDS * points[n - 1].bytes_per_second)
            break;
        points[n].depth = depth;
        SPW_TRY(pass(b, false, depth, b->n_written, DEPTH_SECONDS, &points[n].bytes_per_second));
        n++;
    }
    out->queue_depth = spw_drive_choose_depth(points, n, out->latency_seconds, RECORD_BYTES);
    spw_io_usage(b->io, &before);
    SPW_TRY(
        pass(b, false, out->queue_depth, b->n_written, READ_SECONDS, &out->read_bytes_per_second));
    spw_io_usage(b->io, &after);
    out->cpu_seconds_per_byte =
        (after.cpu_seconds - before.cpu_seconds) / (double)(after.read_bytes - before.read_bytes);
    return 0;
}

int spw_drive_measure(struct spw_drive *out, const struct spw_drive_options *o,
                      struct spw_error *err)
{
    struct bench *b = spw_alloc_zero(1, sizeof *b);
    if (!b)
        return spw_fail(err, -ENOMEM, "%s: no memory to measure it with", o->directory);
    int rc = take(b, o, err);
    if (!rc)
        rc = pass(b, true, WRITE_DEPTH, b->n_frames, WRITE_SECONDS, &out->write_bytes_per_second);
    out->written_bytes = b->n_written * RECORD_BYTES;
    if (!rc)
        rc = measure_reads(out, b);
    if (!rc) {
        snprintf(out->engine, sizeof out->engine, "%s", spw_io_describe(b->io));
        out->direct = b->jobs[0].io.file->direct;
        out->request_bytes = RECORD_BYTES;
        out->measured_at = (int64_t)time(NULL);
    }
    give(b);
    spw_free(b);
    return rc ? spw_fail(err, rc, "%s: the drive could not be measured: %s", o->directory,
                         strerror(-rc))
              : 0;
}

/* ---- kept ---- */

static void add_note(struct spw_drive *d, const char *text, const char *what)
{
    size_t n = strlen(d->note);
    snprintf(d->note + n, sizeof d->note - n, "%s%.200s%s", n ? "; " : "", text, what);
}

/* Reads the profile; what is wrong with it is a note. False: there is no memory for it. */
static int open_profile(struct spw_profile **out, const char *path, struct spw_drive *d,
                        struct spw_error *err)
{
    struct spw_error why = {{0}};
    *out = spw_alloc_zero(1, sizeof **out);
    if (!*out)
        return spw_fail(err, -ENOMEM, "%s: no memory to read it", path);
    int rc = spw_profile_read(*out, path, &why);
    if (rc == -ENOENT || rc == 0)
        return 0;
    add_note(d, why.text, ", so the drive was measured again");
    return 0;
}

static int measure_and_keep(struct spw_drive *out, const struct spw_drive_options *o,
                            struct spw_profile *p, struct spw_error *err)
{
    struct spw_error why = {{0}};
    SPW_TRY(spw_drive_measure(out, o, err));
    if (!p)
        return 0;
    spw_profile_keep_drive(p, out);
    if (spw_profile_write(p, o->profile, &why) < 0)
        add_note(out, why.text, ", so the drive will be measured again");
    return 0;
}

int spw_drive_probe(struct spw_drive *out, const struct spw_drive_options *o, struct spw_error *err)
{
    struct spw_profile *p = NULL;
    *out = (struct spw_drive){.io = o->io};
    SPW_TRY(spw_drive_identify(out, o->directory, err));
    if (o->profile)
        SPW_TRY(open_profile(&p, o->profile, out, err));
    const struct spw_drive *known = p && !o->redo ? spw_profile_find_drive(p, out) : NULL;
    int rc = 0;
    if (known)
        *out = *known;
    else
        rc = measure_and_keep(out, o, p, err);
    spw_free(p);
    return rc;
}
