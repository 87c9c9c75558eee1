/* The tokens that the other files of a folder name: see special_tokens.h. */
#include "model/text/special_tokens.h"

#include "model/config/config_json.h"
#include "base/file.h"
#include "model/text/tokenizer/tokenizer_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const standard[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                       "pad_token", "cls_token", "mask_token"};
enum { N_STANDARD = sizeof standard / sizeof *standard };

/* A file of the folder. */
struct file {
    char *path;   /* owned */
    json_t *root; /* owned; NULL: there is no such file */
};

/* Many models have a model_max_length of 10^30. */
int spw_special_tokens_json(const char *path, json_t **out, struct spw_error *err)
{
    char *text;
    size_t bytes;
    *out = NULL;
    int rc = path ? spw_file_read(path, SPW_SPECIAL_MOST_BYTES, &text, &bytes, err) : -ENOMEM;
    if (rc)
        return rc == -ENOENT ? 0 : rc;
    rc = spw_json_load(text, bytes, path, SPW_JSON_LARGE_REAL, out, err);
    spw_free(text);
    return rc;
}

struct reader {
    struct spw_special_tokens *out;
    struct file config, map, ids; /* ids: added_tokens.json */
    struct spw_error *err;
};

/* ---- one token ---- */

static bool is_standard(const char *name)
{
    for (size_t i = 0; i < N_STANDARD; i++)
        if (!strcmp(standard[i], name))
            return true;
    return false;
}

static bool is_token_name(const char *name)
{
    size_t n = strlen(name);
    return n >= 6 && !strcmp(name + n - 6, "_token");
}

/* transformers writes this mark for a token with flags. */
static bool is_marked(const json_t *value)
{
    const char *type = json_string_value(json_object_get(value, "__type"));
    return type && !strcmp(type, "AddedToken");
}

json_t *spw_special_token(const char *content, bool special)
{
    return json_pack("{s:s, s:b, s:b, s:b, s:b}", "content", content, "special", special, "lstrip",
                     0, "rstrip", 0, "single_word", 0);
}

/* *out is owned. `special`: what a token is that does not say it; a named one always is. */
static int make_token(const struct reader *r, const struct file *file, const char *where,
                      const json_t *value, bool special, bool named, json_t **out)
{
    static const char *const flags[] = {"lstrip", "rstrip", "single_word", "normalized"};
    struct spw_keys keys = {.file = file->path, .prefix = where, .object = value, .err = r->err};
    const char *content = json_string_value(value);
    *out = NULL;
    if (json_is_object(value)) {
        SPW_TRY(spw_keys_string(&keys, "content", &content));
        SPW_TRY(spw_keys_bool(&keys, "special", &special));
        if (!content)
            return spw_keys_refuse(&keys, "content", "a string");
    }
    json_t *token = spw_special_token(content, special || named);
    int rc = token ? 0 : -ENOMEM;
    for (int i = 0; !rc && i < 4; i++) {
        bool flag = false;
        rc = spw_keys_bool(&keys, flags[i], &flag);
        if (!rc && spw_keys_has(&keys, flags[i]) &&
            json_object_set_new(token, flags[i], json_boolean(flag)))
            rc = -ENOMEM;
    }
    if (rc)
        json_decref(token);
    else
        *out = token;
    return rc;
}

/* ---- tokens with a name ---- */

/* A value that is no token has no meaning here. */
static int set_named(const struct reader *r, const struct file *file, const char *name,
                     const json_t *value)
{
    char where[100];
    json_t *token;
    if (!json_is_string(value) && !json_is_object(value))
        return 0;
    snprintf(where, sizeof where, "%.80s.", name);
    SPW_TRY(make_token(r, file, where, value, true, true, &token));
    return json_object_set_new(r->out->named, name, token) ? -ENOMEM : 0;
}

static int set_all_named(const struct reader *r, const struct file *file, const json_t *tokens)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)tokens, name, value) SPW_TRY(set_named(r, file, name, value));
    return 0;
}

static int read_standard(const struct reader *r)
{
    for (size_t i = 0; i < N_STANDARD; i++) {
        const struct file *file = json_object_get(r->map.root, standard[i]) ? &r->map : &r->config;
        const json_t *value = json_object_get(file->root, standard[i]);
        if (value && !strcmp(standard[i], "pad_token"))
            r->out->has_pad = true;
        if (json_object_set_new(r->out->named, standard[i], json_null()))
            return -ENOMEM;
        SPW_TRY(set_named(r, file, standard[i], value));
    }
    return 0;
}

