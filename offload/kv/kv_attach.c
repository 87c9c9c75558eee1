/* Attaching, importing and exporting tiles: see kv_attach.h, and kv_tile.c for the orders that are
 * numbered here. */
#include "offload/kv/kv_attach.h"

#include "offload/kv/kv_tile.h"

#include <assert.h>
#include <string.h>

/* ---- in ---- */

/* Whether the next tile may be any: there is none, or only a sink that is kept. */
static bool is_open(const struct spw_kv_seq *seq, uint32_t layer)
{
    const struct spw_kv_layer *l = &seq->layers[layer];
    return l->first == l->end || (spw_kv_keeps_sink(seq, layer) && l->end == 1);
}

/* The layer is to go on at tile `first`. */
static void begin_at(struct spw_kv_seq *seq, uint32_t layer, uint32_t first)
{
    struct spw_kv_layer *l = &seq->layers[layer];
    assert(first >= seq->kv->o.first_tile);
    assert(!first || l->end || !spw_kv_keeps_sink(seq, layer)); /* the sink comes first */
    if (first != l->end && is_open(seq, layer)) {
        l->first = l->begin = l->end = first;
        l->disk_end = l->disk_end < first ? l->disk_end : first;
        l->n_tokens = (uint64_t)first * SPW_TILE_TOKENS;
    }
    assert(l->end == first && l->n_tokens == (uint64_t)first * SPW_TILE_TOKENS);
}

/* As a tile that was written to the disk and is on the device no longer. */
static void add_attached(struct spw_kv *kv, struct spw_kv_layer *l, uint32_t frame)
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
    struct spw_kv_layer *l = &seq->layers[layer];
    if ((uint64_t)first + n > kv->o.max_tiles)
        return -E2BIG;
    SPW_TRY(spw_kv_extend(kv, n));
    begin_at(seq, layer, first);
    assert(l->begin == l->end && (l->first == l->end || l->disk_end == l->end));
    for (uint32_t i = 0; i < n; i++)
        add_attached(kv, l, frame + i);
    l->begin = l->disk_end = l->end;
    l->n_tokens = (uint64_t)l->end * SPW_TILE_TOKENS;
    return 0;
}

static int wait_for(struct spw_kv *kv, spw_stream s)
{
    SPW_TRY(kv->o.ops->event_record(kv->o.device, kv->event, s));
    return kv->o.ops->event_sync(kv->o.device, kv->event);
}

/* On `compute`, which may write frames that it is given and reads them next: no order is needed. */
static int copy_in(struct spw_kv *kv, const struct spw_kv_layer *l, uint32_t first,
                   const uint8_t *memory)
{
    int rc = 0;
    for (uint32_t i = first; i < l->end && !rc; i++)
        rc = spw_kv_gather(kv, kv->tiles[l->ids[i]].device, memory + (i - first) * kv->o.tile_bytes,
                           SPW_LINK_HOST_TO_DEVICE, kv->o.compute);
    int last = spw_kv_flush_copies(kv);
    int waited = wait_for(kv, kv->o.compute); /* also for what a failure left under way */
    return rc ? rc : last ? last : waited;
}

int spw_kv_import(struct spw_kv_seq *seq, uint32_t layer, uint32_t first, uint64_t to,
                  const void *memory)
{
    struct spw_kv *kv = seq->kv;
    struct spw_kv_layer *l = &seq->layers[layer], before = *l;
    uint32_t end = spw_waterline_tiles(to);
    if (end > kv->o.max_tiles)
        return -E2BIG;
    begin_at(seq, layer, first);
    int rc = 0;
    while (!rc && l->end < end) {
        const struct spw_kv_tile *last = spw_kv_tile_before(kv, l, l->end);
        rc = spw_kv_new_tile(kv, last ? last->device : NULL, &l->ids[l->end]);
        l->end += !rc;
    }
    if (!rc)
        rc = copy_in(kv, l, first, memory);
    if (rc) {
        while (l->end > first)
            spw_kv_put_tile(kv, l->ids[--l->end], true);
        *l = before;
        return rc;
    }
    l->n_tokens = to;
    return 0;
}

