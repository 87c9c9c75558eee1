/* The plan: see plan.h.
 *
 * In decode every weight byte and every KV byte is read once a step, so a byte of device memory
 * saves one byte of traffic wherever it is spent. What breaks the tie is the prompt: while it
 * passes a layer, that layer's KV is read once a chunk. So memory goes, in this order, to
 *   1. what no step can do without: one chunk's buffers, two slots of each ring, one tile a layer;
 *   2. the KV of the one layer that a prompt passes;
 *   3. hidden states, if they are small beside the rest;
 *   4. weights, spread over the layers;
 *   5. the newest tiles of all layers.
 * The other way round, with the whole KV cache on the device and 4 getting the rest, is taken where
 * decode streams less with it. Last of all,
 * some of the tiles' memory may make the KV slots larger: fewer, larger transfers.
 *
 * Where old tiles are kept apart, all this is about them; what is exact then stays on the device,
 * where its frames belong to what no step can do without.
 *
 * Tiles that do not stay on the device have their copy on the host, without a disk all of them.
 * With one, the host holds what the disk has no room for, then hidden states, then buffers between
 * the two and as many of the newest copies as fit. A byte from disk costs as much as `disk_cost`
 * over the link: once the plan stands, weights that come from the host make room for tiles where
 * that is cheaper, and the ring becomes as deep as the disk wants it. */
#include "runtime/plan.h"

#include "runtime/below.h"
#include "runtime/budgets.h"

enum {
    PAGE = 4096,
    CHUNK_MOST = 512,
    PIECE_BYTES = 4 << 20,
    CHUNK_LEAST = 16,
    SLOTS = 3, /* one is read, one lands, one waits to be released */
    UNIT_SLOTS = 2,
    LOGITS_ROWS = 16,
    PARTIAL_ROWS = 4,
    FEW_CHUNKS = 4,
    FEW_PASSES = 4,
    MOST_SLOTS = 256,
    RING_SHARE = 8, /* a ring for the disk takes at most one in so many of the KV's tiles */
    MOST_FRAMES = INT32_MAX,
};

static uint64_t pages(uint64_t bytes)
{
    return spw_align_up(bytes, PAGE);
}

static void count_layers(struct spw_plan *p, const struct spw_model_config *c)
{
    for (uint32_t l = 0; l < c->n_layers; l++)
        p->n_sliding += c->layer_kinds[l] == SPW_LAYER_SLIDING;
    p->n_full = c->n_layers - p->n_sliding;
}

/* ---- weights ---- */

/* Bytes of units that `is` holds for, each on a page, for the n_resident_units of p. */
static uint64_t bytes_of(const struct spw_plan *p, const struct spw_weights *w,
                         bool (*is)(const struct spw_plan *, const struct spw_weights *, uint32_t))
{
    uint64_t bytes = 0;
    for (uint32_t u = 0; u < w->n_units; u++)
        if (is(p, w, u))
            bytes += pages(spw_weights_unit_bytes(w, u));
    return bytes;
}

static uint64_t weights_use(struct spw_plan *p, const struct spw_weights *w, uint32_t n_resident)
{
    p->n_resident_units = n_resident;
    p->n_unit_slots = n_resident < w->n_units ? UNIT_SLOTS : 0;
    return bytes_of(p, w, spw_plan_unit_resident) + p->n_unit_slots * p->slot_unit_bytes;
}

/* Takes as many units as `bytes` hold, slots for the others included. Returns what it uses;
 * UINT64_MAX if there is no room for the slots. */
static uint64_t fit_weights(struct spw_plan *p, const struct spw_weights *w, uint64_t bytes)
{
    uint32_t low = 0, high = w->n_units - 1;
    if (weights_use(p, w, w->n_units) <= bytes)
        return weights_use(p, w, w->n_units);
    if (weights_use(p, w, 0) > bytes)
        return UINT64_MAX;
    while (low < high) {
        uint32_t middle = (low + high + 1) / 2;
        if (weights_use(p, w, middle) <= bytes)
            low = middle;
        else
            high = middle - 1;
    }
    return weights_use(p, w, low);
}

/* ---- KV ---- */

struct kv_need {
    uint64_t extra;        /* frames for the tiles that one chunk adds to a layer */
    uint64_t all;          /* frames with everything on the device */
    uint64_t least;        /* one tile a layer and session */
    uint64_t passing;      /* with one whole layer beside that */
    uint32_t window_tiles; /* of a sliding layer */
};

static uint32_t window_tiles(const struct spw_plan *p, const struct spw_plan_input *in)
{
    if (!p->n_sliding)
        return 0;
    return (uint32_t)spw_min_u64(spw_waterline_window_tiles(in->weights->config->window),
                                 p->max_tiles);
}

