/* Norms, biases and the places of rope frequencies, one after the other in one array: see
 * weights.h. */
#include "model/weights/weights_parts.h"

#include "base/grow.h"
#include "model/config/config_rope.h"
#include "quant/types.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Gives n numbers their place. */
static void place(struct spw_weights *w, uint64_t n, uint64_t *at)
{
    *at = w->n_small;
    w->n_small += n;
}

/* What prepare reads to a place. */
static int note(struct spw_weights *w, struct spw_small_note n)
{
    SPW_TRY(spw_grow(&w->notes, &w->notes_capacity, w->n_notes + 1, sizeof *w->notes));
    w->notes[w->n_notes++] = n;
    return 0;
}

/* The newest note, of which the caller may say more. */
static struct spw_small_note *last_note(struct spw_weights *w)
{
    return &w->notes[w->n_notes - 1];
}

/* The same number n times. */
static int small_fill(struct spw_weights *w, uint64_t n, float value, uint64_t *at)
{
    place(w, n, at);
    return note(w, (struct spw_small_note){.at = *at, .rows = 1, .n = n, .fill = value});
}

/* A vector, or the rows of a tensor of more dimensions. */
static int small_tensor(struct spw_weights *w, const struct spw_tensor *t, uint64_t *at)
{
    const uint64_t cols = t->shape[t->n_dims - 1];
    uint64_t rows = 1;
    for (uint32_t i = 0; i + 1 < t->n_dims; i++)
        rows *= t->shape[i];
    place(w, rows * cols, at);
    return note(w, (struct spw_small_note){
                       .tensor = t, .at = *at, .rows = rows, .n = cols, .step = 1, .stride = cols});
}

static int small_vector(struct spw_weights *w, const struct spw_finder *f, uint32_t layer,
                        const char *name, uint64_t n, uint64_t *at)
{
    const struct spw_tensor *t;
    SPW_TRY(spw_find_in_layer(f, layer, name, n, 0, &t));
    return small_tensor(w, t, at);
}

/* The same without a layer. */
static int small_of_model(struct spw_weights *w, const struct spw_finder *f, const char *name,
                          uint64_t n, uint64_t *at)
{
    const struct spw_tensor *t;
    SPW_TRY(spw_find_tensor(f, name, n, 0, &t));
    return small_tensor(w, t, at);
}

/* A vector, or a matrix of as many numbers, as some files have it. */
static int small_row(struct spw_weights *w, const struct spw_finder *f, uint32_t layer,
                     const char *name, uint64_t n, uint64_t *at)
{
    const struct spw_tensor *t = spw_find_by_layer(f, layer, name);
    const uint64_t rows = t && t->n_dims == 2 && t->shape[0] ? t->shape[0] : 0;
    const bool matrix = rows && n % rows == 0;
    SPW_TRY(spw_find_in_layer(f, layer, name, matrix ? rows : n, matrix ? n / rows : 0, &t));
    return small_tensor(w, t, at);
}

/* A norm of a layer: weights, and biases after them. `name` without the end. */
static int small_norm_of(struct spw_weights *w, const struct spw_finder *f, uint32_t layer,
                         const char *name, uint64_t n, bool has_bias, uint64_t *at)
{
    uint64_t biases;
    char full[96];
    snprintf(full, sizeof full, "%s.weight", name);
    SPW_TRY(small_vector(w, f, layer, full, n, at));
    last_note(w)->plus_one = w->config->norm_plus_one;
    snprintf(full, sizeof full, "%s.bias", name);
    return has_bias ? small_vector(w, f, layer, full, n, &biases) : 0;
}

static int small_norm(struct spw_weights *w, const struct spw_finder *f, uint32_t layer,
                      const char *name, uint64_t n, uint64_t *at)
{
    *at = w->bare_norm;
    return w->config->norm_bare ? 0 : small_norm_of(w, f, layer, name, n, w->config->norm_bias, at);
}

/* With what multiplies the rows that the mlp gets. */
static int small_mlp_norm(struct spw_weights *w, const struct spw_finder *f, uint32_t layer,
                          const char *name, uint64_t n, uint64_t *at)
{
    SPW_TRY(small_norm(w, f, layer, name, n, at));
    if (!w->config->norm_bare)
        last_note(w)->factor = w->config->mlp_in_scale;
    return 0;
}

