/* The operations around experts of every CPU table, and as test_cuda_ops_experts of the GPU,
 * against f64 references; rows computed alone against rows computed together (memcmp); rows that
 * are not finite. From the same logits all tables give the same bits. */
#include "base/numbers.h"
#include "quant/types.h"
#include "tests/unit/kernels/experts_problem.h"
#include "tests/unit/kernels/ops_each.h"

static uint64_t rng;

static size_t draw(size_t low, size_t high)
{
    return (size_t)check_range(&rng, low, high);
}

/* ---- route ---- */

static void run_route(const struct spw_cpu_kernels *table, const struct spw_route_args *a)
{
    enum each_order order = draw(0, 1) ? EACH_FORWARD : EACH_BACKWARD;
    each_run(table->route_scores, a, order);
    each_run(table->route, a, order);
}

static void test_route(const struct spw_cpu_kernels *table)
{
    struct spw_route_args a = experts_draw_route(&rng);
    struct spw_choice *choices = malloc(a.rows * a.n_kept * sizeof *choices);
    a.scores = malloc(a.rows * a.n_experts * sizeof(float));
    a.choices = choices;
    run_route(table, &a);
    bool right = true, same = true;
    for (size_t row = 0; row < a.rows; row++) {
        struct spw_choice alone[16];
        struct spw_route_args one = a;
        one.x = (const char *)a.x + row * a.cols * spw_dtype_bytes(a.dtype);
        one.rows = 1;
        one.choices = alone;
        right &= experts_route_right(&a, row, choices + row * a.n_kept);
        run_route(table, &one);
        same &= !memcmp(alone, choices + row * a.n_kept, a.n_kept * sizeof *alone);
    }
    CHECK_MSG(right && same, "right %d same %d: rows %zu cols %zu, %u of %u experts, score %d %s",
              right, same, a.rows, a.cols, a.n_kept, a.n_experts, a.route.score,
              spw_dtype_name(a.dtype));
    free(choices), free(a.scores);
    experts_free_route(&a);
}

/* Logits of one product each, which are the same everywhere: every table of the CPU has the bits of
 * this one. */
static void test_choices(const struct spw_cpu_kernels *table)
{
    struct spw_route_args a = experts_draw_route(&rng);
    const size_t bytes = a.rows * a.n_kept * sizeof(struct spw_choice);
    struct spw_choice *choices = calloc(1, bytes), *want = calloc(1, bytes);
    a.cols = 1;
    a.scores = calloc(a.rows * a.n_experts, sizeof(float));
    a.choices = want;
    run_route(table, &a);
    a.choices = choices;
    EACH_CPU_TABLE(other)
    {
        run_route(other, &a);
        CHECK_MSG(!memcmp(choices, want, bytes), "%s: %u of %u experts, score %d %s",
                  spw_isa_name(other->isa), a.n_kept, a.n_experts, a.route.score,
                  spw_dtype_name(a.dtype));
    }
    free(a.scores), free(choices), free(want);
    experts_free_route(&a);
}

/* Equal scores: the lower numbers win. A row that is not finite: experts all the same, and weights
 * that say so. */
static void test_extremes(const struct spw_cpu_kernels *table)
{
    float x[2][3] = {{1, 1, 1}, {1, NAN, 1}}, w[5][3] = {{0}}, scores[10];
    struct spw_choice choices[2][2];
    struct spw_route_args a = {.x = x,
                               .w = w[0],
                               .scores = scores,
                               .choices = choices[0],
                               .rows = 2,
                               .cols = 3,
                               .n_experts = 5,
                               .n_kept = 2,
                               .route = {.scale = 1},
                               .dtype = SPW_DTYPE_F32};
    for (int score = 0; score < SPW_ROUTE_COUNT; score++) {
        a.route.score = (enum spw_route_score)score;
        run_route(table, &a);
        CHECK(choices[0][0].expert == 0 && choices[0][1].expert == 1);
        CHECK(choices[1][0].expert < choices[1][1].expert && choices[1][1].expert < 5);
        CHECK(isnan(choices[1][0].weight) && isnan(choices[1][1].weight));
    }
}

