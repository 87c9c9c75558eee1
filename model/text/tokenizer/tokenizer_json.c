/* tokenizer.json to the structs of tokenizer_impl.h: the vocabulary, merges and added tokens here,
 * the pipeline in tokenizer_pipeline.c. Every refusal names file, key, what was found and what was
 * expected. "truncation" and "padding" are passed over: they belong to one use, not to the model.
 */
#include "model/text/tokenizer/tokenizer_json.h"
#include "model/config/config_json.h"

#include <stdio.h>
#include <string.h>

#define OTHER_FILE "a token of another file"

/* ---- reading JSON ---- */

int spw_tok_bad(const struct spw_tok_loader *l, int code, const char *path, const char *key,
                const json_t *found, const char *expected)
{
    char text[64];
    return spw_fail(l->err, code, "%s: %s%s%s: found %s, expected %s", l->name, path,
                    *path && *key ? "." : "", key, spw_json_describe(found, text, sizeof text),
                    expected);
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

/* ---- vocabulary and merges, which are too large for a tree of values ---- */

enum { VOCAB, MERGES };

/* Token number n of Unigram: ["text", score]. */
static int take_scored(struct spw_tok_loader *l, const json_t *value)
{
    const json_t *text = json_array_get(value, 0), *score = json_array_get(value, 1);
    const int32_t id = (int32_t)l->n_vocab;
    struct spw_tokenizer *t = l->t;
    if (json_array_size(value) != 2 || !json_is_string(text) || !json_is_number(score) ||
        id > SPW_TOK_MAX_ID) {
        char path[48];
        snprintf(path, sizeof path, "model.vocab[%zu]", l->n_vocab);
        return spw_tok_bad(l, -EINVAL, path, "", value,
                           "a token and its score, at most 4194304 times");
    }
    SPW_TRY(spw_grow(&t->scores, &t->score_capacity, l->n_vocab + 1, sizeof *t->scores));
    t->scores[l->n_vocab++] = json_number_value(score);
    return spw_tok_build_token(&l->build, json_string_value(text), json_string_length(text), id);
}

static int take_token(struct spw_tok_loader *l, const char *token, const json_t *value)
{
    int32_t id = 0;
    if (!token)
        return take_scored(l, value);
    SPW_TRY(spw_tok_get_id(l, value, "model.vocab", token, &id));
    l->n_vocab++;
    return spw_tok_build_token(&l->build, token, strlen(token), id);
}

/* The halves of "a b" or ["a", "b"]; false: it is neither. */
static bool read_halves(const json_t *value, const char *halves[2], size_t bytes[2])
{
    const char *text = json_string_value(value), *space = text ? strchr(text, ' ') : NULL;
    if (json_is_array(value) && json_array_size(value) == 2) {
        for (size_t i = 0; i < 2; i++) {
            halves[i] = json_string_value(json_array_get(value, i));
            bytes[i] = json_string_length(json_array_get(value, i));
        }
        return halves[0] && halves[1];
    }
    if (!space || strchr(space + 1, ' '))
        return false;
    halves[0] = text;
    bytes[0] = (size_t)(space - text);
    halves[1] = space + 1;
    bytes[1] = strlen(space + 1);
    return true;
}

static int take_merge(struct spw_tok_loader *l, const json_t *value)
{
    const char *text = json_string_value(value), *halves[2];
    size_t bytes[2];
    if (text && !strncmp(text, "#version", 8)) /* the first line of an old file */
        return 0;
    if (!read_halves(value, halves, bytes)) {
        char path[48];
        snprintf(path, sizeof path, "model.merges[%zu]", l->n_merges);
        return spw_tok_bad(l, -EINVAL, path, "", value, "\"a b\" or [\"a\", \"b\"]");
    }
    SPW_TRY(spw_grow(&l->merge_texts, &l->merge_capacity, l->n_merges + 1, sizeof *l->merge_texts));
    l->merge_texts[l->n_merges++] =
        (struct spw_tok_merge_text){(uint32_t)bytes[0], (uint32_t)(bytes[0] + bytes[1])};
    SPW_TRY(spw_tok_buf_append(&l->merges, halves[0], bytes[0]));
    return spw_tok_buf_append(&l->merges, halves[1], bytes[1]);
}

static int take(void *loader, int part, const char *key, const json_t *value)
{
    return part == VOCAB ? take_token(loader, key, value) : take_merge(loader, value);
}

static int load_merges(const struct spw_tok_loader *l)
{
    const char *at = l->merges.data;
    SPW_TRY(spw_tok_merges_init(l->t, l->n_merges));
    for (uint32_t rank = 0; rank < l->n_merges; rank++) {
        const struct spw_tok_merge_text *m = &l->merge_texts[rank];
        SPW_TRY(spw_tok_build_merge(&l->build, at, m->bytes, m->left_bytes, rank));
        at += m->bytes;
    }
    return 0;
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

/* A character that no token spells costs ten more than the worst token. */
static int load_unigram(const struct spw_tok_loader *l, const json_t *model)
{
    struct spw_tokenizer *t = l->t;
    const json_t *unk = json_object_get(model, "unk_id");
    t->model = SPW_TOK_UNIGRAM;
    t->unk_id = -1;
    t->has_unk = unk && !json_is_null(unk);
    SPW_TRY(spw_tok_get_bool(l, model, "model", "byte_fallback", false, &t->byte_fallback));
    if (t->has_unk)
        SPW_TRY(spw_tok_get_id(l, unk, "model", "unk_id", &t->unk_id));
    if (t->has_unk && (size_t)t->unk_id >= l->n_vocab)
        return spw_tok_bad(l, -EINVAL, "model", "unk_id", unk, "a token of model.vocab");
    double least = 0;
    for (size_t i = 0; i < l->n_vocab; i++)
        least = !i || t->scores[i] < least ? t->scores[i] : least;
    t->unknown_score = least - 10;
    return 0;
}

/* Files from before the key existed have BPE without saying so. */
static int load_model(const struct spw_tok_loader *l, const json_t *model)
{
    const json_t *type = json_object_get(model, "type");
    const char *name = json_string_value(type);
    bool bpe = name ? !strcmp(name, "BPE") : !type && json_object_get(model, "merges");
    SPW_TRY(load_unk(l, model));
    if (bpe)
        SPW_TRY(load_bpe(l, model));
    else if (name && !strcmp(name, "Unigram"))
        SPW_TRY(load_unigram(l, model));
    else if (name && !strcmp(name, "WordLevel"))
        l->t->model = SPW_TOK_WORD_LEVEL;
    else
        return spw_tok_bad(l, -ENOTSUP, "model", "type", type, "BPE, Unigram or WordLevel");
    spw_tok_build_characters(&l->build);
    return 0;
}

/* ---- added tokens ---- */

/* A token of another file has the id of its text in the vocabulary, or the id after those of the
 * vocabulary and of the added tokens before it, which end at `last` (-1: there are none). */
static int read_id(const struct spw_tok_loader *l, const json_t *token, const char *path,
                   const char *content, int32_t last, int32_t *id)
{
    const json_t *value = json_object_get(token, "id");
    if (value || strcmp(path, OTHER_FILE) != 0)
        return spw_tok_get_id(l, value, path, "id", id);
    *id = spw_tok_known(l->t, content, strlen(content));
    if (*id < 0)
        *id = last >= 0 && (size_t)last >= l->n_vocab ? last + 1 : (int32_t)l->n_vocab;
    return *id <= SPW_TOK_MAX_ID
               ? 0
               : spw_fail(l->err, -EINVAL,
                          "%s: " OTHER_FILE ".id: found %d, expected a token id from 0 to %d",
                          l->name, *id, SPW_TOK_MAX_ID);
}

static int add_token(const struct spw_tok_loader *l, const json_t *token, const char *path,
                     int32_t *last)
{
    struct spw_tok_added a = {0};
    const char *content = NULL;
    bool special = false;
    if (!json_is_object(token))
        return spw_tok_bad(l, -EINVAL, path, "", token, "an object");
    SPW_TRY(spw_tok_get_string(l, token, path, "content", &content));
    SPW_TRY(read_id(l, token, path, content, *last, &a.id));
    *last = a.id > *last ? a.id : *last;
    if (!*content)
        return spw_tok_build_ids(&l->build, (size_t)a.id + 1);
    SPW_TRY(spw_tok_get_bool(l, token, path, "lstrip", false, &a.lstrip));
    SPW_TRY(spw_tok_get_bool(l, token, path, "rstrip", false, &a.rstrip));
    SPW_TRY(spw_tok_get_bool(l, token, path, "single_word", false, &a.single_word));
    SPW_TRY(spw_tok_get_bool(l, token, path, "special", false, &special));
    SPW_TRY(spw_tok_get_bool(l, token, path, "normalized", !special, &a.normalized));
    return spw_tok_build_added(&l->build, &a, content, strlen(content), special, path);
}

int spw_tok_load_added(const struct spw_tok_loader *l, const json_t *added)
{
    int32_t last = -1;
    for (size_t i = 0; i < json_array_size(added); i++) {
        char path[48] = OTHER_FILE;
        if (i < l->n_own)
            snprintf(path, sizeof path, "added_tokens[%zu]", i);
        SPW_TRY(add_token(l, json_array_get(added, i), path, &last));
    }
    return 0;
}

/* ---- the file ---- */

/* tokenizer_config.json may say it, too. Versions of transformers differ in which file counts. */
static int check_prefix_space(const struct spw_tok_loader *l)
{
    bool found = false, prefix = false;
    for (size_t i = 0; l->special && i < l->t->pres.n; i++) {
        const struct spw_tok_step *pre = &l->t->pres.at[i];
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

static int check_vocab(const struct spw_tok_loader *l, const json_t *model)
{
    const json_t *type = json_object_get(model, "type"), *vocab = json_object_get(model, "vocab");
    const char *name = json_string_value(type);
    const bool scored = name && !strcmp(name, "Unigram");
    if (name && !scored && strcmp(name, "BPE") != 0 && strcmp(name, "WordLevel") != 0)
        return spw_tok_bad(l, -ENOTSUP, "model", "type", type, "BPE, Unigram or WordLevel");
    if (scored ? !json_is_array(vocab) : !json_is_object(vocab))
        return spw_tok_bad(l, -EINVAL, "model", "vocab", vocab, scored ? "a list" : "an object");
    return 0;
}

static int load_root(struct spw_tok_loader *l, json_t *root)
{
    json_t *model = json_object_get(root, "model");
    json_t *added = json_object_get(root, "added_tokens");
    if (!json_is_object(root))
        return spw_tok_bad(l, -EINVAL, "", "the file", root, "an object");
    if (!json_is_object(model))
        return spw_tok_bad(l, -EINVAL, "", "model", model, "an object");
    SPW_TRY(check_vocab(l, model));
    if (added && !json_is_null(added) && !json_is_array(added))
        return spw_tok_bad(l, -EINVAL, "", "added_tokens", added, "a list");
    l->n_own = json_array_size(added);
    if (l->special)
        SPW_TRY(spw_tok_merge_added(l->special, root));
    SPW_TRY(load_model(l, model));
    SPW_TRY(spw_tok_load_pipeline(l, root));
    SPW_TRY(check_prefix_space(l));
    SPW_TRY(spw_tok_load_added(l, json_object_get(root, "added_tokens")));
    return spw_tok_build_finish(&l->build);
}

static int load_text(struct spw_tok_loader *l, const char *json, size_t bytes)
{
    static const char *const paths[] = {[VOCAB] = "model\0vocab", [MERGES] = "model\0merges"};
    static const size_t lengths[] = {
        [VOCAB] = sizeof "model\0vocab", [MERGES] = sizeof "model\0merges"};
    const struct spw_json_parts parts = {
        .paths = paths, .bytes = lengths, .n = 2, .take = take, .context = l};
    json_error_t where = {0};
    json_t *root;
    int rc = spw_json_parse_parts(&root, json, bytes, JSON_REJECT_DUPLICATES, &parts, &where);
    if (rc == -EINVAL)
        return spw_fail(l->err, rc, "%s: line %d, column %d: this is not JSON: %s", l->name,
                        where.line, where.column, where.text);
    if (!rc)
        rc = load_root(l, root);
    json_decref(root);
    return rc;
}

int spw_tok_load(struct spw_tokenizer *t, const char *json, size_t bytes,
                 const struct spw_special_tokens *special, const char *name, struct spw_error *err)
{
    struct spw_tok_loader l = {.build = {t, name, err, "model.vocab", "model.merges"},
                               .t = t,
                               .special = special,
                               .name = name,
                               .err = err};
    if (!bytes)
        return spw_fail(err, -EINVAL, "%s: found an empty file, expected a tokenizer.json", name);
    SPW_TRY(spw_json_refuse_pointer(json, bytes, name, err));
    int rc = load_text(&l, json, bytes);
    spw_tok_buf_free(&l.merges);
    spw_free(l.merge_texts);
    return rc;
}
