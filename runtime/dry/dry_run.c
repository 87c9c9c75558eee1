/* Predicts the bytes that a run moves: see runtime/plan_query.h. A dry run is a batch of requests
 * in an engine that computes nothing and counts the bytes that it would move
 * (runtime/engine/engine_dry.c). So no rule of the runtime is written a second time. Every answer
 * gets max_new_tokens tokens. Experts that rows miss are not in the bytes, because the routing is
 * not known: an estimate of them gets the rows of each pass (runtime/plan/expert_forecast.h).
 *
 *   1. for each request: its tokens, what the prefix cache has of them, its session from a file;
 *      spw_batch_submit
 *   2. until the batch is idle: spw_batch_step, then repeat */
#include "runtime/batch/batch_parts.h"
#include "runtime/persist/prefix.h"
#include "runtime/persist/snapshot.h"
#include "runtime/plan/expert_forecast.h"
#include "runtime/saved.h"

#include <string.h>

struct dry_run {
    struct spw_engine *engine; /* owned, as what follows */
    struct spw_batch *batch;
    struct spw_session **sessions;      /* [n], those from files; NULL: none */
    uint64_t *ends_at;                  /* by the numbers of requests, from 1 on */
    struct spw_plan_span *spans;        /* [sessions], of the step that `steps` gets */
    const struct spw_plan_steps *steps; /* borrowed: the caller's callback; NULL: none */
    struct spw_expert_forecast *experts;
    struct spw_dry_backend backend;
    struct spw_dry_hooks hooks;
    uint64_t repeated[SPW_MOVED_COUNT]; /* bytes of steps that were counted without running */
    uint32_t n_running;                 /* requests that ran after the latest step */
    uint32_t n_alike; /* steps in a row after which as many requests ran as before */
    size_t n;
};

/* ---- callbacks of the executor ---- */

/* Counts a pass for the estimate of experts, once: in the first layer with experts. A pass of
 * drafts goes through the MTP layer only. */
static void count_pass(void *context, uint32_t layer, uint64_t rows)
{
    const struct dry_run *d = context;
    const struct spw_model_config *c = spw_engine_config(d->engine);
    uint32_t first = 0;
    while (!c->has_experts[first])
        first++;
    const bool draft = spw_config_is_mtp(c, layer);
    if (d->experts && (draft || layer == first))
        spw_expert_forecast_pass(d->experts, draft, rows);
}

/* Tokens that the request of a sequence began with. */
static uint64_t prompt_of(const struct dry_run *d, const struct spw_sequence *seq)
{
    for (struct spw_batch_entry *x = NULL; (x = spw_batch_next(d->batch, x));)
        if (x->session && &x->session->seq == seq)
            return x->answer.request.n_prompt;
    return 0;
}

static void report_step(void *context, const struct spw_executor_item *items, uint32_t n)
{
    const struct dry_run *d = context;
    for (uint32_t i = 0; i < n; i++)
        d->spans[i] =
            (struct spw_plan_span){.from = items[i].span.from,
                                   .to = items[i].span.to,
                                   .is_prompt = items[i].span.to <= prompt_of(d, items[i].seq)};
    d->steps->step(d->steps->context, d->spans, n, 1);
}

/* Reports n steps like the latest one. The sessions have their tokens already. */
static void report_repeated(const struct dry_run *d, uint64_t n)
{
    uint32_t rows = 0;
    for (struct spw_batch_entry *x = NULL; (x = spw_batch_next(d->batch, x));) {
        const uint64_t from = x->session->n_tokens - n;
        d->spans[rows++] = (struct spw_plan_span){.from = from, .to = from + 1};
    }
    if (d->steps)
        d->steps->step(d->steps->context, d->spans, rows, n);
    for (uint64_t i = 0; i < n && d->experts; i++)
        spw_expert_forecast_pass(d->experts, false, rows);
}

/* ---- requests ---- */

/* The most tokens of a prompt of n that may come from the prefix cache: whole tiles, without the
 * last token, which is computed in any case. */
static uint64_t most_found(uint64_t n)
{
    return (n - 1) - (n - 1) % SPW_TILE_TOKENS;
}

