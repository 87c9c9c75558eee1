/* linear's .cu files, every kernel of them: exactly the CPU reference's outputs where no sum can
 * round, close to double precision where sums do, and a row's bits whatever the other rows are;
 * with a residual, the bits of a product and an addition one after the other. The gated product
 * against the plain one of both matrices and what double precision makes of that.
 *
 * Every buffer is an allocation of its exact size, so that on the emulated GPU AddressSanitizer
 * sees a step over any edge; what lies between the rows of x is NaN. */
#include "base/numbers.h"
#include "model/cpu/ops_cpu.h"
#include "model/cuda/ops_cuda.h"
#include "tests/cuda/cuda_memory.h"
#include "tests/cuda/simt_control.h"
#include "tests/unit/kernels/math_f32.h"

#include <math.h>

enum { CANARY = 0x5a };

/* Not there on a real GPU. */
extern __typeof__(spw_simt_set) spw_simt_set __attribute__((weak));

enum fill {
    FILL_INTEGERS, /* |x|, |w| <= 8 and |bias| <= 64: sums below 2^24 are exact in any order */
    FILL_FRACTIONS,
    FILL_WILD, /* fractions, but x has infinities, NaN and what overflows */
};

struct problem {
    struct spw_linear_args a; /* of the GPU */
    void *x, *w, *y, *bias;   /* the CPU's copies; y: what the GPU made */
    size_t x_bytes, w_bytes, y_bytes, bias_bytes;
    size_t offset; /* elements by which the GPU's pointers lie behind where a block begins */
};

static const struct {
    enum spw_dtype x, w, y;
} combinations[] = {
    {SPW_DTYPE_BF16, SPW_DTYPE_BF16, SPW_DTYPE_BF16},
    {SPW_DTYPE_BF16, SPW_DTYPE_BF16, SPW_DTYPE_F32},
    {SPW_DTYPE_F32, SPW_DTYPE_F32, SPW_DTYPE_F32},
    {SPW_DTYPE_F32, SPW_DTYPE_F16, SPW_DTYPE_F32},
    {SPW_DTYPE_F32, SPW_DTYPE_BF16, SPW_DTYPE_F32},
};

enum { N_COMBINATIONS = sizeof combinations / sizeof combinations[0] };

/* A value of at most 8 significant bits, and of f16's normal range, which every type holds. */
static void put(void *p, size_t i, enum spw_dtype t, float v)
{
    uint32_t u;
    memcpy(&u, &v, 4);
    if (t == SPW_DTYPE_F32) {
        memcpy((char *)p + i * 4, &v, 4);
        return;
    }
    uint16_t h = (uint16_t)(u >> 16);
    if (t == SPW_DTYPE_F16) {
        uint32_t e = u >> 23 & 255;
        h = (uint16_t)((u >> 31) << 15 | (e ? (e - 112) << 10 | (u >> 13 & 0x3ff) : 0));
    }
    memcpy((char *)p + i * 2, &h, 2);
}

/* Fractions: 8 random bits under exponents from 2^-5 to 1, so that sums round often. */
static float draw(enum fill fill, int most, uint64_t *seed)
{
    uint64_t r = check_random(seed);
    if (fill == FILL_INTEGERS)
        return (float)((int)(r % (2 * (unsigned)most + 1)) - most);
    return ldexpf((float)(128 + (r & 127)), -7 - (int)(r >> 8 & 7) % 6) * (r >> 16 & 1 ? -1 : 1);
}

static const float wild[] = {INFINITY, -INFINITY, NAN, 0x1.9p127f, -0x1.9p127f, -0x1p60f};

static void *allocate(size_t bytes, int byte)
{
    void *p = malloc(bytes ? bytes : 1);
    if (!p)
        exit(1);
    memset(p, byte, bytes);
    return p;
}

/* y: canaries, on the GPU. */
static void *y_open(const struct spw_linear_args *a, size_t bytes, size_t offset)
{
    void *canaries = allocate(bytes, CANARY);
    void *y = cuda_copy_of(canaries, bytes, offset * spw_dtype_bytes(a->y_dtype));
    free(canaries);
    return y;
}

