/* The environment of the tests of the KV cache and of the rings: the CPU device with its streams
 * and arenas, a drive that a test can disturb, and the cache, in every variant: with a disk that
 * reads and writes device frames or host frames, with host memory for tiles or only for transfers,
 * with either I/O engine, with or without quantized tiles.
 *
 * One host thread. kv_world_stop waits for all work, then frames and bytes can be counted before
 * kv_world_close. */
#ifndef SPW_TESTS_UNIT_OFFLOAD_KV_WORLD_H
#define SPW_TESTS_UNIT_OFFLOAD_KV_WORLD_H

#include "tests/engine/engine_run.h"

#include "offload/kv/kv_tile.h"

#include <stdatomic.h>

enum {
    KV_LAYERS = 3,
    KV_SLIDING = KV_LAYERS - 1, /* this layer has a sliding window */
    KV_SEQS = 4,
#ifdef KV_WORLD_TILES
    KV_TILES = KV_WORLD_TILES, /* the most tiles of one layer of one sequence */
#else
    KV_TILES = 8,
#endif
    KV_TRANSIT_FRAMES = 3, /* host frames, if the host has room only for transfers */
    KV_FRAMES = KV_SEQS * KV_LAYERS * KV_TILES, /* enough of any tier */
    KV_UNIT = 4096,                             /* tiles have a multiple of this */
    KV_MOST_UNITS = 5,                          /* of an exact tile; a quantized one has fewer */
    KV_FILE_UNITS = KV_FRAMES * KV_MOST_UNITS,
    KV_MOST_BUFFERS = 5,
};

static const uint8_t kv_kinds[KV_LAYERS] = {[KV_SLIDING] = SPW_LAYER_SLIDING};

/* The lower tiers. */
struct kv_drive {
    bool host;            /* the host has room for tiles */
    bool disk;            /* the disk has room for tiles */
    bool attaches;        /* there is a disk, at least for attached tiles */
    bool direct;          /* the disk reads and writes device frames */
    bool faulty;          /* tiles may be lost */
    uint32_t n_frames;    /* of the disk; 0: enough */
    uint64_t limit_bytes; /* of writes; 0: none */
};

/* The faults of an unreliable drive in units of the scratch file; the I/O threads read this. */
struct kv_faults {
    _Atomic uint8_t unwritable[KV_FILE_UNITS], unreadable[KV_FILE_UNITS], flipped[KV_FILE_UNITS];
    _Atomic bool dead, late,
        next_write; /* dead: no write succeeds; next_write: the next write fails */
    _Atomic uint64_t draws, failed_writes, failed_reads;
};

struct kv_world_options {
    uint64_t seed, delay_seed; /* 0: no delays */
    struct kv_drive drive;
    uint64_t tile_bytes, exact_tile_bytes;
    uint32_t n_device_frames, n_exact_frames; /* 0: the cache does not quantize */
    uint32_t slot_tiles;                      /* 0: drawn */
};

struct kv_world {
    struct kv_world_options o;
    uint64_t seed; /* of all further draws */
    struct spw_lane lane;
    void *device_arena, *host_arena, *exact_arena;
    void *device_scratch, *host_scratch; /* [2 + KV_MOST_BUFFERS] tiles, for requantizing */
    uint32_t n_host_frames, n_disk_frames;
    bool device_is_lost;
    const char *directory; /* of the drive */
    struct kv_faults faults;
    struct spw_io_fault disturb;
    struct spw_io *io; /* NULL: neither is there */
    struct spw_disk *disk;
    struct spw_kv *kv;
};

enum { KV_SCRATCH_BYTES = (2 + KV_MOST_BUFFERS) * KV_MOST_UNITS * KV_UNIT };

