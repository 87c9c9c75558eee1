/* Sessions as a caller sees them: reuse, cutting back, forking, limits, refusals, repetition. The
 * numbers in brackets are those of the list of cache behaviours that users rely on:
 *
 *    1 grouped heads      2 layers grow by appending      3 sliding windows
 *    5 refused in advance    6 peak and bytes     7 generate(4) = generate(3)+1
 *   10 seeds repeat   11 identical calls   12 forks share the prompt   13 one prefix, many prompts
 *   14 the matching part is reused    15 reuse past the window     16 cached = uncached
 *   17 positions follow tokens
 *
 * 8, the partners of a batch, and any order of all of this are walks of test_engine. */
#include "tests/batch_run.h"
#include "tests/engine/oracle.h"

#include "runtime/engine/engine.h"
#include "runtime/engine/memory.h"

enum { MOST = 900 };

/* A model with two sequences of MOST tokens that are the same as far as a check does not change the
 * second, and an engine under the options of the check. */
struct world {
    struct subject subject;
    const struct tiny_model *model;
    struct spw_options o;
    struct spw_engine *e;
    int32_t ids[MOST], other[MOST];
};

static void begin(struct world *w, const struct tiny_model *m, struct spw_options o, bool tight)
{
    *w = (struct world){.model = m, .o = o};
    subject_open(&w->subject, m, "session", MOST, &(struct spw_options){0});
    memcpy(w->ids, w->subject.ids[0], sizeof w->ids);
    memcpy(w->other, w->ids, sizeof w->ids);
    w->o.backend = TEST_BACKEND;
    if (tight)
        run_tight(w->subject.dir, &w->o, 0);
    w->e = run_open(w->subject.dir, &w->o);
}

static void end(struct world *w)
{
    run_check_peaks(w->e, &w->o, w->subject.dir);
    spw_engine_close(w->e);
    subject_close(&w->subject);
}

static void change(const struct world *w, int32_t *token)
{
    *token = (*token + 1) % (int32_t)w->model->vocab;
}

/* ---- reuse ---- */

/* Goes to ids[0..n) and checks the logits and the number of tokens reused. */
static void go(struct world *w, struct spw_session *s, const int32_t *ids, size_t n, size_t reused)
{
    const char *dir = w->subject.dir;
    CHECK_MSG(oracle_same(&w->subject, ids, n, run_to(s, w->e, ids, n)), "%s: %zu tokens", dir, n);
    CHECK_MSG(spw_session_reused(s) == reused, "%s: %zu tokens: reused %zu, expected %zu", dir, n,
              spw_session_reused(s), reused);
    CHECK(spw_session_n_tokens(s) == n);
}

static int n_with_tiles_below;

/* [1 2 3 13 14 15 16] Longer, equal, shorter, another last token, another beginning. `window`: the
 * model has sliding layers, which cannot be cut back further than what they still hold. `states`:
 * layers with a state are cut back to the ends of prompts, or to their borders. */
static void check_reuse(const struct tiny_model *m, bool tight)
{
    struct world w;
    begin(&w, m, (struct spw_options){.context = MOST, .threads = 2, .prefill_chunk = 130}, tight);
    struct spw_session *s = run_session(w.e);
    const bool window = spw_engine_config(w.e)->window, states = w.e->plan.n_states;
    const bool borders = states && spw_plan_cuts_at_borders(&w.e->plan);
    go(&w, s, w.ids, 700, 0);
    go(&w, s, w.ids, 700, 700); /* a suffix of length zero: the logits are kept */
    go(&w, s, w.ids, 701, 700);
    go(&w, s, w.ids, 830, 701); /* several tokens more */
    change(&w, &w.other[829]);
    const size_t kept = borders ? 768 : 701; /* of the prompt before */
    go(&w, s, w.other, 830, states ? kept : 829);
    go(&w, s, w.ids, 829, states ? kept : 828); /* shorter: the last token again, for its logits */
    change(&w, &w.other[699]);
    /* back past what a layer with a window still holds: nothing can be kept */
    go(&w, s, w.other, 720, borders ? 640 : window || states ? 0 : 699);
    go(&w, s, w.ids, 1, 0);
    go(&w, s, w.other, 300, 1);
    change(&w, &w.other[0]);
    go(&w, s, w.other, 20, 0);
    n_with_tiles_below += spw_engine_plan(w.e)->host.kv > 0;
    spw_session_close(s);
    end(&w);
}