/* Opens the session of the request, if it begins with tokens of a saved session. */
static int resume(struct dry_run *d, size_t i, const struct spw_plan_request *q,
                  const int32_t *tokens, struct spw_error *err)
{
    struct spw_saved *saved;
    if (!q->n_resumed)
        return 0;
    SPW_TRY(spw_saved_assume(&saved, d->engine, tokens, q->n_resumed, q->resumed_logits, err));
    int rc = spw_session_resume(&d->sessions[i], d->engine, saved, err);
    spw_saved_close(saved);
    return rc;
}

static int submit_tokens(struct dry_run *d, size_t i, const struct spw_plan_request *q,
                         const int32_t *tokens, struct spw_error *err)
{
    uint64_t id;
    if (q->n_found && !q->n_resumed)
        SPW_TRY(spw_prefix_assume(d->engine, tokens, q->n_prompt,
                                  spw_min_u64(q->n_found, most_found(q->n_prompt)), err));
    SPW_TRY(resume(d, i, q, tokens, err));
    if (q->n_resumed && !q->max_new_tokens) /* the answer is complete: nothing runs */
        return 0;
    const struct spw_request request = {.prompt = tokens,
                                        .n_prompt = q->n_prompt,
                                        .max_new_tokens = q->max_new_tokens,
                                        .ignore_eos = true,
                                        .beams = {.n_beams = q->n_beams, .length_penalty = 1},
                                        .session = d->sessions[i]};
    SPW_TRY(spw_batch_submit(d->batch, &request, &id, err));
    for (uint64_t k = id; k < id + spw_max_u32(q->n_beams, 1); k++) {
        struct spw_batch_entry *x = spw_batch_find(d->batch, k);
        d->ends_at[k] = q->ends_at;
        x->drafts.step_rows = q->step_rows;
        x->drafts.n_known = q->ends_at ? q->ends_at : q->max_new_tokens;
        x->group.parents = q->parents;
        x->group.n_steps = q->n_steps;
    }
    return 0;
}

/* A request whose tokens are not known gets tokens that no other such request begins with, so that
 * they share nothing. */
static int submit(struct dry_run *d, size_t i, const struct spw_plan_request *q,
                  struct spw_error *err)
{
    const int32_t any = (int32_t)(i % spw_engine_config(d->engine)->vocab);
    if (q->prompt)
        return submit_tokens(d, i, q, q->prompt, err);
    int32_t *tokens = spw_alloc(q->n_prompt * sizeof *tokens);
    if (!tokens)
        return spw_fail(err, -ENOMEM, "out of memory for a prompt");
    for (uint64_t k = 0; k < q->n_prompt; k++)
        tokens[k] = any;
    int rc = submit_tokens(d, i, q, tokens, err);
    spw_free(tokens);
    return rc;
}

/* ---- steps that move the same bytes ----
 *
 * Until the next tile begins, all decode steps of the same requests move the same bytes. So one of
 * them runs, and its bytes count for all. */

/* So many such steps must have run before others are skipped: the first one moves, in addition,
 * what a new tile costs. */
enum { ALIKE_STEPS = 3 };

/* How many of the next steps of this request, at most n, will move the same bytes as the latest. */
static uint64_t count_alike(const struct spw_batch *b, const struct spw_batch_entry *x, uint64_t n)
{
    const struct spw_answer *a = &x->answer;
    const uint64_t held = x->session ? x->session->n_tokens : 0;
    if (!x->session || x->drafts.step_rows || x->group.together ||
        a->result.n_tokens - a->request.n_given < ALIKE_STEPS || held < ALIKE_STEPS ||
        held != a->n_tokens - 1)
        return 0;
    const uint64_t until = spw_engine_alike_until(b->engine, held + 1 - ALIKE_STEPS);
    n = spw_min_u64(n, spw_sub_u64(until, held));
    /* the last step of an answer fetches nothing ahead */
    n = spw_min_u64(n, a->request.max_new_tokens - a->result.n_tokens - 1);
    /* each step fetches ahead for the length after it: that must have the same rope table, too */
    n -= n && spw_engine_rope_table(b->engine, held + n + 1) != SPW_ROPE_SHARED;
    return n;
}

/* Gives the request n tokens without running their steps. */
static int skip(struct spw_batch_entry *x, uint64_t n)
{
    SPW_TRY(spw_session_skip(x->session, n));
    for (uint64_t i = 0; i < n; i++)
        SPW_TRY(spw_answer_push(&x->answer, 0, NULL));
    return 0;
}

/* Skips as many of the next steps, at most `most`, as would move the same bytes as the latest one:
 * each running request gets *n tokens. -ENOMEM. */
