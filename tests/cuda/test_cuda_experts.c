/* The operations around experts on the GPU: the router against its f64 reference; what it makes of
 * logits, gather and combine against the CPU (memcmp); rows computed alone against rows computed
 * together (memcmp). */
#include "base/numbers.h"
#include "model/cuda/ops_cuda.h"
#include "quant/types.h"
#include "tests/cuda/cuda_memory.h"
#include "tests/unit/kernels/experts_problem.h"

static uint64_t rng;

static size_t draw(size_t low, size_t high)
{
    return (size_t)check_range(&rng, low, high);
}

static void *on_gpu(const void *from, size_t bytes)
{
    return from ? cuda_copy_of(from, bytes, 0) : NULL;
}

static void drop(const void *p)
{
    if (p)
        cuda_take_back(NULL, (void *)(uintptr_t)p, 0, 0);
}

/* The choices of rows [first, first + n) of the problem. */
static void route_on_gpu(const struct spw_route_args *a, size_t first, size_t n,
                         struct spw_choice *out)
{
    const size_t element = spw_dtype_bytes(a->dtype);
    struct spw_route_args b = *a;
    b.rows = n;
    b.x = on_gpu((const char *)a->x + first * a->cols * element, n * a->cols * element);
    b.w = on_gpu(a->w, a->n_experts * a->cols * sizeof(float));
    b.bias = on_gpu(a->bias, a->n_experts * sizeof(float));
    b.expert_scale = on_gpu(a->expert_scale, a->n_experts * sizeof(float));
    b.choice_bias = on_gpu(a->choice_bias, a->n_experts * sizeof(float));
    float *scores = calloc(n * a->n_experts, sizeof *scores);
    b.scores = on_gpu(scores, n * a->n_experts * sizeof(float));
    b.choices = on_gpu(out, n * a->n_kept * sizeof *out);
    CHECK(!spw_route_cuda(&b, NULL));
    cuda_take_back(out, b.choices, n * a->n_kept * sizeof *out, 0);
    drop(b.x), drop(b.w), drop(b.bias), drop(b.choice_bias), drop(b.scores);
    drop(b.expert_scale);
    free(scores);
}

static void test_route(void)
{
    struct spw_route_args a = experts_draw_route(&rng);
    struct spw_choice *choices = calloc(a.rows * a.n_kept, sizeof *choices), alone[16] = {{0}};
    size_t one = draw(0, a.rows - 1);
    bool right = true;
    route_on_gpu(&a, 0, a.rows, choices);
    for (size_t row = 0; row < a.rows; row++)
        right &= experts_route_right(&a, row, choices + row * a.n_kept);
    route_on_gpu(&a, one, 1, alone);
    bool same = !memcmp(alone, choices + one * a.n_kept, a.n_kept * sizeof *alone);
    CHECK_MSG(right && same, "right %d same %d: rows %zu cols %zu, %u of %u experts, score %d %s",
              right, same, a.rows, a.cols, a.n_kept, a.n_experts, a.route.score,
              spw_dtype_name(a.dtype));
    free(choices);
    experts_free_route(&a);
}

/* Logits of one product each, which are the same on both sides: every table of the CPU gives the
 * GPU's bits. */
static void test_choices(void)
{
    struct spw_route_args a = experts_draw_route(&rng);
    const size_t bytes = a.rows * a.n_kept * sizeof(struct spw_choice);
    struct spw_choice *want = calloc(1, bytes);
    a.cols = 1;
    route_on_gpu(&a, 0, a.rows, want);
    a.scores = calloc(a.rows * a.n_experts, sizeof(float));
    a.choices = malloc(bytes);
    EACH_TABLE(table)
    {
        each_run(table->route_scores, &a, EACH_FORWARD);
        each_run(table->route, &a, EACH_FORWARD);
        CHECK_MSG(!memcmp(a.choices, want, bytes), "%s: %u of %u experts, score %d %s",
                  spw_isa_name(table->isa), a.n_kept, a.n_experts, a.route.score,
                  spw_dtype_name(a.dtype));
    }
    free(a.scores), free(a.choices), free(want);
    experts_free_route(&a);
}

/* Gathers rows as an expert does, and adds them to others. Both backends add in the same order with
 * the same roundings, so the bits are the same. */
