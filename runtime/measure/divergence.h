/* How far the next-token distributions of one cache are from those of another, position by
 * position: pure arithmetic, in double.
 *
 * For each position it measures: the Kullback-Leibler divergence of the candidate from the exact
 * distribution, in nats; whether the most likely token is the same; whether the exact
 * distribution decides on a token at all. The caller owns the memory for the divergences. One
 * thread. */
#ifndef SPW_RUNTIME_MEASURE_DIVERGENCE_H
#define SPW_RUNTIME_MEASURE_DIVERGENCE_H

#include "base/base.h"

/* Rows are sharpened until the standard deviation of the logits over the vocabulary is at least
 * this: see divergence.c. */
#define SPW_DIVERGENCE_SPREAD 1.0

struct spw_divergence {
    double *kl; /* [capacity], borrowed */
    size_t capacity, n;
    size_t n_same;                    /* positions with the same most likely token */
    size_t n_decided, n_decided_same; /* positions where the most likely token has twice the
                                         probability of the next */
    size_t n_sharpened;               /* positions whose rows were sharpened */
};

/* Adds one position; `n` < `capacity`. f32 logits [vocab], vocab at least 1. If one of the rows
 * is not finite, the divergence is infinite and the token is not the same. */
void spw_divergence_add(struct spw_divergence *d, const float *exact, const float *candidate,
                        uint32_t vocab);

struct spw_divergence_summary {
    size_t n, n_decided, n_sharpened;
    double kl_median,
        kl_p999; /* the least values that 50 % and 99.9 % of the positions do not exceed */
    double same_top, same_decided; /* rates; 1 if there are no positions */
};
/* Sorts d->kl. */
void spw_divergence_summarize(struct spw_divergence *d, struct spw_divergence_summary *out);

#endif
