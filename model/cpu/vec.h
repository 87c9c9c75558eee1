/* A vector of VEC_LANES f32 lanes, in as many registers as it takes (base/simd.h).
 *
 * Sixteen lanes unless the including file defines another number: a K block of a tile is sixteen
 * positions, and one source serves all instruction sets. Every function works lane by lane;
 * vec_sum, vec_highest and vec_sums have one tree. So a result never depends on what lies in the
 * other lanes. */
#ifndef SPW_MODEL_CPU_VEC_H
#define SPW_MODEL_CPU_VEC_H

#include "base/numbers.h"
#include "base/simd.h"

#ifndef VEC_LANES
#define VEC_LANES 16
#endif
#define VEC_REGISTERS (VEC_LANES / SIMD_LANES)

struct vec {
    f32v v[VEC_REGISTERS];
};

/* A statement for each register i. Not a loop: every index is a constant before gcc chooses which
 * structs it keeps in registers. */
#define VEC_ONE(index, ...)                                                                        \
    do {                                                                                           \
        enum { i = index };                                                                        \
        __VA_ARGS__;                                                                               \
    } while (0)
#if VEC_REGISTERS == 1
#define VEC_EACH(...) VEC_ONE(0, __VA_ARGS__)
#elif VEC_REGISTERS == 2
#define VEC_EACH(...)                                                                              \
    do {                                                                                           \
        VEC_ONE(0, __VA_ARGS__);                                                                   \
        VEC_ONE(1, __VA_ARGS__);                                                                   \
    } while (0)
#else
#define VEC_EACH(...)                                                                              \
    do {                                                                                           \
        VEC_ONE(0, __VA_ARGS__);                                                                   \
        VEC_ONE(1, __VA_ARGS__);                                                                   \
        VEC_ONE(2, __VA_ARGS__);                                                                   \
        VEC_ONE(3, __VA_ARGS__);                                                                   \
    } while (0)
#endif

/* Where register i of a vector begins, in elements. */
#define VEC_AT(i) ((size_t)(i)*SIMD_LANES)

SIMD_FN struct vec vec_set1(float x)
{
    struct vec r;
    VEC_EACH(r.v[i] = simd_set1(x));
    return r;
}

SIMD_FN struct vec vec_load(const void *p)
{
    struct vec r;
    VEC_EACH(r.v[i] = simd_load((const float *)p + VEC_AT(i)));
    return r;
}

SIMD_FN void vec_store(void *p, struct vec a)
{
    VEC_EACH(simd_store((float *)p + VEC_AT(i), a.v[i]));
}

SIMD_FN struct vec vec_add(struct vec a, struct vec b)
{
    VEC_EACH(a.v[i] += b.v[i]);
    return a;
}

SIMD_FN struct vec vec_sub(struct vec a, struct vec b)
{
    VEC_EACH(a.v[i] -= b.v[i]);
    return a;
}

SIMD_FN struct vec vec_mul(struct vec a, struct vec b)
{
    VEC_EACH(a.v[i] *= b.v[i]);
    return a;
}

SIMD_FN struct vec vec_div(struct vec a, struct vec b)
{
    VEC_EACH(a.v[i] /= b.v[i]);
    return a;
}

/* a * b + c */
SIMD_FN struct vec vec_fma(struct vec a, struct vec b, struct vec c)
{
    VEC_EACH(c.v[i] = simd_fma(a.v[i], b.v[i], c.v[i]));
    return c;
}

/* a * b + c, rounded once */
SIMD_FN struct vec vec_fused(struct vec a, struct vec b, struct vec c)
{
    VEC_EACH(c.v[i] = simd_fused(a.v[i], b.v[i], c.v[i]));
    return c;
}

SIMD_FN struct vec vec_sqrt(struct vec a)
{
    VEC_EACH(a.v[i] = simd_sqrt(a.v[i]));
    return a;
}

/* a > b ? a : b, so that a NaN in b stays NaN. */
SIMD_FN struct vec vec_max(struct vec a, struct vec b)
{
    VEC_EACH(a.v[i] = simd_max(a.v[i], b.v[i]));
    return a;
}

/* a < b ? a : b, so that a NaN in b stays NaN. */
SIMD_FN struct vec vec_min(struct vec a, struct vec b)
{
    VEC_EACH(a.v[i] = simd_min(a.v[i], b.v[i]));
    return a;
}

