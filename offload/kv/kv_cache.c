/* Sequences and their tables: see kv_cache.h. How a layer grows, is shared and is cut back depends
 * on the way in which it stores the past: tile_store.c. Tiles, frames and the orders between
 * streams are in kv_tile.c, spills in kv_spill.c, loads in kv_load.c, writes to the disk in
 * kv_writeback.c. */
#include "offload/kv/checkpoint.h"
#include "offload/kv/kv_tile.h"

#include <assert.h>

static int open_tables(struct spw_kv *kv)
{
    const struct spw_kv_options *o = &kv->o;
    SPW_TRY(spw_tier_init(&kv->device, o->device_arena, o->tile_bytes, o->n_device_frames,
                          o->slot_tiles));
    SPW_TRY(spw_tier_init(&kv->exact, o->exact_arena, o->exact_tile_bytes, o->n_exact_frames, 1));
    SPW_TRY(
        spw_tier_init(&kv->host, o->host_arena, o->tile_bytes, o->n_host_frames, o->slot_tiles));
    kv->n_tiles = o->n_device_frames + o->n_exact_frames + o->n_host_frames +
                  (o->disk ? o->n_disk_frames : 0);
    kv->tiles = spw_alloc_zero(kv->n_tiles, sizeof *kv->tiles);
    kv->free_soon = spw_alloc_zero(o->n_device_frames, sizeof(void *));
    if (!kv->tiles || !kv->free_soon)
        return -ENOMEM;
    if (o->disk) {
        SPW_TRY(spw_kv_writebacks_open(kv));
        SPW_TRY(spw_kv_reads_open(kv));
    }
    SPW_TRY(spw_states_open(&kv->states, o));
    return spw_lane_event_open(kv->lane, &kv->event);
}

int spw_kv_open(struct spw_kv **out, const struct spw_lane *lane, const struct spw_kv_options *o)
{
    struct spw_kv *kv = spw_alloc_zero(1, sizeof *kv);
    if (!kv)
        return -ENOMEM;
    kv->lane = lane;
    kv->o = *o;
    kv->copies.lane = lane;
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
    spw_lane_event_close(kv->lane, kv->event);
    spw_tier_free(&kv->device);
    spw_tier_free(&kv->exact);
    spw_tier_free(&kv->host);
    spw_states_close(&kv->states);
    spw_free(kv->tiles);
    spw_free(kv->free_soon);
    spw_free(kv);
}

static struct spw_kv_tile *tile_at(const struct spw_kv_seq *seq, uint32_t layer,
                                   enum spw_kv_form form, uint32_t tile)
{
    const struct spw_kv_table *l = spw_kv_table(seq, layer, form);
    assert(tile < l->end && l->ids[tile] != SPW_KV_NO_TILE);
    return &seq->kv->tiles[l->ids[tile]];
}

static struct spw_kv_tile *tiered_tile(const struct spw_kv_seq *seq, uint32_t layer, uint32_t tile)
{
    return tile_at(seq, layer, SPW_KV_FORM_TIERED, tile);
}

/* ---- sequences ---- */

void spw_kv_start_table(struct spw_kv_table *l, uint32_t first)
{
    l->first = l->begin = l->end = first;
    l->disk_end = 0;
    l->n_tokens = (uint64_t)first * SPW_TILE_TOKENS;
}

int spw_kv_seq_open(struct spw_kv_seq **out, struct spw_kv *kv)
{
    uint32_t n_tables = 2 * kv->o.n_layers, most = kv->o.max_tiles;
    size_t n_ids = (size_t)n_tables * most;
    struct spw_kv_seq *seq = spw_alloc_zero(1, sizeof *seq + n_tables * sizeof seq->tables[0]);
    if (!seq)
        return -ENOMEM;
    seq->kv = kv;
    seq->ids = spw_alloc(n_ids * sizeof *seq->ids + 1); /* there may be no layer with tiles */
    if (!seq->ids || spw_states_open_seq(seq)) {
        spw_states_close_seq(seq);
        spw_free(seq->ids);
        spw_free(seq);
        return -ENOMEM;
    }
    for (size_t i = 0; i < n_ids; i++)
        seq->ids[i] = SPW_KV_NO_TILE;
    for (uint32_t i = 0; i < n_tables; i++) {
        seq->tables[i].ids = seq->ids + (size_t)i * most;
        spw_kv_start_table(&seq->tables[i], i < kv->o.n_layers ? spw_kv_start(kv) : 0);
    }
    seq->next = kv->seqs;
    if (seq->next)
        seq->next->previous = seq;
    kv->seqs = seq;
    *out = seq;
    return 0;
}

