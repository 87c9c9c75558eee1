/* Gives tiles an exact form of their own: see kv_split.h.
 *
 *     device frames   | q | e | q | q | e | q | e |         e: exact; q: only quantized
 *                     '--- stays, smaller ---'| exact frames |
 *
 * An exact frame is in the place of one of the device frames, or after all of them. If another tile
 * that stays is in that place, the two tiles change places. So the split needs no more memory than
 * there is, except for one tile. A tile with both forms is read from its exact frame when it is
 * quantized. */
#include "offload/kv/kv_split.h"

#include "offload/kv/kv_attach.h"
#include "offload/kv/kv_tile.h"

#include <assert.h>

struct work {
    struct spw_kv *kv;
    void *scratch;
    uint32_t *owner; /* [n_device_frames] the tile in each frame, or SPW_KV_NO_TILE */
    bool *placed;    /* [n_device_frames] the frame holds an exact tile at its final place */
};

/* ---- exact tables ---- */

static int open_layer(const struct spw_kv_division *d, uint32_t layer)
{
    const struct spw_kv_table *from = &d->seq->tables[layer];
    struct spw_kv_table *l = spw_kv_table(d->seq, layer, SPW_KV_FORM_EXACT);
    uint32_t n_sinks = spw_kv_n_sinks(d->seq, layer), first = from->first;
    if (!from->end)
        return 0;
    if (n_sinks)
        first = d->first_exact < from->end ? d->first_exact : 0;
    if (first && n_sinks)
        SPW_TRY(spw_kv_add_tile(d->seq, l, SPW_KV_FORM_EXACT));
    spw_kv_start_table(l, first);
    while (l->end < from->end)
        SPW_TRY(spw_kv_add_tile(d->seq, l, SPW_KV_FORM_EXACT));
    l->n_tokens = from->n_tokens;
    return 0;
}

static int open_exact(struct spw_kv *kv, const struct spw_kv_shrink *r)
{
    spw_tier_free(&kv->exact);
    SPW_TRY(spw_tier_init(&kv->exact, r->exact_arena, r->exact_tile_bytes, r->n_exact_frames, 1));
    kv->o.exact_arena = r->exact_arena;
    kv->o.exact_tile_bytes = r->exact_tile_bytes;
    kv->o.n_exact_frames = r->n_exact_frames;
    SPW_TRY(spw_kv_extend(kv, 0));
    for (uint32_t i = 0; i < r->n_divisions; i++)
        for (uint32_t l = 0; l < kv->o.n_layers; l++)
            SPW_TRY(open_layer(&r->divisions[i], l));
    return 0;
}

/* ---- frames ---- */

static uint8_t *arena_end(const struct spw_kv *kv)
{
    return kv->device.arena + kv->o.n_device_frames * kv->o.tile_bytes;
}

static void survey(const struct work *w)
{
    for (uint32_t k = 0; k < w->kv->o.n_device_frames; k++)
        w->owner[k] = SPW_KV_NO_TILE;
    for (uint32_t id = 0; id < w->kv->n_tiles; id++) {
        const struct spw_kv_tile *t = &w->kv->tiles[id];
        const void *frame = t->exact ? NULL : spw_kv_on_device(w->kv, t);
        if (frame)
            w->owner[spw_tier_number(&w->kv->device, frame)] = id;
    }
}

static void move_pointers(struct spw_kv_tile *t, const uint8_t *from, uint8_t *to)
{
    if (t->device == from)
        t->device = to;
    if (t->host == from)
        t->host = to;
}

static int copy(const struct work *w, void *to, const void *from)
{
    const struct spw_kv *kv = w->kv;
    return spw_lane_copy(kv->lane, to, from, kv->o.tile_bytes, SPW_LINK_DEVICE_TO_DEVICE,
                         kv->lane->compute);
}

/* Exchanges tile `id` and the tile in frame `k`. */
static int swap(const struct work *w, uint32_t id, uint8_t *from, uint32_t k, uint8_t *to)
{
    uint32_t other = w->owner[k], left = spw_tier_number(&w->kv->device, from);
    if (w->placed[left] || w->placed[k])
        return -ENOMEM; /* shared, and at its final place already */
    SPW_TRY(copy(w, w->scratch, to));
    SPW_TRY(copy(w, to, from));
    SPW_TRY(copy(w, from, w->scratch));
    w->owner[left] = other;
    w->owner[k] = id;
    move_pointers(&w->kv->tiles[other], to, from);
    move_pointers(&w->kv->tiles[id], from, to);
    return 0;
}

