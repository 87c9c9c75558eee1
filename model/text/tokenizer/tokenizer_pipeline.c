/* normalizer, pre_tokenizer, post_processor and decoder of tokenizer.json, each of them flattened
 * from nested Sequences into one list of steps. */
#include "model/text/tokenizer/tokenizer_json.h"

#include <stdio.h>
#include <string.h>

#define MAX_DEPTH 8
#define PATH_BYTES 160
#define MAX_CUT 4096 /* characters that a Strip decoder may be told to cut */

#define GPT2_PATTERN                                                                               \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

#define NORMALIZERS "Sequence, NFC, NFD, NFKC, NFKD, Prepend, Replace, Lowercase or Strip"
#define PRE_TOKENIZERS                                                                             \
    "Sequence, ByteLevel, Split, Metaspace, Digits, Punctuation, Whitespace or WhitespaceSplit"
#define POST_PROCESSORS "Sequence, TemplateProcessing or ByteLevel"
#define DECODERS "Sequence, ByteLevel, Replace, ByteFallback, Fuse, Strip or Metaspace"

/* ---- shared ---- */

static int read_type(const struct spw_tok_loader *l, const json_t *object, const char *path,
                     int depth, const char **type)
{
    if (!json_is_object(object))
        return spw_tok_bad(l, -EINVAL, path, "", object, "an object or null");
    if (depth == MAX_DEPTH)
        return spw_tok_bad(l, -ENOTSUP, path, "", object, "Sequences at most 8 deep");
    return spw_tok_get_string(l, object, path, "type", type);
}

/* A function that loads one node of a kind; load_sequence calls it for every member. */
typedef int (*load_node)(const struct spw_tok_loader *l, const json_t *node, const char *path,
                         int depth);

static int load_sequence(const struct spw_tok_loader *l, const json_t *object, const char *path,
                         const char *key, int depth, load_node load)
{
    const json_t *list = json_object_get(object, key);
    if (!json_is_array(list))
        return spw_tok_bad(l, -EINVAL, path, key, list, "a list");
    for (size_t i = 0; i < json_array_size(list); i++) {
        char member[PATH_BYTES];
        snprintf(member, sizeof member, "%s.%s[%zu]", path, key, i);
        SPW_TRY(load(l, json_array_get(list, i), member, depth + 1));
    }
    return 0;
}

static int copy_text(const struct spw_tok_loader *l, const json_t *object, const char *path,
                     const char *key, char **out, size_t *bytes)
{
    const char *text = NULL;
    SPW_TRY(spw_tok_get_string(l, object, path, key, &text));
    *out = spw_strdup(text);
    if (!*out)
        return -ENOMEM;
    *bytes = strlen(text);
    return 0;
}

static int load_pattern(const struct spw_tok_loader *l, const json_t *object, const char *path,
                        struct spw_tok_pattern *out)
{
    const json_t *pattern = json_object_get(object, "pattern");
    const char *literal = json_string_value(json_object_get(pattern, "String"));
    const char *regex = json_string_value(json_object_get(pattern, "Regex"));
    if (json_object_size(pattern) != 1 || (!literal && !regex))
        return spw_tok_bad(l, -EINVAL, path, "pattern", pattern,
                           "{\"String\": \"...\"} or {\"Regex\": \"...\"}");
    if (literal)
        return spw_tok_pattern_literal(out, literal, strlen(literal));
    char where[PATH_BYTES + 256];
    snprintf(where, sizeof where, "%.200s: %s.pattern.Regex", l->name, path);
    return spw_tok_pattern_regex(out, l->t->regex_memory, regex, where, l->err);
}

/* A string of exactly one character. */
static int load_character(const struct spw_tok_loader *l, const json_t *object, const char *path,
                          const char *key, char out[4], size_t *bytes)
{
    const json_t *value = json_object_get(object, key);
    const char *text = json_string_value(value);
    if (!text || !*text || spw_tok_utf8_len(text) != strlen(text))
        return spw_tok_bad(l, -EINVAL, path, key, value, "a string of one character");
    *bytes = strlen(text);
    memcpy(out, text, *bytes);
    return 0;
}

