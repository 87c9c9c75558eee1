/* A problem for the attention kernels of any backend: queries; the keys and values of every
 * position in tiles, of which a run may be quantized; the division into calls; and the expected
 * result (attention_reference.h, from the decoded values of quantized tiles). Values that no row
 * may see are NaN.
 *
 * The including file fills the tiles and sets `rng`. */
#ifndef SPW_TESTS_UNIT_KERNELS_ATTENTION_PROBLEM_H
#define SPW_TESTS_UNIT_KERNELS_ATTENTION_PROBLEM_H

#include <malloc.h>

#include "quant/codec.h"
#include "quant/types.h"
#include "tests/unit/kernels/attention_reference.h"
#include "tests/unit/kernels/codec_reference.h"
#include "tests/unit/kernels/ops_each.h"

enum { PROBLEM_TILES = 19, PROBLEM_DIM = 512, PROBLEM_HEADS = 70 };

static uint64_t rng;

static inline size_t draw(size_t low, size_t high)
{
    return (size_t)check_range(&rng, low, high);
}

/* Allocates exactly this many bytes, aligned for every instruction set; the byte 0xff is a NaN in
 * every type. */
static inline void *poisoned(size_t bytes)
{
    void *p = memalign(64, bytes ? bytes : 1);
    if (!p)
        exit(1);
    return memset(p, 0xff, bytes);
}

/* q rows at `position`, and K, V of all positions up to the last row's. */
struct problem {
    struct spw_attention_args a; /* without state, tiles and the division into calls */
    size_t n_tokens;
    void *q;
    float *k, *v; /* [n_tokens][n_kv_heads][head_dim], values the tile's type holds */
    char *tiles[PROBLEM_TILES];
    uint64_t quantized_first, quantized_end; /* tiles that all rows see whole, if at all */
    float extra_logits[PROBLEM_HEADS];
    float *relative_bias; /* NULL, or that of `a` */
};

static inline void problem_free(struct problem *p)
{
    for (int i = 0; i < PROBLEM_TILES; i++)
        free(p->tiles[i]);
    free(p->q), free(p->k), free(p->v), free(p->relative_bias);
}

/* Often queries see no key before a position, or the same keys all, and distances have numbers. */
static inline void problem_draw_source(struct problem *p, bool has_bias)
{
    struct spw_attention_args *a = &p->a;
    const uint64_t last = p->n_tokens - a->rows;
    if (draw(0, 2) == 0)
        a->first_key = draw(0, (size_t)last);
    else if (!a->window.tokens && draw(0, 1))
        a->seen_end = draw(1, (size_t)last + 1);
    if (!has_bias || a->softcap != 0 || draw(0, 1))
        return;
    a->most_distance = (uint32_t)draw(1, draw(0, 1) ? 20 : 300);
    const size_t n = a->n_heads * (2 * (size_t)a->most_distance + 1);
    a->relative_bias = p->relative_bias = malloc(n * sizeof(float));
    for (size_t i = 0; i < n; i++)
        p->relative_bias[i] = (float)(2 * each_uniform(&rng));
}

static inline size_t problem_state_floats(const struct problem *p)
{
    return p->a.rows * p->a.n_heads * (p->a.head_dim + 2);
}

static inline size_t problem_y_stride(const struct problem *p)
{
    return p->a.y_stride ? p->a.y_stride : (size_t)p->a.n_heads * p->a.head_dim;
}

static inline size_t problem_y_bytes(const struct problem *p)
{
    return p->a.rows * problem_y_stride(p) * spw_dtype_bytes(p->a.dtype);
}

/* Where y has the i-th number of all items. */
static inline size_t problem_y_at(const struct problem *p, size_t i)
{
    size_t width = (size_t)p->a.n_heads * p->a.head_dim;
    return i / width * problem_y_stride(p) + i % width;
}

/* The stride of y: often the least. */
static inline void problem_draw_y_stride(struct problem *p)
{
    p->a.y_stride = draw(0, 1) ? 0 : (size_t)p->a.n_heads * p->a.head_dim + 2 * draw(0, 3);
}

/* Valid until the next call. */
static inline const char *problem_text(const struct problem *p)
{
    static char text[256];
    const struct spw_attention_args *a = &p->a;
    snprintf(
        text, sizeof text,
        "rows %zu at %llu heads %u/%u dim %u window %llu keys [%llu, %llu) softcap %g types %s "
        "%s, tiles [%llu, %llu) in format %d",
        a->rows, (unsigned long long)a->position, a->n_heads, a->n_kv_heads, a->head_dim,
        (unsigned long long)a->window.tokens, (unsigned long long)a->first_key,
        (unsigned long long)a->seen_end, (double)a->softcap, spw_dtype_name(a->dtype),
        spw_dtype_name(a->kv_dtype), (unsigned long long)p->quantized_first,
        (unsigned long long)p->quantized_end, (int)a->qformat);
    return text;
}

