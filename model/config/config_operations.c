/* Which operations a layer consists of, and their numbers: norms, biases, the activation, limits
 * and scales. A family's row says most of it; keys of the file say the rest. */
#include "model/config/config_parts.h"

#include "base/numbers.h"

#include <math.h>
#include <string.h>

static const struct {
    const char *name;
    enum spw_activation act;
} activations[] = {
    {"silu", SPW_ACT_SILU},          {"swish", SPW_ACT_SILU},
    {"gelu", SPW_ACT_GELU_ERF},      {"gelu_pytorch_tanh", SPW_ACT_GELU_TANH},
    {"gelu_new", SPW_ACT_GELU_TANH}, {"relu", SPW_ACT_RELU},
    {"relu2", SPW_ACT_RELU_SQUARED}, {"quick_gelu", SPW_ACT_GELU_QUICK},
};

/* A key whose name is a fact of the family. */
static int read_switch(const struct spw_keys *keys, const char *key, bool or_null, bool *out)
{
    return or_null && spw_keys_is_null(keys, key) ? 0 : spw_keys_bool(keys, key, out);
}

static int read_rule(const struct spw_config_source *source, const char *key,
                     enum spw_family_rule rule, bool *out)
{
    *out = rule == SPW_FAMILY_ALWAYS || rule == SPW_FAMILY_UNLESS;
    return spw_family_asks(rule)
               ? read_switch(&source->text, key, source->family->bias_or_null, out)
               : 0;
}

static int read_biases(struct spw_model_config *out, const struct spw_config_source *source)
{
    const struct spw_family *family = source->family;
    const struct spw_config_gguf *gguf = source->gguf;
    const char *attention =
        family->attention_bias_key ? family->attention_bias_key : "attention_bias";
    const char *mlp = family->mlp_bias_key ? family->mlp_bias_key : "mlp_bias";
    bool others = false;
    if (family->false_key)
        SPW_TRY(SPW_OR_NULL(spw_keys_bool, &source->text, family->false_key, &others));
    if (others)
        return spw_keys_refuse(&source->text, family->false_key,
                               "false: such biases are not supported");
    SPW_TRY(read_rule(source, attention, family->qkv_bias, &out->qkv_bias));
    SPW_TRY(read_rule(source, attention, family->o_bias, &out->o_bias));
    SPW_TRY(read_rule(source, mlp, family->mlp_bias, &out->mlp_bias));
    if (gguf && spw_family_asks(family->qkv_bias))
        out->qkv_bias = gguf->qkv_bias;
    if (gguf && spw_family_asks(family->o_bias))
        out->o_bias = gguf->o_bias;
    if (gguf && spw_family_asks(family->mlp_bias))
        out->mlp_bias = gguf->mlp_bias;
    return 0;
}

/* The activation has the numbers of all released models built in. */
static int read_cut_gate(struct spw_model_config *out, const struct spw_keys *keys)
{
    double limit = SPW_GATE_LIMIT, alpha = 1.702;
    SPW_TRY(spw_keys_number(keys, "swiglu_limit", -1e6, 1e6, &limit));
    if (limit != SPW_GATE_LIMIT)
        return spw_keys_refuse(keys, "swiglu_limit", "7");
    SPW_TRY(spw_keys_number(keys, "swiglu_alpha", -1e6, 1e6, &alpha));
    if (alpha != 1.702)
        return spw_keys_refuse(keys, "swiglu_alpha", "1.702");
    out->act = SPW_ACT_CUT_QUICK;
    return 0;
}

enum spw_activation spw_config_activation(const char *name)
{
    for (size_t i = 0; i < sizeof activations / sizeof activations[0]; i++)
        if (!strcmp(name, activations[i].name))
            return activations[i].act;
    return SPW_ACT_COUNT;
}

