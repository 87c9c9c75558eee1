/* The KV cache. A layer of the cache is a slice of a layer of the model
 * (spw_model_config.first_slices of model/config/config.h): most layers of a model have one. For
 * every sequence and layer it has the tiles that are on the device, in a lower tier (the host or
 * the disk), or in both. Forked sequences share tiles by reference. While a tile keeps its copy in
 * a lower tier, it is not written there again. Before tokens are added to the last, unfinished tile
 * of a sequence, this tile is on the device and belongs to the sequence alone.
 *
 * In a layer whose old tiles are quantized a tile has two forms: it begins in its exact form, gets
 * its quantized form when it becomes old, and then loses the exact form. Quantized tiles move
 * between the tiers. Exact tiles stay on the device, in frames of their own, and the first tile
 * (the attention sink) stays exact. Tiles of other layers of such a cache are exact only. In a
 * cache that does not quantize, the exact form is the only one and moves between the tiers.
 *
 * The cache manages frames and orders. The caller decides which tiles are old (quant/residual.h).
 *
 * Owns the table of tiles; borrows lane and disk. One host thread. All moves are queued: kernels on
 * `compute`, spills on `down`, loads on `kv_up`, submissions of reads and writes on `disk`. The
 * cache orders the streams that use the same tile. -ENOMEM: a tier is full (the caller exceeds the
 * plan). If failed writes have left tiles in memory, their failure is returned instead, because
 * these tiles still have the frames. -EDQUOT: the disk's write limit. -EBADMSG: a tile could not be
 * read back; see spw_kv_take_loss. */
#ifndef SPW_OFFLOAD_KV_KV_CACHE_H
#define SPW_OFFLOAD_KV_KV_CACHE_H

#include "offload/kv/tier_disk.h"
#include "offload/kv/waterline.h"

/* Of layers with a state: see state_store.h. */
struct spw_state_options {
    uint64_t bytes;       /* of one layer of one sequence; a multiple of 64 */
    uint32_t n_sequences; /* the most that are open at a time */
    bool stay;            /* states stay on the device */
    void *device_arena, *host_arena, *checkpoint_arena; /* borrowed */
    /* Borrowed, on the device: [sequences][layers with a state][kept_bytes], see state_store.h. */
    void *kept_arena;
    uint64_t kept_bytes;    /* a multiple of 64; 0: no rows are kept */
    uint32_t n_checkpoints; /* [n][layers with a state][bytes], host memory */
    /* Borrowed; NULL: no checkpoint goes to disk. Its frames hold `bytes` each, those of
     * n_disk_checkpoints. */
    struct spw_disk *disk;
    uint32_t n_disk_checkpoints;
};

struct spw_kv_options {
    void *device_arena, *host_arena; /* [frames][tile_bytes], borrowed */
    uint32_t n_device_frames, n_host_frames;
    uint64_t tile_bytes;
    /* Frames of exact tiles; n_exact_frames 0: the cache does not quantize. */
    void *exact_arena; /* [n_exact_frames][exact_tile_bytes], borrowed */
    uint32_t n_exact_frames;
    uint64_t exact_tile_bytes;
    uint32_t n_layers;
    const uint8_t *kinds;  /* [n_layers], enum spw_layer_kind; borrowed */
    uint32_t max_tiles;    /* the most tiles of one layer of one sequence */
    uint32_t slot_tiles;   /* tiles of one transfer to the device, whose frames are adjacent if
                              possible; at least 1 */
    struct spw_disk *disk; /* borrowed; NULL: no disk, and the members below are not used */
    uint32_t n_disk_frames;
    bool disk_to_device; /* the disk reads and writes device frames; else host frames, which are
                            copied */
    struct spw_state_options states;
};

struct spw_kv;
struct spw_kv_seq; /* one sequence's tables */

int spw_kv_open(struct spw_kv **out, const struct spw_lane *lane, const struct spw_kv_options *o);
void spw_kv_close(struct spw_kv *kv); /* sequences must have been closed */

int spw_kv_seq_open(struct spw_kv_seq **out, struct spw_kv *kv);
void spw_kv_seq_close(struct spw_kv_seq *seq);
/* Shares every tile of `from` with `to`, which must be empty, and copies its states. */
int spw_kv_seq_fork(struct spw_kv_seq *to, const struct spw_kv_seq *from);

