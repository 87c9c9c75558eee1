/* The sources of a KV slot: see kv_source.h. */
#include "prefetch/kv_source.h"

#include <assert.h>

struct spw_kv_slot {
    struct spw_transfer t;
    uint32_t first_host; /* the first of its tiles that was copied from the host */
};

static struct spw_kv_slot *nth(const struct spw_kv_source *k, uint64_t n)
{
    return &k->slots[n % k->ring.o.n_slots];
}

int spw_kv_source_init(struct spw_kv_source *k, const struct spw_lane *lane,
                       const struct spw_ring_options *o)
{
    *k = (struct spw_kv_source){.slots = spw_alloc_zero(o->n_slots, sizeof *k->slots)};
    int rc = k->slots ? spw_ring_init(&k->ring, lane, o) : -ENOMEM;
    if (rc)
        spw_kv_source_free(k);
    return rc;
}

void spw_kv_source_free(struct spw_kv_source *k)
{
    spw_ring_free(&k->ring);
    spw_free(k->slots);
    k->slots = NULL;
}

static const void *on_host(const struct spw_transfer *t, uint32_t tile)
{
    return spw_kv_host_tile(t->seq, t->layer, tile);
}

bool spw_kv_source_can_issue(const struct spw_kv_source *k, const struct spw_transfer *t)
{
    bool reads = false;
    if (!spw_ring_has_room(&k->ring, false) ||
        !spw_kv_is_readable(t->seq, t->layer, t->tile_begin, t->tile_end))
        return false;
    for (uint32_t i = t->tile_begin; i < t->tile_end; i++) {
        if (i < t->disk_end && on_host(t, i))
            return false;
        reads |= !on_host(t, i);
    }
    return spw_ring_has_room(&k->ring, reads && k->ring.o.n_bounce);
}

static void add_tile(struct spw_kv_source *k, struct spw_kv_slot *s, uint32_t tile)
{
    const struct spw_transfer *t = &s->t;
    uint64_t tile_bytes = k->ring.o.tile_bytes, to = (tile - t->tile_begin) * tile_bytes;
    uint32_t frame = spw_kv_disk_frame(t->seq, t->layer, tile);
    if (on_host(t, tile)) {
        s->first_host = spw_min_u32(s->first_host, tile);
        spw_ring_add_memory(&k->ring, to, on_host(t, tile), tile_bytes);
    } else if (frame != SPW_DISK_NONE) {
        spw_ring_add_frame(&k->ring, to, tile, frame);
    } else {
        int lost = spw_kv_lost(t->seq, t->layer, tile);
        assert(lost);
        spw_kv_note_loss(t->seq, t->layer, tile, lost);
        spw_ring_add_loss(&k->ring);
    }
}

int spw_kv_source_issue(struct spw_kv_source *k, const struct spw_transfer *t)
{
    for (uint32_t i = t->tile_begin; i < t->tile_end; i++)
        SPW_TRY(spw_kv_wait_written(t->seq, t->layer, i));
    struct spw_kv_slot *s = nth(k, k->ring.taken);
    SPW_TRY(spw_ring_take(&k->ring, k->ring.o.n_bounce, NULL));
    *s = (struct spw_kv_slot){.t = *t, .first_host = UINT32_MAX};
    for (uint32_t i = t->tile_begin; i < t->tile_end; i++)
        add_tile(k, s, i);
    return spw_ring_issue(&k->ring, NULL, NULL);
}

int spw_kv_source_wait(struct spw_kv_source *k, uint8_t **slot)
{
    const struct spw_transfer *t = &nth(k, k->ring.waited)->t;
    uint32_t n;
    int rc = spw_ring_wait(&k->ring, slot);
    if (rc != -EBADMSG)
        return rc;
    const struct spw_tile_run *reads = spw_ring_reads(&k->ring, &n);
    for (uint32_t i = 0; i < n; i++)
        if (reads[i].job.io.rc)
            spw_kv_note_loss(t->seq, t->layer, spw_tile_run_failed_tile(&reads[i]),
                             reads[i].job.io.rc);
    return rc;
}

bool spw_kv_source_holds(const struct spw_kv_source *k, uint64_t n, const struct spw_transfer *t)
{
    const struct spw_kv_slot *s = nth(k, n);
    return s->t.seq == t->seq && s->t.layer == t->layer && s->t.tile_begin == t->tile_begin &&
           s->t.tile_end == t->tile_end && s->first_host >= t->disk_end;
}
