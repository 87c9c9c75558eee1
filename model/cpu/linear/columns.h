/* Unpacking quantized weights: SIMD_LANES columns of y, which are rows of W, become a panel with
 * one column in each lane. Each type of quant/blocks.h is written out once for all instruction
 * sets.
 *
 * Sixteen bytes of each column are loaded at a time and transposed: register i then has bytes 4 i
 * .. 4 i + 3 of every column. So four weights of a column lie in one lane, and nothing is ever
 * added across lanes. */
#ifndef SPW_MODEL_CPU_LINEAR_COLUMNS_H
#define SPW_MODEL_CPU_LINEAR_COLUMNS_H

#include "model/cpu/linear/scales.h"

enum { FOURS = SPW_CODES_GROUP / 4, LINE = 64 /* bytes */ };

/* A group of 256 weights of SIMD_LANES columns. */
struct columns {
    u32v codes[FOURS]; /* weights 4 i .. 4 i + 3 as bytes, plus panel_offset(type) */
    struct scales scales;
    /* With has_signs(type), codes are magnitudes. */
    u32v signs[FOURS]; /* 0xff for a negative code, else 0 */
    /* Sums of the magnitudes of negative codes, see add_signs: of blocks, or of halves. */
    i32v negatives[SMALL_BLOCKS];
};

/* What is read later and is fetched while columns are unpacked: unpacking has UNPACK_PARTS parts,
 * and each of them fetches `part` bytes of [at, end), the first one from at + from on. */
struct fetched {
    const uint8_t *at, *end;
    size_t from, part;
};

enum { UNPACK_PARTS = 8 };

/* Fetches the lines that begin in [at + from, at + to). */
SIMD_FN void fetch_lines(const uint8_t *at, const uint8_t *end, size_t from, size_t to)
{
    for (size_t i = (size_t)spw_align_up(from, LINE); i < to && at + i < end; i += LINE)
        __builtin_prefetch(at + i, 0, 2);
}

SIMD_FN void fetch_part(const struct fetched *f, size_t i)
{
    fetch_lines(f->at, f->end, f->from + i * f->part, f->from + (i + 1) * f->part);
}

/* Whether codes of a panel are magnitudes and signs. */
SIMD_FN bool has_signs(enum spw_dtype t)
{
    return SIMD_PAIRS && largest_code(t) > 127;
}

/* Tables of IQ4 and MXFP4, plus code_offset. */
#define AT(x) (int8_t)((x) + SIMD_DOT_OFFSET)
static const int8_t iq4_values[16] = {AT(-127), AT(-104), AT(-83), AT(-65), AT(-49), AT(-35),
                                      AT(-22),  AT(-10),  AT(1),   AT(13),  AT(25),  AT(38),
                                      AT(53),   AT(69),   AT(89),  AT(113)};
