/* Steps of a batch: which requests start, what each of them computes, the next token. See batch.c.
 */
#include "runtime/batch/batch_parts.h"
#include "runtime/persist/snapshot.h"

#include <math.h>
#include <string.h>

/* ---- one request ---- */

static void fail(struct spw_batch *b, struct spw_batch_entry *x, int rc)
{
    if (rc == -EDOM)
        spw_fail(&x->why, rc, "the logits are not numbers (NaN): %s",
                 spw_engine_nan_advice(b->engine));
    else if (!*x->why.text)
        spw_fail(&x->why, rc, "%s", strerror(-rc));
    spw_batch_end(b, x, SPW_FINISH_FAILED);
}

/* The request ends as it should, and the prefix cache keeps its tokens for later requests. The
 * cache reports what it cannot keep; the request does not fail by that. */
static void end_well(struct spw_batch *b, struct spw_batch_entry *x, enum spw_finish finish)
{
    spw_batch_end(b, x, finish);
    spw_session_publish(x->session, NULL);
}

/* Picks the next token from the step's logits. */
static int pick(struct spw_batch *b, struct spw_batch_entry *x)
{
    struct spw_answer *a = &x->answer;
    const float *logits = spw_session_logits(x->session); /* [vocab] */
    int32_t token = spw_sampler_pick(b->sampler, &a->request.sampling, logits, a->tokens,
                                     a->request.n_prompt, a->n_tokens);
    if (isnan(logits[token])) /* then no logit is a number, and there is no next token */
        return -EDOM;
    x->logits = logits;
    spw_batch_note_events(b, x);
    return spw_answer_push(a, token, logits);
}

/* After a step: the next token, and whether the request goes on. */
static void advance(struct spw_batch *b, struct spw_batch_entry *x)
{
    struct spw_answer *a = &x->answer;
    bool first = a->result.n_tokens == a->request.n_given;
    enum spw_finish finish = a->request.max_new_tokens ? spw_answer_finish(a) : SPW_FINISH_LENGTH;
    if (finish != SPW_FINISH_NONE) { /* only the prompt was to be computed */
        end_well(b, x, finish);
        return;
    }
    int rc = pick(b, x);
    if (rc) {
        fail(b, x, rc);
        return;
    }
    finish = spw_answer_finish(a);
    if (finish != SPW_FINISH_NONE)
        end_well(b, x, finish);
    else if (first && spw_snapshot_needs_checkpoint(&b->engine->plan))
        spw_session_publish(x->session, NULL); /* it still ends where others will go on */
}

/* ---- requests that start ---- */

static bool any_waits(struct spw_batch *b)
{
    while (b->first_waiting <= b->n_submitted &&
           !spw_batch_waits(spw_batch_find(b, b->first_waiting)))
        b->first_waiting++;
    return b->first_waiting <= b->n_submitted;
}

/* Tokens that the request's session holds in the end: the last token of an answer is only
 * picked. */
static uint64_t most_tokens(const struct spw_request *r)
{
    return r->n_prompt + spw_sub_u64(r->max_new_tokens, 1);
}

/* Tokens of the request's first step: all but the last token of an answer that is given as a
 * whole. */
static uint64_t first_tokens(const struct spw_request *r)
{
    return spw_min_u64(r->n_prompt + r->n_given, most_tokens(r));
}

static uint32_t most_tiles(const struct spw_batch_entry *x)
{
    return spw_waterline_tiles(most_tokens(&x->answer.request));
}

/* A request runs from now on; open_sessions gives it a session. A request whose given tokens end
 * its answer already ends without a step, unless it is scored. */
static void start(struct spw_batch *b, struct spw_batch_entry *x, uint32_t place)
{
    enum spw_finish finish = spw_answer_finish(&x->answer);
    b->n_own_waiting -= x->answer.request.session != NULL;
    if (x->answer.n_text)
        spw_batch_note_events(b, x);
    if (finish != SPW_FINISH_NONE && !spw_answer_is_scored(&x->answer)) {
        spw_batch_end(b, x, finish);
        return;
    }
    x->session = x->answer.request.session;
    x->runs = true;
    b->running[place] = x;
}

/* Whether the request starts now. The request waits if no session is free, or if its tiles have no
 * room, as long as a running request will give its session back. If none will, the request starts,
 * and open_session() fails with a reason. */
static bool starts_now(const struct spw_batch *b, const struct spw_batch_entry *x)
{
    bool others_end = b->n_closing > 0; /* its session is open until the next step */
    uint32_t n_free = 0, n_open_soon = 0;
    uint64_t tiles = spw_engine_open_tiles(b->engine) + most_tiles(x);
    for (uint32_t i = 0; i < b->max_running; i++) {
        const struct spw_batch_entry *other = b->running[i];
        n_free += !b->engine->sessions[i];
        others_end |= other && !other->answer.request.session;
        if (!other || other->session)
            continue;
        n_open_soon++;
        tiles += most_tiles(other);
    }
    return (n_free > n_open_soon && spw_share_fits(&b->engine->plan, tiles)) || !others_end;
}

