/* A task of the product of quantized weights with many rows of x. It walks its columns in panels of
 * 2 x SIMD_LANES, and k in groups of 256: it unpacks one group of the panel into the L1 cache,
 * multiplies all rows of x by it, and keeps the sums of the partition and of y in the workspace:
 *
 *   for each panel of columns
 *     for each partition, for each of its groups
 *       unpack [256][columns]: codes, scales          once for all rows
 *       multiply all rows                             a function of the kernel
 *     store y
 *
 * Weights are read once, each column in the order of memory, and fetched a panel ahead. */
#ifndef SPW_MODEL_CPU_LINEAR_PANELS_H
#define SPW_MODEL_CPU_LINEAR_PANELS_H

#include "model/cpu/linear/columns.h"
#include "model/cpu/linear/linear.h"

enum {
    VECTORS = 2,
    COLS = VECTORS * SIMD_LANES, /* of a panel */
    EDGE_BYTES = SIMD_LANES * 34 * SMALL_BLOCKS,
    /* Of workspace; a multiple of 64. */
    PANELS_BYTES = (VECTORS * sizeof(struct columns) +
                    2 * SPW_LINEAR_ROW_BLOCK * COLS * sizeof(float) + EDGE_BYTES + 63) /
                   64 * 64,
};

struct work {
    const struct spw_linear_args *a;
    struct spw_linear_part part;
    const struct spw_codes *x; /* [m][groups] */
    size_t groups, row_bytes;
    size_t ahead;          /* bytes of the next panel that a part of the work on a group fetches */
    struct columns *panel; /* [VECTORS] */
    float *sums, *y;       /* [rows][COLS]: of a partition, of all partitions */
    uint8_t *edge;         /* room for a group of the last columns */
};

/* Multiplies all rows of the task by a group of the panel at col, and fetches a part of the next
 * panel; begin and end: of the partition. */
typedef void multiply_fn(const struct work *w, size_t col, size_t group, size_t begin, size_t end);

typedef int16_t short_eight __attribute__((vector_size(16)));
typedef int32_t eight __attribute__((vector_size(32)));
typedef float eight_f32 __attribute__((vector_size(32)));

/* Eight sums of codes of x. Compilers make worse code of a loop. */
SIMD_FN void load_sums(const int16_t *sums, eight *to)
{
    short_eight s;
    memcpy(&s, sums, sizeof s);
    *to = __builtin_convertvector(s, eight);
}

/* Of the codes of x of each small block, times their scale. */
SIMD_FN void scaled_sums(const struct spw_codes *x, float to[SMALL_BLOCKS])
{
    eight sums;
    eight_f32 scales;
    load_sums(x->sums32, &sums);
    memcpy(&scales, x->block_scales, sizeof scales);
    scales *= __builtin_convertvector(sums, eight_f32);
    memcpy(to, &scales, sizeof scales);
}

/* Numbers of a group: fewer at the end of a row. */
SIMD_FN size_t numbers_of(const struct work *w, size_t group)
{
    return (size_t)spw_min_u64(w->a->k - group * SPW_CODES_GROUP, SPW_CODES_GROUP);
}

/* The next panel is fetched in the order of memory: the hardware prefetchers follow one long
 * stream, and not the many columns of a panel. Each part of the work on a group fetches a few
 * lines, because a core waits while more lines than it has buffers are on their way. A row of x
 * takes about as long as two parts of unpacking (measured). */
enum { PANEL_PARTS = VECTORS * UNPACK_PARTS, ROW_PARTS = 2 };

SIMD_FN size_t parts_of_group(const struct work *w)
{
    return PANEL_PARTS + ROW_PARTS * (w->part.row_end - w->part.row);
}

/* Where the rows of x begin to fetch, with this group. Unpacking the group has fetched what is
 * before. */
SIMD_FN size_t fetched_by_rows(const struct work *w, size_t group)
{
    return (group * parts_of_group(w) + PANEL_PARTS) * w->ahead;
}

SIMD_FN struct fetched next_panel(const struct work *w, size_t col)
{
    const uint8_t *first = w->a->w;
    return (struct fetched){.at = first + (col + COLS) * w->row_bytes,
                            .end = first + w->a->n * w->row_bytes};
}

/* Bytes [from, to) of the next panel. */
SIMD_FN void fetch_ahead(const struct work *w, size_t col, size_t from, size_t to)
{
    const struct fetched f = next_panel(w, col);
    fetch_lines(f.at, f.end, from, to);
}

static void unpack_panel(const struct work *w, size_t col, size_t group)
{
    const struct spw_linear_args *a = w->a;
    const struct spw_type type = spw_type_of(a->w_dtype);
    const size_t first = group * SPW_CODES_GROUP, n = numbers_of(w, group);
    const size_t bytes = (size_t)spw_row_bytes(a->w_dtype, n);
    struct fetched f = next_panel(w, col);
    f.from = group * parts_of_group(w) * w->ahead;
    f.part = w->ahead;
    for (size_t v = 0; v < VECTORS; v++, col += SIMD_LANES) {
        struct packed p = {
            .stride = w->row_bytes, .fours = 4 * w->row_bytes, .blocks = n / type.elements};
        const size_t from = col < a->n ? col : a->n - 1;
        p.at = (const uint8_t *)a->w + from * p.stride + spw_row_bytes(a->w_dtype, first);
        if (from + SIMD_LANES > a->n)
            copy_edge(&p, a->n - from, bytes, w->edge);
        unpack_columns(a->w_dtype, &p, &f, &w->panel[v]);
        f.from += UNPACK_PARTS * f.part;
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

static void run_panel(const struct work *w, size_t col, multiply_fn *multiply)
{
    for (size_t partition = 0; partition < SPW_CODES_PARTITIONS; partition++) {
        const size_t begin = spw_codes_partition(w->groups, partition);
        const size_t end = spw_codes_partition(w->groups, partition + 1);
        for (size_t g = begin; g < end; g++) {
            unpack_panel(w, col, g);
            multiply(w, col, g, begin, end);
        }
    }
    store_panel(w, col);
}

SIMD_FN void run_panels(const struct spw_linear_args *a, size_t task, uint8_t *space,
                        multiply_fn *multiply)
{
    struct work w = {
        .a = a,
        .part = spw_linear_part(a, task),
        .x = a->codes,
        .groups = spw_codes_groups(a->k),
        .row_bytes = (size_t)spw_row_bytes(a->w_dtype, a->k),
        .panel = (struct columns *)(void *)space,
    };
    w.ahead = (size_t)spw_div_up(COLS * w.row_bytes, w.groups * parts_of_group(&w));
    w.sums = (float *)(void *)(w.panel + VECTORS);
    w.y = w.sums + SPW_LINEAR_ROW_BLOCK * COLS;
    w.edge = (uint8_t *)(w.y + SPW_LINEAR_ROW_BLOCK * COLS);
    for (size_t col = w.part.col; col < w.part.col_end; col += COLS)
        run_panel(&w, col, multiply);
}

#endif
