/* The plan: see plan.h. One search over candidates (plan_parts.h): each is laid out, and of those
 * that fit the cheapest is the plan.
 *
 * What counts is the time of a decode step, as bytes of the link:
 *   - the bytes of weights that cross the link. A byte from disk costs disk_cost bytes;
 *   - the bytes of KV that do, less those that cross it while the device reads weights. A transfer
 *     costs some bytes more. This is the mean of sessions of LENGTHS lengths, from nothing to the
 *     context: a short session streams less KV, but no fewer weights. So where a byte of both costs
 *     the same, weights have the device;
 *   - a share of a prompt as long as the context: its passes read the weights and all experts, and
 *     its chunks read the tiles that did not stay while their layer passed. An answer of ANSWER
 *     tokens follows;
 *   - what the device reads of its own memory.
 * A plan with small chunks, or with few rows of logits, must need less time by some eighths,
 * because it computes slowly. Sessions that can be rolled back come before everything else.
 *
 * Where the plan quantizes, all this is about quantized tiles. Exact tiles then stay on the device.
 *
 * A candidate says nothing about what is left over. The layout spends it: on the device for KV, on
 * the host for hidden states, buffers and copies.
 *
 * One rule leaves candidates out: weight blocks come from disk only if the prompt needs more passes
 * without that. So more host memory never takes more weight blocks from disk.
 *
 * No smallest budget grows by a wide KV ring, because the narrowest ring is always tried. */
#include "runtime/plan/plan.h"

#include "offload/store/pack.h"
#include "runtime/plan/budgets.h"
#include "runtime/plan/plan_parts.h"

#include <assert.h>

enum {
    LENGTHS = 5,    /* of sessions, in the cost of a decode step */
    ANSWER = 256,   /* tokens that are decoded after a prompt as long as the context */
    FEW_LOGITS = 1, /* eighths of the cost: of few rows of logits, */
    CHUNK_STEP = 4, /* and of each step to a smaller chunk */
    CHUNK_MOST = 512,
    CHUNK_LEAST = 16,
    LOGITS_ROWS = 16,
    COMFORT_SHARE = 32, /* hidden states or logits of many rows take at most a 32nd of the device */
    MOST_SLOTS = 256,
    SIZE_STEP = 4,  /* of the sizes of KV slots that the search tries */
    RING_SHARE = 4, /* a deep ring takes at most a fourth of the KV's tiles on the device */
};

/* ---- what a plan costs ---- */

