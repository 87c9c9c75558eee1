/* Opens and closes an engine. Each part needs the parts before it:
 *
 *   device -> model folder -> plan -> streams -> the memory of the plan: engine_memory.c
 *
 * The plan knows every byte before the first one is allocated. See spillway.h and engine.h. */
#include "runtime/engine/engine.h"

#include "quant/types.h"
#include "runtime/experts/counts.h"
#include "runtime/experts/trace.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- the model folder ---- */

/* AUTO is bf16 for a model whose first matrix is stored in bf16 or that has a quantized matrix,
 * else f32. An MTP layer in a file of its own decides nothing: answers are the same without it. */
enum spw_dtype spw_compute_type(const struct spw_tensors *weights, const struct spw_options *o)
{
    enum spw_dtype first = SPW_DTYPE_AUTO;
    bool is_quantized = false;
    for (size_t i = 0; i < spw_tensors_count(weights); i++) {
        const struct spw_tensor *t = spw_tensors_at(weights, i);
        if (t->file_index >= spw_tensors_n_model_files(weights))
            continue;
        first = !first && t->n_dims == 2 ? t->dtype : first;
        is_quantized |= spw_type_is_quantized(t->dtype);
    }
    if (o->compute)
        return o->compute;
    return first == SPW_DTYPE_BF16 || is_quantized ? SPW_DTYPE_BF16 : SPW_DTYPE_F32;
}

/* Makes the MTP layer the model's last one. */
static int add_mtp(struct spw_model *m, struct spw_error *err)
{
    if (m->config.mtp_beside)
        SPW_TRY(m->source->ops->add_mtp(m->source, &m->config, m->tensors, err));
    return spw_config_add_mtp(&m->config, err);
}

/* -ENODATA: drafts by an MTP layer are asked for, and no file has one. */
static int open_model(struct spw_model *m, const char *path, const struct spw_options *o,
                      struct spw_error *err)
{
    *m = (struct spw_model){0};
    SPW_TRY(spw_source_open(&m->source, path, err));
    int rc = m->source->ops->config(m->source, &m->config, err);
    if (!rc)
        rc = m->source->ops->tensors(m->source, &m->tensors, err);
    if (!rc && o->drafts == SPW_DRAFTS_MTP)
        rc = add_mtp(m, err);
    if (!rc) {
        m->compute = spw_compute_type(m->tensors, o);
        rc = spw_cache_policy_make(&m->cache, &m->config, m->compute, o, err);
    }
    if (!rc)
        rc = spw_weights_open(&m->weights, &m->config, m->tensors, m->compute, err);
    if (rc)
        spw_model_close(m);
    return rc;
}

int spw_model_open(struct spw_model *m, const char *path, const struct spw_options *o,
                   struct spw_error *err)
{
    const int rc = open_model(m, path, o, err);
    return rc == -ENODATA ? -EINVAL : rc;
}

void spw_model_close(struct spw_model *m)
{
    spw_weights_close(m->weights);
    if (m->is_borrowed)
        return;
    spw_tensors_close(m->tensors);
    spw_config_free(&m->config);
    spw_source_close(m->source);
    *m = (struct spw_model){0};
}

/* ---- the device ---- */

/* Adds a line to the notes. */
void spw_engine_add_note(struct spw_engine *e, const char *format, ...)
{
    size_t n = strlen(e->texts.note);
    n += (size_t)snprintf(e->texts.note + n, sizeof e->texts.note - n, "%s", n ? "\n" : "");
    if (n >= sizeof e->texts.note)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(e->texts.note + n, sizeof e->texts.note - n, format, args);
    va_end(args);
}

/* The folder of the files that are read and written beside the computation; NULL: there are
 * none. */
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
                                   .serial_kernels = o->serial_kernels,
                                   .context = e->backend.context,
                                   .index = (int)e->backend.index};
    e->lane.ops = e->backend.device_ops;
    return e->lane.ops->open(&e->lane.device, &x, err);
}

/* Opens the backend that the options name, and its device. AUTO says in the note why it did not
 * take the GPU. */
