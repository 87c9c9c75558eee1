/* The next token from a row of logits.
 *
 * The order is Hugging Face's (transformers, `GenerationMixin._get_logits_processor`): repetition
 * penalty, temperature, top-k, top-p, min-p, then one draw from what is left. Each with its
 * meaning:
 *
 *   penalty p      every token that occurs in the sequence (prompt included) once: l > 0 ? l/p :
 * l*p (N. Keskar et al., "CTRL", 2019, section 4.1, with the sign case of HF) temperature T  l / T
 *   top-k          what is below the k-th largest logit goes; equals of the k-th stay
 *   top-p          sorted downwards, a token stays while the probability of those before it is < p
 *                  (A. Holtzman et al., 2019); equals are ordered by id
 *   min-p          a token goes when its probability is < min_p times the largest one
 *
 * All three filters keep the tokens down to some place in one order (logit, then lower id first),
 * so each gives a cut: the last item that stays. A cut is found by selection (C. Hoare's "find",
 * with weights in the place of counts) in O(vocab) on average, on a scratch copy; the draw then
 * walks the row in id order. NaN counts as -inf; -inf is never drawn unless there is nothing else
 * (then id 0).
 */
#include "runtime/philox.h"
#include "runtime/spillway.h"

#include <math.h>
#include <string.h>

struct item {
    float logit;
    int32_t id;
    double weight; /* exp((logit - largest) / temperature): the largest has exactly 1 */
};

struct spw_sampler {
    uint32_t vocab;
    uint64_t *seen;       /* owned, a bit a token, all 0 between calls */
    float *logits;        /* owned, [vocab]: penalized, NaN removed */
    struct item *items;   /* owned, [vocab] in id order */
    struct item *scratch; /* owned, [vocab]: permuted by selection */
};

int spw_sampler_open(struct spw_sampler **out, uint32_t vocab, struct spw_error *err)
{
    *out = NULL;
    if (vocab == 0 || vocab > INT32_MAX)
        return spw_fail(err, -EINVAL, "sampler: found a vocabulary of %u tokens, expected 1 to %d",
                        vocab, INT32_MAX);
    struct spw_sampler *s = spw_alloc_zero(1, sizeof *s);
    if (!s)
        goto fail;
    s->vocab = vocab;
    s->seen = spw_alloc_zero(spw_div_up(vocab, 64), sizeof *s->seen);
    s->logits = spw_alloc_zero(vocab, sizeof *s->logits);
    s->items = spw_alloc_zero(vocab, sizeof *s->items);
    s->scratch = spw_alloc_zero(vocab, sizeof *s->scratch);
    if (!s->seen || !s->logits || !s->items || !s->scratch)
        goto fail;
    *out = s;
    return 0;
fail:
    spw_sampler_close(s);
    return spw_fail(err, -ENOMEM, "sampler: no memory for a vocabulary of %u tokens", vocab);
}

void spw_sampler_close(struct spw_sampler *s)
{
    if (!s)
        return;
    spw_free(s->scratch);
    spw_free(s->items);
    spw_free(s->logits);
    spw_free(s->seen);
    spw_free(s);
}

int spw_sampling_check(const struct spw_sampling *p, struct spw_error *err)
{
    if (!isfinite(p->temperature) || p->temperature < 0)
        return spw_fail(err, -EINVAL,
                        "temperature: found %g, expected a number of at least 0 (0: greedy)",
                        (double)p->temperature);
    if (!(p->top_p >= 0 && p->top_p <= 1))
        return spw_fail(err, -EINVAL, "top_p: found %g, expected a number from 0 to 1 (off)",
                        (double)p->top_p);
    if (!(p->min_p >= 0 && p->min_p <= 1))
        return spw_fail(err, -EINVAL, "min_p: found %g, expected a number from 0 (off) to 1",
                        (double)p->min_p);
    if (!isfinite(p->repetition_penalty) || p->repetition_penalty < 0)
        return spw_fail(err, -EINVAL,
                        "repetition_penalty: found %g, expected a number above 0 (1: off)",
                        (double)p->repetition_penalty);
    return 0;
}

static bool penalizes(const struct spw_sampling *p)
{
    return p->repetition_penalty != 0 && p->repetition_penalty != 1;
}

/* Each distinct token of the sequence once, however often it occurs. Ids outside of the vocabulary
 * have no logit and are passed over. */
static void apply_penalty(struct spw_sampler *s, float penalty, const int32_t *tokens, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t id = (uint32_t)tokens[i];
        if (id >= s->vocab || (s->seen[id / 64] >> id % 64 & 1))
            continue;
        s->seen[id / 64] |= UINT64_C(1) << id % 64;
        s->logits[id] = s->logits[id] < 0 ? s->logits[id] * penalty : s->logits[id] / penalty;
    }
    for (size_t i = 0; i < n; i++) {
        uint32_t id = (uint32_t)tokens[i];
        if (id < s->vocab)
            s->seen[id / 64] = 0;
    }
}

