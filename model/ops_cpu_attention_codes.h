/* The two inner products of attention on a quantized tile (quant/qtile.h), on its codes: f32
 * arithmetic for every type, because a code is exact in f32 and the planes are a quarter or a half
 * of the bytes.
 *
 *   score   scale * (turned q . mean + for each 64 channels: step * (turned q . codes))
 *   value   turned out += (p * step) . codes, position by position
 *
 * q is rotated once for all tiles, and what a split's quantized tiles add to `out` is turned back
 * once, so that exact and quantized tiles meet in the same split. Each sum has one order: even and
 * odd fours of channels (of positions) in a chain each, whatever items share the loads. */
#include "model/ops_cpu_vec_codes.h"
#include "quant/hadamard.h"

/* ---- scores ---- */

/* The queries of a batch, rotated. */
static void turn_queries(struct batch *b, uint32_t item, size_t from)
{
    const struct spw_attention_args *a = b->a;
    float *q = b->turned + item * b->out_stride;
    for (size_t c = 0; c < a->head_dim; c += VEC_LANES) {
        size_t n = a->head_dim - c < VEC_LANES ? a->head_dim - c : VEC_LANES;
        vec_store(q + c, vec_load_as(a->q, from + c, n, a->dtype));
    }
    spw_hadamard_rotate(q, a->head_dim, spw_hadamard_k_block(a->head_dim));
}

/* The turned query times the means: what all of the tile's scores have in common. Padding is 0. */
static float dot_means(const struct batch *b, uint32_t item, const struct codes *t)
{
    const float *q = b->turned + item * b->out_stride;
    struct vec sum = vec_set1(0);
    for (size_t c = 0; c < b->out_stride; c += VEC_LANES)
        sum = vec_fma(vec_load(q + c), vec_load(t->k_means + c * sizeof(float)), sum);
    return vec_sum(sum);
}

/* Sixteen positions from j on, one block of a plane. */
VEC_FN void score_codes_block(struct batch *b, uint32_t item, uint32_t j, const struct codes *t,
                              const float *offsets, float *scores, const uint32_t items,
                              const bool fine)
{
    uint32_t n = spw_qtile_k_channels(b->a->head_dim);
    size_t at = spw_qtile_k_index(b->a->head_dim, j, 0);
    const float *q = b->turned + item * b->out_stride;
    const struct vec scale = vec_set1(b->a->scale), width = vec_set1(fine ? 1.0f : 16.0f);
    struct vec total[GROUP_ITEMS], even[GROUP_ITEMS], odd[GROUP_ITEMS], x[8];
    for (uint32_t i = 0; i < items; i++)
        total[i] = vec_set1(offsets[i]);
    for (uint32_t g = 0, c = 0; c < n; g++) {
        uint32_t end = lesser(c + SPW_QTILE_GROUP, n);
        for (uint32_t i = 0; i < items; i++)
            even[i] = odd[i] = vec_set1(0);
        for (; c < end; c += 8, at += 64) {
            vec_load_codes(t->k_high + at, fine ? t->k_low + at : NULL, x);
            if (b->streams)
                fetch_lines(b, fine ? 2 : 1);
            for (uint32_t i = 0; i < items; i++)
                for (uint32_t r = 0; r < 4; r++) {
                    const float *factors = q + i * b->out_stride + c + r;
                    even[i] = vec_fma(vec_set1(factors[0]), x[r], even[i]);
                    odd[i] = vec_fma(vec_set1(factors[4]), x[4 + r], odd[i]);
                }
        }
        const char *steps = t->k_steps + ((size_t)g * SPW_TILE_TOKENS + j) * sizeof(uint16_t);
        struct vec step = vec_mul(vec_load_bf16(steps), width);
        for (uint32_t i = 0; i < items; i++)
            total[i] = vec_fma(vec_add(even[i], odd[i]), step, total[i]);
    }
    for (uint32_t i = 0; i < items; i++)
        vec_store(scores + (size_t)i * SPW_SPLIT_TOKENS, vec_mul(total[i], scale));
}