/* Sees each request of the drive. Tests damage attached files themselves. */
static inline int64_t kv_disturb(void *context, const struct spw_io_request *r, int64_t result)
{
    struct kv_faults *f = context;
    uint64_t draw = atomic_fetch_add(&f->draws, 1);
    if (atomic_load(&f->late) && check_random(&draw) % 8 == 0)
        nanosleep(&(struct timespec){.tv_nsec = (long)(check_random(&draw) % 200000)}, NULL);
    if (result <= 0 || !r->bytes)
        return result;
    if (r->write && atomic_exchange(&f->next_write, false))
        return -EIO;
    uint64_t end = (r->offset + r->bytes) / KV_UNIT;
    for (uint64_t i = r->offset / KV_UNIT; i < end && i < KV_FILE_UNITS; i++) {
        if (r->write && (f->dead || f->unwritable[i])) {
            atomic_fetch_add(&f->failed_writes, 1);
            return draw % 2 ? -EIO : -ENOSPC;
        }
        if (!r->write && (f->unreadable[i] || f->flipped[i])) {
            atomic_fetch_add(&f->failed_reads, 1);
            if (f->unreadable[i])
                return -EIO;
            r->memory[i * KV_UNIT - r->offset] ^= 16;
        }
    }
    return result;
}

static inline uint64_t kv_exact_bytes(const struct kv_world *w)
{
    return w->o.n_exact_frames * w->o.exact_tile_bytes;
}

static inline void kv_world_open_device(struct kv_world *w)
{
    struct spw_error err = {0};
    struct spw_device_options o = {.device_bytes = UINT64_MAX,
                                   .host_bytes = UINT64_MAX,
                                   .threads = 1,
                                   .delay_seed = w->o.delay_seed};
    w->lane.ops = &spw_device_cpu;
    CHECK(w->lane.ops->open(&w->lane.device, &o, &err) == 0);
    CHECK(w->lane.ops->alloc(w->lane.device, w->o.n_device_frames * w->o.tile_bytes,
                             &w->device_arena) == 0);
    CHECK(w->lane.ops->alloc(w->lane.device, KV_SCRATCH_BYTES, &w->device_scratch) == 0);
    CHECK(w->lane.ops->alloc_host(w->lane.device, KV_SCRATCH_BYTES, &w->host_scratch) == 0);
    if (w->o.n_exact_frames)
        CHECK(w->lane.ops->alloc(w->lane.device, kv_exact_bytes(w), &w->exact_arena) == 0);
    if (w->n_host_frames)
        CHECK(w->lane.ops->alloc_host(w->lane.device, w->n_host_frames * w->o.tile_bytes,
                                      &w->host_arena) == 0);
    CHECK(spw_lane_open_streams(&w->lane) == 0);
}

static inline void kv_world_open_disk(struct kv_world *w)
{
    struct spw_error err = {0};
    w->faults.late = w->o.delay_seed != 0;
    w->disturb =
        (struct spw_io_fault){kv_disturb, (unsigned)check_range(&w->seed, 0, 3), &w->faults};
    struct spw_io_options io = {.kind = check_random(&w->seed) % 2 ? SPW_IO_AUTO : SPW_IO_THREADS,
                                .queue_depth = (unsigned)check_range(&w->seed, 1, 8),
                                .request_bytes = KV_UNIT * check_range(&w->seed, 0, 4),
                                .fault = &w->disturb};
    CHECK_MSG(spw_io_open(&w->io, &io, &err) == 0, "%s", err.text);
    bool memory = check_random(&w->seed) % 4 && !access("/dev/shm", W_OK);
    w->directory = memory ? "/dev/shm" : "/tmp";
    struct spw_disk_options d = {.directory = w->n_disk_frames ? w->directory : NULL,
                                 .io = w->io,
                                 .tile_bytes = w->o.tile_bytes,
                                 .n_frames = w->n_disk_frames,
                                 .run = KV_TILES,
                                 .write_limit_bytes = w->o.drive.limit_bytes};
    CHECK_MSG(spw_disk_open(&w->disk, &d, &err) == 0, "%s", err.text);
}

