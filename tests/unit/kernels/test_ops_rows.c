/* The row operations of every CPU table, and as test_cuda_ops_rows of the GPU (rope_append:
 * test_ops_rope_append.c), against f64 references, with canaries after the outputs, odd sizes, both
 * orders of tasks, and rows computed alone against rows computed together (memcmp). What lies
 * between the rows must stay as it was. Functions have one definition: all tables give the same
 * bits. */
#include "base/numbers.h"
#include "quant/types.h"
#include "tests/unit/kernels/ops_each.h"

enum { CANARY = 64 };

static uint64_t rng;
static size_t n_bf16, n_bf16_same; /* numbers that norms have rounded; those of the reference */

static size_t draw(size_t low, size_t high)
{
    return (size_t)check_range(&rng, low, high);
}

static enum spw_dtype draw_dtype(void)
{
    return draw(0, 1) ? SPW_DTYPE_F32 : SPW_DTYPE_BF16;
}

/* n elements and a canary; freed by the caller. */
static void *buffer(size_t n, enum spw_dtype t, double scale)
{
    char *p = malloc(n * spw_dtype_bytes(t) + CANARY);
    for (size_t i = 0; i < n; i++)
        each_store(p, i, t, scale * each_uniform(&rng));
    memset(p + n * spw_dtype_bytes(t), 0xa5, CANARY);
    return p;
}

static void *copy_of(const void *p, size_t n, enum spw_dtype t)
{
    void *q = malloc(n * spw_dtype_bytes(t) + CANARY);
    return memcpy(q, p, n * spw_dtype_bytes(t) + CANARY);
}

static bool canary_lives(const void *p, size_t n, enum spw_dtype t)
{
    const unsigned char *c = (const unsigned char *)p + n * spw_dtype_bytes(t);
    for (int i = 0; i < CANARY; i++)
        if (c[i] != 0xa5)
            return false;
    return true;
}

/* ---- norm ---- */

static size_t draw_cols(void)
{
    switch (draw(0, 3)) {
    case 0:
        return 64 * draw(1, 4);
    case 1:
        return 512 * draw(1, 9);
    default:
        return draw(1, draw(0, 1) ? 200 : 3000);
    }
}

/* The f32 chain of a mean and a square root moves a result by a few f32 ulp; in bf16 that can tip
 * each of the roundings by one. */
static bool norm_right(const struct spw_norm_args *a, const void *x, size_t row)
{
    size_t from = row * a->x_stride, to = row * a->y_stride;
    double sum = 0, middle = 0, size = 0; /* size: of the terms that cancel in the mean */
    for (size_t i = 0; i < a->cols && a->kind == SPW_NORM_MEAN; i++) {
        middle += each_load(x, from + i, a->dtype) / (double)a->cols;
        size += fabs(each_load(x, from + i, a->dtype)) / (double)a->cols;
    }
    for (size_t i = 0; i < a->cols; i++)
        sum += pow(each_load(x, from + i, a->dtype) - middle, 2);
    double inverse = 1 / sqrt(sum / (double)a->cols + (double)a->eps);
    for (size_t i = 0; i < a->cols; i++) {
        double n = (each_load(x, from + i, a->dtype) - middle) * inverse;
        double w = a->weight ? (double)a->weight[i] : 1;
        double y = a->kind == SPW_NORM_LLAMA ? w * each_round_as(n, a->dtype) : n * w;
        if (a->kind == SPW_NORM_NONE)
            y = each_load(x, from + i, a->dtype) * w;
        y += a->bias ? (double)a->bias[i] : 0;
        double got = each_load(a->y, to + i, a->dtype);
        n_bf16 += a->dtype == SPW_DTYPE_BF16;
        n_bf16_same += a->dtype == SPW_DTYPE_BF16 && got == each_round_as(y, a->dtype);
        /* x - middle and the bias cancel: what is left has the error of the larger terms */
        double large = fabs(y) + (a->bias ? fabs(w) * fabs(n) + fabs((double)a->bias[i]) : 0) +
                       (middle != 0 ? fabs(w * middle) * inverse : 0);
        double slack = a->dtype == SPW_DTYPE_F32
                           ? 1e-6 * large + 1e-9
                           : (fabs(w) + 1) * each_ulp(n, a->dtype) + each_ulp(y, a->dtype);
        slack += 6e-8 * fabs(w) * inverse * size;
        if (!(fabs(got - y) <= slack)) {
            fprintf(stderr, "norm: got %g, expected %g\n", got, y);
            return false;
        }
    }
    return true;
}

