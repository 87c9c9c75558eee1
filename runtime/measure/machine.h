/* Measures a device through its own operations. */
#ifndef SPW_RUNTIME_MEASURE_MACHINE_H
#define SPW_RUNTIME_MEASURE_MACHINE_H

#include "runtime/engine/engine.h"

/* Fills what backend->probe can measure. Allocates its memory, and frees it. */
int spw_machine_probe_device(struct spw_machine *out, const struct spw_backend *b,
                             const struct spw_lane *lane, struct spw_error *err);
/* Measures the time of kernels, in rounds. Each figure is that of its fastest round, because others
 * on the machine only make a round slower. There should be some time between rounds: a slow moment
 * of the machine may last longer than a round. A device with a probe of its own does not need this.
 * Calls return 0, -ENOMEM or an error of the device. Close also what a failed open has left in
 * *out. */
struct spw_machine_kernels;
int spw_machine_kernels_open(struct spw_machine_kernels **out, const struct spw_backend *b,
                             const struct spw_lane *lane);
int spw_machine_kernels_round(struct spw_machine_kernels *k);
void spw_machine_kernels_take(const struct spw_machine_kernels *k, struct spw_machine *out);
void spw_machine_kernels_close(struct spw_machine_kernels *k);
/* The part of the kernels that computes one row: products with each type of weights, and other
 * operations. memory: [bytes] of the device, filled with numbers; the compute stream is open. */
struct spw_machine_rows;
uint64_t spw_machine_rows_bytes(const struct spw_backend *b, const struct spw_lane *lane);
int spw_machine_rows_open(struct spw_machine_rows **out, const struct spw_backend *b,
                          const struct spw_lane *lane, uint8_t *memory);
int spw_machine_rows_round(struct spw_machine_rows *r);
void spw_machine_rows_take(const struct spw_machine_rows *r, struct spw_machine *out);
void spw_machine_rows_close(struct spw_machine_rows *r);
/* Writes the time at which the compute stream has done all that was queued before. *at must stay
 * until the stream is synced. */
int spw_machine_stamp(const struct spw_lane *lane, double *at);
/* Measures a handover, on any device: see struct spw_machine. */
int spw_machine_probe_handover(struct spw_machine *out, const struct spw_backend *b,
                               const struct spw_lane *lane, struct spw_error *err);

#endif
