/* The formats of blocks: see blocks.h. Numbers in a block are little-endian. The drawings give the
 * members in the order of the bytes; d and m are f16. */
#include "quant/blocks.h"

#include "base/numbers.h"

#include <string.h>

/* The values of four bits. */
static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};
static const int8_t mxfp4_values[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                        0, -1, -2, -3, -4, -6, -8, -12}; /* twice E2M1 */

static float read_f16(const uint8_t *at)
{
    return spw_f16_to_f32((uint16_t)(at[0] | at[1] << 8));
}

/* ---- 32 numbers with one scale ---- */

enum { SMALL = 32 };

static void one_scale(float d, struct spw_quantized_block *out)
{
    out->d = d;
    out->m = -0.0f;
    memset(out->scales, 1, SMALL / SPW_BLOCK_PART);
    memset(out->minima, 0, SMALL / SPW_BLOCK_PART);
}

static void one_minimum(float m, struct spw_quantized_block *out)
{
    out->m = m;
    memset(out->minima, 1, SMALL / SPW_BLOCK_PART);
}

/* q[16]: the low halves of the bytes are numbers 0 .. 15, the high halves numbers 16 .. 31. */
static int nibble(const uint8_t *q, int i)
{
    return i < 16 ? q[i] & 15 : q[i - 16] >> 4;
}

/* h[4]: bit i is the fifth bit of number i. */
static int fifth_bit(const uint8_t *h, int i)
{
    return (h[i / 8] >> i % 8 & 1) << 4;
}

/* d | q[16] */
static void unpack_q4_0(const uint8_t *from, struct spw_quantized_block *out)
{
    one_scale(read_f16(from), out);
    for (int i = 0; i < SMALL; i++)
        out->codes[i] = (int8_t)(nibble(from + 2, i) - 8);
}

/* d | m | q[16] */
static void unpack_q4_1(const uint8_t *from, struct spw_quantized_block *out)
{
    one_scale(read_f16(from), out);
    one_minimum(read_f16(from + 2), out);
    for (int i = 0; i < SMALL; i++)
        out->codes[i] = (int8_t)nibble(from + 4, i);
}

/* d | h[4] | q[16] */
static void unpack_q5_0(const uint8_t *from, struct spw_quantized_block *out)
{
    one_scale(read_f16(from), out);
    for (int i = 0; i < SMALL; i++)
        out->codes[i] = (int8_t)((nibble(from + 6, i) | fifth_bit(from + 2, i)) - 16);
}

/* d | m | h[4] | q[16] */
static void unpack_q5_1(const uint8_t *from, struct spw_quantized_block *out)
{
    one_scale(read_f16(from), out);
    one_minimum(read_f16(from + 2), out);
    for (int i = 0; i < SMALL; i++)
        out->codes[i] = (int8_t)(nibble(from + 8, i) | fifth_bit(from + 4, i));
}

/* d | q[32] */
static void unpack_q8_0(const uint8_t *from, struct spw_quantized_block *out)
{
    one_scale(read_f16(from), out);
    memcpy(out->codes, from + 2, SMALL);
}

/* d | q[16] */
static void unpack_iq4_nl(const uint8_t *from, struct spw_quantized_block *out)
{
    one_scale(read_f16(from), out);
    for (int i = 0; i < SMALL; i++)
        out->codes[i] = iq4_values[nibble(from + 2, i)];
}

/* e | q[16]: the scale is 2^(e - 127), and half of that for values that are doubled. */
static void unpack_mxfp4(const uint8_t *from, struct spw_quantized_block *out)
{
    one_scale(ldexpf(1.0f, from[0] - 128), out);
    for (int i = 0; i < SMALL; i++)
        out->codes[i] = mxfp4_values[nibble(from + 1, i)];
}

/* ---- 256 numbers: a scale for 16 or 32 of them, and d, which multiplies the scales ---- */

/* The scale of numbers [32 j, 32 j + 32), and what is subtracted from them: six bits each, in
 * s[12]. */
static void read_six_bits(const uint8_t *s, struct spw_quantized_block *out)
{
    for (int j = 0; j < 8; j++) {
        int scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
        int minimum = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4;
        memset(out->scales + 2 * j, scale, 2);
        memset(out->minima + 2 * j, minimum, 2);
    }
}

/* d | m | s[12] | q[128]: each 32 bytes have 32 numbers in their low halves and the following 32
 * in their high halves. */
static void unpack_q4_k(const uint8_t *from, struct spw_quantized_block *out)
{
    out->d = read_f16(from);
    out->m = -read_f16(from + 2);
    read_six_bits(from + 4, out);
    for (int i = 0; i < SPW_BLOCK_ELEMENTS; i++) {
        int byte = from[16 + i / 64 * 32 + i % 32];
        out->codes[i] = (int8_t)(i / 32 % 2 ? byte >> 4 : byte & 15);
    }
}

