/* A device: its memory, streams, events and copies. One backend is one file with one table of
 * these.
 *
 * Work is queued on streams and runs in order; events order streams against each other. A call that
 * queues returns at once. Device and pinned-host memory are counted against hard budgets: what
 * would pass one is -ENOMEM, with nothing taken. Copies are counted by link. Any other failure
 * marks the device failed: every later call returns -EIO. A device and its streams belong to one
 * host thread; counters may be read from any. */
#ifndef SPW_OFFLOAD_DEVICE_DEVICE_H
#define SPW_OFFLOAD_DEVICE_DEVICE_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CUevent_st *spw_event;

struct spw_placement;

enum spw_link {
    SPW_LINK_HOST_TO_DEVICE,
    SPW_LINK_DEVICE_TO_HOST,
    SPW_LINK_DEVICE_TO_DEVICE,
    SPW_LINK_COUNT,
};

/* Ranges whose waiting is told apart. */
enum { SPW_RANGES = 512 };

struct spw_device_options {
    uint64_t device_bytes, host_bytes; /* budgets; UINT64_MAX: none */
    int threads;         /* CPU: workers of a kernel, 0: see offload/device/placement.h */
    unsigned io_threads; /* that will read and write files beside the computation; 0: none */
    /* The folder these files lie in, for threads that want to be near its drive; may be NULL. */
    const char *io_path;
    /* CPU: a seed for random delays before and after every copy and kernel; 0 = none. A test's way
     * to try other interleavings. */
    uint64_t delay_seed;
    const void *context; /* CPU: the backend's own, see spw_device_cpu_context */
    int index;           /* CUDA: which GPU */
    bool serial_kernels; /* CUDA: no kernel starts before the one in front of it is over
                            (validation); of all devices open on this GPU the last one decides */
    uint64_t slab_bytes; /* CUDA: most host memory pinned by one call; 0 = 1 GiB */
};

struct spw_device_usage {
    uint64_t device_bytes, host_bytes; /* now */
    uint64_t device_peak_bytes, host_peak_bytes;
    uint64_t moved_bytes[SPW_LINK_COUNT];
    /* CUDA: what the card has given away since the device was opened, as the driver counts it:
     * ours, the driver's own for us, and other processes'. CPU: 0. */
    uint64_t card_bytes;
    bool host_pageable; /* pinning was refused: copies of host memory block the calling thread */
};

struct spw_device; /* each backend's own */

struct spw_device_ops {
    const char *name;
    int (*open)(struct spw_device **out, const struct spw_device_options *o, struct spw_error *err);
    void (*close)(struct spw_device *d); /* streams and memory must have been given back */

    /* Workers that a kernel's scratch is needed for; 0 where kernels bring their own. */
    unsigned (*workers)(const struct spw_device *d);
    /* Where threads beside this device should run. Valid until close. */
    const struct spw_placement *(*placement)(const struct spw_device *d);
    /* Device memory that could still be taken now, whatever the budget; UINT64_MAX: the system's
     * own memory is all there is. */
    uint64_t (*available)(struct spw_device *d);

    /* Zeroed, 4096-byte aligned (CUDA: at least 256 on the device), counted in whole pages; 0 bytes
     * give NULL. Not in the token loop. */
    int (*alloc)(struct spw_device *d, uint64_t bytes, void **out);
    void (*free)(struct spw_device *d, void *p, uint64_t bytes);
    /* Counts memory that is used in place, such as a mapped file, like memory of alloc or
     * alloc_host: both or none. NULL on a device that cannot. */
    int (*charge)(struct spw_device *d, uint64_t device_bytes, uint64_t host_bytes);
    void (*discharge)(struct spw_device *d, uint64_t device_bytes, uint64_t host_bytes);
    /* Other budgets than at open; what is taken stays taken. Peaks begin with what it is. */
    void (*set_budgets)(struct spw_device *d, uint64_t device_bytes, uint64_t host_bytes);
    int (*alloc_host)(struct spw_device *d, uint64_t bytes, void **out); /* pinned */
    void (*free_host)(struct spw_device *d, void *p, uint64_t bytes);
    /* Gives the end of an allocation back, all behind the first `keep` bytes (rounded up to pages,
     * not 0). Nothing queued may use it. NULL on a device that cannot. */
    void (*trim)(struct spw_device *d, void *p, uint64_t bytes, uint64_t keep);
    void (*trim_host)(struct spw_device *d, void *p, uint64_t bytes, uint64_t keep);

    /* The stream named "compute" goes before all others where both have work. */
    int (*stream_open)(struct spw_device *d, const char *name, spw_stream *out);
    void (*stream_close)(struct spw_device *d, spw_stream s); /* drains it first */
    int (*event_open)(struct spw_device *d, spw_event *out);
    void (*event_close)(struct spw_device *d, spw_event e);

    /* An event means the work queued on `s` before its latest record. Never recorded = done. */
    int (*event_record)(struct spw_device *d, spw_event e, spw_stream s);
    int (*stream_wait)(struct spw_device *d, spw_stream s, spw_event e);
    int (*event_sync)(struct spw_device *d, spw_event e);     /* the host waits */
    bool (*event_is_over)(struct spw_device *d, spw_event e); /* it would not wait */
    int (*stream_sync)(struct spw_device *d, spw_stream s);   /* the host waits */

    /* Queued; the memory on both sides must stay until done. */
    int (*copy)(struct spw_device *d, void *to, const void *from, uint64_t bytes,
                enum spw_link link, spw_stream s);
    /* Runs fn(argument) on the host in stream order. It must not call back into the device. */
    int (*host_call)(struct spw_device *d, void (*fn)(void *), void *argument, spw_stream s);

    /* Seconds that stream `s` has spent so far inside stream_wait with nothing to run: waiting that
     * computation did not hide; of the waits queued in ranges of this number, or (SPW_RANGES)
     * outside of any. Exact after stream_sync. CUDA: of the stream "compute" only. */
    double (*waited_seconds)(struct spw_device *d, spw_stream s, uint32_t range);
    void (*usage)(struct spw_device *d, struct spw_device_usage *out);

    /* What is queued between the two calls shows under this name and number in a profiler, and its
     * waits count for the number. Ranges do not nest; a number from SPW_RANGES on counts outside.
     */
    void (*range_begin)(struct spw_device *d, const char *name, uint64_t number);
    void (*range_end)(struct spw_device *d);
};

extern const struct spw_device_ops spw_device_cpu;

/* Where CUDA was built (or is emulated). */
extern const struct spw_device_ops spw_device_cuda;
/* Whether GPU `index` can be used, and its name and capability as "NVIDIA H200, sm_90". Takes no
 * memory on it. -ENODEV with text that says what to do. */
int spw_device_cuda_probe(int index, char *name, size_t bytes, struct spw_error *err);

/* The CPU device only: queues a kernel; `args` (at most 512 bytes) are copied. Its tasks are shared
 * among the device's workers. */
int spw_device_cpu_launch(struct spw_device *d, spw_stream s, const struct spw_kernel *kernel,
                          const void *args, size_t bytes);
unsigned spw_device_cpu_threads(const struct spw_device *d);
/* Of the stream's device: what its options gave, and the device itself. */
const void *spw_device_cpu_context(spw_stream s);
struct spw_device *spw_device_cpu_of(spw_stream s);
/* For tests: the n-th copy, kernel or host call to run from now on (0 = the next) fails, and with
 * it the device; n < 0 switches it off. */
void spw_device_cpu_fail_nth(struct spw_device *d, int64_t n);

#ifdef __cplusplus
}
#endif

#endif
