/* The store of layers with tiles: see layer_store.h. The tables of a sequence are in kv_cache.c,
 * moves between the tiers in kv_spill.c and kv_load.c, export and import in kv_attach.c.
 *
 * The borders of one table of a layer (struct spw_kv_table), in tiles:
 *
 *   0           first        disk_end          begin            end
 *   | dropped   | on disk     | on the host     | on the device  | not computed yet
 *         | retained
 *         retained    retained_end (at `first` or after it)
 *
 * A window drops tiles: `first` rises. The tiles of [retained, first) are dropped but keep their
 * frames, so that the layer can be cut back to where it was at the latest retain. A layer that
 * quantizes old tiles has two tables, one for each form: spw_kv_table. */
#include "offload/kv/kv_tile.h"
#include "offload/kv/state_store.h"

#include <assert.h>

const struct spw_layer_store_ops *const spw_layer_stores[SPW_LAYER_STORES] = {
    [SPW_STORE_TILES] = &spw_tile_store,
    [SPW_STORE_STATE] = &spw_state_store,
    [SPW_STORE_NOTHING] = &spw_nothing_store,
};

/* ---- pure ---- */

/* The most tiles that a pass drops and that a cut back to its beginning needs: all tiles that the
 * layer has on the device when the pass begins, except a sink, which is never dropped. all: of the
 * sequence. */
static uint32_t retained_of(uint32_t tiles, uint32_t sink, uint32_t all)
{
    return spw_min_u32(tiles - sink, all - tiles);
}

static struct spw_store_need need(const struct spw_residency *r, uint64_t n_tokens)
{
    uint32_t all = spw_waterline_tiles(n_tokens);
    if (r->window.tokens) {
        uint32_t tiles = spw_min_u32(spw_waterline_window_tiles(r->window), all);
        return (struct spw_store_need){.moving = r->fixed ? 0 : tiles,
                                       .fixed = r->fixed ? tiles : 0,
                                       .retained = retained_of(tiles, 0, all)};
    }
    struct spw_store_need x = {.moving =
                                   spw_waterline_end(r, n_tokens) - spw_waterline_first_tiered(r)};
    if (r->quantizes) {
        x.fixed = spw_min_u32(spw_waterline_exact_tiles(r->residual_tiles), all);
        x.retained = retained_of(x.fixed, 1, all);
    }
    return x;
}

static bool begins_at(const struct spw_residency *r, uint64_t n_tokens)
{
    return !r->quantizes && (!r->window.tokens || spw_waterline_first_visible(r, n_tokens) ==
                                                      n_tokens / SPW_TILE_TOKENS);
}

static struct spw_snapshot_tiles snapshot(const struct spw_residency *r,
                                          enum spw_snapshot_kind kind, uint64_t from, uint64_t to)
{
    uint32_t whole = (uint32_t)(to / SPW_TILE_TOKENS);
    const struct spw_snapshot_tiles none = {0, 0};
    switch (kind) {
    case SPW_SNAPSHOT_OLD:
        if (r->window.tokens)
            return none;
        return (struct spw_snapshot_tiles){spw_waterline_end(r, from),
                                           spw_waterline_end(r, (uint64_t)whole * SPW_TILE_TOKENS)};
    case SPW_SNAPSHOT_SINK:
        return r->quantizes && whole ? (struct spw_snapshot_tiles){0, 1} : none;
    case SPW_SNAPSHOT_RECENT:
        return r->quantizes ? (struct spw_snapshot_tiles){spw_waterline_first_exact(r, to), whole}
                            : none;
    case SPW_SNAPSHOT_WINDOW:
        return r->window.tokens
                   ? (struct spw_snapshot_tiles){spw_waterline_first_visible(r, to), whole}
                   : none;
    case SPW_SNAPSHOT_TAIL:
        return (struct spw_snapshot_tiles){whole, spw_waterline_tiles(to)};
    case SPW_SNAPSHOT_LOGITS:
        break;
    }
    return none;
}

/* ---- new tokens ---- */

/* Prepares the tail tile for a write. Afterwards it belongs to this sequence alone and has no lower
 * copy: a tile that is shared is copied first. */
static int own_tail(struct spw_kv_seq *seq, struct spw_kv_table *l)
{
    struct spw_kv *kv = seq->kv;
    uint32_t *id = &l->ids[l->end - 1];
    struct spw_kv_tile *t = &kv->tiles[*id];
    if (t->refs == 1) {
        SPW_TRY(spw_kv_finish_tile(kv, t)); /* a write to the disk may be reading it */
        spw_kv_put_lower_copy(kv, t);
        return 0;
    }
    uint32_t copy;
    SPW_TRY(spw_kv_new_tile(kv, SPW_KV_FORM_EXACT, NULL, &copy));
    int rc = spw_lane_copy(kv->lane, kv->tiles[copy].device, t->device,
                           spw_kv_tile_bytes(kv, SPW_KV_FORM_EXACT), SPW_LINK_DEVICE_TO_DEVICE,
                           kv->lane->compute);
    spw_kv_put_tile(kv, *id, true);
    *id = copy;
    return rc;
}

static int grow(struct spw_kv_seq *seq, uint32_t layer, uint64_t from, uint64_t to)
{
    struct spw_kv_table *l = spw_kv_table(seq, layer, SPW_KV_FORM_EXACT);
    if (from % SPW_TILE_TOKENS && to > from)
        SPW_TRY(own_tail(seq, l));
    uint32_t end = spw_waterline_tiles(to);
    if (end > seq->kv->o.max_tiles)
        return -E2BIG;
    l->n_tokens = to;
    while (l->end < end)
        SPW_TRY(spw_kv_add_tile(seq, l, SPW_KV_FORM_EXACT));
    return 0;
}

