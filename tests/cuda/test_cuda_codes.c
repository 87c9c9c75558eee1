/* Products with quantized weights on the GPU. bf16 x: the bits of the reference (quant/codes.c) for
 * each type, on random blocks and shapes, for every kernel and with codes that an earlier product
 * made; all bits of a block are random, so scales are infinite or NaN now and then, and so are
 * numbers of x. f32 x: the bits of the same product with the dequantized matrix. Gated products
 * against the plain product of gate and up: what is left is elementwise.
 *
 * Every buffer is an allocation of its exact size, at the least alignment of its type. */
#include "model/cuda/ops_cuda.h"
#include "quant/codes.h"
#include "tests/cuda/cuda_memory.h"
#include "tests/cuda/simt_control.h"
#include "tests/unit/kernels/math_f32.h"

#include "model/cpu/linear/linear.h"

#include <math.h>
#include <time.h>

/* Not there on a real GPU. */
extern __typeof__(spw_simt_set) spw_simt_set __attribute__((weak));

struct problem {
    struct spw_linear_args a;   /* of the CPU */
    struct spw_codes *expected; /* [m][groups] */
    size_t x_bytes, w_bytes, y_bytes, codes_bytes;
    size_t w_offset; /* of the GPU's w in its allocation */
};

static void *allocate(size_t bytes, int byte)
{
    void *p = malloc(bytes ? bytes : 1);
    if (!p)
        exit(1);
    memset(p, byte, bytes);
    return p;
}

/* A row has numbers of one size, or zeros; or some that are not finite, or any bits at all; or the
 * next numbers of all that bf16 has. */
static void draw_row(void *x, size_t first, size_t k, enum spw_dtype dtype, uint64_t *seed)
{
    const uint64_t kind = check_range(seed, 0, 9);
    static uint16_t next;
    const double size = kind == 1 ? 1e-38 : kind == 2 ? 1e38 : 1;
    for (size_t i = first; i < first + k; i++) {
        each_store(x, i, dtype, kind == 0 ? 0 : each_uniform(seed) * size);
        if (kind == 3 && dtype == SPW_DTYPE_BF16)
            ((uint16_t *)x)[i] = (uint16_t)check_random(seed);
        if (kind == 7 && dtype == SPW_DTYPE_BF16)
            ((uint16_t *)x)[i] = next++;
    }
    if (kind == 4)
        each_store(x, first + check_range(seed, 0, k - 1), dtype,
                   check_random(seed) % 2 ? (double)INFINITY : (double)NAN);
    if (kind == 5)
        each_store(x, first + check_range(seed, 0, k - 1), dtype, 256);
}

static struct problem problem_draw(enum spw_dtype x_dtype, enum spw_dtype t, size_t m, size_t n,
                                   size_t most_groups, uint64_t *seed)
{
    const struct spw_type type = spw_type_of(t);
    const size_t blocks = check_range(seed, 1, most_groups * SPW_CODES_GROUP / type.elements);
    struct problem p = {.a = {.m = m,
                              .n = n,
                              .k = blocks * type.elements,
                              .x_dtype = x_dtype,
                              .w_dtype = t,
                              .y_dtype = check_random(seed) % 2 ? SPW_DTYPE_F32 : x_dtype}};
    struct spw_linear_args *a = &p.a;
    a->x_stride = a->k + (check_random(seed) % 2 ? 8 * check_range(seed, 0, 1) : 3);
    a->y_stride = n + check_range(seed, 0, 3);
    p.x_bytes = ((m - 1) * a->x_stride + a->k) * spw_dtype_bytes(x_dtype);
    p.w_bytes = n * spw_row_bytes(t, a->k);
    p.y_bytes = m * a->y_stride * spw_dtype_bytes(a->y_dtype);
    p.codes_bytes = m * spw_codes_groups(a->k) * sizeof(struct spw_codes);
    p.w_offset = check_random(seed) % 2 ? type.align : 0;
    void *x = allocate(p.x_bytes, 0xff);
    uint8_t *w = allocate(p.w_bytes, 0);
    for (size_t r = 0; r < m; r++)
        draw_row(x, r * a->x_stride, a->k, x_dtype, seed);
    for (size_t i = 0; i < p.w_bytes; i++)
        w[i] = (uint8_t)check_random(seed);
    if (check_random(seed) % 2) {
        float *bias = allocate(n * sizeof *bias, 0);
        for (size_t i = 0; i < n; i++)
            bias[i] = (float)each_uniform(seed);
        a->bias = bias;
    }
    a->x = x;
    a->w = w;
    return p;
}

