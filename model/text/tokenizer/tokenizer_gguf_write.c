/* A tokenizer as keys of a GGUF file: the inverse of tokenizer_gguf.c. What GGUF has no keys for is
 * refused, or noted where texts with it are rare.
 *
 * SentencePiece has scores instead of merges: two tokens merge if their texts together are a token,
 * the best score first. The score of a token is minus the rank of its merges. This gives the same
 * tokens if the merges of a token follow each other in the list, and if the list has all of them:
 * so it is if the list was made from scores. In files of gemma4 such tokenizers have merges. */
#include "model/text/tokenizer/tokenizer_gguf.h"
#include "model/text/tokenizer/tokenizer_gguf_pre.h"
#include "model/text/tokenizer/tokenizer_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct writer {
    struct spw_gguf_writer *w;
    const struct spw_tokenizer *t;
    const struct spw_model_config *config;
    const struct spw_gguf_architecture *architecture; /* NULL: GGUF has none for the model */
    const char *name;
    struct spw_gguf_notes *notes;
    struct spw_error *err;
    bool marks;  /* U+2581 in the place of spaces; else byte-level */
    bool merged; /* such a tokenizer has merges, not scores */
    bool pieces; /* it has scores of its own: Unigram */
    bool prefix; /* it puts a space in front of a text */
    bool strips; /* it makes one space of several */
    const struct spw_tok_gguf_pre *pre;
    struct spw_tok_merge *merges; /* owned, by rank */
    size_t n_merges;
};

static bool has_scores(const struct writer *w)
{
    return w->marks && !w->merged;
}

static struct spw_gguf_string text_of(const struct spw_tokenizer *t, uint32_t id)
{
    return (struct spw_gguf_string){t->blob.data + t->entries[id].offset, t->entries[id].bytes};
}

static int refuse(const struct writer *w, const char *part, const char *found, const char *expected)
{
    return spw_fail(w->err, -ENOTSUP,
                    "%s: %s: found %s, which a GGUF file cannot store, expected %s", w->name, part,
                    found, expected);
}

/* ---- kinds ---- */

static bool is_literal(const struct spw_tok_pattern *p, const char *text)
{
    return !p->code && p->literal && p->literal_bytes == strlen(text) &&
           !memcmp(p->literal, text, p->literal_bytes);
}

/* Of a byte-level tokenizer: the patterns that split a text. */
static bool read_splits(const struct spw_tokenizer *t, const char *splits[SPW_TOK_GGUF_SPLITS])
{
    const size_t n = t->pres.n - 1; /* the last one makes bytes */
    if (n > SPW_TOK_GGUF_SPLITS)
        return false;
    for (size_t i = 0; i < n; i++) {
        const struct spw_tok_step *p = &t->pres.at[i];
        if (p->kind != SPW_TOK_PRE_SPLIT || !p->pattern.code || p->invert ||
            p->behavior != SPW_TOK_ISOLATED)
            return false;
        splits[i] = p->pattern.literal;
    }
    return true;
}

static int read_byte_level(struct writer *w)
{
    const struct spw_tokenizer *t = w->t;
    const char *splits[SPW_TOK_GGUF_SPLITS] = {0};
    const bool nfc = t->norms.n == 1 && t->norms.at[0].kind == SPW_TOK_NFC;
    if (t->norms.n && !nfc)
        return refuse(w, "normalizer", "a step", "NFC or none, as byte-level tokenizers have");
    if (read_splits(t, splits))
        w->pre = spw_tok_gguf_pre_like(splits, t->ignore_merges, nfc);
    if (!w->pre)
        return refuse(w, "pre_tokenizer", "patterns", "those of " SPW_TOK_GGUF_PRES);
    if (w->pre->nfc != nfc)
        spw_gguf_note(w->notes, "the tokenizer of the folder does not normalize a text as that of "
                                "the file does (NFC): other tokens are possible where a letter "
                                "and its accent are two characters");
    return 0;
}

