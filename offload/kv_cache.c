/* The KV cache: see kv_cache.h.
 *
 * Three streams touch a tile, and these are the orders that must hold:
 *   1. a spill (down) reads the frame after the kernels that filled it        -> down waits compute
 *   2. a frame given back by a spill is written again after the spill read it -> taker waits down
 *   3. a frame given back without a spill may still be read by queued kernels: compute, being one
 *      queue, needs nothing; `up` waits compute before it writes such a frame
 *   4. a tile comes back (up) after its spill has written the host frame      -> up waits down,
 * once per spill (tickets)
 *   5. kernels read a tile that came back after it arrived                    -> compute waits up
 * Host frames are given back only by truncate and close, which the caller calls with `up` drained;
 * writes into them are on `down` alone, one queue. */
#include "offload/kv_cache.h"

#include "offload/tier.h"

#include <assert.h>
#include <string.h>

struct tile {
    void *device, *host;  /* frames, or NULL */
    uint32_t refs;        /* sequences that hold the tile; also the link of the free list */
    uint32_t device_refs; /* of those, the ones that count on its device frame */
    uint64_t ticket;      /* of the spill that wrote `host` */
};

struct spw_kv {
    struct spw_kv_options o;
    struct spw_tier device, host;
    struct tile *tiles; /* [n_device_frames + n_host_frames]: every tile has a frame somewhere */
    uint32_t free_tile; /* head of the free list */
    void **draining;    /* [n_device_frames] frames that `down` may still read */
    uint32_t n_draining;
    uint64_t ticket, up_knows; /* the latest spill, and the latest that `up` has waited for */
    spw_event event;           /* re-recorded at each use: a wait means the record before it */
};

struct layer_tiles {
    uint32_t first, begin, end;
    uint64_t n_tokens; /* grown to; the tile they end in may have an older copy below */
    uint32_t *ids;     /* [max_tiles] */
};

/* Tiles on their way in one direction that are adjacent on both sides: one copy. */
struct run {
    uint8_t *to;
    const uint8_t *from;
    uint64_t bytes;
};

struct spw_kv_seq {
    struct spw_kv *kv;
    uint32_t *ids;
    struct layer_tiles layers[];
};

#define NO_TILE UINT32_MAX

int spw_kv_open(struct spw_kv **out, const struct spw_kv_options *o)
{
    struct spw_kv *kv = spw_alloc_zero(1, sizeof *kv);
    if (!kv)
        return -ENOMEM;
    kv->o = *o;
    uint32_t n_tiles = o->n_device_frames + o->n_host_frames;
    int rc = spw_tier_init(&kv->device, o->device_arena, o->tile_bytes, o->n_device_frames,
                           o->slot_tiles);
    if (!rc)
        rc =
            spw_tier_init(&kv->host, o->host_arena, o->tile_bytes, o->n_host_frames, o->slot_tiles);
    kv->tiles = spw_alloc_zero(n_tiles, sizeof *kv->tiles);
    kv->draining = spw_alloc_zero(o->n_device_frames, sizeof(void *));
    if (!rc && (!kv->tiles || !kv->draining))
        rc = -ENOMEM;
    if (!rc)
        rc = o->ops->event_open(o->device, &kv->event);
    if (rc) {
        spw_kv_close(kv);
        return rc;
    }
    for (uint32_t i = 0; i < n_tiles; i++)
        kv->tiles[i].refs = i + 1 < n_tiles ? i + 1 : NO_TILE;
    kv->free_tile = n_tiles ? 0 : NO_TILE;
    *out = kv;
    return 0;
}

void spw_kv_close(struct spw_kv *kv)
{
    if (!kv)
        return;
    if (kv->event)
        kv->o.ops->event_close(kv->o.device, kv->event);
    spw_tier_free(&kv->device);
    spw_tier_free(&kv->host);
    spw_free(kv->tiles);
    spw_free(kv->draining);
    spw_free(kv);
}

/* ---- orders between streams ---- */

static int order(struct spw_kv *kv, spw_stream before, spw_stream after)
{
    SPW_TRY(kv->o.ops->event_record(kv->o.device, kv->event, before));
    return kv->o.ops->stream_wait(kv->o.device, after, kv->event);
}

/* A device frame that work queued on `user` from now on may write; behind `after` in memory, if
 * that is not NULL and the place is free. */
static int take_device_frame(struct spw_kv *kv, spw_stream user, const void *after, void **out)
{
    if (!spw_tier_n_free(&kv->device) && kv->n_draining) {
        SPW_TRY(order(kv, kv->o.down, kv->o.compute)); /* 2; `up` follows by 3 */
        while (kv->n_draining)
            spw_tier_put(&kv->device, kv->draining[--kv->n_draining]);
    }
    if (user == kv->o.up)
        SPW_TRY(order(kv, kv->o.compute, user)); /* 3 */
    return spw_tier_take(&kv->device, after, out);
}