/* A chunk of m rows in k segments starts at most m/128 + k tiles, and makes as many old. */
static uint64_t chunk_tiles(const struct spw_plan *p, const struct spw_plan_input *in)
{
    return p->chunk / SPW_TILE_TOKENS + spw_min_u64(in->sessions, p->chunk);
}

/* Exact tiles that are kept apart from those that age: all that layers hold between steps, and what
 * one chunk adds to the layer it passes. */
static uint32_t near_frames(const struct spw_plan *p, const struct spw_plan_input *in)
{
    if (!in->aged)
        return 0;
    uint64_t full = spw_min_u64(spw_waterline_near_tiles(in->residual_tiles), p->max_tiles);
    uint64_t all = in->sessions * (p->n_full * full + p->n_sliding * window_tiles(p, in));
    return (uint32_t)spw_min_u64(all + chunk_tiles(p, in), MOST_FRAMES);
}

static struct kv_need kv_need(const struct spw_plan *p, const struct spw_plan_input *in)
{
    uint64_t b = in->sessions, full = p->n_full, sliding = in->aged ? 0 : p->n_sliding;
    struct kv_need n = {.extra = chunk_tiles(p, in), .window_tiles = window_tiles(p, in)};
    n.all = b * (sliding * n.window_tiles + full * p->full_tiles) + (sliding ? n.extra : 0);
    n.least = b * (sliding + full) + n.extra;
    n.passing = b * (sliding * n.window_tiles + (full ? p->full_tiles + full - 1 : 0)) + n.extra;
    n.passing = spw_max_u64(n.passing, n.least);
    return n;
}

/* What each session may keep, given all frames. */
static void settle_residency(struct spw_plan *p, const struct spw_plan_input *in,
                             const struct kv_need *need, uint64_t frames)
{
    uint64_t b = in->sessions, full = p->n_full, sliding = in->aged ? 0 : p->n_sliding;
    uint64_t n = p->full_tiles;
    struct spw_residency *r = &p->residency;
    *r = (struct spw_residency){.window = in->weights->config->window,
                                .resident_sliding = need->window_tiles,
                                .host = UINT32_MAX,
                                .host_sliding = UINT32_MAX,
                                .aged = in->aged,
                                .residual_tiles = in->residual_tiles};
    p->n_device_frames = (uint32_t)frames;
    if (frames >= need->all) {
        r->resident = r->resident_pass = r->pass = p->max_tiles;
        return;
    }
    uint64_t each = (frames - need->extra) / b; /* one session's frames */
    uint64_t slide = sliding ? spw_min_u64((each - full) / sliding, need->window_tiles) : 0;
    uint64_t left = each - sliding * slide; /* of the full layers, at least one each */
    if (sliding)
        r->resident_sliding = (uint32_t)slide;
    r->resident = r->resident_pass = r->pass = 1;
    if (!full)
        return;
    r->resident = (uint32_t)spw_min_u64(left / full, n);
    uint64_t waiting = full > 1 ? spw_sub_u64(left, n) / (full - 1) : r->resident;
    waiting = spw_max_u64(spw_min_u64(waiting, r->resident), 1);
    r->resident_pass = (uint32_t)waiting;
    r->pass = (uint32_t)spw_min_u64(left - (full - 1) * waiting, n);
}

/* ---- layouts ---- */

static uint64_t take(uint64_t *end, uint64_t bytes)
{
    uint64_t at = *end;
    *end = at + pages(bytes);
    return at;
}

/* Everything but weights and KV. `hidden_rows`: of the hidden states on the device. */
static void lay_out_work(struct spw_plan *p, const struct spw_plan_input *in, uint64_t hidden_rows)
{
    const struct spw_model_config *c = in->weights->config;
    struct spw_plan_device *d = &p->device;
    uint64_t e = spw_dtype_bytes(in->compute), m = p->chunk, end = 0;
    uint64_t q = (uint64_t)c->n_heads * c->head_dim, kv = (uint64_t)c->n_kv_heads * c->head_dim;
    uint64_t state = (uint64_t)c->n_heads * (c->head_dim + 2) * sizeof(float);
    d->small = take(&end, in->weights->n_small * sizeof(float));
    d->workspace = take(&end, in->workspace_bytes);
    d->hidden = take(&end, hidden_rows * p->hidden_row_bytes);
    d->x = take(&end, m * c->hidden * e);
    d->y = take(&end, m * c->hidden * e);
    uint64_t other = end; /* attention is over before the mlp begins */
    d->qkv = take(&end, m * (q + 2 * kv) * e);
    d->attention = take(&end, m * q * e);
    d->state = take(&end, m * state);
    d->partials = take(&end, in->attention_tiles / SPW_SPLIT_TILES * p->partial_rows * state);
    d->gate_up = take(&other, m * 2 * c->intermediate * e);
    d->gated = take(&other, m * c->intermediate * e);
    end = spw_max_u64(end, other);
    d->rows = take(&end, p->logits_rows * p->hidden_row_bytes);
    d->logits = take(&end, (uint64_t)p->logits_rows * c->vocab * sizeof(float));
    d->flags = take(&end, in->aged ? sizeof(uint32_t) : 0);
    p->n_near_frames = near_frames(p, in);
    d->near_frames = take(&end, p->n_near_frames * p->near_tile_bytes);
    d->units = end;
}

