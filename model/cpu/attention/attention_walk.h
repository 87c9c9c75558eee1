/* How an attention task walks through its splits, with the arithmetic that was included before:
 * attention_batch.h names the pieces.
 *
 * A task is one KV head and a block of rows (and, for attention_splits, one split). The result of
 * an item depends on this item only: its chains start at its first visible position and end at its
 * last one, and it does not matter which items share a load. K outside the visible positions may
 * hold anything: its scores are computed and then masked. V outside the visible positions never
 * enters a product. */

#include "base/numbers.h"
#include "model/cpu/attention/attention_codes.h"

/* ---- the scores of one split ---- */

/* The visible positions of items [first, first + n), all together. */
static struct strip union_of(const struct batch *b, uint32_t first, uint32_t n)
{
    struct strip u = {.lo = SPW_SPLIT_TOKENS, .hi = 0};
    for (uint32_t i = first; i < first + n; i++)
        if (b->lo[i] < b->hi[i]) {
            u.lo = lesser(u.lo, b->lo[i]);
            u.hi = greater(u.hi, b->hi[i]);
        }
    return u;
}

static void batch_scores(struct batch *b)
{
    size_t span_bytes = (size_t)SCORE_SPAN * b->a->head_dim * spw_dtype_bytes(b->a->kv_dtype);
    struct strip all = union_of(b, 0, b->n_items);
    for (uint32_t at = all.lo / SCORE_SPAN * SCORE_SPAN; at < all.hi; at += SCORE_SPAN) {
        uint32_t tile = at / SPW_TILE_TOKENS;
        const char *k = b->k[tile];
        if (!b->coded[tile])
            k += at % SPW_TILE_TOKENS / SCORE_SPAN * span_bytes;
#if ATTENTION_PANELS
        if (!b->coded[tile] && has_panels(b)) {
            panel_scores(b, at, k);
            continue;
        }
#endif
        for (uint32_t i = 0; i < b->n_items; i += GROUP_ITEMS) {
            uint32_t n = lesser(GROUP_ITEMS, b->n_items - i);
            struct strip u = union_of(b, i, n);
            if (u.lo >= at + SCORE_SPAN || u.hi <= at)
                continue;
            if (b->coded[tile])
                score_codes(b, i, n, at, &b->codes[tile]);
            else
                scores_group(b, i, n, at, k);
        }
    }
}

/* Lines to fetch for each block that an item weighs: the rest of what the batch will read. */
static uint32_t fetch_per_block(const struct batch *b)
{
    size_t head_bytes = spw_tile_head_bytes(b->a->head_dim, b->a->kv_dtype);
    size_t bytes = 2 * (SPW_SPLIT_TILES - b->n_coded) * head_bytes;
    uint32_t blocks = b->n_items * (SPW_SPLIT_TOKENS / SPW_TILE_BLOCK);
    return b->streams ? (uint32_t)(bytes / FETCH_LINE) * (4 - FETCH_OF_FOUR) / 4 / blocks : 0;
}

/* What relative_bias adds to the scores of 16 positions, `at` from the split's start. */
static struct vec bias_of(const struct batch *b, uint32_t item, uint32_t at)
{
    const int64_t most = b->a->most_distance, key = (int64_t)(b->base + at) - b->query[item];
    const float *table = b->a->relative_bias + b->head[item] * (2 * (size_t)most + 1) + most;
    float out[VEC_LANES];
    if (key >= -most && key + VEC_LANES - 1 <= most)
        return vec_load(table + key);
    for (int64_t i = 0; i < VEC_LANES; i++)
        out[i] = table[key + i < -most ? -most : key + i > most ? most : key + i];
    return vec_load(out);
}

/* Turns an item's scores into p = exp(score - max), with exact zeros at masked positions. The sum
 * adds p before p is rounded: sixteen chains over the blocks, then the tree of vec_sum. */
