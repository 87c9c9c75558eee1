/* What the keys of a GGUF file say of the model: see gguf_model.h. */
#include "model/source/gguf_model.h"

#include <stdio.h>
#include <string.h>

/* Whether a key of the architecture has a number above 0. */
static bool is_above_0(const struct spw_gguf *g, const char *name, const char *end)
{
    char key[128];
    snprintf(key, sizeof key, "%.64s.%s", name, end);
    const struct spw_gguf_value *n = spw_gguf_find(g, key);
    return n && !n->array && n->type != SPW_GGUF_STRING && spw_gguf_number(n, 0) > 0;
}

/* Why a file is refused that people give in place of the model beside it. */
static const char only_a_part[] =
    "a language model; this file is used beside one: it has the part for images or sound, an "
    "adapter, or statistics";

static int refuse_part(const struct spw_keys *keys)
{
    const char *type = NULL;
    SPW_TRY(spw_keys_string(keys, "type", &type));
    return type && (!strcmp(type, "adapter") || !strcmp(type, "imatrix"))
               ? spw_keys_refuse(keys, "type", only_a_part)
               : 0;
}

int spw_gguf_read_architecture(const struct spw_gguf *g, const char *path,
                               const struct spw_gguf_architecture **out, struct spw_error *err)
{
    json_t *object;
    const char *name = NULL;
    if (spw_gguf_object(g, "general.", &object))
        return spw_fail(err, -ENOMEM, "%s: out of memory", path);
    struct spw_keys keys = {.file = path, .prefix = "general.", .object = object, .err = err};
    int rc = refuse_part(&keys);
    if (!rc)
        rc = spw_keys_string(&keys, "architecture", &name);
    *out = rc || !name
               ? NULL
               : spw_gguf_architecture_find(name, is_above_0(g, name, "expert_count"),
                                            is_above_0(g, name, "attention.sliding_window"));
    if (!rc && !*out)
        rc = spw_keys_refuse(&keys, "architecture",
                             name && !strcmp(name, "clip")
                                 ? only_a_part
                                 : "an architecture that docs/models.md lists");
    json_decref(object);
    return rc;
}

static bool is_text(const struct spw_gguf_string *token, const char *text)
{
    return strlen(text) == token->bytes && !memcmp(text, token->at, token->bytes);
}

/* Tokens at which a model ends its message. Files often name one of them only. */
static bool ends_a_message(const struct spw_gguf_string *token)
{
    static const char *const texts[] = {"<|eot_id|>",      "<|im_end|>", "<end_of_turn>",
                                        "<|endoftext|>",   "<|eom_id|>", "<|end_of_text|>",
                                        "<|end_of_turn|>", "<|return|>", "<|end_of_role|>",
                                        "<turn|>",         "<|flush|>"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (is_text(token, texts[i]))
            return true;
    return false;
}

bool spw_gguf_is_control(const struct spw_gguf_string *token, double type)
{
    enum { CONTROL = 3 };
    static const char *const texts[] = {"<start_of_turn>", "<|im_start|>", "<|end|>", "<|call|>",
                                        "<|calls|>"};
    bool found = type == CONTROL || ends_a_message(token);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        found = found || is_text(token, texts[i]);
    return found;
}

static bool has_text(const json_t *keys, const char *key, const char *text)
{
    const char *its = json_string_value(json_object_get(keys, key));
    return its && !strcmp(its, text);
}

/* The first files did not have these keys, and llama.cpp takes the same ids there. Its default for
 * "gpt2" is that of one model (Falcon): in others, token 11 is a comma. */
int spw_gguf_tokenizer_keys(const struct spw_gguf *g, json_t **out, bool *by_default)
{
    static const struct {
        const char *key;
        json_int_t id;
    } ids[] = {{"bos_token_id", 1}, {"eos_token_id", 2}};
    const struct spw_gguf_value *tokens = spw_gguf_find(g, "tokenizer.ggml.tokens");
    const uint64_t n_tokens = tokens && tokens->array ? tokens->n : 0;
    bool found = false;
    int rc = spw_gguf_object(g, "tokenizer.ggml.", out);
    const bool pieces = has_text(*out, "model", "llama") && !has_text(*out, "pre", "gemma4");
    for (size_t i = 0; i < sizeof ids / sizeof *ids && pieces && !rc; i++)
        if (!json_object_get(*out, ids[i].key) && (uint64_t)ids[i].id < n_tokens) {
            rc = json_object_set_new(*out, ids[i].key, json_integer(ids[i].id)) ? -ENOMEM : 0;
            found = true;
        }
    if (rc) {
        json_decref(*out);
        *out = NULL;
    } else if (by_default) {
        *by_default = found;
    }
    return rc;
}

static bool listed(const json_t *list, json_int_t id)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_integer_value(json_array_get(list, i)) == id)
            return true;
    return false;
}