static void lay_out_rest(struct spw_plan *p, const struct spw_plan_input *in)
{
    const struct spw_model_config *c = in->weights->config;
    struct spw_plan_device *d = &p->device;
    struct spw_plan_host *h = &p->host;
    uint64_t end = d->units;
    p->mapped_bytes = bytes_of(p, in->weights, spw_plan_unit_mapped);
    take(&end, bytes_of(p, in->weights, spw_plan_unit_resident) - p->mapped_bytes);
    d->unit_slots = take(&end, p->n_unit_slots * p->slot_unit_bytes);
    d->kv_slots = take(&end, (uint64_t)p->n_kv_slots * p->slot_tiles * p->tile_bytes);
    d->kv_frames = take(&end, p->n_device_frames * p->tile_bytes);
    d->end = end;
    end = 0;
    h->kv_frames = take(&end, p->n_host_frames * p->tile_bytes);
    h->bounce = take(&end, (uint64_t)p->n_bounce * p->slot_tiles * p->tile_bytes);
    h->unit_bounce = take(&end, p->n_unit_bounce * p->bounce_unit_bytes);
    h->hidden = take(&end, p->hidden_on_host ? p->pass_rows * p->hidden_row_bytes : 0);
    h->staging = take(&end, 2 * p->chunk * p->hidden_row_bytes);
    h->logits = take(&end, (uint64_t)p->logits_rows * c->vocab * sizeof(float));
    h->session_logits = take(&end, (uint64_t)in->sessions * c->vocab * sizeof(float));
    h->flags = take(&end, in->aged ? sizeof(uint32_t) : 0);
    h->piece = take(&end, p->piece_bytes);
    h->images = take(&end, bytes_of(p, in->weights, spw_plan_unit_image));
    h->end = end;
}

static bool fits(const struct spw_plan *p, const struct spw_plan_input *in)
{
    return p->device.end + p->mapped_bytes <= in->device_bytes &&
           p->host.end + p->kept_bytes <= in->host_bytes;
}

/* ---- what decode costs the link ---- */

/* Tiles of one full and of one sliding layer that a decode step at the full context brings up. */
static void streamed_tiles(const struct spw_plan *p, const struct spw_plan_input *in,
                           uint64_t *full, uint64_t *sliding)
{
    *full = spw_sub_u64(p->full_tiles, p->residency.resident);
    *sliding = spw_sub_u64(kv_need(p, in).window_tiles, p->residency.resident_sliding);
}

static uint64_t disk_cost(const struct spw_plan_input *in)
{
    return in->disk_cost ? in->disk_cost : 1;
}

/* Tiles of one layer that lie on disk when all of `b` lie below the device. */
static uint32_t tiles_on_disk(const struct spw_plan *p, const struct spw_below *b, bool sliding)
{
    uint32_t start = sliding ? 0 : spw_waterline_start(&p->residency);
    uint32_t written = sliding ? b->sliding : start + b->full;
    return spw_waterline_disk(&p->residency, sliding, written) - start;
}

/* What the first `n` tiles cost of a layer that streams `tiles`, those on disk first. */
static uint64_t cost_of_first(const struct spw_plan *p, const struct spw_plan_input *in,
                              bool sliding, uint64_t tiles, uint64_t n)
{
    struct spw_below b;
    spw_below_count(&b, p, in);
    uint64_t on_disk = tiles_on_disk(p, &b, sliding);
    n = spw_min_u64(n, tiles);
    return n + spw_min_u64(n, on_disk) * (disk_cost(in) - 1);
}

/* What KV costs the link in a decode step at the full context, in bytes: those that move, the
 * disk's at their price, and for each transfer what it costs beside them. */
static uint64_t kv_link_cost(const struct spw_plan *p, const struct spw_plan_input *in)
{
    uint64_t full, sliding;
    streamed_tiles(p, in, &full, &sliding);
    uint64_t tiles = p->n_full * cost_of_first(p, in, false, full, full) +
                     p->n_sliding * cost_of_first(p, in, true, sliding, sliding);
    uint64_t transfers = p->n_full * spw_div_up(full, p->slot_tiles) +
                         p->n_sliding * spw_div_up(sliding, p->slot_tiles);
    return in->sessions * (tiles * p->tile_bytes + transfers * in->transfer_cost_bytes);
}

