/* Sixteen f32 lanes, spelled once per instruction set: two AVX2 registers, one AVX-512 register or
 * four plain vectors. Included by the CPU kernel files only; what is chosen follows their flags.
 *
 * Sixteen everywhere, because a K block of a tile is sixteen positions: one source serves all
 * sets. Every function is a pure lane operation (reductions: one fixed tree), so a result
 * never depends on what lies in the other lanes. NaN passes through vec_max's second argument. */
#ifndef SPW_MODEL_CPU_VEC_H
#define SPW_MODEL_CPU_VEC_H

#include <math.h>
#include <string.h>

#include "quant/types.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define VEC_FN static inline __attribute__((always_inline))

enum { VEC_LANES = 16 };

#if defined(__AVX512F__)

struct vec {
    __m512 v;
};

VEC_FN struct vec vec_set1(float x)
{
    return (struct vec){_mm512_set1_ps(x)};
}

VEC_FN struct vec vec_load(const void *p)
{
    return (struct vec){_mm512_loadu_ps(p)};
}

VEC_FN void vec_store(void *p, struct vec a)
{
    _mm512_storeu_ps(p, a.v);
}

VEC_FN struct vec vec_add(struct vec a, struct vec b)
{
    return (struct vec){_mm512_add_ps(a.v, b.v)};
}

VEC_FN struct vec vec_sub(struct vec a, struct vec b)
{
    return (struct vec){_mm512_sub_ps(a.v, b.v)};
}

VEC_FN struct vec vec_mul(struct vec a, struct vec b)
{
    return (struct vec){_mm512_mul_ps(a.v, b.v)};
}

VEC_FN struct vec vec_div(struct vec a, struct vec b)
{
    return (struct vec){_mm512_div_ps(a.v, b.v)};
}

/* a * b + c */
VEC_FN struct vec vec_fma(struct vec a, struct vec b, struct vec c)
{
    return (struct vec){_mm512_fmadd_ps(a.v, b.v, c.v)};
}

/* a > b ? a : b */
VEC_FN struct vec vec_max(struct vec a, struct vec b)
{
    return (struct vec){_mm512_max_ps(a.v, b.v)};
}

/* a < b ? x : y */
VEC_FN struct vec vec_select_less(struct vec a, struct vec b, struct vec x, struct vec y)
{
    return (struct vec){_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
}

/* x in lanes [lo, hi), y in the others; lo, hi <= 16. */
VEC_FN struct vec vec_select_range(uint32_t lo, uint32_t hi, struct vec x, struct vec y)
{
    uint32_t mask = (1u << hi) - (1u << lo);
    return (struct vec){_mm512_mask_blend_ps((__mmask16)mask, y.v, x.v)};
}

/* To the nearest integer, halves to even. */
VEC_FN struct vec vec_round(struct vec a)
{
    return (struct vec){_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

/* a * 2^n for an integral n, |n| <= 252, one rounding. */
VEC_FN struct vec vec_scale2(struct vec a, struct vec n)
{
    return (struct vec){_mm512_scalef_ps(a.v, n.v)};
}

/* Rounded to a bf16 value, halves to even; NaN stays NaN. */
VEC_FN struct vec vec_round_bf16(struct vec a)
{
    __m512i u = _mm512_castps_si512(a.v);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    r = _mm512_mask_mov_epi32(r, _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q),
                              _mm512_set1_epi32(0x7fc00000));
    return (struct vec){
        _mm512_castsi512_ps(_mm512_and_si512(r, _mm512_set1_epi32((int)0xffff0000u)))};
}

VEC_FN struct vec vec_load_bf16(const void *p)
{
    __m512i u = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p));
    return (struct vec){_mm512_castsi512_ps(_mm512_slli_epi32(u, 16))};
}

VEC_FN void vec_store_bf16(void *p, struct vec a)
{
    __m512i u = _mm512_castps_si512(vec_round_bf16(a).v);
    _mm256_storeu_si256(p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(u, 16)));
}

