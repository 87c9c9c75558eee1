/* Opening and closing an engine, in the order in which its parts stand on each other:
 *
 *   model folder -> plan -> device, arenas, streams -> weights -> cache -> prefetch -> executor
 *
 * The plan knows every byte before the first one is taken. See spillway.h and engine.h. */
#include "runtime/prefix.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- the model folder ---- */

/* AUTO is bf16 for a model whose matrices are stored so (the first one speaks for all), else f32.
 */
enum spw_dtype spw_compute_type(const struct spw_safetensors *weights, const struct spw_options *o)
{
    for (size_t i = 0; !o->compute && i < spw_safetensors_count(weights); i++) {
        const struct spw_tensor *t = spw_safetensors_at(weights, i);
        if (t->n_dims == 2)
            return t->dtype == SPW_DTYPE_BF16 ? SPW_DTYPE_BF16 : SPW_DTYPE_F32;
    }
    return o->compute ? o->compute : SPW_DTYPE_F32;
}

int spw_model_open(struct spw_model *m, const char *dir, const struct spw_options *o,
                   struct spw_error *err)
{
    *m = (struct spw_model){0};
    int rc = spw_config_open(&m->config, dir, err);
    if (rc)
        return rc;
    rc = spw_safetensors_open(&m->file, dir, err);
    if (!rc) {
        m->compute = spw_compute_type(m->file, o);
        if (m->compute == SPW_DTYPE_F16)
            rc = spw_fail(err, -EINVAL, "compute type f16: expected auto, f32 or bf16");
    }
    if (!rc)
        rc = spw_cache_policy_make(&m->cache, &m->config, m->compute, o, err);
    if (!rc)
        rc = spw_weights_open(&m->weights, &m->config, m->file, m->compute, err);
    if (rc)
        spw_model_close(m);
    return rc;
}

void spw_model_close(struct spw_model *m)
{
    spw_weights_close(m->weights);
    spw_safetensors_close(m->file);
    spw_config_free(&m->config);
    *m = (struct spw_model){0};
}

/* ---- the device ---- */

/* One line, of all that there is to note. */
__attribute__((format(printf, 2, 3))) static void add_note(struct spw_engine *e, const char *format,
                                                           ...)
{
    size_t n = strlen(e->note);
    n += (size_t)snprintf(e->note + n, sizeof e->note - n, "%s", n ? "; " : "");
    if (n >= sizeof e->note)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(e->note + n, sizeof e->note - n, format, args);
    va_end(args);
}

/* Where files lie that are read and written beside the computation; NULL: there are none. */
static const char *io_folder(const struct spw_options *o)
{
    return o->disk_dir ? o->disk_dir : o->prefix_cache_dir;
}

static int open_device(struct spw_engine *e, const struct spw_options *o, uint64_t device_bytes,
                       uint64_t host_bytes, struct spw_error *err)
{
    struct spw_device_options x = {.device_bytes = device_bytes,
                                   .host_bytes = host_bytes,
                                   .threads = (int)o->threads,
                                   .io_threads = io_folder(o) ? 1 : 0,
                                   .io_path = io_folder(o),
                                   .delay_seed = o->delay_seed,
                                   .context = e->backend.context,
                                   .index = (int)e->backend.index};
    return e->backend.device_ops->open(&e->device, &x, err);
}

/* The backend that was asked for, and its device. AUTO says in the note why it is not the GPU. */
static int choose_device(struct spw_engine *e, const struct spw_options *o, uint64_t device_bytes,
                         uint64_t host_bytes, struct spw_error *err)
{
    if (o->threads > INT32_MAX)
        return spw_fail(err, -EINVAL, "%u threads: too many", o->threads);
    if (o->device_index > INT32_MAX)
        return spw_fail(err, -EINVAL, "device cuda:%u: no such GPU", o->device_index);
    if (o->backend != SPW_BACKEND_CPU) {
        struct spw_error why = {{0}};
        bool must = o->backend == SPW_BACKEND_CUDA;
        int rc = spw_backend_cuda(&e->backend, o->device_index, must ? err : &why);
        if (!rc)
            rc = open_device(e, o, device_bytes, host_bytes, must ? err : &why);
        if (!rc || must)
            return rc;
        if (rc != -ENOTSUP) /* a build without CUDA is nothing to note */
            add_note(e, "%.400s", why.text);
    }
    spw_backend_cpu(&e->backend);
    SPW_TRY(spw_backend_check(&e->backend, err));
    return open_device(e, o, device_bytes, host_bytes, err);
}

