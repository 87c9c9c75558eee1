/* One layer, one line per operation: see forward.h. Families differ only in which lines apply. */
#include "model/forward.h"

#include "quant/types.h"

/* A vector of `small`, or NULL. */
static const float *vector(const struct spw_forward *f, uint64_t at)
{
    return at == SPW_SMALL_NONE ? NULL : f->small + at;
}

/* y = norm(x), row by row, plus the residual if there is one, times the factor if there is one. */
static int norm_of(const struct spw_forward *f, enum spw_norm_kind kind, uint64_t weight,
                   const void *x, const void *residual, uint64_t factor, void *y, size_t rows)
{
    const struct spw_model_config *c = f->weights->config;
    const bool has_bias = c->norm_bias && kind != SPW_NORM_NONE;
    return f->ops->norm(
        &(struct spw_norm_args){.x = x,
                                .y = y,
                                .residual = residual,
                                .weight = f->small + weight,
                                .bias = has_bias ? f->small + weight + c->hidden : NULL,
                                .factor = vector(f, factor),
                                .rows = rows,
                                .cols = c->hidden,
                                .x_stride = c->hidden,
                                .y_stride = c->hidden,
                                .eps = c->rms_eps,
                                .kind = kind,
                                .dtype = f->dtype},
        f->stream);
}

static int norm(const struct spw_forward *f, uint64_t weight, const void *x, const void *residual,
                void *y, size_t rows)
{
    return norm_of(f, f->weights->config->norm, weight, x, residual, SPW_SMALL_NONE, y, rows);
}

/* h = (h + norm(x)) times the factor, if there is one. */
static int norm_added(const struct spw_forward *f, uint64_t weight, const void *x, uint64_t factor,
                      void *h, size_t rows)
{
    return norm_of(f, f->weights->config->norm, weight, x, h, factor, h, rows);
}

/* What multiplies the rows that leave the layer: its last half does that. */
static uint64_t factor_after_mlp(const struct spw_forward *f, const struct spw_layer_small *v)
{
    return f->weights->config->layer_inputs ? SPW_SMALL_NONE : v->layer_scale;
}

/* y = x W^T, plus the residual if there is one, for several matrices whose outputs are side by side
 * in y. Matrices of one type that are also adjacent in memory become one product. This does not
 * change the bits of an output. */
static int linear(const struct spw_forward *f, const struct spw_operand *m, int n_matrices,
                  uint64_t bias, const void *x, const void *residual, void *y, size_t rows)
{
    const size_t k = m->k;
    size_t stride = 0, done = 0;
    bool has_codes = false;
    for (int i = 0; i < n_matrices; i++)
        stride += m[i].n;
    for (int i = 0; i < n_matrices;) {
        const struct spw_operand *first = &m[i];
        size_t n = 0;
        for (; i < n_matrices && m[i].type == first->type &&
               m[i].w == first->w + n * spw_row_bytes(first->type, k);
             i++)
            n += m[i].n;
        const size_t at = spw_row_bytes(f->dtype, done);
        SPW_TRY(f->ops->linear(
            &(struct spw_linear_args){.x = x,
                                      .w = first->w,
                                      .bias =
                                          bias == SPW_SMALL_NONE ? NULL : f->small + bias + done,
                                      .y = (uint8_t *)y + at,
                                      .residual = residual ? (const uint8_t *)residual + at : NULL,
                                      .m = rows,
                                      .n = n,
                                      .k = k,
                                      .x_stride = k,
                                      .y_stride = stride,
                                      .x_dtype = f->dtype,
                                      .w_dtype = first->type,
                                      .y_dtype = f->dtype,
                                      .workspace = f->b.workspace,
                                      .codes = f->b.codes,
                                      .has_codes = has_codes},
            f->stream));
        has_codes |= spw_type_is_quantized(first->type);
        done += n;
    }
    return 0;
}

/* h += x W^T; in a family with a norm after the product, h += norm(x W^T); in one that scales what
 * is added, h += scale x W^T; and then times the factor, if there is one. b.x is free at this
 * point. */