VEC_FN struct vec vec_load_f16(const void *p)
{
    return (struct vec){_mm512_cvtph_ps(_mm256_loadu_si256(p))};
}

VEC_FN void vec_store_f16(void *p, struct vec a)
{
    _mm256_storeu_si256(p, _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* Sixteen (even, odd) pairs of 2-byte values, widened. */
VEC_FN void vec_load_pairs_bf16(const void *p, struct vec *even, struct vec *odd)
{
    __m512i u = _mm512_loadu_si512(p);
    even->v = _mm512_castsi512_ps(_mm512_slli_epi32(u, 16));
    odd->v = _mm512_castsi512_ps(_mm512_and_si512(u, _mm512_set1_epi32((int)0xffff0000u)));
}

VEC_FN void vec_load_pairs_f16(const void *p, struct vec *even, struct vec *odd)
{
    __m512i u = _mm512_loadu_si512(p);
    even->v = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(u));
    odd->v = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(u, 16)));
}

#elif defined(__AVX2__)

struct vec {
    __m256 a, b;
};

VEC_FN struct vec vec_set1(float x)
{
    __m256 v = _mm256_set1_ps(x);
    return (struct vec){v, v};
}

VEC_FN struct vec vec_load(const void *p)
{
    return (struct vec){_mm256_loadu_ps(p), _mm256_loadu_ps((const float *)p + 8)};
}

VEC_FN void vec_store(void *p, struct vec x)
{
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps((float *)p + 8, x.b);
}

VEC_FN struct vec vec_add(struct vec x, struct vec y)
{
    return (struct vec){_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)};
}

VEC_FN struct vec vec_sub(struct vec x, struct vec y)
{
    return (struct vec){_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)};
}

VEC_FN struct vec vec_mul(struct vec x, struct vec y)
{
    return (struct vec){_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)};
}

VEC_FN struct vec vec_div(struct vec x, struct vec y)
{
    return (struct vec){_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)};
}

VEC_FN struct vec vec_fma(struct vec x, struct vec y, struct vec z)
{
    return (struct vec){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}

VEC_FN struct vec vec_max(struct vec x, struct vec y)
{
    return (struct vec){_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)};
}

VEC_FN struct vec vec_select_less(struct vec a, struct vec b, struct vec x, struct vec y)
{
    return (struct vec){_mm256_blendv_ps(y.a, x.a, _mm256_cmp_ps(a.a, b.a, _CMP_LT_OQ)),
                        _mm256_blendv_ps(y.b, x.b, _mm256_cmp_ps(a.b, b.b, _CMP_LT_OQ))};
}

VEC_FN struct vec vec_select_range(uint32_t lo, uint32_t hi, struct vec x, struct vec y)
{
    __m256i low = _mm256_set1_epi32((int)lo - 1), high = _mm256_set1_epi32((int)hi);
    __m256i i = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i j = _mm256_add_epi32(i, _mm256_set1_epi32(8));
    i = _mm256_and_si256(_mm256_cmpgt_epi32(i, low), _mm256_cmpgt_epi32(high, i));
    j = _mm256_and_si256(_mm256_cmpgt_epi32(j, low), _mm256_cmpgt_epi32(high, j));
    return (struct vec){_mm256_blendv_ps(y.a, x.a, _mm256_castsi256_ps(i)),
                        _mm256_blendv_ps(y.b, x.b, _mm256_castsi256_ps(j))};
}

VEC_FN struct vec vec_round(struct vec x)
{
    return (struct vec){_mm256_round_ps(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                        _mm256_round_ps(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

/* Two factors, because 2^n alone can leave the range: the first product is exact. */
VEC_FN __m256 vec_half_scale2(__m256 x, __m256 n)
{
    __m256i i = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(i, 1);
    __m256i bias = _mm256_set1_epi32(127), rest = _mm256_sub_epi32(i, half);
    x = _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23)));
    return _mm256_mul_ps(x,
                         _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23)));
}

