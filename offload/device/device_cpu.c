/* The CPU device: see device.h.
 *
 * A stream is a worker thread and a ring of commands. Two counters that only grow say how far it
 * is:
 *
 *     ring:   ... done | done | running | queued | queued | free ...
 *                             ^ s->done                   ^ s->queued
 *
 * So "everything queued so far" is one number, and an event is a stream and this number.
 * Recording an event reads s->queued. Waiting for it waits until s->done has reached the number.
 * A wait that is queued on another stream has its own copy of the pair, so it does not change
 * when the event is recorded again.
 *
 * The memory of a closed stream is used again by the next stream that opens; its counters
 * continue. So an event or a queued wait of the closed stream finds "done", not freed memory.
 *
 * Memory is mapped from the system and unmapped at once when it is freed, counted in whole
 * pages. */
#include "offload/device/device.h"

#include "offload/device/copy_cpu.h"
#include "offload/device/device_cpu_team.h"
#include "offload/device/host_pages.h"
#include "offload/device/pool.h"
#include "offload/device/placement.h"
#include "offload/device/topology.h"

#include <assert.h>
#include <sched.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#define RING_COMMANDS 256u /* a power of two */
#define MAX_THREADS 1024

/* How long a stream spins before it sleeps. A copy stream that waits longer gives its core back to
 * the kernels (set_copying). */
#define STREAM_SPIN_NS 20000
#define HOST_SPIN_NS 20000

/* For a copy of so many bytes, which takes longer than a task of a kernel (3 us), a worker of the
 * kernels leaves its core (device_cpu_team.h). */
#define CORE_COPY_BYTES (64u << 10)

enum command_kind { COMMAND_STOP, COMMAND_COPY, COMMAND_KERNEL, COMMAND_HOST_CALL, COMMAND_WAIT };

struct command {
    enum command_kind kind;
    union {
        struct {
            void *to;
            const void *from;
            uint64_t bytes;
            enum spw_link link;
        } copy;
        struct {
            void (*fn)(void *);
            void *argument;
        } call;
        struct {
            spw_stream stream;
            uint64_t ticket;
            uint32_t range;
        } wait;
        struct {
            const struct spw_kernel *kernel;
            _Alignas(max_align_t) unsigned char args[SPW_CPU_ARGS_BYTES];
        } launch;
    };
};

struct CUstream_st {
    struct spw_device *device;
    struct CUstream_st *next; /* in the list of closed streams */
    uint64_t index;           /* number of the stream: random delays depend on it */
    uint64_t first;           /* number of the first command since the stream was opened */
    bool copying;             /* of the worker thread: it has called spw_team_copy_begin */
    bool computes;            /* the stream "compute", whose thread is worker 0 of kernels */
    pthread_t worker;
    struct command *ring;                       /* owned [RING_COMMANDS] */
    _Atomic uint64_t waited_ns[SPW_RANGES + 1]; /* by range; the last one: outside of any range */
    struct spw_counter queued;
    char apart[64]; /* two cache lines: the host writes `queued`, the worker writes `done` */
    struct spw_counter done;
};

struct CUevent_st {
    spw_stream stream; /* NULL: never recorded */
    uint64_t ticket;
};

struct spw_device {
    struct spw_pools pools;
    _Atomic uint64_t moved[SPW_LINK_COUNT];
    _Atomic bool failed;
    _Atomic int64_t fail_countdown; /* negative: never */
    uint64_t delay_seed;
    bool touches; /* memory is touched at allocation: see host_pages.h */
    const void *context;
    uint32_t range;                /* the range for which waits count that are queued now */
    uint64_t n_streams;            /* that were ever created */
    spw_stream closed;             /* list of closed streams, to be used again */
    struct spw_topology *topology; /* owned; NULL: not needed, or unknown */
    struct spw_placement placement;
    struct spw_team *team; /* owned */
};

/* --- memory --- */

static int pool_alloc(struct spw_device *d, struct spw_pool *pool, uint64_t bytes, void **out)
{
    *out = NULL;
    if (atomic_load(&d->failed))
        return -EIO;
    if (!bytes)
        return 0;
    SPW_TRY(spw_pool_charge(pool, bytes));
    bytes = spw_align_up(bytes, SPW_POOL_PAGE_BYTES);
    int rc = spw_host_pages_map(bytes, &d->placement, out);
    if (rc)
        spw_pool_discharge(pool, bytes);
    else if (d->touches)
        spw_host_pages_touch(*out, bytes, &d->placement);
    return rc;
}

