/* The two inner products of attention in f32 arithmetic. Every type of K and V is widened exactly.
 * Each sum is one chain of multiply-adds: a score over channels, an output over positions.
 *
 * Items, blocks and vectors run side by side, as many as the registers hold and enough to hide the
 * latency of a multiply-add: with AVX-512 four sums of one register for each item; with AVX2 four
 * sums of two registers, of one, two or four items; one sum of four registers in plain C. Their
 * number does not show in a result. */
#include "base/numbers.h"
#include "model/cpu/attention/attention_batch.h"

#if defined(__AVX2__)
enum { F32_ITEMS = 4, STRIP_VECTORS = 4 };
#else
enum { F32_ITEMS = 1, STRIP_VECTORS = 1 };
#endif

/* The blocks of a score, or the vectors of a strip, that run side by side for so many items. */
SIMD_FN uint32_t side_by_side(uint32_t items)
{
#if defined(__AVX2__) && !defined(__AVX512F__)
    return STRIP_VECTORS / items;
#else
    (void)items;
    return STRIP_VECTORS;
#endif
}

/* A loop over items, blocks or vectors. If it is not unrolled, gcc 12 keeps the sums in memory. */
#define EACH(i, n) _Pragma("GCC unroll 4") for (uint32_t i = 0; i < (n); i++)

/* The sums of the products between enter and leave, as a dot product of bf16 adds them. */
#if AS_DOT_BF16
#define ENTER_PRODUCTS(rows, n)                                                                    \
    const unsigned mode = simd_flush_subnormals();                                                 \
    PIN(rows, n)
#define LEAVE_PRODUCTS(rows, n)                                                                    \
    PIN(rows, n)                                                                                   \
    simd_restore_mode(mode);                                                                       \
    PIN(rows, n)
#define PIN(rows, n) EACH(i, rows) EACH(j, n) acc[i][j].v[0] = simd_pinned(acc[i][j].v[0]);
#else
#define ENTER_PRODUCTS(rows, n)
#define LEAVE_PRODUCTS(rows, n)
#endif

/* sum + x[0] * even + x[1] * odd */
SIMD_FN struct vec add_pair(struct vec sum, const float x[2], struct vec even, struct vec odd)
{
    const struct vec x_even = vec_set1(x[0]), x_odd = vec_set1(x[1]);
    return AS_DOT_BF16 ? vec_fma(x_even, even, vec_fma(x_odd, odd, sum))
                       : vec_fma(x_odd, odd, vec_fma(x_even, even, sum));
}

static void load_query(const struct batch *b, uint32_t item, size_t from)
{
    const struct spw_attention_args *a = b->a;
    float *q = (float *)b->q + (size_t)item * a->head_dim;
    for (size_t c = 0; c < a->head_dim; c += VEC_LANES) {
        size_t n = a->head_dim - c < VEC_LANES ? a->head_dim - c : VEC_LANES;
        vec_store_as(q, c, n, SPW_DTYPE_F32, vec_load_as(a->q, from + c, n, a->dtype));
    }
}

/* p stays f32, in the place of the scores. */
SIMD_FN void store_weights(float *scores, uint32_t block, struct vec p)
{
#if AS_DOT_BF16
    uint16_t rounded[SIMD_LANES];
    simd_store_bf16_flushed(rounded, p.v[0]);
    p = vec_load_bf16(rounded);
#endif
    vec_store(scores + (size_t)block * SPW_TILE_BLOCK, p);
}

SIMD_FN struct vec load_weights(const float *scores, uint32_t block)
{
    return vec_load(scores + (size_t)block * SPW_TILE_BLOCK);
}

/* Sixteen lanes of two elements that lie side by side in 2-byte types, `apart` elements in f32. */
SIMD_FN void load_two(const char *p, size_t apart, struct vec *even, struct vec *odd,
                      enum spw_dtype t)
{
    if (t != SPW_DTYPE_F32) {
        vec_load_pairs_as(p, even, odd, t);
    } else {
        *even = vec_load(p);
        *odd = vec_load(p + apart * sizeof(float));
    }
}

