/* The kind of each layer, a list in the file or a rule of the family: which positions it sees, and
 * whether it rotates queries and keys. */
#include "model/config/config_parts.h"

#include <stdio.h>
#include <string.h>

static const char *window_key(enum spw_window_rule rule)
{
    return rule == SPW_WINDOW_CHUNKS ? "attention_chunk_size" : "sliding_window";
}

static int read_layer_types(struct spw_model_config *out, const struct spw_keys *keys,
                            enum spw_window_rule rule)
{
    const struct spw_layer_kind_row *full = &spw_layer_kinds[out->full_kind];
    const struct spw_layer_kind_row *other = &spw_layer_kinds[out->window_kind];
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
        out->layer_kinds[i] = (uint8_t)(is_full ? out->full_kind : out->window_kind);
    }
    return 0;
}

/* Of a family that also has Mamba layers: these are refused, and layers of a file that does not say
 * their kind are such ones. */
static int check_hybrid(const struct spw_model_config *c, const struct spw_keys *keys)
{
    const char *key = spw_keys_has(keys, "layer_types") ? "layer_types" : "layers_block_type";
    const json_t *list = spw_keys_value(keys, key);
    char text[64];
    if (!json_is_array(list) || json_array_size(list) != c->n_layers) {
        snprintf(text, sizeof text, "\"attention\" for each of %u layers", c->n_layers);
        return spw_keys_refuse(keys, key, text);
    }
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const json_t *item = json_array_get(list, i);
        const char *name = json_is_string(item) ? json_string_value(item) : "";
        if (strcmp(name, "attention") != 0 && strcmp(name, "full_attention") != 0)
            return spw_fail(keys->err, -EINVAL,
                            "%s: %s%s[%u]: found %s, expected \"attention\": this program does not "
                            "compute Mamba layers",
                            keys->file, keys->prefix, key, i,
                            spw_json_describe(item, text, sizeof text));
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
    if (rule == SPW_WINDOW_OPT_IN || rule == SPW_WINDOW_OPT_IN_EVEN || rule == SPW_WINDOW_LATE)
        SPW_TRY(spw_keys_u32(keys, "max_window_layers", 0, UINT32_MAX, &first));
    const bool asks = rule == SPW_WINDOW_PATTERN && source->gguf;
    const json_t *list = asks ? spw_keys_value(keys, "sliding_window_pattern") : NULL;
    const bool listed = json_is_array(list);
    for (uint32_t i = 0; listed && i < out->n_layers; i++)
        if (!json_is_boolean(json_array_get(list, i)))
            return spw_keys_refuse(keys, "sliding_window_pattern", "a truth value for each layer");
    if ((source->family->window_pattern_key || asks) && !listed)
        SPW_TRY(SPW_OR_NULL(spw_keys_u32, keys, "sliding_window_pattern", 1, MAX_LAYERS, &pattern));
    for (uint32_t i = 0; i < out->n_layers; i++) {
        bool sliding =
            listed ? json_is_true(json_array_get(list, i))
                   : (rule == SPW_WINDOW_ALL && slides) ||
                         (rule == SPW_WINDOW_OPT_IN && slides && i >= first) ||
                         (rule == SPW_WINDOW_LATE && slides && i >= first) ||
                         (rule == SPW_WINDOW_OPT_IN_ALL && slides) ||
                         (rule == SPW_WINDOW_UNROTATED && slides && !out->rotates[i]) ||
                         (rule == SPW_WINDOW_OPT_IN_EVEN && slides && i % 2 == 0 && i < first) ||
                         (rule == SPW_WINDOW_CHUNKS && slides && out->rotates[i]) ||
                         (rule == SPW_WINDOW_PATTERN && (i + 1) % pattern);
        out->layer_kinds[i] = (uint8_t)(sliding ? out->window_kind : out->full_kind);
    }
    return 0;
}

