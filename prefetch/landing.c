/* KV slots and what lands in them: see landing.h.
 *
 *   direct:  disk ==read==> slot                       read:  submitted behind the slot's kernels
 *   bounce:  disk ==read==> bounce --link--> slot      read:  submitted behind the bounce's copies
 *            host --link--> slot                       link:  behind the slot's kernels
 *
 * The second hop of a bounce is queued once the host knows that the first one is over: when the
 * transfer is waited for, or when one before it is and its own reads happen to be over. Bounce
 * slots are taken and passed on in the order of the transfers that need one. */
#include "prefetch/landing.h"

#include <assert.h>

/* Adjacent frames of the disk. */
struct spw_landing_read {
    struct spw_disk_job job;
    uint32_t tile, n;
};

struct spw_landing_slot {
    struct spw_transfer t;
    uint8_t *memory, *lands; /* the slot; where reads go: the same, or the bounce slot */
    uint32_t first_host;     /* the lowest of its tiles that came from the host */
    struct spw_landing_read *reads;
    uint32_t n_reads; /* under way */
    spw_event behind; /* the submission of the reads */
    uint32_t bounce;  /* its number, if one is used */
    bool bouncing;    /* not passed on yet */
    int rc;           /* a tile is lost */
};

static struct spw_landing_slot *nth(const struct spw_landing *l, uint64_t n)
{
    return &l->slots[n % l->o.n_slots];
}

static int open_slots(struct spw_landing *l)
{
    const struct spw_landing_options *o = &l->o;
    for (uint32_t i = 0; i < o->n_slots; i++) {
        struct spw_landing_slot *s = &l->slots[i];
        s->memory = (uint8_t *)o->arena + i * o->slot_tiles * o->tile_bytes;
        if (!o->disk)
            continue;
        s->reads = l->reads + (size_t)i * o->slot_tiles;
        SPW_TRY(o->ops->event_open(o->device, &s->behind));
    }
    for (uint32_t i = 0; i < o->n_bounce; i++)
        SPW_TRY(o->ops->event_open(o->device, &l->bounce_free[i]));
    return 0;
}

int spw_landing_init(struct spw_landing *l, const struct spw_landing_options *o)
{
    *l = (struct spw_landing){.o = *o,
                              .ring = {.ops = o->ops,
                                       .device = o->device,
                                       .link = o->link,
                                       .compute = o->compute,
                                       .arena = o->arena,
                                       .slot_bytes = o->tile_bytes * o->slot_tiles,
                                       .n_slots = o->n_slots}};
    size_t most_reads = o->disk ? (size_t)o->n_slots * o->slot_tiles : 0;
    l->slots = spw_alloc_zero(o->n_slots, sizeof *l->slots);
    l->reads = spw_alloc_zero(most_reads, sizeof *l->reads);
    l->bounce_free = spw_alloc_zero(o->n_bounce, sizeof(spw_event));
    int rc = l->slots && l->reads && l->bounce_free ? 0 : -ENOMEM;
    if (!rc)
        rc = spw_ring_init(&l->ring);
    if (!rc)
        rc = open_slots(l);
    if (rc)
        spw_landing_free(l);
    return rc;
}

static int finish_reads(struct spw_landing *l, struct spw_landing_slot *s);

void spw_landing_free(struct spw_landing *l)
{
    const struct spw_landing_options *o = &l->o;
    for (uint32_t i = 0; l->slots && i < o->n_slots; i++) {
        finish_reads(l, &l->slots[i]);
        if (l->slots[i].behind)
            o->ops->event_close(o->device, l->slots[i].behind);
    }
    for (uint32_t i = 0; l->bounce_free && i < o->n_bounce; i++)
        if (l->bounce_free[i])
            o->ops->event_close(o->device, l->bounce_free[i]);
    spw_ring_free(&l->ring);
    spw_free(l->slots);
    spw_free(l->reads);
    spw_free(l->bounce_free);
    l->slots = NULL;
    l->reads = NULL;
    l->bounce_free = NULL;
}

/* ---- issuing ---- */

static bool on_host(const struct spw_transfer *t, uint32_t tile)
{
    return spw_kv_host_tile(t->seq, t->layer, tile) != NULL;
}

bool spw_landing_can_issue(const struct spw_landing *l, const struct spw_transfer *t)
{
    bool bounce = false;
    if (spw_ring_full(&l->ring) ||
        !spw_kv_is_readable(t->seq, t->layer, t->tile_begin, t->tile_end))
        return false;
    for (uint32_t i = t->tile_begin; i < t->tile_end; i++) {
        if (i < t->disk_end && on_host(t, i))
            return false;
        bounce |= !on_host(t, i);
    }
    return !bounce || !l->o.n_bounce || l->bounced - l->passed_on < l->o.n_bounce;
}

