/* The tables of a tokenizer: see tokenizer_impl.h. */
#include "model/text/tokenizer/tokenizer_gguf_pre.h"
#include "model/text/tokenizer/tokenizer_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int spw_tok_build_step(struct spw_tok_steps *steps, enum spw_tok_kind kind, const char *content,
                       struct spw_tok_step **out)
{
    struct spw_tok_step *step = *out = &steps->at[steps->n++];
    step->kind = kind;
    if (!content)
        return 0;
    step->content_bytes = strlen(content);
    step->content = spw_strdup(content);
    return step->content ? 0 : -ENOMEM;
}

int spw_tok_build_ids(const struct spw_tok_build *b, size_t n)
{
    struct spw_tokenizer *t = b->t;
    if (n <= t->n_entries)
        return 0;
    SPW_TRY(spw_grow(&t->entries, &t->entry_capacity, n, sizeof *t->entries));
    memset(t->entries + t->n_entries, 0, (n - t->n_entries) * sizeof *t->entries);
    t->n_entries = n;
    return 0;
}

/* The text of an id that has none. */
static int entry_put(const struct spw_tok_build *b, int32_t id, const char *text, size_t bytes)
{
    struct spw_tokenizer *t = b->t;
    const size_t offset = t->blob.n;
    SPW_TRY(spw_tok_build_ids(b, (size_t)id + 1));
    SPW_TRY(spw_tok_buf_append(&t->blob, text, bytes));
    SPW_TRY(spw_tok_buf_append(&t->blob, "", 1));
    t->entries[id] = (struct spw_tok_entry){(uint32_t)offset, (uint32_t)bytes, 0};
    return 0;
}

static int add_token(const struct spw_tok_build *b, const char *token, size_t bytes, int32_t id,
                     struct spw_tok_map *map)
{
    struct spw_tokenizer *t = b->t;
    const char *other = spw_tokenizer_token(t, id);
    int shown = (int)spw_min_u64(bytes, 40);
    if (spw_tok_known(t, token, bytes) >= 0)
        return spw_fail(b->err, -EINVAL, "%s: %s: found \"%.*s\" twice, expected every token once",
                        b->name, b->vocab_key, shown, token);
    if (other)
        return spw_fail(b->err, -EINVAL,
                        "%s: %s: found id %d for both \"%.40s\" and \"%.*s\", expected "
                        "one token for each id",
                        b->name, b->vocab_key, id, other, shown, token);
    SPW_TRY(entry_put(b, id, token, bytes));
    t->entries[id].flags = map == &t->vocab ? SPW_TOK_IN_MODEL : SPW_TOK_NAMED;
    return spw_tok_map_add(t, map, id);
}

int spw_tok_build_token(const struct spw_tok_build *b, const char *token, size_t bytes, int32_t id)
{
    return add_token(b, token, bytes, id, &b->t->vocab);
}

int spw_tok_build_named(const struct spw_tok_build *b, const char *token, size_t bytes, int32_t id)
{
    return add_token(b, token, bytes, id, &b->t->named);
}

void spw_tok_build_characters(const struct spw_tok_build *b)
{
    struct spw_tokenizer *t = b->t;
    char text[8];
    for (int32_t cp = 0; cp < 0x800; cp++)
        t->char_ids[cp] = spw_tok_map_find(t, &t->vocab, text, spw_tok_utf8_put(cp, text));
    for (int byte = 0; byte < 256; byte++) {
        snprintf(text, sizeof text, "<0x%02X>", (unsigned)byte);
        t->byte_ids[byte] = t->byte_fallback ? spw_tok_map_find(t, &t->vocab, text, 6) : -1;
    }
}

