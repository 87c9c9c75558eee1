/* The fast product of quantized weights on every instruction set of this machine, and as
 * test_cuda_ops_codes on the GPU: the bits of the reference (quant/codes.c) for each type, on
 * random blocks and shapes; codes of x likewise. All bits of a block are random, so scales are
 * infinite or NaN now and then; or all codes are the largest or the least, as those of x then are,
 * so sums are as large as they can be. x has zeros, infinities, NaN, all numbers of bf16. Weights
 * begin or end at a page that must not be touched, codes of x end there. The reference itself is
 * compared with a product in double precision. Where there is AVX-512 VNNI, the AMX kernel also
 * runs on an emulation of its tiles.
 *
 * The product with f32 x: the bits of the product with the same weights in f32. */
#include "model/cpu/linear/linear.h"
#include "quant/codes.h"
#include "quant/type_facts.h"
#include "tests/unit/kernels/ops_each.h"

#include <sys/mman.h>

#if defined(SPW_X86_KERNELS) && !defined(TEST_BACKEND)
extern const struct spw_kernel emulated_codes_kernel, emulated_tiles_kernel; /* emulated_codes.c */
#endif

enum { WORKERS = 3 };

struct guarded {
    char *map;
    size_t bytes;
};

struct problem {
    struct spw_linear_args a;
    struct spw_codes *expected; /* [m][groups] */
    struct guarded w, codes;
    bool in_place; /* y is the residual, too */
};

static void *checked_alloc(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 64) / 64 * 64);
    if (!p)
        exit(CHECK_SKIP);
    memset(p, 0x5a, bytes);
    return p;
}

/* `bytes` of memory between two forbidden pages, beside the second one or the first one. */
static void *open_guarded(struct guarded *g, size_t bytes, bool first)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), inner = (bytes + page - 1) / page * page;
    g->bytes = inner + 2 * page;
    g->map = mmap(NULL, g->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (g->map == MAP_FAILED || mprotect(g->map + page, inner, PROT_READ | PROT_WRITE) != 0)
        exit(CHECK_SKIP);
    return g->map + page + (first ? 0 : inner - bytes);
}

/* A row has numbers of one size, or all zeros; now and then some that are not finite, any bits
 * at all, or the next numbers of all that bf16 has. */
static void draw_row(uint16_t *x, size_t k, uint64_t *rng)
{
    const uint64_t kind = check_range(rng, 0, 9);
    static uint16_t next;
    const float size = kind == 1 ? 1e-38f : kind == 2 ? 1e38f : 1;
    for (size_t i = 0; i < k; i++)
        x[i] = kind == 0   ? 0
               : kind == 3 ? (uint16_t)check_random(rng)
               : kind == 7 ? next++
                           : spw_f32_to_bf16((float)each_uniform(rng) * size);
    if (kind == 4)
        x[check_range(rng, 0, k - 1)] = check_random(rng) % 2 ? 0x7f80 : 0x7fc1;
    if (kind == 5)
        x[check_range(rng, 0, k - 1)] = 0x4380; /* 256: the other codes are small */
    for (size_t i = 0; kind == 6 && i < k; i++)
        x[i] = 0x3f80; /* all codes are 127 */
}

/* The f16 d, and m, of a block become 1; the exponent of MXFP4 likewise. */
static void set_scales(enum spw_dtype t, uint8_t *block)
{
    static const uint8_t one[] = {0x00, 0x3c, 0x00, 0x3c};
    if (SPW_FACTS(t).form == SPW_SCALE_POWER)
        block[0] = 127;
    else
        memcpy(block + SPW_FACTS(t).d_at, one, SPW_FACTS(t).has_minima ? 4 : 2);
}

/* Random bits; or all codes are the same, as a rule the largest or the least. */
static void draw_weights(uint8_t *w, size_t bytes, enum spw_dtype t, uint64_t *rng)
{
    static const uint8_t same[] = {0x00, 0xff, 0x80, 0x7f, 0x77};
    const uint64_t kind = check_range(rng, 0, 9);
    for (size_t i = 0; i < bytes; i++)
        w[i] = kind < 5 ? same[kind] : (uint8_t)check_random(rng);
    for (size_t i = 0; kind < 5 && i < bytes; i += spw_type_of(t).bytes)
        set_scales(t, w + i);
}

/* A shape: rows, columns, blocks of a row. */
struct shape {
    size_t m, n, blocks;
};