static uint64_t link_cost(const struct spw_plan *p, const struct spw_plan_input *in)
{
    uint64_t cost = p->n_kv_slots ? kv_link_cost(p, in) : 0;
    for (uint32_t u = 0; u < in->weights->n_units; u++)
        if (spw_plan_unit_from_disk(p, in->weights, u))
            cost += spw_plan_unit_disk_bytes(p, in->weights, u) * disk_cost(in);
        else if (!spw_plan_unit_resident(p, in->weights, u))
            cost += spw_plan_unit_moved_bytes(p, in->weights, u);
    return cost;
}

/* ---- one try ---- */

/* Divides `left` bytes: all KV stays, weights take the rest. False: too little. */
static bool keep_kv(struct spw_plan *p, const struct spw_plan_input *in, uint64_t left)
{
    struct kv_need need = kv_need(p, in);
    uint64_t all = pages(need.all * p->tile_bytes);
    if (all > left || fit_weights(p, in->weights, left - all) == UINT64_MAX)
        return false;
    p->n_kv_slots = 0;
    settle_residency(p, in, &need, need.all);
    return true;
}

/* Divides `left` bytes: weights first, as far as the layer that a prompt passes leaves room; some
 * KV streams. False: too little. */
static bool stream_kv(struct spw_plan *p, const struct spw_plan_input *in, uint64_t left)
{
    struct kv_need need = kv_need(p, in);
    if (!need.all)
        return false;
    p->n_kv_slots = in->prefetch_slots ? in->prefetch_slots : SLOTS;
    uint64_t slots = pages((uint64_t)p->n_kv_slots * p->slot_tiles * p->tile_bytes);
    uint64_t least = pages(need.least * p->tile_bytes);
    if (left < slots + least)
        return false;
    left -= slots;
    uint64_t passing = pages(need.passing * p->tile_bytes);
    uint64_t for_kv =
        spw_min_u64(passing, left - spw_min_u64(left, UNIT_SLOTS * p->slot_unit_bytes));
    for_kv = spw_max_u64(for_kv, least);
    uint64_t used = fit_weights(p, in->weights, left - for_kv);
    if (used == UINT64_MAX)
        return false;
    uint64_t frames = spw_min_u64((left - used) / p->tile_bytes, need.all - 1);
    settle_residency(p, in, &need, frames);
    return true;
}

/* Of the streamed units the host holds all but those that come from n_disk places of them. */
static void place_units(struct spw_plan *p, const struct spw_plan_input *in, uint32_t n_disk)
{
    p->n_disk_units = n_disk;
    p->n_unit_bounce = 0;
    for (uint32_t u = 0; u < in->weights->n_units && n_disk; u++)
        if (spw_plan_unit_from_disk(p, in->weights, u) && !spw_plan_unit_direct(p, in->weights, u))
            p->n_unit_bounce = p->n_unit_slots;
    p->kept_bytes = bytes_of(p, in->weights, spw_plan_unit_kept);
}

/* Of hidden states as many rows as the host has room for; where KV or weights could use that room
 * too, instead of the disk, half of it: a prompt that passes in two passes reads weights twice, KV
 * and weights are read with every token. */
static uint64_t rows_below(const struct spw_plan *p, const struct spw_plan_input *in)
{
    uint64_t room = spw_sub_u64(in->host_bytes, p->host.end + p->kept_bytes) / p->hidden_row_bytes;
    if ((p->n_disk_frames && in->host_kv) || p->n_disk_units || (in->adopts && p->n_transit))
        room = spw_max_u64(room / 2, spw_min_u64(room, FEW_CHUNKS * p->chunk));
    return spw_min_u64(in->sessions * in->context, room);
}

/* Divides the host. `rows` 0: hidden states where there is room. */
static bool fit_host(struct spw_plan *p, const struct spw_plan_input *in, uint64_t rows,
                     uint32_t n_disk)
{
    place_units(p, in, n_disk);
    p->pass_rows = rows;
    if (!rows) {
        lay_out_rest(p, in);
        p->pass_rows = rows_below(p, in);
        if (p->pass_rows <= p->chunk)
            return false;
    }
    lay_out_rest(p, in);
    return fits(p, in);
}

/* The host holds streamed weights if it can without cutting a prompt into more than a few passes;
 * else hidden states go first, and as many units come from disk as then must. */
static bool fit_weights_below(struct spw_plan *p, const struct spw_plan_input *in, uint64_t rows)
{
    uint32_t low = 1, high = in->weights->n_units - p->n_resident_units;
    bool all = fit_host(p, in, rows, 0);
    struct spw_plan held = *p;
    if (all && (rows || p->pass_rows * FEW_PASSES >= in->sessions * in->context))
        return true;
    if (!high || !fit_host(p, in, rows, high)) {
        *p = held;
        return all;
    }
    rows = p->pass_rows;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (fit_host(p, in, rows, middle))
            high = middle;
        else
            low = middle + 1;
    }
    return fit_host(p, in, rows, high);
}

