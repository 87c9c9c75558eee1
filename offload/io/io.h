/* Reads and writes of files beside the computation, on I/O threads of their own.
 *
 * A job is one contiguous piece of a file, to or from memory. It is cut into requests of about
 * 1 MiB that are in flight together; what the kernel leaves undone (short counts, EAGAIN, EINTR) is
 * asked for again. Jobs start in the order of their submission and end in any. Two engines with one
 * meaning: io_uring (one ring a thread, registered memory and files), and threads that call pread
 * and pwrite. The I/O thread sums the records of a job that has checksums as soon as their bytes
 * are there; a record of a read that does not agree, or whose read was -EIO, is read once more
 * before the job is called -EBADMSG, or -EIO.
 *
 * The caller owns jobs and memory until a job is over. submit may be called from any thread and
 * never blocks; wait sleeps. Errors of a job: -EIO, -ENOSPC, -EBADMSG, -ENODATA (the file ends
 * inside), -EINVAL (not in multiples of what it must be), -ECANCELED, or what the kernel said.
 * Nothing allocates after open. */
#ifndef SPW_OFFLOAD_IO_IO_H
#define SPW_OFFLOAD_IO_IO_H

#include "offload/io/io_kind.h"
#include "base/base.h"

#include <stdatomic.h>

/* A request as the kernel got it. */
struct spw_io_request {
    bool write;
    int fd;
    uint64_t offset, bytes;
    uint8_t *memory;
};

/* What stands between engine and kernel in tests: sees every result before the engine does. */
struct spw_io_fault {
    /* `result`: bytes done or -errno. Returns what the engine is to see; may sleep (late), change
     * the memory of a read, or undo nothing at all. -ENOSYS from a request of 0 bytes at open:
     * io_uring is refused. Called on I/O threads. */
    int64_t (*completed)(void *context, const struct spw_io_request *r, int64_t result);
    /* Requests that may be held back and delivered behind later ones; 0: none. */
    unsigned reorder;
    void *context;
};

struct spw_io_span {
    void *from;
    uint64_t bytes;
};

struct spw_io_options {
    enum spw_io_kind kind;
    unsigned threads;       /* io_uring: rings; 0: 1. Threads: of the pool; 0: queue_depth */
    unsigned queue_depth;   /* requests in flight; 0: 16 */
    uint64_t request_bytes; /* 0: 1 MiB */
    /* Registered with the kernel where that is possible: what most jobs read into or write from. */
    const struct spw_io_span *memory;
    unsigned n_memory;
    const struct spw_io_fault *fault; /* borrowed; NULL: none */
    /* Called once at the start of I/O thread i: puts it where it should run. May be NULL. */
    void (*place)(void *context, unsigned i);
    void *place_context;
};

struct spw_io;

#define SPW_IO_LENT UINT32_MAX

/* One open file. `direct`: O_DIRECT was taken; then memory, offset, bytes and record_bytes of a job
 * are multiples of `align`. */
struct spw_io_file {
    int fd;
    uint32_t index; /* in the engine's table of registered files, or SPW_IO_LENT */
    uint32_t align; /* 1 where direct is false */
    bool direct;
};

struct spw_io_job {
    /* Given; submit leaves it as it is. */
    struct spw_io *io; /* for whoever submits it later, in stream order */
    const struct spw_io_file *file;
    bool write;
    uint64_t offset, bytes;
    uint8_t *memory;
    /* Of a read without checksums: so many must be there, behind them the file may end; 0: all. */
    uint64_t least_bytes;
    uint64_t record_bytes; /* 0: no checksums; else bytes is a multiple of it */
    uint64_t *sums;        /* [bytes / record_bytes], XXH3-64 of each record */
    /* Read when the job is over. */
    int rc;
    uint32_t bad_record; /* with checksums: the first that was seen to fail; else UINT32_MAX */
    uint32_t n_rereads;  /* records and requests that were right only when read again */
    /* The engine's own. */
    struct spw_io_job *next;
    _Atomic uint32_t state;
    uint64_t asked; /* bytes that were cut into requests */
    uint32_t in_flight;
};

struct spw_io_usage {
    /* Bytes of finished jobs; a retried request adds nothing. Failed reads count, failed writes do
     * not. */
    uint64_t read_bytes, written_bytes;
    uint64_t n_requests; /* to the kernel */
    uint64_t n_resumed;  /* of them: the rest of one that was left undone */
    uint64_t n_rereads;  /* of them: a record that did not agree, or a read that failed */
    double cpu_seconds;  /* of the I/O threads */
};

/* AUTO takes io_uring where the kernel lets it and the memory can be registered, else threads.
 * -ENOTSUP with text for URING where it is refused; memory that cannot be registered is used all
 * the same then. */
int spw_io_open(struct spw_io **out, const struct spw_io_options *o, struct spw_error *err);
/* Cancels what has not begun (-ECANCELED), waits for the rest. NULL is fine. */
void spw_io_close(struct spw_io *io);
/* "io_uring, 16 in flight, registered memory" or
 * "16 threads (io_uring: Operation not permitted)": what was taken and why. Owned by the engine. */
const char *spw_io_describe(const struct spw_io *io);

/* Adds an open descriptor; finds out alignment and whether O_DIRECT is on. At most 256 (-ENFILE).
 * Not in the token loop. The caller closes the descriptor after the engine. */
int spw_io_attach(struct spw_io *io, int fd, struct spw_io_file *out);
/* The same for a file that comes and goes: any number, of any engine, and the descriptor may be
 * closed once no job uses it. It has no place in the kernel's table, which would keep it open. */
int spw_io_lend(int fd, struct spw_io_file *out);

void spw_io_job_init(struct spw_io_job *job); /* over, nothing given */
void spw_io_submit(struct spw_io *io, struct spw_io_job *job);
bool spw_io_is_over(const struct spw_io_job *job);
/* Sleeps until it is over; job->rc. */
int spw_io_wait(struct spw_io *io, struct spw_io_job *job);
void spw_io_usage(const struct spw_io *io, struct spw_io_usage *out);

#endif
