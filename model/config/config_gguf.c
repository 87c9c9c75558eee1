/* What differs between the keys of a GGUF file and those of config.json: see config_gguf.h. The
 * reading itself is that of config_*.c, under other names. */
#include "model/config/config_gguf.h"

#include "model/config/config_parts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Keys of config.json that are absent here are absent in GGUF. The first OWN_FULL_NAMES are those
 * of families whose full layers have their own shape of KV. */
enum { OWN_FULL_NAMES = 2 };
static const struct spw_key_name names[] = {
    {"head_dim", "attention.key_length_swa"},
    {"global_head_dim", "attention.key_length"},
    {"num_hidden_layers", "block_count"},
    {"hidden_size", "embedding_length"},
    {"intermediate_size", "feed_forward_length"},
    {"num_attention_heads", "attention.head_count"},
    {"num_key_value_heads", "attention.head_count_kv"},
    {"head_dim", "attention.key_length"},
    {"max_position_embeddings", "context_length"},
    {"rms_norm_eps", "attention.layer_norm_rms_epsilon"},
    {"layer_norm_eps", "attention.layer_norm_epsilon"},
    {"norm_epsilon", "attention.layer_norm_epsilon"},
    {"norm_eps", "attention.layer_norm_epsilon"},
    {"use_parallel_residual", "use_parallel_residual"},
    {"sliding_window", "attention.sliding_window"},
    {"sliding_window_pattern", "attention.sliding_window_pattern"},
    {"final_logit_softcapping", "final_logit_softcapping"},
    {"attn_logit_softcapping", "attn_logit_softcapping"},
    {"logits_scaling", "logit_scale"},
    {"logit_scale", "logit_scale"},
    {"output_multiplier", "logit_scale"},
    {"residual_multiplier", "residual_scale"},
    {"embedding_multiplier", "embedding_scale"},
    {"attention_multiplier", "attention.scale"},
    {"num_experts", "expert_count"},
    {"num_local_experts", "expert_count"},
    {"num_experts_per_tok", "expert_used_count"},
    {"top_k_experts", "expert_used_count"},
    {"moe_intermediate_size", "expert_feed_forward_length"},
    {"interleave_moe_layer_step", "interleave_moe_layer_step"},
    {"shared_expert_intermediate_size", "expert_shared_feed_forward_length"},
    {"shared_intermediate_size", "expert_shared_feed_forward_length"},
    {"moe_shared_expert_intermediate_size", "expert_shared_feed_forward_length"},
    {"moe_latent_size", "moe_latent_size"},
    {"n_routed_experts", "expert_count"},
    {"moe_num_experts", "expert_count"},
    {"moe_k", "expert_used_count"},
    {"moe_topk", "expert_used_count"},
    {"moe_num_shared_experts", "expert_shared_count"},
    {"num_shared_experts", "expert_shared_count"},
    {"moe_layer_start_index", "leading_dense_block_count"},
    {"moe_layer_interval", "interleave_moe_layer_step"},
    {"n_shared_experts", "expert_shared_count"},
    {"n_group", "expert_group_count"},
    {"topk_group", "expert_group_used_count"},
    {"first_k_dense_replace", "leading_dense_block_count"},
    {"routed_scaling_factor", "expert_weights_scale"},
    {"norm_topk_prob", "expert_weights_norm"},
    {"num_nextn_predict_layers", "nextn_predict_layers"},
    {"clip_qkv", "attention.clamp_kqv"},
    {"attention_chunk_size", "attention.chunk_size"},
    {"rope_theta", "rope.freq_base"},
    {"has_rope", "rope.scaling.finetuned"}, /* what Granite's files mean by it */
    {"rotary_dim", "rope.dimension_count"},
    {"rope_local_base_freq", "rope.freq_base_swa"},
    {"rope_type", "rope.scaling.type"},
    {"factor", "rope.scaling.factor"},
    {"original_max_position_embeddings", "rope.scaling.original_context_length"},
    {"beta_fast", "rope.scaling.yarn_beta_fast"},
    {"beta_slow", "rope.scaling.yarn_beta_slow"},
    {"attention_factor", "rope.scaling.yarn_attn_factor"},
    {"mscale", "rope.scaling.mscale"},
    {"mscale_all_dim", "rope.scaling.yarn_log_multiplier"},
    {"llama_4_scaling_beta", "attention.temperature_scale"},
    {"hidden_size_per_layer_input", "embedding_length_per_layer_input"},
    {"num_kv_shared_layers", "attention.shared_kv_layers"},
    {"num_global_key_value_heads",
     "num_global_key_value_heads"}, /* config_gguf_layers.c makes it */
    {"layer_types", "layer_types"}, /* so are these */
    {"hybrid_override_pattern", "hybrid_override_pattern"},
    {"use_double_wide_mlp", "use_double_wide_mlp"},
    {"attention_k_eq_v", "attention_k_eq_v"},
    {"enable_moe_block", "enable_moe_block"},
    {"full_attention_interval", "full_attention_interval"},
    {"linear_num_key_heads", "ssm.group_count"},
    {"linear_num_value_heads", "ssm.time_step_rank"},
    {"linear_key_head_dim", "ssm.state_size"},
    {"linear_inner_size", "ssm.inner_size"},
    {"linear_conv_kernel_dim", "ssm.conv_kernel"},
    {"conv_L_cache", "shortconv.l_cache"},
    {"num_dense_layers", "leading_dense_block_count"},
    {"num_decoder_layers", "decoder_block_count"},
    {"relative_attention_num_buckets", "attention.relative_buckets_count"},
    {"decoder_start_token_id", "decoder_start_token_id"},
    {NULL, NULL},
};

