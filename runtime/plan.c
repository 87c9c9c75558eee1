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
 * some of the tiles' memory may make the KV slots larger: fewer, larger transfers. */
#include "runtime/plan.h"

#include <string.h>

enum {
    PAGE = 4096,
    CHUNK_MOST = 512,
    CHUNK_LEAST = 16,
    SLOTS = 3, /* one is read, one lands, one waits to be released */
    UNIT_SLOTS = 2,
    LOGITS_ROWS = 16,
    PARTIAL_ROWS = 4,
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

static uint32_t n_streamed_before(const struct spw_plan *p, uint32_t n_units, uint32_t unit)
{
    uint32_t n_streamed = n_units - p->n_resident_units;
    return (uint32_t)((uint64_t)unit * n_streamed / n_units);
}

bool spw_plan_unit_resident(const struct spw_plan *p, const struct spw_weights *w, uint32_t unit)
{
    return n_streamed_before(p, w->n_units, unit + 1) == n_streamed_before(p, w->n_units, unit);
}

bool spw_plan_unit_mapped(const struct spw_plan *p, const struct spw_weights *w, uint32_t unit)
{
    return p->reads_host_memory && spw_plan_unit_resident(p, w, unit) &&
           spw_weights_unit_mappable(w, unit);
}

bool spw_plan_unit_image(const struct spw_plan *p, const struct spw_weights *w, uint32_t unit)
{
    return !spw_weights_unit_as_stored(w, unit) ||
           (!p->reads_host_memory && !spw_plan_unit_resident(p, w, unit));
}

uint64_t spw_plan_unit_moved_bytes(const struct spw_plan *p, const struct spw_weights *w,
                                   uint32_t unit)
{
    if (spw_plan_unit_mapped(p, w, unit))
        return 0;
    return spw_plan_unit_image(p, w, unit) ? spw_weights_unit_bytes(w, unit)
                                           : spw_weights_unit_stored_bytes(w, unit);
}

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

static uint64_t largest_unit_bytes(const struct spw_weights *w)
{
    uint64_t most = 0;
    for (uint32_t u = 0; u < w->n_units; u++)
        most = spw_max_u64(most, spw_weights_unit_bytes(w, u));
    return pages(most);
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
    p->slot_unit_bytes = largest_unit_bytes(w);
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
    uint64_t extra;   /* frames for the tiles that one chunk adds to a layer */
    uint64_t all;     /* frames with everything on the device */
    uint64_t least;   /* one tile a layer and session */
    uint64_t passing; /* with one whole layer beside that */
    uint32_t window_tiles;
};

static struct kv_need kv_need(const struct spw_plan *p, const struct spw_plan_input *in)
{
    uint64_t b = in->sessions, full = p->n_full, sliding = p->n_sliding;
    struct kv_need n = {0};
    if (sliding)
        n.window_tiles = (uint32_t)spw_min_u64(
            spw_waterline_window_tiles(in->weights->config->window), p->max_tiles);
    /* A chunk of m rows in k segments starts at most m/128 + k tiles. */
    n.extra = p->chunk / SPW_TILE_TOKENS + spw_min_u64(b, p->chunk);
    n.all = b * (sliding * n.window_tiles + full * p->max_tiles) + (sliding ? n.extra : 0);
    n.least = b * (sliding + full) + n.extra;
    n.passing = b * (sliding * n.window_tiles + (full ? p->max_tiles + full - 1 : 0)) + n.extra;
    n.passing = spw_max_u64(n.passing, n.least);
    return n;
}

/* What each session may keep, given all frames. */
static void settle_residency(struct spw_plan *p, const struct spw_plan_input *in,
                             const struct kv_need *need, uint64_t frames)
{
    uint64_t b = in->sessions, full = p->n_full, sliding = p->n_sliding, n = p->max_tiles;
    struct spw_residency *r = &p->residency;
    *r = (struct spw_residency){
        .window = in->weights->config->window, .host = UINT32_MAX, .host_sliding = UINT32_MAX};
    p->n_device_frames = (uint32_t)frames;
    if (frames >= need->all) {
        r->resident = r->resident_pass = r->pass = p->max_tiles;
        r->resident_sliding = need->window_tiles;
        return;
    }
    uint64_t each = (frames - need->extra) / b; /* one session's frames */
    uint64_t slide = sliding ? spw_min_u64((each - full) / sliding, need->window_tiles) : 0;
    uint64_t left = each - sliding * slide; /* of the full layers, at least one each */
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

static uint64_t host_frames(const struct spw_plan *p, const struct spw_plan_input *in,
                            const struct kv_need *need)
{
    const struct spw_residency *r = &p->residency; /* at most need.all, so it fits */
    uint64_t keep = in->context > p->chunk ? r->resident_pass : r->resident;
    uint64_t full = p->n_full * spw_sub_u64(p->max_tiles, keep);
    uint64_t sliding = p->n_sliding * spw_sub_u64(need->window_tiles, r->resident_sliding);
    return in->sessions * (full + sliding);
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
    h->hidden = take(&end, p->hidden_on_host ? p->pass_rows * p->hidden_row_bytes : 0);
    h->staging = take(&end, 2 * p->chunk * p->hidden_row_bytes);
    h->logits = take(&end, (uint64_t)p->logits_rows * c->vocab * sizeof(float));
    h->session_logits = take(&end, (uint64_t)in->sessions * c->vocab * sizeof(float));
    h->images = take(&end, bytes_of(p, in->weights, spw_plan_unit_image));
    h->end = end;
}

static bool fits(const struct spw_plan *p, const struct spw_plan_input *in)
{
    return p->device.end + p->mapped_bytes <= in->device_bytes && p->host.end <= in->host_bytes;
}

/* ---- what decode costs the link ---- */

/* Tiles of one full and of one sliding layer that a decode step at the full context brings up. */
static void streamed_tiles(const struct spw_plan *p, const struct spw_plan_input *in,
                           uint64_t *full, uint64_t *sliding)
{
    *full = spw_sub_u64(p->max_tiles, p->residency.resident);
    *sliding = spw_sub_u64(kv_need(p, in).window_tiles, p->residency.resident_sliding);
}

/* What KV costs the link in a decode step at the full context, in bytes: those that move, and for
 * each transfer what it costs beside them. */
static uint64_t kv_link_cost(const struct spw_plan *p, const struct spw_plan_input *in)
{
    uint64_t full, sliding;
    streamed_tiles(p, in, &full, &sliding);
    uint64_t tiles = p->n_full * full + p->n_sliding * sliding;
    uint64_t transfers = p->n_full * spw_div_up(full, p->slot_tiles) +
                         p->n_sliding * spw_div_up(sliding, p->slot_tiles);
    return in->sessions * (tiles * p->tile_bytes + transfers * in->transfer_cost_bytes);
}

static uint64_t link_cost(const struct spw_plan *p, const struct spw_plan_input *in)
{
    uint64_t cost = p->n_kv_slots ? kv_link_cost(p, in) : 0;
    for (uint32_t u = 0; u < in->weights->n_units; u++)
        if (!spw_plan_unit_resident(p, in->weights, u))
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
    p->n_host_frames = 0;
    return true;
}

/* Divides `left` bytes: weights first, as far as the layer that a prompt passes leaves room; some
 * KV streams. False: too little. */
static bool stream_kv(struct spw_plan *p, const struct spw_plan_input *in, uint64_t left)
{
    struct kv_need need = kv_need(p, in);
    p->n_kv_slots = in->prefetch_slots ? in->prefetch_slots : SLOTS;
    uint64_t slots = pages((uint64_t)p->n_kv_slots * p->slot_tiles * p->tile_bytes);
    uint64_t least = pages(need.least * p->tile_bytes);
    if (left < slots + least)
        return false;
    left -= slots;
    uint64_t passing = pages(need.passing * p->tile_bytes);
    uint64_t for_kv = spw_min_u64(
        passing, left - spw_min_u64(left, UNIT_SLOTS * largest_unit_bytes(in->weights)));
    for_kv = spw_max_u64(for_kv, least);
    uint64_t used = fit_weights(p, in->weights, left - for_kv);
    if (used == UINT64_MAX)
        return false;
    uint64_t frames = spw_min_u64((left - used) / p->tile_bytes, need.all - 1);
    settle_residency(p, in, &need, frames);
    p->n_host_frames = (uint32_t)host_frames(p, in, &need);
    return true;
}

/* With the hidden states of `rows` rows on the device, or (0) two chunks there, the rest below. */
static bool try_divided(struct spw_plan *p, const struct spw_plan_input *in, uint64_t rows,
                        bool all_kv)
{
    uint64_t wanted = in->sessions * in->context;
    p->hidden_on_host = !rows;
    p->slot_tiles = SPW_SPLIT_TILES * (in->prefetch_splits ? in->prefetch_splits : 1);
    lay_out_work(p, in, rows ? rows : 2 * p->chunk);
    if (p->device.units > in->device_bytes || kv_need(p, in).all > MOST_FRAMES)
        return false;
    uint64_t left = in->device_bytes - p->device.units;
    if (!(all_kv ? keep_kv(p, in, left) : stream_kv(p, in, left)))
        return false;
    p->pass_rows = rows;
    if (!rows) {
        lay_out_rest(p, in);
        uint64_t room = spw_sub_u64(in->host_bytes, p->host.end) / p->hidden_row_bytes;
        p->pass_rows = spw_min_u64(wanted, room);
        if (p->pass_rows <= p->chunk)
            return false;
    }
    lay_out_rest(p, in);
    return fits(p, in);
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
            p->device.units - pages(in->workspace_bytes) <= in->device_bytes / 4)
            return true;
    for (uint32_t m = CHUNK_LEAST; m <= chunk; m *= 2)
        if (try_chunk(p, in, m))
            return true;
    return false;
}

/* ---- the plan ---- */

static void start(struct spw_plan *p, const struct spw_plan_input *in)
{
    const struct spw_model_config *c = in->weights->config;
    *p = (struct spw_plan){0};
    count_layers(p, c);
    p->tile_bytes = spw_tile_bytes(c->n_kv_heads, c->head_dim, in->kv);
    p->hidden_row_bytes = c->hidden * spw_dtype_bytes(in->compute);
    p->max_tiles = spw_waterline_tiles(in->context);
    p->partial_rows = PARTIAL_ROWS;
    p->reads_host_memory = in->reads_host_memory;
    uint64_t many = (uint64_t)LOGITS_ROWS * c->vocab * sizeof(float);
    p->logits_rows = many <= in->device_bytes / 32 ? LOGITS_ROWS : 1;
    if (p->logits_rows < in->sessions)
        p->logits_rows = in->sessions;
}

static bool works(const struct spw_plan_input *in, uint64_t device_bytes, uint64_t host_bytes,
                  struct spw_plan *p)
{
    struct spw_plan_input with = *in;
    with.device_bytes = device_bytes;
    with.host_bytes = host_bytes;
    start(p, &with);
    if (try_plan(p, &with))
        return true;
    start(p, &with); /* many rows of logits are a comfort: a larger budget must not fail by them */
    p->logits_rows = in->sessions;
    return try_plan(p, &with);
}

/* ---- the size of a KV slot ---- */

/* Slots of `splits` splits, at the cost of frames; false if that does not fit. */
static bool take_splits(struct spw_plan *p, const struct spw_plan_input *in, uint32_t splits)
{
    struct kv_need need = kv_need(p, in);
    uint32_t tiles = splits * SPW_SPLIT_TILES, more = p->n_kv_slots * (tiles - p->slot_tiles);
    if (p->n_device_frames < more + need.least)
        return false;
    p->slot_tiles = tiles;
    settle_residency(p, in, &need, p->n_device_frames - more);
    p->n_host_frames = (uint32_t)host_frames(p, in, &need);
    lay_out_rest(p, in);
    return fits(p, in);
}

/* What of that the ring brings up while the weights of a layer are read: as much as it holds. */
static uint64_t hidden_bytes(const struct spw_plan *p, const struct spw_plan_input *in)
{
    const struct spw_model_config *c = in->weights->config;
    uint64_t weights = 0, ring = (uint64_t)p->n_kv_slots * p->slot_tiles * p->tile_bytes;
    for (uint32_t u = 0; u < c->n_layers; u++)
        weights += spw_weights_unit_bytes(in->weights, u);
    if (in->reads_per_link_byte)
        ring = spw_min_u64(ring, weights / c->n_layers / in->reads_per_link_byte);
    else
        ring = 0;
    uint64_t full, sliding;
    streamed_tiles(p, in, &full, &sliding);
    full *= in->sessions * p->tile_bytes;
    sliding *= in->sessions * p->tile_bytes;
    return p->n_full * spw_min_u64(full, ring) + p->n_sliding * spw_min_u64(sliding, ring);
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
        if (!take_splits(&wide, in, splits))
            break;
        uint64_t cost = kv_link_cost(&wide, in) - hidden_bytes(&wide, in);
        if (cost < least) {
            least = cost;
            *p = wide;
        }
    }
}