/* Where tile i of a slot is. */
static uint8_t *place(const struct spw_landing *l, const struct spw_landing_slot *s, uint8_t *base,
                      uint32_t tile)
{
    return base + (tile - s->t.tile_begin) * l->o.tile_bytes;
}

/* Tiles from `from` on that are adjacent in host memory move as one copy. */
static uint32_t copy_run(struct spw_landing *l, struct spw_landing_slot *s, uint32_t from, int *rc)
{
    const struct spw_transfer *t = &s->t;
    const uint8_t *first = spw_kv_host_tile(t->seq, t->layer, from);
    uint32_t end = from;
    do {
        end++;
    } while (end < t->tile_end &&
             spw_kv_host_tile(t->seq, t->layer, end) == first + (end - from) * l->o.tile_bytes);
    s->first_host = from < s->first_host ? from : s->first_host;
    *rc = l->o.ops->copy(l->o.device, place(l, s, s->memory, from), first,
                         (end - from) * l->o.tile_bytes, SPW_LINK_HOST_TO_DEVICE, l->o.link);
    return end;
}

/* Tiles from `from` on that are adjacent on the disk are one read. */
static uint32_t read_run(struct spw_landing *l, struct spw_landing_slot *s, uint32_t from, int *rc)
{
    const struct spw_transfer *t = &s->t;
    uint32_t first = spw_kv_disk_frame(t->seq, t->layer, from), end = from;
    do {
        end++;
    } while (end < t->tile_end && spw_kv_disk_frame(t->seq, t->layer, end) == first + (end - from));
    struct spw_landing_read *r = &s->reads[s->n_reads++];
    r->tile = from;
    r->n = end - from;
    spw_disk_prepare(l->o.disk, &r->job, false, first, r->n, place(l, s, s->lands, from));
    *rc = spw_disk_submit(l->o.ops, l->o.device, &r->job, l->o.disk_stream);
    return end;
}

/* The disk's stream may write where the reads of slot n land. */
static int enter_landing(struct spw_landing *l, struct spw_landing_slot *s, uint64_t n)
{
    s->lands = s->memory;
    if (!l->o.n_bounce)
        return spw_ring_enter(&l->ring, n, l->o.disk_stream);
    assert(l->bounced - l->passed_on < l->o.n_bounce);
    s->bouncing = true;
    s->bounce = (uint32_t)(l->bounced++ % l->o.n_bounce);
    s->lands = (uint8_t *)l->o.bounce_arena + s->bounce * l->o.slot_tiles * l->o.tile_bytes;
    return l->o.ops->stream_wait(l->o.device, l->o.disk_stream, l->bounce_free[s->bounce]);
}

static void note_loss(struct spw_landing_slot *s, uint32_t tile, int rc)
{
    spw_kv_note_loss(s->t.seq, s->t.layer, tile, rc);
    s->rc = -EBADMSG;
}

static int issue_tiles(struct spw_landing *l, struct spw_landing_slot *s, uint64_t n)
{
    const struct spw_transfer *t = &s->t;
    SPW_TRY(spw_ring_enter(&l->ring, n, l->o.link));
    for (uint32_t i = t->tile_begin, end; i < t->tile_end; i = end) {
        int rc = 0;
        end = i + 1;
        if (on_host(t, i)) {
            end = copy_run(l, s, i, &rc);
        } else if (spw_kv_disk_frame(t->seq, t->layer, i) == SPW_DISK_NONE) {
            assert(spw_kv_lost(t->seq, t->layer, i));
            note_loss(s, i, spw_kv_lost(t->seq, t->layer, i));
        } else {
            if (!s->n_reads)
                SPW_TRY(enter_landing(l, s, n));
            end = read_run(l, s, i, &rc);
        }
        SPW_TRY(rc);
    }
    if (s->n_reads)
        SPW_TRY(l->o.ops->event_record(l->o.device, s->behind, l->o.disk_stream));
    return s->bouncing ? 0 : spw_ring_land(&l->ring, n);
}

