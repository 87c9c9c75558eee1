/* The fast product of quantized weights with a few rows of x: lanes along a row of W. For AVX-512;
 * AVX2 is as fast by columns.
 *
 * A task walks its rows of W in four streams that lie far apart, because hardware prefetchers
 * follow a few long streams best. A step is one row of each stream, and a panel is four steps. For
 * some groups of 256 numbers:
 *
 *   for each step of the panel, for each group, for each four parts of 32 or of 16 numbers
 *     unpack them into registers, a part in each 128 bits         once for all rows of x
 *     for each row of x: products of the four rows; then the sum of each part, which is in the
 *     lanes [part][stream]
 *   for each group
 *     turn the sums: a lane has a row of W, a register has a part; t, a and y of quant/codes.h
 *
 * So bytes are never transposed, and W is read once. The limit of a Zen 5 is not its units for
 * vectors but its eight instructions in a cycle. */
#ifndef SPW_MODEL_CPU_LINEAR_ALONG_K_H
#define SPW_MODEL_CPU_LINEAR_ALONG_K_H

#include "base/simd_fours.h"
#include "model/cpu/linear/columns.h"
#include "model/cpu/linear/linear.h"

#if defined(SIMD_FOURS)

enum {
    FEW_ROWS = SPW_LINEAR_FEW_ROWS,
    FEW_SUMS = 64,   /* groups whose sums are kept, times rows of x ... */
    FEW_GROUPS = 32, /* ... and at most */
    QUAD = 4,
    QUADS = SIMD_LANES / QUAD,
    FEW_AHEAD = 1 << 10, /* bytes of each stream */
};

struct few_sums {
    u32v parts[FEW_SUMS][SPW_BLOCK_PARTS / 4][QUADS]; /* [row of x][group][four parts][quad] */
    octet d[FEW_GROUPS][SIMD_LANES], m[FEW_GROUPS][SIMD_LANES]; /* of small blocks */
};

struct few {
    const struct spw_linear_args *a;
    const struct spw_codes *x; /* [m][groups] */
    size_t groups, row_bytes;
    size_t col, col_end, apart; /* columns; from stream to stream */
    size_t kept;                /* groups whose sums are kept */
    struct few_sums *sums;
    uint8_t *edge; /* room for a group of SIMD_LANES rows */
};

/* A step of a panel: a row of each stream, and some groups of them. */
struct quad {
    const uint8_t *at[QUAD];
    size_t index, begin, end;
};

/* Rows of x for which lanes along k are faster than panels by columns. */
SIMD_FN size_t few_rows(enum spw_dtype t)
{
    return part_of(t) == 16 ? 2 : FEW_ROWS;
}

/* The rows of a panel are those of four steps: a step is one row of each of four streams. */
SIMD_FN const uint8_t *row_at(const struct few *f, size_t step, size_t stream)
{
    const size_t col = f->col + stream * f->apart + step;
    return (const uint8_t *)f->a->w + spw_min_u64(col, f->a->n - 1) * f->row_bytes;
}

/* ---- codes ---- */

/* The largest operand of simd_dot. */
SIMD_FN int largest_code(enum spw_dtype t)
{
    switch (t) {
    case SPW_DTYPE_Q2_K:
        return 3;
    case SPW_DTYPE_Q3_K:
        return 7;
    case SPW_DTYPE_Q4_0:
    case SPW_DTYPE_Q4_1:
    case SPW_DTYPE_Q4_K:
        return 15;
    case SPW_DTYPE_MXFP4:
        return 24;
    case SPW_DTYPE_Q5_0:
    case SPW_DTYPE_Q5_1:
    case SPW_DTYPE_Q5_K:
        return 31;
    case SPW_DTYPE_Q6_K:
        return 63;
    default:
        return 255;
    }
}

/* Sixteen bytes of each of four blocks: their low and their high nibbles. */
SIMD_FN void both_nibbles(u32v x, u32v w[2])
{
    w[0] = low_nibbles(x);
    w[1] = high_nibbles(x);
}

