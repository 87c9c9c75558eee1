/* Divergence of distributions: see divergence.h.
 *
 * KL(p || q) = sum p (log p - log q), p and q the softmax of the two rows of logits (Kullback and
 * Leibler, On information and sufficiency, 1951). With small differences e = q's logits - p's it
 * is var_p(e) / 2: it sees differences in absolute terms.
 *
 * That says nothing of a model whose distribution is flat, as one with random weights may have: its
 * attention can be wrecked and the divergence stays small, because all logits are. So a row whose
 * standard deviation is under SPW_DIVERGENCE_SPREAD is sharpened: both rows are multiplied by what
 * brings the exact one there, and differences count in proportion. Models that were trained have a
 * spread of 2 to 5 and are read as they are.
 *
 * The likeliest token of a flat distribution is a matter of the last bits, in any cache. It is
 * asked for where the exact distribution decides: where one token has twice the probability of the
 * next. Elsewhere the divergence alone has the say. */
#include "runtime/measure/divergence.h"

#include <math.h>
#include <stdlib.h>

/* ---- one row ---- */

struct row {
    double top, second; /* the two largest logits */
    uint32_t argmax;    /* the first one of them */
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

/* Of rows multiplied by `sharp`: the mean of log p - log q under p. Never under 0, though rounding
 * might be. */
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

/* By nearest rank: the value at ceil(n permille / 1000) of n in order. */
static double quantile(const double *sorted, size_t n, size_t permille)
{
    return n ? sorted[spw_div_up(n * permille, 1000) - 1] : 0;
}

static double rate(size_t part, size_t of)
{
    return of ? (double)part / (double)of : 1;
}

void spw_divergence_sum_up(struct spw_divergence *d, struct spw_divergence_summary *out)
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
