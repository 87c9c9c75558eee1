/* The product for few rows of x (up to SPW_LINEAR_THIN_ROWS): all rows side by side, and a few
 * columns that lie far apart. Each column is read in the order of memory: the hardware prefetchers
 * follow several long streams best. (With neighbouring columns each stream would start anew at
 * every row of W.)
 *
 * Between two blocks of k the chains are kept in the workspace.
 *
 *   workspace of a worker = | block of x | chains, where k has several blocks | */
#ifndef SPW_MODEL_CPU_LINEAR_THIN_H
#define SPW_MODEL_CPU_LINEAR_THIN_H

#include "model/cpu/linear/chains.h"

enum {
    THIN_AHEAD_BYTES = 4096,
    THIN_UNFETCHED_ROWS = 2,   /* up to this number AMD's processors prefetch early enough */
    THIN_CHAINS = 4 * (6 + 1), /* in registers; sums are of four */
    THIN_X_BYTES = 24 << 10,   /* all rows' blocks stay in the L1 cache */
    THIN_X_ROOM = 4096 + THIN_X_BYTES, /* blocks are whole multiples of 64 channels */
    THIN_CHAIN_FLOATS = SPW_LINEAR_COL_BLOCK * SPW_LINEAR_THIN_ROWS * VEC_LANES,
};

static size_t thin_workspace(size_t k)
{
    const bool blocks = SPW_LINEAR_THIN_ROWS * k * sizeof(float) > THIN_X_BYTES;
    return THIN_X_ROOM + (blocks ? THIN_CHAIN_FLOATS * sizeof(float) : 0);
}

/* Columns that are read side by side: as many as their chains find registers. */
SIMD_FN int thin_streams(int rows)
{
    return rows <= TILE_ROWS ? TILE_COLS : rows <= 2 * TILE_ROWS ? TILE_COLS / 2 : 1;
}

/* One block of k of a few columns: col, col + apart, col + 2 apart, ... */
struct thin {
    const struct spw_linear_args *a;
    size_t block;        /* channels of a whole block */
    const struct vec *x; /* [steps][rows]: the block of x, as it is multiplied */
    size_t from, end;    /* the block's channels */
    size_t first;        /* the part's first column */
    size_t col, apart;
    ptrdiff_t ahead; /* bytes from the address that is read to the address that is prefetched */
    float *chains;   /* [apart][cols][rows][VEC_LANES], between two blocks */
    float *sums;     /* [rows][SPW_LINEAR_COL_BLOCK], of the part's columns, after the last block */
    bool fetches;    /* however few rows; see THIN_UNFETCHED_ROWS */
};

/* All rows of a block of x stay in the L1 cache. */
static size_t thin_block(const struct spw_linear_args *a, enum kind kind)
{
    const uint64_t x_bytes = a->m * a->k * sizeof(struct vec) / step_channels(kind);
    const uint64_t n_blocks = spw_div_up(x_bytes, THIN_X_BYTES);
    return (size_t)spw_align_up(spw_div_up(a->k, spw_max_u64(n_blocks, 1)), 64);
}

SIMD_FN void thin_step(enum kind kind, int rows, int cols, const struct vec *x,
                       const char *const *w, size_t at, size_t part, struct vec *acc)
{
    struct vec loaded[TILE_COLS];
#pragma GCC unroll 4
    for (int c = 0; c < cols; c++)
        loaded[c] = load(kind, w_dtype(kind), w[c] + at, part);
#pragma GCC unroll 10
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int c = 0; c < cols; c++)
            acc[r * cols + c] = multiply_add(kind, acc[r * cols + c], x[r], loaded[c]);
}

SIMD_FN void thin_columns(enum kind kind, int rows, int cols, const struct thin *t)
{
    const struct spw_linear_args *a = t->a;
    const size_t step = step_channels(kind), bytes = spw_dtype_bytes(w_dtype(kind));
    const char *w[TILE_COLS];
    struct vec acc[THIN_CHAINS];
    float out[THIN_CHAINS];
    const struct vec *x = t->x;
    size_t i = t->from;
#pragma GCC unroll 4
    for (int c = 0; c < cols; c++)
        w[c] = (const char *)a->w + (t->col + (size_t)c * t->apart) * a->k * bytes;
#pragma GCC unroll 28
    for (int j = 0; j < THIN_CHAINS; j++)
        acc[j] =
            t->from == 0 || j >= rows * cols ? vec_set1(0) : vec_load(t->chains + j * VEC_LANES);
    /* Each step fetches the cache line of the step's first byte. If W does not begin at a cache
     * line, the last step reads one line more: fetch that line too. */
    if (rows > THIN_UNFETCHED_ROWS || t->fetches)
#pragma GCC unroll 4
        for (int c = 0; c < cols; c++)
            __builtin_prefetch(w[c] + (ptrdiff_t)(t->end * bytes) - 1 + t->ahead, 0, 2);
    for (; i + step <= t->end; i += step, x += rows) {
        if (rows > THIN_UNFETCHED_ROWS || t->fetches)
#pragma GCC unroll 4
            for (int c = 0; c < cols; c++)
                __builtin_prefetch(w[c] + (ptrdiff_t)(i * bytes) + t->ahead, 0, 2);
        thin_step(kind, rows, cols, x, w, i * bytes, 0, acc);
    }
    if (t->end < a->k) {
#pragma GCC unroll 28
        for (int j = 0; j < rows * cols; j++)
            vec_store(t->chains + j * VEC_LANES, acc[j]);
        return;
    }
    if (i < t->end)
        thin_step(kind, rows, cols, x, w, i * bytes, t->end - i, acc);
#pragma GCC unroll 7
    for (int j = 0; j < rows * cols; j += 4)
        vec_sums(acc[j], acc[j + 1], acc[j + 2], acc[j + 3], out + j);
    float *sums = t->sums + (t->col - t->first);
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < cols; c++)
            sums[(size_t)r * SPW_LINEAR_COL_BLOCK + (size_t)c * t->apart] = out[r * cols + c];
}

