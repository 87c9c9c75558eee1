/* See report.h. */
#include "tools/command/job/report.h"

#include "tools/command/output/output.h"

void job_report_choice(struct job_report *r, const struct request *x, size_t choice, size_t n_given)
{
    const struct spw_result *result = &x->choices[choice].result;
    r->n_generated += spw_sub_u64(result->n_tokens, n_given);
    r->reuse.n_prompt += x->prompts[choice / x->n_choices].n + n_given;
    r->reuse.n_reused += result->n_reused;
    r->reuse.n_from_store += result->n_from_store;
}

void job_report_engine(struct job_report *r, const struct cli_options *o, struct spw_engine *e,
                       const struct spw_batch *b, const struct cli_events *events)
{
    struct spw_batch_times times;
    if (!o->report)
        return;
    if (r->engine && !r->earlier)
        r->earlier = json_array();
    if (r->engine)
        cli_json_append(&r->earlier, r->engine);
    spw_batch_times(b, &times);
    r->times.prefill_seconds += times.prefill_seconds;
    r->times.decode_seconds += times.decode_seconds;
    r->times.n_decode_steps += times.n_decode_steps;
    r->reuse.prefill_seconds = r->times.prefill_seconds;
    r->engine = cli_report_engine(o->operand, e, events);
    cli_report_prefix(&r->engine, e, &r->reuse);
}

int job_report_end(struct job_report *r, const struct cli_options *o,
                   const struct job_counts *totals)
{
    if (!r->engine)
        return 0;
    const struct cli_field fields[] = {
        {"items_done", CLI_JSON(totals->n_done)},
        {"items_failed", CLI_JSON(totals->n_failed)},
        {"n_prompt", CLI_JSON(r->reuse.n_prompt)},
        CLI_FIELD(r, n_generated),
        {"prefill_seconds", CLI_JSON(r->times.prefill_seconds)},
        {"decode_seconds", CLI_JSON(r->times.decode_seconds)},
        {"n_decode_steps", CLI_JSON(r->times.n_decode_steps)},
        {r->earlier ? "earlier_engines" : NULL, r->earlier},
    };
    CLI_ADD(&r->engine, fields);
    int code = cli_write_json(o->report, r->engine);
    *r = (struct job_report){0};
    return code;
}
