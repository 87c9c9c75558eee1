/* model/math.h for a thread. Files are compiled with -fmad=false: only fmaf fuses, and
 * quotients and roots are rounded to nearest. */
#ifndef SPW_MODEL_CUDA_MATH_CUH
#define SPW_MODEL_CUDA_MATH_CUH

#include "quant/cuda.cuh"

/* Two factors, because 2^n alone can leave the range: the first product is exact. */
__device__ __forceinline__ float scaled2(float a, float n)
{
    const int k = (int)n, some = k >> 1;
    return a * __uint_as_float((uint32_t)(some + 127) << 23) *
           __uint_as_float((uint32_t)(k - some + 127) << 23);
}

__device__ __forceinline__ float greater_of(float a, float b)
{
    return a > b ? a : b;
}

__device__ __forceinline__ float less_of(float a, float b)
{
    return a < b ? a : b;
}

#define NUM_FN __device__ __forceinline__
#define num float
#define num_of(x) (x)
#define num_add(a, b) ((a) + (b))
#define num_sub(a, b) ((a) - (b))
#define num_mul(a, b) ((a) * (b))
#define num_div(a, b) ((a) / (b))
#define num_sqrt(a) sqrtf(a)
#define num_fused(a, b, c) fmaf(a, b, c)
#define num_max(a, b) greater_of(a, b)
#define num_min(a, b) less_of(a, b)
#define num_less(a, b, x, y) ((a) < (b) ? (x) : (y))
#define num_round(a) rintf(a)
#define num_scale2(a, n) scaled2(a, n)

#include "model/math.h"

#endif
