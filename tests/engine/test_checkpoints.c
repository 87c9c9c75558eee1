/* Sessions of models with states, where others fail: a conversation that is cut back to each of its
 * positions, prompts around the ends of chunks, prompts that differ in their last token, a turn
 * whose earlier text was edited, files that keep a state, a prompt that was found beside others,
 * and numbers that are not finite. Logits are the bits of one plain run, and what is computed again
 * begins at a checkpoint.
 *
 *   test_checkpoints */
#include "tests/engine/oracle.h"
#include "tests/engine/persist/pack_run.h"

enum { TOKENS = 700, CONVERSATION = 600 };

struct run {
    struct subject *s;
    struct spw_engine *e;
    struct spw_session *session;
    struct watch watch;
};

static void open_run_with(struct run *r, struct subject *s, const struct spw_options *o)
{
    *r = (struct run){.s = s, .e = run_open(s->dir, o)};
    r->session = run_session(r->e);
}

static void close_run(struct run *r)
{
    CHECK_MSG(!r->watch.n_wrong, "%s: %llu of %llu rows differ", r->s->dir,
              (unsigned long long)r->watch.n_wrong, (unsigned long long)r->watch.n_rows);
    spw_session_close(r->session);
    spw_engine_close(r->e);
}

/* Computes n of these tokens; returns how many were reused. */
static size_t go_to(struct run *r, struct spw_session *session, const int32_t *ids, size_t n,
                    size_t rows)
{
    const struct spw_span span = {session, ids, n, rows};
    struct spw_error err = {0};
    const int rc = watch_sync(&r->watch, r->s, r->e, &span, 1, r->s->n_tokens, &err);
    CHECK_MSG(rc == 0, "%s: %zu tokens: %s", r->s->dir, n, err.text);
    return spw_session_reused(session);
}

/* As much device memory as is needed, or as helps. */
static struct spw_options budgets(const struct subject *s, bool least)
{
    struct spw_options o = s->o;
    o.sessions = 3;
    o.prefill_chunk = 32;
    o.host_bytes = (uint64_t)1 << 30;
    const struct spw_backend b = run_backend(true);
    const struct spw_plan_info all = run_plan_on(&b, s->dir, &o);
    o.device_bytes = least ? all.smallest_device_bytes : all.device.total;
    return o;
}

/* ---- a conversation ---- */

/* Ends of its prompts and answers. The engine has checkpoints at the ends of prompts, and where
 * each prompt after the first begins. */
static const size_t turns[] = {200, 220, 380, 400, 590, CONVERSATION};

static size_t newest_turn(size_t n)
{
    size_t newest = 0;
    for (size_t i = 0; i + 1 < sizeof turns / sizeof *turns && turns[i] <= n; i++)
        newest = turns[i];
    return newest;
}

static void talk(struct run *r, const int32_t *ids)
{
    size_t n = 0;
    for (size_t i = 0; i < sizeof turns / sizeof *turns; i++)
        if (i % 2 == 0)
            go_to(r, r->session, ids, n = turns[i], 1);
        else
            while (n < turns[i])
                go_to(r, r->session, ids, ++n, 1);
}

/* A copy of the conversation is cut back to n tokens, and goes on. */
static void check_cut(struct run *r, const int32_t *ids, size_t n, uint64_t *n_moved)
{
    struct spw_session *copy;
    struct spw_error err = {0};
    CHECK_MSG(spw_session_fork(&copy, r->session, &err) == 0, "%s", err.text);
    const size_t reused = go_to(r, copy, ids, n, 1);
    CHECK_MSG(reused >= newest_turn(n - 1) && reused < n, "%s: %zu tokens, reused %zu", r->s->dir,
              n, reused);
    CHECK(go_to(r, copy, ids, n + 1, 1) == n);
    *n_moved += !r->e->plan.states_stay;
    spw_session_close(copy);
}

static void check_conversation(struct subject *s, size_t step)
{
    uint64_t n_moved = 0;
    for (int least = 0; least < 2; least++) {
        const struct spw_options o = budgets(s, least);
        struct run r;
        open_run_with(&r, s, &o);
        CHECK(r.e->plan.n_states && r.e->plan.info.rolls_back);
        talk(&r, s->ids[0]);
        for (size_t n = CONVERSATION - 1; n; n = n > step ? n - step : 0)
            check_cut(&r, s->ids[0], n, &n_moved);
        close_run(&r);
    }
    CHECK_MSG(n_moved, "%s: no state has moved", s->dir);
}

/* ---- prompts ---- */

