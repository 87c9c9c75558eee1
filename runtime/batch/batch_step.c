/* Steps of a batch: what each request computes, and its next token. See batch.c. */
#include "runtime/batch/batch_parts.h"

#include <string.h>

/* ---- one request ---- */

/* Sets x->why, unless it has a text already. */
static void say_why(const struct spw_batch *b, struct spw_batch_entry *x, int rc)
{
    if (rc == -EDOM)
        spw_fail(&x->why, rc, "the logits are not numbers (NaN): %s",
                 spw_engine_nan_advice(b->engine));
    else if (rc == -E2BIG)
        spw_fail(&x->why, rc, SPW_GRAMMAR_TOO_MANY);
    else if (rc == -EILSEQ)
        spw_fail(&x->why, rc,
                 "no token of the vocabulary continues the answer as its grammar demands");
    else if (rc == -ENODATA)
        spw_fail(&x->why, rc,
                 "the rules for the next token (suppress_tokens, no_repeat_ngram_size and others) "
                 "forbid every token");
    else if (!*x->why.text)
        spw_fail(&x->why, rc, "%s", strerror(-rc));
}

void spw_batch_fail(struct spw_batch *b, struct spw_batch_entry *x, int rc)
{
    const struct spw_group g = x->group;
    say_why(b, x, rc);
    for (uint64_t id = g.first; id < g.first + g.n; id++) {
        struct spw_batch_entry *y = spw_batch_find(b, id);
        if (y != x && (!g.together || !y || y->answer.result.finish != SPW_FINISH_NONE))
            continue;
        y->rc = rc;
        y->why = x->why;
        spw_batch_end(b, y, SPW_FINISH_FAILED);
    }
}

void spw_batch_end_well(struct spw_batch *b, struct spw_batch_entry *x, enum spw_finish finish)
{
    struct spw_session *session = x->session;
    spw_batch_end(b, x, finish);
    spw_session_publish(session, NULL);
}

/* Ends a request that needs no token: it wants its prompt computed only, its answer is complete, or
 * a log-probability is missing. False: the request goes on. */
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

/* Notes, after the first step of a request, how many tokens of the prompt were reused. Later steps
 * must not: if the first step was interrupted, the next one begins with tokens that the first one
 * has computed. */
static void note_reuse(struct spw_batch_entry *x)
{
    if (x->knows_reuse)
        return;
    x->knows_reuse = true;
    x->answer.result.n_reused = spw_session_reused(x->session);
    x->answer.result.n_from_store = spw_session_from_store(x->session);
    x->answer.result.n_recomputed = x->session->recomputed;
}

/* The request's next token, picked from a row of logits of its session. */
static int push(struct spw_batch *b, struct spw_batch_entry *x, int32_t token)
{
    const float *logits = spw_batch_row(b, x); /* [vocab] */
    if (!x->n_new) {
        x->logits = logits;
        x->is_kept = false;
    }
    x->n_new += logits != NULL;
    x->n_failures = 0;
    spw_batch_note_events(b, x);
    return spw_answer_push(&x->answer, token, logits);
}

/* Carries out the decision for x: appends the token (or fails, if the token is -errno). If the
 * token is the next draft, the next row of the same step is decided now; else the step of x is
 * over, and x ends or goes on. */
static void advance(struct spw_batch *b, struct spw_batch_entry *x, int32_t token)
{
    const bool first = spw_batch_needs_prompt(x);
    const bool is_draft = spw_batch_takes_draft(x, token);
    int rc = token < 0 ? token : push(b, x, token);
    enum spw_finish finish = spw_answer_finish(&x->answer);
    x->has_row = is_draft && !rc && finish == SPW_FINISH_NONE;
    if (x->has_row) {
        x->drafts.row++;
        return;
    }
    const int settled = spw_batch_settle(b, x);
    rc = rc ? rc : settled;
    if (rc) {
        spw_batch_fail(b, x, rc);
        return;
    }
    if (finish != SPW_FINISH_NONE)
        spw_batch_end_well(b, x, finish);
    else if (first && !x->group.together && spw_plan_sharing(&b->engine->plan).needs_checkpoint)
        /* later the session cannot be cut back to its prompt, with which others can begin */
        spw_session_publish(x->session, NULL);
}

