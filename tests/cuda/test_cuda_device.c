/* The CUDA device: everything that device_each.h asks of a device, and what only a GPU can do: be
 * missing, be too old, be lost, refuse to pin.
 *
 * Linked against the emulated library it runs under seeded delays, and a wait that is left out must
 * show; linked against the real one (label gpu) it runs on the first GPU. */
#include "model/cuda/ops_cuda.h"
#include "tests/unit/offload/device_each.h"

#ifdef SPW_SIMT_EMULATOR
#include "tests/cuda/simt_control.h"
#endif

/* Steps of a ring without delays; ThreadSanitizer makes the emulator's fibers slow. */
#ifdef RACES_ARE_REPORTED
enum { EACH_RING = 20, DELAY_SEEDS = 4 };
#else
enum { EACH_RING = 300, DELAY_SEEDS = 20 };
#endif

/* out = 2 in, in floats: a product of nothing, with in as its bias, is added to the copy. */
static int launch_step(struct spw_device *d, spw_stream s, const uint32_t *in, uint32_t *out,
                       uint32_t add)
{
    (void)add;
    SPW_TRY(ops->copy(d, out, in, BLOCK * sizeof *in, SPW_LINK_DEVICE_TO_DEVICE, s));
    struct spw_linear_args a = {.x = in,
                                .w = in,
                                .bias = (const float *)in,
                                .y = out,
                                .residual = out,
                                .m = 1,
                                .n = BLOCK,
                                .y_stride = BLOCK};
    a.x_dtype = a.w_dtype = a.y_dtype = SPW_DTYPE_F32;
    return spw_linear_cuda(&a, s);
}

/* Twice a float is one more in its exponent. */
static uint32_t step_expected(uint32_t word, uint32_t add)
{
    (void)add;
    return word ? word + (1u << 23) : 0;
}

/* ---- pinned slabs ---- */

/* Copies of every kind of length over the borders of small slabs. */
static void test_slabs(uint64_t *random)
{
    enum { SLAB = 3 * 4096, BYTES = 10 * 4096 };
    struct spw_device_options o = {.device_bytes = MIB, .host_bytes = MIB, .slab_bytes = SLAB};
    struct spw_device *d;
    unsigned char *device, *host, *other;
    CHECK(ops->open(&d, &o, NULL) == 0);
    spw_stream s = stream_open(d, "copies");
    CHECK(ops->alloc(d, BYTES, (void **)&device) == 0);
    CHECK(ops->alloc_host(d, BYTES, (void **)&host) == 0);
    CHECK(ops->alloc_host(d, BYTES, (void **)&other) == 0);
    CHECK(!usage(d).host_pageable);
    for (int i = 0; i < 40; i++) {
        uint64_t from = check_range(random, 0, BYTES - 1), to = check_range(random, 0, BYTES - 1);
        uint64_t bytes = check_range(random, 1, BYTES - (from > to ? from : to));
        for (int k = 0; k < BYTES; k++)
            host[k] = (unsigned char)check_random(random);
        memset(other, 7, BYTES);
        CHECK(ops->copy(d, device + to, host + from, bytes, SPW_LINK_HOST_TO_DEVICE, s) == 0);
        CHECK(ops->copy(d, other + from, device + to, bytes, SPW_LINK_DEVICE_TO_HOST, s) == 0);
        CHECK(ops->stream_sync(d, s) == 0);
        CHECK(!memcmp(other + from, host + from, bytes));
        CHECK((!from || other[from - 1] == 7) &&
              (from + bytes == BYTES || other[from + bytes] == 7));
    }
    ops->stream_close(d, s);
    ops->free_host(d, host, BYTES);
    ops->free_host(d, other, BYTES);
    ops->free(d, device, BYTES);
    ops->close(d);
}

