/* The linear kernel over register tiles, written once and compiled once per instruction set.
 *
 * Each output y[row][col] is ONE chain of vector accumulators along k: lane l adds the products of
 * channels l, l + LANES, l + 2 LANES, ... in that order, and at the end the lanes are added in a
 * fixed tree, then the bias. The tile only says how many such chains run side by side (to share
 * loads and to hide the latency of a multiply-add), so that neither it nor the number of rows nor
 * the cut into tasks can show in a result. A partial last vector is loaded with zeros behind it.
 *
 * Along k the work is cut into blocks whose x tile stays in the L1 cache; between two blocks a
 * chain waits in the workspace, as it is.
 *
 *   many rows:  for a tile of rows, for a block of k, for all columns of the task   (W in the L2)
 *   few rows:   for a tile of columns, for a block of k, for all rows    (W from memory, once)
 *
 * The including file (model/ops_cpu_linear_<isa>.c) defines first:
 *   ISA                            the last part of the public names
 *   LANES, TILE_ROWS, TILE_COLS    TILE_COLS is 4; f32 lanes of a `vec`
 *   vec, raw                       accumulator; LANES f32, or one register of 16-bit channels
 *   raw_channels(kind)             channels in a raw
 *   load_x, load_w(kind, p), load_x_part, load_w_part(kind, p, count)
 *   multiply_add(kind, acc, x, w), vec_zero(), vec_load(p), vec_store(p, v)
 *   vec_sums(a, b, c, d, out)      the four sums over lanes */
#include "model/ops_cpu_kernels.h"
#include "model/ops_cpu_linear.h"

#include <string.h>

/* How many bytes of k one x tile may take: TILE_ROWS rows of it in half an L1 cache. */
enum {
    BLOCK_BYTES = 4096,
    WORK_TILES = SPW_LINEAR_COL_BLOCK / TILE_COLS,
    CHAIN_FLOATS = TILE_ROWS * TILE_COLS * LANES,
};
_Static_assert(SPW_LINEAR_FEW_ROWS / TILE_ROWS <= WORK_TILES, "few rows wait in the workspace too");

/* One block of k of one tile. */
struct tile {
    const char *x, *w;       /* first row, first column, at the block's first channel */
    size_t x_bytes, w_bytes; /* from row to row */
    size_t k;                /* channels of this block */
    const char *ahead;       /* W that will be wanted soon, laid out like w; or NULL */
    float *chains;           /* [TILE_ROWS][TILE_COLS][LANES], between two blocks */
    float (*out)[TILE_COLS]; /* [TILE_ROWS], after the last one */
    bool first, last;
};

ALWAYS_INLINE void tile_step(enum kind kind, int rows, int cols, const struct tile *t, size_t i,
                             size_t part, vec acc[TILE_ROWS][TILE_COLS])
{
    raw x[TILE_ROWS];
    const char *xp = t->x + i * kind_x_bytes(kind), *wp = t->w + i * kind_w_bytes(kind);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        const char *p = xp + (size_t)r * t->x_bytes;
        x[r] = part ? load_x_part(kind, p, part) : load_x(kind, p);
    }
#pragma GCC unroll 8
    for (int c = 0; c < cols; c++) {
        const char *p = wp + (size_t)c * t->w_bytes;
        raw w = part ? load_w_part(kind, p, part) : load_w(kind, p);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
            acc[r][c] = multiply_add(kind, acc[r][c], x[r], w);
    }
}

ALWAYS_INLINE void tile_run(enum kind kind, int rows, int cols, const struct tile *t)
{
    const size_t step = raw_channels(kind);
    vec acc[TILE_ROWS][TILE_COLS];
#pragma GCC unroll 8
    for (int r = 0; r < TILE_ROWS; r++)
#pragma GCC unroll 8
        for (int c = 0; c < TILE_COLS; c++)
            acc[r][c] = t->first || r >= rows || c >= cols
                            ? vec_zero()
                            : vec_load(t->chains + (r * TILE_COLS + c) * LANES);
    size_t i = 0;
    if (t->ahead) {
        for (; i + step <= t->k; i += step) {
#pragma GCC unroll 8
            for (int c = 0; c < cols; c++)
                __builtin_prefetch(t->ahead + (size_t)c * t->w_bytes + i * kind_w_bytes(kind));
            tile_step(kind, rows, cols, t, i, 0, acc);
        }
    } else {
        for (; i + step <= t->k; i += step)
            tile_step(kind, rows, cols, t, i, 0, acc);
    }
    if (i < t->k)
        tile_step(kind, rows, cols, t, i, t->k - i, acc);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        if (t->last)
            vec_sums(acc[r][0], acc[r][1], acc[r][2], acc[r][3], t->out[r]);
        else
#pragma GCC unroll 8
            for (int c = 0; c < cols; c++)
                vec_store(t->chains + (r * TILE_COLS + c) * LANES, acc[r][c]);
    }
}