static int too_many(const struct spw_tok_loader *l, const json_t *object, const char *path)
{
    return spw_tok_bad(l, -ENOTSUP, path, "", object, "at most 64 steps in all");
}

/* ---- normalizer ---- */

static const struct {
    const char *type;
    enum spw_tok_norm_kind kind;
} norm_kinds[] = {
    {"NFC", SPW_TOK_NFC},         {"NFD", SPW_TOK_NFD},
    {"NFKC", SPW_TOK_NFKC},       {"NFKD", SPW_TOK_NFKD},
    {"Prepend", SPW_TOK_PREPEND}, {"Replace", SPW_TOK_REPLACE},
    {"Strip", SPW_TOK_STRIP},     {"Lowercase", SPW_TOK_LOWERCASE},
};

static int fill_norm(const struct spw_tok_loader *l, const json_t *object, const char *path,
                     struct spw_tok_norm *norm)
{
    switch (norm->kind) {
    case SPW_TOK_PREPEND:
        return copy_text(l, object, path, "prepend", &norm->content, &norm->content_bytes);
    case SPW_TOK_REPLACE:
        SPW_TRY(load_pattern(l, object, path, &norm->pattern));
        return copy_text(l, object, path, "content", &norm->content, &norm->content_bytes);
    case SPW_TOK_STRIP:
        SPW_TRY(spw_tok_get_bool(l, object, path, "strip_left", true, &norm->left));
        return spw_tok_get_bool(l, object, path, "strip_right", true, &norm->right);
    default:
        return 0;
    }
}

static int load_norm(const struct spw_tok_loader *l, const json_t *object, const char *path,
                     int depth)
{
    struct spw_tokenizer *t = l->t;
    const char *type = NULL;
    SPW_TRY(read_type(l, object, path, depth, &type));
    if (!strcmp(type, "Sequence"))
        return load_sequence(l, object, path, "normalizers", depth, load_norm);
    for (size_t i = 0; i < sizeof norm_kinds / sizeof *norm_kinds; i++) {
        if (strcmp(type, norm_kinds[i].type))
            continue;
        if (t->n_norms == SPW_TOK_MAX_OPS)
            return too_many(l, object, path);
        struct spw_tok_norm *norm = &t->norms[t->n_norms++];
        norm->kind = norm_kinds[i].kind;
        return fill_norm(l, object, path, norm);
    }
    return spw_tok_bad(l, -ENOTSUP, path, "type", json_object_get(object, "type"), NORMALIZERS);
}

/* ---- pre_tokenizer ---- */