static int linear_added(const struct spw_forward *f, const struct spw_operand *m, uint64_t bias,
                        uint64_t after_norm, uint64_t factor, const void *x, void *h, size_t rows)
{
    const uint64_t scale = f->weights->residual_scale;
    if (after_norm == SPW_SMALL_NONE && scale == SPW_SMALL_NONE)
        return linear(f, m, 1, bias, x, h, h, rows);
    SPW_TRY(linear(f, m, 1, bias, x, NULL, f->b.x, rows));
    if (after_norm == SPW_SMALL_NONE)
        return norm_of(f, SPW_NORM_NONE, scale, f->b.x, h, SPW_SMALL_NONE, h, rows);
    return norm_added(f, after_norm, f->b.x, factor, h, rows);
}

/* b.gated = act(x gate^T) * (x up^T). */
static int gated_linear(const struct spw_forward *f, const struct spw_layer_weights *m,
                        uint64_t bias, const void *x, size_t rows)
{
    const struct spw_operand *gate = &m->of[SPW_MATRIX_GATE], *up = &m->of[SPW_MATRIX_UP];
    const struct spw_gated_linear_args a = {.x = x,
                                            .w_gate = gate->w,
                                            .w_up = up->w,
                                            .bias = bias == SPW_SMALL_NONE ? NULL : f->small + bias,
                                            .y = f->b.gated,
                                            .scratch = f->b.gate_up,
                                            .m = rows,
                                            .n = gate->n,
                                            .k = gate->k,
                                            .x_stride = gate->k,
                                            .dtype = f->dtype,
                                            .gate_dtype = gate->type,
                                            .up_dtype = up->type,
                                            .act = f->weights->config->act,
                                            .workspace = f->b.workspace,
                                            .codes = f->b.codes};
    return f->ops->gated_linear(&a, f->stream);
}

/* b.gated = act(x up^T). */
static int plain_linear(const struct spw_forward *f, const struct spw_layer_weights *m,
                        uint64_t bias, const void *x, size_t rows)
{
    const struct spw_operand *up = &m->of[SPW_MATRIX_UP];
    SPW_TRY(linear(f, up, 1, bias, x, NULL, f->b.gated, rows));
    return f->ops->each(
        &(struct spw_each_args){
            .x = f->b.gated, .n = rows * up->n, .act = f->weights->config->act, .dtype = f->dtype},
        f->stream);
}

/* *x: what a product reads: norm(h) in b.x, or h in a family without a norm before the product. */
static int normed(const struct spw_forward *f, uint64_t weight, const void *h, const void **x,
                  size_t rows)
{
    *x = weight == SPW_SMALL_NONE ? h : f->b.x;
    return weight == SPW_SMALL_NONE ? 0 : norm(f, weight, h, NULL, f->b.x, rows);
}

/* Cuts q, k and v to a range, where the family does that. */
static int limit_qkv(const struct spw_forward *f, uint32_t layer, size_t rows)
{
    const struct spw_model_config *c = f->weights->config;
    if (c->qkv_limit <= 0)
        return 0;
    return f->ops->each(&(struct spw_each_args){.x = f->b.qkv,
                                                .n = rows * (size_t)spw_config_qkv_width(c, layer),
                                                .limit = c->qkv_limit,
                                                .dtype = f->dtype},
                        f->stream);
}

/* A norm over all heads of q, or of k, where they lie in b.qkv. */
static int norm_heads(const struct spw_forward *f, uint32_t layer, uint64_t weight, uint64_t first,
                      uint64_t n, size_t rows)
{
    const struct spw_model_config *c = f->weights->config;
    const size_t stride = (size_t)spw_config_qkv_width(c, layer);
    void *x = (uint8_t *)f->b.qkv + spw_row_bytes(f->dtype, first);
    return f->ops->norm(&(struct spw_norm_args){.x = x,
                                                .y = x,
                                                .weight = f->small + weight,
                                                .rows = rows,
                                                .cols = (size_t)n,
                                                .x_stride = stride,
                                                .y_stride = stride,
                                                .eps = c->rms_eps,
                                                .kind = c->norm,
                                                .dtype = f->dtype},
                        f->stream);
}