static void *y_take(const struct spw_linear_args *a, size_t bytes, size_t offset)
{
    void *y = allocate(bytes, 0);
    cuda_take_back(y, a->y, bytes, offset * spw_dtype_bytes(a->y_dtype));
    return y;
}

static void run(const struct spw_linear_args *a)
{
    int rc = spw_linear_cuda(a, NULL);
    CHECK_MSG(rc == 0, "m %zu n %zu k %zu: %d", a->m, a->n, a->k, rc);
}

/* The operands, drawn, on both sides, and the GPU's y. */
static void problem_run(struct problem *p, enum fill fill, bool shift, uint64_t *seed)
{
    struct spw_linear_args *a = &p->a;
    const size_t x_size = spw_dtype_bytes(a->x_dtype), w_size = spw_dtype_bytes(a->w_dtype);
    p->offset = shift ? 1 : 0;
    p->x_bytes = ((a->m - 1) * a->x_stride + a->k) * x_size;
    p->w_bytes = a->n * a->k * w_size;
    p->y_bytes = a->m * a->y_stride * spw_dtype_bytes(a->y_dtype);
    p->bias_bytes = a->n * sizeof(float);
    p->x = allocate(p->x_bytes, 0xff);
    p->w = allocate(p->w_bytes, 0xff);
    p->bias = check_random(seed) % 2 ? allocate(p->bias_bytes, 0xff) : NULL;
    for (size_t r = 0; r < a->m; r++)
        for (size_t i = 0; i < a->k; i++)
            put(p->x, r * a->x_stride + i, a->x_dtype,
                fill == FILL_WILD && check_random(seed) % 99 == 0 ? wild[check_random(seed) % 6]
                                                                  : draw(fill, 8, seed));
    for (size_t i = 0; i < a->n * a->k; i++)
        put(p->w, i, a->w_dtype, draw(fill, 8, seed));
    for (size_t i = 0; p->bias && i < a->n; i++)
        ((float *)p->bias)[i] = draw(fill, 64, seed);
    a->x = cuda_copy_of(p->x, p->x_bytes, p->offset * x_size);
    a->w = cuda_copy_of(p->w, p->w_bytes, p->offset * w_size);
    a->bias = p->bias ? cuda_copy_of(p->bias, p->bias_bytes, p->offset * sizeof(float)) : NULL;
    a->y = y_open(a, p->y_bytes, p->offset);
    run(a);
    p->y = y_take(a, p->y_bytes, p->offset);
}

static void problem_close(struct problem *p)
{
    cuda_take_back(NULL, (void *)p->a.x, 0, p->offset * spw_dtype_bytes(p->a.x_dtype));
    cuda_take_back(NULL, (void *)p->a.w, 0, p->offset * spw_dtype_bytes(p->a.w_dtype));
    if (p->bias)
        cuda_take_back(NULL, (void *)p->a.bias, 0, p->offset * sizeof(float));
    free(p->x);
    free(p->w);
    free(p->y);
    free(p->bias);
}

/* Nothing rounds but the stored value, once: the reference's bits, and nothing beyond the rows. */
static void check_exact(const struct problem *p)
{
    const struct spw_cpu_kernels *cpu = spw_cpu_kernels_get(SPW_ISA_PORTABLE);
    struct spw_linear_args a = p->a;
    a.x = p->x;
    a.w = p->w;
    a.bias = p->bias;
    a.y = allocate(p->y_bytes, CANARY);
    a.workspace =
        aligned_alloc(64, cpu->linear_workspace(a.k, a.x_dtype, a.w_dtype) / 64 * 64 + 64);
    for (size_t i = 0; i < cpu->linear->n_tasks(&a); i++)
        cpu->linear->run(&a, i, 0);
    CHECK_MSG(!memcmp(a.y, p->y, p->y_bytes), "x %d w %d y %d: m %zu n %zu k %zu, strides %zu %zu",
              a.x_dtype, a.w_dtype, a.y_dtype, a.m, a.n, a.k, a.x_stride, a.y_stride);
    free(a.y);
    free(a.workspace);
}

