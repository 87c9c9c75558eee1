/* rope_append of every CPU table, and as test_cuda_ops_rope_append of the GPU, against its separate
 * steps: the table's norm, then rope and append in plain C (memcmp); rows in calls of a few, tasks
 * in either order and on several threads at a time. Canaries follow the outputs.
 *
 * The sines of a GPU are its own: there rope_append itself rotates in the steps, and what it gives
 * is close to what the CPU gives. */
#include "base/numbers.h"
#include "offload/device/device_cpu_team.h"
#include "offload/device/placement.h"
#include "quant/types.h"
#include "tests/unit/kernels/ops_each.h"
#include "tests/unit/kernels/rope_append_steps.h"

enum { CANARY = 64, TILES = STEPS_TILES * STEPS_SLICES, THREADS = 3 };
enum { MOST_ELEMENTS = 20000, MOST_ROWS = 200 };
enum { MOST_NORM_DIM = 512 /* up to here a norm of rows has the same tree on the GPU */ };

static uint64_t rng;
static struct spw_team *team;
static size_t n_bf16, n_bf16_same; /* rotated numbers of q; those that the CPU has, too */

static size_t draw(size_t low, size_t high)
{
    return (size_t)check_range(&rng, low, high);
}

/* The outputs of a run: qkv and tiles, each with a canary. */
struct written {
    char *qkv, *tiles[TILES];
    size_t qkv_bytes, tile_bytes;
};

static char *filled(const void *from, size_t bytes)
{
    char *p = memset(malloc(bytes + CANARY), 0xa5, bytes + CANARY);
    return from ? memcpy(p, from, bytes) : p;
}

static struct written written_init(const struct spw_rope_append_args *a)
{
    struct written w = {.qkv_bytes = a->rows * a->stride * spw_dtype_bytes(a->dtype),
                        .tile_bytes = steps_tile_bytes(a)};
    w.qkv = filled(a->qkv, w.qkv_bytes);
    for (int i = 0; i < TILES; i++)
        w.tiles[i] = filled(NULL, w.tile_bytes);
    return w;
}

static void written_free(struct written *w)
{
    free(w->qkv);
    for (int i = 0; i < TILES; i++)
        free(w->tiles[i]);
}

static bool written_same(const struct written *w, const struct written *other)
{
    bool same = !memcmp(w->qkv, other->qkv, w->qkv_bytes + CANARY);
    for (int i = 0; i < TILES; i++)
        same &= !memcmp(w->tiles[i], other->tiles[i], w->tile_bytes + CANARY);
    return same;
}

/* Rows [from, to) of the call, on what is written. */
static struct spw_rope_append_args part_of(const struct spw_rope_append_args *a,
                                           const struct written *w, size_t from, size_t to)
{
    struct spw_rope_append_args part = *a;
    size_t tile = (size_t)((a->position + from) / SPW_TILE_TOKENS - a->position / SPW_TILE_TOKENS);
    part.qkv = w->qkv + from * a->stride * spw_dtype_bytes(a->dtype);
    part.q = a->q ? (const char *)a->q + from * a->q_stride * spw_dtype_bytes(a->dtype) : NULL;
    part.rows = to - from;
    part.position += from;
    steps_list_tiles(&part, w->tiles, tile);
    return part;
}

/* ---- the steps ---- */

/* Heads of q and k in qkv. */
static void rotate(const struct spw_cpu_kernels *table, const struct spw_rope_append_args *a)
{
    struct spw_rope_append_args rope = *a;
    if (!EACH_GPU) {
        steps_rope(a);
        return;
    }
    rope.n_heads += a->n_kv_heads;
    rope.n_kv_heads = rope.slice_heads = 0;
    rope.interleaved = rope.v_is_k = rope.v_norm = false;
    rope.q_norm = rope.k_norm = rope.q_norm_bias = rope.k_norm_bias = NULL;
    rope.q = NULL;
    rope.growth.beta = 0;
    memset(rope.tiles, 0, sizeof rope.tiles);
    each_run(table->rope_append, &rope, EACH_FORWARD);
}

static struct written run_steps(const struct spw_cpu_kernels *table,
                                const struct spw_rope_append_args *a)
{
    struct written w = written_init(a);
    struct spw_rope_append_args all = part_of(a, &w, 0, a->rows);
    steps_take_q(a, w.qkv);
    steps_order(a, w.qkv);
    if (a->norm_last)
        rotate(table, &all);
    for (size_t head = 0; head < a->n_heads + a->n_kv_heads; head++) {
        struct spw_norm_args norm = steps_norm(a, w.qkv, head);
        if (norm.weight)
            each_run(table->norm, &norm, EACH_FORWARD);
    }
    char *values = steps_values(a, a->qkv);
    struct spw_norm_args v = steps_values_norm(a, values);
    if (a->v_norm && a->n_kv_heads)
        each_run(table->norm, &v, EACH_FORWARD);
    if (!a->norm_last)
        rotate(table, &all);
    steps_grow(&all);
    steps_append(&all, values);
    free(values);
    for (size_t row = 0; row < a->rows; row++) { /* of qkv only q is rewritten */
        size_t bytes = spw_dtype_bytes(a->dtype), k = steps_head(a, row, a->n_heads) * bytes;
        memcpy(w.qkv + k, (char *)a->qkv + k, a->n_kv_heads * a->head_dim * bytes);
    }
    return w;
}