static int load_behavior(const struct spw_tok_loader *l, const json_t *object, const char *path,
                         struct spw_tok_pre *pre)
{
    static const char *const names[] = {
        [SPW_TOK_ISOLATED] = "Isolated",
        [SPW_TOK_REMOVED] = "Removed",
        [SPW_TOK_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
        [SPW_TOK_MERGED_WITH_NEXT] = "MergedWithNext",
        [SPW_TOK_CONTIGUOUS] = "Contiguous",
    };
    const json_t *value = json_object_get(object, "behavior");
    for (int i = 0; json_is_string(value) && i < 5; i++) {
        if (strcmp(json_string_value(value), names[i]))
            continue;
        pre->behavior = (enum spw_tok_behavior)i;
        return 0;
    }
    return spw_tok_bad(l, -EINVAL, path, "behavior", value,
                       "Isolated, Removed, MergedWithPrevious, MergedWithNext or Contiguous");
}

static int load_split(const struct spw_tok_loader *l, const json_t *object, const char *path,
                      struct spw_tok_pre *pre)
{
    pre->kind = SPW_TOK_PRE_SPLIT;
    SPW_TRY(load_behavior(l, object, path, pre));
    SPW_TRY(spw_tok_get_bool(l, object, path, "invert", false, &pre->invert));
    return load_pattern(l, object, path, &pre->pattern);
}

/* A leading space, GPT-2's split, and the byte stand-ins: up to three steps. */
static int load_byte_level(const struct spw_tok_loader *l, const json_t *object, const char *path)
{
    struct spw_tokenizer *t = l->t;
    bool prefix = false, regex = false;
    char where[PATH_BYTES + 256];
    SPW_TRY(spw_tok_get_bool(l, object, path, "add_prefix_space", true, &prefix));
    SPW_TRY(spw_tok_get_bool(l, object, path, "use_regex", true, &regex));
    if (prefix)
        t->pres[t->n_pres++].kind = SPW_TOK_PRE_PREFIX_SPACE;
    if (regex) {
        struct spw_tok_pre *pre = &t->pres[t->n_pres++];
        pre->kind = SPW_TOK_PRE_SPLIT;
        snprintf(where, sizeof where, "%.200s: %s", l->name, path);
        SPW_TRY(spw_tok_pattern_regex(&pre->pattern, t->regex_memory, GPT2_PATTERN, where, l->err));
    }
    t->pres[t->n_pres++].kind = SPW_TOK_PRE_BYTES;
    return 0;
}

static int load_scheme(const struct spw_tok_loader *l, const json_t *object, const char *path,
                       enum spw_tok_scheme *scheme)
{
    const json_t *value = json_object_get(object, "prepend_scheme");
    const char *name = json_is_string(value) ? json_string_value(value) : "";
    bool prefix = false;
    SPW_TRY(spw_tok_get_bool(l, object, path, "add_prefix_space", true, &prefix));
    if (!value || !strcmp(name, "always"))
        *scheme = SPW_TOK_SCHEME_ALWAYS;
    else if (!strcmp(name, "first"))
        *scheme = SPW_TOK_SCHEME_FIRST;
    else if (!strcmp(name, "never"))
        *scheme = SPW_TOK_SCHEME_NEVER;
    else
        return spw_tok_bad(l, -EINVAL, path, "prepend_scheme", value, "always, first or never");
    if (!prefix && value && *scheme != SPW_TOK_SCHEME_NEVER)
        return spw_tok_bad(l, -EINVAL, path, "prepend_scheme", value,
                           "never, because add_prefix_space is false");
    if (!prefix)
        *scheme = SPW_TOK_SCHEME_NEVER;
    return 0;
}

/* The rewriting, then the split before each replacement character. */
static int load_metaspace(const struct spw_tok_loader *l, const json_t *object, const char *path)
{
    struct spw_tokenizer *t = l->t;
    struct spw_tok_pre *pre = &t->pres[t->n_pres++];
    bool split = false;
    pre->kind = SPW_TOK_PRE_METASPACE;
    SPW_TRY(
        load_character(l, object, path, "replacement", pre->replacement, &pre->replacement_bytes));
    SPW_TRY(load_scheme(l, object, path, &pre->scheme));
    SPW_TRY(spw_tok_get_bool(l, object, path, "split", true, &split));
    if (!split)
        return 0;
    struct spw_tok_pre *cut = &t->pres[t->n_pres++];
    cut->kind = SPW_TOK_PRE_SPLIT;
    cut->behavior = SPW_TOK_MERGED_WITH_NEXT;
    return spw_tok_pattern_literal(&cut->pattern, pre->replacement, pre->replacement_bytes);
}

static int load_simple_split(const struct spw_tok_loader *l, const json_t *object, const char *path,
                             const char *type, bool *known)
{
    struct spw_tokenizer *t = l->t;
    struct spw_tok_pre *pre = &t->pres[t->n_pres];
    *known = true;
    if (!strcmp(type, "Split")) {
        t->n_pres++;
        return load_split(l, object, path, pre);
    }
    if (!strcmp(type, "Digits")) {
        bool each = false;
        SPW_TRY(spw_tok_get_bool(l, object, path, "individual_digits", false, &each));
        pre->kind = SPW_TOK_PRE_DIGITS;
        pre->behavior = each ? SPW_TOK_ISOLATED : SPW_TOK_CONTIGUOUS;
    } else if (!strcmp(type, "Punctuation")) {
        pre->kind = SPW_TOK_PRE_PUNCTUATION;
        if (json_object_get(object, "behavior"))
            SPW_TRY(load_behavior(l, object, path, pre));
    } else if (!strcmp(type, "Whitespace")) {
        pre->kind = SPW_TOK_PRE_WORDS;
        pre->behavior = SPW_TOK_REMOVED;
        pre->invert = true;
    } else if (!strcmp(type, "WhitespaceSplit")) {
        pre->kind = SPW_TOK_PRE_SPACES;
        pre->behavior = SPW_TOK_REMOVED;
    } else {
        *known = false;
        return 0;
    }
    t->n_pres++;
    return 0;
}

static int load_pre(const struct spw_tok_loader *l, const json_t *object, const char *path,
                    int depth)
{
    const char *type = NULL;
    bool known = false;
    SPW_TRY(read_type(l, object, path, depth, &type));
    if (!strcmp(type, "Sequence"))
        return load_sequence(l, object, path, "pretokenizers", depth, load_pre);
    if (l->t->n_pres + 3 > SPW_TOK_MAX_OPS) /* what one of them may need */
        return too_many(l, object, path);
    if (!strcmp(type, "ByteLevel"))
        return load_byte_level(l, object, path);
    if (!strcmp(type, "Metaspace"))
        return load_metaspace(l, object, path);
    SPW_TRY(load_simple_split(l, object, path, type, &known));
    return known ? 0
                 : spw_tok_bad(l, -ENOTSUP, path, "type", json_object_get(object, "type"),
                               PRE_TOKENIZERS);
}

/* ---- post_processor ---- */

/* The ids that template.special_tokens gives for one piece {"SpecialToken": {"id": name}}. */
static int special_ids(const struct spw_tok_loader *l, const json_t *object, const char *path,
                       const char *name, struct spw_tok_ids *ids)
{
    const json_t *special = json_object_get(json_object_get(object, "special_tokens"), name);
    const json_t *list = json_object_get(special, "ids");
    if (!json_is_array(list))
        return spw_fail(l->err, -EINVAL,
                        "%s: %s.special_tokens: found no list of ids for \"%.40s\", expected one "
                        "for each token of the template",
                        l->name, path, name);
    for (size_t i = 0; i < json_array_size(list); i++) {
        int32_t id = 0;
        SPW_TRY(spw_tok_get_id(l, json_array_get(list, i), path, "special_tokens", &id));
        SPW_TRY(spw_tok_ids_add(ids, id));
    }
    return 0;
}

/* Splits the template at its $A into what comes before and after. */
static int read_template(const struct spw_tok_loader *l, const json_t *object, const char *path,
                         struct spw_tok_ids *before, struct spw_tok_ids *after)
{
    const json_t *single = json_object_get(object, "single");
    size_t n_texts = 0;
    if (!json_is_array(single))
        return spw_tok_bad(l, -EINVAL, path, "single", single, "a list");
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *piece = json_array_get(single, i);
        const json_t *special = json_object_get(json_object_get(piece, "SpecialToken"), "id");
        const json_t *sequence = json_object_get(json_object_get(piece, "Sequence"), "id");
        if (json_is_string(special))
            SPW_TRY(
                special_ids(l, object, path, json_string_value(special), n_texts ? after : before));
        else if (json_is_string(sequence) && !strcmp(json_string_value(sequence), "A"))
            n_texts++;
        else
            return spw_tok_bad(l, -ENOTSUP, path, "single", piece,
                               "pieces SpecialToken and Sequence A");
    }
    if (n_texts != 1)
        return spw_tok_bad(l, -ENOTSUP, path, "single", single, "exactly one piece Sequence A");
    return 0;
}

