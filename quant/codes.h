/* The fast product of a row of x with a row of quantized weights: x becomes int8 codes, and every
 * backend and instruction set gives the same bits, for one row of x as for many.
 *
 * A row of x is cut into groups of 256 numbers, and a group into pieces, whose numbers share a
 * scale: eight pieces of 32 for types with blocks of 32, two of 128 (halves) for types with blocks
 * of 256. The last group and the last piece may be shorter or empty. For a piece
 *
 *     s = fl(largest |x| / 127),  code = nearest-even(fl(x / s)), limited to [-127, 127]
 *
 * If s is 0, the codes are 0. If a number of the piece is not finite, s is NaN and the codes are 0.
 *
 * The product is the following expression, in f32. Every operation rounds once, fma is fused. Row w
 * has blocks of 32 or of 256 numbers (blocks.h): a group has eight of them, or a half has half of
 * one.
 *
 *     y = 0
 *     for partition 0, 1, 2, 3:                 of all groups, in order: [n i / 4, n (i + 1) / 4)
 *         a = 0
 *         for each group of the partition:
 *             blocks of 32:
 *                 t = 0
 *                 for each block:  t = fma(fl(d * s), f32(S), t)
 *                                  t = fma(m, fl(s * f32(M)), t)
 *                 a = a + t
 *             blocks of 256, for each half:
 *                 t = fma(d, f32(S), 0)
 *                 t = fma(m, f32(M), t)
 *                 a = fma(s, t, a)
 *         y = y + a
 *
 * of the block, or of its half:
 *
 *     S = sum over parts j:  scales[j] * (sum over i in j: codes_w[i] * codes_x[i])
 *     M = sum over parts j:  minima[j] * (sum over i in j: codes_x[i])
 *
 * A type without minima leaves out the step with m, which would change nothing.
 *
 * S and M are exact integers below 2^31, so their sums may be taken in any order; f32() rounds to
 * nearest. A y that is NaN is stored as 0x7fc00000.
 *
 * Why this order: a partition lets a GPU divide one row of w among threads. The sums of a block of
 * 32 become f32 anyway, so a scale for each costs little and loses less of a model. The scales of a
 * block of 256 multiply as integers: 128 numbers need one product with s, and one scale for 256
 * numbers costs published models about twice as much of their loss (SPEED.md). */
#ifndef SPW_QUANT_CODES_H
#define SPW_QUANT_CODES_H

#include "quant/blocks.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    SPW_CODES_GROUP = 256,
    SPW_CODES_HALVES = 2,
    SPW_CODES_HALF = SPW_CODES_GROUP / SPW_CODES_HALVES,
    SPW_CODES_BLOCK = 32,
    SPW_CODES_BLOCKS = SPW_CODES_GROUP / SPW_CODES_BLOCK,
    SPW_CODES_PARTITIONS = 4,
};

/* A group of a row of x. Codes after the end of the row are 0. */
struct spw_codes {
    int8_t codes[SPW_CODES_GROUP];
    union {
        int16_t sums[16];                     /* blocks of 256: of 16 codes each */
        float block_scales[SPW_CODES_BLOCKS]; /* blocks of 32: of 32 numbers each */
    };
    int16_t sums32[8];              /* of 32 codes each */
    float scales[SPW_CODES_HALVES]; /* of each half; blocks of 32: 0 */
    float unused[2];                /* a multiple of 64 bytes */
};

SPW_INLINE size_t spw_codes_groups(size_t k)
{
    return (size_t)spw_div_up(k, SPW_CODES_GROUP);
}

/* The first group of a partition; of partition 4: the number of groups. */
SPW_INLINE size_t spw_codes_partition(size_t groups, size_t partition)
{
    return groups * partition / SPW_CODES_PARTITIONS;
}

/* Whether types a and b take the same codes of a row of x. False if only one of them takes any. */
SPW_INLINE bool spw_codes_shared(enum spw_dtype a, enum spw_dtype b)
{
    return spw_type_of(a).elements == spw_type_of(b).elements;
}

/* The reference: x[n], 0 < n <= 256, becomes a group for products with a quantized type. */
void spw_codes_encode(enum spw_dtype t, const float *x, size_t n, struct spw_codes *out);
/* The reference: the product of spw_codes_groups(k) groups with the k weights of a quantized type
 * at `row`. */
float spw_codes_dot(enum spw_dtype t, const void *row, const struct spw_codes *x, size_t k);

#ifdef __cplusplus
}
#endif

#endif
