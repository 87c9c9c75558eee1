/* Between the files of linear on the GPU: linear_cuda.cu (the launcher, bf16 x and W),
 * linear_f32_cuda.cu and linear_codes_cuda.cu. */
#ifndef SPW_MODEL_CUDA_LINEAR_CUDA_H
#define SPW_MODEL_CUDA_LINEAR_CUDA_H

#include "model/ops.h"

/* What a gated product has beside one of w_gate; its bias is [2n]. */
struct spw_gate {
    const void *w_up; /* as w */
    enum spw_activation act;
    const void *const *ups; /* as matrices */
};

/* f32 x; the shape has been checked. gate: or NULL. */
int spw_linear_f32_cuda(const struct spw_linear_args *a, const struct spw_gate *gate, spw_stream s);
/* bf16 x, quantized W; the same. */
int spw_linear_codes_cuda(const struct spw_linear_args *a, const struct spw_gate *gate,
                          spw_stream s);

#endif
