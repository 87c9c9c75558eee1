/* Steps that the caller ends, behind any chunk of any layer: what the sessions hold then is whole,
 * and whatever they do next gives the bits of a run that nobody ended. Under all that decides where
 * tiles and hidden rows lie, with partners, prefixes that were kept and old KV in less precision;
 * bytes that moved are those that were predicted, also of a step that ended early.
 *
 *   test_interrupt [draws] */
#include "tests/batch_run.h"
#include "tests/engine/engine_run.h"
#include "tests/engine/persist/pack_run.h"

#ifndef TEST_TOKENS
#define TEST_TOKENS (RUN_UNDER_TSAN ? 500 : 900)
#define TEST_DRAWS (RUN_UNDER_TSAN ? 5 : RUN_UNDER_ASAN ? 10 : 120)
#define TEST_EACH_TOKENS 300
#define TEST_BACK_STRIDE (RUN_UNDER_TSAN ? 40 : RUN_UNDER_ASAN ? 11 : 3)
#define TEST_GENERATIONS (RUN_UNDER_TSAN ? 2 : 10)
#define TEST_MODELS N_TINY_MODELS
#endif

enum { N_SESSIONS = 2, N_SEQUENCES = 2, BRANCH = TEST_TOKENS / 2, MIB = 1 << 20 };

struct subject {
    char dir[128];
    struct spw_options o;
    uint32_t vocab;
    int32_t ids[N_SEQUENCES][TEST_TOKENS]; /* the same as far as BRANCH */
    float *expected[N_SEQUENCES];          /* [TEST_TOKENS][vocab] */
};

struct run {
    const struct subject *s;
    struct spw_options o;
    struct spw_engine *e;
    struct spw_session *sessions[N_SESSIONS];
    int sequence[N_SESSIONS]; /* whose tokens it holds */
    int spans[N_SESSIONS];    /* of the running step: the session of each span */
    int64_t left;             /* times it is asked before it says so; below 0: never */
    bool ended;
    uint64_t wrong;
};

static uint64_t n_ended, n_kept, n_emptied, n_back, n_further, n_decodes, n_in_logits, n_rows;

/* ---- engines ---- */

static bool interrupted(void *context)
{
    struct run *r = context;
    CHECK(!r->ended); /* once is enough */
    return r->ended = r->left >= 0 && r->left-- == 0;
}

/* Rows of hidden states pass over the host, and few at a time, where both budgets are small. */
static void draw_options(struct run *r, const char *cache, uint64_t *seed)
{
    struct spw_plan_info info;
    struct spw_error err = {{0}};
    struct spw_backend b = run_backend(true);
    struct spw_options *o = &r->o;
    *o = r->s->o;
    o->threads = (uint32_t)check_range(seed, 1, 3);
    o->sessions = N_SESSIONS;
    o->prefill_chunk = (uint32_t)check_range(seed, 16, 200);
    o->delay_seed = check_random(seed) % 6 ? 0 : check_random(seed) | 1;
    o->interrupted = interrupted;
    o->interrupt_context = r;
    o->rolls_back = check_random(seed) % 2;
    if (check_random(seed) % 3 == 0)
        o->prefix_cache_dir = cache; /* NULL: none is wanted */
    if (check_random(seed) % 3 == 0) {
        o->disk_dir = r->s->dir;
        o->disk_bytes = 256 * MIB;
    }
    if (check_random(seed) % 4 == 0)
        return;
    CHECK_MSG(!spw_plan_query_on(&info, &b, r->s->dir, o, &err), "%s", err.text);
    o->device_bytes = info.smallest_device_bytes;
    o->host_bytes = (uint64_t)1 << 30;
    CHECK_MSG(!spw_plan_query_on(&info, &b, r->s->dir, o, &err), "%s", err.text);
    if (check_random(seed) % 2)
        o->host_bytes = info.smallest_host_bytes + check_range(seed, 0, 64 << 10);
}

static void open_run(struct run *r, const struct subject *s, const char *cache, uint64_t *seed)
{
    *r = (struct run){.s = s, .left = -1};
    draw_options(r, cache, seed);
    r->e = run_open(s->dir, &r->o);
    for (int i = 0; i < N_SESSIONS; i++)
        r->sessions[i] = run_session(r->e);
}

