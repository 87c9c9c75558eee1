/* Vector registers: one set of wrappers over the instruction sets of the CPU kernels.
 *
 * The compiler's flags choose the instruction set. A register has SIMD_LANES lanes of 32 bits: 16
 * with AVX-512, 8 with AVX2, 4 in plain C. The types are the vector types of gcc and clang: the
 * operators + - * / & | ^ ~ << >> and comparisons work on them lane by lane. This header has what
 * no operator gives. Memory may have any address.
 *
 * A lane of a result depends on the same lane of the operands only, unless the comment of a
 * function names other lanes. A function gives the same bits in every instruction set, with two
 * exceptions: simd_fma rounds twice in plain C on x86, and simd_sums adds in another order with
 * AVX2.
 *
 * cmake/cpu_kernels.cmake compiles a file *_simd.c once for each instruction set. SPW_ISA is then
 * the name of the set, for example avx2. */
#ifndef SPW_BASE_SIMD_H
#define SPW_BASE_SIMD_H

#include <string.h>

#include "base/base.h"
#include "base/dtype.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define SIMD_FN static inline __attribute__((always_inline))
/* A large function that is called: inlined many times, it takes compilers minutes. */
#define SIMD_APART static __attribute__((noinline, unused))

/* SIMD_NAME(spw_norm_kernel) is spw_norm_kernel_avx2 where SPW_ISA is avx2. */
#define SIMD_NAME(name) SIMD_NAME_1(name, SPW_ISA)
#define SIMD_NAME_1(name, isa) SIMD_NAME_2(name, isa)
#define SIMD_NAME_2(name, isa) name##_##isa

/* SIMD_HALF: AVX-512 with registers of 256 bits. */
#if defined(__AVX512F__) && !defined(SIMD_HALF)
#define SIMD_LANES 16
#elif defined(__AVX2__)
#define SIMD_LANES 8
#else
#define SIMD_LANES 4
#endif

typedef float f32v __attribute__((vector_size(4 * SIMD_LANES)));
typedef int32_t i32v __attribute__((vector_size(4 * SIMD_LANES)));
typedef uint32_t u32v __attribute__((vector_size(4 * SIMD_LANES)));
typedef uint16_t u16v __attribute__((vector_size(2 * SIMD_LANES)));

/* ---- every instruction set ---- */

SIMD_FN f32v simd_set1(float x)
{
    return x - (f32v){0};
}

SIMD_FN f32v simd_load(const void *p)
{
    f32v x;
    memcpy(&x, p, sizeof x);
    return x;
}

SIMD_FN void simd_store(void *p, f32v x)
{
    memcpy(p, &x, sizeof x);
}

enum { SIMD_PART_BYTES = 64 };

/* Copies n <= 64 bytes and fills `to` up with zeros. Returns `to`. AVX-512 needs no call of memcpy:
 * a call would make gcc keep the sums of the surrounding loop in memory. */
SIMD_FN const char *simd_copy_part(char to[SIMD_PART_BYTES], const void *from, size_t n)
{
#if SIMD_LANES == 16
    __mmask64 mask = n < SIMD_PART_BYTES ? (1ull << n) - 1 : ~0ull;
    _mm512_storeu_si512(to, _mm512_maskz_loadu_epi8(mask, from));
#else
    memset(to, 0, SIMD_PART_BYTES);
    memcpy(to, from, n);
#endif
    return to;
}

/* The numbers of the lanes: 0, 1, 2, ... */
SIMD_FN u32v simd_iota(void)
{
    u32v index;
    for (uint32_t l = 0; l < SIMD_LANES; l++)
        index[l] = l;
    return index;
}

/* Lane l becomes x[l ^ h]; h is a power of two below SIMD_LANES. */
SIMD_FN f32v simd_swap(f32v x, int h)
{
#if SIMD_LANES == 16
    if (h == 8)
        return __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    if (h == 4)
        return __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
    if (h == 2)
        return __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
    return __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
#elif defined(__AVX2__)
    if (h == 4)
        return __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3);
    if (h == 2)
        return __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5);
    return __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6);
#else
    if (h == 2)
        return __builtin_shufflevector(x, x, 2, 3, 0, 1);
    return __builtin_shufflevector(x, x, 1, 0, 3, 2);
#endif
}

/* Magnitudes as integers: their order is the order of the numbers; infinity and NaN are the
 * greatest. */