static void weigh_item(struct batch *b, uint32_t item)
{
    float *scores = b->scores + (size_t)item * SPW_SPLIT_TOKENS;
    uint32_t lo = b->lo[item], hi = b->hi[item];
    uint32_t first = lo / SPW_TILE_BLOCK, end = (uint32_t)spw_div_up(hi, SPW_TILE_BLOCK);
    struct vec none = vec_set1(-INFINITY), best = none, cap = vec_set1(b->a->softcap);
    for (uint32_t j = first; j < end; j++) {
        uint32_t at = j * SPW_TILE_BLOCK, from = lo > at ? lo - at : 0;
        struct vec s = vec_load(scores + at);
        if (b->a->softcap != 0) {
            s = vec_mul(cap, num_tanh(vec_div(s, cap)));
            vec_store(scores + at, s);
        }
        if (b->a->relative_bias) {
            s = vec_add(s, bias_of(b, item, at));
            vec_store(scores + at, s);
        }
        if (from || hi - at < SPW_TILE_BLOCK) {
            s = vec_select_range(from, lesser(hi - at, SPW_TILE_BLOCK), s, none);
            vec_store(scores + at, s);
        }
        best = vec_max(best, s);
    }
    float max = vec_highest(best);
    uint32_t lines = fetch_per_block(b);
    struct vec top = vec_set1(max), sum = vec_set1(0.0f);
    for (uint32_t j = first; j < end; j++) {
        struct vec p = num_exp(vec_sub(vec_load(scores + (size_t)j * SPW_TILE_BLOCK), top));
        sum = vec_add(sum, p);
        store_weights(scores, j, p);
        fetch_lines(b, lines);
    }
    b->max[item] = max;
    b->sum[item] = vec_sum(sum);
}

/* ---- the weighted values of one split ---- */

/* One item's run of positions [lo, hi). A position whose pair is not whole goes alone. */
static void values_of_one(struct batch *b, uint32_t item, struct strip s, uint32_t lo, uint32_t hi)
{
    uint32_t even_lo = (lo + 1) & ~1u, even_hi = hi & ~1u;
    if (lo >= hi)
        return;
    if (lo % 2) {
        s.lo = lo, s.hi = lo + 1;
        values_group(b, item, 1, &s);
    }
    if (even_lo < even_hi) {
        s.lo = even_lo, s.hi = even_hi;
        values_group(b, item, 1, &s);
    }
    if (hi % 2) {
        s.lo = even_hi, s.hi = hi;
        values_group(b, item, 1, &s);
    }
}

/* Items of a group share the pairs that all of them see. An item walks alone over the positions
 * before and after these pairs. So its chain has exactly its own positions, in their order. */
