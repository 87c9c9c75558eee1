/* The io_uring engine: one thread with one ring, registered memory, many requests per system call.
 *
 * Each round the thread fills the ring with the next parts, submits them, and takes the results.
 * If there were no results, it checks one complete part. So the drive has its next requests
 * before the thread computes a checksum. Otherwise a drive that answers several requests at once
 * would be idle meanwhile.
 *
 *     queue --fill--> [ring, up to `depth`] --collect--> take_result --> to_check --check--> free
 *                           ^                               |                   |
 *                           '------------ the rest, or once more ---------------'
 *
 * If no part waits for its checksum, the thread sleeps in the kernel until a result comes or the
 * eventfd is written. The ring polls the eventfd. A submit writes it if the thread has said that
 * it wants work. */
#include "offload/io/io_engine.h"

#include <assert.h>
#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

/* The kernel registers at most this much in one piece. A request across the border of two slabs
 * uses its memory like unregistered memory.
 *
 * The kernel keeps a slab as huge pages only if all of it is huge pages. With one small page it
 * keeps all as pages of 4 KiB. A request to a drive may have about 254 of these, so 1 MiB
 * becomes two requests. Therefore the memory before the first border of a huge page is a slab of
 * its own. */
#define SLAB_BYTES ((uint64_t)1 << 30)
#define HUGE_PAGE_BYTES ((uint64_t)2 << 20)

struct ring {
    struct io_uring ring;
    int event;
    unsigned in_kernel, depth;
    bool polled;                   /* the ring watches `event` */
    bool cancelled;                /* the kernel was told to cancel its requests */
    struct spw_io_delayed delayed; /* held back by a test */
    struct spw_io_part *to_check,
        *to_check_end;   /* parts that wait for their checksums, oldest first */
    bool wants_work;     /* under the engine's lock: submit must write `event` */
    struct iovec *slabs; /* owned: [n_slabs] */
    unsigned n_slabs;
    bool registered;
};

/* --- open and close --- */

static void free_state(struct spw_io *io)
{
    struct ring *r = io->engine_state;
    spw_free(r->slabs);
    spw_free(r);
    io->engine_state = NULL;
}

static void uring_close(struct spw_io *io)
{
    struct ring *r = io->engine_state;
    /* Now, not when the kernel gets to it: the locked memory counts against a limit. */
    if (r->registered)
        io_uring_unregister_buffers(&r->ring);
    io_uring_queue_exit(&r->ring);
    close(r->event);
    free_state(io);
}

/* Results wait in the kernel until the thread takes them, if the kernel can do that (6.1). Then
 * they do not interrupt the thread while it sums. The ring is opened disabled: only the thread
 * that enables such a ring may use it. */
static int init_ring(struct ring *r, unsigned entries)
{
    unsigned lazy = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
    int rc = io_uring_queue_init(entries, &r->ring, IORING_SETUP_R_DISABLED | lazy);
    if (rc == -EINVAL)
        rc = io_uring_queue_init(entries, &r->ring, IORING_SETUP_R_DISABLED);
    return rc;
}

/* -ENOTSUP: the kernel refuses; threads need nothing of this. */
static int open_ring(struct ring *r, unsigned depth, char *why, size_t why_bytes)
{
    r->depth = depth;
    if (spw_alloc_fails()) /* the allocation of the kernel */
        return -ENOMEM;
    r->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    /* Twice the depth: parts that wait for their checksums may be read again beside all requests
     * in flight. */
    int rc = r->event < 0 ? -errno : init_ring(r, 2 * depth + 2);
    if (rc == 0)
        return 0;
    if (r->event >= 0)
        close(r->event);
    snprintf(why, why_bytes, "io_uring: %s", strerror(-rc));
    return -ENOTSUP;
}

/* A test may refuse io_uring, as the filter of a container would. */
static int ask_fault(const struct spw_io *io, char *why, size_t why_bytes)
{
    struct spw_io_request nothing = {.fd = -1};
    int64_t rc = io->fault ? io->fault->completed(io->fault->context, &nothing, 0) : 0;
    if (rc >= 0)
        return 0;
    snprintf(why, why_bytes, "io_uring: %s", strerror((int)-rc));
    return -ENOTSUP;
}

uint64_t spw_io_slab_bytes(const void *from, uint64_t left)
{
    uint64_t into = (uintptr_t)from % HUGE_PAGE_BYTES;
    return spw_min_u64(into ? HUGE_PAGE_BYTES - into : SLAB_BYTES, left);
}