/* Other keys that end in _token; `texts`: those whose value is a text, else those with flags. */
static int read_others(const struct reader *r, bool texts, size_t *n)
{
    const char *name;
    json_t *value;
    json_object_foreach(r->config.root, name, value)
    {
        if (is_standard(name) || !is_token_name(name) ||
            !(texts ? json_is_string(value) : is_marked(value)))
            continue;
        SPW_TRY(set_named(r, &r->config, name, value));
        ++*n;
    }
    return 0;
}

/* `extra`, `map_extra`: extra_special_tokens of the two files. An object of names counts. */
static int read_named(const struct reader *r, const json_t *extra, const json_t *map_extra)
{
    const char *name;
    json_t *value;
    size_t n = 0;
    SPW_TRY(read_standard(r));
    SPW_TRY(read_others(r, false, &n));
    json_object_foreach(r->map.root, name, value)
    {
        if (!is_standard(name) && is_token_name(name))
            SPW_TRY(set_named(r, &r->map, name, value));
    }
    n = json_object_size(extra);
    SPW_TRY(read_others(r, true, &n));
    if (!n)
        extra = json_object_get(r->config.root, "model_specific_special_tokens");
    SPW_TRY(set_all_named(r, &r->config, extra));
    return set_all_named(r, &r->map, map_extra);
}

/* ---- tokens without a name ---- */

static int add_extra(const struct reader *r, const struct file *file, const json_t *tokens)
{
    json_t *value, *token;
    size_t i;
    json_array_foreach(tokens, i, value)
    {
        char where[64];
        if (!json_is_string(value) && !json_is_object(value))
            continue;
        snprintf(where, sizeof where, "special tokens[%zu].", i);
        SPW_TRY(make_token(r, file, where, value, !is_marked(value), false, &token));
        if (json_array_append_new(r->out->extra, token))
            return -ENOMEM;
    }
    return 0;
}

static bool is_empty(const json_t *value)
{
    return !value || json_is_null(value) ||
           !(json_array_size(value) + json_object_size(value) + json_string_length(value));
}

/* A list of extra_special_tokens has no names, an object has them. additional_special_tokens is the
 * older name of the key; it counts where the other one says nothing. */
static int read_special(const struct reader *r)
{
    const json_t *older = json_object_get(r->config.root, "additional_special_tokens");
    const json_t *extra = json_object_get(r->config.root, "extra_special_tokens");
    const json_t *map_older = json_object_get(r->map.root, "additional_special_tokens");
    const json_t *map_extra = json_object_get(r->map.root, "extra_special_tokens");
    if (older && is_empty(extra)) {
        extra = older;
        older = NULL;
    }
    SPW_TRY(read_named(r, extra, map_extra));
    bool given = map_extra ? !json_is_object(map_extra) : extra && !json_is_object(extra);
    if (!given)
        return map_older ? add_extra(r, &r->map, map_older) : add_extra(r, &r->config, older);
    if (!map_extra || json_is_array(map_extra))
        SPW_TRY(add_extra(r, &r->config, extra));
    return add_extra(r, &r->map, map_extra);
}

/* ---- tokens with an id ---- */

struct listed {
    unsigned long id;
    json_t *token; /* owned */
};

