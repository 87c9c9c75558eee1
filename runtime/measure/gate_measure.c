/* The calibration run: an exact cache and quantized ones, side by side.
 *
 *   lane 0   exact        |--- rows ---|--- rows ---|      logits of the running rows are kept
 *   lane 1   int8         |--- rows ---|--- rows ---|      and compared as they come
 *   lane 2   int4         ...
 *
 * Each lane is an engine of its own, and takes its turn, some rows at a time, so that no more than
 * those rows' logits are ever kept: a vocabulary of 256,000 takes 64 MiB. Budgets that were given
 * are shared out evenly.
 *
 * The window is 128 tokens, a tile, where a run keeps 1,024 exact: all but the sink, the query's
 * own tile and the one before are read quantized, so that near keys, which matter most, are put to
 * the test. What passes with fewer exact tokens passes with more. It also makes a short text long
 * enough. A run that keeps none is checked with none. */
#include "runtime/measure/calibration.h"
#include "runtime/measure/divergence.h"
#include "runtime/measure/gate.h"

#include "quant/residual.h"

#include <math.h>
#include <string.h>

enum { ROWS = 64 };

struct lane {
    struct spw_engine *engine;
    struct spw_session *session;
    struct spw_divergence divergence;
    const struct run *run;
};

struct run {
    struct lane lanes[1 + SPW_GATE_FORMATS];
    size_t n_lanes;
    int32_t *tokens; /* [n_tokens] */
    size_t n_tokens;
    size_t first;  /* position that reads a quantized tile */
    size_t done;   /* tokens that all lanes hold */
    float *logits; /* [ROWS][vocab], lane 0's, of positions from `done` on */
    uint32_t vocab;
};

uint32_t spw_gate_window(uint64_t residual_window)
{
    return residual_window == SPW_BYTES_NONE ? 0 : SPW_GATE_WINDOW;
}

/* ---- steps ---- */

static void on_logits(void *context, size_t span, size_t position, const float *logits)
{
    struct lane *l = context;
    (void)span;
    float *exact = l->run->logits + (position - l->run->done) * l->run->vocab;
    if (l == l->run->lanes)
        memcpy(exact, logits, l->run->vocab * sizeof *logits);
    else
        spw_divergence_add(&l->divergence, exact, logits, l->run->vocab);
}

/* All lanes to `n` tokens, in order: the exact one leads. */
static int step(struct run *r, size_t n, size_t n_logits, struct spw_error *err)
{
    for (size_t i = 0; i < r->n_lanes; i++) {
        struct lane *l = &r->lanes[i];
        struct spw_span span = {l->session, r->tokens, n, n_logits};
        SPW_TRY(spw_sync(l->engine, &span, 1, on_logits, l, err));
    }
    r->done = n;
    return 0;
}

static int steps(struct run *r, struct spw_error *err)
{
    SPW_TRY(step(r, r->first, 0, err));
    while (r->done < r->n_tokens) {
        size_t rows = (size_t)spw_min_u64(ROWS, r->n_tokens - r->done);
        SPW_TRY(step(r, r->done + rows, rows, err));
    }
    return 0;
}

/* ---- lanes ---- */

static bool is_given(uint64_t budget)
{
    return budget != 0 && budget != SPW_BYTES_NONE;
}

/* A budget that was given, less what the logits take of it, in equal parts. */
static uint64_t part_of(uint64_t budget, uint64_t logits_bytes, size_t n)
{
    return is_given(budget) ? spw_max_u64(spw_sub_u64(budget, logits_bytes) / n, 1) : budget;
}

/* The logits of the running rows lie on the host; where its budget is small beside them, as it may
 * be on the CPU, the device's answers for them. */
static void share_out(struct spw_options *o, uint64_t logits_bytes, size_t n)
{
    bool on_host = is_given(o->host_bytes) && o->host_bytes / 4 >= logits_bytes;
    o->device_bytes = part_of(o->device_bytes, on_host ? 0 : logits_bytes, n);
    o->host_bytes = part_of(o->host_bytes, on_host ? logits_bytes : 0, n);
    o->disk_bytes = part_of(o->disk_bytes, 0, n);
    o->disk_write_limit = part_of(o->disk_write_limit, 0, n);
}

static int open_lane(struct lane *l, const char *model_dir, const struct spw_options *o,
                     struct spw_error *err)
{
    SPW_TRY(spw_engine_open(&l->engine, model_dir, o, err));
    return spw_session_open(&l->session, l->engine, err);
}

