/* Sessions as a caller sees them: reuse, cutting back, forking, limits, refusals, repetition. The
 * numbers in brackets are those of the list of cache behaviours that users rely on:
 *
 *    1 grouped heads      2 layers grow by appending      3 sliding windows     5 refused in
 * advance 6 peak and bytes     7 generate(4) = generate(3)+1   8 batch partners     10 seeds repeat
 *   11 identical calls   12 forks share the prompt       13 one prefix, many prompts
 *   14 the matching part is reused    15 reuse past the window     16 cached = uncached
 *   17 positions follow tokens */
#include "tests/batch_run.h"
#include "tests/engine/engine_run.h"

#include "runtime/engine/engine.h"
#include "runtime/engine/memory.h"

enum { MOST = 900, MOST_VOCAB = 128 };

/* ---- reuse ---- */

/* The answer of a session that never held anything else. */
static void fresh(const char *dir, const struct spw_options *o, const int32_t *ids, size_t n,
                  float out[MOST_VOCAB])
{
    struct spw_options unlimited = {.backend = TEST_BACKEND, .context = o->context, .threads = 1};
    struct spw_engine *e = run_open(dir, &unlimited);
    struct spw_session *s = run_session(e);
    const float *logits = run_to(s, e, ids, n);
    memset(out, 0, MOST_VOCAB * sizeof *out);
    if (logits)
        memcpy(out, logits, spw_engine_config(e)->vocab * sizeof *out);
    spw_session_close(s);
    spw_engine_close(e);
}

/* Goes to ids[0..n) and checks the logits against a fresh run and the number of tokens reused. */
static void go(struct spw_engine *e, struct spw_session *s, const char *dir,
               const struct spw_options *o, const int32_t *ids, size_t n, size_t reused)
{
    float expected[MOST_VOCAB];
    const float *logits = run_to(s, e, ids, n);
    fresh(dir, o, ids, n, expected);
    CHECK_MSG(run_same(logits, expected, spw_engine_config(e)->vocab), "%s: %zu tokens", dir, n);
    CHECK_MSG(spw_session_reused(s) == reused, "%s: %zu tokens: reused %zu, expected %zu", dir, n,
              spw_session_reused(s), reused);
    CHECK(spw_session_n_tokens(s) == n);
}

static int n_with_tiles_below;

/* [1 2 3 13 14 15 16] Longer, equal, shorter, another last token, another beginning. `window`: the
 * model has sliding layers, which cannot be cut back further than what they still hold. */
static void check_reuse(const struct tiny_model *m, bool tight, bool window)
{
    char dir[128];
    int32_t ids[MOST], other[MOST];
    struct spw_options o = {
        .backend = TEST_BACKEND, .context = MOST, .threads = 2, .prefill_chunk = 130};
    run_folder(dir, m, "session");
    run_ids(ids, MOST, m->vocab, 5);
    memcpy(other, ids, sizeof ids);
    if (tight)
        run_tight(dir, &o, 0);
    struct spw_engine *e = run_open(dir, &o);
    struct spw_session *s = run_session(e);
    go(e, s, dir, &o, ids, 700, 0);
    go(e, s, dir, &o, ids, 700, 700); /* a suffix of length zero: the logits are kept */
    go(e, s, dir, &o, ids, 701, 700);
    go(e, s, dir, &o, ids, 830, 701); /* several tokens more */
    other[829] = (other[829] + 1) % (int32_t)m->vocab;
    go(e, s, dir, &o, other, 830, 829);
    go(e, s, dir, &o, ids, 829, 828); /* shorter: the last token once more, for its logits */
    other[699] = (other[699] + 1) % (int32_t)m->vocab;
    /* back past what a sliding layer still holds: nothing can be kept */
    go(e, s, dir, &o, other, 720, window ? 0 : 699);
    go(e, s, dir, &o, ids, 1, 0);
    go(e, s, dir, &o, other, 300, 1);
    other[0] = (other[0] + 1) % (int32_t)m->vocab;
    go(e, s, dir, &o, other, 20, 0);
    run_check_account(e, &o, "reuse");
    n_with_tiles_below += spw_engine_plan(e)->host.kv > 0;
    spw_session_close(s);
    spw_engine_close(e);
    tiny_model_remove(dir);
}

