/* The operation of a walk that runs a batch: requests of the walk's sessions, and some that have
 * none, which come at any time, wait until there is room for them, and may begin alike. They may
 * have drafts, which are right, wrong, or right up to some token. One may be a beam search. Either
 * nothing disturbs the batch, and a twin counts the same bytes; or requests are canceled, steps are
 * interrupted and made again, prompts wait between their chunks, and budgets change. */
#ifndef SPW_TESTS_ENGINE_WALK_BATCH_H
#define SPW_TESTS_ENGINE_WALK_BATCH_H

#include "runtime/batch/batch_parts.h"
#include "runtime/batch/beam_row.h"
#include "runtime/rules/beams.h"
#include "tests/engine/walk.h"

enum {
    N_NEW = 7,    /* tokens that a batch generates for a request */
    N_OTHERS = 5, /* most requests of a batch without a session of the walk */
    N_BEAMS = 3,  /* most beams of a search, and its most tokens */
    N_ANSWERS = N_SESSIONS + N_OTHERS + N_BEAMS
};

struct answer {
    int32_t *ids; /* [s->n_tokens]: the prompt, and what was generated */
    size_t n_prompt, n;
    struct spw_session *own; /* of the walk, as `ids` are; NULL: the batch has one */
    float *logits;           /* [N_NEW][vocab] */
    uint32_t n_beams;        /* of the first request of a search; else 0 */
    bool ended;
};

struct batch {
    struct spw_batch *b, *twin; /* twin: NULL: nobody follows */
    struct answer answers[N_ANSWERS];
    uint32_t n, n_to_come; /* to_come: requests of nobody's */
    struct spw_beam_search search;
    bool disturbed;
};

/* Other budgets, up or down, under the engine's options. */
static void set_budgets(struct walk *w)
{
    struct spw_error err = {0};
    struct spw_options o = w->o;
    part_twin(w);
    draw_budgets(&o, &w->backend, w->s->dir, w->aim, w->seed);
    int rc = spw_engine_set_budgets(w->e, o.device_bytes, o.host_bytes, o.disk_bytes, &err);
    CHECK_MSG(!rc || w->faulty, "%s: %d: %s", w->what, rc, err.text);
    if (rc)
        return;
    w->new_plan = true;
    w->o = o;
    memset(w->checkpoint, 0, sizeof w->checkpoint);
    run_check_peaks(w->e, &w->o, w->what);
}

/* ---- drafts ---- */

static struct walk *drafting; /* the walk whose batch asks for drafts */

/* The token after those of x and n drafts. */
static int32_t right_draft(const struct spw_batch_entry *x, const int32_t *drafts, uint32_t n)
{
    struct walk *w = drafting;
    const size_t n_tokens = x->answer.n_tokens + n;
    int32_t *ids = calloc(w->s->n_tokens, sizeof *ids);
    memcpy(ids, x->answer.tokens, x->answer.n_tokens * sizeof *ids);
    memcpy(ids + x->answer.n_tokens, drafts, n * sizeof *ids);
    const float *rows = oracle_rows(w->s, ids, n_tokens, n_tokens);
    free(ids);
    return model_argmax(rows + (n_tokens - 1) * w->s->vocab, w->s->vocab);
}

/* Each draft is right, with odds that are drawn for all of them, until one is not. */
static uint32_t propose_some(struct spw_batch_entry *x, int32_t *out, uint32_t most,
                             uint32_t *match)
{
    struct walk *w = drafting;
    const uint32_t n = (uint32_t)draw_one(w, most + 1);
    const uint64_t odds = draw_one(w, 4);
    bool right = true;
    *match = (uint32_t)draw_one(w, 40);
    for (uint32_t i = 0; i < n; i++) {
        right = right && draw_one(w, 3) < odds;
        out[i] = right ? right_draft(x, out, i) : (int32_t)draw_one(w, w->s->vocab);
    }
    return n;
}

