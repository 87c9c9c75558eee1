/* tokenizer.json to the structs of tokenizer_impl.h: the vocabulary, merges and added tokens here,
 * the pipeline in tokenizer_pipeline.c. Every refusal names file, key, what was found and what was
 * expected. "truncation" and "padding" are passed over: they belong to one use, not to the model.
 */
#include "model/text/tokenizer/tokenizer_json.h"
#include "model/config/config_json.h"

#include <stdio.h>
#include <string.h>

/* ---- reading JSON ---- */

static const char *describe(const json_t *found, char text[64])
{
    switch (found ? json_typeof(found) : JSON_NULL) {
    case JSON_STRING:
        snprintf(text, 64, "\"%.40s\"", json_string_value(found));
        break;
    case JSON_INTEGER:
        snprintf(text, 64, "%" JSON_INTEGER_FORMAT, json_integer_value(found));
        break;
    case JSON_REAL:
        snprintf(text, 64, "%g", json_real_value(found));
        break;
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_TRUE:
        return "true";
    case JSON_FALSE:
        return "false";
    case JSON_NULL:
        return found ? "null" : "nothing";
    }
    return text;
}

int spw_tok_bad(const struct spw_tok_loader *l, int code, const char *path, const char *key,
                const json_t *found, const char *expected)
{
    char text[64];
    return spw_fail(l->err, code, "%s: %s%s%s: found %s, expected %s", l->name, path,
                    *path && *key ? "." : "", key, describe(found, text), expected);
}

int spw_tok_get_string(const struct spw_tok_loader *l, const json_t *object, const char *path,
                       const char *key, const char **out)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_string(value))
        return spw_tok_bad(l, -EINVAL, path, key, value, "a string");
    *out = json_string_value(value);
    return 0;
}

int spw_tok_get_bool(const struct spw_tok_loader *l, const json_t *object, const char *path,
                     const char *key, bool otherwise, bool *out)
{
    const json_t *value = json_object_get(object, key);
    if (value && !json_is_null(value) && !json_is_boolean(value))
        return spw_tok_bad(l, -EINVAL, path, key, value, "true or false");
    *out = json_is_boolean(value) ? json_is_true(value) : otherwise;
    return 0;
}

int spw_tok_get_id(const struct spw_tok_loader *l, const json_t *value, const char *path,
                   const char *key, int32_t *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        json_integer_value(value) > SPW_TOK_MAX_ID)
        return spw_tok_bad(l, -EINVAL, path, key, value, "a token id from 0 to 4194303");
    *out = (int32_t)json_integer_value(value);
    return 0;
}

/* ---- vocabulary ---- */

/* Texts and ids are counted first, so that each table is taken once. */
struct census {
    size_t n_vocab, blob_bytes;
    int32_t max_id;
    json_t *fresh; /* borrowed: added tokens that have no id yet, by their content; NULL: none */
};

static int count_token(struct census *c, size_t bytes, int32_t id)
{
    c->blob_bytes += bytes + 1;
    c->max_id = id > c->max_id ? id : c->max_id;
    return c->blob_bytes > SPW_TOK_MAX_BYTES ? -EFBIG : 0;
}

/* Where the scan stands, as an error. */
static int bad_text(const struct spw_tok_loader *l, const struct spw_tok_scan *s, int rc)
{
    size_t line = 1;
    if (rc != -EINVAL)
        return rc;
    for (const char *p = l->json; (p = memchr(p, '\n', (size_t)(s->p - p))); p++)
        line++;
    return spw_fail(l->err, rc,
                    "%s: line %zu, byte %zu of the file: found what is not JSON, expected a "
                    "tokenizer.json",
                    l->name, line, (size_t)(s->p - l->json));
}

/* A value that is not what it should be, read whole so that it can be named. */
static int bad_value(const struct spw_tok_loader *l, struct spw_tok_scan *s, const char *path,
                     const char *key, const char *expected)
{
    const char *at = s->p;
    int rc = spw_tok_scan_skip(s);
    json_t *value = NULL;
    if (!rc)
        rc = spw_json_parse(&value, at, (size_t)(s->p - at), JSON_DECODE_ANY, NULL);
    if (rc)
        return bad_text(l, s, rc);
    rc = spw_tok_bad(l, -EINVAL, path, key, value, expected);
    json_decref(value);
    return rc;
}

