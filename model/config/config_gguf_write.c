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
    for (uint32_t i = leading; i < spw_config_main_layers(c); i++)
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
    if (w->family->blocks || c->mixer.kind > SPW_MIXER_DELTA)
        return spw_fail(w->err, -ENOTSUP,
                        "%s: config.json: found layers of Mamba, or layers of one half: this "
                        "program does not write them to GGUF files; expected layers that attend "
                        "and have an mlp, gated delta nets or short convolutions",
                        w->name);
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
    if (c->mixer.conv_bias && c->mixer.kind == SPW_MIXER_CONV)
        return refuse(w, "conv_bias true", "false");
    if (differs((double)c->post_eps,
                w->family->post_eps > 0 ? w->family->post_eps : (double)c->rms_eps))
        return refuse(w, "another post_norm_eps", "that of the family");
    if (w->family->skips_in_windowed && !c->window && !c->rotates[0])
        return refuse(w, "layers without rope and no windows", "windows, or sliding_window null");
    for (uint32_t i = 0; i < c->n_layers; i++)
        if (w->family->skips_rope && !w->family->counts_back && c->rotates[i] == ((i + 1) % 4 == 0))
            return refuse(w, "no_rope_layers", "that every 4th layer does not rotate");
        else if (w->family->counts_back && c->rotates[i] != (c->layer_kinds[i] == c->window_kind))
            return refuse(w, "layer_rope_theta", "rope in layers with a window only");
    for (uint32_t i = 0; w->a->joined && c->window && i < c->n_layers; i++)
        if (c->layer_kinds[i] != c->window_kind)
            return refuse(w, "layers with and without a window", "a window in all layers or none");
    return check_rope(w);
}

/* What files of T5 do not store. */
static int check_stacks(const struct writer *w)
{
    const struct spw_model_config *c = w->c;
    if (c->most_distance != 128)
        return refuse(w, "another relative_attention_max_distance", "128");
    return c->act == (c->plain_mlp ? SPW_ACT_RELU : SPW_ACT_GELU_TANH)
               ? 0
               : refuse(w, "another feed_forward_proj", "relu or gated-gelu");
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
    spw_gguf_add(w->to, full_key(w, key).text, SPW_GGUF_U32, !same, all, same ? 1 : n);
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
    spw_gguf_add_u32(w->to, full_key(w, "attention.sliding_window").text, c->window);
    if (w->a->joined) /* in all layers */
        return 0;
    uint8_t *slides = spw_alloc(c->n_layers);
    if (!slides)
        return spw_fail(w->err, -ENOMEM, "%s: out of memory", w->name);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        slides[i] = c->layer_kinds[i] == c->window_kind;
        usual = usual && slides[i] == ((i + 1) % pattern != 0);
    }
    if (!usual || w->family->own_full_kv || w->family->counts_back)
        spw_gguf_add(w->to, full_key(w, "attention.sliding_window_pattern").text, SPW_GGUF_BOOL,
                     true, slides, c->n_layers);
    spw_free(slides);
    return 0;
}

/* Which layers have a state, where it is not every one but each n-th, and its sizes. */
static int add_states(const struct writer *w)
{
    const struct spw_model_config *c = w->c;
    const struct spw_mixer_config *m = &c->mixer;
    uint32_t interval = 0;
    bool usual = true;
    if (m->kind == SPW_MIXER_CONV)
        spw_gguf_add_u32(w->to, full_key(w, "shortconv.l_cache").text, m->conv_width);
    if (!w->family->mixer.interval)
        return 0;
    while (interval < c->n_layers && c->layer_kinds[interval++] == SPW_LAYER_STATE)
        ;
    uint8_t *recurrent = spw_alloc(c->n_layers);
    if (!recurrent)
        return spw_fail(w->err, -ENOMEM, "%s: out of memory", w->name);
    for (uint32_t l = 0; l < c->n_layers; l++) {
        recurrent[l] = c->layer_kinds[l] == SPW_LAYER_STATE;
        usual = usual && (spw_config_is_mtp(c, l) || recurrent[l] == ((l + 1) % interval != 0));
    }
    if (usual)
        spw_gguf_add_u32(w->to, full_key(w, "full_attention_interval").text, interval);
    else
        spw_gguf_add(w->to, full_key(w, "attention.recurrent_layers").text, SPW_GGUF_BOOL, true,
                     recurrent, c->n_layers);
    spw_free(recurrent);
    return 0;
}

/* Positions of images have several numbers: the pairs of channels that each of them turns, as in
 * the released models. Other programs want to know them. */
static void add_sections(const struct writer *w)
{
    const int32_t n = (int32_t)w->c->rope[w->c->full_kind].rotary_dim / 2;
    const int32_t first = (n + 2) / 3, second = (n - first + 1) / 2;
    const int32_t sections[] = {first, second, n - first - second, 0};
    if (w->a->sections && w->c->attention_gate)
        spw_gguf_add(w->to, full_key(w, "rope.dimension_sections").text, SPW_GGUF_I32, true,
                     sections, 4);
}