static int cut_slabs(struct ring *r, const struct spw_io_options *o)
{
    uint64_t n = 0;
    for (unsigned i = 0; i < o->n_memory; i++)
        n += spw_div_up(o->memory[i].bytes, SLAB_BYTES) + 1;
    if (!n)
        return 0;
    r->slabs = spw_alloc_zero(n, sizeof *r->slabs);
    if (!r->slabs)
        return -ENOMEM;
    for (unsigned i = 0; i < o->n_memory; i++)
        for (uint64_t at = 0, part; at < o->memory[i].bytes; at += part) {
            uint8_t *from = (uint8_t *)o->memory[i].from + at;
            part = spw_io_slab_bytes(from, o->memory[i].bytes - at);
            r->slabs[r->n_slabs++] = (struct iovec){.iov_base = from, .iov_len = part};
        }
    return 0;
}

static void say_unregistered(const struct ring *r, int rc, char *why, size_t why_bytes)
{
    uint64_t bytes = 0;
    for (unsigned i = 0; i < r->n_slabs; i++)
        bytes += r->slabs[i].iov_len;
    struct rlimit limit = {0};
    getrlimit(RLIMIT_MEMLOCK, &limit);
    int used = snprintf(why, why_bytes, "io_uring: cannot register %.1f MiB: %s",
                        (double)bytes / (1 << 20), strerror(-rc));
    if (limit.rlim_cur != RLIM_INFINITY && used > 0 && (size_t)used < why_bytes)
        snprintf(why + used, why_bytes - (size_t)used, "; RLIMIT_MEMLOCK is %.1f MiB",
                 (double)limit.rlim_cur / (1 << 20));
}

static int register_memory(struct ring *r, bool needed, char *why, size_t why_bytes)
{
    int rc = r->n_slabs ? io_uring_register_buffers(&r->ring, r->slabs, r->n_slabs) : 0;
    r->registered = r->n_slabs && !rc;
    if (!rc)
        return 0;
    say_unregistered(r, rc, why, why_bytes);
    return needed ? -ENOTSUP : 0;
}

static int uring_open(struct spw_io *io, const struct spw_io_options *o, char *why,
                      size_t why_bytes)
{
    SPW_TRY(ask_fault(io, why, why_bytes));
    struct ring *r = spw_alloc_zero(1, sizeof *r);
    if (!r)
        return -ENOMEM;
    io->engine_state = r;
    io->n_threads = 1;
    int rc = cut_slabs(r, o);
    if (!rc)
        rc = open_ring(r, io->queue_depth, why, why_bytes);
    if (rc) {
        free_state(io);
        return rc;
    }
    rc = register_memory(r, o->kind == SPW_IO_AUTO, why, why_bytes);
    if (rc)
        uring_close(io);
    return rc;
}

static void uring_describe(const struct spw_io *io, char *text, size_t bytes)
{
    const struct ring *r = io->engine_state;
    const char *memory = r->registered ? ", registered memory" : r->n_slabs ? ", plain memory" : "";
    snprintf(text, bytes, "io_uring, %u in flight%s", io->queue_depth, memory);
}

/* --- wakes --- */

/* A write to an eventfd that is read in time never blocks. */
static void write_event(struct ring *r)
{
    uint64_t one = 1;
    r->wants_work = false;
    ssize_t written = write(r->event, &one, sizeof one);
    (void)written; /* full: the eventfd is readable all the same */
}

static void uring_wake(struct spw_io *io)
{
    struct ring *r = io->engine_state;
    if (io->closing || r->wants_work)
        write_event(r);
}

static struct io_uring_sqe *next_sqe(struct ring *r)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&r->ring);
    while (!sqe) {
        io_uring_submit(&r->ring);
        sqe = io_uring_get_sqe(&r->ring);
    }
    return sqe;
}

static void watch_event(struct ring *r)
{
    if (r->polled)
        return;
    struct io_uring_sqe *sqe = next_sqe(r);
    io_uring_prep_poll_add(sqe, r->event, POLLIN);
    io_uring_sqe_set_data(sqe, &r->polled);
    r->polled = true;
}

static void clear_event(struct ring *r)
{
    uint64_t value;
    ssize_t got = read(r->event, &value, sizeof value);
    (void)got; /* empty: one read has taken two wakes */
    r->polled = false;
}

/* At the end: requests that the kernel has not begun return with -ECANCELED. The drive finishes
 * the others. Kernels before 5.19 do not know this and finish all requests. */
static void cancel_all(struct ring *r)
{
    struct io_uring_sqe *sqe = next_sqe(r);
    io_uring_prep_cancel(sqe, NULL, IORING_ASYNC_CANCEL_ALL | IORING_ASYNC_CANCEL_ANY);
    io_uring_sqe_set_data(sqe, &r->cancelled);
    r->cancelled = true;
}

/* --- submitting --- */

