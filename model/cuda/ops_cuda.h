/* The CUDA launchers of model/ops.h. Each checks what its kernel needs, launches on `s` and returns
 * 0, -EINVAL (a shape or alignment that it does not take), or the mapped error of the launch.
 *
 * The same kernel gives the same bits for every number of rows. Linked if CUDA was found, or with
 * the emulator under tests/. */
#ifndef SPW_MODEL_CUDA_OPS_CUDA_H
#define SPW_MODEL_CUDA_OPS_CUDA_H

#include "model/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

int spw_norm_cuda(const struct spw_norm_args *a, spw_stream s);
int spw_linear_cuda(const struct spw_linear_args *a, spw_stream s);
int spw_gated_linear_cuda(const struct spw_gated_linear_args *a, spw_stream s);
int spw_gated_cuda(const struct spw_gated_args *a, spw_stream s);
int spw_rope_append_cuda(const struct spw_rope_append_args *a, spw_stream s);
int spw_attention_cuda(const struct spw_attention_args *a, spw_stream s);
int spw_softcap_cuda(const struct spw_softcap_args *a, spw_stream s);
int spw_each_cuda(const struct spw_each_args *a, spw_stream s);
int spw_route_cuda(const struct spw_route_args *a, spw_stream s);
int spw_gather_cuda(const struct spw_gather_args *a, spw_stream s);
int spw_combine_cuda(const struct spw_combine_args *a, spw_stream s);
int spw_conv_cuda(const struct spw_conv_args *a, spw_stream s);
int spw_recur_cuda(const struct spw_recur_args *a, spw_stream s);
int spw_gated_norm_cuda(const struct spw_gated_norm_args *a, spw_stream s);

#ifdef __cplusplus
}
#endif

#endif
