/* The keys that say what layers store of keys and values: see config_parts.h. */
#include "model/config/config_parts.h"

#include <stdio.h>

uint32_t spw_config_last_reader(const struct spw_model_config *c, uint32_t layer)
{
    uint32_t last = c->n_layers - 1;
    while (c->kv_layers[last] != layer)
        last--;
    return last;
}

uint32_t spw_config_n_growing(const struct spw_model_config *c, enum spw_layer_kind kind)
{
    uint32_t n_waiting = 0, most = 0;
    for (uint32_t l = 0; l < c->n_layers; l++) {
        const uint32_t kept = c->kv_layers[l];
        const bool counts = kind == SPW_LAYER_KINDS || c->layer_kinds[kept] == kind;
        const uint32_t slices = counts ? spw_config_layer_slices(c, kept) : 0;
        const bool is_last = spw_config_last_reader(c, kept) == l;
        most = spw_max_u32(most, n_waiting + (kept == l ? slices : 0));
        if (kept == l)
            n_waiting += is_last ? 0 : slices;
        else
            n_waiting -= is_last ? slices : 0;
    }
    return most;
}

/* ---- which layers store keys and values ---- */

/* The last layer before `end` of the kind of `layer`; end: there is none. */
static uint32_t find_stored(const struct spw_model_config *c, uint32_t layer, uint32_t end)
{
    for (uint32_t l = end; l-- > 0;)
        if (c->layer_kinds[l] == c->layer_kinds[layer])
            return l;
    return end;
}

static int read_readers(struct spw_model_config *out, const struct spw_config_source *source)
{
    const struct spw_keys *keys = &source->text;
    uint32_t n_readers = 0;
    if (source->family->shares_kv)
        SPW_TRY(spw_keys_u32(keys, "num_kv_shared_layers", 0, out->n_layers - 1, &n_readers));
    const uint32_t end = out->n_layers - n_readers;
    for (uint32_t l = 0; l < out->n_layers; l++) {
        const bool cross = out->layer_kinds[l] == SPW_LAYER_CROSS, stores = l < end;
        out->kv_layers[l] = cross ? l - 1 : stores ? l : find_stored(out, l, end);
        if (!stores && out->kv_layers[l] == end) {
            char expected[96];
            snprintf(expected, sizeof expected,
                     "so few layers that a %s layer is before them: layer %u reads its KV",
                     spw_layer_kinds[out->layer_kinds[l]].name, l);
            return spw_keys_refuse(keys, "num_kv_shared_layers", expected);
        }
    }
    return 0;
}

/* ---- shapes ---- */

/* A config that transformers has saved lists the shapes of layers that differ from the others. All
 * layers of a kind must have the same. */
static int read_listed(struct spw_model_config *out, const struct spw_keys *keys,
                       const json_t *list)
{
    const struct spw_kv_shape plain = out->kv[out->window_kind];
    bool known[SPW_LAYER_KINDS] = {false};
    for (uint32_t l = 0; l < out->n_layers; l++) {
        struct spw_kv_shape kv = plain, *all = &out->kv[out->layer_kinds[l]];
        char number[16], prefix[64], list_prefix[64];
        const json_t *item = NULL;
        snprintf(number, sizeof number, "%u", l);
        snprintf(prefix, sizeof prefix, "%sper_layer_config.%u.", keys->prefix, l);
        snprintf(list_prefix, sizeof list_prefix, "%sper_layer_config.", keys->prefix);
        struct spw_keys group = *keys, its = *keys;
        group.object = list;
        group.prefix = list_prefix;
        SPW_TRY(spw_keys_object(&group, number, &item));
        its.object = item;
        its.prefix = prefix;
        SPW_TRY(SPW_OR_NULL(spw_keys_u32, &its, "head_dim", 2, SPW_MOST_HEAD_DIM, &kv.head_dim));
        SPW_TRY(
            SPW_OR_NULL(spw_keys_u32, &its, "num_key_value_heads", 1, out->n_heads, &kv.n_heads));
        if (json_object_size(item) >
            (size_t)spw_keys_has(&its, "head_dim") + spw_keys_has(&its, "num_key_value_heads"))
            return spw_keys_refuse(&group, number, "head_dim and num_key_value_heads only");
        if (known[out->layer_kinds[l]] &&
            (all->head_dim != kv.head_dim || all->n_heads != kv.n_heads))
            return spw_keys_refuse(&group, number, "the shape of other layers of its kind");
        known[out->layer_kinds[l]] = true;
        *all = kv;
    }
    return 0;
}

