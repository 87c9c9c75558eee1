/* spw_sync, the forward call of the library: finds which tokens sessions have already, and runs
 * steps of the executor for the others. See spillway.h.
 *
 * The caller hands over whole sequences. A session keeps the longest common prefix and cuts off its
 * other tokens. The executor computes what is missing, for all sessions of the call in one step.
 * Another step is needed for each further rope table that sessions use, and for each checkpoint.
 *
 *   a step returns      then
 *   -EBADMSG            tiles were lost on disk: the step runs again from the first one
 *   -EDOM               values that are not numbers: once more without the prefix cache
 *   -ENOSPC, -EDQUOT    the disk is full: the step continues under a plan with less disk
 *   -ECANCELED          a memory limit was lowered: the step continues under lower budgets;
 *                       or the caller has interrupted: sessions keep the tokens of complete passes
 *   -EAGAIN             the step is paused
 *   anything else       sessions have the tokens that they had before; none after a failure of the
 *                       device
 *
 * In two cases the step does not run again, but ends with -ESTALE, and the batch makes another
 * step: sessions of the batch have lost tiles that they shared, and there may be no room for a copy
 * of each (then the batch closes some sessions and opens new ones); or the new plan has fewer rows
 * of logits than the step has drafts. */
#include "runtime/rules/shared_prompt.h"
#include "runtime/engine/engine.h"

#include <math.h>
#include <string.h>

/* How many first tokens the session and the span have in common. */
static uint64_t common_prefix(const struct spw_session *s, const struct spw_span *span)
{
    return spw_common_prefix(s->tokens, s->n_tokens, span->tokens, span->n_tokens);
}

static uint64_t source_of(const struct spw_engine *e, const struct spw_span *s)
{
    return e->model.config.n_source_layers ? spw_source_length(s->tokens, s->n_tokens) : 0;
}

/* ---- checks ---- */

static int check_span(const struct spw_engine *e, const struct spw_span *spans, size_t i,
                      struct spw_error *err)
{
    const struct spw_span *s = &spans[i];
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
    const uint64_t n_source = source_of(e, s);
    if (e->model.config.n_source_layers && (!n_source || n_source + s->n_logits > s->n_tokens))
        return spw_fail(err, -EINVAL,
                        "span %zu: %llu tokens of a source and %zu others; a sequence of a model "
                        "with an encoder begins with a source, and has logits after the others",
                        i, (unsigned long long)n_source, (size_t)(s->n_tokens - n_source));
    if (s->n_tokens > spw_config_most_tokens(&e->model.config, n_source))
        return spw_fail(err, -E2BIG,
                        "span %zu: %llu tokens of a source and %zu others; the model has positions "
                        "for %llu and %llu",
                        i, (unsigned long long)n_source, (size_t)(s->n_tokens - n_source),
                        (unsigned long long)spw_config_most_source(&e->model.config),
                        (unsigned long long)e->model.config.stack_positions);
    for (size_t j = common_prefix(s->session, s); j < s->n_tokens; j++)
        if ((s->tokens[j] < 0 && j >= n_source) ||
            (uint32_t)spw_plain_token(s->tokens[j]) >=
                spw_config_vocab(&e->model.config, j < n_source))
            return spw_fail(err, -EINVAL,
                            "span %zu: token id %d at position %zu is out of range: the vocabulary "
                            "has %u",
                            i, s->tokens[j], j, spw_config_vocab(&e->model.config, j < n_source));
    return 0;
}

/* ---- reuse ---- */

/* Tokens of the span that the session need not compute again. */
static uint64_t reusable(const struct spw_session *s, const struct spw_span *span)
{
    uint64_t prefix = common_prefix(s, span);
    if (!s->cached)
        return 0;
    if (spw_engine_rope_table(s->engine, span->n_tokens) != s->rope_table)
        return 0; /* its keys were rotated by another table */
    if (prefix == span->n_tokens && prefix == s->n_tokens && s->has_logits && span->n_logits <= 1)
        return prefix; /* even the logits are there */
    uint64_t n = spw_min_u64(prefix, spw_sub_u64(span->n_tokens, span->n_logits));
    n = spw_kv_reach(s->seq.kv, s->engine->plan.residency, n);
    return n < source_of(s->engine, span) ? 0 : n;
}

/* ---- logits ---- */

