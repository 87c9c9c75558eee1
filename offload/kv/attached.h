/* Pieces of files of other writers, as frames of the disk tier (offload/kv/tier_disk.h has the
 * contract): their frame numbers, their places, and when a piece is released. For tier_disk.c only.
 *
 * Numbers start at `base`, and the lowest free numbers are given first. One number between two
 * pieces stays unused, so frames with adjacent numbers are adjacent in one file. */
#ifndef SPW_OFFLOAD_KV_ATTACHED_H
#define SPW_OFFLOAD_KV_ATTACHED_H

#include "offload/kv/tier_disk.h"

struct spw_attached {
    struct spw_disk_attachment given; /* given.sums is an owned copy */
    struct spw_io_file file;
    uint32_t first, n_left; /* frames [first, first + given.n); n_left of them are in use */
    uint64_t sums[];        /* [given.n] */
};

struct spw_attached_set {
    struct spw_attached **items; /* [n] in the order of their numbers; owned. They never move,
                                    because jobs in flight point into them */
    uint32_t n, base;
    size_t room;
};

/* Adds a piece. -ENOMEM, or the error for the descriptor. */
int spw_attached_add(struct spw_attached_set *s, const struct spw_disk_attachment *a,
                     uint64_t tile_bytes, uint32_t *first);
/* The piece that contains this frame. */
struct spw_attached *spw_attached_find(const struct spw_attached_set *s, uint32_t frame);
void spw_attached_put(struct spw_attached_set *s, uint32_t frame);
void spw_attached_free(struct spw_attached_set *s); /* releases all pieces */

#endif
