/* Tiles and frames of the KV cache: see kv_cache.h and kv_tile.h. */
#include "offload/kv/kv_tile.h"

#include "base/grow.h"

#include <assert.h>

/* ---- orders between streams ---- */

int spw_kv_order(struct spw_kv *kv, spw_stream before, spw_stream after)
{
    SPW_TRY(spw_lane_event_record(kv->lane, kv->event, before));
    return spw_lane_stream_wait(kv->lane, after, kv->event);
}

/* ---- frames ---- */

void spw_kv_release_free_soon(struct spw_kv *kv)
{
    while (kv->n_free_soon)
        spw_tier_put(&kv->device, kv->free_soon[--kv->n_free_soon]);
}

int spw_kv_take_device_frame(struct spw_kv *kv, spw_stream user, const void *after, void **out)
{
    if (!spw_tier_n_free(&kv->device) && kv->n_free_soon) {
        SPW_TRY(spw_kv_order(kv, kv->lane->down, kv->lane->compute)); /* 2; others follow by 3 */
        spw_kv_release_free_soon(kv);
    }
    while (!spw_tier_n_free(&kv->device) && kv->o.disk_to_device && spw_kv_is_writing(kv))
        SPW_TRY(spw_kv_finish_writeback(kv)); /* 7 */
    if (user != kv->lane->compute)
        SPW_TRY(spw_kv_order(kv, kv->lane->compute, user)); /* 3 */
    return spw_kv_full(kv, spw_tier_take(&kv->device, after, out));
}

int spw_kv_take_host_frame(struct spw_kv *kv, const void *after, void **out)
{
    while (!spw_tier_n_free(&kv->host) && spw_kv_is_writing(kv))
        SPW_TRY(spw_kv_finish_writeback(kv));
    while (!spw_tier_n_free(&kv->host) && spw_kv_is_reading(kv))
        spw_kv_finish_read(kv);
    if (kv->up_may_read) {
        SPW_TRY(spw_kv_order(kv, kv->lane->kv_up, kv->lane->down)); /* 7 */
        kv->up_may_read = false;
    }
    if (!spw_tier_has(&kv->host, after))
        after = NULL; /* none, or one that stayed on the device because a write has failed */
    return spw_kv_full(kv, spw_tier_take(&kv->host, after, out));
}

void spw_kv_put_host_frame(struct spw_kv *kv, void *frame)
{
    spw_tier_put(&kv->host, frame);
    kv->up_may_read = true;
}

int spw_kv_take_disk_frame(struct spw_kv *kv, uint32_t after, uint32_t *out)
{
    int rc;
    while ((rc = spw_disk_take(kv->o.disk, after, out)) == -ENOMEM && spw_kv_is_writing(kv))
        SPW_TRY(
            spw_kv_finish_writeback(kv)); /* perhaps of a tile that no sequence holds any more */
    return spw_kv_full(kv, rc);
}

/* ---- tiles ---- */

int spw_kv_new_tile(struct spw_kv *kv, enum spw_kv_form form, const void *after, uint32_t *out)
{
    uint32_t id = kv->free_tile;
    bool exact = form == SPW_KV_FORM_EXACT && spw_kv_quantizes(kv);
    if (id == SPW_KV_NO_TILE)
        return -ENOMEM;
    void *frame;
    SPW_TRY(exact ? spw_tier_take(&kv->exact, after, &frame)
                  : spw_kv_take_device_frame(kv, kv->lane->compute, after, &frame));
    id = kv->free_tile; /* a write that has ended may have freed other ids */
    kv->free_tile = kv->tiles[id].refs;
    kv->tiles[id] = (struct spw_kv_tile){
        .exact = exact, .device = frame, .disk = SPW_DISK_NONE, .refs = 1, .device_refs = 1};
    *out = id;
    return 0;
}

