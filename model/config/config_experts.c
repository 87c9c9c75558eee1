/* The keys of layers that choose among experts: see config_parts.h. */
#include "model/config/config_parts.h"

#include <stdio.h>
#include <string.h>

enum { MOST_EXPERTS = 4096 };

/* A key whose name is a fact of the family; 0 as the default: the key is required. Some files list
 * the number of each layer. */
static int read_size(const struct spw_keys *keys, const char *key, uint32_t low, uint32_t high,
                     uint32_t otherwise, uint32_t *out)
{
    char expected[64];
    snprintf(expected, sizeof expected, "an integer from %u to %u", low, high);
    *out = otherwise;
    if (!otherwise && !spw_keys_has(keys, key))
        return spw_keys_refuse(keys, key, expected);
    const json_t *list = spw_keys_value(keys, key), *first = json_array_get(list, 0);
    if (!json_is_array(list))
        return spw_keys_u32(keys, key, low, high, out);
    bool same = json_is_integer(first) && json_integer_value(first) >= (json_int_t)low &&
                json_integer_value(first) <= (json_int_t)high;
    for (size_t i = 1; i < json_array_size(list); i++)
        same = same && json_equal(json_array_get(list, i), first);
    *out = (uint32_t)json_integer_value(first);
    return same ? 0 : spw_keys_refuse(keys, key, "the same number for all layers");
}

/* A size that has two names, where `other` is not NULL. Versions of transformers differ in which
 * one wins. */
static int read_either(const struct spw_keys *keys, const char *key, const char *other,
                       uint32_t low, uint32_t high, uint32_t otherwise, uint32_t *out)
{
    uint32_t same;
    char expected[96];
    if (!other || !spw_keys_has(keys, other))
        return read_size(keys, key, low, high, otherwise, out);
    SPW_TRY(read_size(keys, other, low, high, otherwise, &same));
    SPW_TRY(read_size(keys, key, low, high, same, out));
    snprintf(expected, sizeof expected, "nothing, or the number of %s, %u", key, *out);
    return *out == same ? 0 : spw_keys_refuse(keys, other, expected);
}

static bool is_listed(const json_t *list, uint32_t layer)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_integer_value(json_array_get(list, i)) == (json_int_t)layer)
            return true;
    return false;
}

/* null and no key: no list. Numbers beyond the last layer mean nothing to transformers. */
static int read_list(const struct spw_keys *keys, const char *key, const json_t **list)
{
    *list = key ? spw_keys_value(keys, key) : NULL;
    bool right = !*list || json_is_null(*list) || json_is_array(*list);
    for (size_t i = 0; i < json_array_size(*list); i++) {
        const json_t *item = json_array_get(*list, i);
        right = right && json_is_integer(item) && json_integer_value(item) >= 0;
    }
    return right ? 0 : spw_keys_refuse(keys, key, "a list of numbers of layers, from 0");
}

/* All layers but the first ones and the last ones, each step-th of them, and none that a list has
 * as dense; or all that another list has. */
static int choose_layers(struct spw_model_config *out, const struct spw_config_source *source)
{
    const struct spw_keys *keys = &source->text;
    const struct spw_expert_facts *facts = &source->family->experts;
    static const char *const kinds[] = {"dense", "sparse"};
    uint32_t step = 1, first = facts->first_layer;
    const json_t *dense, *list, *last = NULL;
    uint32_t end = out->n_layers;
    if (source->family->blocks) { /* the list of blocks has chosen */
        if (!spw_expert_layers(out))
            out->experts = (struct spw_experts_config){0};
        return 0;
    }
    if (facts->kinds_list && spw_keys_has(keys, "mlp_layer_types"))
        return spw_keys_choices(keys, "mlp_layer_types", out->n_layers, kinds,
                                "\"sparse\" or \"dense\"", (uint8_t *)out->has_experts);
    SPW_TRY(read_list(keys, facts->dense_list_key, &dense));
    SPW_TRY(read_list(keys, facts->list_key, &list));
    if (facts->step_key)
        SPW_TRY(spw_keys_u32(keys, facts->step_key, 1, MAX_LAYERS, &step));
    if (facts->first_layer_key)
        SPW_TRY(spw_keys_u32(keys, facts->first_layer_key, 0, out->n_layers + out->may_add_mtp,
                             &first));
    out->mtp_experts = first <= out->n_layers && !source->family->mtp_dense;
    if (facts->last_layer_key)
        last = spw_keys_value(keys, facts->last_layer_key);
    if (last && json_integer_value(last) != -1) {
        SPW_TRY(spw_keys_u32(keys, facts->last_layer_key, 0, out->n_layers, &end));
        end++;
    }
    for (uint32_t i = 0; i < out->n_layers; i++)
        out->has_experts[i] = json_is_array(list) ? is_listed(list, i)
                                                  : i >= first && i < end && (i + 1) % step == 0 &&
                                                        !is_listed(dense, i);
    return 0;
}

/* Experts that every row has, side by side. */
static int read_shared(struct spw_experts_config *e, const struct spw_keys *keys,
                       const struct spw_expert_facts *facts)
{
    const char *key = facts->shared_width_key;
    uint32_t n = facts->shared_count ? facts->shared_count : 1;
    if (facts->shared_by_key)
        return spw_keys_u32(keys, key, 0, MAX_WIDTH, &e->shared_intermediate);
    if (key)
        return read_size(keys, key, 1, MAX_WIDTH, facts->shared_width, &e->shared_intermediate);
    if (!facts->shared_count_key)
        return 0;
    SPW_TRY(spw_keys_u32(keys, facts->shared_count_key, 0, 64, &n));
    e->shared_intermediate = n * e->intermediate;
    return 0;
}

