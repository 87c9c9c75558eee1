/* linear on every instruction set of this machine, and as test_cuda_ops_linear on the GPU: against
 * double precision, exactly where no sum can round, else within the bound that follows from the
 * number of roundings; the same bits for every number of rows, order of tasks and
 * number of workers; with a residual, the bits of a product and an addition one after the other.
 * Operands end at a page that must not be touched. The AMX kernel also runs on an emulation of its
 * instructions, on any x86-64. Also the CPU backend's gated product, which consists of two
 * kernels. */
#include "tests/check.h"
#include "model/cpu/ops_cpu.h"

#if defined(SPW_X86_KERNELS) && !defined(TEST_BACKEND)
#include "model/cpu/kernels.h"
#include "tests/unit/kernels/amx_emulation.h"

/* The kernel of f32 is that of AVX-512, which this machine may lack. */
static size_t workspace_of_f32(size_t k, enum spw_dtype x, enum spw_dtype w)
{
    return spw_isa_runs(SPW_ISA_AVX512BF16) ? spw_linear_workspace_avx512bf16(k, x, w) : 0;
}

size_t emulated_workspace(size_t k, enum spw_dtype x, enum spw_dtype w);

#define spw_linear_kernel_amx emulated_kernel
#define spw_linear_workspace_amx emulated_workspace
#define spw_linear_workspace_avx512bf16 workspace_of_f32
#include "model/cpu/linear/linear_amx.c"
#undef spw_linear_kernel_amx
#undef spw_linear_workspace_amx
#undef spw_linear_workspace_avx512bf16
#endif

#include "model/cpu/linear/linear.h"
#include "runtime/engine/backend.h"
#include "tests/unit/kernels/ops_each.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

enum { MAX_WORKERS = 4, CANARY = 0x5a };

struct subject {
    const char *name;
    const struct spw_kernel *kernel;
    size_t (*workspace)(size_t k, enum spw_dtype x, enum spw_dtype w);
    bool bf16_only;
};

/* Memory that ends at the end of a page, before a forbidden page. */
struct guarded {
    char *map, *data;
    size_t bytes, map_bytes;
};

