/* Attention of every CPU table against an f64 reference without tiles (with the decoded values of
 * quantized tiles), and the invariances by memcmp: any division of rows and tiles into calls, any
 * order of tasks, `attention` or `attention_splits` + `attention_merge`. Values that no row may see
 * are NaN in every tile. */
#include "tests/unit/kernels/attention_problem.h"

enum { MAX_TOKENS = 2400, DRAWS = RUN_UNDER_ASAN ? 8 : 30 };

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

static struct problem problem_draw(void)
{
    static const uint32_t dims[] = {2, 6, 10, 16, 32, 48, 64, 64, 80, 96, 128, 256, 288};
    static const uint32_t groups[] = {1, 1, 2, 3, 4, 4, 5, 7, 8, 35};
    static const enum spw_dtype types[] = {SPW_DTYPE_BF16, SPW_DTYPE_F32, SPW_DTYPE_F16,
                                           SPW_DTYPE_BF16};
    struct problem p = {0};
    struct spw_attention_args *a = &p.a;
    a->head_dim = dims[draw(0, 12)];
    uint32_t group = groups[draw(0, a->head_dim > 96 ? 6 : 9)];
    a->n_kv_heads = (uint32_t)draw(1, 2);
    a->n_heads = a->n_kv_heads * group;
    a->rows = draw(0, 2) ? draw(1, group > 8 ? 3 : 40) : 1;
    p.n_tokens = a->rows + (draw(0, 2) ? draw(0, 700) : draw(0, MAX_TOKENS - 100));
    a->position = p.n_tokens - a->rows;
    a->q_stride = (size_t)a->n_heads * a->head_dim + draw(0, 3);
    a->window.tokens = (uint32_t)(draw(0, 1) ? 0 : draw(0, 1) ? draw(1, 130) : draw(100, 1500));
    a->window.step = draw(0, 1) ? 1 : a->window.tokens;
    a->scale = (float)(1 / sqrt(a->head_dim) * (1 + each_uniform(&rng) / 2));
    a->softcap = draw(0, 3) ? 0 : (float)draw(1, 5);
    problem_draw_y_stride(&p);
    a->dtype = draw(0, 2) ? SPW_DTYPE_BF16 : SPW_DTYPE_F32;
    a->kv_dtype = types[draw(0, 3)];
    p.q = malloc(a->rows * a->q_stride * 4);
    for (size_t i = 0; i < a->rows * a->q_stride; i++)
        each_store(p.q, i, a->dtype, 2 * each_uniform(&rng));
    p.k = malloc(p.n_tokens * a->n_kv_heads * a->head_dim * sizeof(float));
    p.v = malloc(p.n_tokens * a->n_kv_heads * a->head_dim * sizeof(float));
    a->q = p.q;
    fill_tiles(&p);
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

static void check_problem(const struct spw_cpu_kernels *table, const struct problem *p)
{
    const struct spw_attention_args *a = &p->a;
    bool rounds_p = table->isa >= SPW_ISA_AVX512BF16 && a->dtype == SPW_DTYPE_BF16 &&
                    a->kv_dtype == SPW_DTYPE_BF16;
    float *state = problem_run(p, (struct way){.rows = a->rows, .splits = 8, .table = table});
    CHECK_MSG(problem_matches(p, state, rounds_p), "%s %s", spw_isa_name(table->isa),
              problem_text(p));
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
        EACH_TABLE(table)
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
static void test_infinity(const struct spw_cpu_kernels *table)
{
    struct problem p = {.n_tokens = 70};
    p.a = (struct spw_attention_args){.rows = 8,
                                      .q_stride = 32,
                                      .position = 62,
                                      .n_heads = 2,
                                      .n_kv_heads = 1,
                                      .head_dim = 16,
                                      .window = {5, 1},
                                      .scale = 0.25f,
                                      .dtype = SPW_DTYPE_BF16,
                                      .kv_dtype = SPW_DTYPE_BF16};
    p.k = calloc(70 * 16, sizeof(float)), p.v = calloc(70 * 16, sizeof(float));
    p.a.q = p.q = calloc(8 * 32, 2);
    fill_tiles(&p);
    char *v = p.tiles[0] + spw_tile_head_bytes(16, SPW_DTYPE_BF16);
    each_store(v, spw_tile_v_index(16, SPW_DTYPE_BF16, 63, 3), SPW_DTYPE_BF16, INFINITY);
    float *state = problem_run(&p, (struct way){.rows = 8, .splits = 1, .table = table});
    for (int i = 0; i < 16; i++) {
        int query = 62 + i / 2;
        CHECK(isfinite(state[i * 18 + 3]) == (query < 63 || query >= 63 + 5));
    }
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
                  "%s %s: item %zu, the one of NaN is %zu, %zu numbers", spw_isa_name(table->isa),
                  problem_text(p), i, item, n_numbers);
    }
    free(sound), free(state);
}

/* A call in which no row sees a key does not change a state; a fresh state becomes empty. */
static void test_unseen(const struct spw_cpu_kernels *table)
{
    float q[64] = {0}, state[34];
    for (int way = 0; way < 4; way++) {
        struct spw_attention_args a = {.q = q,
                                       .state = state,
                                       .rows = 1,
                                       .q_stride = 32,
                                       .position = 1000,
                                       .n_tiles = 4,
                                       .n_heads = 1,
                                       .n_kv_heads = 1,
                                       .head_dim = 32,
                                       .window = {100, 1},
                                       .scale = 1,
                                       .first = way >= 2,
                                       .dtype = SPW_DTYPE_F32,
                                       .kv_dtype = SPW_DTYPE_BF16};
        for (int i = 0; i < 34; i++)
            state[i] = 7;
        run_call(&a, (struct way){.split_states = way % 2, .table = table});
        CHECK(state[33] == (a.first ? 0.0f : 7.0f) && state[0] == state[33]);
        CHECK(a.first ? state[32] == -INFINITY : state[32] == 7);
    }
}

int main(int argc, char **argv)
{
    rng = check_seed();
    struct check_draws draws = check_draws_of(argc, argv, DRAWS);
    while (check_another(&draws)) {
        struct problem p = problem_draw();
        EACH_TABLE(table)
        {
            check_problem(table, &p);
            check_not_a_number(table, &p);
        }
        check_same_name(&p);
        problem_free(&p);
    }
    EACH_TABLE(table)
    {
        test_infinity(table);
        test_unseen(table);
    }
    return check_done();
}
