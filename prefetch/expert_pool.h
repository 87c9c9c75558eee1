/* Frames on the device for experts, and the reads that fill them.
 *
 *   visit   a layer needs these experts: says which lie in frames, and which will come
 *   fill    queues the transfers of missed experts, as many as the ring takes
 *   next    the next expert to compute: first those that lie in frames, then the missed ones in the
 *           order of their transfers. So reads go on while experts compute
 *   done    its kernels are queued: its frame may be filled again when they are over
 *
 * Where the host multiplies what a visit has missed (runtime/step/host_products.h), only resident
 * experts are next. The others lie in host memory, packed, or are read into the bounce slots:
 *
 *   host       the weights of a missed expert, packed ones first. The host waits for their read
 *   host_done  it was multiplied, or its weights are packed: it goes up if the residency gives it a
 *              frame. Nothing waits for that copy until a later visit uses the frame
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
    bool on_host;       /* there are visits whose missed experts the host multiplies */
};

/* A missed expert in host memory. */
struct spw_host_expert {
    uint32_t expert;
    const uint8_t *at;
    const uint64_t *lands; /* the place of each matrix at `at`; NULL: packed, as in a frame */
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
    spw_event *came;      /* owned, [n_frames], with o.on_host: the copy of host_done is over; */
    bool *comes;          /* owned, [n_frames]: no kernel has waited for that yet */
    uint32_t n, n_issued, n_done; /* experts that are next */
    /* Behind them in `visit`: those of the host, of which n_packed are packed. */
    uint32_t n_host, n_packed, n_read, n_read_done, n_host_done;
};

int spw_expert_pool_open(struct spw_expert_pool *p, const struct spw_lane *lane,
                         const struct spw_expert_pool_options *o);
void spw_expert_pool_close(struct spw_expert_pool *p); /* waits for reads */

/* v [n]: experts and rows; it gets their frames. The visit before has ended. on_host: the host
 * multiplies those that are missed. */
void spw_expert_pool_visit(struct spw_expert_pool *p, struct spw_expert_visit *v, uint32_t n,
                           bool on_host);
int spw_expert_pool_fill(struct spw_expert_pool *p);
/* Number i of the n_host experts of the host; in order. -EIO: as in next. */
int spw_expert_pool_host(struct spw_expert_pool *p, uint32_t i, struct spw_host_expert *out);
/* Each one once. One that was read: its products are over. */
int spw_expert_pool_host_done(struct spw_expert_pool *p, uint32_t i);
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