/* ---- problems ---- */

static void *random_elements(size_t n, enum spw_dtype t, double scale)
{
    void *p = malloc(n * spw_dtype_bytes(t));
    for (size_t i = 0; i < n; i++)
        each_store(p, i, t, scale * each_uniform(&rng));
    return p;
}

/* many: rows enough that a block of the GPU takes more heads of one than it has groups. */
static struct spw_rope_append_args problem_draw(bool many)
{
    static const enum spw_dtype types[] = {SPW_DTYPE_F32, SPW_DTYPE_F16, SPW_DTYPE_BF16};
    static const uint32_t dims[] = {16, 64, 80, 96, 128, 256, 1024};
    struct spw_rope_append_args a = {
        .position = SPW_TILE_TOKENS * draw(0, 900) + (draw(0, 2) ? draw(0, 127) : 127),
        .n_kv_heads = many ? 3 : (uint32_t)draw(1, 5),
        .head_dim = many         ? 128
                    : draw(0, 1) ? dims[draw(0, 6)]
                                 : 2 * (uint32_t)draw(1, draw(0, 1) ? 100 : 200),
        .scaling = 1.2f,
        .eps = 1e-5f,
        .interleaved = draw(0, 1),
        .norm_last = draw(0, 1),
        .v_norm = draw(0, 1),
        .v_is_k = !draw(0, 2),
        .dtype = draw(0, 1) ? SPW_DTYPE_F32 : SPW_DTYPE_BF16,
        .kv_dtype = types[draw(0, 2)]};
    a.n_heads = a.n_kv_heads * (many ? 6 : (uint32_t)draw(1, draw(0, 1) ? 3 : 6));
    a.rotary_dim = draw(0, 1) ? a.head_dim : 2 * (uint32_t)draw(1, a.head_dim / 2);
    if (!many && !draw(0, 5)) /* only q */
        a.n_kv_heads = 0;
    steps_draw_slices(&a, &rng);
    size_t width = (size_t)(a.n_heads + (a.v_is_k ? 1 : 2) * a.n_kv_heads) * a.head_dim;
    a.rows = draw(0, 3) ? draw(1, 1 + MOST_ELEMENTS / width) : 1;
    a.rows = many ? 260 : a.rows < MOST_ROWS ? a.rows : MOST_ROWS;
    a.stride = width + draw(0, 3);
    a.qkv = random_elements(a.rows * a.stride, a.dtype, 4);
    const size_t apart = steps_draw_q(&a, &rng);
    a.q = draw(0, 1) ? random_elements(apart, a.dtype, 4) : NULL;
    a.inv_freq = random_elements(a.rotary_dim / 2, SPW_DTYPE_F32, 1);
    steps_draw(&a, &rng);
    const size_t q = (size_t)a.head_dim * (a.norm_by_head ? a.n_heads : 1);
    const size_t k = (size_t)a.head_dim * (a.norm_by_head ? a.n_kv_heads : 1);
    const bool has_norms = !EACH_GPU || a.head_dim <= MOST_NORM_DIM;
    a.v_norm &= has_norms;
    a.q_norm = has_norms && draw(0, 1) ? random_elements(q, SPW_DTYPE_F32, 2) : NULL;
    a.k_norm = has_norms && draw(0, 1) ? random_elements(k, SPW_DTYPE_F32, 2) : NULL;
    a.q_norm_bias = draw(0, 1) ? random_elements(q, SPW_DTYPE_F32, 1) : NULL;
    a.k_norm_bias = draw(0, 1) ? random_elements(k, SPW_DTYPE_F32, 1) : NULL;
    return a;
}

static void problem_free(struct spw_rope_append_args *a)
{
    free(a->qkv), free((void *)(uintptr_t)a->q), free((void *)(uintptr_t)a->inv_freq);
    free((void *)(uintptr_t)a->q_norm), free((void *)(uintptr_t)a->k_norm);
    free((void *)(uintptr_t)a->q_norm_bias), free((void *)(uintptr_t)a->k_norm_bias);
}

/* ---- ways to run it ---- */

enum way { ONE_CALL_BACKWARD, ON_THREADS, IN_CALLS, WAYS };

