/* The byte account beside an engine, by somebody who does not see it: told the plan, how far each
 * session was cut back, and what was computed, it says what the engine's counters must be. */
#ifndef SPW_TESTS_ENGINE_TOLD_RUN_H
#define SPW_TESTS_ENGINE_TOLD_RUN_H

#include "runtime/plan/traffic_tiles.h"
#include "tests/engine/engine_run.h"

enum { TOLD_MOST = 16 };

struct told {
    struct spw_plan plan; /* a copy */
    struct spw_traffic_run *run;
    const struct spw_engine *engine;       /* asked how far its rings were, and nothing else */
    struct spw_step_span spans[TOLD_MOST]; /* of the step that is being told */
    uint32_t n,
        n_called; /* spans of the step; of the call, with those that had nothing to compute */
    uint64_t n_dropped;
    bool
        expects; /* a token more of each span of the latest step: transfers for it may have begun */
};

static inline void told_open(struct told *t, const struct spw_engine *e)
{
    *t = (struct told){.plan = e->plan, .engine = e};
    CHECK(spw_traffic_run_open(&t->run, &t->plan, e->model.weights, true, NULL, NULL) == 0);
    spw_traffic_add(t->run, SPW_MOVED_HOST_TO_DEVICE,
                    spw_traffic_open_bytes(&t->plan, e->model.weights));
}

static inline void told_close(struct told *t)
{
    spw_traffic_run_close(t->run);
}

/* What was fetched for a step was given up. */
static inline void told_dropped(struct told *t)
{
    struct spw_schedule_progress last;
    uint64_t n = spw_prefetch_dropped(t->engine->prefetch, &last);
    CHECK(n - t->n_dropped <= 1);
    if (n != t->n_dropped) {
        spw_traffic_give_up(t->run, &last);
        t->expects = false;
    }
    t->n_dropped = n;
}

static inline void told_fork(struct told *t, uint32_t to, uint32_t from)
{
    told_dropped(t);
    spw_tiles_clear(spw_traffic_tiles(t->run), to);
    spw_tiles_fork(spw_traffic_tiles(t->run), to, from);
}

/* Of one span of a sync, after it: it held so many tokens, of which so many were reused. */
static inline void told_span(struct told *t, uint32_t session, uint64_t held, uint64_t reused,
                             uint64_t n_tokens, uint64_t n_logits)
{
    told_dropped(t);
    t->n_called++;
    if (held != reused)
        spw_traffic_cut_back(t->run, session, reused);
    if (reused < n_tokens)
        t->spans[t->n++] = (struct spw_step_span){session, reused, n_tokens, n_logits};
}

static inline void told_step(struct told *t)
{
    if (t->n)
        spw_traffic_step(t->run, t->spans, t->n);
    /* The next step is expected to have all spans of the call. */
    for (uint32_t i = 0; i < t->n; i++)
        t->expects = (i ? t->expects : t->n == t->n_called) && t->spans[i].n_logits &&
                     t->spans[i].to < t->plan.info.context;
    t->n = t->n_called = 0;
}

static inline void told_check(struct told *t, struct spw_engine *e, const char *what)
{
    struct spw_schedule_progress ahead = spw_prefetch_progress(e->prefetch);
    struct spw_traffic moved;
    struct spw_stats s;
    spw_engine_stats(e, &s);
    told_dropped(t);
    CHECK(s.has_prediction);
    spw_traffic_run_moved(t->run, t->expects ? &ahead : NULL, &moved);
    /* Which experts are missed depends on the routing, of which this account is not told. */
    bool least = t->plan.n_expert_frames;
    for (int i = 0; i < SPW_MOVED_COUNT; i++)
        CHECK_MSG(s.moved_bytes[i] == moved.bytes[i] ||
                      (least && s.moved_bytes[i] > moved.bytes[i]),
                  "%s: link %d: counted %llu, foretold %llu", what, i,
                  (unsigned long long)s.moved_bytes[i], (unsigned long long)moved.bytes[i]);
}

#endif