static int by_id(const void *a, const void *b)
{
    const struct listed *x = a, *y = b;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* added_tokens_decoder: {"5": {"content": "<a>", ...}}. */
static int decoder_token(const struct reader *r, const char *key, const json_t *value,
                         struct listed *out)
{
    char where[72], found[64], *end;
    snprintf(where, sizeof where, "added_tokens_decoder.%.40s.", key);
    out->id = strtoul(key, &end, 10);
    if (*key < '0' || *key > '9' || *end || out->id > SPW_TOK_MAX_ID || !json_is_object(value))
        return spw_fail(r->err, -EINVAL,
                        "%s: added_tokens_decoder: found \"%.40s\": %s, expected a token id from 0 "
                        "to 4194303 and an object",
                        r->config.path, key, spw_json_describe(value, found, sizeof found));
    return make_token(r, &r->config, where, value, false, false, &out->token);
}

static bool is_special_text(const struct reader *r, const char *content)
{
    json_t *token;
    size_t i;
    for (i = 0; i < N_STANDARD; i++) {
        token = json_object_get(json_object_get(r->out->named, standard[i]), "content");
        if (token && !strcmp(json_string_value(token), content))
            return true;
    }
    json_array_foreach(r->out->extra, i, token)
    {
        if (!strcmp(json_string_value(json_object_get(token, "content")), content))
            return true;
    }
    return false;
}

/* added_tokens.json: {"<a>": 5}. */
static int file_token(const struct reader *r, const char *key, const json_t *value,
                      struct listed *out)
{
    bool special = is_special_text(r, key);
    out->id = (unsigned long)json_integer_value(value);
    if (!json_is_integer(value) || json_integer_value(value) < 0 || out->id > SPW_TOK_MAX_ID) {
        char found[64];
        return spw_fail(r->err, -EINVAL,
                        "%s: %.40s: found %s, expected a token id from 0 to 4194303", r->ids.path,
                        key, spw_json_describe(value, found, sizeof found));
    }
    out->token = spw_special_token(key, special);
    return json_object_set_new(out->token, "normalized", json_boolean(!special)) ? -ENOMEM : 0;
}

static int read_listed(const struct reader *r, const json_t *tokens,
                       int (*read)(const struct reader *r, const char *key, const json_t *value,
                                   struct listed *out))
{
    const char *key;
    json_t *value;
    size_t n = 0;
    struct listed *all = spw_alloc_zero(json_object_size(tokens), sizeof *all);
    int rc = all ? 0 : -ENOMEM;
    json_object_foreach((json_t *)tokens, key, value)
    {
        if (!rc)
            rc = read(r, key, value, &all[n++]);
    }
    if (n)
        qsort(all, n, sizeof *all, by_id);
    for (size_t i = 0; i < n; i++)
        if (json_array_append_new(r->out->listed, all[i].token) && !rc)
            rc = -ENOMEM;
    spw_free(all);
    return rc;
}

/* ---- keys that change how a text becomes tokens ---- */

/* With split_special_tokens a chat would have the pieces of <|im_end|> and the like. */
static int read_keys(const struct reader *r)
{
    static const char *const classes[] = {"GPT2Tokenizer", "Qwen2Tokenizer", "LlamaTokenizer"};
    struct spw_keys keys = {
        .file = r->config.path, .prefix = "", .object = r->config.root, .err = r->err};
    const char *name = json_string_value(json_object_get(r->config.root, "tokenizer_class"));
    bool split = false;
    SPW_TRY(spw_keys_bool(&keys, "split_special_tokens", &split));
    if (split)
        return spw_keys_refuse(&keys, "split_special_tokens", "false");
    for (int i = 0; i < 3 && name && spw_keys_has(&keys, "add_prefix_space"); i++) {
        size_t n = strlen(classes[i]);
        if (!strncmp(name, classes[i], n) && (!name[n] || !strcmp(name + n, "Fast")))
            r->out->prefix_of = i < 2 ? SPW_PREFIX_OF_BYTES : SPW_PREFIX_OF_METASPACE;
    }
    return r->out->prefix_of ? spw_keys_bool(&keys, "add_prefix_space", &r->out->prefix_space) : 0;
}

static int read_all(const struct reader *r)
{
    const json_t *decoder = json_object_get(r->config.root, "added_tokens_decoder");
    char found[64];
    if (decoder && !json_is_object(decoder))
        return spw_fail(r->err, -EINVAL, "%s: added_tokens_decoder: found %s, expected an object",
                        r->config.path, spw_json_describe(decoder, found, sizeof found));
    SPW_TRY(read_keys(r));
    SPW_TRY(read_special(r));
    return decoder ? read_listed(r, decoder, decoder_token)
                   : read_listed(r, r->ids.root, file_token);
}

int spw_special_tokens_read(struct spw_special_tokens *out, const char *folder,
                            struct spw_error *err)
{
    *out = (struct spw_special_tokens){
        .named = json_object(), .listed = json_array(), .extra = json_array()};
    struct reader r = {.out = out,
                       .config = {spw_file_join(folder, "tokenizer_config.json"), NULL},
                       .map = {spw_file_join(folder, "special_tokens_map.json"), NULL},
                       .ids = {spw_file_join(folder, "added_tokens.json"), NULL},
                       .err = err};
    int rc = out->named && out->listed && out->extra ? 0 : -ENOMEM;
    if (!rc)
        rc = spw_special_tokens_json(r.config.path, &r.config.root, err);
    out->config = r.config.root;
    out->old = !json_object_get(out->config, "added_tokens_decoder");
    if (!rc && out->old)
        rc = spw_special_tokens_json(r.map.path, &r.map.root, err);
    if (!rc && out->old)
        rc = spw_special_tokens_json(r.ids.path, &r.ids.root, err);
    if (!rc)
        rc = read_all(&r);
    spw_free(r.config.path);
    spw_free(r.map.path);
    spw_free(r.ids.path);
    json_decref(r.map.root);
    json_decref(r.ids.root);
    return rc == -ENOMEM ? spw_fail(err, rc, "%s: out of memory", folder) : rc;
}

void spw_special_tokens_free(struct spw_special_tokens *tokens)
{
    json_decref(tokens->config);
    json_decref(tokens->named);
    json_decref(tokens->listed);
    json_decref(tokens->extra);
    *tokens = (struct spw_special_tokens){0};
}
