/* Pieces of files that somebody else wrote, as frames of the disk tier (offload/kv/tier_disk.h has
 * the contract): which frame numbers they have, where those lie, and when a piece is let go. For
 * tier_disk.c only.
 *
 * Numbers are given from `base` on, the lowest that are free, with one that is nobody's between two
 * pieces: frames whose numbers are adjacent are adjacent in one file. */
#ifndef SPW_OFFLOAD_KV_ATTACHED_H
#define SPW_OFFLOAD_KV_ATTACHED_H

#include "offload/kv/tier_disk.h"

struct spw_attached {
    struct spw_disk_attachment given; /* given.sums are its own */
    struct spw_io_file file;
    uint32_t first, n_left; /* frames [first, first + given.n); not put yet */
    uint64_t sums[];        /* [given.n] */
};

struct spw_attached_set {
    struct spw_attached **items; /* [n] in the order of their numbers; owned. They never move: jobs
                                   that are under way point into them */
    uint32_t n, room, base;
};

/* -ENOMEM, or what the descriptor is refused with. */
int spw_attached_add(struct spw_attached_set *s, const struct spw_disk_attachment *a,
                     uint64_t tile_bytes, uint32_t *first);
/* The piece that has this frame. */
struct spw_attached *spw_attached_find(const struct spw_attached_set *s, uint32_t frame);
void spw_attached_put(struct spw_attached_set *s, uint32_t frame);
void spw_attached_free(struct spw_attached_set *s); /* lets everything go that is left */

#endif
