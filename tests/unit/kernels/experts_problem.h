/* Random routing problems, and the f64 reference of a router: for the tests of both backends. */
#ifndef SPW_TESTS_UNIT_KERNELS_EXPERTS_PROBLEM_H
#define SPW_TESTS_UNIT_KERNELS_EXPERTS_PROBLEM_H

#include <stdlib.h>

#include "base/numbers.h"
#include "tests/unit/kernels/ops_cpu_each.h"

/* Fills a buffer with n values of type t; freed by the caller. */
static inline void *experts_values(uint64_t *rng, size_t n, enum spw_dtype t, double scale)
{
    char *p = malloc(n * spw_dtype_bytes(t) + 1);
    for (size_t i = 0; i < n; i++)
        each_store(p, i, t, scale * each_uniform(rng));
    return p;
}

/* Groups that have the kept experts, of whole numbers of experts. */
static inline void experts_draw_groups(uint64_t *rng, struct spw_route_args *a)
{
    const uint32_t n = (uint32_t)check_range(rng, 1, SPW_MOST_EXPERT_GROUPS);
    const uint32_t size = (uint32_t)check_range(rng, 2, n > 8 ? 5 : 17);
    const uint32_t kept = (uint32_t)check_range(rng, 1, n), most = kept * size;
    a->n_experts = n * size;
    a->n_kept = (uint32_t)check_range(rng, 1, most < 9 ? most : 9);
    a->route.n_groups = n;
    a->route.n_groups_kept = kept;
}

/* A problem with its inputs; choices and scores are set by the test. */
static inline struct spw_route_args experts_draw_route(uint64_t *rng)
{
    struct spw_route_args a = {
        .rows = (size_t)check_range(rng, 1, check_range(rng, 0, 4) ? 11 : 90),
        .cols = (size_t)check_range(rng, 1, check_range(rng, 0, 1) ? 40 : 700),
        .n_experts = (uint32_t)check_range(rng, 1, check_range(rng, 0, 1) ? 9 : 140),
        .route = {.score = (enum spw_route_score)check_range(rng, 0, SPW_ROUTE_COUNT - 1),
                  .renormalizes = check_range(rng, 0, 1),
                  .scale = check_range(rng, 0, 1) ? 1 : 2.5f},
        .dtype = check_range(rng, 0, 1) ? SPW_DTYPE_F32 : SPW_DTYPE_BF16,
    };
    a.n_kept = (uint32_t)check_range(rng, 1, a.n_experts < 9 ? a.n_experts : 9);
    if (check_range(rng, 0, 1))
        experts_draw_groups(rng, &a);
    a.x = experts_values(rng, a.rows * a.cols, a.dtype, 2);
    a.w = experts_values(rng, a.n_experts * a.cols, SPW_DTYPE_F32, 3 / sqrt((double)a.cols));
    a.bias = check_range(rng, 0, 1) ? experts_values(rng, a.n_experts, SPW_DTYPE_F32, 1) : NULL;
    a.choice_bias =
        check_range(rng, 0, 1) ? experts_values(rng, a.n_experts, SPW_DTYPE_F32, 0.3) : NULL;
    a.expert_scale =
        check_range(rng, 0, 1) ? experts_values(rng, a.n_experts, SPW_DTYPE_F32, 2) : NULL;
    return a;
}

static inline void experts_free_route(struct spw_route_args *a)
{
    free((void *)(uintptr_t)a->x);
    free((void *)(uintptr_t)a->w);
    free((void *)(uintptr_t)a->bias);
    free((void *)(uintptr_t)a->choice_bias);
    free((void *)(uintptr_t)a->expert_scale);
}

/* The scores of a row, all experts counted as kept. */
static inline void experts_scores(const struct spw_route_args *a, size_t row, double *scores)
{
    double most = -INFINITY, sum = 0;
    for (uint32_t e = 0; e < a->n_experts; e++) {
        scores[e] = a->bias ? (double)a->bias[e] : 0;
        for (size_t i = 0; i < a->cols; i++)
            scores[e] += each_load(a->x, row * a->cols + i, a->dtype) *
                         (double)a->w[(size_t)e * a->cols + i];
        most = fmax(most, scores[e]);
    }
    for (uint32_t e = 0; e < a->n_experts; e++)
        sum += exp(scores[e] - most);
    for (uint32_t e = 0; e < a->n_experts; e++)
        if (a->route.score == SPW_ROUTE_SOFTMAX)
            scores[e] = exp(scores[e] - most) / sum;
        else if (a->route.score == SPW_ROUTE_SIGMOID)
            scores[e] = 1 / (1 + exp(-scores[e]));
}

