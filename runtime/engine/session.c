/* Sessions: what is held, what can be reused, what is left to compute. See spillway.h.
 *
 * The caller hands over whole sequences. A session keeps the longest common prefix, cuts the rest
 * off, and the executor computes what is missing, for all sessions of the call in one step. */
#include "runtime/batch/shared_prompt.h"
#include "runtime/persist/prefix.h"
#include "runtime/engine/recover.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* ---- open, close ---- */

static int find_slot(const struct spw_engine *e, uint32_t *slot)
{
    for (*slot = 0; *slot < e->plan.info.sessions; ++*slot)
        if (!e->sessions[*slot])
            return 0;
    return -ENOMEM;
}

int spw_session_open(struct spw_session **out, struct spw_engine *e, struct spw_error *err)
{
    return spw_session_open_for(out, e, e->plan.info.context, err);
}

/* Refuses a session whose tiles have no room beside those of the open ones. */
static int check_room(const struct spw_engine *e, uint64_t most_tokens, struct spw_error *err)
{
    uint64_t open = spw_engine_open_tiles(e), own = spw_waterline_tiles(most_tokens);
    if (spw_share_fits(&e->plan, open + own))
        return 0;
    return spw_fail(err, -ENOMEM,
                    "a session of %llu tokens: there is memory for %llu tokens of all sessions, "
                    "and the open ones may hold %llu; close some, or plan for more full_sessions",
                    (unsigned long long)most_tokens,
                    (unsigned long long)spw_share_most_tiles(&e->plan) * SPW_TILE_TOKENS,
                    (unsigned long long)open * SPW_TILE_TOKENS);
}

int spw_session_open_for(struct spw_session **out, struct spw_engine *e, uint64_t most_tokens,
                         struct spw_error *err)
{
    spw_error_clear(err);
    *out = NULL;
    uint32_t slot;
    if (find_slot(e, &slot))
        return spw_fail(err, -ENOMEM, "%u sessions are open, as many as the engine was planned for",
                        e->plan.info.sessions);
    SPW_TRY(check_room(e, most_tokens, err));
    SPW_TRY(spw_engine_need_memory(e, err));
    struct spw_session *s = spw_alloc_zero(1, sizeof *s);
    if (!s)
        return spw_fail(err, -ENOMEM, "out of memory for a session");
    s->engine = e;
    s->slot = slot;
    s->most_tokens = most_tokens;
    s->tokens = spw_alloc(most_tokens * sizeof *s->tokens);
    if (!s->tokens || spw_engine_open_sequence(e, s)) {
        spw_free(s->tokens);
        spw_free(s);
        return spw_fail(err, -ENOMEM, "out of memory for a session's tables");
    }
    e->sessions[slot] = s;
    e->shares_are_old = true;
    *out = s;
    return 0;
}

int spw_session_fork(struct spw_session **out, struct spw_session *from, struct spw_error *err)
{
    return spw_session_fork_for(out, from, from->n_tokens, from->most_tokens, err);
}

int spw_session_fork_for(struct spw_session **out, struct spw_session *from, uint64_t n,
                         uint64_t most_tokens, struct spw_error *err)
{
    spw_error_clear(err);
    if (from->is_aside)
        spw_engine_drop_aside(from->engine);
    SPW_TRY(spw_session_open_for(out, from->engine, most_tokens, err));
    struct spw_session *s = *out;
    memcpy(s->residency, from->residency, sizeof s->residency);
    spw_kv_seq_fork(s->seq.kv, from->seq.kv);
    if (n < from->n_tokens)
        spw_kv_truncate(s->seq.kv, s->residency, from->cached ? n : 0);
    spw_traffic_fork(spw_executor_account_of(s->engine->executor), s->slot, from->slot,
                     from->cached ? n : 0);
    memcpy(s->tokens, from->tokens, n * sizeof *s->tokens);
    s->n_tokens = s->reused = n;
    s->n_attached = spw_min_u64(from->n_attached, n);
    s->rope_table = from->rope_table;
    s->has_logits = from->has_logits && n == from->n_tokens;
    s->cached = from->cached;
    s->mixed = from->mixed;
    memcpy(s->logits, from->logits, from->engine->model.config.vocab * sizeof *s->logits);
    return 0;
}