static int place(const struct work *w, uint32_t id, uint8_t *to)
{
    struct spw_kv *kv = w->kv;
    uint8_t *from = spw_kv_on_device(kv, &kv->tiles[id]);
    assert((uint64_t)(to - kv->device.arena) % kv->o.tile_bytes == 0);
    if (!from)
        return -ENOMEM;
    if (to >= arena_end(kv))
        return copy(w, to, from);
    uint32_t k = spw_tier_number(&kv->device, to);
    if (from != to) {
        if (w->owner[k] == SPW_KV_NO_TILE)
            SPW_TRY(copy(w, to, from));
        else
            SPW_TRY(swap(w, id, from, k, to));
    }
    w->placed[k] = true;
    return 0;
}

/* Whether the sink is in a lower tier only. */
static bool sink_is_lower(const struct spw_kv_seq *seq, uint32_t layer)
{
    const struct spw_kv_table *l = &seq->tables[layer];
    return spw_kv_n_sinks(seq, layer) && !l->first && l->end &&
           !spw_kv_on_device(seq->kv, &seq->kv->tiles[l->ids[0]]);
}

/* A sink in a lower tier waits for spw_kv_split_lower. */
static int place_layer(const struct work *w, const struct spw_kv_seq *seq, uint32_t layer)
{
    const struct spw_kv_table *from = &seq->tables[layer];
    const struct spw_kv_table *l = spw_kv_table(seq, layer, SPW_KV_FORM_EXACT);
    for (uint32_t i = 0; i < l->end; i++) {
        if (l->ids[i] == SPW_KV_NO_TILE || (!i && l->first && sink_is_lower(seq, layer)))
            continue;
        SPW_TRY(place(w, from->ids[i], w->kv->tiles[l->ids[i]].device));
    }
    return 0;
}

static int place_all(struct spw_kv *kv, const struct spw_kv_shrink *r)
{
    uint32_t n = kv->o.n_device_frames;
    struct work w = {.kv = kv, .scratch = r->device_from};
    w.owner = spw_alloc_zero(n, sizeof *w.owner);
    w.placed = spw_alloc_zero(n, sizeof *w.placed);
    int rc = w.owner && w.placed ? 0 : -ENOMEM;
    if (!rc)
        survey(&w);
    for (uint32_t i = 0; i < r->n_divisions; i++)
        for (uint32_t l = 0; l < kv->o.n_layers && !rc; l++)
            rc = place_layer(&w, r->divisions[i].seq, l);
    spw_free(w.owner);
    spw_free(w.placed);
    return rc;
}

/* ---- the steps ---- */

/* Removes the sink from a table of quantized tiles. Removes all tiles if the layer has none that is
 * quantized. */
static void begin_after_sink(struct spw_kv_seq *seq, uint32_t layer)
{
    struct spw_kv_table *l = &seq->tables[layer];
    bool quantizes = spw_kv_n_sinks(seq, layer);
    spw_kv_forget(seq, l, l->first, quantizes ? spw_min_u32(l->end, 1) : l->end);
    if (!quantizes || l->end <= 1) {
        spw_kv_start_table(l, 1);
        return;
    }
    l->first = 1;
    l->begin = spw_max_u32(l->begin, 1);
}

int spw_kv_split_begin(struct spw_kv *kv, const struct spw_kv_shrink *r)
{
    SPW_TRY(open_exact(kv, r));
    SPW_TRY(place_all(kv, r));
    for (const struct spw_kv_division *d = r->divisions; d < r->divisions + r->n_divisions; d++)
        for (uint32_t l = 0; l < kv->o.n_layers; l++) {
            spw_kv_cut_table(d->seq, &d->seq->tables[l], (uint64_t)d->end * SPW_TILE_TOKENS);
            if (!sink_is_lower(d->seq, l))
                begin_after_sink(d->seq, l);
        }
    return 0;
}

int spw_kv_split_lower(struct spw_kv *kv, const struct spw_kv_shrink *r)
{
    const struct spw_kv_options *o = &kv->o;
    for (uint32_t i = 0; i < r->n_divisions; i++)
        for (uint32_t l = 0; l < o->n_layers; l++) {
            struct spw_kv_seq *seq = r->divisions[i].seq;
            if (!sink_is_lower(seq, l))
                continue;
            SPW_TRY(spw_kv_export(seq, l, SPW_SNAPSHOT_OLD, 0, 1, r->host_scratch));
            SPW_TRY(spw_lane_copy(kv->lane, spw_kv_exact_tile(seq, l, 0), r->host_scratch,
                                  o->exact_tile_bytes, SPW_LINK_HOST_TO_DEVICE, kv->lane->compute));
            SPW_TRY(spw_lane_stream_sync(kv->lane, kv->lane->compute));
        }
    return 0;
}

void spw_kv_split_end(const struct spw_kv_shrink *r)
{
    for (uint32_t i = 0; i < r->n_divisions; i++)
        for (uint32_t l = 0; l < r->divisions[i].seq->kv->o.n_layers; l++)
            begin_after_sink(r->divisions[i].seq, l);
}
