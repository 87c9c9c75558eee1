/* A backend: a device's memory and streams, and the operations that run on it. One file each. */
#ifndef SPW_RUNTIME_BACKEND_H
#define SPW_RUNTIME_BACKEND_H

#include "model/ops.h"
#include "offload/device.h"

struct spw_backend {
    char name[80];
    const struct spw_device_ops *device_ops;
    const struct spw_ops *ops;
    const void *context;                  /* for spw_device_options */
    uint32_t index;                       /* CUDA: which GPU; for spw_device_options */
    size_t (*linear_workspace)(size_t k); /* bytes a worker needs for inner size k */
    /* What a link could move in the time that one transfer costs beside its bytes: events, a
     * launch. */
    uint64_t transfer_cost_bytes;
    /* Kernels read the host's memory as fast as the device's: resident weights are computed from
     * the mapped file. Otherwise they are copied, and streamed ones wait in the host arena. */
    bool reads_host_memory;
};

/* -EINVAL where a slot is NULL: an operation is there before a model is loaded, or never asked for.
 */
int spw_backend_check(const struct spw_backend *b, struct spw_error *err);

/* The best instruction set of this processor. */
void spw_backend_cpu(struct spw_backend *out);
/* GPU `index`. -ENODEV, with what to do, where it cannot be used; -EINVAL where this build has no
 * CUDA. */
int spw_backend_cuda(struct spw_backend *out, uint32_t index, struct spw_error *err);

#endif
