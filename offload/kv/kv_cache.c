/* The KV cache: see kv_cache.h. Here are sequences and their tables; tiles, frames and the orders
 * between streams are in kv_tile.c, spilling in kv_spill.c, loading in kv_load.c, the way to
 * the disk in kv_writeback.c. */
#include "offload/kv/kv_tile.h"

#include "quant/residual.h"

#include <assert.h>

static int open_tables(struct spw_kv *kv)
{
    const struct spw_kv_options *o = &kv->o;
    SPW_TRY(spw_tier_init(&kv->device, o->device_arena, o->tile_bytes, o->n_device_frames,
                          o->slot_tiles));
    SPW_TRY(
        spw_tier_init(&kv->host, o->host_arena, o->tile_bytes, o->n_host_frames, o->slot_tiles));
    kv->n_tiles = o->n_device_frames + o->n_host_frames + (o->disk ? o->n_disk_frames : 0);
    kv->tiles = spw_alloc_zero(kv->n_tiles, sizeof *kv->tiles);
    kv->draining = spw_alloc_zero(o->n_device_frames, sizeof(void *));
    if (!kv->tiles || !kv->draining)
        return -ENOMEM;
    if (o->disk) {
        SPW_TRY(spw_kv_writebacks_open(kv));
        SPW_TRY(spw_kv_reads_open(kv));
    }
    return o->ops->event_open(o->device, &kv->event);
}

int spw_kv_open(struct spw_kv **out, const struct spw_kv_options *o)
{
    assert(o->first_tile <= 1);
    assert(!o->keeps_sink || (!o->first_tile && !o->n_host_frames && !o->disk));
    struct spw_kv *kv = spw_alloc_zero(1, sizeof *kv);
    if (!kv)
        return -ENOMEM;
    kv->o = *o;
    kv->copies = (struct spw_copies){.ops = o->ops, .device = o->device};
    int rc = open_tables(kv);
    if (rc) {
        spw_kv_close(kv);
        return rc;
    }
    for (uint32_t i = 0; i < kv->n_tiles; i++)
        kv->tiles[i] = (struct spw_kv_tile){.disk = SPW_DISK_NONE,
                                            .refs = i + 1 < kv->n_tiles ? i + 1 : SPW_KV_NO_TILE};
    kv->free_tile = kv->n_tiles ? 0 : SPW_KV_NO_TILE;
    *out = kv;
    return 0;
}

void spw_kv_close(struct spw_kv *kv)
{
    if (!kv)
        return;
    spw_kv_writebacks_close(kv);
    spw_kv_reads_close(kv);
    if (kv->event)
        kv->o.ops->event_close(kv->o.device, kv->event);
    spw_tier_free(&kv->device);
    spw_tier_free(&kv->host);
    spw_free(kv->tiles);
    spw_free(kv->draining);
    spw_free(kv);
}

static struct spw_kv_tile *tile_at(const struct spw_kv_seq *seq, uint32_t layer, uint32_t tile)
{
    const struct spw_kv_layer *l = &seq->layers[layer];
    assert((tile >= l->first && tile < l->end) || (!tile && spw_kv_sink_apart(seq, layer)));
    return &seq->kv->tiles[l->ids[tile]];
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
    uint32_t first = kv->o.first_tile;
    for (uint32_t l = 0; l < n; l++)
        seq->layers[l] = (struct spw_kv_layer){.first = first,
                                               .begin = first,
                                               .end = first,
                                               .n_tokens = (uint64_t)first * SPW_TILE_TOKENS,
                                               .ids = seq->ids + (size_t)l * kv->o.max_tiles};
    seq->next = kv->seqs;
    if (seq->next)
        seq->next->previous = seq;
    kv->seqs = seq;
    *out = seq;
    return 0;
}

static void forget(struct spw_kv_seq *seq, struct spw_kv_layer *l, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++)
        spw_kv_put_tile(seq->kv, l->ids[i], i >= l->begin);
}