static void count_drafts(const struct batch *x)
{
    struct spw_batch_times times;
    spw_batch_times(x->b, &times);
    tried[DRAFTS].n += times.n_drafted;
    tried[DRAFTS_STAYED].n += times.n_accepted;
}

static void read_events(const struct walk *w, struct batch *x)
{
    struct spw_event e;
    while (spw_batch_event(x->b, &e)) {
        struct answer *a = &x->answers[e.request - 1];
        uint32_t vocab = w->s->vocab;
        if (e.kind == SPW_EVENT_END) {
            CHECK_MSG(!e.text_bytes, "%s: %s", w->what, e.text);
            a->ended = true;
            continue;
        }
        CHECK(!a->ended && a->n - a->n_prompt < N_NEW && e.token == model_argmax(e.logits, vocab));
        memcpy(a->logits + (a->n - a->n_prompt) * vocab, e.logits, vocab * sizeof *e.logits);
        a->ids[a->n++] = e.token;
    }
}

static void check_answer(struct walk *w, const struct answer *a)
{
    uint32_t vocab = w->s->vocab;
    for (size_t i = 0; i < a->n - a->n_prompt; i++) {
        const size_t n = a->n_prompt + i; /* each may have a rope table of its own */
        const float *rows = oracle_rows(w->s, a->ids, n, w->s->n_tokens);
        w->watch.n_rows++;
        w->watch.n_wrong += !run_same(a->logits + i * vocab, rows + (n - 1) * vocab, vocab);
    }
}

/* A request of any length: of session `own`, the next turn or another question; NULL: of nobody. */
static void submit(struct walk *w, struct batch *x, struct spw_session *own, int32_t *ids)
{
    struct spw_error err = {0};
    struct answer *a = &x->answers[x->n];
    const size_t most = (own ? own->most_tokens : w->context) - N_NEW;
    const size_t held = own ? spw_session_n_tokens(own) : 0;
    uint64_t id, twin_id;
    *a = (struct answer){.n_prompt = check_range(w->seed, 1, most), .ids = ids, .own = own};
    if (!own)
        a->ids = calloc(w->s->n_tokens, sizeof *a->ids);
    if (!own || !draw_one(w, 3))
        memcpy(a->ids, w->s->ids[draw_one(w, 2)], w->s->n_tokens * sizeof *a->ids);
    if (held && held <= most && draw_one(w, 2))
        a->n_prompt = draw_between(w->seed, held, most);
    a->n = a->n_prompt;
    a->logits = calloc(N_NEW * w->s->vocab, sizeof *a->logits);
    struct spw_request q = {.prompt = a->ids,
                            .n_prompt = a->n_prompt,
                            .max_new_tokens = 1 + draw_one(w, N_NEW),
                            .ignore_eos = true,
                            .session = own};
    CHECK_MSG(!spw_batch_submit(x->b, &q, &id, &err), "%s: %s", w->what, err.text);
    CHECK(id == ++x->n);
    if (!x->twin)
        return;
    q.session = own ? w->twin.sessions[own->slot] : NULL;
    CHECK_MSG(!spw_batch_submit(x->twin, &q, &twin_id, &err), "%s: %s", w->what, err.text);
}

/* ---- beams ---- */

/* The rows of logits are those of the oracle. */
struct oracle_search {
    struct walk *w;
    const struct answer *a;
    struct spw_beams *beams;
    struct spw_sampler *sampler;
    const struct spw_beam_search *search;
};