/* Metaspace puts a space in front of some texts only. */
static bool read_metaspace(struct writer *w)
{
    const struct spw_tokenizer *t = w->t;
    const struct spw_tok_step *p = &t->pres.at[0];
    if (t->norms.n || !t->pres.n || p->kind != SPW_TOK_PRE_METASPACE ||
        p->content_bytes != strlen(SPACE_MARK) ||
        memcmp(p->content, SPACE_MARK, p->content_bytes) != 0 || t->pres.n > 2 ||
        (t->pres.n == 2 && !is_literal(&t->pres.at[1].pattern, SPACE_MARK)))
        return false;
    w->prefix = p->scheme != SPW_TOK_SCHEME_NEVER;
    if (w->prefix)
        spw_gguf_note(w->notes, "the tokenizer of the file puts a space in front of every text "
                                "between special tokens, that of the folder only in front of some");
    return true;
}

static int read_sentencepiece(struct writer *w)
{
    const struct spw_tokenizer *t = w->t;
    const struct spw_tok_step *replace = t->norms.n ? &t->norms.at[t->norms.n - 1] : NULL;
    w->marks = true;
    w->prefix = t->norms.n == 2;
    /* After the replacement, no text has a space that could be split at. */
    const bool never_splits = t->pres.n == 1 && t->pres.at[0].kind == SPW_TOK_PRE_SPLIT &&
                              is_literal(&t->pres.at[0].pattern, " ");
    const bool prepend = !w->prefix || (t->norms.at[0].kind == SPW_TOK_PREPEND &&
                                        !strcmp(t->norms.at[0].content, SPACE_MARK));
    const bool marks = replace && t->norms.n <= 2 && replace->kind == SPW_TOK_REPLACE &&
                       is_literal(&replace->pattern, " ") && !strcmp(replace->content, SPACE_MARK);
    if (t->ignore_merges)
        return refuse(w, "model.ignore_merges", "true", "false, as other SentencePiece models");
    if ((marks && prepend && (!t->pres.n || never_splits)) || read_metaspace(w))
        return 0;
    return refuse(w, "normalizer and pre_tokenizer", "other steps",
                  "those of a byte-level tokenizer, or U+2581 in the place of spaces");
}

/* A SentencePiece model: the steps of spw_tok_build_spaces. */
static int read_model(struct writer *w)
{
    w->marks = w->pieces = true;
    for (size_t i = 0; i < w->t->norms.n; i++) {
        const struct spw_tok_step *step = &w->t->norms.at[i];
        w->prefix |= step->kind == SPW_TOK_PREPEND;
        w->strips |= step->kind == SPW_TOK_REPLACE && !step->content_bytes;
    }
    return 0;
}

/* Unigram, as SentencePiece has it: a map of characters, then U+2581 in the place of spaces.
 * Readers of the file make one space of several, as WhitespaceSplit does. */
static int read_pieces(struct writer *w)
{
    const struct spw_tokenizer *t = w->t;
    if (t->sums_f32)
        return read_model(w);
    const struct spw_tok_step *last = t->pres.n ? &t->pres.at[t->pres.n - 1] : NULL;
    const struct spw_tok_step *mark = last && last->kind == SPW_TOK_PRE_SPLIT ? last - 1 : last;
    const bool marks = mark && mark >= t->pres.at && mark->kind == SPW_TOK_PRE_METASPACE;
    const bool maps = !t->norms.n || (t->norms.n == 1 && t->norms.at[0].kind == SPW_TOK_CHARSMAP);
    const bool strips = marks && mark > t->pres.at && mark[-1].kind == SPW_TOK_PRE_SPLIT;
    w->marks = w->pieces = w->strips = true;
    w->prefix = marks && mark->scheme != SPW_TOK_SCHEME_NEVER;
    return maps && strips ? 0
                          : refuse(w, "normalizer and pre_tokenizer", "other steps",
                                   "a map of characters, pieces without white space, and U+2581 in "
                                   "front of each");
}

