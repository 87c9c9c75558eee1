/* The KV cache: for every sequence and layer a table of tiles that lie on the device, on the host,
 * or on both. Tiles are shared by reference between forked sequences; a tile is written down at
 * most once; the last, unfinished tile of a sequence is on the device and its own before it is
 * written to.
 *
 * Owns the tile table; borrows device and streams. One host thread. Everything that moves is
 * queued: `compute` for what kernels read and write, `down` for spills, `up` for what comes back;
 * the cache orders the three where they touch the same tile. -ENOMEM: a tier is full (the plan was
 * passed). */
#ifndef SPW_OFFLOAD_KV_CACHE_H
#define SPW_OFFLOAD_KV_CACHE_H

#include "offload/device.h"
#include "offload/waterline.h"

struct spw_kv_options {
    const struct spw_device_ops *ops;
    struct spw_device *device;
    spw_stream compute, down, up;
    void *device_arena, *host_arena; /* [frames][tile_bytes], borrowed */
    uint32_t n_device_frames, n_host_frames;
    uint64_t tile_bytes;
    uint32_t n_layers;
    const uint8_t *sliding; /* [n_layers], 1: sliding; borrowed */
    uint32_t max_tiles;     /* of one layer of one sequence */
    uint32_t slot_tiles;    /* that come back as one transfer: kept together; at least 1 */
};

struct spw_kv;
struct spw_kv_seq; /* one sequence's tables */

int spw_kv_open(struct spw_kv **out, const struct spw_kv_options *o);
void spw_kv_close(struct spw_kv *kv); /* sequences must have been closed */

int spw_kv_seq_open(struct spw_kv_seq **out, struct spw_kv *kv);
void spw_kv_seq_close(struct spw_kv_seq *seq);
/* `to` must be empty; it shares every tile of `from`. */
void spw_kv_seq_fork(struct spw_kv_seq *to, const struct spw_kv_seq *from);

/* Tiles [first, end) exist, [begin, end) are on the device. */
uint32_t spw_kv_first(const struct spw_kv_seq *seq, uint32_t layer);
uint32_t spw_kv_begin(const struct spw_kv_seq *seq, uint32_t layer);
uint32_t spw_kv_end(const struct spw_kv_seq *seq, uint32_t layer);
void *spw_kv_device_tile(const struct spw_kv_seq *seq, uint32_t layer, uint32_t tile);
const void *spw_kv_host_tile(const struct spw_kv_seq *seq, uint32_t layer, uint32_t tile);

/* Makes room for tokens [from, to) of a layer that holds `from`: new tiles on the device, and a
 * tail tile of its own if it is shared or has a copy below. */
int spw_kv_grow(struct spw_kv_seq *seq, uint32_t layer, uint64_t from, uint64_t to);
/* Raises the layer's waterline: writes down what has no copy below and gives the frames back. */
int spw_kv_spill(struct spw_kv_seq *seq, uint32_t layer, uint32_t begin);
/* Lowers it: brings [begin, ...) back to the device. */
int spw_kv_load(struct spw_kv_seq *seq, uint32_t layer, uint32_t begin);
/* Forgets the tiles below `first`. */
void spw_kv_drop(struct spw_kv_seq *seq, uint32_t layer, uint32_t first);
/* Whether every layer still holds what queries from position n on can see. */
bool spw_kv_can_truncate(const struct spw_kv_seq *seq, uint32_t window, uint64_t n);
/* Cuts back to n tokens; nothing queued may still use the sequence. The tail comes to the device.
 */
void spw_kv_truncate(struct spw_kv_seq *seq, uint64_t n);

/* Makes `up` wait until the tile's copy on the host is whole, if that is not known yet. */
int spw_kv_wait_written(struct spw_kv_seq *seq, uint32_t layer, uint32_t tile);

/* Whether tiles [begin, end) are complete and their copies on the host are made or on their way. A
 * tile that a cut has opened again is not, though an old copy may be there. */
bool spw_kv_is_written(const struct spw_kv_seq *seq, uint32_t layer, uint32_t begin, uint32_t end);

/* Facts for the byte account: tiles of [begin, end) without a copy below; and not on the device. */
uint32_t spw_kv_count_unwritten(const struct spw_kv_seq *seq, uint32_t layer, uint32_t begin,
                                uint32_t end);
uint32_t spw_kv_count_absent(const struct spw_kv_seq *seq, uint32_t layer, uint32_t begin,
                             uint32_t end);

#endif
