/* KV divided anew in arenas that exist: see plan.h.
 *
 * Work buffers, weights and hidden states stay where they are. KV frames begin where they began, on
 * the device and on the host, and fill the room that there is. So tiles can move inside their tier
 * (offload/kv/kv_shrink.h), and none has to be computed again.
 *
 *     from:   | work | weights | KV frames of T bytes ................ | KV slots |
 *     out:    | work | weights | KV frames of Q <= T bytes | exact frames | KV slots |
 *
 * Tiles only go down: tiles on disk stay there, even if the host has room for them now. */
#include "runtime/plan/plan_parts.h"

#include <assert.h>
#include <string.h>

/* As many bytes in a slot as there were, in whole splits. */
static uint32_t slot_tiles(const struct spw_plan *from, const struct spw_plan_input *in,
                           uint64_t tile_bytes)
{
    if (!from->n_kv_slots)
        return SPW_SPLIT_TILES * (in->prefetch_splits ? in->prefetch_splits : 1);
    uint64_t splits = from->slot_tiles * from->tile_bytes / tile_bytes / SPW_SPLIT_TILES;
    return (uint32_t)spw_min_u64(splits * SPW_SPLIT_TILES, in->attention_tiles);
}

/* Frames that the ring and the exact tiles leave on the device. Exact frames only move to lower
 * addresses. */
static uint64_t device_frames(const struct spw_plan *p, const struct spw_plan *from,
                              const struct spw_plan_input *in)
{
    uint64_t before = from->device.exact_frames - from->device.kv_frames;
    uint64_t most = from->quantizes ? before / p->tile_bytes : UINT64_MAX;
    uint64_t used = p->device.kv_frames + p->mapped_bytes + spw_plan_exact_bytes(p) +
                    (uint64_t)p->n_kv_slots * p->slot_tiles * p->tile_bytes;
    return spw_min_u64(most, spw_sub_u64(in->device_bytes, used) / p->tile_bytes);
}

static bool divide_device(struct spw_plan *p, const struct spw_plan *from,
                          const struct spw_plan_input *in)
{
    p->n_kv_slots = 0;
    if (spw_plan_take_frames(p, in, device_frames(p, from, in)))
        return true;
    p->n_kv_slots = from->n_kv_slots     ? from->n_kv_slots
                    : in->prefetch_slots ? in->prefetch_slots
                                         : SPW_PLAN_SLOTS;
    p->slot_tiles = slot_tiles(from, in, p->tile_bytes);
    return spw_plan_take_frames(p, in, device_frames(p, from, in));
}

/* With n ranks on the host, and more if it has room. */
static bool place(struct spw_plan *p, const struct spw_plan *from, const struct spw_plan_input *in,
                  const struct spw_lower *b, uint32_t n)
{
    spw_lower_place(p, in, b, n);
    p->disk_to_device = from->disk_to_device;
    if (!spw_plan_lay_out_rest(p, in))
        return false;
    if (n < b->all)
        spw_lower_grow(p, in, b, n, in->host_bytes - p->host.end - p->page_cache_bytes);
    return spw_plan_lay_out_rest(p, in);
}

static bool divide_lower(struct spw_plan *p, const struct spw_plan *from,
                         const struct spw_plan_input *in, uint32_t n_on_disk)
{
    struct spw_lower b;
    spw_lower_count(&b, p, in);
    uint32_t least = spw_lower_least(&b, p, in);
    struct spw_plan all = *p;
    if (!n_on_disk && place(&all, from, in, &b, b.all)) {
        *p = all;
        return true;
    }
    if (least == b.all && b.all && n_on_disk)
        return false;
    return place(p, from, in, &b, least);
}

/* The scratch file has frames for the tiles that it holds now and for later ones. */
static bool keep_disk(struct spw_plan *p, const struct spw_plan *from,
                      const struct spw_plan_input *in, uint32_t n_on_disk)
{
    uint64_t frames = p->n_disk_frames > n_on_disk ? p->n_disk_frames : n_on_disk;
    if (from->n_disk_frames && !frames)
        frames = 1;
    p->n_disk_frames = (uint32_t)frames;
    return frames * p->tile_bytes <= in->disk_bytes;
}

static bool divide(struct spw_plan *p, const struct spw_plan *from, const struct spw_plan_input *in,
                   uint32_t n_on_disk)
{
    p->n_exact_frames = spw_plan_exact_frames(p, in);
    return divide_device(p, from, in) && divide_lower(p, from, in, n_on_disk) &&
           keep_disk(p, from, in, n_on_disk);
}

