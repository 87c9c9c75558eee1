/* The two inner products of attention on a quantized tile (quant/qtile.h), on its codes.
 *
 *   score   scale * (turned q . mean + for each 64 channels: step * (turned q . codes))
 *   value   turned out += (p * step) . codes, position by position
 *
 * q is rotated once for all tiles. The sum of a split's quantized tiles is rotated back once,
 * before it joins the sum of the split's exact tiles. Each sum has one order, whichever items share
 * the loads. The inner loops are f32 arithmetic (codes_f32.h), in which a code is exact. Where the
 * processor multiplies bytes and activations and tiles are bf16, they are integer arithmetic
 * (codes_vnni.h).
 *
 * The first items of every batch prefetch: V is walked by channels, across its lines. */
#include "model/cpu/vec_codes.h"
#include "quant/hadamard.h"

/* Not inlined: the loops over exact tiles keep their registers. */
#define CODES_FN static __attribute__((noinline))

CODES_FN bool fetch_next_run(struct batch *b)
{
    return fetch_next_piece(b);
}

/* fetch_lines for the loops over codes. Here a rare call costs less than more inlined code. */
SIMD_FN void fetch_code_lines(struct batch *b, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++, b->fetcher.at += FETCH_LINE) {
        if (b->fetcher.at == b->fetcher.end && !fetch_next_run(b))
            return;
        __builtin_prefetch(b->fetcher.at, 0, 3);
    }
}

#if defined(__AVX512VNNI__)
#include "model/cpu/attention/attention_codes_vnni.h"
#else
#include "model/cpu/attention/attention_codes_f32.h"
#endif

/* ---- scores ---- */

/* The queries of a batch, rotated. */
CODES_FN void turn_queries(struct batch *b, uint32_t item, size_t from)
{
    const struct spw_attention_args *a = b->a;
    float *q = b->turned + item * b->out_stride;
    for (size_t c = 0; c < a->head_dim; c += VEC_LANES) {
        size_t n = a->head_dim - c < VEC_LANES ? a->head_dim - c : VEC_LANES;
        vec_store(q + c, vec_load_as(a->q, from + c, n, a->dtype));
    }
    spw_hadamard_rotate(q, a->head_dim, spw_hadamard_k_block(a->head_dim));
    split_query(b, item);
}

/* The rotated query times the means: a part of all scores of the tile. Padding is 0. */
static float dot_means(const struct batch *b, uint32_t item, const struct codes *t)
{
    const float *q = b->turned + item * b->out_stride;
    struct vec sum = vec_set1(0);
    for (size_t c = 0; c < b->out_stride; c += VEC_LANES)
        sum = vec_fma(vec_load(q + c), vec_load(t->k_means + c * sizeof(float)), sum);
    return vec_sum(sum);
}

SIMD_FN void score_codes_items(struct batch *b, uint32_t item, size_t at, const struct codes *t,
                               const uint32_t items)
{
    float offsets[GROUP_ITEMS], *scores = b->scores + (size_t)item * SPW_SPLIT_TOKENS + at;
    uint32_t j = at % SPW_TILE_TOKENS, d = b->a->head_dim;
    if (item == 0) /* the means and steps of the next tile, half of them at each half of a tile */
        fetch_code_lines(b, (uint32_t)(spw_qtile_means_bytes(d) + spw_qtile_steps_bytes(d)) /
                                (2 * FETCH_LINE));
    for (uint32_t i = 0; i < items; i++)
        offsets[i] = dot_means(b, item + i, t);
    for (uint32_t k = 0; k < SCORE_SPAN; k += SPW_TILE_BLOCK)
        if (t->k_low)
            score_codes_block(b, item, j + k, t, offsets, scores + k, items, true);
        else
            score_codes_block(b, item, j + k, t, offsets, scores + k, items, false);
}

/* Scores of `items` items for the 64 positions from `at` on, which lie in the quantized tile t. */
CODES_FN void score_codes(struct batch *b, uint32_t item, uint32_t items, size_t at,
                          const struct codes *t)
{
    for (; items >= GROUP_ITEMS; items -= GROUP_ITEMS, item += GROUP_ITEMS)
        score_codes_items(b, item, at, t, GROUP_ITEMS);
    for (; items >= 2; items -= 2, item += 2)
        score_codes_items(b, item, at, t, 2);
    for (; items; items--, item++)
        score_codes_items(b, item, at, t, 1);
}

