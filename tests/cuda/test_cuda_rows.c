/* The row kernels of the GPU against those of the CPU, over drawn shapes, strides and alignments;
 * and rows computed alone, at another alignment, against rows computed together (memcmp). What lies
 * between the rows must stay as it was.
 *
 * Activations have the same bits. Norms and rope differ by the order of a sum and by how sinf and
 * cosf are rounded: each is a few f32 ulp on either side, and where a tensor is rounded to bf16 one
 * of its steps. */
#include <math.h>

#include "base/numbers.h"
#include "model/cuda/ops_cuda.h"
#include "quant/types.h"
#include "tests/cuda/cuda_memory.h"
#include "tests/unit/kernels/rope_append_steps.h"

static uint64_t rng;
static size_t n_bf16, n_bf16_same;

/* Counts the bf16 elements that came out the same. */
static void count_same(enum spw_dtype t, double got, double want)
{
    n_bf16 += t == SPW_DTYPE_BF16;
    n_bf16_same += t == SPW_DTYPE_BF16 && got == want;
}

/* A tip takes a value within some 2^-22 of the middle between two bf16 values 2^-8 apart, which is
 * one in ten thousand. A rounding that is left out changes one in eight at least. */
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
    size_t cols = draw_cols(), rows = cols > 512 ? draw(1, 9) : draw(1, 40);
    size_t stride = cols + (draw(0, 1) ? 0 : draw(1, 9));
    bool in_place = draw(0, 1), has_bias = draw(0, 1), weighs = draw(0, 3);
    struct both x = make(rows * stride, t, 3), y = make(rows * stride, t, 1);
    struct both weight = make(cols, SPW_DTYPE_F32, 2), bias = make(cols, SPW_DTYPE_F32, 1);
    struct spw_norm_args a = {.x = x.gpu,
                              .y = in_place ? x.gpu : y.gpu,
                              .weight = weighs ? weight.gpu : NULL,
                              .bias = has_bias ? bias.gpu : NULL,
                              .rows = rows,
                              .cols = cols,
                              .x_stride = stride,
                              .y_stride = stride,
                              .eps = 1e-5f,
                              .kind = (enum spw_norm_kind)draw(0, SPW_NORM_NONE),
                              .dtype = t};
    CHECK(!spw_norm_cuda(&a, NULL));
    size_t row = draw(0, rows - 1), wide = spw_dtype_bytes(t);
    struct alone alone = alone_make((char *)x.cpu + row * stride * wide, cols, t);
    struct spw_norm_args one = a, here = a;
    one.x = one.y = alone.gpu, one.rows = 1;
    CHECK(!spw_norm_cuda(&one, NULL));
    here.x = x.cpu, here.y = in_place ? x.cpu : y.cpu, here.weight = weighs ? weight.cpu : NULL;
    here.bias = has_bias ? bias.cpu : NULL;
    void *before = malloc(bytes_of(&x)); /* in place, the CPU overwrites what the slack needs */
    memcpy(before, x.cpu, bytes_of(&x));
    each_run(cpu()->norm, &here, EACH_FORWARD);
    void *got = take(in_place ? &x : &y), *want = here.y;
    CHECK(alone_same(&alone, (char *)got + row * stride * wide));
    bool right = true;
    for (size_t i = 0; i < rows * stride; i++) {
        double g = each_load(got, i, t), w = each_load(want, i, t);
        if (i % stride >= cols) {
            right &= g == w;
            continue;
        }
        count_same(t, g, w);
        /* 1e-6: of each side's chain of at most some hundred additions */
        double k = (weighs ? fabs(each_load(weight.cpu, i % stride, SPW_DTYPE_F32)) : 1) + 1;
        double n = fabs(each_load(before, i, t)) * 4; /* 1 / rms < 4 for what is drawn */
        /* a mean and a bias leave less than the terms that the error comes from */
        double large = fabs(w) + (has_bias || a.kind == SPW_NORM_MEAN ? k * (n + 1) : 0);
        double slack =
            t == SPW_DTYPE_F32 ? 2e-6 * large + 1e-9 : k * each_ulp(n, t) + each_ulp(w, t);
        right &= fabs(g - w) <= slack;
    }
    CHECK_MSG(right, "rows %zu cols %zu kind %d bias %d", rows, cols, (int)a.kind, has_bias);
    free(got), free(before);
    drop(&x), drop(&y), drop(&weight), drop(&bias);
}