/* The id after a key of model.vocab, which is in s->text. */
static int scan_id(const struct spw_tok_loader *l, struct spw_tok_scan *s, int32_t *id)
{
    const char *p = s->p;
    *id = 0;
    while (p < s->end && *p >= '0' && *p <= '9' && *id <= SPW_TOK_MAX_ID)
        *id = *id * 10 + (*p++ - '0');
    bool ends = p < s->end && memchr(",} \n\r\t", *p, 6);
    bool canonical = *s->p != '0' || p == s->p + 1;
    if (p == s->p || !ends || !canonical || *id > SPW_TOK_MAX_ID)
        return bad_value(l, s, "model.vocab", s->text.data, "a token id from 0 to 4194303");
    s->p = p;
    return 0;
}

/* Calls `each` for every token of model.vocab; the text is in s->text. */
static int walk_vocab(const struct spw_tok_loader *l, void *each_arg,
                      int (*each)(const struct spw_tok_loader *l, const char *token, size_t bytes,
                                  int32_t id, void *arg))
{
    struct spw_tok_scan s = {.p = l->vocab.at + 1, .end = l->vocab.at + l->vocab.bytes};
    bool begun = false;
    int rc, more;
    while ((rc = more = spw_tok_scan_member(&s, '}', &begun)) > 0) {
        int32_t id = 0;
        rc = spw_tok_scan_key(&s);
        if (rc)
            break;
        rc = scan_id(l, &s, &id);
        if (!rc)
            rc = each(l, s.text.data, s.text.n, id, each_arg);
        if (rc) {
            spw_tok_buf_free(&s.text);
            return rc;
        }
    }
    spw_tok_buf_free(&s.text);
    return bad_text(l, &s, rc);
}

static int count_vocab(const struct spw_tok_loader *l, const char *token, size_t bytes, int32_t id,
                       void *arg)
{
    struct census *c = arg;
    json_t *fresh = json_object_getn(c->fresh, token, bytes);
    (void)l;
    c->n_vocab++;
    if (fresh && json_object_set_new(fresh, "id", json_integer(id)))
        return -ENOMEM;
    return count_token(c, bytes, id);
}

static const char *added_path(const struct spw_tok_loader *l, size_t i, char path[48])
{
    if (i >= l->n_own)
        return "a token of another file";
    snprintf(path, 48, "added_tokens[%zu]", i);
    return path;
}

/* The id after those of the vocabulary and of the added tokens before this one, which end at `last`
 * (-1: there are none). */
static int give_id(json_t *token, size_t n_vocab, int32_t last)
{
    bool after_added = last >= 0 && (!n_vocab || (size_t)last >= n_vocab);
    json_int_t id = after_added ? last + 1 : (json_int_t)n_vocab;
    return json_object_set_new(token, "id", json_integer(id)) ? -ENOMEM : 0;
}

static int take_census(const struct spw_tok_loader *l, json_t *added, struct census *c)
{
    json_t *value;
    size_t i;
    int32_t id = 0, last = -1;
    SPW_TRY(walk_vocab(l, c, count_vocab));
    json_array_foreach(added, i, value)
    {
        const char *content = NULL;
        char own[48];
        const char *path = added_path(l, i, own);
        if (!json_is_object(value))
            return spw_tok_bad(l, -EINVAL, path, "", value, "an object");
        if (i >= l->n_own && !json_object_get(value, "id"))
            SPW_TRY(give_id(value, c->n_vocab, last));
        SPW_TRY(spw_tok_get_string(l, value, path, "content", &content));
        SPW_TRY(spw_tok_get_id(l, json_object_get(value, "id"), path, "id", &id));
        SPW_TRY(count_token(c, strlen(content), id));
        last = id > last ? id : last;
    }
    return 0;
}

static int load_token(const struct spw_tok_loader *l, const char *token, size_t bytes, int32_t id,
                      void *unused)
{
    (void)unused;
    return spw_tok_build_token(&l->build, token, bytes, id);
}

/* ---- merges ---- */

/* One merge, written "a b" or ["a", "b"], as its two halves joined; *left_bytes says where the
 * right one begins. 1: not a merge (an old file's version line). -EDOM: something else. */
