/* `spillway plan`: where data would lie and which bytes would move, from headers and options alone.
 */
#include "quant/types.h"
#include "tools/command/input/input.h"
#include "tools/command/engine.h"
#include "tools/command/experts.h"
#include "tools/command/job/forecast.h"
#include "tools/command/job/job.h"
#include "tools/command/output/report.h"
#include "tools/command/input/saved.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The times of a plan, and the limits that they follow from. */
struct prediction {
    struct cli_limits limits;
    struct spw_prediction step, prompt;
};

static void add_prediction(json_t **j, const struct prediction *p, uint64_t context)
{
    const struct cli_field speeds[] = {
        {"prefill", CLI_JSON((double)context / p->prompt.seconds)},
        {"decode", CLI_JSON(1 / p->step.seconds)},
    };
    const struct cli_field fields[] = {
        {"machine", cli_machine_json(&p->limits.machine)},
        {p->limits.has_drive ? "drive" : NULL, cli_drive_json(&p->limits.drive)},
        {"predicted_step", cli_prediction_json(&p->step)},
        {"predicted_prompt", cli_prediction_json(&p->prompt)},
        {"predicted_tokens_per_second", CLI_OBJECT(speeds)},
    };
    CLI_ADD(j, fields);
}

/* The bytes that a run of `generate` would move. */
struct moved {
    struct spw_plan_request *requests; /* owned */
    size_t n;                          /* 0: the run is not known, or its bytes are not */
    uint64_t bytes[SPW_MOVED_COUNT];
    struct spw_expert_bytes experts;  /* beside them, where no trace is given */
    struct spw_expert_trace *trace;   /* owned; NULL: none is given */
    struct spw_expert_replay routing; /* of the trace */
    struct job_times times;           /* expected; all 0 without measured limits */
};

static uint64_t n_new_tokens(const struct moved *run)
{
    uint64_t n = 0;
    for (size_t i = 0; i < run->n; i++)
        n += run->requests[i].max_new_tokens;
    return n;
}

static json_t *run_times_json(const struct moved *run)
{
    const struct job_times *t = &run->times;
    const double seconds = t->prefill_seconds + t->decode_seconds;
    const double step = t->fullest_seconds / (double)t->n_fullest_steps; /* NAN: no such step */
    const struct cli_field fields[] = {
        CLI_FIELD(t, prefill_seconds),
        CLI_FIELD(t, decode_seconds),
        CLI_FIELD(t, n_decode_steps),
        {"seconds", CLI_JSON(seconds)},
        {"tokens_per_second", CLI_JSON((double)n_new_tokens(run) / seconds)},
        CLI_FIELD(t, most_sessions),
        {"step_seconds", CLI_JSON(step)},
        {"step_tokens_per_second", CLI_JSON((double)t->most_sessions / step)},
    };
    return CLI_OBJECT(fields);
}

static int show(const struct cli_options *o, const struct spw_plan_info *plan,
                const struct prediction *p, const struct moved *run)
{
    const bool moves = plan->n_experts_resident < plan->n_experts;
    json_t *j = cli_report_plan(o->operand, plan, run->n ? run->bytes : NULL);
    if (run->n && moves && !run->trace)
        cli_json_add(&j, "run_experts", cli_experts_bytes_json(&run->experts));
    if (run->trace)
        cli_json_add(&j, "expert_trace", cli_experts_replay_json(&run->routing));
    if (p)
        add_prediction(&j, p, plan->context);
    if (p && run->n)
        cli_json_add(&j, "predicted_run", run_times_json(run));
    return cli_show(o, j);
}

/* A plan without measured limits has no predicted times, and is complete otherwise. */
static bool predict(struct prediction *out, const struct cli_options *o,
                    const struct spw_plan_info *p, const struct spw_model_config *config)
{
    if (o->no_probe)
        return false;
    if (!cli_limits_suffice(&out->limits, p)) {
        cli_note("%s; no times are predicted", out->limits.why.text);
        return false;
    }
    const struct spw_prompt_work work = cli_prompt_work(p, config, p->context);
    const struct cli_limits *l = &out->limits;
    spw_predict_step(&out->step, p, &l->machine, cli_limits_drive(l));
    spw_predict_prompt(&out->prompt, p, &work, &l->machine, cli_limits_drive(l));
    return true;
}

static enum spw_drafts planned_drafts(const struct cli_options *o)
{
    if (o->drafts)
        return (enum spw_drafts)o->drafts;
    return o->n_drafts ? SPW_DRAFTS_TEXT : SPW_DRAFTS_OFF;
}

/* As spw_result.step_rows: each step after the first has n drafts, each of which stays with these
 * odds. The parts of tokens that are expected to stay add up over the steps. */
