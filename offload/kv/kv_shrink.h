/* Shrinks a KV cache in place. It makes every tile that moves between the tiers smaller
 * (requantizes it), or moves tiles of the same size into fewer frames. Frames of T bytes become
 * frames of Q <= T in the same arenas and the same file; attached tiles move into this file, too.
 * Sequences, tables and waterlines stay. Exact tiles of a cache that quantizes may move to a lower
 * address in the device's memory.
 *
 * A cache that does not quantize may begin to do so. Then the divisions say which tiles of each
 * sequence are quantized, and which get an exact form (kv_split.h). The latter are on the device,
 * except the attention sinks.
 *
 * No queued work may use the cache, the prefetch included. 0: every tile has the new form, or was
 * lost on the way to or from the disk; readers find a lost tile as usual. -EIO: the device is lost,
 * and contents are undefined: sequences can be closed or cut to nothing, and the cache can be
 * closed. Other failures change nothing (-ENOMEM: memory, or more tiles than frames; -EDQUOT: the
 * disk's write limit; -EBUSY: attached tiles, which would have to stay), with one exception: a
 * cache that should begin to quantize can only be closed after any failure. Waits for all its work.
 * One host thread. */
#ifndef SPW_OFFLOAD_KV_KV_SHRINK_H
#define SPW_OFFLOAD_KV_KV_SHRINK_H

#include "offload/kv/kv_cache.h"

/* The tiles of one sequence, in layers whose old tiles become quantized. */
struct spw_kv_division {
    struct spw_kv_seq *seq;
    uint32_t end;         /* tiles [1, end) become quantized */
    uint32_t first_exact; /* tiles [first_exact, ...) and the sink stay exact */
};

struct spw_kv_shrink {
    uint64_t tile_bytes; /* Q; a multiple of 4096 if there is a disk */
    /* Frames of Q bytes, in the memory of the old frames or as far as there is memory after
     * them. */
    uint32_t n_device_frames, n_host_frames, n_disk_frames;
    /* The exact frames after the shrink, if the cache quantizes: at their old address or a lower
     * one. If the cache begins to quantize: at multiples of their size from the first device frame
     * on, after the frames of Q bytes. */
    void *exact_arena;
    uint32_t n_exact_frames;
    uint64_t exact_tile_bytes;
    const struct spw_kv_division *divisions; /* of all sequences, if the cache begins to quantize */
    uint32_t n_divisions;
    uint32_t slot_tiles; /* the value after the shrink */
    /* Queues on `compute`: converts T bytes at `from` to Q bytes at `to`, both on the device and
     * not overlapping; equal bytes give equal bytes. NULL: the new form is the first Q bytes of the
     * old one. */
    int (*convert)(void *context, const void *from, void *to);
    void *context;
    void *device_from, *device_to; /* device memory: one tile of T bytes, one exact tile */
    void *host_scratch; /* host memory: one tile of T bytes, if the cache begins to quantize */
    /* With a disk: [n_buffers][T], the buffers of reads and writes, and so the number of requests
     * in flight. Device memory if the cache is disk_to_device, else host memory. */
    void *buffers;
    uint32_t n_buffers;
};

/* The number of copies of tiles that were converted, by tier; n_lost: copies on the disk that could
 * not be. */
struct spw_kv_shrunk {
    uint64_t n_device, n_host, n_disk, n_lost;
};

int spw_kv_shrink(struct spw_kv *kv, const struct spw_kv_shrink *r, struct spw_kv_shrunk *out);

#endif