SIMD_FN i32v simd_magnitude(f32v x)
{
    return (i32v)x & 0x7fffffff;
}

SIMD_FN i32v simd_max_i32(i32v a, i32v b)
{
#if SIMD_LANES == 16
    return (i32v)_mm512_max_epi32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (i32v)_mm256_max_epi32((__m256i)a, (__m256i)b);
#else
    i32v more = a > b;
    return (a & more) | (b & ~more);
#endif
}

/* ---- one spelling for each instruction set ----
 *
 * simd_fma(a, b, c)        a * b + c
 * simd_fused(a, b, c)      a * b + c, rounded once
 * simd_sqrt(x)
 * simd_max, simd_min(a, b) a > b ? a : b and a < b ? a : b, so that a NaN in b stays NaN
 * simd_less, simd_equal    comparisons for simd_select, whose masks have a type of their own
 * simd_range(first, lo, hi)  the mask of the lanes whose number + first lies in [lo, hi); hi <= 16
 * simd_select(m, x, y)     m ? x : y
 * simd_round(x)            to the nearest integer, halves to even; |x| < 2^22
 * simd_scale2(x, n)        x * 2^n for an integral n, |n| <= 252, rounded once; x is NaN where n is
 * simd_load_u16, simd_store_u16  2-byte values, which are the low halves of lanes
 * simd_load_f16, simd_store_f16  f16, widened exactly and rounded once, halves to even
 * simd_load_pairs_f16      SIMD_LANES pairs (even, odd) of f16 */

#if SIMD_LANES == 16

typedef __mmask16 simd_mask;

SIMD_FN f32v simd_fma(f32v a, f32v b, f32v c)
{
    return _mm512_fmadd_ps(a, b, c);
}

SIMD_FN f32v simd_sqrt(f32v x)
{
    return _mm512_sqrt_ps(x);
}

SIMD_FN f32v simd_max(f32v a, f32v b)
{
    return _mm512_max_ps(a, b);
}

SIMD_FN f32v simd_min(f32v a, f32v b)
{
    return _mm512_min_ps(a, b);
}

SIMD_FN simd_mask simd_less(f32v a, f32v b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}

SIMD_FN simd_mask simd_equal(f32v a, f32v b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
}

SIMD_FN simd_mask simd_range(uint32_t first, uint32_t lo, uint32_t hi)
{
    return (simd_mask)(((1u << hi) - (1u << lo)) >> first);
}

SIMD_FN f32v simd_select(simd_mask m, f32v x, f32v y)
{
    return _mm512_mask_blend_ps(m, y, x);
}

SIMD_FN f32v simd_round(f32v x)
{
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

SIMD_FN f32v simd_scale2(f32v x, f32v n)
{
    return _mm512_scalef_ps(x, n);
}

SIMD_FN u32v simd_load_u16(const void *p)
{
    return (u32v)_mm512_cvtepu16_epi32(_mm256_loadu_si256(p));
}

SIMD_FN void simd_store_u16(void *p, u32v x)
{
    _mm256_storeu_si256(p, _mm512_cvtepi32_epi16((__m512i)x));
}

SIMD_FN f32v simd_load_f16(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256(p));
}

SIMD_FN void simd_store_f16(void *p, f32v x)
{
    _mm256_storeu_si256(p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

SIMD_FN void simd_load_pairs_f16(const void *p, f32v *even, f32v *odd)
{
    __m512i pairs = _mm512_loadu_si512(p);
    *even = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(pairs));
    *odd = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(pairs, 16)));
}

/* To integers, halves to even. */
SIMD_FN i32v simd_round_i32(f32v x)
{
    return (i32v)_mm512_cvtps_epi32(x);
}

#else

typedef i32v simd_mask;

SIMD_FN simd_mask simd_less(f32v a, f32v b)
{
    return a < b;
}

SIMD_FN simd_mask simd_equal(f32v a, f32v b)
{
    return a == b;
}

SIMD_FN simd_mask simd_range(uint32_t first, uint32_t lo, uint32_t hi)
{
    i32v lane = (i32v)(simd_iota() + first);
    return (lane >= (int32_t)lo) & (lane < (int32_t)hi);
}