static void test_norm(const struct spw_cpu_kernels *table)
{
    enum spw_dtype t = draw_dtype();
    size_t cols = draw_cols(), rows = draw(1, cols > 512 ? 9 : 40), wide = spw_dtype_bytes(t);
    size_t stride = cols + draw(0, 5), n = rows * stride;
    void *x = buffer(n, t, 3), *y = buffer(n, t, 1), *again = copy_of(x, n, t);
    void *before = copy_of(y, n, t);
    float *weight = buffer(cols, SPW_DTYPE_F32, 2), *bias = buffer(cols, SPW_DTYPE_F32, 1);
    struct spw_norm_args a = {.x = x,
                              .y = y,
                              .weight = draw(0, 3) ? weight : NULL,
                              .bias = draw(0, 1) ? bias : NULL,
                              .rows = rows,
                              .cols = cols,
                              .x_stride = stride,
                              .y_stride = stride,
                              .eps = 1e-5f,
                              .kind = (enum spw_norm_kind)draw(0, SPW_NORM_NONE),
                              .dtype = t};
    each_run(table->norm, &a, EACH_FORWARD);
    CHECK(canary_lives(y, n, t));
    for (size_t row = 0; row < rows; row++) {
        const size_t end = (row * stride + cols) * wide;
        CHECK(norm_right(&a, x, row));
        CHECK(!memcmp((char *)y + end, (char *)before + end, (stride - cols) * wide));
    }
    /* in place, backwards, row by row: the same bits */
    for (size_t row = 0; row < rows; row++) {
        struct spw_norm_args one = a;
        one.x = one.y = (char *)again + row * stride * wide;
        one.rows = 1;
        each_run(table->norm, &one, EACH_BACKWARD);
        CHECK(!memcmp(one.y, (char *)y + row * stride * wide, cols * wide));
    }
    free(x), free(y), free(again), free(before), free(weight), free(bias);
}

/* With a residual: the bits of the norm, then of an addition, then of a product with a factor, if
 * there is one: operations of f32, whose results are rounded to bf16. y is a buffer of its own, the
 * residual, or x. */
static void test_norm_residual(const struct spw_cpu_kernels *table)
{
    enum spw_dtype t = draw_dtype();
    size_t cols = draw_cols(), rows = draw(1, 5), stride = cols + draw(0, 5), n = rows * stride;
    void *x = buffer(n, t, 3), *h = buffer(n, t, 3), *own = buffer(n, t, 1),
         *normed = copy_of(x, n, t);
    float *weight = buffer(cols, SPW_DTYPE_F32, 2);
    void *const places[] = {own, h, x}, *y = places[draw(0, 2)], *want = copy_of(y, n, t);
    struct spw_norm_args a = {.x = x,
                              .y = normed,
                              .weight = weight,
                              .rows = rows,
                              .cols = cols,
                              .x_stride = stride,
                              .y_stride = stride,
                              .eps = 1e-5f,
                              .kind = (enum spw_norm_kind)draw(0, SPW_NORM_NONE),
                              .dtype = t};
    each_run(table->norm, &a, EACH_FORWARD);
    for (size_t i = 0; i < n; i++)
        if (i % stride < cols)
            each_store(want, i, t, (float)(each_load(h, i, t) + each_load(normed, i, t)));
    const float factor = (float)each_uniform(&rng);
    for (size_t i = 0; i < n && factor > 0; i++)
        if (i % stride < cols)
            each_store(want, i, t, (float)(each_load(want, i, t) * (double)factor));
    a.y = y, a.residual = h, a.factor = factor > 0 ? &factor : NULL;
    each_run(table->norm, &a, EACH_BACKWARD);
    CHECK(!memcmp(y, want, n * spw_dtype_bytes(t)) && canary_lives(y, n, t));
    free(x), free(h), free(own), free(normed), free(want), free(weight);
}

