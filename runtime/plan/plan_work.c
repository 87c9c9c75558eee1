/* What a decode step computes for a row: see plan_work.h. */
#include "runtime/plan/plan_work.h"

#include "quant/types.h"

#include <math.h>
#include <string.h>

static void count_reads(struct spw_plan *p, const struct spw_weights *w)
{
    const struct spw_model_config *c = w->config;
    struct spw_plan_info *i = &p->info;
    i->decode_read_bytes = i->decode_weights_bytes;
    i->decode_old_kv_bytes = i->decode_old_products = i->decode_products = 0;
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
        i->decode_old_products += layers * old * SPW_TILE_TOKENS * row;
        i->decode_products += layers * exact * row;
    }
}

/* Whether the matrix is one product with the matrix before it: both lie side by side, in the packed
 * form of their block or in the file. */
static bool is_joined(const struct spw_weights *w, const struct spw_weight_block *b, uint32_t m)
{
    const struct spw_matrix *own = &w->matrices[m], *before = own - 1;
    const struct spw_piece *at = &w->pieces[m];
    const bool side_by_side =
        own->role == SPW_MATRIX_K || own->role == SPW_MATRIX_V || own->role == SPW_MATRIX_UP;
    if (m == b->first || !side_by_side || before->role + 1 != own->role ||
        before->type != own->type)
        return false;
    return !b->as_stored || !b->mappable ||
           (const uint8_t *)at[-1].from + at[-1].bytes == (const uint8_t *)at->from;
}

uint64_t spw_plan_short_bytes(uint64_t bytes, uint64_t k)
{
    const double least = 1.0 / SPW_LONG_ROW, most = 1.0 / SPW_SHORT_ROW;
    const double share = (1.0 / (double)k - least) / (most - least);
    return (uint64_t)((double)bytes * fmin(fmax(share, 0), 1));
}

static void count_block(struct spw_plan_info *i, const struct spw_weights *w,
                        const struct spw_weight_block *b, bool is_expert)
{
    for (uint32_t m = b->first; m < b->first + b->n; m++) {
        const struct spw_matrix *own = &w->matrices[m];
        struct spw_decode_products *of = &i->decode_products_of[own->type];
        const uint64_t bytes = own->n * spw_row_bytes(own->type, own->k), n = !is_joined(w, b, m);
        *(is_expert ? &of->experts.bytes : &of->dense.bytes) += bytes;
        *(is_expert ? &of->experts.short_bytes : &of->dense.short_bytes) +=
            spw_plan_short_bytes(bytes, own->k);
        *(is_expert ? &of->experts.n : &of->dense.n) += n;
    }
}

static void count_router(struct spw_plan_info *i, const struct spw_model_config *c)
{
    struct spw_decode_products *of = &i->decode_products_of[SPW_DTYPE_F32];
    const uint64_t bytes = spw_row_bytes(SPW_DTYPE_F32, (uint64_t)c->experts.n * c->hidden);
    of->dense.bytes += bytes;
    of->dense.short_bytes += spw_plan_short_bytes(bytes, c->hidden);
    of->dense.n++;
}

/* A row uses n_kept experts of a layer: the mean counts. */
static void count_products(struct spw_plan *p, const struct spw_weights *w)
{
    const struct spw_experts_config *c = &w->config->experts;
    struct spw_plan_info *i = &p->info;
    memset(i->decode_products_of, 0, sizeof i->decode_products_of);
    for (uint32_t u = 0; u < w->n_blocks + w->n_expert_blocks; u++)
        count_block(i, w, &w->blocks[u], u >= w->n_blocks);
    i->n_expert_layers = c->n ? w->n_expert_blocks / c->n : 0;
    i->n_experts_kept = c->n_kept;
    for (int t = 0; t < SPW_WEIGHT_TYPES && c->n; t++) {
        struct spw_decode_products *of = &i->decode_products_of[t];
        of->experts.bytes = of->experts.bytes * c->n_kept / c->n;
        of->experts.short_bytes = of->experts.short_bytes * c->n_kept / c->n;
        of->experts.n = of->experts.n * (spw_plan_finds_experts(p, 1) ? 1 : c->n_kept) / c->n;
    }
    for (uint32_t layer = 0; layer < w->config->n_layers; layer++)
        if (w->config->has_experts[layer])
            count_router(i, w->config);
}

static void count_row(struct spw_plan_info *i, uint64_t n, uint64_t numbers)
{
    i->decode_row_operations += n;
    i->decode_row_numbers += n * numbers;
}

/* Norms, rotations and attention (whose numbers are those of KV); the choice of experts, and the
 * sum of their outputs. */
static void count_row_operations(struct spw_plan_info *i, const struct spw_weights *w)
{
    const struct spw_model_config *c = w->config;
    i->decode_row_operations = i->decode_row_numbers = 0;
    for (uint32_t layer = 0; layer < c->n_layers; layer++) {
        const struct spw_layer_small *v = &w->small_layers[layer];
        const uint64_t norms[] = {v->attention_norm, v->mlp_norm,          v->after_attention_norm,
                                  v->after_mlp_norm, v->after_inputs_norm, v->experts_norm,
                                  v->router_norm,    v->after_dense_norm,  v->after_experts_norm};
        for (size_t n = 0; n < sizeof norms / sizeof *norms; n++)
            count_row(i, norms[n] != SPW_SMALL_NONE, c->hidden);
        count_row(i, 1, spw_config_qkv_width(c, layer));
        count_row(i, spw_config_layer_slices(c, layer), 0);
        if (c->has_experts[layer]) {
            count_row(i, 1, c->experts.n);
            count_row(i, 1, (uint64_t)c->experts.n_kept * c->hidden);
        }
    }
    count_row(i, 1, c->hidden); /* the last norm */
}

void spw_plan_count_work(struct spw_plan *p, const struct spw_weights *w)
{
    count_reads(p, w);
    count_products(p, w);
    count_row_operations(&p->info, w);
}
