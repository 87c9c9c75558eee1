/* Attention over the cache: see attend.h.
 *
 *      tile  0      1 ............. streamed_end .......... E(b)  ......... end
 *            sink   [KV slots]      [device frames, quantized]    [device frames, exact]
 *            exact  <------------- quantized ------------------>
 *
 * Queries come in blocks of 128 positions. If the layer quantizes old tiles, a query of block b
 * reads tiles [1, E(b)) quantized and all others exactly; E(b) is spw_residual_end(b)
 * (quant/residual.h). All rows of one kernel call must read a tile in the same form. So tiles that
 * one block reads quantized and another block reads exactly take a call for each block; all other
 * tiles take one call for all rows. Every call starts at the border of a split, and the splits of a
 * row come in the order of positions.
 *
 * All this is done for each slice of the layer (struct spw_kv_shape): a call has the heads of q
 * that read the slice's KV heads. Heads do not depend on each other, so slices change no bit.
 *
 * In the decoder of a model with an encoder the first tiles of a layer hold the keys and values of
 * the source, which are written once; the other tokens follow them. The layer itself reads from its
 * own tokens on, and the layer after it, CROSS, reads those of the source.
 */
#include "runtime/step/attend.h"

#include "base/numbers.h"

#include <assert.h>

enum { SIDE_BY_SIDE = 4 }; /* a call with fewer splits in parallel costs more than it saves */

/* What attention computes of one part with one slice: the rows of the part, in the heads of q that
 * read the KV heads of the slice. */
struct spw_query {
    const struct spw_attend *a;
    const struct spw_attend_part *s;
    const struct spw_residency *r;  /* of the layer's kind */
    uint32_t slice;                 /* whose tiles are read */
    uint32_t end;                   /* after the last tile */
    uint32_t first, streamed_end;   /* tiles [first, streamed_end) come from lower tiers */
    uint32_t from;                  /* the first tile that no call has read yet: a split's border */
    uint8_t *y;                     /* where the last call writes the results of the rows */
    struct spw_attention_args args; /* of all rows; a call changes its rows and tiles only */
};

/* What one or several calls read: tiles [from, to), from a split's border on. Tiles [slot_first,
 * slot_end) lie in `slot`, later ones in their device frames. Queries see no tile before
 * slot_first, except the sink. */
struct piece {
    uint32_t from, to;
    uint32_t slot_first, slot_end;
    const uint8_t *slot;
};

static uint8_t *element(const struct spw_attend *a, void *base, uint64_t index)
{
    return (uint8_t *)base + index * spw_dtype_bytes(a->plan->info.compute);
}

static uint64_t state_row(const struct spw_attention_args *x)
{
    return (uint64_t)x->n_heads * (x->head_dim + 2);
}

/* Numbers of a row of what the products have given: rows of a source have no q. */
static uint64_t qkv_width(const struct spw_attend *a, const struct spw_attend_part *s)
{
    const struct spw_model_config *c = a->weights->config;
    return s->keys_only ? 2 * spw_config_kv_width(c, s->layer) : spw_config_qkv_width(c, s->layer);
}

/* Where a part begins in them. */
static uint8_t *q_of(const struct spw_attend *a, const struct spw_attend_part *s)
{
    return element(a, a->lane->device_arena + a->plan->device.qkv, s->row * qkv_width(a, s));
}