static struct written run_kernel(const struct spw_cpu_kernels *table,
                                 const struct spw_rope_append_args *a, enum way way)
{
    struct written w = written_init(a);
    size_t step = way == IN_CALLS ? draw(1, a->rows < 40 ? 5 : a->rows) : a->rows;
    for (size_t from = 0; from < a->rows; from += step) {
        size_t to = from + step < a->rows ? from + step : a->rows;
        struct spw_rope_append_args part = part_of(a, &w, from, to);
        if (way == ON_THREADS)
            spw_team_run(team, table->rope_append, &part);
        else
            each_run(table->rope_append, &part, EACH_BACKWARD);
    }
    return w;
}

/* Whether n elements are within the slack. */
static bool alike(const void *got, const void *want, size_t n, enum spw_dtype t, double slack)
{
    bool right = true;
    for (size_t i = 0, wide = spw_dtype_bytes(t); i < n; i++) {
        if (!memcmp((const char *)got + i * wide, (const char *)want + i * wide, wide))
            continue;
        const double g = each_load(got, i, t), w = each_load(want, i, t);
        right &= fabs(g - w) <= slack + each_ulp(w, t);
    }
    return right;
}

/* What the GPU gives against the CPU's: two ulp of a cosine, of a sine, and some of a norm; in bf16
 * a step of each, of the products, the sum, and of a norm. */
static bool matches_cpu(const struct spw_rope_append_args *a, const struct written *got)
{
    struct written want = run_kernel(each_portable(), a, ONE_CALL_BACKWARD);
    double most = 8; /* of what is rotated: drawn below 4, or normed */
    most *= a->q_norm || a->k_norm || a->v_norm ? sqrt(a->head_dim) + 1 : 1;
    most *= a->growth.beta != 0 ? 1 + 0.25 * log(1 + 1e6) : 1;
    const double slack = a->dtype == SPW_DTYPE_F32 ? 0x1p-20 * most : 0x1p-6 * most;
    bool right = alike(got->qkv, want.qkv, a->rows * a->stride, a->dtype, slack);
    for (int i = 0; i < TILES; i++)
        right &= alike(got->tiles[i], want.tiles[i], got->tile_bytes / spw_dtype_bytes(a->kv_dtype),
                       a->kv_dtype, slack);
    for (size_t i = 0; a->dtype == SPW_DTYPE_BF16 && i < a->rows * a->n_heads * a->rotary_dim;
         i++) {
        const size_t head = i / a->rotary_dim % a->n_heads, row = i / a->rotary_dim / a->n_heads;
        const size_t at = steps_head(a, row, head) + i % a->rotary_dim;
        n_bf16++;
        n_bf16_same += each_load(got->qkv, at, a->dtype) == each_load(want.qkv, at, a->dtype);
    }
    written_free(&want);
    return right;
}

static void test_steps(const struct spw_cpu_kernels *table, bool many)
{
    struct spw_rope_append_args a = problem_draw(many);
    struct written want = run_steps(table, &a);
    for (enum way way = 0; way < WAYS; way++) {
        struct written got = run_kernel(table, &a, way);
        CHECK_MSG(written_same(&got, &want) && (!EACH_GPU || way || matches_cpu(&a, &got)),
                  "%s way %d: rows %zu at %llu heads %u/%u, %u a tile, dim %u rotary %u norms %d "
                  "%d kind %d "
                  "by head %d growth %d interleaved %d last %d v %d %d q apart %d types %s %s",
                  each_name(table), (int)way, a.rows, (unsigned long long)a.position, a.n_heads,
                  a.n_kv_heads, a.slice_heads, a.head_dim, a.rotary_dim, a.q_norm != NULL,
                  a.k_norm != NULL, (int)a.norm, a.norm_by_head, a.growth.beta != 0, a.interleaved,
                  a.norm_last, a.v_norm, a.v_is_k, a.q != NULL, spw_dtype_name(a.dtype),
                  spw_dtype_name(a.kv_dtype));
        written_free(&got);
    }
    written_free(&want);
    problem_free(&a);
}

int main(void)
{
    const struct spw_placement nowhere = {0};
    if (!each_is_there())
        return CHECK_SKIP;
    rng = check_seed();
    if (spw_team_open(&team, THREADS, THREADS, &nowhere))
        return 1;
    EACH_TABLE(table)
    for (int i = 0; i < each_draws(12, 100); i++)
        test_steps(table, EACH_GPU && !i);
    /* as in test_ops_rows */
    CHECK_MSG((double)n_bf16_same >= 0.99 * (double)n_bf16, "%zu of %zu bf16 alike", n_bf16_same,
              n_bf16);
    struct spw_rope_append_args none = {.n_heads = 1, .n_kv_heads = 1, .head_dim = 16};
    CHECK(spw_cpu_kernels_get(SPW_ISA_PORTABLE)->rope_append->n_tasks(&none) == 0);
    spw_team_close(team);
    return check_done();
}
