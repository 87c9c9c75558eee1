/* Slots and what fills them: see ring.h.
 *
 *   memory:   host --link--> slot                      link:         behind the slot's kernels
 *   direct:   disk ==read==> slot                      disk_stream:  behind the slot's kernels
 *   bounced:  disk ==read==> bounce --link--> slot     disk_stream:  behind the bounce's copies
 *
 * The second hop of a bounce is queued once the host knows that the first one is over: when the
 * slot is waited for, or when one before it is and its own reads happen to be over. Bounce slots
 * are taken and passed on in the order of the slots that need one. */
#include "prefetch/ring.h"

#include <assert.h>

/* A piece of a slot that is copied from its bounce slot. */
struct spw_ring_hop {
    uint64_t to, from, bytes;
};

struct spw_ring_slot {
    uint8_t *memory;
    uint8_t *lands; /* where reads go: the slot's memory, or the bounce slot's */
    struct spw_run *reads;
    struct spw_ring_hop *hops;
    uint32_t n_reads, n_submitted, n_hops;
    uint32_t bounce;       /* its number, if one is used */
    spw_event ready, free; /* filled, but for reads; no kernel reads the slot any more */
    spw_event behind;      /* the submission of the reads */
    bool bounces;          /* reads go to a bounce slot */
    bool bouncing;         /* one is used, and not passed on yet */
    bool reading;          /* reads are perhaps under way */
    int rc;                /* a source is lost */
};

static struct spw_ring_slot *nth(const struct spw_ring *r, uint64_t n)
{
    return &r->slots[n % r->o.n_slots];
}

/* The slot that is being filled. */
static struct spw_ring_slot *newest(const struct spw_ring *r)
{
    return nth(r, r->issued - 1);
}