/* d | m | s[12] | h[32] | q[128]: as q4_k; bit j of h[l] is the fifth bit of number 32 j + l. */
static void unpack_q5_k(const uint8_t *from, struct spw_quantized_block *out)
{
    out->d = read_f16(from);
    out->m = -read_f16(from + 2);
    read_six_bits(from + 4, out);
    for (int i = 0; i < SPW_BLOCK_ELEMENTS; i++) {
        int byte = from[48 + i / 64 * 32 + i % 32];
        int fifth = from[16 + i % 32] >> i / 32 & 1;
        out->codes[i] = (int8_t)((i / 32 % 2 ? byte >> 4 : byte & 15) | fifth << 4);
    }
}

/* Two bits of number i: each 32 bytes have 128 numbers. */
static int two_bits(const uint8_t *q, int i)
{
    return q[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
}

/* low[128] | high[64] | s[16] | d: each 64 bytes of low have 128 numbers. */
static void unpack_q6_k(const uint8_t *from, struct spw_quantized_block *out)
{
    out->d = read_f16(from + 208);
    out->m = -0.0f;
    memcpy(out->scales, from + 192, SPW_BLOCK_PARTS);
    memset(out->minima, 0, SPW_BLOCK_PARTS);
    for (int i = 0; i < SPW_BLOCK_ELEMENTS; i++) {
        int byte = from[i / 128 * 64 + i % 64];
        int low = i % 128 < 64 ? byte & 15 : byte >> 4;
        out->codes[i] = (int8_t)((low | two_bits(from + 128, i) << 4) - 32);
    }
}

/* s[16] | q[64] | d | m: a byte of s has a scale and what is subtracted. */
static void unpack_q2_k(const uint8_t *from, struct spw_quantized_block *out)
{
    out->d = read_f16(from + 80);
    out->m = -read_f16(from + 82);
    for (int j = 0; j < SPW_BLOCK_PARTS; j++) {
        out->scales[j] = (int8_t)(from[j] & 15);
        out->minima[j] = (int8_t)(from[j] >> 4);
    }
    for (int i = 0; i < SPW_BLOCK_ELEMENTS; i++)
        out->codes[i] = (int8_t)two_bits(from + 16, i);
}

/* h[32] | q[64] | s[12] | d: bit j of h[l] is the third bit of number 32 j + l. */
static void unpack_q3_k(const uint8_t *from, struct spw_quantized_block *out)
{
    const uint8_t *s = from + 96;
    out->d = read_f16(from + 108);
    out->m = -0.0f;
    memset(out->minima, 0, SPW_BLOCK_PARTS);
    for (int j = 0; j < SPW_BLOCK_PARTS; j++) {
        int low = j < 8 ? s[j] & 15 : s[j - 8] >> 4;
        out->scales[j] = (int8_t)((low | (s[8 + j % 4] >> j / 4 * 2 & 3) << 4) - 32);
    }
    for (int i = 0; i < SPW_BLOCK_ELEMENTS; i++) {
        int third = from[i % 32] >> i / 32 & 1;
        out->codes[i] = (int8_t)((two_bits(from + 32, i) | third << 2) - 4);
    }
}

/* d | h[2] | s[4] | q[128]: a scale for 32 numbers, four bits in s and two in h. */
static void unpack_iq4_xs(const uint8_t *from, struct spw_quantized_block *out)
{
    const int high = from[2] | from[3] << 8;
    out->d = read_f16(from);
    out->m = -0.0f;
    memset(out->minima, 0, SPW_BLOCK_PARTS);
    for (int j = 0; j < 8; j++) {
        int low = from[4 + j / 2] >> j % 2 * 4 & 15;
        memset(out->scales + 2 * j, (low | (high >> 2 * j & 3) << 4) - 32, 2);
    }
    for (int i = 0; i < SPW_BLOCK_ELEMENTS; i++)
        out->codes[i] = iq4_values[nibble(from + 8 + i / 32 * 16, i % 32)];
}

/* ---- any type ---- */

static void (*const unpack[])(const uint8_t *from, struct spw_quantized_block *out) = {
    [SPW_DTYPE_Q8_0] = unpack_q8_0,     [SPW_DTYPE_Q4_0] = unpack_q4_0,
    [SPW_DTYPE_Q4_1] = unpack_q4_1,     [SPW_DTYPE_Q5_0] = unpack_q5_0,
    [SPW_DTYPE_Q5_1] = unpack_q5_1,     [SPW_DTYPE_Q2_K] = unpack_q2_k,
    [SPW_DTYPE_Q3_K] = unpack_q3_k,     [SPW_DTYPE_Q4_K] = unpack_q4_k,
    [SPW_DTYPE_Q5_K] = unpack_q5_k,     [SPW_DTYPE_Q6_K] = unpack_q6_k,
    [SPW_DTYPE_IQ4_NL] = unpack_iq4_nl, [SPW_DTYPE_IQ4_XS] = unpack_iq4_xs,
    [SPW_DTYPE_MXFP4] = unpack_mxfp4,
};

void spw_block_unpack(enum spw_dtype t, const void *from, struct spw_quantized_block *out)
{
    unpack[t](from, out);
}