void spw_session_close(struct spw_session *s)
{
    if (!s)
        return;
    if (s->is_aside)
        spw_engine_drop_aside(s->engine);
    /* Copies ahead of the computation may still read tiles that are about to be given back. */
    if (s->engine->executor) {
        spw_executor_forget_ahead(s->engine->executor);
        spw_traffic_close(spw_executor_account_of(s->engine->executor), s->slot);
    }
    s->engine->sessions[s->slot] = NULL;
    s->engine->shares_are_old = true;
    spw_session_release_file(s);
    spw_kv_seq_close(s->seq.kv);
    spw_free(s->tokens);
    spw_free(s);
}

size_t spw_session_n_tokens(const struct spw_session *s)
{
    return s->n_tokens;
}

size_t spw_session_reused(const struct spw_session *s)
{
    return s->reused;
}

void spw_session_waterlines(const struct spw_session *s, struct spw_waterlines *out)
{
    const struct spw_model_config *c = &s->engine->model.config;
    *out = (struct spw_waterlines){.n_tokens = s->n_tokens};
    for (uint32_t l = 0; s->cached && l < c->n_layers; l++) {
        const struct spw_residency *r = &s->engine->plan.residency[c->layer_kinds[l]];
        if (!r->window) {
            uint32_t begin = spw_kv_begin(s->seq.kv, l);
            uint32_t disk_end = spw_kv_disk_end(s->seq.kv, l);
            if (begin > spw_waterline_start(r))
                out->host_end = spw_min_u64((uint64_t)begin * SPW_TILE_TOKENS, s->n_tokens);
            if (disk_end > spw_waterline_start(r))
                out->disk_end = spw_min_u64((uint64_t)disk_end * SPW_TILE_TOKENS, out->host_end);
            break;
        }
    }
}

size_t spw_session_from_store(const struct spw_session *s)
{
    return s->from_store;
}

const float *spw_session_logits(const struct spw_session *s)
{
    return s->has_logits ? s->logits : NULL;
}

/* How far the span goes on as the session does. */
static uint64_t common_prefix(const struct spw_session *s, const struct spw_span *span)
{
    return spw_common_prefix(s->tokens, span->tokens, spw_min_u64(s->n_tokens, span->n_tokens));
}

/* ---- sync: checks ---- */

static int check_span(const struct spw_engine *e, const struct spw_span *spans, size_t i,
                      struct spw_error *err)
{
    const struct spw_span *s = &spans[i];
    uint32_t vocab = e->model.config.vocab;
    if (!s->session || s->session->engine != e)
        return spw_fail(err, -EINVAL, "span %zu: not a session of this engine", i);
    if (!s->n_tokens)
        return spw_fail(err, -EINVAL, "span %zu: no tokens; a sequence has at least one", i);
    if (s->n_tokens > s->session->most_tokens)
        return spw_fail(err, -E2BIG, "span %zu: %zu tokens, its session was opened for %llu", i,
                        s->n_tokens, (unsigned long long)s->session->most_tokens);
    for (size_t j = 0; j < i; j++)
        if (spans[j].session == s->session)
            return spw_fail(err, -EINVAL, "spans %zu and %zu name the same session", j, i);
    for (size_t j = common_prefix(s->session, s); j < s->n_tokens; j++)
        if (s->tokens[j] < 0 || (uint32_t)s->tokens[j] >= vocab)
            return spw_fail(err, -EINVAL,
                            "span %zu: token id %d at position %zu is out of range: the vocabulary "
                            "has %u",
                            i, s->tokens[j], j, vocab);
    return 0;
}

/* ---- sync: reuse ---- */

static uint64_t rope_table(const struct spw_model_config *c, uint64_t n_tokens)
{
    return spw_rope_table(&c->rope[SPW_LAYER_FULL], c->max_positions, n_tokens);
}