/* With n copies of each session on the host. */
static bool fit_copies(struct spw_plan *p, const struct spw_plan_input *in,
                       const struct spw_below *b, uint32_t n, uint64_t rows)
{
    spw_below_place(p, in, b, n);
    return fit_weights_below(p, in, rows);
}

/* Spends what the host has left. */
static void enlarge(struct spw_plan *p, const struct spw_plan_input *in, const struct spw_below *b,
                    uint32_t n)
{
    spw_below_grow(p, in, b, n, in->host_bytes - p->host.end - p->kept_bytes);
    lay_out_rest(p, in);
}

/* All copies lie on the host; buffers are there only for what others wrote. */
static bool fit_all_copies(struct spw_plan *p, const struct spw_plan_input *in,
                           const struct spw_below *b, uint64_t rows)
{
    if (!fit_copies(p, in, b, b->all, rows))
        return false;
    if (in->adopts)
        enlarge(p, in, b, b->all);
    return true;
}

/* Divides host and disk. Either the disk takes what it has room for and the host what it can hold
 * beside that, or all copies lie on the host and no buffers between the two are needed. */
static bool divide_below(struct spw_plan *p, const struct spw_plan_input *in, uint64_t rows)
{
    struct spw_below b;
    spw_below_count(&b, p, in);
    uint32_t n = spw_below_least(&b, p, in);
    struct spw_plan all = *p;
    if (n && !in->host_kv)
        return false;
    if (n == b.all)
        return fit_all_copies(p, in, &b, rows);
    bool some = fit_copies(p, in, &b, n, rows);
    if (in->host_kv && fit_all_copies(&all, in, &b, rows) &&
        (!some || (all.pass_rows >= p->pass_rows && all.n_disk_units <= p->n_disk_units))) {
        *p = all;
        return true;
    }
    if (some)
        enlarge(p, in, &b, n);
    return some;
}

/* The same division with n resident units and what that leaves for tiles; false if it does not fit.
 */
static bool take_units(struct spw_plan *p, const struct spw_plan_input *in, uint32_t n_resident,
                       uint64_t rows)
{
    struct kv_need need = kv_need(p, in);
    uint64_t slots = pages((uint64_t)p->n_kv_slots * p->slot_tiles * p->tile_bytes);
    uint64_t used = weights_use(p, in->weights, n_resident) + slots;
    uint64_t frames = spw_sub_u64(in->device_bytes - p->device.units, used) / p->tile_bytes;
    if (frames < need.least)
        return false;
    settle_residency(p, in, &need, spw_min_u64(frames, need.all - 1));
    return divide_below(p, in, rows);
}

/* More KV than host and disk have room for: as many weights stream as it takes to keep the rest of
 * it on the device. */
static bool stream_weights(struct spw_plan *p, const struct spw_plan_input *in, uint64_t rows)
{
    const struct spw_plan given = *p;
    uint32_t low = 0, high = given.n_resident_units;
    if (!high || !take_units(p, in, 0, rows))
        return false;
    while (low + 1 < high) {
        struct spw_plan other = given;
        uint32_t middle = (low + high) / 2;
        if (take_units(&other, in, middle, rows)) {
            low = middle;
            *p = other;
        } else {
            high = middle;
        }
    }
    return true;
}

/* With the hidden states of `rows` rows on the device, or (0) two chunks there, the rest below. */
static bool try_divided(struct spw_plan *p, const struct spw_plan_input *in, uint64_t rows,
                        bool all_kv)
{
    if (in->kv_stays && !all_kv)
        return false;
    p->hidden_on_host = !rows;
    p->slot_tiles = SPW_SPLIT_TILES * (in->prefetch_splits ? in->prefetch_splits : 1);
    lay_out_work(p, in, rows ? rows : 2 * p->chunk);
    if (p->device.units > in->device_bytes || kv_need(p, in).all > MOST_FRAMES)
        return false;
    uint64_t left = in->device_bytes - p->device.units;
    if (!(all_kv ? keep_kv(p, in, left) : stream_kv(p, in, left)))
        return false;
    struct spw_plan other = *p;
    if (divide_below(p, in, rows))
        return true;
    *p = other;
    return !all_kv && stream_weights(p, in, rows);
}

/* Of the two divisions the one that decode streams less with. */
static bool try_hidden(struct spw_plan *p, const struct spw_plan_input *in, uint64_t rows)
{
    struct spw_plan whole = *p;
    bool keeps = try_divided(&whole, in, rows, true), streams = try_divided(p, in, rows, false);
    if (keeps && (!streams || link_cost(&whole, in) <= link_cost(p, in)))
        *p = whole;
    return keeps || streams;
}

