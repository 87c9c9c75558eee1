/* The emulator itself. Each fault of the table below is planted in a small kernel or runtime
 * program and run in a process of its own, which must fail and say why; its repaired twin, the same
 * text with the fault taken out, must pass. Faults that only AddressSanitizer sees are planted in
 * its builds alone. */
#include "quant/cuda.cuh"

#include "tests/unit/kernels/ops_cpu_each.h"
#include "tests/cuda/simt_control.h"

#include <sys/wait.h>

#ifdef __SANITIZE_ADDRESS__
static const bool have_asan = true;
#else
static const bool have_asan = false;
#endif

enum { N = 128 };

/* Exit status of a child that computed something wrong. */
enum { WRONG = 3 };

static void expect(bool right)
{
    if (right)
        return;
    fprintf(stderr, "wrong result\n");
    exit(WRONG);
}

static void must(cudaError_t rc)
{
    if (rc == cudaSuccess)
        return;
    fprintf(stderr, "%s\n", cudaGetErrorName(rc));
    exit(WRONG);
}

static void *device(size_t bytes)
{
    void *p;
    must(cudaMalloc(&p, bytes));
    return p;
}

/* ---- planted faults ---- */

__global__ void k_shared_bounds(float *y, int beyond)
{
    spw_grid_wait();
    SPW_SHARED(float, tile, N);
    const float *from = tile; /* UndefinedBehaviorSanitizer would see the index of an array */
    tile[threadIdx.x] = 1;
    __syncthreads();
    y[threadIdx.x] = from[(int)threadIdx.x + beyond];
}

static void shared_bounds(bool planted)
{
    float *y = (float *)device(N * sizeof *y);
    SPW_LAUNCH(k_shared_bounds, 1, N, 0, nullptr, y, planted ? 1 : 0);
    cudaFree(y);
}

__global__ void k_dynamic_bounds(float *y, int beyond)
{
    spw_grid_wait();
    SPW_SHARED_DYNAMIC(float, tile);
    tile[(int)threadIdx.x + beyond] = 1;
    __syncthreads();
    y[threadIdx.x] = tile[threadIdx.x];
}

static void dynamic_bounds(bool planted)
{
    float *y = (float *)device(N * sizeof *y);
    SPW_LAUNCH(k_dynamic_bounds, 1, N, N * sizeof *y, nullptr, y, planted ? 1 : 0);
    cudaFree(y);
}

__global__ void k_fill(float *y, int n, float value)
{
    spw_grid_wait();
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n)
        y[i] = value;
}

static void global_bounds(bool planted)
{
    float *y = (float *)device((N - 1) * sizeof *y);
    SPW_LAUNCH(k_fill, 2, N / 2, 0, nullptr, y, planted ? N : N - 1, 1.0f);
    cudaFree(y);
}

/* y = x backwards, through shared memory. */
__global__ void k_reverse(const float *x, float *y, bool barrier)
{
    spw_grid_wait();
    SPW_SHARED(float, tile, N);
    tile[threadIdx.x] = x[threadIdx.x];
    if (barrier)
        __syncthreads();
    y[threadIdx.x] = tile[N - 1 - threadIdx.x];
}

static void barrier_missing(bool planted)
{
    float x[N], y[N];
    for (int i = 0; i < N; i++)
        x[i] = (float)i;
    SPW_LAUNCH(k_reverse, 1, N, 0, nullptr, x, y, !planted);
    for (int i = 0; i < N; i++)
        expect(y[i] == x[N - 1 - i]);
}

__global__ void k_warp_reverse(float *y, bool barrier)
{
    spw_grid_wait();
    SPW_SHARED(float, tile, 32);
    tile[threadIdx.x] = (float)threadIdx.x;
    if (barrier)
        __syncwarp();
    y[threadIdx.x] = tile[31 - threadIdx.x];
}

static void warp_barrier_missing(bool planted)
{
    float y[32];
    SPW_LAUNCH(k_warp_reverse, 1, 32, 0, nullptr, y, !planted);
    for (int i = 0; i < 32; i++)
        expect(y[i] == (float)(31 - i));
}

/* Two tiles of 16 bytes a thread through a pipeline of one buffer. */
enum copy_fault { COPY_RIGHT, NO_WAIT, NO_COMMIT, NO_BARRIER_BEFORE_REFILL, WAIT_FOR_TOO_FEW };

