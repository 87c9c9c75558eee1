/* What fits a model and the budgets, and how long it probably takes: from plans. */
#include "tools/command/job/summarize/summarize_parts.h"

#include <math.h>
#include <string.h>

/* Tokens of a request of a map-reduce: longer ones are no longer summarized better, and shorter
 * ones have more instructions for the same text. */
enum { MOST_WINDOW = 8192, LEAST_WINDOW = 512 };

static int plan(const struct job_summarize *s, uint64_t tokens, struct spw_plan_info *out,
                struct spw_error *err)
{
    struct spw_options options = cli_engine_options(s->o, tokens, 1);
    options.gate = NULL; /* no check of quantized KV now */
    return spw_plan_query(out, s->o->operand, &options, err);
}

int job_budget_fits(struct job_summarize *s, uint64_t tokens, struct spw_error *err)
{
    struct job_budget *b = &s->budget;
    struct spw_plan_info info;
    if (tokens > s->limit || tokens >= b->fails)
        return 0;
    if (tokens <= b->fits)
        return 1;
    int rc = plan(s, tokens, &info, err);
    if (rc < 0 && !cli_is_too_small(rc))
        return rc;
    *(rc < 0 ? &b->fails : &b->fits) = tokens;
    return rc >= 0;
}

/* Only halves: a little more or less memory in a later run changes no part. */
int job_budget_window(struct job_summarize *s, struct spw_error *err)
{
    uint64_t window = spw_min_u64(s->limit, MOST_WINDOW);
    if (s->window)
        return 0;
    int fits = job_budget_fits(s, window, err);
    while (fits == 0 && window > LEAST_WINDOW) {
        window /= 2;
        fits = job_budget_fits(s, window, err);
    }
    if (fits < 0)
        return fits;
    if (!fits) { /* the text of the refusal */
        struct spw_plan_info info;
        const int rc = plan(s, window, &info, err);
        if (rc < 0)
            return cli_is_too_small(rc) ? -E2BIG : rc;
    }
    s->window = window;
    return 0;
}

/* ---- times ---- */

static const struct cli_limits *limits_of(struct job_summarize *s)
{
    struct job_budget *b = &s->budget;
    if (!b->has_limits) {
        struct spw_options options = cli_engine_options(s->o, s->limit, 1);
        cli_limits_read(&b->limits, s->o, &options, SPW_PROBE_NEVER);
    }
    b->has_limits = b->limits.has_machine; /* else the run may measure the machine meanwhile */
    return &b->limits;
}

/* One request of n_prompt tokens with an answer of n_new. NAN: not known. */
static double seconds_of(struct job_summarize *s, uint64_t n_prompt, uint64_t n_new)
{
    const struct cli_limits *limits = limits_of(s);
    struct spw_prediction prompt, step;
    struct spw_plan_info info;
    if (plan(s, n_prompt + n_new, &info, NULL) < 0 || !cli_limits_suffice(limits, &info))
        return NAN;
    spw_predict_step(&step, &info, &limits->machine.typical, cli_limits_drive(limits));
    const struct spw_prompt_work work = cli_prompt_work(&info, &s->model.config, n_prompt);
    spw_predict_prompt(&prompt, &info, &work, &limits->machine.typical, cli_limits_drive(limits));
    return prompt.seconds + (double)n_new * step.seconds;
}

/* Instructions are small beside a window, and their KV is computed once. */
bool job_budget_typical_window(const struct job_summarize *s, struct job_window *out)
{
    return s->window && !job_window_plan(out, s->window, 0, 0, s->answer);
}

void job_budget_predict(struct job_summarize *s, struct job_work *w)
{
    struct job_level levels[JOB_MOST_LEVELS];
    struct job_window window;
    if (job_budget_fits(s, w->n_tokens + s->answer, NULL) > 0)
        w->whole_seconds = seconds_of(s, w->n_tokens, s->answer);
    if (job_budget_window(s, NULL) || !job_budget_typical_window(s, &window))
        return;
    const size_t n = job_levels(levels, &window, w->n_tokens, s->answer);
    w->map_reduce_seconds = 0;
    for (size_t i = 0; i < n; i++)
        w->map_reduce_seconds +=
            (double)levels[i].n * seconds_of(s, levels[i].prompt, levels[i].answer);
}