/* Tiles [first, end) have the form that moves between the tiers. Tiles [begin, end) are on the
 * device. Lower copies of tiles before disk_end are on the disk. */
uint32_t spw_kv_first(const struct spw_kv_seq *seq, uint32_t layer);
uint32_t spw_kv_begin(const struct spw_kv_seq *seq, uint32_t layer);
uint32_t spw_kv_end(const struct spw_kv_seq *seq, uint32_t layer);
uint32_t spw_kv_disk_end(const struct spw_kv_seq *seq, uint32_t layer);
void *spw_kv_device_tile(const struct spw_kv_seq *seq, uint32_t layer, uint32_t tile);
/* Tiles [exact_first, exact_end) have the exact form; so has the sink of a layer whose old tiles
 * are quantized. exact_tile: its address on the device. */
uint32_t spw_kv_exact_first(const struct spw_kv_seq *seq, uint32_t layer);
uint32_t spw_kv_exact_end(const struct spw_kv_seq *seq, uint32_t layer);
void *spw_kv_exact_tile(const struct spw_kv_seq *seq, uint32_t layer, uint32_t tile);
/* The place of a tile's lower copy; NULL or SPW_DISK_NONE: not in this tier. In neither tier: the
 * tile is lost. */
const void *spw_kv_host_tile(const struct spw_kv_seq *seq, uint32_t layer, uint32_t tile);
uint32_t spw_kv_disk_frame(const struct spw_kv_seq *seq, uint32_t layer, uint32_t tile);

/* The end of the tiles of this layer that both sequences hold, in the form that moves between the
 * tiers. They share those tiles that neither of them has dropped. 0: they share none. */
uint32_t spw_kv_shared_end(const struct spw_kv_seq *a, const struct spw_kv_seq *b, uint32_t layer);

/* Makes room for tokens [from, to) of a layer that holds `from` tokens: takes new exact tiles on
 * the device. If the tail tile is shared or has a lower copy, makes one that belongs to the
 * sequence alone. */
int spw_kv_grow(struct spw_kv_seq *seq, uint32_t layer, uint64_t from, uint64_t to);
/* Gives device frames to the quantized form of tiles before `end`, which have become old. The
 * caller fills the frames (spw_kv_device_tile) from the exact form, on `compute`. */
int spw_kv_quantize(struct spw_kv_seq *seq, uint32_t layer, uint32_t end);
/* Raises the layer's waterlines; each may have its value already. Tiles that leave the device and
 * have no lower copy are written to the host; tiles before disk_end are written to the disk. Their
 * device frames become free. Tiles that this call could not write stay in their tier. The host
 * waits only for frames that a write still reads.
 *
 * A write that fails is repeated once, in another frame. If the second write fails, too, the tile
 * stays in the memory that it is written from: on the host, or on the device if the disk writes
 * from there, and the failure is stored. The next call does its work, and then returns the stored
 * failure, once. If a tier is full, the call stops and returns the stored failure instead of
 * -ENOMEM. No tile is lost, and the call may be repeated.
 *
 * -EBADMSG: a tile has lost its lower copy, and the disk is full: nothing has changed, see
 * spw_kv_take_loss. */
int spw_kv_spill(struct spw_kv_seq *seq, uint32_t layer, uint32_t begin, uint32_t disk_end);
/* Waits until no write to the disk is in flight. */
void spw_kv_finish_writes(struct spw_kv *kv);
/* Writes the tiles of all sequences again that failed writes have left in memory, and waits. Tiles
 * that still cannot be written stay there. No load may be in progress. */
void spw_kv_write_again(struct spw_kv *kv);
/* Returns the failure of a write that the next spill would return, or 0, and forgets it. */
int spw_kv_take_write_failure(struct spw_kv *kv);
/* Whether a write has failed for good since the cache was opened, also one of a tile that nobody
 * needs any more: the bytes that were written are then not predicted. */
bool spw_kv_any_write_failed(const struct spw_kv *kv);
/* Drops host copies of tiles [first, ...) that are on the device, if no other sequence reads the
 * copy. */
void spw_kv_drop_copies(struct spw_kv_seq *seq, uint32_t layer, uint32_t first);
/* Lowers `begin`: loads tiles [begin, ...) onto the device. Waits for reads of the disk. -EBADMSG:
 * a tile is lost; nothing else has changed. */
