/* What goes to the disk: see kv_cache.h and kv_tile.h.
 *
 *     spill ---> gathered ---> queued ---> [disk stream] ---> [I/O engine] ---> over
 *                (the newest)                                            (the oldest is looked at)
 *
 * A tile counts as being on the disk from the moment it is gathered; until its write is over, the
 * sink holds the frame that is written from. Sinks end in their order. A tile that nobody wants any
 * more by then is given back by its sink. */
#include "offload/kv/kv_tile.h"

#include <assert.h>

int spw_kv_sinks_open(struct spw_kv *kv)
{
    const struct spw_device_ops *ops = kv->o.ops;
    uint32_t most = kv->o.slot_tiles;
    kv->sinks = spw_alloc_zero(SPW_KV_SINKS, sizeof *kv->sinks);
    kv->sink_ids = spw_alloc_zero((size_t)SPW_KV_SINKS * most, sizeof *kv->sink_ids);
    if (!kv->sinks || !kv->sink_ids)
        return -ENOMEM;
    for (uint32_t i = 0; i < SPW_KV_SINKS; i++) {
        kv->sinks[i].ids = kv->sink_ids + (size_t)i * most;
        SPW_TRY(ops->event_open(kv->o.device, &kv->sinks[i].behind));
    }
    return 0;
}

void spw_kv_sinks_close(struct spw_kv *kv)
{
    while (spw_kv_sinks(kv))
        spw_kv_finish_sink(kv);
    for (uint32_t i = 0; kv->sinks && i < SPW_KV_SINKS; i++)
        if (kv->sinks[i].behind)
            kv->o.ops->event_close(kv->o.device, kv->sinks[i].behind);
    spw_free(kv->sinks);
    spw_free(kv->sink_ids);
}

/* ---- the newest ---- */

static struct spw_kv_sink *nth(struct spw_kv *kv, uint64_t n)
{
    return &kv->sinks[n % SPW_KV_SINKS];
}

/* Its order 6, submission and event. */
static int queue_sink(struct spw_kv *kv, struct spw_kv_sink *s)
{
    bool direct = s->from == SPW_KV_SINKING_FROM_DEVICE;
    spw_run_prepare(&s->run, kv->o.disk, true);
    if (!direct)
        SPW_TRY(spw_kv_flush_copies(kv)); /* into the frames that are written from */
    SPW_TRY(spw_kv_order(kv, direct ? kv->o.compute : kv->o.down, kv->o.disk_stream));
    SPW_TRY(spw_disk_submit(kv->o.ops, kv->o.device, &s->run.job, kv->o.disk_stream));
    return kv->o.ops->event_record(kv->o.device, s->behind, kv->o.disk_stream);
}

int spw_kv_flush_sinks(struct spw_kv *kv)
{
    if (!spw_kv_sinks(kv) || nth(kv, kv->sinking - 1)->queued)
        return 0;
    struct spw_kv_sink *s = nth(kv, kv->sinking - 1);
    s->queued = true;
    int rc = queue_sink(kv, s);
    if (rc) /* the device is lost: the stream has passed the submission, or never will */
        kv->o.ops->stream_sync(kv->o.device, kv->o.disk_stream);
    return rc;
}

static bool extend(const struct spw_kv *kv, struct spw_kv_sink *s, enum spw_kv_sinking from,
                   uint8_t *memory, uint32_t frame)
{
    return !s->queued && s->from == from &&
           spw_run_extend(&s->run, frame, memory, kv->o.tile_bytes, kv->o.slot_tiles);
}

/* The sink that the tile is added to: the newest if the tile follows it, else another one. */
static int gather_sink(struct spw_kv *kv, enum spw_kv_sinking from, uint8_t *memory, uint32_t frame,
                       struct spw_kv_sink **out)
{
    if (!spw_kv_sinks(kv) || !extend(kv, nth(kv, kv->sinking - 1), from, memory, frame)) {
        SPW_TRY(spw_kv_flush_sinks(kv));
        if (kv->sinking - kv->sunk == SPW_KV_SINKS)
            SPW_TRY(spw_kv_finish_sink(kv));
        struct spw_kv_sink *s = nth(kv, kv->sinking++);
        s->from = from;
        s->queued = false;
        s->run.n = 0;
        extend(kv, s, from, memory, frame);
    }
    *out = nth(kv, kv->sinking - 1);
    return 0;
}