VEC_FN struct vec vec_scale2(struct vec x, struct vec n)
{
    return (struct vec){vec_half_scale2(x.a, n.a), vec_half_scale2(x.b, n.b)};
}

VEC_FN __m256 vec_half_round_bf16(__m256 x)
{
    __m256i u = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i r = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256 y = _mm256_castsi256_ps(_mm256_and_si256(r, _mm256_set1_epi32((int)0xffff0000u)));
    __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
    return _mm256_blendv_ps(y, nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

VEC_FN struct vec vec_round_bf16(struct vec x)
{
    return (struct vec){vec_half_round_bf16(x.a), vec_half_round_bf16(x.b)};
}

VEC_FN struct vec vec_load_bf16(const void *p)
{
    __m256i u = _mm256_loadu_si256(p);
    __m256i a = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(u));
    __m256i b = _mm256_cvtepu16_epi32(_mm256_extracti128_si256(u, 1));
    return (struct vec){_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)),
                        _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))};
}

VEC_FN void vec_store_bf16(void *p, struct vec x)
{
    struct vec r = vec_round_bf16(x);
    __m256i a = _mm256_srli_epi32(_mm256_castps_si256(r.a), 16);
    __m256i b = _mm256_srli_epi32(_mm256_castps_si256(r.b), 16);
    _mm256_storeu_si256(p, _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8));
}

VEC_FN struct vec vec_load_f16(const void *p)
{
    __m256i u = _mm256_loadu_si256(p);
    return (struct vec){_mm256_cvtph_ps(_mm256_castsi256_si128(u)),
                        _mm256_cvtph_ps(_mm256_extracti128_si256(u, 1))};
}

VEC_FN void vec_store_f16(void *p, struct vec x)
{
    __m128i a = _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m128i b = _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_storeu_si256(p, _mm256_set_m128i(b, a));
}

VEC_FN void vec_load_pairs_bf16(const void *p, struct vec *even, struct vec *odd)
{
    __m256i u = _mm256_loadu_si256(p), w = _mm256_loadu_si256((const __m256i *)p + 1);
    __m256i high = _mm256_set1_epi32((int)0xffff0000u);
    even->a = _mm256_castsi256_ps(_mm256_slli_epi32(u, 16));
    even->b = _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
    odd->a = _mm256_castsi256_ps(_mm256_and_si256(u, high));
    odd->b = _mm256_castsi256_ps(_mm256_and_si256(w, high));
}

VEC_FN void vec_load_pairs_f16(const void *p, struct vec *even, struct vec *odd)
{
    __m256i u = _mm256_loadu_si256(p), w = _mm256_loadu_si256((const __m256i *)p + 1);
    __m256i low = _mm256_set1_epi32(0xffff);
    __m256i e = _mm256_packus_epi32(_mm256_and_si256(u, low), _mm256_and_si256(w, low));
    __m256i o = _mm256_packus_epi32(_mm256_srli_epi32(u, 16), _mm256_srli_epi32(w, 16));
    e = _mm256_permute4x64_epi64(e, 0xd8);
    o = _mm256_permute4x64_epi64(o, 0xd8);
    even->a = _mm256_cvtph_ps(_mm256_castsi256_si128(e));
    even->b = _mm256_cvtph_ps(_mm256_extracti128_si256(e, 1));
    odd->a = _mm256_cvtph_ps(_mm256_castsi256_si128(o));
    odd->b = _mm256_cvtph_ps(_mm256_extracti128_si256(o, 1));
}

#else /* plain C, in vectors of four, which every processor of interest has */

typedef float vec_f4 __attribute__((vector_size(16)));
typedef uint32_t vec_u4 __attribute__((vector_size(16)));
typedef int32_t vec_i4 __attribute__((vector_size(16)));
typedef uint16_t vec_h4 __attribute__((vector_size(8)));

struct vec {
    vec_f4 v[4];
};

#define VEC_QUARTERS(i) for (int i = 0; i < 4; i++)