static int read_full_shape(struct spw_model_config *out, const struct spw_config_source *source)
{
    const struct spw_keys *keys = &source->text;
    struct spw_kv_shape *full = &out->kv[out->full_kind];
    const json_t *list = NULL;
    SPW_TRY(spw_keys_object(keys, "per_layer_config", &list));
    if (list)
        return read_listed(out, keys, list);
    full->head_dim = source->family->full_head_dim;
    SPW_TRY(spw_keys_u32(keys, "global_head_dim", 2, SPW_MOST_HEAD_DIM, &full->head_dim));
    if (out->v_is_k[out->full_kind] || source->gguf)
        SPW_TRY(SPW_OR_NULL(spw_keys_u32, keys, "num_global_key_value_heads", 1, out->n_heads,
                            &full->n_heads));
    return 0;
}

static int check_shape(const struct spw_model_config *out, const struct spw_keys *keys)
{
    const struct spw_kv_shape *full = &out->kv[out->full_kind];
    char expected[80];
    snprintf(expected, sizeof expected, "a divisor of %s, %u",
             spw_keys_name(keys, "num_attention_heads"), out->n_heads);
    if (out->n_heads % full->n_heads)
        return spw_keys_refuse(keys, "num_global_key_value_heads", expected);
    return !full->head_dim || full->head_dim % 2
               ? spw_keys_refuse(keys, "global_head_dim", "an even number")
               : 0;
}

/* A kind that no layer has must not count where the widest shape does. Its rope will be that of
 * full layers, so its shape is theirs. */
static void forget_unused(struct spw_model_config *out)
{
    bool used[SPW_LAYER_KINDS] = {false};
    for (uint32_t l = 0; l < out->n_layers; l++)
        used[out->layer_kinds[l]] = true;
    for (int k = 0; k < SPW_LAYER_KINDS; k++)
        if (!used[k])
            out->kv[k] = out->kv[used[out->full_kind] ? out->full_kind : out->layer_kinds[0]];
}

/* ---- slices ---- */

static uint64_t width_of(const struct spw_kv_shape *kv)
{
    return (uint64_t)kv->n_heads * kv->head_dim;
}

/* A kind is divided into slices of equal width, as many as possible: each is at least as wide as
 * the narrowest layer. */
static void divide_kinds(struct spw_model_config *out)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t l = 0; l < out->n_layers; l++)
        if (spw_config_attends(out, l))
            least = spw_min_u64(least, spw_config_kv_width(out, l));
    for (int k = 0; k < SPW_LAYER_KINDS; k++) {
        struct spw_kv_shape *kv = &out->kv[k];
        if (k == SPW_LAYER_SOURCE) { /* heads that no tile of a session stores */
            kv->v_dim = kv->head_dim;
            kv->n_slices = 1;
            continue;
        }
        if (!spw_layer_has_tiles((enum spw_layer_kind)k)) {
            *kv = (struct spw_kv_shape){0};
            continue;
        }
        kv->v_dim = kv->head_dim;
        kv->n_slices = 1;
        for (uint32_t n = 2; n <= SPW_MOST_SLICES; n++)
            if (kv->n_heads % n == 0 && width_of(kv) / n >= least)
                kv->n_slices = n;
    }
}

