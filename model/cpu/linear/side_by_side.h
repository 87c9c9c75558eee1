/* The fast product of quantized weights with a few rows of x: as many rows of W side by side as a
 * register has lanes.
 *
 * A task divides its part of W into as many pieces and walks a row of each. So a core reads long
 * streams, which its own prefetchers follow. A group of 256 numbers of these rows is unpacked once
 * for up to four rows of x, and multiplied: eight_rows.h, sixteen_rows.h. */
#ifndef SPW_MODEL_CPU_LINEAR_SIDE_BY_SIDE_H
#define SPW_MODEL_CPU_LINEAR_SIDE_BY_SIDE_H

#include "model/cpu/linear/columns.h"
#include "model/cpu/linear/linear.h"

#include <stdatomic.h>

enum {
    FEW_ROWS = SPW_LINEAR_FEW_ROWS, /* of x */
    FEW_SUMS = 4,                   /* rows of x whose sums registers hold */
    FEW_EDGE_BYTES = SIMD_LANES * 34 * SMALL_BLOCKS,
    PAGE = 4096,
    AHEAD = 512,    /* bytes from a group to what is fetched meanwhile */
    DISTANCE = 256, /* bytes: enough from stream to stream in a page */
    FETCHES = 8,    /* parts of the work on a group, each of which fetches */
};

struct few {
    const struct spw_linear_args *a;
    const struct spw_codes *codes; /* of rows of x, which are multiplied at once */
    size_t rows, groups, row_bytes;
    float *y;      /* [m][SPW_LINEAR_FEW_COLS] */
    void *of_x;    /* what order_x makes */
    uint8_t *edge; /* room for a group of the last rows of W */
};

/* A group of a few rows of x. */
struct few_x {
    const struct spw_codes *codes; /* of the first row */
    size_t groups;                 /* from row to row */
    const void *of_x;              /* what order_x has made */
    size_t group;
};

SIMD_FN const struct spw_codes *codes_of_row(const struct few_x *x, int r)
{
    return x->codes + (size_t)r * x->groups;
}

/* ---- fetches ---- */

/* The prefetchers of the core follow streams whose lines come in order (measured, SPEED.md). The
 * scales of some types are read first and lie last. So this asks for all lines of the group. */
SIMD_FN void fetch_group(enum spw_dtype t, const struct packed *p)
{
#pragma GCC unroll 8
    for (size_t l = 0; l < SIMD_LANES; l++)
#pragma GCC unroll 8
        for (size_t i = 0; i < group_bytes(t); i += LINE)
            __builtin_prefetch(p->at + l / 4 * p->fours + l % 4 * p->stride + i, 0, 3);
}

/* The prefetchers stop at the end of a page. So each part of the work on a group also asks for a
 * later group of one row or of two, which starts at p + AHEAD. */
SIMD_FN void fetch_row(enum spw_dtype t, const uint8_t *p)
{
#pragma GCC unroll 8
    for (size_t i = 0; i < group_bytes(t); i += LINE)
        __builtin_prefetch(p + AHEAD + i, 0, 3);
}

SIMD_FN void fetch_streams(enum spw_dtype t, const struct packed *p, size_t part)
{
#pragma GCC unroll 2
    for (size_t l = part; l < SIMD_LANES; l += FETCHES)
        fetch_row(t, p->at + l / 4 * p->fours + l % 4 * p->stride);
}

/* Each block of a row of x has the sum of its codes. With minima this sum is used times the scale.
 * Without minima it takes the offset of the codes of W out of the integer sum of products. */
union of_blocks {
    int32_t integers[SMALL_BLOCKS];
    float numbers[SMALL_BLOCKS];
};

SIMD_FN void sums_of_blocks(enum spw_dtype t, const struct spw_codes *x, union of_blocks *to)
{
    for (int b = 0; b < SMALL_BLOCKS; b++)
        if (has_minima(t))
            to->numbers[b] = x->block_scales[b] * (float)x->sums32[b];
        else
            to->integers[b] = -code_offset(t) * x->sums32[b];
}

