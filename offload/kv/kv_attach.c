/* Attaches, imports and exports tiles: see kv_attach.h. kv_tile.h lists the numbered orders. */
#include "offload/kv/kv_attach.h"

#include "offload/kv/kv_tile.h"

#include <assert.h>
#include <string.h>

/* ---- tiles from files ---- */

/* Which tiles a section has. */
static enum spw_kv_form form_of(enum spw_snapshot_kind kind)
{
    return kind == SPW_SNAPSHOT_OLD ? SPW_KV_FORM_TIERED : SPW_KV_FORM_EXACT;
}

/* Makes `first` the next tile of the table. The table holds no tile, or only an attention sink. */
static void begin_at(struct spw_kv_table *l, uint32_t first, uint32_t n_sinks)
{
    uint32_t disk_end = spw_min_u32(l->disk_end, first);
    assert(l->end >= n_sinks || first < n_sinks); /* the sink comes first */
    if (first != l->end && (l->first == l->end || l->end == n_sinks)) {
        spw_kv_start_table(l, first);
        l->disk_end = disk_end;
    }
    assert(l->end == first && l->n_tokens == (uint64_t)first * SPW_TILE_TOKENS);
}

/* Adds a tile that is like one that was spilled to the disk. */
static void add_attached(struct spw_kv *kv, struct spw_kv_table *l, uint32_t frame)
{
    uint32_t id = kv->free_tile;
    assert(id != SPW_KV_NO_TILE && spw_disk_is_attached(kv->o.disk, frame));
    kv->free_tile = kv->tiles[id].refs;
    kv->tiles[id] = (struct spw_kv_tile){.disk = frame, .refs = 1};
    kv->n_attached++;
    l->ids[l->end++] = id;
}

int spw_kv_attach(struct spw_kv_seq *seq, uint32_t layer, uint32_t first, uint32_t frame,
                  uint32_t n)
{
    struct spw_kv *kv = seq->kv;
    struct spw_kv_table *l = &seq->tables[layer];
    if ((uint64_t)first + n > kv->o.max_tiles)
        return -E2BIG;
    SPW_TRY(spw_kv_extend(kv, n));
    begin_at(l, first, 0);
    assert(l->begin == l->end && (l->first == l->end || l->disk_end == l->end));
    for (uint32_t i = 0; i < n; i++)
        add_attached(kv, l, frame + i);
    l->begin = l->disk_end = l->end;
    l->n_tokens = (uint64_t)l->end * SPW_TILE_TOKENS;
    return 0;
}

static int wait_for(struct spw_kv *kv, spw_stream s)
{
    SPW_TRY(spw_lane_event_record(kv->lane, kv->event, s));
    return spw_lane_event_sync(kv->lane, kv->event);
}

/* Copies on `compute`, which may write new frames and reads them next: so no order is needed. */
static int copy_in(struct spw_kv *kv, const struct spw_kv_table *l, uint32_t first,
                   const uint8_t *memory, uint64_t tile_bytes)
{
    int rc = 0;
    for (uint32_t i = first; i < l->end && !rc; i++)
        rc = spw_copies_add(&kv->copies, kv->tiles[l->ids[i]].device,
                            memory + (i - first) * tile_bytes, tile_bytes, SPW_LINK_HOST_TO_DEVICE,
                            kv->lane->compute);
    int last = spw_kv_flush_copies(kv);
    int waited =
        wait_for(kv, kv->lane->compute); /* also for copies that a failure has left in flight */
    return rc ? rc : last ? last : waited;
}

int spw_tile_store_import(struct spw_kv_seq *seq, uint32_t layer, enum spw_snapshot_kind kind,
                          uint32_t first, uint64_t to, const void *memory)
{
    const enum spw_kv_form form = form_of(kind);
    struct spw_kv *kv = seq->kv;
    struct spw_kv_table *l = spw_kv_table(seq, layer, form), before = *l;
    uint32_t end = spw_waterline_tiles(to);
    if (end > kv->o.max_tiles)
        return -E2BIG;
    begin_at(l, first, form == SPW_KV_FORM_EXACT ? spw_kv_n_sinks(seq, layer) : 0);
    int rc = 0;
    while (!rc && l->end < end)
        rc = spw_kv_add_tile(seq, l, form);
    if (!rc)
        rc = copy_in(kv, l, first, memory, spw_kv_tile_bytes(kv, form));
    if (rc) {
        for (; l->end > first; l->ids[l->end] = SPW_KV_NO_TILE)
            spw_kv_put_tile(kv, l->ids[--l->end], true);
        *l = before;
        return rc;
    }
    l->n_tokens = to;
    return 0;
}

