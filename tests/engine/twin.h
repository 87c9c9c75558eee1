/* A twin of an engine: the same plan, caches, rings and sessions on the dry device, driven
 * through the same calls. What the twin counts must be what the engine counts, as integers. */
#ifndef SPW_TESTS_ENGINE_TWIN_H
#define SPW_TESTS_ENGINE_TWIN_H

#include "runtime/persist/prefix.h"
#include "tests/engine/engine_run.h"

enum { TWIN_SESSIONS = 16 };

struct twin {
    struct spw_engine *e;
    struct spw_dry_backend backend;
    struct spw_session *sessions[TWIN_SESSIONS]; /* by the slots of the engine's */
};

/* The engine has done nothing yet, and has no session. */
static inline void twin_open(struct twin *t, const struct spw_engine *of)
{
    static const struct spw_dry_hooks nobody;
    struct spw_error err = {0};
    *t = (struct twin){0};
    spw_backend_dry(&t->backend, &of->backend, &of->lane);
    CHECK_MSG(!spw_engine_open_dry(&t->e, of, &t->backend, &spw_prefix_hooks, &nobody, &err), "%s",
              err.text);
}

/* As the engine's session in this slot, of at most so many tokens. */
static inline void twin_open_session(struct twin *t, uint32_t slot, uint64_t most)
{
    struct spw_error err = {0};
    CHECK_MSG(!spw_session_open_for(&t->sessions[slot], t->e, most, &err), "%s", err.text);
}

static inline void twin_close_session(struct twin *t, uint32_t slot)
{
    spw_session_close(t->sessions[slot]);
    t->sessions[slot] = NULL;
}

static inline void twin_close(struct twin *t)
{
    for (uint32_t i = 0; i < TWIN_SESSIONS; i++)
        twin_close_session(t, i);
    spw_engine_close(t->e);
    t->e = NULL;
}

/* made: what the engine's fork has opened, NULL: it was refused for want of room, which may have
 * dropped a step that was paused all the same. */
static inline void twin_fork(struct twin *t, const struct spw_session *made, uint32_t from)
{
    struct spw_error err = {0};
    struct spw_session *own = NULL;
    const int rc = spw_session_fork(&own, t->sessions[from], &err);
    CHECK_MSG(rc == (made ? 0 : -ENOMEM), "the twin's fork: %d: %s", rc, err.text);
    if (made)
        t->sessions[made->slot] = own;
}

/* False: the two have fetched different parts of the step that may come next. The engine fetches
 * nothing that a write is still on its way to, and no write takes time where bytes are only
 * counted: from here on the twin knows nothing. */
static inline bool twin_is_level(const struct twin *t, const struct spw_engine *e)
{
    const struct spw_schedule_progress a = spw_prefetch_progress(e->prefetch);
    const struct spw_schedule_progress b = spw_prefetch_progress(t->e->prefetch);
    return !memcmp(&a, &b, sizeof a);
}

/* A sync of the engine that has returned `rc`: 0, or -EAGAIN. False: as twin_is_level. */
static inline bool twin_sync(struct twin *t, const struct spw_engine *e,
                             const struct spw_span *spans, size_t n,
                             const struct spw_sync_options *o, int rc)
{
    struct spw_span own[TWIN_SESSIONS];
    struct spw_error err = {0};
    for (size_t i = 0; i < n; i++) {
        own[i] = spans[i];
        own[i].session = t->sessions[spans[i].session->slot];
    }
    const int own_rc = n ? spw_engine_sync(t->e, own, n, o, NULL, NULL, &err) : rc;
    CHECK_MSG(own_rc == rc, "the engine %d, the twin %d: %s", rc, own_rc, err.text);
    return twin_is_level(t, e);
}

/* Which experts are missed depends on the routing, of which the twin knows nothing: the engine has
 * counted what they move. */
static inline void twin_check(struct twin *t, struct spw_engine *e, const char *what)
{
    struct spw_stats s, own;
    spw_engine_stats(e, &s);
    spw_engine_stats(t->e, &own);
    for (int i = 0; i < SPW_MOVED_COUNT; i++)
        CHECK_MSG(s.moved_bytes[i] == own.moved_bytes[i] + e->executor->missed[i],
                  "%s: link %d: counted %llu, the twin %llu, experts %llu", what, i,
                  (unsigned long long)s.moved_bytes[i], (unsigned long long)own.moved_bytes[i],
                  (unsigned long long)e->executor->missed[i]);
}

/* ---- a twin that follows for as long as it knows what the engine does ---- */

/* A sync that has returned rc; after a failure nobody knows. */
static inline void twin_follow(struct twin *t, const struct spw_engine *e,
                               const struct spw_span *spans, size_t n, int rc)
{
    if (t->e && (rc || !twin_sync(t, e, spans, n, &(struct spw_sync_options){0}, 0)))
        twin_close(t);
}

/* Returns whether the twin has followed to the end. Tiles that were lost, or not written, were read
 * and computed again. */
static inline bool twin_end(struct twin *t, struct spw_engine *e, const char *what)
{
    const bool knows = t->e && !e->events.n_lost_tiles && !spw_kv_any_write_failed(e->kv);
    if (knows)
        twin_check(t, e, what);
    if (t->e)
        twin_close(t);
    return knows;
}

#endif
