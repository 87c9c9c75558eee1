/* The KV cache: for every sequence and layer a table of tiles that lie on the device, in a lower
 * tier (the host or the disk), or in both. Tiles are shared by reference between forked
 * sequences; a tile is written to each tier at most once; the last, unfinished tile of a sequence
 * is on the device and its own before it is written to.
 *
 * Owns the tile table; borrows device, streams and disk. One host thread. Everything that moves is
 * queued: `compute` for what kernels read and write, `down` for spills, `up` for what comes back,
 * `disk_stream` for the submissions of reads and writes; the cache orders them where they touch the
 * same tile. -ENOMEM: a tier is full (the plan was passed). -EDQUOT: the disk's write limit.
 * -EBADMSG: a tile could not be read back; see spw_kv_take_loss. */
#ifndef SPW_OFFLOAD_KV_KV_CACHE_H
#define SPW_OFFLOAD_KV_KV_CACHE_H

#include "offload/device/device.h"
#include "offload/kv/tier_disk.h"
#include "offload/kv/waterline.h"

struct spw_kv_options {
    const struct spw_device_ops *ops;
    struct spw_device *device;
    spw_stream compute, down, up;
    void *device_arena, *host_arena; /* [frames][tile_bytes], borrowed */
    uint32_t n_device_frames, n_host_frames;
    uint64_t tile_bytes;
    uint32_t n_layers;
    const uint8_t *kinds; /* [n_layers], enum spw_layer_kind; borrowed */
    uint32_t max_tiles;   /* of one layer of one sequence, those before first_tile included */
    uint32_t first_tile;  /* 0 or 1: layers start here, the tiles before are another cache's */
    /* Full layers keep the sink (tile 0) on the device when the tiles behind it are dropped, and
     * are read as quant/residual.h says. Neither host nor disk then, and no first_tile. */
    bool keeps_sink;
    uint64_t residual_tiles; /* of keeps_sink: the window */
    uint32_t slot_tiles;     /* that come back as one transfer: kept together; at least 1 */
    struct spw_disk *disk;   /* borrowed; NULL: none, and the rest is not looked at */
    spw_stream disk_stream;
    uint32_t n_disk_frames;
    bool direct; /* the disk reads and writes device frames; else it goes by way of host frames */
};

struct spw_kv;
struct spw_kv_seq; /* one sequence's tables */

int spw_kv_open(struct spw_kv **out, const struct spw_kv_options *o);
void spw_kv_close(struct spw_kv *kv); /* sequences must have been closed */

int spw_kv_seq_open(struct spw_kv_seq **out, struct spw_kv *kv);
void spw_kv_seq_close(struct spw_kv_seq *seq);
/* `to` must be empty; it shares every tile of `from`. */
void spw_kv_seq_fork(struct spw_kv_seq *to, const struct spw_kv_seq *from);

/* Tiles [first, end) exist, [begin, end) are on the device; those below disk_end go to the disk.
 * A sink that was kept exists besides. */
uint32_t spw_kv_first(const struct spw_kv_seq *seq, uint32_t layer);
uint32_t spw_kv_begin(const struct spw_kv_seq *seq, uint32_t layer);
uint32_t spw_kv_end(const struct spw_kv_seq *seq, uint32_t layer);
uint32_t spw_kv_disk_end(const struct spw_kv_seq *seq, uint32_t layer);
void *spw_kv_device_tile(const struct spw_kv_seq *seq, uint32_t layer, uint32_t tile);
/* Where a tile's lower copy is: NULL or SPW_DISK_NONE if it is not there. Neither: it is lost. */
const void *spw_kv_host_tile(const struct spw_kv_seq *seq, uint32_t layer, uint32_t tile);
uint32_t spw_kv_disk_frame(const struct spw_kv_seq *seq, uint32_t layer, uint32_t tile);

/* Makes room for tokens [from, to) of a layer that holds `from`: new tiles on the device, and a
 * tail tile of its own if it is shared or has a lower copy. */
int spw_kv_grow(struct spw_kv_seq *seq, uint32_t layer, uint64_t from, uint64_t to);
/* Raises the layer's waterlines, of which either may be there already: writes down tiles that have
 * no lower copy and gives the frames back; what lies below disk_end goes on to the disk. Tiles that
 * this call could not write stay in their tier. The host waits only where frames are still being
 * written from.
 *
 * A write that fails is repeated once, elsewhere. If that fails too, the tile stays on the host (a
 * device frame, if it went down directly), and the next call returns the failure, having done what
 * it was to do: nothing is lost, and the same call may be repeated.
 *
 * -EBADMSG: a tile has lost its lower copy, and the disk is full: nothing has changed, see
 * spw_kv_take_loss. */
