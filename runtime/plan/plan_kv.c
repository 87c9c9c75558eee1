/* The KV cache as the plan sees it: how many frames tiles need, what sessions keep with those they
 * get, and what the rest costs. See plan_parts.h. */
#include "runtime/plan/plan_parts.h"
#include "runtime/plan/shares.h"

void spw_plan_start_kinds(struct spw_plan *p, const struct spw_plan_input *in)
{
    p->quantizes = in->quantizes;
    for (int k = 0; k < SPW_LAYER_KINDS; k++)
        p->residency[k] = (struct spw_residency){
            .store = spw_layer_has_tiles((enum spw_layer_kind)k) || p->n_slices[k]
                         ? spw_layer_kinds[k].store
                         : SPW_STORE_NOTHING,
            .window = spw_layer_window((enum spw_layer_kind)k,
                                       p->n_slices[k] ? in->weights->config->window : 0),
            .quantizes = in->quantizes && k == (int)p->full_kind,
            .residual_tiles = in->residual_tiles,
            .fixed = (in->quantizes && k == (int)p->window_kind) ||
                     !spw_layer_has_tiles((enum spw_layer_kind)k),
            .held = p->holds_tiles,
        };
}

struct spw_store_need spw_plan_slice_need(const struct spw_plan *p, uint32_t kind,
                                          uint64_t n_tokens)
{
    const struct spw_residency *r = &p->residency[kind];
    if (!p->n_slices[kind])
        return (struct spw_store_need){0};
    return spw_layer_stores[r->store]->need(r, n_tokens);
}

uint64_t spw_plan_retained_bytes(const struct spw_plan *p, const struct spw_plan_input *in)
{
    uint64_t tiles = 0;
    for (uint32_t k = 0; k < SPW_LAYER_KINDS; k++)
        tiles += p->n_slices[k] * (uint64_t)spw_plan_slice_need(p, k, in->context).retained;
    return in->sessions * tiles * p->exact_tile_bytes;
}

/* A chunk of m rows in k parts starts at most m/128 + k tiles of each slice of a layer, and makes
 * as many old. Where tiles are held for layers that read them, slices of several layers hold those
 * of a whole pass, also if the pass was paused for another one. */
static uint64_t new_tiles(const struct spw_plan *p, const struct spw_plan_input *in)
{
    uint64_t rows = p->holds_tiles ? p->pass_rows : p->chunk;
    uint64_t tiles = rows / SPW_TILE_TOKENS + spw_min_u64(in->sessions, rows);
    return p->n_growing * (tiles + (p->holds_tiles ? p->rows_beside : 0));
}

/* The most tiles of one slice of all sessions that are open, where each holds at most `each`. */
static uint64_t most_tiles(const struct spw_plan *p, const struct spw_plan_input *in, uint64_t each)
{
    return spw_min_u64(in->sessions * each, spw_plan_full_sessions(in) * p->max_tiles);
}

/* Exact tiles beside quantized ones: all that slices hold between steps, and new ones. */
uint32_t spw_plan_exact_frames(const struct spw_plan *p, const struct spw_plan_input *in)
{
    if (!in->quantizes)
        return 0;
    uint64_t all = 0;
    for (uint32_t k = 0; k < SPW_LAYER_KINDS; k++)
        all += p->n_slices[k] * most_tiles(p, in, spw_plan_slice_need(p, k, in->context).fixed);
    if (p->may_retain)
        all += spw_plan_retained_bytes(p, in) / p->exact_tile_bytes;
    return (uint32_t)spw_min_u64(all + new_tiles(p, in), SPW_PLAN_MOST_FRAMES);
}

/* One more than the frames: they begin at a multiple of their size. */
uint64_t spw_plan_exact_bytes(const struct spw_plan *p)
{
    return p->n_exact_frames ? (p->n_exact_frames + 1) * p->exact_tile_bytes : 0;
}

/* Sessions that are together as long as full_sessions contexts have at most this many tiles: a
 * session loses residual_tiles + 1 of its tiles, so that many short ones have fewer old tiles. */
static uint64_t most_full_tiles(const struct spw_plan *p, const struct spw_plan_input *in)
{
    uint64_t each = p->full_tiles;
    if (in->quantizes && spw_plan_pools(in))
        each = spw_sub_u64(p->max_tiles, in->residual_tiles + (uint64_t)1);
    return spw_plan_full_sessions(in) * each;
}

