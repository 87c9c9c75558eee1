/* The fast product of quantized weights with one row of x, with AVX-512: lanes along a row of W.
 *
 * A task reads its part of W once, and asks for it in the order of memory: a core reads one stream
 * faster than several. It takes four rows of W at a time, and a row has quads: four groups of 256
 * numbers:
 *
 *   for each of the four rows, for each quad
 *     for each four parts of 32 or of 16 numbers
 *       unpack them into registers, a part in each 128 bits
 *       products of the four groups; then the sum of each part, which is in the lanes [part][group]
 *   for each quad
 *     turn the sums of the four rows: a register has a part, its lanes are [row of W][group]; then
 *     t, a and y of quant/codes.h
 *
 * Where a row of W has fewer than four groups, the rest of each quad would be copies of zeros: it
 * walks across four rows of W, a group of each; lanes are [part][row of W], then [group][row of W].
 *
 * So bytes are never transposed. All of this asks for later bytes, evenly: the memory must not
 * stand still while nothing but registers is at work. */
#ifndef SPW_MODEL_CPU_LINEAR_ALONG_K_H
#define SPW_MODEL_CPU_LINEAR_ALONG_K_H

#include "base/simd_fours.h"
#include "model/cpu/linear/columns.h"
#include "model/cpu/linear/linear.h"

enum {
    QUAD = 4,
    ALONG_EDGE_BYTES = SIMD_LANES * 34 * SMALL_BLOCKS,
    ALONG_AHEAD = 16 << 10, /* bytes */
    TURN = 4,               /* rows of W side by side */
    ALONG_LAG = 8 << 10,    /* of them: what the end of four rows asks for, at most */
};

/* A quad of a row of x. */
struct along_x {
    u32v codes[QUAD][SPW_CODES_GROUP / sizeof(u32v)]; /* of a group, as operands */
    uint32_t pairs[SPW_BLOCK_PARTS / 2][QUAD];        /* sums of the codes of two parts, as int16 */
    /* Small blocks: their scales, and their sums of codes times these. */
    float block_scales[SMALL_BLOCKS][QUAD], sums[SMALL_BLOCKS][QUAD];
    float scales[QUAD][SPW_CODES_HALVES];
};

/* What the end of four rows of W needs, of a quad. */
struct along_scales {
    __m128i d[SIMD_LANES], m[SIMD_LANES]; /* small blocks: eight words of each cell [s][u] */
};

struct along {
    const struct spw_linear_args *a;
    size_t groups, quads, row_bytes;
    size_t col, col_end;
    const uint8_t *end;          /* of the rows of W */
    const uint8_t *asked;        /* where the lines end that the task asks for at once */
    struct along_x *x;           /* [quads] */
    u32v *sums;                  /* [quads][parts / 4][first number of a lane] */
    struct along_scales *scales; /* [quads] */
    uint8_t *edge;               /* [ALONG_EDGE_BYTES] */
};

static size_t along_workspace(size_t k)
{
    const size_t quads = (size_t)spw_div_up(k, QUAD * SPW_CODES_GROUP);
    const size_t of_row = sizeof(struct along_x) + SPW_BLOCK_PARTS * sizeof(u32v);
    return ALONG_EDGE_BYTES + quads * (of_row + sizeof(struct along_scales));
}

SIMD_FN const uint8_t *row_at(const struct along *f, size_t col)
{
    return (const uint8_t *)f->a->w + spw_min_u64(col, f->a->n - 1) * f->row_bytes;
}

/* Registers: a part and a row of W each. */
SIMD_FN size_t sums_of_quad(enum spw_dtype t)
{
    return SPW_CODES_GROUP / part_of(t);
}

SIMD_FN size_t groups_of_quad(const struct along *f, size_t q)
{
    return (size_t)spw_min_u64(f->groups - q * QUAD, QUAD);
}

