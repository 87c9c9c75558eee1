/* How y = x W^T is divided into tasks: blocks of rows x blocks of columns, for every CPU kernel
 * except amx.
 *
 * Row blocks of one column block follow each other: workers that run side by side share a part of
 * W, which is then read from memory once. Where x does not fit into the L3, a block of x stays in
 * the cache and W passes. A task is so long that starting its stream of W costs little, and so
 * short that waiting for the last task costs little. */
#ifndef SPW_MODEL_CPU_LINEAR_LINEAR_H
#define SPW_MODEL_CPU_LINEAR_LINEAR_H

#include "base/numbers.h"
#include "base/simd.h"
#include "base/simd_fours.h"
#include "model/ops.h"
#include "quant/types.h"

enum {
    SPW_LINEAR_THIN_ROWS = 10,
    SPW_LINEAR_ROW_TILE = 6, /* whole tiles of 6, of 3 and of 2 rows */
    SPW_LINEAR_ROW_BLOCK = 64 * SPW_LINEAR_ROW_TILE,
    SPW_LINEAR_COL_BLOCK = 128,
    SPW_LINEAR_FEW_ROWS =
        8, /* of x, with quantized weights: reading W takes most of the time ... */
    SPW_LINEAR_FEW_COLS = 512,         /* ... and a row of W is short */
    SPW_LINEAR_TASK_BYTES = 512 << 10, /* of W: half an L2 */
    SPW_LINEAR_L3_BYTES = 16 << 20,    /* x that is larger does not wait there */
};

/* The dtypes of x and w. */
enum kind {
    KIND_F32,
    KIND_F32_F16,
    KIND_F32_BF16,
    KIND_BF16,
};

SIMD_FN enum spw_dtype x_dtype(enum kind kind)
{
    return kind == KIND_BF16 ? SPW_DTYPE_BF16 : SPW_DTYPE_F32;
}

SIMD_FN enum spw_dtype w_dtype(enum kind kind)
{
    return kind == KIND_F32 ? SPW_DTYPE_F32 : kind == KIND_F32_F16 ? SPW_DTYPE_F16 : SPW_DTYPE_BF16;
}

struct spw_linear_part {
    size_t row, row_end, col, col_end;
};

/* Columns of a tile: 4, or 32 with quantized weights. With quantized weights and one row of x: the
 * rows of W that are side by side in along_k.h (4) and in eight_rows.h (8). */
static inline size_t spw_linear_tile_cols(const struct spw_linear_args *a)
{
#if defined(SIMD_FOURS)
    if (a->m == 1 && spw_type_is_quantized(a->w_dtype))
        return SIMD_FOURS == 4 ? 4 : 8;
#endif
    return spw_type_is_quantized(a->w_dtype) ? 32 : 4;
}

/* Whole tiles. Where reading W takes most of the time, the tasks are equal and a multiple of four
 * of them: two or four workers end together. */
static inline size_t spw_linear_cols_per_task(const struct spw_linear_args *a)
{
    const size_t tile = spw_linear_tile_cols(a);
    const bool few = spw_type_is_quantized(a->w_dtype) && a->m <= SPW_LINEAR_FEW_ROWS;
    const size_t most = few ? SPW_LINEAR_FEW_COLS : SPW_LINEAR_COL_BLOCK;
    size_t row_bytes = (size_t)spw_row_bytes(a->w_dtype, a->k);
    size_t cols = SPW_LINEAR_TASK_BYTES / (row_bytes ? row_bytes : 1) / tile * tile;
    cols = cols < tile ? tile : (size_t)spw_min_u64(cols, most);
    if (!few || cols >= a->n)
        return cols;
    const uint64_t tasks = spw_div_up(a->n, cols);
    return (size_t)spw_align_up(spw_div_up(a->n, spw_align_up(tasks, tasks > 2 ? 4 : 2)), tile);
}

/* Equal blocks, of whole tiles: a short one would unpack or read W for few rows. */
static inline size_t spw_linear_rows_per_task(const struct spw_linear_args *a)
{
    const uint64_t blocks = spw_div_up(a->m, SPW_LINEAR_ROW_BLOCK);
    const uint64_t tiles = blocks ? spw_div_up(spw_div_up(a->m, blocks), SPW_LINEAR_ROW_TILE) : 0;
    return (size_t)tiles * SPW_LINEAR_ROW_TILE;
}

static inline size_t spw_linear_tasks(const void *args)
{
    const struct spw_linear_args *a = args;
    return a->m == 0 ? 0
                     : (size_t)(spw_div_up(a->m, spw_linear_rows_per_task(a)) *
                                spw_div_up(a->n, spw_linear_cols_per_task(a)));
}

