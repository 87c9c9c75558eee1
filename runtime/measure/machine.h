/* Measures a device through its own operations. Each figure is measured in rounds, as its fastest
 * and as its median round: see base/rounds.h. */
#ifndef SPW_RUNTIME_MEASURE_MACHINE_H
#define SPW_RUNTIME_MEASURE_MACHINE_H

#include "base/rounds.h"
#include "runtime/engine/engine.h"

/* Fills the speeds of both machines of *out; `threads` and `cores` are set. Allocates its memory,
 * and frees it. -ECANCELED: the interrupt was raised; a GPU is always measured to the end. */
int spw_machine_measure(struct spw_machine_range *out, const struct spw_backend *b,
                        const struct spw_lane *lane, const struct spw_interrupt *interrupt,
                        struct spw_error *err);
/* Queues on the compute stream: warm(of), and then n times run(of), which is timed. Waits for it,
 * and adds the seconds of one run. */
int spw_machine_time(struct spw_rounds *out, const struct spw_lane *lane, int (*warm)(void *of),
                     int (*run)(void *of), void *of, int n);

/* The products of a CPU. The caller sets the first three fields; memory:
 * [spw_machine_products_bytes] of the device, filled with numbers; the compute stream is open. */
struct spw_machine_products {
    const struct spw_backend *backend;
    const struct spw_lane *lane;
    uint8_t *memory; /* rows of x, then at these offsets: rows of y, codes, workspace, weights */
    uint64_t y_at, codes_at, work_at, weights_at;
    uint64_t team, columns, rows; /* columns and rows: of the product that is timed */
    enum spw_product product;
    struct spw_rounds few[SPW_PRODUCTS], many[SPW_PRODUCTS]; /* of one product */
};
/* Before the memory is there. Sets the offsets. */
uint64_t spw_machine_products_bytes(struct spw_machine_products *p);
int spw_machine_products_round(struct spw_machine_products *p);
/* Fills few_flops and many_flops. */
void spw_machine_products_take(const struct spw_machine_products *p, struct spw_machine *out,
                               enum spw_round which);

#endif
