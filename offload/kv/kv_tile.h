/* Inside the KV cache: tiles and their frames, and reads and writes of the disk that are in flight.
 * For offload/kv/ only. See kv_cache.h.
 *
 * Four streams and the I/O threads use a tile. "A waits B" means that stream A waits for an event
 * that was recorded on stream B. These orders must hold:
 *   1. A spill (down) reads a frame after the kernels that filled it.       down waits compute
 *   2. After a spill has freed a frame, nothing writes the frame before the spill has read it.
 *                                                                           taker waits down
 *   3. Queued kernels may still read a frame that was freed without a spill. compute is one queue
 *      and needs no wait; other streams wait for compute before they write the frame.
 *   4. A load (up) reads a host frame after the spill that wrote it. `up` waits once for each spill
 *      (tickets).                                                           up waits down
 *   5. Kernels read a loaded tile after its load.                           compute waits up
 *   6. A write to the disk reads a frame after the work that filled it.
 *                                                                 disk waits compute, or down
 *   7. A frame that is written to the disk is freed when the host knows that the write is over.
 *      Copies up from a host frame may still be queued then.                down waits up
 *   8. A read from the disk writes a device frame (order 3 for the disk's stream) or a host frame.
 *                                                     disk waits down, which has waited for up
 *   9. Work that uses the bytes of a read is queued after the host has waited for the read.
 * Every wait is for an event that has been recorded already, so there is no cycle. */
#ifndef SPW_OFFLOAD_KV_KV_TILE_H
#define SPW_OFFLOAD_KV_KV_TILE_H

#include "offload/kv/gather.h"
#include "offload/kv/kv_attach.h"
#include "offload/kv/tier.h"

#define SPW_KV_NO_TILE UINT32_MAX
#define SPW_KV_NO_LAYER UINT32_MAX

/* TIERED: the form that moves between the tiers. In a cache that does not quantize it is the exact
 * form. */
enum spw_kv_form { SPW_KV_FORM_TIERED, SPW_KV_FORM_EXACT };

/* The most jobs of the disk in flight: writes, and reads. */
enum { SPW_KV_WRITEBACKS = 128, SPW_KV_READS = 32 };

enum spw_kv_writing { SPW_KV_NOT_WRITING, SPW_KV_WRITING_FROM_HOST, SPW_KV_WRITING_FROM_DEVICE };

/* A tile in one form. Each form has its own references: the forms of a tile come and go
 * independently. A tile has at most one lower copy, on the host or on the disk. While the copy is
 * written to the disk, `disk` is set and `host` is NULL. The write owns the host frame. It also
 * owns the device frame after the last sequence has stopped using it. */
struct spw_kv_tile {
    bool exact;           /* its device frame belongs to kv->exact */
    void *device;         /* frame, or NULL */
    void *host;           /* frame, or NULL; in the device's arena if a write has failed */
    uint32_t disk;        /* frame, or SPW_DISK_NONE */
    uint32_t refs;        /* sequences that hold the tile; also the link of the free list */
    uint32_t device_refs; /* how many of them use its device frame */
    int lost;             /* 0, or the error of the read that lost its lower copy */
    bool unwritable;      /* a write to the disk has failed for good, and `host` is its source */
    enum spw_kv_writing writing;
    uint32_t damaged; /* 0, or the frame of an attached file that it was lost from. The tile owns
                         the frame until no queued work can read it */
    uint64_t ticket;  /* number of the spill that wrote `host` */
};

/* One write of adjacent tiles, oldest first in a ring. */
struct spw_kv_writeback {
    struct spw_tile_run run;
    spw_event submitted; /* after its submission */
    enum spw_kv_writing from;
    bool queued;
    uint32_t *ids; /* [slot_tiles] */
};

/* One read of adjacent tiles of one layer: to device frames or host frames of a load, or to the
 * memory of an export. */
