/* Reads config.json and generation_config.json into one descriptor: see config.h. A row of
 * config_families.c distinguishes the dense families. The keys of a GGUF file are read here, too,
 * under other names (config_gguf.c). */
#include "model/config.h"

#include "model/config_parts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Larger than any dense model; small enough that the products of a plan stay far below 2^63. */
#define MAX_LAYERS 4096
#define MAX_HIDDEN (1u << 20)
#define MAX_INTERMEDIATE (1u << 22)
#define MAX_HEADS 4096
#define MAX_VOCAB (1u << 24)
#define MAX_POSITIONS ((uint64_t)1 << 31)

static const struct {
    const char *name;
    enum spw_activation act;
} activations[] = {
    {"silu", SPW_ACT_SILU},
    {"swish", SPW_ACT_SILU},
    {"gelu", SPW_ACT_GELU_ERF},
    {"gelu_pytorch_tanh", SPW_ACT_GELU_TANH},
    {"gelu_new", SPW_ACT_GELU_TANH},
    {"relu", SPW_ACT_RELU},
    {"quick_gelu", SPW_ACT_GELU_QUICK},
};

/* Multi-modal models with a text model inside. */
static const struct {
    const char *name;
    const char *text;     /* the model_type of the text model, if the file does not say it */
    const char *expected; /* all that it may be */
    bool tied;            /* the default of tie_word_embeddings */
} wrappers[] = {
    {"gemma3", "gemma3_text", "gemma3_text", true},
    {"gemma4", "gemma4_text", "gemma4_text", true},
    {"llama4", "llama4_text", "llama4_text", false},
    {"mistral3", "mistral", "mistral, ministral or ministral3", true},
    {"aya_vision", "cohere2", "cohere or cohere2", true},
    {"cohere2_vision", "cohere2", "cohere2", true},
    {"internvl", "qwen2", "llama, qwen2 or qwen3", true},
    {"idefics3", "llama", "llama or mistral", false},
    {"smolvlm", "llama", "llama", false},
    {"llava", "llama", "llama, mistral or qwen2", false},
    {"llava_next", "llama", "llama, mistral or qwen2", false},
    {"llava_onevision", "qwen2", "qwen2", false},
    {"vipllava", "llama", "llama", false},
};

static bool is_listed(const char *name, const char *list)
{
    const size_t n = strlen(name);
    for (const char *at = list; (at = strstr(at, name)); at += n)
        if ((at == list || at[-1] == ' ') && (!at[n] || at[n] == ',' || at[n] == ' '))
            return true;
    return false;
}

/* The decoder of a wrapper, if this is one. Sets *name to its model_type. */
static int unwrap(struct spw_config_source *source, const char **name)
{
    size_t i = 0;
    while (i < sizeof wrappers / sizeof *wrappers && strcmp(*name, wrappers[i].name) != 0)
        i++;
    if (i == sizeof wrappers / sizeof *wrappers)
        return 0;
    const json_t *text = NULL;
    char expected[64];
    snprintf(expected, sizeof expected, "an object, for model_type \"%s\"", *name);
    SPW_TRY(spw_keys_object(&source->top, "text_config", &text));
    if (!text)
        return spw_keys_refuse(&source->top, "text_config", expected);
    source->wrapper = wrappers[i].name;
    source->wrapper_tied = wrappers[i].tied;
    source->text.object = text;
    source->text.prefix = "text_config.";
    *name = wrappers[i].text;
    SPW_TRY(spw_keys_string(&source->text, "model_type", name));
    return is_listed(*name, wrappers[i].expected)
               ? 0
               : spw_keys_refuse(&source->text, "model_type", wrappers[i].expected);
}

static int read_family(struct spw_config_source *source)
{
    const char *expected =
        "llama, mistral, ministral, ministral3, mixtral, cohere, cohere2, granite, granitemoe, "
        "glm, glm4, glm4_moe, gpt_oss, olmo, olmo2, olmo3, olmoe, phi, phi3, qwen2, qwen2_moe, "
        "qwen3, qwen3_moe, smollm3, stablelm, starcoder2, gemma2, gemma3_text, gemma4_text or "
        "llama4_text, or a model with one of them inside: gemma3, gemma4, llama4, mistral3, "
        "aya_vision, cohere2_vision, internvl, idefics3, smolvlm, llava, llava_next, "
        "llava_onevision or vipllava";
    const char *name = NULL;
    SPW_TRY(spw_keys_string(&source->top, "model_type", &name));
    source->text = source->top;
    if (name)
        SPW_TRY(unwrap(source, &name));
    source->model_type = name;
    source->family = name ? spw_family_find(name) : NULL;
    if (source->family && source->family->listed_as && !source->wrapper &&
        spw_keys_has(&source->text, "layer_types")) /* so does transformers */
        source->family = spw_family_find(source->family->listed_as);
    return source->family ? 0 : spw_keys_refuse(&source->text, "model_type", expected);
}

