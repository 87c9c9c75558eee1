/* Tiles that come from files and go to files, for the prefix cache and for saved sessions. Slow
 * calls: they allocate, or the host waits.
 *
 * Attached tiles are like tiles that were spilled to the disk, only that their frames lie in files
 * of others (spw_disk_attach): they are read, checked, shared, loaded and lost like those, and
 * never written. */
#ifndef SPW_OFFLOAD_KV_KV_ATTACH_H
#define SPW_OFFLOAD_KV_KV_ATTACH_H

#include "offload/kv/kv_cache.h"

/* Adds tiles [first, first + n), complete, in the attached frames [frame, frame + n), to a layer
 * that is empty or ends at `first`, all of it on the disk. Both waterlines end up at its end. The
 * frames are the tiles' from then on, and given back by them. -ENOMEM, or -E2BIG (max_tiles):
 * nothing has changed, and they are still the caller's. */
int spw_kv_attach(struct spw_kv_seq *seq, uint32_t layer, uint32_t first, uint32_t frame,
                  uint32_t n);

/* Adds tiles [first, ...) up to token `to` on the device, in the given form, from memory
 * [tiles][bytes of a tile in this form] of the host. The layer has no tile of this form, ends at
 * `first`, or has nothing but an exact sink. Waits until the memory may be used again. -ENOMEM,
 * -E2BIG: nothing has changed. */
int spw_kv_import(struct spw_kv_seq *seq, uint32_t layer, enum spw_kv_form form, uint32_t first,
                  uint64_t to, const void *memory);

/* Copies the bytes of tiles [begin, end) in the given form, wherever they lie, into memory
 * [end - begin][bytes of a tile in this form] of the host, 4096-byte aligned. Changes nothing.
 * Waits for kernels that write the tiles. Tiles that come from the disk are checked. -EBADMSG: a
 * tile is lost (spw_kv_take_loss). */
int spw_kv_export(struct spw_kv_seq *seq, uint32_t layer, enum spw_kv_form form, uint32_t begin,
                  uint32_t end, void *memory);

#endif