static int skip_alike(struct dry_run *d, uint64_t most, uint64_t *n)
{
    const struct spw_batch *b = d->batch;
    uint32_t n_running = 0; /* now */
    *n = spw_min_u64(most, SPW_TILE_TOKENS);
    for (struct spw_batch_entry *x = NULL; (x = spw_batch_next(b, x));) {
        *n = *n ? count_alike(b, x, *n) : 0;
        n_running++;
    }
    d->n_alike = n_running == d->n_running && !b->n_ended ? d->n_alike + 1 : 0;
    d->n_running = n_running;
    if (!n_running || d->n_alike < ALIKE_STEPS)
        *n = 0;
    for (struct spw_batch_entry *x = NULL; *n && (x = spw_batch_next(b, x));)
        SPW_TRY(skip(x, *n));
    return 0;
}

/* ---- the run ---- */

/* Ends the answers that have their known length (ends_at). Returns how many tokens every other
 * answer can get before the last token of one of them. */
static uint64_t end_answers(struct dry_run *d)
{
    uint64_t most = UINT64_MAX;
    for (struct spw_batch_entry *x = NULL; (x = spw_batch_next(d->batch, x));) {
        const uint64_t ends_at = d->ends_at[x->id];
        if (ends_at && x->answer.result.n_tokens == ends_at)
            spw_batch_end_well(d->batch, x, SPW_FINISH_STOP);
        else if (ends_at)
            most = spw_min_u64(most, ends_at - x->answer.result.n_tokens - 1);
    }
    return most;
}

/* Runs a step, and counts the steps after it that move the same bytes. 1: there are more steps. */
static int step(struct dry_run *d, struct spw_error *err)
{
    struct spw_stats before, after;
    uint64_t n;
    spw_engine_stats(d->engine, &before);
    const int rc = spw_batch_step(d->batch, err);
    SPW_TRY(rc < 0 ? rc : skip_alike(d, end_answers(d), &n));
    spw_engine_stats(d->engine, &after);
    for (int i = 0; i < SPW_MOVED_COUNT; i++)
        d->repeated[i] += n * (after.moved_bytes[i] - before.moved_bytes[i]);
    if (n)
        report_repeated(d, n);
    return rc;
}

static int run(struct dry_run *d, const struct spw_engine *like,
               const struct spw_plan_request *requests, struct spw_error *err)
{
    int more = 1;
    uint64_t n_ids = 1;
    for (size_t i = 0; i < d->n; i++)
        n_ids += spw_max_u32(requests[i].n_beams, 1);
    spw_backend_dry(&d->backend, &like->backend, &like->lane);
    d->hooks = (struct spw_dry_hooks){
        .experts = count_pass, .step = d->steps ? report_step : NULL, .context = d};
    SPW_TRY(spw_engine_open_dry(&d->engine, like, &d->backend, &spw_prefix_hooks, &d->hooks, err));
    d->spans = spw_alloc_zero(d->engine->plan.info.sessions, sizeof *d->spans);
    d->sessions = spw_alloc_zero(d->n, sizeof(struct spw_session *));
    d->ends_at = spw_alloc_zero(n_ids, sizeof *d->ends_at);
    if (!d->spans || !d->sessions || !d->ends_at)
        return spw_fail(err, -ENOMEM, "out of memory for a plan");
    SPW_TRY(spw_batch_open(&d->batch, d->engine, NULL, err));
    for (size_t i = 0; i < d->n; i++)
        SPW_TRY(submit(d, i, &requests[i], err));
    while (more > 0)
        more = step(d, err);
    return more;
}

/* The bytes that an engine like `like` moves when it opens and runs one batch of these requests,
 * which the caller has checked. `experts` gets the passes, and `steps` the steps; both may be NULL.
 */
static int dry_run(uint64_t moved[SPW_MOVED_COUNT], const struct spw_engine *like,
                   const struct spw_plan_request *requests, size_t n,
                   struct spw_expert_forecast *experts, const struct spw_plan_steps *steps,
                   struct spw_error *err)
{
    struct dry_run d = {.n = n, .experts = experts, .steps = steps};
    struct spw_stats stats = {0};
    int rc = run(&d, like, requests, err);
    if (!rc)
        spw_engine_stats(d.engine, &stats);
    for (int i = 0; i < SPW_MOVED_COUNT; i++)
        moved[i] = stats.moved_bytes[i] + d.repeated[i];
    spw_batch_close(d.batch);
    for (size_t i = 0; d.sessions && i < n; i++)
        spw_session_close(d.sessions[i]);
    spw_engine_close(d.engine);
    spw_free(d.sessions);
    spw_free(d.ends_at);
    spw_free(d.spans);
    return rc;
}