int spw_kv_spill(struct spw_kv_seq *seq, uint32_t layer, uint32_t begin, uint32_t disk_end);
/* Waits until nothing is being written to the disk. A write that failed is told by the next spill,
 * or here: 0, or its failure, once. */
void spw_kv_finish_writes(struct spw_kv *kv);
int spw_kv_take_write_failure(struct spw_kv *kv);
/* Gives back the copies on the host of tiles that are on the device and that no other sequence
 * reads there. */
void spw_kv_drop_copies(struct spw_kv_seq *seq);
/* Lowers `begin`: brings [begin, ...) back to the device. Waits for what comes from the disk.
 * -EBADMSG: a tile is lost; nothing has changed but that. */
int spw_kv_load(struct spw_kv_seq *seq, uint32_t layer, uint32_t begin);
/* The same beside the computation: begins it and returns; one at a time for a layer, none with
 * tiles that are shared or elsewhere than on the disk, or without room. Until it is finished the
 * layer is what it was, and is only finished or forgotten. *begun: whether it was begun. */
int spw_kv_load_ahead(struct spw_kv_seq *seq, uint32_t layer, uint32_t begin, bool *begun);
bool spw_kv_is_loading(const struct spw_kv_seq *seq, uint32_t layer);
/* Waits until the layer's load has come to its end, if one goes on; those of other layers go on.
 * As spw_kv_load, which begins with it. */
int spw_kv_finish_load(struct spw_kv_seq *seq, uint32_t layer);
/* Gives up those that go on; waits for their reads. *n_read gets so many tiles more, which those
 * have brought up for nothing. -EBADMSG: one of them is lost. */
int spw_kv_forget_loads(struct spw_kv_seq *seq, uint64_t *n_read);
/* Forgets the tiles below `first`, but for a sink that is kept. */
void spw_kv_drop(struct spw_kv_seq *seq, uint32_t layer, uint32_t first);
/* Pins the tiles of the sequence of n tokens until the next pin or a cut: they stay although they
 * are dropped, and the sequence can be rolled back to n tokens. A layer with tiles off the device
 * pins nothing. */
void spw_kv_pin(struct spw_kv_seq *seq, uint64_t n);
/* Whether every layer still holds what queries from position n on can see. residency: [kinds] */
bool spw_kv_can_truncate(const struct spw_kv_seq *seq, const struct spw_residency *residency,
                         uint64_t n);
/* The most tokens up to n that it can be cut back to: n, the pinned length, or none. */
uint64_t spw_kv_reach(const struct spw_kv_seq *seq, const struct spw_residency *residency,
                      uint64_t n);
/* Cuts back to n tokens, or to where layers start; nothing queued may still use the sequence. */
void spw_kv_truncate(struct spw_kv_seq *seq, uint64_t n);

/* Makes `up` wait until the tile's copy on the host is whole, if that is not known yet; of a tile
 * on the disk, waits for its write. */
int spw_kv_wait_written(struct spw_kv_seq *seq, uint32_t layer, uint32_t tile);

/* Whether tiles [begin, end) are complete and their lower copies are made or on their way. A tile
 * that a cut has opened again is not, though an old copy may be there. */
bool spw_kv_is_written(const struct spw_kv_seq *seq, uint32_t layer, uint32_t begin, uint32_t end);
/* Whether they could be read without waiting on the host: written, none on its way to the disk. */
bool spw_kv_is_readable(const struct spw_kv_seq *seq, uint32_t layer, uint32_t begin, uint32_t end);

/* Tiles of [begin, end) without a lower copy; and not on the device. */
uint32_t spw_kv_count_unwritten(const struct spw_kv_seq *seq, uint32_t layer, uint32_t begin,
                                uint32_t end);
uint32_t spw_kv_count_absent(const struct spw_kv_seq *seq, uint32_t layer, uint32_t begin,
                             uint32_t end);
/* Tiles that spw_kv_spill with the same arguments would bring to each tier. */
void spw_kv_count_spill(const struct spw_kv_seq *seq, uint32_t layer, uint32_t begin,
                        uint32_t disk_end, uint64_t *to_host, uint64_t *to_disk);

/* A tile that did not come back from the disk as it went down: the lowest of its sequence since
 * this was last asked. Its frame is retired. Every sequence that shares it finds it lost, at once
 * and with no I/O, when it reads it. */
struct spw_kv_loss {
    struct spw_kv_seq *seq;
    uint32_t layer, tile;
    int rc;
};

void spw_kv_note_loss(struct spw_kv_seq *seq, uint32_t layer, uint32_t tile, int rc);
/* 0, or what happened to a tile that was lost. */
int spw_kv_lost(const struct spw_kv_seq *seq, uint32_t layer, uint32_t tile);
/* false: no more. */
bool spw_kv_take_loss(struct spw_kv *kv, struct spw_kv_loss *out);

#endif
