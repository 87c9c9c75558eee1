/* One layer, one line per operation: see forward.h. Families differ only in which lines apply. */
#include "model/forward_parts.h"

#include "quant/codes.h"

#include <assert.h>

/* y = norm(x), row by row. This and the next four functions fill in what all calls have. */
static struct spw_norm_args norm_args(const struct spw_forward *f, uint64_t weight, const void *x,
                                      void *y, size_t rows, size_t cols)
{
    return (struct spw_norm_args){.x = x,
                                  .y = y,
                                  .weight = spw_forward_vector(f, weight),
                                  .rows = rows,
                                  .cols = cols,
                                  .x_stride = cols,
                                  .y_stride = cols,
                                  .eps = f->weights->config->rms_eps,
                                  .kind = f->weights->config->norm,
                                  .dtype = f->dtype};
}

struct spw_linear_args spw_forward_linear_args(const struct spw_forward *f,
                                               const struct spw_operand *m, const void *x, void *y,
                                               size_t rows)
{
    return (struct spw_linear_args){.x = x,
                                    .w = m->w,
                                    .y = y,
                                    .m = rows,
                                    .n = m->n,
                                    .k = m->k,
                                    .x_stride = m->k,
                                    .y_stride = m->n,
                                    .x_dtype = f->dtype,
                                    .w_dtype = m->type,
                                    .y_dtype = f->dtype,
                                    .workspace = f->b.workspace,
                                    .codes = f->b.codes};
}