VEC_FN vec_f4 vec_f4_set1(float x)
{
    return (vec_f4){x, x, x, x};
}

VEC_FN vec_f4 vec_f4_select(vec_i4 mask, vec_f4 x, vec_f4 y)
{
    return (vec_f4)(((vec_i4)x & mask) | ((vec_i4)y & ~mask));
}

VEC_FN struct vec vec_set1(float x)
{
    vec_f4 q = vec_f4_set1(x);
    return (struct vec){{q, q, q, q}};
}

VEC_FN struct vec vec_load(const void *p)
{
    struct vec r;
    memcpy(&r, p, sizeof r);
    return r;
}

VEC_FN void vec_store(void *p, struct vec a)
{
    memcpy(p, &a, sizeof a);
}

VEC_FN struct vec vec_add(struct vec a, struct vec b)
{
    VEC_QUARTERS(i)
    a.v[i] += b.v[i];
    return a;
}

VEC_FN struct vec vec_sub(struct vec a, struct vec b)
{
    VEC_QUARTERS(i)
    a.v[i] -= b.v[i];
    return a;
}

VEC_FN struct vec vec_mul(struct vec a, struct vec b)
{
    VEC_QUARTERS(i)
    a.v[i] *= b.v[i];
    return a;
}

VEC_FN struct vec vec_div(struct vec a, struct vec b)
{
    VEC_QUARTERS(i)
    a.v[i] /= b.v[i];
    return a;
}

/* Two roundings: fmaf without the instruction is a slow call. */
VEC_FN struct vec vec_fma(struct vec a, struct vec b, struct vec c)
{
    VEC_QUARTERS(i)
    c.v[i] += a.v[i] * b.v[i];
    return c;
}

VEC_FN struct vec vec_max(struct vec a, struct vec b)
{
    VEC_QUARTERS(i)
    a.v[i] = vec_f4_select(a.v[i] > b.v[i], a.v[i], b.v[i]);
    return a;
}

VEC_FN struct vec vec_select_less(struct vec a, struct vec b, struct vec x, struct vec y)
{
    VEC_QUARTERS(i)
    x.v[i] = vec_f4_select(a.v[i] < b.v[i], x.v[i], y.v[i]);
    return x;
}

VEC_FN struct vec vec_select_range(uint32_t lo, uint32_t hi, struct vec x, struct vec y)
{
    int from = (int)lo, to = (int)hi;
    VEC_QUARTERS(i)
    {
        vec_i4 lane = {4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3};
        vec_i4 low = {from, from, from, from}, high = {to, to, to, to};
        x.v[i] = vec_f4_select((lane >= low) & (lane < high), x.v[i], y.v[i]);
    }
    return x;
}

/* |a| < 2^22: adding 1.5 * 2^23 leaves no bits for a fraction. */
VEC_FN struct vec vec_round(struct vec a)
{
    struct vec magic = vec_set1(0x1.8p23f);
    return vec_sub(vec_add(a, magic), magic);
}

/* Two factors, because 2^n alone can leave the range: the first product is exact. n comes from
 * vec_exp, which bounds it; where it is NaN, a is too, and any factor keeps that. */
VEC_FN struct vec vec_scale2(struct vec a, struct vec n)
{
    VEC_QUARTERS(i)
    {
        vec_i4 k = __builtin_convertvector(n.v[i], vec_i4), half = k >> 1;
        vec_u4 first = (vec_u4)half + 127u, second = (vec_u4)k - (vec_u4)half + 127u;
        a.v[i] = a.v[i] * (vec_f4)(first << 23) * (vec_f4)(second << 23);
    }
    return a;
}

VEC_FN struct vec vec_round_bf16(struct vec a)
{
    VEC_QUARTERS(i)
    {
        vec_u4 u = (vec_u4)a.v[i];
        vec_u4 r = (u + 0x7fffu + (u >> 16 & 1u)) & 0xffff0000u;
        vec_u4 nan = (vec_u4){0} + 0x7fc00000u;
        a.v[i] = vec_f4_select(a.v[i] == a.v[i], (vec_f4)r, (vec_f4)nan);
    }
    return a;
}