/* With a residual: the bits of the norm, then of an addition, then of a product with a factor, if
 * there is one: operations of f32, whose results are rounded to bf16. y is a buffer of its own, the
 * residual, or x, all at alignments of their own. */
static void test_norm_residual(void)
{
    enum spw_dtype t = draw_dtype();
    size_t cols = draw_cols(), rows = draw(1, 5), stride = cols + (draw(0, 1) ? 0 : draw(1, 9));
    size_t n = rows * stride;
    struct both x = make(n, t, 3), h = make(n, t, 3), own = make(n, t, 1), normed = make(n, t, 1);
    struct both weight = make(cols, SPW_DTYPE_F32, 2), *const places[] = {&own, &h, &x};
    struct both *y = places[draw(0, 2)];
    struct spw_norm_args a = {.x = x.gpu,
                              .y = normed.gpu,
                              .weight = weight.gpu,
                              .rows = rows,
                              .cols = cols,
                              .x_stride = stride,
                              .y_stride = stride,
                              .eps = 1e-5f,
                              .kind = (enum spw_norm_kind)draw(0, SPW_NORM_NONE),
                              .dtype = t};
    CHECK(!spw_norm_cuda(&a, NULL));
    struct both factor = make(1, SPW_DTYPE_F32, 1);
    const double by = draw(0, 1) ? (double)*(float *)factor.cpu : 0;
    a.y = y->gpu, a.residual = h.gpu, a.factor = by != 0 ? factor.gpu : NULL;
    CHECK(!spw_norm_cuda(&a, NULL));
    void *norms = take(&normed), *got = take(y), *want = y->cpu;
    for (size_t i = 0; i < n; i++)
        if (i % stride < cols)
            each_store(want, i, t, (float)(each_load(h.cpu, i, t) + each_load(norms, i, t)));
    for (size_t i = 0; i < n && by != 0; i++)
        if (i % stride < cols)
            each_store(want, i, t, (float)(each_load(want, i, t) * by));
    CHECK_MSG(!memcmp(got, want, bytes_of(y)), "rows %zu cols %zu", rows, cols);
    free(norms), free(got);
    drop(&x), drop(&h), drop(&own), drop(&normed), drop(&weight), drop(&factor);
}

/* ---- rope_append ---- */

enum { TILES = STEPS_TILES * STEPS_SLICES };
enum { MOST_NORM_DIM = 512 /* up to here a norm of rows has the same tree */ };

struct rope_problem {
    struct both qkv, q, freq, q_norm, k_norm, q_bias, k_bias;
    struct spw_rope_append_args a; /* of the CPU */
};

/* What a call writes, in the CPU's memory. */
struct written {
    char *qkv, *tiles[TILES];
    size_t tile_bytes;
};

/* The problem's qkv, and tiles that nobody has written to. */
static struct written written_init(const struct rope_problem *p)
{
    const struct spw_rope_append_args *a = &p->a;
    struct written w = {.qkv = memcpy(malloc(bytes_of(&p->qkv)), p->qkv.cpu, bytes_of(&p->qkv)),
                        .tile_bytes = steps_tile_bytes(a)};
    for (int i = 0; i < TILES; i++)
        w.tiles[i] = memset(malloc(w.tile_bytes), 0xa5, w.tile_bytes);
    return w;
}

static void written_free(struct written *w)
{
    free(w->qkv);
    for (int i = 0; i < TILES; i++)
        free(w->tiles[i]);
}

static bool written_same(const struct rope_problem *p, const struct written *w,
                         const struct written *other)
{
    bool same = !memcmp(w->qkv, other->qkv, bytes_of(&p->qkv));
    for (int i = 0; i < TILES; i++)
        same &= !memcmp(w->tiles[i], other->tiles[i], w->tile_bytes);
    return same;
}

/* `a`, a call whose vectors are the GPU's, on the GPU's copy of w, at an alignment of its own; in
 * calls of `step` rows. */
