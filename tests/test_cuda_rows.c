/* The row kernels of the GPU against those of the CPU, over drawn shapes, strides and alignments;
 * and rows computed alone, at another alignment, against rows computed together (memcmp). What lies
 * between the rows must stay as it was.
 *
 * The two differ by the order of a sum and by how expf, tanhf, erff, sinf and cosf are rounded:
 * each is a few f32 ulp on either side, and where a tensor is rounded to bf16 one of its steps. */
#include <math.h>

#include "model/ops_cuda.h"
#include "tests/cuda_memory.h"
#include "tests/ops_cpu_each.h"

enum { DRAWS = 100 };

static uint64_t rng;
static size_t n_bf16, n_bf16_same;

/* Counts the bf16 elements that came out the same. */
static void count_same(enum spw_dtype t, double got, double want)
{
    n_bf16 += t == SPW_DTYPE_BF16;
    n_bf16_same += t == SPW_DTYPE_BF16 && got == want;
}

/* A tip takes a value within some 2^-22 of the middle between two bf16 values 2^-8 apart, which is
 * one in ten thousand, and a few in a thousand where 1 + tanh cancels. A rounding that is left out
 * changes one in eight at least. */
static void check_same(const char *op)
{
    CHECK_MSG(n_bf16 && (double)n_bf16_same >= 0.99 * (double)n_bf16, "%s: %zu of %zu bf16 alike",
              op, n_bf16_same, n_bf16);
    n_bf16 = n_bf16_same = 0;
}

static size_t draw(size_t low, size_t high)
{
    return (size_t)check_range(&rng, low, high);
}

static enum spw_dtype draw_dtype(void)
{
    return draw(0, 1) ? SPW_DTYPE_F32 : SPW_DTYPE_BF16;
}

/* A tensor on both sides. */
struct both {
    void *cpu, *gpu;
    size_t n, offset;
    enum spw_dtype t;
};

static size_t bytes_of(const struct both *b)
{
    return b->n * spw_dtype_bytes(b->t);
}

/* n elements, drawn; on the GPU at a drawn alignment, half of the time of 16 bytes. */
static struct both make(size_t n, enum spw_dtype t, double scale)
{
    struct both b = {.cpu = malloc(n * spw_dtype_bytes(t)), .n = n, .t = t};
    for (size_t i = 0; i < n; i++)
        each_store(b.cpu, i, t, scale * each_uniform(&rng));
    b.offset = draw(0, 1) ? 0 : draw(1, 8) * spw_dtype_bytes(t);
    b.gpu = cuda_copy_of(b.cpu, bytes_of(&b), b.offset);
    return b;
}

/* The GPU's elements; the block on the GPU goes. */
static void *take(struct both *b)
{
    void *got = malloc(bytes_of(b));
    cuda_take_back(got, b->gpu, bytes_of(b), b->offset);
    b->gpu = NULL;
    return got;
}

static void drop(struct both *b)
{
    if (b->gpu)
        cuda_take_back(NULL, b->gpu, 0, b->offset);
    free(b->cpu);
}

static const struct spw_cpu_kernels *cpu(void)
{
    return spw_cpu_kernels_get(SPW_ISA_PORTABLE);
}

/* A run of one row on the GPU, alone and at its own alignment. */
struct alone {
    void *gpu;
    size_t bytes, offset;
};

static struct alone alone_make(const void *row, size_t elements, enum spw_dtype t)
{
    struct alone a = {.bytes = elements * spw_dtype_bytes(t),
                      .offset = draw(0, 8) * spw_dtype_bytes(t)};
    a.gpu = cuda_copy_of(row, a.bytes, a.offset);
    return a;
}

/* Whether its bytes are those of the row computed among others; frees it. */
static bool alone_same(struct alone *a, const void *row)
{
    void *got = malloc(a->bytes);
    cuda_take_back(got, a->gpu, a->bytes, a->offset);
    bool same = !memcmp(got, row, a->bytes);
    free(got);
    return same;
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
        return draw(1, 3000);
    }
}

