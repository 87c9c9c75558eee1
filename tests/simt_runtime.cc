/* The emulated driver: see simt_emulator.h and simt_control.h.
 *
 * A stream is a worker thread and a queue, each with a lock of its own, so that only events order
 * one stream against another (ThreadSanitizer then sees a wait that is missing). Recording an event
 * makes a mark: the command that sets it goes into the recorded stream's queue, and a wait holds
 * the mark that was the event's latest when it was called. Between the start and the end of a copy
 * its destination holds NaN where there are delays. */
#include "tests/simt_control.h"
#include "tests/simt_emulator.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { MOST_DEVICES = 8, MOST_KERNELS = 256, GRANULE = 512, NAN_BYTE = 0xff };
enum { DEFAULT_SHARED_BYTES = 48 << 10 };

/* A run of device memory, or of registered host memory. */
struct range {
    struct range *next;
    char *p;
    size_t bytes;
    int device; /* -1: of the host */
};

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

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all below but the atomics */
static struct spw_simt_options options;
static struct range *ranges;
static uint64_t device_bytes[MOST_DEVICES], others_bytes, peak_bytes, registered_bytes;
static uint64_t n_streams, n_events, n_made;
static int64_t alloc_countdown = -1, register_countdown = -1, lose_countdown = -1; /* atomic */
static int sticky;                                                                 /* atomic */
static uint64_t n_kernels, n_copies;                                               /* atomic */
static struct {
    const void *kernel;
    int dynamic_bytes;
} attributes[MOST_KERNELS];
static int n_attributes;

static __thread cudaError_t last_error;
static __thread int current_device;
static __thread bool in_host_function;

/* ---- errors ---- */

static cudaError_t finish(cudaError_t rc)
{
    int lost = __atomic_load_n(&sticky, __ATOMIC_ACQUIRE);
    if (lost)
        rc = (cudaError_t)lost;
    if (rc != cudaSuccess)
        last_error = rc;
    return rc;
}

/* Every call that does something begins so. */
static cudaError_t begin(void)
{
    if (in_host_function)
        spw_simt_fault("a host function calls the runtime");
    return finish(cudaSuccess);
}

#define BEGIN()                                                                                    \
    do {                                                                                           \
        cudaError_t rc_ = begin();                                                                 \
        if (rc_ != cudaSuccess)                                                                    \
            return rc_;                                                                            \
    } while (0)

cudaError_t cudaGetLastError(void)
{
    cudaError_t rc = finish(last_error);
    last_error = cudaSuccess;
    return rc;
}

cudaError_t cudaPeekAtLastError(void)
{
    return finish(last_error);
}

static const struct {
    cudaError_t rc;
    const char *name, *text;
} errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
};

const char *cudaGetErrorName(cudaError_t rc)
{
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
        if (errors[i].rc == rc)
            return errors[i].name;
    return "cudaErrorUnknown";
}

const char *cudaGetErrorString(cudaError_t rc)
{
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
        if (errors[i].rc == rc)
            return errors[i].text;
    return "unknown error";
}

/* Whether the n-th is now. */
static bool counts_down(int64_t *countdown)
{
    if (__atomic_load_n(countdown, __ATOMIC_RELAXED) < 0)
        return false;
    return __atomic_fetch_sub(countdown, 1, __ATOMIC_RELAXED) == 0;
}

/* ---- control ---- */