/* [13 16] One prefix computed once and forked: its users leave it as it was. */
static void check_prefix(const struct tiny_model *m)
{
    char dir[128];
    int32_t ids[MOST], other[MOST];
    struct spw_options o = {.backend = TEST_BACKEND, .context = MOST, .sessions = 4, .threads = 2};
    run_folder(dir, m, "prefix");
    run_tight(dir, &o, 0);
    run_ids(ids, MOST, m->vocab, 9);
    struct spw_engine *e = run_open(dir, &o);
    struct spw_session *prefix = run_session(e);
    struct spw_error err = {0};
    go(e, prefix, dir, &o, ids, 500, 0);
    for (uint64_t round = 0; round < 4; round++) {
        struct spw_session *user = NULL;
        size_t n = 420 + 40 * (size_t)round, reused = 499; /* longer than the prompt, equal, ... */
        memcpy(other, ids, sizeof ids);
        run_ids(other + 499, MOST - 499, m->vocab, 100 + round);
        other[499] = (ids[499] + 1) % (int32_t)m->vocab;
        CHECK_MSG(spw_session_fork(&user, prefix, &err) == 0, "%s", err.text);
        CHECK(spw_session_n_tokens(user) == 500);
        if (n < 500)
            reused = n - 1;
        go(e, user, dir, &o, other, n, reused);
        go(e, prefix, dir, &o, ids, 500, 500);
        spw_session_close(user);
    }
    go(e, prefix, dir, &o, ids, 560, 500);
    spw_session_close(prefix);
    spw_engine_close(e);
    tiny_model_remove(dir);
}

/* ---- forks ---- */

static uint32_t frames_held(struct spw_engine *e, struct spw_session *const *s, size_t n)
{
    const void *seen[256];
    uint32_t count = 0;
    for (size_t i = 0; i < n; i++)
        for (uint32_t l = 0; l < e->model.config.n_layers; l++)
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
    char dir[128];
    int32_t ids[MOST], other[MOST];
    struct spw_options o = {.backend = TEST_BACKEND, .context = MOST, .sessions = 3, .threads = 1};
    struct spw_error err = {0};
    const struct tiny_model *m = &tiny_models[0];
    run_folder(dir, m, "fork");
    run_ids(ids, MOST, m->vocab, 3);
    memcpy(other, ids, sizeof ids);
    other[600] = (other[600] + 1) % (int32_t)m->vocab;
    struct spw_engine *e = run_open(dir, &o);
    struct spw_session *s[3] = {run_session(e)};
    go(e, s[0], dir, &o, ids, 600, 0); /* 4 full tiles and 88 tokens */
    CHECK(frames_held(e, s, 1) == 5 * m->layers);
    CHECK(spw_session_fork(&s[1], s[0], &err) == 0 && spw_session_fork(&s[2], s[1], &err) == 0);
    CHECK(frames_held(e, s, 3) == 5 * m->layers);
    CHECK(memcmp(spw_session_logits(s[2]), spw_session_logits(s[0]), m->vocab * sizeof(float)) ==
          0);
    go(e, s[1], dir, &o, other, 601, 600);
    CHECK(frames_held(e, s, 3) == 6 * m->layers); /* its own tail */
    go(e, s[0], dir, &o, ids, 640, 600);
    CHECK(frames_held(e, s, 3) == 7 * m->layers);
    go(e, s[2], dir, &o, ids, 600, 600); /* the last one has the old tail to itself */
    spw_session_close(s[0]);
    go(e, s[1], dir, &o, other, 700, 601);
    go(e, s[2], dir, &o, ids, 700, 600);
    spw_session_close(s[1]);
    spw_session_close(s[2]);
    spw_engine_close(e);
    tiny_model_remove(dir);
}

/* ---- batches ---- */

struct rows {
    float *rows; /* [spans][MOST][vocab] */
    uint32_t vocab;
    size_t last[3], n[3], wrong_order;
};

/* A fork goes on until its window has left what it shares: all that was shared has a copy below,
 * which the first one still holds. The planned host memory has room for it. */