static int append_ids(struct spw_tok_ids *to, const struct spw_tok_ids *from)
{
    for (size_t i = 0; i < from->n; i++)
        SPW_TRY(spw_tok_ids_add(to, from->at[i]));
    return 0;
}

/* A later template goes around what the earlier ones made. */
static int load_template(const struct spw_tok_loader *l, const json_t *object, const char *path)
{
    struct spw_tokenizer *t = l->t;
    struct spw_tok_ids before = {0}, after = {0};
    int rc = read_template(l, object, path, &before, &after);
    if (!rc)
        rc = append_ids(&before, &t->prefix);
    if (!rc)
        rc = append_ids(&t->suffix, &after);
    if (!rc) {
        struct spw_tok_ids old = t->prefix;
        t->prefix = before;
        before = old;
    }
    spw_free(before.at);
    spw_free(after.at);
    return rc;
}

static int load_post(const struct spw_tok_loader *l, const json_t *object, const char *path,
                     int depth)
{
    const char *type = NULL;
    SPW_TRY(read_type(l, object, path, depth, &type));
    if (!strcmp(type, "Sequence"))
        return load_sequence(l, object, path, "processors", depth, load_post);
    if (!strcmp(type, "ByteLevel")) /* trims offsets, which nobody here asks for */
        return 0;
    if (!strcmp(type, "TemplateProcessing"))
        return load_template(l, object, path);
    return spw_tok_bad(l, -ENOTSUP, path, "type", json_object_get(object, "type"), POST_PROCESSORS);
}