/* All rows of prompts of k chunks, and of one token more or less. */
static void check_chunks(struct subject *s)
{
    enum { CHUNK = 16, CHUNKS = 9 };
    struct spw_options o = budgets(s, true);
    struct run r;
    o.prefill_chunk = CHUNK;
    open_run_with(&r, s, &o);
    CHECK(r.e->plan.chunk == CHUNK);
    for (size_t n = CHUNK - 1; n <= CHUNKS * CHUNK + 1; n += n % CHUNK == 1 ? CHUNK - 2 : 1) {
        spw_session_close(r.session);
        r.session = run_session(r.e);
        CHECK(go_to(&r, r.session, s->ids[0], n, n) == 0);
    }
    close_run(&r);
}

/* Of two prompts that differ in their last token; of a question that was edited, below the first
 * spacing of checkpoints; and of one that is asked again. */
static void check_edits(struct subject *s)
{
    const struct spw_options o = budgets(s, false);
    int32_t ids[TOKENS];
    struct run r;
    open_run_with(&r, s, &o);
    memcpy(ids, s->ids[0], sizeof ids);
    go_to(&r, r.session, s->ids[0], 300, 1);
    ids[299] = (ids[299] + 1) % (int32_t)s->vocab;
    CHECK(go_to(&r, r.session, ids, 300, 1) < 300);
    CHECK(go_to(&r, r.session, s->ids[0], 300, 1) < 300);
    go_to(&r, r.session, s->ids[0], 340, 1);
    CHECK(go_to(&r, r.session, s->ids[0], 320, 1) >= 300); /* where the last prompt begins */
    ids[30] = (ids[30] + 1) % (int32_t)s->vocab;
    CHECK(go_to(&r, r.session, ids, 90, 1) <= 30);
    CHECK(go_to(&r, r.session, ids, 90, 1) == 90); /* its logits are there */
    CHECK(go_to(&r, r.session, ids, 91, 1) == 90);
    CHECK(go_to(&r, r.session, ids, 90, 2) <= 88);
    CHECK(go_to(&r, r.session, s->ids[1], 20, 20) == 0);
    close_run(&r);
}

/* ---- files ---- */

/* Prompts that differ in their last token begin with what the prefix cache has of the first one,
 * cold and warm; and where nothing finds room in the cache. */
static void check_prefix(struct subject *s)
{
    static const struct {
        uint64_t bytes;
        size_t found;
    } caches[] = {{64 << 20, 384}, {16 << 10, 0}};
    char cache[600];
    int32_t ids[TOKENS];
    snprintf(cache, sizeof cache, "%.500s_cache", s->folder);
    memcpy(ids, s->ids[0], sizeof ids);
    ids[399] = (ids[399] + 1) % (int32_t)s->vocab;
    for (size_t i = 0; i < sizeof caches / sizeof *caches; i++) {
        struct spw_options o = budgets(s, false);
        o.prefix_cache_dir = cache;
        o.prefix_cache_bytes = caches[i].bytes + s->plan.tile_bytes;
        for (size_t run = 0; run < 2; run++) {
            struct run r;
            open_run_with(&r, s, &o);
            const size_t reused = go_to(&r, r.session, run ? ids : s->ids[0], 400, 1);
            CHECK_MSG(reused == run * caches[i].found, "%s: cache %zu, run %zu: %zu tokens", s->dir,
                      i, run, reused);
            spw_session_publish(r.session, NULL); /* without room it is refused */
            close_run(&r);
        }
        pack_remove_folder(cache);
    }
}

/* All rows of one step of three sessions. One finds its prompt in the prefix cache, one goes on
 * from a position that is the end of no chunk and no tile, and one begins. */
static void check_together(struct subject *s, bool least)
{
    enum { MOST = 400, HELD = 77 };
    char cache[600];
    struct spw_options o = budgets(s, least);
    struct spw_error err = {0};
    struct run r;
    snprintf(cache, sizeof cache, "%.500s_cache", s->folder);
    o.prefix_cache_dir = cache;
    open_run_with(&r, s, &o);
    go_to(&r, r.session, s->ids[0], MOST, 1);
    CHECK(spw_session_publish(r.session, NULL) == 0);
    close_run(&r);
    open_run_with(&r, s, &o);
    struct spw_session *const going_on = run_session(r.e), *const fresh = run_session(r.e);
    const struct spw_span before = {going_on, s->ids[0] + 150, HELD, 1};
    CHECK_MSG(!watch_sync(&r.watch, s, r.e, &before, 1, MOST, &err), "%s", err.text);
    const struct spw_span spans[] = {{r.session, s->ids[0], MOST, 16},
                                     {going_on, s->ids[0] + 150, 300, 300 - HELD},
                                     {fresh, s->ids[0] + 290, 131, 131}};
    CHECK_MSG(!watch_sync(&r.watch, s, r.e, spans, 3, MOST, &err), "%s", err.text);
    CHECK_MSG(spw_session_from_store(r.session) == 384, "%s: %zu tokens found", s->dir,
              spw_session_from_store(r.session));
    CHECK(spw_session_reused(going_on) == HELD && !spw_session_reused(fresh));
    spw_session_close(fresh);
    spw_session_close(going_on);
    close_run(&r);
    pack_remove_folder(cache);
}

