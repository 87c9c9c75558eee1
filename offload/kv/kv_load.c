/* Loads: see kv_cache.h. kv_tile.h lists the numbered orders.
 *
 *     host --up--> device        DISK ==disk==> host --up--> device
 *                                DISK =========disk========> device      (disk_to_device)
 *
 *   loads   [layer 0 | layer 1 | layer 2 | layer 3 ...    in the order in which they began
 *             finished   ^ waited for      ^ reads are queued up to here, SPW_KV_READS in flight
 *
 * A load takes all its device frames at its beginning. So one order serves all its reads, and no
 * read waits for kernels that were queued later. A wait for one load also queues reads of the next
 * loads, so the drive is busy also between two layers. A load that the caller waits for is a load
 * that begins and is finished at once. */
#include "offload/kv/kv_tile.h"

#include <assert.h>

enum {
    READ_BYTES = 2 << 20
}; /* the most bytes of adjacent tiles in one read, but at least one tile */

static struct spw_kv_table *layer_of(const struct spw_kv_load *load)
{
    return &load->seq->tables[load->layer];
}

static struct spw_kv_tile *tile_of(const struct spw_kv_load *load, uint32_t tile)
{
    return &load->seq->kv->tiles[layer_of(load)->ids[tile]];
}

int spw_kv_wait_written(struct spw_kv_seq *seq, uint32_t layer, uint32_t tile)
{
    struct spw_kv *kv = seq->kv;
    const struct spw_kv_tile *t = &kv->tiles[seq->tables[layer].ids[tile]];
    SPW_TRY(spw_kv_finish_tile(kv, t));
    if (!t->host || t->ticket <= kv->up_knows)
        return 0;
    kv->up_knows = kv->ticket;
    return spw_kv_order(kv, kv->lane->down, kv->lane->kv_up); /* 4 */
}

/* ---- reads ---- */

int spw_kv_reads_open(struct spw_kv *kv)
{
    kv->reads = spw_alloc_zero(SPW_KV_READS, sizeof *kv->reads);
    if (!kv->reads)
        return -ENOMEM;
    for (uint32_t i = 0; i < SPW_KV_READS; i++)
        SPW_TRY(spw_lane_event_open(kv->lane, &kv->reads[i].submitted));
    return 0;
}

void spw_kv_reads_close(struct spw_kv *kv)
{
    assert(!kv->loads && !spw_kv_is_reading(kv));
    for (uint32_t i = 0; kv->reads && i < SPW_KV_READS; i++)
        spw_lane_event_close(kv->lane, kv->reads[i].submitted);
    spw_free(kv->reads);
}

struct spw_kv_read *spw_kv_next_read(struct spw_kv *kv, struct spw_kv_load *load, uint32_t tile)
{
    struct spw_kv_read *read = &kv->reads[kv->queued % SPW_KV_READS];
    assert(spw_kv_can_read(kv));
    read->load = load;
    read->run.n = 0;
    read->run.tile = tile;
    return read;
}

static int submit_read(struct spw_kv *kv, struct spw_kv_read *read)
{
    const struct spw_kv_options *o = &kv->o;
    spw_tile_run_prepare(&read->run, o->disk, false);
    int rc = o->disk_to_device ? 0 : spw_kv_order(kv, kv->lane->down, kv->lane->disk); /* 8 */
    if (!rc)
        rc = spw_disk_submit(kv->lane, &read->run.job, kv->lane->disk);
    if (!rc)
        rc = spw_lane_event_record(kv->lane, read->submitted, kv->lane->disk);
    if (rc) /* as in spw_kv_flush_writebacks */
        spw_lane_stream_sync(kv->lane, kv->lane->disk);
    return rc;
}

/* After a read into host frames: queues the copies to the device, if the read was `good`, and frees
 * the host frames. */
