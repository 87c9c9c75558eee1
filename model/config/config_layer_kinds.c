/* The kind of each layer, a list in the file or a rule of the family: which positions it sees, and
 * whether it rotates queries and keys. */
#include "model/config/config_parts.h"

#include <stdio.h>
#include <string.h>

static const char *window_key(const struct spw_family *family)
{
    if (family->window_key)
        return family->window_key;
    return family->window_rule == SPW_WINDOW_CHUNKS ? "attention_chunk_size" : "sliding_window";
}

/* Where a layer is in a pattern that counts from 1 on; in some families the last layer is 0. */
static uint32_t place_in_pattern(const struct spw_model_config *c, const struct spw_family *family,
                                 uint32_t layer)
{
    return family->counts_back ? c->n_layers - 1 - layer : layer + 1;
}

static int read_layer_types(struct spw_model_config *out, const struct spw_keys *keys,
                            enum spw_window_rule rule)
{
    const char *const names[] = {spw_layer_kinds[out->full_kind].type,
                                 spw_layer_kinds[out->window_kind].type};
    char text[96];
    snprintf(text, sizeof text, "\"%s\" or \"%s\"", names[0], names[1]);
    SPW_TRY(spw_keys_choices(keys, "layer_types", out->n_layers, names, text, out->layer_kinds));
    for (uint32_t i = 0; i < out->n_layers; i++) {
        const bool windowed = out->layer_kinds[i];
        out->layer_kinds[i] = (uint8_t)(windowed ? out->window_kind : out->full_kind);
        if (windowed && rule == SPW_WINDOW_NEVER) {
            snprintf(text, sizeof text, "only full_attention: %s models have no other layers",
                     out->model_type);
            return spw_keys_refuse(keys, "layer_types", text);
        }
    }
    return 0;
}

static bool is_word(const char *text, const char *word)
{
    return word && !strcmp(text, word);
}

/* A list of the kinds of layers, in a family with layers that have a state. */
static int read_mixed_types(struct spw_model_config *c, const struct spw_keys *keys,
                            const char *key, const struct spw_mixer_facts *facts)
{
    const json_t *list = spw_keys_value(keys, key);
    char expected[160];
    snprintf(expected, sizeof expected,
             "a list of %u (num_hidden_layers) words, \"full_attention\" or \"%s\"", c->n_layers,
             facts->word);
    if (json_array_size(list) != c->n_layers)
        return spw_keys_refuse(keys, key, expected);
    for (uint32_t l = 0; l < c->n_layers; l++) {
        const json_t *item = json_array_get(list, l);
        const char *text = json_is_string(item) ? json_string_value(item) : "";
        const bool mixes = is_word(text, facts->word) || is_word(text, facts->old_word);
        if (!mixes && !is_word(text, "full_attention") &&
            !(facts->old_word && is_word(text, "attention")))
            return spw_keys_refuse(keys, key, expected);
        c->layer_kinds[l] = (uint8_t)(mixes ? SPW_LAYER_STATE : c->full_kind);
    }
    return 0;
}

/* Numbers of the layers that attend; numbers beyond the last layer mean nothing. */
static int read_attending(struct spw_model_config *c, const struct spw_keys *keys, const char *key)
{
    const json_t *list = spw_keys_value(keys, key);
    bool right = json_is_array(list);
    memset(c->layer_kinds, SPW_LAYER_STATE, c->n_layers);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_int_t layer = json_integer_value(json_array_get(list, i));
        right = right && json_is_integer(json_array_get(list, i));
        if (layer >= 0 && layer < (json_int_t)c->n_layers)
            c->layer_kinds[layer] = (uint8_t)c->full_kind;
    }
    return right ? 0 : spw_keys_refuse(keys, key, "a list of numbers of layers, from 0");
}

/* Which layers of a family have a state, and which attend. */
static int read_mixed_kinds(struct spw_model_config *c, const struct spw_keys *keys,
                            const struct spw_mixer_facts *facts)
{
    uint32_t interval = facts->interval;
    const char *key = "layer_types";
    for (uint32_t l = 0; l < c->n_layers && facts->beside; l++) {
        c->layer_kinds[l] = (uint8_t)c->full_kind;
        c->state_slices[l] = 0; /* spw_config_read_kv numbers them */
    }
    if (facts->beside)
        return 0;
    if (!spw_keys_has(keys, key) && facts->old_list_key && spw_keys_has(keys, facts->old_list_key))
        key = facts->old_list_key;
    c->kinds_listed = spw_keys_has(keys, key);
    if (c->kinds_listed || !(interval || facts->all_attend || facts->all_mix))
        return read_mixed_types(c, keys, key, facts);
    if (facts->attends_key && spw_keys_has(keys, facts->attends_key))
        return read_attending(c, keys, facts->attends_key);
    if (interval)
        SPW_TRY(spw_keys_u32(keys, "full_attention_interval", 1, MAX_LAYERS, &interval));
    for (uint32_t l = 0; l < c->n_layers; l++)
        c->layer_kinds[l] =
            (uint8_t)(facts->all_mix || (interval && (l + 1) % interval) ? SPW_LAYER_STATE
                                                                         : c->full_kind);
    return 0;
}