int spw_engine_choose_device(struct spw_backend *out, struct spw_device **device,
                             const struct spw_options *o, uint64_t device_bytes,
                             uint64_t host_bytes, struct spw_error *err)
{
    struct spw_engine e = {0};
    int rc = choose_device(&e, o, device_bytes, host_bytes, err);
    *out = e.backend;
    *device = e.device;
    return rc;
}

/* Device and model, before anything is planned. `backend` NULL: what the options say. */
static int begin(struct spw_engine **out, const struct spw_backend *backend, const char *model_dir,
                 const struct spw_options *o, uint64_t device_bytes, uint64_t host_bytes,
                 struct spw_error *err)
{
    struct spw_engine *e = spw_alloc_zero(1, sizeof *e);
    if (!e)
        return spw_fail(err, -ENOMEM, "out of memory for the engine");
    if (backend)
        e->backend = *backend;
    e->on_rung = o->on_rung;
    e->rung_context = o->rung_context;
    e->gate = o->gate;
    e->gate_context = o->gate_context;
    int rc = backend ? open_device(e, o, device_bytes, host_bytes, err)
                     : choose_device(e, o, device_bytes, host_bytes, err);
    if (!rc)
        rc = spw_model_open(&e->model, model_dir, o, err);
    if (!rc && e->model.cache.tell_files)
        add_note(e, "%s", e->model.cache.files_why);
    if (rc) {
        spw_engine_close(e);
        return spw_fail(err, rc, "out of memory");
    }
    *out = e;
    return 0;
}

int spw_plan_query_on(struct spw_plan_info *out, const struct spw_backend *backend,
                      const char *model_dir, const struct spw_options *o, struct spw_error *err)
{
    struct spw_engine *e = NULL;
    struct spw_plan_input in;
    *out = (struct spw_plan_info){0};
    /* The device says how many threads it would use, which is how many workspaces there are. */
    SPW_TRY(begin(&e, backend, model_dir, o, 0, 0, err));
    int rc = spw_engine_plan_input(&in, e, o, err);
    if (!rc) {
        rc = spw_engine_make_plan(e, &in, err);
        if (!rc)
            spw_plan_smallest(&e->plan.info, &in);
        *out = e->plan.info;
    }
    spw_engine_close(e);
    return rc ? spw_fail(err, rc, "out of memory") : 0;
}

int spw_plan_query(struct spw_plan_info *out, const char *model_dir, const struct spw_options *o,
                   struct spw_error *err)
{
    return spw_plan_query_on(out, NULL, model_dir, o, err);
}

/* ---- the engine ---- */

/* Another process may have taken device memory since it was planned with. What is free now is
 * planned with instead, as long as that works; else the plan's refusal names what would. */
static int take_device_memory(struct spw_engine *e, struct spw_plan_input *in,
                              struct spw_error *err)
{
    const struct spw_device_ops *ops = e->backend.device_ops;
    enum { TRIES = 4 };
    for (int i = 0;; i++) {
        uint64_t wanted = e->plan.device.end;
        int rc = ops->alloc(e->device, wanted, &e->device_arena);
        uint64_t available = rc == -ENOMEM ? ops->available(e->device) : UINT64_MAX;
        if (rc != -ENOMEM || available >= wanted || i == TRIES)
            return rc;
        in->device_bytes = spw_engine_leave_margin(available);
        SPW_TRY(spw_engine_make_plan(e, in, err));
        add_note(e,
                 "the GPU had only %llu bytes left when %llu were taken; planned again with %llu",
                 (unsigned long long)available, (unsigned long long)wanted,
                 (unsigned long long)in->device_bytes);
    }
}

