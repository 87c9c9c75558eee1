/* Writes to the disk: see kv_cache.h and kv_tile.h.
 *
 *     spill ---> gathered ---> queued ---> [disk stream] ---> [I/O engine] ---> over
 *                (the newest)                                          (the oldest is checked)
 *
 * A tile counts as on the disk from the moment when it is gathered. Until its write is over, the
 * writeback owns the source frame. Writebacks end in their order. If no sequence holds the tile any
 * more, the end of its write frees it. */
#include "offload/kv/kv_tile.h"

#include <assert.h>

int spw_kv_writebacks_open(struct spw_kv *kv)
{
    uint32_t most = kv->o.slot_tiles;
    kv->writebacks = spw_alloc_zero(SPW_KV_WRITEBACKS, sizeof *kv->writebacks);
    kv->writeback_ids = spw_alloc_zero((size_t)SPW_KV_WRITEBACKS * most, sizeof *kv->writeback_ids);
    if (!kv->writebacks || !kv->writeback_ids)
        return -ENOMEM;
    for (uint32_t i = 0; i < SPW_KV_WRITEBACKS; i++) {
        kv->writebacks[i].ids = kv->writeback_ids + (size_t)i * most;
        SPW_TRY(spw_lane_event_open(kv->lane, &kv->writebacks[i].submitted));
    }
    return 0;
}

void spw_kv_writebacks_close(struct spw_kv *kv)
{
    while (spw_kv_is_writing(kv))
        spw_kv_finish_writeback(kv);
    for (uint32_t i = 0; kv->writebacks && i < SPW_KV_WRITEBACKS; i++)
        spw_lane_event_close(kv->lane, kv->writebacks[i].submitted);
    spw_free(kv->writebacks);
    spw_free(kv->writeback_ids);
}

/* ---- the newest ---- */

static struct spw_kv_writeback *nth(struct spw_kv *kv, uint64_t n)
{
    return &kv->writebacks[n % SPW_KV_WRITEBACKS];
}

/* Queues order 6, the submission, and the event of a writeback. */
static int queue_writeback(struct spw_kv *kv, struct spw_kv_writeback *w)
{
    bool direct = w->from == SPW_KV_WRITING_FROM_DEVICE;
    spw_tile_run_prepare(&w->run, kv->o.disk, true);
    if (!direct)
        SPW_TRY(spw_kv_flush_copies(kv)); /* copies into the source frames */
    SPW_TRY(spw_kv_order(kv, direct ? kv->lane->compute : kv->lane->down, kv->lane->disk));
    SPW_TRY(spw_disk_submit(kv->lane, &w->run.job, kv->lane->disk));
    return spw_lane_event_record(kv->lane, w->submitted, kv->lane->disk);
}

int spw_kv_flush_writebacks(struct spw_kv *kv)
{
    if (!spw_kv_is_writing(kv) || nth(kv, kv->begun - 1)->queued)
        return 0;
    struct spw_kv_writeback *w = nth(kv, kv->begun - 1);
    w->queued = true;
    int rc = queue_writeback(kv, w);
    if (rc) /* the device is lost: after this the stream has run the submission, or never will */
        spw_lane_stream_sync(kv->lane, kv->lane->disk);
    return rc;
}

static bool extend(const struct spw_kv *kv, struct spw_kv_writeback *w, enum spw_kv_writing from,
                   uint8_t *memory, uint32_t frame)
{
    return !w->queued && w->from == from &&
           spw_tile_run_extend(&w->run, frame, memory, kv->o.tile_bytes, kv->o.slot_tiles);
}

/* Finds the writeback for the tile: the newest one if the tile follows it, else a new one. */
static int gather_writeback(struct spw_kv *kv, enum spw_kv_writing from, uint8_t *memory,
                            uint32_t frame, struct spw_kv_writeback **out)
{
    if (!spw_kv_is_writing(kv) || !extend(kv, nth(kv, kv->begun - 1), from, memory, frame)) {
        SPW_TRY(spw_kv_flush_writebacks(kv));
        if (kv->begun - kv->ended == SPW_KV_WRITEBACKS)
            SPW_TRY(spw_kv_finish_writeback(kv));
        struct spw_kv_writeback *w = nth(kv, kv->begun++);
        w->from = from;
        w->queued = false;
        w->run.n = 0;
        extend(kv, w, from, memory, frame);
    }
    *out = nth(kv, kv->begun - 1);
    return 0;
}

int spw_kv_write_tile(struct spw_kv *kv, uint32_t id, enum spw_kv_writing from, uint32_t after)
{
    struct spw_kv_tile *t = &kv->tiles[id];
    struct spw_kv_writeback *w;
    uint32_t frame;
    uint8_t *memory = from == SPW_KV_WRITING_FROM_HOST ? t->host : t->device;
    if (spw_tier_has(&kv->device, memory))
        from = SPW_KV_WRITING_FROM_DEVICE; /* also a tile that stayed there after a failed write */
    SPW_TRY(spw_kv_take_disk_frame(kv, after, &frame));
    int rc = gather_writeback(kv, from, memory, frame, &w);
    if (rc) {
        spw_disk_put(kv->o.disk, frame);
        return rc;
    }
    w->ids[w->run.n - 1] = id;
    spw_kv_forget_failure(kv, t);
    t->host = NULL;
    t->disk = frame;
    t->lost = 0;
    t->writing = from;
    return 0;
}

