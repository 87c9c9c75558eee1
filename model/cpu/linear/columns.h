/* Unpacking quantized weights: SIMD_LANES columns of y, which are rows of W, become a panel with
 * one column in each lane. Each type of quant/blocks.h is written out once for all instruction
 * sets.
 *
 * Sixteen bytes of each column are loaded at a time and transposed: register i then has bytes 4 i
 * .. 4 i + 3 of every column. So four weights of a column lie in one lane, and nothing is ever
 * added across lanes. */
#ifndef SPW_MODEL_CPU_LINEAR_COLUMNS_H
#define SPW_MODEL_CPU_LINEAR_COLUMNS_H

#include "base/simd_bytes.h"
#include "quant/codes.h"

enum { SMALL = 32, SMALL_BLOCKS = SPW_CODES_GROUP / SMALL, FOURS = SPW_CODES_GROUP / 4 };

/* A group of 256 weights of SIMD_LANES columns. */
struct columns {
    u32v codes[FOURS]; /* weights 4 i .. 4 i + 3 as bytes, plus code_offset(type) */
    f32v d[SMALL_BLOCKS], m[SMALL_BLOCKS]; /* of each block; of the one block */
    i32v scales[SPW_BLOCK_PARTS];          /* large blocks: of 32 or of 16 weights, see part_of */
    u32v minima[SPW_BLOCK_PARTS / 2];      /* of two parts each, as int16 */
};

/* Columns side by side in memory: a group of one. */
struct packed {
    const uint8_t *at; /* of the first column */
    size_t stride;     /* bytes from column to column */
    size_t blocks;     /* of a column: small blocks only */
};

/* What is added to the codes of quant/blocks.h. */
SIMD_FN int code_offset(enum spw_dtype t)
{
    switch (t) {
    case SPW_DTYPE_Q4_0:
        return 8;
    case SPW_DTYPE_Q5_0:
        return 16;
    case SPW_DTYPE_Q3_K:
        return 4;
    case SPW_DTYPE_Q6_K:
        return 32;
    case SPW_DTYPE_MXFP4:
        return 12;
    case SPW_DTYPE_Q8_0:
    case SPW_DTYPE_IQ4_NL:
    case SPW_DTYPE_IQ4_XS:
        return SIMD_DOT_OFFSET;
    default:
        return 0;
    }
}

/* Weights that share a scale. */
SIMD_FN size_t part_of(enum spw_dtype t)
{
    return t == SPW_DTYPE_Q2_K || t == SPW_DTYPE_Q3_K || t == SPW_DTYPE_Q6_K ? 16 : 32;
}

SIMD_FN bool has_minima(enum spw_dtype t)
{
    return t == SPW_DTYPE_Q4_1 || t == SPW_DTYPE_Q5_1 || t == SPW_DTYPE_Q2_K ||
           t == SPW_DTYPE_Q4_K || t == SPW_DTYPE_Q5_K;
}

/* Tables of IQ4 and MXFP4, plus code_offset. */
#define AT(x) (int8_t)((x) + SIMD_DOT_OFFSET)
static const int8_t iq4_values[16] = {AT(-127), AT(-104), AT(-83), AT(-65), AT(-49), AT(-35),
                                      AT(-22),  AT(-10),  AT(1),   AT(13),  AT(25),  AT(38),
                                      AT(53),   AT(69),   AT(89),  AT(113)};