/* Sixteen 2-byte values as the low halves of 32-bit lanes, and back. */
VEC_FN struct vec vec_load_halves(const void *p)
{
    vec_h4 h[4];
    struct vec r;
    memcpy(h, p, sizeof h);
    VEC_QUARTERS(i)
    r.v[i] = (vec_f4) __builtin_convertvector(h[i], vec_u4);
    return r;
}

VEC_FN void vec_store_halves(void *p, struct vec a)
{
    vec_h4 h[4];
    VEC_QUARTERS(i)
    h[i] = __builtin_convertvector((vec_u4)a.v[i], vec_h4);
    memcpy(p, h, sizeof h);
}

VEC_FN struct vec vec_load_bf16(const void *p)
{
    struct vec r = vec_load_halves(p);
    VEC_QUARTERS(i)
    r.v[i] = (vec_f4)((vec_u4)r.v[i] << 16);
    return r;
}

VEC_FN void vec_store_bf16(void *p, struct vec a)
{
    a = vec_round_bf16(a);
    VEC_QUARTERS(i)
    a.v[i] = (vec_f4)((vec_u4)a.v[i] >> 16);
    vec_store_halves(p, a);
}

/* Exact: shifted into place, the exponent is off by 112, which one product mends (subnormals
 * too); what would overflow is infinity or NaN. */
VEC_FN vec_f4 vec_f4_from_f16(vec_u4 h)
{
    vec_u4 magnitude = (h & 0x7fffu) << 13, sign = (h & 0x8000u) << 16;
    vec_f4 x = (vec_f4)magnitude * vec_f4_set1(0x1p112f);
    vec_f4 special = (vec_f4)(magnitude | 0x7f800000u);
    x = vec_f4_select((vec_i4)magnitude >= 0x0f800000, special, x);
    return (vec_f4)((vec_u4)x | sign);
}

/* Adding 2^(e+13) makes the processor round a value of exponent e to f16's ten fraction bits; below
 * the least normal exponent the step stays that of the subnormals. 65520 and up is infinity. */
VEC_FN vec_u4 vec_f4_to_f16(vec_f4 x)
{
    vec_u4 sign = (vec_u4)x >> 16 & 0x8000u;
    vec_i4 magnitude = (vec_i4)x & 0x7fffffff, exponent = magnitude & 0x7f800000;
    vec_f4 least = (vec_f4)((vec_i4){0} + 0x38800000);
    exponent = (vec_i4)vec_f4_select(exponent < 0x38800000, least, (vec_f4)exponent);
    vec_f4 infinite = (vec_f4)((vec_u4){0} + 0x7c00u), nan = (vec_f4)((vec_u4){0} + 0x7e00u);
    vec_f4 capped = vec_f4_select(magnitude >= 0x477ff000, vec_f4_set1(0), (vec_f4)magnitude);
    vec_f4 step = (vec_f4)((vec_u4)exponent + (13u << 23));
    vec_f4 code = (vec_f4)((vec_u4)((capped + step - step) * vec_f4_set1(0x1p-112f)) >> 13);
    code = vec_f4_select(magnitude >= 0x477ff000, infinite, code);
    code = vec_f4_select(magnitude > 0x7f800000, nan, code);
    return (vec_u4)code | sign;
}

VEC_FN struct vec vec_load_f16(const void *p)
{
    struct vec r = vec_load_halves(p);
    VEC_QUARTERS(i)
    r.v[i] = vec_f4_from_f16((vec_u4)r.v[i]);
    return r;
}

VEC_FN void vec_store_f16(void *p, struct vec a)
{
    VEC_QUARTERS(i)
    a.v[i] = (vec_f4)vec_f4_to_f16(a.v[i]);
    vec_store_halves(p, a);
}