static void problem_close(struct problem *p)
{
    free((void *)(uintptr_t)p->a.x);
    free((void *)(uintptr_t)p->a.w);
    free((void *)(uintptr_t)p->a.bias);
    free(p->expected);
}

/* Of one call on the GPU, for rows [first, first + m). `codes`: NULL, or what gets the codes; with
 * has_codes they come from there. */
static void *run_rows(const struct problem *p, size_t first, size_t m, bool in_place,
                      struct spw_codes *codes, bool has_codes)
{
    struct spw_linear_args a = p->a;
    const size_t x_size = spw_dtype_bytes(a.x_dtype), y_size = spw_dtype_bytes(a.y_dtype);
    const size_t x_bytes = ((m - 1) * a.x_stride + a.k) * x_size, y_bytes = m * a.y_stride * y_size;
    const size_t codes_bytes = m * spw_codes_groups(a.k) * sizeof(struct spw_codes);
    void *y = allocate(y_bytes, in_place ? 0 : 0x5a), *had = allocate(codes_bytes, 0x5a);
    for (size_t i = 0; in_place && i < m * a.y_stride; i++)
        each_store(y, i, a.y_dtype, (double)(i % 5) / 4);
    if (has_codes)
        memcpy(had, p->expected + first * spw_codes_groups(a.k), codes_bytes);
    a.m = m;
    a.x = cuda_copy_of((const char *)a.x + first * a.x_stride * x_size, x_bytes, 0);
    a.w = cuda_copy_of(a.w, p->w_bytes, p->w_offset);
    a.bias = a.bias ? cuda_copy_of(a.bias, a.n * sizeof(float), 0) : NULL;
    a.y = cuda_copy_of(y, y_bytes, 0);
    a.codes = cuda_copy_of(had, codes_bytes, 0);
    a.has_codes = has_codes;
    a.residual = in_place ? a.y : NULL;
    const int rc = spw_linear_cuda(&a, NULL);
    CHECK_MSG(rc == 0, "%s: m %zu n %zu k %zu: %d", spw_dtype_name(a.w_dtype), m, a.n, a.k, rc);
    cuda_take_back(NULL, (void *)(uintptr_t)a.x, 0, 0);
    cuda_take_back(NULL, (void *)(uintptr_t)a.w, 0, p->w_offset);
    if (a.bias)
        cuda_take_back(NULL, (void *)(uintptr_t)a.bias, 0, 0);
    cuda_take_back(y, a.y, y_bytes, 0);
    cuda_take_back(codes, a.codes, codes ? codes_bytes : 0, 0);
    free(had);
    return y;
}

/* The reference's y, of all rows. */
static void *expected_y(const struct problem *p, bool in_place)
{
    struct spw_linear_args a = p->a;
    const size_t groups = spw_codes_groups(a.k), row_bytes = (size_t)spw_row_bytes(a.w_dtype, a.k);
    a.y = allocate(p->y_bytes, in_place ? 0 : 0x5a);
    for (size_t i = 0; in_place && i < a.m * a.y_stride; i++)
        each_store(a.y, i, a.y_dtype, (double)(i % 5) / 4);
    a.residual = in_place ? a.y : NULL;
    for (size_t r = 0; r < a.m; r++)
        for (size_t c = 0; c < a.n; c++) {
            const float sum = spw_codes_dot(a.w_dtype, (const uint8_t *)a.w + c * row_bytes,
                                            p->expected + r * groups, a.k);
            spw_linear_store(&a, r, c, &sum, 1);
        }
    return a.y;
}