/* Products are exact or rounded once with their sum; each of the at most k + 8 + 2 sums of an
 * output (a chain, the partitions, the bias) is off by at most 2^-23 of the magnitudes in it, which
 * allows for a tensor core that truncates. Then one rounding to bf16. */
static void check_close(const struct problem *p)
{
    const struct spw_linear_args *a = &p->a;
    size_t bad = 0;
    double worst = 0;
    for (size_t r = 0; r < a->m; r++)
        for (size_t c = 0; c < a->n; c++) {
            double sum = p->bias ? (double)((float *)p->bias)[c] : 0, magnitude = fabs(sum);
            for (size_t i = 0; i < a->k; i++) {
                double product = each_load(p->x, r * a->x_stride + i, a->x_dtype) *
                                 each_load(p->w, c * a->k + i, a->w_dtype);
                sum += product;
                magnitude += fabs(product);
            }
            double bound = ((double)a->k + 10) * 0x1p-23 * magnitude;
            if (a->y_dtype == SPW_DTYPE_BF16)
                bound += (fabs(sum) + bound) * 0x1p-8;
            double error = fabs(each_load(p->y, r * a->y_stride + c, a->y_dtype) - sum);
            bad += !(error <= bound);
            worst = fmax(worst, error / bound);
        }
    CHECK_MSG(!bad, "m %zu n %zu k %zu: %zu outputs off, worst %g of the bound", a->m, a->n, a->k,
              bad, worst);
}

/* Rows [first, first + m) computed by a call of their own: the bits they have in p. */
static void check_rows(const struct problem *p, size_t first, size_t m)
{
    const size_t x_row = p->a.x_stride * spw_dtype_bytes(p->a.x_dtype);
    const size_t y_row = p->a.y_stride * spw_dtype_bytes(p->a.y_dtype);
    struct spw_linear_args part = p->a;
    part.m = m;
    part.x = (const char *)p->a.x + first * x_row;
    /* At another alignment: the way of storing must not show. */
    const size_t offset = 1 - p->offset;
    part.y = y_open(&part, m * y_row, offset);
    run(&part);
    char *y = y_take(&part, m * y_row, offset);
    size_t differ = 0;
    for (size_t r = 0; r < m; r++)
        differ += memcmp(y + r * y_row, (char *)p->y + (first + r) * y_row,
                         p->a.n * spw_dtype_bytes(p->a.y_dtype)) != 0;
    CHECK_MSG(!differ, "x %d w %d: m %zu n %zu k %zu: %zu of rows %zu + %zu differ when alone",
              p->a.x_dtype, p->a.w_dtype, p->a.m, p->a.n, p->a.k, differ, first, m);
    free(y);
}

/* Rows [first, first + m) with a residual, which is y or lies beside it: what the call without one
 * gave, added afterwards. */
static void check_residual(const struct problem *p, size_t first, size_t m, bool in_place,
                           uint64_t *seed)
{
    struct spw_linear_args a = p->a;
    const size_t size = spw_dtype_bytes(a.y_dtype), n = (m - 1) * a.y_stride + a.n;
    const size_t offset = check_random(seed) % 2, bytes = n * size;
    const char *product = (const char *)p->y + first * a.y_stride * size;
    char *residual = allocate(bytes, 0), *want = allocate(bytes, CANARY);
    for (size_t i = 0; i < n; i++)
        put(residual, i, a.y_dtype, draw(FILL_FRACTIONS, 8, seed));
    if (in_place)
        memcpy(want, residual, bytes);
    for (size_t i = 0; i < n; i++)
        if (i % a.y_stride < a.n)
            each_store(want, i, a.y_dtype,
                       each_load(residual, i, a.y_dtype) + each_load(product, i, a.y_dtype));
    a.m = m;
    a.x = (const char *)a.x + first * a.x_stride * spw_dtype_bytes(a.x_dtype);
    a.residual = cuda_copy_of(residual, bytes, offset * size);
    a.y = in_place ? (void *)a.residual : y_open(&a, bytes, p->offset);
    run(&a);
    char *y = y_take(&a, bytes, in_place ? offset : p->offset);
    if (!in_place)
        cuda_take_back(NULL, (void *)a.residual, 0, offset * size);
    CHECK_MSG(!memcmp(y, want, bytes), "x %d w %d y %d: m %zu n %zu k %zu: residual%s", a.x_dtype,
              a.w_dtype, a.y_dtype, m, a.n, a.k, in_place ? " in place" : "");
    free(residual);
    free(want);
    free(y);
}

