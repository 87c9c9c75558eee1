/* normalizer, pre_tokenizer, post_processor and decoder of tokenizer.json, each of them flattened
 * from nested Sequences into one list of steps. */
#include "model/text/tokenizer/tokenizer_gguf_pre.h"
#include "model/text/tokenizer/tokenizer_json.h"

#include <nettle/base64.h>
#include <stdio.h>
#include <string.h>

#define MAX_DEPTH 8
#define PATH_BYTES 160
#define MAX_CUT 4096 /* characters that a Strip decoder may be told to cut */

/* ---- the parts ---- */

/* The keys of a step. */
enum {
    PREPEND = 1,
    CONTENT = 2,
    PATTERN = 4,
    ENDS = 8,          /* strip_left, strip_right */
    BEHAVIOR = 16,     /* behavior */
    INVERT = 32,       /* invert */
    EACH_DIGIT = 64,   /* individual_digits */
    CHARACTER = 128,   /* content: one character */
    REPLACEMENT = 256, /* replacement: the same; and what is put in front of a text */
    CUTS = 512,        /* start, stop */
    CHARSMAP = 1024,   /* precompiled_charsmap */
};

/* A kind of step. */
struct row {
    const char *type;
    enum spw_tok_kind kind;
    unsigned keys;
    const char *pattern; /* of the kind itself */
    enum spw_tok_behavior behavior;
    bool invert;
    /* Several steps or none, instead of the above. */
    int (*load)(const struct spw_tok_loader *l, const json_t *object, const char *path);
};

static int load_byte_level(const struct spw_tok_loader *l, const json_t *object, const char *path);
static int load_metaspace(const struct spw_tok_loader *l, const json_t *object, const char *path);
static int load_template(const struct spw_tok_loader *l, const json_t *object, const char *path);
static int load_roberta(const struct spw_tok_loader *l, const json_t *object, const char *path);
/* It trims offsets, which nobody here asks for. */
static int load_nothing(const struct spw_tok_loader *l, const json_t *object, const char *path);

#define WORDS "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200C}\\x{200D}" /* \w of Rust */

static const struct row norm_rows[] = {
    {.type = "NFC", .kind = SPW_TOK_NFC},
    {.type = "NFD", .kind = SPW_TOK_NFD},
    {.type = "NFKC", .kind = SPW_TOK_NFKC},
    {.type = "NFKD", .kind = SPW_TOK_NFKD},
    {.type = "Prepend", .kind = SPW_TOK_PREPEND, .keys = PREPEND},
    {.type = "Replace", .kind = SPW_TOK_REPLACE, .keys = PATTERN | CONTENT},
    {.type = "Strip", .kind = SPW_TOK_STRIP, .keys = ENDS},
    {.type = "Lowercase", .kind = SPW_TOK_LOWERCASE},
    {.type = "Precompiled", .kind = SPW_TOK_CHARSMAP, .keys = CHARSMAP},
    {0},
};

static const struct row pre_rows[] = {
    {.type = "Split", .kind = SPW_TOK_PRE_SPLIT, .keys = BEHAVIOR | INVERT | PATTERN},
    {.type = "Digits", .kind = SPW_TOK_PRE_SPLIT, .pattern = "\\p{N}", .keys = EACH_DIGIT},
    {.type = "Punctuation",
     .kind = SPW_TOK_PRE_SPLIT,
     .pattern = "[!-/:-@\\[-`{-~\\p{P}]",
     .keys = BEHAVIOR},
    {.type = "Whitespace",
     .kind = SPW_TOK_PRE_SPLIT,
     .pattern = "[" WORDS "]+|[^" WORDS "\\s]+",
     .behavior = SPW_TOK_REMOVED,
     .invert = true},
    {.type = "WhitespaceSplit",
     .kind = SPW_TOK_PRE_SPLIT,
     .pattern = "\\s",
     .behavior = SPW_TOK_REMOVED},
    {.type = "ByteLevel", .load = load_byte_level},
    {.type = "Metaspace", .load = load_metaspace},
    {0},
};

static const struct row post_rows[] = {
    {.type = "ByteLevel", .load = load_nothing},
    {.type = "TemplateProcessing", .load = load_template},
    {.type = "RobertaProcessing", .load = load_roberta},
    {0},
};

static const struct row dec_rows[] = {
    {.type = "ByteLevel", .kind = SPW_TOK_DEC_BYTE_LEVEL},
    {.type = "ByteFallback", .kind = SPW_TOK_DEC_BYTE_FALLBACK},
    {.type = "Fuse", .kind = SPW_TOK_DEC_FUSE},
    {.type = "Replace", .kind = SPW_TOK_REPLACE, .keys = PATTERN | CONTENT},
    {.type = "Strip", .kind = SPW_TOK_DEC_STRIP, .keys = CUTS | CHARACTER},
    {.type = "Metaspace", .kind = SPW_TOK_DEC_METASPACE, .keys = REPLACEMENT},
    {0},
};

