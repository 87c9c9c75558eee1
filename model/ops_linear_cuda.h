/* Between the two files of linear on the GPU: ops_linear_cuda.cu (the launcher, bf16 x) and
 * ops_linear_f32_cuda.cu. */
#ifndef SPW_MODEL_OPS_LINEAR_CUDA_H
#define SPW_MODEL_OPS_LINEAR_CUDA_H

#include "model/ops.h"

/* f32 x; the shape has been checked. */
int spw_linear_f32_cuda(const struct spw_linear_args *a, spw_stream s);

#endif