static inline void kv_world_open(struct kv_world *w, const struct kv_world_options *o)
{
    const struct kv_drive *d = &o->drive;
    memset(w, 0, sizeof *w);
    w->o = *o;
    w->seed = o->seed;
    w->n_host_frames = d->host ? KV_FRAMES : d->direct ? 0 : KV_TRANSIT_FRAMES;
    w->n_disk_frames = !d->disk ? 0 : d->n_frames ? d->n_frames : KV_FRAMES;
    kv_world_open_device(w);
    if (d->disk || d->attaches)
        kv_world_open_disk(w);
    struct spw_kv_options k = {.device_arena = w->device_arena,
                               .host_arena = w->host_arena,
                               .n_device_frames = o->n_device_frames,
                               .n_host_frames = w->n_host_frames,
                               .tile_bytes = o->tile_bytes,
                               .exact_arena = w->exact_arena,
                               .n_exact_frames = o->n_exact_frames,
                               .exact_tile_bytes = o->exact_tile_bytes,
                               .n_layers = KV_LAYERS,
                               .kinds = kv_kinds,
                               .max_tiles = KV_TILES,
                               .slot_tiles = o->slot_tiles ? o->slot_tiles
                                                           : (uint32_t)check_range(&w->seed, 1, 5),
                               .disk = w->disk,
                               .n_disk_frames = w->n_disk_frames,
                               .disk_to_device = d->direct};
    CHECK(spw_kv_open(&w->kv, &w->lane, &k) == 0);
}

static inline void kv_world_sync(struct kv_world *w, spw_stream s)
{
    int rc = spw_lane_stream_sync(&w->lane, s);
    CHECK(!rc || w->device_is_lost);
}

static inline void kv_world_drain(struct kv_world *w)
{
    kv_world_sync(w, w->lane.compute);
    kv_world_sync(w, w->lane.kv_up);
    kv_world_sync(w, w->lane.down);
}

/* After all sequences were closed: every frame of every tier and every tile is free. Frames that
 * the drive has lost are taken last, but they can be taken. */
static inline void kv_world_check_free(struct kv_world *w)
{
    const struct spw_kv_options *o = &w->kv->o;
    uint32_t frame, n = 0;
    spw_kv_finish_writes(w->kv);
    CHECK(spw_tier_n_free(&w->kv->device) + w->kv->n_free_soon == o->n_device_frames);
    CHECK(spw_tier_n_free(&w->kv->exact) == o->n_exact_frames);
    CHECK(spw_tier_n_free(&w->kv->host) == o->n_host_frames && !w->kv->n_attached);
    while (w->disk && !w->o.drive.limit_bytes && !spw_disk_take(w->disk, SPW_DISK_NONE, &frame))
        n++;
    CHECK(!w->disk || w->o.drive.limit_bytes || n == o->n_disk_frames);
    n = 0;
    for (uint32_t i = w->kv->free_tile; i != SPW_KV_NO_TILE; i = w->kv->tiles[i].refs)
        n++;
    CHECK(n == w->kv->n_tiles && n >= o->n_device_frames + o->n_exact_frames + o->n_host_frames);
}

static inline void kv_world_stop(struct kv_world *w)
{
    spw_lane_close_streams(&w->lane);
    spw_kv_close(w->kv);
}

static inline void kv_world_close(struct kv_world *w)
{
    spw_disk_close(w->disk);
    spw_io_close(w->io);
    w->lane.ops->free(w->lane.device, w->device_arena, w->o.n_device_frames * w->o.tile_bytes);
    w->lane.ops->free(w->lane.device, w->device_scratch, KV_SCRATCH_BYTES);
    w->lane.ops->free_host(w->lane.device, w->host_scratch, KV_SCRATCH_BYTES);
    if (w->o.n_exact_frames)
        w->lane.ops->free(w->lane.device, w->exact_arena, kv_exact_bytes(w));
    if (w->n_host_frames)
        w->lane.ops->free_host(w->lane.device, w->host_arena, w->n_host_frames * w->o.tile_bytes);
    w->lane.ops->close(w->lane.device);
}

/* A kernel of one task. */
static inline size_t kv_one_task(const void *args)
{
    (void)args;
    return 1;
}

static inline int kv_launch(struct kv_world *w, const struct spw_kernel *kernel, spw_stream s,
                            const void *args, size_t bytes)
{
    return spw_device_cpu_launch(w->lane.device, s, kernel, args, bytes);
}

#endif
