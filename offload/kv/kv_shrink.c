/* Shrinks a cache in place: see kv_shrink.h.
 *
 * A tier is processed from its first frame to its last. Frame k at k T moves to frame k' <= k at k'
 * Q:
 *
 *     old   |    0    |    1    |    2    |    3    |        T bytes each
 *     new   |  0  |  1  |  2  |  3  | free | free ...        Q < T
 *
 * The new frame ends at (k' + 1) Q <= (k + 1) Q < (k + 1) T, and the next old frame begins there or
 * later: so a write never touches a frame that must still be read. While k is small, it may touch
 * its own source; then the tile moves through a buffer. If there are enough new frames, numbers
 * stay (k' = k): adjacent frames stay adjacent, and runs stay aligned. Else the n-th frame in use
 * becomes frame n, which keeps neighbours together.
 *
 * On the disk a few frames are read together, then converted, then written. All of them have been
 * read at that point, and frames that are read later come after them. A tile that cannot be read,
 * or written in two tries, is lost: another place could be one that must still be read. Attached
 * tiles cannot be written in place. They come last and move to free frames of our own file; without
 * a free frame they are lost, too.
 *
 * A copy on the device and a copy in a lower tier are converted separately, from the same bytes to
 * the same bytes. All memory is allocated, and the write limit is checked, before the first byte
 * moves. After that only the device can fail; then the tables and tiers are completed without
 * it. */
#include "offload/kv/kv_shrink.h"

#include "offload/kv/kv_split.h"
#include "offload/kv/kv_tile.h"

#include <assert.h>
#include <string.h>

/* One tier's frames. */
struct level {
    uint32_t *owner; /* [n] the tile, or SPW_KV_NO_TILE */
    uint32_t *to;    /* [n] the new number of each frame that has an owner */
    uint32_t n;
};

struct work {
    struct spw_kv *kv;
    const struct spw_kv_shrink *r;
    struct spw_kv_shrunk *out;
    struct level device, exact, host, disk;
    uint32_t *attached; /* [n_attached] tiles; the first of them have a place in our own file: */
    uint32_t *place;
    uint32_t n_attached, n_places;
    /* The tiers of the cache after the shrink. */
    struct spw_tier new_device, new_exact, new_host;
    struct spw_disk *new_disk;
    struct spw_kv_tile *tiles;
    uint32_t n_tiles, *writeback_ids;
    void **free_soon;
    int rc; /* failure of the device: no further byte is moved */
};

/* ---- before anything moves ---- */

int spw_kv_finish_queued(struct spw_kv *kv)
{
    spw_kv_finish_writes(kv);
    SPW_TRY(spw_lane_stream_sync(kv->lane, kv->lane->compute));
    SPW_TRY(spw_lane_stream_sync(kv->lane, kv->lane->down));
    SPW_TRY(spw_lane_stream_sync(kv->lane, kv->lane->kv_up));
    spw_kv_release_free_soon(kv);
    for (uint32_t id = 0; id < kv->n_tiles; id++)
        if (kv->tiles[id].damaged) {
            spw_kv_put_disk_frame(kv, kv->tiles[id].damaged);
            kv->tiles[id].damaged = 0;
        }
    return 0;
}

static int open_level(struct level *l, uint32_t n)
{
    l->owner = spw_alloc_zero(n, sizeof *l->owner);
    l->to = spw_alloc_zero(n, sizeof *l->to);
    if (!l->owner || !l->to)
        return -ENOMEM;
    for (uint32_t k = 0; k < n; k++)
        l->owner[k] = SPW_KV_NO_TILE;
    l->n = n;
    return 0;
}

static void own(struct work *w, uint32_t id, const void *frame)
{
    struct spw_kv *kv = w->kv;
    if (frame && kv->tiles[id].exact)
        w->exact.owner[spw_tier_number(&kv->exact, frame)] = id;
    else if (frame && spw_tier_has(&kv->device, frame))
        w->device.owner[spw_tier_number(&kv->device, frame)] = id;
    else if (frame)
        w->host.owner[spw_tier_number(&kv->host, frame)] = id;
}

