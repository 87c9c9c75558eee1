/* Norms, biases and the places of rope frequencies, one after the other in one array: see
 * weights.h. */
#include "model/weights/weights_parts.h"

#include "model/config/config_rope.h"
#include "quant/types.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Room for n numbers; they have a place already when they are read. */
static void place(struct spw_weights *w, uint64_t n, uint64_t *at)
{
    if (*at == SPW_SMALL_NONE) {
        *at = w->n_small;
        w->n_small += n;
    }
}

/* A vector, or the matrix of a router. It gets its place at open and is read in prepare. */
static int small_tensor(struct spw_weights *w, const struct spw_tensor *t, uint64_t *at)
{
    const uint64_t cols = t->shape[t->n_dims - 1], rows = t->n_dims == 2 ? t->shape[0] : 1;
    place(w, rows * cols, at);
    for (uint64_t row = 0; w->small && row < rows; row++)
        spw_type_read(t->dtype, (const uint8_t *)t->data + row * spw_row_bytes(t->dtype, cols), 0,
                      (size_t)cols, w->small + *at + row * cols);
    if (!w->small)
        return 0;
    spw_tensors_release(t->data, t->bytes);
    return 0;
}

static int small_vector(struct spw_weights *w, const struct spw_finder *f, uint32_t layer,
                        const char *name, uint64_t n, uint64_t *at)
{
    const struct spw_tensor *t;
    SPW_TRY(spw_find_in_layer(f, layer, name, n, 0, &t));
    return small_tensor(w, t, at);
}

/* A vector, or a matrix of one row, as some folders have it. */
static int small_row(struct spw_weights *w, const struct spw_finder *f, uint32_t layer,
                     const char *name, uint64_t n, uint64_t *at)
{
    const struct spw_tensor *t = spw_find_by_layer(f, layer, name);
    const bool matrix = t && t->n_dims == 2;
    SPW_TRY(spw_find_in_layer(f, layer, name, matrix ? 1 : n, matrix ? n : 0, &t));
    return small_tensor(w, t, at);
}

/* Weights of a norm. In some files they are stored less 1. */
static void restore_norm(const struct spw_weights *w, uint64_t at, uint64_t n)
{
    for (uint64_t i = 0; w->small && w->config->norm_plus_one && i < n; i++)
        w->small[at + i] = 1.0f + w->small[at + i];
}

/* Several adjacent tensors: the bias of a joined product. */
static int small_joined(struct spw_weights *w, const struct spw_finder *f, uint32_t layer,
                        const char *const names[], const uint64_t sizes[], int count, uint64_t *at)
{
    uint64_t start = *at == SPW_SMALL_NONE ? w->n_small : *at, next = start;
    for (int i = 0; i < count; i++) {
        uint64_t here = *at == SPW_SMALL_NONE ? SPW_SMALL_NONE : next;
        SPW_TRY(small_vector(w, f, layer, names[i], sizes[i], &here));
        next += sizes[i];
    }
    *at = start;
    return 0;
}

/* A norm of a layer: weights, and biases after them. `name` without the end. */
static int small_norm_of(struct spw_weights *w, const struct spw_finder *f, uint32_t layer,
                         const char *name, uint64_t n, bool has_bias, uint64_t *at)
{
    char weight[96], bias[96];
    snprintf(weight, sizeof weight, "%s.weight", name);
    snprintf(bias, sizeof bias, "%s.bias", name);
    SPW_TRY(small_joined(w, f, layer, (const char *const[]){weight, bias}, (const uint64_t[]){n, n},
                         has_bias ? 2 : 1, at));
    restore_norm(w, *at, n);
    return 0;
}

static int small_norm(struct spw_weights *w, const struct spw_finder *f, uint32_t layer,
                      const char *name, uint64_t *at)
{
    if (w->config->norm_bare)
        *at = w->bare_norm;
    else
        SPW_TRY(small_norm_of(w, f, layer, name, w->config->hidden, w->config->norm_bias, at));
    return 0;
}

/* Channels of a head come in another order: so do the weights of its norm. */
static void order_channels(const struct spw_weights *w, float *x)
{
    const uint32_t n = w->config->rope[0].rotary_dim;
    float old[SPW_MOST_HEAD_DIM];
    memcpy(old, x, n * sizeof *x);
    for (uint32_t i = 0; i < n; i++)
        x[i % 2 * (n / 2) + i / 2] = old[i];
}

