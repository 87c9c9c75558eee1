/* A cache begins to quantize while it holds tiles: tiles that stay exact get an exact form, in
 * frames among the frames of the cache. For kv_shrink.c only. The steps, in order:
 *
 *   begin   makes the exact tables; moves tiles that are on the device to their exact frames, by
 *           swapping frames; cuts the other tables to the tiles that become quantized
 *           (then kv_shrink.c makes the device frames of quantized tiles smaller)
 *   lower   loads attention sinks from the host or the disk into their exact frames
 *           (then kv_shrink.c makes the frames of lower tiers smaller)
 *   end     removes the sinks from the other tables
 *
 * After a failure of any step the cache can only be closed. No work may be queued. */
#ifndef SPW_OFFLOAD_KV_KV_SPLIT_H
#define SPW_OFFLOAD_KV_KV_SPLIT_H

#include "offload/kv/kv_shrink.h"

int spw_kv_split_begin(struct spw_kv *kv, const struct spw_kv_shrink *r);
int spw_kv_split_lower(struct spw_kv *kv,
                       const struct spw_kv_shrink *r); /* -EBADMSG: a sink is lost */
void spw_kv_split_end(const struct spw_kv_shrink *r);

#endif
