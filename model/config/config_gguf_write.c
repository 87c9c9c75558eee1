/* The keys of a GGUF file from a config: see config_gguf_write.h. */
#include "model/config/config_gguf_write.h"

#include "model/config/config_parts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define PI 3.14159265358979323846

struct writer {
    struct spw_gguf_writer *to;
    const struct spw_model_config *c;
    const struct spw_gguf_architecture *a;
    const struct spw_family *family;
    const char *name;
    struct spw_error *err;
};

struct key {
    char text[96];
};

static struct key full_key(const struct writer *w, const char *key)
{
    struct key k;
    snprintf(k.text, sizeof k.text, "%s.%s", w->a->name, key);
    return k;
}

static void add_u32(const struct writer *w, const char *key, uint64_t x)
{
    spw_gguf_add_u32(w->to, full_key(w, key).text, (uint32_t)x);
}

static void add_f32(const struct writer *w, const char *key, double x)
{
    spw_gguf_add_f32(w->to, full_key(w, key).text, (float)x);
}

static int refuse(const struct writer *w, const char *found, const char *expected)
{
    return spw_fail(w->err, -ENOTSUP,
                    "%s: config.json: found %s, which GGUF files of architecture %s do not store, "
                    "expected %s",
                    w->name, found, w->a->name, expected);
}

/* ---- what a file cannot say ---- */

static bool differs(double x, double from)
{
    return fabs(x - from) > 1e-6 * fabs(from);
}

static double query_scale(const struct writer *w)
{
    if (w->family->plain_scores)
        return 1;
    return pow(w->a->wide_scale_layers ? spw_config_gguf_query_scalar(w->c, w->a)
                                       : (double)w->c->kv[w->c->full_kind].head_dim,
               -0.5);
}

static int check_rope(const struct writer *w)
{
    const struct spw_rope_config *r = &w->c->rope[w->c->full_kind];
    if (r->kind == SPW_ROPE_YARN && r->truncate == w->family->rope.whole_ramp)
        return refuse(w, r->truncate ? "yarn with truncate true" : "yarn with truncate false",
                      "yarn without this key");
    if (w->family->own_full_kv && r->kind != SPW_ROPE_DEFAULT && r->kind != SPW_ROPE_PROPORTIONAL)
        return refuse(w, "rope of another type in layers without a window",
                      "default or proportional");
    if (w->family->rope.by_layer_kind && w->c->window &&
        w->c->rope[w->c->window_kind].kind != SPW_ROPE_DEFAULT)
        return refuse(w, "scaled rope in layers with a window", "scaled rope in the others only");
    if (r->rotary_dim != w->c->kv[w->c->full_kind].head_dim && w->family->rope.partial <= 0)
        return refuse(w, "rope of a part of the channels", "rope of all channels");
    return 0;
}

/* Layers before the first one with experts. */
static uint32_t leading_layers(const struct spw_model_config *c)
{
    uint32_t n = 0;
    while (n < c->n_layers && !c->has_experts[n])
        n++;
    return n;
}

/* Of llama4 the file says only how many layers apart those with experts are. */
static int check_chunks(const struct writer *w)
{
    const struct spw_model_config *c = w->c;
    const struct spw_query_growth *g = &c->query_growth;
    const uint32_t step = leading_layers(c) + 1;
    bool usual = c->window == w->a->chunk && !differs((double)g->beta, 0.1) &&
                 !differs((double)g->base, 8192) &&
                 c->qk_norm_last == (c->experts.n != w->a->bare_experts);
    for (uint32_t i = 0; i < c->n_layers; i++)
        usual &= c->has_experts[i] == ((i + 1) % step == 0) &&
                 (c->layer_kinds[i] == c->window_kind) == c->rotates[i];
    return usual ? 0
                 : refuse(w,
                          "attention_chunk_size, attn_scale, floor_scale, use_qk_norm, layer_types "
                          "or moe_layers of its own",
                          "those of the released models");
}

static int check_experts(const struct writer *w)
{
    const struct spw_model_config *c = w->c;
    if (w->a->chunk)
        return check_chunks(w);
    const struct spw_expert_facts *facts = &w->family->experts;
    const uint32_t leading = facts->first_layer_key ? leading_layers(c) : 0;
    const char *keys = facts->kinds_list       ? "mlp_layer_types"
                       : facts->last_layer_key ? facts->last_layer_key
                                               : "mlp_only_layers, decoder_sparse_step";
    char found[80];
    snprintf(found, sizeof found, "layers without experts (%s)", keys);
    for (uint32_t i = leading; i < c->n_layers; i++)
        if (!c->has_experts[i])
            return refuse(w, found,
                          facts->first_layer_key ? "experts in all layers behind the first ones"
                                                 : "experts in all layers");
    if (!spw_family_asks(w->a->renormalizes) &&
        c->experts.route.renormalizes == (w->a->renormalizes == SPW_FAMILY_NEVER) &&
        spw_family_asks(facts->renormalizes))
        return c->experts.route.renormalizes
                   ? refuse(w, "norm_topk_prob true", "norm_topk_prob false")
                   : refuse(w, "norm_topk_prob false", "norm_topk_prob true");
    return 0;
}

