/* The CPU kernels of model/ops.h, one table per instruction set; chosen once, at open.
 *
 * Kernels are pure functions of their arguments (no globals, no allocation). The same table gives
 * the same bits for every number of rows and workers; two tables may differ in the last bits. */
#ifndef SPW_MODEL_CPU_OPS_CPU_H
#define SPW_MODEL_CPU_OPS_CPU_H

#include "model/ops.h"

/* Builds with sanitizers have the portable kernels only: the other kernels are large, and a
 * sanitizer sees the same accesses in the portable ones. */
#if defined(__x86_64__) && !defined(SPW_PORTABLE_KERNELS)
#define SPW_X86_KERNELS 1
#endif

/* A better set comes later. A processor may lack a set and have later ones. */
enum spw_isa {
    SPW_ISA_PORTABLE,    /* plain C */
    SPW_ISA_AVX2,        /* AVX2 + FMA + F16C */
    SPW_ISA_AVX2VNNI,    /* + AVX-VNNI: vpdpbusd, for products of quantized weights */
    SPW_ISA_AVX512,      /* AVX-512 F/BW/VL/DQ */
    SPW_ISA_AVX512VNNI,  /* + vpdpbusd, for products of quantized weights */
    SPW_ISA_AVX512BF16,  /* + vdpbf16ps; vpdpbusd for attention, too */
    SPW_ISA_AVX512HALF,  /* the same, for units of 256 bits: few rows with quantized weights */
    SPW_ISA_AVX512INTEL, /* the same, for Intel: few rows with quantized weights, bf16 as f32 */
    SPW_ISA_AMX,         /* + AMX-TILE; AMX-BF16 for any rows, AMX-INT8 for many */
    SPW_ISA_COUNT,
};

struct spw_cpu_kernels {
    enum spw_isa isa;
    const struct spw_kernel *norm, *linear, *rope_append, *kv_quantize;
    const struct spw_kernel *attention;        /* a task walks its splits in order and merges */
    const struct spw_kernel *attention_splits; /* a task per split, into `split_states` */
    const struct spw_kernel *attention_merge;  /* merges `split_states` into the state, in order */
    const struct spw_kernel *gated, *softcap, *each;
    /* route_scores fills `scores` with logits; route takes the choices from them. */
    const struct spw_kernel *route_scores, *route, *gather, *combine;
    /* bf16 x and quantized w, in place of linear: encode fills `codes`, linear_codes multiplies. */
    const struct spw_kernel *encode, *linear_codes;
    const struct spw_kernel *conv, *recur, *gated_norm;
    /* Bytes of workspace one worker needs for inner size k and these types of x and w. */
    size_t (*linear_workspace)(size_t k, enum spw_dtype x, enum spw_dtype w);
};

/* The prefix cache and saved sessions know a backend by this name, so AVX512HALF and AVX512INTEL,
 * which give the bits of AVX512BF16, have the name of AVX512BF16. */
const char *spw_isa_name(enum spw_isa isa);
/* Whether this processor and this build run it (AMX also needs the permission of the kernel). */
bool spw_isa_runs(enum spw_isa isa);
/* The best set of those. */
enum spw_isa spw_isa_best(void);

/* What CPUID and XCR0 say: registers of leaves 1, 7, 7.1 and 0x8000001a, and the registers that the
 * operating system saves. */
struct spw_cpuid {
    uint32_t leaf1_ecx, leaf7_ebx, leaf7_ecx, leaf7_edx, leaf7_1_eax;
    uint64_t saved;
    uint32_t leaf8_1a_eax; /* AMD alone: the width of the vector units */
};
/* The sets of such a processor: bit i for set i. Builds with SPW_X86_KERNELS have it. */
unsigned spw_isas_of(const struct spw_cpuid *c);
/* NULL when this processor or build cannot run it. */
const struct spw_cpu_kernels *spw_cpu_kernels_get(enum spw_isa isa);

#endif
