/* The engine of options.draft_model, which proposes drafts for the batches of another engine. It is
 * an engine of its own: its weights, its KV and its steps are those of any model. Its memory comes
 * out of the budgets of the engine that it works for, before that one plans: at most a quarter of
 * each, and no more than it has use for. It has no disk. */
#include "runtime/engine/engine.h"
#include "runtime/plan_query.h"

enum { SHARE = 4 }; /* of a budget */

/* `in`: of the engine, with the budgets before the drafter has its part. */
static struct spw_options drafter_options(const struct spw_plan_input *in,
                                          const struct spw_options *o)
{
    return (struct spw_options){.backend = o->backend,
                                .device_index = o->device_index,
                                .threads = o->threads,
                                .device_bytes = in->device_bytes / SHARE,
                                .host_bytes = in->host_bytes / SHARE,
                                .context = in->context,
                                .past_positions = true,
                                .sessions = in->sessions,
                                .full_sessions = in->full_sessions,
                                .interrupt = o->interrupt,
                                .delay_seed = o->delay_seed,
                                .own_backend = o->own_backend};
}

static int refuse(int rc, const struct spw_error *why, struct spw_error *err)
{
    return spw_fail(err, rc, "the draft model: %s%s", why->text,
                    rc == -ENOMEM ? " (a quarter of the budgets is for the draft model)" : "");
}

int spw_engine_reserve_drafter(struct spw_plan_input *in, struct spw_engine *e,
                               const struct spw_options *o, struct spw_error *err)
{
    struct spw_plan_info p;
    struct spw_error why = {0};
    if (!o->draft_model || !o->drafts)
        return 0;
    if (!e->drafter) {
        e->drafter_options = drafter_options(in, o);
        int rc = spw_plan_query(&p, o->draft_model, &e->drafter_options, &why);
        if (rc)
            return refuse(rc, &why, err);
    } else {
        p = e->drafter->plan.info;
    }
    in->device_bytes = spw_sub_u64(in->device_bytes, p.device.total);
    in->host_bytes = spw_sub_u64(in->host_bytes, p.host.total);
    return 0;
}

int spw_engine_open_drafter(struct spw_engine *e, struct spw_error *err)
{
    struct spw_error why = {0};
    if (!e->options.draft_model || !e->options.drafts)
        return 0;
    int rc = spw_engine_open_with(&e->drafter, e->above.persist, e->options.draft_model,
                                  &e->drafter_options, &why);
    return rc ? refuse(rc, &why, err) : 0;
}
