/* Counts and traces of the experts of an engine, or of a plan: see runtime/experts.h. */
#include "runtime/engine/engine.h"

#include "runtime/experts/counts.h"
#include "runtime/experts/trace.h"

#include <stdio.h>
#include <time.h>

/* ---- counts ---- */

/* The entry of the engine. False: no expert was chosen. */
static bool describe(struct spw_expert_counts *c, struct spw_engine *e, uint8_t *codes)
{
    const uint32_t n = e->model.weights->n_expert_blocks;
    c->n_experts = n;
    c->largest = spw_expert_counts_encode(codes, spw_engine_expert_counts(e), n);
    for (uint32_t i = 0; i < n; i++)
        snprintf(&c->codes[2 * i], 3, "%02x", codes[i]);
    c->measured_at = (int64_t)time(NULL);
    return c->largest > 0;
}

static int add(struct spw_expert_profile *p, struct spw_expert_counts *c, struct spw_engine *e,
               const char *profile, struct spw_error *err)
{
    SPW_TRY(spw_expert_model_name(c->model, e->model.source, e->model.tensors, err));
    int rc = spw_expert_profile_read(p, profile, NULL);
    if (rc == -ENOMEM)
        return spw_fail(err, rc, "%s: no memory to read it", profile);
    spw_expert_profile_put(p, c); /* a profile that cannot be used is empty */
    return spw_expert_profile_write(p, profile, err);
}

int spw_expert_counts_write(struct spw_engine *e, const char *profile, struct spw_error *err)
{
    const uint32_t n = e->model.weights->n_expert_blocks;
    spw_error_clear(err);
    if (!n || n > SPW_MOST_COUNTED_EXPERTS || !e->plan.n_expert_frames)
        return 0;
    struct spw_expert_profile *p = spw_alloc(sizeof *p);
    struct spw_expert_counts *c = spw_alloc_zero(1, sizeof *c);
    uint8_t *codes = spw_alloc(n);
    int rc = p && c && codes ? 0 : spw_fail(err, -ENOMEM, "%s: no memory to write it", profile);
    if (!rc && describe(c, e, codes))
        rc = add(p, c, e, profile, err);
    spw_free(p);
    spw_free(c);
    spw_free(codes);
    return rc;
}

/* ---- what a trace costs ---- */

struct planned {
    const struct spw_plan *plan;
    const struct spw_weights *weights;
};

static void add_moved(const void *context, const struct spw_expert_visit *v, uint64_t rows,
                      uint64_t moved[SPW_MOVED_COUNT])
{
    const struct planned *p = context;
    spw_plan_add_missed(p->plan, p->weights, v, rows, moved);
}

static int replay_plan(struct spw_expert_replay *out, const struct spw_plan *p,
                       const struct spw_weights *w, const struct spw_expert_trace *t,
                       struct spw_error *err)
{
    const struct spw_model_config *c = w->config;
    if (t->shape.n_experts != c->experts.n || t->shape.n_layers != spw_expert_layers(c) ||
        t->shape.n_kept != c->experts.n_kept)
        return spw_fail(err, -EINVAL,
                        "the trace has %u layers of %u experts, %u for each token; the model has "
                        "%u of %u, and %u",
                        t->shape.n_layers, t->shape.n_experts, t->shape.n_kept,
                        spw_expert_layers(c), c->experts.n, c->experts.n_kept);
    uint64_t *bytes = spw_alloc_zero(w->n_expert_blocks, sizeof *bytes);
    for (uint32_t e = 0; bytes && e < w->n_expert_blocks; e++)
        bytes[e] = w->blocks[w->n_blocks + e].bytes;
    const struct planned planned = {p, w};
    const struct spw_expert_costs costs = {.n_frames = p->n_expert_frames,
                                           .host_rows = p->host_rows,
                                           .bytes = bytes,
                                           .add_moved = add_moved,
                                           .context = &planned};
    int rc = bytes ? spw_expert_replay(out, t, &costs) : -ENOMEM;
    spw_free(bytes);
    return rc ? spw_fail(err, rc, "out of memory for the trace") : 0;
}

int spw_engine_replay(struct spw_expert_replay *out, const struct spw_engine *e,
                      const struct spw_expert_trace *t, struct spw_error *err)
{
    spw_error_clear(err);
    return replay_plan(out, &e->plan, e->model.weights, t, err);
}

int spw_plan_replay(struct spw_expert_replay *out, const char *model, const struct spw_options *o,
                    const struct spw_expert_trace *t, struct spw_error *err)
{
    struct spw_engine *e;
    int rc = spw_engine_plan_only(&e, model, o, err);
    if (!rc)
        rc = spw_engine_replay(out, e, t, err);
    spw_engine_close(e);
    return rc;
}