static int add_id(json_t *list, json_int_t id)
{
    bool full = json_array_size(list) == SPW_CONFIG_MAX_EOS;
    return full || listed(list, id) ? 0 : json_array_append_new(list, json_integer(id));
}

/* The tokens that end a message by their text. In models whose answers have several messages
 * (gpt-oss, Solar Open) <|end|> ends one of them, for example the reasoning, and the answer comes
 * after it. */
static int add_by_text(struct spw_config_gguf *facts, const struct spw_gguf *g, json_t *list)
{
    const struct spw_gguf_value *tokens = spw_gguf_find(g, "tokenizer.ggml.tokens");
    if (!tokens || !tokens->array || tokens->type != SPW_GGUF_STRING)
        return 0;
    const uint8_t *at = tokens->at, *end = at + tokens->bytes;
    struct spw_gguf_string token;
    size_t before = json_array_size(list);
    bool has_parts = false;
    json_int_t part_end = -1, call = -1;
    const uint64_t n = spw_min_u64(tokens->n, facts->vocab); /* later ones have no logit */
    for (uint64_t id = 0; id < n && spw_gguf_next_string(&at, end, &token); id++) {
        if (facts->architecture->end && is_text(&token, facts->architecture->end))
            SPW_TRY(add_id(list, (json_int_t)id));
        if (ends_a_message(&token))
            SPW_TRY(add_id(list, (json_int_t)id));
        has_parts = has_parts || is_text(&token, "<|return|>") || is_text(&token, "<|flush|>");
        part_end = is_text(&token, "<|end|>") ? (json_int_t)id : part_end;
        if (is_text(&token, "<|call|>") || is_text(&token, "<|calls|>"))
            call = (json_int_t)id;
    }
    const json_int_t last = has_parts ? call : part_end;
    if (last >= 0)
        SPW_TRY(add_id(list, last));
    facts->more_eos = json_array_size(list) > before;
    return 0;
}

/* Adds the id of a key, or the ids of a list. */
static int add_by_key(const struct spw_config_gguf *facts, const char *key, json_t *list,
                      struct spw_error *err)
{
    const struct spw_keys keys = {
        .file = facts->file, .prefix = "tokenizer.ggml.", .object = facts->tokenizer, .err = err};
    const json_t *value = json_object_get(facts->tokenizer, key);
    const size_t n = json_is_array(value) ? json_array_size(value) : value != NULL;
    char expected[64];
    snprintf(expected, sizeof expected, "ids below %u, the rows of token_embd.weight",
             facts->vocab);
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_is_array(value) ? json_array_get(value, i) : value;
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= facts->vocab)
            return spw_keys_refuse(&keys, key, expected);
        SPW_TRY(add_id(list, json_integer_value(id)));
    }
    return 0;
}

/* eos_token_id becomes a list, if there is more than one. Ollama's files have eos_token_ids. */
static int read_ends(struct spw_config_gguf *facts, const struct spw_gguf *g, struct spw_error *err)
{
    static const char *const keys[] = {"eos_token_id", "eot_token_id", "eom_token_id",
                                       "eos_token_ids"};
    json_t *list = json_array();
    int rc = list ? 0 : -ENOMEM;
    for (size_t i = 0; i < sizeof keys / sizeof *keys && !rc; i++)
        rc = add_by_key(facts, keys[i], list, err);
    if (!rc)
        rc = add_by_text(facts, g, list);
    if (!rc && json_array_size(list))
        return json_object_set_new(facts->tokenizer, "eos_token_id", list) ? -ENOMEM : 0;
    json_decref(list);
    return rc;
}

