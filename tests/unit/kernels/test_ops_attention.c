/* Attention of every CPU table, and as test_cuda_ops_attention of the GPU, against an f64 reference
 * without tiles (with the decoded values of quantized tiles), and the invariances by memcmp: any
 * division of rows and tiles into calls, any order of tasks, `attention` or `attention_splits` +
 * `attention_merge`. Values that no row may see are NaN in every tile. The GPU is close to the
 * portable table, too. */
#include "tests/unit/kernels/attention_problem.h"

enum { MAX_TOKENS = EACH_GPU ? 1700 : 2400, DRAWS = RUN_UNDER_ASAN ? 8 : 30 };

static void fill_tiles(struct problem *p)
{
    const struct spw_attention_args *a = &p->a;
    uint32_t d = a->head_dim;
    size_t head_bytes = spw_tile_head_bytes(d, a->kv_dtype);
    for (size_t t = 0; t * SPW_TILE_TOKENS < p->n_tokens; t++)
        p->tiles[t] = poisoned(spw_tile_bytes(a->n_kv_heads, spw_tile_square(d), a->kv_dtype));
    for (size_t i = 0; i < p->n_tokens * a->n_kv_heads * d; i++) {
        uint32_t c = (uint32_t)(i % d), head = (uint32_t)(i / d % a->n_kv_heads);
        size_t token = i / d / a->n_kv_heads;
        uint32_t j = (uint32_t)(token % SPW_TILE_TOKENS);
        char *k = p->tiles[token / SPW_TILE_TOKENS] + head * head_bytes;
        char *v = k + a->n_kv_heads * head_bytes;
        p->k[i] = (float)each_round_as(2 * each_uniform(&rng), a->kv_dtype);
        p->v[i] = (float)each_round_as(2 * each_uniform(&rng), a->kv_dtype);
        each_store(k, spw_tile_k_index(d, a->kv_dtype, j, c), a->kv_dtype, (double)p->k[i]);
        each_store(v, spw_tile_v_index(d, a->kv_dtype, j, c), a->kv_dtype, (double)p->v[i]);
        if (a->kv_dtype != SPW_DTYPE_F32 && j % 2 == 0 && token == p->n_tokens - 1)
            each_store(v, spw_tile_v_index(d, a->kv_dtype, j + 1, c), a->kv_dtype, 0);
    }
}

static void problem_fill(struct problem *p)
{
    struct spw_attention_args *a = &p->a;
    a->position = p->n_tokens - a->rows;
    a->q = p->q = poisoned(a->rows * a->q_stride * spw_dtype_bytes(a->dtype));
    for (size_t i = 0; i < a->rows * a->q_stride; i++)
        each_store(p->q, i, a->dtype, 2 * each_uniform(&rng));
    p->k = malloc(p->n_tokens * a->n_kv_heads * a->head_dim * sizeof(float));
    p->v = malloc(p->n_tokens * a->n_kv_heads * a->head_dim * sizeof(float));
    fill_tiles(p);
}

/* mma: types and sizes that the tensor-core kernels of a GPU take. */
static struct problem problem_draw(bool mma)
{
    static const uint32_t dims[] = {2, 6, 10, 16, 32, 48, 64, 64, 80, 96, 128, 256, 288};
    static const uint32_t mma_dims[] = {64, 64, 64, 80, 96, 128, 128, 256};
    static const uint32_t groups[] = {1, 1, 2, 3, 4, 4, 5, 7, 8, EACH_GPU ? 21 : 35};
    static const enum spw_dtype types[] = {SPW_DTYPE_BF16, SPW_DTYPE_F32, SPW_DTYPE_F16,
                                           SPW_DTYPE_BF16};
    struct problem p = {0};
    struct spw_attention_args *a = &p.a;
    a->head_dim = mma ? mma_dims[draw(0, 7)] : dims[draw(0, 12)];
    uint32_t group = groups[draw(0, a->head_dim > 96 ? 6 : 9)];
    a->n_kv_heads = (uint32_t)draw(1, EACH_GPU && a->head_dim > 64 ? 1 : 2);
    a->n_heads = a->n_kv_heads * group;
    a->rows = draw(0, 2) ? draw(1, group > 8 && !EACH_GPU ? 3 : 40) : 1;
    p.n_tokens = a->rows + (draw(0, 2) ? draw(0, EACH_GPU ? 300 : 700) : draw(0, MAX_TOKENS - 100));
    a->q_stride = (size_t)a->n_heads * a->head_dim + draw(0, 3) * (1 + EACH_GPU);
    a->window.tokens = (uint32_t)(draw(0, 1) ? 0 : draw(0, 1) ? draw(1, 130) : draw(100, 1500));
    a->window.step = draw(0, 1) ? 1 : a->window.tokens;
    a->scale = (float)(1 / sqrt(a->head_dim) * (1 + each_uniform(&rng) / 2));
    a->softcap = draw(0, 3) ? 0 : (float)draw(1, 5);
    problem_draw_y_stride(&p);
    problem_draw_source(&p, !mma);
    a->dtype = mma || draw(0, 2) ? SPW_DTYPE_BF16 : SPW_DTYPE_F32;
    a->kv_dtype = mma ? SPW_DTYPE_BF16 : types[draw(0, 3)];
    problem_fill(&p);
    if (draw(0, 2))
        problem_quantize_some(&p);
    return p;
}