/* b.gated = act(x gate^T) * (x up^T) */
static struct spw_gated_linear_args gated_args(const struct spw_forward *f,
                                               const struct spw_layer_weights *m, uint64_t bias,
                                               const void *x, size_t rows)
{
    const struct spw_operand *gate = &m->of[SPW_MATRIX_GATE], *up = &m->of[SPW_MATRIX_UP];
    return (struct spw_gated_linear_args){.x = x,
                                          .w_gate = gate->w,
                                          .w_up = up->w,
                                          .bias = spw_forward_vector(f, bias),
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
}

/* The choice of one expert by w. */
static struct spw_route_args route_args(const struct spw_forward *f, uint64_t w, const void *x,
                                        struct spw_choice *choices, size_t rows)
{
    return (struct spw_route_args){.x = x,
                                   .w = f->small + w,
                                   .scores = f->b.scores,
                                   .choices = choices,
                                   .rows = rows,
                                   .cols = f->weights->config->hidden,
                                   .n_experts = 1,
                                   .n_kept = 1,
                                   .route = {.score = SPW_ROUTE_SIGMOID, .scale = 1},
                                   .dtype = f->dtype};
}

/* b.x = x, row by row, each times the weight that it gives to its expert, if there are choices. */
static struct spw_gather_args gather_args(const struct spw_forward *f, const void *x,
                                          const struct spw_choice *choices, size_t rows)
{
    return (struct spw_gather_args){.x = x,
                                    .y = f->b.x,
                                    .choices = choices,
                                    .n_kept = 1,
                                    .rows = rows,
                                    .cols = spw_config_expert_row(f->weights->config),
                                    .dtype = f->dtype};
}

int spw_forward_norm(const struct spw_forward *f, enum spw_norm_kind kind, float eps,
                     uint64_t weight, const void *x, const void *residual, uint64_t factor, void *y,
                     size_t rows)
{
    const struct spw_model_config *c = f->weights->config;
    struct spw_norm_args a = norm_args(f, weight, x, y, rows, c->hidden);
    a.residual = residual;
    a.bias = c->norm_bias && kind != SPW_NORM_NONE ? a.weight + c->hidden : NULL;
    a.factor = spw_forward_vector(f, factor);
    a.kind = kind;
    a.eps = eps;
    return f->ops->norm(&a, f->stream);
}

static int norm(const struct spw_forward *f, uint64_t weight, const void *x, const void *residual,
                void *y, size_t rows)
{
    const struct spw_model_config *c = f->weights->config;
    return spw_forward_norm(f, c->norm, c->rms_eps, weight, x, residual, SPW_SMALL_NONE, y, rows);
}

/* h = (h + norm(x)) times the factor, if there is one. */
static int norm_added(const struct spw_forward *f, uint64_t weight, const void *x, uint64_t factor,
                      void *h, size_t rows)
{
    const struct spw_model_config *c = f->weights->config;
    return spw_forward_norm(f, c->norm, c->post_eps, weight, x, h, factor, h, rows);
}

/* h = norm(h), if the model has this norm. */
static int norm_in_place(const struct spw_forward *f, uint64_t weight, void *h, size_t rows)
{
    return weight == SPW_SMALL_NONE ? 0 : norm(f, weight, h, NULL, h, rows);
}

/* What multiplies the rows that leave the layer: its last half does that. */
static uint64_t factor_after_mlp(const struct spw_forward *f, const struct spw_layer_small *v)
{
    return f->weights->config->layer_inputs ? SPW_SMALL_NONE : v->layer_scale;
}

int spw_forward_product(const struct spw_forward *f, const struct spw_operand *m,
                        const struct spw_linear_args *a, bool same_x)
{
    return m->on_host ? f->host->linear(f->host->context, a, same_x) : f->ops->linear(a, f->stream);
}

int spw_forward_linear(const struct spw_forward *f, const struct spw_operand *m, int n_matrices,
                       uint64_t bias, const void *x, const void *residual, void *y, size_t stride,
                       size_t rows)
{
    size_t done = 0;
    enum spw_dtype coded = SPW_DTYPE_AUTO; /* the last type that x has codes for */
    for (int i = 0; i < n_matrices;) {
        const struct spw_operand *first = &m[i];
        const size_t at = spw_row_bytes(f->dtype, done);
        struct spw_linear_args a = spw_forward_linear_args(f, first, x, (uint8_t *)y + at, rows);
        for (a.n = 0; i < n_matrices && m[i].type == first->type &&
                      m[i].w == first->w + a.n * spw_row_bytes(first->type, a.k);
             i++)
            a.n += m[i].n;
        a.bias = bias == SPW_SMALL_NONE ? NULL : f->small + bias + done;
        a.residual = residual ? (const uint8_t *)residual + at : NULL;
        a.y_stride = stride;
        a.has_codes = spw_codes_shared(coded, first->type);
        SPW_TRY(spw_forward_product(f, first, &a, done > 0));
        if (spw_type_is_quantized(first->type))
            coded = first->type;
        done += a.n;
    }
    return 0;
}

/* The same for one matrix. */
static int linear(const struct spw_forward *f, const struct spw_operand *m, uint64_t bias,
                  const void *x, const void *residual, void *y, size_t rows)
{
    return spw_forward_linear(f, m, 1, bias, x, residual, y, m->n, rows);
}

int spw_forward_linear_added(const struct spw_forward *f, const struct spw_operand *m,
                             enum spw_branch branch, uint64_t bias, uint64_t after_norm,
                             uint64_t factor, const void *x, void *h, size_t rows)
{
    const uint64_t scale =
        branch < SPW_BRANCHES ? f->weights->branch_scales[branch] : SPW_SMALL_NONE;
    void *y = m->on_host ? f->b.from_host : f->b.x;
    if (after_norm == SPW_SMALL_NONE && scale == SPW_SMALL_NONE && !m->on_host)
        return linear(f, m, bias, x, h, h, rows);
    SPW_TRY(linear(f, m, bias, x, NULL, y, rows));
    if (after_norm == SPW_SMALL_NONE)
        return spw_forward_norm(f, SPW_NORM_NONE, 0, scale, y, h, SPW_SMALL_NONE, h, rows);
    return norm_added(f, after_norm, y, factor, h, rows);
}

/* b.gated = act(b.gated), n rows. */
static int activate(const struct spw_forward *f, const struct spw_operand *up, size_t n)
{
    return f->ops->each(
        &(struct spw_each_args){
            .x = f->b.gated, .n = n * up->n, .act = f->weights->config->act, .dtype = f->dtype},
        f->stream);
}

/* b.gated = act(x gate^T) * (x up^T), or act(x up^T) in a family without gates. */
static int gated_linear(const struct spw_forward *f, const struct spw_layer_weights *m,
                        uint64_t bias, const void *x, size_t rows)
{
    const struct spw_operand *up = &m->of[SPW_MATRIX_UP];
    const struct spw_gated_linear_args a = gated_args(f, m, bias, x, rows);
    if (!f->weights->config->plain_mlp)
        return up->on_host ? f->host->gated_linear(f->host->context, &a)
                           : f->ops->gated_linear(&a, f->stream);
    SPW_TRY(linear(f, up, bias, x, NULL, f->b.gated, rows));
    return activate(f, up, rows);
}

int spw_forward_normed(const struct spw_forward *f, uint64_t weight, const void *h, const void **x,
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
    void *x = (uint8_t *)f->b.qkv + spw_row_bytes(f->dtype, first);
    struct spw_norm_args a = norm_args(f, weight, x, x, rows, (size_t)n);
    a.x_stride = a.y_stride = (size_t)spw_config_qkv_width(f->weights->config, layer);
    return f->ops->norm(&a, f->stream);
}

/* Where the matrix of q gives q and a gate for each head, both stay beside k and v. */
static int project_qkv(const struct spw_forward *f, uint32_t layer,
                       const struct spw_layer_weights *m, uint64_t bias, const void *x, size_t rows)
{
    const struct spw_model_config *c = f->weights->config;
    const struct spw_operand *q = &m->of[SPW_MATRIX_Q];
    const size_t stride = (size_t)spw_config_qkv_width(c, layer);
    int n = 0;
    while (n <= SPW_MATRIX_V && q[n].n)
        n++;
    if (c->attention_gate != SPW_ATTENTION_GATE_IN_Q)
        return spw_forward_linear(f, q, n, bias, x, NULL, f->b.qkv, stride, rows);
    const size_t before = spw_row_bytes(f->dtype, spw_config_q_width(c, layer));
    SPW_TRY(linear(f, q, bias, x, NULL, f->b.attention_gate, rows));
    return spw_forward_linear(f, q + 1, n - 1, bias == SPW_SMALL_NONE ? bias : bias + q->n, x, NULL,
                              (uint8_t *)f->b.qkv + before, stride, rows);
}

int spw_forward_embedded(const struct spw_forward *f, bool source, void *h, size_t rows)
{
    return norm_in_place(f, f->weights->embedding_norm[!source], h, rows);
}

int spw_forward_project(const struct spw_forward *f, uint32_t layer,
                        const struct spw_layer_weights *m, const void *h, size_t rows)
{
    const struct spw_layer_small *v = &f->weights->small_layers[layer];
    const struct spw_model_config *c = f->weights->config;
    const void *x;
    SPW_TRY(spw_forward_normed(f, v->attention_norm, h, &x, rows));
    SPW_TRY(project_qkv(f, layer, m, v->qkv_bias, x, rows));
    if (c->attention_gate == SPW_ATTENTION_GATE_APART)
        SPW_TRY(linear(f, &m->of[SPW_MATRIX_O_GATE], SPW_SMALL_NONE, x, NULL, f->b.attention_gate,
                       rows));
    if (c->qk_norm_whole) {
        const uint64_t q = spw_config_q_width(c, layer);
        SPW_TRY(norm_heads(f, layer, v->q_norm, 0, q, rows));
        SPW_TRY(norm_heads(f, layer, v->k_norm, q, spw_config_kv_width(c, layer), rows));
    }
    return limit_qkv(f, layer, rows);
}

int spw_forward_project_source(const struct spw_forward *f, uint32_t layer,
                               const struct spw_layer_weights *m, const void *h, size_t rows)
{
    const struct spw_model_config *c = f->weights->config;
    const uint64_t weight = layer < c->n_source_layers
                                ? f->weights->small_layers[layer].attention_norm
                                : f->weights->source_norm; /* the last one of the encoder */
    const size_t stride = 2 * (size_t)spw_config_kv_width(c, layer);
    const void *x;
    SPW_TRY(spw_forward_normed(f, weight, h, &x, rows));
    return spw_forward_linear(f, &m->of[SPW_MATRIX_SOURCE_K], 2,
                              f->weights->small_layers[layer].source_bias, x, NULL, f->b.qkv,
                              stride, rows);
}

/* b.attention times the sigmoid of its gates. */
static int gate_attention(const struct spw_forward *f, uint32_t layer, size_t rows)
{
    const struct spw_model_config *c = f->weights->config;
    const uint32_t width = spw_config_kv(c, layer)->head_dim;
    const uint32_t before = c->attention_gate == SPW_ATTENTION_GATE_IN_Q ? width : 0;
    const struct spw_gated_norm_args a = {
        .x = f->b.attention,
        .gate = f->b.attention_gate,
        .gate_stride = (size_t)spw_config_gate_width(c, layer),
        .gates = {before, width, 1, before + width},
        .y = f->b.attention,
        .rows = rows,
        .n_groups = c->n_heads,
        .cols = width,
        .act = SPW_ACT_SIGMOID,
        .x_dtype = f->dtype,
        .dtype = f->dtype,
    };
    return c->attention_gate == SPW_ATTENTION_PLAIN ? 0 : f->ops->gated_norm(&a, f->stream);
}

int spw_forward_output(const struct spw_forward *f, uint32_t layer,
                       const struct spw_layer_weights *m, void *h, size_t rows)
{
    const struct spw_layer_small *v = &f->weights->small_layers[layer];
    SPW_TRY(gate_attention(f, layer, rows));
    SPW_TRY(spw_forward_linear_added(f, &m->of[SPW_MATRIX_O], SPW_BRANCH_ATTENTION, v->o_bias,
                                     v->after_attention_norm, SPW_SMALL_NONE, f->b.attention, h,
                                     rows));
    return norm_in_place(f, v->sum_norm, h, rows);
}

int spw_forward_mlp(const struct spw_forward *f, uint32_t layer, const struct spw_layer_weights *m,
                    void *h, size_t rows)
{
    const struct spw_layer_small *v = &f->weights->small_layers[layer];
    const void *x = f->b.x; /* in a parallel layer project has left it there */
    if (!f->weights->config->parallel)
        SPW_TRY(spw_forward_normed(f, v->mlp_norm, h, &x, rows));
    SPW_TRY(gated_linear(f, m, v->gate_up_bias, x, rows));
    SPW_TRY(spw_forward_linear_added(f, &m->of[SPW_MATRIX_DOWN], SPW_BRANCH_MLP, v->down_bias,
                                     v->after_mlp_norm, factor_after_mlp(f, v), f->b.gated, h,
                                     rows));
    return norm_in_place(f, v->mlp_sum_norm, h, rows);
}

/* ---- numbers that each layer gets beside the hidden state ---- */

/* *own = (norm(embedding W^T) + *own) / sqrt(2), for the numbers of this layer. A norm of rows that
 * are multiplied by hidden^-0.5 is one of the rows themselves with another epsilon. */
static int prepare_inputs(const struct spw_forward *f, const struct spw_layer_weights *m,
                          const void *embedding, void *own, size_t rows)
{
    const struct spw_model_config *c = f->weights->config;
    SPW_TRY(linear(f, &m->of[SPW_MATRIX_INPUT], SPW_SMALL_NONE, embedding, NULL, f->b.gated, rows));
    struct spw_norm_args a =
        norm_args(f, f->weights->inputs_norm, f->b.gated, own, rows, c->layer_inputs);
    a.residual = own;
    a.factor = f->small + f->weights->inputs_factor;
    a.y_stride = (size_t)c->n_layers * c->layer_inputs;
    a.eps = c->rms_eps * (float)c->hidden;
    return f->ops->norm(&a, f->stream);
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
    SPW_TRY(linear(f, &m->of[SPW_MATRIX_INPUT_GATE], SPW_SMALL_NONE, h, NULL, f->b.gated, rows));
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
    return spw_forward_linear_added(f, &m->of[SPW_MATRIX_INPUT_OUT], SPW_BRANCHES, SPW_SMALL_NONE,
                                    v->after_inputs_norm, v->layer_scale, f->b.gated, h, rows);
}

/* ---- experts ---- */

static int combine(const struct spw_forward *f, const void *residual, void *h, const void *y,
                   const struct spw_choice *choices, const uint32_t *places, uint32_t n_kept,
                   bool unweighted, size_t rows, size_t cols)
{
    return f->ops->combine(&(struct spw_combine_args){.residual = residual,
                                                      .h = h,
                                                      .y = y,
                                                      .choices = choices,
                                                      .places = places,
                                                      .rows = rows,
                                                      .cols = cols,
                                                      .n_kept = n_kept,
                                                      .unweighted = unweighted,
                                                      .dtype = f->dtype},
                           f->stream);
}

static int route(const struct spw_forward *f, const struct spw_layer_small *v, const void *x,
                 struct spw_choice *choices, size_t rows)
{
    const struct spw_experts_config *e = &f->weights->config->experts;
    struct spw_route_args a = route_args(f, v->router, x, choices, rows);
    a.bias = spw_forward_vector(f, v->router_bias);
    a.choice_bias = spw_forward_vector(f, v->choice_bias);
    a.expert_scale = spw_forward_vector(f, v->expert_scale);
    a.n_experts = e->n;
    a.n_kept = e->n_kept;
    a.route = e->route;
    return f->ops->route(&a, f->stream);
}

/* h += the output of the expert that every row has, in some families times a sigmoid of the row. */
static int shared_expert(const struct spw_forward *f, const struct spw_layer_small *v,
                         const struct spw_layer_weights *m, const void *x, void *h, size_t rows)
{
    SPW_TRY(gated_linear(f, m, v->gate_up_bias, x, rows));
    const struct spw_operand *down = &m->of[SPW_MATRIX_DOWN];
    if (!f->weights->config->experts.shared_gate)
        return spw_forward_linear_added(f, down, SPW_BRANCH_MLP, v->down_bias, SPW_SMALL_NONE,
                                        SPW_SMALL_NONE, f->b.gated, h, rows);
    SPW_TRY(linear(f, down, v->down_bias, f->b.gated, NULL, f->b.x, rows));
    const struct spw_route_args sigmoid = route_args(f, v->shared_gate, x, f->b.gates, rows);
    SPW_TRY(f->ops->route(&sigmoid, f->stream));
    return combine(f, h, h, f->b.x, f->b.gates, NULL, 1, false, rows, f->weights->config->hidden);
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
    SPW_TRY(linear(f, &m->of[SPW_MATRIX_DOWN], SPW_SMALL_NONE, f->b.gated, NULL, f->b.x, rows));
    return norm(f, v->after_dense_norm, f->b.x, NULL, e->dense, rows);
}

int spw_forward_route(const struct spw_forward *f, uint32_t layer,
                      const struct spw_layer_weights *m, const struct spw_forward_experts *e,
                      void *h, size_t rows)
{
    const struct spw_layer_small *v = &f->weights->small_layers[layer];
    const struct spw_operand *latent = &m->of[SPW_MATRIX_LATENT_IN];
    void *x = latent->n ? f->b.x : e->x;
    if (f->weights->config->experts.beside)
        return route_beside(f, v, m, e, h, rows);
    SPW_TRY(norm(f, v->mlp_norm, h, NULL, x, rows));
    SPW_TRY(route(f, v, x, e->choices, rows));
    if (latent->n)
        SPW_TRY(linear(f, latent, v->latent_in_bias, x, NULL, e->x, rows));
    return m->of[SPW_MATRIX_DOWN].n ? shared_expert(f, v, m, x, h, rows) : 0;
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
        struct spw_gather_args a = gather_args(f, x, e->weighted_inputs ? choices : NULL, rows);
        a.index = index;
        a.expert = expert;
        a.n_kept = e->n_kept;
        a.x_stride = a.cols;
        SPW_TRY(f->ops->gather(&a, f->stream));
        x = f->b.x;
    }
    SPW_TRY(gated_linear(f, m, gate_up_bias, x, rows));
    return linear(f, down, down_bias, f->b.gated, NULL, y, rows);
}