/* Hidden states: on the device if that costs little, else below, else one chunk at a time. */
static bool try_chunk(struct spw_plan *p, const struct spw_plan_input *in, uint32_t chunk)
{
    uint64_t wanted = in->sessions * in->context;
    p->chunk = chunk;
    uint64_t bytes = wanted * p->hidden_row_bytes;
    if (wanted <= 2 * chunk || bytes <= in->device_bytes / 32)
        if (try_hidden(p, in, spw_max_u64(wanted, chunk)))
            return true;
    if (wanted > chunk && try_hidden(p, in, 0))
        return true;
    return try_hidden(p, in, chunk);
}

static bool try_plan(struct spw_plan *p, const struct spw_plan_input *in)
{
    if (in->prefill_chunk)
        return try_chunk(p, in, in->prefill_chunk);
    uint64_t longest =
        spw_max_u64(spw_min_u64(in->context * in->sessions, CHUNK_MOST), in->sessions);
    uint32_t chunk = CHUNK_LEAST;
    while (chunk < longest && chunk < CHUNK_MOST)
        chunk *= 2;
    /* A large chunk must not take the memory that the cache is there for. */
    for (uint32_t m = chunk; m >= CHUNK_LEAST; m /= 2)
        if (try_chunk(p, in, m) &&
            p->device.near_frames - pages(in->workspace_bytes) <= in->device_bytes / 4)
            return true;
    for (uint32_t m = CHUNK_LEAST; m <= chunk; m *= 2)
        if (try_chunk(p, in, m))
            return true;
    return false;
}

/* ---- the plan ---- */

static enum spw_qformat format_of(const struct spw_plan_input *in)
{
    static const enum spw_qformat formats[] = {[SPW_KV_EXACT] = SPW_QFORMAT_EXACT,
                                               [SPW_KV_INT8] = SPW_QFORMAT_INT8,
                                               [SPW_KV_INT8_INT4] = SPW_QFORMAT_INT8_INT4,
                                               [SPW_KV_INT4] = SPW_QFORMAT_INT4};
    return formats[in->precision];
}

/* As many tiles as make large reads and writes of files; a row of logits goes there too. */
static uint64_t piece_bytes(const struct spw_plan *p, const struct spw_plan_input *in)
{
    uint64_t tile = spw_max_u64(p->near_tile_bytes, p->tile_bytes);
    uint64_t tiles = spw_min_u64(PIECE_BYTES / tile, spw_waterline_tiles(in->context));
    return spw_max_u64(tile * spw_max_u64(tiles, 1),
                       pages(in->weights->config->vocab * sizeof(float)));
}

static void start(struct spw_plan *p, const struct spw_plan_input *in)
{
    const struct spw_model_config *c = in->weights->config;
    *p = (struct spw_plan){0};
    count_layers(p, c);
    p->format = format_of(in);
    p->near_tile_bytes = pages(spw_tile_bytes(c->n_kv_heads, c->head_dim, in->kv));
    p->tile_bytes = p->format == SPW_QFORMAT_EXACT
                        ? p->near_tile_bytes
                        : pages(spw_qtile_bytes(c->n_kv_heads, c->head_dim, p->format));
    p->piece_bytes = in->keeps ? piece_bytes(p, in) : 0;
    p->hidden_row_bytes = c->hidden * spw_dtype_bytes(in->compute);
    p->max_tiles = p->full_tiles = spw_waterline_tiles(in->context);
    if (in->aged)
        p->full_tiles =
            (uint32_t)spw_residual_end(spw_residual_block(in->context), in->residual_tiles) - 1;
    p->partial_rows = PARTIAL_ROWS;
    p->reads_host_memory = in->reads_host_memory;
    spw_plan_size_units(p, in->weights);
    uint64_t many = (uint64_t)LOGITS_ROWS * c->vocab * sizeof(float);
    p->logits_rows = many <= in->device_bytes / 32 ? LOGITS_ROWS : 1;
    if (p->logits_rows < in->sessions)
        p->logits_rows = in->sessions;
}

/* Within other budgets than those of `in`. */
static bool works(const struct spw_plan_input *in, const uint64_t budgets[SPW_BUDGETS],
                  struct spw_plan *p)
{
    struct spw_plan_input with = *in;
    with.device_bytes = budgets[SPW_BUDGET_DEVICE];
    with.host_bytes = budgets[SPW_BUDGET_HOST];
    with.disk_bytes = budgets[SPW_BUDGET_DISK];
    start(p, &with);
    if (try_plan(p, &with))
        return true;
    start(p, &with); /* many rows of logits are a comfort: a larger budget must not fail by them */
    p->logits_rows = in->sessions;
    return try_plan(p, &with);
}

bool spw_plan_works(const struct spw_plan_input *in, const uint64_t budgets[SPW_BUDGETS])
{
    struct spw_plan p;
    return works(in, budgets, &p);
}

