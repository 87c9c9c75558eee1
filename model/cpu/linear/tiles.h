/* The product for many rows of x.
 *
 * For a panel of columns, for a tile of rows, for a block of k, for the columns of the panel. The
 * block of x stays in the L1 cache, the panel in the L2. The next panel, or the next block of x, is
 * prefetched meanwhile.
 *
 * Operands that are not f32 become f32 in the workspace, W once for all rows of a task, x once for
 * the columns of a panel. So the loop of the products converts nothing. For many rows W in f32 is
 * copied there, too: in files it begins anywhere in a line of the cache, and its columns are often
 * a power of two apart (1.05 to 1.1 x on Zen 3). Where the dot product of
 * bf16 is fast, bf16 is multiplied as it lies in memory. Intel's processors take two cycles for a
 * dot product, and half a cycle for a multiply-add of f32, so they take two of these, with the same
 * bits: first the odd channels of a vector, then the even ones, with subnormal numbers as zeros.
 *
 *   workspace of a worker = | chains of one tile of rows | block of x | panel of W | */
#ifndef SPW_MODEL_CPU_LINEAR_TILES_H
#define SPW_MODEL_CPU_LINEAR_TILES_H

#include "model/cpu/linear/chains.h"

enum {
    BLOCK_BYTES = 4096, /* of a row of x: TILE_ROWS of them are half an L1 cache */
    FEW_ROWS = 64,      /* up to this number x is small next to a part of W ... */
    FEW_PANEL = 32,     /* ... and a narrow panel starts sooner on fetching the next */
    MOST_PANEL = 64,
    WORK_TILES = MOST_PANEL / TILE_COLS + 2, /* the last columns may go one by one */
    CHAIN_FLOATS = TILE_ROWS * TILE_COLS * VEC_LANES,
    LINE_STEPS = 64 / sizeof(struct vec), /* steps of f32 that read a line of the cache */
    ROW_PAD = 16, /* floats between rows: a stride of a power of two is one set of a cache */
    WIDE_BLOCK = BLOCK_BYTES / sizeof(float),
    WIDE_PANEL_BYTES = 256 << 10, /* half of a small L2 */
};

/* Floats of a row of a widened block of x. */
static size_t wide_x_stride(size_t k)
{
    return (size_t)spw_min_u64(spw_align_up(k, 2 * VEC_LANES), WIDE_BLOCK) + ROW_PAD;
}

/* Floats of a row of a widened panel. */
static size_t wide_stride(size_t k)
{
    return (size_t)spw_align_up(k, 2 * VEC_LANES) + ROW_PAD;
}

/* Columns of a widened panel. */
static size_t wide_panel(size_t k)
{
    const size_t cols = WIDE_PANEL_BYTES / sizeof(float) / (k ? k : 1) / TILE_COLS * TILE_COLS;
    return cols < 2 * TILE_COLS ? 2 * TILE_COLS : (size_t)spw_min_u64(cols, MOST_PANEL);
}

static size_t tiled_workspace(size_t k)
{
    const size_t floats =
        WORK_TILES * CHAIN_FLOATS + TILE_ROWS * wide_x_stride(k) + wide_panel(k) * wide_stride(k);
    return (size_t)spw_align_up(floats * sizeof(float), 64);
}

/* ---- a tile ---- */

/* One block of k of one tile. */
struct tile {
    const char *x, *w;       /* first row, first column, at the block's first channel */
    size_t x_bytes, w_bytes; /* from row to row */
    size_t k;                /* channels of this block */
    const char *ahead[2];    /* two rows to prefetch, of x or W; or the first row of x */
    size_t ahead_bytes;      /* of a channel of them */
    float *chains;           /* [TILE_ROWS][TILE_COLS][VEC_LANES] */
    bool first;              /* the chains begin here */
};

