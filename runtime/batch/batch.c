/* A batch: any number of requests through the engine's sessions.
 *
 * Requests run as many at a time as the engine has sessions, and memory for their prompts and
 * longest answers (runtime/plan/shares.h); the others wait, in the order of their numbers. One that
 * brings its session needs no room and waits for nobody. The prompts of the first ones are computed
 * in one step, so that each layer's weights cross the link once for all of them. Every further step
 * gives each running request one token. When a request ends, one that waits takes its place, and
 * its prompt joins the step in which the others decode. A token depends on its own request alone:
 * logits do not depend on the partners in a step, and the draws of a request are numbered by its
 * own positions.
 *
 * Tokens that several prompts begin with are computed once (shared_prompt.h): before the step, the
 * session of the first such request computes them, and the sessions of the others are forked from
 * it.
 *
 * With spw_batch_set_prompt_chunks, prompts and requests that decode have steps of their own: a
 * step of prompts is set aside after some chunks (runtime/engine/set_aside.c), and the others get a
 * token before it continues. No request starts while a step is set aside.
 *
 *   submit -> waiting -> running: session + answer -> spw_sync(all) -> sampler -> token
 *                                                     token -> answer.c -> events
 *
 * All memory of a request is taken when it is submitted, but that of its text, and of logits that
 * nobody has read yet when another plan takes their memory. */
#include "runtime/batch/answer.h"
#include "runtime/batch/shared_prompt.h"
#include "runtime/persist/snapshot.h"
#include "runtime/sampler.h"

#include <math.h>
#include <string.h>

struct entry {
    uint64_t id;
    struct spw_answer answer;
    struct spw_session *session; /* owned unless it is the request's own; NULL: it waits or ended */
    bool runs;                   /* or has run: it no longer waits */
    bool knows_reuse;            /* the result has n_reused */
    struct entry *next_unread;   /* in the queue of those with events */
    bool is_unread;              /* it is in this queue */
    /* Events that nobody has read yet: */
    const float *logits;  /* of the token that was generated; NULL: none was */
    float *kept_logits;   /* owned, [vocab] or NULL: for a copy, see spw_batch_keep_logits */
    bool has_end;         /* the request has ended; the answer has its text */
    struct spw_error why; /* of a failed one */
};

struct spw_batch {
    struct spw_engine *engine;
    const struct spw_tokenizer *tokenizer;
    struct entry **entries; /* owned, [capacity]: request first_id + i; NULL: it was taken */
    uint64_t first_id, n_submitted, capacity;
    uint64_t first_waiting;             /* no request with a lower number waits */
    uint32_t n_own_waiting;             /* waiting requests that bring their session */
    struct entry *unread, **end_unread; /* the queue of those with events */
    struct entry **closing; /* owned, [max_running]: ended, with the batch's session open */
    uint32_t n_closing;
    struct entry **running;     /* owned, [max_running]; NULL: free */
    struct entry **stepping;    /* owned, [max_running]: the request of each span */
    struct spw_span *spans;     /* owned, [max_running]: the step's */
    struct spw_prompt *prompts; /* owned, [max_running]: while sessions are opened */
    uint32_t max_running;
    uint32_t prompt_chunks; /* see spw_batch_set_prompt_chunks */
    uint32_t most_chunks;   /* of the steps that are being made; 0: any number */
    int late_rc;            /* of a step of prompts beside others; 0: none has failed */
    struct spw_error late;
    struct spw_sampler *sampler; /* owned */
    struct spw_batch_times times;
};

/* ---- open, close ---- */