void spw_kv_forget(struct spw_kv_seq *seq, struct spw_kv_table *l, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++) {
        uint32_t id = l->ids[i];
        l->ids[i] = SPW_KV_NO_TILE;
        if (id != SPW_KV_NO_TILE)
            spw_kv_put_tile(seq->kv, id, i >= l->begin || i < l->first);
    }
}

void spw_kv_cut_table(struct spw_kv_seq *seq, struct spw_kv_table *l, uint64_t n)
{
    uint32_t end = spw_waterline_tiles(n);
    assert(!l->load.seq);
    l->n_tokens = spw_min_u64(l->n_tokens, n);
    if (end < l->end) {
        spw_kv_forget(seq, l, end, l->end);
        l->end = end;
    }
    l->first = spw_min_u32(l->first, l->end);
    l->begin = spw_min_u32(l->begin, l->end);
    l->disk_end = spw_min_u32(l->disk_end, (uint32_t)(n / SPW_TILE_TOKENS));
}

uint32_t spw_kv_first(const struct spw_kv_seq *seq, uint32_t layer)
{
    return seq->tables[layer].first;
}

uint32_t spw_kv_begin(const struct spw_kv_seq *seq, uint32_t layer)
{
    return seq->tables[layer].begin;
}

uint32_t spw_kv_end(const struct spw_kv_seq *seq, uint32_t layer)
{
    return seq->tables[layer].end;
}

uint32_t spw_kv_disk_end(const struct spw_kv_seq *seq, uint32_t layer)
{
    return seq->tables[layer].disk_end;
}

void *spw_kv_device_tile(const struct spw_kv_seq *seq, uint32_t layer, uint32_t tile)
{
    assert(tile >= seq->tables[layer].begin);
    return tiered_tile(seq, layer, tile)->device;
}

const void *spw_kv_host_tile(const struct spw_kv_seq *seq, uint32_t layer, uint32_t tile)
{
    return tiered_tile(seq, layer, tile)->host;
}

uint32_t spw_kv_disk_frame(const struct spw_kv_seq *seq, uint32_t layer, uint32_t tile)
{
    return tiered_tile(seq, layer, tile)->disk;
}

uint32_t spw_kv_exact_first(const struct spw_kv_seq *seq, uint32_t layer)
{
    return spw_kv_table(seq, layer, SPW_KV_FORM_EXACT)->first;
}

uint32_t spw_kv_exact_end(const struct spw_kv_seq *seq, uint32_t layer)
{
    return spw_kv_table(seq, layer, SPW_KV_FORM_EXACT)->end;
}

void *spw_kv_exact_tile(const struct spw_kv_seq *seq, uint32_t layer, uint32_t tile)
{
    const struct spw_kv_tile *t = tile_at(seq, layer, SPW_KV_FORM_EXACT, tile);
    assert(t->device);
    return t->device;
}

/* ---- old tiles ---- */

int spw_kv_quantize(struct spw_kv_seq *seq, uint32_t layer, uint32_t end)
{
    struct spw_kv_table *l = &seq->tables[layer];
    assert(spw_kv_quantizes(seq->kv));
    while (l->end < end) {
        SPW_TRY(spw_kv_add_tile(seq, l, SPW_KV_FORM_TIERED));
        l->n_tokens = (uint64_t)l->end * SPW_TILE_TOKENS;
    }
    return 0;
}

uint32_t spw_kv_shared_end(const struct spw_kv_seq *a, const struct spw_kv_seq *b, uint32_t layer)
{
    const struct spw_kv_table *x = &a->tables[layer], *y = &b->tables[layer];
    uint32_t first = spw_max_u32(x->first, y->first), end = spw_min_u32(x->end, y->end), i = first;
    while (i < end && x->ids[i] == y->ids[i])
        i++;
    return i > first ? i : 0;
}

void spw_kv_drop_copies(struct spw_kv_seq *seq, uint32_t layer, uint32_t first)
{
    const struct spw_kv_table *l = &seq->tables[layer];
    for (uint32_t i = spw_max_u32(first, l->begin); i < l->end; i++)
        spw_kv_drop_host_copy(seq->kv, &seq->kv->tiles[l->ids[i]]);
}

/* ---- what each layer does in its own way: layer_store.h ---- */

static const struct spw_layer_store_ops *store_of(const struct spw_kv_seq *seq, uint32_t layer)
{
    return spw_layer_stores[spw_layer_kinds[seq->kv->o.kinds[layer]].store];
}

