/* The rotation of quant/hadamard.h on a GPU, the same bits. */
#ifndef SPW_QUANT_HADAMARD_CUDA_CUH
#define SPW_QUANT_HADAMARD_CUDA_CUH

#include "quant/cuda.cuh"
#include "quant/hadamard.h"

/* The stages without the factor, by one warp, in shared memory: x[rows][stride]. Rotates the first
 * n elements of a row. Any lane may write x just before the call, and read x just after it. */
__device__ __forceinline__ void spw_hadamard_stages(float *x, uint32_t rows, uint32_t stride,
                                                    uint32_t n, uint32_t block)
{
    for (uint32_t h = 1; h < block; h *= 2) {
        __syncwarp(); /* the previous stage is written */
        for (uint32_t i = threadIdx.x % 32; i < rows * (n / 2); i += 32) {
            uint32_t pair = i % (n / 2), c = pair / h * 2 * h + pair % h;
            float *at = x + i / (n / 2) * stride + c, a = at[0], b = at[h];
            at[0] = a + b;
            at[h] = a - b;
        }
    }
    __syncwarp(); /* the last stage is written */
}

#endif