/* The slab that contains the whole request; -1: none. */
static int find_slab(const struct ring *r, const struct spw_io_request *q)
{
    for (unsigned i = 0; r->registered && i < r->n_slabs; i++) {
        uint64_t into = (uint64_t)((uintptr_t)q->memory - (uintptr_t)r->slabs[i].iov_base);
        if (into < r->slabs[i].iov_len && q->bytes <= r->slabs[i].iov_len - into)
            return (int)i;
    }
    return -1;
}

static void submit_part(struct ring *r, struct spw_io_part *a)
{
    struct spw_io_request q = spw_io_request_of(a);
    const int slab = find_slab(r, &q);
    unsigned bytes = (unsigned)q.bytes;
    struct io_uring_sqe *sqe = next_sqe(r);
    if (q.write && slab >= 0)
        io_uring_prep_write_fixed(sqe, q.fd, q.memory, bytes, q.offset, slab);
    else if (q.write)
        io_uring_prep_write(sqe, q.fd, q.memory, bytes, q.offset);
    else if (slab >= 0)
        io_uring_prep_read_fixed(sqe, q.fd, q.memory, bytes, q.offset, slab);
    else
        io_uring_prep_read(sqe, q.fd, q.memory, bytes, q.offset);
    io_uring_sqe_set_data(sqe, a);
    r->in_kernel++;
}

/* Submits parts until the ring is full. Returns whether the engine is closing. */
static bool fill(struct spw_io *io, struct ring *r)
{
    bool closing;
    struct spw_io_part *a;
    do {
        bool room = r->in_kernel < r->depth;
        pthread_mutex_lock(&io->lock);
        a = room ? spw_io_next_part(io) : NULL;
        r->wants_work = room && !a;
        closing = io->closing;
        pthread_mutex_unlock(&io->lock);
        if (a)
            submit_part(r, a);
    } while (a);
    return closing;
}

/* --- results --- */

static void take_result(struct spw_io *io, struct ring *r, struct spw_io_part *a)
{
    if (spw_io_take_result(io, a)) {
        submit_part(r, a);
        return;
    }
    a->next = NULL;
    if (r->to_check)
        r->to_check_end->next = a;
    else
        r->to_check = a;
    r->to_check_end = a;
}

/* Takes all results out of the ring before one of them is handled. Then the ring has room for
 * requests that are repeated. */
static struct spw_io_part *collect(struct ring *r)
{
    struct spw_io_part *first = NULL, **end = &first;
    struct io_uring_cqe *cqe;
    unsigned head, n = 0;
    io_uring_for_each_cqe(&r->ring, head, cqe)
    {
        void *data = io_uring_cqe_get_data(cqe);
        n++;
        if (data == &r->polled) {
            clear_event(r);
        } else if (data != &r->cancelled) {
            struct spw_io_part *a = data;
            a->result = cqe->res;
            *end = a;
            end = &a->next;
        }
    }
    *end = NULL;
    io_uring_cq_advance(&r->ring, n);
    return first;
}

/* Returns whether there were results. */
static bool take_results(struct spw_io *io, struct ring *r)
{
    struct spw_io_part *a = collect(r), *rest;
    bool any = a != NULL;
    for (; a; a = rest) {
        rest = a->next;
        a->result = spw_io_apply_fault(io, a, a->result);
        r->in_kernel--; /* the results after it in the list still count: the kernel "has others" */
        struct spw_io_part *now = spw_io_deliver(io, &r->delayed, a, r->in_kernel > 0), *then;
        for (; now; now = then) {
            then = now->next;
            take_result(io, r, now);
        }
    }
    return any;
}

static void check_one(struct spw_io *io, struct ring *r)
{
    struct spw_io_part *a = r->to_check;
    r->to_check = a->next;
    if (spw_io_check_part(io, a))
        submit_part(r, a);
}

static void uring_run(struct spw_io *io, unsigned thread)
{
    (void)thread;
    struct ring *r = io->engine_state;
    /* liburing 2.3 declares io_uring_enable_rings and does not have it. */
    int rc = io_uring_register((unsigned)r->ring.ring_fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0);
    assert(rc == 0); /* the ring was opened disabled */
    for (;;) {
        bool closing = fill(io, r);
        if (closing && !r->in_kernel && !r->to_check)
            return;
        if (closing && !r->cancelled)
            cancel_all(r);
        watch_event(r);
        rc = r->to_check ? io_uring_submit_and_get_events(&r->ring)
                         : io_uring_submit_and_wait(&r->ring, 1);
        if (rc < 0 && rc != -EINTR)
            usleep(1000); /* the kernel lacks memory; what it did not take is still in the ring */
        if (!take_results(io, r) && r->to_check)
            check_one(io, r);
    }
}

const struct spw_io_engine spw_io_uring = {
    .kind = SPW_IO_URING,
    .open = uring_open,
    .close = uring_close,
    .run = uring_run,
    .wake = uring_wake,
    .describe = uring_describe,
};