/* ---- predictions ---- */

static int check_requests(const struct spw_plan_info *plan, const struct spw_plan_request *requests,
                          size_t n, struct spw_error *err)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t more = spw_sub_u64(requests[i].max_new_tokens, 1), needed;
        if (!requests[i].n_prompt)
            return spw_fail(err, -EINVAL, "request %zu: its prompt has no tokens", i + 1);
        if (requests[i].n_resumed > requests[i].n_prompt)
            return spw_fail(err, -EINVAL, "request %zu: its session has more tokens than it",
                            i + 1);
        if (!spw_add_u64(requests[i].n_prompt, more, &needed) || needed > plan->context)
            return spw_fail(err, -E2BIG,
                            "request %zu: %llu prompt tokens and %llu new ones are more than the "
                            "context of %llu",
                            i + 1, (unsigned long long)requests[i].n_prompt,
                            (unsigned long long)requests[i].max_new_tokens,
                            (unsigned long long)plan->context);
    }
    return 0;
}

static int predict(uint64_t moved[SPW_MOVED_COUNT], struct spw_expert_bytes *experts,
                   const struct spw_plan_steps *steps, const struct spw_engine *e,
                   const struct spw_plan_request *requests, size_t n, struct spw_error *err)
{
    struct spw_expert_forecast f;
    SPW_TRY(check_requests(&e->plan.info, requests, n, err));
    if (spw_expert_forecast_open(&f, &e->plan, e->model.weights, e->expert_counts))
        return spw_fail(err, -ENOMEM, "out of memory for the forecast of experts");
    int rc = dry_run(moved, e, requests, n, &f, steps, err);
    if (!rc && experts)
        spw_expert_forecast_bytes(&f, experts);
    spw_expert_forecast_close(&f);
    return rc;
}

int spw_plan_moved(uint64_t moved[SPW_MOVED_COUNT], struct spw_expert_bytes *experts,
                   const struct spw_plan_steps *steps, const char *model_dir,
                   const struct spw_options *o, const struct spw_plan_request *requests, size_t n,
                   struct spw_error *err)
{
    struct spw_engine *e;
    memset(moved, 0, SPW_MOVED_COUNT * sizeof *moved);
    int rc = spw_engine_plan_only(&e, model_dir, o, err);
    if (!rc)
        rc = predict(moved, experts, steps, e, requests, n, err);
    spw_engine_close(e);
    return rc ? spw_fail(err, rc, "%s: %s", model_dir, strerror(-rc)) : 0;
}

/* False after something that no dry run knows: memory or the disk failed, a budget changed, a step
 * was paused or interrupted, a write to disk failed. */
static bool is_predictable(const struct spw_engine *e)
{
    return e->executor && !e->unpredicted && !e->events.n_fallbacks && !e->events.n_lost_tiles &&
           !spw_kv_any_write_failed(e->kv);
}

/* An answer that ends early drops the transfers for its next token, and so does a beam that becomes
 * another one. How many of these had been made then is known only if none of them waits for a
 * drive. */
static bool waits_for_drive(const struct spw_plan *p)
{
    return p->n_disk_frames || p->attaches || spw_plan_reads_weights(p);
}

int spw_engine_predict(uint64_t moved[SPW_MOVED_COUNT], const struct spw_engine *e,
                       const struct spw_plan_request *requests, size_t n, struct spw_error *err)
{
    spw_error_clear(err);
    bool drops = false; /* transfers */
    for (size_t i = 0; i < n; i++) {
        drops |= requests[i].ends_at || requests[i].n_beams;
        if (e->model.config.n_source_layers &&
            ((requests[i].n_resumed && !requests[i].prompt) || requests[i].n_found))
            return spw_fail(err, -ENODATA, "a length does not say where the source ends");
    }
    if (!is_predictable(e) || (drops && waits_for_drive(&e->plan)))
        return spw_fail(err, -ENODATA, "something happened that no plan can know");
    SPW_TRY(predict(moved, NULL, NULL, e, requests, n, err));
    for (int i = 0; i < SPW_MOVED_COUNT; i++)
        moved[i] += e->executor->missed[i];
    return 0;
}