/* ---- tiles ---- */

static int new_tile(struct spw_kv *kv, spw_stream user, const void *after, uint32_t *out)
{
    uint32_t id = kv->free_tile;
    if (id == NO_TILE)
        return -ENOMEM;
    void *frame;
    SPW_TRY(take_device_frame(kv, user, after, &frame));
    kv->free_tile = kv->tiles[id].refs;
    kv->tiles[id] = (struct tile){.device = frame, .refs = 1, .device_refs = 1};
    *out = id;
    return 0;
}

/* One sequence less counts on the tile's frame. If there is a copy below, the spill that made it
 * may still be reading the frame. */
static void drop_device_ref(struct spw_kv *kv, struct tile *t)
{
    if (--t->device_refs)
        return;
    if (t->host)
        kv->draining[kv->n_draining++] = t->device;
    else
        spw_tier_put(&kv->device, t->device);
    t->device = NULL;
}

static void put_tile(struct spw_kv *kv, uint32_t id, bool counted_on_device)
{
    struct tile *t = &kv->tiles[id];
    if (counted_on_device)
        drop_device_ref(kv, t);
    if (--t->refs)
        return;
    assert(!t->device);
    spw_tier_put(&kv->host, t->host);
    *t = (struct tile){.refs = kv->free_tile};
    kv->free_tile = id;
}

static struct tile *tile_at(const struct spw_kv_seq *seq, uint32_t layer, uint32_t tile)
{
    const struct layer_tiles *l = &seq->layers[layer];
    assert(tile >= l->first && tile < l->end);
    return &seq->kv->tiles[l->ids[tile]];
}

/* NULL for the first tile that the layer holds. */
static struct tile *tile_before(struct spw_kv *kv, const struct layer_tiles *l, uint32_t tile)
{
    return tile > l->first ? &kv->tiles[l->ids[tile - 1]] : NULL;
}

/* ---- sequences ---- */

int spw_kv_seq_open(struct spw_kv_seq **out, struct spw_kv *kv)
{
    uint32_t n = kv->o.n_layers;
    struct spw_kv_seq *seq = spw_alloc_zero(1, sizeof *seq + n * sizeof seq->layers[0]);
    if (!seq)
        return -ENOMEM;
    seq->kv = kv;
    seq->ids = spw_alloc_zero((size_t)n * kv->o.max_tiles, sizeof *seq->ids);
    if (!seq->ids) {
        spw_free(seq);
        return -ENOMEM;
    }
    for (uint32_t l = 0; l < n; l++)
        seq->layers[l].ids = seq->ids + (size_t)l * kv->o.max_tiles;
    *out = seq;
    return 0;
}

static void forget(struct spw_kv_seq *seq, struct layer_tiles *l, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++)
        put_tile(seq->kv, l->ids[i], i >= l->begin);
}

void spw_kv_seq_close(struct spw_kv_seq *seq)
{
    if (!seq)
        return;
    for (uint32_t i = 0; i < seq->kv->o.n_layers; i++)
        forget(seq, &seq->layers[i], seq->layers[i].first, seq->layers[i].end);
    spw_free(seq->ids);
    spw_free(seq);
}

void spw_kv_seq_fork(struct spw_kv_seq *to, const struct spw_kv_seq *from)
{
    struct spw_kv *kv = from->kv;
    for (uint32_t i = 0; i < kv->o.n_layers; i++) {
        const struct layer_tiles *f = &from->layers[i];
        struct layer_tiles *t = &to->layers[i];
        assert(t->end == t->first);
        t->first = f->first;
        t->begin = f->begin;
        t->end = f->end;
        t->n_tokens = f->n_tokens;
        for (uint32_t j = f->first; j < f->end; j++) {
            t->ids[j] = f->ids[j];
            kv->tiles[f->ids[j]].refs++;
            kv->tiles[f->ids[j]].device_refs += j >= f->begin;
        }
    }
}

uint32_t spw_kv_first(const struct spw_kv_seq *seq, uint32_t layer)
{
    return seq->layers[layer].first;
}

uint32_t spw_kv_begin(const struct spw_kv_seq *seq, uint32_t layer)
{
    return seq->layers[layer].begin;
}

uint32_t spw_kv_end(const struct spw_kv_seq *seq, uint32_t layer)
{
    return seq->layers[layer].end;
}

void *spw_kv_device_tile(const struct spw_kv_seq *seq, uint32_t layer, uint32_t tile)
{
    assert(tile >= seq->layers[layer].begin);
    return tile_at(seq, layer, tile)->device;
}

