/* attention's .cu files, every kernel of them: against an f64 reference that
 * knows nothing of tiles (where one is quantized: of what it stands for) and against the portable
 * CPU kernels, and by memcmp against themselves: however rows and tiles are cut into calls, with
 * split_states or without, many rows or one at a time. What no row may see is NaN in every tile. */
#include "tests/unit/kernels/attention_problem.h"

#include "base/numbers.h"
#include "model/cuda/ops_cuda.h"
#include "quant/types.h"
#include "tests/cuda/cuda_memory.h"
#include "tests/cuda/simt_control.h"

/* Not there on a real GPU. */
extern __typeof__(spw_simt_set) spw_simt_set __attribute__((weak));
extern __typeof__(spw_simt_allow_host_arguments) spw_simt_allow_host_arguments
    __attribute__((weak));

enum { MAX_TOKENS = 1700 };

/* ---- rope_append, with nothing to rotate: how the tiles are filled ---- */

/* Rows [from, to) of `x`, widened or rounded to `dtype`, as the executor hands them over. */
static void append(struct problem *p, size_t from, size_t to,
                   int (*launch)(const struct spw_rope_append_args *a))
{
    const struct spw_attention_args *a = &p->a;
    size_t width = (size_t)a->n_kv_heads * a->head_dim, stride = 2 * width + draw(0, 3);
    char *kv = poisoned((to - from) * stride * spw_dtype_bytes(a->dtype));
    struct spw_rope_append_args call = {.qkv = kv,
                                        .rows = to - from,
                                        .stride = stride,
                                        .position = from,
                                        .n_kv_heads = a->n_kv_heads,
                                        .head_dim = a->head_dim,
                                        .dtype = a->dtype,
                                        .kv_dtype = a->kv_dtype};
    for (size_t i = 0; i < (to - from) * width; i++) {
        each_store(kv, i / width * stride + i % width, a->dtype, (double)p->k[from * width + i]);
        each_store(kv, i / width * stride + width + i % width, a->dtype,
                   (double)p->v[from * width + i]);
    }
    for (size_t t = from / SPW_TILE_TOKENS; t * SPW_TILE_TOKENS < to; t++)
        call.tiles[t - from / SPW_TILE_TOKENS] = p->tiles[t];
    CHECK(launch(&call) == 0);
    free(kv);
}

/* The launchers below take the CPU's memory: what a call reads and writes goes to the GPU in blocks
 * of exactly its size, and comes back. */

static int append_cuda(const struct spw_rope_append_args *a)
{
    struct spw_rope_append_args call = *a;
    size_t bytes = spw_tile_bytes(a->n_kv_heads, spw_tile_square(a->head_dim), a->kv_dtype);
    size_t tiles = (size_t)spw_div_up(a->position % SPW_TILE_TOKENS + a->rows, SPW_TILE_TOKENS);
    call.qkv = cuda_copy_of(a->qkv, a->rows * a->stride * spw_dtype_bytes(a->dtype), 0);
    for (size_t t = 0; t < tiles; t++)
        call.tiles[t] = cuda_copy_of(a->tiles[t], bytes, 0);
    int rc = spw_rope_append_cuda(&call, NULL);
    for (size_t t = 0; t < tiles; t++)
        cuda_take_back(a->tiles[t], call.tiles[t], bytes, 0);
    cuda_take_back(NULL, call.qkv, 0, 0);
    return rc;
}

static size_t tile_bytes(const struct spw_attention_args *a, uint32_t t)
{
    bool quantized = t >= a->quantized_first && t < a->quantized_end;
    return quantized ? spw_qtile_bytes(a->n_kv_heads, spw_tile_square(a->head_dim), a->qformat)
                     : spw_tile_bytes(a->n_kv_heads, spw_tile_square(a->head_dim), a->kv_dtype);
}

