/* Tiles from files and to files, for the prefix cache and for saved sessions. Slow calls: they
 * allocate, or the host waits.
 *
 * An attached tile is like a tile that was spilled to the disk, but its frame is in a file of
 * another writer (spw_disk_attach). It is read, checked, shared, loaded and lost like a spilled
 * tile, and never written. */
#ifndef SPW_OFFLOAD_KV_KV_ATTACH_H
#define SPW_OFFLOAD_KV_KV_ATTACH_H

#include "offload/kv/layer_store.h"

/* Adds complete tiles [first, first + n), in the attached frames [frame, frame + n), to a layer
 * that is empty or ends at `first` and is completely on the disk. Both waterlines move to its end.
 * The tiles then own the frames. -ENOMEM, -E2BIG (max_tiles): nothing has changed, and the caller
 * still owns the frames. */
int spw_kv_attach(struct spw_kv_seq *seq, uint32_t layer, uint32_t first, uint32_t frame,
                  uint32_t n);

/* Adds the records of a section from `first` on, up to token `to`, on the device, from host memory
 * [records][bytes of one]. Tiles: the layer has no tile of this form, ends at `first`, or has only
 * an exact sink. Waits until the memory may be used again. -ENOMEM, -E2BIG: nothing has changed. */
int spw_kv_import(struct spw_kv_seq *seq, uint32_t layer, enum spw_snapshot_kind kind,
                  uint32_t first, uint64_t to, const void *memory);

/* Copies records [begin, end) of a section, from any tier, into host memory [end - begin][bytes of
 * one], 4096-byte aligned. Changes nothing. Waits for kernels that write them. Records from the
 * disk are checked. -EBADMSG: a tile is lost (spw_kv_take_loss). */
int spw_kv_export(struct spw_kv_seq *seq, uint32_t layer, enum spw_snapshot_kind kind,
                  uint32_t begin, uint32_t end, void *memory);

#endif