static void test_rows(void)
{
    size_t rows = draw(1, 9), cols = draw(1, 700), n_kept = draw(1, 5), n = rows * n_kept;
    enum spw_dtype t = draw(0, 1) ? SPW_DTYPE_F32 : SPW_DTYPE_BF16;
    size_t bytes = cols * spw_dtype_bytes(t);
    char *x = experts_values(&rng, rows * cols, t, 1), *y = calloc(n, bytes);
    char *h = experts_values(&rng, rows * cols, t, 1), *got = malloc(n * bytes);
    uint32_t index[45], places[45];
    struct spw_choice choices[45];
    for (size_t i = 0; i < n; i++) {
        index[i] = (uint32_t)draw(0, rows - 1);
        places[i] = (uint32_t)draw(0, n - 1);
        choices[i] = (struct spw_choice){(uint32_t)(i % n_kept), (float)each_uniform(&rng)};
    }
    const struct spw_cpu_kernels *cpu = NULL;
    while (!cpu)
        cpu = spw_cpu_kernels_get((enum spw_isa)draw(0, SPW_ISA_COUNT - 1));
    struct spw_gather_args gather = {
        .x = x, .index = index, .y = y, .rows = n, .cols = cols, .x_stride = cols, .dtype = t};
    if (draw(0, 1)) {
        gather.choices = choices;
        gather.n_kept = (uint32_t)n_kept;
        gather.expert = (uint32_t)draw(0, n_kept - 1);
    }
    if (draw(0, 1)) {
        gather.index = NULL;
        gather.times = (uint32_t)n_kept;
        gather.n_kept = gather.choices ? 1 : 0; /* a choice for each row of y */
    }
    struct spw_combine_args combine = {.h = h,
                                       .y = y,
                                       .choices = choices,
                                       .places = places,
                                       .rows = rows,
                                       .cols = cols,
                                       .n_kept = (uint32_t)n_kept,
                                       .unweighted = draw(0, 1),
                                       .dtype = t};
    struct spw_gather_args gather_there = gather;
    struct spw_combine_args combine_there = combine;
    gather_there.x = on_gpu(x, rows * bytes);
    gather_there.index = on_gpu(gather.index, n * sizeof *index);
    gather_there.y = on_gpu(y, n * bytes);
    combine_there.h = on_gpu(h, rows * bytes);
    if (draw(0, 1)) {
        combine.residual = h;
        combine_there.residual = combine_there.h;
    }
    combine_there.y = gather_there.y;
    combine_there.choices = on_gpu(choices, n * sizeof *choices);
    gather_there.choices = gather.choices ? combine_there.choices : NULL;
    combine_there.places = on_gpu(places, n * sizeof *places);
    CHECK(!spw_gather_cuda(&gather_there, NULL) && !spw_combine_cuda(&combine_there, NULL));
    each_run(cpu->gather, &gather, EACH_FORWARD);
    each_run(cpu->combine, &combine, EACH_FORWARD);
    cuda_take_back(got, gather_there.y, n * bytes, 0);
    CHECK(!memcmp(got, y, n * bytes));
    cuda_take_back(got, combine_there.h, rows * bytes, 0);
    CHECK_MSG(!memcmp(got, h, rows * bytes), "%s: rows %zu cols %zu of %zu %s",
              spw_isa_name(cpu->isa), rows, cols, n_kept, spw_dtype_name(t));
    drop(gather_there.x), drop(gather_there.index);
    drop(combine_there.choices), drop(combine_there.places);
    free(x), free(y), free(h), free(got);
}

static void test_refused(void)
{
    struct spw_route_args route = {.rows = 1, .n_experts = 2, .n_kept = 3};
    struct spw_gather_args gather = {.dtype = SPW_DTYPE_F16};
    struct spw_combine_args combine = {.dtype = SPW_DTYPE_F16};
    route.dtype = SPW_DTYPE_F32;
    CHECK(spw_route_cuda(&route, NULL) == -EINVAL);
    CHECK(spw_gather_cuda(&gather, NULL) == -EINVAL);
    CHECK(spw_combine_cuda(&combine, NULL) == -EINVAL);
    route.n_kept = 1, route.rows = 0;
    gather.dtype = combine.dtype = SPW_DTYPE_BF16;
    CHECK(!spw_route_cuda(&route, NULL));
    CHECK(!spw_gather_cuda(&gather, NULL) && !spw_combine_cuda(&combine, NULL));
}

int main(void)
{
    if (!cuda_there())
        return CHECK_SKIP;
    rng = check_seed();
    for (int i = 0; i < cuda_draws(40); i++) {
        test_route();
        test_choices();
        test_rows();
    }
    test_refused();
    return check_done();
}
