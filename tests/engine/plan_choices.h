/* The choices of a plan against all others that it had: no size of a KV slot and no candidate of
 * the search costs less. */
#ifndef SPW_TESTS_ENGINE_PLAN_CHOICES_H
#define SPW_TESTS_ENGINE_PLAN_CHOICES_H

#include "tests/engine/plan_layout.h"

/* ---- the size of a KV slot ---- */

/* What the plan chooses freely and pays for with memory that the cache could have had. */
static bool same_work(const struct spw_plan *a, const struct spw_plan *b)
{
    return a->chunk == b->chunk && a->logits_rows == b->logits_rows &&
           a->hidden_on_host == b->hidden_on_host && a->pass_rows == b->pass_rows &&
           !a->n_expert_frames == !b->n_expert_frames;
}

struct layer_cost {
    uint64_t all, hidden; /* bytes over the link, as the disk counts them */
};

/* What a layer's KV costs the link in a decode step, tile by tile; and of that, what the ring
 * brings up while a layer's weights are read: as far as it is not full, as there are tiles, and as
 * there is time. */
static struct layer_cost layer_cost(const struct spw_plan *p, const struct spw_plan_input *in,
                                    bool slides)
{
    struct layer_cost c = {0};
    const struct spw_residency *r = &p->residency[slides ? p->window_kind : SPW_LAYER_FULL];
    uint64_t weights = 0, n = in->weights->config->n_layers;
    uint64_t ring = (uint64_t)p->n_kv_slots * p->slot_tiles;
    uint32_t tiles = p->full_tiles, stay = r->resident, copies;
    for (uint32_t l = 0; l < n; l++)
        weights += in->weights->blocks[l].bytes;
    copies = tiles - (in->context > p->chunk ? r->resident_pass : r->resident);
    if (slides) {
        uint32_t most = spw_waterline_window_tiles(r->window);
        tiles = tiles < most ? tiles : most;
        copies = tiles - stay;
    }
    for (uint32_t t = 0; t + stay < tiles; t++) {
        bool on_disk = copies > r->host && t < copies - r->host;
        uint64_t tile = p->tile_bytes * (on_disk && in->disk_cost ? in->disk_cost : 1);
        c.all += p->info.full_sessions * (tile + (t % p->slot_tiles ? 0 : in->transfer_cost_bytes));
        c.hidden += t < ring ? tile : 0;
    }
    uint64_t of_all = (uint64_t)p->info.full_sessions * (tiles - stay);
    for (uint64_t t = tiles - stay; t < of_all && t < ring; t++)
        c.hidden += p->tile_bytes; /* of the sessions behind the first one */
    if (in->reads_per_link_byte)
        c.hidden = spw_min_u64(c.hidden, weights / n / in->reads_per_link_byte);
    else
        c.hidden = 0;
    return c;
}

static uint64_t link_cost(const struct spw_plan *p, const struct spw_plan_input *in)
{
    struct layer_cost full = layer_cost(p, in, false), sliding = {0};
    if (spw_plan_n_windowed(p))
        sliding = layer_cost(p, in, true);
    return spw_plan_weights_cost(p, in) + p->n_readers[SPW_LAYER_FULL] * (full.all - full.hidden) +
           p->n_readers[p->window_kind] * (sliding.all - sliding.hidden);
}

/* No other size, given by hand, would cost less. All but the slots and the tiles stays as it is. */
static void check_slots(const struct spw_plan *p, const struct spw_plan_input *in)
{
    struct spw_plan_input with = *in;
    struct spw_error err = {0};
    struct spw_plan other;
    bool disk = p->n_disk_frames || in->attaches;
    if (in->prefetch_splits || !p->n_kv_slots || (disk && !in->prefetch_slots))
        return; /* with a disk the ring's depth follows the size of its slots */
    with.prefill_chunk = p->chunk;
    for (with.prefetch_splits = 1; with.prefetch_splits <= in->attention_tiles / 4;
         with.prefetch_splits++)
        if (!spw_plan_make(&other, &with, &err) && other.n_kv_slots && same_work(p, &other) &&
            other.n_resident_blocks == p->n_resident_blocks &&
            other.n_disk_blocks == p->n_disk_blocks && other.retains == p->retains &&
            other.states_stay == p->states_stay && !other.n_disk_frames == !p->n_disk_frames)
            CHECK_MSG(link_cost(p, in) <= link_cost(&other, in),
                      "%u tiles in a slot cost %llu, %u cost %llu", p->slot_tiles,
                      (unsigned long long)link_cost(p, in), other.slot_tiles,
                      (unsigned long long)link_cost(&other, in));
}

/* ---- all candidates ---- */

struct all {
    const struct spw_plan_input *in;
    struct spw_plan started, plan; /* what the search has found; */
    struct spw_plan_cost cost;     /* its cost */
    uint64_t *seed;
};