/* ---- out ---- */

/* Tiles on their way to memory; what is read is like a load that comes to other places. */
struct outflow {
    struct spw_kv_load reads;
    uint32_t begin;
    uint8_t *memory;
};

static struct spw_kv_tile *tile_of(const struct outflow *o, uint32_t i)
{
    const struct spw_kv_seq *seq = o->reads.seq;
    return &seq->kv->tiles[seq->layers[o->reads.layer].ids[i]];
}

static uint8_t *place(const struct outflow *o, uint32_t i)
{
    return o->memory + (i - o->begin) * o->reads.seq->kv->o.tile_bytes;
}

/* The device's memory that has the tile's bytes, or NULL. */
static const void *on_device(const struct spw_kv *kv, const struct spw_kv_tile *t)
{
    if (t->device)
        return t->device;
    bool stayed = t->host && spw_tier_has(&kv->device, t->host); /* it could not be written */
    return stayed ? t->host : NULL;
}

/* Tiles from `from` on that are adjacent on the disk are one read. Returns where they end. */
static uint32_t read_run(struct outflow *o, uint32_t from, uint32_t end)
{
    struct spw_kv *kv = o->reads.seq->kv;
    uint32_t i = from;
    while (!spw_kv_can_read(kv))
        spw_kv_finish_read(kv);
    struct spw_kv_read *d = spw_kv_next_read(kv, &o->reads, from);
    while (i < end && !on_device(kv, tile_of(o, i)) &&
           spw_run_extend(&d->run, tile_of(o, i)->disk, place(o, i), kv->o.tile_bytes, UINT32_MAX))
        i++;
    kv->asked++;
    o->reads.n_reads++;
    spw_run_prepare(&d->run, kv->o.disk, false);
    spw_disk_start(&d->run.job);
    return i;
}

/* Asks for everything that has to be moved. */
static int start(struct outflow *o, uint32_t end)
{
    struct spw_kv_load *r = &o->reads;
    struct spw_kv *kv = r->seq->kv;
    for (uint32_t i = o->begin; i < end && !r->rc;) {
        const struct spw_kv_tile *t = tile_of(o, i);
        const void *device = on_device(kv, t);
        if (device)
            SPW_TRY(spw_kv_gather(kv, place(o, i), device, SPW_LINK_DEVICE_TO_HOST, kv->o.down));
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

/* What lies on the host, once `down` has been waited for, which may have written it. */
static void copy_from_host(const struct outflow *o, uint32_t end)
{
    const struct spw_kv *kv = o->reads.seq->kv;
    for (uint32_t i = o->begin; i < end; i++) {
        const struct spw_kv_tile *t = tile_of(o, i);
        if (t->host && !on_device(kv, t))
            memcpy(place(o, i), t->host, kv->o.tile_bytes);
    }
}

int spw_kv_export(struct spw_kv_seq *seq, uint32_t layer, uint32_t begin, uint32_t end,
                  void *memory)
{
    struct spw_kv *kv = seq->kv;
    struct outflow o = {.reads = {.seq = seq, .layer = layer}, .begin = begin, .memory = memory};
    assert(end <= seq->layers[layer].end);
    assert(begin >= seq->layers[layer].first || (end == 1 && spw_kv_sink_apart(seq, layer)));
    for (uint32_t i = begin; i < end; i++)
        SPW_TRY(spw_kv_finish_tile(kv, tile_of(&o, i)));
    SPW_TRY(spw_kv_order(kv, kv->o.compute, kv->o.down)); /* 1 */
    int rc = start(&o, end);
    int flushed = spw_kv_flush_copies(kv); /* what a failure left */
    int waited = wait_for(kv, kv->o.down);
    while (o.reads.n_reads)
        spw_kv_finish_read(kv);
    rc = rc ? rc : flushed ? flushed : waited ? waited : o.reads.rc;
    if (!rc)
        copy_from_host(&o, end);
    return rc;
}