static uint8_t *assume_rows(uint64_t n_tokens, uint64_t n, double odds, bool by_mtp)
{
    uint8_t *rows = spw_alloc_zero(n_tokens, 1);
    double expected = 0, due = 0;
    for (uint64_t i = 1; i <= n; i++)
        expected += pow(odds, (double)i);
    for (uint64_t at = 0; rows && at < n_tokens;) {
        rows[at] = (uint8_t)(1 + (at ? n + (by_mtp ? SPW_STEP_BY_MTP : 0) : 0));
        due += at ? expected : 0;
        at += 1 + (uint64_t)due;
        due -= floor(due);
    }
    return rows;
}

static int assume_drafts(struct moved *m, const struct cli_options *o)
{
    for (size_t i = 0; i < m->n && o->n_drafts; i++) {
        struct spw_plan_request *q = &m->requests[i];
        q->step_rows =
            assume_rows(q->max_new_tokens, o->n_drafts, o->acceptance, o->drafts == SPW_DRAFTS_MTP);
        if (!q->step_rows)
            return cli_fail(CLI_FAILED, "out of memory");
    }
    return 0;
}

static void free_requests(struct moved *m)
{
    for (size_t i = 0; i < m->n && m->requests; i++)
        spw_free((uint8_t *)(uintptr_t)m->requests[i].step_rows);
    spw_free(m->requests);
}

static int make_requests(struct moved *m, const struct cli_options *o,
                         const struct cli_inputs *inputs, const struct cli_saved *saved)
{
    if (o->num_beams > 1 && o->prefix_cache) /* the cache gets the tokens of all beams */
        return 0;
    m->n = inputs->n;
    m->requests = spw_alloc_zero(m->n, sizeof *m->requests);
    if (!m->requests)
        return cli_fail(CLI_FAILED, "out of memory");
    for (size_t i = 0; i < m->n; i++)
        m->requests[i] =
            (struct spw_plan_request){.n_prompt = inputs->items[i].n_tokens,
                                      .max_new_tokens = inputs->items[i].max_new_tokens,
                                      .n_found = o->prefix_cache ? o->prefix_tokens : 0,
                                      .prompt = inputs->items[i].tokens,
                                      .n_beams = o->num_beams > 1 ? (uint32_t)o->num_beams : 0};
    if (saved->file) { /* the saved run is the only one */
        const struct spw_saved_info *info = spw_saved_info(saved->file);
        m->requests[0].n_prompt += saved->n_given;
        m->requests[0].prompt = saved->tokens;
        m->requests[0].max_new_tokens -= saved->n_given;
        m->requests[0].n_resumed = info->n_tokens;
        m->requests[0].resumed_logits = info->has_logits;
    }
    return assume_drafts(m, o);
}

/* Prints the JSON of a refused plan: the reason, and the smallest budgets, which are null if
 * budgets are not the reason. */
static int print_refusal(const struct cli_options *o, const struct spw_plan_info *plan)
{
    json_t *smallest = cli_report_tiers(plan->smallest_device_bytes, plan->smallest_host_bytes,
                                        plan->smallest_disk_bytes);
    if (!plan->smallest_device_bytes) {
        json_decref(smallest);
        smallest = json_null();
    }
    const struct cli_field fields[] = {
        {"model", CLI_JSON(o->operand)},
        {"error", CLI_JSON(cli_last_failure())},
        {"smallest_bytes", smallest},
    };
    int failed = cli_print_json(CLI_OBJECT(fields));
    return failed ? failed : CLI_REFUSED;
}

/* Says that the trace is of another run, or of one that ended early. With a saved run or a prefix
 * cache the tokens that are computed are not known here. */
static void check_trace(const struct moved *run, const struct cli_options *o)
{
    const struct spw_plan_request *q = run->requests;
    if (run->n != 1 || q->n_resumed || q->n_found ||
        run->routing.n_frames == run->routing.n_experts)
        return;
    const uint64_t n = q->n_prompt + spw_max_u64(q->max_new_tokens, 1) - 1;
    if (n != run->routing.n_computed)
        cli_note("%s: the trace has %llu tokens, and the run computes %llu: the bytes of the run "
                 "have the missed experts of the trace only",
                 o->expert_trace, (unsigned long long)run->routing.n_computed,
                 (unsigned long long)n);
}

struct timing {
    struct job_times *times;
    struct job_forecast forecast;
};

static void add_steps(void *context, const struct spw_plan_span *spans, size_t n, uint64_t times)
{
    const struct timing *t = context;
    job_add_steps(t->times, &t->forecast, spans, n, times);
}

/* The bytes of the run, with those of missed experts if a trace says which these are; its times if
 * `f` is not NULL. */
