/* The products of side_by_side.h, which includes this file, with AVX2: a register has sixteen codes
 * of row r in its low half and sixteen of row r + 4 in its high half; sixteen codes of x, in both
 * halves, multiply them:
 *
 *   for each group of eight rows of W
 *     unpack the scales, with a row in each lane
 *     for each r < 4, for each part: unpack its codes, multiply them          rows r and r + 4
 *     add what the lanes of each four have: a row of W in each lane; then t and a of quant/codes.h
 *
 * Bytes are not transposed, and codes of W are not stored. Scales of large blocks multiply the sums
 * of two products, so a large block has one sum for each row. For large blocks the codes of x are
 * stored twice, as a register needs them: an operand in memory takes no instruction of its own. */
#ifndef SPW_MODEL_CPU_LINEAR_EIGHT_ROWS_H
#define SPW_MODEL_CPU_LINEAR_EIGHT_ROWS_H

#include "base/simd_fours.h"

enum {
    PAIRS = 4, /* of rows of W */
    CODES = 8, /* registers of codes of a pair that are multiplied at once */
};

/* Codes of a group of a row of x. Each sixteen of them lie here twice, as an instruction takes them
 * from memory. */
struct few_twice {
    int8_t codes[2 * SPW_CODES_GROUP];
};

/* A group of eight rows of W. Scales and minima are those of a large block. */
struct eight {
    struct packed p;
    f32v d, m;
    u32v scales[SPW_BLOCK_PARTS / 4][2]; /* int16, of four parts: rows 0, 1, 4 and 5, the others */
    i32v parts[SPW_BLOCK_PARTS];         /* in place of these, where sums do not fit 16 bits */
    u32v pairs[SPW_BLOCK_PARTS / 2];     /* int16, of two parts: minima, or scales */
};

/* Small blocks with more rows go in two sets. The second one reads W from the caches. */
static size_t rows_at_once(enum spw_dtype t, size_t m)
{
    return is_small(t) && m > FEW_SUMS ? (m + 1) / 2 : m;
}

/* ---- codes ---- */

/* The low or the high nibbles of sixteen bytes of both rows. */
SIMD_FN u32v nibbles_at(const uint8_t *p, size_t fours, bool high)
{
    const u32v x = simd_load_four(p, fours);
    return high ? high_nibbles(x) : low_nibbles(x);
}

/* Codes 16 i .. 16 i + 15 of part j, which has 32 codes, as an operand. `fours`: bytes from row r
 * to row r + 4. */
SIMD_FN u32v codes_of_32(enum spw_dtype t, const uint8_t *p, size_t fours, unsigned j, unsigned i)
{
    const uint8_t *block = p + (is_small(t) ? j * block_bytes(t) : 0);
    const uint8_t *low = block + SPW_FACTS(t).low_at, *high = block + SPW_FACTS(t).high_at;
    if (SPW_FACTS(t).low_bits == 8)
        return simd_load_four(low + 16 * i, fours) ^ (SIMD_DOT_OFFSET ? 0x80808080u : 0u);
    if (SPW_FACTS(t).run == 16)
        low += is_small(t) ? 0 : 16 * j;
    else
        low += 32 * (j / 2) + 16 * i;
    const u32v x = nibbles_at(low, fours, SPW_FACTS(t).run == 16 ? i : j % 2);
    if (has_high_bits(t, 1) && is_small(t))
        return x | simd_bytes_of_bits(simd_load_four(high, fours), 2 * (int)i, 0x10);
    if (has_high_bits(t, 1))
        return x | move_bits(simd_load_four(high + 16 * i, fours), j, 4, 0x01010101u);
    return values_of(t, x);
}

/* The same of part j, which has 16 codes. */
SIMD_FN u32v codes_of_16(enum spw_dtype t, const uint8_t *p, size_t fours, unsigned j)
{
    const unsigned half = j / 8, two = j % 8 / 2, i = j % 2;
    const unsigned at = 32 * half + 16 * i;
    const uint8_t *low = p + SPW_FACTS(t).low_at, *high = p + SPW_FACTS(t).high_at;
    if (SPW_FACTS(t).low_bits == 4)
        return nibbles_at(low + 64 * half + 32 * (two % 2) + 16 * i, fours, two / 2) |
               move_bits(simd_load_four(high + at, fours), 2 * two, 4, 0x03030303u);
    const u32v x = move_bits(simd_load_four(low + at, fours), 2 * two, 0, 0x03030303u);
    if (!has_high_bits(t, 1))
        return x;
    return x | move_bits(simd_load_four(high + 16 * i, fours), 4 * half + two, 2, 0x01010101u);
}

