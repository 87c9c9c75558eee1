/* `spillway bench --drafts`: an answer whose steps have drafts, and what steps of several rows
 * cost.
 *
 *   a batch answers the prompt (timed from the first token on) -> steps of 1, 2, 4 and 8 further
 *   tokens in turn, with logits of each, in the same session (timed) */
#include "tools/command/bench/bench.h"
#include "tools/command/output/progress.h"

static int step_to_token(struct spw_batch *b, struct spw_error *err)
{
    struct spw_event event;
    int rc = spw_batch_step(b, err);
    if (rc < 0 || cli_interrupted())
        return rc < 0 ? rc : -ECANCELED;
    while (spw_batch_event(b, &event))
        if (event.kind == SPW_EVENT_END && event.rc)
            return spw_fail(err, event.rc, "%.*s", (int)event.text_bytes, event.text);
    return rc;
}

static void set_answer(struct bench_drafts *out, const struct spw_batch *b,
                       const struct spw_stats *before, const struct spw_stats *after, size_t n_new)
{
    struct spw_batch_times t;
    spw_batch_times(b, &t);
    const double n_steps = (double)t.n_decode_steps;
    out->seconds_per_token = t.decode_seconds / (double)n_new;
    out->drafted = (double)t.n_drafted;
    out->accepted = (double)t.n_accepted;
    out->rows_per_step = 1 + out->drafted / n_steps;
    for (int i = 0; i < SPW_MOVED_COUNT; i++)
        out->moved_bytes[i] = (after->moved_bytes[i] - before->moved_bytes[i]) / n_new;
}

static int answer(struct bench_drafts *out, struct spw_session *s, struct spw_engine *e,
                  const struct bench_prompt *p, struct spw_error *err)
{
    const struct spw_request request = {.prompt = p->tokens,
                                        .n_prompt = p->context,
                                        .max_new_tokens = p->n_new + 1,
                                        .ignore_eos = true,
                                        .session = s};
    struct spw_batch *b;
    struct spw_stats before, after;
    uint64_t id;
    SPW_TRY(spw_batch_open(&b, e, NULL, err));
    int rc = spw_batch_submit(b, &request, &id, err);
    if (rc == 0)
        rc = step_to_token(b, err);
    spw_engine_stats(e, &before);
    while (rc > 0)
        rc = step_to_token(b, err);
    spw_engine_stats(e, &after);
    if (rc == 0)
        set_answer(out, b, &before, &after, p->n_new);
    spw_batch_close(b);
    return rc;
}

static void ignore_logits(void *context, size_t span, size_t position, const float *logits)
{
    (void)context, (void)span, (void)position, (void)logits;
}

/* From `n` tokens of the session on. */
static int time_rows(struct bench_drafts *out, struct spw_session *s, struct spw_engine *e,
                     const int32_t *tokens, size_t n, struct spw_error *err)
{
    for (int round = 0; round < BENCH_ROW_ROUNDS; round++)
        for (int i = 0; i < BENCH_ROW_STEPS; i++) {
            const size_t rows = (size_t)1 << i;
            const struct spw_span span = {s, tokens, n += rows, rows};
            const double start = cli_now_seconds();
            SPW_TRY(spw_sync(e, &span, 1, ignore_logits, NULL, err));
            out->step_seconds[i] += (cli_now_seconds() - start) / BENCH_ROW_ROUNDS;
        }
    return 0;
}

int bench_drafts(struct bench_drafts *out, struct spw_session *s, struct spw_engine *e,
                 const struct bench_prompt *p, struct spw_error *err)
{
    *out = (struct bench_drafts){0};
    SPW_TRY(answer(out, s, e, p, err));
    return time_rows(out, s, e, p->tokens, p->context + p->n_new + 1, err);
}