static int choose_device(struct spw_engine *e, const struct spw_options *o, uint64_t device_bytes,
                         uint64_t host_bytes, struct spw_error *err)
{
    if (o->threads > INT32_MAX)
        return spw_fail(err, -EINVAL, "threads: found %u, expected 0 (every core) to %d",
                        o->threads, INT32_MAX);
    if (o->device_index > INT32_MAX)
        return spw_fail(err, -EINVAL,
                        "device cuda:%u: this machine has no such GPU; see nvidia-smi",
                        o->device_index);
    if (o->own_backend) {
        e->backend = *o->own_backend;
        return open_device(e, o, device_bytes, host_bytes, err);
    }
    if (o->backend != SPW_BACKEND_CPU) {
        struct spw_error why = {0};
        bool must = o->backend == SPW_BACKEND_CUDA;
        int rc = spw_backend_cuda(&e->backend, o->device_index, must ? err : &why);
        if (!rc)
            rc = open_device(e, o, device_bytes, host_bytes, must ? err : &why);
        if (!rc || must)
            return rc;
        if (rc != -ENOTSUP) /* without a driver there is nothing to say */
            spw_engine_add_note(e, "%.400s", why.text);
    }
    spw_backend_cpu(&e->backend);
    SPW_TRY(spw_backend_check(&e->backend, err));
    return open_device(e, o, device_bytes, host_bytes, err);
}

int spw_engine_choose_device(struct spw_backend *out, struct spw_lane *lane,
                             const struct spw_options *o, uint64_t device_bytes,
                             uint64_t host_bytes, struct spw_error *err)
{
    struct spw_engine e = {0};
    int rc = choose_device(&e, o, device_bytes, host_bytes, err);
    *out = e.backend;
    *lane = e.lane;
    return rc;
}

/* Copies the options and their strings: the caller's strings are valid only until the engine is
 * open. */
static int keep_options(struct spw_engine *e, const struct spw_options *o)
{
    e->options = *o;
    if (o->disk_dir)
        e->options.disk_dir = e->own.disk_dir = spw_strdup(o->disk_dir);
    if (o->prefix_cache_dir)
        e->options.prefix_cache_dir = e->own.prefix_cache_dir = spw_strdup(o->prefix_cache_dir);
    if (o->machine) {
        e->own.machine = *o->machine;
        e->options.machine = &e->own.machine;
    }
    if (o->drive) {
        e->own.drive = *o->drive;
        e->options.drive = &e->own.drive;
    }
    if (o->weight_checksums)
        e->options.weight_checksums = e->own.weight_checksums = spw_strdup(o->weight_checksums);
    if (o->draft_model)
        e->options.draft_model = e->own.draft_model = spw_strdup(o->draft_model);
    bool kept = (!o->disk_dir || e->own.disk_dir) &&
                (!o->prefix_cache_dir || e->own.prefix_cache_dir) &&
                (!o->weight_checksums || e->own.weight_checksums) &&
                (!o->draft_model || e->own.draft_model);
    e->options.own_backend = NULL;
    e->options.expert_counts = NULL; /* the engine's own array has them */
    return kept ? 0 : -ENOMEM;
}

/* The counts of experts: those of earlier runs, or 0. */
static int begin_counts(struct spw_engine *e, const struct spw_expert_counts *c,
                        struct spw_error *err)
{
    const struct spw_model_config *m = &e->model.config;
    const uint32_t n = e->model.weights->n_expert_blocks, counted = c ? c->n_experts : n;
    const uint32_t most = spw_max_u32(n, counted), more = most - spw_min_u32(n, counted);
    /* those of the MTP layer come last: another run may have had them, or not */
    if (more && !(m->may_add_mtp && more == m->experts.n))
        return spw_fail(err, -EINVAL, "the counts of experts have %u experts, the model has %u",
                        counted, n);
    e->expert_counts = n ? spw_alloc_zero(most, sizeof *e->expert_counts) : NULL;
    if (n && !e->expert_counts)
        return spw_fail(err, -ENOMEM, "out of memory for the counts of experts");
    if (c)
        spw_expert_counts_get(c, e->expert_counts);
    return 0;
}

const double *spw_engine_expert_counts(struct spw_engine *e)
{
    if (e->executor && e->plan.n_expert_frames)
        spw_prefetch_expert_counts(e->prefetch, e->expert_counts);
    return e->expert_counts;
}

/* Opens device and model, before anything is planned. */
static int begin(struct spw_engine *e, const char *model_dir, const struct spw_options *o,
                 struct spw_error *err)
{
    SPW_TRY(keep_options(e, o));
    SPW_TRY(choose_device(e, o, spw_engine_limit(o->device_bytes), spw_engine_limit(o->host_bytes),
                          err));
    SPW_TRY(spw_model_open(&e->model, model_dir, o, err));
    SPW_TRY(spw_engine_open_host_lane(e, o, err));
    SPW_TRY(begin_counts(e, o->expert_counts, err));
    if (e->model.cache.notes_files)
        spw_engine_add_note(e, "%s", e->model.cache.files_why);
    return 0;
}

