/* Keeps the rings filled ahead of the computation, across layers and across steps.
 *
 * Two rings, KV and weights, each on its own stream: a weight block is held for a whole layer while
 * KV slots turn over inside it. The executor consumes in the schedule's order; transfers are
 * issued as soon as a ring has room. At the end of a step the caller may hand over the schedule
 * that it expects next. Transfers of this schedule are used if the next step begins with it, and
 * dropped if not. The host waits only for reads of the disk, also for those that are dropped. One
 * host thread. */
#ifndef SPW_PREFETCH_PREFETCH_H
#define SPW_PREFETCH_PREFETCH_H

#include "prefetch/kv_source.h"
#include "prefetch/schedule.h"
#include "prefetch/stall.h"
#include "prefetch/block_source.h"

struct spw_prefetch_options {
    void *kv_arena, *weights_arena;
    uint64_t tile_bytes, block_bytes; /* of the largest block that is streamed */
    uint32_t n_kv_slots, n_weight_slots;
    uint32_t slot_tiles;            /* of a KV slot */
    const struct spw_block *blocks; /* in the order of the schedule */
    uint32_t n_blocks;
    struct spw_disk *disk;     /* NULL: none, and the rest is not looked at */
    void *bounce_arena;        /* [n_bounce][slot_tiles][tile_bytes] of host memory */
    uint32_t n_bounce;         /* 0: the disk reads into KV slots */
    struct spw_io *weights_io; /* of blocks that are read from files; NULL: there are none */
    /* [n_weight_slots][weights_bounce_bytes] of host memory, if a block bounces */
    void *weights_bounce_arena;
    uint64_t weights_bounce_bytes;
};

struct spw_prefetch;

/* Queues the preparations of all blocks and the copies of the resident ones. */
int spw_prefetch_open(struct spw_prefetch **out, const struct spw_lane *lane,
                      const struct spw_prefetch_options *o);
void spw_prefetch_close(struct spw_prefetch *p);
/* Another KV ring, for tiles of another size; all else must be as it was. Nothing that is queued
 * may use a slot. After a failure only close can follow. */
int spw_prefetch_replan(struct spw_prefetch *p, const struct spw_prefetch_options *o);

/* A step begins; `s` stays borrowed until the next begin. */
int spw_prefetch_begin(struct spw_prefetch *p, const struct spw_schedule *s);
/* The step is consumed; the rings are filled for `next`, the step that is expected. */
int spw_prefetch_ahead(struct spw_prefetch *p, const struct spw_schedule *next);
/* Drops the transfers that are ahead and waits until no copy and no read is under way: the caller
 * is about to give tiles back. */
int spw_prefetch_forget(struct spw_prefetch *p);
/* Waits until no read of the disk is under way: counters are exact then. */
void spw_prefetch_finish(struct spw_prefetch *p);

/* The next KV transfer, which must be `t`: compute will wait for it; its tiles are at
 * slot + i * tile_bytes. The host waits for tiles that are still being written to the disk.
 * -EBADMSG: a tile is lost, see spw_kv_take_loss; after that only forget may follow. */
int spw_prefetch_wait_kv(struct spw_prefetch *p, const struct spw_transfer *t, uint8_t **slot);
/* Seconds that computation stood still for the disk: of a layer, or (SPW_RANGES) outside of any. */
double spw_prefetch_stalled_seconds(const struct spw_prefetch *p, uint32_t range);
int spw_prefetch_release_kv(struct spw_prefetch *p);
/* Waits for the load of the layer, if there is one; the wait counts like one for a slot. */
int spw_prefetch_wait_load(struct spw_prefetch *p, struct spw_kv_seq *seq, uint32_t layer);
/* `weights`: the slot or the resident place, as the pieces' offsets say; NULL for a block in place.
 * -EIO: its file could not be read (spw_prefetch_failed_read), or the device is lost; after
 * that only forget may follow. */
int spw_prefetch_wait_block(struct spw_prefetch *p, uint32_t block, const uint8_t **weights);
int spw_prefetch_release_block(struct spw_prefetch *p, uint32_t block);
/* The first read of weights that failed since the last forget, and why; NULL: none. */
const struct spw_block_read *spw_prefetch_failed_read(const struct spw_prefetch *p, int *rc);

/* How far the rings are with the schedule that begin or ahead was called with last. */
struct spw_schedule_progress spw_prefetch_progress(const struct spw_prefetch *p);
/* How often rings that were not empty were dropped; *last: how far they were at the latest drop. */
uint64_t spw_prefetch_dropped(const struct spw_prefetch *p, struct spw_schedule_progress *last);

#endif