/* b.gated: as of gated_linear, row i by the expert choices[i]. */
static int gated_chosen(const struct spw_forward *f, const struct spw_layer_weights *like,
                        uint64_t bias, const struct spw_choice *choices,
                        const void *const *addresses, size_t step, const void *x, size_t x_stride,
                        size_t n)
{
    const struct spw_operand *up = &like->of[SPW_MATRIX_UP];
    if (f->weights->config->plain_mlp) {
        struct spw_linear_args a = spw_forward_linear_args(f, up, x, f->b.gated, n);
        a.x_stride = x_stride;
        a.choices = choices;
        a.matrices = addresses + step;
        SPW_TRY(f->ops->linear(&a, f->stream));
        return activate(f, up, n);
    }
    struct spw_gated_linear_args g = gated_args(f, like, bias, x, n);
    g.x_stride = x_stride;
    g.choices = choices;
    g.gates = addresses;
    g.ups = addresses + step;
    return f->ops->gated_linear(&g, f->stream);
}

int spw_forward_chosen(const struct spw_forward *f, uint32_t layer,
                       const struct spw_layer_weights *like, const struct spw_choice *choices,
                       const void *const *addresses, size_t step, const void *x, void *y,
                       size_t rows)
{
    const struct spw_layer_small *v = &f->weights->small_layers[layer];
    const struct spw_operand *down = &like->of[SPW_MATRIX_DOWN];
    const struct spw_experts_config *e = &f->weights->config->experts;
    const size_t n = rows * e->n_kept;
    const bool gathers = e->weighted_inputs || rows > 1;
    if (gathers) { /* a row for each choice */
        struct spw_gather_args a = gather_args(f, x, e->weighted_inputs ? choices : NULL, n);
        a.times = e->n_kept;
        a.x_stride = a.cols;
        SPW_TRY(f->ops->gather(&a, f->stream));
        x = f->b.x;
    }
    SPW_TRY(gated_chosen(f, like, v->expert_gate_up_bias, choices, addresses, step, x,
                         gathers ? spw_config_expert_row(f->weights->config) : 0, n));
    struct spw_linear_args d = spw_forward_linear_args(f, down, f->b.gated, y, n);
    d.bias = spw_forward_vector(f, v->expert_down_bias);
    d.choices = choices;
    d.matrices = addresses + 2 * step;
    d.bias_step = down->n;
    return f->ops->linear(&d, f->stream);
}

