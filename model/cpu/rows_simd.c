/* The row operations of model/ops.h, over sixteen lanes.
 *
 * Each output element depends on its own row only. */
#include "model/cpu/kernels.h"
#include "model/cpu/math.h"
#include "model/cpu/row_tasks.h"

enum {
    NORM_CHAINS = 4,
    ROPE_ANGLES = 2048, /* in memory at a time: of 16 rows, with heads of up to 256 channels */
    ROPE_TASKS = 4, /* enough tasks; each further task computes the angles of its rows once more */
};

/* ---- norm ---- */

/* Adds n elements to a chain: x - middle, or its square. */
SIMD_FN struct vec add_to_mean(struct vec chain, const void *x, size_t at, size_t n,
                               const enum spw_dtype t, const bool squares, float middle)
{
    struct vec v = vec_load_as(x, at, n, t);
    if (middle != 0) { /* lanes after the end stay 0 */
        float middles[VEC_LANES];
        vec_store(middles, vec_set1(middle));
        v = vec_sub(v, vec_load_as(middles, 0, n, SPW_DTYPE_F32));
    }
    return squares ? vec_fma(v, v, chain) : vec_add(v, chain);
}

/* The mean of x, or of the squares of x - middle. Four chains of sixteen lanes, folded pairwise:
 * the tree depends on cols alone. */
SIMD_FN float mean_of(const void *x, size_t first, size_t cols, const enum spw_dtype t,
                      const bool squares, float middle)
{
    struct vec chain[NORM_CHAINS];
    size_t i = 0, step = (size_t)NORM_CHAINS * VEC_LANES;
#pragma GCC unroll 4
    for (size_t k = 0; k < NORM_CHAINS; k++)
        chain[k] = vec_set1(0.0f);
    for (; i + step <= cols; i += step)
#pragma GCC unroll 4
        for (size_t k = 0; k < NORM_CHAINS; k++)
            chain[k] =
                add_to_mean(chain[k], x, first + i + k * VEC_LANES, VEC_LANES, t, squares, middle);
#pragma GCC unroll 4
    for (size_t k = 0; k < NORM_CHAINS; k++)
        if (i + k * VEC_LANES < cols) {
            size_t at = i + k * VEC_LANES, n = smaller(cols - at, VEC_LANES);
            chain[k] = add_to_mean(chain[k], x, first + at, n, t, squares, middle);
        }
    struct vec sum = vec_add(vec_add(chain[0], chain[2]), vec_add(chain[1], chain[3]));
    return vec_sum(sum) / (float)cols;
}

/* n elements from column i on; `inverse`: of the deviation. */
SIMD_FN void norm_columns(const struct spw_norm_args *a, size_t x, size_t y, size_t i, size_t n,
                          float middle, struct vec inverse, const enum spw_dtype t)
{
    struct vec w = a->weight ? vec_load_as(a->weight, i, n, SPW_DTYPE_F32) : vec_set1(1.0f);
    struct vec v = vec_load_as(a->x, x + i, n, t);
    if (a->kind == SPW_NORM_MEAN)
        v = vec_sub(v, vec_set1(middle));
    v = vec_mul(v, inverse);
    v = vec_mul(w, a->kind == SPW_NORM_LLAMA ? vec_round_as(v, t) : v);
    if (a->bias)
        v = vec_add(v, vec_load_as(a->bias, i, n, SPW_DTYPE_F32));
    if (a->residual)
        v = vec_add(vec_load_as(a->residual, y + i, n, t), vec_round_as(v, t));
    if (a->factor)
        v = vec_mul(vec_round_as(v, t), vec_set1(*a->factor));
    vec_store_as(a->y, y + i, n, t, v);
}

SIMD_FN void norm_as(const struct spw_norm_args *a, size_t x, size_t y, const enum spw_dtype t)
{
    const bool norms = a->kind != SPW_NORM_NONE;
    float middle = a->kind == SPW_NORM_MEAN ? mean_of(a->x, x, a->cols, t, false, 0) : 0;
    float mean = norms ? mean_of(a->x, x, a->cols, t, true, middle) : 0;
    struct vec inverse = vec_set1(norms ? 1.0f / sqrtf(mean + a->eps) : 1.0f);
    size_t i = 0;
    for (; i + VEC_LANES <= a->cols; i += VEC_LANES)
        norm_columns(a, x, y, i, VEC_LANES, middle, inverse, t);
    if (i < a->cols)
        norm_columns(a, x, y, i, a->cols - i, middle, inverse, t);
}

