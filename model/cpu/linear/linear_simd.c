/* The linear kernel over register tiles.
 *
 * Each output y[row][col] is ONE chain of vector accumulators along k: lane l adds the products of
 * channels l, l + VEC_LANES, l + 2 VEC_LANES, ... in that order, and at the end the lanes are added
 * in a fixed tree, then the bias. Numbers are widened to f32 while they are loaded; where there is
 * a dot product of bf16, a lane takes a pair of channels of bf16 x bf16 in place of one channel.
 * The tile says how many such chains run side by side, to share loads and to hide the latency of a
 * multiply-add. So the tile, the number of rows and the division into tasks do not change a result.
 * A partial last vector is filled up with zeros.
 *
 *   thin (up to 10 rows): all rows side by side, and a few columns that lie far apart. Each column
 *     is read in the order of memory: the hardware prefetchers follow several long streams best.
 *     (With neighbouring columns each stream would start anew at every row of W.)
 *
 *   tiled: for a panel of columns, for a tile of rows, for a block of k, for the columns of the
 *     panel. The x tile stays in the L1 cache, the panel in the L2. The next panel, or the next
 *     block of x, is prefetched meanwhile.
 *
 * Between two blocks of k the lanes of a chain are kept in the workspace.
 *
 * Quantized weights and f32 x: the bits of the product with the same weights in f32. */
#if defined(__AVX512F__)
#define VEC_LANES 16
#define TILE_ROWS 6 /* x 4 columns: 24 chains */
#elif defined(__AVX2__)
#define VEC_LANES 8
#define TILE_ROWS 3 /* 12 chains, which with three x and one W are all sixteen registers */
#else
#define VEC_LANES 8
#define TILE_ROWS 2
#endif

#include "model/cpu/kernels.h"
#include "model/cpu/linear/linear.h"
#include "model/cpu/vec.h"

enum {
    TILE_COLS = 4,
    BLOCK_BYTES = 4096, /* of a row of x: TILE_ROWS of them are half an L1 cache */
    THIN_AHEAD_BYTES = 4096,
    THIN_UNFETCHED_ROWS = 2,   /* up to this number AMD's processors prefetch early enough */
    THIN_CHAINS = 4 * (6 + 1), /* in registers; sums are of four */
    THIN_X_BYTES = 20 << 10,   /* all rows' blocks stay in the L1 cache */
    THIN_X_ROOM = 4096 + THIN_X_BYTES, /* blocks are whole multiples of 64 channels */
    FEW_ROWS = 64,                     /* up to this number x is small next to a part of W ... */
    FEW_PANEL = 32, /* ... and a narrow panel starts sooner on fetching the next */
    WORK_TILES = SPW_LINEAR_COL_BLOCK / TILE_COLS + 2, /* the last columns may go one by one */
    EXPANDED_COLS = 2 * TILE_COLS,                     /* of quantized weights */
    CHAIN_FLOATS = TILE_ROWS * TILE_COLS * VEC_LANES,
    THIN_CHAIN_FLOATS = SPW_LINEAR_COL_BLOCK * SPW_LINEAR_THIN_ROWS * VEC_LANES,
};

/* One block of k of one tile. */
struct tile {
    const char *x, *w;       /* first row, first column, at the block's first channel */
    size_t x_bytes, w_bytes; /* from row to row */
    size_t k;                /* channels of this block */
    const char *ahead[2];    /* two rows to prefetch, of x or W; or the first row of x */
    size_t ahead_bytes;      /* of a channel of them */
    float *chains;           /* [TILE_ROWS][TILE_COLS][VEC_LANES], between two blocks */
    float (*out)[TILE_COLS]; /* [TILE_ROWS], after the last one */
    bool first, last;
};

/* Whether a lane takes a pair of channels. */
SIMD_FN bool takes_pairs(enum kind kind)
{
    return SIMD_DOT_BF16 && kind == KIND_BF16;
}

