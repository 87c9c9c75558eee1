/* The keys of layers with a state: see struct spw_mixer_config. */
#include "model/config/config_parts.h"

#include <stdio.h>
#include <string.h>

enum { MOST_HEADS = 4096, MOST_VALUE_DIM = 1024 };

/* A key whose name is a fact of the family; 0 as the default: the key is required. */
static int read_size(const struct spw_keys *keys, const char *key, uint32_t low, uint32_t high,
                     uint32_t otherwise, uint32_t *out)
{
    char expected[64];
    *out = otherwise;
    if (!key)
        return 0;
    snprintf(expected, sizeof expected, "an integer from %u to %u", low, high);
    if (!otherwise && !spw_keys_has(keys, key))
        return spw_keys_refuse(keys, key, expected);
    return spw_keys_u32(keys, key, low, high, out);
}

/* "auto" counts as 0. */
static int read_size_or_auto(const struct spw_keys *keys, const char *key, uint32_t high,
                             uint32_t otherwise, uint32_t *out)
{
    const json_t *value = key ? spw_keys_value(keys, key) : NULL;
    *out = otherwise;
    if (!value)
        return 0;
    return json_is_string(value) && !strcmp(json_string_value(value), "auto")
               ? 0
               : SPW_OR_NULL(spw_keys_u32, keys, key, 1, high, out);
}

/* A key, or an old name of it. */
static const char *either(const struct spw_keys *keys, const char *key, const char *other)
{
    return other && spw_keys_has(keys, other) ? other : key;
}

/* GGUF files have the channels of all value heads. */
static int read_all_values(struct spw_mixer_config *m, const struct spw_keys *keys)
{
    const char *key = "linear_inner_size";
    char expected[80];
    uint32_t inner;
    SPW_TRY(read_size(keys, key, 1, MOST_HEADS * MOST_VALUE_DIM, 0, &inner));
    m->value_dim = inner / m->heads;
    snprintf(expected, sizeof expected, "a multiple of %s, %u, up to %u times it",
             spw_keys_name(keys, "linear_num_value_heads"), m->heads, MOST_VALUE_DIM);
    return inner % m->heads || m->value_dim > MOST_VALUE_DIM ? spw_keys_refuse(keys, key, expected)
                                                             : 0;
}

static int read_heads(struct spw_mixer_config *m, const struct spw_keys *keys,
                      const struct spw_mixer_facts *facts)
{
    const char *key = either(keys, facts->key_heads_key, facts->other_key_heads_key);
    char expected[80];
    SPW_TRY(read_size(keys, facts->heads_key, 1, MOST_HEADS, facts->heads, &m->heads));
    SPW_TRY(read_size(keys, key, 1, MOST_HEADS, facts->key_heads, &m->key_heads));
    SPW_TRY(read_size(keys, facts->key_dim_key, 1, SPW_MOST_KEY_DIM, facts->key_dim, &m->key_dim));
    snprintf(expected, sizeof expected, "a divisor of %s, %u",
             spw_keys_name(keys, facts->heads_key), m->heads);
    return m->heads % m->key_heads ? spw_keys_refuse(keys, key, expected) : 0;
}

static int read_biases(struct spw_mixer_config *m, const struct spw_keys *keys,
                       const struct spw_mixer_facts *facts)
{
    const char *conv = either(keys, facts->conv_bias_key, facts->other_conv_bias_key);
    m->in_bias = facts->bias;
    m->conv_bias = facts->conv_bias;
    if (facts->bias_key)
        SPW_TRY(spw_keys_bool(keys, facts->bias_key, &m->in_bias));
    m->out_bias = facts->out_bias_key ? facts->bias : m->in_bias;
    if (facts->out_bias_key)
        SPW_TRY(spw_keys_bool(keys, facts->out_bias_key, &m->out_bias));
    return conv ? spw_keys_bool(keys, conv, &m->conv_bias) : 0;
}

/* 0: no key says it. */
static int read_inner(const struct spw_keys *keys, const struct spw_mixer_facts *facts,
                      uint32_t hidden, uint32_t *inner)
{
    uint32_t expand = facts->expand;
    *inner = facts->inner_key && !spw_keys_is_null(keys, facts->inner_key) ? facts->inner : 0;
    if (facts->inner_key)
        SPW_TRY(SPW_OR_NULL(spw_keys_u32, keys, facts->inner_key, 1, MAX_WIDTH, inner));
    if (*inner || !facts->expand_key)
        return 0;
    SPW_TRY(spw_keys_u32(keys, facts->expand_key, 1, MAX_WIDTH / hidden, &expand));
    *inner = expand * hidden;
    return 0;
}

/* The gates have as many blocks as attention has heads. */
static int read_lru(struct spw_model_config *out, const struct spw_keys *keys)
{
    struct spw_mixer_config *m = &out->mixer;
    char expected[64];
    m->value_dim = out->hidden;
    SPW_TRY(SPW_OR_NULL(spw_keys_u32, keys, "lru_width", 1, MAX_WIDTH, &m->value_dim));
    m->conv_channels = m->value_dim;
    m->heads = m->key_heads = m->key_dim = 1;
    m->gate_blocks = out->n_heads;
    snprintf(expected, sizeof expected, "a multiple of num_attention_heads, %u", m->gate_blocks);
    return m->value_dim % m->gate_blocks ? spw_keys_refuse(keys, "lru_width", expected) : 0;
}

/* What transformers would clamp, at some times and not at others. Old writers have Infinity, new
 * ones {"__float__": "Infinity"}. */