int spw_forward_project(const struct spw_forward *f, uint32_t layer,
                        const struct spw_layer_weights *m, const void *h, size_t rows)
{
    const struct spw_layer_small *v = &f->weights->small_layers[layer];
    const struct spw_model_config *c = f->weights->config;
    const void *x;
    SPW_TRY(normed(f, v->attention_norm, h, &x, rows));
    int n = SPW_MATRIX_Q;
    while (n <= SPW_MATRIX_V && m->of[n].n)
        n++;
    SPW_TRY(linear(f, &m->of[SPW_MATRIX_Q], n, v->qkv_bias, x, NULL, f->b.qkv, rows));
    if (c->qk_norm_whole) {
        const uint64_t q = spw_config_q_width(c, layer);
        SPW_TRY(norm_heads(f, layer, v->q_norm, 0, q, rows));
        SPW_TRY(norm_heads(f, layer, v->k_norm, q, spw_config_kv_width(c, layer), rows));
    }
    return limit_qkv(f, layer, rows);
}

int spw_forward_output(const struct spw_forward *f, uint32_t layer,
                       const struct spw_layer_weights *m, void *h, size_t rows)
{
    const struct spw_layer_small *v = &f->weights->small_layers[layer];
    return linear_added(f, &m->of[SPW_MATRIX_O], v->o_bias, v->after_attention_norm, SPW_SMALL_NONE,
                        f->b.attention, h, rows);
}

int spw_forward_mlp(const struct spw_forward *f, uint32_t layer, const struct spw_layer_weights *m,
                    void *h, size_t rows)
{
    const struct spw_layer_small *v = &f->weights->small_layers[layer];
    const void *x = f->b.x; /* in a parallel layer project has left it there */
    if (!f->weights->config->parallel)
        SPW_TRY(normed(f, v->mlp_norm, h, &x, rows));
    SPW_TRY((f->weights->config->plain_mlp ? plain_linear : gated_linear)(f, m, v->gate_up_bias, x,
                                                                          rows));
    return linear_added(f, &m->of[SPW_MATRIX_DOWN], v->down_bias, v->after_mlp_norm,
                        factor_after_mlp(f, v), f->b.gated, h, rows);
}

/* ---- numbers that each layer gets beside the hidden state ---- */

/* *own = (norm(embedding W^T) + *own) / sqrt(2), for the numbers of this layer. A norm of rows that
 * are multiplied by hidden^-0.5 is one of the rows themselves with another epsilon. */
static int prepare_inputs(const struct spw_forward *f, const struct spw_layer_weights *m,
                          const void *embedding, void *own, size_t rows)
{
    const struct spw_model_config *c = f->weights->config;
    SPW_TRY(
        linear(f, &m->of[SPW_MATRIX_INPUT], 1, SPW_SMALL_NONE, embedding, NULL, f->b.gated, rows));
    return f->ops->norm(&(struct spw_norm_args){.x = f->b.gated,
                                                .y = own,
                                                .residual = own,
                                                .weight = f->small + f->weights->inputs_norm,
                                                .factor = f->small + f->weights->inputs_factor,
                                                .rows = rows,
                                                .cols = c->layer_inputs,
                                                .x_stride = c->layer_inputs,
                                                .y_stride = (size_t)c->n_layers * c->layer_inputs,
                                                .eps = c->rms_eps * (float)c->hidden,
                                                .kind = c->norm,
                                                .dtype = f->dtype},
                        f->stream);
}

