/* The other operations of layers with a state: conv and gated_norm of model/ops.h (recur_simd.c has
 * the recurrence). */
#include "model/conv_column.h"
#include "model/cpu/kernels.h"
#include "model/cpu/math.h"
#include "model/cpu/row_tasks.h"

/* ---- conv ---- */

enum { CONV_CHANNELS = 256, LEAST_CONV_CHANNELS = 64, CONV_BEFORE = SPW_MOST_CONV_WIDTH - 1 };

/* Channels side by side in x, at most a vector. */
struct piece_of_channels {
    uint32_t at, n; /* of the task's channels */
    size_t column;  /* of x */
};

/* A task: some channels of a part, all its rows. Taps and earlier inputs lie here as rows of
 * channels; a vector may reach beyond the last channel. */
struct conv_task {
    const struct spw_conv_args *a;
    const struct spw_state_part *part;
    uint32_t first, n, n_pieces; /* channels */
    struct piece_of_channels pieces[CONV_CHANNELS];
    float w[SPW_MOST_CONV_WIDTH][CONV_CHANNELS + VEC_LANES];
    float before[CONV_BEFORE][CONV_CHANNELS + VEC_LANES];
};

static void conv_pieces(struct conv_task *t)
{
    for (uint32_t at = 0; at < t->n; at += t->pieces[t->n_pieces++].n) {
        uint32_t together;
        const size_t column = spw_conv_column(t->a, t->first + at, &together);
        const size_t n = smaller(smaller(together, VEC_LANES), t->n - at);
        t->pieces[t->n_pieces] = (struct piece_of_channels){at, (uint32_t)n, column};
    }
}

/* The input of a piece in row `row` of the part; rows before it are -1, -2, ... */
SIMD_FN struct vec conv_input(const struct conv_task *t, const struct piece_of_channels *p,
                              int64_t row, const enum spw_dtype type)
{
    const size_t before = t->a->width - 1;
    if (row < 0)
        return vec_load(t->before[(int64_t)before + row] + p->at);
    const size_t at = (t->part->row + (size_t)row) * t->a->x_stride + p->column;
    return vec_load_as(t->a->x, at, p->n, type);
}

SIMD_FN void conv_piece(const struct conv_task *t, const struct piece_of_channels *p, int64_t row,
                        const enum spw_dtype type)
{
    const struct spw_conv_args *a = t->a;
    const size_t channel = t->first + p->at;
    struct vec sum = a->bias ? vec_load_as(a->bias, channel, p->n, SPW_DTYPE_F32) : vec_set1(0.0f);
    for (uint32_t i = 0; i < a->width; i++)
        sum = vec_fused(vec_load(t->w[i] + p->at), conv_input(t, p, row + i + 1 - a->width, type),
                        sum);
    if (a->activates)
        sum = num_activation(vec_round_as(sum, type), a->act);
    vec_store_as(a->y, (t->part->row + (size_t)row) * a->channels + channel, p->n, type, sum);
}

/* The inputs of the last rows become the state. */
SIMD_FN void conv_keep(const struct conv_task *t, const struct piece_of_channels *p,
                       const enum spw_dtype type)
{
    const int64_t before = t->a->width - 1;
    float *const state = t->part->state + (size_t)(t->first + p->at) * (size_t)before;
    for (int64_t i = 0; i < before; i++) {
        float lanes[VEC_LANES];
        vec_store(lanes, conv_input(t, p, t->part->rows - before + i, type));
        for (size_t c = 0; c < p->n; c++)
            state[c * (size_t)before + (size_t)i] = lanes[c];
    }
}

SIMD_FN void conv_rows(const struct conv_task *t, const enum spw_dtype type)
{
    for (uint32_t row = 0; row < t->part->rows; row++)
        for (uint32_t p = 0; p < t->n_pieces; p++)
            conv_piece(t, &t->pieces[p], row, type);
    for (uint32_t p = 0; p < t->n_pieces && !t->part->stays; p++)
        conv_keep(t, &t->pieces[p], type);
}

/* Channels of a task: few, if there are many rows. */
static size_t conv_channels(const struct spw_conv_args *a)
{
    uint32_t most = 1;
    for (uint32_t i = 0; i < a->n_parts; i++)
        most = spw_max_u32(most, a->parts[i].rows);
    const size_t some = task_rows(most) / LEAST_CONV_CHANNELS * LEAST_CONV_CHANNELS;
    return some < LEAST_CONV_CHANNELS ? LEAST_CONV_CHANNELS : smaller(some, CONV_CHANNELS);
}

static size_t conv_tasks(const void *args)
{
    const struct spw_conv_args *a = args;
    return a->n_parts * spw_div_up(a->channels, conv_channels(a));
}