static int check(const struct writer *w)
{
    const struct spw_model_config *c = w->c;
    if (c->experts.n)
        SPW_TRY(check_experts(w));
    const char *act = spw_family_activation(w->family);
    if (c->act != (w->family->cut_gate ? SPW_ACT_CUT_QUICK : spw_config_activation(act)))
        return refuse(w, "another activation", act);
    if (w->a->no_head && !c->tied_embeddings)
        return refuse(w, "tie_word_embeddings false", "true");
    if (c->qk_norm && c->qk_norm_bias)
        return refuse(w, "norms of q and k with biases", "a model without them");
    if (!w->family->multiplied && differs((double)c->attention_scale, query_scale(w)))
        return refuse(w, "query_pre_attn_scalar", "that of the models of this family");
    if (w->family->skips_in_windowed && !c->window && !c->rotates[0])
        return refuse(w, "layers without rope and no windows", "windows, or sliding_window null");
    for (uint32_t i = 0; i < c->n_layers; i++)
        if (w->family->skips_rope && c->rotates[i] == ((i + 1) % 4 == 0))
            return refuse(w, "no_rope_layers", "that every 4th layer does not rotate");
    return check_rope(w);
}

/* ---- keys ---- */

static void add_rope(const struct writer *w)
{
    const struct spw_rope_config *r = &w->c->rope[w->c->full_kind];
    const double local = w->c->rope[w->c->window_kind].theta;
    const double usual_local = w->a->local_theta > 0 ? w->a->local_theta : r->theta;
    add_f32(w, "rope.freq_base", r->theta);
    add_u32(w, "rope.dimension_count", r->rotary_dim);
    const bool own = w->family->own_full_kv;
    if (w->family->rope.by_layer_kind && w->c->window && (own || differs(local, usual_local)))
        add_f32(w, "rope.freq_base_swa", local);
    if (own)
        add_u32(w, "rope.dimension_count_swa", w->c->rope[w->c->window_kind].rotary_dim);
    if (r->kind != SPW_ROPE_LINEAR && r->kind != SPW_ROPE_YARN && r->kind != SPW_ROPE_LONG)
        return;
    spw_gguf_add_string(w->to, full_key(w, "rope.scaling.type").text,
                        r->kind == SPW_ROPE_LINEAR ? "linear"
                        : r->kind == SPW_ROPE_YARN ? "yarn"
                                                   : "longrope");
    if (r->kind == SPW_ROPE_LONG)
        add_f32(w, "rope.scaling.attn_factor", r->attention_factor);
    else
        add_f32(w, "rope.scaling.factor", r->factor);
    if (r->kind != SPW_ROPE_LINEAR)
        add_u32(w, "rope.scaling.original_context_length", r->original_max_positions);
    if (r->kind != SPW_ROPE_YARN)
        return;
    if (differs(r->beta_fast, 32))
        add_f32(w, "rope.scaling.yarn_beta_fast", r->beta_fast);
    if (differs(r->beta_slow, 1))
        add_f32(w, "rope.scaling.yarn_beta_slow", r->beta_slow);
    const double usual = 0.1 * log(r->factor);
    if (!w->family->rope.grows && differs(r->attention_factor, 1 + usual))
        add_f32(w, "rope.scaling.yarn_attn_factor", r->attention_factor);
    if (!w->family->rope.grows || r->factor <= 1)
        return;
    /* a reader divides 1 + usual by 1 + this * usual */
    add_f32(w, "rope.scaling.yarn_log_multiplier", ((1 + usual) / r->attention_factor - 1) / usual);
}