/* ---- products ---- */

/* Sixteen codes of x, in both halves: number i from x on, in codes or in few_twice. */
SIMD_FN u32v codes_of_x(enum spw_dtype t, const int8_t *x, size_t i)
{
    return is_small(t) ? simd_same_four(x + 16 * i) : (u32v)simd_load(x + i * sizeof(u32v));
}

/* Whether 16 bits hold sums of two products. The scale of a part then multiplies them and adds
 * them by one instruction or by two. */
SIMD_FN bool has_pairs(enum spw_dtype t)
{
    return SIMD_PAIRS || (!is_small(t) && largest_code(t) <= 127);
}

SIMD_FN i16v pairs_with(enum spw_dtype t, u32v w, u32v x)
{
#if SIMD_PAIRS
    return largest_code(t) > 127 ? simd_signed_pairs(w, x) : simd_pairs(w, x);
#else
    (void)t;
    return simd_pairs(w, x);
#endif
}

/* sum + the products of a part times `scale`: an int32, or an int16 twice. Small blocks: times
 * one. */
SIMD_FN i32v add_part(enum spw_dtype t, i32v sum, const u32v w[2], const int8_t *x, u32v scale)
{
    if (has_pairs(t)) {
        i16v pairs = pairs_with(t, w[0], codes_of_x(t, x, 0));
        if (part_of(t) == 32) {
            const i16v more = pairs_with(t, w[1], codes_of_x(t, x, 1));
            if (4 * largest_code(t) * 127 <= INT16_MAX)
                pairs += more;
            else
                sum = simd_dot_pairs(sum, (u32v)more, scale);
        }
        return simd_dot_pairs(sum, (u32v)pairs, scale);
    }
    i32v part = simd_dot((i32v){0}, w[0], codes_of_x(t, x, 0));
    part = simd_dot(part, w[1], codes_of_x(t, x, 1));
    return sum + (is_small(t) ? part : (i32v)scale * part);
}

/* Block b of eight rows of W with each row of x: a row of W in each lane. */
SIMD_FN void multiply_block(enum spw_dtype t, const int rows, const struct packed *p, unsigned b,
                            const struct few_x *x, i32v to[FEW_ROWS])
{
    i32v sums[FEW_ROWS][PAIRS];
#pragma GCC unroll 4
    for (size_t i = 0; i < PAIRS; i++) {
        const uint8_t *at = p->at + i * p->stride;
        const u32v w[2] = {codes_of_32(t, at, p->fours, b, 0), codes_of_32(t, at, p->fours, b, 1)};
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
            sums[r][i] = add_part(t, (i32v){0}, w, codes_of_row(x, r)->codes + SMALL * b,
                                  simd_set1_u32(0x10001u));
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
        to[r] = simd_sums_of_fours(sums[r], 8 * largest_code(t) * 127);
}

/* Half of rows i and i + 4 of W with each row of x: `at_once` registers of codes of W after
 * another. Where `rows` is a constant, sums are in registers. */
SIMD_FN void multiply_pair(enum spw_dtype t, const int rows, const unsigned at_once,
                           const struct eight *w, unsigned half, size_t i,
                           const struct few_twice *twice, i32v sums[FEW_ROWS][PAIRS])
{
    const uint8_t *p = w->p.at + i * w->p.stride;
    const unsigned n = part_of(t) == 32 ? 2 : 1; /* registers of a part */
    const unsigned begin = half * SPW_CODES_HALF / 16, end = begin + SPW_CODES_HALF / 16;
#pragma GCC unroll 8
    for (unsigned first = begin; first < end; first += at_once) {
        u32v codes[CODES], scale[CODES];
#pragma GCC unroll 8
        for (unsigned c = 0; c < at_once; c++) {
            const unsigned j = (first + c) / n; /* the part */
            codes[c] =
                n == 1 ? codes_of_16(t, p, w->p.fours, j) : codes_of_32(t, p, w->p.fours, j, c % 2);
            scale[c] = has_pairs(t)
                           ? simd_word_of_four(w->scales[j / 4][i / 2], 4 * (i % 2) + j % 4)
                           : (u32v)simd_lane_of_four((f32v)w->parts[j], i);
        }
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            i32v sum = first > begin ? sums[r][i] : (i32v){0};
#pragma GCC unroll 8
            for (unsigned c = 0; c < at_once; c += n)
                sum = add_part(t, sum, codes + c, twice[r].codes + (first + c) * sizeof *codes,
                               scale[c]);
            sums[r][i] = sum;
        }
    }
}

