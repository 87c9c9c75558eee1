/* A ring of slots: see ring.h. The three ways of a source into a slot, and what each stream waits
 * for before it writes:
 *
 *   memory:   host --link--> slot                      link:         kernels that read the slot
 *   read:     disk ==read==> slot                      disk_stream:  kernels that read the slot
 *   bounced:  disk ==read==> bounce --link--> slot     disk_stream:  copies from the bounce slot
 *
 * The host queues the copy from a bounce slot when it knows that the reads are over: in the wait
 * for the slot, or in the wait for an earlier slot if the reads are already over then. Bounce slots
 * are taken and released in the order of the slots that use them. */
#include "prefetch/ring.h"

#include <assert.h>

/* One copy from a bounce slot to its slot. */
struct spw_ring_hop {
    uint64_t to, from, bytes;
};

struct spw_ring_slot {
    uint8_t *memory;
    uint8_t *read_to; /* the destination of reads: the slot, or the bounce slot */
    struct spw_tile_run *reads;
    struct spw_ring_hop *hops;
    uint32_t n_reads, n_submitted, n_hops;
    uint32_t bounce; /* number of the bounce slot, if the slot uses one */
    spw_event ready,
        free; /* ready: copies into the slot are over. free: kernels that read it are over */
    spw_event submitted; /* after the submission of the reads */
    bool bounces;        /* reads go to a bounce slot */
    bool holds_bounce;   /* a bounce slot is in use: the copy from it is not queued yet */
    bool reading;        /* reads may be in flight */
    int rc;              /* -EBADMSG: a source is lost */
};

static struct spw_ring_slot *nth(const struct spw_ring *r, uint64_t n)
{
    return &r->slots[n % r->o.n_slots];
}

/* The slot that the caller fills. */
static struct spw_ring_slot *newest(const struct spw_ring *r)
{
    return nth(r, r->taken - 1);
}

static int open_slots(struct spw_ring *r)
{
    const struct spw_ring_options *o = &r->o;
    for (uint32_t i = 0; i < o->n_slots; i++) {
        struct spw_ring_slot *s = &r->slots[i];
        s->reads = r->reads + (size_t)i * o->most_reads;
        s->hops = r->hops + (size_t)i * o->most_hops;
        SPW_TRY(spw_lane_event_open(r->lane, &s->ready));
        SPW_TRY(spw_lane_event_open(r->lane, &s->free));
        if (o->most_reads)
            SPW_TRY(spw_lane_event_open(r->lane, &s->submitted));
    }
    for (uint32_t i = 0; i < o->n_bounce; i++)
        SPW_TRY(spw_lane_event_open(r->lane, &r->bounce_free[i]));
    return 0;
}

int spw_ring_init(struct spw_ring *r, const struct spw_lane *lane, const struct spw_ring_options *o)
{
    *r = (struct spw_ring){.lane = lane, .o = *o, .copies.lane = lane};
    r->slots = spw_alloc_zero(o->n_slots, sizeof *r->slots);
    r->reads = spw_alloc_zero((size_t)o->n_slots * o->most_reads, sizeof *r->reads);
    r->hops = spw_alloc_zero((size_t)o->n_slots * o->most_hops, sizeof *r->hops);
    r->bounce_free = spw_alloc_zero(o->n_bounce, sizeof(spw_event));
    int rc = r->slots && r->reads && r->hops && r->bounce_free ? open_slots(r) : -ENOMEM;
    if (rc)
        spw_ring_free(r);
    return rc;
}

/* Sleeps until the slot's reads are over. Fails only if the device is lost. */
static int finish_reads(struct spw_ring *r, struct spw_ring_slot *s)
{
    int rc = 0;
    for (uint32_t i = 0; s->reading && i < s->n_submitted; i++) {
        int lost = spw_disk_wait(r->lane, &s->reads[i].job, s->submitted);
        rc = rc ? rc : lost;
    }
    s->reading = rc;
    return rc;
}

