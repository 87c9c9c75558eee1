/* linear on AMX: bf16 x bf16 by 16 x 16 tiles of outputs. Other types use the AVX-512 kernel.
 *
 * tdpbf16ps multiplies A[16][32 channels] with B[16 pairs of channels][16][2]. A is W in its file
 * order, 16 columns of y at a time. B is x, packed into pairs once for all columns of a task:
 *
 *     C[16 columns of y][16 rows] += W[16][32] * packed[16 pairs][16 rows][2]
 *
 * W is by far the larger operand and is never rearranged; C is transposed when it is stored. One
 * tile of C is one chain over k in steps of 32 channels, filled up with zeros. An element of C
 * depends only on its row of A and its column of B. So one row of x uses the same kernel, with
 * tiles of one column, and gets the same bits. Each step loads two tiles of W and two of x: four
 * products for four loads.
 *
 *   workspace of a worker = | packed x: [rows / 16][pairs][16][2] | end of k of W | C | C^T |
 *
 * Tested on an emulation of the instructions (tests/) and on processors that have them. SPEED.md,
 * "AMX", compares its speed with their peak. */
#include "model/cpu/amx.h"
#include "model/cpu/kernels.h"
#include "model/cpu/linear/linear.h"

enum {
    TILE = AMX_TILE, /* rows of W, and of x, in a tile */
    STEP = 32,       /* channels of a tile */
    ROW_BYTES = AMX_TILE_BYTES,
    GROUP = 2 * TILE,       /* rows of W, and of x, in registers at once */
    PACKED_BYTES = 1 << 20, /* of packed x: half an L2 of these processors */
    MAX_ROWS = 128,
    MANY_COLS = 1024, /* columns of a task: with fewer, the time of packing x is noticeable */
};

struct layout {
    size_t pairs; /* of channels, to whole steps */
    size_t rows;  /* of x in a task */
    size_t end_at, c_at, ct_at, bytes;
};

static struct layout layout_of(size_t k)
{
    struct layout l = {.pairs = (size_t)spw_align_up(k ? k : 1, STEP) / 2};
    l.rows = PACKED_BYTES / (l.pairs * 4) / GROUP * GROUP;
    l.rows = l.rows < GROUP ? GROUP : l.rows > MAX_ROWS ? MAX_ROWS : l.rows;
    l.end_at = l.rows * l.pairs * 4;
    l.c_at = l.end_at + GROUP * ROW_BYTES;
    l.ct_at = l.c_at + GROUP * GROUP * sizeof(float);
    l.bytes = l.ct_at + GROUP * GROUP * sizeof(float);
    return l;
}

static bool is_ours(enum spw_dtype x, enum spw_dtype w)
{
    return x == SPW_DTYPE_BF16 && w == SPW_DTYPE_BF16;
}

/* The AVX-512 kernel divides the same workspace into shares of its own size. */
size_t spw_linear_workspace_amx(size_t k, enum spw_dtype x, enum spw_dtype w)
{
    const size_t other = spw_linear_workspace_avx512bf16(k, x, w);
    return (size_t)spw_max_u64(is_ours(x, w) ? layout_of(k).bytes : 0, other);
}

static size_t cols_per_task(const struct spw_linear_args *a)
{
    if (a->m > GROUP)
        return MANY_COLS;
    size_t cols = SPW_LINEAR_TASK_BYTES / (a->k ? a->k * 2 : 1) / GROUP * GROUP;
    return cols < GROUP ? GROUP : (size_t)spw_min_u64(cols, MANY_COLS);
}

static size_t n_tasks(const void *args)
{
    const struct spw_linear_args *a = args;
    if (!is_ours(a->x_dtype, a->w_dtype))
        return spw_linear_kernel_avx512bf16.n_tasks(a);
    return (size_t)(spw_div_up(a->m, layout_of(a->k).rows) * spw_div_up(a->n, cols_per_task(a)));
}

/* Tiles 0-3 are C (W tile * 2 + x tile), 4-5 W, 6-7 x. */
static void configure(size_t w_rows, size_t x_rows)
{
    struct amx_config config = {.palette = 1};
    for (size_t i = 0; i < 2; i++) {
        size_t w = w_rows > i * TILE ? spw_min_u64(w_rows - i * TILE, TILE) : 0;
        size_t x = x_rows > i * TILE ? spw_min_u64(x_rows - i * TILE, TILE) : 0;
        config.rows[4 + i] = (uint8_t)w;
        config.row_bytes[4 + i] = w ? ROW_BYTES : 0;
        config.rows[6 + i] = x ? TILE : 0;
        config.row_bytes[6 + i] = (uint16_t)(x * 4);
        for (size_t j = 0; j < 2; j++) {
            size_t other_x = x_rows > j * TILE ? spw_min_u64(x_rows - j * TILE, TILE) : 0;
            config.rows[2 * i + j] = other_x ? (uint8_t)w : 0;
            config.row_bytes[2 * i + j] = w ? (uint16_t)(other_x * 4) : 0;
        }
    }
    amx_configure(&config);
}

