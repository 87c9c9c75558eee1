/* Bytes in vector registers: four in a lane of base/simd.h. Lanes are columns here: the numbers of
 * a lane never mix with those of another lane. All functions give the same bits in every
 * instruction set. */
#ifndef SPW_BASE_SIMD_BYTES_H
#define SPW_BASE_SIMD_BYTES_H

#include "base/simd.h"

/* Whether one instruction adds the four products of the bytes of a lane. */
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#define SIMD_VNNI 1
#else
#define SIMD_VNNI 0
#endif

/* What is added to a signed byte to make an operand w of simd_dot: VNNI takes bytes without a sign.
 * Bytes in 0 .. 127 are operands as they are. */
#if SIMD_VNNI
#define SIMD_DOT_OFFSET 128
#else
#define SIMD_DOT_OFFSET 0
#endif

/* Whether sums of two products of bytes are added in 16 bits, as far as these hold them. */
#if SIMD_VNNI || SIMD_LANES == 16
#define SIMD_PAIRS 0
#else
#define SIMD_PAIRS 1
#endif

typedef int8_t i8v __attribute__((vector_size(SIMD_LANES)));
typedef uint8_t u8v __attribute__((vector_size(4 * SIMD_LANES)));
typedef int8_t s8v __attribute__((vector_size(4 * SIMD_LANES)));
typedef int16_t i16v __attribute__((vector_size(4 * SIMD_LANES)));

SIMD_FN u32v simd_set1_u32(uint32_t x)
{
    return x + (u32v){0};
}

/* The same 4 bytes in every lane. */
SIMD_FN u32v simd_set1_bytes(const void *p)
{
    uint32_t x;
    memcpy(&x, p, sizeof x);
    return simd_set1_u32(x);
}

/* x, which is computed here. Compilers move the additions of a long loop behind its products, and
 * then have no registers for these. */
SIMD_FN u32v simd_in_order(u32v x)
{
#if defined(__x86_64__)
    __asm__("" : "+x"(x));
#endif
    return x;
}

/* A byte becomes 0xff if it is negative, else 0. */
SIMD_FN u32v simd_negative_bytes(u32v x)
{
    return (u32v)((s8v)x < 0);
}

SIMD_FN f32v simd_from_i32(i32v x)
{
    return __builtin_convertvector(x, f32v); /* to nearest */
}

/* A column lies in each lane. Column l is at p + l / 4 * fours + l % 4 * stride; stride is at
 * least 16. Then
 * - simd_load_columns(to, p, stride, fours): lane l of to[i] gets bytes [4 i, 4 i + 4) of column l,
 *   of which 16 are read;
 * - simd_load_words(p, stride, fours) is to[0] of that;
 * - simd_dot(sum, w, x): sum + the four products of bytes; x in -127 .. 127;
 * - simd_pairs(w, x): two sums of two products of bytes, as int16, which must fit; w in 0 .. 128, x
 *   in -128 .. 127; not with registers of 512 bits;
 * - simd_signed_pairs(w, x): the same, w in -128 .. 127, x in -127 .. 127; where SIMD_PAIRS;
 * - simd_dot_pairs(sum, a, b): sum + the two products of int16;
 * - simd_lookup(table, index): each byte of index, 0 .. 15, becomes that byte of the table;
 * - simd_f16_of(h): the f16 in the low half of each lane, as f32;
 * - simd_load_f16s(p, stride, fours): the f16 at the beginning of each column, as f32. */

#if defined(__AVX2__)

SIMD_FN __m128i simd_load_sixteen(const uint8_t *p)
{
    return _mm_loadu_si128((const void *)p);
}

#endif

#if SIMD_LANES == 16

/* Sixteen bytes at p, p + stride, ... A masked broadcast needs no unit for shuffles. With
 * SIMD_LOAD_HALVES halves are joined: AMD's processors take less time for that (SPEED.md). */
