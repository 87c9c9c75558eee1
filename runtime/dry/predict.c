/* Predictions of the bytes of a run, before it and after it: see runtime/plan_query.h. */
#include "runtime/dry/dry_run.h"

#include <string.h>

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
    int rc = spw_dry_run(moved, e, requests, n, &f, steps, err);
    if (!rc && experts)
        spw_expert_forecast_bytes(&f, experts);
    spw_expert_forecast_close(&f);
    return rc;
}

int spw_plan_moved_on(uint64_t moved[SPW_MOVED_COUNT], struct spw_expert_bytes *experts,
                      const struct spw_plan_steps *steps, const struct spw_backend *backend,
                      const char *model_dir, const struct spw_options *o,
                      const struct spw_plan_request *requests, size_t n, struct spw_error *err)
{
    struct spw_engine *e;
    memset(moved, 0, SPW_MOVED_COUNT * sizeof *moved);
    int rc = spw_engine_plan_only(&e, backend, model_dir, o, err);
    if (!rc)
        rc = predict(moved, experts, steps, e, requests, n, err);
    spw_engine_close(e);
    return rc ? spw_fail(err, rc, "%s: %s", model_dir, strerror(-rc)) : 0;
}

int spw_plan_moved(uint64_t moved[SPW_MOVED_COUNT], struct spw_expert_bytes *experts,
                   const struct spw_plan_steps *steps, const char *model_dir,
                   const struct spw_options *o, const struct spw_plan_request *requests, size_t n,
                   struct spw_error *err)
{
    return spw_plan_moved_on(moved, experts, steps, NULL, model_dir, o, requests, n, err);
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
        moved[i] += spw_executor_missed(e->executor)[i];
    return 0;
}
