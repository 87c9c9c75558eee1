/* Chooses the next transfer for each ring: see prefetch.h. */
#include "prefetch/prefetch.h"

#include <assert.h>
#include <string.h>

/* Time in which computation stood still because the host waited for the disk, or for its products.
 *
 * The host queues a kernel only after the reads of its tiles are over, so no stream sees the wait
 * for a read. A wait counts as a whole if the compute stream ran empty during the wait: the sum is
 * at most the last kernel's length too large, and never too small. */
struct stall {
    spw_event reached; /* owned; the work that was queued when the wait began is over */
    double since;
    double seconds[SPW_RANGES + 1]; /* by layer; the last: outside of all layers */
};

struct spw_prefetch {
    const struct spw_lane *lane;
    struct spw_prefetch_options o;
    const struct spw_schedule *schedule;      /* the schedule that the rings follow */
    uint64_t transfers_before, blocks_before; /* slots of the rings before this schedule */
    struct spw_schedule_progress dropped;     /* progress when the rings were last dropped */
    uint64_t n_dropped;
    struct spw_kv_cursor kv_next; /* the next transfer to issue */
    struct spw_block_cursor block_next;
    struct spw_kv_source kv;
    struct spw_block_source weights;
    struct spw_expert_pool experts;
    struct stall stall;
    spw_event *loaded; /* [n_blocks]: the block is prepared, and copied if resident; closed at its
                          first use */
};

int spw_prefetch_stall_begin(struct spw_prefetch *p)
{
    p->stall.since = spw_now_seconds();
    return spw_lane_event_record(p->lane, p->stall.reached, p->lane->compute);
}

/* `range`: the layer that waited; SPW_RANGES or more: none. */
void spw_prefetch_stall_end(struct spw_prefetch *p, uint32_t range)
{
    if (p->lane->ops->event_is_over(p->lane->device, p->stall.reached))
        p->stall.seconds[spw_min_u32(range, SPW_RANGES)] += spw_now_seconds() - p->stall.since;
}

static bool is_streamed(const struct spw_block *u)
{
    return !u->resident && !u->in_place;
}

/* At open, both streams to the device copy weights: no KV is loaded yet. On the CPU each stream is
 * a thread. */
static int load_blocks(struct spw_prefetch *p)
{
    p->loaded = spw_alloc_zero(p->o.n_blocks, sizeof(spw_event));
    if (!p->loaded)
        return -ENOMEM;
    for (uint32_t i = 0; i < p->o.n_blocks; i++) {
        const struct spw_block *u = &p->o.blocks[i];
        if (!u->resident && !u->prepare)
            continue;
        SPW_TRY(spw_lane_event_open(p->lane, &p->loaded[i]));
        spw_stream link = i % 2 ? p->lane->kv_up : p->lane->weights_up;
        if (u->prepare)
            SPW_TRY(spw_lane_host_call(p->lane, u->prepare, u->context, link));
        if (u->resident)
            SPW_TRY(spw_block_copy(&p->weights, u, u->resident, NULL, link));
        SPW_TRY(spw_lane_event_record(p->lane, p->loaded[i], link));
    }
    return 0;
}

static int open_kv(struct spw_prefetch *p)
{
    const struct spw_prefetch_options *o = &p->o;
    struct spw_ring_options kv = {.link = p->lane->kv_up,
                                  .arena = o->kv_arena,
                                  .tile_bytes = o->tile_bytes,
                                  .slot_bytes = o->tile_bytes * o->slot_tiles,
                                  .n_slots = o->n_kv_slots};
    if (o->disk) {
        kv.most_reads = o->slot_tiles;
        kv.most_hops = o->n_bounce ? o->slot_tiles : 0;
        kv.disk_stream = p->lane->disk;
        kv.disk = o->disk;
        kv.bounce_arena = o->bounce_arena;
        kv.bounce_bytes = kv.slot_bytes;
        kv.n_bounce = o->n_bounce;
    }
    return spw_kv_source_init(&p->kv, p->lane, &kv);
}

static int open_weights(struct spw_prefetch *p)
{
    const struct spw_prefetch_options *o = &p->o;
    struct spw_ring_options weights = {.link = p->lane->weights_up,
                                       .arena = o->weights_arena,
                                       .slot_bytes = o->block_bytes,
                                       .n_slots = o->n_weight_slots,
                                       .disk_stream = p->lane->weights_up,
                                       .io = o->weights_io,
                                       .bounce_arena = o->weights_bounce_arena,
                                       .bounce_bytes = o->weights_bounce_bytes,
                                       .n_bounce = o->weights_bounce_arena ? o->n_weight_slots : 0};
    return spw_block_source_init(&p->weights, p->lane, &weights, o->blocks, o->n_blocks);
}