static uint32_t most_logits_rows(const struct spw_plan_input *in)
{
    uint64_t bytes = (uint64_t)LOGITS_ROWS * in->weights->config->vocab * sizeof(float);
    return spw_max_u32(bytes <= in->device_bytes / COMFORT_SHARE ? LOGITS_ROWS : 1,
                       spw_plan_decode_logits(in));
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

uint32_t spw_plan_most_passes(const struct spw_plan_input *in, uint32_t chunk)
{
    uint32_t n = 1;
    while (spw_div_up(spw_plan_most_rows(in), n) > chunk && n <= UINT32_MAX / 2)
        n *= 2;
    return n;
}

/* How many steps a chunk is below the best one, which is the largest. A chunk whose work buffers
 * crowd the device is below all that do not, and below smaller ones of its sort. */
static uint64_t chunk_steps(const struct spw_plan *p, const struct spw_plan_input *in,
                            uint32_t chunk)
{
    struct spw_plan_chunks all = spw_plan_chunks(in);
    uint64_t below = 0, above = 0;
    for (uint32_t m = chunk; m < all.most; m *= 2)
        below++;
    for (uint32_t m = all.least; m < chunk; m *= 2)
        above++;
    return spw_plan_crowds(p, in, chunk) ? below + 2 * above + 1 : below;
}

/* Eighths of its cost that a plan counts. p: with its rows of logits. */
static uint64_t eighths(const struct spw_plan *p, const struct spw_plan_input *in, uint32_t chunk)
{
    uint64_t few_rows = p->logits_rows < most_logits_rows(in);
    return 8 + FEW_LOGITS * few_rows + CHUNK_STEP * chunk_steps(p, in, chunk);
}

/* What a decode step reads of the device's own memory. */
static uint64_t device_cost(const struct spw_plan_input *in)
{
    return in->device_bytes / spw_max_u32(in->reads_per_link_byte, 1);
}

static uint64_t passes_of_prompts(const struct spw_plan *p, const struct spw_plan_input *in)
{
    return spw_div_up(spw_plan_full_sessions(in) * in->context, p->pass_rows);
}

/* Tiles of a layer that a prompt loads, of `most` tiles at its end. Each chunk loads the tiles that
 * do not stay while the layer passes: half of them on average, because a chunk is in the middle of
 * the prompt. Each pass but a prompt's first loads those that stay only so long. */
static uint64_t loaded_tiles(const struct spw_plan *p, const struct spw_plan_input *in,
                             enum spw_layer_kind kind, uint64_t most)
{
    const struct spw_residency *r = &p->residency[kind];
    uint64_t prompts = spw_plan_full_sessions(in);
    uint64_t stay = p->pass_rows > p->chunk ? r->pass : r->resident;
    uint64_t others = spw_sub_u64(most, stay);
    uint64_t chunks =
        spw_div_up(r->window.tokens ? in->context : others * SPW_TILE_TOKENS, p->chunk);
    uint64_t passes = spw_sub_u64(passes_of_prompts(p, in), prompts);
    uint64_t tiles = r->window.tokens ? others * chunks : spw_div_up(others * chunks, 2);
    return p->n_readers[kind] * (prompts * tiles + passes * spw_sub_u64(stay, r->resident));
}

/* What a decode step loads of KV, less what is hidden beside weights: the mean of sessions of
 * several lengths. */
static uint64_t kv_step_cost(const struct spw_plan *p, const struct spw_plan_input *in)
{
    struct spw_plan at = *p;
    uint64_t sum = 0;
    if (!p->n_kv_slots)
        return 0;
    for (uint32_t i = 0; i < LENGTHS; i++) {
        at.full_tiles = (uint32_t)((uint64_t)p->full_tiles * i / (LENGTHS - 1));
        sum += spw_plan_kv_cost(&at, in) - spw_plan_overlapped_cost(&at, in);
    }
    return sum / LENGTHS;
}

uint64_t spw_plan_step_cost(const struct spw_plan *p, const struct spw_plan_input *in)
{
    uint64_t weights = spw_plan_weights_cost(p, in);
    uint64_t tiles = loaded_tiles(p, in, p->full_kind, p->full_tiles) +
                     loaded_tiles(p, in, p->window_kind, spw_plan_kv_need(p, in).window_tiles);
    uint64_t passes = passes_of_prompts(p, in) * spw_plan_pass_cost(p, in);
    uint64_t prompt = passes + tiles * p->tile_bytes;
    uint64_t states = p->states_stay ? 0 : 2 * spw_plan_session_states(p);
    return weights + kv_step_cost(p, in) + spw_plan_full_sessions(in) * states + prompt / ANSWER;
}

struct spw_plan_cost spw_plan_cost(const struct spw_plan *p, const struct spw_plan_input *in)
{
    uint64_t bytes = spw_plan_step_cost(p, in) + device_cost(in);
    return (struct spw_plan_cost){{
        [SPW_COST_NOT_RETAINED] = spw_plan_may_retain(p, in) && !p->retains,
        [SPW_COST_BYTES] = bytes * eighths(p, in, p->chunk),
        [SPW_COST_ROWS] = spw_sub_u64(spw_plan_most_rows(in), p->pass_rows),
        [SPW_COST_ROWS_ON_HOST] = p->hidden_on_host,
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
        .logits_rows = spw_plan_decode_logits(in),
        .hidden = SPW_HIDDEN_ONE_CHUNK,
        .passes = 1,
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

/* Copies on the host, then on disk. Returns whether one fits. */
static bool try_copies(struct search *s, const struct spw_plan *placed)
{
    bool any = false;
    for (int on_host = 1; on_host >= 0; on_host--) {
        struct spw_plan p = *placed;
        s->c.copies_on_host = on_host;
        if (!spw_plan_lay_out_lower(&p, s->in, &s->c))
            continue;
        any = true;
        consider(s, &p);
    }
    return any;
}

/* Whether a plan whose device is laid out would be the cheapest if the host had room for everything
 * else: one pass, and no tiles on disk. */
static bool may_be_cheapest(const struct search *s, const struct spw_plan *placed)
{
    struct spw_plan p = *placed;
    if (p.hidden_on_host)
        p.pass_rows = spw_plan_most_rows(s->in);
    p.n_disk_experts = 0;
    struct spw_plan_cost cost = spw_plan_cost(&p, s->in);
    return !s->found || spw_plan_cheaper(&cost, &s->cost);
}

/* All divisions of host and disk, for a device that is laid out. For each number of passes, as few
 * weight blocks as possible come from disk. */
static void try_lower(struct search *s, const struct spw_plan *device)
{
    uint32_t n_streamed = s->in->weights->n_blocks - s->c.n_resident;
    const uint32_t least = s->c.passes;
    uint32_t end = device->hidden_on_host ? spw_plan_most_passes(s->in, device->chunk) : least;
    struct spw_plan placed = *device;
    uint64_t weights = device->packed_bytes + device->page_cache_bytes;
    for (s->c.n_disk = 0; s->c.n_disk <= n_streamed && end >= least; s->c.n_disk++) {
        uint32_t most = end;
        if (s->in->host_bytes + s->c.n_disk * device->weight_slot_bytes < weights)
            continue; /* the host has no room for the others */
        spw_plan_place_blocks(&placed, s->in->weights, s->c.n_resident, s->c.n_disk);
        if (!may_be_cheapest(s, &placed))
            continue;
        for (s->c.passes = least; s->c.passes <= most; s->c.passes *= 2)
            if (try_copies(s, &placed) && s->c.passes <= end)
                end = s->c.passes / 2;
        s->c.passes = least;
    }
}

static void try_blocks(struct search *s)
{
    for (uint32_t n = s->in->weights->n_blocks + 1; n-- > 0;) {
        struct spw_plan p = s->started;
        s->c.n_resident = n;
        if (spw_plan_lay_out_device(&p, s->in, &s->c) && may_be_cheapest(s, &p))
            try_lower(s, &p);
    }
}

static void try_hidden(struct search *s, enum spw_plan_hidden hidden, uint32_t passes)
{
    s->c.hidden = hidden;
    s->c.passes = passes;
    for (int i = 0; i < 8; i++) {
        s->c.kv_stays = !(i & 1);
        s->c.experts_move = i & 2;
        s->c.states_move = i & 4;
        if ((s->c.kv_stays || !s->in->kv_stays) &&
            (!s->c.experts_move || s->in->weights->n_expert_blocks) &&
            (!s->c.states_move || s->started.n_states))
            try_blocks(s);
    }
}

/* Hidden states may lie on the device if they are small there. Experts compute rows of the whole
 * pass, so in a model with experts the device must have them. A chunk is not tried if it would be
 * too expensive even with nothing on the link. */
static void try_chunk(struct search *s, uint32_t chunk)
{
    uint64_t rows = spw_plan_most_rows(s->in), bytes = rows * s->started.hidden_row_bytes;
    uint64_t least = device_cost(s->in) * eighths(&s->started, s->in, chunk);
    if (s->found && s->cost.key[SPW_COST_BYTES] <= least)
        return;
    s->c.chunk = chunk;
    bool experts = s->in->weights->n_expert_blocks;
    bool pays = s->started.holds_tiles || s->started.inputs_row_bytes;
    const uint32_t most_passes = spw_plan_most_passes(s->in, chunk);
    for (uint32_t passes = 1; pays && passes < most_passes; passes *= 2)
        try_hidden(s, SPW_HIDDEN_ON_DEVICE, passes);
    if (!pays &&
        (rows <= 2 * (uint64_t)chunk || bytes <= s->in->device_bytes / COMFORT_SHARE || experts))
        try_hidden(s, SPW_HIDDEN_ON_DEVICE, 1);
    if (!pays && rows > chunk && !experts)
        try_hidden(s, SPW_HIDDEN_ON_HOST, 1);
    try_hidden(s, SPW_HIDDEN_ONE_CHUNK, 1);
}

static void try_logits(struct search *s, uint32_t logits_rows)
{
    struct spw_plan_chunks chunks = spw_plan_chunks(s->in);
    s->c.logits_rows = s->started.logits_rows = logits_rows;
    for (uint32_t m = chunks.most; m >= chunks.least; m /= 2)
        try_chunk(s, m);
}

/* What else is cheap depends on the size of the slots, so several sizes are tried. */
static void try_sizes(struct search *s)
{
    const uint32_t narrow = spw_plan_narrow(s->in).slot_tiles, many = most_logits_rows(s->in);
    const uint32_t most = s->in->prefetch_splits ? narrow : s->in->attention_tiles;
    for (s->c.slot_tiles = narrow;; s->c.slot_tiles *= SIZE_STEP) {
        try_logits(s, many);
        if (many > spw_plan_decode_logits(s->in))
            try_logits(s, spw_plan_decode_logits(s->in));
        if (s->c.slot_tiles > most / SIZE_STEP)
            return;
    }
}

void spw_plan_search(struct spw_plan *out, struct spw_candidate *chosen,
                     const struct spw_plan_input *in)
{
    struct search s = {.in = in, .c = spw_plan_narrow(in)};
    spw_plan_start(&s.started, in);
    for (int retains = spw_plan_may_retain(&s.started, in); retains >= 0 && !s.found; retains--) {
        s.c.retains = retains;
        try_sizes(&s);
    }
    assert(s.found);
    *out = s.plan;
    *chosen = s.chosen;
}

/* ---- the KV ring ---- */

/* The plan `from` with the ring of c. False: it does not fit. */
static bool take_ring(struct spw_plan *p, const struct spw_plan *from,
                      const struct spw_candidate *c, const struct spw_plan_input *in)
{
    *p = *from;
    return spw_plan_lay_out(p, in, c);
}

/* Of a decode step: experts that move get what the ring and the tiles leave. */
static uint64_t ring_cost(const struct spw_plan *p, const struct spw_plan_input *in)
{
    return spw_plan_weights_cost(p, in) + spw_plan_kv_cost(p, in) - spw_plan_overlapped_cost(p, in);
}

/* No ring may cost the prompt a pass. */
static uint32_t passes_of(const struct spw_plan *p, const struct spw_plan_input *in)
{
    uint64_t passes = spw_div_up(spw_plan_most_rows(in), p->pass_rows);
    return (uint32_t)spw_min_u64(passes, UINT32_MAX);
}

/* A larger slot saves transfers, hides more, and takes tiles and experts that could have stayed:
 * the cheapest size is taken. */
static void widen_slots(struct spw_plan *p, struct spw_candidate *chosen,
                        const struct spw_plan_input *in)
{
    struct spw_candidate c = *chosen;
    struct spw_plan wide;
    uint32_t most = in->prefetch_splits ? 0 : in->attention_tiles;
    if (!p->n_kv_slots)
        return;
    uint64_t least = ring_cost(p, in);
    c.passes = passes_of(p, in);
    for (c.slot_tiles = SPW_SPLIT_TILES; c.slot_tiles <= most; c.slot_tiles += SPW_SPLIT_TILES) {
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
    if (!p->n_kv_slots || (!p->n_disk_frames && !in->attaches) || in->prefetch_slots)
        return;
    uint64_t tiles = p->n_device_frames + (uint64_t)p->n_kv_slots * p->slot_tiles;
    uint64_t n = spw_div_up(in->disk_ring_bytes, p->slot_tiles * p->tile_bytes);
    c->passes = passes_of(p, in);
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

/* No candidate fits, or all that fit write too much. */
static int refuse(struct spw_plan *out, const struct spw_plan_input *in, struct spw_error *err)
{
    struct spw_plan_input without = *in;
    without.disk_write_limit = 0;
    if (in->disk_write_limit && !spw_plan_make(out, &without, NULL))
        return spw_budgets_refuse_writes(&out->info, in, err);
    return spw_budgets_refuse(&out->info, in, err);
}

struct spw_sharing spw_plan_sharing(const struct spw_plan *p)
{
    struct spw_sharing s = {.chunk = p->chunk};
    for (int k = 0; k < SPW_LAYER_KINDS; k++)
        s.needs_checkpoint |=
            p->residency[k].quantizes || (p->n_slices[k] && p->residency[k].window.tokens);
    s.needs_checkpoint |= p->n_states > 0;
    return s;
}

uint64_t spw_plan_publish_bytes(const struct spw_plan *p, uint64_t n)
{
    const uint64_t to = n - n % SPW_TILE_TOKENS;
    const enum spw_snapshot_kind last =
        spw_plan_sharing(p).needs_checkpoint ? SPW_SNAPSHOT_WINDOW : SPW_SNAPSHOT_OLD;
    uint64_t n_sections = 0, n_records = 0, bytes = 0;
    for (enum spw_snapshot_kind kind = SPW_SNAPSHOT_OLD; kind <= last; kind++)
        for (int k = 0; k < SPW_LAYER_KINDS; k++) {
            struct spw_snapshot_tiles t = spw_plan_snapshot_tiles(&p->residency[k], kind, 0, to);
            uint64_t tiles = t.first < t.end ? t.end - t.first : 0;
            n_sections += tiles ? p->n_slices[k] : 0;
            n_records += tiles * p->n_slices[k];
            bytes += tiles * p->n_slices[k] * spw_plan_record_bytes(p, (uint32_t)k, kind);
        }
    return to ? bytes + spw_pack_overhead_bytes(to, n_sections, n_records, 0) : 0;
}

int spw_plan_make(struct spw_plan *out, const struct spw_plan_input *in, struct spw_error *err)
{
    struct spw_candidate c;
    *out = (struct spw_plan){0};
    if (!spw_budgets_work(in))
        return refuse(out, in, err);
    spw_plan_search(out, &c, in);
    widen_slots(out, &c, in);
    deepen_ring(out, &c, in);
    spw_plan_describe(out, in);
    return 0;
}

bool spw_plan_is_as_good(const struct spw_plan *a, const struct spw_plan_input *of_a,
                         const struct spw_plan *b, const struct spw_plan_input *of_b)
{
    enum { LONGER = 100 };
    const struct spw_plan_cost x = spw_plan_cost(a, of_a), y = spw_plan_cost(b, of_b);
    return y.key[SPW_COST_NOT_RETAINED] <= x.key[SPW_COST_NOT_RETAINED] &&
           y.key[SPW_COST_BYTES] <= x.key[SPW_COST_BYTES] + x.key[SPW_COST_BYTES] / LONGER;
}

void spw_plan_add_draft_rows(struct spw_plan *p, struct spw_plan_input *in, uint32_t most)
{
    struct spw_plan_input with = *in;
    struct spw_plan found;
    for (uint32_t n = most; n >= SPW_PLAN_LEAST_DRAFT_ROWS; n /= 2) {
        with.draft_rows = n;
        if (spw_plan_make(&found, &with, NULL) || !spw_plan_is_as_good(p, in, &found, &with))
            continue;
        *p = found;
        *in = with;
        return;
    }
}