int spw_config_read_layer_kinds(struct spw_model_config *out,
                                const struct spw_config_source *source)
{
    const struct spw_keys *keys = &source->text;
    enum spw_window_rule rule = source->family->window_rule;
    uint32_t window = source->family->window;
    const char *key = window_key(rule);
    bool slides = rule == SPW_WINDOW_ALL || rule == SPW_WINDOW_LATE || rule == SPW_WINDOW_PATTERN ||
                  rule == SPW_WINDOW_CHUNKS;
    const bool ignored = (rule == SPW_WINDOW_ALL && !source->family->listed) ||
                         rule == SPW_WINDOW_OPT_IN_ALL; /* the list means nothing */
    out->full_kind = SPW_LAYER_FULL;
    out->window_kind = rule == SPW_WINDOW_CHUNKS ? SPW_LAYER_CHUNKED : SPW_LAYER_SLIDING;
    out->kinds_listed = spw_keys_has(keys, "layer_types") || source->family->hybrid;
    if (source->family->hybrid) /* all layers are full */
        return check_hybrid(out, keys);
    const bool opt_in = rule == SPW_WINDOW_OPT_IN || rule == SPW_WINDOW_OPT_IN_ALL ||
                        rule == SPW_WINDOW_OPT_IN_EVEN || rule == SPW_WINDOW_UNROTATED;
    bool any = false;
    if (opt_in)
        SPW_TRY(spw_keys_bool(keys, "use_sliding_window", &slides));
    if (rule != SPW_WINDOW_NEVER) /* 0 only where windows are off */
        SPW_TRY(
            SPW_OR_NULL(spw_keys_u32, keys, key, slides ? 1 : 0, (uint32_t)MAX_POSITIONS, &window));
    if (spw_keys_is_null(keys, key) || !window)
        slides = false;
    if (out->kinds_listed)
        SPW_TRY(read_layer_types(out, keys, rule));
    else
        SPW_TRY(derive_layer_kinds(out, source, slides));
    if (source->family->last_full)
        out->layer_kinds[out->n_layers - 1] = (uint8_t)out->full_kind;
    for (uint32_t i = 0; i < out->n_layers; i++) {
        const bool windowed = out->layer_kinds[i] == out->window_kind;
        if (ignored && windowed != slides)
            return spw_keys_refuse(keys, "layer_types",
                                   "nothing, or layers as sliding_window makes them: transformers "
                                   "ignores the list here");
        any = any || windowed;
        if (windowed)
            out->window = window;
        if (source->family->skips_full)
            out->rotates[i] = windowed || (source->family->skips_in_windowed && !slides);
    }
    if (!any || slides)
        return 0;
    if (!opt_in || spw_keys_is_null(keys, key))
        return spw_keys_refuse(keys, key,
                               rule == SPW_WINDOW_CHUNKS ? "a number: some layers are chunked"
                                                         : "a number: some layers are sliding");
    return spw_keys_refuse(keys, "use_sliding_window", "true: layer_types has sliding layers");
}

/* Whether a model has rope. */
static int read_rope_switch(const struct spw_config_source *source, bool *rotates)
{
    const char *type = NULL;
    *rotates = true;
    if (source->gguf && source->family->multiplied)
        return spw_keys_bool(&source->text, "has_rope", rotates);
    if (!source->family->hybrid)
        return 0;
    SPW_TRY(SPW_OR_NULL(spw_keys_string, &source->text, "position_embedding_type", &type));
    *rotates = type && !strcmp(type, "rope");
    return 0;
}

/* Which layers rotate q and k. */
static int read_rotates(struct spw_model_config *out, const struct spw_config_source *source)
{
    const struct spw_keys *keys = &source->text;
    const json_t *list = spw_keys_value(keys, "no_rope_layers");
    uint32_t interval = 4;
    bool rotates;
    char expected[64];
    SPW_TRY(read_rope_switch(source, &rotates));
    if (source->family->skips_rope)
        SPW_TRY(spw_keys_u32(keys, "no_rope_layer_interval", 1, MAX_LAYERS, &interval));
    for (uint32_t i = 0; i < out->n_layers; i++)
        out->rotates[i] = rotates && (!source->family->skips_rope || (i + 1) % interval);
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

int spw_config_read_rotation(struct spw_model_config *out, const struct spw_config_source *source)
{
    SPW_TRY(read_rotates(out, source));
    return source->family->tunes_unrotated ? read_growth(out, &source->text) : 0;
}