/* ---- dropped tiles ---- */

/* Frees the retained tiles that were dropped. */
static void release_retained(struct spw_kv_seq *seq, uint32_t layer)
{
    struct spw_kv_table *l = spw_kv_table(seq, layer, SPW_KV_FORM_EXACT);
    spw_kv_forget(seq, l, spw_max_u32(l->retained, spw_kv_n_sinks(seq, layer)),
                  spw_min_u32(l->first, l->retained_end));
    l->retained = l->retained_end = 0;
}

void spw_kv_drop(struct spw_kv_seq *seq, uint32_t layer, uint32_t first)
{
    struct spw_kv_table *l = spw_kv_table(seq, layer, SPW_KV_FORM_EXACT);
    if (first > l->end)
        first = l->end;
    if (first <= l->first)
        return;
    if (l->begin > l->first)
        release_retained(seq, layer);
    uint32_t from = spw_max_u32(l->first, spw_kv_n_sinks(seq, layer));
    spw_kv_forget(seq, l, spw_max_u32(from, spw_min_u32(l->retained_end, first)), first);
    l->first = first;
    if (l->begin < first)
        l->begin = first;
}

static void release(struct spw_kv_seq *seq, uint32_t layer)
{
    for (uint32_t i = layer; i < 2 * seq->kv->o.n_layers; i += seq->kv->o.n_layers) {
        assert(!seq->tables[i].load.seq);
        spw_kv_forget(seq, &seq->tables[i], 0, seq->tables[i].end);
    }
}

/* ---- retain and cut ---- */

static void retain(struct spw_kv_seq *seq, uint32_t layer)
{
    struct spw_kv_table *l = spw_kv_table(seq, layer, SPW_KV_FORM_EXACT);
    release_retained(seq, layer);
    l->retained = l->first;
    l->retained_end = l->end;
}

static bool can_cut(const struct spw_kv_seq *seq, uint32_t layer, const struct spw_residency *r,
                    uint64_t n_tokens)
{
    const struct spw_kv_table *l = spw_kv_table(seq, layer, SPW_KV_FORM_EXACT);
    uint32_t from = spw_waterline_first_read_exact(r, n_tokens);
    uint32_t end = spw_waterline_tiles(n_tokens);
    return from >= end || (end <= l->retained_end ? l->retained : l->first) <= from;
}

/* Puts the retained tiles back into the table: [retained, retained_end). The last of them may
 * contain tokens that came later; the cut that follows removes these. */
static void roll_back(struct spw_kv_seq *seq, struct spw_kv_table *l)
{
    if (l->retained_end && l->first > l->retained) {
        assert(l->begin == l->first);
        spw_kv_forget(seq, l, spw_max_u32(l->first, l->retained_end), l->end);
        l->end = l->retained_end;
        l->first = l->begin = l->retained;
    }
    l->retained = l->retained_end = 0;
}

static int cut(struct spw_kv_seq *seq, uint32_t layer, const struct spw_residency *r,
               uint64_t n_tokens)
{
    struct spw_kv_table *l = spw_kv_table(seq, layer, SPW_KV_FORM_EXACT);
    assert(r->quantizes == spw_kv_n_sinks(seq, layer));
    if (l->first <= spw_waterline_first_read_exact(r, n_tokens))
        l->retained_end = spw_min_u32(l->retained_end, spw_waterline_tiles(n_tokens));
    else if (spw_waterline_tiles(n_tokens) <= l->retained_end)
        roll_back(seq, l);
    else
        release_retained(seq, layer);
    spw_kv_cut_table(seq, l, n_tokens);
    if (l->end <= spw_kv_n_sinks(seq, layer))
        l->first = l->begin = 0; /* the sink is the last tile again */
    if (r->quantizes)
        spw_kv_cut_table(seq, &seq->tables[layer],
                         (uint64_t)spw_waterline_end(r, n_tokens) * SPW_TILE_TOKENS);
    return 0;
}

/* ---- sharing ---- */

static void share_table(struct spw_kv *kv, struct spw_kv_table *to, const struct spw_kv_table *from,
                        uint32_t n_sinks)
{
    assert(to->end == to->first);
    to->first = from->first;
    to->begin = from->begin;
    to->end = from->end;
    to->disk_end = from->disk_end;
    to->n_tokens = from->n_tokens;
    for (uint32_t i = 0; i < from->end; i++) {
        uint32_t id = from->ids[i];
        if (id == SPW_KV_NO_TILE || (i < from->first && i >= n_sinks)) /* dropped and retained */
            continue;
        to->ids[i] = id;
        kv->tiles[id].refs++;
        kv->tiles[id].device_refs += i >= from->begin || i < from->first;
    }
}

static int share(struct spw_kv_seq *to, const struct spw_kv_seq *from, uint32_t layer)
{
    for (uint32_t i = layer; i < 2 * from->kv->o.n_layers; i += from->kv->o.n_layers)
        share_table(from->kv, &to->tables[i], &from->tables[i], spw_kv_n_sinks(from, layer));
    return 0;
}

const struct spw_layer_store_ops spw_tile_store = {
    .need = need,
    .begins_at = begins_at,
    .snapshot = snapshot,
    .grow = grow,
    .share = share,
    .retain = retain,
    .can_cut = can_cut,
    .cut = cut,
    .release = release,
    .export_section = spw_tile_store_export,
    .import_section = spw_tile_store_import,
};
