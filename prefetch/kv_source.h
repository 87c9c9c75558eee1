/* The sources of a KV slot: copies on the host, and frames of the disk. If a tile cannot be read,
 * the wait for its slot returns -EBADMSG, and the sequence of the tile notes the loss. */
#ifndef SPW_PREFETCH_KV_SOURCE_H
#define SPW_PREFETCH_KV_SOURCE_H

#include "prefetch/ring.h"
#include "prefetch/schedule.h"

struct spw_kv_source {
    struct spw_ring ring;
    struct spw_kv_slot *slots; /* [ring.o.n_slots], owned: the transfer that each was issued for */
};

int spw_kv_source_init(struct spw_kv_source *k, const struct spw_lane *lane,
                       const struct spw_ring_options *o);
void spw_kv_source_free(struct spw_kv_source *k);

/* Whether a slot is free, and all tiles of the transfer are in the tiers where the schedule expects
 * them, so the host need not wait. */
bool spw_kv_source_can_issue(const struct spw_kv_source *k, const struct spw_transfer *t);
/* Issues a slot for the transfer; a slot must be free. The host waits for tiles that are still
 * being written to the disk. */
int spw_kv_source_issue(struct spw_kv_source *k, const struct spw_transfer *t);
/* Waits for the oldest issued slot: see spw_ring_wait. */
int spw_kv_source_wait(struct spw_kv_source *k, uint8_t **slot);
/* Whether slot number n, in [ring.waited, ring.taken), was issued for `t`, and from the tiers where
 * `t` expects its tiles. */
bool spw_kv_source_holds(const struct spw_kv_source *k, uint64_t n, const struct spw_transfer *t);

#endif