/* Memory that nobody pinned, such as a mapped file, is copied too. */
static void test_pageable_source(void)
{
    struct spw_device *d = device_open(0, 0);
    spw_stream s = stream_open(d, "copies");
    unsigned char *device, from[5000], *to;
    CHECK(ops->alloc(d, sizeof from, (void **)&device) == 0);
    CHECK(ops->alloc_host(d, sizeof from, (void **)&to) == 0);
    for (size_t i = 0; i < sizeof from; i++)
        from[i] = (unsigned char)(i * 31);
    CHECK(ops->copy(d, device, from, sizeof from, SPW_LINK_HOST_TO_DEVICE, s) == 0);
    CHECK(ops->copy(d, to, device, sizeof from, SPW_LINK_DEVICE_TO_HOST, s) == 0);
    CHECK(ops->stream_sync(d, s) == 0 && !memcmp(to, from, sizeof from));
    ops->stream_close(d, s);
    ops->free_host(d, to, sizeof from);
    ops->free(d, device, sizeof from);
    ops->close(d);
}

static void test_zeroed(void)
{
    enum { BYTES = 70000 };
    struct spw_device *d = device_open(0, 0);
    spw_stream s = stream_open(d, "copies");
    unsigned char *device, *host, any = 0;
    CHECK(ops->alloc(d, BYTES, (void **)&device) == 0);
    CHECK(ops->alloc_host(d, BYTES, (void **)&host) == 0);
    memset(host, 1, BYTES);
    CHECK(ops->copy(d, host, device, BYTES, SPW_LINK_DEVICE_TO_HOST, s) == 0);
    CHECK(ops->stream_sync(d, s) == 0);
    for (int i = 0; i < BYTES; i++)
        any |= host[i];
    CHECK(!any);
    ops->stream_close(d, s);
    ops->free_host(d, host, BYTES);
    ops->free(d, device, BYTES);
    ops->close(d);
}

/* More waits than the table of timed ones holds: the host waits, the sum only grows. */
static void test_many_waits(void)
{
    enum { WAITS = 3000 };
    struct spw_device *d = device_open(0, 0);
    spw_stream load = stream_open(d, "load"), compute = stream_open(d, "compute");
    unsigned char *device, *host;
    CHECK(ops->alloc(d, 4096, (void **)&device) == 0);
    CHECK(ops->alloc_host(d, 4096, (void **)&host) == 0);
    spw_event e = event_open(d);
    double before = 0;
    int rc = 0, grows = 1;
    for (int i = 0; i < WAITS; i++) {
        rc |= ops->copy(d, device, host, 4096, SPW_LINK_HOST_TO_DEVICE, load);
        rc |= ops->event_record(d, e, load);
        rc |= ops->stream_wait(d, compute, e);
        if (i % 500 == 0) {
            double now = ops->waited_seconds(d, compute, SPW_RANGES);
            grows &= now >= before;
            before = now;
        }
    }
    CHECK(rc == 0 && grows);
    CHECK(ops->stream_sync(d, compute) == 0);
    CHECK(ops->waited_seconds(d, compute, SPW_RANGES) >= before);
    CHECK(ops->waited_seconds(d, load, SPW_RANGES) == 0);
    ops->event_close(d, e);
    ops->stream_close(d, load);
    ops->stream_close(d, compute);
    ops->free_host(d, host, 4096);
    ops->free(d, device, 4096);
    ops->close(d);
}

static void test_index(void)
{
    struct spw_device *d;
    struct spw_error err = {0};
    char name[64];
    CHECK(spw_device_cuda_probe(9999, name, sizeof name, &err) == -ENODEV);
    CHECK_MSG(strstr(err.text, "cuda:9999: this machine has"), "%s", err.text);
    CHECK(ops->open(&d, &(struct spw_device_options){.index = 9999}, NULL) == -ENODEV && !d);
    CHECK(spw_device_cuda_probe(0, name, sizeof name, NULL) == 0 && strstr(name, ", sm_"));
    d = device_open(0, 0);
    CHECK(ops->available(d) > 0 && ops->available(d) != UINT64_MAX && ops->workers(d) == 0);
    ops->range_begin(d, "layer", 3);
    ops->range_end(d);
    ops->close(d);
}

#ifdef SPW_SIMT_EMULATOR

/* ---- machines that will not do ---- */