/* ---- gated ---- */

/* The same bits, or NaN both: which of its operands' NaN a product passes on is the compiler's. */
static bool same_outputs(const void *x, const void *y, size_t n, enum spw_dtype t)
{
    size_t differ = 0;
    for (size_t i = 0, size = spw_dtype_bytes(t); i < n; i++)
        differ += memcmp((const char *)x + i * size, (const char *)y + i * size, size) &&
                  !(isnan(each_load(x, i, t)) && isnan(each_load(y, i, t)));
    return !differ;
}

/* Rows [first, first + m) of p, whose n is gate's and up's together, with W in two blocks. */
static void *gated_rows(const struct problem *p, enum spw_activation act, size_t first, size_t m,
                        size_t y_offset)
{
    const size_t size = spw_dtype_bytes(p->a.x_dtype), n = p->a.n / 2, matrix = p->w_bytes / 2;
    const size_t offset = p->offset * spw_dtype_bytes(p->a.w_dtype);
    void *up = cuda_copy_of((char *)p->w + matrix, matrix, offset);
    void *gate = cuda_copy_of(p->w, matrix, offset);
    struct spw_gated_linear_args a = {.x = (const char *)p->a.x + first * p->a.x_stride * size,
                                      .w_gate = gate,
                                      .w_up = up,
                                      .bias = p->a.bias,
                                      .y = y_open(&p->a, m * n * size, y_offset),
                                      .m = m,
                                      .n = n,
                                      .k = p->a.k,
                                      .x_stride = p->a.x_stride,
                                      .dtype = p->a.x_dtype,
                                      .gate_dtype = p->a.w_dtype,
                                      .up_dtype = p->a.w_dtype,
                                      .act = act};
    int rc = spw_gated_linear_cuda(&a, NULL);
    CHECK_MSG(rc == 0, "m %zu n %zu k %zu: %d", a.m, a.n, a.k, rc);
    void *y = allocate(m * n * size, 0);
    cuda_take_back(y, a.y, m * n * size, y_offset * size);
    cuda_take_back(NULL, gate, 0, offset);
    cuda_take_back(NULL, up, 0, offset);
    return y;
}

/* All rows in one call, against the plain product of gate and up; then some of them in calls of
 * other sizes. */
static void check_gated(struct spw_linear_args a, bool shift, const size_t *sizes, size_t n_sizes,
                        uint64_t *seed)
{
    struct problem p = {.a = a};
    const enum spw_activation act = (enum spw_activation)check_range(seed, 0, SPW_ACT_COUNT - 1);
    const size_t n = a.n / 2, row_bytes = n * spw_dtype_bytes(a.y_dtype);
    size_t bad = 0;
    problem_run(&p, check_random(seed) % 3 ? FILL_FRACTIONS : FILL_WILD, shift, seed);
    char *y = gated_rows(&p, act, 0, a.m, p.offset);
    for (size_t i = 0; i < a.m * n; i++) {
        const size_t gate = i / n * a.y_stride + i % n;
        const double got = each_load(y, i, a.y_dtype);
        const double want = math_gated(each_load(p.y, gate, a.y_dtype),
                                       each_load(p.y, gate + n, a.y_dtype), act, a.y_dtype);
        bad += !(got == want || (isnan(got) && isnan(want)));
    }
    CHECK_MSG(!bad, "x %d w %d act %d: m %zu n %zu k %zu: %zu wrong", a.x_dtype, a.w_dtype, act,
              a.m, n, a.k, bad);
    for (size_t s = 0; s < n_sizes; s++) {
        const size_t first = check_range(seed, 0, a.m - sizes[s]);
        char *some = gated_rows(&p, act, first, sizes[s], 1 - p.offset);
        CHECK_MSG(same_outputs(some, y + first * row_bytes, sizes[s] * n, a.y_dtype),
                  "x %d w %d act %d: m %zu n %zu k %zu: rows %zu + %zu differ", a.x_dtype,
                  a.w_dtype, act, a.m, n, a.k, first, sizes[s]);
        free(some);
    }
    free(y);
    problem_close(&p);
}