static int find_moved(struct moved *run, const struct job_forecast *f, const struct cli_options *o,
                      const struct spw_options *options, struct spw_error *err)
{
    struct timing timing = {.times = &run->times};
    const struct spw_plan_steps steps = {add_steps, &timing};
    if (f)
        timing.forecast = *f;
    if (run->n)
        SPW_TRY(spw_plan_moved(run->bytes, &run->experts, f ? &steps : NULL, o->operand, options,
                               run->requests, run->n, err));
    if (!run->trace)
        return 0;
    SPW_TRY(spw_plan_replay(&run->routing, o->operand, options, run->trace, err));
    for (int i = 0; i < SPW_MOVED_COUNT; i++)
        run->bytes[i] += run->routing.moved[i];
    check_trace(run, o);
    return 0;
}

static int make_plan(struct spw_plan_info *plan, const struct cli_options *o,
                     struct spw_options *options, const struct spw_model_config *config,
                     struct moved *run)
{
    struct prediction prediction;
    struct spw_error err = {0};
    if (o->prompts) /* a refusal is the next call's as well */
        cli_fit_sessions(options, o, 1, &err);
    cli_limits_read_for(&prediction.limits, o, options);
    spw_error_clear(&err);
    int rc = spw_plan_query(plan, o->operand, options, &err);
    bool predicted = rc >= 0 && predict(&prediction, o, plan, config);
    const struct job_forecast forecast = {plan, config, &prediction.limits};
    if (rc >= 0)
        rc = find_moved(run, predicted ? &forecast : NULL, o, options, &err);
    if (rc < 0)
        return cli_fail_error(rc, &err, true);
    cli_say_plan_fallback(plan);
    return show(o, plan, predicted ? &prediction : NULL, run);
}

/* A refused plan has its smallest budgets only, or nothing. */
static int plan_run(struct spw_plan_info *plan, struct cli_options *o,
                    const struct cli_saved *saved)
{
    struct cli_model m;
    struct cli_inputs inputs = {0};
    struct moved run = {0};
    int code = o->prompts
                   ? job_model_open(&m, o->operand)
                   : cli_model_open(&m, o->operand, o->prompt || o->prompt_file || o->input_file);
    if (code)
        return code;
    if (!o->prompts && !o->resume)
        cli_obey_search(o, &m);
    struct spw_error err = {0};
    int rc = saved->file ? spw_saved_check_model(saved->file, o->operand, &err) : 0;
    if (rc)
        code = cli_fail_error(rc, &err, true);
    else
        code = saved->file ? cli_saved_input(saved, &inputs, o, &m)
                           : cli_inputs_read(&inputs, o, &m, true);
    if (!code && o->prompts)
        code = job_read_prompts(&inputs, o, &m);
    uint32_t sessions = 1;
    if (o->prompts)
        sessions = (uint32_t)spw_min_u64(o->sessions, inputs.n_lines); /* as the job */
    else if (cli_given(o, "sessions"))
        sessions = (uint32_t)o->sessions;
    else
        sessions = (uint32_t)o->num_beams;
    if (code == 0)
        code = make_requests(&run, o, &inputs, saved);
    if (code == 0 && o->expert_trace)
        run.trace = cli_experts_trace(o, &code);
    struct spw_expert_counts *counts = code ? NULL : cli_experts_counts(o);
    if (code == 0) {
        struct spw_options options =
            cli_engine_options(o, o->context ? o->context : inputs.longest, sessions);
        options.saves = o->resume;
        options.drafts = planned_drafts(o);
        options.expert_counts = counts;
        if (o->num_beams > 1 && inputs.n)
            cli_count_full(&options, o, &inputs.items[0]);
        code = make_plan(plan, o, &options, &m.config, &run);
    }
    spw_expert_counts_free(counts);
    spw_expert_trace_free(run.trace);
    free_requests(&run);
    cli_inputs_free(&inputs);
    cli_model_close(&m);
    return code;
}

int cli_plan(const struct cli_options *given)
{
    struct cli_options o = *given; /* a copy: a saved run brings its own options */
    struct cli_saved saved;
    struct spw_plan_info plan = {0};
    int code = cli_saved_check(&o);
    if (!code && o.n_drafts && cli_given(&o, "drafts") && o.drafts == SPW_DRAFTS_OFF)
        code = cli_fail(CLI_REFUSED,
                        "found both --drafts off and --draft-tokens %llu, expected one "
                        "of them",
                        (unsigned long long)o.n_drafts);
    if (!code && o.num_beams > 1 && (o.prompts || o.resume))
        code = cli_fail(CLI_REFUSED, "found both --num-beams and --%s, expected one of them",
                        o.prompts ? "prompts" : "resume");
    if (!code)
        code = cli_saved_open(&saved, &o);
    if (!code) {
        code = plan_run(&plan, &o, &saved);
        cli_saved_close(&saved);
    }
    return code == CLI_REFUSED && o.json ? print_refusal(&o, &plan) : code;
}
