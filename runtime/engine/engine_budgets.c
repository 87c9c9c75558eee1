/* Budgets that change while the engine is open, because the caller changes them or a tier has
 * failed. The engine makes a new plan, frees the memory of the old plan, takes the memory of the
 * new one, and sessions compute again what their caches held. The bits are the same, unless old KV
 * now has another precision.
 *
 *   budgets -> plan -> free -> allocate -> a tier refuses -> lower budget -> plan -> ...
 *
 * Each turn lowers a budget (fallback.h), so the loop ends. If no plan works, the engine returns to
 * the old plan. If even the memory of the old plan is refused, the engine has no memory until the
 * next call that needs it. See engine.h. */
#include "runtime/engine/engine.h"

#include <stdio.h>
#include <string.h>

/* ---- what a fallback reports ---- */

/* The number of tokens in the caches of all sessions, and the length of the longest session. */
static uint64_t count_tokens(const struct spw_engine *e, uint64_t *longest)
{
    uint64_t n = 0;
    *longest = 0;
    for (uint32_t i = 0; i < e->plan.info.sessions; i++) {
        const struct spw_session *s = e->sessions[i];
        if (!s)
            continue;
        *longest = spw_max_u64(*longest, s->n_tokens);
        n += s->cached ? s->n_tokens : 0;
    }
    return n;
}

/* Describes the change from plan `from` to plan `to`, which this tier has caused. */
static void describe_fallback(struct spw_fallback *fallback, const struct spw_plan_info *from,
                              const struct spw_plan_info *to, int tier)
{
    uint64_t before = spw_fallback_total(from, tier), after = spw_fallback_total(to, tier);
    fallback->kind = spw_fallback_between(from, to);
    fallback->bytes_freed = spw_sub_u64(before, after);
}

/* ---- taking the memory of a plan ---- */

static void set_budgets(struct spw_plan_input *in, const struct spw_descent *l)
{
    in->device_bytes = l->budgets[SPW_BUDGET_DEVICE];
    in->host_bytes = l->budgets[SPW_BUDGET_HOST];
    in->disk_bytes = l->budgets[SPW_BUDGET_DISK];
}

static struct spw_descent descent_of(const struct spw_plan_input *in)
{
    return (struct spw_descent){.budgets = {in->device_bytes, in->host_bytes, in->disk_bytes}};
}

/* A tier refused memory that e->plan needs: makes another plan under a lower budget. `why`: the
 * refusal. */
static int plan_lower(struct spw_engine *e, struct spw_plan_input *in, struct spw_descent *l,
                      const struct spw_fallback_failure *f, const struct spw_error *why,
                      struct spw_error *err)
{
    const struct spw_plan_info from = e->plan.info;
    struct spw_fallback fallback = {0}, ignored;
    struct spw_error refusal = {0};
    set_budgets(in, l);
    int rc = spw_engine_make_plan(e, in, &ignored, &refusal);
    if (rc)
        return spw_fail(err, rc, "%.400s; with what is left: %.500s", why->text, refusal.text);
    fallback.failed = spw_budget_names[f->tier].memory;
    fallback.bytes_asked = f->asked;
    describe_fallback(&fallback, &from, &e->plan.info, f->tier);
    fallback.n_recomputed = count_tokens(e, &fallback.position);
    spw_engine_note_fallback(e, &fallback);
    return 0;
}

/* Files may write only what the plan does not need for spills. */
static void limit_files(struct spw_engine *e)
{
    uint64_t limit = e->options.disk_write_limit, spills = e->plan.info.disk_write_bytes;
    e->files.limit_bytes =
        limit ? spw_sub_u64(spw_engine_budget(limit, 0), e->past.disk_writes + spills) : UINT64_MAX;
}

