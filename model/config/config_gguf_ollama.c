/* Files that Ollama has made. Its converter gives some keys other names than llama.cpp's does, and
 * leaves out what its own engine knew of a model. A key gets the name that llama.cpp gives it, so
 * only this file knows the others. What the files leave out is a rule that `inspect` shows.
 * Source: convert/ in the history of github.com/ollama/ollama, from 2025-03 to 2026-08. */
#include "model/config/config_parts.h"

#include <string.h>

static const struct {
    const char *architecture, *own, *usual;
} names[] = {
    {"gemma3", "rope.global.freq_base", "rope.freq_base"},
    {"gemma3", "rope.local.freq_base", "rope.freq_base_swa"},
    {"mistral3", "rope.scaling.beta_fast", "rope.scaling.yarn_beta_fast"},
    {"mistral3", "rope.scaling.beta_slow", "rope.scaling.yarn_beta_slow"},
    {"mistral3", "rope.scaling.mscale_all_dim", "rope.scaling.yarn_log_multiplier"},
    {"mistral3", "rope.scaling_beta", "attention.temperature_scale"},
    {"olmo2", "rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor"},
    {"olmo3", "rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor"},
    {"qwen3vlmoe", "norm_top_k_prob", "expert_weights_norm"},
};

static int set(json_t *object, const struct spw_keys *keys, const char *key, json_t *value)
{
    return json_object_set_new(object, key, value)
               ? spw_fail(keys->err, -ENOMEM, "%s: out of memory", keys->file)
               : 0;
}

static int rename_keys(const struct spw_config_gguf *facts, const struct spw_keys *keys,
                       json_t *renamed)
{
    const bool scaled = spw_keys_has(keys, "rope.scaling.type");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        json_t *value = json_object_get(facts->keys, names[i].own);
        if (!value || strcmp(facts->architecture->name, names[i].architecture) != 0 ||
            (!scaled && !strncmp(names[i].own, "rope.scaling.", 13))) /* is refused by its name */
            continue;
        if (spw_keys_has(keys, names[i].usual)) {
            char expected[96];
            snprintf(expected, sizeof expected, "nothing beside %s", names[i].usual);
            return spw_keys_refuse(keys, names[i].own, expected);
        }
        SPW_TRY(set(facts->keys, keys, names[i].usual, json_incref(value)));
        SPW_TRY(set(renamed, keys, names[i].usual, json_string(names[i].own)));
        json_object_del(facts->keys, names[i].own);
    }
    return 0;
}

/* What a converter between 2025-03 and 2025-12 wrote where config.json has no cap. */
static void drop_made_cap(struct spw_model_config *out, const struct spw_config_gguf *facts)
{
    const char *cap = "final_logit_softcapping";
    if (!json_object_get(facts->keys, "rope.global.freq_base") ||
        json_number_value(json_object_get(facts->keys, cap)) != 30)
        return;
    json_object_del(facts->keys, cap);
    spw_config_rule(out, "logits are not capped: Ollama's converter wrote "
                         "final_logit_softcapping 30 for models without it");
}

static bool is_own_gemma3(const struct spw_config_gguf *facts, const struct spw_keys *keys)
{
    static const char *const marks[] = {"rope.global.freq_base", "rope.local.freq_base",
                                        "vision.block_count"};
    bool marked = false;
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        marked = marked || spw_keys_has(keys, marks[i]);
    return marked && !strcmp(facts->architecture->name, "gemma3");
}

static int complete_gemma3(struct spw_model_config *out, const struct spw_config_gguf *facts,
                           const struct spw_keys *keys)
{
    uint64_t context = 0;
    if (!spw_keys_has(keys, "attention.layer_norm_rms_epsilon")) {
        SPW_TRY(set(facts->keys, keys, "attention.layer_norm_rms_epsilon", json_real(1e-6)));
        spw_config_rule(out, "epsilon of norms: 1e-6, as in all models");
    }
    if (!spw_keys_has(keys, "rope.freq_base")) {
        SPW_TRY(set(facts->keys, keys, "rope.freq_base", json_real(1e6)));
        spw_config_rule(out, "rope base of layers that see all positions: 1000000");
    }
    SPW_TRY(spw_keys_u64(keys, "context_length", 0, UINT64_MAX, &context));
    if (context < 131072 || spw_keys_has(keys, "rope.scaling.type"))
        return 0;
    spw_config_rule(out, "rope of layers that see all positions: linear with factor 8, as in all "
                         "models with a context of 131072");
    SPW_TRY(set(facts->keys, keys, "rope.scaling.type", json_string("linear")));
    return set(facts->keys, keys, "rope.scaling.factor", json_real(8));
}

int spw_config_gguf_ollama(struct spw_model_config *out, const struct spw_config_gguf *facts,
                           const struct spw_keys *keys, json_t *renamed)
{
    const struct spw_gguf_architecture *a = facts->architecture;
    if (spw_keys_has(keys, "rope.scaling_beta") && !spw_keys_has(keys, "rope.scaling.type") &&
        !strcmp(a->name, "mistral3"))
        return spw_keys_refuse(keys, "rope.scaling_beta",
                               "rope.scaling.type beside it: the file does not have the factor of "
                               "its rope; a newer one does");
    const bool own_gemma3 = is_own_gemma3(facts, keys); /* by names that change now */
    if (own_gemma3)
        drop_made_cap(out, facts);
    SPW_TRY(rename_keys(facts, keys, renamed));
    if (own_gemma3)
        SPW_TRY(complete_gemma3(out, facts, keys));
    if (a->scaling && spw_keys_has(keys, "rope.scaling.factor") &&
        !spw_keys_has(keys, "rope.scaling.type"))
        SPW_TRY(set(facts->keys, keys, "rope.scaling.type", json_string(a->scaling)));
    if (facts->expert_width && !spw_keys_has(keys, "expert_feed_forward_length"))
        SPW_TRY(set(facts->keys, keys, "expert_feed_forward_length",
                    json_integer(facts->expert_width)));
    return 0;
}
