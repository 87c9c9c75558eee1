/* Tests that every device must pass. The including file fills `ops` and `each` and calls the
 * tests. */
#ifndef SPW_TESTS_UNIT_OFFLOAD_DEVICE_EACH_H
#define SPW_TESTS_UNIT_OFFLOAD_DEVICE_EACH_H

#include "offload/device/lane.h"
#include "tests/check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#define MIB ((uint64_t)1 << 20)

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define RACES_ARE_REPORTED 1
#endif
#endif
#ifdef __SANITIZE_THREAD__
#define RACES_ARE_REPORTED 1
#endif

enum { BLOCK = 256 };

struct each {
    /* Queues one step of the ring: makes `out` from `in`, BLOCK words each. */
    int (*step)(struct spw_device *d, spw_stream s, const uint32_t *in, uint32_t *out,
                uint32_t add);
    uint32_t (*expected)(uint32_t word, uint32_t add); /* the result of a step for a word */
    uint64_t step_copies;                              /* bytes that a step copies on the device */
    uint64_t device_align;
    int least_allocations; /* allocations of opening everything, at least */
    bool host_can_touch;   /* device memory */
};
static struct each each;
static const struct spw_device_ops *ops;

static inline struct spw_device *device_open(int threads, uint64_t seed)
{
    struct spw_device *d = NULL;
    struct spw_device_options o = {.device_bytes = UINT64_MAX,
                                   .host_bytes = UINT64_MAX,
                                   .threads = threads,
                                   .delay_seed = seed};
    CHECK(ops->open(&d, &o, NULL) == 0);
    return d;
}

static inline spw_stream stream_open(struct spw_device *d, const char *name)
{
    spw_stream s = NULL;
    CHECK(ops->stream_open(d, name, &s) == 0);
    return s;
}

static inline spw_event event_open(struct spw_device *d)
{
    spw_event e = NULL;
    CHECK(ops->event_open(d, &e) == 0);
    return e;
}

static inline struct spw_device_usage usage(struct spw_device *d)
{
    struct spw_device_usage u;
    ops->usage(d, &u);
    return u;
}

/* --- memory --- */

static inline void test_budgets(void)
{
    struct spw_device_options o = {.device_bytes = 5 * 4096 + 100, .host_bytes = MIB, .threads = 1};
    struct spw_device *d;
    CHECK(ops->open(&d, &o, NULL) == 0);
    void *a, *b, *c;
    CHECK(ops->alloc(d, 4097, &a) == 0 &&
          (uintptr_t)a % each.device_align == 0); /* counts as two pages */
    CHECK(usage(d).device_bytes == 8192);
    CHECK(ops->alloc(d, 3 * 4096 + 1, &b) == -ENOMEM && !b);
    CHECK(ops->alloc(d, UINT64_MAX, &b) == -ENOMEM && !b);
    CHECK(ops->alloc(d, UINT64_MAX - 5000, &b) == -ENOMEM && !b);
    CHECK(usage(d).device_bytes == 8192 && usage(d).device_peak_bytes == 8192);
    CHECK(ops->alloc(d, 3 * 4096, &b) == 0); /* the last whole page */
    CHECK(ops->alloc(d, 1, &c) == -ENOMEM);
    if (each.host_can_touch) {
        memset(a, 1, 4097);
        memset(b, 2, 3 * 4096);
    }
    ops->free(d, a, 4097);
    CHECK(usage(d).device_bytes == 3 * 4096 && usage(d).device_peak_bytes == 5 * 4096);
    CHECK(ops->alloc(d, 1, &a) == 0);
    CHECK(ops->alloc(d, 0, &c) == 0);
    ops->free(d, c, 0);

    CHECK(usage(d).host_bytes == 0);
    CHECK(ops->alloc_host(d, MIB, &c) == 0 && (uintptr_t)c % 4096 == 0);
    CHECK(!*(unsigned char *)c && !memcmp(c, (unsigned char *)c + 1, MIB - 1)); /* zeroed */
    memset(c, 3, MIB);
    void *none;
    CHECK(ops->alloc_host(d, 1, &none) == -ENOMEM);
    ops->free_host(d, c, MIB);
    ops->free(d, a, 1);
    ops->free(d, b, 3 * 4096);
    struct spw_device_usage u = usage(d);
    CHECK(u.device_bytes == 0 && u.host_bytes == 0);
    CHECK(u.device_peak_bytes == 5 * 4096 && u.host_peak_bytes == MIB);
    ops->close(d);
}

