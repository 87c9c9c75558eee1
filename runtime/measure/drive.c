/* How fast a drive is, measured through the disk tier itself: see drive.h and measure.h.
 *
 * The measurement writes records of 1 MiB in order to an anonymous file, at most 128 MiB or for
 * 0.25 s. It reads them in order, again and again, with 1, 8, 16, ... 64 requests in flight. One
 * request alone gives the latency. The others show how many requests are enough. With that number
 * it reads once more, for longer; this bandwidth counts. Then it reads requests of 64 KiB. That
 * shows the cost of a request beside its bytes, which matters for rings of small slots. Tiles have
 * 64 KiB and checksums, as in a run.
 *
 * If the filesystem refuses O_DIRECT, the numbers are those of the page cache in front of the
 * drive. The disk tier uses the page cache there, too, as long as the cache holds the data. */
#include "runtime/measure/drive.h"
#include "runtime/engine/memory.h"
#include "runtime/measure/profile.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>

#define RECORD_BYTES ((uint64_t)1 << 20)
#define SMALL_BYTES ((uint64_t)64 << 10)
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

static int read_at(struct spw_drive_bench *b, uint64_t bytes, uint32_t depth, double seconds,
                   struct spw_drive_pass *out, struct spw_error *err)
{
    struct spw_drive_pass_options p = {
        .slots = depth, .slot_tiles = (uint32_t)(bytes / SMALL_BYTES), .seconds = seconds};
    return spw_drive_bench_pass(b, &p, out, err);
}