/* Models in which a key changes nothing. */
enum where {
    ALL = 1,
    WITHOUT_WINDOWS = 2,
    WITH_SECTIONS = 4,
    WITH_MAMBA_KEYS = 8,
    WITH_BLOCKS = 16,
    WITHOUT_HEADS = 32,
};

/* Keys that no reader has asked for, and that change nothing with this number. A key that ends with
 * a point stands for all that begin with it. The first row that fits counts. A shape that does not
 * fit its tensor is found in the tensor. */
static const struct {
    const char *key;
    double neutral; /* NAN: any value */
    enum where where;
} unasked_keys[] = {
    {"vision.", NAN, ALL}, /* parts for images and sound, which are left out */
    {"audio.", NAN, ALL},
    {"mm.", NAN, ALL},
    {"image_token_index", NAN, ALL},
    {"spatial_merge_size", NAN, ALL},
    {"attention.layer_norm_epsilon", NAN, ALL}, /* of a norm that the architecture has not */
    {"attention.layer_norm_rms_epsilon", NAN, ALL},
    {"expert_feed_forward_length", NAN, ALL},
    {"expert_group_used_count", NAN, ALL}, /* where there are no groups */
    {"max_position_embeddings", NAN, ALL}, /* context_length says it, too */
    {"pooling_type", NAN, ALL},
    {"rope.scaling.finetuned", NAN, ALL},
    {"rope.scaling.yarn_beta_fast", NAN, ALL}, /* of yarn, where they are asked for */
    {"rope.scaling.yarn_beta_slow", NAN, ALL},
    {"tensor_data_layout", NAN, ALL},
    {"vocab_size", NAN, ALL},
    {"attention.key_length_swa", NAN, WITHOUT_WINDOWS},
    {"attention.sliding_window_pattern", NAN, WITHOUT_WINDOWS},
    {"attention.value_length_swa", NAN, WITHOUT_WINDOWS},
    {"rope.dimension_count_swa", NAN, WITHOUT_WINDOWS},
    {"rope.freq_base_swa", NAN, WITHOUT_WINDOWS},
    {"n_deepstack_layers", NAN, WITH_SECTIONS}, /* positions of images */
    {"rope.dimension_sections", NAN, WITH_SECTIONS},
    {"rope.mrope_section", NAN, WITH_SECTIONS},
    {"ssm.", NAN, WITH_MAMBA_KEYS}, /* layers that the model does not have */
    {"expert_shared_feed_forward_length", NAN, WITH_MAMBA_KEYS},
    {"rope.dimension_count", NAN, WITH_BLOCKS}, /* such models have no rope, and one mlp that */
    {"expert_shared_count", NAN, WITH_BLOCKS},  /* has the width of all shared experts */
    {"attention.head_count", 0, WITHOUT_HEADS},
    {"attention.head_count_kv", 0, WITHOUT_HEADS},
    {"feed_forward_length", 0, WITHOUT_HEADS},
    {"ssm.dt_b_c_rms", 0, ALL},
    {"attention.causal", 1, ALL}, /* keys of other architectures */
    {"attention.max_alibi_bias", 0, ALL},
    {"attention.output_scale", 1, ALL},
    {"attention.shared_kv_layers", 0, ALL},
    {"attention.temperature_length", 0, ALL},
    {"attn_logit_softcapping", 0, ALL},
    {"embedding_length_per_layer_input", 0, ALL},
    {"expert_count", 0, ALL},
    {"expert_group_count", 0, ALL},
    {"expert_shared_count", 0, ALL},
    {"expert_shared_feed_forward_length", 0, ALL},
    {"expert_used_count", 0, ALL},
    {"interleave_moe_layer_step", 0, ALL},
    {"leading_dense_block_count", 0, ALL},
    {"nextn_predict_layers", 0, ALL},
    {"rope.dimension_sections", 0, ALL},
    {"rope.scale_linear", 1, ALL}, /* the name of rope.scaling.factor in old files */
    {"rope.scaling.alpha", 0, ALL},
    {"rope.scaling.attn_factor", 1, ALL},
    {"rope.scaling.factor", 1, ALL},
    {"rope.scaling.yarn_attn_factor", 1, ALL},
    {"rope.scaling.yarn_ext_factor", 1, ALL},
    {"rope.scaling.yarn_log_multiplier", 0, ALL},
    {"router_logit_softcapping", 0, ALL},
};