const void *spw_kv_host_tile(const struct spw_kv_seq *seq, uint32_t layer, uint32_t tile)
{
    return tile_at(seq, layer, tile)->host;
}

/* ---- growing ---- */

/* The tail tile is about to be written: it must be this sequence's alone, with no copy below. */
static int own_tail(struct spw_kv_seq *seq, struct layer_tiles *l)
{
    struct spw_kv *kv = seq->kv;
    uint32_t *id = &l->ids[l->end - 1];
    struct tile *t = &kv->tiles[*id];
    if (t->refs == 1) {
        spw_tier_put(&kv->host, t->host);
        t->host = NULL;
        return 0;
    }
    uint32_t copy;
    SPW_TRY(new_tile(kv, kv->o.compute, NULL, &copy));
    int rc = kv->o.ops->copy(kv->o.device, kv->tiles[copy].device, t->device, kv->o.tile_bytes,
                             SPW_LINK_DEVICE_TO_DEVICE, kv->o.compute);
    put_tile(kv, *id, true);
    *id = copy;
    return rc;
}

int spw_kv_grow(struct spw_kv_seq *seq, uint32_t layer, uint64_t from, uint64_t to)
{
    struct spw_kv *kv = seq->kv;
    struct layer_tiles *l = &seq->layers[layer];
    if (from % SPW_TILE_TOKENS && to > from)
        SPW_TRY(own_tail(seq, l));
    uint32_t end = spw_waterline_tiles(to);
    if (end > kv->o.max_tiles)
        return -E2BIG;
    l->n_tokens = to;
    while (l->end < end) {
        const struct tile *before = tile_before(kv, l, l->end);
        SPW_TRY(new_tile(kv, kv->o.compute, before ? before->device : NULL, &l->ids[l->end]));
        l->end++;
    }
    return 0;
}

/* ---- up and down ---- */

static int copy_run(struct spw_kv *kv, struct run *r, enum spw_link link, spw_stream s)
{
    struct run now = *r;
    *r = (struct run){0};
    if (!now.bytes)
        return 0;
    return kv->o.ops->copy(kv->o.device, now.to, now.from, now.bytes, link, s);
}

/* Queues what has been gathered if the tile does not follow it. */
static int gather(struct spw_kv *kv, struct run *r, void *to, const void *from, enum spw_link link,
                  spw_stream s)
{
    if (r->bytes && (r->to + r->bytes != to || r->from + r->bytes != from))
        SPW_TRY(copy_run(kv, r, link, s));
    if (!r->bytes)
        *r = (struct run){.to = to, .from = from};
    r->bytes += kv->o.tile_bytes;
    return 0;
}

/* Writes the tiles of [l->begin, begin) down that have no copy below; `down` must be ordered behind
 * the kernels that filled them. */
static int write_down(struct spw_kv *kv, struct layer_tiles *l, uint32_t begin, struct run *r)
{
    for (; l->begin < begin; l->begin++) {
        struct tile *t = &kv->tiles[l->ids[l->begin]];
        if (!t->host) {
            const struct tile *before = tile_before(kv, l, l->begin);
            SPW_TRY(spw_tier_take(&kv->host, before ? before->host : NULL, &t->host));
            t->ticket = kv->ticket;
            SPW_TRY(gather(kv, r, t->host, t->device, SPW_LINK_DEVICE_TO_HOST, kv->o.down));
        }
        drop_device_ref(kv, t);
    }
    return 0;
}

int spw_kv_spill(struct spw_kv_seq *seq, uint32_t layer, uint32_t begin)
{
    struct spw_kv *kv = seq->kv;
    struct layer_tiles *l = &seq->layers[layer];
    struct run r = {0};
    assert(begin <= l->end);
    if (spw_kv_count_unwritten(seq, layer, l->begin, begin)) {
        SPW_TRY(order(kv, kv->o.compute, kv->o.down)); /* 1 */
        kv->ticket++;
    }
    int rc = write_down(kv, l, begin, &r);
    int last = copy_run(kv, &r, SPW_LINK_DEVICE_TO_HOST, kv->o.down); /* also what a failure left */
    return rc ? rc : last;
}

int spw_kv_wait_written(struct spw_kv_seq *seq, uint32_t layer, uint32_t tile)
{
    struct spw_kv *kv = seq->kv;
    if (tile_at(seq, layer, tile)->ticket <= kv->up_knows)
        return 0;
    kv->up_knows = kv->ticket;
    return order(kv, kv->o.down, kv->o.up); /* 4 */
}