static int attention_cuda(const struct spw_attention_args *a, bool split_states)
{
    struct spw_attention_args call = *a;
    size_t state = a->rows * a->n_heads * (a->head_dim + 2) * sizeof(float);
    size_t spread = (size_t)spw_div_up(a->n_tiles, SPW_SPLIT_TILES) * state;
    size_t stride = a->y_stride ? a->y_stride : (size_t)a->n_heads * a->head_dim;
    size_t y = a->rows * stride * spw_dtype_bytes(a->dtype), tiles = 0;
    void *nan = poisoned(spread);
    for (uint32_t t = 0; t < a->n_tiles; t++)
        tiles += a->tiles[t] ? tile_bytes(a, t) : 0;
    struct cuda_arena arena = cuda_arena_open(a->n_tiles, tiles);
    call.q = cuda_copy_of(a->q, a->rows * a->q_stride * spw_dtype_bytes(a->dtype), 0);
    call.state = cuda_copy_of(a->state, state, 0);
    call.split_states = split_states ? cuda_copy_of(nan, spread, 0) : NULL;
    call.y = a->y ? cuda_copy_of(a->y, y, 0) : NULL;
    size_t extra = a->n_heads * sizeof *a->extra_logits;
    if (a->extra_logits)
        call.extra_logits = cuda_copy_of(a->extra_logits, extra, 0);
    memset(call.tiles, 0, sizeof call.tiles);
    for (uint32_t t = 0; t < a->n_tiles; t++)
        call.tiles[t] =
            a->tiles[t] ? cuda_arena_copy_of(&arena, a->tiles[t], tile_bytes(a, t)) : NULL;
    int rc = spw_attention_cuda(&call, NULL);
    cuda_arena_close(&arena);
    if (split_states)
        cuda_take_back(NULL, call.split_states, 0, 0);
    if (a->y)
        cuda_take_back(a->y, call.y, y, 0);
    cuda_take_back(a->state, call.state, state, 0);
    if (a->extra_logits)
        cuda_take_back(NULL, (void *)call.extra_logits, 0, 0);
    cuda_take_back(NULL, (void *)call.q, 0, 0);
    free(nan);
    return rc;
}

static int append_cpu(const struct spw_rope_append_args *a)
{
    each_run(spw_cpu_kernels_get(SPW_ISA_PORTABLE)->rope_append, a, EACH_FORWARD);
    return 0;
}

/* Both ways, in chunks that differ: the same bytes, and the rest of the tiles untouched. */
static void fill_tiles(struct problem *p)
{
    const struct spw_attention_args *a = &p->a;
    size_t bytes = spw_tile_bytes(a->n_kv_heads, spw_tile_square(a->head_dim), a->kv_dtype), to;
    char *ours[PROBLEM_TILES] = {0};
    for (size_t t = 0; t * SPW_TILE_TOKENS < p->n_tokens; t++)
        p->tiles[t] = poisoned(bytes);
    for (size_t from = 0; from < p->n_tokens; from = to) {
        to = from + draw(1, 400) < p->n_tokens ? from + draw(1, 400) : p->n_tokens;
        to = to < p->n_tokens ? to : p->n_tokens;
        append(p, from, to, append_cuda);
    }
    memcpy(ours, p->tiles, sizeof ours);
    for (size_t t = 0; t * SPW_TILE_TOKENS < p->n_tokens; t++)
        p->tiles[t] = poisoned(bytes);
    append(p, 0, p->n_tokens, append_cpu);
    for (size_t t = 0; t * SPW_TILE_TOKENS < p->n_tokens; t++) {
        CHECK_MSG(!memcmp(p->tiles[t], ours[t], bytes), "tile %zu of %zu tokens, types %s %s", t,
                  p->n_tokens, spw_dtype_name(a->dtype), spw_dtype_name(a->kv_dtype));
        free(p->tiles[t]);
        p->tiles[t] = ours[t];
    }
}

/* ---- problems ---- */