/* --- events --- */

enum ring_wait {
    WAIT_NONE,
    WAIT_SLOT_FREE, /* before a load overwrites a slot */
    WAIT_LOADED,    /* before the kernel reads it */
    WAIT_STORED,    /* before the kernel overwrites an output */
    WAIT_COMPUTED,  /* before an output is stored */
    RING_WAITS_COUNT,
};

/* A word that is a whole number, also as a float. */
static inline uint32_t ring_word(size_t i)
{
    float f = (float)((uint32_t)(i * 2654435761u) >> 12);
    uint32_t word;
    memcpy(&word, &f, sizeof word);
    return word;
}

/* host -> slot -> kernel -> output slot -> host, two slots each, on three streams that only events
 * order. Returns the number of wrong words; `without` names a wait that is left out. */
static inline size_t run_ring(int threads, uint64_t seed, size_t steps, enum ring_wait without)
{
    struct spw_device *d = device_open(threads, seed);
    spw_stream load = stream_open(d, "load"), compute = stream_open(d, "compute"),
               store = stream_open(d, "store");
    spw_event loaded[2], computed[2], stored[2];
    size_t block_bytes = BLOCK * sizeof(uint32_t);
    uint32_t *device, *from, *to; /* device: [2 in, 2 out][BLOCK] */
    CHECK(ops->alloc(d, 4 * block_bytes, (void **)&device) == 0);
    CHECK(ops->alloc_host(d, steps * block_bytes, (void **)&from) == 0);
    CHECK(ops->alloc_host(d, steps * block_bytes, (void **)&to) == 0);
    for (size_t i = 0; i < steps * BLOCK; i++)
        from[i] = ring_word(i);
    for (int i = 0; i < 2; i++) {
        loaded[i] = event_open(d);
        computed[i] = event_open(d);
        stored[i] = event_open(d);
    }
    int rc = 0;
    for (size_t i = 0; i < steps; i++) {
        size_t slot = i % 2;
        uint32_t *in = device + slot * BLOCK, *out = device + (2 + slot) * BLOCK;
        if (without != WAIT_SLOT_FREE)
            rc |= ops->stream_wait(d, load, computed[slot]);
        rc |= ops->copy(d, in, from + i * BLOCK, block_bytes, SPW_LINK_HOST_TO_DEVICE, load);
        rc |= ops->event_record(d, loaded[slot], load);

        if (without != WAIT_LOADED)
            rc |= ops->stream_wait(d, compute, loaded[slot]);
        if (without != WAIT_STORED)
            rc |= ops->stream_wait(d, compute, stored[slot]);
        rc |= each.step(d, compute, in, out, (uint32_t)i);
        rc |= ops->event_record(d, computed[slot], compute);

        if (without != WAIT_COMPUTED)
            rc |= ops->stream_wait(d, store, computed[slot]);
        rc |= ops->copy(d, to + i * BLOCK, out, block_bytes, SPW_LINK_DEVICE_TO_HOST, store);
        rc |= ops->event_record(d, stored[slot], store);
    }
    CHECK(rc == 0);
    CHECK(ops->stream_sync(d, load) == 0 && ops->stream_sync(d, compute) == 0);
    CHECK(ops->event_sync(d, stored[(steps - 1) % 2]) == 0);
    size_t wrong = 0;
    for (size_t i = 0; i < steps * BLOCK; i++)
        wrong += to[i] != each.expected(ring_word(i), (uint32_t)(i / BLOCK));
    struct spw_device_usage u = usage(d);
    CHECK(u.moved_bytes[SPW_LINK_HOST_TO_DEVICE] == steps * block_bytes);
    CHECK(u.moved_bytes[SPW_LINK_DEVICE_TO_HOST] == steps * block_bytes);
    CHECK(u.moved_bytes[SPW_LINK_DEVICE_TO_DEVICE] == steps * each.step_copies);
    for (int i = 0; i < 2; i++) {
        ops->event_close(d, loaded[i]);
        ops->event_close(d, computed[i]);
        ops->event_close(d, stored[i]);
    }
    ops->stream_close(d, load);
    ops->stream_close(d, compute);
    ops->stream_close(d, store);
    ops->free(d, device, 4 * block_bytes);
    ops->free_host(d, from, steps * block_bytes);
    ops->free_host(d, to, steps * block_bytes);
    ops->close(d);
    return wrong;
}

