/* The fast product of quantized weights: quant/codes.h has the expression.
 *
 * Columns of y lie in lanes. A task walks its columns in panels of 2 x SIMD_LANES, and k in groups
 * of 256: it unpacks one group of the panel into the L1 cache, multiplies all rows of x by it, and
 * keeps the sums of the slice and of y in the workspace:
 *
 *   for each panel of columns
 *     for each slice, for each of its groups
 *       unpack [256][columns]: codes, scales          once for all rows
 *       for each tile of rows: a += s * (d * S + m * M)
 *     store y
 *
 * Weights are read once, each column in the order of memory, and prefetched a few groups ahead. One
 * row of x or two, for which reading memory takes most of the time: along_k.h. */
#include "model/cpu/kernels.h"
#include "model/cpu/linear/along_k.h"
#include "model/cpu/linear/columns.h"
#include "model/cpu/linear/linear.h"

#if defined(__AVX512F__)
#define TILE_ROWS 6 /* x 2 vectors of columns: 12 integer sums and 12 of f32 */
#else
#define TILE_ROWS 3
#endif

enum {
    VECTORS = 2,
    COLS = VECTORS * SIMD_LANES, /* of a panel */
    LARGE = SPW_CODES_GROUP,     /* weights of a large block */
};

struct work {
    const struct spw_linear_args *a;
    struct spw_linear_part part;
    const struct spw_codes *x; /* [m][groups] */
    size_t groups, row_bytes;
    struct columns *panel; /* [VECTORS] */
    float *sums, *y;       /* [rows][COLS]: of a slice, of all slices */
    uint8_t *edge;         /* room for a group of the last columns */
};

/* One group of a few rows. */
struct tile {
    const struct spw_codes *x[TILE_ROWS];
    const struct columns *w; /* [VECTORS] */
    float *sums[TILE_ROWS];  /* [COLS] */
    size_t blocks;
    bool minima;
    int offset; /* of the codes in w */
};

/* What the offset of the codes adds to each sum over a part, with the other sign. */
SIMD_FN void corrections(int rows, size_t parts, const struct tile *t,
                         int32_t to[TILE_ROWS][SPW_BLOCK_PARTS])
{
    for (int r = 0; r < rows; r++) {
        const int16_t *sums = parts == 8 ? t->x[r]->sums32 : t->x[r]->sums;
        for (size_t j = 0; j < parts; j++)
            to[r][j] = -t->offset * sums[j];
    }
}

/* Adds the products of the numbers of `fours` lanes of bytes. */
SIMD_FN void add_products(int rows, const struct tile *t, size_t first, size_t fours,
                          i32v sums[TILE_ROWS][VECTORS])
{
#pragma GCC unroll 8
    for (size_t i = first; i < first + fours; i++) {
        u32v w[VECTORS];
#pragma GCC unroll 2
        for (int c = 0; c < VECTORS; c++)
            w[c] = t->w[c].codes[i];
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            u32v x = simd_set1_bytes(t->x[r]->codes + 4 * i);
#pragma GCC unroll 2
            for (int c = 0; c < VECTORS; c++)
                sums[r][c] = simd_dot(sums[r][c], w[c], x);
        }
    }
}

SIMD_FN void add_group(int rows, const struct tile *t, f32v group[TILE_ROWS][VECTORS])
{
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int c = 0; c < VECTORS; c++) {
            float *sums = t->sums[r] + c * SIMD_LANES;
            simd_store(sums, simd_fused(simd_set1(t->x[r]->scale), group[r][c], simd_load(sums)));
        }
}

/* Blocks of 32: a product with d for each. */
SIMD_FN void tile_small(int rows, const struct tile *t)
{
    int32_t correction[TILE_ROWS][SPW_BLOCK_PARTS];
    f32v group[TILE_ROWS][VECTORS] = {0};
    corrections(rows, 8, t, correction);
    for (size_t b = 0; b < t->blocks; b++) {
        i32v sums[TILE_ROWS][VECTORS];
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
            for (int c = 0; c < VECTORS; c++)
                sums[r][c] = correction[r][b] + (i32v){0};
        add_products(rows, t, 8 * b, 8, sums);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
            for (int c = 0; c < VECTORS; c++)
                group[r][c] =
                    simd_fused(t->w[c].scales.d[b], simd_from_i32(sums[r][c]), group[r][c]);
        if (t->minima)
#pragma GCC unroll 6
            for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
                for (int c = 0; c < VECTORS; c++)
                    group[r][c] =
                        simd_fused(t->w[c].scales.m[b], simd_set1(t->x[r]->sums32[b]), group[r][c]);
    }
    add_group(rows, t, group);
}

