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
    UNITS_256 = 1 << 2, /* FP256 and FP512 of AMD's leaf */
    UNITS_512 = 1 << 3,
    /* AMX-INT8, AMX-TILE, AMX-BF16: clang 14 has no names for them. */
    CPUID7_EDX_AMX = 1 << 25 | 1 << 24 | 1 << 22,
    ARCH_REQUEST_PERMISSION = 0x1023, /* ARCH_REQ_XCOMP_PERM of <asm/prctl.h> */
};

static uint64_t saved_registers(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

/* Asks each time: the request is idempotent, and no state is needed. */
static bool amx_permitted(void)
{
    return syscall(SYS_arch_prctl, ARCH_REQUEST_PERMISSION, XFEATURE_TILE_DATA) == 0;
}

static struct spw_cpuid read_cpuid(void)
{
    struct spw_cpuid c = {0};
    uint32_t eax, ebx, ecx, edx;
    if (!__get_cpuid(1, &eax, &ebx, &c.leaf1_ecx, &edx) || !(c.leaf1_ecx & bit_OSXSAVE))
        return c;
    c.saved = saved_registers();
    if (__get_cpuid_count(7, 0, &eax, &c.leaf7_ebx, &c.leaf7_ecx, &c.leaf7_edx) && eax >= 1)
        __get_cpuid_count(7, 1, &c.leaf7_1_eax, &ebx, &ecx, &edx);
    __get_cpuid(0x8000001au, &c.leaf8_1a_eax, &ebx, &ecx, &edx);
    return c;
}

static bool all(uint64_t value, uint64_t bits)
{
    return (value & bits) == bits;
}

unsigned spw_isas_of(const struct spw_cpuid *c)
{
    const uint32_t avx = bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C;
    const uint32_t avx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ;
    unsigned isas = 1u << SPW_ISA_PORTABLE;
    if (!all(c->leaf1_ecx, avx) || !all(c->saved, XCR0_AVX) || !all(c->leaf7_ebx, bit_AVX2))
        return isas;
    isas |= 1u << SPW_ISA_AVX2;
    if (all(c->leaf7_1_eax, bit_AVXVNNI))
        isas |= 1u << SPW_ISA_AVX2VNNI;
    if (!all(c->saved, XCR0_AVX512) || !all(c->leaf7_ebx, avx512))
        return isas;
    isas |= 1u << SPW_ISA_AVX512;
    if (!all(c->leaf7_ecx, bit_AVX512VNNI))
        return isas;
    isas |= 1u << SPW_ISA_AVX512VNNI;
    if (!all(c->leaf7_1_eax, bit_AVX512BF16))
        return isas;
    isas |= 1u << SPW_ISA_AVX512BF16;
    if ((c->leaf8_1a_eax & (UNITS_256 | UNITS_512)) == UNITS_256)
        isas |= 1u << SPW_ISA_AVX512HALF;
    if (!(c->leaf8_1a_eax & (UNITS_256 | UNITS_512)))
        isas |= 1u << SPW_ISA_AVX512INTEL;
    if (all(c->saved, XCR0_AMX) && all(c->leaf7_edx, CPUID7_EDX_AMX))
        isas |= 1u << SPW_ISA_AMX;
    return isas;
}

bool spw_isa_runs(enum spw_isa isa)
{
    const struct spw_cpuid c = read_cpuid();
    return (unsigned)isa < SPW_ISA_COUNT && spw_isas_of(&c) >> isa & 1 &&
           (isa != SPW_ISA_AMX || amx_permitted());
}

#else

bool spw_isa_runs(enum spw_isa isa)
{
    return isa == SPW_ISA_PORTABLE;
}

#endif

enum spw_isa spw_isa_best(void)
{
    int isa = SPW_ISA_COUNT - 1;
    while (!spw_isa_runs((enum spw_isa)isa))
        isa--;
    return (enum spw_isa)isa;
}

const char *spw_isa_name(enum spw_isa isa)
{
    static const char *const names[SPW_ISA_COUNT] = {"portable",   "avx2",       "avx2vnni",
                                                     "avx512",     "avx512vnni", "avx512bf16",
                                                     "avx512bf16", "avx512bf16", "amx"};
    return (unsigned)isa < SPW_ISA_COUNT ? names[isa] : "unknown";
}

/* A row: the instruction set, the set of its kernels except three, the sets of its attention, of
 * its linear_codes and of its linear. */
#define ROW(its_isa, set, attention_set, codes_set, linear_set)                                    \
    {                                                                                              \
        .isa = SPW_ISA_##its_isa, .norm = &spw_norm_kernel_##set,                                  \
        .rope_append = &spw_rope_append_kernel_##set,                                              \
        .kv_quantize = &spw_codec_encode_kernel_##set,                                             \
        .attention = &spw_attention_kernel_##attention_set,                                        \
        .attention_splits = &spw_attention_splits_kernel_##attention_set,                          \
        .attention_merge = &spw_attention_merge_kernel_##attention_set,                            \
        .gated = &spw_gated_kernel_##set, .softcap = &spw_softcap_kernel_##set,                    \
        .each = &spw_each_kernel_##set, .route_scores = &spw_route_scores_kernel_##set,            \
        .route = &spw_route_kernel_##set, .gather = &spw_gather_kernel_##set,                      \
        .combine = &spw_combine_kernel_##set, .encode = &spw_encode_kernel_##set,                  \
        .conv = &spw_conv_kernel_##set, .recur = &spw_recur_kernel_##set,                          \
        .gated_norm = &spw_gated_norm_kernel_##set,                                                \
        .linear_codes = &spw_linear_codes_kernel_##codes_set,                                      \
        .linear = &spw_linear_kernel_##linear_set,                                                 \
        .linear_workspace = spw_linear_workspace_##linear_set,                                     \
    }

static const struct spw_cpu_kernels tables[] = {
    ROW(PORTABLE, portable, portable, portable, portable),
#if defined(SPW_X86_KERNELS)
    ROW(AVX2, avx2, avx2, avx2, avx2),
    ROW(AVX2VNNI, avx2, avx2, avx2vnni, avx2),
    ROW(AVX512, avx512, avx512, avx512, avx512),
    ROW(AVX512VNNI, avx512, avx512, avx512intel, avx512), /* Intel alone has VNNI without bf16 */
    ROW(AVX512BF16, avx512bf16, avx512bf16, avx512vnni, avx512bf16),
    ROW(AVX512HALF, avx512bf16, avx512bf16, avx512half, avx512bf16),
    ROW(AVX512INTEL, avx512bf16, avx512intel, avx512intel, avx512intel),
    ROW(AMX, avx512bf16, avx512intel, amx, amx),
#endif
};

const struct spw_cpu_kernels *spw_cpu_kernels_get(enum spw_isa isa)
{
    if (!spw_isa_runs(isa))
        return NULL;
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++)
        if (tables[i].isa == isa)
            return &tables[i];
    return NULL;
}