static void problem_fill(struct problem *p)
{
    struct spw_attention_args *a = &p->a;
    size_t q = a->rows * a->q_stride, kv = p->n_tokens * a->n_kv_heads * a->head_dim;
    a->position = p->n_tokens - a->rows;
    a->q = p->q = poisoned(q * spw_dtype_bytes(a->dtype));
    for (size_t i = 0; i < q; i++)
        each_store(p->q, i, a->dtype, 2 * each_uniform(&rng));
    p->k = malloc(kv * sizeof(float));
    p->v = malloc(kv * sizeof(float));
    for (size_t i = 0; i < kv; i++) { /* 8 bits, above f16's smallest: every type holds them */
        p->k[i] = (float)each_round_as(2 * each_uniform(&rng), SPW_DTYPE_BF16) + 0.0f;
        p->v[i] = (float)each_round_as(2 * each_uniform(&rng), SPW_DTYPE_BF16) + 0.0f;
        p->k[i] = fabsf(p->k[i]) < 0x1p-14f ? 0 : p->k[i];
        p->v[i] = fabsf(p->v[i]) < 0x1p-14f ? 0 : p->v[i];
    }
    fill_tiles(p);
}

/* `mma`: types and sizes that the tensor-core kernels take. */
static struct problem problem_draw(bool mma)
{
    static const uint32_t dims[] = {2, 6, 10, 48, 64, 128, 80, 288};
    static const uint32_t mma_dims[] = {64, 128, 80, 96, 256, 64, 128, 64};
    static const uint32_t groups[] = {1, 2, 3, 4, 4, 5, 8, 21};
    static const enum spw_dtype types[] = {SPW_DTYPE_F16, SPW_DTYPE_F32, SPW_DTYPE_BF16};
    struct problem p = {0};
    struct spw_attention_args *a = &p.a;
    a->dtype = mma || !draw(0, 2) ? SPW_DTYPE_BF16 : SPW_DTYPE_F32;
    a->kv_dtype = mma ? SPW_DTYPE_BF16 : types[draw(0, 2)];
    a->head_dim = (mma ? mma_dims : dims)[draw(0, 7)];
    a->n_kv_heads = a->head_dim > 64 ? 1 : (uint32_t)draw(1, 2);
    a->n_heads = a->n_kv_heads * groups[draw(0, a->head_dim > 64 ? 5 : 7)];
    a->rows = draw(0, 2) ? draw(1, 40) : 1;
    p.n_tokens = a->rows + (draw(0, 2) ? draw(0, 300) : draw(0, MAX_TOKENS - 100));
    a->q_stride = (size_t)a->n_heads * a->head_dim + 2 * draw(0, 3);
    a->window.tokens = (uint32_t)(draw(0, 1) ? 0 : draw(0, 1) ? draw(1, 130) : draw(100, 1500));
    a->window.step = draw(0, 1) ? 1 : a->window.tokens;
    a->scale = (float)(1 / sqrt(a->head_dim) * (1 + each_uniform(&rng) / 2));
    a->softcap = draw(0, 3) ? 0 : (float)draw(1, 5);
    problem_draw_y_stride(&p);
    problem_fill(&p);
    return p;
}

static bool takes_mma(const struct spw_attention_args *a)
{
    uint32_t d = a->head_dim;
    return a->dtype == SPW_DTYPE_BF16 && a->kv_dtype == SPW_DTYPE_BF16 &&
           (d == 64 || d == 80 || d == 96 || d == 128 || d == 256);
}

/* ---- ways to run a problem ---- */

static void run_call(const struct spw_attention_args *call, struct way way)
{
    if (way.table)
        each_run(way.table->attention, call, way.order);
    else
        CHECK(attention_cuda(call, way.split_states) == 0);
}

/* All rows as the portable CPU kernels have them. The tensor-core kernels round p to bf16, which is
 * 2^-9 of itself, and 2^-8 with the sums' share. */
static bool matches_cpu(const struct problem *p, const float *state)
{
    const struct spw_attention_args *a = &p->a;
    double out[PROBLEM_DIM], size[PROBLEM_DIM];
    struct way way = {.rows = a->rows, .splits = 8};
    way.table = spw_cpu_kernels_get(SPW_ISA_PORTABLE);
    float *cpu = problem_run(p, way);
    bool good = true;
    for (size_t i = 0; i < a->rows * a->n_heads && good; i++) {
        const float *other = cpu + i * (a->head_dim + 2);
        for (size_t c = 0; c < a->head_dim; c++) { /* |v| is at most 2, and p sums to 1 */
            out[c] = (double)other[c] / (double)other[a->head_dim + 1];
            size[c] = 2;
        }
        good = problem_row_matches(p, i, out, size, state + i * (a->head_dim + 2),
                                   (takes_mma(a) ? 0x1p-8 : 0) + 2e-5);
    }
    free(cpu);
    return good;
}

