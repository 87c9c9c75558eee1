/* Keys of a GGUF file that have a number for each layer, as config.json says it: one number for all
 * layers, one for each kind of layers, or one from which another follows. See config_parts.h. */
#include "model/config/config_parts.h"

#include <stdio.h>
#include <string.h>

struct layers {
    const struct spw_config_gguf *facts;
    const struct spw_family *family;
    const struct spw_keys *keys;
    uint32_t n;
    uint32_t n_stored; /* those that store keys and values come first */
};

static int put(const struct layers *l, const char *key, json_t *value)
{
    if (!json_object_set_new(l->facts->keys, key, value))
        return 0;
    return spw_fail(l->keys->err, -ENOMEM, "%s: out of memory", l->keys->file);
}

/* ---- which layers share a number: 0 or 1 ---- */

static int in_all(const struct layers *l, uint32_t layer)
{
    (void)l;
    (void)layer;
    return 0;
}

/* 1: the layer has no window. Without a list every n-th layer has none: n is in the key, or
 * follows from the family. */
static int by_kind(const struct layers *l, uint32_t layer)
{
    const json_t *value = json_object_get(l->facts->keys, "attention.sliding_window_pattern");
    const json_int_t found = json_integer_value(value);
    const json_int_t pattern = found > 0 ? found : l->family->window_pattern;
    const bool slides = json_is_array(value) ? json_is_true(json_array_get(value, layer))
                                             : (layer + 1) % pattern != 0;
    return !slides || (l->family->last_full && layer + 1 == l->n);
}

/* 1: the layer reads the keys and values of another one. */
static int by_storage(const struct layers *l, uint32_t layer)
{
    return layer >= l->n_stored;
}

/* Replaces a list by its first number of layers of class 0, or of class 1 if there is no other.
 * two[]: the numbers of both classes, 0 where there is none, or where the key is no list. */
static int read_two(const struct layers *l, const char *key,
                    int (*class_of)(const struct layers *, uint32_t), const char *expected,
                    json_int_t two[2])
{
    const json_t *list = json_object_get(l->facts->keys, key);
    two[0] = two[1] = 0;
    if (!json_is_array(list))
        return 0;
    if (json_array_size(list) < l->n)
        return spw_keys_refuse(l->keys, key, "a number, or one for each layer");
    for (uint32_t i = 0; i < l->n; i++) {
        const json_int_t x = json_integer_value(json_array_get(list, i));
        json_int_t *of_class = &two[class_of(l, i)];
        if (x <= 0 || (*of_class && *of_class != x))
            return spw_keys_refuse(l->keys, key, expected);
        *of_class = x;
    }
    return put(l, key, json_integer(two[0] ? two[0] : two[1]));
}

/* ---- which layers have a state ---- */

static int put_types(const struct layers *l, bool (*mixes)(const json_t *value, uint32_t layer),
                     const json_t *value)
{
    const char *word = l->family->mixer.word;
    json_t *list = json_array();
    int rc = list ? 0 : -1;
    for (uint32_t i = 0; i < l->n && !rc; i++)
        rc = json_array_append_new(list, json_string(mixes(value, i) ? word : "full_attention"));
    return put(l, "layer_types", list);
}

static bool is_true_at(const json_t *value, uint32_t layer)
{
    return json_is_true(json_array_get(value, layer));
}

static bool has_no_heads(const json_t *value, uint32_t layer)
{
    return json_integer_value(json_is_array(value) ? json_array_get(value, layer) : value) == 0;
}

/* A layer without KV heads is one with a state, unless a rule or a list of its own says which
 * layers are. The other layers have the same number of heads. */
static int read_mixed(const struct layers *l)
{
    const char *key = "attention.head_count_kv", *own = "attention.recurrent_layers";
    const json_t *heads = json_object_get(l->facts->keys, key);
    const json_t *list = spw_keys_value(l->keys, own);
    json_int_t n = 0;
    if (list) /* it wins */
        spw_keys_value(l->keys, "full_attention_interval");
    if (list && (!json_is_array(list) || json_array_size(list) < l->n))
        return spw_keys_refuse(l->keys, own, "a truth value for each layer");
    if (list)
        return put_types(l, is_true_at, list);
    if (l->family->mixer.interval || !heads)
        return 0;
    SPW_TRY(put_types(l, has_no_heads, heads));
    if (!json_is_array(heads)) /* no layer attends with 0 heads */
        return json_integer_value(heads) ? 0 : put(l, key, json_integer(1));
    if (json_array_size(heads) < l->n)
        return spw_keys_refuse(l->keys, key, "a number, or one for each layer");
    for (uint32_t i = 0; i < l->n; i++) {
        const json_int_t its = json_integer_value(json_array_get(heads, i));
        if (its < 0 || (its && n && its != n))
            return spw_keys_refuse(l->keys, key, "0, or the same number as in other layers");
        n = its ? its : n;
    }
    return put(l, key, json_integer(n));
}