/* What the caller of spw_sync gave. */
struct delivery {
    struct spw_engine *engine;
    const struct spw_span *spans;
    void (*on_logits)(void *context, size_t span, size_t position, const float *logits);
    void *context;
    uint64_t most_chunks; /* as in spw_executor_step */
};

/* Where the logits after `position` are stored; NULL: they are not. */
static float *place_of(const struct spw_engine *e, const struct spw_span *s, uint64_t position)
{
    const uint64_t left = s->n_tokens - 1 - position;
    const struct spw_session *x = s->session;
    if (x->n_drafts && left <= x->n_drafts)
        return spw_draft_logits(e, x->first_draft_row + x->n_drafts - left);
    return left ? NULL : x->logits;
}

static int deliver(void *context, uint32_t i, uint64_t position, const float *logits)
{
    const struct delivery *d = context;
    const uint32_t index = d->engine->step.span_index[i];
    const struct spw_span *span = &d->spans[index];
    if (spw_tensors_damaged(d->engine->model.tensors))
        return -EIO;
    /* one NaN in the last layer makes all NaN; a row after a draft may have its NaN from there */
    if (span->session->n_attached && isnan(logits[0]) &&
        span->n_tokens - 1 - position >= span->session->n_drafts)
        return -EDOM;
    float *place = place_of(d->engine, span, position);
    if (place)
        memcpy(place, logits, d->engine->model.config.vocab * sizeof *logits);
    if (position + 1 == span->n_tokens)
        span->session->has_logits = true;
    if (position < span->session->delivered)
        return 0; /* this part of the step was run again */
    span->session->delivered = position + 1;
    if (d->on_logits)
        d->on_logits(d->context, index, position, logits);
    return 0;
}

/* ---- a step that failed ---- */

#define EMPTY "the sessions of the step are empty now"

static int recover(struct spw_engine *e)
{
    return spw_recover_step(e, e->step.sessions, e->step.n);
}

/* After a failure of the device, or of a drive that reads nothing, the tiles hold parts of a step:
 * nothing of these sessions is reused. */
static int reset(struct spw_engine *e, int rc, struct spw_error *err)
{
    spw_engine_drop_paused(e);
    spw_lane_sync_all(&e->lane);
    if (e->executor) {
        spw_prefetch_forget(e->prefetch);
        e->unpredicted = true;
    }
    for (uint32_t i = 0; i < e->step.n; i++)
        spw_session_empty(e->step.sessions[i]);
    if (e->sharing.n_shared)
        e->sharing.is_old = true;
    if (rc == -EBADMSG) /* of a cut: what stays must be read again */
        return spw_fail(err, -EIO,
                        "disk: tiles were lost again each time their session was cut back; " EMPTY
                        "; the drive is failing: give another directory with options.disk_dir");
    return spw_fail(err, rc, "the step failed on the device (%s); " EMPTY, strerror(-rc));
}

/* Gives session i of the step the first n tokens of its span. */
static void set_tokens(struct spw_engine *e, uint32_t i, uint64_t n)
{
    struct spw_session *s = e->step.sessions[i];
    const struct spw_executor_item *x = &e->step.items[i];
    memcpy(s->tokens + x->span.from, x->tokens + x->span.from,
           (n - x->span.from) * sizeof *s->tokens);
    spw_sequence_keep(&s->seq, x->span.from, n);
    s->n_tokens = n;
    s->cached = true;
    s->rope_table = e->step.rope_table;
}

void spw_engine_on_pass(void *engine)
{
    struct spw_engine *e = engine;
    for (uint32_t i = 0; i < e->step.n; i++) {
        struct spw_session *s = e->step.sessions[i];
        set_tokens(e, i, e->executor->step->now->spans[i].to);
        s->has_logits = false;
        if (e->step.publishes)
            e->above.persist->publish(s);
    }
    if (e->options.on_pass)
        e->options.on_pass(e->options.pass_context);
}

/* The step is not complete: its sessions get the tokens that have passed all layers. */
static void set_passed_tokens(struct spw_engine *e)
{
    for (uint32_t i = 0; i < e->step.n; i++) {
        set_tokens(e, i, e->executor->step->now->spans[i].from);
        spw_sequence_keep_none(&e->step.sessions[i]->seq); /* later rows have their places */
    }
}

/* The step was interrupted: its sessions keep the tokens of complete passes, unless a window has
 * dropped tiles that these need. */