int spw_kv_load(struct spw_kv_seq *seq, uint32_t layer, uint32_t begin);
/* Begins the same load and returns; the load continues beside the computation. It does not begin if
 * the layer has another load, if a tile is shared or is not on the disk, or if there is no room.
 * Until the load is finished the layer does not change, and only finish_load and forget_loads may
 * change it. */
int spw_kv_load_ahead(struct spw_kv_seq *seq, uint32_t layer, uint32_t begin);
bool spw_kv_is_loading(const struct spw_kv_seq *seq, uint32_t layer);
/* Waits until the layer's load is over, if there is one. Loads of other layers continue. Fails like
 * spw_kv_load. */
int spw_kv_finish_load(struct spw_kv_seq *seq, uint32_t layer);
/* Cancels all loads of the sequence, and waits until no read is in flight, also of other
 * sequences. Adds the number of tiles that were
 * read for nothing to *n_read. -EBADMSG: one of these tiles is lost. */
int spw_kv_forget_loads(struct spw_kv_seq *seq, uint64_t *n_read);
/* Drops the exact form of tiles before `first`, except the sink of a layer whose old tiles are
 * quantized. */
void spw_kv_drop(struct spw_kv_seq *seq, uint32_t layer, uint32_t first);
/* Retains the exact tiles of the sequence of n tokens until the next retain, or a cut that needs
 * them: dropped tiles keep their frames, and the sequence can be rolled back to n tokens. A layer
 * with tiles in lower tiers retains nothing. */
void spw_kv_retain(struct spw_kv_seq *seq, uint64_t n);
/* Whether every layer still holds the exact tiles that queries from position n on can see.
 * residency: [kinds], here and in the next calls. */
bool spw_kv_can_truncate(const struct spw_kv_seq *seq, const struct spw_residency *residency,
                         uint64_t n);
/* The largest length up to n that the sequence can be cut back to: n, that of a checkpoint, the
 * retained length, or 0. */
uint64_t spw_kv_reach(const struct spw_kv_seq *seq, const struct spw_residency *residency,
                      uint64_t n);
/* Cuts the sequence back to n tokens. No queued work may use the sequence. -EBADMSG: the checkpoint
 * was damaged and is gone, and nothing has changed: see spw_kv_reach. */
int spw_kv_truncate(struct spw_kv_seq *seq, const struct spw_residency *residency, uint64_t n);
/* The most tokens, at most n, with which a sequence can begin without a checkpoint: the next query
 * begins a tile and, in every layer with a window, a chunk. 0: there are none, or a layer cannot
 * begin without one. */
uint64_t spw_kv_border(const struct spw_residency kinds[SPW_LAYER_KINDS], uint64_t n);

/* Makes the stream kv_up wait until the tile's host copy is complete, unless it has waited already.
 * The host waits for a write of the tile to the disk. */
int spw_kv_wait_written(struct spw_kv_seq *seq, uint32_t layer, uint32_t tile);

/* Whether tiles [begin, end) are complete and can be read without a wait of the host: all have
 * lower copies, and no write to the disk is in flight. False for a tile that a cut has reopened,
 * even if it has an older copy. */
bool spw_kv_is_readable(const struct spw_kv_seq *seq, uint32_t layer, uint32_t begin, uint32_t end);
/* The number of tiles that spw_kv_spill with the same arguments would write to each tier. */
void spw_kv_count_spill(const struct spw_kv_seq *seq, uint32_t layer, uint32_t begin,
                        uint32_t disk_end, uint64_t *to_host, uint64_t *to_disk);

/* A tile whose bytes on the disk are not those that were written: the lowest one of its sequence
 * since the latest take_loss. Its frame is retired. Other sequences that share the tile find it
 * lost when they read it, without I/O. */
struct spw_kv_loss {
    struct spw_kv_seq *seq;
    uint32_t layer, tile;
    int rc;
};

void spw_kv_note_loss(struct spw_kv_seq *seq, uint32_t layer, uint32_t tile, int rc);
/* 0, or the error that lost the tile. */
int spw_kv_lost(const struct spw_kv_seq *seq, uint32_t layer, uint32_t tile);
/* Takes a loss; false: there are no more. */
bool spw_kv_take_loss(struct spw_kv *kv, struct spw_kv_loss *out);

#endif