/* A bias of a product of attention. */
static int small_attention_bias(struct spw_weights *w, const struct spw_finder *f, uint32_t layer,
                                const char *name, uint64_t n, uint64_t *at)
{
    SPW_TRY(small_vector(w, f, layer, name, n, at));
    last_note(w)->divisor = w->config->attention_in_scale;
    return 0;
}

/* A bias of zeros. */
static int small_no_bias(struct spw_weights *w, const struct spw_finder *f, uint32_t layer,
                         const char *name, uint64_t n, uint64_t *at)
{
    (void)f, (void)layer, (void)name;
    return small_fill(w, n, 0, at);
}

/* Norms of q or k with weights for each head: a matrix, or a tensor for each head. Where channels
 * of a head come in another order, so do these weights. */
static int small_head_norms(struct spw_weights *w, const struct spw_finder *f, uint32_t layer,
                            const char *name, uint32_t heads, uint64_t *at)
{
    const struct spw_model_config *c = w->config;
    const uint64_t d = spw_config_kv(c, layer)->head_dim;
    const uint32_t n_ordered = c->interleaved_qk ? c->rope[0].rotary_dim : 0;
    const struct spw_tensor *t;
    uint64_t next;
    char each[96];
    snprintf(each, sizeof each, "%s.norms.0.weight", name);
    const bool split = spw_find_by_layer(f, layer, each);
    for (uint32_t h = 0; split && h < heads; h++) {
        snprintf(each, sizeof each, "%s.norms.%u.weight", name, h);
        SPW_TRY(small_vector(w, f, layer, each, d, h ? &next : at));
        last_note(w)->n_ordered = n_ordered;
    }
    if (split)
        return 0;
    snprintf(each, sizeof each, "%s.weight", name);
    SPW_TRY(spw_find_in_layer(f, layer, each, heads, d, &t));
    SPW_TRY(small_tensor(w, t, at));
    last_note(w)->n_ordered = n_ordered;
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

static int small_qk_norms(struct spw_weights *w, const struct spw_finder *f, uint32_t layer,
                          struct spw_layer_small *s)
{
    const struct spw_model_config *c = w->config;
    const struct spw_kv_shape *kv = spw_config_kv(c, layer);
    if (c->q_norm_scale > 0) { /* a family without weights here */
        SPW_TRY(small_fill(w, kv->head_dim, c->q_norm_scale, &s->q_norm));
        return small_fill(w, kv->head_dim, 1, &s->k_norm);
    }
    SPW_TRY(small_qk_norm(w, f, layer, "self_attn.q_norm", c->n_heads, &s->q_norm));
    if (!spw_config_stores_kv(c, layer))
        return 0;
    return small_qk_norm(w, f, layer, "self_attn.k_norm", kv->n_heads, &s->k_norm);
}

/* Those of gate and up lie side by side, or alternate in one tensor. */
static int small_expert_biases(struct spw_weights *w, const struct spw_finder *f, uint32_t layer,
                               struct spw_layer_small *s)
{
    const uint64_t n = w->config->experts.n, width = w->config->experts.intermediate;
    const char *joined = "mlp.experts.gate_up_proj_bias";
    const char *const names[] = {"mlp.experts.gate_proj.bias", "mlp.experts.up_proj.bias"};
    const bool alternate = spw_find_by_layer(f, layer, joined);
    const uint64_t step = alternate ? 2 : 1;
    const struct spw_tensor *t;
    place(w, n * 2 * width, &s->expert_gate_up_bias);
    for (uint64_t up = 0; up < 2; up++) {
        SPW_TRY(spw_find_in_layer(f, layer, alternate ? joined : names[up], n, step * width, &t));
        SPW_TRY(note(w, (struct spw_small_note){.tensor = t,
                                                .at = s->expert_gate_up_bias + up * width,
                                                .rows = n,
                                                .n = width,
                                                .first = alternate ? up : 0,
                                                .step = step,
                                                .stride = 2 * width}));
    }
    SPW_TRY(spw_find_in_layer(
        f, layer, alternate ? "mlp.experts.down_proj_bias" : "mlp.experts.down_proj.bias", n,
        w->config->hidden, &t));
    return small_tensor(w, t, &s->expert_down_bias);
}

/* Of the mlp of a layer, or of the expert that every row has. Those of matrices that are one
 * product follow each other. */
static int small_mlp_biases(struct spw_weights *w, const struct spw_finder *f, uint32_t layer,
                            struct spw_layer_small *s)
{
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
    const struct spw_model_config *c = w->config;
    const uint64_t width = spw_layer_mlp_width(c, layer);
    uint64_t next, *const at[] = {&s->gate_up_bias, c->plain_mlp ? &s->gate_up_bias : &next,
                                  &s->down_bias};
    for (int i = c->plain_mlp; width && i < 3; i++) {
        char name[96];
        snprintf(name, sizeof name, "mlp.%s%s.bias",
                 spw_has_shared_name(f, c, layer) ? "shared_expert." : "", names[i]);
        SPW_TRY(small_vector(w, f, layer, name, i < 2 ? width : c->hidden, at[i]));
        last_note(w)->factor = c->mlp_in_scale;
    }
    if (!c->has_experts[layer] || !c->experts.latent)
        return 0;
    SPW_TRY(small_vector(w, f, layer, "mlp.fc1_latent_proj.bias", c->experts.latent,
                         &s->latent_in_bias));
    return small_vector(w, f, layer, "mlp.fc2_latent_proj.bias", c->hidden, &s->latent_out_bias);
}

/* The router of a layer. What it reads is multiplied by hidden^-0.5, too, beside a dense mlp. */
static int small_router(struct spw_weights *w, const struct spw_finder *f, uint32_t layer,
                        struct spw_layer_small *s)
{
    const struct spw_model_config *c = w->config;
    const struct spw_tensor *t;
    SPW_TRY(spw_find_in_layer(f, layer, "mlp.gate.weight", c->experts.n, c->hidden, &t));
    SPW_TRY(small_tensor(w, t, &s->router));
    if (c->experts.biases)
        SPW_TRY(small_expert_biases(w, f, layer, s));
    if (!c->experts.beside)
        return 0;
    SPW_TRY(small_vector(w, f, layer, "router.scale", c->hidden, &s->router_norm));
    last_note(w)->factor = 1 / sqrtf((float)c->hidden);
    return 0;
}

/* Taps of the convolution: Hugging Face folders have [channels][1][width]. */
static int small_conv(struct spw_weights *w, const struct spw_finder *f, uint32_t layer,
                      const char *name, uint64_t width, uint64_t *at)
{
    const uint64_t channels = w->config->mixer.conv_channels;
    const struct spw_tensor *t = spw_find_by_layer(f, layer, name);
    SPW_TRY(t && t->n_dims == 3 ? spw_find_stacked(f, layer, name, channels, 1, width, &t)
                                : spw_find_in_layer(f, layer, name, channels, width, &t));
    return small_tensor(w, t, at);
}

/* a, of which folders have the logarithm of -a. Files have [value_dim][key_dim] of SCAN. */
static int small_decay(struct spw_weights *w, const struct spw_finder *f, uint32_t layer,
                       const char *name, uint64_t n, uint64_t *at)
{
    const struct spw_mixer_config *m = &w->config->mixer;
    const bool ready = spw_find_by_layer(f, layer, "linear_attn.A");
    const bool turned = m->kind == SPW_MIXER_SCAN && m->key_dim > 1;
    const struct spw_tensor *t;
    name = ready ? "linear_attn.A" : name;
    if (!turned) {
        SPW_TRY(small_row(w, f, layer, name, n, at));
        last_note(w)->negates_exp = !ready;
        return 0;
    }
    SPW_TRY(spw_find_in_layer(f, layer, name, m->value_dim, m->key_dim, &t));
    place(w, n, at);
    for (uint32_t i = 0; i < m->key_dim; i++)
        SPW_TRY(note(w, (struct spw_small_note){.tensor = t,
                                                .at = *at + (uint64_t)i * m->value_dim,
                                                .rows = 1,
                                                .n = m->value_dim,
                                                .first = i,
                                                .step = m->key_dim,
                                                .negates_exp = !ready}));
    return 0;
}

static int small_in_bias(struct spw_weights *w, const struct spw_finder *f, uint32_t layer,
                         const char *name, uint64_t n, uint64_t *at)
{
    SPW_TRY(small_vector(w, f, layer, name, n, at));
    last_note(w)->divisor = w->config->mixer.in_scale;
    return 0;
}

static int small_lru_decay(struct spw_weights *w, const struct spw_finder *f, uint32_t layer,
                           const char *name, uint64_t n, uint64_t *at)
{
    SPW_TRY(small_vector(w, f, layer, name, n, at));
    last_note(w)->lru_decay = true;
    return 0;
}

/* Of gates in blocks: a row for each block. */
static int small_blocks(struct spw_weights *w, const struct spw_finder *f, uint32_t layer,
                        const char *name, uint64_t n, uint64_t *at)
{
    const struct spw_tensor *t;
    SPW_TRY(spw_find_in_layer(f, layer, name, w->config->mixer.gate_blocks,
                              n / w->config->mixer.gate_blocks, &t));
    return small_tensor(w, t, at);
}

/* A vector that a layer may have, and how it is found. */
struct wanted {
    bool has;
    int (*how)(struct spw_weights *, const struct spw_finder *, uint32_t layer, const char *name,
               uint64_t n, uint64_t *at);
    const char *name;
    uint64_t n, *at;
};

static int small_wanted(struct spw_weights *w, const struct spw_finder *f, uint32_t layer,
                        const struct wanted *wanted, size_t n)
{
    for (const struct wanted *v = wanted; v < wanted + n; v++)
        if (v->has)
            SPW_TRY(v->how(w, f, layer, v->name, v->n, v->at));
    return 0;
}

/* What a layer with a state has beside its matrices. */
static int small_state(struct spw_weights *w, const struct spw_finder *f, uint32_t layer)
{
    const struct spw_mixer_config *m = &w->config->mixer;
    struct spw_layer_small *s = &w->small_layers[layer];
    const bool delta = m->kind == SPW_MIXER_DELTA, ssd = m->kind == SPW_MIXER_SSD;
    const bool scan = m->kind == SPW_MIXER_SCAN, lru = m->kind == SPW_MIXER_LRU;
    const uint64_t width = spw_mixer_width(m);
    uint64_t next;
    const struct wanted vectors[] = {
        {m->conv_width, small_conv, "linear_attn.conv1d.weight", m->conv_width, &s->conv},
        {m->conv_bias, small_vector, "linear_attn.conv1d.bias", m->conv_channels, &s->conv_bias},
        {m->in_bias, small_in_bias, "linear_attn.in_proj.bias", lru ? width : spw_mixer_in_width(m),
         &s->in_bias},
        {m->in_bias && lru, small_vector, "linear_attn.gate_proj.bias", width, &next},
        {m->out_bias, small_vector, "linear_attn.out_proj.bias", w->config->hidden, &s->out_bias},
        {delta || ssd, small_decay, "linear_attn.A_log", m->heads, &s->decay},
        {delta || ssd, small_vector, "linear_attn.dt_bias", m->heads, &s->dt_bias},
        {scan, small_decay, "linear_attn.A_log", m->key_dim * width, &s->decay},
        {scan, small_vector, "linear_attn.dt_proj.bias", width, &s->dt_bias},
        {ssd || scan, small_row, "linear_attn.D", ssd ? m->heads : width, &s->skip},
        {delta, small_vector, "linear_attn.norm.weight", m->value_dim, &s->gate_norm},
        {lru, small_lru_decay, "linear_attn.recurrent_param", width, &s->decay},
        {lru, small_blocks, "linear_attn.input_gate.bias", width, &s->lru_gate_bias},
        {lru, small_blocks, "linear_attn.recurrent_gate.bias", width, &s->lru_rate_bias},
        {ssd && m->gate_norm, small_row, "linear_attn.norm.weight", width, &s->gate_norm},
    };
    return small_wanted(w, f, layer, vectors, sizeof vectors / sizeof *vectors);
}

/* Names of the norms of a layer, beside that before attention. A layer that is an mlp alone has one
 * norm. */
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
    static const struct norm_names alone = {.before_mlp = "input_layernorm"};
    if (!spw_config_mixes(c, layer))
        return &alone;
    if (!c->sandwich && !c->late_norms)
        return &plain;
    return spw_find_by_layer(f, layer, "post_mlp_layernorm.weight") ? &glm : &sandwich;
}