static void check_left_behind(void)
{
    static const struct tiny_model m = {
        "mistral", 3,     48,    80,   6,     2, 8, 96, 4096, ",\"sliding_window\":1000",
        false,     false, false, true, false, 5};
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
    run_tight_on(&b, dir, &o, 100 * 1000); /* so that a session keeps two tiles of a layer */
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

static void keep(void *context, size_t span, size_t position, const float *logits)
{
    struct rows *r = context;
    r->wrong_order += r->n[span] && position != r->last[span] + 1;
    r->last[span] = position;
    r->n[span]++;
    memcpy(r->rows + (span * MOST + position) * r->vocab, logits, r->vocab * sizeof *logits);
}

/* [8] The partners of a batch and their order change nothing; rows come in position order. */
static void check_batch(const struct tiny_model *m)
{
    static const size_t lengths[3] = {333, 1, 150};
    char dir[128];
    int32_t ids[3][MOST];
    struct spw_error err = {0};
    struct spw_options o = {
        .backend = TEST_BACKEND, .context = 400, .sessions = 3, .threads = 2, .prefill_chunk = 100};
    struct rows batch = {.vocab = m->vocab}, alone = {.vocab = m->vocab};
    run_folder(dir, m, "batch");
    run_tight(dir, &o, 0);
    for (int i = 0; i < 3; i++)
        run_ids(ids[i], MOST, m->vocab, (uint64_t)i);
    batch.rows = calloc(3u * MOST * m->vocab, sizeof(float));
    alone.rows = calloc(3u * MOST * m->vocab, sizeof(float));
    struct spw_engine *e = run_open(dir, &o);
    struct spw_session *s[3] = {run_session(e), run_session(e), run_session(e)};
    struct spw_span spans[3], backwards[3];
    for (size_t i = 0; i < 3; i++)
        spans[i] = backwards[2 - i] = (struct spw_span){s[i], ids[i], lengths[i], lengths[i]};
    CHECK_MSG(spw_sync(e, spans, 3, keep, &batch, &err) == 0, "%s", err.text);
    for (size_t i = 0; i < 3; i++) {
        struct rows one = alone;
        one.rows += i * MOST * m->vocab;
        struct spw_session *t = s[i];
        int32_t reset = 0;
        struct spw_span empty = {t, &reset, 1, 0};
        CHECK(spw_sync(e, &empty, 1, NULL, NULL, &err) == 0);
        CHECK_MSG(spw_sync(e, &spans[i], 1, keep, &one, &err) == 0, "%s", err.text);
        CHECK(one.n[0] == lengths[i] && batch.n[i] == lengths[i]);
    }
    CHECK(!batch.wrong_order);
    CHECK(memcmp(batch.rows, alone.rows, 3u * MOST * m->vocab * sizeof(float)) == 0);
    memset(alone.rows, 0, 3u * MOST * m->vocab * sizeof(float));
    CHECK_MSG(spw_sync(e, backwards, 3, keep, &alone, &err) == 0, "%s", err.text);
    for (size_t i = 0; i < 3; i++)
        CHECK(memcmp(alone.rows + (2 - i) * MOST * m->vocab, batch.rows + i * MOST * m->vocab,
                     lengths[i] * m->vocab * sizeof(float)) == 0);
    for (int i = 0; i < 3; i++)
        spw_session_close(s[i]);
    spw_engine_close(e);
    free(batch.rows);
    free(alone.rows);
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
    char dir[128];
    int32_t ids[MOST];
    struct spw_options free_one = {.backend = TEST_BACKEND, .context = 700, .threads = 2},
                       o = free_one;
    run_folder(dir, m, "generate");
    run_tight(dir, &o, 0);
    run_ids(ids, MOST, m->vocab, 4);
    struct spw_engine *e = run_open(dir, &o), *unlimited = run_open(dir, &free_one);
    struct spw_result four = generate(e, ids, 300, 4, 0), again = generate(e, ids, 300, 4, 0);
    CHECK(same_result(&four, &again));
    /* three, then one more from the kept state */
    struct spw_session *s = run_session(e);
    int32_t tokens[304];
    memcpy(tokens, ids, 300 * sizeof *ids);
    for (size_t i = 0; i < 4; i++) {
        const float *logits = run_to(s, e, tokens, 300 + i);
        tokens[300 + i] = logits ? model_argmax(logits, m->vocab) : -1;
        CHECK(spw_session_reused(s) == (i ? 299 + i : 0));
    }
    CHECK(memcmp(tokens + 300, four.tokens, sizeof(int32_t[4])) == 0);
    spw_session_close(s);
    struct spw_result three = generate(e, ids, 300, 3, 0);
    CHECK(memcmp(three.tokens, four.tokens, sizeof(int32_t[3])) == 0);
    struct spw_result sampled = generate(e, ids, 300, 256, 11);
    struct spw_result other_cache = generate(unlimited, ids, 300, 256, 11);
    struct spw_result other_seed = generate(e, ids, 300, 256, 12);
    CHECK(same_result(&sampled, &other_cache) && !same_result(&sampled, &other_seed));
    struct spw_result *all[] = {&four, &again, &three, &sampled, &other_cache, &other_seed};
    for (int i = 0; i < 6; i++)
        spw_result_free(all[i]);
    run_check_account(e, &o, "generate");
    spw_engine_close(e);
    spw_engine_close(unlimited);
    tiny_model_remove(dir);
}

/* ---- refusals ---- */

/* [5] Refused before anything is computed, with a text, and nothing has changed. */
static void check_refusals(void)
{
    char dir[128];
    int32_t ids[MOST], bad[MOST];
    const struct tiny_model *m = &tiny_models[0];
    struct spw_options o = {.backend = TEST_BACKEND, .context = 300, .sessions = 2, .threads = 1};
    struct spw_error err = {0};
    struct spw_session *third = NULL;
    run_folder(dir, m, "refuse");
    run_ids(ids, MOST, m->vocab, 8);
    struct spw_engine *e = run_open(dir, &o), *stranger = run_open(dir, &o);
    struct spw_session *a = run_session(e), *b = run_session(e), *foreign = run_session(stranger);
    CHECK(spw_session_open(&third, e, &err) == -ENOMEM && err.text[0] && !third);
    spw_error_clear(&err);
    CHECK(spw_session_fork(&third, a, &err) == -ENOMEM && err.text[0] && !third);
    go(e, a, dir, &o, ids, 300, 0); /* the whole context */
    float kept[MOST_VOCAB];
    memcpy(kept, spw_session_logits(a), m->vocab * sizeof *kept);
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
        memcpy(bad, ids, sizeof ids);
        bad[cases[i].at] = cases[i].token;
        spw_error_clear(&err);
        int rc = spw_sync(e, cases[i].spans, cases[i].n, NULL, NULL, &err);
        CHECK_MSG(rc == cases[i].rc, "case %zu: %d", i, rc);
        CHECK_MSG(err.text[0] && !strchr(err.text, '\n'), "case %zu: no line of text", i);
        CHECK(spw_session_n_tokens(a) == 300 && spw_session_n_tokens(b) == 0);
        CHECK(run_same(spw_session_logits(a), kept, m->vocab));
    }
    go(e, a, dir, &o, ids, 300, 300);
    spw_session_close(b); /* a place is free again */
    CHECK(spw_session_fork(&third, a, &err) == 0);
    go(e, third, dir, &o, ids, 300, 300);
    spw_session_close(third);
    spw_session_close(a);
    spw_session_close(foreign);
    spw_engine_close(e);
    spw_engine_close(stranger);
    tiny_model_remove(dir);
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
    o.device_bytes = SPW_BYTES_NONE;
    CHECK(spw_plan_query(&info, dir, &o, &err) == -ENOMEM && info.smallest_device_bytes);
    spw_bytes_text(number, info.smallest_device_bytes);
    CHECK_MSG(strstr(err.text, number), "%s", err.text);
    spw_error_clear(&err);
    o.device_bytes = info.smallest_device_bytes - 1;
    CHECK(spw_engine_open(&e, dir, &o, &err) == -ENOMEM && !e && strstr(err.text, number));
    spw_error_clear(&err);
    o.device_bytes = info.smallest_device_bytes;
    o.host_bytes = SPW_BYTES_NONE;
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
    const struct tiny_model m = {
        "llama", 2,     32,    48,   2,
        1,       16,    67,    200,  ",\"rope_scaling\":{\"rope_type\":\"dynamic\",\"factor\":2.0}",
        false,   false, false, true, false,
        72};
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
    const struct tiny_model m = {
        "llama", 2,     32,    48,   2,
        1,       16,    67,    200,  ",\"rope_scaling\":{\"rope_type\":\"dynamic\",\"factor\":2.0}",
        false,   false, false, true, false,
        71};
    char dir[128];
    int32_t ids[2][MOST];
    struct spw_error err = {0};
    struct spw_options o = {
        .backend = TEST_BACKEND, .context = 500, .sessions = 2, .threads = 2, .prefill_chunk = 64};
    run_folder(dir, &m, "dynamic");
    run_tight(dir, &o, 0);
    run_ids(ids[0], MOST, m.vocab, 1);
    run_ids(ids[1], MOST, m.vocab, 2);
    struct spw_engine *e = run_open(dir, &o);
    struct spw_session *s = run_session(e), *other = run_session(e);
    go(e, s, dir, &o, ids[0], 190, 0);
    go(e, s, dir, &o, ids[0], 200, 190); /* up to the border the table is the usual one */
    go(e, s, dir, &o, ids[0], 201, 0);   /* past it nothing holds */
    go(e, s, dir, &o, ids[0], 400, 0);
    go(e, s, dir, &o, ids[0], 400, 400);
    go(e, other, dir, &o, ids[1], 150, 0); /* the other session's table is not this one's */
    go(e, s, dir, &o, ids[0], 401, 0);
    struct spw_span spans[2] = {{s, ids[0], 250, 1}, {other, ids[1], 151, 1}};
    float expected[2][MOST_VOCAB];
    CHECK_MSG(spw_sync(e, spans, 2, NULL, NULL, &err) == 0, "%s", err.text);
    fresh(dir, &o, ids[0], 250, expected[0]);
    fresh(dir, &o, ids[1], 151, expected[1]);
    CHECK(run_same(spw_session_logits(s), expected[0], m.vocab));
    CHECK(run_same(spw_session_logits(other), expected[1], m.vocab));
    CHECK(spw_session_reused(other) == 150);
    go(e, s, dir, &o, ids[0], 150, 0); /* and back below it */
    run_check_account(e, &o, "dynamic rope");
    spw_session_close(s);
    spw_session_close(other);
    spw_engine_close(e);
    tiny_model_remove(dir);
}

