/* The number of sessions of a job: see sessions.h. */
#include "tools/command/job/sessions.h"
#include "tools/command/engine.h"
#include "tools/command/job/progress/forecast.h"
#include "runtime/plan_query.h"

/* A smaller gain is within the error of the prediction, and more sessions need fewer steps. */
#define LEAST_GAIN 1.05

bool job_sessions_matter(const struct spw_options *options, const struct job_sessions *s)
{
    struct spw_plan_info plan;
    if (options->sessions == 1 || spw_plan_query(&plan, s->o->operand, options, NULL) < 0)
        return false;
    return plan.decode_slot_bytes > 0 || plan.n_layers_resident < plan.n_layers;
}

void job_choose_sessions(struct spw_options *options, const struct job_sessions *s)
{
    double best = 0;
    struct spw_options some = *options;
    while (some.sessions) {
        struct spw_plan_info plan;
        if (spw_plan_query(&plan, s->o->operand, &some, NULL) < 0 ||
            !cli_limits_suffice(s->limits, &plan))
            return;
        const struct job_forecast f = {.plan = &plan, .config = s->config, .limits = s->limits};
        double rate = job_rate(&f, s->n_held);
        if (rate > best * LEAST_GAIN) {
            best = rate;
            *options = some;
        }
        some.sessions /= 2;
        if (some.sessions && cli_fit_sessions(&some, s->o, NULL))
            return;
    }
}
