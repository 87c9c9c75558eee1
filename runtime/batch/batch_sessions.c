/* Requests of a batch that start, and their sessions: see batch.c and shared_prompt.h.
 *
 *   waiting -> running without a session -> running with a session -> ended
 *
 *   waiting       until there is a place, a session and room for its tiles (starts_now)
 *   no session    until the next step, before which the request gets a session:
 *                   - the one that the caller brought, or
 *                   - that of a request which has ended in the same place (take_over_sessions), or
 *                     a kept one (batch_keep.c), or
 *                   - a fork of the donor's: a running request whose prompt begins alike. First
 *                     the donor computes what both share (open_sessions), or
 *                   - a fork of its parent's: an earlier sample or beam of the same group, after
 *                     the parent's first step (move_sessions in batch_step.c), or
 *                   - a new one (open_sessions).
 *                 If room is needed, a request loses its session again (spw_batch_make_room).
 *   ended         the session stays open until the next step, in which it is taken over or closed;
 *                 or longer, if it is kept. */
#include "runtime/batch/batch_parts.h"

/* ---- requests that start ---- */

bool spw_batch_any_waits(struct spw_batch *b)
{
    while (b->first_waiting <= b->n_submitted &&
           !spw_batch_waits(spw_batch_find(b, b->first_waiting)))
        b->first_waiting++;
    return b->first_waiting <= b->n_submitted;
}

/* The request runs from now on. If its given tokens complete the answer, it ends without a step,
 * unless these tokens are to be scored. */
static void start(struct spw_batch *b, struct spw_batch_entry *x, uint32_t place)
{
    enum spw_finish finish = spw_answer_finish(&x->answer);
    b->n_own_waiting -= x->answer.request.session != NULL;
    if (x->answer.text.n)
        spw_batch_note_events(b, x);
    if (finish != SPW_FINISH_NONE && !spw_answer_is_scored(&x->answer)) {
        spw_batch_end(b, x, finish);
        return;
    }
    x->session = x->answer.request.session;
    x->has_started = true;
    x->place = place;
    b->running[place] = x;
}

/* ---- what prompts share ---- */

bool spw_session_is_private(const struct spw_session *s)
{
    return s->n_tokens && (s->mixed || s->rope_table != SPW_ROPE_SHARED);
}

bool spw_batch_is_private(const struct spw_batch *b, const struct spw_batch_entry *x)
{
    const uint64_t table =
        spw_engine_rope_table(b->engine, x->answer.request.n_prompt + x->answer.request.n_given);
    bool wants_all = spw_answer_is_scored(&x->answer) && !x->knows_reuse;
    return wants_all || table != SPW_ROPE_SHARED ||
           (x->session && spw_session_is_private(x->session));
}

/* Whether the request takes no part in sharing between running requests. With a prefix cache none
 * does: they share their prompts through the cache, but not sources, which it gets at the end. */
static bool is_alone(const struct spw_batch *b, const struct spw_batch_entry *x)
{
    const bool has_source = spw_engine_config(b->engine)->n_source_layers;
    return (b->engine->above.prefix && !has_source) || spw_batch_is_private(b, x);
}

/* Fills in b->prompts[place], from which shared_prompt.h decides. */
static void describe_prompt(struct spw_batch *b, uint32_t place)
{
    const struct spw_batch_entry *x = b->running[place];
    const struct spw_session *s = x ? x->session : NULL;
    struct spw_prompt *p = &b->prompts[place];
    *p = (struct spw_prompt){.is_alone = true};
    if (!x || spw_batch_parent(b, x))
        return;
    *p = (struct spw_prompt){.tokens = x->answer.tokens,
                             .n_tokens = spw_batch_first_tokens(&x->answer.request) +
                                         (!s && !spw_batch_needs_prompt(x)),
                             .is_open = s,
                             .is_alone = is_alone(b, x)};
    if (s && s->cached)
        p->n_held = spw_min_u64(x->answer.n_tokens, s->n_tokens);
    if (s && s == x->answer.request.session) { /* which may hold other tokens */
        p->n_held = spw_common_prefix(p->tokens, x->answer.n_tokens, s->tokens, s->n_tokens);
        if (p->n_held < s->n_tokens && spw_plan_sharing(&b->engine->plan).needs_checkpoint)
            p->n_held =
                0; /* its first step cuts it back; before that nobody can be forked from it */
    }
}

