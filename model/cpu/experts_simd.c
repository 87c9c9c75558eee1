/* The operations of model/ops.h around experts: who computes a row, and how the outputs become one.
 *
 * A logit is one chain of sixteen lanes along cols, whatever rows and experts are computed beside
 * it. */
#include "model/cpu/kernels.h"
#include "model/cpu/math.h"
#include "model/cpu/row_tasks.h"
#include "quant/types.h"

/* A task computes the logits of so many rows, which share the router's weights; so many experts
 * share a load of a row. The registers hold all sums. A single row takes more experts: each sum
 * waits for itself. */
#if defined(__AVX512F__)
enum { ROWS = 4, EXPERTS = 4, EXPERTS_OF_ONE = 4 };
#else
enum { ROWS = 3, EXPERTS = 2, EXPERTS_OF_ONE = 4 };
#endif

enum { TASK_EXPERTS = 32 }; /* of one task */

/* ---- logits ---- */

/* Asks for the share of column i of the weights of the next experts, in the order of memory: a core
 * reads one stream faster than several. */
SIMD_FN void fetch_next(const struct spw_route_args *a, size_t first, size_t i)
{
    const size_t end = a->n_experts * a->cols;
    size_t at = first * a->cols + EXPERTS_OF_ONE * i;
    for (size_t n = 0; n < EXPERTS_OF_ONE && at < end; n++) {
        __builtin_prefetch(a->w + at, 0, 2);
        at += VEC_LANES;
    }
}

/* Some rows and experts; x and w: where theirs begin. The numbers must be constants where this is
 * inlined, or the sums are in memory. */
struct block {
    size_t x[4], w[4];
    struct vec sum[4][4];
};

SIMD_FN void add_columns(const struct spw_route_args *a, struct block *b, size_t i, size_t lanes,
                         const size_t rows, const size_t experts, const enum spw_dtype t)
{
    struct vec u[4];
#pragma GCC unroll 4
    for (size_t e = 0; e < experts; e++)
        u[e] = vec_load_as(a->w, b->w[e] + i, lanes, SPW_DTYPE_F32);
#pragma GCC unroll 4
    for (size_t r = 0; r < rows; r++) {
        struct vec v = vec_load_as(a->x, b->x[r] + i, lanes, t);
#pragma GCC unroll 4
        for (size_t e = 0; e < experts; e++)
            b->sum[r][e] = vec_fma(v, u[e], b->sum[r][e]);
    }
}