struct part {
    const char *key;
    const char *members; /* the key of a Sequence's list */
    const struct row *rows;
    const char *expected;
};

enum { NORM, PRE, POST, DEC, N_PARTS };

static const struct part parts[N_PARTS] = {
    [NORM] = {"normalizer", "normalizers", norm_rows,
              "Sequence, NFC, NFD, NFKC, NFKD, Prepend, Replace, Lowercase, Precompiled or Strip"},
    [PRE] = {"pre_tokenizer", "pretokenizers", pre_rows,
             "Sequence, ByteLevel, Split, Metaspace, Digits, Punctuation, Whitespace or "
             "WhitespaceSplit"},
    [POST] = {"post_processor", "processors", post_rows,
              "Sequence, TemplateProcessing, RobertaProcessing or ByteLevel"},
    [DEC] = {"decoder", "decoders", dec_rows,
             "Sequence, ByteLevel, Replace, ByteFallback, Fuse, Strip or Metaspace"},
};

/* NULL: a post-processor has no steps. */
static struct spw_tok_steps *steps_of(const struct spw_tok_loader *l, int part)
{
    return part == NORM  ? &l->t->norms
           : part == PRE ? &l->t->pres
           : part == DEC ? &l->t->decs
                         : NULL;
}

/* ---- the keys of a step ---- */

static int load_regex(const struct spw_tok_loader *l, const char *path, const char *regex,
                      struct spw_tok_pattern *out)
{
    char where[PATH_BYTES + 256];
    snprintf(where, sizeof where, "%.200s: %s", l->name, path);
    return spw_tok_pattern_regex(out, l->t->regex_memory, regex, where, l->err);
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
    char where[PATH_BYTES + 16];
    snprintf(where, sizeof where, "%s.pattern.Regex", path);
    return load_regex(l, where, regex, out);
}

/* `character`: exactly one. */
static int load_content(const struct spw_tok_loader *l, const json_t *object, const char *path,
                        const char *key, bool character, struct spw_tok_step *step)
{
    const char *text = NULL;
    SPW_TRY(spw_tok_get_string(l, object, path, key, &text));
    if (character && (!*text || spw_tok_utf8_len(text) != strlen(text)))
        return spw_tok_bad(l, -EINVAL, path, key, json_object_get(object, key),
                           "a string of one character");
    step->content = spw_strdup(text);
    step->content_bytes = strlen(text);
    return step->content ? 0 : -ENOMEM;
}

/* The file has the bytes in base64. An empty text is a map without characters. */
static int load_charsmap(const struct spw_tok_loader *l, const json_t *object, const char *path,
                         struct spw_tok_step *step)
{
    const json_t *value = json_object_get(object, "precompiled_charsmap");
    const char *text = json_string_value(value);
    const size_t n = json_string_length(value);
    struct base64_decode_ctx decoder;
    base64_decode_init(&decoder);
    if (!text)
        return spw_tok_bad(l, -EINVAL, path, "precompiled_charsmap", value, "a string");
    step->content_bytes = BASE64_DECODE_LENGTH(n);
    step->content = spw_alloc(step->content_bytes + 1);
    if (!step->content)
        return -ENOMEM;
    if (!base64_decode_update(&decoder, &step->content_bytes, (uint8_t *)step->content, n, text) ||
        !base64_decode_final(&decoder) ||
        !spw_tok_charsmap_check(step->content, step->content_bytes))
        return spw_tok_bad(l, -EINVAL, path, "precompiled_charsmap", value,
                           "a map of characters in base64, as SentencePiece makes it");
    return 0;
}

/* One of `names`, which end in NULL: its number. */
static int load_name(const struct spw_tok_loader *l, const json_t *object, const char *path,
                     const char *key, const char *const *names, const char *expected, unsigned *out)
{
    const char *name = json_string_value(json_object_get(object, key));
    for (unsigned i = 0; name && names[i]; i++) {
        *out = i;
        if (!strcmp(name, names[i]))
            return 0;
    }
    return spw_tok_bad(l, -EINVAL, path, key, json_object_get(object, key), expected);
}

