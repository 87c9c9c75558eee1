/* The next token from a row of logits.
 *
 * First the rules of logit_rules.h, all of them in f32; then, in the order of transformers,
 * temperature, top-k, top-p, min-p, then one draw from what is left:
 *
 *   temperature T  l / T
 *   top-k          what is below the k-th largest logit goes; equals of the k-th stay
 *   top-p          sorted downwards, a token stays while the probability of those before it is < p
 *                  (A. Holtzman et al., 2019); equals are ordered by id
 *   min-p          a token goes when its probability is < min_p times the largest one
 *
 * All three filters keep the tokens down to some place in one order (logit, then lower id first),
 * so each gives a cut: the last item that stays. Only few tokens can be above it, as a rule, and a
 * pass over the row that asks no token for its rank finds them:
 *
 *   row -> top -> floor: a logit, or a weight, that the cut cannot lie below
 *       -> items at the floor or above, in id order -> cuts by selection -> one draw, in id order
 *
 * Selection is C. Hoare's "find", with weights in the place of counts: O(items) on average. Passes
 * over the row go several values at a time; a token costs as many of them as its filters need
 * (SPEED.md, "The sampler"). A row with a NaN is refused; -inf is never drawn unless there is
 * nothing else: then id 0, or -ENODATA where a rule changes the row.
 */
#include "runtime/rules/logits_row.h"
#include "base/philox.h"
#include "model/config/config.h"
#include "runtime/batch/beam_row.h"
#include "runtime/rules/logit_rules.h"
#include "runtime/sampler.h"

#include <float.h>
#include <math.h>
#include <string.h>

struct item {
    float logit;
    int32_t id;
    double weight; /* exp((logit - largest) / temperature): the largest has exactly 1 */
};

struct spw_sampler {
    uint32_t vocab, n;    /* n: vocab in whole lanes */
    uint64_t *seen;       /* owned, a bit a token, all 0 between calls */
    uint32_t *counts;     /* owned, [vocab]: times a token occurs; all 0 between calls */
    float *logits;        /* owned, [n]: biased, penalized */
    double *weights;      /* owned, [n] */
    struct item *items;   /* owned, [vocab] in id order */
    struct item *scratch; /* owned, [vocab]: permuted by selection */
};

int spw_sampler_open(struct spw_sampler **out, uint32_t vocab, struct spw_error *err)
{
    spw_error_clear(err);
    *out = NULL;
    if (vocab == 0 || vocab > INT32_MAX)
        return spw_fail(err, -EINVAL, "sampler: found a vocabulary of %u tokens, expected 1 to %d",
                        vocab, INT32_MAX);
    struct spw_sampler *s = spw_alloc_zero(1, sizeof *s);
    if (!s)
        goto fail;
    s->vocab = vocab;
    s->n = (uint32_t)spw_align_up(vocab, SPW_ROW_LANES);
    s->seen = spw_alloc_zero(spw_div_up(vocab, 64), sizeof *s->seen);
    s->counts = spw_alloc_zero(vocab, sizeof *s->counts);
    s->logits = spw_alloc_zero(s->n, sizeof *s->logits);
    s->weights = spw_alloc_zero(s->n, sizeof *s->weights);
    s->items = spw_alloc_zero(vocab, sizeof *s->items);
    s->scratch = spw_alloc_zero(vocab, sizeof *s->scratch);
    if (!s->seen || !s->counts || !s->logits || !s->weights || !s->items || !s->scratch)
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
    spw_free(s->weights);
    spw_free(s->logits);
    spw_free(s->counts);
    spw_free(s->seen);
    spw_free(s);
}

static int check_biases(const struct spw_sampling *p, struct spw_error *err)
{
    for (size_t i = 0; i < p->n_logit_bias; i++) {
        const struct spw_logit_bias *b = &p->logit_bias[i];
        if (!(b->bias >= -100 && b->bias <= 100))
            return spw_fail(err, -EINVAL,
                            "logit_bias: token %d: found %g, expected a number from -100 to 100",
                            (int)b->token, (double)b->bias);
    }
    return 0;
}