/* 64 bytes: each 32 have the low nibbles of a part and the high nibbles of the next part. */
SIMD_FN void wide_nibbles(const uint8_t *p, u32v w[2])
{
    const u32v x = (u32v)simd_load(p), shifts = simd_each_four(0, 4, 0, 4);
    w[0] = low_nibbles(simd_even_fours(x) >> shifts);
    w[1] = low_nibbles(simd_odd_fours(x) >> shifts);
}

/* Bit i of the word at p belongs to number i of a block: it becomes bit 4. */
SIMD_FN void add_fifth_bits(const uint8_t *p, size_t stride, u32v w[2])
{
    const u32v bits = simd_load_four(p, stride);
    w[0] |= simd_bytes_of_bits(bits, 0, 0x10);
    w[1] |= simd_bytes_of_bits(bits, 2, 0x10);
}

/* Parts 4 i .. 4 i + 3 of 32 codes of the group at p: the first 16 of each, and the others, as
 * operands of simd_dot (codes plus code_offset). */
SIMD_FN void codes_of_32(enum spw_dtype t, const uint8_t *p, unsigned i, u32v w[2])
{
    const size_t stride = block_bytes(t);
    if (is_small(t))
        p += 4 * i * stride;
    switch (t) {
    case SPW_DTYPE_Q8_0:
        w[0] = simd_load_four(p + 2, stride);
        w[1] = simd_load_four(p + 18, stride);
        for (int j = 0; SIMD_DOT_OFFSET && j < 2; j++)
            w[j] ^= 0x80808080u;
        break;
    case SPW_DTYPE_Q4_0:
    case SPW_DTYPE_IQ4_NL:
        both_nibbles(simd_load_four(p + 2, stride), w);
        break;
    case SPW_DTYPE_Q4_1:
        both_nibbles(simd_load_four(p + 4, stride), w);
        break;
    case SPW_DTYPE_Q5_0:
        both_nibbles(simd_load_four(p + 6, stride), w);
        add_fifth_bits(p + 2, stride, w);
        break;
    case SPW_DTYPE_Q5_1:
        both_nibbles(simd_load_four(p + 8, stride), w);
        add_fifth_bits(p + 4, stride, w);
        break;
    case SPW_DTYPE_MXFP4:
        both_nibbles(simd_load_four(p + 1, stride), w);
        break;
    case SPW_DTYPE_IQ4_XS:
        both_nibbles((u32v)simd_load(p + 8 + 64 * i), w);
        break;
    case SPW_DTYPE_Q4_K:
        wide_nibbles(p + 16 + 64 * i, w);
        break;
    case SPW_DTYPE_Q5_K:
        wide_nibbles(p + 48 + 64 * i, w);
        for (int j = 0; j < 2; j++) /* bit 4 i + lane becomes bit 4 */
            w[j] |= simd_rotate(simd_load_four(p + 16 + 16 * j, 0),
                                simd_each_four(4, 3, 2, 1) - 4 * i) &
                    0x10101010u;
        break;
    default:
        break;
    }
    for (int j = 0; j < 2; j++)
        if (t == SPW_DTYPE_IQ4_NL || t == SPW_DTYPE_IQ4_XS)
            w[j] = simd_lookup(iq4_values, w[j]);
        else if (t == SPW_DTYPE_MXFP4)
            w[j] = simd_lookup(mxfp4_values, w[j]);
}

/* Parts 4 i .. 4 i + 3 of 16 codes. */
SIMD_FN u32v codes_of_16(enum spw_dtype t, const uint8_t *p, unsigned i)
{
    const unsigned half = i / 2, part = 2 * i, j = part % 4; /* parts of 32 */
    const u32v two = simd_each_four(0, 0, 2, 2);
    u32v x;
    switch (t) {
    case SPW_DTYPE_Q6_K:
        x = (u32v)simd_load(p + 64 * half);
        x = i % 2 ? high_nibbles(x) : low_nibbles(x);
        return x | (simd_twice32(p + 128 + 32 * half) >> (two + 2 * j) & 0x03030303u) << 4;
    case SPW_DTYPE_Q2_K:
        return simd_twice32(p + 16 + 32 * half) >> (two + 2 * j) & 0x03030303u;
    case SPW_DTYPE_Q3_K:
        x = simd_twice32(p + 32 + 32 * half) >> (two + 2 * j) & 0x03030303u;
        return x | (simd_twice32(p) >> (two / 2 + part) & 0x01010101u) << 2;
    default:
        return (u32v){0};
    }
}

