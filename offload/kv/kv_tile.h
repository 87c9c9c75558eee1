/* Inside the KV cache: tiles and their frames, and writes to the disk that are under way.
 * For offload/kv/ only. See kv_cache.h and, for the orders between streams, kv_tile.c. */
#ifndef SPW_OFFLOAD_KV_KV_TILE_H
#define SPW_OFFLOAD_KV_KV_TILE_H

#include "offload/kv/gather.h"
#include "offload/kv/kv_cache.h"
#include "offload/kv/tier.h"

#define SPW_KV_NO_TILE UINT32_MAX

/* Jobs of the disk that may be under way at a time: writes, and reads. */
enum { SPW_KV_WRITEBACKS = 128, SPW_KV_READS = 32 };

enum spw_kv_writing { SPW_KV_NOT_WRITING, SPW_KV_WRITING_FROM_HOST, SPW_KV_WRITING_FROM_DEVICE };

/* A tile in one form, with references of its own: the forms of a tile come and go independently. It
 * has one lower copy at most, on the host or on the disk. While the copy is being written to the
 * disk, `disk` is set and `host` is not. The write owns the host frame, and the device frame once
 * nobody counts on it. */
struct spw_kv_tile {
    bool exact;           /* its device frame is one of kv->exact */
    void *device;         /* frame, or NULL */
    void *host;           /* frame, or NULL; of the device's arena if it could not be written */
    uint32_t disk;        /* frame, or SPW_DISK_NONE */
    uint32_t refs;        /* sequences that hold the tile; also the link of the free list */
    uint32_t device_refs; /* of those, the ones that count on its device frame */
    int lost;             /* it has no lower copy because reading it gave this */
    enum spw_kv_writing writing;
    uint32_t damaged; /* 0, or the frame of an attached file that it was lost from: kept until
                         nothing that is queued can be reading it */
    uint64_t ticket;  /* of the spill that wrote `host` */
};

/* One write of adjacent tiles, oldest first in a ring. */
struct spw_kv_writeback {
    struct spw_run run;
    spw_event behind; /* its submission */
    enum spw_kv_writing from;
    bool queued;
    uint32_t *ids; /* [slot_tiles] */
};

/* One read of adjacent tiles of one layer: to device frames or host frames of a load, or to the
 * memory of an export. */
struct spw_kv_read {
    struct spw_run run;
    spw_event behind;
    struct spw_kv_load *load; /* whose it is */
};

/* A load that has begun. Its tiles have their device frames, and no sequence counts on them yet. */
struct spw_kv_load {
    struct spw_kv_load *next; /* the one that began after it */
    struct spw_kv_seq *seq;   /* NULL: none goes on in this layer */
    uint32_t layer, begin, end;
    uint32_t asked; /* tiles below it are asked for; a tile that comes from the disk, or the end */
    uint32_t n_reads; /* under way */
    int rc;           /* of reads that have ended: -EBADMSG, or a failure of the device */
};

struct spw_kv {
    const struct spw_lane *lane;
    struct spw_kv_options o;
    struct spw_tier device, host; /* of the form that moves between the tiers */
    struct spw_tier exact;        /* device frames of exact tiles, where the cache quantizes */
    struct spw_kv_tile *tiles;    /* [n_tiles] */
    uint32_t n_tiles;             /* at least as many as frames: every tile has one somewhere */
    uint32_t n_attached;          /* of these frames, the ones in attached files that tiles hold */
    uint32_t free_tile;           /* head of the free list */
    void **
        free_soon; /* [n_device_frames] frames that nobody counts on; a spill may still read them */
    uint32_t n_free_soon;
    uint64_t ticket, up_knows; /* the latest spill, and the latest that `up` has waited for */
    bool up_may_read;          /* a host frame that was given back since `down` waited for `up` */
    spw_event event;           /* re-recorded at each use: a wait means the record before it */
    struct spw_copies copies;

