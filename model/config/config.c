/* Reads config.json and generation_config.json into one descriptor: see config.h. A family is a row
 * of config_families.c; config_parts.h says what each of the files config_*.c reads. The keys of a
 * GGUF file are read here, too, under other names (config_gguf.c). */
#include "model/config/config.h"

#include "model/config/config_parts.h"

#include <stdio.h>
#include <string.h>

/* Larger than any model: see config_parts.h. */
#define MAX_HIDDEN (1u << 20)
#define MAX_HEADS 4096

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
    SPW_TRY(SPW_OR_NULL(spw_keys_u32, keys, "num_key_value_heads", 1, MAX_HEADS, &kv->n_heads));
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
    SPW_TRY(SPW_OR_NULL(spw_keys_u32, keys, "head_dim", 2, SPW_MOST_HEAD_DIM, &kv->head_dim));
    return kv->head_dim % 2 ? spw_keys_refuse(keys, "head_dim", "an even number") : 0;
}

/* LFM2 narrows a dense mlp to two thirds, multiplies that, and rounds it up. */
static int adjust_width(struct spw_model_config *out, const struct spw_keys *keys)
{
    bool adjusts = true;
    double factor = 1;
    uint32_t multiple = 256;
    SPW_TRY(spw_keys_u32(keys, "block_ff_dim", 1, MAX_WIDTH, &out->intermediate));
    SPW_TRY(spw_keys_bool(keys, "block_auto_adjust_ff_dim", &adjusts));
    SPW_TRY(SPW_OR_NULL(spw_keys_number, keys, "block_ffn_dim_multiplier", 1e-3, 1e3, &factor));
    SPW_TRY(spw_keys_u32(keys, "block_multiple_of", 1, MAX_WIDTH, &multiple));
    if (!adjusts)
        return 0;
    out->intermediate = (uint32_t)(2 * (uint64_t)out->intermediate / 3);
    if (!spw_keys_is_null(keys, "block_ffn_dim_multiplier")) {
        const uint64_t width = (uint64_t)(factor * out->intermediate);
        out->intermediate =
            (uint32_t)spw_min_u64(spw_div_up(width, multiple) * multiple, (uint64_t)MAX_WIDTH + 1);
    }
    return out->intermediate && out->intermediate <= MAX_WIDTH
               ? 0
               : spw_keys_refuse(keys, "intermediate_size", "a width that stays one");
}

/* Whether the first layer that predicts further tokens sees all positions; the program has no other
 * ones. */
static bool mtp_sees_all(const struct spw_keys *keys)
{
    const json_t *types = spw_keys_value(keys, "mtp_layer_types");
    const char *type = json_string_value(json_array_get(types, 0));
    return !type || !strcmp(type, "full_attention");
}

/* Layers that predict further tokens: folders do not always say how many. */
static int read_more_layers(struct spw_model_config *out, const struct spw_config_source *source)
{
    static const char *const names[] = {"num_nextn_predict_layers", "mtp_num_hidden_layers"};
    const uint32_t most = source->gguf ? out->n_layers - 1 : MAX_LAYERS;
    uint32_t n = 0;
    if (!source->family->predicts_next)
        return 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        SPW_TRY(SPW_OR_NULL(spw_keys_u32, &source->text, names[i], 0, most, &n));
    out->n_more_layers = source->gguf ? n : MAX_LAYERS;
    out->n_layers -= source->gguf ? n : 0; /* a GGUF file counts those layers, too */
    out->may_add_mtp = source->family->may_add_mtp && mtp_sees_all(&source->text);
    out->mtp_beside = out->may_add_mtp && source->gguf && !n;
    if (n && out->may_add_mtp)
        spw_config_rule(out, "the layer that predicts further tokens (MTP) proposes drafts, if "
                             "they are asked for, and is left out else");
    else if (n)
        spw_config_rule(out, "layers that predict further tokens (MTP) are left out");
    return 0;
}

