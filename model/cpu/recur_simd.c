/* The recurrence of layers with a state: recur of model/ops.h.
 *
 * A task takes blocks of value channels of a head and a part, one after the other. A block takes
 * all rows of the part. Between rows its columns of the state lie in the block, dense, so that they
 * stay in the L1 cache: the rows of a state are a power of two apart, and fall into few sets of it.
 * Lanes are value channels, each with a chain of its own over key channels.
 *
 * DELTA needs two passes over the state for a row: the sum of k S, then the update and the sum of
 * q S. The second pass of a row is the first one of the next row, too: it stores the state that
 * the next row's decay has already multiplied. */
#include "model/cpu/kernels.h"
#include "model/cpu/row_tasks.h"
#include "model/cpu/math.h"

enum {
    VECS = 2,                   /* of a block: with AVX2 and AVX-512 enough chains side by side */
    COLUMNS = VECS * VEC_LANES, /* value channels of a block */
    FEW_ROWS = 8,
    FEW_BLOCKS = 4, /* of a task of few rows */
    LINE = 16,      /* floats of a cache line */
    AHEAD = 16,     /* so many rows of a state early its numbers are asked for */
};

#define EACH_VEC _Pragma("GCC unroll 2") for (int c = 0; c < VECS; c++)

/* A row, as the head needs it. */
struct row {
    _Alignas(64) float k[SPW_MOST_KEY_DIM], q[SPW_MOST_KEY_DIM];
    float decay, factor; /* of the head: g, and beta or dt */
};

struct block {
    const struct spw_recur_args *a;
    const struct spw_state_part *part;
    uint32_t head, key_head;
    size_t first, n; /* its value channels */
    float q_scale;
    float decays[VEC_LANES], factors[VEC_LANES]; /* of the rows from a multiple of VEC_LANES on */
    float *state;                                /* the head's; rows of value_dim */
    size_t ahead; /* floats of a row of the state that are asked for early, or 0 */
    i32v largest; /* magnitudes of the new state's numbers; lanes after the end of a row count, too:
                     they began as zeros, so only a number of the whole head can have made them
                     infinite or NaN */
    _Alignas(64) float s[SPW_MOST_KEY_DIM * COLUMNS];
};

/* Columns of a state: rows `step` apart. */
struct columns {
    float *at;
    size_t step;
};

static struct columns own_columns(struct block *b)
{
    return (struct columns){b->s, COLUMNS};
}

static struct columns state_columns(const struct block *b)
{
    return (struct columns){b->state + b->first, b->a->value_dim};
}

/* Where the block reads the state at its first row. A block that is not whole is copied. */
static struct columns first_columns(struct block *b)
{
    if (b->part->position && b->n == COLUMNS)
        return state_columns(b);
    memset(b->s, 0, b->a->key_dim * COLUMNS * sizeof(float));
    for (uint32_t i = 0; i < b->a->key_dim && b->part->position; i++)
        memcpy(b->s + i * COLUMNS, b->state + i * (size_t)b->a->value_dim + b->first,
               b->n * sizeof(float));
    return own_columns(b);
}

/* Where it writes the state at its last row: nowhere else, if the state stays. */
static struct columns last_columns(struct block *b)
{
    return b->n == COLUMNS && !b->part->stays ? state_columns(b) : own_columns(b);
}

/* How many of the block's channels vector c has. */
SIMD_FN size_t lanes_of(const struct block *b, int c)
{
    return smaller(spw_sub_u64(b->n, (size_t)c * VEC_LANES), VEC_LANES);
}

/* Vector c of the block in the head's value channels, which begin at element `at` of x. */
SIMD_FN struct vec load_columns(const struct block *b, const void *x, size_t at, int c,
                                enum spw_dtype t)
{
    return vec_load_as(x, at + b->first + (size_t)c * VEC_LANES, lanes_of(b, c), t);
}

SIMD_FN void store_columns(const struct block *b, void *x, size_t at, int c, enum spw_dtype t,
                           struct vec v)
{
    vec_store_as(x, at + b->first + (size_t)c * VEC_LANES, lanes_of(b, c), t, v);
}

/* Element x[rows of the call][stride] of a row of the part. */
SIMD_FN size_t row_at(const struct block *b, size_t row, size_t stride)
{
    return (b->part->row + row) * stride;
}

/* The same, of the head's value channels. */
SIMD_FN size_t values_at(const struct block *b, size_t row, size_t stride)
{
    return row_at(b, row, stride) + (size_t)b->head * b->a->value_dim;
}

static float number_at(const void *x, size_t at, enum spw_dtype t)
{
    const bool is_short = t == SPW_DTYPE_BF16;
    const uint32_t bits = is_short ? (uint32_t)((const uint16_t *)x)[at] << 16 : 0;
    float value;
    memcpy(&value, is_short ? (const void *)&bits : (const float *)x + at, sizeof value);
    return value;
}