int spw_landing_issue(struct spw_landing *l, const struct spw_transfer *t)
{
    for (uint32_t i = t->tile_begin; i < t->tile_end; i++)
        SPW_TRY(spw_kv_wait_written(t->seq, t->layer, i));
    uint64_t n = l->ring.issued;
    struct spw_landing_slot *s = nth(l, n);
    SPW_TRY(finish_reads(l, s)); /* none, unless the device was lost while they were issued */
    spw_ring_take(&l->ring);
    s->t = *t;
    s->first_host = UINT32_MAX;
    s->rc = 0;
    int rc = issue_tiles(l, s, n);
    if (rc &&
        l->o.disk) /* the device is lost: the stream has passed the submissions, or never will */
        l->o.ops->stream_sync(l->o.device, l->o.disk_stream);
    return rc;
}

/* ---- landing ---- */

/* Sleeps until the slot's reads are over. Fails with the device only. */
static int finish_reads(struct spw_landing *l, struct spw_landing_slot *s)
{
    int rc = 0;
    for (uint32_t i = 0; i < s->n_reads; i++) {
        struct spw_landing_read *r = &s->reads[i];
        int lost = spw_disk_wait(l->o.ops, l->o.device, &r->job, s->behind);
        rc = rc ? rc : lost;
    }
    return rc;
}

static bool reads_are_over(const struct spw_landing_slot *s)
{
    for (uint32_t i = 0; i < s->n_reads; i++)
        if (!spw_disk_is_over(&s->reads[i].job))
            return false;
    return true;
}

static int pass_on(struct spw_landing *l, struct spw_landing_slot *s, uint64_t n)
{
    const struct spw_device_ops *ops = l->o.ops;
    for (uint32_t i = 0; i < s->n_reads && !s->rc; i++) {
        const struct spw_landing_read *r = &s->reads[i];
        SPW_TRY(ops->copy(l->o.device, place(l, s, s->memory, r->tile),
                          place(l, s, s->lands, r->tile), r->n * l->o.tile_bytes,
                          SPW_LINK_HOST_TO_DEVICE, l->o.link));
    }
    SPW_TRY(ops->event_record(l->o.device, l->bounce_free[s->bounce], l->o.link));
    s->bouncing = false;
    l->passed_on++;
    return spw_ring_land(&l->ring, n);
}

/* Slot n gets all that it is to hold. */
static int land(struct spw_landing *l, uint64_t n)
{
    struct spw_landing_slot *s = nth(l, n);
    SPW_TRY(finish_reads(l, s));
    for (uint32_t i = 0; i < s->n_reads; i++) {
        const struct spw_landing_read *r = &s->reads[i];
        if (r->job.io.rc)
            note_loss(s, r->tile + (r->job.io.bad_record < r->n ? r->job.io.bad_record : 0),
                      r->job.io.rc);
    }
    if (s->bouncing)
        SPW_TRY(pass_on(l, s, n));
    s->n_reads = 0;
    return 0;
}

int spw_landing_wait(struct spw_landing *l, uint8_t **slot)
{
    uint64_t n = l->ring.waited;
    SPW_TRY(land(l, n));
    for (uint64_t i = n; !nth(l, i)->rc && ++i < l->ring.issued && reads_are_over(nth(l, i));)
        SPW_TRY(land(l, i)); /* the second hop of the next ones */
    SPW_TRY(nth(l, n)->rc);
    return spw_ring_wait(&l->ring, slot);
}

int spw_landing_release(struct spw_landing *l)
{
    return spw_ring_release(&l->ring);
}

/* ---- what is ahead ---- */

bool spw_landing_holds(const struct spw_landing *l, uint64_t n, const struct spw_transfer *t)
{
    const struct spw_landing_slot *s = nth(l, n);
    return s->t.seq == t->seq && s->t.layer == t->layer && s->t.tile_begin == t->tile_begin &&
           s->t.tile_end == t->tile_end && s->first_host >= t->disk_end;
}

uint64_t spw_landing_landed(const struct spw_landing *l)
{
    uint64_t n = l->ring.waited;
    while (n < l->ring.issued && !nth(l, n)->bouncing && !nth(l, n)->rc)
        n++;
    return n;
}

void spw_landing_finish(struct spw_landing *l)
{
    for (uint64_t n = l->ring.waited; n < l->ring.issued; n++)
        finish_reads(l, nth(l, n)); /* what came of them is for spw_landing_wait */
}

void spw_landing_drop(struct spw_landing *l)
{
    for (uint64_t n = l->ring.waited; n < l->ring.issued; n++) {
        struct spw_landing_slot *s = nth(l, n);
        finish_reads(l, s); /* a lost device shows soon enough */
        s->n_reads = 0;
        s->bouncing = false;
    }
    l->bounced = l->passed_on;
    spw_ring_drop(&l->ring);
}
