/* Another division of KV, made in place: what caches hold moves inside its arenas, becomes smaller
 * or goes further down, and nothing is computed again.
 *
 *   cut back -> [exact tiles apart] -> smaller tiles -> waterlines -> fewer frames -> shorter
 * arenas
 *
 * The plan is plan_replan.c's. If old KV loses precision here, queries from now on read it with
 * less, and those before have read it exactly: as if it had been asked for at this position. See
 * engine.h.
 */
#include "offload/kv/kv_repack.h"
#include "offload/kv/kv_split.h"
#include "runtime/engine/engine.h"

enum { BUFFER_TILES = 8 }; /* under way together, where there is room */

struct replan {
    struct spw_engine *e;
    struct spw_plan from;
    struct spw_kv_split_sequence *sequences; /* [sessions], of those that hold something; owned */
    struct spw_kv_split split;
    struct spw_kv_repack repack;
    uint64_t n_renumbered; /* tiles on disk that went to another frame, as they are */
};

/* ---- before ---- */

static bool loses_tiles(struct spw_kv *kv)
{
    struct spw_kv_loss loss;
    bool any = false;
    while (spw_kv_take_loss(kv, &loss))
        any = true;
    return any;
}

/* Every cache holds what its session does, and nothing is under way. */
static int cut_back(struct spw_engine *e)
{
    for (int i = 0; i < SPW_STREAM_COUNT; i++)
        SPW_TRY(e->backend.device_ops->stream_sync(e->device, e->streams[i]));
    spw_kv_finish_writes(e->kv);
    spw_kv_take_write_failure(e->kv);
    if (loses_tiles(e->kv))
        return -EBADMSG;
    for (uint32_t i = 0; i < e->plan.info.sessions; i++) {
        struct spw_session *s = e->sessions[i];
        uint64_t n = s && s->cached ? s->n_tokens : 0;
        if (!s)
            continue;
        if (!spw_sequence_can_truncate(&s->seq, e->plan.residency, n))
            return -ENODATA;
        spw_sequence_truncate(&s->seq, e->plan.residency, n);
    }
    return 0;
}

static uint64_t n_cached(const struct spw_engine *e)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < e->plan.info.sessions; i++)
        n += e->sessions[i] && e->sessions[i]->cached ? e->sessions[i]->n_tokens : 0;
    return n;
}

/* ---- memory that no step needs between two of them ---- */

/* On the device hidden states and activations, up to the flags; on the host hidden states and
 * staging. One tile to come from, one to go to, and what the disk's reads land in. */
static int find_scratch(struct replan *r)
{
    const struct spw_engine *e = r->e;
    const struct spw_plan *p = &r->from;
    uint64_t tile = p->tile_bytes;
    uint8_t *device = (uint8_t *)e->device_arena + p->device.hidden;
    uint8_t *host = (uint8_t *)e->host_arena + p->host.hidden;
    uint64_t n_device = (p->device.flags - p->device.hidden) / tile;
    uint64_t n_host = (p->host.session_logits - p->host.hidden) / tile;
    uint64_t n_bounce = (p->host.end - p->host.bounce) / tile;
    if (n_bounce > n_host) {
        host = (uint8_t *)e->host_arena + p->host.bounce;
        n_host = n_bounce;
    }
    uint64_t n_buffers = p->direct ? spw_sub_u64(n_device, 2) : n_host;
    if (n_device < 2 || !n_host || (e->disk && !n_buffers))
        return -ENOMEM;
    r->repack.device_from = device;
    r->repack.device_to = device + tile;
    r->repack.buffers = p->direct ? device + 2 * tile : host;
    r->repack.n_buffers = (uint32_t)spw_min_u64(n_buffers, BUFFER_TILES);
    r->split.device_scratch = device;
    r->split.host_scratch = host;
    return 0;
}

/* ---- smaller tiles ---- */

static int quantize(void *context, const void *from, void *to)
{
    const struct replan *r = context;
    const struct spw_engine *e = r->e;
    const struct spw_model_config *c = &e->model.config;
    return e->backend.ops->kv_quantize(
        &(struct spw_codec_args){
            .tile = from,
            .qtile = to,
            .n_kv_heads = c->n_kv_heads,
            .head_dim = c->head_dim,
            .dtype = e->plan.info.kv,
            .format = e->plan.format,
            .not_finite = (uint32_t *)(void *)((uint8_t *)e->device_arena + e->plan.device.flags)},
        e->streams[SPW_STREAM_COMPUTE]);
}