static void test_norm(void)
{
    enum spw_dtype t = draw_dtype();
    size_t cols = draw_cols(), rows = draw(1, 9), groups = cols > 512 ? draw(1, 2) : draw(1, 9);
    size_t gap = draw(0, 1) ? 0 : draw(1, 9), stride = groups * cols + gap;
    bool in_place = draw(0, 1);
    struct both x = make(rows * stride, t, 3), y = make(rows * stride, t, 1);
    struct both weight = make(cols, SPW_DTYPE_F32, 2);
    struct spw_norm_args a = {.x = x.gpu,
                              .y = in_place ? x.gpu : y.gpu,
                              .weight = weight.gpu,
                              .rows = rows,
                              .groups = groups,
                              .cols = cols,
                              .x_stride = stride,
                              .y_stride = stride,
                              .eps = 1e-5f,
                              .kind = draw(0, 1) ? SPW_NORM_LLAMA : SPW_NORM_GEMMA,
                              .dtype = t};
    CHECK(!spw_norm_cuda(&a, NULL));
    size_t row = draw(0, rows - 1), wide = spw_dtype_bytes(t);
    struct alone alone = alone_make((char *)x.cpu + row * stride * wide, groups * cols, t);
    struct spw_norm_args one = a, here = a;
    one.x = one.y = alone.gpu, one.rows = 1;
    CHECK(!spw_norm_cuda(&one, NULL));
    here.x = x.cpu, here.y = in_place ? x.cpu : y.cpu, here.weight = weight.cpu;
    void *before = malloc(bytes_of(&x)); /* in place, the CPU overwrites what the slack needs */
    memcpy(before, x.cpu, bytes_of(&x));
    each_run(cpu()->norm, &here, EACH_FORWARD);
    void *got = take(in_place ? &x : &y), *want = here.y;
    CHECK(alone_same(&alone, (char *)got + row * stride * wide));
    bool right = true;
    for (size_t i = 0; i < rows * stride; i++) {
        double g = each_load(got, i, t), w = each_load(want, i, t);
        if (i % stride >= groups * cols) {
            right &= g == w;
            continue;
        }
        count_same(t, g, w);
        /* 1e-6: of each side's chain of at most some hundred additions */
        double k = fabs(each_load(weight.cpu, i % stride % cols, SPW_DTYPE_F32)) + 1;
        double n = fabs(each_load(before, i, t)) * 4; /* 1 / rms < 4 for what is drawn */
        double slack =
            t == SPW_DTYPE_F32 ? 2e-6 * fabs(w) + 1e-9 : k * each_ulp(n, t) + each_ulp(w, t);
        right &= fabs(g - w) <= slack;
    }
    CHECK_MSG(right, "rows %zu groups %zu cols %zu", rows, groups, cols);
    free(got), free(before);
    drop(&x), drop(&y), drop(&weight);
}

/* The sum and its norm in one launch are the bits of two launches. */
static void test_norm_of_sum(void)
{
    enum spw_dtype t = draw_dtype();
    size_t cols = draw_cols(), rows = draw(1, 5), n = rows * cols;
    struct both h = make(n, t, 3), x = make(n, t, 1), y = make(n, t, 1);
    struct both weight = make(cols, SPW_DTYPE_F32, 2);
    struct both h2 = h, y2 = make(n, t, 1);
    h2.gpu = cuda_copy_of(h.cpu, bytes_of(&h), h.offset);
    struct spw_norm_args a = {.x = h.gpu,
                              .add = x.gpu,
                              .sum = h.gpu,
                              .y = y.gpu,
                              .weight = weight.gpu,
                              .rows = rows,
                              .groups = 1,
                              .cols = cols,
                              .x_stride = cols,
                              .y_stride = cols,
                              .eps = 1e-5f,
                              .kind = draw(0, 1) ? SPW_NORM_LLAMA : SPW_NORM_GEMMA,
                              .dtype = t};
    struct spw_add_args add = {.h = h2.gpu, .x = x.gpu, .n = n, .dtype = t};
    struct spw_norm_args norm = a;
    norm.x = h2.gpu, norm.add = NULL, norm.y = y2.gpu;
    CHECK(!spw_norm_cuda(&a, NULL));
    CHECK(!spw_add_cuda(&add, NULL));
    CHECK(!spw_norm_cuda(&norm, NULL));
    void *sums[2] = {take(&h), take(&h2)}, *norms[2] = {take(&y), take(&y2)};
    CHECK(!memcmp(sums[0], sums[1], bytes_of(&h)));
    CHECK(!memcmp(norms[0], norms[1], bytes_of(&y)));
    free(sums[0]), free(sums[1]), free(norms[0]), free(norms[1]);
    drop(&h), drop(&x), drop(&y), drop(&y2), drop(&weight);
}

