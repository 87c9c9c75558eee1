/* Which instruction sets this processor offers, and the table of kernels of each: see ops_cpu.h.
 *
 * What CPUID reports is not enough: the operating system must save the wider registers (XCR0), and
 * Linux grants the 8 KiB of AMX tile data to a process only on request. */
#include "model/cpu/kernels.h"

#if defined(SPW_X86_KERNELS)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#if defined(SPW_X86_KERNELS)

enum {
    XCR0_AVX = 0x6,     /* xmm, ymm */
    XCR0_AVX512 = 0xe6, /* + masks, zmm */
    XCR0_AMX = 0x60000, /* tile configuration, tile data */
    XFEATURE_TILE_DATA = 18,
    CPUID7_EDX_AMX = 1 << 24 | 1 << 22, /* AMX-TILE, AMX-BF16: clang 14 has no names for them */
    ARCH_REQUEST_PERMISSION = 0x1023,   /* ARCH_REQ_XCOMP_PERM of <asm/prctl.h> */
};

static uint64_t saved_registers(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static bool all(uint64_t value, uint64_t bits)
{
    return (value & bits) == bits;
}

/* Asks each time: the request is idempotent, and no state is needed. */
static bool amx_permitted(void)
{
    return syscall(SYS_arch_prctl, ARCH_REQUEST_PERMISSION, XFEATURE_TILE_DATA) == 0;
}

enum spw_isa spw_isa_best(void)
{
    uint32_t eax, ebx, ecx, edx, leaf1_ecx, bf16 = 0;
    if (!__get_cpuid(1, &eax, &ebx, &leaf1_ecx, &edx) ||
        !all(leaf1_ecx, bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C))
        return SPW_ISA_PORTABLE;
    uint64_t saved = saved_registers();
    if (!all(saved, XCR0_AVX) || !__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) ||
        !all(ebx, bit_AVX2))
        return SPW_ISA_PORTABLE;
    const uint32_t avx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ;
    if (!all(saved, XCR0_AVX512) || !all(ebx, avx512))
        return SPW_ISA_AVX2;
    uint32_t unused;
    if (eax >= 1)
        __get_cpuid_count(7, 1, &bf16, &unused, &unused, &unused);
    if (!all(bf16, bit_AVX512BF16) || !all(ecx, bit_AVX512VNNI))
        return SPW_ISA_AVX512;
    if (!all(saved, XCR0_AMX) || !all(edx, CPUID7_EDX_AMX) || !amx_permitted())
        return SPW_ISA_AVX512BF16;
    return SPW_ISA_AMX;
}

#else

enum spw_isa spw_isa_best(void)
{
    return SPW_ISA_PORTABLE;
}

#endif

const char *spw_isa_name(enum spw_isa isa)
{
    static const char *const names[SPW_ISA_COUNT] = {"portable", "avx2", "avx512", "avx512bf16",
                                                     "amx"};
    return (unsigned)isa < SPW_ISA_COUNT ? names[isa] : "unknown";
}

/* A row: the instruction set, the set of its kernels except linear, the set of its linear
 * kernel. */
#define ROW(its_isa, set, linear_set)                                                              \
    {                                                                                              \
        .isa = SPW_ISA_##its_isa, .norm = &spw_norm_kernel_##set,                                  \
        .rope_append = &spw_rope_append_kernel_##set,                                              \
        .kv_quantize = &spw_codec_encode_kernel_##set, .attention = &spw_attention_kernel_##set,   \
        .attention_splits = &spw_attention_splits_kernel_##set,                                    \
        .attention_merge = &spw_attention_merge_kernel_##set, .gated = &spw_gated_kernel_##set,    \
        .softcap = &spw_softcap_kernel_##set, .each = &spw_each_kernel_##set,                      \
        .route_scores = &spw_route_scores_kernel_##set, .route = &spw_route_kernel_##set,          \
        .gather = &spw_gather_kernel_##set, .combine = &spw_combine_kernel_##set,                  \
        .encode = &spw_encode_kernel_##set, .linear_codes = &spw_linear_codes_kernel_##set,        \
        .linear = &spw_linear_kernel_##linear_set,                                                 \
        .linear_workspace = spw_linear_workspace_##linear_set,                                     \
    }

static const struct spw_cpu_kernels tables[] = {
    ROW(PORTABLE, portable, portable),
#if defined(SPW_X86_KERNELS)
    ROW(AVX2, avx2, avx2),
    ROW(AVX512, avx512, avx512),
    ROW(AVX512BF16, avx512bf16, avx512bf16),
    ROW(AMX, avx512bf16, amx),
#endif
};

const struct spw_cpu_kernels *spw_cpu_kernels_get(enum spw_isa isa)
{
    if (isa > spw_isa_best())
        return NULL;
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++)
        if (tables[i].isa == isa)
            return &tables[i];
    return NULL;
}
