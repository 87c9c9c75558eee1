/* Experts on their way to frames: see expert_pool.h.
 *
 * The transfers are those of a ring (ring.h) whose slots lie in the frames. A slot is released as
 * soon as its transfer is over; what protects a frame is its own event. */
#include "prefetch/expert_pool.h"

#include <assert.h>
#include <string.h>

static int open_tables(struct spw_expert_pool *p)
{
    const struct spw_expert_pool_options *o = &p->o;
    p->visit = spw_alloc_zero(o->shape.n_experts, sizeof *p->visit);
    p->turn = spw_alloc_zero(o->shape.n_experts, sizeof *p->turn);
    p->turns_done = spw_alloc_zero(o->n_frames, sizeof *p->turns_done);
    p->used = spw_alloc_zero(o->n_frames, sizeof(spw_event));
    if (!p->visit || !p->turn || !p->turns_done || !p->used)
        return -ENOMEM;
    for (uint32_t i = 0; i < o->n_frames; i++)
        SPW_TRY(spw_lane_event_open(p->lane, &p->used[i]));
    return spw_expert_residency_init(&p->residency, &o->shape, o->n_frames, o->counts, o->tables);
}

int spw_expert_pool_open(struct spw_expert_pool *p, const struct spw_lane *lane,
                         const struct spw_expert_pool_options *o)
{
    *p = (struct spw_expert_pool){.o = *o, .lane = lane};
    if (!o->n_frames)
        return 0;
    const struct spw_ring_options ring = {.link = lane->weights_up,
                                          .n_slots = o->n_slots,
                                          .disk_stream = lane->weights_up,
                                          .io = o->io,
                                          .bounce_arena = o->bounce_arena,
                                          .bounce_bytes = o->frame_bytes,
                                          .n_bounce = o->bounce_arena ? o->n_slots : 0};
    int rc = open_tables(p);
    if (!rc)
        rc = spw_block_source_init(&p->source, lane, &ring, o->blocks, o->n_experts);
    if (rc)
        spw_expert_pool_close(p);
    return rc;
}

void spw_expert_pool_close(struct spw_expert_pool *p)
{
    if (!p->o.n_frames)
        return;
    spw_block_source_free(&p->source);
    spw_expert_residency_free(&p->residency);
    for (uint32_t i = 0; p->used && i < p->o.n_frames; i++)
        spw_lane_event_close(p->lane, p->used[i]);
    spw_free(p->visit);
    spw_free(p->turn);
    spw_free(p->turns_done);
    spw_free(p->used);
    *p = (struct spw_expert_pool){0};
}

/* ---- a visit ---- */

/* Experts that lie in frames come first; the order stays otherwise. */
static void order(struct spw_expert_pool *p, const struct spw_expert_visit *v, uint32_t n)
{
    uint32_t at = 0;
    for (int missed = 0; missed < 2; missed++) {
        for (uint32_t i = 0; i < n; i++)
            if (v[i].missed == missed)
                p->visit[at++] = v[i];
        if (!missed)
            p->n_issued = at; /* these need no transfer */
    }
}

/* Several experts of a visit may get the same frame, one after the other. */
static void count_turns(struct spw_expert_pool *p)
{
    for (uint32_t i = 0; i < p->n; i++)
        p->turns_done[p->visit[i].frame] = 0;
    for (uint32_t i = 0; i < p->n; i++)
        p->turn[i] = p->turns_done[p->visit[i].frame]++;
    for (uint32_t i = 0; i < p->n; i++)
        p->turns_done[p->visit[i].frame] = 0;
}

void spw_expert_pool_visit(struct spw_expert_pool *p, struct spw_expert_visit *v, uint32_t n)
{
    assert(p->n_done == p->n && n <= p->o.shape.n_experts);
    spw_expert_residency_visit(&p->residency, v, n);
    p->n = n;
    p->n_done = 0;
    order(p, v, n);
    count_turns(p);
}

int spw_expert_pool_fill(struct spw_expert_pool *p)
{
    for (; p->n_issued < p->n; p->n_issued++) {
        const struct spw_expert_visit *v = &p->visit[p->n_issued];
        const bool bounces = p->o.blocks[v->expert].bounce_offsets;
        if (!spw_ring_has_room(&p->source.ring, bounces) ||
            p->turns_done[v->frame] < p->turn[p->n_issued])
            return 0;
        SPW_TRY(spw_lane_stream_wait(p->lane, p->lane->weights_up, p->used[v->frame]));
        SPW_TRY(spw_block_source_issue(&p->source, v->expert,
                                       (uint8_t *)p->o.arena + v->frame * p->o.frame_bytes));
    }
    return 0;
}

bool spw_expert_pool_has_next(const struct spw_expert_pool *p)
{
    return p->n_done < p->n;
}

bool spw_expert_pool_waits(const struct spw_expert_pool *p)
{
    return p->n_done < p->n && p->visit[p->n_done].missed;
}

int spw_expert_pool_next(struct spw_expert_pool *p, uint32_t *expert, const uint8_t **at)
{
    const struct spw_expert_visit *v = &p->visit[p->n_done];
    *expert = v->expert;
    *at = (uint8_t *)p->o.arena + v->frame * p->o.frame_bytes;
    if (!v->missed)
        return 0;
    uint8_t *slot;
    assert(p->n_issued > p->n_done);
    SPW_TRY(spw_block_source_wait(&p->source, &slot));
    assert(slot == *at);
    return spw_ring_release(&p->source.ring);
}

int spw_expert_pool_done(struct spw_expert_pool *p)
{
    const uint32_t frame = p->visit[p->n_done++].frame;
    p->turns_done[frame]++;
    SPW_TRY(spw_lane_event_record(p->lane, p->used[frame], p->lane->compute));
    return spw_expert_pool_fill(p);
}

void spw_expert_pool_forget(struct spw_expert_pool *p)
{
    if (p->n_done == p->n)
        return;
    p->source.ring.released = p->source.ring.waited;
    spw_ring_drop(&p->source.ring);
    spw_expert_residency_clear(&p->residency);
    p->source.failed = (struct spw_block_failure){0};
    p->n = p->n_done = p->n_issued = 0;
}

void spw_expert_pool_finish(struct spw_expert_pool *p)
{
    if (p->o.n_frames)
        spw_ring_finish(&p->source.ring);
}
