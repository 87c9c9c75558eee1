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
#include "runtime/plan/plan.h"

#include "runtime/plan/budgets.h"
#include "runtime/plan/plan_parts.h"

enum {
    CHUNK_MOST = 512,
    PIECE_BYTES = 4 << 20,
    CHUNK_LEAST = 16,
    LOGITS_ROWS = 16,
    PARTIAL_ROWS = 4,
    MOST_PARTIALS = 256, /* all splits of one row, in the longest call of any backend */
    MOST_SLOTS = 256,
    HELD_SHARE = 8, /* one in so many bytes of the device at most lets sessions go back */
    RING_SHARE = 4, /* a ring for the disk takes at most one in so many of the KV's tiles */
};

static void count_layers(struct spw_plan *p, const struct spw_model_config *c)
{
    for (uint32_t l = 0; l < c->n_layers; l++)
        p->n_layers[c->layer_kinds[l]]++;
}

/* Hidden states: on the device if that costs little and no weights, else below, else one chunk at a
 * time. */
static bool try_chunk(struct spw_plan *p, const struct spw_plan_input *in, uint32_t chunk)
{
    uint64_t wanted = spw_plan_most_rows(in), bytes = wanted * p->hidden_row_bytes;
    p->chunk = chunk;
    struct spw_plan below = *p;
    bool cheap = wanted <= 2 * chunk || bytes <= in->device_bytes / 32;
    bool above = cheap && spw_plan_try_hidden(p, in, spw_max_u64(wanted, chunk));
    if (above && p->n_resident_blocks == in->weights->n_blocks)
        return true;
    if (wanted > chunk && spw_plan_try_hidden(&below, in, 0) &&
        (!above || below.n_resident_blocks > p->n_resident_blocks)) {
        *p = below;
        return true;
    }
    return above || spw_plan_try_hidden(p, in, chunk);
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
            p->device.weights - spw_plan_pages(in->workspace_bytes) <= in->device_bytes / 4)
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
    uint64_t tile = spw_max_u64(p->exact_tile_bytes, p->tile_bytes);
    uint64_t tiles = spw_min_u64(PIECE_BYTES / tile, spw_waterline_tiles(in->context));
    return spw_max_u64(tile * spw_max_u64(tiles, 1),
                       spw_plan_pages(in->weights->config->vocab * sizeof(float)));
}

void spw_plan_start(struct spw_plan *p, const struct spw_plan_input *in)
{
    const struct spw_model_config *c = in->weights->config;
    *p = (struct spw_plan){0};
    count_layers(p, c);
    p->format = format_of(in);
    p->exact_tile_bytes = spw_plan_pages(spw_tile_bytes(c->n_kv_heads, c->head_dim, in->kv));
    p->tile_bytes = p->format == SPW_QFORMAT_EXACT
                        ? p->exact_tile_bytes
                        : spw_plan_pages(spw_qtile_bytes(c->n_kv_heads, c->head_dim, p->format));
    p->piece_bytes = in->keeps ? piece_bytes(p, in) : 0;
    p->hidden_row_bytes = spw_row_bytes(in->compute, c->hidden);
    p->max_tiles = p->full_tiles = spw_waterline_tiles(in->context);
    if (in->quantizes)
        p->full_tiles =
            (uint32_t)spw_residual_end(spw_residual_block(in->context), in->residual_tiles) - 1;
    p->partials =
        (uint32_t)spw_min_u64(in->attention_tiles / SPW_SPLIT_TILES * PARTIAL_ROWS, MOST_PARTIALS);
    p->reads_host_memory = in->reads_host_memory;
    spw_plan_size_blocks(p, in->weights);
    uint64_t many = (uint64_t)LOGITS_ROWS * c->vocab * sizeof(float);
    p->logits_rows = many <= in->device_bytes / 32 ? LOGITS_ROWS : 1;
    if (p->logits_rows < in->sessions)
        p->logits_rows = in->sessions;
    p->may_pin = in->rolls_back && spw_plan_pinned_bytes(p, in) <= in->device_bytes / HELD_SHARE;
}

