/* Budgets that change while the engine is open, because the caller changes them or a tier has
 * failed. The engine makes a new plan, frees the memory of the old plan, takes the memory of the
 * new one, and sessions compute again what their caches held. The bits are the same, unless old KV
 * now has another precision.
 *
 *   budgets -> plan -> free -> allocate -> a tier refuses -> lower budget -> plan -> ...
 *
 * Each turn lowers a budget (spw_fallback_lower), so the loop ends. If no plan works, the engine
 * returns to the old plan. If even the memory of the old plan is refused, the engine has no memory
 * until the next call that needs it. See engine.h. */
#include "runtime/engine/engine.h"

#include <stdio.h>
#include <string.h>

/* ---- fallbacks: pure functions ---- */

enum { PAGE = 4096 };

bool spw_fallback_lower(uint64_t *budget, const struct spw_fallback_failure *f)
{
    const uint64_t asked = spw_min_u64(f->asked, *budget);
    if (!asked)
        return false;
    /* A refusal may come from a limit that the system does not report: then three quarters are
     * tried. */
    uint64_t bytes = f->held && f->held < asked ? f->held : asked - spw_div_up(asked, 4);
    *budget = bytes / PAGE * PAGE;
    return true;
}

int spw_fallback_lacking(const struct spw_plan_info *refused, const struct spw_plan_input *in,
                         uint64_t *needed)
{
    int tier = SPW_BUDGET_DEVICE;
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < SPW_BUDGETS; i++) {
        const uint64_t smallest = spw_budgets_smallest(refused, i);
        const uint64_t given = in->budgets[i] + in->drafter_bytes[i];
        if (smallest > given && smallest - given < least) {
            least = smallest - given;
            tier = i;
        }
    }
    *needed = spw_budgets_smallest(refused, tier);
    return tier;
}

uint64_t spw_fallback_total(const struct spw_plan_info *p, int tier)
{
    return tier == SPW_BUDGET_DEVICE ? p->device.total
           : tier == SPW_BUDGET_HOST ? p->host.total
                                     : p->disk.total;
}

enum spw_fallback_kind spw_fallback_between(const struct spw_plan_info *from,
                                            const struct spw_plan_info *to)
{
    static const enum spw_fallback_kind quantized[] = {[SPW_KV_INT8] = SPW_FALLBACK_INT8,
                                                       [SPW_KV_INT8_INT4] = SPW_FALLBACK_INT8_INT4,
                                                       [SPW_KV_INT4] = SPW_FALLBACK_INT4};
    if (to->precision > from->precision)
        return quantized[to->precision];
    if (to->precision < from->precision)
        return SPW_FALLBACK_UP;
    if (to->disk.kv > from->disk.kv)
        return SPW_FALLBACK_DISK;
    if (to->host.kv > from->host.kv)
        return SPW_FALLBACK_HOST;
    if (to->n_layers_resident < from->n_layers_resident)
        return SPW_FALLBACK_WEIGHTS;
    if (to->prefetch_slots * to->prefetch_splits < from->prefetch_slots * from->prefetch_splits)
        return SPW_FALLBACK_SLOTS;
    if (to->prefill_chunk < from->prefill_chunk)
        return SPW_FALLBACK_CHUNK;
    return SPW_FALLBACK_BUDGETS;
}

/* ---- what a fallback reports ---- */

uint64_t spw_engine_n_cached(const struct spw_engine *e)
{
    uint64_t n = 0;
    for (struct spw_session *s = NULL; (s = spw_engine_next(e, s));)
        n += spw_session_cached(s);
    return n;
}

/* A plan, and what the sessions held under it. */
struct change {
    struct spw_plan plan;
    struct spw_plan_input in;
    uint64_t device_limit, host_limit; /* limits of the device */
    uint64_t n_longest, n_cached;      /* tokens of the longest session; in the caches of all */
    bool in_step;                      /* the running step was broken off */
    bool down;                         /* a budget is lower, and no precision higher */
};

static struct change now(const struct spw_engine *e)
{
    struct change c = {.plan = e->plan,
                       .in = e->in,
                       .device_limit = spw_engine_limit(e->options.device_bytes),
                       .host_limit = spw_engine_limit(e->options.host_bytes),
                       .n_cached = spw_engine_n_cached(e)};
    for (struct spw_session *s = NULL; (s = spw_engine_next(e, s));)
        c.n_longest = spw_max_u64(c.n_longest, s->n_tokens);
    return c;
}

/* Tokens that the caches do not hold any more. */
static uint64_t n_lost(const struct spw_engine *e, const struct change *from)
{
    return spw_sub_u64(from->n_cached, spw_engine_n_cached(e));
}

/* Reports the change to the plan of the engine, which this tier has caused. */
static void report(struct spw_engine *e, const struct change *from, const char *failed, int tier,
                   uint64_t asked, uint64_t n_recomputed)
{
    const struct spw_plan_info *to = &e->plan.info, *before = &from->plan.info;
    const uint64_t bytes = spw_fallback_total(before, tier);
    const struct spw_fallback f = {.kind = spw_fallback_between(before, to),
                                   .failed = failed,
                                   .position = from->n_longest,
                                   .bytes_asked = asked,
                                   .bytes_freed = spw_sub_u64(bytes, spw_fallback_total(to, tier)),
                                   .n_recomputed = n_recomputed};
    spw_engine_note_fallback(e, &f);
}

