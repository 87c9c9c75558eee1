/* The CPU device: budgets, copies and kernels ordered by events under random delays, counters,
 * failure. Some tests leave a wait out on purpose and expect wrong data. */
#include "offload/device/copy_cpu.h"
#include "tests/unit/offload/device_each.h"

/* --- memory --- */

/* Memory that is used in place counts like memory from alloc and alloc_host. */
static void test_charge(void)
{
    struct spw_device_options o = {
        .device_bytes = 5 * 4096 + 100, .host_bytes = 2 * 4096, .threads = 1};
    struct spw_device *d;
    void *p;
    CHECK(ops->open(&d, &o, NULL) == 0 && ops->alloc(d, 4 * 4096, &p) == 0);
    CHECK(ops->charge(d, 4096 + 1, 0) == -ENOMEM && ops->charge(d, UINT64_MAX, 0) == -ENOMEM);
    CHECK(ops->charge(d, 10, 3 * 4096) == -ENOMEM && usage(d).device_bytes == 4 * 4096);
    CHECK(ops->charge(d, 10, 4097) == 0 && usage(d).device_bytes == 5 * 4096);
    CHECK(usage(d).host_bytes == 2 * 4096);
    ops->free(d, p, 4 * 4096);
    CHECK(ops->alloc(d, 4 * 4096 + 1, &p) == -ENOMEM);
    ops->discharge(d, 10, 4097);
    CHECK(usage(d).host_bytes == 0 && usage(d).host_peak_bytes == 2 * 4096);
    CHECK(usage(d).device_bytes == 0 && usage(d).device_peak_bytes == 5 * 4096);
    ops->close(d);
}

static void test_big_copy(uint64_t *random)
{
    size_t most = 20 * MIB;
    unsigned char *from = malloc(most), *to = malloc(most), *expected = malloc(most);
    for (size_t i = 0; i < most; i++)
        from[i] = (unsigned char)(i * 2654435761u >> 13);
    for (int i = 0; i < 12; i++) {
        size_t a = check_range(random, 0, 200), b = check_range(random, 0, 200);
        size_t bytes = i < 6 ? check_range(random, 11 * MIB, 19 * MIB) : check_range(random, 0, 99);
        memset(to, 7, most);
        memset(expected, 7, most);
        memcpy(expected + b, from + a, bytes);
        spw_copy_cpu(to + b, from + a, bytes);
        CHECK(!memcmp(to, expected, most));
    }
    free(from);
    free(to);
    free(expected);
}

/* --- kernels --- */

struct cover {
    _Atomic unsigned *runs; /* [tasks] */
    _Atomic int *busy;      /* [workers] */
    _Atomic int *wrong;
    size_t tasks;
    unsigned workers, work;
};

static size_t cover_tasks(const void *args)
{
    return ((const struct cover *)args)->tasks;
}

static void cover_run(const void *args, size_t task, unsigned worker)
{
    const struct cover *c = args;
    if (worker >= c->workers || task >= c->tasks) {
        atomic_fetch_add(c->wrong, 1);
        return;
    }
    if (atomic_exchange(&c->busy[worker], 1)) /* scratch of a worker has one user at a time */
        atomic_fetch_add(c->wrong, 1);
    for (volatile unsigned i = 0; i < c->work; i++)
        ;
    atomic_fetch_add(&c->runs[task], 1);
    atomic_store(&c->busy[worker], 0);
}

static const struct spw_kernel cover_kernel = {"cover", cover_tasks, cover_run};

