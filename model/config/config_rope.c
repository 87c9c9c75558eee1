/* Reads both generations of rope keys into one result.
 *
 *   old:  "rope_theta": 1e6,  "rope_scaling": null | {"rope_type" or "type": KIND, "factor": ...}
 *         Gemma-3 adds "rope_local_base_freq", the theta of its sliding layers, which never scale
 *   new:  "rope_parameters": {"rope_type": KIND, "rope_theta": ..., "factor": ...}
 *         Gemma-3: {"full_attention": {...}, "sliding_attention": {...}}; flat keys are ignored
 *
 * A value inside the dict wins over a value at the top level, which wins over the family's default.
 * A non-empty rope_scaling replaces rope_parameters (in Gemma-3 and OLMo-3 it is merged over the
 * full_attention part), because transformers does so with files that have both. */
#include "model/config/config_rope.h"

#include "model/config/config_parts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAX_FACTOR 1e6
#define MAX_THETA 1e15

static const struct {
    const char *name;
    enum spw_rope_kind kind;
} rope_types[] = {
    {"default", SPW_ROPE_DEFAULT},
    {"linear", SPW_ROPE_LINEAR},
    {"dynamic", SPW_ROPE_DYNAMIC},
    {"llama3", SPW_ROPE_LLAMA3},
    {"yarn", SPW_ROPE_YARN},
    {"longrope", SPW_ROPE_LONG},
    {"proportional", SPW_ROPE_PROPORTIONAL},
};

/* "su" and "yarn" are older names of longrope in families that have no other scaling. */
static int read_only_long(const struct spw_keys *dict, const char *key, const char *name,
                          enum spw_rope_kind *kind)
{
    const bool longrope = !strcmp(name, "longrope") || !strcmp(name, "su") || !strcmp(name, "yarn");
    *kind = longrope ? SPW_ROPE_LONG : SPW_ROPE_DEFAULT;
    return longrope || !strcmp(name, "default")
               ? 0
               : spw_keys_refuse(dict, key, "default or longrope, in this family");
}

static int read_kind(const struct spw_keys *dict, const struct spw_rope_facts *facts,
                     enum spw_rope_kind *kind)
{
    const char *key = spw_keys_value(dict, "rope_type") ? "rope_type" : "type";
    const char *name = "default";
    SPW_TRY(spw_keys_string(dict, key, &name));
    if (facts->only_long && !dict->names)
        return read_only_long(dict, key, name, kind);
    if (facts->sections && !strcmp(name, "mrope"))
        name = "default";
    for (size_t i = 0; i < sizeof rope_types / sizeof rope_types[0]; i++) {
        if (!strcmp(name, rope_types[i].name)) {
            *kind = rope_types[i].kind;
            return *kind != SPW_ROPE_DEFAULT && facts->unscaled
                       ? spw_keys_refuse(dict, key, "default, in this family")
                       : 0;
        }
    }
    return spw_keys_refuse(dict, key,
                           "default, linear, dynamic, llama3, yarn, longrope or proportional");
}

static int require(const struct spw_keys *dict, const char *key, const char *expected)
{
    return spw_keys_has(dict, key) ? 0 : spw_keys_refuse(dict, key, expected);
}

/* The factor of cos and sin: the given one, or YaRN's 0.1 ln(factor) + 1 (section 3.4), in
 * transformers' generalization with two scales. */
static double yarn_magnitude(double factor, double scale)
{
    return factor <= 1 ? 1 : 0.1 * scale * log(factor) + 1;
}