static int read_activation(struct spw_model_config *out, const struct spw_config_source *source)
{
    const struct spw_family *family = source->family;
    const char *key = family->activation_key ? family->activation_key : "hidden_act";
    const char *name = spw_family_activation(family);
    if (family->counts_distances)
        return 0; /* spw_config_read_encoder */
    if (family->cut_gate)
        return read_cut_gate(out, &source->text);
    SPW_TRY(spw_keys_string(&source->text, key, &name));
    out->act = spw_config_activation(name);
    if (family->tanh_gelu && out->act == SPW_ACT_GELU_ERF)
        out->act = SPW_ACT_GELU_TANH;
    if (out->act != SPW_ACT_COUNT)
        return 0;
    return spw_keys_refuse(&source->text, key,
                           "silu, gelu, gelu_new, gelu_pytorch_tanh, quick_gelu, relu or relu2");
}

/* null: none. */
static int read_softcap(const struct spw_keys *keys, const char *key, double *cap)
{
    if (spw_keys_is_null(keys, key))
        *cap = 0;
    return SPW_OR_NULL(spw_keys_number, keys, key, 1e-3, 1e6, cap);
}

static int read_multipliers(struct spw_model_config *out, const struct spw_keys *keys)
{
    double attention = 1, embedding = 1, residual = 1, logits = 1;
    SPW_TRY(spw_keys_number(keys, "attention_multiplier", -1e6, 1e6, &attention));
    SPW_TRY(spw_keys_number(keys, "embedding_multiplier", -1e6, 1e6, &embedding));
    SPW_TRY(spw_keys_number(keys, "residual_multiplier", -1e6, 1e6, &residual));
    SPW_TRY(spw_keys_number(keys, "logits_scaling", 1e-6, 1e6, &logits));
    out->attention_scale = (float)attention;
    out->embedding_scale = (float)embedding;
    for (int b = 0; b < SPW_BRANCHES; b++)
        out->branch_scales[b] = (float)residual;
    out->logit_divisor = (float)logits;
    return 0;
}

/* A list of numbers above 0; null, or no key: all are 1. */
static int read_factors(const struct spw_keys *keys, const char *key, size_t n, double *out)
{
    const json_t *list = spw_keys_value(keys, key);
    bool right = json_array_size(list) == n;
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(list, i);
        right = right && json_number_value(item) >= 1e-6 && json_number_value(item) <= 1e6;
        out[i] = json_array_size(list) ? json_number_value(item) : 1;
    }
    return right || !list || json_is_null(list)
               ? 0
               : spw_keys_refuse(keys, key, "a list of numbers above 0, of the right length");
}

/* Multipliers of Falcon-H1. What goes into attention, or into the mlp, is left as it is: products
 * are linear, so their factors become part of those of scores and of what the branch adds. */
static int read_branch_scales(struct spw_model_config *out, const struct spw_keys *keys)
{
    enum { EMBEDDING, HEAD, KEY, ATTENTION, ATTENTION_OUT, STATE, STATE_OUT, N };
    static const char *const names[N] = {"embedding_multiplier",     "lm_head_multiplier",
                                         "key_multiplier",           "attention_in_multiplier",
                                         "attention_out_multiplier", "ssm_in_multiplier",
                                         "ssm_out_multiplier"};
    double x[N], mlp[2], parts[SPW_SSD_PARTS];
    for (int i = 0; i < N; i++) {
        x[i] = 1;
        SPW_TRY(SPW_OR_NULL(spw_keys_number, keys, names[i], 1e-6, 1e6, &x[i]));
    }
    SPW_TRY(read_factors(keys, "mlp_multipliers", 2, mlp));
    SPW_TRY(read_factors(keys, "ssm_multipliers", SPW_SSD_PARTS, parts));
    out->embedding_scale = (float)x[EMBEDDING];
    out->logit_divisor = (float)(1 / x[HEAD]);
    out->attention_scale *= (float)(x[KEY] * x[ATTENTION] * x[ATTENTION]);
    out->attention_in_scale = (float)x[ATTENTION];
    out->mlp_in_scale = (float)mlp[0];
    out->branch_scales[SPW_BRANCH_ATTENTION] = (float)(x[ATTENTION] * x[ATTENTION_OUT]);
    out->branch_scales[SPW_BRANCH_STATE] = (float)x[STATE_OUT];
    out->branch_scales[SPW_BRANCH_MLP] = (float)(mlp[1] / mlp[0]);
    out->mixer.in_scale = (float)x[STATE];
    for (int i = 0; i < SPW_SSD_PARTS; i++)
        out->mixer.in_scales[i] = (float)(x[STATE] * parts[i]);
    return 0;
}