/* Gives back the pinned tiles that have been dropped. The sink is the layer's own. */
static void unpin(struct spw_kv_seq *seq, uint32_t layer)
{
    struct spw_kv_layer *l = &seq->layers[layer];
    uint32_t end = l->first < l->pinned_end ? l->first : l->pinned_end;
    for (uint32_t i = l->pinned + (spw_kv_keeps_sink(seq, layer) && !l->pinned); i < end; i++)
        spw_kv_put_tile(seq->kv, l->ids[i], true);
    l->pinned = l->pinned_end = 0;
}

static void forget_all(struct spw_kv_seq *seq, uint32_t layer)
{
    struct spw_kv_layer *l = &seq->layers[layer];
    assert(!l->load.seq);
    unpin(seq, layer);
    if (spw_kv_sink_apart(seq, layer))
        spw_kv_put_tile(seq->kv, l->ids[0], true);
    forget(seq, l, l->first, l->end);
}

void spw_kv_seq_close(struct spw_kv_seq *seq)
{
    if (!seq)
        return;
    for (uint32_t i = 0; i < seq->kv->o.n_layers; i++)
        forget_all(seq, i);
    if (seq->next)
        seq->next->previous = seq->previous;
    if (seq->previous)
        seq->previous->next = seq->next;
    else
        seq->kv->seqs = seq->next;
    spw_free(seq->ids);
    spw_free(seq);
}

static void share(struct spw_kv *kv, struct spw_kv_layer *to, const struct spw_kv_layer *from,
                  uint32_t tile, bool counted_on_device)
{
    uint32_t id = to->ids[tile] = from->ids[tile];
    kv->tiles[id].refs++;
    kv->tiles[id].device_refs += counted_on_device;
}

