/* What a decode step computes for a row: see plan_work.h. */
#include "runtime/plan/plan_work.h"

#include "quant/types.h"

static void count_reads(struct spw_plan *p, const struct spw_weights *w)
{
    const struct spw_model_config *c = w->config;
    struct spw_plan_info *i = &p->info;
    i->decode_read_bytes = i->decode_weights_bytes;
    i->decode_old_kv_bytes = i->decode_products = 0;
    for (int k = 0; k < SPW_LAYER_KINDS; k++) {
        const struct spw_kv_shape *kv = &c->kv[k];
        uint64_t layers = p->n_readers[k] / kv->n_slices;
        uint64_t row = (uint64_t)c->n_heads * kv->head_dim;
        uint64_t per_token = 2 * spw_row_bytes(p->info.kv, (uint64_t)kv->n_heads * kv->head_dim);
        uint64_t seen = p->residency[k].window.tokens ? spw_min_u64(p->info.context, c->window)
                                                      : p->info.context;
        uint64_t old = p->residency[k].quantizes ? p->full_tiles : 0;
        uint64_t exact = seen - old * SPW_TILE_TOKENS;
        uint64_t old_bytes = p->n_readers[k] * old * p->tile_bytes;
        i->decode_read_bytes += old_bytes + layers * exact * per_token;
        i->decode_old_kv_bytes += old_bytes;
        i->decode_products += layers * seen * row;
    }
}

/* A row uses n_kept experts of a layer: the mean counts. */
static void count_weights(struct spw_plan_info *i, const struct spw_weights *w)
{
    const struct spw_experts_config *c = &w->config->experts;
    i->decode_weights = i->decode_quantized_weights = 0;
    i->n_expert_layers = c->n ? w->n_expert_blocks / c->n : 0;
    i->n_experts_kept = c->n_kept;
    for (uint32_t u = 0; u < w->n_blocks + w->n_expert_blocks; u++) {
        const struct spw_matrix *end = &w->matrices[w->blocks[u].first + w->blocks[u].n];
        for (const struct spw_matrix *m = end - w->blocks[u].n; m < end; m++) {
            uint64_t n = m->n * m->k;
            if (u >= w->n_blocks)
                n = n * c->n_kept / c->n;
            i->decode_weights += n;
            i->decode_quantized_weights += spw_type_is_quantized(m->type) ? n : 0;
        }
    }
}

void spw_plan_count_work(struct spw_plan *p, const struct spw_weights *w)
{
    count_reads(p, w);
    count_weights(&p->info, w);
}