    struct spw_kv_writeback
        *writebacks; /* [SPW_KV_WRITEBACKS]; of [ended, begun) the n-th is n % that */
    uint64_t ended, begun;
    uint32_t *writeback_ids;   /* [SPW_KV_WRITEBACKS * slot_tiles] */
    int write_failure;         /* not told yet */
    struct spw_kv_read *reads; /* [SPW_KV_READS]; of [taken, asked) the n-th is n % SPW_KV_READS */
    uint64_t taken, asked;
    struct spw_kv_load *loads; /* that go on, the oldest first */
    struct spw_kv_seq *seqs;   /* all that are open */
};

/* The tiles of one layer in one form. The sequence counts on the device frames of tiles from
 * `begin` on, and of those below `first`: pinned tiles and the sink. */
struct spw_kv_table {
    uint32_t first, begin, end, disk_end;
    uint64_t n_tokens; /* grown to; the tile they end in may have an older lower copy */
    uint32_t *ids;     /* [max_tiles]; SPW_KV_NO_TILE: the sequence does not hold the tile */
    /* Tiles [pinned, pinned_end) stay although they are dropped. pinned_end 0: none is pinned. */
    uint32_t pinned, pinned_end;
    struct spw_kv_load load; /* of the form that moves between the tiers */
};

