/* A device: memory, streams, events and copies. A backend is one file with one table of these
 * operations.
 *
 * A stream runs its work in order. Events order streams against each other. Calls that queue
 * work return at once. Device memory and pinned host memory count against hard budgets: an
 * allocation beyond a budget returns -ENOMEM and takes nothing. Copies are counted by link. If
 * queued work fails, the device counts as failed: all later calls return -EIO. A device and its
 * streams belong to one host thread; any thread may read the counters. */
#ifndef SPW_OFFLOAD_DEVICE_DEVICE_H
#define SPW_OFFLOAD_DEVICE_DEVICE_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CUevent_st *spw_event; /* the name that CUDA gives it: no handle needs a cast */

struct spw_placement;

enum spw_link {
    SPW_LINK_HOST_TO_DEVICE,
    SPW_LINK_DEVICE_TO_HOST,
    SPW_LINK_DEVICE_TO_DEVICE,
    SPW_LINK_COUNT,
};

/* Numbers of layers (`range` below) whose waiting is counted apart. */
enum { SPW_RANGES = 512 };

struct spw_device_options {
    uint64_t device_bytes, host_bytes; /* budgets; UINT64_MAX: none */
    int threads;        /* CPU: number of workers of a kernel; 0: see offload/device/placement.h */
    bool beside_device; /* CPU: another device computes, too: of three cores or more, one is left */
    unsigned io_threads; /* threads that will read and write files; 0: none */
    /* The folder of these files, so that I/O threads can run near its drive; may be NULL. */
    const char *io_path;
    /* CPU: seed of random delays before and after every copy and kernel, for tests of other
     * interleavings; 0: none. */
    uint64_t delay_seed;
    const void *context; /* CPU: the backend's own, see spw_device_cpu_context */
    int index;           /* CUDA: which GPU */
    bool serial_kernels; /* CUDA: no kernel starts before the previous one has ended (validation).
                            If several devices are open on a GPU, the last one decides */
    uint64_t slab_bytes; /* CUDA: most host memory that one call pins; 0: 1 GiB */
};

struct spw_device_usage {
    uint64_t device_bytes, host_bytes; /* in use now */
    uint64_t device_peak_bytes, host_peak_bytes;
    uint64_t moved_bytes[SPW_LINK_COUNT];
    /* CUDA: memory that the card has lost since the device was opened, by the driver's count:
     * for us, for the driver itself, and for other processes. CPU: 0. */
    uint64_t card_bytes;
    bool host_pageable; /* the system refused to pin memory: copies of host memory that is not
                           pinned block the calling thread */
};

struct spw_device; /* defined by each backend */

struct spw_device_ops {
    const char *name;
    int (*open)(struct spw_device **out, const struct spw_device_options *o, struct spw_error *err);
    void (*close)(
        struct spw_device *d); /* the caller has closed all streams and freed all memory */

    /* The number of workers for which a kernel needs scratch memory; 0 if kernels need none. */
    unsigned (*workers)(const struct spw_device *d);
    /* Where threads beside this device should run. Valid until close. */
    const struct spw_placement *(*placement)(const struct spw_device *d);
    /* Device memory that is free now, regardless of the budget; UINT64_MAX: device memory is
     * system memory. */
    uint64_t (*available)(struct spw_device *d);

    /* Zeroed memory, aligned at 4096 bytes (CUDA: at least 256 on the device), counted in whole
     * pages; 0 bytes give NULL. Do not call it in the token loop. */
    int (*alloc)(struct spw_device *d, uint64_t bytes, void **out);
    void (*free)(struct spw_device *d, void *p, uint64_t bytes);
    /* Counts memory that is used in place, such as a mapped file, against both budgets: both or
     * none. NULL if the device cannot use memory in place. */
    int (*charge)(struct spw_device *d, uint64_t device_bytes, uint64_t host_bytes);
    void (*discharge)(struct spw_device *d, uint64_t device_bytes, uint64_t host_bytes);
    /* Changes the budgets. Allocated memory stays. Peaks start again from what is in use. */
    void (*set_budgets)(struct spw_device *d, uint64_t device_bytes, uint64_t host_bytes);
    int (*alloc_host)(struct spw_device *d, uint64_t bytes, void **out); /* pinned */
    void (*free_host)(struct spw_device *d, void *p, uint64_t bytes);
    /* Frees the end of an allocation: everything after the first `keep` bytes (rounded up to
     * pages, not 0). Queued work must not use it. NULL if the device cannot do this. */
    void (*trim)(struct spw_device *d, void *p, uint64_t bytes, uint64_t keep);
    void (*trim_host)(struct spw_device *d, void *p, uint64_t bytes, uint64_t keep);