/* Keys of experts: expert_weights_scale is the factor of a family that has one. */
static int check_experts(const struct spw_keys *keys, const struct spw_config_gguf *facts)
{
    const struct spw_expert_facts *e = &spw_family_find(facts->architecture->model_type)->experts;
    const uint32_t scores = facts->architecture->scores ? facts->architecture->scores : 1;
    uint32_t found = scores;
    double scale = 1;
    bool sums = true;
    char expected[64];
    SPW_TRY(spw_keys_u32(keys, "expert_gating_func", 0, UINT32_MAX, &found));
    snprintf(expected, sizeof expected, "nothing, or %u", scores);
    if (found != scores)
        return spw_keys_refuse(keys, "expert_gating_func", expected);
    SPW_TRY(spw_keys_bool(keys, "expert_weights_norm", &sums));
    if (!sums && e->renormalizes == SPW_FAMILY_ALWAYS)
        return spw_keys_refuse(keys, "expert_weights_norm", "nothing, or true");
    SPW_TRY(spw_keys_number(keys, "expert_weights_scale", -1e6, 1e6, &scale));
    if (e->scale_key) /* 0 is no factor in llama.cpp, and leaves no experts here */
        return scale == 0 ? spw_keys_refuse(keys, "expert_weights_scale", "nothing, or a factor")
                          : 0;
    return scale != 1 ? spw_keys_refuse(keys, "expert_weights_scale", "nothing, or 1") : 0;
}

static bool is_neutral(const json_t *value, double x)
{
    bool same = json_is_boolean(value) ? json_is_true(value) == (x != 0)
                                       : json_is_number(value) && json_number_value(value) == x;
    for (size_t i = 0; i < json_array_size(value); i++)
        if (!is_neutral(json_array_get(value, i), x))
            return false;
    return same || json_is_array(value);
}

