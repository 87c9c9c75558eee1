/* The divergence of distributions: see divergence.h.
 *
 * KL(p || q) = sum p (log p - log q), where p and q are the softmax of the two rows of logits
 * (Kullback and Leibler, On information and sufficiency, 1951). For small differences e = q's
 * logits - p's it is var_p(e) / 2, so it measures absolute differences.
 *
 * This says nothing about a model with a flat distribution, as a model with random weights may
 * have: its logits are all small, so the divergence is small even if its attention is broken.
 * Therefore a row with a standard deviation below SPW_DIVERGENCE_SPREAD is sharpened: both rows
 * are multiplied by the factor that gives the exact row this standard deviation. Differences
 * then count relative to it. Trained models have a spread of 2 to 5, and their rows are not
 * changed.
 *
 * In a flat distribution the last bits decide which token is the most likely, in any cache. So
 * the most likely token is compared only where the exact distribution decides: where one token
 * has twice the probability of the next. Elsewhere only the divergence counts. */
#include "runtime/measure/divergence.h"

#include <math.h>
#include <stdlib.h>

/* ---- one row ---- */

struct row {
    double top, second; /* the two largest logits */
    uint32_t argmax;    /* the first of the largest */
    double mean, spread;
    bool finite;
};

static struct row look_at(const float *logits, uint32_t vocab)
{
    struct row r = {.top = -INFINITY, .second = -INFINITY, .finite = true};
    double sum = 0, squares = 0;
    for (uint32_t i = 0; i < vocab; i++) {
        double x = (double)logits[i];
        r.finite = r.finite && isfinite(x);
        sum += x;
        if (x > r.top) {
            r.second = r.top;
            r.top = x;
            r.argmax = i;
        } else if (x > r.second) {
            r.second = x;
        }
    }
    r.mean = sum / vocab;
    for (uint32_t i = 0; i < vocab; i++)
        squares += ((double)logits[i] - r.mean) * ((double)logits[i] - r.mean);
    r.spread = sqrt(squares / vocab);
    return r;
}

/* The mean of log p - log q under p, of rows multiplied by `sharp`. At least 0, although
 * rounding may give less. */
static double divergence(const float *exact, const struct row *p, const float *candidate,
                         const struct row *q, uint32_t vocab, double sharp)
{
    double p_sum = 0, q_sum = 0, difference = 0;
    for (uint32_t i = 0; i < vocab; i++) {
        double x = sharp * ((double)exact[i] - p->top);
        double y = sharp * ((double)candidate[i] - q->top), weight = exp(x);
        p_sum += weight;
        q_sum += exp(y);
        difference += weight * (x - y);
    }
    return fmax(difference / p_sum - log(p_sum) + log(q_sum), 0);
}

void spw_divergence_add(struct spw_divergence *d, const float *exact, const float *candidate,
                        uint32_t vocab)
{
    struct row p = look_at(exact, vocab), q = look_at(candidate, vocab);
    bool finite = p.finite && q.finite;
    bool flat = finite && p.spread > 0 && p.spread < SPW_DIVERGENCE_SPREAD;
    double sharp = flat ? SPW_DIVERGENCE_SPREAD / p.spread : 1;
    bool same = finite && p.argmax == q.argmax;
    bool decided = !finite || sharp * (p.top - p.second) >= log(2);
    d->kl[d->n++] = finite ? divergence(exact, &p, candidate, &q, vocab, sharp) : INFINITY;
    d->n_same += same;
    d->n_decided += decided;
    d->n_decided_same += decided && same;
    d->n_sharpened += flat;
}

/* ---- all of them ---- */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* By nearest rank: the value at position ceil(n permille / 1000) of the sorted values. */
static double quantile(const double *sorted, size_t n, size_t permille)
{
    return n ? sorted[spw_div_up(n * permille, 1000) - 1] : 0;
}

static double rate(size_t part, size_t of)
{
    return of ? (double)part / (double)of : 1;
}

void spw_divergence_summarize(struct spw_divergence *d, struct spw_divergence_summary *out)
{
    qsort(d->kl, d->n, sizeof *d->kl, compare);
    *out = (struct spw_divergence_summary){
        .n = d->n,
        .n_decided = d->n_decided,
        .n_sharpened = d->n_sharpened,
        .kl_median = quantile(d->kl, d->n, 500),
        .kl_p999 = quantile(d->kl, d->n, 999),
        .same_top = rate(d->n_same, d->n),
        .same_decided = rate(d->n_decided_same, d->n_decided),
    };
}