__global__ void k_copy(const uint4 *x, uint4 *y, enum copy_fault fault)
{
    spw_grid_wait();
    SPW_SHARED(uint4, tile, N);
    for (int round = 0; round < 2; round++) {
        spw_copy16_async(&tile[threadIdx.x], x + round * N + threadIdx.x, true);
        if (fault != NO_COMMIT)
            spw_copy_async_commit();
        if (fault == WAIT_FOR_TOO_FEW)
            spw_copy_async_wait<1>();
        else if (fault != NO_WAIT)
            spw_copy_async_wait<0>();
        __syncthreads();
        y[round * N + threadIdx.x] = tile[N - 1 - threadIdx.x];
        if (fault != NO_BARRIER_BEFORE_REFILL)
            __syncthreads();
    }
}

static void run_copy(enum copy_fault fault)
{
    uint4 *x = (uint4 *)device(2 * N * sizeof *x), *y = (uint4 *)device(2 * N * sizeof *x);
    for (unsigned i = 0; i < 2 * N; i++)
        x[i] = make_uint4(i, 2 * i, 3 * i, 4 * i);
    SPW_LAUNCH(k_copy, 1, N, 0, nullptr, x, y, fault);
    for (unsigned i = 0; i < 2 * N; i++)
        expect(!memcmp(&y[i], &x[i / N * N + N - 1 - i % N], sizeof *y));
    cudaFree(x), cudaFree(y);
}

static void copy_wait_missing(bool planted)
{
    run_copy(planted ? NO_WAIT : COPY_RIGHT);
}

static void copy_wait_too_short(bool planted)
{
    run_copy(planted ? WAIT_FOR_TOO_FEW : COPY_RIGHT);
}

static void copy_commit_missing(bool planted)
{
    run_copy(planted ? NO_COMMIT : COPY_RIGHT);
}

static void refill_barrier_missing(bool planted)
{
    run_copy(planted ? NO_BARRIER_BEFORE_REFILL : COPY_RIGHT);
}

__global__ void k_misaligned(const float *x, float *y, int offset)
{
    spw_grid_wait();
    SPW_SHARED_DYNAMIC(float, tile);
    if (threadIdx.x == 0)
        spw_copy16_async(tile, x + offset, true);
    spw_copy_async_commit();
    spw_copy_async_wait<0>();
    __syncthreads();
    if (threadIdx.x < 4)
        y[threadIdx.x] = tile[threadIdx.x];
}

static void copy_misaligned(bool planted)
{
    float *x = (float *)device(64), *y = (float *)device(64);
    SPW_LAUNCH(k_misaligned, 1, 32, 16, nullptr, x, y, planted ? 1 : 4);
    cudaFree(x), cudaFree(y);
}

__global__ void k_diverge(int first_without, bool leave)
{
    spw_grid_wait();
    if ((int)threadIdx.x >= first_without && leave)
        return;
    if ((int)threadIdx.x < first_without || leave)
        __syncthreads();
    if (!leave)
        __syncwarp();
}

static void barrier_not_by_all(bool planted)
{
    SPW_LAUNCH(k_diverge, 1, N, 0, nullptr, planted ? N / 2 : N, false);
}

static void exit_before_barrier(bool planted)
{
    SPW_LAUNCH(k_diverge, 1, N, 0, nullptr, planted ? N - 1 : N, true);
}

__global__ void k_two_barriers(unsigned first_other)
{
    spw_grid_wait();
    if (threadIdx.x < first_other)
        __syncthreads();
    else
        __syncthreads();
}

static void barriers_differ(bool planted)
{
    SPW_LAUNCH(k_two_barriers, 1, N, 0, nullptr, planted ? 32 : N);
}

__global__ void k_shuffle_some(unsigned lanes, unsigned mask)
{
    spw_grid_wait();
    if (threadIdx.x < lanes)
        __shfl_xor_sync(mask, threadIdx.x, 1);
}

static void shuffle_not_by_all(bool planted)
{
    SPW_LAUNCH(k_shuffle_some, 1, 32, 0, nullptr, 16, planted ? 0xffffffffu : 0xffffu);
}

__global__ void k_shuffle_from(int from)
{
    spw_grid_wait();
    if (threadIdx.x < 16)
        __shfl_sync(0xffffu, threadIdx.x, from);
}

static void shuffle_from_absent(bool planted)
{
    SPW_LAUNCH(k_shuffle_from, 1, 32, 0, nullptr, planted ? 16 : 15);
}

