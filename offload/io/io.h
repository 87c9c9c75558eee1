/* Asynchronous reads and writes of files, on I/O threads.
 *
 * A job reads or writes one contiguous range of a file. It is split into requests of about 1
 * MiB, which run in parallel. What the kernel leaves undone (short counts, EAGAIN, EINTR) is
 * requested again. Jobs start in the order of their submission and may end in any order. There
 * are two engines with the same results: io_uring (one thread with a ring, registered memory), and
 * threads that call pread and pwrite. A job may have a checksum for each record. The
 * I/O thread computes the checksum as soon as all bytes of the record are there. If a record of
 * a read has a wrong checksum, or its read fails with -EIO, it is read once more; then the job
 * fails with -EBADMSG or -EIO.
 *
 * The caller owns the job and its memory until the job is over. Any thread may call submit,
 * which never blocks; wait sleeps. Errors of a job: -EIO, -ENOSPC, -EBADMSG, -ENODATA (the file
 * ends inside the range), -EINVAL (a number is not a multiple of what the file needs),
 * -ECANCELED, or an error of the kernel. Nothing is allocated after open. */
#ifndef SPW_OFFLOAD_IO_IO_H
#define SPW_OFFLOAD_IO_IO_H

#include "base/base.h"

#include <stdatomic.h>

/* A request as the kernel gets it. */
struct spw_io_request {
    bool write;
    int fd;
    uint64_t offset, bytes;
    uint8_t *memory;
};

/* For tests: sees every result before the engine does. */
struct spw_io_fault {
    /* `result`: bytes done, or -errno. Returns the result that the engine gets. It may sleep,
     * and may change the memory of a read. At open it is called with a request of 0 bytes;
     * -ENOSYS then means that the kernel refuses io_uring. Called on I/O threads. */
    int64_t (*completed)(void *context, const struct spw_io_request *r, int64_t result);
    /* How many results may be held back and delivered after later ones; 0: none. */
    unsigned reorder;
    void *context;
};

struct spw_io_span {
    void *from;
    uint64_t bytes;
};

struct spw_io_options {
    enum spw_io_kind kind;
    unsigned queue_depth;   /* requests that run in parallel, threads of the pool; 0: 16 */
    uint64_t request_bytes; /* 0: 1 MiB */
    /* The memory that most jobs use. It is registered with the kernel if the kernel allows that. */
    const struct spw_io_span *memory;
    unsigned n_memory;
    const struct spw_io_fault *fault; /* borrowed; NULL: none */
    /* No thread is started, and no file is touched: a job is over when it is submitted, and its
     * bytes are counted. Files have the descriptor -1. */
    bool counts;
    /* Called once at the start of I/O thread i, to bind the thread to its cores. May be NULL. */
    void (*place)(void *context, unsigned i);
    void *place_context;
};

struct spw_io;

/* One open file. With O_DIRECT, memory, offset, bytes and record_bytes of a job must be
 * multiples of `align`. */
struct spw_io_file {
    int fd;
    uint32_t align; /* 1: the file is not open with O_DIRECT */
};

struct spw_io_job {
    /* Set by the caller; submit does not change these. */
    struct spw_io *io; /* for code that submits the job later, in stream order */
    const struct spw_io_file *file;
    bool write;
    uint64_t offset, bytes;
    uint8_t *memory;
    /* For a read: the file may end after this many bytes. 0: all bytes must be there. */
    uint64_t min_bytes;
    uint64_t record_bytes; /* 0: no checksums. The last record ends with the bytes of the job, or
                              with min_bytes */
    uint64_t *sums;        /* XXH3-64 of each record; one for each record_bytes that begin */
    bool notes_sums;       /* a read: a sum of 0 is not known, and the read sets it */
    bool again;            /* a job that has failed before: its bytes are in the usage already */
    /* Results, valid when the job is over. */
    int rc;
    uint32_t
        bad_record; /* the first record with an error, if the job has checksums; else UINT32_MAX */
    uint32_t n_rereads; /* records and requests that were right only at the second read */
    /* Private to the engine. */
    struct spw_io_job *next;
    _Atomic uint32_t state;
    uint64_t cut_bytes; /* bytes that were split into requests */
    uint32_t in_flight;
};

struct spw_io_usage {
    /* Bytes of finished jobs. A repeated request adds nothing. Failed reads count; failed writes
     * do not. */
    uint64_t read_bytes, written_bytes;
    uint64_t n_requests; /* to the kernel */
    uint64_t n_resumed;  /* of these, the rest of a request that was left undone */
    uint64_t n_rereads;  /* of these, repeated reads after a wrong checksum or an error */
    double cpu_seconds;  /* of the I/O threads */
};

/* AUTO takes io_uring if the kernel allows it and the memory can be registered, else threads.
 * URING also works without registered memory; -ENOTSUP with text if the kernel refuses io_uring. */
int spw_io_open(struct spw_io **out, const struct spw_io_options *o, struct spw_error *err);
/* Cancels jobs that have not begun (-ECANCELED), and waits for the others. NULL is fine. */
void spw_io_close(struct spw_io *io);
/* Which engine was taken, and why: "io_uring, 16 in flight, registered memory" or "16 threads
 * (io_uring: Operation not permitted)". Owned by the engine. */
const char *spw_io_describe(const struct spw_io *io);
/* options.counts. */
bool spw_io_counts(const struct spw_io *io);

/* Finds out whether an open descriptor has O_DIRECT and which alignment that needs. The caller may
 * close the descriptor when no job uses it. */
int spw_io_use_file(int fd, struct spw_io_file *out);

void spw_io_job_init(struct spw_io_job *job); /* the job is over, and nothing is set */
void spw_io_submit(struct spw_io *io, struct spw_io_job *job);
bool spw_io_is_over(const struct spw_io_job *job);
/* Sleeps until the job is over. Returns job->rc. */
int spw_io_wait(struct spw_io *io, struct spw_io_job *job);
void spw_io_usage(const struct spw_io *io, struct spw_io_usage *out);

#endif