int spw_batch_open(struct spw_batch **out, struct spw_engine *e,
                   const struct spw_tokenizer *tokenizer, struct spw_error *err)
{
    spw_error_clear(err);
    *out = NULL;
    if (e->batch)
        return spw_fail(err, -EBUSY, "the engine has a batch already");
    struct spw_batch *b = spw_alloc_zero(1, sizeof *b);
    uint32_t n = spw_engine_plan(e)->sessions;
    if (!b)
        return spw_fail(err, -ENOMEM, "no memory for a batch");
    *b = (struct spw_batch){.engine = e,
                            .tokenizer = tokenizer,
                            .max_running = n,
                            .first_id = 1,
                            .first_waiting = 1,
                            .end_unread = &b->unread,
                            .closing = spw_alloc_zero(n, sizeof(struct entry *)),
                            .running = spw_alloc_zero(n, sizeof(struct entry *)),
                            .stepping = spw_alloc_zero(n, sizeof(struct entry *)),
                            .spans = spw_alloc_zero(n, sizeof *b->spans),
                            .prompts = spw_alloc_zero(n, sizeof *b->prompts)};
    int rc = spw_sampler_open(&b->sampler, spw_engine_config(e)->vocab, err);
    if (!rc && (!b->closing || !b->running || !b->stepping || !b->spans || !b->prompts))
        rc = spw_fail(err, -ENOMEM, "no memory for a batch of %u sessions", n);
    if (rc) {
        spw_batch_close(b);
        return rc;
    }
    e->batch = b;
    *out = b;
    return 0;
}

/* NULL: there is no such request, or it was taken. */
static struct entry *find(const struct spw_batch *b, uint64_t id)
{
    return id >= b->first_id && id <= b->n_submitted ? b->entries[id - b->first_id] : NULL;
}

static void close_session(struct entry *x)
{
    if (x->session != x->answer.request.session)
        spw_session_close(x->session);
    x->session = NULL;
}

static void free_entry(struct entry *x)
{
    if (!x)
        return;
    close_session(x);
    spw_answer_close(&x->answer);
    spw_free(x->kept_logits);
    spw_free(x);
}

void spw_batch_close(struct spw_batch *b)
{
    if (!b)
        return;
    for (uint64_t id = b->first_id; id <= b->n_submitted; id++)
        free_entry(find(b, id));
    if (b->engine->batch == b)
        b->engine->batch = NULL;
    spw_sampler_close(b->sampler);
    spw_free(b->entries);
    spw_free(b->closing);
    spw_free(b->running);
    spw_free(b->stepping);
    spw_free(b->spans);
    spw_free(b->prompts);
    spw_free(b);
}

/* ---- submit ---- */

static int check_ids(const struct spw_batch *b, const char *what, const int32_t *ids, size_t n,
                     struct spw_error *err)
{
    uint32_t vocab = spw_engine_config(b->engine)->vocab;
    for (size_t k = 0; k < n; k++)
        if (ids[k] < 0 || (uint32_t)ids[k] >= vocab)
            return spw_fail(
                err, -EINVAL, "request %llu: token %zu of the %s: found id %d, expected 0 to %u",
                (unsigned long long)b->n_submitted + 1, k + 1, what, (int)ids[k], vocab - 1);
    return 0;
}

static int check_lengths(const struct spw_batch *b, const struct spw_request *r,
                         struct spw_error *err)
{
    unsigned long long i = b->n_submitted + 1;
    uint64_t needed, context = spw_engine_plan(b->engine)->context;
    size_t n_computed = r->max_new_tokens > 0 ? r->max_new_tokens - 1 : 0; /* the last is picked */
    if (r->n_prompt == 0)
        return spw_fail(err, -EINVAL, "request %llu: found an empty prompt, expected tokens", i);
    if (!spw_add_u64(r->n_prompt, n_computed, &needed) || needed > context)
        return spw_fail(err, -E2BIG,
                        "request %llu: found %zu prompt tokens and %zu to generate, expected a sum "
                        "within the context of %llu tokens",
                        i, r->n_prompt, r->max_new_tokens, (unsigned long long)context);
    if (r->n_given > r->max_new_tokens)
        return spw_fail(err, -EINVAL,
                        "request %llu: found %zu tokens generated before, expected at most the %zu "
                        "that it may have",
                        i, r->n_given, r->max_new_tokens);
    return 0;
}