/* Of the k-th slice of the layer. */
static struct spw_query make_query(const struct spw_attend *a, const struct spw_attend_part *s,
                                   uint32_t k)
{
    const struct spw_model_config *c = a->weights->config;
    const struct spw_kv_shape *shape = spw_config_kv(c, s->layer);
    const uint32_t n_heads = c->n_heads / shape->n_slices, before = k * n_heads;
    const uint64_t width = spw_config_q_width(c, s->layer), rows = s->to - s->from;
    const uint64_t channels = (uint64_t)before * shape->head_dim;
    const enum spw_layer_kind kind = (enum spw_layer_kind)c->layer_kinds[s->layer];
    const struct spw_residency *r = &s->seq->residency[spw_config_tile_kind(c, kind)];
    const bool sees_source = spw_layer_sees_source(kind);
    const float *small = (const float *)(a->lane->device_arena + a->plan->device.small);
    const uint64_t extra_logits = a->weights->small_layers[s->layer].extra_logits;
    const uint64_t bias = a->weights->small_layers[s->layer].relative_bias;
    assert(shape->v_dim == shape->head_dim); /* the kernels have one width */
    struct spw_query q = {
        .a = a,
        .s = s,
        .r = r,
        .slice = c->first_slices[s->layer] + k,
        .y = element(a, a->lane->device_arena + a->plan->device.attention,
                     s->row * width + channels),
        .args = {.q = element(a, q_of(a, s), channels),
                 .state = (float *)(a->lane->device_arena + a->plan->device.state),
                 .rows = rows,
                 .q_stride = qkv_width(a, s),
                 .y_stride = width,
                 .position = s->from,
                 .first_key = sees_source ? 0 : s->n_source,
                 .seen_end = sees_source ? s->n_source : 0,
                 .relative_bias = bias == SPW_SMALL_NONE
                                      ? NULL
                                      : small + bias + before * (2 * c->most_distance + 1),
                 .most_distance = c->most_distance,
                 .n_heads = n_heads,
                 .n_kv_heads = spw_config_slice_heads(shape),
                 .head_dim = shape->head_dim,
                 .window = r->window,
                 .scale = c->attention_scale,
                 .softcap = c->attention_softcap,
                 .extra_logits =
                     extra_logits == SPW_SMALL_NONE ? NULL : small + extra_logits + before,
                 .first = true,
                 .dtype = a->plan->info.compute,
                 .kv_dtype = a->plan->info.kv,
                 .qformat = a->plan->format},
    };
    /* The states of a part: those of its rows for the first slice, then for the second one. */
    q.args.state += (s->row * shape->n_slices + k * rows) * state_row(&q.args);
    return q;
}

/* ---- new tokens ---- */

/* Makes room for the rows in each slice of the layer, and lists the tiles that they reach. */
static int take_tiles(const struct spw_model_config *c, const struct spw_attend_part *s,
                      void *tiles[SPW_APPEND_TILES])
{
    const uint32_t first = (uint32_t)(s->from / SPW_TILE_TOKENS);
    const uint32_t end_slice = c->first_slices[s->layer] + spw_config_layer_slices(c, s->layer);
    struct spw_kv_seq *kv = s->seq->kv;
    uint32_t n = 0;
    for (uint32_t slice = c->first_slices[s->layer]; slice < end_slice; slice++) {
        SPW_TRY(spw_kv_grow(kv, slice, s->from, s->to));
        const uint32_t end = spw_kv_exact_end(kv, slice);
        assert(n + end - first <= SPW_APPEND_TILES);
        for (uint32_t t = first; t < end; t++)
            tiles[n++] = spw_kv_exact_tile(kv, slice, t);
    }
    return 0;
}

static uint8_t *source_tile(const struct spw_attend *a, const struct spw_attend_part *s, uint32_t t)
{
    return a->lane->device_arena + a->plan->device.source_tiles +
           (s->source_tile + t) * a->plan->exact_tile_bytes;
}

static void list_source_tiles(const struct spw_attend *a, const struct spw_attend_part *s,
                              void *tiles[SPW_APPEND_TILES])
{
    const uint32_t first = (uint32_t)(s->from / SPW_TILE_TOKENS);
    for (uint32_t t = first; t < spw_waterline_tiles(s->to); t++)
        tiles[t - first] = source_tile(a, s, t);
}

/* Norms and rotates q and k; k and v go into the tail tiles. A layer that reads the tiles of
 * another one has q only. */
