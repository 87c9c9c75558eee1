/* Products of rows that have a matrix each: those of experts. */
#ifndef SPW_MODEL_CUDA_LINEAR_CHOICES_CUDA_CUH
#define SPW_MODEL_CUDA_LINEAR_CHOICES_CUDA_CUH

#include "model/cuda/gated_cuda.cuh"
#include "model/ops.h"

/* See struct spw_linear_args. The grid's second dimension is the row. A
 * kernel must wait for the kernel before it, which makes the choices, and then take its row. */
struct linear_choices {
    const struct spw_choice *of;        /* [rows]; NULL: all rows have one matrix */
    const void *const *w, *const *w_up; /* [experts]; w_up: of a gated product */
    size_t bias_step;
};

__device__ __forceinline__ uint32_t chosen_expert(const struct linear_choices &c)
{
    spw_grid_wait();
    return c.of[blockIdx.y].expert;
}

#endif