static int check_request(const struct spw_batch *b, const struct spw_request *r,
                         struct spw_error *err)
{
    unsigned long long i = b->n_submitted + 1;
    SPW_TRY(check_lengths(b, r, err));
    SPW_TRY(check_ids(b, "prompt", r->prompt, r->n_prompt, err));
    SPW_TRY(check_ids(b, "answer", r->given, r->n_given, err));
    if ((r->text || r->n_stop) && !b->tokenizer)
        return spw_fail(err, -EINVAL, "request %llu: text and stop strings need a tokenizer", i);
    if (r->session && r->session->engine != b->engine)
        return spw_fail(err, -EINVAL, "request %llu: its session is not one of this engine", i);
    for (uint64_t id = b->first_id; id < i && r->session; id++) {
        const struct entry *x = find(b, id);
        if (x && x->answer.request.session == r->session &&
            x->answer.result.finish == SPW_FINISH_NONE)
            return spw_fail(err, -EINVAL, "requests %llu and %llu name the same session",
                            (unsigned long long)id, i);
    }
    return spw_sampling_check(&r->sampling, err);
}

/* Makes room for one more request. Numbers of requests that were taken go if they are many. */
static int grow_entries(struct spw_batch *b)
{
    enum { LEAST = 16 };
    uint64_t n = b->n_submitted + 1 - b->first_id, n_taken = 0;
    if (n < b->capacity)
        return 0;
    while (n_taken < n && !b->entries[n_taken])
        n_taken++;
    if (n_taken && n_taken >= n / 2) {
        memmove(b->entries, b->entries + n_taken, (n - n_taken) * sizeof(struct entry *));
        b->first_id += n_taken;
        return 0;
    }
    uint64_t capacity = spw_max_u64(2 * b->capacity, LEAST);
    struct entry **grown = spw_realloc(b->entries, capacity * sizeof(struct entry *));
    if (!grown)
        return -ENOMEM;
    b->entries = grown;
    b->capacity = capacity;
    return 0;
}

int spw_batch_submit(struct spw_batch *b, const struct spw_request *request, uint64_t *id,
                     struct spw_error *err)
{
    spw_error_clear(err);
    SPW_TRY(check_request(b, request, err));
    struct entry *x = spw_alloc_zero(1, sizeof *x);
    if (!x || grow_entries(b)) {
        spw_free(x);
        return spw_fail(err, -ENOMEM, "no memory for a request");
    }
    int rc = spw_answer_open(&x->answer, request, b->n_submitted + 1, spw_engine_config(b->engine),
                             b->tokenizer, err);
    if (rc) {
        spw_free(x);
        return rc;
    }
    b->n_own_waiting += request->session != NULL;
    *id = x->id = ++b->n_submitted;
    b->entries[x->id - b->first_id] = x;
    return 0;
}

/* ---- events ---- */

static void note_events(struct spw_batch *b, struct entry *x)
{
    if (x->is_unread)
        return;
    x->is_unread = true;
    x->next_unread = NULL;
    *b->end_unread = x;
    b->end_unread = &x->next_unread;
}

static void unlink_events(struct spw_batch *b, struct entry *x)
{
    struct entry **at = &b->unread;
    if (!x->is_unread)
        return;
    while (*at != x)
        at = &(*at)->next_unread;
    *at = x->next_unread;
    x->is_unread = false;
    if (b->end_unread == &x->next_unread)
        b->end_unread = at;
}

/* Events of earlier steps go, and so do sessions of requests that have ended. */
static void forget_events(struct spw_batch *b)
{
    for (struct entry *x = b->unread; x; x = x->next_unread) {
        x->is_unread = x->has_end = false;
        x->logits = NULL;
        x->answer.n_text = 0;
    }
    b->unread = NULL;
    b->end_unread = &b->unread;
    for (uint32_t i = 0; i < b->n_closing; i++)
        close_session(b->closing[i]);
    b->n_closing = 0;
}

int spw_batch_keep_logits(struct spw_batch *b)
{
    uint64_t bytes = b ? spw_engine_config(b->engine)->vocab * sizeof(float) : 0;
    for (struct entry *x = b ? b->unread : NULL; x; x = x->next_unread) {
        if (!x->logits || x->logits == x->kept_logits)
            continue;
        if (!x->kept_logits)
            x->kept_logits = spw_alloc(bytes);
        if (!x->kept_logits)
            return -ENOMEM;
        memcpy(x->kept_logits, x->logits, bytes);
        x->logits = x->kept_logits;
    }
    return 0;
}

