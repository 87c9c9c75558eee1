/* A GPU for tests on machines without one. The host compiler includes this before a .cu file, and
 * the file's kernels run on the calling stream's thread (simt_emulator.cc), its runtime calls on an
 * emulated driver (simt_runtime.cc; what a test sets there: simt_control.h).
 *
 * Blocks run one after another, in an order drawn from a seed. The threads of a block are fibers: a
 * barrier, a shuffle or a vote really waits for the others, and which thread goes on is drawn as
 * well, so that what holds only in one order fails. A shared array is a heap block of its own of
 * exactly its size and alignment, filled with NaN at the block's start; device memory comes from
 * malloc, filled with NaN. AddressSanitizer thus sees every access out of bounds. An asynchronous
 * copy spoils its destination at once and is made by the wait that covers it. What has no defined
 * meaning on a GPU (a barrier that not all threads reach, a shuffle from a lane that does not take
 * part, a misaligned asynchronous copy, an argument that points to memory of the host) ends the
 * process with one line that names kernel and place.
 *
 * Kernels that follow each other in a stream overlap as quant/cuda.cuh says: drawn blocks run up to
 * spw_grid_wait() before the kernel in front has begun, so that what they read too early is stale,
 * and what they write too early is gone when the kernel in front reads it.
 *
 * Not seen: a pointer to the host that a kernel finds in device memory; what a GPU's caches and
 * clocks do. */
#ifndef SPW_TESTS_CUDA_SIMT_EMULATOR_H
#define SPW_TESTS_CUDA_SIMT_EMULATOR_H

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

/* ---- vector types ---- */

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c)
    {
    }
};

#define SPW_SIMT_VECTOR2(name, type)                                                               \
    struct __attribute__((aligned(2 * sizeof(type)))) name {                                       \
        type x, y;                                                                                 \
    };                                                                                             \
    static inline name make_##name(type x, type y)                                                 \
    {                                                                                              \
        return {x, y};                                                                             \
    }
#define SPW_SIMT_VECTOR4(name, type)                                                               \
    struct __attribute__((aligned(4 * sizeof(type)))) name {                                       \
        type x, y, z, w;                                                                           \
    };                                                                                             \
    static inline name make_##name(type x, type y, type z, type w)                                 \
    {                                                                                              \
        return {x, y, z, w};                                                                       \
    }
SPW_SIMT_VECTOR2(uint2, unsigned)
SPW_SIMT_VECTOR2(int2, int)
SPW_SIMT_VECTOR2(float2, float)
SPW_SIMT_VECTOR2(ushort2, unsigned short)
SPW_SIMT_VECTOR4(uint4, unsigned)
SPW_SIMT_VECTOR4(int4, int)
SPW_SIMT_VECTOR4(float4, float)
SPW_SIMT_VECTOR4(ushort4, unsigned short)

/* ---- where a thread is ---- */

struct spw_simt_block {
    uint3 index;
    dim3 dim, grid;
};
struct spw_simt_self {
    uint3 index;
    const spw_simt_block *block;
};
extern __thread struct spw_simt_self *spw_simt_self; /* of the thread that runs */

#define threadIdx ((const uint3 &)spw_simt_self->index)
#define blockIdx ((const uint3 &)spw_simt_self->block->index)
#define blockDim ((const dim3 &)spw_simt_self->block->dim)
#define gridDim ((const dim3 &)spw_simt_self->block->grid)
enum { warpSize = 32 };

/* Where a thread waits: a default argument is evaluated at the call. */
#define SPW_SIMT_PLACE const char *file = __builtin_FILE(), int line = __builtin_LINE()

/* Ends the process with a line about the kernel that runs. */
__attribute__((noreturn, format(printf, 1, 2))) void spw_simt_fault(const char *format, ...);

/* ---- shared memory ---- */

/* The block's array for this declaration, made when the first thread comes by. */
void *spw_simt_shared(const void *key, size_t bytes, size_t align);
void *spw_simt_shared_dynamic(void);