/* ---- rope ---- */

static void test_rope(void)
{
    enum spw_dtype t = draw_dtype();
    uint32_t heads = (uint32_t)draw(1, 19), dim = draw(0, 1) ? 64 : 2 * (uint32_t)draw(1, 300);
    uint32_t rotary = draw(0, 1) ? dim : 2 * (uint32_t)draw(1, dim / 2);
    size_t rows = draw(1, 5), stride = (size_t)heads * dim + (draw(0, 1) ? 0 : draw(1, 9));
    struct both x = make(rows * stride, t, 2), freq = make(rotary / 2, SPW_DTYPE_F32, 1);
    struct spw_rope_args a = {.x = x.gpu,
                              .inv_freq = freq.gpu,
                              .rows = rows,
                              .stride = stride,
                              .position = draw(0, 200000),
                              .n_heads = heads,
                              .head_dim = dim,
                              .rotary_dim = rotary,
                              .scaling = 1.2f,
                              .dtype = t};
    CHECK(!spw_rope_cuda(&a, NULL));
    size_t row = draw(0, rows - 1), wide = spw_dtype_bytes(t);
    struct alone alone = alone_make((char *)x.cpu + row * stride * wide, (size_t)heads * dim, t);
    struct spw_rope_args one = a, here = a;
    one.x = alone.gpu, one.rows = 1, one.position += row;
    CHECK(!spw_rope_cuda(&one, NULL));
    here.x = x.cpu, here.inv_freq = freq.cpu;
    double most = 0; /* of a head, and of what a rotation makes of it */
    for (size_t i = 0; i < x.n; i++)
        most = fmax(most, 2.4 * fabs(each_load(x.cpu, i, t)));
    each_run(cpu()->rope, &here, EACH_FORWARD);
    void *got = take(&x);
    CHECK(alone_same(&alone, (char *)got + row * stride * wide));
    bool right = true;
    for (size_t i = 0; i < x.n; i++) {
        double g = each_load(got, i, t), w = each_load(x.cpu, i, t);
        bool turns = i % stride < (size_t)heads * dim && i % stride % dim < rotary;
        if (turns)
            count_same(t, g, w);
        /* two ulp of a cosine and of a sine; in bf16 a step of each, of the products and the sum */
        double slack = !turns ? 0 : t == SPW_DTYPE_F32 ? 0x1p-21 * most : 0x1p-6 * most;
        right &= fabs(g - w) <= slack;
    }
    CHECK_MSG(right, "heads %u dim %u rotary %u", heads, dim, rotary);
    free(got);
    drop(&x), drop(&freq);
}

/* ---- gated ---- */

static void test_gated(void)
{
    enum spw_dtype t = draw_dtype();
    size_t rows = draw(1, 6), cols = draw(0, 1) ? 8 * draw(1, 200) : draw(1, 1500);
    struct both x = make(rows * 2 * cols, t, 8), y = make(rows * cols, t, 1);
    struct spw_gated_args a = {.x = x.gpu,
                               .y = y.gpu,
                               .rows = rows,
                               .cols = cols,
                               .act = (enum spw_activation)draw(0, 2),
                               .dtype = t};
    CHECK(!spw_gated_cuda(&a, NULL));
    size_t row = draw(0, rows - 1), wide = spw_dtype_bytes(t);
    struct alone from = alone_make((char *)x.cpu + row * 2 * cols * wide, 2 * cols, t);
    struct alone to = alone_make(y.cpu, cols, t);
    struct spw_gated_args one = a, here = a;
    one.x = from.gpu, one.y = to.gpu, one.rows = 1;
    CHECK(!spw_gated_cuda(&one, NULL));
    here.x = x.cpu, here.y = y.cpu;
    each_run(cpu()->gated, &here, EACH_FORWARD);
    void *got = take(&y);
    CHECK(alone_same(&to, (char *)got + row * cols * wide));
    CHECK(alone_same(&from, (char *)x.cpu + row * 2 * cols * wide));
    bool right = true;
    for (size_t i = 0; i < y.n; i++) {
        size_t at = i / cols * 2 * cols + i % cols;
        double g = each_load(got, i, t), w = each_load(y.cpu, i, t);
        double gate = fabs(each_load(x.cpu, at, t)), up = fabs(each_load(x.cpu, at + cols, t));
        count_same(t, g, w);
        /* as tests/test_ops_rows.c allows each side against f64: 1 + tanh cancels */
        double f = up > 0 ? fabs(w) / up : 0, small = 4e-7 * (a.act == SPW_ACT_SILU ? f : gate);
        double slack = 2 * (up * (small + each_ulp(f, t)) + each_ulp(w, t) / 2) + 1e-40;
        right &= fabs(g - w) <= slack;
    }
    CHECK_MSG(right, "act %d cols %zu", (int)a.act, cols);
    free(got);
    drop(&x), drop(&y);
}