/* Decays and factors of DELTA and SSD, of the rows from `row` on; a lane is a row. */
static void load_gates(struct block *b, size_t row)
{
    const struct spw_recur_args *a = b->a;
    const bool is_delta = a->kind == SPW_MIXER_DELTA;
    const size_t rate = spw_head_column(&a->rates, b->head);
    const size_t gate = is_delta ? spw_head_column(&a->gates, b->head) : 0;
    float rates[VEC_LANES] = {0}, gates[VEC_LANES] = {0};
    for (size_t i = 0; i < smaller(b->part->rows - row, VEC_LANES); i++) {
        const size_t at = row_at(b, row + i, a->rate_stride);
        rates[i] = number_at(a->rate, at + rate, a->dtype);
        if (is_delta)
            gates[i] = number_at(a->gate, at + gate, a->dtype);
    }
    const struct vec bias = vec_set1(a->dt_bias[b->head]);
    const struct vec dt = num_softplus(vec_add(vec_load(rates), bias));
    vec_store(b->decays, num_exp(vec_mul(vec_set1(a->a[b->head]), dt)));
    vec_store(b->factors, is_delta ? vec_round_as(num_sigmoid(vec_load(gates)), a->dtype) : dt);
}

/* Head `key_head` of q or k in a row. `divides`: by its length, then it is multiplied by `scale`.
 */
SIMD_FN void load_head(const struct block *b, const void *x, size_t row, size_t stride,
                       bool divides, float scale, float *to, const enum spw_dtype t)
{
    const uint32_t keys = b->a->key_dim, whole = keys / VEC_LANES * VEC_LANES;
    const size_t at = row_at(b, row, stride) + (size_t)b->key_head * keys;
    struct vec squares = vec_set1(0.0f), v;
    for (uint32_t i = 0; i < whole; i += VEC_LANES) {
        v = vec_load_as(x, at + i, VEC_LANES, t);
        squares = vec_fused(v, v, squares);
        vec_store(to + i, v);
    }
    if (whole < keys) {
        v = vec_load_as(x, at + whole, keys - whole, t);
        squares = vec_fused(v, v, squares);
        vec_store(to + whole, v);
    }
    if (!divides)
        return;
    const struct vec inverse = vec_set1(1.0f / sqrtf(vec_sum(squares) + 1e-6f));
    for (uint32_t i = 0; i < keys; i += VEC_LANES)
        vec_store(to + i, vec_mul(vec_mul(vec_load(to + i), inverse), vec_set1(scale)));
}

SIMD_FN void load_heads(const struct block *b, size_t row, struct row *r, const enum spw_dtype t)
{
    const struct spw_recur_args *a = b->a;
    const bool is_delta = a->kind == SPW_MIXER_DELTA;
    load_head(b, a->k, row, a->k_stride, is_delta, 1.0f, r->k, t);
    load_head(b, a->q, row, a->q_stride, is_delta, b->q_scale, r->q, t);
}

/* Rows come in order. */
static void load_row(struct block *b, size_t row, struct row *r)
{
    const struct spw_recur_args *a = b->a;
    if (a->kind != SPW_MIXER_SCAN) {
        if (row % VEC_LANES == 0)
            load_gates(b, row);
        r->decay = b->decays[row % VEC_LANES];
        r->factor = b->factors[row % VEC_LANES];
    }
    if (a->dtype == SPW_DTYPE_BF16)
        load_heads(b, row, r, SPW_DTYPE_BF16);
    else
        load_heads(b, row, r, SPW_DTYPE_F32);
}

/* Few rows: asks for what the task will read, blocks after this one included. */
SIMD_FN void ask_ahead(const struct block *b, const float *row)
{
    for (size_t j = 0; j < b->ahead; j += LINE)
        __builtin_prefetch(row + (size_t)AHEAD * b->a->value_dim + j, 1, 2);
}

/* DELTA: the state decays and comes into the block; sum = k S. */
static void begin_delta(struct block *b, const struct row *r, struct columns from,
                        struct vec sum[VECS])
{
    const struct vec decay = vec_set1(r->decay);
    struct vec k_s[VECS];
    EACH_VEC k_s[c] = vec_set1(0.0f);
    for (uint32_t i = 0, keys = b->a->key_dim; i < keys; i++) {
        ask_ahead(b, from.at + i * from.step);
        EACH_VEC
        {
            struct vec s = vec_load(from.at + i * from.step + c * VEC_LANES);
            s = vec_mul(decay, s);
            k_s[c] = vec_fused(vec_set1(r->k[i]), s, k_s[c]);
            vec_store(b->s + i * COLUMNS + c * VEC_LANES, s);
        }
    }
    EACH_VEC sum[c] = k_s[c];
}