static int scan_merge(struct spw_tok_scan *s, struct spw_tok_buf *joined, size_t *left_bytes)
{
    joined->n = 0;
    if (spw_tok_scan_peek(s) == '"') {
        SPW_TRY(spw_tok_scan_string(s));
        const char *text = s->text.data, *space = strchr(text, ' ');
        if (!strncmp(text, "#version", 8))
            return 1;
        if (!space || strchr(space + 1, ' '))
            return -EDOM;
        *left_bytes = (size_t)(space - text);
        SPW_TRY(spw_tok_buf_append(joined, text, *left_bytes));
        return spw_tok_buf_append(joined, space + 1, strlen(space + 1) + 1);
    }
    bool begun = false;
    if (*s->p != '[')
        return -EDOM;
    s->p++;
    for (int half = 0; half < 2; half++) {
        if (spw_tok_scan_member(s, ']', &begun) <= 0 || spw_tok_scan_peek(s) != '"')
            return -EDOM;
        SPW_TRY(spw_tok_scan_string(s));
        SPW_TRY(spw_tok_buf_append(joined, s->text.data, s->text.n));
        if (!half)
            *left_bytes = joined->n;
    }
    SPW_TRY(spw_tok_buf_append(joined, "", 1));
    return spw_tok_scan_member(s, ']', &begun) ? -EDOM : 0;
}

/* At the merge numbered `rank`. */
static int load_merge(const struct spw_tok_loader *l, struct spw_tok_scan *s, uint32_t rank,
                      struct spw_tok_buf *joined)
{
    const char *at = s->p;
    size_t left_bytes = 0;
    int rc = scan_merge(s, joined, &left_bytes);
    if (rc == -EDOM) {
        char path[48];
        snprintf(path, sizeof path, "model.merges[%u]", rank);
        s->p = at;
        return bad_value(l, s, path, "", "\"a b\" or [\"a\", \"b\"]");
    }
    if (rc)
        return rc > 0 ? 0 : bad_text(l, s, rc);
    return spw_tok_build_merge(&l->build, joined->data, joined->n - 1, left_bytes, rank);
}

/* How many there are at least needs no reading: every merge has a comma or the end after it. */
static size_t count_merges(const struct spw_tok_cut *merges)
{
    size_t n = 1;
    const char *end = merges->at + merges->bytes;
    for (const char *p = merges->at; (p = memchr(p, ',', (size_t)(end - p))); p++)
        n++;
    return *merges->at ? n : 0;
}

static int load_merges(const struct spw_tok_loader *l)
{
    struct spw_tok_scan s = {.p = l->merges.at + 1, .end = l->merges.at + l->merges.bytes};
    struct spw_tok_buf joined = {0};
    bool begun = false;
    int rc = spw_tok_merges_init(l->t, count_merges(&l->merges)), more = 0;
    for (uint32_t rank = 0; !rc; rank++) {
        more = spw_tok_scan_member(&s, ']', &begun);
        if (more <= 0)
            break;
        rc = load_merge(l, &s, rank, &joined);
    }
    spw_tok_buf_free(&joined);
    spw_tok_buf_free(&s.text);
    return rc ? rc : bad_text(l, &s, more);
}

/* ---- the model ---- */

static int refuse_unless_empty(const struct spw_tok_loader *l, const json_t *model, const char *key)
{
    const json_t *value = json_object_get(model, key);
    bool empty = !value || json_is_null(value) ||
                 (json_is_string(value) && !json_string_length(value)) ||
                 (json_is_number(value) && json_number_value(value) == 0);
    return empty ? 0 : spw_tok_bad(l, -ENOTSUP, "model", key, value, "null");
}

static int load_unk(const struct spw_tok_loader *l, const json_t *model)
{
    struct spw_tokenizer *t = l->t;
    const json_t *unk = json_object_get(model, "unk_token");
    t->unk_id = -1;
    if (!unk || json_is_null(unk))
        return 0;
    if (!json_is_string(unk))
        return spw_tok_bad(l, -EINVAL, "model", "unk_token", unk, "a string or null");
    t->has_unk = true;
    t->unk_id = spw_tok_map_find(t, &t->vocab, json_string_value(unk), json_string_length(unk));
    return 0;
}

