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

/* Values of four bits, plus code_offset. */
#define IQ4(x) (int8_t)((x) + SIMD_DOT_OFFSET)
#define E2M1(x) (x) + 12
static const int8_t iq4_values[16] = {SPW_IQ4_VALUES(IQ4)};
static const int8_t e2m1_values[16] = {SPW_E2M1_VALUES(E2M1)};
#undef IQ4
#undef E2M1

/* Each byte of x is a value's four bits. */
SIMD_FN u32v values_of(enum spw_dtype t, u32v x)
{
    if (SPW_FACTS(t).values == SPW_VALUES_PLAIN)
        return x;
    return simd_lookup(SPW_FACTS(t).values == SPW_VALUES_IQ4 ? iq4_values : e2m1_values, x);
}

/* ---- codes: t is a constant ---- */

/* Blocks of 32 bytes. */
SIMD_FN void unpack_bytes(enum spw_dtype t, const struct packed *p, const struct fetched *f,
                          struct columns *to)
{
    for (size_t b = 0; b < p->blocks; b++) {
        const uint8_t *at = p->at + block_bytes(t) * b + SPW_FACTS(t).low_at;
        fetch_part(f, b);
        simd_load_columns(to->codes + 8 * b, at, p->stride, p->fours);
        simd_load_columns(to->codes + 8 * b + 4, at + 16, p->stride, p->fours);
        if (SIMD_DOT_OFFSET)
            for (size_t i = 0; i < 8; i++)
                to->codes[8 * b + i] ^= 0x80808080u;
    }
}

/* Sixteen bytes for each 32 numbers: the low nibbles are 16 codes, the high nibbles the next 16. */
SIMD_FN void unpack_nibbles(enum spw_dtype t, const struct packed *p, const struct fetched *f,
                            struct columns *to)
{
    const size_t blocks = is_small(t) ? p->blocks : SMALL_BLOCKS;
    const size_t bytes = is_small(t) ? block_bytes(t) : 16;
    for (size_t b = 0; b < blocks; b++) {
        fetch_part(f, b);
        u32v q[4];
        simd_load_columns(q, p->at + bytes * b + SPW_FACTS(t).low_at, p->stride, p->fours);
        for (size_t i = 0; i < 4; i++) {
            to->codes[8 * b + i] = values_of(t, low_nibbles(q[i]));
            to->codes[8 * b + 4 + i] = values_of(t, high_nibbles(q[i]));
        }
    }
}

/* Adds the fifth bits: bit i of a word belongs to number i. */
SIMD_FN void unpack_fifth_bits(enum spw_dtype t, const struct packed *p, struct columns *to)
{
    for (size_t b = 0; b < p->blocks; b++) {
        const uint8_t *at = p->at + b * block_bytes(t) + SPW_FACTS(t).high_at;
        u32v word = simd_load_words(at, p->stride, p->fours);
        for (size_t i = 0; i < 8; i++) /* four bits become bit 4 of four bytes */
            to->codes[8 * b + i] |= ((word >> 4 * i & 15u) * 0x02040810u) & 0x10101010u;
    }
}

/* 32 bytes of high bits. */
SIMD_FN void load_high(enum spw_dtype t, const struct packed *p, size_t run, u32v h[8])
{
    const uint8_t *at = p->at + SPW_FACTS(t).high_at + 32 * run;
    simd_load_columns(h, at, p->stride, p->fours);
    simd_load_columns(h + 4, at + 16, p->stride, p->fours);
}

/* Each 32 bytes: low nibbles are 32 codes, high nibbles the next 32. */
SIMD_FN void unpack_wide_nibbles(enum spw_dtype t, const struct packed *p, const struct fetched *f,
                                 struct columns *to)
{
    u32v h[8];
    if (has_high_bits(t, 1))
        load_high(t, p, 0, h);
    for (size_t i = 0; i < 8; i++) {
        fetch_part(f, i);
        u32v q[4];
        u32v *low = to->codes + i / 2 * 16 + i % 2 * 4;
        const size_t bit = i / 2 * 2; /* of the low nibbles */
        simd_load_columns(q, p->at + SPW_FACTS(t).low_at + 16 * i, p->stride, p->fours);
        for (size_t j = 0; j < 4; j++) {
            low[j] = low_nibbles(q[j]);
            low[j + 8] = high_nibbles(q[j]);
            if (has_high_bits(t, 1)) {
                const u32v bits = h[i % 2 * 4 + j] >> bit;
                low[j] |= bits << 4 & 0x10101010u;
                low[j + 8] |= bits << 3 & 0x10101010u;
            }
        }
    }
}

