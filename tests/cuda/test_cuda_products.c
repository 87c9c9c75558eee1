/* Products on the GPU that the CPU has no kernel for: act(gate) up in one call, against the plain
 * product of both matrices, for every kernel and every type of weights: what is left is
 * elementwise. Other products: test_cuda_ops_linear and test_cuda_ops_codes. On a real GPU also how
 * fast products with quantized weights are. */
#include "tests/cuda/gpu_table.h"
#include "tests/unit/kernels/math_f32.h"

#include <time.h>

static void *allocate(size_t bytes, int byte)
{
    void *p = malloc(bytes ? bytes : 1);
    if (!p)
        exit(1);
    memset(p, byte, bytes);
    return p;
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

/* n numbers; wild: some of them are not finite, or overflow. */
static void *numbers(size_t n, enum spw_dtype t, bool wild, uint64_t *seed)
{
    static const double odd[] = {(double)INFINITY, -(double)INFINITY, (double)NAN, 1e38, -1e38};
    void *p = allocate(n * spw_dtype_bytes(t), 0);
    for (size_t i = 0; i < n; i++)
        each_store(p, i, t,
                   wild && check_random(seed) % 99 == 0 ? odd[check_random(seed) % 5]
                                                        : each_uniform(seed));
    return p;
}

/* W of n rows: quantized ones are any bits. */
static void *weights(size_t n, size_t k, enum spw_dtype t, uint64_t *seed)
{
    if (!spw_type_is_quantized(t))
        return numbers(n * k, t, false, seed);
    uint8_t *w = allocate(n * spw_row_bytes(t, k), 0);
    for (size_t i = 0; i < n * spw_row_bytes(t, k); i++)
        w[i] = (uint8_t)check_random(seed);
    return w;
}

/* All rows in one call, against the plain product of gate and up; then some of them in calls of
 * other sizes. tidy: as a model has it, rows begin and end at 16 bytes. */
static void check_gated(struct spw_gated_linear_args a, bool tidy, const size_t *sizes,
                        size_t n_sizes, uint64_t *seed)
{
    const size_t size = spw_dtype_bytes(a.dtype), matrix = a.n * spw_row_bytes(a.gate_dtype, a.k);
    a.up_dtype = a.gate_dtype;
    a.act = (enum spw_activation)check_range(seed, 0, SPW_ACT_COUNT - 1);
    a.x_stride = a.k + (tidy ? 8 * check_range(seed, 0, 2) : check_range(seed, 0, 2));
    void *x = numbers(a.m * a.x_stride, a.dtype, check_random(seed) % 3 == 0, seed);
    char *w = weights(2 * a.n, a.k, a.gate_dtype, seed), *y = allocate(a.m * a.n * size, 0x5a);
    void *bias = check_random(seed) % 2 ? numbers(2 * a.n, SPW_DTYPE_F32, false, seed) : NULL;
    void *plain = allocate(a.m * 2 * a.n * size, 0), *want = allocate(a.m * a.n * size, 0);
    void *codes = allocate(a.m * spw_codes_groups(a.k) * sizeof(struct spw_codes), 0);
    const struct spw_linear_args both = {.x = x,
                                         .w = w,
                                         .bias = bias,
                                         .y = plain,
                                         .m = a.m,
                                         .n = 2 * a.n,
                                         .k = a.k,
                                         .x_stride = a.x_stride,
                                         .y_stride = 2 * a.n,
                                         .x_dtype = a.dtype,
                                         .w_dtype = a.gate_dtype,
                                         .y_dtype = a.dtype,
                                         .codes = codes};
    a.x = x, a.w_gate = w, a.w_up = w + matrix, a.bias = bias, a.y = y, a.codes = codes;
    gpu_multiply(&both, false);
    gpu_multiply_gated(&a);
    for (size_t i = 0; i < a.m * a.n; i++) {
        const size_t gate = i / a.n * 2 * a.n + i % a.n;
        each_store(want, i, a.dtype,
                   math_gated(each_load(plain, gate, a.dtype),
                              each_load(plain, gate + a.n, a.dtype), a.act, a.dtype));
    }
    CHECK_MSG(same_outputs(y, want, a.m * a.n, a.dtype), "x %s w %s act %d: m %zu n %zu k %zu",
              spw_dtype_name(a.dtype), spw_dtype_name(a.gate_dtype), a.act, a.m, a.n, a.k);
    for (size_t s = 0; s < n_sizes; s++) {
        struct spw_gated_linear_args some = a;
        if (sizes[s] > a.m)
            continue;
        const size_t first = check_range(seed, 0, a.m - sizes[s]);
        some.m = sizes[s];
        some.x = (char *)x + first * a.x_stride * size;
        some.y = allocate(some.m * a.n * size, 0x5a);
        gpu_multiply_gated(&some);
        CHECK_MSG(same_outputs(some.y, y + first * a.n * size, some.m * a.n, a.dtype),
                  "x %s w %s act %d: m %zu n %zu k %zu: rows %zu + %zu", spw_dtype_name(a.dtype),
                  spw_dtype_name(a.gate_dtype), a.act, a.m, a.n, a.k, first, some.m);
        free(some.y);
    }
    free(x), free(w), free(y), free(bias), free(plain), free(want), free(codes);
}

/* Every kernel, by the number of rows that leads to it. */
static void check_plain_weights(enum spw_dtype x, enum spw_dtype w, uint64_t *seed)
{
    static const size_t sizes[] = {1, 2, 8, 9, 16, 17, 33, 64, 65};
    for (int tidy = 0; tidy < 2; tidy++) {
        const size_t k = check_range(seed, 1, 300);
        check_gated((struct spw_gated_linear_args){.m = 75,
                                                   .n = check_range(seed, 1, 70),
                                                   .k = tidy ? (k + 7) / 8 * 8 : k,
                                                   .dtype = x,
                                                   .gate_dtype = w},
                    tidy, sizes, sizeof sizes / sizeof *sizes, seed);
    }
    check_gated(
        (struct spw_gated_linear_args){
            .m = 75, .n = check_range(seed, 1, 9), .dtype = x, .gate_dtype = w},
        true, sizes, sizeof sizes / sizeof *sizes, seed); /* the bias */
}

static void check_quantized(enum spw_dtype t, uint64_t *seed)
{
    static const size_t most_rows[] = {8, 32, 70, 9}, some[] = {1, 8, 9};
    for (size_t i = 0; i < 4; i++) {
        const size_t elements = spw_type_of(t).elements;
        check_gated(
            (struct spw_gated_linear_args){
                .m = check_range(seed, i % 3 ? most_rows[i - 1] + 1 : 1, most_rows[i]),
                .n = check_range(seed, 1, 20),
                .k = elements * check_range(seed, 1, 5 * SPW_CODES_GROUP / elements),
                .dtype = i < 3 ? SPW_DTYPE_BF16 : SPW_DTYPE_F32,
                .gate_dtype = t},
            check_random(seed) % 2, some, 3, seed);
    }
}

/* Rows of a call that takes the large tiles, the last of them ragged, where the card has the shared
 * memory: as check_large of test_ops_linear. */
static void check_large(int capability, bool tidy, uint64_t *seed)
{
    const size_t side = spw_simt_set ? 1 : 4, sizes[] = {66, 3}, k = check_range(seed, 1, 300);
    gpu_set(check_random(seed), capability);
    check_gated((struct spw_gated_linear_args){.m = 130 + 256 * (side - 1),
                                               .n = 256 * side * side - check_range(seed, 0, 49),
                                               .k = tidy ? (k + 7) / 8 * 8 : k,
                                               .dtype = SPW_DTYPE_BF16,
                                               .gate_dtype = SPW_DTYPE_BF16},
                tidy, sizes, 2, seed);
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

int main(void)
{
    static const int capabilities[] = {75, 80, 90};
    static const enum spw_dtype plain[][2] = {{SPW_DTYPE_BF16, SPW_DTYPE_BF16},
                                              {SPW_DTYPE_F32, SPW_DTYPE_F32},
                                              {SPW_DTYPE_F32, SPW_DTYPE_F16},
                                              {SPW_DTYPE_F32, SPW_DTYPE_BF16}};
    uint64_t seed = check_seed();
    if (!cuda_there())
        return CHECK_SKIP;
    gpu_set(check_random(&seed), 0);
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        check_plain_weights(plain[i][0], plain[i][1], &seed);
    for (int t = SPW_DTYPE_Q8_0; t <= SPW_DTYPE_MXFP4; t++) {
        gpu_set(check_random(&seed), capabilities[check_range(&seed, 0, 2)]);
        check_quantized((enum spw_dtype)t, &seed);
    }
    check_large(75, true, &seed);
    for (int tidy = 0; tidy < 2; tidy++) {
        check_large(80, tidy, &seed);
        check_large(90, tidy, &seed);
    }
    if (!spw_simt_set && !cuda_is_sanitized())
        measure_all(&seed);
    return check_done();
}