static bool streamed_from_file(const struct spw_plan *p, const struct spw_weights *w, uint32_t unit)
{
    return !spw_plan_unit_resident(p, w, unit) && !spw_plan_unit_image(p, w, unit);
}

/* Pages of the file that were copied from are memory of this process. Where the host budget has
 * room for those of all streamed units, they stay; else each unit's go back after its copy, and the
 * next one faults them in again. */
static void keep_mapped(struct spw_plan *p, const struct spw_plan_input *in)
{
    uint64_t bytes = bytes_of(p, in->weights, streamed_from_file);
    if (bytes <= spw_sub_u64(in->host_bytes, p->host.end))
        p->kept_bytes = bytes;
}

enum { NO_LIMIT_SHIFT = 50 };

/* The smallest budget, to the page, at which the plan works while the other is `other`; 0: none. */
static uint64_t smallest(const struct spw_plan_input *in, bool device, uint64_t other)
{
    struct spw_plan p;
    uint64_t low = 0, high = (uint64_t)1 << (NO_LIMIT_SHIFT - 12); /* pages */
    if (!works(in, device ? high * PAGE : other, device ? other : high * PAGE, &p))
        return 0;
    while (low < high) {
        uint64_t middle = (low + high) / 2;
        if (works(in, device ? middle * PAGE : other, device ? other : middle * PAGE, &p))
            high = middle;
        else
            low = middle + 1;
    }
    return high * PAGE;
}

