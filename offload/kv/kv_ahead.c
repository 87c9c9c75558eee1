/* Loads that go on beside the computation: see kv_cache.h, and kv_tile.c for the orders that are
 * numbered here.
 *
 *   loads   [layer 0 | layer 1 | layer 2 | layer 3 ...    in the order in which they began
 *             finished   ^ waited for      ^ asked as far as here: SPW_KV_READS are under way
 *
 * A load has all its device frames from the beginning, so that one order serves all its reads: none
 * has to wait for kernels that were queued since. Whoever waits for one load asks for more of the
 * next ones meanwhile, so that the drive's queue does not run dry between layers. */
#include "offload/kv/kv_tile.h"

#include <assert.h>

enum { READ_BYTES = 2 << 20 }; /* of adjacent tiles that are one read, unless one tile has more */

static struct spw_kv_layer *layer_of(const struct spw_kv_rise *r)
{
    return &r->seq->layers[r->layer];
}

static struct spw_kv_tile *tile_of(const struct spw_kv_rise *r, uint32_t tile)
{
    return &r->seq->kv->tiles[layer_of(r)->ids[tile]];
}

int spw_kv_ahead_open(struct spw_kv *kv)
{
    struct spw_kv_ahead *a = &kv->ahead;
    a->reads = spw_alloc_zero(SPW_KV_READS, sizeof *a->reads);
    if (!a->reads)
        return -ENOMEM;
    for (uint32_t i = 0; i < SPW_KV_READS; i++)
        SPW_TRY(kv->o.ops->event_open(kv->o.device, &a->reads[i].behind));
    return 0;
}

void spw_kv_ahead_close(struct spw_kv *kv)
{
    struct spw_kv_ahead *a = &kv->ahead;
    assert(!a->first && a->taken == a->asked);
    for (uint32_t i = 0; a->reads && i < SPW_KV_READS; i++)
        if (a->reads[i].behind)
            kv->o.ops->event_close(kv->o.device, a->reads[i].behind);
    spw_free(a->reads);
}

/* ---- asking ---- */

/* Where one more tile of a read lands: behind the others of it, or nowhere. */
static int land(struct spw_kv *kv, const struct spw_kv_read *d, const struct spw_kv_tile *t,
                void **out)
{
    const uint8_t *next = d->memory + d->n * kv->o.tile_bytes;
    *out = t->device;
    if (!kv->o.direct) {
        *out = NULL;
        if (!spw_tier_n_free(&kv->host))
            return 0;
        SPW_TRY(spw_kv_take_host_frame(kv, d->n ? next - kv->o.tile_bytes : NULL, out));
    }
    if (!d->n || *out == next)
        return 0;
    if (!kv->o.direct)
        spw_kv_put_host_frame(kv, *out);
    *out = NULL;
    return 0;
}

/* One read of the load's next tiles; *none: there is nowhere for it to land. */
static int ask_read(struct spw_kv *kv, struct spw_kv_rise *r, bool *none)
{
    struct spw_kv_ahead *a = &kv->ahead;
    struct spw_kv_read *d = &a->reads[a->asked % SPW_KV_READS];
    uint64_t most = spw_max_u64(READ_BYTES / kv->o.tile_bytes, 1);
    *d = (struct spw_kv_read){
        .behind = d->behind, .tile = r->asked, .frame = tile_of(r, r->asked)->disk, .rise = r};
    while (r->asked < r->end && d->n < most) {
        const struct spw_kv_tile *t = tile_of(r, r->asked);
        void *memory = NULL;
        if (t->disk == d->frame + d->n)
            SPW_TRY(land(kv, d, t, &memory));
        if (!memory)
            break;
        d->memory = d->n ? d->memory : memory;
        d->n++;
        r->asked++;
    }
    *none = !d->n;
    if (*none)
        return 0;
    a->asked++;
    r->n_reads++;
    return spw_kv_queue_read(kv, d);
}

/* As much as may be under way, of the oldest loads first. */
static int ask(struct spw_kv *kv)
{
    struct spw_kv_ahead *a = &kv->ahead;
    bool none = false;
    for (struct spw_kv_rise *r = a->first; r; r = r->next)
        while (r->asked < r->end && !r->rc) {
            if (a->asked - a->taken == SPW_KV_READS)
                return 0;
            SPW_TRY(ask_read(kv, r, &none));
            if (none)
                return 0;
        }
    return 0;
}

/* ---- beginning ---- */

/* All of it lies on the disk and is nobody else's. */
static bool is_at_rest(const struct spw_kv_tile *t)
{
    return t->refs == 1 && !t->device && !t->host && !t->sinking && t->disk != SPW_DISK_NONE;
}