static int cpu_charge(struct spw_device *d, uint64_t device_bytes, uint64_t host_bytes)
{
    return atomic_load(&d->failed) ? -EIO : spw_pools_charge(d, device_bytes, host_bytes);
}

static int cpu_alloc(struct spw_device *d, uint64_t bytes, void **out)
{
    return pool_alloc(d, &d->pools.device, bytes, out);
}

static int cpu_alloc_host(struct spw_device *d, uint64_t bytes, void **out)
{
    return pool_alloc(d, &d->pools.host, bytes, out);
}

/* --- a stream's worker --- */

static uint64_t mix(uint64_t z) /* splitmix64's finalizer */
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Delay number `point` of a stream, a pure function of the seed. One in 16 sleeps up to 0.2 ms,
 * long compared with a small kernel. One in 8 only yields. The others cost nothing; otherwise a
 * thousand seeds would take an hour. */
static void delay(const struct CUstream_st *s, uint64_t point)
{
    if (!s->device->delay_seed)
        return;
    uint64_t draw = mix(mix(s->device->delay_seed + s->index * 0x9e3779b97f4a7c15u) + point);
    unsigned kind = draw & 15;
    if (kind == 0)
        nanosleep(&(struct timespec){.tv_nsec = (long)((draw >> 32) % 200000)}, NULL);
    else if (kind <= 2)
        sched_yield();
}

/* Takes a core from the kernels for a stream that copies, or gives the core back. A stream that
 * copies several blocks in a row keeps the core between two copies. */
static void set_copying(struct CUstream_st *s, bool copying)
{
    if (s->copying == copying)
        return;
    s->copying = copying;
    if (copying)
        spw_team_copy_begin(s->device->team);
    else
        spw_team_copy_end(s->device->team);
}

/* Waits until the counter has reached a number. A stream that waits for long gives its core back.
 */
static void pause_for(struct CUstream_st *s, struct spw_counter *c, uint64_t at_least)
{
    if (spw_counter_spin(c, at_least, STREAM_SPIN_NS))
        return;
    set_copying(s, false);
    spw_counter_wait(c, at_least, 0);
}

/* The command COMMAND_WAIT: waits for work of another stream, and counts the time. */
static void wait_for(struct CUstream_st *s, spw_stream other, uint64_t ticket, uint32_t range)
{
    if (spw_counter_get(&other->done) >= ticket)
        return;
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    pause_for(s, &other->done, ticket);
    clock_gettime(CLOCK_MONOTONIC, &to);
    int64_t ns = (int64_t)(to.tv_sec - from.tv_sec) * 1000000000 + (to.tv_nsec - from.tv_nsec);
    atomic_fetch_add(&s->waited_ns[range], (uint64_t)ns);
}

/* Whether a command may run. False after the device has failed, and for the command at which a test
 * lets the device fail. */
static bool healthy(struct spw_device *d)
{
    if (atomic_load_explicit(&d->fail_countdown, memory_order_relaxed) >= 0 &&
        atomic_fetch_sub(&d->fail_countdown, 1) == 0)
        atomic_store(&d->failed, true);
    return !atomic_load_explicit(&d->failed, memory_order_relaxed);
}

static void command_run(struct CUstream_st *s, const struct command *c)
{
    struct spw_device *d = s->device;
    if (c->kind == COMMAND_WAIT) { /* also on a failed device, to keep the order of streams */
        wait_for(s, c->wait.stream, c->wait.ticket, c->wait.range);
        return;
    }
    if (!healthy(d))
        return;
    set_copying(s, c->kind == COMMAND_COPY && (s->copying || c->copy.bytes >= CORE_COPY_BYTES));
    if (c->kind == COMMAND_COPY) {
        spw_copy_cpu(c->copy.to, c->copy.from, (size_t)c->copy.bytes);
        atomic_fetch_add(&d->moved[c->copy.link], c->copy.bytes);
    } else if (c->kind == COMMAND_KERNEL) {
        spw_team_run(d->team, c->launch.kernel, c->launch.args);
    } else {
        c->call.fn(c->call.argument);
    }
}

