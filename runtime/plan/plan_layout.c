/* Where a plan's parts lie, and what of each tier they take: see plan_parts.h. */
#include "runtime/plan/plan_parts.h"

static uint64_t take(uint64_t *end, uint64_t bytes)
{
    uint64_t at = *end;
    *end = at + spw_plan_pages(bytes);
    return at;
}

void spw_plan_lay_out_work(struct spw_plan *p, const struct spw_plan_input *in,
                           uint64_t hidden_rows)
{
    const struct spw_model_config *c = in->weights->config;
    struct spw_plan_device *d = &p->device;
    uint64_t m = p->chunk, end = 0;
    uint64_t q = (uint64_t)c->n_heads * c->head_dim, kv = (uint64_t)c->n_kv_heads * c->head_dim;
    uint64_t gated = m * spw_row_bytes(in->compute, c->intermediate);
    uint64_t state = (uint64_t)c->n_heads * (c->head_dim + 2) * sizeof(float);
    d->small = take(&end, in->weights->n_small * sizeof(float));
    d->workspace = take(&end, in->workspace_bytes);
    d->hidden = take(&end, hidden_rows * p->hidden_row_bytes);
    d->x = take(&end, m * p->hidden_row_bytes);
    uint64_t other = end; /* attention is over before the mlp begins */
    d->qkv = take(&end, m * spw_row_bytes(in->compute, q + 2 * kv));
    d->attention = take(&end, m * spw_row_bytes(in->compute, q));
    d->state = take(&end, m * state);
    d->partials = take(&end, p->partials * state);
    d->gate_up = take(&other, in->gated_scratch ? 2 * gated : 0);
    d->gated = take(&other, gated);
    end = spw_max_u64(end, other);
    d->rows = take(&end, p->logits_rows * p->hidden_row_bytes);
    d->logits = take(&end, (uint64_t)p->logits_rows * c->vocab * sizeof(float));
    d->flags = take(&end, sizeof(uint32_t));
    d->weights = end;
    p->n_exact_frames = spw_plan_exact_frames(p, in);
}

void spw_plan_lay_out_rest(struct spw_plan *p, const struct spw_plan_input *in)
{
    const struct spw_model_config *c = in->weights->config;
    struct spw_plan_device *d = &p->device;
    struct spw_plan_host *h = &p->host;
    uint64_t end = d->weights;
    p->mapped_bytes = spw_plan_bytes_of(p, in->weights, spw_plan_block_mapped);
    take(&end, spw_plan_bytes_of(p, in->weights, spw_plan_block_resident) - p->mapped_bytes);
    d->weight_slots = take(&end, p->n_weight_slots * p->weight_slot_bytes);
    uint64_t frames = spw_plan_pages(p->n_device_frames * p->tile_bytes);
    d->kv_frames = take(&end, frames + spw_plan_exact_bytes(p));
    d->exact_frames = d->kv_frames + frames;
    if (p->n_exact_frames) /* where frames of exact tiles would be, if all were: see plan_replan.c
                            */
        d->exact_frames = d->kv_frames + spw_align_up(frames, p->exact_tile_bytes);
    d->kv_slots = take(&end, (uint64_t)p->n_kv_slots * p->slot_tiles * p->tile_bytes);
    d->end = end;
    end = 0;
    h->hidden = take(&end, p->hidden_on_host ? p->pass_rows * p->hidden_row_bytes : 0);
    h->staging = take(&end, 2 * p->chunk * p->hidden_row_bytes);
    h->logits = take(&end, (uint64_t)p->logits_rows * c->vocab * sizeof(float));
    h->session_logits = take(&end, (uint64_t)in->sessions * c->vocab * sizeof(float));
    h->flags = take(&end, sizeof(uint32_t));
    h->piece = take(&end, p->piece_bytes);
    h->packed = take(&end, spw_plan_bytes_of(p, in->weights, spw_plan_block_packed));
    h->weight_bounce = take(&end, p->n_weight_bounce * p->weight_bounce_bytes);
    h->kv_frames = take(&end, p->n_host_frames * p->tile_bytes);
    h->bounce = take(&end, (uint64_t)p->n_bounce * p->slot_tiles * p->tile_bytes);
    h->end = end;
}

uint64_t spw_plan_bytes_of(const struct spw_plan *p, const struct spw_weights *w,
                           bool (*is)(const struct spw_plan *, const struct spw_weights *,
                                      uint32_t))
{
    uint64_t bytes = 0;
    for (uint32_t u = 0; u < w->n_blocks; u++)
        if (is(p, w, u))
            bytes += spw_plan_pages(w->blocks[u].bytes);
    return bytes;
}