SIMD_FN u32v simd_load_four(const uint8_t *p, size_t stride)
{
    __m512i x = _mm512_castsi128_si512(simd_load_sixteen(p));
#if defined(SIMD_LOAD_HALVES)
    const __m256i low =
        _mm256_inserti128_si256(_mm512_castsi512_si256(x), simd_load_sixteen(p + stride), 1);
    const __m256i high =
        _mm256_inserti128_si256(_mm256_castsi128_si256(simd_load_sixteen(p + 2 * stride)),
                                simd_load_sixteen(p + 3 * stride), 1);
    return (u32v)_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
#else
    x = _mm512_mask_broadcast_i32x4(x, 0x00f0, simd_load_sixteen(p + stride));
    x = _mm512_mask_broadcast_i32x4(x, 0x0f00, simd_load_sixteen(p + 2 * stride));
    return (u32v)_mm512_mask_broadcast_i32x4(x, 0xf000, simd_load_sixteen(p + 3 * stride));
#endif
}

/* Lane 4 i + l of to[j] gets number j of four i of register l: a, b, c or d. */
SIMD_FN void simd_unpack_columns(u32v to[4], __m512i a, __m512i b, __m512i c, __m512i d)
{
    __m512i ab = _mm512_unpacklo_epi32(a, b), cd = _mm512_unpacklo_epi32(c, d);
    to[0] = (u32v)_mm512_unpacklo_epi64(ab, cd);
    to[1] = (u32v)_mm512_unpackhi_epi64(ab, cd);
    ab = _mm512_unpackhi_epi32(a, b), cd = _mm512_unpackhi_epi32(c, d);
    to[2] = (u32v)_mm512_unpacklo_epi64(ab, cd);
    to[3] = (u32v)_mm512_unpackhi_epi64(ab, cd);
}

SIMD_FN void simd_load_columns(u32v to[4], const uint8_t *p, size_t stride, size_t fours)
{
    simd_unpack_columns(to, (__m512i)simd_load_four(p, fours),
                        (__m512i)simd_load_four(p + stride, fours),
                        (__m512i)simd_load_four(p + 2 * stride, fours),
                        (__m512i)simd_load_four(p + 3 * stride, fours));
}

SIMD_FN u32v simd_load_words(const uint8_t *p, size_t stride, size_t fours)
{
    const __m512i a = (__m512i)simd_load_four(p, fours);
    const __m512i b = (__m512i)simd_load_four(p + stride, fours);
    const __m512i c = (__m512i)simd_load_four(p + 2 * stride, fours);
    const __m512i d = (__m512i)simd_load_four(p + 3 * stride, fours);
    __m512i ab = _mm512_unpacklo_epi32(a, b), cd = _mm512_unpacklo_epi32(c, d);
    return (u32v)_mm512_unpacklo_epi64(ab, cd);
}

SIMD_FN u32v simd_lookup(const int8_t table[16], u32v index)
{
    __m512i bytes = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)table));
    return (u32v)_mm512_shuffle_epi8(bytes, (__m512i)index);
}

SIMD_FN f32v simd_f16_of(u32v h)
{
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)h));
}

#if SIMD_VNNI

SIMD_FN i32v simd_dot(i32v sum, u32v w, u32v x)
{
    return (i32v)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w, (__m512i)x);
}

SIMD_FN i32v simd_dot_pairs(i32v sum, u32v a, u32v b)
{
    return (i32v)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
}

#else

/* The signs of w go to x: products of two bytes fit 15 bits. */
SIMD_FN i32v simd_dot(i32v sum, u32v w, u32v x)
{
    __mmask64 negative = _mm512_movepi8_mask((__m512i)w);
    __m512i with_sign =
        _mm512_mask_sub_epi8((__m512i)x, negative, _mm512_setzero_si512(), (__m512i)x);
    __m512i pairs = _mm512_maddubs_epi16(_mm512_abs_epi8((__m512i)w), with_sign);
    return sum + (i32v)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
}