/* ---- values ---- */

/* p * step of the tile's 128 positions for channels of group g; exact zeros where masked. */
static void weigh_codes(const struct batch *b, uint32_t item, uint32_t tile, uint32_t g,
                        struct weights *weights)
{
    _Alignas(64) float w[SPW_TILE_TOKENS];
    const struct codes *t = &b->codes[tile];
    const float *scores = b->scores + (size_t)item * SPW_SPLIT_TOKENS;
    const char *steps = t->v_steps + (size_t)g * SPW_TILE_TOKENS * sizeof(uint16_t);
    const struct vec none = vec_set1(0), width = vec_set1(t->v_low ? 1.0f : 16.0f);
    for (uint32_t j = 0; j < SPW_TILE_TOKENS; j += SPW_TILE_BLOCK) {
        uint32_t at = tile * SPW_TILE_TOKENS + j, lo = b->lo[item], hi = b->hi[item];
        lo = lesser(greater(lo, at) - at, SPW_TILE_BLOCK);
        hi = lesser(greater(hi, at) - at, SPW_TILE_BLOCK);
        if (lo >= hi) {
            vec_store(w + j, none);
            continue;
        }
        struct vec step = vec_mul(vec_load_bf16(steps + j * sizeof(uint16_t)), width);
        struct vec p = vec_mul(load_weights(scores, at / SPW_TILE_BLOCK), step);
        vec_store(w + j, vec_select_range(lo, hi, p, none));
    }
    split_weights(w, weights);
}

SIMD_FN void value_codes_items(struct batch *b, uint32_t item, uint32_t tile, const uint32_t items)
{
    struct weights w[GROUP_ITEMS];
    const struct codes *t = &b->codes[tile];
    if (item == 0)
        fetch_code_lines(b, (uint32_t)spw_qtile_steps_bytes(b->a->head_dim) / FETCH_LINE);
    for (uint32_t c = 0; c < b->a->head_dim; c += VEC_LANES) {
        if (c % SPW_QTILE_GROUP == 0)
            for (uint32_t i = 0; i < items; i++)
                weigh_codes(b, item + i, tile, c / SPW_QTILE_GROUP, &w[i]);
        if (t->v_low)
            value_codes_run(b, item, t, c, w, items, true);
        else
            value_codes_run(b, item, t, c, w, items, false);
    }
}

/* Adds the quantized tile's weighted values to every item, rotated. */
CODES_FN void value_codes(struct batch *b, uint32_t tile)
{
    uint32_t item = 0, left = b->n_items;
    for (; left >= GROUP_ITEMS; left -= GROUP_ITEMS, item += GROUP_ITEMS)
        value_codes_items(b, item, tile, GROUP_ITEMS);
    for (; left >= 2; left -= 2, item += 2)
        value_codes_items(b, item, tile, 2);
    for (; left; left--, item++)
        value_codes_items(b, item, tile, 1);
}

static bool sees_codes(const struct batch *b, uint32_t item)
{
    bool any = false;
    for (uint32_t tile = 0; tile < SPW_SPLIT_TILES; tile++)
        any |= b->coded[tile] && b->lo[item] < (tile + 1) * SPW_TILE_TOKENS &&
               b->hi[item] > tile * SPW_TILE_TOKENS;
    return any;
}

/* Rotates the split's quantized part back and adds it to the exact part, for items that see a
 * quantized tile. Other items of the batch keep even the sign of a zero. */
CODES_FN void turn_back(struct batch *b)
{
    uint32_t d = b->a->head_dim;
    for (uint32_t i = 0; i < b->n_items; i++) {
        if (!sees_codes(b, i))
            continue;
        float *from = b->out_turned + i * b->out_stride, *to = b->out + i * b->out_stride;
        spw_hadamard_rotate(from, d, spw_hadamard_v_block(d));
        for (uint32_t c = 0; c < d; c++)
            to[c] += from[c];
    }
}