static struct shape draw_shape(enum spw_dtype t, uint64_t *rng)
{
    const bool many = check_range(rng, 0, 15) == 0; /* rows: more than one task's */
    const bool one = check_range(rng, 0, 7) == 0;   /* row, with columns of several tasks */
    const bool tiles = check_range(rng, 0, 7) == 0; /* of AMX, several */
    return (struct shape){.m = one     ? 1
                               : many  ? check_range(rng, 380, 400)
                               : tiles ? check_range(rng, 15, 50)
                                       : check_range(rng, 1, 14),
                          .n = check_range(rng, 1,
                                           one    ? 600
                                           : many ? 3
                                                  : 70),
                          .blocks = spw_type_of(t).elements == SPW_CODES_GROUP
                                        ? check_range(rng, 1, 9)
                                        : check_range(rng, 1, 40)};
}

/* The i-th shape for a GPU: each kernel, tiles of 2, 4 and 8 strips on the emulated one, and as
 * many groups as pass through a ring several times. */
static struct shape draw_gpu_shape(enum spw_dtype t, size_t i, uint64_t *rng)
{
    static const struct {
        size_t rows[2], columns[2], groups;
    } shapes[] = {{{1, 8}, {1, 70}, 5},   {{1, 8}, {1, 17}, 90},     {{66, 140}, {1, 40}, 5},
                  {{9, 32}, {1, 70}, 20}, {{33, 33}, {260, 300}, 5}, {{66, 80}, {260, 300}, 5},
                  {{9, 66}, {1, 70}, 5}};
    const size_t k = i % (sizeof shapes / sizeof *shapes);
    return (struct shape){
        .m = check_range(rng, shapes[k].rows[0], shapes[k].rows[1]),
        .n = check_range(rng, shapes[k].columns[0], shapes[k].columns[1]),
        .blocks =
            check_range(rng, 1, shapes[k].groups * SPW_CODES_GROUP / spw_type_of(t).elements)};
}

static void open_problem(struct problem *p, enum spw_dtype t, struct shape shape, uint64_t *rng)
{
    struct spw_linear_args *a = &p->a;
    *a = (struct spw_linear_args){
        .m = shape.m,
        .n = shape.n,
        .k = shape.blocks * spw_type_of(t).elements,
        .x_dtype = SPW_DTYPE_BF16,
        .w_dtype = t,
        .y_dtype = check_random(rng) % 2 ? SPW_DTYPE_F32 : SPW_DTYPE_BF16,
    };
    p->in_place = check_random(rng) % 2;
    a->x_stride = a->k + check_range(rng, 0, 3);
    a->y_stride = a->n + check_range(rng, 0, 3);
    uint16_t *x = checked_alloc(a->m * a->x_stride * sizeof *x);
    for (size_t r = 0; r < a->m; r++)
        draw_row(x + r * a->x_stride, a->k, rng);
    const size_t bytes = a->n * spw_row_bytes(t, a->k);
    uint8_t *w = open_guarded(&p->w, bytes, check_random(rng) % 2);
    draw_weights(w, bytes, t, rng);
    a->x = x;
    a->w = w;
    a->y = checked_alloc(a->m * a->y_stride * sizeof(float));
    const size_t codes_bytes = a->m * spw_codes_groups(a->k) * sizeof(struct spw_codes);
    a->codes = open_guarded(&p->codes, codes_bytes, false);
    p->expected = checked_alloc(codes_bytes);
    if (check_random(rng) % 2) {
        float *bias = checked_alloc(a->n * sizeof *bias);
        for (size_t i = 0; i < a->n; i++)
            bias[i] = (float)each_uniform(rng);
        a->bias = bias;
    }
}

static void close_problem(struct problem *p)
{
    munmap(p->w.map, p->w.bytes);
    munmap(p->codes.map, p->codes.bytes);
    free((void *)(uintptr_t)p->a.x);
    free((void *)(uintptr_t)p->a.bias);
    free(p->a.y);
    free(p->expected);
}

static void encode_row(enum spw_dtype t, const uint16_t *x, size_t k, struct spw_codes *out)
{
    for (size_t at = 0; at < k; at += SPW_CODES_GROUP) {
        const size_t n = spw_min_u64(k - at, SPW_CODES_GROUP);
        float numbers[SPW_CODES_GROUP];
        for (size_t i = 0; i < n; i++)
            numbers[i] = spw_bf16_to_f32(x[at + i]);
        spw_codes_encode(t, numbers, n, out++);
    }
}

/* y before a call: a byte pattern, or what is added to the product. */
static void start_y(const struct problem *p, void *y)
{
    const struct spw_linear_args *a = &p->a;
    memset(y, 0x5a, a->m * a->y_stride * sizeof(float));
    for (size_t i = 0; p->in_place && i < a->m * a->y_stride; i++)
        each_store(y, i, a->y_dtype, (double)(i % 5) / 4);
}

