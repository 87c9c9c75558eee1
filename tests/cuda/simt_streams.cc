/* The emulated driver's streams and events, and what runs on them: see simt_emulator.h.
 *
 * A stream is a worker thread and a queue, each with a lock of its own, so that only events order
 * one stream against another (ThreadSanitizer then sees a wait that is missing). Recording an event
 * makes a mark: the command that sets it goes into the recorded stream's queue, and a wait holds
 * the mark that was the event's latest when it was called. Between the start and the end of a copy
 * its destination holds NaN where there are delays. */
#include "tests/cuda/simt_driver.h"

#include <time.h>
#include <unistd.h>

/* What one record of an event stands for. Counted; the last one frees it. */
struct mark {
    int n_users;
    bool done;
    int64_t ns;
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

enum command_kind { STOP, KERNEL, COPY, FILL, CALL, RECORD, WAIT };

struct command {
    struct command *next;
    enum command_kind kind;
    struct spw_simt_launch launch; /* KERNEL */
    void *to;                      /* COPY, FILL */
    const void *from;
    size_t bytes;
    void *staged; /* owned: the bytes of `from` where it was pageable */
    int value;
    cudaHostFn_t fn; /* CALL */
    void *argument;
    struct mark *mark; /* RECORD, WAIT: one use */
};

struct CUstream_st {
    pthread_t worker;
    pthread_mutex_t lock;
    pthread_cond_t queued, done;
    struct command *head, **tail;
    uint64_t n_queued, n_done;
    uint64_t rng; /* the worker's */
};

struct CUevent_st {
    struct mark *latest; /* NULL: never recorded */
    bool timed;
};

/* ---- marks ---- */

static struct mark *mark_make(void)
{
    struct mark *m = new mark();
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->changed, NULL);
    m->n_users = 1;
    return m;
}

static struct mark *mark_use(struct mark *m)
{
    __atomic_fetch_add(&m->n_users, 1, __ATOMIC_RELAXED);
    return m;
}

static void mark_drop(struct mark *m)
{
    if (!m || __atomic_fetch_sub(&m->n_users, 1, __ATOMIC_ACQ_REL) > 1)
        return;
    pthread_mutex_destroy(&m->lock);
    pthread_cond_destroy(&m->changed);
    delete m;
}

static void mark_set(struct mark *m)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    pthread_mutex_lock(&m->lock);
    m->done = true;
    m->ns = now.tv_sec * 1000000000ll + now.tv_nsec;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
}

static void mark_wait(struct mark *m)
{
    pthread_mutex_lock(&m->lock);
    while (!m->done)
        pthread_cond_wait(&m->changed, &m->lock);
    pthread_mutex_unlock(&m->lock);
}

static bool mark_is_set(struct mark *m)
{
    pthread_mutex_lock(&m->lock);
    bool done = m->done;
    pthread_mutex_unlock(&m->lock);
    return done;
}

/* ---- streams ---- */

/* Half of the time none, else up to delay_us. */
static void delay(uint64_t *rng)
{
    if (!spw_simt_driver.options.delay_us || spw_simt_draw(rng) & 1)
        return;
    uint64_t us = spw_simt_draw(rng) % (spw_simt_driver.options.delay_us + 1);
    struct timespec t = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};
    nanosleep(&t, NULL);
}

static void run_copy(const struct command *c, uint64_t *rng)
{
    __atomic_fetch_add(&spw_simt_driver.n_copies, 1, __ATOMIC_RELAXED);
    const void *from = c->staged ? c->staged : c->from;
    if (spw_simt_driver.options.delay_us && c->to != from) {
        memset(c->to, SPW_SIMT_NAN_BYTE, c->bytes);
        delay(rng);
    }
    memmove(c->to, from, c->bytes);
}

/* One at a time, of whatever streams, as a driver with one thread for all of them does. Relaxed, so
 * that ThreadSanitizer does not take it for an order between the functions. */
static void run_host_function(const struct command *c)
{
    static int busy;
    while (__atomic_exchange_n(&busy, 1, __ATOMIC_RELAXED))
        usleep(20);
    spw_simt_in_host_function = true;
    c->fn(c->argument);
    spw_simt_in_host_function = false;
    __atomic_store_n(&busy, 0, __ATOMIC_RELAXED);
}

/* The kernel that may start before the one in front of `head` is over: nothing but events recorded
 * lies between. NULL: there is none, or it has not been queued yet. */
static const struct command *overlapping(const struct command *head)
{
    while (head && head->kind == RECORD)
        head = head->next;
    return head && head->kind == KERNEL && head->launch.overlap ? head : NULL;
}

/* What moves or computes: the first thing that a lost device does not do any more. What it has
 * begun it ends. */
