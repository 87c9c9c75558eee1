/* Products that the host multiplies: they go to the data.
 *
 * A card reads its memory 10 to 40 times as fast as its link to the host moves bytes; so a token
 * whose weights lie in host memory waits for the link. The processor beside the card reads the same
 * bytes 3 to 5 times as fast as the link moves them. So the lane of a GPU has a second lane: the
 * CPU's operations, over the host arena. In a pass of few rows (runtime/rules/host_rows.h decides)
 * it multiplies
 *
 * - experts that the pass has missed (spw_plan.host_rows), while the device multiplies those that
 *   it has:
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
 * - the matrices of layers whose block lies in host memory (struct spw_block_place.host_rows),
 *   product by product: its rows x go down, its rows y come up, and everything else of the layer
 *   stays on the device:
 *
 *   device   norm |               | attention |          | add, norm |          | gate ...
 *   link        x down         y up       x down      y up      x down       y up
 *   host             q, k, v                     output             gate, up
 *
 *   Blocks of other layers cross the link meanwhile, where the plan lets them.
 *
 * No bit depends on where a product was multiplied: quantized weights have one product on every
 * processor (quant/codes.h), and so has what lies between two products. Other weights have not:
 * they cross the link (runtime/engine/engine_host_lane.c).
 *
 * Borrows everything. */
#ifndef SPW_RUNTIME_STEP_HOST_PRODUCTS_H
#define SPW_RUNTIME_STEP_HOST_PRODUCTS_H

#include "model/forward.h"
#include "offload/device/lane.h"
#include "prefetch/prefetch.h"
#include "runtime/plan/plan.h"

struct spw_host_products {
    struct spw_forward forward;  /* over host memory */
    const struct spw_lane *lane; /* the second one: a device and its stream "compute"; NULL: nothing
                                    is multiplied, rows move all the same */
    uint8_t *x, *y;              /* of the host arena: see struct spw_plan_host_lane */
    const struct spw_forward *device; /* the other forward, whose operations these stand for; */
    const struct spw_lane *device_lane;
    struct spw_prefetch *prefetch;  /* counts waits */
    struct spw_forward_host layers; /* for device->host */
    uint32_t layer;                 /* the one that waits */
};

/* The members from `device` to `prefetch` are given. ops: the CPU's. */
void spw_host_products_init(struct spw_host_products *h, const struct spw_plan *p,
                            const struct spw_ops *ops, const struct spw_lane *lane);
/* Queues expert `e` of the layer, for n rows: number index[i] of h->x, or i. choices: of all rows.
 * Row i of the result goes to row `place` + i of h->y. */
int spw_host_products_expert(const struct spw_host_products *h, uint32_t layer, uint32_t e,
                             const struct spw_host_expert *from, const uint32_t *index,
                             const struct spw_choice *choices, uint64_t place, uint64_t n);
/* Waits until nothing is queued; the wait counts in the layer. */
int spw_host_products_wait(const struct spw_host_products *h, uint32_t layer);

#endif