/* ---- products ---- */

SIMD_FN void keep_scales(enum spw_dtype t, const struct few *f, const struct quad *q, size_t g,
                         const uint8_t *const p[QUAD])
{
    const size_t bytes = block_bytes(t);
    for (size_t r = 0; r < QUAD; r++) {
        const size_t row = q->index * QUAD + r;
        f->sums->d[g][row] = t == SPW_DTYPE_MXFP4 ? simd_octet_of_words(p[r], bytes)
                                                  : simd_octet_of_f16(p[r], 0, bytes);
        if (has_minima(t))
            f->sums->m[g][row] = simd_octet_of_f16(p[r], 2, bytes);
    }
}

/* Four parts of a group of a quad, with each row of x. */
SIMD_FN void multiply_32(enum spw_dtype t, const struct few *f, const struct quad *q, size_t g,
                         const uint8_t *const p[QUAD], unsigned i)
{
    u32v w[QUAD][2];
#pragma GCC unroll 4
    for (int r = 0; r < QUAD; r++)
        codes_of_32(t, p[r], i, w[r]);
    for (size_t row = 0; row < f->a->m; row++) {
        const struct spw_codes *x = f->x + row * f->groups + q->begin + g;
        const u32v a = (u32v)simd_load(x->codes + 128 * i),
                   b = (u32v)simd_load(x->codes + 128 * i + 64);
        const u32v first = simd_even_fours_of(a, b), second = simd_odd_fours_of(a, b);
        i32v sums[QUAD];
#pragma GCC unroll 4
        for (int r = 0; r < QUAD; r++)
            sums[r] = simd_dot(simd_dot((i32v){0}, w[r][0], first), w[r][1], second);
        f->sums->parts[row * f->kept + g][i][q->index] =
            (u32v)simd_sums_of_fours(sums, 8 * largest_code(t) * 127);
    }
}

SIMD_FN void multiply_16(enum spw_dtype t, const struct few *f, const struct quad *q, size_t g,
                         const uint8_t *const p[QUAD], unsigned i)
{
    u32v w[QUAD];
#pragma GCC unroll 4
    for (int r = 0; r < QUAD; r++)
        w[r] = codes_of_16(t, p[r], i);
    for (size_t row = 0; row < f->a->m; row++) {
        const struct spw_codes *x = f->x + row * f->groups + q->begin + g;
        const u32v codes = (u32v)simd_load(x->codes + 64 * i);
        i32v sums[QUAD];
#pragma GCC unroll 4
        for (int r = 0; r < QUAD; r++)
            sums[r] = simd_dot((i32v){0}, w[r], codes);
        f->sums->parts[row * f->kept + g][i][q->index] =
            (u32v)simd_sums_of_fours(sums, 4 * largest_code(t) * 127);
    }
}

/* A group of small blocks that the end of the rows cuts: zeros after the end. */
SIMD_FN void copy_rest(const struct few *f, const uint8_t *p[QUAD], size_t left, size_t bytes)
{
    memset(f->edge, 0, QUAD * bytes);
    for (size_t r = 0; r < QUAD; r++) {
        memcpy(f->edge + r * bytes, p[r], left);
        p[r] = f->edge + r * bytes;
    }
}

SIMD_FN void multiply_quad(enum spw_dtype t, const struct few *f, const struct quad *q)
{
    const size_t bytes = group_bytes(t);
    for (size_t g = 0; g < q->end - q->begin; g++) {
        const size_t offset = (q->begin + g) * bytes;
        const uint8_t *p[QUAD];
        for (size_t r = 0; r < QUAD; r++) {
            p[r] = q->at[r] + offset;
#pragma GCC unroll 5
            for (size_t i = 0; i < bytes; i += 64)
                __builtin_prefetch(p[r] + FEW_AHEAD + i, 0, 3);
        }
        if (is_small(t)) {
            if (offset + bytes > f->row_bytes)
                copy_rest(f, p, f->row_bytes - offset, bytes);
            keep_scales(t, f, q, g, p);
        }
#pragma GCC unroll 4
        for (unsigned i = 0; i < SPW_CODES_GROUP / part_of(t) / 4; i++)
            if (part_of(t) == 32)
                multiply_32(t, f, q, g, p, i);
            else
                multiply_16(t, f, q, g, p, i);
    }
}

