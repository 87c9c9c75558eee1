/* The linear kernel over register tiles, written once and compiled once per instruction set.
 *
 * Each output y[row][col] is ONE chain of vector accumulators along k: lane l adds the products of
 * channels l, l + LANES, l + 2 LANES, ... in that order, and at the end the lanes are added in a
 * fixed tree, then the bias. The tile only says how many such chains run side by side (to share
 * loads and to hide the latency of a multiply-add), so that neither it nor the number of rows nor
 * the cut into tasks can show in a result. A partial last vector is loaded with zeros behind it.
 *
 *   thin (up to 10 rows): one column after the other, all rows side by side. W is read from memory
 *     strictly in the order it lies in, which is what the hardware prefetchers follow best.
 *
 *   tiled: for a panel of columns, for a tile of rows, for a block of k, for the columns of the
 *     panel. The x tile stays in the L1 cache, the panel in the L2, and what comes next is fetched
 *     meanwhile.
 *
 * Between two blocks of k a chain waits in the workspace, as it is.
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

enum {
    BLOCK_BYTES = 4096, /* of a row of x: TILE_ROWS of them are half an L1 cache */
    THIN_AHEAD_BYTES = 8192,
    THIN_COLS = 24,          /* that wait between blocks of k */
    THIN_X_BYTES = 40 << 10, /* all rows' blocks stay in the L1 cache */
    FEW_ROWS = 64,           /* up to here x is small beside a part of W ... */
    FEW_PANEL = 32,          /* ... and a narrow panel starts sooner on fetching the next */
    WORK_TILES = SPW_LINEAR_COL_BLOCK / TILE_COLS + 2, /* the last columns may go one by one */
    CHAIN_FLOATS = TILE_ROWS * TILE_COLS * LANES,
};

_Static_assert(THIN_COLS *SPW_LINEAR_THIN_ROWS *LANES <= WORK_TILES * CHAIN_FLOATS,
               "chains of a few rows fit into the workspace");

/* One block of k of one tile. */
struct tile {
    const char *x, *w;       /* first row, first column, at the block's first channel */
    size_t x_bytes, w_bytes; /* from row to row */
    size_t k;                /* channels of this block */
    const char *ahead[2];    /* two rows to fetch, of x or W; or what is here anyway */
    size_t ahead_bytes;      /* of a channel of them */
    float *chains;           /* [TILE_ROWS][TILE_COLS][LANES], between two blocks */
    float (*out)[TILE_COLS]; /* [TILE_ROWS], after the last one */
    bool first, last;
};

ALWAYS_INLINE void tile_step(enum kind kind, int rows, const struct tile *t, size_t i, size_t part,
                             vec acc[TILE_ROWS][TILE_COLS])
{
    raw x[TILE_ROWS];
    const char *xp = t->x + i * kind_x_bytes(kind), *wp = t->w + i * kind_w_bytes(kind);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        const char *p = xp + (size_t)r * t->x_bytes;
        x[r] = part ? load_x_part(kind, p, part) : load_x(kind, p);
    }
#pragma GCC unroll 8
    for (int c = 0; c < TILE_COLS; c++) {
        const char *p = wp + (size_t)c * t->w_bytes;
        raw w = part ? load_w_part(kind, p, part) : load_w(kind, p);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
            acc[r][c] = multiply_add(kind, acc[r][c], x[r], w);
    }
}

ALWAYS_INLINE void tile_run(enum kind kind, int rows, const struct tile *t)
{
    const size_t step = raw_channels(kind);
    vec acc[TILE_ROWS][TILE_COLS];
#pragma GCC unroll 8
    for (int r = 0; r < TILE_ROWS; r++)
#pragma GCC unroll 8
        for (int c = 0; c < TILE_COLS; c++)
            acc[r][c] = t->first || r >= rows ? vec_zero()
                                              : vec_load(t->chains + (r * TILE_COLS + c) * LANES);
    size_t i = 0;
    for (; i + step <= t->k; i += step) {
        __builtin_prefetch(t->ahead[0] + i * t->ahead_bytes, 0, 2);
        __builtin_prefetch(t->ahead[1] + i * t->ahead_bytes, 0, 2);
        tile_step(kind, rows, t, i, 0, acc);
    }
    if (i < t->k)
        tile_step(kind, rows, t, i, t->k - i, acc);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        if (t->last)
            vec_sums(acc[r][0], acc[r][1], acc[r][2], acc[r][3], t->out[r]);
        else
#pragma GCC unroll 8
            for (int c = 0; c < TILE_COLS; c++)
                vec_store(t->chains + (r * TILE_COLS + c) * LANES, acc[r][c]);
    }
}