/* The logits of rows from `row` on and of experts from `first` on, which may go past the last. */
SIMD_FN void logits(const struct spw_route_args *a, size_t row, uint32_t first, const size_t rows,
                    const size_t experts, const enum spw_dtype t)
{
    const size_t whole = a->cols / VEC_LANES * VEC_LANES;
    struct block b;
#pragma GCC unroll 4
    for (size_t r = 0; r < rows; r++)
        b.x[r] = (row + r) * a->cols;
#pragma GCC unroll 4
    for (size_t e = 0; e < experts; e++) /* after the last expert: the last one again */
        b.w[e] = smaller(first + e, a->n_experts - 1) * a->cols;
#pragma GCC unroll 4
    for (size_t r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (size_t e = 0; e < experts; e++)
            b.sum[r][e] = vec_set1(0.0f);
    for (size_t i = 0; i < whole; i += VEC_LANES) {
        if (rows == 1)
            fetch_next(a, first + EXPERTS_OF_ONE, i);
        add_columns(a, &b, i, VEC_LANES, rows, experts, t);
    }
    if (whole < a->cols)
        add_columns(a, &b, whole, a->cols - whole, rows, experts, t);
#pragma GCC unroll 4
    for (size_t r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (size_t e = 0; e < experts; e++)
            if (first + e < a->n_experts)
                a->scores[(row + r) * a->n_experts + first + e] =
                    vec_sum(b.sum[r][e]) + (a->bias ? a->bias[first + e] : 0.0f);
}

SIMD_FN void logits_as(const struct spw_route_args *a, size_t row, uint32_t first, uint32_t end,
                       const enum spw_dtype t)
{
    if (row + ROWS <= a->rows) {
        for (; first < end; first += EXPERTS)
            logits(a, row, first, ROWS, EXPERTS, t);
        return;
    }
    for (; first < end; first += EXPERTS_OF_ONE)
        for (size_t r = row; r < a->rows; r++)
            logits(a, r, first, 1, EXPERTS_OF_ONE, t);
}

static size_t route_scores_tasks(const void *args)
{
    const struct spw_route_args *a = args;
    return spw_div_up(a->rows, ROWS) * spw_div_up(a->n_experts, TASK_EXPERTS);
}

static void route_scores_run(const void *args, size_t task, unsigned worker)
{
    const struct spw_route_args *a = args;
    (void)worker;
    size_t pieces = spw_div_up(a->n_experts, TASK_EXPERTS), row = task / pieces * ROWS;
    uint32_t first = (uint32_t)(task % pieces) * TASK_EXPERTS;
    uint32_t end = (uint32_t)smaller(first + TASK_EXPERTS, a->n_experts);
    if (a->dtype == SPW_DTYPE_BF16)
        logits_as(a, row, first, end, SPW_DTYPE_BF16);
    else
        logits_as(a, row, first, end, SPW_DTYPE_F32);
}

/* ---- choices ---- */

/* Logits of a row from expert i on; after the last one minus infinity, of which e^x is 0. */
SIMD_FN struct vec logits_at(const float *x, uint32_t i, uint32_t n)
{
    const uint32_t lanes = (uint32_t)smaller(n - i, VEC_LANES);
    return vec_select_range(0, lanes, vec_load_as(x, i, lanes, SPW_DTYPE_F32), vec_set1(-INFINITY));
}

static void to_sigmoids(float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += VEC_LANES)
        vec_store_as(x, i, smaller(n - i, VEC_LANES), SPW_DTYPE_F32,
                     num_sigmoid(logits_at(x, i, n)));
}

/* The sum has thirty-two chains, of every thirty-second expert; then halves are added, 16, 8, 4, 2,
 * 1. */
static void to_softmax(float *x, uint32_t n)
{
    struct vec most = vec_set1(-INFINITY), sum[2] = {vec_set1(0.0f), vec_set1(0.0f)};
    for (uint32_t i = 0; i < n; i += VEC_LANES)
        most = vec_max(most, logits_at(x, i, n));
    most = vec_set1(vec_highest(most));
    for (uint32_t i = 0; i < n; i += VEC_LANES) {
        const struct vec e = num_exp(vec_sub(logits_at(x, i, n), most));
        sum[i / VEC_LANES % 2] = vec_add(sum[i / VEC_LANES % 2], e);
        vec_store_as(x, i, smaller(n - i, VEC_LANES), SPW_DTYPE_F32, e);
    }
    const struct vec all = vec_set1(vec_sum(vec_add(sum[0], sum[1])));
    for (uint32_t i = 0; i < n; i += VEC_LANES)
        vec_store_as(x, i, smaller(n - i, VEC_LANES), SPW_DTYPE_F32,
                     vec_div(logits_at(x, i, n), all));
}

/* Turns the logits of a row into scores. */
static void score(const struct spw_route_args *a, float *x)
{
    if (spw_route_is_softmax(&a->route))
        to_softmax(x, a->n_experts);
    else
        to_sigmoids(x, a->n_experts);
}

/* What experts are chosen by. */
static float rank(const struct spw_route_args *a, const float *scores, uint32_t e)
{
    return scores[e] + (a->choice_bias ? a->choice_bias[e] : 0.0f);
}

/* Puts the expert before those of a lower rank; out[n] is free. */
static void insert(struct spw_choice *out, uint32_t n, uint32_t expert, float its)
{
    for (; n && its > out[n - 1].weight; n--)
        out[n] = out[n - 1];
    out[n] = (struct spw_choice){expert, its};
}

static void sort_by_number(struct spw_choice *out, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++) {
        const struct spw_choice its = out[i];
        uint32_t at = i;
        for (; at && out[at - 1].expert > its.expert; at--)
            out[at] = out[at - 1];
        out[at] = its;
    }
}