int spw_forward_combine(const struct spw_forward *f, uint32_t layer,
                        const struct spw_layer_weights *m, const struct spw_forward_experts *e,
                        void *h, const void *y, const uint32_t *places, size_t rows)
{
    const struct spw_layer_small *v = &f->weights->small_layers[layer];
    const struct spw_experts_config *c = &f->weights->config->experts;
    const struct spw_operand *latent = &m->of[SPW_MATRIX_LATENT_OUT];
    const bool added = !c->beside && !latent->n;
    SPW_TRY(combine(f, added ? h : NULL, added ? h : e->x, y, e->choices, places, c->n_kept,
                    c->weighted_inputs, rows, spw_config_expert_row(f->weights->config)));
    if (added)
        return 0;
    if (latent->n)
        return spw_forward_linear_added(f, latent, SPW_BRANCHES, v->latent_out_bias, SPW_SMALL_NONE,
                                        SPW_SMALL_NONE, e->x, h, rows);
    SPW_TRY(norm(f, v->after_experts_norm, e->x, e->dense, e->dense, rows));
    return norm_added(f, v->after_mlp_norm, e->dense, factor_after_mlp(f, v), h, rows);
}

/* ---- the end ---- */

int spw_forward_final_norm(const struct spw_forward *f, bool mtp, const void *h, void *x,
                           size_t rows)
{
    const uint64_t weight = mtp ? f->weights->mtp_norm : f->weights->final_norm;
    assert(weight != SPW_SMALL_NONE || x == h); /* post_norms: the last layer has normed the rows */
    return weight == SPW_SMALL_NONE ? 0 : norm(f, weight, h, NULL, x, rows);
}