static bool next_event(struct entry *x, struct spw_event *out)
{
    *out = (struct spw_event){.request = x->id};
    if (x->logits) {
        out->kind = SPW_EVENT_TOKEN;
        out->token = x->answer.tokens[x->answer.n_tokens - 1];
        out->logits = x->logits;
        x->logits = NULL;
        return true;
    }
    if (x->answer.n_text) {
        out->kind = SPW_EVENT_TEXT;
        out->text = x->answer.text;
        out->text_bytes = x->answer.n_text;
        x->answer.n_text = 0;
        return true;
    }
    if (x->has_end) {
        out->kind = SPW_EVENT_END;
        out->text = x->why.text;
        out->text_bytes = strlen(x->why.text);
        x->has_end = false;
        return true;
    }
    return false;
}

bool spw_batch_event(struct spw_batch *b, struct spw_event *out)
{
    while (b->unread) {
        struct entry *x = b->unread;
        if (next_event(x, out))
            return true;
        unlink_events(b, x);
    }
    return false;
}

/* ---- one request ---- */

/* The request is over. Text that was held back is final now, unless more was to come. */
static void end(struct spw_batch *b, struct entry *x, enum spw_finish finish)
{
    bool flush = finish != SPW_FINISH_CANCELED && finish != SPW_FINISH_FAILED;
    const struct spw_session *session = x->session ? x->session : x->answer.request.session;
    for (uint32_t i = 0; i < b->max_running; i++)
        if (b->running[i] == x)
            b->running[i] = NULL;
    x->answer.result.finish = finish;
    if (flush && spw_answer_end(&x->answer)) {
        x->answer.result.finish = SPW_FINISH_FAILED;
        spw_fail(&x->why, -ENOMEM, "no memory for the last text");
    }
    if (session)
        spw_session_waterlines(session, &x->answer.result.waterlines);
    if (x->session)
        x->session->is_last_step = false; /* a caller's session may go on */
    if (x->session && x->session != x->answer.request.session)
        b->closing[b->n_closing++] = x;
    x->has_end = true;
    note_events(b, x);
}

static void fail(struct spw_batch *b, struct entry *x, int rc)
{
    if (rc == -EDOM)
        spw_fail(&x->why, rc, "the logits are not numbers (NaN): %s",
                 spw_engine_nan_advice(b->engine));
    else if (!*x->why.text)
        spw_fail(&x->why, rc, "%s", strerror(-rc));
    end(b, x, SPW_FINISH_FAILED);
}

/* The request ends as it should, and the prefix cache keeps its tokens for later requests. The
 * cache reports what it cannot keep; the request does not fail by that. */
static void end_well(struct spw_batch *b, struct entry *x, enum spw_finish finish)
{
    end(b, x, finish);
    spw_session_publish(x->session, NULL);
}

/* Picks the next token from the step's logits. */
static int pick(struct spw_batch *b, struct entry *x)
{
    struct spw_answer *a = &x->answer;
    const float *logits = spw_session_logits(x->session); /* [vocab] */
    int32_t token =
        spw_sampler_pick(b->sampler, &a->request.sampling, logits, a->tokens, a->n_tokens, 0);
    if (isnan(logits[token])) /* then no logit is a number, and there is no next token */
        return -EDOM;
    x->logits = logits;
    note_events(b, x);
    return spw_answer_push(a, token, logits);
}

/* After a step: the next token, and whether the request goes on. */
static void advance(struct spw_batch *b, struct entry *x)
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

/* ---- a step ---- */

static bool waits(const struct entry *x)
{
    return x && !x->runs && x->answer.result.finish == SPW_FINISH_NONE;
}