/* The groups that experts are chosen from, a bit for each. */
static uint32_t kept_groups(const struct spw_route_args *a, const float *scores)
{
    struct spw_choice groups[SPW_MOST_EXPERT_GROUPS];
    const uint32_t n = a->route.n_groups, size = a->n_experts / n;
    uint32_t kept = 0;
    for (uint32_t g = 0; g < n; g++) {
        float first = -INFINITY, second = -INFINITY;
        for (uint32_t e = g * size; e < (g + 1) * size; e++) {
            const float its = rank(a, scores, e);
            second = its > first ? first : its > second ? its : second;
            first = its > first ? its : first;
        }
        const float sum = first + second;
        insert(groups, g, g, sum == sum ? sum : -INFINITY); /* NaN would stop later groups */
    }
    for (uint32_t i = 0; i < a->route.n_groups_kept; i++)
        kept |= 1u << groups[i].expert;
    return kept;
}

/* Chooses the experts with the highest ranks, the first of equal ones; puts them in the order of
 * numbers. While experts are chosen, their weights are their ranks. Most experts take one
 * comparison, with the lowest rank so far. A rank that is NaN must not leave a choice without an
 * expert: the first experts are taken whatever their ranks are. */
static void choose(const struct spw_route_args *a, const float *scores, struct spw_choice *out)
{
    const uint32_t size = a->route.n_groups ? a->n_experts / a->route.n_groups : a->n_experts;
    const uint32_t groups = a->route.n_groups ? kept_groups(a, scores) : 1;
    uint32_t n = 0;
    for (uint32_t first = 0; first < a->n_experts; first += size) {
        if (!(groups >> first / size & 1))
            continue;
        for (uint32_t e = first; e < first + size; e++) {
            const float its = rank(a, scores, e);
            if (n < a->n_kept)
                insert(out, n++, e, its);
            else if (its > out[n - 1].weight)
                insert(out, n - 1, e, its);
        }
    }
    sort_by_number(out, a->n_kept);
}

/* The logits of all other experts become minus infinity. */
static void keep(const struct spw_route_args *a, float *scores, struct spw_choice *out)
{
    for (uint32_t i = 0; i < a->n_kept; i++)
        out[i].weight = scores[out[i].expert];
    for (uint32_t e = 0; e < a->n_experts; e++)
        scores[e] = -INFINITY;
    for (uint32_t i = 0; i < a->n_kept; i++)
        scores[out[i].expert] = out[i].weight;
}

static void weigh(const struct spw_route_args *a, const float *scores, struct spw_choice *out)
{
    float sum = 0;
    for (uint32_t i = 0; i < a->n_kept; i++)
        sum += out[i].weight = scores[out[i].expert];
    for (uint32_t i = 0; i < a->n_kept; i++) {
        if (a->route.renormalizes)
            out[i].weight /= sum + (a->route.sum_plus + 1e-20f); /* sigmoids may all be 0 */
        out[i].weight *= a->route.scale;
        if (a->expert_scale)
            out[i].weight *= a->expert_scale[out[i].expert];
    }
}

static size_t route_tasks(const void *args)
{
    return ((const struct spw_route_args *)args)->rows;
}

static void route_run(const void *args, size_t row, unsigned worker)
{
    const struct spw_route_args *a = args;
    float *scores = a->scores + row * a->n_experts;
    struct spw_choice *out = a->choices + row * a->n_kept;
    (void)worker;
    if (!spw_route_scores_kept(&a->route))
        score(a, scores);
    choose(a, scores, out);
    if (spw_route_scores_kept(&a->route)) {
        keep(a, scores, out);
        score(a, scores);
    }
    weigh(a, scores, out);
}