/* The bucket of a key at this distance, key - query (Raffel et al. 2020, appendix A): near ones
 * have a bucket each, others share them by the logarithm of the distance, in f32 as in
 * transformers. */
static uint32_t bucket_of(const struct spw_model_config *c, int64_t distance, bool both_ways)
{
    const uint32_t n = both_ways ? c->n_buckets / 2 : c->n_buckets, near = n / 2;
    const uint32_t first = both_ways && distance > 0 ? n : 0;
    const uint64_t far = (uint64_t)(distance < 0 ? -distance : both_ways ? distance : 0);
    if (far < near)
        return first + (uint32_t)far;
    const float logs = logf((float)far / (float)near) /
                       (float)log((double)c->most_distance / near) * (float)(n - near);
    return first + spw_min_u32(near + (uint32_t)logs, n - 1);
}

static void read_distances(const struct spw_small_note *n, uint64_t head, float *to)
{
    const struct spw_tensor *t = n->tensor;
    const int64_t most = n->distances->most_distance;
    for (int64_t d = -most; d <= most; d++) {
        const uint64_t row = bucket_of(n->distances, d, n->both_ways);
        spw_type_read(t->dtype,
                      (const uint8_t *)t->data + row * spw_row_bytes(t->dtype, t->shape[1]), head,
                      1, to + d + most);
    }
}