static void conv_run(const void *args, size_t task, unsigned worker)
{
    const struct spw_conv_args *a = args;
    const size_t step = conv_channels(a), tasks = spw_div_up(a->channels, step);
    struct conv_task t;
    (void)worker;
    t.a = a;
    t.part = &a->parts[task / tasks];
    t.first = (uint32_t)(task % tasks * step);
    t.n = (uint32_t)smaller(a->channels - t.first, step);
    t.n_pieces = 0;
    conv_pieces(&t);
    for (uint32_t c = 0; c < t.n; c++) {
        const size_t channel = t.first + c;
        for (uint32_t i = 0; i < a->width; i++)
            t.w[i][c] = a->w[channel * a->width + i];
        for (uint32_t i = 0; i + 1 < a->width; i++)
            t.before[i][c] = t.part->position ? t.part->state[channel * (a->width - 1) + i] : 0;
    }
    if (a->dtype == SPW_DTYPE_BF16)
        conv_rows(&t, SPW_DTYPE_BF16);
    else
        conv_rows(&t, SPW_DTYPE_F32);
}

/* ---- gated_norm ---- */

/* A group of channels of a row. */
struct gated_group {
    const struct spw_gated_norm_args *a;
    size_t x, gate; /* where it begins */
    const float *weight;
};

/* n elements from column i on: what is normed, and act(gate). */
SIMD_FN struct vec gated_input(const struct gated_group *g, size_t i, size_t n, struct vec *gate)
{
    const struct spw_gated_norm_args *a = g->a;
    const struct vec x = vec_load_as(a->x, g->x + i, n, a->x_dtype);
    *gate = num_activation(vec_load_as(a->gate, g->gate + i, n, a->dtype), a->act);
    return a->norm_first ? x : vec_mul(x, *gate);
}

/* 1 / sqrt(mean of the squares + eps): two chains of sixteen lanes. */
static struct vec gated_inverse(const struct gated_group *g)
{
    const struct spw_gated_norm_args *a = g->a;
    struct vec even = vec_set1(0.0f), odd = vec_set1(0.0f), gate, x;
    for (size_t i = 0; i < a->cols; i += 2 * VEC_LANES) {
        x = gated_input(g, i, smaller(a->cols - i, VEC_LANES), &gate);
        even = vec_fma(x, x, even);
        if (i + VEC_LANES >= a->cols)
            break;
        x = gated_input(g, i + VEC_LANES, smaller(a->cols - i - VEC_LANES, VEC_LANES), &gate);
        odd = vec_fma(x, x, odd);
    }
    return vec_set1(1.0f / sqrtf(vec_sum(vec_add(even, odd)) / (float)a->cols + a->eps));
}

static void gated_norm_one(const struct gated_group *g)
{
    const struct spw_gated_norm_args *a = g->a;
    const enum spw_dtype t = a->dtype;
    const struct vec inverse = a->weight ? gated_inverse(g) : vec_set1(1.0f);
    for (size_t i = 0; i < a->cols; i += VEC_LANES) {
        const size_t n = smaller(a->cols - i, VEC_LANES);
        struct vec gate, y = gated_input(g, i, n, &gate);
        if (!a->weight) {
            y = vec_mul(vec_load_as(a->x, g->x + i, n, a->x_dtype), vec_round_as(gate, t));
        } else {
            y = vec_mul(y, inverse);
            if (a->norm_first && a->norm == SPW_NORM_LLAMA)
                y = vec_round_as(y, t);
            y = vec_mul(vec_load_as(g->weight, i, n, SPW_DTYPE_F32), y);
            if (a->norm_first)
                y = vec_mul(vec_round_as(y, t), gate);
        }
        vec_store_as(a->y, g->x + i, n, t, y);
    }
}

static size_t gated_norm_tasks(const void *args)
{
    const struct spw_gated_norm_args *a = args;
    return spw_div_up(a->rows * a->n_groups, task_rows(a->cols));
}

static void gated_norm_run(const void *args, size_t task, unsigned worker)
{
    const struct spw_gated_norm_args *a = args;
    const size_t step = task_rows(a->cols), end = smaller((task + 1) * step, a->rows * a->n_groups);
    (void)worker;
    for (size_t i = task * step; i < end; i++) {
        const uint32_t group = (uint32_t)(i % a->n_groups);
        const size_t column = spw_head_column(&a->gates, group);
        const struct gated_group g = {
            .a = a,
            .x = i * a->cols,
            .gate = i / a->n_groups * a->gate_stride + column,
            .weight = a->weight && a->own_weights ? a->weight + group * a->cols : a->weight};
        gated_norm_one(&g);
    }
}

const struct spw_kernel SIMD_NAME(spw_conv_kernel) = {"conv", conv_tasks, conv_run};
const struct spw_kernel SIMD_NAME(spw_gated_norm_kernel) = {"gated_norm", gated_norm_tasks,
                                                            gated_norm_run};
