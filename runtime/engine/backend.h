/* A backend: a device and the operations that run on it. One file each. */
#ifndef SPW_RUNTIME_ENGINE_BACKEND_H
#define SPW_RUNTIME_ENGINE_BACKEND_H

#include "model/ops.h"
#include "offload/device/lane.h"
#include "offload/io/io.h"

struct spw_embed_args;
struct spw_weights;

struct spw_backend {
    char name[80];
    const struct spw_device_ops *device_ops;
    const struct spw_ops *ops;
    const void *context; /* goes into spw_device_options */
    uint32_t index;      /* CUDA: which GPU; goes into spw_device_options */
    /* Bytes of workspace per worker for inner size k and these types of x and w. */
    size_t (*linear_workspace)(size_t k, enum spw_dtype x, enum spw_dtype w);
    /* The fixed time of one transfer (events, a launch), as bytes that the link moves in this time.
     */
    uint64_t transfer_cost_bytes;
    uint32_t reads_per_link_byte; /* bytes that a kernel reads while a link moves one byte */
    /* Kernels read host memory as fast as device memory. Then resident weights are used in the
     * mapped file. Else resident weights are copied to the device, and streamed weights are copied
     * to the host arena. */
    bool reads_host_memory;
    /* The CPU may multiply quantized weights in host memory at the same time as this backend: it
     * gives the same bits, and reads this memory faster than the link moves it. */
    bool host_lane;
    /* Writes rows of embeddings, and of the numbers that layers get beside them, to host memory:
     * spw_weights_embed, or nothing. */
    void (*embed)(const struct spw_weights *w, const struct spw_embed_args *a);
    /* Queues a read of `bytes` (a multiple of 1 MiB, 64-byte aligned) of device memory, to measure
     * its speed. `sink`: 4 bytes on the device. */
    int (*read)(const void *from, uint64_t bytes, void *sink, spw_stream s);
    const struct spw_io_fault *io_fault; /* lets a test change results of the disk; NULL: none */
};

/* -EINVAL: an operation is NULL. So each operation exists before a model is loaded, or is never
 * called. */
int spw_backend_check(const struct spw_backend *b, struct spw_error *err);

/* The best instruction set of this processor. */
void spw_backend_cpu(struct spw_backend *out);
/* These kernels (model/cpu/ops_cpu.h), which the caller keeps: tests compare all tables that the
 * processor has. */
struct spw_cpu_kernels;
void spw_backend_cpu_with(struct spw_backend *out, const struct spw_cpu_kernels *kernels);
/* GPU `index`. -ENODEV: it cannot be used, and the text says what to do; -ENOTSUP: there is nothing
 * to use, for the machine has no driver. */
int spw_backend_cuda(struct spw_backend *out, uint32_t index, struct spw_error *err);
/* What a plan asks of a GPU's backend, on the dry device: nothing can be computed. `ops` and `like`
 * are borrowed; ops gets the members that a plan reads. */
struct spw_device_likeness;
void spw_backend_cuda_dry(struct spw_backend *out, struct spw_ops *ops,
                          const struct spw_device_likeness *like);

/* A backend that counts what the backend `of` would move, with its device `lane`: nothing is
 * computed and no file is touched, and logits are any numbers. */
struct spw_dry_backend {
    struct spw_backend backend; /* borrows the other members */
    struct spw_ops ops;
    struct spw_device_likeness like;
};
void spw_backend_dry(struct spw_dry_backend *out, const struct spw_backend *of,
                     const struct spw_lane *lane);

#endif