SIMD_FN void score_blocks(struct batch *b, uint32_t item, const char *k, float *scores,
                          const uint32_t items, const uint32_t blocks, enum spw_dtype t)
{
    size_t step = VEC_LANES * 2 * spw_dtype_bytes(t); /* two channels of a block */
    size_t head_dim = b->a->head_dim;
    const float *q = (const float *)b->q + item * head_dim;
    const bool ahead = fetches(b, item);
    struct vec acc[GROUP_ITEMS][SCORE_BLOCKS], even, odd;
    EACH(i, items)
    EACH(j, blocks) acc[i][j] = vec_set1(0.0f);
    ENTER_PRODUCTS(items, blocks)
    for (size_t c = 0; c < head_dim; c += 2) {
        if (ahead)
            fetch_lines_of(b, c / 2, (uint32_t)(blocks * step / FETCH_LINE));
        EACH(j, blocks)
        {
            load_two(k + (c + j * head_dim) / 2 * step, VEC_LANES, &even, &odd, t);
            EACH(i, items)
            acc[i][j] = add_pair(acc[i][j], q + i * head_dim + c, even, odd);
        }
    }
    LEAVE_PRODUCTS(items, blocks)
    struct vec factor = vec_set1(b->a->scale);
    EACH(i, items)
    EACH(j, blocks)
    vec_store(scores + (size_t)i * SPW_SPLIT_TOKENS + (size_t)j * SPW_TILE_BLOCK,
              vec_mul(acc[i][j], factor));
}

SIMD_FN void score_items(struct batch *b, uint32_t item, size_t at, const char *k,
                         const uint32_t items, enum spw_dtype t)
{
    size_t d = b->a->head_dim, block_bytes = SPW_TILE_BLOCK * d * spw_dtype_bytes(t);
    for (size_t j = 0; j < SCORE_BLOCKS; j += side_by_side(items))
        score_blocks(b, item, k + j * block_bytes,
                     b->scores + (size_t)item * SPW_SPLIT_TOKENS + at + j * SPW_TILE_BLOCK, items,
                     side_by_side(items), t);
}

SIMD_FN void score_group_as(struct batch *b, uint32_t item, uint32_t items, size_t at,
                            const char *k, enum spw_dtype t)
{
    for (uint32_t n; items; items -= n, item += n) {
        n = lesser(items, F32_ITEMS);
        if (n == 4)
            score_items(b, item, at, k, 4, t);
        else if (n == 3)
            score_items(b, item, at, k, 3, t);
        else if (n == 2)
            score_items(b, item, at, k, 2, t);
        else
            score_items(b, item, at, k, 1, t);
    }
}

/* Scores of `items` items for the 64 positions from `at` on, whose K lies at k. */
static void scores_group(struct batch *b, uint32_t item, uint32_t items, size_t at, const char *k)
{
    if (AS_DOT_BF16 || b->a->kv_dtype == SPW_DTYPE_BF16)
        score_group_as(b, item, items, at, k, SPW_DTYPE_BF16);
    else if (b->a->kv_dtype == SPW_DTYPE_F16)
        score_group_as(b, item, items, at, k, SPW_DTYPE_F16);
    else
        score_group_as(b, item, items, at, k, SPW_DTYPE_F32);
}

/* The V vector of 16 (or the last n) channels at positions j and j + 1; j is even. */
SIMD_FN void load_values(const char *v, size_t head_dim, uint32_t j, size_t channel, size_t n,
                         struct vec *even, struct vec *odd, enum spw_dtype t)
{
    size_t at =
        t == SPW_DTYPE_F32 ? (j * head_dim + channel) * 4 : (j / 2 * head_dim + channel) * 4;
    if (n >= VEC_LANES) {
        load_two(v + at, head_dim, even, odd, t);
        return;
    }
    uint32_t staged[2][VEC_LANES] = {{0}};
    memcpy(staged[0], v + at, n * 4);
    if (t == SPW_DTYPE_F32)
        memcpy(staged[1], v + at + head_dim * 4, n * 4);
    load_two((const char *)staged, VEC_LANES, even, odd, t);
}