static void rope_on_gpu(const struct rope_problem *p, const struct spw_rope_append_args *a,
                        struct written *w, size_t step)
{
    size_t wide = spw_dtype_bytes(a->dtype), offset = draw(0, 1) ? 0 : draw(1, 8) * wide;
    char *qkv = cuda_copy_of(w->qkv, bytes_of(&p->qkv), offset), *tiles[TILES];
    for (int i = 0; i < TILES; i++)
        tiles[i] = cuda_copy_of(w->tiles[i], w->tile_bytes, 0);
    for (size_t from = 0; from < a->rows; from += step) {
        struct spw_rope_append_args part = *a;
        size_t tile = (size_t)((a->position + from) / SPW_TILE_TOKENS) -
                      (size_t)(a->position / SPW_TILE_TOKENS);
        part.qkv = qkv + from * a->stride * wide;
        part.q = a->q ? (const char *)a->q + from * a->q_stride * wide : NULL;
        part.position += from;
        part.rows = a->rows - from < step ? a->rows - from : step;
        steps_list_tiles(&part, tiles, tile);
        CHECK(!spw_rope_append_cuda(&part, NULL));
    }
    cuda_take_back(w->qkv, qkv, bytes_of(&p->qkv), offset);
    for (int i = 0; i < TILES; i++)
        cuda_take_back(w->tiles[i], tiles[i], w->tile_bytes, 0);
}

/* Heads of v of all rows, as they are appended. */
static char *values_on_gpu(const struct rope_problem *p, const struct spw_rope_append_args *a)
{
    char *values = steps_values(a, p->qkv.cpu);
    size_t bytes = a->rows * a->n_kv_heads * a->head_dim * spw_dtype_bytes(a->dtype);
    struct spw_norm_args norm = steps_values_norm(a, NULL);
    if (!a->v_norm || !bytes)
        return values;
    norm.x = norm.y = cuda_copy_of(values, bytes, 0);
    CHECK(!spw_norm_cuda(&norm, NULL));
    cuda_take_back(values, norm.y, bytes, 0);
    return values;
}

/* The steps, each stored before the next: norms as a launch of their own; the same kernel rotates,
 * but takes heads of k for heads of q (so that what it appends is of no interest); and the append
 * of tests/unit/kernels/rope_append_steps.h. */
static struct written steps_on_gpu(const struct rope_problem *p,
                                   const struct spw_rope_append_args *a)
{
    struct written w = written_init(p), unused = written_init(p);
    size_t wide = spw_dtype_bytes(a->dtype);
    struct spw_rope_append_args rope = *a, append = *a;
    rope.n_heads += a->n_kv_heads;
    rope.interleaved = rope.v_is_k = rope.v_norm = false;
    rope.q_norm = rope.k_norm = NULL;
    rope.q = NULL;
    rope.growth.beta = 0;
    steps_take_q(&p->a, unused.qkv);
    steps_order(a, unused.qkv);
    if (a->norm_last)
        rope_on_gpu(p, &rope, &unused, a->rows);
    char *qkv = cuda_copy_of(unused.qkv, bytes_of(&p->qkv), 0);
    for (size_t i = 0; i < a->rows * (a->n_heads + a->n_kv_heads); i++) {
        size_t heads = a->n_heads + a->n_kv_heads;
        struct spw_norm_args norm = steps_norm(a, qkv, i / heads, i % heads);
        CHECK(!norm.weight || !spw_norm_cuda(&norm, NULL));
    }
    cuda_take_back(unused.qkv, qkv, bytes_of(&p->qkv), 0);
    if (!a->norm_last)
        rope_on_gpu(p, &rope, &unused, a->rows);
    append.qkv = unused.qkv;
    char *values = values_on_gpu(p, a);
    steps_list_tiles(&append, w.tiles, 0);
    steps_append(&append, values);
    steps_grow(&append);
    free(values);
    for (size_t row = 0; row < a->rows; row++) { /* of qkv only q is rewritten */
        size_t at = steps_head(a, row, 0) * wide;
        memcpy(w.qkv + at, unused.qkv + at, steps_head(a, 0, a->n_heads) * wide);
    }
    written_free(&unused);
    return w;
}

/* Whether n elements are within the slack. */
static bool alike(const void *got, const void *want, size_t n, enum spw_dtype t, double slack)
{
    bool right = true;
    size_t wide = spw_dtype_bytes(t);
    for (size_t i = 0; i < n; i++) {
        if (!memcmp((const char *)got + i * wide, (const char *)want + i * wide, wide))
            continue;
        double g = each_load(got, i, t), w = each_load(want, i, t);
        right &= fabs(g - w) <= slack + each_ulp(w, t);
    }
    return right;
}