static int append(const struct spw_attend *a, const struct spw_attend_part *s)
{
    const struct spw_model_config *c = a->weights->config;
    const struct spw_kv_shape *shape = spw_config_kv(c, s->layer);
    const struct spw_layer_small *at = &a->weights->small_layers[s->layer];
    const float *small = (const float *)(a->lane->device_arena + a->plan->device.small);
    const uint32_t after = shape->head_dim; /* from the weights of a norm to its biases */
    uint32_t kind = c->layer_kinds[s->layer];
    const bool rotates = c->rotates[s->layer], norms = c->qk_norm && !c->qk_norm_whole;
    const bool stores = spw_config_stores_kv(c, s->layer);
    const bool norm_last = c->qk_norm_last && rotates;
    const bool gate_in_q = c->attention_gate == SPW_ATTENTION_GATE_IN_Q;
    const uint64_t gate_width = spw_config_gate_width(c, s->layer);
    struct spw_rope_append_args x = {
        .qkv = q_of(a, s),
        .q = gate_in_q ? element(a, a->lane->device_arena + a->plan->device.attention_gate,
                                 s->row * gate_width)
                       : NULL,
        .q_stride = gate_width,
        .q_step = 2 * (size_t)shape->head_dim,
        .q_norm = norm_last ? small + a->weights->bare_norm
                  : norms   ? small + at->q_norm
                            : NULL,
        .k_norm = norm_last         ? small + a->weights->bare_norm
                  : norms && stores ? small + at->k_norm
                                    : NULL,
        .norm_last = norm_last || c->qk_norm_after_rope,
        .q_norm_bias = norms && c->qk_norm_bias ? small + at->q_norm + after : NULL,
        .k_norm_bias = norms && stores && c->qk_norm_bias ? small + at->k_norm + after : NULL,
        .norm_by_head = c->qk_norm_by_head,
        .growth = c->grows_unrotated && rotates ? (struct spw_query_growth){0} : c->query_growth,
        .inv_freq = small + (rotates ? a->weights->inv_freq[kind] : a->weights->no_freq),
        .rows = s->to - s->from,
        .stride = qkv_width(a, s),
        .position = s->from,
        .n_heads = s->keys_only ? 0 : c->n_heads,
        .n_kv_heads = stores ? shape->n_heads : 0,
        .head_dim = shape->head_dim,
        .rotary_dim = c->rope[kind].rotary_dim,
        .scaling = rotates ? a->weights->rope_scaling[kind] : 1,
        .eps = c->rms_eps,
        .interleaved = c->interleaved_qk,
        .rounding = c->rope_rounding,
        .v_norm = c->v_norm,
        .v_is_k = c->v_is_k[kind],
        .norm = c->norm,
        .dtype = a->plan->info.compute,
        .kv_dtype = a->plan->info.kv,
        .slice_heads = spw_config_slice_heads(shape)};
    if (s->layer < c->n_source_layers)
        list_source_tiles(a, s, x.tiles);
    else if (stores)
        SPW_TRY(take_tiles(c, s, x.tiles));
    return a->ops->rope_append(&x, a->lane->compute);
}

/* ---- quantizing ---- */

static int quantize_tile(const struct spw_query *q, uint32_t tile)
{
    const struct spw_attend *a = q->a;
    const void *from = spw_kv_exact_tile(q->s->seq->kv, q->slice, tile);
    void *to = spw_kv_device_tile(q->s->seq->kv, q->slice, tile);
    if (a->plan->format == SPW_QFORMAT_EXACT)
        return spw_lane_copy(a->lane, to, from, a->plan->tile_bytes, SPW_LINK_DEVICE_TO_DEVICE,
                             a->lane->compute);
    return a->ops->kv_quantize(
        &(struct spw_codec_args){.tile = from,
                                 .qtile = to,
                                 .n_kv_heads = q->args.n_kv_heads,
                                 .widths = spw_tile_square(q->args.head_dim),
                                 .dtype = a->plan->info.kv,
                                 .format = a->plan->format,
                                 .not_finite =
                                     (uint32_t *)(a->lane->device_arena + a->plan->device.flags)},
        a->lane->compute);
}

/* Quantizes the tiles that no query after these rows reads exactly. */
static int quantize(const struct spw_query *q)
{
    const struct spw_attend_part *s = q->s;
    struct spw_kv_seq *kv = s->seq->kv;
    uint32_t from = spw_kv_end(kv, q->slice);
    uint32_t to = spw_waterline_end(q->r, s->to);
    if (!q->r->quantizes || from >= to)
        return 0;
    SPW_TRY(spw_kv_quantize(kv, q->slice, to));
    for (uint32_t t = from; t < to; t++)
        SPW_TRY(quantize_tile(q, t));
    return 0;
}

/* ---- reading ---- */