/* Asks for the lines up to ALONG_AHEAD after `now`, in the part of W of the task. */
SIMD_FN void fetch_ahead_of(const struct along *f, const uint8_t **asked, const uint8_t *now)
{
    const uint8_t *to = now + ALONG_AHEAD < f->end ? now + ALONG_AHEAD : f->end;
    for (; *asked < to; *asked += 64)
        __builtin_prefetch(*asked, 0, 3);
}

/* The task asks for its first lines before it orders the codes of x. */
static const uint8_t *first_asked(const struct along *f)
{
    const uint8_t *asked = row_at(f, f->col);
    fetch_ahead_of(f, &asked, asked);
    return asked;
}

/* What is left for the end of four rows, when `bytes` of them have been multiplied. */
SIMD_FN size_t lag_after(size_t bytes)
{
    return (size_t)spw_min_u64(bytes / 4, ALONG_LAG);
}

/* ---- codes ---- */

/* Sixteen bytes of each of four blocks: their low and their high nibbles. */
SIMD_FN void both_nibbles(u32v x, u32v w[2])
{
    w[0] = low_nibbles(x);
    w[1] = high_nibbles(x);
}

/* 64 bytes: each 32 have the low nibbles of a part and the high nibbles of the next part. */
SIMD_FN void wide_nibbles(const uint8_t *p, u32v w[2])
{
    const u32v shifts = simd_each_four(0, 4, 0, 4);
    w[0] = low_nibbles(simd_even_fours(p) >> shifts);
    w[1] = low_nibbles(simd_odd_fours(p) >> shifts);
}

/* Bit i of the word at p belongs to number i of a block: it becomes bit 4. */
SIMD_FN void add_fifth_bits(const uint8_t *p, size_t stride, u32v w[2])
{
    const u32v bits = simd_load_four(p, stride);
    w[0] |= simd_bytes_of_bits(bits, 0, 0x10);
    w[1] |= simd_bytes_of_bits(bits, 2, 0x10);
}

/* Four l: bit first + l becomes bit 4. */
SIMD_FN u32v bits_up(u32v x, unsigned first)
{
    const u32v l = simd_each_four(0, 1, 2, 3);
    return first < 4 ? x << (4 - first - l) : x >> (first - 4 + l);
}

/* Part SIMD_FOURS * i, and those after it, a part in each four, of 32 codes of the group at p: the
 * first 16 of each, and the others, as operands of simd_dot (codes plus code_offset). */
SIMD_FN void codes_of_32(enum spw_dtype t, const uint8_t *p, unsigned i, u32v w[2])
{
    const size_t stride = block_bytes(t);
    if (is_small(t))
        p += SIMD_FOURS * i * stride;
    const uint8_t *low = p + SPW_FACTS(t).low_at, *high = p + SPW_FACTS(t).high_at;
    if (SPW_FACTS(t).low_bits == 8) {
        w[0] = simd_load_four(low, stride);
        w[1] = simd_load_four(low + 16, stride);
        for (int j = 0; SIMD_DOT_OFFSET && j < 2; j++)
            w[j] ^= 0x80808080u;
    } else if (SPW_FACTS(t).run == 32)
        wide_nibbles(low + sizeof(u32v) * i, w);
    else if (is_small(t))
        both_nibbles(simd_load_four(low, stride), w);
    else
        both_nibbles((u32v)simd_load(low + sizeof(u32v) * i), w);
    if (has_high_bits(t, 1) && is_small(t))
        add_fifth_bits(high, stride, w);
    else if (has_high_bits(t, 1))
        for (int j = 0; j < 2; j++) /* the bit of the part becomes bit 4 */
            w[j] |= bits_up(simd_same_four(high + 16 * j), SIMD_FOURS * i) & 0x10101010u;
    for (int j = 0; j < 2; j++)
        w[j] = values_of(t, w[j]);
}