/* DELTA: the row's update d and its result; then begin_delta of the next row. NULL: there is no
 * next row; the state goes to `to`. */
SIMD_FN void update_delta(struct block *b, const struct row *r, const struct row *next,
                          struct columns to, const struct vec d[VECS], struct vec out[VECS],
                          struct vec sum[VECS])
{
    const struct vec decay = vec_set1(next ? next->decay : 0);
    struct vec o[VECS], k_s[VECS];
    i32v largest = {0};
    EACH_VEC o[c] = k_s[c] = vec_set1(0.0f);
    for (uint32_t key = 0, keys = b->a->key_dim; key < keys; key++)
        EACH_VEC
        {
            struct vec s = vec_load(b->s + key * COLUMNS + c * VEC_LANES);
            s = vec_fused(vec_set1(r->k[key]), d[c], s);
            o[c] = vec_fused(vec_set1(r->q[key]), s, o[c]);
            if (next) {
                s = vec_mul(decay, s);
                k_s[c] = vec_fused(vec_set1(next->k[key]), s, k_s[c]);
            } else {
                VEC_EACH(largest = simd_max_i32(largest, simd_magnitude(s.v[i])));
            }
            vec_store(to.at + key * to.step + c * VEC_LANES, s);
        }
    EACH_VEC out[c] = o[c];
    EACH_VEC sum[c] = k_s[c];
    b->largest = largest;
}

static void recur_delta(struct block *b, struct columns from, struct columns to)
{
    const struct spw_recur_args *a = b->a;
    const size_t rows = b->part->rows, stride = (size_t)a->heads * a->value_dim;
    struct row ring[2];
    struct vec sum[VECS], d[VECS], o[VECS];
    load_row(b, 0, &ring[0]);
    begin_delta(b, &ring[0], from, sum);
    for (size_t row = 0; row < rows; row++) {
        const struct row *const r = &ring[row % 2];
        struct row *const next = &ring[(row + 1) % 2];
        EACH_VEC
        {
            const struct vec v = load_columns(b, a->v, values_at(b, row, a->v_stride), c, a->dtype);
            d[c] = vec_mul(vec_set1(r->factor), vec_sub(v, sum[c]));
        }
        if (row + 1 < rows) {
            load_row(b, row + 1, next);
            update_delta(b, r, next, own_columns(b), d, o, sum);
        } else {
            update_delta(b, r, NULL, to, d, o, sum);
        }
        EACH_VEC store_columns(b, a->y, values_at(b, row, stride), c, a->dtype, o[c]);
    }
}

/* SSD and SCAN: the row's state and o. u: what is added; dt: of SCAN. */
SIMD_FN void update_plain(struct block *b, const struct row *r, const bool scans,
                          const bool is_last, struct columns from, struct columns to,
                          const struct vec u[VECS], const struct vec dt[VECS], struct vec out[VECS])
{
    struct vec o[VECS];
    i32v largest = {0};
    EACH_VEC o[c] = vec_set1(0.0f);
    for (uint32_t key = 0, keys = b->a->key_dim; key < keys; key++) {
        if (is_last)
            ask_ahead(b, from.at + key * from.step);
        EACH_VEC
        {
            struct vec decay = vec_set1(r->decay), s;
            if (scans) {
                const size_t rates = (size_t)key * b->a->value_dim;
                decay = load_columns(b, b->a->a, rates, c, SPW_DTYPE_F32);
                decay = num_exp(vec_mul(dt[c], decay));
            }
            s = vec_mul(decay, vec_load(from.at + key * from.step + c * VEC_LANES));
            s = vec_fused(vec_set1(r->k[key]), u[c], s);
            o[c] = vec_fused(vec_set1(r->q[key]), s, o[c]);
            if (is_last)
                VEC_EACH(largest = simd_max_i32(largest, simd_magnitude(s.v[i])));
            vec_store(to.at + key * to.step + c * VEC_LANES, s);
        }
    }
    EACH_VEC out[c] = o[c];
    b->largest = largest;
}

SIMD_FN void recur_plain(struct block *b, const bool scans, struct columns from, struct columns to)
{
    const struct spw_recur_args *a = b->a;
    const size_t rows = b->part->rows, stride = (size_t)a->heads * a->value_dim;
    const enum spw_dtype y_type = scans ? a->dtype : SPW_DTYPE_F32;
    struct row r = {.decay = 0};
    struct vec v[VECS], dt[VECS], u[VECS], o[VECS];
    for (size_t row = 0; row < rows; row++, from = own_columns(b)) {
        load_row(b, row, &r);
        EACH_VEC
        {
            const size_t rates = row_at(b, row, a->rate_stride);
            dt[c] = scans ? num_softplus(load_columns(b, a->rate, rates, c, a->dtype))
                          : vec_set1(r.factor);
            v[c] = load_columns(b, a->v, values_at(b, row, a->v_stride), c, a->dtype);
            u[c] = vec_mul(dt[c], v[c]);
        }
        if (row + 1 < rows)
            update_plain(b, &r, scans, false, from, own_columns(b), u, dt, o);
        else
            update_plain(b, &r, scans, true, from, to, u, dt, o);
        EACH_VEC
        {
            struct vec skip = scans && a->skip ? load_columns(b, a->skip, 0, c, SPW_DTYPE_F32)
                                               : vec_set1(a->skip ? a->skip[b->head] : 0);
            if (a->skip)
                o[c] = vec_add(o[c], vec_mul(skip, v[c]));
            store_columns(b, a->y, values_at(b, row, stride), c, y_type, o[c]);
        }
    }
}