/* Quantizes tile t; its keys and values become the decoded ones. */
static inline void problem_quantize(struct problem *p, uint64_t t)
{
    const struct spw_attention_args *a = &p->a;
    uint32_t d = a->head_dim, not_finite = 0;
    size_t n = (size_t)SPW_TILE_TOKENS * d;
    char *qtile = poisoned(spw_qtile_bytes(a->n_kv_heads, spw_tile_square(d), a->qformat));
    float *stands_for = malloc(spw_tile_bytes(a->n_kv_heads, spw_tile_square(d), SPW_DTYPE_F32));
    struct spw_codec_args args = {p->tiles[t], qtile,      a->n_kv_heads, spw_tile_square(d),
                                  a->kv_dtype, a->qformat, &not_finite};
    each_run(&spw_codec_encode_kernel_portable, &args, EACH_FORWARD);
    CHECK(!not_finite);
    codec_decode(qtile, a->qformat, a->n_kv_heads, spw_tile_square(d), SPW_DTYPE_F32, stands_for);
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

/* Quantizes a run of the tiles that are older than all rows: often from the second tile on, often
 * all. */
static inline void problem_quantize_some(struct problem *p)
{
    uint64_t whole = p->a.position / SPW_TILE_TOKENS;
    if (whole == 0)
        return;
    p->a.qformat = (enum spw_qformat)draw(0, SPW_QFORMAT_EXACT - 1);
    p->quantized_first = draw(0, 1) ? whole > 1 : draw(0, (size_t)whole - 1);
    p->quantized_end = draw(0, 1) ? whole : draw((size_t)p->quantized_first, (size_t)whole);
    for (uint64_t t = p->quantized_first; t < p->quantized_end; t++)
        problem_quantize(p, t);
}

/* ---- ways to run it ---- */

struct way {
    size_t rows;   /* in a call */
    size_t splits; /* in a call */
    bool split_states;
    const struct spw_cpu_kernels *table;
    enum each_order order;
    char *y; /* of all rows, from their last calls; or NULL */
};

/* The including file defines this: it runs one call. */
static void run_call(const struct spw_attention_args *call, struct way way);

static inline bool problem_seen(const struct problem *p, const struct spw_attention_args *call,
                                uint64_t tile)
{
    uint64_t first = call->position + 1, last = call->position + call->rows;
    uint64_t start = spw_window_first(call->window, first - 1);
    last = call->seen_end ? call->seen_end : last;
    start = start > call->first_key ? start : call->first_key;
    return tile * SPW_TILE_TOKENS < last && (tile + 1) * SPW_TILE_TOKENS > start &&
           tile * SPW_TILE_TOKENS < p->n_tokens;
}

/* States of all rows, computed the given way; a canary row follows. */
static inline float *problem_run(const struct problem *p, struct way way)
{
    size_t n = problem_state_floats(p), per_row = n / p->a.rows;
    float *state = poisoned((n + per_row) * sizeof(float));
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
            if (way.y && t + call.n_tiles == tiles)
                call.y = way.y + problem_y_bytes(p) / p->a.rows * row;
            call.quantized_first = (uint32_t)spw_sub_u64(p->quantized_first, t);
            call.quantized_end = (uint32_t)spw_sub_u64(p->quantized_end, t);
            for (uint32_t i = 0; i < call.n_tiles; i++)
                call.tiles[i] = problem_seen(p, &call, t + i) ? p->tiles[t + i] : NULL;
            run_call(&call, way);
            call.first = false;
        }
    }
    uint32_t canary = each_float_bits(state[n + per_row - 1]);
    CHECK(canary == 0xffffffffu && each_float_bits(state[n]) == 0xffffffffu);
    return state;
}

/* Checks that another way gives the same bits. */
static inline void problem_check_way(const struct problem *p, const float *state, struct way way)
{
    float *other = problem_run(p, way);
    CHECK_MSG(!memcmp(state, other, problem_state_floats(p) * sizeof(float)),
              "%s %s: %zu rows, %zu splits a call, split_states %d, order %d", each_name(way.table),
              problem_text(p), way.rows, way.splits, way.split_states, (int)way.order);
    free(other);
}

/* The same with an extra logit for each head. The maximum of a GPU's state is an exponent of 2. Cut
 * another way, the calls give the same bits. */