static void add_experts(const struct writer *w)
{
    const struct spw_experts_config *e = &w->c->experts;
    const struct spw_expert_facts *facts = &w->family->experts;
    add_u32(w, "expert_count", e->n);
    add_u32(w, "expert_used_count", e->n_kept);
    add_u32(w, "expert_feed_forward_length", e->intermediate);
    if (w->a->scores)
        add_u32(w, "expert_gating_func", w->a->scores);
    if (facts->shared_count_key)
        add_u32(w, "expert_shared_count", e->shared_intermediate / e->intermediate);
    if (e->shared_intermediate)
        add_u32(w, "expert_shared_feed_forward_length", e->shared_intermediate);
    if (spw_family_find(w->a->model_type)->experts.first_layer_key)
        add_u32(w, "leading_dense_block_count", leading_layers(w->c));
    if (facts->first_layer_key && facts->step_key) /* other programs require it */
        add_u32(w, "interleave_moe_layer_step", 1);
    if (facts->scale_key)
        add_f32(w, "expert_weights_scale", (double)e->route.scale / (double)w->c->residual_scale);
    if (e->route.n_groups)
        add_u32(w, "expert_group_count", e->route.n_groups);
    if (e->route.n_groups)
        add_u32(w, "expert_group_used_count", e->route.n_groups_kept);
    if (spw_family_asks(w->a->renormalizes))
        spw_gguf_add_bool(w->to, full_key(w, "expert_weights_norm").text, e->route.renormalizes);
}

/* ---- keys with a number for each layer ---- */

/* One number if it is the same for all. */
static int add_by_layer(const struct writer *w, const char *key,
                        uint32_t (*of)(const struct spw_model_config *, uint32_t))
{
    const uint32_t n = w->c->n_layers;
    uint32_t *all = spw_alloc(n * sizeof *all);
    bool same = true;
    if (!all)
        return spw_fail(w->err, -ENOMEM, "%s: out of memory", w->name);
    for (uint32_t i = 0; i < n; i++) {
        all[i] = of(w->c, i);
        same = same && all[i] == all[0];
    }
    if (same)
        add_u32(w, key, all[0]);
    else
        spw_gguf_add(w->to, full_key(w, key).text, SPW_GGUF_U32, true, all, n);
    spw_free(all);
    return 0;
}

static uint32_t mlp_width(const struct spw_model_config *c, uint32_t layer)
{
    return (uint32_t)spw_config_mlp_width(c, layer);
}

static uint32_t kv_heads(const struct spw_model_config *c, uint32_t layer)
{
    return spw_config_kv(c, layer)->n_heads;
}

/* Shapes of keys and values, and who reads them. */
static int add_kv(const struct writer *w)
{
    const struct spw_model_config *c = w->c;
    SPW_TRY(add_by_layer(w, "feed_forward_length", mlp_width));
    SPW_TRY(add_by_layer(w, "attention.head_count_kv", kv_heads));
    add_u32(w, "attention.key_length", c->kv[c->full_kind].head_dim);
    add_u32(w, "attention.value_length", c->kv[c->full_kind].head_dim);
    if (w->family->own_full_kv) {
        add_u32(w, "attention.key_length_swa", c->kv[c->window_kind].head_dim);
        add_u32(w, "attention.value_length_swa", c->kv[c->window_kind].head_dim);
    }
    if (w->family->shares_kv)
        add_u32(w, "attention.shared_kv_layers", c->n_layers - c->n_kv_layers);
    if (w->family->layer_inputs)
        add_u32(w, "embedding_length_per_layer_input", c->layer_inputs);
    return 0;
}

/* A file of these families says which layers have a window. */
static bool stores_window(const struct writer *w)
{
    return w->a->joined || w->family->window_rule == SPW_WINDOW_PATTERN;
}

/* Programs assume that every 6th layer of gemma3 is full, every 4th one of cohere2 and exaone4,
 * every 2nd one of gemma2: a key says so only where it is not. */
static int add_window(const struct writer *w)
{
    const struct spw_model_config *c = w->c;
    const uint32_t pattern = w->family->window_pattern;
    bool usual = true;
    if (!c->window || !stores_window(w))
        return 0;
    add_u32(w, "attention.sliding_window", c->window);
    if (w->a->joined) /* in all layers */
        return 0;
    uint8_t *slides = spw_alloc(c->n_layers);
    if (!slides)
        return -ENOMEM;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        slides[i] = c->layer_kinds[i] == c->window_kind;
        usual = usual && slides[i] == ((i + 1) % pattern != 0);
    }
    if (!usual || w->family->own_full_kv)
        spw_gguf_add(w->to, full_key(w, "attention.sliding_window_pattern").text, SPW_GGUF_BOOL,
                     true, slides, c->n_layers);
    spw_free(slides);
    return 0;
}