/* ---- the f32 part: a row of W in each lane ---- */

/* The sum of each part of a group, with a row of x. */
SIMD_FN void sums_of_parts(const struct few *f, size_t parts, size_t row, size_t g,
                           i32v to[SPW_BLOCK_PARTS])
{
#pragma GCC unroll 4
    for (size_t i = 0; i < SPW_BLOCK_PARTS / 4; i++)
        if (4 * i < parts)
            simd_transpose_fours(f->sums->parts[row * f->kept + g][i], to + 4 * i);
}

/* A pair of int16. */
SIMD_FN u32v pair(i32v low, i32v high)
{
    return ((u32v)low & 0xffffu) | (u32v)high << 16;
}

SIMD_FN void end_small(enum spw_dtype t, const struct few *f, size_t group, size_t g,
                       f32v a[FEW_ROWS])
{
    const size_t left = (size_t)spw_min_u64(f->a->k - group * SPW_CODES_GROUP, SPW_CODES_GROUP);
    const i32v zero = {0}, offset = zero - code_offset(t);
    u32v d[8], m[8];
    simd_transpose(f->sums->d[g], d);
    if (t == SPW_DTYPE_MXFP4)
        for (int b = 0; b < 8; b++)
            d[b] = power_of_two(d[b] >> b % 2 * 8 & 0xffu);
    if (has_minima(t))
        simd_transpose(f->sums->m[g], m);
    for (size_t row = 0; row < f->a->m; row++) {
        const struct spw_codes *x = f->x + row * f->groups + group;
        i32v sums[SPW_BLOCK_PARTS];
        f32v sum = {0};
        sums_of_parts(f, SMALL_BLOCKS, row, g, sums);
#pragma GCC unroll 8
        for (size_t b = 0; b < SMALL_BLOCKS; b++) {
            if (b >= left / SMALL)
                break;
            if (code_offset(t)) /* what it has added */
                sums[b] = simd_dot_pairs(sums[b], b % 2 ? pair(zero, offset) : pair(offset, zero),
                                         simd_set1_bytes(x->sums32 + b / 2 * 2));
            sum = simd_fused((f32v)d[b], simd_from_i32(sums[b]), sum);
            if (has_minima(t))
                sum = simd_fused((f32v)m[b], simd_set1(x->sums32[b]), sum);
        }
        a[row] = simd_fused(simd_set1(x->scale), sum, a[row]);
    }
}

SIMD_FN void end_large(enum spw_dtype t, const struct few *f, size_t step, size_t group, size_t g,
                       f32v a[FEW_ROWS])
{
    const int parts = SPW_CODES_GROUP / (int)part_of(t), offset = -code_offset(t);
    const size_t bytes = group_bytes(t);
    u32v pairs[SPW_BLOCK_PARTS / 2]; /* what the offset has added */
    struct packed p = {row_at(f, step, 0) + group * bytes, f->apart * f->row_bytes, f->row_bytes,
                       1};
    struct scales scales;
    if (f->col + QUAD * f->apart > f->a->n) {
        for (size_t l = 0; l < SIMD_LANES; l++)
            memcpy(f->edge + l * bytes, row_at(f, step + l / QUAD, l % QUAD) + group * bytes,
                   bytes);
        p = (struct packed){f->edge, bytes, QUAD * bytes, 1};
    }
    unpack_scales(t, &p, &scales);
    for (int j = 0; offset && j < parts / 2; j++)
        pairs[j] = pair(scales.parts[2 * j] * offset, scales.parts[2 * j + 1] * offset);
    for (size_t row = 0; row < f->a->m; row++) {
        const struct spw_codes *x = f->x + row * f->groups + group;
        i32v sums[SPW_BLOCK_PARTS], total = {0};
        if (offset)
            total = dot_with_sums(pairs, x, parts);
        sums_of_parts(f, (size_t)parts, row, g, sums);
#pragma GCC unroll 16
        for (int j = 0; j < parts; j++)
            total += scales.parts[j] * sums[j];
        f32v sum = simd_fused(scales.d[0], simd_from_i32(total), simd_set1(0));
        if (has_minima(t))
            sum =
                simd_fused(scales.m[0], simd_from_i32(dot_with_sums(scales.minima, x, parts)), sum);
        a[row] = simd_fused(simd_set1(x->scale), sum, a[row]);
    }
}