/* ---- gated ---- */

static double activation(double x, enum spw_activation act)
{
    if (act == SPW_ACT_SILU)
        return x / (1 + exp(-x));
    if (act == SPW_ACT_SIGMOID)
        return 1 / (1 + exp(-x));
    if (act == SPW_ACT_IDENTITY)
        return x;
    if (act == SPW_ACT_GELU_ERF)
        return 0.5 * x * (1 + erf(x / sqrt(2)));
    if (act == SPW_ACT_CUT_QUICK)
        x = x > 7 ? 7 : x;
    if (act == SPW_ACT_GELU_QUICK || act == SPW_ACT_CUT_QUICK)
        return x / (1 + exp(-1.702 * x));
    if (act == SPW_ACT_RELU || act == SPW_ACT_RELU_SQUARED)
        return x < 0 ? 0 : act == SPW_ACT_RELU ? x : x * x;
    return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
}

static void test_gated(const struct spw_cpu_kernels *table)
{
    enum spw_dtype t = draw_dtype();
    enum spw_activation act = (enum spw_activation)draw(0, SPW_ACT_COUNT - 1);
    bool cancels = act == SPW_ACT_GELU_TANH || act == SPW_ACT_GELU_ERF;
    size_t rows = draw(1, 20), cols = draw(0, 9) ? draw(1, 300) : draw(8000, 9000), n = rows * cols;
    size_t up_stride = cols + draw(0, 3), stride = cols + draw(0, 3);
    void *gate = buffer(rows * stride, t, 8), *up = buffer(rows * up_stride, t, 8);
    void *y = buffer(n, t, 1);
    struct spw_gated_args a = {.gate = gate,
                               .up = up,
                               .y = y,
                               .rows = rows,
                               .cols = cols,
                               .gate_stride = stride,
                               .up_stride = up_stride,
                               .act = act,
                               .dtype = t};
    each_run(table->gated, &a, EACH_BACKWARD);
    bool right = canary_lives(y, n, t);
    for (size_t i = 0; i < n; i++) {
        size_t row = i / cols, c = i % cols;
        double g = each_load(gate, row * stride + c, t), u = each_load(up, row * up_stride + c, t);
        if (act == SPW_ACT_CUT_QUICK)
            u = each_round_as((u > 7 ? 7 : u < -7 ? -7 : u) + 1, t);
        double f = activation(g, act), want = each_round_as(f, t) * u;
        /* 1 + tanh(..) and 1 + erf(..) cancel for negative g, here as in PyTorch: their f32 error
         * counts relative to |g|; where bf16's rounding tips, it is one step of f. */
        double small = 4e-7 * (cancels ? fabs(g) : fabs(f));
        if (act == SPW_ACT_GELU_QUICK ||
            act == SPW_ACT_CUT_QUICK) /* 1.702 x is rounded before the exponential */
            small += 2e-7 * fabs(g) * fabs(f);
        double slack = t == SPW_DTYPE_F32
                           ? fabs(u) * (small + each_ulp(f, t))
                           : fabs(u) * (small + each_ulp(f, t)) + each_ulp(want, t) / 2;
        double got = each_load(y, i, t);
        if (!(fabs(got - want) <= slack + 1e-40)) {
            fprintf(stderr, "gated: act %d g %g u %g: got %g, expected %g\n", (int)act, g, u, got,
                    want);
            right = false;
        }
    }
    CHECK(right);
    void *alone = buffer(cols, t, 1);
    struct spw_gated_args one = a;
    one.gate = (char *)gate + (rows - 1) * stride * spw_dtype_bytes(t);
    one.up = (char *)up + (rows - 1) * up_stride * spw_dtype_bytes(t);
    one.y = alone, one.rows = 1;
    each_run(table->gated, &one, EACH_FORWARD);
    CHECK(!memcmp(alone, (char *)y + (rows - 1) * cols * spw_dtype_bytes(t),
                  cols * spw_dtype_bytes(t)));
    a.gate = a.up = a.y = gate; /* in place */
    a.gate_stride = a.up_stride = cols;
    one = a, one.y = y;
    each_run(table->gated, &one, EACH_FORWARD);
    each_run(table->gated, &a, EACH_BACKWARD);
    CHECK(!memcmp(gate, y, n * spw_dtype_bytes(t)));
    free(gate), free(up), free(y), free(alone);
}