static uint64_t draw(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

void spw_simt_set(const struct spw_simt_options *o)
{
    if (n_streams || n_events)
        spw_simt_fault("spw_simt_set while streams or events are alive");
    options = o ? *o : spw_simt_options{};
    others_bytes = peak_bytes = n_made = 0;
    alloc_countdown = register_countdown = lose_countdown = -1;
    n_kernels = n_copies = 0;
    sticky = 0;
    last_error = cudaSuccess;
    current_device = 0;
}

void spw_simt_fail_alloc_nth(int64_t n)
{
    __atomic_store_n(&alloc_countdown, n, __ATOMIC_RELAXED);
}

void spw_simt_fail_register_nth(int64_t n)
{
    __atomic_store_n(&register_countdown, n, __ATOMIC_RELAXED);
}

void spw_simt_lose_device_nth(int64_t n)
{
    __atomic_store_n(&lose_countdown, n, __ATOMIC_RELAXED);
}

void spw_simt_others_take(uint64_t bytes)
{
    pthread_mutex_lock(&lock);
    others_bytes = bytes;
    pthread_mutex_unlock(&lock);
}

void spw_simt_usage_get(struct spw_simt_usage *out)
{
    pthread_mutex_lock(&lock);
    *out = {};
    for (int i = 0; i < MOST_DEVICES; i++)
        out->device_bytes += device_bytes[i];
    out->device_peak_bytes = peak_bytes;
    out->registered_bytes = registered_bytes;
    out->n_kernels = __atomic_load_n(&n_kernels, __ATOMIC_RELAXED);
    out->n_copies = __atomic_load_n(&n_copies, __ATOMIC_RELAXED);
    out->n_streams = n_streams;
    out->n_events = n_events;
    for (const struct range *r = ranges; r; r = r->next)
        r->device < 0 ? out->n_registers++ : out->n_blocks++;
    pthread_mutex_unlock(&lock);
}

/* ---- devices ---- */

static int n_devices(void)
{
    return options.n_devices < 0 ? 0 : options.n_devices ? options.n_devices : 1;
}

static int capability(void)
{
    return options.capability ? options.capability : 80;
}

static uint64_t card_bytes(void)
{
    return options.card_bytes ? options.card_bytes : 1ull << 30;
}

/* Per block, with the attribute set: CUDA C++ programming guide, "Compute Capabilities". */
static int most_shared_bytes(void)
{
    int c = capability();
    return (c >= 90 ? 227 : c == 86 || c == 89 ? 99 : c >= 80 ? 163 : 64) << 10;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = options.driver < 0 ? 0 : options.driver ? options.driver : CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

static cudaError_t check_device(int device)
{
    int version = 0;
    cudaDriverGetVersion(&version);
    if (version < CUDART_VERSION)
        return finish(cudaErrorInsufficientDriver);
    if (!n_devices())
        return finish(cudaErrorNoDevice);
    return finish(device < 0 || device >= n_devices() ? cudaErrorInvalidDevice : cudaSuccess);
}

cudaError_t cudaGetDeviceCount(int *n)
{
    *n = 0;
    BEGIN();
    cudaError_t rc = check_device(0);
    if (rc == cudaSuccess)
        *n = n_devices();
    return rc;
}

cudaError_t cudaSetDevice(int device)
{
    BEGIN();
    cudaError_t rc = check_device(device);
    if (rc == cudaSuccess)
        current_device = device;
    return rc;
}

cudaError_t cudaGetDevice(int *device)
{
    BEGIN();
    *device = current_device;
    return check_device(0);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device)
{
    BEGIN();
    cudaError_t rc = check_device(device);
    if (rc != cudaSuccess)
        return rc;
    *p = {};
    snprintf(p->name, sizeof p->name, "emulated sm_%d", capability());
    p->totalGlobalMem = card_bytes();
    p->sharedMemPerBlock = DEFAULT_SHARED_BYTES;
    p->sharedMemPerBlockOptin = p->sharedMemPerMultiprocessor = (size_t)most_shared_bytes();
    p->major = capability() / 10;
    p->minor = capability() % 10;
    p->multiProcessorCount = 4;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->l2CacheSize = 4 << 20;
    p->asyncEngineCount = 2;
    p->unifiedAddressing = 1;
    p->pciBusID = device + 1;
    return rc;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device)
{
    cudaDeviceProp p;
    cudaError_t rc = cudaGetDeviceProperties(&p, device);
    if (rc != cudaSuccess)
        return rc;
    switch (attribute) {
    case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = (int)p.sharedMemPerBlock;
        break;
    case cudaDevAttrMultiProcessorCount:
        *value = p.multiProcessorCount;
        break;
    case cudaDevAttrIntegrated:
        *value = p.integrated;
        break;
    case cudaDevAttrL2CacheSize:
        *value = p.l2CacheSize;
        break;
    case cudaDevAttrAsyncEngineCount:
        *value = p.asyncEngineCount;
        break;
    case cudaDevAttrComputeCapabilityMajor:
        *value = p.major;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *value = p.minor;
        break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = (int)p.sharedMemPerBlockOptin;
        break;
    }
    return rc;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int bytes, int device)
{
    BEGIN();
    cudaError_t rc = check_device(device);
    if (rc == cudaSuccess)
        snprintf(text, (size_t)bytes, "0000:%02x:00.0", (unsigned)device + 1);
    return rc;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    BEGIN();
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

/* ---- memory ---- */

static void add_range(void *p, size_t bytes, int device)
{
    struct range *r = new range{ranges, (char *)p, bytes, device};
    ranges = r;
}

/* Takes the range that begins at p out of the list; NULL: there is none. */
static struct range *take_range(void *p, bool of_host)
{
    for (struct range **at = &ranges; *at; at = &(*at)->next)
        if ((*at)->p == p && ((*at)->device < 0) == of_host) {
            struct range *r = *at;
            *at = r->next;
            return r;
        }
    return NULL;
}

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    *out = NULL;
    BEGIN();
    cudaError_t rc = check_device(current_device);
    if (rc != cudaSuccess || !bytes)
        return rc;
    pthread_mutex_lock(&lock);
    uint64_t *used = &device_bytes[current_device],
             rounded = (bytes + GRANULE - 1) / GRANULE * GRANULE;
    void *p = NULL;
    if (rounded < bytes || *used + others_bytes + rounded > card_bytes() ||
        counts_down(&alloc_countdown) || posix_memalign(&p, 256, bytes)) {
        pthread_mutex_unlock(&lock);
        return finish(cudaErrorMemoryAllocation);
    }
    *used += rounded;
    peak_bytes = *used > peak_bytes ? *used : peak_bytes;
    add_range(p, bytes, current_device);
    pthread_mutex_unlock(&lock);
    memset(p, NAN_BYTE, bytes);
    *out = p;
    return cudaSuccess;
}

/* On a lost device the memory goes too, but the answer is the error. */
cudaError_t cudaFree(void *p)
{
    cudaError_t rc = begin();
    if (!p)
        return rc;
    pthread_mutex_lock(&lock);
    struct range *r = take_range(p, false);
    if (r)
        device_bytes[r->device] -= (r->bytes + GRANULE - 1) / GRANULE * GRANULE;
    pthread_mutex_unlock(&lock);
    if (!r)
        return finish(cudaErrorInvalidValue);
    free(p);
    delete r;
    return rc;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    BEGIN();
    cudaError_t rc = check_device(current_device);
    if (rc != cudaSuccess)
        return rc;
    pthread_mutex_lock(&lock);
    uint64_t used = device_bytes[current_device] + others_bytes;
    *total = card_bytes();
    *available = used < *total ? *total - used : 0;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

static bool overlap(const struct range *r, const void *p, size_t bytes)
{
    return (const char *)p < r->p + r->bytes && r->p < (const char *)p + bytes;
}

cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned flags)
{
    BEGIN();
    if (!p || !bytes || flags > 15)
        return finish(cudaErrorInvalidValue);
    pthread_mutex_lock(&lock);
    cudaError_t rc = counts_down(&register_countdown) ? cudaErrorMemoryAllocation : cudaSuccess;
    for (const struct range *r = ranges; r; r = r->next)
        if (overlap(r, p, bytes))
            rc = cudaErrorHostMemoryAlreadyRegistered;
    if (rc == cudaSuccess) {
        add_range(p, bytes, -1);
        registered_bytes += bytes;
    }
    pthread_mutex_unlock(&lock);
    return finish(rc);
}

cudaError_t cudaHostUnregister(void *p)
{
    cudaError_t rc = begin();
    pthread_mutex_lock(&lock);
    struct range *r = take_range(p, true);
    if (r)
        registered_bytes -= r->bytes;
    pthread_mutex_unlock(&lock);
    if (!r)
        return finish(cudaErrorHostMemoryNotRegistered);
    delete r;
    return rc;
}

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
    if (!options.delay_us || draw(rng) & 1)
        return;
    uint64_t us = draw(rng) % (options.delay_us + 1);
    struct timespec t = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};
    nanosleep(&t, NULL);
}