static void check_problem(const struct problem *p)
{
    const struct spw_attention_args *a = &p->a;
    float *state = problem_run(p, (struct way){.rows = a->rows, .splits = 8});
    CHECK_MSG(problem_matches(p, state, takes_mma(a)) && matches_cpu(p, state), "%s",
              problem_text(p));
    problem_check_way(p, state, (struct way){.rows = a->rows, .splits = 8, .split_states = true});
    problem_check_way(p, state, (struct way){.rows = draw(1, a->rows), .splits = draw(1, 3)});
    problem_check_way(
        p, state,
        (struct way){.rows = draw(1, a->rows), .splits = draw(1, 3), .split_states = true});
    problem_check_result(p, state, (struct way){.rows = a->rows, .splits = draw(1, 3)});
    problem_check_result(
        p, state,
        (struct way){.rows = draw(1, a->rows), .splits = draw(2, 3), .split_states = true});
    free(state);
}

/* One problem each: the decode kernel, and the same row inside a prefill. */
static void test_decode_in_prefill(bool quantized)
{
    struct problem p = {.n_tokens = 1100};
    p.a = (struct spw_attention_args){.rows = 70,
                                      .q_stride = 2 * 64,
                                      .n_heads = 2,
                                      .n_kv_heads = 1,
                                      .head_dim = 64,
                                      .scale = 0.25f,
                                      .dtype = SPW_DTYPE_BF16,
                                      .kv_dtype = SPW_DTYPE_BF16};
    problem_fill(&p);
    p.a.qformat = SPW_QFORMAT_INT8_INT4;
    p.quantized_end = quantized ? 6 : 0;
    for (uint64_t t = 0; t < p.quantized_end; t++)
        problem_quantize(&p, t);
    float *state = problem_run(&p, (struct way){.rows = 70, .splits = 8});
    size_t per_row = problem_state_floats(&p) / 70;
    for (size_t row = 0; row < 70; row += 23) {
        struct problem one = p;
        one.a.rows = 1;
        one.a.position += row;
        one.a.q = one.q = (char *)p.q + row * p.a.q_stride * 2;
        problem_check_way(&one, state + row * per_row,
                          (struct way){.rows = 1, .splits = 8, .split_states = true});
    }
    free(state);
    problem_free(&p);
}

/* The longest call, every split at a time, is what calls of three splits one after the other are.
 * Of few tiles, which come again and again. */
static void test_longest(void)
{
    /* 40 splits are more than a warp merges at a time, too */
    enum { D = 64, HEADS = 2, TILES = 7, MOST = RUN_UNDER_ASAN ? 160 : SPW_ATTENTION_TILES };
    const size_t bytes = spw_tile_bytes(1, spw_tile_square(D), SPW_DTYPE_BF16);
    float state[2][HEADS * (D + 2)];
    uint16_t q[HEADS * D], *tiles[TILES];
    struct spw_attention_args a = {.q = q,
                                   .rows = 1,
                                   .q_stride = HEADS * D,
                                   .position = MOST * SPW_TILE_TOKENS - 60,
                                   .n_heads = HEADS,
                                   .n_kv_heads = 1,
                                   .head_dim = D,
                                   .scale = 0.125f,
                                   .dtype = SPW_DTYPE_BF16,
                                   .kv_dtype = SPW_DTYPE_BF16};
    for (size_t i = 0; i < HEADS * D; i++)
        each_store(q, i, SPW_DTYPE_BF16, 4 * each_uniform(&rng));
    for (size_t t = 0; t < TILES; t++) {
        tiles[t] = malloc(bytes);
        for (size_t i = 0; i < bytes / 2; i++)
            each_store(tiles[t], i, SPW_DTYPE_BF16, 2 * each_uniform(&rng));
    }
    for (int way = 0; way < 2; way++) {
        uint32_t most = way ? 3 * SPW_SPLIT_TILES : MOST;
        a.state = state[way];
        for (a.tile_first = 0; a.tile_first < MOST; a.tile_first += most) {
            a.first = a.tile_first == 0;
            a.n_tiles = (uint32_t)spw_min_u64(most, MOST - a.tile_first);
            for (uint32_t t = 0; t < a.n_tiles; t++)
                a.tiles[t] = tiles[(a.tile_first + t) * (a.tile_first + t) % 101 % TILES];
            CHECK(attention_cuda(&a, way == 0) == 0);
        }
    }
    CHECK(!memcmp(state[0], state[1], sizeof state[0]));
    CHECK(state[0][D + 1] > 1 && isfinite(state[0][0])); /* a sum of exponentials */
    for (size_t t = 0; t < TILES; t++)
        free(tiles[t]);
}