/* Partials: attention_splits + attention_merge. */
static void run_call(const struct spw_attention_args *call, struct way way)
{
    if (!way.split_states) {
        each_run(way.table->attention, call, way.order);
        return;
    }
    size_t bytes = 8 * call->rows * call->n_heads * (call->head_dim + 2) * sizeof(float);
    struct spw_attention_args a = *call;
    a.split_states = poisoned(bytes);
    each_run(way.table->attention_splits, &a, way.order);
    each_run(way.table->attention_merge, &a, way.order);
    free(a.split_states);
}

/* All rows as the portable table has them. */
static bool matches_portable(const struct problem *p, const float *state, bool rounds_p)
{
    const struct spw_attention_args *a = &p->a;
    double out[PROBLEM_DIM], size[PROBLEM_DIM];
    float *want =
        problem_run(p, (struct way){.rows = a->rows, .splits = 8, .table = each_portable()});
    bool good = true;
    for (size_t i = 0; i < a->rows * a->n_heads && good; i++) {
        const float *other = want + i * (a->head_dim + 2);
        for (size_t c = 0; c < a->head_dim; c++) { /* |v| is at most 2, and p sums to 1 */
            out[c] = (double)other[c] / (double)other[a->head_dim + 1];
            size[c] = 2;
        }
        good = problem_row_matches(p, i, out, size, state + i * (a->head_dim + 2),
                                   problem_slack(p, rounds_p));
    }
    free(want);
    return good;
}

static bool rounds_p(const struct spw_cpu_kernels *table, const struct spw_attention_args *a)
{
    const uint32_t d = a->head_dim;
    return (EACH_GPU ? d == 64 || d == 80 || d == 96 || d == 128 || d == 256
                     : table->isa >= SPW_ISA_AVX512BF16) &&
           a->dtype == SPW_DTYPE_BF16 && a->kv_dtype == SPW_DTYPE_BF16;
}

static void check_problem(const struct spw_cpu_kernels *table, const struct problem *p)
{
    const struct spw_attention_args *a = &p->a;
    float *state = problem_run(p, (struct way){.rows = a->rows, .splits = 8, .table = table});
    CHECK_MSG(problem_matches(p, state, rounds_p(table, a)) &&
                  (!EACH_GPU || matches_portable(p, state, rounds_p(table, a))),
              "%s %s", each_name(table), problem_text(p));
    for (int i = 0; i < 4; i++)
        problem_check_way(p, state,
                          (struct way){.rows = i == 0 ? 1 : draw(1, a->rows),
                                       .splits = draw(1, 5),
                                       .split_states = i % 2,
                                       .table = table,
                                       .order = draw(0, 1) ? EACH_FORWARD : EACH_BACKWARD});
    for (int i = 0; i < 2; i++)
        problem_check_result(p, state,
                             (struct way){.rows = draw(1, a->rows),
                                          .splits = draw(1, 5),
                                          .split_states = i,
                                          .table = table,
                                          .order = EACH_BACKWARD});
    free(state);
}

/* Subtracts from the exponents of n bf16; subnormal numbers come out, too. */
static void shrink(void *p, size_t n, unsigned by)
{
    uint16_t *h = p;
    for (size_t i = 0; i < n; i++) {
        const unsigned exponent = h[i] >> 7 & 0xff;
        if (exponent != 0xff)
            h[i] = (uint16_t)((h[i] & 0x807f) | (exponent > by ? exponent - by : 0) << 7);
    }
}

