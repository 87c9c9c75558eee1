/* One try: weight blocks and tiles share the device, then host and disk take what is below. See
 * plan_parts.h. */
#include "runtime/plan/plan_parts.h"

enum {
    WEIGHT_SLOTS = 2,
    FEW_CHUNKS = 4,
    FEW_PASSES = 4,
};

/* ---- weights ---- */

static uint64_t weights_use(struct spw_plan *p, const struct spw_weights *w, uint32_t n_resident)
{
    p->n_resident_blocks = n_resident;
    p->n_weight_slots = n_resident < w->n_blocks ? WEIGHT_SLOTS : 0;
    return spw_plan_bytes_of(p, w, spw_plan_block_resident) +
           p->n_weight_slots * p->weight_slot_bytes;
}

/* Takes as many blocks as `bytes` hold, slots for the others included. Returns what it uses;
 * UINT64_MAX if there is no room for the slots. */
static uint64_t fit_weights(struct spw_plan *p, const struct spw_weights *w, uint64_t bytes)
{
    uint32_t low = 0, high = w->n_blocks - 1;
    if (weights_use(p, w, w->n_blocks) <= bytes)
        return weights_use(p, w, w->n_blocks);
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

/* ---- the device ---- */

/* Divides `left` bytes: all KV stays, weights take the rest. False: too little. */
static bool keep_kv(struct spw_plan *p, const struct spw_plan_input *in, uint64_t left)
{
    struct spw_plan_need need = spw_plan_kv_need(p, in);
    uint64_t all = spw_plan_pages(need.all * p->tile_bytes);
    if (all > left || fit_weights(p, in->weights, left - all) == UINT64_MAX)
        return false;
    p->n_kv_slots = 0;
    spw_plan_divide_frames(p, in, &need, need.all);
    return true;
}

/* Divides `left` bytes: weights first, as far as the layer that a prompt passes leaves room; some
 * KV streams. False: too little, or none can stream, for a tile of each layer stays. */
static bool stream_kv(struct spw_plan *p, const struct spw_plan_input *in, uint64_t left)
{
    struct spw_plan_need need = spw_plan_kv_need(p, in);
    if (need.all <= need.least)
        return false;
    p->n_kv_slots = in->prefetch_slots ? in->prefetch_slots : SPW_PLAN_SLOTS;
    uint64_t slots = spw_plan_pages((uint64_t)p->n_kv_slots * p->slot_tiles * p->tile_bytes);
    uint64_t least = spw_plan_pages(need.least * p->tile_bytes);
    if (left < slots + least)
        return false;
    left -= slots;
    uint64_t passing = spw_plan_pages(need.passing * p->tile_bytes);
    uint64_t for_kv =
        spw_min_u64(passing, left - spw_min_u64(left, WEIGHT_SLOTS * p->weight_slot_bytes));
    for_kv = spw_max_u64(for_kv, least);
    uint64_t used = fit_weights(p, in->weights, left - for_kv);
    if (used == UINT64_MAX)
        return false;
    uint64_t frames = spw_min_u64((left - used) / p->tile_bytes, need.all - 1);
    spw_plan_divide_frames(p, in, &need, frames);
    return true;
}

/* ---- below ---- */

/* Of the streamed blocks the host holds all but those that come from n_disk places of them. */
static void place_blocks(struct spw_plan *p, const struct spw_plan_input *in, uint32_t n_disk)
{
    p->n_disk_blocks = n_disk;
    p->n_weight_bounce = 0;
    for (uint32_t u = 0; u < in->weights->n_blocks && n_disk; u++)
        if (spw_plan_block_from_disk(p, in->weights, u) &&
            !spw_plan_block_direct(p, in->weights, u))
            p->n_weight_bounce = p->n_weight_slots;
    p->kept_bytes = spw_plan_bytes_of(p, in->weights, spw_plan_block_kept);
}

/* Of hidden states as many rows as the host has room for; where KV or weights could use that room
 * too, instead of the disk, half of it: a prompt that passes in two passes reads weights twice, KV
 * and weights are read with every token. */
static uint64_t rows_below(const struct spw_plan *p, const struct spw_plan_input *in)
{
    uint64_t room = spw_sub_u64(in->host_bytes, p->host.end + p->kept_bytes) / p->hidden_row_bytes;
    if (p->n_disk_frames || p->n_disk_blocks || (in->attaches && p->n_transit))
        room = spw_max_u64(room / 2, spw_min_u64(room, FEW_CHUNKS * p->chunk));
    return spw_min_u64(spw_plan_most_rows(in), room);
}

/* Divides the host. `rows` 0: hidden states where there is room. */
static bool fit_host(struct spw_plan *p, const struct spw_plan_input *in, uint64_t rows,
                     uint32_t n_disk)
{
    place_blocks(p, in, n_disk);
    p->pass_rows = rows;
    if (!rows) {
        spw_plan_lay_out_rest(p, in);
        p->pass_rows = rows_below(p, in);
        if (p->pass_rows <= p->chunk)
            return false;
    }
    spw_plan_lay_out_rest(p, in);
    return spw_plan_fits(p, in);
}

/* The host holds streamed weights if it can without cutting a prompt into more than a few passes;
 * else hidden states go first, and as many blocks come from disk as then must. */
static bool fit_weights_below(struct spw_plan *p, const struct spw_plan_input *in, uint64_t rows)
{
    uint32_t low = 1, high = in->weights->n_blocks - p->n_resident_blocks;
    bool all = fit_host(p, in, rows, 0);
    struct spw_plan pinned = *p;
    if (all && (rows || p->pass_rows * FEW_PASSES >= spw_plan_most_rows(in)))
        return true;
    if (!high || !fit_host(p, in, rows, high)) {
        *p = pinned;
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
                       const struct spw_lower *b, uint32_t n, uint64_t rows)
{
    spw_lower_place(p, in, b, n);
    return fit_weights_below(p, in, rows);
}

/* Spends what the host has left. */
static void enlarge(struct spw_plan *p, const struct spw_plan_input *in, const struct spw_lower *b,
                    uint32_t n)
{
    spw_lower_grow(p, in, b, n, in->host_bytes - p->host.end - p->kept_bytes);
    spw_plan_lay_out_rest(p, in);
}

/* All copies lie on the host; buffers are there only for what others wrote. */
static bool fit_all_copies(struct spw_plan *p, const struct spw_plan_input *in,
                           const struct spw_lower *b, uint64_t rows)
{
    if (!fit_copies(p, in, b, b->all, rows))
        return false;
    if (in->attaches)
        enlarge(p, in, b, b->all);
    return true;
}

bool spw_plan_divide_below(struct spw_plan *p, const struct spw_plan_input *in, uint64_t rows)
{
    struct spw_lower b;
    spw_lower_count(&b, p, in);
    uint32_t n = spw_lower_least(&b, p, in);
    struct spw_plan all = *p;
    if (n == b.all)
        return fit_all_copies(p, in, &b, rows);
    bool some = fit_copies(p, in, &b, n, rows);
    if (fit_all_copies(&all, in, &b, rows) &&
        (!some || (all.pass_rows >= p->pass_rows && all.n_disk_blocks <= p->n_disk_blocks))) {
        *p = all;
        return true;
    }
    if (some)
        enlarge(p, in, &b, n);
    return some;
}

bool spw_plan_take_blocks(struct spw_plan *p, const struct spw_plan_input *in, uint32_t n_resident,
                          uint64_t rows)
{
    struct spw_plan_need need = spw_plan_kv_need(p, in);
    uint64_t slots = spw_plan_pages((uint64_t)p->n_kv_slots * p->slot_tiles * p->tile_bytes);
    uint64_t used = p->device.weights + spw_plan_exact_bytes(p) + slots;
    used += weights_use(p, in->weights, n_resident);
    uint64_t frames = spw_sub_u64(in->device_bytes, used) / p->tile_bytes;
    if (frames < need.least)
        return false;
    spw_plan_divide_frames(p, in, &need, spw_min_u64(frames, need.all - 1));
    return spw_plan_divide_below(p, in, rows);
}

/* More KV than host and disk have room for: as many weights stream as it takes to keep the rest of
 * it on the device. */
static bool stream_weights(struct spw_plan *p, const struct spw_plan_input *in, uint64_t rows)
{
    const struct spw_plan given = *p;
    uint32_t low = 0, high = given.n_resident_blocks;
    if (!high || !spw_plan_take_blocks(p, in, 0, rows))
        return false;
    while (low + 1 < high) {
        struct spw_plan other = given;
        uint32_t middle = (low + high) / 2;
        if (spw_plan_take_blocks(&other, in, middle, rows)) {
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
    spw_plan_lay_out_work(p, in, rows ? rows : 2 * p->chunk);
    uint64_t taken = p->device.weights + spw_plan_exact_bytes(p);
    if (taken > in->device_bytes || spw_plan_kv_need(p, in).all > SPW_PLAN_MOST_FRAMES)
        return false;
    uint64_t left = in->device_bytes - taken;
    if (!(all_kv ? keep_kv(p, in, left) : stream_kv(p, in, left)))
        return false;
    struct spw_plan other = *p;
    if (spw_plan_divide_below(p, in, rows))
        return true;
    *p = other;
    return !all_kv && stream_weights(p, in, rows);
}

bool spw_plan_try_hidden(struct spw_plan *p, const struct spw_plan_input *in, uint64_t rows)
{
    struct spw_plan whole = *p;
    bool keeps = try_divided(&whole, in, rows, true), streams = try_divided(p, in, rows, false);
    if (keeps && (!streams || spw_plan_link_cost(&whole, in) <= spw_plan_link_cost(p, in)))
        *p = whole;
    return keeps || streams;
}
