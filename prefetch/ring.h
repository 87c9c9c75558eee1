/* Landing buffers that are filled, read and given back in one order, on two streams.
 *
 * issue -> (copies on `link`) -> commit | wait -> (kernels on `compute`) -> release. A slot is
 * filled again only after the kernels that read it; nothing blocks the host. Borrows arena and
 * streams. */
#ifndef SPW_PREFETCH_RING_H
#define SPW_PREFETCH_RING_H

#include "offload/device.h"

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

bool spw_ring_full(const struct spw_ring *r); /* nothing can be issued before a release */
int spw_ring_issue(struct spw_ring *r, uint8_t **slot);
int spw_ring_commit(struct spw_ring *r);
int spw_ring_wait(struct spw_ring *r, uint8_t **slot);
int spw_ring_release(struct spw_ring *r);
/* Gives up what was issued and not waited for. */
void spw_ring_drop(struct spw_ring *r);

#endif