/* Where one request has to wait, only those that bring their session pass it. */
static void start_waiting(struct spw_batch *b)
{
    bool others_wait = false;
    uint32_t place = 0;
    any_waits(b);
    for (uint64_t id = b->first_waiting; id <= b->n_submitted; id++) {
        struct spw_batch_entry *x = spw_batch_find(b, id);
        while (place < b->max_running && b->running[place])
            place++;
        if (place == b->max_running || (others_wait && !b->n_own_waiting))
            return;
        if (!spw_batch_waits(x))
            continue;
        if (x->answer.request.session || (!others_wait && starts_now(b, x)))
            start(b, x, place);
        else
            others_wait = true;
    }
}

/* Which requests get a step. */
enum part { ALL, PROMPTS, DECODING };

/* The request's next step computes its prompt. */
static bool is_first(const struct spw_batch_entry *x)
{
    return x->answer.result.n_tokens == x->answer.request.n_given;
}

/* The request's next step computes one token; or nothing, because another request that begins with
 * the same prompt has waited for it. */
static bool decodes(const struct spw_batch_entry *x)
{
    const struct spw_request *r = &x->answer.request;
    const struct spw_session *s = x->session;
    bool is_ready = s && s != r->session && !spw_answer_is_scored(&x->answer) && s->cached &&
                    s->n_tokens == first_tokens(r) && (s->has_logits || !r->max_new_tokens);
    return !is_first(x) || is_ready;
}

/* Rows of logits of the first step: those that score a token, and the row of the next token. */
static size_t first_logits(const struct spw_request *r)
{
    if (r->prompt_logprobs)
        return first_tokens(r);
    return r->logprobs && r->n_given ? first_tokens(r) - r->n_prompt + 1 : r->max_new_tokens > 0;
}

