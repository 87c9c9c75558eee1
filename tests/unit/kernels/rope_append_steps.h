/* Rope and append as separate steps in plain C, each of which stores its result. With a norm of
 * each head before them they give the exact bits that rope_append must give. */
#ifndef SPW_TESTS_UNIT_KERNELS_ROPE_APPEND_STEPS_H
#define SPW_TESTS_UNIT_KERNELS_ROPE_APPEND_STEPS_H

#include "quant/tile.h"
#include "tests/unit/kernels/ops_cpu_each.h"

#include <stdlib.h>

/* Tiles that a problem has of each slice, and the most slices. */
enum { STEPS_TILES = 4, STEPS_SLICES = 5 };

/* KV heads that share a tile. */
static inline uint32_t steps_slice_heads(const struct spw_rope_append_args *a)
{
    return a->slice_heads ? a->slice_heads : a->n_kv_heads;
}

static inline uint32_t steps_slices(const struct spw_rope_append_args *a)
{
    return a->n_kv_heads ? a->n_kv_heads / steps_slice_heads(a) : 1;
}

static inline size_t steps_tile_bytes(const struct spw_rope_append_args *a)
{
    return spw_tile_bytes(steps_slice_heads(a), spw_tile_square(a->head_dim), a->kv_dtype);
}

static inline size_t steps_tiles_of_call(const struct spw_rope_append_args *a)
{
    return (size_t)spw_div_up(a->position % SPW_TILE_TOKENS + a->rows, SPW_TILE_TOKENS);
}

/* Lists the tiles of a call whose rows begin in tile `first` of tiles [slices][STEPS_TILES]. */
static inline void steps_list_tiles(struct spw_rope_append_args *a, char *const *tiles,
                                    size_t first)
{
    const size_t n = steps_tiles_of_call(a);
    for (size_t i = 0; i < steps_slices(a) * n; i++)
        a->tiles[i] = tiles[i / n * STEPS_TILES + first + i % n];
}

/* Draws how many heads share a tile. */
static inline void steps_draw_slices(struct spw_rope_append_args *a, uint64_t *rng)
{
    a->slice_heads = (uint32_t)check_range(rng, 0, a->n_kv_heads);
    if (a->slice_heads && a->n_kv_heads % a->slice_heads)
        a->slice_heads = 1;
}

/* Element index in qkv of a head of a row: heads of q, then of k, then of v. */
static inline size_t steps_head(const struct spw_rope_append_args *a, size_t row, size_t head)
{
    return row * a->stride + head * a->head_dim;
}

/* Draws how far apart rows and heads of q lie, if q comes from elsewhere. Returns its elements. */
static inline size_t steps_draw_q(struct spw_rope_append_args *a, uint64_t *rng)
{
    a->q_step = a->head_dim * check_range(rng, 1, 2) + check_range(rng, 0, 1);
    a->q_stride = a->n_heads * a->q_step + check_range(rng, 0, 3);
    return a->rows * a->q_stride;
}

/* q that comes from elsewhere is copied into `qkv`. */
static inline void steps_take_q(const struct spw_rope_append_args *a, char *qkv)
{
    const size_t wide = spw_dtype_bytes(a->dtype);
    for (size_t i = 0; a->q && i < a->rows * a->n_heads; i++) {
        const size_t row = i / a->n_heads, head = i % a->n_heads;
        const size_t from = row * a->q_stride + head * a->q_step;
        memcpy(qkv + steps_head(a, row, head) * wide, (const char *)a->q + from * wide,
               a->head_dim * wide);
    }
}

/* Interleaved heads of q and k in `qkv` are put in order. */
static inline void steps_order(const struct spw_rope_append_args *a, char *qkv)
{
    size_t wide = spw_dtype_bytes(a->dtype), half = a->rotary_dim / 2;
    char old[SPW_MOST_HEAD_DIM * sizeof(float)];
    for (size_t i = 0; a->interleaved && i < a->rows * (a->n_heads + a->n_kv_heads); i++) {
        size_t heads = a->n_heads + a->n_kv_heads;
        char *x = qkv + steps_head(a, i / heads, i % heads) * wide;
        memcpy(old, x, a->head_dim * wide);
        for (size_t c = 0; c < a->rotary_dim; c++)
            memcpy(x + c * wide, old + (c % half * 2 + c / half) * wide, wide);
    }
}

/* The norm of head `head` of q and k in all rows of qkv, in place. Its weight is NULL if there is
 * none. */
static inline struct spw_norm_args steps_norm(const struct spw_rope_append_args *a, char *qkv,
                                              size_t head)
{
    char *x = qkv + steps_head(a, 0, head) * spw_dtype_bytes(a->dtype);
    bool q = head < a->n_heads;
    const float *weight = q ? a->q_norm : a->k_norm, *bias = q ? a->q_norm_bias : a->k_norm_bias;
    size_t own = a->norm_by_head ? (head - (q ? 0 : a->n_heads)) * a->head_dim : 0;
    return (struct spw_norm_args){.x = x,
                                  .y = x,
                                  .weight = weight ? weight + own : NULL,
                                  .bias = bias ? bias + own : NULL,
                                  .rows = a->rows,
                                  .cols = a->head_dim,
                                  .x_stride = a->stride,
                                  .y_stride = a->stride,
                                  .eps = a->eps,
                                  .kind = a->norm,
                                  .dtype = a->dtype};
}