static inline void test_ring(uint64_t *random, size_t steps, int seeds)
{
    for (int threads = 1; threads <= 3; threads++)
        CHECK(run_ring(threads, 0, steps, WAIT_NONE) == 0);
    for (int i = 0; i < seeds; i++) {
        uint64_t seed = check_random(random) | 1;
        CHECK_MSG(run_ring(1 + i % 3, seed, 40, WAIT_NONE) == 0, "delay seed %llu",
                  (unsigned long long)seed);
    }
}

/* The delays are useful only if each missing wait gives wrong data. */
static inline void test_missing_waits(uint64_t *random)
{
#ifndef RACES_ARE_REPORTED
    for (enum ring_wait w = WAIT_NONE + 1; w < RING_WAITS_COUNT; w++) {
        int tries = 0;
        while (tries < 60 && run_ring(2, check_random(random) | 1, 40, w) == 0)
            tries++;
        CHECK_MSG(tries < 60, "leaving out wait %d was not noticed", (int)w);
    }
#else
    (void)random;
#endif
}

/* Makes a stream wait until the gate is opened, but only for a few seconds. A host function may
 * block those of other streams (CUDA runtime API, cudaLaunchHostFunc). If a driver blocks more than
 * that, a check must fail and not hang. */
struct gate {
    _Atomic int open;
    _Atomic int passed;
};

static inline void gate_wait(void *argument)
{
    struct gate *g = argument;
    for (int i = 0; i < 30000 && !atomic_load(&g->open); i++)
        usleep(100);
    atomic_fetch_add(&g->passed, 1);
}

static inline void count_call(void *argument)
{
    atomic_fetch_add((_Atomic int *)argument, 1);
}

static inline void test_event_meaning(void)
{
    struct spw_device *d = device_open(1, 0);
    spw_stream a = stream_open(d, "a"), b = stream_open(d, "b");
    spw_event e = event_open(d), behind = event_open(d);
    _Atomic int calls = 0;
    CHECK(ops->event_sync(d, e) == 0); /* never recorded: done */
    CHECK(ops->stream_wait(d, b, e) == 0);
    CHECK(ops->host_call(d, count_call, (void *)&calls, b) == 0);
    CHECK(ops->stream_sync(d, b) == 0 && calls == 1);

    /* A wait means the latest record before it: the second record is not over, but b passes. */
    struct gate first = {0}, second = {0};
    CHECK(ops->host_call(d, gate_wait, &first, a) == 0);
    CHECK(ops->event_record(d, e, a) == 0);
    CHECK(ops->stream_wait(d, b, e) == 0);
    CHECK(ops->event_record(d, behind, b) == 0);
    CHECK(ops->host_call(d, gate_wait, &second, a) == 0);
    CHECK(ops->event_record(d, e, a) == 0);
    usleep(5000);
    CHECK(!ops->event_is_over(d, behind));
    atomic_store(&first.open, 1);
    CHECK(ops->event_sync(d, behind) == 0);
    CHECK(atomic_load(&second.passed) == 0);
    atomic_store(&second.open, 1);
    CHECK(ops->event_sync(d, e) == 0); /* the latest record */
    CHECK(atomic_load(&second.passed) == 1);

    /* An event outlives the stream that it was recorded on, and queued waits for it outlive
     * both. */
    struct gate third = {0};
    spw_stream c = stream_open(d, "c");
    CHECK(ops->host_call(d, gate_wait, &third, c) == 0);
    CHECK(ops->event_record(d, e, c) == 0);
    CHECK(ops->stream_wait(d, b, e) == 0);
    atomic_store(&third.open, 1);
    ops->stream_close(d, c);
    CHECK(third.passed == 1);
    CHECK(ops->event_sync(d, e) == 0);
    c = stream_open(d, "c again");
    CHECK(ops->event_sync(d, e) == 0);
    ops->event_close(d, e);
    ops->event_close(d, behind);
    CHECK(ops->stream_sync(d, b) == 0);
    ops->stream_close(d, a);
    ops->stream_close(d, b);
    ops->stream_close(d, c);
    ops->close(d);
}

