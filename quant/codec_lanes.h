/* Vectors of one register for quant/codec_encode.h: 16, 8 or 4 lanes of 32 bits, by the flags of
 * the including file. Lane operations only, of which each lane's bits are those of plain C: nothing
 * is fused, and no sum runs across lanes. */
#ifndef SPW_QUANT_CODEC_LANES_H
#define SPW_QUANT_CODEC_LANES_H

#include <string.h>

#include "base/base.h"

#if defined(__AVX512F__)
enum { LANES = 16 };
#elif defined(__AVX2__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif

#define LANES_FN static inline __attribute__((always_inline))

typedef float lanes_f __attribute__((vector_size(4 * LANES)));
typedef int32_t lanes_i __attribute__((vector_size(4 * LANES)));
typedef uint32_t lanes_u __attribute__((vector_size(4 * LANES)));
typedef uint16_t lanes_h __attribute__((vector_size(2 * LANES)));

LANES_FN lanes_f lanes_set(float x)
{
    return x - (lanes_f){0};
}

LANES_FN lanes_f lanes_load(const void *p)
{
    lanes_f x;
    memcpy(&x, p, sizeof x);
    return x;
}

LANES_FN void lanes_store(void *p, lanes_f x)
{
    memcpy(p, &x, sizeof x);
}

LANES_FN lanes_f lanes_select(lanes_i mask, lanes_f x, lanes_f y)
{
    return (lanes_f)((mask & (lanes_i)x) | (~mask & (lanes_i)y));
}

/* Magnitudes as integers order like the numbers they are; infinities and NaN are the greatest. */
LANES_FN lanes_i lanes_magnitude(lanes_f x)
{
    return (lanes_i)x & 0x7fffffff;
}

LANES_FN lanes_i lanes_max(lanes_i a, lanes_i b)
{
    lanes_i more = a > b;
    return (a & more) | (b & ~more);
}

LANES_FN int32_t lanes_highest(lanes_i a)
{
    int32_t best = a[0];
    for (int l = 1; l < LANES; l++)
        best = a[l] > best ? a[l] : best;
    return best;
}

/* f16 in the low halves of the lanes, widened exactly. Shifted into place, the exponent is off by
 * 112, which one product mends, subnormals too; what is too large then is infinity or NaN. */
LANES_FN lanes_f lanes_from_f16(lanes_u h)
{
    lanes_u size = (h & 0x7fffu) << 13, sign = (h & 0x8000u) << 16;
    lanes_f x = (lanes_f)size * 0x1p112f;
    x = lanes_select((lanes_i)size >= 0x0f800000, (lanes_f)(size | 0x7f800000u), x);
    return (lanes_f)((lanes_u)x | sign);
}

/* LANES pairs of 2-byte values. */
LANES_FN void lanes_load_pairs(const void *p, lanes_f *even, lanes_f *odd, enum spw_dtype t)
{
    lanes_u u = (lanes_u)lanes_load(p);
    if (t == SPW_DTYPE_F16) {
        *even = lanes_from_f16(u & 0xffffu);
        *odd = lanes_from_f16(u >> 16);
    } else {
        *even = (lanes_f)(u << 16);
        *odd = (lanes_f)(u & 0xffff0000u);
    }
}

/* The stage of distance h < LANES inside a vector: lane l becomes x[l] + x[l ^ h], or x[l ^ h] -
 * x[l] where bit h of l is set. */
#if defined(__AVX512F__)
#define LANES_1 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14
#define LANES_2 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13
#define LANES_4 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11
#define LANES_8 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7
#elif defined(__AVX2__)
#define LANES_1 1, 0, 3, 2, 5, 4, 7, 6
#define LANES_2 2, 3, 0, 1, 6, 7, 4, 5
#define LANES_4 4, 5, 6, 7, 0, 1, 2, 3
#else
#define LANES_1 1, 0, 3, 2
#define LANES_2 2, 3, 0, 1
#endif

LANES_FN lanes_f lanes_butterfly(lanes_f x, lanes_f swapped, uint32_t h)
{
    lanes_u index, sign;
    for (uint32_t l = 0; l < LANES; l++)
        index[l] = l;
    sign = (lanes_u)((index & h) != 0) & 0x80000000u;
    return swapped + (lanes_f)((lanes_u)x ^ sign);
}

/* All stages that lie inside a vector, of blocks of `block` lanes or more. */
LANES_FN lanes_f lanes_rotate(lanes_f x, uint32_t block)
{
    if (block > 1)
        x = lanes_butterfly(x, __builtin_shufflevector(x, x, LANES_1), 1);
    if (block > 2)
        x = lanes_butterfly(x, __builtin_shufflevector(x, x, LANES_2), 2);
#ifdef LANES_4
    if (block > 4)
        x = lanes_butterfly(x, __builtin_shufflevector(x, x, LANES_4), 4);
#endif
#ifdef LANES_8
    if (block > 8)
        x = lanes_butterfly(x, __builtin_shufflevector(x, x, LANES_8), 8);
#endif
    return x;
}

#endif