/* [13 16] One prefix computed once and forked: its users leave it as it was. */
static void check_prefix(const struct tiny_model *m)
{
    struct world w;
    struct spw_error err = {0};
    begin(&w, m, (struct spw_options){.context = MOST, .sessions = 4, .threads = 2}, true);
    struct spw_session *prefix = run_session(w.e);
    go(&w, prefix, w.ids, 500, 0);
    for (uint64_t round = 0; round < 4; round++) {
        struct spw_session *user = NULL;
        size_t n = 420 + 40 * (size_t)round, reused = 499; /* longer than the prompt, equal, ... */
        run_ids(w.other + 499, MOST - 499, m->vocab, 100 + round);
        w.other[499] = w.ids[499];
        change(&w, &w.other[499]);
        CHECK_MSG(spw_session_fork(&user, prefix, &err) == 0, "%s", err.text);
        CHECK(spw_session_n_tokens(user) == 500);
        if (n < 500)
            reused = n - 1;
        go(&w, user, w.other, n, reused);
        go(&w, prefix, w.ids, 500, 500);
        spw_session_close(user);
    }
    go(&w, prefix, w.ids, 560, 500);
    spw_session_close(prefix);
    end(&w);
}

/* ---- forks ---- */

static uint32_t frames_held(struct spw_engine *e, struct spw_session *const *s, size_t n)
{
    const void *seen[256];
    uint32_t count = 0;
    for (size_t i = 0; i < n; i++)
        for (uint32_t l = 0; l < e->model.config.n_slices; l++)
            for (uint32_t t = spw_kv_begin(s[i]->seq.kv, l); t < spw_kv_end(s[i]->seq.kv, l); t++) {
                const void *frame = spw_kv_device_tile(s[i]->seq.kv, l, t);
                uint32_t k = 0;
                while (k < count && seen[k] != frame)
                    k++;
                if (k == count)
                    seen[count++] = frame;
            }
    return count;
}

/* [12] Three samples of one prompt hold its full tiles once. */
static void check_fork(void)
{
    struct world w;
    struct spw_error err = {0};
    const struct tiny_model *m = &tiny_models[0];
    begin(&w, m, (struct spw_options){.context = MOST, .sessions = 3, .threads = 1}, false);
    change(&w, &w.other[600]);
    struct spw_session *s[3] = {run_session(w.e)};
    go(&w, s[0], w.ids, 600, 0); /* 4 full tiles and 88 tokens */
    CHECK(frames_held(w.e, s, 1) == 5 * m->layers);
    CHECK(spw_session_fork(&s[1], s[0], &err) == 0 && spw_session_fork(&s[2], s[1], &err) == 0);
    CHECK(frames_held(w.e, s, 3) == 5 * m->layers);
    CHECK(run_same(spw_session_logits(s[2]), spw_session_logits(s[0]), m->vocab));
    go(&w, s[1], w.other, 601, 600);
    CHECK(frames_held(w.e, s, 3) == 6 * m->layers); /* its own tail */
    go(&w, s[0], w.ids, 640, 600);
    CHECK(frames_held(w.e, s, 3) == 7 * m->layers);
    go(&w, s[2], w.ids, 600, 600); /* the last one has the old tail to itself */
    spw_session_close(s[0]);
    go(&w, s[1], w.other, 700, 601);
    go(&w, s[2], w.ids, 700, 600);
    spw_session_close(s[1]);
    spw_session_close(s[2]);
    end(&w);
}

/* A fork goes on until its window has left what it shares: all that was shared has a copy below,
 * which the first one still holds. The planned host memory has room for it. */