static int require_u32(const struct spw_keys *keys, const char *key, uint32_t high, uint32_t *out)
{
    char expected[64];
    snprintf(expected, sizeof expected, "an integer from 1 to %u", high);
    if (!*out && !spw_keys_has(keys, key))
        return spw_keys_refuse(keys, key, expected);
    return spw_keys_u32(keys, key, 1, high, out);
}

static int check_heads(const struct spw_keys *keys, const char *key, uint32_t n_heads, uint32_t n)
{
    char expected[80];
    snprintf(expected, sizeof expected, "a divisor of %s, %u",
             spw_keys_name(keys, "num_attention_heads"), n_heads);
    return n_heads % n ? spw_keys_refuse(keys, key, expected) : 0;
}

static int read_heads(struct spw_model_config *out, const struct spw_config_source *source,
                      struct spw_kv_shape *kv)
{
    const struct spw_keys *keys = &source->text;
    out->n_heads = source->family->n_heads;
    SPW_TRY(require_u32(keys, "num_attention_heads", MAX_HEADS, &out->n_heads));
    bool inherit = !source->family->n_kv_heads || spw_keys_is_null(keys, "num_key_value_heads");
    kv->n_heads = inherit ? out->n_heads : source->family->n_kv_heads;
    SPW_TRY(spw_keys_u32(keys, "num_key_value_heads", 1, MAX_HEADS, &kv->n_heads));
    SPW_TRY(check_heads(keys, "num_key_value_heads", out->n_heads, kv->n_heads));
    bool derived = !source->family->head_dim || spw_keys_is_null(keys, "head_dim");
    if (derived && !spw_keys_has(keys, "head_dim")) {
        if (out->hidden % out->n_heads || out->hidden / out->n_heads % 2 ||
            out->hidden / out->n_heads > SPW_MOST_HEAD_DIM) {
            char expected[96];
            snprintf(expected, sizeof expected, "%u (%s) times an even head_dim", out->n_heads,
                     spw_keys_name(keys, "num_attention_heads"));
            return spw_keys_refuse(keys, "hidden_size", expected);
        }
        kv->head_dim = out->hidden / out->n_heads;
        return 0;
    }
    kv->head_dim = source->family->head_dim;
    SPW_TRY(spw_keys_u32(keys, "head_dim", 2, SPW_MOST_HEAD_DIM, &kv->head_dim));
    return kv->head_dim % 2 ? spw_keys_refuse(keys, "head_dim", "an even number") : 0;
}

static int read_sizes(struct spw_model_config *out, const struct spw_config_source *source)
{
    const struct spw_keys *keys = &source->text;
    uint32_t n_more = 0;
    SPW_TRY(require_u32(keys, "num_hidden_layers", MAX_LAYERS, &out->n_layers));
    if (source->gguf && source->family->predicts_next) { /* a GGUF file counts those layers, too */
        SPW_TRY(spw_keys_u32(keys, "num_nextn_predict_layers", 0, out->n_layers - 1, &n_more));
        out->n_layers -= n_more;
    }
    SPW_TRY(require_u32(keys, "hidden_size", MAX_HIDDEN, &out->hidden));
    out->intermediate = source->family->width;
    SPW_TRY(require_u32(keys,
                        source->family->width_key ? source->family->width_key : "intermediate_size",
                        MAX_INTERMEDIATE, &out->intermediate));
    out->vocab = source->family->vocab;
    SPW_TRY(require_u32(keys, "vocab_size", MAX_VOCAB, &out->vocab));
    out->max_positions = source->family->max_positions;
    if (!out->max_positions && !spw_keys_has(keys, "max_position_embeddings"))
        return spw_keys_refuse(keys, "max_position_embeddings", "the length of the context");
    SPW_TRY(spw_keys_u64(keys, "max_position_embeddings", 1, MAX_POSITIONS, &out->max_positions));
    double eps = source->family->rms_eps > 0 ? source->family->rms_eps : 1e-6;
    const char *eps_key = source->family->eps_key;
    SPW_TRY(spw_keys_number(keys, eps_key ? eps_key : "rms_norm_eps", 0, 1, &eps));
    out->rms_eps = (float)eps;
    SPW_TRY(read_heads(out, source, &out->kv[0]));
    for (int k = 1; k < SPW_LAYER_KINDS; k++)
        out->kv[k] = out->kv[0];
    return 0;
}

/* Keys of other families that multiply or cap a value. Some of these families share names and
 * tensors with the supported ones, so nothing else in the folder would show that the operation is
 * missing. transformers ignores these keys in a supported family, so only neutral values are
 * accepted. */