/* Lists the members that decide now: requests of the group with a row of logits, and requests
 * without a session whose parent has one. */
static uint32_t gather(struct spw_batch *b, const struct spw_group *g)
{
    uint32_t n = 0;
    for (uint64_t id = g->first; id < g->first + g->n; id++) {
        struct spw_batch_entry *x = spw_batch_find(b, id);
        const struct spw_batch_entry *parent = x && x->has_started ? spw_batch_parent(b, x) : NULL;
        if (!x || !(x->has_row || (parent && parent->has_row)))
            continue;
        spw_answer_allow(&x->answer);
        b->deciding[n] = x;
        b->members[n++] = (struct spw_group_member){
            .answer = &x->answer, .logits = x->has_row ? spw_batch_row(b, x) : NULL};
    }
    for (uint32_t i = 0; i < n; i++)
        b->deciding[i]->has_row = false;
    return n;
}

/* The member that continues in the session of member p itself: p, or its first child. n: none. */
static uint32_t heir_of(const struct spw_group_member *members, uint32_t n, uint32_t p)
{
    uint32_t i = 0;
    if (members[p].parent == p)
        return p;
    while (i < n && members[i].parent != p)
        i++;
    return i;
}

/* Gives member i a copy of the session `from`: in *spare, a session that no member continues, or if
 * that is NULL in a new session. */
static int copy_session(struct spw_batch *b, uint32_t i, struct spw_session *from,
                        struct spw_session **spare)
{
    struct spw_batch_entry *x = b->deciding[i];
    struct spw_session *s = *spare;
    *spare = NULL;
    x->session = s;
    if (s)
        return spw_session_become(s, from);
    SPW_TRY(spw_session_fork_for(&x->session, from, b->members[i].n_stay,
                                 spw_batch_most_tokens(&x->answer.request), &x->why));
    note_reuse(x);
    return 0;
}

/* Gives each member a session that goes on as that of its parent. */
static void move_sessions(struct spw_batch *b, uint32_t n)
{
    struct spw_session **before = b->sessions, **spares = before + b->max_running;
    uint32_t n_spare = 0;
    for (uint32_t i = 0; i < n; i++) {
        before[i] = b->deciding[i]->session;
        if (before[i] && heir_of(b->members, n, i) == n)
            spares[n_spare++] = before[i];
    }
    for (uint32_t i = 0; i < n; i++) {
        struct spw_group_member *m = &b->members[i];
        struct spw_session *from = before[m->parent], *none = NULL;
        if (m->token < 0 || m->parent == i)
            continue;
        if (heir_of(b->members, n, m->parent) == i) {
            b->deciding[i]->session = from;
            continue;
        }
        int rc = copy_session(b, i, from, n_spare ? &spares[--n_spare] : &none);
        m->token = rc ? rc : m->token;
    }
}

/* Lets the group decide by one row of logits of each member, and carries out the decision. Beams
 * decide only when all of them have a row. */
static void decide(struct spw_batch *b, const struct spw_group *g)
{
    const uint32_t n = gather(b, g);
    if (g->together && n < g->n)
        return;
    g->decide(g, b->sampler, b->members, n);
    move_sessions(b, n);
    for (uint32_t i = 0; i < n; i++)
        if (b->deciding[i]->answer.grammar_rc)
            b->members[i].token = b->deciding[i]->answer.grammar_rc;
    for (uint32_t i = 0; i < n && !g->beams; i++)
        advance(b, b->deciding[i], b->members[i].token);
    if (g->beams)
        spw_batch_advance_beams(b, g, n);
}

/* ---- how the requests of a group go on ---- */

/* The member whose session has the tokens of member i. */
static uint32_t parent_of(const struct spw_group_member *members, uint32_t i)
{
    uint32_t p = i;
    if (!members[i].logits)
        for (p = 0;
             !members[p].logits || members[p].answer->n_tokens != members[i].answer->n_tokens;)
            p++;
    return p;
}

