/* Attention of every CPU table against an f64 reference that knows nothing of tiles (where one is
 * quantized: of what it stands for), and the invariances by memcmp: however rows and tiles are cut
 * into calls, in whatever task order, with `attention` or `attention_splits` + `attention_merge`.
 * What no row may see is NaN in every tile.
 */
#include "quant/codec.h"
#include "tests/attention_reference.h"
#include "tests/ops_cpu_each.h"

enum { MAX_TOKENS = 2400, MAX_TILES = MAX_TOKENS / SPW_TILE_TOKENS + 1, DRAWS = 30 };

static uint64_t rng;

static size_t draw(size_t low, size_t high)
{
    return (size_t)check_range(&rng, low, high);
}

/* A problem: q rows at `position`, and K, V of all positions up to the last row's. */
struct problem {
    struct spw_attention_args a; /* but for state, tiles and cuts */
    size_t n_tokens;
    void *q;
    float *k, *v; /* [n_tokens][n_kv_heads][head_dim], values the tile's type holds */
    char *tiles[MAX_TILES];
    uint64_t quantized_first, quantized_end; /* tiles that all rows see whole, if at all */
};

/* The byte 0xff makes a NaN of every type. */
static char *poisoned(size_t bytes)
{
    return memset(aligned_alloc(64, (bytes + 63) / 64 * 64), 0xff, bytes);
}

