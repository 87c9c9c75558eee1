/* Where each weight block lies and comes from, given how many are resident, and how many of the
 * others come from disk: see plan.h. */
#include "runtime/plan/plan_parts.h"

enum { WEIGHT_SLOTS = 2 };

static uint32_t n_streamed_before(const struct spw_plan *p, uint32_t n_blocks, uint32_t block)
{
    uint32_t n_streamed = n_blocks - p->n_resident_blocks;
    return (uint32_t)((uint64_t)block * n_streamed / n_blocks);
}

static bool is_resident(const struct spw_plan *p, const struct spw_weights *w, uint32_t block)
{
    if (block >= w->n_blocks)
        return !p->n_expert_frames;
    return n_streamed_before(p, w->n_blocks, block + 1) == n_streamed_before(p, w->n_blocks, block);
}

/* The n-th place of n_disk of the streamed blocks, spread evenly. */
static bool in_disk_place(const struct spw_plan *p, uint32_t n_blocks, uint32_t block)
{
    uint64_t n_streamed = n_blocks - p->n_resident_blocks,
             i = n_streamed_before(p, n_blocks, block);
    return (i + 1) * p->n_disk_blocks / n_streamed > i * p->n_disk_blocks / n_streamed;
}

/* What decides where a block lies. */
struct place {
    bool resident, from_disk, as_stored;
    bool as_in_file; /* kernels can read it from the mapped file, or from where it lands as in the
                      * file
                      */
};

static struct place place_of(const struct spw_plan *p, const struct spw_weights *w, uint32_t block)
{
    struct place at = {.resident = is_resident(p, w, block),
                       .as_stored = w->blocks[block].as_stored};
    if (block >= w->n_blocks)
        at.from_disk = !at.resident && block - w->n_blocks < p->n_disk_experts;
    else
        at.from_disk = p->n_disk_blocks && !at.resident && at.as_stored &&
                       in_disk_place(p, w->n_blocks, block);
    at.as_in_file = p->reads_host_memory && w->blocks[block].mappable;
    return at;
}

static bool is_packed(const struct spw_plan *p, const struct place *at)
{
    return !at->as_stored || (!p->reads_host_memory && !at->resident && !at->from_disk);
}

bool spw_plan_block_resident(const struct spw_plan *p, const struct spw_weights *w, uint32_t block)
{
    return is_resident(p, w, block);
}

bool spw_plan_block_mapped(const struct spw_plan *p, const struct spw_weights *w, uint32_t block)
{
    struct place at = place_of(p, w, block);
    return at.resident && at.as_in_file;
}

bool spw_plan_block_from_disk(const struct spw_plan *p, const struct spw_weights *w, uint32_t block)
{
    return place_of(p, w, block).from_disk;
}

bool spw_plan_block_as_in_file(const struct spw_plan *p, const struct spw_weights *w,
                               uint32_t block)
{
    return place_of(p, w, block).as_in_file;
}

bool spw_plan_block_packed(const struct spw_plan *p, const struct spw_weights *w, uint32_t block)
{
    struct place at = place_of(p, w, block);
    return is_packed(p, &at);
}

uint64_t spw_plan_block_moved_bytes(const struct spw_plan *p, const struct spw_weights *w,
                                    uint32_t block)
{
    struct place at = place_of(p, w, block);
    if (at.as_in_file && (at.resident || at.from_disk))
        return 0;
    return is_packed(p, &at) ? w->blocks[block].bytes : w->blocks[block].matrix_bytes;
}

uint64_t spw_plan_block_disk_bytes(const struct spw_plan *p, const struct spw_weights *w,
                                   uint32_t block)
{
    return spw_plan_block_from_disk(p, w, block) ? w->blocks[block].read_bytes : 0;
}

struct spw_expert_shape spw_plan_expert_shape(const struct spw_weights *w)
{
    return (struct spw_expert_shape){.n_layers = spw_expert_layers(w->config),
                                     .n_experts = w->config->experts.n,
                                     .n_kept = w->config->experts.n_kept};
}