static struct spw_linear_args shape(size_t i, size_t m, size_t n, size_t k, bool tidy,
                                    uint64_t *seed)
{
    return (struct spw_linear_args){
        .m = m,
        .n = tidy && check_random(seed) % 2 ? (n + 3) / 4 * 4 : n,
        .k = tidy ? (k + 7) / 8 * 8 : k,
        .x_stride =
            tidy ? (k + 7) / 8 * 8 + 8 * (check_random(seed) % 3) : k + check_random(seed) % 3,
        .y_stride = tidy ? (n + 3) / 4 * 4 : n + check_random(seed) % 3,
        .x_dtype = combinations[i].x,
        .w_dtype = combinations[i].w,
        .y_dtype = combinations[i].y,
    };
}

/* Both ways of loading, values and edges. */
static void check_values(size_t i, size_t m, size_t n, size_t k, uint64_t *seed)
{
    for (int tidy = 0; tidy < 2; tidy++)
        for (int fill = 0; fill < 2; fill++) {
            struct problem p = {.a = shape(i, m, n, k, tidy, seed)};
            problem_run(&p, (enum fill)fill, !tidy && check_random(seed) % 2, seed);
            if (fill == FILL_INTEGERS)
                check_exact(&p);
            else
                check_close(&p);
            check_residual(&p, 0, m, fill == FILL_INTEGERS, seed);
            problem_close(&p);
        }
}

/* Every kernel there is, by the number of rows that leads to it: the rows of one large call again
 * in calls of every other size. */
static void check_invariance(size_t i, size_t n, size_t k, bool tidy, uint64_t *seed)
{
    static const size_t sizes[] = {1, 2, 7, 8, 9, 16, 17, 33, 64, 65};
    enum { ROWS = 130 };
    struct problem p = {.a = shape(i, ROWS, n, k, tidy, seed)};
    problem_run(&p, FILL_FRACTIONS, !tidy, seed);
    check_close(&p);
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        check_rows(&p, check_range(seed, 0, ROWS - sizes[s]), sizes[s]);
        check_residual(&p, check_range(seed, 0, ROWS - sizes[s]), sizes[s], s % 2, seed);
    }
    problem_close(&p);
}

/* Every kernel of a gated product. */
static void check_gated_sizes(size_t i, size_t n, size_t k, bool tidy, uint64_t *seed)
{
    static const size_t sizes[] = {1, 2, 8, 9, 16, 17, 33, 64, 65};
    const size_t n_sizes = sizeof sizes / sizeof *sizes;
    if (combinations[i].y == combinations[i].x)
        check_gated(shape(i, 75, 2 * n, k, tidy, seed), !tidy, sizes, n_sizes, seed);
}

/* Rows of a call that takes the large tiles, the last of them ragged, where the card has the shared
 * memory: the emulated one has four multiprocessors, which four tiles of 256 x 128 fill; a real one
 * may have 132. */
