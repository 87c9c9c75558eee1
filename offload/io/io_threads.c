/* The engine of pread and pwrite: a pool of threads, each of which has one request in the kernel at
 * a time. The same jobs, results and checksums as io_uring, for machines that refuse it. */
#include "offload/io/io_engine.h"

#include <stdio.h>
#include <unistd.h>

struct pool {
    pthread_cond_t work;
    unsigned in_kernel; /* this and `held` under the engine's lock */
    struct spw_io_held held;
};

static int pool_open(struct spw_io *io, const struct spw_io_options *o, char *why, size_t why_bytes)
{
    (void)why, (void)why_bytes;
    struct pool *p = spw_alloc_zero(1, sizeof *p);
    if (!p)
        return -ENOMEM;
    if (pthread_cond_init(&p->work, NULL)) {
        spw_free(p);
        return -ENOMEM;
    }
    io->n_threads = o->threads ? o->threads : io->queue_depth;
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

static int64_t ask_kernel(const struct spw_io_ask *a)
{
    struct spw_io_request r = spw_io_request_of(a);
    ssize_t n = r.write ? pwrite(r.fd, r.memory, r.bytes, (off_t)r.offset)
                        : pread(r.fd, r.memory, r.bytes, (off_t)r.offset);
    return n < 0 ? -errno : n;
}

/* One request; what is delivered because of it. */
static struct spw_io_ask *ask_and_deliver(struct spw_io *io, struct spw_io_ask *a)
{
    struct pool *p = io->engine_state;
    pthread_mutex_lock(&io->lock);
    p->in_kernel++;
    pthread_mutex_unlock(&io->lock);
    a->result = spw_io_see(io, a, ask_kernel(a));
    pthread_mutex_lock(&io->lock);
    p->in_kernel--;
    struct spw_io_ask *list = spw_io_deliver(io, &p->held, a, p->in_kernel > 0);
    pthread_mutex_unlock(&io->lock);
    return list;
}

/* Takes an ask, and those that are delivered with it, to the end. An ask that others have to
 * deliver is theirs. */
static void work_off(struct spw_io *io, struct spw_io_ask *a)
{
    struct spw_io_ask *list = ask_and_deliver(io, a);
    while (list) {
        a = list;
        list = a->next;
        while (spw_io_settle(io, a) || spw_io_check(io, a)) {
            struct spw_io_ask *more = ask_and_deliver(io, a);
            if (more != a) /* held back */
                break;
            struct spw_io_ask **end = &more->next;
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
        struct spw_io_ask *a = spw_io_cut(io);
        if (a) {
            pthread_mutex_unlock(&io->lock);
            work_off(io, a);
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