static inline void problem_check_extra(const struct problem *p, const float *state, struct way way)
{
    struct problem with = *p;
    const uint32_t d = p->a.head_dim;
    size_t n_wrong = 0;
    for (uint32_t head = 0; head < p->a.n_heads; head++)
        with.extra_logits[head] = (float)(6 * each_uniform(&rng));
    with.a.extra_logits = with.extra_logits;
    way.y = poisoned(problem_y_bytes(p));
    free(problem_run(&with, way));
    for (size_t i = 0; i < p->a.rows * p->a.n_heads * d; i++) {
        const float *item = state + i / d * (d + 2);
        double top = (double)item[d] * (EACH_GPU ? log(2) : 1);
        double extra = exp((double)with.extra_logits[i / d % p->a.n_heads] - top);
        double want = (double)item[i % d] / ((double)item[d + 1] + extra);
        double slack = 1e-5 * fabs(want) + 1e-30 + each_ulp(want, p->a.dtype);
        n_wrong += !(fabs(each_load(way.y, problem_y_at(p, i), p->a.dtype) - want) <= slack);
    }
    struct way whole = {.rows = p->a.rows, .splits = 8, .table = way.table};
    whole.y = poisoned(problem_y_bytes(p));
    free(problem_run(&with, whole));
    CHECK_MSG(!n_wrong && !memcmp(way.y, whole.y, problem_y_bytes(p)),
              "%s %s: extra logits: %zu of %zu values wrong", each_name(way.table), problem_text(p),
              n_wrong, p->a.rows * p->a.n_heads * d);
    free(way.y), free(whole.y);
}

/* The result of the last calls is out / sum of the states of calls without a result. */
static inline void problem_check_result(const struct problem *p, const float *state, struct way way)
{
    problem_check_extra(p, state, way);
    uint32_t d = p->a.head_dim;
    char *want = poisoned(problem_y_bytes(p));
    for (size_t i = 0; i < p->a.rows * p->a.n_heads * d; i++) {
        const float *item = state + i / d * (d + 2);
        each_store(want, problem_y_at(p, i), p->a.dtype, (double)(item[i % d] / item[d + 1]));
    }
    way.y = poisoned(problem_y_bytes(p));
    free(problem_run(p, way));
    CHECK_MSG(!memcmp(way.y, want, problem_y_bytes(p)),
              "%s %s: result of %zu rows, %zu splits a call, split_states %d", each_name(way.table),
              problem_text(p), way.rows, way.splits, way.split_states);
    free(way.y), free(want);
}

/* ---- the expected result ---- */

/* Checks one row and head: the error is within `slack` of the magnitude that rounding errors are
 * relative to. */
static inline bool problem_row_matches(const struct problem *p, size_t i, const double *expected,
                                       const double *size, const float *got, double slack)
{
    double sum = (double)got[p->a.head_dim + 1];
    for (size_t c = 0; c < p->a.head_dim; c++) {
        double y = (double)got[c] / sum;
        if (!(fabs(y - expected[c]) <= slack * size[c])) {
            fprintf(stderr, "row %zu head %zu channel %zu: got %.9g, expected %.9g\n",
                    i / p->a.n_heads, i % p->a.n_heads, c, y, expected[c]);
            return false;
        }
    }
    return true;
}

/* What a row may be off by, of the magnitude that rounding errors are relative to.
 *
 * f32: scores are chains of d products of at most 4 (relative 2^-24 each), so a p is off by up to
 * d 2^-24 * 4 d scale, in practice its square root. Rounded to bf16, a p is off by 2^-8 of it. A
 * GPU that does that also rounds q where tiles are quantized; as much again in practice. */
static inline double problem_slack(const struct problem *p, bool rounds_p)
{
    const bool rounds_q = EACH_GPU && rounds_p && p->quantized_end > p->quantized_first;
    return (rounds_p ? 0x1p-8 : 0) + (rounds_q ? 0x1p-8 : 0) + 2e-5;
}

/* All rows of small problems, some of large ones. */
static inline bool problem_matches(const struct problem *p, const float *state, bool rounds_p)
{
    const struct spw_attention_args *a = &p->a;
    struct spw_attention_args host = *a;
    double out[PROBLEM_DIM], size[PROBLEM_DIM];
    host.q = p->q;
    for (size_t i = 0; i < a->rows * a->n_heads; i++) {
        if (a->rows > 4 && i % 7 != 0 && i + 3 < a->rows * a->n_heads)
            continue;
        attention_reference(&host, p->k, p->v, i / a->n_heads, i % a->n_heads, out, size);
        if (!problem_row_matches(p, i, out, size, state + i * (a->head_dim + 2),
                                 problem_slack(p, rounds_p)))
            return false;
    }
    return true;
}

#endif
