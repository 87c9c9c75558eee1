/* The --report of `generate`. */
#include "tools/command/generate/generate.h"
#include "tools/command/output/output.h"
#include "tools/command/output/report.h"

#include <math.h>

/* The predicted time of one step of the full context, and the mean time of the run's steps. */
static void add_seconds(json_t **report, const struct run *r, const struct spw_batch_times *times)
{
    struct spw_prediction step = {.seconds = NAN};
    double measured = times->decode_seconds / (double)times->n_decode_steps; /* NAN without steps */
    if (cli_limits_suffice(&r->limits, spw_engine_plan(r->engine)))
        spw_predict_step(&step, spw_engine_plan(r->engine), &r->limits.machine.typical,
                         cli_limits_drive(&r->limits));
    const struct cli_field fields[] = {
        CLI_FIELD(times, prefill_seconds),
        CLI_FIELD(times, decode_seconds),
        {"predicted_step_seconds", CLI_JSON(step.seconds)},
        {"measured_step_seconds", CLI_JSON(measured)},
    };
    CLI_ADD(report, fields);
}

static void add_prefix(json_t **report, const struct run *r, const struct spw_batch_times *times)
{
    const struct cli_reuse reuse = {.n_prompt = r->inputs.items[0].n_tokens + r->saved.n_given,
                                    .n_reused = r->result.n_reused,
                                    .n_from_store = r->result.n_from_store,
                                    .prefill_seconds = times->prefill_seconds};
    cli_report_prefix(report, r->engine, &reuse);
}

/* What the routing of this run costs under several rules. */
static int add_routing(json_t **report, const struct run *r)
{
    struct spw_expert_replay replay;
    struct spw_error err = {0};
    int code = 0;
    if (!r->o->expert_trace)
        return 0;
    struct spw_expert_trace *t = cli_experts_trace(r->o, &code);
    int rc = t ? spw_engine_replay(&replay, r->engine, t, &err) : 0;
    if (t && !rc)
        cli_json_add(report, "expert_trace", cli_experts_replay_json(&replay));
    spw_expert_trace_free(t);
    return rc ? cli_fail_error(rc, &err, false) : code;
}

/* The bytes of this run, from its lengths. False: nobody can predict them. */
static bool predict(const struct run *r, uint64_t predicted[SPW_MOVED_COUNT])
{
    const struct cli_input *in = &r->inputs.items[0];
    const uint64_t most = in->max_new_tokens - r->saved.n_given;
    const uint64_t made = r->result.n_tokens - r->saved.n_given;
    struct spw_plan_request q = {.n_prompt = in->n_tokens + r->saved.n_given,
                                 .max_new_tokens = most,
                                 .n_found = r->result.n_from_store,
                                 .ends_at = made < most ? made : 0};
    if (r->saved.file) {
        const struct spw_saved_info *info = spw_saved_info(r->saved.file);
        q.n_resumed = info->n_tokens;
        q.resumed_logits = info->has_logits;
    }
    return (made || !most) && !spw_engine_predict(predicted, r->engine, &q, 1, NULL);
}

int run_write_report(const struct run *r, const struct spw_batch_times *times)
{
    const struct cli_field saved[] = {
        {"n_resumed", CLI_JSON(r->saved.n_given)},
        {"saves", CLI_JSON(r->n_saves)},
        CLI_FIELD(r, saved_bytes),
    };
    uint64_t predicted[SPW_MOVED_COUNT];
    const bool is_known = predict(r, predicted);
    json_t *report =
        cli_report_engine(r->o->operand, r->engine, &r->events, is_known ? predicted : NULL);
    add_seconds(&report, r, times);
    add_prefix(&report, r, times);
    CLI_ADD(&report, saved);
    cli_report_result(&report, r->inputs.items[0].n_tokens, &r->result);
    int code = add_routing(&report, r);
    int written = cli_write_json(r->o->report, report);
    return code ? code : written;
}
