/* A ring of slots in device memory. Transfers fill the slots, and kernels read them, in one order.
 *
 *   free --take--> filling --issue--> issued --wait--> in use --release--> free
 *
 * take     the caller gets the next free slot, and adds its sources to it
 * issue    the slot has all its sources: copies and reads are queued. The host does not wait
 * wait     the oldest issued slot: the host waits for its reads, the compute stream for its copies.
 *          Kernels that are queued after that may read the slot
 * release  no kernel will be queued that reads the slot. The next transfer into the slot waits for
 *          the kernels that are already queued
 *
 * A source is host memory, a frame of the disk, or a range of a file. Host memory is copied on
 * `link`. Frames and ranges are read into the slot itself, or into a bounce slot in host memory,
 * and copied from there on `link` after the reads. Borrows lane, arenas, disk and files. One host
 * thread. */
#ifndef SPW_PREFETCH_RING_H
#define SPW_PREFETCH_RING_H

#include "offload/kv/gather.h"

struct spw_ring_options {
    spw_stream link; /* of the lane; its own for each ring */
    void *arena;     /* [n_slots][slot_bytes]; NULL: each slot lies where take says */
    uint64_t slot_bytes;
    uint32_t n_slots;
    uint64_t tile_bytes; /* of KV slots */
    /* The rest is for reads. */
    uint32_t most_reads;    /* reads of one slot; 0: no slot is read from a disk */
    uint32_t most_hops;     /* copies from a bounce slot to one slot */
    spw_stream disk_stream; /* submits reads; may be `link` */
    struct spw_disk *disk;  /* has the frames; NULL: no source is a frame */
    struct spw_io *io;      /* reads ranges of files; NULL: no source is a range */
    void *bounce_arena;     /* [n_bounce][bounce_bytes] of host memory */
    uint64_t bounce_bytes;
    uint32_t n_bounce;
};

/* A range of a file. Its checksums are those of records of SPW_RING_RECORD_BYTES. */
struct spw_ring_range {
    const struct spw_io_file *file;
    uint64_t offset, bytes, least_bytes; /* least_bytes: min_bytes of struct spw_io_job */
    uint64_t *sums; /* 0 is not known, and the first read sets it; NULL: none is checked */
};

enum { SPW_RING_RECORD_BYTES = 1 << 20 };

struct spw_ring_slot; /* ring.c */

struct spw_ring {
    const struct spw_lane *lane;
    struct spw_ring_options o;
    /* How many slots were taken, waited for and released so far. Number n is slot n % n_slots. */
    uint64_t taken, waited, released;
    uint64_t bounce_taken, bounce_released; /* the same for bounce slots: n % n_bounce */
    struct spw_ring_slot *slots;            /* [n_slots], owned */
    struct spw_tile_run *reads;             /* [n_slots * most_reads], owned */
    struct spw_ring_hop *hops;              /* [n_slots * most_hops], owned */
    spw_event *bounce_free;                 /* [n_bounce], owned: the copy from it is over */
    struct spw_copies copies;
    int rc; /* the first failure while the newest slot is filled */
};

int spw_ring_init(struct spw_ring *r, const struct spw_lane *lane,
                  const struct spw_ring_options *o);
void spw_ring_free(struct spw_ring *r); /* waits for reads */

/* Whether a slot is free; with `bounces`, also a bounce slot. */
bool spw_ring_has_room(const struct spw_ring *r, bool bounces);
/* Takes the next slot; there must be a free one. Its number is the earlier value of r->taken. The
 * add functions fill this slot until it is issued. bounces: its reads go to a bounce slot. memory:
 * where the slot lies this time; NULL: in the arena. `link` has waited for kernels that read there,
 * and is the stream of reads too. */
int spw_ring_take(struct spw_ring *r, bool bounces, uint8_t *memory);
/* Source: host memory, for the bytes at `to` of the slot. */
void spw_ring_add_memory(struct spw_ring *r, uint64_t to, const void *from, uint64_t bytes);
/* Source: a frame of the disk, for one tile. Adjacent frames become one read. A slot has frames or
 * ranges, not both. */
void spw_ring_add_frame(struct spw_ring *r, uint64_t to, uint32_t tile, uint32_t frame);
/* Source: a range of a file, read to `to` in the slot, or in the bounce slot if the reads of this
 * slot go there. */
void spw_ring_add_range(struct spw_ring *r, uint64_t to, const struct spw_ring_range *range);
/* Copies these bytes from `from` in the bounce slot to `to` in the slot, after the reads. */
void spw_ring_add_hop(struct spw_ring *r, uint64_t to, uint64_t from, uint64_t bytes);
/* A source of the slot is lost: the wait for the slot will return -EBADMSG. */
void spw_ring_add_loss(struct spw_ring *r);
/* Call it after the last source. A failure means that the device is lost. `copied` (may be NULL) is
 * called in stream order after the copies from host memory. */
int spw_ring_issue(struct spw_ring *r, void (*copied)(void *), void *context);

/* Waits for the oldest issued slot, and gives its address. A range that could not be read is read
 * once more. -EBADMSG: a source could not be read, see spw_ring_reads; then only spw_ring_drop may
 * follow. */
int spw_ring_wait(struct spw_ring *r, uint8_t **slot);
/* After -EBADMSG: the reads of that slot; job.io.rc of each read is its failure, or 0. */
const struct spw_tile_run *spw_ring_reads(const struct spw_ring *r, uint32_t *n);
/* Releases the oldest slot that is in use. */
int spw_ring_release(struct spw_ring *r);

/* Frees all slots that were issued and not waited for. Waits until no read is in flight. */
void spw_ring_drop(struct spw_ring *r);
/* Waits until no read is in flight. Slots stay issued. */
void spw_ring_finish(struct spw_ring *r);
/* The number of the first slot that has lost a source, or whose copy from a bounce slot is not
 * queued yet; r->taken if there is none. */
uint64_t spw_ring_n_queued(const struct spw_ring *r);

#endif
