/* Probe loops of AVX2: see probe.h. */
#include <immintrin.h>
#include <stdint.h>

typedef __m256i vec;

static inline vec vec_zero(void)
{
    return _mm256_setzero_si256();
}

static inline vec vec_or(vec v, const char *p)
{
    return _mm256_or_si256(v, _mm256_loadu_si256((const void *)p));
}

static inline vec vec_both(vec a, vec b)
{
    return _mm256_or_si256(a, b);
}

static inline uint64_t vec_bits(vec v)
{
    __m128i half = _mm_or_si128(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    return (uint64_t)(_mm_cvtsi128_si64(half) | _mm_extract_epi64(half, 1));
}

#include "model/cpu/probe/probe_read.h"

static double f32(uint64_t rounds)
{
    const __m256 x = _mm256_set1_ps(1e-8f), w = _mm256_set1_ps(1e-9f);
#define START(i) __m256 a##i = _mm256_set1_ps(i);
    SPW_PROBE_EACH(START)
    for (uint64_t round = 0; round < rounds; round++) {
#define STEP(i) a##i = _mm256_fmadd_ps(x, w, a##i);
        SPW_PROBE_EACH(STEP)
    }
#define END(i) spw_probe_keep(&a##i);
    SPW_PROBE_EACH(END)
    return (double)rounds * SPW_PROBE_CHAINS * 8 * 2;
}

const struct spw_probe_loops spw_probe_loops_avx2 = {.read = read_all, .f32 = f32, .bf16 = f32};