static bool lay_out(struct spw_plan *p, const struct all *a, const struct spw_plan_input *in,
                    const struct spw_candidate *c)
{
    *p = a->started;
    return spw_plan_lay_out(p, in, c);
}

/* Whether fewer blocks from disk would have done for as few passes. */
static bool fewer_from_disk(const struct all *a, const struct spw_candidate *cheap)
{
    struct spw_candidate c = *cheap;
    struct spw_plan p;
    for (int on_host = 0; on_host < 2; on_host++) {
        c.copies_on_host = on_host;
        for (c.n_disk = 0; c.n_disk < cheap->n_disk; c.n_disk++)
            if (lay_out(&p, a, a->in, &c))
                return true;
    }
    return false;
}

/* Nothing is cheaper, but for candidates that read more blocks from disk than they must. What fits
 * the budgets fits larger ones: the smallest budgets are found by halving. */
static void check_candidate(const struct all *a, const struct spw_candidate *c)
{
    struct spw_plan p;
    if (!lay_out(&p, a, a->in, c))
        return;
    n_of.candidates++;
    struct spw_plan_cost cost = spw_plan_cost(&p, a->in);
    CHECK_MSG(!spw_plan_cheaper(&cost, &a->cost) || fewer_from_disk(a, c),
              "chunk %u, hidden %d, %u blocks stay, %u from disk: cheaper", c->chunk, c->hidden,
              c->n_resident, c->n_disk);
    struct spw_plan_input more = *a->in;
    more.device_bytes += check_range(a->seed, 0, 1 << check_range(a->seed, 0, 20));
    more.host_bytes += check_range(a->seed, 0, 1 << check_range(a->seed, 0, 20));
    more.disk_bytes += check_range(a->seed, 0, 1 << check_range(a->seed, 0, 20));
    CHECK(lay_out(&p, a, &more, c));
}

/* Every candidate there is with these comforts and this chunk. */
static void check_chunk(const struct all *a, struct spw_candidate *c)
{
    uint64_t rows = spw_plan_most_rows(a->in), bytes = rows * a->started.hidden_row_bytes;
    const struct spw_model_config *m = a->in->weights->config;
    bool experts = a->in->weights->n_expert_blocks;
    bool pays = spw_config_n_readers(m) || m->layer_inputs; /* each row, with device memory */
    bool small = rows <= 2 * (uint64_t)c->chunk || bytes <= a->in->device_bytes / 32 || experts;
    for (int i = 0; i < 48; i++) {
        c->experts_move = i / 12 % 2;
        c->states_move = i / 24;
        if ((c->experts_move && !experts) || (c->states_move && !a->started.n_states))
            continue;
        c->hidden = (enum spw_plan_hidden)(i / 4 % 3);
        c->kv_stays = i % 2;
        c->copies_on_host = i / 2 % 2;
        if ((c->hidden == SPW_HIDDEN_ON_DEVICE && !small && !pays) ||
            (c->hidden == SPW_HIDDEN_ON_HOST && (experts || pays)))
            continue;
        const bool divides = c->hidden == (pays ? SPW_HIDDEN_ON_DEVICE : SPW_HIDDEN_ON_HOST);
        uint32_t most = spw_plan_most_passes(a->in, c->chunk);
        c->passes = 1;
        while (divides && c->passes < most && check_random(a->seed) % 2)
            c->passes *= 2;
        for (c->n_resident = 0; c->n_resident <= a->in->weights->n_blocks; c->n_resident++)
            for (c->n_disk = 0; c->n_disk <= a->in->weights->n_blocks - c->n_resident; c->n_disk++)
                check_candidate(a, c);
    }
}

static void check_cheapest(const struct spw_plan_input *in, uint64_t *seed)
{
    struct all a = {.in = in, .seed = seed};
    struct spw_candidate chosen, c = spw_plan_narrow(in);
    struct spw_plan_chunks chunks = spw_plan_chunks(in);
    uint64_t logits = (uint64_t)16 * in->weights->config->vocab * 4;
    spw_plan_start(&a.started, in);
    spw_plan_search(&a.plan, &chosen, in);
    a.cost = spw_plan_cost(&a.plan, in);
    a.started.logits_rows = chosen.logits_rows;
    CHECK_MSG(!fewer_from_disk(&a, &chosen), "%u blocks from disk", chosen.n_disk);
    for (int i = 0; i < 4; i++) {
        c.retains = i % 2;
        c.logits_rows = spw_max_u32(in->sessions, in->draft_rows);
        if (i / 2 && logits <= in->device_bytes / 32)
            c.logits_rows = spw_max_u32(16, c.logits_rows);
        a.started.logits_rows = c.logits_rows;
        for (c.chunk = chunks.least; c.chunk <= chunks.most; c.chunk *= 2)
            if (!c.retains || spw_plan_may_retain(&a.started, in))
                check_chunk(&a, &c);
    }
}

#endif
