/* The operations of layers with a state, of every CPU table and as test_cuda_ops_state of the GPU,
 * over drawn shapes: against references in f64; conv and recur also against the portable table, in
 * other calls, alone, and on several threads (memcmp). */
#include <float.h>

#include "base/simd.h"
#include "offload/device/device_cpu_team.h"
#include "offload/device/placement.h"
#include "tests/unit/kernels/math_f32.h"
#include "tests/unit/kernels/ops_each.h"
#include "tests/unit/kernels/state_problem.h"

enum { THREADS = 3, DRAWS = 6, MOST_ROWS = EACH_GPU || RUN_UNDER_ASAN ? 1000 : 10000 };

static struct spw_team *team;

/* ---- functions ---- */

static double silu(double x)
{
    return x * state_sigmoid(x);
}

static double gelu_erf(double x)
{
    return 0.5 * x * erfc(-x / sqrt(2));
}

static double gelu_tanh(double x)
{
    return x * state_sigmoid(2 * sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x));
}

static double gelu_quick(double x)
{
    return x * state_sigmoid(1.702 * x);
}

/* A function, the f64 one, the numbers that it is for, and the largest error: in ulp of the result;
 * of an activation, in ulp of x (where the result is small, 1 + erf and the product before an
 * exponential have lost bits). */
struct function {
    const char *name;
    float (*f)(float);
    double (*exact)(double);
    float low, high;
    double most;
    enum spw_activation act;
};

static void test_function(const struct function *f)
{
    const uint32_t step = check_full() ? 61 : 4099; /* 4099: a million numbers */
    double worst = 0;
    float at = 0;
    for (uint64_t i = state_draw(0, step - 1); i <= UINT32_MAX; i += step) {
        const float x = each_bits_float((uint32_t)i);
        if (!(x >= f->low && x <= f->high))
            continue;
        const double want = f->exact((double)x);
        const double got = (double)(f->f ? f->f(x) : num_activation(x, f->act));
        const double off = fabs(got - want) / each_ulp(f->f ? want : (double)x, SPW_DTYPE_F32);
        if (!(off <= worst))
            worst = off, at = x;
    }
    CHECK_MSG(worst <= f->most, "%s: %g ulp at %a", f->name, worst, (double)at);
}

static void test_functions(void)
{
    static const struct function functions[] = {
        {"exp", num_exp, exp, -FLT_MAX, 88.72f, 1.1, 0},
        {"expm1", num_expm1, expm1, -FLT_MAX, 0, 1.1, 0},
        {"tanh", num_tanh, tanh, -FLT_MAX, FLT_MAX, 1.4, 0},
        {"erf", num_erf, erf, -FLT_MAX, FLT_MAX, 1.2, 0},
        {"sigmoid", num_sigmoid, state_sigmoid, -88, FLT_MAX, 2.6, 0},
        {"softplus", num_softplus, state_softplus, -FLT_MAX, FLT_MAX, 2.7, 0},
        {"silu", NULL, silu, -FLT_MAX, FLT_MAX, 1.6, SPW_ACT_SILU},
        {"gelu_tanh", NULL, gelu_tanh, -1e12f, 1e12f, 1.8, SPW_ACT_GELU_TANH},
        {"gelu_erf", NULL, gelu_erf, -FLT_MAX, FLT_MAX, 1.5, SPW_ACT_GELU_ERF},
        {"gelu_quick", NULL, gelu_quick, -FLT_MAX, FLT_MAX, 1.6, SPW_ACT_GELU_QUICK}};
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        test_function(&functions[i]);
    CHECK(num_exp(0) == 1 && num_expm1(0) == 0 && num_expm1(-200) == -1);
    CHECK(num_exp(-200) == 0 && num_exp(200) == INFINITY && isnan(num_exp(NAN)));
    CHECK(num_softplus(-200) == 0 && num_softplus(200) == 200 && isnan(num_softplus(NAN)));
    CHECK(num_softplus(INFINITY) == INFINITY && isnan(num_sigmoid(NAN)) && num_sigmoid(0) == 0.5f);
    CHECK(num_erf(INFINITY) == 1 && num_erf(-INFINITY) == -1 && isnan(num_erf(NAN)));
    CHECK(num_tanh(INFINITY) == 1 && num_tanh(-INFINITY) == -1 && isnan(num_tanh(NAN)));
}

/* a b + c; of any bits, or a sum whose f64 is the middle between two numbers, subnormal ones too,
 * while the exact sum is not. */