/* first_slices and what follows have their memory. */
static void number_slices(struct spw_model_config *out)
{
    out->n_slices = 0;
    for (uint32_t l = 0; l < out->n_layers; l++) {
        const bool stores = spw_config_stores_kv(out, l);
        out->first_slices[l] = stores ? out->n_slices : out->first_slices[out->kv_layers[l]];
        for (uint32_t i = 0; i < spw_config_layer_slices(out, l) && stores; i++) {
            out->slice_layers[out->n_slices] = l;
            out->slice_kinds[out->n_slices++] = out->layer_kinds[l];
        }
    }
    for (uint32_t l = 0; l < out->n_layers; l++)
        if (out->layer_kinds[l] == SPW_LAYER_STATE || spw_config_has_state(out, l)) {
            out->state_slices[l] = out->n_slices;
            out->slice_layers[out->n_slices] = l;
            out->slice_kinds[out->n_slices++] = SPW_LAYER_STATE;
        }
}

static int open_slices(struct spw_model_config *out, const struct spw_keys *keys)
{
    const size_t n = (size_t)out->n_layers + 1; /* spw_config_add_mtp */
    out->first_slices = spw_alloc_zero(n, sizeof *out->first_slices);
    out->slice_layers = spw_alloc_zero(n * (SPW_MOST_SLICES + 1), sizeof *out->slice_layers);
    out->slice_kinds = spw_alloc_zero(n * (SPW_MOST_SLICES + 1), sizeof *out->slice_kinds);
    if (!out->first_slices || !out->slice_layers || !out->slice_kinds)
        return spw_fail(keys->err, -ENOMEM, "%s: out of memory", keys->file);
    number_slices(out);
    return 0;
}

int spw_config_add_mtp(struct spw_model_config *c, struct spw_error *err)
{
    const uint32_t layer = c->n_layers;
    spw_error_clear(err);
    if (!c->may_add_mtp)
        return spw_fail(err, -EINVAL,
                        "the config (model_type %s): the model has no layer that predicts further "
                        "tokens (MTP) and could propose drafts; expected other options.drafts",
                        c->model_type);
    c->mtp = true;
    c->n_layers++;
    c->layer_kinds[layer] = (uint8_t)c->full_kind;
    c->kv_layers[layer] = layer;
    c->state_slices[layer] = SPW_NO_SLICE;
    c->rotates[layer] = c->mtp_rotates;
    c->has_mlp[layer] = true;
    c->has_experts[layer] = c->experts.n && c->mtp_experts;
    if (c->n_more_layers && c->n_more_layers < MAX_LAYERS) /* of a GGUF file: their number */
        c->n_more_layers--;
    number_slices(c);
    return 0;
}

/* ---- numbers of each layer ---- */

static int read_inputs(struct spw_model_config *out, const struct spw_config_source *source)
{
    const struct spw_keys *keys = &source->text;
    char expected[64];
    if (!source->family->layer_inputs)
        return 0;
    out->layer_inputs = source->gguf ? 0 : source->family->layer_inputs;
    out->input_vocab =
        source->gguf ? spw_max_u32(source->gguf->input_vocab, out->vocab) : source->family->vocab;
    SPW_TRY(spw_keys_u32(keys, "hidden_size_per_layer_input", 0, 1 << 16, &out->layer_inputs));
    SPW_TRY(spw_keys_u32(keys, "vocab_size_per_layer_input", 1, 1 << 24, &out->input_vocab));
    snprintf(expected, sizeof expected, "at least vocab_size, %u", out->vocab);
    if (out->layer_inputs && out->input_vocab < out->vocab)
        return spw_keys_refuse(keys, "vocab_size_per_layer_input", expected);
    return 0;
}

int spw_config_read_kv(struct spw_model_config *out, const struct spw_config_source *source)
{
    const struct spw_keys *keys = &source->text;
    if (source->family->shares_kv)
        SPW_TRY(spw_keys_bool(keys, "use_double_wide_mlp", &out->wide_readers));
    if (source->family->own_full_kv) {
        SPW_TRY(spw_keys_bool(keys, "attention_k_eq_v", &out->v_is_k[out->full_kind]));
        SPW_TRY(read_full_shape(out, source));
        SPW_TRY(check_shape(out, keys));
        forget_unused(out);
    }
    SPW_TRY(read_inputs(out, source));
    SPW_TRY(read_readers(out, source));
    divide_kinds(out);
    return open_slices(out, keys);
}