static int open_slots(struct spw_ring *r)
{
    const struct spw_ring_options *o = &r->o;
    for (uint32_t i = 0; i < o->n_slots; i++) {
        struct spw_ring_slot *s = &r->slots[i];
        s->memory = (uint8_t *)o->arena + i * o->slot_bytes;
        s->reads = r->reads + (size_t)i * o->most_reads;
        s->hops = r->hops + (size_t)i * o->most_hops;
        SPW_TRY(spw_lane_event_open(r->lane, &s->ready));
        SPW_TRY(spw_lane_event_open(r->lane, &s->free));
        if (o->most_reads)
            SPW_TRY(spw_lane_event_open(r->lane, &s->behind));
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

/* Sleeps until the slot's reads are over. Fails with the device only. */
static int finish_reads(struct spw_ring *r, struct spw_ring_slot *s)
{
    int rc = 0;
    for (uint32_t i = 0; s->reading && i < s->n_submitted; i++) {
        int lost = spw_disk_wait(r->lane, &s->reads[i].job, s->behind);
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
        spw_lane_event_close(r->lane, s->behind);
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
    return r->issued - r->released < r->o.n_slots &&
           (!bounces || r->bounced - r->passed_on < r->o.n_bounce);
}

/* What is queued on `stream` from now on may write the slot. */
static int enter(const struct spw_ring *r, const struct spw_ring_slot *s, spw_stream stream)
{
    /* the kernels that read what lay here before; for others than `link`, also copies to here that
     * were dropped and may still be under way */
    if (stream != r->o.link)
        SPW_TRY(spw_lane_stream_wait(r->lane, stream, s->ready));
    return spw_lane_stream_wait(r->lane, stream, s->free);
}

int spw_ring_take(struct spw_ring *r, bool bounces)
{
    assert(spw_ring_has_room(r, false));
    struct spw_ring_slot *s = nth(r, r->issued);
    SPW_TRY(finish_reads(r, s)); /* none, unless the device was lost while they were issued */
    r->issued++;
    s->lands = s->memory;
    s->n_reads = s->n_submitted = s->n_hops = 0;
    s->bounces = bounces;
    s->bouncing = false;
    s->rc = 0;
    r->rc = enter(r, s, r->o.link);
    return r->rc;
}

void spw_ring_add_memory(struct spw_ring *r, uint64_t to, const void *from, uint64_t bytes)
{
    if (!r->rc)
        r->rc = spw_copies_add(&r->copies, newest(r)->memory + to, from, bytes,
                               SPW_LINK_HOST_TO_DEVICE, r->o.link);
}

/* The disk's stream may write where the reads of the slot land. */
static int enter_reads(struct spw_ring *r, struct spw_ring_slot *s)
{
    if (!s->bounces)
        return enter(r, s, r->o.disk_stream);
    assert(r->bounced - r->passed_on < r->o.n_bounce);
    s->bouncing = true;
    s->bounce = (uint32_t)(r->bounced++ % r->o.n_bounce);
    s->lands = (uint8_t *)r->o.bounce_arena + s->bounce * r->o.bounce_bytes;
    return spw_lane_stream_wait(r->lane, r->o.disk_stream, r->bounce_free[s->bounce]);
}

/* Submits the read that was added last. */
static void submit(struct spw_ring *r, struct spw_ring_slot *s)
{
    if (r->rc || s->n_submitted == s->n_reads)
        return;
    struct spw_run *d = &s->reads[s->n_submitted++];
    s->reading = true;
    if (d->n) /* frames; a range is prepared */
        spw_run_prepare(d, r->o.disk, false);
    r->rc = spw_disk_submit(r->lane, &d->job, r->o.disk_stream);
}

/* Another read of the slot; NULL: the device is lost. */
static struct spw_run *add_read(struct spw_ring *r, struct spw_ring_slot *s)
{
    submit(r, s);
    if (!r->rc && !s->n_reads)
        r->rc = enter_reads(r, s);
    assert(r->rc || s->n_reads < r->o.most_reads);
    if (r->rc)
        return NULL;
    s->reads[s->n_reads].n = 0;
    return &s->reads[s->n_reads++];
}

void spw_ring_add_frame(struct spw_ring *r, uint64_t to, uint32_t tile, uint32_t frame)
{
    struct spw_ring_slot *s = newest(r);
    struct spw_run *d = s->n_reads ? &s->reads[s->n_reads - 1] : NULL;
    uint64_t tile_bytes = r->o.tile_bytes;
    if (!d || !spw_run_extend(d, frame, s->lands + to, tile_bytes, UINT32_MAX)) {
        d = add_read(r, s);
        if (!d)
            return;
        d->tile = tile;
        spw_run_extend(d, frame, s->lands + to, tile_bytes, UINT32_MAX);
    }
    if (s->bouncing)
        spw_ring_add_hop(r, to, to, r->o.tile_bytes);
}

void spw_ring_add_range(struct spw_ring *r, uint64_t to, const struct spw_io_file *file,
                        uint64_t offset, uint64_t bytes, uint64_t least_bytes)
{
    struct spw_ring_slot *s = newest(r);
    struct spw_run *d = add_read(r, s);
    if (!d)
        return;
    spw_disk_job_init(&d->job);
    d->job.io.io = r->o.io;
    d->job.io.file = file;
    d->job.io.offset = offset;
    d->job.io.bytes = bytes;
    d->job.io.min_bytes = least_bytes;
    d->job.io.memory = s->lands + to;
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
        SPW_TRY(spw_lane_event_record(r->lane, s->behind, o->disk_stream));
    return s->bouncing ? 0 : spw_lane_event_record(r->lane, s->ready, o->link);
}

int spw_ring_issue(struct spw_ring *r, void (*copied)(void *), void *context)
{
    int rc = queue_rest(r, newest(r), copied, context);
    r->copies.bytes = 0; /* what a failure left */
    if (rc && newest(r)->reading)
        /* the device is lost: the stream has passed the submissions, or never will */
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

/* Copies what has landed in the bounce slot, if all of it has. */
static int pass_on(struct spw_ring *r, struct spw_ring_slot *s)
{
    const struct spw_ring_options *o = &r->o;
    for (uint32_t i = 0; i < s->n_hops && !s->rc; i++) {
        const struct spw_ring_hop *h = &s->hops[i];
        SPW_TRY(spw_copies_add(&r->copies, s->memory + h->to, s->lands + h->from, h->bytes,
                               SPW_LINK_HOST_TO_DEVICE, o->link));
    }
    SPW_TRY(spw_copies_flush(&r->copies));
    SPW_TRY(spw_lane_event_record(r->lane, r->bounce_free[s->bounce], o->link));
    s->bouncing = false;
    r->passed_on++;
    return spw_lane_event_record(r->lane, s->ready, o->link);
}

/* The slot gets all that it is to hold. */
static int land(struct spw_ring *r, struct spw_ring_slot *s)
{
    SPW_TRY(finish_reads(r, s));
    for (uint32_t i = 0; i < s->n_reads; i++)
        if (s->reads[i].job.io.rc)
            s->rc = -EBADMSG;
    return s->bouncing ? pass_on(r, s) : 0;
}

int spw_ring_wait(struct spw_ring *r, uint8_t **slot)
{
    assert(r->waited < r->issued);
    struct spw_ring_slot *s = nth(r, r->waited);
    SPW_TRY(land(r, s));
    for (uint64_t i = r->waited; !nth(r, i)->rc && ++i < r->issued && reads_are_over(nth(r, i));)
        SPW_TRY(land(r, nth(r, i))); /* the second hop of the next ones */
    SPW_TRY(s->rc);
    r->waited++;
    *slot = s->memory;
    return spw_lane_stream_wait(r->lane, r->lane->compute, s->ready);
}

const struct spw_run *spw_ring_reads(const struct spw_ring *r, uint32_t *n)
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

uint64_t spw_ring_landed(const struct spw_ring *r)
{
    uint64_t n = r->waited;
    while (n < r->issued && !nth(r, n)->bouncing && !nth(r, n)->rc)
        n++;
    return n;
}

void spw_ring_finish(struct spw_ring *r)
{
    for (uint64_t n = r->waited; n < r->issued; n++)
        finish_reads(r, nth(r, n)); /* what came of them is for spw_ring_wait */
}

void spw_ring_drop(struct spw_ring *r)
{
    /* A dropped copy may still be under way; what lands in its slot next is on the same stream, or
     * waits for it. */
    assert(r->released == r->waited);
    spw_ring_finish(r); /* a lost device shows soon enough */
    r->issued = r->waited;
    r->bounced = r->passed_on;
}
