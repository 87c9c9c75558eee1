/* The end of a gated product on the GPU: computes an output from its two sums. T is float, or
 * uint16_t for bf16. */
#ifndef SPW_MODEL_CUDA_GATED_CUDA_CUH
#define SPW_MODEL_CUDA_GATED_CUDA_CUH

#include "model/cuda/rows_cuda.cuh"

__device__ __forceinline__ float activation(float x, enum spw_activation act)
{
    if (act == SPW_ACT_SILU)
        return x / (1.0f + expf(0.0f - x));
    if (act == SPW_ACT_GELU_ERF)
        return 0.5f * x * (1.0f + erff(x * 0.707106781f));
    if (act == SPW_ACT_SIGMOID)
        return 1.0f / (1.0f + expf(0.0f - x));
    if (act == SPW_ACT_IDENTITY)
        return x;
    const float limit = (float)SPW_GATE_LIMIT;
    if (act == SPW_ACT_CUT_QUICK && x > limit)
        x = limit;
    if (act == SPW_ACT_GELU_QUICK || act == SPW_ACT_CUT_QUICK)
        return x / (1.0f + expf(-1.702f * x));
    if (act == SPW_ACT_RELU || act == SPW_ACT_RELU_SQUARED) { /* NaN stays NaN */
        x = x < 0 ? 0.0f : x;
        return act == SPW_ACT_RELU ? x : x * x;
    }
    float inner = x + 0.044715f * (x * x * x); /* sqrt(2/pi) (x + 0.044715 x^3) */
    return 0.5f * x * (1.0f + tanhf(0.797884561f * inner));
}

/* What a product has as its second factor. NaN stays NaN. */
template <typename T> __device__ __forceinline__ float factor(float up, enum spw_activation act)
{
    if (act != SPW_ACT_CUT_QUICK)
        return up;
    const float limit = (float)SPW_GATE_LIMIT;
    up = up > limit ? limit : up < -limit ? -limit : up;
    return rounded<T>(up + 1.0f);
}

/* act(gate) * up before it is stored. Every other value is rounded as if it had been stored. */
template <typename T>
__device__ __forceinline__ float gated(float gate, float up, enum spw_activation act)
{
    return rounded<T>(activation(rounded<T>(gate), act)) * factor<T>(rounded<T>(up), act);
}

#endif