int spw_kv_add_tile(struct spw_kv_seq *seq, struct spw_kv_table *l, enum spw_kv_form form)
{
    const struct spw_kv_tile *before = spw_kv_tile_before(seq->kv, l, l->end);
    SPW_TRY(spw_kv_new_tile(seq->kv, form, before ? before->device : NULL, &l->ids[l->end]));
    l->end++;
    return 0;
}

void spw_kv_drop_device_ref(struct spw_kv *kv, struct spw_kv_tile *t)
{
    if (--t->device_refs)
        return;
    if (t->host == t->device || t->writing == SPW_KV_WRITING_FROM_DEVICE)
        ; /* the frame is still the lower copy, or a write uses it */
    else if (t->host || t->writing == SPW_KV_WRITING_FROM_HOST)
        kv->free_soon[kv->n_free_soon++] = t->device; /* the spill may still read it */
    else
        spw_tier_put(t->exact ? &kv->exact : &kv->device, t->device);
    t->device = NULL;
}

void spw_kv_put_disk_frame(struct spw_kv *kv, uint32_t frame)
{
    kv->n_attached -= spw_disk_is_attached(kv->o.disk, frame);
    spw_disk_put(kv->o.disk, frame);
}

void spw_kv_put_lower_copy(struct spw_kv *kv, struct spw_kv_tile *t)
{
    assert(!t->writing);
    if (t->host && !spw_tier_has(&kv->device, t->host))
        spw_kv_put_host_frame(kv, t->host);
    else if (t->host != t->device)
        spw_tier_put(&kv->device, t->host);
    if (t->disk != SPW_DISK_NONE)
        spw_kv_put_disk_frame(kv, t->disk);
    if (t->damaged)
        spw_kv_put_disk_frame(kv, t->damaged);
    spw_kv_forget_failure(kv, t);
    t->host = NULL;
    t->disk = SPW_DISK_NONE;
    t->damaged = 0;
    t->lost = 0;
}

void spw_kv_put_tile(struct spw_kv *kv, uint32_t id, bool counted_on_device)
{
    struct spw_kv_tile *t = &kv->tiles[id];
    if (counted_on_device)
        spw_kv_drop_device_ref(kv, t);
    if (--t->refs)
        spw_kv_drop_host_copy(kv, t); /* the others may have no host frames for it */
    else if (!t->writing)
        spw_kv_free_tile(kv, id); /* else the end of its write frees the tile */
}

void spw_kv_drop_host_copy(struct spw_kv *kv, struct spw_kv_tile *t)
{
    if (t->device && t->host && t->host != t->device && t->refs == t->device_refs && !t->writing)
        spw_kv_put_lower_copy(kv, t);
}

void spw_kv_free_tile(struct spw_kv *kv, uint32_t id)
{
    struct spw_kv_tile *t = &kv->tiles[id];
    assert(!t->device && !t->refs);
    spw_kv_put_lower_copy(kv, t);
    t->refs = kv->free_tile;
    kv->free_tile = id;
}

int spw_kv_extend(struct spw_kv *kv, uint32_t n)
{
    const struct spw_kv_options *o = &kv->o;
    uint64_t frames =
        (uint64_t)o->n_device_frames + o->n_exact_frames + o->n_host_frames + o->n_disk_frames;
    uint64_t needed = frames + kv->n_attached + n;
    if (needed <= kv->n_tiles)
        return 0;
    needed += needed / 4; /* more attachments will follow: one for each layer */
    if (needed >= SPW_KV_NO_TILE)
        return -ENOMEM;
    SPW_TRY(spw_resize(&kv->tiles, needed, sizeof *kv->tiles));
    for (uint32_t i = kv->n_tiles; i < needed; i++) {
        kv->tiles[i] = (struct spw_kv_tile){.disk = SPW_DISK_NONE, .refs = kv->free_tile};
        kv->free_tile = i;
    }
    kv->n_tiles = (uint32_t)needed;
    return 0;
}