static void *stream_main(void *argument)
{
    struct CUstream_st *s = argument;
    spw_placement_bind(&s->device->placement, s->computes ? SPW_ROLE_COMPUTE : SPW_ROLE_TRANSFER,
                       0);
    if (s->device->delay_seed)
        prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0); /* without this a sleep takes 50 us longer */
    for (uint64_t n = s->first;; n++) {
        pause_for(s, &s->queued, n + 1);
        const struct command *c = &s->ring[n % RING_COMMANDS];
        if (c->kind == COMMAND_STOP)
            break;
        delay(s, 2 * n);
        command_run(s, c);
        delay(s, 2 * n + 1); /* before any thread can see that the command is done */
        spw_counter_add(&s->done, 1);
    }
    set_copying(s, false);
    spw_counter_add(&s->done, 1);
    return NULL;
}

/* --- queueing, from the host's thread --- */

/* The next free command. If the ring is full, waits until half of it is free: waking the host
 * for each command would take a core from the kernels. */
static struct command *command_next(struct CUstream_st *s, enum command_kind kind)
{
    uint64_t n = spw_counter_get(&s->queued);
    if (n - spw_counter_get(&s->done) == RING_COMMANDS)
        spw_counter_wait(&s->done, n - RING_COMMANDS / 2, 0);
    struct command *c = &s->ring[n % RING_COMMANDS];
    c->kind = kind;
    return c;
}

static void command_queue(struct CUstream_st *s)
{
    spw_counter_add(&s->queued, 1);
}

static int cpu_copy(struct spw_device *d, void *to, const void *from, uint64_t bytes,
                    enum spw_link link, spw_stream s)
{
    assert((unsigned)link < SPW_LINK_COUNT);
    if (atomic_load(&d->failed))
        return -EIO;
    struct command *c = command_next(s, COMMAND_COPY);
    c->copy.to = to;
    c->copy.from = from;
    c->copy.bytes = bytes;
    c->copy.link = link;
    command_queue(s);
    return 0;
}

static int cpu_host_call(struct spw_device *d, void (*fn)(void *), void *argument, spw_stream s)
{
    if (atomic_load(&d->failed))
        return -EIO;
    struct command *c = command_next(s, COMMAND_HOST_CALL);
    c->call.fn = fn;
    c->call.argument = argument;
    command_queue(s);
    return 0;
}

int spw_device_cpu_launch(struct spw_device *d, spw_stream s, const struct spw_kernel *kernel,
                          const void *args, size_t bytes)
{
    if (atomic_load(&d->failed))
        return -EIO;
    if (bytes > SPW_CPU_ARGS_BYTES)
        return -EINVAL;
    struct command *c = command_next(s, COMMAND_KERNEL);
    c->launch.kernel = kernel;
    if (bytes)
        memcpy(c->launch.args, args, bytes);
    command_queue(s);
    return 0;
}

const void *spw_device_cpu_context(spw_stream s)
{
    return s->device->context;
}

struct spw_device *spw_device_cpu_of(spw_stream s)
{
    return s->device;
}

/* --- events --- */

static int cpu_event_open(struct spw_device *d, spw_event *out)
{
    *out = NULL;
    if (atomic_load(&d->failed))
        return -EIO;
    *out = spw_alloc_zero(1, sizeof **out);
    return *out ? 0 : -ENOMEM;
}

static void cpu_event_close(struct spw_device *d, spw_event e)
{
    (void)d;
    spw_free(e); /* queued waits have their own copy */
}

static int cpu_event_record(struct spw_device *d, spw_event e, spw_stream s)
{
    if (atomic_load(&d->failed))
        return -EIO;
    e->stream = s;
    e->ticket = spw_counter_get(&s->queued);
    return 0;
}

static int cpu_stream_wait(struct spw_device *d, spw_stream s, spw_event e)
{
    if (atomic_load(&d->failed))
        return -EIO;
    if (!e->stream)
        return 0;
    /* Queued even if the event is over: the number of commands, and so the delays, must not
     * depend on timing. */
    struct command *c = command_next(s, COMMAND_WAIT);
    c->wait.stream = e->stream;
    c->wait.ticket = e->ticket;
    c->wait.range = d->range;
    command_queue(s);
    return 0;
}