/* The weights borrow the config, which lies in the model. */
static void move_model(struct spw_model *to, struct spw_model *from)
{
    *to = *from;
    to->weights->config = &to->config;
}

/* AUTO: the model with its MTP layer, where nothing else gets worse by it. The engine has a plan
 * without the layer. */
static int try_mtp(struct spw_engine *e, const char *model_dir, const struct spw_options *o,
                   struct spw_error *err)
{
    struct spw_options mtp = *o;
    struct spw_model alone;
    struct spw_error why = {0};
    mtp.drafts = SPW_DRAFTS_MTP;
    if (!e->plan.draft_rows || o->draft_model || e->in.has_snapshots ||
        !e->model.config.may_add_mtp)
        return 0;
    move_model(&alone, &e->model);
    const int rc = open_model(&e->model, model_dir, &mtp, &why);
    if (!rc && spw_engine_plan_mtp(e, o)) {
        spw_model_close(&alone);
        spw_free(e->expert_counts);
        e->expert_counts = NULL;
        SPW_TRY(begin_counts(e, o->expert_counts, err));
        return spw_engine_describe_plan(e, &e->plan);
    }
    if (!rc)
        spw_model_close(&e->model);
    move_model(&e->model, &alone);
    if (rc && rc != -ENODATA && e->model.config.mtp_beside) /* a file is there, and is of no use */
        spw_engine_add_note(e, "no drafts by an MTP layer: %s", why.text);
    return 0;
}

int spw_engine_plan_only(struct spw_engine **out, const char *model_dir,
                         const struct spw_options *o, struct spw_error *err)
{
    struct spw_fallback fallback;
    spw_error_clear(err);
    struct spw_engine *e = *out = spw_alloc_zero(1, sizeof *e);
    if (!e)
        return spw_fail(err, -ENOMEM, "out of memory for the engine");
    int rc = begin(e, model_dir, o, err);
    /* The device decides the number of threads, and each thread needs a workspace. */
    if (!rc)
        rc = spw_engine_plan_input(&e->in, e, o, err);
    if (!rc)
        rc = spw_engine_make_plan(e, &e->in, &fallback, err);
    if (!rc && fallback.failed)
        spw_engine_note_fallback(e, &fallback);
    if (!rc && o->drafts == SPW_DRAFTS_AUTO)
        rc = try_mtp(e, model_dir, o, err);
    return rc ? spw_fail(err, rc, "%s: %s", model_dir, strerror(-rc)) : 0;
}

/* Smaller budgets have no optional drafts, and no optional MTP layer. */
static int find_smallest(struct spw_plan_info *info, struct spw_engine *e, const char *model_dir,
                         const struct spw_options *o, struct spw_error *err)
{
    struct spw_options off = *o;
    struct spw_plan_info without;
    off.drafts = SPW_DRAFTS_OFF;
    if (spw_drafts_are_optional(o))
        e->in.draft_rows = 0;
    if (o->drafts != SPW_DRAFTS_AUTO || !e->model.config.mtp) {
        spw_plan_smallest(info, &e->in);
        return 0;
    }
    SPW_TRY(spw_plan_query(&without, model_dir, &off, err));
    info->smallest_device_bytes = without.smallest_device_bytes;
    info->smallest_host_bytes = without.smallest_host_bytes;
    info->smallest_disk_bytes = without.smallest_disk_bytes;
    return 0;
}

uint32_t spw_plan_tile_tokens(void)
{
    return SPW_TILE_TOKENS;
}

int spw_plan_query(struct spw_plan_info *out, const char *model_dir, const struct spw_options *o,
                   struct spw_error *err)
{
    struct spw_engine *e;
    struct spw_engine_event event;
    *out = (struct spw_plan_info){0};
    int rc = spw_engine_plan_only(&e, model_dir, o, err);
    if (!rc)
        rc = find_smallest(&e->plan.info, e, model_dir, o, err);
    if (e) {
        *out = e->plan.info;
        if (spw_engine_event(e, &event))
            out->fallback = event.fallback;
    }
    spw_engine_close(e);
    return rc;
}

/* ---- the engine ---- */

const char *spw_version(void)
{
    return SPW_VERSION;
}