/* The same of 16 codes. */
SIMD_FN u32v codes_of_16(enum spw_dtype t, const uint8_t *p, unsigned i)
{
    const unsigned part = SIMD_FOURS * i / 2, half = part / 4, j = part % 4; /* parts of 32 */
    const u32v two = simd_each_four(0, 0, 2, 2);
    const uint8_t *low = p + SPW_FACTS(t).low_at, *high = p + SPW_FACTS(t).high_at;
    u32v x;
    if (SPW_FACTS(t).low_bits == 4) {
        x = (u32v)simd_load(low + 64 * half + 32 * (j % 2));
        x = j / 2 ? high_nibbles(x) : low_nibbles(x);
        return x | (simd_twice32(high + 32 * half) >> (two + 2 * j) & 0x03030303u) << 4;
    }
    x = simd_twice32(low + 32 * half) >> (two + 2 * j) & 0x03030303u;
    if (has_high_bits(t, 1))
        x |= (simd_twice32(high) >> (two / 2 + part) & 0x01010101u) << 2;
    return x;
}

/* ---- products ---- */

/* Four cells have a group of 256 numbers of W each: those of a quad, or a group of each of four
 * rows. Sixteen of them are [u][cell]: u is a row, or, across, a group of a quad. */

SIMD_FN void keep_scales(enum spw_dtype t, const uint8_t *const p[QUAD], size_t u,
                         struct along_scales *to)
{
    const size_t bytes = block_bytes(t);
#pragma GCC unroll 4
    for (size_t s = 0; s < QUAD; s++) {
        to->d[s * TURN + u] = simd_eight_words(p[s], 0, bytes);
        if (has_minima(t))
            to->m[s * TURN + u] = simd_eight_words(p[s], 2, bytes);
    }
}

/* Four parts of each cell. */
SIMD_FN void multiply_32(enum spw_dtype t, bool across, const uint8_t *const p[QUAD], unsigned i,
                         size_t u, const struct along_x *x, u32v *sums)
{
    u32v w[QUAD][2];
#pragma GCC unroll 4
    for (size_t s = 0; s < QUAD; s++)
        codes_of_32(t, p[s], i, w[s]);
    i32v v[QUAD];
#pragma GCC unroll 4
    for (size_t s = 0; s < QUAD; s++) {
        const u32v *codes = x->codes[across ? u : s] + 2 * i;
        v[s] = simd_dot(simd_dot((i32v){0}, w[s][0], codes[0]), w[s][1], codes[1]);
    }
    sums[i * TURN] = (u32v)simd_sums_of_fours(v, 8 * largest_code(t) * 127);
}

SIMD_FN void multiply_16(enum spw_dtype t, bool across, const uint8_t *const p[QUAD], unsigned i,
                         size_t u, const struct along_x *x, u32v *sums)
{
    u32v w[QUAD];
#pragma GCC unroll 4
    for (size_t s = 0; s < QUAD; s++)
        w[s] = codes_of_16(t, p[s], i);
    i32v v[QUAD];
#pragma GCC unroll 4
    for (size_t s = 0; s < QUAD; s++)
        v[s] = simd_dot((i32v){0}, w[s], x->codes[across ? u : s][i]);
    sums[i * TURN] = (u32v)simd_sums_of_fours(v, 4 * largest_code(t) * 127);
}

/* Cells [u] of quad q. */
SIMD_FN void multiply_cells(enum spw_dtype t, const struct along *f, bool across, size_t u,
                            size_t q, const uint8_t *const p[QUAD])
{
    u32v *sums = f->sums + q * sums_of_quad(t) + u;
    if (is_small(t))
        keep_scales(t, p, u, f->scales + q);
    const unsigned n = (unsigned)(SPW_CODES_GROUP / part_of(t) / SIMD_FOURS);
#pragma GCC unroll 8
    for (unsigned i = 0; i < n; i++)
        if (part_of(t) == 32)
            multiply_32(t, across, p, i, u, f->x + q, sums);
        else
            multiply_16(t, across, p, i, u, f->x + q, sums);
}

/* What the end of a row cuts: zeros after the end. Returns `to`. */
static uint8_t *copy_rest(uint8_t *to, const uint8_t *p, size_t left, size_t bytes)
{
    memset(to, 0, bytes);
    return memcpy(to, p, left);
}