static int pass_on(struct spw_kv *kv, const uint32_t *ids, const struct spw_tile_run *run,
                   bool good)
{
    uint64_t tile_bytes = kv->o.tile_bytes;
    int rc = 0;
    for (uint32_t i = 0; i < run->n && good && !rc; i++)
        rc = spw_kv_gather(kv, kv->tiles[ids[i]].device, run->memory + i * tile_bytes,
                           SPW_LINK_HOST_TO_DEVICE, kv->lane->kv_up);
    int last = spw_kv_flush_copies(kv);
    for (uint32_t i = 0; i < run->n; i++)
        spw_kv_put_host_frame(kv, run->memory + i * tile_bytes);
    return rc ? rc : last;
}

void spw_kv_finish_read(struct spw_kv *kv)
{
    struct spw_kv_read *read = &kv->reads[kv->taken++ % SPW_KV_READS];
    struct spw_kv_load *load = read->load;
    int rc = spw_disk_wait(kv->lane, &read->run.job, read->submitted);
    int failed = read->run.job.io.rc;
    if (failed && !rc) {
        spw_kv_note_loss(load->seq, load->layer, spw_tile_run_failed_tile(&read->run), failed);
        rc = -EBADMSG;
    }
    int passed = 0;
    if (spw_tier_has(&kv->host, read->run.memory))
        passed = pass_on(kv, layer_of(load)->ids + read->run.tile, &read->run, !failed);
    load->n_reads--;
    if (!load->rc)
        load->rc = rc ? rc : passed;
}

/* ---- queueing reads ---- */

/* Whether a tile of an unfinished load must be read from the disk. */
static bool needs_read(const struct spw_kv_tile *t)
{
    return t->device && !t->device_refs && !t->host;
}

static void skip_present(struct spw_kv_load *load)
{
    while (load->queued < load->end && !needs_read(tile_of(load, load->queued)))
        load->queued++;
}

/* *out: the destination of the next tile of a read; NULL: there is no frame. */
static int take_place(struct spw_kv *kv, const struct spw_tile_run *run,
                      const struct spw_kv_tile *t, void **out)
{
    *out = kv->o.disk_to_device ? t->device : NULL;
    if (kv->o.disk_to_device || !spw_tier_n_free(&kv->host))
        return 0;
    return spw_kv_take_host_frame(kv, run->n ? run->memory + (run->n - 1) * kv->o.tile_bytes : NULL,
                                  out);
}

/* Queues one read of the load's next tiles; *none: no frame is free for it. */
static int queue_next_read(struct spw_kv *kv, struct spw_kv_load *load, bool *none)
{
    struct spw_kv_read *read = spw_kv_next_read(kv, load, load->queued);
    uint32_t most = (uint32_t)spw_max_u64(READ_BYTES / kv->o.tile_bytes, 1);
    int rc = 0;
    for (; load->queued < load->end && needs_read(tile_of(load, load->queued)); load->queued++) {
        const struct spw_kv_tile *t = tile_of(load, load->queued);
        void *memory = NULL;
        rc = take_place(kv, &read->run, t, &memory);
        if (!memory)
            break;
        if (spw_tile_run_extend(&read->run, t->disk, memory, kv->o.tile_bytes, most))
            continue;
        if (!kv->o.disk_to_device)
            spw_kv_put_host_frame(kv, memory);
        break;
    }
    skip_present(load);
    *none = !read->run.n;
    if (*none)
        return rc;
    kv->queued++;
    load->n_reads++;
    return submit_read(kv, read);
}

/* Queues as many reads as may be in flight, those of the oldest loads first. */
static int queue_reads(struct spw_kv *kv)
{
    bool none = false;
    for (struct spw_kv_load *load = kv->loads; load; load = load->next)
        while (load->queued < load->end && !load->rc) {
            if (!spw_kv_can_read(kv))
                return 0;
            SPW_TRY(queue_next_read(kv, load, &none));
            if (none)
                return 0;
        }
    return 0;
}