/* a < b ? x : y */
SIMD_FN struct vec vec_select_less(struct vec a, struct vec b, struct vec x, struct vec y)
{
    VEC_EACH(x.v[i] = simd_select(simd_less(a.v[i], b.v[i]), x.v[i], y.v[i]));
    return x;
}

/* x in lanes [lo, hi), y in the others; lo, hi <= VEC_LANES. */
SIMD_FN struct vec vec_select_range(uint32_t lo, uint32_t hi, struct vec x, struct vec y)
{
    VEC_EACH(x.v[i] = simd_select(simd_range(VEC_AT(i), lo, hi), x.v[i], y.v[i]));
    return x;
}

/* To the nearest integer, halves to even; |a| < 2^22. */
SIMD_FN struct vec vec_round(struct vec a)
{
    VEC_EACH(a.v[i] = simd_round(a.v[i]));
    return a;
}

/* a * 2^n for an integral n, |n| <= 252, one rounding. */
SIMD_FN struct vec vec_scale2(struct vec a, struct vec n)
{
    VEC_EACH(a.v[i] = simd_scale2(a.v[i], n.v[i]));
    return a;
}

/* The registers added to one: halves of the vector. */
SIMD_FN f32v vec_fold(struct vec a)
{
#if VEC_REGISTERS == 4
    return (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]);
#elif VEC_REGISTERS == 2
    return a.v[0] + a.v[1];
#else
    return a.v[0];
#endif
}

/* The sum of all lanes: halves are added, 8, 4, 2, 1. */
SIMD_FN float vec_sum(struct vec a)
{
    return simd_sum(vec_fold(a));
}

SIMD_FN float vec_highest(struct vec a)
{
    f32v x = a.v[0];
    VEC_EACH(x = simd_max(x, a.v[i]));
    return simd_highest(x);
}

/* The sums of four vectors, in the order of simd_sums. */
SIMD_FN void vec_sums(struct vec a, struct vec b, struct vec c, struct vec d, float out[4])
{
    simd_sums(vec_fold(a), vec_fold(b), vec_fold(c), vec_fold(d), out);
}

/* ---- types of elements: f32, f16, bf16 ---- */

SIMD_FN struct vec vec_load_bf16(const void *p)
{
    struct vec r;
    VEC_EACH(r.v[i] = simd_load_bf16((const uint16_t *)p + VEC_AT(i)));
    return r;
}

/* All lanes, widened exactly. */
SIMD_FN struct vec vec_load_full_as(const void *p, enum spw_dtype t)
{
    struct vec r;
    if (t == SPW_DTYPE_F32)
        return vec_load(p);
    if (t == SPW_DTYPE_BF16)
        return vec_load_bf16(p);
    VEC_EACH(r.v[i] = simd_load_f16((const uint16_t *)p + VEC_AT(i)));
    return r;
}

/* All lanes, each rounded once. */
SIMD_FN void vec_store_full_as(void *p, struct vec a, enum spw_dtype t)
{
    if (t == SPW_DTYPE_F32) {
        vec_store(p, a);
    } else if (t == SPW_DTYPE_F16) {
        VEC_EACH(simd_store_f16((uint16_t *)p + VEC_AT(i), a.v[i]));
    } else {
        VEC_EACH(simd_store_bf16((uint16_t *)p + VEC_AT(i), a.v[i]));
    }
}

/* The first n of the elements from `index` on; the other lanes are 0. Never reads more than n. */
SIMD_FN struct vec vec_load_as(const void *base, size_t index, size_t n, enum spw_dtype t)
{
    const char *p = (const char *)base + index * spw_dtype_bytes(t);
    char part[SIMD_PART_BYTES];
    if (n < VEC_LANES)
        p = simd_copy_part(part, p, n * spw_dtype_bytes(t));
    return vec_load_full_as(p, t);
}

/* Writes n elements and no more. */
SIMD_FN void vec_store_as(void *base, size_t index, size_t n, enum spw_dtype t, struct vec a)
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

/* VEC_LANES pairs (even, odd) of 2-byte values, widened. */
SIMD_FN void vec_load_pairs_as(const void *p, struct vec *even, struct vec *odd, enum spw_dtype t)
{
    VEC_EACH(simd_load_pairs_as((const uint32_t *)p + VEC_AT(i), &even->v[i], &odd->v[i], t));
}

/* The value that a tensor of type t would hold. */
SIMD_FN struct vec vec_round_as(struct vec a, enum spw_dtype t)
{
    if (t == SPW_DTYPE_BF16)
        VEC_EACH(a.v[i] = simd_round_bf16(a.v[i]));
    return a;
}

#endif