/* On the emulated GPU, one of this compute capability. */
static void set(int capability)
{
    if (spw_simt_set)
        spw_simt_set(&(struct spw_simt_options){.seed = rng, .capability = capability});
}

/* The sink exact, then quantized tiles, then exact ones: every head size of the tensor-core
 * kernels, and what others take, in every format; one query, and as many as make a prompt. */
static void test_formats(void)
{
    static const uint32_t dims[] = {64, 80, 96, 128, 256, 6, 128};
    for (size_t i = 0; i < 7 * SPW_QFORMAT_EXACT; i++) {
        if (RUN_UNDER_ASAN && !check_full() && draw(0, 1)) /* half of them in each run */
            continue;
        enum spw_dtype type = i / SPW_QFORMAT_EXACT < 6 ? SPW_DTYPE_BF16 : SPW_DTYPE_F32;
        uint32_t d = dims[i / SPW_QFORMAT_EXACT];
        set(i % 2 ? 86 : 0);
        struct problem p = {.quantized_first = 1, .quantized_end = draw(2, 5)};
        p.a = (struct spw_attention_args){.rows = i % 2 ? 1 : draw(1, 20),
                                          .q_stride = 4 * (size_t)d,
                                          .n_heads = 4,
                                          .n_kv_heads = i % 2 ? 2 : 1,
                                          .head_dim = d,
                                          .scale = (float)(1 / sqrt(d)),
                                          .dtype = type,
                                          .kv_dtype = type,
                                          .qformat = (enum spw_qformat)(i % SPW_QFORMAT_EXACT)};
        p.n_tokens = 5 * SPW_TILE_TOKENS + p.a.rows + draw(0, 60);
        problem_fill(&p);
        for (uint64_t t = p.quantized_first; t < p.quantized_end; t++)
            problem_quantize(&p, t);
        check_problem(&p);
        problem_free(&p);
    }
}

/* A V that is not finite reaches the rows that see it, and no others of the call. */
static void test_infinity(uint32_t head_dim, size_t rows, enum spw_dtype type)
{
    struct problem p = {.n_tokens = 62 + rows};
    uint32_t d = head_dim;
    p.a = (struct spw_attention_args){.rows = rows,
                                      .q_stride = 2 * d,
                                      .n_heads = 2,
                                      .n_kv_heads = 1,
                                      .head_dim = d,
                                      .window = {5, 1},
                                      .scale = 0.25f,
                                      .dtype = type,
                                      .kv_dtype = type};
    problem_fill(&p);
    char *v = p.tiles[0] + spw_tile_head_bytes(d, type);
    each_store(v, spw_tile_v_index(d, type, 63, 3), type, INFINITY);
    float *state = problem_run(&p, (struct way){.rows = rows, .splits = 1});
    for (size_t i = 0; i < 2 * rows; i++) {
        size_t query = 62 + i / 2;
        CHECK(isfinite(state[i * (d + 2) + 3]) == (query < 63 || query >= 63 + 5));
        CHECK(isfinite(state[i * (d + 2) + 2]));
    }
    problem_check_way(&p, state, (struct way){.rows = rows == 8 ? 1 : 3, .splits = 1});
    free(state);
    problem_free(&p);
}

