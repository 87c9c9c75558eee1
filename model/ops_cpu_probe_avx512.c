/* Probe loops of AVX-512: see ops_cpu_probe.h. */
#include "model/ops_cpu_probe_loops.h"

#include <immintrin.h>

/* Four loads a turn; prefetching two pages ahead is worth 3 % (Zen 5, 2026-11), 10 % on an Emerald
 * Rapids, where the same with the hint NTA halves what is read. */
static uint64_t read_all(const void *p, size_t bytes)
{
    const char *from = p;
    __m512i any[4] = {_mm512_setzero_si512()};
    any[1] = any[2] = any[3] = any[0];
    for (size_t i = 0; i < bytes; i += 256)
        for (size_t j = 0; j < 4; j++) {
            _mm_prefetch(from + i + j * 64 + 8192, _MM_HINT_T0);
            any[j] = _mm512_or_si512(any[j], _mm512_loadu_si512(from + i + j * 64));
        }
    return (uint64_t)_mm512_reduce_or_epi64(
        _mm512_or_si512(_mm512_or_si512(any[0], any[1]), _mm512_or_si512(any[2], any[3])));
}

static double f32(uint64_t rounds)
{
    const __m512 x = _mm512_set1_ps(1e-8f), w = _mm512_set1_ps(1e-9f);
#define START(i) __m512 a##i = _mm512_set1_ps(i);
    SPW_PROBE_EACH(START)
    for (uint64_t round = 0; round < rounds; round++) {
#define STEP(i) a##i = _mm512_fmadd_ps(x, w, a##i);
        SPW_PROBE_EACH(STEP)
    }
#define END(i) spw_probe_keep(&a##i);
    SPW_PROBE_EACH(END)
    return (double)rounds * SPW_PROBE_CHAINS * 16 * 2;
}

const struct spw_probe_loops spw_probe_loops_avx512 = {.read = read_all, .f32 = f32, .bf16 = f32};