struct spw_kv_read {
    struct spw_tile_run run;
    spw_event submitted;
    struct spw_kv_load *load; /* the load that the read belongs to */
};

/* A load that has begun. Its tiles have their device frames, but no sequence uses these frames
 * yet. */
struct spw_kv_load {
    struct spw_kv_load *next; /* the next load, which began later */
    struct spw_kv_seq *seq;   /* NULL: the layer has no load */
    uint32_t layer, begin, end;
    uint32_t queued; /* reads of tiles before it are queued; a tile that comes from the disk, or the
                       end */
    uint32_t n_reads; /* reads in flight */
    int rc; /* result of the reads that have ended: 0, -EBADMSG, or a failure of the device */
};

/* A copy of all states of a sequence: in host memory, on disk, or in both. */
struct spw_checkpoint {
    uint64_t n_tokens;
    uint32_t refs;   /* sequences that have it; 0: free */
    bool begun;      /* it is being made, for one sequence */
    uint32_t memory; /* its number in host memory, or SPW_NO_MEMORY */
    bool on_disk;
    uint32_t *frames; /* [layers with a state], of the disk; SPW_DISK_NONE: it was retired */
    double worth;     /* these two while one is looked for that can go */
    bool stays;
};
#define SPW_NO_MEMORY UINT32_MAX

/* The layers with a state are the last ones, [first, first + n). */
struct spw_states {
    uint32_t first, n;
    bool *taken; /* owned, [n_sequences], the places of sequences */
    /* Owned, [n_all], as many as host and disk have room for; the frames of all; and scratch for
     * their positions. */
    struct spw_checkpoint *checkpoints;
    uint32_t *frames;
    uint64_t *positions;
    uint32_t n_all, n_on_disk;
};

struct spw_kv {
    const struct spw_lane *lane;
    struct spw_kv_options o;
    struct spw_tier device, host; /* of the form that moves between the tiers */
    struct spw_tier exact;        /* device frames of exact tiles, if the cache quantizes */
    struct spw_kv_tile *tiles;    /* [n_tiles] */
    uint32_t n_tiles;             /* at least as many as frames: every tile has a frame somewhere */
    uint32_t n_attached;          /* number of frames in attached files that tiles hold */
    uint32_t free_tile;           /* head of the free list */
    void **
        free_soon; /* [n_device_frames] frames that no sequence uses; a spill may still read them */
    uint32_t n_free_soon;
    uint64_t ticket, up_knows; /* the latest spill, and the latest that `up` has waited for */
    bool up_may_read;          /* a host frame was freed since `down` has last waited for `up` */
    spw_event event; /* recorded again at each use: a wait means the latest record before it */
    struct spw_copies copies;

    struct spw_kv_writeback *writebacks; /* [SPW_KV_WRITEBACKS]; number n in [ended, begun) is at n
                                            % SPW_KV_WRITEBACKS */
    uint64_t ended, begun;
    uint32_t *writeback_ids; /* [SPW_KV_WRITEBACKS * slot_tiles] */
    int write_failure;       /* of the latest write that failed for good; 0: none has */
    bool failure_is_due;     /* it was not returned yet */
    uint32_t n_unwritable;   /* tiles */
    struct spw_kv_read
        *reads; /* [SPW_KV_READS]; number n in [taken, queued) is at n % SPW_KV_READS */
    uint64_t taken, queued;
    struct spw_kv_load *loads; /* in progress, the oldest first */
    struct spw_kv_seq *seqs;   /* all open sequences */
    struct spw_states states;
};

/* The tiles of one layer in one form. The sequence uses the device frames of tiles from `begin` on,
 * and of retained tiles and the sink. */
struct spw_kv_table {
    uint32_t first, begin, end, disk_end;
    uint64_t n_tokens; /* the length; the last tile may have an older lower copy */
    uint32_t *ids;     /* [max_tiles]; SPW_KV_NO_TILE: the sequence does not hold the tile */
    /* Dropped tiles in [retained, retained_end) keep their frames. retained_end 0: none is
     * retained. */
    uint32_t retained, retained_end;
    struct spw_kv_load load; /* of the form that moves between the tiers */
};