int spw_engine_take_memory(struct spw_engine *e, struct spw_plan_input *in, struct spw_error *err)
{
    struct spw_descent l = descent_of(in);
    for (;;) {
        struct spw_fallback_failure f;
        struct spw_error why = {0};
        e->in = *in;
        int rc = spw_engine_open_memory(e, &f, &why);
        limit_files(e);
        if (!rc)
            return 0;
        e->unpredicted = true;
        spw_engine_give_memory(e);
        if (f.tier == SPW_FALLBACK_NO_TIER || !spw_fallback_lower(&l, &f))
            return spw_fail(err, rc, "%s", why.text);
        SPW_TRY(plan_lower(e, in, &l, &f, &why, err));
    }
}

/* ---- from one plan to another ---- */

struct change {
    struct spw_plan plan;
    struct spw_plan_input in;
    uint64_t device_limit, host_limit; /* limits of the device */
    bool in_step;                      /* the running step was broken off */
    bool down;                         /* a budget is lower, and no precision higher */
};

/* Changes e->plan and its memory to those of `to`, in place if that is possible. If the new plan
 * does not work, returns to the plan of `from`. */
static int change_plan(struct spw_engine *e, struct change *to, const struct change *from,
                       struct spw_error *err)
{
    const struct spw_lane *lane = &e->lane;
    if (e->above.batch && e->above.batch_hooks->copy_logits(e->above.batch))
        return spw_fail(err, -ENOMEM, "no memory to keep the logits of a batch");
    spw_engine_drop_aside(e);
    if (e->executor && !to->in_step && spw_plan_same_layout(&to->plan, &e->plan) &&
        !spw_engine_exceeds_budgets(e, &to->plan, &to->in)) {
        e->plan = to->plan;
        e->in = to->in;
        lane->ops->set_budgets(lane->device, to->device_limit, to->host_limit);
        return 0;
    }
    if (to->down && !spw_engine_replan(e, &to->in)) {
        lane->ops->set_budgets(lane->device, to->device_limit, to->host_limit);
        limit_files(e);
        return 0;
    }
    spw_engine_give_memory(e);
    e->plan = to->plan;
    lane->ops->set_budgets(lane->device, to->device_limit, to->host_limit);
    int rc = spw_engine_take_memory(e, &to->in, err);
    if (!rc)
        return 0;
    struct spw_plan_input in = from->in;
    e->plan = from->plan;
    lane->ops->set_budgets(lane->device, from->device_limit, from->host_limit);
    if (spw_engine_take_memory(e, &in, NULL)) {
        e->plan = from->plan;
        e->in = from->in;
    }
    return rc;
}

static struct change now(const struct spw_engine *e)
{
    return (struct change){.plan = e->plan,
                           .in = e->in,
                           .device_limit = spw_engine_limit(e->options.device_bytes),
                           .host_limit = spw_engine_limit(e->options.host_bytes)};
}

/* Makes the new plan while the memory of the old plan is still in use. */
static int plan_change(struct spw_engine *e, struct change *to, const struct change *from,
                       struct spw_error *err)
{
    struct spw_fallback ignored;
    int rc = spw_engine_make_plan(e, &to->in, &ignored, err);
    to->plan = e->plan;
    e->plan = from->plan;
    return rc;
}

int spw_engine_need_memory(struct spw_engine *e, struct spw_error *err)
{
    struct change from = now(e), to = from;
    return e->executor ? 0 : change_plan(e, &to, &from, err);
}

/* ---- the caller's budgets ---- */

static int lowered_tier(const struct spw_plan_input *from, const struct spw_plan_input *to)
{
    const uint64_t before[] = {from->device_bytes, from->host_bytes, from->disk_bytes};
    const uint64_t after[] = {to->device_bytes, to->host_bytes, to->disk_bytes};
    for (int i = 0; i < SPW_BUDGETS; i++)
        if (after[i] < before[i])
            return i;
    return SPW_FALLBACK_NO_TIER;
}