/* Tokens of the span that the session need not compute again. */
static uint64_t reusable(const struct spw_session *s, const struct spw_span *span)
{
    const struct spw_model_config *c = &s->engine->model.config;
    uint64_t prefix = common_prefix(s, span);
    if (!s->cached)
        return 0;
    if (rope_table(c, span->n_tokens) != s->rope_table)
        return 0; /* its keys were rotated by another table */
    if (prefix == span->n_tokens && prefix == s->n_tokens && s->has_logits && span->n_logits <= 1)
        return prefix; /* even the logits are there */
    uint64_t n = spw_min_u64(prefix, spw_sub_u64(span->n_tokens, span->n_logits));
    return spw_kv_reach(s->seq.kv, s->engine->plan.residency, n);
}

static int cut_back(struct spw_session *s, uint64_t *n_reused)
{
    return *n_reused == s->n_tokens ? 0 : spw_recover_cut_back(s, n_reused);
}

/* ---- sync: the step ---- */

struct delivery {
    struct spw_engine *engine;
    const struct spw_span *spans;
    const uint32_t *index; /* executor's span -> caller's */
    void (*on_logits)(void *context, size_t span, size_t position, const float *logits);
    void *context;
    uint64_t most_chunks; /* as in spw_executor_step */
};

static int deliver(void *context, uint32_t i, uint64_t position, const float *logits)
{
    const struct delivery *d = context;
    const struct spw_span *span = &d->spans[d->index[i]];
    if (spw_tensors_damaged(d->engine->model.tensors))
        return -EIO;
    if (span->session->n_attached && isnan(logits[0])) /* one NaN in the last layer makes all NaN */
        return -EDOM;
    if (position + 1 == span->n_tokens) {
        memcpy(span->session->logits, logits, d->engine->model.config.vocab * sizeof *logits);
        span->session->has_logits = true;
    }
    if (position < span->session->delivered)
        return 0; /* this part of the step was run again */
    span->session->delivered = position + 1;
    if (d->on_logits)
        d->on_logits(d->context, d->index[i], position, logits);
    return 0;
}

/* After a failure of the device the tiles hold parts of a step: nothing of these sessions is
 * reused.
 */
static int reset(struct spw_engine *e, uint32_t n, int rc, struct spw_error *err)
{
    spw_engine_drop_aside(e);
    spw_lane_sync_all(&e->lane);
    if (e->executor) {
        spw_executor_forget_ahead(e->executor);
        spw_executor_stop_predicting(e->executor);
    }
    for (uint32_t i = 0; i < n; i++) {
        struct spw_session *s = e->stepping[i];
        s->n_tokens = s->n_attached = 0;
        s->has_logits = s->mixed = false;
        spw_kv_truncate(s->seq.kv, e->plan.residency, 0);
    }
    return spw_fail(err, rc, "the step failed on the device (%s); its sessions are empty now",
                    strerror(-rc));
}

/* Gives the session the first n tokens of its part of the step. */
static void set_tokens(struct spw_session *s, const struct spw_executor_item *x, uint64_t n,
                       uint64_t table)
{
    memcpy(s->tokens + x->span.from, x->tokens + x->span.from,
           (n - x->span.from) * sizeof *s->tokens);
    s->n_tokens = n;
    s->cached = true;
    s->rope_table = table;
}

void spw_session_passed(void *engine)
{
    struct spw_engine *e = engine;
    for (uint32_t i = 0; i < e->n_stepping; i++) {
        struct spw_session *s = e->stepping[i];
        set_tokens(s, &e->items[i], spw_executor_held_after_pass(e->executor, i),
                   e->stepping_rope_table);
        s->has_logits = false;
        if (e->generates)
            spw_session_publish(s, NULL); /* if it cannot, nothing is lost */
    }
    if (e->options.on_pass)
        e->options.on_pass(e->options.pass_context);
}

/* The step has not come to its end: its sessions hold what has passed all layers. */
static void hold_passed(struct spw_engine *e, uint32_t n, uint64_t table)
{
    for (uint32_t i = 0; i < n; i++)
        set_tokens(e->stepping[i], &e->items[i], spw_executor_held_before_pass(e->executor, i),
                   table);
}

/* The caller has ended the step: passes that were through stay, unless windows have moved on since.
 */