enum user {
    NOBODY = 0,
    SCALED = 1,
    SKIPS_ROPE = 2,
    HAS_EXPERTS = 4,
    MULTIPLIED = 8,
    CUT_GATE = 16,
    LIMITS_QKV = 32,
    SCALES_LOGITS = 64,
    CHUNKED = 128,
};

static const struct {
    const char *key;
    double neutral; /* NAN: no number is neutral */
    enum user user; /* families that know the key, by this name or another one */
} foreign[] = {
    {"logit_scale", 1, SCALES_LOGITS},
    {"logits_scaling", 1, MULTIPLIED},
    {"residual_multiplier", 1, MULTIPLIED},
    {"embedding_multiplier", 1, MULTIPLIED},
    {"attention_multiplier", NAN, MULTIPLIED},
    {"no_rope_layers", NAN, SKIPS_ROPE},
    {"attention_chunk_size", NAN, CHUNKED},
    {"num_experts", 0, HAS_EXPERTS},
    {"num_local_experts", 0, HAS_EXPERTS},
    {"n_routed_experts", 0, HAS_EXPERTS},
    {"clip_qkv", NAN, LIMITS_QKV},
    {"logits_soft_cap", NAN, NOBODY},
    {"swiglu_limit", NAN, CUT_GATE},
    {"final_logit_softcapping", NAN, SCALED},
    {"attn_logit_softcapping", NAN, SCALED},
    {"query_pre_attn_scalar", NAN, SCALED},
};

static unsigned users(const struct spw_family *f)
{
    return (f->scaled ? SCALED : 0u) | (f->skips_rope ? SKIPS_ROPE : 0u) |
           (f->experts.count_key ? HAS_EXPERTS : 0u) | (f->multiplied ? MULTIPLIED : 0u) |
           (f->cut_gate ? CUT_GATE : 0u) | (f->limits_qkv ? LIMITS_QKV : 0u) |
           (f->logit_scale > 0 ? SCALES_LOGITS : 0u) |
           (f->window_rule == SPW_WINDOW_CHUNKS ? CHUNKED : 0u);
}

static int refuse_foreign(const struct spw_config_source *source)
{
    unsigned family = users(source->family);
    if (source->gguf && (family & (SCALES_LOGITS | MULTIPLIED))) /* they share a name there */
        family |= SCALES_LOGITS | MULTIPLIED;
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++) {
        const json_t *value = spw_keys_value(&source->text, foreign[i].key);
        if ((foreign[i].user & family) || !value || json_is_null(value) ||
            (json_is_number(value) && json_number_value(value) == foreign[i].neutral))
            continue;
        char expected[64];
        snprintf(expected, sizeof expected, "nothing: %s models have no such key",
                 source->family->name);
        return spw_keys_refuse(&source->text, foreign[i].key, expected);
    }
    return 0;
}

static int read_rule(const struct spw_keys *keys, const char *key, enum spw_family_rule rule,
                     bool *out)
{
    *out = rule == SPW_FAMILY_ALWAYS || rule == SPW_FAMILY_UNLESS;
    return spw_family_asks(rule) ? spw_keys_bool(keys, key, out) : 0;
}

static int read_biases(struct spw_model_config *out, const struct spw_config_source *source)
{
    const struct spw_keys *keys = &source->text;
    const struct spw_family *family = source->family;
    const struct spw_config_gguf *gguf = source->gguf;
    const char *attention =
        family->attention_bias_key ? family->attention_bias_key : "attention_bias";
    const char *mlp = family->mlp_bias_key ? family->mlp_bias_key : "mlp_bias";
    SPW_TRY(read_rule(keys, attention, family->qkv_bias, &out->qkv_bias));
    SPW_TRY(read_rule(keys, attention, family->o_bias, &out->o_bias));
    SPW_TRY(read_rule(keys, mlp, family->mlp_bias, &out->mlp_bias));
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
    const char *key = source->family->activation_key, *name = source->family->activation;
    if (source->family->cut_gate)
        return read_cut_gate(out, &source->text);
    SPW_TRY(spw_keys_string(&source->text, key, &name));
    out->act = spw_config_activation(name);
    if (out->act != SPW_ACT_COUNT)
        return 0;
    return spw_keys_refuse(&source->text, key,
                           "silu, gelu, gelu_new, gelu_pytorch_tanh, quick_gelu or relu");
}

/* null: none. */
static int read_softcap(const struct spw_keys *keys, const char *key, double *cap)
{
    if (spw_keys_is_null(keys, key))
        *cap = 0;
    return spw_keys_number(keys, key, 1e-3, 1e6, cap);
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
    out->residual_scale = (float)residual;
    out->logit_divisor = (float)logits;
    return 0;
}