/* Queues what tiles [begin, end) that are not on the device need to be there. */
static int bring_up(struct spw_kv_seq *seq, uint32_t layer, uint32_t begin, uint32_t end)
{
    struct spw_kv *kv = seq->kv;
    struct layer_tiles *l = &seq->layers[layer];
    struct run r = {0};
    for (uint32_t i = begin; i < end; i++) {
        struct tile *t = &kv->tiles[l->ids[i]];
        const struct tile *before = tile_before(kv, l, i);
        if (t->device)
            continue;
        SPW_TRY(take_device_frame(kv, kv->o.up, before ? before->device : NULL, &t->device));
        SPW_TRY(spw_kv_wait_written(seq, layer, i));
        SPW_TRY(gather(kv, &r, t->device, t->host, SPW_LINK_HOST_TO_DEVICE, kv->o.up));
    }
    return copy_run(kv, &r, SPW_LINK_HOST_TO_DEVICE, kv->o.up);
}

/* After a failure (of the device: frames were counted before) nobody counts on these frames. */
static void give_back(struct spw_kv *kv, struct layer_tiles *l, uint32_t begin, uint32_t end)
{
    for (uint32_t i = begin; i < end; i++) {
        struct tile *t = &kv->tiles[l->ids[i]];
        if (t->device && !t->device_refs) {
            spw_tier_put(&kv->device, t->device);
            t->device = NULL;
        }
    }
}

int spw_kv_load(struct spw_kv_seq *seq, uint32_t layer, uint32_t begin)
{
    struct spw_kv *kv = seq->kv;
    struct layer_tiles *l = &seq->layers[layer];
    assert(begin >= l->first);
    if (begin >= l->begin)
        return 0;
    uint32_t absent = spw_kv_count_absent(seq, layer, begin, l->begin);
    if (absent > spw_tier_n_free(&kv->device) + kv->n_draining)
        return -ENOMEM;
    int rc = bring_up(seq, layer, begin, l->begin);
    if (rc) {
        give_back(kv, l, begin, l->begin);
        return rc;
    }
    for (uint32_t i = begin; i < l->begin; i++)
        kv->tiles[l->ids[i]].device_refs++;
    l->begin = begin;
    return absent ? order(kv, kv->o.up, kv->o.compute) : 0; /* 5 */
}

void spw_kv_drop(struct spw_kv_seq *seq, uint32_t layer, uint32_t first)
{
    struct layer_tiles *l = &seq->layers[layer];
    if (first > l->end)
        first = l->end;
    if (first <= l->first)
        return;
    forget(seq, l, l->first, first);
    l->first = first;
    if (l->begin < first)
        l->begin = first;
}

/* ---- cutting back ---- */

bool spw_kv_can_truncate(const struct spw_kv_seq *seq, uint32_t window, uint64_t n)
{
    for (uint32_t i = 0; i < seq->kv->o.n_layers; i++)
        if (seq->kv->o.sliding[i] && seq->layers[i].first > spw_waterline_first(window, n))
            return false;
    return true;
}

static void truncate_layer(struct spw_kv_seq *seq, uint32_t layer, uint64_t n)
{
    struct layer_tiles *l = &seq->layers[layer];
    uint32_t end = spw_waterline_tiles(n);
    l->n_tokens = spw_min_u64(l->n_tokens, n);
    if (end < l->end) {
        forget(seq, l, end > l->first ? end : l->first, l->end);
        l->end = end;
    }
    if (l->first > l->end)
        l->first = l->end;
    if (l->begin > l->end)
        l->begin = l->end;
}

void spw_kv_truncate(struct spw_kv_seq *seq, uint64_t n)
{
    for (uint32_t i = 0; i < seq->kv->o.n_layers; i++)
        truncate_layer(seq, i, n);
}

/* ---- facts ---- */

bool spw_kv_is_written(const struct spw_kv_seq *seq, uint32_t layer, uint32_t begin, uint32_t end)
{
    if (seq->layers[layer].n_tokens < (uint64_t)end * SPW_TILE_TOKENS)
        return false;
    return !spw_kv_count_unwritten(seq, layer, begin, end);
}

uint32_t spw_kv_count_unwritten(const struct spw_kv_seq *seq, uint32_t layer, uint32_t begin,
                                uint32_t end)
{
    uint32_t n = 0;
    for (uint32_t i = begin; i < end; i++)
        n += !tile_at(seq, layer, i)->host;
    return n;
}

uint32_t spw_kv_count_absent(const struct spw_kv_seq *seq, uint32_t layer, uint32_t begin,
                             uint32_t end)
{
    uint32_t n = 0;
    for (uint32_t i = begin; i < end; i++)
        n += !tile_at(seq, layer, i)->device;
    return n;
}
