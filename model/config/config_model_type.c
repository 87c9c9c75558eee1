/* Which family a config.json is of: the row that has its model_type, or the one of the text model
 * inside a multi-modal model. A config that has keys of other families is refused. */
#include "model/config/config_parts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Multi-modal models with a text model inside. */
static const struct {
    const char *name;
    const char *text;     /* the model_type of the text model, if the file does not say it */
    const char *expected; /* all that it may be */
    bool tied;            /* the default of tie_word_embeddings */
    bool flat; /* without text_config, the keys of the text model are beside the others */
} wrappers[] = {
    {"gemma3", "gemma3_text", "gemma3_text", true, false},
    {"gemma4", "gemma4_text", "gemma4_text", true, false},
    {"muse_glimmer", "muse_glimmer_text", "muse_glimmer_text", false, false},
    {"llama4", "llama4_text", "llama4_text", false, false},
    {"mistral3", "mistral", "mistral, ministral or ministral3", true, false},
    {"aya_vision", "cohere2", "cohere or cohere2", true, false},
    {"cohere2_vision", "cohere2", "cohere2", true, false},
    {"internvl", "qwen2", "llama, qwen2 or qwen3", true, false},
    {"idefics3", "llama", "llama or mistral", false, false},
    {"smolvlm", "llama", "llama", false, false},
    {"llava", "llama", "llama, mistral or qwen2", false, false},
    {"llava_next", "llama", "llama, mistral or qwen2", false, false},
    {"llava_onevision", "qwen2", "qwen2", false, false},
    {"vipllava", "llama", "llama", false, false},
    {"qwen2_vl", "qwen2_vl_text", "qwen2_vl_text", false, true},
    {"qwen2_5_vl", "qwen2_5_vl_text", "qwen2_5_vl_text", false, true},
    {"qwen3_vl", "qwen3_vl_text", "qwen3_vl_text", false, false},
    {"qwen3_vl_moe", "qwen3_vl_moe_text", "qwen3_vl_moe_text", false, false},
    {"qwen3_5", "qwen3_5_text", "qwen3_5_text", false, false},
    {"qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_moe_text", false, false},
};

static bool is_listed(const char *name, const char *list)
{
    const size_t n = strlen(name);
    for (const char *at = list; n && (at = strstr(at, name)); at += n)
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
    if (!text && !wrappers[i].flat)
        return spw_keys_refuse(&source->top, "text_config", expected);
    source->wrapper = wrappers[i].name;
    source->wrapper_tied = wrappers[i].tied;
    *name = wrappers[i].text;
    if (!text && spw_keys_has(&source->top, "original_max_position_embeddings"))
        return spw_keys_refuse(&source->top, "original_max_position_embeddings",
                               "this key inside rope_scaling: transformers ignores it here");
    if (!text)
        return 0;
    source->text.object = text;
    source->text.prefix = "text_config.";
    SPW_TRY(SPW_OR_NULL(spw_keys_string, &source->text, "model_type", name));
    return is_listed(*name, wrappers[i].expected)
               ? 0
               : spw_keys_refuse(&source->text, "model_type", wrappers[i].expected);
}

int spw_config_read_family(struct spw_config_source *source)
{
    const char *name = NULL;
    SPW_TRY(SPW_OR_NULL(spw_keys_string, &source->top, "model_type", &name));
    source->text = source->top;
    if (name)
        SPW_TRY(unwrap(source, &name));
    source->model_type = name;
    source->family = name ? spw_family_find(name) : NULL;
    if (source->family && source->family->listed_as && !source->wrapper &&
        spw_keys_has(&source->text, "layer_types")) /* so does transformers */
        source->family = spw_family_find(source->family->listed_as);
    if (source->family)
        source->text.names = source->family->names;
    return source->family ? 0
                          : spw_keys_refuse(&source->text, "model_type",
                                            "a model type that docs/models.md lists");
}

/* Keys of other families that change what a layer computes. Some of these families share names and
 * tensors with the supported ones, so nothing else in the folder would show that the operation is
 * missing. transformers ignores these keys in a supported family, so only neutral values are
 * accepted. */
enum user {
    SCALED = 1,
    SKIPS_ROPE = 2,
    HAS_EXPERTS = 4,
    MULTIPLIED = 8,
    CUT_GATE = 16,
    LIMITS_QKV = 32,
    SCALES_LOGITS = 64,
    CHUNKED = 128,
    OWN_FULL_KV = 256,
    SCALES_ROWS = 1024, /* embeddings */
    CAPS_LOGITS = 512,
    OWN_SOFTCAP = 1024,
};

static const struct {
    const char *key;
    double neutral; /* NAN: no number is neutral */
    unsigned user;  /* of enum user: families that know the key, by this name or another one */
} foreign[] = {
    {"logit_scale", 1, SCALES_LOGITS},
    {"logits_scaling", 1, MULTIPLIED},
    {"residual_multiplier", 1, MULTIPLIED},
    {"embedding_multiplier", 1, SCALES_ROWS},
    {"attention_multiplier", NAN, MULTIPLIED},
    {"no_rope_layers", NAN, SKIPS_ROPE},
    {"attention_chunk_size", NAN, CHUNKED},
    {"per_layer_config", NAN, OWN_FULL_KV},
    {"num_experts", 0, HAS_EXPERTS},
    {"num_local_experts", 0, HAS_EXPERTS},
    {"n_routed_experts", 0, HAS_EXPERTS},
    {"clip_qkv", NAN, LIMITS_QKV},
    {"logits_soft_cap", NAN, OWN_SOFTCAP},
    {"swiglu_limit", NAN, CUT_GATE},
    {"attn_logit_softcapping", NAN, SCALED},
    {"query_pre_attn_scalar", NAN, SCALED},
    {"final_logit_softcapping", NAN, SCALED | CAPS_LOGITS},
};

static unsigned users(const struct spw_family *f)
{
    return (f->scaled_scores ? SCALED : 0u) | (f->skips_rope ? SKIPS_ROPE : 0u) |
           (f->experts.count_key ? HAS_EXPERTS : 0u) |
           (f->multiplied ? MULTIPLIED | SCALES_ROWS : 0u) |
           (f->scales_branches ? SCALES_ROWS : 0u) | (f->cut_gate ? CUT_GATE : 0u) |
           (f->limits_qkv ? LIMITS_QKV : 0u) | (f->logit_scale > 0 ? SCALES_LOGITS : 0u) |
           (f->window_rule == SPW_WINDOW_CHUNKS ? CHUNKED : 0u) |
           (f->own_full_kv ? OWN_FULL_KV : 0u) |
           (f->softcap_key         ? OWN_SOFTCAP
            : f->logit_softcap > 0 ? CAPS_LOGITS
                                   : 0u);
}

int spw_config_refuse_foreign(const struct spw_config_source *source)
{
    unsigned family = users(source->family);
    if (source->gguf && (family & (SCALES_LOGITS | MULTIPLIED))) /* they share a name there */
        family |= SCALES_LOGITS | MULTIPLIED;
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++) {
        const json_t *value =
            foreign[i].user & family ? NULL : spw_keys_value(&source->text, foreign[i].key);
        const double number = json_is_number(value) ? json_number_value(value) : (double)NAN;
        const bool dense = foreign[i].user == HAS_EXPERTS && number == 1; /* one that all take */
        if (!value || json_is_null(value) || number == foreign[i].neutral || dense)
            continue;
        char expected[64];
        snprintf(expected, sizeof expected, "nothing: %s models have no such key",
                 source->family->name);
        return spw_keys_refuse(&source->text, foreign[i].key, expected);
    }
    return 0;
}
