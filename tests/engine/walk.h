/* A walk of test_engine: an engine with its sessions, what each of them was last asked for, and the
 * steps that all operations are made of. A step compares every row of logits with the oracle. */
#ifndef SPW_TESTS_ENGINE_WALK_H
#define SPW_TESTS_ENGINE_WALK_H

#include "runtime/experts/counts.h"
#include "tests/engine/io_fault.h"
#include "tests/engine/oracle.h"
#include "tests/engine/twin.h"
#include "tests/engine/walk_tried.h"

enum { N_SESSIONS = 3, MIB = 1 << 20 };

struct walk {
    struct subject *s;
    enum aim aim;
    struct spw_backend backend;
    struct spw_options o;
    struct io_fault fault;
    size_t context;
    uint32_t n_sessions;
    struct spw_engine *e;
    struct spw_session *sessions[N_SESSIONS];
    struct spw_session *guest; /* takes frames of the others while it is open; NULL: it is not */
    int32_t *ids[N_SESSIONS];  /* [s->n_tokens], what each session was last asked for */
    char cache[160], file[N_SESSIONS][160];
    int32_t *saved_ids[N_SESSIONS]; /* [s->n_tokens], of each file */
    size_t saved[N_SESSIONS];       /* tokens in each file; 0: it is not there */
    struct twin twin;
    bool has_twin;     /* which did all that the engine did */
    bool faulty;       /* something was lost: notes are due, and there may be no prediction */
    bool spoiled;      /* files were: how far they were read is not predicted */
    bool late_fault;   /* a request has failed, which a step may hear of yet */
    int64_t alloc_nth; /* of the next step: this allocation fails; below 0: none */
    int64_t left;      /* times the engine asks until the step is interrupted; below 0: never */
    bool ended;        /* it was */
    size_t n_rows[N_SESSIONS]; /* of logits that the latest step wanted */
    bool wants_same;           /* the next one wants the same */
    uint64_t most_chunks;      /* of the next step, see spw_sync_options */
    struct watch watch;
    uint64_t *seed;
    char what[500]; /* the draw, and a letter for each operation so far */
};

static uint64_t draw_one(struct walk *w, uint64_t n)
{
    return check_random(w->seed) % n;
}

static bool interrupted(void *context)
{
    struct walk *w = context;
    CHECK(!w->ended); /* once is enough */
    return w->ended = w->left >= 0 && w->left-- == 0;
}

static void hear(struct walk *w)
{
    struct spw_engine_event event;
    while (spw_engine_event(w->e, &event))
        if (event.kind == SPW_ENGINE_NOTE) {
            tried[NOTES].n++;
            CHECK_MSG(w->faulty || w->o.prefix_cache_bytes < MIB, "%s: %s", w->what, event.text);
        }
}

/* From here on the engine does what its twin does not. */
static void part_twin(struct walk *w)
{
    if (!w->has_twin)
        return;
    twin_check(&w->twin, w->e, w->what);
    twin_close(&w->twin);
    w->has_twin = false;
    tried[TWINS].n++;
}

/* As if earlier runs had chosen some experts more often than others. */
static void draw_counts(struct walk *w)
{
    static struct spw_expert_counts counts;
    counts.n_experts = w->s->plan.info.n_experts;
    counts.largest = (double)check_range(w->seed, 1, 1000);
    for (uint32_t e = 0; e < counts.n_experts; e++)
        snprintf(&counts.codes[2 * e], 3, "%02x", (unsigned)draw_one(w, 256));
    w->o.expert_counts = counts.n_experts && draw_one(w, 4) ? &counts : NULL;
    tried[EXPERTS_COUNTED].n += w->o.expert_counts != NULL;
}

static void open_engine(struct walk *w)
{
    draw_counts(w);
    w->e = run_open_on(&w->backend, w->s->dir, &w->o);
    w->e->look.is_time = interrupted;
    w->e->look.context = w;
    for (uint32_t i = 0; i < w->n_sessions; i++)
        w->sessions[i] = run_session(w->e);
    w->has_twin = !w->o.prefix_cache_dir;
    if (w->has_twin)
        twin_open(&w->twin, w->e, w->n_sessions);
}