/* [6] Bytes of a decode step over the link: the tiles that stream, one token's embedding, the
 * logits; and nothing goes down but what becomes old, once in 128 tokens. */
static void check_decode_bytes(void)
{
    char dir[128];
    int32_t ids[MOST];
    const struct tiny_model *m = &tiny_models[0];
    struct spw_options o = {.backend = TEST_BACKEND, .context = MOST, .threads = 1};
    run_folder(dir, m, "bytes");
    run_tight(dir, &o, 0);
    run_ids(ids, MOST, m->vocab, 1);
    struct spw_engine *e = run_open(dir, &o);
    struct spw_session *s = run_session(e);
    uint64_t tile = e->plan.tile_bytes, down = 0, spilled = 0;
    run_to(s, e, ids, 640);
    for (size_t n = 641; n <= 900; n++) {
        struct spw_stats before, after;
        struct spw_waterlines was, is;
        spw_engine_stats(e, &before);
        spw_session_waterlines(s, &was);
        run_to(s, e, ids, n);
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
    spw_engine_close(e);
    tiny_model_remove(dir);
}

int main(void)
{
    int64_t outstanding = spw_alloc_outstanding();
    for (int i = 0; i < N_TINY_MODELS; i++)
        for (int tight = 0; tight < 2; tight++)
            check_reuse(&tiny_models[i], tight,
                        strstr(tiny_models[i].more ? tiny_models[i].more : "", "sliding_window") !=
                            NULL);
    CHECK(n_with_tiles_below >= 3);
    check_prefix(&tiny_models[0]);
    check_prefix(&tiny_models[2]);
    check_fork();
    check_left_behind();
    check_batch(&tiny_models[1]);
    check_batch(&tiny_models[4]);
    check_batch(&tiny_models[5]);
    check_generate(&tiny_models[0]);
    check_generate(&tiny_models[5]);
    check_refusals();
    check_budgets();
    check_machine();
    check_dynamic_rope();
    check_decode_bytes();
    CHECK(spw_alloc_outstanding() == outstanding);
    return check_done();
}