int spw_config_write_gguf(struct spw_gguf_writer *to, const struct spw_model_config *c,
                          const struct spw_gguf_architecture *a, const char *name,
                          struct spw_gguf_notes *notes, struct spw_error *err)
{
    const struct writer writer = {to, c, a, spw_family_find(c->model_type), name, err},
                        *w = &writer;
    SPW_TRY(check(w));
    if (c->window && !stores_window(w) && !a->chunk)
        spw_gguf_note(notes, "GGUF files of this architecture do not store a sliding window: with "
                             "the file every layer sees all positions, so answers differ behind "
                             "the window");
    if (c->rope[c->full_kind].kind == SPW_ROPE_DYNAMIC)
        spw_gguf_note(notes, "GGUF files do not store rope of type dynamic: with the file the "
                             "model knows max_position_embeddings tokens and no more");
    spw_gguf_add_string(to, "general.architecture", a->name);
    add_u32(w, "block_count", c->n_layers);
    add_u32(w, "context_length", c->max_positions);
    add_u32(w, "embedding_length", c->hidden);
    add_u32(w, "attention.head_count", c->n_heads);
    SPW_TRY(add_kv(w));
    add_f32(
        w, w->family->eps_key ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon",
        (double)c->rms_eps);
    add_u32(w, "vocab_size", c->vocab);
    if (c->experts.n)
        add_experts(w);
    if (w->family->logit_scale > 0)
        add_f32(w, "logit_scale", 1 / (double)c->logit_divisor);
    if (c->qkv_limit > 0)
        add_f32(w, "attention.clamp_kqv", (double)c->qkv_limit);
    if (a->chunk)
        add_u32(w, "interleave_moe_layer_step", leading_layers(c) + 1);
    else if (c->query_growth.beta > 0)
        add_f32(w, "attention.temperature_scale", (double)c->query_growth.beta);
    if (w->family->parallel_key)
        spw_gguf_add_bool(w->to, full_key(w, w->family->parallel_key).text, c->parallel);
    if (w->family->multiplied) {
        add_f32(w, "attention.scale", (double)c->attention_scale);
        add_f32(w, "embedding_scale", (double)c->embedding_scale);
        add_f32(w, "residual_scale", (double)c->residual_scale);
        add_f32(w, "logit_scale", (double)c->logit_divisor);
        if (!c->rotates[0])
            spw_gguf_add_bool(w->to, full_key(w, "rope.scaling.finetuned").text, false);
    }
    if (c->logit_softcap > 0)
        add_f32(w, "final_logit_softcapping", (double)c->logit_softcap);
    if (a->joined && c->window)
        for (uint32_t i = 0; i < c->n_layers; i++)
            if (c->layer_kinds[i] != c->window_kind)
                return refuse(w, "layers with and without a window",
                              "a window in all layers or none");
    if (c->attention_softcap > 0)
        add_f32(w, "attn_logit_softcapping", (double)c->attention_softcap);
    add_rope(w);
    return add_window(w) ? spw_fail(err, -ENOMEM, "%s: out of memory", name) : 0;
}

const char *spw_config_rope_tensor(const struct spw_model_config *c, uint32_t i)
{
    static const char *const of_longrope[] = {"rope_factors_long.weight",
                                              "rope_factors_short.weight"};
    const enum spw_rope_kind kind = c->rope[c->full_kind].kind;
    if (kind == SPW_ROPE_LONG)
        return i < 2 ? of_longrope[i] : NULL;
    return i == 0 && (kind == SPW_ROPE_LLAMA3 || spw_family_find(c->model_type)->own_full_kv)
               ? "rope_freqs.weight"
               : NULL;
}

/* Pairs that do not turn have the number that other programs write for it. */
static float proportional_factor(const struct spw_rope_config *r, uint32_t pair)
{
    const bool turns = r->kind != SPW_ROPE_PROPORTIONAL || pair < r->n_turned;
    return turns ? (float)r->factor : SPW_ROPE_STILL;
}

/* transformers' formula of Llama 3 (modeling_rope_utils.py), as divisors. */
static float llama3_factor(const struct spw_rope_config *r, uint32_t pair)
{
    const double original = (double)r->original_max_positions;
    const double length = 2 * PI * pow(r->theta, 2.0 * pair / r->rotary_dim);
    const double smooth =
        (original / length - r->low_freq_factor) / (r->high_freq_factor - r->low_freq_factor);
    if (length < original / r->high_freq_factor)
        return 1;
    if (length > original / r->low_freq_factor)
        return (float)r->factor;
    return (float)(1 / ((1 - smooth) / r->factor + smooth));
}

void spw_config_rope_factors(const struct spw_model_config *c, const char *tensor, float *out)
{
    const struct spw_rope_config *r = &c->rope[c->full_kind];
    const float *factors =
        !strcmp(tensor, "rope_factors_long.weight") ? r->long_factors : r->short_factors;
    for (uint32_t i = 0; i < r->rotary_dim / 2; i++)
        out[i] = r->kind == SPW_ROPE_LONG     ? factors[i]
                 : r->kind == SPW_ROPE_LLAMA3 ? llama3_factor(r, i)
                                              : proportional_factor(r, i);
}
