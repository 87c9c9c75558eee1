/* The parts of the engine that a plan determines. They are opened and freed together:
 *
 *     arenas -> disk -> weight blocks -> caches -> prefetch -> executor -> sessions' tables
 *
 * Device, streams, model and sessions stay when the plan changes. See engine.h. */
#include "runtime/engine/engine.h"

#include "runtime/engine/memory.h"
#include "runtime/experts/trace.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- arenas ---- */

/* Fills what the fallbacks must know about the tier that refused memory. */
static int refused(struct spw_fallback_failure *f, int tier, uint64_t asked, uint64_t held, int rc,
                   struct spw_error *err)
{
    *f = (struct spw_fallback_failure){.tier = tier, .asked = asked, .held = held};
    return spw_fail(err, rc, "%s: the system refused %llu bytes of it",
                    spw_budget_names[tier].memory, (unsigned long long)asked);
}

static int open_arenas(struct spw_engine *e, struct spw_fallback_failure *f, struct spw_error *err)
{
    struct spw_lane *lane = &e->lane;
    const struct spw_plan *p = &e->plan;
    int rc = lane->ops->alloc(lane->device, p->device.end, (void **)&lane->device_arena);
    lane->device_arena_bytes = p->device.end;
    lane->host_arena_bytes = p->host.end;
    if (rc == -ENOMEM) {
        uint64_t available = lane->ops->available(lane->device);
        if (available == UINT64_MAX)
            available = 0;
        return refused(f, SPW_BUDGET_DEVICE, p->device.end + p->mapped_bytes,
                       spw_engine_leave_margin(available), rc, err);
    }
    if (!rc && e->backend.reads_host_memory) {
        rc = lane->ops->charge(lane->device, p->mapped_bytes, p->page_cache_bytes);
        e->charged = !rc;
    }
    if (!rc)
        rc = lane->ops->alloc_host(lane->device, p->host.end, (void **)&lane->host_arena);
    if (rc == -ENOMEM)
        return refused(f, SPW_BUDGET_HOST, p->host.end + p->page_cache_bytes, 0, rc, err);
    return rc ? spw_fail(err, rc, "the device failed when memory was taken") : 0;
}

static void note_pageable(struct spw_engine *e)
{
    static const char note[] =
        "the system refused to pin all host memory: transfers of the rest are staged by the "
        "driver, and computation waits for each of them";
    struct spw_device_usage usage;
    e->lane.ops->usage(e->lane.device, &usage);
    if (usage.host_pageable && !strstr(e->texts.note, note))
        spw_engine_add_note(e, "%s", note);
}

static int open_disk(struct spw_engine *e, struct spw_fallback_failure *f, struct spw_error *err)
{
    uint64_t room = 0, wanted = e->plan.info.disk.total;
    int rc = spw_engine_open_disk(e, err);
    if (rc != -ENOSPC && rc != -EDQUOT)
        return rc;
    if (spw_memory_on_disk(&room, e->options.disk_dir, NULL))
        room = 0;
    *f = (struct spw_fallback_failure){.tier = SPW_BUDGET_DISK, .asked = wanted, .held = room};
    return rc;
}

/* ---- weight blocks ---- */

static void release_block(void *context)
{
    const struct spw_block_context *c = context;
    spw_weights_release(c->weights, c->block);
}

static void populate_block(void *context)
{
    const struct spw_block_context *c = context;
    spw_weights_populate(c->weights, c->block);
}

static void pack_block(void *context)
{
    const struct spw_block_context *c = context;
    __atomic_fetch_add(&c->all->n_packing, 1, __ATOMIC_SEQ_CST);
    if (!__atomic_load_n(&c->all->is_over, __ATOMIC_SEQ_CST))
        spw_weights_pack(c->weights, c->block, (void *)(uintptr_t)c->packed.from);
    __atomic_fetch_sub(&c->all->n_packing, 1, __ATOMIC_SEQ_CST);
}