/* Wraps around like vpdpwssd: some lanes are not read and have any numbers. */
SIMD_FN i32v simd_dot_pairs(i32v sum, u32v a, u32v b)
{
    return (i32v)((u32v)sum + (u32v)_mm512_madd_epi16((__m512i)a, (__m512i)b));
}

#endif

#elif defined(__AVX2__)

/* Sixteen bytes at p and at p + fours. A blend may run on more units than an insertion does. It
 * reads the bytes before p + fours too, which belong to other columns. */
SIMD_FN __m256i simd_load_two(const uint8_t *p, size_t fours)
{
    const __m256i high = _mm256_loadu_si256((const void *)(p + fours - 16));
    return _mm256_blend_epi32(_mm256_castsi128_si256(simd_load_sixteen(p)), high, 0xf0);
}

SIMD_FN void simd_load_columns(u32v to[4], const uint8_t *p, size_t stride, size_t fours)
{
    __m256i a = simd_load_two(p, fours), b = simd_load_two(p + stride, fours);
    __m256i c = simd_load_two(p + 2 * stride, fours), d = simd_load_two(p + 3 * stride, fours);
    __m256i ab = _mm256_unpacklo_epi32(a, b), cd = _mm256_unpacklo_epi32(c, d);
    to[0] = (u32v)_mm256_unpacklo_epi64(ab, cd);
    to[1] = (u32v)_mm256_unpackhi_epi64(ab, cd);
    ab = _mm256_unpackhi_epi32(a, b), cd = _mm256_unpackhi_epi32(c, d);
    to[2] = (u32v)_mm256_unpacklo_epi64(ab, cd);
    to[3] = (u32v)_mm256_unpackhi_epi64(ab, cd);
}

SIMD_FN u32v simd_load_words(const uint8_t *p, size_t stride, size_t fours)
{
    __m256i a = simd_load_two(p, fours), b = simd_load_two(p + stride, fours);
    __m256i c = simd_load_two(p + 2 * stride, fours), d = simd_load_two(p + 3 * stride, fours);
    __m256i ab = _mm256_unpacklo_epi32(a, b), cd = _mm256_unpacklo_epi32(c, d);
    return (u32v)_mm256_unpacklo_epi64(ab, cd);
}

SIMD_FN u32v simd_lookup(const int8_t table[16], u32v index)
{
    __m256i bytes = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)table));
    return (u32v)_mm256_shuffle_epi8(bytes, (__m256i)index);
}

SIMD_FN f32v simd_f16_of(u32v h)
{
    const __m256i low = (__m256i)(h & 0xffffu), both = _mm256_packus_epi32(low, low);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_permute4x64_epi64(both, 0xd8)));
}

/* Word l comes from a load that begins l words before column l. */
SIMD_FN f32v simd_load_f16s(const uint8_t *p, size_t stride, size_t fours)
{
    const uint8_t *four = p + fours - 8;
    __m128i words = simd_load_sixteen(p);
    words = _mm_blend_epi16(words, simd_load_sixteen(p + stride - 2), 1 << 1);
    words = _mm_blend_epi16(words, simd_load_sixteen(p + 2 * stride - 4), 1 << 2);
    words = _mm_blend_epi16(words, simd_load_sixteen(p + 3 * stride - 6), 1 << 3);
    words = _mm_blend_epi16(words, simd_load_sixteen(four), 1 << 4);
    words = _mm_blend_epi16(words, simd_load_sixteen(four + stride - 2), 1 << 5);
    words = _mm_blend_epi16(words, simd_load_sixteen(four + 2 * stride - 4), 1 << 6);
    words = _mm_blend_epi16(words, simd_load_sixteen(four + 3 * stride - 6), 1 << 7);
    return _mm256_cvtph_ps(words);
}

SIMD_FN i16v simd_pairs(u32v w, u32v x)
{
    return (i16v)_mm256_maddubs_epi16((__m256i)w, (__m256i)x);
}

#if SIMD_VNNI

