/* Where the tiles of a KV slot come from: copies on the host and frames of the disk. A tile that
 * cannot be read makes the wait for its slot -EBADMSG, and is noted as a loss with its sequence. */
#ifndef SPW_PREFETCH_KV_SOURCE_H
#define SPW_PREFETCH_KV_SOURCE_H

#include "prefetch/ring.h"
#include "prefetch/schedule.h"

struct spw_kv_source {
    struct spw_ring ring;
    struct spw_kv_slot *slots; /* [ring.o.n_slots], owned: what each was issued for */
};

int spw_kv_source_init(struct spw_kv_source *k, const struct spw_lane *lane,
                       const struct spw_ring_options *o);
void spw_kv_source_free(struct spw_kv_source *k);

/* Whether there is a slot, and the tiles can be read without waiting, from where they are to come.
 */
bool spw_kv_source_can_issue(const struct spw_kv_source *k, const struct spw_transfer *t);
/* There must be a slot; waits on the host for tiles that are still being written to the disk. */
int spw_kv_source_issue(struct spw_kv_source *k, const struct spw_transfer *t);
/* The oldest that was issued: compute waits for it. */
int spw_kv_source_wait(struct spw_kv_source *k, uint8_t **slot);
/* Whether the n-th slot, of [ring.waited, ring.issued), is for `t` and is filled from where `t` is
 * to come from. */
bool spw_kv_source_holds(const struct spw_kv_source *k, uint64_t n, const struct spw_transfer *t);

#endif
