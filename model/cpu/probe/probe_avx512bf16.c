/* Probe loop of the AVX-512 bf16 dot product: see probe.h. */
#include "model/cpu/probe/probe_loops.h"

#include <immintrin.h>

static double bf16(uint64_t rounds)
{
    const __m512bh x = (__m512bh)_mm512_set1_epi16(0x3000), w = x;
#define START(i) __m512 a##i = _mm512_set1_ps(i);
    SPW_PROBE_EACH(START)
    for (uint64_t round = 0; round < rounds; round++) {
#define STEP(i) a##i = _mm512_dpbf16_ps(a##i, x, w);
        SPW_PROBE_EACH(STEP)
    }
#define END(i) spw_probe_keep(&a##i);
    SPW_PROBE_EACH(END)
    return (double)rounds * SPW_PROBE_CHAINS * 16 * 4;
}

const struct spw_probe_loops spw_probe_loops_avx512bf16 = {.bf16 = bf16};