/* ---- keys with one value ---- */

static const char *const rope_types[] = {
    [SPW_ROPE_LINEAR] = "linear", [SPW_ROPE_YARN] = "yarn", [SPW_ROPE_LONG] = "longrope"};

static void add_keys(const struct writer *w)
{
    const struct spw_model_config *c = w->c;
    const struct spw_family *family = w->family;
    const struct spw_expert_facts *facts = &family->experts;
    const struct spw_experts_config *e = &c->experts;
    const struct spw_rope_config *r = &c->rope[c->full_kind], *local = &c->rope[c->window_kind];
    const uint32_t width = c->kv[c->full_kind].head_dim,
                   local_width = c->kv[c->window_kind].head_dim;
    const uint32_t leading = leading_layers(c);
    const struct spw_mixer_config *m = &c->mixer;
    const bool delta = m->kind == SPW_MIXER_DELTA;
    const bool own = family->own_full_kv, yarn = r->kind == SPW_ROPE_YARN, some = e->n;
    const bool is_long = r->kind == SPW_ROPE_LONG, linear = r->kind == SPW_ROPE_LINEAR;
    const bool layer_norm = spw_family_has_layer_norm(family);
    const bool multiplied = family->multiplied, grows = family->rope.grows;
    const double usual_theta = w->a->local_theta > 0 ? w->a->local_theta : r->theta;
    const double usual = 0.1 * log(r->factor); /* of yarn_attn_factor, less 1 */
    const struct {
        bool has;
        const char *key;
        enum { U32, F32, BOOL } type;
        double value;
    } keys[] = {
        {true, "block_count", U32, c->n_layers},
        {c->mtp, "nextn_predict_layers", U32, 1},
        {true, "context_length", U32, (double)c->max_positions},
        {true, "embedding_length", U32, c->hidden},
        {true, "attention.head_count", U32, c->n_heads},
        {true, "attention.key_length", U32, width},
        {true, "attention.value_length", U32, width},
        {own, "attention.key_length_swa", U32, local_width},
        {own, "attention.value_length_swa", U32, local_width},
        {family->shares_kv, "attention.shared_kv_layers", U32, spw_config_n_readers(c)},
        {family->layer_inputs, "embedding_length_per_layer_input", U32, c->layer_inputs},
        {layer_norm, "attention.layer_norm_epsilon", F32, (double)c->rms_eps},
        {!layer_norm, "attention.layer_norm_rms_epsilon", F32, (double)c->rms_eps},
        {true, "vocab_size", U32, c->vocab},
        {some, "expert_count", U32, e->n},
        {some, "expert_used_count", U32, e->n_kept},
        {some, "expert_feed_forward_length", U32, e->intermediate},
        {some && w->a->scores, "expert_gating_func", U32, w->a->scores},
        {some && facts->shared_count_key, "expert_shared_count", U32,
         some ? e->shared_intermediate / e->intermediate : 0},
        {some && e->shared_intermediate, "expert_shared_feed_forward_length", U32,
         e->shared_intermediate},
        {some && spw_family_find(w->a->model_type)->experts.first_layer_key,
         "leading_dense_block_count", U32, leading},
        {some && facts->first_layer_key && facts->step_key, "interleave_moe_layer_step", U32,
         1}, /* other programs require it */
        {some && facts->scale_key, "expert_weights_scale", F32,
         (double)e->route.scale / (double)c->branch_scales[SPW_BRANCH_MLP]},
        {e->route.n_groups, "expert_group_count", U32, e->route.n_groups},
        {e->route.n_groups, "expert_group_used_count", U32, e->route.n_groups_kept},
        {some && spw_family_asks(w->a->renormalizes), "expert_weights_norm", BOOL,
         e->route.renormalizes},
        {delta, "ssm.conv_kernel", U32, m->conv_width},
        {delta, "ssm.state_size", U32, m->key_dim},
        {delta, "ssm.group_count", U32, m->key_heads},
        {delta, "ssm.time_step_rank", U32, m->heads},
        {delta, "ssm.inner_size", U32, (double)spw_mixer_width(m)},
        {family->logit_scale > 0, "logit_scale", F32, 1 / (double)c->logit_divisor},
        {c->qkv_limit > 0, "attention.clamp_kqv", F32, (double)c->qkv_limit},
        {w->a->chunk, "interleave_moe_layer_step", U32, leading + 1},
        {!w->a->chunk && c->query_growth.beta > 0, "attention.temperature_scale", F32,
         (double)c->query_growth.beta},
        {family->parallel_key, family->parallel_key, BOOL, c->parallel},
        {multiplied, "attention.scale", F32, (double)c->attention_scale},
        {multiplied, "embedding_scale", F32, (double)c->embedding_scale},
        {multiplied, "residual_scale", F32, (double)c->branch_scales[SPW_BRANCH_MLP]},
        {multiplied, "logit_scale", F32, (double)c->logit_divisor},
        {multiplied && !c->rotates[0], "rope.scaling.finetuned", BOOL, false},
        {c->logit_softcap > 0, "final_logit_softcapping", F32, (double)c->logit_softcap},
        {c->attention_softcap > 0, "attn_logit_softcapping", F32, (double)c->attention_softcap},
        {true, "rope.freq_base", F32, r->theta},
        {true, "rope.dimension_count", U32, r->rotary_dim},
        {family->rope.by_layer_kind && c->window && (own || differs(local->theta, usual_theta)),
         "rope.freq_base_swa", F32, local->theta},
        {own, "rope.dimension_count_swa", U32, local->rotary_dim},
        {is_long, "rope.scaling.attn_factor", F32, r->attention_factor},
        {linear || yarn, "rope.scaling.factor", F32, r->factor},
        {is_long || yarn, "rope.scaling.original_context_length", U32,
         (double)r->original_max_positions},
        {yarn && differs(r->beta_fast, 32), "rope.scaling.yarn_beta_fast", F32, r->beta_fast},
        {yarn && differs(r->beta_slow, 1), "rope.scaling.yarn_beta_slow", F32, r->beta_slow},
        {yarn && !grows && differs(r->attention_factor, 1 + usual), "rope.scaling.yarn_attn_factor",
         F32, r->attention_factor},
        {yarn && grows && r->factor > 1, "rope.scaling.yarn_log_multiplier", F32,
         ((1 + usual) / r->attention_factor - 1) /
             usual}, /* a reader divides by 1 + this * usual */
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const struct key key = full_key(w, keys[i].key);
        if (keys[i].has && keys[i].type == U32)
            spw_gguf_add_u32(w->to, key.text, (uint32_t)keys[i].value);
        else if (keys[i].has && keys[i].type == F32)
            spw_gguf_add_f32(w->to, key.text, (float)keys[i].value);
        else if (keys[i].has)
            spw_gguf_add_bool(w->to, key.text, keys[i].value > 0);
    }
    if (linear || yarn || is_long)
        spw_gguf_add_string(w->to, full_key(w, "rope.scaling.type").text, rope_types[r->kind]);
}