/* Norms of q or k with weights for each head: a matrix, or a tensor for each head. */
static int small_head_norms(struct spw_weights *w, const struct spw_finder *f, uint32_t layer,
                            const char *name, uint64_t heads, uint64_t *at)
{
    const uint64_t d = spw_config_kv(w->config, layer)->head_dim;
    const struct spw_tensor *t;
    char each[96];
    snprintf(each, sizeof each, "%s.norms.0.weight", name);
    const bool split = spw_find_by_layer(f, layer, each);
    place(w, heads * d, at);
    for (uint64_t h = 0; split && h < heads; h++) {
        uint64_t here = *at + h * d;
        snprintf(each, sizeof each, "%s.norms.%u.weight", name, (unsigned)h);
        SPW_TRY(small_vector(w, f, layer, each, d, &here));
    }
    snprintf(each, sizeof each, "%s.weight", name);
    if (!split) {
        SPW_TRY(spw_find_in_layer(f, layer, each, heads, d, &t));
        SPW_TRY(small_tensor(w, t, at));
    }
    for (uint64_t h = 0; w->small && w->config->interleaved_qk && h < heads; h++)
        order_channels(w, w->small + *at + h * d);
    return 0;
}

static int small_qk_norm(struct spw_weights *w, const struct spw_finder *f, uint32_t layer,
                         const char *name, uint32_t heads, uint64_t *at)
{
    const struct spw_model_config *c = w->config;
    if (c->qk_norm_by_head)
        return small_head_norms(w, f, layer, name, heads, at);
    const uint64_t n = (uint64_t)(c->qk_norm_whole ? heads : 1) * spw_config_kv(c, layer)->head_dim;
    return small_norm_of(w, f, layer, name, n, c->qk_norm_bias, at);
}

static int small_biases(struct spw_weights *w, const struct spw_finder *f, uint32_t layer,
                        struct spw_layer_small *s)
{
    const struct spw_model_config *c = w->config;
    uint64_t q = spw_config_q_width(c, layer), kv = spw_config_kv_width(c, layer);
    const int products = !spw_config_stores_kv(c, layer)    ? 1
                         : c->v_is_k[c->layer_kinds[layer]] ? 2
                                                            : 3;
    const bool joined = spw_find_by_layer(f, layer, "self_attn.qkv_proj.bias");
    if (c->qkv_bias && joined)
        SPW_TRY(small_vector(w, f, layer, "self_attn.qkv_proj.bias", q + 2 * kv, &s->qkv_bias));
    else if (c->qkv_bias)
        SPW_TRY(small_joined(w, f, layer,
                             (const char *const[]){"self_attn.q_proj.bias", "self_attn.k_proj.bias",
                                                   "self_attn.v_proj.bias"},
                             (const uint64_t[]){q, kv, kv}, products, &s->qkv_bias));
    if (c->o_bias)
        SPW_TRY(small_vector(w, f, layer, "self_attn.o_proj.bias", c->hidden, &s->o_bias));
    if (c->mlp_bias) {
        const char *const names[] = {"mlp.gate_proj.bias", "mlp.up_proj.bias"};
        const int first = c->plain_mlp ? 1 : 0;
        SPW_TRY(small_joined(w, f, layer, names + first,
                             (const uint64_t[]){c->intermediate, c->intermediate}, 2 - first,
                             &s->gate_up_bias));
        SPW_TRY(small_vector(w, f, layer, "mlp.down_proj.bias", c->hidden, &s->down_bias));
    }
    return 0;
}

/* Numbers [first], [first + step], ... of each row of t, to rows of `stride` numbers at `at`. A row
 * of a quantized type is read as a whole; such a tensor has a step of 1. */
static void read_rows(struct spw_weights *w, const struct spw_tensor *t, uint64_t first,
                      uint64_t step, uint64_t at, uint64_t stride)
{
    const uint64_t rows = t->shape[0], cols = t->shape[1], bytes = spw_row_bytes(t->dtype, cols);
    for (uint64_t row = 0; row < rows; row++, at += stride) {
        const uint8_t *from = (const uint8_t *)t->data + row * bytes;
        if (step == 1)
            spw_type_read(t->dtype, from, 0, (size_t)cols, w->small + at);
        for (uint64_t i = first, to = at; step > 1 && i < cols; i += step)
            spw_type_read(t->dtype, from, i, 1, w->small + to++);
    }
}

