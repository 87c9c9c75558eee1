/* Steps of a batch: what each request computes, and its next token. See batch.c. */
#include "runtime/batch/batch_parts.h"

#include <string.h>

/* ---- one request ---- */

void spw_batch_fail(struct spw_batch *b, struct spw_batch_entry *x, int rc)
{
    if (rc == -EDOM)
        spw_fail(&x->why, rc, "the logits are not numbers (NaN): %s",
                 spw_engine_nan_advice(b->engine));
    else if (!*x->why.text)
        spw_fail(&x->why, rc, "%s", strerror(-rc));
    spw_batch_end(b, x, SPW_FINISH_FAILED);
}

void spw_batch_end_well(struct spw_batch *b, struct spw_batch_entry *x, enum spw_finish finish)
{
    struct spw_session *session = x->session;
    spw_batch_end(b, x, finish);
    spw_session_publish(session, NULL);
}

/* Ends a request that needs no token: only its prompt was to be computed, or it cannot be scored.
 * False: it goes on. */
static bool ends_without_token(struct spw_batch *b, struct spw_batch_entry *x)
{
    struct spw_answer *a = &x->answer;
    enum spw_finish finish = a->request.max_new_tokens ? spw_answer_finish(a) : SPW_FINISH_LENGTH;
    if (x->score_rc)
        spw_batch_fail(b, x, x->score_rc);
    else if (finish != SPW_FINISH_NONE)
        spw_batch_end_well(b, x, finish);
    return x->score_rc || finish != SPW_FINISH_NONE;
}

/* Tokens of the prompt that its first step did not compute. If the caller interrupts this step, the
 * next step begins where the first one ended: those tokens were computed, not reused. */
static void note_reuse(struct spw_batch_entry *x)
{
    if (x->knows_reuse)
        return;
    x->knows_reuse = true;
    x->answer.result.n_reused = spw_session_reused(x->session);
    x->answer.result.n_from_store = spw_session_from_store(x->session);
}

/* Gives the request a session that goes on as the parent's does. */
static int become_child(struct spw_batch_entry *x, const struct spw_batch_entry *parent,
                        uint64_t n_stay)
{
    SPW_TRY(spw_session_fork_for(&x->session, parent->session, n_stay,
                                 spw_batch_most_tokens(&x->answer.request), &x->why));
    note_reuse(x);
    return 0;
}

/* The request's next token, picked from the logits of its session. */
static int push(struct spw_batch *b, struct spw_batch_entry *x, int32_t token)
{
    const float *logits = spw_session_logits(x->session); /* [vocab] */
    x->logits = logits;
    spw_batch_note_events(b, x);
    return spw_answer_push(&x->answer, token, logits);
}

/* Carries out what was decided: the next token, or -errno, and whether the request goes on. */
static void advance(struct spw_batch *b, struct spw_batch_entry *x, int32_t token)
{
    const bool first = spw_batch_is_first(x);
    int rc = token < 0 ? token : push(b, x, token);
    if (rc) {
        spw_batch_fail(b, x, rc);
        return;
    }
    enum spw_finish finish = spw_answer_finish(&x->answer);
    if (finish != SPW_FINISH_NONE)
        spw_batch_end_well(b, x, finish);
    else if (first && spw_plan_sharing(&b->engine->plan).needs_checkpoint)
        spw_session_publish(x->session, NULL); /* it still ends where others will go on */
}

/* Finds the requests of the group that a step has given a row of logits, and those that have waited
 * for that row. */
static uint32_t gather(struct spw_batch *b, const struct spw_group *g)
{
    uint32_t n = 0;
    for (uint64_t id = g->first; id < g->first + g->n; id++) {
        struct spw_batch_entry *x = spw_batch_find(b, id);
        const struct spw_batch_entry *parent = x && x->runs ? spw_batch_parent(b, x) : NULL;
        if (!x || !(x->has_row || (parent && parent->has_row)))
            continue;
        b->deciding[n] = x;
        b->members[n++] = (struct spw_group_member){
            .answer = &x->answer, .logits = x->has_row ? spw_session_logits(x->session) : NULL};
    }
    for (uint32_t i = 0; i < n; i++)
        b->deciding[i]->has_row = false;
    return n;
}

/* The group decides how its requests go on. */
static void decide(struct spw_batch *b, const struct spw_group *g)
{
    const uint32_t n = gather(b, g);
    g->decide(b->sampler, b->members, n);
    for (uint32_t i = 0; i < n; i++) {
        struct spw_group_member *m = &b->members[i];
        if (m->token >= 0 && m->parent != i) {
            int rc = become_child(b->deciding[i], b->deciding[m->parent], m->n_stay);
            m->token = rc ? rc : m->token;
        }
    }
    for (uint32_t i = 0; i < n; i++)
        advance(b, b->deciding[i], b->members[i].token);
}

/* ---- steps ---- */

/* Which requests get a step. */
enum part { ALL, PROMPTS, DECODING };

/* The request's next step computes one token; or nothing, because another request that begins with
 * the same prompt has waited for it. */
static bool decodes(const struct spw_batch_entry *x)
{
    const struct spw_request *r = &x->answer.request;
    const struct spw_session *s = x->session;
    bool is_ready = s && s != r->session && !spw_answer_is_scored(&x->answer) && s->cached &&
                    s->n_tokens == spw_batch_first_tokens(r) &&
                    (s->has_logits || !r->max_new_tokens);
    return !spw_batch_is_first(x) || is_ready;
}