int spw_sampling_check(const struct spw_sampling *p, struct spw_error *err)
{
    spw_error_clear(err);
    const struct {
        const char *name;
        float value, min, max;
        const char *expected;
    } numbers[] = {
        {"temperature", p->temperature, 0, FLT_MAX, "of at least 0 (0: greedy)"},
        {"top_p", p->top_p, 0, 1, "from 0 to 1 (off)"},
        {"min_p", p->min_p, 0, 1, "from 0 (off) to 1"},
        {"repetition_penalty", p->repetition_penalty, 0, FLT_MAX, "above 0 (1: off)"},
        {"presence_penalty", p->presence_penalty, -2, 2, "from -2 to 2 (0: off)"},
        {"frequency_penalty", p->frequency_penalty, -2, 2, "from -2 to 2 (0: off)"},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!(numbers[i].value >= numbers[i].min && numbers[i].value <= numbers[i].max))
            return spw_fail(err, -EINVAL, "%s: found %g, expected a number %s", numbers[i].name,
                            (double)numbers[i].value, numbers[i].expected);
    return check_biases(p, err);
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
            before = through; /* the pivot's place is n_front: continue after it */
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

/* `total`: the weight of all tokens that top-p chooses from. */
static size_t keep_top_p(struct spw_sampler *s, size_t n, double p, double total)
{
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

/* ---- floors: what the cuts cannot lie below ---- */

static bool has_top_k(const struct spw_sampler *s, const struct spw_sampling *p)
{
    return p->top_k > 0 && p->top_k < s->vocab;
}

static bool has_top_p(const struct spw_sampling *p)
{
    return p->top_p > 0 && p->top_p < 1;
}

/* A logit that k tokens reach, and few more: at a doubling distance below the top, then closer. */
static float floor_of_rank(const struct spw_sampler *s, float top, uint32_t k)
{
    enum { ROUNDS = 5, FEW = 64 };
    double far = 1, near = 0;
    size_t n;
    while ((n = spw_row_count(s->logits, s->n, (float)(top - far))) < k) {
        near = far;
        far *= 2;
        if (!isfinite((float)(top - far)))
            return -INFINITY;
    }
    for (int i = 0; i < ROUNDS && n > FEW + 2 * (size_t)k; i++) {
        double middle = (near + far) / 2;
        size_t n_middle = spw_row_count(s->logits, s->n, (float)(top - middle));
        if (n_middle < k) {
            near = middle;
        } else {
            far = middle;
            n = n_middle;
        }
    }
    return (float)(top - far);
}

/* The logit of a weight, less what both may have been rounded by. */
static float logit_of(float top, double temperature, double weight)
{
    return nextafterf((float)(top + temperature * (log(weight) - 1e-9)), -INFINITY);
}

/* A weight that tokens of `target` in all reach. */
static double floor_of_weight(const struct spw_sampler *s, double target)
{
    double floor = 0.25;
    while (floor > 1e-30 && spw_row_sum(s->weights, s->n, floor) < target)
        floor /= 4;
    return floor > 1e-30 ? floor : 0;
}

/* The items: tokens whose logits are at least `floor`. */
static size_t gather(struct spw_sampler *s, float floor, float top, double temperature)
{
    size_t n = 0, i = 0;
    while ((i = spw_row_find(s->logits, i, s->vocab, floor)) < s->vocab) {
        float logit = s->logits[i];
        if (logit > -INFINITY)
            s->items[n++] =
                (struct item){logit, (int32_t)i, spw_row_weight(logit, top, temperature)};
        i++;
    }
    return n;
}

/* ---- the draw: `at` uniform in [0, 1) ---- */

static double weight_of(const struct item *items, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += items[i].weight;
    return sum;
}

static int32_t draw(const struct item *items, size_t n, double at)
{
    double target = at * weight_of(items, n), sum = 0;
    int32_t last = items[0].id;
    for (size_t i = 0; i < n; i++) {
        if (items[i].weight == 0)
            continue;
        sum += items[i].weight;
        last = items[i].id;
        if (sum > target)
            break;
    }
    return last;
}

/* Of all tokens: block by block, then in the block. */
static int32_t draw_from_row(const struct spw_sampler *s, double total, double at)
{
    enum { BLOCK = 64 * SPW_ROW_LANES };
    double target = at * total, sum = 0;
    uint32_t last = 0;
    for (uint32_t first = 0, end; first < s->n; first = end) {
        end = s->n - first < BLOCK ? s->n : first + BLOCK;
        double block = spw_row_sum(s->weights + first, end - first, 0);
        if (sum + block <= target && end < s->n) {
            sum += block;
            continue;
        }
        for (uint32_t i = first; i < end; i++) {
            if (s->weights[i] == 0)
                continue;
            sum += s->weights[i];
            last = i;
            if (sum > target)
                return (int32_t)i;
        }
    }
    return (int32_t)last;
}

/* ---- all of it ---- */

/* No rule counts the tokens of a source. */
static struct spw_logit_row row_of(const struct spw_sampler *s, const int32_t *tokens,
                                   size_t n_prompt, size_t n_tokens)
{
    const size_t n_source = spw_source_length(tokens, n_prompt);
    return (struct spw_logit_row){.logits = s->logits,
                                  .vocab = s->vocab,
                                  .tokens = tokens + n_source,
                                  .n_prompt = n_prompt - n_source,
                                  .n_tokens = n_tokens - n_source,
                                  .seen = s->seen,
                                  .counts = s->counts};
}

static int32_t sample(struct spw_sampler *s, const struct spw_sampling *p, float top, double at)
{
    const double temperature = (double)p->temperature;
    double total = 0;
    float floor;
    if (has_top_k(s, p)) {
        floor = floor_of_rank(s, top, p->top_k);
    } else if (!has_top_p(p) && p->min_p > 0) {
        floor = logit_of(top, temperature, (double)p->min_p);
    } else {
        total = spw_row_weights(s->weights, s->logits, s->n, top, temperature);
        if (!has_top_p(p))
            return draw_from_row(s, total, at);
        floor = logit_of(top, temperature, floor_of_weight(s, (double)p->top_p * total));
    }
    size_t n = gather(s, floor, top, temperature);
    if (has_top_k(s, p)) {
        n = keep_top_k(s, n, p->top_k);
        total = weight_of(s->items, n);
    }
    if (has_top_p(p))
        n = keep_top_p(s, n, (double)p->top_p, total);
    n = keep_min_p(s, n, (double)p->min_p);
    return draw(s->items, n, at);
}

int32_t spw_sampler_pick(struct spw_sampler *s, const struct spw_sampling *p, const float *logits,
                         const int32_t *tokens, size_t n_prompt, size_t n_tokens)
{
    const float *row = logits;
    const struct spw_logit_row changed = row_of(s, tokens, n_prompt, n_tokens);
    const bool changes = spw_logit_rules_change(&changed, p);
    float top = spw_row_top(logits, s->vocab);
    if (isnan(top))
        return -EDOM;
    if (p->temperature != 0 || changes) {
        spw_row_fill(s->logits, logits, s->vocab);
        row = s->logits;
    }
    if (changes) {
        spw_logit_rules_apply(&changed, p);
        top = spw_row_top(row, s->vocab);
    }
    if (top == -INFINITY)
        return changes ? -ENODATA : 0;
    if (p->temperature == 0)
        return (int32_t)spw_row_find(row, 0, s->vocab, top); /* the lowest id of the largest */
    return sample(s, p, top, spw_philox_uniform(p->seed, p->stream, n_tokens));
}

/* Lowers the tokens that are in `chosen` [n], times how often they are there. */
static void apply_diversity(struct spw_sampler *s, float penalty, const int32_t *chosen, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        s->counts[chosen[i]]++;
    for (uint32_t i = 0; i < n; i++) {
        s->logits[chosen[i]] -= penalty * (float)s->counts[chosen[i]];
        s->counts[chosen[i]] = 0;
    }
}

/* Logits become log-probabilities. */
static void normalize(struct spw_sampler *s, float top)
{
    const double sum = spw_row_log_sum(s->logits, s->n, top);
    for (uint32_t i = 0; i < s->n; i++)
        s->logits[i] = (float)((double)s->logits[i] - (double)top - sum);
}

const float *spw_sampler_log_probs(struct spw_sampler *s, const struct spw_row_of_beam *b)
{
    const float top = spw_row_top(b->logits, s->vocab);
    if (!isfinite(top))
        return NULL;
    spw_row_fill(s->logits, b->logits, s->vocab);
    normalize(s, top);
    apply_diversity(s, b->diversity_penalty, b->chosen, b->n_chosen);
    const struct spw_logit_row row = row_of(s, b->tokens, b->n_prompt, b->n_tokens);
    spw_logit_rules_apply(&row, b->sampling);
    if (!b->sampling->rules.renormalize_logits)
        return s->logits;
    const float most = spw_row_top(s->logits, s->vocab);
    if (isfinite(most))
        normalize(s, most);
    return s->logits;
}
