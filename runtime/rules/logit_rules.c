/* A row of the table below for each rule: see logit_rules.h. */
#include "runtime/rules/logit_rules.h"

#include "base/base.h"

#include <math.h>
#include <string.h>

static void forbid(const struct spw_logit_row *r, int32_t token)
{
    if ((uint32_t)token < r->vocab)
        r->logits[token] = -INFINITY;
}

static void forbid_list(const struct spw_logit_row *r, const struct spw_token_list *list)
{
    for (size_t i = 0; i < list->n; i++)
        forbid(r, list->ids[i]);
}

/* ---- a grammar, biases, penalties ---- */

static bool has_allowed(const struct spw_logit_row *r, const struct spw_sampling *p)
{
    (void)r;
    return p->allowed;
}

static void apply_allowed(const struct spw_logit_row *r, const struct spw_sampling *p)
{
    for (uint32_t i = 0; i < r->vocab; i++)
        if (!(p->allowed[i / 64] >> i % 64 & 1))
            r->logits[i] = -INFINITY;
}

static bool has_biases(const struct spw_logit_row *r, const struct spw_sampling *p)
{
    (void)r;
    return p->n_logit_bias > 0;
}

static void apply_biases(const struct spw_logit_row *r, const struct spw_sampling *p)
{
    for (size_t i = 0; i < p->n_logit_bias; i++) {
        const struct spw_logit_bias *b = &p->logit_bias[i];
        if ((uint32_t)b->token < r->vocab)
            r->logits[b->token] += b->bias;
    }
}

static bool has_repetition(const struct spw_logit_row *r, const struct spw_sampling *p)
{
    (void)r;
    return p->repetition_penalty != 0 && p->repetition_penalty != 1;
}

/* Each distinct token of the sequence once, however often it occurs. */
static void apply_repetition(const struct spw_logit_row *r, const struct spw_sampling *p)
{
    for (size_t i = 0; i < r->n_tokens; i++) {
        const uint32_t id = (uint32_t)r->tokens[i];
        if (id >= r->vocab || (r->seen[id / 64] >> id % 64 & 1))
            continue;
        float *l = &r->logits[id];
        r->seen[id / 64] |= UINT64_C(1) << id % 64;
        *l = *l < 0 ? *l * p->repetition_penalty : *l / p->repetition_penalty;
    }
    for (size_t i = 0; i < r->n_tokens; i++)
        if ((uint32_t)r->tokens[i] < r->vocab)
            r->seen[(uint32_t)r->tokens[i] / 64] = 0;
}

static bool has_counts(const struct spw_logit_row *r, const struct spw_sampling *p)
{
    (void)r;
    return p->presence_penalty != 0 || p->frequency_penalty != 0;
}

static void apply_counts(const struct spw_logit_row *r, const struct spw_sampling *p)
{
    for (size_t i = r->n_prompt; i < r->n_tokens; i++)
        if ((uint32_t)r->tokens[i] < r->vocab)
            r->counts[r->tokens[i]]++;
    for (size_t i = r->n_prompt; i < r->n_tokens; i++) {
        const uint32_t id = (uint32_t)r->tokens[i];
        if (id >= r->vocab || !r->counts[id])
            continue;
        r->logits[id] -= p->frequency_penalty * (float)r->counts[id];
        r->logits[id] -= p->presence_penalty;
        r->counts[id] = 0;
    }
}

/* ---- struct spw_token_rules ---- */

static bool may_repeat(const struct spw_logit_row *r, const struct spw_sampling *p)
{
    const uint64_t n = p->rules.no_repeat_ngram_size;
    return n && r->n_tokens >= n;
}

static void forbid_repeats(const struct spw_logit_row *r, const struct spw_sampling *p)
{
    const size_t n = p->rules.no_repeat_ngram_size - 1;
    const int32_t *last = r->tokens + r->n_tokens - n;
    for (const int32_t *at = r->tokens; at + n < r->tokens + r->n_tokens; at++)
        if (!memcmp(at, last, n * sizeof *at))
            forbid(r, at[n]);
}

static bool is_too_short(const struct spw_logit_row *r, const struct spw_sampling *p)
{
    const struct spw_token_rules *rules = &p->rules;
    const size_t n_new = r->n_tokens - r->n_prompt;
    return p->ends.n && (rules->min_new_tokens ? n_new < rules->min_new_tokens
                                               : r->n_tokens < rules->min_length);
}

static void forbid_ends(const struct spw_logit_row *r, const struct spw_sampling *p)
{
    forbid_list(r, &p->ends);
}

static void force(const struct spw_logit_row *r, const struct spw_token_list *list)
{
    for (uint32_t i = 0; i < r->vocab; i++)
        r->logits[i] = -INFINITY;
    for (size_t i = 0; i < list->n; i++)
        if ((uint32_t)list->ids[i] < r->vocab)
            r->logits[list->ids[i]] = 0;
}

static bool is_second(const struct spw_logit_row *r, const struct spw_sampling *p)
{
    return p->rules.lists[SPW_FORCED_BOS].n && r->n_tokens == 1;
}

static void force_bos(const struct spw_logit_row *r, const struct spw_sampling *p)
{
    force(r, &p->rules.lists[SPW_FORCED_BOS]);
}

static bool is_last(const struct spw_logit_row *r, const struct spw_sampling *p)
{
    return p->rules.lists[SPW_FORCED_EOS].n && r->n_tokens + 1 == p->most_tokens;
}

static void force_eos(const struct spw_logit_row *r, const struct spw_sampling *p)
{
    force(r, &p->rules.lists[SPW_FORCED_EOS]);
}

static bool has_suppressed(const struct spw_logit_row *r, const struct spw_sampling *p)
{
    (void)r;
    return p->rules.lists[SPW_SUPPRESS].n;
}

static void suppress(const struct spw_logit_row *r, const struct spw_sampling *p)
{
    forbid_list(r, &p->rules.lists[SPW_SUPPRESS]);
}

/* A forced token is no begin of an answer. */
static bool begins(const struct spw_logit_row *r, const struct spw_sampling *p)
{
    const bool is_forced = r->n_prompt < 2 && p->rules.lists[SPW_FORCED_BOS].n;
    return p->rules.lists[SPW_BEGIN_SUPPRESS].n && r->n_tokens == r->n_prompt + is_forced;
}

static void suppress_begin(const struct spw_logit_row *r, const struct spw_sampling *p)
{
    forbid_list(r, &p->rules.lists[SPW_BEGIN_SUPPRESS]);
}

/* ---- all of them ---- */

static const struct rule {
    bool (*changes)(const struct spw_logit_row *r, const struct spw_sampling *p);
    void (*apply)(const struct spw_logit_row *r, const struct spw_sampling *p);
    bool yields; /* to a grammar */
} all[] = {
    {has_allowed, apply_allowed, false},
    {has_biases, apply_biases, false},
    {has_repetition, apply_repetition, false},
    {has_counts, apply_counts, false},
    {may_repeat, forbid_repeats, true},
    {is_too_short, forbid_ends, true},
    {is_second, force_bos, true},
    {is_last, force_eos, true},
    {has_suppressed, suppress, false},
    {begins, suppress_begin, true},
};

bool spw_logit_rules_change(const struct spw_logit_row *r, const struct spw_sampling *p)
{
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].changes(r, p))
            return true;
    return false;
}

void spw_logit_rules_apply(const struct spw_logit_row *r, const struct spw_sampling *p)
{
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].changes(r, p) && !(all[i].yields && p->allowed))
            all[i].apply(r, p);
}