static int open_memory(struct spw_engine *e, struct spw_plan_input *in, struct spw_error *err)
{
    static const char *const names[SPW_STREAM_COUNT] = {"compute",   "kv-up", "weights-up",
                                                        "hidden-up", "down",  "disk"};
    const struct spw_device_ops *ops = e->backend.device_ops;
    struct spw_device_usage usage;
    int rc = take_device_memory(e, in, err);
    if (!rc && e->backend.reads_host_memory) {
        rc = ops->charge(e->device, e->plan.mapped_bytes, e->plan.kept_bytes);
        e->charged = !rc;
    }
    if (!rc)
        rc = ops->alloc_host(e->device, e->plan.host.end, &e->host_arena);
    for (int i = 0; i < SPW_STREAM_COUNT && !rc; i++)
        rc = ops->stream_open(e->device, names[i], &e->streams[i]);
    if (rc)
        return spw_fail(err, rc,
                        "the system refused %llu bytes of device and %llu of host memory, "
                        "or the threads of the streams",
                        (unsigned long long)e->plan.device.end,
                        (unsigned long long)e->plan.host.end);
    ops->usage(e->device, &usage);
    if (usage.host_pageable)
        add_note(e,
                 "the system refused to pin host memory: transfers are staged by the driver, and "
                 "computation waits for each of them");
    return 0;
}

static void release_unit(void *context)
{
    const struct spw_unit_context *c = context;
    spw_weights_release_unit(c->weights, c->unit);
}

static void populate_unit(void *context)
{
    const struct spw_unit_context *c = context;
    spw_weights_populate_unit(c->weights, c->unit);
}

static void fill_image(void *context)
{
    const struct spw_unit_context *c = context;
    spw_weights_fill_image(c->weights, c->unit, (void *)(uintptr_t)c->image.from);
}

/* Where a unit is read from; `image`: the next free place in the host arena. */
static void describe_unit(struct spw_engine *e, uint32_t u, uint8_t **image)
{
    struct spw_weights *w = e->model.weights;
    struct spw_unit_context *c = &e->unit_contexts[u];
    struct spw_unit *unit = &e->units[u];
    *c = (struct spw_unit_context){.weights = w, .unit = u};
    *unit = (struct spw_unit){
        .pieces = w->pieces + w->unit_pieces[u],
        .n_pieces = w->unit_pieces[u + 1] - w->unit_pieces[u],
        .moved_bytes = spw_plan_unit_moved_bytes(&e->plan, w, u),
        .context = c,
    };
    if (spw_plan_unit_mapped(&e->plan, w, u)) {
        spw_weights_map_unit(w, u);
        unit->in_place = true;
        unit->prepare = populate_unit;
    } else if (spw_plan_unit_from_disk(&e->plan, w, u)) {
        spw_engine_read_unit(e, u);
    } else if (spw_plan_unit_image(&e->plan, w, u)) {
        c->image = (struct spw_piece){.from = *image, .bytes = unit->moved_bytes};
        *image += spw_align_up(unit->moved_bytes, 4096);
        unit->pieces = &c->image;
        unit->n_pieces = 1;
        unit->prepare = fill_image;
    } else if (spw_plan_unit_resident(&e->plan, w, u)) {
        unit->copied = release_unit;
    }
}