static void run_copy(const struct command *c, uint64_t *rng)
{
    __atomic_fetch_add(&n_copies, 1, __ATOMIC_RELAXED);
    const void *from = c->staged ? c->staged : c->from;
    if (options.delay_us && c->to != from) {
        memset(c->to, NAN_BYTE, c->bytes);
        delay(rng);
    }
    memmove(c->to, from, c->bytes);
}

/* What moves or computes: the first thing that a lost device does not do any more. */
static void run_work(const struct command *c, uint64_t *rng)
{
    if (counts_down(&lose_countdown))
        __atomic_store_n(&sticky, (int)cudaErrorLaunchFailure, __ATOMIC_RELEASE);
    if (__atomic_load_n(&sticky, __ATOMIC_ACQUIRE))
        return;
    delay(rng);
    if (c->kind == KERNEL) {
        __atomic_fetch_add(&n_kernels, 1, __ATOMIC_RELAXED);
        spw_simt_run(&c->launch, draw(rng));
    } else if (c->kind == COPY) {
        run_copy(c, rng);
    } else if (c->kind == FILL) {
        memset(c->to, c->value, c->bytes);
    } else {
        in_host_function = true;
        c->fn(c->argument);
        in_host_function = false;
    }
    delay(rng);
}

static void run_command(const struct command *c, uint64_t *rng)
{
    if (c->kind == RECORD)
        mark_set(c->mark);
    else if (c->kind == WAIT)
        mark_wait(c->mark);
    else if (c->kind != STOP)
        run_work(c, rng);
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
        pthread_mutex_unlock(&s->lock);
        run_command(c, &s->rng);
        stop = c->kind == STOP;
        command_free(c);
        pthread_mutex_lock(&s->lock);
        s->n_done++;
        pthread_cond_broadcast(&s->done);
        pthread_mutex_unlock(&s->lock);
    }
    return NULL;
}

