/* The plan: see plan.h. One search over candidates (plan_parts.h): each is laid out, and of those
 * that fit the cheapest is the plan.
 *
 * In decode every weight byte and every KV byte is read once a step, so a byte of device memory
 * saves one byte of traffic wherever it is spent. A prompt breaks the tie: while it passes a layer,
 * each chunk reads that layer's KV. So the search goes by these rules.
 *   - Comforts first, then large chunks: enum spw_plan_cost_key has the order.
 *   - Either all KV stays on the device and weights have the rest, or KV streams. Decode must
 *     stream less with the plan that is taken.
 *   - Where KV streams, weights come before KV: a sequence that is shorter than the context streams
 *     less KV, but no fewer weights. Fewer resident blocks are candidates only where a plan with
 *     more of them does not fit, has too little KV of the layer that a prompt passes, or reads
 * tiles from disk, whose bytes cost more than those of the host (disk_cost).
 *   - Weight blocks come from disk only as far as they must: until the rest fits and the longest
 *     prompt needs few passes.
 * Where the plan quantizes, all this is about quantized tiles. Exact tiles then stay on the device.
 *
 * A candidate says nothing about what is left over. The layout spends it: on the device for KV, on
 * the host for hidden states, buffers and copies.
 *
 * The search takes the narrowest KV ring, so that no smallest budget grows by a wider one. After
 * the search some of the tiles' memory may make the ring wider or deeper. */
#include "runtime/plan/plan.h"

#include "runtime/plan/budgets.h"
#include "runtime/plan/plan_parts.h"

#include <assert.h>

enum {
    CHUNK_MOST = 512,
    CHUNK_LEAST = 16,
    LOGITS_ROWS = 16,
    COMFORT_SHARE = 32, /* hidden states or logits of many rows take at most a 32nd of the device */
    MOST_SLOTS = 256,
    RING_SHARE = 4, /* a deep ring takes at most a fourth of the KV's tiles on the device */
};

/* ---- what a plan costs ---- */

static uint32_t most_logits_rows(const struct spw_plan_input *in)
{
    uint64_t bytes = (uint64_t)LOGITS_ROWS * in->weights->config->vocab * sizeof(float);
    return spw_max_u32(bytes <= in->device_bytes / COMFORT_SHARE ? LOGITS_ROWS : 1, in->sessions);
}

struct spw_plan_chunks spw_plan_chunks(const struct spw_plan_input *in)
{
    uint64_t rows = spw_max_u64(spw_min_u64(in->context * in->sessions, CHUNK_MOST), in->sessions);
    struct spw_plan_chunks c = {in->prefill_chunk, in->prefill_chunk};
    if (!in->prefill_chunk)
        for (c.least = c.most = CHUNK_LEAST; c.most < rows && c.most < CHUNK_MOST;)
            c.most *= 2;
    return c;
}

/* The largest chunk first. A large chunk must not take the memory that the cache is there for: such
 * chunks come last, the smallest of them first. */
static uint64_t chunk_cost(const struct spw_plan *p, const struct spw_plan_input *in)
{
    uint64_t most = spw_plan_chunks(in).most;
    return spw_plan_crowds(p, in, p->chunk) ? most + p->chunk : most - p->chunk;
}

/* Tiles of the layer that a prompt passes which each of its chunks loads, because weights take the
 * memory of these tiles. Two weight slots are no reason: no plan has fewer. */
static uint64_t reloaded_tiles(const struct spw_plan *p, const struct spw_plan_input *in)
{
    const struct spw_residency *full = &p->residency[SPW_LAYER_FULL];
    uint64_t window = spw_plan_kv_need(p, in).window_tiles, tiles = 0;
    if (spw_plan_n_full(p))
        tiles += spw_sub_u64(p->full_tiles, full->pass);
    if (spw_plan_n_sliding(p))
        tiles += spw_sub_u64(window, p->residency[SPW_LAYER_SLIDING].pass);
    uint64_t weights = p->copied_bytes + p->mapped_bytes + p->n_weight_slots * p->weight_slot_bytes;
    uint64_t more = spw_sub_u64(weights, 2 * p->weight_slot_bytes);
    return spw_min_u64(tiles, more / (p->tile_bytes * spw_plan_full_sessions(in)));
}

static bool few_passes(const struct spw_plan *p, const struct spw_plan_input *in)
{
    return !p->hidden_on_host || p->pass_rows * SPW_PLAN_FEW_PASSES >= spw_plan_most_rows(in);
}

