/* Weight slots and what lands in them: see unit_ring.h.
 *
 *   from memory:  host --link--> slot
 *   direct:       file ==read==> slot
 *   bounce:       file ==read==> bounce slot --link--> slot
 *
 * Reads are submitted from `link`, which has waited for the kernels that used the slot. A bounce
 * slot has the number of its slot, so that its last copy lies before the next submission on the
 * same stream. The copies out of it are queued once the host knows that the reads are over: when
 * the unit is waited for, or when one before it is and its own reads happen to be over. */
#include "prefetch/unit_ring.h"

#include <assert.h>

struct spw_unit_slot {
    uint32_t unit;
    uint8_t *memory, *bounce;
    struct spw_disk_job *jobs; /* of the unit's reads, in their order */
    uint32_t n_jobs;           /* under way */
    spw_event behind;          /* the submission of the reads */
    bool bouncing;             /* not copied on yet */
};

static struct spw_unit_slot *nth(const struct spw_unit_ring *r, uint64_t n)
{
    return &r->slots[n % r->o.n_slots];
}

static const struct spw_unit *unit_of(const struct spw_unit_ring *r, const struct spw_unit_slot *s)
{
    return &r->o.units[s->unit];
}

static uint32_t most_reads(const struct spw_unit_ring_options *o)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < o->n_units; i++)
        most = o->units[i].n_reads > most ? o->units[i].n_reads : most;
    return most;
}

static int open_slots(struct spw_unit_ring *r)
{
    const struct spw_unit_ring_options *o = &r->o;
    for (uint32_t i = 0; i < o->n_slots; i++) {
        struct spw_unit_slot *s = &r->slots[i];
        s->memory = (uint8_t *)o->arena + i * o->slot_bytes;
        s->bounce = o->bounce_arena ? (uint8_t *)o->bounce_arena + i * o->bounce_bytes : NULL;
        s->jobs = r->jobs + (size_t)i * most_reads(o);
        if (o->io)
            SPW_TRY(o->ops->event_open(o->device, &s->behind));
    }
    return 0;
}

int spw_unit_ring_init(struct spw_unit_ring *r, const struct spw_unit_ring_options *o)
{
    *r = (struct spw_unit_ring){.o = *o,
                                .ring = {.ops = o->ops,
                                         .device = o->device,
                                         .link = o->link,
                                         .compute = o->compute,
                                         .arena = o->arena,
                                         .slot_bytes = o->slot_bytes,
                                         .n_slots = o->n_slots}};
    r->slots = spw_alloc_zero(o->n_slots, sizeof *r->slots);
    r->jobs = spw_alloc_zero((size_t)o->n_slots * most_reads(o), sizeof *r->jobs);
    int rc = r->slots && r->jobs ? 0 : -ENOMEM;
    if (!rc)
        rc = spw_ring_init(&r->ring);
    if (!rc)
        rc = open_slots(r);
    if (rc)
        spw_unit_ring_free(r);
    return rc;
}

/* Sleeps until the slot's reads are over. Fails with the device only. */
static int finish_reads(struct spw_unit_ring *r, struct spw_unit_slot *s)
{
    int rc = 0;
    for (uint32_t i = 0; i < s->n_jobs; i++) {
        int lost = spw_disk_wait(r->o.ops, r->o.device, &s->jobs[i], s->behind);
        rc = rc ? rc : lost;
    }
    return rc;
}

void spw_unit_ring_free(struct spw_unit_ring *r)
{
    for (uint32_t i = 0; r->slots && i < r->o.n_slots; i++) {
        finish_reads(r, &r->slots[i]);
        if (r->slots[i].behind)
            r->o.ops->event_close(r->o.device, r->slots[i].behind);
    }
    spw_ring_free(&r->ring);
    spw_free(r->slots);
    spw_free(r->jobs);
    r->slots = NULL;
    r->jobs = NULL;
}

/* ---- issuing ---- */

int spw_unit_copy(const struct spw_unit_ring *r, const struct spw_unit *u, uint8_t *to,
                  spw_stream link)
{
    const struct spw_device_ops *ops = r->o.ops;
    for (uint32_t i = 0; i < u->n_pieces; i++)
        SPW_TRY(ops->copy(r->o.device, to + u->pieces[i].offset, u->pieces[i].from,
                          u->pieces[i].bytes, SPW_LINK_HOST_TO_DEVICE, link));
    return u->copied ? ops->host_call(r->o.device, u->copied, u->context, link) : 0;
}