/* Tables of one name give the same bits, also where numbers are subnormal. The problem changes. */
static void check_same_name(struct problem *p)
{
    const struct spw_attention_args *a = &p->a;
    const size_t half =
        spw_tile_bytes(a->n_kv_heads, spw_tile_square(a->head_dim), a->kv_dtype) / 2;
    const bool shrinks = a->dtype == SPW_DTYPE_BF16 && a->kv_dtype == SPW_DTYPE_BF16;
    for (int pass = 0; pass < 1 + shrinks; pass++) {
        for (size_t t = 0; pass && t * SPW_TILE_TOKENS < p->n_tokens; t++)
            if (t < p->quantized_first || t >= p->quantized_end) {
                shrink(p->tiles[t], half / 2, 64);
                shrink(p->tiles[t] + half, half / 2, 125);
            }
        if (pass)
            shrink(p->q, a->rows * a->q_stride, 64);
        float *state = NULL;
        const char *name = "";
        EACH_CPU_TABLE(table)
        {
            const struct way way = {.rows = a->rows, .splits = 8, .table = table};
            if (strcmp(name, spw_isa_name(table->isa))) {
                free(state);
                state = problem_run(p, way);
                name = spw_isa_name(table->isa);
            }
            problem_check_way(p, state, way);
        }
        free(state);
    }
}

/* A V that is not finite reaches the rows that see it, and no others of the call. */
static void test_infinity(const struct spw_cpu_kernels *table, uint32_t d, size_t rows,
                          enum spw_dtype type)
{
    struct problem p = {.n_tokens = 62 + rows};
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
    float *state = problem_run(&p, (struct way){.rows = rows, .splits = 1, .table = table});
    for (size_t i = 0; i < 2 * rows; i++) {
        size_t query = 62 + i / 2;
        CHECK(isfinite(state[i * (d + 2) + 3]) == (query < 63 || query >= 63 + 5));
        CHECK(isfinite(state[i * (d + 2) + 2]));
    }
    problem_check_way(&p, state,
                      (struct way){.rows = rows == 8 ? 1 : 3, .splits = 1, .table = table});
    free(state);
    problem_free(&p);
}

/* One channel of one query is NaN: so is every output of that row and head. All others keep their
 * bits. */
static void check_not_a_number(const struct spw_cpu_kernels *table, const struct problem *p)
{
    const struct spw_attention_args *a = &p->a;
    const struct way way = {.rows = a->rows, .splits = 8, .table = table};
    size_t n = a->head_dim + 2, item = draw(0, a->rows * a->n_heads - 1);
    size_t channel = item / a->n_heads * a->q_stride + item % a->n_heads * a->head_dim +
                     draw(0, a->head_dim - 1);
    double before = each_load(p->q, channel, a->dtype);
    float *sound = problem_run(p, way), *state;
    each_store(p->q, channel, a->dtype, (double)NAN);
    state = problem_run(p, way);
    each_store(p->q, channel, a->dtype, before);
    for (size_t i = 0; i < a->rows * a->n_heads; i++) {
        const float *other = sound + i * n, *mine = state + i * n;
        size_t n_numbers = 0;
        for (size_t c = 0; c < a->head_dim; c++)
            n_numbers += (size_t)!isnan(mine[c] / mine[a->head_dim + 1]);
        CHECK_MSG(i == item ? !n_numbers : !memcmp(mine, other, n * sizeof *mine),
                  "%s %s: item %zu, the one of NaN is %zu, %zu numbers", each_name(table),
                  problem_text(p), i, item, n_numbers);
    }
    free(sound), free(state);
}

/* A call in which no row sees a key does not change a state; a fresh state becomes empty. */
static void test_unseen(const struct spw_cpu_kernels *table, enum spw_dtype type, size_t rows,
                        bool quantized)
{
    enum { D = 64, MOST = 40 };
    static float q[MOST * D];
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
        run_call(&a, (struct way){.split_states = way % 2, .table = table});
        for (size_t r = 0; r < rows; r++) {
            const float *s = state + r * (D + 2);
            CHECK(s[D + 1] == (a.first ? 0.0f : 7.0f) && s[0] == s[D + 1] && s[D - 1] == s[0]);
            CHECK(a.first ? s[D] == -INFINITY : s[D] == 7);
        }
        free(state);
    }
}

/* ---- paths of the GPU ---- */