static int open_experts(struct spw_prefetch *p)
{
    struct spw_expert_pool_options o = p->o.experts;
    o.blocks = p->o.blocks + p->o.first_expert;
    o.n_experts = p->o.n_blocks - p->o.first_expert;
    o.io = p->o.weights_io;
    return spw_expert_pool_open(&p->experts, p->lane, &o);
}

int spw_prefetch_open(struct spw_prefetch **out, const struct spw_lane *lane,
                      const struct spw_prefetch_options *o)
{
    struct spw_prefetch *p = spw_alloc_zero(1, sizeof *p);
    if (!p)
        return -ENOMEM;
    p->lane = lane;
    p->o = *o;
    int rc = spw_lane_event_open(lane, &p->stall.reached);
    if (!rc)
        rc = open_kv(p);
    if (!rc)
        rc = open_weights(p);
    if (!rc)
        rc = open_experts(p);
    if (!rc)
        rc = load_blocks(p);
    if (rc) {
        spw_prefetch_close(p);
        return rc;
    }
    *out = p;
    return 0;
}

int spw_prefetch_replan(struct spw_prefetch *p, const struct spw_prefetch_options *o)
{
    SPW_TRY(spw_prefetch_forget(p));
    spw_kv_source_free(&p->kv);
    p->o = *o;
    return open_kv(p);
}

void spw_prefetch_close(struct spw_prefetch *p)
{
    if (!p)
        return;
    spw_lane_stream_sync(p->lane, p->lane->kv_up);
    spw_lane_stream_sync(p->lane, p->lane->weights_up);
    for (uint32_t i = 0; p->loaded && i < p->o.n_blocks; i++)
        spw_lane_event_close(p->lane, p->loaded[i]);
    spw_kv_source_free(&p->kv);
    spw_block_source_free(&p->weights);
    spw_expert_pool_close(&p->experts);
    spw_lane_event_close(p->lane, p->stall.reached);
    spw_free(p->loaded);
    spw_free(p);
}

/* ---- issuing ---- */

/* Issues KV transfers while there is a free slot. Stops at tiles that have no lower copy yet, or
 * whose copy is not yet in its final tier: in a layer of a prompt, later chunks read tiles that
 * earlier chunks have not spilled yet. */
static int fill_kv(struct spw_prefetch *p)
{
    struct spw_kv_cursor next = p->kv_next;
    struct spw_transfer t;
    while (spw_schedule_next_kv(p->schedule, &next, &t) && spw_kv_source_can_issue(&p->kv, &t)) {
        p->kv_next = next;
        SPW_TRY(spw_kv_source_issue(&p->kv, &t));
    }
    return 0;
}

bool spw_prefetch_is_on_host(const struct spw_prefetch *p, uint32_t block)
{
    const uint32_t rows = p->o.blocks[block].host_rows;
    return rows && p->schedule->rows <= rows;
}

/* Whether the block comes in a slot. */
static bool comes(const struct spw_prefetch *p, uint32_t block)
{
    return is_streamed(&p->o.blocks[block]) && !spw_prefetch_is_on_host(p, block);
}

/* Finds the next block of the schedule that comes. */
static bool next_streamed(const struct spw_prefetch *p, struct spw_block_cursor *c, uint32_t *block)
{
    while (spw_schedule_next_block(p->schedule, c, block))
        if (comes(p, *block))
            return true;
    return false;
}

/* Makes `s` wait, before the first use of a block, until the block is prepared, and copied if it is
 * resident. */
static int wait_loaded(struct spw_prefetch *p, uint32_t block, spw_stream s)
{
    if (!p->loaded[block])
        return 0;
    SPW_TRY(spw_lane_stream_wait(p->lane, s, p->loaded[block]));
    if (p->o.blocks[block].host_rows) /* the host has not waited */
        return 0;
    spw_lane_event_close(p->lane, p->loaded[block]);
    p->loaded[block] = NULL;
    return 0;
}

/* Before the host reads a block for the first time: it is packed. */
static int host_waits_loaded(struct spw_prefetch *p, uint32_t block)
{
    if (!p->loaded[block])
        return 0;
    SPW_TRY(spw_lane_event_sync(p->lane, p->loaded[block]));
    spw_lane_event_close(p->lane, p->loaded[block]);
    p->loaded[block] = NULL;
    return 0;
}

static int fill_weights(struct spw_prefetch *p)
{
    uint32_t block;
    while (spw_ring_has_room(&p->weights.ring, false) && next_streamed(p, &p->block_next, &block)) {
        SPW_TRY(wait_loaded(p, block, p->lane->weights_up));
        SPW_TRY(spw_block_source_issue(&p->weights, block, NULL, false));
    }
    return 0;
}