static double rate(const struct spw_drive_pass *p)
{
    return (double)p->bytes / p->seconds;
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

/* Measures each depth twice and takes the better result: other users of the drive only make it
 * slower. */
static int measure_depths(struct spw_drive_point *points, unsigned *n, struct spw_drive_bench *b,
                          struct spw_error *err)
{
    struct spw_drive_pass pass;
    *n = 0;
    for (int round = 0; round < 2; round++) {
        unsigned i = 0;
        for (uint32_t depth = MIN_DEPTH; depth <= MAX_DEPTH; depth *= 2, i++) {
            if (i > 0 &&
                depth * (double)RECORD_BYTES > FLIGHT_SECONDS * points[i - 1].bytes_per_second)
                break;
            SPW_TRY(read_at(b, RECORD_BYTES, depth, DEPTH_SECONDS, &pass, err));
            double before = i < *n ? points[i].bytes_per_second : 0;
            points[i] = (struct spw_drive_point){depth, fmax(before, rate(&pass))};
            *n = i < *n ? *n : i + 1;
        }
    }
    return 0;
}

static int measure_reads(struct spw_drive *out, struct spw_drive_bench *b, struct spw_error *err)
{
    struct spw_drive_point points[8];
    struct spw_drive_pass pass;
    unsigned n;
    SPW_TRY(read_at(b, RECORD_BYTES, 1, ALONE_SECONDS, &pass, err));
    out->latency_seconds = (double)RECORD_BYTES / rate(&pass);
    SPW_TRY(measure_depths(points, &n, b, err));
    out->queue_depth = spw_drive_choose_depth(points, n, out->latency_seconds, RECORD_BYTES);
    SPW_TRY(read_at(b, RECORD_BYTES, out->queue_depth, READ_SECONDS, &pass, err));
    out->read_bytes_per_second = rate(&pass);
    return 0;
}

/* Measures twice and takes the better result, as above. */
static int measure_small_reads(struct spw_drive *out, struct spw_drive_bench *b,
                               struct spw_error *err)
{
    struct spw_drive_pass pass;
    out->small_request_bytes = SMALL_BYTES;
    out->small_read_bytes_per_second = 0;
    for (int round = 0; round < 2; round++) {
        SPW_TRY(read_at(b, SMALL_BYTES, out->queue_depth, SMALL_SECONDS, &pass, err));
        out->small_read_bytes_per_second = fmax(out->small_read_bytes_per_second, rate(&pass));
    }
    return 0;
}

static int measure(struct spw_drive *out, struct spw_drive_bench *b, struct spw_error *err)
{
    struct spw_drive_pass_options write = {
        .write = true, .slots = WRITE_DEPTH, .seconds = WRITE_SECONDS};
    struct spw_drive_pass pass;
    int fd, rc = spw_drive_bench_pass(b, &write, &pass, err);
    out->written_bytes = pass.bytes;
    out->write_bytes_per_second = rate(&pass);
    SPW_TRY(rc);
    SPW_TRY(measure_reads(out, b, err));
    SPW_TRY(measure_small_reads(out, b, err));
    spw_drive_bench_file(b, &fd, &out->direct);
    snprintf(out->engine, sizeof out->engine, "%s", spw_drive_bench_engine(b));
    out->request_bytes = RECORD_BYTES;
    out->measured_at = (int64_t)time(NULL);
    return 0;
}

int spw_drive_measure(struct spw_drive *out, const struct spw_drive_options *o,
                      struct spw_error *err)
{
    struct spw_drive_bench *b;
    uint64_t n_records = 0;
    SPW_TRY(spw_memory_to_measure(o->directory, (MAX_DEPTH + BESIDE_RECORDS) * RECORD_BYTES, err));
    SPW_TRY(count_records(&n_records, o, err));
    struct spw_drive_bench_options bench = {.directory = o->directory,
                                            .io = o->io,
                                            .queue_depth = MAX_DEPTH,
                                            .tile_bytes = SMALL_BYTES,
                                            .slot_tiles = RECORD_BYTES / SMALL_BYTES,
                                            .n_slots = MAX_DEPTH,
                                            .file_bytes = n_records * RECORD_BYTES};
    SPW_TRY(spw_drive_bench_open(&b, &bench, err));
    int rc = measure(out, b, err);
    spw_drive_bench_close(b);
    return rc;
}

/* ---- the profile ---- */

/* Reads the profile. `why`: why a profile that is there cannot be used, else "". -ENOMEM. */
static int open_profile(struct spw_profile **out, const char *path, struct spw_error *why,
                        struct spw_error *err)
{
    *out = spw_alloc_zero(1, sizeof **out);
    if (!*out)
        return spw_fail(err, -ENOMEM, "%s: no memory to read it", path);
    if (spw_profile_read(*out, path, why) == -ENOENT)
        spw_error_clear(why);
    return 0;
}

/* `unusable`: why the profile cannot be used, or "". */
static int measure_and_store(struct spw_drive *out, const struct spw_drive_options *o,
                             struct spw_profile *p, const char *unusable, struct spw_error *err)
{
    struct spw_error why = {0};
    SPW_TRY(spw_drive_measure(out, o, err));
    if (*unusable)
        snprintf(out->note, sizeof out->note, "%.200s, so the drive was measured again", unusable);
    if (!p)
        return 0;
    spw_profile_put_drive(p, out);
    if (spw_profile_write(p, o->profile, &why) < 0)
        snprintf(out->unstored, sizeof out->unstored, "%.200s, so the drive will be measured again",
                 why.text);
    return 0;
}

int spw_drive_probe(struct spw_drive *out, const struct spw_drive_options *o, struct spw_error *err)
{
    spw_error_clear(err);
    struct spw_profile *p = NULL;
    struct spw_error unusable = {0};
    *out = (struct spw_drive){.io = o->io};
    SPW_TRY(spw_drive_identify(out, o->directory, err));
    if (o->profile)
        SPW_TRY(open_profile(&p, o->profile, &unusable, err));
    const struct spw_drive *known =
        p && o->mode != SPW_PROBE_AGAIN ? spw_profile_find_drive(p, out) : NULL;
    int rc = 0;
    if (known)
        *out = *known;
    else if (o->mode == SPW_PROBE_NEVER)
        rc = spw_fail(err, -ENODATA,
                      "%s: its drive has not been measured; run 'spillway probe %s' once",
                      o->directory, o->directory);
    else
        rc = measure_and_store(out, o, p, unusable.text, err);
    spw_free(p);
    return rc;
}
