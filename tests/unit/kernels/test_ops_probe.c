/* The probes measure something plausible, refuse what cannot be measured, and leak nothing. */
#include "tests/check.h"

#include "model/cpu/probe/probe.h"
#include "model/cpu/probe/probe_loops.h"

/* Any machine that builds this reads more than 50 MB/s and computes more than 10 MFLOP/s; none
 * reaches a PB/s or 1000 TFLOP/s. */
static void check_plausible(const char *what, double rate, double low, double high)
{
    CHECK_MSG(rate > low && rate < high, "%s: %g", what, rate);
}

static void check_failed_allocations(void)
{
    struct spw_read_pattern best;
    for (int64_t n = 0; n < 3; n++) {
        spw_alloc_fail_nth(n);
        double read, copied;
        CHECK(spw_probe_read_bandwidth(1, &best) == 0);
        spw_alloc_fail_nth(n);
        CHECK(n == 2 || !spw_probe_read_beside_copy(1, &read, &copied));
        spw_alloc_fail_nth(-1);
    }
}

/* Every pattern reads every byte: a byte that differs changes the result, at any place. */
static void check_patterns(const struct spw_probe_loops *loops)
{
    static char memory[2 * SPW_PROBE_READ_BYTES];
    uint64_t rng = check_seed();
    for (unsigned streams = 1; streams <= 8; streams *= 2)
        for (int fetch = 0; fetch < 2; fetch++) {
            CHECK(loops->read(memory, sizeof memory, streams, fetch) == 0);
            for (int i = 0; i < 64; i++) {
                char *at = memory + check_random(&rng) % sizeof memory;
                *at = 1;
                CHECK(loops->read(memory, sizeof memory, streams, fetch) != 0);
                *at = 0;
            }
        }
}

static void check_read_bandwidth(unsigned threads)
{
    struct spw_read_pattern best = {0};
    check_plausible("read", spw_probe_read_bandwidth(threads, &best), 5e7, 1e15);
    CHECK(best.streams == 1 || best.streams == 2 || best.streams == 4 || best.streams == 8);
}

int main(void)
{
    const enum spw_isa best = spw_isa_best();
    for (unsigned threads = 1; threads <= 2; threads++) {
        check_read_bandwidth(threads);
        check_plausible("copy", spw_probe_copy_bandwidth(threads), 5e7, 1e15);
    }
    for (unsigned readers = 1; readers <= 2; readers++) {
        double read, copied;
        CHECK(spw_probe_read_beside_copy(readers, &read, &copied));
        check_plausible("read beside a copy", read, 5e7, 1e15);
        check_plausible("copied beside reading", copied, 2e7, 1e15);
    }
    static const enum spw_dtype types[] = {SPW_DTYPE_F32, SPW_DTYPE_F16, SPW_DTYPE_BF16,
                                           SPW_DTYPE_Q8_0};
    for (int isa = 0; isa < SPW_ISA_COUNT; isa++)
        for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
            double peak = spw_probe_matrix_peak((enum spw_isa)isa, types[i], 1);
            if (!spw_isa_runs((enum spw_isa)isa) || types[i] == SPW_DTYPE_F16)
                CHECK(peak == 0);
            else
                check_plausible(spw_isa_name((enum spw_isa)isa), peak, 1e7, 1e15);
        }
    struct spw_read_pattern none;
    CHECK(spw_probe_read_bandwidth(0, &none) == 0);
    check_patterns(&spw_probe_loops_portable);
#if defined(SPW_X86_KERNELS)
    if (spw_isa_runs(SPW_ISA_AVX2))
        check_patterns(&spw_probe_loops_avx2);
    if (spw_isa_runs(SPW_ISA_AVX512))
        check_patterns(&spw_probe_loops_avx512);
#endif
    CHECK(spw_probe_copy_bandwidth(1u << 20) == 0);
    CHECK(spw_probe_matrix_peak(best, SPW_DTYPE_F32, 0) == 0);
    check_failed_allocations();
    CHECK(spw_alloc_outstanding() == 0);
    return check_done();
}
