/* See engine.h. */
#include "tools/command/job/engine.h"

#include "tools/command/experts.h"
#include "tools/command/job/forecast.h"

#include <inttypes.h>
#include <string.h>

uint64_t job_engine_longest(const struct job_engine *e)
{
    return spw_min_u64(e->limit, e->most);
}

/* Beams share the whole tiles of their prompt, if sessions can. */
bool job_engine_holds_beams(const struct spw_plan_info *p, const struct request *x)
{
    const uint64_t tile = spw_plan_tile_tokens(), n = x->beams.n_beams,
                   all = spw_div_up(request_tokens(x), tile),
                   shared = p->shares_tiles ? (request_tokens(x) - x->max_new_tokens) / tile : 0;
    return !n || (n <= p->sessions &&
                  shared + n * (all - shared) <= p->full_sessions * spw_div_up(p->context, tile));
}

static bool holds_next(const struct job_engine *e, const struct spw_options *o)
{
    struct spw_plan_info p;
    return !e->next->beams.n_beams ||
           (!spw_plan_query(&p, e->is->o->operand, o, NULL) && job_engine_holds_beams(&p, e->next));
}

/* Plans for the beams of the next item alone, in memory for all of them. */
static int plan_beams(const struct job_engine *e, struct spw_options *out, struct spw_error *err)
{
    const struct request *x = e->next;
    const struct cli_input item = {.n_tokens = request_tokens(x) - x->max_new_tokens,
                                   .max_new_tokens = x->max_new_tokens};
    struct spw_plan_info ignored;
    out->sessions = x->beams.n_beams;
    cli_count_full(out, e->is->o, &item);
    spw_error_clear(err);
    return spw_plan_query(&ignored, e->is->o->operand, out, err);
}

/* The write limit is that of the job: an engine may write what the engines before it have left. */
static void limit_writes(const struct job_engine *e, struct spw_options *out)
{
    if (out->disk_write_limit && out->disk_write_limit != SPW_NONE)
        out->disk_write_limit =
            spw_max_u64(spw_sub_u64(out->disk_write_limit, e->written_bytes), 1);
}

/* Plans for items of `context` tokens, with as many sessions as there is memory for, or only the
 * beams of the next item, if these have no room else. Budgets that do not hold the beams are too
 * small; not so --sessions. */
static int plan(const struct job_engine *e, uint64_t context, struct spw_options *out,
                struct spw_error *err)
{
    enum { SESSIONS = 64 };
    const struct cli_options *o = e->is->o;
    uint64_t sessions = o->sessions ? o->sessions : SESSIONS;
    if (e->is->n_sessions)
        sessions = spw_min_u64(sessions, e->is->n_sessions);
    *out = cli_engine_options(o, context, (uint32_t)sessions);
    limit_writes(e, out);
    out->rolls_back = e->rolls_back;
    out->on_progress = e->on_progress;
    out->progress_context = e->progress_context;
    const uint32_t n_beams = e->next->beams.n_beams;
    int rc = cli_fit_sessions(out, o, n_beams, err);
    if (!rc && n_beams < out->sessions && !holds_next(e, out)) {
        out->sessions = n_beams;
        rc = cli_fit_sessions(out, o, n_beams, err);
    }
    if (n_beams && n_beams <= sessions && (rc ? cli_is_too_small(rc) : !holds_next(e, out)))
        rc = plan_beams(e, out, err);
    if (rc == -EDQUOT && e->written_bytes) {
        const size_t n = strlen(err->text);
        char written[32];
        snprintf(err->text + n, sizeof err->text - n,
                 "; beside that, earlier items have written %s",
                 spw_bytes_text(written, e->written_bytes));
    }
    return rc;
}

/* ---- what fits no engine ---- */

void job_engine_refuse(const struct job_engine *e, const struct request *x,
                       struct request_refusal *why)
{
    struct spw_options ignored;
    struct spw_error err = {0};
    const uint64_t n = request_tokens(x), most = job_engine_longest(e);
    const uint64_t n_prompt = n - x->max_new_tokens;
    char shorter[64] = "";
    struct job_engine for_item = *e;
    for_item.next = x; /* that of the last engine may be freed */
    const bool fits_no_budget =
        n <= e->limit && cli_is_too_small(plan(&for_item, n, &ignored, &err));
    const char *limit = e->is->o->context ? ", the --context"
                        : e->is->model->config.stack_positions
                            ? ", as many as the model was made for"
                            : ", as many as the model was made for (--allow-long-context "
                              "allows more)";
    cli_name_options(err.text);
    if (fits_no_budget && x->beams.n_beams) {
        request_refuse(why, 400, "invalid_value", "num_beams",
                       "num_beams: found %u, for which there is too little memory: %s",
                       x->beams.n_beams, err.text);
        return;
    }
    if (n_prompt < most)
        snprintf(shorter, sizeof shorter, "; at most %llu of the answer would do",
                 (unsigned long long)(most - n_prompt));
    request_refuse(
        why, 400, "context_length_exceeded", x->form == REQUEST_CHAT ? "messages" : NULL,
        "found %llu token%s of the prompt and at most %llu of the answer, expected at most "
        "%llu%s%s%s",
        (unsigned long long)n_prompt, cli_plural(n_prompt), (unsigned long long)x->max_new_tokens,
        (unsigned long long)most, fits_no_budget ? ": " : limit, fits_no_budget ? err.text : "",
        shorter);
}