/* One block of 256: the scales of its parts multiply integers. */
SIMD_FN void tile_large(int rows, int parts, const struct tile *t)
{
    int32_t correction[TILE_ROWS][SPW_BLOCK_PARTS];
    i32v total[TILE_ROWS][VECTORS] = {0};
    f32v group[TILE_ROWS][VECTORS];
    corrections(rows, (size_t)parts, t, correction);
    for (int j = 0; j < parts; j++) {
        i32v sums[TILE_ROWS][VECTORS];
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
            for (int c = 0; c < VECTORS; c++)
                sums[r][c] = correction[r][j] + (i32v){0};
        add_products(rows, t, (size_t)(FOURS / parts * j), (size_t)(FOURS / parts), sums);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
            for (int c = 0; c < VECTORS; c++)
                total[r][c] += t->w[c].scales.parts[j] * sums[r][c];
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int c = 0; c < VECTORS; c++) {
            f32v sum = simd_from_i32(total[r][c]);
            group[r][c] = simd_fused(t->w[c].scales.d[0], sum, simd_set1(0));
            if (t->minima)
                group[r][c] =
                    simd_fused(t->w[c].scales.m[0],
                               simd_from_i32(dot_with_sums(t->w[c].scales.minima, t->x[r], parts)),
                               group[r][c]);
        }
    add_group(rows, t, group);
}

/* The forms of a tile. */
enum form { FORM_SMALL, FORM_PARTS_32, FORM_PARTS_16 };

SIMD_FN void tile_form(enum form form, int rows, const struct tile *t)
{
    if (form == FORM_SMALL)
        tile_small(rows, t);
    else
        tile_large(rows, form == FORM_PARTS_32 ? 8 : 16, t);
}

SIMD_FN void tile_rows(enum form form, size_t rows, const struct tile *t)
{
    switch (rows) {
#define CASE(r)                                                                                    \
    case r:                                                                                        \
        tile_form(form, r, t);                                                                     \
        break
        CASE(1);
        CASE(2);
        CASE(3);
#if TILE_ROWS > 3
        CASE(4);
        CASE(5);
        CASE(6);
#endif
#undef CASE
    }
}

static void tile_run(enum spw_dtype type, size_t rows, const struct tile *t)
{
    if (spw_type_of(type).elements == SMALL)
        tile_rows(FORM_SMALL, rows, t);
    else if (part_of(type) == 32)
        tile_rows(FORM_PARTS_32, rows, t);
    else
        tile_rows(FORM_PARTS_16, rows, t);
}

/* ---- panels ---- */

/* Fetches a share of the next panel, in the order of memory: the hardware prefetchers follow one
 * long stream, and not the many columns of a panel. */
SIMD_FN void fetch_ahead(const struct work *w, const uint8_t *at, size_t share, size_t bytes)
{
    const uint8_t *end = (const uint8_t *)w->a->w + w->a->n * w->row_bytes;
    const uint8_t *next = at + COLS * w->row_bytes + share * bytes;
    for (size_t i = 0; i < bytes && next + i < end; i += 64)
        __builtin_prefetch(next + i, 0, 2);
}

static void unpack_panel(const struct work *w, size_t col, size_t group)
{
    const struct spw_linear_args *a = w->a;
    const struct spw_type type = spw_type_of(a->w_dtype);
    const size_t first = group * SPW_CODES_GROUP;
    const size_t n = (size_t)spw_min_u64(a->k - first, SPW_CODES_GROUP);
    const size_t bytes = (size_t)spw_row_bytes(a->w_dtype, n);
    for (size_t v = 0; v < VECTORS; v++, col += SIMD_LANES) {
        fetch_ahead(w, (const uint8_t *)a->w + (col - v * SIMD_LANES) * w->row_bytes,
                    group * VECTORS + v, SIMD_LANES * bytes);
        struct packed p = {
            .stride = w->row_bytes, .fours = 4 * w->row_bytes, .blocks = n / type.elements};
        const size_t from = col < a->n ? col : a->n - 1;
        p.at = (const uint8_t *)a->w + from * p.stride + spw_row_bytes(a->w_dtype, first);
        if (from + SIMD_LANES > a->n)
            copy_edge(&p, a->n - from, bytes, w->edge);
        unpack_columns(a->w_dtype, &p, &w->panel[v]);
    }
}