/* Two factors, because 2^n alone can leave the range: the first product is exact. */
SIMD_FN f32v simd_scale2(f32v x, f32v n)
{
    i32v k = __builtin_convertvector(n, i32v), half = k >> 1;
    u32v first = (u32v)half + 127u, second = (u32v)k - (u32v)half + 127u;
    return x * (f32v)(first << 23) * (f32v)(second << 23);
}

#if defined(__AVX2__)

SIMD_FN f32v simd_fma(f32v a, f32v b, f32v c)
{
    return _mm256_fmadd_ps(a, b, c);
}

SIMD_FN f32v simd_sqrt(f32v x)
{
    return _mm256_sqrt_ps(x);
}

SIMD_FN f32v simd_select(simd_mask m, f32v x, f32v y)
{
    return _mm256_blendv_ps(y, x, (f32v)m);
}

SIMD_FN f32v simd_max(f32v a, f32v b)
{
    return _mm256_max_ps(a, b);
}

SIMD_FN f32v simd_min(f32v a, f32v b)
{
    return _mm256_min_ps(a, b);
}

SIMD_FN f32v simd_round(f32v x)
{
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

SIMD_FN u32v simd_load_u16(const void *p)
{
    return (u32v)_mm256_cvtepu16_epi32(_mm_loadu_si128(p));
}

SIMD_FN void simd_store_u16(void *p, u32v x)
{
    __m256i both = _mm256_packus_epi32((__m256i)x, (__m256i)x);
    _mm_storeu_si128(p, _mm256_castsi256_si128(_mm256_permute4x64_epi64(both, 0xd8)));
}

SIMD_FN f32v simd_load_f16(const void *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128(p));
}