/* Reports a lower budget. Also reports a higher precision of old KV, which changes answers, too. */
static void tell_change(struct spw_engine *e, const struct change *from, const char *why,
                        struct spw_fallback *fallback)
{
    int tier = lowered_tier(&from->in, &e->in);
    bool up = e->plan.info.precision < from->plan.info.precision;
    if ((tier == SPW_FALLBACK_NO_TIER && !up) || spw_plan_same_layout(&e->plan, &from->plan))
        return;
    if (tier == SPW_FALLBACK_NO_TIER)
        tier = SPW_BUDGET_DEVICE;
    fallback->failed = up ? "nothing" : why ? why : spw_budget_names[tier].budget;
    fallback->bytes_asked = up ? 0 : spw_fallback_total(&from->plan.info, tier);
    describe_fallback(fallback, &from->plan.info, &e->plan.info, tier);
    spw_engine_note_fallback(e, fallback);
}

int spw_engine_set_budgets(struct spw_engine *e, uint64_t device, uint64_t host, uint64_t disk,
                           struct spw_error *err)
{
    spw_error_clear(err);
    return spw_engine_change_budgets(e, (const uint64_t[]){device, host, disk}, NULL, err);
}

int spw_engine_change_budgets(struct spw_engine *e, const uint64_t budgets[SPW_BUDGETS],
                              const char *why, struct spw_error *err)
{
    const struct change from = now(e);
    const struct spw_options given = e->options;
    const struct spw_cache_policy policy = e->model.cache;
    struct spw_fallback fallback = {0};
    uint64_t held = count_tokens(e, &fallback.position);
    e->options.device_bytes = budgets[SPW_BUDGET_DEVICE];
    e->options.host_bytes = budgets[SPW_BUDGET_HOST];
    e->options.disk_bytes = budgets[SPW_BUDGET_DISK];
    struct change to = now(e);
    int rc = spw_cache_policy_make(&e->model.cache, &e->model.config, e->model.compute, &e->options,
                                   err);
    if (!rc)
        rc = spw_engine_plan_input(&to.in, e, &e->options, err);
    if (!rc)
        rc = plan_change(e, &to, &from, err);
    to.down = lowered_tier(&from.in, &to.in) != SPW_FALLBACK_NO_TIER &&
              to.in.precision >= from.in.precision;
    if (!rc)
        rc = change_plan(e, &to, &from, err);
    if (rc) {
        e->options = given;
        e->model.cache = policy;
        return spw_fail(err, rc, "memory for other budgets: %s", strerror(-rc));
    }
    fallback.n_recomputed = spw_sub_u64(held, count_tokens(e, &fallback.position));
    tell_change(e, &from, why, &fallback);
    return 0;
}

/* ---- a tier that failed in a step ---- */

int spw_engine_shrink_disk(struct spw_engine *e, int why, struct spw_error *err)
{
    const struct change from = now(e);
    struct change to = from;
    to.in_step = to.down = true;
    struct spw_fallback fallback = {.failed = why == -EDQUOT ? "disk quota" : "disk space"};
    uint64_t held = e->disk ? spw_disk_n_used(e->disk) * e->plan.tile_bytes : 0;
    struct spw_fallback_failure f = {SPW_BUDGET_DISK, e->plan.info.disk.total, held};
    struct spw_descent l = descent_of(&to.in);
    if (!e->executor || !spw_fallback_lower(&l, &f))
        return -ENOMEM;
    set_budgets(&to.in, &l);
    spw_engine_limit_writes(e, &to.in);
    fallback.bytes_asked = f.asked;
    uint64_t held_tokens = count_tokens(e, &fallback.position);
    int rc = plan_change(e, &to, &from, err);
    if (rc && to.in.disk_bytes) { /* without a disk, the host may suffice */
        to.in.disk_bytes = to.in.disk_write_limit = 0;
        spw_error_clear(err);
        rc = plan_change(e, &to, &from, err);
    }
    if (!rc)
        rc = change_plan(e, &to, &from, err);
    if (rc)
        return rc;
    describe_fallback(&fallback, &from.plan.info, &e->plan.info, SPW_BUDGET_DISK);
    fallback.n_recomputed = spw_sub_u64(held_tokens, count_tokens(e, &fallback.position));
    spw_engine_note_fallback(e, &fallback);
    return 0;
}