static int read_yarn(struct spw_rope_config *rope, const struct spw_keys *dict,
                     const struct spw_keys *top, bool nested, const struct spw_rope_facts *facts,
                     double max_positions)
{
    rope->beta_fast = 32;
    rope->beta_slow = 1;
    rope->truncate = !(top->names && facts->whole_ramp);
    if (spw_keys_is_null(dict, "factor"))
        rope->factor = max_positions / (double)rope->original_max_positions; /* less than 1, too */
    else
        SPW_TRY(require(dict, "factor", "a number, or null, for yarn"));
    SPW_TRY(SPW_OR_NULL(spw_keys_number, dict, "beta_fast", 1e-6, 1e9, &rope->beta_fast));
    SPW_TRY(SPW_OR_NULL(spw_keys_number, dict, "beta_slow", 1e-6, 1e9, &rope->beta_slow));
    if (spw_keys_is_null(dict, "truncate")) /* in transformers not the default, but false */
        rope->truncate = false;
    SPW_TRY(SPW_OR_NULL(spw_keys_bool, dict, "truncate", &rope->truncate));
    if (nested && !top->names && !rope->truncate)
        return spw_keys_refuse(dict, "truncate",
                               "true: transformers ignores the key of one kind of layers");
    double scale = 0, scale_all = 0;
    if (dict->names) /* most GGUF files have the other one only */
        scale = 1;
    if (!dict->names || facts->grows) {
        SPW_TRY(SPW_OR_NULL(spw_keys_number, dict, "mscale", 0, 1e3, &scale));
        SPW_TRY(SPW_OR_NULL(spw_keys_number, dict, "mscale_all_dim", 0, 1e3, &scale_all));
    }
    rope->attention_factor = yarn_magnitude(rope->factor, 1);
    if (scale > 0 && scale_all > 0)
        rope->attention_factor =
            yarn_magnitude(rope->factor, scale) / yarn_magnitude(rope->factor, scale_all);
    if (rope->theta <= 1) /* a formula divides by its logarithm */
        return spw_keys_refuse(spw_keys_has(dict, "rope_theta") ? dict : top, "rope_theta",
                               "more than 1, for yarn");
    return SPW_OR_NULL(spw_keys_number, dict, "attention_factor", 1e-6, 1e6,
                       &rope->attention_factor);
}

/* The factor of cos and sin (LongRoPE, Ding et al. 2024, in the form of Phi-3). */
static double long_magnitude(double factor, double original)
{
    return factor <= 1 ? 1 : sqrt(1 + log(factor) / log(original));
}

static int read_factors(const struct spw_keys *dict, const char *key, uint32_t n, float *out)
{
    const json_t *list = spw_keys_value(dict, key);
    char expected[64];
    snprintf(expected, sizeof expected, "a list of %u positive numbers", n);
    if (!json_is_array(list) || json_array_size(list) != n)
        return spw_keys_refuse(dict, key, expected);
    for (uint32_t i = 0; i < n; i++) {
        double x = json_number_value(json_array_get(list, i));
        if (!(x >= 1e-6 && x <= MAX_FACTOR))
            return spw_keys_refuse(dict, key, expected);
        out[i] = (float)x;
    }
    return 0;
}

static int read_longrope(struct spw_rope_config *rope, struct spw_model_config *config,
                         const struct spw_keys *dict, const struct spw_keys *top)
{
    const char *key = "original_max_position_embeddings";
    const uint32_t n = rope->rotary_dim / 2;
    const double original = (double)rope->original_max_positions;
    if (dict->names) /* a GGUF file has tensors for it, or is not complete */
        return spw_keys_refuse(dict, "rope_type",
                               "a tensor rope_factors_long.weight beside this type");
    if (original < 2) /* a formula divides by its logarithm */
        return spw_keys_refuse(spw_keys_has(top, key) ? top : dict, key,
                               "more than 1, for longrope");
    if (!config->rope_factors)
        config->rope_factors = spw_alloc_zero(2 * (size_t)n, sizeof *config->rope_factors);
    if (!config->rope_factors)
        return spw_fail(dict->err, -ENOMEM, "%s: out of memory", dict->file);
    rope->short_factors = config->rope_factors;
    rope->long_factors = config->rope_factors + n;
    SPW_TRY(read_factors(dict, "short_factor", n, config->rope_factors));
    SPW_TRY(read_factors(dict, "long_factor", n, config->rope_factors + n));
    if (!spw_keys_has(dict, "factor"))
        rope->factor = (double)config->max_positions / original;
    rope->attention_factor = long_magnitude(rope->factor, original);
    return SPW_OR_NULL(spw_keys_number, dict, "attention_factor", 1e-6, 1e6,
                       &rope->attention_factor);
}

static int read_llama3(struct spw_rope_config *rope, const struct spw_keys *dict)
{
    SPW_TRY(require(dict, "low_freq_factor", "a number, for llama3"));
    SPW_TRY(require(dict, "high_freq_factor", "a number, for llama3"));
    SPW_TRY(spw_keys_number(dict, "low_freq_factor", 1e-6, MAX_FACTOR, &rope->low_freq_factor));
    SPW_TRY(spw_keys_number(dict, "high_freq_factor", 1e-6, MAX_FACTOR, &rope->high_freq_factor));
    if (rope->high_freq_factor < rope->low_freq_factor)
        return spw_keys_refuse(dict, "high_freq_factor", "at least low_freq_factor");
    return 0;
}

