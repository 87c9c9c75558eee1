/* What every .cu file uses: one launch macro, shared memory, element types, and the few
 * instructions that need a tensor core or an asynchronous copy, each with a portable meaning.
 *
 * nvcc compiles these files for a GPU. With SPW_SIMT_EMULATOR the host compiler compiles them,
 * after tests/cuda/simt_emulator.h, which replaces cuda_runtime.h and has the bodies of the
 * wrappers below. Rules under which one text serves both:
 *   - launch with SPW_LAUNCH, name shared memory with SPW_SHARED or SPW_SHARED_DYNAMIC;
 *   - every lane of a warp takes part in a wrapper marked "warp";
 *   - products and sums that must not be fused are written as they are (-fmad=false), fused ones
 *     with fmaf. */
#ifndef SPW_QUANT_CUDA_CUH
#define SPW_QUANT_CUDA_CUH

#include "base/base.h"

#ifndef SPW_SIMT_EMULATOR
#include <cuda_fp16.h>
#include <cuda_runtime.h>

/* Kernel templates in parentheses: SPW_LAUNCH((k_norm<T>), grid, block, bytes, stream, a). */
#define SPW_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                 \
    spw_cuda_launch(kernel, &spw_cuda_row<kernel>, grid, block, shared_bytes, stream, __VA_ARGS__)
#define SPW_UNROLL _Pragma("unroll")
#define SPW_UNROLL_NOT _Pragma("unroll 1")
#define SPW_UNROLL_BY(n) SPW_UNROLL_BY_(unroll n)
#define SPW_UNROLL_BY_(text) _Pragma(#text)
/* A kernel's struct argument whose address may be taken: it is not copied. */
#define SPW_PARAMETER const __grid_constant__
#define SPW_SHARED(type, name, count) __shared__ type name[count]
/* The launch's shared_bytes, 16-byte aligned. */
#define SPW_SHARED_DYNAMIC(type, name)                                                             \
    extern __shared__ __align__(16) unsigned char spw_shared_dynamic[];                            \
    type *name = reinterpret_cast<type *>(spw_shared_dynamic)
#else
#define SPW_UNROLL
#define SPW_UNROLL_NOT
#define SPW_UNROLL_BY(n)
#define SPW_PARAMETER const
#define SPW_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                 \
    do {                                                                                           \
        if (spw_cuda_allow_shared(&spw_cuda_row<kernel>, shared_bytes))                            \
            SPW_SIMT_LAUNCH(kernel, grid, block, shared_bytes, stream, spw_cuda_may_overlap(),     \
                            __VA_ARGS__);                                                          \
    } while (0)
#endif

#include <pthread.h>

/* ---- errors ---- */

/* Returns 0, -ENOMEM for an allocation that was refused, or -EIO for any other error. Clears the
 * error, so the next launch of this thread does not report it again. The error of a lost device
 * comes again. */
static inline int spw_cuda_result(cudaError_t rc)
{
    if (rc == cudaSuccess)
        return 0;
    (void)cudaGetLastError();
    return rc == cudaErrorMemoryAllocation ? -ENOMEM : -EIO;
}

/* ---- cards and kernels: the driver is asked once, not at each launch ---- */

enum { SPW_CUDA_CARDS = 64 };

struct spw_cuda_card {
    int major; /* of the compute capability; 0: the driver was not asked yet. Atomic */
    int multiprocessors;
    int shared_bytes;   /* the most shared memory of one block */
    bool can_overlap;   /* see "kernels that overlap" */
    bool serial;        /* spw_device_options.serial_kernels. Atomic */
    bool launch_failed; /* since a device was opened here. Atomic */
};

/* A kernel of this program. The list has every kernel that SPW_LAUNCH names; its rows exist before
 * main() runs. */
struct spw_cuda_kernel {
    struct spw_cuda_kernel *next;
    const void *entry;
    size_t shared_bytes[SPW_CUDA_CARDS]; /* the most that launches may ask for; 0: 48 KiB. Atomic */
    explicit spw_cuda_kernel(const void *kernel);
};

inline struct spw_cuda_card spw_cuda_cards[SPW_CUDA_CARDS];
inline struct spw_cuda_kernel *spw_cuda_kernels;
inline pthread_mutex_t spw_cuda_lock =
    PTHREAD_MUTEX_INITIALIZER; /* protects what is written once */

inline spw_cuda_kernel::spw_cuda_kernel(const void *kernel)
    : next(spw_cuda_kernels), entry(kernel), shared_bytes{}
{
    spw_cuda_kernels = this;
}
template <auto kernel> inline struct spw_cuda_kernel spw_cuda_row((const void *)kernel);