/* A window in a file of an architecture that stores none: the file does not say which layers have
 * it, or is of another family. */
static int check_window(const struct spw_keys *keys, const struct spw_gguf_architecture *a,
                        const struct spw_family *family)
{
    const char *key = "attention.sliding_window";
    const json_t *value = spw_keys_value(keys, key);
    if (a->chunk && value && json_number_value(value) != a->chunk)
        return spw_keys_refuse(keys, key, "nothing: models without chunks are read from folders");
    return family->window_rule == SPW_WINDOW_NEVER && value && !is_neutral(value, 0)
               ? spw_keys_refuse(keys, key, "nothing: such models are read from folders only")
               : 0;
}

static int check_unasked(const struct spw_keys *keys, const char *key, unsigned where)
{
    for (size_t i = 0; i < sizeof unasked_keys / sizeof *unasked_keys; i++) {
        const char *its = unasked_keys[i].key;
        const double x = unasked_keys[i].neutral;
        const size_t n = strlen(its) + (its[strlen(its) - 1] != '.'); /* with the end, or a part */
        char expected[64];
        if (strncmp(key, its, n) != 0 || !(unasked_keys[i].where & where))
            continue;
        snprintf(expected, sizeof expected, "nothing, or %g", x);
        return isnan(x) || is_neutral(json_object_get(keys->object, key), x)
                   ? 0
                   : spw_keys_refuse(keys, key, expected);
    }
    return spw_keys_refuse(keys, key,
                           "nothing: this program does not know what the key changes in a model of "
                           "this architecture");
}

/* With a key that no reader has asked for the answer may be that of another model. */
static int check_all_unasked(const struct spw_keys *keys, const struct spw_gguf_architecture *a,
                             const struct spw_family *family, bool has_windows)
{
    const unsigned where =
        ALL | (has_windows ? 0u : WITHOUT_WINDOWS) | (a->sections ? WITH_SECTIONS : 0u) |
        (a->mamba_keys ? WITH_MAMBA_KEYS : 0u) | (family->blocks ? WITH_BLOCKS : 0u) |
        (family->mixes_only ? WITHOUT_HEADS : 0u);
    struct spw_keys own = *keys;
    const char *key;
    json_t *value;
    own.unasked = NULL; /* a refusal reads the key, which must stay in the list */
    json_object_foreach(keys->unasked, key, value)
    {
        (void)value;
        SPW_TRY(check_unasked(&own, key, where));
    }
    return 0;
}

/* A size that must be that of another key. */
static int check_same(const struct spw_keys *keys, const char *key, uint32_t expected,
                      const char *meaning)
{
    const json_t *value = spw_keys_value(keys, key);
    char text[96];
    if (!value || (json_is_integer(value) && json_integer_value(value) == (json_int_t)expected))
        return 0;
    snprintf(text, sizeof text, "%u, the %s", expected, meaning);
    return spw_keys_refuse(keys, key, text);
}

/* Later formats may have more than this program reads. So sizes that it does not ask for must be
 * those that it assumes. */
static int check_sizes(const struct spw_model_config *out, const struct spw_keys *keys,
                       const struct spw_family *family)
{
    static const char *const channels = "channels of a head";
    const struct spw_rope_config *rope = out->rope;
    const uint32_t sliding = out->kv[out->window_kind].head_dim;
    SPW_TRY(check_same(keys, "attention.value_length", out->kv[out->full_kind].head_dim, channels));
    SPW_TRY(check_same(keys, "attention.head_dim", out->kv[out->full_kind].head_dim, channels));
    if (!family->unrotated)
        SPW_TRY(
            check_same(keys, "rope.dimension_count", rope[out->full_kind].rotary_dim, channels));
    if (out->experts.n)
        SPW_TRY(check_same(keys, "expert_shared_feed_forward_length",
                           out->experts.shared_intermediate,
                           "width of the mlp that every token has beside its experts"));
    if (!out->window) /* no layer has these sizes */
        return 0;
    SPW_TRY(check_same(keys, "attention.key_length_swa", sliding, channels));
    SPW_TRY(check_same(keys, "attention.value_length_swa", sliding, channels));
    return check_same(keys, "rope.dimension_count_swa", rope[out->window_kind].rotary_dim,
                      channels);
}