static void encode_rows(struct problem *p)
{
    const struct spw_linear_args *a = &p->a;
    const size_t groups = spw_codes_groups(a->k);
    p->expected = allocate(p->codes_bytes, 0);
    for (size_t i = 0; i < a->m * groups; i++) {
        const size_t first = i % groups * SPW_CODES_GROUP;
        const size_t n = (size_t)spw_min_u64(a->k - first, SPW_CODES_GROUP);
        float x[SPW_CODES_GROUP];
        for (size_t e = 0; e < n; e++)
            x[e] = (float)each_load(a->x, i / groups * a->x_stride + first + e, a->x_dtype);
        spw_codes_encode(a->w_dtype, x, n, &p->expected[i]);
    }
}

/* All rows in one call, then some in calls of other sizes. */
static void check_codes(enum spw_dtype t, size_t m, size_t n, size_t groups, uint64_t *seed)
{
    static const size_t sizes[] = {1, 8, 9, 30, 65};
    struct problem p = problem_draw(SPW_DTYPE_BF16, t, m, n, groups, seed);
    const struct spw_linear_args *a = &p.a;
    const bool in_place = check_random(seed) % 2;
    const size_t y_row = a->y_stride * spw_dtype_bytes(a->y_dtype);
    encode_rows(&p);
    struct spw_codes *codes = allocate(p.codes_bytes, 0);
    char *want = expected_y(&p, in_place), *y = run_rows(&p, 0, m, in_place, codes, false);
    CHECK_MSG(!memcmp(codes, p.expected, p.codes_bytes), "codes: m %zu k %zu", m, a->k);
    CHECK_MSG(!memcmp(y, want, p.y_bytes), "%s y %d: m %zu n %zu k %zu", spw_dtype_name(t),
              a->y_dtype, m, n, a->k);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        if (sizes[s] >= m || in_place)
            continue;
        const size_t first = check_range(seed, 0, m - sizes[s]);
        char *some = run_rows(&p, first, sizes[s], false, NULL, check_random(seed) % 2);
        CHECK_MSG(!memcmp(some, want + first * y_row, sizes[s] * y_row),
                  "%s: m %zu n %zu k %zu: rows %zu + %zu", spw_dtype_name(t), m, n, a->k, first,
                  sizes[s]);
        free(some);
    }
    free(codes);
    free(want);
    free(y);
    problem_close(&p);
}

/* The same bits, or NaN both: which NaN a sum passes on is the compiler's. */
static bool same_outputs(const void *x, const void *y, size_t n, enum spw_dtype t)
{
    size_t differ = 0;
    for (size_t i = 0, size = spw_dtype_bytes(t); i < n; i++)
        differ += memcmp((const char *)x + i * size, (const char *)y + i * size, size) &&
                  !(isnan(each_load(x, i, t)) && isnan(each_load(y, i, t)));
    return !differ;
}

static void check_f32(enum spw_dtype t, size_t m, size_t n, uint64_t *seed)
{
    struct problem p = problem_draw(SPW_DTYPE_F32, t, m, n, 5, seed), q = p;
    float *numbers = allocate(n * p.a.k * sizeof *numbers, 0);
    for (size_t r = 0; r < n; r++)
        spw_type_read(t, (const char *)p.a.w + r * spw_row_bytes(t, p.a.k), 0, p.a.k,
                      numbers + r * p.a.k);
    q.a.w = numbers;
    q.a.w_dtype = SPW_DTYPE_F32;
    q.w_bytes = n * p.a.k * sizeof *numbers;
    q.w_offset = 0;
    void *y = run_rows(&p, 0, m, false, NULL, false),
         *want = run_rows(&q, 0, m, false, NULL, false);
    CHECK_MSG(same_outputs(y, want, m * p.a.y_stride, SPW_DTYPE_F32), "%s: m %zu n %zu k %zu",
              spw_dtype_name(t), m, n, p.a.k);
    free(numbers);
    free(y);
    free(want);
    problem_close(&p);
}