static int load_bpe(const struct spw_tok_loader *l, const json_t *model)
{
    struct spw_tokenizer *t = l->t;
    json_t *merges = json_object_get(model, "merges");
    t->model = SPW_TOK_BPE;
    SPW_TRY(refuse_unless_empty(l, model, "dropout"));
    SPW_TRY(refuse_unless_empty(l, model, "continuing_subword_prefix"));
    SPW_TRY(refuse_unless_empty(l, model, "end_of_word_suffix"));
    SPW_TRY(spw_tok_get_bool(l, model, "model", "fuse_unk", false, &t->fuse_unk));
    SPW_TRY(spw_tok_get_bool(l, model, "model", "byte_fallback", false, &t->byte_fallback));
    SPW_TRY(spw_tok_get_bool(l, model, "model", "ignore_merges", false, &t->ignore_merges));
    if (!json_is_array(merges))
        return spw_tok_bad(l, -EINVAL, "model", "merges", merges, "a list");
    return load_merges(l);
}

/* Files from before the key existed have BPE without saying so. */
static int load_model(const struct spw_tok_loader *l, const json_t *model)
{
    const json_t *type = json_object_get(model, "type");
    const char *name = json_string_value(type);
    bool bpe = name ? !strcmp(name, "BPE") : !type && json_object_get(model, "merges");
    SPW_TRY(walk_vocab(l, NULL, load_token));
    SPW_TRY(load_unk(l, model));
    if (bpe)
        SPW_TRY(load_bpe(l, model));
    else if (name && !strcmp(name, "WordLevel"))
        l->t->model = SPW_TOK_WORD_LEVEL;
    else
        return spw_tok_bad(l, -ENOTSUP, "model", "type", type, "BPE or WordLevel");
    spw_tok_build_characters(&l->build);
    return 0;
}

/* ---- added tokens ---- */

static int add_token(const struct spw_tok_loader *l, const json_t *token, const char *path)
{
    struct spw_tok_added a = {.id = (int32_t)json_integer_value(json_object_get(token, "id"))};
    const char *content = json_string_value(json_object_get(token, "content"));
    size_t bytes = strlen(content);
    bool special = false;
    if (!bytes)
        return 0;
    SPW_TRY(spw_tok_get_bool(l, token, path, "lstrip", false, &a.lstrip));
    SPW_TRY(spw_tok_get_bool(l, token, path, "rstrip", false, &a.rstrip));
    SPW_TRY(spw_tok_get_bool(l, token, path, "single_word", false, &a.single_word));
    SPW_TRY(spw_tok_get_bool(l, token, path, "special", false, &special));
    SPW_TRY(spw_tok_get_bool(l, token, path, "normalized", !special, &a.normalized));
    return spw_tok_build_added(&l->build, &a, content, bytes, special, path);
}

static int load_added(const struct spw_tok_loader *l, json_t *added)
{
    json_t *value;
    size_t i;
    json_array_foreach(added, i, value)
    {
        char path[48];
        SPW_TRY(add_token(l, value, added_path(l, i, path)));
    }
    return 0;
}

/* ---- the file ---- */

/* tokenizer_config.json may say it, too. Versions of transformers differ in which file counts. */
static int check_prefix_space(const struct spw_tok_loader *l)
{
    bool found = false, prefix = false;
    for (size_t i = 0; l->special && i < l->t->n_pres; i++) {
        const struct spw_tok_pre *pre = &l->t->pres[i];
        bool bytes = l->special->prefix_of == SPW_PREFIX_OF_BYTES;
        bool metaspace =
            l->special->prefix_of == SPW_PREFIX_OF_METASPACE && pre->kind == SPW_TOK_PRE_METASPACE;
        found = found || metaspace || (bytes && pre->kind == SPW_TOK_PRE_BYTES);
        prefix = prefix || (bytes && pre->kind == SPW_TOK_PRE_PREFIX_SPACE) ||
                 (metaspace && pre->scheme != SPW_TOK_SCHEME_NEVER);
    }
    if (!found || prefix == l->special->prefix_space)
        return 0;
    return spw_fail(l->err, -EINVAL,
                    "%s: pre_tokenizer: found %s in front of a text, expected what "
                    "add_prefix_space of tokenizer_config.json says: %s",
                    l->name, prefix ? "a space" : "no space", prefix ? "none" : "a space");
}