static int small_expert_biases(struct spw_weights *w, const struct spw_finder *f, uint32_t layer,
                               struct spw_layer_small *s)
{
    const struct spw_model_config *c = w->config;
    const uint64_t n = c->experts.n, width = c->experts.intermediate;
    struct spw_expert_biases b;
    SPW_TRY(spw_find_expert_biases(&b, f, c, layer));
    place(w, n * 2 * width, &s->expert_gate_up_bias);
    place(w, n * c->hidden, &s->expert_down_bias);
    if (!w->small)
        return 0;
    const uint64_t step = b.up ? 1 : 2;
    read_rows(w, b.gate, 0, step, s->expert_gate_up_bias, 2 * width);
    read_rows(w, b.up ? b.up : b.gate, b.up ? 0 : 1, step, s->expert_gate_up_bias + width,
              2 * width);
    read_rows(w, b.down, 0, 1, s->expert_down_bias, c->hidden);
    return 0;
}

static int small_router_biases(struct spw_weights *w, const struct spw_finder *f, uint32_t layer,
                               struct spw_layer_small *s)
{
    const struct spw_model_config *c = w->config;
    char name[96];
    if (c->experts.choice_bias)
        SPW_TRY(small_row(w, f, layer, "mlp.gate.e_score_correction_bias", c->experts.n,
                          &s->choice_bias));
    if (!c->experts.biases)
        return 0;
    const char *router = spw_find_router_name(f, layer);
    snprintf(name, sizeof name, "%.*sbias", (int)(strlen(router) - strlen("weight")), router);
    SPW_TRY(small_vector(w, f, layer, name, c->experts.n, &s->router_bias));
    return small_expert_biases(w, f, layer, s);
}

/* The router of a layer, and the gate of its shared expert. */
static int small_experts(struct spw_weights *w, const struct spw_finder *f, uint32_t layer,
                         struct spw_layer_small *s)
{
    const struct spw_model_config *c = w->config;
    const struct spw_tensor *t;
    if (!c->has_experts[layer])
        return 0;
    SPW_TRY(
        spw_find_in_layer(f, layer, spw_find_router_name(f, layer), c->experts.n, c->hidden, &t));
    SPW_TRY(small_tensor(w, t, &s->router));
    SPW_TRY(small_router_biases(w, f, layer, s));
    return c->experts.shared_gate
               ? small_row(w, f, layer, "mlp.shared_expert_gate.weight", c->hidden, &s->shared_gate)
               : 0;
}

/* Experts with a dense mlp beside them. What the router reads is multiplied by hidden^-0.5, too. */
static int small_beside(struct spw_weights *w, const struct spw_finder *f, uint32_t layer,
                        struct spw_layer_small *s)
{
    const struct spw_model_config *c = w->config;
    if (!c->has_experts[layer] || !c->experts.beside)
        return 0;
    SPW_TRY(small_norm(w, f, layer, "pre_feedforward_layernorm_2", &s->experts_norm));
    SPW_TRY(small_norm(w, f, layer, "post_feedforward_layernorm_1", &s->after_dense_norm));
    SPW_TRY(small_norm(w, f, layer, "post_feedforward_layernorm_2", &s->after_experts_norm));
    SPW_TRY(small_vector(w, f, layer, "router.scale", c->hidden, &s->router_norm));
    for (uint64_t i = 0; w->small && i < c->hidden; i++)
        w->small[s->router_norm + i] *= 1 / sqrtf((float)c->hidden);
    return small_vector(w, f, layer, "router.per_expert_scale", c->experts.n, &s->expert_scale);
}

/* What the layer does with its numbers of each row, and at its end. */
static int small_inputs(struct spw_weights *w, const struct spw_finder *f, uint32_t layer,
                        struct spw_layer_small *s)
{
    const struct spw_model_config *c = w->config;
    if (c->layer_inputs)
        SPW_TRY(small_norm(w, f, layer, "post_per_layer_input_norm", &s->after_inputs_norm));
    return c->layer_scales ? small_vector(w, f, layer, "layer_scalar", 1, &s->layer_scale) : 0;
}

/* Names of the norms of a layer, beside that before attention. */
struct norm_names {
    const char *before_mlp, *after_attention, *after_mlp;
};

static const struct norm_names *norm_names(const struct spw_model_config *c,
                                           const struct spw_finder *f, uint32_t layer)
{
    static const struct norm_names plain = {.before_mlp = "post_attention_layernorm"};
    static const struct norm_names sandwich = {
        "pre_feedforward_layernorm", "post_attention_layernorm", "post_feedforward_layernorm"};
    static const struct norm_names glm = {"post_attention_layernorm", "post_self_attn_layernorm",
                                          "post_mlp_layernorm"};
    if (!c->sandwich && !c->late_norms)
        return &plain;
    return spw_find_by_layer(f, layer, "post_mlp_layernorm.weight") ? &glm : &sandwich;
}