/* A list of words that is repeated until each layer has one. */
static int read_repeated(struct spw_model_config *c, const struct spw_config_source *source)
{
    static const char *const usual[] = {"recurrent", "recurrent", "attention"};
    const struct spw_keys *keys = &source->text;
    const char *key = source->family->mixer.repeated_key;
    const json_t *list = spw_keys_value(keys, key);
    const size_t n = list ? json_array_size(list) : sizeof usual / sizeof *usual;
    uint32_t window = source->family->window;
    SPW_TRY(spw_keys_u32(keys, source->family->window_key, 1, (uint32_t)MAX_POSITIONS, &window));
    SPW_TRY(spw_keys_u32(keys, "sliding_window", 1, (uint32_t)MAX_POSITIONS, &window));
    for (uint32_t l = 0; l < c->n_layers; l++) {
        const char *word = !n     ? NULL
                           : list ? json_string_value(json_array_get(list, l % n))
                                  : usual[l % n];
        const bool mixes = is_word("recurrent", word);
        if (!mixes && !is_word("attention", word))
            return spw_keys_refuse(keys, key, "a list of \"recurrent\" and \"attention\"");
        c->layer_kinds[l] = (uint8_t)(mixes ? SPW_LAYER_STATE : c->window_kind);
        c->window = mixes ? c->window : window;
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
                         (rule == SPW_WINDOW_PATTERN &&
                          place_in_pattern(out, source->family, i) % pattern);
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
    const char *key = window_key(source->family);
    bool slides = rule == SPW_WINDOW_ALL || rule == SPW_WINDOW_LATE || rule == SPW_WINDOW_PATTERN ||
                  rule == SPW_WINDOW_CHUNKS;
    const bool ignored = (rule == SPW_WINDOW_ALL && !source->family->listed) ||
                         rule == SPW_WINDOW_OPT_IN_ALL; /* the list means nothing */
    out->full_kind = SPW_LAYER_FULL;
    out->mtp_rotates = !source->family->skips_full; /* the MTP layer sees all positions */
    out->window_kind = rule == SPW_WINDOW_CHUNKS ? SPW_LAYER_CHUNKED : SPW_LAYER_SLIDING;
    out->kinds_listed = spw_keys_has(keys, "layer_types") || source->family->blocks;
    if (source->family->blocks)
        return spw_config_read_blocks(out, keys);
    if (source->family->mixer.repeated_key)
        return read_repeated(out, source);
    if (source->family->mixer.kind)
        return read_mixed_kinds(out, keys, &source->family->mixer);
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
        out->mtp_rotates |= source->family->skips_in_windowed && !slides;
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
    *rotates = !source->family->unrotated;
    if (source->gguf && source->family->multiplied)
        return spw_keys_bool(&source->text, "has_rope", rotates);
    if (!source->family->rope_by_type)
        return 0;
    SPW_TRY(SPW_OR_NULL(spw_keys_string, &source->text, "position_embedding_type", &type));
    *rotates = type && !strcmp(type, "rope");
    return 0;
}

/* Which layers rotate q and k: a list says it, with 0 for those that do not, or every 4th one does
 * not. */
static int read_rotates(struct spw_model_config *out, const struct spw_config_source *source)
{
    const struct spw_keys *keys = &source->text;
    const struct spw_family *family = source->family;
    const bool back = family->counts_back;
    const char *key = back ? "layer_rope_theta" : "no_rope_layers";
    const json_t *list = spw_keys_value(keys, key);
    uint32_t interval = 4;
    bool rotates;
    char expected[64];
    SPW_TRY(read_rope_switch(source, &rotates));
    if (family->skips_rope && !back)
        SPW_TRY(spw_keys_u32(keys, "no_rope_layer_interval", 1, MAX_LAYERS, &interval));
    for (uint32_t i = 0; i < out->n_layers; i++)
        out->rotates[i] =
            rotates && (!family->skips_rope || place_in_pattern(out, family, i) % interval);
    bool empty = json_is_array(list) && !json_array_size(list); /* as in released files of llama4 */
    if (!family->skips_rope || !list || json_is_null(list) || (empty && !back))
        return 0;
    snprintf(expected, sizeof expected, "a list of %u (num_hidden_layers) numbers%s", out->n_layers,
             back ? "" : ", 0 or 1");
    if (json_array_size(list) != out->n_layers)
        return spw_keys_refuse(keys, key, expected);
    for (uint32_t i = 0; i < out->n_layers; i++) {
        const json_t *item = json_array_get(list, i);
        const double x = json_number_value(item);
        if (!json_is_number(item) || (!back && (!json_is_integer(item) || (x != 0 && x != 1))))
            return spw_keys_refuse(keys, key, expected);
        out->rotates[i] = x != 0;
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