static int check_limit(const struct spw_keys *keys, const char *key)
{
    const json_t *list = key ? spw_keys_value(keys, key) : NULL;
    const json_t *low = json_array_get(list, 0), *high = json_array_get(list, 1);
    if (!list || json_is_null(list) ||
        (json_is_number(low) && json_number_value(low) <= 0 &&
         (json_is_object(high) || json_number_value(high) >= 1e30)))
        return 0;
    return spw_keys_refuse(keys, key, "no bounds: 0 and Infinity");
}

static int read_ssd(struct spw_model_config *out, const struct spw_keys *keys,
                    const struct spw_mixer_facts *facts)
{
    struct spw_mixer_config *m = &out->mixer;
    uint32_t inner;
    char expected[96];
    SPW_TRY(read_heads(m, keys, facts));
    SPW_TRY(read_inner(keys, facts, out->hidden, &inner));
    SPW_TRY(read_size_or_auto(keys, facts->value_dim_key, MOST_VALUE_DIM,
                              inner ? inner / m->heads : facts->value_dim, &m->value_dim));
    const char *dim =
        facts->value_dim_key ? spw_keys_name(keys, facts->value_dim_key) : "channels of a head";
    snprintf(expected, sizeof expected, "%s times %s, which give %u channels",
             spw_keys_name(keys, facts->heads_key), dim, inner);
    if (!m->value_dim || m->value_dim > MOST_VALUE_DIM ||
        (inner && m->heads * m->value_dim != inner))
        return spw_keys_refuse(keys, facts->heads_key, expected);
    m->conv_channels = m->heads * m->value_dim + 2 * m->key_heads * m->key_dim;
    m->gate_norm = facts->gate_norm;
    m->norm_first = facts->norm_first;
    if (facts->gate_norm_key)
        SPW_TRY(spw_keys_bool(keys, facts->gate_norm_key, &m->gate_norm));
    if (facts->norm_first_key)
        SPW_TRY(spw_keys_bool(keys, facts->norm_first_key, &m->norm_first));
    return check_limit(keys, facts->limit_key);
}

static int read_scan(struct spw_model_config *out, const struct spw_keys *keys,
                     const struct spw_mixer_facts *facts)
{
    struct spw_mixer_config *m = &out->mixer;
    m->heads = m->key_heads = 1;
    SPW_TRY(read_size(keys, facts->key_dim_key, 1, SPW_MOST_KEY_DIM, facts->key_dim, &m->key_dim));
    SPW_TRY(read_inner(keys, facts, out->hidden, &m->value_dim));
    SPW_TRY(read_size_or_auto(keys, facts->rank_key, MAX_WIDTH,
                              (uint32_t)spw_div_up(out->hidden, 16), &m->dt_rank));
    m->conv_channels = m->value_dim;
    return 0;
}

/* Of the convolution. */
static int read_act(struct spw_model_config *out, const struct spw_keys *keys, const char *key)
{
    const char *name = "silu";
    enum spw_activation *act = &out->mixer.act;
    *act = out->act;
    if (key) {
        SPW_TRY(spw_keys_string(keys, key, &name));
        *act = spw_config_activation(name);
    }
    return *act == SPW_ACT_COUNT
               ? spw_keys_refuse(
                     keys, key ? key : "hidden_act",
                     "silu, gelu, gelu_new, gelu_pytorch_tanh, quick_gelu, relu or relu2")
               : 0;
}

static bool has_states(const struct spw_model_config *c)
{
    bool any = false;
    for (uint32_t l = 0; l < c->n_layers; l++)
        any = any || c->layer_kinds[l] == SPW_LAYER_STATE || spw_config_has_state(c, l);
    return any;
}

int spw_config_read_mixer(struct spw_model_config *out, const struct spw_config_source *source)
{
    const struct spw_keys *keys = &source->text;
    const struct spw_mixer_facts *facts = &source->family->mixer;
    struct spw_mixer_config *m = &out->mixer;
    if (!facts->kind || !has_states(out))
        return 0;
    m->kind = facts->kind;
    SPW_TRY(read_size(keys, either(keys, facts->conv_width_key, facts->other_conv_width_key), 2,
                      SPW_MOST_CONV_WIDTH, facts->conv_width, &m->conv_width));
    SPW_TRY(read_biases(m, keys, facts));
    if (m->kind != SPW_MIXER_CONV && m->kind != SPW_MIXER_LRU) /* there it has none */
        SPW_TRY(read_act(out, keys, facts->act_key));
    m->grouped = facts->grouped;
    m->grouped_rates = facts->grouped || facts->grouped_rates;
    m->tiled = facts->tiled;
    m->norm = facts->norm;
    m->eps = out->rms_eps;
    switch (m->kind) {
    case SPW_MIXER_CONV:
        m->conv_channels = out->hidden;
        return 0;
    case SPW_MIXER_DELTA:
        SPW_TRY(read_heads(m, keys, facts));
        SPW_TRY(source->gguf ? read_all_values(m, keys)
                             : read_size(keys, facts->value_dim_key, 1, MOST_VALUE_DIM,
                                         facts->value_dim, &m->value_dim));
        m->conv_channels = 2 * m->key_heads * m->key_dim + m->heads * m->value_dim;
        m->gate_norm = m->norm_first = true;
        return 0;
    case SPW_MIXER_LRU:
        return read_lru(out, keys);
    case SPW_MIXER_SSD:
        return read_ssd(out, keys, facts);
    case SPW_MIXER_SCAN:
        return read_scan(out, keys, facts);
    default:
        return spw_keys_refuse(keys, "model_type", "layers that this program computes");
    }
}