static int small_layer(struct spw_weights *w, const struct spw_finder *f, uint32_t layer)
{
    const struct spw_model_config *c = w->config;
    struct spw_layer_small *s = &w->small_layers[layer];
    const struct norm_names *names = norm_names(c, f, layer);
    if (!c->late_norms)
        SPW_TRY(small_norm(w, f, layer, "input_layernorm", &s->attention_norm));
    if (!c->late_norms && !c->parallel)
        SPW_TRY(small_norm(w, f, layer, names->before_mlp, &s->mlp_norm));
    if (c->sandwich || c->late_norms) {
        SPW_TRY(small_norm(w, f, layer, names->after_attention, &s->after_attention_norm));
        SPW_TRY(small_norm(w, f, layer, names->after_mlp, &s->after_mlp_norm));
    }
    if (c->extra_logits)
        SPW_TRY(small_vector(w, f, layer, "self_attn.sinks", c->n_heads, &s->extra_logits));
    if (c->qk_norm) {
        const uint32_t n_kv_heads = spw_config_kv(c, layer)->n_heads;
        SPW_TRY(small_qk_norm(w, f, layer, "self_attn.q_norm", c->n_heads, &s->q_norm));
        if (spw_config_stores_kv(c, layer))
            SPW_TRY(small_qk_norm(w, f, layer, "self_attn.k_norm", n_kv_heads, &s->k_norm));
    }
    SPW_TRY(small_experts(w, f, layer, s));
    SPW_TRY(small_beside(w, f, layer, s));
    SPW_TRY(small_inputs(w, f, layer, s));
    return small_biases(w, f, layer, s);
}

/* Of the numbers of all layers. */
static int small_inputs_norm(struct spw_weights *w, const struct spw_finder *f)
{
    const struct spw_tensor *t;
    if (!w->config->layer_inputs)
        return 0;
    SPW_TRY(
        spw_find_in_decoder(f, "per_layer_projection_norm.weight", w->config->layer_inputs, &t));
    SPW_TRY(small_tensor(w, t, &w->inputs_norm));
    place(w, 1, &w->inputs_factor);
    if (w->small)
        w->small[w->inputs_factor] = sqrtf(0.5f);
    return 0;
}

/* All layers share the factors. They and the frequencies come last: see w->rope. */
static int small_rope_factors(struct spw_weights *w, const struct spw_finder *f)
{
    w->first_rope = w->small ? w->first_rope : w->n_small;
    const struct spw_tensor *t;
    const struct spw_rope_config *r = &w->config->rope[0];
    if (r->kind == SPW_ROPE_FACTORS) {
        SPW_TRY(spw_find_tensor(f, SPW_ROPE_FACTORS_NAME, r->rotary_dim / 2, 0, &t));
        return small_tensor(w, t, &w->rope_factors);
    }
    if (r->kind != SPW_ROPE_LONG || r->long_factors)
        return 0;
    SPW_TRY(spw_find_tensor(f, SPW_ROPE_SHORT_NAME, r->rotary_dim / 2, 0, &t));
    SPW_TRY(small_tensor(w, t, &w->rope_factors));
    SPW_TRY(spw_find_tensor(f, SPW_ROPE_LONG_NAME, r->rotary_dim / 2, 0, &t));
    return small_tensor(w, t, &w->long_rope_factors);
}

/* Logits are divided through the weights of the last norm. */
static void small_scales(struct spw_weights *w)
{
    const struct spw_model_config *c = w->config;
    for (uint64_t i = 0; w->small && c->logit_divisor != 1 && i < c->hidden; i++)
        w->small[w->final_norm + i] /= c->logit_divisor;
    if (c->residual_scale == 1)
        return;
    place(w, c->hidden, &w->residual_scale);
    for (uint64_t i = 0; w->small && i < c->hidden; i++)
        w->small[w->residual_scale + i] = c->residual_scale;
}