/* ---- weights or KV ---- */

/* Weights that stream leave memory for tiles, which else come from the disk. */
static void trade_weights(struct spw_plan *p, const struct spw_plan_input *in)
{
    const struct spw_plan given = *p;
    uint64_t least = link_cost(p, in);
    if (!p->n_kv_slots || !p->n_disk_frames)
        return;
    for (uint32_t n = given.n_resident_units; n-- > 0;) {
        struct spw_plan other = given;
        if (!take_units(&other, in, n, given.pass_rows))
            continue;
        uint64_t cost = link_cost(&other, in);
        if (cost < least) {
            least = cost;
            *p = other;
        }
    }
}

/* ---- the size of a KV slot ---- */

/* A larger ring, at the cost of frames; false if that does not fit. */
static bool take_ring(struct spw_plan *p, const struct spw_plan_input *in, uint32_t n_slots,
                      uint32_t slot_tiles)
{
    struct kv_need need = kv_need(p, in);
    uint32_t more = n_slots * slot_tiles - p->n_kv_slots * p->slot_tiles;
    if (p->n_device_frames < more + need.least)
        return false;
    p->n_kv_slots = n_slots;
    p->slot_tiles = slot_tiles;
    settle_residency(p, in, &need, p->n_device_frames - more);
    return divide_below(p, in, p->pass_rows);
}

/* Of what KV costs, the part that the ring brings up while the weights of a layer are read: as much
 * as it holds, and as there is time. */
static uint64_t hidden_bytes(const struct spw_plan *p, const struct spw_plan_input *in)
{
    const struct spw_model_config *c = in->weights->config;
    uint64_t weights = 0, ring = (uint64_t)p->n_kv_slots * p->slot_tiles, full, sliding;
    for (uint32_t u = 0; u < c->n_layers; u++)
        weights += spw_weights_unit_bytes(in->weights, u);
    if (!in->reads_per_link_byte)
        return 0;
    uint64_t time = weights / c->n_layers / in->reads_per_link_byte;
    streamed_tiles(p, in, &full, &sliding);
    full = cost_of_first(p, in, false, in->sessions * full, ring);
    sliding = cost_of_first(p, in, true, in->sessions * sliding, ring);
    return p->n_full * spw_min_u64(full * p->tile_bytes, time) +
           p->n_sliding * spw_min_u64(sliding * p->tile_bytes, time);
}

/* A larger slot saves transfers, hides more, and costs tiles that could have stayed: the cheapest
 * is taken. Only a plan that works is asked, so that no smallest budget grows by it. A prompt, too,
 * may lose tiles of the layer it passes; those come up beside far more computation. */
static void widen_slots(struct spw_plan *p, const struct spw_plan_input *in)
{
    const struct spw_plan narrow = *p;
    uint64_t least = kv_link_cost(p, in) - hidden_bytes(p, in);
    if (!p->n_kv_slots || in->prefetch_splits)
        return;
    for (uint32_t splits = 2; splits <= in->attention_tiles / SPW_SPLIT_TILES; splits++) {
        struct spw_plan wide = narrow;
        if (!take_ring(&wide, in, narrow.n_kv_slots, splits * SPW_SPLIT_TILES))
            break;
        uint64_t cost = kv_link_cost(&wide, in) - hidden_bytes(&wide, in);
        if (cost < least) {
            least = cost;
            *p = wide;
        }
    }
}

/* A disk answers late and wants many reads under way; so does the way through the host, whose slots
 * are filled ahead of the device's. */
static void deepen_ring(struct spw_plan *p, const struct spw_plan_input *in)
{
    if (!p->n_kv_slots || (!p->n_disk_frames && !in->adopts) || in->prefetch_slots)
        return;
    uint64_t tiles = p->n_device_frames + (uint64_t)p->n_kv_slots * p->slot_tiles;
    uint64_t n = spw_div_up(in->disk_ring_bytes, p->slot_tiles * p->tile_bytes);
    n = spw_min_u64(spw_min_u64(n, MOST_SLOTS), tiles / RING_SHARE / p->slot_tiles);
    for (; n > p->n_kv_slots; n--) {
        struct spw_plan deep = *p;
        if (take_ring(&deep, in, (uint32_t)n, p->slot_tiles)) {
            *p = deep;
            return;
        }
    }
}

/* Without a disk the host is where KV lies. */
static struct spw_plan_input settle_input(const struct spw_plan_input *given)
{
    struct spw_plan_input in = *given;
    in.host_kv = in.host_kv || !in.disk_bytes;
    return in;
}

void spw_plan_smallest(struct spw_plan_info *info, const struct spw_plan_input *given)
{
    struct spw_plan_input in = settle_input(given);
    bool alone[SPW_BUDGETS];
    spw_budgets_smallest(info, &in, alone);
}