/* More sequences in one step than one call of a kernel takes: prompts, then a token of each. */
static void check_many(struct subject *s)
{
    enum { MANY = SPW_STATE_PARTS + 9, LONGEST = 12 };
    struct spw_span spans[MANY];
    struct spw_error err = {0};
    struct spw_options o = s->o;
    struct run r;
    o.sessions = MANY + 1;
    o.context = 2 * SPW_TILE_TOKENS;
    open_run_with(&r, s, &o);
    for (size_t i = 0; i < MANY; i++)
        spans[i] = (struct spw_span){run_session(r.e), s->ids[i % 2], i % LONGEST, 1};
    for (size_t more = 0; more < 2; more++) {
        for (size_t i = 0; i < MANY; i++)
            spans[i].n_tokens++;
        const int rc = watch_sync(&r.watch, s, r.e, spans, MANY, s->n_tokens, &err);
        CHECK_MSG(rc == 0, "%s: %s", s->dir, err.text);
    }
    for (size_t i = 0; i < MANY; i++)
        spw_session_close(spans[i].session);
    close_run(&r);
}

/* A conversation of short turns, none of which ends with a tile: another process computes at most
 * 16 tiles of it again. */
static void check_turns(const struct tiny_model *m)
{
    enum { TURNS = 30, TURN = 97, MOST_AGAIN = 17 * SPW_TILE_TOKENS };
    static struct subject s;
    char cache[600];
    struct run r;
    subject_open(&s, m, "checkpoints_turns", TURNS * TURN + 1, &(struct spw_options){0});
    struct spw_options o = budgets(&s, false);
    snprintf(cache, sizeof cache, "%.500s_cache", s.folder);
    o.prefix_cache_dir = cache;
    open_run_with(&r, &s, &o);
    for (size_t n = TURN; n <= TURNS * TURN; n += TURN) {
        CHECK(go_to(&r, r.session, s.ids[0], n, 1) >= n - TURN);
        CHECK(spw_session_publish(r.session, NULL) == 0);
    }
    close_run(&r);
    open_run_with(&r, &s, &o);
    const size_t reused = go_to(&r, r.session, s.ids[0], TURNS * TURN + 1, 1);
    CHECK_MSG(reused + MOST_AGAIN > TURNS * TURN, "%s: reused %zu", s.dir, reused);
    close_run(&r);
    pack_remove_folder(cache);
    subject_close(&s);
}

/* ---- numbers that are not finite ---- */

static void check_not_finite(const struct tiny_model *m)
{
    static struct subject s;
    struct spw_error err = {0};
    subject_open(&s, m, "checkpoints_nan", 100, &(struct spw_options){0});
    tiny_model_spoil(s.folder, s.model, "linear_attn.dt_bias", 0);
    struct spw_engine *e = run_open(s.dir, &s.o);
    struct spw_session *session = run_session(e);
    for (size_t n = 50; n <= 51; n++) {
        const struct spw_span span = {session, s.ids[0], n, 1};
        CHECK(spw_sync(e, &span, 1, NULL, NULL, &err) == -EDOM);
        CHECK_MSG(strstr(err.text, "numbers of a layer are not finite"), "%s", err.text);
        CHECK(!spw_session_n_tokens(session) && !spw_session_logits(session));
    }
    spw_session_close(session);
    spw_engine_close(e);
    subject_close(&s);
}

int main(void)
{
    static struct subject subjects[N_TINY_STATES];
    if (!run_is_there())
        return CHECK_SKIP;
    for (int i = 0; i < N_TINY_STATES; i++) {
        subject_open(&subjects[i], &tiny_models[TINY_STATES + i], "checkpoints", TOKENS,
                     &(struct spw_options){0});
        check_conversation(&subjects[i], check_full() || (!i && !RUN_UNDER_ASAN) ? 1 : 13);
        check_chunks(&subjects[i]);
        check_edits(&subjects[i]);
        check_many(&subjects[i]);
        check_prefix(&subjects[i]);
        for (int least = 0; least < 2; least++)
            check_together(&subjects[i], least);
        subject_close(&subjects[i]);
        if (tiny_models[TINY_STATES + i].mixer !=
            TINY_CONV) /* which keeps only the newest inputs */
            check_not_finite(&tiny_models[TINY_STATES + i]);
    }
    check_turns(&tiny_models[TINY_STATES]);
    return check_done();
}
