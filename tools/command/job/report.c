/* See report.h. */
#include "tools/command/job/report.h"

#include "tools/command/output/output.h"

#include <string.h>

enum { MOST_ASKED = 256 };

/* ---- what was asked ---- */

static void forget_asked(struct job_asked *a)
{
    for (size_t i = 0; i < a->n; i++) {
        spw_free((int32_t *)(uintptr_t)a->requests[i].prompt);
        spw_free((uint8_t *)(uintptr_t)a->requests[i].step_rows);
    }
    spw_free(a->requests);
    *a = (struct job_asked){0};
}

void job_report_asked(struct job_report *r, const struct spw_request *request, uint64_t id)
{
    struct job_asked *a = &r->asked;
    const size_t n = request->n_prompt + request->n_given;
    if (!a->requests)
        a->requests = spw_alloc_zero(MOST_ASKED, sizeof *a->requests);
    int32_t *tokens = a->requests && a->n < MOST_ASKED ? spw_alloc(n * sizeof *tokens) : NULL;
    if (!tokens || id != a->n + 1 || request->beams.n_beams || request->prompt_logprobs ||
        (request->logprobs && request->n_given)) {
        a->is_unknown = true;
        spw_free(tokens);
        return;
    }
    memcpy(tokens, request->prompt, request->n_prompt * sizeof *tokens);
    if (request->n_given)
        memcpy(tokens + request->n_prompt, request->given, request->n_given * sizeof *tokens);
    a->requests[a->n++] =
        (struct spw_plan_request){.prompt = tokens,
                                  .n_prompt = n,
                                  .max_new_tokens = request->max_new_tokens - request->n_given};
}

static void note_rows(struct job_asked *a, struct spw_plan_request *q,
                      const struct spw_result *result, size_t n_given)
{
    const size_t n = result->n_tokens - n_given;
    uint8_t *rows = spw_alloc(n);
    a->is_unknown |= !rows;
    if (rows)
        memcpy(rows, result->step_rows + n_given, n);
    q->step_rows = rows;
}

static void note_end(struct job_asked *a, uint64_t id, const struct spw_result *result,
                     size_t n_given)
{
    const bool whole = result->finish == SPW_FINISH_LENGTH;
    a->n_ended++;
    a->is_unknown |= (n_given && result->n_tokens == n_given) ||
                     result->finish == SPW_FINISH_CANCELED || result->finish == SPW_FINISH_FAILED ||
                     result->n_from_store;
    if (id > a->n)
        return;
    if (!whole)
        a->requests[id - 1].ends_at = result->n_tokens - n_given;
    if (result->step_rows)
        note_rows(a, &a->requests[id - 1], result, n_given);
}

/* NULL: nobody can predict the bytes of this engine. */
static const uint64_t *predict(struct job_asked *a, const struct cli_options *o,
                               const struct spw_engine *e, uint64_t predicted[SPW_MOVED_COUNT])
{
    const bool known = !a->is_unknown && a->n_ended == a->n && !o->prefix_cache &&
                       !spw_engine_predict(predicted, e, a->requests, a->n, NULL);
    forget_asked(a);
    return known ? predicted : NULL;
}

/* ---- the report ---- */

void job_report_choice(struct job_report *r, const struct request *x, size_t choice, size_t n_given,
                       uint64_t id)
{
    const struct spw_result *result = &x->choices[choice].result;
    r->n_generated += spw_sub_u64(result->n_tokens, n_given);
    r->reuse.n_prompt += x->prompts[choice / x->n_choices].n + n_given;
    r->reuse.n_reused += result->n_reused;
    r->reuse.n_from_store += result->n_from_store;
    note_end(&r->asked, id, result, n_given);
}

void job_report_engine(struct job_report *r, const struct cli_options *o, struct spw_engine *e,
                       const struct spw_batch *b, const struct cli_events *events)
{
    struct spw_batch_times times;
    uint64_t predicted[SPW_MOVED_COUNT];
    if (!o->report) {
        forget_asked(&r->asked);
        return;
    }
    if (r->engine && !r->earlier)
        r->earlier = json_array();
    if (r->engine)
        cli_json_append(&r->earlier, r->engine);
    spw_batch_times(b, &times);
    r->times.prefill_seconds += times.prefill_seconds;
    r->times.decode_seconds += times.decode_seconds;
    r->times.n_decode_steps += times.n_decode_steps;
    r->times.n_drafted += times.n_drafted;
    r->times.n_accepted += times.n_accepted;
    r->reuse.prefill_seconds = r->times.prefill_seconds;
    r->engine = cli_report_engine(o->operand, e, events, predict(&r->asked, o, e, predicted));
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
        {"n_drafted", CLI_JSON(r->times.n_drafted)},
        {"n_accepted", CLI_JSON(r->times.n_accepted)},
        {r->earlier ? "earlier_engines" : NULL, r->earlier},
    };
    CLI_ADD(&r->engine, fields);
    int code = cli_write_json(o->report, r->engine);
    *r = (struct job_report){0};
    return code;
}