static void check_gated(enum spw_dtype x_dtype, enum spw_dtype t, size_t m, size_t n,
                        uint64_t *seed)
{
    struct problem p = problem_draw(x_dtype, t, m, 2 * n, 5, seed);
    p.a.y_dtype = x_dtype;
    const struct spw_linear_args *a = &p.a;
    const enum spw_activation act = (enum spw_activation)check_range(seed, 0, SPW_ACT_COUNT - 1);
    const size_t size = spw_dtype_bytes(x_dtype), half = p.w_bytes / 2;
    char *plain = run_rows(&p, 0, m, false, NULL, false);
    void *y = allocate(m * n * size, 0), *want = allocate(m * n * size, 0);
    void *up = cuda_copy_of((const char *)a->w + half, half, p.w_offset);
    void *gate = cuda_copy_of(a->w, half, 0), *x = cuda_copy_of(a->x, p.x_bytes, 0);
    void *bias = a->bias ? cuda_copy_of(a->bias, 2 * n * sizeof(float), 0) : NULL;
    void *room = allocate(p.codes_bytes, 0), *codes = cuda_copy_of(room, p.codes_bytes, 0);
    struct spw_gated_linear_args g = {.x = x,
                                      .w_gate = gate,
                                      .w_up = up,
                                      .bias = bias,
                                      .y = cuda_copy_of(y, m * n * size, 0),
                                      .m = m,
                                      .n = n,
                                      .k = a->k,
                                      .x_stride = a->x_stride,
                                      .dtype = x_dtype,
                                      .gate_dtype = t,
                                      .up_dtype = t,
                                      .act = act,
                                      .codes = codes};
    const int rc = spw_gated_linear_cuda(&g, NULL);
    CHECK_MSG(rc == 0, "%s gated: %d", spw_dtype_name(t), rc);
    cuda_take_back(y, g.y, m * n * size, 0);
    for (size_t i = 0; i < m * n; i++) {
        const size_t at = i / n * a->y_stride + i % n;
        each_store(want, i, x_dtype,
                   math_gated(each_load(plain, at, x_dtype), each_load(plain, at + n, x_dtype), act,
                              x_dtype));
    }
    CHECK_MSG(same_outputs(y, want, m * n, x_dtype), "%s gated, act %d: m %zu n %zu k %zu",
              spw_dtype_name(t), (int)act, m, n, a->k);
    cuda_take_back(NULL, up, 0, p.w_offset);
    cuda_take_back(NULL, gate, 0, 0);
    cuda_take_back(NULL, x, 0, 0);
    cuda_take_back(NULL, codes, 0, 0);
    if (bias)
        cuda_take_back(NULL, bias, 0, 0);
    free(room);
    free(plain);
    free(y);
    free(want);
    problem_close(&p);
}

/* ---- a real GPU: how fast ---- */

/* A copy back waits for the kernels. */
static void wait_for(const struct spw_linear_args *a)
{
    float y;
    CHECK(!cudaMemcpy(&y, a->y, sizeof y, CUDA_TO_HOST));
}

static double seconds_of(const struct spw_linear_args *a, int calls)
{
    struct timespec from, to;
    CHECK(spw_linear_cuda(a, NULL) == 0);
    wait_for(a);
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (int i = 0; i < calls; i++)
        CHECK(spw_linear_cuda(a, NULL) == 0);
    wait_for(a);
    clock_gettime(CLOCK_MONOTONIC, &to);
    return (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) * 1e-9;
}

/* Prints, and judges nothing. W is larger than an L2 cache. The codes of x are made before. */
static void measure(enum spw_dtype t, void *w, size_t w_bytes)
{
    enum { K = 4096, MOST = 512 };
    static const size_t rows[] = {1, 8, 16, 32, 33, 64, MOST}; /* borders of the kernels */
    struct spw_linear_args a = {.w = w, .k = K, .x_stride = K, .w_dtype = t};
    a.n = a.y_stride = w_bytes / spw_row_bytes(t, K) / 256 * 256;
    a.x_dtype = a.y_dtype = SPW_DTYPE_BF16;
    const size_t codes_bytes = MOST * spw_codes_groups(K) * sizeof(struct spw_codes);
    void *zeros = allocate(MOST * a.n * 2, 0);
    a.x = cuda_copy_of(zeros, MOST * K * 2, 0);
    a.y = cuda_copy_of(zeros, MOST * a.n * 2, 0);
    a.codes = cuda_copy_of(zeros, codes_bytes, 0);
    a.has_codes = true;
    printf("%-7s [%zu][%d]:", spw_dtype_name(t), a.n, (int)K);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const int calls = rows[i] <= 32 ? 20 : 4;
        a.m = rows[i];
        const double seconds = seconds_of(&a, calls) / calls;
        printf("  %zu rows %.0f GB/s %.1f TOPS", a.m,
               (double)(a.n * spw_row_bytes(t, K)) / seconds * 1e-9,
               2 * (double)a.m * (double)a.n * K / seconds * 1e-12);
    }
    printf("\n");
    cuda_take_back(NULL, (void *)(uintptr_t)a.x, 0, 0);
    cuda_take_back(NULL, a.y, 0, 0);
    cuda_take_back(NULL, a.codes, 0, 0);
    free(zeros);
}

