/* Registers of four times 128 bits ("fours"), with AVX2 of two times: SIMD_FOURS of them. */
#ifndef SPW_BASE_SIMD_FOURS_H
#define SPW_BASE_SIMD_FOURS_H

#include "base/simd_bytes.h"

#if SIMD_LANES == 16
#define SIMD_FOURS 4

/* ---- fours ---- */

/* The same number in every lane of a four. */
SIMD_FN u32v simd_each_four(unsigned a, unsigned b, unsigned c, unsigned d)
{
    return (u32v){a, a, a, a, b, b, b, b, c, c, c, c, d, d, d, d};
}

/* The 16 bytes at p in each four. */
SIMD_FN u32v simd_same_four(const void *p)
{
    return (u32v)_mm512_broadcast_i32x4(_mm_loadu_si128(p));
}

/* Four l has the word l of the four words at p in all lanes. */
SIMD_FN u32v simd_spread_four(const void *p)
{
    return (u32v)_mm512_permutexvar_epi32((__m512i)simd_each_four(0, 1, 2, 3),
                                          _mm512_castsi128_si512(_mm_loadu_si128(p)));
}

/* Lane l of each four, in all lanes of the four. */
SIMD_FN f32v simd_lane_of_four(f32v x, size_t l)
{
    const u32v index = simd_each_four(0, 4, 8, 12) + (uint32_t)l;
    return _mm512_permutexvar_ps((__m512i)index, x);
}

/* Four i of x in each four. */
SIMD_FN f32v simd_one_four(f32v x, size_t i)
{
    const u32v index = (simd_iota() & 3u) + 4 * (uint32_t)i;
    return _mm512_permutexvar_ps((__m512i)index, x);
}

/* The 32 bytes at p, twice. */
SIMD_FN u32v simd_twice32(const uint8_t *p)
{
    return (u32v)_mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)p));
}

/* Fours 0, 0, 2, 2 and 1, 1, 3, 3 of those at p. */
SIMD_FN u32v simd_even_fours(const void *p)
{
    const __m512i x = _mm512_loadu_si512(p);
    return (u32v)_mm512_shuffle_i32x4(x, x, 0xa0);
}

SIMD_FN u32v simd_odd_fours(const void *p)
{
    const __m512i x = _mm512_loadu_si512(p);
    return (u32v)_mm512_shuffle_i32x4(x, x, 0xf5);
}

/* Fours 0 and 2, and 1 and 3, of a and then of b. */
SIMD_FN u32v simd_even_fours_of(u32v a, u32v b)
{
    return (u32v)_mm512_shuffle_i32x4((__m512i)a, (__m512i)b, 0x88);
}

SIMD_FN u32v simd_odd_fours_of(u32v a, u32v b)
{
    return (u32v)_mm512_shuffle_i32x4((__m512i)a, (__m512i)b, 0xdd);
}

/* Byte i of a four becomes `value` if bit i % 8 of byte first + i / 8 of the four is set, else 0.
 */
SIMD_FN u32v simd_bytes_of_bits(u32v x, int first, char value)
{
    const long long low = 0x0101010101010101 * first;
    const __m512i from = _mm512_broadcast_i32x4(_mm_set_epi64x(low + 0x0101010101010101, low));
    const __m512i bits = _mm512_set1_epi64((long long)0x8040201008040201u);
    return (u32v)_mm512_maskz_set1_epi8(
        _mm512_test_epi8_mask(_mm512_shuffle_epi8((__m512i)x, from), bits), value);
}

/* In each four: a0 + a1, a2 + a3, b0 + b1, b2 + b3. No sum is beyond `most`. */
SIMD_FN i32v simd_add_pairs(i32v a, i32v b, int most)
{
    if (most / 2 <= INT16_MAX) /* a and b fit 16 bits */
        return (i32v)_mm512_madd_epi16(_mm512_packs_epi32((__m512i)a, (__m512i)b),
                                       _mm512_set1_epi16(1));
    return (i32v)_mm512_shuffle_ps((__m512)a, (__m512)b, 0x88) +
           (i32v)_mm512_shuffle_ps((__m512)a, (__m512)b, 0xdd);
}

/* Four i of to[j] gets four j of from[i]. */
SIMD_FN void simd_transpose_fours(const u32v from[4], i32v to[4])
{
    const u32v a = (u32v)_mm512_shuffle_i32x4((__m512i)from[0], (__m512i)from[1], 0x44);
    const u32v b = (u32v)_mm512_shuffle_i32x4((__m512i)from[0], (__m512i)from[1], 0xee);
    const u32v c = (u32v)_mm512_shuffle_i32x4((__m512i)from[2], (__m512i)from[3], 0x44);
    const u32v d = (u32v)_mm512_shuffle_i32x4((__m512i)from[2], (__m512i)from[3], 0xee);
    to[0] = (i32v)simd_even_fours_of(a, c);
    to[1] = (i32v)simd_odd_fours_of(a, c);
    to[2] = (i32v)simd_even_fours_of(b, d);
    to[3] = (i32v)simd_odd_fours_of(b, d);
}

/* ---- eight numbers of 16 bits ---- */

