/* Takes what is exact out of a cache whose tiles are about to become smaller, in place: the newest
 * tiles of full layers, their sinks, and all of sliding layers go to a second cache, whose frames
 * lie among those of the first.
 *
 *     begin     what is on the device is brought to its new frames, by swapping frames
 *     (repack)  the first cache's device frames become smaller
 *     lower     sinks that are on the host or on the disk come to theirs
 *     (repack)  so do its frames of lower tiers
 *     end       tile 0 belongs to the second cache
 *
 * The first cache's tables are cut to what is left in it. After a failure of any of these both
 * caches can only be closed. Waits for all that is under way. One host thread. */
#ifndef SPW_OFFLOAD_KV_KV_SPLIT_H
#define SPW_OFFLOAD_KV_KV_SPLIT_H

#include "offload/kv/kv_cache.h"

struct spw_kv_split_sequence {
    struct spw_kv_seq *from, *exact; /* exact: empty, of a cache that keeps sinks */
    uint64_t n_tokens;
    /* Of full layers: tiles [1, end) stay, tiles [first_exact, ...) and the sink are exact. */
    uint32_t end, first_exact;
};

struct spw_kv_split {
    struct spw_kv *kv;
    const struct spw_kv_split_sequence *sequences;
    uint32_t n;
    void *device_scratch, *host_scratch; /* one exact tile each; 4096-byte aligned */
};

/* The exact frames lie at multiples of a tile behind the first frame of `kv`, no matter whether
 * there are frames of it. -ENOMEM: an exact tile that is no sink, is not on the device; or a
 * frame that is needed cannot be given up, or memory. */
int spw_kv_split_begin(const struct spw_kv_split *s);
int spw_kv_split_lower(const struct spw_kv_split *s); /* -EBADMSG: one is lost */
void spw_kv_split_end(const struct spw_kv_split *s);

#endif
