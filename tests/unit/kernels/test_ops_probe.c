/* The probes measure something plausible, refuse what cannot be measured, and leak nothing. */
#include "tests/check.h"

#include "model/cpu/probe/probe.h"
#include "model/cpu/probe/probe_loops.h"

/* Any machine that builds this reads more than 50 MB/s and computes more than 10 MFLOP/s; none
 * reaches a PB/s or 1000 TFLOP/s. The fastest round is not slower than the median. */
static void check_plausible(const char *what, const struct spw_rounds *r, double low, double high)
{
    const double typical = 1 / spw_rounds_take(r, SPW_ROUND_TYPICAL);
    const double best = 1 / spw_rounds_take(r, SPW_ROUND_BEST);
    CHECK_MSG(typical > low && typical <= best && best < high, "%s: %g %g", what, typical, best);
}

static void check_failed_allocations(void)
{
    for (int64_t n = 0; n < 2; n++) {
        struct spw_rounds read = {0};
        spw_alloc_fail_nth(n);
        CHECK(!spw_probe_read(&read, 1));
        spw_alloc_fail_nth(-1);
    }
}

/* A byte that differs changes the result, at any place. */
static void check_loops(const struct spw_probe_loops *loops)
{
    static char memory[2 * SPW_PROBE_READ_BYTES];
    uint64_t rng = check_seed();
    CHECK(loops->read(memory, sizeof memory) == 0);
    for (int i = 0; i < 64; i++) {
        char *at = memory + check_random(&rng) % sizeof memory;
        *at = 1;
        CHECK(loops->read(memory, sizeof memory) != 0);
        *at = 0;
    }
}

int main(void)
{
    const enum spw_isa best = spw_isa_best();
    for (unsigned threads = 1; threads <= 2; threads++) {
        struct spw_rounds read = {0};
        CHECK(spw_probe_read(&read, threads));
        check_plausible("read", &read, 5e7, 1e15);
    }
    static const enum spw_dtype types[] = {SPW_DTYPE_F32, SPW_DTYPE_F16, SPW_DTYPE_BF16,
                                           SPW_DTYPE_Q8_0};
    for (int isa = 0; isa < SPW_ISA_COUNT; isa++)
        for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
            struct spw_rounds peak = {0};
            const bool ok = spw_probe_matrix_peak(&peak, (enum spw_isa)isa, types[i], 1);
            CHECK(ok == (spw_isa_runs((enum spw_isa)isa) && types[i] != SPW_DTYPE_F16));
            if (ok)
                check_plausible(spw_isa_name((enum spw_isa)isa), &peak, 1e7, 1e15);
        }
    struct spw_rounds rounds = {0};
    CHECK(!spw_probe_read(&rounds, 0));
    check_loops(&spw_probe_loops_portable);
#if defined(SPW_X86_KERNELS)
    if (spw_isa_runs(SPW_ISA_AVX2))
        check_loops(&spw_probe_loops_avx2);
    if (spw_isa_runs(SPW_ISA_AVX512))
        check_loops(&spw_probe_loops_avx512);
#endif
    CHECK(!spw_probe_read(&rounds, 1u << 20));
    CHECK(!spw_probe_matrix_peak(&rounds, best, SPW_DTYPE_F32, 0) && rounds.n == 0);
    check_failed_allocations();
    CHECK(spw_alloc_outstanding() == 0);
    return check_done();
}
