/* A walk of test_engine: an engine with its sessions, what each of them was last asked for, and the
 * steps that all operations are made of. A step compares every row of logits with the oracle, and
 * the number of tokens that were reused with the prefix that the session had in common; while a
 * twin (twin.h) does the same, every link counts the same bytes. */
#ifndef SPW_TESTS_ENGINE_WALK_H
#define SPW_TESTS_ENGINE_WALK_H

#include "runtime/experts/counts.h"
#include "offload/kv/checkpoint.h"
#include "offload/kv/kv_tile.h"
#include "runtime/rules/shared_prompt.h"
#include "tests/engine/io_fault.h"
#include "tests/engine/oracle.h"
#include "tests/engine/twin.h"
#include "tests/engine/walk_tried.h"

enum { N_SESSIONS = 4, MIB = 1 << 20 };

struct walk {
    struct subject *s;
    enum aim aim;
    bool drives; /* most of the KV lies on a drive that fails again and again */
    struct spw_backend backend;
    struct spw_options o;
    struct spw_machine machine; /* rates: which layers the host multiplies */
    struct io_fault fault;
    size_t context;
    uint32_t n_sessions; /* places for sessions */
    struct spw_engine *e;
    struct spw_session *sessions[N_SESSIONS]; /* NULL: it is not open. One is, at least */
    int32_t *ids[N_SESSIONS];                 /* [s->n_tokens], what each was last asked for */
    int32_t *scratch;                         /* [s->n_tokens] */
    char cache[160], file[N_SESSIONS][160];
    int32_t *saved_ids[N_SESSIONS]; /* [s->n_tokens], of each file */
    size_t saved[N_SESSIONS];       /* tokens in each file; 0: it is not there */
    struct twin twin;
    bool has_twin;     /* which did all that the engine did */
    bool new_plan;     /* budgets have changed: sessions may begin anew */
    bool faulty;       /* something was lost: notes are due, and there may be no prediction */
    bool spoiled;      /* files were: how far they were read is not predicted */
    bool late_fault;   /* a request has failed, which a step may hear of yet */
    int64_t alloc_nth; /* of the next step: this allocation fails; below 0: none */
    int64_t left;      /* times the engine asks until the step is interrupted; below 0: never */
    bool ended;        /* it was */
    /* The newest checkpoint that each session must have, at the end of a prompt or where it was
     * asked for. 0: none. */
    size_t checkpoint[N_SESSIONS];
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

static void forget_twin(struct walk *w)
{
    twin_close(&w->twin);
    w->has_twin = false;
}

/* From here on the engine does what its twin does not. */
static void part_twin(struct walk *w)
{
    if (!w->has_twin)
        return;
    twin_check(&w->twin, w->e, w->what);
    forget_twin(w);
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

/* ---- sessions ---- */

static uint32_t n_open(const struct walk *w)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->n_sessions; i++)
        n += w->sessions[i] != NULL;
    return n;
}

static uint32_t any_place(struct walk *w)
{
    return (uint32_t)draw_one(w, w->n_sessions);
}

static uint32_t any_session(struct walk *w)
{
    uint32_t i = any_place(w);
    while (!w->sessions[i])
        i = (i + 1) % w->n_sessions;
    return i;
}

static void close_session(struct walk *w, uint32_t i)
{
    if (!w->sessions[i])
        return;
    if (w->has_twin)
        twin_close_session(&w->twin, w->sessions[i]->slot);
    spw_session_close(w->sessions[i]);
    w->sessions[i] = NULL;
    w->checkpoint[i] = 0;
}

/* Whether a session of so many tokens may open beside the open ones (options.full_sessions). */
static bool has_room_for(const struct walk *w, uint64_t most)
{
    return spw_share_fits(&w->e->plan,
                          spw_engine_open_tiles(w->e, false) + spw_waterline_tiles(most));
}

/* What opening a session has returned. True: it was refused, as it must be. */
static bool is_refused(const struct walk *w, uint32_t i, int rc, bool fits,
                       const struct spw_error *err)
{
    CHECK_MSG(!rc == fits, "%s: opening a session: %d: %s", w->what, rc, err->text);
    if (!rc)
        return false;
    CHECK(rc == -ENOMEM && strstr(err->text, "full_sessions") && !w->sessions[i]);
    tried[REFUSED].n++;
    return true;
}