static bool has(const struct spw_tensors *t, const char *name)
{
    return spw_tensors_find(t, name) != NULL;
}

/* Whether a layer has a tensor of this name. */
static bool any_has(const struct spw_tensors *t, const char *end)
{
    for (size_t i = 0; i < spw_tensors_count(t); i++) {
        const char *name = spw_tensors_at(t, i)->name;
        const size_t start = strlen("model.layers."), n = strspn(name + start, "0123456789");
        if (!strncmp(name, "model.layers.", start) && !strcmp(name + start + n + 1, end))
            return true;
    }
    return false;
}

static bool has_other_parts(const struct spw_tensors *t)
{
    for (size_t i = 0; i < spw_tensors_count(t); i++)
        if (spw_gguf_is_other_part(spw_tensors_at(t, i)->own_name))
            return true;
    return false;
}

/* Whether a layer has a tensor for keys and none for values. */
static bool values_are_keys(const struct spw_tensors *t)
{
    for (size_t i = 0; i < spw_tensors_count(t); i++) {
        char name[SPW_GGUF_MOST_HF_NAME];
        snprintf(name, sizeof name, "%s", spw_tensors_at(t, i)->name);
        char *k = strstr(name, ".k_proj.weight");
        if (!k)
            continue;
        k[1] = 'v';
        if (!has(t, name))
            return true;
    }
    return false;
}

static bool layer_has(const struct spw_tensors *t, unsigned layer, const char *end)
{
    char name[SPW_GGUF_MOST_HF_NAME];
    snprintf(name, sizeof name, "model.layers.%u.%s", layer, end);
    return has(t, name);
}

enum { MOST_LAYERS = 4096 };

/* A letter for each layer: what it is by its tensors. */
static json_t *blocks_of(const struct spw_tensors *t)
{
    char letters[MOST_LAYERS + 1];
    unsigned n = 0;
    for (; n < MOST_LAYERS && layer_has(t, n, "input_layernorm.weight"); n++)
        letters[n] = layer_has(t, n, "linear_attn.in_proj.weight") ? 'M'
                     : layer_has(t, n, "self_attn.q_proj.weight")  ? '*'
                     : layer_has(t, n, "mlp.gate.weight")          ? 'E'
                                                                   : '-';
    return json_stringn(letters, n);
}

/* The first tensor of an mlp. */
static uint32_t mlp_width(const struct spw_tensors *t)
{
    for (size_t i = 0; i < spw_tensors_count(t); i++) {
        const struct spw_tensor *its = spw_tensors_at(t, i);
        const char *end = strstr(its->name, ".mlp.up_proj.weight");
        if (end && its->n_dims == 2 && its->shape[0] <= UINT32_MAX)
            return (uint32_t)its->shape[0];
    }
    return 0;
}

