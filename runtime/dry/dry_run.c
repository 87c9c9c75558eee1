/* Predictions of the bytes of a run, before it and after it: see runtime/plan_query.h. A dry run is
 * a batch of requests through an engine that computes nothing and counts the bytes that it would
 * move (runtime/engine/engine_dry.c). So the prediction of a run is the run itself, and no rule is
 * written twice. Every answer gets max_new_tokens tokens. Experts that move are not in the bytes:
 * nobody knows the routing; a forecast gets the rows of each pass.
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
    uint64_t *ends_at;                  /* [n], of the requests in the order of their numbers */
    struct spw_plan_span *told;         /* [sessions], for `steps` */
    const struct spw_plan_steps *steps; /* borrowed, or NULL */
    struct spw_expert_forecast *experts;
    struct spw_dry_backend backend;
    struct spw_dry_hooks hooks;
    uint64_t repeated[SPW_MOVED_COUNT]; /* of steps that were not made */
    uint32_t n_alike, n_were_running;   /* steps since the latest that differed; requests that ran
                                           after it */
    size_t n;
};

/* ---- what the executor tells ---- */

/* Rows of a pass choose experts: in its first layer with experts, the forecast hears of the pass.
 */
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

static void tell_step(void *context, const struct spw_executor_item *items, uint32_t n)
{
    const struct dry_run *d = context;
    for (uint32_t i = 0; i < n; i++)
        d->told[i] =
            (struct spw_plan_span){.from = items[i].span.from,
                                   .to = items[i].span.to,
                                   .is_prompt = items[i].span.to <= prompt_of(d, items[i].seq)};
    d->steps->step(d->steps->context, d->told, n, 1);
}

/* The last step, n times more; sessions have these tokens already. */
static void tell_repeated(const struct dry_run *d, uint64_t n)
{
    uint32_t rows = 0;
    for (struct spw_batch_entry *x = NULL; (x = spw_batch_next(d->batch, x));) {
        const uint64_t from = x->session->n_tokens - n;
        d->told[rows++] = (struct spw_plan_span){.from = from, .to = from + 1};
    }
    if (d->steps)
        d->steps->step(d->steps->context, d->told, rows, n);
    for (uint64_t i = 0; i < n && d->experts; i++)
        spw_expert_forecast_pass(d->experts, false, rows);
}

/* ---- requests ---- */

/* Of n tokens, the most that may come from the cache: the last one is computed. */
static uint64_t most_found(uint64_t n)
{
    return (n - 1) - (n - 1) % SPW_TILE_TOKENS;
}

/* The session holds the first tokens of the request. */
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
    if (q->n_resumed && !q->max_new_tokens) /* it had ended before */
        return 0;
    const struct spw_request request = {.prompt = tokens,
                                        .n_prompt = q->n_prompt,
                                        .max_new_tokens = q->max_new_tokens,
                                        .ignore_eos = true,
                                        .session = d->sessions[i]};
    SPW_TRY(spw_batch_submit(d->batch, &request, &id, err));
    d->ends_at[id - 1] = q->ends_at;
    struct spw_batch_drafts *drafts = &spw_batch_find(d->batch, id)->drafts;
    drafts->step_rows = q->step_rows;
    drafts->n_known = q->ends_at ? q->ends_at : q->max_new_tokens;
    return 0;
}

/* A request without tokens gets tokens that no other such request begins with. */
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
 * Between two borders of tiles, steps that give each request a token differ in nothing but the
 * token's place in its tile. One of them stands for all. */

enum { ALIKE_STEPS = 3 }; /* the first of them has moved what the border of a tile moves */

/* How many of the next steps of this request move the same bytes as the last ones; at most n. */
static uint64_t count_alike(const struct spw_batch *b, const struct spw_batch_entry *x, uint64_t n)
{
    const struct spw_answer *a = &x->answer;
    const uint64_t held = x->session ? x->session->n_tokens : 0;
    if (!x->session || x->drafts.step_rows ||
        a->result.n_tokens - a->request.n_given < ALIKE_STEPS || held < ALIKE_STEPS ||
        held != a->n_tokens - 1)
        return 0;
    const uint64_t until = spw_engine_alike_until(b->engine, held + 1 - ALIKE_STEPS);
    n = spw_min_u64(n, spw_sub_u64(until, held));
    n = spw_min_u64(n, a->request.max_new_tokens - a->result.n_tokens - 1); /* the last ends it */
    /* tiles are fetched for the length after them, too */
    n -= n && spw_engine_rope_table(b->engine, held + n + 1) != SPW_ROPE_SHARED;
    return n;
}

static int skip(struct spw_batch_entry *x, uint64_t n)
{
    SPW_TRY(spw_session_skip(x->session, n));
    for (uint64_t i = 0; i < n; i++)
        SPW_TRY(spw_answer_push(&x->answer, 0, NULL));
    return 0;
}

/* Makes as many of the next steps, at most `most`, as would move the same bytes as the last one:
 * each running request gets *n tokens more. -ENOMEM. */