/* A loop of its own for each type: the compiler knows then how a vector is loaded. */
static void norm_one(const struct spw_norm_args *a, size_t x, size_t y)
{
    if (a->dtype == SPW_DTYPE_BF16)
        norm_as(a, x, y, SPW_DTYPE_BF16);
    else
        norm_as(a, x, y, SPW_DTYPE_F32);
}

static size_t norm_tasks(const void *args)
{
    const struct spw_norm_args *a = args;
    return spw_div_up(a->rows, task_rows(a->cols));
}

static void norm_run(const void *args, size_t task, unsigned worker)
{
    const struct spw_norm_args *a = args;
    (void)worker;
    size_t step = task_rows(a->cols), end = smaller((task + 1) * step, a->rows);
    for (size_t row = task * step; row < end; row++)
        norm_one(a, row * a->x_stride, row * a->y_stride);
}

/* ---- rope_append ---- */

/* A task is one K block of 16 positions, which share cache lines of K; two positions share words of
 * V. If there are few blocks, a task is some KV heads of a block with the q heads of their groups.
 * q is walked row by row, k and v head by head: so lines of K are filled while they are in the L1
 * cache. */
struct rope_rows {
    const struct spw_rope_append_args *a;
    size_t first, end;                         /* rows whose angles are these */
    size_t pairs;                              /* angles of a row, up to a whole number of lanes */
    float *cosine, *sine;                      /* [end - first][pairs] */
    uint32_t kv_first, kv_end, q_first, q_end; /* heads */
};

static void rope_angles(const struct spw_rope_append_args *a, size_t row, size_t pairs,
                        float *cosine, float *sine)
{
    const enum spw_dtype t = a->rounding == SPW_ROPE_ROUNDS_RESULT ? SPW_DTYPE_F32 : a->dtype;
    float position = (float)(a->position + row);
    for (size_t i = 0; i < pairs; i++) {
        bool used = i < a->rotary_dim / 2;
        float angle = used ? position * a->inv_freq[i] : 0.0f;
        cosine[i] = cosf(angle) * a->scaling;
        sine[i] = sinf(angle) * a->scaling;
    }
    for (size_t i = 0; i < pairs; i += VEC_LANES) {
        vec_store(cosine + i, vec_round_as(vec_load(cosine + i), t));
        vec_store(sine + i, vec_round_as(vec_load(sine + i), t));
    }
}

SIMD_FN void rope_columns(void *x, size_t at, size_t half, size_t i, size_t n, const float *cosine,
                          const float *sine, const enum spw_dtype t, const enum spw_dtype product)
{
    struct vec c = vec_load(cosine + i), s = vec_load(sine + i);
    struct vec low = vec_load_as(x, at + i, n, t), high = vec_load_as(x, at + half + i, n, t);
    struct vec low_c = vec_round_as(vec_mul(low, c), product);
    struct vec low_s = vec_round_as(vec_mul(low, s), product);
    struct vec high_c = vec_round_as(vec_mul(high, c), product);
    struct vec high_s = vec_round_as(vec_mul(high, s), product);
    vec_store_as(x, at + i, n, t, vec_sub(low_c, high_s));
    vec_store_as(x, at + half + i, n, t, vec_add(high_c, low_s));
}

SIMD_FN void rope_pairs_as(void *x, size_t at, size_t half, const float *cosine, const float *sine,
                           const enum spw_dtype t, const enum spw_dtype product)
{
    size_t i = 0;
    for (; i + VEC_LANES <= half; i += VEC_LANES)
        rope_columns(x, at, half, i, VEC_LANES, cosine, sine, t, product);
    if (i < half)
        rope_columns(x, at, half, i, half - i, cosine, sine, t, product);
}

/* Rounds products to the type `product`. */
static void rope_pairs(void *x, size_t at, size_t half, const float *cosine, const float *sine,
                       enum spw_dtype t, enum spw_dtype product)
{
    if (t != SPW_DTYPE_BF16)
        rope_pairs_as(x, at, half, cosine, sine, SPW_DTYPE_F32, SPW_DTYPE_F32);
    else if (product == SPW_DTYPE_BF16)
        rope_pairs_as(x, at, half, cosine, sine, SPW_DTYPE_BF16, SPW_DTYPE_BF16);
    else
        rope_pairs_as(x, at, half, cosine, sine, SPW_DTYPE_BF16, SPW_DTYPE_F32);
}