/* Waits until nothing uses the arenas. */
static void end_streams(struct spw_engine *e)
{
    if (!spw_lane_sync_all(&e->lane))
        return;
    __atomic_store_n(&e->blocks.is_over, true, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&e->blocks.n_packing, __ATOMIC_SEQ_CST))
        usleep(100);
}

/* Fills where a block is read from; `packed` is the next free place in the host arena. */
static void describe_block(struct spw_engine *e, uint32_t u, uint8_t **packed)
{
    struct spw_weights *w = e->model.weights;
    struct spw_block_context *c = &e->blocks.contexts[u];
    struct spw_block *block = &e->blocks.list[u];
    const struct spw_block_place at = spw_plan_block(&e->plan, w, u);
    *c = (struct spw_block_context){.all = &e->blocks, .weights = w, .block = u};
    *block = (struct spw_block){
        .layer = w->blocks[u].layer == SPW_NO_LAYER ? SPW_RANGES : w->blocks[u].layer,
        .pieces = w->pieces + w->blocks[u].first,
        .n_pieces = w->blocks[u].n,
        .moved_bytes = at.moved_bytes,
        .host_rows = at.host_rows,
        .context = c,
    };
    if (at.mapped) {
        spw_weights_map(w, u);
        block->in_place = true;
        block->prepare = populate_block;
    } else if (at.from_disk) {
        spw_engine_read_block(e, u);
    } else if (at.packed) {
        c->packed = (struct spw_piece){.from = *packed, .bytes = block->moved_bytes};
        *packed += spw_align_up(block->moved_bytes, 4096);
        block->pieces = &c->packed;
        block->n_pieces = 1;
        block->prepare = pack_block;
    } else if (at.resident) {
        block->copied = release_block;
    }
    if (e->dry)
        block->prepare = block->copied = NULL;
}

static void describe_blocks(struct spw_engine *e)
{
    const struct spw_weights *w = e->model.weights;
    uint8_t *next = e->lane.device_arena + e->plan.device.weights;
    uint8_t *packed = e->lane.host_arena + e->plan.host.packed;
    spw_weights_place_packed(e->model.weights); /* another plan may have placed them elsewhere */
    for (uint32_t u = 0; u < spw_engine_n_blocks(e); u++) {
        describe_block(e, u, &packed);
        if (e->blocks.list[u].in_place || !spw_plan_block(&e->plan, w, u).resident)
            continue;
        e->blocks.list[u].resident = next;
        next += spw_align_up(w->blocks[u].bytes, 4096);
    }
}

/* ---- the cache ---- */

static int open_cache(struct spw_engine *e)
{
    const struct spw_plan *p = &e->plan;
    struct spw_kv_options o = {
        .device_arena = e->lane.device_arena + p->device.kv_frames,
        .host_arena = e->lane.host_arena + p->host.kv_frames,
        .n_device_frames = p->n_device_frames,
        .n_host_frames = p->n_host_frames,
        .tile_bytes = p->tile_bytes,
        .exact_arena = p->quantizes ? e->lane.device_arena + p->device.exact_frames : NULL,
        .n_exact_frames = p->n_exact_frames,
        .exact_tile_bytes = p->exact_tile_bytes,
        .n_layers = e->model.config.n_slices,
        .kinds = e->model.config.slice_kinds,
        .max_tiles = p->max_tiles,
        .slot_tiles = p->slot_tiles,
        .disk = e->disk,
        .disk_to_device = p->disk_to_device,
        .n_disk_frames = p->n_disk_frames,
        .states = {.bytes = p->state_bytes,
                   .n_sequences = p->info.sessions,
                   .stay = p->states_stay,
                   .device_arena = e->lane.device_arena + p->device.states,
                   .host_arena = e->lane.host_arena + p->host.states,
                   .checkpoint_arena = e->lane.host_arena + p->host.checkpoints,
                   .kept_arena = e->lane.device_arena + p->device.kept_rows,
                   .kept_bytes = p->kept_bytes,
                   .n_checkpoints = p->n_checkpoints,
                   .disk = e->checkpoint_disk,
                   .n_disk_checkpoints = p->n_disk_checkpoints},
    };
    return spw_kv_open(&e->kv, &e->lane, &o);
}