/* ---- beginning ---- */

/* Gives tile i a device frame for its lower copy, if the tile has none. */
static int take_frame(struct spw_kv_seq *seq, uint32_t layer, uint32_t i)
{
    struct spw_kv *kv = seq->kv;
    const struct spw_kv_table *table = &seq->tables[layer];
    struct spw_kv_tile *t = &kv->tiles[table->ids[i]];
    const struct spw_kv_tile *before = spw_kv_tile_before(kv, table, i);
    if (t->device)
        return 0;
    SPW_TRY(spw_kv_wait_written(seq, layer, i));
    if (t->host && spw_tier_has(&kv->device, t->host)) {
        t->device =
            t->host; /* a write to the disk has failed: the lower copy is in the device's memory */
        return 0;
    }
    if (!spw_kv_has_lower_copy(t)) {
        spw_kv_note_loss(seq, layer, i, t->lost);
        return -EBADMSG;
    }
    return spw_kv_take_device_frame(kv, kv->lane->compute, before ? before->device : NULL,
                                    &t->device);
}

/* Queues the copies of tiles that are on the host, after the kernels that used the frames. Reads of
 * other tiles from the disk wait for these kernels, too. */
static int fill_from_host(struct spw_kv *kv, const struct spw_kv_table *table, uint32_t begin)
{
    uint32_t n = 0;
    if (kv->o.disk)
        SPW_TRY(spw_kv_order(kv, kv->lane->compute,
                             kv->o.disk_to_device ? kv->lane->disk : kv->lane->kv_up)); /* 3 */
    for (uint32_t i = begin; i < table->begin; i++) {
        const struct spw_kv_tile *t = &kv->tiles[table->ids[i]];
        if (t->device_refs || !t->host || t->host == t->device)
            continue;
        if (!n++)
            SPW_TRY(spw_kv_order(kv, kv->lane->compute, kv->lane->kv_up)); /* 3 */
        SPW_TRY(spw_kv_gather(kv, t->device, t->host, SPW_LINK_HOST_TO_DEVICE, kv->lane->kv_up));
    }
    SPW_TRY(spw_kv_flush_copies(kv));
    return n ? spw_kv_order(kv, kv->lane->kv_up, kv->lane->compute) : 0; /* 5 */
}

/* Frees the frames of a load that has failed or was cancelled. A copy may still write them. */
static void give_back(struct spw_kv *kv, struct spw_kv_table *table, uint32_t begin, uint32_t end)
{
    spw_kv_order(kv, kv->lane->kv_up, kv->lane->compute); /* fails only if the device is lost */
    for (uint32_t i = begin; i < end; i++) {
        struct spw_kv_tile *t = &kv->tiles[table->ids[i]];
        if (!t->device || t->device_refs)
            continue;
        if (t->device != t->host)
            spw_tier_put(&kv->device, t->device);
        t->device = NULL;
    }
}

static int begin_load(struct spw_kv_seq *seq, uint32_t layer, uint32_t begin)
{
    struct spw_kv *kv = seq->kv;
    struct spw_kv_table *table = &seq->tables[layer];
    int rc = 0;
    for (uint32_t i = begin; i < table->begin && !rc; i++)
        rc = take_frame(seq, layer, i);
    rc = rc ? rc : fill_from_host(kv, table, begin);
    if (rc) {
        spw_kv_flush_copies(kv); /* what a failure left */
        give_back(kv, table, begin, table->begin);
        return rc;
    }
    table->load = (struct spw_kv_load){
        .seq = seq, .layer = layer, .begin = begin, .end = table->begin, .queued = begin};
    skip_present(&table->load);
    struct spw_kv_load **at = &kv->loads;
    while (*at)
        at = &(*at)->next;
    *at = &table->load;
    return queue_reads(kv);
}

/* Whether the tile is on the disk only and no other sequence holds it. */
static bool is_at_rest(const struct spw_kv_tile *t)
{
    return t->refs == 1 && !t->device && !t->host && !t->writing && t->disk != SPW_DISK_NONE;
}