/* Two streams launch at the same time; each task of each launch runs once. */
static void test_kernels(int threads)
{
    enum { LAUNCHES = 400, MOST = 300 };
    static _Atomic unsigned runs[MOST];
    static _Atomic int busy[64], wrong;
    memset(runs, 0, sizeof runs);
    struct spw_device *d = device_open(threads, 0);
    CHECK(spw_device_cpu_threads(d) == (unsigned)threads);
    spw_stream s[2] = {stream_open(d, "one"), stream_open(d, "two")};
    unsigned expected[MOST] = {0};
    for (unsigned i = 0; i < LAUNCHES; i++) {
        struct cover c = {runs, busy, &wrong, (size_t)i % MOST, (unsigned)threads, i % 7 * 100};
        CHECK(spw_device_cpu_launch(d, s[i % 2], &cover_kernel, &c, sizeof c) == 0);
        for (size_t t = 0; t < c.tasks; t++)
            expected[t]++;
    }
    CHECK(ops->stream_sync(d, s[0]) == 0 && ops->stream_sync(d, s[1]) == 0);
    int bad = 0;
    for (size_t t = 0; t < MOST; t++)
        bad += runs[t] != expected[t];
    CHECK(bad == 0 && wrong == 0);
    char args[SPW_CPU_ARGS_BYTES + 1] = {0};
    CHECK(spw_device_cpu_launch(d, s[0], &cover_kernel, args, sizeof args) == -EINVAL);
    ops->stream_close(d, s[0]);
    ops->stream_close(d, s[1]);
    ops->close(d);
}

/* --- events --- */

/* One step of the ring below: reads a slot, writes another, one quarter a task. */
enum { QUARTER = BLOCK / 4 };

struct step {
    const uint32_t *in; /* [BLOCK] */
    uint32_t *out;      /* [BLOCK] */
    uint32_t add;
};

static size_t step_tasks(const void *args)
{
    (void)args;
    return 4;
}

static void step_run(const void *args, size_t task, unsigned worker)
{
    (void)worker;
    const struct step *s = args;
    for (size_t i = task * QUARTER; i < (task + 1) * QUARTER; i++)
        s->out[i] = s->in[i] * 3 + s->add;
}

static const struct spw_kernel step_kernel = {"step", step_tasks, step_run};

static int launch_step(struct spw_device *d, spw_stream s, const uint32_t *in, uint32_t *out,
                       uint32_t add)
{
    struct step a = {in, out, add};
    return spw_device_cpu_launch(d, s, &step_kernel, &a, sizeof a);
}

static uint32_t step_expected(uint32_t word, uint32_t add)
{
    return word * 3 + add;
}

/* --- failure --- */

static void test_failed_device(void)
{
    struct spw_device *d = device_open(2, 0);
    spw_stream a = stream_open(d, "a"), b = stream_open(d, "b"), none;
    spw_event e = event_open(d), no_event;
    void *p, *no_memory;
    CHECK(ops->alloc(d, 100, &p) == 0);
    _Atomic int calls = 0;
    CHECK(ops->stream_sync(d, a) == 0);
    spw_device_cpu_fail_nth(d, 2);
    for (int i = 0; i < 6; i++) /* queueing continues until the failure is seen */
        ops->host_call(d, count_call, (void *)&calls, a);
    ops->event_record(d, e, a);
    CHECK(ops->stream_sync(d, a) == -EIO && calls == 2);
    CHECK(ops->host_call(d, count_call, (void *)&calls, b) == -EIO);
    CHECK(ops->copy(d, p, p, 0, SPW_LINK_DEVICE_TO_DEVICE, b) == -EIO);
    CHECK(spw_device_cpu_launch(d, b, &step_kernel, &calls, sizeof calls) == -EIO);
    CHECK(ops->event_record(d, e, b) == -EIO && ops->stream_wait(d, b, e) == -EIO);
    CHECK(ops->event_sync(d, e) == -EIO && ops->stream_sync(d, b) == -EIO);
    CHECK(ops->alloc(d, 1, &no_memory) == -EIO && ops->alloc_host(d, 1, &no_memory) == -EIO);
    CHECK(ops->stream_open(d, "c", &none) == -EIO && ops->event_open(d, &no_event) == -EIO);
    CHECK(calls == 2);
    ops->event_close(d, e);
    ops->stream_close(d, a);
    ops->stream_close(d, b);
    ops->free(d, p, 100);
    ops->close(d);
}

