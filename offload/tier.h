/* A memory tier as the KV cache sees it: equal frames, one tile each, in one arena.
 *
 * Borrows the arena. -ENOMEM means "this tier is full": control flow, never a death. O(1), one
 * thread, no allocation after init. */
#ifndef SPW_OFFLOAD_TIER_H
#define SPW_OFFLOAD_TIER_H

#include "runtime/base.h"

struct spw_tier {
    uint8_t *arena; /* [n_frames][frame_bytes], borrowed */
    uint64_t frame_bytes;
    uint32_t n_frames, n_free;
    uint32_t *free_frames; /* stack of frame numbers, owned */
};

int spw_tier_init(struct spw_tier *t, void *arena, uint64_t frame_bytes, uint32_t n_frames);
void spw_tier_free(struct spw_tier *t);
int spw_tier_take(struct spw_tier *t, void **out);
void spw_tier_put(struct spw_tier *t, void *frame); /* NULL is fine */

#endif