/* The weight of a kept expert with this score, but for what all weights are divided by. */
static inline double experts_weight(enum spw_route_score how, double score)
{
    return how == SPW_ROUTE_SOFTMAX_KEPT   ? exp(score)
           : how == SPW_ROUTE_SIGMOID_KEPT ? 1 / (1 + exp(-score))
                                           : score;
}

/* The two highest ranks of a group, added. */
static inline double experts_group_rank(const struct spw_route_args *a, const double *scores,
                                        uint32_t g)
{
    const uint32_t size = a->n_experts / a->route.n_groups;
    double best = -INFINITY;
    for (uint32_t i = g * size; i < (g + 1) * size; i++)
        for (uint32_t j = i + 1; j < (g + 1) * size; j++)
            best = fmax(
                best,
                scores[i] + scores[j] +
                    (a->choice_bias ? (double)a->choice_bias[i] + (double)a->choice_bias[j] : 0));
    return best;
}

/* Whether each kept expert is of a group that may be kept: fewer than n_groups_kept ones are
 * better. open: the groups that are kept, whatever rounding does. */
static inline bool experts_groups_right(const struct spw_route_args *a, const double *scores,
                                        const bool *kept, bool *open)
{
    const double near = 5e-5;
    const uint32_t n = a->route.n_groups, size = a->n_experts / n;
    bool right = true;
    for (uint32_t g = 0; g < n; g++) {
        const double its = experts_group_rank(a, scores, g);
        uint32_t better = 0, as_good = 0;
        bool used = false;
        for (uint32_t i = 0; i < n; i++) {
            const double other = experts_group_rank(a, scores, i);
            better += i != g && other > its + near;
            as_good += i != g && other >= its - near;
        }
        for (uint32_t e = g * size; e < (g + 1) * size; e++)
            used |= kept[e];
        right &= !used || better < a->route.n_groups_kept;
        open[g] = as_good < a->route.n_groups_kept;
    }
    return right;
}

/* Whether the choices of a row are those of the reference. Experts whose ranks differ by rounding
 * only may take each other's place. */
static inline bool experts_route_right(const struct spw_route_args *a, size_t row,
                                       const struct spw_choice *choices)
{
    const double near = 2e-5;
    double *scores = malloc(a->n_experts * sizeof *scores), least = INFINITY, sum = 0;
    bool *kept = calloc(a->n_experts, sizeof *kept), right = true;
    bool open[SPW_MOST_EXPERT_GROUPS] = {true}; /* groups of which no better expert may be left */
    const uint32_t size = a->n_experts / (a->route.n_groups ? a->route.n_groups : 1);
    experts_scores(a, row, scores);
    for (uint32_t k = 0; k < a->n_kept; k++) {
        uint32_t e = choices[k].expert;
        right &= e < a->n_experts && (!k || choices[k - 1].expert < e);
        if (!right)
            break;
        kept[e] = true;
        least = fmin(least, scores[e] + (a->choice_bias ? (double)a->choice_bias[e] : 0));
        sum += experts_weight(a->route.score, scores[e]);
    }
    if (right && a->route.n_groups)
        right = experts_groups_right(a, scores, kept, open);
    for (uint32_t e = 0; right && e < a->n_experts; e++)
        right &= kept[e] || !open[e / size] ||
                 scores[e] + (a->choice_bias ? (double)a->choice_bias[e] : 0) <= least + near;
    for (uint32_t k = 0; right && k < a->n_kept; k++) {
        double weight = experts_weight(a->route.score, scores[choices[k].expert]);
        if (a->route.score == SPW_ROUTE_SOFTMAX_KEPT || a->route.renormalizes)
            weight /= sum;
        weight *= (double)a->route.scale;
        weight *= a->expert_scale ? (double)a->expert_scale[choices[k].expert] : 1;
        right &= fabs((double)choices[k].weight - weight) <= near * fmax(fabs(weight), 0.1);
    }
    free(scores), free(kept);
    return right;
}

#endif
