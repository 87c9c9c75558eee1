/* The emulator itself. Each fault of the table below is planted in a small kernel or runtime
 * program and run in a process of its own, which must fail and say why; its repaired twin, the same
 * text with the fault taken out, must pass. Faults that only AddressSanitizer sees are planted in
 * its builds alone. */
#include "quant/cuda.cuh"

#include "tests/check.h"
#include "tests/simt_control.h"

#include <stdlib.h>
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
    if (threadIdx.x < lanes)
        __shfl_xor_sync(mask, threadIdx.x, 1);
}

static void shuffle_not_by_all(bool planted)
{
    SPW_LAUNCH(k_shuffle_some, 1, 32, 0, nullptr, 16, planted ? 0xffffffffu : 0xffffu);
}

__global__ void k_shuffle_from(int from)
{
    if (threadIdx.x < 16)
        __shfl_sync(0xffffu, threadIdx.x, from);
}

static void shuffle_from_absent(bool planted)
{
    SPW_LAUNCH(k_shuffle_from, 1, 32, 0, nullptr, planted ? 16 : 15);
}

__global__ void k_unwritten(float *y, unsigned written)
{
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
};

/* What the program prints and its exit status, with these arguments. */
static int run_child(const char *name, const char *how, char *text, size_t bytes)
{
    char path[4096], line[5000];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    path[n > 0 ? n : 0] = 0;
    snprintf(line, sizeof line, "timeout 60 '%s' %s %s 2>&1", path, name, how);
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

int main(int argc, char **argv)
{
    if (argc == 3) {
        for (const struct planted &f : faults)
            if (!strcmp(f.name, argv[1])) {
                f.run(!strcmp(argv[2], "planted"));
                must(cudaGetLastError());
                return 0;
            }
        return 2;
    }
    test_planted();
    return check_done();
}
