/* Joins adjacent transfers: copies that are adjacent on both sides become one copy, and adjacent
 * frames of the disk become one read or write. The caller queues the last one. Allocates
 * nothing. */
#ifndef SPW_OFFLOAD_KV_GATHER_H
#define SPW_OFFLOAD_KV_GATHER_H

#include "offload/kv/tier_disk.h"

struct spw_copies {
    const struct spw_lane *lane; /* given */
    uint8_t *to;                 /* destination of the copy that is not queued yet */
    const uint8_t *from;
    uint64_t bytes; /* 0: there is no such copy */
    enum spw_link link;
    spw_stream stream;
};

/* Extends the copy that is not queued yet, or queues it and begins another copy. */
int spw_copies_add(struct spw_copies *c, void *to, const void *from, uint64_t bytes,
                   enum spw_link link, spw_stream s);
int spw_copies_flush(struct spw_copies *c);

/* A read or write of frames [frame, frame + n) of the disk. */
struct spw_tile_run {
    struct spw_disk_job job;
    uint8_t *memory; /* [n][tile_bytes] */
    uint32_t frame, n;
    uint32_t tile; /* set by the caller: the tile of the first frame */
};

/* Extends a run that is not submitted by a frame; n = 0: the run begins with this frame. false: the
 * frame or its memory is not adjacent, or the run has `most` frames. */
bool spw_tile_run_extend(struct spw_tile_run *r, uint32_t frame, void *memory, uint64_t tile_bytes,
                         uint32_t most);
/* Prepares the job of the run; the caller submits it next. */
void spw_tile_run_prepare(struct spw_tile_run *r, struct spw_disk *disk, bool write);
/* The tile whose record has made the read fail. */
uint32_t spw_tile_run_failed_tile(const struct spw_tile_run *r);

#endif