static int load_behavior(const struct spw_tok_loader *l, const json_t *object, const char *path,
                         struct spw_tok_step *step)
{
    static const char *const names[] = {
        [SPW_TOK_ISOLATED] = "Isolated",
        [SPW_TOK_REMOVED] = "Removed",
        [SPW_TOK_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
        [SPW_TOK_MERGED_WITH_NEXT] = "MergedWithNext",
        [SPW_TOK_CONTIGUOUS] = "Contiguous",
        NULL,
    };
    unsigned behavior = SPW_TOK_ISOLATED;
    if (step->pattern.code && !json_object_get(object, "behavior")) /* Punctuation */
        return 0;
    SPW_TRY(load_name(l, object, path, "behavior", names,
                      "Isolated, Removed, MergedWithPrevious, MergedWithNext or Contiguous",
                      &behavior));
    step->behavior = (enum spw_tok_behavior)behavior;
    return 0;
}

static int load_scheme(const struct spw_tok_loader *l, const json_t *object, const char *path,
                       struct spw_tok_step *step)
{
    static const char *const names[] = {
        [SPW_TOK_SCHEME_ALWAYS] = "always",
        [SPW_TOK_SCHEME_FIRST] = "first",
        [SPW_TOK_SCHEME_NEVER] = "never",
        NULL,
    };
    const json_t *value = json_object_get(object, "prepend_scheme");
    unsigned scheme = SPW_TOK_SCHEME_ALWAYS;
    bool prefix = false;
    SPW_TRY(spw_tok_get_bool(l, object, path, "add_prefix_space", true, &prefix));
    if (value)
        SPW_TRY(
            load_name(l, object, path, "prepend_scheme", names, "always, first or never", &scheme));
    if (!prefix && value && scheme != SPW_TOK_SCHEME_NEVER)
        return spw_tok_bad(l, -EINVAL, path, "prepend_scheme", value,
                           "never, because add_prefix_space is false");
    step->scheme = prefix ? (enum spw_tok_scheme)scheme : SPW_TOK_SCHEME_NEVER;
    return 0;
}

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

static int load_keys(const struct spw_tok_loader *l, const json_t *object, const char *path,
                     unsigned keys, struct spw_tok_step *step)
{
    bool each = false;
    if (keys & PREPEND)
        SPW_TRY(load_content(l, object, path, "prepend", false, step));
    if (keys & BEHAVIOR)
        SPW_TRY(load_behavior(l, object, path, step));
    if (keys & INVERT)
        SPW_TRY(spw_tok_get_bool(l, object, path, "invert", false, &step->invert));
    if (keys & PATTERN)
        SPW_TRY(load_pattern(l, object, path, &step->pattern));
    if (keys & CUTS) {
        SPW_TRY(load_cut(l, object, path, "start", &step->start));
        SPW_TRY(load_cut(l, object, path, "stop", &step->stop));
    }
    if (keys & (CONTENT | CHARACTER))
        SPW_TRY(load_content(l, object, path, "content", keys & CHARACTER, step));
    if (keys & REPLACEMENT) {
        SPW_TRY(load_content(l, object, path, "replacement", true, step));
        SPW_TRY(load_scheme(l, object, path, step));
    }
    if (keys & ENDS) {
        SPW_TRY(spw_tok_get_bool(l, object, path, "strip_left", true, &step->left));
        SPW_TRY(spw_tok_get_bool(l, object, path, "strip_right", true, &step->right));
    }
    if (keys & CHARSMAP)
        SPW_TRY(load_charsmap(l, object, path, step));
    if (keys & EACH_DIGIT) {
        SPW_TRY(spw_tok_get_bool(l, object, path, "individual_digits", false, &each));
        step->behavior = each ? SPW_TOK_ISOLATED : SPW_TOK_CONTIGUOUS;
    }
    return 0;
}

/* ---- pre-tokenizers of several steps ---- */

/* A leading space, GPT-2's split, and the byte stand-ins: up to three steps. */
static int load_byte_level(const struct spw_tok_loader *l, const json_t *object, const char *path)
{
    struct spw_tok_steps *pres = &l->t->pres;
    struct spw_tok_step *step;
    bool prefix = false, regex = false;
    SPW_TRY(spw_tok_get_bool(l, object, path, "add_prefix_space", true, &prefix));
    SPW_TRY(spw_tok_get_bool(l, object, path, "use_regex", true, &regex));
    if (prefix)
        SPW_TRY(spw_tok_build_step(pres, SPW_TOK_PRE_PREFIX_SPACE, NULL, &step));
    if (regex) {
        SPW_TRY(spw_tok_build_step(pres, SPW_TOK_PRE_SPLIT, NULL, &step));
        SPW_TRY(load_regex(l, path, SPW_TOK_GPT2_PATTERN, &step->pattern));
    }
    return spw_tok_build_step(pres, SPW_TOK_PRE_BYTES, NULL, &step);
}

/* The rewriting, then the split before each replacement character. */
static int load_metaspace(const struct spw_tok_loader *l, const json_t *object, const char *path)
{
    struct spw_tok_steps *pres = &l->t->pres;
    struct spw_tok_step *step, *cut;
    bool split = false;
    SPW_TRY(spw_tok_build_step(pres, SPW_TOK_PRE_METASPACE, NULL, &step));
    SPW_TRY(load_keys(l, object, path, REPLACEMENT, step));
    SPW_TRY(spw_tok_get_bool(l, object, path, "split", true, &split));
    if (!split)
        return 0;
    SPW_TRY(spw_tok_build_step(pres, SPW_TOK_PRE_SPLIT, NULL, &cut));
    cut->behavior = SPW_TOK_MERGED_WITH_NEXT;
    return spw_tok_pattern_literal(&cut->pattern, step->content, step->content_bytes);
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

/* "cls" before the text and "sep" after it: each is a list of the token and its id. */
static int read_roberta(const struct spw_tok_loader *l, const json_t *object, const char *path,
                        struct spw_tok_ids *before, struct spw_tok_ids *after)
{
    static const char *const keys[] = {"cls", "sep"};
    for (int i = 0; i < 2; i++) {
        int32_t id = 0;
        SPW_TRY(spw_tok_get_id(l, json_array_get(json_object_get(object, keys[i]), 1), path,
                               keys[i], &id));
        SPW_TRY(spw_tok_ids_add(i ? after : before, id));
    }
    return 0;
}

/* A later template goes around what the earlier ones made. */
static int load_around(const struct spw_tok_loader *l, const json_t *object, const char *path,
                       int (*read)(const struct spw_tok_loader *, const json_t *, const char *,
                                   struct spw_tok_ids *before, struct spw_tok_ids *after))
{
    struct spw_tokenizer *t = l->t;
    struct spw_tok_ids before = {0}, after = {0};
    int rc = read(l, object, path, &before, &after);
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

static int load_template(const struct spw_tok_loader *l, const json_t *object, const char *path)
{
    return load_around(l, object, path, read_template);
}

static int load_roberta(const struct spw_tok_loader *l, const json_t *object, const char *path)
{
    return load_around(l, object, path, read_roberta);
}

static int load_nothing(const struct spw_tok_loader *l, const json_t *object, const char *path)
{
    (void)l, (void)object, (void)path;
    return 0;
}

/* ---- all four ---- */

static int load_row(const struct spw_tok_loader *l, const json_t *object, const char *path,
                    const struct row *row, struct spw_tok_steps *steps)
{
    struct spw_tok_step *step;
    if (steps && steps->n + 3 > SPW_TOK_MAX_OPS) /* what one row may need */
        return spw_tok_bad(l, -ENOTSUP, path, "", object, "at most 62 steps in all");
    if (row->load)
        return row->load(l, object, path);
    SPW_TRY(spw_tok_build_step(steps, row->kind, NULL, &step));
    step->behavior = row->behavior;
    step->invert = row->invert;
    if (row->pattern)
        SPW_TRY(load_regex(l, path, row->pattern, &step->pattern));
    return load_keys(l, object, path, row->keys, step);
}

static int load_node(const struct spw_tok_loader *l, const json_t *object, const char *path,
                     int depth, int part)
{
    const struct part *its = &parts[part];
    const json_t *list = json_object_get(object, its->members);
    const char *type = NULL;
    if (!json_is_object(object))
        return spw_tok_bad(l, -EINVAL, path, "", object, "an object or null");
    if (depth == MAX_DEPTH)
        return spw_tok_bad(l, -ENOTSUP, path, "", object, "Sequences at most 8 deep");
    SPW_TRY(spw_tok_get_string(l, object, path, "type", &type));
    for (const struct row *row = its->rows; row->type; row++)
        if (!strcmp(type, row->type))
            return load_row(l, object, path, row, steps_of(l, part));
    if (strcmp(type, "Sequence") != 0)
        return spw_tok_bad(l, -ENOTSUP, path, "type", json_object_get(object, "type"),
                           its->expected);
    if (!json_is_array(list))
        return spw_tok_bad(l, -EINVAL, path, its->members, list, "a list");
    for (size_t i = 0; i < json_array_size(list); i++) {
        char member[PATH_BYTES];
        snprintf(member, sizeof member, "%s.%s[%zu]", path, its->members, i);
        SPW_TRY(load_node(l, json_array_get(list, i), member, depth + 1, part));
    }
    return 0;
}

int spw_tok_load_pipeline(const struct spw_tok_loader *l, const json_t *root)
{
    struct spw_tok_step *step;
    for (int i = 0; i < N_PARTS; i++) {
        const json_t *node = json_object_get(root, parts[i].key);
        if (node && !json_is_null(node))
            SPW_TRY(load_node(l, node, parts[i].key, 0, i));
        else if (i == DEC)
            SPW_TRY(spw_tok_build_step(&l->t->decs, SPW_TOK_DEC_JOIN, NULL, &step));
    }
    return 0;
}
