/* Measuring on a device through its own tables. */
#ifndef SPW_RUNTIME_MEASURE_MACHINE_H
#define SPW_RUNTIME_MEASURE_MACHINE_H

#include "runtime/engine/engine.h"

/* Fills what backend->probe can measure. Takes and gives back its memory. */
int spw_machine_probe_device(struct spw_machine *out, const struct spw_backend *b,
                             struct spw_device *device, struct spw_error *err);
/* What kernels take of their own, which on a device with a probe of its own is taken for nothing.
 */
int spw_machine_probe_kernels(struct spw_machine *out, const struct spw_backend *b,
                              struct spw_device *device, struct spw_error *err);
/* Of any device: see struct spw_machine. */
int spw_machine_probe_handover(struct spw_machine *out, const struct spw_backend *b,
                               struct spw_device *device, struct spw_error *err);

#endif