/* Layers without numbers of their own have those of the first layer of the stack. */
static int small_distances(struct spw_weights *w, const struct spw_finder *f, uint32_t layer)
{
    const struct spw_model_config *c = w->config;
    const bool encoder = layer < c->n_source_layers;
    const uint32_t first = encoder ? 1 : c->n_source_layers;
    const uint64_t n = 2 * (uint64_t)c->most_distance + 1;
    struct spw_layer_small *s = &w->small_layers[layer];
    const struct spw_tensor *t;
    if (!c->n_buckets || layer % 2 != encoder)
        return 0;
    s->relative_bias = w->small_layers[first].relative_bias;
    if (layer != first && !c->own_buckets)
        return 0;
    SPW_TRY(spw_find_in_layer(f, layer, "relative_bias.weight", c->n_buckets, c->n_heads, &t));
    place(w, c->n_heads * n, &s->relative_bias);
    return note(w, (struct spw_small_note){.tensor = t,
                                           .at = s->relative_bias,
                                           .rows = c->n_heads,
                                           .n = n,
                                           .stride = n,
                                           .distances = c,
                                           .both_ways = encoder});
}

/* Biases of matrices that are one product follow each other. */
static int small_layer(struct spw_weights *w, const struct spw_finder *f, uint32_t layer)
{
    const struct spw_model_config *c = w->config;
    const struct spw_experts_config *e = &c->experts;
    struct spw_layer_small *s = &w->small_layers[layer];
    const struct norm_names *norms = norm_names(c, f, layer);
    const uint64_t q = spw_config_q_width(c, layer), kv = spw_config_kv_width(c, layer);
    const uint64_t hidden = c->hidden;
    uint64_t next, *const first_norm = c->post_norms ? &s->sum_norm : &s->attention_norm;
    const bool after = c->sandwich || c->late_norms, experts = c->has_experts[layer];
    const bool beside = experts && e->beside, stores = spw_config_stores_kv(c, layer);
    const bool mixes = spw_config_mixes(c, layer), attends = spw_config_attends(c, layer);
    const bool normed =
        layer < c->n_source_layers && layer % 2; /* by the norm of the layer before */
    const bool queries = spw_config_has_queries(c, layer);
    const bool mlp = c->has_mlp[layer], has_bias = c->qkv_bias && queries;
    const bool source_bias = c->qkv_bias && spw_config_keeps_source(c, layer);
    const bool joined = has_bias && spw_find_by_layer(f, layer, "self_attn.qkv_proj.bias");
    const bool each = has_bias && !joined;
    const uint64_t in_q = c->attention_gate == SPW_ATTENTION_GATE_IN_Q ? 2 : 1;
    int (*const k_bias)(struct spw_weights *, const struct spw_finder *, uint32_t, const char *,
                        uint64_t, uint64_t *) = c->no_k_bias ? small_no_bias : small_attention_bias;
    const struct wanted vectors[] = {
        {mixes && !c->late_norms && !normed, small_norm, "input_layernorm", hidden, first_norm},
        {mlp && !c->late_norms && !c->parallel, small_mlp_norm, norms->before_mlp, hidden,
         c->post_norms ? &s->mlp_sum_norm : &s->mlp_norm},
        {mixes && after, small_norm, norms->after_attention, hidden, &s->after_attention_norm},
        {mlp && after, small_norm, norms->after_mlp, hidden, &s->after_mlp_norm},
        {attends && c->extra_logits, small_vector, "self_attn.sinks", c->n_heads, &s->extra_logits},
        {beside, small_norm, "pre_feedforward_layernorm_2", hidden, &s->experts_norm},
        {beside, small_norm, "post_feedforward_layernorm_1", hidden, &s->after_dense_norm},
        {beside, small_norm, "post_feedforward_layernorm_2", hidden, &s->after_experts_norm},
        {beside, small_vector, "router.per_expert_scale", e->n, &s->expert_scale},
        {experts && e->choice_bias, small_row, "mlp.gate.e_score_correction_bias", e->n,
         &s->choice_bias},
        {experts && e->biases, small_vector, "mlp.gate.bias", e->n, &s->router_bias},
        {experts && e->shared_gate, small_row, "mlp.shared_expert_gate.weight", hidden,
         &s->shared_gate},
        {c->layer_inputs, small_norm, "post_per_layer_input_norm", hidden, &s->after_inputs_norm},
        {c->layer_scales, small_vector, "layer_scalar", 1, &s->layer_scale},
        {joined, small_attention_bias, "self_attn.qkv_proj.bias", q + 2 * kv, &s->qkv_bias},
        {each, small_attention_bias, "self_attn.q_proj.bias", q * in_q, &s->qkv_bias},
        {each && attends && stores, k_bias, "self_attn.k_proj.bias", kv, &next},
        {each && attends && stores && !c->v_is_k[c->layer_kinds[layer]], small_attention_bias,
         "self_attn.v_proj.bias", kv, &next},
        {queries && c->o_bias, small_attention_bias, "self_attn.o_proj.bias", hidden, &s->o_bias},
        {source_bias, k_bias, "source_attn.k_proj.bias", kv, &s->source_bias},
        {source_bias, small_attention_bias, "source_attn.v_proj.bias", kv, &next},
    };
    SPW_TRY(small_wanted(w, f, layer, vectors, sizeof vectors / sizeof *vectors));
    if (normed) {
        s->attention_norm = s[-1].attention_norm;
        s->sum_norm = s[-1].sum_norm;
    }
    SPW_TRY(small_distances(w, f, layer));
    if (spw_config_has_state(c, layer))
        SPW_TRY(small_state(w, f, layer));
    if (attends && c->qk_norm)
        SPW_TRY(small_qk_norms(w, f, layer, s));
    if (c->mlp_bias)
        SPW_TRY(small_mlp_biases(w, f, layer, s));
    return experts ? small_router(w, f, layer, s) : 0;
}