static void check_left_behind(void)
{
    static const struct tiny_model m = {TINY("mistral", 3, 48, 80, 6, 2, 8, 96, 4096),
                                        .more = ",\"sliding_window\":1000", .untied = true,
                                        .seed = 5};
    enum { SHARED = 1408, ALL = 2600 };
    static int32_t ids[ALL];
    char dir[128];
    struct spw_plan_info info;
    struct spw_error err = {0};
    struct spw_session *fork = NULL;
    struct spw_backend b = run_backend(true);
    struct spw_options o = {
        .backend = TEST_BACKEND, .context = ALL, .sessions = 2, .threads = 2, .prefill_chunk = 64};
    run_folder(dir, &m, "left_behind");
    run_ids(ids, ALL, m.vocab, 3);
    run_tight_on(&b, dir, &o, 200 * 1000); /* so that a session keeps two tiles of a layer */
    CHECK_MSG(spw_plan_query_on(&info, &b, dir, &o, &err) == 0, "%s", err.text);
    o.host_bytes = info.smallest_host_bytes;
    struct spw_engine *e = run_open_on(&b, dir, &o);
    CHECK(e->plan.residency[SPW_LAYER_SLIDING].resident >= 2 && e->plan.n_host_frames);
    struct spw_session *s = run_session(e);
    run_to(s, e, ids, SHARED);
    CHECK(spw_session_fork(&fork, s, &err) == 0);
    for (size_t n = SHARED; n < ALL; n += 64)
        run_to(fork, e, ids, n + 64 < ALL ? n + 64 : ALL);
    spw_session_close(fork);
    spw_session_close(s);
    spw_engine_close(e);
    tiny_model_remove(dir);
}

/* ---- generation ---- */

static struct spw_result generate(struct spw_engine *e, const int32_t *ids, size_t n, size_t more,
                                  uint64_t seed)
{
    struct spw_error err = {0};
    struct spw_result r;
    struct spw_request q = {.prompt = ids,
                            .n_prompt = n,
                            .max_new_tokens = more,
                            .ignore_eos = true,
                            .sampling = {.temperature = seed ? 1.0f : 0.0f, .seed = seed}};
    struct spw_request before = q;
    CHECK_MSG(batch_run(e, NULL, &q, 1, &r, NULL, &err) == 0, "%s", err.text);
    CHECK(memcmp(&before, &q, sizeof q) == 0); /* [11] the caller's options stay */
    return r;
}

static bool same_result(const struct spw_result *a, const struct spw_result *b)
{
    return a->n_tokens == b->n_tokens && a->logits_hash == b->logits_hash &&
           memcmp(a->tokens, b->tokens, a->n_tokens * sizeof *a->tokens) == 0;
}

/* [7 10 11] */
static void check_generate(const struct tiny_model *m)
{
    struct world w;
    begin(&w, m, (struct spw_options){.context = 700, .threads = 2}, true);
    struct spw_options free_one = {.backend = TEST_BACKEND, .context = 700, .threads = 2};
    struct spw_engine *unlimited = run_open(w.subject.dir, &free_one);
    enum { FOUR, AGAIN, THREE, SAMPLED, ELSEWHERE, OTHER_SEED, ALL };
    struct spw_result r[ALL] = {[FOUR] = generate(w.e, w.ids, 300, 4, 0),
                                [AGAIN] = generate(w.e, w.ids, 300, 4, 0),
                                [THREE] = generate(w.e, w.ids, 300, 3, 0),
                                [SAMPLED] = generate(w.e, w.ids, 300, 256, 11),
                                [ELSEWHERE] = generate(unlimited, w.ids, 300, 256, 11),
                                [OTHER_SEED] = generate(w.e, w.ids, 300, 256, 12)};
    CHECK(same_result(&r[FOUR], &r[AGAIN]) && r[THREE].n_tokens == 3);
    CHECK(memcmp(r[THREE].tokens, r[FOUR].tokens, sizeof(int32_t[3])) == 0);
    CHECK(same_result(&r[SAMPLED], &r[ELSEWHERE]) && !same_result(&r[SAMPLED], &r[OTHER_SEED]));
    for (int i = 0; i < ALL; i++)
        spw_result_free(&r[i]);
    spw_engine_close(unlimited);
    end(&w);
}

/* ---- refusals ---- */

