/* Measures a device through its own operations. Each figure is measured in rounds, as its fastest
 * and as its median round: see base/rounds.h. */
#ifndef SPW_RUNTIME_MEASURE_MACHINE_H
#define SPW_RUNTIME_MEASURE_MACHINE_H

#include "base/rounds.h"
#include "runtime/engine/engine.h"

/* Fills what backend->probe can measure. Allocates its memory, and frees it. */
int spw_machine_probe_device(struct spw_machine_range *out, const struct spw_backend *b,
                             const struct spw_lane *lane, struct spw_error *err);
/* Measures the time of kernels, in rounds. There should be some time between rounds: a slow moment
 * of the machine may last longer than a round. A device with a probe of its own does not need this.
 * Calls return 0, -ENOMEM or an error of the device. Close also what a failed open has left in
 * *out. */
struct spw_machine_kernels;
int spw_machine_kernels_open(struct spw_machine_kernels **out, const struct spw_backend *b,
                             const struct spw_lane *lane);
int spw_machine_kernels_round(struct spw_machine_kernels *k);
void spw_machine_kernels_take(const struct spw_machine_kernels *k, struct spw_machine *out,
                              enum spw_round which);
void spw_machine_kernels_close(struct spw_machine_kernels *k);
/* The part of the kernels that computes one row: products with each type of weights, and other
 * operations. memory: [bytes] of the device, filled with numbers; the compute stream is open. */
struct spw_machine_rows;
uint64_t spw_machine_rows_bytes(const struct spw_backend *b, const struct spw_lane *lane);
int spw_machine_rows_open(struct spw_machine_rows **out, const struct spw_backend *b,
                          const struct spw_lane *lane, uint8_t *memory);
int spw_machine_rows_round(struct spw_machine_rows *r);
void spw_machine_rows_take(struct spw_machine_rows *r, struct spw_machine *out,
                           enum spw_round which);
void spw_machine_rows_close(struct spw_machine_rows *r);
/* Queues on the compute stream: warm(of), and then n times run(of), which is timed. Waits for it,
 * and adds the seconds of one run. */
int spw_machine_time(struct spw_rounds *out, const struct spw_lane *lane, int (*warm)(void *of),
                     int (*run)(void *of), void *of, int n);
/* Measures a handover, on any device: see struct spw_machine. */
int spw_machine_probe_handover(struct spw_machine_range *out, const struct spw_backend *b,
                               const struct spw_lane *lane, struct spw_error *err);

#endif