int spw_tok_build_merge(const struct spw_tok_build *b, const char *joined, size_t bytes,
                        size_t left_bytes, uint32_t rank)
{
    struct spw_tokenizer *t = b->t;
    int32_t left = spw_tok_map_find(t, &t->vocab, joined, left_bytes);
    int32_t right = spw_tok_map_find(t, &t->vocab, joined + left_bytes, bytes - left_bytes);
    int32_t id = spw_tok_map_find(t, &t->vocab, joined, bytes);
    if (left < 0 || right < 0 || id < 0) {
        const char *text = left < 0 || right >= 0 ? joined : joined + left_bytes;
        size_t n = left < 0 ? left_bytes : right < 0 ? bytes - left_bytes : bytes;
        return spw_fail(b->err, -EINVAL, "%s: %s[%u]: found the token \"%.*s\", expected one of %s",
                        b->name, b->merges_key, rank, (int)(n < 40 ? n : 40), text, b->vocab_key);
    }
    struct spw_tok_merge *m = spw_tok_merge_slot(t, left, right);
    *m = (struct spw_tok_merge){
        .pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right, .rank = rank, .id = id};
    return 0;
}

/* ---- scores ---- */

static int compare_scores(const void *a, const void *b)
{
    const struct spw_tok_score *x = a, *y = b;
    return x->score != y->score ? (x->score < y->score ? 1 : -1)
                                : (x->id > y->id) - (x->id < y->id);
}

/* Tokens of equal score have equal rank: the leftmost pair then merges first. */
int spw_tok_build_ranks(const struct spw_tok_build *b, struct spw_tok_score *scores, size_t n)
{
    struct spw_tokenizer *t = b->t;
    t->ranks = spw_alloc(t->n_entries * sizeof *t->ranks);
    if (!t->ranks)
        return -ENOMEM;
    memset(t->ranks, 0xff, t->n_entries * sizeof *t->ranks);
    if (n)
        qsort(scores, n, sizeof *scores, compare_scores);
    for (size_t i = 0, rank = 0; i < n; i++) {
        rank = i && scores[i].score != scores[i - 1].score ? i : rank;
        t->ranks[scores[i].id] = (uint32_t)rank;
    }
    return 0;
}

/* ---- the steps of SentencePiece ---- */

/* A step that replaces what `regex` finds in a text, or `from`, if it is NULL. */
static int replace(const struct spw_tok_build *b, struct spw_tok_steps *steps, const char *regex,
                   const char *from, const char *to)
{
    struct spw_tok_step *step;
    SPW_TRY(spw_tok_build_step(steps, SPW_TOK_REPLACE, to, &step));
    return regex ? spw_tok_pattern_regex(&step->pattern, b->t->regex_memory, regex, b->name, b->err)
                 : spw_tok_pattern_literal(&step->pattern, from, strlen(from));
}

static int map_characters(const struct spw_tok_build *b, const struct spw_tok_spaces *s)
{
    struct spw_tok_step *step;
    SPW_TRY(spw_tok_build_step(&b->t->norms, SPW_TOK_CHARSMAP, NULL, &step));
    step->longest = true;
    step->content = spw_alloc(s->charsmap_bytes);
    step->content_bytes = s->charsmap_bytes;
    if (!step->content)
        return -ENOMEM;
    memcpy(step->content, s->charsmap, s->charsmap_bytes);
    return 0;
}

int spw_tok_build_spaces(const struct spw_tok_build *b, const struct spw_tok_spaces *s)
{
    struct spw_tokenizer *t = b->t;
    struct spw_tok_steps *norms = &t->norms, *decs = &t->decs;
    struct spw_tok_step *step;
    if (s->charsmap_bytes)
        SPW_TRY(map_characters(b, s));
    if (s->strips) {
        SPW_TRY(replace(b, norms, "\\A +", NULL, ""));
        SPW_TRY(replace(b, norms, "  +", NULL, " "));
    }
    if (s->prefix) {
        SPW_TRY(spw_tok_build_step(norms, SPW_TOK_PREPEND, SPACE_MARK, &step));
        step->always = true;
    }
    SPW_TRY(replace(b, norms, NULL, " ", SPACE_MARK));
    if (s->strips) /* marks that the text itself has at its end go, too */
        SPW_TRY(replace(b, norms, "(?<!" SPACE_MARK ")(?:" SPACE_MARK ")++\\z", NULL, ""));
    SPW_TRY(replace(b, decs, NULL, SPACE_MARK, " "));
    SPW_TRY(spw_tok_build_step(decs, SPW_TOK_DEC_BYTE_FALLBACK, NULL, &step));
    step->by_character = s->trims;
    SPW_TRY(spw_tok_build_step(decs, SPW_TOK_DEC_FUSE, NULL, &step));
    if (s->trims)
        return spw_tok_build_step(decs, SPW_TOK_DEC_TRIM, NULL, &step);
    if (!s->prefix)
        return 0;
    SPW_TRY(spw_tok_build_step(decs, SPW_TOK_DEC_STRIP, " ", &step));
    step->start = 1;
    return 0;
}