/* Norms of the MTP layer that other layers do not have. Some files have the model's own last norm
 * there, too. */
static int small_mtp(struct spw_weights *w, const struct spw_finder *f)
{
    const struct spw_model_config *c = w->config;
    const uint32_t layer = c->n_layers - 1;
    w->mtp_norm = w->final_norm;
    if (!c->mtp)
        return 0;
    SPW_TRY(small_norm(w, f, layer, "enorm", c->hidden, &w->mtp_embedding_norm));
    SPW_TRY(small_norm(w, f, layer, "hnorm", c->hidden, &w->mtp_hidden_norm));
    return spw_find_by_layer(f, layer, "shared_head.norm.weight")
               ? small_norm(w, f, layer, "shared_head.norm", c->hidden, &w->mtp_norm)
               : 0;
}

/* Of the numbers of all layers. */
static int small_inputs_norm(struct spw_weights *w, const struct spw_finder *f)
{
    if (!w->config->layer_inputs)
        return 0;
    SPW_TRY(small_of_model(w, f, "model.per_layer_projection_norm.weight", w->config->layer_inputs,
                           &w->inputs_norm));
    return small_fill(w, 1, sqrtf(0.5f), &w->inputs_factor);
}

static uint32_t widest_head(const struct spw_model_config *c)
{
    uint32_t widest = 0;
    for (int k = 0; k < SPW_LAYER_KINDS; k++)
        widest = spw_max_u32(widest, c->kv[k].head_dim);
    return widest;
}

