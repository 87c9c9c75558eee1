/* The tokenizer of a GGUF file: the same struct as from tokenizer.json.
 *
 *   model    kind of tokenizer      merges                     pre-tokenizer   spaces
 *   llama    SentencePiece BPE      tokens by score            none            U+2581
 *   gpt2     byte-level BPE         a list of merges           by name         bytes
 *   gemma4   BPE of characters      a list of merges           none            U+2581
 *   t5       SentencePiece Unigram  none: scores               none            U+2581
 *
 * A token has a type: normal, unknown, control (special), user-defined (taken out of the text
 * before everything else), unused, or byte. GGUF has no flags of tokens that take the white space
 * beside them: Phi-3 has such tokens, and a rule says which ones. */
#include "model/text/tokenizer/tokenizer_gguf.h"

#include "model/config/config_json.h"
#include "model/source/gguf_model.h"
#include "model/text/tokenizer/tokenizer_impl.h"
#include "model/text/tokenizer/tokenizer_gguf_pre.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { LLAMA, GPT2, GEMMA4, T5 };

struct loader {
    struct spw_tok_build build;
    const struct spw_gguf *g;
    struct spw_keys keys; /* "tokenizer.ggml.*" */
    const struct spw_gguf_value *tokens, *types, *scores, *merges;
    enum kind kind;
    const struct spw_tok_gguf_pre *pre;               /* GPT2 */
    const struct spw_gguf_architecture *architecture; /* NULL: none that is known */
};

/* ---- arrays ---- */

/* NULL: there is none. An array of strings, or of numbers. */
static int find_array(const struct loader *l, const char *key, bool strings,
                      const struct spw_gguf_value **out)
{
    char name[64];
    snprintf(name, sizeof name, "tokenizer.ggml.%s", key);
    *out = spw_gguf_find(l->g, name);
    if (!*out || ((*out)->array && ((*out)->type == SPW_GGUF_STRING) == strings))
        return 0;
    return spw_keys_refuse(&l->keys, key, strings ? "a list of strings" : "a list of numbers");
}

static int require_array(const struct loader *l, const char *key, bool strings,
                         const struct spw_gguf_value **out)
{
    SPW_TRY(find_array(l, key, strings, out));
    return *out ? 0 : spw_keys_refuse(&l->keys, key, "a list");
}

/* An array with an element for each token. */
static int check_length(const struct loader *l, const char *key, const struct spw_gguf_value *v)
{
    if (!v || v->n >= l->tokens->n)
        return 0;
    return spw_fail(l->build.err, -EINVAL,
                    "%s: tokenizer.ggml.%s: found %llu elements, expected one for each of %llu "
                    "tokens",
                    l->build.name, key, (unsigned long long)v->n, (unsigned long long)l->tokens->n);
}

static int find_arrays(struct loader *l)
{
    SPW_TRY(require_array(l, "tokens", true, &l->tokens));
    SPW_TRY(find_array(l, "token_type", false, &l->types));
    if (l->kind == LLAMA || l->kind == T5)
        SPW_TRY(require_array(l, "scores", false, &l->scores));
    else
        SPW_TRY(require_array(l, "merges", true, &l->merges));
    SPW_TRY(check_length(l, "token_type", l->types));
    return check_length(l, "scores", l->scores);
}

/* ---- tokens ---- */

struct token {
    int32_t id;
    enum token_type type;
    const char *text; /* borrowed from the file */
    size_t bytes;
    bool in_model, added;
};

/* Padding stands where the vocabulary has no token: "[PAD7]". Ollama counts the padding, others
 * the tokens. */
static bool is_padding(const struct token *t)
{
    static const char start[] = "[PAD";
    size_t n = sizeof start - 1;
    if ((t->type != UNUSED && t->type != USER_DEFINED) || t->bytes < n + 2 ||
        memcmp(t->text, start, n) != 0)
        return false;
    while (n < t->bytes && t->text[n] >= '0' && t->text[n] <= '9')
        n++;
    return n + 1 == t->bytes && n >= sizeof start && t->text[n] == ']';
}

