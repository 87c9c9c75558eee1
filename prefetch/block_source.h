/* Where the bytes of a weight slot come from: host memory, or ranges of files that are read around
 * the page cache. A read that fails makes the wait for its slot -EIO: nothing replaces a model's
 * file. Borrows the blocks. */
#ifndef SPW_PREFETCH_BLOCK_SOURCE_H
#define SPW_PREFETCH_BLOCK_SOURCE_H

#include "prefetch/ring.h"

/* One contiguous read of a block. */
struct spw_block_read {
    const struct spw_io_file *file;
    const char *path;                    /* for messages */
    uint64_t offset, bytes, least_bytes; /* as in struct spw_io_job */
    uint64_t lands;                      /* in the slot, or in the bounce slot */
};

/* A block of weights that is moved and used as one: a layer's matrices, or rows of the head. */
struct spw_block {
    uint32_t layer; /* whose waits for the disk are counted; SPW_RANGES: of no layer */
    const struct spw_piece *pieces; /* in host memory, or a mapped file */
    uint32_t n_pieces;
    uint32_t n_reads;    /* of a streamed block that is read from files; 0: from the pieces */
    uint64_t read_bytes; /* the sum of the reads */
    const struct spw_block_read *reads;
    /* With reads: where each piece lands in the bounce slot; NULL: all lands in the slot itself and
     * the pieces only say where. */
    const uint64_t *landed;
    uint64_t moved_bytes;    /* over the link, each time the block is brought up */
    uint8_t *resident;       /* its place on the device, or NULL */
    bool in_place;           /* kernels read the pieces where they are: nothing is copied */
    void (*prepare)(void *); /* called once, on a link, before anything reads the pieces */
    void (*copied)(void *);  /* called in stream order when a copy of the pieces is done */
    void *context;           /* of both calls, each of which may be NULL */
};

struct spw_block_source {
    struct spw_ring ring;
    const struct spw_block *blocks;
    uint32_t *slots; /* [ring.o.n_slots], owned: the block that each was issued for */
    const struct spw_block_read *failed;
    int failed_rc;
};

/* `o` but for what the blocks decide: most_reads, most_hops. */
int spw_block_source_init(struct spw_block_source *w, const struct spw_lane *lane,
                          const struct spw_ring_options *o, const struct spw_block *blocks,
                          uint32_t n_blocks);
void spw_block_source_free(struct spw_block_source *w);

/* Queues copies of all pieces to where they belong in the block at `to`. */
int spw_block_copy(const struct spw_block_source *w, const struct spw_block *u, uint8_t *to,
                   spw_stream link);
/* There must be a slot. */
int spw_block_source_issue(struct spw_block_source *w, uint32_t block);
/* The oldest that was issued: compute waits for it. */
int spw_block_source_wait(struct spw_block_source *w, uint8_t **slot);
/* Which block slot n holds or will hold, for n in [ring.waited, ring.issued). */
uint32_t spw_block_source_block(const struct spw_block_source *w, uint64_t n);

#endif