/* All layers share the factors. They and the frequencies come last: see w->rope. */
static int small_rope(struct spw_weights *w, const struct spw_finder *f)
{
    const struct spw_rope_config *r = w->config->rope;
    const uint64_t n = r->rotary_dim / 2;
    w->first_rope = w->n_small;
    if (r->kind == SPW_ROPE_FACTORS)
        SPW_TRY(small_of_model(w, f, SPW_ROPE_FACTORS_NAME, n, &w->rope_factors));
    if (r->kind == SPW_ROPE_LONG && !r->long_factors) {
        SPW_TRY(small_of_model(w, f, SPW_ROPE_SHORT_NAME, n, &w->rope_factors));
        SPW_TRY(small_of_model(w, f, SPW_ROPE_LONG_NAME, n, &w->long_rope_factors));
    }
    place(w, widest_head(w->config) / 2, &w->no_freq); /* stays 0 */
    for (int k = 0; k < SPW_LAYER_KINDS && spw_layer_has_tiles((enum spw_layer_kind)k); k++)
        place(w, r[k].rotary_dim / 2, &w->inv_freq[k]);
    return 0;
}

/* A norm of the model: weights, and biases after them. */
static int small_model_norm(struct spw_weights *w, const struct spw_finder *f, const char *weights,
                            const char *biases, uint64_t *at)
{
    const uint32_t hidden = w->config->hidden;
    uint64_t next;
    SPW_TRY(small_of_model(w, f, weights, hidden, at));
    return w->config->norm_bias ? small_of_model(w, f, biases, hidden, &next) : 0;
}

