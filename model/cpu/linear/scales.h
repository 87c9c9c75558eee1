/* Quantized weights of SIMD_LANES columns of y, which are rows of W: the scales and minima of a
 * group of 256, with one column in each lane. And what is the same for all weights of a type. */
#ifndef SPW_MODEL_CPU_LINEAR_SCALES_H
#define SPW_MODEL_CPU_LINEAR_SCALES_H

#include "base/simd_bytes.h"
#include "quant/codes.h"
#include "quant/type_facts.h"

enum { SMALL = 32, SMALL_BLOCKS = SPW_CODES_GROUP / SMALL };

/* What multiplies the sums of products. */
struct scales {
    f32v d[SMALL_BLOCKS], m[SMALL_BLOCKS]; /* of each block; of the one block */
    i32v parts[SPW_BLOCK_PARTS];           /* large blocks: of 32 or of 16 weights, see part_of */
    u32v minima[SPW_BLOCK_PARTS / 2];      /* of two parts each, as int16 */
};

/* Columns side by side in memory: a group of one. */
struct packed {
    const uint8_t *at; /* of the first column */
    size_t stride;     /* bytes from column to column, in fours ... */
    size_t fours;      /* ... and from four to four */
    size_t blocks;     /* of a column: small blocks only */
};

/* The columns after the last one are copies of it. */
SIMD_FN void copy_edge(struct packed *p, size_t n, size_t bytes, uint8_t *edge)
{
    for (size_t l = 0; l < SIMD_LANES; l++)
        memcpy(edge + l * bytes, p->at + (l < n ? l : n - 1) * p->stride, bytes);
    *p = (struct packed){edge, bytes, 4 * bytes, p->blocks};
}

/* ---- types ---- */

SIMD_FN size_t block_bytes(enum spw_dtype t)
{
    return (size_t)SPW_FACTS(t).bytes;
}

SIMD_FN bool is_small(enum spw_dtype t)
{
    return SPW_FACTS(t).elements == SMALL;
}

/* Of 256 weights. */
SIMD_FN size_t group_bytes(enum spw_dtype t)
{
    return block_bytes(t) * (is_small(t) ? SMALL_BLOCKS : 1);
}

/* Weights that share a scale. */
SIMD_FN size_t part_of(enum spw_dtype t)
{
    return (size_t)SPW_FACTS(t).part;
}

SIMD_FN bool has_minima(enum spw_dtype t)
{
    return SPW_FACTS(t).has_minima;
}

/* What is added to the codes of quant/blocks.h. Bytes with a sign may stay as they are. */
SIMD_FN int code_offset(enum spw_dtype t)
{
    const int offset = SPW_FACTS(t).offset;
    return offset == 128 ? SIMD_DOT_OFFSET : offset;
}

/* The largest code plus code_offset. 255: the code has a sign, unless code_offset is 128. */
SIMD_FN int largest_code(enum spw_dtype t)
{
    const int bits = SPW_FACTS(t).low_bits + SPW_FACTS(t).high_bits;
    if (SPW_FACTS(t).values == SPW_VALUES_E2M1)
        return 24;
    return SPW_FACTS(t).offset == 128 ? 255 : (1 << bits) - 1;
}

/* Whether n bits of a code lie apart from the others. */
SIMD_FN bool has_high_bits(enum spw_dtype t, int n)
{
    return SPW_FACTS(t).high_bits == n;
}

SIMD_FN u32v low_nibbles(u32v x)
{
    return x & 0x0f0f0f0fu;
}

SIMD_FN u32v high_nibbles(u32v x)
{
    return x >> 4 & 0x0f0f0f0fu;
}

/* ---- blocks of 32 ---- */

/* The bits of 2^(e - 128). */
SIMD_FN u32v power_of_two(u32v e)
{
    const u32v subnormal = (u32v)(e < 2u);
    return (subnormal & (0x200000u << (e & 1u))) | (~subnormal & (e - 1u) << 23);
}