/* to[col][row] = from[row][col] for 4-byte elements, four by four where there are four. */
static void transpose(char *to, size_t to_bytes, const char *from, size_t from_bytes, size_t rows,
                      size_t cols)
{
    size_t r = 0;
    for (; r + 4 <= rows; r += 4) {
        size_t c = 0;
        const char *f = from + r * from_bytes;
        char *t = to + r * 4;
        for (; c + 4 <= cols; c += 4) {
            __m128 v[4];
            for (size_t i = 0; i < 4; i++)
                v[i] = _mm_loadu_ps((const float *)(const void *)(f + i * from_bytes + c * 4));
            _MM_TRANSPOSE4_PS(v[0], v[1], v[2], v[3]);
            for (size_t i = 0; i < 4; i++)
                _mm_storeu_ps((float *)(void *)(t + (c + i) * to_bytes), v[i]);
        }
        for (; c < cols; c++)
            for (size_t i = 0; i < 4; i++)
                memcpy(t + c * to_bytes + i * 4, f + i * from_bytes + c * 4, 4);
    }
    for (; r < rows; r++)
        for (size_t c = 0; c < cols; c++)
            memcpy(to + c * to_bytes + r * 4, from + r * from_bytes + c * 4, 4);
}

/* Packs the rows of x of one tile into [pairs][rows][2], with zeros after k. */
static void pack(char *to, const struct layout *l, const struct spw_linear_args *a, size_t row,
                 size_t rows)
{
    const char *from = (const char *)a->x + row * a->x_stride * 2;
    const size_t whole = a->k / 2;
    transpose(to, rows * 4, from, a->x_stride * 2, rows, whole);
    memset(to + whole * rows * 4, 0, (l->pairs - whole) * rows * 4);
    if (a->k % 2)
        for (size_t r = 0; r < rows; r++)
            memcpy(to + (whole * rows + r) * 4, from + (r * a->x_stride + a->k - 1) * 2, 2);
}

/* Up to 32 rows of W against up to 32 of x. */
struct group {
    const char *w,
        *w_end;       /* in file order; its last part of a step, [32][STEP], with zeros after k */
    const char *x[2]; /* packed */
    size_t w_bytes, x_bytes[2];
    size_t k;
    const char *ahead; /* the next bytes of W, as many as w has, which are needed soon; or NULL */
};

static inline __attribute__((always_inline)) void
multiply(const char *w, size_t w_bytes, const struct group *g, size_t step, bool two_w, bool two_x)
{
    _tile_loadd(4, w, w_bytes);
    _tile_loadd(6, g->x[0] + step * TILE * g->x_bytes[0], g->x_bytes[0]);
    _tile_dpbf16ps(0, 4, 6);
    if (two_x) {
        _tile_loadd(7, g->x[1] + step * TILE * g->x_bytes[1], g->x_bytes[1]);
        _tile_dpbf16ps(1, 4, 7);
    }
    if (two_w) {
        _tile_loadd(5, w + TILE * w_bytes, w_bytes);
        _tile_dpbf16ps(2, 5, 6);
        if (two_x)
            _tile_dpbf16ps(3, 5, 7);
    }
}

/* `c` is [32 columns of y][32 rows]. */
static inline __attribute__((always_inline)) void group_run(const struct group *g, float *c,
                                                            bool two_w, bool two_x)
{
    const size_t c_bytes = GROUP * sizeof(float);
    amx_memory_barrier();
    _tile_zero(0);
    if (two_x)
        _tile_zero(1);
    if (two_w)
        _tile_zero(2);
    if (two_w && two_x)
        _tile_zero(3);
    size_t step = 0;
    for (; (step + 1) * STEP <= g->k; step++) {
        if (g->ahead)
            for (size_t i = 0; i < GROUP; i++)
                __builtin_prefetch(g->ahead + (step * GROUP + i) * ROW_BYTES);
        multiply(g->w + step * ROW_BYTES, g->w_bytes, g, step, two_w, two_x);
    }
    if (step * STEP < g->k)
        multiply(g->w_end, ROW_BYTES, g, step, two_w, two_x);
    _tile_stored(0, c, c_bytes);
    if (two_x)
        _tile_stored(1, c + TILE, c_bytes);
    if (two_w)
        _tile_stored(2, c + TILE * GROUP, c_bytes);
    if (two_w && two_x)
        _tile_stored(3, c + TILE * GROUP + TILE, c_bytes);
    amx_memory_barrier();
}

