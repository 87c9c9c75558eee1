/* Requantizes a KV cache in place: makes every tile that moves between the tiers smaller, where it
 * lies; or brings tiles of the same size together in fewer frames. Frames of T bytes become frames
 * of Q <= T in the same arenas and the same file, to which attached tiles move, too. Sequences,
 * tables and waterlines stay. Exact tiles of a cache that quantizes may come down in the device's
 * memory.
 *
 * A cache that does not quantize may begin to: the divisions then say which tiles of each sequence
 * are quantized, and which ones get an exact form (kv_split.h). These are on the device, but for
 * sinks.
 *
 * Nothing queued may use the cache, the prefetch included. 0: every tile is in the new form, or was
 * lost on the way to or from the disk, and then its readers find it lost as always. -EIO: the
 * device is lost, contents are undefined: sequences can be closed or cut to nothing, and the cache
 * be closed. Any other failure: nothing has changed (-ENOMEM: memory, or more tiles than frames;
 * -EDQUOT: the disk's write limit; -EBUSY: attached tiles, which would have to stay). But a cache
 * that was to begin to quantize can only be closed after any failure. Waits for all it does. One
 * host thread. */
#ifndef SPW_OFFLOAD_KV_KV_SHRINK_H
#define SPW_OFFLOAD_KV_KV_SHRINK_H

#include "offload/kv/kv_cache.h"

/* Of a sequence, in layers whose old tiles are quantized from now on. */
struct spw_kv_division {
    struct spw_kv_seq *seq;
    uint32_t end;         /* tiles [1, end) are quantized, */
    uint32_t first_exact; /* and tiles [first_exact, ...) and the sink are exact */
};

struct spw_kv_shrink {
    uint64_t tile_bytes; /* Q; a multiple of 4096 if there is a disk */
    /* Frames of Q bytes, in the room of the old ones or as far as there is memory behind them. */
    uint32_t n_device_frames, n_host_frames, n_disk_frames;
    /* Exact frames from now on, where the cache quantizes: where they are or further down; where it
     * begins to quantize, at multiples of their size behind the first device frame, and behind the
     * frames of Q bytes. */
    void *exact_arena;
    uint32_t n_exact_frames;
    uint64_t exact_tile_bytes;
    const struct spw_kv_division *divisions; /* of all sequences, where it begins to quantize */
    uint32_t n_divisions;
    uint32_t slot_tiles; /* from now on */
    /* Queues on `compute`: T bytes at `from` to Q bytes at `to`, both on the device and apart; the
     * same bytes give the same bytes. NULL: the new form is the first Q bytes of the old one. */
    int (*convert)(void *context, const void *from, void *to);
    void *context;
    void *device_from, *device_to; /* device memory: one tile of T bytes, one exact tile */
    void *host_scratch; /* host memory: one tile of T bytes, where it begins to quantize */
    /* With a disk: [n_buffers][T], what it reads to and writes from; device memory if the cache is
     * direct, else host memory. So many requests are under way together. */
    void *buffers;
    uint32_t n_buffers;
};

/* Copies of tiles that were converted, by tier; n_lost of those on the disk could not be. */
struct spw_kv_shrunk {
    uint64_t n_device, n_host, n_disk, n_lost;
};

int spw_kv_shrink(struct spw_kv *kv, const struct spw_kv_shrink *r, struct spw_kv_shrunk *out);

#endif
