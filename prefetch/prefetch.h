/* Keeps the rings filled ahead of the computation, across layers and across steps.
 *
 * There are two rings, KV and weights (and a pool of experts, which no schedule has), each with its
 * own stream: a weight block is in use for a whole layer while KV slots are filled and released.
 * The executor uses transfers in the order of the schedule; a transfer is issued as soon as its
 * ring has a free slot. At the end of a step the caller may hand over the schedule of the step that
 * it expects next. If the next step begins with these transfers, it uses them; else they are
 * dropped. The host waits only for reads of the disk, also for dropped ones. One host thread. */
#ifndef SPW_PREFETCH_PREFETCH_H
#define SPW_PREFETCH_PREFETCH_H

#include "prefetch/expert_pool.h"
#include "prefetch/kv_source.h"
#include "prefetch/schedule.h"
#include "prefetch/block_source.h"

struct spw_prefetch_options {
    void *kv_arena, *weights_arena;
    uint64_t tile_bytes, block_bytes; /* of the largest block that is streamed */
    uint32_t n_kv_slots, n_weight_slots;
    uint32_t slot_tiles;            /* of a KV slot */
    const struct spw_block *blocks; /* in the order of the schedule, then experts */
    uint32_t n_blocks;
    uint32_t first_expert;                  /* the block of expert 0 */
    struct spw_expert_pool_options experts; /* its arenas and numbers: the rest is filled in */
    struct spw_disk *disk;                  /* NULL: no disk, and the members below are not used */
    void *bounce_arena;                     /* [n_bounce][slot_tiles][tile_bytes] of host memory */
    uint32_t n_bounce;                      /* 0: the disk reads into KV slots */
    struct spw_io
        *weights_io; /* reads weight blocks from files; NULL: no block is read from files */
    /* [n_weight_slots][weights_bounce_bytes] of host memory, if a block bounces */
    void *weights_bounce_arena;
    uint64_t weights_bounce_bytes;
};

struct spw_prefetch;

/* Queues the preparation of all blocks and the copies of resident blocks. */
int spw_prefetch_open(struct spw_prefetch **out, const struct spw_lane *lane,
                      const struct spw_prefetch_options *o);
void spw_prefetch_close(struct spw_prefetch *p);
/* Replaces the KV ring, for tiles of another size; all other options must be as before. No queued
 * work may use a slot. After a failure only close may follow. */
int spw_prefetch_replan(struct spw_prefetch *p, const struct spw_prefetch_options *o);

/* Begins a pass, or continues one that was paused; `s` stays borrowed until the next begin. */
int spw_prefetch_begin(struct spw_prefetch *p, const struct spw_schedule *s);
/* Ends a pass, and fills the rings for `next`, the pass that is expected. */
int spw_prefetch_ahead(struct spw_prefetch *p, const struct spw_schedule *next);
/* Drops the transfers ahead, and waits until no copy and no read is in flight. Call it before tiles
 * are freed. */
int spw_prefetch_forget(struct spw_prefetch *p);
/* Waits until no read of the disk is in flight: counters are exact then. */
void spw_prefetch_finish(struct spw_prefetch *p);

/* Waits for the next KV transfer, which must be `t`; the compute stream waits for its copies. Tile
 * i is at slot + i * tile_bytes. The host waits for tiles that are still being written to the disk.
 * -EBADMSG: a tile is lost, see spw_kv_take_loss; then only forget may follow. */
int spw_prefetch_wait_kv(struct spw_prefetch *p, const struct spw_transfer *t, uint8_t **slot);
/* Seconds in which computation stood still for the disk, or for products of the host: in a layer,
 * or (SPW_RANGES) outside of all layers. */
double spw_prefetch_stalled_seconds(const struct spw_prefetch *p, uint32_t range);
/* Around a wait of the host: it counts there, if computation ran empty meanwhile. */
int spw_prefetch_stall_begin(struct spw_prefetch *p);
void spw_prefetch_stall_end(struct spw_prefetch *p, uint32_t range);
int spw_prefetch_release_kv(struct spw_prefetch *p);
/* Waits for the load of the slice, if there is one. The wait counts like the wait for a slot of its
 * layer. */
int spw_prefetch_wait_load(struct spw_prefetch *p, struct spw_kv_seq *seq, uint32_t slice,
                           uint32_t layer);
/* Whether the running pass leaves the block in host memory. */
bool spw_prefetch_is_on_host(const struct spw_prefetch *p, uint32_t block);
/* Waits for the next weight block. *weights: its slot, its resident place, or that in host memory;
 * NULL for a block in place. -EIO: its file could not be read (spw_prefetch_failed_read), or the
 * device is lost; then only forget may follow. */
int spw_prefetch_wait_block(struct spw_prefetch *p, uint32_t block, const uint8_t **weights);
/* Where a resident block lies; NULL: in the mapped file. */
const uint8_t *spw_prefetch_resident(const struct spw_prefetch *p, uint32_t block);
int spw_prefetch_release_block(struct spw_prefetch *p, uint32_t block);
/* Experts that move (plan.n_expert_frames): see expert_pool.h. visit gives each its frame, and
 * queues transfers; next waits for the next expert. The wait counts in `layer`. */
int spw_prefetch_visit_experts(struct spw_prefetch *p, struct spw_expert_visit *v, uint32_t n,
                               bool on_host);
bool spw_prefetch_has_expert(const struct spw_prefetch *p);
int spw_prefetch_next_expert(struct spw_prefetch *p, uint32_t layer, uint32_t *expert,
                             const uint8_t **at);
int spw_prefetch_expert_done(struct spw_prefetch *p);
/* Of a visit on_host: the experts that the host multiplies; those that are packed come first. */
uint32_t spw_prefetch_n_host_experts(const struct spw_prefetch *p, bool packed);
int spw_prefetch_host_expert(struct spw_prefetch *p, uint32_t layer, uint32_t i,
                             struct spw_host_expert *out);
int spw_prefetch_host_expert_done(struct spw_prefetch *p, uint32_t i);
/* The first read of weights that has failed since the last forget. */
struct spw_block_failure spw_prefetch_failed_read(const struct spw_prefetch *p);
/* [experts of all layers], where experts move: spw_expert_residency_counts. */
void spw_prefetch_expert_counts(const struct spw_prefetch *p, double *counts);

/* The progress of the rings in the schedule of the latest begin or ahead. */
struct spw_schedule_progress spw_prefetch_progress(const struct spw_prefetch *p);
/* How often rings that were not empty were dropped; *last: their progress at the latest drop. */
uint64_t spw_prefetch_dropped(const struct spw_prefetch *p, struct spw_schedule_progress *last);

#endif