    /* If several streams have work, the stream with the name "compute" goes first. */
    int (*stream_open)(struct spw_device *d, const char *name, spw_stream *out);
    void (*stream_close)(struct spw_device *d, spw_stream s); /* waits for its work first */
    int (*event_open)(struct spw_device *d, spw_event *out);
    void (*event_close)(struct spw_device *d, spw_event e);

    /* An event stands for the work that was queued on `s` before its latest record. An event
     * that was never recorded is over. */
    int (*event_record)(struct spw_device *d, spw_event e, spw_stream s);
    int (*stream_wait)(struct spw_device *d, spw_stream s, spw_event e);
    int (*event_sync)(struct spw_device *d, spw_event e); /* the host waits */
    bool (*event_is_over)(struct spw_device *d,
                          spw_event e); /* whether event_sync would return at once */
    int (*stream_sync)(struct spw_device *d, spw_stream s); /* the host waits */

    /* Queued. The memory on both sides must stay valid until the copy is done. */
    int (*copy)(struct spw_device *d, void *to, const void *from, uint64_t bytes,
                enum spw_link link, spw_stream s);
    /* Runs fn(argument) on the host in stream order. It must not call back into the device. */
    int (*host_call)(struct spw_device *d, void (*fn)(void *), void *argument, spw_stream s);

    /* Seconds that stream `s` has waited inside stream_wait with nothing to run, that is,
     * waiting that computation did not hide. Counts waits that were queued in ranges with this
     * number, or outside of any range (SPW_RANGES). Exact after stream_sync. CUDA: only for the
     * stream "compute". */
    double (*waited_seconds)(struct spw_device *d, spw_stream s, uint32_t range);
    void (*usage)(struct spw_device *d, struct spw_device_usage *out);

    /* Work that is queued between the two calls has this name and number in a profiler, and its
     * waits count for the number. Ranges do not nest. Numbers from SPW_RANGES on count as
     * outside. */
    void (*range_begin)(struct spw_device *d, const char *name, uint64_t number);
    void (*range_end)(struct spw_device *d);
};

extern const struct spw_device_ops spw_device_cpu;

/* A device that moves and computes nothing: copies are counted, device memory cannot be touched,
 * and host memory reads as zeros. options.context: which device it stands for. */
extern const struct spw_device_ops spw_device_dry;
struct spw_device_likeness {
    unsigned workers; /* as the operations with these names */
    uint64_t available;
};

/* Only in builds with CUDA, real or emulated. */
extern const struct spw_device_ops spw_device_cuda;
/* Whether GPU `index` can be used. Fills `name` with its name and capability, such as "NVIDIA
 * H200, sm_90". Allocates nothing on it. -ENODEV, or -ENOTSUP without a driver, with text that says
 * what to do. */
int spw_device_cuda_probe(int index, char *name, size_t bytes, struct spw_error *err);

/* The CPU device only: queues a kernel and copies its `args`. The workers of the device share its
 * tasks. -EINVAL: more bytes than that. */
enum { SPW_CPU_ARGS_BYTES = 1280 };
int spw_device_cpu_launch(struct spw_device *d, spw_stream s, const struct spw_kernel *kernel,
                          const void *args, size_t bytes);
unsigned spw_device_cpu_threads(const struct spw_device *d);
/* The context that the device's options gave, and the device, of a stream. */
const void *spw_device_cpu_context(spw_stream s);
struct spw_device *spw_device_cpu_of(spw_stream s);
/* For tests: the n-th copy, kernel or host call from now on (0: the next) fails, and the device
 * with it; n < 0 switches this off. */
void spw_device_cpu_fail_nth(struct spw_device *d, int64_t n);

#ifdef __cplusplus
}
#endif

#endif
