/* Slots of device memory that are filled from sources, read by kernels and given back, in one
 * order.
 *
 *   take -> add_... -> issue | wait -> (kernels on `compute`) -> release
 *
 * A source is memory of the host, a frame of the disk, or a range of a file. Memory is copied on
 * `link` at once. Frames and ranges are read into the slot itself, or into a bounce slot in host
 * memory, and copied from there when the reads of the slot are over. A slot is filled again only
 * after the kernels that read it. The host waits in `wait` only. Borrows lane, arenas, disk and
 * files; one host thread. */
#ifndef SPW_PREFETCH_RING_H
#define SPW_PREFETCH_RING_H

#include "offload/kv/gather.h"

struct spw_ring_options {
    spw_stream link; /* of the lane; its own for each ring */
    void *arena;     /* [n_slots][slot_bytes] */
    uint64_t slot_bytes;
    uint32_t n_slots;
    uint64_t tile_bytes; /* of KV slots */
    /* The rest is for reads. */
    uint32_t most_reads;    /* of one slot; 0: there are none */
    uint32_t most_hops;     /* pieces of one slot that are copied from a bounce slot */
    spw_stream disk_stream; /* submits reads; may be `link` */
    struct spw_disk *disk;  /* of frames; NULL: there are none */
    struct spw_io *io;      /* of ranges of files; NULL: there are none */
    void *bounce_arena;     /* [n_bounce][bounce_bytes] of host memory */
    uint64_t bounce_bytes;
    uint32_t n_bounce;
};

struct spw_ring_slot; /* ring.c */

struct spw_ring {
    const struct spw_lane *lane;
    struct spw_ring_options o;
    uint64_t issued, waited, released; /* slots so far; slot of the n-th is n % n_slots */
    uint64_t bounced, passed_on;       /* bounce slots so far; of the n-th: n % n_bounce */
    struct spw_ring_slot *slots;       /* [n_slots], owned */
    struct spw_run *reads;             /* [n_slots * most_reads], owned */
    struct spw_ring_hop *hops;         /* [n_slots * most_hops], owned */
    spw_event *bounce_free;            /* [n_bounce], owned: copied from */
    struct spw_copies copies;
    int rc; /* of what was queued for the slot that is being filled */
};

int spw_ring_init(struct spw_ring *r, const struct spw_lane *lane,
                  const struct spw_ring_options *o);
void spw_ring_free(struct spw_ring *r); /* waits for reads */

/* Whether a slot can be taken; bounces: and a bounce slot for its reads, too. */
bool spw_ring_has_room(const struct spw_ring *r, bool bounces);
/* Takes the next slot; its number is what r->issued was. The add functions fill this slot until it
 * is issued. bounces: reads of this slot go to a bounce slot. There must be room. */
int spw_ring_take(struct spw_ring *r, bool bounces);
/* The bytes at `to` of the slot come from memory of the host. */
void spw_ring_add_memory(struct spw_ring *r, uint64_t to, const void *from, uint64_t bytes);
/* A tile comes from a frame of the disk. Adjacent frames are one read. A slot has frames or ranges,
 * not both. */
void spw_ring_add_frame(struct spw_ring *r, uint64_t to, uint32_t tile, uint32_t frame);
/* A range of a file is read to `to` in the slot, or in the bounce slot if reads of this slot
 * bounce. least_bytes: as in struct spw_io_job. */
void spw_ring_add_range(struct spw_ring *r, uint64_t to, const struct spw_io_file *file,
                        uint64_t offset, uint64_t bytes, uint64_t least_bytes);
/* Ranges bring these bytes to `from` in the bounce slot; they are copied to `to` in the slot. */
void spw_ring_add_hop(struct spw_ring *r, uint64_t to, uint64_t from, uint64_t bytes);
/* A source of the slot is lost: the wait for the slot will fail. */
void spw_ring_add_loss(struct spw_ring *r);
/* The slot has all its sources. Returns the first failure of queueing them: the device is lost.
 * `copied`, if it is not NULL, is called in stream order when the copies from memory are done. */
int spw_ring_issue(struct spw_ring *r, void (*copied)(void *), void *context);

/* The oldest slot that was issued: the host waits for its reads, and compute waits until the slot
 * is filled. -EBADMSG: a source could not be read, see spw_ring_reads; the slot can only be
 * dropped. */
int spw_ring_wait(struct spw_ring *r, uint8_t **slot);
/* The reads of the slot that a wait has refused; job.io.rc of each is its failure, or 0. */
const struct spw_run *spw_ring_reads(const struct spw_ring *r, uint32_t *n);
int spw_ring_release(struct spw_ring *r);

/* Gives up what was issued and not waited for; waits until no read is under way. */
void spw_ring_drop(struct spw_ring *r);
/* Waits until no read is under way, and changes nothing else. */
void spw_ring_finish(struct spw_ring *r);
/* The number of the first slot whose copies are not all queued, or that has a lost source. */
uint64_t spw_ring_landed(const struct spw_ring *r);

#endif