/* ---- steps ---- */

/* Moves the cursors past the transfers that the rings hold already. False: the schedule does not
 * begin with these transfers. */
static bool continue_with(struct spw_prefetch *p)
{
    struct spw_transfer t;
    uint32_t block;
    for (uint64_t i = p->kv.ring.waited; i < p->kv.ring.taken; i++)
        if (!spw_schedule_next_kv(p->schedule, &p->kv_next, &t) ||
            !spw_kv_source_holds(&p->kv, i, &t))
            return false;
    for (uint64_t i = p->weights.ring.waited; i < p->weights.ring.taken; i++)
        if (!next_streamed(p, &p->block_next, &block) ||
            block != spw_block_source_block(&p->weights, i))
            return false;
    return true;
}

struct spw_schedule_progress spw_prefetch_progress(const struct spw_prefetch *p)
{
    return (struct spw_schedule_progress){
        .transfers = p->kv.ring.taken - p->transfers_before,
        .queued_transfers = spw_ring_n_queued(&p->kv.ring) - p->transfers_before,
        .blocks = p->weights.ring.taken - p->blocks_before,
        .queued_blocks = spw_ring_n_queued(&p->weights.ring) - p->blocks_before};
}

uint64_t spw_prefetch_dropped(const struct spw_prefetch *p, struct spw_schedule_progress *last)
{
    *last = p->dropped;
    return p->n_dropped;
}

static void drop(struct spw_prefetch *p)
{
    if (p->kv.ring.taken > p->kv.ring.waited || p->weights.ring.taken > p->weights.ring.waited) {
        p->dropped = spw_prefetch_progress(p);
        p->n_dropped++;
    }
    spw_ring_drop(&p->kv.ring);
    spw_ring_drop(&p->weights.ring);
}

static void rewind_schedule(struct spw_prefetch *p)
{
    p->kv_next = p->schedule->first_kv;
    p->block_next = p->schedule->first_block;
}

static int start(struct spw_prefetch *p, const struct spw_schedule *s)
{
    p->schedule = s;
    p->transfers_before = p->kv.ring.waited;
    p->blocks_before = p->weights.ring.waited;
    rewind_schedule(p);
    if (!continue_with(p)) {
        drop(p);
        rewind_schedule(p);
    }
    SPW_TRY(fill_weights(p));
    return fill_kv(p);
}

int spw_prefetch_begin(struct spw_prefetch *p, const struct spw_schedule *s)
{
    return start(p, s);
}

int spw_prefetch_ahead(struct spw_prefetch *p, const struct spw_schedule *next)
{
    assert(p->kv.ring.waited == p->kv.ring.released &&
           p->weights.ring.waited == p->weights.ring.released);
    return start(p, next);
}

void spw_prefetch_finish(struct spw_prefetch *p)
{
    spw_ring_finish(&p->kv.ring);
    spw_ring_finish(&p->weights.ring);
    spw_expert_pool_finish(&p->experts);
}

int spw_prefetch_forget(struct spw_prefetch *p)
{
    /* A failed step may have left slots in use; no kernel reads them now. */
    p->kv.ring.released = p->kv.ring.waited;
    p->weights.ring.released = p->weights.ring.waited;
    p->weights.failed = (struct spw_block_failure){0};
    drop(p);
    spw_expert_pool_forget(&p->experts);
    return spw_lane_stream_sync(p->lane, p->lane->kv_up);
}

/* ---- consuming ---- */

/* Issues a transfer that could not be issued ahead: its tiles were spilled just now, and may still
 * be on their way to the disk. */
static int issue_now(struct spw_prefetch *p)
{
    struct spw_transfer t;
    bool more = spw_schedule_next_kv(p->schedule, &p->kv_next, &t);
    assert(more);
    (void)more;
    SPW_TRY(spw_kv_source_issue(&p->kv, &t));
    return fill_kv(p);
}

int spw_prefetch_wait_kv(struct spw_prefetch *p, const struct spw_transfer *t, uint8_t **slot)
{
    if (p->kv.ring.waited == p->kv.ring.taken)
        SPW_TRY(issue_now(p));
    assert(spw_kv_source_holds(&p->kv, p->kv.ring.waited, t));
    if (!p->o.disk)
        return spw_kv_source_wait(&p->kv, slot);
    SPW_TRY(spw_prefetch_stall_begin(p));
    int rc = spw_kv_source_wait(&p->kv, slot);
    spw_prefetch_stall_end(p, t->reader);
    return rc;
}

