/* Sessions of ended requests that are kept: a cache of prefixes for later requests
 * (spw_batch_keep_ended).
 *
 * Kept sessions make no request wait: waiting requests are admitted as if all kept sessions were
 * closed. A request that starts gets the kept session with the most of its tokens:
 *
 *   a fork   if there is room for both, and the session has more than these tokens
 *   itself   else, cut back to these tokens
 *
 * Then kept sessions are closed until all have room, the least useful first. */
#include "runtime/batch/batch_parts.h"

#include <string.h>

void spw_batch_keep_ended(struct spw_batch *b)
{
    b->keeps_ended = true;
}

uint32_t spw_batch_n_kept(const struct spw_batch *b, uint64_t *n_tokens)
{
    uint32_t n = 0;
    *n_tokens = 0;
    for (uint32_t i = 0; i < b->n_ended; i++) {
        n += b->ended[i].is_free;
        *n_tokens += b->ended[i].is_free ? b->ended[i].session->n_tokens : 0;
    }
    return n;
}

void spw_batch_keep_session(struct spw_batch *b, struct spw_ended_session *x)
{
    struct spw_session *s = x->session;
    if (x->was_canceled)
        spw_session_publish(s, NULL); /* a request that ends well has done this */
    s->most_tokens = spw_max_u64(s->n_tokens, 1);
    b->engine->sharing.is_old = true;
}

static void remove_ended(struct spw_batch *b, uint32_t i)
{
    memmove(b->ended + i, b->ended + i + 1, (--b->n_ended - i) * sizeof *b->ended);
}

static void close_at(struct spw_batch *b, uint32_t i)
{
    spw_session_close(b->ended[i].session);
    remove_ended(b, i);
}

/* ---- which kept session a request gets ---- */

/* Whether a later request can begin with tokens of the session. */
static bool is_useful(const struct spw_ended_session *x)
{
    return x->n_prompt && spw_session_cached(x->session) && !spw_session_is_private(x->session);
}

/* How many first tokens of the request the kept session has, after it was cut back to them. */
static uint64_t count_common(const struct spw_batch *b, const struct spw_ended_session *x,
                             const struct spw_batch_entry *to)
{
    const struct spw_session *s = x->session;
    if (!x->is_free || !is_useful(x))
        return 0;
    const uint64_t first = spw_batch_first_tokens(&to->answer.request);
    const uint64_t n =
        spw_min_u64(first - 1, spw_common_prefix(s->tokens, s->n_tokens, to->answer.tokens, first));
    return n == s->n_tokens ? n : spw_kv_reach(s->seq.kv, b->engine->plan.residency, n);
}

/* The kept session with the most tokens of the request; of equals, the shortest one. NULL: none has
 * enough of them. */
static struct spw_ended_session *find_kept(struct spw_batch *b, const struct spw_batch_entry *x,
                                           uint64_t *n)
{
    struct spw_ended_session *best = NULL;
    *n = 0;
    for (uint32_t i = 0; i < b->n_ended; i++) {
        struct spw_ended_session *y = &b->ended[i];
        const uint64_t common = count_common(b, y, x);
        const bool is_worth = common >= SPW_TILE_TOKENS || 2 * common >= y->session->n_tokens;
        if (!common || !is_worth || common < *n ||
            (common == *n && best && y->session->n_tokens >= best->session->n_tokens))
            continue;
        best = y;
        *n = common;
    }
    return best;
}

/* ---- how the request gets it ---- */

/* Gives the request a fork of the kept session, with its first n tokens. False: there is no room,
 * or the whole session is wanted. */
static bool fork_kept(struct spw_batch *b, struct spw_batch_entry *x, struct spw_session *from,
                      uint64_t n)
{
    const struct spw_batch_room r = spw_batch_count_room(b, true);
    if (spw_plan_sharing(&b->engine->plan).needs_checkpoint || n == from->n_tokens ||
        r.n_free < 0 || !spw_share_fits(&b->engine->plan, r.tiles))
        return false;
    int rc = spw_session_fork_for(&x->session, from, n, spw_batch_most_tokens(&x->answer.request),
                                  &x->why);
    spw_error_clear(&x->why);
    if (rc)
        return false;
    x->session->of_batch = true;
    return true;
}

/* Gives the running request in this place a fork of a kept session, or a kept session itself, if
 * that has more of its tokens than a running request. */
static void reuse_kept(struct spw_batch *b, uint32_t place)
{
    uint64_t n;
    struct spw_batch_entry *x = b->running[place];
    struct spw_ended_session *kept = find_kept(b, x, &n);
    const uint64_t shared = spw_batch_shared_tiles(b, place) * SPW_TILE_TOKENS;
    if (!kept || n <= shared || fork_kept(b, x, kept->session, n))
        return;
    struct spw_session *s = kept->session;
    const uint64_t whole = spw_batch_count_room(b, false).tiles + shared / SPW_TILE_TOKENS;
    if (!spw_share_fits(&b->engine->plan, whole))
        return; /* the request gets a new session */
    if (!spw_session_take_over(s, n, spw_batch_most_tokens(&x->answer.request)))
        x->session = s;
    else
        spw_session_close(s);
    remove_ended(b, (uint32_t)(kept - b->ended));
}

void spw_batch_reuse_kept(struct spw_batch *b)
{
    for (uint32_t i = 0; i < b->max_running && b->n_ended; i++)
        if (spw_batch_needs_session(b, i) && !spw_batch_is_private(b, b->running[i]))
            reuse_kept(b, i);
}

/* ---- which kept session is closed ---- */

/* Whether another session has all tokens of this one. */
static bool is_double(const struct spw_batch *b, const struct spw_session *s)
{
    for (struct spw_session *t = NULL; (t = spw_engine_next(b->engine, t));)
        if (t != s && t->cached && t->n_tokens >= s->n_tokens &&
            spw_common_prefix(s->tokens, s->n_tokens, t->tokens, t->n_tokens) == s->n_tokens)
            return true;
    return false;
}

/* The kept session to close next: one whose tokens another session has, else the oldest. n_ended:
 * none may be closed. */
static uint32_t find_victim(const struct spw_batch *b)
{
    uint32_t oldest = b->n_ended;
    for (uint32_t i = b->n_ended; i-- > 0;)
        if (b->ended[i].is_free)
            oldest = i;
    for (uint32_t i = oldest; i < b->n_ended; i++)
        if (b->ended[i].is_free && is_double(b, b->ended[i].session))
            return i;
    return oldest;
}

void spw_batch_evict_kept(struct spw_batch *b)
{
    for (uint32_t i = b->n_ended; i-- > 0;)
        if (b->ended[i].is_free && !is_useful(&b->ended[i]))
            close_at(b, i);
    while (b->n_ended) {
        const struct spw_batch_room r = spw_batch_count_room(b, true);
        const uint32_t victim = find_victim(b);
        if (victim == b->n_ended || (r.n_free >= 0 && spw_share_fits(&b->engine->plan, r.tiles)))
            return;
        close_at(b, victim);
    }
}