/* transformers takes 64.0 for 64 here, and does not for keys of its config classes. */
static int read_length(const struct spw_keys *dict, const char *key, uint64_t *out)
{
    const json_t *value = dict->names ? NULL : spw_keys_value(dict, key);
    const double number = json_number_value(value);
    if (!json_is_real(value) || !(number >= 1 && number <= (double)MAX_POSITIONS) ||
        number != floor(number))
        return SPW_OR_NULL(spw_keys_u64, dict, key, 1, MAX_POSITIONS, out);
    *out = (uint64_t)number;
    return 0;
}

static int read_original_length(struct spw_rope_config *rope, const struct spw_keys *dict,
                                const struct spw_keys *top, bool nested,
                                const struct spw_rope_facts *facts, uint64_t max_positions)
{
    const char *key = "original_max_position_embeddings";
    rope->original_max_positions = max_positions;
    const bool scaled =
        rope->kind == SPW_ROPE_YARN || rope->kind == SPW_ROPE_LLAMA3 || rope->kind == SPW_ROPE_LONG;
    if (scaled && (spw_keys_is_null(dict, key) || spw_keys_is_null(top, key)))
        return spw_keys_refuse(spw_keys_is_null(dict, key) ? dict : top, key, "a number");
    if (scaled && facts->both_kinds && !top->names)
        SPW_TRY(require(dict, key, "a number"));
    SPW_TRY(read_length(dict, key, &rope->original_max_positions));
    if (facts->original && !top->names)
        rope->original_max_positions = facts->original;
    if (!nested) /* the top level wins over a flat dict, as in Phi-3's files */
        SPW_TRY(
            SPW_OR_NULL(spw_keys_u64, top, key, 1, MAX_POSITIONS, &rope->original_max_positions));
    return 0;
}

/* How queries grow with their position. transformers ignores the key in other families. */
static int read_growth(struct spw_model_config *config, const struct spw_rope_config *rope,
                       const struct spw_keys *dict, bool grows)
{
    const char *key = "llama_4_scaling_beta";
    double beta = 0;
    if (grows && !dict->names)
        SPW_TRY(require(dict, key, "a number"));
    SPW_TRY(SPW_OR_NULL(spw_keys_number, dict, key, 0, MAX_FACTOR, &beta));
    if (beta != 0 && !grows)
        return spw_keys_refuse(dict, key, "nothing, or 0: this family has no such key");
    if (beta != 0)
        config->query_growth = (struct spw_query_growth){
            .beta = (float)beta, .base = (float)rope->original_max_positions};
    return 0;
}

/* The frequencies are those of whole heads. */
static int read_proportional(struct spw_rope_config *rope, const struct spw_keys *dict,
                             double partial, uint32_t head_dim)
{
    if (partial > 1)
        return spw_keys_refuse(dict, "partial_rotary_factor", "at most 1");
    rope->n_turned = (uint32_t)(partial * head_dim / 2); /* cut, as in transformers */
    return SPW_OR_NULL(spw_keys_number, dict, "factor", 1, MAX_FACTOR, &rope->factor);
}

/* NTK-aware scaling with a fixed factor, which stretches theta. */
static int read_alpha(struct spw_rope_config *rope, const struct spw_keys *dict, uint32_t head_dim)
{
    double alpha = 0;
    SPW_TRY(SPW_OR_NULL(spw_keys_number, dict, "alpha", 0, MAX_FACTOR, &alpha));
    if (alpha <= 0)
        return 0;
    if (head_dim < 4)
        return spw_keys_refuse(dict, "alpha", "nothing, in a model with head_dim 2");
    rope->kind = SPW_ROPE_DEFAULT;
    rope->theta *= pow(alpha, (double)head_dim / (head_dim - 2));
    return 0;
}