void spw_options_init(struct spw_options *o)
{
    *o = (struct spw_options){0};
}

static int open_streams(struct spw_engine *e, struct spw_error *err)
{
    int rc = spw_lane_open_streams(&e->lane);
    return rc ? spw_fail(err, rc,
                         "the streams of the device could not be opened (%s); if the limit of "
                         "threads is the cause, raise it (ulimit -u)",
                         strerror(-rc))
              : 0;
}

int spw_engine_open_tables(struct spw_engine *e, struct spw_error *err)
{
    uint32_t n = e->plan.info.sessions, n_blocks = spw_engine_n_blocks(e);
    SPW_TRY(open_streams(e, err));
    e->rope_table = SPW_ROPE_SHARED;
    e->sessions = spw_alloc_zero(n, sizeof(struct spw_session *));
    e->sharing.shares = spw_alloc_zero(n, sizeof *e->sharing.shares);
    e->step.items = spw_alloc_zero(n, sizeof *e->step.items);
    e->step.span_index = spw_alloc_zero(n, sizeof *e->step.span_index);
    e->step.sessions = spw_alloc_zero(n, sizeof(struct spw_session *));
    e->sharing.n_tokens = spw_alloc_zero(n, sizeof *e->sharing.n_tokens);
    e->paused.sessions = spw_alloc_zero(n, sizeof(struct spw_session *));
    e->blocks.list = spw_alloc_zero(n_blocks, sizeof *e->blocks.list);
    e->blocks.contexts = spw_alloc_zero(n_blocks, sizeof *e->blocks.contexts);
    e->reads.ranges = spw_alloc_zero(e->model.weights->n_matrices, sizeof *e->reads.ranges);
    e->reads.bounce_offsets =
        spw_alloc_zero(e->model.weights->n_matrices, sizeof *e->reads.bounce_offsets);
    if (e->sessions && e->sharing.shares && e->step.items && e->step.span_index &&
        e->step.sessions && e->sharing.n_tokens && e->paused.sessions && e->blocks.list &&
        e->blocks.contexts && e->reads.ranges && e->reads.bounce_offsets)
        return 0;
    return spw_fail(err, -ENOMEM, "out of memory for the engine's tables");
}

int spw_engine_open_with(struct spw_engine **out, const struct spw_persist_hooks *hooks,
                         const char *model_dir, const struct spw_options *o, struct spw_error *err)
{
    struct spw_engine *e;
    int rc = spw_engine_plan_only(&e, model_dir, o, err);
    *out = NULL;
    if (e)
        e->above.persist = hooks;
    if (!rc && e->plan.info.context > e->model.config.reach)
        spw_engine_add_note(e,
                            "the context of %llu tokens is longer than the %llu positions that the "
                            "model was made for: answers may get worse after them",
                            (unsigned long long)e->plan.info.context,
                            (unsigned long long)e->model.config.reach);
    if (!rc)
        rc = spw_engine_check_memory(e, err);
    if (!rc && (o->saves || o->prefix_cache_dir))
        rc = spw_fingerprint_take(e->model_fingerprint, e->model.source, e->model.tensors, err);
    if (!rc)
        rc = spw_engine_open_tables(e, err);
    if (!rc)
        rc = spw_engine_take_memory(e, err);
    if (!rc)
        rc = spw_engine_open_drafter(e, err);
    if (!rc)
        spw_engine_watch_limit(e);
    if (rc) {
        spw_engine_close(e);
        return spw_fail(err, rc, "%s: %s", model_dir, strerror(-rc));
    }
    *out = e;
    return 0;
}