/* ---- softcap ---- */

/* The worst error of cap * tanh(x / cap), in f32 ulp: division and product add 1/2 each, and the
 * division's error passes through tanh at no more than its own relative size. */
static void test_softcap(const struct spw_cpu_kernels *table)
{
    size_t n = draw(1, 20000);
    double reach = pow(10, 3 * each_uniform(&rng));
    float *x = buffer(n, SPW_DTYPE_F32, 30 * reach), *before = copy_of(x, n, SPW_DTYPE_F32);
    struct spw_softcap_args a = {.x = x, .n = n, .cap = 30};
    each_run(table->softcap, &a, EACH_BACKWARD);
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        double want = 30 * tanh((double)before[i] / 30);
        double off = fabs((double)x[i] - want) / each_ulp(want, SPW_DTYPE_F32);
        worst = off > worst ? off : worst;
    }
    CHECK_MSG(worst <= 4, "%g ulp, reach %g", worst, reach);
    a.x = before;
    each_run(each_portable()->softcap, &a, EACH_FORWARD);
    CHECK(canary_lives(x, n, SPW_DTYPE_F32) && !memcmp(x, before, n * sizeof *x));
    free(x), free(before);
}

/* ---- each ---- */

/* An activation gives the bits of the gated operation beside ones. A limit only cuts. */
static void test_each(const struct spw_cpu_kernels *table)
{
    enum spw_dtype t = draw_dtype();
    enum spw_activation act = (enum spw_activation)draw(0, SPW_ACT_COUNT - 1);
    size_t n = draw(0, 3) ? draw(1, 300) : draw(8000, 20000);
    const float limit = act == SPW_ACT_CUT_QUICK || draw(0, 1) ? 1.5f : 0;
    void *x = buffer(n, t, 4), *y = copy_of(x, n, t), *want = buffer(n, t, 1);
    void *both = buffer(2 * n, t, 1);
    memcpy(both, x, n * spw_dtype_bytes(t));
    for (size_t i = 0; i < n; i++) {
        each_store(both, n + i, t, 1);
        const double v = each_load(x, i, t);
        each_store(want, i, t, v > 1.5 ? 1.5 : v < -1.5 ? -1.5 : v);
    }
    struct spw_each_args a = {.x = y, .n = n, .limit = limit, .act = act, .dtype = t};
    struct spw_gated_args gated = {.gate = both,
                                   .up = (char *)both + n * spw_dtype_bytes(t),
                                   .y = want,
                                   .rows = 1,
                                   .cols = n,
                                   .act = act,
                                   .dtype = t};
    each_run(table->each, &a, EACH_BACKWARD);
    if (limit == 0)
        each_run(table->gated, &gated, EACH_FORWARD);
    CHECK_MSG(!memcmp(y, want, n * spw_dtype_bytes(t)) && canary_lives(y, n, t), "act %d limit %g",
              (int)act, (double)limit);
    free(x), free(y), free(want), free(both);
}

/* ---- one definition ---- */

/* One activation of n numbers, with a second factor and without: every table of the CPU has the
 * bits of this one. */