/* Reads one table. `dict` may be empty; `theta` is the default. */
static int read_table(struct spw_rope_config *rope, struct spw_model_config *config,
                      const struct spw_keys *dict, const struct spw_keys *top, bool nested,
                      const struct spw_rope_facts *facts, double theta, uint32_t head_dim)
{
    *rope = (struct spw_rope_config){.theta = theta,
                                     .factor = 1,
                                     .low_freq_factor = 1,
                                     .high_freq_factor = 1,
                                     .rotary_dim = head_dim,
                                     .attention_factor = 1};
    SPW_TRY(read_kind(dict, facts, &rope->kind));
    SPW_TRY(spw_keys_number(dict, "rope_theta", 1e-3, MAX_THETA, &rope->theta));
    SPW_TRY(read_original_length(rope, dict, top, nested, facts, config->max_positions));
    if (facts->alpha && rope->kind == SPW_ROPE_DYNAMIC)
        SPW_TRY(read_alpha(rope, dict, head_dim));
    double partial = facts->partial > 0 ? facts->partial : 1, dim = partial * head_dim;
    if (facts->by_dim && !top->names)
        SPW_TRY(SPW_OR_NULL(spw_keys_number, top, "rotary_dim", 2, head_dim, &dim));
    partial = dim / head_dim;
    if (spw_keys_is_null(top, "partial_rotary_factor"))
        partial = 1; /* in transformers not the default of the family, nor rotary_dim */
    SPW_TRY(SPW_OR_NULL(spw_keys_number, top, "partial_rotary_factor", 0, 1e3, &partial));
    SPW_TRY(spw_keys_number(dict, "partial_rotary_factor", 0, 1e3, &partial));
    const struct spw_keys *place = spw_keys_has(dict, "partial_rotary_factor") ? dict : top;
    SPW_TRY(read_growth(config, rope, dict, facts->grows));
    if (rope->kind == SPW_ROPE_PROPORTIONAL)
        return read_proportional(rope, dict, partial, head_dim);
    if (partial != 1 && facts->partial <= 0)
        return spw_keys_refuse(place, "partial_rotary_factor",
                               "1: this family rotates whole heads");
    rope->rotary_dim = (uint32_t)(partial * head_dim); /* cut, as in transformers */
    if (facts->partial > 0 && top->names)
        SPW_TRY(spw_keys_u32(top, "rotary_dim", 2, head_dim, &rope->rotary_dim));
    if (!rope->rotary_dim || rope->rotary_dim > head_dim || rope->rotary_dim % 2)
        return spw_keys_refuse(place, top->names ? "rotary_dim" : "partial_rotary_factor",
                               "a part of head_dim that is an even number of channels");
    if (rope->kind == SPW_ROPE_DEFAULT)
        return 0;
    if (rope->kind != SPW_ROPE_YARN && rope->kind != SPW_ROPE_LONG)
        SPW_TRY(require(dict, "factor", "a number of at least 1"));
    SPW_TRY(SPW_OR_NULL(spw_keys_number, dict, "factor", 1, MAX_FACTOR, &rope->factor));
    if (rope->kind == SPW_ROPE_DYNAMIC && head_dim < 4)
        return spw_keys_refuse(top, "head_dim", "at least 4, for dynamic rope");
    if (rope->kind == SPW_ROPE_LLAMA3)
        return read_llama3(rope, dict);
    if (rope->kind == SPW_ROPE_LONG)
        return read_longrope(rope, config, dict, top);
    if (rope->kind == SPW_ROPE_YARN)
        return read_yarn(rope, dict, top, nested, facts, (double)config->max_positions);
    return 0;
}

/* Linear and YaRN factors count from the length before scaling, which yarn may name. Dynamic rope
 * stretches with the sequence; float positions set the limit there. */
static uint64_t reach(const struct spw_rope_config *rope, uint64_t max_positions)
{
    double original =
        (double)(rope->kind == SPW_ROPE_YARN ? rope->original_max_positions : max_positions);
    if (rope->kind != SPW_ROPE_DYNAMIC && rope->kind != SPW_ROPE_YARN &&
        rope->kind != SPW_ROPE_LINEAR)
        return max_positions;
    double stretched = rope->kind == SPW_ROPE_DYNAMIC ? (double)SPW_CONFIG_MOST_POSITIONS
                                                      : original * rope->factor;
    return spw_max_u64(max_positions, (uint64_t)fmin(stretched, (double)SPW_CONFIG_MOST_POSITIONS));
}

static struct spw_keys below(const struct spw_keys *keys, const char *prefix, const json_t *object)
{
    return (struct spw_keys){
        .file = keys->file, .prefix = prefix, .object = object, .err = keys->err};
}

/* Refuses a dict per layer kind where a flat dict is expected: the program must not read half of
 * it. In the other direction transformers ignores the flat keys, but it fails if rope_scaling must
 * be merged into full_attention. */