/* The expected y, with what was there before between the rows. */
static void *expected_y(const struct problem *p)
{
    struct spw_linear_args a = p->a;
    const size_t groups = spw_codes_groups(a.k), row_bytes = spw_row_bytes(a.w_dtype, a.k);
    a.y = checked_alloc(a.m * a.y_stride * sizeof(float));
    a.residual = p->in_place ? a.y : NULL;
    start_y(p, a.y);
    for (size_t r = 0; r < a.m; r++)
        for (size_t c = 0; c < a.n; c++) {
            float sum = spw_codes_dot(a.w_dtype, (const uint8_t *)a.w + c * row_bytes,
                                      p->expected + r * groups, a.k);
            spw_linear_store(&a, r, c, &sum, 1);
        }
    return a.y;
}

/* The bits of the expected y; the canary between its rows stays. */
static void check_y(const struct problem *p, const struct spw_kernel *linear_codes,
                    const char *name, const void *expected)
{
    struct spw_linear_args a = p->a;
    start_y(p, a.y);
    a.residual = p->in_place ? a.y : NULL;
    each_run(linear_codes, &a, EACH_BACKWARD);
    CHECK_MSG(!memcmp(a.y, expected, a.m * a.y_stride * sizeof(float)), "%s: %s, m %zu n %zu k %zu",
              name, spw_dtype_name(a.w_dtype), a.m, a.n, a.k);
}

static void check_tables(struct problem *p)
{
    struct spw_linear_args *a = &p->a;
    const size_t codes_bytes = a->m * spw_codes_groups(a->k) * sizeof(struct spw_codes);
    for (size_t r = 0; r < a->m; r++)
        encode_row(a->w_dtype, (const uint16_t *)a->x + r * a->x_stride, a->k,
                   p->expected + r * spw_codes_groups(a->k));
    void *expected = expected_y(p);
    EACH_TABLE(table)
    {
        const size_t bytes = WORKERS * table->linear_workspace(a->k, a->x_dtype, a->w_dtype);
        a->workspace = checked_alloc(bytes);
        memset(a->workspace, 0xff, bytes); /* NaN */
        memset(a->codes, 0x5a, codes_bytes);
        each_run(table->encode, a, EACH_FORWARD);
        CHECK_MSG(!memcmp(a->codes, p->expected, codes_bytes), "%s: codes, k %zu", each_name(table),
                  a->k);
        check_y(p, table->linear_codes, each_name(table), expected);
#if defined(SPW_X86_KERNELS) && !defined(TEST_BACKEND)
        if (table->isa == SPW_ISA_AVX512VNNI) {
            check_y(p, &emulated_codes_kernel, "emulated amx", expected);
            check_y(p, &emulated_tiles_kernel, "emulated amx, any rows", expected);
        }
#endif
        free(a->workspace);
    }
    free(expected);
}

/* NaN has one form: which of two operands gives its payload depends on the compiler. */
static void normalise(float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (y[i] != y[i])
            y[i] = NAN;
}

/* f32 x: x and y of the problem are replaced. */
static void check_f32(struct problem *p, uint64_t *rng)
{
    struct spw_linear_args quantized = p->a, plain;
    const size_t n_x = p->a.m * p->a.x_stride, y_bytes = p->a.m * p->a.y_stride * sizeof(float);
    float *x = checked_alloc(n_x * sizeof *x), *w = checked_alloc(p->a.n * p->a.k * sizeof *w);
    float *y[2] = {checked_alloc(y_bytes), checked_alloc(y_bytes)};
    for (size_t i = 0; i < n_x; i++)
        x[i] = (float)each_uniform(rng);
    for (size_t c = 0; c < p->a.n; c++)
        spw_type_read(p->a.w_dtype,
                      (const uint8_t *)p->a.w + c * spw_row_bytes(p->a.w_dtype, p->a.k), 0, p->a.k,
                      w + c * p->a.k);
    quantized.x = x;
    quantized.x_dtype = quantized.y_dtype = SPW_DTYPE_F32;
    quantized.codes = NULL;
    plain = quantized;
    plain.w = w;
    plain.w_dtype = SPW_DTYPE_F32;
    quantized.y = y[0];
    plain.y = y[1];
    if (check_random(rng) % 2) { /* y is the residual, too */
        for (size_t i = 0; i < p->a.m * p->a.y_stride; i++)
            y[0][i] = y[1][i] = (float)each_uniform(rng);
        quantized.residual = y[0];
        plain.residual = y[1];
    }
    EACH_TABLE(table)
    {
        const size_t bytes = table->linear_workspace(p->a.k, SPW_DTYPE_F32, p->a.w_dtype);
        quantized.workspace = plain.workspace = checked_alloc(WORKERS * bytes);
        each_run(table->linear, &quantized, EACH_FORWARD);
        each_run(table->linear, &plain, EACH_BACKWARD);
        normalise(y[0], y_bytes / sizeof(float));
        normalise(y[1], y_bytes / sizeof(float));
        CHECK_MSG(!memcmp(y[0], y[1], y_bytes), "%s: f32 x %s, m %zu n %zu k %zu", each_name(table),
                  spw_dtype_name(p->a.w_dtype), p->a.m, p->a.n, p->a.k);
        free(plain.workspace);
    }
    free(x);
    free(w);
    free(y[0]);
    free(y[1]);
}