struct spw_kv_seq {
    struct spw_kv *kv;
    struct spw_kv_seq *next, *previous;
    struct spw_kv_loss loss; /* rc 0: none */
    uint64_t pinned_tokens;  /* of the latest pin */
    uint32_t *ids;
    /* [2 * n_layers]: first the tables of the form that moves between the tiers, then those of the
     * exact form. The latter are used where the cache quantizes. */
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

/* Exact tiles that are never dropped: the sink of a layer whose old tiles are quantized. */
static inline uint32_t spw_kv_n_sinks(const struct spw_kv_seq *seq, uint32_t layer)
{
    return spw_kv_quantizes(seq->kv) && spw_layer_kinds[seq->kv->o.kinds[layer]].quantizes;
}

/* The first tile of a table of the form that moves between the tiers: the sink is never quantized.
 */
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

/* Makes a table empty that holds no tile; the next tile is `first`. */
void spw_kv_start_table(struct spw_kv_table *l, uint32_t first);
/* Gives back the tiles of [from, to) that the sequence holds in this form. */
void spw_kv_forget(struct spw_kv_seq *seq, struct spw_kv_table *l, uint32_t from, uint32_t to);
/* Cuts a table back to n tokens. */
void spw_kv_cut_table(struct spw_kv_seq *seq, struct spw_kv_table *l, uint64_t n);

/* ---- kv_tile.c ---- */

/* What is queued on `after` from now on comes behind what is queued on `before`. */
int spw_kv_order(struct spw_kv *kv, spw_stream before, spw_stream after);
/* Queues a tile's copy, together with those before it if it is adjacent; flush queues the last. */
static inline int spw_kv_gather(struct spw_kv *kv, void *to, const void *from, enum spw_link link,
                                spw_stream s)
{
    return spw_copies_add(&kv->copies, to, from, kv->o.tile_bytes, link, s);
}

static inline int spw_kv_flush_copies(struct spw_kv *kv)
{
    return spw_copies_flush(&kv->copies);
}

/* Frames that a spill may still read become free: `compute` comes behind the spill now. */
void spw_kv_free_frames(struct spw_kv *kv);
/* A frame that work queued on `user` from now on may write; behind `after` in memory, if that is
 * not NULL and the place is free. */
int spw_kv_take_device_frame(struct spw_kv *kv, spw_stream user, const void *after, void **out);
/* A frame that `down` may write. */
int spw_kv_take_host_frame(struct spw_kv *kv, const void *after, void **out);
void spw_kv_put_host_frame(struct spw_kv *kv, void *frame);
int spw_kv_take_disk_frame(struct spw_kv *kv, uint32_t after, uint32_t *out);
void spw_kv_put_disk_frame(struct spw_kv *kv, uint32_t frame); /* an attached one, too */

/* A tile in the given form, with a device frame that `compute` may write. */
int spw_kv_new_tile(struct spw_kv *kv, enum spw_kv_form form, const void *after, uint32_t *out);
/* Adds such a tile at the table's end. */
int spw_kv_add_tile(struct spw_kv_seq *seq, struct spw_kv_table *l, enum spw_kv_form form);
/* One sequence less counts on the tile's device frame; holds the tile. */
void spw_kv_drop_device_ref(struct spw_kv *kv, struct spw_kv_tile *t);
void spw_kv_put_tile(struct spw_kv *kv, uint32_t id, bool counted_on_device);
/* Of a tile that no sequence holds and that is not being written. */
void spw_kv_free_tile(struct spw_kv *kv, uint32_t id);
/* Gives the lower copy back; the tile must not be on its way to the disk. */
void spw_kv_put_lower_copy(struct spw_kv *kv, struct spw_kv_tile *t);

static inline bool spw_kv_has_lower_copy(const struct spw_kv_tile *t)
{
    return t->host || t->disk != SPW_DISK_NONE;
}

/* Whether the tile's lower copy is still to be made. A lost tile has had one; it can be made again
 * only from the device. */
static inline bool spw_kv_is_unwritten(const struct spw_kv_tile *t)
{
    return !spw_kv_has_lower_copy(t) && (t->device || !t->lost);
}

/* Where the tile's bytes are on the device, or NULL: its frame, or one that it could not leave
 * because a write had failed. */
static inline void *spw_kv_on_device(const struct spw_kv *kv, const struct spw_kv_tile *t)
{
    bool stayed = t->host && spw_tier_has(&kv->device, t->host);
    return t->device ? t->device : stayed ? t->host : NULL;
}

/* NULL for the first tile that the layer holds. */
static inline struct spw_kv_tile *spw_kv_tile_before(struct spw_kv *kv,
                                                     const struct spw_kv_table *l, uint32_t tile)
{
    return tile > l->first ? &kv->tiles[l->ids[tile - 1]] : NULL;
}

/* Ids for n tiles of attached frames besides those that all other frames may need. Allocates; tiles
 * may move. */
int spw_kv_extend(struct spw_kv *kv, uint32_t n);

/* ---- kv_load.c ---- */

int spw_kv_reads_open(struct spw_kv *kv);
void spw_kv_reads_close(struct spw_kv *kv);
static inline bool spw_kv_is_reading(const struct spw_kv *kv)
{
    return kv->asked > kv->taken;
}
/* Whether one more read may be under way. */
static inline bool spw_kv_can_read(const struct spw_kv *kv)
{
    return kv->asked - kv->taken < SPW_KV_READS;
}
/* The next read, which is to begin with `tile` and has none yet: it counts from kv->asked++ on. */
struct spw_kv_read *spw_kv_next_read(struct spw_kv *kv, struct spw_kv_load *load, uint32_t tile);
/* Waits for the oldest read. What it has brought into host frames goes up from there, and these
 * back; what came of it is in its load. A tile that is lost is noted. */
void spw_kv_finish_read(struct spw_kv *kv);

/* ---- kv_shrink.c ---- */

/* Waits until nothing is queued and nothing is being written; no frame is held for that then. */
int spw_kv_finish_queued(struct spw_kv *kv);

/* ---- kv_writeback.c ---- */

int spw_kv_writebacks_open(struct spw_kv *kv);
void spw_kv_writebacks_close(struct spw_kv *kv); /* waits for what is under way */
/* Takes the tile's copy on the host, or its device frame, and writes it to `after`'s next frame.
 * Gathers: flush queues what was. */
int spw_kv_write_tile(struct spw_kv *kv, uint32_t id, enum spw_kv_writing from, uint32_t after);
int spw_kv_flush_writebacks(struct spw_kv *kv);
static inline bool spw_kv_is_writing(const struct spw_kv *kv)
{
    return kv->begun > kv->ended;
}
/* Waits for the oldest write, and gives back what it held. Fails only with the device. */
int spw_kv_finish_writeback(struct spw_kv *kv);
/* The same for all whose writes are over; never waits. */
void spw_kv_poll_writebacks(struct spw_kv *kv);
/* Waits until the tile is written. */
int spw_kv_finish_tile(struct spw_kv *kv, const struct spw_kv_tile *t);

#endif