ALWAYS_INLINE void tile_rows(enum kind kind, size_t rows, size_t cols, const struct tile *t)
{
    /* Columns are left over once in a call, if at all: they go one by one. */
    switch (rows * 2 + (cols == TILE_COLS)) {
#define CASE(r)                                                                                    \
    case 2 * (r):                                                                                  \
        tile_run(kind, r, 1, t);                                                                   \
        break;                                                                                     \
    case 2 * (r) + 1:                                                                              \
        tile_run(kind, r, TILE_COLS, t);                                                           \
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

static void tile_kind(enum kind kind, size_t rows, size_t cols, const struct tile *t)
{
    switch (kind) {
    case KIND_F32:
        tile_rows(KIND_F32, rows, cols, t);
        break;
    case KIND_F32_F16:
        tile_rows(KIND_F32_F16, rows, cols, t);
        break;
    case KIND_F32_BF16:
        tile_rows(KIND_F32_BF16, rows, cols, t);
        break;
    case KIND_BF16:
        tile_rows(KIND_BF16, rows, cols, t);
        break;
    }
}

static void store_tile(const struct spw_linear_args *a, size_t row, size_t rows, size_t col,
                       size_t cols, float (*out)[TILE_COLS])
{
    const size_t bytes = spw_dtype_bytes(a->y_dtype);
    for (size_t r = 0; r < rows; r++) {
        char *y = (char *)a->y + ((row + r) * a->y_stride + col) * bytes;
        if (cols == TILE_COLS)
            spw_linear_store(y, a->y_dtype, out[r], a->bias ? a->bias + col : NULL, TILE_COLS);
        else
            spw_linear_store(y, a->y_dtype, out[r], a->bias ? a->bias + col : NULL, cols);
    }
}

/* What one task's tiles have in common. */
struct work {
    const struct spw_linear_args *a;
    struct spw_linear_part part;
    enum kind kind;
    float *chains; /* one per tile that waits */
    size_t block;  /* channels */
};

/* One block of k of the tile at (row, col); `slot` is where its chains wait. */
static void work_tile(const struct work *w, size_t row, size_t rows, size_t col, size_t cols,
                      size_t k, size_t slot, bool prefetch)
{
    const struct spw_linear_args *a = w->a;
    const size_t x_bytes = kind_x_bytes(w->kind), w_bytes = kind_w_bytes(w->kind);
    float out[TILE_ROWS][TILE_COLS];
    struct tile t = {
        .x = (const char *)a->x + (row * a->x_stride + k) * x_bytes,
        .w = (const char *)a->w + (col * a->k + k) * w_bytes,
        .x_bytes = a->x_stride * x_bytes,
        .w_bytes = a->k * w_bytes,
        .k = (size_t)spw_min_u64(w->block, a->k - k),
        /* Up to three columns left over share a slot, side by side. */
        .chains = w->chains + slot * CHAIN_FLOATS + (col - w->part.col) % TILE_COLS * LANES,
        .out = out,
        .first = k == 0,
    };
    t.last = k + t.k == a->k;
    if (prefetch)
        t.ahead = t.w + TILE_COLS * t.w_bytes;
    tile_kind(w->kind, rows, cols, &t);
    if (t.last)
        store_tile(a, row, rows, col, cols, out);
}

/* Rows of the next tile: the last two share what is left, so that neither is too thin to hide the
 * latency of its chains. */
static size_t next_rows(size_t left)
{
    return left <= TILE_ROWS ? left : left < 2 * TILE_ROWS ? (left + 1) / 2 : TILE_ROWS;
}

static size_t next_cols(size_t left)
{
    return left < TILE_COLS ? 1 : TILE_COLS;
}

static void run_many_rows(const struct work *w)
{
    const struct spw_linear_part *p = &w->part;
    size_t rows, cols, k;
    for (size_t row = p->row; row < p->row_end; row += rows) {
        rows = next_rows(p->row_end - row);
        k = 0;
        do {
            for (size_t col = p->col; col < p->col_end; col += cols) {
                cols = next_cols(p->col_end - col);
                work_tile(w, row, rows, col, cols, k, (col - p->col) / TILE_COLS, false);
            }
            k += w->block;
        } while (k < w->a->k);
    }
}

static void run_few_rows(const struct work *w)
{
    const struct spw_linear_part *p = &w->part;
    size_t rows, cols, k;
    for (size_t col = p->col; col < p->col_end; col += cols) {
        cols = next_cols(p->col_end - col);
        k = 0;
        do {
            size_t slot = 0;
            for (size_t row = p->row; row < p->row_end; row += rows) {
                rows = next_rows(p->row_end - row);
                work_tile(w, row, rows, col, cols, k, slot++,
                          row == p->row && col + 2 * TILE_COLS <= p->col_end);
            }
            k += w->block;
        } while (k < w->a->k);
    }
}

static enum kind kind_of(const struct spw_linear_args *a)
{
    if (a->x_dtype == SPW_DTYPE_BF16)
        return KIND_BF16;
    return a->w_dtype == SPW_DTYPE_BF16  ? KIND_F32_BF16
           : a->w_dtype == SPW_DTYPE_F16 ? KIND_F32_F16
                                         : KIND_F32;
}

#define NAME_(base, isa) base##_##isa
#define NAME(base, isa) NAME_(base, isa)

size_t NAME(spw_linear_workspace, ISA)(size_t k)
{
    (void)k;
    return WORK_TILES * CHAIN_FLOATS * sizeof(float);
}

static void run(const void *args, size_t task, unsigned worker)
{
    const struct spw_linear_args *a = args;
    const size_t workspace = NAME(spw_linear_workspace, ISA)(a->k);
    struct work w = {
        .a = a,
        .part = spw_linear_part(a, task),
        .kind = kind_of(a),
        .chains = (float *)a->workspace + workspace / sizeof(float) * worker,
    };
    w.block = BLOCK_BYTES / kind_x_bytes(w.kind);
    if (a->m <= SPW_LINEAR_FEW_ROWS)
        run_few_rows(&w);
    else
        run_many_rows(&w);
}

const struct spw_kernel NAME(spw_linear_kernel, ISA) = {
    .name = "linear",
    .n_tasks = spw_linear_tasks,
    .run = run,
};