VEC_FN void vec_load_pairs_bf16(const void *p, struct vec *even, struct vec *odd)
{
    struct vec u = vec_load(p);
    VEC_QUARTERS(i)
    {
        even->v[i] = (vec_f4)((vec_u4)u.v[i] << 16);
        odd->v[i] = (vec_f4)((vec_u4)u.v[i] & 0xffff0000u);
    }
}

VEC_FN void vec_load_pairs_f16(const void *p, struct vec *even, struct vec *odd)
{
    struct vec u = vec_load(p);
    VEC_QUARTERS(i)
    {
        even->v[i] = vec_f4_from_f16((vec_u4)u.v[i] & 0xffffu);
        odd->v[i] = vec_f4_from_f16((vec_u4)u.v[i] >> 16);
    }
}

#endif

/* The tree of every horizontal sum and maximum: halves are folded, 8, 4, 2, 1. */
#if defined(__AVX2__)

VEC_FN float vec_sum_half(__m256 x)
{
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}

VEC_FN float vec_highest_half(__m256 x)
{
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}

#if defined(__AVX512F__)

VEC_FN float vec_sum(struct vec x)
{
    __m256 high = _mm512_extractf32x8_ps(x.v, 1);
    return vec_sum_half(_mm256_add_ps(_mm512_castps512_ps256(x.v), high));
}

VEC_FN float vec_highest(struct vec x)
{
    __m256 high = _mm512_extractf32x8_ps(x.v, 1);
    return vec_highest_half(_mm256_max_ps(_mm512_castps512_ps256(x.v), high));
}

#else

VEC_FN float vec_sum(struct vec x)
{
    return vec_sum_half(_mm256_add_ps(x.a, x.b));
}

VEC_FN float vec_highest(struct vec x)
{
    return vec_highest_half(_mm256_max_ps(x.a, x.b));
}

#endif

#else

VEC_FN float vec_sum(struct vec a)
{
    vec_f4 x = (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]);
    return (x[0] + x[2]) + (x[1] + x[3]);
}

VEC_FN float vec_highest(struct vec a)
{
    float x[VEC_LANES], best;
    vec_store(x, a);
    best = x[0];
    for (int i = 1; i < VEC_LANES; i++)
        best = x[i] > best ? x[i] : best;
    return best;
}

#endif

/* The first n <= 16 of the elements from `index` on, widened; the other lanes are 0. */
VEC_FN struct vec vec_load_as(const void *base, size_t index, size_t n, enum spw_dtype t)
{
    const char *p = (const char *)base + index * spw_dtype_bytes(t);
    uint32_t tail[VEC_LANES] = {0};
    if (n < VEC_LANES)
        p = memcpy(tail, p, n * spw_dtype_bytes(t));
    if (t == SPW_DTYPE_F32)
        return vec_load(p);
    return t == SPW_DTYPE_F16 ? vec_load_f16(p) : vec_load_bf16(p);
}

VEC_FN void vec_store_full_as(void *p, struct vec a, enum spw_dtype t)
{
    if (t == SPW_DTYPE_F32)
        vec_store(p, a);
    else if (t == SPW_DTYPE_F16)
        vec_store_f16(p, a);
    else
        vec_store_bf16(p, a);
}

/* Rounds once, and writes n elements and no more. */
VEC_FN void vec_store_as(void *base, size_t index, size_t n, enum spw_dtype t, struct vec a)
{
    char *p = (char *)base + index * spw_dtype_bytes(t);
    uint32_t tail[VEC_LANES];
    if (n >= VEC_LANES) {
        vec_store_full_as(p, a, t);
        return;
    }
    vec_store_full_as(tail, a, t);
    memcpy(p, tail, n * spw_dtype_bytes(t));
}

/* The value that a tensor of type t would hold. */
VEC_FN struct vec vec_round_as(struct vec a, enum spw_dtype t)
{
    return t == SPW_DTYPE_BF16 ? vec_round_bf16(a) : a;
}

#endif
