/* The tables of a tokenizer: see tokenizer_build.h. */
#include "model/text/tokenizer/tokenizer_build.h"

#include <stdio.h>
#include <string.h>

int spw_tok_build_tables(const struct spw_tok_build *b, const struct spw_tok_sizes *sizes)
{
    struct spw_tokenizer *t = b->t;
    t->n_entries = sizes->n_ids;
    t->blob = spw_alloc(sizes->blob_bytes);
    t->entries = spw_alloc_zero(t->n_entries, sizeof *t->entries);
    t->added = spw_alloc_zero(sizes->n_added, sizeof *t->added);
    if (!t->blob || !t->entries || !t->added)
        return -ENOMEM;
    SPW_TRY(spw_tok_map_init(&t->vocab, sizes->n_vocab));
    return spw_tok_map_init(&t->added_map, sizes->n_added);
}

static void entry_put(struct spw_tokenizer *t, int32_t id, const char *text, size_t bytes)
{
    struct spw_tok_entry *e = &t->entries[id];
    e->offset = (uint32_t)t->blob_bytes;
    e->bytes = (uint32_t)bytes;
    memcpy(t->blob + t->blob_bytes, text, bytes);
    t->blob[t->blob_bytes + bytes] = 0;
    t->blob_bytes += bytes + 1;
}

int spw_tok_build_token(const struct spw_tok_build *b, const char *token, size_t bytes, int32_t id)
{
    struct spw_tokenizer *t = b->t;
    uint32_t *slot = spw_tok_map_slot(t, &t->vocab, token, bytes);
    int shown = (int)spw_min_u64(bytes, 40);
    if (*slot)
        return spw_fail(b->err, -EINVAL, "%s: %s: found \"%.*s\" twice, expected every token once",
                        b->name, b->vocab_key, shown, token);
    if (t->entries[id].flags)
        return spw_fail(b->err, -EINVAL,
                        "%s: %s: found id %d for both \"%.40s\" and \"%.*s\", expected "
                        "one token for each id",
                        b->name, b->vocab_key, id, t->blob + t->entries[id].offset, shown, token);
    entry_put(t, id, token, bytes);
    t->entries[id].flags = SPW_TOK_IN_MODEL;
    *slot = (uint32_t)id + 1;
    return 0;
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
    struct spw_tok_entry *e = &t->entries[added->id];
    int32_t in_vocab = spw_tok_map_find(t, &t->vocab, content, bytes);
    uint32_t *slot = spw_tok_map_slot(t, &t->added_map, content, bytes);
    if (*slot || e->flags & SPW_TOK_IN_ADDED || (in_vocab >= 0 && in_vocab != added->id) ||
        (in_vocab < 0 && e->flags))
        return spw_fail(b->err, -EINVAL,
                        "%s: %s: found id %d for \"%.*s\", expected an id and a text that no "
                        "other token has",
                        b->name, path, added->id, (int)spw_min_u64(bytes, 40), content);
    if (!e->flags)
        entry_put(t, added->id, content, bytes);
    *slot = (uint32_t)added->id + 1;
    e->flags |= SPW_TOK_IN_ADDED | (special ? SPW_TOK_SPECIAL : 0) |
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
    for (size_t k = 0; k < t->n_added; k++) {
        const struct spw_tok_added *a = &t->added[k];
        const struct spw_tok_entry *e = &t->entries[a->id];
        SPW_TRY(spw_tok_trie_add(a->normalized ? &t->normalized_trie : &t->raw_trie,
                                 a->form ? a->form : t->blob + e->offset,
                                 a->form ? a->form_bytes : e->bytes, (int32_t)k));
    }
    SPW_TRY(check_template(b, &t->prefix));
    return check_template(b, &t->suffix);
}