static int read_limits(struct spw_model_config *out, const struct spw_config_source *source)
{
    double limit = 0, scale = source->family->logit_scale;
    if (source->family->limits_qkv)
        SPW_TRY(spw_keys_number(&source->text, "clip_qkv", 1e-6, 1e6, &limit));
    if (scale > 0)
        SPW_TRY(spw_keys_number(&source->text, "logit_scale", 1e-6, 1e6, &scale));
    if (source->wrapper)
        scale = 0; /* transformers scales the logits of text models only, not of their wrappers */
    out->qkv_limit = (float)limit;
    out->logit_divisor = scale > 0 ? (float)(1 / scale) : 1;
    return 0;
}

static int read_scales(struct spw_model_config *out, const struct spw_config_source *source)
{
    const struct spw_keys *keys = &source->text;
    out->embedding_scale = out->residual_scale = 1;
    out->attention_scale = (float)(1 / sqrt(out->kv[0].head_dim));
    SPW_TRY(read_limits(out, source));
    if (source->family->multiplied)
        return read_multipliers(out, keys);
    if (!source->family->scaled)
        return 0;
    double scalar = 256, softcap = source->family->logit_softcap;
    double attention_softcap = source->family->attention_softcap;
    if (source->gguf)
        scalar = spw_config_gguf_query_scalar(out, source->gguf->architecture);
    SPW_TRY(spw_keys_number(keys, "query_pre_attn_scalar", 1e-3, 1e6, &scalar));
    SPW_TRY(read_softcap(keys, "final_logit_softcapping", &softcap));
    if (attention_softcap > 0)
        SPW_TRY(read_softcap(keys, "attn_logit_softcapping", &attention_softcap));
    if (source->wrapper && !source->family->caps_wrapped)
        softcap = 0; /* transformers caps the logits of text models only, not of their wrappers */
    out->embedding_scale = (float)sqrt(out->hidden);
    out->attention_scale = source->family->plain_scores ? 1 : (float)(1 / sqrt(scalar));
    out->logit_softcap = (float)softcap;
    out->attention_softcap = (float)attention_softcap;
    return 0;
}

/* torch_dtype (old) and dtype (new), beside the decoder's keys or at the top of the file. */
static int read_dtype(struct spw_model_config *out, const struct spw_config_source *source)
{
    static const struct {
        const char *name;
        enum spw_dtype dtype;
    } names[] = {{"auto", SPW_DTYPE_AUTO},
                 {"float64", SPW_DTYPE_F32}, /* weights may have it; nothing computes with it */
                 {"float32", SPW_DTYPE_F32},
                 {"float16", SPW_DTYPE_F16},
                 {"bfloat16", SPW_DTYPE_BF16}};
    const struct spw_keys *places[] = {&source->text, &source->top};
    for (size_t i = 0; i < 4; i++) {
        const struct spw_keys *keys = places[i / 2];
        const char *key = i % 2 ? "torch_dtype" : "dtype", *name = NULL;
        SPW_TRY(spw_keys_string(keys, key, &name));
        if (!name)
            continue;
        if (!strncmp(name, "torch.", 6))
            name += 6;
        for (size_t n = 0; n < sizeof names / sizeof names[0]; n++) {
            if (!strcmp(name, names[n].name)) {
                out->dtype = names[n].dtype;
                return 0;
            }
        }
        return spw_keys_refuse(keys, key, "float64, float32, float16 or bfloat16");
    }
    return 0;
}

/* FP8 weights have one factor for each block, or one for each matrix. Reading multiplies the
 * weights by their factors. */
static int read_quantization(struct spw_model_config *out, const struct spw_keys *top,
                             const struct spw_family *family)
{
    const json_t *object = NULL;
    const char *method = NULL;
    SPW_TRY(spw_keys_object(top, "quantization_config", &object));
    if (!object)
        return 0;
    struct spw_keys keys = {
        .file = top->file, .prefix = "quantization_config.", .object = object, .err = top->err};
    SPW_TRY(spw_keys_string(&keys, "quant_method", &method));
    if (method && !strcmp(method, "mxfp4") && family->experts.transposed)
        return 0; /* the names of the tensors tell which ones */
    if (!method || strcmp(method, "fp8") != 0)
        return spw_keys_refuse(&keys, "quant_method",
                               "fp8, or no quantization_config: weights in float64, float32, "
                               "float16 or bfloat16");
    out->fp8_scaled = true;
    if (spw_keys_is_null(&keys, "weight_block_size"))
        return 0;
    const json_t *block = json_object_get(object, "weight_block_size");
    for (size_t i = 0; i < 2; i++) {
        json_int_t n = block ? json_integer_value(json_array_get(block, i)) : 128;
        if (n < 1 || n > MAX_INTERMEDIATE || (block && json_array_size(block) != 2))
            return spw_keys_refuse(&keys, "weight_block_size", "a list of two sizes, or null");
        out->fp8_block[i] = (uint32_t)n;
    }
    return 0;
}

