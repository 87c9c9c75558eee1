/* Spilling and loading: see kv_cache.h, and kv_tile.c for the orders that are numbered here.
 *
 *                  spill                                        load
 *     device --down--> host ==disk==> DISK        DISK ==disk==> host --up--> device
 *     device =========disk==========> DISK        DISK =========disk========> device      (direct)
 *
 * A load from the disk waits: it keeps a few reads in flight and takes them in their order. */
#include "offload/kv/kv_tile.h"

#include <assert.h>

/* ---- down ---- */

/* Waterlines that are to be reached, and the tiles that have something to do with it. */
struct fall {
    uint32_t begin, disk_end, from, to;
};

static struct fall make_fall(const struct spw_kv *kv, const struct spw_kv_layer *l, uint32_t begin,
                             uint32_t disk_end)
{
    struct fall f = {.begin = spw_max_u32(begin, l->begin),
                     .disk_end = spw_min_u32(disk_end, l->end)};
    if (!kv->o.disk || f.disk_end < l->disk_end)
        f.disk_end = l->disk_end;
    f.from = spw_max_u32(l->first, spw_min_u32(l->begin, l->disk_end));
    f.to = spw_max_u32(f.begin, f.disk_end);
    return f;
}

/* What is to happen to tile i. */
static bool leaves_device(const struct spw_kv_layer *l, const struct fall *f,
                          const struct spw_kv_tile *t, uint32_t i)
{
    return i >= l->begin && i < f->begin && !spw_kv_is_below(t);
}

static bool leaves_host(const struct spw_kv_layer *l, const struct fall *f,
                        const struct spw_kv_tile *t, uint32_t i)
{
    /* also one that another sequence spilled while it was on the device for this one */
    return (i >= l->disk_end || i >= l->begin) && i < f->disk_end && t->host;
}

/* Makes the copy below of a tile that has none. */
static int write_down(struct spw_kv *kv, const struct spw_kv_layer *l, const struct fall *f,
                      uint32_t i)
{
    struct spw_kv_tile *t = &kv->tiles[l->ids[i]];
    const struct spw_kv_tile *before = spw_kv_tile_before(kv, l, i);
    bool deep = i < f->disk_end;
    uint32_t after = before ? before->disk : SPW_DISK_NONE;
    if (deep && kv->o.direct)
        return spw_kv_sink_tile(kv, l->ids[i], SPW_KV_SINKING_FROM_DEVICE, after);
    SPW_TRY(spw_kv_take_host_frame(kv, before ? before->host : NULL, &t->host));
    t->ticket = kv->ticket;
    t->lost = 0;
    SPW_TRY(spw_kv_gather(kv, t->host, t->device, SPW_LINK_DEVICE_TO_HOST, kv->o.down));
    return deep ? spw_kv_sink_tile(kv, l->ids[i], SPW_KV_SINKING_FROM_HOST, after) : 0;
}

static int fall(struct spw_kv *kv, struct spw_kv_layer *l, const struct fall *f)
{
    for (uint32_t i = f->from; i < f->to; i++) {
        struct spw_kv_tile *t = &kv->tiles[l->ids[i]];
        const struct spw_kv_tile *before = spw_kv_tile_before(kv, l, i);
        if (leaves_device(l, f, t, i))
            SPW_TRY(write_down(kv, l, f, i));
        else if (leaves_host(l, f, t, i))
            SPW_TRY(spw_kv_sink_tile(kv, l->ids[i], SPW_KV_SINKING_FROM_HOST,
                                     before ? before->disk : SPW_DISK_NONE));
        if (i == l->begin && i < f->begin) {
            l->begin++;
            spw_kv_drop_device_ref(kv, t);
        }
        if (i >= l->disk_end && i < f->disk_end)
            l->disk_end = i + 1;
    }
    l->disk_end = f->disk_end; /* also where the tiles below have been dropped */
    return 0;
}

int spw_kv_spill(struct spw_kv_seq *seq, uint32_t layer, uint32_t begin, uint32_t disk_end)
{
    struct spw_kv *kv = seq->kv;
    struct spw_kv_layer *l = &seq->layers[layer];
    uint64_t to_host, to_disk;
    assert(begin <= l->end && !l->rise.seq);
    spw_kv_count_spill(seq, layer, begin, disk_end, &to_host, &to_disk);
    if (to_host) {
        SPW_TRY(spw_kv_order(kv, kv->o.compute, kv->o.down)); /* 1 */
        kv->ticket++;
    }
    struct fall f = make_fall(kv, l, begin, disk_end);
    int rc = fall(kv, l, &f);
    int copies = spw_kv_flush_copies(kv); /* also what a failure left */
    int sinks = spw_kv_flush_sinks(kv);
    if (!rc && !copies && !sinks)
        rc = spw_kv_take_write_failure(kv);
    return rc ? rc : copies ? copies : sinks;
}

