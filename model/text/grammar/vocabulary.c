/* The bytes of a tokenizer's tokens in order: see run.h. */
#include "model/text/grammar/vocabulary.h"

#include "base/grow.h"
#include "model/text/grammar/nodes.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

static int compare(const void *a, const void *b)
{
    const struct spw_vocabulary_token *x = a, *y = b;
    const size_t n = x->bytes < y->bytes ? x->bytes : y->bytes;
    const int order = memcmp(x->text, y->text, n);
    return order ? order : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int add_bytes(struct spw_vocabulary *v, int32_t id, const char *text, size_t n,
                     size_t *capacity)
{
    if (!n)
        return 0;
    SPW_TRY(spw_grow(&v->pool, capacity, v->n_bytes + n, 1));
    memcpy(v->pool + v->n_bytes, text, n);
    v->tokens[v->n++] =
        (struct spw_vocabulary_token){.id = id, .at = v->n_bytes, .bytes = (uint32_t)n};
    v->n_bytes += n;
    v->longest = spw_max_u32(v->longest, (uint32_t)n);
    return 0;
}

/* A token with the byte that special tokens begin with stands in no text. */
static int add_token(struct spw_vocabulary *v, const struct spw_tokenizer *t, int32_t id,
                     size_t *capacity)
{
    char *text, special[SPW_TOKEN_BYTES];
    size_t n;
    if (!spw_tokenizer_token(t, id))
        return 0;
    if (spw_tokenizer_is_special(t, id)) {
        spw_token_bytes(special, id);
        return add_bytes(v, id, special, sizeof special, capacity);
    }
    SPW_TRY(spw_tokenizer_token_bytes(t, id, &text, &n));
    const bool is_text = !memchr(text, SPW_TOKEN_BEGIN, n);
    const int rc = is_text ? add_bytes(v, id, text, n, capacity) : 0;
    spw_free(text);
    return rc;
}

/* Of a plain token; 0: it is not plain. */
static uint32_t plain_characters(const struct spw_vocabulary_token *t)
{
    uint32_t n = 0;
    utf8proc_int32_t c;
    for (utf8proc_ssize_t at = 0, bytes; at < (utf8proc_ssize_t)t->bytes; at += bytes, n++) {
        bytes = utf8proc_iterate((const utf8proc_uint8_t *)t->text + at,
                                 (utf8proc_ssize_t)t->bytes - at, &c);
        if (bytes <= 0 || n == SPW_MOST_PLAIN || !spw_char_is_plain((uint32_t)c))
            return 0;
    }
    return n;
}

/* The token has at most k plain characters. */
static void add_plain(struct spw_vocabulary *v, int32_t id, uint32_t k)
{
    const size_t words = (v->vocab + 63) / 64;
    v->plain[(k - 1) * words + (uint32_t)id / 64] |= UINT64_C(1) << id % 64;
}

static void find_shared(struct spw_vocabulary_token *tokens, uint32_t n)
{
    for (uint32_t i = n; i-- > 0;) {
        const bool is_last = i + 1 == n || tokens[i + 1].text[0] != tokens[i].text[0];
        tokens[i].next = is_last ? i + 1 : tokens[i + 1].next;
    }
    for (uint32_t i = 1; i < n; i++) {
        struct spw_vocabulary_token *x = &tokens[i], *before = x - 1;
        while (x->shared < x->bytes && x->shared < before->bytes &&
               x->text[x->shared] == before->text[x->shared])
            x->shared++;
    }
}

int spw_vocabulary_open(struct spw_vocabulary **out, const struct spw_tokenizer *t, uint32_t vocab)
{
    struct spw_vocabulary *v = spw_alloc_zero(1, sizeof *v);
    size_t capacity = 0, others_capacity = 0;
    *out = v;
    if (!v)
        return -ENOMEM;
    v->vocab = vocab;
    v->tokens = spw_alloc_zero(vocab, sizeof *v->tokens);
    v->place = spw_alloc_zero(vocab, sizeof *v->place);
    v->plain = spw_alloc_zero((vocab + 63) / 64 * SPW_MOST_PLAIN, sizeof *v->plain);
    int rc = v->tokens && v->place && v->plain ? 0 : -ENOMEM;
    for (uint32_t id = 0; id < vocab && !rc; id++)
        rc = add_token(v, t, (int32_t)id, &capacity);
    for (uint32_t i = 0; i < v->n; i++)
        v->tokens[i].text = v->pool + v->tokens[i].at;
    if (v->n)
        qsort(v->tokens, v->n, sizeof *v->tokens, compare);
    for (uint32_t i = 0; i < v->n && !rc; i++) {
        const uint32_t n = plain_characters(&v->tokens[i]);
        v->place[v->tokens[i].id] = i + 1;
        for (uint32_t k = n; n && k <= SPW_MOST_PLAIN; k++)
            add_plain(v, v->tokens[i].id, k);
        if (!n)
            rc = spw_grow(&v->others, &others_capacity, v->n_others + 1, sizeof *v->others);
        if (!n && !rc)
            v->others[v->n_others++] = v->tokens[i];
    }
    if (rc) {
        spw_vocabulary_close(v);
        *out = NULL;
        return rc;
    }
    find_shared(v->tokens, v->n);
    find_shared(v->others, v->n_others);
    return 0;
}

void spw_vocabulary_close(struct spw_vocabulary *v)
{
    if (!v)
        return;
    spw_free(v->tokens);
    spw_free(v->others);
    spw_free(v->plain);
    spw_free(v->place);
    spw_free(v->pool);
    spw_free(v);
}