void spw_kv_seq_fork(struct spw_kv_seq *to, const struct spw_kv_seq *from)
{
    struct spw_kv *kv = from->kv;
    for (uint32_t i = 0; i < kv->o.n_layers; i++) {
        const struct spw_kv_layer *f = &from->layers[i];
        struct spw_kv_layer *t = &to->layers[i];
        assert(t->end == t->first);
        t->first = f->first;
        t->begin = f->begin;
        t->end = f->end;
        t->disk_end = f->disk_end;
        t->n_tokens = f->n_tokens;
        if (spw_kv_sink_apart(from, i))
            share(kv, t, f, 0, true);
        for (uint32_t j = f->first; j < f->end; j++)
            share(kv, t, f, j, j >= f->begin);
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

uint32_t spw_kv_disk_end(const struct spw_kv_seq *seq, uint32_t layer)
{
    return seq->layers[layer].disk_end;
}

void *spw_kv_device_tile(const struct spw_kv_seq *seq, uint32_t layer, uint32_t tile)
{
    assert(tile >= seq->layers[layer].begin || (!tile && spw_kv_sink_apart(seq, layer)));
    return tile_at(seq, layer, tile)->device;
}

const void *spw_kv_host_tile(const struct spw_kv_seq *seq, uint32_t layer, uint32_t tile)
{
    return tile_at(seq, layer, tile)->host;
}

uint32_t spw_kv_disk_frame(const struct spw_kv_seq *seq, uint32_t layer, uint32_t tile)
{
    return tile_at(seq, layer, tile)->disk;
}

/* ---- growing ---- */

/* The tail tile is about to be written: it must be this sequence's alone, with no lower copy. */
static int own_tail(struct spw_kv_seq *seq, struct spw_kv_layer *l)
{
    struct spw_kv *kv = seq->kv;
    uint32_t *id = &l->ids[l->end - 1];
    struct spw_kv_tile *t = &kv->tiles[*id];
    if (t->refs == 1) {
        SPW_TRY(spw_kv_finish_tile(kv, t)); /* it may be read by a write to the disk */
        spw_kv_put_lower_copy(kv, t);
        return 0;
    }
    uint32_t copy;
    SPW_TRY(spw_kv_new_tile(kv, NULL, &copy));
    int rc = kv->o.ops->copy(kv->o.device, kv->tiles[copy].device, t->device, kv->o.tile_bytes,
                             SPW_LINK_DEVICE_TO_DEVICE, kv->o.compute);
    spw_kv_put_tile(kv, *id, true);
    *id = copy;
    return rc;
}

int spw_kv_grow(struct spw_kv_seq *seq, uint32_t layer, uint64_t from, uint64_t to)
{
    struct spw_kv *kv = seq->kv;
    struct spw_kv_layer *l = &seq->layers[layer];
    if (from % SPW_TILE_TOKENS && to > from)
        SPW_TRY(own_tail(seq, l));
    uint32_t end = spw_waterline_tiles(to);
    if (end > kv->o.max_tiles)
        return -E2BIG;
    l->n_tokens = to;
    while (l->end < end) {
        const struct spw_kv_tile *before = spw_kv_tile_before(kv, l, l->end);
        SPW_TRY(spw_kv_new_tile(kv, before ? before->device : NULL, &l->ids[l->end]));
        l->end++;
    }
    return 0;
}

/* ---- dropping ---- */

void spw_kv_drop(struct spw_kv_seq *seq, uint32_t layer, uint32_t first)
{
    struct spw_kv_layer *l = &seq->layers[layer];
    if (first > l->end)
        first = l->end;
    if (first <= l->first)
        return;
    if (l->begin > l->first)
        unpin(seq, layer);
    uint32_t from = l->first + (spw_kv_keeps_sink(seq, layer) && !l->first);
    uint32_t pinned_end = l->pinned_end < first ? l->pinned_end : first;
    forget(seq, l, from > pinned_end ? from : pinned_end, first);
    l->first = first;
    if (l->begin < first)
        l->begin = first;
}

uint32_t spw_kv_shared_end(const struct spw_kv_seq *a, const struct spw_kv_seq *b, uint32_t layer)
{
    const struct spw_kv_layer *x = &a->layers[layer], *y = &b->layers[layer];
    uint32_t i = spw_max_u32(x->first, y->first), end = spw_min_u32(x->end, y->end);
    while (i < end && x->ids[i] == y->ids[i])
        i++;
    return i;
}

void spw_kv_drop_copies(struct spw_kv_seq *seq, uint32_t layer, uint32_t first)
{
    const struct spw_kv_layer *l = &seq->layers[layer];
    for (uint32_t i = spw_max_u32(first, l->begin); i < l->end; i++) {
        struct spw_kv_tile *t = &seq->kv->tiles[l->ids[i]];
        if (t->device && t->host && t->host != t->device && t->refs == t->device_refs &&
            !t->writing)
            spw_kv_put_lower_copy(seq->kv, t);
    }
}

/* ---- pinning ---- */

void spw_kv_pin(struct spw_kv_seq *seq, uint64_t n)
{
    seq->pinned_tokens = n;
    for (uint32_t i = 0; i < seq->kv->o.n_layers; i++) {
        struct spw_kv_layer *l = &seq->layers[i];
        unpin(seq, i);
        l->pinned = l->first;
        l->pinned_end = l->end;
    }
}

/* The layer holds again what it pinned, and newer tokens in the last of these tiles maybe. */
static void roll_back(struct spw_kv_seq *seq, uint32_t layer)
{
    struct spw_kv_layer *l = &seq->layers[layer];
    if (l->pinned_end && l->first > l->pinned) {
        assert(l->begin == l->first);
        forget(seq, l, l->first > l->pinned_end ? l->first : l->pinned_end, l->end);
        l->end = l->pinned_end;
        l->first = l->begin = l->pinned;
    }
    l->pinned = l->pinned_end = 0;
}

/* ---- cutting back to a length ---- */

/* The first tile that queries from position n on read, but for a sink that is kept and for what
 * another cache holds. */
static uint64_t first_read(const struct spw_kv_seq *seq, uint32_t layer,
                           const struct spw_residency *residency, uint64_t n)
{
    const struct spw_kv_options *o = &seq->kv->o;
    if (spw_kv_keeps_sink(seq, layer))
        return spw_residual_end(spw_residual_block(n), o->residual_tiles);
    return spw_max_u64(o->first_tile, spw_waterline_visible(&residency[o->kinds[layer]], n));
}

bool spw_kv_can_truncate(const struct spw_kv_seq *seq, const struct spw_residency *residency,
                         uint64_t n)
{
    for (uint32_t i = 0; i < seq->kv->o.n_layers; i++) {
        const struct spw_kv_layer *l = &seq->layers[i];
        uint64_t from = first_read(seq, i, residency, n), end = spw_waterline_tiles(n);
        if ((end <= l->pinned_end ? l->pinned : l->first) > from && from < end)
            return false;
    }
    return true;
}

uint64_t spw_kv_reach(const struct spw_kv_seq *seq, const struct spw_residency *residency,
                      uint64_t n)
{
    if (spw_kv_can_truncate(seq, residency, n))
        return n;
    uint64_t pinned = seq->pinned_tokens;
    return pinned < n && spw_kv_can_truncate(seq, residency, pinned) ? pinned : 0;
}

static void truncate_layer(struct spw_kv_seq *seq, uint32_t layer, uint64_t n)
{
    struct spw_kv_layer *l = &seq->layers[layer];
    assert(!l->load.seq);
    uint32_t end = spw_waterline_tiles(n);
    if (end <= l->pinned_end)
        roll_back(seq, layer);
    else
        unpin(seq, layer);
    l->n_tokens = spw_min_u64(l->n_tokens, n);
    if (end < l->end) {
        if (!end && spw_kv_sink_apart(seq, layer))
            spw_kv_put_tile(seq->kv, l->ids[0], true);
        forget(seq, l, end > l->first ? end : l->first, l->end);
        l->end = end;
    }
    if (l->first > l->end)
        l->first = l->end;
    if (l->begin > l->end)
        l->begin = l->end;
    if (spw_kv_keeps_sink(seq, layer) && l->end <= 1)
        l->first = l->begin = 0; /* the sink is the tail again */
    if (l->disk_end > n / SPW_TILE_TOKENS)
        l->disk_end = (uint32_t)(n / SPW_TILE_TOKENS);
}

void spw_kv_truncate(struct spw_kv_seq *seq, uint64_t n)
{
    n = spw_max_u64(n, (uint64_t)seq->kv->o.first_tile * SPW_TILE_TOKENS);
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

bool spw_kv_is_readable(const struct spw_kv_seq *seq, uint32_t layer, uint32_t begin, uint32_t end)
{
    if (!spw_kv_is_written(seq, layer, begin, end))
        return false;
    spw_kv_poll_writebacks(seq->kv);
    for (uint32_t i = begin; i < end; i++)
        if (tile_at(seq, layer, i)->writing)
            return false;
    return true;
}

uint32_t spw_kv_count_unwritten(const struct spw_kv_seq *seq, uint32_t layer, uint32_t begin,
                                uint32_t end)
{
    uint32_t n = 0;
    for (uint32_t i = begin; i < end; i++)
        n += !spw_kv_has_lower_copy(tile_at(seq, layer, i));
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

/* ---- losses ---- */

void spw_kv_note_loss(struct spw_kv_seq *seq, uint32_t layer, uint32_t tile, int rc)
{
    struct spw_kv_tile *t = tile_at(seq, layer, tile);
    if (t->disk != SPW_DISK_NONE) {
        spw_disk_retire(seq->kv->o.disk, t->disk);
        if (spw_disk_is_attached(seq->kv->o.disk, t->disk))
            t->damaged = t->disk;
        t->disk = SPW_DISK_NONE;
        t->lost = rc;
    }
    if (!seq->loss.rc || tile < seq->loss.tile)
        seq->loss = (struct spw_kv_loss){seq, layer, tile, rc};
}

int spw_kv_lost(const struct spw_kv_seq *seq, uint32_t layer, uint32_t tile)
{
    return tile_at(seq, layer, tile)->lost;
}

bool spw_kv_take_loss(struct spw_kv *kv, struct spw_kv_loss *out)
{
    for (struct spw_kv_seq *s = kv->seqs; s; s = s->next)
        if (s->loss.rc) {
            *out = s->loss;
            s->loss.rc = 0;
            return true;
        }
    return false;
}
