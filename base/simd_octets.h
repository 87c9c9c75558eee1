/* Numbers of 8 bits along a row, in vectors of two parts of 32 bytes, and octets: eight numbers of
 * 32 bits that belong together. AVX-512 only. */
#ifndef SPW_BASE_SIMD_OCTETS_H
#define SPW_BASE_SIMD_OCTETS_H

#include "base/simd_bytes.h"

#if defined(__AVX512F__)
#define SIMD_OCTETS 1

enum { SIMD_GROUP_VECTORS = 4 /* of 256 bytes */ };

typedef int32_t octet __attribute__((vector_size(32)));

/* simd_twice16(p, stride)   each part is 16 bytes twice: those at p, those at p + stride
 * simd_twice32(p)           both parts are the 32 bytes at p
 * simd_load32(p, stride)    the parts are the 32 bytes at p and at p + stride
 * simd_shift_parts(x, n, m) the parts shifted to the right by n and by n + m
 * simd_add_pairs(a, b, s)   in each four lanes a0 + a1, a2 + a3, b0 + b1, b2 + b3; s: all sums fit
 * 16 bits simd_part_sums(v, s)      the sum of each of eight parts; s: sums of four lanes fit 16
 * bits simd_fold(x)              eight sums of two lanes simd_spread(s, i)         vector i of a
 * group: in the lanes of part p, number s[p] simd_spread_halves(s, i)  the same for 16 half parts:
 * s[0] has those of parts 0 .. 3 */

SIMD_FN octet simd_octet_of_i16(const int16_t *p)
{
    return (octet)_mm256_cvtepi16_epi32(_mm_loadu_si128((const void *)p));
}

SIMD_FN octet simd_octet_of_u8(uint64_t bytes)
{
    return (octet)_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)bytes));
}

SIMD_FN octet simd_octet_of_i8(const uint8_t *p)
{
    return (octet)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p));
}

/* Eight f16 at p, p + stride, ... as f32. Reads no byte from p + 8 stride on. */
SIMD_FN octet simd_octet_of_f16(const uint8_t *p, size_t stride)
{
    if (stride <= 20) { /* four of them lie in 64 bytes */
        const int16_t s = (int16_t)(stride / 2);
        const __m512i order = _mm512_castsi128_si512(
            _mm_setr_epi16(0, s, (int16_t)(2 * s), (int16_t)(3 * s), 0, 0, 0, 0));
        __m512i low = _mm512_permutexvar_epi16(order, _mm512_loadu_si512(p));
        __m512i high = _mm512_permutexvar_epi16(order, _mm512_loadu_si512(p + 4 * stride));
        return (octet)_mm256_cvtph_ps(
            _mm_unpacklo_epi64(_mm512_castsi512_si128(low), _mm512_castsi512_si128(high)));
    }
    int16_t h[8];
    for (size_t i = 0; i < 8; i++)
        memcpy(&h[i], p + i * stride, sizeof h[i]);
    return (octet)_mm256_cvtph_ps(_mm_setr_epi16(h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7]));
}

SIMD_FN float simd_one_f16(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}

SIMD_FN u32v simd_twice16(const uint8_t *p, size_t stride)
{
    __m512i x = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)p));
    return (u32v)_mm512_mask_broadcast_i32x4(x, 0xff00,
                                             _mm_loadu_si128((const void *)(p + stride)));
}

SIMD_FN u32v simd_twice32(const uint8_t *p)
{
    return (u32v)_mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)p));
}

SIMD_FN u32v simd_load32(const uint8_t *p, size_t stride)
{
    __m512i x = _mm512_castsi256_si512(_mm256_loadu_si256((const void *)p));
    return (u32v)_mm512_inserti64x4(x, _mm256_loadu_si256((const void *)(p + stride)), 1);
}

SIMD_FN u32v simd_shift_parts(u32v x, unsigned first, unsigned step)
{
    const unsigned a = first, b = first + step;
    return x >> (u32v){a, a, a, a, a, a, a, a, b, b, b, b, b, b, b, b};
}

SIMD_FN i32v simd_add_pairs(i32v a, i32v b, bool small)
{
    const __m512 x = (__m512)a, y = (__m512)b;
    if (small)
        return (i32v)_mm512_madd_epi16(_mm512_packs_epi32((__m512i)a, (__m512i)b),
                                       _mm512_set1_epi16(1));
    return (i32v)_mm512_shuffle_ps(x, y, 0x88) + (i32v)_mm512_shuffle_ps(x, y, 0xdd);
}

SIMD_FN octet simd_part_sums(const i32v v[SIMD_GROUP_VECTORS], bool small)
{
    const __m512i order = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 0, 8, 1, 9, 2, 10, 3, 11);
    i32v x =
        simd_add_pairs(simd_add_pairs(v[0], v[1], small), simd_add_pairs(v[2], v[3], small), small);
    x += (i32v)_mm512_shuffle_i32x4((__m512i)x, (__m512i)x, 0xb1);
    return (octet)_mm512_castsi512_si256(_mm512_permutexvar_epi32(order, (__m512i)x));
}

SIMD_FN octet simd_fold(i32v x)
{
    return (octet)_mm512_castsi512_si256((__m512i)x) +
           (octet)_mm512_extracti64x4_epi64((__m512i)x, 1);
}

SIMD_FN i32v simd_spread(octet s, int i)
{
    const int a = 2 * i, b = 2 * i + 1;
    return (i32v)_mm512_permutexvar_epi32(
        _mm512_setr_epi32(a, a, a, a, a, a, a, a, b, b, b, b, b, b, b, b),
        _mm512_castsi256_si512((__m256i)s));
}

SIMD_FN i32v simd_spread_halves(const octet s[2], int i)
{
    const int a = 4 * i % 8, b = a + 1, c = a + 2, d = a + 3;
    return (i32v)_mm512_permutexvar_epi32(
        _mm512_setr_epi32(a, a, a, a, b, b, b, b, c, c, c, c, d, d, d, d),
        _mm512_castsi256_si512((__m256i)s[i / 2]));
}

#define UNPACK(what, width, x, y) (__m512i) _mm512_unpack##what##_epi##width(x, y)
#define LOAD_ROWS(p, i)                                                                            \
    _mm512_inserti64x4(_mm512_castsi256_si512((__m256i)(p)[i]), (__m256i)(p)[(i) + 8], 1)
#define LOW_HALVES(x, y)                                                                           \
    (u32v) _mm512_permutex2var_epi64(x, _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13), y)
#define HIGH_HALVES(x, y)                                                                          \
    (u32v) _mm512_permutex2var_epi64(x, _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15), y)
/* to[j] gets number j of each of SIMD_LANES octets. */
SIMD_FN void simd_transpose(const octet *rows, u32v to[8])
{
    __m512i r[8], u[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        const __m512i a = LOAD_ROWS(rows, i), b = LOAD_ROWS(rows, i + 1);
        r[i] = UNPACK(lo, 32, a, b);
        r[i + 1] = UNPACK(hi, 32, a, b);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
        u[i] = UNPACK(lo, 64, r[i], r[i + 2]);
        u[i + 1] = UNPACK(hi, 64, r[i], r[i + 2]);
        u[i + 2] = UNPACK(lo, 64, r[i + 1], r[i + 3]);
        u[i + 3] = UNPACK(hi, 64, r[i + 1], r[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        to[i] = LOW_HALVES(u[i], u[i + 4]);
        to[i + 4] = HIGH_HALVES(u[i], u[i + 4]);
    }
}

#undef UNPACK
#undef LOAD_ROWS
#undef LOW_HALVES
#undef HIGH_HALVES

#endif
#endif
