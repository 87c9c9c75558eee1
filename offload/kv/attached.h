/* Pieces of files that somebody else wrote, as frames of the disk tier (offload/kv/tier_disk.h has
 * the contract): which frame numbers they have, where those lie, and when a piece is let go. For
 * tier_disk.c only.
 *
 * Numbers are given from `base` on, the lowest that are free, with one that is nobody's between two
 * pieces: frames whose numbers are adjacent are adjacent in one file. */
#ifndef SPW_OFFLOAD_KV_ATTACHED_H
#define SPW_OFFLOAD_KV_ATTACHED_H

#include "offload/kv/tier_disk.h"

struct spw_adopted {
    struct spw_disk_adoption given; /* given.sums are its own */
    struct spw_io_file file;
    uint32_t first, n_left; /* frames [first, first + given.n); not put yet */
    uint64_t sums[];        /* [given.n] */
};

struct spw_adopted_set {
    struct spw_adopted **items; /* [n] in the order of their numbers; owned. They never move: jobs
                                   that are under way point into them */
    uint32_t n, room, base;
};

/* -ENOMEM, or what the descriptor is refused with. */
int spw_adopted_add(struct spw_adopted_set *s, const struct spw_disk_adoption *a,
                    uint64_t tile_bytes, uint32_t *first);
/* The piece that has this frame. */
struct spw_adopted *spw_adopted_find(const struct spw_adopted_set *s, uint32_t frame);
void spw_adopted_put(struct spw_adopted_set *s, uint32_t frame);
void spw_adopted_free(struct spw_adopted_set *s); /* lets everything go that is left */

#endif