/* Flags of added tokens that a reader of the file will not know. */
static void note_flags(const struct writer *w)
{
    const struct spw_tokenizer *t = w->t;
    for (size_t i = 0; i < t->n_added; i++) {
        const struct spw_tok_added *a = &t->added[i];
        const struct spw_gguf_string text = text_of(t, (uint32_t)a->id);
        const bool greedy =
            has_scores(w) && spw_tok_gguf_greedy(w->architecture, text.at, text.bytes);
        if (a->lstrip || a->rstrip != greedy || a->single_word) {
            spw_gguf_note(w->notes, "some added tokens take spaces beside them or stand alone "
                                    "(lstrip, rstrip, single_word): GGUF files do not store this");
            return;
        }
    }
}

static int read_kind(struct writer *w)
{
    const struct spw_tokenizer *t = w->t;
    if (t->prefix.n > 1 || t->suffix.n > 1)
        return refuse(w, "post_processor", "several tokens in front of a text or behind it",
                      "one at most");
    const bool bytes = t->pres.n && t->pres.at[t->pres.n - 1].kind == SPW_TOK_PRE_BYTES;
    SPW_TRY(t->model == SPW_TOK_UNIGRAM ? read_pieces(w)
            : bytes                     ? read_byte_level(w)
                                        : read_sentencepiece(w));
    note_flags(w);
    if (w->marks && w->merged && !t->prefix.n && w->config->bos >= 0)
        spw_gguf_note(w->notes, "readers of the file put the bos token in front of a text, the "
                                "tokenizer of the folder does not");
    return w->merged && w->prefix ? refuse(w, "normalizer", "a space in front of a text", "none")
                                  : 0;
}

/* ---- merges and scores ---- */

static int compare_ranks(const void *a, const void *b)
{
    const struct spw_tok_merge *x = a, *y = b;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

static int sort_merges(struct writer *w)
{
    const struct spw_tokenizer *t = w->t;
    const size_t n = t->merges ? (size_t)t->merge_mask + 1 : 0;
    w->merges = spw_alloc((n + 1) * sizeof *w->merges);
    if (!w->merges)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++)
        if (t->merges[i].rank != UINT32_MAX)
            w->merges[w->n_merges++] = t->merges[i];
    if (w->n_merges)
        qsort(w->merges, w->n_merges, sizeof *w->merges, compare_ranks);
    return 0;
}

static int add_merges(const struct writer *w)
{
    struct spw_tok_buf all = {0};
    struct spw_gguf_string *texts = spw_alloc((w->n_merges + 1) * sizeof *texts);
    size_t *ends = spw_alloc((w->n_merges + 1) * sizeof *ends);
    int rc = texts && ends ? 0 : -ENOMEM;
    for (size_t i = 0; i < w->n_merges && !rc; i++) {
        const struct spw_gguf_string left = text_of(w->t, (uint32_t)(w->merges[i].pair >> 32));
        const struct spw_gguf_string right = text_of(w->t, (uint32_t)w->merges[i].pair);
        rc = spw_tok_buf_append(&all, left.at, left.bytes);
        rc = rc ? rc : spw_tok_buf_append(&all, " ", 1);
        rc = rc ? rc : spw_tok_buf_append(&all, right.at, right.bytes);
        ends[i] = all.n;
    }
    for (size_t i = 0, at = 0; i < w->n_merges && !rc; at = ends[i++])
        texts[i] = (struct spw_gguf_string){all.data + at, ends[i] - at};
    if (!rc)
        spw_gguf_add_strings(w->w, "tokenizer.ggml.merges", texts, w->n_merges);
    spw_free(texts);
    spw_free(ends);
    spw_tok_buf_free(&all);
    return rc;
}

/* How many pairs of tokens of the model have together the text of a token. */
static uint32_t count_pairs(const struct spw_tokenizer *t, uint32_t id)
{
    const struct spw_gguf_string s = text_of(t, id);
    uint32_t n = 0;
    for (size_t i = spw_tok_utf8_len(s.at); i < s.bytes; i += spw_tok_utf8_len(s.at + i))
        n += spw_tok_map_find(t, &t->vocab, s.at, i) >= 0 &&
             spw_tok_map_find(t, &t->vocab, s.at + i, s.bytes - i) >= 0;
    return n;
}

