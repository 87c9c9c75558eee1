/* The part of a plan that lies below the device: copies of KV tiles on the host and on disk, and
 * the buffers between the two. For plan.c; pure functions of the residency and the input.
 *
 * Every session's copies are ranked by age, those of sliding layers first, which are short-lived
 * and would be written for little; the newest `n` lie on the host, the others on disk. */
#ifndef SPW_RUNTIME_PLAN_BELOW_H
#define SPW_RUNTIME_PLAN_BELOW_H

#include "runtime/plan/plan.h"

/* Tiles of one layer of one session that have a copy below, at most. */
struct spw_below {
    uint32_t full, sliding;
    uint32_t held; /* of a sliding layer, when another session has written them down and moved on */
    uint32_t all;  /* ranks: no more than these can lie on the host */
};

void spw_below_count(struct spw_below *b, const struct spw_plan *p,
                     const struct spw_plan_input *in);
/* The least rank at which the disk has room for the others. */
uint32_t spw_below_least(const struct spw_below *b, const struct spw_plan *p,
                         const struct spw_plan_input *in);
/* Places n copies of each session on the host, with the least of buffers between host and disk. */
void spw_below_place(struct spw_plan *p, const struct spw_plan_input *in, const struct spw_below *b,
                     uint32_t n);
/* Spends `room` more bytes of the host on larger buffers and more copies. */
void spw_below_grow(struct spw_plan *p, const struct spw_plan_input *in, const struct spw_below *b,
                    uint32_t n, uint64_t room);

#endif