/* ---- taking the memory of a plan ---- */

/* A tier refused memory that e->plan needs: makes another plan under a lower budget. `why`: the
 * refusal. */
static int plan_lower(struct spw_engine *e, const struct spw_fallback_failure *f,
                      const struct spw_error *why, struct spw_error *err)
{
    const struct change from = now(e);
    struct spw_error refusal = {0};
    int rc = spw_engine_make_plan(e, &e->in, NULL, &refusal);
    if (rc)
        return spw_fail(err, rc, "%.400s; with what is left: %.500s", why->text, refusal.text);
    report(e, &from, spw_budget_names[f->tier].memory, f->tier, f->asked, from.n_cached);
    return 0;
}

/* Files may write only what the plan does not need for spills. */
static void limit_files(struct spw_engine *e)
{
    uint64_t limit = e->options.disk_write_limit, spills = e->plan.info.disk_write_bytes;
    e->files.limit_bytes =
        limit ? spw_sub_u64(spw_engine_budget(limit, 0), e->past.disk_writes + spills) : UINT64_MAX;
}

int spw_engine_take_memory(struct spw_engine *e, struct spw_error *err)
{
    for (;;) {
        struct spw_fallback_failure f;
        struct spw_error why = {0};
        int rc = spw_engine_open_memory(e, &f, &why);
        limit_files(e);
        if (!rc)
            return 0;
        e->unpredicted = true;
        spw_engine_give_memory(e);
        if (f.tier == SPW_FALLBACK_NO_TIER || !spw_fallback_lower(&e->in.budgets[f.tier], &f))
            return spw_fail(err, rc, "%s", why.text);
        SPW_TRY(plan_lower(e, &f, &why, err));
    }
}

/* ---- from one plan to another ---- */

static void set_limits(struct spw_engine *e, const struct change *to)
{
    e->lane.ops->set_budgets(e->lane.device, to->device_limit, to->host_limit);
}

static void set_plan(struct spw_engine *e, const struct change *to)
{
    e->plan = to->plan;
    e->in = to->in;
    set_limits(e, to);
}

/* Changes e->plan and its memory to those of `to`, in place if that is possible. If the new plan
 * does not work, returns to the plan of `from`. */
static int change_plan(struct spw_engine *e, const struct change *to, const struct change *from,
                       struct spw_error *err)
{
    if (e->above.batch && e->above.batch_hooks->copy_logits(e->above.batch))
        return spw_fail(err, -ENOMEM, "no memory to keep the logits of a batch");
    spw_engine_drop_paused(e);
    if (e->executor && !to->in_step && spw_plan_same_layout(&to->plan, &e->plan) &&
        !spw_engine_exceeds_budgets(e, &to->plan, &to->in)) {
        set_plan(e, to);
        return 0;
    }
    struct spw_plan_input in_place = to->in;
    in_place.draft_rows = e->in.draft_rows; /* their memory does not move */
    if (to->down && !spw_engine_replan(e, &in_place)) {
        set_limits(e, to);
        limit_files(e);
        return 0;
    }
    spw_engine_give_memory(e);
    set_plan(e, to);
    int rc = spw_engine_take_memory(e, err);
    if (!rc)
        return 0;
    set_plan(e, from);
    if (spw_engine_take_memory(e, NULL))
        set_plan(e, from);
    return rc;
}

/* Makes the new plan while the memory of the old plan is still in use. */
static int plan_change(struct spw_engine *e, struct change *to, const struct change *from,
                       struct spw_error *err)
{
    int rc = spw_engine_make_plan(e, &to->in, NULL, err);
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
    for (int i = 0; i < SPW_BUDGETS; i++)
        if (to->budgets[i] < from->budgets[i])
            return i;
    return SPW_FALLBACK_NO_TIER;
}

/* Reports a lower budget. Also reports a higher precision of old KV, which changes answers, too. */
static void report_budgets(struct spw_engine *e, const struct change *from, const char *why)
{
    int tier = lowered_tier(&from->in, &e->in);
    bool up = e->plan.info.precision < from->plan.info.precision;
    if ((tier == SPW_FALLBACK_NO_TIER && !up) || spw_plan_same_layout(&e->plan, &from->plan))
        return;
    if (tier == SPW_FALLBACK_NO_TIER)
        tier = SPW_BUDGET_DEVICE;
    report(e, from,
           up    ? "nothing"
           : why ? why
                 : spw_budget_names[tier].budget,
           tier, up ? 0 : spw_fallback_total(&from->plan.info, tier), n_lost(e, from));
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
    report_budgets(e, &from, why);
    return 0;
}

/* ---- a tier that failed in a step ---- */

int spw_engine_shrink_disk(struct spw_engine *e, int why, struct spw_error *err)
{
    const struct change from = now(e);
    struct change to = from;
    to.in_step = to.down = true;
    uint64_t held = e->disk ? spw_disk_n_used(e->disk) * e->plan.tile_bytes : 0;
    struct spw_fallback_failure f = {SPW_BUDGET_DISK, e->plan.info.disk.total, held};
    if (!e->executor || !spw_fallback_lower(&to.in.disk_bytes, &f))
        return -ENOMEM;
    spw_engine_limit_writes(e, &to.in);
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
    report(e, &from, why == -EDQUOT ? "disk quota" : "disk space", SPW_BUDGET_DISK, f.asked,
           n_lost(e, &from));
    return 0;
}