static void refused(struct spw_simt_options o, int code, const char *why)
{
    struct spw_error err = {0};
    struct spw_device *d;
    spw_simt_set(&o);
    CHECK(ops->open(&d, &(struct spw_device_options){.index = 0}, &err) == code && !d);
    CHECK_MSG(strstr(err.text, why) && strstr(err.text, "options.backend c"), "%s", err.text);
    spw_simt_set(NULL);
}

static void test_refusals(void)
{
    refused((struct spw_simt_options){.driver = -1}, -ENOTSUP, "no NVIDIA driver");
    refused((struct spw_simt_options){.driver = 12040}, -ENODEV, "knows CUDA up to 12.4");
    refused((struct spw_simt_options){.n_devices = -1}, -ENODEV, "finds no GPU");
    refused((struct spw_simt_options){.capability = 61}, -ENODEV, "compute capability 6.1");
    refused((struct spw_simt_options){.capability = 86, .code = 209}, -ENODEV,
            "has no code for sm_86");
    refused((struct spw_simt_options){.capability = 120, .code = 222}, -ENODEV,
            "ARCHITECTURES=120");
}

/* ---- what fails later ---- */

static void test_card_is_full(void)
{
    spw_simt_set(&(struct spw_simt_options){.card_bytes = 64 * MIB});
    struct spw_device *d = device_open(0, 0);
    void *p, *q;
    CHECK(ops->alloc(d, 40 * MIB, &p) == 0);
    CHECK(ops->alloc(d, 40 * MIB, &q) == -ENOMEM && !q); /* within the budget, not on the card */
    CHECK(usage(d).device_bytes == 40 * MIB && usage(d).card_bytes >= 40 * MIB);
    spw_simt_others_take(20 * MIB);
    CHECK(ops->available(d) <= 4 * MIB);
    CHECK(ops->alloc(d, 10 * MIB, &q) == -ENOMEM);
    spw_simt_others_take(0);
    CHECK(ops->alloc(d, 10 * MIB, &q) == 0); /* the refusals left nothing behind */
    ops->free(d, q, 10 * MIB);
    ops->free(d, p, 40 * MIB);
    ops->close(d);
    spw_simt_set(NULL);
}

struct late_fill {
    unsigned char *at;
    int bytes;
};

static void fill_late(void *argument)
{
    struct late_fill *f = argument;
    usleep(3000);
    for (int i = 0; i < f->bytes; i++)
        f->at[i] = (unsigned char)(i * 7);
}

/* Any slab may be refused: those before it stay pinned, the copies are right, and it can be asked.
 */
static void test_pinning_refused(void)
{
    enum { SLAB = 4096, SLABS = 5 };
    struct spw_simt_usage u;
    for (int n = 0; n < SLABS; n++) {
        spw_simt_set(NULL);
        struct spw_device_options o = {.device_bytes = MIB, .host_bytes = MIB, .slab_bytes = SLAB};
        struct spw_device *d;
        unsigned char *host, *device;
        CHECK(ops->open(&d, &o, NULL) == 0);
        spw_stream s = stream_open(d, "copies");
        CHECK(ops->alloc(d, SLAB * SLABS, (void **)&device) == 0);
        spw_simt_fail_register_nth(n);
        CHECK(ops->alloc_host(d, SLAB * SLABS, (void **)&host) == 0);
        spw_simt_usage_get(&u);
        CHECK(usage(d).host_pageable && u.registered_bytes == (uint64_t)n * SLAB);
        /* What a host function writes in front of the copy is copied. */
        struct late_fill f = {host, SLAB * SLABS};
        CHECK(ops->host_call(d, fill_late, &f, s) == 0);
        CHECK(ops->copy(d, device, host, SLAB * SLABS, SPW_LINK_HOST_TO_DEVICE, s) == 0);
        CHECK(ops->stream_sync(d, s) == 0);
        memset(host, 0, SLAB * SLABS);
        CHECK(ops->copy(d, host, device, SLAB * SLABS, SPW_LINK_DEVICE_TO_HOST, s) == 0);
        CHECK(ops->stream_sync(d, s) == 0);
        int wrong = 0;
        for (int i = 0; i < SLAB * SLABS; i++)
            wrong += host[i] != (unsigned char)(i * 7);
        CHECK(!wrong);
        ops->stream_close(d, s);
        ops->free_host(d, host, SLAB * SLABS);
        ops->free(d, device, SLAB * SLABS);
        ops->close(d);
    }
    spw_simt_set(NULL);
}