/* Keys that other programs read in all architectures, where the family leaves no choice. */
static int check_choices(const struct spw_model_config *out, const struct spw_keys *keys,
                         const struct spw_family *family)
{
    bool parallel = family->parallel;
    double theta = out->rope[out->full_kind].theta;
    if (!family->parallel_key)
        SPW_TRY(spw_keys_bool(keys, "use_parallel_residual", &parallel));
    if (!family->parallel_key && parallel != family->parallel)
        return spw_keys_refuse(keys, "use_parallel_residual",
                               family->parallel ? "nothing, or true" : "nothing, or false");
    if (!out->window || family->rope.by_layer_kind)
        return 0;
    SPW_TRY(spw_keys_number(keys, "rope.freq_base_swa", 0, 1e15, &theta));
    return theta != out->rope[out->full_kind].theta
               ? spw_keys_refuse(keys, "rope.freq_base_swa", "nothing, or the same as freq_base")
               : 0;
}

/* Files of Nemotron-H have the epsilon under either name. */
static bool has_layer_eps(const struct spw_keys *keys, const struct spw_family *family)
{
    return spw_family_has_layer_norm(family) ||
           (family->blocks && !json_object_get(keys->object, "attention.layer_norm_rms_epsilon"));
}

static bool has_inner(const struct spw_family *family)
{
    return family->mixer.kind == SPW_MIXER_SSD || family->mixer.kind == SPW_MIXER_SCAN;
}

/* The keys ssm.* have one name in all families. What config.json says of biases and norms, the
 * tensors tell. */
static void rename_mixer_keys(struct spw_mixer_facts *m, const struct spw_config_gguf *facts)
{
    m->heads_key = m->rank_key = "linear_num_value_heads";
    m->key_heads_key = "linear_num_key_heads";
    m->key_dim_key = "linear_key_head_dim";
    m->value_dim_key = NULL;
    m->conv_width_key = "linear_conv_kernel_dim";
    m->inner_key = "linear_inner_size";
    m->inner = m->value_dim = 0;
    m->gate_norm = facts->gate_norm;
    m->norm_first = false;
}

/* Keys without which other programs do not read a file, or compute something else than
 * transformers does. */
static int check_required(const struct spw_keys *keys, const struct spw_gguf_architecture *a,
                          const struct spw_family *family)
{
    const bool granite = family->multiplied, windows = family->window_rule == SPW_WINDOW_PATTERN;
    const bool partial = family->rope.partial > 0 && family->rope.partial < 1;
    const bool inner = has_inner(family);
    const struct {
        const char *key;
        bool required;
    } all[] = {
        {has_layer_eps(keys, family) ? "attention.layer_norm_epsilon"
                                     : "attention.layer_norm_rms_epsilon",
         true},
        {"ssm.inner_size", inner},
        {"ssm.state_size", inner},
        {"ssm.time_step_rank", inner},
        {"logit_scale", granite || family->logit_scale > 0},
        {"attention.scale", granite},
        {"final_logit_softcapping", family->logit_softcap > 0 && !family->scaled_scores},
        {"rope.dimension_count", partial},
        {"attention.sliding_window", windows && !a->no_window && !a->usual_window},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].required && !spw_keys_has(keys, all[i].key))
            return spw_keys_refuse(keys, all[i].key, "a number: the key has no default");
    return 0;
}