/* The key of a wrapper wins over that of its text model, unless the wrapper's is false by default.
 */
static int read_tied(struct spw_model_config *out, const struct spw_config_source *source)
{
    const char *key = "tie_word_embeddings";
    bool tied = source->gguf ? !source->gguf->head : source->family->tied;
    bool whole = source->wrapper_tied;
    SPW_TRY(spw_keys_bool(&source->text, key, &tied));
    SPW_TRY(spw_keys_bool(&source->top, key, &whole));
    out->tied_embeddings = source->wrapper ? whole || (tied && !source->wrapper_tied) : tied;
    return 0;
}

static int read_flags(struct spw_model_config *out, const struct spw_config_source *source)
{
    const struct spw_keys *keys = &source->text;
    const struct spw_family *family = source->family;
    snprintf(out->model_type, sizeof out->model_type, "%s", source->model_type);
    out->wrapper = source->wrapper;
    out->names = source->gguf ? NULL : family->names;
    out->norm = family->norm;
    out->norm_bias = family->norm_bias;
    out->norm_bare = family->norm_bare;
    out->head_bias = family->head_bias;
    out->plain_mlp = family->plain_mlp;
    out->qk_norm = family->qk_norm;
    out->qk_norm_by_head = family->qk_norm_by_head;
    out->qk_norm_bias = family->qk_norm_bias;
    out->parallel = family->parallel;
    if (family->parallel_key)
        SPW_TRY(spw_keys_bool(keys, family->parallel_key, &out->parallel));
    out->qk_norm_last = family->qk_norm_last;
    if (family->qk_norm_last)
        SPW_TRY(spw_keys_bool(keys, "use_qk_norm", &out->qk_norm_last));
    else if (family->qk_norm_key && source->gguf)
        out->qk_norm = source->gguf->qk_norm;
    else if (family->qk_norm_key)
        SPW_TRY(spw_keys_bool(keys, family->qk_norm_key, &out->qk_norm));
    out->v_norm = family->v_norm;
    out->layer_scales = family->layer_scales;
    out->extra_logits = family->extra_logits;
    out->n_more_layers = family->predicts_next ? MAX_LAYERS : 0;
    out->qk_norm_whole = family->qk_norm_whole;
    out->sandwich = family->sandwich;
    out->late_norms = family->late_norms;
    out->norm_plus_one = family->norm_plus_one && !source->gguf;
    out->interleaved_qk =
        source->gguf ? source->gguf->architecture->interleaved_qk : family->paired_qk;
    SPW_TRY(read_biases(out, source));
    SPW_TRY(read_tied(out, source));
    bool bidirectional = false;
    const json_t *direction = spw_keys_value(keys, "use_bidirectional_attention");
    if (family->own_full_kv && json_is_string(direction)) /* "vision": of images only */
        bidirectional = strcmp(json_string_value(direction), "vision") != 0;
    else
        SPW_TRY(spw_keys_bool(keys, "use_bidirectional_attention", &bidirectional));
    if (bidirectional)
        return spw_keys_refuse(keys, "use_bidirectional_attention",
                               "false: this is an embedding model, in which every token sees the "
                               "tokens after it too, so that it cannot generate text");
    SPW_TRY(read_quantization(out, &source->top, family));
    SPW_TRY(read_activation(out, source));
    SPW_TRY(read_dtype(out, source));
    return read_scales(out, source);
}

/* The kind of layers that are not full. */
static enum spw_layer_kind window_kind(enum spw_window_rule rule)
{
    return rule == SPW_WINDOW_CHUNKS ? SPW_LAYER_CHUNKED : SPW_LAYER_SLIDING;
}

static const char *window_key(enum spw_window_rule rule)
{
    return rule == SPW_WINDOW_CHUNKS ? "attention_chunk_size" : "sliding_window";
}