/* Rows i and i + 4 of W with each row of x. */
SIMD_FN void multiply_both(enum spw_dtype t, const int rows, const unsigned at_once,
                           const struct eight *w, size_t i, const struct few_twice *twice,
                           i32v sums[SPW_CODES_HALVES][FEW_ROWS][PAIRS])
{
    fetch_row(t, w->p.at + i * w->p.stride);
    fetch_row(t, w->p.at + i * w->p.stride + w->p.fours);
#pragma GCC unroll 2
    for (unsigned half = 0; half < SPW_CODES_HALVES; half++)
        multiply_pair(t, rows, at_once, w, half, i, twice, sums[half]);
}

SIMD_FN void unpack_eight(enum spw_dtype t, struct eight *w)
{
    const size_t parts = SPW_CODES_GROUP / part_of(t);
    struct scale_bytes bytes;
    unpack_scale_bytes(t, &w->p, &w->d, &w->m, &bytes);
    for (size_t j = 0; j < parts / 4; j++)
        simd_widen_fours(bytes.scales[j], w->scales[j]);
    for (size_t j = 0; j < parts; j++)
        w->parts[j] = byte_of(bytes.scales[j / 4], j % 4);
    for (size_t j = 0; j < parts / 2; j++)
        w->pairs[j] = simd_widen_two((has_minima(t) ? bytes.minima : bytes.scales)[j / 2], j % 2);
}

/* Adds a group of the rows of W at p to a. */
SIMD_FN void multiply_large(enum spw_dtype t, const int rows, const struct packed *p,
                            const struct few_x *x, f32v a[FEW_ROWS])
{
    const struct few_twice *twice = (const struct few_twice *)x->of_x + x->group * (size_t)rows;
    struct eight w;
    w.p = *p;
    const int parts = SPW_CODES_GROUP / (int)part_of(t);
    i32v sums[SPW_CODES_HALVES][FEW_ROWS][PAIRS];
    const unsigned at_once = !__builtin_constant_p(rows) ? CODES : part_of(t) == 32 ? 2 : 1;
    unpack_eight(t, &w);
    if (__builtin_constant_p(rows) && rows == 1) { /* more rows would take 100 KB of code */
#pragma GCC unroll 4
        for (size_t i = 0; i < PAIRS; i++)
            multiply_both(t, rows, at_once, &w, i, twice, sums);
    } else
        for (size_t i = 0; i < PAIRS; i++)
            multiply_both(t, rows, at_once, &w, i, twice, sums);
#pragma GCC unroll 2
    for (unsigned half = 0; half < SPW_CODES_HALVES; half++) {
        f32v to[FEW_ROWS];
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            i32v sum = simd_sums_of_fours(sums[half][r], INT32_MAX / 4), more = {0};
            if (has_minima(t) || code_offset(t))
                more = dot_with_sums(w.pairs, codes_of_row(x, r), parts, (int)half);
            if (!has_minima(t))
                sum -= code_offset(t) * more;
            to[r] = simd_fused(w.d, simd_from_i32(sum), simd_set1(0));
            if (has_minima(t))
                to[r] = simd_fused(w.m, simd_from_i32(more), to[r]);
        }
        add_half_of_few(rows, x, half, to, a);
    }
}

/* ---- rows of x ---- */

SIMD_FN size_t bytes_of_x(size_t groups)
{
    return FEW_ROWS * groups * sizeof(struct few_twice);
}

static void order_x(const struct few *f)
{
    struct few_twice *twice = f->of_x;
    if (is_small(f->a->w_dtype))
        return;
    for (size_t r = 0; r < f->rows; r++)
        for (size_t g = 0; g < f->groups; g++)
            for (size_t i = 0; i < SPW_CODES_GROUP / 16; i++) {
                const u32v both = simd_same_four(f->codes[r * f->groups + g].codes + 16 * i);
                simd_store(twice[g * f->rows + r].codes + i * sizeof both, (f32v)both);
            }
}

#endif