static const float *oracle_beam(void *context, uint32_t i, const int32_t *chosen, uint32_t n_chosen)
{
    const struct oracle_search *o = context;
    uint64_t n;
    const int32_t *tokens = spw_beams_tokens(o->beams, i, &n);
    int32_t *ids = calloc(o->w->s->n_tokens, sizeof *ids);
    const struct spw_sampling sampling = {0};
    memcpy(ids, o->a->ids, o->a->n_prompt * sizeof *ids);
    memcpy(ids + o->a->n_prompt, tokens, n * sizeof *ids);
    n += o->a->n_prompt;
    const struct spw_row_of_beam b = {.sampling = &sampling,
                                      .logits = oracle_rows(o->w->s, ids, n, n) +
                                                (n - 1) * o->w->s->vocab,
                                      .tokens = ids,
                                      .n_prompt = o->a->n_prompt,
                                      .n_tokens = n,
                                      .chosen = chosen,
                                      .n_chosen = n_chosen,
                                      .diversity_penalty = o->search->diversity_penalty};
    const float *row = spw_sampler_log_probs(o->sampler, &b);
    free(ids);
    return row;
}

static struct spw_beams *search_oracle(struct walk *w, const struct batch *x,
                                       const struct answer *a)
{
    struct spw_beam_move moves[N_BEAMS];
    struct oracle_search o = {.w = w, .a = a, .search = &x->search};
    const struct spw_beam_options options = {.n_beams = x->search.n_beams,
                                             .n_groups = spw_max_u32(x->search.n_groups, 1),
                                             .diversity_penalty = x->search.diversity_penalty,
                                             .length_penalty = x->search.length_penalty,
                                             .vocab = w->s->vocab,
                                             .most_tokens = N_BEAMS};
    const struct spw_beam_rows rows = {oracle_beam, &o};
    CHECK(!spw_beams_open(&o.beams, &options) && !spw_sampler_open(&o.sampler, w->s->vocab, NULL));
    while (!spw_beams_has_ended(o.beams))
        CHECK(!spw_beams_step(o.beams, &rows, moves));
    spw_sampler_close(o.sampler);
    return o.beams;
}

/* The answers of the search whose first request has the number `id`, unless it was canceled. */
static void check_search(struct walk *w, const struct batch *x, uint64_t id)
{
    struct spw_beams *beams = NULL;
    if (spw_batch_result(x->b, id)->finish == SPW_FINISH_CANCELED)
        return;
    beams = search_oracle(w, x, &x->answers[id - 1]);
    for (uint32_t k = 0; k < x->search.n_beams; k++) {
        const struct spw_result *r = spw_batch_result(x->b, id + k);
        uint64_t n;
        double score;
        const int32_t *tokens = spw_beams_answer(beams, k, &n, &score);
        CHECK_MSG(r->n_tokens == n && !memcmp(r->tokens, tokens, n * sizeof *tokens) &&
                      !memcmp(&r->score, &score, sizeof score),
                  "%s: answer %u of %u beams: score %.9g, expected %.9g", w->what, k,
                  x->search.n_beams, r->score, score);
        tried[BEAMS].n++;
    }
    spw_beams_close(beams);
}

/* A search with beams, if there may be room for as many sessions as it has beams. */
static void submit_search(struct walk *w, struct batch *x)
{
    struct spw_error err = {0};
    struct answer *a = &x->answers[x->n];
    uint64_t id;
    const uint32_t n_beams = 2 + (uint32_t)draw_one(w, N_BEAMS - 1);
    const uint64_t n_prompt = check_range(w->seed, 1, w->context - N_NEW);
    const bool shares = !spw_plan_sharing(&w->e->plan).needs_checkpoint;
    const uint64_t room =
        (shares ? 1 : n_beams) * n_prompt + n_beams * (uint64_t)(2 * SPW_TILE_TOKENS);
    if (n_open(w) + n_beams > w->o.sessions || !has_room_for(w, room))
        return;
    *a = (struct answer){.n_prompt = n_prompt,
                         .n = n_prompt,
                         .ids = calloc(w->s->n_tokens, sizeof *a->ids),
                         .n_beams = n_beams};
    memcpy(a->ids, w->s->ids[draw_one(w, 2)], w->s->n_tokens * sizeof *a->ids);
    x->search = (struct spw_beam_search){.n_beams = n_beams,
                                         .n_groups = draw_one(w, 2) ? n_beams : 1,
                                         .diversity_penalty = 0.7F,
                                         .length_penalty = (float)draw_one(w, 3) / 2};
    const struct spw_request q = {.prompt = a->ids,
                                  .n_prompt = a->n_prompt,
                                  .max_new_tokens = N_BEAMS,
                                  .ignore_eos = true,
                                  .beams = x->search};
    CHECK_MSG(!spw_batch_submit(x->b, &q, &id, &err), "%s: %s", w->what, err.text);
    CHECK(id == x->n + 1);
    if (x->twin)
        CHECK_MSG(!spw_batch_submit(x->twin, &q, &id, &err), "%s: %s", w->what, err.text);
    for (uint32_t k = 1; k < n_beams; k++)
        x->answers[x->n + k] = (struct answer){0};
    x->n += n_beams;
}