static int read_layer_types(struct spw_model_config *out, const struct spw_keys *keys,
                            enum spw_window_rule rule)
{
    const struct spw_layer_kind_row *full = &spw_layer_kinds[SPW_LAYER_FULL];
    const struct spw_layer_kind_row *other = &spw_layer_kinds[window_kind(rule)];
    const json_t *list = json_object_get(keys->object, "layer_types");
    char text[96];
    if (!json_is_array(list) || json_array_size(list) != out->n_layers) {
        snprintf(text, sizeof text, "a list of %u (num_hidden_layers) strings", out->n_layers);
        return spw_keys_refuse(keys, "layer_types", text);
    }
    for (uint32_t i = 0; i < out->n_layers; i++) {
        const json_t *item = json_array_get(list, i);
        const char *name = json_is_string(item) ? json_string_value(item) : "";
        const bool is_full = !strcmp(name, full->type);
        if (!is_full && strcmp(name, other->type) != 0)
            return spw_fail(keys->err, -EINVAL,
                            "%s: %slayer_types[%u]: found %s, expected \"%s\" or \"%s\"",
                            keys->file, keys->prefix, i, spw_json_describe(item, text, sizeof text),
                            full->type, other->type);
        if (!is_full && rule == SPW_WINDOW_NEVER) {
            snprintf(text, sizeof text, "only full_attention: %s models have no other layers",
                     out->model_type);
            return spw_keys_refuse(keys, "layer_types", text);
        }
        out->layer_kinds[i] = (uint8_t)(is_full ? SPW_LAYER_FULL : window_kind(rule));
    }
    return 0;
}

/* Derives the layer kinds by the family's rule if the file does not list them. `slides`: sliding
 * windows are switched on. */
static int derive_layer_kinds(struct spw_model_config *out, const struct spw_config_source *source,
                              bool slides)
{
    const struct spw_keys *keys = &source->text;
    uint32_t first = source->family->max_window_layers;
    uint32_t pattern = source->family->window_pattern;
    enum spw_window_rule rule = source->family->window_rule;
    if (rule == SPW_WINDOW_OPT_IN || rule == SPW_WINDOW_OPT_IN_EVEN)
        SPW_TRY(spw_keys_u32(keys, "max_window_layers", 0, UINT32_MAX, &first));
    const json_t *list = spw_keys_value(keys, "sliding_window_pattern");
    bool listed = rule == SPW_WINDOW_PATTERN && source->gguf && json_is_array(list);
    if (listed && json_array_size(list) < out->n_layers)
        return spw_keys_refuse(keys, "sliding_window_pattern", "a truth value for each layer");
    if (source->family->window_pattern_key && !listed)
        SPW_TRY(spw_keys_u32(keys, "sliding_window_pattern", 1, MAX_LAYERS, &pattern));
    for (uint32_t i = 0; i < out->n_layers; i++) {
        bool sliding =
            listed ? json_is_true(json_array_get(list, i))
                   : (rule == SPW_WINDOW_ALL && slides) ||
                         (rule == SPW_WINDOW_OPT_IN && slides && i >= first) ||
                         (rule == SPW_WINDOW_OPT_IN_ALL && slides) ||
                         (rule == SPW_WINDOW_UNROTATED && slides && !out->rotates[i]) ||
                         (rule == SPW_WINDOW_OPT_IN_EVEN && slides && i % 2 == 0 && i < first) ||
                         (rule == SPW_WINDOW_CHUNKS && slides && out->rotates[i]) ||
                         (rule == SPW_WINDOW_PATTERN && (i + 1) % pattern);
        out->layer_kinds[i] = (uint8_t)(sliding ? window_kind(rule) : SPW_LAYER_FULL);
    }
    return 0;
}

/* Which layers rotate q and k. */
static int read_rotation(struct spw_model_config *out, const struct spw_config_source *source)
{
    const struct spw_keys *keys = &source->text;
    const json_t *list = spw_keys_value(keys, "no_rope_layers");
    uint32_t interval = 4;
    char expected[64];
    if (source->family->skips_rope)
        SPW_TRY(spw_keys_u32(keys, "no_rope_layer_interval", 1, MAX_LAYERS, &interval));
    for (uint32_t i = 0; i < out->n_layers; i++)
        out->rotates[i] = !source->family->skips_rope || (i + 1) % interval;
    bool empty = json_is_array(list) && !json_array_size(list); /* as in released files of llama4 */
    if (!source->family->skips_rope || !list || json_is_null(list) || empty)
        return 0;
    snprintf(expected, sizeof expected, "a list of %u (num_hidden_layers) numbers, 0 or 1",
             out->n_layers);
    if (json_array_size(list) != out->n_layers)
        return spw_keys_refuse(keys, "no_rope_layers", expected);
    for (uint32_t i = 0; i < out->n_layers; i++) {
        const json_t *item = json_array_get(list, i);
        if (!json_is_integer(item) || json_integer_value(item) < 0 || json_integer_value(item) > 1)
            return spw_keys_refuse(keys, "no_rope_layers", expected);
        out->rotates[i] = json_integer_value(item);
    }
    return 0;
}

/* Queries of layers without rope grow with their position; attn_temperature_tuning switches that
 * off. */