#undef AT
static const int8_t mxfp4_values[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

SIMD_FN u32v low_nibbles(u32v x)
{
    return x & 0x0f0f0f0fu;
}

SIMD_FN u32v high_nibbles(u32v x)
{
    return x >> 4 & 0x0f0f0f0fu;
}

/* ---- blocks of 32 ---- */

/* The f16 at the beginning of each block. */
SIMD_FN void read_scales(const struct packed *p, size_t bytes, f32v to[SMALL_BLOCKS])
{
    for (size_t b = 0; b < p->blocks; b++)
        to[b] = simd_f16_of(simd_load_words(p->at + b * bytes, p->stride) & 0xffffu);
}

SIMD_FN void unpack_q8_0(const struct packed *p, struct columns *to)
{
    read_scales(p, 34, to->d);
    for (size_t b = 0; b < p->blocks; b++) {
        simd_load_columns(to->codes + 8 * b, p->at + 34 * b + 2, p->stride);
        simd_load_columns(to->codes + 8 * b + 4, p->at + 34 * b + 18, p->stride);
        if (SIMD_DOT_OFFSET)
            for (size_t i = 0; i < 8; i++)
                to->codes[8 * b + i] ^= 0x80808080u;
    }
}

/* Sixteen bytes at `at` of each block: the low nibbles are 16 codes, the high nibbles the next 16.
 */
SIMD_FN void unpack_nibbles(const struct packed *p, size_t bytes, size_t at, const int8_t *table,
                            struct columns *to)
{
    for (size_t b = 0; b < p->blocks; b++) {
        u32v q[4];
        simd_load_columns(q, p->at + bytes * b + at, p->stride);
        for (size_t i = 0; i < 4; i++) {
            u32v low = low_nibbles(q[i]), high = high_nibbles(q[i]);
            to->codes[8 * b + i] = table ? simd_lookup(table, low) : low;
            to->codes[8 * b + 4 + i] = table ? simd_lookup(table, high) : high;
        }
    }
}

/* d and m of each block, in one word. */
SIMD_FN void unpack_scale_and_minimum(const struct packed *p, size_t bytes, struct columns *to)
{
    for (size_t b = 0; b < p->blocks; b++) {
        u32v word = simd_load_words(p->at + b * bytes, p->stride);
        to->d[b] = simd_f16_of(word & 0xffffu);
        to->m[b] = simd_f16_of(word >> 16);
    }
}

/* Adds the fifth bits: bit i of the word at `at` belongs to number i. */
SIMD_FN void unpack_fifth_bits(const struct packed *p, size_t bytes, size_t at, struct columns *to)
{
    for (size_t b = 0; b < p->blocks; b++) {
        u32v word = simd_load_words(p->at + b * bytes + at, p->stride);
        for (size_t i = 0; i < 8; i++) /* four bits become bit 4 of four bytes */
            to->codes[8 * b + i] |= ((word >> 4 * i & 15u) * 0x02040810u) & 0x10101010u;
    }
}

SIMD_FN void unpack_mxfp4(const struct packed *p, struct columns *to)
{
    for (size_t b = 0; b < p->blocks; b++) {
        u32v e = simd_load_words(p->at + b * 17, p->stride) & 0xffu;
        u32v subnormal = (u32v)(e < 2u);
        e = (subnormal & (0x200000u << (e & 1u))) | (~subnormal & (e - 1u) << 23);
        to->d[b] = (f32v)e; /* 2^(e - 128) */
    }
    unpack_nibbles(p, 17, 1, mxfp4_values, to);
}

/* ---- blocks of 256 ---- */

/* Byte i of each lane as a number. */
SIMD_FN i32v byte_of(u32v x, size_t i)
{
    return (i32v)(x >> 8 * i & 0xffu);
}

/* Bytes 2 i and 2 i + 1 as a pair of int16. */
SIMD_FN u32v pair_of(u32v x, size_t i)
{
    x = x >> 16 * i;
    return (x & 0xffu) | (x & 0xff00u) << 8;
}

/* d, m and twelve bytes with eight scales and minima of six bits. */
SIMD_FN void unpack_six_bits(const struct packed *p, struct columns *to)
{
    u32v head[4], scales[2], minima[2];
    simd_load_columns(head, p->at, p->stride);
    to->d[0] = simd_f16_of(head[0] & 0xffffu);
    to->m[0] = -simd_f16_of(head[0] >> 16);
    scales[0] = head[1] & 0x3f3f3f3fu;
    minima[0] = head[2] & 0x3f3f3f3fu;
    scales[1] = low_nibbles(head[3]) | (head[1] >> 2 & 0x30303030u);
    minima[1] = high_nibbles(head[3]) | (head[2] >> 2 & 0x30303030u);
    for (size_t j = 0; j < 8; j++)
        to->scales[j] = byte_of(scales[j / 4], j % 4);
    for (size_t j = 0; j < 4; j++)
        to->minima[j] = pair_of(minima[j / 2], j % 2);
}

/* Each 32 bytes at `at`: low nibbles are 32 codes, high nibbles the next 32. */
SIMD_FN void unpack_wide_nibbles(const struct packed *p, size_t at, struct columns *to)
{
    for (size_t i = 0; i < 8; i++) {
        u32v q[4];
        u32v *low = to->codes + i / 2 * 16 + i % 2 * 4;
        simd_load_columns(q, p->at + at + 16 * i, p->stride);
        for (size_t j = 0; j < 4; j++) {
            low[j] = low_nibbles(q[j]);
            low[j + 8] = high_nibbles(q[j]);
        }
    }
}

SIMD_FN void unpack_q5_k(const struct packed *p, struct columns *to)
{
    u32v h[8];
    unpack_six_bits(p, to);
    simd_load_columns(h, p->at + 16, p->stride);
    simd_load_columns(h + 4, p->at + 32, p->stride);
    for (size_t i = 0; i < 8; i++) {
        u32v q[4];
        u32v *low = to->codes + i / 2 * 16 + i % 2 * 4;
        const size_t bit = i / 2 * 2; /* of the low nibbles */
        simd_load_columns(q, p->at + 48 + 16 * i, p->stride);
        for (size_t j = 0; j < 4; j++) {
            u32v bits = h[i % 2 * 4 + j] >> bit;
            low[j] = low_nibbles(q[j]) | (bits << 4 & 0x10101010u);
            low[j + 8] = high_nibbles(q[j]) | (bits << 3 & 0x10101010u);
        }
    }
}

/* 64 bytes at `at`: each 32 have two bits of 128 codes. */
SIMD_FN void unpack_two_bits(const struct packed *p, size_t at, struct columns *to)
{
    for (size_t i = 0; i < 4; i++) {
        u32v q[4];
        u32v *first = to->codes + i / 2 * 32 + i % 2 * 4;
        simd_load_columns(q, p->at + at + 16 * i, p->stride);
        for (size_t j = 0; j < 4; j++)
            for (size_t g = 0; g < 4; g++)
                first[8 * g + j] = q[j] >> 2 * g & 0x03030303u;
    }
}

SIMD_FN void unpack_q2_k(const struct packed *p, struct columns *to)
{
    u32v s[4], tail[4];
    simd_load_columns(s, p->at, p->stride);
    simd_load_columns(tail, p->at + 68, p->stride); /* the last sixteen bytes */
    to->d[0] = simd_f16_of(tail[3] & 0xffffu);
    to->m[0] = -simd_f16_of(tail[3] >> 16);
    for (size_t j = 0; j < 16; j++)
        to->scales[j] = byte_of(low_nibbles(s[j / 4]), j % 4);
    for (size_t j = 0; j < 8; j++)
        to->minima[j] = pair_of(high_nibbles(s[j / 2]), j % 2);
    unpack_two_bits(p, 16, to);
}

SIMD_FN void unpack_q3_k(const struct packed *p, struct columns *to)
{
    u32v tail[4], s[3], h[8];
    simd_load_columns(tail, p->at + 94, p->stride); /* the last sixteen bytes: s is at 96 */
    for (size_t i = 0; i < 3; i++)
        s[i] = tail[i] >> 16 | tail[i + 1] << 16;
    to->d[0] = simd_f16_of(tail[3] >> 16);
    for (size_t j = 0; j < 4; j++) {
        u32v low = low_nibbles(s[j % 2] >> (j < 2 ? 0 : 4));
        u32v scales = low | (s[2] >> 2 * j & 0x03030303u) << 4;
        for (size_t i = 0; i < 4; i++)
            to->scales[4 * j + i] = byte_of(scales, i) - 32;
    }
    unpack_two_bits(p, 32, to);
    simd_load_columns(h, p->at, p->stride);
    simd_load_columns(h + 4, p->at + 16, p->stride);
    for (size_t j = 0; j < 8; j++)
        for (size_t i = 0; i < 8; i++)
            to->codes[8 * j + i] |= (h[i] >> j & 0x01010101u) << 2;
}

SIMD_FN void unpack_q6_k(const struct packed *p, struct columns *to)
{
    u32v s[4], tail[4];
    simd_load_columns(s, p->at + 192, p->stride);
    simd_load_columns(tail, p->at + 194, p->stride); /* the last sixteen bytes */
    to->d[0] = simd_f16_of(tail[3] >> 16);
    for (size_t j = 0; j < 16; j++)
        to->scales[j] = (i32v)(s[j / 4] << (24 - 8 * (j % 4))) >> 24;
    for (size_t half = 0; half < 2; half++) {
        u32v h[8], q[4];
        simd_load_columns(h, p->at + 128 + 32 * half, p->stride);
        simd_load_columns(h + 4, p->at + 144 + 32 * half, p->stride);
        for (size_t i = 0; i < 4; i++) { /* 16 of the 64 bytes with low bits */
            u32v *low = to->codes + 32 * half + 4 * i;
            simd_load_columns(q, p->at + 64 * half + 16 * i, p->stride);
            for (size_t j = 0; j < 4; j++) {
                u32v bits = h[i % 2 * 4 + j] >> (i < 2 ? 0 : 2);
                low[j] = low_nibbles(q[j]) | (bits << 4 & 0x30303030u);
                low[j + 16] = high_nibbles(q[j]) | (bits & 0x30303030u);
            }
        }
    }
}

SIMD_FN void unpack_iq4_xs(const struct packed *p, struct columns *to)
{
    u32v head[4], q[4];
    simd_load_columns(head, p->at, p->stride);
    to->d[0] = simd_f16_of(head[0] & 0xffffu);
    for (size_t j = 0; j < 8; j++) {
        u32v scale = (head[1] >> 4 * j & 15u) | (head[0] >> (16 + 2 * j) & 3u) << 4;
        to->scales[j] = (i32v)scale - 32;
        simd_load_columns(q, p->at + 8 + 16 * j, p->stride);
        for (size_t i = 0; i < 4; i++) {
            to->codes[8 * j + i] = simd_lookup(iq4_values, low_nibbles(q[i]));
            to->codes[8 * j + 4 + i] = simd_lookup(iq4_values, high_nibbles(q[i]));
        }
    }
}

/* ---- any type ---- */

static void unpack_columns(enum spw_dtype t, const struct packed *p, struct columns *to)
{
    switch (t) {
    case SPW_DTYPE_Q8_0:
        unpack_q8_0(p, to);
        break;
    case SPW_DTYPE_Q4_0:
        read_scales(p, 18, to->d);
        unpack_nibbles(p, 18, 2, NULL, to);
        break;
    case SPW_DTYPE_Q4_1:
        unpack_scale_and_minimum(p, 20, to);
        unpack_nibbles(p, 20, 4, NULL, to);
        break;
    case SPW_DTYPE_Q5_0:
        read_scales(p, 22, to->d);
        unpack_nibbles(p, 22, 6, NULL, to);
        unpack_fifth_bits(p, 22, 2, to);
        break;
    case SPW_DTYPE_Q5_1:
        unpack_scale_and_minimum(p, 24, to);
        unpack_nibbles(p, 24, 8, NULL, to);
        unpack_fifth_bits(p, 24, 4, to);
        break;
    case SPW_DTYPE_IQ4_NL:
        read_scales(p, 18, to->d);
        unpack_nibbles(p, 18, 2, iq4_values, to);
        break;
    case SPW_DTYPE_MXFP4:
        unpack_mxfp4(p, to);
        break;
    case SPW_DTYPE_Q4_K:
        unpack_six_bits(p, to);
        unpack_wide_nibbles(p, 16, to);
        break;
    case SPW_DTYPE_Q5_K:
        unpack_q5_k(p, to);
        break;
    case SPW_DTYPE_Q2_K:
        unpack_q2_k(p, to);
        break;
    case SPW_DTYPE_Q3_K:
        unpack_q3_k(p, to);
        break;
    case SPW_DTYPE_Q6_K:
        unpack_q6_k(p, to);
        break;
    case SPW_DTYPE_IQ4_XS:
        unpack_iq4_xs(p, to);
        break;
    default:
        break;
    }
}

#endif
