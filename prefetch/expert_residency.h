/* Which experts lie in the frames of the device: a pure function of counts at the start and of the
 * routing since then.
 *
 * A layer visits the experts that its rows have chosen. An expert that lies in no frame is missed:
 * it gets a frame, and the expert that lay there leaves (expert_frames.h). The one leaves that was
 * chosen least, where an old choice counts less than a new one: every HALF_LIFE visits of each
 * layer its weight halves. Layers are visited in a cycle, so "least recently used" would always
 * take the one that comes next.
 *
 * No time of arrival enters. So the engine and the prediction of bytes, which has a table of its
 * own, agree about every expert. */
#ifndef SPW_PREFETCH_EXPERT_RESIDENCY_H
#define SPW_PREFETCH_EXPERT_RESIDENCY_H

#include "prefetch/expert_frames.h"

struct spw_expert_residency {
    struct spw_expert_frames in; /* its values: choices, new ones with a larger weight */
    double weight, growth;       /* of a choice in this visit; from one visit to the next */
};

/* n_layers: layers with experts. counts: [n_experts], what spw_expert_residency_counts gave before;
 * NULL: nothing was chosen before. -ENOMEM. */
int spw_expert_residency_init(struct spw_expert_residency *r, uint32_t n_experts, uint32_t n_frames,
                              uint32_t n_layers, const double *counts);
void spw_expert_residency_free(struct spw_expert_residency *r);
/* All frames are empty; counts stay. */
void spw_expert_residency_clear(struct spw_expert_residency *r);
/* [n_experts]: the choices of each, where the latest one counts 1. */
void spw_expert_residency_counts(const struct spw_expert_residency *r, double *counts);

/* Visits n different experts. */
void spw_expert_residency_visit(struct spw_expert_residency *r, struct spw_expert_visit *v,
                                uint32_t n);

#endif