static bool can_begin(const struct spw_kv *kv, const struct spw_kv_table *table, uint32_t begin)
{
    if (!kv->o.disk || table->load.seq || begin >= table->begin ||
        table->begin - begin > spw_tier_n_free(&kv->device) + kv->n_free_soon)
        return false;
    for (uint32_t i = begin; i < table->begin; i++)
        if (!is_at_rest(&kv->tiles[table->ids[i]]))
            return false;
    return true;
}

int spw_kv_load_ahead(struct spw_kv_seq *seq, uint32_t layer, uint32_t begin)
{
    return can_begin(seq->kv, &seq->tables[layer], begin) ? begin_load(seq, layer, begin) : 0;
}

bool spw_kv_is_loading(const struct spw_kv_seq *seq, uint32_t layer)
{
    return seq->tables[layer].load.seq;
}

/* ---- finishing ---- */

static void end(struct spw_kv *kv, struct spw_kv_load *load)
{
    struct spw_kv_load **at = &kv->loads;
    while (*at != load)
        at = &(*at)->next;
    *at = load->next;
    load->seq = NULL;
}

/* Waits for the oldest read or write, whose frames another read can then use. */
static int wait_for_oldest(struct spw_kv *kv)
{
    if (spw_kv_is_reading(kv)) {
        spw_kv_finish_read(kv);
        return 0;
    }
    return spw_kv_is_writing(kv) ? spw_kv_finish_writeback(kv) : spw_kv_full(kv, -ENOMEM);
}

int spw_kv_finish_load(struct spw_kv_seq *seq, uint32_t layer)
{
    struct spw_kv *kv = seq->kv;
    struct spw_kv_table *table = &seq->tables[layer];
    struct spw_kv_load *load = &table->load;
    int rc = 0;
    if (!load->seq)
        return 0;
    while (!rc && (load->n_reads || (load->queued < load->end && !load->rc))) {
        rc = queue_reads(kv);
        if (!rc)
            rc = wait_for_oldest(kv);
    }
    while (load->n_reads) /* the device is lost */
        spw_kv_finish_read(kv);
    rc = rc ? rc : load->rc;
    assert(table->begin == load->end);
    end(kv, load);
    if (rc) {
        give_back(kv, table, load->begin, load->end);
        return rc;
    }
    for (uint32_t i = load->begin; i < load->end; i++)
        kv->tiles[table->ids[i]].device_refs++;
    table->begin = load->begin;
    SPW_TRY(queue_reads(kv));
    return kv->o.disk_to_device ? 0 : spw_kv_order(kv, kv->lane->kv_up, kv->lane->compute); /* 5 */
}

int spw_kv_load(struct spw_kv_seq *seq, uint32_t layer, uint32_t begin)
{
    const struct spw_kv_table *table = &seq->tables[layer];
    assert(begin >= table->first);
    SPW_TRY(spw_kv_finish_load(seq, layer));
    if (begin >= table->begin)
        return 0;
    int rc = begin_load(seq, layer, begin);
    int finished = spw_kv_finish_load(seq, layer); /* also ends loads that a lost device has left */
    return rc ? rc : finished;
}

int spw_kv_forget_loads(struct spw_kv_seq *seq, uint64_t *n_read)
{
    struct spw_kv *kv = seq->kv;
    int rc = 0;
    while (spw_kv_is_reading(kv))
        spw_kv_finish_read(kv);
    for (uint32_t i = 0; i < kv->o.n_layers; i++) {
        struct spw_kv_load *load = &seq->tables[i].load;
        if (!load->seq)
            continue;
        *n_read += load->queued - load->begin;
        rc = rc ? rc : load->rc;
        end(kv, load);
        give_back(kv, &seq->tables[i], load->begin, load->end);
    }
    return rc;
}
