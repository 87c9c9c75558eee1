/* The transfer ring: see ring.h. */
#include "prefetch/ring.h"

#include <assert.h>

int spw_ring_init(struct spw_ring *r)
{
    r->issued = r->waited = r->released = 0;
    r->ready = spw_alloc_zero(r->n_slots, sizeof(spw_event));
    r->free = spw_alloc_zero(r->n_slots, sizeof(spw_event));
    int rc = r->ready && r->free ? 0 : -ENOMEM;
    for (uint32_t i = 0; i < r->n_slots && !rc; i++) {
        rc = r->ops->event_open(r->device, &r->ready[i]);
        if (!rc)
            rc = r->ops->event_open(r->device, &r->free[i]);
    }
    if (rc)
        spw_ring_free(r);
    return rc;
}

void spw_ring_free(struct spw_ring *r)
{
    for (uint32_t i = 0; i < r->n_slots; i++) {
        if (r->ready && r->ready[i])
            r->ops->event_close(r->device, r->ready[i]);
        if (r->free && r->free[i])
            r->ops->event_close(r->device, r->free[i]);
    }
    spw_free(r->ready);
    spw_free(r->free);
    r->ready = r->free = NULL;
    r->n_slots = 0;
}

bool spw_ring_full(const struct spw_ring *r)
{
    return r->issued - r->released >= r->n_slots;
}

uint8_t *spw_ring_take(struct spw_ring *r)
{
    assert(!spw_ring_full(r));
    return r->arena + r->issued++ % r->n_slots * r->slot_bytes;
}

int spw_ring_enter(struct spw_ring *r, uint64_t n, spw_stream s)
{
    /* the kernels that read what lay here before; for others than `link`, also copies to here that
     * were dropped and may still be under way */
    if (s != r->link)
        SPW_TRY(r->ops->stream_wait(r->device, s, r->ready[n % r->n_slots]));
    return r->ops->stream_wait(r->device, s, r->free[n % r->n_slots]);
}

int spw_ring_land(struct spw_ring *r, uint64_t n)
{
    return r->ops->event_record(r->device, r->ready[n % r->n_slots], r->link);
}

int spw_ring_wait(struct spw_ring *r, uint8_t **slot)
{
    assert(r->waited < r->issued);
    uint32_t i = (uint32_t)(r->waited++ % r->n_slots);
    *slot = r->arena + i * r->slot_bytes;
    return r->ops->stream_wait(r->device, r->compute, r->ready[i]);
}

int spw_ring_release(struct spw_ring *r)
{
    assert(r->released < r->waited);
    return r->ops->event_record(r->device, r->free[r->released++ % r->n_slots], r->compute);
}

void spw_ring_drop(struct spw_ring *r)
{
    /* A dropped copy may still be under way; what lands in its slot next is on the same stream, or
     * waits for it. */
    assert(r->released == r->waited);
    r->issued = r->waited;
}