/* Finds the tile of each frame. Tiles on the free list have no frame. */
static void survey(struct work *w)
{
    for (uint32_t id = 0; id < w->kv->n_tiles; id++) {
        const struct spw_kv_tile *t = &w->kv->tiles[id];
        own(w, id, t->device);
        own(w, id, t->host);
        if (t->disk == SPW_DISK_NONE)
            continue;
        if (spw_disk_is_attached(w->kv->o.disk, t->disk))
            w->attached[w->n_attached++] = id;
        else
            w->disk.owner[t->disk] = id;
    }
}

static int number(struct level *l, uint32_t n_new)
{
    uint32_t in_use = 0, end = 0;
    for (uint32_t k = 0; k < l->n; k++)
        if (l->owner[k] != SPW_KV_NO_TILE) {
            l->to[k] = in_use++;
            end = k + 1;
        }
    if (in_use > n_new)
        return -ENOMEM;
    for (uint32_t k = 0; k < end && end <= n_new; k++)
        l->to[k] = k;
    return 0;
}

static int open_tier(struct spw_tier *t, void *arena, const struct level *l, uint64_t frame_bytes,
                     uint32_t n_frames, uint32_t run)
{
    SPW_TRY(spw_tier_init(t, arena, frame_bytes, n_frames, run));
    for (uint32_t k = 0; k < l->n; k++)
        if (l->owner[k] != SPW_KV_NO_TILE)
            spw_tier_frames_claim(&t->frames, l->to[k]);
    return 0;
}

/* The bytes on the disk need not change. */
static bool stays(const struct work *w, uint32_t from, uint32_t to)
{
    return from == to && w->r->tile_bytes == w->kv->o.tile_bytes;
}

static int open_disk(struct work *w)
{
    const struct level *l = &w->disk;
    SPW_TRY(spw_disk_reframe(&w->new_disk, w->kv->o.disk, w->r->tile_bytes, w->r->n_disk_frames));
    for (uint32_t k = 0; k < l->n; k++)
        if (l->owner[k] != SPW_KV_NO_TILE)
            SPW_TRY(spw_disk_claim(w->new_disk, l->to[k], !stays(w, k, l->to[k])));
    uint32_t last = SPW_DISK_NONE;
    while (w->n_places < w->n_attached && !spw_disk_take(w->new_disk, last, &last))
        w->place[w->n_places++] = last;
    return 0;
}

static int open_tables(struct work *w)
{
    const struct spw_kv_shrink *r = w->r;
    uint32_t n = r->n_device_frames + r->n_exact_frames + r->n_host_frames +
                 (w->kv->o.disk ? r->n_disk_frames : 0);
    w->n_tiles = n > w->kv->n_tiles ? n : w->kv->n_tiles;
    w->tiles = spw_alloc_zero(w->n_tiles, sizeof *w->tiles);
    w->free_soon = spw_alloc_zero(r->n_device_frames, sizeof(void *));
    w->writeback_ids =
        spw_alloc_zero((size_t)SPW_KV_WRITEBACKS * r->slot_tiles, sizeof *w->writeback_ids);
    return w->tiles && w->free_soon && w->writeback_ids ? 0 : -ENOMEM;
}

static int prepare(struct work *w)
{
    struct spw_kv *kv = w->kv;
    const struct spw_kv_shrink *r = w->r;
    if (kv->n_attached && r->tile_bytes == kv->o.tile_bytes)
        return -EBUSY;
    assert((uint8_t *)r->exact_arena <= kv->exact.arena);
    SPW_TRY(open_level(&w->device, kv->o.n_device_frames));
    SPW_TRY(open_level(&w->exact, kv->o.n_exact_frames));
    SPW_TRY(open_level(&w->host, kv->o.n_host_frames));
    SPW_TRY(open_level(&w->disk, kv->o.disk ? kv->o.n_disk_frames : 0));
    w->attached = spw_alloc_zero(kv->n_attached, sizeof *w->attached);
    w->place = spw_alloc_zero(kv->n_attached, sizeof *w->place);
    if (!w->attached || !w->place)
        return -ENOMEM;
    survey(w);
    SPW_TRY(number(&w->device, r->n_device_frames));
    SPW_TRY(number(&w->exact, r->n_exact_frames));
    SPW_TRY(number(&w->host, r->n_host_frames));
    SPW_TRY(number(&w->disk, r->n_disk_frames));
    SPW_TRY(open_tables(w));
    SPW_TRY(open_tier(&w->new_device, kv->device.arena, &w->device, r->tile_bytes,
                      r->n_device_frames, r->slot_tiles));
    SPW_TRY(open_tier(&w->new_exact, r->exact_arena, &w->exact, kv->o.exact_tile_bytes,
                      r->n_exact_frames, 1));
    SPW_TRY(open_tier(&w->new_host, kv->host.arena, &w->host, r->tile_bytes, r->n_host_frames,
                      r->slot_tiles));
    return kv->o.disk ? open_disk(w) : 0;
}