static int end_early(struct spw_engine *e, uint32_t n, uint64_t table, struct spw_error *err)
{
    bool lost = false;
    hold_passed(e, n, table);
    if (spw_recover_step(e, e->stepping, n))
        return reset(e, n, -EIO, err);
    for (uint32_t i = 0; i < n; i++)
        lost |= !e->stepping[i]->n_tokens && spw_executor_held_before_pass(e->executor, i);
    if (lost)
        return spw_fail(err, -ECANCELED,
                        "interrupted: windows had moved on, and a session is empty now; more "
                        "device memory would have kept them");
    return spw_fail(err, -ECANCELED, "interrupted: sessions hold what was computed whole before");
}

/* The step has failed for good. If only the disk has, its sessions hold what they held before. */
static int give_up(struct spw_engine *e, uint32_t n, int rc, struct spw_error *err)
{
    int why;
    if (!e->executor)
        return spw_fail(err, -ENOMEM,
                        "the disk took no more (%s), and memory for another plan was refused; the "
                        "sessions keep their tokens, and the next step asks for it again",
                        strerror(-rc));
    if (rc == -EDOM) {
        reset(e, n, rc, NULL);
        return spw_fail(err, rc,
                        "keys or values are not finite (NaN or infinity), so that they cannot be "
                        "quantized; its sessions are empty now: %s",
                        spw_engine_nan_advice(e));
    }
    const struct spw_block_read *failed = spw_prefetch_failed_read(e->prefetch, &why);
    if ((!e->disk && !failed) || spw_recover_step(e, e->stepping, n))
        return reset(e, n, rc, err);
    if (failed)
        return spw_fail(err, -EIO,
                        "%s: weights could not be read (%s); the sessions hold what they held "
                        "before the step",
                        failed->path,
                        why == -ENODATA ? "the file is shorter than it was" : strerror(-why));
    if (rc == -EBADMSG)
        return spw_fail(err, -EIO,
                        "disk: tiles were lost again each time they had been computed again; the "
                        "drive is failing: give another directory with options.disk_dir");
    return spw_fail(
        err, rc,
        "disk: tiles of the KV cache could not be written (%s); the sessions hold what they "
        "held before the step: give more room, or another directory with options.disk_dir",
        strerror(-rc));
}

/* Whether values that are not numbers may come from files, which are then gone. */
static bool distrust(struct spw_engine *e, uint32_t n)
{
    bool any = false;
    for (uint32_t i = 0; i < n; i++)
        any |= spw_prefix_distrust(e->stepping[i]);
    return any;
}

/* Tokens that the session's caches hold. */
static uint64_t n_cached(const struct spw_session *s)
{
    return s->cached ? s->n_tokens : 0;
}

/* Each span of the step begins where the caches of its session end. */
static void set_starts(struct spw_engine *e, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        e->items[i].span.from = n_cached(e->stepping[i]);
}

/* Runs it again from where sessions were cut back to, as long as tiles are lost, and once more if
 * the prefix cache was at fault. */
static int run_and_recover(struct spw_engine *e, uint32_t n, struct delivery *d)
{
    for (int i = 0;; i++) {
        spw_engine_continue_aside(e);
        e->n_stepping = n;
        int rc = spw_executor_step(e->executor, e->items, n, d->most_chunks, deliver, d);
        e->n_stepping = 0;
        bool again = rc == -EDOM ? distrust(e, n) : rc == -EBADMSG && i < SPW_RECOVER_TRIES;
        if (!again)
            return rc;
        SPW_TRY(spw_recover_step(e, e->stepping, n));
        set_starts(e, n);
    }
}

static bool disk_is_full(int rc)
{
    return rc == -ENOSPC || rc == -EDQUOT;
}

/* Runs the step. If the disk is full, continues under a plan with less disk, as long as there is
 * one. No logits are handed over twice. */
static int run_with_fallback(struct spw_engine *e, uint32_t n, struct delivery *d)
{
    for (;;) {
        int rc = run_and_recover(e, n, d);
        if (!disk_is_full(rc) || spw_engine_shrink_disk(e, rc, NULL))
            return rc;
        set_starts(e, n);
    }
}