static uint32_t make_spans(struct spw_batch *b, enum part part, bool *prefill)
{
    uint32_t n = 0;
    *prefill = false;
    for (uint32_t i = 0; i < b->max_running; i++) {
        struct spw_batch_entry *x = b->running[i];
        if (!x || (part != ALL && decodes(x) != (part == DECODING)))
            continue;
        const struct spw_answer *a = &x->answer;
        bool first = is_first(x);
        size_t n_tokens = first ? first_tokens(&a->request) : a->n_tokens;
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
    spw_answer_score(&b->stepping[span]->answer, position, logits);
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

static int compute(struct spw_batch *b, uint32_t n, bool prefill, struct spw_error *err)
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

/* ---- sessions of new requests ---- */

/* Nothing is shared where the prefix cache has the tokens, where each length has a rope table of
 * its own, and with a session whose older tokens were computed with another precision. */
static bool is_alone(const struct spw_batch *b, const struct spw_batch_entry *x)
{
    const struct spw_model_config *c = spw_engine_config(b->engine);
    const struct spw_session *s = x->session;
    uint64_t table = spw_rope_table(&c->rope[SPW_LAYER_FULL], c->max_positions,
                                    x->answer.request.n_prompt + x->answer.request.n_given);
    bool wants_all = spw_answer_is_scored(&x->answer) && !x->knows_reuse;
    return b->engine->prefix || wants_all || table != SPW_ROPE_SHARED ||
           (s && s->n_tokens && (s->mixed || s->rope_table != SPW_ROPE_SHARED));
}

static void describe_prompt(struct spw_batch *b, uint32_t place)
{
    const struct spw_batch_entry *x = b->running[place];
    const struct spw_session *s = x ? x->session : NULL;
    struct spw_prompt *p = &b->prompts[place];
    *p = (struct spw_prompt){.is_alone = true};
    if (!x)
        return;
    *p = (struct spw_prompt){.tokens = x->answer.tokens,
                             .n_tokens = first_tokens(&x->answer.request),
                             .is_open = s,
                             .is_alone = is_alone(b, x)};
    if (s && s->cached)
        p->n_held = spw_min_u64(x->answer.n_tokens, s->n_tokens);
    if (s && s == x->answer.request.session) /* which may hold other tokens */
        p->n_held = spw_common_prefix(p->tokens, s->tokens, p->n_held);
}

/* The span in which the donor computes what others will share. If that is its whole prompt, it gets
 * the logits, too, and computes nothing in the step that follows. */
static void add_shared_span(struct spw_batch *b, uint32_t donor, uint64_t shared, uint32_t *n)
{
    struct spw_batch_entry *x = b->running[donor];
    uint32_t i = 0;
    while (i < *n && b->stepping[i] != x)
        i++;
    if (i == *n) {
        b->stepping[(*n)++] = x;
        b->spans[i] = (struct spw_span){.session = x->session, .tokens = x->answer.tokens};
    }
    b->spans[i].n_tokens = spw_shared_span_end(&b->engine->plan, b->spans[i].n_tokens, shared);
    b->spans[i].n_logits =
        b->spans[i].n_tokens == x->answer.n_tokens && x->answer.request.max_new_tokens > 0;
    x->session->is_last_step = true; /* nothing is fetched for a next token; see make_spans */
}

/* Opens the session of a running request, if what it shares is there; else adds the span that
 * computes that. Returns whether a session was opened, or the request has failed. */
static bool open_session(struct spw_batch *b, uint32_t place, uint32_t *n)
{
    struct spw_batch_entry *x = b->running[place];
    uint32_t donor = 0;
    uint64_t shared =
        spw_shared_prompt(&b->engine->plan, b->prompts, b->max_running, place, &donor);
    if (shared && (!b->prompts[donor].is_open || b->prompts[donor].n_held < shared)) {
        if (b->prompts[donor].is_open)
            add_shared_span(b, donor, shared, n);
        return false;
    }
    uint64_t most = most_tokens(&x->answer.request);
    int rc = shared ? spw_session_fork_for(&x->session, b->running[donor]->session, shared, most,
                                           &x->why)
                    : spw_session_open_for(&x->session, b->engine, most, &x->why);
    if (rc)
        fail(b, x, rc);
    return true;
}

/* Gives each running request a session. Tokens that requests share are computed once. */
static int open_sessions(struct spw_batch *b, struct spw_error *err)
{
    bool more = false;
    for (uint32_t i = 0; i < b->max_running; i++)
        more |= b->running[i] && !b->running[i]->session;
    while (more) {
        uint32_t n = 0;
        more = false;
        for (uint32_t i = 0; i < b->max_running; i++)
            describe_prompt(b, i);
        for (uint32_t i = 0; i < b->max_running; i++) {
            if (!b->running[i] || b->running[i]->session)
                continue;
            more |= !open_session(b, i, &n);
            describe_prompt(b, i);
        }
        if (n)
            SPW_TRY(compute(b, n, true, err));
    }
    return 0;
}

/* A step of some requests, and their next tokens. -EAGAIN: the step is set aside. */
static int step_part(struct spw_batch *b, enum part part, struct spw_error *err)
{
    bool prefill;
    uint32_t n = make_spans(b, part, &prefill);
    int rc = n ? compute(b, n, prefill, err) : 0;
    for (uint32_t i = 0; i < n && !rc; i++)
        advance(b, b->stepping[i]);
    return rc;
}

static bool any_decodes(const struct spw_batch *b)
{
    for (uint32_t i = 0; i < b->max_running; i++)
        if (b->running[i] && decodes(b->running[i]))
            return true;
    return false;
}

static bool any_runs(const struct spw_batch *b)
{
    for (uint32_t i = 0; i < b->max_running; i++)
        if (b->running[i])
            return true;
    return false;
}

/* A step of running requests is set aside. */
static bool step_waits(const struct spw_batch *b)
{
    bool any = false;
    for (uint32_t i = 0; i < b->max_running; i++)
        any |= b->running[i] && b->running[i]->session && b->running[i]->session->is_aside;
    return any;
}

/* Starts requests that wait, as many as there are places, and opens their sessions. */
static int start_requests(struct spw_batch *b, struct spw_error *err)
{
    int rc;
    do { /* again where all have failed */
        if (!step_waits(b))
            start_waiting(b);
        rc = open_sessions(b, err);
    } while (!rc && !any_runs(b) && any_waits(b) && !b->n_closing);
    return rc;
}

/* Requests that decode come first: what starts then has its step in the same call. */
static int step_parts(struct spw_batch *b, struct spw_error *err)
{
    bool apart = b->prompt_chunks && any_decodes(b);
    if (apart)
        SPW_TRY(step_part(b, DECODING, err));
    b->most_chunks = apart ? b->prompt_chunks : 0;
    int rc = start_requests(b, err);
    if (!rc)
        rc = step_part(b, apart ? PROMPTS : ALL, err);
    b->most_chunks = 0;
    if (rc == -EAGAIN)
        return 0;
    if (rc && apart) { /* others have got a token: the next call reports the failure */
        b->late_rc = rc;
        b->late = *err;
        return 0;
    }
    return rc;
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
    if (rc) {
        spw_fail(&why, rc, "the step failed: %s", strerror(-rc));
        if (err)
            *err = why;
        return rc;
    }
    return any_runs(b) || any_waits(b);
}

void spw_batch_set_prompt_chunks(struct spw_batch *b, uint32_t chunks)
{
    b->prompt_chunks = chunks;
}

void spw_batch_times(const struct spw_batch *b, struct spw_batch_times *out)
{
    *out = b->times;
}