/* The first n channels, which come as 0, n/2, 1, n/2 + 1, ..., are put in order. */
static void in_order(void *to, const void *from, size_t n, enum spw_dtype t)
{
    for (size_t i = 0; i < n / 2; i++) {
        if (t == SPW_DTYPE_F32) {
            memcpy((float *)to + i, (const float *)from + 2 * i, 4);
            memcpy((float *)to + n / 2 + i, (const float *)from + 2 * i + 1, 4);
        } else {
            memcpy((uint16_t *)to + i, (const uint16_t *)from + 2 * i, 2);
            memcpy((uint16_t *)to + n / 2 + i, (const uint16_t *)from + 2 * i + 1, 2);
        }
    }
}

/* Norms and rotates, in the order that the family has, head `head` of q and k in row `row`. Writes
 * it at element `at` of `to`, which may be qkv. */
static void rope_head(const struct rope_rows *r, size_t row, uint32_t head, void *to, size_t at)
{
    const struct spw_rope_append_args *a = r->a;
    const bool is_q = head < a->n_heads;
    const float *weight = is_q ? a->q_norm : a->k_norm;
    const float *bias = is_q ? a->q_norm_bias : a->k_norm_bias;
    const size_t weights = a->norm_by_head ? (head - (is_q ? 0 : a->n_heads)) * a->head_dim : 0;
    const bool is_apart = is_q && a->q;
    const void *const x = is_apart ? a->q : a->qkv;
    size_t bytes = spw_dtype_bytes(a->dtype), angles = (row - r->first) * r->pairs;
    size_t from = is_apart ? row * a->q_stride + head * a->q_step
                           : row * a->stride + (size_t)head * a->head_dim;
    struct spw_norm_args norm = {.x = x,
                                 .y = to,
                                 .weight = weight ? weight + weights : NULL,
                                 .bias = bias ? bias + weights : NULL,
                                 .cols = a->head_dim,
                                 .eps = a->eps,
                                 .kind = a->norm,
                                 .dtype = a->dtype};
    if (a->interleaved) {
        _Alignas(64) float copy[SPW_MOST_HEAD_DIM];
        memcpy(copy, (const char *)x + from * bytes, a->head_dim * bytes);
        memcpy((char *)to + at * bytes, copy, a->head_dim * bytes);
        in_order((char *)to + at * bytes, copy, a->rotary_dim, a->dtype);
        norm.x = to;
        from = at;
    }
    if (weight && !a->norm_last)
        norm_one(&norm, from, at);
    else if (to != x && !a->interleaved)
        memcpy((char *)to + at * bytes, (const char *)x + from * bytes, a->head_dim * bytes);
    rope_pairs(to, at, a->rotary_dim / 2, r->cosine + angles, r->sine + angles, a->dtype,
               a->rounding == SPW_ROPE_ROUNDS_ALL ? a->dtype : SPW_DTYPE_F32);
    norm.x = to;
    if (weight && a->norm_last)
        norm_one(&norm, at, at);
}

/* Stores sixteen K channels of one position; their places are 16 positions apart. */
static void append_k(char *head, uint32_t head_dim, uint32_t j, uint32_t c, size_t n, struct vec v,
                     enum spw_dtype t)
{
    char staged[VEC_LANES * sizeof(float)];
    size_t bytes = spw_dtype_bytes(t), together = t == SPW_DTYPE_F32 ? 1 : 2;
    vec_store_full_as(staged, v, t);
    char *to = head + spw_tile_k_index(head_dim, t, j, c) * bytes;
    for (size_t i = 0; i < n; i += together) /* c and n are even: a pair is four bytes */
        memcpy(to + i * SPW_TILE_BLOCK * bytes, staged + i * bytes, 4);
}

/* Stores sixteen V channels of one position. The store of the first position of a pair clears the
 * second half of the pair; see quant/tile.h. */
static void append_v(char *head, uint32_t head_dim, uint32_t j, uint32_t c, size_t n, struct vec v,
                     enum spw_dtype t)
{
    uint16_t staged[2 * VEC_LANES];
    size_t bytes = spw_dtype_bytes(t);
    vec_store_full_as(staged, v, t);
    char *to = head + spw_tile_v_index(head_dim, t, j, c) * bytes;
    if (t == SPW_DTYPE_F32) {
        memcpy(to, staged, n * sizeof(float));
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint16_t pair[2] = {staged[i], 0};
        memcpy(to + i * sizeof pair, pair, j % 2 ? sizeof pair[0] : sizeof pair);
    }
}

/* V of the head that begins at element *from of qkv: *from moves to where `scratch` has it if it
 * must be normed. */