/* Against the CPU's. Two ulp of a cosine and of a sine, and of a norm what test_norm allows; in
 * bf16 a step of each, of the products, the sum, and of a norm. */
static bool rope_matches_cpu(const struct rope_problem *p, const struct written *got)
{
    struct written cpu_has = written_init(p);
    struct spw_rope_append_args a = p->a;
    a.qkv = cpu_has.qkv;
    steps_list_tiles(&a, cpu_has.tiles, 0);
    each_run(cpu()->rope_append, &a, EACH_FORWARD);
    double most = 4; /* of what is rotated: drawn below 2, or normed */
    most *= a.q_norm || a.k_norm || a.v_norm ? sqrt(a.head_dim) + 1 : 1;
    most *= a.growth.beta != 0 ? 1 + 0.25 * log(1 + 1e6) : 1;
    double slack = a.dtype == SPW_DTYPE_F32 ? 0x1p-20 * most : 0x1p-6 * most;
    bool right = alike(got->qkv, cpu_has.qkv, p->qkv.n, a.dtype, slack);
    for (int i = 0; i < TILES; i++)
        right &= alike(got->tiles[i], cpu_has.tiles[i],
                       got->tile_bytes / spw_dtype_bytes(a.kv_dtype), a.kv_dtype, slack);
    for (size_t i = 0; i < a.rows * a.n_heads * a.rotary_dim; i++) {
        size_t at = steps_head(&a, i / a.rotary_dim / a.n_heads, i / a.rotary_dim % a.n_heads) +
                    i % a.rotary_dim;
        count_same(a.dtype, each_load(got->qkv, at, a.dtype), each_load(a.qkv, at, a.dtype));
    }
    written_free(&cpu_has);
    return right;
}

/* `shared`: rows enough that a block takes more heads of one than it has groups. */
static struct rope_problem rope_draw(bool shared)
{
    static const enum spw_dtype types[] = {SPW_DTYPE_F32, SPW_DTYPE_F16, SPW_DTYPE_BF16};
    static const uint32_t dims[] = {16, 64, 80, 96, 128, 256, 1024};
    size_t rows = shared ? 260 : draw(0, 2) ? draw(1, 12) : 1;
    struct rope_problem p = {
        .a = {.rows = rows,
              .position = SPW_TILE_TOKENS * draw(0, 900) + (draw(0, 1) ? draw(0, 127) : 127),
              .head_dim = draw(0, 2) ? dims[draw(0, 6)] : 2 * (uint32_t)draw(1, 200),
              .scaling = 1.2f,
              .eps = 1e-5f,
              .interleaved = draw(0, 1),
              .norm_last = draw(0, 1),
              .v_is_k = !draw(0, 3),
              .dtype = draw_dtype(),
              .kv_dtype = types[draw(0, 2)]}};
    struct spw_rope_append_args *a = &p.a;
    a->head_dim = shared ? 128 : a->head_dim;
    a->n_kv_heads = shared ? 3 : a->head_dim > 256 ? 1 : (uint32_t)draw(1, 3);
    const bool queries_only = !shared && !draw(0, 5);
    a->n_heads = a->n_kv_heads * (shared ? 6 : (uint32_t)draw(1, 6));
    a->rotary_dim = draw(0, 1) ? a->head_dim : 2 * (uint32_t)draw(1, a->head_dim / 2);
    a->stride = (size_t)(a->n_heads + 3 * a->n_kv_heads) * a->head_dim;
    a->stride += draw(0, 1) ? 0 : draw(1, 9);
    a->n_kv_heads = queries_only ? 0 : a->n_kv_heads;
    steps_draw_slices(a, &rng);
    p.qkv = make(rows * a->stride, a->dtype, 2);
    p.q = make(steps_draw_q(a, &rng), a->dtype, 2);
    a->q = draw(0, 1) ? p.q.cpu : NULL;
    p.freq = make(a->rotary_dim / 2, SPW_DTYPE_F32, 1);
    steps_draw(a, &rng);
    const size_t q = (size_t)a->head_dim * (a->norm_by_head ? a->n_heads : 1);
    const size_t k = (size_t)a->head_dim * (a->norm_by_head ? a->n_kv_heads : 1);
    p.q_norm = make(q, SPW_DTYPE_F32, 1), p.q_bias = make(q, SPW_DTYPE_F32, 1);
    p.k_norm = make(k, SPW_DTYPE_F32, 1), p.k_bias = make(k, SPW_DTYPE_F32, 1);
    a->inv_freq = p.freq.cpu;
    if (a->head_dim <= MOST_NORM_DIM) {
        a->q_norm = draw(0, 1) ? p.q_norm.cpu : NULL;
        a->k_norm = draw(0, 1) ? p.k_norm.cpu : NULL;
        a->q_norm_bias = draw(0, 1) ? p.q_bias.cpu : NULL;
        a->k_norm_bias = draw(0, 1) ? p.k_bias.cpu : NULL;
        a->v_norm = !draw(0, 3);
    }
    return p;
}