/* Rows of logits of the first step: those that score a token, and the row of the next token. */
static size_t first_logits(const struct spw_request *r)
{
    if (r->prompt_logprobs)
        return spw_batch_first_tokens(r);
    return r->logprobs && r->n_given ? spw_batch_first_tokens(r) - r->n_prompt + 1
                                     : r->max_new_tokens > 0;
}

static uint32_t make_spans(struct spw_batch *b, enum part part, bool *prefill)
{
    uint32_t n = 0;
    *prefill = false;
    for (uint32_t i = 0; i < b->max_running; i++) {
        struct spw_batch_entry *x = b->running[i];
        if (!x || !x->session || (part != ALL && decodes(x) != (part == DECODING)))
            continue;
        const struct spw_answer *a = &x->answer;
        bool first = spw_batch_is_first(x);
        size_t n_tokens = first ? spw_batch_first_tokens(&a->request) : a->n_tokens;
        x->session->is_last_step = a->result.n_tokens + 1 >= a->request.max_new_tokens;
        b->stepping[n] = x;
        b->spans[n++] = (struct spw_span){.session = x->session,
                                          .tokens = a->tokens,
                                          .n_tokens = n_tokens,
                                          .n_logits = first ? first_logits(&a->request)
                                                            : a->request.max_new_tokens > 0};
        *prefill |= first;
    }
    return n;
}

static void score(void *context, size_t span, size_t position, const float *logits)
{
    const struct spw_batch *b = context;
    struct spw_batch_entry *x = b->stepping[span];
    int rc = spw_answer_score(&x->answer, position, logits);
    x->score_rc = x->score_rc ? x->score_rc : rc;
}

int spw_batch_compute(struct spw_batch *b, uint32_t n, bool prefill, struct spw_error *err)
{
    double start = spw_now_seconds();
    const struct spw_sync_options o = {.most_chunks = b->most_chunks, .publishes = true};
    int rc = spw_engine_sync(b->engine, b->spans, n, &o, score, b, err);
    for (uint32_t i = 0; i < n && (!rc || rc == -ECANCELED || rc == -EAGAIN); i++)
        note_reuse(b->stepping[i]);
    *(prefill ? &b->times.prefill_seconds : &b->times.decode_seconds) += spw_now_seconds() - start;
    b->times.n_decode_steps += !rc && !prefill;
    return rc;
}

/* A step of some requests, and their next tokens. -EAGAIN: the step is set aside. */
static int step_part(struct spw_batch *b, enum part part, struct spw_error *err)
{
    bool prefill;
    uint32_t n = make_spans(b, part, &prefill);
    int rc = n ? spw_batch_compute(b, n, prefill, err) : 0;
    for (uint32_t i = 0; i < n && !rc; i++)
        b->stepping[i]->has_row = !ends_without_token(b, b->stepping[i]);
    for (uint32_t i = 0; i < n && !rc; i++)
        if (b->stepping[i]->has_row)
            decide(b, b->stepping[i]->group);
    return rc;
}

static bool any_decodes(const struct spw_batch *b)
{
    for (uint32_t i = 0; i < b->max_running; i++)
        if (b->running[i] && decodes(b->running[i]))
            return true;
    return false;
}

/* Requests that decode come first: what starts then has its step in the same call. -ESTALE: see
 * spw_engine_sync. */
static int step_parts(struct spw_batch *b, struct spw_error *err)
{
    bool apart = b->prompt_chunks && any_decodes(b);
    if (apart)
        SPW_TRY(step_part(b, DECODING, err));
    b->most_chunks = apart ? b->prompt_chunks : 0;
    int rc = spw_batch_start(b, err);
    if (!rc)
        rc = step_part(b, apart ? PROMPTS : ALL, err);
    b->most_chunks = 0;
    if (rc == -EAGAIN)
        return 0;
    if (rc && rc != -ESTALE &&
        apart) { /* others have got a token: the next call reports the failure */
        b->late_rc = rc;
        b->late = *err;
        return 0;
    }
    return rc;
}

/* Sessions have lost tiles that they shared: those that have no room get new ones in the next step,
 * with the same tokens. */
static int open_anew(struct spw_batch *b, struct spw_error *err)
{
    enum { MOST = 8 };
    if (b->n_stale++ == MOST)
        return spw_fail(err, -EIO, "tiles were lost again each time: the drive is failing");
    spw_batch_make_room(b);
    return 0;
}

int spw_batch_step(struct spw_batch *b, struct spw_error *err)
{
    struct spw_error why = {0};
    spw_error_clear(err);
    spw_batch_forget_events(b);
    int rc = b->late_rc;
    b->late_rc = 0;
    if (rc)
        why = b->late;
    else
        rc = step_parts(b, &why);
    if (rc == -ESTALE)
        rc = open_anew(b, &why);
    else
        b->n_stale = 0;
    if (rc) {
        spw_fail(&why, rc, "the step failed: %s", strerror(-rc));
        if (err)
            *err = why;
        return rc;
    }
    return !spw_batch_is_idle(b);
}

void spw_batch_set_prompt_chunks(struct spw_batch *b, uint32_t chunks)
{
    b->prompt_chunks = chunks;
}

void spw_batch_times(const struct spw_batch *b, struct spw_batch_times *out)
{
    *out = b->times;
}
