/* Measuring on a device through its own tables. */
#ifndef SPW_RUNTIME_MACHINE_H
#define SPW_RUNTIME_MACHINE_H

#include "runtime/engine.h"

/* Fills what backend->probe can measure. Takes and gives back its memory. */
int spw_machine_probe_device(struct spw_machine *out, const struct spw_backend *b,
                             struct spw_device *device, struct spw_error *err);

#endif
