/* The emulated driver: memory, copies, events, failures, each as the CUDA runtime API documents it.
 */
#include "quant/cuda.cuh"

#include "tests/check.h"
#include "tests/cuda/simt_control.h"

enum { FLOATS = 1024, BYTES = FLOATS * sizeof(float) };

static float x[FLOATS], y[FLOATS];

static struct spw_simt_usage usage(void)
{
    struct spw_simt_usage u;
    spw_simt_usage_get(&u);
    return u;
}

static void set(struct spw_simt_options o)
{
    spw_simt_set(&o);
}

static cudaStream_t stream(void)
{
    cudaStream_t s = NULL;
    CHECK(!cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    return s;
}

static cudaEvent_t event(void)
{
    cudaEvent_t e = NULL;
    CHECK(!cudaEventCreateWithFlags(&e, cudaEventDefault));
    return e;
}

__global__ void k_fill(float *p, float value)
{
    spw_grid_wait();
    p[blockIdx.x * blockDim.x + threadIdx.x] = value;
}

/* The failure of a call is also the thread's last error, once. */
#define CHECK_FAILS(call, rc)                                                                      \
    do {                                                                                           \
        CHECK((call) == (rc));                                                                     \
        CHECK(cudaPeekAtLastError() == (rc) && cudaGetLastError() == (rc));                        \
        CHECK(cudaGetLastError() == cudaSuccess);                                                  \
    } while (0)

/* ---- memory ---- */

static void test_memory(void)
{
    struct spw_simt_options o = {};
    o.card_bytes = 1 << 20;
    set(o);
    size_t available, total;
    float *a, *b;
    CHECK(!cudaMalloc(&a, 1000) && !((uintptr_t)a % 256));
    CHECK(!cudaMemGetInfo(&available, &total));
    CHECK(total == 1 << 20 && available == total - 1024); /* taken by 512 bytes */
    CHECK_FAILS(cudaMalloc(&b, available + 1), cudaErrorMemoryAllocation);
    CHECK(!cudaMalloc(&b, available));
    CHECK(!cudaMemcpy(y, a, 1000, cudaMemcpyDeviceToHost) && isnan(y[0]) && isnan(y[249]));
    CHECK_FAILS(cudaFree(b + 1), cudaErrorInvalidValue);
    CHECK(!cudaFree(b) && !cudaFree(NULL));
    spw_simt_others_take(total - 2048);
    CHECK(!cudaMemGetInfo(&available, &total) && available == 1024);
    CHECK_FAILS(cudaMalloc(&b, 1025), cudaErrorMemoryAllocation);
    spw_simt_fail_alloc_nth(1);
    CHECK(!cudaMalloc(&b, 100));
    CHECK(!cudaFree(b));
    CHECK_FAILS(cudaMalloc(&b, 100), cudaErrorMemoryAllocation);
    CHECK(!cudaMalloc(&b, 100));
    CHECK(!cudaFree(b) && !cudaFree(a));
    CHECK(usage().device_bytes == 0 && usage().device_peak_bytes == 1 << 20);
}

static void test_register(void)
{
    set({});
    CHECK(!cudaHostRegister(x, BYTES, cudaHostRegisterDefault));
    CHECK(usage().registered_bytes == BYTES);
    CHECK_FAILS(cudaHostRegister(x + 5, 8, 0), cudaErrorHostMemoryAlreadyRegistered);
    CHECK_FAILS(cudaHostUnregister(x + 5), cudaErrorHostMemoryNotRegistered);
    CHECK(!cudaHostUnregister(x));
    CHECK_FAILS(cudaHostUnregister(x), cudaErrorHostMemoryNotRegistered);
    spw_simt_fail_register_nth(0);
    CHECK_FAILS(cudaHostRegister(x, BYTES, 0), cudaErrorMemoryAllocation);
    CHECK(usage().n_registers == 0);
}

/* ---- copies ---- */

static void test_places(void)
{
    set({});
    float *d;
    CHECK(!cudaMalloc(&d, BYTES));
    CHECK_FAILS(cudaMemcpyAsync(d, x, BYTES + 1, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    CHECK_FAILS(cudaMemcpyAsync(d, x, BYTES, cudaMemcpyDeviceToDevice), cudaErrorInvalidValue);
    CHECK_FAILS(cudaMemcpyAsync(x, d, BYTES, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    CHECK_FAILS(cudaMemcpyAsync(x, d, BYTES, cudaMemcpyHostToHost), cudaErrorInvalidValue);
    CHECK_FAILS(cudaMemsetAsync(x, 0, BYTES), cudaErrorInvalidValue);
    /* half of x is pinned: neither pinned nor pageable */
    CHECK(!cudaHostRegister(x, BYTES / 2, 0));
    CHECK_FAILS(cudaMemcpyAsync(d, x, BYTES, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    CHECK(!cudaMemcpyAsync(d, x, BYTES / 2, cudaMemcpyHostToDevice));
    CHECK(!cudaMemcpyAsync(d, x + FLOATS / 2, BYTES / 2, cudaMemcpyDefault));
    CHECK(!cudaHostUnregister(x) && !cudaFree(d));
}

/* A host function that lets go when the test says so. */
struct gate {
    bool open, passed;
};

static void pass(void *argument)
{
    struct gate *g = (struct gate *)argument;
    while (!__atomic_load_n(&g->open, __ATOMIC_ACQUIRE))
        usleep(100);
    __atomic_store_n(&g->passed, true, __ATOMIC_RELEASE);
}

static void open_gate(struct gate *g)
{
    __atomic_store_n(&g->open, true, __ATOMIC_RELEASE);
}

/* To the device pageable memory is read before the call returns, even though the stream is held up;
 * from the device it is written by then. */
static void test_pageable(void)
{
    set({});
    struct gate g = {};
    float *d;
    cudaStream_t s = stream();
    CHECK(!cudaMalloc(&d, BYTES));
    for (int i = 0; i < FLOATS; i++)
        x[i] = (float)i;
    CHECK(!cudaLaunchHostFunc(s, pass, &g));
    CHECK(!cudaMemcpyAsync(d, x, BYTES, cudaMemcpyHostToDevice, s));
    CHECK_FAILS(cudaStreamQuery(s), cudaErrorNotReady);
    x[0] = -1;
    open_gate(&g);
    CHECK(!cudaMemcpyAsync(y, d, BYTES, cudaMemcpyDeviceToHost, s));
    CHECK(y[0] == 0 && y[FLOATS - 1] == FLOATS - 1);
    CHECK(!cudaMemsetAsync(d, 0, BYTES, s) && !cudaStreamSynchronize(s));
    CHECK(!cudaStreamQuery(s));
    CHECK(!cudaMemcpy(y, d, BYTES, cudaMemcpyDefault) && y[1] == 0);
    CHECK(!cudaStreamDestroy(s) && !cudaFree(d));
    CHECK(usage().n_copies == 3);
}

/* ---- events ---- */

static void test_events(void)
{
    set({});
    struct gate g = {};
    cudaStream_t a = stream(), b = stream();
    cudaEvent_t e = event(), later = event();
    float ms;
    CHECK(!cudaEventQuery(e) && !cudaEventSynchronize(e) && !cudaStreamWaitEvent(b, e));
    CHECK_FAILS(cudaEventElapsedTime(&ms, e, later), cudaErrorInvalidResourceHandle);
    /* a wait means the record that was the latest when it was called */
    CHECK(!cudaEventRecord(e, a) && !cudaStreamWaitEvent(b, e));
    CHECK(!cudaLaunchHostFunc(a, pass, &g) && !cudaEventRecord(later, a));
    CHECK(!cudaEventRecord(e, a));
    CHECK(!cudaStreamSynchronize(b)); /* the gate is shut: anything else would hang here */
    CHECK_FAILS(cudaEventQuery(e), cudaErrorNotReady);
    CHECK_FAILS(cudaEventElapsedTime(&ms, later, e), cudaErrorNotReady);
    CHECK(!cudaStreamWaitEvent(b, e));
    CHECK_FAILS(cudaStreamQuery(b), cudaErrorNotReady);
    CHECK(!cudaEventDestroy(e)); /* what waits for it goes on waiting */
    usleep(2000);
    CHECK_FAILS(cudaStreamQuery(b), cudaErrorNotReady);
    open_gate(&g);
    CHECK(!cudaStreamSynchronize(b) && __atomic_load_n(&g.passed, __ATOMIC_ACQUIRE));
    CHECK(!cudaEventSynchronize(later) && !cudaEventQuery(later));
    e = event();
    CHECK(!cudaEventRecord(e, a) && !cudaEventSynchronize(e));
    CHECK(!cudaEventElapsedTime(&ms, later, e) && ms >= 0);
    CHECK(!cudaEventDestroy(e) && !cudaEventDestroy(later));
    CHECK(!cudaStreamDestroy(a) && !cudaStreamDestroy(b));
    CHECK(usage().n_events == 0 && usage().n_streams == 0);
}

/* ---- failures ---- */

/* The third command finds the device gone; everything after it answers so, and what was taken can
 * still be given back. */
static void test_lost(void)
{
    set({});
    struct gate g = {};
    const cudaError_t lost = cudaErrorLaunchFailure;
    float *d;
    cudaStream_t s = stream();
    cudaEvent_t e = event();
    CHECK(!cudaMalloc(&d, BYTES) && !cudaHostRegister(y, BYTES, 0));
    g.open = true;
    spw_simt_lose_device_nth(2);
    SPW_LAUNCH(k_fill, 1, FLOATS, 0, s, d, 1.0f);
    CHECK(!spw_cuda_launched());
    CHECK(!cudaMemcpyAsync(y, d, BYTES, cudaMemcpyDeviceToHost, s));
    SPW_LAUNCH(k_fill, 1, FLOATS, 0, s, d, 2.0f);
    cudaLaunchHostFunc(s, pass, &g);
    cudaEventRecord(e, s);
    CHECK(cudaStreamSynchronize(s) == lost);
    CHECK(cudaGetLastError() == lost && cudaGetLastError() == lost && spw_cuda_launched() == -EIO);
    SPW_LAUNCH(k_fill, 1, FLOATS, 0, s, d, 3.0f);
    CHECK(spw_cuda_launched() == -EIO);
    CHECK(cudaEventSynchronize(e) == lost && cudaEventQuery(e) == lost);
    CHECK(cudaMemcpyAsync(y, d, BYTES, cudaMemcpyDeviceToHost, s) == lost);
    CHECK(!g.passed && y[0] == 1 && usage().n_kernels == 1 && usage().n_copies == 1);
    CHECK(cudaEventDestroy(e) == lost && cudaStreamDestroy(s) == lost);
    CHECK(cudaHostUnregister(y) == lost && cudaFree(d) == lost);
    struct spw_simt_usage u = usage();
    CHECK(!u.device_bytes && !u.registered_bytes && !u.n_streams && !u.n_events && !u.n_blocks);
}

static void test_no_device(void)
{
    struct spw_simt_options o = {};
    int n = 7, version;
    void *p;
    o.driver = -1;
    set(o);
    CHECK_FAILS(cudaGetDeviceCount(&n), cudaErrorInsufficientDriver);
    CHECK(n == 0 && !cudaDriverGetVersion(&version) && version == 0);
    o.driver = CUDART_VERSION - 1000;
    set(o);
    CHECK_FAILS(cudaGetDeviceCount(&n), cudaErrorInsufficientDriver);
    o.driver = 0;
    o.n_devices = -1;
    set(o);
    CHECK_FAILS(cudaGetDeviceCount(&n), cudaErrorNoDevice);
    CHECK_FAILS(cudaMalloc(&p, 1), cudaErrorNoDevice);
    o.n_devices = 2;
    o.capability = 75;
    set(o);
    CHECK(!cudaGetDeviceCount(&n) && n == 2);
    CHECK(!cudaSetDevice(1) && !cudaGetDevice(&n) && n == 1);
    CHECK_FAILS(cudaSetDevice(2), cudaErrorInvalidDevice);
    cudaDeviceProp prop;
    CHECK(!cudaGetDeviceProperties(&prop, 1) && prop.major == 7 && prop.minor == 5);
    CHECK(!cudaSetDevice(0));
}

/* A kernel that is not for this GPU shows when it is asked about, or else when it is launched. */
static void test_no_code(void)
{
    struct spw_simt_options o = {};
    cudaFuncAttributes a;
    set(o);
    CHECK(!cudaFuncGetAttributes(&a, k_fill) && a.maxDynamicSharedSizeBytes == 48 << 10);
    o.code = cudaErrorNoKernelImageForDevice;
    set(o);
    CHECK_FAILS(cudaFuncGetAttributes(&a, k_fill), cudaErrorNoKernelImageForDevice);
    SPW_LAUNCH(k_fill, 1, 32, 0, nullptr, x, 1.0f);
    CHECK(spw_cuda_launched() == -EIO && usage().n_kernels == 0);
    set({});
}

__global__ void k_dynamic(float *p, int at)
{
    spw_grid_wait();
    SPW_SHARED_DYNAMIC(float, tile);
    tile[at] = 1;
    *p = tile[at];
}

/* More than 48 KiB of shared memory must be asked for, and the card decides how much there is.
 * SPW_LAUNCH asks; a refusal shows once, in the launch that needed it. */
static void test_launch_limits(void)
{
    struct spw_simt_options o = {};
    o.capability = 75;
    set(o);
    float value = 0;
    SPW_LAUNCH(k_fill, 1, 1025, 0, nullptr, x, 1.0f);
    CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration);
    SPW_LAUNCH(k_fill, 0, 32, 0, nullptr, x, 1.0f);
    CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration);
    SPW_LAUNCH(k_fill, dim3(1, 65536), 32, 0, nullptr, x, 1.0f);
    CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration && spw_cuda_launched() == 0);
    const int more = 64 << 10;
    SPW_SIMT_LAUNCH(k_dynamic, 1, 1, more, nullptr, true, &value, more / 4 - 1);
    CHECK(cudaGetLastError() == cudaErrorInvalidValue && value == 0);
    SPW_LAUNCH(k_dynamic, 1, 1, more + 1, nullptr, &value, 0);
    CHECK(spw_cuda_launched() == -EIO && value == 0);
    SPW_LAUNCH(k_dynamic, 1, 1, more / 2, nullptr, &value, 0);
    CHECK(spw_cuda_launched() == 0 && value == 1);
    value = 0;
    const cudaFuncAttribute most = cudaFuncAttributeMaxDynamicSharedMemorySize;
    CHECK_FAILS(cudaFuncSetAttribute(k_dynamic, most, more + 1), cudaErrorInvalidValue);
    CHECK(spw_cuda_result(cudaErrorInvalidValue) == -EIO && cudaGetLastError() == cudaSuccess);
    const int sizes[] = {more, more / 2, more, 48 << 10};
    for (int bytes : sizes) {
        value = 0;
        SPW_LAUNCH(k_dynamic, 1, 1, bytes, nullptr, &value, bytes / 4 - 1);
        CHECK(!cudaGetLastError() && value == 1);
    }
}

int main(void)
{
    spw_simt_allow_host_arguments(true);
    test_memory();
    test_register();
    test_places();
    test_pageable();
    test_events();
    test_lost();
    test_no_device();
    test_no_code();
    test_launch_limits();
    return check_done();
}