struct spw_plan_cost spw_plan_cost(const struct spw_plan *p, const struct spw_plan_input *in)
{
    uint64_t rows = spw_plan_most_rows(in);
    bool no_retains = spw_plan_may_retain(p, in) && !p->retains;
    return (struct spw_plan_cost){{
        [SPW_COST_COMFORTS] = (no_retains ? 2u : 0u) + (p->logits_rows < most_logits_rows(in)),
        [SPW_COST_CHUNK] = chunk_cost(p, in),
        [SPW_COST_ONE_CHUNK] = p->pass_rows < rows && p->pass_rows == p->chunk,
        [SPW_COST_PASSES] = few_passes(p, in) ? 0 : spw_div_up(rows, p->pass_rows),
        [SPW_COST_RELOADED] = reloaded_tiles(p, in),
        [SPW_COST_LINK] = spw_plan_link_cost(p, in),
        [SPW_COST_HIDDEN] = p->hidden_on_host,
        [SPW_COST_ROWS] = spw_sub_u64(rows, p->pass_rows),
    }};
}

bool spw_plan_cheaper(const struct spw_plan_cost *a, const struct spw_plan_cost *b)
{
    int k = 0;
    while (k < SPW_COST_KEYS - 1 && a->key[k] == b->key[k])
        k++;
    return a->key[k] < b->key[k];
}

/* ---- the search ---- */

struct spw_candidate spw_plan_narrow(const struct spw_plan_input *in)
{
    return (struct spw_candidate){
        .logits_rows = in->sessions,
        .hidden = SPW_HIDDEN_ONE_CHUNK,
        .n_slots = in->prefetch_slots ? in->prefetch_slots : SPW_PLAN_SLOTS,
        .slot_tiles = SPW_SPLIT_TILES * (in->prefetch_splits ? in->prefetch_splits : 1),
    };
}

struct search {
    const struct spw_plan_input *in;
    struct spw_candidate c; /* the one that is tried */
    struct spw_plan started;
    bool found; /* then the cheapest so far: */
    struct spw_plan_cost cost;
    struct spw_candidate chosen;
    struct spw_plan plan;
};

static void consider(struct search *s, const struct spw_plan *p)
{
    struct spw_plan_cost cost = spw_plan_cost(p, s->in);
    if (s->found && !spw_plan_cheaper(&cost, &s->cost))
        return;
    s->found = true;
    s->cost = cost;
    s->chosen = s->c;
    s->plan = *p;
}

/* What a number of resident blocks leads to, at best. */
enum outcome { TOO_MANY, READS_DISK, GOOD };

/* All divisions of host and disk, for a device that is laid out. */
static enum outcome try_lower(struct search *s, const struct spw_plan *device)
{
    bool few = false;
    enum outcome best = TOO_MANY;
    uint32_t n_streamed = s->in->weights->n_blocks - s->c.n_resident;
    struct spw_plan placed = *device;
    for (s->c.n_disk = 0; s->c.n_disk <= n_streamed && !few; s->c.n_disk++) {
        spw_plan_place_blocks(&placed, s->in->weights, s->c.n_resident, s->c.n_disk);
        for (int on_host = 1; on_host >= 0; on_host--) {
            struct spw_plan p = placed;
            s->c.copies_on_host = on_host;
            if (!spw_plan_lay_out_lower(&p, s->in, &s->c))
                continue;
            consider(s, &p);
            if (!few_passes(&p, s->in))
                continue;
            few = true;
            if (!reloaded_tiles(&p, s->in) && best < GOOD)
                best = p.n_disk_frames ? READS_DISK : GOOD;
        }
    }
    return best;
}

static void try_blocks(struct search *s, bool kv_stays)
{
    enum outcome first = TOO_MANY;
    s->c.kv_stays = kv_stays;
    for (uint32_t n = s->in->weights->n_blocks + 1; n-- > 0 && first < GOOD;) {
        struct spw_plan p = s->started;
        s->c.n_resident = n;
        if (!spw_plan_lay_out_device(&p, s->in, &s->c))
            continue;
        enum outcome here = try_lower(s, &p);
        first = first == TOO_MANY ? here : first;
    }
}

static void try_hidden(struct search *s, enum spw_plan_hidden hidden)
{
    s->c.hidden = hidden;
    try_blocks(s, true);
    if (!s->in->kv_stays)
        try_blocks(s, false);
}

/* Hidden states lie on the device if they are small there, or on the host. If neither fits, a
 * prompt passes one chunk at a time. */
static void try_chunk(struct search *s, uint32_t chunk)
{
    uint64_t rows = spw_plan_most_rows(s->in), bytes = rows * s->started.hidden_row_bytes;
    s->c.chunk = chunk;
    if (rows <= 2 * (uint64_t)chunk || bytes <= s->in->device_bytes / COMFORT_SHARE)
        try_hidden(s, SPW_HIDDEN_ON_DEVICE);
    if (rows > chunk)
        try_hidden(s, SPW_HIDDEN_ON_HOST);
    if (!s->found)
        try_hidden(s, SPW_HIDDEN_ONE_CHUNK);
}

