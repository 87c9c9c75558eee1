/* Where each weight block lies and comes from, given how many are resident, and how many of the
 * others come from disk: see plan.h. */
#include "quant/types.h"
#include "runtime/plan/plan_parts.h"

enum { WEIGHT_SLOTS = 2 };

/* Blocks from here on are read more often than those before, which leave the device first, and then
 * the host: the blocks of a decoder, once a token; of an MTP layer and the head, once a draft. */
static uint32_t first_often_read(const struct spw_weights *w)
{
    const struct spw_model_config *c = w->config;
    return c->mtp               ? spw_config_main_layers(c)
           : c->n_source_layers ? c->n_source_layers
                                : w->n_blocks;
}

/* Of `all` in a row n are taken, those before `border` first, spread evenly on each side of it: how
 * many of the first i are taken. */
static uint32_t n_taken(uint32_t n, uint32_t border, uint32_t all, uint32_t i)
{
    const uint32_t before = spw_min_u32(n, border);
    if (i <= border)
        return i ? (uint32_t)((uint64_t)i * before / border) : 0;
    return before + (uint32_t)((uint64_t)(i - border) * (n - before) / (all - border));
}

static uint32_t n_streamed_before(const struct spw_plan *p, const struct spw_weights *w,
                                  uint32_t block)
{
    return n_taken(w->n_blocks - p->n_resident_blocks, first_often_read(w), w->n_blocks, block);
}

static bool is_resident(const struct spw_plan *p, const struct spw_weights *w, uint32_t block)
{
    if (block >= w->n_blocks)
        return !p->n_expert_frames;
    return n_streamed_before(p, w, block + 1) == n_streamed_before(p, w, block);
}

static uint32_t n_from_disk_before(const struct spw_plan *p, const struct spw_weights *w,
                                   uint32_t block)
{
    return n_taken(p->n_disk_blocks, n_streamed_before(p, w, first_often_read(w)),
                   w->n_blocks - p->n_resident_blocks, n_streamed_before(p, w, block));
}

/* But for host_rows. */
static struct spw_block_place place(const struct spw_plan *p, const struct spw_weights *w,
                                    uint32_t block)
{
    const struct spw_weight_block *b = &w->blocks[block];
    struct spw_block_place at = {.resident = is_resident(p, w, block),
                                 .as_in_file = p->reads_host_memory && b->mappable};
    if (block >= w->n_blocks)
        at.from_disk = !at.resident && block - w->n_blocks < p->n_disk_experts;
    else
        at.from_disk = p->n_disk_blocks && !at.resident && b->as_stored &&
                       n_from_disk_before(p, w, block + 1) > n_from_disk_before(p, w, block);
    at.mapped = at.resident && at.as_in_file;
    at.packed = !b->as_stored || (!p->reads_host_memory && !at.resident && !at.from_disk);
    if (!at.as_in_file || !(at.resident || at.from_disk))
        at.moved_bytes = at.packed ? b->bytes : b->matrix_bytes;
    at.disk_bytes = at.from_disk ? b->read_bytes : 0;
    return at;
}

/* Whether the host could multiply the block. A block of the file's is read by the drive, which is
 * slower than the link. A source has many rows. The MTP layer depends on more than rows. */
static bool may_multiply(const struct spw_plan *p, const struct spw_weights *w, uint32_t block)
{
    const struct spw_block_place at = place(p, w, block);
    return at.packed && !at.resident && w->blocks[block].quantized &&
           block >= w->config->n_source_layers && block < spw_config_main_layers(w->config);
}

/* Whether the block is one of those that the host could multiply and that cross the link all the
 * same. */
static bool crosses(const struct spw_plan *p, const struct spw_weights *w, uint32_t block)
{
    uint32_t before = 0, all = 0;
    for (uint32_t u = 0; p->n_link_blocks && u < w->n_blocks; u++) {
        before = u == block ? all : before;
        all += may_multiply(p, w, u);
    }
    return all && n_taken(p->n_link_blocks, all, all, before + 1) >
                      n_taken(p->n_link_blocks, all, all, before);
}

struct spw_block_place spw_plan_block(const struct spw_plan *p, const struct spw_weights *w,
                                      uint32_t block)
{
    struct spw_block_place at = place(p, w, block);
    if (p->host_layer_rows && block < w->n_blocks && may_multiply(p, w, block) &&
        !crosses(p, w, block))
        at.host_rows = p->host_layer_rows;
    return at;
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
    return p->n_expert_frames ? spw_plan_pages(spw_expert_residency_bytes(&shape)) : 0;
}