void spw_config_rule(struct spw_model_config *out, const char *rule)
{
    if (out->n_rules < SPW_CONFIG_MAX_RULES)
        out->rules[out->n_rules++] = rule;
}

/* The family without its defaults: a GGUF file has the key, or the format's default applies. */
static struct spw_family plain_family(const struct spw_config_gguf *facts)
{
    struct spw_family f = *spw_family_find(facts->architecture->model_type);
    f.n_heads = f.n_kv_heads = f.head_dim = f.full_head_dim = 0;
    f.max_positions = 0;
    const struct spw_keys keys = {.object = facts->keys};
    if (!spw_family_has_layer_norm(&f))
        f.eps_key = has_layer_eps(&keys, &f) ? "layer_norm_eps" : NULL;
    f.scales_branches = false; /* the matrices have the multipliers */
    f.bos = f.eos = -1;
    f.rope.theta = 1e4;
    f.rope.local_theta = facts->architecture->local_theta;
    f.vocab = facts->vocab;
    if (f.counts_back) { /* files say which layers have a window, and these have rope */
        f.counts_back = f.skips_rope = false;
        f.skips_full = true;
    }
    if (facts->architecture->window_pattern)
        f.window_pattern = facts->architecture->window_pattern;
    f.experts.count = f.experts.kept = f.experts.width = f.experts.shared_width = 0;
    f.experts.shared_count = f.experts.first_layer = 0;
    f.experts.scale = 0;
    if (f.counts_distances) { /* T5, mT5 and UMT5 have one architecture */
        f.activation = facts->gated_stacks ? "gated-gelu" : "relu";
        f.own_buckets = facts->own_buckets;
    }
    f.mixer.heads = f.mixer.key_heads = f.mixer.key_dim = f.mixer.conv_width = 0;
    f.mixer.grouped_rates = f.mixer.grouped;
    f.mixer.grouped = f.mixer.grouped && facts->gate_joined;
    f.mixer.tiled = facts->architecture->tiled;
    f.mixer.bias = facts->state_bias;
    f.mixer.conv_bias = facts->conv_bias;
    if (has_inner(&f))
        rename_mixer_keys(&f.mixer, facts);
    const enum spw_family_rule rule = facts->architecture->renormalizes;
    if (spw_family_asks(f.experts.renormalizes))
        f.experts.renormalizes = rule == SPW_FAMILY_NEVER || rule == SPW_FAMILY_BY_KEY
                                     ? SPW_FAMILY_BY_KEY
                                     : SPW_FAMILY_UNLESS;
    const json_t *window = json_object_get(facts->keys, "attention.sliding_window");
    const bool pattern = f.window_rule == SPW_WINDOW_PATTERN;
    const bool windowed =
        (pattern && !facts->architecture->no_window) ||
        ((pattern || facts->architecture->joined) && json_integer_value(window) > 0);
    if (facts->architecture->chunk) { /* widths have the keys of other families */
        const json_t *count = json_object_get(facts->keys, "expert_count");
        f.window = facts->architecture->chunk;
        f.width_key = NULL;
        f.width = 0;
        f.experts.width_key = f.experts.shared_width_key = "moe_intermediate_size";
        f.qk_norm_last = json_integer_value(count) != facts->architecture->bare_experts;
    } else if (!windowed) {
        f.window_rule = SPW_WINDOW_NEVER;
    }
    return f;
}