static int describe_units(struct spw_engine *e)
{
    const struct spw_weights *w = e->model.weights;
    uint8_t *next = (uint8_t *)e->device_arena + e->plan.device.units;
    uint8_t *image = (uint8_t *)e->host_arena + e->plan.host.images;
    e->units = spw_alloc_zero(w->n_units, sizeof *e->units);
    e->unit_contexts = spw_alloc_zero(w->n_units, sizeof *e->unit_contexts);
    if (!e->units || !e->unit_contexts)
        return -ENOMEM;
    for (uint32_t u = 0; u < w->n_units; u++) {
        describe_unit(e, u, &image);
        if (e->units[u].in_place || !spw_plan_unit_resident(&e->plan, w, u))
            continue;
        e->units[u].resident = next;
        next += spw_align_up(spw_weights_unit_bytes(w, u), 4096);
    }
    return 0;
}

/* Exact tiles beside those that age: on the device only. */
static int open_near_cache(struct spw_engine *e, const struct spw_kv_options *aged)
{
    struct spw_kv_options o = *aged;
    o.device_arena = (uint8_t *)e->device_arena + e->plan.device.near_frames;
    o.host_arena = NULL;
    o.n_device_frames = e->plan.n_near_frames;
    o.n_host_frames = o.n_disk_frames = 0;
    o.tile_bytes = e->plan.near_tile_bytes;
    o.slot_tiles = 1;
    o.disk = NULL;
    o.direct = false;
    o.first_tile = 0;
    o.keeps_sink = true;
    o.residual_tiles = e->plan.residency.residual_tiles;
    return spw_kv_open(&e->near, &o);
}

static int open_cache(struct spw_engine *e)
{
    const struct spw_plan *p = &e->plan;
    struct spw_kv_options o = {
        .ops = e->backend.device_ops,
        .device = e->device,
        .compute = e->streams[SPW_STREAM_COMPUTE],
        .down = e->streams[SPW_STREAM_DOWN],
        .up = e->streams[SPW_STREAM_KV_UP],
        .device_arena = (uint8_t *)e->device_arena + p->device.kv_frames,
        .host_arena = (uint8_t *)e->host_arena + p->host.kv_frames,
        .n_device_frames = p->n_device_frames,
        .n_host_frames = p->n_host_frames,
        .tile_bytes = p->tile_bytes,
        .n_layers = e->model.config.n_layers,
        .sliding = e->model.config.layer_kinds,
        .max_tiles = p->max_tiles,
        .slot_tiles = p->slot_tiles,
        .disk = e->disk,
        .disk_stream = e->streams[SPW_STREAM_DISK],
        .direct = p->direct,
        .n_disk_frames = p->n_disk_frames,
    };
    if (p->residency.aged)
        o.first_tile = spw_waterline_start(&p->residency);
    SPW_TRY(spw_kv_open(&e->kv, &o));
    return p->residency.aged ? open_near_cache(e, &o) : 0;
}

static int open_prefetch(struct spw_engine *e)
{
    const struct spw_plan *p = &e->plan;
    struct spw_prefetch_options o = {
        .ops = e->backend.device_ops,
        .device = e->device,
        .compute = e->streams[SPW_STREAM_COMPUTE],
        .kv_link = e->streams[SPW_STREAM_KV_UP],
        .weights_link = e->streams[SPW_STREAM_WEIGHTS_UP],
        .kv_arena = (uint8_t *)e->device_arena + p->device.kv_slots,
        .weights_arena = (uint8_t *)e->device_arena + p->device.unit_slots,
        .tile_bytes = p->tile_bytes,
        .unit_bytes = p->slot_unit_bytes,
        .n_kv_slots = p->n_kv_slots,
        .slot_tiles = p->slot_tiles,
        .n_weight_slots = p->n_unit_slots,
        .units = e->units,
        .n_units = e->model.weights->n_units,
        .disk = e->disk,
        .disk_stream = e->streams[SPW_STREAM_DISK],
        .bounce_arena = (uint8_t *)e->host_arena + p->host.bounce,
        .n_bounce = p->n_bounce,
        .unit_io = e->unit_files ? e->io : NULL,
        .unit_bounce_arena =
            p->n_unit_bounce ? (uint8_t *)e->host_arena + p->host.unit_bounce : NULL,
        .unit_bounce_bytes = p->bounce_unit_bytes,
    };
    return spw_prefetch_open(&e->prefetch, &o);
}

