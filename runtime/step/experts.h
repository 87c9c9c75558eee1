/* The layers with experts: from the choices of all rows of a pass to their outputs.
 *
 *   route     for each chunk of a layer: the choices of its rows
 *   sort      when all chunks have passed: the host reads the choices and sorts the rows by expert
 *   compute   each chosen expert computes its rows together, in any order, those that lie on the
 *             device first; then the outputs of each row are added, in the order of experts'
 *             numbers
 *
 *   choices   row 0: experts 2, 5   row 1: 0, 2   row 2: 2, 5
 *   index     1 | 0 1 2 | 0 2                      the rows of experts 0, 2 and 5
 *   places    row 0: 1, 4           row 1: 0, 2   row 2: 3, 5     where the outputs of a row are
 *
 * So an expert's weights are used once a pass, whatever the chunks are. A row's result does not
 * depend on the rows that its experts compute beside it.
 *
 * A pass of one row, on a GPU of a few rows, does not sort if all experts are resident
 * (spw_plan_routes_on_device): kernels find the matrices in a table on the device, and the host
 * never learns the choices.
 *
 * In a pass of few rows the host multiplies what lies in its memory: host_products.h.
 *
 * Borrows everything. All work of the device is queued on the compute stream; sort waits for the
 * choices. */
#ifndef SPW_RUNTIME_STEP_EXPERTS_H
#define SPW_RUNTIME_STEP_EXPERTS_H

#include "model/forward.h"
#include "offload/device/lane.h"
#include "prefetch/prefetch.h"
#include "runtime/plan/plan.h"
#include "runtime/step/host_products.h"

struct spw_experts {
    const struct spw_forward *forward;
    const struct spw_lane *lane;
    const struct spw_plan *plan;
    struct spw_prefetch *prefetch;
    const struct spw_host_products *host; /* for passes of plan.host_rows */
    uint64_t first_row; /* where rows of this step begin in the buffers: steps[1] of the executor
                           has its rows behind those of steps[0] */
    uint32_t *ends;     /* owned, [experts + 1]: where the rows of an expert end in the index */
    struct spw_expert_visit *visit; /* owned, [experts]: those that rows of the pass have chosen */
    uint32_t n_visited;
};

/* The fields up to first_row are given. A model without experts needs nothing. -ENOMEM. */
int spw_experts_init(struct spw_experts *x);
void spw_experts_free(struct spw_experts *x);

/* `h`: the rows of the chunk, which begin at `row` of the pass. */
int spw_experts_route(const struct spw_experts *x, uint32_t layer,
                      const struct spw_layer_weights *matrices, void *h, uint64_t row,
                      uint64_t rows);
/* Sorts the rows of the pass; x->visit has the experts of the layer then, numbered over all layers.
 */
int spw_experts_sort_rows(struct spw_experts *x, uint32_t layer, uint64_t rows);
/* `h`: all rows of the pass. matrices: of the layer. -EIO: an expert could not be read. */
int spw_experts_compute(struct spw_experts *x, uint32_t layer,
                        const struct spw_layer_weights *matrices, void *h, uint64_t rows);

/* Writes the addresses of all experts: [gate, up, down][experts of all layers]. They are resident.
 */
void spw_experts_addresses(const struct spw_weights *w, const struct spw_prefetch *prefetch,
                           const void **out);

/* Sorts rows by expert: a pure function. ends: [n_experts + 1]; index, places: [rows * n_kept]. The
 * rows of expert e are index[ends[e]] up to index[ends[e + 1]] (exclusive) then. */
void spw_experts_sort(const struct spw_choice *choices, uint64_t rows, uint32_t n_kept,
                      uint32_t n_experts, uint32_t *ends, uint32_t *index, uint32_t *places);

#endif
