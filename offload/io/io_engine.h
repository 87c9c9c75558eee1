/* What the two engines of offload/io/io.h share: the queue of jobs, and asks, the pieces that jobs
 * are cut into.
 *
 *     cut ---> [kernel] ---> see ---> settle ---> check ---> (free; its job may be over)
 *                 ^                     |           |
 *                 '---- the rest, or once more -----'  a record that does not agree: once more
 *
 * An engine only takes an ask, has the kernel do [at, stop) of its job, and hands in the result.
 * Whatever a result means is decided in io_job.c, for both alike. */
#ifndef SPW_OFFLOAD_IO_IO_ENGINE_H
#define SPW_OFFLOAD_IO_IO_ENGINE_H

#include "offload/io/io.h"

#include <pthread.h>

#define SPW_IO_FILES 256

struct spw_io_ask {
    struct spw_io_job *job;
    uint64_t begin, end;         /* its part of the job */
    uint64_t at, stop;           /* what the kernel is to do next */
    uint32_t record, record_end; /* that it has to sum once its part is there */
    unsigned stalls;             /* times in a row that the kernel did nothing */
    bool moving;                 /* its part is not there yet */
    bool failed_once;            /* the one repetition after -EIO is used up */
    bool again;                  /* `record` did not agree and is read again */
    int64_t result;              /* of one that is held back */
    struct spw_io_ask *next;
};

/* Asks whose results are held back, newest first (struct spw_io_fault.reorder). */
struct spw_io_held {
    struct spw_io_ask *list;
    unsigned n;
};

struct spw_io_engine {
    enum spw_io_kind kind;
    /* Sets io->n_threads and io->engine_state. -ENOTSUP: refused, for the reason that it writes
     * into `why`. */
    int (*open)(struct spw_io *io, const struct spw_io_options *o, char *why, size_t why_bytes);
    void (*close)(struct spw_io *io);                /* the threads have ended */
    void (*run)(struct spw_io *io, unsigned thread); /* until io->closing and nothing is left */
    void (*wake)(struct spw_io *io); /* there is work, or io->closing; io->lock is held */
    void (*describe)(const struct spw_io *io, char *text, size_t bytes);
};

extern const struct spw_io_engine spw_io_uring, spw_io_threads;

struct spw_io_thread {
    struct spw_io *io;
    pthread_t thread;
    unsigned index;
};

struct spw_io {
    const struct spw_io_engine *engine;
    void *engine_state; /* owned by the engine */
    unsigned n_threads, started, queue_depth;
    uint64_t request_bytes;
    const struct spw_io_fault *fault; /* borrowed; may be NULL */
    void (*place)(void *context, unsigned i);
    void *place_context;
    struct spw_io_thread *threads; /* owned: [n_threads] */
    struct spw_io_ask *asks;       /* owned; those not in use are in `free_asks` */
    char text[320];                /* spw_io_describe */

    /* All below is under the lock, which nobody holds while he sums, sleeps or reads. */
    pthread_mutex_t lock;
    struct spw_io_job *head, *tail; /* not wholly cut yet; only the head may be cut in part */
    struct spw_io_ask *free_asks;
    unsigned n_asks;
    bool closing;
    unsigned n_files;
    struct spw_io_usage usage;
};

/* Of memory that is registered with the kernel, `left` bytes from `from` on: the bytes of the next
 * slab. */
uint64_t spw_io_slab_bytes(const void *from, uint64_t left);
/* The next piece of the next job, or NULL. The lock is held. */
struct spw_io_ask *spw_io_cut(struct spw_io *io);
struct spw_io_request spw_io_request_of(const struct spw_io_ask *a);
/* The fault's view of a result, if there is one. */
int64_t spw_io_see(const struct spw_io *io, const struct spw_io_ask *a, int64_t result);
/* Which asks (with their results) are delivered now that this one is back, as a list. `others`:
 * whether the kernel has more of the same engine or ring, so that this one may be held back. */
struct spw_io_ask *spw_io_deliver(const struct spw_io *io, struct spw_io_held *held,
                                  struct spw_io_ask *a, bool others);
/* true: ask the kernel again, for [at, stop). false: its part is there, or failed: check it. */
bool spw_io_settle(struct spw_io *io, struct spw_io_ask *a);
/* Sums. true: ask the kernel again, as above. false: the ask is gone. */
bool spw_io_check(struct spw_io *io, struct spw_io_ask *a);
/* Ends what is queued with -ECANCELED. The lock is held. */
void spw_io_cancel(struct spw_io *io);

#endif