static inline void sleep_call(void *microseconds)
{
    usleep(*(useconds_t *)microseconds);
}

static inline void test_waited(void)
{
    struct spw_device *d = device_open(1, 0);
    spw_stream a = stream_open(d, "a"), b = stream_open(d, "compute");
    spw_event e = event_open(d);
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    double waited = 0;
    /* A busy machine may run b only after the sleep: then a longer sleep follows. */
    for (useconds_t sleep = 20000; waited <= 0.002 && sleep < 4000000; sleep *= 4) {
        CHECK(ops->host_call(d, sleep_call, &sleep, a) == 0);
        CHECK(ops->event_record(d, e, a) == 0);
        ops->range_begin(d, "layer", 3);
        CHECK(ops->stream_wait(d, b, e) == 0);
        ops->range_end(d);
        CHECK(ops->stream_sync(d, b) == 0);
        waited = ops->waited_seconds(d, b, 3);
    }
    clock_gettime(CLOCK_MONOTONIC, &to);
    double spent = (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) * 1e-9;
    CHECK_MSG(waited > 0.002 && waited <= spent, "waited %g of %g seconds", waited, spent);
    CHECK(ops->waited_seconds(d, a, 3) == 0);
    CHECK(ops->waited_seconds(d, b, 2) == 0 && ops->waited_seconds(d, b, SPW_RANGES) == 0);
    CHECK(ops->stream_wait(d, b, e) == 0); /* over already: costs nothing */
    CHECK(ops->stream_sync(d, b) == 0 && ops->waited_seconds(d, b, 3) == waited);
    CHECK(ops->waited_seconds(d, b, SPW_RANGES) == 0);
    ops->event_close(d, e);
    ops->stream_close(d, a);
    ops->stream_close(d, b);
    ops->close(d);
}

/* --- order, a full queue, counters --- */

struct ordered {
    unsigned *seen, *n_seen; /* [calls], and how many */
    unsigned number;
};

static inline void order_call(void *argument)
{
    struct ordered *o = argument;
    o->seen[(*o->n_seen)++] = o->number;
}

static inline void *open_later(void *argument)
{
    usleep(20000);
    atomic_store(&((struct gate *)argument)->open, 1);
    return NULL;
}

/* Far more calls than the ring has room for, behind a closed gate: the host waits, and no call is
 * lost. */
static inline void test_full_queue(void)
{
    enum { CALLS = 5000 };
    static struct ordered calls[CALLS];
    static unsigned seen[CALLS];
    unsigned n_seen = 0;
    struct gate g = {0};
    struct spw_device *d = device_open(2, 0);
    spw_stream s = stream_open(d, "full");
    pthread_t opener;
    CHECK(ops->host_call(d, gate_wait, &g, s) == 0);
    CHECK(pthread_create(&opener, NULL, open_later, &g) == 0);
    int rc = 0;
    for (unsigned i = 0; i < CALLS; i++) {
        calls[i] = (struct ordered){seen, &n_seen, i};
        rc |= ops->host_call(d, order_call, &calls[i], s);
    }
    CHECK(rc == 0);
    ops->stream_close(d, s); /* drains */
    CHECK(n_seen == CALLS);
    unsigned wrong = 0;
    for (unsigned i = 0; i < CALLS; i++)
        wrong += seen[i] != i;
    CHECK(wrong == 0);
    pthread_join(opener, NULL);
    ops->close(d);
}