#define SPW_SHARED(type, name, count)                                                              \
    static char name##_key_;                                                                       \
    type(&name)[count] = *reinterpret_cast<type(*)[count]>(                                        \
        spw_simt_shared(&name##_key_, sizeof(type) * (count), alignof(type)))
#define SPW_SHARED_DYNAMIC(type, name)                                                             \
    type *name = reinterpret_cast<type *>(spw_simt_shared_dynamic())

/* ---- barriers, shuffles, votes ---- */

enum spw_simt_op {
    SPW_SIMT_SYNC,
    SPW_SIMT_SHUFFLE,
    SPW_SIMT_UP,
    SPW_SIMT_DOWN,
    SPW_SIMT_XOR,
    SPW_SIMT_BALLOT,
    SPW_SIMT_MMA,
    SPW_SIMT_MMA_S8,
};

struct spw_simt_mma {
    float *d;
    const uint32_t *a, *b;
};

struct spw_simt_mma_s8 {
    int *d;
    uint32_t a[4], b[2];
};

void __syncthreads(SPW_SIMT_PLACE);
/* Waits for the lanes of `mask`, then returns this lane's result. */
uint64_t spw_simt_warp(enum spw_simt_op op, const char *name, unsigned mask, uint64_t value,
                       int argument, int width, const char *file, int line);

static inline void __syncwarp(unsigned mask = 0xffffffffu, SPW_SIMT_PLACE)
{
    spw_simt_warp(SPW_SIMT_SYNC, "__syncwarp", mask, 0, 0, 32, file, line);
}

template <class T>
static inline T spw_simt_shuffle(enum spw_simt_op op, const char *name, unsigned mask, T value,
                                 int argument, int width, const char *file, int line)
{
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a GPU shuffles 4 or 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = spw_simt_warp(op, name, mask, bits, argument, width, file, line);
    memcpy(&value, &bits, sizeof value);
    return value;
}

#define SPW_SIMT_SHUFFLE_NAMED(name, op)                                                           \
    template <class T>                                                                             \
    static inline T name(unsigned mask, T value, int argument, int width = 32, SPW_SIMT_PLACE)     \
    {                                                                                              \
        return spw_simt_shuffle(op, #name, mask, value, argument, width, file, line);              \
    }
SPW_SIMT_SHUFFLE_NAMED(__shfl_sync, SPW_SIMT_SHUFFLE)
SPW_SIMT_SHUFFLE_NAMED(__shfl_up_sync, SPW_SIMT_UP)
SPW_SIMT_SHUFFLE_NAMED(__shfl_down_sync, SPW_SIMT_DOWN)
SPW_SIMT_SHUFFLE_NAMED(__shfl_xor_sync, SPW_SIMT_XOR)

static inline unsigned __ballot_sync(unsigned mask, int vote, SPW_SIMT_PLACE)
{
    return (unsigned)spw_simt_warp(SPW_SIMT_BALLOT, "__ballot_sync", mask, vote != 0, 0, 32, file,
                                   line);
}

static inline int __any_sync(unsigned mask, int vote, SPW_SIMT_PLACE)
{
    return spw_simt_warp(SPW_SIMT_BALLOT, "__any_sync", mask, vote != 0, 0, 32, file, line) != 0;
}

static inline int __all_sync(unsigned mask, int vote, SPW_SIMT_PLACE)
{
    return spw_simt_warp(SPW_SIMT_BALLOT, "__all_sync", mask, vote != 0, 0, 32, file, line) == mask;
}

/* ---- the wrappers of quant/cuda.cuh ---- */

void spw_copy16_async(void *shared, const void *from, bool take, SPW_SIMT_PLACE);
void spw_copy_async_commit(void);
void spw_simt_copy_wait(uint64_t newest);
template <int n> static inline void spw_copy_async_wait(void)
{
    spw_simt_copy_wait(n);
}

void spw_grid_wait(SPW_SIMT_PLACE);
void spw_grid_next(SPW_SIMT_PLACE);

/* k = 0..15 in order, each step a fused multiply-add. */
static inline void spw_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2],
                                SPW_SIMT_PLACE)
{
    struct spw_simt_mma m = {d, a, b};
    spw_simt_warp(SPW_SIMT_MMA, "spw_mma_bf16", 0xffffffffu, (uintptr_t)&m, 0, 32, file, line);
}

static inline void spw_mma_s8(int d[4], const uint32_t a[4], const uint32_t b[2], SPW_SIMT_PLACE)
{
    struct spw_simt_mma_s8 m = {d, {a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
    spw_simt_warp(SPW_SIMT_MMA_S8, "spw_mma_s8", 0xffffffffu, (uintptr_t)&m, 0, 32, file, line);
}

static inline void spw_mma_s8_half(int d[4], const uint32_t a[2], uint32_t b, SPW_SIMT_PLACE)
{
    struct spw_simt_mma_s8 m = {d, {a[0], a[1], 0, 0}, {b, 0}};
    spw_simt_warp(SPW_SIMT_MMA_S8, "spw_mma_s8_half", 0xffffffffu, (uintptr_t)&m, 0, 32, file,
                  line);
}

/* ---- atomics and fences: other streams run at the same time ---- */

static inline int atomicAdd(int *p, int v)
{
    return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}

static inline unsigned atomicAdd(unsigned *p, unsigned v)
{
    return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}

static inline unsigned long long atomicAdd(unsigned long long *p, unsigned long long v)
{
    return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}

static inline void __threadfence(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* ---- arithmetic ---- */

template <class To, class From> static inline To spw_simt_bits(From from)
{
    To to;
    static_assert(sizeof to == sizeof from, "a reinterpretation keeps the size");
    memcpy(&to, &from, sizeof to);
    return to;
}

static inline unsigned __float_as_uint(float f)
{
    return spw_simt_bits<unsigned>(f);
}

static inline int __float_as_int(float f)
{
    return spw_simt_bits<int>(f);
}

static inline float __uint_as_float(unsigned u)
{
    return spw_simt_bits<float>(u);
}

static inline float __int_as_float(int i)
{
    return spw_simt_bits<float>(i);
}

struct __half {
    unsigned short bits;
};
typedef __half half;

static inline __half __ushort_as_half(unsigned short u)
{
    return {u};
}

static inline unsigned short __half_as_ushort(__half h)
{
    return h.bits;
}

float __half2float(__half h);
__half __float2half_rn(float f);

static inline float __ldg(const float *p)
{
    return *p;
}

static inline uint4 __ldg(const uint4 *p)
{
    return *p;
}

template <typename T> static inline T __ldcg(const T *p)
{
    return *p;
}

static inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}

static inline float __fmul_rn(float a, float b)
{
    return a * b;
}

static inline float __fadd_rn(float a, float b)
{
    return a + b;
}

#define __expf expf /* glibc has that name already */

static inline int min(int a, int b)
{
    return a < b ? a : b;
}

static inline int max(int a, int b)
{
    return a > b ? a : b;
}

static inline unsigned min(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

static inline unsigned max(unsigned a, unsigned b)
{
    return a > b ? a : b;
}

/* Four bytes of the eight of (low, high), by the low three bits of a selector's half-bytes; the
 * fourth would replicate a sign, which is not used here. */
static inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector)
{
    uint64_t both = (uint64_t)high << 32 | low;
    unsigned out = 0;
    for (unsigned i = 0; i < 4; i++)
        out |= (unsigned)(both >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
    return out;
}

static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}

static inline int __clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}

static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}

/* ---- the runtime: names, numbers and meanings of the CUDA runtime API ---- */

#define CUDART_VERSION 13000

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInitializationError = 3,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInsufficientDriver = 35,
    cudaErrorInvalidDeviceFunction = 98,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorNoKernelImageForDevice = 209,
    cudaErrorInvalidPtx = 218,
    cudaErrorJitCompilerNotFound = 221,
    cudaErrorUnsupportedPtxVersion = 222,
    cudaErrorJitCompilationDisabled = 223,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorHostMemoryAlreadyRegistered = 712,
    cudaErrorHostMemoryNotRegistered = 713,
    cudaErrorLaunchFailure = 719,
    cudaErrorUnknown = 999,
};

enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault,
};

enum cudaDeviceAttr {
    cudaDevAttrMaxSharedMemoryPerBlock = 8,
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrIntegrated = 18,
    cudaDevAttrL2CacheSize = 38,
    cudaDevAttrAsyncEngineCount = 40,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76,
    cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
};

enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
    cudaFuncAttributePreferredSharedMemoryCarveout = 9,
};

enum {
    cudaHostRegisterDefault = 0,
    cudaHostRegisterPortable = 1,
    cudaHostRegisterMapped = 2,
    cudaStreamDefault = 0,
    cudaStreamNonBlocking = 1,
    cudaEventDefault = 0,
    cudaEventBlockingSync = 1,
    cudaEventDisableTiming = 2,
    cudaEventWaitDefault = 0,
};

struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem, sharedMemPerBlock, sharedMemPerBlockOptin, sharedMemPerMultiprocessor;
    int major, minor, multiProcessorCount, warpSize, l2CacheSize, asyncEngineCount, integrated;
    int maxThreadsPerBlock, unifiedAddressing, pciBusID, pciDeviceID, pciDomainID;
};

struct cudaFuncAttributes {
    int maxDynamicSharedSizeBytes;
};

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef void (*cudaHostFn_t)(void *);

extern "C" {
cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);
const char *cudaGetErrorName(cudaError_t rc);
const char *cudaGetErrorString(cudaError_t rc);

cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaGetDeviceCount(int *n);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device);
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceGetPCIBusId(char *text, int bytes, int device);
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest);

cudaError_t cudaMalloc(void **out, size_t bytes);
cudaError_t cudaFree(void *p);
cudaError_t cudaMemGetInfo(size_t *available, size_t *total);
/* A copy whose host side crosses from one registered range into another is refused. */
cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void *p);

/* The null stream is the calling thread: work there is done when the call returns, in no order with
 * any other stream's. */
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t s); /* drains it */
cudaError_t cudaStreamSynchronize(cudaStream_t s);
cudaError_t cudaStreamQuery(cudaStream_t s);
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags = 0);

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t e);
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s = nullptr);
cudaError_t cudaEventSynchronize(cudaEvent_t e);
cudaError_t cudaEventQuery(cudaEvent_t e);
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to);

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t s = nullptr);
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemset(void *to, int value, size_t bytes); /* on the null stream, like memcpy */
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t s = nullptr);
/* One at a time, of whatever streams: "may be serialized" (CUDA runtime API). */
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t fn, void *argument);
}

template <class T> static inline cudaError_t cudaMalloc(T **out, size_t bytes)
{
    return cudaMalloc((void **)out, bytes);
}

cudaError_t spw_simt_set_attribute(const void *kernel, cudaFuncAttribute attribute, int value);
template <class T>
static inline cudaError_t cudaFuncSetAttribute(T *kernel, cudaFuncAttribute attribute, int value)
{
    return spw_simt_set_attribute((const void *)kernel, attribute, value);
}

cudaError_t spw_simt_get_attributes(cudaFuncAttributes *out, const void *kernel);
template <class T>
static inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *out, T *kernel)
{
    return spw_simt_get_attributes(out, (const void *)kernel);
}

/* ---- launches ---- */

struct spw_simt_launch {
    const char *name, *file;
    int line;
    dim3 grid, block;
    size_t shared_bytes, shared_most; /* dynamic; what a block of this card may have in all */
    cudaStream_t stream;
    bool overlap; /* with the kernel in front */
    const void *kernel;
    void (*run)(void *closure);
    void (*drop)(void *closure);
    void *closure;        /* owned: the arguments, as they were captured */
    size_t closure_bytes; /* 0: not to be looked at */
};

/* Queues or refuses it; a refusal shows in cudaGetLastError. */
void spw_simt_queue(const struct spw_simt_launch *l);
/* Runs all blocks of the grid on this OS thread, or all that is left to do. */
void spw_simt_run(const struct spw_simt_launch *l, uint64_t seed);
/* Runs one block up to spw_grid_wait(). On this OS thread one other kernel may run before
 * spw_simt_run takes this one up. */
void spw_simt_run_ahead(const struct spw_simt_launch *l, uint64_t seed);
/* Whether it ran ahead: then it must be run. */
bool spw_simt_is_ahead(const struct spw_simt_launch *l);

template <class K, class... A>
static inline void spw_simt_start(struct spw_simt_launch l, K kernel, A... args)
{
    auto body = [=] { kernel(args...); };
    typedef decltype(body) closure;
    l.kernel = (const void *)kernel;
    l.run = [](void *p) { (*(closure *)p)(); };
    l.drop = [](void *p) { delete (closure *)p; };
    closure *c = new closure(body);
#if defined(__has_builtin) && __has_builtin(__builtin_clear_padding)
    __builtin_clear_padding(c); /* else what is there could be taken for a pointer */
    l.closure_bytes = sizeof *c;
#endif
    l.closure = c;
    spw_simt_queue(&l);
}

/* What SPW_LAUNCH of quant/cuda.cuh becomes. `overlap`: it may start before the kernel in front of
 * it is over. */
#define SPW_SIMT_LAUNCH(kernel, grid, block, shared_bytes, stream, overlap, ...)                   \
    spw_simt_start(spw_simt_launch{#kernel, __FILE__, __LINE__, dim3(grid), dim3(block),           \
                                   (size_t)(shared_bytes), 0, stream, overlap, nullptr, nullptr,   \
                                   nullptr, nullptr, 0},                                           \
                   kernel, __VA_ARGS__)

#endif
