/* The two inner products of attention for many items, in f32 arithmetic with few registers (AVX2).
 *
 * Sixteen positions of K, or sixteen channels of V of a tile, are widened once for all items of a
 * batch: a panel of rows with sixteen floats. Then both products are the same loop: a row of the
 * panel, times a number of each item. Six items have twelve sums in registers. Two units whose
 * results take four cycles need eight. The loop has no other work than loads. Each sum is the chain
 * that attention_f32.h describes.
 *
 * A batch of few items reads its tiles from memory, and does not use panels. */

enum {
    PANEL_ITEMS = 6,
    PANEL_ROWS = 256, /* heads above 256 channels have no panels */
};

static bool has_panels(const struct batch *b)
{
    return b->n_items > FEW_ITEMS && b->a->head_dim <= PANEL_ROWS;
}

/* How many of the items that are left share the loads of a panel. */
static uint32_t panel_items(uint32_t left)
{
    if (left >= PANEL_ITEMS && left != 2 * GROUP_ITEMS)
        return PANEL_ITEMS;
    return left >= GROUP_ITEMS ? GROUP_ITEMS : 1;
}

/* sums[i] += x[i][0] panel[0] + x[i][1] panel[1] + ..., n rows; x: [items][step], sums: [items][16]
 */
SIMD_FN void add_rows(struct vec *sums, const float *x, size_t step, const float *panel, size_t n,
                      const uint32_t items)
{
    struct vec acc[PANEL_ITEMS];
#pragma GCC unroll 6
    for (uint32_t i = 0; i < items; i++)
        acc[i] = sums[i];
    for (size_t row = 0; row < n; row++) {
        const struct vec v = vec_load(panel + row * VEC_LANES);
#pragma GCC unroll 6
        for (uint32_t i = 0; i < items; i++)
            acc[i] = vec_fma(vec_set1(x[i * step + row]), v, acc[i]);
    }
#pragma GCC unroll 6
    for (uint32_t i = 0; i < items; i++)
        sums[i] = acc[i];
}

/* sums are loaded from out, or are 0 and multiplied by the factor at the end. */
SIMD_FN void panel_run(float *out, size_t stride, const float *x, size_t step, const float *panel,
                       size_t n, const float *factor, const uint32_t items)
{
    struct vec sums[PANEL_ITEMS];
#pragma GCC unroll 6
    for (uint32_t i = 0; i < items; i++)
        sums[i] = factor ? vec_set1(0.0f) : vec_load(out + i * stride);
    add_rows(sums, x, step, panel, n, items);
#pragma GCC unroll 6
    for (uint32_t i = 0; i < items; i++)
        vec_store(out + i * stride, factor ? vec_mul(sums[i], vec_set1(*factor)) : sums[i]);
}

/* `items` is one of panel_items. */
static void panel_group(float *out, size_t stride, const float *x, size_t step, const float *panel,
                        size_t n, const float *factor, uint32_t items)
{
    if (items == PANEL_ITEMS)
        panel_run(out, stride, x, step, panel, n, factor, PANEL_ITEMS);
    else if (items == GROUP_ITEMS)
        panel_run(out, stride, x, step, panel, n, factor, GROUP_ITEMS);
    else
        panel_run(out, stride, x, step, panel, n, factor, 1);
}

/* ---- scores ---- */

SIMD_FN void widen_keys_as(float *panel, const char *k, size_t head_dim, enum spw_dtype t)
{
    const size_t step = VEC_LANES * spw_dtype_bytes(t); /* a channel of the block */
    struct vec even, odd;
    for (size_t c = 0; c < head_dim; c += 2) {
        load_two(k + c * step, VEC_LANES, &even, &odd, t);
        vec_store(panel + c * VEC_LANES, even);
        vec_store(panel + (c + 1) * VEC_LANES, odd);
    }
}

static void widen_keys(float *panel, const char *k, size_t head_dim, enum spw_dtype t)
{
    if (t == SPW_DTYPE_F32)
        widen_keys_as(panel, k, head_dim, SPW_DTYPE_F32);
    else if (t == SPW_DTYPE_F16)
        widen_keys_as(panel, k, head_dim, SPW_DTYPE_F16);
    else
        widen_keys_as(panel, k, head_dim, SPW_DTYPE_BF16);
}

