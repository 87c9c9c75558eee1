/* The names of the kernels in the tables of ops_cpu.c: spw_<op>_kernel_<isa>. The files *_simd.c
 * define them and are compiled once for each instruction set. model/ops.h says what a kernel
 * computes. ops_cpu.c says which set a table takes a kernel from. */
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
    extern const struct spw_kernel spw_conv_kernel_##isa;                                          \
    extern const struct spw_kernel spw_recur_kernel_##isa;                                         \
    extern const struct spw_kernel spw_gated_norm_kernel_##isa;                                    \
    /* Bytes of linear workspace one worker needs; a multiple of 64. */                            \
    size_t spw_linear_workspace_##isa(size_t k, enum spw_dtype x, enum spw_dtype w)

#define SPW_DECLARE_CODES_KERNELS(isa)                                                             \
    extern const struct spw_kernel spw_linear_codes_kernel_##isa;                                  \
    /* A task of it by panels (panels.h), which the kernel uses for many rows of x. */             \
    void spw_linear_codes_panels_##isa(const struct spw_linear_args *a, size_t task,               \
                                       unsigned worker);                                           \
    /* The same with and without VNNI. */                                                          \
    size_t spw_linear_codes_workspace_##isa(size_t k)

/* A task of it with two to eight rows of x. */
#define SPW_DECLARE_FEW_KERNELS(isa)                                                               \
    void spw_linear_codes_few_##isa(const struct spw_linear_args *a, size_t task, unsigned worker)

SPW_DECLARE_CPU_KERNELS(portable);
SPW_DECLARE_CPU_KERNELS(avx2);
SPW_DECLARE_CPU_KERNELS(avx512);
SPW_DECLARE_CPU_KERNELS(avx512bf16);
SPW_DECLARE_CODES_KERNELS(portable);
SPW_DECLARE_CODES_KERNELS(avx2);
SPW_DECLARE_CODES_KERNELS(avx2vnni);
SPW_DECLARE_CODES_KERNELS(avx512);
SPW_DECLARE_CODES_KERNELS(avx512vnni);
SPW_DECLARE_FEW_KERNELS(avx512);
SPW_DECLARE_FEW_KERNELS(avx512vnni);
extern const struct spw_kernel spw_linear_codes_kernel_avx512half;
extern const struct spw_kernel spw_linear_codes_kernel_avx512intel;
extern const struct spw_kernel spw_linear_codes_kernel_amx;

#undef SPW_DECLARE_CPU_KERNELS
#undef SPW_DECLARE_CODES_KERNELS
#undef SPW_DECLARE_FEW_KERNELS

#define spw_linear_codes_workspace_avx512bf16 spw_linear_codes_workspace_avx512vnni

extern const struct spw_kernel spw_attention_kernel_avx512intel;
extern const struct spw_kernel spw_attention_splits_kernel_avx512intel;
extern const struct spw_kernel spw_attention_merge_kernel_avx512intel;
extern const struct spw_kernel spw_linear_kernel_avx512intel;
#define spw_linear_workspace_avx512intel spw_linear_workspace_avx512bf16

extern const struct spw_kernel spw_linear_kernel_amx;

size_t spw_linear_workspace_amx(size_t k, enum spw_dtype x, enum spw_dtype w);

#endif