static void check_engine(struct walk *w)
{
    struct spw_stats s;
    struct spw_prefix_stats p;
    spw_engine_stats(w->e, &s);
    const uint64_t n_incidents = s.n_lost_tiles;
    hear(w);
    spw_engine_prefix(w->e, &p);
    CHECK_MSG(!w->watch.n_wrong, "%s: %llu of %llu rows differ", w->what,
              (unsigned long long)w->watch.n_wrong, (unsigned long long)w->watch.n_rows);
    run_check_peaks(w->e, &w->o, w->what);
    CHECK_MSG(s.disk_peak_bytes <= w->o.disk_bytes, "%s: disk peak", w->what);
    CHECK_MSG(w->faulty || !n_incidents, "%s: %llu losses", w->what,
              (unsigned long long)n_incidents);
    tried[INCIDENTS].n += n_incidents;
    count_plan(&w->e->plan, &s);
    count_found(&w->e->plan, &s, p.n_reused);
}

static void close_guest(struct walk *w)
{
    spw_session_close(w->guest);
    w->guest = NULL;
}

static void close_engine(struct walk *w)
{
    part_twin(w);
    check_engine(w);
    for (uint32_t i = 0; i < w->n_sessions; i++)
        spw_session_close(w->sessions[i]);
    close_guest(w);
    spw_engine_close(w->e);
}

/* ---- steps ---- */

/* Old tiles below the device: what the session's next token reads through slots. */
static void count_old(const struct walk *w, const struct spw_session *s)
{
    const struct spw_model_config *c = spw_engine_config(w->e);
    for (uint32_t l = 0; l < c->n_slices && w->e->plan.quantizes; l++)
        for (uint32_t t = spw_kv_first(s->seq.kv, l); t < spw_kv_begin(s->seq.kv, l); t++) {
            bool old = c->slice_kinds[l] == SPW_LAYER_FULL;
            tried[OLD_FROM_HOST].n += old && spw_kv_host_tile(s->seq.kv, l, t);
            tried[OLD_FROM_DISK].n += old && spw_kv_disk_frame(s->seq.kv, l, t) != SPW_DISK_NONE;
        }
}

/* Sessions whose lengths need different tables of rope have steps of their own, one after the
 * other. */
static bool has_tables(const struct walk *w, const struct spw_span *spans, size_t n)
{
    const struct spw_model_config *c = spw_engine_config(w->e);
    const struct spw_rope_config *r = &c->rope[SPW_LAYER_FULL];
    bool other = false;
    for (size_t i = 1; i < n; i++)
        other |= spw_rope_table(r, c->max_positions, spans[i].n_tokens) !=
                 spw_rope_table(r, c->max_positions, spans[0].n_tokens);
    return other;
}

/* What an interrupted step has left. may_wait: the session's own step may not have begun. */
static void check_interrupted(const struct walk *w, const struct spw_span *span, size_t held,
                              bool may_wait)
{
    size_t now = spw_session_n_tokens(span->session), kept = spw_session_reused(span->session);
    if (may_wait && now == held)
        return;
    CHECK_MSG(now <= span->n_tokens, "%s: %zu of %zu tokens", w->what, now, span->n_tokens);
    if (spw_engine_plan(w->e)->rolls_back && span->n_tokens > kept + 1 && !w->faulty)
        CHECK_MSG(now >= kept, "%s: %zu of %zu tokens", w->what, now, kept);
    tried[INTERRUPTED_DECODE].n += span->n_tokens == held + 1;
    tried[INTERRUPTED_FURTHER].n += now > held;
    tried[EMPTIED].n += held && !now;
}