/* scores, n_merges [n_entries] */
static int read_scores(const struct writer *w, float *scores, uint32_t *n_merges)
{
    const struct spw_tokenizer *t = w->t;
    static const char expected[] = "merges that were made from scores: those of a token follow "
                                   "each other, and all are there";
    for (size_t i = 0; i < w->n_merges; i++) {
        const int32_t id = w->merges[i].id;
        if (n_merges[id]++ && w->merges[i - 1].id != id)
            return refuse(w, "model.merges", "another order", expected);
        if (n_merges[id] == 1)
            scores[id] = -(float)i;
    }
    for (uint32_t id = 0; id < t->n_entries; id++)
        if (t->entries[id].flags == SPW_TOK_IN_MODEL && t->entries[id].bytes &&
            count_pairs(t, id) != n_merges[id])
            return refuse(w, "model.merges", "less than all merges of a token", expected);
    return 0;
}

/* ---- tokens ---- */

static enum token_type type_of(const struct writer *w, uint32_t id)
{
    const struct spw_tokenizer *t = w->t;
    const uint32_t flags = id < t->n_entries ? t->entries[id].flags : 0;
    if (!flags)
        return UNUSED;
    if (w->marks && (int32_t)id == t->unk_id)
        return UNKNOWN;
    if (flags & (SPW_TOK_IN_ADDED | SPW_TOK_NAMED))
        return flags & (SPW_TOK_SPECIAL | SPW_TOK_NAMED) ? CONTROL : USER_DEFINED;
    for (int byte = 0; w->marks && byte < 256; byte++)
        if (t->byte_ids[byte] == (int32_t)id)
            return BYTE;
    return NORMAL;
}

/* Of n tokens each. */
struct columns {
    struct spw_gguf_string *texts;
    int32_t *types;
    float *scores;
    uint32_t *n_merges;
    char (*padding)[16];
};

static int fill_columns(const struct writer *w, struct columns *c, uint32_t n)
{
    for (uint32_t id = 0; id < n; id++) {
        c->types[id] = (int32_t)type_of(w, id);
        c->scores[id] = -1e30f;
        if (c->types[id] == UNUSED) {
            const int bytes = snprintf(c->padding[id], sizeof *c->padding, "[PAD%u]", id);
            c->texts[id] = (struct spw_gguf_string){c->padding[id], (uint64_t)bytes};
        } else {
            c->texts[id] = text_of(w->t, id);
        }
    }
    for (uint32_t id = 0; id < n && w->pieces; id++)
        if (c->types[id] == NORMAL)
            c->scores[id] = (float)w->t->scores[id];
    return has_scores(w) && !w->pieces ? read_scores(w, c->scores, c->n_merges) : 0;
}

/* A file has as many tokens as the embedding has rows. Of the tokens behind these rows, those of
 * the model are kept, because merges need them. */
static uint32_t count_tokens(const struct writer *w)
{
    const struct spw_tok_entry *e = w->t->entries;
    uint32_t n = spw_tokenizer_vocab_size(w->t);
    while (n > w->config->vocab && !(e[n - 1].flags & SPW_TOK_IN_MODEL))
        n--;
    if (n < w->t->n_entries)
        spw_gguf_note(w->notes, "some added tokens have no row in the embedding: the file does not "
                                "have them");
    return spw_max_u32(w->config->vocab, n);
}

static int add_tokens(const struct writer *w)
{
    const uint32_t n = count_tokens(w);
    struct columns c = {.texts = spw_alloc(n * sizeof *c.texts),
                        .types = spw_alloc(n * sizeof *c.types),
                        .scores = spw_alloc(n * sizeof *c.scores),
                        .n_merges = spw_alloc_zero(n, sizeof *c.n_merges),
                        .padding = spw_alloc(n * sizeof *c.padding)};
    int rc = c.texts && c.types && c.scores && c.n_merges && c.padding ? 0 : -ENOMEM;
    if (!rc)
        rc = fill_columns(w, &c, n);
    if (!rc) {
        spw_gguf_add_strings(w->w, "tokenizer.ggml.tokens", c.texts, n);
        spw_gguf_add(w->w, "tokenizer.ggml.token_type", SPW_GGUF_I32, true, c.types, n);
        if (has_scores(w))
            spw_gguf_add(w->w, "tokenizer.ggml.scores", SPW_GGUF_F32, true, c.scores, n);
        else
            rc = add_merges(w);
    }
    spw_free(c.texts);
    spw_free(c.types);
    spw_free(c.scores);
    spw_free(c.n_merges);
    spw_free(c.padding);
    return rc;
}