static uint64_t next_seed(void)
{
    pthread_mutex_lock(&lock);
    uint64_t state = options.seed + 0x1000003u * ++n_made;
    pthread_mutex_unlock(&lock);
    return draw(&state);
}

/* Takes the command over. The null stream's are run here and now. */
static void enqueue(cudaStream_t s, struct command *c)
{
    if (!s) {
        uint64_t rng = next_seed();
        run_command(c, &rng);
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
    BEGIN();
    cudaError_t rc = check_device(current_device);
    if (rc != cudaSuccess || flags > 1)
        return finish(rc != cudaSuccess ? rc : cudaErrorInvalidValue);
    struct CUstream_st *s = new CUstream_st();
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->queued, NULL);
    pthread_cond_init(&s->done, NULL);
    s->tail = &s->head;
    s->rng = next_seed();
    if (pthread_create(&s->worker, NULL, work, s)) {
        delete s;
        return finish(cudaErrorMemoryAllocation);
    }
    pthread_mutex_lock(&lock);
    n_streams++;
    pthread_mutex_unlock(&lock);
    *out = s;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    return cudaStreamCreateWithPriority(out, flags, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    cudaError_t rc = begin();
    if (!s)
        return finish(cudaErrorInvalidResourceHandle);
    enqueue(s, command_make(STOP));
    pthread_join(s->worker, NULL);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->queued);
    pthread_cond_destroy(&s->done);
    delete s;
    pthread_mutex_lock(&lock);
    n_streams--;
    pthread_mutex_unlock(&lock);
    return rc;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    BEGIN();
    drain(s);
    return finish(cudaSuccess);
}

cudaError_t cudaStreamQuery(cudaStream_t s)
{
    BEGIN();
    if (!s)
        return cudaSuccess;
    pthread_mutex_lock(&s->lock);
    bool done = s->n_done == s->n_queued;
    pthread_mutex_unlock(&s->lock);
    return finish(done ? cudaSuccess : cudaErrorNotReady);
}

/* ---- events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    *out = NULL;
    BEGIN();
    cudaError_t rc = check_device(current_device);
    if (rc != cudaSuccess)
        return rc;
    *out = new CUevent_st{NULL, !(flags & cudaEventDisableTiming)};
    pthread_mutex_lock(&lock);
    n_events++;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    cudaError_t rc = begin();
    if (!e)
        return finish(cudaErrorInvalidResourceHandle);
    mark_drop(e->latest);
    delete e;
    pthread_mutex_lock(&lock);
    n_events--;
    pthread_mutex_unlock(&lock);
    return rc;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    BEGIN();
    struct command *c = command_make(RECORD);
    c->mark = mark_make();
    mark_drop(e->latest);
    e->latest = mark_use(c->mark);
    enqueue(s, c);
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags)
{
    BEGIN();
    if (flags)
        return finish(cudaErrorInvalidValue);
    if (!e->latest)
        return cudaSuccess;
    struct command *c = command_make(WAIT);
    c->mark = mark_use(e->latest);
    enqueue(s, c);
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    BEGIN();
    if (e->latest)
        mark_wait(e->latest);
    return finish(cudaSuccess);
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
    BEGIN();
    return finish(!e->latest || mark_is_set(e->latest) ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to)
{
    BEGIN();
    if (!from->latest || !to->latest || !from->timed || !to->timed)
        return finish(cudaErrorInvalidResourceHandle);
    if (!mark_is_set(from->latest) || !mark_is_set(to->latest))
        return finish(cudaErrorNotReady);
    *milliseconds = (float)((double)(to->latest->ns - from->latest->ns) * 1e-6);
    return cudaSuccess;
}

/* ---- copies, fills, host functions ---- */