/* Drops what a step computed if somebody wrote to the weights, or cut them short, meanwhile. */
static int check_weights(struct spw_engine *e, uint32_t n, struct spw_error *err)
{
    if (!spw_tensors_check(e->model.tensors, err))
        return 0;
    return spw_recover_step(e, e->stepping, n) ? reset(e, n, -EIO, err) : -EIO;
}

/* One step for the spans of the caller whose rope table has this number. */
static int run_step(struct spw_engine *e, uint32_t n, uint64_t table, struct delivery *d,
                    struct spw_error *err)
{
    int rc = 0;
    if (e->rope_table != table) {
        /* the tables' upload before this one may still be reading them: at open nothing waits */
        rc = spw_lane_stream_sync(&e->lane, e->lane.compute);
        if (rc)
            return reset(e, n, rc, err);
        SPW_TRY(spw_weights_rope(e->model.weights, table, err));
        rc = spw_executor_upload_rope(e->executor);
        e->rope_table = table;
    }
    e->stepping_rope_table = table;
    if (!rc)
        rc = run_with_fallback(e, n, d);
    while (rc == -ECANCELED && e->limit_watch.memory_short) { /* a memory limit, not the caller */
        SPW_TRY(check_weights(e, n, err));
        if (end_early(e, n, table, NULL) != -ECANCELED)
            return spw_fail(err, -EIO, "the step failed on the device; its sessions are empty now");
        SPW_TRY(spw_engine_apply_limit(e, err));
        set_starts(e, n);
        rc = run_with_fallback(e, n, d);
    }
    if (rc == -EAGAIN) {
        hold_passed(e, n, table);
        spw_engine_set_aside(e, n);
        return rc;
    }
    SPW_TRY(check_weights(e, n, err));
    if (rc == -ECANCELED)
        return end_early(e, n, table, err);
    if (rc)
        return give_up(e, n, rc, err);
    for (uint32_t i = 0; i < n; i++) {
        set_tokens(e->stepping[i], &e->items[i], e->items[i].span.to, table);
        e->stepping[i]->has_logits = e->items[i].span.n_logits > 0;
    }
    return 0;
}

/* Prepares span i as the n-th of the step, if there is anything to compute. */
static int add_span(struct spw_engine *e, const struct spw_span *spans, size_t i, uint32_t *n,
                    struct delivery *d, struct spw_error *err)
{
    const struct spw_span *span = &spans[i];
    struct spw_session *s = span->session;
    uint64_t n_reused = s->is_aside ? 0 : reusable(s, span);
    e->span_index[*n] = (uint32_t)i;
    e->stepping[*n] = s;
    int rc = 0;
    if (s->is_aside) {
        e->items[(*n)++] = (struct spw_executor_item){
            .seq = &s->seq, .span = s->aside_span, .tokens = span->tokens, .last = s->ends};
        return 0;
    }
    s->from_store = 0;
    if (rope_table(&e->model.config, span->n_tokens) == SPW_ROPE_SHARED)
        rc = spw_prefix_attach(s, span, &n_reused);
    if (!rc)
        rc = cut_back(s, &n_reused);
    if (disk_is_full(rc) && !spw_engine_shrink_disk(e, rc, NULL)) {
        set_starts(e, *n);
        s->from_store = 0;
        n_reused = n_cached(s);
        rc = 0;
    }
    if (rc)
        return reset(e, *n + 1, rc, err);
    s->reused = n_reused;
    if (n_reused == span->n_tokens) {
        if (span->n_logits && d->on_logits && s->delivered < span->n_tokens)
            d->on_logits(d->context, i, span->n_tokens - 1, s->logits);
        s->delivered = span->n_tokens;
        return 0;
    }
    e->items[(*n)++] = (struct spw_executor_item){
        .seq = &s->seq,
        .span = {s->slot, n_reused, span->n_tokens, span->n_logits},
        .tokens = span->tokens,
        .last = s->ends,
    };
    return 0;
}

/* Computes and publishes a checkpoint where the span leaves the tokens that others have computed.
 * The next sequence that leaves them there can begin there. */