int spw_kv_sink_tile(struct spw_kv *kv, uint32_t id, enum spw_kv_sinking from, uint32_t after)
{
    struct spw_kv_tile *t = &kv->tiles[id];
    struct spw_kv_sink *s;
    uint32_t frame;
    uint8_t *memory = from == SPW_KV_SINKING_FROM_HOST ? t->host : t->device;
    if (spw_tier_has(&kv->device, memory))
        from = SPW_KV_SINKING_FROM_DEVICE; /* also what stayed there when a write failed */
    SPW_TRY(spw_kv_take_disk_frame(kv, after, &frame));
    int rc = gather_sink(kv, from, memory, frame, &s);
    if (rc) {
        spw_disk_put(kv->o.disk, frame);
        return rc;
    }
    s->ids[s->run.n - 1] = id;
    t->host = NULL;
    t->disk = frame;
    t->lost = 0;
    t->sinking = from;
    return 0;
}

/* ---- the oldest ---- */

/* Repeats the write of one tile: in its own frame if the failure was another tile's, then in
 * another one. Waits for it: this is rare. */
static int write_again(struct spw_kv *kv, const struct spw_kv_sink *s, uint32_t i,
                       struct spw_kv_tile *t)
{
    struct spw_disk_job job;
    bool bad = s->run.n == 1 || s->run.job.io.bad_record == i;
    for (;; bad = true) {
        SPW_TRY(spw_disk_again(kv->o.disk, bad, &t->disk));
        spw_disk_prepare(kv->o.disk, &job, true, t->disk, 1, s->run.memory + i * kv->o.tile_bytes);
        int rc = spw_disk_run(&job);
        if (!rc || bad)
            return rc;
    }
}

/* The tile is where it was. */
static void stay(struct spw_kv *kv, struct spw_kv_tile *t, void *memory, int rc)
{
    if (rc == -EDQUOT || rc == -ECANCELED)
        spw_disk_put(kv->o.disk, t->disk);
    else
        spw_disk_retire(kv->o.disk, t->disk);
    t->disk = SPW_DISK_NONE;
    t->host = memory;
    t->ticket = 0; /* whole long since */
    if (!kv->write_failure && rc != -ECANCELED)
        kv->write_failure = rc;
}

static void end_tile(struct spw_kv *kv, const struct spw_kv_sink *s, uint32_t i)
{
    uint32_t id = s->ids[i];
    struct spw_kv_tile *t = &kv->tiles[id];
    void *memory = s->run.memory + i * kv->o.tile_bytes;
    int rc = s->run.job.io.rc;
    if (rc && rc != -ECANCELED && t->refs)
        rc = write_again(kv, s, i, t);
    t->sinking = SPW_KV_STILL;
    if (rc && t->refs)
        stay(kv, t, memory, rc);
    else if (s->from == SPW_KV_SINKING_FROM_HOST)
        spw_kv_put_host_frame(kv, memory);
    else if (t->device != memory)
        spw_tier_put(&kv->device, memory);
    if (!t->refs)
        spw_kv_free_tile(kv, id);
}

static void end_sink(struct spw_kv *kv)
{
    const struct spw_kv_sink *s = nth(kv, kv->sunk);
    for (uint32_t i = 0; i < s->run.n; i++)
        end_tile(kv, s, i);
    kv->sunk++;
}

int spw_kv_finish_sink(struct spw_kv *kv)
{
    struct spw_kv_sink *s = nth(kv, kv->sunk);
    int flushed = s->queued ? 0 : spw_kv_flush_sinks(kv);
    int rc = spw_disk_wait(kv->o.ops, kv->o.device, &s->run.job, s->behind);
    end_sink(kv);
    return flushed ? flushed : rc;
}

void spw_kv_poll_sinks(struct spw_kv *kv)
{
    while (spw_kv_sinks(kv) && nth(kv, kv->sunk)->queued &&
           spw_disk_is_over(&nth(kv, kv->sunk)->run.job))
        end_sink(kv);
}

int spw_kv_finish_tile(struct spw_kv *kv, const struct spw_kv_tile *t)
{
    while (t->sinking)
        SPW_TRY(spw_kv_finish_sink(kv));
    return 0;
}

void spw_kv_finish_writes(struct spw_kv *kv)
{
    while (spw_kv_sinks(kv))
        spw_kv_finish_sink(kv); /* a lost device shows soon enough */
}

int spw_kv_take_write_failure(struct spw_kv *kv)
{
    int rc = kv->write_failure;
    kv->write_failure = 0;
    return rc;
}