/* xp, wp: the channels of the step in the first row and column. */
SIMD_FN void tile_step(enum kind kind, int rows, const struct tile *t, const char *xp,
                       const char *wp, size_t part, struct vec acc[TILE_ROWS][TILE_COLS])
{
    struct vec x[TILE_ROWS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
        x[r] = load(kind, x_dtype(kind), xp + (size_t)r * t->x_bytes, part);
#pragma GCC unroll 8
    for (int c = 0; c < TILE_COLS; c++) {
        struct vec w = load(kind, w_dtype(kind), wp + (size_t)c * t->w_bytes, part);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
            acc[r][c] = multiply_add(kind, acc[r][c], x[r], w);
    }
}

SIMD_FN void tile_run(enum kind kind, int rows, const struct tile *args)
{
    const struct tile copy = *args, *t = &copy; /* stays in registers */
    const size_t step = step_channels(kind), x_step = step * spw_dtype_bytes(x_dtype(kind)),
                 w_step = step * spw_dtype_bytes(w_dtype(kind));
    const char *x = t->x, *w = t->w, *ahead[] = {t->ahead[0], t->ahead[1]};
    struct vec acc[TILE_ROWS][TILE_COLS];
    size_t left = t->k;
#pragma GCC unroll 8
    for (int r = 0; r < TILE_ROWS; r++)
#pragma GCC unroll 8
        for (int c = 0; c < TILE_COLS; c++)
            acc[r][c] = t->first || r >= rows
                            ? vec_set1(0)
                            : vec_load(t->chains + (r * TILE_COLS + c) * VEC_LANES);
    for (; left >= LINE_STEPS * step; left -= LINE_STEPS * step) {
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++, ahead[i - 1] += LINE_STEPS * step * t->ahead_bytes)
            __builtin_prefetch(ahead[i], 0, 2);
#pragma GCC unroll 2
        for (int i = 0; i < LINE_STEPS; i++, x += x_step, w += w_step)
            tile_step(kind, rows, t, x, w, 0, acc);
    }
    for (; left >= step; left -= step, x += x_step, w += w_step)
        tile_step(kind, rows, t, x, w, 0, acc);
    if (left)
        tile_step(kind, rows, t, x, w, left, acc);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int c = 0; c < TILE_COLS; c++)
            vec_store(t->chains + (r * TILE_COLS + c) * VEC_LANES, acc[r][c]);
}

SIMD_FN void tile_rows(enum kind kind, size_t rows, const struct tile *t)
{
    switch (rows) {
#define CASE(r)                                                                                    \
    case r:                                                                                        \
        tile_run(kind, r, t);                                                                      \
        break
        CASE(1);
        CASE(2);
#if TILE_ROWS > 2
        CASE(3);
#endif
#if TILE_ROWS > 3
        CASE(4);
        CASE(5);
        CASE(6);
#endif
#undef CASE
    }
}

/* Not inlined: the products stay between the changes of mode in run_block. */
SIMD_APART void tile_kind(enum kind kind, size_t rows, const struct tile *t)
{
    if (takes_pairs(kind))
        tile_rows(KIND_BF16, rows, t);
    else
        tile_rows(KIND_F32, rows, t);
}

/* ---- operands ---- */

struct tiled {
    const struct spw_linear_args *a;
    struct spw_linear_part part;
    enum kind kind;
    bool wide_x, wide_w; /* lie as f32 in the workspace */
    size_t block;        /* of k, channels */
    size_t panel;        /* columns */
    float *chains;       /* [tiles of a panel][CHAIN_FLOATS] */
    float *x;            /* [TILE_ROWS][wide_x_stride(k)] */
    float *w;            /* [panel][wide_stride(k)] */
};

static struct tiled tiled_of(const struct work *w)
{
    const struct spw_linear_args *a = w->a;
    const bool widens = !takes_pairs(w->kind) || w->is_intel;
    struct tiled t = {
        .a = a,
        .part = w->part,
        .kind = w->kind,
        .wide_x = widens && a->x_dtype != SPW_DTYPE_F32,
        .wide_w = widens && (a->w_dtype != SPW_DTYPE_F32 || a->m > FEW_ROWS),
        .block = BLOCK_BYTES / (widens ? sizeof(float) : spw_dtype_bytes(a->x_dtype)),
        .panel = a->m <= FEW_ROWS ? FEW_PANEL : MOST_PANEL,
        .chains = w->workspace,
        .x = w->workspace + WORK_TILES * CHAIN_FLOATS,
    };
    t.w = t.x + TILE_ROWS * wide_x_stride(a->k);
    if (t.wide_w)
        t.panel = (size_t)spw_min_u64(t.panel, wide_panel(a->k));
    return t;
}

SIMD_FN void widen_step(enum kind kind, enum spw_dtype t, const char *from, float *to)
{
    if (takes_pairs(kind)) {
        struct vec even, odd;
        vec_load_pairs_as(from, &even, &odd, t);
        vec_store(to, odd);
        vec_store(to + VEC_LANES, even);
    } else {
        vec_store(to, vec_load_full_as(from, t));
    }
}