static int make_checkpoint(struct spw_engine *e, const struct spw_span *whole,
                           struct spw_error *err)
{
    struct spw_span span = *whole;
    struct delivery d = {.engine = e, .spans = &span, .index = e->span_index};
    uint32_t n = 0;
    span.n_tokens = spw_prefix_branch(span.session, whole);
    span.n_logits = 0;
    if (!span.n_tokens || whole->session->is_aside)
        return 0;
    SPW_TRY(add_span(e, &span, 0, &n, &d, err));
    if (n)
        SPW_TRY(run_step(e, n, SPW_ROPE_SHARED, &d, err));
    spw_session_publish(span.session, NULL); /* if it cannot, nothing is lost */
    return 0;
}

static int sync_all(struct spw_engine *e, const struct spw_span *spans, size_t n_spans,
                    struct delivery *d, struct spw_error *err)
{
    const struct spw_model_config *c = &e->model.config;
    uint32_t n = 0;
    for (size_t i = 0; i < n_spans && e->prefix; i++)
        if (rope_table(c, spans[i].n_tokens) == SPW_ROPE_SHARED)
            SPW_TRY(make_checkpoint(e, &spans[i], err));
    for (size_t i = 0; i < n_spans; i++) /* all that share the usual rope table, together */
        if (rope_table(c, spans[i].n_tokens) == SPW_ROPE_SHARED)
            SPW_TRY(add_span(e, spans, i, &n, d, err));
    d->most_chunks = n == n_spans ? e->most_chunks : 0;
    if (n)
        SPW_TRY(run_step(e, n, SPW_ROPE_SHARED, d, err));
    d->most_chunks = 0;
    for (size_t i = 0; i < n_spans; i++) { /* past a dynamic border each length has its own */
        uint64_t table = rope_table(c, spans[i].n_tokens);
        n = 0;
        if (table == SPW_ROPE_SHARED)
            continue;
        SPW_TRY(add_span(e, spans, i, &n, d, err));
        if (n)
            SPW_TRY(run_step(e, n, table, d, err));
    }
    return 0;
}

/* Whether the call needs frames or sessions of the step that was set aside, but does not continue
 * this step. */
static bool disturbs_aside(const struct spw_engine *e, const struct spw_span *spans, size_t n)
{
    bool needs = false;
    for (size_t i = 0; i < n; i++)
        needs |= spans[i].session->is_aside || !spans[i].session->has_share;
    return needs && !spw_engine_continues_aside(e, spans, n);
}

/* Another plan has taken the memory of logits that were there before. */
static bool lost_logits(const struct spw_span *spans, size_t n)
{
    bool lost = false;
    for (size_t i = 0; i < n; i++)
        lost |= spans[i].n_logits && !spans[i].session->has_logits;
    return lost;
}

int spw_sync(struct spw_engine *e, const struct spw_span *spans, size_t n_spans,
             void (*on_logits)(void *context, size_t span, size_t position, const float *logits),
             void *context, struct spw_error *err)
{
    spw_error_clear(err);
    struct delivery d = {e, spans, e->span_index, on_logits, context, 0};
    for (size_t i = 0; i < n_spans; i++)
        SPW_TRY(check_span(e, spans, i, err));
    SPW_TRY(spw_engine_need_memory(e, err));
    if (spw_engine_memory_is_short(e))
        SPW_TRY(spw_engine_apply_limit(e, err));
    if (disturbs_aside(e, spans, n_spans))
        spw_engine_drop_aside(e);
    if (!e->n_aside)
        spw_engine_share(e);
    for (size_t i = 0; i < n_spans; i++)
        if (!spans[i].session->is_aside)
            spans[i].session->delivered = 0;
    int rc;
    do { /* again for those that had their logits when another one needed another plan */
        rc = sync_all(e, spans, n_spans, &d, err);
        for (size_t i = 0; i < n_spans; i++)
            spw_prefix_release_match(spans[i].session);
    } while (!rc && lost_logits(spans, n_spans));
    if (rc == -ECANCELED)
        spw_interrupt_clear(e->options.interrupt);
    return rc;
}