static uint32_t most(uint64_t a, uint64_t b)
{
    return (uint32_t)spw_max_u64(a, b);
}

static int repack(struct replan *r, struct spw_kv *kv, bool smaller)
{
    struct spw_kv_repacked done;
    SPW_TRY(spw_kv_repack(kv, &r->repack, &done));
    r->n_renumbered += smaller ? 0 : done.n_disk;
    return done.n_lost ? -EBADMSG : 0;
}

static int split_lower(void *context)
{
    const struct replan *r = context;
    return spw_kv_split_lower(&r->split);
}

/* Tiles that stay exact must be on the device, but for sinks. */
static int bring_up(const struct spw_engine *e, const struct spw_kv_split_sequence *q)
{
    for (uint32_t l = 0; l < e->model.config.n_layers; l++) {
        bool fixed = e->plan.residency[e->model.config.layer_kinds[l]].fixed;
        uint32_t from = fixed ? spw_kv_first(q->from, l) : q->first_exact;
        if (from < spw_kv_begin(q->from, l))
            SPW_TRY(spw_kv_load(q->from, l, from));
    }
    return 0;
}

static int begin_split(struct replan *r)
{
    struct spw_engine *e = r->e;
    const struct spw_residency *to = &e->plan.residency[SPW_LAYER_FULL];
    SPW_TRY(spw_engine_open_exact(e));
    for (uint32_t i = 0; i < e->plan.info.sessions; i++) {
        struct spw_session *s = e->sessions[i];
        if (!s)
            continue;
        struct spw_kv_split_sequence *q = &r->sequences[r->split.n++];
        q->from = s->seq.kv;
        q->n_tokens = s->cached ? s->n_tokens : 0;
        q->end = spw_waterline_end(to, q->n_tokens);
        q->first_exact = spw_waterline_exact(to, q->n_tokens);
        SPW_TRY(bring_up(e, q));
        SPW_TRY(spw_kv_seq_open(&s->seq.exact, e->exact));
        q->exact = s->seq.exact;
    }
    r->split.kv = e->kv;
    r->split.sequences = r->sequences;
    r->repack.before_lower = split_lower;
    return spw_kv_split_begin(&r->split);
}

/* Frames of tiles as they will be, in all the room that there is: what has to go further down still
 * goes, and then the plan's frames are enough. */
static int repack_room(struct replan *r)
{
    const struct spw_plan *to = &r->e->plan, *from = &r->from;
    struct spw_kv_repack *x = &r->repack;
    uint64_t old = from->tile_bytes, room = from->n_device_frames * old;
    if (from->quantizes)
        room = from->device.exact_frames - from->device.kv_frames;
    else if (to->quantizes)
        room = to->device.exact_frames - to->device.kv_frames;
    x->tile_bytes = to->tile_bytes;
    x->n_device_frames = most(room / x->tile_bytes, to->n_device_frames);
    x->n_host_frames = most(from->n_host_frames * old / x->tile_bytes, to->n_host_frames);
    x->n_disk_frames = most(from->n_disk_frames * old / x->tile_bytes, to->n_disk_frames);
    return repack(r, r->e->kv, x->tile_bytes < old);
}

static int shrink_tiles(struct replan *r)
{
    struct spw_engine *e = r->e;
    bool apart = e->plan.quantizes && !r->from.quantizes;
    r->repack.context = r;
    r->repack.slot_tiles = e->plan.slot_tiles;
    if (r->from.format == SPW_QFORMAT_EXACT && e->plan.format != SPW_QFORMAT_EXACT)
        r->repack.convert = quantize;
    if (apart)
        SPW_TRY(begin_split(r));
    SPW_TRY(repack_room(r));
    if (apart)
        spw_kv_split_end(&r->split);
    r->repack.convert = NULL;
    r->repack.before_lower = NULL;
    return 0;
}

static void drop_copies(const struct spw_engine *e)
{
    for (uint32_t i = 0; i < e->plan.info.sessions; i++)
        for (uint32_t l = 0; e->sessions[i] && l < e->model.config.n_layers; l++)
            spw_kv_drop_copies(e->sessions[i]->seq.kv, l, 0);
}