/* The lowest id of the largest. */
static uint32_t largest(const float *logits, uint32_t vocab)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

/* The order of all filters. Total, so that equal logits cannot make selection quadratic. */
static bool comes_before(struct item a, struct item b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

static void swap(struct item *a, struct item *b)
{
    struct item t = *a;
    *a = *b;
    *b = t;
}

/* The median of three, moved to items[n - 1]. */
static void choose_pivot(struct item *items, size_t n)
{
    struct item *a = &items[0], *b = &items[n / 2], *c = &items[n - 1];
    if (comes_before(*a, *b) == comes_before(*b, *c))
        swap(b, c);
    else if (comes_before(*b, *a) == comes_before(*a, *c))
        swap(a, c);
}

/* In the order of comes_before, the first item at which the sum of costs reaches `target`; the last
 * one when it never does. An item costs 1, or its weight. Permutes the items, n >= 1. */
static struct item select_cut(struct item *items, size_t n, double target, bool by_weight)
{
    double before = 0; /* the cost of all that is known to come before items[0] */
    for (;;) {
        choose_pivot(items, n);
        struct item pivot = items[n - 1];
        size_t n_front = 0;
        double front = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            if (!comes_before(items[i], pivot))
                continue;
            front += by_weight ? items[i].weight : 1;
            swap(&items[i], &items[n_front++]);
        }
        double through = before + front + (by_weight ? pivot.weight : 1);
        if (n_front > 0 && before + front >= target) {
            n = n_front; /* the cut is among those before the pivot */
        } else if (through >= target || n_front + 1 == n) {
            return pivot;
        } else {
            before = through; /* the pivot's place is n_front: go on behind it */
            swap(&items[n_front], &items[n - 1]);
            items += n_front + 1;
            n -= n_front + 1;
        }
    }
}

/* What stays after top-k; HF keeps everything that equals the k-th. In id order. */
static size_t keep_top_k(struct spw_sampler *s, size_t n, uint32_t k)
{
    if (k == 0 || k >= n)
        return n;
    memcpy(s->scratch, s->items, n * sizeof *s->items);
    float least = select_cut(s->scratch, n, k, false).logit;
    size_t n_kept = 0;
    for (size_t i = 0; i < n; i++)
        if (s->items[i].logit >= least)
            s->items[n_kept++] = s->items[i];
    return n_kept;
}

static size_t keep_top_p(struct spw_sampler *s, size_t n, double p)
{
    if (p <= 0 || p >= 1)
        return n;
    double total = 0;
    for (size_t i = 0; i < n; i++)
        total += s->items[i].weight;
    memcpy(s->scratch, s->items, n * sizeof *s->items);
    struct item cut = select_cut(s->scratch, n, p * total, true);
    size_t n_kept = 0;
    for (size_t i = 0; i < n; i++)
        if (!comes_before(cut, s->items[i]))
            s->items[n_kept++] = s->items[i];
    return n_kept;
}

/* The largest weight is 1, and the first two filters have kept it. */
static size_t keep_min_p(struct spw_sampler *s, size_t n, double p)
{
    size_t n_kept = 0;
    for (size_t i = 0; i < n; i++)
        if (s->items[i].weight >= p)
            s->items[n_kept++] = s->items[i];
    return n_kept;
}

/* `at` uniform in [0, 1). */
static int32_t draw(const struct item *items, size_t n, double at)
{
    double total = 0, sum = 0;
    for (size_t i = 0; i < n; i++)
        total += items[i].weight;
    int32_t last = items[0].id;
    for (size_t i = 0; i < n; i++) {
        if (items[i].weight == 0)
            continue;
        sum += items[i].weight;
        last = items[i].id;
        if (sum > at * total)
            break;
    }
    return last;
}

int32_t spw_sampler_pick(struct spw_sampler *s, const struct spw_sampling *p, const float *logits,
                         const int32_t *tokens, size_t n_tokens, uint64_t stream)
{
    for (uint32_t i = 0; i < s->vocab; i++)
        s->logits[i] = isnan(logits[i]) ? -INFINITY : logits[i];
    if (penalizes(p))
        apply_penalty(s, p->repetition_penalty, tokens, n_tokens);
    uint32_t best = largest(s->logits, s->vocab);
    float top = s->logits[best];
    if (p->temperature == 0 || top == -INFINITY)
        return (int32_t)best;

    size_t n = 0;
    for (uint32_t i = 0; i < s->vocab; i++) {
        float l = s->logits[i];
        if (l == -INFINITY)
            continue;
        /* The case of equality also keeps inf - inf away. */
        double weight = l == top ? 1 : exp(((double)l - (double)top) / (double)p->temperature);
        s->items[n++] = (struct item){.logit = l, .id = (int32_t)i, .weight = weight};
    }
    n = keep_top_k(s, n, p->top_k);
    n = keep_top_p(s, n, (double)p->top_p);
    n = keep_min_p(s, n, (double)p->min_p);
    return draw(s->items, n, spw_philox_uniform(p->seed, stream, n_tokens));
}