/* Heads of q and k of all rows are rotated in place. */
static inline void steps_rope(const struct spw_rope_append_args *a)
{
    const enum spw_dtype t = a->dtype;
    const enum spw_dtype angle_t = a->rounding == SPW_ROPE_ROUNDS_RESULT ? SPW_DTYPE_F32 : t;
    const enum spw_dtype product_t = a->rounding == SPW_ROPE_ROUNDS_ALL ? t : SPW_DTYPE_F32;
    size_t apart = a->rotary_dim / 2, heads = a->n_heads + a->n_kv_heads;
    for (size_t i = 0; i < a->rows * heads * apart; i++) {
        size_t row = i / apart / heads, pair = i % apart;
        size_t low = steps_head(a, row, i / apart % heads) + pair, high = low + apart;
        float angle = (float)(a->position + row) * a->inv_freq[pair];
        float c = (float)each_round_as((double)(cosf(angle) * a->scaling), angle_t);
        float s = (float)each_round_as((double)(sinf(angle) * a->scaling), angle_t);
        float x = (float)each_load(a->qkv, low, t), y = (float)each_load(a->qkv, high, t);
        float x_c = (float)each_round_as((double)(x * c), product_t);
        float x_s = (float)each_round_as((double)(x * s), product_t);
        float y_c = (float)each_round_as((double)(y * c), product_t);
        float y_s = (float)each_round_as((double)(y * s), product_t);
        each_store(a->qkv, low, t, (double)(x_c - y_s));
        each_store(a->qkv, high, t, (double)(y_c + x_s));
    }
}

/* Heads of q grow with their position. */
static inline void steps_grow(const struct spw_rope_append_args *a)
{
    enum spw_dtype t = a->dtype;
    for (size_t i = 0; a->growth.beta != 0 && i < a->rows * a->n_heads * a->head_dim; i++) {
        size_t row = i / a->head_dim / a->n_heads;
        size_t at = steps_head(a, row, i / a->head_dim % a->n_heads) + i % a->head_dim;
        float whole = floorf(((float)(a->position + row) + a->growth.offset) / a->growth.base);
        float by = 1.0f + a->growth.beta * logf(1.0f + whole);
        each_store(a->qkv, at, t, each_load(a->qkv, at, t) * each_round_as((double)by, t));
    }
}

/* What may be drawn of norms and of growth. */
static inline void steps_draw(struct spw_rope_append_args *a, uint64_t *rng)
{
    static const enum spw_norm_kind kinds[] = {SPW_NORM_LLAMA, SPW_NORM_LATE, SPW_NORM_MEAN};
    a->norm = kinds[check_range(rng, 0, 2)];
    a->norm_by_head = check_range(rng, 0, 1);
    a->rounding = (enum spw_rope_rounding)check_range(rng, 0, 2);
    if (check_range(rng, 0, 1))
        a->growth = (struct spw_query_growth){0.25f, (float)check_range(rng, 1, 9000),
                                              (float)check_range(rng, 0, 1)};
}

/* Heads of v of all rows, [rows][n_kv_heads][head_dim], of what is in `qkv` before the call; owned
 * by the caller. */
static inline char *steps_values(const struct spw_rope_append_args *a, const char *qkv)
{
    size_t wide = spw_dtype_bytes(a->dtype), bytes = a->n_kv_heads * a->head_dim * wide;
    size_t first = a->n_heads + (a->v_is_k ? 0 : a->n_kv_heads);
    char *values = malloc(a->rows * bytes + 1);
    for (size_t row = 0; row < a->rows; row++)
        memcpy(values + row * bytes, qkv + steps_head(a, row, first) * wide, bytes);
    return values;
}

/* Their norm, in place. */
static inline struct spw_norm_args steps_values_norm(const struct spw_rope_append_args *a,
                                                     char *values)
{
    return (struct spw_norm_args){.x = values,
                                  .y = values,
                                  .rows = a->rows * a->n_kv_heads,
                                  .cols = a->head_dim,
                                  .x_stride = a->head_dim,
                                  .y_stride = a->head_dim,
                                  .eps = a->eps,
                                  .kind = a->norm,
                                  .dtype = a->dtype};
}

/* K and V of all rows go into the tiles; a pair of which only the first is written gets a zero. */
static inline void steps_append(const struct spw_rope_append_args *a, const char *values)
{
    uint32_t d = a->head_dim, kv_heads = a->n_kv_heads;
    enum spw_dtype t = a->kv_dtype;
    for (size_t i = 0; i < a->rows * 2 * kv_heads * d; i++) {
        uint32_t c = (uint32_t)(i % d), head = (uint32_t)(i / d % (2 * kv_heads));
        size_t row = i / d / (2 * kv_heads), at = a->position % SPW_TILE_TOKENS + row;
        uint32_t j = (uint32_t)(at % SPW_TILE_TOKENS);
        const size_t value = (row * kv_heads + head % spw_max_u32(kv_heads, 1)) * d + c;
        double x = head < kv_heads
                       ? each_load(a->qkv, steps_head(a, row, a->n_heads + head) + c, a->dtype)
                       : each_load(values, value, a->dtype);
        const uint32_t shares = steps_slice_heads(a), of_kind = head % kv_heads;
        const size_t tile = of_kind / shares * steps_tiles_of_call(a) + at / SPW_TILE_TOKENS;
        const uint32_t in_tile = of_kind % shares + (head < kv_heads ? 0 : shares);
        char *to = (char *)a->tiles[tile] + in_tile * spw_tile_head_bytes(d, t);
        if (head < kv_heads) {
            each_store(to, spw_tile_k_index(d, t, j, c), t, x);
            continue;
        }
        each_store(to, spw_tile_v_index(d, t, j, c), t, x);
        if (t != SPW_DTYPE_F32 && j % 2 == 0)
            each_store(to, spw_tile_v_index(d, t, j + 1, c), t, 0);
    }
}

#endif