/* ---- add, softcap ---- */

/* One exact sum and one rounding: the same bits as the CPU's. */
static void test_add(void)
{
    enum spw_dtype t = draw_dtype();
    size_t n = draw(1, 9000);
    struct both h = make(n, t, 8), x = make(n, t, 1);
    struct spw_add_args a = {.h = h.gpu, .x = x.gpu, .n = n, .dtype = t};
    CHECK(!spw_add_cuda(&a, NULL));
    struct spw_add_args here = {.h = h.cpu, .x = x.cpu, .n = n, .dtype = t};
    each_run(cpu()->add, &here, EACH_FORWARD);
    void *got = take(&h);
    CHECK(!memcmp(got, h.cpu, bytes_of(&h)));
    free(got);
    drop(&h), drop(&x);
}

static void test_softcap(void)
{
    size_t n = draw(1, 9000);
    struct both x = make(n, SPW_DTYPE_F32, 30 * pow(10, 3 * each_uniform(&rng)));
    struct spw_softcap_args a = {.x = x.gpu, .n = n, .cap = 30}, here = a;
    CHECK(!spw_softcap_cuda(&a, NULL));
    here.x = x.cpu;
    each_run(cpu()->softcap, &here, EACH_FORWARD);
    float *got = take(&x);
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        double w = (double)((float *)x.cpu)[i], off = fabs((double)got[i] - w);
        worst = fmax(worst, off / each_ulp(w, SPW_DTYPE_F32));
    }
    CHECK_MSG(worst <= 8, "%g ulp", worst); /* 4 on each side */
    free(got);
    drop(&x);
}

/* ---- what is refused, and what has nothing to do ---- */

static void test_refused(void)
{
    struct spw_norm_args norm = {.rows = 1, .groups = 1, .cols = 1, .dtype = SPW_DTYPE_F16};
    struct spw_rope_args rope = {
        .rows = 1, .n_heads = 1, .head_dim = 8, .rotary_dim = 16, .dtype = SPW_DTYPE_F32};
    struct spw_gated_args gated = {.rows = 1, .cols = 1, .dtype = SPW_DTYPE_F16};
    struct spw_add_args add = {.n = 1, .dtype = SPW_DTYPE_F16};
    struct spw_softcap_args softcap = {.n = 0};
    CHECK(spw_norm_cuda(&norm, NULL) == -EINVAL);
    CHECK(spw_rope_cuda(&rope, NULL) == -EINVAL);
    CHECK(spw_gated_cuda(&gated, NULL) == -EINVAL);
    CHECK(spw_add_cuda(&add, NULL) == -EINVAL);
    norm.dtype = gated.dtype = add.dtype = SPW_DTYPE_BF16;
    norm.rows = rope.rows = gated.rows = add.n = 0;
    rope.rotary_dim = 8;
    CHECK(!spw_norm_cuda(&norm, NULL) && !spw_rope_cuda(&rope, NULL));
    CHECK(!spw_gated_cuda(&gated, NULL) && !spw_add_cuda(&add, NULL));
    CHECK(!spw_softcap_cuda(&softcap, NULL));
}

int main(void)
{
    if (!cuda_there())
        return CHECK_SKIP;
    rng = check_seed();
    for (int i = 0; i < DRAWS; i++)
        test_norm();
    check_same("norm");
    for (int i = 0; i < DRAWS; i++)
        test_rope();
    check_same("rope");
    for (int i = 0; i < DRAWS; i++)
        test_gated();
    check_same("gated");
    for (int i = 0; i < DRAWS; i++) {
        test_norm_of_sum();
        test_add();
        test_softcap();
    }
    test_refused();
    return check_done();
}
