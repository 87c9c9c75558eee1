/* The outputs of a product on the GPU: from the sum to what is stored. */
#ifndef SPW_MODEL_CUDA_LINEAR_OUTPUTS_CUDA_CUH
#define SPW_MODEL_CUDA_LINEAR_OUTPUTS_CUDA_CUH

#include "model/cuda/gated_cuda.cuh"
#include "model/cuda/linear_cuda.h"

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

static inline void set_outputs(struct linear_outputs *p, const struct spw_linear_args *a,
                               const struct spw_gate *gate)
{
    p->bias = a->bias;
    p->y = a->y;
    p->residual = a->residual;
    p->y_stride = a->y_stride;
    p->m = (int)a->m;
    p->n = (int)a->n;
    p->gated = gate;
    p->y_f32 = a->y_dtype == SPW_DTYPE_F32;
    p->act = gate ? gate->act : SPW_ACT_SILU;
    p->choices = {a->choices, a->matrices, gate ? gate->ups : NULL, a->bias_step};
}

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