int spw_forward_inputs(const struct spw_forward *f, uint32_t layer,
                       const struct spw_layer_weights *m, const void *embedding, void *inputs,
                       void *h, size_t rows)
{
    const struct spw_model_config *c = f->weights->config;
    const struct spw_layer_small *v = &f->weights->small_layers[layer];
    void *own = (uint8_t *)inputs + spw_row_bytes(f->dtype, (uint64_t)layer * c->layer_inputs);
    if (!c->layer_inputs)
        return 0;
    SPW_TRY(prepare_inputs(f, m, embedding, own, rows));
    SPW_TRY(linear(f, &m->of[SPW_MATRIX_INPUT_GATE], 1, SPW_SMALL_NONE, h, NULL, f->b.gated, rows));
    SPW_TRY(
        f->ops->gated(&(struct spw_gated_args){.gate = f->b.gated,
                                               .up = own,
                                               .y = f->b.gated,
                                               .rows = rows,
                                               .cols = c->layer_inputs,
                                               .gate_stride = c->layer_inputs,
                                               .up_stride = (size_t)c->n_layers * c->layer_inputs,
                                               .act = c->act,
                                               .dtype = f->dtype},
                      f->stream));
    return linear_added(f, &m->of[SPW_MATRIX_INPUT_OUT], SPW_SMALL_NONE, v->after_inputs_norm,
                        v->layer_scale, f->b.gated, h, rows);
}

/* ---- experts ---- */

static int combine(const struct spw_forward *f, const void *residual, void *h, const void *y,
                   const struct spw_choice *choices, const uint32_t *places, uint32_t n_kept,
                   bool unweighted, size_t rows)
{
    return f->ops->combine(&(struct spw_combine_args){.residual = residual,
                                                      .h = h,
                                                      .y = y,
                                                      .choices = choices,
                                                      .places = places,
                                                      .rows = rows,
                                                      .cols = f->weights->config->hidden,
                                                      .n_kept = n_kept,
                                                      .unweighted = unweighted,
                                                      .dtype = f->dtype},
                           f->stream);
}

static int route(const struct spw_forward *f, const struct spw_layer_small *v, const void *x,
                 struct spw_choice *choices, size_t rows)
{
    const struct spw_experts_config *e = &f->weights->config->experts;
    return f->ops->route(&(struct spw_route_args){.x = x,
                                                  .w = f->small + v->router,
                                                  .bias = vector(f, v->router_bias),
                                                  .choice_bias = vector(f, v->choice_bias),
                                                  .expert_scale = vector(f, v->expert_scale),
                                                  .scores = f->b.scores,
                                                  .choices = choices,
                                                  .rows = rows,
                                                  .cols = f->weights->config->hidden,
                                                  .n_experts = e->n,
                                                  .n_kept = e->n_kept,
                                                  .route = e->route,
                                                  .dtype = f->dtype},
                         f->stream);
}

/* A sigmoid of each row: the weight of a router with one expert. */
static int shared_gate(const struct spw_forward *f, const struct spw_layer_small *v, const void *x,
                       size_t rows)
{
    return f->ops->route(&(struct spw_route_args){.x = x,
                                                  .w = f->small + v->shared_gate,
                                                  .scores = f->b.scores,
                                                  .choices = f->b.gates,
                                                  .rows = rows,
                                                  .cols = f->weights->config->hidden,
                                                  .n_experts = 1,
                                                  .n_kept = 1,
                                                  .route = {.score = SPW_ROUTE_SIGMOID, .scale = 1},
                                                  .dtype = f->dtype},
                         f->stream);
}

/* h += the output of the expert that every row has, in some families times a sigmoid of the row. */
static int shared_expert(const struct spw_forward *f, const struct spw_layer_small *v,
                         const struct spw_layer_weights *m, const void *x, void *h, size_t rows)
{
    SPW_TRY(gated_linear(f, m, SPW_SMALL_NONE, x, rows));
    const struct spw_operand *down = &m->of[SPW_MATRIX_DOWN];
    if (!f->weights->config->experts.shared_gate)
        return linear_added(f, down, SPW_SMALL_NONE, SPW_SMALL_NONE, SPW_SMALL_NONE, f->b.gated, h,
                            rows);
    SPW_TRY(linear(f, down, 1, SPW_SMALL_NONE, f->b.gated, NULL, f->b.x, rows));
    SPW_TRY(shared_gate(f, v, x, rows));
    return combine(f, h, h, f->b.x, f->b.gates, NULL, 1, false, rows);
}