uint64_t spw_plan_all_tiles(const struct spw_plan *p, const struct spw_plan_input *in)
{
    uint32_t window = spw_plan_slice_need(p, p->window_kind, in->context).moving;
    return spw_plan_n_full(p) * most_full_tiles(p, in) +
           spw_plan_n_windowed(p) * most_tiles(p, in, window);
}

struct spw_plan_need spw_plan_kv_need(const struct spw_plan *p, const struct spw_plan_input *in)
{
    const struct spw_store_need window = spw_plan_slice_need(p, p->window_kind, in->context);
    uint64_t full = spw_plan_n_full(p), sliding = in->quantizes ? 0 : spw_plan_n_windowed(p);
    uint64_t retained = p->may_retain ? window.retained : 0;
    struct spw_plan_need n = {.extra = new_tiles(p, in),
                              .window_tiles = window.moving + window.fixed};
    uint64_t beside_windows = sliding ? n.extra : 0;
    uint64_t each = sliding * (n.window_tiles + retained) + full * p->full_tiles;
    n.whole = spw_plan_full_sessions(in) * each + beside_windows;
    n.all = spw_plan_all_tiles(p, in) + in->sessions * sliding * retained + beside_windows;
    n.least = in->sessions * (sliding + full) + n.extra;
    return n;
}

/* Before the division: full layers have nothing on the device, windows are there whole. */
static void start_residency(struct spw_plan *p, const struct spw_plan_need *need)
{
    for (int k = 0; k < SPW_LAYER_KINDS; k++) {
        spw_residency_fix(&p->residency[k], p->residency[k].window.tokens ? need->window_tiles : 0);
        p->residency[k].host = UINT32_MAX;
    }
}

static void divide_frames(struct spw_plan *p, const struct spw_plan_input *in,
                          const struct spw_plan_need *need, uint64_t frames)
{
    uint64_t sliding = in->quantizes ? 0 : spw_plan_n_windowed(p);
    start_residency(p, need);
    p->n_device_frames = (uint32_t)frames;
    p->new_frames = (uint32_t)need->extra;
    p->retains = p->may_retain;
    if (frames >= need->all) {
        spw_residency_fix(&p->residency[p->full_kind], p->max_tiles);
        return;
    }
    const struct spw_session_tiles t = spw_session_tiles(p, in->context);
    uint64_t of_all = frames - need->extra, least = of_all / in->sessions;
    p->retains &= !sliding || least >= sliding * (t.window + t.retained) + spw_plan_n_full(p);
    spw_session_divide(p->residency, p, &t, of_all / spw_plan_full_sessions(in));
}

bool spw_plan_take_frames(struct spw_plan *p, const struct spw_plan_input *in, uint64_t frames)
{
    struct spw_plan_need need = spw_plan_kv_need(p, in);
    bool streams = p->n_kv_slots;
    if (frames < (streams ? need.least : need.all) || need.all > SPW_PLAN_MOST_FRAMES ||
        (streams && (in->kv_stays || need.whole <= need.least)))
        return false;
    divide_frames(p, in, &need, spw_min_u64(frames, streams ? need.whole - 1 : need.all));
    return true;
}

/* ---- what decode costs the link ---- */

/* Tiles of one slice of a layer of this kind that a decode step at the full context loads. */
static uint64_t streamed_tiles(const struct spw_plan *p, const struct spw_plan_input *in,
                               enum spw_layer_kind kind)
{
    uint64_t all = kind == p->full_kind ? p->full_tiles : spw_plan_kv_need(p, in).window_tiles;
    return spw_sub_u64(all, p->residency[kind].resident);
}

static uint64_t disk_cost(const struct spw_plan_input *in)
{
    return in->disk_cost ? in->disk_cost : 1;
}

uint32_t spw_plan_tiles_on_disk(const struct spw_plan *p, const struct spw_lower *b,
                                enum spw_layer_kind kind)
{
    const struct spw_residency *r = &p->residency[kind];
    uint32_t start = spw_waterline_first_tiered(r);
    return spw_waterline_disk_end(r, start + (kind == p->full_kind ? b->full : b->sliding)) - start;
}

/* What the first n tiles cost of a layer that loads `tiles`. Tiles on disk come first. */
static uint64_t cost_of_first(const struct spw_plan *p, const struct spw_plan_input *in,
                              enum spw_layer_kind kind, uint64_t tiles, uint64_t n)
{
    struct spw_lower b;
    spw_lower_count(&b, p, in);
    uint64_t on_disk = spw_plan_tiles_on_disk(p, &b, kind);
    n = spw_min_u64(n, tiles);
    return n + spw_min_u64(n, on_disk) * (disk_cost(in) - 1);
}