static void group_variant(const struct group *g, float *c, size_t w_rows, size_t x_rows)
{
    if (w_rows > TILE && x_rows > TILE)
        group_run(g, c, true, true);
    else if (w_rows > TILE)
        group_run(g, c, true, false);
    else if (x_rows > TILE)
        group_run(g, c, false, true);
    else
        group_run(g, c, false, false);
}

/* A task: rows [row, row_end) of x, columns [col, col_end) of y. */
struct work {
    const struct spw_linear_args *a;
    struct layout l;
    size_t row, row_end, col, col_end;
    char *space;
};

/* The packed tile of x that begins at `row`; all before it are full. */
static char *packed_at(const struct work *w, size_t row)
{
    return w->space + (row - w->row) * w->l.pairs * 4;
}

static void copy_end(const struct work *w, size_t col, size_t cols)
{
    const struct spw_linear_args *a = w->a;
    const size_t from = a->k / STEP * STEP;
    char *end = w->space + w->l.end_at;
    if (from == a->k)
        return;
    memset(end, 0, GROUP * ROW_BYTES);
    for (size_t c = 0; c < cols; c++)
        memcpy(end + c * ROW_BYTES, (const char *)a->w + ((col + c) * a->k + from) * 2,
               (a->k - from) * 2);
}

static void run_group(const struct work *w, size_t row, size_t rows, size_t col, size_t cols)
{
    const struct spw_linear_args *a = w->a;
    struct group g = {
        .w = (const char *)a->w + col * a->k * 2,
        .w_end = w->space + w->l.end_at,
        .w_bytes = a->k * 2,
        .k = a->k,
    };
    for (size_t i = 0; i < 2 && rows > i * TILE; i++) {
        g.x[i] = packed_at(w, row + i * TILE);
        g.x_bytes[i] = (size_t)spw_min_u64(rows - i * TILE, TILE) * 4;
    }
    if (row == w->row && col + 2 * GROUP <= w->col_end)
        g.ahead = g.w + GROUP * g.w_bytes;
    float *c = (float *)(void *)(w->space + w->l.c_at);
    char *ct = w->space + w->l.ct_at;
    group_variant(&g, c, cols, rows);
    transpose(ct, GROUP * sizeof(float), (const char *)c, GROUP * sizeof(float), cols, rows);
    for (size_t r = 0; r < rows; r++)
        spw_linear_store(a, row + r, col, (const float *)(const void *)ct + r * GROUP, cols);
}

static void run_columns(const struct work *w)
{
    size_t rows, cols, configured = 0;
    for (size_t col = w->col; col < w->col_end; col += cols) {
        cols = (size_t)spw_min_u64(GROUP, w->col_end - col);
        copy_end(w, col, cols);
        for (size_t row = w->row; row < w->row_end; row += rows) {
            rows = (size_t)spw_min_u64(GROUP, w->row_end - row);
            /* Only the last row group and the last column group differ. */
            if (configured != rows * GROUP * 2 + cols)
                configure(cols, rows);
            configured = rows * GROUP * 2 + cols;
            run_group(w, row, rows, col, cols);
        }
    }
    _tile_release();
}

static void run(const void *args, size_t task, unsigned worker)
{
    const struct spw_linear_args *a = args;
    if (!is_ours(a->x_dtype, a->w_dtype)) {
        spw_linear_kernel_avx512bf16.run(a, task, worker);
        return;
    }
    struct work w = {.a = a, .l = layout_of(a->k)};
    const size_t row_blocks = (size_t)spw_div_up(a->m, w.l.rows), cols = cols_per_task(a);
    w.row = task % row_blocks * w.l.rows;
    w.row_end = (size_t)spw_min_u64(w.row + w.l.rows, a->m);
    w.col = task / row_blocks * cols;
    w.col_end = (size_t)spw_min_u64(w.col + cols, a->n);
    w.space =
        (char *)a->workspace + worker * spw_linear_workspace_amx(a->k, a->x_dtype, a->w_dtype);
    for (size_t row = w.row; row < w.row_end; row += TILE)
        pack(packed_at(&w, row), &w.l, a, row, (size_t)spw_min_u64(TILE, w.row_end - row));
    run_columns(&w);
}

const struct spw_kernel spw_linear_kernel_amx = {
    .name = "linear",
    .n_tasks = n_tasks,
    .run = run,
};
