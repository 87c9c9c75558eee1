/* The order of transfers: see schedule.h. */
#include "prefetch/schedule.h"

uint32_t spw_schedule_one_transfer_end(const struct spw_stream_range *a,
                                       const struct spw_stream_range *b, uint32_t both,
                                       uint32_t slot_tiles)
{
    uint32_t end = spw_min_u32(both, spw_min_u32(a->end, b->end));
    end -= end % slot_tiles;
    return a->first == b->first && end > a->first ? end : 0;
}

/* The next transfer of the slice that the cursor is in. */
static bool next_of_slice(const struct spw_schedule *s, struct spw_kv_cursor *c,
                          struct spw_transfer *out)
{
    const struct spw_part_reads *g = &s->parts[c->part];
    const struct spw_stream_range *r = &g->ranges[s->kinds[c->layer]];
    if (!c->inside) {
        c->tile = r->first;
        c->inside = true;
    }
    if (c->tile >= r->end)
        return false;
    uint32_t next = (c->tile / s->slot_tiles + 1) * s->slot_tiles;
    *out = (struct spw_transfer){.seq = g->seq,
                                 .layer = s->first_slices[c->layer] + c->slice,
                                 .reader = c->layer,
                                 .tile_begin = c->tile,
                                 .tile_end = next < r->end ? next : r->end,
                                 .disk_end = g->disk_end[s->kinds[c->layer]]};
    c->tile = out->tile_end;
    return true;
}

bool spw_schedule_next_kv(const struct spw_schedule *s, struct spw_kv_cursor *c,
                          struct spw_transfer *out)
{
    for (; c->layer < s->n_layers; c->layer++, c->part = 0)
        for (; c->part < s->n_parts; c->part++, c->slice = 0)
            for (; c->slice < s->layer_slices[s->kinds[c->layer]]; c->slice++, c->inside = false)
                if (next_of_slice(s, c, out))
                    return true;
    return false;
}

bool spw_schedule_next_block(const struct spw_schedule *s, struct spw_block_cursor *c,
                             uint32_t *block)
{
    if (c->block >= s->n_layer_blocks + s->n_head_blocks) {
        c->block = s->n_layer_blocks;
        c->round++;
    }
    if (c->block >= s->n_layer_blocks && (c->round >= s->n_head_rounds || !s->n_head_blocks))
        return false;
    *block = c->block++;
    return true;
}