static void close_run(struct run *r)
{
    run_check_account(r->e, &r->o, r->s->dir);
    CHECK_MSG(!r->wrong, "%s: %llu rows differ", r->s->dir, (unsigned long long)r->wrong);
    for (int i = 0; i < N_SESSIONS; i++)
        spw_session_close(r->sessions[i]);
    spw_engine_close(r->e);
}

/* ---- steps ---- */

static void compare(void *context, size_t span, size_t position, const float *logits)
{
    struct run *r = context;
    const struct subject *s = r->s;
    const float *expected = s->expected[r->sequence[r->spans[span]]] + position * s->vocab;
    n_rows++;
    r->wrong += memcmp(logits, expected, s->vocab * sizeof *logits) != 0;
}

/* What session i holds of the sequence it held before, and of the one it is to hold. */
static uint64_t in_common(const struct run *r, int i, int sequence)
{
    uint64_t n = spw_session_n_tokens(r->sessions[i]);
    return sequence == r->sequence[i] ? n : spw_min_u64(n, BRANCH);
}

static void count_ended(const struct run *r, int i, uint64_t before, uint64_t n)
{
    uint64_t now = spw_session_n_tokens(r->sessions[i]);
    uint64_t kept = spw_session_reused(r->sessions[i]); /* what the step began with */
    CHECK_MSG(now <= n, "%llu of %llu tokens", (unsigned long long)now, (unsigned long long)n);
    if (spw_engine_plan(r->e)->rolls_back && n > kept + 1)
        CHECK_MSG(now >= kept, "%s: %llu of %llu tokens", r->s->dir, (unsigned long long)now,
                  (unsigned long long)kept);
    n_kept += kept && now >= kept;
    n_emptied += before && !now;
    n_back += now && now <= before;
    n_further += now > before;
}

/* The sessions go to n[i] tokens of their sequences, or as far as they are let. */
static int step(struct run *r, const int *sessions, const int *sequences, const uint64_t *n,
                size_t n_spans, uint64_t n_logits)
{
    struct spw_error err = {{0}};
    struct spw_span spans[N_SESSIONS];
    uint64_t before[N_SESSIONS];
    for (size_t i = 0; i < n_spans; i++) {
        int k = r->spans[i] = sessions[i];
        before[i] = in_common(r, k, sequences[i]);
        r->sequence[k] = sequences[i];
        spans[i] = (struct spw_span){.session = r->sessions[k],
                                     .tokens = r->s->ids[sequences[i]],
                                     .n_tokens = n[i],
                                     .n_logits = spw_min_u64(n_logits, n[i])};
    }
    r->ended = false;
    uint64_t rows = n_rows;
    int rc = spw_sync(r->e, spans, n_spans, compare, r, &err);
    CHECK_MSG(rc == (r->ended ? -ECANCELED : 0), "%s: %d: %s", r->s->dir, rc, err.text);
    CHECK(!rc || strstr(err.text, "interrupted"));
    for (size_t i = 0; i < n_spans; i++) {
        if (rc)
            count_ended(r, sessions[i], before[i], n[i]);
        else
            CHECK(spw_session_n_tokens(r->sessions[sessions[i]]) == n[i]);
    }
    n_ended += rc != 0;
    n_decodes += rc && n_spans == 1 && n[0] == before[0] + 1;
    n_in_logits += rc && n_rows > rows;
    return rc;
}