void spw_group_sample(const struct spw_group *g, struct spw_sampler *s,
                      struct spw_group_member *members, uint32_t n)
{
    (void)g;
    for (uint32_t i = 0; i < n; i++) {
        struct spw_group_member *m = &members[i];
        const struct spw_answer *a = m->answer;
        m->parent = parent_of(members, i);
        m->n_stay = a->n_tokens;
        m->token = spw_sampler_pick(s, &a->request.sampling, members[m->parent].logits, a->tokens,
                                    a->request.n_prompt, a->n_tokens);
    }
}

void spw_group_any(const struct spw_group *g, struct spw_sampler *s,
                   struct spw_group_member *members, uint32_t n)
{
    (void)g, (void)s;
    for (uint32_t i = 0; i < n; i++) {
        members[i].parent = i;
        members[i].n_stay = members[i].answer->n_tokens;
        members[i].token = 0;
    }
}

void spw_group_replay(const struct spw_group *g, struct spw_sampler *s,
                      struct spw_group_member *members, uint32_t n)
{
    const uint64_t step = members[0].answer->result.n_tokens;
    spw_group_any(g, s, members, n);
    for (uint32_t i = 0; i < n; i++)
        members[i].parent = step < g->n_steps ? g->parents[step * n + i] : step ? i : 0;
}

/* ---- steps ---- */

/* Which requests get a step. */
enum which { ALL, PROMPTS, DECODING };

/* Whether the request has no prompt left to compute. Then its next step computes one token; or
 * nothing, if an earlier step has computed the whole prompt for requests that share it
 * (add_shared_span). */
static bool decodes(const struct spw_batch_entry *x)
{
    const struct spw_request *r = &x->answer.request;
    const struct spw_session *s = x->session;
    bool is_ready = s && s != r->session && !spw_answer_is_scored(&x->answer) && s->cached &&
                    s->n_tokens == spw_batch_first_tokens(r) &&
                    (s->has_logits || !r->max_new_tokens);
    return !spw_batch_needs_prompt(x) || is_ready;
}

/* How many rows of logits the first step must give: those that score a token of the request, and
 * the row of the next token. */
static size_t n_prompt_logits(const struct spw_request *r)
{
    if (r->prompt_logprobs)
        return spw_batch_first_tokens(r);
    return r->logprobs && r->n_given ? spw_batch_first_tokens(r) - r->n_prompt + 1
                                     : r->max_new_tokens > 0;
}

/* ---- passes of prompts ---- */

static bool has_prompt(const struct spw_batch_entry *x)
{
    return x->session && !decodes(x);
}

static uint64_t tokens_left(const struct spw_batch_entry *x)
{
    return spw_sub_u64(spw_batch_first_tokens(&x->answer.request), spw_session_cached(x->session));
}

/* Of the prompts that are not in the pass yet: the oldest one, or the one with the fewest tokens
 * left. */
static struct spw_batch_entry *next_prompt(const struct spw_batch *b, bool oldest)
{
    struct spw_batch_entry *best = NULL;
    for (struct spw_batch_entry *x = NULL; (x = spw_batch_next(b, x));)
        if (has_prompt(x) && !x->is_in_pass &&
            (!best || (oldest ? x->id < best->id : tokens_left(x) < tokens_left(best))))
            best = x;
    return best;
}

/* Chooses the prompts of the next pass (is_in_pass). If a step was paused: its prompts. Else, if
 * a step with a prompt has failed: this prompt alone, because another one may have been the reason.
 * Else one pass of short prompts, up to half the tokens of a pass, and one of the oldest prompts,
 * by turns. */
static void choose_prompts(struct spw_batch *b)
{
    bool any = false;
    uint64_t room = b->had_short ? 0 : b->pass_tokens / 2;
    struct spw_batch_entry *x = NULL;
    while ((x = spw_batch_next(b, x)))
        any |= x->is_in_pass = x->session && x->session->is_paused;
    for (x = NULL; !any && (x = spw_batch_next(b, x));)
        any = x->is_in_pass = has_prompt(x) && x->n_failures;
    if (any)
        return;
    b->had_short = false;
    for (; (x = next_prompt(b, false)) && tokens_left(x) <= room; x->is_in_pass = true) {
        room -= tokens_left(x);
        b->had_short = true;
    }
    room = b->had_short ? 0 : b->pass_tokens;
    for (; room && (x = next_prompt(b, true)); x->is_in_pass = true)
        room = spw_sub_u64(room, tokens_left(x));
}

