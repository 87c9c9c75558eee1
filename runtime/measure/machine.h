/* Measures a device through its own operations. */
#ifndef SPW_RUNTIME_MEASURE_MACHINE_H
#define SPW_RUNTIME_MEASURE_MACHINE_H

#include "runtime/engine/engine.h"

/* Fills what backend->probe can measure. Allocates its memory, and frees it. */
int spw_machine_probe_device(struct spw_machine *out, const struct spw_backend *b,
                             const struct spw_lane *lane, struct spw_error *err);
/* Measures the time of kernels. A device with a probe of its own does not need this. */
int spw_machine_probe_kernels(struct spw_machine *out, const struct spw_backend *b,
                              const struct spw_lane *lane, struct spw_error *err);
/* Measures products of one row with each type of weights, and other operations on a row, as part of
 * the kernels. memory: [bytes] of the device, filled with numbers; the compute stream is open. */
uint64_t spw_machine_products_bytes(const struct spw_backend *b, const struct spw_lane *lane);
int spw_machine_probe_products(struct spw_machine *out, const struct spw_backend *b,
                               const struct spw_lane *lane, uint8_t *memory);
int spw_machine_probe_rows(struct spw_machine *out, const struct spw_backend *b,
                           const struct spw_lane *lane, uint8_t *memory);
/* Measures a handover, on any device: see struct spw_machine. */
int spw_machine_probe_handover(struct spw_machine *out, const struct spw_backend *b,
                               const struct spw_lane *lane, struct spw_error *err);

#endif