/* A call that no row sees anything in leaves a state alone, or makes a fresh one empty. */
static void test_unseen(enum spw_dtype type, size_t rows, bool quantized)
{
    enum { D = 64, MOST = 40 };
    static uint16_t q[2 * MOST * D];
    for (int way = 0; way < 4; way++) {
        float *state = poisoned(rows * (D + 2) * sizeof(float));
        struct spw_attention_args a = {.q = q,
                                       .state = state,
                                       .rows = rows,
                                       .q_stride = D,
                                       .position = 2000,
                                       .n_tiles = way % 2 ? 8 : 4,
                                       .n_heads = 1,
                                       .n_kv_heads = 1,
                                       .head_dim = D,
                                       .window = {100, 1},
                                       .scale = 1,
                                       .first = way >= 2,
                                       .quantized_first = 1,
                                       .quantized_end = quantized ? 6 : 1,
                                       .dtype = type,
                                       .kv_dtype = SPW_DTYPE_BF16};
        for (size_t i = 0; i < rows * (D + 2); i++)
            state[i] = 7;
        run_call(&a, (struct way){.split_states = way % 2});
        for (size_t r = 0; r < rows; r++) {
            const float *s = state + r * (D + 2);
            CHECK(s[D + 1] == (a.first ? 0.0f : 7.0f) && s[0] == s[D + 1] && s[D - 1] == s[0]);
            CHECK(a.first ? s[D] == -INFINITY : s[D] == 7);
        }
        free(state);
    }
}

/* What the kernels do not take is refused, not computed. */
static void test_refused(void)
{
    struct spw_attention_args a = {.rows = 1,
                                   .n_heads = 1,
                                   .n_kv_heads = 1,
                                   .head_dim = 64,
                                   .n_tiles = SPW_ATTENTION_TILES + 4,
                                   .dtype = SPW_DTYPE_BF16,
                                   .kv_dtype = SPW_DTYPE_BF16};
    CHECK(spw_attention_cuda(&a, NULL) == -EINVAL);
    a.n_tiles = 4, a.tile_first = 2;
    CHECK(spw_attention_cuda(&a, NULL) == -EINVAL);
    a.tile_first = 0, a.head_dim = 2000;
    CHECK(spw_attention_cuda(&a, NULL) == -EINVAL);
    a.quantized_end = 4;
    CHECK(spw_attention_cuda(&a, NULL) == -EINVAL);
    a.head_dim = 64, a.qformat = SPW_QFORMAT_EXACT;
    CHECK(spw_attention_cuda(&a, NULL) == -EINVAL);
}

int main(void)
{
    if (!cuda_there())
        return CHECK_SKIP;
    rng = check_seed();
    const int draws = cuda_draws(12);
    /* A launch has tiles as distances, and between blocks of their own these can be any number:
     * two side by side may look like an address. */
    if (spw_simt_allow_host_arguments)
        spw_simt_allow_host_arguments(true);
    set(0);
    for (int i = 0; i < draws; i++) {
        struct problem p = problem_draw(i % 3 != 0);
        if (i % 2)
            problem_quantize_some(&p);
        check_problem(&p);
        problem_free(&p);
    }
    /* Before sm_80 there is no tensor core for bf16. */
    set(75);
    test_infinity(64, 8, SPW_DTYPE_BF16);
    struct problem p = problem_draw(true);
    problem_quantize_some(&p);
    check_problem(&p);
    problem_free(&p);
    set(0);
    test_decode_in_prefill(false);
    test_decode_in_prefill(true);
    test_infinity(64, 8, SPW_DTYPE_BF16);
    test_infinity(80, 40, SPW_DTYPE_BF16);
    test_infinity(10, 8, SPW_DTYPE_BF16);
    test_infinity(10, 40, SPW_DTYPE_F32);
    for (int quantized = 0; quantized < 2; quantized++) {
        test_unseen(SPW_DTYPE_BF16, 1, quantized);
        test_unseen(SPW_DTYPE_BF16, 40, quantized);
        test_unseen(SPW_DTYPE_F32, 40, quantized);
    }
    test_formats();
    test_longest();
    test_refused();
    return check_done();
}