/* Within other budgets than those of `in`. */
static bool works(const struct spw_plan_input *in, const uint64_t budgets[SPW_BUDGETS],
                  struct spw_plan *p)
{
    struct spw_plan_input with = *in;
    with.device_bytes = budgets[SPW_BUDGET_DEVICE];
    with.host_bytes = budgets[SPW_BUDGET_HOST];
    with.disk_bytes = budgets[SPW_BUDGET_DISK];
    /* Without comforts, which a larger budget must not fail by: many rows of logits, going back. */
    for (int without = 0; without < 3; without++) {
        spw_plan_start(p, &with);
        if (without)
            p->logits_rows = in->sessions;
        if (without == 2 && !p->may_pin)
            break;
        p->may_pin = p->may_pin && without < 2;
        if (try_plan(p, &with))
            return true;
    }
    return false;
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
    uint64_t least = spw_plan_link_cost(p, in);
    if (!p->n_kv_slots || !p->n_disk_frames)
        return;
    for (uint32_t n = given.n_resident_blocks; n-- > 0;) {
        struct spw_plan other = given;
        if (!spw_plan_take_blocks(&other, in, n, given.pass_rows))
            continue;
        uint64_t cost = spw_plan_link_cost(&other, in);
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
    struct spw_plan_need need = spw_plan_kv_need(p, in);
    uint32_t more = n_slots * slot_tiles - p->n_kv_slots * p->slot_tiles;
    bool holds = p->pins;
    if (p->n_device_frames < more + need.least)
        return false;
    p->n_kv_slots = n_slots;
    p->slot_tiles = slot_tiles;
    spw_plan_divide_frames(p, in, &need, p->n_device_frames - more);
    return p->pins == holds && spw_plan_divide_below(p, in, p->pass_rows);
}

/* A larger slot saves transfers, hides more, and costs tiles that could have stayed: the cheapest
 * is taken. Only a plan that works is asked, so that no smallest budget grows by it. A prompt, too,
 * may lose tiles of the layer it passes; those come up beside far more computation. */
static void widen_slots(struct spw_plan *p, const struct spw_plan_input *in)
{
    const struct spw_plan narrow = *p;
    uint64_t least = spw_plan_kv_cost(p, in) - spw_plan_hidden_cost(p, in);
    if (!p->n_kv_slots || in->prefetch_splits)
        return;
    for (uint32_t splits = 2; splits <= in->attention_tiles / SPW_SPLIT_TILES; splits++) {
        struct spw_plan wide = narrow;
        if (!take_ring(&wide, in, narrow.n_kv_slots, splits * SPW_SPLIT_TILES))
            break;
        uint64_t cost = spw_plan_kv_cost(&wide, in) - spw_plan_hidden_cost(&wide, in);
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
    if (!p->n_kv_slots || (!p->n_disk_frames && !in->attaches) || in->prefetch_slots)
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

void spw_plan_smallest(struct spw_plan_info *info, const struct spw_plan_input *in)
{
    bool alone[SPW_BUDGETS];
    spw_budgets_smallest(info, in, alone);
}

/* ---- the account ---- */

int spw_plan_make(struct spw_plan *out, const struct spw_plan_input *in, struct spw_error *err)
{
    const uint64_t budgets[SPW_BUDGETS] = {in->device_bytes, in->host_bytes, in->disk_bytes};
    if (!works(in, budgets, out)) {
        *out = (struct spw_plan){0};
        return spw_budgets_refuse(&out->info, in, err);
    }
    trade_weights(out, in);
    widen_slots(out, in);
    deepen_ring(out, in);
    spw_plan_describe(out, in);
    if (!in->disk_write_limit || out->info.disk_write_bytes <= in->disk_write_limit)
        return 0;
    return spw_fail(err, -EDQUOT,
                    "disk write limit: %llu bytes given, a context of %llu tokens writes up to "
                    "%llu; raise options.disk_write_limit, options.device_bytes or "
                    "options.host_bytes, or lower options.context",
                    (unsigned long long)in->disk_write_limit, (unsigned long long)in->context,
                    (unsigned long long)out->info.disk_write_bytes);
}