static void test_rope_append(bool shared)
{
    struct rope_problem p = rope_draw(shared);
    struct spw_rope_append_args a = p.a;
    size_t rows = a.rows;
    a.q = a.q ? p.q.gpu : NULL;
    a.inv_freq = p.freq.gpu;
    a.q_norm = a.q_norm ? p.q_norm.gpu : NULL;
    a.k_norm = a.k_norm ? p.k_norm.gpu : NULL;
    a.q_norm_bias = a.q_norm_bias ? p.q_bias.gpu : NULL;
    a.k_norm_bias = a.k_norm_bias ? p.k_bias.gpu : NULL;
    struct written want = steps_on_gpu(&p, &a), once = written_init(&p), cut = written_init(&p);
    rope_on_gpu(&p, &a, &once, rows);
    rope_on_gpu(&p, &a, &cut, draw(1, rows));
    bool same = written_same(&p, &once, &want), same_cut = written_same(&p, &once, &cut);
    CHECK_MSG(
        same && same_cut && rope_matches_cpu(&p, &once),
        "steps %d calls %d: rows %zu at %llu heads %u/%u, %u a tile, dim %u rotary %u "
        "norms %d %d kind %d by head %d growth %d interleaved %d last %d q apart %d types %s %s",
        same, same_cut, rows, (unsigned long long)a.position, a.n_heads, a.n_kv_heads,
        a.slice_heads, a.head_dim, a.rotary_dim, a.q_norm != NULL, a.k_norm != NULL, (int)a.norm,
        a.norm_by_head, a.growth.beta != 0, a.interleaved, a.norm_last, a.q != NULL,
        spw_dtype_name(a.dtype), spw_dtype_name(a.kv_dtype));
    written_free(&want), written_free(&once), written_free(&cut);
    drop(&p.qkv), drop(&p.q), drop(&p.freq), drop(&p.q_norm), drop(&p.k_norm), drop(&p.q_bias),
        drop(&p.k_bias);
}

/* ---- softcap ---- */

static void test_softcap(void)
{
    size_t n = draw(1, 9000);
    struct both x = make(n, SPW_DTYPE_F32, 30 * pow(10, 3 * each_uniform(&rng)));
    struct spw_softcap_args a = {.x = x.gpu, .n = n, .cap = 30}, here = a;
    CHECK(!spw_softcap_cuda(&a, NULL));
    here.x = x.cpu;
    each_run(cpu()->softcap, &here, EACH_FORWARD);
    void *got = take(&x);
    CHECK(!memcmp(got, x.cpu, bytes_of(&x)));
    free(got);
    drop(&x);
}

/* ---- each ---- */

static void test_each(void)
{
    enum spw_dtype t = draw_dtype();
    size_t n = draw(1, 9000);
    struct both x = make(n, t, 8);
    enum spw_activation act = SPW_ACT_CUT_QUICK;
    while (act == SPW_ACT_CUT_QUICK)
        act = (enum spw_activation)draw(0, SPW_ACT_COUNT - 1);
    struct spw_each_args a = {.x = x.gpu,
                              .n = n,
                              .limit = draw(0, 1) ? 1.5f : 0,
                              .act = act,
                              .dtype = t},
                         here = a;
    CHECK(!spw_each_cuda(&a, NULL));
    here.x = x.cpu;
    each_run(cpu()->each, &here, EACH_FORWARD);
    void *got = take(&x);
    CHECK_MSG(!memcmp(got, x.cpu, bytes_of(&x)), "n %zu act %d limit %g", n, (int)a.act,
              (double)a.limit);
    free(got);
    drop(&x);
}

/* ---- one definition ---- */

/* One activation of n numbers: the GPU and every table of the CPU give the same bits, with a second
 * factor and without. */