#if defined(__AVX512VNNI__)
#define DPBUSD _mm256_dpbusd_epi32
#define DPWSSD _mm256_dpwssd_epi32
#else
#define DPBUSD _mm256_dpbusd_avx_epi32
#define DPWSSD _mm256_dpwssd_avx_epi32
#endif

SIMD_FN i32v simd_dot(i32v sum, u32v w, u32v x)
{
    return (i32v)DPBUSD((__m256i)sum, (__m256i)w, (__m256i)x);
}

SIMD_FN i32v simd_dot_pairs(i32v sum, u32v a, u32v b)
{
    return (i32v)DPWSSD((__m256i)sum, (__m256i)a, (__m256i)b);
}

#undef DPBUSD
#undef DPWSSD

#else

/* The signs of w go to x: the sum of two products fits 16 bits. */
SIMD_FN i16v simd_signed_pairs(u32v w, u32v x)
{
    __m256i with_sign = _mm256_sign_epi8((__m256i)x, (__m256i)w);
    return (i16v)_mm256_maddubs_epi16(_mm256_abs_epi8((__m256i)w), with_sign);
}

SIMD_FN i32v simd_dot_pairs(i32v sum, u32v a, u32v b)
{
    return sum + (i32v)_mm256_madd_epi16((__m256i)a, (__m256i)b);
}

SIMD_FN i32v simd_dot(i32v sum, u32v w, u32v x)
{
    return simd_dot_pairs(sum, (u32v)simd_signed_pairs(w, x), simd_set1_u32(0x10001u));
}

#endif

#else

SIMD_FN void simd_load_columns(u32v to[4], const uint8_t *p, size_t stride, size_t fours)
{
    uint32_t rows[4][SIMD_LANES];
    for (size_t l = 0; l < SIMD_LANES; l++)
        for (size_t i = 0; i < 4; i++)
            memcpy(&rows[i][l], p + l / 4 * fours + l % 4 * stride + 4 * i, sizeof rows[i][l]);
    memcpy(to, rows, sizeof rows);
}

SIMD_FN u32v simd_load_words(const uint8_t *p, size_t stride, size_t fours)
{
    u32v to[4];
    simd_load_columns(to, p, stride, fours);
    return to[0];
}

SIMD_FN u32v simd_lookup(const int8_t table[16], u32v index)
{
    uint8_t bytes[sizeof index];
    memcpy(bytes, &index, sizeof bytes);
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)table[bytes[i]];
    memcpy(&index, bytes, sizeof bytes);
    return index;
}

SIMD_FN f32v simd_f16_of(u32v h)
{
    return simd_widen_f16(h & 0xffffu);
}

/* Even and odd bytes as int16: the sum of two products fits 16 bits. */
SIMD_FN i16v simd_signed_pairs(u32v w, u32v x)
{
    return ((i16v)w << 8 >> 8) * ((i16v)x << 8 >> 8) + ((i16v)w >> 8) * ((i16v)x >> 8);
}

SIMD_FN i16v simd_pairs(u32v w, u32v x)
{
    return (i16v)(w & 0x00ff00ffu) * ((i16v)x << 8 >> 8) +
           (i16v)(w >> 8 & 0x00ff00ffu) * ((i16v)x >> 8);
}

SIMD_FN i32v simd_dot(i32v sum, u32v w, u32v x)
{
    i32v pairs = (i32v)simd_signed_pairs(w, x);
    return sum + (pairs << 16 >> 16) + (pairs >> 16);
}

SIMD_FN i32v simd_dot_pairs(i32v sum, u32v a, u32v b)
{
    return sum + ((i32v)a << 16 >> 16) * ((i32v)b << 16 >> 16) + ((i32v)a >> 16) * ((i32v)b >> 16);
}

#endif

#if SIMD_LANES != 8

SIMD_FN f32v simd_load_f16s(const uint8_t *p, size_t stride, size_t fours)
{
    return simd_f16_of(simd_load_words(p, stride, fours));
}

#endif

#endif