static void same_activation(const struct spw_cpu_kernels *table, const void *gate, const void *up,
                            size_t n, enum spw_activation act, enum spw_dtype t)
{
    const size_t bytes = n * spw_dtype_bytes(t);
    void *y = malloc(bytes), *want = malloc(bytes);
    for (int with_up = act == SPW_ACT_CUT_QUICK; with_up < 2; with_up++) {
        struct spw_gated_args gated = {
            .gate = gate, .up = up, .y = want, .rows = 1, .cols = n, .act = act, .dtype = t};
        struct spw_each_args each = {
            .x = memcpy(want, gate, bytes), .n = n, .act = act, .dtype = t};
        const void *args = with_up ? (const void *)&gated : &each;
        each_run(with_up ? table->gated : table->each, args, EACH_FORWARD);
        EACH_CPU_TABLE(other)
        {
            gated.y = y, each.x = memcpy(y, gate, bytes);
            each_run(with_up ? other->gated : other->each, args, EACH_FORWARD);
            CHECK_MSG(!memcmp(y, want, bytes), "act %d, %s and %s: %s", (int)act, each_name(table),
                      spw_isa_name(other->isa), spw_dtype_name(t));
        }
    }
    free(y), free(want);
}

static void test_activations(const struct spw_cpu_kernels *table, enum spw_dtype t)
{
    size_t n;
    void *gate = each_finite(&rng, t, &n), *up = buffer(n, t, 9);
    for (int act = 0; act < SPW_ACT_COUNT; act++)
        same_activation(table, gate, up, n, (enum spw_activation)act, t);
    free(gate), free(up);
}

/* exp through silu: x / (1 + e^-x) at the ends of the range, and NaN stays NaN. */
static void test_extremes(const struct spw_cpu_kernels *table)
{
    float x[2][8] = {{-200, -104, -89, -88, 88, 200, INFINITY, NAN}, {1, 1, 1, 1, 1, 1, 1, 1}};
    float y[8];
    struct spw_gated_args a = {.gate = x[0],
                               .up = x[1],
                               .y = y,
                               .rows = 1,
                               .cols = 8,
                               .act = SPW_ACT_SILU,
                               .dtype = SPW_DTYPE_F32};
    each_run(table->gated, &a, EACH_FORWARD);
    CHECK(y[0] == 0 && y[1] == 0);
    CHECK(fabs((double)y[3] / (-88 * exp(-88)) - 1) < 1e-6);
    CHECK(y[4] == 88 && y[5] == 200 && y[6] == INFINITY && isnan(y[7]));
    uint16_t h[4], nan_and[4] = {0x7fc1, 0x7f80, 0x0001, 0x3f80}, zero[4] = {0};
    memcpy(h, nan_and, sizeof h);
    struct spw_norm_args norm = {.x = zero,
                                 .y = h,
                                 .residual = h,
                                 .weight = x[1],
                                 .rows = 1,
                                 .cols = 4,
                                 .eps = 1,
                                 .dtype = SPW_DTYPE_BF16};
    each_run(table->norm, &norm, EACH_FORWARD);
    float cut[3] = {NAN, INFINITY, -INFINITY};
    struct spw_each_args each = {.x = cut, .n = 3, .limit = 2, .dtype = SPW_DTYPE_F32};
    each_run(table->each, &each, EACH_FORWARD);
    CHECK(isnan(cut[0]) && cut[1] == 2 && cut[2] == -2);
    CHECK((h[0] & 0x7fff) > 0x7f80 && !memcmp(h + 1, nan_and + 1, 6));
}

int main(void)
{
    if (!each_is_there())
        return CHECK_SKIP;
    rng = check_seed();
    EACH_TABLE(table)
    {
        n_bf16 = n_bf16_same = 0;
        for (int i = 0; i < each_draws(12, 100); i++) {
            test_norm(table);
            test_norm_residual(table);
            test_gated(table);
            test_softcap(table);
            test_each(table);
        }
        test_extremes(table);
        /* A tip takes a value within some 2^-22 of the middle between two bf16 values 2^-8 apart,
         * which is one in ten thousand. A rounding that is left out changes one in eight. */
        CHECK_MSG((double)n_bf16_same >= 0.99 * (double)n_bf16, "%s: norm: %zu of %zu bf16 alike",
                  each_name(table), n_bf16_same, n_bf16);
        if (table->isa == SPW_ISA_PORTABLE || EACH_GPU) {
            test_activations(table, SPW_DTYPE_BF16);
            test_activations(table, SPW_DTYPE_F32);
        }
    }
    return check_done();
}
