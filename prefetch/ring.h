/* Landing buffers that are filled, read and given back in one order.
 *
 * take -> enter -> (copies on `link`, or others) -> land | wait -> (kernels on `compute`) ->
 * release. A slot is filled again only after the kernels that read it; nothing blocks the host.
 * Slots are taken, waited for and released in one order, but may land in any. Borrows arena and
 * streams. */
#ifndef SPW_PREFETCH_RING_H
#define SPW_PREFETCH_RING_H

#include "offload/device/device.h"

struct spw_ring {
    const struct spw_device_ops *ops;
    struct spw_device *device;
    spw_stream link, compute;
    uint8_t *arena; /* [n_slots][slot_bytes] */
    uint64_t slot_bytes;
    uint32_t n_slots;
    uint64_t issued, waited, released; /* slots so far; slot of the n-th is n % n_slots */
    spw_event *ready, *free;           /* [n_slots], owned */
};

/* The first seven fields are given. */
int spw_ring_init(struct spw_ring *r);
void spw_ring_free(struct spw_ring *r);

bool spw_ring_full(const struct spw_ring *r); /* nothing can be taken before a release */
/* The next slot; its number is what r->issued was. */
uint8_t *spw_ring_take(struct spw_ring *r);
/* What is queued on `s` from now on may write slot `n`. */
int spw_ring_enter(struct spw_ring *r, uint64_t n, spw_stream s);
/* Slot `n` is filled once `link` gets here. */
int spw_ring_land(struct spw_ring *r, uint64_t n);
/* Compute waits for the next slot, which must have landed. */
int spw_ring_wait(struct spw_ring *r, uint8_t **slot);
int spw_ring_release(struct spw_ring *r);
/* Gives up what was taken and not waited for. */
void spw_ring_drop(struct spw_ring *r);

#endif
