/* The I/O engine for its users: chooses the engine, starts threads, describes files, counts.
 * Jobs are in io_job.c, the two engines in io_uring.c and io_threads.c. */
#include "offload/io/io_engine.h"

#include "offload/device/device_cpu_team.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define DEPTH_DEFAULT 16
#define REQUEST_DEFAULT ((uint64_t)1 << 20)
#define REQUEST_LEAST 4096
#define ALIGN_DEFAULT 4096 /* if the kernel does not say; no drive needs more */

/* In the order in which AUTO tries them. */
static const struct spw_io_engine *const engines[] = {&spw_io_uring, &spw_io_threads};

#define N_ENGINES (sizeof engines / sizeof engines[0])

/* --- open and close --- */

static void *thread_main(void *argument)
{
    struct spw_io_thread *t = argument;
    if (t->io->place)
        t->io->place(t->io->place_context, t->index);
    t->io->engine->run(t->io, t->index);
    return NULL;
}

static void threads_stop(struct spw_io *io)
{
    pthread_mutex_lock(&io->lock);
    io->closing = true;
    spw_io_cancel(io);
    io->engine->wake(io);
    pthread_mutex_unlock(&io->lock);
    for (unsigned i = 0; i < io->started; i++)
        pthread_join(io->threads[i].thread, NULL);
    io->started = 0;
}

static int threads_start(struct spw_io *io)
{
    for (; io->started < io->n_threads; io->started++) {
        struct spw_io_thread *t = &io->threads[io->started];
        *t = (struct spw_io_thread){.io = io, .index = io->started};
        char name[16];
        snprintf(name, sizeof name, "spw-io-%u", t->index % 100000);
        SPW_TRY(spw_thread_start(&t->thread, name, thread_main, t));
    }
    return 0;
}

/* There are parts for everything that may be in flight, for as many that wait for their
 * checksums, and for those that a test holds back. */
static int parts_alloc(struct spw_io *io)
{
    unsigned delayed = io->fault ? io->fault->reorder : 0;
    io->n_parts = 2 * (io->queue_depth > io->n_threads ? io->queue_depth : io->n_threads) + delayed;
    io->threads = spw_alloc_zero(io->n_threads, sizeof *io->threads);
    io->parts = spw_alloc_zero(io->n_parts, sizeof *io->parts);
    if (!io->threads || !io->parts)
        return -ENOMEM;
    for (unsigned i = 0; i < io->n_parts; i++) {
        io->parts[i].next = io->free_parts;
        io->free_parts = &io->parts[i];
    }
    return 0;
}

static void parts_free(struct spw_io *io)
{
    spw_free(io->threads);
    spw_free(io->parts);
    io->threads = NULL;
    io->parts = io->free_parts = NULL;
}

/* Opens one engine and starts its threads. After a failure nothing is open. */
static int engine_start(struct spw_io *io, const struct spw_io_options *o,
                        const struct spw_io_engine *engine, char *why, size_t why_bytes)
{
    io->engine = engine;
    int rc = engine->open(io, o, why, why_bytes);
    if (rc < 0)
        return rc;
    rc = parts_alloc(io);
    if (!rc)
        rc = threads_start(io);
    if (rc < 0) {
        threads_stop(io);
        parts_free(io);
        engine->close(io);
    }
    return rc;
}

static int engine_choose(struct spw_io *io, const struct spw_io_options *o, struct spw_error *err)
{
    char why[192] = "";
    for (unsigned i = 0; i < N_ENGINES; i++) {
        if (o->kind != SPW_IO_AUTO && o->kind != engines[i]->kind)
            continue;
        int rc = engine_start(io, o, engines[i], why, sizeof why);
        if (rc == -ENOTSUP && o->kind == SPW_IO_AUTO)
            continue;
        if (rc == -ENOTSUP)
            return spw_fail(err, rc, "%s; take the engine \"threads\" or \"auto\"", why);
        if (rc < 0)
            return spw_fail(err, rc, "the I/O engine: %s", strerror(-rc));
        engines[i]->describe(io, io->text, sizeof io->text);
        size_t used = strlen(io->text);
        if (*why)
            snprintf(io->text + used, sizeof io->text - used, " (%s)", why);
        return 0;
    }
    return spw_fail(err, -EINVAL, "I/O engine: found kind %d, expected auto, io_uring or threads",
                    (int)o->kind);
}

int spw_io_open(struct spw_io **out, const struct spw_io_options *o, struct spw_error *err)
{
    *out = NULL;
    struct spw_io *io = spw_alloc_zero(1, sizeof *io);
    if (!io)
        return spw_fail(err, -ENOMEM, "out of memory for the I/O engine");
    int rc = -ENOMEM;
    if (pthread_mutex_init(&io->lock, NULL))
        goto fail_io;
    io->queue_depth = o->queue_depth ? o->queue_depth : DEPTH_DEFAULT;
    io->request_bytes = o->request_bytes ? o->request_bytes : REQUEST_DEFAULT;
    io->request_bytes = spw_max_u64(io->request_bytes, REQUEST_LEAST);
    io->fault = o->fault;
    io->place = o->place;
    io->place_context = o->place_context;
    rc = o->counts ? 0 : engine_choose(io, o, err);
    if (rc < 0)
        goto fail_lock;
    *out = io;
    return 0;

fail_lock:
    pthread_mutex_destroy(&io->lock);
fail_io:
    spw_free(io);
    return rc;
}

void spw_io_close(struct spw_io *io)
{
    if (!io)
        return;
    if (!spw_io_counts(io)) {
        threads_stop(io);
        parts_free(io);
        io->engine->close(io);
    }
    pthread_mutex_destroy(&io->lock);
    spw_free(io);
}

bool spw_io_counts(const struct spw_io *io)
{
    return !io->engine;
}

const char *spw_io_describe(const struct spw_io *io)
{
    return io->text;
}

/* --- files --- */

/* The alignment that direct I/O on this descriptor needs. 1: reads and writes are not direct,
 * whatever the flag says. */
static int find_align(int fd, uint32_t *align)
{
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0)
        return -errno;
    *align = 1;
    if (!(flags & O_DIRECT))
        return 0;
    *align = ALIGN_DEFAULT;
#ifdef STATX_DIOALIGN
    struct statx s;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &s) || !(s.stx_mask & STATX_DIOALIGN))
        return 0; /* the kernel is too old, or the filesystem does not know */
    uint32_t max =
        s.stx_dio_mem_align > s.stx_dio_offset_align ? s.stx_dio_mem_align : s.stx_dio_offset_align;
    *align = max ? max : 1; /* 0: the filesystem uses the page cache all the same */
#endif
    return 0;
}

int spw_io_use_file(int fd, struct spw_io_file *out)
{
    uint32_t align;
    SPW_TRY(find_align(fd, &align));
    *out = (struct spw_io_file){.fd = fd, .align = align};
    return 0;
}

/* --- usage --- */

static double thread_seconds(pthread_t thread)
{
    clockid_t clock;
    struct timespec t;
    if (pthread_getcpuclockid(thread, &clock) || clock_gettime(clock, &t))
        return 0;
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void spw_io_usage(const struct spw_io *io, struct spw_io_usage *out)
{
    struct spw_io *own = (struct spw_io *)io; /* only the lock inside changes */
    pthread_mutex_lock(&own->lock);
    *out = io->usage;
    pthread_mutex_unlock(&own->lock);
    for (unsigned i = 0; i < io->n_threads; i++)
        out->cpu_seconds += thread_seconds(io->threads[i].thread);
}