/* What the file does not store at all. */
static void note_rules(struct spw_model_config *out, const struct spw_config_gguf *facts,
                       const struct spw_family *family)
{
    const struct spw_gguf_architecture *a = facts->architecture;
    const json_t *keys = facts->keys;
    const uint32_t pattern = family->window_pattern, wide = a->wide_scale_layers;
    const char *tokenizer = json_string_value(json_object_get(facts->tokenizer, "model"));
    const bool pieces = tokenizer && !strcmp(tokenizer, "llama");
    const bool patterned = out->window && !a->joined && !a->chunk &&
                           !json_object_get(keys, "attention.sliding_window_pattern");
    const bool sums = out->experts.n && out->experts.route.score == SPW_ROUTE_SOFTMAX &&
                      !json_object_get(keys, "expert_weights_norm");
    const struct {
        bool holds;
        const char *rule;
    } rules[] = {
        {a->window_rule, a->window_rule},
        {wide && out->n_layers == wide, "query scale: (embedding_length / head_count)^-0.5, as in "
                                        "the 27B model, which has as many layers"},
        {wide && out->n_layers != wide, "query scale: key_length^-0.5, as in all models but 27B"},
        {a->chunk, json_object_get(keys, "attention.chunk_size")
                       ? "every 4th layer sees all positions and has no rope; the others have "
                         "chunks"
                       : "every 4th layer sees all positions and has no rope; the others have "
                         "chunks of 8192"},
        {a->chunk, "queries of layers without rope: times 1 + 0.1 ln(1 + floor((position + 1) / "
                   "8192))"},
        {a->chunk && !json_object_get(keys, "use_qk_norm"),
         out->qk_norm_last ? "q and k: a norm after rope, as in all models but the one with 128 "
                             "experts"
                           : "q and k: no norm, as in the model with 128 experts"},
        {patterned, pattern == 2   ? "every 2nd layer sees all positions, the others a window"
                    : pattern == 4 ? "every 4th layer sees all positions, the others a window"
                                   : "every 6th layer sees all positions, the others a window"},
        {a->usual_window && !json_object_get(keys, "attention.sliding_window"),
         "sliding window: 4096, as in all models"},
        {out->window && a->local_theta > 0 && !json_object_get(keys, "rope.freq_base_swa"),
         "rope base of layers with a window: 10000"},
        {sums, out->experts.route.renormalizes
                   ? "weights of experts: their sum is 1, as in all models of this architecture"
                   : "weights of experts: their sum is not made 1, as in all models of this "
                     "architecture"},
        {facts->rope_factors,
         family->rope.by_layer_kind
             ? "rope frequencies of layers that see all positions: divided by the numbers of "
               "rope_freqs.weight"
             : "rope frequencies: divided by the numbers of rope_freqs.weight"},
        {facts->long_factors, "rope frequencies: divided by the numbers of "
                              "rope_factors_short.weight, or of rope_factors_long.weight in "
                              "sequences longer than rope.scaling.original_context_length"},
        {family->rope.whole_ramp && out->rope[out->full_kind].kind == SPW_ROPE_YARN,
         "rope of YaRN: the ramp does not end at whole pairs of channels"},
        {family->mixer.interval && !out->kinds_listed &&
             !json_object_get(keys, "full_attention_interval"),
         "every 4th layer attends, the others have a state"},
        {family->mixer.norm_first_key && out->mixer.gate_norm,
         "layers with a state: the gate comes before the norm"},
        {family->skips_rope, "every 4th layer has no rope"},
        {family->post_eps > 0, "norms behind attention and the mlp: epsilon 1e-8"},
        {family->own_full_kv, "scores are not scaled"},
        {out->v_is_k[out->full_kind], "values are keys in layers that have no tensor for values"},
        {a->plain_start && pieces && !json_object_get(facts->tokenizer, "add_space_prefix"),
         "a text has no space in front of it, as in all models"},
        {a->greedy_tokens && pieces, "added tokens take the white space behind them, but for "
                                     "<unk>, <s> and <|endoftext|>"},
        {facts->default_tokens, "bos and eos: tokens 1 and 2 where no key names them"},
        {facts->more_eos, "tokens that end an answer, besides eos_token_id: by their text"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].holds)
            spw_config_rule(out, rules[i].rule);
}

double spw_config_gguf_query_scalar(const struct spw_model_config *out,
                                    const struct spw_gguf_architecture *a)
{
    return out->n_layers == a->wide_scale_layers ? (double)out->hidden / out->n_heads
                                                 : (double)out->kv[out->full_kind].head_dim;
}

