/* The bytes of a tokenizer's tokens in order: see run.h. */
#include "model/text/grammar/vocabulary.h"

#include "base/grow.h"

#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b)
{
    const struct spw_vocabulary_token *x = a, *y = b;
    const size_t n = x->bytes < y->bytes ? x->bytes : y->bytes;
    const int order = memcmp(x->text, y->text, n);
    return order ? order : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int add_token(struct spw_vocabulary *v, const struct spw_tokenizer *t, int32_t id,
                     size_t *capacity)
{
    char *text;
    size_t n;
    if (!spw_tokenizer_token(t, id) || spw_tokenizer_is_special(t, id))
        return 0;
    SPW_TRY(spw_tokenizer_token_bytes(t, id, &text, &n));
    int rc = n ? spw_grow(&v->pool, capacity, v->n_bytes + n, 1) : 0;
    if (!rc && n) {
        memcpy(v->pool + v->n_bytes, text, n);
        v->tokens[v->n++] =
            (struct spw_vocabulary_token){.id = id, .at = v->n_bytes, .bytes = (uint32_t)n};
        v->n_bytes += n;
        v->longest = spw_max_u32(v->longest, (uint32_t)n);
    }
    spw_free(text);
    return rc;
}

int spw_vocabulary_open(struct spw_vocabulary **out, const struct spw_tokenizer *t, uint32_t vocab)
{
    struct spw_vocabulary *v = spw_alloc_zero(1, sizeof *v);
    size_t capacity = 0;
    *out = v;
    if (!v)
        return -ENOMEM;
    v->vocab = vocab;
    v->tokens = spw_alloc_zero(vocab, sizeof *v->tokens);
    v->place = spw_alloc_zero(vocab, sizeof *v->place);
    int rc = v->tokens && v->place ? 0 : -ENOMEM;
    for (uint32_t id = 0; id < vocab && !rc; id++)
        rc = add_token(v, t, (int32_t)id, &capacity);
    if (rc) {
        spw_vocabulary_close(v);
        *out = NULL;
        return rc;
    }
    for (uint32_t i = 0; i < v->n; i++)
        v->tokens[i].text = v->pool + v->tokens[i].at;
    qsort(v->tokens, v->n, sizeof *v->tokens, compare);
    for (uint32_t i = 0; i < v->n; i++) {
        struct spw_vocabulary_token *x = &v->tokens[i];
        const struct spw_vocabulary_token *before = i ? x - 1 : NULL;
        while (before && x->shared < x->bytes && x->shared < before->bytes &&
               x->text[x->shared] == before->text[x->shared])
            x->shared++;
        v->place[x->id] = i + 1;
    }
    return 0;
}

void spw_vocabulary_close(struct spw_vocabulary *v)
{
    if (!v)
        return;
    spw_free(v->tokens);
    spw_free(v->place);
    spw_free(v->pool);
    spw_free(v);
}