/* What the tensors say. */
static int read_tensors(struct spw_config_gguf *facts, const char *path, struct spw_error *err)
{
    struct spw_tensors *t;
    SPW_TRY(spw_gguf_open_tensors(&t, path, err));
    const struct spw_tensor *embedding = spw_tensors_find(t, "model.embed_tokens.weight");
    int rc = 0;
    if (!embedding || embedding->n_dims != 2 || !embedding->shape[0] ||
        embedding->shape[0] > UINT32_MAX)
        rc = spw_fail(err, -EINVAL,
                      "%s: tensor token_embd.weight: found %s, expected a matrix with a row for "
                      "each token",
                      path, embedding ? "another shape" : "nothing");
    else
        facts->vocab = (uint32_t)embedding->shape[0];
    const struct spw_tensor *inputs = spw_tensors_find(t, "model.embed_tokens_per_layer.weight");
    if (inputs && inputs->n_dims == 2 && inputs->shape[0] <= UINT32_MAX)
        facts->input_vocab = (uint32_t)inputs->shape[0];
    const struct spw_tensor *experts = spw_tensors_find(t, "model.layers.0.mlp.experts.gate_proj"
                                                           ".weight");
    if (experts && experts->n_dims == 3 && experts->shape[1] <= UINT32_MAX)
        facts->expert_width = (uint32_t)experts->shape[1];
    facts->other_parts = has_other_parts(t);
    facts->qkv_bias = any_has(t, "self_attn.q_proj.bias") || any_has(t, "self_attn.qkv_proj.bias");
    facts->o_bias = any_has(t, "self_attn.o_proj.bias");
    facts->mlp_bias = any_has(t, "mlp.up_proj.bias");
    facts->qk_norm = any_has(t, "self_attn.q_norm.weight");
    facts->choice_bias = any_has(t, "mlp.gate.e_score_correction_bias");
    facts->state_bias = any_has(t, "linear_attn.in_proj.bias");
    facts->conv_bias = any_has(t, "linear_attn.conv1d.bias");
    facts->gate_norm = any_has(t, "linear_attn.norm.weight");
    facts->mlp_width = mlp_width(t);
    facts->blocks = blocks_of(t);
    facts->gate_joined = !any_has(t, "linear_attn.gate_proj.weight");
    facts->head = has(t, "lm_head.weight");
    facts->rope_factors = has(t, SPW_ROPE_FACTORS_NAME);
    facts->long_factors = has(t, SPW_ROPE_LONG_NAME);
    facts->v_is_k = values_are_keys(t);
    facts->gated_stacks = has(t, "encoder.block.0.layer.1.DenseReluDense.wi_0.weight");
    facts->own_buckets =
        has(t, "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight");
    spw_tensors_close(t);
    return rc || facts->blocks ? rc : spw_fail(err, -ENOMEM, "%s: out of memory", path);
}

/* A list of numbers means truth values in this key; spw_gguf_object makes one number of equal ones,
 * which means something else here. */
static int read_pattern(struct spw_config_gguf *facts, const struct spw_gguf *g, const char *prefix,
                        const char *end)
{
    char key[128];
    snprintf(key, sizeof key, "%s%s", prefix, end);
    const struct spw_gguf_value *v = spw_gguf_find(g, key);
    if (!v || !v->array || v->type == SPW_GGUF_STRING || v->n > SPW_GGUF_MOST_ELEMENTS)
        return 0;
    json_t *list = json_array();
    for (uint64_t i = 0; list && i < v->n; i++)
        if (json_array_append_new(list, json_boolean(spw_gguf_number(v, i) != 0))) {
            json_decref(list);
            return -ENOMEM;
        }
    return json_object_set_new(facts->keys, key + strlen(prefix), list) ? -ENOMEM : 0;
}

static int read_facts(struct spw_config_gguf *facts, const struct spw_gguf *g, const char *path,
                      struct spw_error *err)
{
    char prefix[64];
    SPW_TRY(
        read_tensors(facts, path, err)); /* first: it refuses a file that is not the first one */
    SPW_TRY(spw_gguf_read_architecture(g, path, &facts->architecture, err));
    snprintf(prefix, sizeof prefix, "%s.", facts->architecture->name);
    if (spw_gguf_object(g, prefix, &facts->keys) ||
        spw_gguf_tokenizer_keys(g, &facts->tokenizer, &facts->default_tokens) ||
        read_pattern(facts, g, prefix, "attention.sliding_window_pattern") ||
        read_pattern(facts, g, prefix, "attention.recurrent_layers"))
        return spw_fail(err, -ENOMEM, "%s: out of memory", path);
    const int rc = read_ends(facts, g, err);
    return rc == -ENOMEM ? spw_fail(err, rc, "%s: out of memory", path) : rc;
}

int spw_gguf_read_config(struct spw_model_config *out, const struct spw_gguf_file *f,
                         const char *path, struct spw_error *err)
{
    struct spw_config_gguf facts = {.file = path};
    *out = (struct spw_model_config){0};
    int rc = read_facts(&facts, &f->gguf, path, err);
    if (!rc)
        rc = spw_config_from_gguf(out, &facts, err);
    json_decref(facts.keys);
    json_decref(facts.tokenizer);
    json_decref(facts.blocks);
    return rc;
}
