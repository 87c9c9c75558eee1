/* Probe loops of AVX-512: see probe.h. */
#include <immintrin.h>
#include <stdint.h>

typedef __m512i vec;

static inline vec vec_zero(void)
{
    return _mm512_setzero_si512();
}

static inline vec vec_or(vec v, const char *p)
{
    return _mm512_or_si512(v, _mm512_loadu_si512(p));
}

static inline vec vec_both(vec a, vec b)
{
    return _mm512_or_si512(a, b);
}

static inline uint64_t vec_bits(vec v)
{
    return (uint64_t)_mm512_reduce_or_epi64(v);
}

#include "model/cpu/probe/probe_read.h"

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
