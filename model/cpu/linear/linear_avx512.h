/* What the AVX-512 versions of the linear kernel share: loads that widen to f32, sums of lanes.
 * A `raw` is 16 channels of f32, whatever the type in memory was. */
#ifndef SPW_MODEL_CPU_LINEAR_LINEAR_AVX512_H
#define SPW_MODEL_CPU_LINEAR_LINEAR_AVX512_H

#include "model/cpu/linear/linear.h"

#include <immintrin.h>

ALWAYS_INLINE __m512 widen_bf16(__m256i v)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
}

ALWAYS_INLINE __m512 load_f32(const void *p)
{
    return _mm512_loadu_ps(p);
}

ALWAYS_INLINE __m512 load_f16(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256(p));
}

ALWAYS_INLINE __m512 load_bf16(const void *p)
{
    return widen_bf16(_mm256_loadu_si256(p));
}

/* `count` < 16 channels, zeros behind them. */
ALWAYS_INLINE __m512 load_f32_part(const void *p, size_t count)
{
    return _mm512_maskz_loadu_ps((__mmask16)((1u << count) - 1), p);
}

ALWAYS_INLINE __m256i load_16bit_part(const void *p, size_t count)
{
    return _mm256_maskz_loadu_epi16((__mmask16)((1u << count) - 1), p);
}

/* The sums over the 16 lanes of four vectors: lanes 8 apart, then 4, 2 and 1 apart. */
ALWAYS_INLINE void sums_f32x16(__m512 a, __m512 b, __m512 c, __m512 d, float out[4])
{
    __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
    __m512 abcd =
        _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    abcd = _mm512_add_ps(abcd, _mm512_permute_ps(abcd, 0x4e));
    abcd = _mm512_add_ps(abcd, _mm512_permute_ps(abcd, 0xb1));
    /* The first lane of each quarter. */
    _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, abcd)));
}

#endif
