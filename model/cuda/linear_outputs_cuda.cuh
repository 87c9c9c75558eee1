/* The outputs of a product on the GPU that has bf16 or f32 y: from the sum to what is stored. */
#ifndef SPW_MODEL_CUDA_LINEAR_OUTPUTS_CUDA_CUH
#define SPW_MODEL_CUDA_LINEAR_OUTPUTS_CUDA_CUH

#include "model/cuda/linear_choices_cuda.cuh"

struct linear_outputs {
    const float *bias; /* or NULL; gated: gate's, then up's */
    void *y;
    const void *residual; /* has the shape of y, or NULL */
    size_t y_stride;
    int m, n; /* n: outputs of a row */
    bool gated, y_f32;
    enum spw_activation act;
    struct linear_choices choices;
};

/* Makes the outputs those of row blockIdx.y alone, whose expert is given. */
__device__ __forceinline__ void take_row_of_y(struct linear_outputs *p, uint32_t expert)
{
    const size_t at = blockIdx.y * p->y_stride * (p->y_f32 ? 4 : 2);
    p->y = (uint8_t *)p->y + at;
    if (p->residual)
        p->residual = (const uint8_t *)p->residual + at;
    if (p->bias)
        p->bias += expert * p->choices.bias_step;
    p->m = 1;
}

__device__ __forceinline__ size_t place_in_y(const struct linear_outputs &p, int row, int col)
{
    return (size_t)row * p.y_stride + (size_t)col;
}

/* The bits that `finish` adds; unspecified without a residual. The caller widens them later:
 * widening here would wait for the load. The residual may be y, so no load of it may pass a
 * store. */
__device__ __forceinline__ uint32_t residual(const struct linear_outputs &p, int row, int col)
{
    const size_t i = place_in_y(p, row, col);
    if (!p.residual)
        return 0;
    return p.y_f32 ? ((const uint32_t *)p.residual)[i] : ((const uint16_t *)p.residual)[i];
}

__device__ __forceinline__ float biased(const struct linear_outputs &p, float sum, int col)
{
    return p.bias ? sum + p.bias[col] : sum;
}

__device__ __forceinline__ float finish(const struct linear_outputs &p, float sum, int col,
                                        uint32_t more)
{
    const float value = biased(p, sum, col);
    if (!p.residual)
        return value;
    if (p.y_f32)
        return __uint_as_float(more) + value;
    return spw_device_bf16((uint16_t)more) + spw_device_bf16(spw_device_to_bf16(value));
}

__device__ __forceinline__ float finish_gated(const struct linear_outputs &p, float gate, float up,
                                              int col)
{
    return gated<uint16_t>(biased(p, gate, col), biased(p, up, p.n + col), p.act);
}

__device__ __forceinline__ void store(const struct linear_outputs &p, int row, int col, float value)
{
    const size_t i = place_in_y(p, row, col);
    if (p.y_f32)
        ((float *)p.y)[i] = value;
    else
        ((uint16_t *)p.y)[i] = spw_device_to_bf16(value);
}

#endif