int spw_plan_replan(struct spw_plan *out, const struct spw_plan *from,
                    const struct spw_plan_input *given, uint32_t n_on_disk)
{
    struct spw_plan_input in = *given;
    struct spw_plan tiles, p = *from;
    const uint64_t checkpoints = from->n_disk_checkpoints * spw_plan_session_states(from);
    if (checkpoints > given->disk_bytes) /* they stay where they are */
        return -ENOMEM;
    in.device_bytes = spw_min_u64(in.device_bytes, from->device.end + from->mapped_bytes);
    in.host_bytes = spw_min_u64(in.host_bytes, from->host.end + from->page_cache_bytes);
    in.disk_bytes =
        spw_min_u64(in.disk_bytes - checkpoints, from->n_disk_frames * from->tile_bytes);
    spw_plan_start(&tiles, &in);
    p.info = (struct spw_plan_info){0};
    p.format = tiles.format;
    p.tile_bytes = tiles.tile_bytes;
    p.full_tiles = tiles.full_tiles;
    p.quantizes = tiles.quantizes;
    memcpy(p.residency, tiles.residency, sizeof p.residency);
    p.may_retain = from->retains && spw_plan_may_retain(&p, &in);
    struct spw_plan less = p;
    less.may_retain = false;
    if (!divide(&p, from, &in, n_on_disk)) {
        p = less;
        if (!divide(&p, from, &in, n_on_disk))
            return -ENOMEM;
    }
    assert(p.device.kv_frames == from->device.kv_frames);
    assert(p.host.kv_frames == from->host.kv_frames);
    spw_plan_describe(&p, &in);
    uint64_t rewritten = n_on_disk * p.tile_bytes;
    if (in.disk_write_limit && p.info.disk_write_bytes + rewritten > in.disk_write_limit)
        return -EDQUOT;
    p.info.device_budget_bytes = given->device_bytes;
    p.info.host_budget_bytes = given->host_bytes;
    p.info.disk_budget_bytes = given->disk_bytes;
    *out = p;
    return 0;
}

/* ---- comparing ---- */

static bool same_residency(const struct spw_residency *a, const struct spw_residency *b)
{
    return a->resident == b->resident && a->resident_pass == b->resident_pass &&
           a->pass == b->pass && a->host == b->host && a->quantizes == b->quantizes &&
           a->residual_tiles == b->residual_tiles && a->fixed == b->fixed && a->held == b->held;
}

/* Member by member, because the struct has padding; the offsets have none. What belongs to the
 * model is the same. */
bool spw_plan_same_layout(const struct spw_plan *a, const struct spw_plan *b)
{
#define SAME(member) (a->member == b->member)
    const bool rows = SAME(chunk) && SAME(pass_rows) && SAME(hidden_on_host) && SAME(logits_rows) &&
                      SAME(parallel_splits) && SAME(rows_beside) && SAME(piece_bytes) &&
                      SAME(draft_rows);
    const bool tiles = SAME(quantizes) && SAME(format) && SAME(tile_bytes) &&
                       SAME(exact_tile_bytes) && SAME(slot_tiles) && SAME(may_retain) &&
                       SAME(retains) && SAME(new_frames) && SAME(n_exact_frames) &&
                       SAME(n_device_frames) && SAME(n_host_frames) && SAME(n_disk_frames) &&
                       SAME(n_kv_slots) && SAME(n_transit) && SAME(n_bounce) && SAME(attaches) &&
                       SAME(disk_run) && SAME(disk_to_device) && SAME(states_stay) &&
                       SAME(n_checkpoints) && SAME(n_disk_checkpoints);
    const bool blocks = SAME(weight_slot_bytes) && SAME(weight_bounce_bytes) &&
                        SAME(n_weight_slots) && SAME(n_weight_bounce) && SAME(n_resident_blocks) &&
                        SAME(n_disk_blocks) && SAME(mapped_bytes) && SAME(packed_bytes) &&
                        SAME(page_cache_bytes) && SAME(streamed_bytes) && SAME(disk_read_bytes) &&
                        SAME(n_link_blocks);
    const bool experts = SAME(n_expert_frames) && SAME(n_disk_experts) && SAME(n_expert_slots) &&
                         SAME(n_expert_bounce) && SAME(routed_rows);
#undef SAME
    bool same = rows && tiles && blocks && experts;
    for (int k = 0; k < SPW_LAYER_KINDS; k++)
        same &= same_residency(&a->residency[k], &b->residency[k]);
    return same && !memcmp(&a->device, &b->device, sizeof a->device) &&
           !memcmp(&a->host, &b->host, sizeof a->host);
}
