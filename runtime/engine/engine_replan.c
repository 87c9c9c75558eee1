/* Replans in place: tiles move inside the arenas, are quantized or spilled, and nothing is computed
 * again.
 *
 *   cut back -> smaller tiles -> waterlines -> fewer frames -> shorter arenas
 *
 * The new plan is made by plan_replan.c. If old KV loses precision here, later queries read it
 * quantized, and earlier queries have read it exactly: the precision applies from this position on.
 * See engine.h. */
#include "offload/kv/kv_shrink.h"
#include "runtime/engine/engine.h"

enum { PAGE = 4096, BUFFER_TILES = 8 }; /* reads or writes in flight together, if there is room */

struct replan {
    struct spw_engine *e;
    struct spw_plan from;
    struct spw_kv_division *divisions; /* [sessions]; owned */
    struct spw_kv_shrink shrink;
};

/* ---- before the change ---- */

static bool loses_tiles(struct spw_kv *kv)
{
    struct spw_kv_loss loss;
    bool any = false;
    while (spw_kv_take_loss(kv, &loss))
        any = true;
    return any;
}

/* Waits until nothing is in flight, and cuts the caches back to what the sessions hold. A session
 * whose states have passed these tokens goes back to a checkpoint. */
static int cut_back(struct spw_engine *e, const struct spw_residency *residency)
{
    SPW_TRY(spw_engine_settle(e));
    if (loses_tiles(e->kv))
        return -EBADMSG;
    for (struct spw_session *s = NULL; (s = spw_engine_next(e, s));) {
        uint64_t n = spw_session_cached(s);
        SPW_TRY(spw_session_cut(s, residency, &n));
        if (n < spw_session_cached(s))
            spw_session_hold(s, n);
    }
    return 0;
}

/* ---- scratch memory: no step runs now ---- */

/* Finds scratch memory. On the device it is the memory of hidden states and activations, up to the
 * flags; on the host that of hidden states and staging. It holds one source tile, one destination
 * tile, and the buffers of the disk's reads. */
static int find_scratch(struct replan *r)
{
    const struct spw_engine *e = r->e;
    const struct spw_plan *p = &r->from;
    uint64_t tile = p->tile_bytes, exact = p->exact_tile_bytes; /* at least `tile` */
    uint8_t *device = e->lane.device_arena + p->device.hidden;
    uint8_t *host = e->lane.host_arena + p->host.hidden;
    uint64_t device_bytes = p->device.flags - p->device.hidden;
    uint64_t n_host = (p->host.session_logits - p->host.hidden) / tile;
    uint64_t n_bounce = (p->host.end - p->host.bounce) / tile;
    if (n_bounce > n_host) {
        host = e->lane.host_arena + p->host.bounce;
        n_host = n_bounce;
    }
    uint64_t n_buffers =
        p->disk_to_device ? spw_sub_u64(device_bytes, tile + exact) / tile : n_host;
    if (device_bytes < tile + exact || !n_host || (e->disk && !n_buffers))
        return -ENOMEM;
    r->shrink.device_from = device;
    r->shrink.device_to = device + tile;
    r->shrink.buffers = p->disk_to_device ? device + tile + exact : host;
    r->shrink.n_buffers = (uint32_t)spw_min_u64(n_buffers, BUFFER_TILES);
    r->shrink.host_scratch = host;
    return 0;
}

/* ---- smaller tiles ---- */

static int quantize(void *context, const void *from, void *to)
{
    const struct replan *r = context;
    const struct spw_engine *e = r->e;
    const struct spw_kv_shape *full = &e->model.config.kv[e->model.config.full_kind];
    return e->backend.ops->kv_quantize(
        &(struct spw_codec_args){
            .tile = from,
            .qtile = to,
            .n_kv_heads = spw_config_slice_heads(full),
            .widths = {full->head_dim, full->v_dim},
            .dtype = e->plan.info.kv,
            .format = e->plan.format,
            .not_finite = (uint32_t *)(void *)(e->lane.device_arena + e->plan.device.flags)},
        e->lane.compute);
}

