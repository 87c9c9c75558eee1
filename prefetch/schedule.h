/* The transfers of one pass, in the order of their use. Pure: the same step always gives the same
 * list, so a ring can walk the list ahead of the computation. Borrows everything. */
#ifndef SPW_PREFETCH_SCHEDULE_H
#define SPW_PREFETCH_SCHEDULE_H

#include "offload/kv/kv_cache.h"

/* Tiles [first, end) of one slice that are in lower tiers and that one part of a chunk reads. */
struct spw_stream_range {
    uint32_t first, end;
};

/* What one part of a chunk (runtime/rules/cut.h) reads from lower tiers. */
struct spw_part_reads {
    struct spw_kv_seq *seq;
    struct spw_stream_range ranges[SPW_LAYER_KINDS]; /* by layer kind */
    uint32_t disk_end[SPW_LAYER_KINDS]; /* tiles before this one are read from the disk */
    /* Tiles before shared_end are shared with part `shared_with` of the same chunk, and come with
     * its transfers; `ranges` has the rest. 0: no tile is shared. That part shares with no other
     * one. */
    uint32_t shared_with[SPW_LAYER_KINDS], shared_end[SPW_LAYER_KINDS];
};

/* Two parts share tiles up to `both`, and read `a` and `b` from lower tiers: tiles before the
 * result need only one transfer for both. The result is the end of a transfer; 0: no tile can be
 * shared. */
uint32_t spw_schedule_one_transfer_end(const struct spw_stream_range *a,
                                       const struct spw_stream_range *b, uint32_t both,
                                       uint32_t slot_tiles);

struct spw_kv_cursor {
    uint32_t layer, part, slice, tile; /* slice: of the layer's */
    bool inside;                       /* `tile` has been set for this slice */
};

struct spw_block_cursor {
    uint32_t block, round;
};

struct spw_schedule {
    uint32_t n_layers;
    const uint8_t *kinds; /* [n_layers], enum spw_layer_kind */
    /* The slices whose tiles a layer reads, in layers of the cache: the first one, [n_layers], and
     * how many, by layer kind. */
    const uint32_t *first_slices, *layer_slices;
    uint32_t slot_tiles; /* the most tiles of one transfer: a multiple of a split */
    uint32_t n_parts;
    struct spw_part_reads *parts;
    uint64_t rows;                          /* of the pass: see spw_block.host_rows */
    uint32_t n_layer_blocks, n_head_blocks; /* weight blocks: of the layers, then of the head */
    uint32_t n_head_rounds;                 /* how often the head's blocks are walked */
    struct spw_kv_cursor first_kv;          /* where the transfers begin: at 0, or where a pass */
    struct spw_block_cursor first_block;    /* that was paused continues */
};

/* The tiles of one slot, or those of them that are in lower tiers. Transfers end at multiples of
 * slot_tiles. */
struct spw_transfer {
    struct spw_kv_seq *seq;
    uint32_t layer, tile_begin, tile_end; /* layer: of the cache, a slice of a layer */
    uint32_t disk_end; /* as in spw_part_reads; does not identify the transfer, */
    uint32_t reader;   /* and nor does the layer that reads them */
};

/* How many transfers and streamed blocks of a schedule the rings have issued; and of the first of
 * these, how many have queued all their copies to the device. If the disk reads into a bounce slot,
 * the copy is queued after the read. */
struct spw_schedule_progress {
    uint64_t transfers, queued_transfers, blocks, queued_blocks;
};

/* Gives the next transfer; false at the end. */
bool spw_schedule_next_kv(const struct spw_schedule *s, struct spw_kv_cursor *c,
                          struct spw_transfer *out);
/* Gives the next weight block: those of the layers, then those of the head, round by round. */
bool spw_schedule_next_block(const struct spw_schedule *s, struct spw_block_cursor *c,
                             uint32_t *block);

#endif