static int load_root(struct spw_tok_loader *l, json_t *root)
{
    json_t *model = json_object_get(root, "model"), *vocab = json_object_get(model, "vocab");
    json_t *added = json_object_get(root, "added_tokens");
    struct census census = {.max_id = -1};
    struct spw_tok_sizes sizes;
    if (!json_is_object(root))
        return spw_tok_bad(l, -EINVAL, "", "the file", root, "an object");
    if (!json_is_object(model))
        return spw_tok_bad(l, -EINVAL, "", "model", model, "an object");
    const json_t *type = json_object_get(model, "type");
    if (!json_is_object(vocab) && json_is_string(type) && strcmp(json_string_value(type), "BPE") &&
        strcmp(json_string_value(type), "WordLevel"))
        return spw_tok_bad(l, -ENOTSUP, "model", "type", type, "BPE or WordLevel");
    if (!json_is_object(vocab) || !l->vocab.at)
        return spw_tok_bad(l, -EINVAL, "model", "vocab", vocab, "an object");
    if (added && !json_is_null(added) && !json_is_array(added))
        return spw_tok_bad(l, -EINVAL, "", "added_tokens", added, "a list");
    l->n_own = json_array_size(added);
    int rc = l->special ? spw_tok_merge_added(l->special, root, &census.fresh) : 0;
    added = json_object_get(root, "added_tokens");
    if (!rc)
        rc = take_census(l, added, &census);
    json_decref(census.fresh);
    SPW_TRY(rc);
    sizes = (struct spw_tok_sizes){.n_ids = (uint32_t)(census.max_id + 1),
                                   .n_vocab = census.n_vocab,
                                   .n_added = json_array_size(added),
                                   .blob_bytes = census.blob_bytes};
    SPW_TRY(spw_tok_build_tables(&l->build, &sizes));
    SPW_TRY(load_model(l, model));
    SPW_TRY(spw_tok_load_pipeline(l, root));
    SPW_TRY(check_prefix_space(l));
    SPW_TRY(load_added(l, added));
    return spw_tok_build_finish(&l->build);
}

/* Small parts as a tree, large ones as text. */
static int load_text(struct spw_tok_loader *l, size_t bytes, struct spw_tok_scan *s,
                     struct spw_tok_buf *rest)
{
    json_error_t where;
    int rc = spw_tok_scan_find(s, &l->vocab, &l->merges);
    if (rc == -EINVAL) /* jansson will say what is wrong */
        l->vocab = l->merges = (struct spw_tok_cut){0};
    else
        SPW_TRY(rc);
    SPW_TRY(spw_tok_scan_rest(l->json, bytes, &l->vocab, &l->merges, rest));
    json_t *root;
    rc = spw_json_parse(&root, rest->data, rest->n, JSON_REJECT_DUPLICATES, &where);
    if (rc == -ENOMEM)
        return rc;
    if (rc)
        return spw_fail(l->err, rc, "%s: line %d, column %d: this is not JSON: %s", l->name,
                        where.line, where.column, where.text);
    rc = load_root(l, root);
    json_decref(root);
    return rc;
}

int spw_tok_load(struct spw_tokenizer *t, const char *json, size_t bytes,
                 const struct spw_special_tokens *special, const char *name, struct spw_error *err)
{
    struct spw_tok_loader l = {.build = {t, name, err, "model.vocab", "model.merges"},
                               .t = t,
                               .json = json,
                               .special = special,
                               .name = name,
                               .err = err};
    struct spw_tok_scan s = {.p = json, .end = json + bytes};
    struct spw_tok_buf rest = {0};
    if (!bytes)
        return spw_fail(err, -EINVAL, "%s: found an empty file, expected a tokenizer.json", name);
    SPW_TRY(spw_json_refuse_pointer(l.json, bytes, name, err));
    t->regex_memory = spw_tok_regex_memory();
    if (!t->regex_memory)
        return -ENOMEM;
    int rc = load_text(&l, bytes, &s, &rest);
    spw_tok_buf_free(&s.text);
    spw_tok_buf_free(&rest);
    return rc == -EFBIG ? spw_fail(err, rc, "%s: found more than 2 GiB of token text", name) : rc;
}