ALWAYS_INLINE void tile_rows(enum kind kind, size_t rows, const struct tile *t)
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

static void tile_kind(enum kind kind, size_t rows, const struct tile *t)
{
    switch (kind) {
    case KIND_F32:
        tile_rows(KIND_F32, rows, t);
        break;
    case KIND_F32_F16:
        tile_rows(KIND_F32_F16, rows, t);
        break;
    case KIND_F32_BF16:
        tile_rows(KIND_F32_BF16, rows, t);
        break;
    case KIND_BF16:
        tile_rows(KIND_BF16, rows, t);
        break;
    }
}

static void store_tile(const struct spw_linear_args *a, size_t row, size_t rows, size_t col,
                       size_t cols, float (*out)[TILE_COLS])
{
    for (size_t r = 0; r < rows; r++) {
        if (cols == TILE_COLS)
            spw_linear_store(a, row + r, col, out[r], TILE_COLS);
        else
            spw_linear_store(a, row + r, col, out[r], cols);
    }
}

/* What one task's tiles have in common. */
struct work {
    const struct spw_linear_args *a;
    struct spw_linear_part part;
    enum kind kind;
    float *chains; /* one per tile that waits */
    size_t block;  /* of k, channels */
    size_t panel;  /* columns */
};

/* What will be wanted next and may not be near: the next panel of W, while the first two row tiles
 * pass over this one; later, the next block of x, while the first columns of this panel pass. */
static void fetch_ahead(const struct work *w, size_t row, size_t col, size_t k, size_t slot,
                        struct tile *t)
{
    const struct spw_linear_args *a = w->a;
    const size_t pass = (row - w->part.row) / TILE_ROWS, next_k = k + w->block;
    if (pass < 2 && col + w->panel + TILE_COLS <= w->part.col_end) {
        t->ahead[0] = t->w + (w->panel + 2 * pass) * t->w_bytes;
        t->ahead[1] = t->ahead[0] + t->w_bytes;
        t->ahead_bytes = kind_w_bytes(w->kind);
    } else if (2 * slot + 1 < TILE_ROWS && row + 2 * TILE_ROWS <= w->part.row_end) {
        const size_t x_bytes = kind_x_bytes(w->kind);
        size_t next_row = next_k < a->k ? row : row + TILE_ROWS;
        t->ahead[0] = (const char *)a->x + (next_row + 2 * slot) * t->x_bytes +
                      (next_k < a->k ? next_k : 0) * x_bytes;
        t->ahead[1] = t->ahead[0] + t->x_bytes;
        t->ahead_bytes = x_bytes;
    }
}