/* The first of three groups has infinities of both signs, whose sum is NaN: no other group is worse
 * for that. */
static void test_infinite_group(const struct spw_cpu_kernels *table)
{
    float x[1] = {1}, w[6][1] = {{0}}, scores[6];
    const float bias[6] = {INFINITY, -INFINITY, 0, 0, 1, 1};
    struct spw_choice choices[2];
    struct spw_route_args a = {
        .x = x,
        .w = w[0],
        .choice_bias = bias,
        .scores = scores,
        .choices = choices,
        .rows = 1,
        .cols = 1,
        .n_experts = 6,
        .n_kept = 2,
        .route = {.score = SPW_ROUTE_SIGMOID, .scale = 1, .n_groups = 3, .n_groups_kept = 1},
        .dtype = SPW_DTYPE_F32};
    run_route(table, &a);
    CHECK(choices[0].expert == 4 && choices[1].expert == 5);
}

/* ---- gather, combine ---- */

static void test_gather(const struct spw_cpu_kernels *table)
{
    size_t from = draw(1, 20), rows = draw(1, 30), cols = draw(1, 3000);
    enum spw_dtype t = draw(0, 1) ? SPW_DTYPE_F32 : SPW_DTYPE_BF16;
    size_t bytes = cols * spw_dtype_bytes(t);
    char *x = experts_values(&rng, from * cols, t, 1), *y = calloc(rows, bytes);
    uint32_t index[30];
    for (size_t i = 0; i < rows; i++)
        index[i] = (uint32_t)draw(0, from - 1);
    struct spw_gather_args a = {
        .x = x, .index = index, .y = y, .rows = rows, .cols = cols, .x_stride = cols, .dtype = t};
    each_run(table->gather, &a, EACH_BACKWARD);
    for (size_t i = 0; i < rows; i++)
        CHECK(!memcmp(y + i * bytes, x + index[i] * bytes, bytes));
    free(x), free(y);
}

/* Expert 7 is the first, the second or the last of the three that a row has chosen. */
static void test_gather_weighted(const struct spw_cpu_kernels *table)
{
    size_t rows = draw(1, 20), cols = draw(1, 700);
    enum spw_dtype t = draw(0, 1) ? SPW_DTYPE_F32 : SPW_DTYPE_BF16;
    char *x = experts_values(&rng, rows * cols, t, 1), *y = calloc(rows * cols, sizeof(float));
    uint32_t index[20];
    struct spw_choice choices[20][3];
    for (size_t i = 0; i < rows; i++) {
        uint32_t first = 7 - (uint32_t)draw(0, 2);
        index[i] = (uint32_t)(rows - 1 - i);
        for (uint32_t k = 0; k < 3; k++)
            choices[i][k] = (struct spw_choice){first + k, (float)each_uniform(&rng)};
    }
    struct spw_gather_args a = {.x = x,
                                .index = draw(0, 1) ? index : NULL,
                                .y = y,
                                .choices = choices[0],
                                .expert = 7,
                                .n_kept = 3,
                                .rows = rows,
                                .cols = cols,
                                .x_stride = cols,
                                .dtype = t};
    if (!a.index)
        a.times = (uint32_t)draw(0, 3);
    each_run(table->gather, &a, EACH_BACKWARD);
    bool right = true;
    for (size_t i = 0; i < rows * cols; i++) {
        size_t from = a.index ? index[i / cols] : i / cols;
        float weight = choices[from][7 - choices[from][0].expert].weight;
        weight = (float)each_round_as((double)weight, t);
        size_t at = (a.times ? from / a.times : from) * cols + i % cols;
        double want = each_round_as((double)(weight * (float)each_load(x, at, t)), t);
        right &= each_load(y, i, t) == want;
    }
    CHECK_MSG(right, "rows %zu cols %zu %s", rows, cols, spw_dtype_name(t));
    free(x), free(y);
}