/* n_tokens have passed the layer, but its state was updated by the first n_applied only: the rows
 * of the others are kept (state_store.h). */
struct spw_state_tokens {
    uint64_t n_tokens, n_applied;
};

struct spw_kv_seq {
    struct spw_kv *kv;
    struct spw_kv_seq *next, *previous;
    struct spw_kv_loss loss;  /* rc 0: none */
    uint64_t retained_tokens; /* length at the latest retain */
    uint32_t place;           /* of its states */
    uint32_t loaded;          /* where states move: the layer whose state is on the device, or
                                 SPW_KV_NO_LAYER */
    struct spw_state_tokens *state_tokens; /* owned, [layers with a state] */
    uint32_t *checkpoints, n_checkpoints;  /* owned, in the order of positions */
    uint32_t *ids;
    /* [2 * n_layers]: first the tables of the form that moves between the tiers, then those of the
     * exact form, which are used if the cache quantizes. */
    struct spw_kv_table tables[];
};

static inline bool spw_kv_quantizes(const struct spw_kv *kv)
{
    return kv->o.n_exact_frames;
}

static inline struct spw_kv_table *spw_kv_table(const struct spw_kv_seq *seq, uint32_t layer,
                                                enum spw_kv_form form)
{
    bool apart = form == SPW_KV_FORM_EXACT && spw_kv_quantizes(seq->kv);
    return (struct spw_kv_table *)&seq->tables[apart ? seq->kv->o.n_layers + layer : layer];
}

/* The number of exact tiles that are never dropped: the sink of a layer whose old tiles are
 * quantized. */
static inline uint32_t spw_kv_n_sinks(const struct spw_kv_seq *seq, uint32_t layer)
{
    const struct spw_layer_kind_row *kind = &spw_layer_kinds[seq->kv->o.kinds[layer]];
    return spw_kv_quantizes(seq->kv) && !kind->has_window && kind->store == SPW_STORE_TILES;
}

/* The first tile of a table of the form that moves between the tiers. The sink is never
 * quantized. */
static inline uint32_t spw_kv_start(const struct spw_kv *kv)
{
    return spw_kv_quantizes(kv);
}

static inline uint64_t spw_kv_tile_bytes(const struct spw_kv *kv, enum spw_kv_form form)
{
    bool apart = form == SPW_KV_FORM_EXACT && spw_kv_quantizes(kv);
    return apart ? kv->o.exact_tile_bytes : kv->o.tile_bytes;
}

/* ---- kv_cache.c ---- */

/* Resets a table that holds no tile; its next tile is `first`. */
void spw_kv_start_table(struct spw_kv_table *l, uint32_t first);
/* Releases the tiles of [from, to) that the sequence holds in this form. */
void spw_kv_forget(struct spw_kv_seq *seq, struct spw_kv_table *l, uint32_t from, uint32_t to);
/* Cuts a table back to n tokens. */
void spw_kv_cut_table(struct spw_kv_seq *seq, struct spw_kv_table *l, uint64_t n);

/* ---- kv_tile.c ---- */

/* Work that is queued on `after` from now on waits for the work that is queued on `before`. */
int spw_kv_order(struct spw_kv *kv, spw_stream before, spw_stream after);
/* Queues a tile's copy, joined with the copies before it if they are adjacent; flush queues the
 * last one. */
static inline int spw_kv_gather(struct spw_kv *kv, void *to, const void *from, enum spw_link link,
                                spw_stream s)
{
    return spw_copies_add(&kv->copies, to, from, kv->o.tile_bytes, link, s);
}

static inline int spw_kv_flush_copies(struct spw_kv *kv)
{
    return spw_copies_flush(&kv->copies);
}

