/* Probe loops of AVX2: see ops_cpu_probe.h. */
#include "model/ops_cpu_probe_loops.h"

#include <immintrin.h>

static uint64_t read_all(const void *p, size_t bytes)
{
    const char *from = p;
    __m256i any[4] = {_mm256_setzero_si256()};
    any[1] = any[2] = any[3] = any[0];
    for (size_t i = 0; i < bytes; i += 128)
        for (size_t j = 0; j < 4; j++) {
            _mm_prefetch(from + i + j * 32 + 8192, _MM_HINT_T0);
            any[j] = _mm256_or_si256(any[j], _mm256_loadu_si256((const void *)(from + i + j * 32)));
        }
    any[0] = _mm256_or_si256(_mm256_or_si256(any[0], any[1]), _mm256_or_si256(any[2], any[3]));
    __m128i half =
        _mm_or_si128(_mm256_castsi256_si128(any[0]), _mm256_extracti128_si256(any[0], 1));
    return (uint64_t)(_mm_cvtsi128_si64(half) | _mm_extract_epi64(half, 1));
}

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