bool spw_plan_fits(const struct spw_plan *p, const struct spw_plan_input *in)
{
    return p->device.end + p->mapped_bytes <= in->device_bytes &&
           p->host.end + p->kept_bytes <= in->host_bytes;
}

/* ---- the account ---- */

/* Copies go to disk once. A sequence that grows token by token writes the most: none of its tiles
 * leaves a sliding window before it was written. */
static uint64_t disk_write_bytes(const struct spw_plan *p, const struct spw_plan_input *in)
{
    struct spw_lower b;
    uint64_t tiles;
    spw_lower_count(&b, p, in);
    tiles = spw_plan_n_full(p) * spw_plan_tiles_on_disk(p, &b, SPW_LAYER_FULL);
    const struct spw_residency *window = &p->residency[SPW_LAYER_SLIDING];
    if (spw_plan_tiles_on_disk(p, &b, SPW_LAYER_SLIDING))
        tiles += spw_plan_n_sliding(p) *
                 spw_waterline_disk(window, spw_waterline_begin(window, in->context));
    return in->sessions * tiles * p->tile_bytes;
}

void spw_plan_describe(struct spw_plan *p, const struct spw_plan_input *in)
{
    const struct spw_model_config *c = in->weights->config;
    struct spw_plan_info *i = &p->info;
    const struct spw_plan_device *d = &p->device;
    const struct spw_plan_host *h = &p->host;
    i->context = in->context;
    i->sessions = in->sessions;
    i->prefill_chunk = p->chunk;
    i->prefetch_slots = p->n_kv_slots;
    i->prefetch_splits = p->n_kv_slots ? p->slot_tiles / SPW_SPLIT_TILES : 0;
    i->compute = in->compute;
    i->kv = in->kv;
    i->precision = in->precision;
    i->residual_tokens = in->quantizes ? (uint64_t)in->residual_tiles * SPW_TILE_TOKENS : 0;
    i->device_budget_bytes = in->device_bytes;
    i->host_budget_bytes = in->host_bytes;
    i->disk_budget_bytes = in->disk_bytes;
    i->device.weights_resident =
        d->workspace - d->small + d->weight_slots - d->weights + p->mapped_bytes;
    i->device.weights_slots = d->kv_frames - d->weight_slots;
    i->device.kv_resident = d->kv_slots - d->kv_frames;
    i->device.kv_slots = d->end - d->kv_slots;
    i->device.hidden = d->x - d->hidden;
    i->device.activations = d->weights - d->x + d->hidden - d->workspace;
    i->device.total = d->end + p->mapped_bytes;
    i->host.kv = (p->n_host_frames - p->n_transit) * p->tile_bytes;
    i->host.disk_staging = h->end - h->weight_bounce - i->host.kv;
    i->host.hidden = h->staging - h->hidden;
    i->host.staging = h->packed - h->staging;
    i->host.weights = h->weight_bounce - h->packed + p->kept_bytes;
    i->host.total = h->end + p->kept_bytes;
    i->disk.kv = i->disk.total = p->n_disk_frames * p->tile_bytes;
    i->disk_write_bytes = disk_write_bytes(p, in);
    i->rolls_back = p->pins || (!spw_plan_n_sliding(p) && !in->quantizes);
    i->n_layers = c->n_layers;
    for (uint32_t u = 0; u < in->weights->n_blocks; u++) {
        i->weights_bytes += in->weights->blocks[u].bytes;
        bool of_layer = in->weights->blocks[u].layer != SPW_NO_LAYER;
        i->n_layers_resident += of_layer && spw_plan_block_resident(p, in->weights, u);
        i->n_layers_from_disk += of_layer && spw_plan_block_from_disk(p, in->weights, u);
        i->weights_disk_bytes += spw_plan_block_disk_bytes(p, in->weights, u);
    }
    i->kv_bytes_per_token = spw_plan_n_full(p) * p->tile_bytes / SPW_TILE_TOKENS;
    i->waterlines.n_tokens = in->context;
    const struct spw_residency *full = &p->residency[SPW_LAYER_FULL];
    uint32_t begin = spw_waterline_begin(full, in->context);
    if (spw_plan_n_full(p) && begin > spw_waterline_start(full))
        i->waterlines.host_end = (uint64_t)begin * SPW_TILE_TOKENS;
}