static void open_batch(struct walk *w, struct batch *x)
{
    struct spw_error err = {0};
    /* how far a drive has come when a step is paused is not predicted */
    const uint32_t chunks = w->e->io && !x->disturbed ? 0 : (uint32_t)draw_one(w, 6);
    CHECK_MSG(!spw_batch_open(&x->b, w->e, NULL, &err), "%s", err.text);
    spw_batch_set_prompt_chunks(x->b, chunks);
    const uint64_t pass_tokens = draw_one(w, 3) ? 0 : 1 + draw_one(w, 2 * w->o.prefill_chunk + 100);
    spw_batch_set_pass_tokens(x->b, pass_tokens);
    drafting = w;
    if (x->b->propose)
        x->b->propose = propose_some;
    x->b->odds.shift[SPW_DRAFT_MATCHES - 1] =
        draw_one(w, 2) ? 0.3 : 0; /* long ones of an MTP layer */
    if (x->disturbed)
        part_twin(w);
    if (x->disturbed && draw_one(w, 2))
        spw_batch_keep_ended(x->b); /* no twin: it does not know which tokens were generated */
    if (!w->has_twin)
        return;
    CHECK_MSG(!spw_batch_open(&x->twin, w->twin.e, NULL, &err), "%s", err.text);
    spw_batch_set_prompt_chunks(x->twin, chunks);
    spw_batch_set_pass_tokens(x->twin, pass_tokens);
}

/* The twin makes the step that has returned rc, and reads its events. What it counts from a step on
 * in which the two have fetched different parts of the next one is not known: see twin_sync. */
static void step_twin(struct walk *w, struct batch *x, int rc)
{
    struct spw_event e;
    struct spw_error err = {0};
    for (uint64_t id = 1; id <= x->n; id++) {
        struct spw_batch_drafts *d = &spw_batch_find(x->twin, id)->drafts;
        d->step_rows = spw_batch_result(x->b, id)->step_rows;
        d->n_known = spw_batch_result(x->b, id)->n_tokens;
        struct spw_group *g = &spw_batch_find(x->twin, id)->group;
        g->parents = spw_batch_result(x->b, g->first)->parents;
        g->n_steps = spw_batch_result(x->b, g->first)->n_steps;
    }
    int own_rc = spw_batch_step(x->twin, &err);
    CHECK_MSG(own_rc == rc, "%s: a batch: %d, the twin %d: %s", w->what, rc, own_rc, err.text);
    while (spw_batch_event(x->twin, &e))
        continue;
    if (twin_is_level(&w->twin, w->e))
        return;
    spw_batch_close(x->twin);
    x->twin = NULL;
    forget_twin(w);
}

/* What may happen before the events of a step are read. */
static void disturb(struct walk *w, struct batch *x)
{
    if (!draw_one(w, 8))
        spw_batch_cancel(x->b, 1 + draw_one(w, x->n));
    if (!draw_one(w, 12))
        set_budgets(w);
}