/* Packs the block of x from channel `from` on: step by step, all rows of a step adjacent, zeros
 * after the last channel. Rows of x are often a power of two apart, which is one set of an L1
 * cache. */
SIMD_FN void thin_pack(enum kind kind, size_t rows, const struct thin *t, struct vec *to)
{
    const struct spw_linear_args *a = t->a;
    const size_t step = step_channels(kind), bytes = spw_dtype_bytes(x_dtype(kind));
    for (size_t i = t->from; i < t->end; i += step)
        for (size_t r = 0; r < rows; r++) {
            const char *p = (const char *)a->x + (r * a->x_stride + i) * bytes;
            *to++ = load(kind, x_dtype(kind), p, i + step <= t->end ? 0 : t->end - i);
        }
}

/* The distance from the block of column `at`, of a stream of n columns, to the bytes that the
 * stream reads THIN_AHEAD_BYTES or more later. */
static ptrdiff_t thin_ahead(enum kind kind, const struct thin *t, size_t at)
{
    const size_t n = t->apart, block = t->block * spw_dtype_bytes(w_dtype(kind)),
                 column = t->a->k * spw_dtype_bytes(w_dtype(kind));
    if (block >= column)
        return THIN_AHEAD_BYTES;
    const size_t more = (size_t)spw_div_up(THIN_AHEAD_BYTES, block);
    if (at + more < n)
        return (ptrdiff_t)(more * column);
    return (ptrdiff_t)(more * column + block) - (ptrdiff_t)(n * column); /* the next block's */
}

SIMD_FN void thin_streams_run(enum kind kind, int rows, int cols, struct thin *t, size_t n)
{
    t->apart = n;
    for (size_t i = 0; i < n; i++, t->col++, t->chains += rows * cols * VEC_LANES) {
        t->ahead = thin_ahead(kind, t, i);
        thin_columns(kind, rows, cols, t);
    }
    t->col += n * (size_t)(cols - 1);
}

/* Each of a few streams has a part of the columns. The columns left over go one by one. Sums
 * are collected first: rounding and storing a whole row at once is faster. */
SIMD_FN void thin_rows(enum kind kind, int rows, const struct work *w)
{
    const int cols = thin_streams(rows);
    const size_t n = w->part.col_end - w->part.col;
    float sums[SPW_LINEAR_THIN_ROWS * SPW_LINEAR_COL_BLOCK];
    struct vec *x = (struct vec *)w->workspace;
    struct thin t = {.a = w->a,
                     .block = thin_block(w->a, kind),
                     .x = x,
                     .first = w->part.col,
                     .sums = sums,
                     .fetches = w->is_intel};
    do {
        t.end = (size_t)spw_min_u64(t.from + t.block, w->a->k);
        t.col = t.first;
        t.chains = w->workspace + THIN_X_ROOM / sizeof(float);
        thin_pack(kind, (size_t)rows, &t, x);
        thin_streams_run(kind, rows, cols, &t, n / (size_t)cols);
        if (cols > 1)
            thin_streams_run(kind, rows, 1, &t, w->part.col_end - t.col);
        t.from = t.end;
    } while (t.from < w->a->k);
    for (size_t r = 0; r < (size_t)rows; r++)
        spw_linear_store(w->a, r, t.first, sums + r * SPW_LINEAR_COL_BLOCK, n);
}

SIMD_FN void thin_kind(enum kind kind, const struct work *w)
{
    switch (w->a->m) {
#define CASE(r)                                                                                    \
    case r:                                                                                        \
        thin_rows(kind, r, w);                                                                     \
        break
        CASE(1);
        CASE(2);
        CASE(3);
        CASE(4);
        CASE(5);
        CASE(6);
        CASE(7);
        CASE(8);
        CASE(9);
        CASE(10);
#undef CASE
    }
}

static void run_thin(const struct work *w)
{
    switch (w->kind) {
    case KIND_F32:
        thin_kind(KIND_F32, w);
        break;
    case KIND_F32_F16:
        thin_kind(KIND_F32_F16, w);
        break;
    case KIND_F32_BF16:
        thin_kind(KIND_F32_BF16, w);
        break;
    case KIND_BF16:
        thin_kind(KIND_BF16, w);
        break;
    }
}

#endif
