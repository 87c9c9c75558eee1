/* Frames on the device for experts, and the reads that fill them.
 *
 *   visit   a layer needs these experts: says which lie in frames, and which will come
 *   fill    queues the transfers of missed experts, as many as the ring takes
 *   next    the next expert to compute: first those that lie in frames, then the missed ones in the
 *           order of their transfers. So reads go on while experts compute
 *   done    its kernels are queued: its frame may be filled again when they are over
 *
 * Which expert leaves is decided in expert_residency.h. Borrows lane, blocks and arenas. One host
 * thread. */
#ifndef SPW_PREFETCH_EXPERT_POOL_H
#define SPW_PREFETCH_EXPERT_POOL_H

#include "prefetch/block_source.h"
#include "prefetch/expert_residency.h"

struct spw_expert_pool_options {
    void *arena; /* [n_frames][frame_bytes] */
    uint64_t frame_bytes;
    uint32_t n_frames; /* 0: no pool */
    uint32_t n_slots;  /* transfers under way */
    struct spw_expert_shape shape;
    const double *counts;           /* at the start: expert_residency.h; used by open only */
    void *tables;                   /* for the residency, as in expert_residency.h */
    const struct spw_block *blocks; /* [n_experts] */
    uint32_t n_experts;
    struct spw_io *io;  /* reads experts from files; NULL: none comes from a file */
    void *bounce_arena; /* [n_slots][frame_bytes] of host memory; NULL: no expert bounces */
};

struct spw_expert_pool {
    struct spw_expert_pool_options o;
    const struct spw_lane *lane;
    struct spw_block_source source;
    struct spw_expert_residency residency;
    struct spw_expert_visit *visit; /* owned, [experts of a layer]: in the order of computation */
    uint32_t *
        turn; /* owned, [experts of a layer]: how many experts of the visit have the frame before */
    uint32_t *turns_done; /* owned, [n_frames]: how many of these have been computed */
    spw_event *used;      /* owned, [n_frames]: kernels that read the frame are over */
    uint32_t n, n_issued, n_done;
};

int spw_expert_pool_open(struct spw_expert_pool *p, const struct spw_lane *lane,
                         const struct spw_expert_pool_options *o);
void spw_expert_pool_close(struct spw_expert_pool *p); /* waits for reads */

/* v [n]: experts and rows; it gets their frames. The visit before has ended. */
void spw_expert_pool_visit(struct spw_expert_pool *p, struct spw_expert_visit *v, uint32_t n);
int spw_expert_pool_fill(struct spw_expert_pool *p);
/* False: all experts of the visit have been computed. */
bool spw_expert_pool_has_next(const struct spw_expert_pool *p);
/* Gives the next expert and its address. The compute stream waits for its copies. -EIO: a read has
 * failed, see source.failed. */
int spw_expert_pool_next(struct spw_expert_pool *p, uint32_t *expert, const uint8_t **at);
int spw_expert_pool_done(struct spw_expert_pool *p);
/* Whether the next expert is still on its way. */
bool spw_expert_pool_waits(const struct spw_expert_pool *p);
/* Ends a visit that has failed: all frames are empty then. Without one: nothing changes. */
void spw_expert_pool_forget(struct spw_expert_pool *p);
/* Waits until no read is in flight. */
void spw_expert_pool_finish(struct spw_expert_pool *p);

#endif