static bool can_begin(const struct spw_kv *kv, const struct spw_kv_layer *l, uint32_t begin)
{
    if (!kv->o.disk || l->rise.seq || begin >= l->begin ||
        l->begin - begin > spw_tier_n_free(&kv->device) + kv->n_draining)
        return false;
    for (uint32_t i = begin; i < l->begin; i++)
        if (!is_at_rest(&kv->tiles[l->ids[i]]))
            return false;
    return true;
}

static int take_frames(struct spw_kv *kv, struct spw_kv_layer *l, uint32_t begin)
{
    for (uint32_t i = begin; i < l->begin; i++) {
        const struct spw_kv_tile *before = spw_kv_tile_before(kv, l, i);
        SPW_TRY(spw_kv_take_device_frame(kv, kv->o.compute, before ? before->device : NULL,
                                         &kv->tiles[l->ids[i]].device));
    }
    return spw_kv_order(kv, kv->o.compute, kv->o.direct ? kv->o.disk_stream : kv->o.up); /* 3 */
}

int spw_kv_load_ahead(struct spw_kv_seq *seq, uint32_t layer, uint32_t begin, bool *begun)
{
    struct spw_kv *kv = seq->kv;
    struct spw_kv_layer *l = &seq->layers[layer];
    *begun = can_begin(kv, l, begin);
    if (!*begun)
        return 0;
    int rc = take_frames(kv, l, begin);
    if (rc) {
        spw_kv_give_back(kv, l, begin, l->begin);
        return rc;
    }
    l->rise = (struct spw_kv_rise){
        .seq = seq, .layer = layer, .begin = begin, .end = l->begin, .asked = begin};
    struct spw_kv_rise **at = &kv->ahead.first;
    while (*at)
        at = &(*at)->next;
    *at = &l->rise;
    return ask(kv);
}

bool spw_kv_is_loading(const struct spw_kv_seq *seq, uint32_t layer)
{
    return seq->layers[layer].rise.seq;
}

/* ---- ending ---- */

void spw_kv_finish_read_ahead(struct spw_kv *kv)
{
    struct spw_kv_ahead *a = &kv->ahead;
    struct spw_kv_read *d = &a->reads[a->taken++ % SPW_KV_READS];
    struct spw_kv_rise *r = d->rise;
    r->n_reads--;
    int rc = spw_kv_take_read(r->seq, r->layer, d);
    if (!r->rc)
        r->rc = rc;
}

static void end(struct spw_kv *kv, struct spw_kv_rise *r)
{
    struct spw_kv_rise **at = &kv->ahead.first;
    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
    r->seq = NULL;
}

/* Something that is under way comes to its end, so that more can be asked for. */
static int go_on(struct spw_kv *kv)
{
    if (spw_kv_reads_ahead(kv)) {
        spw_kv_finish_read_ahead(kv);
        return 0;
    }
    return spw_kv_sinks(kv) ? spw_kv_finish_sink(kv) : -ENOMEM; /* writes hold the host frames */
}

int spw_kv_finish_load(struct spw_kv_seq *seq, uint32_t layer)
{
    struct spw_kv *kv = seq->kv;
    struct spw_kv_layer *l = &seq->layers[layer];
    struct spw_kv_rise *r = &l->rise;
    int rc = 0;
    if (!r->seq)
        return 0;
    while (!rc && (r->n_reads || (r->asked < r->end && !r->rc))) {
        rc = ask(kv);
        if (!rc)
            rc = go_on(kv);
    }
    while (r->n_reads) /* the device is lost */
        spw_kv_finish_read_ahead(kv);
    rc = rc ? rc : r->rc;
    uint32_t begin = r->begin, to = r->end;
    assert(l->begin == to);
    end(kv, r);
    if (rc) {
        spw_kv_give_back(kv, l, begin, to);
        return rc;
    }
    for (uint32_t i = begin; i < to; i++)
        kv->tiles[l->ids[i]].device_refs++;
    l->begin = begin;
    SPW_TRY(ask(kv));
    return kv->o.direct ? 0 : spw_kv_order(kv, kv->o.up, kv->o.compute); /* 5 */
}

int spw_kv_forget_loads(struct spw_kv_seq *seq, uint64_t *n_read)
{
    struct spw_kv *kv = seq->kv;
    int rc = 0;
    while (spw_kv_reads_ahead(kv))
        spw_kv_finish_read_ahead(kv);
    for (uint32_t i = 0; i < kv->o.n_layers; i++) {
        struct spw_kv_layer *l = &seq->layers[i];
        if (!l->rise.seq)
            continue;
        uint32_t begin = l->rise.begin, to = l->rise.end;
        *n_read += l->rise.asked - begin;
        rc = rc ? rc : l->rise.rc;
        end(kv, &l->rise);
        spw_kv_give_back(kv, l, begin, to);
    }
    return rc;
}