static void measure_all(uint64_t *seed)
{
    const size_t bytes = (size_t)192 << 20;
    uint64_t *w = allocate(bytes, 0);
    for (size_t i = 0; i < bytes / sizeof *w; i++)
        w[i] = check_random(seed);
    void *on_gpu = cuda_copy_of(w, bytes, 0);
    for (int t = SPW_DTYPE_Q8_0; t <= SPW_DTYPE_MXFP4; t++)
        measure((enum spw_dtype)t, on_gpu, bytes);
    cuda_take_back(NULL, on_gpu, 0, 0);
    free(w);
}

/* What no kernel takes. */
static void check_arguments(void)
{
    _Alignas(64) static char none[64]; /* never read: nothing is launched */
    struct spw_linear_args a = {.x = none, .w = none, .y = none, .codes = none, .m = 1, .n = 1};
    a.k = a.x_stride = 48;
    a.y_stride = 1;
    a.x_dtype = a.y_dtype = SPW_DTYPE_BF16;
    a.w_dtype = SPW_DTYPE_Q4_0;
    CHECK(spw_linear_cuda(&a, NULL) == -EINVAL); /* half a block */
    a.k = a.x_stride = 32;
    a.w = none + 1;
    CHECK(spw_linear_cuda(&a, NULL) == -EINVAL);
    a.w = none;
    a.codes = none + 8;
    CHECK(spw_linear_cuda(&a, NULL) == -EINVAL);
}

int main(void)
{
    uint64_t seed = check_seed();
    if (!cuda_there())
        return CHECK_SKIP;
    check_arguments();
    for (int t = SPW_DTYPE_Q8_0; t <= SPW_DTYPE_MXFP4; t++) {
        const enum spw_dtype type = (enum spw_dtype)t;
        static const int capabilities[] = {75, 80, 90};
        if (spw_simt_set)
            spw_simt_set(&(struct spw_simt_options){
                .seed = check_random(&seed), .capability = capabilities[check_range(&seed, 0, 2)]});
        for (int round = 0; round < cuda_draws(3); round++)
            check_codes(type, check_range(&seed, 1, 8), check_range(&seed, 1, 70), 5, &seed);
        /* As many groups as pass through a ring of k_codes_stream several times. */
        check_codes(type, check_range(&seed, 1, 8), check_range(&seed, 1, 17), 90, &seed);
        /* Tiles of 2, 4 and 8 strips, on the emulated GPU. */
        check_codes(type, check_range(&seed, 66, 140), check_range(&seed, 1, 40), 5, &seed);
        check_codes(type, check_range(&seed, 9, 32), check_range(&seed, 1, 70), 20, &seed);
        check_codes(type, 33, check_range(&seed, 260, 300), 5, &seed);
        check_codes(type, check_range(&seed, 66, 80), check_range(&seed, 260, 300), 5, &seed);
        check_f32(type, check_range(&seed, 1, 9), check_range(&seed, 1, 40), &seed);
        check_f32(type, check_range(&seed, 33, 40), check_range(&seed, 1, 40), &seed);
        check_gated(SPW_DTYPE_BF16, type, check_range(&seed, 1, 8), check_range(&seed, 1, 20),
                    &seed);
        check_gated(SPW_DTYPE_BF16, type, check_range(&seed, 9, 32), check_range(&seed, 1, 20),
                    &seed);
        check_gated(SPW_DTYPE_BF16, type, check_range(&seed, 33, 70), check_range(&seed, 1, 20),
                    &seed);
        check_gated(SPW_DTYPE_F32, type, check_range(&seed, 1, 9), check_range(&seed, 1, 20),
                    &seed);
    }
    if (!spw_simt_set && !cuda_is_sanitized())
        measure_all(&seed);
    return check_done();
}