static inline struct spw_linear_part spw_linear_part(const struct spw_linear_args *a, size_t task)
{
    const size_t rows = spw_linear_rows_per_task(a), cols = spw_linear_cols_per_task(a);
    const size_t row_blocks = (size_t)spw_div_up(a->m, rows);
    const size_t col_blocks = (size_t)spw_div_up(a->n, cols);
    const bool rows_first = a->m * a->k * spw_dtype_bytes(a->x_dtype) <= SPW_LINEAR_L3_BYTES;
    const size_t row = (rows_first ? task % row_blocks : task / col_blocks) * rows;
    const size_t col = (rows_first ? task / row_blocks : task % col_blocks) * cols;
    return (struct spw_linear_part){row, (size_t)spw_min_u64(row + rows, a->m), col,
                                    (size_t)spw_min_u64(col + cols, a->n)};
}

/* Rows of the next tile. The last two tiles divide the rest evenly: too few rows would not hide the
 * latency of the sums. */
static inline size_t spw_linear_next_rows(size_t left, size_t tile)
{
    return left <= tile ? left : left < 2 * tile ? (left + 1) / 2 : tile;
}

/* Before a loop whose iterations are independent. */
#ifdef __clang__
#define INDEPENDENT
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

/* y = sums + bias for n elements, rounded once; adding the residual rounds once more. bias and
 * residual may be NULL. The residual is y or does not overlap y: elements are independent. */
SIMD_FN void spw_linear_store_f32(float *y, const float *sums, const float *bias,
                                  const float *residual, size_t n)
{
    INDEPENDENT
    for (size_t i = 0; i < n; i++) {
        float v = bias ? sums[i] + bias[i] : sums[i];
        y[i] = residual ? residual[i] + v : v;
    }
}

typedef float spw_linear_f4 __attribute__((vector_size(16)));
typedef uint32_t spw_linear_u4 __attribute__((vector_size(16)));
typedef uint16_t spw_linear_h4 __attribute__((vector_size(8)));

/* spw_f32_to_bf16 of four. */
SIMD_FN spw_linear_u4 spw_linear_round4(spw_linear_f4 x)
{
    const spw_linear_u4 bits = (spw_linear_u4)x, is_number = (spw_linear_u4)(x == x);
    const spw_linear_u4 rounded = bits + 0x7fffu + (bits >> 16 & 1);
    return ((rounded & is_number) | ((bits | 0x400000u) & ~is_number)) >> 16;
}

/* As below, for the four columns of a tile: so few that a compiler makes no vectors of them. */
SIMD_FN void spw_linear_store4_bf16(uint16_t *y, const float *sums, const float *bias,
                                    const uint16_t *residual)
{
    spw_linear_f4 v, b;
    spw_linear_h4 h;
    memcpy(&v, sums, sizeof v);
    if (bias) {
        memcpy(&b, bias, sizeof b);
        v += b;
    }
    spw_linear_u4 bits = spw_linear_round4(v);
    if (residual) {
        memcpy(&h, residual, sizeof h);
        const spw_linear_u4 r = __builtin_convertvector(h, spw_linear_u4);
        bits = spw_linear_round4((spw_linear_f4)(r << 16) + (spw_linear_f4)(bits << 16));
    }
    h = __builtin_convertvector(bits, spw_linear_h4);
    memcpy(y, &h, sizeof h);
}

SIMD_FN void spw_linear_store_bf16(uint16_t *y, const float *sums, const float *bias,
                                   const uint16_t *residual, size_t n)
{
    INDEPENDENT
    for (size_t i = 0; i < n; i++) {
        uint16_t v = spw_f32_to_bf16(bias ? sums[i] + bias[i] : sums[i]);
        y[i] = residual ? spw_f32_to_bf16(spw_bf16_to_f32(residual[i]) + spw_bf16_to_f32(v)) : v;
    }
}

/* The sums of y[row][col .. col + n). */
SIMD_APART void spw_linear_store(const struct spw_linear_args *a, size_t row, size_t col,
                                 const float *sums, size_t n)
{
    const size_t at = row * a->y_stride + col;
    const float *bias = a->bias ? a->bias + col : NULL;
    if (a->y_dtype == SPW_DTYPE_F32) {
        const float *residual = a->residual;
        spw_linear_store_f32((float *)a->y + at, sums, bias, residual ? residual + at : NULL, n);
    } else {
        const uint16_t *residual = a->residual;
        if (n == 4)
            spw_linear_store4_bf16((uint16_t *)a->y + at, sums, bias,
                                   residual ? residual + at : NULL);
        else
            spw_linear_store_bf16((uint16_t *)a->y + at, sums, bias,
                                  residual ? residual + at : NULL, n);
    }
}

#endif
