/* A twin of an engine: the same plan, caches, rings and sessions on the counting device, driven
 * through the same calls. What the twin counts must be what the engine counts, as integers. */
#ifndef SPW_TESTS_ENGINE_TWIN_H
#define SPW_TESTS_ENGINE_TWIN_H

#include "runtime/persist/prefix.h"
#include "tests/engine/engine_run.h"

enum { TWIN_SESSIONS = 16 };

struct twin {
    struct spw_engine *e;
    struct spw_counting_backend backend;
    struct spw_session *sessions[TWIN_SESSIONS]; /* by the slots of the engine's */
};

/* The engine has done nothing yet but opened n sessions of the whole context. */
static inline void twin_open(struct twin *t, const struct spw_engine *of, uint32_t n)
{
    static const struct spw_dry_hooks nobody;
    struct spw_error err = {0};
    *t = (struct twin){0};
    spw_backend_count(&t->backend, &of->backend, &of->lane);
    CHECK_MSG(!spw_engine_open_dry(&t->e, of, &t->backend, &spw_prefix_hooks, &nobody, &err), "%s",
              err.text);
    for (uint32_t i = 0; i < n; i++)
        t->sessions[i] = run_session(t->e);
}

static inline void twin_close(struct twin *t)
{
    for (uint32_t i = 0; i < TWIN_SESSIONS; i++)
        spw_session_close(t->sessions[i]);
    spw_engine_close(t->e);
    t->e = NULL;
}

static inline void twin_fork(struct twin *t, uint32_t to, uint32_t from)
{
    struct spw_error err = {0};
    spw_session_close(t->sessions[to]);
    CHECK_MSG(!spw_session_fork(&t->sessions[to], t->sessions[from], &err), "%s", err.text);
}

/* A sync of the engine that has worked. False: the two have fetched different parts of the step
 * that may come next. The engine fetches nothing that a write is still on its way to, and no write
 * takes time where bytes are only counted: from here on the twin knows nothing. */
static inline bool twin_sync(struct twin *t, const struct spw_engine *e,
                             const struct spw_span *spans, size_t n)
{
    struct spw_span own[TWIN_SESSIONS];
    struct spw_error err = {0};
    for (size_t i = 0; i < n; i++) {
        own[i] = spans[i];
        own[i].session = t->sessions[spans[i].session->slot];
    }
    CHECK_MSG(!n || !spw_sync(t->e, own, n, NULL, NULL, &err), "%s", err.text);
    const struct spw_schedule_progress a = spw_prefetch_progress(e->prefetch);
    const struct spw_schedule_progress b = spw_prefetch_progress(t->e->prefetch);
    return !memcmp(&a, &b, sizeof a);
}

/* Which experts are missed depends on the routing, of which the twin knows nothing. */
static inline void twin_check(struct twin *t, struct spw_engine *e, const char *what)
{
    struct spw_stats s, own;
    bool least = e->plan.n_expert_frames;
    spw_engine_stats(e, &s);
    spw_engine_stats(t->e, &own);
    for (int i = 0; i < SPW_MOVED_COUNT; i++)
        CHECK_MSG(s.moved_bytes[i] == own.moved_bytes[i] ||
                      (least && s.moved_bytes[i] > own.moved_bytes[i]),
                  "%s: link %d: counted %llu, the twin %llu", what, i,
                  (unsigned long long)s.moved_bytes[i], (unsigned long long)own.moved_bytes[i]);
}

#endif