/* ---- one tile ---- */

static int copy(const struct work *w, void *to, const void *from, uint64_t bytes,
                enum spw_link link)
{
    return spw_lane_copy(w->kv->lane, to, from, bytes, link, w->kv->lane->compute);
}

/* Queues the copy of a tile in device memory to an address that is not higher. */
static int bring_down(const struct work *w, const uint8_t *from, uint8_t *to, uint64_t bytes)
{
    bool apart = to + bytes <= from;
    void *target = apart ? to : w->r->device_to;
    if (from == to)
        return 0;
    SPW_TRY(copy(w, target, from, bytes, SPW_LINK_DEVICE_TO_DEVICE));
    return apart ? 0 : copy(w, to, target, bytes, SPW_LINK_DEVICE_TO_DEVICE);
}

static int move_exact(const struct work *w, const uint8_t *from, uint8_t *to)
{
    return bring_down(w, from, to, w->kv->o.exact_tile_bytes);
}

/* The same, and converts the tile. */
static int move_on_device(const struct work *w, const uint8_t *from, uint8_t *to)
{
    const struct spw_kv_shrink *r = w->r;
    bool apart = to + r->tile_bytes <= from;
    void *target = apart ? to : r->device_to;
    if (!r->convert)
        return bring_down(w, from, to, r->tile_bytes);
    SPW_TRY(r->convert(r->context, from, target));
    return apart ? 0 : copy(w, to, target, r->tile_bytes, SPW_LINK_DEVICE_TO_DEVICE);
}

/* The same in host memory. */
static int move_on_host(const struct work *w, const uint8_t *from, uint8_t *to)
{
    const struct spw_kv_shrink *r = w->r;
    if (!r->convert) {
        memmove(to, from, r->tile_bytes);
        return 0;
    }
    SPW_TRY(copy(w, r->device_from, from, w->kv->o.tile_bytes, SPW_LINK_HOST_TO_DEVICE));
    SPW_TRY(r->convert(r->context, r->device_from, r->device_to));
    return copy(w, to, r->device_to, r->tile_bytes, SPW_LINK_DEVICE_TO_HOST);
}

/* ---- memory ---- */

static void walk_memory(struct work *w, const struct level *l, const struct spw_tier *tier,
                        const struct spw_tier *by,
                        int (*move)(const struct work *, const uint8_t *, uint8_t *),
                        uint64_t *n_moved)
{
    for (uint32_t k = 0; k < l->n; k++) {
        if (l->owner[k] == SPW_KV_NO_TILE)
            continue;
        struct spw_kv_tile *t = &w->kv->tiles[l->owner[k]];
        uint8_t *from = tier->arena + k * tier->frame_bytes;
        uint8_t *to = by->arena + l->to[k] * by->frame_bytes;
        if (!w->rc)
            w->rc = move(w, from, to);
        if (t->device == from)
            t->device = to;
        if (t->host == from) /* also in the device's arena: then both copies were there */
            t->host = to;
        ++*n_moved;
    }
}

/* ---- disk ---- */

/* Tiles whose reads and writes are in flight together. */
struct batch {
    uint32_t n, most;
    struct {
        uint32_t id, from, to; /* frames; `from` may be attached */
        int rc;                /* result of the read */
    } items[SPW_KV_READS];
};

static uint8_t *buffer(const struct work *w, uint32_t i)
{
    return (uint8_t *)w->r->buffers + i * w->kv->o.tile_bytes;
}

static int wait_for(struct spw_disk_job *job)
{
    return spw_io_wait(job->io.io, &job->io);
}

static void read_batch(const struct work *w, struct batch *b)
{
    struct spw_kv_read *reads = w->kv->reads;
    for (uint32_t i = 0; i < b->n; i++) {
        struct spw_disk_job *job = &reads[i].run.job;
        spw_disk_prepare(w->kv->o.disk, job, false, b->items[i].from, 1, buffer(w, i));
        spw_disk_start(job);
    }
    for (uint32_t i = 0; i < b->n; i++)
        b->items[i].rc = wait_for(&reads[i].run.job);
}