static int submit_reads(struct spw_unit_ring *r, struct spw_unit_slot *s)
{
    const struct spw_unit *u = unit_of(r, s);
    uint8_t *to = u->landed ? s->bounce : s->memory;
    s->bouncing = u->landed;
    for (uint32_t i = 0; i < u->n_reads; i++) {
        const struct spw_unit_read *read = &u->reads[i];
        struct spw_disk_job *job = &s->jobs[s->n_jobs++];
        spw_disk_job_init(job);
        job->io.io = r->o.io;
        job->io.file = read->file;
        job->io.offset = read->offset;
        job->io.bytes = read->bytes;
        job->io.least_bytes = read->least_bytes;
        job->io.memory = to + read->lands;
        SPW_TRY(spw_disk_submit(r->o.ops, r->o.device, job, r->o.link));
    }
    return r->o.ops->event_record(r->o.device, s->behind, r->o.link);
}

static int bring_up(struct spw_unit_ring *r, struct spw_unit_slot *s, uint64_t n)
{
    SPW_TRY(spw_ring_enter(&r->ring, n, r->o.link));
    if (unit_of(r, s)->n_reads)
        SPW_TRY(submit_reads(r, s));
    else
        SPW_TRY(spw_unit_copy(r, unit_of(r, s), s->memory, r->o.link));
    return s->bouncing ? 0 : spw_ring_land(&r->ring, n);
}

int spw_unit_ring_issue(struct spw_unit_ring *r, uint32_t unit)
{
    uint64_t n = r->ring.issued;
    struct spw_unit_slot *s = nth(r, n);
    SPW_TRY(finish_reads(r, s)); /* none, unless the device was lost while they were issued */
    spw_ring_take(&r->ring);
    s->unit = unit;
    s->n_jobs = 0;
    s->bouncing = false;
    int rc = bring_up(r, s, n);
    if (rc) /* the device is lost: the stream has passed the submissions, or never will */
        r->o.ops->stream_sync(r->o.device, r->o.link);
    return rc;
}

/* ---- landing ---- */

static int copy_on(struct spw_unit_ring *r, struct spw_unit_slot *s, uint64_t n)
{
    const struct spw_unit *u = unit_of(r, s);
    for (uint32_t i = 0; i < u->n_pieces; i++)
        SPW_TRY(r->o.ops->copy(r->o.device, s->memory + u->pieces[i].offset,
                               s->bounce + u->landed[i], u->pieces[i].bytes,
                               SPW_LINK_HOST_TO_DEVICE, r->o.link));
    s->bouncing = false;
    return spw_ring_land(&r->ring, n);
}

/* Slot n gets all that it is to hold. */
static int land(struct spw_unit_ring *r, uint64_t n)
{
    struct spw_unit_slot *s = nth(r, n);
    SPW_TRY(finish_reads(r, s));
    for (uint32_t i = 0; i < s->n_jobs; i++)
        if (s->jobs[i].io.rc) {
            r->failed = &unit_of(r, s)->reads[i];
            r->failed_rc = s->jobs[i].io.rc;
            return -EIO;
        }
    s->n_jobs = 0;
    return s->bouncing ? copy_on(r, s, n) : 0;
}

static bool reads_are_over(const struct spw_unit_slot *s)
{
    for (uint32_t i = 0; i < s->n_jobs; i++)
        if (!spw_disk_is_over(&s->jobs[i]) || s->jobs[i].io.rc)
            return false;
    return true;
}

int spw_unit_ring_wait(struct spw_unit_ring *r, uint8_t **slot)
{
    uint64_t n = r->ring.waited;
    SPW_TRY(land(r, n));
    for (uint64_t i = n + 1; i < r->ring.issued && reads_are_over(nth(r, i)); i++)
        SPW_TRY(land(r, i)); /* the second hop of the next ones */
    return spw_ring_wait(&r->ring, slot);
}

int spw_unit_ring_release(struct spw_unit_ring *r)
{
    return spw_ring_release(&r->ring);
}

/* ---- what is ahead ---- */

uint32_t spw_unit_ring_unit(const struct spw_unit_ring *r, uint64_t n)
{
    return nth(r, n)->unit;
}

uint64_t spw_unit_ring_landed(const struct spw_unit_ring *r)
{
    uint64_t n = r->ring.waited;
    while (n < r->ring.issued && !nth(r, n)->bouncing)
        n++;
    return n;
}

void spw_unit_ring_finish(struct spw_unit_ring *r)
{
    for (uint64_t n = r->ring.waited; n < r->ring.issued; n++)
        finish_reads(r, nth(r, n)); /* what came of them is for spw_unit_ring_wait */
}

void spw_unit_ring_drop(struct spw_unit_ring *r)
{
    for (uint64_t n = r->ring.waited; n < r->ring.issued; n++) {
        struct spw_unit_slot *s = nth(r, n);
        finish_reads(r, s); /* a lost device shows soon enough */
        s->n_jobs = 0;
        s->bouncing = false;
    }
    spw_ring_drop(&r->ring);
}
