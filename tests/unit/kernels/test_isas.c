/* Which instruction sets a processor has by its CPUID and XCR0, for processors of every kind. Bits
 * are numbered as in Intel's manual. Then this processor: the best set runs, and no later one. */
#include "model/cpu/ops_cpu.h"
#include "tests/check.h"

#include <string.h>

#if defined(SPW_X86_KERNELS)

#define BIT(n) ((uint32_t)1 << (n))
#define SET(name) BIT(SPW_ISA_##name)

enum {
    SAVES_YMM = 0x7,
    SAVES_ZMM = 0xe7,
    SAVES_TILES = 0x600e7,
};

struct processor {
    const char *name;
    struct spw_cpuid cpuid;
    unsigned isas; /* without portable, which is always there */
};

#define AVX (BIT(12) | BIT(27) | BIT(28) | BIT(29)) /* FMA, OSXSAVE, AVX, F16C */
#define AVX2 BIT(5)
#define AVX512 (AVX2 | BIT(16) | BIT(17) | BIT(30) | BIT(31)) /* F, DQ, BW, VL */
#define AVX512_VNNI BIT(11)
#define AVX_VNNI BIT(4)
#define AVX512_BF16 BIT(5)
#define UNITS_256 BIT(2)
#define UNITS_512 BIT(3)
#define AMX (BIT(22) | BIT(24) | BIT(25)) /* BF16, TILE, INT8 */

static const struct processor processors[] = {
    {"none of all", {0}, 0},
    {"Sandy Bridge", {BIT(27) | BIT(28), 0, 0, 0, 0, SAVES_YMM, 0}, 0},
    {"Haswell", {AVX, AVX2, 0, 0, 0, SAVES_YMM, 0}, SET(AVX2)},
    {"Haswell, ymm not saved", {AVX, AVX2, 0, 0, 0, 0x3, 0}, 0},
    {"Alder Lake", {AVX, AVX2, 0, 0, AVX_VNNI, SAVES_YMM, 0}, SET(AVX2) | SET(AVX2VNNI)},
    {"Knights Landing", {AVX, AVX2 | BIT(16), 0, 0, 0, SAVES_ZMM, 0}, SET(AVX2)},
    {"Skylake-SP", {AVX, AVX512, 0, 0, 0, SAVES_ZMM, 0}, SET(AVX2) | SET(AVX512)},
    {"Ice Lake",
     {AVX, AVX512, AVX512_VNNI, 0, 0, SAVES_ZMM, 0},
     SET(AVX2) | SET(AVX512) | SET(AVX512VNNI)},
    {"Ice Lake, zmm not saved", {AVX, AVX512, AVX512_VNNI, 0, 0, SAVES_YMM, 0}, SET(AVX2)},
    {"Zen 4",
     {AVX, AVX512, AVX512_VNNI, 0, AVX512_BF16, SAVES_ZMM, BIT(1) | UNITS_256},
     SET(AVX2) | SET(AVX512) | SET(AVX512VNNI) | SET(AVX512BF16) | SET(AVX512HALF)},
    {"Zen 5",
     {AVX, AVX512, AVX512_VNNI, 0, AVX_VNNI | AVX512_BF16, SAVES_ZMM,
      BIT(1) | UNITS_256 | UNITS_512},
     SET(AVX2) | SET(AVX2VNNI) | SET(AVX512) | SET(AVX512VNNI) | SET(AVX512BF16)},
    {"Zen 3", {AVX, AVX2, 0, 0, 0, SAVES_YMM, BIT(1) | UNITS_256}, SET(AVX2)},
    {"bf16 without VNNI", {AVX, AVX512, 0, 0, AVX512_BF16, SAVES_ZMM, 0}, SET(AVX2) | SET(AVX512)},
    {"Sapphire Rapids, tiles not saved",
     {AVX, AVX512, AVX512_VNNI, AMX, AVX_VNNI | AVX512_BF16, SAVES_ZMM, 0},
     SET(AVX2) | SET(AVX2VNNI) | SET(AVX512) | SET(AVX512VNNI) | SET(AVX512BF16) |
         SET(AVX512INTEL)},
    {"AMX without int8",
     {AVX, AVX512, AVX512_VNNI, AMX & ~BIT(25), AVX_VNNI | AVX512_BF16, SAVES_TILES, 0},
     SET(AVX2) | SET(AVX2VNNI) | SET(AVX512) | SET(AVX512VNNI) | SET(AVX512BF16) |
         SET(AVX512INTEL)},
    {"Sapphire Rapids",
     {AVX, AVX512, AVX512_VNNI, AMX, AVX_VNNI | AVX512_BF16, SAVES_TILES, 0},
     SET(AVX2) | SET(AVX2VNNI) | SET(AVX512) | SET(AVX512VNNI) | SET(AVX512BF16) |
         SET(AVX512INTEL) | SET(AMX)},
};

static void check_processors(void)
{
    for (size_t i = 0; i < sizeof processors / sizeof processors[0]; i++) {
        const struct processor *p = &processors[i];
        const unsigned isas = spw_isas_of(&p->cpuid);
        CHECK_MSG(isas == (p->isas | SET(PORTABLE)), "%s: sets %#x", p->name, isas);
    }
}

#else

static void check_processors(void)
{
}

#endif

int main(void)
{
    const enum spw_isa best = spw_isa_best();
    check_processors();
    CHECK(!strcmp(spw_isa_name(SPW_ISA_AVX512HALF), spw_isa_name(SPW_ISA_AVX512BF16)));
    CHECK(!strcmp(spw_isa_name(SPW_ISA_AVX512INTEL), spw_isa_name(SPW_ISA_AVX512BF16)));
    CHECK(spw_isa_runs(SPW_ISA_PORTABLE) && spw_isa_runs(best) && !spw_isa_runs(SPW_ISA_COUNT));
    for (int isa = 0; isa < SPW_ISA_COUNT; isa++) {
        const struct spw_cpu_kernels *k = spw_cpu_kernels_get((enum spw_isa)isa);
        CHECK(!spw_isa_runs((enum spw_isa)isa) || isa <= (int)best);
        CHECK(!k == !spw_isa_runs((enum spw_isa)isa));
        CHECK(!k || k->isa == (enum spw_isa)isa);
    }
    return check_done();
}