static void draw_fused(bool middle, float *a, float *b, float *c)
{
    const int exponent = (int)state_draw(0, 180) - 126;
    const float off = (float)state_draw(0, 7) * 0x1p-23f;
    *a = each_bits_float(state_draw(0, UINT32_MAX));
    *b = each_bits_float(state_draw(0, UINT32_MAX));
    *c = each_bits_float(state_draw(0, UINT32_MAX));
    if (!middle)
        return;
    const float bits = (float)state_draw(0, 0x7fffff) * 0x1p-23f;
    *c = ldexpf(exponent == -126 ? bits : 1 + bits, exponent);
    *a = ldexpf(state_draw(0, 1) ? 1 + off : -1 - off, -60);
    *b = ldexpf(1 - off, exponent + 36);
}

/* In plain C a fused step is computed in f64. */
static void test_fused(void)
{
    for (uint32_t i = 0; i < 300000; i++) {
        f32v a, b, c;
        for (int l = 0; l < SIMD_LANES; l++) {
            float x, y, z;
            draw_fused(i % 2, &x, &y, &z);
            a[l] = x, b[l] = y, c[l] = z;
        }
        const f32v y = simd_fused(a, b, c);
        for (int l = 0; l < SIMD_LANES; l++) {
            const float want = fmaf(a[l], b[l], c[l]);
            CHECK_MSG(each_float_bits(y[l]) == each_float_bits(want) ||
                          (isnan(y[l]) && isnan(want)),
                      "%a %a %a: %a", (double)a[l], (double)b[l], (double)c[l], (double)y[l]);
        }
    }
}

/* ---- ways to run a call ---- */

enum way { BACKWARD, ON_THREADS, IN_CALLS, ROW_BY_ROW, WAYS };

static void run(const struct spw_kernel *kernel, const void *args, enum way way)
{
    if (way == ON_THREADS)
        spw_team_run(team, kernel, args);
    else
        each_run(kernel, args, way == BACKWARD ? EACH_BACKWARD : EACH_FORWARD);
}

static uint32_t rows_of_call(enum way way, uint32_t left)
{
    return way == IN_CALLS ? state_draw(1, left) : way == ROW_BY_ROW ? 1 : left;
}

/* First with states that stay: the same rows, and no state and no word changes. */
static void run_twice(const struct spw_kernel *kernel, const void *args,
                      struct spw_state_part *parts, uint32_t n, const struct state_problem *p,
                      const struct state_written *w, enum way way)
{
    const uint32_t word = w->not_finite, first = parts[0].row;
    const size_t row_bytes = p->y_bytes / p->rows;
    const size_t bytes = (parts[n - 1].row + parts[n - 1].rows - first) * row_bytes;
    char *written = w->y + first * row_bytes;
    state_let_stay(parts, n, true);
    run(kernel, args, way);
    CHECK(w->not_finite == word);
    char *y = memcpy(malloc(bytes), written, bytes);
    state_let_stay(parts, n, false);
    run(kernel, args, way);
    CHECK(!memcmp(y, written, bytes));
    free(y);
}

static struct state_written run_recur(const struct spw_cpu_kernels *table,
                                      const struct state_problem *p, enum way way)
{
    struct state_written w = state_written_init(p);
    for (uint32_t from = 0, n; from < p->rows; from += n) {
        struct spw_recur_args a = p->a.recur;
        n = rows_of_call(way, p->rows - from);
        a.n_parts = state_cut_parts(p, w.states, from, from + n, a.parts);
        a.y = w.y, a.not_finite = &w.not_finite;
        run_twice(table->recur, &a, a.parts, a.n_parts, p, &w, way);
    }
    return w;
}

static struct state_written run_conv(const struct spw_cpu_kernels *table,
                                     const struct state_problem *p, enum way way)
{
    struct state_written w = state_written_init(p);
    for (uint32_t from = 0, n; from < p->rows; from += n) {
        struct spw_conv_args a = p->a.conv;
        n = rows_of_call(way, p->rows - from);
        a.n_parts = state_cut_parts(p, w.states, from, from + n, a.parts);
        a.y = w.y;
        run_twice(table->conv, &a, a.parts, a.n_parts, p, &w, way);
    }
    return w;
}

typedef struct state_written run_fn(const struct spw_cpu_kernels *table,
                                    const struct state_problem *p, enum way way);

/* Every table and every way give the bits of `want`, which is freed. */
static void check_same(run_fn *one_run, const struct state_problem *p, struct state_written *want,
                       const char *text)
{
    EACH_TABLE(table)
    for (enum way way = 0; way < WAYS; way++) {
        struct state_written got = one_run(table, p, way);
        CHECK_MSG(state_written_same(p, &got, want), "%s way %d: %s", each_name(table), (int)way,
                  text);
        state_written_free(&got);
    }
    state_written_free(want);
}

/* ---- recur ---- */

/* In 1,200 draws the largest was 17 (DELTA) and 8 (the others). */
enum { MOST_OFF = 24 };