/* Lost at any point: -EIO from then on, from every call, and everything can still be given back. */
static void test_lost(void)
{
    int n, rc = -EIO;
    for (n = 0; rc; n++) {
        spw_simt_set(NULL);
        struct spw_device *d = device_open(0, 0);
        spw_stream s = stream_open(d, "compute"), t = stream_open(d, "t"), none;
        spw_event e = event_open(d), no_event;
        void *p, *q, *h, *back, *no_memory;
        CHECK(ops->alloc(d, MIB, &p) == 0 && ops->alloc_host(d, MIB, &h) == 0);
        CHECK(ops->alloc(d, MIB, &q) == 0 && ops->alloc_host(d, MIB, &back) == 0);
        spw_simt_lose_device_nth(n);
        rc = 0;
        for (int i = 0; i < 5 && !rc; i++) {
            rc = ops->copy(d, p, h, MIB, SPW_LINK_HOST_TO_DEVICE, t);
            rc = rc ? rc : ops->event_record(d, e, t);
            rc = rc ? rc : ops->stream_wait(d, s, e);
            rc = rc ? rc : ops->copy(d, back, q, MIB, SPW_LINK_DEVICE_TO_HOST, s);
        }
        rc = rc ? rc : ops->stream_sync(d, s);
        CHECK(rc == 0 || rc == -EIO);
        if (rc) {
            CHECK(ops->copy(d, p, p, 0, SPW_LINK_DEVICE_TO_DEVICE, t) == -EIO);
            CHECK(ops->host_call(d, count_call, &n, t) == -EIO);
            CHECK(ops->event_record(d, e, t) == -EIO && ops->stream_wait(d, t, e) == -EIO);
            CHECK(ops->event_sync(d, e) == -EIO && ops->stream_sync(d, t) == -EIO);
            CHECK(ops->alloc(d, 1, &no_memory) == -EIO);
            CHECK(ops->alloc_host(d, 1, &no_memory) == -EIO);
            CHECK(ops->stream_open(d, "c", &none) == -EIO && ops->event_open(d, &no_event) == -EIO);
            CHECK(ops->available(d) == 0);
        }
        ops->event_close(d, e);
        ops->stream_close(d, s);
        ops->stream_close(d, t);
        ops->free_host(d, h, MIB);
        ops->free_host(d, back, MIB);
        ops->free(d, p, MIB);
        ops->free(d, q, MIB);
        ops->close(d);
    }
    CHECK_MSG(n == 11, "%d", n); /* each of the copies, and none */
    spw_simt_set(NULL);
}

/* ---- launches ---- */

/* A launch that the card refuses, for memory or else, is the end of the device, not a full tier. */
static void test_launch_refused(void)
{
    spw_simt_set(NULL);
    struct spw_device *d = device_open(0, 0);
    spw_stream s = stream_open(d, "compute");
    uint32_t *in, *out;
    void *more;
    CHECK(ops->alloc(d, BLOCK * 4, (void **)&in) == 0 &&
          ops->alloc(d, BLOCK * 4, (void **)&out) == 0);
    CHECK(launch_step(d, s, in, out, 0) == 0 && ops->stream_sync(d, s) == 0);
    spw_simt_fail_launch_nth(0);
    CHECK(launch_step(d, s, in, out, 0) == -EIO);
    CHECK(ops->stream_sync(d, s) == -EIO && ops->alloc(d, 1, &more) == -EIO);
    CHECK(launch_step(d, s, in, out, 0) == -EIO);
    ops->stream_close(d, s);
    ops->free(d, in, BLOCK * 4);
    ops->free(d, out, BLOCK * 4);
    ops->close(d);
    d = device_open(0, 0); /* a new one is well */
    CHECK(ops->alloc(d, 1, &more) == 0);
    ops->free(d, more, 1);
    ops->close(d);
}