static int read_growth(struct spw_model_config *out, const struct spw_keys *keys)
{
    bool tunes = true;
    double beta = 0.1;
    uint64_t base = 8192;
    SPW_TRY(spw_keys_bool(keys, "attn_temperature_tuning", &tunes));
    SPW_TRY(spw_keys_number(keys, "attn_scale", -1e6, 1e6, &beta));
    SPW_TRY(spw_keys_u64(keys, "floor_scale", 1, MAX_POSITIONS, &base));
    out->grows_unrotated = true;
    if (tunes)
        out->query_growth = (struct spw_query_growth){(float)beta, (float)base, 1};
    return 0;
}

static int read_layer_kinds(struct spw_model_config *out, const struct spw_config_source *source)
{
    const struct spw_keys *keys = &source->text;
    enum spw_window_rule rule = source->family->window_rule;
    uint32_t window = source->family->window;
    const char *key = window_key(rule);
    bool slides = rule == SPW_WINDOW_ALL || rule == SPW_WINDOW_PATTERN || rule == SPW_WINDOW_CHUNKS;
    if (rule != SPW_WINDOW_NEVER)
        SPW_TRY(spw_keys_u32(keys, key, 1, (uint32_t)MAX_POSITIONS, &window));
    if (rule == SPW_WINDOW_OPT_IN || rule == SPW_WINDOW_OPT_IN_ALL ||
        rule == SPW_WINDOW_OPT_IN_EVEN || rule == SPW_WINDOW_UNROTATED)
        SPW_TRY(spw_keys_bool(keys, "use_sliding_window", &slides));
    if (spw_keys_is_null(keys, key) || !window)
        slides = false;
    out->kinds_listed = spw_keys_has(keys, "layer_types");
    if (out->kinds_listed)
        SPW_TRY(read_layer_types(out, keys, rule));
    else
        SPW_TRY(derive_layer_kinds(out, source, slides));
    if (source->family->last_full)
        out->layer_kinds[out->n_layers - 1] = SPW_LAYER_FULL;
    for (uint32_t i = 0; i < out->n_layers; i++) {
        const bool windowed = spw_layer_kinds[out->layer_kinds[i]].windowed;
        if (rule == SPW_WINDOW_ALL && !source->family->listed && windowed != slides)
            return spw_keys_refuse(keys, "layer_types",
                                   "nothing, or layers as sliding_window makes them: transformers "
                                   "ignores the list here");
        if (windowed)
            out->window = window;
        if (source->family->skips_full)
            out->rotates[i] = windowed;
    }
    if (!out->window || slides)
        return 0;
    if (spw_keys_is_null(keys, key))
        return spw_keys_refuse(keys, key,
                               rule == SPW_WINDOW_CHUNKS ? "a number: some layers are chunked"
                                                         : "a number: some layers are sliding");
    return spw_keys_refuse(keys, "use_sliding_window", "true: layer_types has sliding layers");
}

/* Reads one id, or for eos a list of ids. An absent key and null leave the old value. */
static int read_token(const struct spw_keys *keys, const char *key, int32_t *ids, uint32_t *n,
                      uint32_t capacity)
{
    if (!spw_keys_has(keys, key))
        return 0;
    const json_t *value = json_object_get(keys->object, key);
    bool list = json_is_array(value) && capacity > 1;
    size_t count = list ? json_array_size(value) : 1;
    const char *expected = capacity > 1 ? "a token id or a list of at most 16" : "a token id";
    if (count > capacity)
        return spw_keys_refuse(keys, key, expected);
    for (size_t i = 0; i < count; i++) {
        const json_t *item = list ? json_array_get(value, i) : value;
        json_int_t id = json_integer_value(item);
        if (!json_is_integer(item) || id < 0 || id > INT32_MAX)
            return spw_keys_refuse(keys, key, expected);
        ids[i] = (int32_t)id;
    }
    *n = (uint32_t)count;
    return 0;
}

/* An answer never ends with an id that the model cannot choose. */
static int check_eos(const struct spw_model_config *out, const struct spw_keys *keys)
{
    char expected[64];
    snprintf(expected, sizeof expected, "ids below vocab_size, %u", out->vocab);
    for (uint32_t i = 0; i < out->n_eos; i++)
        if ((uint32_t)out->eos[i] >= out->vocab)
            return spw_keys_refuse(keys, "eos_token_id", expected);
    return 0;
}