/* Whether this device runs code that has the instructions for overlapping kernels. A newer GPU may
 * run translated code of sm_80 if nothing newer was built: such code does not wait, so it must not
 * start early. Emulated kernels may always overlap. */
static inline bool spw_cuda_code_overlaps(int major)
{
#ifndef SPW_SIMT_EMULATOR
    const int built[] = {__CUDA_ARCH_LIST__};
    int found = 0;
    for (int arch : built)
        if (arch / 100 <= major && arch > found)
            found = arch;
    return found >= 900;
#else
    return major > 0;
#endif
}

static inline int spw_cuda_ask_card(struct spw_cuda_card *c, int device)
{
    int major;
    SPW_TRY(spw_cuda_result(
        cudaDeviceGetAttribute(&c->multiprocessors, cudaDevAttrMultiProcessorCount, device)));
    SPW_TRY(spw_cuda_result(
        cudaDeviceGetAttribute(&c->shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device)));
    SPW_TRY(
        spw_cuda_result(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device)));
    c->can_overlap = spw_cuda_code_overlaps(major);
    __atomic_store_n(&c->major, major, __ATOMIC_RELEASE);
    return 0;
}

/* The card of the calling thread's device. 0 or -errno. */
static inline int spw_cuda_card_get(struct spw_cuda_card **out)
{
    int device, rc = 0;
    SPW_TRY(spw_cuda_result(cudaGetDevice(&device)));
    struct spw_cuda_card *c = *out = &spw_cuda_cards[device];
    if (__atomic_load_n(&c->major, __ATOMIC_ACQUIRE))
        return 0;
    pthread_mutex_lock(&spw_cuda_lock);
    if (!__atomic_load_n(&c->major, __ATOMIC_RELAXED))
        rc = spw_cuda_ask_card(c, device);
    pthread_mutex_unlock(&spw_cuda_lock);
    return rc;
}

static inline bool spw_cuda_may_overlap(void)
{
    struct spw_cuda_card *c;
    return !spw_cuda_card_get(&c) && c->can_overlap &&
           !__atomic_load_n(&c->serial, __ATOMIC_RELAXED);
}

/* A kernel must ask for more than 48 KiB of shared memory. cudaGetLastError reports a refusal, as
 * for a launch. */
static inline bool spw_cuda_allow_shared(struct spw_cuda_kernel *k, size_t bytes)
{
    int device;
    if (bytes <= 48 << 10)
        return true;
    if (cudaGetDevice(&device) != cudaSuccess)
        return false;
    size_t *allowed = &k->shared_bytes[device];
    if (__atomic_load_n(allowed, __ATOMIC_ACQUIRE) >= bytes)
        return true;
    pthread_mutex_lock(&spw_cuda_lock);
    bool more = *allowed < bytes;
    bool taken =
        !more || cudaFuncSetAttribute(k->entry, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)bytes) == cudaSuccess;
    if (more && taken)
        __atomic_store_n(allowed, bytes, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&spw_cuda_lock);
    return taken;
}

/* Checks the launches that this thread has just made. Returns 0 or -EIO; after -EIO the device that
 * is open on this card is failed. A launch without memory is a failure too, not a full tier. */
static inline int spw_cuda_launched(void)
{
    int device;
    if (!spw_cuda_result(cudaGetLastError()))
        return 0;
    if (cudaGetDevice(&device) == cudaSuccess)
        __atomic_store_n(&spw_cuda_cards[device].launch_failed, true, __ATOMIC_RELAXED);
    return -EIO;
}

/* ---- kernels that overlap ----
 *
 * From sm_90 on a kernel may start while the kernel before it in its stream still runs (CUDA C++
 * programming guide, "Programmatic Dependent Launch"; PTX ISA, "griddepcontrol"). This removes the
 * gap between two kernels, which is as long as the small kernels of a decode step, and a product
 * can load its weights meanwhile. The rule for every kernel:
 *
 *     weights, and nothing else in global memory, may be read
 *     spw_grid_wait()    every thread, before it returns or touches any other global memory
 *     spw_grid_next()    at once: the next kernel may start when all blocks have come here
 *
 * The wait ends when the previous kernel is complete and its writes are visible. A kernel must also
 * wait before it writes: the previous kernel may still read there. Because spw_grid_next() comes
 * after the wait, at most one kernel runs ahead: when a kernel starts, the kernel before the
 * previous one is complete. This holds only because every kernel waits, also in blocks that have
 * nothing to do.
 *
 * Weights may be read before the wait: a copy brought them, and the launch that reads them, or an
 * earlier one, was queued after a wait for the event of that copy, or after the host had seen the
 * copy complete. Only two kernels overlap (cudaLaunchAttributeProgrammaticStreamSerialization: "the
 * previous kernel in the stream"; of a graph's nodes only kernels have a programmatic port). After
 * a copy, a fill, a host function or a wait for an event, a kernel starts when that is complete. An
 * event that is recorded between two kernels is complete when the first one is, whether or not the
 * second one has started. */