/* Some steps, of which some are ended; behind one that was the same again, or another one. */
static void run_draw(const struct subject *s, uint64_t *seed)
{
    struct run r;
    char cache[160];
    snprintf(cache, sizeof cache, "%.120s_cache", s->dir);
    open_run(&r, s, cache, seed);
    for (int left = (int)check_range(seed, 3, 8); left; left--) {
        int sessions[N_SESSIONS] = {(int)(check_random(seed) % N_SESSIONS)}, sequences[N_SESSIONS];
        size_t n_spans = 1 + check_random(seed) % N_SESSIONS;
        uint64_t n[N_SESSIONS], n_logits = check_random(seed) % 3 ? check_range(seed, 0, 5) : 300;
        sessions[1] = !sessions[0];
        for (size_t i = 0; i < n_spans; i++) {
            uint64_t held = spw_session_n_tokens(r.sessions[sessions[i]]);
            bool decodes = held && held < TEST_TOKENS && check_random(seed) % 3 == 0;
            sequences[i] = (int)(check_random(seed) % N_SEQUENCES);
            n[i] = check_range(seed, 1, TEST_TOKENS);
            if (decodes) {
                sequences[i] = r.sequence[sessions[i]];
                n[i] = held + 1;
            }
        }
        r.left = check_random(seed) % 4
                     ? (int64_t)check_range(seed, 0, 1 << check_range(seed, 0, 6))
                     : -1;
        int rc = step(&r, sessions, sequences, n, n_spans, n_logits);
        r.left = -1;
        if (rc && check_random(seed) % 3)
            step(&r, sessions, sequences, n, n_spans, n_logits);
        if (r.o.prefix_cache_dir && check_random(seed) % 2)
            CHECK(spw_session_keep(r.sessions[sessions[0]], NULL) == 0);
    }
    close_run(&r);
    if (r.o.prefix_cache_dir)
        pack_remove_folder(cache);
}

/* Each time it is asked in one prompt, in order: ended there, and gone on with. */
static void test_each(const struct subject *s)
{
    const int session = 0, sequence = 0;
    const uint64_t n = TEST_EACH_TOKENS;
    uint64_t seed = 1;
    int rc;
    int64_t i = 0;
    do {
        struct run r;
        open_run(&r, s, NULL, &(uint64_t){16}); /* always the same options */
        r.left = i++;
        rc = step(&r, &session, &sequence, &n, 1, 1);
        r.left = -1;
        step(&r, &session, &sequence, &n, 1, 1 + check_random(&seed) % 4);
        close_run(&r);
    } while (rc && i < 1000);
    CHECK_MSG(i > 2 && !rc, "%lld", (long long)i);
}

/* A conversation that goes on with a long text, ended wherever it is asked in that, in order, or
 * not at all: it can be what it was before, so that another text computes only what is its own. */
static void test_going_back(const struct subject *s)
{
    const int session = 0, one = 0, other = 1;
    const uint64_t before = BRANCH - 3, n = TEST_TOKENS;
    struct run r = {.s = s, .left = -1};
    int64_t i = 0;
    int rc;
    r.o = s->o;
    r.o.sessions = N_SESSIONS;
    r.o.prefill_chunk = 128;
    r.o.interrupted = interrupted;
    r.o.interrupt_context = &r;
    r.o.rolls_back = true;
    r.e = run_open(s->dir, &r.o);
    for (int k = 0; k < N_SESSIONS; k++)
        r.sessions[k] = run_session(r.e);
    CHECK(spw_engine_plan(r.e)->rolls_back);
    do {
        step(&r, &session, &one, &before, 1, 0);
        r.left = i;
        rc = step(&r, &session, &one, &n, 1, 1);
        r.left = -1;
        CHECK(!rc || spw_session_n_tokens(r.sessions[session]) == before);
        step(&r, &session, &other, &n, 1, 1);
        CHECK(spw_session_reused(r.sessions[session]) >= before);
        i += TEST_BACK_STRIDE;
    } while (rc && i < 1000);
    CHECK_MSG(i > TEST_BACK_STRIDE && !rc, "%lld", (long long)i);
    close_run(&r);
}

/* ---- generation ---- */

static int generate(struct run *r, struct spw_session *session, struct spw_result *result)
{
    struct spw_error err = {{0}};
    struct spw_request request = {.prompt = r->s->ids[0],
                                  .n_prompt = TEST_TOKENS / 2,
                                  .max_new_tokens = 20,
                                  .session = session,
                                  .ignore_eos = true};
    r->ended = false;
    return batch_run(r->e, NULL, &request, 1, result, NULL, &err);
}

/* Ended at random: what is there are the first tokens of the answer, and the call that follows
 * gives all of it. */