/* Channels of a step: those of one vector. */
SIMD_FN size_t step_channels(enum kind kind)
{
    return takes_pairs(kind) ? 2 * VEC_LANES : VEC_LANES;
}

/* The channels of a step, in the form of the product. `part`: only these first ones, then zeros; 0
 * means all. */
SIMD_FN struct vec load(enum kind kind, enum spw_dtype t, const char *p, size_t part)
{
    char full[SIMD_PART_BYTES];
    if (part)
        p = simd_copy_part(full, p, part * spw_dtype_bytes(t));
    return takes_pairs(kind) ? vec_load(p) : vec_load_full_as(p, t);
}

SIMD_FN struct vec multiply_add(enum kind kind, struct vec acc, struct vec x, struct vec w)
{
#if SIMD_DOT_BF16
    if (takes_pairs(kind))
        return (struct vec){{simd_dot_bf16(acc.v[0], (u32v)x.v[0], (u32v)w.v[0])}};
#endif
    (void)kind;
    return vec_fma(x, w, acc);
}

SIMD_FN void tile_step(enum kind kind, int rows, const struct tile *t, size_t i, size_t part,
                       struct vec acc[TILE_ROWS][TILE_COLS])
{
    struct vec x[TILE_ROWS];
    const char *xp = t->x + i * spw_dtype_bytes(x_dtype(kind)),
               *wp = t->w + i * spw_dtype_bytes(w_dtype(kind));
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        const char *p = xp + (size_t)r * t->x_bytes;
        x[r] = load(kind, x_dtype(kind), p, part);
    }
#pragma GCC unroll 8
    for (int c = 0; c < TILE_COLS; c++) {
        const char *p = wp + (size_t)c * t->w_bytes;
        struct vec w = load(kind, w_dtype(kind), p, part);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
            acc[r][c] = multiply_add(kind, acc[r][c], x[r], w);
    }
}

SIMD_FN void tile_run(enum kind kind, int rows, const struct tile *t)
{
    const size_t step = step_channels(kind);
    struct vec acc[TILE_ROWS][TILE_COLS];
#pragma GCC unroll 8
    for (int r = 0; r < TILE_ROWS; r++)
#pragma GCC unroll 8
        for (int c = 0; c < TILE_COLS; c++)
            acc[r][c] = t->first || r >= rows
                            ? vec_set1(0)
                            : vec_load(t->chains + (r * TILE_COLS + c) * VEC_LANES);
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
                vec_store(t->chains + (r * TILE_COLS + c) * VEC_LANES, acc[r][c]);
    }
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
    float *workspace; /* tiled: a chain for each tile that waits; thin: a block of x, then chains */
    size_t block;     /* of k, channels */
    size_t panel;     /* columns */
    bool fetches;     /* thin: however few rows */
};

/* Chooses what the tile prefetches: the first two row tiles of a panel fetch the next panel of W;
 * the first columns of later row tiles fetch the next block of x. */
