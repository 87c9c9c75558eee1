/* The products of side_by_side.h, which includes this file, with AVX-512, for two to eight rows of
 * x: a row of W is in each lane, as in a panel (columns.h), but its codes are not stored:
 *
 *   for each group of sixteen rows of W
 *     unpack the scales
 *     for each piece, for each register of each of its slices
 *       unpack four codes of each row of W, multiply them with each row of x
 *       at the end of a part: the scale times the sum of its products
 *     t and a of quant/codes.h
 *
 * So nothing is ever added across lanes, and a code is unpacked once for four rows of x. */
#ifndef SPW_MODEL_CPU_LINEAR_SIXTEEN_ROWS_H
#define SPW_MODEL_CPU_LINEAR_SIXTEEN_ROWS_H

/* A loop over the rows of x: where it is unrolled, sums are in registers. */
#define EACH_FEW _Pragma("GCC unroll 4") for (int r = 0; r < rows; r++)

/* More rows go in two sets. The second one reads W from the caches. */
static size_t rows_at_once(enum spw_dtype t, size_t m)
{
    (void)t;
    return m > FEW_SUMS ? (m + 1) / 2 : m;
}

/* Integers: [0] of a half, or of a small block; [1 + j] of part j of a half. */
typedef i32v few_sums[FEW_SUMS][1 + SPW_BLOCK_PARTS / SPW_CODES_HALVES];

/* ---- products ---- */

/* Slice s of the piece that `low` and `high` hold: its sixteen numbers begin with `first` of the
 * group, and with `at` of the codes of x. */
SIMD_FN void multiply_slice(enum spw_dtype t, const int rows, const u32v low[PIECE_REGISTERS],
                            const u32v high[HIGH_REGISTERS], size_t s, size_t first, size_t at,
                            const struct few_x *x, const i32v *scales, few_sums sums)
{
    const size_t part = is_small(t) ? 0 : 1 + first % SPW_CODES_HALF / part_of(t);
    const bool begins = !is_small(t) && first % part_of(t) == 0;
    const bool ends = !is_small(t) && (first + PIECE) % part_of(t) == 0;
#pragma GCC unroll 4
    for (size_t j = 0; j < PIECE_REGISTERS; j++) {
        const u32v w = codes_of_slice(t, low[j], s, high, first + 4 * j);
        EACH_FEW
        {
            const i32v sum = begins && j == 0 ? (i32v){0} : sums[r][part];
            const u32v of_x = simd_set1_bytes(codes_of_row(x, r)->codes + at + 4 * j);
            sums[r][part] = simd_dot(sum, w, of_x);
        }
    }
    if (ends)
        EACH_FEW sums[r][0] += scales[first / part_of(t)] * sums[r][part];
}

/* Pieces i .. end - 1 of the block at p, whose codes of x begin with `at`. */
SIMD_FN void multiply_pieces(enum spw_dtype t, const int rows, const struct packed *p, size_t i,
                             const size_t end, size_t at, const struct few_x *x, const i32v *scales,
                             u32v high[HIGH_REGISTERS], few_sums sums)
{
    const size_t n = pieces_of_block(t);
#pragma GCC unroll 8
    for (; i < end; i++) {
        u32v low[PIECE_REGISTERS];
        for (size_t part = FETCHES * i / n; !is_small(t) && part < FETCHES * (i + 1) / n; part++)
            fetch_streams(t, p, part);
        load_high(t, p, first_of_slice(t, i, 0), high);
        load_piece(t, p, i, low);
#pragma GCC unroll 4
        for (size_t s = 0; s < slices(t); s++)
            multiply_slice(t, rows, low, high, s, first_of_slice(t, i, s),
                           at + first_of_slice(t, i, s), x, scales, sums);
    }
}

/* Block b of the rows of W with each row of x. */
SIMD_FN void multiply_block(enum spw_dtype t, const int rows, const struct packed *p, unsigned b,
                            const struct few_x *x, i32v to[FEW_ROWS])
{
    const struct packed block = {p->at + b * block_bytes(t), p->stride, p->fours, 1};
    u32v high[HIGH_REGISTERS];
    few_sums sums;
    EACH_FEW sums[r][0] = (i32v){0};
    multiply_pieces(t, rows, &block, 0, pieces_of_block(t), b * SMALL, x, NULL, high, sums);
    EACH_FEW to[r] = sums[r][0];
}

/* Adds a group of the rows of W at p to a. */
SIMD_FN void multiply_large(enum spw_dtype t, const int rows, const struct packed *p,
                            const struct few_x *x, f32v a[FEW_ROWS])
{
    const int parts = SPW_CODES_GROUP / (int)part_of(t);
    const size_t n = pieces_of_block(t) / SPW_CODES_HALVES;
    struct scales w;
    u32v high[HIGH_REGISTERS];
    unpack_scales(t, p, &w);
    pair_scales(t, &w);
#pragma GCC unroll 2
    for (size_t half = 0; half < SPW_CODES_HALVES; half++) {
        few_sums sums;
        f32v to[FEW_ROWS];
        EACH_FEW sums[r][0] = (i32v){0};
        multiply_pieces(t, rows, p, half * n, (half + 1) * n, 0, x, w.parts, high, sums);
        EACH_FEW
        {
            i32v more = {0};
            if (has_minima(t) || code_offset(t))
                more = dot_with_sums(w.minima, codes_of_row(x, r), parts, (int)half);
            if (!has_minima(t))
                sums[r][0] += more;
            to[r] = simd_fused(w.d[0], simd_from_i32(sums[r][0]), simd_set1(0));
            if (has_minima(t))
                to[r] = simd_fused(w.m[0], simd_from_i32(more), to[r]);
        }
        add_half_of_few(rows, x, (unsigned)half, to, a);
    }
}

/* ---- rows of x ---- */

/* Codes of x are taken as they are. */
SIMD_FN size_t bytes_of_x(size_t groups)
{
    (void)groups;
    return 0;
}

static void order_x(const struct few *f)
{
    (void)f;
}

#endif