/* ---- added tokens ---- */

/* The normal form is what a normalized token is searched as, and what it decodes from. */
static int add_form(const struct spw_tok_build *b, struct spw_tok_added *a, const char *content,
                    size_t bytes, const char *path)
{
    struct spw_tokenizer *t = b->t;
    struct spw_tok_matcher m = {.memory = t->regex_memory};
    struct spw_tok_buf form = {.limit = spw_tok_normal_limit(bytes)};
    bool at_start = true;
    int rc = spw_tok_normalize(t, &m, content, bytes, &form, &at_start);
    spw_tok_matcher_free(&m);
    if (rc || (form.n == bytes && !memcmp(form.data, content, bytes))) {
        spw_tok_buf_free(&form);
        if (rc == -E2BIG)
            return spw_fail(
                b->err, -EINVAL, "%s: %s: the normalizer makes more than %zu bytes of \"%.*s\"",
                b->name, path, spw_tok_normal_limit(bytes), (int)spw_min_u64(bytes, 40), content);
        return rc == -EOVERFLOW ? -EINVAL : rc;
    }
    if (!form.data && spw_tok_buf_reserve(&form, 1))
        return -ENOMEM;
    a->form = form.data;
    a->form_bytes = form.n;
    return 0;
}

int spw_tok_build_added(const struct spw_tok_build *b, const struct spw_tok_added *added,
                        const char *content, size_t bytes, bool special, const char *path)
{
    struct spw_tokenizer *t = b->t;
    const int32_t id = added->id, in_vocab = spw_tok_known(t, content, bytes);
    SPW_TRY(spw_tok_build_ids(b, (size_t)id + 1));
    const uint32_t flags = t->entries[id].flags;
    if (spw_tok_map_find(t, &t->added_map, content, bytes) >= 0 || flags & SPW_TOK_IN_ADDED ||
        (in_vocab >= 0 && in_vocab != id) || (in_vocab < 0 && flags))
        return spw_fail(b->err, -EINVAL,
                        "%s: %s: found id %d for \"%.*s\", expected an id and a text that no "
                        "other token has",
                        b->name, path, id, (int)spw_min_u64(bytes, 40), content);
    if (!flags)
        SPW_TRY(entry_put(b, id, content, bytes));
    SPW_TRY(spw_tok_map_add(t, &t->added_map, id));
    SPW_TRY(spw_grow(&t->added, &t->added_capacity, t->n_added + 1, sizeof *t->added));
    t->entries[id].flags |= SPW_TOK_IN_ADDED | (special ? SPW_TOK_SPECIAL : 0) |
                            (uint32_t)t->n_added << SPW_TOK_ADDED_SHIFT;
    struct spw_tok_added *a = &t->added[t->n_added++];
    *a = *added;
    return a->normalized ? add_form(b, a, content, bytes, path) : 0;
}

/* The template is read before the added tokens are known. */
static int check_template(const struct spw_tok_build *b, const struct spw_tok_ids *ids)
{
    for (size_t i = 0; i < ids->n; i++)
        if (!spw_tokenizer_token(b->t, ids->at[i]))
            return spw_fail(b->err, -EINVAL,
                            "%s: post_processor: found the special token id %d, expected one of "
                            "%s or added_tokens",
                            b->name, ids->at[i], b->vocab_key);
    return 0;
}

int spw_tok_build_finish(const struct spw_tok_build *b)
{
    struct spw_tokenizer *t = b->t;
    SPW_TRY(spw_tok_finder_of_added(&t->raw, t, false));
    SPW_TRY(spw_tok_finder_of_added(&t->normalized, t, true));
    if (t->model == SPW_TOK_UNIGRAM)
        SPW_TRY(spw_tok_finder_of_model(&t->pieces, t));
    SPW_TRY(check_template(b, &t->prefix));
    return check_template(b, &t->suffix);
}
