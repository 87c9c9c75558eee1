/* The end of a gated product on the GPU: computes an output from its two sums. T is float, or
 * uint16_t for bf16. */
#ifndef SPW_MODEL_CUDA_GATED_CUDA_CUH
#define SPW_MODEL_CUDA_GATED_CUDA_CUH

#include "model/cuda/math.cuh"
#include "model/cuda/rows_cuda.cuh"

/* act(gate) * up before it is stored. Every other value is rounded as if it had been stored. */
template <typename T>
__device__ __forceinline__ float gated(float gate, float up, enum spw_activation act)
{
    up = rounded<T>(up);
    if (act == SPW_ACT_CUT_QUICK)
        up = rounded<T>(num_cut_up(up));
    return rounded<T>(num_activation(rounded<T>(gate), act)) * up;
}

#endif