uint64_t spw_plan_expert_tables_bytes(const struct spw_plan *p, const struct spw_weights *w)
{
    const struct spw_expert_shape shape = spw_plan_expert_shape(w);
    return p->n_expert_frames ? 2 * spw_plan_pages(spw_expert_residency_bytes(&shape)) : 0;
}

void spw_plan_add_missed(const struct spw_plan *p, const struct spw_weights *w, uint32_t expert,
                         uint64_t moved[SPW_MOVED_COUNT])
{
    moved[SPW_MOVED_HOST_TO_DEVICE] += spw_plan_block_moved_bytes(p, w, w->n_blocks + expert);
    moved[SPW_MOVED_DISK_TO_HOST] += spw_plan_block_disk_bytes(p, w, w->n_blocks + expert);
}

void spw_plan_size_blocks(struct spw_plan *p, const struct spw_weights *w)
{
    p->weight_slot_bytes = p->weight_bounce_bytes = 0;
    for (uint32_t u = 0; u < w->n_blocks; u++) {
        bool as_in_file = spw_plan_block_as_in_file(p, w, u);
        uint64_t packed = w->blocks[u].bytes, read = w->blocks[u].read_bytes;
        p->weight_slot_bytes =
            spw_max_u64(p->weight_slot_bytes, as_in_file ? spw_max_u64(packed, read) : packed);
        if (!as_in_file && w->blocks[u].as_stored)
            p->weight_bounce_bytes = spw_max_u64(p->weight_bounce_bytes, read);
    }
    p->weight_slot_bytes = spw_plan_pages(p->weight_slot_bytes);
    p->expert_copied_bytes = p->expert_mapped_bytes = p->expert_packed_bytes = 0;
    for (uint32_t u = w->n_blocks; u < w->n_blocks + w->n_expert_blocks; u++) {
        struct place at = place_of(p, w, u);
        uint64_t bytes = spw_plan_pages(w->blocks[u].bytes);
        *(at.as_in_file ? &p->expert_mapped_bytes : &p->expert_copied_bytes) += bytes;
        p->expert_packed_bytes += is_packed(p, &at) ? bytes : 0;
    }
}

/* Whether experts that the host has stay in the mapped file. Else it has packed copies. */
static bool in_page_cache(const struct spw_plan *p, const struct spw_weights *w)
{
    return w->experts_stored && p->reads_host_memory;
}

void spw_plan_place_blocks(struct spw_plan *p, const struct spw_weights *w, uint32_t n_resident,
                           uint32_t n_disk)
{
    bool bounces = false;
    p->n_resident_blocks = n_resident;
    p->n_disk_blocks = n_disk;
    p->n_weight_slots = n_resident < w->n_blocks ? WEIGHT_SLOTS : 0;
    p->copied_bytes = p->n_expert_frames ? 0 : p->expert_copied_bytes;
    p->mapped_bytes = p->n_expert_frames ? 0 : p->expert_mapped_bytes;
    p->packed_bytes = p->n_expert_frames ? 0 : p->expert_packed_bytes;
    p->page_cache_bytes = 0;
    if (p->n_expert_frames)
        *(in_page_cache(p, w) ? &p->page_cache_bytes : &p->packed_bytes) +=
            w->expert_pages[w->n_expert_blocks] - w->expert_pages[p->n_disk_experts];
    p->streamed_bytes = p->disk_read_bytes = 0;
    for (uint32_t u = 0; u < w->n_blocks; u++) {
        struct place at = place_of(p, w, u);
        uint64_t bytes = spw_plan_pages(w->blocks[u].bytes);
        if (at.resident)
            *(at.as_in_file ? &p->mapped_bytes : &p->copied_bytes) += bytes;
        if (is_packed(p, &at))
            p->packed_bytes += bytes;
        else if (!at.resident && !at.from_disk)
            p->page_cache_bytes += bytes;
        if (at.from_disk)
            p->disk_read_bytes += w->blocks[u].read_bytes;
        else if (!at.resident)
            p->streamed_bytes += is_packed(p, &at) ? w->blocks[u].bytes : w->blocks[u].matrix_bytes;
        bounces |= at.from_disk && !at.as_in_file;
    }
    p->n_weight_bounce = bounces ? p->n_weight_slots : 0;
}