SIMD_FN void simd_store_f16(void *p, f32v x)
{
    _mm_storeu_si128(p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

SIMD_FN void simd_load_pairs_f16(const void *p, f32v *even, f32v *odd)
{
    const __m256i order = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    __m256i pairs = _mm256_shuffle_epi8(_mm256_loadu_si256(p), order);
    pairs = _mm256_permute4x64_epi64(pairs, 0xd8);
    *even = _mm256_cvtph_ps(_mm256_castsi256_si128(pairs));
    *odd = _mm256_cvtph_ps(_mm256_extracti128_si256(pairs, 1));
}

#else

#if defined(__FP_FAST_FMAF) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
SIMD_FN f32v simd_fused(f32v a, f32v b, f32v c)
{
    f32v y = {0};
    for (int l = 0; l < SIMD_LANES; l++)
        y[l] = __builtin_fmaf(a[l], b[l], c[l]);
    return y;
}
#else
typedef double simd_doubles __attribute__((vector_size(8 * SIMD_LANES)));
typedef uint32_t simd_words __attribute__((vector_size(8 * SIMD_LANES)));

/* fmaf is a slow call. In f64 the product is exact; the sum, rounded to f32, is rounded twice. That
 * gives another number only if the f64 sum is the middle between two f32, as its lower bits say; or
 * if it is subnormal in f32. */
SIMD_APART f32v simd_fused(f32v a, f32v b, f32v c)
{
    const simd_doubles sum =
        __builtin_convertvector(a, simd_doubles) * __builtin_convertvector(b, simd_doubles) +
        __builtin_convertvector(c, simd_doubles);
    const simd_words words = (simd_words)sum;
    const u32v low = __builtin_shufflevector(words, words, 0, 2, 4, 6);
    const u32v high = __builtin_shufflevector(words, words, 1, 3, 5, 7) & 0x7fffffffu;
    const i32v middle = (low & 0x1fffffffu) == 0x10000000u;
    const i32v rare = middle | (((i32v)high < 0x38100000) & (high != 0));
    f32v y = __builtin_convertvector(sum, f32v);
    for (int l = 0; l < SIMD_LANES; l++)
        if (rare[l])
            y[l] = __builtin_fmaf(a[l], b[l], c[l]);
    return y;
}
#endif

/* Two roundings on processors without the instruction, where fmaf is a slow call. */
SIMD_FN f32v simd_fma(f32v a, f32v b, f32v c)
{
#if defined(__FP_FAST_FMAF)
    return simd_fused(a, b, c);
#else
    return c + a * b;
#endif
}

SIMD_FN f32v simd_sqrt(f32v x)
{
    for (int l = 0; l < SIMD_LANES; l++)
        x[l] = __builtin_sqrtf(x[l]);
    return x;
}

/* The lanes of a mask are all ones or 0. */
SIMD_FN f32v simd_select(simd_mask m, f32v x, f32v y)
{
    return (f32v)((m & (i32v)x) | (~m & (i32v)y));
}

SIMD_FN f32v simd_max(f32v a, f32v b)
{
    return simd_select(a > b, a, b);
}

SIMD_FN f32v simd_min(f32v a, f32v b)
{
    return simd_select(a < b, a, b);
}

/* Adding 1.5 * 2^23 leaves no bits for a fraction. */
SIMD_FN f32v simd_round(f32v x)
{
    f32v magic = simd_set1(0x1.8p23f);
    return x + magic - magic;
}

SIMD_FN u32v simd_load_u16(const void *p)
{
    u16v x;
    memcpy(&x, p, sizeof x);
    return __builtin_convertvector(x, u32v);
}

SIMD_FN void simd_store_u16(void *p, u32v x)
{
    u16v y = __builtin_convertvector(x, u16v);
    memcpy(p, &y, sizeof y);
}

/* Exact: shifted into place, the exponent is off by 112, which one product corrects (subnormals
 * too). Infinity and NaN get the largest exponent. */
SIMD_FN f32v simd_widen_f16(u32v h)
{
    u32v magnitude = (h & 0x7fffu) << 13, sign = (h & 0x8000u) << 16;
    u32v special = (u32v)((i32v)magnitude >= 0x0f800000) & 0x7f800000u;
    return (f32v)((u32v)((f32v)magnitude * 0x1p112f) | special | sign);
}

SIMD_FN f32v simd_load_f16(const void *p)
{
    return simd_widen_f16(simd_load_u16(p));
}

/* Adding 2^(e+13) makes the processor round a value of exponent e to f16's ten fraction bits. Below
 * the least normal exponent the step stays that of the subnormals. 65520 and above is infinity. */
SIMD_FN void simd_store_f16(void *p, f32v x)
{
    u32v sign = (u32v)x >> 16 & 0x8000u;
    i32v magnitude = simd_magnitude(x), exponent = magnitude & 0x7f800000;
    i32v large = magnitude >= 0x477ff000, normal = exponent >= 0x38800000;
    exponent = (exponent & normal) | (0x38800000 & ~normal);
    f32v capped = (f32v)(magnitude & ~large), step = (f32v)((u32v)exponent + (13u << 23));
    u32v code = (u32v)((capped + step - step) * 0x1p-112f) >> 13;
    code = (code & ~(u32v)large) | ((u32v)large & 0x7c00u);
    code |= (u32v)(magnitude > 0x7f800000) & 0x7e00u;
    simd_store_u16(p, code | sign);
}

SIMD_FN void simd_load_pairs_f16(const void *p, f32v *even, f32v *odd)
{
    u32v pairs = (u32v)simd_load(p);
    *even = simd_widen_f16(pairs & 0xffffu);
    *odd = simd_widen_f16(pairs >> 16);
}

#endif
#endif

#if defined(__AVX2__)
SIMD_FN f32v simd_fused(f32v a, f32v b, f32v c)
{
    return simd_fma(a, b, c);
}
#endif

/* ---- all lanes ----
 *
 * Halves are joined: lanes 8 apart, then 4, 2 and 1 apart. */
#define SIMD_FOLD(name, scalar, type, join)                                                        \
    SIMD_FN scalar name(type x)                                                                    \
    {                                                                                              \
        if (SIMD_LANES > 8)                                                                        \
            x = join(x, (type)simd_swap((f32v)x, 8));                                              \
        if (SIMD_LANES > 4)                                                                        \
            x = join(x, (type)simd_swap((f32v)x, 4));                                              \
        x = join(x, (type)simd_swap((f32v)x, 2));                                                  \
        return join(x, (type)simd_swap((f32v)x, 1))[0];                                            \
    }

#define SIMD_ADD(a, b) ((a) + (b))
SIMD_FOLD(simd_sum, float, f32v, SIMD_ADD)
SIMD_FOLD(simd_highest, float, f32v, simd_max)
SIMD_FOLD(simd_sum_i32, int32_t, i32v, SIMD_ADD)
SIMD_FOLD(simd_highest_i32, int32_t, i32v, simd_max_i32)

/* The sums over the lanes of a, b, c and d. */
#if SIMD_LANES == 16

SIMD_FN void simd_sums(f32v a, f32v b, f32v c, f32v d, float out[4])
{
    f32v ab = _mm512_shuffle_f32x4(a, b, 0x44) + _mm512_shuffle_f32x4(a, b, 0xee);
    f32v cd = _mm512_shuffle_f32x4(c, d, 0x44) + _mm512_shuffle_f32x4(c, d, 0xee);
    f32v abcd = _mm512_shuffle_f32x4(ab, cd, 0x88) + _mm512_shuffle_f32x4(ab, cd, 0xdd);
    abcd += simd_swap(abcd, 2);
    abcd += simd_swap(abcd, 1);
    /* The first lane of each quarter. */
    _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, abcd)));
}