static void check_large(int capability, bool tidy, uint64_t *seed)
{
    const size_t side = spw_simt_set ? 1 : 4;
    if (spw_simt_set)
        spw_simt_set(
            &(struct spw_simt_options){.seed = check_random(seed), .capability = capability});
    for (size_t n = 512 * side; n <= 512 * side * side; n *= 4) {
        struct problem p = {.a = shape(check_range(seed, 0, 1), 130 + 256 * (side - 1),
                                       n - check_range(seed, 0, 99), check_range(seed, 1, 300),
                                       tidy, seed)};
        problem_run(&p, FILL_FRACTIONS, !tidy, seed);
        if (n == 512)
            check_close(&p);
        check_rows(&p, check_range(seed, 0, p.a.m - 1), 1);
        check_rows(&p, check_range(seed, 0, p.a.m - 30), 30);
        check_rows(&p, 0, 66);
        check_residual(&p, 0, p.a.m, n == 512, seed);
        problem_close(&p);
    }
    const size_t sizes[] = {66, 3}, n = 512 * side * side - 2 * check_range(seed, 0, 49);
    check_gated(shape(0, 130 + 256 * (side - 1), n, check_range(seed, 1, 300), tidy, seed), !tidy,
                sizes, 2, seed);
}

/* Nothing to do is not an error; what no kernel takes is. */
static void check_arguments(void)
{
    float none[4] = {0}; /* never read: nothing is launched */
    struct spw_linear_args a = {.n = 4, .k = 4, .x_stride = 4, .y_stride = 4};
    a.x_dtype = a.w_dtype = a.y_dtype = SPW_DTYPE_F32;
    CHECK(spw_linear_cuda(&a, NULL) == 0);
    a.x = a.w = a.y = none;
    a.m = 1;
    a.x_stride = 3;
    CHECK(spw_linear_cuda(&a, NULL) == -EINVAL);
    a.x_stride = 4;
    a.y_dtype = SPW_DTYPE_BF16;
    CHECK(spw_linear_cuda(&a, NULL) == -EINVAL);
    a.x_dtype = SPW_DTYPE_BF16;
    CHECK(spw_linear_cuda(&a, NULL) == -EINVAL);
    struct spw_gated_linear_args gated = {.n = 4, .k = 4, .x_stride = 4, .dtype = SPW_DTYPE_F16};
    CHECK(spw_gated_linear_cuda(&gated, NULL) == 0);
    gated.m = 1;
    CHECK(spw_gated_linear_cuda(&gated, NULL) == -EINVAL);
    gated.dtype = gated.gate_dtype = gated.up_dtype = SPW_DTYPE_F32;
    gated.x_stride = 3;
    CHECK(spw_gated_linear_cuda(&gated, NULL) == -EINVAL);
}

int main(void)
{
    uint64_t seed = check_seed();
    if (!cuda_there())
        return CHECK_SKIP;
    check_arguments();
    if (spw_simt_set)
        spw_simt_set(&(struct spw_simt_options){.seed = check_random(&seed)});
    for (size_t i = 0; i < N_COMBINATIONS; i++) {
        for (int round = 0; round < cuda_draws(3); round++)
            check_values(i, check_range(&seed, 1, 70), check_range(&seed, 1, 80),
                         check_range(&seed, 1, 300), &seed);
        check_values(i, check_range(&seed, 1, 8), check_range(&seed, 1, 20),
                     check_range(&seed, 2000, 4000), &seed);
        check_values(i, check_range(&seed, 1, 70), 5, 0, &seed); /* the bias */
        check_values(i, check_range(&seed, 9, 66), check_range(&seed, 1, 40),
                     check_range(&seed, 1000, 1500), &seed);
        check_invariance(i, check_range(&seed, 1, 140), check_range(&seed, 1, 600), true, &seed);
        check_invariance(i, check_range(&seed, 1, 70), check_range(&seed, 1, 300), false, &seed);
        for (int tidy = 0; tidy < 2; tidy++)
            check_gated_sizes(i, check_range(&seed, 1, 70), check_range(&seed, 1, 300), tidy,
                              &seed);
        check_gated_sizes(i, check_range(&seed, 1, 9), 0, true, &seed); /* the bias */
    }
    check_large(75, true, &seed);
    for (int tidy = 0; tidy < 2; tidy++) {
        check_large(80, tidy, &seed);
        check_large(90, tidy, &seed);
    }
    return check_done();
}