static void values_of_group(struct batch *b, uint32_t item, uint32_t n, struct strip s)
{
    uint32_t start = s.tile * SPW_TILE_TOKENS, lo[GROUP_ITEMS], hi[GROUP_ITEMS];
    uint32_t shared_lo = 0, shared_hi = SPW_TILE_TOKENS;
    for (uint32_t i = 0; i < n; i++) {
        lo[i] = lesser(greater(b->lo[item + i], start) - start, SPW_TILE_TOKENS);
        hi[i] = lesser(greater(b->hi[item + i], start) - start, SPW_TILE_TOKENS);
        shared_lo = greater(shared_lo, (lo[i] + 1) & ~1u);
        shared_hi = lesser(shared_hi, hi[i] & ~1u);
    }
    if (shared_lo >= shared_hi) {
        for (uint32_t i = 0; i < n; i++)
            values_of_one(b, item + i, s, lo[i], hi[i]);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        values_of_one(b, item + i, s, lo[i], shared_lo);
    s.lo = shared_lo, s.hi = shared_hi;
    values_group(b, item, n, &s);
    for (uint32_t i = 0; i < n; i++)
        values_of_one(b, item + i, s, shared_hi, hi[i]);
}

static void batch_values(struct batch *b)
{
    uint32_t d = b->a->head_dim;
    struct strip all = union_of(b, 0, b->n_items), s = {0};
    memset(b->out, 0, b->n_items * b->out_stride * sizeof(float));
    if (b->n_coded)
        memset(b->out_turned, 0, b->n_items * b->out_stride * sizeof(float));
    for (s.tile = all.lo / SPW_TILE_TOKENS; s.tile * SPW_TILE_TOKENS < all.hi; s.tile++) {
        s.v = b->v[s.tile];
        if (b->coded[s.tile]) {
            value_codes(b, s.tile);
            continue;
        }
#if ATTENTION_PANELS
        if (has_panels(b)) {
            panel_values(b, s, &all);
            continue;
        }
#endif
        for (s.channel = 0; s.channel < d; s.channel += s.n_vectors * VEC_LANES) {
            s.n_vectors = d - s.channel >= STRIP_VECTORS * VEC_LANES ? STRIP_VECTORS : 1;
            for (uint32_t i = 0; i < b->n_items; i += GROUP_ITEMS)
                values_of_group(b, i, lesser(GROUP_ITEMS, b->n_items - i), s);
        }
    }
    if (b->n_coded)
        turn_back(b);
}

/* ---- states ---- */

static float *state_of(const struct spw_attention_args *a, float *states, size_t row, uint32_t head)
{
    return states + (row * a->n_heads + head) * (a->head_dim + 2);
}

static void state_clear(float *state, size_t head_dim)
{
    memset(state, 0, head_dim * sizeof(float));
    state[head_dim] = -INFINITY;
    state[head_dim + 1] = 0;
}

/* Merges a split's (out, max, sum) into the state, which holds the positions before the split. Both
 * ways of running attention merge here, in the order of positions. A sum of 0 is an empty state. */
static void merge_out(float *state, const float *out, float max, float sum, size_t head_dim)
{
    float *old_max = state + head_dim, *old_sum = state + head_dim + 1;
    float top = *old_max > max ? *old_max : max;
    float factors[VEC_LANES] = {*old_max - top, max - top};
    if (*old_sum == 0) {
        memcpy(state, out, head_dim * sizeof(float));
        *old_max = max, *old_sum = sum;
        return;
    }
    vec_store(factors, num_exp(vec_load(factors)));
    struct vec old_factor = vec_set1(factors[0]), factor = vec_set1(factors[1]);
    for (size_t c = 0; c < head_dim; c += VEC_LANES) {
        size_t n = head_dim - c < VEC_LANES ? head_dim - c : VEC_LANES;
        struct vec x = vec_mul(vec_load_as(out, c, n, SPW_DTYPE_F32), factor);
        x = vec_fma(vec_load_as(state, c, n, SPW_DTYPE_F32), old_factor, x);
        vec_store_as(state, c, n, SPW_DTYPE_F32, x);
    }
    *old_sum = *old_sum * factors[0] + sum * factors[1];
    *old_max = top;
}

/* ---- tasks ---- */

static uint32_t group_heads(const struct spw_attention_args *a)
{
    return a->n_heads / a->n_kv_heads;
}

static size_t padded(size_t head_dim)
{
    return spw_align_up(head_dim, VEC_LANES);
}

/* Items that fit a batch's scratch. */
static uint32_t batch_items(const struct spw_attention_args *a)
{
    size_t n = BATCH_FLOATS / padded(a->head_dim);
    return n < BATCH_ITEMS ? (uint32_t)n : BATCH_ITEMS;
}

static size_t block_rows(const struct spw_attention_args *a)
{
    return greater(1, batch_items(a) / group_heads(a));
}

static size_t row_blocks(const struct spw_attention_args *a)
{
    return spw_div_up(a->rows, block_rows(a));
}

static uint32_t n_splits(const struct spw_attention_args *a)
{
    return (uint32_t)spw_div_up(a->n_tiles, SPW_SPLIT_TILES);
}

/* Points the batch at split `split` of the call; false when no item sees a position of this split.
 * `first` is the batch's first item, counted over the rows and heads of the KV head's group. */
static bool batch_enter(struct batch *b, uint32_t split, size_t first)
{
    const struct spw_attention_args *a = b->a;
    uint32_t tiles = lesser(SPW_SPLIT_TILES, a->n_tiles - split * SPW_SPLIT_TILES);
    uint64_t base = (a->tile_first + (uint64_t)split * SPW_SPLIT_TILES) * SPW_TILE_TOKENS;
    uint64_t end = base + (uint64_t)tiles * SPW_TILE_TOKENS;
    size_t head_bytes = spw_tile_head_bytes(a->head_dim, a->kv_dtype);
    bool any = false;
    b->n_coded = 0;
    memset(b->coded, 0, sizeof b->coded);
    for (uint32_t i = 0; i < tiles; i++) {
        uint32_t index = split * SPW_SPLIT_TILES + i;
        const char *tile = a->tiles[index];
        b->coded[i] = tile && is_coded(a, index);
        b->n_coded += b->coded[i];
        if (b->coded[i])
            b->codes[i] = codes_of(a, index, b->kv_head);
        bool exact = tile && !b->coded[i];
        b->k[i] = exact ? tile + b->kv_head * head_bytes : NULL;
        b->v[i] = exact ? tile + (a->n_kv_heads + b->kv_head) * head_bytes : NULL;
    }
    b->base = base;
    for (uint32_t i = 0; i < b->n_items; i++) {
        const uint32_t group = group_heads(a);
        const uint64_t at = a->position + (first + i) / group;
        uint64_t past = a->seen_end ? a->seen_end : at + 1;
        uint64_t lo = spw_max_u64(spw_window_first(a->window, past - 1), base);
        uint64_t hi = spw_min_u64(past, end);
        lo = spw_max_u64(lo, a->first_key);
        b->query[i] = (int64_t)at;
        b->head[i] = b->kv_head * group + (uint32_t)((first + i) % group);
        bool seen = lo < hi;
        b->lo[i] = seen ? (uint32_t)(lo - base) : 0;
        b->hi[i] = seen ? (uint32_t)(hi - base) : 0;
        any |= seen;
    }
    return any;
}

static void batch_compute(struct batch *b)
{
    batch_scores(b);
    for (uint32_t i = 0; i < b->n_items; i++)
        if (b->lo[i] < b->hi[i])
            weigh_item(b, i);
    batch_values(b);
}

/* Loads the queries of the batch's items; `first` as in batch_enter. */
static void batch_load(struct batch *b, size_t first)
{
    uint32_t group = group_heads(b->a);
    for (uint32_t i = 0; i < b->n_items; i++) {
        size_t row = (first + i) / group, head = b->kv_head * group + (first + i) % group;
        load_query(b, i, row * b->a->q_stride + head * b->a->head_dim);
        if (b->a->quantized_first < b->a->quantized_end)
            turn_queries(b, i, row * b->a->q_stride + head * b->a->head_dim);
    }
}

static void merge_batch(const struct batch *b, size_t first)
{
    const struct spw_attention_args *a = b->a;
    uint32_t group = group_heads(a);
    for (uint32_t i = 0; i < b->n_items; i++) {
        uint32_t head = b->kv_head * group + (uint32_t)((first + i) % group);
        if (b->lo[i] < b->hi[i])
            merge_out(state_of(a, a->state, (first + i) / group, head), b->out + i * b->out_stride,
                      b->max[i], b->sum[i], a->head_dim);
    }
}

static void store_partials(const struct batch *b, size_t first, uint32_t split, bool any)
{
    const struct spw_attention_args *a = b->a;
    uint32_t group = group_heads(a);
    float *states = a->split_states + split * a->rows * a->n_heads * (a->head_dim + 2);
    for (uint32_t i = 0; i < b->n_items; i++) {
        uint32_t head = b->kv_head * group + (uint32_t)((first + i) % group);
        float *to = state_of(a, states, (first + i) / group, head);
        state_clear(to, a->head_dim);
        if (any && b->lo[i] < b->hi[i])
            merge_out(to, b->out + i * b->out_stride, b->max[i], b->sum[i], a->head_dim);
    }
}

/* Runs the batches of one KV head and row block over splits [from, to): merged into the state, or
 * (to == from + 1) stored as split_states. */
static void attend(const struct spw_attention_args *a, uint32_t kv_head, size_t block,
                   uint32_t from, uint32_t to, bool partial)
{
    _Alignas(64) float q[BATCH_FLOATS], out[BATCH_FLOATS];
    _Alignas(64) float turned[BATCH_FLOATS], out_turned[BATCH_FLOATS];
    signed char q_bytes[2 * BATCH_FLOATS];
    struct limbs q_limbs[BATCH_FLOATS / SPW_QTILE_GROUP + BATCH_ITEMS];
    _Alignas(64) float scores[(size_t)BATCH_ITEMS * SPW_SPLIT_TOKENS];
    struct batch b = {.a = a,
                      .kv_head = kv_head,
                      .out_stride = padded(a->head_dim),
                      .q = q,
                      .scores = scores,
                      .out = out,
                      .turned = turned,
                      .out_turned = out_turned,
                      .q_bytes = q_bytes,
                      .q_limbs = q_limbs};
    size_t group = group_heads(a), first = block * block_rows(a) * group;
    size_t end = spw_min_u64(first + block_rows(a) * group, a->rows * group);
    for (; first < end; first += b.n_items) {
        b.n_items = (uint32_t)spw_min_u64(batch_items(a), end - first);
        batch_load(&b, first);
        b.streams = b.n_items <= FEW_ITEMS;
        b.fetcher = (struct fetcher){.piece = from * SPLIT_PIECES, .n_pieces = to * SPLIT_PIECES};
        find_runs(&b);
        fetch_lines(&b, b.streams || a->quantized_first < a->quantized_end ? FETCH_LEAD : 0);
        for (uint32_t split = from; split < to; split++) {
            bool any = batch_enter(&b, split, first);
            if (any)
                batch_compute(&b);
            if (partial)
                store_partials(&b, first, split, any);
            else if (any)
                merge_batch(&b, first);
        }
    }
}

static void clear_states(const struct spw_attention_args *a, uint32_t kv_head, size_t row,
                         size_t end)
{
    uint32_t group = group_heads(a);
    for (; row < end; row++)
        for (uint32_t i = 0; i < group; i++)
            state_clear(state_of(a, a->state, row, kv_head * group + i), a->head_dim);
}

/* The heads of a KV head's group, of rows [row, end): y = out / sum. An extra logit adds to the
 * sum. */
static void finish(const struct spw_attention_args *a, uint32_t kv_head, size_t row, size_t end)
{
    uint32_t group = group_heads(a);
    const size_t stride = a->y_stride ? a->y_stride : (size_t)a->n_heads * a->head_dim;
    for (; a->y && row < end; row++)
        for (uint32_t head = kv_head * group; head < (kv_head + 1) * group; head++) {
            const float *state = state_of(a, a->state, row, head);
            struct vec sum = vec_set1(state[a->head_dim + 1]);
            if (a->extra_logits)
                sum = vec_add(sum, num_exp(vec_set1(a->extra_logits[head] - state[a->head_dim])));
            for (uint32_t c = 0; c < a->head_dim; c += VEC_LANES) {
                size_t n = spw_min_u64(a->head_dim - c, VEC_LANES);
                vec_store_as(a->y, row * stride + (size_t)head * a->head_dim + c, n, a->dtype,
                             vec_div(vec_load_as(state, c, n, SPW_DTYPE_F32), sum));
            }
        }
}

/* Tasks of one KV head are neighbours: they share its tiles in the cache. */
static size_t attention_tasks(const void *args)
{
    const struct spw_attention_args *a = args;
    return row_blocks(a) * a->n_kv_heads;
}

static void attention_run(const void *args, size_t task, unsigned worker)
{
    const struct spw_attention_args *a = args;
    (void)worker;
    uint32_t kv_head = (uint32_t)(task / row_blocks(a));
    size_t block = task % row_blocks(a), row = block * block_rows(a);
    size_t end = spw_min_u64(row + block_rows(a), a->rows);
    if (a->first)
        clear_states(a, kv_head, row, end);
    attend(a, kv_head, block, 0, n_splits(a), false);
    finish(a, kv_head, row, end);
}

static size_t attention_splits_tasks(const void *args)
{
    return attention_tasks(args) * n_splits(args);
}

static void attention_splits_run(const void *args, size_t task, unsigned worker)
{
    const struct spw_attention_args *a = args;
    (void)worker;
    uint32_t split = (uint32_t)(task / attention_tasks(a)), from = split;
    task %= attention_tasks(a);
    attend(a, (uint32_t)(task / row_blocks(a)), task % row_blocks(a), from, from + 1, true);
}

static size_t attention_merge_tasks(const void *args)
{
    const struct spw_attention_args *a = args;
    return a->rows * a->n_kv_heads;
}

static void attention_merge_run(const void *args, size_t task, unsigned worker)
{
    const struct spw_attention_args *a = args;
    (void)worker;
    size_t row = task / a->n_kv_heads, stride = a->rows * a->n_heads * (a->head_dim + 2);
    uint32_t kv_head = (uint32_t)(task % a->n_kv_heads), group = group_heads(a);
    if (a->first)
        clear_states(a, kv_head, row, row + 1);
    for (uint32_t head = kv_head * group; head < (kv_head + 1) * group; head++)
        for (uint32_t split = 0; split < n_splits(a); split++) {
            const float *part = state_of(a, a->split_states + split * stride, row, head);
            if (part[a->head_dim + 1] != 0)
                merge_out(state_of(a, a->state, row, head), part, part[a->head_dim],
                          part[a->head_dim + 1], a->head_dim);
        }
    finish(a, kv_head, row, row + 1);
}