/* A row as one of many, and alone: the kernels for prompts and for one query. */
static void test_decode_in_prefill(const struct spw_cpu_kernels *table, bool quantized)
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
    float *state = problem_run(&p, (struct way){.rows = 70, .splits = 8, .table = table});
    size_t per_row = problem_state_floats(&p) / 70;
    for (size_t row = 0; row < 70; row += 23) {
        struct problem one = p;
        one.a.rows = 1;
        one.a.position += row;
        one.a.q = one.q = (char *)p.q + row * p.a.q_stride * 2;
        problem_check_way(
            &one, state + row * per_row,
            (struct way){.rows = 1, .splits = 8, .split_states = true, .table = table});
    }
    free(state);
    problem_free(&p);
}

/* The longest call, every split at a time, is what calls of three splits one after the other are.
 * Of few tiles, which come again and again. */
static void test_longest(const struct spw_cpu_kernels *table)
{
    /* 40 splits are more than a warp merges at a time, too */
    enum { D = 64, HEADS = 2, TILES = 7, MOST = RUN_UNDER_ASAN ? 160 : SPW_ATTENTION_TILES };
    const size_t bytes = spw_tile_bytes(1, spw_tile_square(D), SPW_DTYPE_BF16);
    float state[2][HEADS * (D + 2)], *splits = poisoned(MOST / SPW_SPLIT_TILES * sizeof state[0]);
    uint16_t q[HEADS * D], *tiles[TILES];
    struct spw_attention_args a = {.q = q,
                                   .split_states = splits,
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
            each_run(way ? table->attention : table->attention_merge, &a, EACH_FORWARD);
        }
    }
    CHECK(!memcmp(state[0], state[1], sizeof state[0]));
    CHECK(state[0][D + 1] > 1 && isfinite(state[0][0])); /* a sum of exponentials */
    for (size_t t = 0; t < TILES; t++)
        free(tiles[t]);
    free(splits);
}

/* The sink exact, then quantized tiles, then exact ones: every head size of the tensor-core
 * kernels, and what others take, in every format; one query, and as many as make a prompt. */
static void test_formats(const struct spw_cpu_kernels *table)
{
    static const uint32_t dims[] = {64, 80, 96, 128, 256, 6, 128};
    for (size_t i = 0; i < 7 * SPW_QFORMAT_EXACT; i++) {
        if (RUN_UNDER_ASAN && !check_full() && draw(0, 1)) /* half of them in each run */
            continue;
        enum spw_dtype type = i / SPW_QFORMAT_EXACT < 6 ? SPW_DTYPE_BF16 : SPW_DTYPE_F32;
        uint32_t d = dims[i / SPW_QFORMAT_EXACT];
        each_set_gpu(rng, i % 2 ? 86 : 0);
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
        check_problem(table, &p);
        problem_free(&p);
    }
}

static void test_gpu(const struct spw_cpu_kernels *table)
{
    /* Before sm_80 there is no tensor core for bf16. */
    each_set_gpu(rng, 75);
    test_infinity(table, 64, 8, SPW_DTYPE_BF16);
    struct problem p = problem_draw(true);
    check_problem(table, &p);
    problem_free(&p);
    each_set_gpu(rng, 0);
    test_decode_in_prefill(table, false);
    test_decode_in_prefill(table, true);
    test_formats(table);
    test_longest(table);
}

int main(int argc, char **argv)
{
    if (!each_is_there())
        return CHECK_SKIP;
    rng = check_seed();
    each_set_gpu(rng, 0);
    struct check_draws draws = check_draws_of(argc, argv, each_draws(DRAWS, 12));
    while (EACH_GPU ? draws.done++ < draws.most : check_another(&draws)) {
        struct problem p = problem_draw(EACH_GPU && draws.done % 3);
        EACH_TABLE(table)
        {
            check_problem(table, &p);
            check_not_a_number(table, &p);
        }
        if (!EACH_GPU)
            check_same_name(&p);
        problem_free(&p);
    }
    EACH_TABLE(table)
    {
        test_infinity(table, 16, 8, SPW_DTYPE_BF16);
        test_infinity(table, 64, 8, SPW_DTYPE_BF16);
        test_infinity(table, 80, 40, SPW_DTYPE_BF16);
        test_infinity(table, 10, 8, SPW_DTYPE_BF16);
        test_infinity(table, 10, 40, SPW_DTYPE_F32);
        for (int quantized = 0; quantized < 2; quantized++) {
            test_unseen(table, SPW_DTYPE_BF16, 1, quantized);
            test_unseen(table, SPW_DTYPE_BF16, 40, quantized);
            test_unseen(table, SPW_DTYPE_F32, 40, quantized);
        }
        if (EACH_GPU)
            test_gpu(table);
    }
    return check_done();
}
