/* What crosses the link in one pass, in the order in which it is consumed. Pure: the same step
 * always gives the same list, so a ring may run ahead of the computation by walking it. Borrows
 * everything. */
#ifndef SPW_PREFETCH_SCHEDULE_H
#define SPW_PREFETCH_SCHEDULE_H

#include "offload/kv/kv_cache.h"

/* Tiles [first, end) of one layer that lie in lower tiers and are read by one part of a chunk. */
struct spw_stream_range {
    uint32_t first, end;
};

/* Consecutive new tokens of one sequence that pass every layer together. */
struct spw_schedule_rows {
    struct spw_kv_seq *seq;
    struct spw_stream_range ranges[SPW_LAYER_KINDS]; /* by layer kind */
    uint32_t disk_end[SPW_LAYER_KINDS]; /* older tiles come from the disk when they are read */
    /* Tiles before shared_end are also those of part `donor` of the same chunk, and come with its
     * transfers: `ranges` is what is left. 0: none are. A donor has no donor. */
    uint32_t donor[SPW_LAYER_KINDS], shared_end[SPW_LAYER_KINDS];
};

/* Where two parts share tiles up to `both`, and read `a` and `b` of lower tiers: the tiles before
 * the result can come once for both. It is where a transfer ends; 0: none can. */
uint32_t spw_schedule_shared_end(const struct spw_stream_range *a, const struct spw_stream_range *b,
                                 uint32_t both, uint32_t slot_tiles);

struct spw_schedule {
    uint32_t n_layers;
    const uint8_t *kinds; /* [n_layers], enum spw_layer_kind */
    uint32_t slot_tiles;  /* most tiles of one transfer: whole splits */
    uint32_t n_parts;
    struct spw_schedule_rows *parts;
    uint32_t n_layer_blocks, n_head_blocks; /* weight blocks: of the layers, then of the head */
    uint32_t n_head_rounds;                 /* how often the head's blocks are walked */
};

/* KV of the splits that share a slot, or the part of it that is in lower tiers. Transfers are cut
 * at multiples of slot_tiles. */
struct spw_transfer {
    struct spw_kv_seq *seq;
    uint32_t layer, tile_begin, tile_end;
    uint32_t disk_end; /* as in spw_schedule_rows; not part of what the transfer is */
};

struct spw_kv_cursor {
    uint32_t layer, part, tile;
    bool inside; /* `tile` has been set for this part */
};

struct spw_block_cursor {
    uint32_t block, round;
};

/* How many transfers and streamed blocks of a schedule the rings have issued. `landed_...`: of
 * these, how many from the first one on have queued their copies to the device; a read from the
 * disk into host memory queues the copy when the read is over. */
struct spw_schedule_progress {
    uint64_t transfers, landed_transfers, blocks, landed_blocks;
};

/* false at the end. */
bool spw_schedule_next_kv(const struct spw_schedule *s, struct spw_kv_cursor *c,
                          struct spw_transfer *out);
/* Weight blocks in order: the layers', then the head's, round by round. */
bool spw_schedule_next_block(const struct spw_schedule *s, struct spw_block_cursor *c,
                             uint32_t *block);

#endif