/* In a family of blocks the tensors say what each layer is. Layers without attention have 0 KV
 * heads, and those without an mlp a width of 0. */
static int read_blocks(const struct layers *l)
{
    const char *key = "attention.head_count_kv";
    const json_t *heads = json_object_get(l->facts->keys, key);
    json_int_t most = json_integer_value(heads);
    for (size_t i = 0; i < json_array_size(heads); i++) {
        const json_int_t its = json_integer_value(json_array_get(heads, i));
        if (its < 0 || (its && most && its != most))
            return spw_keys_refuse(l->keys, key, "0, or the same number as in other layers");
        most = its ? its : most;
    }
    if (heads && !most && strchr(json_string_value(l->facts->blocks), '*'))
        return spw_keys_refuse(l->keys, key, "a number above 0: a layer has attention");
    SPW_TRY(put(l, key, json_integer(most ? most : 1)));
    SPW_TRY(
        put(l, "feed_forward_length", json_integer(l->facts->mlp_width ? l->facts->mlp_width : 1)));
    return put(l, "hybrid_override_pattern", json_incref(l->facts->blocks));
}

/* ---- keys ---- */

static int read_kv_heads(const struct layers *l)
{
    json_int_t heads[2];
    const bool own = l->family->own_full_kv;
    SPW_TRY(read_two(l, "attention.head_count_kv", own ? by_kind : in_all,
                     own ? "a number for each kind of layers" : "the same number for all layers",
                     heads));
    return heads[1] ? put(l, "num_global_key_value_heads", json_integer(heads[1])) : 0;
}

static int read_widths(const struct layers *l)
{
    const char *key = "feed_forward_length";
    const char *expected = l->family->shares_kv
                               ? "a number for layers that store keys and values, and the same or "
                                 "twice as much for those that read them"
                               : "the same number for all layers";
    json_int_t widths[2];
    SPW_TRY(read_two(l, key, l->family->shares_kv ? by_storage : in_all, expected, widths));
    const bool wide = widths[1] && widths[1] == 2 * widths[0];
    if (widths[1] && widths[1] != widths[0] && !wide)
        return spw_keys_refuse(l->keys, key, expected);
    return wide ? put(l, "use_double_wide_mlp", json_true()) : 0;
}

int spw_config_gguf_layers(const struct spw_config_gguf *facts, const struct spw_family *family,
                           const struct spw_keys *keys)
{
    static const char *const made[] = {
        "num_global_key_value_heads", "use_double_wide_mlp", "attention_k_eq_v",
        "enable_moe_block",           "layer_types",         "hybrid_override_pattern"};
    struct layers l = {.facts = facts, .family = family, .keys = keys};
    uint32_t n_readers = 0, n_more = 0;
    json_int_t same[2], n_experts = 0;
    for (size_t i = 0; i < sizeof made / sizeof *made; i++)
        json_object_del(facts->keys, made[i]);
    SPW_TRY(spw_keys_u32(keys, "block_count", 0, UINT32_MAX, &l.n));
    if (family->predicts_next)
        SPW_TRY(spw_keys_u32(keys, "nextn_predict_layers", 0, l.n, &n_more));
    l.n -= n_more;
    if (family->shares_kv)
        SPW_TRY(spw_keys_u32(keys, "attention.shared_kv_layers", 0, l.n, &n_readers));
    l.n_stored = l.n - n_readers;
    SPW_TRY(read_two(&l, "attention.head_count", in_all, "the same number for all layers", same));
    SPW_TRY(
        read_two(&l, "expert_feed_forward_length", in_all, "the same number for all layers", same));
    if (family->mixer.kind && !family->mixes_only)
        SPW_TRY((family->blocks ? read_blocks : read_mixed)(&l));
    SPW_TRY(read_kv_heads(&l));
    SPW_TRY(read_widths(&l));
    n_experts = json_integer_value(json_object_get(facts->keys, "expert_count"));
    if (family->own_full_kv && facts->v_is_k)
        SPW_TRY(put(&l, "attention_k_eq_v", json_true()));
    return family->experts.enable_key && n_experts > 0
               ? put(&l, family->experts.enable_key, json_true())
               : 0;
}