/* The same for the prompt of a request that has ended. */
static struct spw_prompt describe_ended(const struct spw_ended_session *x)
{
    const struct spw_session *s = x->session;
    uint64_t n = spw_session_cached(s);
    return (struct spw_prompt){.tokens = s->tokens,
                               .n_tokens = spw_min_u64(x->n_prompt, n),
                               .n_held = n,
                               .is_open = true,
                               .is_alone = spw_session_is_private(s)};
}

/* ---- room ---- */

/* The session of the request that ended in this place; NULL: there is none. */
static struct spw_ended_session *ended_at(const struct spw_batch *b, uint32_t place)
{
    for (uint32_t i = 0; i < b->n_ended && !b->keeps_ended; i++)
        if (b->ended[i].is_free && b->ended[i].place == place)
            return &b->ended[i];
    return NULL;
}

uint64_t spw_batch_shared_tiles(struct spw_batch *b, uint32_t place)
{
    const struct spw_batch_entry *x = b->running[place];
    const struct spw_sharing by = spw_plan_sharing(&b->engine->plan);
    const struct spw_ended_session *ended = ended_at(b, place);
    uint32_t donor = 0;
    if (ended && ended->n_prompt) /* the request may take this session over, and shares no tile */
        return 0;
    if (spw_batch_parent(b, x))
        return by.needs_checkpoint ? 0 : x->answer.request.n_prompt / SPW_TILE_TOKENS;
    uint64_t shared = spw_shared_tiles(by, b->prompts, b->max_running, place, &donor);
    return shared && !b->running[donor]->answer.request.session ? shared : 0;
}

struct spw_batch_room spw_batch_count_room(struct spw_batch *b, bool all)
{
    struct spw_batch_room r = {.tiles = spw_engine_open_tiles(b->engine, !all)};
    for (uint32_t i = 0; i < b->max_running; i++)
        describe_prompt(b, i);
    for (uint32_t i = 0; i < b->max_running; i++) {
        const struct spw_batch_entry *x = b->running[i];
        r.n_free += !b->engine->sessions[i];
        if (!x || x->session)
            continue;
        r.n_free--;
        r.tiles += spw_waterline_tiles(spw_batch_most_tokens(&x->answer.request)) -
                   spw_batch_shared_tiles(b, i);
    }
    for (uint32_t i = 0; i < b->n_ended; i++)
        r.n_free += b->ended[i].is_free && !all;
    return r;
}

/* Whether all running requests, with those that have no session yet, have room. */
static bool fit_together(struct spw_batch *b)
{
    const struct spw_batch_room r = spw_batch_count_room(b, false);
    return r.n_free >= 0 && spw_share_fits(&b->engine->plan, r.tiles);
}

/* Requests that start together: one, or the beams of a search. */
static uint32_t n_together(const struct spw_batch_entry *x)
{
    return x->group.together ? x->group.n : 1;
}

/* Puts x, and the requests that start with it, into the next free places; or, with `out`, takes
 * them out again. False: there are too few places, and nothing has changed. */
static bool put_together(struct spw_batch *b, const struct spw_batch_entry *x, bool out)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->max_running && n < n_together(x); i++) {
        struct spw_batch_entry *y = spw_batch_find(b, x->id + n);
        if (b->running[i] != (out ? y : NULL))
            continue;
        b->running[i] = out ? NULL : y;
        y->has_started = !out; /* beams share the prompt of the first one */
        n++;
    }
    if (n < n_together(x) && !out)
        put_together(b, x, true);
    return n == n_together(x);
}

static bool has_places(struct spw_batch *b, const struct spw_batch_entry *x)
{
    const bool has = put_together(b, x, false);
    if (has)
        put_together(b, x, true);
    return has;
}

/* Whether there is room for a request in this place, the first free one. If there is room only
 * without the session that ended in this place, the request will not take that session over. A
 * request that was refused is tried again after another session has closed: only then can the
 * answer change. */