#undef AT
static const int8_t mxfp4_values[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

/* ---- blocks of 32 ---- */

SIMD_FN void unpack_q8_0(const struct packed *p, const struct fetched *f, struct columns *to)
{
    for (size_t b = 0; b < p->blocks; b++) {
        fetch_part(f, b);
        simd_load_columns(to->codes + 8 * b, p->at + 34 * b + 2, p->stride, p->fours);
        simd_load_columns(to->codes + 8 * b + 4, p->at + 34 * b + 18, p->stride, p->fours);
        if (SIMD_DOT_OFFSET)
            for (size_t i = 0; i < 8; i++)
                to->codes[8 * b + i] ^= 0x80808080u;
    }
}

/* Sixteen bytes at `at` of each block: the low nibbles are 16 codes, the high nibbles the next 16.
 */
SIMD_FN void unpack_nibbles(const struct packed *p, const struct fetched *f, size_t bytes,
                            size_t at, const int8_t *table, struct columns *to)
{
    for (size_t b = 0; b < p->blocks; b++) {
        fetch_part(f, b);
        u32v q[4];
        simd_load_columns(q, p->at + bytes * b + at, p->stride, p->fours);
        for (size_t i = 0; i < 4; i++) {
            u32v low = low_nibbles(q[i]), high = high_nibbles(q[i]);
            to->codes[8 * b + i] = table ? simd_lookup(table, low) : low;
            to->codes[8 * b + 4 + i] = table ? simd_lookup(table, high) : high;
        }
    }
}

/* Adds the fifth bits: bit i of the word at `at` belongs to number i. */
SIMD_FN void unpack_fifth_bits(const struct packed *p, size_t bytes, size_t at, struct columns *to)
{
    for (size_t b = 0; b < p->blocks; b++) {
        u32v word = simd_load_words(p->at + b * bytes + at, p->stride, p->fours);
        for (size_t i = 0; i < 8; i++) /* four bits become bit 4 of four bytes */
            to->codes[8 * b + i] |= ((word >> 4 * i & 15u) * 0x02040810u) & 0x10101010u;
    }
}

/* ---- blocks of 256 ---- */

/* Each 32 bytes at `at`: low nibbles are 32 codes, high nibbles the next 32. */
SIMD_FN void unpack_wide_nibbles(const struct packed *p, const struct fetched *f, size_t at,
                                 struct columns *to)
{
    for (size_t i = 0; i < 8; i++) {
        fetch_part(f, i);
        u32v q[4];
        u32v *low = to->codes + i / 2 * 16 + i % 2 * 4;
        simd_load_columns(q, p->at + at + 16 * i, p->stride, p->fours);
        for (size_t j = 0; j < 4; j++) {
            low[j] = low_nibbles(q[j]);
            low[j + 8] = high_nibbles(q[j]);
        }
    }
}

SIMD_FN void unpack_q5_k(const struct packed *p, const struct fetched *f, struct columns *to)
{
    u32v h[8];
    simd_load_columns(h, p->at + 16, p->stride, p->fours);
    simd_load_columns(h + 4, p->at + 32, p->stride, p->fours);
    for (size_t i = 0; i < 8; i++) {
        fetch_part(f, i);
        u32v q[4];
        u32v *low = to->codes + i / 2 * 16 + i % 2 * 4;
        const size_t bit = i / 2 * 2; /* of the low nibbles */
        simd_load_columns(q, p->at + 48 + 16 * i, p->stride, p->fours);
        for (size_t j = 0; j < 4; j++) {
            u32v bits = h[i % 2 * 4 + j] >> bit;
            low[j] = low_nibbles(q[j]) | (bits << 4 & 0x10101010u);
            low[j + 8] = high_nibbles(q[j]) | (bits << 3 & 0x10101010u);
        }
    }
}

/* 64 bytes at `at`: each 32 have two bits of 128 codes. */
SIMD_FN void unpack_two_bits(const struct packed *p, const struct fetched *f, size_t at,
                             struct columns *to)
{
    for (size_t i = 0; i < 4; i++) {
        fetch_part(f, 2 * i);
        fetch_part(f, 2 * i + 1);
        u32v q[4];
        u32v *first = to->codes + i / 2 * 32 + i % 2 * 4;
        simd_load_columns(q, p->at + at + 16 * i, p->stride, p->fours);
        for (size_t j = 0; j < 4; j++)
            for (size_t g = 0; g < 4; g++)
                first[8 * g + j] = q[j] >> 2 * g & 0x03030303u;
    }
}

SIMD_FN void unpack_q3_k(const struct packed *p, const struct fetched *f, struct columns *to)
{
    u32v h[8];
    unpack_two_bits(p, f, 32, to);
    simd_load_columns(h, p->at, p->stride, p->fours);
    simd_load_columns(h + 4, p->at + 16, p->stride, p->fours);
    for (size_t j = 0; j < 8; j++)
        for (size_t i = 0; i < 8; i++)
            to->codes[8 * j + i] |= (h[i] >> j & 0x01010101u) << 2;
}

SIMD_FN void unpack_q6_k(const struct packed *p, const struct fetched *f, struct columns *to)
{
    for (size_t half = 0; half < 2; half++) {
        u32v h[8], q[4];
        simd_load_columns(h, p->at + 128 + 32 * half, p->stride, p->fours);
        simd_load_columns(h + 4, p->at + 144 + 32 * half, p->stride, p->fours);
        for (size_t i = 0; i < 4; i++) { /* 16 of the 64 bytes with low bits */
            fetch_part(f, 4 * half + i);
            u32v *low = to->codes + 32 * half + 4 * i;
            simd_load_columns(q, p->at + 64 * half + 16 * i, p->stride, p->fours);
            for (size_t j = 0; j < 4; j++) {
                u32v bits = h[i % 2 * 4 + j] >> (i < 2 ? 0 : 2);
                low[j] = low_nibbles(q[j]) | (bits << 4 & 0x30303030u);
                low[j + 16] = high_nibbles(q[j]) | (bits & 0x30303030u);
            }
        }
    }
}

SIMD_FN void unpack_iq4_xs(const struct packed *p, const struct fetched *f, struct columns *to)
{
    for (size_t j = 0; j < 8; j++) {
        fetch_part(f, j);
        u32v q[4];
        simd_load_columns(q, p->at + 8 + 16 * j, p->stride, p->fours);
        for (size_t i = 0; i < 4; i++) {
            to->codes[8 * j + i] = simd_lookup(iq4_values, low_nibbles(q[i]));
            to->codes[8 * j + 4 + i] = simd_lookup(iq4_values, high_nibbles(q[i]));
        }
    }
}

/* ---- codes times scales ---- */

/* Whether codes are multiplied by the scales of their parts: the products fit a byte, and a tile
 * then has one sum for 256 weights and not sixteen. Sums in 16 bits are better of the codes. */
SIMD_FN bool is_scaled(enum spw_dtype t)
{
    return !SIMD_PAIRS && (t == SPW_DTYPE_Q2_K || t == SPW_DTYPE_Q3_K);
}

/* What is added to the codes of a panel. (code - 4) * scale of Q3_K lies in -124 .. 128. */
SIMD_FN int panel_offset(enum spw_dtype t)
{
    return t == SPW_DTYPE_Q3_K && is_scaled(t) ? SIMD_DOT_OFFSET - 1 : code_offset(t);
}

/* Codes in 0 .. 3, scales in 0 .. 15. */
SIMD_FN void scale_q2_k(struct columns *to)
{
    for (size_t i = 0; i < FOURS; i++)
        to->codes[i] *= (u32v)to->scales.parts[i / 4];
}

/* Codes c in 0 .. 7, scales s in -32 .. 31: (c - 4) s = c (s + 32) - 32 c - 4 s. Bytes have no
 * carry, so each of them is right modulo 256. */
SIMD_FN void scale_q3_k(struct columns *to)
{
    const uint32_t offset = (uint32_t)panel_offset(SPW_DTYPE_Q3_K);
    for (size_t i = 0; i < FOURS; i++) {
        const u32v s = (u32v)to->scales.parts[i / 4], c = to->codes[i];
        const u32v low = (c & 0x03030303u) * (s + 32u);
        const u32v high = (c >> 2 & 0x01010101u) * ((4u * s + 128u) & 0xffu);
        const u32v rest = ((offset - 4u * s) & 0xffu) * 0x01010101u;
        to->codes[i] = (u32v)((u8v)low + (u8v)high - (u8v)(c << 5 & 0xe0e0e0e0u) + (u8v)rest);
    }
}

/* ---- codes with signs ---- */

#if SIMD_PAIRS

/* Codes become magnitudes. A tile multiplies the magnitude of w with x ^ sign, which is x or
 * -x - 1, and so lacks the magnitudes of all negative codes: of each small block, or of each half
 * of a large block, times the scales of its parts. The units of products and sums need not do an
 * exclusive or, but they do vpsignb (measured, SPEED.md). Two products of 128 and -128 are the
 * largest sum, and fit 16 bits. */
static void add_signs(enum spw_dtype t, size_t blocks, struct columns *to)
{
    const u32v minus_ones = simd_set1_u32(0xffffffffu);
    i32v halves[SPW_CODES_HALVES] = {0};
    for (size_t j = 0; j < blocks; j++) {
        i16v sums = {0};
        for (size_t i = 8 * j; i < 8 * j + 8; i++) {
            to->signs[i] = simd_negative_bytes(to->codes[i]);
            to->codes[i] = (u32v)((u8v)(to->codes[i] ^ to->signs[i]) - (u8v)to->signs[i]);
            sums += simd_pairs(to->codes[i], to->signs[i]);
        }
        to->negatives[j] = simd_dot_pairs((i32v){0}, (u32v)sums, minus_ones);
        if (!is_small(t))
            halves[j / (SMALL_BLOCKS / 2)] += to->scales.parts[j] * to->negatives[j];
    }
    if (!is_small(t))
        memcpy(to->negatives, halves, sizeof halves);
}

#endif

/* ---- any type ---- */

SIMD_APART void unpack_columns(enum spw_dtype t, const struct packed *p, const struct fetched *f,
                               struct columns *to)
{
    unpack_scales(t, p, &to->scales);
    switch (t) {
    case SPW_DTYPE_Q8_0:
        unpack_q8_0(p, f, to);
        break;
    case SPW_DTYPE_Q4_0:
        unpack_nibbles(p, f, 18, 2, NULL, to);
        break;
    case SPW_DTYPE_Q4_1:
        unpack_nibbles(p, f, 20, 4, NULL, to);
        break;
    case SPW_DTYPE_Q5_0:
        unpack_nibbles(p, f, 22, 6, NULL, to);
        unpack_fifth_bits(p, 22, 2, to);
        break;
    case SPW_DTYPE_Q5_1:
        unpack_nibbles(p, f, 24, 8, NULL, to);
        unpack_fifth_bits(p, 24, 4, to);
        break;
    case SPW_DTYPE_IQ4_NL:
        unpack_nibbles(p, f, 18, 2, iq4_values, to);
        break;
    case SPW_DTYPE_MXFP4:
        unpack_nibbles(p, f, 17, 1, mxfp4_values, to);
        break;
    case SPW_DTYPE_Q4_K:
        unpack_wide_nibbles(p, f, 16, to);
        break;
    case SPW_DTYPE_Q5_K:
        unpack_q5_k(p, f, to);
        break;
    case SPW_DTYPE_Q2_K:
        unpack_two_bits(p, f, 16, to);
        if (is_scaled(t))
            scale_q2_k(to);
        break;
    case SPW_DTYPE_Q3_K:
        unpack_q3_k(p, f, to);
        if (is_scaled(t))
            scale_q3_k(to);
        break;
    case SPW_DTYPE_Q6_K:
        unpack_q6_k(p, f, to);
        break;
    case SPW_DTYPE_IQ4_XS:
        unpack_iq4_xs(p, f, to);
        break;
    default:
        break;
    }
#if SIMD_PAIRS
    if (has_signs(t))
        add_signs(t, is_small(t) ? p->blocks : SMALL_BLOCKS, to);
    if (!is_small(t))
        pair_scales(t, &to->scales);
#endif
}

#endif