void spw_ring_free(struct spw_ring *r)
{
    for (uint32_t i = 0; r->slots && i < r->o.n_slots; i++) {
        struct spw_ring_slot *s = &r->slots[i];
        finish_reads(r, s);
        spw_lane_event_close(r->lane, s->ready);
        spw_lane_event_close(r->lane, s->free);
        spw_lane_event_close(r->lane, s->submitted);
    }
    for (uint32_t i = 0; r->bounce_free && i < r->o.n_bounce; i++)
        spw_lane_event_close(r->lane, r->bounce_free[i]);
    spw_free(r->slots);
    spw_free(r->reads);
    spw_free(r->hops);
    spw_free(r->bounce_free);
    *r = (struct spw_ring){0};
}

/* ---- filling ---- */

bool spw_ring_has_room(const struct spw_ring *r, bool bounces)
{
    return r->taken - r->released < r->o.n_slots &&
           (!bounces || r->bounce_taken - r->bounce_released < r->o.n_bounce);
}

/* Makes `stream` wait until it may write the slot. */
static int wait_writable(const struct spw_ring *r, const struct spw_ring_slot *s, spw_stream stream)
{
    /* `free`: kernels that read the earlier bytes of the slot. `ready`: dropped copies into this
     * slot, which may still be in flight on `link`; `link` itself is in order */
    if (stream != r->o.link)
        SPW_TRY(spw_lane_stream_wait(r->lane, stream, s->ready));
    return spw_lane_stream_wait(r->lane, stream, s->free);
}

int spw_ring_take(struct spw_ring *r, bool bounces, uint8_t *memory)
{
    assert(spw_ring_has_room(r, false));
    struct spw_ring_slot *s = nth(r, r->taken);
    SPW_TRY(
        finish_reads(r, s)); /* no read is in flight, unless the device was lost during an issue */
    s->memory = memory ? memory : (uint8_t *)r->o.arena + r->taken % r->o.n_slots * r->o.slot_bytes;
    r->taken++;
    s->read_to = s->memory;
    s->n_reads = s->n_submitted = s->n_hops = 0;
    s->bounces = bounces;
    s->holds_bounce = false;
    s->rc = 0;
    r->rc = wait_writable(r, s, r->o.link);
    return r->rc;
}

void spw_ring_add_memory(struct spw_ring *r, uint64_t to, const void *from, uint64_t bytes)
{
    if (!r->rc)
        r->rc = spw_copies_add(&r->copies, newest(r)->memory + to, from, bytes,
                               SPW_LINK_HOST_TO_DEVICE, r->o.link);
}

/* Chooses the destination of the slot's reads, and makes the disk's stream wait until it may write
 * there. */
static int prepare_reads(struct spw_ring *r, struct spw_ring_slot *s)
{
    if (!s->bounces)
        return wait_writable(r, s, r->o.disk_stream);
    assert(r->bounce_taken - r->bounce_released < r->o.n_bounce);
    s->holds_bounce = true;
    s->bounce = (uint32_t)(r->bounce_taken++ % r->o.n_bounce);
    s->read_to = (uint8_t *)r->o.bounce_arena + s->bounce * r->o.bounce_bytes;
    return spw_lane_stream_wait(r->lane, r->o.disk_stream, r->bounce_free[s->bounce]);
}

/* Submits the read that was added last. */
static void submit(struct spw_ring *r, struct spw_ring_slot *s)
{
    if (r->rc || s->n_submitted == s->n_reads)
        return;
    struct spw_tile_run *d = &s->reads[s->n_submitted++];
    s->reading = true;
    if (d->n) /* frames of the disk; a range is prepared already */
        spw_tile_run_prepare(d, r->o.disk, false);
    r->rc = spw_disk_submit(r->lane, &d->job, r->o.disk_stream);
}

