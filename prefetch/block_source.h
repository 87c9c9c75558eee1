/* The sources of a weight slot: host memory, or ranges of files that are read with O_DIRECT. If a
 * read fails, the wait for its slot returns -EIO: there is no other copy of a model's file. Borrows
 * the blocks. */
#ifndef SPW_PREFETCH_BLOCK_SOURCE_H
#define SPW_PREFETCH_BLOCK_SOURCE_H

#include "prefetch/ring.h"

/* One contiguous read of a block. */
struct spw_block_read {
    struct spw_ring_range range;
    uint32_t file;        /* its number in the model */
    uint64_t slot_offset; /* destination in the slot, or in the bounce slot */
};

struct spw_block;

/* A read that has failed: these bytes of the file could not be read, or (-EBADMSG) are not what
 * they were, twice. */
struct spw_block_failure {
    const struct spw_block *block; /* NULL: no read has failed */
    uint32_t file;                 /* its number in the model */
    uint64_t offset, bytes;
    int rc;
};

/* A weight block: matrices that are transferred and used together: those of a layer, or rows of the
 * head. */
struct spw_block {
    uint32_t layer; /* the layer to which waits for the disk count; SPW_RANGES: none */
    const struct spw_piece *pieces; /* in host memory, or a mapped file */
    uint32_t n_pieces;
    uint32_t n_reads;    /* reads of a streamed block; 0: the block is copied from its pieces */
    uint64_t read_bytes; /* the sum of the reads */
    const struct spw_block_read *reads;
    /* With reads: the offset of each piece in the bounce slot. NULL: the reads go to the slot
     * itself, and the pieces only say where the matrices are in it. */
    const uint64_t *bounce_offsets;
    uint64_t moved_bytes;    /* bytes over the link for each transfer of the block */
    uint8_t *resident;       /* its place on the device, or NULL */
    bool in_place;           /* kernels read the pieces where they are: nothing is copied */
    uint32_t host_rows;      /* passes of so many rows leave it where it is, in host memory */
    void (*prepare)(void *); /* called once, on a link, before anything reads the pieces */
    void (*copied)(void *);  /* called in stream order when a copy of the pieces is done */
    void *context;           /* argument of both calls; each call may be NULL */
};

struct spw_block_source {
    struct spw_ring ring;
    const struct spw_block *blocks;
    uint32_t *slots; /* [ring.o.n_slots], owned: the block that each was issued for */
    struct spw_block_failure failed; /* the first one */
};

/* Takes most_reads and most_hops from the blocks, all other options from `o`. */
int spw_block_source_init(struct spw_block_source *w, const struct spw_lane *lane,
                          const struct spw_ring_options *o, const struct spw_block *blocks,
                          uint32_t n_blocks);
void spw_block_source_free(struct spw_block_source *w);

/* Queues copies of all pieces to their places in the block at `to`. bounce: of a block with
 * bounce_offsets, where its reads have put it; else NULL. */
int spw_block_copy(const struct spw_block_source *w, const struct spw_block *u, uint8_t *to,
                   const uint8_t *bounce, spw_stream link);
/* Issues a slot for the block; a slot must be free. memory: as in spw_ring_take. on_host: it is
 * memory of the host, which gets what the reads of the block give, as a bounce slot does. */
int spw_block_source_issue(struct spw_block_source *w, uint32_t block, uint8_t *memory,
                           bool on_host);
/* Waits for the oldest issued slot: see spw_ring_wait. -EIO: a read has failed; see `failed`. */
int spw_block_source_wait(struct spw_block_source *w, uint8_t **slot);
/* The block of slot number n, in [ring.waited, ring.taken). */
uint32_t spw_block_source_block(const struct spw_block_source *w, uint64_t n);

#endif