/* ---- decoder ---- */

static const struct {
    const char *type;
    enum spw_tok_dec_kind kind;
} dec_kinds[] = {
    {"ByteLevel", SPW_TOK_DEC_BYTE_LEVEL},
    {"ByteFallback", SPW_TOK_DEC_BYTE_FALLBACK},
    {"Fuse", SPW_TOK_DEC_FUSE},
    {"Replace", SPW_TOK_DEC_REPLACE},
    {"Strip", SPW_TOK_DEC_STRIP},
    {"Metaspace", SPW_TOK_DEC_METASPACE},
};

static int load_cut(const struct spw_tok_loader *l, const json_t *object, const char *path,
                    const char *key, size_t *out)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        json_integer_value(value) > MAX_CUT)
        return spw_tok_bad(l, -EINVAL, path, key, value, "a number from 0 to 4096");
    *out = (size_t)json_integer_value(value);
    return 0;
}

static int fill_dec(const struct spw_tok_loader *l, const json_t *object, const char *path,
                    struct spw_tok_dec *dec)
{
    enum spw_tok_scheme scheme = SPW_TOK_SCHEME_ALWAYS;
    switch (dec->kind) {
    case SPW_TOK_DEC_REPLACE:
        SPW_TRY(load_pattern(l, object, path, &dec->pattern));
        return copy_text(l, object, path, "content", &dec->content, &dec->content_bytes);
    case SPW_TOK_DEC_STRIP:
        SPW_TRY(load_cut(l, object, path, "start", &dec->start));
        SPW_TRY(load_cut(l, object, path, "stop", &dec->stop));
        return load_character(l, object, path, "content", dec->character, &dec->character_bytes);
    case SPW_TOK_DEC_METASPACE:
        SPW_TRY(load_scheme(l, object, path, &scheme));
        dec->drop_first = scheme != SPW_TOK_SCHEME_NEVER;
        return load_character(l, object, path, "replacement", dec->character,
                              &dec->character_bytes);
    default:
        return 0;
    }
}

static int load_dec(const struct spw_tok_loader *l, const json_t *object, const char *path,
                    int depth)
{
    struct spw_tokenizer *t = l->t;
    const char *type = NULL;
    SPW_TRY(read_type(l, object, path, depth, &type));
    if (!strcmp(type, "Sequence"))
        return load_sequence(l, object, path, "decoders", depth, load_dec);
    for (size_t i = 0; i < sizeof dec_kinds / sizeof *dec_kinds; i++) {
        if (strcmp(type, dec_kinds[i].type))
            continue;
        if (t->n_decs == SPW_TOK_MAX_OPS)
            return too_many(l, object, path);
        struct spw_tok_dec *dec = &t->decs[t->n_decs++];
        dec->kind = dec_kinds[i].kind;
        return fill_dec(l, object, path, dec);
    }
    return spw_tok_bad(l, -ENOTSUP, path, "type", json_object_get(object, "type"), DECODERS);
}

/* ---- all four ---- */

int spw_tok_load_pipeline(const struct spw_tok_loader *l, const json_t *root)
{
    static const struct {
        const char *key;
        load_node load;
    } parts[] = {
        {"normalizer", load_norm},
        {"pre_tokenizer", load_pre},
        {"post_processor", load_post},
        {"decoder", load_dec},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const json_t *node = json_object_get(root, parts[i].key);
        if (node && !json_is_null(node))
            SPW_TRY(parts[i].load(l, node, parts[i].key, 0));
        else if (parts[i].load == load_dec)
            l->t->decs[l->t->n_decs++].kind = SPW_TOK_DEC_JOIN;
    }
    return 0;
}