/* Router, experts and a dense mlp beside them, each with norms of its own. */
static int route_beside(const struct spw_forward *f, const struct spw_layer_small *v,
                        const struct spw_layer_weights *m, const struct spw_forward_experts *e,
                        const void *h, size_t rows)
{
    SPW_TRY(norm(f, v->experts_norm, h, NULL, e->x, rows));
    SPW_TRY(norm(f, v->router_norm, h, NULL, f->b.x, rows));
    SPW_TRY(route(f, v, f->b.x, e->choices, rows));
    SPW_TRY(norm(f, v->mlp_norm, h, NULL, f->b.x, rows));
    SPW_TRY(gated_linear(f, m, SPW_SMALL_NONE, f->b.x, rows));
    SPW_TRY(linear(f, &m->of[SPW_MATRIX_DOWN], 1, SPW_SMALL_NONE, f->b.gated, NULL, f->b.x, rows));
    return norm(f, v->after_dense_norm, f->b.x, NULL, e->dense, rows);
}

int spw_forward_route(const struct spw_forward *f, uint32_t layer,
                      const struct spw_layer_weights *m, const struct spw_forward_experts *e,
                      void *h, size_t rows)
{
    const struct spw_layer_small *v = &f->weights->small_layers[layer];
    if (f->weights->config->experts.beside)
        return route_beside(f, v, m, e, h, rows);
    SPW_TRY(norm(f, v->mlp_norm, h, NULL, e->x, rows));
    SPW_TRY(route(f, v, e->x, e->choices, rows));
    return m->of[SPW_MATRIX_DOWN].n ? shared_expert(f, v, m, e->x, h, rows) : 0;
}

/* The bias of an expert, of those of all; each has n numbers. */
static uint64_t bias_of(uint64_t all, uint32_t expert, uint64_t n)
{
    return all == SPW_SMALL_NONE ? SPW_SMALL_NONE : all + expert * n;
}

int spw_forward_expert(const struct spw_forward *f, uint32_t layer, uint32_t expert,
                       const struct spw_layer_weights *m, const void *x, const uint32_t *index,
                       const struct spw_choice *choices, void *y, size_t rows)
{
    const struct spw_experts_config *e = &f->weights->config->experts;
    const struct spw_layer_small *v = &f->weights->small_layers[layer];
    const struct spw_operand *down = &m->of[SPW_MATRIX_DOWN];
    const uint64_t gate_up_bias = bias_of(v->expert_gate_up_bias, expert, 2 * down->k);
    const uint64_t down_bias = bias_of(v->expert_down_bias, expert, down->n);
    if (index || e->weighted_inputs) {
        SPW_TRY(
            f->ops->gather(&(struct spw_gather_args){.x = x,
                                                     .index = index,
                                                     .y = f->b.x,
                                                     .choices = e->weighted_inputs ? choices : NULL,
                                                     .expert = expert,
                                                     .n_kept = e->n_kept,
                                                     .rows = rows,
                                                     .cols = f->weights->config->hidden,
                                                     .x_stride = f->weights->config->hidden,
                                                     .dtype = f->dtype},
                           f->stream));
        x = f->b.x;
    }
    SPW_TRY(gated_linear(f, m, gate_up_bias, x, rows));
    return linear(f, down, 1, down_bias, f->b.gated, NULL, y, rows);
}