/* Bytes that move, the disk's bytes at their price, and the fixed cost of each transfer. */
uint64_t spw_plan_kv_cost(const struct spw_plan *p, const struct spw_plan_input *in)
{
    uint64_t bytes = 0;
    for (enum spw_layer_kind k = 0; k < SPW_LAYER_KINDS; k++) {
        if (!p->n_readers[k])
            continue;
        const uint64_t tiles = streamed_tiles(p, in, k);
        bytes += p->n_readers[k] * (cost_of_first(p, in, k, tiles, tiles) * p->tile_bytes +
                                    spw_div_up(tiles, p->slot_tiles) * in->transfer_cost_bytes);
    }
    return spw_plan_full_sessions(in) * bytes;
}

uint64_t spw_plan_expected_misses(const struct spw_plan *p, const struct spw_plan_input *in,
                                  uint64_t bytes)
{
    const struct spw_weights *w = in->weights;
    const struct spw_experts_config *e = &w->config->experts;
    if (!p->n_expert_frames)
        return 0;
    double missing = 1 - (double)p->n_expert_frames / w->n_expert_blocks;
    return (uint64_t)(missing * e->n_kept / e->n * (double)bytes);
}

/* The bytes of experts that a token reads from outside the device, in a pass of `rows` tokens. The
 * host multiplies some of them in its own memory: these count as the bytes that the link moves in
 * that time. Blocks that the link brings meanwhile (spw_host_link_blocks) have the same price. */
static uint64_t experts_cost(const struct spw_plan *p, const struct spw_plan_input *in,
                             uint64_t rows)
{
    const struct spw_experts_config *e = &in->weights->config->experts;
    const uint64_t *pages = in->weights->expert_pages;
    uint64_t all = spw_plan_expected_misses(p, in, pages[in->weights->n_expert_blocks]);
    if (all && rows <= p->host_rows)
        all = spw_host_cost(&p->host_rates, (uint32_t)rows, e->n, e->n_kept, all);
    return all + spw_plan_expected_misses(p, in, pages[p->n_disk_experts]) * (disk_cost(in) - 1);
}

static uint64_t dense_cost(const struct spw_plan *p, const struct spw_plan_input *in, uint64_t rows)
{
    const uint64_t moved = p->streamed_bytes + p->disk_read_bytes * disk_cost(in);
    if (rows > p->host_layer_rows)
        return moved;
    return moved - p->host_read_bytes +
           spw_host_cost(&p->host_rates, (uint32_t)rows, 1, 1, p->host_read_bytes);
}

uint64_t spw_plan_weights_cost(const struct spw_plan *p, const struct spw_plan_input *in)
{
    const uint64_t rows = spw_plan_full_sessions(in);
    return dense_cost(p, in, rows) + experts_cost(p, in, rows);
}

uint64_t spw_plan_pass_cost(const struct spw_plan *p, const struct spw_plan_input *in)
{
    const struct spw_experts_config *e = &in->weights->config->experts;
    const uint64_t experts = e->n ? experts_cost(p, in, p->chunk) / e->n_kept * e->n : 0;
    const uint64_t source = p->source_streamed_bytes + p->source_disk_bytes * disk_cost(in);
    return dense_cost(p, in, p->chunk) + source + experts;
}

/* The part of KV's cost that is hidden: the ring loads tiles while the weights of a layer are read,
 * as many as it holds and as there is time for. */
uint64_t spw_plan_overlapped_cost(const struct spw_plan *p, const struct spw_plan_input *in)
{
    const struct spw_model_config *c = in->weights->config;
    uint64_t weights = 0, ring = (uint64_t)p->n_kv_slots * p->slot_tiles, cost = 0;
    for (uint32_t u = 0; u < c->n_layers; u++)
        weights += in->weights->blocks[u].bytes;
    if (!in->reads_per_link_byte)
        return 0;
    uint64_t time = weights / c->n_layers / in->reads_per_link_byte;
    for (enum spw_layer_kind k = 0; k < SPW_LAYER_KINDS; k++) {
        if (!p->n_readers[k])
            continue;
        const uint64_t tiles = spw_plan_full_sessions(in) * streamed_tiles(p, in, k);
        cost += p->n_readers[k] *
                spw_min_u64(cost_of_first(p, in, k, tiles, ring) * p->tile_bytes, time);
    }
    return cost;
}
