/* The engine that calls pread and pwrite: a pool of threads, each with one request in the kernel
 * at a time. Same jobs, results and checksums as io_uring, for machines that refuse io_uring. */
#include "offload/io/io_engine.h"

#include <stdio.h>
#include <unistd.h>

struct pool {
    pthread_cond_t work;
    unsigned in_kernel; /* this and `delayed` are under the engine's lock */
    struct spw_io_delayed delayed;
};

static int pool_open(struct spw_io *io, const struct spw_io_options *o, char *why, size_t why_bytes)
{
    (void)o, (void)why, (void)why_bytes;
    struct pool *p = spw_alloc_zero(1, sizeof *p);
    if (!p)
        return -ENOMEM;
    if (pthread_cond_init(&p->work, NULL)) {
        spw_free(p);
        return -ENOMEM;
    }
    io->n_threads = io->queue_depth;
    io->engine_state = p;
    return 0;
}

static void pool_close(struct spw_io *io)
{
    struct pool *p = io->engine_state;
    pthread_cond_destroy(&p->work);
    spw_free(p);
    io->engine_state = NULL;
}

static void pool_wake(struct spw_io *io)
{
    struct pool *p = io->engine_state;
    if (io->closing)
        pthread_cond_broadcast(&p->work);
    else
        pthread_cond_signal(&p->work);
}

static int64_t call_kernel(const struct spw_io_part *a)
{
    struct spw_io_request r = spw_io_request_of(a);
    ssize_t n = r.write ? pwrite(r.fd, r.memory, r.bytes, (off_t)r.offset)
                        : pread(r.fd, r.memory, r.bytes, (off_t)r.offset);
    return n < 0 ? -errno : n;
}

/* Runs one request. Returns the parts whose results are delivered now. */
static struct spw_io_part *read_and_deliver(struct spw_io *io, struct spw_io_part *a)
{
    struct pool *p = io->engine_state;
    pthread_mutex_lock(&io->lock);
    p->in_kernel++;
    pthread_mutex_unlock(&io->lock);
    a->result = spw_io_apply_fault(io, a, call_kernel(a));
    pthread_mutex_lock(&io->lock);
    p->in_kernel--;
    struct spw_io_part *list = spw_io_deliver(io, &p->delayed, a, p->in_kernel > 0);
    pthread_mutex_unlock(&io->lock);
    return list;
}

/* Completes a part, and all parts that are delivered with it. If a test holds the part back, the
 * thread that delivers it completes it. */
static void complete_part(struct spw_io *io, struct spw_io_part *a)
{
    struct spw_io_part *list = read_and_deliver(io, a);
    while (list) {
        a = list;
        list = a->next;
        while (spw_io_take_result(io, a) || spw_io_check_part(io, a)) {
            struct spw_io_part *more = read_and_deliver(io, a);
            if (more != a) /* it is held back */
                break;
            struct spw_io_part **end = &more->next;
            while (*end)
                end = &(*end)->next;
            *end = list;
            list = more->next;
        }
    }
}

static void pool_run(struct spw_io *io, unsigned thread)
{
    (void)thread;
    struct pool *p = io->engine_state;
    pthread_mutex_lock(&io->lock);
    for (;;) {
        struct spw_io_part *a = spw_io_next_part(io);
        if (a) {
            pthread_mutex_unlock(&io->lock);
            complete_part(io, a);
            pthread_mutex_lock(&io->lock);
        } else if (io->closing) {
            break;
        } else {
            pthread_cond_wait(&p->work, &io->lock);
        }
    }
    pthread_mutex_unlock(&io->lock);
}

static void pool_describe(const struct spw_io *io, char *text, size_t bytes)
{
    snprintf(text, bytes, "%u threads", io->n_threads);
}

const struct spw_io_engine spw_io_threads = {
    .kind = SPW_IO_THREADS,
    .open = pool_open,
    .close = pool_close,
    .run = pool_run,
    .wake = pool_wake,
    .describe = pool_describe,
};