static inline void test_counters(uint64_t *random)
{
    enum { MOST = 5000 };
    struct spw_device *d = device_open(1, check_random(random) | 1);
    spw_stream s[3] = {stream_open(d, "x"), stream_open(d, "y"), stream_open(d, "z")};
    unsigned char *device, *host; /* [4][MOST]: one to read, and one for each stream to write */
    uint64_t expected[SPW_LINK_COUNT] = {0};
    CHECK(ops->alloc(d, 4 * MOST, (void **)&device) == 0);
    CHECK(ops->alloc_host(d, 4 * MOST, (void **)&host) == 0);
    for (int i = 0; i < 500; i++) {
        uint64_t bytes = check_range(random, 0, MOST);
        enum spw_link link = (enum spw_link)check_range(random, 0, SPW_LINK_COUNT - 1);
        unsigned char *to = link == SPW_LINK_DEVICE_TO_HOST ? host : device;
        unsigned char *from = link == SPW_LINK_HOST_TO_DEVICE ? host : device;
        to += (i % 3 + 1) * MOST;
        CHECK(ops->copy(d, bytes ? to : NULL, bytes ? from : NULL, bytes, link, s[i % 3]) == 0);
        expected[link] += bytes;
    }
    for (int i = 0; i < 3; i++)
        ops->stream_close(d, s[i]);
    for (int i = 0; i < SPW_LINK_COUNT; i++)
        CHECK(usage(d).moved_bytes[i] == expected[i]);
    ops->free(d, device, 4 * MOST);
    ops->free_host(d, host, 4 * MOST);
    ops->close(d);
}

/* --- a lane --- */

static inline void count_late(void *n)
{
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    atomic_fetch_add((atomic_int *)n, 1);
}

/* Sync and close wait for the work of each stream, not only of the first or the last. */
static inline void test_lane(void)
{
    struct spw_lane l = {.ops = ops, .device = device_open(1, 0)};
    atomic_int n = 0;
    CHECK(spw_lane_sync_all(&l) == 0); /* no stream is open */
    CHECK(spw_lane_open_streams(&l) == 0);
    for (int i = 0; i < SPW_LANE_STREAMS; i++)
        CHECK(spw_lane_host_call(&l, count_late, &n, l.streams[i]) == 0);
    CHECK(spw_lane_sync_all(&l) == 0 && n == SPW_LANE_STREAMS);
    for (int i = 0; i < SPW_LANE_STREAMS; i++)
        CHECK(spw_lane_host_call(&l, count_late, &n, l.streams[i]) == 0);
    spw_lane_close_streams(&l);
    CHECK(n == 2 * SPW_LANE_STREAMS && !l.compute && !l.disk);
    ops->close(l.device);
}

/* --- failure --- */

/* Takes everything from the device that a session takes. Returns 0 or the first failure; everything
 * is given back. */
static inline int take_and_give(void)
{
    struct spw_device_options o = {.device_bytes = MIB, .host_bytes = MIB, .threads = 3};
    struct spw_device *d;
    spw_stream s[2] = {NULL, NULL};
    spw_event e = NULL;
    void *p = NULL, *h = NULL;
    struct spw_error err = {0};
    int rc = ops->open(&d, &o, &err);
    if (rc) {
        CHECK(!d && err.text[0]);
        return rc;
    }
    rc = ops->alloc(d, MIB, &p);
    rc = rc ? rc : ops->alloc_host(d, MIB, &h);
    rc = rc ? rc : ops->stream_open(d, "a", &s[0]);
    rc = rc ? rc : ops->stream_open(d, "b", &s[1]);
    rc = rc ? rc : ops->event_open(d, &e);
    rc = rc ? rc : ops->copy(d, p, h, MIB, SPW_LINK_HOST_TO_DEVICE, s[0]);
    rc = rc ? rc : ops->stream_sync(d, s[0]);
    ops->event_close(d, e);
    ops->stream_close(d, s[1]);
    ops->stream_close(d, s[0]);
    ops->free_host(d, h, MIB);
    ops->free(d, p, MIB);
    CHECK(usage(d).device_bytes == 0 && usage(d).host_bytes == 0);
    ops->close(d);
    return rc;
}

static inline void test_allocation_failures(void)
{
    for (int n = 0;; n++) {
        spw_alloc_fail_nth(n);
        int rc = take_and_give();
        spw_alloc_fail_nth(-1);
        CHECK(spw_alloc_outstanding() == 0);
        if (!rc) {
            CHECK(n >
                  each.least_allocations); /* the failure has met blocks, threads and mappings */
            return;
        }
        CHECK(rc == -ENOMEM);
    }
}

#endif