static int check_nesting(const struct spw_keys *keys, const char *key, const json_t *dict,
                         bool by_layer_kind, bool scaled)
{
    bool nested =
        json_object_get(dict, "full_attention") || json_object_get(dict, "sliding_attention");
    if (!json_object_size(dict) || nested == by_layer_kind || (by_layer_kind && !scaled))
        return 0;
    return spw_keys_refuse(keys, key,
                           by_layer_kind ? "an object full_attention, which rope_scaling changes"
                                         : "one flat set of rope keys for all layers");
}

/* Every kind gets the rope of full layers. */
static void same_for_all(struct spw_model_config *config)
{
    for (int k = 0; k < SPW_LAYER_KINDS; k++)
        config->rope[k] = config->rope[config->full_kind];
}

/* rope_scaling with the keys of full_attention that it does not have, as transformers merges them.
 * NULL: out of memory. */
static json_t *merge(const json_t *scaling, const json_t *full)
{
    json_t *out = json_copy((json_t *)scaling);
    if (out && full && json_object_update_missing(out, (json_t *)full)) {
        json_decref(out);
        return NULL;
    }
    return out;
}

static int check_by_layer_kind(const struct spw_keys *group, const struct spw_keys *full,
                               const struct spw_keys *sliding, const struct spw_rope_facts *facts)
{
    bool truncate = !spw_keys_is_null(group, "truncate");
    SPW_TRY(SPW_OR_NULL(spw_keys_bool, group, "truncate", &truncate));
    if (!truncate)
        return spw_keys_refuse(group, "truncate", "nothing, or true");
    if (!facts->both_kinds || !group->object)
        return 0;
    SPW_TRY(require(group, "full_attention", "an object"));
    SPW_TRY(require(group, "sliding_attention", "an object"));
    SPW_TRY(require(full, "rope_theta", "a number"));
    return require(sliding, "rope_theta", "a number");
}

static int read_by_layer_kind(struct spw_model_config *config, const struct spw_keys *keys,
                              const struct spw_rope_facts *facts, const json_t *parameters,
                              const json_t *scaling, const char *prefix)
{
    const json_t *full = NULL, *sliding = NULL;
    struct spw_keys group = below(keys, prefix, parameters);
    SPW_TRY(spw_keys_object(&group, "full_attention", &full));
    SPW_TRY(spw_keys_object(&group, "sliding_attention", &sliding));
    double theta = facts->theta, local_theta = facts->local_theta;
    if (!facts->both_kinds && !json_object_get(full, "rope_theta"))
        SPW_TRY(spw_keys_number(keys, "rope_theta", 1e-3, MAX_THETA, &theta));
    if (facts->local_key && !json_object_get(sliding, "rope_theta"))
        SPW_TRY(spw_keys_number(keys, "rope_local_base_freq", 1e-3, MAX_THETA, &local_theta));
    char full_prefix[96], sliding_prefix[96], scaling_prefix[96];
    snprintf(full_prefix, sizeof full_prefix, "%sfull_attention.", prefix);
    snprintf(sliding_prefix, sizeof sliding_prefix, "%ssliding_attention.", prefix);
    snprintf(scaling_prefix, sizeof scaling_prefix, "%srope_scaling.", keys->prefix);
    struct spw_keys full_keys = below(keys, full_prefix, full);
    struct spw_keys sliding_keys = below(keys, sliding_prefix, sliding);
    SPW_TRY(check_by_layer_kind(&group, &full_keys, &sliding_keys, facts));
    json_t *merged = scaling ? merge(scaling, full) : NULL;
    if (scaling && !merged)
        return spw_fail(keys->err, -ENOMEM, "%s: out of memory", keys->file);
    if (scaling)
        full_keys = below(keys, scaling_prefix, merged);
    int rc = 0;
    if (scaling && !parameters && !spw_keys_has(&full_keys, "rope_type") &&
        spw_keys_has(&full_keys, "type"))
        rc = spw_keys_refuse(&full_keys, "type", "the name rope_type: transformers ignores type");
    if (!rc)
        rc = read_table(&config->rope[config->full_kind], config, &full_keys, keys, true, facts,
                        theta, config->kv[config->full_kind].head_dim);
    json_decref(merged);
    SPW_TRY(rc);
    same_for_all(config);
    return read_table(&config->rope[config->window_kind], config, &sliding_keys, keys, true, facts,
                      local_theta, config->kv[config->window_kind].head_dim);
}

