/* Experts that the host multiplies: products go to the data.
 *
 * A card reads its memory 10 to 40 times as fast as its link to the host moves bytes; so a token
 * whose experts lie in host memory waits for the link. The processor beside the card reads the same
 * bytes 3 to 5 times as fast as the link moves them. So the lane of a GPU has a second lane: the
 * CPU's operations, over the host arena. In a pass of few rows (spw_plan.host_rows, which
 * runtime/rules/host_rows.h decides) both compute a layer with experts at the same time:
 *
 *   device   router | ........ resident experts ............ | outputs of the others come | combine
 *   link           choices, rows down              outputs up ^         some experts go up ...
 *   host               sort | missed experts in memory | missed ones from files ^
 *
 *   1. the host reads the choices, and the rows that the router has seen (experts.c)
 *   2. missed experts that host memory holds are queued on the second lane, then resident ones on
 *      the device, then those that come from files, each when it was read
 *   3. the host waits for the second lane; outputs go up to the places that sorting has given
 *   4. experts that get a frame (prefetch/expert_residency.h) follow, behind the token
 *
 * No bit depends on where an expert was multiplied: quantized weights have one product on every
 * processor (quant/codes.h), and so has what lies between two products. Other weights have not, and
 * an engine that has them gets no second lane (runtime/engine/engine_host_lane.c).
 *
 * Borrows everything. */
#ifndef SPW_RUNTIME_STEP_HOST_EXPERTS_H
#define SPW_RUNTIME_STEP_HOST_EXPERTS_H

#include "model/forward.h"
#include "offload/device/lane.h"
#include "prefetch/prefetch.h"
#include "runtime/plan/plan.h"

struct spw_host_experts {
    struct spw_forward forward;  /* over host memory */
    const struct spw_lane *lane; /* the second one: a device and its stream "compute" */
    uint8_t *x, *y;              /* of the host arena: see struct spw_plan_host_lane */
};

/* ops: the CPU's. lane NULL: there is none, nothing is multiplied. host_arena: of the plan. */
void spw_host_experts_init(struct spw_host_experts *h, const struct spw_plan *p,
                           const struct spw_weights *w, const struct spw_ops *ops,
                           const struct spw_lane *lane, uint8_t *host_arena);
/* Queues expert `e` of the layer, for n rows: number index[i] of h->x, or i. choices: of all rows.
 * Row i of the result goes to row `place` + i of h->y. */
int spw_host_experts_queue(const struct spw_host_experts *h, uint32_t layer, uint32_t e,
                           const struct spw_host_expert *from, const uint32_t *index,
                           const struct spw_choice *choices, uint64_t place, uint64_t n);
/* Waits until nothing is queued. */
int spw_host_experts_wait(const struct spw_host_experts *h);

#endif