static int end_early(struct spw_engine *e, struct spw_error *err)
{
    bool lost = false;
    set_passed_tokens(e);
    if (recover(e))
        return reset(e, -EIO, err);
    for (uint32_t i = 0; i < e->step.n; i++)
        lost |= !e->step.sessions[i]->n_tokens && e->executor->step->now->spans[i].from;
    if (lost)
        return spw_fail(err, -ECANCELED,
                        "interrupted: a session is empty now, because its sliding windows had no "
                        "memory to go back; raise options.device_bytes to keep such sessions");
    return spw_fail(err, -ECANCELED,
                    "interrupted: sessions keep the tokens that have passed all layers");
}

/* The step has failed for good. If only the disk has failed, its sessions get back the tokens that
 * they had before the step; else they are empty. */
static int give_up(struct spw_engine *e, int rc, struct spw_error *err)
{
    if (!e->executor)
        return spw_fail(err, -ENOMEM,
                        "the disk is full (%s), and memory for another plan was refused; the "
                        "sessions keep their tokens, and the next step asks for this memory again",
                        strerror(-rc));
    if (rc == -EDOM) {
        reset(e, rc, NULL);
        return spw_fail(err, rc, "%s are not finite (NaN or infinity)%s; " EMPTY ": %s",
                        e->plan.n_states ? "numbers of a layer" : "keys or values",
                        e->plan.n_states ? "" : ", so that they cannot be quantized",
                        spw_engine_nan_advice(e));
    }
    const struct spw_block_failure failed = spw_prefetch_failed_read(e->prefetch);
    if ((!e->disk && !failed.block) || recover(e))
        return reset(e, rc, err);
    if (failed.block)
        return spw_engine_fail_read(e, &failed, err);
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

/* After values that are not numbers: drops what sessions have from files of the prefix cache, and
 * these files. False: no session has any. */
static bool distrust(struct spw_engine *e)
{
    bool any = false;
    for (uint32_t i = 0; i < e->step.n; i++)
        any |= e->above.persist->distrust(e->step.sessions[i]);
    return any;
}

/* Each span of the step begins where the caches of its session end. */
static void set_starts(struct spw_engine *e)
{
    for (uint32_t i = 0; i < e->step.n; i++)
        e->step.items[i].span.from = spw_session_cached(e->step.sessions[i]);
}

static bool disk_is_full(int rc)
{
    return rc == -ENOSPC || rc == -EDQUOT;
}

/* Drops what a step computed if somebody wrote to the weights, or cut them short, meanwhile. */
static int check_weights(struct spw_engine *e, struct spw_error *err)
{
    if (!spw_tensors_check(e->model.tensors, err))
        return 0;
    return recover(e) ? reset(e, -EIO, err) : -EIO;
}

/* Another plan has fewer rows of logits than the step has drafts. */
static bool lost_draft_rows(const struct spw_engine *e)
{
    bool lost = false;
    for (struct spw_session *s = NULL; (s = spw_engine_next(e, s));)
        lost |= s->n_drafts && s->first_draft_row + s->n_drafts >= e->plan.draft_rows;
    return lost;
}

static bool is_stale(const struct spw_engine *e)
{
    return spw_engine_lost_shared(e) || lost_draft_rows(e);
}

/* Carries out the row of the table at the head of this file for rc, which the executor has
 * returned. n_tries: how often the step ran again under its plan. Returns 1 if the step must run
 * again, else what the step returns. No logits are handed over twice. */
static int react(struct spw_engine *e, int rc, uint32_t *n_tries, struct spw_error *err)
{
    bool again = false;
    if (rc == -EDOM ? distrust(e) : rc == -EBADMSG && *n_tries < SPW_RECOVER_TRIES) {
        ++*n_tries;
        rc = recover(e);
        again = !rc;
    }
    if (disk_is_full(rc) && !spw_engine_shrink_disk(e, rc, NULL)) {
        *n_tries = 0;
        again = true;
    }
    if (!again && rc == -EAGAIN) {
        e->paused.n_tries = *n_tries; /* it counts on when the step continues */
        set_passed_tokens(e);
        spw_engine_pause(e);
        return rc;
    }
    if (!again) {
        SPW_TRY(check_weights(e, err));
        if (rc != -ECANCELED)
            return rc ? give_up(e, rc, err) : 0;
        if (!e->limit_watch.memory_short)
            return end_early(e, err);
        if (end_early(e, NULL) != -ECANCELED)
            return spw_fail(err, -EIO, "the step failed on the device; " EMPTY);
        SPW_TRY(spw_engine_apply_limit(e, err));
        *n_tries = 0;
    }
    set_starts(e);
    return is_stale(e) ? -ESTALE : 1;
}

/* ---- one step ---- */

/* Puts the step's rope tables on the device. */
static int upload_rope(struct spw_engine *e, struct spw_error *err)
{
    uint64_t table = e->step.rope_table;
    if (e->rope_table == table)
        return 0;
    /* the device may still be reading the tables of the latest upload */
    int rc = spw_lane_stream_sync(&e->lane, e->lane.compute);
    if (rc)
        return reset(e, rc, err);
    if (!e->dry)
        SPW_TRY(spw_weights_rope(e->model.weights, table, err));
    e->rope_table = table;
    rc = spw_executor_upload_rope(e->executor);
    return rc ? give_up(e, rc, err) : 0;
}

/* A source that is audio is computed from the audio, at first or again. */
static int check_audio(const struct spw_engine *e, struct spw_error *err)
{
    for (uint32_t i = 0; i < e->step.n && e->model.config.n_mels && !e->dry; i++) {
        const struct spw_executor_item *x = &e->step.items[i];
        if (!x->audio && x->span.from < x->span.n_source)
            return spw_fail(err, -EINVAL,
                            "span %u: the source of this model is audio, and the session has none "
                            "(spw_session_set_audio)",
                            e->step.span_index[i]);
    }
    return 0;
}

/* Computes the spans that were added to the step, whose rope table has this number. */
static int run_step(struct spw_engine *e, uint64_t table, struct delivery *d, struct spw_error *err)
{
    struct spw_running_step *step = &e->step;
    if (!step->n)
        return 0;
    step->rope_table = table;
    SPW_TRY(upload_rope(e, err));
    uint32_t n_tries = step->sessions[0]->is_paused ? e->paused.n_tries : 0;
    int rc;
    do {
        SPW_TRY(check_audio(e, err));
        spw_engine_continue_paused(e);
        step->runs = true;
        rc = spw_executor_step(e->executor, step->items, step->n, d->most_chunks, deliver, d);
        step->runs = false;
        rc = react(e, rc, &n_tries, err);
    } while (rc > 0);
    SPW_TRY(rc);
    for (uint32_t i = 0; i < step->n; i++) {
        set_tokens(e, i, step->items[i].span.to);
        step->sessions[i]->has_logits = step->items[i].span.n_logits > 0;
    }
    return 0;
}

/* ---- the spans of a step ---- */

/* Gives the session what the prefix cache has, and cuts it back to *n_reused tokens of the span.
 * With a full disk, continues under a plan with less disk. */
static int reuse(struct spw_engine *e, struct spw_session *s, const struct spw_span *span,
                 uint64_t *n_reused)
{
    const uint64_t held = s->cached ? common_prefix(s, span) : 0;
    *n_reused = reusable(s, span);
    s->from_store = 0;
    int rc = e->above.persist->attach(s, span, n_reused);
    if (!rc && *n_reused != s->n_tokens)
        rc = spw_recover_cut_back(s, n_reused);
    s->recomputed =
        spw_sub_u64(spw_min_u64(held, spw_sub_u64(span->n_tokens, span->n_logits)), *n_reused);
    if (!disk_is_full(rc) || spw_engine_shrink_disk(e, rc, NULL))
        return rc;
    set_starts(e);
    s->from_store = 0;
    *n_reused = spw_session_cached(s);
    return is_stale(e) ? -ESTALE : 0;
}

/* Adds span i of the caller to the step, if there is anything to compute. */
static int add_span(struct spw_engine *e, size_t i, struct delivery *d, struct spw_error *err)
{
    struct spw_running_step *step = &e->step;
    const struct spw_span *span = &d->spans[i];
    struct spw_session *s = span->session;
    struct spw_executor_item item = {.seq = &s->seq,
                                     .span = s->paused_span,
                                     .tokens = span->tokens,
                                     .audio = s->audio,
                                     .is_last_step = s->is_last_step};
    step->span_index[step->n] = (uint32_t)i;
    step->sessions[step->n] = s;
    /* the next token needs another rope table: the whole sequence is computed again then */
    item.is_last_step |=
        spw_engine_rope_table(e, span->n_tokens) != spw_engine_rope_table(e, span->n_tokens + 1);
    if (!s->is_paused) {
        uint64_t n_reused, from_store = s->from_store;
        int rc = reuse(e, s, span, &n_reused);
        if (rc == -ESTALE)
            return rc;
        if (rc) {
            step->n++; /* this session, too, is empty then */
            return reset(e, rc, err);
        }
        if (s->made_checkpoint) /* what this call has computed is not reused */
            s->from_store = spw_min_u64(from_store, n_reused);
        s->reused = s->made_checkpoint ? spw_min_u64(s->reused, n_reused) : n_reused;
        s->made_checkpoint = false;
        if (n_reused == span->n_tokens) {
            if (span->n_logits && d->on_logits && s->delivered < span->n_tokens)
                d->on_logits(d->context, i, span->n_tokens - 1, s->logits);
            s->delivered = span->n_tokens;
            return 0;
        }
        item.span =
            (struct spw_step_span){n_reused, span->n_tokens, span->n_logits, source_of(e, span)};
        item.n_drafts = s->n_drafts;
        s->asked = span->n_tokens;
        s->asked_logits = span->n_logits;
    }
    step->items[step->n++] = item;
    return 0;
}

/* Computes and publishes a checkpoint where the span leaves the tokens that others have computed.
 * The next sequence that leaves them there can begin there. */
static int make_checkpoint(struct spw_engine *e, const struct spw_span *whole,
                           struct spw_error *err)
{
    const uint64_t table = spw_engine_rope_table(e, whole->n_tokens);
    struct spw_span span = *whole;
    struct delivery d = {.engine = e, .spans = &span};
    span.n_tokens = e->above.persist->branch(span.session, whole);
    span.n_logits = 0;
    if (span.n_tokens <= source_of(e, whole) || whole->session->is_paused ||
        spw_engine_rope_table(e, span.n_tokens) != table)
        return 0;
    e->step.n = 0;
    SPW_TRY(add_span(e, 0, &d, err));
    SPW_TRY(run_step(e, table, &d, err));
    e->above.persist->publish(span.session);
    span.session->made_checkpoint = true;
    return 0;
}

/* The span passes whole: it is short, its rows of logits are counted from its end, or it begins
 * with a source. */
static bool is_whole(const struct spw_executor_item *x, uint64_t level)
{
    return x->span.to - x->span.from <= level || x->span.n_logits > 1 ||
           x->span.from < x->span.n_source;
}

/* Leaves most_tokens of the step: short spans pass whole, and the others get equal parts, which end
 * with a tile. */
static void cut_spans(struct spw_engine *e, uint64_t most_tokens)
{
    struct spw_running_step *step = &e->step;
    uint64_t level = 0, before;
    do { /* the parts grow by what spans leave that pass whole */
        uint64_t room = most_tokens, n_cut = 0;
        before = level;
        for (uint32_t i = 0; i < step->n; i++) {
            const struct spw_executor_item *x = &step->items[i];
            n_cut += !is_whole(x, level);
            room = is_whole(x, level) ? spw_sub_u64(room, x->span.to - x->span.from) : room;
        }
        level = n_cut ? spw_max_u64(level, room / n_cut) : level;
    } while (level != before);
    level = spw_max_u64(level, SPW_TILE_TOKENS);
    for (uint32_t i = 0; i < step->n; i++) {
        struct spw_executor_item *x = &step->items[i];
        if (is_whole(x, level))
            continue;
        const uint64_t to = x->span.from + level; /* a tile more than `from`, at least */
        x->span.to = spw_max_u64(to - to % SPW_TILE_TOKENS, x->span.from + 1);
        x->span.n_logits = 0;
        x->is_last_step = true;
    }
}

/* One step of all spans with this rope table. If all spans have it, the step may be paused. */
static int sync_table(struct spw_engine *e, uint64_t table, size_t n_spans,
                      const struct spw_sync_options *o, struct delivery *d, struct spw_error *err)
{
    e->step.n = 0;
    for (size_t i = 0; i < n_spans; i++)
        if (spw_engine_rope_table(e, d->spans[i].n_tokens) == table)
            SPW_TRY(add_span(e, i, d, err));
    d->most_chunks = e->step.n == n_spans ? o->most_chunks : 0;
    if (o->most_tokens && e->step.n && !e->step.sessions[0]->is_paused)
        cut_spans(e, o->most_tokens);
    /* Of the spans some need no step now, or have one of their own, but the next step has all of
     * them: so nothing is fetched for it while this step ends. */
    for (uint32_t i = 0; i < e->step.n; i++)
        e->step.items[i].is_last_step |= e->step.n < n_spans;
    return run_step(e, table, d, err);
}

static int sync_all(struct spw_engine *e, size_t n_spans, const struct spw_sync_options *o,
                    struct delivery *d, struct spw_error *err)
{
    for (size_t i = 0; i < n_spans && e->above.prefix; i++)
        SPW_TRY(make_checkpoint(e, &d->spans[i], err));
    SPW_TRY(sync_table(e, SPW_ROPE_SHARED, n_spans, o, d, err));
    for (size_t i = 0; i < n_spans; i++) { /* then each other table */
        uint64_t table = spw_engine_rope_table(e, d->spans[i].n_tokens);
        bool done = table == SPW_ROPE_SHARED;
        for (size_t j = 0; j < i; j++)
            done |= spw_engine_rope_table(e, d->spans[j].n_tokens) == table;
        if (!done)
            SPW_TRY(sync_table(e, table, n_spans, o, d, err));
    }
    return 0;
}

/* Whether the call needs frames or sessions of the step that was paused, but does not continue
 * this step. */
static bool disturbs_paused(const struct spw_engine *e, const struct spw_span *spans, size_t n)
{
    bool needs = false;
    for (size_t i = 0; i < n; i++)
        needs |= spans[i].session->is_paused || !spans[i].session->has_share;
    return needs && !spw_engine_continues_paused(e, spans, n);
}

/* Another plan has taken the memory of logits that were there before. */
static bool lost_logits(const struct spw_span *spans, size_t n)
{
    bool lost = false;
    for (size_t i = 0; i < n; i++)
        lost |= spans[i].n_logits && !spans[i].session->has_logits &&
                spans[i].session->n_tokens == spans[i].n_tokens;
    return lost;
}

/* Shares the frames. If sessions of the batch have lost so many tiles that they shared that there
 * is no room for all of them, some are closed; by the batch itself, if the step is one of the
 * batch. */
static int share(struct spw_engine *e, bool is_batch)
{
    spw_engine_share(e);
    if (!e->sharing.over && !(e->sharing.n_shared && e->sharing.is_old))
        return 0;
    if (is_batch)
        return -ESTALE;
    e->above.batch_hooks->make_room(e->above.batch);
    spw_engine_share(e);
    return 0;
}

int spw_engine_sync(struct spw_engine *e, const struct spw_span *spans, size_t n_spans,
                    const struct spw_sync_options *o,
                    void (*on_logits)(void *context, size_t span, size_t position,
                                      const float *logits),
                    void *context, struct spw_error *err)
{
    spw_error_clear(err);
    struct delivery d = {e, spans, on_logits, context, 0};
    for (size_t i = 0; i < n_spans; i++)
        SPW_TRY(check_span(e, spans, i, err));
    SPW_TRY(spw_engine_need_memory(e, err));
    if (spw_engine_memory_is_short(e))
        SPW_TRY(spw_engine_apply_limit(e, err));
    spw_kv_write_again(e->kv); /* their frames belong to other tiles, maybe of other sessions */
    if (disturbs_paused(e, spans, n_spans))
        spw_engine_drop_paused(e);
    if (!e->paused.n)
        SPW_TRY(share(e, o->publishes));
    if (lost_draft_rows(e))
        return -ESTALE;
    e->step.publishes = o->publishes;
    for (size_t i = 0; i < n_spans; i++)
        if (!spans[i].session->is_paused)
            spans[i].session->delivered = 0;
    int rc;
    do { /* again for those that had their logits when another one needed another plan */
        rc = sync_all(e, n_spans, o, &d, err);
        for (size_t i = 0; i < n_spans; i++)
            e->above.persist->end_sync(spans[i].session);
    } while (!rc && lost_logits(spans, n_spans));
    if (rc == -ECANCELED)
        spw_interrupt_clear(e->options.interrupt);
    return rc;
}

int spw_sync(struct spw_engine *e, const struct spw_span *spans, size_t n_spans,
             void (*on_logits)(void *context, size_t span, size_t position, const float *logits),
             void *context, struct spw_error *err)
{
    return spw_engine_sync(e, spans, n_spans, &(struct spw_sync_options){0}, on_logits, context,
                           err);
}
