/* What the two engines of offload/io/io.h share: the queue of jobs, and the parts that jobs are
 * split into.
 *
 *     next_part ---> [kernel] ---> take_result ---> check_part ---> free; the job may be over
 *                       ^               |               |
 *                       '-- the rest, or once more -----'  a wrong checksum: once more
 *
 * An engine only takes a part, lets the kernel read or write bytes [at, stop) of its job, and
 * hands in the result. io_job.c decides what a result means, for both engines. */
#ifndef SPW_OFFLOAD_IO_IO_ENGINE_H
#define SPW_OFFLOAD_IO_IO_ENGINE_H

#include "offload/io/io.h"

#include <pthread.h>

struct spw_io_part {
    struct spw_io_job *job;
    uint64_t begin, end;         /* bytes of the job that this part has */
    uint64_t at, stop;           /* bytes that the kernel reads or writes next */
    uint32_t record, record_end; /* records whose checksums this part computes */
    unsigned stalls;             /* how often in a row the kernel did nothing */
    bool pending;                /* its bytes are not all there yet */
    bool failed_once;            /* the read was repeated after -EIO, and is not repeated again */
    bool rereads;                /* `record` had a wrong checksum and is read again */
    int64_t result;              /* of a part that is held back */
    struct spw_io_part *next;
};

/* Parts whose results a test holds back, newest first (struct spw_io_fault.reorder). */
struct spw_io_delayed {
    struct spw_io_part *list;
    unsigned n;
};

struct spw_io_engine {
    enum spw_io_kind kind;
    /* Sets io->n_threads and io->engine_state. -ENOTSUP: the kernel refuses; the reason is in
     * `why`. */
    int (*open)(struct spw_io *io, const struct spw_io_options *o, char *why, size_t why_bytes);
    void (*close)(struct spw_io *io); /* after the threads have ended */
    void (*run)(struct spw_io *io,
                unsigned thread); /* returns when io->closing is set and no work is left */
    void (*wake)(
        struct spw_io *io); /* there is work, or io->closing is set; the caller has io->lock */
    void (*describe)(const struct spw_io *io, char *text, size_t bytes);
};

extern const struct spw_io_engine spw_io_uring, spw_io_threads;

struct spw_io_thread {
    struct spw_io *io;
    pthread_t thread;
    unsigned index;
};

struct spw_io {
    const struct spw_io_engine *engine; /* NULL: options.counts */
    void *engine_state;                 /* owned by the engine */
    unsigned n_threads, started, queue_depth;
    uint64_t request_bytes;
    const struct spw_io_fault *fault; /* borrowed; may be NULL */
    void (*place)(void *context, unsigned i);
    void *place_context;
    struct spw_io_thread *threads; /* owned: [n_threads] */
    struct spw_io_part *parts;     /* owned; unused ones are in `free_parts` */
    char text[320];                /* the text of spw_io_describe */

    /* The lock protects the fields below. No thread has the lock while it sums, sleeps or reads. */
    pthread_mutex_t lock;
    struct spw_io_job *head,
        *tail; /* jobs that are not fully split; only the first one may be partly split */
    struct spw_io_part *free_parts;
    unsigned n_parts;
    bool closing;
    struct spw_io_usage usage;
};

/* The size of the next slab, the unit of registered memory, if `left` bytes remain from `from`
 * on. */
uint64_t spw_io_slab_bytes(const void *from, uint64_t left);
/* The next part of the next job, or NULL. The caller has the lock. */
struct spw_io_part *spw_io_next_part(struct spw_io *io);
struct spw_io_request spw_io_request_of(const struct spw_io_part *a);
/* Returns the result that the test's fault makes of this one. */
int64_t spw_io_apply_fault(const struct spw_io *io, const struct spw_io_part *a, int64_t result);
/* Returns the list of parts whose results are delivered now. `others`: the kernel still has
 * other requests of this engine or ring, so this result may be held back. */
struct spw_io_part *spw_io_deliver(const struct spw_io *io, struct spw_io_delayed *delayed,
                                   struct spw_io_part *a, bool others);
/* Handles a result. True: submit [at, stop) again. False: the part has all its bytes, or has
 * failed: call check_part. */
bool spw_io_take_result(struct spw_io *io, struct spw_io_part *a);
/* Computes the checksums. True: submit [at, stop) again. False: the part is free now. */
bool spw_io_check_part(struct spw_io *io, struct spw_io_part *a);
/* Ends all queued jobs with -ECANCELED. The caller has the lock. */
void spw_io_cancel(struct spw_io *io);

#endif
