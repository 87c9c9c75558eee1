/* Which experts lie in the frames of the device: a pure function of the routing so far.
 *
 * A layer visits the experts that its rows have chosen. An expert that lies in no frame is missed:
 * it gets a frame, and the expert that lay there leaves. The one leaves that was chosen least,
 * where an old choice counts less than a new one: every HALF_LIFE visits of each layer its weight
 * halves. Layers are visited in a cycle, so "least recently used" would always take the one that
 * comes next.
 *
 * No time of arrival enters. So the engine and the prediction of bytes, which has a table of its
 * own, agree about every expert. */
#ifndef SPW_PREFETCH_EXPERT_RESIDENCY_H
#define SPW_PREFETCH_EXPERT_RESIDENCY_H

#include "base/base.h"

#define SPW_NO_FRAME UINT32_MAX
#define SPW_NO_EXPERT UINT32_MAX

struct spw_expert_residency {
    uint32_t n_experts, n_frames; /* of all layers */
    uint32_t *frames;             /* owned, [n_experts]: where each lies, or SPW_NO_FRAME */
    uint32_t *experts;            /* owned, [n_frames]: which lies in each, or SPW_NO_EXPERT */
    double *counts;               /* owned, [n_experts]: choices, new ones with a larger weight */
    uint64_t *visited;            /* owned, [n_experts]: the latest visit */
    uint64_t n_visits;
    double weight, growth; /* of a choice in this visit; from one visit to the next */
};

/* n_layers: layers with experts. -ENOMEM. */
int spw_expert_residency_init(struct spw_expert_residency *r, uint32_t n_experts, uint32_t n_frames,
                              uint32_t n_layers);
void spw_expert_residency_free(struct spw_expert_residency *r);
/* All frames are empty; counts stay. */
void spw_expert_residency_clear(struct spw_expert_residency *r);

/* An expert of a visit. */
struct spw_expert_visit {
    uint32_t expert, n_rows; /* given: the rows that chose it */
    uint32_t frame;          /* where it lies, or will lie */
    bool missed;
};

/* Visits n different experts. A missed expert takes the frame of an expert of the same visit only
 * if all frames have such experts: first of one that was not missed, or was missed before. */
void spw_expert_residency_visit(struct spw_expert_residency *r, struct spw_expert_visit *v,
                                uint32_t n);

#endif