static int read_limits(struct spw_model_config *out, const struct spw_config_source *source)
{
    const struct spw_family *family = source->family;
    const char *scale_key = family->logit_scale_key ? family->logit_scale_key : "logit_scale";
    double limit = 0, scale = family->logit_scale;
    if (family->limits_qkv)
        SPW_TRY(SPW_OR_NULL(spw_keys_number, &source->text, "clip_qkv", 1e-6, 1e6, &limit));
    if (scale > 0)
        SPW_TRY(spw_keys_number(&source->text, scale_key, 1e-6, 1e6, &scale));
    if (source->wrapper && !family->caps_wrapped)
        scale = 0; /* transformers scales the logits of text models only, not of their wrappers */
    out->qkv_limit = (float)limit;
    out->logit_divisor = scale > 0 ? (float)(1 / scale) : 1;
    return 0;
}

/* null: none, in families whose scores have a key of their own. */
static int read_caps(struct spw_model_config *out, const struct spw_config_source *source)
{
    const struct spw_keys *keys = &source->text;
    const char *key = source->family->softcap_key;
    double cap = source->family->logit_softcap, attention = source->family->attention_softcap;
    if (source->family->scaled_scores)
        SPW_TRY(read_softcap(keys, "final_logit_softcapping", &cap));
    else if (cap > 0)
        SPW_TRY(spw_keys_number(keys, key ? key : "final_logit_softcapping", 1e-3, 1e6, &cap));
    if (attention > 0)
        SPW_TRY(read_softcap(keys, "attn_logit_softcapping", &attention));
    if (source->wrapper && !source->family->caps_wrapped)
        cap = 0; /* transformers caps the logits of text models only, not of their wrappers */
    out->logit_softcap = (float)cap;
    out->attention_softcap = (float)attention;
    return 0;
}

static int read_scales(struct spw_model_config *out, const struct spw_config_source *source)
{
    const struct spw_keys *keys = &source->text;
    double scalar = 256, q = source->family->q_norm_scale;
    out->embedding_scale = out->attention_in_scale = out->mlp_in_scale = 1;
    for (int b = 0; b < SPW_BRANCHES; b++)
        out->branch_scales[b] = 1;
    out->mixer.in_scale = 1;
    for (int i = 0; i < SPW_SSD_PARTS; i++)
        out->mixer.in_scales[i] = 1;
    out->attention_scale = (float)(1 / sqrt(out->kv[0].head_dim));
    SPW_TRY(read_limits(out, source));
    SPW_TRY(read_caps(out, source));
    if (q > 0 && !source->gguf) /* a GGUF file has tensors for it */
        SPW_TRY(spw_keys_number(keys, "qk_scale_factor", 1e-6, 1e6, &q));
    out->q_norm_scale = source->gguf ? 0 : (float)q;
    bool scaled = source->family->scaled_rows;
    if (source->family->scales_rows)
        SPW_TRY(read_rule(source, "scale_embedding", source->family->scales_rows, &scaled));
    if (scaled)
        out->embedding_scale = (float)sqrt(out->hidden);
    if (source->family->bf16_scale)
        out->embedding_scale = spw_bf16_to_f32(spw_f32_to_bf16(out->embedding_scale));
    if (source->family->multiplied)
        return read_multipliers(out, keys);
    if (source->family->scales_branches)
        return read_branch_scales(out, keys);
    if (!source->family->scaled_scores)
        return 0;
    if (source->gguf)
        scalar = spw_config_gguf_query_scalar(out, source->gguf->architecture);
    SPW_TRY(spw_keys_number(keys, "query_pre_attn_scalar", 1e-3, 1e6, &scalar));
    out->attention_scale = source->family->plain_scores ? 1 : (float)(1 / sqrt(scalar));
    return 0;
}

