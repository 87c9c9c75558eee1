/* Exact tiles leave a cache for another one: see kv_split.h.
 *
 *     frames of kv   | q | e | q | q | e | q | e |         e: exact; q: only quantized
 *                    '--- stays, smaller ---'| exact frames |
 *
 * An exact frame is the place of one of kv's own frames, or lies behind them all. If a tile is
 * there that has to stay, it changes places with the one that comes; so nothing needs more room
 * than there is, but for one tile. A tile that is exact and quantized as well is read from its
 * exact frame when it is made smaller. */
#include "offload/kv/kv_split.h"

#include "offload/kv/kv_attach.h"
#include "offload/kv/kv_tile.h"

#include <assert.h>

struct work {
    struct spw_kv *kv;
    void *scratch;
    uint32_t *owner; /* [n_device_frames] the tile in each, or SPW_KV_NO_TILE */
    bool *placed;    /* [n_device_frames] the frame holds a exact tile, in its place */
};

/* ---- the second cache's tables ---- */

static int new_tiles(struct spw_kv_seq *exact, struct spw_kv_layer *l, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++) {
        SPW_TRY(spw_kv_new_tile(exact->kv, NULL, &l->ids[i]));
        l->end = i + 1;
    }
    return 0;
}

static int open_layer(const struct spw_kv_split_sequence *s, uint32_t layer)
{
    const struct spw_kv_layer *from = &s->from->layers[layer];
    struct spw_kv_layer *l = &s->exact->layers[layer];
    bool all = !spw_kv_quantizes(s->from, layer); /* tiles move to the exact cache */
    uint32_t first = all ? from->first : s->first_exact < from->end ? s->first_exact : 0;
    if (!from->end)
        return 0;
    if (first && !all)
        SPW_TRY(new_tiles(s->exact, l, 0, 1)); /* the sink */
    l->first = l->begin = l->end = first;
    SPW_TRY(new_tiles(s->exact, l, first, from->end));
    l->n_tokens = s->n_tokens;
    return 0;
}

/* ---- frames ---- */

static uint8_t *arena_end(const struct spw_kv *kv)
{
    return kv->device.arena + kv->o.n_device_frames * kv->o.tile_bytes;
}

/* Where the tile's bytes are on the device, or NULL. */
static uint8_t *on_device(const struct spw_kv *kv, const struct spw_kv_tile *t)
{
    bool stayed = t->host && spw_tier_has(&kv->device, t->host); /* it could not be written */
    return t->device ? t->device : stayed ? t->host : NULL;
}

