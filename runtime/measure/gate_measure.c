/* The calibration run: an exact cache and quantized ones take turns.
 *
 *     variant 0   exact        |--- rows ---|--- rows ---|      the logits of some rows are stored
 *     variant 1   int8         |--- rows ---|--- rows ---|      and compared at once
 *     variant 2   int4         ...
 *
 * Each variant is an engine. The variants take turns, some rows at a time, so that the logits of
 * only these rows are in memory: with a vocabulary of 256,000 they take 64 MiB. Budgets that the
 * caller gave are divided evenly.
 *
 * The window of the check is 128 tokens, one tile; a run has 1,024 exact tokens by default. So
 * all tiles are read quantized but the sink, the query's own tile and the one before it. Recent
 * keys matter most, and so they are checked, too. A format that passes with fewer exact tokens
 * also passes with more. The small window also makes a short text long enough. A run without a
 * window is checked without one. */
#include "runtime/measure/calibration.h"
#include "runtime/measure/divergence.h"
#include "runtime/measure/gate.h"

#include "quant/residual.h"
#include "runtime/plan_query.h"

#include <math.h>
#include <string.h>

enum { ROWS = 64 };

struct variant {
    struct spw_engine *engine;
    struct spw_session *session;
    struct spw_divergence divergence;
    const struct run *run;
};

struct run {
    struct variant variants[1 + SPW_GATE_FORMATS];
    size_t n_variants;
    int32_t *tokens; /* [n_tokens] */
    size_t n_tokens;
    size_t first;  /* the first position that reads a quantized tile */
    size_t done;   /* tokens that all variants have computed */
    float *logits; /* [ROWS][vocab], of variant 0, of positions from `done` on */
    uint32_t vocab;
};

uint32_t spw_gate_window(uint64_t residual_window)
{
    return residual_window == SPW_NONE ? 0 : SPW_GATE_WINDOW;
}

/* ---- steps ---- */

static void on_logits(void *context, size_t span, size_t position, const float *logits)
{
    struct variant *v = context;
    (void)span;
    float *exact = v->run->logits + (position - v->run->done) * v->run->vocab;
    if (v == v->run->variants)
        memcpy(exact, logits, v->run->vocab * sizeof *logits);
    else
        spw_divergence_add(&v->divergence, exact, logits, v->run->vocab);
}

/* Brings all variants to `n` tokens, the exact one first. */
static int step(struct run *r, size_t n, size_t n_logits, struct spw_error *err)
{
    for (size_t i = 0; i < r->n_variants; i++) {
        struct variant *v = &r->variants[i];
        struct spw_span span = {v->session, r->tokens, n, n_logits};
        SPW_TRY(spw_sync(v->engine, &span, 1, on_logits, v, err));
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

/* ---- variants ---- */

static bool is_given(uint64_t budget)
{
    return budget != 0 && budget != SPW_NONE;
}

/* An equal part of a budget that was given, without the bytes of the logits. */
static uint64_t part_of(uint64_t budget, uint64_t logits_bytes, size_t n)
{
    return is_given(budget) ? spw_max_u64(spw_sub_u64(budget, logits_bytes) / n, 1) : budget;
}

/* The stored logits lie on the host and count against its budget. If that budget is too small
 * for them, as it may be on the CPU, they count against the device's budget. */
static void divide_budgets(struct spw_options *o, uint64_t logits_bytes, size_t n)
{
    bool on_host = is_given(o->host_bytes) && o->host_bytes / 4 >= logits_bytes;
    o->device_bytes = part_of(o->device_bytes, on_host ? 0 : logits_bytes, n);
    o->host_bytes = part_of(o->host_bytes, on_host ? logits_bytes : 0, n);
    o->disk_bytes = part_of(o->disk_bytes, 0, n);
    o->disk_write_limit = part_of(o->disk_write_limit, 0, n);
}

static int open_variant(struct variant *v, const char *model_dir, const struct spw_options *o,
                        struct spw_error *err)
{
    SPW_TRY(spw_engine_open(&v->engine, model_dir, o, err));
    return spw_session_open(&v->session, v->engine, err);
}

static int open_variants(struct run *r, const struct spw_gate_result *results,
                         const char *model_dir, const struct spw_options *caller,
                         struct spw_error *err)
{
    struct spw_options o = *caller;
    divide_budgets(&o, (uint64_t)ROWS * r->vocab * sizeof(float), r->n_variants);
    o.context = r->n_tokens;
    o.sessions = 1;
    o.residual_window = spw_gate_window(o.residual_window);
    if (!o.residual_window)
        o.residual_window = SPW_NONE;
    o.on_oom = SPW_ON_OOM_SPILL; /* each variant must keep its precision */
    o.gate = NULL;
    o.on_progress = NULL;
    o.on_pass = NULL;
    for (size_t i = 0; i < r->n_variants; i++) {
        o.precision = i ? results[i - 1].precision : SPW_KV_EXACT;
        r->variants[i].run = r;
        SPW_TRY(open_variant(&r->variants[i], model_dir, &o, err));
    }
    return 0;
}

static void close_run(struct run *r)
{
    for (size_t i = 0; i < r->n_variants; i++) {
        spw_session_close(r->variants[i].session);
        spw_engine_close(r->variants[i].engine);
        spw_free(r->variants[i].divergence.kl);
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
    for (size_t i = 1; i < r->n_variants; i++) {
        struct spw_divergence *d = &r->variants[i].divergence;
        d->capacity = r->n_tokens;
        d->kl = spw_alloc_zero(d->capacity + 1, sizeof *d->kl);
        rc = d->kl ? rc : -ENOMEM;
    }
    return rc;
}

/* Takes as many tokens as the model's context allows. */
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

static void summarize(struct spw_gate_result *out, struct variant *v, const struct variant *exact)
{
    struct spw_divergence_summary s;
    spw_divergence_summarize(&v->divergence, &s);
    *out = (struct spw_gate_result){
        .precision = out->precision,
        .n_positions = s.n,
        .n_sure = s.n_decided,
        .n_sharpened = s.n_sharpened,
        .kl_median = fmin(s.kl_median, 1e9), /* JSON has no infinity */
        .kl_p999 = fmin(s.kl_p999, 1e9),
        .same_top = s.same_top,
        .same_sure = s.same_decided,
        .bytes_per_token = spw_engine_plan(v->engine)->kv_bytes_per_token,
        .exact_bytes_per_token = spw_engine_plan(exact->engine)->kv_bytes_per_token,
    };
}

int spw_gate_measure(struct spw_gate_result *results, size_t n, const char *model_dir,
                     const struct spw_options *o, struct spw_error *err)
{
    struct run r = {.n_variants = 1 + n};
    int rc = prepare(&r, model_dir, o, err);
    if (!rc && r.first < r.n_tokens) {
        rc = open_variants(&r, results, model_dir, o, err);
        if (!rc)
            rc = steps(&r, err);
        for (size_t i = 0; i < n && !rc; i++)
            summarize(&results[i], &r.variants[1 + i], r.variants);
    }
    close_run(&r);
    return rc;
}