/* One block of k of the tile at (row, col) of the panel that begins at `panel`. */
static void work_tile(const struct work *w, size_t panel, size_t row, size_t rows, size_t col,
                      size_t cols, size_t k)
{
    const struct spw_linear_args *a = w->a;
    const size_t x_bytes = kind_x_bytes(w->kind), w_bytes = kind_w_bytes(w->kind);
    const size_t slot = (col - panel) / TILE_COLS + (col - panel) % TILE_COLS;
    float out[TILE_ROWS][TILE_COLS];
    struct tile t = {
        .x = (const char *)a->x + (row * a->x_stride + k) * x_bytes,
        .w = (const char *)a->w + (col * a->k + k) * w_bytes,
        .x_bytes = a->x_stride * x_bytes,
        .w_bytes = a->k * w_bytes,
        .k = (size_t)spw_min_u64(w->block, a->k - k),
        .chains = w->chains + slot * CHAIN_FLOATS,
        .out = out,
        .ahead = {a->x, a->x},
        .first = k == 0,
    };
    t.last = k + t.k == a->k;
    /* Up to three columns left over go one by one, as four times the same. */
    if (cols < TILE_COLS)
        t.w_bytes = 0;
    else
        fetch_ahead(w, row, col, k, slot, &t);
    tile_kind(w->kind, rows, &t);
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

static void run_panel(const struct work *w, size_t panel, size_t panel_end)
{
    const struct spw_linear_part *p = &w->part;
    size_t rows, cols, k;
    for (size_t row = p->row; row < p->row_end; row += rows) {
        rows = next_rows(p->row_end - row);
        k = 0;
        do {
            for (size_t col = panel; col < panel_end; col += cols) {
                cols = next_cols(panel_end - col);
                work_tile(w, panel, row, rows, col, cols, k);
            }
            k += w->block;
        } while (k < w->a->k);
    }
}

static void run_tiled(const struct work *w)
{
    const struct spw_linear_part *p = &w->part;
    for (size_t col = p->col; col < p->col_end; col += w->panel)
        run_panel(w, col, (size_t)spw_min_u64(col + w->panel, p->col_end));
}

/* One block of k of one column, up to 10 rows. `ahead`: what to fetch meanwhile. */
ALWAYS_INLINE void thin_column(enum kind kind, int rows, const struct work *work, size_t col,
                               size_t from, const char *ahead, float *chains)
{
    const struct spw_linear_args *a = work->a;
    const size_t step = raw_channels(kind), bytes = kind_w_bytes(kind);
    const size_t x_bytes = a->x_stride * kind_x_bytes(kind);
    const size_t end = (size_t)spw_min_u64(from + work->block, a->k);
    const char *wp = (const char *)a->w + col * a->k * bytes, *xp = a->x;
    vec acc[SPW_LINEAR_THIN_ROWS + 2]; /* sums are of four */
    float out[SPW_LINEAR_THIN_ROWS + 2];
    size_t i = from;
#pragma GCC unroll 12
    for (int r = 0; r < SPW_LINEAR_THIN_ROWS + 2; r++)
        acc[r] = from == 0 || r >= rows ? vec_zero() : vec_load(chains + r * LANES);
    for (; i + step <= end; i += step) {
        __builtin_prefetch(ahead + (i - from) * bytes);
        raw w = load_w(kind, wp + i * bytes);
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++)
            acc[r] = multiply_add(
                kind, acc[r], load_x(kind, xp + (size_t)r * x_bytes + i * kind_x_bytes(kind)), w);
    }
    if (end < a->k) {
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++)
            vec_store(chains + r * LANES, acc[r]);
        return;
    }
    if (i < end) {
        raw w = load_w_part(kind, wp + i * bytes, end - i);
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            const char *x = xp + (size_t)r * x_bytes + i * kind_x_bytes(kind);
            acc[r] = multiply_add(kind, acc[r], load_x_part(kind, x, end - i), w);
        }
    }
#pragma GCC unroll 3
    for (int r = 0; r < rows; r += 4)
        vec_sums(acc[r], acc[r + 1], acc[r + 2], acc[r + 3], out + r);
    for (int r = 0; r < rows; r++)
        spw_linear_store(a, (size_t)r, col, &out[r], 1);
}

/* What is read THIN_AHEAD_BYTES or more after the block at k of column `col`, in the order in which
 * the columns [first, end) pass. */
static const char *thin_ahead(const struct work *w, size_t first, size_t end, size_t col, size_t k)
{
    const size_t bytes = kind_w_bytes(w->kind);
    const char *base = w->a->w;
    if (w->block >= w->a->k)
        return base + col * w->a->k * bytes + THIN_AHEAD_BYTES;
    col += (size_t)spw_div_up(THIN_AHEAD_BYTES, w->block * bytes);
    if (col >= end) {
        col -= end - first;
        k += w->block;
    }
    return base + (col * w->a->k + k) * bytes;
}

ALWAYS_INLINE void thin_rows(enum kind kind, int rows, const struct work *w)
{
    for (size_t col = w->part.col; col < w->part.col_end; col += THIN_COLS) {
        size_t end = (size_t)spw_min_u64(col + THIN_COLS, w->part.col_end), k = 0;
        do {
            for (size_t c = col; c < end; c++)
                thin_column(kind, rows, w, c, k, thin_ahead(w, col, end, c, k),
                            w->chains + (c - col) * SPW_LINEAR_THIN_ROWS * LANES);
            k += w->block;
        } while (k < w->a->k);
    }
}

ALWAYS_INLINE void thin_kind(enum kind kind, const struct work *w)
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
    w.panel = a->m <= FEW_ROWS ? FEW_PANEL : SPW_LINEAR_COL_BLOCK;
    if (a->m <= SPW_LINEAR_THIN_ROWS) {
        uint64_t n_blocks = spw_div_up(a->m * a->k * kind_x_bytes(w.kind), THIN_X_BYTES);
        w.block = (size_t)spw_align_up(spw_div_up(a->k, spw_max_u64(n_blocks, 1)), 64);
        run_thin(&w);
    } else {
        run_tiled(&w);
    }
}

const struct spw_kernel NAME(spw_linear_kernel, ISA) = {
    .name = "linear",
    .n_tasks = spw_linear_tasks,
    .run = run,
};
