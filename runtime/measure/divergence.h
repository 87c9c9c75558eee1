/* How far the next-token distributions of one cache are from those of another, position by
 * position: pure arithmetic, in double.
 *
 * What is counted of a position: the Kullback-Leibler divergence of the candidate from the exact
 * distribution, in nats; whether the likeliest token is the same; and whether the exact
 * distribution decides on a token at all. The caller gives room for the divergences. One thread. */
#ifndef SPW_RUNTIME_MEASURE_DIVERGENCE_H
#define SPW_RUNTIME_MEASURE_DIVERGENCE_H

#include "base/base.h"

/* Logits are read at a temperature at which their standard deviation over the vocabulary is at
 * least this: see divergence.c. */
#define SPW_DIVERGENCE_SPREAD 1.0

struct spw_divergence {
    double *kl; /* [room], borrowed */
    size_t room, n;
    size_t n_same;                    /* the likeliest token is the same */
    size_t n_decided, n_decided_same; /* of positions where it has twice the second's probability */
    size_t n_sharpened;               /* where the temperature was not 1 */
};

/* One more position; `n` < `room`. f32 logits [vocab], vocab at least 1. A candidate that is not
 * finite, or an exact one that is not, is infinitely far away and is no same token. */
void spw_divergence_add(struct spw_divergence *d, const float *exact, const float *candidate,
                        uint32_t vocab);

struct spw_divergence_summary {
    size_t n, n_decided, n_sharpened;
    double kl_median, kl_p999;     /* the least value that 50 %, 99.9 % do not pass */
    double same_top, same_decided; /* rates; 1 of no positions */
};
/* Puts d->kl in order. */
void spw_divergence_sum_up(struct spw_divergence *d, struct spw_divergence_summary *out);

#endif
