/* What fits a model and the budgets: from plans. */
#include "tools/command/job/summarize/summarize_parts.h"

/* Tokens of a request of a map-reduce: longer ones are no longer summarized better, and shorter
 * ones have more instructions for the same text. */
enum { MOST_WINDOW = 8192, LEAST_WINDOW = 512 };

/* The beams of a search have a session each, as `generate` plans them. */
static int plan(const struct job_summarize *s, uint64_t tokens, struct spw_error *err)
{
    struct spw_plan_info info;
    struct spw_options options = cli_engine_options(s->o, tokens, (uint32_t)s->o->num_beams);
    const struct cli_input longest = {.n_tokens = spw_sub_u64(tokens, s->answer),
                                      .max_new_tokens = s->answer};
    options.gate = NULL; /* no check of quantized KV now */
    if (options.sessions > 1)
        cli_count_full(&options, s->o, &longest);
    return spw_plan_query(&info, s->o->operand, &options, err);
}

int job_budget_fits(struct job_summarize *s, uint64_t tokens, struct spw_error *err)
{
    struct job_budget *b = &s->budget;
    if (tokens > s->limit || tokens >= b->fails)
        return 0;
    if (tokens <= b->fits)
        return 1;
    int rc = plan(s, tokens, err);
    if (rc < 0 && !cli_is_too_small(rc))
        return rc;
    *(rc < 0 ? &b->fails : &b->fits) = tokens;
    return rc >= 0;
}

int job_budget_refuse(const struct job_summarize *s, uint64_t tokens, struct spw_error *err)
{
    const int rc = plan(s, tokens, err);
    return cli_is_too_small(rc) ? -E2BIG : rc < 0 ? rc : 0;
}

/* Only halves: a little more or less memory in a later run changes no part. */
int job_budget_window(struct job_summarize *s, struct spw_error *err)
{
    uint64_t window = spw_min_u64(s->limit, MOST_WINDOW);
    if (s->window)
        return 0;
    if (s->most_source)
        window = spw_min_u64(window, spw_min_u64(s->most_source, MOST_WINDOW) + s->answer);
    int fits = job_budget_fits(s, window, err);
    while (fits == 0 && window > LEAST_WINDOW && !s->most_source) {
        window /= 2;
        fits = job_budget_fits(s, window, err);
    }
    if (fits < 0)
        return fits;
    if (!fits)
        SPW_TRY(job_budget_refuse(s, window, err));
    s->window = window;
    return 0;
}