/* ---- panels ---- */

/* Groups [begin, end) of the panel that begins at `step`. */
SIMD_FN void multiply_few_panel(enum spw_dtype t, const struct few *f, size_t step, size_t begin,
                                size_t end)
{
    for (size_t i = 0; i < QUADS; i++) {
        struct quad q = {.index = i, .begin = begin, .end = end};
        for (size_t r = 0; r < QUAD; r++)
            q.at[r] = row_at(f, step + i, r);
        multiply_quad(t, f, &q);
    }
}

SIMD_FN void store_few_panel(const struct few *f, size_t row, size_t step, f32v y)
{
    float lanes[SIMD_LANES], sums[QUADS];
    simd_store(lanes, y);
    for (size_t r = 0; r < QUAD; r++) {
        const size_t col = f->col + r * f->apart + step;
        for (size_t i = 0; i < QUADS; i++)
            sums[i] = lanes[QUAD * i + r] == lanes[QUAD * i + r] ? lanes[QUAD * i + r] : NAN;
        if (col < f->col_end)
            spw_linear_store(f->a, row, col, sums, (size_t)spw_min_u64(f->col_end - col, QUADS));
    }
}

SIMD_FN void run_few_panel(enum spw_dtype t, const struct few *f, size_t step)
{
    f32v y[FEW_ROWS] = {0}, a[FEW_ROWS] = {0};
    size_t end, slice = 0;
    for (size_t begin = 0; begin < f->groups; begin = end) {
        end = (size_t)spw_min_u64(begin + f->kept, f->groups);
        multiply_few_panel(t, f, step, begin, end);
        for (size_t group = begin; group < end; group++) {
            if (is_small(t))
                end_small(t, f, group, group - begin, a);
            else
                end_large(t, f, step, group, group - begin, a);
            while (slice < SPW_CODES_SLICES && spw_codes_slice(f->groups, slice + 1) <= group)
                slice++; /* without groups */
            if (spw_codes_slice(f->groups, slice + 1) > group + 1)
                continue;
            for (size_t r = 0; r < f->a->m; r++) {
                y[r] += a[r];
                a[r] = (f32v){0};
            }
        }
    }
    for (size_t r = 0; r < f->a->m; r++)
        store_few_panel(f, r, step, y[r]);
}

static void run_few(const struct spw_linear_args *a, struct spw_linear_part part, void *space)
{
    const struct few f = {
        .a = a,
        .x = a->codes,
        .groups = spw_codes_groups(a->k),
        .row_bytes = (size_t)spw_row_bytes(a->w_dtype, a->k),
        .col = part.col,
        .col_end = part.col_end,
        .apart = (size_t)spw_align_up(spw_div_up(part.col_end - part.col, QUAD), QUADS),
        .kept = (size_t)spw_min_u64(FEW_SUMS / a->m, FEW_GROUPS),
        .sums = space,
        .edge = (uint8_t *)space + sizeof(struct few_sums),
    };
    for (size_t stream = 0; stream < QUAD; stream++)
        for (size_t i = 0; i < FEW_AHEAD; i += 64)
            __builtin_prefetch(row_at(&f, 0, stream) + i, 0, 3);
    for (size_t step = 0; step < f.apart; step += QUADS)
        switch (a->w_dtype) {
#define CASE(t)                                                                                    \
    case SPW_DTYPE_##t:                                                                            \
        run_few_panel(SPW_DTYPE_##t, &f, step);                                                    \
        break;
            CASE(Q8_0)
            CASE(Q4_0)
            CASE(Q4_1)
            CASE(Q5_0)
            CASE(Q5_1)
            CASE(Q2_K)
            CASE(Q3_K)
            CASE(Q4_K)
            CASE(Q5_K)
            CASE(Q6_K)
            CASE(IQ4_NL)
            CASE(IQ4_XS)
            CASE(MXFP4)
#undef CASE
        default:
            break;
        }
}

#endif
#endif