/* ---- rows of experts ---- */

static size_t gather_tasks(const void *args)
{
    const struct spw_gather_args *a = args;
    return spw_div_up(a->rows, task_rows(a->cols));
}

/* The weight of the expert in a row of x. A row that has not chosen the expert is not gathered. */
static float weight_in(const struct spw_gather_args *a, size_t row)
{
    const struct spw_choice *its = a->choices + row * a->n_kept;
    uint32_t k = 0;
    while (k + 1 < a->n_kept && its[k].expert != a->expert)
        k++;
    return its[k].weight;
}

/* The number that row `row` of y begins at in x. */
static size_t gathered_at(const struct spw_gather_args *a, size_t row)
{
    const size_t from = a->index ? a->index[row] : a->times ? row / a->times : row;
    return from * a->x_stride;
}

static void gather_weighted(const struct spw_gather_args *a, size_t row)
{
    const size_t from = a->index ? a->index[row] : row, at = gathered_at(a, row);
    const struct vec weight = vec_round_as(vec_set1(weight_in(a, from)), a->dtype);
    for (size_t i = 0; i < a->cols; i += VEC_LANES) {
        size_t n = smaller(a->cols - i, VEC_LANES);
        struct vec x = vec_load_as(a->x, at + i, n, a->dtype);
        vec_store_as(a->y, row * a->cols + i, n, a->dtype, vec_mul(x, weight));
    }
}

static void gather_run(const void *args, size_t task, unsigned worker)
{
    const struct spw_gather_args *a = args;
    (void)worker;
    size_t bytes = spw_row_bytes(a->dtype, a->cols), step = task_rows(a->cols);
    for (size_t row = task * step; row < smaller((task + 1) * step, a->rows); row++)
        if (a->choices)
            gather_weighted(a, row);
        else
            memcpy((char *)a->y + row * bytes,
                   (const char *)a->x + spw_row_bytes(a->dtype, gathered_at(a, row)), bytes);
}

static void combine_row(const struct spw_combine_args *a, size_t row, size_t first, size_t end)
{
    const struct spw_choice *choices = a->choices + row * a->n_kept;
    for (size_t i = first; i < end; i += VEC_LANES) {
        size_t n = smaller(end - i, VEC_LANES);
        struct vec sum = vec_set1(0.0f);
        for (uint32_t k = 0; k < a->n_kept; k++) {
            size_t at = row * a->n_kept + k, from = a->places ? a->places[at] : at;
            struct vec y = vec_load_as(a->y, from * a->cols + i, n, a->dtype);
            sum = vec_fused(vec_set1(a->unweighted ? 1.0f : choices[k].weight), y, sum);
        }
        if (a->residual)
            sum = vec_add(vec_load_as(a->residual, row * a->cols + i, n, a->dtype),
                          vec_round_as(sum, a->dtype));
        vec_store_as(a->h, row * a->cols + i, n, a->dtype, sum);
    }
}

static size_t combine_tasks(const void *args)
{
    const struct spw_combine_args *a = args;
    return piece_tasks(a->rows, a->cols);
}

static void combine_run(const void *args, size_t task, unsigned worker)
{
    const struct spw_combine_args *a = args;
    (void)worker;
    const struct piece p = piece_of(task, a->rows, a->cols);
    for (size_t row = p.row; row < p.last; row++)
        combine_row(a, row, p.first, p.end);
}

#define EXPERTS_KERNEL(op)                                                                         \
    const struct spw_kernel SIMD_NAME(spw_##op##_kernel) = {#op, op##_tasks, op##_run}

EXPERTS_KERNEL(route_scores);
EXPERTS_KERNEL(route);
EXPERTS_KERNEL(gather);
EXPERTS_KERNEL(combine);
