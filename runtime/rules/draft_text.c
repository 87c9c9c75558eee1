/* Drafts from the text: see draft_text.h. */
#include "runtime/rules/draft_text.h"

enum { RUN = SPW_DRAFT_LEAST_MATCH, MOST_PLACES = 64 };

static uint64_t most_heads(uint64_t n_tokens)
{
    uint64_t n = 64;
    while (n < n_tokens && n < (UINT64_C(1) << 20))
        n *= 2;
    return n;
}

int spw_draft_text_open(struct spw_draft_text *d, uint64_t most_tokens)
{
    const uint64_t n_heads = most_heads(most_tokens);
    *d = (struct spw_draft_text){.heads = spw_alloc_zero(n_heads, sizeof *d->heads),
                                 .before = spw_alloc_zero(most_tokens, sizeof *d->before),
                                 .mask = n_heads - 1};
    if (d->heads && d->before)
        return 0;
    spw_draft_text_close(d);
    return -ENOMEM;
}

void spw_draft_text_close(struct spw_draft_text *d)
{
    spw_free(d->heads);
    spw_free(d->before);
    *d = (struct spw_draft_text){0};
}

/* Of the run that ends with the token at `last`. */
static uint32_t *head(const struct spw_draft_text *d, const int32_t *tokens, uint64_t last)
{
    uint64_t hash = 0;
    for (uint64_t i = last + 1 - RUN; i <= last; i++)
        hash = (hash ^ (uint32_t)tokens[i]) * UINT64_C(0x9e3779b97f4a7c15);
    return &d->heads[(hash >> 32) & d->mask];
}

static void add(struct spw_draft_text *d, const int32_t *tokens, uint64_t n)
{
    for (; d->n < n; d->n++) {
        if (d->n + 1 < RUN)
            continue;
        uint32_t *h = head(d, tokens, d->n);
        d->before[d->n] = *h;
        *h = (uint32_t)(d->n + 1);
    }
}

/* How many tokens up to the one at `last` agree with the last ones of all n. */
static uint32_t count_match(const int32_t *tokens, uint64_t n, uint64_t last)
{
    uint32_t k = 0;
    while (k <= last && k < SPW_DRAFT_MOST_MATCH && tokens[last - k] == tokens[n - 1 - k])
        k++;
    return k;
}

uint32_t spw_draft_text_propose(struct spw_draft_text *d, const int32_t *tokens, uint64_t n_tokens,
                                int32_t *out, uint32_t most, uint32_t *match)
{
    const uint64_t n = n_tokens;
    uint64_t next = 0;
    *match = 0;
    add(d, tokens, n);
    if (n < RUN)
        return 0;
    uint32_t place = *head(d, tokens, n - 1);
    for (uint32_t i = 0; place && i < MOST_PLACES; place = d->before[place - 1]) {
        const uint32_t k = place < n ? count_match(tokens, n, place - 1) : 0;
        i += k >= RUN; /* else another run has the same hash */
        if (k >= RUN && k > *match) {
            *match = k;
            next = place;
        }
    }
    for (uint32_t i = 0; i < most && *match; i++) /* a text that repeats itself goes on so */
        out[i] = next + i < n ? tokens[next + i] : out[next + i - n];
    return *match ? most : 0;
}
