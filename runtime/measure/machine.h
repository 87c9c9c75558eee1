/* Measures a device through its own operations. */
#ifndef SPW_RUNTIME_MEASURE_MACHINE_H
#define SPW_RUNTIME_MEASURE_MACHINE_H

#include "runtime/engine/engine.h"
#include "runtime/measure.h"

/* Fills the speeds of both machines (`best` may be NULL), and the spread of the typical one.
 * Allocates its memory, and frees it. -ECANCELED: the interrupt was raised. */
int spw_machine_measure(struct spw_machine *typical, struct spw_machine *best,
                        const struct spw_backend *b, const struct spw_lane *lane,
                        const struct spw_interrupt *interrupt, struct spw_error *err);

/* The processor's name from /proc/cpuinfo. Machines other than x86 stay "unknown CPU". */
void spw_machine_cpu_name(char *out, size_t bytes);

#endif