#elif defined(__AVX2__)

/* Neighbours, then neighbouring pairs, then the halves. */
SIMD_FN void simd_sums(f32v a, f32v b, f32v c, f32v d, float out[4])
{
    __m256 sums = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1)));
}

#else

SIMD_FN void simd_sums(f32v a, f32v b, f32v c, f32v d, float out[4])
{
    out[0] = simd_sum(a);
    out[1] = simd_sum(b);
    out[2] = simd_sum(c);
    out[3] = simd_sum(d);
}

#endif

/* ---- bf16 ---- */

/* Rounded to a bf16 value, halves to even; NaN stays NaN. */
SIMD_FN f32v simd_round_bf16(f32v x)
{
    u32v u = (u32v)x, r = (u + 0x7fffu + (u >> 16 & 1u)) & 0xffff0000u;
    u32v nan = (u32v){0} + 0x7fc00000u;
    return simd_select(simd_equal(x, x), (f32v)r, (f32v)nan);
}

SIMD_FN f32v simd_load_bf16(const void *p)
{
    return (f32v)(simd_load_u16(p) << 16);
}

SIMD_FN void simd_store_bf16(void *p, f32v x)
{
    simd_store_u16(p, (u32v)simd_round_bf16(x) >> 16);
}

/* SIMD_LANES pairs. */
SIMD_FN void simd_load_pairs_bf16(const void *p, f32v *even, f32v *odd)
{
    u32v pairs = (u32v)simd_load(p);
    *even = (f32v)(pairs << 16);
    *odd = (f32v)(pairs & 0xffff0000u);
}

/* The pairs of the 2-byte type t. */
SIMD_FN void simd_load_pairs_as(const void *p, f32v *even, f32v *odd, enum spw_dtype t)
{
    if (t == SPW_DTYPE_F16)
        simd_load_pairs_f16(p, even, odd);
    else
        simd_load_pairs_bf16(p, even, odd);
}

/* ---- dot products inside a lane ---- */

#if defined(__AVX512BF16__)
#define SIMD_DOT_BF16 1

/* sum + both products of the pairs of bf16 in a lane of x and y. */
SIMD_FN f32v simd_dot_bf16(f32v sum, u32v x, u32v y)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)y);
}

/* From here on this thread's floating-point operations take subnormal numbers as 0 and give 0 for
 * them, as simd_dot_bf16 always does. Returns the mode for simd_restore_mode. A compiler may move
 * operations over both functions, but neither calls nor simd_pinned. */
SIMD_FN unsigned simd_flush_subnormals(void)
{
    const unsigned mode = _mm_getcsr();
    _mm_setcsr(mode | _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON);
    return mode;
}

SIMD_FN void simd_restore_mode(unsigned mode)
{
    _mm_setcsr(mode);
}

/* Returns x. The compiler computes x before this place, and everything that uses the result after
 * it. */
SIMD_FN f32v simd_pinned(f32v x)
{
    __asm__ volatile("" : "+v"(x));
    return x;
}

/* Rounded to bf16, halves to even; subnormal numbers become 0. */
SIMD_FN void simd_store_bf16_flushed(void *p, f32v x)
{
    _mm256_storeu_si256(p, (__m256i)_mm512_cvtneps_pbh(x));
}
#else
#define SIMD_DOT_BF16 0
#endif

#if defined(__AVX512VNNI__) && SIMD_LANES == 16
/* sum + the four products of the bytes in a lane: of u without a sign, of s with one. */
SIMD_FN i32v simd_dot_bytes(i32v sum, u32v u, i32v s)
{
    return (i32v)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)u, (__m512i)s);
}
#endif

#endif
