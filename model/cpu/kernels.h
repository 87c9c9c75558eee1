/* The names of the kernels in the tables of ops_cpu.c: spw_<op>_kernel_<isa>. The files *_simd.c
 * define them and are compiled once for each instruction set. model/ops.h says what a kernel
 * computes. The amx table takes all kernels except `linear` from avx512bf16. */
#ifndef SPW_MODEL_CPU_KERNELS_H
#define SPW_MODEL_CPU_KERNELS_H

#include "model/cpu/ops_cpu.h"

#define SPW_DECLARE_CPU_KERNELS(isa)                                                               \
    extern const struct spw_kernel spw_norm_kernel_##isa;                                          \
    extern const struct spw_kernel spw_linear_kernel_##isa;                                        \
    extern const struct spw_kernel spw_rope_append_kernel_##isa;                                   \
    extern const struct spw_kernel spw_attention_kernel_##isa;                                     \
    extern const struct spw_kernel spw_attention_splits_kernel_##isa;                              \
    extern const struct spw_kernel spw_attention_merge_kernel_##isa;                               \
    extern const struct spw_kernel spw_gated_kernel_##isa;                                         \
    extern const struct spw_kernel spw_softcap_kernel_##isa;                                       \
    extern const struct spw_kernel spw_each_kernel_##isa;                                          \
    extern const struct spw_kernel spw_route_scores_kernel_##isa;                                  \
    extern const struct spw_kernel spw_route_kernel_##isa;                                         \
    extern const struct spw_kernel spw_gather_kernel_##isa;                                        \
    extern const struct spw_kernel spw_combine_kernel_##isa;                                       \
    extern const struct spw_kernel spw_encode_kernel_##isa;                                        \
    extern const struct spw_kernel spw_linear_codes_kernel_##isa;                                  \
    size_t spw_linear_codes_workspace_##isa(size_t k);                                             \
    /* Bytes of linear workspace one worker needs; a multiple of 64. */                            \
    size_t spw_linear_workspace_##isa(size_t k, enum spw_dtype x, enum spw_dtype w)

SPW_DECLARE_CPU_KERNELS(portable);
SPW_DECLARE_CPU_KERNELS(avx2);
SPW_DECLARE_CPU_KERNELS(avx512);
SPW_DECLARE_CPU_KERNELS(avx512bf16);

#undef SPW_DECLARE_CPU_KERNELS

extern const struct spw_kernel spw_linear_kernel_amx;

size_t spw_linear_workspace_amx(size_t k, enum spw_dtype x, enum spw_dtype w);

#endif