/* ---- the account ---- */

/* Copies go to disk once. A sequence that grows token by token writes the most: none of its tiles
 * leaves a sliding window before it was written. */
static uint64_t disk_write_bytes(const struct spw_plan *p, const struct spw_plan_input *in)
{
    struct spw_below b;
    uint64_t tiles;
    spw_below_count(&b, p, in);
    tiles = (uint64_t)p->n_full * tiles_on_disk(p, &b, false);
    if (tiles_on_disk(p, &b, true))
        tiles += (uint64_t)p->n_sliding *
                 spw_waterline_disk(&p->residency, true,
                                    spw_waterline_begin(&p->residency, true, in->context));
    return in->sessions * tiles * p->tile_bytes;
}

static void describe(struct spw_plan *p, const struct spw_plan_input *in)
{
    const struct spw_model_config *c = in->weights->config;
    struct spw_plan_info *i = &p->info;
    const struct spw_plan_device *d = &p->device;
    const struct spw_plan_host *h = &p->host;
    i->context = in->context;
    i->sessions = in->sessions;
    i->prefill_chunk = p->chunk;
    i->prefetch_slots = p->n_kv_slots;
    i->prefetch_splits = p->n_kv_slots ? p->slot_tiles / SPW_SPLIT_TILES : 0;
    i->compute = in->compute;
    i->kv = in->kv;
    i->precision = in->precision;
    i->residual_tokens = in->aged ? (uint64_t)in->residual_tiles * SPW_TILE_TOKENS : 0;
    i->device_budget_bytes = in->device_bytes;
    i->host_budget_bytes = in->host_bytes;
    i->disk_budget_bytes = in->disk_bytes;
    i->device.weights_resident =
        d->workspace - d->small + d->unit_slots - d->units + p->mapped_bytes;
    i->device.weights_slots = d->kv_slots - d->unit_slots;
    i->device.kv_slots = d->kv_frames - d->kv_slots;
    i->device.kv_resident = d->end - d->kv_frames + d->units - d->near_frames;
    i->device.hidden = d->x - d->hidden;
    i->device.activations = d->near_frames - d->x + d->hidden - d->workspace;
    i->device.total = d->end + p->mapped_bytes;
    i->host.kv = (p->n_host_frames - p->n_transit) * p->tile_bytes;
    i->host.disk_staging = h->hidden - h->kv_frames - i->host.kv;
    i->host.hidden = h->staging - h->hidden;
    i->host.staging = h->images - h->staging;
    i->host.weights = h->end - h->images + p->kept_bytes;
    i->host.total = h->end + p->kept_bytes;
    i->disk.kv = i->disk.total = p->n_disk_frames * p->tile_bytes;
    i->disk_write_bytes = disk_write_bytes(p, in);
    i->n_layers = c->n_layers;
    for (uint32_t u = 0; u < in->weights->n_units; u++) {
        i->weights_bytes += spw_weights_unit_bytes(in->weights, u);
        i->n_layers_resident += u < c->n_layers && spw_plan_unit_resident(p, in->weights, u);
        i->n_layers_from_disk += u < c->n_layers && spw_plan_unit_from_disk(p, in->weights, u);
        i->weights_disk_bytes += spw_plan_unit_disk_bytes(p, in->weights, u);
    }
    i->kv_bytes_per_token = p->n_full * p->tile_bytes / SPW_TILE_TOKENS;
    i->waterlines.n_tokens = in->context;
    uint32_t begin = spw_waterline_begin(&p->residency, false, in->context);
    if (p->n_full && begin > spw_waterline_start(&p->residency))
        i->waterlines.host_end = (uint64_t)begin * SPW_TILE_TOKENS;
}

int spw_plan_make(struct spw_plan *out, const struct spw_plan_input *given, struct spw_error *err)
{
    struct spw_plan_input in = settle_input(given);
    const uint64_t budgets[SPW_BUDGETS] = {in.device_bytes, in.host_bytes, in.disk_bytes};
    if (!works(&in, budgets, out)) {
        *out = (struct spw_plan){0};
        return spw_budgets_refuse(&out->info, &in, err);
    }
    trade_weights(out, &in);
    widen_slots(out, &in);
    deepen_ring(out, &in);
    describe(out, &in);
    if (!in.disk_write_limit || out->info.disk_write_bytes <= in.disk_write_limit)
        return 0;
    return spw_fail(err, -EDQUOT,
                    "disk write limit: %llu bytes given, a context of %llu tokens writes up to "
                    "%llu; raise --disk-write-limit, --device-memory or --host-memory, or lower "
                    "--context",
                    (unsigned long long)in.disk_write_limit, (unsigned long long)in.context,
                    (unsigned long long)out->info.disk_write_bytes);
}
