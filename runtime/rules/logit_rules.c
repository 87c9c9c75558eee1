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

static bool has_bad_words(const struct spw_logit_row *r, const struct spw_sampling *p)
{
    (void)r;
    return p->rules.lists[SPW_BAD_WORDS].n || p->rules.bad_words.n;
}

/* Of a word of several tokens the last one, behind the others. As in transformers, a sequence of no
 * more tokens than these others ends no word. */
static void forbid_bad_words(const struct spw_logit_row *r, const struct spw_sampling *p)
{
    const int32_t *word = p->rules.bad_words.ids, *end = word + p->rules.bad_words.n;
    forbid_list(r, &p->rules.lists[SPW_BAD_WORDS]);
    for (; word < end; word += 1 + *word) {
        const size_t n = (size_t)*word - 1;
        if (r->n_tokens > n && !memcmp(r->tokens + r->n_tokens - n, word + 1, n * sizeof *word))
            forbid(r, word[n + 1]);
    }
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

/* ---- times ---- */

static void forbid_range(const struct spw_logit_row *r, uint64_t from, uint64_t to)
{
    for (uint64_t i = from; i < to && i < r->vocab; i++)
        r->logits[i] = -INFINITY;
}

static bool has_times(const struct spw_logit_row *r, const struct spw_sampling *p)
{
    return p->rules.timestamp_begin && p->rules.timestamp_begin < r->vocab;
}

/* Which times may follow those of the answer, and whether another token may. */
static void pair_times(const struct spw_logit_row *r, const struct spw_sampling *p)
{
    const uint64_t begin = p->rules.timestamp_begin;
    const int32_t *answer = r->tokens + r->n_prompt;
    const size_t n = r->n_tokens - r->n_prompt;
    const bool last = n && (uint64_t)answer[n - 1] >= begin;
    const bool both = last && (n < 2 || (uint64_t)answer[n - 2] >= begin);
    size_t latest = n;
    while (latest && (uint64_t)answer[latest - 1] < begin)
        latest--;
    if (both)
        forbid_range(r, begin, r->vocab);
    else if (last)
        forbid_range(r, 0, p->ends.n ? (uint64_t)p->ends.ids[0] : begin);
    if (latest) /* the time that ends a part may begin the next one */
        forbid_range(r, begin, (uint64_t)answer[latest - 1] + !(last && !both));
    if (n)
        return;
    forbid_range(r, 0, begin);
    if (p->rules.max_initial_timestamp_index < r->vocab)
        forbid_range(r, begin + p->rules.max_initial_timestamp_index + 1, r->vocab);
}

static void apply_times(const struct spw_logit_row *r, const struct spw_sampling *p)
{
    const uint64_t begin = p->rules.timestamp_begin;
    float text = -INFINITY, time = -INFINITY;
    double sum = 0;
    forbid_range(r, begin - 1, begin);
    pair_times(r, p);
    for (uint64_t i = 0; i < begin; i++)
        text = fmaxf(text, r->logits[i]);
    for (uint64_t i = begin; i < r->vocab; i++)
        time = fmaxf(time, r->logits[i]);
    for (uint64_t i = begin; i < r->vocab && time > -INFINITY; i++)
        sum += exp((double)r->logits[i] - (double)time);
    if (time > -INFINITY && (double)time + log(sum) > (double)text)
        forbid_range(r, 0, begin);
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
    {has_bad_words, forbid_bad_words, false},
    {is_too_short, forbid_ends, true},
    {is_second, force_bos, true},
    {is_last, force_eos, true},
    {has_suppressed, suppress, false},
    {begins, suppress_begin, true},
    {has_times, apply_times, true},
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