static void same_activation(struct both *gate, struct both *up, enum spw_activation act)
{
    const size_t n = gate->n, bytes = bytes_of(gate);
    struct both y = {.cpu = malloc(bytes), .n = n, .t = gate->t};
    struct spw_gated_args gated = {
        .gate = gate->gpu, .up = up->gpu, .rows = 1, .cols = n, .act = act, .dtype = gate->t};
    for (int with_up = 0; with_up < 2; with_up++) {
        y.gpu = cuda_copy_of(gate->cpu, bytes, 0);
        gated.y = y.gpu;
        struct spw_each_args each = {.x = y.gpu, .n = n, .act = act, .dtype = gate->t};
        if (act == SPW_ACT_CUT_QUICK && !with_up)
            continue;
        CHECK(!(with_up ? spw_gated_cuda(&gated, NULL) : spw_each_cuda(&each, NULL)));
        void *want = take(&y);
        EACH_TABLE(table)
        {
            struct spw_gated_args gated_here = gated;
            gated_here.gate = gate->cpu, gated_here.up = up->cpu, gated_here.y = y.cpu;
            each.x = memcpy(y.cpu, gate->cpu, bytes);
            each_run(with_up ? table->gated : table->each,
                     with_up ? (const void *)&gated_here : &each, EACH_FORWARD);
            CHECK_MSG(!memcmp(y.cpu, want, bytes), "act %d, %s: %s", (int)act,
                      spw_isa_name(table->isa), spw_dtype_name(gate->t));
        }
        free(want);
    }
    free(y.cpu);
}

static void test_activations(enum spw_dtype t)
{
    struct both gate = {.t = t}, up;
    gate.cpu = each_finite(&rng, t, &gate.n);
    gate.gpu = cuda_copy_of(gate.cpu, bytes_of(&gate), 0);
    up = make(gate.n, t, 9);
    for (int act = 0; act < SPW_ACT_COUNT; act++)
        same_activation(&gate, &up, (enum spw_activation)act);
    drop(&gate), drop(&up);
}

/* ---- what is refused, and what has nothing to do ---- */

static void test_refused(void)
{
    struct spw_norm_args norm = {.rows = 1, .cols = 1, .dtype = SPW_DTYPE_F16};
    struct spw_rope_append_args rope = {.rows = 1,
                                        .n_heads = 1,
                                        .n_kv_heads = 1,
                                        .head_dim = 8,
                                        .rotary_dim = 16,
                                        .dtype = SPW_DTYPE_F32};
    struct spw_softcap_args softcap = {.n = 0};
    struct spw_each_args each = {.n = 1, .dtype = SPW_DTYPE_F16};
    CHECK(spw_each_cuda(&each, NULL) == -EINVAL);
    each = (struct spw_each_args){.n = 0, .dtype = SPW_DTYPE_F32};
    CHECK(!spw_each_cuda(&each, NULL));
    CHECK(spw_norm_cuda(&norm, NULL) == -EINVAL);
    CHECK(spw_rope_append_cuda(&rope, NULL) == -EINVAL);
    rope.rotary_dim = 8, rope.rows = SPW_APPEND_TILES * SPW_TILE_TOKENS + 1;
    CHECK(spw_rope_append_cuda(&rope, NULL) == -EINVAL);
    rope.rows = 1, rope.head_dim = 2 * SPW_MOST_HEAD_DIM;
    CHECK(spw_rope_append_cuda(&rope, NULL) == -EINVAL);
    norm.dtype = SPW_DTYPE_BF16;
    norm.rows = rope.rows = 0;
    CHECK(!spw_norm_cuda(&norm, NULL) && !spw_rope_append_cuda(&rope, NULL));
    CHECK(!spw_softcap_cuda(&softcap, NULL));
}

int main(void)
{
    if (!cuda_there())
        return CHECK_SKIP;
    rng = check_seed();
    const int draws = cuda_draws(100);
    for (int i = 0; i < draws; i++)
        test_norm();
    check_same("norm");
    for (int i = 0; i < draws; i++)
        test_rope_append(i == 0);
    check_same("rope_append");
    for (int i = 0; i < draws; i++) {
        test_norm_residual();
        test_softcap();
        test_each();
    }
    test_activations(SPW_DTYPE_BF16);
    test_activations(SPW_DTYPE_F32);
    test_refused();
    return check_done();
}
