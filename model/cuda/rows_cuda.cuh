/* What kernels over rows share: chunks of 8 elements, and the arithmetic of a norm. A chunk is 16
 * or 32 bytes. It is moved 16 bytes at a time if its address allows that, else element by element;
 * the arithmetic is the same. T is float, or uint16_t for bf16. */
#ifndef SPW_MODEL_CUDA_ROWS_CUDA_CUH
#define SPW_MODEL_CUDA_ROWS_CUDA_CUH

#include "model/cuda/ops_cuda.h"

#include "quant/cuda.cuh"

enum { CHUNK = 8, LANES = 32, THREADS = 256 };

__device__ __forceinline__ bool aligned16(const void *p)
{
    return ((uintptr_t)p & 15) == 0;
}

__device__ __forceinline__ float widened(float x)
{
    return x;
}

__device__ __forceinline__ float widened(uint16_t x)
{
    return spw_device_bf16(x);
}

__device__ __forceinline__ void narrowed(float *to, float x)
{
    *to = x;
}

__device__ __forceinline__ void narrowed(uint16_t *to, float x)
{
    *to = spw_device_to_bf16(x);
}

/* x after a store and a load. */
template <typename T> __device__ __forceinline__ float rounded(float x)
{
    T stored;
    narrowed(&stored, x);
    return widened(stored);
}

__device__ __forceinline__ void load_whole(const float *p, float v[CHUNK])
{
    float4 low = *(const float4 *)p, high = *(const float4 *)(p + 4);
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
    v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
}

__device__ __forceinline__ void load_whole(const uint16_t *p, float v[CHUNK])
{
    uint4 u = *(const uint4 *)p;
    const uint32_t pairs[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[2 * i] = __uint_as_float(pairs[i] << 16);
        v[2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000u);
    }
}

__device__ __forceinline__ void store_whole(float *p, const float v[CHUNK])
{
    *(float4 *)p = make_float4(v[0], v[1], v[2], v[3]);
    *(float4 *)(p + 4) = make_float4(v[4], v[5], v[6], v[7]);
}

__device__ __forceinline__ void store_whole(uint16_t *p, const float v[CHUNK])
{
    uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        pairs[i] = spw_device_to_bf16(v[2 * i]) | (uint32_t)spw_device_to_bf16(v[2 * i + 1]) << 16;
    *(uint4 *)p = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

/* The first n elements of a chunk, zeros after them. n may be larger than a chunk. */
template <typename T>
__device__ __forceinline__ void load_chunk(const T *p, size_t n, float v[CHUNK])
{
    if (n >= CHUNK && aligned16(p)) {
        load_whole(p, v);
        return;
    }
#pragma unroll
    for (int i = 0; i < CHUNK; i++)
        v[i] = i < n ? widened(p[i]) : 0.0f;
}

template <typename T>
__device__ __forceinline__ void store_chunk(T *p, size_t n, const float v[CHUNK])
{
    if (n >= CHUNK && aligned16(p)) {
        store_whole(p, v);
        return;
    }
#pragma unroll
    for (int i = 0; i < CHUNK; i++)
        if (i < n)
            narrowed(p + i, v[i]);
}

/* An element of a norm, before it is stored; see enum spw_norm_kind. */
template <typename T>
__device__ __forceinline__ float normed(float x, float inverse, float weight,
                                        enum spw_norm_kind kind)
{
    return kind == SPW_NORM_LLAMA ? weight * rounded<T>(x * inverse) : x * inverse * weight;
}

/* The sum over a warp. Every lane gets the same bits, because x + y equals y + x. */
__device__ __forceinline__ float warp_sum(float x)
{
#pragma unroll
    for (int apart = LANES / 2; apart; apart /= 2)
        x = x + __shfl_xor_sync(0xffffffffu, x, apart);
    return x;
}

/* The sum over a block of THREADS of what each thread has; every thread gets it. */
__device__ __forceinline__ float block_sum(float x, float *sums)
{
    x = warp_sum(x);
    __syncthreads(); /* an earlier sum has been read */
    if (threadIdx.x % LANES == 0)
        sums[threadIdx.x / LANES] = x;
    __syncthreads(); /* all sums are written */
    return warp_sum(threadIdx.x % LANES < THREADS / LANES ? sums[threadIdx.x % LANES] : 0.0f);
}

static inline bool known(enum spw_dtype t)
{
    return t == SPW_DTYPE_F32 || t == SPW_DTYPE_BF16;
}

/* Launches kernel<T> with THREADS threads a block; T: the type of the elements. */
#define LAUNCH_ROWS(kernel, dtype, grid, stream, ...)                                              \
    do {                                                                                           \
        if ((dtype) == SPW_DTYPE_F32)                                                              \
            SPW_LAUNCH(kernel<float>, grid, THREADS, 0, stream, __VA_ARGS__);                      \
        else                                                                                       \
            SPW_LAUNCH(kernel<uint16_t>, grid, THREADS, 0, stream, __VA_ARGS__);                   \
    } while (0)

#endif