static int find_most(struct job_engine *e, uint64_t too_long, struct spw_error *err)
{
    uint64_t fits = 0, fails = too_long;
    struct spw_options ignored;
    while (fails - fits > 1) {
        uint64_t middle = fits + (fails - fits) / 2;
        int rc = plan(e, middle, &ignored, err);
        if (rc && !cli_is_too_small(rc))
            return rc;
        *(rc ? &fails : &fits) = middle;
    }
    e->most = fits;
    return 0;
}

int job_engine_find_most(struct job_engine *e, const struct request *x)
{
    struct spw_options ignored;
    struct spw_error err = {0};
    const uint64_t too_long = request_tokens(x);
    int rc = find_most(e, too_long, &err);
    if (!rc && !e->most)
        rc = plan(e, spw_min_u64(spw_max_u64(too_long, e->is->longest), e->limit), &ignored, &err);
    if (rc && x->number) {
        const struct spw_error why = err;
        snprintf(err.text, sizeof err.text, "line %" PRIu64 ": %.900s", x->number, why.text);
    }
    return rc ? cli_fail_error(rc, &err, true) : 0;
}

/* ---- open, close ---- */

/* Plans for `context` tokens, or for `least` if the budgets hold no more, or no room for all beams
 * of the next item. */
static int plan_best(struct job_engine *e, uint64_t least, uint64_t context, struct spw_error *err)
{
    const int rc = plan(e, context, &e->options, err);
    const bool fits = !rc && holds_next(e, &e->options);
    if (fits || (rc && !cli_is_too_small(rc)) || context <= least)
        return rc;
    spw_error_clear(err);
    return plan(e, least, &e->options, err);
}

/* ---- the number of sessions ----
 *
 * With more sessions, each weight that a step reads serves more answers. But the KV of more
 * sessions takes memory of the device from weights, and KV that has no room there streams in each
 * step. So fewer sessions can give more tokens a second. */

/* A smaller gain is within the error of the prediction, and more sessions need fewer steps. */
#define LEAST_GAIN 1.05

/* Whether weights or KV stream under these options, so that another number may be faster. */
static bool sessions_matter(const struct job_engine *e)
{
    struct spw_plan_info info;
    if (e->options.sessions == 1 || spw_plan_query(&info, e->is->o->operand, &e->options, NULL) < 0)
        return false;
    return info.decode_slot_bytes > 0 || info.n_layers_resident < info.n_layers;
}

/* Takes the number of sessions, at most that of the options, that is predicted to be the fastest.
 * Leaves the options as they are where limits are not known. */
static void choose_sessions(struct job_engine *e, uint64_t n_held)
{
    const struct cli_options *o = e->is->o;
    double best = 0;
    struct spw_options some = e->options;
    while (some.sessions && some.sessions >= e->next->beams.n_beams) {
        struct spw_plan_info info;
        if (spw_plan_query(&info, o->operand, &some, NULL) < 0 ||
            !cli_limits_suffice(&e->limits, &info))
            return;
        const struct job_forecast f = {&info, &e->is->model->config, &e->limits};
        double rate = job_rate(&f, n_held);
        if (rate > best * LEAST_GAIN) {
            best = rate;
            e->options = some;
        }
        some.sessions /= 2;
        if (some.sessions && cli_fit_sessions(&some, o, e->next->beams.n_beams, NULL))
            return;
    }
}

/* Plans with the limits of the machine and the drive, where something needs them, and takes fewer
 * sessions if these are faster. Measuring the limits takes time, in which other processes may take
 * memory: what is free is read again after it. */
static int plan_with_limits(struct job_engine *e, uint64_t least, uint64_t context,
                            struct spw_error *err)
{
    const struct cli_options *o = e->is->o;
    SPW_TRY(plan_best(e, least, context, err));
    const bool chooses = !o->sessions && sessions_matter(e);
    if (e->options.disk_dir || o->report || cli_progress_callback() || chooses) {
        cli_limits_read_for(&e->limits, o, &e->options);
        SPW_TRY(plan_best(e, least, context, err));
        e->options.machine = e->limits.has_machine ? &e->limits.machine : NULL;
        e->options.drive = cli_limits_drive(&e->limits);
    }
    if (chooses)
        choose_sessions(e, e->is->typical ? e->is->typical : least);
    return 0;
}

int job_engine_open(struct job_engine *e, uint64_t least, uint64_t last, bool *fits)
{
    const struct job_run_options *is = e->is;
    uint64_t context = spw_max_u64(least, spw_max_u64(is->longest, 2 * last));
    struct spw_error err = {0};
    if (is->o->context)
        context = is->o->context;
    int rc = plan_with_limits(e, least, spw_min_u64(context, job_engine_longest(e)), &err);
    *fits = !cli_is_too_small(rc);
    if (rc)
        return *fits ? cli_fail_error(rc, &err, true) : 0;
    int code = cli_engine_open(&e->engine, &e->events, is->o, &e->options, &e->limits);
    if (code)
        return code;
    cli_progress_engine(e->engine, &e->events, &e->limits);
    rc = spw_batch_open(&e->batch, e->engine, is->model->tokenizer, &err);
    return rc ? cli_fail_error(rc, &err, false) : 0;
}

void job_engine_close(struct job_engine *e, struct job_report *report)
{
    struct spw_stats stats = {0};
    if (e->engine)
        spw_engine_stats(e->engine, &stats);
    e->written_bytes += stats.moved_bytes[SPW_MOVED_HOST_TO_DISK];
    if (e->batch)
        job_report_engine(report, e->is->o, e->engine, e->batch, &e->events);
    spw_batch_close(e->batch);
    cli_progress_engine(NULL, NULL, NULL);
    cli_experts_close(e->engine, e->is->o);
    cli_events_free(&e->events);
    e->batch = NULL;
    e->engine = NULL;
}