/* n channels in f32 and zeros up to a whole step, in the order of the products. */
SIMD_FN void widen(enum kind kind, enum spw_dtype t, const char *from, size_t n, float *to)
{
    const size_t step = step_channels(kind), bytes = spw_dtype_bytes(t);
    size_t i = 0;
#pragma GCC unroll 4
    for (; i + step <= n; i += step)
        widen_step(kind, t, from + i * bytes, to + i);
    if (i < n) {
        char full[SIMD_PART_BYTES];
        widen_step(kind, t, simd_copy_part(full, from + i * bytes, (n - i) * bytes), to + i);
    }
}

SIMD_APART void widen_bf16(enum kind kind, const char *from, size_t n, float *to)
{
    if (takes_pairs(kind))
        widen(KIND_BF16, SPW_DTYPE_BF16, from, n, to);
    else
        widen(KIND_F32, SPW_DTYPE_BF16, from, n, to);
}

SIMD_APART void widen_f16(const char *from, size_t n, float *to)
{
    widen(KIND_F32, SPW_DTYPE_F16, from, n, to);
}

SIMD_APART void widen_f32(const char *from, size_t n, float *to)
{
    widen(KIND_F32, SPW_DTYPE_F32, from, n, to);
}

static void widen_column(const struct tiled *t, const char *from, float *to)
{
    const struct spw_linear_args *a = t->a;
    if (a->w_dtype == SPW_DTYPE_BF16)
        widen_bf16(t->kind, from, a->k, to);
    else if (a->w_dtype == SPW_DTYPE_F16)
        widen_f16(from, a->k, to);
    else if (a->w_dtype == SPW_DTYPE_F32)
        widen_f32(from, a->k, to);
    else
        spw_type_read(a->w_dtype, from, 0, a->k, to);
}

static void widen_rows(const struct tiled *t, size_t row, size_t rows, size_t k, size_t n)
{
    const struct spw_linear_args *a = t->a;
    const uint16_t *from = (const uint16_t *)a->x + row * a->x_stride + k;
    for (size_t r = 0; r < rows; r++)
        widen_bf16(t->kind, (const char *)(from + r * a->x_stride), n,
                   t->x + r * wide_x_stride(a->k));
}

/* ---- a task ---- */

/* Chooses what the tile prefetches: the first row tiles of a panel fetch the next panel of W, one
 * or two of its rows beside each tile (one is 1.07 to 1.10 x as fast for 32 rows, Zen 3); the first
 * columns of later row tiles fetch the next block of x. */
static void fetch_ahead(const struct tiled *t, size_t row, size_t col, size_t k, size_t slot,
                        struct tile *tile)
{
    const struct spw_linear_args *a = t->a;
    const size_t pass = (row - t->part.row) / TILE_ROWS, next_k = k + t->block;
    const size_t each = t->part.row_end - t->part.row < TILE_COLS * TILE_ROWS ? 2 : 1;
    size_t row_bytes;
    if (pass * each < TILE_COLS && col + t->panel + TILE_COLS <= t->part.col_end) {
        tile->ahead_bytes = spw_dtype_bytes(a->w_dtype); /* 0 for quantized weights */
        row_bytes = (size_t)spw_row_bytes(a->w_dtype, a->k);
        tile->ahead[0] =
            (const char *)a->w + (col + t->panel + each * pass) * row_bytes + k * tile->ahead_bytes;
        row_bytes *= each - 1;
    } else if (2 * slot + 1 < TILE_ROWS && row + 2 * TILE_ROWS <= t->part.row_end) {
        const size_t next_row = next_k < a->k ? row : row + TILE_ROWS;
        tile->ahead_bytes = spw_dtype_bytes(a->x_dtype);
        row_bytes = a->x_stride * tile->ahead_bytes;
        tile->ahead[0] = (const char *)a->x + (next_row + 2 * slot) * row_bytes +
                         (next_k < a->k ? next_k : 0) * tile->ahead_bytes;
    } else {
        return;
    }
    tile->ahead[1] = tile->ahead[0] + row_bytes;
}

static size_t slot_of(size_t panel, size_t col)
{
    return (col - panel) / TILE_COLS + (col - panel) % TILE_COLS;
}