/* The defaults of the family, then config.json, then generation_config.json; the later one wins. */
static int read_tokens(struct spw_model_config *out, const struct spw_config_source *source,
                       const struct spw_keys *generation)
{
    const struct spw_keys *places[] = {&source->top, &source->text, generation};
    uint32_t n_bos = 0;
    out->bos = source->family->bos;
    out->eos[0] = source->family->eos;
    out->n_eos = source->family->eos >= 0;
    for (size_t i = 0; i < 3; i++) {
        if (spw_keys_is_null(places[i], "eos_token_id"))
            out->n_eos = 0;
        if (spw_keys_is_null(places[i], "bos_token_id"))
            out->bos = -1;
        SPW_TRY(read_token(places[i], "eos_token_id", out->eos, &out->n_eos, SPW_CONFIG_MAX_EOS));
        SPW_TRY(read_token(places[i], "bos_token_id", &out->bos, &n_bos, 1));
        if (spw_keys_has(places[i], "eos_token_id"))
            SPW_TRY(check_eos(out, places[i]));
    }
    return 0;
}

/* The later file wins, as for tokens; transformers has had the key in both files. */
static int read_cache(struct spw_model_config *out, const struct spw_config_source *source,
                      const struct spw_keys *generation)
{
    const struct spw_keys *places[] = {&source->top, &source->text, generation};
    const char *key = "cache_implementation", *asked = NULL;
    for (size_t i = 0; i < 3; i++) {
        if (spw_keys_is_null(places[i], key))
            asked = NULL;
        else if (spw_keys_has(places[i], key))
            out->cache_by_generation = i == 2;
        SPW_TRY(spw_keys_string(places[i], key, &asked));
    }
    snprintf(out->cache_implementation, sizeof out->cache_implementation, "%s", asked ? asked : "");
    for (char *p = out->cache_implementation; *p; p++)
        if (*p < ' ' || *p > '~')
            *p = '?';
    return 0;
}

int spw_config_read(struct spw_model_config *out, const struct spw_config_source *source,
                    const struct spw_keys *generation)
{
    SPW_TRY(refuse_foreign(source));
    SPW_TRY(read_sizes(out, source));
    SPW_TRY(read_flags(out, source));
    out->layer_kinds = spw_alloc_zero(out->n_layers, 1);
    out->has_experts = spw_alloc_zero(out->n_layers, sizeof *out->has_experts);
    out->rotates = spw_alloc_zero(out->n_layers, sizeof *out->rotates);
    out->kv_layers = spw_alloc_zero(out->n_layers, sizeof *out->kv_layers);
    if (!out->layer_kinds || !out->has_experts || !out->rotates || !out->kv_layers)
        return spw_fail(source->top.err, -ENOMEM, "%s: out of memory", source->top.file);
    SPW_TRY(read_rotation(out, source));
    if (source->family->tunes_unrotated)
        SPW_TRY(read_growth(out, &source->text));
    SPW_TRY(read_layer_kinds(out, source));
    SPW_TRY(spw_config_read_kv(out, source));
    SPW_TRY(spw_config_read_experts(out, source));
    SPW_TRY(spw_config_read_rope(out, &source->text, &source->family->rope));
    if (source->gguf && source->gguf->rope_factors)
        SPW_TRY(spw_config_add_rope_factors(out, &source->text, SPW_ROPE_FACTORS));
    if (source->gguf && source->gguf->long_factors)
        SPW_TRY(spw_config_add_rope_factors(out, &source->text, SPW_ROPE_LONG));
    SPW_TRY(read_cache(out, source, generation));
    return read_tokens(out, source, generation);
}

int spw_config_parse(struct spw_model_config *out, const struct spw_config_text *text,
                     struct spw_error *err)
{
    spw_error_clear(err);
    const char *config_name = text->config_name ? text->config_name : "config.json";
    const char *generation_name =
        text->generation_name ? text->generation_name : "generation_config.json";
    json_t *config = NULL, *generation = NULL;
    *out = (struct spw_model_config){0};
    int rc = spw_json_load(text->config, text->config_bytes, config_name, &config, err);
    if (!rc && text->generation)
        rc = spw_json_load(text->generation, text->generation_bytes, generation_name, &generation,
                           err);
    if (!rc) {
        struct spw_config_source source = {
            .top = {.file = config_name, .prefix = "", .object = config, .err = err}};
        struct spw_keys second = {
            .file = generation_name, .prefix = "", .object = generation, .err = err};
        rc = read_family(&source);
        if (!rc)
            rc = spw_config_read(out, &source, &second);
    }
    json_decref(config);
    json_decref(generation);
    if (rc) {
        spw_config_free(out);
        spw_json_tidy(err);
    }
    return rc;
}

void spw_config_free(struct spw_model_config *config)
{
    if (!config)
        return;
    spw_free(config->layer_kinds);
    spw_free(config->has_experts);
    spw_free(config->rotates);
    spw_free(config->kv_layers);
    spw_free(config->rope_factors);
    *config = (struct spw_model_config){0};
}