static void try_comforts(struct search *s, bool retains, uint32_t logits_rows)
{
    struct spw_plan_chunks chunks = spw_plan_chunks(s->in);
    s->c.retains = retains;
    s->c.logits_rows = s->started.logits_rows = logits_rows;
    for (uint32_t m = chunks.most; m >= chunks.least && !s->found; m /= 2)
        if (!spw_plan_crowds(&s->started, s->in, m))
            try_chunk(s, m);
    for (uint32_t m = chunks.least; m <= chunks.most && !s->found; m *= 2)
        if (spw_plan_crowds(&s->started, s->in, m))
            try_chunk(s, m);
}

void spw_plan_search(struct spw_plan *out, struct spw_candidate *chosen,
                     const struct spw_plan_input *in)
{
    struct search s = {.in = in, .c = spw_plan_narrow(in)};
    spw_plan_start(&s.started, in);
    bool may_retain = spw_plan_may_retain(&s.started, in);
    uint32_t many = most_logits_rows(in);
    /* Comforts and the chunk weigh most: the first ones with any plan have the cheapest. */
    for (int lost = 0; lost < 4 && !s.found; lost++)
        if ((lost < 2 || may_retain) && (!(lost % 2) || many > in->sessions))
            try_comforts(&s, may_retain && lost < 2, lost % 2 ? in->sessions : many);
    assert(s.found);
    *out = s.plan;
    *chosen = s.chosen;
}

/* ---- the KV ring ---- */

/* The plan `from` with the ring of c. False: it does not fit, or a prompt needs more passes than
 * few.
 */
static bool take_ring(struct spw_plan *p, const struct spw_plan *from,
                      const struct spw_candidate *c, const struct spw_plan_input *in)
{
    *p = *from;
    return spw_plan_lay_out(p, in, c) && (few_passes(p, in) || p->pass_rows >= from->pass_rows);
}

static uint64_t ring_cost(const struct spw_plan *p, const struct spw_plan_input *in)
{
    return spw_plan_kv_cost(p, in) - spw_plan_hidden_cost(p, in);
}

/* A larger slot saves transfers, hides more, and takes tiles that could have stayed: the cheapest
 * size is taken. A prompt may lose tiles of the layer it passes, too. These tiles are loaded beside
 * far more computation. */
static void widen_slots(struct spw_plan *p, struct spw_candidate *chosen,
                        const struct spw_plan_input *in)
{
    struct spw_candidate c = *chosen;
    struct spw_plan wide;
    uint64_t least = ring_cost(p, in);
    uint32_t most = in->prefetch_splits ? 0 : in->attention_tiles;
    for (c.slot_tiles += SPW_SPLIT_TILES; c.slot_tiles <= most; c.slot_tiles += SPW_SPLIT_TILES) {
        if (!take_ring(&wide, p, &c, in))
            return;
        if (ring_cost(&wide, in) >= least)
            continue;
        least = ring_cost(&wide, in);
        *p = wide;
        *chosen = c;
    }
}

/* A disk answers late, so many reads should be under way. The same is true of the way through the
 * host, whose slots are filled ahead of the device's. */
static void deepen_ring(struct spw_plan *p, struct spw_candidate *c,
                        const struct spw_plan_input *in)
{
    if ((!p->n_disk_frames && !in->attaches) || in->prefetch_slots)
        return;
    uint64_t tiles = p->n_device_frames + (uint64_t)p->n_kv_slots * p->slot_tiles;
    uint64_t n = spw_div_up(in->disk_ring_bytes, p->slot_tiles * p->tile_bytes);
    n = spw_min_u64(spw_min_u64(n, MOST_SLOTS), tiles / RING_SHARE / p->slot_tiles);
    for (; n > p->n_kv_slots; n--) {
        struct spw_plan deep;
        c->n_slots = (uint32_t)n;
        if (take_ring(&deep, p, c, in)) {
            *p = deep;
            return;
        }
    }
}

/* ---- the plan ---- */

int spw_plan_make(struct spw_plan *out, const struct spw_plan_input *in, struct spw_error *err)
{
    struct spw_candidate c;
    *out = (struct spw_plan){0};
    if (!spw_budgets_work(in))
        return spw_budgets_refuse(&out->info, in, err);
    spw_plan_search(out, &c, in);
    if (out->n_kv_slots) {
        widen_slots(out, &c, in);
        deepen_ring(out, &c, in);
    }
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