uint64_t spw_plan_expert_row_bytes(const struct spw_plan *p, const struct spw_weights *w)
{
    return spw_row_bytes(p->info.compute, spw_config_expert_row(w->config));
}

void spw_plan_add_missed(const struct spw_plan *p, const struct spw_weights *w,
                         const struct spw_expert_visit *v, uint64_t rows,
                         uint64_t moved[SPW_MOVED_COUNT])
{
    const struct spw_block_place at = spw_plan_block(p, w, w->n_blocks + v->expert);
    const bool on_host = spw_plan_computes_on_host(p, rows);
    if (on_host)
        moved[SPW_MOVED_HOST_TO_DEVICE] += v->n_rows * spw_plan_expert_row_bytes(p, w);
    if (!on_host || v->frame != SPW_NO_FRAME)
        moved[SPW_MOVED_HOST_TO_DEVICE] += at.moved_bytes;
    moved[SPW_MOVED_DISK_TO_HOST] += at.disk_bytes;
}

void spw_plan_size_blocks(struct spw_plan *p, const struct spw_weights *w)
{
    p->weight_slot_bytes = p->weight_bounce_bytes = 0;
    for (uint32_t u = 0; u < w->n_blocks; u++) {
        bool as_in_file = spw_plan_block(p, w, u).as_in_file;
        uint64_t packed = w->blocks[u].bytes, read = w->blocks[u].read_bytes;
        p->weight_slot_bytes =
            spw_max_u64(p->weight_slot_bytes, as_in_file ? spw_max_u64(packed, read) : packed);
        if (!as_in_file && w->blocks[u].as_stored)
            p->weight_bounce_bytes = spw_max_u64(p->weight_bounce_bytes, read);
    }
    p->weight_slot_bytes = spw_plan_pages(p->weight_slot_bytes);
    p->expert_copied_bytes = p->expert_mapped_bytes = p->expert_packed_bytes = 0;
    for (uint32_t u = w->n_blocks; u < w->n_blocks + w->n_expert_blocks; u++) {
        const struct spw_block_place at = spw_plan_block(p, w, u);
        uint64_t bytes = spw_plan_pages(w->blocks[u].bytes);
        *(at.as_in_file ? &p->expert_mapped_bytes : &p->expert_copied_bytes) += bytes;
        p->expert_packed_bytes += at.packed ? bytes : 0;
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
    const struct spw_experts_config *e = &w->config->experts;
    uint64_t of_row = p->n_expert_frames || !e->n ? 0 : p->expert_copied_bytes / e->n * e->n_kept;
    uint64_t of_host = 0, others = 0; /* bytes that the host could multiply, and that must cross */
    uint32_t n_of_host = 0;
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
    p->source_streamed_bytes = p->source_disk_bytes = 0;
    p->n_link_blocks = 0;
    for (uint32_t u = 0; u < w->n_blocks; u++) {
        const struct spw_block_place at = spw_plan_block(p, w, u);
        uint64_t bytes = spw_plan_pages(w->blocks[u].bytes);
        if (at.resident)
            *(at.as_in_file ? &p->mapped_bytes : &p->copied_bytes) += bytes;
        if (at.packed)
            p->packed_bytes += bytes;
        else if (!at.resident && !at.from_disk)
            p->page_cache_bytes += bytes;
        bounces |= at.from_disk && !at.as_in_file;
        const uint64_t streamed = at.resident || at.from_disk ? 0 : at.moved_bytes;
        if (u < w->config->n_source_layers) {
            p->source_streamed_bytes += streamed;
            p->source_disk_bytes += at.disk_bytes;
            continue;
        }
        p->streamed_bytes += streamed;
        p->disk_read_bytes += at.disk_bytes;
        of_row += at.resident ? bytes : 0;
        const bool may = may_multiply(p, w, u);
        n_of_host += may;
        *(may ? &of_host : &others) += at.resident ? 0 : at.moved_bytes;
    }
    p->n_weight_bounce = bounces ? p->n_weight_slots : 0;
    p->n_link_blocks = spw_host_link_blocks(&p->host_rates, n_of_host, of_host, others, of_row);
    p->host_read_bytes = p->host_layer_rows ? of_host : 0;
}