/* Rows of the next tile: the last two divide the rest evenly. */
static size_t next_rows(size_t left)
{
    return left <= TILE_ROWS ? left : left < 2 * TILE_ROWS ? (left + 1) / 2 : TILE_ROWS;
}

/* All rows of the task, one group of a panel. */
static void multiply_panel(const struct work *w, size_t group)
{
    const struct spw_linear_args *a = w->a;
    const size_t n = (size_t)spw_min_u64(a->k - group * SPW_CODES_GROUP, SPW_CODES_GROUP);
    struct tile t = {.w = w->panel,
                     .blocks = n / SMALL,
                     .minima = has_minima(a->w_dtype),
                     .offset = code_offset(a->w_dtype)};
    size_t rows;
    for (size_t row = w->part.row; row < w->part.row_end; row += rows) {
        rows = next_rows(w->part.row_end - row);
        for (size_t r = 0; r < rows; r++) {
            t.x[r] = w->x + (row + r) * w->groups + group;
            t.sums[r] = w->sums + (row - w->part.row + r) * COLS;
        }
        tile_run(a->w_dtype, rows, &t);
    }
}

static void store_panel(const struct work *w, size_t col)
{
    const size_t n = (size_t)spw_min_u64(w->part.col_end - col, COLS);
    for (size_t row = w->part.row; row < w->part.row_end; row++) {
        float *y = w->y + (row - w->part.row) * COLS;
        for (size_t i = 0; i < COLS; i++)
            y[i] = y[i] == y[i] ? y[i] : NAN;
        spw_linear_store(w->a, row, col, y, n);
    }
}

static void run_panel(const struct work *w, size_t col)
{
    const size_t n = (w->part.row_end - w->part.row) * COLS;
    memset(w->y, 0, n * sizeof *w->y);
    for (size_t slice = 0; slice < SPW_CODES_SLICES; slice++) {
        const size_t end = spw_codes_slice(w->groups, slice + 1);
        memset(w->sums, 0, n * sizeof *w->sums);
        for (size_t g = spw_codes_slice(w->groups, slice); g < end; g++) {
            unpack_panel(w, col, g);
            multiply_panel(w, g);
        }
        for (size_t i = 0; i < n; i++)
            w->y[i] += w->sums[i];
    }
    store_panel(w, col);
}

/* ---- tasks ---- */

enum { EDGE_BYTES = SIMD_LANES * 34 * SMALL_BLOCKS };

size_t SIMD_NAME(spw_linear_codes_workspace)(void)
{
    size_t bytes = VECTORS * sizeof(struct columns) +
                   2 * SPW_LINEAR_ROW_BLOCK * COLS * sizeof(float) + EDGE_BYTES;
#if defined(SIMD_FOURS)
    bytes = (size_t)spw_max_u64(bytes, sizeof(struct few_sums) + EDGE_BYTES);
#endif
    return (size_t)spw_align_up(bytes, 64);
}

static void run(const void *args, size_t task, unsigned worker)
{
    const struct spw_linear_args *a = args;
    uint8_t *space = (uint8_t *)a->workspace + worker * SIMD_NAME(spw_linear_codes_workspace)();
#if defined(SIMD_FOURS)
    if (a->m <= few_rows(a->w_dtype)) {
        run_few(a, spw_linear_part(a, task), space);
        return;
    }
#endif
    struct work w = {
        .a = a,
        .part = spw_linear_part(a, task),
        .x = a->codes,
        .groups = spw_codes_groups(a->k),
        .row_bytes = (size_t)spw_row_bytes(a->w_dtype, a->k),
        .panel = (struct columns *)(void *)space,
    };
    w.sums = (float *)(void *)(w.panel + VECTORS);
    w.y = w.sums + SPW_LINEAR_ROW_BLOCK * COLS;
    w.edge = (uint8_t *)(w.y + SPW_LINEAR_ROW_BLOCK * COLS);
    for (size_t col = w.part.col; col < w.part.col_end; col += COLS)
        run_panel(&w, col);
}

const struct spw_kernel SIMD_NAME(spw_linear_codes_kernel) = {
    .name = "linear_codes",
    .n_tasks = spw_linear_tasks,
    .run = run,
};