#ifndef SPW_SIMT_EMULATOR
__device__ __forceinline__ void spw_grid_wait(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void spw_grid_next(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#ifdef SPW_CUDA_LATE
    __nanosleep(100000); /* validation: without its wait, the next kernel would read what this
                            kernel has not written */
#endif
#endif
}

/* cudaGetLastError reports errors, as for <<<>>>. */
template <class... P, class... A>
static inline void spw_cuda_launch(void (*kernel)(P...), struct spw_cuda_kernel *row, dim3 grid,
                                   dim3 block, size_t shared_bytes, cudaStream_t stream,
                                   const A &...arguments)
{
    if (!spw_cuda_allow_shared(row, shared_bytes))
        return;
    cudaLaunchAttribute overlap = {};
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t how = {};
    how.gridDim = grid;
    how.blockDim = block;
    how.dynamicSmemBytes = shared_bytes;
    how.stream = stream;
    how.attrs = &overlap;
    how.numAttrs = spw_cuda_may_overlap() ? 1 : 0;
    (void)cudaLaunchKernelEx(&how, kernel, static_cast<P>(arguments)...);
}
#endif

/* ---- element types: bf16 and f16 travel as their bits ---- */

__device__ __forceinline__ float spw_device_bf16(uint16_t bits)
{
    return __uint_as_float((uint32_t)bits << 16);
}

/* Round to nearest even; a NaN stays one. */
__device__ __forceinline__ uint16_t spw_device_to_bf16(float f)
{
    uint32_t u = __float_as_uint(f);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

__device__ __forceinline__ float spw_device_f16(uint16_t bits)
{
    return __half2float(__ushort_as_half(bits));
}

__device__ __forceinline__ uint16_t spw_device_to_f16(float f)
{
    return __half_as_ushort(__float2half_rn(f));
}

/* Two bf16 in a register, the first in the lower half; rounded to nearest even. */
__device__ __forceinline__ uint32_t spw_device_pack_bf16(float low, float high)
{
#if !defined(SPW_SIMT_EMULATOR) && __CUDA_ARCH__ >= 800
    uint32_t both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
#else
    return (uint32_t)spw_device_to_bf16(high) << 16 | spw_device_to_bf16(low);
#endif
}

/* a b + c of both bf16 halves, each rounded once to nearest even. */
__device__ __forceinline__ uint32_t spw_device_fma_bf16x2(uint32_t a, uint32_t b, uint32_t c)
{
#if !defined(SPW_SIMT_EMULATOR) && __CUDA_ARCH__ >= 800
    uint32_t both;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(both) : "r"(a), "r"(b), "r"(c));
    return both;
#else
    float x[2];
    for (int i = 0; i < 2; i++) /* rounded twice: the same where the result is short */
        x[i] =
            fmaf(spw_device_bf16((uint16_t)(a >> 16 * i)), spw_device_bf16((uint16_t)(b >> 16 * i)),
                 spw_device_bf16((uint16_t)(c >> 16 * i)));
    return spw_device_pack_bf16(x[0], x[1]);
#endif
}

/* 2^x, at most 2 ulp off; exact at 0 and at minus infinity. Results below 2^-126 are 0. */
__device__ __forceinline__ float spw_device_exp2(float x)
{
#ifndef SPW_SIMT_EMULATOR
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    float y = exp2f(x);
    return y < 0x1p-126f ? 0.0f : y;
#endif
}

/* ---- asynchronous copies to shared memory ----
 *
 * A copy has 16 bytes, both sides 16-byte aligned. With `take` false the 16 bytes become zero and
 * `from` is not read. The copies since the last commit are one group. wait<n> returns when at most
 * the n newest groups are still in flight, for the copies of the calling thread only: a barrier
 * must follow before other threads read them. Before sm_80 the copy is made at once. */
#ifndef SPW_SIMT_EMULATOR
__device__ __forceinline__ void spw_copy16_async(void *shared, const void *from, bool take)
{
#if __CUDA_ARCH__ >= 800
    uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(take ? 16 : 0)
                 : "memory");
#else
    *(uint4 *)shared = take ? *(const uint4 *)from : make_uint4(0, 0, 0, 0);
#endif
}