static int cpu_event_sync(struct spw_device *d, spw_event e)
{
    if (e->stream)
        spw_counter_wait(&e->stream->done, e->ticket, HOST_SPIN_NS);
    return atomic_load(&d->failed) ? -EIO : 0;
}

static bool cpu_event_is_over(struct spw_device *d, spw_event e)
{
    (void)d;
    return !e->stream || spw_counter_get(&e->stream->done) >= e->ticket;
}

static int cpu_stream_sync(struct spw_device *d, spw_stream s)
{
    spw_counter_wait(&s->done, spw_counter_get(&s->queued), HOST_SPIN_NS);
    return atomic_load(&d->failed) ? -EIO : 0;
}

/* --- streams --- */

static spw_stream stream_new(struct spw_device *d)
{
    spw_stream s = spw_alloc_zero(1, sizeof *s);
    if (!s)
        return NULL;
    s->ring = spw_alloc_zero(RING_COMMANDS, sizeof *s->ring);
    if (!s->ring)
        goto fail_block;
    if (spw_counter_init(&s->queued))
        goto fail_ring;
    if (spw_counter_init(&s->done))
        goto fail_queued;
    s->device = d;
    s->index = d->n_streams++;
    return s;

fail_queued:
    spw_counter_free(&s->queued);
fail_ring:
    spw_free(s->ring);
fail_block:
    spw_free(s);
    return NULL;
}

static void streams_free(spw_stream s)
{
    while (s) {
        spw_stream next = s->next;
        spw_counter_free(&s->done);
        spw_counter_free(&s->queued);
        spw_free(s->ring);
        spw_free(s);
        s = next;
    }
}

static int cpu_stream_open(struct spw_device *d, const char *name, spw_stream *out)
{
    *out = NULL;
    if (atomic_load(&d->failed))
        return -EIO;
    if (!d->closed)
        d->closed = stream_new(d);
    spw_stream s = d->closed;
    if (!s)
        return -ENOMEM;
    for (uint32_t i = 0; i <= SPW_RANGES; i++)
        atomic_store(&s->waited_ns[i], 0);
    s->first = spw_counter_get(&s->queued);
    s->computes = !strcmp(name, "compute");
    /* after a failure the stream stays in the list of closed streams */
    SPW_TRY(spw_thread_start(&s->worker, name, stream_main, s));
    d->closed = s->next;
    s->next = NULL;
    *out = s;
    return 0;
}

static void cpu_stream_close(struct spw_device *d, spw_stream s)
{
    if (!s)
        return;
    command_next(s, COMMAND_STOP);
    command_queue(s);
    pthread_join(s->worker, NULL);
    s->next = d->closed;
    d->closed = s;
}

static double cpu_waited_seconds(struct spw_device *d, spw_stream s, uint32_t range)
{
    (void)d;
    return (double)atomic_load(&s->waited_ns[range]) * 1e-9;
}

/* --- the device --- */

/* Copies that run at the same time: KV, weights and hidden rows to the device, and one stream
 * from it. */
enum { TRANSFER_THREADS = 4 };

/* Chooses the cores of the threads. Asks hwloc (2 ms at start-up) only if there is a choice. If
 * hwloc cannot read the machine, no thread is bound to a core. */
static int choose_places(struct spw_device *d, const struct spw_device_options *o)
{
    struct spw_placement_request q = {.compute = o->threads,
                                      .transfer = o->beside_device ? 0 : TRANSFER_THREADS,
                                      .beside_device = o->beside_device,
                                      .io = o->io_threads,
                                      .quota = spw_topology_quota()};
    unsigned usable = spw_topology_usable_threads();
    bool few_workers = o->threads == 1 || o->threads == 2;
    if (usable > 2 && (!few_workers || o->io_threads)) {
        int rc = spw_topology_open(&d->topology, NULL, NULL);
        if (rc == -ENOMEM)
            return rc;
    }
    if (!d->topology && !q.compute)
        q.compute = (int)(q.quota ? spw_min_u64(q.quota, usable) : usable);
    int node = d->topology && o->io_path ? spw_topology_node_of_path(d->topology, o->io_path) : -1;
    q.has_node = node >= 0;
    q.node = q.has_node ? (unsigned)node : 0;
    return spw_placement_init(&d->placement, d->topology, &q);
}