/* Converts the tiles that were read, in the buffers. */
static int convert_batch(const struct work *w, const struct batch *b)
{
    const struct spw_kv *kv = w->kv;
    for (uint32_t i = 0; i < b->n; i++)
        if (!b->items[i].rc)
            SPW_TRY(kv->o.disk_to_device ? move_on_device(w, buffer(w, i), buffer(w, i))
                                         : move_on_host(w, buffer(w, i), buffer(w, i)));
    return spw_lane_stream_sync(kv->lane, kv->lane->compute);
}

/* Marks the tile as lost on the disk. */
static void lose(struct work *w, uint32_t id, int rc)
{
    struct spw_kv_tile *t = &w->kv->tiles[id];
    t->disk = SPW_DISK_NONE;
    t->lost = rc;
    w->out->n_lost++;
}

/* Ends one write, and writes a second time after a failure. */
static int end_write(struct work *w, struct spw_disk_job *job, uint32_t frame)
{
    if (!wait_for(job))
        return 0;
    SPW_TRY(spw_disk_retry_frame(w->new_disk, false, &frame));
    return spw_disk_run(job);
}

static void write_batch(struct work *w, const struct batch *b)
{
    struct spw_kv_read *reads = w->kv->reads;
    for (uint32_t i = 0; i < b->n; i++)
        if (!b->items[i].rc) {
            struct spw_disk_job *job = &reads[i].run.job;
            spw_disk_prepare(w->new_disk, job, true, b->items[i].to, 1, buffer(w, i));
            spw_disk_start(job);
        }
    for (uint32_t i = 0; i < b->n; i++) {
        uint32_t id = b->items[i].id, to = b->items[i].to;
        if (b->items[i].rc) {
            lose(w, id, b->items[i].rc);
            spw_disk_retire(w->kv->o.disk, b->items[i].from);
            spw_disk_put(w->new_disk, to);
            continue;
        }
        int rc = end_write(w, &reads[i].run.job, to);
        if (rc) {
            lose(w, id, rc);
            spw_disk_retire(w->new_disk, to);
        }
    }
}

static void move_batch(struct work *w, struct batch *b)
{
    if (w->rc || !b->n)
        return;
    read_batch(w, b);
    w->rc = convert_batch(w, b);
    if (!w->rc)
        write_batch(w, b);
    w->out->n_disk += b->n;
    b->n = 0;
}

static void add(struct work *w, struct batch *b, uint32_t id, uint32_t to)
{
    struct spw_kv_tile *t = &w->kv->tiles[id];
    if (stays(w, t->disk, to))
        return;
    if (!w->rc) {
        b->items[b->n].id = id;
        b->items[b->n].from = t->disk;
        b->items[b->n++].to = to;
    }
    t->disk = to;
    if (b->n == b->most)
        move_batch(w, b);
}

static void walk_disk(struct work *w)
{
    const struct level *l = &w->disk;
    struct batch b = {.most = w->r->n_buffers < SPW_KV_READS ? w->r->n_buffers : SPW_KV_READS};
    for (uint32_t k = 0; k < l->n; k++)
        if (l->owner[k] != SPW_KV_NO_TILE)
            add(w, &b, l->owner[k], l->to[k]);
    move_batch(w, &b);
}

/* After all frames of our own file have moved: now every free frame may be written. */
static void walk_attached(struct work *w)
{
    struct batch b = {.most = w->r->n_buffers < SPW_KV_READS ? w->r->n_buffers : SPW_KV_READS};
    struct spw_kv *kv = w->kv;
    uint32_t *frames =
        w->attached; /* from here on the array holds the frames to free, in place of the ids */
    for (uint32_t i = 0; i < w->n_attached; i++) {
        uint32_t id = w->attached[i], frame = kv->tiles[id].disk;
        if (i < w->n_places)
            add(w, &b, id, w->place[i]);
        else
            lose(w, id, -ENOMEM);
        frames[i] = frame;
    }
    move_batch(w, &b);
    for (uint32_t i = 0; i < w->n_attached; i++)
        spw_kv_put_disk_frame(kv, frames[i]);
}

/* ---- the end ---- */