SIMD_FN void multiply_quad(enum spw_dtype t, const struct along *f, size_t row, size_t q,
                           const uint8_t *at)
{
    const size_t bytes = group_bytes(t);
    const uint8_t *const p[QUAD] = {at, at + bytes, at + 2 * bytes, at + 3 * bytes};
    multiply_cells(t, f, false, row, q, p);
}

/* Row `row` of the four. One call of multiply_quad serves whole quads and the rest of a row: it is
 * most of the code of a type. */
SIMD_FN void multiply_row(enum spw_dtype t, const struct along *f, size_t row, const uint8_t *at,
                          const uint8_t **asked)
{
    const size_t bytes = QUAD * group_bytes(t);
    const uint8_t *from = at;
    size_t q = 0;
    for (size_t end = f->row_bytes / bytes; q < f->quads; end = f->quads) {
        for (; q < end; q++, from += bytes) {
            const size_t offset = q * bytes;
            fetch_ahead_of(f, asked, at + offset - lag_after(row * f->row_bytes + offset));
            multiply_quad(t, f, row, q, from);
        }
        if (q < f->quads)
            from = copy_rest(f->edge, from, f->row_bytes - q * bytes, bytes);
    }
}

/* Group g of each of the four rows. */
SIMD_FN void multiply_across(enum spw_dtype t, const struct along *f, size_t col, size_t g)
{
    const size_t bytes = group_bytes(t), offset = g * bytes;
    const uint8_t *p[QUAD];
#pragma GCC unroll 4
    for (size_t s = 0; s < QUAD; s++) {
        p[s] = row_at(f, col + s) + offset;
        if (offset + bytes > f->row_bytes)
            p[s] = copy_rest(f->edge + s * bytes, p[s], f->row_bytes - offset, bytes);
    }
    multiply_cells(t, f, true, g % QUAD, g / QUAD, p);
}

SIMD_FN void multiply_rows(enum spw_dtype t, const struct along *f, bool across, size_t col,
                           const uint8_t **asked)
{
    if (!across)
        for (size_t row = 0; row < TURN; row++)
            multiply_row(t, f, row, row_at(f, col + row), asked);
    for (size_t g = 0; across && g < f->groups; g++) {
        const size_t done = QUAD * g * group_bytes(t);
        fetch_ahead_of(f, asked, row_at(f, col + QUAD - 1) + done - lag_after(done));
        multiply_across(t, f, col, g);
    }
}

/* ---- the f32 part: sixteen cells ---- */

SIMD_FN void sums_of_parts(enum spw_dtype t, const u32v *from, i32v to[SPW_BLOCK_PARTS])
{
#pragma GCC unroll 8
    for (size_t i = 0; i < sums_of_quad(t); i += TURN)
        simd_transpose_fours(from + i, to + i);
}

/* A number of each group of a quad: in the lanes of its cells. */
SIMD_FN u32v in_cells(bool across, const void *numbers)
{
    return across ? simd_spread_four(numbers) : simd_same_four(numbers);
}

/* The numbers of group g of a quad: in the lanes of all cells of their rows. */
SIMD_FN f32v from_cells(bool across, f32v x, size_t g)
{
    return across ? simd_one_four(x, g) : simd_lane_of_four(x, g);
}

/* As dot_with_sums. */
SIMD_FN i32v dot_with_pairs(const u32v *pairs, const struct along_x *x, bool across, int parts,
                            int half)
{
    i32v total = {0};
#pragma GCC unroll 4
    for (int j = half * parts / 4; j < (half + 1) * parts / 4; j++)
        total = simd_dot_pairs(total, pairs[j], in_cells(across, x->pairs[j]));
    return total;
}

/* The factors of a quad of four rows. */
struct along_factors {
    struct scales of;                  /* small blocks: d and m alone */
    u32v offsets[SPW_BLOCK_PARTS / 2]; /* what the offset of the codes has added, as pairs */
};