static uint32_t most(uint64_t a, uint64_t b)
{
    return (uint32_t)spw_max_u64(a, b);
}

static int shrink_cache(struct replan *r)
{
    struct spw_kv_shrunk done;
    SPW_TRY(spw_kv_shrink(r->e->kv, &r->shrink, &done));
    return done.n_lost ? -EBADMSG : 0;
}

/* Loads the tiles that stay exact onto the device, except the attention sinks. */
static int load_exact(const struct spw_engine *e, const struct spw_kv_division *d)
{
    for (uint32_t i = 0; i < e->model.config.n_slices; i++) {
        bool fixed = e->plan.residency[e->model.config.slice_kinds[i]].fixed;
        uint32_t from = fixed ? spw_kv_first(d->seq, i) : d->first_exact;
        if (from < spw_kv_begin(d->seq, i))
            SPW_TRY(spw_kv_load(d->seq, i, from));
    }
    return 0;
}

/* Lists the tiles that are old, and so become quantized. */
static int divide(struct replan *r)
{
    struct spw_engine *e = r->e;
    const struct spw_residency *to = &e->plan.residency[e->plan.full_kind];
    for (struct spw_session *s = NULL; (s = spw_engine_next(e, s));) {
        const uint64_t n = spw_session_cached(s);
        struct spw_kv_division *d = &r->divisions[r->shrink.n_divisions++];
        *d = (struct spw_kv_division){.seq = s->seq.kv,
                                      .end = spw_waterline_end(to, n),
                                      .first_exact = spw_waterline_first_exact(to, n)};
        SPW_TRY(load_exact(e, d));
    }
    r->shrink.divisions = r->divisions;
    return 0;
}

/* Tells spw_kv_shrink where the plan p has the exact frames. */
static void place_exact(struct replan *r, const struct spw_plan *p)
{
    struct spw_kv_shrink *x = &r->shrink;
    x->exact_arena = p->quantizes ? r->e->lane.device_arena + p->device.exact_frames : NULL;
    x->n_exact_frames = p->n_exact_frames;
    x->exact_tile_bytes = p->exact_tile_bytes;
}

/* Gives all tiles their new size. The frames use all the memory there is, because tiles that must
 * be spilled further still need frames; after spilling, the plan's frames suffice. */
static int shrink_tiles(struct replan *r)
{
    const struct spw_plan *to = &r->e->plan, *from = &r->from;
    struct spw_kv_shrink *x = &r->shrink;
    uint64_t old = from->tile_bytes, room = from->n_device_frames * old;
    if (from->quantizes)
        room = from->device.exact_frames - from->device.kv_frames;
    else if (to->quantizes)
        room = to->device.exact_frames - to->device.kv_frames;
    x->tile_bytes = to->tile_bytes;
    x->n_device_frames = most(room / x->tile_bytes, to->n_device_frames);
    x->n_host_frames = most(from->n_host_frames * old / x->tile_bytes, to->n_host_frames);
    x->n_disk_frames = most(from->n_disk_frames * old / x->tile_bytes, to->n_disk_frames);
    x->slot_tiles = to->slot_tiles;
    x->context = r;
    if (from->format == SPW_QFORMAT_EXACT && to->format != SPW_QFORMAT_EXACT)
        x->convert = quantize;
    place_exact(r, from->quantizes ? from : to);
    if (to->quantizes && !from->quantizes)
        SPW_TRY(divide(r));
    SPW_TRY(shrink_cache(r));
    x->convert = NULL;
    return 0;
}

static void drop_copies(const struct spw_engine *e)
{
    for (struct spw_session *s = NULL; (s = spw_engine_next(e, s));)
        for (uint32_t k = 0; k < e->model.config.n_slices; k++)
            spw_kv_drop_copies(s->seq.kv, k, 0);
}

/* Moves all tiles into the frames of the plan, and the exact frames, which lie after them, to their
 * new place. */
