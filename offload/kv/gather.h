/* Adjacent pieces move as one: copies that are adjacent on both sides, and reads and
 * writes of adjacent frames of the disk. Whoever gathers queues the last one. Allocates nothing. */
#ifndef SPW_OFFLOAD_KV_GATHER_H
#define SPW_OFFLOAD_KV_GATHER_H

#include "offload/kv/tier_disk.h"

struct spw_copies {
    const struct spw_lane *lane; /* given */
    uint8_t *to;                 /* of the copy that is not queued yet */
    const uint8_t *from;
    uint64_t bytes; /* 0: there is none */
    enum spw_link link;
    spw_stream stream;
};

/* Adds to the copy that is not queued yet, or queues that one and begins another. */
int spw_copies_add(struct spw_copies *c, void *to, const void *from, uint64_t bytes,
                   enum spw_link link, spw_stream s);
int spw_copies_flush(struct spw_copies *c);

/* A read or write of frames [frame, frame + n) of the disk. */
struct spw_run {
    struct spw_disk_job job;
    uint8_t *memory; /* [n][tile_bytes] */
    uint32_t frame, n;
    uint32_t tile; /* the caller's: which tile the first frame has */
};

/* Makes a run that is not submitted longer by a frame; n = 0: it begins there. false: the frame or
 * its memory does not follow, or the run has `most` frames. */
bool spw_run_extend(struct spw_run *r, uint32_t frame, void *memory, uint64_t tile_bytes,
                    uint32_t most);
/* Fills in its job, which is to be submitted next. */
void spw_run_prepare(struct spw_run *r, struct spw_disk *disk, bool write);
/* The tile whose record made a read fail. */
uint32_t spw_run_failed_tile(const struct spw_run *r);

#endif