static int team_open(struct spw_device *d, const struct spw_device_options *o,
                     struct spw_error *err)
{
    int rc = choose_places(d, o);
    if (rc)
        return spw_fail(err, rc, "out of memory for the topology");
    unsigned *n_threads = &d->placement.role[SPW_ROLE_COMPUTE].n_threads;
    unsigned n = *n_threads = (unsigned)spw_min_u64(*n_threads, MAX_THREADS);
    rc = spw_team_open(&d->team, n, spw_topology_usable_threads(), &d->placement);
    return rc ? spw_fail(err, rc, "no memory for a team of %u worker threads", n) : 0;
}

static void cpu_close(struct spw_device *d)
{
    if (!d)
        return;
    assert(!d->pools.device.used && !d->pools.host.used);
    spw_team_close(d->team);
    spw_placement_free(&d->placement);
    spw_topology_close(d->topology);
    streams_free(d->closed);
    spw_free(d);
}

static int cpu_open(struct spw_device **out, const struct spw_device_options *o,
                    struct spw_error *err)
{
    *out = NULL;
    if (o->threads < 0 || o->threads > MAX_THREADS)
        return spw_fail(err, -EINVAL, "threads: found %d, expected 0 (every core) to %d",
                        o->threads, MAX_THREADS);
    struct spw_device *d = spw_alloc_zero(1, sizeof *d);
    if (!d)
        return spw_fail(err, -ENOMEM, "out of memory for the CPU device");
    d->pools.device.budget = o->device_bytes;
    d->pools.host.budget = o->host_bytes;
    d->delay_seed = o->delay_seed;
    d->touches = o->io_threads > 0;
    d->range = SPW_RANGES;
    d->context = o->context;
    atomic_store(&d->fail_countdown, -1);
    int rc = team_open(d, o, err);
    if (rc) {
        cpu_close(d);
        return rc;
    }
    *out = d;
    return 0;
}

static void cpu_usage(struct spw_device *d, struct spw_device_usage *out)
{
    spw_pools_usage(d, out);
    for (int i = 0; i < SPW_LINK_COUNT; i++)
        out->moved_bytes[i] = atomic_load(&d->moved[i]);
}

static const struct spw_placement *cpu_placement(const struct spw_device *d)
{
    return &d->placement;
}

static uint64_t cpu_available(struct spw_device *d)
{
    (void)d;
    return UINT64_MAX;
}

static void cpu_range_begin(struct spw_device *d, const char *name, uint64_t number)
{
    (void)name;
    d->range = (uint32_t)spw_min_u64(number, SPW_RANGES);
}

static void cpu_range_end(struct spw_device *d)
{
    d->range = SPW_RANGES;
}

unsigned spw_device_cpu_threads(const struct spw_device *d)
{
    return spw_team_threads(d->team);
}

void spw_device_cpu_fail_nth(struct spw_device *d, int64_t n)
{
    atomic_store(&d->fail_countdown, n);
}

const struct spw_device_ops spw_device_cpu = {
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .workers = spw_device_cpu_threads,
    .placement = cpu_placement,
    .available = cpu_available,
    .alloc = cpu_alloc,
    .free = spw_pools_free,
    .charge = cpu_charge,
    .discharge = spw_pools_discharge,
    .set_budgets = spw_pools_set_budgets,
    .alloc_host = cpu_alloc_host,
    .free_host = spw_pools_free_host,
    .trim = spw_pools_trim,
    .trim_host = spw_pools_trim_host,
    .stream_open = cpu_stream_open,
    .stream_close = cpu_stream_close,
    .event_open = cpu_event_open,
    .event_close = cpu_event_close,
    .event_record = cpu_event_record,
    .stream_wait = cpu_stream_wait,
    .event_sync = cpu_event_sync,
    .event_is_over = cpu_event_is_over,
    .stream_sync = cpu_stream_sync,
    .copy = cpu_copy,
    .host_call = cpu_host_call,
    .waited_seconds = cpu_waited_seconds,
    .usage = cpu_usage,
    .range_begin = cpu_range_begin,
    .range_end = cpu_range_end,
};