SIMD_FN void f16_of_small(const __m128i words[SIMD_LANES], f32v to[SMALL_BLOCKS])
{
    u32v pairs[SMALL_BLOCKS / 2];
    simd_transpose_words(words, pairs);
    for (int b = 0; b < SMALL_BLOCKS; b++)
        to[b] = simd_f16_of(pairs[b / 2] >> b % 2 * 16);
}

SIMD_FN void factors_of_small(enum spw_dtype t, const struct along *f, size_t q,
                              struct along_factors *to)
{
    u32v pairs[SMALL_BLOCKS / 2];
    if (SPW_FACTS(t).form != SPW_SCALE_POWER) {
        f16_of_small(f->scales[q].d, to->of.d);
        if (has_minima(t))
            f16_of_small(f->scales[q].m, to->of.m);
        return;
    }
    simd_transpose_words(f->scales[q].d, pairs); /* block b lies at 17 b: odd ones in high bytes */
    for (int b = 0; b < SMALL_BLOCKS; b++)
        to->of.d[b] = (f32v)power_of_two(pairs[b / 2] >> b % 2 * 24 & 0xffu);
}

/* Nothing is read after the last row. */
static void copy_cells(const struct along *f, bool across, size_t col, size_t q, size_t bytes)
{
    for (size_t l = 0; l < SIMD_LANES; l++) {
        const size_t row = across ? l % QUAD : l / QUAD, group = across ? l / QUAD : l % QUAD;
        const size_t g = q * QUAD + spw_min_u64(group, groups_of_quad(f, q) - 1);
        memcpy(f->edge + l * bytes, row_at(f, col + row) + g * bytes, bytes);
    }
}

SIMD_FN void factors_of_large(enum spw_dtype t, const struct along *f, bool across, size_t q,
                              size_t col, struct along_factors *to)
{
    const int parts = SPW_CODES_GROUP / (int)part_of(t), offset = -code_offset(t);
    const size_t bytes = group_bytes(t), first = q * QUAD * bytes;
    struct packed p = {row_at(f, col) + first, across ? f->row_bytes : bytes,
                       across ? bytes : f->row_bytes, 1};
    if ((col + TURN - 1) * f->row_bytes + first + QUAD * bytes > f->a->n * f->row_bytes) {
        copy_cells(f, across, col, q, bytes);
        p = (struct packed){f->edge, bytes, QUAD * bytes, 1};
    }
    unpack_scales(t, &p, &to->of);
    for (int j = 0; offset && j < parts / 2; j++)
        to->offsets[j] = both(to->of.parts[2 * j] * offset, to->of.parts[2 * j + 1] * offset);
}

/* t of quant/codes.h. */
SIMD_FN f32v small_blocks(enum spw_dtype t, bool across, const struct along_factors *w,
                          const struct along_x *x, i32v sums[SPW_BLOCK_PARTS])
{
    const i32v zero = {0}, offset = zero - code_offset(t);
    f32v sum = {0};
#pragma GCC unroll 8
    for (int b = 0; b < SMALL_BLOCKS; b++) {
        if (code_offset(t)) /* what it has added */
            sums[b] = simd_dot_pairs(sums[b], b % 2 ? both(zero, offset) : both(offset, zero),
                                     in_cells(across, x->pairs[b / 2]));
        const f32v scale = (f32v)in_cells(across, x->block_scales[b]);
        sum = simd_fused(w->of.d[b] * scale, simd_from_i32(sums[b]), sum);
        if (has_minima(t))
            sum = simd_fused(w->of.m[b], (f32v)in_cells(across, x->sums[b]), sum);
    }
    return sum;
}