/* The reference against sums in double precision: the codes of x are within half a step of x, and
 * there is one rounding for each block, group and partition. */
static void check_reference(enum spw_dtype t, uint64_t *rng)
{
    enum { K = 1024 };
    const struct spw_type type = spw_type_of(t);
    static uint8_t w[K * 2];
    static float numbers[K], x[K];
    static struct spw_codes codes[K / SPW_CODES_GROUP];
    double sum = 0, bound = 0, magnitude = 0;
    bool finite = true;
    for (size_t i = 0; i < spw_row_bytes(t, K); i++)
        w[i] = (uint8_t)check_random(rng);
    for (size_t i = 0; t == SPW_DTYPE_MXFP4 && i < K / type.elements; i++)
        w[i * type.bytes] = (uint8_t)check_range(rng, 120, 130); /* the exponent */
    spw_type_read(t, w, 0, K, numbers);
    for (size_t i = 0; i < K; i++) {
        x[i] = (float)each_uniform(rng);
        finite &= isfinite(numbers[i]) != 0;
    }
    for (size_t g = 0; g < K / SPW_CODES_GROUP; g++)
        spw_codes_encode(t, x + g * SPW_CODES_GROUP, SPW_CODES_GROUP, &codes[g]);
    for (size_t i = 0; i < K; i++) {
        const struct spw_codes *c = &codes[i / SPW_CODES_GROUP];
        const double step = (double)(type.elements == SPW_CODES_BLOCK
                                         ? c->block_scales[i / SPW_CODES_BLOCK % SPW_CODES_BLOCKS]
                                         : c->scales[i / SPW_CODES_HALF % SPW_CODES_HALVES]);
        sum += (double)numbers[i] * (double)x[i];
        bound += fabs((double)numbers[i]) * step * 0.5000001;
        magnitude += fabs((double)numbers[i]) * (fabs((double)x[i]) + step);
    }
    const double y = (double)spw_codes_dot(t, w, codes, K);
    /* Codes and minima of a block cancel in part: their sums are larger than the numbers. */
    CHECK_MSG(!finite || fabs(y - sum) <= bound + 1e-4 * magnitude, "%s: %g, expected %g +- %g",
              type.name, y, sum, bound);
}

static void check(enum spw_dtype t, struct shape shape, uint64_t *rng)
{
    struct problem p = {0};
    open_problem(&p, t, shape, rng);
    check_tables(&p);
    check_f32(&p, rng);
    close_problem(&p);
}

/* Every shape for each type, on an emulated GPU of any kind. */
static void check_gpu(uint64_t *rng)
{
    static const int capabilities[] = {75, 80, 90};
    for (int t = SPW_DTYPE_Q8_0; t <= SPW_DTYPE_MXFP4; t++) {
        each_set_gpu(check_random(rng), capabilities[check_range(rng, 0, 2)]);
        for (int i = 0; i < 7; i++)
            check((enum spw_dtype)t, draw_gpu_shape((enum spw_dtype)t, (size_t)i, rng), rng);
    }
}

int main(int argc, char **argv)
{
    if (!each_is_there())
        return CHECK_SKIP;
    uint64_t rng = check_seed();
    if (EACH_GPU)
        check_gpu(&rng);
    struct check_draws d = check_draws_of(argc, argv, 40);
    while (!EACH_GPU && check_another(&d))
        for (int t = SPW_DTYPE_Q8_0; t <= SPW_DTYPE_MXFP4; t++) {
            check((enum spw_dtype)t, draw_shape((enum spw_dtype)t, &rng), &rng);
            check_reference((enum spw_dtype)t, &rng);
        }
    return check_done();
}