/* The f16 at the beginning of block b, and the one after it. */
SIMD_FN void unpack_small_scale(enum spw_dtype t, const struct packed *p, size_t b, f32v *d,
                                f32v *m)
{
    const uint8_t *at = p->at + b * block_bytes(t);
    if (has_minima(t)) {
        const u32v word = simd_load_words(at, p->stride, p->fours);
        *d = simd_f16_of(word);
        *m = simd_f16_of(word >> 16);
    } else if (SPW_FACTS(t).form == SPW_SCALE_POWER)
        *d = (f32v)power_of_two(simd_load_words(at, p->stride, p->fours) & 0xffu);
    else
        *d = simd_load_f16s(at, p->stride, p->fours);
}

SIMD_FN void unpack_small_scales(enum spw_dtype t, const struct packed *p, struct scales *to)
{
    for (size_t b = 0; b < p->blocks; b++)
        unpack_small_scale(t, p, b, to->d + b, to->m + b);
}

/* ---- blocks of 256 ---- */

/* Scales and minima as signed bytes: those of parts 4 j .. 4 j + 3 in each lane. */
struct scale_bytes {
    u32v scales[SPW_BLOCK_PARTS / 4], minima[SPW_BLOCK_PARTS / 4];
};

/* d, m and twelve bytes with eight scales and minima of six bits. */
SIMD_FN void unpack_scales_6_6(const struct packed *p, f32v *d, f32v *m, struct scale_bytes *to)
{
    u32v head[4];
    simd_load_columns(head, p->at, p->stride, p->fours);
    *d = simd_f16_of(head[0] & 0xffffu);
    *m = -simd_f16_of(head[0] >> 16);
    to->scales[0] = head[1] & 0x3f3f3f3fu;
    to->minima[0] = head[2] & 0x3f3f3f3fu;
    to->scales[1] = low_nibbles(head[3]) | (head[1] >> 2 & 0x30303030u);
    to->minima[1] = high_nibbles(head[3]) | (head[2] >> 2 & 0x30303030u);
}

SIMD_FN void unpack_scales_4(const struct packed *p, f32v *d, f32v *m, struct scale_bytes *to)
{
    u32v s[4], tail[4];
    simd_load_columns(s, p->at, p->stride, p->fours);
    simd_load_columns(tail, p->at + 68, p->stride, p->fours); /* the last sixteen bytes */
    *d = simd_f16_of(tail[3] & 0xffffu);
    *m = -simd_f16_of(tail[3] >> 16);
    for (size_t j = 0; j < 4; j++) {
        to->scales[j] = low_nibbles(s[j]);
        to->minima[j] = high_nibbles(s[j]);
    }
}

SIMD_FN void unpack_scales_6(const struct packed *p, f32v *d, struct scale_bytes *to)
{
    u32v tail[4], s[3];
    simd_load_columns(tail, p->at + 94, p->stride,
                      p->fours); /* the last sixteen bytes: s is at 96 */
    for (size_t i = 0; i < 3; i++)
        s[i] = tail[i] >> 16 | tail[i + 1] << 16;
    *d = simd_f16_of(tail[3] >> 16);
    for (size_t j = 0; j < 4; j++) {
        const u32v low = low_nibbles(s[j % 2] >> (j < 2 ? 0 : 4));
        const u32v scales = low | (s[2] >> 2 * j & 0x03030303u) << 4;
        to->scales[j] = (u32v)((s8v)scales - 32);
    }
}

SIMD_FN void unpack_scales_8(const struct packed *p, f32v *d, struct scale_bytes *to)
{
    u32v tail[4];
    simd_load_columns(to->scales, p->at + 192, p->stride, p->fours);
    simd_load_columns(tail, p->at + 194, p->stride, p->fours); /* the last sixteen bytes */
    *d = simd_f16_of(tail[3] >> 16);
}