int spw_prefetch_wait_load(struct spw_prefetch *p, struct spw_kv_seq *seq, uint32_t slice,
                           uint32_t layer)
{
    if (!spw_kv_is_loading(seq, slice))
        return 0;
    SPW_TRY(spw_prefetch_stall_begin(p));
    int rc = spw_kv_finish_load(seq, slice);
    spw_prefetch_stall_end(p, layer);
    return rc;
}

double spw_prefetch_stalled_seconds(const struct spw_prefetch *p, uint32_t range)
{
    return p->stall.seconds[range];
}

int spw_prefetch_release_kv(struct spw_prefetch *p)
{
    SPW_TRY(spw_ring_release(&p->kv.ring));
    return fill_kv(p);
}

static int wait_streamed(struct spw_prefetch *p, uint32_t block, uint8_t **slot)
{
    assert(spw_block_source_block(&p->weights, p->weights.ring.waited) == block);
    if (!p->o.blocks[block].n_reads)
        return spw_block_source_wait(&p->weights, slot);
    SPW_TRY(spw_prefetch_stall_begin(p));
    int rc = spw_block_source_wait(&p->weights, slot);
    spw_prefetch_stall_end(p, p->o.blocks[block].layer);
    return rc;
}

int spw_prefetch_wait_block(struct spw_prefetch *p, uint32_t block, const uint8_t **weights)
{
    if (comes(p, block)) {
        uint8_t *slot;
        SPW_TRY(wait_streamed(p, block, &slot));
        *weights = slot;
        return 0;
    }
    if (spw_prefetch_is_on_host(p, block)) {
        *weights = p->o.blocks[block].pieces[0].from;
        return host_waits_loaded(p, block);
    }
    *weights = p->o.blocks[block].resident;
    return wait_loaded(p, block, p->lane->compute);
}

const uint8_t *spw_prefetch_resident(const struct spw_prefetch *p, uint32_t block)
{
    return p->o.blocks[block].resident;
}

int spw_prefetch_release_block(struct spw_prefetch *p, uint32_t block)
{
    if (!comes(p, block))
        return 0;
    SPW_TRY(spw_ring_release(&p->weights.ring));
    return fill_weights(p);
}

struct spw_block_failure spw_prefetch_failed_read(const struct spw_prefetch *p)
{
    return p->experts.source.failed.block ? p->experts.source.failed : p->weights.failed;
}

/* ---- experts ---- */

int spw_prefetch_visit_experts(struct spw_prefetch *p, struct spw_expert_visit *v, uint32_t n,
                               bool on_host)
{
    spw_expert_pool_visit(&p->experts, v, n, on_host);
    for (uint32_t i = 0; i < n && !on_host; i++)
        if (v[i].missed)
            SPW_TRY(wait_loaded(p, p->o.first_expert + v[i].expert, p->lane->weights_up));
    return spw_expert_pool_fill(&p->experts);
}

bool spw_prefetch_has_expert(const struct spw_prefetch *p)
{
    return spw_expert_pool_has_next(&p->experts);
}

int spw_prefetch_next_expert(struct spw_prefetch *p, uint32_t layer, uint32_t *expert,
                             const uint8_t **at)
{
    if (!p->o.weights_io || !spw_expert_pool_waits(&p->experts))
        return spw_expert_pool_next(&p->experts, expert, at);
    SPW_TRY(spw_prefetch_stall_begin(p));
    int rc = spw_expert_pool_next(&p->experts, expert, at);
    spw_prefetch_stall_end(p, layer);
    return rc;
}

int spw_prefetch_expert_done(struct spw_prefetch *p)
{
    return spw_expert_pool_done(&p->experts);
}

uint32_t spw_prefetch_n_host_experts(const struct spw_prefetch *p, bool packed)
{
    return packed ? p->experts.n_packed : p->experts.n_host;
}

int spw_prefetch_host_expert(struct spw_prefetch *p, uint32_t layer, uint32_t i,
                             struct spw_host_expert *out)
{
    if (i < p->experts.n_packed) {
        SPW_TRY(spw_expert_pool_host(&p->experts, i, out));
        return host_waits_loaded(p, p->o.first_expert + out->expert);
    }
    SPW_TRY(spw_prefetch_stall_begin(p));
    int rc = spw_expert_pool_host(&p->experts, i, out);
    spw_prefetch_stall_end(p, layer);
    return rc;
}

int spw_prefetch_host_expert_done(struct spw_prefetch *p, uint32_t i)
{
    return spw_expert_pool_host_done(&p->experts, i);
}

void spw_prefetch_expert_counts(const struct spw_prefetch *p, double *counts)
{
    spw_expert_residency_counts(&p->experts.residency, counts);
}