/* ---- prefetch and executor ---- */

static struct spw_expert_pool_options expert_options(const struct spw_engine *e)
{
    const struct spw_plan *p = &e->plan;
    const struct spw_weights *w = e->model.weights;
    return (struct spw_expert_pool_options){
        .arena = e->lane.device_arena + p->device.expert_frames,
        .frame_bytes = w->expert_frame_bytes,
        .n_frames = p->n_expert_frames,
        .n_slots = p->n_expert_slots,
        .shape = spw_plan_expert_shape(w),
        .counts = e->expert_counts,
        .tables = e->lane.host_arena + p->host.expert_tables,
        .bounce_arena = p->n_expert_bounce ? e->lane.host_arena + p->host.expert_bounce : NULL,
        .on_host = p->host_rows > 0,
    };
}

static struct spw_prefetch_options prefetch_options(const struct spw_engine *e)
{
    const struct spw_plan *p = &e->plan;
    return (struct spw_prefetch_options){
        .kv_arena = e->lane.device_arena + p->device.kv_slots,
        .weights_arena = e->lane.device_arena + p->device.weight_slots,
        .tile_bytes = p->tile_bytes,
        .block_bytes = p->weight_slot_bytes,
        .n_kv_slots = p->n_kv_slots,
        .slot_tiles = p->slot_tiles,
        .n_weight_slots = p->n_weight_slots,
        .blocks = e->blocks.list,
        .n_blocks = spw_engine_n_blocks(e),
        .first_expert = e->model.weights->n_blocks,
        .experts = expert_options(e),
        .disk = e->disk,
        .bounce_arena = e->lane.host_arena + p->host.bounce,
        .n_bounce = p->n_bounce,
        .weights_io = e->reads.files ? e->io : NULL,
        .weights_bounce_arena =
            p->n_weight_bounce ? e->lane.host_arena + p->host.weight_bounce : NULL,
        .weights_bounce_bytes = p->weight_bounce_bytes,
    };
}

int spw_engine_replan_prefetch(struct spw_engine *e)
{
    struct spw_prefetch_options o = prefetch_options(e);
    return spw_prefetch_replan(e->prefetch, &o);
}

static int open_executor(struct spw_engine *e)
{
    struct spw_executor_options x = {
        .ops = e->backend.ops,
        .embed = e->backend.embed,
        .plan = &e->plan,
        .weights = e->model.weights,
        .prefetch = e->prefetch,
        .host_lane = e->host.lane.device ? &e->host.lane : NULL,
        .host_ops = e->host.backend.ops,
        .most_spans = e->plan.info.sessions,
        .on_pass = e->options.on_pass || e->above.prefix ? spw_engine_on_pass : NULL,
        .pass_context = e,
        .on_progress = e->options.on_progress,
        .progress_context = e->options.progress_context,
        .interrupted = spw_engine_is_interrupted,
        .hurried = spw_engine_is_hurried,
        .interrupt_context = e,
        .expert_trace = e->options.expert_trace,
        .dry = e->dry,
    };
    const struct spw_expert_shape shape = spw_plan_expert_shape(e->model.weights);
    if (x.expert_trace && shape.n_experts)
        spw_expert_trace_begin(x.expert_trace, &shape, e->expert_counts);
    return spw_executor_open(&e->executor, &e->lane, &x);
}

/* Opens the tables of all sessions. Sessions have their tokens; the next step computes what
 * their caches held. */
static int open_sequences(struct spw_engine *e)
{
    for (struct spw_session *s = NULL; (s = spw_engine_next(e, s));)
        SPW_TRY(spw_engine_open_sequence(e, s));
    return 0;
}