SIMD_FN f32v large_block(enum spw_dtype t, bool across, const struct along_factors *w, int half,
                         const struct along_x *x, i32v sums[SPW_BLOCK_PARTS])
{
    const int parts = SPW_CODES_GROUP / (int)part_of(t);
    u32v total = {0}; /* cells of no group have any sums, whose products may not fit int32 */
    if (code_offset(t))
        total = (u32v)dot_with_pairs(w->offsets, x, across, parts, half);
#pragma GCC unroll 8
    for (int j = half * parts / 2; j < (half + 1) * parts / 2; j++)
        total += (u32v)w->of.parts[j] * (u32v)sums[j];
    f32v sum = simd_fused(w->of.d[0], simd_from_i32((i32v)total), simd_set1(0));
    if (has_minima(t)) {
        const i32v minima = dot_with_pairs(w->of.minima, x, across, parts, half);
        sum = simd_fused(w->of.m[0], simd_from_i32(minima), sum);
    }
    return sum;
}

/* The partitions that end in quad q: bit s is group s. */
static unsigned ends_of_partitions(const struct along *f, size_t q)
{
    unsigned ends = 0;
    for (size_t partition = 1; partition <= SPW_CODES_PARTITIONS; partition++) {
        const size_t end = spw_codes_partition(f->groups, partition);
        if (end > q * QUAD && end <= (q + 1) * QUAD)
            ends |= 1u << (end - 1 - q * QUAD);
    }
    return ends;
}

/* a and y of quant/codes.h: of a row of W in the lanes of its cells. Small blocks: t[0] alone. */
SIMD_FN void add_quad(bool small, bool across, const struct along_x *x, size_t n, unsigned ends,
                      const f32v t[SPW_CODES_HALVES], f32v *a, f32v *y)
{
    f32v partition = *a, sum = *y;
#pragma GCC unroll 4
    for (size_t g = 0; g < QUAD && g < n; g++) {
        if (small)
            partition += from_cells(across, t[0], g);
        else {
#pragma GCC unroll 2
            for (int half = 0; half < SPW_CODES_HALVES; half++)
                partition = simd_fused(simd_set1(x->scales[g][half]),
                                       from_cells(across, t[half], g), partition);
        }
        if (ends >> g & 1) {
            sum += partition;
            partition = (f32v){0};
        }
    }
    *a = partition;
    *y = sum;
}

/* ---- four rows ---- */

SIMD_FN void store_rows(const struct along *f, bool across, size_t col, f32v y)
{
    float lanes[SIMD_LANES], sums[TURN];
    simd_store(lanes, y);
    for (size_t i = 0; i < TURN; i++) {
        const float sum = lanes[across ? i : QUAD * i];
        sums[i] = sum == sum ? sum : NAN;
    }
    spw_linear_store(f->a, 0, col, sums, (size_t)spw_min_u64(f->col_end - col, TURN));
}

/* Quad q of the four rows. */
SIMD_FN void end_quad(enum spw_dtype t, const struct along *f, bool across, size_t q,
                      const struct along_factors *w, f32v to[SPW_CODES_HALVES])
{
    const struct along_x *x = f->x + q;
    i32v sums[SPW_BLOCK_PARTS];
    sums_of_parts(t, f->sums + q * sums_of_quad(t), sums);
    if (is_small(t)) {
        to[0] = small_blocks(t, across, w, x, sums);
        return;
    }
#pragma GCC unroll 2
    for (int half = 0; half < SPW_CODES_HALVES; half++)
        to[half] = large_block(t, across, w, half, x, sums);
}

/* Returns what is asked for now. */
SIMD_FN const uint8_t *end_rows(enum spw_dtype t, const struct along *f, bool across, size_t col,
                                const uint8_t *asked)
{
    const size_t bytes = TURN * f->row_bytes, lag = lag_after(bytes) / f->quads;
    const uint8_t *end = row_at(f, col) + bytes + (across ? bytes - f->row_bytes : 0);
    f32v y = {0}, a = {0}, halves[SPW_CODES_HALVES];
    for (size_t q = 0; q < f->quads; q++) {
        const size_t n = groups_of_quad(f, q);
        const unsigned ends = ends_of_partitions(f, q);
        struct along_factors w;
        fetch_ahead_of(f, &asked, end - lag * (f->quads - q));
        if (is_small(t))
            factors_of_small(t, f, q, &w);
        else
            factors_of_large(t, f, across, q, col, &w);
        end_quad(t, f, across, q, &w, halves);
        add_quad(is_small(t), across, f->x + q, n, ends, halves, &a, &y);
    }
    store_rows(f, across, col, y);
    return asked;
}