static const void *find_v(const struct spw_rope_append_args *a, size_t *from, void *scratch)
{
    const struct spw_norm_args norm = {.x = a->qkv,
                                       .y = scratch,
                                       .cols = a->head_dim,
                                       .eps = a->eps,
                                       .kind = a->norm,
                                       .dtype = a->dtype};
    if (!a->v_norm)
        return a->qkv;
    norm_one(&norm, *from, 0);
    *from = 0;
    return scratch;
}

/* Appends K and V of one head of one row. `head`, `v_head`: scratch for a head. */
static void append_head(const struct rope_rows *r, size_t row, uint32_t kv_head, void *head,
                        void *v_head)
{
    const struct spw_rope_append_args *a = r->a;
    size_t x = row * a->stride;
    char *k = spw_append_head(a, row, kv_head, false), *v = spw_append_head(a, row, kv_head, true);
    uint32_t j = (uint32_t)((a->position + row) % SPW_TILE_TOKENS);
    size_t before = a->n_heads + (a->v_is_k ? 0 : a->n_kv_heads);
    size_t value = x + (before + kv_head) * a->head_dim;
    const void *values = find_v(a, &value, v_head);
    rope_head(r, row, a->n_heads + kv_head, head, 0);
    for (uint32_t c = 0; c < a->head_dim; c += VEC_LANES) {
        size_t n = smaller(a->head_dim - c, VEC_LANES);
        append_k(k, a->head_dim, j, c, n, vec_load_as(head, c, n, a->dtype), a->kv_dtype);
        append_v(v, a->head_dim, j, c, n, vec_load_as(values, value + c, n, a->dtype), a->kv_dtype);
    }
}

static float rounded_one(float x, enum spw_dtype t)
{
    float lanes[VEC_LANES];
    vec_store(lanes, vec_round_as(vec_set1(x), t));
    return lanes[0];
}

static float query_growth(const struct spw_rope_append_args *a, size_t row)
{
    if (a->growth.beta == 0)
        return 1.0f;
    const float steps = floorf(((float)(a->position + row) + a->growth.offset) / a->growth.base);
    return rounded_one(1.0f + a->growth.beta * logf(1.0f + steps), a->dtype);
}

/* Multiplies the head of q at element x of qkv. */
static void grow(const struct spw_rope_append_args *a, size_t x, float by)
{
    for (size_t i = 0; by != 1.0f && i < a->head_dim; i += VEC_LANES) {
        size_t n = smaller(a->head_dim - i, VEC_LANES);
        struct vec v = vec_load_as(a->qkv, x + i, n, a->dtype);
        vec_store_as(a->qkv, x + i, n, a->dtype, vec_mul(v, vec_set1(by)));
    }
}

static void rope_append_rows(const struct rope_rows *r)
{
    const struct spw_rope_append_args *a = r->a;
    _Alignas(64) float head[SPW_MOST_HEAD_DIM], v_head[SPW_MOST_HEAD_DIM];
    for (size_t row = r->first; row < r->end; row++) {
        const float growth = query_growth(a, row);
        for (uint32_t q = r->q_first; q < r->q_end; q++) {
            size_t x = row * a->stride + (size_t)q * a->head_dim;
            rope_head(r, row, q, a->qkv, x);
            grow(a, x, growth);
        }
    }
    for (uint32_t kv_head = r->kv_first; kv_head < r->kv_end; kv_head++)
        for (size_t row = r->first; row < r->end; row++)
            append_head(r, row, kv_head, head, v_head);
}

static size_t rope_blocks(const struct spw_rope_append_args *a)
{
    return spw_div_up(a->position % SPW_TILE_BLOCK + a->rows, SPW_TILE_BLOCK);
}

/* KV heads with the q heads of their groups; without KV heads, single heads of q. */
static uint32_t rope_groups(const struct spw_rope_append_args *a)
{
    return a->n_kv_heads ? a->n_kv_heads : a->n_heads;
}

/* Tasks that share a block. */
static size_t rope_shares(const struct spw_rope_append_args *a)
{
    size_t shares = smaller(ROPE_TASKS / rope_blocks(a), rope_groups(a));
    return shares ? shares : 1;
}

static size_t rope_append_tasks(const void *args)
{
    const struct spw_rope_append_args *a = args;
    return a->rows ? rope_blocks(a) * rope_shares(a) : 0;
}