__global__ void k_unwritten(float *y, unsigned written)
{
    spw_grid_wait();
    SPW_SHARED(float, tile, N);
    if (threadIdx.x < written)
        tile[threadIdx.x] = 1;
    __syncthreads();
    y[threadIdx.x] = tile[threadIdx.x];
}

static void shared_unwritten(bool planted)
{
    float y[N];
    SPW_LAUNCH(k_unwritten, 1, N, 0, nullptr, y, planted ? N - 1 : N);
    for (int i = 0; i < N; i++)
        expect(y[i] == 1);
}

/* A copy on one stream, what needs it on another, and back. Fifty rounds of random delays. */
static void between_streams(bool to_kernel, bool to_host)
{
    enum { FLOATS = 4096, ROUNDS = 50 };
    struct spw_simt_options o = {};
    o.seed = check_seed();
    o.delay_us = 300;
    spw_simt_set(&o);
    static float x[FLOATS], z[FLOATS];
    cudaStream_t copies, computes;
    cudaEvent_t copied, computed;
    float *d = (float *)device(sizeof x);
    must(cudaHostRegister(x, sizeof x, 0));
    must(cudaHostRegister(z, sizeof z, 0));
    must(cudaStreamCreateWithFlags(&copies, cudaStreamNonBlocking));
    must(cudaStreamCreateWithFlags(&computes, cudaStreamNonBlocking));
    must(cudaEventCreateWithFlags(&copied, cudaEventDisableTiming));
    must(cudaEventCreateWithFlags(&computed, cudaEventDisableTiming));
    bool right = true;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < FLOATS; i++)
            x[i] = (float)(round + i);
        must(cudaMemcpyAsync(d, x, sizeof x, cudaMemcpyHostToDevice, copies));
        must(cudaEventRecord(copied, copies));
        if (to_kernel)
            must(cudaStreamWaitEvent(computes, copied));
        SPW_LAUNCH(k_fill, 1, 1, 0, computes, d, 1, -1.0f);
        must(cudaEventRecord(computed, computes));
        must(cudaStreamWaitEvent(copies, computed));
        must(cudaMemcpyAsync(z, d, sizeof z, cudaMemcpyDeviceToHost, copies));
        if (to_host)
            must(cudaStreamSynchronize(copies));
        right = right && z[0] == -1 && !memcmp(z + 1, x + 1, sizeof z - sizeof *z);
        must(cudaStreamSynchronize(copies));
    }
    must(cudaStreamDestroy(copies));
    must(cudaStreamDestroy(computes));
    must(cudaEventDestroy(copied));
    must(cudaEventDestroy(computed));
    must(cudaHostUnregister(x));
    must(cudaHostUnregister(z));
    must(cudaFree(d));
    expect(right);
}

static void event_wait_missing(bool planted)
{
    between_streams(!planted, true);
}

static void host_wait_missing(bool planted)
{
    between_streams(true, !planted);
}