/* Each 32 bytes have two bits of 128 codes; a third bit may lie apart. */
SIMD_FN void unpack_two_bits(enum spw_dtype t, const struct packed *p, const struct fetched *f,
                             struct columns *to)
{
    u32v h[8];
    for (size_t i = 0; i < 4; i++) {
        fetch_part(f, 2 * i);
        fetch_part(f, 2 * i + 1);
        u32v q[4];
        u32v *first = to->codes + i / 2 * 32 + i % 2 * 4;
        simd_load_columns(q, p->at + SPW_FACTS(t).low_at + 16 * i, p->stride, p->fours);
        for (size_t j = 0; j < 4; j++)
            for (size_t g = 0; g < 4; g++)
                first[8 * g + j] = q[j] >> 2 * g & 0x03030303u;
    }
    if (!has_high_bits(t, 1))
        return;
    load_high(t, p, 0, h);
    for (size_t j = 0; j < 8; j++)
        for (size_t i = 0; i < 8; i++)
            to->codes[8 * j + i] |= (h[i] >> j & 0x01010101u) << 2;
}

/* Each 64 bytes have the low nibbles of 128 codes, each 32 bytes the two high bits. */
SIMD_FN void unpack_six_bits(enum spw_dtype t, const struct packed *p, const struct fetched *f,
                             struct columns *to)
{
    for (size_t half = 0; half < 2; half++) {
        u32v h[8], q[4];
        load_high(t, p, half, h);
        for (size_t i = 0; i < 4; i++) { /* 16 of the 64 bytes */
            fetch_part(f, 4 * half + i);
            u32v *low = to->codes + 32 * half + 4 * i;
            const uint8_t *at = p->at + SPW_FACTS(t).low_at + 64 * half + 16 * i;
            simd_load_columns(q, at, p->stride, p->fours);
            for (size_t j = 0; j < 4; j++) {
                u32v bits = h[i % 2 * 4 + j] >> (i < 2 ? 0 : 2);
                low[j] = low_nibbles(q[j]) | (bits << 4 & 0x30303030u);
                low[j + 16] = high_nibbles(q[j]) | (bits & 0x30303030u);
            }
        }
    }
}

SIMD_FN void unpack_codes(const enum spw_dtype t, const struct packed *p, const struct fetched *f,
                          struct columns *to)
{
    if (SPW_FACTS(t).low_bits == 8)
        unpack_bytes(t, p, f, to);
    else if (SPW_FACTS(t).low_bits == 2)
        unpack_two_bits(t, p, f, to);
    else if (SPW_FACTS(t).run == 16)
        unpack_nibbles(t, p, f, to);
    else if (SPW_FACTS(t).run == 32)
        unpack_wide_nibbles(t, p, f, to);
    else
        unpack_six_bits(t, p, f, to);
    if (is_small(t) && has_high_bits(t, 1))
        unpack_fifth_bits(t, p, to);
}

/* ---- codes times scales ---- */

/* Whether codes are multiplied by the scales of their parts: the products fit a byte, and a tile
 * then has one sum for 256 weights and not sixteen. Sums in 16 bits are better of the codes. */
SIMD_FN bool is_scaled(enum spw_dtype t)
{
    return !SIMD_PAIRS && SPW_FACTS(t).low_bits == 2;
}

/* What is added to the codes of a panel. (code - 4) * scale lies in -124 .. 128. */
SIMD_FN int panel_offset(enum spw_dtype t)
{
    return is_scaled(t) && code_offset(t) ? SIMD_DOT_OFFSET - 1 : code_offset(t);
}

/* Codes in 0 .. 3, scales in 0 .. 15. */
SIMD_FN void scale_plain(struct columns *to)
{
    for (size_t i = 0; i < FOURS; i++)
        to->codes[i] *= (u32v)to->scales.parts[i / 4];
}

/* Codes c in 0 .. 7, scales s in -32 .. 31: (c - 4) s = c (s + 32) - 32 c - 4 s. Bytes have no
 * carry, so each of them is right modulo 256. */
SIMD_FN void scale_less_4(enum spw_dtype t, struct columns *to)
{
    const uint32_t offset = (uint32_t)panel_offset(t);
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

SIMD_FN void unpack_type(const enum spw_dtype t, const struct packed *p, const struct fetched *f,
                         struct columns *to)
{
    unpack_scales(t, p, &to->scales);
    unpack_codes(t, p, f, to);
    if (is_scaled(t) && code_offset(t))
        scale_less_4(t, to);
    else if (is_scaled(t))
        scale_plain(to);
}

SIMD_APART void unpack_columns(enum spw_dtype t, const struct packed *p, const struct fetched *f,
                               struct columns *to)
{
    switch (t) {
#define CASE(id, ...)                                                                              \
    case SPW_DTYPE_##id:                                                                           \
        unpack_type(SPW_DTYPE_##id, p, f, to);                                                     \
        break;
        SPW_QUANTIZED_TYPES(CASE)
#undef CASE
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
