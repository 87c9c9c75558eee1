/* The linear kernel: y = x W^T by chains of vectors (chains.h), with one form for few rows of x
 * (thin.h) and one for many (tiles.h).
 *
 * Quantized weights and f32 x: the bits of the product with the same weights in f32. */
#include "model/cpu/linear/thin.h"
#include "model/cpu/linear/tiles.h"

enum { EXPANDED_COLS = 2 * TILE_COLS }; /* of quantized weights */

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
    return (size_t)spw_max_u64(tiled_workspace(k), thin_workspace(k));
}

size_t SIMD_NAME(spw_linear_workspace)(size_t k, enum spw_dtype x, enum spw_dtype w)
{
    if (!spw_type_is_quantized(w))
        return plain_workspace(k);
    return x == SPW_DTYPE_BF16 ? SIMD_NAME(spw_linear_codes_workspace)(k)
                               : plain_workspace(k) + EXPANDED_COLS * k * sizeof(float);
}

static void run_part(const struct spw_linear_args *a, struct spw_linear_part part, char *workspace,
                     bool is_intel)
{
    const struct work w = {.a = a,
                           .part = part,
                           .kind = kind_of(a),
                           .is_intel = is_intel,
                           .workspace = (float *)(void *)workspace};
    if (a->m <= SPW_LINEAR_THIN_ROWS)
        run_thin(&w);
    else
        run_tiled(&w);
}

/* Few rows of x and quantized weights: a few columns at a time become f32 in the workspace. */
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

SIMD_FN void run_as(const struct spw_linear_args *a, size_t task, unsigned worker, bool is_intel)
{
    const size_t bytes = SIMD_NAME(spw_linear_workspace)(a->k, a->x_dtype, a->w_dtype);
    char *workspace = (char *)a->workspace + bytes * worker;
    if (spw_type_is_quantized(a->w_dtype) && a->m <= SPW_LINEAR_THIN_ROWS)
        run_expanded(a, spw_linear_part(a, task), workspace);
    else
        run_part(a, spw_linear_part(a, task), workspace, is_intel);
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

/* Intel's processors read one or two rows of bf16 at 69 to 76 % of the reads without fetches, at 81
 * to 86 % with them. More rows than SPW_LINEAR_THIN_ROWS are 1.5 times as fast without dot products
 * of bf16 (Emerald Rapids, SPEED.md). */
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