SIMD_FN void run_rows(enum spw_dtype t, const struct along *f, bool across)
{
    const uint8_t *asked = f->asked;
    for (size_t col = f->col; col < f->col_end; col += TURN) {
        multiply_rows(t, f, across, col, &asked);
        asked = end_rows(t, f, across, col, asked);
    }
}

#define DEFINE(t, ...)                                                                             \
    SIMD_APART void run_##t(const struct along *f)                                                 \
    {                                                                                              \
        if (f->groups < QUAD)                                                                      \
            run_rows(SPW_DTYPE_##t, f, true);                                                      \
        else                                                                                       \
            run_rows(SPW_DTYPE_##t, f, false);                                                     \
    }
SPW_QUANTIZED_TYPES(DEFINE)
#undef DEFINE

/* ---- a task ---- */

static void order_group(enum spw_dtype t, const struct spw_codes *from, size_t s,
                        struct along_x *to)
{
    const int16_t *sums = part_of(t) == 32 ? from->sums32 : from->sums;
    for (size_t i = 0; i < SPW_CODES_GROUP / sizeof(u32v) / 2; i++) {
        const u32v a = (u32v)simd_load(from->codes + 2 * i * sizeof(u32v)),
                   b = (u32v)simd_load(from->codes + (2 * i + 1) * sizeof(u32v));
        to->codes[s][2 * i] = part_of(t) == 32 ? simd_even_fours_of(a, b) : a;
        to->codes[s][2 * i + 1] = part_of(t) == 32 ? simd_odd_fours_of(a, b) : b;
    }
    for (size_t j = 0; j < SPW_CODES_GROUP / part_of(t) / 2; j++)
        memcpy(&to->pairs[j][s], sums + 2 * j, sizeof to->pairs[j][s]);
    for (size_t b = 0; is_small(t) && b < SMALL_BLOCKS; b++) {
        to->block_scales[b][s] = from->block_scales[b];
        to->sums[b][s] = from->block_scales[b] * (float)from->sums32[b];
    }
    memcpy(to->scales[s], from->scales, sizeof from->scales);
}

static void order_x(const struct along *f)
{
    for (size_t q = 0; q < f->quads; q++) {
        const struct spw_codes *from = (const struct spw_codes *)f->a->codes + q * QUAD;
        const size_t n = groups_of_quad(f, q);
        if (n < QUAD)
            memset(f->x + q, 0, sizeof *f->x);
        for (size_t s = 0; s < n; s++)
            order_group(f->a->w_dtype, from + s, s, f->x + q);
    }
}

static void run_along(const struct spw_linear_args *a, struct spw_linear_part part, uint8_t *space)
{
    const size_t groups = spw_codes_groups(a->k), quads = (size_t)spw_div_up(groups, QUAD);
    const size_t row_bytes = (size_t)spw_row_bytes(a->w_dtype, a->k);
    struct along f = {.a = a,
                      .groups = groups,
                      .quads = quads,
                      .row_bytes = row_bytes,
                      .col = part.col,
                      .col_end = part.col_end,
                      .end = (const uint8_t *)a->w + part.col_end * row_bytes};
    f.edge = space;
    f.x = (struct along_x *)(void *)(space + ALONG_EDGE_BYTES);
    f.sums = (u32v *)(void *)(f.x + quads);
    f.scales = (struct along_scales *)(void *)(f.sums + quads * sums_of_quad(a->w_dtype));
    f.asked = first_asked(&f);
    order_x(&f);
    switch (a->w_dtype) {
#define CASE(t, ...)                                                                               \
    case SPW_DTYPE_##t:                                                                            \
        run_##t(&f);                                                                               \
        break;
        SPW_QUANTIZED_TYPES(CASE)
#undef CASE
    default:
        break;
    }
}

#endif