/* Some models choose groups of experts first. Hunyuan's files have false where there are none. */
static int read_groups(struct spw_experts_config *e, const struct spw_keys *keys, bool may_have)
{
    uint32_t n = 1, n_kept = 1;
    char expected[96];
    if (json_is_false(spw_keys_value(keys, "n_group")))
        return 0;
    SPW_TRY(SPW_OR_NULL(spw_keys_u32, keys, "n_group", 0, MOST_EXPERTS, &n));
    if (n > 1 && !may_have)
        return spw_keys_refuse(keys, "n_group", "1: a choice among all experts");
    if (may_have && (n > 1 || !keys->names)) /* GGUF files may have 0 where there are none */
        SPW_TRY(spw_keys_u32(keys, "topk_group", 1, n > 1 ? n : 1, &n_kept));
    if (n <= 1)
        return 0;
    snprintf(expected, sizeof expected,
             "at most %d, which divides the %u experts into groups of at least 2",
             SPW_MOST_EXPERT_GROUPS, e->n);
    if (n > SPW_MOST_EXPERT_GROUPS || e->n % n || e->n / n < 2)
        return spw_keys_refuse(keys, "n_group", expected);
    snprintf(expected, sizeof expected, "groups that have the %u experts of a token", e->n_kept);
    if (e->n_kept > n_kept * (e->n / n))
        return spw_keys_refuse(keys, "topk_group", expected);
    e->route.n_groups = n;
    e->route.n_groups_kept = n_kept;
    return 0;
}

uint32_t spw_expert_layers(const struct spw_model_config *config)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < config->n_layers; i++)
        n += config->has_experts[i];
    return n;
}

int spw_config_read_experts(struct spw_model_config *out, const struct spw_config_source *source)
{
    const struct spw_keys *keys = &source->text;
    const struct spw_expert_facts *facts = &source->family->experts;
    struct spw_experts_config *e = &out->experts;
    double scale = facts->scale > 0 ? facts->scale : 1, least_sum = 0;
    const bool unused = source->family->blocks && !spw_expert_layers(out);
    bool enabled =
        facts->count_key && !facts->enable_key && (!unused || spw_keys_has(keys, facts->count_key));
    if (facts->enable_key)
        SPW_TRY(spw_keys_bool(keys, facts->enable_key, &enabled));
    if (!enabled)
        return 0;
    const char *kept_key = facts->kept_key ? facts->kept_key : "num_experts_per_tok";
    const bool may_have_none =
        facts->shared_alone || facts->dense_list_key || source->family->blocks;
    SPW_TRY(read_either(keys, facts->count_key, facts->other_count_key, may_have_none ? 0 : 1,
                        MOST_EXPERTS, facts->count, &e->n));
    if (!e->n && source->family->blocks && spw_expert_layers(out))
        return spw_keys_refuse(keys, facts->count_key, "a number above 0: a layer has experts");
    if (!e->n && !facts->shared_alone)
        return 0; /* all layers are dense */
    if (!e->n)
        return read_size(keys, facts->shared_width_key, 1, MAX_WIDTH, facts->shared_width,
                         &out->intermediate);
    SPW_TRY(read_either(keys, kept_key, facts->other_kept_key, 1, e->n, facts->kept, &e->n_kept));
    e->intermediate = out->intermediate;
    if (facts->width_key)
        SPW_TRY(read_size(keys, facts->width_key, 1, MAX_WIDTH, facts->width, &e->intermediate));
    if (facts->latent_key)
        SPW_TRY(SPW_OR_NULL(spw_keys_u32, keys, facts->latent_key, 1, out->hidden, &e->latent));
    SPW_TRY(read_shared(e, keys, facts));
    SPW_TRY(spw_keys_number(keys, "moe_norm_min", 0, 1e-9, &least_sum)); /* sums are larger */
    e->beside = facts->beside;
    e->shared_gate = facts->shared_gate;
    e->biases = facts->biases;
    e->choice_bias =
        source->gguf && facts->choice_bias_key ? source->gguf->choice_bias : facts->choice_bias;
    if (facts->choice_bias_key)
        SPW_TRY(spw_keys_bool(keys, facts->choice_bias_key, &e->choice_bias));
    e->transposed = facts->transposed;
    e->either_order = facts->either_order;
    e->halves = facts->halves;
    e->weighted_inputs = facts->weighted_inputs;
    e->route = (struct spw_route){.score = facts->score,
                                  .sum_plus = facts->sum_plus,
                                  .renormalizes = facts->renormalizes == SPW_FAMILY_ALWAYS ||
                                                  facts->renormalizes == SPW_FAMILY_UNLESS};
    if (spw_family_asks(facts->renormalizes))
        SPW_TRY(spw_keys_bool(keys, "norm_topk_prob", &e->route.renormalizes));
    if (facts->scale_key)
        SPW_TRY(spw_keys_number(keys, facts->scale_key, -1e6, 1e6, &scale));
    e->route.scale = (float)scale * out->branch_scales[SPW_BRANCH_MLP];
    SPW_TRY(read_groups(e, keys, facts->groups));
    return choose_layers(out, source);
}