void spw_engine_close(struct spw_engine *e)
{
    if (!e)
        return;
    spw_engine_close(e->drafter);
    spw_engine_give_memory(e);
    if (e->own.weight_checksums && e->reads.sums.sums) /* without them the next run takes its own */
        spw_block_sums_write(&e->reads.sums, e->own.weight_checksums, NULL);
    spw_block_sums_close(&e->reads.sums);
    spw_lane_close_streams(&e->lane);
    if (e->above.persist)
        e->above.persist->close(e);
    spw_free(e->blocks.list);
    spw_free(e->blocks.contexts);
    spw_free(e->reads.ranges);
    spw_free(e->reads.bounce_offsets);
    spw_free(e->sessions);
    spw_free(e->sharing.shares);
    spw_free(e->step.items);
    spw_free(e->step.span_index);
    spw_free(e->step.sessions);
    spw_free(e->sharing.n_tokens);
    spw_free(e->paused.sessions);
    if (e->lane.device)
        e->lane.ops->close(e->lane.device);
    spw_engine_close_host_lane(e);
    spw_model_close(&e->model);
    spw_free(e->expert_counts);
    spw_free(e->own.disk_dir);
    spw_free(e->own.prefix_cache_dir);
    spw_free(e->own.weight_checksums);
    spw_free(e->own.draft_model);
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

const char *spw_engine_nan_advice(const struct spw_engine *e)
{
    if (e->model.compute != SPW_DTYPE_F32)
        return "computing in f32 has more range, or the weights are damaged";
    if (e->model.cache.kv == SPW_DTYPE_F16)
        return "a KV cache in f32 has more range, or the weights are damaged";
    return "the weights are damaged, or too large for f32";
}

const char *spw_engine_io(const struct spw_engine *e)
{
    return e->texts.io;
}

const char *spw_engine_note(const struct spw_engine *e)
{
    return e->texts.note;
}

/* The wait in one range, or (SPW_RANGES) outside of all ranges. */
static double waited(struct spw_engine *e, uint32_t range)
{
    const struct spw_lane *lane = &e->lane;
    double stalled = e->prefetch ? spw_prefetch_stalled_seconds(e->prefetch, range) : 0;
    return lane->ops->waited_seconds(lane->device, lane->compute, range) + e->past.stalled[range] +
           stalled;
}

double spw_engine_layer_wait(struct spw_engine *e, uint32_t layer)
{
    return layer < SPW_RANGES ? waited(e, layer) : 0;
}

/* What it has of the budgets. It moves bytes for drafts, which belong to no answer. */
static void add_drafter(struct spw_engine *drafter, struct spw_stats *out)
{
    struct spw_stats its;
    spw_engine_stats(drafter, &its);
    out->device_budget_bytes += drafter->plan.info.device.total;
    out->host_budget_bytes += drafter->plan.info.host.total;
    out->device_peak_bytes += its.device_peak_bytes;
    out->host_peak_bytes += its.host_peak_bytes;
    for (int i = 0; i < SPW_MOVED_COUNT; i++)
        out->draft_moved_bytes[i] = its.moved_bytes[i];
}

void spw_engine_stats(struct spw_engine *e, struct spw_stats *out)
{
    struct spw_device_usage u;
    struct spw_io_usage io = {0};
    if (e->executor) /* counters are exact when no copy and no read is in flight */
        spw_engine_finish(e);
    e->lane.ops->usage(e->lane.device, &u);
    if (e->io)
        spw_io_usage(e->io, &io);
    *out = (struct spw_stats){
        .device_budget_bytes = e->plan.info.device_budget_bytes,
        .host_budget_bytes = e->plan.info.host_budget_bytes,
        .disk_budget_bytes = e->plan.info.disk_budget_bytes,
        .device_peak_bytes = u.device_peak_bytes,
        .host_peak_bytes = u.host_peak_bytes,
        .disk_peak_bytes = e->plan.info.disk.total, /* allocated whole at open */
        .moved_bytes = {[SPW_MOVED_HOST_TO_DEVICE] = u.moved_bytes[SPW_LINK_HOST_TO_DEVICE],
                        [SPW_MOVED_DEVICE_TO_HOST] = u.moved_bytes[SPW_LINK_DEVICE_TO_HOST],
                        [SPW_MOVED_HOST_TO_DISK] =
                            e->past.written_bytes + io.written_bytes + e->files.written_bytes,
                        [SPW_MOVED_DISK_TO_HOST] =
                            e->past.read_bytes + io.read_bytes + e->files.read_bytes},
        .host_multiplied_bytes =
            e->past.host_multiplied_bytes + (e->executor ? e->executor->host_multiplied_bytes : 0),
        .card_bytes = u.card_bytes,
        .unhidden_wait_seconds = waited(e, SPW_RANGES),
        .n_fallbacks = e->events.n_fallbacks,
        .n_lost_tiles = e->events.n_lost_tiles,
        .kv_tokens = spw_engine_open_tiles(e, true) * SPW_TILE_TOKENS,
        .most_kv_tokens = spw_share_most_tiles(&e->plan) * SPW_TILE_TOKENS,
    };
    if (e->drafter)
        add_drafter(e->drafter, out);
    for (uint32_t l = 0; l < e->model.config.n_layers; l++)
        out->unhidden_wait_seconds += spw_engine_layer_wait(e, l);
}