void spw_plan_smallest(struct spw_plan_info *info, const struct spw_plan_input *in)
{
    struct spw_plan p;
    uint64_t host = in->host_bytes;
    info->smallest_device_bytes = smallest(in, true, host);
    if (!info->smallest_device_bytes) { /* the host budget is too small for any device */
        host = (uint64_t)1 << NO_LIMIT_SHIFT;
        info->smallest_device_bytes = smallest(in, true, host);
    }
    info->smallest_host_bytes = smallest(in, false, in->device_bytes);
    if (!info->smallest_host_bytes && !works(in, in->device_bytes, 0, &p)) /* nor any host */
        info->smallest_host_bytes = smallest(in, false, info->smallest_device_bytes);
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
    i->device_budget_bytes = in->device_bytes;
    i->host_budget_bytes = in->host_bytes;
    i->device.weights_resident =
        d->workspace - d->small + d->unit_slots - d->units + p->mapped_bytes;
    i->device.weights_slots = d->kv_slots - d->unit_slots;
    i->device.kv_slots = d->kv_frames - d->kv_slots;
    i->device.kv_resident = d->end - d->kv_frames;
    i->device.hidden = d->x - d->hidden;
    i->device.activations = d->units - d->x + d->hidden - d->workspace;
    i->device.total = d->end + p->mapped_bytes;
    i->host.kv = h->bounce - h->kv_frames;
    i->host.disk_staging = h->hidden - h->bounce;
    i->host.hidden = h->staging - h->hidden;
    i->host.staging = h->images - h->staging;
    i->host.weights = h->end - h->images + p->kept_bytes;
    i->host.total = h->end + p->kept_bytes;
    i->n_layers = c->n_layers;
    for (uint32_t u = 0; u < in->weights->n_units; u++) {
        i->weights_bytes += spw_weights_unit_bytes(in->weights, u);
        i->n_layers_resident += u < c->n_layers && spw_plan_unit_resident(p, in->weights, u);
    }
    i->kv_bytes_per_token = p->n_full * p->tile_bytes / SPW_TILE_TOKENS;
    i->waterlines.n_tokens = in->context;
    i->waterlines.host_end =
        (uint64_t)spw_waterline_begin(&p->residency, false, in->context) * SPW_TILE_TOKENS;
    if (!p->n_full)
        i->waterlines.host_end = 0;
}