/* ---- tiles to memory ---- */

/* An export: tiles on their way to memory. Its reads are like those of a load with other
 * destinations. */
struct outflow {
    struct spw_kv_load reads;
    const uint32_t *ids; /* of the table */
    uint64_t tile_bytes;
    uint32_t begin;
    uint8_t *memory;
};

static struct spw_kv_tile *tile_of(const struct outflow *o, uint32_t i)
{
    return &o->reads.seq->kv->tiles[o->ids[i]];
}

static uint8_t *place(const struct outflow *o, uint32_t i)
{
    return o->memory + (i - o->begin) * o->tile_bytes;
}

/* Reads tiles from `from` on that are adjacent on the disk, as one read. Returns their end. */
static uint32_t read_run(struct outflow *o, uint32_t from, uint32_t end)
{
    struct spw_kv *kv = o->reads.seq->kv;
    uint32_t i = from;
    while (!spw_kv_can_read(kv))
        spw_kv_finish_read(kv);
    struct spw_kv_read *d = spw_kv_next_read(kv, &o->reads, from);
    while (i < end && !spw_kv_on_device(kv, tile_of(o, i)) &&
           spw_tile_run_extend(&d->run, tile_of(o, i)->disk, place(o, i), kv->o.tile_bytes,
                               UINT32_MAX))
        i++;
    kv->queued++;
    o->reads.n_reads++;
    spw_tile_run_prepare(&d->run, kv->o.disk, false);
    spw_disk_start(&d->run.job);
    return i;
}

/* Queues all copies and reads. */
static int start(struct outflow *o, uint32_t end)
{
    struct spw_kv_load *r = &o->reads;
    struct spw_kv *kv = r->seq->kv;
    for (uint32_t i = o->begin; i < end && !r->rc;) {
        const struct spw_kv_tile *t = tile_of(o, i);
        const void *device = spw_kv_on_device(kv, t);
        if (device)
            SPW_TRY(spw_copies_add(&kv->copies, place(o, i), device, o->tile_bytes,
                                   SPW_LINK_DEVICE_TO_HOST, kv->lane->down));
        if (device || t->host) {
            i++;
        } else if (t->disk != SPW_DISK_NONE) {
            i = read_run(o, i, end);
        } else {
            assert(t->lost);
            spw_kv_note_loss(r->seq, r->layer, i, t->lost);
            return -EBADMSG;
        }
    }
    return spw_kv_flush_copies(kv);
}

/* Copies tiles that are on the host. Call it after a wait for `down`, which may have written
 * them. */
static void copy_from_host(const struct outflow *o, uint32_t end)
{
    const struct spw_kv *kv = o->reads.seq->kv;
    for (uint32_t i = o->begin; i < end; i++) {
        const struct spw_kv_tile *t = tile_of(o, i);
        if (t->host && !spw_kv_on_device(kv, t))
            memcpy(place(o, i), t->host, o->tile_bytes);
    }
}

int spw_tile_store_export(struct spw_kv_seq *seq, uint32_t layer, enum spw_snapshot_kind kind,
                          uint32_t begin, uint32_t end, void *memory)
{
    const enum spw_kv_form form = form_of(kind);
    struct spw_kv *kv = seq->kv;
    const struct spw_kv_table *l = spw_kv_table(seq, layer, form);
    struct outflow o = {.reads = {.seq = seq, .layer = layer},
                        .ids = l->ids,
                        .tile_bytes = spw_kv_tile_bytes(kv, form),
                        .begin = begin,
                        .memory = memory};
    assert(end <= l->end);
    for (uint32_t i = begin; i < end; i++) {
        assert(l->ids[i] != SPW_KV_NO_TILE);
        SPW_TRY(spw_kv_finish_tile(kv, tile_of(&o, i)));
    }
    SPW_TRY(spw_kv_order(kv, kv->lane->compute, kv->lane->down)); /* 1 */
    int rc = start(&o, end);
    int flushed = spw_kv_flush_copies(kv); /* copies that a failure has left */
    int waited = wait_for(kv, kv->lane->down);
    while (o.reads.n_reads)
        spw_kv_finish_read(kv);
    rc = rc ? rc : flushed ? flushed : waited ? waited : o.reads.rc;
    if (!rc)
        copy_from_host(&o, end);
    return rc;
}
