/* linear's .cu files, every kernel of them: exactly the CPU reference's outputs where no sum can
 * round, close to double precision where sums do, and a row's bits whatever the other rows are.
 *
 * Every buffer is an allocation of its exact size, so that AddressSanitizer sees a step over any
 * edge; what lies between the rows of x is NaN. */
#include "check.h"

#include "model/ops_cpu.h"
#include "model/ops_cuda.h"
#include "tests/simt_control.h"

#include <math.h>
#include <string.h>

enum { CANARY = 0x5a };

enum fill {
    FILL_INTEGERS, /* |x|, |w| <= 8 and |bias| <= 64: sums below 2^24 are exact in any order */
    FILL_FRACTIONS,
};

struct problem {
    struct spw_linear_args a;
    size_t x_bytes, y_bytes;
    void *x, *w, *y, *bias; /* allocations; a's pointers may lie one element further */
    void *workspace;
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

/* Exact conversions, independent of the kernels' own. */
static double get(const void *p, size_t i, enum spw_dtype t)
{
    uint16_t h;
    float f;
    if (t == SPW_DTYPE_F32) {
        memcpy(&f, (const char *)p + i * 4, 4);
        return (double)f;
    }
    memcpy(&h, (const char *)p + i * 2, 2);
    double sign = h & 0x8000 ? -1 : 1;
    int e = t == SPW_DTYPE_F16 ? h >> 10 & 31 : h >> 7 & 255;
    int bits = t == SPW_DTYPE_F16 ? 10 : 7, bias = t == SPW_DTYPE_F16 ? 15 : 127;
    int fraction = h & ((1 << bits) - 1);
    return sign *
           (e ? ldexp(1.0 + ldexp(fraction, -bits), e - bias) : ldexp(fraction, 1 - bias - bits));
}

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

static void *allocate(size_t bytes, int byte)
{
    void *p = malloc(bytes ? bytes : 1);
    if (!p)
        exit(1);
    memset(p, byte, bytes);
    return p;
}

/* `shift`: pointers lie one element behind where an allocation begins. */
static void problem_open(struct problem *p, enum fill fill, bool shift, uint64_t *seed)
{
    struct spw_linear_args *a = &p->a;
    const size_t x_size = spw_dtype_bytes(a->x_dtype), w_size = spw_dtype_bytes(a->w_dtype);
    const size_t y_size = spw_dtype_bytes(a->y_dtype), off = shift ? 1 : 0;
    p->x_bytes = ((a->m - 1) * a->x_stride + a->k + off) * x_size;
    p->y_bytes = (a->m * a->y_stride + off) * y_size;
    p->x = allocate(p->x_bytes, 0xff);
    p->w = allocate((a->n * a->k + off) * w_size, 0xff);
    p->y = allocate(p->y_bytes, CANARY);
    p->bias = allocate((a->n + off) * sizeof(float), 0xff);
    p->workspace = NULL;
    size_t bytes = spw_cpu_kernels_get(SPW_ISA_PORTABLE)->linear_workspace(a->k);
    if (bytes)
        p->workspace = aligned_alloc(64, (bytes + 63) / 64 * 64);
    a->x = (char *)p->x + off * x_size;
    a->w = (char *)p->w + off * w_size;
    a->y = (char *)p->y + off * y_size;
    for (size_t r = 0; r < a->m; r++)
        for (size_t i = 0; i < a->k; i++)
            put((char *)p->x + off * x_size, r * a->x_stride + i, a->x_dtype, draw(fill, 8, seed));
    for (size_t i = 0; i < a->n * a->k; i++)
        put((char *)p->w + off * w_size, i, a->w_dtype, draw(fill, 8, seed));
    float *bias = (float *)p->bias + off;
    for (size_t i = 0; i < a->n; i++)
        bias[i] = draw(fill, 64, seed);
    a->bias = check_random(seed) % 2 ? bias : NULL;
}

static void problem_close(struct problem *p)
{
    free(p->x);
    free(p->w);
    free(p->y);
    free(p->bias);
    free(p->workspace);
}

static void run(const struct spw_linear_args *a)
{
    int rc = spw_linear_cuda(a, NULL);
    CHECK_MSG(rc == 0, "m %zu n %zu k %zu: %d", a->m, a->n, a->k, rc);
}

/* Nothing rounds but the stored value, once: the reference's bits, and nothing beyond the rows. */
static void check_exact(struct problem *p)
{
    const struct spw_kernel *reference = spw_cpu_kernels_get(SPW_ISA_PORTABLE)->linear;
    struct spw_linear_args cpu = p->a;
    void *y = allocate(p->y_bytes, CANARY);
    cpu.y = (char *)y + ((char *)p->a.y - (char *)p->y);
    cpu.workspace = p->workspace;
    for (size_t i = 0; i < reference->n_tasks(&cpu); i++)
        reference->run(&cpu, i, 0);
    CHECK_MSG(!memcmp(y, p->y, p->y_bytes), "x %d w %d y %d: m %zu n %zu k %zu, strides %zu %zu",
              p->a.x_dtype, p->a.w_dtype, p->a.y_dtype, p->a.m, p->a.n, p->a.k, p->a.x_stride,
              p->a.y_stride);
    free(y);
}

/* Products are exact or rounded once with their sum; each of the at most k + 8 + 2 sums of an
 * output (a chain, the slices, the bias) is off by at most 2^-23 of the magnitudes in it, which
 * allows for a tensor core that truncates. Then one rounding to bf16. */
static void check_close(const struct problem *p)
{
    const struct spw_linear_args *a = &p->a;
    size_t bad = 0;
    double worst = 0;
    for (size_t r = 0; r < a->m; r++)
        for (size_t c = 0; c < a->n; c++) {
            double sum = a->bias ? (double)a->bias[c] : 0, magnitude = fabs(sum);
            for (size_t i = 0; i < a->k; i++) {
                double product = get(a->x, r * a->x_stride + i, a->x_dtype) *
                                 get(a->w, c * a->k + i, a->w_dtype);
                sum += product;
                magnitude += fabs(product);
            }
            double bound = ((double)a->k + 10) * 0x1p-23 * magnitude;
            if (a->y_dtype == SPW_DTYPE_BF16)
                bound += (fabs(sum) + bound) * 0x1p-8;
            double error = fabs(get(a->y, r * a->y_stride + c, a->y_dtype) - sum);
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
    /* As far from a 16-byte boundary as in p, or not: the way of storing must not show. */
    void *y = allocate(m * y_row + 16, CANARY);
    part.y = y;
    run(&part);
    size_t differ = 0;
    for (size_t r = 0; r < m; r++)
        differ += memcmp((char *)y + r * y_row, (char *)p->a.y + (first + r) * y_row,
                         p->a.n * spw_dtype_bytes(p->a.y_dtype)) != 0;
    CHECK_MSG(!differ, "x %d w %d: m %zu n %zu k %zu: %zu of rows %zu + %zu differ when alone",
              p->a.x_dtype, p->a.w_dtype, p->a.m, p->a.n, p->a.k, differ, first, m);
    free(y);
}

static struct spw_linear_args shape(size_t i, size_t m, size_t n, size_t k, bool tidy,
                                    uint64_t *seed)
{
    return (struct spw_linear_args){
        .m = m,
        .n = n,
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
            problem_open(&p, (enum fill)fill, !tidy && check_random(seed) % 2, seed);
            run(&p.a);
            if (fill == FILL_INTEGERS)
                check_exact(&p);
            else
                check_close(&p);
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
    problem_open(&p, FILL_FRACTIONS, !tidy, seed);
    run(&p.a);
    check_close(&p);
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        check_rows(&p, check_range(seed, 0, ROWS - sizes[s]), sizes[s]);
    problem_close(&p);
}

/* Rows of a call that takes the large tiles, where the card has the shared memory: the emulated one
 * has four multiprocessors, which four tiles of 256 x 128 fill, the last ones ragged. */
static void check_large(int capability, bool tidy, uint64_t *seed)
{
    spw_simt_set(&(struct spw_simt_options){.seed = check_random(seed), .capability = capability});
    struct problem p = {.a = shape(check_range(seed, 0, 1), 130, check_range(seed, 400, 512),
                                   check_range(seed, 1, 300), tidy, seed)};
    problem_open(&p, FILL_FRACTIONS, !tidy, seed);
    run(&p.a);
    check_close(&p);
    check_rows(&p, check_range(seed, 0, 129), 1);
    check_rows(&p, check_range(seed, 0, 100), 30);
    check_rows(&p, 0, 66);
    problem_close(&p);
}

/* Nothing to do is not an error; what no kernel takes is. */
static void check_arguments(void)
{
    float y[4] = {0};
    struct spw_linear_args a = {.n = 4, .k = 4, .x_stride = 4, .y_stride = 4};
    a.x_dtype = a.w_dtype = a.y_dtype = SPW_DTYPE_F32;
    CHECK(spw_linear_cuda(&a, NULL) == 0);
    a.x = a.w = a.y = y;
    a.m = 1;
    a.x_stride = 3;
    CHECK(spw_linear_cuda(&a, NULL) == -EINVAL);
    a.x_stride = 4;
    a.y_dtype = SPW_DTYPE_BF16;
    CHECK(spw_linear_cuda(&a, NULL) == -EINVAL);
    a.x_dtype = SPW_DTYPE_BF16;
    CHECK(spw_linear_cuda(&a, NULL) == -EINVAL);
}

int main(void)
{
    uint64_t seed = check_seed();
    check_arguments();
    spw_simt_set(&(struct spw_simt_options){.seed = check_random(&seed), .capability = 80});
    for (size_t i = 0; i < N_COMBINATIONS; i++) {
        for (int round = 0; round < 3; round++)
            check_values(i, check_range(&seed, 1, 70), check_range(&seed, 1, 80),
                         check_range(&seed, 1, 300), &seed);
        check_values(i, check_range(&seed, 1, 8), check_range(&seed, 1, 20),
                     check_range(&seed, 2000, 4000), &seed);
        check_values(i, check_range(&seed, 1, 70), 5, 0, &seed); /* the bias */
        check_values(i, check_range(&seed, 9, 66), check_range(&seed, 1, 40),
                     check_range(&seed, 1000, 1500), &seed);
        check_invariance(i, check_range(&seed, 1, 140), check_range(&seed, 1, 600), true, &seed);
        check_invariance(i, check_range(&seed, 1, 70), check_range(&seed, 1, 300), false, &seed);
    }
    check_large(75, true, &seed);
    for (int tidy = 0; tidy < 2; tidy++) {
        check_large(80, tidy, &seed);
        check_large(90, tidy, &seed);
    }
    return check_done();
}