/* Scores of all items for the 64 positions from `at` on, whose K lies at k. */
static void panel_scores(struct batch *b, uint32_t at, const char *k)
{
    const size_t d = b->a->head_dim;
    _Alignas(64) float panel[PANEL_ROWS * VEC_LANES];
    for (uint32_t end = at + SCORE_SPAN; at < end; at += SPW_TILE_BLOCK) {
        widen_keys(panel, k, d, b->a->kv_dtype);
        k += SPW_TILE_BLOCK * d * spw_dtype_bytes(b->a->kv_dtype);
        for (uint32_t i = 0, n; i < b->n_items; i += n) {
            n = panel_items(b->n_items - i);
            panel_group(b->scores + (size_t)i * SPW_SPLIT_TOKENS + at, SPW_SPLIT_TOKENS,
                        (const float *)b->q + i * d, d, panel, d, &b->a->scale, n);
        }
    }
}

/* ---- values ---- */

SIMD_FN void widen_values_as(float *panel, const struct strip *s, size_t head_dim, enum spw_dtype t)
{
    struct vec even, odd;
    for (uint32_t j = s->lo & ~1u; j < s->hi; j += 2) {
        load_values(s->v, head_dim, j, s->channel, head_dim - s->channel, &even, &odd, t);
        vec_store(panel + j * VEC_LANES, even);
        vec_store(panel + (j + 1) * VEC_LANES, odd);
    }
}

static void widen_values(float *panel, const struct strip *s, size_t head_dim, enum spw_dtype t)
{
    if (t == SPW_DTYPE_F32)
        widen_values_as(panel, s, head_dim, SPW_DTYPE_F32);
    else if (t == SPW_DTYPE_F16)
        widen_values_as(panel, s, head_dim, SPW_DTYPE_F16);
    else
        widen_values_as(panel, s, head_dim, SPW_DTYPE_BF16);
}

/* Adds positions [lo, hi) of the tile to n items. */
static void add_values(struct batch *b, uint32_t item, uint32_t n, const struct strip *s,
                       const float *panel, uint32_t lo, uint32_t hi)
{
    const float *p =
        b->scores + (size_t)item * SPW_SPLIT_TOKENS + (size_t)s->tile * SPW_TILE_TOKENS + lo;
    if (lo < hi)
        panel_group(b->out + item * b->out_stride + s->channel, b->out_stride, p, SPW_SPLIT_TOKENS,
                    panel + (size_t)lo * VEC_LANES, hi - lo, NULL, n);
}

/* As values_of_group: an item walks alone over positions that not all of the group see. */
static void panel_values_group(struct batch *b, uint32_t item, uint32_t n, const struct strip *s,
                               const float *panel)
{
    const uint32_t start = s->tile * SPW_TILE_TOKENS;
    uint32_t lo[PANEL_ITEMS], hi[PANEL_ITEMS], all_lo = 0, all_hi = SPW_TILE_TOKENS;
    for (uint32_t i = 0; i < n; i++) {
        lo[i] = lesser(greater(b->lo[item + i], start) - start, SPW_TILE_TOKENS);
        hi[i] = lesser(greater(b->hi[item + i], start) - start, SPW_TILE_TOKENS);
        all_lo = greater(all_lo, lo[i]);
        all_hi = lesser(all_hi, hi[i]);
    }
    all_hi = greater(all_lo, all_hi);
    for (uint32_t i = 0; i < n; i++)
        add_values(b, item + i, 1, s, panel, lo[i], lesser(all_lo, hi[i]));
    add_values(b, item, n, s, panel, all_lo, all_hi);
    for (uint32_t i = 0; i < n; i++)
        add_values(b, item + i, 1, s, panel, greater(all_hi, lo[i]), hi[i]);
}

/* Adds the weighted values of a tile to all items. seen: the positions of the split that any item
 * sees. */
static void panel_values(struct batch *b, struct strip s, const struct strip *seen)
{
    const uint32_t start = s.tile * SPW_TILE_TOKENS, d = b->a->head_dim;
    _Alignas(64) float panel[SPW_TILE_TOKENS * VEC_LANES];
    s.lo = greater(seen->lo, start) - start;
    s.hi = lesser(seen->hi - start, SPW_TILE_TOKENS);
    for (s.channel = 0; s.channel < d; s.channel += VEC_LANES) {
        widen_values(panel, &s, d, b->a->kv_dtype);
        for (uint32_t i = 0, n; i < b->n_items; i += n) {
            n = panel_items(b->n_items - i);
            panel_values_group(b, i, n, &s, panel);
        }
    }
}