static bool has_room(struct spw_batch *b, struct spw_batch_entry *x, uint32_t place)
{
    if (b->refused == x->id && b->refused_at == b->engine->sharing.n_departures)
        return false;
    struct spw_ended_session *ended = ended_at(b, place);
    const uint64_t n_prompt = ended ? ended->n_prompt : 0;
    put_together(b, x, false);
    bool has = fit_together(b);
    if (!has && n_prompt) {
        ended->n_prompt = 0;
        has = fit_together(b);
        ended->n_prompt = has ? 0 : n_prompt;
    }
    put_together(b, x, true);
    b->refused = has ? 0 : x->id;
    b->refused_at = b->engine->sharing.n_departures;
    return has;
}

/* Whether the request starts now. It needs a place, a session and room for its tiles. If only a
 * session or room is missing, it waits as long as another session will be closed. If none will, the
 * request starts all the same, and open_session fails with a reason. */
static bool starts_now(struct spw_batch *b, struct spw_batch_entry *x, uint32_t place)
{
    bool others_end = false;
    for (const struct spw_batch_entry *y = NULL; (y = spw_batch_next(b, y));)
        others_end |= !y->answer.request.session;
    for (uint32_t i = 0; i < b->n_ended; i++)
        others_end |= !b->ended[i].is_free; /* it is open until the next step */
    return has_places(b, x) && (has_room(b, x, place) || !others_end);
}

static void start_together(struct spw_batch *b, const struct spw_batch_entry *x)
{
    uint32_t place = 0;
    for (uint32_t k = 0; k < n_together(x); k++) {
        while (b->running[place])
            place++;
        start(b, spw_batch_find(b, x->id + k), place);
    }
}

/* Starts waiting requests in the order of their numbers. After the first one that must wait, only
 * requests that bring their session start. */
static void start_waiting(struct spw_batch *b)
{
    bool others_wait = false;
    uint32_t place = 0;
    spw_batch_any_waits(b);
    for (uint64_t id = b->first_waiting; id <= b->n_submitted; id++) {
        struct spw_batch_entry *x = spw_batch_find(b, id);
        while (place < b->max_running && b->running[place])
            place++;
        if (place == b->max_running || (others_wait && !b->n_own_waiting))
            return;
        if (!spw_batch_waits(x))
            continue;
        if (x->answer.request.session || (!others_wait && starts_now(b, x, place)))
            start_together(b, x);
        else
            others_wait = true;
    }
}

void spw_batch_make_room(struct spw_batch *b)
{
    spw_batch_close_ended(b);
    for (uint32_t i = b->max_running; i-- > 0;) {
        struct spw_batch_entry *x = b->running[i];
        if (spw_share_fits(&b->engine->plan, spw_batch_count_room(b, false).tiles))
            return;
        if (!x || !x->session || !x->session->of_batch || spw_batch_copy_logits(b))
            continue;
        spw_session_close(x->session);
        x->session = NULL;
    }
}

/* ---- sessions of requests that have ended ---- */

/* The request in this place gets the session that ended there, cut back to n tokens. */
static void take_over(struct spw_batch *b, uint32_t place, uint64_t n)
{
    struct spw_batch_entry *x = b->running[place];
    struct spw_ended_session *from = ended_at(b, place);
    if (spw_session_take_over(from->session, n, spw_batch_most_tokens(&x->answer.request)))
        return; /* the session is closed, and the request gets a new one */
    x->session = from->session;
    *from = b->ended[--b->n_ended];
}

/* Requests that start take over the sessions that ended in their places. If the running requests
 * have no room together, none of them does: then sessions are opened one by one, and the one
 * without room is refused with a reason. */
static void take_over_sessions(struct spw_batch *b)
{
    if (!b->n_ended || !spw_share_fits(&b->engine->plan, spw_batch_count_room(b, false).tiles))
        return;
    for (uint32_t i = 0; i < b->max_running; i++) {
        const struct spw_ended_session *ended = ended_at(b, i);
        describe_prompt(b, i);
        b->ended_prompts[i] = ended ? describe_ended(ended) : (struct spw_prompt){.is_alone = true};
    }
    spw_take_over_prompts(spw_plan_sharing(&b->engine->plan), b->prompts, b->ended_prompts,
                          b->max_running);
    for (uint32_t i = 0; i < b->max_running; i++)
        if (b->running[i] && !b->running[i]->session && b->prompts[i].is_open)
            take_over(b, i, b->prompts[i].n_held);
}

/* ---- sessions of requests that start ---- */