int spw_forward_chosen(const struct spw_forward *f, uint32_t layer,
                       const struct spw_layer_weights *like, const struct spw_choice *choices,
                       const void *const *addresses, size_t step, const void *x, void *y)
{
    const struct spw_layer_small *v = &f->weights->small_layers[layer];
    const struct spw_operand *gate = &like->of[SPW_MATRIX_GATE], *up = &like->of[SPW_MATRIX_UP];
    const struct spw_operand *down = &like->of[SPW_MATRIX_DOWN];
    const size_t n = f->weights->config->experts.n_kept;
    const bool weighted = f->weights->config->experts.weighted_inputs;
    if (weighted) { /* a row for each choice */
        SPW_TRY(f->ops->gather(&(struct spw_gather_args){.x = x,
                                                         .y = f->b.x,
                                                         .choices = choices,
                                                         .n_kept = 1,
                                                         .rows = n,
                                                         .cols = gate->k,
                                                         .dtype = f->dtype},
                               f->stream));
        x = f->b.x;
    }
    SPW_TRY(f->ops->gated_linear(
        &(struct spw_gated_linear_args){.x = x,
                                        .x_stride = weighted ? gate->k : 0,
                                        .w_gate = gate->w,
                                        .w_up = up->w,
                                        .bias = vector(f, v->expert_gate_up_bias),
                                        .y = f->b.gated,
                                        .scratch = f->b.gate_up,
                                        .m = n,
                                        .n = gate->n,
                                        .k = gate->k,
                                        .dtype = f->dtype,
                                        .gate_dtype = gate->type,
                                        .up_dtype = up->type,
                                        .act = f->weights->config->act,
                                        .workspace = f->b.workspace,
                                        .codes = f->b.codes,
                                        .choices = choices,
                                        .gates = addresses,
                                        .ups = addresses + step},
        f->stream));
    return f->ops->linear(&(struct spw_linear_args){.x = f->b.gated,
                                                    .w = down->w,
                                                    .bias = vector(f, v->expert_down_bias),
                                                    .y = y,
                                                    .m = n,
                                                    .n = down->n,
                                                    .k = down->k,
                                                    .x_stride = down->k,
                                                    .y_stride = down->n,
                                                    .x_dtype = f->dtype,
                                                    .w_dtype = down->type,
                                                    .y_dtype = f->dtype,
                                                    .workspace = f->b.workspace,
                                                    .codes = f->b.codes,
                                                    .choices = choices,
                                                    .matrices = addresses + 2 * step,
                                                    .bias_step = down->n},
                          f->stream);
}

int spw_forward_combine(const struct spw_forward *f, uint32_t layer,
                        const struct spw_forward_experts *e, void *h, const void *y,
                        const uint32_t *places, size_t rows)
{
    const struct spw_layer_small *v = &f->weights->small_layers[layer];
    const struct spw_experts_config *c = &f->weights->config->experts;
    const bool unweighted = c->weighted_inputs;
    if (!c->beside)
        return combine(f, h, h, y, e->choices, places, c->n_kept, unweighted, rows);
    SPW_TRY(combine(f, NULL, e->x, y, e->choices, places, c->n_kept, unweighted, rows));
    SPW_TRY(norm(f, v->after_experts_norm, e->x, e->dense, e->dense, rows));
    return norm_added(f, v->after_mlp_norm, e->dense, factor_after_mlp(f, v), h, rows);
}

/* ---- the end ---- */

int spw_forward_final_norm(const struct spw_forward *f, const void *h, void *x, size_t rows)
{
    return norm(f, f->weights->final_norm, h, NULL, x, rows);
}

int spw_forward_head(const struct spw_forward *f, const struct spw_operand *head, const void *x,
                     float *logits, size_t first, size_t rows)
{
    const uint64_t bias = f->weights->head_bias;
    return f->ops->linear(
        &(struct spw_linear_args){.x = x,
                                  .w = head->w,
                                  .bias = bias == SPW_SMALL_NONE ? NULL : f->small + bias + first,
                                  .y = logits + first,
                                  .m = rows,
                                  .n = head->n,
                                  .k = head->k,
                                  .x_stride = head->k,
                                  .y_stride = f->weights->config->vocab,
                                  .x_dtype = f->dtype,
                                  .w_dtype = head->type,
                                  .y_dtype = SPW_DTYPE_F32,
                                  .workspace = f->b.workspace,
                                  .codes = f->b.codes,
                                  .has_codes = first > 0},
        f->stream);
}