static void rope_append_run(const void *args, size_t task, unsigned worker)
{
    const struct spw_rope_append_args *a = args;
    (void)worker;
    float cosine[ROPE_ANGLES], sine[ROPE_ANGLES];
    size_t shares = rope_shares(a), share = task % shares, block = task / shares;
    size_t offset = a->position % SPW_TILE_BLOCK;
    size_t row = spw_sub_u64(block * SPW_TILE_BLOCK, offset);
    size_t end = smaller((block + 1) * SPW_TILE_BLOCK - offset, a->rows);
    size_t pairs = spw_div_up(a->rotary_dim / 2, VEC_LANES) * VEC_LANES;
    const uint32_t groups = rope_groups(a), heads = groups ? a->n_heads / groups : 0;
    const uint32_t first = (uint32_t)(share * groups / shares);
    const uint32_t last = (uint32_t)((share + 1) * groups / shares);
    struct rope_rows r = {.a = a,
                          .pairs = pairs,
                          .cosine = cosine,
                          .sine = sine,
                          .kv_first = a->n_kv_heads ? first : 0,
                          .kv_end = a->n_kv_heads ? last : 0,
                          .q_first = first * heads,
                          .q_end = last * heads};
    for (; row < end; row = r.end) {
        r.first = row;
        r.end = pairs ? smaller(row + ROPE_ANGLES / pairs, end) : end;
        for (; row < r.end; row++)
            rope_angles(a, row, pairs, cosine + (row - r.first) * pairs,
                        sine + (row - r.first) * pairs);
        rope_append_rows(&r);
    }
}

/* ---- gated ---- */

static void gated_piece(const struct spw_gated_args *a, size_t row, size_t first, size_t end)
{
    size_t gate = row * a->gate_stride, up = row * a->up_stride;
    for (size_t i = first; i < end; i += VEC_LANES) {
        size_t n = smaller(end - i, VEC_LANES);
        struct vec g = vec_load_as(a->gate, gate + i, n, a->dtype);
        struct vec u = vec_load_as(a->up, up + i, n, a->dtype);
        if (a->act == SPW_ACT_CUT_QUICK)
            u = vec_round_as(num_cut_up(u), a->dtype);
        g = vec_mul(vec_round_as(num_activation(g, a->act), a->dtype), u);
        vec_store_as(a->y, row * a->cols + i, n, a->dtype, g);
    }
}

static size_t gated_tasks(const void *args)
{
    const struct spw_gated_args *a = args;
    return piece_tasks(a->rows, a->cols);
}

static void gated_run(const void *args, size_t task, unsigned worker)
{
    const struct spw_gated_args *a = args;
    (void)worker;
    const struct piece p = piece_of(task, a->rows, a->cols);
    for (size_t row = p.row; row < p.last; row++)
        gated_piece(a, row, p.first, p.end);
}

/* ---- softcap ---- */

static size_t softcap_tasks(const void *args)
{
    return spw_div_up(((const struct spw_softcap_args *)args)->n, TASK_ELEMENTS);
}

static void softcap_run(const void *args, size_t task, unsigned worker)
{
    const struct spw_softcap_args *a = args;
    (void)worker;
    size_t first = task * TASK_ELEMENTS, end = smaller(first + TASK_ELEMENTS, a->n);
    struct vec cap = vec_set1(a->cap);
    for (size_t i = first; i < end; i += VEC_LANES) {
        size_t n = smaller(end - i, VEC_LANES);
        struct vec x = vec_div(vec_load_as(a->x, i, n, SPW_DTYPE_F32), cap);
        vec_store_as(a->x, i, n, SPW_DTYPE_F32, vec_mul(cap, num_tanh(x)));
    }
}

/* ---- each ---- */

static size_t each_tasks(const void *args)
{
    return spw_div_up(((const struct spw_each_args *)args)->n, TASK_ELEMENTS);
}

static void each_run(const void *args, size_t task, unsigned worker)
{
    const struct spw_each_args *a = args;
    (void)worker;
    size_t first = task * TASK_ELEMENTS, end = smaller(first + TASK_ELEMENTS, a->n);
    const struct vec most = vec_set1(a->limit), least = vec_set1(-a->limit);
    for (size_t i = first; i < end; i += VEC_LANES) {
        size_t n = smaller(end - i, VEC_LANES);
        struct vec x = vec_load_as(a->x, i, n, a->dtype);
        x = a->limit != 0 ? vec_max(least, vec_min(most, x)) : num_activation(x, a->act);
        vec_store_as(a->x, i, n, a->dtype, x);
    }
}

#define ROW_KERNEL(op)                                                                             \
    const struct spw_kernel SIMD_NAME(spw_##op##_kernel) = {#op, op##_tasks, op##_run}

ROW_KERNEL(norm);
ROW_KERNEL(rope_append);
ROW_KERNEL(gated);
ROW_KERNEL(softcap);
ROW_KERNEL(each);