/* The last norm, and the biases of the head. */
static int small_ends(struct spw_weights *w, const struct spw_finder *f)
{
    const struct spw_model_config *c = w->config;
    const struct spw_tensor *t;
    char name[64];
    if (c->norm_bare) {
        w->final_norm = w->bare_norm;
    } else {
        SPW_TRY(spw_find_in_decoder(f, "norm.weight", c->hidden, &t));
        SPW_TRY(small_tensor(w, t, &w->final_norm));
    }
    restore_norm(w, w->final_norm, c->hidden);
    if (c->norm_bias) {
        uint64_t at = w->small ? w->final_norm + c->hidden : SPW_SMALL_NONE;
        SPW_TRY(spw_find_in_decoder(f, "norm.bias", c->hidden, &t));
        SPW_TRY(small_tensor(w, t, &at));
    }
    if (!c->head_bias)
        return 0;
    snprintf(name, sizeof name, "%sbias", f->prefix->head);
    SPW_TRY(spw_find_tensor(f, name, c->vocab, 0, &t));
    return small_tensor(w, t, &w->head_bias);
}

static uint32_t widest_head(const struct spw_model_config *c)
{
    uint32_t widest = 0;
    for (int k = 0; k < SPW_LAYER_KINDS; k++)
        widest = spw_max_u32(widest, c->kv[k].head_dim);
    return widest;
}

/* Walks all small tensors: the first time it checks them and gives them places, the second time it
 * reads them. */
int spw_small_walk(struct spw_weights *w, const struct spw_finder *f)
{
    const bool bare = w->config->norm_bare || w->config->qk_norm_last;
    const uint64_t n_bare = spw_max_u32(w->config->hidden, widest_head(w->config));
    if (bare)
        place(w, n_bare, &w->bare_norm);
    for (uint64_t i = 0; w->small && bare && i < n_bare; i++)
        w->small[w->bare_norm + i] = 1;
    for (uint32_t l = 0; l < w->config->n_layers; l++)
        SPW_TRY(small_layer(w, f, l));
    SPW_TRY(small_ends(w, f));
    small_scales(w);
    SPW_TRY(small_inputs_norm(w, f));
    SPW_TRY(small_rope_factors(w, f));
    if (w->small)
        return 0;
    w->no_freq = w->n_small; /* stays 0 */
    w->n_small += widest_head(w->config) / 2;
    for (int k = 0; k < SPW_LAYER_KINDS; k++) {
        w->inv_freq[k] = w->n_small;
        w->n_small += w->config->rope[k].rotary_dim / 2;
    }
    return 0;
}

int spw_small_open(struct spw_weights *w, const struct spw_finder *f)
{
    uint32_t n = w->config->n_layers;
    w->small_layers = spw_alloc(n * sizeof *w->small_layers);
    if (!w->small_layers)
        return -ENOMEM;
    memset(w->small_layers, 0xff, n * sizeof *w->small_layers); /* all SPW_SMALL_NONE */
    w->final_norm = w->rope_factors = w->long_rope_factors = w->residual_scale = w->bare_norm =
        w->head_bias = w->inputs_norm = w->inputs_factor = SPW_SMALL_NONE;
    return spw_small_walk(w, f);
}

/* -EINVAL: a frequency is not finite. */
static int divide_by_factors(const struct spw_weights *w, uint64_t factors, float *inv_freq,
                             uint32_t n)
{
    for (uint32_t i = 0; factors != SPW_SMALL_NONE && i < n; i++) {
        const float factor = w->rope[factors - w->first_rope + i];
        inv_freq[i] = factor >= SPW_ROPE_STILL ? 0 : inv_freq[i] / factor;
        if (!isfinite(inv_freq[i]))
            return -EINVAL;
    }
    return 0;
}

int spw_weights_rope(struct spw_weights *w, uint64_t length, struct spw_error *err)
{
    for (int k = 0; k < SPW_LAYER_KINDS; k++) {
        const struct spw_rope_config *r = &w->config->rope[k];
        float *inv_freq = w->rope + (w->inv_freq[k] - w->first_rope);
        int rc = spw_rope_frequencies(r, r->rotary_dim, length, w->config->max_positions, inv_freq,
                                      &w->rope_scaling[k]);
        bool has_factors = r->kind == SPW_ROPE_FACTORS || r->kind == SPW_ROPE_LONG;
        bool is_long = r->kind == SPW_ROPE_LONG && length > r->original_max_positions;
        if (!rc && has_factors)
            rc = divide_by_factors(w, is_long ? w->long_rope_factors : w->rope_factors, inv_freq,
                                   r->rotary_dim / 2);
        if (rc)
            return spw_fail(err, rc, "the config: rope: a frequency is not finite at length %llu",
                            (unsigned long long)length);
    }
    return 0;
}