/* What the convolutions over audio have beside their matrices. */
static int small_audio(struct spw_weights *w, const struct spw_finder *f)
{
    const uint32_t hidden = w->config->hidden;
    if (!w->config->n_mels)
        return 0;
    SPW_TRY(small_vector(w, f, 0, "source_conv1.bias", hidden, &w->source_conv_bias[0]));
    SPW_TRY(small_vector(w, f, 0, "source_conv2.bias", hidden, &w->source_conv_bias[1]));
    return small_fill(w, hidden, 0, &w->no_frame);
}

/* Norms of the stacks of a model with an encoder. */
static int small_stacks(struct spw_weights *w, const struct spw_finder *f)
{
    const struct spw_model_config *c = w->config;
    if (c->embedding_norm) {
        SPW_TRY(small_model_norm(w, f, "model.source_embedding_norm.weight",
                                 "model.source_embedding_norm.bias", &w->embedding_norm[0]));
        SPW_TRY(small_model_norm(w, f, "model.embedding_norm.weight", "model.embedding_norm.bias",
                                 &w->embedding_norm[1]));
    }
    return c->n_source_layers && !c->post_norms
               ? small_model_norm(w, f, "model.source_norm.weight", "model.source_norm.bias",
                                  &w->source_norm)
               : 0;
}

/* Models with an encoder have a row of them, or none. */
static int small_head_bias(struct spw_weights *w, const struct spw_finder *f)
{
    const struct spw_model_config *c = w->config;
    const char *name = "lm_head.bias";
    const struct spw_tensor *t;
    if (!c->head_bias || (c->n_source_layers && !spw_find_by_name(f, name)))
        return 0;
    SPW_TRY(c->n_source_layers ? spw_find_tensor(f, name, 1, c->vocab, &t)
                               : spw_find_tensor(f, name, c->vocab, 0, &t));
    return small_tensor(w, t, &w->head_bias);
}

/* The last norm, through whose weights logits are divided, and the biases of the head. */
static int small_ends(struct spw_weights *w, const struct spw_finder *f)
{
    const struct spw_model_config *c = w->config;
    if (!c->norm_bare && !c->post_norms) {
        SPW_TRY(small_model_norm(w, f, "model.norm.weight", "model.norm.bias", &w->final_norm));
        struct spw_small_note *weights = last_note(w) - c->norm_bias;
        weights->plus_one = c->norm_plus_one && !c->plain_last;
        weights->divisor = c->logit_divisor;
    }
    SPW_TRY(small_stacks(w, f));
    SPW_TRY(small_audio(w, f));
    return small_head_bias(w, f);
}

/* Branches with the same scale share it. */
static int small_branch_scale(struct spw_weights *w, enum spw_branch branch)
{
    const float *scales = w->config->branch_scales;
    w->branch_scales[branch] = SPW_SMALL_NONE;
    if (branch && scales[branch] == scales[branch - 1])
        w->branch_scales[branch] = w->branch_scales[branch - 1];
    else if (scales[branch] != 1)
        return small_fill(w, w->config->hidden, scales[branch], &w->branch_scales[branch]);
    return 0;
}

