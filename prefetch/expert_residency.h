/* Which experts lie in the frames of the device: a pure function of counts at the start and of the
 * routing since then.
 *
 * A layer visits the experts that its rows have chosen. An expert that lies in no frame is missed:
 * it gets a frame, and the expert that lay there leaves (expert_frames.h). The one leaves that its
 * layer's next row is least likely to choose. This chance comes from two counts:
 *
 *   shares: how often an expert was chosen in the latest MEMORY visits of its layer; older visits
 *           fade. A visit counts once, whatever its rows are: a prompt does not outweigh what comes
 *           after it.
 *   pairs:  if a row chose expert a, how often the next row chose expert b. Older ones fade, too:
 *           the counts of a are halved when it has MOST_FIRST.
 *
 *   chance of b = the mean, over the experts a of the latest row, of
 *                 (pairs[a][b] + PRIOR * share of b) / (rows that chose a + PRIOR)
 *
 * Where the host multiplies the experts that a visit has missed, none of them must come. A missed
 * expert gets a frame only if its chance is HOST_MARGIN times that of the expert which leaves. The
 * margin is 3 for this reason: host and link work at the same time, so a visit takes max(missed,
 * q * moved) times an expert's bytes / host rate, where q = host rate / link rate is 3 to 5 beside
 * a GPU. Of the traces in SPEED.md, 3 of 12 resident:
 *
 *   margin   missed   moved   time with q = 3, 4, 5
 *        1     0.89    0.69     2.07   2.76   3.45
 *        2     0.94    0.39     1.17   1.56   1.95
 *        3     1.01    0.22     1.01   1.01   1.10
 *        5     1.11    0.08     1.11   1.11   1.11
 *
 * SPEED.md compares this rule with others. No time of arrival enters: the routing alone decides. */
#ifndef SPW_PREFETCH_EXPERT_RESIDENCY_H
#define SPW_PREFETCH_EXPERT_RESIDENCY_H

#include "prefetch/expert_frames.h"

/* Layers with experts; experts of each; those that a row chooses. */
struct spw_expert_shape {
    uint32_t n_layers, n_experts, n_kept;
};

struct spw_expert_residency {
    struct spw_expert_frames in; /* its values: the chances */
    struct spw_expert_shape shape;
    void *owned;      /* the memory of the tables, if nobody gave it */
    double *shares;   /* [experts of all layers]: visits that chose it */
    double *sums;     /* [n_layers]: of the shares */
    uint8_t *pairs;   /* [experts of all layers][n_experts] */
    uint8_t *n_first; /* [experts of all layers]: rows that chose it, and had a next row */
    uint32_t *latest; /* [n_layers][n_kept]: what the latest row chose, */
    bool *has_latest; /* [n_layers]: if its visit had no other row */
    double *chances;  /* [n_experts], scratch */
};

/* The most memory that the tables take, with a frame for each expert. */
uint64_t spw_expert_residency_bytes(const struct spw_expert_shape *shape);
/* counts: [experts of all layers], what spw_expert_residency_counts gave before; NULL: nothing was
 * chosen before. memory: [bytes], borrowed, at a multiple of 8; NULL: the tables are allocated.
 * -ENOMEM. */
int spw_expert_residency_init(struct spw_expert_residency *r, const struct spw_expert_shape *shape,
                              uint32_t n_frames, const double *counts, void *memory);
void spw_expert_residency_free(struct spw_expert_residency *r);
/* All frames are empty; counts stay. */
void spw_expert_residency_clear(struct spw_expert_residency *r);
/* [experts of all layers]: the shares. */
void spw_expert_residency_counts(const struct spw_expert_residency *r, double *counts);

/* Visits n different experts of a layer, in the order of their numbers, which count over all
 * layers. on_host: the host multiplies what is missed. */
void spw_expert_residency_visit(struct spw_expert_residency *r, struct spw_expert_visit *v,
                                uint32_t n, bool on_host);

#endif