/* Adds or lengthens the span in which the donor computes what others will share. If that is the
 * donor's whole prompt, the span has its logits, too, and the donor computes nothing in the step
 * that follows. */
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
    b->spans[i].n_tokens =
        spw_shared_span_end(spw_plan_sharing(&b->engine->plan), b->spans[i].n_tokens, shared);
    b->spans[i].n_logits =
        b->spans[i].n_tokens == x->answer.n_tokens && x->answer.request.max_new_tokens > 0;
    x->session->is_last_step = true; /* nothing is fetched for a next token; see make_spans */
}

/* Whether the batch has another session that will be closed, so that x can wait for its room. The
 * sessions of other beams of x's search do not count. */
static bool any_session(const struct spw_batch *b, const struct spw_batch_entry *x)
{
    bool any = false;
    for (struct spw_batch_entry *y = NULL; (y = spw_batch_next(b, y));)
        any |= y->session && y->session->of_batch &&
               !(x->group.together && x->group.first == y->group.first);
    return any || b->n_ended;
}

/* Opens the session of a running request, if its donor has the tokens that both share, or if it has
 * no donor. Else adds the span in which the donor computes them, and returns false: the request is
 * tried again after this span. True: it has a session, has failed, or waits for room. */
static bool open_session(struct spw_batch *b, uint32_t place, uint32_t *n)
{
    struct spw_batch_entry *x = b->running[place];
    uint32_t donor = 0;
    uint64_t shared = spw_shared_prompt(spw_plan_sharing(&b->engine->plan), b->prompts,
                                        b->max_running, place, &donor);
    if (shared && (!b->prompts[donor].is_open || b->prompts[donor].n_held < shared)) {
        if (b->prompts[donor].is_open)
            add_shared_span(b, donor, shared, n);
        return false;
    }
    uint64_t most = spw_batch_most_tokens(&x->answer.request);
    int rc = shared ? spw_session_fork_for(&x->session, b->running[donor]->session, shared, most,
                                           &x->why)
                    : spw_session_open_for(&x->session, b->engine, most, &x->why);
    if (rc == -ENOMEM && any_session(b, x))
        spw_error_clear(&x->why); /* it gets one when another request has ended */
    else if (rc)
        spw_batch_fail(b, x, rc);
    else
        x->session->of_batch = true;
    return true;
}

bool spw_batch_needs_session(const struct spw_batch *b, uint32_t place)
{
    const struct spw_batch_entry *x = b->running[place];
    return x && !x->session && !spw_batch_parent(b, x);
}

/* Gives each running request a session. Tokens that requests share are computed once. */
static int open_sessions(struct spw_batch *b, struct spw_error *err)
{
    bool more = false;
    for (uint32_t i = 0; i < b->max_running; i++)
        more |= spw_batch_needs_session(b, i);
    while (more) {
        uint32_t n = 0;
        more = false;
        for (uint32_t i = 0; i < b->max_running; i++)
            describe_prompt(b, i);
        for (uint32_t i = 0; i < b->max_running; i++) {
            if (!spw_batch_needs_session(b, i))
                continue;
            more |= !open_session(b, i, &n);
            describe_prompt(b, i);
        }
        if (n)
            SPW_TRY(spw_batch_compute(b, n, true, err));
        for (uint32_t i = 0; i < n; i++)
            if (!spw_batch_has_passed(&b->spans[i]))
                return -EAGAIN; /* others get a token before the next pass */
        if (n) /* the requests that decode have waited: the step of prompts gives way at once */
            b->most_chunks = spw_min_u32(b->most_chunks, 1);
    }
    return 0;
}

/* Whether a step of running requests is paused. */
static bool step_waits(const struct spw_batch *b)
{
    bool any = false;
    for (struct spw_batch_entry *x = NULL; (x = spw_batch_next(b, x));)
        any |= x->session && x->session->is_paused;
    return any;
}

int spw_batch_start(struct spw_batch *b, struct spw_error *err)
{
    int rc;
    do { /* again where all have failed */
        if (!step_waits(b)) {
            start_waiting(b);
            if (b->keeps_ended)
                spw_batch_reuse_kept(b);
            else
                take_over_sessions(b);
        }
        if (b->keeps_ended)
            spw_batch_evict_kept(b);
        else
            spw_batch_close_ended(b);
        rc = open_sessions(b, err);
    } while (!rc && !spw_batch_next(b, NULL) && spw_batch_any_waits(b) && !b->n_ended);
    return rc;
}