/* [5] Refused before anything is computed, with a text, and nothing has changed. */
static void check_refusals(void)
{
    struct world w;
    int32_t bad[MOST];
    const struct tiny_model *m = &tiny_models[0];
    struct spw_error err = {0};
    struct spw_session *third = NULL;
    begin(&w, m, (struct spw_options){.context = 300, .sessions = 2, .threads = 1}, false);
    struct spw_engine *e = w.e, *stranger = run_open(w.subject.dir, &w.o);
    struct spw_session *a = run_session(e), *b = run_session(e), *foreign = run_session(stranger);
    const int32_t *ids = w.ids;
    CHECK(spw_session_open(&third, e, &err) == -ENOMEM && err.text[0] && !third);
    spw_error_clear(&err);
    CHECK(spw_session_fork(&third, a, &err) == -ENOMEM && err.text[0] && !third);
    go(&w, a, ids, 300, 0); /* the whole context */
    struct {
        struct spw_span spans[2];
        size_t n;
        int rc;
        int32_t at, token;
    } cases[] = {
        {{{a, ids, 301, 1}}, 1, -E2BIG, 0, 0},
        {{{b, ids, 10, 1}, {a, ids, 301, 1}}, 2, -E2BIG, 0, 0},
        {{{a, ids, 0, 0}}, 1, -EINVAL, 0, 0},
        {{{a, ids, 10, 1}, {a, ids, 20, 1}}, 2, -EINVAL, 0, 0},
        {{{a, bad, 20, 1}}, 1, -EINVAL, 19, -1},
        {{{b, ids, 10, 1}, {a, bad, 20, 1}}, 2, -EINVAL, 0, (int32_t)m->vocab},
        {{{b, ids, 10, 1}, {a, bad, 20, 1}}, 2, -EINVAL, 7, INT32_MIN},
        {{{foreign, ids, 10, 1}}, 1, -EINVAL, 0, 0},
        {{{NULL, ids, 10, 1}}, 1, -EINVAL, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memcpy(bad, ids, sizeof bad);
        bad[cases[i].at] = cases[i].token;
        spw_error_clear(&err);
        int rc = spw_sync(e, cases[i].spans, cases[i].n, NULL, NULL, &err);
        CHECK_MSG(rc == cases[i].rc, "case %zu: %d", i, rc);
        CHECK_MSG(err.text[0] && !strchr(err.text, '\n'), "case %zu: no line of text", i);
        CHECK(spw_session_n_tokens(a) == 300 && spw_session_n_tokens(b) == 0);
        CHECK(oracle_same(&w.subject, ids, 300, spw_session_logits(a)));
    }
    go(&w, a, ids, 300, 300);
    spw_session_close(b); /* a place is free again */
    CHECK(spw_session_fork(&third, a, &err) == 0);
    go(&w, third, ids, 300, 300);
    spw_session_close(third);
    spw_session_close(a);
    spw_session_close(foreign);
    spw_engine_close(stranger);
    end(&w);
}

/* Options and budgets that cannot work: the text names the smallest budget, and that one works. */
static void check_budgets(void)
{
    char dir[128];
    const struct tiny_model *m = &tiny_models[0];
    struct spw_options o = {.backend = TEST_BACKEND, .context = 1000, .threads = 1};
    struct spw_error err = {0};
    struct spw_engine *e = NULL;
    struct spw_plan_info info;
    char number[32];
    run_folder(dir, m, "budgets");
    o.device_bytes = SPW_NONE;
    CHECK(spw_plan_query(&info, dir, &o, &err) == -ENOMEM && info.smallest_device_bytes);
    spw_bytes_text(number, info.smallest_device_bytes);
    CHECK_MSG(strstr(err.text, number), "%s", err.text);
    spw_error_clear(&err);
    o.device_bytes = info.smallest_device_bytes - 1;
    CHECK(spw_engine_open(&e, dir, &o, &err) == -ENOMEM && !e && strstr(err.text, number));
    spw_error_clear(&err);
    o.device_bytes = info.smallest_device_bytes;
    o.host_bytes = SPW_NONE;
    CHECK(spw_engine_open(&e, dir, &o, &err) == -ENOMEM && !e && strstr(err.text, "host memory"));
    o.host_bytes = 0;
    e = run_open(dir, &o);
    spw_engine_close(e);
    struct spw_options wrong[] = {
        {.context = 5000},          {.sessions = 100000},    {.prefill_chunk = 1u << 20},
        {.prefetch_slots = 100000}, {.prefetch_splits = 65}, {.compute = SPW_DTYPE_F16},
        {.threads = UINT32_MAX},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        e = NULL;
        spw_error_clear(&err);
        CHECK_MSG(spw_engine_open(&e, dir, &wrong[i], &err) == -EINVAL && !e && err.text[0],
                  "case %zu: %s", i, err.text);
    }
    tiny_model_remove(dir);
}

/* A budget above what the machine has is no reason to refuse what fits, and is a plan, but nothing
 * that memory is taken for: to use it would end in a kill. Positions without end make a cache of
 * any size from a tiny model. */
static void check_machine(void)
{
    const struct tiny_model m = {TINY("llama", 2, 32, 48, 2, 1, 16, 67, 200),
                                 .more =
                                     ",\"rope_scaling\":{\"rope_type\":\"dynamic\",\"factor\":2.0}",
                                 .untied = true, .seed = 72};
    char dir[128];
    struct spw_error err = {0};
    struct spw_engine *e = NULL;
    struct spw_plan_info info;
    struct spw_options o = {.backend = TEST_BACKEND,
                            .context = (uint64_t)1 << 24,
                            .device_bytes = (uint64_t)1 << 46,
                            .threads = 1};
    run_folder(dir, &m, "machine");
    CHECK_MSG(spw_plan_query(&info, dir, &o, &err) == 0, "%s", err.text);
    uint64_t each = o.context * info.kv_bytes_per_token;
    o.context = 1000;
    spw_engine_close(run_open(dir, &o));
    o.context = (uint64_t)1 << 24;
    o.sessions = (uint32_t)(spw_memory_available() / each * 9 / 8 + 1);
    CHECK_MSG(spw_plan_query(&info, dir, &o, &err) == 0, "%s", err.text);
    CHECK(info.device.total > o.sessions * each);
    CHECK(spw_engine_open(&e, dir, &o, &err) == -ENOMEM && !e);
    CHECK_MSG(strstr(err.text, "this machine has only") != NULL, "%s", err.text);
    tiny_model_remove(dir);
}

/* [17] A rope table that depends on the length: past the border each length is its own. */
static void check_dynamic_rope(void)
{
    const struct tiny_model m = {TINY("llama", 2, 32, 48, 2, 1, 16, 67, 200),
                                 .more =
                                     ",\"rope_scaling\":{\"rope_type\":\"dynamic\",\"factor\":2.0}",
                                 .untied = true, .seed = 71};
    struct world w;
    struct spw_error err = {0};
    struct spw_options o = {.context = 500, .sessions = 2, .threads = 2, .prefill_chunk = 64};
    begin(&w, &m, o, true);
    w.subject.each_length = true;
    const int32_t *ids = w.ids, *others = w.subject.ids[2];
    struct spw_session *s = run_session(w.e), *other = run_session(w.e);
    go(&w, s, ids, 190, 0);
    go(&w, s, ids, 200, 190); /* up to the border the table is the usual one */
    go(&w, s, ids, 201, 0);   /* past it nothing holds */
    go(&w, s, ids, 400, 0);
    go(&w, s, ids, 400, 400);
    go(&w, other, others, 150, 0); /* the other session's table is not this one's */
    go(&w, s, ids, 401, 0);
    struct spw_span spans[2] = {{s, ids, 250, 1}, {other, others, 151, 1}};
    CHECK_MSG(spw_sync(w.e, spans, 2, NULL, NULL, &err) == 0, "%s", err.text);
    CHECK(oracle_same(&w.subject, ids, 250, spw_session_logits(s)));
    CHECK(oracle_same(&w.subject, others, 151, spw_session_logits(other)));
    CHECK(spw_session_reused(other) == 150);
    go(&w, s, ids, 150, 0); /* and back below it */
    spw_session_close(s);
    spw_session_close(other);
    end(&w);
}

/* The same with two tables: sequences past the border share the second one. */
static void check_long_rope(void)
{
    const struct tiny_model m = {
        TINY("llama", 2, 32, 48, 2, 1, 8, 67, 1000),
        .more = ",\"original_max_position_embeddings\":200,\"rope_scaling\":{\"rope_type\":"
                "\"longrope\",\"short_factor\":[1,1.5,2,3],\"long_factor\":[2,3,5,9]}",
        .untied = true, .seed = 73};
    struct world w;
    struct spw_error err = {0};
    struct spw_options o = {.context = 500, .sessions = 2, .threads = 2, .prefill_chunk = 64};
    begin(&w, &m, o, true);
    const int32_t *ids = w.ids, *others = w.subject.ids[2];
    struct spw_session *s = run_session(w.e), *other = run_session(w.e);
    go(&w, s, ids, 190, 0);
    go(&w, s, ids, 200, 190);
    go(&w, s, ids, 201, 0); /* past the border all is computed again, once */
    go(&w, s, ids, 300, 201);
    go(&w, other, others, 150, 0);
    go(&w, s, ids, 301, 300); /* another table was on the device between */
    struct spw_span spans[2] = {{s, ids, 350, 1}, {other, others, 320, 1}};
    CHECK_MSG(spw_sync(w.e, spans, 2, NULL, NULL, &err) == 0, "%s", err.text);
    CHECK(oracle_same(&w.subject, ids, 350, spw_session_logits(s)));
    CHECK(oracle_same(&w.subject, others, 320, spw_session_logits(other)));
    CHECK(spw_session_reused(s) == 301 && spw_session_reused(other) == 0);
    go(&w, s, ids, 150, 0); /* and back below it */
    const struct spw_sync_options few = {.most_chunks = 2};
    const struct spw_span prompt = {s, ids, 400, 1};
    int n_paused = 0, rc;
    while ((rc = spw_engine_sync(w.e, &prompt, 1, &few, NULL, NULL, &err)) == -EAGAIN) {
        if (!n_paused++) /* beside a prompt with the second table, one with the first */
            go(&w, other, others, 60, 0);
        else
            go(&w, other, others, 59 + (size_t)n_paused, 58 + (size_t)n_paused);
        CHECK(w.e->executor->steps[0].is_paused);
    }
    CHECK_MSG(rc == 0 && n_paused == 6, "%d, paused %d times: %s", rc, n_paused, err.text);
    CHECK(oracle_same(&w.subject, ids, 400, spw_session_logits(s)));
    spw_session_close(s);
    spw_session_close(other);
    end(&w);
}

/* [6] Bytes of a decode step over the link: the tiles that stream, one token's embedding, the
 * logits; and nothing goes down but what becomes old, once in 128 tokens. */
static void check_decode_bytes(void)
{
    struct world w;
    const struct tiny_model *m = &tiny_models[0];
    begin(&w, m, (struct spw_options){.context = MOST, .threads = 1}, true);
    struct spw_engine *e = w.e;
    struct spw_session *s = run_session(e);
    uint64_t tile = e->plan.tile_bytes, down = 0, spilled = 0;
    run_to(s, e, w.ids, 640);
    for (size_t n = 641; n <= 900; n++) {
        struct spw_stats before, after;
        struct spw_waterlines was, is;
        spw_engine_stats(e, &before);
        spw_session_waterlines(s, &was);
        run_to(s, e, w.ids, n);
        spw_engine_stats(e, &after);
        spw_session_waterlines(s, &is);
        down = after.moved_bytes[SPW_MOVED_DEVICE_TO_HOST] -
               before.moved_bytes[SPW_MOVED_DEVICE_TO_HOST];
        uint64_t old = (is.host_end - was.host_end) / SPW_TILE_TOKENS * m->layers;
        spilled += old;
        CHECK_MSG(down == m->vocab * sizeof(float) + old * tile, "%zu tokens: %llu bytes down", n,
                  (unsigned long long)down);
        CHECK(old == 0 || n % SPW_TILE_TOKENS == 1);
    }
    CHECK(spilled == 3 * m->layers);
    spw_session_close(s);
    end(&w);
}

/* Where a chunk begins, nothing of earlier chunks is needed: a session can be cut back to there,
 * however far it has gone on. */
static void check_border(void)
{
    struct tiny_model m = tiny_models[7];
    struct world w;
    char more[300];
    snprintf(more, sizeof more, ",\"attention_chunk_size\":256%s", strchr(m.more + 1, ','));
    m.more = more;
    begin(&w, &m, (struct spw_options){.context = MOST, .threads = 2, .prefill_chunk = 130}, true);
    struct spw_session *s = run_session(w.e);
    go(&w, s, w.ids, 830, 0);
    change(&w, &w.other[700]);
    go(&w, s, w.other, 720, 512);
    change(&w, &w.other[511]);
    go(&w, s, w.other, 600, 256);
    change(&w, &w.other[100]);
    go(&w, s, w.other, 300, 0);
    spw_session_close(s);
    end(&w);
}

int main(void)
{
    int64_t outstanding = spw_alloc_outstanding();
    for (int i = 0; i < N_TINY_MODELS; i++)
        for (int tight = 0; tight < 2; tight++)
            check_reuse(&tiny_models[i], tight);
    CHECK(n_with_tiles_below >= 3);
    check_border();
    check_prefix(&tiny_models[0]);
    check_prefix(&tiny_models[2]);
    check_fork();
    check_left_behind();
    check_generate(&tiny_models[0]);
    check_generate(&tiny_models[5]);
    check_refusals();
    check_budgets();
    check_machine();
    check_dynamic_rope();
    check_long_rope();
    check_decode_bytes();
    CHECK(spw_alloc_outstanding() == outstanding);
    return check_done();
}