/* Makes room for more tiles if there are more frames. No old frame is waiting to become free. */
static void replace_tiles(struct work *w)
{
    struct spw_kv *kv = w->kv;
    memcpy(w->tiles, kv->tiles, kv->n_tiles * sizeof *kv->tiles);
    for (uint32_t id = kv->n_tiles; id < w->n_tiles; id++) {
        w->tiles[id] = (struct spw_kv_tile){.disk = SPW_DISK_NONE, .refs = kv->free_tile};
        kv->free_tile = id;
    }
    spw_free(kv->tiles);
    spw_free(kv->free_soon);
    kv->tiles = w->tiles;
    kv->free_soon = w->free_soon;
    kv->n_tiles = w->n_tiles;
    w->tiles = NULL;
    w->free_soon = NULL;
}

static void replace_tier(struct spw_tier *t, struct spw_tier *by)
{
    spw_tier_free(t);
    *t = *by;
    *by = (struct spw_tier){0};
}

static void replace_disk(struct work *w)
{
    struct spw_kv *kv = w->kv;
    spw_free(kv->writeback_ids);
    kv->writeback_ids = w->writeback_ids;
    w->writeback_ids = NULL;
    for (uint32_t i = 0; i < SPW_KV_WRITEBACKS; i++)
        kv->writebacks[i].ids = kv->writeback_ids + (size_t)i * w->r->slot_tiles;
    spw_disk_replace(kv->o.disk, w->new_disk);
    w->new_disk = NULL;
}

static void take_over(struct work *w)
{
    struct spw_kv *kv = w->kv;
    const struct spw_kv_shrink *r = w->r;
    replace_tiles(w);
    replace_tier(&kv->device, &w->new_device);
    replace_tier(&kv->exact, &w->new_exact);
    replace_tier(&kv->host, &w->new_host);
    if (kv->o.disk)
        replace_disk(w);
    kv->o.tile_bytes = r->tile_bytes;
    kv->o.n_device_frames = r->n_device_frames;
    kv->o.exact_arena = r->exact_arena;
    kv->o.n_exact_frames = r->n_exact_frames;
    kv->o.n_host_frames = r->n_host_frames;
    kv->o.n_disk_frames = r->n_disk_frames;
    kv->o.slot_tiles = r->slot_tiles;
}

static void release(struct work *w)
{
    struct level *levels[4] = {&w->device, &w->exact, &w->host, &w->disk};
    for (int i = 0; i < 4; i++) {
        spw_free(levels[i]->owner);
        spw_free(levels[i]->to);
    }
    spw_tier_free(&w->new_device);
    spw_tier_free(&w->new_exact);
    spw_tier_free(&w->new_host);
    spw_free(w->attached);
    spw_free(w->place);
    spw_disk_close(w->new_disk);
    spw_free(w->tiles);
    spw_free(w->free_soon);
    spw_free(w->writeback_ids);
}

static void move_all(struct work *w, bool splits)
{
    struct spw_kv *kv = w->kv;
    struct spw_kv_shrunk *out = w->out;
    walk_memory(w, &w->device, &kv->device, &w->new_device, move_on_device, &out->n_device);
    if (splits && !w->rc)
        w->rc = spw_kv_split_lower(kv, w->r);
    walk_memory(w, &w->exact, &kv->exact, &w->new_exact, move_exact, &out->n_device);
    walk_memory(w, &w->host, &kv->host, &w->new_host, move_on_host, &out->n_host);
    walk_disk(w);
    walk_attached(w);
    if (!w->rc)
        w->rc = spw_lane_stream_sync(kv->lane, kv->lane->compute);
}

int spw_kv_shrink(struct spw_kv *kv, const struct spw_kv_shrink *r, struct spw_kv_shrunk *out)
{
    struct work w = {.kv = kv, .r = r, .out = out};
    bool splits = r->n_exact_frames && !spw_kv_quantizes(kv);
    assert(r->tile_bytes && r->tile_bytes <= kv->o.tile_bytes && r->slot_tiles);
    assert(r->tile_bytes < kv->o.tile_bytes || !r->convert);
    assert(!kv->o.disk || r->n_buffers);
    *out = (struct spw_kv_shrunk){0};
    SPW_TRY(spw_kv_finish_queued(kv));
    if (splits)
        SPW_TRY(spw_kv_split_begin(kv, r));
    int rc = prepare(&w);
    if (!rc) {
        move_all(&w, splits);
        take_over(&w);
        if (splits)
            spw_kv_split_end(r);
    }
    release(&w);
    return rc ? rc : w.rc ? -EIO : 0;
}