/* Requests come before the first step, or between any two. */
static void submit_some(struct walk *w, struct batch *x)
{
    for (; x->n_to_come && (!x->n || draw_one(w, 2)); x->n_to_come--)
        submit(w, x, NULL, NULL);
}

/* Counts what later requests can begin with, and prompts of which the next step computes more. */
static void count_parts(const struct batch *x)
{
    const struct spw_batch *b = x->b;
    for (uint32_t i = 0; i < b->n_ended; i++)
        tried[KEPT_SESSIONS].n += b->ended[i].is_free;
    for (const struct spw_batch_entry *y = NULL; (y = spw_batch_next(b, y));)
        tried[BETWEEN_PASSES].n += y->is_in_pass && y->session && !b->engine->paused.n &&
                                   spw_batch_needs_prompt(y) && y->session->n_tokens > 0;
}

/* Makes all steps. A step in which others have got a token tells of an interrupt in the next call.
 */
static void run_steps(struct walk *w, struct batch *x)
{
    struct spw_error err = {0};
    bool was_ended = false;
    for (int rc = 1; rc > 0 || rc == -ECANCELED || x->n_to_come;) {
        submit_some(w, x);
        w->left = !x->disturbed || draw_one(w, 3) ? -1 : (int64_t)draw_one(w, 40);
        w->ended = false;
        rc = spw_batch_step(x->b, &err);
        if (is_late(w, rc))
            rc = 1; /* it may be tried again */
        CHECK_MSG(rc >= 0 || (rc == -ECANCELED && (w->ended || was_ended)), "%s: %d: %s", w->what,
                  rc, err.text);
        was_ended = w->ended;
        CHECK(spw_share_fits(&w->e->plan, spw_engine_open_tiles(w->e, false)));
        tried[SET_ASIDE].n += w->e->paused.n > 0;
        count_parts(x);
        if (x->disturbed)
            disturb(w, x);
        read_events(w, x);
        if (x->twin)
            step_twin(w, x, rc);
    }
    w->left = -1;
    w->ended = false;
}

/* Sessions close until a search with most beams may open as many: one stays. */
static void make_room_for_search(struct walk *w)
{
    while (n_open(w) > 1 && n_open(w) + N_BEAMS > w->o.sessions)
        close_session(w, any_session(w));
}

static void run_batch(struct walk *w)
{
    struct batch x = {.disturbed = draw_one(w, 2)};
    const bool searches = x.disturbed || (!w->e->io && draw_one(w, 2)); /* see spw_engine_predict */
    if (searches && draw_one(w, 2))
        make_room_for_search(w);
    open_batch(w, &x);
    for (uint32_t i = 0; i < w->n_sessions; i++)
        if (w->sessions[i] && w->sessions[i]->most_tokens > N_NEW && (!x.n || draw_one(w, 2)))
            submit(w, &x, w->sessions[i], w->ids[i]);
    if (n_open(w) < w->o.sessions && has_room_for(w, w->context))
        x.n_to_come = 1 + (uint32_t)draw_one(w, N_OTHERS);
    if (searches)
        submit_search(w, &x);
    run_steps(w, &x);
    if (x.twin) {
        spw_batch_close(x.twin);
        tried[BATCH_TWINS].n++;
    }
    count_drafts(&x);
    part_twin(w); /* its answers were others */
    memset(w->checkpoint, 0, sizeof w->checkpoint);
    for (uint32_t i = 0; i < x.n; i++)
        if (x.answers[i].n_beams)
            check_search(w, &x, i + 1);
    spw_batch_close(x.b);
    for (uint32_t i = 0; i < x.n; i++) {
        struct answer *a = &x.answers[i];
        CHECK_MSG(a->ended, "%s: request %u has not ended", w->what, i + 1);
        check_answer(w, a);
        free(a->logits);
        if (!a->own)
            free(a->ids);
    }
}

#endif