/* One block of k of the tile at (row, col) of the panel that begins at `panel`. */
static void run_tile(const struct tiled *t, size_t panel, size_t row, size_t rows, size_t col,
                     size_t cols, size_t k)
{
    const struct spw_linear_args *a = t->a;
    const size_t slot = slot_of(panel, col);
    const size_t x_bytes = spw_dtype_bytes(a->x_dtype);
    struct tile tile = {
        .x = (const char *)a->x + (row * a->x_stride + k) * x_bytes,
        .x_bytes = a->x_stride * x_bytes,
        .k = (size_t)spw_min_u64(t->block, a->k - k),
        .chains = t->chains + slot * CHAIN_FLOATS,
        .ahead = {a->x, a->x},
        .first = k == 0,
    };
    if (t->wide_x) {
        tile.x = (const char *)t->x;
        tile.x_bytes = wide_x_stride(a->k) * sizeof(float);
        tile.k = (size_t)spw_align_up(tile.k, step_channels(t->kind));
    }
    if (t->wide_w) {
        tile.w = (const char *)(t->w + (col - panel) * wide_stride(a->k) + k);
        tile.w_bytes = wide_stride(a->k) * sizeof(float);
    } else {
        const size_t w_bytes = spw_dtype_bytes(a->w_dtype);
        tile.w = (const char *)a->w + (col * a->k + k) * w_bytes;
        tile.w_bytes = a->k * w_bytes;
    }
    /* Up to three columns left over go one by one, as four times the same. */
    if (cols < TILE_COLS)
        tile.w_bytes = 0;
    else
        fetch_ahead(t, row, col, k, slot, &tile);
    tile_kind(t->wide_w ? KIND_F32 : t->kind, rows, &tile);
}

static void store_tile(const struct tiled *t, size_t panel, size_t row, size_t rows, size_t col,
                       size_t cols)
{
    const float *chains = t->chains + slot_of(panel, col) * CHAIN_FLOATS;
    for (size_t r = 0; r < rows; r++, chains += TILE_COLS * VEC_LANES) {
        float out[TILE_COLS];
        vec_sums(vec_load(chains), vec_load(chains + VEC_LANES), vec_load(chains + 2 * VEC_LANES),
                 vec_load(chains + 3 * VEC_LANES), out);
        if (cols == TILE_COLS)
            spw_linear_store(t->a, row + r, col, out, TILE_COLS);
        else
            spw_linear_store(t->a, row + r, col, out, cols);
    }
}

static size_t next_cols(size_t left)
{
    return left < TILE_COLS ? 1 : TILE_COLS;
}

/* One block of k of a tile of rows and all columns of a panel. */
static void run_block(const struct tiled *t, size_t panel, size_t panel_end, size_t row,
                      size_t rows, size_t k)
{
    size_t cols;
#if SIMD_DOT_BF16
    const bool as_dot = takes_pairs(t->kind) && t->wide_x;
    const unsigned mode = as_dot ? simd_flush_subnormals() : 0;
#endif
    for (size_t col = panel; col < panel_end; col += cols) {
        cols = next_cols(panel_end - col);
        run_tile(t, panel, row, rows, col, cols, k);
    }
#if SIMD_DOT_BF16
    if (as_dot)
        simd_restore_mode(mode);
#endif
}

static void run_panel(const struct tiled *t, size_t panel, size_t panel_end)
{
    const struct spw_linear_args *a = t->a;
    size_t rows, cols, k;
    if (t->wide_w)
        for (size_t col = panel; col < panel_end; col++)
            widen_column(t, (const char *)a->w + col * (size_t)spw_row_bytes(a->w_dtype, a->k),
                         t->w + (col - panel) * wide_stride(a->k));
    for (size_t row = t->part.row; row < t->part.row_end; row += rows) {
        rows = spw_linear_next_rows(t->part.row_end - row, TILE_ROWS);
        k = 0;
        do {
            if (t->wide_x)
                widen_rows(t, row, rows, k, (size_t)spw_min_u64(t->block, a->k - k));
            run_block(t, panel, panel_end, row, rows, k);
            k += t->block;
        } while (k < a->k);
        for (size_t col = panel; col < panel_end; col += cols) {
            cols = next_cols(panel_end - col);
            store_tile(t, panel, row, rows, col, cols);
        }
    }
}

static void run_tiled(const struct work *w)
{
    const struct tiled t = tiled_of(w);
    for (size_t col = t.part.col; col < t.part.col_end; col += t.panel)
        run_panel(&t, col, (size_t)spw_min_u64(col + t.panel, t.part.col_end));
}

#endif