void spw_kv_count_spill(const struct spw_kv_seq *seq, uint32_t layer, uint32_t begin,
                        uint32_t disk_end, uint64_t *to_host, uint64_t *to_disk)
{
    const struct spw_kv *kv = seq->kv;
    const struct spw_kv_layer *l = &seq->layers[layer];
    struct fall f = make_fall(kv, l, begin, disk_end);
    *to_host = *to_disk = 0;
    for (uint32_t i = f.from; i < f.to; i++) {
        const struct spw_kv_tile *t = &kv->tiles[l->ids[i]];
        bool deep = i < f.disk_end;
        if (leaves_device(l, &f, t, i)) {
            *to_host += !(deep && kv->o.direct);
            *to_disk += deep;
        } else if (leaves_host(l, &f, t, i)) {
            ++*to_disk;
        }
    }
}

/* ---- up ---- */

int spw_kv_wait_written(struct spw_kv_seq *seq, uint32_t layer, uint32_t tile)
{
    struct spw_kv *kv = seq->kv;
    const struct spw_kv_tile *t = &kv->tiles[seq->layers[layer].ids[tile]];
    SPW_TRY(spw_kv_finish_tile(kv, t));
    if (!t->host || t->ticket <= kv->up_knows)
        return 0;
    kv->up_knows = kv->ticket;
    return spw_kv_order(kv, kv->o.down, kv->o.up); /* 4 */
}

int spw_kv_queue_read(struct spw_kv *kv, struct spw_kv_read *d)
{
    const struct spw_kv_options *o = &kv->o;
    spw_disk_prepare(o->disk, &d->job, false, d->frame, d->n, d->memory);
    int rc = o->direct ? 0 : spw_kv_order(kv, o->down, o->disk_stream); /* 8 */
    if (!rc)
        rc = spw_disk_submit(o->ops, o->device, &d->job, o->disk_stream);
    if (!rc)
        rc = o->ops->event_record(o->device, d->behind, o->disk_stream);
    if (rc) /* as in spw_kv_flush_sinks */
        o->ops->stream_sync(o->device, o->disk_stream);
    return rc;
}

/* What a read has brought into host frames goes up from there, if it is `good`, and the frames
 * back. */
static int pass_on(struct spw_kv *kv, const uint32_t *ids, const struct spw_kv_read *d, bool good)
{
    uint64_t tile_bytes = kv->o.tile_bytes;
    int rc = 0;
    for (uint32_t i = 0; i < d->n && good && !rc; i++)
        rc = spw_kv_gather(kv, kv->tiles[ids[i]].device, d->memory + i * tile_bytes,
                           SPW_LINK_HOST_TO_DEVICE, kv->o.up);
    int last = spw_kv_flush_copies(kv);
    for (uint32_t i = 0; i < d->n; i++)
        spw_kv_put_host_frame(kv, d->memory + i * tile_bytes);
    return rc ? rc : last;
}

int spw_kv_take_read(struct spw_kv_seq *seq, uint32_t layer, struct spw_kv_read *d)
{
    struct spw_kv *kv = seq->kv;
    int rc = spw_disk_wait(kv->o.ops, kv->o.device, &d->job, d->behind);
    int read = d->job.io.rc;
    if (read && !rc) {
        uint32_t bad = d->job.io.bad_record < d->n ? d->job.io.bad_record : 0;
        spw_kv_note_loss(seq, layer, d->tile + bad, read);
        rc = -EBADMSG;
    }
    int passed = kv->o.direct ? 0 : pass_on(kv, seq->layers[layer].ids + d->tile, d, !read);
    return rc ? rc : passed;
}

/* The reads of one load: of [taken, asked) the n-th is n % SPW_KV_READS, the newest maybe not
 * queued. */
struct rise {
    struct spw_kv_seq *seq;
    uint32_t layer;
    uint64_t taken, asked, queued;
    int rc; /* of reads: -EBADMSG, or the device's */
};

static struct spw_kv_read *nth(const struct rise *r, uint64_t n)
{
    return &r->seq->kv->reads[n % SPW_KV_READS];
}

static int flush_read(struct rise *r)
{
    return r->queued == r->asked ? 0 : spw_kv_queue_read(r->seq->kv, nth(r, r->queued++));
}

/* Waits for the oldest read. Its failure is kept in r->rc: the others must still be waited for. */
static void finish_read(struct rise *r)
{
    int rc = r->queued == r->taken ? flush_read(r) : 0;
    struct spw_kv_read *d = nth(r, r->taken++);
    int taken = spw_kv_take_read(r->seq, r->layer, d);
    if (!r->rc)
        r->rc = rc ? rc : taken;
}

/* A host frame for a read to land in: those of reads and writes that end come back. */
static int take_landing(struct rise *r, void **out)
{
    struct spw_kv *kv = r->seq->kv;
    const uint8_t *after = NULL;
    while (!spw_tier_n_free(&kv->host) && r->taken < r->asked)
        finish_read(r);
    if (r->asked > r->taken) {
        const struct spw_kv_read *d = nth(r, r->asked - 1);
        after = d->memory + (d->n - 1) * kv->o.tile_bytes;
    }
    return spw_kv_take_host_frame(kv, after, out);
}