/* The four words that have bytes p[first], p[first + stride], ...: they lie in the 64 or 128 bytes
 * at p. */
SIMD_FN __m128i simd_four_words(const uint8_t *p, size_t first, size_t stride)
{
    const __m512i order = _mm512_castsi128_si512(_mm_setr_epi16(
        (int16_t)(first / 2), (int16_t)((first + stride) / 2), (int16_t)((first + 2 * stride) / 2),
        (int16_t)((first + 3 * stride) / 2), 0, 0, 0, 0));
    const __m512i low = _mm512_loadu_si512(p);
    if (first + 3 * stride + 2 <= 64)
        return _mm512_castsi512_si128(_mm512_permutexvar_epi16(order, low));
    return _mm512_castsi512_si128(
        _mm512_permutex2var_epi16(low, order, _mm512_loadu_si512(p + 64)));
}

/* The eight words that have bytes p[first], p[first + stride], ...; stride is 17 or more. Reads no
 * byte from p + 8 stride on. */
SIMD_FN __m128i simd_eight_words(const uint8_t *p, size_t first, size_t stride)
{
    const size_t reads = first + 3 * stride + 2 <= 64 ? 64 : 128;
    const size_t high = 4 * stride + reads <= 8 * stride ? 4 * stride : 8 * stride - reads;
    return _mm_unpacklo_epi64(simd_four_words(p, first, stride),
                              simd_four_words(p + high, first + 4 * stride - high, stride));
}

/* to[j] gets words 2 j and 2 j + 1 of sixteen rows, those of rows[4 i + l] in lane i of four l. */
SIMD_FN void simd_transpose_words(const __m128i rows[SIMD_LANES], u32v to[4])
{
    simd_unpack_columns(to, _mm512_loadu_si512(rows), _mm512_loadu_si512(rows + 4),
                        _mm512_loadu_si512(rows + 8), _mm512_loadu_si512(rows + 12));
}

#elif defined(__AVX2__)
#define SIMD_FOURS 2

/* As above, with two fours. */

SIMD_FN u32v simd_same_four(const void *p)
{
    return (u32v)_mm256_broadcastsi128_si256(_mm_loadu_si128(p));
}

SIMD_FN f32v simd_lane_of_four(f32v x, size_t l)
{
    return _mm256_permutevar_ps(x, _mm256_set1_epi32((int)l));
}

/* The signed bytes of each four as int16: the first eight in to[0], the others in to[1]. */
SIMD_FN void simd_widen_fours(u32v x, u32v to[2])
{
    const __m256i zero = _mm256_setzero_si256();
    to[0] = (u32v)_mm256_srai_epi16(_mm256_unpacklo_epi8(zero, (__m256i)x), 8);
    to[1] = (u32v)_mm256_srai_epi16(_mm256_unpackhi_epi8(zero, (__m256i)x), 8);
}

/* Word i of each four, in all words of the four. */
SIMD_FN u32v simd_word_of_four(u32v x, size_t i)
{
    return (u32v)_mm256_shuffle_epi8((__m256i)x, _mm256_set1_epi16((int16_t)(0x100 + 0x202 * i)));
}

/* Signed bytes 2 i and 2 i + 1 of each lane, as int16. */
SIMD_FN u32v simd_widen_two(u32v x, size_t i)
{
    const u32v from = 0x01800080u + 0x02000200u * (uint32_t)i + 0x04000400u * (simd_iota() & 3u);
    return (u32v)_mm256_srai_epi16(_mm256_shuffle_epi8((__m256i)x, (__m256i)from), 8);
}

SIMD_FN u32v simd_load_four(const uint8_t *p, size_t stride)
{
    return (u32v)simd_load_two(p, stride);
}

SIMD_FN u32v simd_bytes_of_bits(u32v x, int first, char value)
{
    const long long low = 0x0101010101010101 * first, high = low + 0x0101010101010101;
    const __m256i from = _mm256_setr_epi64x(low, high, low, high);
    const __m256i bits = _mm256_set1_epi64x((long long)0x8040201008040201u);
    const __m256i set = _mm256_and_si256(_mm256_shuffle_epi8((__m256i)x, from), bits);
    return (u32v)_mm256_and_si256(_mm256_cmpeq_epi8(set, bits), _mm256_set1_epi8(value));
}

SIMD_FN i32v simd_add_pairs(i32v a, i32v b, int most)
{
    if (most / 2 <= INT16_MAX)
        return (i32v)_mm256_madd_epi16(_mm256_packs_epi32((__m256i)a, (__m256i)b),
                                       _mm256_set1_epi16(1));
    return (i32v)_mm256_shuffle_ps((__m256)a, (__m256)b, 0x88) +
           (i32v)_mm256_shuffle_ps((__m256)a, (__m256)b, 0xdd);
}
#endif

#if defined(SIMD_FOURS)

/* Lane r of each four: the sum of that four of v[r]. No number of v is beyond `most`. */
SIMD_FN i32v simd_sums_of_fours(const i32v v[4], int most)
{
    return simd_add_pairs(simd_add_pairs(v[0], v[1], 2 * most),
                          simd_add_pairs(v[2], v[3], 2 * most), 4 * most);
}

#endif
#endif