/* How many splits a call with so many rows can compute in parallel: each needs memory for its
 * partial results. */
static uint64_t splits_side_by_side(const struct spw_attend *a, uint64_t rows)
{
    return a->plan->parallel_splits / rows;
}

/* The address of a tile of the piece, for rows that read tiles [1, old) in the quantized form.
 * NULL: these rows cannot see the tile. */
static const void *locate(const struct spw_query *q, const struct piece *p, uint32_t tile,
                          uint32_t old)
{
    const struct spw_kv_seq *kv = q->s->seq->kv;
    bool sink = q->r->quantizes && !tile;
    if (tile < p->slot_first && !sink)
        return NULL;
    if (q->a->plan->quantizes && (sink || tile >= old))
        return spw_kv_exact_tile(kv, q->slice, tile);
    if (tile < p->slot_end)
        return p->slot + (tile - p->slot_first) * q->a->plan->tile_bytes;
    return spw_kv_device_tile(kv, q->slice, tile);
}

/* One call: rows [row, row + rows), which read tiles [1, old) in the quantized form. */
static int attend_rows(const struct spw_query *q, const struct piece *p, uint64_t row,
                       uint64_t rows, uint32_t old)
{
    const struct spw_attend *a = q->a;
    struct spw_attention_args x = q->args;
    uint32_t first = p->from ? p->from : 1; /* the sink is exact */
    x.q = element(a, (void *)(uintptr_t)x.q, row * x.q_stride);
    x.state += row * state_row(&x);
    x.rows = rows;
    x.position += row;
    if (spw_div_up(p->to - p->from, SPW_SPLIT_TILES) <= splits_side_by_side(a, rows))
        x.split_states = (float *)(a->lane->device_arena + a->plan->device.split_states);
    if (p->to == q->end)
        x.y = element(a, q->y, row * x.y_stride);
    x.tile_first = p->from;
    x.n_tiles = p->to - p->from;
    if (old > first && x.qformat != SPW_QFORMAT_EXACT) {
        x.quantized_first = first - p->from;
        x.quantized_end = old - p->from;
    }
    for (uint32_t t = p->from; t < p->to; t++)
        x.tiles[t - p->from] = locate(q, p, t, old);
    return a->ops->attention(&x, a->lane->compute);
}

/* The end of the tiles of the piece that queries of this block read in the quantized form. */
static uint32_t old_end(const struct spw_query *q, const struct piece *p, uint64_t block)
{
    uint64_t end = q->r->quantizes ? spw_residual_end(block, q->r->residual_tiles) : 0;
    return end < p->from ? p->from : end < p->to ? (uint32_t)end : p->to;
}

/* All rows read the piece: one call for all neighbouring blocks that read the same tiles quantized.
 */
static int attend_piece(struct spw_query *q, const struct piece *p)
{
    uint64_t n = q->args.rows, next;
    for (uint64_t row = 0; row < n; row = next) {
        uint64_t block = spw_residual_block(q->args.position + row);
        uint32_t old = old_end(q, p, block);
        do {
            next = ++block * SPW_TILE_TOKENS - q->args.position;
        } while (next < n && old_end(q, p, block) == old);
        next = next < n ? next : n;
        SPW_TRY(attend_rows(q, p, row, next - row, old));
    }
    q->args.first = false;
    return 0;
}

/* The query of part i in the k-th slice of the layer. */
static struct spw_query *query_of(const struct spw_attend *a, uint32_t i, uint32_t k)
{
    return &a->queries[i * a->most_slices + k];
}

/* Reads the splits with streamed tiles, one slot at a time: a piece has the splits of a slot. Other
 * parts of the chunk that share these tiles read the slot, too. */