/* Pinned memory is read when the copy runs, not when it is queued. */
static void pinned_reused_early(bool planted)
{
    enum { ROUNDS = 50 };
    struct spw_simt_options o = {};
    o.seed = check_seed();
    o.delay_us = 300;
    spw_simt_set(&o);
    static int x[64], y[64];
    cudaStream_t s;
    int *d = (int *)device(sizeof x);
    must(cudaHostRegister(x, sizeof x, 0));
    must(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    bool right = true;
    for (int round = 0; round < ROUNDS; round++) {
        x[0] = round;
        must(cudaMemcpyAsync(d, x, sizeof x, cudaMemcpyHostToDevice, s));
        if (!planted)
            must(cudaStreamSynchronize(s));
        x[0] = -1;
        must(cudaMemcpyAsync(y, d, sizeof y, cudaMemcpyDeviceToHost, s));
        right = right && y[0] == round;
    }
    must(cudaStreamDestroy(s));
    must(cudaHostUnregister(x));
    must(cudaFree(d));
    expect(right);
}

static void call_runtime(void *argument)
{
    if (*(bool *)argument)
        cudaFree(NULL);
}

static void host_function_calls(bool planted)
{
    must(cudaLaunchHostFunc(nullptr, call_runtime, &planted));
}

/* What a real GPU answers with a fault, or reads over the link. */
static void host_argument(bool planted)
{
    static float host[N];
    float *d = (float *)device(sizeof host);
    spw_simt_allow_host_arguments(false);
    SPW_LAUNCH(k_fill, 1, N, 0, nullptr, planted ? host : d, N, 1.0f);
    must(cudaFree(d));
}

static void pinned_argument(bool planted)
{
    static float host[N];
    float *d = (float *)device(sizeof host);
    must(cudaHostRegister(host, sizeof host, 0));
    spw_simt_allow_host_arguments(false);
    SPW_LAUNCH(k_fill, 1, N, 0, nullptr, planted ? host + 5 : d + 5, N - 5, 1.0f);
    must(cudaHostUnregister(host));
    must(cudaFree(d));
}

struct meeting {
    int here, met;
};

/* Waits a little for another that is here at the same time. */
static void meet(void *argument)
{
    struct meeting *m = (struct meeting *)argument;
    __atomic_fetch_add(&m->here, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < 100 && __atomic_load_n(&m->here, __ATOMIC_RELAXED) < 2; i++)
        usleep(100);
    __atomic_fetch_add(&m->met, __atomic_load_n(&m->here, __ATOMIC_RELAXED) > 1, __ATOMIC_RELAXED);
    __atomic_fetch_sub(&m->here, 1, __ATOMIC_RELAXED);
}

/* Host functions of two streams do not overlap: one that waits for another may wait for ever. */
static void test_host_functions_alone(void)
{
    struct meeting m = {};
    cudaStream_t s[2];
    for (int i = 0; i < 2; i++) {
        must(cudaStreamCreateWithFlags(&s[i], cudaStreamNonBlocking));
        must(cudaLaunchHostFunc(s[i], meet, &m));
    }
    must(cudaStreamDestroy(s[0]));
    must(cudaStreamDestroy(s[1]));
    CHECK(m.met == 0);
}

__global__ void k_much_shared(float *y)
{
    spw_grid_wait();
    SPW_SHARED_DYNAMIC(float, dynamic);
    SPW_SHARED(float, fixed, 8192);
    dynamic[threadIdx.x] = fixed[threadIdx.x] = 1;
    y[threadIdx.x] = dynamic[threadIdx.x] + fixed[threadIdx.x];
}

static void shared_too_much(bool planted)
{
    float y[32];
    SPW_LAUNCH(k_much_shared, 1, 32, planted ? 16388 : 16384, nullptr, y);
}

__global__ void k_whole_vector(float *y)
{
    spw_grid_wait();
    SPW_SHARED(float, tile, 4);
    SPW_SHARED(float4, whole, 1);
    tile[0] = tile[1] = tile[2] = tile[3] = whole[0].x = whole[0].w = 1;
    y[0] = (uintptr_t)tile % 16 ? 1 : 2;
    y[1] = (uintptr_t)whole % 16 ? 1 : 2;
}

/* An array of float is not aligned for float4. */
static void vector_of_floats(bool planted)
{
    float y[2];
    SPW_LAUNCH(k_whole_vector, 1, 1, 0, nullptr, y);
    expect(y[planted ? 0 : 1] == 2);
}

/* ---- kernels that overlap ---- */

__global__ void k_return_early(unsigned n)
{
    if (threadIdx.x >= n)
        return;
    spw_grid_wait();
}

static void grid_wait_missing(bool planted)
{
    SPW_LAUNCH(k_return_early, 1, N, 0, nullptr, planted ? N - 1 : N);
}

__global__ void k_next_first(bool first)
{
    if (first)
        spw_grid_next();
    spw_grid_wait();
    spw_grid_next();
}

static void grid_next_too_early(bool planted)
{
    SPW_LAUNCH(k_next_first, 1, 32, 0, nullptr, planted);
}

/* What a kernel does although the one in front of it may not have run. */
enum early { NOTHING, READS, COPIES, WRITES };

/* y = x + 1 */
__global__ void k_step(const int4 *x, int4 *y, enum early early)
{
    SPW_SHARED(int4, before, 1);
    if (early == READS)
        *before = *x;
    if (early == COPIES)
        spw_copy16_async(before, x, true);
    if (early == WRITES)
        y->x = -1;
    spw_copy_async_commit();
    spw_grid_wait();
    spw_grid_next();
    spw_copy_async_wait<0>();
    y->x = (early == READS || early == COPIES ? before->x : x->x) + 1;
}

static void wait_for_flag(void *flag)
{
    while (!__atomic_load_n((bool *)flag, __ATOMIC_ACQUIRE))
        ;
}

/* Steps from one of two cells to the other and back. All are queued before the first one runs, for
 * a kernel that is not there yet cannot run ahead; behind every third an event is recorded. */
static void step_to_and_fro(enum early early)
{
    enum { STEPS = 40 };
    struct spw_simt_options o = {};
    o.seed = check_seed();
    spw_simt_set(&o);
    bool all_queued = false;
    cudaStream_t s;
    cudaEvent_t event;
    int4 *cells = (int4 *)device(2 * sizeof *cells);
    must(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    must(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    must(cudaMemsetAsync(cells, 0, 2 * sizeof *cells, s));
    must(cudaLaunchHostFunc(s, wait_for_flag, &all_queued));
    for (int i = 0; i < STEPS; i++) {
        SPW_LAUNCH(k_step, 1, 1, 0, s, cells + i % 2, cells + (i + 1) % 2, early);
        if (i % 3 == 0)
            must(cudaEventRecord(event, s));
    }
    __atomic_store_n(&all_queued, true, __ATOMIC_RELEASE);
    must(cudaStreamDestroy(s));
    must(cudaEventDestroy(event));
    int reached = cells[STEPS % 2].x;
    must(cudaFree(cells));
    expect(reached == STEPS);
}

static void read_before_grid_wait(bool planted)
{
    step_to_and_fro(planted ? READS : NOTHING);
}

static void copy_before_grid_wait(bool planted)
{
    step_to_and_fro(planted ? COPIES : NOTHING);
}

static void write_before_grid_wait(bool planted)
{
    step_to_and_fro(planted ? WRITES : NOTHING);
}

/* Weights may be read before the wait, if the launch was queued behind their copy's event. */
static void weights_not_waited_for(bool planted)
{
    enum { ROUNDS = 50 };
    struct spw_simt_options o = {};
    o.seed = check_seed();
    o.delay_us = 300;
    spw_simt_set(&o);
    static int4 x[ROUNDS];
    cudaStream_t copies, computes;
    cudaEvent_t copied;
    int4 *w = (int4 *)device(sizeof x), *y = (int4 *)device(sizeof x);
    must(cudaHostRegister(x, sizeof x, 0));
    must(cudaStreamCreateWithFlags(&copies, cudaStreamNonBlocking));
    must(cudaStreamCreateWithFlags(&computes, cudaStreamNonBlocking));
    must(cudaEventCreateWithFlags(&copied, cudaEventDisableTiming));
    for (int i = 0; i < ROUNDS; i++) {
        x[i].x = i;
        must(cudaMemcpyAsync(w + i, x + i, sizeof *x, cudaMemcpyHostToDevice, copies));
        must(cudaEventRecord(copied, copies));
        SPW_LAUNCH(k_fill, 1, 1, 0, computes, (float *)(y + i), 1, 0.0f);
        if (!planted)
            must(cudaStreamWaitEvent(computes, copied));
        SPW_LAUNCH(k_step, 1, 1, 0, computes, w + i, y + i, READS);
        must(cudaStreamSynchronize(copies));
        must(cudaStreamSynchronize(computes)); /* every round is a race of its own */
    }
    must(cudaStreamDestroy(copies));
    must(cudaStreamDestroy(computes));
    must(cudaEventDestroy(copied));
    bool right = true;
    for (int i = 0; i < ROUNDS; i++)
        right = right && y[i].x == i + 1;
    must(cudaHostUnregister(x));
    must(cudaFree(w));
    must(cudaFree(y));
    expect(right);
}

static const struct planted {
    const char *name;
    void (*run)(bool planted);
    const char *says; /* in what the child prints */
    bool asan_only;
} faults[] = {
    {"shared_bounds", shared_bounds, "AddressSanitizer", true},
    {"dynamic_bounds", dynamic_bounds, "AddressSanitizer", true},
    {"global_bounds", global_bounds, "AddressSanitizer", true},
    {"barrier_missing", barrier_missing, "wrong result", false},
    {"warp_barrier_missing", warp_barrier_missing, "wrong result", false},
    {"copy_wait_missing", copy_wait_missing, "has not waited for", false},
    {"copy_wait_too_short", copy_wait_too_short, "has not waited for", false},
    {"copy_commit_missing", copy_commit_missing, "has not waited for", false},
    {"refill_barrier_missing", refill_barrier_missing, "wrong result", false},
    {"copy_misaligned", copy_misaligned, "kernel k_misaligned", false},
    {"barrier_not_by_all", barrier_not_by_all, "64 from thread 0 on wait in __syncthreads", false},
    {"exit_before_barrier", exit_before_barrier, "1 of 128 threads have returned", false},
    {"barriers_differ", barriers_differ, "is at the barrier at", false},
    {"shuffle_not_by_all", shuffle_not_by_all, "16 of 32 threads have returned", false},
    {"shuffle_from_absent", shuffle_from_absent, "which does not take part", false},
    {"shared_unwritten", shared_unwritten, "wrong result", false},
    {"event_wait_missing", event_wait_missing, "wrong result", false},
    {"host_wait_missing", host_wait_missing, "wrong result", false},
    {"pinned_reused_early", pinned_reused_early, "wrong result", false},
    {"host_function_calls", host_function_calls, "a host function calls the runtime", false},
    {"host_argument", host_argument, "points to pageable memory of the host", false},
    {"pinned_argument", pinned_argument, "points to pinned memory of the host", false},
    {"shared_too_much", shared_too_much, "asks for 49168 bytes of shared memory", false},
    {"vector_of_floats", vector_of_floats, "wrong result", false},
    {"grid_wait_missing", grid_wait_missing, "returns without spw_grid_wait()", false},
    {"grid_next_too_early", grid_next_too_early, "before spw_grid_wait() at", false},
    {"read_before_grid_wait", read_before_grid_wait, "wrong result", false},
    {"copy_before_grid_wait", copy_before_grid_wait, "wrong result", false},
    {"write_before_grid_wait", write_before_grid_wait, "wrong result", false},
    {"weights_not_waited_for", weights_not_waited_for, "wrong result", false},
};

/* What the program prints and its exit status, with these arguments. */
static int run_child(const char *name, const char *how, char *text, size_t bytes)
{
    char path[4096], line[5000];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    path[n > 0 ? n : 0] = 0;
    /* no core of an intended abort; ThreadSanitizer sleeps for a second before it exits */
    snprintf(line, sizeof line,
             "ulimit -c 0; TSAN_OPTIONS=\"$TSAN_OPTIONS atexit_sleep_ms=0\" "
             "timeout 60 '%s' %s %s 2>&1",
             path, name, how);
    FILE *f = popen(line, "r");
    size_t got = fread(text, 1, bytes - 1, f);
    text[got] = 0;
    while (fgetc(f) != EOF)
        ;
    int status = pclose(f);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

static void test_planted(void)
{
    static char text[1 << 16];
    for (const struct planted &f : faults) {
        int status = run_child(f.name, "repaired", text, sizeof text);
        CHECK_MSG(status == 0, "%s, repaired: status %d:\n%s", f.name, status, text);
        if (f.asan_only && !have_asan)
            continue;
        status = run_child(f.name, "planted", text, sizeof text);
        CHECK_MSG(status && status != 124 && strstr(text, f.says),
                  "%s, planted: status %d, expected '%s':\n%s", f.name, status, f.says, text);
    }
}

/* ---- what the instructions mean ---- */

enum { LANES = 32, SHUFFLES = 4 };

__global__ void k_shuffles(unsigned *y, int argument, int width)
{
    spw_grid_wait();
    unsigned all = 0xffffffffu, lane = threadIdx.x, value = 100 + lane;
    y[lane] = __shfl_sync(all, value, argument, width);
    y[LANES + lane] = __shfl_up_sync(all, value, argument, width);
    y[2 * LANES + lane] = __shfl_down_sync(all, value, argument, width);
    y[3 * LANES + lane] = (unsigned)__shfl_xor_sync(all, (double)value, argument, width);
}

/* Against the text of the CUDA C++ programming guide, "Warp Shuffle Functions". */
static void test_shuffles(void)
{
    unsigned y[SHUFFLES * LANES];
    for (int width = 1; width <= LANES; width *= 2)
        for (int argument = 0; argument < LANES; argument++) {
            SPW_LAUNCH(k_shuffles, 1, LANES, 0, nullptr, y, argument, width);
            bool right = true;
            for (int lane = 0; lane < LANES; lane++) {
                int group = lane / width, at = lane % width, other = lane ^ argument;
                int from[SHUFFLES] = {group * width + argument % width,
                                      at < argument ? lane : lane - argument,
                                      at + argument >= width ? lane : lane + argument,
                                      other / width > group ? lane : other};
                for (int i = 0; i < SHUFFLES; i++)
                    right = right && y[i * LANES + lane] == 100 + (unsigned)from[i];
            }
            CHECK_MSG(right, "argument %d width %d", argument, width);
        }
}

__global__ void k_votes(unsigned *y, unsigned votes, unsigned low)
{
    spw_grid_wait();
    /* two groups of one warp at the same time */
    unsigned lane = threadIdx.x, mask = low >> lane & 1 ? low : ~low, vote = votes >> lane & 1;
    y[lane] = __ballot_sync(mask, (int)vote);
    y[LANES + lane] = (unsigned)(__any_sync(mask, (int)vote) + 2 * __all_sync(mask, (int)vote));
}

static void test_votes(uint64_t *rng)
{
    unsigned y[2 * LANES];
    for (int i = 0; i < 50; i++) {
        unsigned votes = (unsigned)check_random(rng), low = (unsigned)check_random(rng);
        votes = i % 3 ? votes : i % 2 ? 0 : ~0u;
        low = i ? low : ~0u;
        SPW_LAUNCH(k_votes, 1, LANES, 0, nullptr, y, votes, low);
        bool right = true;
        for (int lane = 0; lane < LANES; lane++) {
            unsigned mask = low >> lane & 1 ? low : ~low;
            unsigned any = (votes & mask) != 0, every = (votes & mask) == mask;
            right = right && y[lane] == (votes & mask) && y[LANES + lane] == any + 2 * every;
        }
        CHECK(right);
    }
}

/* Fragments as quant/cuda.cuh places them. */
__global__ void k_mma(const uint16_t *a, const uint16_t *b, float *d, bool shuffled)
{
    spw_grid_wait();
    int lane = (int)threadIdx.x, g = lane / 4, t = lane % 4;
    uint32_t left[4], right[2];
    float sums[4] = {d[g * 8 + 2 * t], d[g * 8 + 2 * t + 1], d[(g + 8) * 8 + 2 * t],
                     d[(g + 8) * 8 + 2 * t + 1]};
    for (int i = 0; i < 4; i++) {
        const uint16_t *at = a + (g + i % 2 * 8) * 16 + 2 * t + i / 2 * 8;
        left[i] = at[0] | (uint32_t)at[1] << 16;
    }
    for (int i = 0; i < 2; i++) {
        const uint16_t *at = b + (2 * t + i * 8) * 8 + g;
        right[i] = at[0] | (uint32_t)at[8] << 16;
    }
    if (shuffled)
        spw_mma_bf16_shuffled(sums, left, right);
    else
        spw_mma_bf16(sums, left, right);
    for (int i = 0; i < 4; i++)
        d[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = sums[i];
}

/* The emulator's own, and the one for a GPU without the instruction: both are sums in order. */
static void test_mma(uint64_t *rng, bool shuffled)
{
    uint16_t a[16 * 16], b[16 * 8];
    float d[16 * 8], want[16 * 8];
    for (int i = 0; i < 16 * 16; i++)
        each_store(a, (size_t)i, SPW_DTYPE_BF16, each_uniform(rng));
    for (int i = 0; i < 16 * 8; i++) {
        each_store(b, (size_t)i, SPW_DTYPE_BF16, each_uniform(rng));
        want[i] = d[i] = (float)each_uniform(rng);
    }
    for (int i = 0; i < 16 * 8; i++)
        for (int k = 0; k < 16; k++)
            want[i] = fmaf((float)each_load(a, (size_t)(i / 8 * 16 + k), SPW_DTYPE_BF16),
                           (float)each_load(b, (size_t)(k * 8 + i % 8), SPW_DTYPE_BF16), want[i]);
    SPW_LAUNCH(k_mma, 1, LANES, 0, nullptr, a, b, d, shuffled);
    CHECK(!memcmp(d, want, sizeof d));
}

__global__ void k_mma_s8(const int8_t *a, const int8_t *b, int *d, bool short_k)
{
    spw_grid_wait();
    int lane = (int)threadIdx.x, g = lane / 4, t = lane % 4;
    uint32_t left[4], right[2];
    int sums[4];
    for (int i = 0; i < 4; i++) {
        memcpy(&left[i], a + (g + i % 2 * 8) * 32 + 4 * t + i / 2 * 16, 4);
        sums[i] = d[(g + i / 2 * 8) * 8 + 2 * t + i % 2];
    }
    for (int i = 0; i < 2; i++)
        memcpy(&right[i], b + g * 32 + 4 * t + i * 16, 4);
    if (short_k)
        spw_mma_s8_half(sums, left, right[0]);
    else
        spw_mma_s8(sums, left, right);
    for (int i = 0; i < 4; i++)
        d[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = sums[i];
}

static void test_mma_s8(uint64_t *rng, bool short_k)
{
    int8_t a[16 * 32], b[8 * 32]; /* b: column by column */
    int d[16 * 8], want[16 * 8];
    for (int i = 0; i < 16 * 32; i++)
        a[i] = (int8_t)check_random(rng);
    for (int i = 0; i < 8 * 32; i++)
        b[i] = (int8_t)check_random(rng);
    for (int i = 0; i < 16 * 8; i++) {
        want[i] = d[i] = (int)check_range(rng, 0, 1 << 24);
        for (int k = 0; k < (short_k ? 16 : 32); k++)
            want[i] += a[i / 8 * 32 + k] * b[i % 8 * 32 + k];
    }
    SPW_LAUNCH(k_mma_s8, 1, LANES, 0, nullptr, a, b, d, short_k);
    CHECK(!memcmp(d, want, sizeof d));
}

/* Every f16 there is, and roundings of drawn f32. */
static void test_half(uint64_t *rng)
{
    bool right = true;
    for (unsigned i = 0; i < 1u << 16; i++) {
        uint16_t bits = (uint16_t)i;
        double want = each_load(&bits, 0, SPW_DTYPE_F16), got = (double)spw_device_f16(bits);
        right = right && (isnan(want) ? isnan(got) : got == want);
        right = right && (isnan(want) || spw_device_to_f16((float)want) == bits);
    }
    CHECK(right);
    for (int i = 0; i < 100000; i++) {
        uint16_t want;
        float x = (float)ldexp(each_uniform(rng), (int)check_range(rng, 0, 44) - 26);
        each_store(&want, 0, SPW_DTYPE_F16, (double)x);
        right = right && spw_device_to_f16(x) == want;
    }
    CHECK(right);
    CHECK(isnan(spw_device_f16(spw_device_to_f16(NAN))));
}

/* ---- indices and orders ---- */

__global__ void k_indices(int *y, unsigned *turn)
{
    spw_grid_wait();
    unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    unsigned i = block * blockDim.x * blockDim.y * blockDim.z + thread;
    y[i] = (int)atomicAdd(turn, 1u);
}

static const dim3 grid(3, 2, 2), block(5, 3, 4);
enum { ALL = 3 * 2 * 2 * 5 * 3 * 4 };

static void draw_turns(uint64_t seed, int *turns)
{
    unsigned turn = 0;
    struct spw_simt_options o = {};
    o.seed = seed;
    spw_simt_set(&o);
    SPW_LAUNCH(k_indices, grid, block, 0, nullptr, turns, &turn);
    CHECK(turn == ALL);
}

/* Every thread runs once, in an order that the seed decides. */
static void test_indices(void)
{
    int first[ALL], again[ALL], other[ALL], seen[ALL] = {};
    draw_turns(1, first);
    draw_turns(1, again);
    draw_turns(2, other);
    CHECK(!memcmp(first, again, sizeof first));
    CHECK(memcmp(first, other, sizeof first));
    for (int i = 0; i < ALL; i++)
        seen[first[i]]++;
    for (int i = 0; i < ALL; i++)
        CHECK(seen[i] == 1);
}

/* Blocks of barriers on several streams at the same time. */
static void test_side_by_side(void)
{
    enum { STREAMS = 3, ROUNDS = 30 };
    float x[N], y[STREAMS][N];
    cudaStream_t streams[STREAMS];
    for (int i = 0; i < N; i++)
        x[i] = (float)i;
    for (int i = 0; i < STREAMS; i++)
        must(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < STREAMS; i++)
            SPW_LAUNCH(k_reverse, 5, N, 0, streams[i], x, y[i], true);
    for (int i = 0; i < STREAMS; i++) {
        must(cudaStreamDestroy(streams[i]));
        bool right = true;
        for (int j = 0; j < N; j++)
            right = right && y[i][j] == x[N - 1 - j];
        CHECK(right);
    }
}

int main(int argc, char **argv)
{
    spw_simt_allow_host_arguments(true);
    if (argc == 3) {
        for (const struct planted &f : faults)
            if (!strcmp(f.name, argv[1])) {
                f.run(!strcmp(argv[2], "planted"));
                must(cudaGetLastError());
                return 0;
            }
        return 2;
    }
    uint64_t rng = check_seed();
    test_planted();
    test_shuffles();
    test_votes(&rng);
    for (int i = 0; i < 20; i++)
        test_mma(&rng, false);
    test_mma(&rng, true);
    test_mma_s8(&rng, false);
    test_mma_s8(&rng, true);
    test_half(&rng);
    test_indices();
    test_side_by_side();
    test_host_functions_alone();
    return check_done();
}