SIMD_FN void value_run(struct batch *b, uint32_t item, const struct strip *s, size_t channel,
                       const uint32_t items, const uint32_t vectors, enum spw_dtype t)
{
    size_t d = b->a->head_dim, n = vectors * VEC_LANES > d - channel ? d - channel : VEC_LANES;
    const float *p =
        b->scores + (size_t)item * SPW_SPLIT_TOKENS + (size_t)s->tile * SPW_TILE_TOKENS;
    float *out = b->out + item * b->out_stride + channel;
    struct vec acc[GROUP_ITEMS][STRIP_VECTORS], even, odd;
    const bool ahead = fetches(b, item);
    EACH(i, items)
    EACH(c, vectors) acc[i][c] = vec_load(out + i * b->out_stride + (size_t)c * VEC_LANES);
    ENTER_PRODUCTS(items, vectors)
    for (uint32_t j = s->lo; j < s->hi; j += 2) {
        if (ahead)
            fetch_lines_of(b, j / 2, vectors * (t == SPW_DTYPE_F32 ? 2 : 1));
        EACH(c, vectors)
        {
            load_values(s->v, d, j, channel + (size_t)c * VEC_LANES, n, &even, &odd, t);
            EACH(i, items)
            acc[i][c] = add_pair(acc[i][c], p + (size_t)i * SPW_SPLIT_TOKENS + j, even, odd);
        }
    }
    LEAVE_PRODUCTS(items, vectors)
    EACH(i, items)
    EACH(c, vectors) vec_store(out + i * b->out_stride + (size_t)c * VEC_LANES, acc[i][c]);
}

/* One position of a pair. Its neighbour may be anything, also NaN: it enters no product. */
SIMD_FN void value_one(const struct batch *b, uint32_t item, const struct strip *s,
                       enum spw_dtype t)
{
    const size_t d = b->a->head_dim;
    const float *p = b->scores + (size_t)item * SPW_SPLIT_TOKENS +
                     (size_t)s->tile * SPW_TILE_TOKENS + (s->lo & ~1u);
    for (size_t c = 0; c < s->n_vectors; c++) {
        const size_t channel = s->channel + c * VEC_LANES;
        float *out = b->out + item * b->out_stride + channel;
        struct vec acc[1][1] = {{vec_load(out)}}, even, odd;
        load_values(s->v, d, s->lo & ~1u, channel, d - channel, &even, &odd, t);
        ENTER_PRODUCTS(1, 1)
        if (AS_DOT_BF16) /* which multiplies the neighbour's p by zero */
            acc[0][0] = add_pair(acc[0][0], p, s->lo % 2 ? vec_set1(0) : even,
                                 s->lo % 2 ? odd : vec_set1(0));
        else
            acc[0][0] = vec_fma(vec_set1(p[s->lo % 2]), s->lo % 2 ? odd : even, acc[0][0]);
        LEAVE_PRODUCTS(1, 1)
        vec_store(out, acc[0][0]);
    }
}

SIMD_FN void value_items(struct batch *b, uint32_t item, const struct strip *s,
                         const uint32_t items, enum spw_dtype t)
{
    const uint32_t vectors = side_by_side(items);
    size_t channel = s->channel, end = channel + (size_t)s->n_vectors * VEC_LANES;
    for (; channel + (size_t)vectors * VEC_LANES <= end; channel += (size_t)vectors * VEC_LANES)
        value_run(b, item, s, channel, items, vectors, t);
    if (vectors > 1 && channel < end)
        value_run(b, item, s, channel, items, 1, t);
}

SIMD_FN void value_group_as(struct batch *b, uint32_t item, uint32_t items, const struct strip *s,
                            enum spw_dtype t)
{
    if (s->hi - s->lo == 1) {
        value_one(b, item, s, t);
        return;
    }
    for (uint32_t n; items; items -= n, item += n) {
        n = lesser(items, F32_ITEMS);
        if (n == 4)
            value_items(b, item, s, 4, t);
        else if (n == 3)
            value_items(b, item, s, 3, t);
        else if (n == 2)
            value_items(b, item, s, 2, t);
        else
            value_items(b, item, s, 1, t);
    }
}

/* Adds the strip's weighted values to `items` items, position by position. */
static void values_group(struct batch *b, uint32_t item, uint32_t items, const struct strip *s)
{
    if (AS_DOT_BF16 || b->a->kv_dtype == SPW_DTYPE_BF16)
        value_group_as(b, item, items, s, SPW_DTYPE_BF16);
    else if (b->a->kv_dtype == SPW_DTYPE_F16)
        value_group_as(b, item, items, s, SPW_DTYPE_F16);
    else
        value_group_as(b, item, items, s, SPW_DTYPE_F32);
}