/* Of the parts of a row of the first product, in layers with a state. */
static int small_in_scales(struct spw_weights *w)
{
    const struct spw_mixer_config *m = &w->config->mixer;
    const uint64_t values = spw_mixer_width(m), keys = (uint64_t)m->key_heads * m->key_dim;
    const uint64_t widths[SPW_SSD_PARTS] = {values, values, keys, keys, m->heads};
    bool none = m->kind != SPW_MIXER_SSD;
    uint64_t at;
    w->in_scales = SPW_SMALL_NONE;
    for (int i = 0, n = 0; i < SPW_SSD_PARTS && !none; i++) {
        n += m->in_scales[i] == 1;
        none = n == SPW_SSD_PARTS;
    }
    if (none)
        return 0;
    place(w, spw_mixer_in_width(m), &w->in_scales);
    at = w->in_scales;
    for (int i = 0; i < SPW_SSD_PARTS; at += widths[i++])
        SPW_TRY(note(w, (struct spw_small_note){
                            .at = at, .rows = 1, .n = widths[i], .fill = m->in_scales[i]}));
    return 0;
}

int spw_small_open(struct spw_weights *w, const struct spw_finder *f)
{
    const struct spw_model_config *c = w->config;
    w->small_layers = spw_alloc(c->n_layers * sizeof *w->small_layers);
    if (!w->small_layers)
        return -ENOMEM;
    memset(w->small_layers, 0xff, c->n_layers * sizeof *w->small_layers); /* all SPW_SMALL_NONE */
    w->rope_factors = w->long_rope_factors = w->bare_norm = w->head_bias = w->inputs_norm =
        w->inputs_factor = w->source_norm = w->embedding_norm[0] = w->embedding_norm[1] =
            SPW_SMALL_NONE;
    if (c->norm_bare || c->qk_norm_last)
        SPW_TRY(small_fill(w, spw_max_u64(c->hidden, widest_head(c)), 1, &w->bare_norm));
    w->final_norm = w->bare_norm;
    for (uint32_t l = 0; l < c->n_layers; l++)
        SPW_TRY(small_layer(w, f, l));
    SPW_TRY(small_ends(w, f));
    SPW_TRY(small_mtp(w, f));
    for (int b = 0; b < SPW_BRANCHES; b++)
        SPW_TRY(small_branch_scale(w, (enum spw_branch)b));
    SPW_TRY(small_in_scales(w));
    SPW_TRY(small_inputs_norm(w, f));
    return small_rope(w, f);
}

/* ---- reading ---- */

/* A row of a quantized type is read as a whole; such a tensor has a step of 1. */
static void read_row(const struct spw_small_note *n, uint64_t row, float *to)
{
    const struct spw_tensor *t = n->tensor;
    const uint64_t cols = t->shape[t->n_dims - 1];
    const uint8_t *from = (const uint8_t *)t->data + row * spw_row_bytes(t->dtype, cols);
    if (n->step == 1)
        spw_type_read(t->dtype, from, 0, (size_t)cols, to);
    for (uint64_t i = 0; n->step > 1 && i < n->n; i++)
        spw_type_read(t->dtype, from, n->first + i * n->step, 1, to + i);
    for (uint64_t i = 0; n->plus_one && i < n->n; i++)
        to[i] = 1.0f + to[i];
    for (uint64_t i = 0; n->lru_decay && i < n->n; i++)
        to[i] = (float)(-8 * (to[i] > 20 ? (double)to[i] : log1p(exp((double)to[i]))));
    for (uint64_t i = 0; n->negates_exp && i < n->n; i++)
        to[i] = (float)-exp((double)to[i]);
    for (uint64_t i = 0; n->factor > 0 && i < n->n; i++)
        to[i] *= n->factor;
    for (uint64_t i = 0; n->divisor > 0 && i < n->n; i++)
        to[i] /= n->divisor;
}

/* Channels of a head in the order of kernels. */
static void order_channels(float *x, uint32_t n)
{
    float old[SPW_MOST_HEAD_DIM];
    memcpy(old, x, n * sizeof *x);
    for (uint32_t i = 0; i < n; i++)
        x[i % 2 * (n / 2) + i / 2] = old[i];
}

void spw_small_read(struct spw_weights *w)
{
    for (const struct spw_small_note *n = w->notes; n < w->notes + w->n_notes; n++) {
        for (uint64_t row = 0; row < n->rows; row++) {
            float *to = w->small + n->at + row * n->stride;
            for (uint64_t i = 0; !n->tensor && i < n->n; i++)
                to[i] = n->fill;
            if (n->distances)
                read_distances(n, row, to);
            else if (n->tensor)
                read_row(n, row, to);
            order_channels(to, n->n_ordered);
        }
        if (n->tensor)
            spw_tensors_release(n->tensor->data, n->tensor->bytes);
    }
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
    for (int k = 0; k < SPW_LAYER_KINDS && spw_layer_has_tiles((enum spw_layer_kind)k); k++) {
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