static void open_session(struct walk *w, uint32_t i, uint64_t most)
{
    struct spw_error err = {0};
    bool fits = has_room_for(w, most);
    int rc = spw_session_open_for(&w->sessions[i], w->e, most, &err);
    if (!is_refused(w, i, rc, fits, &err) && w->has_twin)
        twin_open_session(&w->twin, w->sessions[i]->slot, most);
}

static void open_engine(struct walk *w)
{
    draw_counts(w);
    w->e = run_open_on(&w->backend, w->s->dir, &w->o);
    w->e->look.is_time = interrupted;
    w->e->look.context = w;
    w->has_twin = !w->o.prefix_cache_dir;
    if (w->has_twin)
        twin_open(&w->twin, w->e);
    for (uint32_t i = 0; i < w->n_sessions; i++)
        open_session(w, i, w->context);
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

/* Nothing holds a frame when all sessions are closed. */
static void check_frames(struct walk *w)
{
    struct spw_kv *kv = w->e->kv;
    if (!w->e->executor) /* memory was refused, and all of it was given back */
        return;
    spw_engine_finish(w->e);
    spw_kv_release_free_soon(kv);
    const uint32_t n_free[] = {spw_tier_n_free(&kv->device), spw_tier_n_free(&kv->exact),
                               spw_tier_n_free(&kv->host)};
    const uint32_t n[] = {kv->o.n_device_frames, kv->o.n_exact_frames, kv->o.n_host_frames};
    for (int i = 0; i < 3; i++)
        CHECK_MSG(n_free[i] == n[i], "%s: tier %d: %u of %u frames are free", w->what, i, n_free[i],
                  n[i]);
    CHECK_MSG(!w->e->disk || !spw_disk_n_used(w->e->disk), "%s: %u disk frames are in use", w->what,
              spw_disk_n_used(w->e->disk));
}

static void close_engine(struct walk *w)
{
    part_twin(w);
    check_engine(w);
    for (uint32_t i = 0; i < w->n_sessions; i++)
        close_session(w, i);
    check_frames(w);
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

/* The tokens of a span that its session need not compute again: all that it has in common, but for
 * those whose logits are wanted. SIZE_MAX: nobody knows: the prefix cache may have more. */
static size_t most_reused(const struct walk *w, const struct spw_span *span)
{
    const struct spw_session *s = span->session;
    const size_t held = s->n_tokens, n = span->n_tokens;
    const size_t same = spw_common_prefix(s->tokens, held, span->tokens, n);
    if (s->is_paused || w->o.prefix_cache_dir)
        return SIZE_MAX; /* of what the step has begun with */
    if (same == n && same == held && s->has_logits && span->n_logits < 2)
        return n;
    return same < n - span->n_logits ? same : n - span->n_logits;
}

/* Of those, with states only the ones before a checkpoint. */
static size_t reachable(const struct walk *w, const struct spw_session *s, size_t most)
{
    const struct spw_plan *p = &w->e->plan;
    const bool has_states = most != SIZE_MAX && p->n_states && most != s->n_tokens;
    return has_states ? spw_kv_reach(s->seq.kv, p->residency, most) : most;
}

/* Whether a session that was cut back, to `most` of the tokens that it held, keeps them all.
 * Windows (those of old KV, too) may have passed what is left, and the session begins anew; so it
 * may under another plan. */
static bool keeps(const struct walk *w, bool cut)
{
    const struct spw_plan *p = &w->e->plan;
    const bool can_cut = !spw_plan_n_windowed(p) && !p->quantizes;
    return (!cut || can_cut) && !w->s->each_length && !w->faulty;
}

/* It had `held`. */
static void check_reused(const struct walk *w, const struct spw_span *span, size_t held,
                         size_t most)
{
    const size_t reused = spw_session_reused(span->session);
    const bool all = keeps(w, most != held);
    if (most == SIZE_MAX)
        return;
    CHECK_MSG(all ? reused == most || (!reused && w->new_plan) : reused <= most,
              "%s: %zu tokens, reused %zu of %zu", w->what, span->n_tokens, reused, most);
    tried[REUSED].n += all && reused == most && most;
}

/* Where all sessions have room for checkpoints, the newest one of a session stays, until the
 * session passes a multiple of the distance. */
static void check_checkpoint(const struct walk *w, const struct spw_span *span, size_t held,
                             size_t most, size_t newest)
{
    const struct spw_plan *p = &w->e->plan;
    const size_t reused = spw_session_reused(span->session);
    const bool is_newest = newest / SPW_CHECKPOINT_TOKENS == held / SPW_CHECKPOINT_TOKENS;
    if (most == SIZE_MAX || !keeps(w, true) || w->new_plan || !is_newest ||
        p->n_checkpoints < 2 * w->o.sessions)
        return;
    CHECK_MSG(most < newest || reused >= newest,
              "%s: %zu tokens, reused %zu, a checkpoint is at %zu", w->what, span->n_tokens, reused,
              newest);
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

/* A step has returned rc; -EAGAIN: it goes on. */
static void note_prompts(struct walk *w, const struct spw_span *spans, const uint32_t *index,
                         size_t n, int rc)
{
    for (size_t i = 0; i < n && rc != -EAGAIN; i++) {
        size_t *end = &w->checkpoint[index[i]];
        const size_t reused = spw_session_reused(spans[i].session);
        if (rc || reused < *end)
            *end = 0;
        if (!rc && spans[i].n_tokens > reused + 1)
            *end = spans[i].n_tokens;
    }
}

/* Sessions go to to[i] tokens of their sequences, where that is not 0. */
static int step(struct walk *w, const size_t *to, struct spw_error *err)
{
    struct spw_span spans[N_SESSIONS];
    uint32_t index[N_SESSIONS];
    size_t n = 0, held[N_SESSIONS], most[N_SESSIONS], reused[N_SESSIONS];
    for (uint32_t i = 0; i < w->n_sessions; i++) {
        if (!to[i])
            continue;
        size_t rows = draw_one(w, 5) ? 1 : draw_between(w->seed, 0, to[i] < 40 ? to[i] : 40);
        w->n_rows[i] = rows = w->wants_same ? w->n_rows[i] : rows;
        index[n] = i;
        held[n] = spw_session_n_tokens(w->sessions[i]);
        w->watch.rows[n] = oracle_rows(w->s, w->ids[i], to[i], w->s->n_tokens);
        spans[n] = (struct spw_span){w->sessions[i], w->ids[i], to[i], rows};
        most[n] = most_reused(w, &spans[n]);
        reused[n] = reachable(w, w->sessions[i], most[n]);
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
    for (size_t i = 0; i < n && !rc; i++) {
        CHECK(spw_session_n_tokens(spans[i].session) == to[index[i]]);
        check_reused(w, &spans[i], held[i], reused[i]);
        check_checkpoint(w, &spans[i], held[i], most[i], w->checkpoint[index[i]]);
    }
    note_prompts(w, spans, index, n, rc);
    if (w->has_twin && rc && rc != -EAGAIN)
        part_twin(w);
    if (w->has_twin && !twin_sync(&w->twin, w->e, spans, n, &o, rc))
        forget_twin(w);
    return rc;
}

/* Logits that a session has are those of the tokens that it holds. */
static void check_logits(struct walk *w)
{
    for (uint32_t i = 0; i < w->n_sessions && !w->s->each_length; i++) {
        const struct spw_session *s = w->sessions[i];
        const float *logits = s ? spw_session_logits(s) : NULL;
        const size_t n = logits ? spw_session_n_tokens(s) : 0;
        if (n)
            memcpy(w->scratch, s->tokens, n * sizeof *w->scratch);
        CHECK_MSG(!logits || (n && oracle_same(w->s, w->scratch, n, logits)),
                  "%s: session %u: logits after %zu tokens", w->what, i, n);
    }
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
    const uint32_t one = any_session(w);
    for (uint32_t i = 0; i < w->n_sessions; i++) {
        to[i] = 0;
        if (!w->sessions[i])
            continue;
        size_t held = spw_session_n_tokens(w->sessions[i]), rest = held % SPW_TILE_TOKENS;
        const size_t most = w->sessions[i]->most_tokens;
        to[i] = way == DECODE ? held + 1
                : way == MORE ? draw_between(w->seed, held, held + 150)
                : way == BACK ? draw_between(w->seed, 1, held)
                              : check_range(w->seed, 1, most);
        if (way == OVER)
            memcpy(w->ids[i], w->s->ids[draw_one(w, SUBJECT_SEQUENCES)],
                   w->s->n_tokens * sizeof *w->ids[i]);
        if (way != DECODE && !draw_one(w, 3)) /* a whole tile, or a token beside */
            to[i] = to[i] / SPW_TILE_TOKENS * SPW_TILE_TOKENS + draw_one(w, 2);
        if (way == MORE && !draw_one(w, 8))
            to[i] = held + SPW_TILE_TOKENS - rest;
        to[i] = to[i] < 1 ? 1 : to[i] > most ? most : to[i];
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

#endif
