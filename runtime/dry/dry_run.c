/* A batch that computes nothing: see dry_run.h.
 *
 *   request -> tokens, what the prefix cache has of them, its session from a file ->
 * spw_batch_submit until the batch is idle: spw_batch_step, then spw_batch_repeat */
#include "runtime/dry/dry_run.h"

#include "runtime/batch/batch_parts.h"
#include "runtime/batch/batch_repeat.h"
#include "runtime/persist/prefix.h"
#include "runtime/persist/snapshot.h"
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
    struct spw_counting_backend backend;
    struct spw_dry_hooks hooks;
    uint64_t repeated[SPW_MOVED_COUNT]; /* of steps that were not made */
    size_t n;
};

/* ---- what the executor tells ---- */

/* Rows of a pass choose experts: in its first layer with experts, the forecast hears of the pass.
 */
static uint32_t choose(void *context, uint32_t layer, uint64_t rows, struct spw_expert_visit *visit)
{
    const struct dry_run *d = context;
    const struct spw_model_config *c = spw_engine_config(d->engine);
    uint32_t first = 0;
    (void)visit;
    while (!c->has_experts[first])
        first++;
    if (d->experts && layer == first)
        spw_expert_forecast_pass(d->experts, rows);
    return 0;
}

/* Tokens that the request of a sequence began with. */
static uint64_t prompt_of(const struct dry_run *d, const struct spw_sequence *seq)
{
    for (uint32_t i = 0; i < d->batch->max_running; i++) {
        const struct spw_batch_entry *x = d->batch->running[i];
        if (x && x->session && &x->session->seq == seq)
            return x->answer.request.n_prompt;
    }
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
    for (uint32_t i = 0; i < d->batch->max_running; i++) {
        const struct spw_batch_entry *x = d->batch->running[i];
        if (!x)
            continue;
        const uint64_t from = x->session->n_tokens - n;
        d->told[rows++] = (struct spw_plan_span){.from = from, .to = from + 1};
    }
    if (d->steps)
        d->steps->step(d->steps->context, d->told, rows, n);
    for (uint64_t i = 0; i < n && d->experts; i++)
        spw_expert_forecast_pass(d->experts, rows);
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

/* ---- the run ---- */

/* Ends the answers that are as long as they will be. Returns the tokens until the next one ends. */
static uint64_t end_answers(struct dry_run *d)
{
    uint64_t most = UINT64_MAX;
    for (uint32_t i = 0; i < d->batch->max_running; i++) {
        struct spw_batch_entry *x = d->batch->running[i];
        const uint64_t ends_at = x ? d->ends_at[x->id - 1] : 0;
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
    SPW_TRY(rc < 0 ? rc : spw_batch_repeat(d->batch, end_answers(d), &n));
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
    spw_backend_count(&d->backend, &like->backend, &like->lane);
    d->hooks =
        (struct spw_dry_hooks){.choose = choose, .step = d->steps ? tell_step : NULL, .context = d};
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

int spw_dry_run(uint64_t moved[SPW_MOVED_COUNT], const struct spw_engine *like,
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
