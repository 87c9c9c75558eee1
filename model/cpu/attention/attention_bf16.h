/* The two inner products of attention with dot products of bf16 (vdpbf16ps), for bf16 queries over
 * bf16 tiles.
 *
 * A vdpbf16ps adds two products to each of 16 f32 lanes: two channels of 16 positions as a K block
 * lies, and two positions of 16 channels as V lies. Four items by four vectors keep 16 chains in
 * flight, which hides the instruction's latency, and make 8 loads serve 16 of them. p is rounded to
 * bf16, after its sum was taken. */
#include "model/cpu/attention/attention_batch.h"

enum { STRIP_VECTORS = 4 };

/* Each sum of a few items. Not unrolled, gcc 12 keeps the sums in memory before and after the loop
 * over channels or positions: 5 % of a prompt's attention. */
#define EACH_SUM(vectors)                                                                          \
    _Pragma("GCC unroll 4") for (uint32_t i = 0; i < items; i++)                                   \
        _Pragma("GCC unroll 4") for (uint32_t c = 0; c < (vectors); c++)

static void load_query(const struct batch *b, uint32_t item, size_t from)
{
    size_t bytes = b->a->head_dim * sizeof(uint16_t);
    memcpy((char *)b->q + item * bytes, (const uint16_t *)b->a->q + from, bytes);
}

/* Rounds p to bf16 and packs it at the front of the item's scores. Scores that are not read yet are
 * after it. */
SIMD_FN void store_weights(float *scores, uint32_t block, struct vec p)
{
    uint16_t *to = (uint16_t *)scores + (size_t)block * SPW_TILE_BLOCK;
    simd_store_bf16_flushed(to, p.v[0]);
}

SIMD_FN struct vec load_weights(const float *scores, uint32_t block)
{
    return vec_load_bf16((const uint16_t *)scores + (size_t)block * SPW_TILE_BLOCK);
}

/* A pair of bf16 values in all sixteen lanes. */
SIMD_FN u32v broadcast_pair(const void *p)
{
    uint32_t pair;
    memcpy(&pair, p, sizeof pair);
    return (u32v){0} + pair;
}

SIMD_FN void score_items(struct batch *b, uint32_t item, size_t at, const char *k,
                         const uint32_t items)
{
    size_t d = b->a->head_dim, row = d * sizeof(uint16_t), block = d * 2 * SPW_TILE_BLOCK;
    const char *q = (const char *)b->q + item * row;
    float *scores = b->scores + (size_t)item * SPW_SPLIT_TOKENS + at;
    const bool ahead = fetches(b, item);
    f32v acc[GROUP_ITEMS][SCORE_BLOCKS];
    EACH_SUM(SCORE_BLOCKS) acc[i][c] = (f32v){0};
    for (size_t pair = 0; pair < d / 2; pair++) {
        u32v keys[SCORE_BLOCKS];
        for (uint32_t j = 0; j < SCORE_BLOCKS; j++)
            keys[j] = (u32v)simd_load(k + j * block + pair * 64);
        if (ahead)
            fetch_lines(b, SCORE_BLOCKS * FETCH_OF_FOUR / 4);
        for (uint32_t i = 0; i < items; i++) {
            u32v x = broadcast_pair(q + i * row + pair * 4);
            for (uint32_t j = 0; j < SCORE_BLOCKS; j++)
                acc[i][j] = simd_dot_bf16(acc[i][j], keys[j], x);
        }
    }
    EACH_SUM(SCORE_BLOCKS)
    simd_store(scores + (size_t)i * SPW_SPLIT_TOKENS + (size_t)c * SPW_TILE_BLOCK,
               acc[i][c] * b->a->scale);
}

/* Scores of `items` items for the 64 positions from `at` on, whose K lies at k. */
static void scores_group(struct batch *b, uint32_t item, uint32_t items, size_t at, const char *k)
{
    if (items == 4)
        score_items(b, item, at, k, 4);
    else if (items == 3)
        score_items(b, item, at, k, 3);
    else if (items == 2)
        score_items(b, item, at, k, 2);
    else
        score_items(b, item, at, k, 1);
}

/* `which`: a mask of the halves of a pair that count, both or one. */
SIMD_FN void value_run(struct batch *b, uint32_t item, const struct strip *s, uint32_t which,
                       const uint32_t items, const uint32_t vectors)
{
    size_t d = b->a->head_dim, n = vectors > 1 ? VEC_LANES : d - s->channel;
    const uint16_t *p = (const uint16_t *)(b->scores + (size_t)item * SPW_SPLIT_TOKENS) +
                        (size_t)s->tile * SPW_TILE_TOKENS;
    float *out = b->out + item * b->out_stride + s->channel;
    const bool ahead = fetches(b, item);
    f32v acc[GROUP_ITEMS][STRIP_VECTORS];
    EACH_SUM(vectors) acc[i][c] = simd_load(out + i * b->out_stride + (size_t)c * VEC_LANES);
    for (uint32_t j = s->lo & ~1u; j < s->hi; j += 2) {
        const char *v = s->v + (j / 2 * d + s->channel) * 4;
        u32v values[STRIP_VECTORS];
        for (uint32_t c = 0; c < vectors; c++) {
            values[c] = (u32v)vec_load_as(v, c * VEC_LANES, n, SPW_DTYPE_F32).v[0];
            if (items == 1)
                values[c] &= which;
        }
        if (ahead)
            fetch_lines(b, vectors > 1 ? STRIP_VECTORS * FETCH_OF_FOUR / 4 : 1);
        for (uint32_t i = 0; i < items; i++) {
            u32v x = broadcast_pair(p + (size_t)i * 2 * SPW_SPLIT_TOKENS + j);
            for (uint32_t c = 0; c < vectors; c++)
                acc[i][c] = simd_dot_bf16(acc[i][c], x, values[c]);
        }
    }
    EACH_SUM(vectors) simd_store(out + i * b->out_stride + (size_t)c * VEC_LANES, acc[i][c]);
}

SIMD_FN void value_strip(struct batch *b, uint32_t item, const struct strip *s, uint32_t which,
                         const uint32_t items)
{
    if (s->n_vectors == STRIP_VECTORS)
        value_run(b, item, s, which, items, STRIP_VECTORS);
    else
        value_run(b, item, s, which, items, 1);
}

/* Adds the strip's weighted values to `items` items, pair by pair of positions. Where an item sees
 * one position of a pair, V of the other position is cleared: it may be anything, also NaN. */
static void values_group(struct batch *b, uint32_t item, uint32_t items, const struct strip *s)
{
    uint32_t which = s->hi - s->lo > 1 ? 0xffffffffu : s->lo % 2 ? 0xffff0000u : 0x0000ffffu;
    if (items == 4)
        value_strip(b, item, s, which, 4);
    else if (items == 3)
        value_strip(b, item, s, which, 3);
    else if (items == 2)
        value_strip(b, item, s, which, 2);
    else
        value_strip(b, item, s, which, 1);
}