/* Sessions go to to[i] tokens of their sequences, where that is not 0. */
static int step(struct walk *w, const size_t *to, struct spw_error *err)
{
    struct spw_span spans[N_SESSIONS];
    uint32_t index[N_SESSIONS];
    size_t n = 0, held[N_SESSIONS];
    for (uint32_t i = 0; i < w->n_sessions; i++) {
        if (!to[i])
            continue;
        size_t rows = draw_one(w, 5) ? 1 : draw_between(w->seed, 0, to[i] < 40 ? to[i] : 40);
        w->n_rows[i] = rows = w->wants_same ? w->n_rows[i] : rows;
        index[n] = i;
        held[n] = spw_session_n_tokens(w->sessions[i]);
        w->watch.rows[n] = oracle_rows(w->s, w->ids[i], to[i], w->s->n_tokens);
        spans[n] = (struct spw_span){w->sessions[i], w->ids[i], to[i], rows};
        if (to[i] == held[n] + 1)
            count_old(w, w->sessions[i]);
        n++;
    }
    uint64_t rows = w->watch.n_rows;
    w->ended = false;
    spw_alloc_fail_nth(w->alloc_nth);
    const struct spw_sync_options o = {.most_chunks = w->most_chunks};
    int rc = n ? spw_engine_sync(w->e, spans, n, &o, watch_logits, &w->watch, err) : 0;
    spw_alloc_fail_nth(w->alloc_nth = -1);
    hear(w);
    if (w->ended) {
        CHECK_MSG(rc == -ECANCELED && strstr(err->text, "interrupted"), "%s: %d", w->what, rc);
        for (size_t i = 0; i < n; i++)
            check_interrupted(w, &spans[i], held[i], has_tables(w, spans, n));
        tried[INTERRUPTED].n++;
        tried[INTERRUPTED_LOGITS].n += w->watch.n_rows > rows;
    }
    for (size_t i = 0; i < n && !rc; i++)
        CHECK(spw_session_n_tokens(spans[i].session) == to[index[i]]);
    if (w->has_twin && rc)
        part_twin(w);
    if (w->has_twin && !twin_sync(&w->twin, w->e, spans, n)) {
        twin_close(&w->twin);
        w->has_twin = false;
    }
    return rc;
}

/* A write that failed after its step had ended fails one later step. So does a read of weights that
 * was issued ahead. */
static bool is_late(struct walk *w, int rc)
{
    bool late = w->late_fault && (rc == -EIO || rc == -ENOSPC);
    w->late_fault = w->late_fault && !late;
    return late;
}

static void must_step(struct walk *w, const size_t *to, const char *why)
{
    struct spw_error err = {0};
    int rc = step(w, to, &err);
    if (is_late(w, rc)) {
        spw_error_clear(&err);
        rc = step(w, to, &err);
    }
    CHECK_MSG(rc == 0, "%s: %s: %d: %s", w->what, why, rc, err.text);
}

enum way { DECODE, MORE, BACK, OVER };

/* Where sessions go next: most of them, one at least. */
static void choose(struct walk *w, enum way way, size_t *to)
{
    uint32_t one = (uint32_t)draw_one(w, w->n_sessions);
    for (uint32_t i = 0; i < w->n_sessions; i++) {
        size_t held = spw_session_n_tokens(w->sessions[i]), rest = held % SPW_TILE_TOKENS;
        to[i] = way == DECODE ? held + 1
                : way == MORE ? draw_between(w->seed, held, held + 150)
                : way == BACK ? draw_between(w->seed, 1, held)
                              : check_range(w->seed, 1, w->context);
        if (way == OVER)
            memcpy(w->ids[i], w->s->ids[draw_one(w, SUBJECT_SEQUENCES)],
                   w->s->n_tokens * sizeof *w->ids[i]);
        if (way != DECODE && !draw_one(w, 3)) /* a whole tile, or a token beside */
            to[i] = to[i] / SPW_TILE_TOKENS * SPW_TILE_TOKENS + draw_one(w, 2);
        if (way == MORE && !draw_one(w, 8))
            to[i] = held + SPW_TILE_TOKENS - rest;
        to[i] = to[i] < 1 ? 1 : to[i] > w->context ? w->context : to[i];
        if (i != one && !draw_one(w, 3))
            to[i] = 0;
    }
}

static void go(struct walk *w, enum way way)
{
    size_t to[N_SESSIONS];
    choose(w, way, to);
    must_step(w, to, "a step");
}

static uint32_t any_session(struct walk *w)
{
    return (uint32_t)draw_one(w, w->n_sessions);
}

#endif
