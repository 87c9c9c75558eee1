/* An engine that computes nothing: the same plan, caches, rings, executor and sessions on the
 * dry backend. See engine.h. */
#include "runtime/engine/engine.h"

#include <math.h>
#include <string.h>

/* The options of the dry engine: without callbacks and files. The directories stay, because the
 * plan depends on whether there is a disk and a prefix cache; nothing is opened in them. */
static struct spw_options dry_options(const struct spw_options *o)
{
    struct spw_options own = *o;
    own.on_progress = NULL;
    own.on_pass = NULL;
    own.interrupt = NULL;
    own.expert_trace = NULL;
    own.expert_counts = NULL;
    own.weight_checksums = NULL;
    own.draft_model = NULL;
    return own;
}

static int copy_counts(struct spw_engine *e, const struct spw_engine *like)
{
    const uint32_t n = like->expert_counts ? e->model.weights->n_expert_blocks : 0;
    e->expert_counts = n ? spw_alloc(n * sizeof *e->expert_counts) : NULL;
    if (n && !e->expert_counts)
        return -ENOMEM;
    if (n)
        memcpy(e->expert_counts, like->expert_counts, n * sizeof *e->expert_counts);
    return 0;
}

static int open_all(struct spw_engine *e, const struct spw_engine *like, struct spw_error *err)
{
    const struct spw_device_options o = {
        .device_bytes = UINT64_MAX, .host_bytes = UINT64_MAX, .context = e->backend.context};
    SPW_TRY(e->lane.ops->open(&e->lane.device, &o, err));
    SPW_TRY(spw_weights_open(&e->model.weights, &e->model.config, e->model.tensors,
                             e->model.compute, err));
    if (copy_counts(e, like))
        return spw_fail(err, -ENOMEM, "out of memory for the counts of experts");
    e->in = like->in;
    e->in.weights = e->model.weights;
    SPW_TRY(spw_engine_open_tables(e, err));
    return spw_engine_take_memory(e, err);
}

int spw_engine_open_dry(struct spw_engine **out, const struct spw_engine *like,
                        const struct spw_dry_backend *backend,
                        const struct spw_persist_hooks *persist, const struct spw_dry_hooks *hooks,
                        struct spw_error *err)
{
    struct spw_engine *e = spw_alloc_zero(1, sizeof *e);
    *out = NULL;
    if (!e)
        return spw_fail(err, -ENOMEM, "out of memory for the engine");
    e->model = like->model;
    e->model.weights = NULL;
    e->model.is_borrowed = true;
    e->options = dry_options(&like->options);
    e->backend = backend->backend;
    e->lane.ops = e->backend.device_ops;
    e->above.persist = persist;
    e->dry = hooks;
    e->plan = like->plan;
    e->limit_watch.checked_at = INFINITY; /* never: no memory is taken */
    int rc = open_all(e, like, err);
    if (rc) {
        spw_engine_close(e);
        return rc;
    }
    *out = e;
    return 0;
}