static void run_work(const struct command *c, const struct command *behind, uint64_t *rng)
{
    if (spw_simt_counts_down(&spw_simt_driver.lose_countdown))
        __atomic_store_n(&spw_simt_driver.sticky, (int)cudaErrorLaunchFailure, __ATOMIC_RELEASE);
    bool begun = c->kind == KERNEL && spw_simt_is_ahead(&c->launch);
    if (__atomic_load_n(&spw_simt_driver.sticky, __ATOMIC_ACQUIRE) && !begun)
        return;
    if (c->kind == KERNEL && behind && spw_simt_draw(rng) & 1) {
        __atomic_fetch_add(&spw_simt_driver.n_ahead, 1, __ATOMIC_RELAXED);
        spw_simt_run_ahead(&behind->launch, spw_simt_draw(rng));
    }
    delay(rng);
    if (c->kind == KERNEL) {
        __atomic_fetch_add(&spw_simt_driver.n_kernels, 1, __ATOMIC_RELAXED);
        spw_simt_run(&c->launch, spw_simt_draw(rng));
    } else if (c->kind == COPY) {
        run_copy(c, rng);
    } else if (c->kind == FILL) {
        memset(c->to, c->value, c->bytes);
    } else {
        run_host_function(c);
    }
    delay(rng);
}

static void run_command(const struct command *c, const struct command *behind, uint64_t *rng)
{
    if (c->kind == RECORD)
        mark_set(c->mark);
    else if (c->kind == WAIT)
        mark_wait(c->mark);
    else if (c->kind != STOP)
        run_work(c, behind, rng);
}

static void command_free(struct command *c)
{
    if (c->kind == KERNEL)
        c->launch.drop(c->launch.closure);
    mark_drop(c->mark);
    free(c->staged);
    delete c;
}

static void *work(void *argument)
{
    struct CUstream_st *s = (struct CUstream_st *)argument;
    for (bool stop = false; !stop;) {
        pthread_mutex_lock(&s->lock);
        while (!s->head)
            pthread_cond_wait(&s->queued, &s->lock);
        struct command *c = s->head;
        s->head = c->next;
        if (!s->head)
            s->tail = &s->head;
        const struct command *behind = overlapping(s->head);
        pthread_mutex_unlock(&s->lock);
        run_command(c, behind, &s->rng);
        stop = c->kind == STOP;
        command_free(c);
        pthread_mutex_lock(&s->lock);
        s->n_done++;
        pthread_cond_broadcast(&s->done);
        pthread_mutex_unlock(&s->lock);
    }
    return NULL;
}

/* Takes the command over. The null stream's are run here and now. */
static void enqueue(cudaStream_t s, struct command *c)
{
    if (!s) {
        uint64_t rng = spw_simt_seed();
        run_command(c, NULL, &rng);
        command_free(c);
        return;
    }
    pthread_mutex_lock(&s->lock);
    *s->tail = c;
    s->tail = &c->next;
    s->n_queued++;
    pthread_cond_signal(&s->queued);
    pthread_mutex_unlock(&s->lock);
}

static struct command *command_make(enum command_kind kind)
{
    struct command *c = new command();
    c->kind = kind;
    return c;
}

static void drain(cudaStream_t s)
{
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    uint64_t until = s->n_queued;
    while (s->n_done < until)
        pthread_cond_wait(&s->done, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority)
{
    (void)priority;
    *out = NULL;
    SPW_SIMT_BEGIN();
    cudaError_t rc = spw_simt_check_device();
    if (rc != cudaSuccess || flags > 1)
        return spw_simt_finish(rc != cudaSuccess ? rc : cudaErrorInvalidValue);
    struct CUstream_st *s = new CUstream_st();
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->queued, NULL);
    pthread_cond_init(&s->done, NULL);
    s->tail = &s->head;
    s->rng = spw_simt_seed();
    if (pthread_create(&s->worker, NULL, work, s)) {
        delete s;
        return spw_simt_finish(cudaErrorMemoryAllocation);
    }
    pthread_mutex_lock(&spw_simt_driver.lock);
    spw_simt_driver.n_streams++;
    pthread_mutex_unlock(&spw_simt_driver.lock);
    *out = s;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    return cudaStreamCreateWithPriority(out, flags, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    cudaError_t rc = spw_simt_begin();
    if (!s)
        return spw_simt_finish(cudaErrorInvalidResourceHandle);
    enqueue(s, command_make(STOP));
    pthread_join(s->worker, NULL);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->queued);
    pthread_cond_destroy(&s->done);
    delete s;
    pthread_mutex_lock(&spw_simt_driver.lock);
    spw_simt_driver.n_streams--;
    pthread_mutex_unlock(&spw_simt_driver.lock);
    return rc;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    SPW_SIMT_BEGIN();
    drain(s);
    return spw_simt_finish(cudaSuccess);
}

cudaError_t cudaStreamQuery(cudaStream_t s)
{
    SPW_SIMT_BEGIN();
    if (!s)
        return cudaSuccess;
    pthread_mutex_lock(&s->lock);
    bool done = s->n_done == s->n_queued;
    pthread_mutex_unlock(&s->lock);
    return spw_simt_finish(done ? cudaSuccess : cudaErrorNotReady);
}