/* "<0x0A>". Some files give such a token another type, or have no types. */
static bool is_byte(const struct spw_gguf_string *token)
{
    static const char digits[] = "0123456789ABCDEF";
    return token->bytes == 6 && !memcmp(token->at, "<0x", 3) && token->at[5] == '>' &&
           memchr(digits, token->at[3], 16) && memchr(digits, token->at[4], 16);
}

/* Calls `each` for every token. */
static int walk_tokens(const struct loader *l, void *arg,
                       int (*each)(const struct loader *l, const struct token *t, void *arg))
{
    const uint8_t *at = l->tokens->at, *end = at + l->tokens->bytes;
    struct spw_gguf_string s;
    for (uint64_t i = 0; i < l->tokens->n && spw_gguf_next_string(&at, end, &s); i++) {
        double type = l->types ? spw_gguf_number(l->types, i) : NORMAL;
        struct token t = {.id = (int32_t)i, .text = s.at, .bytes = s.bytes, .type = NORMAL};
        if (type >= NORMAL && type <= BYTE)
            t.type = (enum token_type)type;
        if (spw_gguf_is_control(&s, type))
            t.type = CONTROL;
        else if (l->kind != GPT2 && is_byte(&s))
            t.type = BYTE;
        t.added = t.type == UNKNOWN || t.type == CONTROL || t.type == USER_DEFINED;
        /* A merge may give an added token. Pieces of SentencePiece never merge into one. */
        t.in_model = !t.added || (l->kind != LLAMA && l->kind != T5);
        if (t.bytes && !is_padding(&t))
            SPW_TRY(each(l, &t, arg));
    }
    return 0;
}

static int refuse_token(const struct loader *l, const struct token *t, const char *found)
{
    return spw_fail(l->build.err, -EINVAL,
                    "%s: tokenizer.ggml.tokens[%d]: found %s, expected UTF-8 without a zero byte",
                    l->build.name, (int)t->id, found);
}

static int load_token(const struct loader *l, const struct token *t, void *unused)
{
    (void)unused;
    if (memchr(t->text, 0, t->bytes))
        return refuse_token(l, t, "a zero byte");
    if (spw_tok_valid(t->text, t->bytes) < t->bytes)
        return refuse_token(l, t, "bytes that are no character");
    if (t->type == BYTE)
        l->build.t->byte_fallback = true;
    return t->in_model ? spw_tok_build_token(&l->build, t->text, t->bytes, t->id) : 0;
}