static int use_plan_frames(struct replan *r)
{
    const struct spw_plan *p = &r->e->plan;
    struct spw_kv_shrink *x = &r->shrink;
    x->n_device_frames = p->n_device_frames;
    x->n_host_frames = p->n_host_frames;
    x->n_disk_frames = p->n_disk_frames;
    place_exact(r, p);
    drop_copies(r->e); /* the plan has no copies of tiles that stay on the device */
    return shrink_cache(r);
}

/* ---- arenas ---- */

bool spw_engine_exceeds_budgets(const struct spw_engine *e, const struct spw_plan *to,
                                const struct spw_plan_input *in)
{
    return spw_align_up(e->lane.device_arena_bytes, PAGE) + to->mapped_bytes > in->device_bytes ||
           spw_align_up(e->lane.host_arena_bytes, PAGE) + to->page_cache_bytes > in->host_bytes;
}

/* Arenas that are registered for file I/O cannot shrink while the files are open. */
static bool can_trim(const struct spw_engine *e)
{
    return e->lane.ops->trim && !e->io;
}

static void trim(struct spw_engine *e)
{
    struct spw_lane *l = &e->lane;
    l->ops->trim(l->device, l->device_arena, l->device_arena_bytes, e->plan.device.end);
    l->ops->trim_host(l->device, l->host_arena, l->host_arena_bytes, e->plan.host.end);
    l->device_arena_bytes = e->plan.device.end;
    l->host_arena_bytes = e->plan.host.end;
}

/* ---- after the change ---- */

static int apply_shares(struct spw_engine *e)
{
    spw_kv_write_again(e->kv);
    SPW_TRY(spw_engine_leave_frames(e));
    for (struct spw_session *s = NULL; (s = spw_engine_next(e, s));)
        if (s->cached)
            SPW_TRY(spw_residency_apply(&e->executor->residency, &s->seq, s->n_tokens));
    spw_kv_finish_writes(e->kv);
    return spw_kv_take_write_failure(e->kv);
}

static void note_precision(struct spw_engine *e, const struct spw_plan *from)
{
    for (struct spw_session *s = NULL; (s = spw_engine_next(e, s));)
        if (s->cached && from->format != e->plan.format)
            s->mixed |= spw_waterline_old_end(e->plan.residency, s->n_tokens) > 1;
}

static int carry_out(struct replan *r, const struct spw_plan_input *in)
{
    struct spw_engine *e = r->e;
    SPW_TRY(cut_back(e, r->from.residency));
    SPW_TRY(find_scratch(r));
    SPW_TRY(shrink_tiles(r));
    SPW_TRY(apply_shares(e));
    SPW_TRY(use_plan_frames(r));
    SPW_TRY(spw_engine_replan_prefetch(e));
    spw_executor_replan(e->executor);
    if (spw_engine_exceeds_budgets(e, &e->plan, in))
        trim(e);
    note_precision(e, &r->from);
    e->unpredicted = true;
    return 0;
}

int spw_engine_replan(struct spw_engine *e, const struct spw_plan_input *in)
{
    struct replan r = {.e = e, .from = e->plan};
    struct spw_plan to;
    uint32_t n_on_disk = e->disk ? spw_disk_n_used(e->disk) : 0;
    if (!e->executor || e->above.prefix || !spw_engine_n_cached(e))
        return -ENODATA; /* the sessions find their tokens in the prefix cache again */
    SPW_TRY(spw_plan_replan(&to, &e->plan, in, n_on_disk));
    if (spw_engine_exceeds_budgets(e, &to, in) && !can_trim(e))
        return -ENOMEM;
    SPW_TRY(spw_engine_describe_plan(e, &to));
    SPW_TRY(spw_prefetch_forget(e->prefetch)); /* transfers ahead belong to the old plan */
    r.divisions = spw_alloc_zero(to.info.sessions, sizeof *r.divisions);
    if (!r.divisions)
        return -ENOMEM;
    e->plan = to;
    spw_engine_compute_shares(e);
    int rc = carry_out(&r, in);
    spw_free(r.divisions);
    if (rc) {
        e->unpredicted = true;
        e->plan = r.from;
        spw_engine_compute_shares(e);
        return rc;
    }
    e->in = *in;
    return 0;
}