static void fill_tiles(struct problem *p)
{
    const struct spw_attention_args *a = &p->a;
    uint32_t d = a->head_dim;
    size_t head_bytes = spw_tile_head_bytes(d, a->kv_dtype);
    for (size_t t = 0; t * SPW_TILE_TOKENS < p->n_tokens; t++)
        p->tiles[t] = poisoned(spw_tile_bytes(a->n_kv_heads, d, a->kv_dtype));
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

/* Tile t from now on is quantized, and its keys and values are what it stands for. */
static void quantize(struct problem *p, uint64_t t)
{
    const struct spw_attention_args *a = &p->a;
    uint32_t d = a->head_dim, not_finite = 0;
    size_t n = (size_t)SPW_TILE_TOKENS * d;
    char *qtile = poisoned(spw_qtile_bytes(a->n_kv_heads, d, a->qformat));
    float *stands_for = malloc(spw_tile_bytes(a->n_kv_heads, d, SPW_DTYPE_F32));
    struct spw_codec_args args = {p->tiles[t], qtile,      a->n_kv_heads, d,
                                  a->kv_dtype, a->qformat, &not_finite};
    each_run(&spw_codec_encode_kernel_portable, &args, EACH_FORWARD);
    CHECK(!not_finite);
    spw_codec_decode(qtile, a->qformat, a->n_kv_heads, d, SPW_DTYPE_F32, stands_for);
    for (size_t i = 0; i < n * a->n_kv_heads; i++) {
        uint32_t c = (uint32_t)(i % d), head = (uint32_t)(i / d % a->n_kv_heads);
        uint32_t j = (uint32_t)(i / d / a->n_kv_heads);
        const float *k = stands_for + head * n, *v = k + a->n_kv_heads * n;
        p->k[t * n * a->n_kv_heads + i] = k[spw_tile_k_index(d, SPW_DTYPE_F32, j, c)];
        p->v[t * n * a->n_kv_heads + i] = v[spw_tile_v_index(d, SPW_DTYPE_F32, j, c)];
    }
    free(stands_for);
    free(p->tiles[t]);
    p->tiles[t] = qtile;
}

/* In two of three problems a run of the tiles that are older than all rows. */
static void quantize_some(struct problem *p)
{
    uint64_t whole = p->a.position / SPW_TILE_TOKENS;
    if (draw(0, 2) == 0 || whole == 0)
        return;
    p->a.qformat = (enum spw_qformat)draw(0, SPW_QFORMAT_EXACT - 1);
    p->quantized_first = draw(0, 1) ? whole > 1 : draw(0, (size_t)whole - 1);
    p->quantized_end = draw((size_t)p->quantized_first, (size_t)whole);
    for (uint64_t t = p->quantized_first; t < p->quantized_end; t++)
        quantize(p, t);
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
    a->window = draw(0, 1) ? 0 : draw(0, 1) ? draw(1, 130) : draw(100, 1500);
    a->scale = (float)(1 / sqrt(a->head_dim) * (1 + each_uniform(&rng) / 2));
    a->softcap = draw(0, 3) ? 0 : (float)draw(1, 5);
    a->dtype = draw(0, 2) ? SPW_DTYPE_BF16 : SPW_DTYPE_F32;
    a->kv_dtype = types[draw(0, 3)];
    p.q = malloc(a->rows * a->q_stride * 4);
    for (size_t i = 0; i < a->rows * a->q_stride; i++)
        each_store(p.q, i, a->dtype, 2 * each_uniform(&rng));
    p.k = malloc(p.n_tokens * a->n_kv_heads * a->head_dim * sizeof(float));
    p.v = malloc(p.n_tokens * a->n_kv_heads * a->head_dim * sizeof(float));
    a->q = p.q;
    fill_tiles(&p);
    quantize_some(&p);
    return p;
}

static void problem_free(struct problem *p)
{
    for (int i = 0; i < MAX_TILES; i++)
        free(p->tiles[i]);
    free(p->q), free(p->k), free(p->v);
}

static size_t state_floats(const struct problem *p)
{
    return p->a.rows * p->a.n_heads * (p->a.head_dim + 2);
}

/* ---- the reference ---- */

/* f32: scores are chains of d products of at most 4 (relative 2^-24 each), so a p is off by up to
 * d 2^-24 * 4 d scale, in practice its square root; rounding a p to bf16 adds 2^-8 of itself. */
static bool matches(const struct problem *p, const float *state, bool rounds_p)
{
    const struct spw_attention_args *a = &p->a;
    struct spw_attention_args host = *a;
    double out[512], size[512];
    double slack = (rounds_p ? 0x1p-8 : 0) + 2e-5;
    host.q = p->q;
    for (size_t i = 0; i < a->rows * a->n_heads; i++) {
        /* all rows of small problems, some of large ones */
        if (a->rows > 4 && i % 7 != 0 && i + 3 < a->rows * a->n_heads)
            continue;
        const float *got = state + i * (a->head_dim + 2);
        attention_reference(&host, p->k, p->v, i / a->n_heads, i % a->n_heads, out, size);
        for (size_t c = 0; c < a->head_dim; c++) {
            double y = (double)(got[c] / got[a->head_dim + 1]);
            if (!(fabs(y - out[c]) <= slack * size[c])) {
                fprintf(stderr, "row %zu head %zu channel %zu: got %.9g, expected %.9g\n",
                        i / a->n_heads, i % a->n_heads, c, y, out[c]);
                return false;
            }
        }
    }
    return true;
}

/* ---- ways to run a problem ---- */

struct way {
    size_t rows;   /* in a call */
    size_t splits; /* in a call */
    bool partials; /* attention_splits + attention_merge */
    enum each_order order;
};

static bool seen(const struct problem *p, const struct spw_attention_args *call, uint64_t tile)
{
    uint64_t first = call->position + 1, last = call->position + call->rows;
    uint64_t start = call->window ? spw_sub_u64(first, call->window) : 0;
    return tile * SPW_TILE_TOKENS < last && (tile + 1) * SPW_TILE_TOKENS > start &&
           tile * SPW_TILE_TOKENS < p->n_tokens;
}

static void run_call(const struct spw_cpu_kernels *table, const struct spw_attention_args *call,
                     struct way way)
{
    if (!way.partials) {
        each_run(table->attention, call, way.order);
        return;
    }
    size_t bytes = 8 * call->rows * call->n_heads * (call->head_dim + 2) * sizeof(float);
    struct spw_attention_args a = *call;
    a.partials = (float *)poisoned(bytes);
    each_run(table->attention_splits, &a, way.order);
    each_run(table->attention_merge, &a, way.order);
    free(a.partials);
}

/* States of all rows, computed the given way; a canary row follows. */
static float *run(const struct spw_cpu_kernels *table, const struct problem *p, struct way way)
{
    size_t n = state_floats(p), per_row = n / p->a.rows;
    float *state = (float *)poisoned((n + per_row) * sizeof(float));
    for (size_t row = 0; row < p->a.rows; row += way.rows) {
        struct spw_attention_args call = p->a;
        call.rows = p->a.rows - row < way.rows ? p->a.rows - row : way.rows;
        call.position += row;
        call.q = (const char *)p->q + row * p->a.q_stride * spw_dtype_bytes(p->a.dtype);
        call.state = state + row * per_row;
        call.first = true;
        size_t tiles = (size_t)spw_div_up(call.position + call.rows, SPW_TILE_TOKENS);
        for (size_t t = 0; t < tiles; t += way.splits * SPW_SPLIT_TILES) {
            call.tile_first = t;
            call.n_tiles = (uint32_t)spw_min_u64(way.splits * SPW_SPLIT_TILES, tiles - t);
            call.quantized_first = (uint32_t)spw_sub_u64(p->quantized_first, t);
            call.quantized_end = (uint32_t)spw_sub_u64(p->quantized_end, t);
            for (uint32_t i = 0; i < call.n_tiles; i++)
                call.tiles[i] = seen(p, &call, t + i) ? p->tiles[t + i] : NULL;
            run_call(table, &call, way);
            call.first = false;
        }
    }
    uint32_t canary = each_float_bits(state[n + per_row - 1]);
    CHECK(canary == 0xffffffffu && each_float_bits(state[n]) == 0xffffffffu);
    return state;
}

static void check_problem(const struct spw_cpu_kernels *table, const struct problem *p)
{
    const struct spw_attention_args *a = &p->a;
    bool rounds_p = table->isa >= SPW_ISA_AVX512BF16 && a->dtype == SPW_DTYPE_BF16 &&
                    a->kv_dtype == SPW_DTYPE_BF16;
    struct way plain = {.rows = a->rows, .splits = 8};
    float *state = run(table, p, plain);
    CHECK_MSG(matches(p, state, rounds_p),
              "%s rows %zu at %llu heads %u/%u dim %u window %llu softcap %g types %s %s, tiles "
              "[%llu, %llu) in format %d",
              spw_isa_name(table->isa), a->rows, (unsigned long long)a->position, a->n_heads,
              a->n_kv_heads, a->head_dim, (unsigned long long)a->window, (double)a->softcap,
              spw_dtype_name(a->dtype), spw_dtype_name(a->kv_dtype),
              (unsigned long long)p->quantized_first, (unsigned long long)p->quantized_end,
              (int)a->qformat);
    for (int i = 0; i < 4; i++) {
        struct way way = {.rows = i == 0 ? 1 : draw(1, a->rows),
                          .splits = draw(1, 5),
                          .partials = i % 2,
                          .order = draw(0, 1) ? EACH_FORWARD : EACH_BACKWARD};
        float *other = run(table, p, way);
        CHECK_MSG(!memcmp(state, other, state_floats(p) * sizeof(float)),
                  "%s rows %zu at %llu heads %u/%u dim %u window %llu types %s %s: "
                  "%zu rows, %zu splits a call, partials %d, order %d",
                  spw_isa_name(table->isa), a->rows, (unsigned long long)a->position, a->n_heads,
                  a->n_kv_heads, a->head_dim, (unsigned long long)a->window,
                  spw_dtype_name(a->dtype), spw_dtype_name(a->kv_dtype), way.rows, way.splits,
                  way.partials, (int)way.order);
        free(other);
    }
    free(state);
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
                                      .window = 5,
                                      .scale = 0.25f,
                                      .dtype = SPW_DTYPE_BF16,
                                      .kv_dtype = SPW_DTYPE_BF16};
    p.k = calloc(70 * 16, sizeof(float)), p.v = calloc(70 * 16, sizeof(float));
    p.a.q = p.q = calloc(8 * 32, 2);
    fill_tiles(&p);
    char *v = p.tiles[0] + spw_tile_head_bytes(16, SPW_DTYPE_BF16);
    each_store(v, spw_tile_v_index(16, SPW_DTYPE_BF16, 63, 3), SPW_DTYPE_BF16, INFINITY);
    float *state = run(table, &p, (struct way){.rows = 8, .splits = 1});
    for (int i = 0; i < 16; i++) {
        int query = 62 + i / 2;
        CHECK(isfinite(state[i * 18 + 3]) == (query < 63 || query >= 63 + 5));
    }
    free(state);
    problem_free(&p);
}

/* A call that no row sees anything in leaves a state alone, or makes a fresh one empty. */
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
                                       .window = 100,
                                       .scale = 1,
                                       .first = way >= 2,
                                       .dtype = SPW_DTYPE_F32,
                                       .kv_dtype = SPW_DTYPE_BF16};
        for (int i = 0; i < 34; i++)
            state[i] = 7;
        run_call(table, &a, (struct way){.partials = way % 2});
        CHECK(state[33] == (a.first ? 0.0f : 7.0f) && state[0] == state[33]);
        CHECK(a.first ? state[32] == -INFINITY : state[32] == 7);
    }
}

int main(void)
{
    rng = check_seed();
    for (int i = 0; i < DRAWS; i++) {
        struct problem p = problem_draw();
        EACH_TABLE(table)
        check_problem(table, &p);
        problem_free(&p);
    }
    EACH_TABLE(table)
    {
        test_infinity(table);
        test_unseen(table);
    }
    return check_done();
}
