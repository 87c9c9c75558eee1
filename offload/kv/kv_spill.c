/* Spills: see kv_cache.h. kv_tile.h lists the numbered orders.
 *
 *     device --down--> host ==disk==> DISK
 *     device =========disk==========> DISK      (disk_to_device) */
#include "offload/kv/kv_tile.h"

#include <assert.h>

/* The new waterlines, and the tiles [from, to) that a spill must visit. */
struct spill {
    uint32_t begin, disk_end, from, to;
};

static struct spill make_spill(const struct spw_kv *kv, const struct spw_kv_table *l,
                               uint32_t begin, uint32_t disk_end)
{
    struct spill s = {.begin = spw_max_u32(begin, l->begin),
                      .disk_end = spw_min_u32(disk_end, l->end)};
    if (!kv->o.disk || s.disk_end < l->disk_end)
        s.disk_end = l->disk_end;
    s.from = spw_max_u32(l->first, spw_min_u32(l->begin, l->disk_end));
    s.to = spw_max_u32(s.begin, s.disk_end);
    return s;
}

/* What the spill does with tile i */
static bool needs_lower_copy(const struct spw_kv_table *l, const struct spill *s,
                             const struct spw_kv_tile *t, uint32_t i)
{
    return i >= l->begin && i < s->begin && !spw_kv_has_lower_copy(t);
}

static bool moves_to_disk(const struct spw_kv_table *l, const struct spill *s,
                          const struct spw_kv_tile *t, uint32_t i)
{
    /* also a tile that another sequence has spilled while it was on the device for this one */
    return (i >= l->disk_end || i >= l->begin) && i < s->disk_end && t->host;
}

/* The tile i, or the next one that the spill must visit: tiles of the host that do not go to disk
 * stay where they are. */
static uint32_t visit(const struct spw_kv_table *l, const struct spill *s, uint32_t i)
{
    return i < s->disk_end ? i : spw_max_u32(i, l->begin);
}

/* Writes the lower copy of a tile that has none. */
static int copy_to_lower_tier(struct spw_kv *kv, const struct spw_kv_table *l,
                              const struct spill *s, uint32_t i)
{
    struct spw_kv_tile *t = &kv->tiles[l->ids[i]];
    const struct spw_kv_tile *before = spw_kv_tile_before(kv, l, i);
    bool deep = i < s->disk_end;
    uint32_t after = before ? before->disk : SPW_DISK_NONE;
    if (deep && kv->o.disk_to_device)
        return spw_kv_write_tile(kv, l->ids[i], SPW_KV_WRITING_FROM_DEVICE, after);
    SPW_TRY(spw_kv_take_host_frame(kv, before ? before->host : NULL, &t->host));
    t->ticket = kv->ticket;
    t->lost = 0;
    SPW_TRY(spw_kv_gather(kv, t->host, t->device, SPW_LINK_DEVICE_TO_HOST, kv->lane->down));
    return deep ? spw_kv_write_tile(kv, l->ids[i], SPW_KV_WRITING_FROM_HOST, after) : 0;
}

static int spill(struct spw_kv *kv, struct spw_kv_table *l, const struct spill *s)
{
    for (uint32_t i = visit(l, s, s->from); i < s->to; i = visit(l, s, i + 1)) {
        struct spw_kv_tile *t = &kv->tiles[l->ids[i]];
        const struct spw_kv_tile *before = spw_kv_tile_before(kv, l, i);
        if (needs_lower_copy(l, s, t, i))
            SPW_TRY(copy_to_lower_tier(kv, l, s, i));
        else if (moves_to_disk(l, s, t, i))
            SPW_TRY(spw_kv_write_tile(kv, l->ids[i], SPW_KV_WRITING_FROM_HOST,
                                      before ? before->disk : SPW_DISK_NONE));
        if (i == l->begin && i < s->begin) {
            l->begin++;
            spw_kv_drop_device_ref(kv, t);
        }
        if (i >= l->disk_end && i < s->disk_end)
            l->disk_end = i + 1;
    }
    l->disk_end = s->disk_end; /* also if earlier tiles have been dropped */
    return 0;
}

/* A tile on the device can have lost its lower copy, which was in an attached file. The disk has no
 * frame for another copy, so the tile may not leave the device: it counts as lost. */
static int find_lost(struct spw_kv_seq *seq, uint32_t layer, const struct spill *s)
{
    const struct spw_kv_table *l = &seq->tables[layer];
    int rc = 0;
    for (uint32_t i = s->from; i < s->to && i < s->disk_end; i++) {
        const struct spw_kv_tile *t = &seq->kv->tiles[l->ids[i]];
        if (!t->lost || !needs_lower_copy(l, s, t, i))
            continue;
        spw_kv_note_loss(seq, layer, i, t->lost);
        rc = -EBADMSG;
    }
    return rc;
}

int spw_kv_spill(struct spw_kv_seq *seq, uint32_t layer, uint32_t begin, uint32_t disk_end)
{
    struct spw_kv *kv = seq->kv;
    struct spw_kv_table *l = &seq->tables[layer];
    uint64_t to_host, to_disk;
    assert(begin <= l->end && !l->load.seq);
    spw_kv_count_spill(seq, layer, begin, disk_end, &to_host, &to_disk);
    struct spill s = make_spill(kv, l, begin, disk_end);
    if (to_disk && to_disk > kv->o.n_disk_frames - spw_disk_n_used(kv->o.disk))
        SPW_TRY(find_lost(seq, layer, &s));
    if (to_host) {
        SPW_TRY(spw_kv_order(kv, kv->lane->compute, kv->lane->down)); /* 1 */
        kv->ticket++;
    }
    int rc = spill(kv, l, &s);
    int copies = spw_kv_flush_copies(kv); /* also copies that a failure has left */
    int writes = spw_kv_flush_writebacks(kv);
    if (!rc && !copies && !writes)
        rc = spw_kv_take_write_failure(kv);
    return rc ? rc : copies ? copies : writes;
}

void spw_kv_count_spill(const struct spw_kv_seq *seq, uint32_t layer, uint32_t begin,
                        uint32_t disk_end, uint64_t *to_host, uint64_t *to_disk)
{
    const struct spw_kv *kv = seq->kv;
    const struct spw_kv_table *l = &seq->tables[layer];
    struct spill s = make_spill(kv, l, begin, disk_end);
    *to_host = *to_disk = 0;
    for (uint32_t i = visit(l, &s, s.from); i < s.to; i = visit(l, &s, i + 1)) {
        const struct spw_kv_tile *t = &kv->tiles[l->ids[i]];
        bool deep = i < s.disk_end;
        if (needs_lower_copy(l, &s, t, i)) {
            *to_host += !(deep && kv->o.disk_to_device);
            *to_disk += deep;
        } else if (moves_to_disk(l, &s, t, i)) {
            ++*to_disk;
        }
    }
}
