/* Bytes of missed experts, where only the numbers of rows of all passes are known: at least, at
 * most, and expected if each row chooses by itself, with the chances that counts give.
 *
 *   least     every pass uses as many experts of a layer as a row does, and the device has all that
 *             it has room for
 *   most      the rows of a pass choose different experts, and every one is missed
 *   expected  the experts with the largest chances stay once they have come; of the others, each is
 *             missed in every pass that chooses it. Without counts all experts are alike
 *
 * Where the host multiplies what a pass has missed (spw_plan.host_rows), outputs of experts go up;
 * and at least those experts that find an empty frame, at most all of them, expected are those that
 * stay.
 *
 * Each link is counted alone: no single run needs to reach the least or the most of both. */
#ifndef SPW_RUNTIME_PLAN_EXPERT_FORECAST_H
#define SPW_RUNTIME_PLAN_EXPERT_FORECAST_H

#include "runtime/plan/plan.h"

struct spw_expert_forecast {
    const struct spw_plan *plan;       /* borrowed, as `weights` */
    const struct spw_weights *weights; /* n below: weights->n_expert_blocks */
    double *chances;                   /* owned, [n]: that a row chooses it */
    double *stays;                     /* owned, [n]: that it stays once it has come */
    double *unseen;                    /* owned, [n]: that no row has chosen it yet */
    /* owned, [n]: bytes of each expert on each link; the same in order, in each layer */
    uint64_t *moved[SPW_MOVED_COUNT], *sorted[SPW_MOVED_COUNT];
    double expected[SPW_MOVED_COUNT];
    struct spw_expert_bytes bytes; /* all but `expected` */
    uint64_t n_passes[2]; /* through the model's layers; of drafts, through the MTP layer */
};

/* The chances that a row chooses each of n experts of a layer, by counts of what earlier rows
 * chose; NULL: all are alike. Counts are a sample: also if all experts were alike, their counts
 * would differ, by the variance of a binomial count. Each chance moves from the mean to what its
 * count says by the part of the variance that is more than that. So the experts with the largest
 * counts do not look better than they are, and an expert that was never chosen has a chance. */
void spw_expert_chances(double *chances, const double *counts, uint32_t n, uint32_t n_kept);

/* counts: [n], or NULL. Where no expert moves, all bytes are 0. -ENOMEM. */
int spw_expert_forecast_open(struct spw_expert_forecast *f, const struct spw_plan *p,
                             const struct spw_weights *w, const double *counts);
void spw_expert_forecast_close(struct spw_expert_forecast *f);
void spw_expert_forecast_pass(struct spw_expert_forecast *f, bool draft, uint64_t rows);
void spw_expert_forecast_bytes(const struct spw_expert_forecast *f, struct spw_expert_bytes *out);
/* Bytes that a token is expected to miss later, when all experts that stay have come: from the
 * files, and from the host. */
void spw_expert_forecast_token(const struct spw_expert_forecast *f, uint64_t *from_disk,
                               uint64_t *from_host);

#endif