/* ---- the oldest ---- */

/* Repeats the write of one tile: in its own frame if another tile of the writeback has failed, then
 * in another frame. Waits for the write, because this is rare. */
static int write_again(struct spw_kv *kv, const struct spw_kv_writeback *w, uint32_t i,
                       struct spw_kv_tile *t)
{
    struct spw_disk_job job;
    bool bad = w->run.n == 1 || w->run.job.io.bad_record == i;
    for (;; bad = true) {
        SPW_TRY(spw_disk_retry_frame(kv->o.disk, bad, &t->disk));
        spw_disk_prepare(kv->o.disk, &job, true, t->disk, 1, w->run.memory + i * kv->o.tile_bytes);
        int rc = spw_disk_run(&job);
        if (!rc || bad)
            return rc;
    }
}

/* The write has failed for good: the tile stays in its source memory. */
static void stay(struct spw_kv *kv, struct spw_kv_tile *t, void *memory, int rc)
{
    if (rc == -EDQUOT || rc == -ECANCELED)
        spw_disk_put(kv->o.disk, t->disk);
    else
        spw_disk_retire(kv->o.disk, t->disk);
    t->disk = SPW_DISK_NONE;
    t->host = memory;
    t->ticket = 0; /* its spill has ended */
    t->unwritable = rc != -ECANCELED;
    kv->n_unwritable += t->unwritable;
    kv->failure_is_due |= t->unwritable;
}

static void end_tile(struct spw_kv *kv, const struct spw_kv_writeback *w, uint32_t i)
{
    uint32_t id = w->ids[i];
    struct spw_kv_tile *t = &kv->tiles[id];
    void *memory = w->run.memory + i * kv->o.tile_bytes;
    int rc = w->run.job.io.rc;
    if (rc && rc != -ECANCELED && t->refs)
        rc = write_again(kv, w, i, t);
    t->writing = SPW_KV_NOT_WRITING;
    if (rc && rc != -ECANCELED)
        kv->write_failure = rc;
    if (rc && t->refs)
        stay(kv, t, memory, rc);
    else if (w->from == SPW_KV_WRITING_FROM_HOST)
        spw_kv_put_host_frame(kv, memory);
    else if (t->device != memory)
        spw_tier_put(&kv->device, memory);
    if (!t->refs)
        spw_kv_free_tile(kv, id);
}

static void end_writeback(struct spw_kv *kv)
{
    const struct spw_kv_writeback *w = nth(kv, kv->ended);
    for (uint32_t i = 0; i < w->run.n; i++)
        end_tile(kv, w, i);
    kv->ended++;
}

int spw_kv_finish_writeback(struct spw_kv *kv)
{
    struct spw_kv_writeback *w = nth(kv, kv->ended);
    int flushed = w->queued ? 0 : spw_kv_flush_writebacks(kv);
    int rc = spw_disk_wait(kv->lane, &w->run.job, w->submitted);
    end_writeback(kv);
    return flushed ? flushed : rc;
}

void spw_kv_poll_writebacks(struct spw_kv *kv)
{
    while (spw_kv_is_writing(kv) && nth(kv, kv->ended)->queued &&
           spw_disk_is_over(&nth(kv, kv->ended)->run.job))
        end_writeback(kv);
}

int spw_kv_finish_tile(struct spw_kv *kv, const struct spw_kv_tile *t)
{
    while (t->writing)
        SPW_TRY(spw_kv_finish_writeback(kv));
    return 0;
}

void spw_kv_finish_writes(struct spw_kv *kv)
{
    while (spw_kv_is_writing(kv))
        spw_kv_finish_writeback(kv); /* a later call reports a lost device */
}

void spw_kv_write_again(struct spw_kv *kv)
{
    int rc = 0;
    if (!kv->n_unwritable)
        return;
    assert(!kv->loads);
    if (kv->o.disk_to_device) /* copies up from such a frame may be queued, and it will be free */
        rc = spw_kv_order(kv, kv->lane->kv_up, kv->lane->compute);
    for (uint32_t id = 0; id < kv->n_tiles && !rc; id++)
        if (kv->tiles[id].unwritable)
            rc = spw_kv_write_tile(kv, id, SPW_KV_WRITING_FROM_HOST, SPW_DISK_NONE);
    spw_kv_flush_writebacks(kv);
    spw_kv_finish_writes(kv);
    kv->failure_is_due = false;
}

int spw_kv_take_write_failure(struct spw_kv *kv)
{
    bool due = kv->failure_is_due;
    kv->failure_is_due = false;
    return due ? kv->write_failure : 0;
}

bool spw_kv_any_write_failed(const struct spw_kv *kv)
{
    return kv->write_failure;
}

int spw_kv_full(struct spw_kv *kv, int rc)
{
    if (rc != -ENOMEM || !kv->n_unwritable)
        return rc;
    kv->failure_is_due = false;
    return kv->write_failure;
}