int spw_engine_open_sequence(struct spw_engine *e, struct spw_session *s)
{
    if (!e->dry)
        s->logits = (float *)(e->lane.host_arena + e->plan.host.session_logits) +
                    (uint64_t)s->slot * e->model.config.vocab;
    s->has_logits = s->cached = s->mixed = false;
    memcpy(s->residency, e->plan.residency,
           sizeof s->residency); /* until the frames are divided among sessions */
    s->seq = (struct spw_sequence){.residency = s->residency, .place = s->slot};
    return spw_kv_seq_open(&s->seq.kv, e->kv);
}

/* ---- all parts ---- */

/* Reads norms and biases; zeros, if nothing is computed. */
static int prepare_weights(struct spw_engine *e, struct spw_error *err)
{
    if (!e->dry)
        return spw_weights_prepare(e->model.weights, err);
    return spw_weights_prepare_blank(e->model.weights)
               ? spw_fail(err, -ENOMEM, "out of memory for norms and biases")
               : 0;
}

int spw_engine_open_memory(struct spw_engine *e, struct spw_fallback_failure *f,
                           struct spw_error *err)
{
    *f = (struct spw_fallback_failure){.tier = SPW_FALLBACK_NO_TIER};
    SPW_TRY(e->above.persist->open(e, err));
    if (!e->model.weights->small)
        SPW_TRY(prepare_weights(e, err));
    SPW_TRY(open_arenas(e, f, err));
    note_pageable(e);
    SPW_TRY(open_disk(e, f, err));
    describe_blocks(e);
    const struct spw_prefetch_options o = prefetch_options(e);
    int rc = open_cache(e);
    if (!rc)
        rc = spw_prefetch_open(&e->prefetch, &e->lane, &o);
    if (!rc)
        rc = open_sequences(e);
    if (!rc)
        rc = open_executor(e);
    if (!rc)
        rc = spw_lane_stream_sync(&e->lane, e->lane.compute); /* it copies the small weights */
    if (!rc) {
        spw_weights_forget_small(e->model.weights);
        spw_engine_compute_shares(e);
    }
    return rc ? spw_fail(err, rc, "the engine's tables: %s", strerror(-rc)) : 0;
}

void spw_engine_finish(struct spw_engine *e)
{
    spw_lane_sync_all(&e->lane);
    spw_prefetch_finish(e->prefetch);
    spw_kv_finish_writes(e->kv);
}

/* Adds the counts of this plan to those of earlier plans. */
static void keep_counts(struct spw_engine *e)
{
    spw_prefetch_forget(e->prefetch);
    spw_engine_expert_counts(e);
    spw_engine_finish(e);
    e->unpredicted = true; /* the plan ends */
    e->past.host_multiplied_bytes += e->executor->host_multiplied_bytes;
    for (uint32_t i = 0; i <= SPW_RANGES; i++)
        e->past.stalled[i] += spw_prefetch_stalled_seconds(e->prefetch, i);
}

void spw_engine_give_memory(struct spw_engine *e)
{
    struct spw_lane *lane = &e->lane;
    const struct spw_plan *p = &e->plan;
    if (e->executor)
        keep_counts(e);
    spw_executor_close(e->executor);
    e->executor = NULL;
    spw_engine_drop_paused(e);
    end_streams(e);
    spw_prefetch_close(e->prefetch);
    for (struct spw_session *s = NULL; (s = spw_engine_next(e, s));) {
        spw_kv_seq_close(s->seq.kv);
        s->seq.kv = NULL;
    }
    spw_kv_close(e->kv);
    spw_engine_close_disk(e);
    if (lane->device_arena)
        lane->ops->free(lane->device, lane->device_arena, lane->device_arena_bytes);
    if (e->charged)
        lane->ops->discharge(lane->device, p->mapped_bytes, p->page_cache_bytes);
    if (lane->host_arena)
        lane->ops->free_host(lane->device, lane->host_arena, lane->host_arena_bytes);
    e->prefetch = NULL;
    e->kv = NULL;
    lane->device_arena = lane->host_arena = NULL;
    e->charged = false;
}