/* Says which budget would do: one of them, or either. */
static int refuse(const struct spw_plan_info *i, const struct spw_plan_input *in,
                  struct spw_error *err)
{
    struct spw_plan p;
    unsigned long long context = in->context, device = in->device_bytes, host = in->host_bytes;
    unsigned long long device_least = i->smallest_device_bytes;
    unsigned long long host_least = i->smallest_host_bytes;
    if (!device_least)
        return spw_fail(err, -ENOMEM,
                        "a context of %llu tokens and %u sessions is too large for any budget; "
                        "ask for a smaller --context",
                        context, in->sessions);
    if (!works(in, device, host_least, &p))
        return spw_fail(err, -ENOMEM,
                        "device memory: %llu bytes given, a context of %llu tokens needs at least "
                        "%llu; raise --device-memory, or lower --context or --prefill-chunk",
                        device, context, device_least);
    if (!works(in, device_least, host, &p))
        return spw_fail(err, -ENOMEM,
                        "host memory: %llu bytes given, a context of %llu tokens needs at least "
                        "%llu; raise --host-memory, or lower --context",
                        host, context, host_least);
    return spw_fail(err, -ENOMEM,
                    "host memory: %llu bytes given, a context of %llu tokens needs at least %llu "
                    "beside this device memory (or device memory of at least %llu beside this host "
                    "memory); raise --host-memory or --device-memory, or lower --context",
                    host, context, host_least, device_least);
}

int spw_plan_make(struct spw_plan *out, const struct spw_plan_input *in, struct spw_error *err)
{
    if (works(in, in->device_bytes, in->host_bytes, out)) {
        widen_slots(out, in);
        keep_mapped(out, in);
        describe(out, in);
        return 0;
    }
    *out = (struct spw_plan){0};
    spw_plan_smallest(&out->info, in);
    return refuse(&out->info, in, err);
}