/* GGUF has one set of keys. Scaling is that of full layers. */
static int read_flat(struct spw_model_config *config, const struct spw_keys *keys,
                     const struct spw_rope_facts *facts)
{
    struct spw_rope_config *full = &config->rope[config->full_kind];
    struct spw_rope_config *sliding = &config->rope[config->window_kind];
    SPW_TRY(read_table(full, config, keys, keys, true, facts, facts->theta,
                       config->kv[config->full_kind].head_dim));
    config->reach =
        facts->by_layer_kind ? config->max_positions : reach(full, config->max_positions);
    same_for_all(config);
    if (!facts->by_layer_kind)
        return 0;
    const struct spw_keys none = below(keys, keys->prefix, NULL);
    double theta = facts->local_theta > 0 ? facts->local_theta : full->theta;
    SPW_TRY(spw_keys_number(keys, "rope_local_base_freq", 1e-3, MAX_THETA, &theta));
    return read_table(sliding, config, &none, &none, true, facts, theta,
                      config->kv[config->window_kind].head_dim);
}

int spw_config_add_rope_factors(struct spw_model_config *config, const struct spw_keys *keys,
                                const struct spw_rope_facts *facts, enum spw_rope_kind kind)
{
    struct spw_keys own = *keys; /* by the name of the file */
    double attention = 1;
    own.names = NULL;
    if (kind == SPW_ROPE_LONG)
        SPW_TRY(spw_keys_number(&own, "rope.scaling.attn_factor", 1e-6, 1e6, &attention));
    for (int k = 0; k < SPW_LAYER_KINDS; k++) {
        if (facts->by_layer_kind && k == (int)config->window_kind)
            continue;
        if (config->rope[k].kind != SPW_ROPE_DEFAULT)
            return spw_keys_refuse(keys, "rope_type",
                                   "no scaling: the file has a tensor of factors, too");
        config->rope[k].kind = kind;
        config->rope[k].attention_factor = attention;
    }
    return 0;
}

static int read_rope(struct spw_model_config *config, const struct spw_keys *keys,
                     const struct spw_rope_facts *facts, const json_t *otherwise)
{
    const json_t *scaling = NULL, *parameters = NULL;
    SPW_TRY(spw_keys_object(keys, "rope_scaling", &scaling));
    SPW_TRY(spw_keys_object(keys, "rope_parameters", &parameters));
    if (scaling && !json_object_size(scaling))
        scaling = NULL;
    const bool renamed = scaling && facts->both_kinds;
    if (renamed) {
        parameters = scaling;
        scaling = NULL;
    }
    if (!scaling && !parameters)
        scaling = otherwise;
    if (parameters && (!scaling || facts->by_layer_kind))
        SPW_TRY(check_nesting(keys, "rope_parameters", parameters, facts->by_layer_kind, scaling));
    if (scaling && !facts->by_layer_kind)
        SPW_TRY(check_nesting(keys, "rope_scaling", scaling, false, true));
    config->reach = config->max_positions; /* in such families max_positions includes the scaling */
    char prefix[64];
    const bool of_scaling = renamed || (scaling && !facts->by_layer_kind);
    snprintf(prefix, sizeof prefix, "%s%s", keys->prefix,
             of_scaling ? "rope_scaling." : "rope_parameters.");
    if (facts->by_layer_kind)
        return read_by_layer_kind(config, keys, facts, parameters, scaling, prefix);

    double theta = facts->theta;
    struct spw_keys dict = below(keys, prefix, scaling ? scaling : parameters);
    if (!spw_keys_has(&dict, "rope_theta"))
        SPW_TRY(spw_keys_number(keys, "rope_theta", 1e-3, MAX_THETA, &theta));
    SPW_TRY(read_table(&config->rope[0], config, &dict, keys, false, facts, theta,
                       config->kv[0].head_dim));
    same_for_all(config);
    config->reach = reach(&config->rope[0], config->max_positions);
    return 0;
}

int spw_config_read_rope(struct spw_model_config *config, const struct spw_keys *keys,
                         const struct spw_rope_facts *facts)
{
    if (keys->names)
        return read_flat(config, keys, facts);
    json_t *otherwise = NULL;
    int rc = !facts->scaling
                 ? 0
                 : spw_json_parse(&otherwise, facts->scaling, strlen(facts->scaling), 0, NULL);
    if (rc)
        return spw_fail(keys->err, rc, "%s: out of memory", keys->file);
    rc = read_rope(config, keys, facts, otherwise);
    json_decref(otherwise);
    return rc;
}
