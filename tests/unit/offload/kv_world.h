/* What the tests of the KV cache stand on: the CPU device with its streams and arenas, a drive
 * whose requests a test may disturb, and the cache over them, in every way that there is: with a
 * disk that reads and writes device frames or goes by way of the host, with room for tiles on the
 * host or for those on their way, by either I/O engine.
 *
 * One host thread. kv_world_stop brings everything to rest, so that frames and bytes can be counted
 * before kv_world_close. */
#ifndef SPW_TESTS_UNIT_OFFLOAD_KV_WORLD_H
#define SPW_TESTS_UNIT_OFFLOAD_KV_WORLD_H

#include "tests/engine/engine_run.h"

#include "offload/kv/kv_cache.h"

enum {
    KV_LAYERS = 3,
    KV_SEQS = 4,
    KV_TRANSIT_FRAMES = 3, /* of the host, where it has room for no more */
};

/* What lies below the device. */
struct kv_drive {
    bool host;            /* has room for tiles */
    bool disk;            /* takes tiles */
    bool attaches;        /* the disk is there for tiles in files of others, at least */
    bool direct;          /* it reads and writes device frames */
    bool faulty;          /* what it gives back may be lost: -EBADMSG, or */
    int read_failure;     /* this */
    bool writes_fail;     /* and frames are then held for longer */
    uint32_t n_frames;    /* of the disk; 0: enough */
    uint64_t limit_bytes; /* of writes; 0: none */
};

struct kv_world_options {
    uint64_t seed, delay_seed; /* 0: no delays */
    struct kv_drive drive;
    uint64_t tile_bytes;
    uint32_t max_tiles, first_tile, n_device_frames;
    const uint8_t *kinds; /* [KV_LAYERS] */
    bool keeps_sink;
    uint64_t residual_tiles;
    /* Sees each request of the drive. */
    int64_t (*disturb)(void *context, const struct spw_io_request *r, int64_t result);
    void *context;
};

struct kv_world {
    struct kv_world_options o;
    uint64_t seed; /* of all further draws */
    const struct spw_device_ops *ops;
    struct spw_device *device;
    spw_stream compute, down, up, disk_stream;
    void *device_arena, *host_arena;
    uint32_t n_host_frames, n_disk_frames;
    const char *directory; /* of the drive */
    struct spw_io_fault fault;
    struct spw_io *io; /* NULL: neither is there */
    struct spw_disk *disk;
    struct spw_kv *kv;
};

static inline void kv_world_open_device(struct kv_world *w)
{
    struct spw_error err = {0};
    struct spw_device_options o = {.device_bytes = UINT64_MAX,
                                   .host_bytes = UINT64_MAX,
                                   .threads = 1,
                                   .delay_seed = w->o.delay_seed};
    uint64_t device_bytes = w->o.n_device_frames * w->o.tile_bytes;
    w->ops = &spw_device_cpu;
    CHECK(w->ops->open(&w->device, &o, &err) == 0);
    CHECK(w->ops->alloc(w->device, device_bytes, &w->device_arena) == 0);
    if (w->n_host_frames)
        CHECK(w->ops->alloc_host(w->device, w->n_host_frames * w->o.tile_bytes, &w->host_arena) ==
              0);
    CHECK(w->ops->stream_open(w->device, "compute", &w->compute) == 0);
    CHECK(w->ops->stream_open(w->device, "down", &w->down) == 0);
    CHECK(w->ops->stream_open(w->device, "up", &w->up) == 0);
    CHECK(w->ops->stream_open(w->device, "disk", &w->disk_stream) == 0);
}

static inline void kv_world_open_disk(struct kv_world *w)
{
    struct spw_error err = {0};
    w->fault =
        (struct spw_io_fault){w->o.disturb, (unsigned)check_range(&w->seed, 0, 3), w->o.context};
    struct spw_io_options io = {.kind = check_random(&w->seed) % 2 ? SPW_IO_AUTO : SPW_IO_THREADS,
                                .queue_depth = 8,
                                .fault = &w->fault};
    CHECK_MSG(spw_io_open(&w->io, &io, &err) == 0, "%s", err.text);
    bool memory = check_random(&w->seed) % 4 && !access("/dev/shm", W_OK);
    w->directory = memory ? "/dev/shm" : "/tmp";
    struct spw_disk_options d = {.directory = w->n_disk_frames ? w->directory : NULL,
                                 .io = w->io,
                                 .tile_bytes = w->o.tile_bytes,
                                 .n_frames = w->n_disk_frames,
                                 .run = w->o.max_tiles,
                                 .write_limit_bytes = w->o.drive.limit_bytes};
    CHECK_MSG(spw_disk_open(&w->disk, &d, &err) == 0, "%s", err.text);
}

static inline void kv_world_open(struct kv_world *w, const struct kv_world_options *o)
{
    const struct kv_drive *d = &o->drive;
    uint32_t enough = KV_SEQS * KV_LAYERS * o->max_tiles;
    *w = (struct kv_world){.o = *o, .seed = o->seed};
    w->n_host_frames = d->host ? enough : d->direct ? 0 : KV_TRANSIT_FRAMES;
    w->n_disk_frames = !d->disk ? 0 : d->n_frames ? d->n_frames : enough;
    kv_world_open_device(w);
    if (d->disk || d->attaches)
        kv_world_open_disk(w);
    struct spw_kv_options k = {.ops = w->ops,
                               .device = w->device,
                               .compute = w->compute,
                               .down = w->down,
                               .up = w->up,
                               .device_arena = w->device_arena,
                               .host_arena = w->host_arena,
                               .n_device_frames = o->n_device_frames,
                               .n_host_frames = w->n_host_frames,
                               .tile_bytes = o->tile_bytes,
                               .n_layers = KV_LAYERS,
                               .kinds = o->kinds,
                               .max_tiles = o->max_tiles,
                               .first_tile = o->first_tile,
                               .keeps_sink = o->keeps_sink,
                               .residual_tiles = o->residual_tiles,
                               .slot_tiles = (uint32_t)check_range(&w->seed, 1, 5),
                               .disk = w->disk,
                               .disk_stream = w->disk_stream,
                               .n_disk_frames = w->n_disk_frames,
                               .direct = d->direct};
    CHECK(spw_kv_open(&w->kv, &k) == 0);
}

/* Sequences have been closed. */
static inline void kv_world_stop(struct kv_world *w)
{
    w->ops->stream_close(w->device, w->compute);
    w->ops->stream_close(w->device, w->down);
    w->ops->stream_close(w->device, w->up);
    w->ops->stream_close(w->device, w->disk_stream);
    spw_kv_close(w->kv);
}

static inline void kv_world_close(struct kv_world *w)
{
    spw_disk_close(w->disk);
    spw_io_close(w->io);
    w->ops->free(w->device, w->device_arena, w->o.n_device_frames * w->o.tile_bytes);
    if (w->n_host_frames)
        w->ops->free_host(w->device, w->host_arena, w->n_host_frames * w->o.tile_bytes);
    w->ops->close(w->device);
}

/* A kernel of one task. */
static inline size_t kv_one_task(const void *args)
{
    (void)args;
    return 1;
}

static inline void kv_launch(struct kv_world *w, spw_stream s, const struct spw_kernel *kernel,
                             const void *args, size_t bytes)
{
    CHECK(spw_device_cpu_launch(w->device, s, kernel, args, bytes) == 0);
}

#endif