bool spw_tok_gguf_greedy(const struct spw_gguf_architecture *a, const char *token, size_t bytes)
{
    static const char *const others[] = {"<unk>", "<s>", "<|endoftext|>"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (bytes == strlen(others[i]) && !memcmp(token, others[i], bytes))
            return false;
    return a && a->greedy_tokens;
}

static int load_added(const struct loader *l, const struct token *t, void *unused)
{
    struct spw_tok_added a = {.id = t->id,
                              .rstrip = l->kind == LLAMA &&
                                        spw_tok_gguf_greedy(l->architecture, t->text, t->bytes)};
    char path[64];
    (void)unused;
    if (!t->added)
        return 0;
    snprintf(path, sizeof path, "tokenizer.ggml.tokens[%d]", (int)t->id);
    return spw_tok_build_added(&l->build, &a, t->text, t->bytes, t->type != USER_DEFINED, path);
}

/* ---- scores and merges ---- */

/* NAN: the file has none; *rc gets -EINVAL. */
static float score_of(const struct loader *l, const struct token *t, int *rc)
{
    const float score = (float)spw_gguf_number(l->scores, (uint64_t)t->id);
    if (isnan(score))
        *rc = spw_fail(l->build.err, -EINVAL,
                       "%s: tokenizer.ggml.scores[%d]: found no number, expected one",
                       l->build.name, (int)t->id);
    return score;
}

struct scores {
    struct spw_tok_score *at;
    size_t n;
};

static int take_score(const struct loader *l, const struct token *t, void *arg)
{
    struct scores *s = arg;
    int rc = 0;
    if (t->type == NORMAL)
        s->at[s->n++] = (struct spw_tok_score){score_of(l, t, &rc), t->id};
    return rc;
}

static int load_scores(const struct loader *l)
{
    struct scores s = {.at = spw_alloc(l->tokens->n * sizeof *s.at)};
    int rc = s.at ? walk_tokens(l, &s, take_score) : -ENOMEM;
    if (!rc)
        rc = spw_tok_build_ranks(&l->build, s.at, s.n);
    spw_free(s.at);
    return rc;
}

/* Only normal tokens and those that users have defined are in a text. Files need not name the
 * unknown token: the types do. */
static int take_unigram(const struct loader *l, const struct token *t, void *arg)
{
    struct spw_tokenizer *to = l->build.t;
    double *least = arg, *score = &to->scores[t->id];
    int rc = 0;
    if (t->type == UNKNOWN && !to->has_unk) {
        to->has_unk = to->fuse_unk = true;
        to->unk_id = (int32_t)t->id;
    }
    *score = t->type == NORMAL ? (double)score_of(l, t, &rc) : -INFINITY;
    if (t->type == NORMAL)
        *least = fmin(*least, *score);
    return rc;
}

static int load_unigram(const struct loader *l)
{
    struct spw_tokenizer *t = l->build.t;
    double least = INFINITY;
    t->model = SPW_TOK_UNIGRAM;
    SPW_TRY(spw_grow(&t->scores, &t->score_capacity, t->n_entries, sizeof *t->scores));
    SPW_TRY(walk_tokens(l, &least, take_unigram));
    t->unknown_score = (isfinite(least) ? least : 0) - 10;
    return 0;
}

/* "left right": the space is not the first character, which may itself be one. */
static int load_merges(const struct loader *l)
{
    const uint8_t *at = l->merges->at, *end = at + l->merges->bytes;
    struct spw_gguf_string s;
    struct spw_tok_buf joined = {0};
    int rc = spw_tok_merges_init(l->build.t, l->merges->n);
    for (uint64_t i = 0; i < l->merges->n && !rc && spw_gguf_next_string(&at, end, &s); i++) {
        const char *space = s.bytes > 1 ? memchr(s.at + 1, ' ', s.bytes - 1) : NULL;
        size_t left = space ? (size_t)(space - s.at) : 0;
        if (!space || i > UINT32_MAX - 1) {
            rc =
                spw_fail(l->build.err, -EINVAL,
                         "%s: tokenizer.ggml.merges[%llu]: found no space, expected \"LEFT RIGHT\"",
                         l->build.name, (unsigned long long)i);
            break;
        }
        joined.n = 0;
        rc = spw_tok_buf_append(&joined, s.at, left);
        if (!rc)
            rc = spw_tok_buf_append(&joined, space + 1, s.bytes - left - 1);
        if (!rc)
            rc = spw_tok_build_merge(&l->build, joined.data, joined.n, left, (uint32_t)i);
    }
    spw_tok_buf_free(&joined);
    return rc;
}

/* ---- the steps around the model ---- */

/* The steps of SentencePiece. Only files of T5 have its map of characters, and no space more than
 * one. */
static int mark_spaces(const struct loader *l, bool prefix)
{
    const char *key = "tokenizer.ggml.precompiled_charsmap";
    const struct spw_gguf_value *map = l->kind == T5 ? spw_gguf_find(l->g, key) : NULL;
    struct spw_tok_spaces s = {.prefix = prefix, .strips = l->kind == T5};
    if (l->kind == T5)
        SPW_TRY(spw_keys_bool(&l->keys, "remove_extra_whitespaces", &s.strips));
    if (map) {
        s.charsmap = (const char *)map->at;
        s.charsmap_bytes = map->bytes;
        if (!map->array || map->n != map->bytes ||
            !spw_tok_charsmap_check(s.charsmap, s.charsmap_bytes))
            return spw_fail(l->build.err, -EINVAL,
                            "%s: %s: found no map of characters, expected one of SentencePiece",
                            l->build.name, key);
    }
    return spw_tok_build_spaces(&l->build, &s);
}

static int split_bytes(const struct loader *l)
{
    struct spw_tokenizer *t = l->build.t;
    struct spw_tok_step *step;
    char where[320];
    if (l->pre->nfc)
        SPW_TRY(spw_tok_build_step(&t->norms, SPW_TOK_NFC, NULL, &step));
    snprintf(where, sizeof where, "%.200s: tokenizer.ggml.pre", l->build.name);
    for (int i = 0; i < SPW_TOK_GGUF_SPLITS && l->pre->splits[i]; i++) {
        SPW_TRY(spw_tok_build_step(&t->pres, SPW_TOK_PRE_SPLIT, NULL, &step));
        SPW_TRY(spw_tok_pattern_regex(&step->pattern, t->regex_memory, l->pre->splits[i], where,
                                      l->build.err));
    }
    t->ignore_merges = l->pre->ignore_merges;
    SPW_TRY(spw_tok_build_step(&t->pres, SPW_TOK_PRE_BYTES, NULL, &step));
    return spw_tok_build_step(&t->decs, SPW_TOK_DEC_BYTE_LEVEL, NULL, &step);
}

/* The token that goes in front of a text, or behind it. Gemma 4 needs its bos: files of its first
 * days say false, and llama.cpp does not read the key either. */
static int add_special(const struct loader *l, const char *flag, bool otherwise, const char *key,
                       struct spw_tok_ids *ids)
{
    uint32_t id = UINT32_MAX;
    bool add = otherwise;
    SPW_TRY(spw_keys_bool(&l->keys, flag, &add));
    if (!spw_keys_has(&l->keys, key))
        return add && spw_keys_has(&l->keys, flag)
                   ? spw_keys_refuse(&l->keys, key, "the id of a token")
                   : 0;
    if (!add && !(otherwise && l->kind == GEMMA4))
        return 0;
    SPW_TRY(spw_keys_u32(&l->keys, key, 0, (uint32_t)l->tokens->n - 1, &id));
    return spw_tok_ids_add(ids, (int32_t)id);
}

static int load_steps(struct loader *l)
{
    struct spw_tokenizer *t = l->build.t;
    const bool marks = l->kind == LLAMA || l->kind == T5; /* spaces in front, too */
    bool prefix = marks && !(l->architecture && l->architecture->plain_start);
    const bool bos = l->kind == GPT2 ? l->pre->bos : l->kind != T5;
    /* Ollama's converter does not write this key. */
    SPW_TRY(spw_keys_bool(&l->keys, "add_space_prefix", &prefix));
    SPW_TRY(add_special(l, "add_bos_token", bos, "bos_token_id", &t->prefix));
    SPW_TRY(add_special(l, "add_eos_token", l->kind == T5, "eos_token_id", &t->suffix));
    return l->kind == GPT2 ? split_bytes(l) : mark_spaces(l, prefix && marks);
}

/* ---- all of it ---- */

static bool has_token(const struct loader *l, const char *text)
{
    const struct spw_gguf_value *v = spw_gguf_find(l->g, "tokenizer.ggml.tokens");
    const uint8_t *at = v ? v->at : NULL, *end = v ? at + v->bytes : NULL;
    const bool strings = v && v->array && v->type == SPW_GGUF_STRING;
    struct spw_gguf_string s;
    for (uint64_t i = 0; strings && i < v->n && spw_gguf_next_string(&at, end, &s); i++)
        if (s.bytes == strlen(text) && !memcmp(s.at, text, s.bytes))
            return true;
    return false;
}

/* The pre-tokenizer of a file that names none. Ollama's converter knows few of them, and its engine
 * took that of the architecture. */
static const char *usual_pre(const struct loader *l, const char *pre)
{
    const struct spw_gguf_architecture *a = l->architecture;
    if (strcmp(pre, "default") != 0 || !a || !a->other_pre)
        return pre;
    return !a->pre_token || has_token(l, a->pre_token) ? a->other_pre : pre;
}

static int read_kind(struct loader *l)
{
    static const char *const names[] = {
        [LLAMA] = "llama", [GPT2] = "gpt2", [GEMMA4] = "gemma4", [T5] = "t5"};
    const char *model = NULL, *pre = "default";
    SPW_TRY(spw_keys_string(&l->keys, "model", &model));
    SPW_TRY(spw_keys_string(&l->keys, "pre", &pre));
    if (model && !strcmp(model, "llama") && !strcmp(pre, "gemma4")) /* so Ollama writes it */
        model = "gemma4";
    for (l->kind = LLAMA; l->kind <= T5 && strcmp(model ? model : "", names[l->kind]);)
        l->kind++;
    if (l->kind > T5) {
        spw_keys_refuse(&l->keys, "model", "llama, gpt2, gemma4 or t5");
        return -ENOTSUP;
    }
    l->pre = l->kind == GPT2 ? spw_tok_gguf_pre_find(usual_pre(l, pre)) : NULL;
    if (l->kind != GPT2 || l->pre)
        return 0;
    spw_keys_refuse(&l->keys, "pre", SPW_TOK_GGUF_PRES);
    return -ENOTSUP;
}

static int read_unknown(struct loader *l)
{
    struct spw_tokenizer *t = l->build.t;
    uint32_t id = UINT32_MAX;
    t->unk_id = -1;
    if (l->kind == GPT2)
        return 0;
    SPW_TRY(spw_keys_u32(&l->keys, "unknown_token_id", 0, (uint32_t)t->n_entries - 1, &id));
    t->has_unk = t->fuse_unk = id != UINT32_MAX;
    t->unk_id = t->has_unk ? (int32_t)id : -1;
    return 0;
}

static int load(struct loader *l)
{
    SPW_TRY(read_kind(l));
    SPW_TRY(find_arrays(l));
    if (!l->tokens->n || l->tokens->n > SPW_TOK_MAX_ID)
        return spw_keys_refuse(&l->keys, "tokens", "1 to 4194303 tokens");
    SPW_TRY(spw_tok_build_ids(&l->build, l->tokens->n));
    SPW_TRY(walk_tokens(l, NULL, load_token));
    spw_tok_build_characters(&l->build);
    SPW_TRY(read_unknown(l));
    SPW_TRY(l->kind == LLAMA ? load_scores(l) : l->kind == T5 ? load_unigram(l) : load_merges(l));
    SPW_TRY(load_steps(l));
    SPW_TRY(walk_tokens(l, NULL, load_added));
    return spw_tok_build_finish(&l->build);
}

bool spw_tokenizer_gguf_is_there(const struct spw_gguf *g)
{
    static const char *const none[] = {"no_vocab", "none"};
    const struct spw_gguf_value *v = spw_gguf_find(g, "tokenizer.ggml.model");
    const uint8_t *at = v ? v->at : NULL;
    struct spw_gguf_string kind;
    if (!v || v->array || v->type != SPW_GGUF_STRING ||
        !spw_gguf_next_string(&at, at + v->bytes, &kind))
        return v != NULL; /* the reader of the key says what is wrong */
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        if (kind.bytes == strlen(none[i]) && !memcmp(kind.at, none[i], kind.bytes))
            return false;
    return true;
}

int spw_tokenizer_parse_gguf(struct spw_tokenizer **out, const struct spw_gguf *g, const char *name,
                             struct spw_error *err)
{
    *out = NULL;
    if (!spw_tokenizer_gguf_is_there(g))
        return spw_fail(err, -ENOENT, "%s: found no tokenizer (key tokenizer.ggml.model)", name);
    struct spw_tokenizer *t = spw_tok_new(err);
    struct loader l = {.build = {t, name, err, "tokenizer.ggml.tokens", "tokenizer.ggml.merges"},
                       .g = g};
    json_t *object = NULL;
    int rc = t ? spw_gguf_read_architecture(g, name, &l.architecture, NULL) : -ENOMEM;
    if (rc != -ENOMEM) /* an architecture that is not known has no rules */
        rc = spw_gguf_tokenizer_keys(g, &object, NULL) ? -ENOMEM : 0;
    l.keys =
        (struct spw_keys){.file = name, .prefix = "tokenizer.ggml.", .object = object, .err = err};
    if (!rc)
        rc = load(&l);
    json_decref(object);
    return spw_tok_opened(out, t, rc, name, err);
}