static void test_generate(const struct subject *s, uint64_t *seed)
{
    struct run r;
    struct spw_result whole, part;
    open_run(&r, s, NULL, &(uint64_t){16});
    CHECK(generate(&r, r.sessions[1], &whole) == 0 && whole.n_tokens == 20);
    for (int i = 0; i < TEST_GENERATIONS; i++) {
        r.left = (int64_t)check_range(seed, 0, 60);
        int rc = generate(&r, r.sessions[0], &part);
        CHECK(rc == (r.ended ? -ECANCELED : 0));
        CHECK(rc ? part.finish == SPW_FINISH_FAILED : part.n_tokens == 20);
        CHECK(!part.n_tokens ||
              !memcmp(part.tokens, whole.tokens, part.n_tokens * sizeof *part.tokens));
        spw_result_free(&part);
        r.left = -1;
        CHECK(generate(&r, r.sessions[0], &part) == 0);
        CHECK(part.n_tokens == 20 && part.logits_hash == whole.logits_hash &&
              !memcmp(part.tokens, whole.tokens, 20 * sizeof *part.tokens));
        spw_result_free(&part);
    }
    spw_result_free(&whole);
    close_run(&r);
}

/* ---- subjects: each model as it is, and with old KV in less precision ---- */

static void make_subject(struct subject *s, int i)
{
    const struct tiny_model *m = &tiny_models[i / 2];
    snprintf(s->dir, sizeof s->dir, "/tmp/spw_interrupt_%d_%d", (int)getpid(), i);
    tiny_model_write(m, s->dir);
    s->o = (struct spw_options){.backend = TEST_BACKEND, .context = TEST_TOKENS, .threads = 2};
    if (i % 2) {
        s->o.precision = (enum spw_kv_precision)(SPW_KV_INT8 + i / 2 % 3);
        s->o.residual_window = i / 2 % 2 ? 200 : SPW_BYTES_NONE;
    }
    for (int q = 0; q < N_SEQUENCES; q++) {
        run_ids(s->ids[q], TEST_TOKENS, m->vocab, (uint64_t)i / 2 + 5);
        if (q)
            run_ids(s->ids[q] + BRANCH, TEST_TOKENS - BRANCH, m->vocab, (uint64_t)i + 77);
        s->expected[q] = model_all_logits(s->dir, &s->o, s->ids[q], TEST_TOKENS, &s->vocab);
    }
}

int main(int argc, char **argv)
{
    static struct subject subjects[2 * TEST_MODELS];
    struct check_draws draws = check_draws_of(argc, argv, TEST_DRAWS);
    if (!run_is_there())
        return CHECK_SKIP;
    uint64_t seed = check_seed();
    int64_t outstanding = spw_alloc_outstanding();
    alarm(900);
    for (int i = 0; i < 2 * TEST_MODELS; i++) {
        make_subject(&subjects[i], i);
        if (i % 3 == 1 && (i == 1 || !RUN_UNDER_TSAN))
            test_each(&subjects[i]);
        if (i == 1 || i >= 8) /* what loses something: old KV in less precision, windows */
            test_going_back(&subjects[i]);
        test_generate(&subjects[i], &seed);
    }
    while (check_another(&draws))
        run_draw(&subjects[check_random(&seed) % (2 * TEST_MODELS)], &seed);
    for (int i = 0; i < 2 * TEST_MODELS; i++) {
        tiny_model_remove(subjects[i].dir);
        for (int q = 0; q < N_SEQUENCES; q++)
            free(subjects[i].expected[q]);
    }
    fprintf(stderr,
            "%llu rows compared; %llu steps ended, %llu of one token, %llu between logits; "
            "sessions: %llu lost nothing, %llu as before, %llu with passes that were through, %llu "
            "empty\n",
            (unsigned long long)n_rows, (unsigned long long)n_ended, (unsigned long long)n_decodes,
            (unsigned long long)n_in_logits, (unsigned long long)n_kept, (unsigned long long)n_back,
            (unsigned long long)n_further, (unsigned long long)n_emptied);
    CHECK(draws.done < 100 || (n_decodes && n_in_logits && n_back && n_further && n_emptied));
    CHECK(spw_alloc_outstanding() == outstanding);
    return check_done();
}