/* Of T5. */
static void add_stack_keys(const struct writer *w)
{
    const struct spw_model_config *c = w->c;
    const uint32_t width = c->kv[c->full_kind].head_dim;
    const struct {
        const char *key;
        uint64_t value;
    } sizes[] = {
        {"block_count", c->n_source_layers / 2},
        {"decoder_block_count", (c->n_layers - c->n_source_layers) / 2},
        {"context_length", c->max_positions / 2},
        {"embedding_length", c->hidden},
        {"feed_forward_length", c->intermediate},
        {"attention.head_count", c->n_heads},
        {"attention.key_length", width},
        {"attention.value_length", width},
        {"attention.relative_buckets_count", c->n_buckets},
        {"decoder_start_token_id", (uint64_t)c->start},
        {"vocab_size", c->vocab},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        spw_gguf_add_u32(w->to, full_key(w, sizes[i].key).text, (uint32_t)sizes[i].value);
    spw_gguf_add_f32(w->to, full_key(w, "attention.layer_norm_rms_epsilon").text, c->rms_eps);
    spw_gguf_add_f32(w->to, full_key(w, "attention.layer_norm_epsilon").text, c->rms_eps);
}

int spw_config_write_gguf(struct spw_gguf_writer *to, const struct spw_model_config *c,
                          const struct spw_gguf_architecture *a, const char *name,
                          struct spw_gguf_notes *notes, struct spw_error *err)
{
    const struct writer writer = {to, c, a, spw_family_find(c->model_type), name, err},
                        *w = &writer;
    if (c->n_source_layers) {
        SPW_TRY(check_stacks(w));
        spw_gguf_add_string(to, "general.architecture", a->name);
        add_stack_keys(w);
        return 0;
    }
    SPW_TRY(check(w));
    if (c->window && !stores_window(w) && !a->chunk)
        spw_gguf_note(notes, "GGUF files of this architecture do not store a sliding window: with "
                             "the file every layer sees all positions, so answers differ behind "
                             "the window");
    if (c->rope[c->full_kind].kind == SPW_ROPE_DYNAMIC)
        spw_gguf_note(notes, "GGUF files do not store rope of type dynamic: with the file the "
                             "model knows max_position_embeddings tokens and no more");
    spw_gguf_add_string(to, "general.architecture", a->name);
    SPW_TRY(add_by_layer(w, "feed_forward_length", mlp_width));
    if (w->family->mixer.interval)
        spw_gguf_add_u32(to, full_key(w, "attention.head_count_kv").text,
                         c->kv[c->full_kind].n_heads);
    else
        SPW_TRY(add_by_layer(w, "attention.head_count_kv", kv_heads));
    SPW_TRY(add_states(w));
    add_sections(w);
    add_keys(w);
    return add_window(w);
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