/* Refuses embedding models. `images`: the family has a value that concerns images only. */
static int check_direction(const struct spw_keys *keys, bool images)
{
    const char *key = "use_bidirectional_attention";
    const json_t *value = spw_keys_value(keys, key), *causal = spw_keys_value(keys, "is_causal");
    bool bidirectional = false;
    if (images && json_is_string(value))
        bidirectional = strcmp(json_string_value(value), "vision") != 0;
    else
        SPW_TRY(SPW_OR_NULL(spw_keys_bool, keys, key, &bidirectional));
    if (bidirectional)
        return spw_keys_refuse(keys, key,
                               "false: this is an embedding model, in which every token sees the "
                               "tokens after it too, so that it cannot generate text");
    if (causal && !json_is_true(causal)) /* transformers takes null for false here */
        return spw_keys_refuse(keys, "is_causal",
                               "true: in this model every token sees the tokens after it too, so "
                               "that it cannot generate text");
    return 0;
}

int spw_config_read_operations(struct spw_model_config *out, const struct spw_config_source *source)
{
    const struct spw_keys *keys = &source->text;
    const struct spw_family *family = source->family;
    out->norm = family->norm;
    out->norm_bias = family->norm_bias;
    out->norm_bare = family->norm_bare;
    out->head_bias = family->head_bias;
    out->plain_mlp = family->plain_mlp;
    out->qk_norm = family->qk_norm;
    out->qk_norm_by_head = family->qk_norm_by_head;
    out->qk_norm_bias = family->qk_norm_bias;
    out->parallel = family->parallel;
    out->post_norms = family->post_norms;
    out->embedding_norm = family->embedding_norm;
    out->positions = family->positions;
    out->position_offset = family->position_offset;
    if (family->parallel_key)
        SPW_TRY(spw_keys_bool(keys, family->parallel_key, &out->parallel));
    out->rope_rounding = family->rope_rounding;
    out->qk_norm_after_rope = family->qk_norm_after_rope;
    out->qk_norm_last = family->qk_norm_last && !spw_keys_is_null(keys, "use_qk_norm");
    if (family->qk_norm_last)
        SPW_TRY(read_switch(keys, "use_qk_norm", family->qk_norm_or_null, &out->qk_norm_last));
    else if (family->qk_norm_key && source->gguf)
        out->qk_norm = source->gguf->qk_norm;
    else if (family->qk_norm_key)
        SPW_TRY(read_switch(keys, family->qk_norm_key, family->qk_norm_or_null, &out->qk_norm));
    out->v_norm = family->v_norm;
    out->layer_scales = family->layer_scales;
    out->extra_logits = family->extra_logits;
    out->qk_norm_whole = family->qk_norm_whole;
    out->sandwich = family->sandwich;
    out->late_norms = family->late_norms;
    out->norm_plus_one = family->norm_plus_one && !source->gguf;
    out->plain_last = family->plain_last;
    out->normed_rows = family->normed_rows;
    out->attention_gate = family->attention_gate;
    out->interleaved_qk =
        source->gguf ? source->gguf->architecture->interleaved_qk : family->paired_qk;
    SPW_TRY(read_biases(out, source));
    SPW_TRY(check_direction(keys, family->own_full_kv));
    SPW_TRY(read_activation(out, source));
    return read_scales(out, source);
}