static void recur_lru(struct block *b, struct columns from, struct columns to)
{
    const struct spw_recur_args *a = b->a;
    i32v largest = {0};
    EACH_VEC
    {
        const struct vec decays = load_columns(b, a->a, 0, c, SPW_DTYPE_F32);
        struct vec s = vec_load(from.at + c * VEC_LANES);
        for (size_t row = 0; row < b->part->rows; row++) {
            const size_t rates = row_at(b, row, a->rate_stride);
            const struct vec rate = load_columns(b, a->rate, rates, c, a->dtype);
            const struct vec gate = load_columns(b, a->gate, rates, c, a->dtype);
            const struct vec v = load_columns(b, a->v, row_at(b, row, a->v_stride), c, a->dtype);
            struct vec decay;
            const struct vec u = num_lru(decays, rate, gate, v, !(b->part->position + row), &decay);
            s = vec_add(u, vec_mul(decay, s));
            store_columns(b, a->y, row_at(b, row, a->value_dim), c, a->dtype, s);
        }
        VEC_EACH(largest = simd_max_i32(largest, simd_magnitude(s.v[i])));
        vec_store(to.at + c * VEC_LANES, s);
    }
    b->largest = largest;
}

static void recur_block(struct block *b)
{
    const struct spw_recur_args *a = b->a;
    const struct columns from = first_columns(b), to = last_columns(b);
    if (a->kind == SPW_MIXER_DELTA)
        recur_delta(b, from, to);
    else if (a->kind == SPW_MIXER_SSD)
        recur_plain(b, false, from, to);
    else if (a->kind == SPW_MIXER_SCAN)
        recur_plain(b, true, from, to);
    else
        recur_lru(b, from, to);
    if (b->part->stays)
        return;
    for (uint32_t i = 0; i < a->key_dim && to.at == b->s; i++)
        memcpy(b->state + i * (size_t)a->value_dim + b->first, b->s + i * COLUMNS,
               b->n * sizeof(float));
    if (simd_highest_i32(b->largest) >= 0x7f800000)
        __atomic_store_n(a->not_finite, 1, __ATOMIC_RELAXED);
}

/* Blocks of a task. For few rows most of the time goes into reading the state, which is fast only
 * from row to row: then a task has blocks side by side, and the first one asks for their rows. */
static size_t recur_together(const struct spw_recur_args *a)
{
    const struct spw_state_part *last = &a->parts[a->n_parts - 1];
    return last->row + last->rows < FEW_ROWS * a->n_parts ? FEW_BLOCKS : 1;
}

static size_t recur_shares(const struct spw_recur_args *a)
{
    return spw_div_up(a->value_dim, recur_together(a) * COLUMNS);
}

static size_t recur_tasks(const void *args)
{
    const struct spw_recur_args *a = args;
    return a->n_parts ? a->n_parts * a->heads * recur_shares(a) : 0;
}

static void recur_run(const void *args, size_t task, unsigned worker)
{
    const struct spw_recur_args *a = args;
    const size_t shares = recur_shares(a), columns = recur_together(a) * COLUMNS;
    const size_t first = task % shares * columns, end = smaller(first + columns, a->value_dim);
    struct block b;
    (void)worker;
    b.a = a;
    b.part = &a->parts[task / shares / a->heads];
    b.head = (uint32_t)(task / shares % a->heads);
    if (a->kind != SPW_MIXER_LRU)
        b.key_head = a->tiled ? b.head % a->key_heads : b.head / (a->heads / a->key_heads);
    b.q_scale = (float)(1 / sqrt((double)a->key_dim));
    b.state = b.part->state + (size_t)b.head * a->key_dim * a->value_dim;
    for (b.first = first; b.first < end; b.first += COLUMNS) {
        b.n = smaller(end - b.first, COLUMNS);
        b.ahead = b.first == first && end - first > COLUMNS ? end - first : 0;
        recur_block(&b);
    }
}

const struct spw_kernel SIMD_NAME(spw_recur_kernel) = {"recur", recur_tasks, recur_run};