static int open_executor(struct spw_engine *e, const struct spw_options *o)
{
    struct spw_executor_options x = {
        .backend = &e->backend,
        .device = e->device,
        .compute = e->streams[SPW_STREAM_COMPUTE],
        .up = e->streams[SPW_STREAM_HIDDEN_UP],
        .down = e->streams[SPW_STREAM_DOWN],
        .plan = &e->plan,
        .weights = e->model.weights,
        .prefetch = e->prefetch,
        .device_arena = e->device_arena,
        .host_arena = e->host_arena,
        .most_spans = e->plan.info.sessions,
        .on_progress = o->on_progress,
        .progress_context = o->progress_context,
    };
    return spw_executor_open(&e->executor, &x);
}

static int open_parts(struct spw_engine *e, const struct spw_options *o, struct spw_error *err)
{
    uint32_t n = e->plan.info.sessions;
    SPW_TRY(spw_weights_prepare(e->model.weights, err));
    e->rope_length = 1;
    e->file_limit_bytes = UINT64_MAX;
    if (o->disk_write_limit) /* the rest is what the plan may need for spills */
        e->file_limit_bytes = spw_sub_u64(o->disk_write_limit, e->plan.info.disk_write_bytes);
    e->sessions = spw_alloc_zero(n, sizeof(struct spw_session *));
    e->spans = spw_alloc_zero(n, sizeof *e->spans);
    e->span_index = spw_alloc_zero(n, sizeof *e->span_index);
    e->stepping = spw_alloc_zero(n, sizeof(struct spw_session *));
    e->keep = spw_alloc_zero(n, sizeof *e->keep);
    e->delivered = spw_alloc_zero(n, sizeof *e->delivered);
    e->on_incident = o->on_incident;
    e->incident_context = o->incident_context;
    int rc = e->sessions && e->spans && e->span_index && e->stepping && e->keep && e->delivered
                 ? 0
                 : -ENOMEM;
    if (!rc)
        rc = describe_units(e);
    if (!rc)
        rc = open_cache(e);
    if (!rc)
        rc = open_prefetch(e);
    if (!rc)
        rc = open_executor(e, o);
    if (rc)
        return spw_fail(err, rc, "out of memory for the engine's tables");
    return 0;
}

int spw_engine_open_on(struct spw_engine **out, const struct spw_backend *backend,
                       const char *model_dir, const struct spw_options *o, struct spw_error *err)
{
    struct spw_engine *e = NULL;
    struct spw_plan_input in;
    SPW_TRY(begin(&e, backend, model_dir, o, spw_engine_budget(o->device_bytes, UINT64_MAX - 1),
                  spw_engine_budget(o->host_bytes, UINT64_MAX - 1), err));
    int rc = spw_engine_plan_input(&in, e, o, err);
    if (!rc)
        rc = spw_engine_make_plan(e, &in, err);
    if (!rc && (o->keeps || o->prefix_cache_dir))
        rc = spw_fingerprint_take(e->model_fingerprint, model_dir, e->model.file, err);
    if (!rc)
        rc = spw_prefix_open(e, o, err);
    if (!rc)
        rc = open_memory(e, &in, err);
    if (!rc)
        rc = spw_engine_open_disk(e, o, err);
    if (!rc)
        rc = open_parts(e, o, err);
    if (rc) {
        spw_engine_close(e);
        return spw_fail(err, rc, "out of memory");
    }
    *out = e;
    return 0;
}

int spw_engine_open(struct spw_engine **out, const char *model_dir, const struct spw_options *o,
                    struct spw_error *err)
{
    return spw_engine_open_on(out, NULL, model_dir, o, err);
}

