/* Adjacent pieces move as one: copies that are adjacent on both sides, and reads of adjacent frames
 * of the disk into adjacent memory. Whoever gathers queues the last one. Allocates nothing. */
#ifndef SPW_OFFLOAD_KV_GATHER_H
#define SPW_OFFLOAD_KV_GATHER_H

#include "offload/kv/tier_disk.h"

struct spw_copies {
    const struct spw_device_ops *ops; /* given, as the next one */
    struct spw_device *device;
    uint8_t *to; /* of the copy that is not queued yet */
    const uint8_t *from;
    uint64_t bytes; /* 0: there is none */
    enum spw_link link;
    spw_stream stream;
};

/* Adds to the copy that is not queued yet, or queues that one and begins another. */
int spw_copies_add(struct spw_copies *c, void *to, const void *from, uint64_t bytes,
                   enum spw_link link, spw_stream s);
int spw_copies_flush(struct spw_copies *c);

/* A read of frames [frame, frame + n), which belong to tiles [tile, tile + n). */
struct spw_read {
    struct spw_disk_job job;
    uint8_t *memory; /* [n][tile_bytes] */
    uint32_t frame, tile, n;
};

/* Makes the read, which has at least one tile and is not submitted, longer by `tile`. false: the
 * tile, its frame or its memory does not follow, or the read has `most` tiles. */
bool spw_read_extend(struct spw_read *r, uint32_t tile, uint32_t frame, const void *memory,
                     uint64_t tile_bytes, uint32_t most);
/* The tile whose record made the read fail. */
uint32_t spw_read_failed_tile(const struct spw_read *r);

#endif