/* Frees the frames that spills have left. The caller has made sure that work which uses them waits
 * for the spills (order 2). */
void spw_kv_release_free_soon(struct spw_kv *kv);
/* Takes a frame that work queued on `user` from now on may write; the next one after `after` in
 * memory, if that is not NULL and the frame is free. */
int spw_kv_take_device_frame(struct spw_kv *kv, spw_stream user, const void *after, void **out);
/* Takes a host frame that `down` may write. */
int spw_kv_take_host_frame(struct spw_kv *kv, const void *after, void **out);
void spw_kv_put_host_frame(struct spw_kv *kv, void *frame);
int spw_kv_take_disk_frame(struct spw_kv *kv, uint32_t after, uint32_t *out);
void spw_kv_put_disk_frame(struct spw_kv *kv, uint32_t frame); /* also an attached one */

/* Makes a tile in the given form, with a device frame that `compute` may write. */
int spw_kv_new_tile(struct spw_kv *kv, enum spw_kv_form form, const void *after, uint32_t *out);
/* Adds such a tile at the end of the table. */
int spw_kv_add_tile(struct spw_kv_seq *seq, struct spw_kv_table *l, enum spw_kv_form form);
/* One sequence less uses the tile's device frame, but still holds the tile. */
void spw_kv_drop_device_ref(struct spw_kv *kv, struct spw_kv_tile *t);
void spw_kv_put_tile(struct spw_kv *kv, uint32_t id, bool counted_on_device);
/* Gives the copy on the host back if every sequence with this tile has it on the device. */
void spw_kv_drop_host_copy(struct spw_kv *kv, struct spw_kv_tile *t);
/* Frees a tile that no sequence holds and that is not being written. */
void spw_kv_free_tile(struct spw_kv *kv, uint32_t id);
/* The copy that a failed write has left goes, or is being written again. */
static inline void spw_kv_forget_failure(struct spw_kv *kv, struct spw_kv_tile *t)
{
    kv->n_unwritable -= t->unwritable;
    t->unwritable = false;
}
/* Frees the lower copy; no write of the tile to the disk may be in flight. */
void spw_kv_put_lower_copy(struct spw_kv *kv, struct spw_kv_tile *t);

static inline bool spw_kv_has_lower_copy(const struct spw_kv_tile *t)
{
    return t->host || t->disk != SPW_DISK_NONE;
}

/* Whether the tile still needs a lower copy. A lost tile has had one; only a tile on the device can
 * get another one. */
static inline bool spw_kv_is_unwritten(const struct spw_kv_tile *t)
{
    return !spw_kv_has_lower_copy(t) && (t->device || !t->lost);
}

/* The address of the tile on the device, or NULL: its frame, or the frame that it could not leave
 * because a write has failed. */
static inline void *spw_kv_on_device(const struct spw_kv *kv, const struct spw_kv_tile *t)
{
    bool stayed = t->host && spw_tier_has(&kv->device, t->host);
    return t->device ? t->device : stayed ? t->host : NULL;
}

/* The tile before it; NULL for the first tile that the layer holds. */
static inline struct spw_kv_tile *spw_kv_tile_before(struct spw_kv *kv,
                                                     const struct spw_kv_table *l, uint32_t tile)
{
    return tile > l->first ? &kv->tiles[l->ids[tile - 1]] : NULL;
}

/* Makes room for the ids of n more tiles in attached frames. Allocates; tiles may move. */
int spw_kv_extend(struct spw_kv *kv, uint32_t n);

/* ---- kv_attach.c ---- */

int spw_tile_store_import(struct spw_kv_seq *seq, uint32_t layer, enum spw_snapshot_kind kind,
                          uint32_t first, uint64_t to, const void *memory);
int spw_tile_store_export(struct spw_kv_seq *seq, uint32_t layer, enum spw_snapshot_kind kind,
                          uint32_t begin, uint32_t end, void *memory);