static bool any_waits(struct spw_batch *b)
{
    while (b->first_waiting <= b->n_submitted && !waits(find(b, b->first_waiting)))
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

static uint32_t most_tiles(const struct entry *x)
{
    return spw_waterline_tiles(most_tokens(&x->answer.request));
}

/* A request runs from now on; open_sessions gives it a session. A request whose given tokens end
 * its answer already ends without a step, unless its prompt is scored. */
static void start(struct spw_batch *b, struct entry *x, uint32_t place)
{
    enum spw_finish finish = spw_answer_finish(&x->answer);
    b->n_own_waiting -= x->answer.request.session != NULL;
    if (x->answer.n_text)
        note_events(b, x);
    if (finish != SPW_FINISH_NONE && !x->answer.request.prompt_logprobs) {
        end(b, x, finish);
        return;
    }
    x->session = x->answer.request.session;
    x->runs = true;
    b->running[place] = x;
}

/* Whether the request starts now. The request waits if no session is free, or if its tiles have no
 * room, as long as a running request will give its session back. If none will, the request starts,
 * and open_session() fails with a reason. */
static bool starts_now(const struct spw_batch *b, const struct entry *x)
{
    bool others_end = b->n_closing > 0; /* its session is open until the next step */
    uint32_t n_free = 0, n_open_soon = 0;
    uint64_t tiles = spw_engine_open_tiles(b->engine) + most_tiles(x);
    for (uint32_t i = 0; i < b->max_running; i++) {
        const struct entry *other = b->running[i];
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
        struct entry *x = find(b, id);
        while (place < b->max_running && b->running[place])
            place++;
        if (place == b->max_running || (others_wait && !b->n_own_waiting))
            return;
        if (!waits(x))
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
static bool is_first(const struct entry *x)
{
    return x->answer.result.n_tokens == x->answer.request.n_given;
}

/* The request's next step computes one token; or nothing, because another request that begins with
 * the same prompt has waited for it. */
static bool decodes(const struct entry *x)
{
    const struct spw_request *r = &x->answer.request;
    const struct spw_session *s = x->session;
    bool is_ready = s && s != r->session && !r->prompt_logprobs && s->cached &&
                    s->n_tokens == first_tokens(r) && (s->has_logits || !r->max_new_tokens);
    return !is_first(x) || is_ready;
}

static uint32_t make_spans(struct spw_batch *b, enum part part, bool *prefill)
{
    uint32_t n = 0;
    *prefill = false;
    for (uint32_t i = 0; i < b->max_running; i++) {
        struct entry *x = b->running[i];
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
                                          .n_logits = first && a->result.prompt_logprobs
                                                          ? n_tokens
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
static void note_reuse(struct entry *x)
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
static bool is_alone(const struct spw_batch *b, const struct entry *x)
{
    const struct spw_model_config *c = spw_engine_config(b->engine);
    const struct spw_session *s = x->session;
    uint64_t table = spw_rope_table(&c->rope[SPW_LAYER_FULL], c->max_positions,
                                    x->answer.request.n_prompt + x->answer.request.n_given);
    bool wants_all = x->answer.result.prompt_logprobs && !x->knows_reuse;
    return b->engine->prefix || wants_all || table != SPW_ROPE_SHARED ||
           (s && s->n_tokens && (s->mixed || s->rope_table != SPW_ROPE_SHARED));
}

static void describe_prompt(struct spw_batch *b, uint32_t place)
{
    const struct entry *x = b->running[place];
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
    struct entry *x = b->running[donor];
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
    struct entry *x = b->running[place];
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
    forget_events(b);
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

/* ---- requests by number ---- */

int spw_batch_cancel(struct spw_batch *b, uint64_t id)
{
    struct entry *x = find(b, id);
    if (!x || x->answer.result.finish != SPW_FINISH_NONE)
        return -ENOENT;
    b->n_own_waiting -= waits(x) && x->answer.request.session;
    end(b, x, SPW_FINISH_CANCELED);
    return 0;
}

const struct spw_result *spw_batch_result(const struct spw_batch *b, uint64_t id)
{
    const struct entry *x = find(b, id);
    return x ? &x->answer.result : NULL;
}

/* The session of an ended request is closed with the next step, or with its request. */
static void unlink_closing(struct spw_batch *b, const struct entry *x)
{
    for (uint32_t i = 0; i < b->n_closing; i++)
        if (b->closing[i] == x)
            b->closing[i--] = b->closing[--b->n_closing];
}

int spw_batch_take(struct spw_batch *b, uint64_t id, struct spw_result *out)
{
    struct entry *x = find(b, id);
    if (!x)
        return -ENOENT;
    if (x->answer.result.finish == SPW_FINISH_NONE)
        return -EBUSY;
    b->entries[id - b->first_id] = NULL;
    unlink_events(b, x);
    unlink_closing(b, x);
    *out = x->answer.result;
    x->answer.result = (struct spw_result){0};
    free_entry(x);
    return 0;
}