/* The first or the second half of rows of `joined`. */
static int join_half(const struct spw_forward *f, uint64_t weight, const void *x, void *joined,
                     int half, size_t rows)
{
    const uint64_t hidden = f->weights->config->hidden;
    const size_t at = half ? spw_row_bytes(f->dtype, hidden) : 0;
    struct spw_norm_args a = norm_args(f, weight, x, (uint8_t *)joined + at, rows, hidden);
    a.y_stride = 2 * hidden;
    return f->ops->norm(&a, f->stream);
}

int spw_forward_join_embedding(const struct spw_forward *f, const void *embedding, void *joined,
                               size_t rows)
{
    return join_half(f, f->weights->mtp_embedding_norm, embedding, joined, 0, rows);
}

int spw_forward_join(const struct spw_forward *f, const struct spw_layer_weights *m,
                     const void *hidden, void *joined, void *h, size_t rows)
{
    SPW_TRY(join_half(f, f->weights->mtp_hidden_norm, hidden, joined, 1, rows));
    return linear(f, &m->of[SPW_MATRIX_JOIN], SPW_SMALL_NONE, joined, NULL, h, rows);
}

int spw_forward_head(const struct spw_forward *f, const struct spw_operand *head, const void *x,
                     float *logits, size_t first, size_t rows)
{
    const uint64_t bias = f->weights->head_bias;
    struct spw_linear_args a = spw_forward_linear_args(f, head, x, logits + first, rows);
    a.bias = bias == SPW_SMALL_NONE ? NULL : f->small + bias + first;
    a.y_stride = f->weights->config->vocab;
    a.y_dtype = SPW_DTYPE_F32;
    a.has_codes = first > 0;
    return f->ops->linear(&a, f->stream);
}
