/* Where each weight block lies and comes from, given how many are resident, and how many of the
 * others come from disk: see plan.h. */
#include "runtime/plan/plan.h"

enum { PAGE = 4096 };

static uint32_t n_streamed_before(const struct spw_plan *p, uint32_t n_blocks, uint32_t block)
{
    uint32_t n_streamed = n_blocks - p->n_resident_blocks;
    return (uint32_t)((uint64_t)block * n_streamed / n_blocks);
}

bool spw_plan_block_resident(const struct spw_plan *p, const struct spw_weights *w, uint32_t block)
{
    return n_streamed_before(p, w->n_blocks, block + 1) == n_streamed_before(p, w->n_blocks, block);
}

bool spw_plan_block_mapped(const struct spw_plan *p, const struct spw_weights *w, uint32_t block)
{
    return p->reads_host_memory && spw_plan_block_resident(p, w, block) &&
           spw_weights_mappable(w, block);
}

/* The n-th place of n_disk of the streamed blocks, spread evenly. */
static bool in_disk_place(const struct spw_plan *p, uint32_t n_blocks, uint32_t block)
{
    uint64_t n_streamed = n_blocks - p->n_resident_blocks,
             i = n_streamed_before(p, n_blocks, block);
    return (i + 1) * p->n_disk_blocks / n_streamed > i * p->n_disk_blocks / n_streamed;
}

bool spw_plan_block_from_disk(const struct spw_plan *p, const struct spw_weights *w, uint32_t block)
{
    return p->n_disk_blocks && !spw_plan_block_resident(p, w, block) &&
           in_disk_place(p, w->n_blocks, block) && spw_weights_as_stored(w, block);
}

bool spw_plan_block_direct(const struct spw_plan *p, const struct spw_weights *w, uint32_t block)
{
    return p->reads_host_memory && spw_weights_mappable(w, block);
}

bool spw_plan_block_packed(const struct spw_plan *p, const struct spw_weights *w, uint32_t block)
{
    if (!spw_weights_as_stored(w, block))
        return true;
    return !p->reads_host_memory && !spw_plan_block_resident(p, w, block) &&
           !spw_plan_block_from_disk(p, w, block);
}

bool spw_plan_block_kept(const struct spw_plan *p, const struct spw_weights *w, uint32_t block)
{
    return !spw_plan_block_resident(p, w, block) && !spw_plan_block_packed(p, w, block) &&
           !spw_plan_block_from_disk(p, w, block);
}

uint64_t spw_plan_block_moved_bytes(const struct spw_plan *p, const struct spw_weights *w,
                                    uint32_t block)
{
    if (spw_plan_block_mapped(p, w, block))
        return 0;
    if (spw_plan_block_from_disk(p, w, block) && spw_plan_block_direct(p, w, block))
        return 0;
    return spw_plan_block_packed(p, w, block) ? w->blocks[block].bytes
                                              : w->blocks[block].matrix_bytes;
}

uint64_t spw_plan_block_disk_bytes(const struct spw_plan *p, const struct spw_weights *w,
                                   uint32_t block)
{
    return spw_plan_block_from_disk(p, w, block) ? spw_weights_read_bytes(w, block) : 0;
}

void spw_plan_size_blocks(struct spw_plan *p, const struct spw_weights *w)
{
    p->weight_slot_bytes = p->weight_bounce_bytes = 0;
    for (uint32_t u = 0; u < w->n_blocks; u++) {
        bool direct = spw_plan_block_direct(p, w, u);
        uint64_t packed = w->blocks[u].bytes, read = spw_weights_read_bytes(w, u);
        p->weight_slot_bytes =
            spw_max_u64(p->weight_slot_bytes, direct ? spw_max_u64(packed, read) : packed);
        if (!direct && spw_weights_as_stored(w, u))
            p->weight_bounce_bytes = spw_max_u64(p->weight_bounce_bytes, read);
    }
    p->weight_slot_bytes = spw_align_up(p->weight_slot_bytes, PAGE);
}