enum place { PLACE_DEVICE, PLACE_PINNED, PLACE_PAGEABLE, PLACE_ACROSS };

/* Where a run of bytes lies; ACROSS: over the edge of an allocation or a registered range. */
static enum place place_of(const void *p, size_t bytes)
{
    enum place found = PLACE_PAGEABLE;
    pthread_mutex_lock(&lock);
    for (const struct range *r = ranges; r; r = r->next) {
        if (!overlap(r, p, bytes))
            continue;
        bool inside = (const char *)p >= r->p && (const char *)p + bytes <= r->p + r->bytes;
        found = !inside ? PLACE_ACROSS : r->device < 0 ? PLACE_PINNED : PLACE_DEVICE;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

static bool right_places(enum place to, enum place from, cudaMemcpyKind kind)
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
    BEGIN();
    if (!bytes)
        return cudaSuccess;
    enum place there = place_of(to, bytes), here = place_of(from, bytes);
    if (!right_places(there, here, kind)) {
        fprintf(stderr, "simt: copy of %zu bytes, kind %d: from %d to %d\n", bytes, (int)kind,
                (int)here, (int)there);
        return finish(cudaErrorInvalidValue);
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
    return finish(cudaSuccess);
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t s)
{
    BEGIN();
    if (!bytes)
        return cudaSuccess;
    if (place_of(to, bytes) != PLACE_DEVICE)
        return finish(cudaErrorInvalidValue);
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
    BEGIN();
    struct command *c = command_make(CALL);
    c->fn = fn;
    c->argument = argument;
    enqueue(s, c);
    return cudaSuccess;
}

/* ---- launches ---- */

cudaError_t spw_simt_set_attribute(const void *kernel, cudaFuncAttribute attribute, int value)
{
    BEGIN();
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize)
        return cudaSuccess;
    if (value < 0 || value > most_shared_bytes())
        return finish(cudaErrorInvalidValue);
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < n_attributes && attributes[i].kernel != kernel)
        i++;
    if (i == MOST_KERNELS)
        spw_simt_fault("more than %d kernels have attributes", MOST_KERNELS);
    n_attributes = i == n_attributes ? i + 1 : n_attributes;
    attributes[i] = {kernel, value};
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

static size_t dynamic_allowed(const void *kernel)
{
    size_t bytes = DEFAULT_SHARED_BYTES;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_attributes; i++)
        if (attributes[i].kernel == kernel && attributes[i].dynamic_bytes > (int)bytes)
            bytes = (size_t)attributes[i].dynamic_bytes;
    pthread_mutex_unlock(&lock);
    return bytes;
}

/* As the hardware's limits are: CUDA C++ programming guide, "Compute Capabilities". */
static cudaError_t check_launch(const struct spw_simt_launch *l)
{
    const dim3 *g = &l->grid, *b = &l->block;
    uint64_t threads = (uint64_t)b->x * b->y * b->z;
    if (!threads || threads > 1024 || b->z > 64)
        return cudaErrorInvalidConfiguration;
    if (!g->x || !g->y || !g->z || g->x > INT32_MAX || g->y > 65535 || g->z > 65535)
        return cudaErrorInvalidConfiguration;
    return l->shared_bytes > dynamic_allowed(l->kernel) ? cudaErrorInvalidValue : cudaSuccess;
}

void spw_simt_queue(const struct spw_simt_launch *l)
{
    cudaError_t rc = begin();
    if (rc == cudaSuccess)
        rc = finish(check_launch(l));
    if (rc != cudaSuccess) {
        l->drop(l->closure);
        return;
    }
    struct command *c = command_make(KERNEL);
    c->launch = *l;
    bool more = dynamic_allowed(l->kernel) > DEFAULT_SHARED_BYTES;
    c->launch.shared_most = (size_t)(more ? most_shared_bytes() : (int)DEFAULT_SHARED_BYTES);
    enqueue(l->stream, c);
}