/* Adds a read to the slot; NULL: the device is lost. */
static struct spw_tile_run *add_read(struct spw_ring *r, struct spw_ring_slot *s)
{
    submit(r, s);
    if (!r->rc && !s->n_reads)
        r->rc = prepare_reads(r, s);
    assert(r->rc || s->n_reads < r->o.most_reads);
    if (r->rc)
        return NULL;
    s->reads[s->n_reads].n = 0;
    return &s->reads[s->n_reads++];
}

void spw_ring_add_frame(struct spw_ring *r, uint64_t to, uint32_t tile, uint32_t frame)
{
    struct spw_ring_slot *s = newest(r);
    struct spw_tile_run *d = s->n_reads ? &s->reads[s->n_reads - 1] : NULL;
    uint64_t tile_bytes = r->o.tile_bytes;
    if (!d || !spw_tile_run_extend(d, frame, s->read_to + to, tile_bytes, UINT32_MAX)) {
        d = add_read(r, s);
        if (!d)
            return;
        d->tile = tile;
        spw_tile_run_extend(d, frame, s->read_to + to, tile_bytes, UINT32_MAX);
    }
    if (s->holds_bounce)
        spw_ring_add_hop(r, to, to, r->o.tile_bytes);
}

void spw_ring_add_range(struct spw_ring *r, uint64_t to, const struct spw_ring_range *range)
{
    struct spw_ring_slot *s = newest(r);
    struct spw_tile_run *d = add_read(r, s);
    if (!d)
        return;
    spw_disk_job_init(&d->job);
    d->job.io.io = r->o.io;
    d->job.io.file = range->file;
    d->job.io.offset = range->offset;
    d->job.io.bytes = range->bytes;
    d->job.io.min_bytes = range->least_bytes;
    d->job.io.memory = s->read_to + to;
    d->job.io.record_bytes = range->sums ? SPW_RING_RECORD_BYTES : 0;
    d->job.io.sums = range->sums;
    d->job.io.notes_sums = true;
}

void spw_ring_add_hop(struct spw_ring *r, uint64_t to, uint64_t from, uint64_t bytes)
{
    struct spw_ring_slot *s = newest(r);
    assert(s->bounces && s->n_hops < r->o.most_hops);
    s->hops[s->n_hops++] = (struct spw_ring_hop){to, from, bytes};
}

void spw_ring_add_loss(struct spw_ring *r)
{
    newest(r)->rc = -EBADMSG;
}

static int queue_rest(struct spw_ring *r, struct spw_ring_slot *s, void (*copied)(void *),
                      void *context)
{
    const struct spw_ring_options *o = &r->o;
    submit(r, s);
    SPW_TRY(r->rc);
    SPW_TRY(spw_copies_flush(&r->copies));
    if (copied)
        SPW_TRY(spw_lane_host_call(r->lane, copied, context, o->link));
    if (s->n_reads)
        SPW_TRY(spw_lane_event_record(r->lane, s->submitted, o->disk_stream));
    return s->holds_bounce ? 0 : spw_lane_event_record(r->lane, s->ready, o->link);
}

int spw_ring_issue(struct spw_ring *r, void (*copied)(void *), void *context)
{
    int rc = queue_rest(r, newest(r), copied, context);
    r->copies.bytes = 0; /* drops the copies of a failed issue */
    if (rc && newest(r)->reading)
        /* the device is lost: after this the stream has run the submissions, or never will */
        spw_lane_stream_sync(r->lane, r->o.disk_stream);
    return rc;
}

/* ---- waiting ---- */

static bool reads_are_over(const struct spw_ring_slot *s)
{
    for (uint32_t i = 0; s->reading && i < s->n_submitted; i++)
        if (!spw_disk_is_over(&s->reads[i].job))
            return false;
    return true;
}

/* A range that could not be read: its bytes are still in the file. */
static bool may_read_again(const struct spw_tile_run *read)
{
    return !read->n && read->job.io.rc;
}