/* Kernels start early unless the device was opened with serial_kernels. */
static void test_serial_kernels(void)
{
    enum { LAUNCHES = 60 };
    for (int serial = 0; serial < 2; serial++) {
        spw_simt_set(NULL);
        struct spw_device_options o = {
            .device_bytes = MIB, .host_bytes = MIB, .serial_kernels = serial};
        struct spw_device *d;
        struct spw_simt_usage u;
        struct late_fill wait = {NULL, 0};
        void *p;
        CHECK(ops->open(&d, &o, NULL) == 0 && ops->alloc(d, BLOCK * 4, &p) == 0);
        spw_stream s = stream_open(d, "compute");
        struct spw_linear_args a = {
            .x = p, .w = p, .bias = p, .y = p, .m = 1, .n = BLOCK, .y_stride = BLOCK};
        a.x_dtype = a.w_dtype = a.y_dtype = SPW_DTYPE_F32;
        CHECK(ops->host_call(d, fill_late, &wait, s) == 0); /* until all are queued */
        for (int i = 0; i < LAUNCHES; i++)
            CHECK(spw_linear_cuda(&a, s) == 0);
        CHECK(ops->stream_sync(d, s) == 0);
        spw_simt_usage_get(&u);
        CHECK_MSG(u.n_kernels == LAUNCHES && (u.n_ahead > 0) == !serial, "%llu",
                  (unsigned long long)u.n_ahead);
        ops->stream_close(d, s);
        ops->free(d, p, BLOCK * 4);
        ops->close(d);
    }
    spw_simt_set(NULL);
}

static void set_delays(uint64_t *random)
{
    spw_simt_set(&(struct spw_simt_options){.seed = check_random(random) | 1, .delay_us = 200});
}

static void test_under_delays(uint64_t *random)
{
    for (int i = 0; i < DELAY_SEEDS; i++) {
        set_delays(random);
        CHECK(run_ring(1, 0, 30, WAIT_NONE) == 0);
    }
#ifndef RACES_ARE_REPORTED
    for (enum ring_wait w = WAIT_NONE + 1; w < RING_WAITS_COUNT; w++) {
        int tries = 0;
        do {
            set_delays(random);
        } while (run_ring(1, 0, 40, w) == 0 && ++tries < 60);
        CHECK_MSG(tries < 60, "leaving out wait %d was not noticed", (int)w);
    }
#endif
    spw_simt_set(NULL);
}

static void test_nothing_left(void)
{
    struct spw_simt_usage u;
    spw_simt_usage_get(&u);
    CHECK(u.device_bytes == 0 && u.registered_bytes == 0 && u.n_streams == 0 && u.n_events == 0);
    CHECK(u.n_blocks == 0 && u.n_registers == 0);
}
#endif

int main(void)
{
    uint64_t random = check_seed();
    struct spw_error err = {0};
    char name[64];
    ops = &spw_device_cuda;
    each = (struct each){.step = launch_step,
                         .expected = step_expected,
                         .step_copies = BLOCK * sizeof(uint32_t),
                         .device_align = 256,
                         .least_allocations = 6};
    if (spw_device_cuda_probe(0, name, sizeof name, &err)) {
        fprintf(stderr, "%s: skipped\n", err.text);
        return CHECK_SKIP;
    }
    test_budgets();
    test_event_meaning();
    test_waited();
    test_full_queue();
    test_counters(&random);
    test_lane();
    test_ring(&random, EACH_RING, 0);
    test_slabs(&random);
    test_pageable_source();
    test_zeroed();
    test_many_waits();
    test_index();
    test_allocation_failures();
#ifdef SPW_SIMT_EMULATOR
    test_refusals();
    test_card_is_full();
    test_pinning_refused();
    test_lost();
    test_launch_refused();
    test_serial_kernels();
    test_under_delays(&random);
    test_nothing_left();
#endif
    return check_done();
}
