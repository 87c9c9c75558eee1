/* A cache begins to quantize while it holds tiles: those that stay exact get an exact form, in
 * frames that lie among the frames of the cache. For kv_shrink.c only.
 *
 *     begin     exact tables are made, and tiles that are on the device go to their exact frames,
 * by swapping frames; the other tables are cut to the tiles that are quantized (shrink)  device
 * frames of quantized tiles become smaller lower     sinks that are on the host or on the disk come
 * to their exact frames (shrink)  frames of lower tiers become smaller end       sinks leave the
 * other tables, too
 *
 * After a failure of any of these the cache can only be closed. Nothing is under way. */
#ifndef SPW_OFFLOAD_KV_KV_SPLIT_H
#define SPW_OFFLOAD_KV_KV_SPLIT_H

#include "offload/kv/kv_shrink.h"

int spw_kv_split_begin(struct spw_kv *kv, const struct spw_kv_shrink *r);
int spw_kv_split_lower(struct spw_kv *kv,
                       const struct spw_kv_shrink *r); /* -EBADMSG: one is lost */
void spw_kv_split_end(const struct spw_kv_shrink *r);

#endif
