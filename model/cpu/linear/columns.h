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

/* ---- codes: t is a constant ----
 *
 * A piece is sixteen bytes of low bits of each column: four registers. Each byte has bits of
 * 8 / low_bits codes; those of code s are a slice. Registers of a slice have sixteen numbers, four
 * in each. */

enum { PIECE = 16, PIECE_REGISTERS = PIECE / 4, HIGH_REGISTERS = 8 };

SIMD_FN size_t pieces_of_block(enum spw_dtype t)
{
    return (size_t)(SPW_FACTS(t).elements * SPW_FACTS(t).low_bits / 8 / PIECE);
}

SIMD_FN size_t slices(enum spw_dtype t)
{
    return (size_t)(8 / SPW_FACTS(t).low_bits);
}

/* The first number of slice s of piece i of a block. */
SIMD_FN size_t first_of_slice(enum spw_dtype t, size_t i, size_t s)
{
    const size_t run = (size_t)SPW_FACTS(t).run, byte = PIECE * i;
    return (byte / run * slices(t) + s) * run + byte % run;
}

/* Of the block at p. */
SIMD_FN void load_piece(enum spw_dtype t, const struct packed *p, size_t i,
                        u32v to[PIECE_REGISTERS])
{
    simd_load_columns(to, p->at + SPW_FACTS(t).low_at + i * PIECE, p->stride, p->fours);
}

/* The high bits of number `first` and of those after it, where another load has not read them: a
 * word of a small block, or 32 bytes. p: the block. */
SIMD_FN void load_high(enum spw_dtype t, const struct packed *p, size_t first,
                       u32v to[HIGH_REGISTERS])
{
    const uint8_t *at = p->at + SPW_FACTS(t).high_at;
    if (SPW_FACTS(t).high_bits == 0)
        return;
    if (is_small(t)) {
        to[0] = simd_load_words(at, p->stride, p->fours);
        return;
    }
    const size_t run = (size_t)(SPW_CODES_GROUP / SPW_FACTS(t).high_bits);
    if (first % run)
        return;
    simd_load_columns(to, at + first / run * 32, p->stride, p->fours);
    simd_load_columns(to + 4, at + first / run * 32 + 16, p->stride, p->fours);
}

/* Moves bit `from` of each byte, and the bits after it, to bit `to`. The bits of `mask` stay. */
SIMD_FN u32v move_bits(u32v x, size_t from, size_t to, uint32_t mask)
{
    return (from < to ? x << (uint32_t)(to - from) : x >> (uint32_t)(from - to)) & mask << to;
}

/* Numbers n .. n + 3 as bytes, plus code_offset: of slice s of register `low` of a piece. */
SIMD_FN u32v codes_of_slice(enum spw_dtype t, u32v low, size_t s, const u32v high[HIGH_REGISTERS],
                            size_t n)
{
    const size_t bits = (size_t)SPW_FACTS(t).low_bits, more = (size_t)SPW_FACTS(t).high_bits;
    if (bits == 8)
        return low ^ (SIMD_DOT_OFFSET ? 0x80808080u : 0);
    u32v x = move_bits(low, s * bits, 0, bits == 4 ? 0x0f0f0f0fu : 0x03030303u);
    if (more && is_small(t)) /* bit i of the word belongs to number i */
        x |= ((high[0] >> (uint32_t)(n % SMALL) & 15u) * 0x02040810u) & 0x10101010u;
    else if (more)
        x |= move_bits(high[n % 32 / 4], n % (SPW_CODES_GROUP / more) / 32 * more, bits,
                       more == 1 ? 0x01010101u : 0x03030303u);
    return values_of(t, x);
}

/* A block becomes to[0], ... `part`: what is fetched with its first piece. */
SIMD_FN void unpack_block(const enum spw_dtype t, const struct packed *p, const struct fetched *f,
                          size_t part, u32v *to)
{
    const size_t n = pieces_of_block(t), parts = is_small(t) ? 1 : UNPACK_PARTS;
    u32v high[HIGH_REGISTERS], low[PIECE_REGISTERS];
#pragma GCC unroll 8
    for (size_t i = 0; i < n; i++) {
        for (size_t j = parts * i / n; j < parts * (i + 1) / n; j++)
            fetch_part(f, part + j);
        load_high(t, p, first_of_slice(t, i, 0), high);
        load_piece(t, p, i, low);
#pragma GCC unroll 4
        for (size_t s = 0; s < slices(t); s++)
#pragma GCC unroll 4
            for (size_t j = 0; j < PIECE_REGISTERS; j++) {
                const size_t number = first_of_slice(t, i, s) + 4 * j;
                to[number / 4] = codes_of_slice(t, low[j], s, high, number);
            }
    }
}

SIMD_FN void unpack_codes(const enum spw_dtype t, const struct packed *p, const struct fetched *f,
                          struct columns *to)
{
    struct packed block = *p;
    for (size_t b = 0; b < (is_small(t) ? p->blocks : 1); b++, block.at += block_bytes(t))
        unpack_block(t, &block, f, b, to->codes + b * SMALL / 4);
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