/* ---- tokens with a meaning ---- */

static void add_ends(const struct writer *w)
{
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    const int32_t behind = w->t && w->t->suffix.n ? w->t->suffix.at[0] : -1;
    uint32_t n = 0;
    if (behind >= 0)
        spw_gguf_add_u32(w->w, keys[n++], (uint32_t)behind);
    for (uint32_t i = 0; i < w->config->n_eos && n < 3; i++)
        if (w->config->eos[i] != behind)
            spw_gguf_add_u32(w->w, keys[n++], (uint32_t)w->config->eos[i]);
    if (!n && w->t && has_scores(w))
        spw_gguf_note(w->notes, "no token ends an answer of the folder: readers of the file take "
                                "token 2, as files of SentencePiece models have it");
}

static void add_special(const struct writer *w)
{
    const struct spw_tokenizer *t = w->t;
    const int32_t bos = t && t->prefix.n ? t->prefix.at[0] : w->config->bos;
    if (bos >= 0)
        spw_gguf_add_u32(w->w, "tokenizer.ggml.bos_token_id", (uint32_t)bos);
    add_ends(w);
    const struct spw_token_list *suppressed = &w->config->token_rules.lists[SPW_SUPPRESS];
    if (suppressed->n)
        spw_gguf_add(w->w, "tokenizer.ggml.suppress_tokens", SPW_GGUF_I32, true, suppressed->ids,
                     suppressed->n);
    if (!t)
        return;
    if (t->has_unk && t->unk_id >= 0)
        spw_gguf_add_u32(w->w, "tokenizer.ggml.unknown_token_id", (uint32_t)t->unk_id);
    spw_gguf_add_bool(w->w, "tokenizer.ggml.add_bos_token", t->prefix.n > 0);
    spw_gguf_add_bool(w->w, "tokenizer.ggml.add_eos_token", t->suffix.n > 0);
    if (w->marks)
        spw_gguf_add_bool(w->w, "tokenizer.ggml.add_space_prefix", w->prefix);
    if (!w->pieces)
        return;
    spw_gguf_add_bool(w->w, "tokenizer.ggml.remove_extra_whitespaces", w->strips);
    if (t->norms.n && t->norms.at[0].kind == SPW_TOK_CHARSMAP)
        spw_gguf_add(w->w, "tokenizer.ggml.precompiled_charsmap", SPW_GGUF_U8, true,
                     t->norms.at[0].content, t->norms.at[0].content_bytes);
}

int spw_tokenizer_write_gguf(struct spw_gguf_writer *to, const struct spw_tokenizer *t,
                             const struct spw_model_config *config, const char *name,
                             struct spw_gguf_notes *notes, struct spw_error *err)
{
    struct writer w = {.w = to, .t = t, .config = config, .name = name, .notes = notes, .err = err};
    w.architecture = spw_gguf_architecture_of(config);
    w.merged = w.architecture && w.architecture->merged_tokens;
    int rc = t ? read_kind(&w) : 0;
    if (!t)
        spw_gguf_add_string(to, "tokenizer.ggml.model", "no_vocab");
    if (!rc && t) {
        spw_gguf_add_string(to, "tokenizer.ggml.model",
                            w.pieces         ? "t5"
                            : has_scores(&w) ? "llama"
                            : w.marks        ? "gemma4"
                                             : "gpt2");
        spw_gguf_add_string(to, "tokenizer.ggml.pre", w.marks ? "default" : w.pre->name);
        rc = sort_merges(&w);
    }
    if (!rc && t)
        rc = add_tokens(&w);
    if (!rc)
        add_special(&w);
    spw_free(w.merges);
    return rc == -ENOMEM ? spw_fail(err, rc, "%s: out of memory", name) : rc;
}
