/* Models that propose drafts for the batches of an engine: its own MTP layer, and the engine of
 * options.draft_model.
 *
 * That is an engine of its own: its weights, its KV and its steps are those of any model. Its
 * memory comes out of the budgets of the engine that it works for, before that one plans: at most a
 * quarter of each, and no more than it has use for. It has no disk. */
#include "runtime/engine/engine.h"
#include "runtime/plan/budgets.h"
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

/* The draft model was refused. If a quarter of a budget was too small for it, the whole budget is
 * refused: the error names four times what the draft model got, and four times what it needs. */
static int refuse(int rc, const struct spw_error *why, struct spw_error *err)
{
    if (err && !*err->text && why->refuses_budgets) {
        err->refuses_budgets = true;
        for (int t = 0; t < SPW_BUDGETS; t++)
            err->budgets[t] = (struct spw_refused_budget){SHARE * why->budgets[t].given_bytes,
                                                          SHARE * why->budgets[t].smallest_bytes,
                                                          why->budgets[t].alone};
    }
    return spw_fail(err, rc, "the draft model: %s%s", why->text,
                    rc == -ENOMEM ? " (a quarter of the budgets is for the draft model)" : "");
}

/* Takes the memory of the drafter's plan p off the budgets. What an earlier call took off them
 * comes back first. */
static void take_off(struct spw_plan_input *in, const struct spw_plan_info *p)
{
    const uint64_t bytes[SPW_BUDGETS] = {p->device.total, p->host.total};
    for (int t = 0; t < SPW_BUDGETS; t++) {
        in->budgets[t] = spw_sub_u64(in->budgets[t] + in->drafter_bytes[t], bytes[t]);
        in->drafter_bytes[t] = bytes[t];
    }
}

static bool has_plan(const struct spw_engine *e, const struct spw_plan_input *in)
{
    struct spw_plan_input least = *in;
    if (e->model.cache.may_quantize && e->options.gate)
        spw_plan_set_precision(&least, SPW_KV_INT4);
    return spw_budgets_work(in) || spw_budgets_work(&least);
}

/* The engine will be refused. Of the budgets that the refusal names, the draft model would get a
 * quarter, too. */
static void take_off_named(const struct spw_engine *e, struct spw_plan_input *in,
                           const struct spw_options *o)
{
    struct spw_plan_info least, p;
    struct spw_options more = e->drafter_options;
    spw_plan_smallest(&least, in);
    const uint64_t device = spw_sub_u64(least.smallest_device_bytes, in->drafter_bytes[0]);
    const uint64_t host = spw_sub_u64(least.smallest_host_bytes, in->drafter_bytes[1]);
    more.device_bytes = spw_max_u64(more.device_bytes, device / (SHARE - 1));
    more.host_bytes = spw_max_u64(more.host_bytes, host / (SHARE - 1));
    if (!spw_plan_query(&p, o->draft_model, &more, NULL))
        take_off(in, &p);
}

int spw_engine_plan_drafter(struct spw_engine *e, struct spw_plan_input *in,
                            const struct spw_options *o, struct spw_error *err)
{
    struct spw_plan_info p;
    struct spw_error why = {0};
    if (!o->draft_model || !o->drafts)
        return 0;
    if (e->drafter) {
        take_off(in, &e->drafter->plan.info); /* it keeps its memory */
        return 0;
    }
    e->drafter_options = drafter_options(in, o);
    int rc = spw_plan_query(&p, o->draft_model, &e->drafter_options, &why);
    if (rc)
        return refuse(rc, &why, err);
    take_off(in, &p);
    if (!has_plan(e, in))
        take_off_named(e, in, o);
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

/* ---- the MTP layer ---- */

bool spw_session_can_draft(const struct spw_session *s, uint64_t n)
{
    const struct spw_engine *e = s->engine;
    return e->executor && e->rope_table == SPW_ROPE_SHARED && s->n_tokens &&
           n - s->n_tokens <= e->plan.chunk && spw_sequence_keeps(&s->seq, s->n_tokens - 1, n - 1);
}

int spw_engine_draft(struct spw_engine *e, const struct spw_span *spans, uint32_t n, bool first,
                     int (*on_logits)(void *context, uint32_t span, uint64_t position,
                                      const float *logits),
                     void *context)
{
    struct spw_running_step *step = &e->step;
    step->n = n;
    for (uint32_t i = 0; i < n; i++) {
        struct spw_session *s = step->sessions[i] = spans[i].session;
        const uint64_t to = spans[i].n_tokens;
        step->items[i] =
            (struct spw_executor_item){.seq = &s->seq,
                                       .span = {first ? s->n_tokens : to - 1, to, 1, 0},
                                       .tokens = spans[i].tokens};
        spw_sequence_keep_newest(&s->seq, to);
    }
    int rc = spw_executor_draft(e->executor, step->items, n, on_logits, context);
    if (!rc || !spw_recover_step(e, step->sessions, n))
        return rc;
    for (uint32_t i = 0; i < n; i++)
        spw_session_empty(step->sessions[i]);
    return rc;
}