/* Four bits of the second word and two of the first one for each part. */
SIMD_FN void unpack_scales_2_4(const struct packed *p, f32v *d, struct scale_bytes *to)
{
    u32v head[4];
    simd_load_columns(head, p->at, p->stride, p->fours);
    *d = simd_f16_of(head[0] & 0xffffu);
    for (size_t j = 0; j < 2; j++) {
        u32v low = head[1] >> 16 * j & 0xffffu, high = head[0] >> (16 + 8 * j) & 0xffu;
        low = (low | low << 8) & 0x00ff00ffu;
        low = (low | low << 4) & 0x0f0f0f0fu;
        high = (high | high << 12) & 0x000f000fu;
        high = (high | high << 6) & 0x03030303u;
        to->scales[j] = (u32v)((s8v)(low | high << 4) - 32);
    }
}

SIMD_FN void unpack_scale_bytes(enum spw_dtype t, const struct packed *p, f32v *d, f32v *m,
                                struct scale_bytes *to)
{
    switch (SPW_FACTS(t).form) {
    case SPW_SCALES_6_6:
        unpack_scales_6_6(p, d, m, to);
        break;
    case SPW_SCALES_4:
        unpack_scales_4(p, d, m, to);
        break;
    case SPW_SCALES_6:
        unpack_scales_6(p, d, to);
        break;
    case SPW_SCALES_8:
        unpack_scales_8(p, d, to);
        break;
    case SPW_SCALES_2_4:
        unpack_scales_2_4(p, d, to);
        break;
    default:
        break;
    }
}

/* Byte i of each lane as a number. */
SIMD_FN i32v byte_of(u32v x, size_t i)
{
    return (i32v)(x << (24 - 8 * i)) >> 24;
}

/* Bytes 2 i and 2 i + 1, which have no sign, as a pair of int16. */
SIMD_FN u32v pair_of(u32v x, size_t i)
{
    x = x >> 16 * i;
    return (x & 0xffu) | (x & 0xff00u) << 8;
}

/* t is a constant. */
SIMD_FN void unpack_large_scales(const enum spw_dtype t, const struct packed *p, struct scales *to)
{
    const size_t parts = SPW_CODES_GROUP / part_of(t);
    struct scale_bytes bytes;
    unpack_scale_bytes(t, p, to->d, to->m, &bytes);
    for (size_t j = 0; j < parts; j++)
        to->parts[j] = byte_of(bytes.scales[j / 4], j % 4);
    for (size_t j = 0; j < parts / 2 && has_minima(t); j++)
        to->minima[j] = pair_of(bytes.minima[j / 2], j % 2);
}

/* ---- any type ---- */

/* t is a constant. */
SIMD_FN void unpack_scales(const enum spw_dtype t, const struct packed *p, struct scales *to)
{
    if (is_small(t))
        unpack_small_scales(t, p, to);
    else
        unpack_large_scales(t, p, to);
}

/* The products of a number of each part of a half with the sums of codes of x. `parts`: of a group.
 * `pairs`: as scales.minima. */
SIMD_FN i32v dot_with_sums(const u32v *pairs, const struct spw_codes *x, int parts, int half)
{
    const int16_t *sums = (parts == 8 ? x->sums32 : x->sums) + half * (parts / 2);
    i32v total = {0};
    pairs += half * (parts / 4);
#pragma GCC unroll 4
    for (int j = 0; j < parts / 4; j++)
        total = simd_dot_pairs(total, pairs[j], simd_set1_bytes(sums + 2 * j));
    return total;
}

/* ---- scales of sums ---- */

/* Two int16. */
SIMD_FN u32v both(i32v low, i32v high)
{
    return ((u32v)low & 0xffffu) | (u32v)high << 16;
}

/* A type without minima gets the product of each scale and -code_offset in their place. For sums in
 * 16 bits the scale of a part is stored twice. */
SIMD_FN void pair_scales(enum spw_dtype t, struct scales *s)
{
    const size_t parts = SPW_CODES_GROUP / part_of(t);
    for (size_t j = 0; j < parts && !has_minima(t); j += 2)
        s->minima[j / 2] = both(s->parts[j] * -code_offset(t), s->parts[j + 1] * -code_offset(t));
    for (size_t j = 0; SIMD_PAIRS && j < parts; j++)
        s->parts[j] = (i32v)both(s->parts[j], s->parts[j]);
}

#endif