static int read_streamed(const struct spw_attend *a, uint32_t n, uint32_t part, uint32_t k)
{
    const struct spw_query *q = query_of(a, part, k);
    uint32_t to, slot_tiles = a->plan->slot_tiles;
    for (uint32_t tile = spw_max_u32(q->first, q->s->shared_end); tile < q->streamed_end;
         tile = to) {
        to = (tile / slot_tiles + 1) * slot_tiles;
        uint32_t here = spw_min_u32(to, q->streamed_end);
        struct spw_transfer t = {.seq = q->s->seq->kv,
                                 .layer = q->slice,
                                 .tile_begin = tile,
                                 .tile_end = here,
                                 .reader = q->s->layer};
        uint8_t *slot;
        SPW_TRY(spw_prefetch_wait_kv(a->prefetch, &t, &slot));
        for (uint32_t i = part; i < n; i++) {
            struct spw_query *reader = query_of(a, i, k);
            if (i != part && (reader->s->shared_with != part || reader->s->shared_end < to))
                continue;
            const struct piece p = {.from = reader->from,
                                    .to = spw_min_u32(to, reader->end),
                                    .slot_first = tile,
                                    .slot_end = here,
                                    .slot = slot};
            SPW_TRY(attend_piece(reader, &p));
            reader->from = to;
        }
        SPW_TRY(spw_prefetch_release_kv(a->prefetch));
    }
    return 0;
}

/* Reads the splits that lie on the device as a whole. */
static int read_resident(struct spw_query *q)
{
    uint32_t to, most = q->a->ops->attention_tiles;
    /* If not all splits can run in parallel, but some can: calls of that many splits are faster
     * than one call that reads its splits one after the other. */
    uint64_t fit = splits_side_by_side(q->a, q->args.rows);
    if (fit >= SIDE_BY_SIDE && fit * SPW_SPLIT_TILES < most)
        most = (uint32_t)fit * SPW_SPLIT_TILES;
    for (uint32_t from = q->from; from < q->end; from = to) {
        to = q->end - from < most ? q->end : from + most;
        uint32_t visible = spw_max_u32(q->first, from);
        struct piece p = {.from = from, .to = to, .slot_first = visible, .slot_end = visible};
        SPW_TRY(attend_piece(q, &p));
    }
    return 0;
}

int spw_attend_append(const struct spw_attend *a, uint32_t i, const struct spw_attend_part *s)
{
    SPW_TRY(append(a, s));
    for (uint32_t k = 0; k < spw_config_layer_slices(a->weights->config, s->layer); k++) {
        struct spw_query *q = query_of(a, i, k);
        *q = make_query(a, s, k);
        SPW_TRY(quantize(q));
        q->end = s->reads.end; /* of a layer that others read, there may be more */
        q->first = spw_max_u32(s->tiles->first, s->reads.first);
        q->streamed_end = spw_min_u32(s->tiles->begin, q->end);
        q->from = q->first - q->first % SPW_SPLIT_TILES;
    }
    return 0;
}

int spw_attend_keep_source(const struct spw_attend *a, uint32_t i, const struct spw_attend_part *s)
{
    (void)i;
    return append(a, s);
}

int spw_attend_source(const struct spw_attend *a, uint32_t i, const struct spw_attend_part *s)
{
    const uint32_t end = spw_waterline_tiles(s->n_source), most = a->ops->attention_tiles;
    struct spw_query q = make_query(a, s, 0);
    struct spw_attention_args *x = &q.args;
    (void)i;
    for (uint32_t from = 0; from < end; from += x->n_tiles, x->first = false) {
        x->tile_first = from;
        x->n_tiles = spw_min_u32(most, end - from);
        x->y = from + x->n_tiles == end ? q.y : NULL;
        for (uint32_t t = 0; t < x->n_tiles; t++)
            x->tiles[t] = source_tile(a, s, from + t);
        SPW_TRY(a->ops->attention(x, a->lane->compute));
    }
    return 0;
}

int spw_attend_read(const struct spw_attend *a, uint32_t n)
{
    const uint32_t n_slices = spw_config_layer_slices(a->weights->config, a->queries->s->layer);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < n_slices; k++) {
            SPW_TRY(read_streamed(a, n, i, k));
            SPW_TRY(read_resident(query_of(a, i, k)));
        }
    return 0;
}

int spw_attend_init(struct spw_attend *a, uint32_t most)
{
    a->most_slices = spw_config_most_slices(a->weights->config);
    a->queries = spw_alloc_zero((size_t)most * a->most_slices, sizeof *a->queries);
    return a->queries ? 0 : -ENOMEM;
}

void spw_attend_free(struct spw_attend *a)
{
    spw_free(a->queries);
    a->queries = NULL;
}