static bool combine_right(const struct spw_combine_args *a, const void *h, size_t row)
{
    for (size_t i = 0; i < a->cols; i++) {
        double sum = 0, size = 0;
        for (uint32_t k = 0; k < a->n_kept; k++) {
            size_t at = row * a->n_kept + k, from = a->places ? a->places[at] : at;
            double one = each_load(a->y, from * a->cols + i, a->dtype);
            one *= a->unweighted ? 1 : (double)a->choices[at].weight;
            sum += one;
            size += fabs(one);
        }
        double old = a->residual ? each_load(h, row * a->cols + i, a->dtype) : 0;
        double want = old + each_round_as(sum, a->dtype);
        double got = each_load(a->h, row * a->cols + i, a->dtype);
        /* each product, the sum and its addition are rounded once */
        double slack = each_ulp(size + fabs(old), a->dtype) * (1.5 + 0.5 * a->n_kept);
        if (fabs(got - want) > slack)
            return false;
    }
    return true;
}

static void test_combine(const struct spw_cpu_kernels *table)
{
    size_t rows = draw(1, 9), cols = draw(1, draw(0, 3) ? 300 : 9000), n = 0;
    enum spw_dtype t = draw(0, 1) ? SPW_DTYPE_F32 : SPW_DTYPE_BF16;
    uint32_t n_kept = (uint32_t)draw(1, 8), places[72];
    struct spw_choice choices[72];
    size_t bytes = cols * spw_dtype_bytes(t);
    for (; n < rows * n_kept; n++) {
        choices[n] = (struct spw_choice){0, (float)each_uniform(&rng)};
        places[n] = (uint32_t)(rows * n_kept - 1 - n);
    }
    char *h = experts_values(&rng, rows * cols, t, 1), *y = experts_values(&rng, n * cols, t, 1);
    char *before = malloc(rows * bytes), *alone = malloc(bytes);
    memcpy(before, h, rows * bytes);
    struct spw_combine_args a = {.residual = draw(0, 3) ? h : NULL,
                                 .h = h,
                                 .y = y,
                                 .choices = choices,
                                 .places = draw(0, 1) ? places : NULL,
                                 .rows = rows,
                                 .cols = cols,
                                 .n_kept = n_kept,
                                 .unweighted = draw(0, 1),
                                 .dtype = t};
    each_run(table->combine, &a, EACH_BACKWARD);
    size_t row = draw(0, rows - 1);
    struct spw_combine_args one = a;
    one.h = memcpy(alone, before + row * bytes, bytes);
    one.residual = a.residual ? alone : NULL;
    one.choices = choices + row * n_kept;
    one.places = a.places ? places + row * n_kept : NULL;
    one.y = a.places ? y : y + row * n_kept * bytes;
    one.rows = 1;
    each_run(table->combine, &one, EACH_FORWARD);
    CHECK_MSG(combine_right(&a, before, row) && !memcmp(alone, h + row * bytes, bytes),
              "rows %zu cols %zu, %u outputs, %s", rows, cols, n_kept, spw_dtype_name(t));
    a.h = before, a.residual = a.residual ? before : NULL;
    each_run(each_portable()->combine, &a, EACH_FORWARD);
    CHECK(!memcmp(before, h, rows * bytes)); /* added in one order */
    free(h), free(y), free(before), free(alone);
}

int main(void)
{
    if (!each_is_there())
        return CHECK_SKIP;
    rng = check_seed();
    EACH_TABLE(table)
    {
        for (int i = 0; i < each_draws(60, 40); i++) {
            test_route(table);
            test_choices(table);
            test_gather(table);
            test_gather_weighted(table);
            test_combine(table);
        }
        test_extremes(table);
        test_infinite_group(table);
    }
    return check_done();
}