/* ---- events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    *out = NULL;
    SPW_SIMT_BEGIN();
    cudaError_t rc = spw_simt_check_device();
    if (rc != cudaSuccess)
        return rc;
    *out = new CUevent_st{NULL, !(flags & cudaEventDisableTiming)};
    pthread_mutex_lock(&spw_simt_driver.lock);
    spw_simt_driver.n_events++;
    pthread_mutex_unlock(&spw_simt_driver.lock);
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    cudaError_t rc = spw_simt_begin();
    if (!e)
        return spw_simt_finish(cudaErrorInvalidResourceHandle);
    mark_drop(e->latest);
    delete e;
    pthread_mutex_lock(&spw_simt_driver.lock);
    spw_simt_driver.n_events--;
    pthread_mutex_unlock(&spw_simt_driver.lock);
    return rc;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    SPW_SIMT_BEGIN();
    struct command *c = command_make(RECORD);
    c->mark = mark_make();
    mark_drop(e->latest);
    e->latest = mark_use(c->mark);
    enqueue(s, c);
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags)
{
    SPW_SIMT_BEGIN();
    if (flags)
        return spw_simt_finish(cudaErrorInvalidValue);
    if (!e->latest)
        return cudaSuccess;
    struct command *c = command_make(WAIT);
    c->mark = mark_use(e->latest);
    enqueue(s, c);
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    SPW_SIMT_BEGIN();
    if (e->latest)
        mark_wait(e->latest);
    return spw_simt_finish(cudaSuccess);
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
    SPW_SIMT_BEGIN();
    return spw_simt_finish(!e->latest || mark_is_set(e->latest) ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to)
{
    SPW_SIMT_BEGIN();
    if (!from->latest || !to->latest || !from->timed || !to->timed)
        return spw_simt_finish(cudaErrorInvalidResourceHandle);
    if (!mark_is_set(from->latest) || !mark_is_set(to->latest))
        return spw_simt_finish(cudaErrorNotReady);
    *milliseconds = (float)((double)(to->latest->ns - from->latest->ns) * 1e-6);
    return cudaSuccess;
}

/* ---- copies, fills, host functions ---- */

static bool right_places(enum spw_simt_place to, enum spw_simt_place from, cudaMemcpyKind kind)
{
    if (to == PLACE_ACROSS || from == PLACE_ACROSS)
        return false;
    bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    return kind == cudaMemcpyDefault ||
           ((to == PLACE_DEVICE) == to_device && (from == PLACE_DEVICE) == from_device);
}

/* Pageable memory (CUDA runtime API, "API synchronization behavior"): it is read before the call
 * returns, out of order with the stream; and written before the call returns, in order. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t s)
{
    SPW_SIMT_BEGIN();
    if (!bytes)
        return cudaSuccess;
    enum spw_simt_place there = spw_simt_place_of(to, bytes), here = spw_simt_place_of(from, bytes);
    if (!right_places(there, here, kind)) {
        fprintf(stderr, "simt: copy of %zu bytes, kind %d: from %d to %d\n", bytes, (int)kind,
                (int)here, (int)there);
        return spw_simt_finish(cudaErrorInvalidValue);
    }
    struct command *c = command_make(COPY);
    c->to = to;
    c->from = from;
    c->bytes = bytes;
    if (here == PLACE_PAGEABLE && there == PLACE_DEVICE)
        c->staged = memcpy(malloc(bytes), from, bytes);
    enqueue(s, c);
    if (there == PLACE_PAGEABLE)
        drain(s);
    return spw_simt_finish(cudaSuccess);
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t s)
{
    SPW_SIMT_BEGIN();
    if (!bytes)
        return cudaSuccess;
    if (spw_simt_place_of(to, bytes) != PLACE_DEVICE)
        return spw_simt_finish(cudaErrorInvalidValue);
    struct command *c = command_make(FILL);
    c->to = to;
    c->value = value;
    c->bytes = bytes;
    enqueue(s, c);
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    return cudaMemcpyAsync(to, from, bytes, kind);
}

cudaError_t cudaMemset(void *to, int value, size_t bytes)
{
    return cudaMemsetAsync(to, value, bytes);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t fn, void *argument)
{
    SPW_SIMT_BEGIN();
    struct command *c = command_make(CALL);
    c->fn = fn;
    c->argument = argument;
    enqueue(s, c);
    return cudaSuccess;
}

/* ---- launches ---- */

void spw_simt_queue(const struct spw_simt_launch *l)
{
    struct command *c = command_make(KERNEL);
    c->launch = *l;
    spw_simt_check_arguments(l);
    cudaError_t rc = spw_simt_begin();
    if (rc == cudaSuccess)
        rc = spw_simt_finish(spw_simt_check_launch(&c->launch));
    if (rc == cudaSuccess)
        enqueue(l->stream, c);
    else
        command_free(c);
}