/* For bytes that nobody reads again soon: they leave the L2 cache first. */
__device__ __forceinline__ void spw_copy16_async_once(void *shared, const void *from, bool take)
{
#if __CUDA_ARCH__ >= 800
    uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to),
                 "l"(from), "r"(take ? 16 : 0), "l"(policy)
                 : "memory");
#else
    spw_copy16_async(shared, from, take);
#endif
}

/* For bytes that other blocks of this multiprocessor read, too: the copy goes through its L1
 * cache. */
__device__ __forceinline__ void spw_copy16_async_near(void *shared, const void *from, bool take)
{
#if __CUDA_ARCH__ >= 800
    uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(take ? 16 : 0)
                 : "memory");
#else
    spw_copy16_async(shared, from, take);
#endif
}

__device__ __forceinline__ void spw_copy_async_commit(void)
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int n> __device__ __forceinline__ void spw_copy_async_wait(void)
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
#endif
}
#else
#define spw_copy16_async_once spw_copy16_async
#define spw_copy16_async_near spw_copy16_async
#endif

/* ---- the tensor-core product (warp) ----
 *
 * d[16][8] += a[16][16] b[16][8], bf16 in, fp32 sums. With g = lane / 4, t = lane % 4, a register
 * holds two bf16, the lower index in the lower half:
 *   a[0] = A[g][2t..]  a[1] = A[g+8][2t..]  a[2] = A[g][2t+8..]  a[3] = A[g+8][2t+8..]
 *   b[0] = B[2t..][g]  b[1] = B[2t+8..][g]
 *   d[0..1] = D[g][2t..]  d[2..3] = D[g+8][2t..]
 * (PTX ISA, "mma.m16n8k16"). An element of D depends on its own row of A and column of B alone.
 * Before sm_80 the same sums are made with fmaf from shuffled operands, k = 0..15 in order. */
__device__ __forceinline__ void spw_mma_bf16_shuffled(float d[4], const uint32_t a[4],
                                                      const uint32_t b[2])
{
    const unsigned all = 0xffffffffu;
    int lane = (int)(threadIdx.x % 32), g = lane / 4, t = lane % 4;
    for (int h = 0; h < 2; h++)
        for (int p = 0; p < 4; p++) { /* k = 8 * h + 2 * p, + 1 */
            uint32_t top = __shfl_sync(all, a[2 * h], 4 * g + p);
            uint32_t low = __shfl_sync(all, a[2 * h + 1], 4 * g + p);
            uint32_t left = __shfl_sync(all, b[h], 4 * (2 * t) + p);
            uint32_t right = __shfl_sync(all, b[h], 4 * (2 * t + 1) + p);
            for (int k = 0; k < 2; k++) {
                float x = spw_device_bf16((uint16_t)(top >> 16 * k));
                float y = spw_device_bf16((uint16_t)(low >> 16 * k));
                float u = spw_device_bf16((uint16_t)(left >> 16 * k));
                float v = spw_device_bf16((uint16_t)(right >> 16 * k));
                d[0] = fmaf(x, u, d[0]);
                d[1] = fmaf(x, v, d[1]);
                d[2] = fmaf(y, u, d[2]);
                d[3] = fmaf(y, v, d[3]);
            }
        }
}

#ifndef SPW_SIMT_EMULATOR
__device__ __forceinline__ void spw_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    spw_mma_bf16_shuffled(d, a, b);
#endif
}
#endif

/* ---- the tensor-core product of bytes (warp) ----
 *
 * d[16][8] += a[16][32] b[32][8] in exact int32; both operands int8. A register holds four bytes of
 * adjacent k, the first in the lowest byte:
 *   a[0] = A[g][4t..]  a[1] = A[g+8][4t..]  a[2] = A[g][4t+16..]  a[3] = A[g+8][4t+16..]
 *   b[0] = B[4t..][g]  b[1] = B[4t+16..][g]
 * d is as above (PTX ISA, "mma.m16n8k32"). spw_mma_s8_half has k = 16: a[0], a[1] and b alone. Both
 * are the same sums before sm_80, made of smaller products. */
#ifndef SPW_SIMT_EMULATOR
__device__ __forceinline__ void spw_mma_s8_half(int d[4], const uint32_t a[2], uint32_t b)
{
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
                 "{%0,%1,%2,%3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b));
#else
    for (int i = 0; i < 2; i++)
        asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
                     : "+r"(d[2 * i]), "+r"(d[2 * i + 1])
                     : "r"(a[i]), "r"(b));
#endif
}

__device__ __forceinline__ void spw_mma_s8(int d[4], const uint32_t a[4], const uint32_t b[2])
{
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    spw_mma_s8_half(d, a, b[0]);
    spw_mma_s8_half(d, a + 2, b[1]);
#endif
}
#endif

#endif