static int read_all(struct spw_model_config *out, const struct spw_config_gguf *facts,
                    json_t *unasked, const json_t *renamed, struct spw_error *err)
{
    char prefix[64];
    snprintf(prefix, sizeof prefix, "%s.", facts->architecture->name);
    struct spw_family family = plain_family(facts);
    const bool own_full = family.own_full_kv;
    struct spw_config_source source = {.top = {.file = facts->file,
                                               .prefix = prefix,
                                               .object = facts->keys,
                                               .err = err,
                                               .unasked = unasked,
                                               .renamed = renamed,
                                               .names = names + (own_full ? 0 : OWN_FULL_NAMES)},
                                       .family = &family,
                                       .model_type = facts->architecture->model_type,
                                       .gguf = facts};
    struct spw_keys tokenizer = {
        .file = facts->file, .prefix = "tokenizer.ggml.", .object = facts->tokenizer, .err = err};
    const json_t *scaling = json_object_get(facts->keys, "rope.scaling.type");
    const json_t *factor = json_object_get(facts->keys, "rope.scaling.factor");
    struct spw_keys own = source.top; /* by the names of the file */
    own.names = NULL;
    source.text = source.top;
    const char *type = json_is_string(scaling) ? json_string_value(scaling) : "linear";
    const bool none = !strcmp(type, "none"), empty = !*type;
    if (none || (empty && json_number_value(factor) == 0))
        spw_keys_value(&own, "rope.scaling.factor"); /* it means nothing then */
    if (!strcmp(type, "yarn") && !factor) /* transformers would take another one than others do */
        return spw_keys_refuse(&own, "rope.scaling.factor", "a number: the key has no default");
    if (none || empty || (!strcmp(type, "longrope") && facts->long_factors))
        json_object_del(facts->keys, "rope.scaling.type");
    if (facts->architecture->chunk)
        SPW_TRY(spw_keys_bool(&own, "use_qk_norm", &family.qk_norm_last));
    if (own_full && !facts->rope_factors)
        return spw_fail(err, -EINVAL,
                        "%s: tensor rope_freqs.weight: found nothing, expected a number for each "
                        "pair of channels of layers that see all positions",
                        facts->file);
    SPW_TRY(check_window(&own, facts->architecture, &family));
    SPW_TRY(check_required(&own, facts->architecture, spw_family_find(source.model_type)));
    SPW_TRY(spw_config_gguf_layers(facts, &family, &own));
    SPW_TRY(check_experts(&own, facts));
    SPW_TRY(spw_config_read(out, &source, &tokenizer));
    SPW_TRY(check_sizes(out, &own, &family));
    SPW_TRY(check_choices(out, &own, &family));
    SPW_TRY(check_all_unasked(&own, facts->architecture, &family, out->window));
    note_rules(out, facts, &family);
    if (facts->other_parts)
        out->wrapper = facts->architecture->name;
    return 0;
}

int spw_config_from_gguf(struct spw_model_config *out, const struct spw_config_gguf *facts,
                         struct spw_error *err)
{
    char prefix[64];
    snprintf(prefix, sizeof prefix, "%s.", facts->architecture->name);
    const struct spw_keys keys = {
        .file = facts->file, .prefix = prefix, .object = facts->keys, .err = err};
    json_t *unasked = NULL, *renamed = json_object();
    *out = (struct spw_model_config){0};
    int rc = spw_config_gguf_ollama(out, facts, &keys, renamed);
    if (!rc && !(unasked = json_copy(facts->keys)))
        rc = spw_fail(err, -ENOMEM, "%s: out of memory", facts->file);
    if (!rc)
        rc = read_all(out, facts, unasked, renamed, err);
    json_decref(unasked);
    json_decref(renamed);
    if (rc) {
        spw_config_free(out);
        spw_json_tidy(err);
    }
    return rc;
}