static int read_sizes(struct spw_model_config *out, const struct spw_config_source *source)
{
    const struct spw_keys *keys = &source->text;
    if (source->family->blocks)
        SPW_TRY(spw_config_count_blocks(keys, &out->n_layers));
    else
        SPW_TRY(require_u32(keys, "num_hidden_layers", MAX_LAYERS, &out->n_layers));
    SPW_TRY(read_more_layers(out, source));
    SPW_TRY(require_u32(keys, "hidden_size", MAX_HIDDEN, &out->hidden));
    out->intermediate = source->family->width;
    if (!source->family->mixes_only) /* other numbers have these names there */
        SPW_TRY(require_u32(
            keys, source->family->width_key ? source->family->width_key : "intermediate_size",
            MAX_WIDTH, &out->intermediate));
    if (source->family->adjusts_width && !source->gguf)
        SPW_TRY(adjust_width(out, keys));
    if (source->family->halves_width && !(out->intermediate /= 2))
        return spw_keys_refuse(keys, "intermediate_size", "at least 2");
    out->vocab = source->family->vocab;
    SPW_TRY(require_u32(keys, "vocab_size", MAX_VOCAB, &out->vocab));
    out->max_positions = source->family->max_positions;
    if (!out->max_positions && !spw_keys_has(keys, "max_position_embeddings"))
        return spw_keys_refuse(keys, "max_position_embeddings", "the length of the context");
    SPW_TRY(spw_keys_u64(keys, "max_position_embeddings", 1, MAX_POSITIONS, &out->max_positions));
    double eps = source->family->rms_eps > 0 ? source->family->rms_eps : 1e-6;
    const char *eps_key = source->family->eps_key;
    if (source->gguf || !source->family->norm_bare) /* transformers has no key for it there */
        SPW_TRY(spw_keys_number(keys, eps_key ? eps_key : "rms_norm_eps", 0, 1, &eps));
    out->rms_eps = (float)eps;
    if (source->family->post_eps > 0) {
        eps = source->family->post_eps;
        SPW_TRY(spw_keys_number(keys, "post_norm_eps", 0, 1, &eps));
    }
    out->post_eps = (float)eps;
    out->n_heads = 1; /* no layer attends */
    out->kv[0] = (struct spw_kv_shape){.n_heads = 1, .head_dim = 2};
    if (!source->family->mixes_only)
        SPW_TRY(read_heads(out, source, &out->kv[0]));
    for (int k = 1; k < SPW_LAYER_KINDS; k++)
        out->kv[k] = out->kv[0];
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
        SPW_TRY(SPW_OR_NULL(spw_keys_string, places[i], key, &asked));
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
    const struct spw_rope_facts *rope = &source->family->rope;
    SPW_TRY(spw_config_refuse_foreign(source));
    SPW_TRY(read_sizes(out, source));
    SPW_TRY(spw_config_count_stacks(out, source));
    const uint32_t n_most = out->n_layers + 1; /* spw_config_add_mtp */
    snprintf(out->model_type, sizeof out->model_type, "%s", source->model_type);
    out->wrapper = source->wrapper;
    SPW_TRY(spw_config_read_operations(out, source));
    SPW_TRY(spw_config_read_stored(out, source));
    SPW_TRY(spw_config_read_encoder(out, source));
    out->layer_kinds = spw_alloc_zero(n_most, 1);
    out->has_experts = spw_alloc_zero(n_most, sizeof *out->has_experts);
    out->rotates = spw_alloc_zero(n_most, sizeof *out->rotates);
    out->kv_layers = spw_alloc_zero(n_most, sizeof *out->kv_layers);
    out->has_mlp = spw_alloc_zero(n_most, sizeof *out->has_mlp);
    out->state_slices = spw_alloc_zero(n_most, sizeof *out->state_slices);
    if (!out->layer_kinds || !out->has_experts || !out->has_mlp || !out->state_slices ||
        !out->rotates || !out->kv_layers)
        return spw_fail(source->top.err, -ENOMEM, "%s: out of memory", source->top.file);
    for (uint32_t l = 0; l < out->n_layers; l++) {
        out->has_mlp[l] = !source->family->mixes_only;
        out->state_slices[l] = SPW_NO_SLICE;
    }
    SPW_TRY(spw_config_read_rotation(out, source));
    SPW_TRY(spw_config_read_layer_kinds(out, source));
    spw_config_set_stacks(out);
    SPW_TRY(spw_config_read_mixer(out, source));
    SPW_TRY(spw_config_read_kv(out, source));
    SPW_TRY(spw_config_read_experts(out, source));
    SPW_TRY(spw_config_read_rope(out, &source->text, rope));
    if (source->gguf && source->gguf->rope_factors)
        SPW_TRY(spw_config_add_rope_factors(out, &source->text, rope, SPW_ROPE_FACTORS));
    if (source->gguf && source->gguf->long_factors)
        SPW_TRY(spw_config_add_rope_factors(out, &source->text, rope, SPW_ROPE_LONG));
    SPW_TRY(read_cache(out, source, generation));
    SPW_TRY(spw_config_read_speech(out, source, generation));
    return spw_config_read_tokens(out, source, generation);
}

/* The word Infinity is no JSON, but Python writes it. Returns a copy with a large number in its
 * place; owned. NULL: out of memory. */
static char *without_infinity(const char *text, size_t bytes)
{
    static const char word[] = "Infinity", number[] = "1e308   ";
    const size_t n = sizeof word - 1;
    char *copy = spw_alloc(bytes + 1);
    bool quoted = false;
    if (!copy)
        return NULL;
    memcpy(copy, text, bytes);
    copy[bytes] = 0;
    for (size_t i = 0; i < bytes; i++) {
        quoted ^= copy[i] == '"';
        i += quoted && copy[i] == '\\';
        if (!quoted && i + n <= bytes && !memcmp(copy + i, word, n))
            memcpy(copy + i, number, n);
    }
    return copy;
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
    char *finite = without_infinity(text->config, text->config_bytes);
    int rc = finite ? spw_json_load(finite, text->config_bytes, config_name, 0, &config, err)
                    : spw_fail(err, -ENOMEM, "%s: out of memory", config_name);
    spw_free(finite);
    if (!rc && text->generation)
        rc = spw_json_load(text->generation, text->generation_bytes, generation_name, 0,
                           &generation, err);
    if (!rc) {
        struct spw_config_source source = {
            .top = {.file = config_name, .prefix = "", .object = config, .err = err}};
        struct spw_keys second = {
            .file = generation_name, .prefix = "", .object = generation, .err = err};
        rc = spw_config_read_family(&source);
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
    spw_free(config->has_mlp);
    spw_free(config->state_slices);
    spw_free(config->rotates);
    spw_free(config->kv_layers);
    spw_free(config->first_slices);
    spw_free(config->slice_layers);
    spw_free(config->slice_kinds);
    spw_free(config->rope_factors);
    spw_free(config->speech.languages);
    for (int k = 0; k <= SPW_TOKEN_LISTS; k++)
        spw_free(config->rule_tokens[k]);
    *config = (struct spw_model_config){0};
}
