/* Sequences and their tables: see kv_cache.h. Tiles, frames and the orders between streams are in
 * kv_tile.c, spills in kv_spill.c, loads in kv_load.c, writes to the disk in kv_writeback.c. */
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
    seq->ids = spw_alloc(n_ids * sizeof *seq->ids);
    if (!seq->ids) {
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

/* Frees the retained tiles that were dropped. */
static void release_retained(struct spw_kv_seq *seq, uint32_t layer)
{
    struct spw_kv_table *l = spw_kv_table(seq, layer, SPW_KV_FORM_EXACT);
    spw_kv_forget(seq, l, spw_max_u32(l->retained, spw_kv_n_sinks(seq, layer)),
                  spw_min_u32(l->first, l->retained_end));
    l->retained = l->retained_end = 0;
}

void spw_kv_seq_close(struct spw_kv_seq *seq)
{
    if (!seq)
        return;
    for (uint32_t i = 0; i < 2 * seq->kv->o.n_layers; i++) {
        assert(!seq->tables[i].load.seq);
        spw_kv_forget(seq, &seq->tables[i], 0, seq->tables[i].end);
    }
    if (seq->next)
        seq->next->previous = seq->previous;
    if (seq->previous)
        seq->previous->next = seq->next;
    else
        seq->kv->seqs = seq->next;
    spw_free(seq->ids);
    spw_free(seq);
}

static void fork_table(struct spw_kv *kv, struct spw_kv_table *to, const struct spw_kv_table *from,
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
        if (id == SPW_KV_NO_TILE || (i < from->first && i >= n_sinks)) /* only retained */
            continue;
        to->ids[i] = id;
        kv->tiles[id].refs++;
        kv->tiles[id].device_refs += i >= from->begin || i < from->first;
    }
}

void spw_kv_seq_fork(struct spw_kv_seq *to, const struct spw_kv_seq *from)
{
    uint32_t n_layers = from->kv->o.n_layers;
    for (uint32_t i = 0; i < 2 * n_layers; i++)
        fork_table(from->kv, &to->tables[i], &from->tables[i], spw_kv_n_sinks(from, i % n_layers));
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

/* ---- growing ---- */

/* Prepares the tail tile for a write: it must belong to this sequence alone, and have no lower
 * copy. */
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

int spw_kv_grow(struct spw_kv_seq *seq, uint32_t layer, uint64_t from, uint64_t to)
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

/* ---- dropping ---- */

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

/* ---- retaining ---- */

void spw_kv_retain(struct spw_kv_seq *seq, uint64_t n)
{
    seq->retained_tokens = n;
    for (uint32_t i = 0; i < seq->kv->o.n_layers; i++) {
        struct spw_kv_table *l = spw_kv_table(seq, i, SPW_KV_FORM_EXACT);
        release_retained(seq, i);
        l->retained = l->first;
        l->retained_end = l->end;
    }
}

/* Gives the table its retained tiles back. The last of them may hold newer tokens. */
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

/* ---- cutting back ---- */

bool spw_kv_can_truncate(const struct spw_kv_seq *seq, const struct spw_residency *residency,
                         uint64_t n)
{
    for (uint32_t i = 0; i < seq->kv->o.n_layers; i++) {
        const struct spw_kv_table *l = spw_kv_table(seq, i, SPW_KV_FORM_EXACT);
        const struct spw_residency *r = &residency[seq->kv->o.kinds[i]];
        uint32_t from = r->quantizes ? spw_waterline_end(r, n) : spw_waterline_first_visible(r, n);
        uint32_t end = spw_waterline_tiles(n);
        if ((end <= l->retained_end ? l->retained : l->first) > from && from < end)
            return false;
    }
    return true;
}

uint64_t spw_kv_reach(const struct spw_kv_seq *seq, const struct spw_residency *residency,
                      uint64_t n)
{
    if (spw_kv_can_truncate(seq, residency, n))
        return n;
    uint64_t retained = seq->retained_tokens, border = spw_waterline_border(residency, n);
    if (retained >= n || !spw_kv_can_truncate(seq, residency, retained))
        retained = 0;
    return spw_max_u64(retained, spw_kv_can_truncate(seq, residency, border) ? border : 0);
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

static void cut_exact(struct spw_kv_seq *seq, uint32_t layer, uint64_t n)
{
    struct spw_kv_table *l = spw_kv_table(seq, layer, SPW_KV_FORM_EXACT);
    if (spw_waterline_tiles(n) <= l->retained_end)
        roll_back(seq, l);
    else
        release_retained(seq, layer);
    spw_kv_cut_table(seq, l, n);
    if (l->end <= spw_kv_n_sinks(seq, layer))
        l->first = l->begin = 0; /* the sink is the last tile again */
}

void spw_kv_truncate(struct spw_kv_seq *seq, const struct spw_residency *residency, uint64_t n)
{
    const struct spw_kv_options *o = &seq->kv->o;
    for (uint32_t i = 0; i < o->n_layers; i++) {
        const struct spw_residency *r = &residency[o->kinds[i]];
        assert(r->quantizes == spw_kv_n_sinks(seq, i));
        cut_exact(seq, i, n);
        if (r->quantizes)
            spw_kv_cut_table(seq, &seq->tables[i],
                             (uint64_t)spw_waterline_end(r, n) * SPW_TILE_TOKENS);
    }
}

/* ---- facts ---- */

bool spw_kv_is_written(const struct spw_kv_seq *seq, uint32_t layer, uint32_t begin, uint32_t end)
{
    if (seq->tables[layer].n_tokens < (uint64_t)end * SPW_TILE_TOKENS)
        return false;
    return !spw_kv_count_unwritten(seq, layer, begin, end);
}

bool spw_kv_is_readable(const struct spw_kv_seq *seq, uint32_t layer, uint32_t begin, uint32_t end)
{
    if (!spw_kv_is_written(seq, layer, begin, end))
        return false;
    spw_kv_poll_writebacks(seq->kv);
    for (uint32_t i = begin; i < end; i++)
        if (tiered_tile(seq, layer, i)->writing)
            return false;
    return true;
}

uint32_t spw_kv_count_unwritten(const struct spw_kv_seq *seq, uint32_t layer, uint32_t begin,
                                uint32_t end)
{
    uint32_t n = 0;
    for (uint32_t i = begin; i < end; i++)
        n += spw_kv_is_unwritten(tiered_tile(seq, layer, i));
    return n;
}

uint32_t spw_kv_count_absent(const struct spw_kv_seq *seq, uint32_t layer, uint32_t begin,
                             uint32_t end)
{
    uint32_t n = 0;
    for (uint32_t i = begin; i < end; i++)
        n += !tiered_tile(seq, layer, i)->device;
    return n;
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