/* a = fma(s, t, a) of quant/codes.h. */
SIMD_FN void add_half_of_few(const int rows, const struct few_x *x, unsigned half, f32v t[FEW_ROWS],
                             f32v a[FEW_ROWS])
{
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
        a[r] = simd_fused(simd_set1(codes_of_row(x, r)->scales[half]), t[r], a[r]);
}

#if SIMD_LANES == 16
#include "model/cpu/linear/sixteen_rows.h"
#else
#include "model/cpu/linear/eight_rows.h"
#endif

SIMD_FN size_t few_workspace(size_t k)
{
    return FEW_ROWS * SPW_LINEAR_FEW_COLS * sizeof(float) + FEW_EDGE_BYTES +
           bytes_of_x(spw_codes_groups(k));
}

/* ---- groups ---- */

SIMD_FN void multiply_small(enum spw_dtype t, const int rows, const struct packed *p,
                            const struct few_x *x, f32v a[FEW_ROWS])
{
    const unsigned blocks = (unsigned)p->blocks;
    union of_blocks of_x[FEW_ROWS];
    f32v to[FEW_ROWS] = {0};
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
        if (has_minima(t) || code_offset(t))
            sums_of_blocks(t, codes_of_row(x, r), &of_x[r]);
    for (unsigned b = 0; b < blocks; b++) {
        f32v d, m;
        i32v sums[FEW_ROWS];
        fetch_streams(t, p, b);
        multiply_block(t, rows, p, b, x, sums);
        atomic_signal_fence(memory_order_seq_cst); /* codes are read before scales: SPEED.md */
        unpack_small_scale(t, p, b, &d, &m);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            if (!has_minima(t) && code_offset(t))
                sums[r] += of_x[r].integers[b];
            const f32v scale = simd_set1(codes_of_row(x, r)->block_scales[b]);
            to[r] = simd_fused(d * scale, simd_from_i32(sums[r]), to[r]);
            if (has_minima(t))
                to[r] = simd_fused(m, simd_set1(of_x[r].numbers[b]), to[r]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
        a[r] += to[r];
}

/* ---- rows of W ---- */

/* Adds group g of rows first, first + step, ... of W to a. `n` of them exist. */
SIMD_FN void multiply_group(enum spw_dtype t, const int rows, const struct few *f, size_t first,
                            size_t step, size_t n, size_t g, f32v *a)
{
    const size_t begin = g * group_bytes(t);
    const size_t bytes = (size_t)spw_min_u64(f->row_bytes - begin, group_bytes(t));
    const struct few_x x = {f->codes + g, f->groups, f->of_x, g};
    struct packed p = {(const uint8_t *)f->a->w + first * f->row_bytes + begin, step * f->row_bytes,
                       4 * step * f->row_bytes, bytes / block_bytes(t)};
    if (n < SIMD_LANES)
        copy_edge(&p, n, bytes, f->edge);
    if (SIMD_LANES == 8) /* more streams than that take longer with it (SPEED.md) */
        fetch_group(t, &p);
    if (is_small(t))
        multiply_small(t, rows, &p, &x, a);
    else
        multiply_large(t, rows, &p, &x, a);
}

/* y of these rows: at y[at], y[at + step], ... */
SIMD_FN void run_streams(enum spw_dtype t, const int rows, const struct few *f, size_t first,
                         size_t step, size_t n, size_t at)
{
    f32v y[FEW_ROWS], a[FEW_ROWS];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
        y[r] = simd_set1(0);
    for (size_t partition = 0; partition < SPW_CODES_PARTITIONS; partition++) {
        const size_t end = spw_codes_partition(f->groups, partition + 1);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
            a[r] = simd_set1(0);
        for (size_t g = spw_codes_partition(f->groups, partition); g < end; g++)
            multiply_group(t, rows, f, first, step, n, g, a);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
            y[r] += a[r];
    }
    float lanes[SIMD_LANES];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        simd_store(lanes, y[r]);
        for (size_t l = 0; l < n; l++)
            f->y[(size_t)r * SPW_LINEAR_FEW_COLS + at + l * step] =
                lanes[l] == lanes[l] ? lanes[l] : NAN;
    }
}

SIMD_FN void run_sets(enum spw_dtype t, const struct few *f, size_t first, size_t step, size_t n,
                      size_t at)
{
    struct few set = *f;
    for (size_t row = 0; row < f->a->m; row += f->rows) {
        set.codes = f->codes + row * f->groups;
        set.rows = (size_t)spw_min_u64(f->rows, f->a->m - row);
        set.y = f->y + row * SPW_LINEAR_FEW_COLS;
        switch (set.rows) {
#define CASE(rows)                                                                                 \
    case rows:                                                                                     \
        run_streams(t, rows, &set, first, step, n, at);                                            \
        break
#if SIMD_LANES == 8
            CASE(1);
#endif
            CASE(2);
            CASE(3);
            CASE(4);
#undef CASE
        default:
            if (rows_at_once(t, FEW_ROWS) > FEW_SUMS)
                run_streams(t, (int)set.rows, &set, first, step, n, at);
        }
    }
}

/* The least distance of two of the streams within a page. Streams that are near each other
 * there use the same sets of the caches. */
static size_t distance_of_streams(size_t stride)
{
    size_t least = PAGE;
    for (size_t i = 1; i < SIMD_LANES; i++) {
        const size_t at = i * stride % PAGE;
        least = (size_t)spw_min_u64(least, spw_min_u64(at, PAGE - at));
    }
    return least;
}

/* Rows of W from one stream to the next, for n rows: the most, or up to a quarter less, so that
 * the streams are DISTANCE apart in a page. The rest of the rows needs new streams. */
static size_t best_step(size_t n, size_t row_bytes)
{
    const size_t most = n / SIMD_LANES;
    size_t best = most;
    for (size_t step = most; step > most - most / 4; step--) {
        if (distance_of_streams(best * row_bytes) >= DISTANCE)
            break;
        if (distance_of_streams(step * row_bytes) > distance_of_streams(best * row_bytes))
            best = step;
    }
    return best;
}

SIMD_FN void run_type(enum spw_dtype t, const struct few *f, size_t col, size_t n)
{
    size_t step;
    for (size_t at = 0; at < n; at += SIMD_LANES * step) {
        const size_t lanes = (size_t)spw_min_u64(n - at, SIMD_LANES);
        step = lanes < SIMD_LANES ? 1 : best_step(n - at, f->row_bytes);
        for (size_t i = 0; i < step; i++)
            run_sets(t, f, col + at + i, step, lanes, at + i);
    }
}

#define DEFINE(t, ...)                                                                             \
    SIMD_APART void run_##t(const struct few *f, size_t col, size_t n)                             \
    {                                                                                              \
        run_type(SPW_DTYPE_##t, f, col, n);                                                        \
    }
SPW_QUANTIZED_TYPES(DEFINE)
#undef DEFINE

static void run_few(const struct spw_linear_args *a, struct spw_linear_part part, uint8_t *space)
{
    struct few f = {.a = a,
                    .codes = a->codes,
                    .rows = rows_at_once(a->w_dtype, a->m),
                    .groups = spw_codes_groups(a->k),
                    .row_bytes = (size_t)spw_row_bytes(a->w_dtype, a->k),
                    .y = (float *)(void *)space};
    const size_t n = part.col_end - part.col;
    f.edge = (uint8_t *)(f.y + FEW_ROWS * SPW_LINEAR_FEW_COLS);
    f.of_x = f.edge + FEW_EDGE_BYTES;
    order_x(&f);
    switch (a->w_dtype) {
#define CASE(t, ...)                                                                               \
    case SPW_DTYPE_##t:                                                                            \
        run_##t(&f, part.col, n);                                                                  \
        break;
        SPW_QUANTIZED_TYPES(CASE)
#undef CASE
    default:
        break;
    }
    for (size_t r = 0; r < a->m; r++)
        spw_linear_store(a, r, part.col, f.y + r * SPW_LINEAR_FEW_COLS, n);
}

#endif