/* Whether a state needs no checkpoint to be cut back to n tokens. */
static inline bool spw_kv_state_reaches(const struct spw_state_tokens *s, uint64_t n)
{
    return n >= s->n_applied && n <= s->n_tokens;
}

/* ---- checkpoint.c ---- */

int spw_states_open(struct spw_states *s, const struct spw_kv_options *o);
void spw_states_close(struct spw_states *s);
int spw_states_open_seq(struct spw_kv_seq *seq);
void spw_states_close_seq(struct spw_kv_seq *seq);
/* Drops the checkpoints after n tokens. */
void spw_kv_checkpoints_cut(struct spw_kv_seq *seq, uint64_t n);
void spw_kv_checkpoints_share(struct spw_kv_seq *to, const struct spw_kv_seq *from);
/* Brings the checkpoint at n tokens, which is there, into host memory. -EBADMSG: it was damaged,
 * and is gone from all sequences. */
int spw_kv_checkpoint_fetch(struct spw_kv_seq *seq, uint64_t n);
/* The same before a cut to n tokens, if a state is not there already. */
int spw_kv_checkpoint_fetch_for_cut(struct spw_kv_seq *seq, uint64_t n);
/* Then queues its copy to the layer's state; or copies it to memory, with a wait. */
int spw_kv_checkpoint_restore(struct spw_kv_seq *seq, uint64_t n, uint32_t layer);
int spw_kv_checkpoint_read(const struct spw_kv_seq *seq, uint64_t n, uint32_t layer, void *memory);

/* ---- kv_load.c ---- */

int spw_kv_reads_open(struct spw_kv *kv);
void spw_kv_reads_close(struct spw_kv *kv);
static inline bool spw_kv_is_reading(const struct spw_kv *kv)
{
    return kv->queued > kv->taken;
}
/* Whether one more read may be in flight. */
static inline bool spw_kv_can_read(const struct spw_kv *kv)
{
    return kv->queued - kv->taken < SPW_KV_READS;
}
/* Prepares the next read, which begins with `tile` and is empty. It is queued by kv->queued++. */
struct spw_kv_read *spw_kv_next_read(struct spw_kv *kv, struct spw_kv_load *load, uint32_t tile);
/* Waits for the oldest read. Queues copies of its host frames to the device, and frees the host
 * frames. The result goes to its load. Notes a lost tile. */
void spw_kv_finish_read(struct spw_kv *kv);

/* ---- kv_shrink.c ---- */

/* Waits until no work is queued and no write is in flight; frees all frames that waited for
 * this. */
int spw_kv_finish_queued(struct spw_kv *kv);

/* ---- kv_writeback.c ---- */

int spw_kv_writebacks_open(struct spw_kv *kv);
void spw_kv_writebacks_close(struct spw_kv *kv); /* waits for writes in flight */
/* Writes the tile from its host copy or its device frame to the next frame after `after`. Adjacent
 * tiles are gathered into one write; flush queues the last one. */
int spw_kv_write_tile(struct spw_kv *kv, uint32_t id, enum spw_kv_writing from, uint32_t after);
int spw_kv_flush_writebacks(struct spw_kv *kv);
static inline bool spw_kv_is_writing(const struct spw_kv *kv)
{
    return kv->begun > kv->ended;
}
/* Waits for the oldest write, and frees its frames. Fails only if the device is lost. */
int spw_kv_finish_writeback(struct spw_kv *kv);
/* The same for all writes that are over; never waits. */
void spw_kv_poll_writebacks(struct spw_kv *kv);
/* A tile whose write failed keeps its frame. Where a tier is full (rc is -ENOMEM) and there are
 * such tiles, returns the failure of the write; else rc. */
int spw_kv_full(struct spw_kv *kv, int rc);
/* Waits until the tile is written. */
int spw_kv_finish_tile(struct spw_kv *kv, const struct spw_kv_tile *t);

#endif
