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
    p->came = spw_alloc_zero(o->n_frames, sizeof(spw_event));
    p->comes = spw_alloc_zero(o->n_frames, sizeof *p->comes);
    if (!p->visit || !p->turn || !p->turns_done || !p->used || !p->came || !p->comes)
        return -ENOMEM;
    for (uint32_t i = 0; i < o->n_frames; i++)
        SPW_TRY(spw_lane_event_open(p->lane, &p->used[i]));
    for (uint32_t i = 0; i < o->n_frames && o->on_host; i++)
        SPW_TRY(spw_lane_event_open(p->lane, &p->came[i]));
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
    for (uint32_t i = 0; p->came && i < p->o.n_frames; i++)
        spw_lane_event_close(p->lane, p->came[i]);
    spw_free(p->came);
    spw_free(p->comes);
    spw_free(p->visit);
    spw_free(p->turn);
    spw_free(p->turns_done);
    spw_free(p->used);
    *p = (struct spw_expert_pool){0};
}

/* ---- a visit ---- */

/* 0: it lies in a frame; 1: it is missed; of those of the host, 2 are read from files. */
static int group_of(const struct spw_expert_pool *p, const struct spw_expert_visit *v, bool on_host)
{
    return v->missed ? on_host && p->o.blocks[v->expert].n_reads ? 2 : 1 : 0;
}

/* Experts that lie in frames come first; the order stays otherwise. */
static void order(struct spw_expert_pool *p, const struct spw_expert_visit *v, uint32_t n,
                  bool on_host)
{
    uint32_t at = 0, ends[3];
    for (int group = 0; group < 3; group++) {
        for (uint32_t i = 0; i < n; i++)
            if (group_of(p, &v[i], on_host) == group)
                p->visit[at++] = v[i];
        ends[group] = at;
    }
    p->n_issued = ends[0]; /* these need no transfer */
    p->n = on_host ? ends[0] : n;
    p->n_host = n - p->n;
    p->n_packed = on_host ? ends[1] - ends[0] : 0;
    p->n_done = p->n_read = p->n_read_done = p->n_host_done = 0;
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

static bool is_over(const struct spw_expert_pool *p)
{
    return p->n_done == p->n && p->n_host_done == p->n_host;
}

void spw_expert_pool_visit(struct spw_expert_pool *p, struct spw_expert_visit *v, uint32_t n,
                           bool on_host)
{
    assert(is_over(p) && n <= p->o.shape.n_experts);
    spw_expert_residency_visit(&p->residency, v, n, on_host);
    order(p, v, n, on_host);
    count_turns(p);
}

static uint8_t *frame_at(const struct spw_expert_pool *p, uint32_t frame)
{
    return (uint8_t *)p->o.arena + frame * p->o.frame_bytes;
}

/* Where expert i of the host is read to. */
static uint8_t *host_at(const struct spw_expert_pool *p, uint32_t i)
{
    return (uint8_t *)p->o.bounce_arena + (i - p->n_packed) % p->o.n_slots * p->o.frame_bytes;
}

/* Reads of the host's experts, as many as there are bounce slots. Bounce slots of earlier visits
 * are copied from, and read to, on weights_up alone. */
static int fill_host(struct spw_expert_pool *p)
{
    const uint32_t n = p->n_host - p->n_packed;
    for (; p->n_read < n && p->n_read - p->n_read_done < p->o.n_slots; p->n_read++) {
        const uint32_t i = p->n_packed + p->n_read;
        SPW_TRY(spw_block_source_issue(&p->source, p->visit[p->n + i].expert, host_at(p, i), true));
    }
    return 0;
}

int spw_expert_pool_fill(struct spw_expert_pool *p)
{
    if (p->n_host)
        return fill_host(p);
    for (; p->n_issued < p->n; p->n_issued++) {
        const struct spw_expert_visit *v = &p->visit[p->n_issued];
        const bool bounces = p->o.blocks[v->expert].bounce_offsets;
        if (!spw_ring_has_room(&p->source.ring, bounces) ||
            p->turns_done[v->frame] < p->turn[p->n_issued])
            return 0;
        SPW_TRY(spw_lane_stream_wait(p->lane, p->lane->weights_up, p->used[v->frame]));
        SPW_TRY(spw_block_source_issue(&p->source, v->expert, frame_at(p, v->frame), false));
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

/* Of host_done, in an earlier visit. */
static int wait_for_copy(struct spw_expert_pool *p, uint32_t frame)
{
    if (!p->comes[frame])
        return 0;
    p->comes[frame] = false;
    return spw_lane_stream_wait(p->lane, p->lane->compute, p->came[frame]);
}

int spw_expert_pool_next(struct spw_expert_pool *p, uint32_t *expert, const uint8_t **at)
{
    const struct spw_expert_visit *v = &p->visit[p->n_done];
    *expert = v->expert;
    *at = frame_at(p, v->frame);
    if (!v->missed)
        return wait_for_copy(p, v->frame);
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

int spw_expert_pool_host(struct spw_expert_pool *p, uint32_t i, struct spw_host_expert *out)
{
    const uint32_t expert = p->visit[p->n + i].expert;
    const struct spw_block *u = &p->o.blocks[expert];
    *out = (struct spw_host_expert){.expert = expert, .at = u->pieces->from};
    if (i < p->n_packed)
        return 0;
    uint8_t *slot;
    SPW_TRY(spw_block_source_wait(&p->source, &slot));
    assert(slot == host_at(p, i));
    out->at = slot;
    out->lands = u->bounce_offsets;
    return spw_ring_release(&p->source.ring);
}

int spw_expert_pool_host_done(struct spw_expert_pool *p, uint32_t i)
{
    const uint32_t frame = p->visit[p->n + i].frame;
    const struct spw_block *u = &p->o.blocks[p->visit[p->n + i].expert];
    p->n_host_done++;
    p->n_read_done += i >= p->n_packed;
    if (frame != SPW_NO_FRAME) {
        SPW_TRY(spw_lane_stream_wait(p->lane, p->lane->weights_up, p->used[frame]));
        SPW_TRY(spw_block_copy(&p->source, u, frame_at(p, frame), u->n_reads ? host_at(p, i) : NULL,
                               p->lane->weights_up));
        SPW_TRY(spw_lane_event_record(p->lane, p->came[frame], p->lane->weights_up));
        p->comes[frame] = true;
    }
    return fill_host(p);
}

void spw_expert_pool_forget(struct spw_expert_pool *p)
{
    if (is_over(p))
        return;
    p->source.ring.released = p->source.ring.waited;
    spw_ring_drop(&p->source.ring);
    spw_expert_residency_clear(&p->residency);
    p->source.failed = (struct spw_block_failure){0};
    p->n = p->n_done = p->n_issued = p->n_host = p->n_host_done = 0;
}

void spw_expert_pool_finish(struct spw_expert_pool *p)
{
    if (p->o.n_frames)
        spw_ring_finish(&p->source.ring);
}