void spw_kv_seq_close(struct spw_kv_seq *seq)
{
    if (!seq)
        return;
    for (uint32_t i = 0; i < seq->kv->o.n_layers; i++)
        store_of(seq, i)->release(seq, i);
    if (seq->next)
        seq->next->previous = seq->previous;
    if (seq->previous)
        seq->previous->next = seq->next;
    else
        seq->kv->seqs = seq->next;
    spw_states_close_seq(seq);
    spw_free(seq->ids);
    spw_free(seq);
}

int spw_kv_seq_fork(struct spw_kv_seq *to, const struct spw_kv_seq *from)
{
    int rc = 0;
    for (uint32_t i = 0; i < from->kv->o.n_layers; i++) {
        int its = store_of(from, i)->share(to, from, i);
        rc = rc ? rc : its;
    }
    spw_kv_checkpoints_share(to, from);
    return rc;
}

int spw_kv_grow(struct spw_kv_seq *seq, uint32_t layer, uint64_t from, uint64_t to)
{
    return store_of(seq, layer)->grow(seq, layer, from, to);
}

void spw_kv_retain(struct spw_kv_seq *seq, uint64_t n)
{
    seq->retained_tokens = n;
    for (uint32_t i = 0; i < seq->kv->o.n_layers; i++)
        store_of(seq, i)->retain(seq, i);
}

bool spw_kv_can_truncate(const struct spw_kv_seq *seq, const struct spw_residency *residency,
                         uint64_t n)
{
    for (uint32_t i = 0; i < seq->kv->o.n_layers; i++)
        if (!store_of(seq, i)->can_cut(seq, i, &residency[seq->kv->o.kinds[i]], n))
            return false;
    return true;
}

uint64_t spw_kv_reach(const struct spw_kv_seq *seq, const struct spw_residency *residency,
                      uint64_t n)
{
    if (spw_kv_can_truncate(seq, residency, n))
        return n;
    uint64_t retained = seq->retained_tokens, border = spw_kv_border(residency, n);
    if (retained >= n || !spw_kv_can_truncate(seq, residency, retained))
        retained = 0;
    retained = spw_max_u64(retained, spw_kv_can_truncate(seq, residency, border) ? border : 0);
    for (uint64_t at = n; (at = spw_kv_last_checkpoint(seq, at)) > retained; at--)
        if (spw_kv_can_truncate(seq, residency, at))
            return at;
    return retained;
}

int spw_kv_truncate(struct spw_kv_seq *seq, const struct spw_residency *residency, uint64_t n)
{
    int rc = 0;
    SPW_TRY(spw_kv_checkpoint_fetch_for_cut(seq, n));
    for (uint32_t i = 0; i < seq->kv->o.n_layers; i++) {
        int its = store_of(seq, i)->cut(seq, i, &residency[seq->kv->o.kinds[i]], n);
        rc = rc ? rc : its;
    }
    spw_kv_checkpoints_cut(seq, n);
    return rc;
}

uint64_t spw_kv_border(const struct spw_residency kinds[SPW_LAYER_KINDS], uint64_t n)
{
    uint64_t border = n - n % SPW_TILE_TOKENS;
    for (int k = 0; k < SPW_LAYER_KINDS && border; k++)
        if (!spw_layer_stores[kinds[k].store]->begins_at(&kinds[k], border)) {
            border -= SPW_TILE_TOKENS;
            k = -1; /* all kinds again */
        }
    return border;
}

int spw_kv_export(struct spw_kv_seq *seq, uint32_t layer, enum spw_snapshot_kind kind,
                  uint32_t begin, uint32_t end, void *memory)
{
    return store_of(seq, layer)->export_section(seq, layer, kind, begin, end, memory);
}

int spw_kv_import(struct spw_kv_seq *seq, uint32_t layer, enum spw_snapshot_kind kind,
                  uint32_t first, uint64_t to, const void *memory)
{
    return store_of(seq, layer)->import_section(seq, layer, kind, first, to, memory);
}

/* ---- facts ---- */

bool spw_kv_is_readable(const struct spw_kv_seq *seq, uint32_t layer, uint32_t begin, uint32_t end)
{
    bool written = seq->tables[layer].n_tokens >= (uint64_t)end * SPW_TILE_TOKENS;
    for (uint32_t i = begin; i < end && written; i++)
        written = !spw_kv_is_unwritten(tiered_tile(seq, layer, i));
    if (!written)
        return false;
    spw_kv_poll_writebacks(seq->kv);
    for (uint32_t i = begin; i < end; i++)
        if (tiered_tile(seq, layer, i)->writing)
            return false;
    return true;
}

/* ---- losses ---- */

void spw_kv_note_loss(struct spw_kv_seq *seq, uint32_t layer, uint32_t tile, int rc)
{
    struct spw_kv_tile *t = tiered_tile(seq, layer, tile);
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
    return tiered_tile(seq, layer, tile)->lost;
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