static int repeat(struct dry_run *d, uint64_t most, uint64_t *n)
{
    const struct spw_batch *b = d->batch;
    uint32_t n_running = 0;
    *n = spw_min_u64(most, SPW_TILE_TOKENS);
    for (struct spw_batch_entry *x = NULL; (x = spw_batch_next(b, x));) {
        *n = *n ? count_alike(b, x, *n) : 0;
        n_running++;
    }
    d->n_alike = n_running == d->n_were_running && !b->n_ended ? d->n_alike + 1 : 0;
    d->n_were_running = n_running;
    if (!n_running || d->n_alike < ALIKE_STEPS)
        *n = 0;
    for (struct spw_batch_entry *x = NULL; *n && (x = spw_batch_next(b, x));)
        SPW_TRY(skip(x, *n));
    return 0;
}

/* ---- the run ---- */

/* Ends the answers that are as long as they will be. Returns the tokens until the next one ends. */
static uint64_t end_answers(struct dry_run *d)
{
    uint64_t most = UINT64_MAX;
    for (struct spw_batch_entry *x = NULL; (x = spw_batch_next(d->batch, x));) {
        const uint64_t ends_at = d->ends_at[x->id - 1];
        if (ends_at && x->answer.result.n_tokens == ends_at)
            spw_batch_end_well(d->batch, x, SPW_FINISH_STOP);
        else if (ends_at)
            most = spw_min_u64(most, ends_at - x->answer.result.n_tokens - 1);
    }
    return most;
}

/* A step, and those that are like it. 1: there are more. */
static int step(struct dry_run *d, struct spw_error *err)
{
    struct spw_stats before, after;
    uint64_t n;
    spw_engine_stats(d->engine, &before);
    const int rc = spw_batch_step(d->batch, err);
    SPW_TRY(rc < 0 ? rc : repeat(d, end_answers(d), &n));
    spw_engine_stats(d->engine, &after);
    for (int i = 0; i < SPW_MOVED_COUNT; i++)
        d->repeated[i] += n * (after.moved_bytes[i] - before.moved_bytes[i]);
    if (n)
        tell_repeated(d, n);
    return rc;
}

static int run(struct dry_run *d, const struct spw_engine *like,
               const struct spw_plan_request *requests, struct spw_error *err)
{
    int more = 1;
    spw_backend_dry(&d->backend, &like->backend, &like->lane);
    d->hooks = (struct spw_dry_hooks){
        .experts = count_pass, .step = d->steps ? tell_step : NULL, .context = d};
    SPW_TRY(spw_engine_open_dry(&d->engine, like, &d->backend, &spw_prefix_hooks, &d->hooks, err));
    d->told = spw_alloc_zero(d->engine->plan.info.sessions, sizeof *d->told);
    d->sessions = spw_alloc_zero(d->n, sizeof(struct spw_session *));
    d->ends_at = spw_alloc_zero(d->n, sizeof *d->ends_at);
    if (!d->told || !d->sessions || !d->ends_at)
        return spw_fail(err, -ENOMEM, "out of memory for a plan");
    SPW_TRY(spw_batch_open(&d->batch, d->engine, NULL, err));
    for (size_t i = 0; i < d->n; i++)
        SPW_TRY(submit(d, i, &requests[i], err));
    while (more > 0)
        more = step(d, err);
    return more;
}

/* The bytes of opening an engine like `like`, which has a plan, and of one batch with these
 * requests, which have been checked. `experts` gets its passes, and `steps` its steps; NULL: nobody
 * asks. */
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
    spw_free(d.told);
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

/* What nobody could know before: memory or the disk failed, a budget changed, a step was set aside
 * or interrupted, a write to disk failed. */
static bool is_predictable(const struct spw_engine *e)
{
    return e->executor && !e->unpredicted && !e->events.n_fallbacks && !e->events.n_lost_tiles &&
           !spw_kv_any_write_failed(e->kv);
}

/* How far transfers for the next token had come when an answer ended is only known where nothing
 * waits for a drive. */
static bool waits_for_drive(const struct spw_plan *p)
{
    return p->n_disk_frames || p->attaches || p->info.weights_disk_bytes;
}

int spw_engine_predict(uint64_t moved[SPW_MOVED_COUNT], const struct spw_engine *e,
                       const struct spw_plan_request *requests, size_t n, struct spw_error *err)
{
    spw_error_clear(err);
    bool ends_early = false;
    for (size_t i = 0; i < n; i++)
        ends_early |= requests[i].ends_at > 0;
    if (!is_predictable(e) || (ends_early && waits_for_drive(&e->plan)))
        return spw_fail(err, -ENODATA, "something happened that no plan can know");
    SPW_TRY(predict(moved, NULL, NULL, e, requests, n, err));
    for (int i = 0; i < SPW_MOVED_COUNT; i++)
        moved[i] += e->executor->missed[i];
    return 0;
}
