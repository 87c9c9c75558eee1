/* The weight slots of the device: how streamed units come into one.
 *
 * issue -> wait -> (kernels) -> release, in one order, as in ring.h. What lies in host memory is
 * copied on `link` when it is issued. What lies in files is read around the page cache, into the
 * slot itself, or into the bounce slot of the same number and copied from there when it has landed;
 * the host waits for that in `wait` only. A read that fails makes that wait -EIO: nothing replaces
 * a model's file. Borrows arenas, streams, units and files; one host thread. */
#ifndef SPW_PREFETCH_UNIT_RING_H
#define SPW_PREFETCH_UNIT_RING_H

#include "offload/io/io.h"
#include "prefetch/landing.h"

/* One contiguous read of a unit. */
struct spw_unit_read {
    const struct spw_io_file *file;
    const char *path;                    /* for messages */
    uint64_t offset, bytes, least_bytes; /* as in struct spw_io_job */
    uint64_t lands;                      /* in the slot, or in the bounce slot */
};

/* A block of weights that is moved and used as one: a layer's matrices, or rows of the head. */
struct spw_unit {
    const struct spw_piece *pieces; /* in host memory, or a mapped file */
    uint32_t n_pieces;
    uint32_t n_reads;    /* of a streamed unit that is read from files; 0: from the pieces */
    uint64_t read_bytes; /* the sum of the reads */
    const struct spw_unit_read *reads;
    /* With reads: where each piece lands in the bounce slot; NULL: all lands in the slot itself and
     * the pieces only say where. */
    const uint64_t *landed;
    uint64_t moved_bytes;    /* over the link, each time the unit is brought up */
    uint8_t *resident;       /* its place on the device, or NULL */
    bool in_place;           /* kernels read the pieces where they are: nothing is copied */
    void (*prepare)(void *); /* called once, on a link, before anything reads the pieces */
    void (*copied)(void *);  /* called in stream order when a copy of the pieces is done */
    void *context;           /* of both calls, each of which may be NULL */
};

struct spw_unit_ring_options {
    const struct spw_device_ops *ops;
    struct spw_device *device;
    spw_stream compute, link;
    void *arena; /* [n_slots][slot_bytes] */
    uint64_t slot_bytes;
    uint32_t n_slots;
    const struct spw_unit *units;
    uint32_t n_units;
    struct spw_io *io;     /* NULL: no unit has reads */
    void *bounce_arena;    /* [n_slots][bounce_bytes] of host memory, if a unit bounces */
    uint64_t bounce_bytes; /* of one bounce slot */
};

struct spw_unit_slot; /* unit_ring.c */

struct spw_unit_ring {
    struct spw_unit_ring_options o;
    struct spw_ring ring;
    struct spw_unit_slot *slots; /* [n_slots], owned */
    struct spw_disk_job *jobs;   /* [n_slots * most_reads], owned */
    const struct spw_unit_read *failed;
    int failed_rc;
};

/* `o` is given. */
int spw_unit_ring_init(struct spw_unit_ring *r, const struct spw_unit_ring_options *o);
void spw_unit_ring_free(struct spw_unit_ring *r); /* waits for reads */

/* Queues copies of all pieces to where they belong in the block at `to`. */
int spw_unit_copy(const struct spw_unit_ring *r, const struct spw_unit *u, uint8_t *to,
                  spw_stream link);
/* There must be a slot. */
int spw_unit_ring_issue(struct spw_unit_ring *r, uint32_t unit);
/* The oldest that was issued: compute waits for it. */
int spw_unit_ring_wait(struct spw_unit_ring *r, uint8_t **slot);
int spw_unit_ring_release(struct spw_unit_ring *r);
/* Waits until no read is under way. */
void spw_unit_ring_finish(struct spw_unit_ring *r);
/* Gives up what was issued and not waited for; waits until no read is under way. */
void spw_unit_ring_drop(struct spw_unit_ring *r);
/* Which unit slot n holds or will hold, for n in [ring.waited, ring.issued). */
uint32_t spw_unit_ring_unit(const struct spw_unit_ring *r, uint64_t n);
/* The number of the first unit that has not landed whole. */
uint64_t spw_unit_ring_landed(const struct spw_unit_ring *r);

#endif