void spw_engine_close(struct spw_engine *e)
{
    if (!e)
        return;
    const struct spw_device_ops *ops = e->backend.device_ops;
    spw_executor_close(e->executor);
    spw_prefetch_close(e->prefetch);
    for (int i = 0; i < SPW_STREAM_COUNT; i++)
        if (e->streams[i])
            ops->stream_close(e->device, e->streams[i]);
    spw_kv_close(e->near);
    spw_kv_close(e->kv);
    spw_engine_close_disk(e);
    spw_prefix_close(e);
    spw_free(e->units);
    spw_free(e->unit_contexts);
    spw_free(e->sessions);
    spw_free(e->spans);
    spw_free(e->span_index);
    spw_free(e->stepping);
    spw_free(e->keep);
    spw_free(e->delivered);
    if (e->device_arena)
        ops->free(e->device, e->device_arena, e->plan.device.end);
    if (e->charged)
        ops->discharge(e->device, e->plan.mapped_bytes, e->plan.kept_bytes);
    if (e->host_arena)
        ops->free_host(e->device, e->host_arena, e->plan.host.end);
    if (e->device)
        ops->close(e->device);
    spw_model_close(&e->model);
    spw_free(e);
}

const struct spw_model_config *spw_engine_config(const struct spw_engine *e)
{
    return &e->model.config;
}

const struct spw_plan_info *spw_engine_plan(const struct spw_engine *e)
{
    return &e->plan.info;
}

const char *spw_engine_backend(const struct spw_engine *e)
{
    return e->backend.name;
}

const char *spw_engine_io(const struct spw_engine *e)
{
    return e->io_text;
}

const char *spw_engine_note(const struct spw_engine *e)
{
    return e->note;
}

const struct spw_incident *spw_engine_incidents(const struct spw_engine *e, uint64_t *n)
{
    *n = e->n_incidents;
    return e->incidents;
}

double spw_engine_layer_wait(struct spw_engine *e, uint32_t layer)
{
    spw_stream compute = e->streams[SPW_STREAM_COMPUTE];
    if (layer >= SPW_RANGES)
        return 0;
    return e->backend.device_ops->waited_seconds(e->device, compute, layer) +
           spw_prefetch_stalled_seconds(e->prefetch, layer);
}

void spw_engine_stats(struct spw_engine *e, struct spw_stats *out)
{
    spw_stream compute = e->streams[SPW_STREAM_COMPUTE];
    const struct spw_device_ops *ops = e->backend.device_ops;
    struct spw_device_usage u;
    struct spw_traffic predicted;
    for (int i = 0; i < SPW_STREAM_COUNT; i++) /* counters are exact when nothing is under way */
        ops->stream_sync(e->device, e->streams[i]);
    spw_prefetch_finish(e->prefetch);
    spw_kv_finish_writes(e->kv);
    ops->usage(e->device, &u);
    spw_executor_predicted(e->executor, &predicted);
    *out = (struct spw_stats){
        .device_budget_bytes = e->plan.info.device_budget_bytes,
        .host_budget_bytes = e->plan.info.host_budget_bytes,
        .disk_budget_bytes = e->plan.info.disk_budget_bytes,
        .device_peak_bytes = u.device_peak_bytes,
        .host_peak_bytes = u.host_peak_bytes,
        .disk_peak_bytes = e->plan.info.disk.total, /* taken at open, whole */
        .moved_bytes = {[SPW_MOVED_HOST_TO_DEVICE] = u.moved_bytes[SPW_LINK_HOST_TO_DEVICE],
                        [SPW_MOVED_DEVICE_TO_HOST] = u.moved_bytes[SPW_LINK_DEVICE_TO_HOST]},
        .card_bytes = u.card_bytes,
        .unhidden_wait_seconds = ops->waited_seconds(e->device, compute, SPW_RANGES) +
                                 spw_prefetch_stalled_seconds(e->prefetch, SPW_RANGES),
    };
    for (uint32_t l = 0; l < e->model.config.n_layers; l++)
        out->unhidden_wait_seconds += spw_engine_layer_wait(e, l);
    spw_engine_disk_stats(e, out);
    memcpy(out->predicted_bytes, predicted.bytes, sizeof out->predicted_bytes);
}