static int open_lanes(struct run *r, const struct spw_gate_result *results, const char *model_dir,
                      const struct spw_options *caller, struct spw_error *err)
{
    struct spw_options o = *caller;
    share_out(&o, (uint64_t)ROWS * r->vocab * sizeof(float), r->n_lanes);
    o.context = r->n_tokens;
    o.sessions = 1;
    o.residual_window = spw_gate_window(o.residual_window);
    if (!o.residual_window)
        o.residual_window = SPW_BYTES_NONE;
    o.on_oom = SPW_ON_OOM_SPILL; /* each lane has the precision that it is there for */
    o.gate = NULL;
    o.on_rung = NULL;
    o.on_progress = NULL;
    o.on_incident = NULL;
    o.on_pass = NULL;
    for (size_t i = 0; i < r->n_lanes; i++) {
        o.precision = i ? results[i - 1].precision : SPW_KV_EXACT;
        r->lanes[i].run = r;
        SPW_TRY(open_lane(&r->lanes[i], model_dir, &o, err));
    }
    return 0;
}

static void close_run(struct run *r)
{
    for (size_t i = 0; i < r->n_lanes; i++) {
        spw_session_close(r->lanes[i].session);
        spw_engine_close(r->lanes[i].engine);
        spw_free(r->lanes[i].divergence.kl);
    }
    spw_free(r->tokens);
    spw_free(r->logits);
}

/* ---- the text ---- */

static int take_memory(struct run *r)
{
    r->tokens = spw_alloc_zero(r->n_tokens + 1, sizeof *r->tokens);
    r->logits = spw_alloc_zero(ROWS, r->vocab * sizeof *r->logits);
    int rc = r->tokens && r->logits ? 0 : -ENOMEM;
    for (size_t i = 1; i < r->n_lanes; i++) {
        struct spw_divergence *d = &r->lanes[i].divergence;
        d->room = r->n_tokens;
        d->kl = spw_alloc_zero(d->room + 1, sizeof *d->kl);
        rc = d->kl ? rc : -ENOMEM;
    }
    return rc;
}

/* As long as the model's context lets it be. */
static int prepare_from(struct run *r, const struct spw_source *source, const struct spw_options *o,
                        struct spw_error *err)
{
    struct spw_model_config config;
    SPW_TRY(source->ops->config(source, &config, err));
    uint64_t window = spw_residual_tiles(spw_gate_window(o->residual_window));
    r->n_tokens = (size_t)spw_min_u64(SPW_GATE_TOKENS, config.max_positions) / 2 * 2;
    r->first = (size_t)(spw_residual_until(1, window) * SPW_TILE_TOKENS);
    r->vocab = config.vocab;
    int rc = take_memory(r);
    if (rc)
        spw_fail(err, rc, "%s: no memory for the calibration", source->path);
    else
        rc = spw_calibration_fill(r->tokens, r->n_tokens, source, &config, err);
    spw_config_free(&config);
    return rc;
}

static int prepare(struct run *r, const char *model_dir, const struct spw_options *o,
                   struct spw_error *err)
{
    struct spw_source *source;
    SPW_TRY(spw_source_open(&source, model_dir, err));
    int rc = prepare_from(r, source, o, err);
    spw_source_close(source);
    return rc;
}

static void sum_up(struct spw_gate_result *out, struct lane *l, const struct lane *exact)
{
    struct spw_divergence_summary s;
    spw_divergence_sum_up(&l->divergence, &s);
    *out = (struct spw_gate_result){
        .precision = out->precision,
        .n_positions = s.n,
        .n_sure = s.n_decided,
        .n_sharpened = s.n_sharpened,
        .kl_median = fmin(s.kl_median, 1e9), /* infinity has no place in a file */
        .kl_p999 = fmin(s.kl_p999, 1e9),
        .same_top = s.same_top,
        .same_sure = s.same_decided,
        .bytes_per_token = spw_engine_plan(l->engine)->kv_bytes_per_token,
        .exact_bytes_per_token = spw_engine_plan(exact->engine)->kv_bytes_per_token,
    };
}

int spw_gate_measure(struct spw_gate_result *results, size_t n, const char *model_dir,
                     const struct spw_options *o, struct spw_error *err)
{
    struct run r = {.n_lanes = 1 + n};
    int rc = prepare(&r, model_dir, o, err);
    if (!rc && r.first < r.n_tokens) {
        rc = open_lanes(&r, results, model_dir, o, err);
        if (!rc)
            rc = steps(&r, err);
        for (size_t i = 0; i < n && !rc; i++)
            sum_up(&results[i], &r.lanes[1 + i], r.lanes);
    }
    close_run(&r);
    return rc;
}