static void fetch_ahead(const struct work *w, size_t row, size_t col, size_t k, size_t slot,
                        struct tile *t)
{
    const struct spw_linear_args *a = w->a;
    const size_t pass = (row - w->part.row) / TILE_ROWS, next_k = k + w->block;
    if (pass < 2 && col + w->panel + TILE_COLS <= w->part.col_end) {
        t->ahead[0] = t->w + (w->panel + 2 * pass) * t->w_bytes;
        t->ahead[1] = t->ahead[0] + t->w_bytes;
        t->ahead_bytes = spw_dtype_bytes(w_dtype(w->kind));
    } else if (2 * slot + 1 < TILE_ROWS && row + 2 * TILE_ROWS <= w->part.row_end) {
        const size_t x_bytes = spw_dtype_bytes(x_dtype(w->kind));
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
    const size_t x_bytes = spw_dtype_bytes(x_dtype(w->kind)),
                 w_bytes = spw_dtype_bytes(w_dtype(w->kind));
    const size_t slot = (col - panel) / TILE_COLS + (col - panel) % TILE_COLS;
    float out[TILE_ROWS][TILE_COLS];
    struct tile t = {
        .x = (const char *)a->x + (row * a->x_stride + k) * x_bytes,
        .w = (const char *)a->w + (col * a->k + k) * w_bytes,
        .x_bytes = a->x_stride * x_bytes,
        .w_bytes = a->k * w_bytes,
        .k = (size_t)spw_min_u64(w->block, a->k - k),
        .chains = w->workspace + slot * CHAIN_FLOATS,
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

/* Rows of the next tile. The last two tiles divide the rest evenly: too few rows would not hide the
 * latency of the chains. */
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

/* ---- thin ---- */

/* Columns that are read side by side: as many as their chains find registers. */
SIMD_FN int thin_streams(int rows)
{
    return rows <= TILE_ROWS ? TILE_COLS : rows <= 2 * TILE_ROWS ? TILE_COLS / 2 : 1;
}

/* One block of k of a few columns: col, col + apart, col + 2 apart, ... */
struct thin {
    const struct spw_linear_args *a;
    const struct vec *x; /* [steps][rows]: the block of x, as it is multiplied */
    size_t from, end;    /* the block's channels */
    size_t first;        /* the part's first column */
    size_t col, apart;
    ptrdiff_t ahead; /* bytes from the address that is read to the address that is prefetched */
    float *chains;   /* [apart][cols][rows][VEC_LANES], between two blocks */
    float *sums;     /* [rows][SPW_LINEAR_COL_BLOCK], of the part's columns, after the last block */
    bool fetches;
};

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
static ptrdiff_t thin_ahead(const struct work *w, size_t at, size_t n)
{
    const size_t block = w->block * spw_dtype_bytes(w_dtype(w->kind)),
                 column = w->a->k * spw_dtype_bytes(w_dtype(w->kind));
    if (block >= column)
        return THIN_AHEAD_BYTES;
    const size_t more = (size_t)spw_div_up(THIN_AHEAD_BYTES, block);
    if (at + more < n)
        return (ptrdiff_t)(more * column);
    return (ptrdiff_t)(more * column + block) - (ptrdiff_t)(n * column); /* the next block's */
}

SIMD_FN void thin_streams_run(enum kind kind, int rows, int cols, const struct work *w,
                              struct thin *t, size_t n)
{
    t->apart = n;
    for (size_t i = 0; i < n; i++, t->col++, t->chains += rows * cols * VEC_LANES) {
        t->ahead = thin_ahead(w, i, n);
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
    struct thin t = {.a = w->a, .x = x, .first = w->part.col, .sums = sums, .fetches = w->fetches};
    do {
        t.end = (size_t)spw_min_u64(t.from + w->block, w->a->k);
        t.col = t.first;
        t.chains = w->workspace + THIN_X_ROOM / sizeof(float);
        thin_pack(kind, (size_t)rows, &t, x);
        thin_streams_run(kind, rows, cols, w, &t, n / (size_t)cols);
        if (cols > 1)
            thin_streams_run(kind, rows, 1, w, &t, w->part.col_end - t.col);
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

static enum kind kind_of(const struct spw_linear_args *a)
{
    if (a->x_dtype == SPW_DTYPE_BF16)
        return KIND_BF16;
    return a->w_dtype == SPW_DTYPE_BF16  ? KIND_F32_BF16
           : a->w_dtype == SPW_DTYPE_F16 ? KIND_F32_F16
                                         : KIND_F32;
}

static size_t plain_workspace(size_t k)
{
    const bool blocks = SPW_LINEAR_THIN_ROWS * k * sizeof(float) > THIN_X_BYTES;
    const size_t thin = THIN_X_ROOM + (blocks ? THIN_CHAIN_FLOATS * sizeof(float) : 0);
    return (size_t)spw_max_u64(WORK_TILES * CHAIN_FLOATS * sizeof(float), thin);
}

size_t SIMD_NAME(spw_linear_workspace)(size_t k, enum spw_dtype x, enum spw_dtype w)
{
    if (!spw_type_is_quantized(w))
        return plain_workspace(k);
    return x == SPW_DTYPE_BF16 ? SIMD_NAME(spw_linear_codes_workspace)(k)
                               : plain_workspace(k) + EXPANDED_COLS * k * sizeof(float);
}

static void run_part(const struct spw_linear_args *a, struct spw_linear_part part, char *workspace,
                     bool fetches)
{
    struct work w = {.a = a,
                     .part = part,
                     .kind = kind_of(a),
                     .workspace = (float *)(void *)workspace,
                     .fetches = fetches};
    w.block = BLOCK_BYTES / spw_dtype_bytes(x_dtype(w.kind));
    w.panel = a->m <= FEW_ROWS ? FEW_PANEL : SPW_LINEAR_COL_BLOCK;
    if (a->m <= SPW_LINEAR_THIN_ROWS) {
        uint64_t x_bytes = a->m * a->k * sizeof(struct vec) / step_channels(w.kind);
        uint64_t n_blocks = spw_div_up(x_bytes, THIN_X_BYTES);
        w.block = (size_t)spw_align_up(spw_div_up(a->k, spw_max_u64(n_blocks, 1)), 64);
        run_thin(&w);
    } else {
        run_tiled(&w);
    }
}

/* Quantized weights: a few columns at a time become f32 in the workspace. */
static void run_expanded(const struct spw_linear_args *a, struct spw_linear_part part,
                         char *workspace)
{
    const size_t row_bytes = (size_t)spw_row_bytes(a->w_dtype, a->k);
    float *w = (float *)(void *)(workspace + plain_workspace(a->k));
    struct spw_linear_args few = *a;
    few.w = w;
    few.w_dtype = SPW_DTYPE_F32;
    for (size_t col = part.col; col < part.col_end; col += EXPANDED_COLS) {
        few.n = (size_t)spw_min_u64(part.col_end - col, EXPANDED_COLS);
        few.bias = a->bias ? a->bias + col : NULL;
        few.y = (float *)a->y + col;
        few.residual = a->residual ? (const float *)a->residual + col : NULL;
        for (size_t c = 0; c < few.n; c++)
            spw_type_read(a->w_dtype, (const char *)a->w + (col + c) * row_bytes, 0, a->k,
                          w + c * a->k);
        run_part(&few, (struct spw_linear_part){part.row, part.row_end, 0, few.n}, workspace,
                 false);
    }
}

SIMD_FN void run_as(const struct spw_linear_args *a, size_t task, unsigned worker, bool fetches)
{
    const size_t bytes = SIMD_NAME(spw_linear_workspace)(a->k, a->x_dtype, a->w_dtype);
    char *workspace = (char *)a->workspace + bytes * worker;
    if (spw_type_is_quantized(a->w_dtype))
        run_expanded(a, spw_linear_part(a, task), workspace);
    else
        run_part(a, spw_linear_part(a, task), workspace, fetches);
}

static void run(const void *args, size_t task, unsigned worker)
{
    run_as(args, task, worker, false);
}

const struct spw_kernel SIMD_NAME(spw_linear_kernel) = {
    .name = "linear",
    .n_tasks = spw_linear_tasks,
    .run = run,
};

#if SIMD_DOT_BF16

/* Intel's processors read one or two rows of bf16 at 70 to 76 % of the reads without fetches, at 74
 * to 86 % with them (Emerald Rapids, SPEED.md). */
static void run_intel(const void *args, size_t task, unsigned worker)
{
    run_as(args, task, worker, true);
}

const struct spw_kernel spw_linear_kernel_avx512intel = {
    .name = "linear",
    .n_tasks = spw_linear_tasks,
    .run = run_intel,
};

#endif