static void survey(const struct work *w)
{
    for (uint32_t k = 0; k < w->kv->o.n_device_frames; k++)
        w->owner[k] = SPW_KV_NO_TILE;
    for (uint32_t id = 0; id < w->kv->n_tiles; id++) {
        const uint8_t *frame = on_device(w->kv, &w->kv->tiles[id]);
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
    const struct spw_kv_options *o = &w->kv->o;
    return o->ops->copy(o->device, to, from, o->tile_bytes, SPW_LINK_DEVICE_TO_DEVICE, o->compute);
}

/* Tile `id` and the one in frame `k` change places. */
static int swap(const struct work *w, uint32_t id, uint8_t *from, uint32_t k, uint8_t *to)
{
    uint32_t other = w->owner[k], left = spw_tier_number(&w->kv->device, from);
    if (w->placed[left] || w->placed[k])
        return -ENOMEM; /* shared, and where it is needed already */
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
    uint8_t *from = on_device(kv, &kv->tiles[id]);
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

/* A sink that is in a lower tier waits for spw_kv_split_lower. */
static int place_layer(const struct work *w, const struct spw_kv_split_sequence *s, uint32_t layer)
{
    const struct spw_kv_layer *from = &s->from->layers[layer], *l = &s->exact->layers[layer];
    if (spw_kv_sink_apart(s->exact, layer) && on_device(w->kv, &w->kv->tiles[from->ids[0]]))
        SPW_TRY(place(w, from->ids[0], s->exact->kv->tiles[l->ids[0]].device));
    for (uint32_t i = l->first; i < l->end; i++)
        SPW_TRY(place(w, from->ids[i], s->exact->kv->tiles[l->ids[i]].device));
    return 0;
}

/* ---- the first cache's tables ---- */

static bool sink_is_lower(const struct spw_kv_split_sequence *s, uint32_t layer)
{
    const struct spw_kv_layer *l = &s->from->layers[layer];
    return spw_kv_quantizes(s->from, layer) && !l->first && l->end &&
           !on_device(s->from->kv, &s->from->kv->tiles[l->ids[0]]);
}

/* Like a layer of a cache that begins at tile 1, once nothing else is left in it. */
static void begin_behind_sink(struct spw_kv_seq *seq, uint32_t layer)
{
    struct spw_kv_layer *l = &seq->layers[layer];
    spw_kv_drop(seq, layer, spw_kv_quantizes(seq, layer) ? 1 : l->end);
    if (l->end > 1 && spw_kv_quantizes(seq, layer))
        return;
    l->first = l->begin = l->end = 1;
    l->disk_end = 0;
    l->n_tokens = SPW_TILE_TOKENS;
}

static void cut(const struct spw_kv_split_sequence *s)
{
    spw_kv_truncate(s->from, (uint64_t)s->end * SPW_TILE_TOKENS);
    for (uint32_t l = 0; l < s->from->kv->o.n_layers; l++)
        if (!sink_is_lower(s, l))
            begin_behind_sink(s->from, l);
}

/* ---- all of it ---- */

static int open_work(struct work *w, const struct spw_kv_split *s)
{
    uint32_t n = s->kv->o.n_device_frames;
    *w = (struct work){.kv = s->kv, .scratch = s->device_scratch};
    w->owner = spw_alloc_zero(n, sizeof *w->owner);
    w->placed = spw_alloc_zero(n, sizeof *w->placed);
    return w->owner && w->placed ? 0 : -ENOMEM;
}

static int place_all(const struct work *w, const struct spw_kv_split *s)
{
    uint32_t n_layers = s->kv->o.n_layers;
    for (uint32_t i = 0; i < s->n; i++)
        for (uint32_t l = 0; l < n_layers; l++)
            SPW_TRY(open_layer(&s->sequences[i], l));
    survey(w);
    for (uint32_t i = 0; i < s->n; i++)
        for (uint32_t l = 0; l < n_layers; l++)
            SPW_TRY(place_layer(w, &s->sequences[i], l));
    return 0;
}

int spw_kv_split_begin(const struct spw_kv_split *s)
{
    struct work w;
    SPW_TRY(spw_kv_finish_queued(s->kv));
    int rc = open_work(&w, s);
    if (!rc)
        rc = place_all(&w, s);
    spw_free(w.owner);
    spw_free(w.placed);
    for (uint32_t i = 0; i < s->n && !rc; i++)
        cut(&s->sequences[i]);
    return rc;
}

int spw_kv_split_lower(const struct spw_kv_split *s)
{
    const struct spw_kv_options *o = &s->kv->o;
    for (uint32_t i = 0; i < s->n; i++)
        for (uint32_t l = 0; l < o->n_layers; l++) {
            const struct spw_kv_split_sequence *q = &s->sequences[i];
            if (!sink_is_lower(q, l))
                continue;
            void *to = q->exact->kv->tiles[q->exact->layers[l].ids[0]].device;
            SPW_TRY(spw_kv_export(q->from, l, 0, 1, s->host_scratch));
            SPW_TRY(o->ops->copy(o->device, to, s->host_scratch, q->exact->kv->o.tile_bytes,
                                 SPW_LINK_HOST_TO_DEVICE, o->compute));
            SPW_TRY(o->ops->stream_sync(o->device, o->compute));
        }
    return 0;
}

void spw_kv_split_end(const struct spw_kv_split *s)
{
    for (uint32_t i = 0; i < s->n; i++)
        for (uint32_t l = 0; l < s->kv->o.n_layers; l++)
            begin_behind_sink(s->sequences[i].from, l);
    s->kv->o.first_tile = 1;
}