static void test_recur(enum spw_mixer_kind kind)
{
    struct state_problem *p = recur_problem_draw(kind, 0);
    struct state_written want = run_recur(each_portable(), p, BACKWARD);
    const double off = recur_worst(p, &want);
    CHECK_MSG(off <= MOST_OFF && !want.not_finite, "%s: %g", recur_text(p), off);
    check_same(run_recur, p, &want, recur_text(p));
    state_problem_free(p);
    free(p);
}

/* The rows of a long prompt, together and one by one. */
static void test_many_rows(enum spw_mixer_kind kind)
{
    struct state_problem *p = recur_problem_draw(kind, MOST_ROWS - state_draw(0, 99));
    struct state_written want = run_recur(each_portable(), p, BACKWARD);
    CHECK_MSG(!want.not_finite, "%s", recur_text(p));
    check_same(run_recur, p, &want, recur_text(p));
    state_problem_free(p);
    free(p);
}

/* One number that is not finite is noticed; the word of a call without one stays. */
static void test_not_finite(enum spw_mixer_kind kind)
{
    struct state_problem *p = recur_problem_draw(kind, 0);
    const struct spw_recur_args *a = &p->a.recur;
    const uint32_t row = state_draw(0, p->rows - 1), part = state_draw(0, p->n_parts - 1);
    const size_t v = row * a->v_stride + state_draw(0, a->heads * a->value_dim - 1);
    if (state_draw(0, 1) && p->parts[part].position)
        p->parts[part].state[state_draw(0, (uint32_t)p->state_floats - 1)] = NAN;
    else
        each_store((void *)(uintptr_t)a->v, v, a->dtype, state_draw(0, 1) ? NAN : INFINITY);
    EACH_TABLE(table)
    for (enum way way = 0; way < WAYS; way++) {
        struct state_written got = run_recur(table, p, way);
        CHECK_MSG(got.not_finite == 1, "%s way %d: %s", each_name(table), (int)way, recur_text(p));
        state_written_free(&got);
    }
    state_problem_free(p);
    free(p);
}

/* ---- conv ---- */

static void test_conv(void)
{
    struct state_problem *p = conv_problem_draw();
    struct state_written want = run_conv(each_portable(), p, BACKWARD);
    const size_t wrong = conv_wrong(p, &want);
    CHECK_MSG(!wrong, "%s: %zu wrong", conv_text(p), wrong);
    check_same(run_conv, p, &want, conv_text(p));
    state_problem_free(p);
    free(p);
}

/* ---- gated_norm ---- */

/* Rows alone, in place, give the bits of rows together. */
static void test_gated_norm(const struct spw_cpu_kernels *table)
{
    struct state_problem *p = gated_norm_problem_draw();
    struct state_written w = state_written_init(p), untouched = state_written_init(p);
    struct spw_gated_norm_args a = p->a.norm;
    const size_t bytes = p->y_bytes / a.rows, wide = spw_dtype_bytes(a.dtype);
    a.y = w.y;
    run(table->gated_norm, &a, ON_THREADS);
    const size_t wrong = gated_norm_wrong(p, w.y);
    CHECK_MSG(!wrong && !memcmp(w.y + p->y_bytes, untouched.y, STATE_CANARY), "%s %s: %zu wrong",
              each_name(table), gated_norm_text(p), wrong);
    const size_t row = state_draw(0, (uint32_t)a.rows - 1);
    a.rows = 1;
    a.x = (const char *)a.x + row * a.n_groups * a.cols * spw_dtype_bytes(a.x_dtype);
    a.gate = (const char *)a.gate + row * a.gate_stride * wide;
    a.y = untouched.y;
    if (a.x_dtype == a.dtype)
        a.x = memcpy(untouched.y, a.x, bytes);
    run(table->gated_norm, &a, BACKWARD);
    CHECK_MSG(!memcmp(untouched.y, w.y + row * bytes, bytes), "%s %s", each_name(table),
              gated_norm_text(p));
    state_written_free(&w), state_written_free(&untouched);
    state_problem_free(p);
    free(p);
}

int main(void)
{
    static const enum spw_mixer_kind kinds[] = {SPW_MIXER_DELTA, SPW_MIXER_SSD, SPW_MIXER_SCAN,
                                                SPW_MIXER_LRU};
    const struct spw_placement nowhere = {0};
    const int draws = check_full() ? 20 * DRAWS : DRAWS;
    if (!each_is_there())
        return CHECK_SKIP;
    state_rng = check_seed();
    if (spw_team_open(&team, THREADS, THREADS, &nowhere))
        return 1;
    if (!EACH_GPU) {
        test_functions();
        test_fused();
    }
    for (int k = 0; k < 4; k++)
        test_many_rows(kinds[k]);
    for (int i = 0; i < draws; i++) {
        for (int k = 0; k < 4; k++) {
            test_recur(kinds[k]);
            test_not_finite(kinds[k]);
        }
        test_conv();
        EACH_TABLE(table)
        test_gated_norm(table);
    }
    spw_team_close(team);
    return check_done();
}
