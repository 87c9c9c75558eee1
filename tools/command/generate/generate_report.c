/* The --report of `generate`. */
#include "tools/command/generate/generate.h"
#include "tools/command/output/output.h"
#include "tools/command/output/report.h"

#include <math.h>

static json_t *request_json(const struct cli_input *in, const struct spw_result *r)
{
    json_t *o = json_object();
    if (in->refused)
        cli_json_add(&o, "error", CLI_JSON(in->refused));
    else
        cli_report_result(&o, in->n_tokens, r);
    return o;
}

static void add_batch(json_t **report, const struct run *r, const struct spw_result *results)
{
    uint64_t n_prompt = 0, n_generated = 0;
    json_t *list = json_array();
    for (size_t i = 0, n = 0; i < r->inputs.n; i++) {
        const struct cli_input *in = &r->inputs.items[i];
        cli_json_append(&list, request_json(in, &results[n]));
        if (in->refused)
            continue;
        n_prompt += in->n_tokens;
        n_generated += results[n++].n_tokens;
    }
    const struct cli_field fields[] = {
        {"n_prompt", CLI_JSON(n_prompt)},
        {"n_generated", CLI_JSON(n_generated)},
        {"requests", list},
    };
    CLI_ADD(report, fields);
}

/* The predicted time of one step of the full context, and the mean time of the run's steps. Only
 * for one sequence: a step of several has no prediction. */
static void add_seconds(json_t **report, const struct run *r, const struct spw_batch_times *times)
{
    struct spw_prediction step = {.seconds = NAN};
    double measured = times->decode_seconds / (double)times->n_decode_steps; /* NAN without steps */
    if (cli_limits_suffice(&r->limits, spw_engine_plan(r->engine)) && !r->o->prompts)
        spw_predict_step(&step, spw_engine_plan(r->engine), &r->limits.machine,
                         cli_limits_drive(&r->limits));
    const struct cli_field fields[] = {
        CLI_FIELD(times, prefill_seconds),
        CLI_FIELD(times, decode_seconds),
        {"predicted_step_seconds", CLI_JSON(step.seconds)},
        {"measured_step_seconds", CLI_JSON(measured)},
    };
    CLI_ADD(report, fields);
}

static void add_prefix(json_t **report, const struct run *r, const struct spw_result *results,
                       const struct spw_batch_times *times)
{
    struct cli_reuse reuse = {.prefill_seconds = times->prefill_seconds};
    for (size_t i = 0, n = 0; i < r->inputs.n; i++) {
        if (r->inputs.items[i].refused)
            continue;
        reuse.n_prompt += r->inputs.items[i].n_tokens + r->saved.n_given;
        reuse.n_reused += results[n].n_reused;
        reuse.n_from_store += results[n++].n_from_store;
    }
    cli_report_prefix(report, r->engine, &reuse);
}

int run_write_report(const struct run *r, const struct spw_result *results,
                     const struct spw_batch_times *times)
{
    const struct cli_field saved[] = {
        {"n_resumed", CLI_JSON(r->saved.n_given)},
        {"saves", CLI_JSON(r->n_saves)},
        CLI_FIELD(r, saved_bytes),
    };
    json_t *report = cli_report_engine(r->o->operand, r->engine, &r->events);
    add_seconds(&report, r, times);
    add_prefix(&report, r, results, times);
    CLI_ADD(&report, saved);
    if (r->o->prompts)
        add_batch(&report, r, results);
    else
        cli_report_result(&report, r->inputs.items[0].n_tokens, &results[0]);
    return cli_write_json(r->o->report, report);
}