VEC_FN void score_codes_items(struct batch *b, uint32_t item, size_t at, const struct codes *t,
                              const uint32_t items)
{
    float offsets[GROUP_ITEMS], *scores = b->scores + (size_t)item * SPW_SPLIT_TOKENS + at;
    uint32_t j = at % SPW_TILE_TOKENS;
    for (uint32_t i = 0; i < items; i++)
        offsets[i] = dot_means(b, item + i, t);
    for (uint32_t k = 0; k < SCORE_SPAN; k += SPW_TILE_BLOCK)
        if (t->k_low)
            score_codes_block(b, item, j + k, t, offsets, scores + k, items, true);
        else
            score_codes_block(b, item, j + k, t, offsets, scores + k, items, false);
}

/* Scores of `items` items for the 64 positions from `at` on, which lie in the quantized tile t. */
static void score_codes(struct batch *b, uint32_t item, uint32_t items, size_t at,
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
static void weigh_codes(const struct batch *b, uint32_t item, uint32_t tile, uint32_t g, float *w)
{
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
}

/* Sixteen (or the last n) channels from c on. w: [items][128] */
VEC_FN void value_codes_run(struct batch *b, uint32_t item, const struct codes *t, uint32_t c,
                            const float *w, const uint32_t items, const bool fine)
{
    uint32_t d = b->a->head_dim, n = lesser(d - c, VEC_LANES);
    float *out = b->out_turned + item * b->out_stride + c;
    struct vec even[GROUP_ITEMS], odd[GROUP_ITEMS], x[8];
    for (uint32_t i = 0; i < items; i++)
        even[i] = odd[i] = vec_set1(0);
    for (uint32_t j = 0; j < SPW_TILE_TOKENS; j += SPW_QTILE_OCTET) {
        size_t at = spw_qtile_v_index(d, j, c);
        const char *high = t->v_high + at, *low = fine ? t->v_low + at : NULL;
        char staged[2][VEC_LANES * 4] = {{0}};
        if (n < VEC_LANES) {
            high = memcpy(staged[0], high, (size_t)n * 4);
            low = fine ? memcpy(staged[1], low, (size_t)n * 4) : NULL;
        }
        vec_load_codes(high, low, x);
        if (b->streams)
            fetch_lines(b, fine ? 2 : 1);
        for (uint32_t i = 0; i < items; i++)
            for (uint32_t r = 0; r < 4; r++) {
                const float *factors = w + (size_t)i * SPW_TILE_TOKENS + j + r;
                even[i] = vec_fma(vec_set1(factors[0]), x[r], even[i]);
                odd[i] = vec_fma(vec_set1(factors[4]), x[4 + r], odd[i]);
            }
    }
    for (uint32_t i = 0; i < items; i++) {
        struct vec *to = (void *)(out + i * b->out_stride);
        vec_store(to, vec_add(vec_load(to), vec_add(even[i], odd[i])));
    }
}

VEC_FN void value_codes_items(struct batch *b, uint32_t item, uint32_t tile, const uint32_t items)
{
    _Alignas(64) float w[GROUP_ITEMS * SPW_TILE_TOKENS];
    const struct codes *t = &b->codes[tile];
    for (uint32_t c = 0; c < b->a->head_dim; c += VEC_LANES) {
        if (c % SPW_QTILE_GROUP == 0)
            for (uint32_t i = 0; i < items; i++)
                weigh_codes(b, item + i, tile, c / SPW_QTILE_GROUP,
                            w + (size_t)i * SPW_TILE_TOKENS);
        if (t->v_low)
            value_codes_run(b, item, t, c, w, items, true);
        else
            value_codes_run(b, item, t, c, w, items, false);
    }
}

/* Adds the quantized tile's weighted values to every item, rotated. */
static void value_codes(struct batch *b, uint32_t tile)
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

/* The split's quantized part, turned back, joins its exact part: for the items that have one, so
 * that those that share the call do not even change the sign of a zero. */
static void turn_back(struct batch *b)
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