static int read_tile(struct rise *r, uint32_t tile, const struct spw_kv_tile *t)
{
    struct spw_kv *kv = r->seq->kv;
    void *memory = t->device;
    if (!kv->o.direct)
        SPW_TRY(take_landing(r, &memory));
    if (r->queued < r->asked) {
        struct spw_kv_read *d = nth(r, r->asked - 1);
        if (d->tile + d->n == tile && d->frame + d->n == t->disk && d->n < kv->o.slot_tiles &&
            d->memory + d->n * kv->o.tile_bytes == memory) {
            d->n++;
            return 0;
        }
    }
    int rc = flush_read(r);
    if (!rc && r->asked - r->taken == SPW_KV_READS)
        finish_read(r);
    if (rc) {
        if (!kv->o.direct)
            spw_kv_put_host_frame(kv, memory);
        return rc;
    }
    struct spw_kv_read *d = nth(r, r->asked++);
    d->memory = memory;
    d->frame = t->disk;
    d->tile = tile;
    d->n = 1;
    return 0;
}

/* Queues what one tile that is not on the device needs to be there. */
static int raise_tile(struct rise *r, uint32_t i)
{
    struct spw_kv *kv = r->seq->kv;
    struct spw_kv_layer *l = &r->seq->layers[r->layer];
    struct spw_kv_tile *t = &kv->tiles[l->ids[i]];
    const struct spw_kv_tile *before = spw_kv_tile_before(kv, l, i);
    SPW_TRY(spw_kv_wait_written(r->seq, r->layer, i));
    if (t->host && spw_tier_has(&kv->device, t->host)) {
        t->device = t->host; /* it could not be written */
        return 0;
    }
    if (!spw_kv_is_below(t) || t->lost) {
        spw_kv_note_loss(r->seq, r->layer, i, t->lost);
        return -EBADMSG;
    }
    bool lands = !t->host && kv->o.direct;
    SPW_TRY(spw_kv_take_device_frame(kv, lands ? kv->o.disk_stream : kv->o.up,
                                     before ? before->device : NULL, &t->device));
    if (!t->host)
        return read_tile(r, i, t);
    return spw_kv_gather(kv, t->device, t->host, SPW_LINK_HOST_TO_DEVICE, kv->o.up);
}

static int bring_up(struct spw_kv_seq *seq, uint32_t layer, uint32_t begin, uint32_t end)
{
    struct spw_kv *kv = seq->kv;
    struct rise r = {.seq = seq, .layer = layer};
    int rc = 0;
    for (uint32_t i = begin; i < end && !rc && !r.rc; i++)
        if (!kv->tiles[seq->layers[layer].ids[i]].device)
            rc = raise_tile(&r, i);
    while (r.taken < r.asked)
        finish_read(&r);
    int last = spw_kv_flush_copies(kv);
    return rc ? rc : r.rc ? r.rc : last;
}

/* Nobody counts on these frames; a copy may be on its way to them. */
void spw_kv_give_back(struct spw_kv *kv, struct spw_kv_layer *l, uint32_t begin, uint32_t end)
{
    spw_kv_order(kv, kv->o.up, kv->o.compute); /* or the device is lost */
    for (uint32_t i = begin; i < end; i++) {
        struct spw_kv_tile *t = &kv->tiles[l->ids[i]];
        if (!t->device || t->device_refs)
            continue;
        if (t->device != t->host)
            spw_tier_put(&kv->device, t->device);
        t->device = NULL;
    }
}

/* Frames for n tiles, those that writes hold included. */
static int make_room(struct spw_kv *kv, uint32_t n)
{
    while (n > spw_tier_n_free(&kv->device) + kv->n_draining && kv->o.direct && spw_kv_sinks(kv))
        SPW_TRY(spw_kv_finish_sink(kv));
    return n > spw_tier_n_free(&kv->device) + kv->n_draining ? -ENOMEM : 0;
}

int spw_kv_load(struct spw_kv_seq *seq, uint32_t layer, uint32_t begin)
{
    struct spw_kv *kv = seq->kv;
    struct spw_kv_layer *l = &seq->layers[layer];
    assert(begin >= l->first);
    SPW_TRY(spw_kv_finish_load(seq, layer));
    if (begin >= l->begin)
        return 0;
    uint32_t absent = spw_kv_count_absent(seq, layer, begin, l->begin);
    SPW_TRY(make_room(kv, absent));
    int rc = bring_up(seq, layer, begin, l->begin);
    if (rc) {
        spw_kv_give_back(kv, l, begin, l->begin);
        return rc;
    }
    for (uint32_t i = begin; i < l->begin; i++)
        kv->tiles[l->ids[i]].device_refs++;
    l->begin = begin;
    return absent ? spw_kv_order(kv, kv->o.up, kv->o.compute) : 0; /* 5 */
}