static bool can_complete(const struct spw_ring_slot *s)
{
    if (!reads_are_over(s))
        return false;
    for (uint32_t i = 0; i < s->n_submitted; i++)
        if (may_read_again(&s->reads[i]))
            return false;
    return true;
}

/* The reads are over, and the slot is needed now: the drive may have been bad only when they were
 * issued. */
static void read_again(struct spw_ring_slot *s)
{
    for (uint32_t i = 0; i < s->n_submitted; i++)
        if (may_read_again(&s->reads[i])) {
            s->reads[i].job.io.again = true;
            spw_disk_run(&s->reads[i].job);
        }
}

/* Queues the copies from the bounce slot, whose reads are over. */
static int copy_from_bounce(struct spw_ring *r, struct spw_ring_slot *s)
{
    const struct spw_ring_options *o = &r->o;
    for (uint32_t i = 0; i < s->n_hops && !s->rc; i++) {
        const struct spw_ring_hop *h = &s->hops[i];
        SPW_TRY(spw_copies_add(&r->copies, s->memory + h->to, s->read_to + h->from, h->bytes,
                               SPW_LINK_HOST_TO_DEVICE, o->link));
    }
    SPW_TRY(spw_copies_flush(&r->copies));
    SPW_TRY(spw_lane_event_record(r->lane, r->bounce_free[s->bounce], o->link));
    s->holds_bounce = false;
    r->bounce_released++;
    return spw_lane_event_record(r->lane, s->ready, o->link);
}

/* Waits for the reads of the slot, and queues the copies from its bounce slot. */
static int complete(struct spw_ring *r, struct spw_ring_slot *s)
{
    SPW_TRY(finish_reads(r, s));
    for (uint32_t i = 0; i < s->n_reads; i++)
        if (s->reads[i].job.io.rc)
            s->rc = -EBADMSG;
    return s->holds_bounce ? copy_from_bounce(r, s) : 0;
}

int spw_ring_wait(struct spw_ring *r, uint8_t **slot)
{
    assert(r->waited < r->taken);
    struct spw_ring_slot *s = nth(r, r->waited);
    SPW_TRY(finish_reads(r, s));
    read_again(s);
    SPW_TRY(complete(r, s));
    for (uint64_t i = r->waited; !nth(r, i)->rc && ++i < r->taken && can_complete(nth(r, i));)
        SPW_TRY(complete(r, nth(r, i))); /* copies of later slots */
    SPW_TRY(s->rc);
    r->waited++;
    *slot = s->memory;
    return spw_lane_stream_wait(r->lane, r->lane->compute, s->ready);
}

const struct spw_tile_run *spw_ring_reads(const struct spw_ring *r, uint32_t *n)
{
    const struct spw_ring_slot *s = nth(r, r->waited);
    *n = s->n_reads;
    return s->reads;
}

int spw_ring_release(struct spw_ring *r)
{
    assert(r->released < r->waited);
    return spw_lane_event_record(r->lane, nth(r, r->released++)->free, r->lane->compute);
}

/* ---- what is ahead ---- */

uint64_t spw_ring_n_queued(const struct spw_ring *r)
{
    uint64_t n = r->waited;
    while (n < r->taken && !nth(r, n)->holds_bounce && !nth(r, n)->rc)
        n++;
    return n;
}

void spw_ring_finish(struct spw_ring *r)
{
    for (uint64_t n = r->waited; n < r->taken; n++)
        finish_reads(r, nth(r, n)); /* spw_ring_wait reports failures of reads */
}

void spw_ring_drop(struct spw_ring *r)
{
    /* A dropped copy may still be in flight. The next write of its slot is on the same stream, or
     * waits for the copy. */
    assert(r->released == r->waited);
    spw_ring_finish(r); /* a later call reports a lost device */
    r->taken = r->waited;
    r->bounce_taken = r->bounce_released;
}