static struct guarded guarded_open(size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct guarded g = {.bytes = bytes, .map_bytes = (bytes + page - 1) / page * page + page};
    g.map = mmap(NULL, g.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (g.map == MAP_FAILED)
        exit(CHECK_SKIP);
    mprotect(g.map + g.map_bytes - page, page, PROT_NONE);
    g.data = g.map + g.map_bytes - page - bytes;
    return g;
}

static void guarded_close(struct guarded *g)
{
    munmap(g->map, g->map_bytes);
}

static float uniform(uint64_t *seed)
{
    return (float)((double)(check_random(seed) >> 11) * 0x1p-52 - 1.0);
}

/* What operands are: numbers near one; so small that products of two bf16 are subnormal numbers or
 * a little larger; or whole numbers, whose sums are exact in any order. */
enum fill { PLAIN, SMALL, WHOLE, FILLS };

/* Random 16-bit patterns make random numbers: exponents near zero, now and then a subnormal f16. */
static void put_random(void *p, size_t i, enum spw_dtype t, enum fill fill, uint64_t *seed)
{
    uint64_t r = check_random(seed);
    uint16_t h;
    if (fill == WHOLE) {
        each_store(p, i, t, (double)(r % 17) - 8);
        return;
    }
    if (t == SPW_DTYPE_F32) {
        float f = uniform(seed);
        memcpy((char *)p + i * 4, &f, 4);
        return;
    }
    if (t == SPW_DTYPE_F16)
        h = (uint16_t)((r & 0x83ff) | (r >> 16 & 15) << 10);
    else
        h = (uint16_t)((r & 0x807f) | ((fill == SMALL ? 58 : 120) + (r >> 16 & 7)) << 7);
    memcpy((char *)p + i * 2, &h, 2);
}

struct problem {
    struct spw_linear_args a;
    struct guarded x, w, y, bias;
    void *workspace;
    enum fill fill;
};

static void problem_open(struct problem *p, const struct subject *s, uint64_t *seed)
{
    struct spw_linear_args *a = &p->a;
    p->x = guarded_open(((a->m - 1) * a->x_stride + a->k) * spw_dtype_bytes(a->x_dtype));
    p->w = guarded_open(a->n * a->k * spw_dtype_bytes(a->w_dtype));
    p->y = guarded_open(a->m * a->y_stride * spw_dtype_bytes(a->y_dtype));
    p->bias = guarded_open(a->n * sizeof(float));
    /* The memory between rows of x must not matter: it is NaN. */
    memset(p->x.data, 0xff, p->x.bytes);
    for (size_t r = 0; r < a->m; r++)
        for (size_t i = 0; i < a->k; i++)
            put_random(p->x.data, r * a->x_stride + i, a->x_dtype, p->fill, seed);
    for (size_t i = 0; i < a->n * a->k; i++)
        put_random(p->w.data, i, a->w_dtype, p->fill, seed);
    for (size_t i = 0; i < a->n; i++)
        put_random(p->bias.data, i, SPW_DTYPE_F32, p->fill == WHOLE ? WHOLE : PLAIN, seed);
    memset(p->y.data, CANARY, p->y.bytes);
    a->x = p->x.data;
    a->w = p->w.data;
    a->y = p->y.data;
    a->bias = check_random(seed) % 2 ? (const float *)(void *)p->bias.data : NULL;
    /* Scratch starts as garbage. */
    size_t bytes = MAX_WORKERS * s->workspace(a->k, a->x_dtype, a->w_dtype) + 64;
    p->workspace = aligned_alloc(64, (bytes + 63) / 64 * 64);
    memset(p->workspace, 0xff, bytes);
    a->workspace = p->workspace;
}

static void problem_close(struct problem *p)
{
    guarded_close(&p->x);
    guarded_close(&p->w);
    guarded_close(&p->y);
    guarded_close(&p->bias);
    free(p->workspace);
}

/* All tasks in a random order, each by a random worker. */
static void run_shuffled(const struct subject *s, const struct spw_linear_args *a, uint64_t *seed)
{
    size_t n = s->kernel->n_tasks(a);
    size_t *order = malloc((n + 1) * sizeof *order);
    for (size_t i = 0; i < n; i++) {
        size_t j = check_random(seed) % (i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    for (size_t i = 0; i < n; i++)
        s->kernel->run(a, order[i], (unsigned)(check_random(seed) % MAX_WORKERS));
    free(order);
}

struct team {
    const struct subject *s;
    const struct spw_linear_args *a;
    atomic_size_t next;
    atomic_uint workers;
};

static void *team_member(void *arg)
{
    struct team *t = arg;
    size_t n = t->s->kernel->n_tasks(t->a), task;
    unsigned worker = atomic_fetch_add(&t->workers, 1);
    while ((task = atomic_fetch_add(&t->next, 1)) < n)
        t->s->kernel->run(t->a, task, worker);
    return NULL;
}

static void run_threads(const struct subject *s, const struct spw_linear_args *a)
{
    struct team t = {.s = s, .a = a};
    pthread_t threads[MAX_WORKERS];
    int n = 0;
    while (n < MAX_WORKERS && pthread_create(&threads[n], NULL, team_member, &t) == 0)
        n++;
    CHECK(n > 0);
    while (n)
        pthread_join(threads[--n], NULL);
}

/* How much an output may be off. On the CPU each of its at most k + k/8 + 16 roundings (two for a
 * pair of products; lanes hide nothing in the worst case) is at most 2^-24 of the sum of
 * magnitudes, and what is below the normal numbers may be flushed. On the GPU each of at most k +
 * 10 sums (a chain, the partitions, the bias) is off by at most 2^-23 of it, which allows for a
 * tensor core that truncates. Then one rounding to bf16. */
static double bound_of(const struct spw_linear_args *a, double sum, double magnitude)
{
    const double roundings = EACH_GPU ? 2 * (double)(a->k + 10) : (double)(a->k / 4) + 24;
    const double bound = roundings * 0x1p-24 * magnitude + 1e-30;
    const double rounding =
        a->y_dtype == SPW_DTYPE_BF16 ? (fabs(sum) + bound * EACH_GPU) * 0x1p-8 + 0x1p-133 : 0;
    return bound + rounding;
}

static void check_values(const struct subject *s, const struct problem *p)
{
    const struct spw_linear_args *a = &p->a;
    size_t bad = 0;
    double worst = 0;
    for (size_t r = 0; r < a->m; r++)
        for (size_t c = 0; c < a->n; c++) {
            double sum = a->bias ? (double)a->bias[c] : 0, magnitude = fabs(sum);
            for (size_t i = 0; i < a->k; i++) {
                double product = each_load(a->x, r * a->x_stride + i, a->x_dtype) *
                                 each_load(a->w, c * a->k + i, a->w_dtype);
                sum += product;
                magnitude += fabs(product);
            }
            const bool exact = p->fill == WHOLE;
            const double bound = exact ? 0 : bound_of(a, sum, magnitude);
            if (exact)
                sum = each_round_as(sum, a->y_dtype);
            double error = fabs(each_load(a->y, r * a->y_stride + c, a->y_dtype) - sum);
            bad += !(error <= bound);
            worst = fmax(worst, exact ? error : error / bound);
        }
    CHECK_MSG(!bad, "%s: m %zu n %zu k %zu: %zu outputs off, worst %g of the bound", s->name, a->m,
              a->n, a->k, bad, worst);
}

static void check_canaries(const struct subject *s, const struct problem *p)
{
    const struct spw_linear_args *a = &p->a;
    const size_t bytes = spw_dtype_bytes(a->y_dtype);
    size_t touched = 0;
    for (size_t r = 0; r < a->m; r++)
        for (size_t i = a->n * bytes; i < a->y_stride * bytes; i++)
            touched += p->y.data[r * a->y_stride * bytes + i] != CANARY;
    CHECK_MSG(!touched, "%s: %zu bytes written beyond the rows", s->name, touched);
}

/* Row by row, in pieces, by other workers in another order: the same bytes. */
enum cut { ROW_BY_ROW, IN_PIECES, ON_THREADS };

static void check_invariance(const struct subject *s, struct problem *p, enum cut first,
                             uint64_t *seed)
{
    const struct spw_linear_args *a = &p->a;
    const size_t x_row = a->x_stride * spw_dtype_bytes(a->x_dtype);
    const size_t y_row = a->y_stride * spw_dtype_bytes(a->y_dtype);
    char *again = malloc(p->y.bytes);
    size_t piece;
    for (enum cut way = first; way <= ON_THREADS; way++) {
        memset(again, CANARY, p->y.bytes);
        for (size_t r = 0; r < a->m; r += piece) {
            piece = way == ROW_BY_ROW  ? 1
                    : way == IN_PIECES ? check_range(seed, 1, a->m - r)
                                       : a->m - r;
            struct spw_linear_args part = *a;
            part.m = piece;
            part.x = (const char *)a->x + r * x_row;
            part.y = again + r * y_row;
            if (way == ON_THREADS)
                run_threads(s, &part);
            else
                run_shuffled(s, &part, seed);
        }
        CHECK_MSG(!memcmp(again, p->y.data, p->y.bytes), "%s: m %zu n %zu k %zu differs in way %d",
                  s->name, a->m, a->n, a->k, (int)way);
    }
    free(again);
}

/* With a residual: the product without it, and the addition afterwards. In place, or into another
 * buffer. */
static void check_residual(const struct subject *s, const struct problem *p, bool in_place,
                           uint64_t *seed)
{
    struct spw_linear_args a = p->a;
    const size_t elements = (a.m - 1) * a.y_stride + a.n, bytes = spw_dtype_bytes(a.y_dtype);
    struct guarded residual = guarded_open(elements * bytes), y = guarded_open(elements * bytes);
    char *want = malloc(elements * bytes);
    for (size_t i = 0; i < elements; i++)
        put_random(residual.data, i, a.y_dtype, PLAIN, seed);
    memset(y.data, CANARY, y.bytes);
    memcpy(want, in_place ? residual.data : y.data, y.bytes);
    for (size_t r = 0; r < a.m; r++)
        for (size_t i = r * a.y_stride; i < r * a.y_stride + a.n; i++)
            each_store(want, i, a.y_dtype,
                       each_load(residual.data, i, a.y_dtype) + each_load(a.y, i, a.y_dtype));
    a.residual = residual.data;
    a.y = in_place ? residual.data : y.data;
    run_shuffled(s, &a, seed);
    CHECK_MSG(!memcmp(a.y, want, y.bytes), "%s: m %zu n %zu k %zu: residual%s", s->name, a.m, a.n,
              a.k, in_place ? " in place" : "");
    guarded_close(&residual);
    guarded_close(&y);
    free(want);
}

static void check_problem(const struct subject *s, struct spw_linear_args a, enum cut first,
                          uint64_t *seed)
{
    struct problem p = {.a = a, .fill = (enum fill)(check_random(seed) % FILLS)};
    problem_open(&p, s, seed);
    run_shuffled(s, &p.a, seed);
    check_values(s, &p);
    check_canaries(s, &p);
    check_invariance(s, &p, first, seed);
    check_residual(s, &p, false, seed);
    check_residual(s, &p, true, seed);
    problem_close(&p);
}

static const struct {
    enum spw_dtype x, w, y;
} combinations[] = {
    {SPW_DTYPE_F32, SPW_DTYPE_F32, SPW_DTYPE_F32},
    {SPW_DTYPE_F32, SPW_DTYPE_F16, SPW_DTYPE_F32},
    {SPW_DTYPE_F32, SPW_DTYPE_BF16, SPW_DTYPE_F32},
    {SPW_DTYPE_BF16, SPW_DTYPE_BF16, SPW_DTYPE_F32},
    {SPW_DTYPE_BF16, SPW_DTYPE_BF16, SPW_DTYPE_BF16},
};

/* tidy: rows begin and end at 16 bytes. */
static struct spw_linear_args shape(size_t i, size_t m, size_t n, size_t k, bool tidy,
                                    uint64_t *seed)
{
    const size_t k_of = tidy ? (k + 7) / 8 * 8 : k, n_of = tidy ? (n + 3) / 4 * 4 : n;
    return (struct spw_linear_args){
        .m = m,
        .n = tidy && check_random(seed) % 2 ? n_of : n,
        .k = k_of,
        .x_stride = k_of + check_random(seed) % 3 * (tidy ? 8 : 1),
        .y_stride = n_of + (tidy ? 0 : check_random(seed) % 3),
        .x_dtype = combinations[i].x,
        .w_dtype = combinations[i].w,
        .y_dtype = combinations[i].y,
    };
}

static void check_combination(const struct subject *s, size_t i, size_t m, size_t n, size_t k,
                              uint64_t *seed)
{
    const bool tidy = EACH_GPU && check_random(seed) % 2;
    check_problem(s, shape(i, m, n, k, tidy, seed), ROW_BY_ROW, seed);
}

static void check_subject(const struct subject *s, uint64_t *seed)
{
    for (size_t i = 0; i < sizeof combinations / sizeof combinations[0]; i++) {
        if (s->bf16_only && combinations[i].x != SPW_DTYPE_BF16)
            continue;
        for (int draw = 0; draw < each_draws(12, 6); draw++)
            check_combination(s, i, check_range(seed, 1, 70), check_range(seed, 1, 40),
                              check_range(seed, 1, 200), seed);
        /* Several blocks of k; several blocks of columns; several blocks of rows. */
        check_combination(s, i, check_range(seed, 1, 12), check_range(seed, 1, 11),
                          check_range(seed, 2048, 5000), seed);
        check_combination(s, i, check_range(seed, 49, 60), check_range(seed, 1, 11),
                          check_range(seed, 2048, 5000), seed);
        /* More columns than wait between two blocks of k. */
        check_combination(s, i, check_range(seed, 1, 10), check_range(seed, 25, 60),
                          check_range(seed, 2048, 2300), seed);
        check_combination(s, i, check_range(seed, 1, 70), check_range(seed, 129, 300), 33, seed);
        check_combination(s, i, check_range(seed, 385, 420), check_range(seed, 1, 9), 40, seed);
    }
}

/* Calls of as many rows as lead to each kernel of a GPU, and the bias alone. Then calls that take
 * the large tiles, the last of them ragged, where the card has the shared memory: the emulated one
 * has four multiprocessors, which four tiles of 256 x 128 fill; a real one may have 132. */
static void check_gpu(const struct subject *s, uint64_t *seed)
{
    static const int capabilities[] = {75, 80, 90};
    const size_t side = each_is_emulated() ? 1 : 4;
    for (size_t i = 0; i < sizeof combinations / sizeof combinations[0]; i++) {
        check_combination(s, i, 130, check_range(seed, 1, 140), check_range(seed, 1, 600), seed);
        check_combination(s, i, check_range(seed, 9, 66), check_range(seed, 1, 40),
                          check_range(seed, 1000, 1500), seed);
        check_combination(s, i, check_range(seed, 1, 70), 5, 0, seed);
    }
    for (size_t i = 0; i < 6; i++)
        for (size_t n = 512 * side; n <= 512 * side * side; n *= 4) {
            each_set_gpu(check_random(seed), capabilities[i / 2]);
            check_problem(s,
                          shape(check_range(seed, 3, 4), 130 + 256 * (side - 1),
                                n - check_range(seed, 0, 99), check_range(seed, 1, 300), i % 2,
                                seed),
                          IN_PIECES, seed);
        }
}

/* Every output is in one task, also if x is too large to compute here: the tasks are inside the
 * matrix, no two begin at the same place, and together they are as large as the matrix. */
static void check_partition(uint64_t *seed)
{
    struct spw_linear_args a = {.m = check_range(seed, 1, 3000),
                                .n = check_range(seed, 1, 3000),
                                .k = check_range(seed, 0, 20000),
                                .x_dtype = SPW_DTYPE_BF16,
                                .w_dtype = SPW_DTYPE_BF16};
    size_t n = spw_linear_tasks(&a), area = 0, wrong = 0;
    unsigned char *begins = calloc(a.m, a.n);
    for (size_t i = 0; i < n; i++) {
        struct spw_linear_part p = spw_linear_part(&a, i);
        if (p.row >= p.row_end || p.row_end > a.m || p.col >= p.col_end || p.col_end > a.n) {
            wrong++;
            continue;
        }
        wrong += begins[p.row * a.n + p.col]++;
        area += (p.row_end - p.row) * (p.col_end - p.col);
    }
    CHECK_MSG(!wrong && area == a.m * a.n, "m %zu n %zu k %zu: %zu tasks wrong", a.m, a.n, a.k,
              wrong);
    free(begins);
}

/* The bits of linear and gated one after the other, with `up` at any place; nothing is written
 * after y and the scratch. */
static void check_gated(const struct subject *s, struct spw_linear_args both, bool joined,
                        uint64_t *seed)
{
    const size_t n = both.n / 2, matrix = n * both.k * spw_dtype_bytes(both.w_dtype);
    const size_t y_bytes = both.m * n * spw_dtype_bytes(both.x_dtype);
    struct spw_device_options o = {
        .device_bytes = UINT64_MAX, .host_bytes = UINT64_MAX, .threads = MAX_WORKERS};
    struct problem p = {.a = both};
    struct spw_backend b;
    struct spw_device *d;
    spw_stream stream;
    spw_backend_cpu(&b);
    o.context = b.context;
    CHECK(b.ops->gated_scratch && b.device_ops->open(&d, &o, NULL) == 0);
    CHECK(b.device_ops->stream_open(d, "compute", &stream) == 0);
    problem_open(&p, s, seed);
    struct guarded up = guarded_open(matrix), scratch = guarded_open(2 * y_bytes);
    struct guarded y = guarded_open(y_bytes), want = guarded_open(y_bytes);
    memcpy(up.data, p.w.data + matrix, matrix);
    const struct spw_gated_linear_args a = {
        .x = p.a.x,
        .w_gate = p.a.w,
        .w_up = joined ? p.w.data + matrix : up.data,
        .bias = p.a.bias,
        .y = y.data,
        .scratch = scratch.data,
        .m = both.m,
        .n = n,
        .k = both.k,
        .x_stride = both.x_stride,
        .dtype = both.x_dtype,
        .gate_dtype = both.w_dtype,
        .up_dtype = both.w_dtype,
        .act = (enum spw_activation)check_range(seed, 0, SPW_ACT_COUNT - 1),
        .workspace = p.workspace};
    const struct spw_gated_args second = {.gate = p.a.y,
                                          .up = (const char *)p.a.y + n * spw_dtype_bytes(a.dtype),
                                          .y = want.data,
                                          .rows = a.m,
                                          .cols = n,
                                          .gate_stride = 2 * n,
                                          .up_stride = 2 * n,
                                          .act = a.act,
                                          .dtype = a.dtype};
    run_shuffled(s, &p.a, seed);
    each_run(spw_cpu_kernels_get(spw_isa_best())->gated, &second, EACH_FORWARD);
    CHECK(b.ops->gated_linear(&a, stream) == 0 && b.device_ops->stream_sync(d, stream) == 0);
    CHECK_MSG(!memcmp(y.data, want.data, y_bytes), "gated: x %d w %d act %d joined %d m %zu n %zu",
              a.dtype, a.gate_dtype, a.act, joined, a.m, n);
    b.device_ops->stream_close(d, stream);
    b.device_ops->close(d);
    guarded_close(&up), guarded_close(&scratch), guarded_close(&y), guarded_close(&want);
    problem_close(&p);
}

static void check_gated_combinations(uint64_t *seed)
{
    const struct spw_cpu_kernels *t = spw_cpu_kernels_get(spw_isa_best());
    const struct subject s = {spw_isa_name(t->isa), t->linear, t->linear_workspace, false};
    for (size_t i = 0; i < 2 * sizeof combinations / sizeof combinations[0]; i++) {
        const size_t n = 2 * check_range(seed, 1, 40), k = check_range(seed, 1, 200);
        const struct spw_linear_args a = {.m = check_range(seed, 1, 20),
                                          .n = n,
                                          .k = k,
                                          .x_stride = k + check_random(seed) % 3,
                                          .y_stride = n,
                                          .x_dtype = combinations[i / 2].x,
                                          .w_dtype = combinations[i / 2].w,
                                          .y_dtype = combinations[i / 2].x};
        check_gated(&s, a, i % 2, seed);
    }
}

/* Nothing to do is not an error. */
static void check_empty(const struct subject *s)
{
    struct spw_linear_args a = {.n = 4, .k = 4, .x_dtype = SPW_DTYPE_F32, .w_dtype = SPW_DTYPE_F32};
    CHECK(s->kernel->n_tasks(&a) == 0);
}

int main(void)
{
    if (!each_is_there())
        return CHECK_SKIP;
    uint64_t seed = check_seed();
    each_set_gpu(check_random(&seed), 0);
    EACH_TABLE(t)
    {
        struct subject s = {each_name(t), t->linear, t->linear_workspace, false};
        check_subject(&s, &seed);
        if (EACH_GPU)
            check_gpu(&s, &seed);
        else
            check_empty(&s);
    }
    if (EACH_GPU)
        return check_done();
    fprintf(stderr, "best instruction set: %s\n", spw_isa_name(spw_isa_best()));
    CHECK(each_portable());
    for (int draw = 0; draw < 50; draw++)
        check_partition(&seed);
    for (int isa = 0; isa < SPW_ISA_COUNT; isa++) {
        const struct spw_cpu_kernels *t = spw_cpu_kernels_get((enum spw_isa)isa);
        CHECK(!t || t->isa == (enum spw_isa)isa);
        CHECK(!t == !spw_isa_runs((enum spw_isa)isa));
    }
    check_gated_combinations(&seed);
#if defined(SPW_X86_KERNELS) && !defined(TEST_BACKEND)
    struct subject amx = {"emulated amx", &emulated_kernel, emulated_workspace,
                          !spw_isa_runs(SPW_ISA_AVX512BF16)};
    check_subject(&amx, &seed);
    check_combination(&amx, 4, 40, 1060, 70, &seed); /* several blocks of columns */
    check_combination(&amx, 4, 140, 40, 100, &seed); /* several blocks of rows */
#endif
    return check_done();
}
