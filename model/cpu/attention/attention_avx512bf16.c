/* Attention on AVX-512 with vdpbf16ps, for bf16 queries over bf16 tiles; every other pair of types
 * goes to the f32 arithmetic of the avx512 table.
 *
 * A vdpbf16ps adds two products to each of 16 f32 lanes: two channels of 16 positions as a K block
 * lies, and two positions of 16 channels as V lies. Four items by four vectors keep 16 chains in
 * flight, which hides the instruction's latency, and make 8 loads serve 16 of them. p is rounded to
 * bf16, after its sum was taken. */
#define KERNEL(op) spw_##op##_kernel_avx512bf16
#define ATTENTION_RUNS_ELSEWHERE
#include "model/cpu/attention/attention_batch.h"

enum { STRIP_VECTORS = 4 };

static void load_query(const struct batch *b, uint32_t item, size_t from)
{
    size_t bytes = b->a->head_dim * sizeof(uint16_t);
    memcpy((char *)b->q + item * bytes, (const uint16_t *)b->a->q + from, bytes);
}

/* Rounded to bf16 and packed from the front of the item's scores: never past what was read. */
VEC_FN void store_weights(float *scores, uint32_t block, struct vec p)
{
    uint16_t *to = (uint16_t *)scores + (size_t)block * SPW_TILE_BLOCK;
    _mm256_storeu_si256((void *)to, (__m256i)_mm512_cvtneps_pbh(p.v));
}

VEC_FN struct vec load_weights(const float *scores, uint32_t block)
{
    return vec_load_bf16((const uint16_t *)scores + (size_t)block * SPW_TILE_BLOCK);
}

/* A pair of bf16 values in all sixteen lanes. */
VEC_FN __m512bh broadcast_pair(const void *p)
{
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
}

VEC_FN void score_items(struct batch *b, uint32_t item, size_t at, const char *k,
                        const uint32_t items)
{
    size_t d = b->a->head_dim, row = d * sizeof(uint16_t), block = d * 2 * SPW_TILE_BLOCK;
    const char *q = (const char *)b->q + item * row;
    float *scores = b->scores + (size_t)item * SPW_SPLIT_TOKENS + at;
    __m512 acc[GROUP_ITEMS][SCORE_BLOCKS], scale = _mm512_set1_ps(b->a->scale);
    for (uint32_t i = 0; i < items; i++)
        for (uint32_t j = 0; j < SCORE_BLOCKS; j++)
            acc[i][j] = _mm512_setzero_ps();
    for (size_t pair = 0; pair < d / 2; pair++) {
        __m512bh keys[SCORE_BLOCKS];
        for (uint32_t j = 0; j < SCORE_BLOCKS; j++)
            keys[j] = (__m512bh)_mm512_loadu_si512(k + j * block + pair * 64);
        if (b->streams)
            fetch_lines(b, SCORE_BLOCKS * FETCH_OF_FOUR / 4);
        for (uint32_t i = 0; i < items; i++) {
            __m512bh x = broadcast_pair(q + i * row + pair * 4);
            for (uint32_t j = 0; j < SCORE_BLOCKS; j++)
                acc[i][j] = _mm512_dpbf16_ps(acc[i][j], keys[j], x);
        }
    }
    for (uint32_t i = 0; i < items; i++)
        for (uint32_t j = 0; j < SCORE_BLOCKS; j++)
            _mm512_storeu_ps(scores + (size_t)i * SPW_SPLIT_TOKENS + (size_t)j * SPW_TILE_BLOCK,
                             _mm512_mul_ps(acc[i][j], scale));
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

/* `which`: the halves of the pairs that count, all ones or one position's. */
VEC_FN void value_run(struct batch *b, uint32_t item, const struct strip *s, uint32_t which,
                      const uint32_t items, const uint32_t vectors)
{
    size_t d = b->a->head_dim, left = d - s->channel;
    __mmask16 lanes = (__mmask16)(vectors > 1 || left >= 16 ? 0xffff : (1u << left) - 1);
    const uint16_t *p = (const uint16_t *)(b->scores + (size_t)item * SPW_SPLIT_TOKENS) +
                        (size_t)s->tile * SPW_TILE_TOKENS;
    float *out = b->out + item * b->out_stride + s->channel;
    __m512 acc[GROUP_ITEMS][STRIP_VECTORS];
    for (uint32_t i = 0; i < items; i++)
        for (uint32_t c = 0; c < vectors; c++)
            acc[i][c] = _mm512_loadu_ps(out + i * b->out_stride + (size_t)c * 16);
    for (uint32_t j = s->lo & ~1u; j < s->hi; j += 2) {
        const char *v = s->v + (j / 2 * d + s->channel) * 4;
        __m512bh values[STRIP_VECTORS];
        for (uint32_t c = 0; c < vectors; c++) {
            __m512i raw = vectors > 1 ? _mm512_loadu_si512(v + (size_t)c * 64)
                                      : _mm512_maskz_loadu_epi32(lanes, v);
            if (items == 1)
                raw = _mm512_and_si512(raw, _mm512_set1_epi32((int)which));
            values[c] = (__m512bh)raw;
        }
        if (b->streams)
            fetch_lines(b, vectors > 1 ? STRIP_VECTORS * FETCH_OF_FOUR / 4 : 1);
        for (uint32_t i = 0; i < items; i++) {
            __m512bh x = broadcast_pair(p + (size_t)i * 2 * SPW_SPLIT_TOKENS + j);
            for (uint32_t c = 0; c < vectors; c++)
                acc[i][c] = _mm512_dpbf16_ps(acc[i][c], x, values[c]);
        }
    }
    for (uint32_t i = 0; i < items; i++)
        for (uint32_t c = 0; c < vectors; c++)
            _mm512_storeu_ps(out + i * b->out_stride + (size_t)c * 16, acc[i][c]);
}

VEC_FN void value_strip(struct batch *b, uint32_t item, const struct strip *s, uint32_t which,
                        const uint32_t items)
{
    if (s->n_vectors == STRIP_VECTORS)
        value_run(b, item, s, which, items, STRIP_VECTORS);
    else
        value_run(b, item, s, which, items, 1);
}

/* Adds the strip's weighted values to `items` items, one after the other pair of positions. Where
 * an item sees one position of a pair, the other's V is cleared: it may be anything, NaN too. */
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

#include "model/cpu/attention/attention_walk.h"

static bool all_bf16(const struct spw_attention_args *a)
{
    return a->dtype == SPW_DTYPE_BF16 && a->kv_dtype == SPW_DTYPE_BF16;
}

static void attention_choose(const void *args, size_t task, unsigned worker)
{
    if (all_bf16(args))
        attention_run(args, task, worker);
    else
        spw_attention_kernel_avx512.run(args, task, worker);
}

static void attention_splits_choose(const void *args, size_t task, unsigned worker)
{
    if (all_bf16(args))
        attention_splits_run(args, task, worker);
    else
        spw_attention_splits_kernel_avx512.run(args, task, worker);
}

const struct spw_kernel KERNEL(attention) = {"attention", attention_tasks, attention_choose};
const struct spw_kernel KERNEL(attention_splits) = {"attention_splits", attention_splits_tasks,
                                                    attention_splits_choose};