/* Lists the spans of the next step: returns how many. *prefill: some of them are prompts. */
static uint32_t make_spans(struct spw_batch *b, enum which which, bool *prefill)
{
    const struct spw_engine *e = b->engine;
    /* drafts of the MTP layer need transfers, which come before those of the next step */
    const bool transfers = b->mtp && !spw_plan_drafts_in_place(&e->plan, e->model.weights);
    uint32_t n = 0;
    *prefill = false;
    if (which == PROMPTS && b->pass_tokens)
        choose_prompts(b);
    for (struct spw_batch_entry *x = NULL; (x = spw_batch_next(b, x));) {
        if (!x->session || (which != ALL && decodes(x) != (which == DECODING)) ||
            (which == PROMPTS && b->pass_tokens && !x->is_in_pass))
            continue;
        const struct spw_answer *a = &x->answer;
        bool first = spw_batch_needs_prompt(x);
        size_t n_tokens = first ? spw_batch_first_tokens(&a->request) : a->n_tokens;
        x->session->is_last_step =
            transfers || a->n_tokens + 1 >= a->request.n_prompt + a->request.max_new_tokens;
        b->stepping[n] = x;
        b->spans[n++] = (struct spw_span){.session = x->session,
                                          .tokens = a->tokens,
                                          .n_tokens = n_tokens,
                                          .n_logits = first ? n_prompt_logits(&a->request)
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

/* How many tokens the caches of the first n spans' sessions have. */
static uint64_t count_cached(const struct spw_batch *b, uint32_t n)
{
    uint64_t cached = 0;
    for (uint32_t i = 0; i < n; i++)
        cached += spw_session_cached(b->spans[i].session);
    return cached;
}

/* Publishes the prompts of a step that spw_batch_set_pass_tokens has limited, at most once a
 * minute: about as often as passes without this limit publish. */
static void publish_some(struct spw_batch *b, uint32_t n)
{
    enum { EVERY_SECONDS = 60 };
    const double now = spw_now_seconds();
    const bool is_first = b->published_at <= 0;
    if (!b->engine->above.prefix || now - b->published_at < EVERY_SECONDS)
        return;
    for (uint32_t i = 0; i < n && !is_first; i++)
        spw_session_publish(b->spans[i].session, NULL);
    b->published_at = now;
}

static void count_failures(struct spw_batch *b, uint32_t n, int rc)
{
    const bool fails = rc && rc != -EAGAIN && rc != -ECANCELED && rc != -ESTALE;
    for (uint32_t i = 0; i < n; i++)
        b->stepping[i]->n_failures += fails;
}

static uint64_t count_chunks(const struct spw_batch *b)
{
    return b->engine->executor ? b->engine->executor->n_chunks : 0;
}

int spw_batch_compute(struct spw_batch *b, uint32_t n, bool prefill, struct spw_error *err)
{
    double start = spw_now_seconds();
    const struct spw_sync_options o = {
        .most_chunks = b->most_chunks, .publishes = true, .most_tokens = b->most_tokens};
    uint64_t before = count_cached(b, n), chunks = count_chunks(b);
    for (uint32_t i = 0; i < n; i++)
        if (b->stepping[i]->answer.request.audio)
            spw_session_set_audio(b->spans[i].session, b->stepping[i]->answer.request.audio);
    int rc = spw_engine_sync(b->engine, b->spans, n, &o, score, b, err);
    b->times.n_pauses += rc == -EAGAIN;
    b->times.n_chunks += prefill ? spw_sub_u64(count_chunks(b), chunks) : 0;
    const uint64_t n_prompt = prefill ? spw_sub_u64(count_cached(b, n), before) : 0;
    b->times.n_prompt_tokens += n_prompt;
    if (!rc && b->most_tokens)
        publish_some(b, n);
    for (uint32_t i = 0; i < n && (!rc || rc == -ECANCELED || rc == -EAGAIN); i++)
        note_reuse(b->stepping[i]);
    *(prefill ? &b->times.prefill_seconds : &b->times.decode_seconds) += spw_now_seconds() - start;
    b->times.n_decode_steps += !rc && !prefill;
    count_failures(b, n, rc);
    if (!rc && (n_prompt || !prefill))
        spw_batch_note_costs(b, n, n_prompt, spw_now_seconds() - start);
    return rc;
}

/* A step of some requests, and their next tokens. -EAGAIN: the step is paused. */
static int step_requests(struct spw_batch *b, enum which which, struct spw_error *err)
{
    bool prefill;
    uint32_t n = make_spans(b, which, &prefill);
    if (!prefill)
        spw_batch_add_drafts(b, n);
    int rc = n ? spw_batch_compute(b, n, prefill, err) : 0;
    if (rc)
        spw_batch_drop_drafts(b, n);
    for (uint32_t i = 0; i < n && !rc; i++)
        b->stepping[i]->has_row =
            spw_batch_has_passed(&b->spans[i]) && !ends_without_token(b, b->stepping[i]);
    for (uint32_t i = 0; i < n && !rc; i++)
        while (b->stepping[i]->has_row) /* again for those that have taken a draft */
            decide(b, &b->stepping[i]->group);
    return rc;
}

static bool any_decodes(const struct spw_batch *b)
{
    for (struct spw_batch_entry *x = NULL; (x = spw_batch_next(b, x));)
        if (decodes(x))
            return true;
    return false;
}

/* One step of all running requests; or, if prompts have steps of their own, first one of those that
 * decode, then one of prompts, with the requests that start now. -ESTALE: see spw_engine_sync. */
static int step_running(struct spw_batch *b, struct spw_error *err)
{
    const bool apart = b->prompt_chunks && (b->pass_tokens || any_decodes(b));
    if (apart)
        SPW_TRY(step_requests(b, DECODING, err));
    b->most_chunks = apart ? b->prompt_chunks : 0;
    b->most_tokens = apart ? b->pass_tokens : 0;
    int rc = spw_batch_start(b, err);
    if (!rc)
        rc = step_requests(b, apart ? PROMPTS : ALL, err);
    b->most_chunks = 0;
    b->most_tokens = 0;
    if (rc == -EAGAIN)
        return 0;
    if (rc && rc != -ESTALE && apart) {
        /* The requests that decode have a token, which this call must report. */
        b->late_rc = rc;
        b->late = *err;
        return 0;
    }
    return rc;
}

/* After -ESTALE: sessions have lost tiles that they shared. Closes those that have no room without
 * sharing; their requests get new sessions in the next step. */
static int open_anew(struct spw_batch *b, struct spw_error *err)
{
    enum { MOST = 8 };
    if (b->n_stale++ == MOST) {
        for (struct spw_batch_entry *x = NULL; (x = spw_batch_next(b, x));)
            x->n_failures++;
        return spw_fail(err, -EIO, "tiles were lost again each time: the drive is failing");
    }
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
        rc = step_running(b, &why);
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

uint32_t spw_batch_give_up(struct spw_batch *b, uint32_t n_tries, int rc,
                           const struct spw_error *why)
{
    uint32_t n = 0;
    for (struct spw_batch_entry *x = NULL; (x = spw_batch_next(b, x));)
        if (x->n_failures >= n_tries) {
            x->why = *why;
            spw_batch_fail(b, x, rc);
            n++;
        }
    return n;
}

void spw_batch_set_prompt_chunks(struct spw_batch *b, uint32_t chunks)
{
    b->prompt_chunks = chunks;
}

void spw_batch_set_pass_tokens(struct spw_batch *b, uint64_t tokens)
{
    b->pass_tokens = tokens;
}

void spw_batch_times(const struct spw_batch *b, struct spw_batch_times *out)
{
    *out = b->times;
}