static void test_opens(void)
{
    struct spw_device *d;
    struct spw_error err = {0};
    CHECK(ops->open(&d, &(struct spw_device_options){.threads = -1}, &err) == -EINVAL && !d);
    CHECK(strstr(err.text, "threads"));
    for (int i = 0; i < 100; i++)
        CHECK(take_and_give() == 0);
    d = device_open(0, 0);
    CHECK(spw_device_cpu_threads(d) >= 1);
    ops->close(d);
    d = device_open(2, 0);
    for (int i = 0; i < 300;
         i++) { /* a device that opens and closes streams for ever needs memory for two */
        spw_stream a = stream_open(d, "a"), b = stream_open(d, "b");
        ops->stream_close(d, a);
        ops->stream_close(d, b);
    }
    CHECK(spw_alloc_outstanding() < 20);
    ops->close(d);
    CHECK(spw_alloc_outstanding() == 0);
}

/* ---- the streams of a lane ---- */

static int opens_left, streams_open; /* before opening one fails; open now */

/* The stream is its name. */
static int open_named(struct spw_device *d, const char *name, spw_stream *out)
{
    (void)d;
    if (!opens_left--)
        return -EAGAIN;
    streams_open++;
    *out = (spw_stream)(uintptr_t)name;
    return 0;
}

static void close_named(struct spw_device *d, spw_stream s)
{
    (void)d;
    CHECK(s);
    streams_open--;
}

static int sync_named(struct spw_device *d, spw_stream s)
{
    (void)d;
    opens_left++;
    return !strcmp((const char *)s, "kv-up") ? -EIO : !strcmp((const char *)s, "disk") ? -EBADF : 0;
}

/* Every stream has the name of its member. All are opened, or none. All are waited for, and the
 * first failure is returned. */
static void test_lane_streams(void)
{
    const struct spw_device_ops named = {
        .stream_open = open_named, .stream_close = close_named, .stream_sync = sync_named};
    struct spw_lane l = {.ops = &named};
    for (int n = 0; n < SPW_LANE_STREAMS; n++) {
        opens_left = n;
        CHECK(spw_lane_open_streams(&l) == -EAGAIN && !streams_open);
        for (int i = 0; i < SPW_LANE_STREAMS; i++)
            CHECK(!l.streams[i]);
    }
    opens_left = SPW_LANE_STREAMS;
    CHECK(spw_lane_open_streams(&l) == 0 && streams_open == SPW_LANE_STREAMS && !opens_left);
    CHECK(!strcmp((const char *)l.compute, "compute") && !strcmp((const char *)l.kv_up, "kv-up") &&
          !strcmp((const char *)l.weights_up, "weights-up") &&
          !strcmp((const char *)l.hidden_up, "hidden-up") &&
          !strcmp((const char *)l.down, "down") && !strcmp((const char *)l.disk, "disk"));
    CHECK(spw_lane_sync_all(&l) == -EIO && opens_left == SPW_LANE_STREAMS);
    spw_lane_close_streams(&l);
    spw_lane_close_streams(&l); /* has nothing to do */
    CHECK(!streams_open);
}

int main(void)
{
    uint64_t random = check_seed();
    ops = &spw_device_cpu;
    each = (struct each){.step = launch_step,
                         .expected = step_expected,
                         .device_align = 4096,
                         .least_allocations = 10,
                         .host_can_touch = true};
    test_budgets();
    test_charge();
    test_big_copy(&random);
    test_kernels(1);
    test_kernels(2);
    test_kernels(7);
    test_event_meaning();
    test_waited();
    test_full_queue();
    test_counters(&random);
    test_ring(&random, 5000, 60);
    test_missing_waits(&random);
    test_lane();
    test_lane_streams();
    test_failed_device();
    test_allocation_failures();
    test_opens();
    return check_done();
}