/* To the plan's frames; and the exact ones, which lie behind them, come down. */
static int close_ranks(struct replan *r)
{
    const struct spw_plan *p = &r->e->plan;
    struct spw_kv_repack *x = &r->repack;
    x->n_device_frames = p->n_device_frames;
    x->n_host_frames = p->n_host_frames;
    x->n_disk_frames = p->n_disk_frames;
    drop_copies(r->e); /* the plan has none of what stays on the device */
    SPW_TRY(repack(r, r->e->kv, false));
    if (!r->from.quantizes)
        return 0;
    x->device_arena = (uint8_t *)r->e->device_arena + p->device.exact_frames;
    x->tile_bytes = p->exact_tile_bytes;
    x->n_device_frames = p->n_exact_frames;
    x->n_host_frames = x->n_disk_frames = 0;
    x->slot_tiles = 1;
    return repack(r, r->e->exact, false);
}

/* ---- arenas ---- */

/* They are larger than they may be. */
static bool passes(const struct spw_engine *e, const struct spw_plan *to,
                   const struct spw_plan_input *in)
{
    return e->device_arena_bytes + to->mapped_bytes > in->device_bytes ||
           e->host_arena_bytes + to->kept_bytes > in->host_bytes;
}

/* What is registered for reads and writes of files stays with the kernel until those are closed. */
static bool can_trim(const struct spw_engine *e)
{
    return e->backend.device_ops->trim && !e->io;
}

static void trim(struct spw_engine *e)
{
    const struct spw_device_ops *ops = e->backend.device_ops;
    ops->trim(e->device, e->device_arena, e->device_arena_bytes, e->plan.device.end);
    ops->trim_host(e->device, e->host_arena, e->host_arena_bytes, e->plan.host.end);
    e->device_arena_bytes = e->plan.device.end;
    e->host_arena_bytes = e->plan.host.end;
}

/* ---- after ---- */

static int settle(struct spw_engine *e)
{
    SPW_TRY(spw_engine_leave_frames(e));
    for (uint32_t i = 0; i < e->plan.info.sessions; i++) {
        struct spw_session *s = e->sessions[i];
        if (s && s->cached)
            SPW_TRY(spw_executor_apply_residency(e->executor, &s->seq, s->n_tokens));
    }
    spw_kv_finish_writes(e->kv);
    return spw_kv_take_write_failure(e->kv);
}

static void tell(const struct replan *r)
{
    struct spw_engine *e = r->e;
    struct spw_traffic_run *told = spw_executor_account_of(e->executor);
    spw_traffic_replan(told, &r->from, e->shares, spw_engine_cached_tokens(r->e), r->n_renumbered);
}

static void note_precision(struct spw_engine *e, const struct spw_plan *from)
{
    for (uint32_t i = 0; i < e->plan.info.sessions; i++)
        if (e->sessions[i] && e->sessions[i]->cached && from->format != e->plan.format)
            e->sessions[i]->mixed |=
                spw_waterline_old_end(e->plan.residency, e->sessions[i]->n_tokens) > 1;
}

static int carry_out(struct replan *r, const struct spw_plan_input *in)
{
    struct spw_engine *e = r->e;
    SPW_TRY(cut_back(e));
    SPW_TRY(find_scratch(r));
    SPW_TRY(shrink_tiles(r));
    SPW_TRY(settle(e));
    SPW_TRY(close_ranks(r));
    SPW_TRY(spw_engine_replan_prefetch(e));
    spw_executor_replan(e->executor);
    if (passes(e, &e->plan, in))
        trim(e);
    note_precision(e, &r->from);
    tell(r);
    return 0;
}

int spw_engine_replan(struct spw_engine *e, const struct spw_plan_input *in)
{
    struct replan r = {.e = e, .from = e->plan};
    struct spw_plan to;
    uint32_t n_on_disk = e->disk ? spw_disk_n_used(e->disk) : 0;
    if (!e->executor || e->prefix || !n_cached(e))
        return -ENODATA; /* what is in the prefix cache is found there again */
    SPW_TRY(spw_plan_replan(&to, &e->plan, in, n_on_disk));
    if (passes(e, &to, in) && !can_trim(e))
        return -ENOMEM;
    SPW_TRY(spw_traffic_info(&to, e->model.weights));
    SPW_TRY(spw_executor_forget_ahead(e->executor)); /* it is of the plan that goes */
    r.sequences = spw_alloc_zero(to.info.sessions, sizeof *r.sequences);
    if (!r.sequences)
        return -ENOMEM;
    e->plan = to;
    spw_engine_compute_shares(e);
    int rc = carry_out(&r, in);
    spw_free(r.sequences);
    if (rc) {
        spw_executor_stop_predicting(e->executor);
        e->plan = r.from;
        spw_engine_compute_shares(e);
        return rc;
    }
    e->in = *in;
    return 0;
}
