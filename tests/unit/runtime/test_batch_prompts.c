/* Tokens that several prompts of a batch begin with are computed once: by running requests, and by
 * requests that have ended. */
#include "tests/unit/runtime/batch_requests.h"

#include <pthread.h>

/* A common beginning of prompts is computed once, for requests that come at any time, and the
 * answers have the same bits as alone. In a model with windows a session can be forked only at the
 * end of its window. */
static void test_shared_prompts(const char *folder, bool windows, uint64_t seed)
{
    enum { N = 5 };
    static int32_t ids[N][380];
    static const size_t lengths[N] = {300, 300, 380, 200, 300}, alike[N] = {0, 300, 290, 150, 300};
    /* The whole prompt of the first one, but for a token. With windows the donor has to stop for
     * each taker: it does so only if that saves a chunk. */
    const size_t reused[N] = {0, windows ? 290 : 299, 290, 150, windows ? 0 : 299};
    struct spw_options o = {.backend = SPW_BACKEND_CPU,
                            .context = 400,
                            .sessions = N,
                            .threads = 2,
                            .prefill_chunk = 64};
    struct spw_engine *e = NULL;
    struct spw_batch *b = NULL;
    struct spw_request requests[N];
    struct spw_result alone, r;
    struct spw_error err = {0};
    struct spw_event event;
    uint64_t id;
    for (int i = 0; i < N; i++) {
        for (size_t k = 0; k < lengths[i]; k++)
            ids[i][k] = k < alike[i] ? ids[0][k] : (int32_t)(check_random(&seed) % VOCAB);
        if (i && alike[i] < lengths[i])
            ids[i][alike[i]] = (ids[0][alike[i]] + 1) % VOCAB;
        requests[i] = (struct spw_request){
            .prompt = ids[i], .n_prompt = lengths[i], .max_new_tokens = 12, .ignore_eos = true};
    }
    CHECK_MSG(!spw_engine_open(&e, folder, &o, &err), "%s", err.text);
    CHECK_MSG(!spw_batch_open(&b, e, NULL, &err), "%s", err.text);
    for (int i = 0; i < N; i++) {
        CHECK_MSG(!spw_batch_submit(b, &requests[i], &id, &err), "%s", err.text);
        if (i == N - 2) /* the last request comes while the others decode */
            CHECK(spw_batch_step(b, &err) == 1 && spw_batch_step(b, &err) == 1);
    }
    while (spw_batch_step(b, &err) > 0)
        while (spw_batch_event(b, &event))
            CHECK(event.kind != SPW_EVENT_END || !event.text_bytes);
    for (int i = 0; i < N; i++) {
        CHECK(!spw_batch_take(b, (uint64_t)i + 1, &r));
        CHECK_MSG(r.n_reused == reused[i], "request %d: %zu tokens reused, not %zu", i, r.n_reused,
                  reused[i]);
        struct spw_engine *other = open_engine(folder, 1);
        CHECK(!batch_run(other, NULL, &requests[i], 1, &alone, NULL, &err));
        CHECK(same(&r, &alone));
        spw_engine_close(other);
        spw_result_free(&r);
        spw_result_free(&alone);
    }
    spw_batch_close(b);
    spw_engine_close(e);
}

/* The caller interrupts the step that computes the common beginning of two requests: both requests
 * run afterwards. */
static void test_interrupted_sharing(void)
{
    static int32_t ids[300];
    struct spw_interrupt interrupt = {0};
    struct spw_options o = {.backend = SPW_BACKEND_CPU,
                            .context = 400,
                            .sessions = 3,
                            .prefill_chunk = 16,
                            .interrupt = &interrupt};
    struct spw_request request = {
        .prompt = ids, .n_prompt = 300, .max_new_tokens = 4, .ignore_eos = true};
    struct spw_engine *e = NULL;
    struct spw_batch *b = NULL;
    struct spw_error err = {0};
    struct spw_result r[2];
    uint64_t id;
    for (int i = 0; i < 300; i++)
        ids[i] = i % VOCAB;
    CHECK_MSG(!spw_engine_open(&e, MODEL, &o, &err), "%s", err.text);
    CHECK(!spw_batch_open(&b, e, NULL, &err));
    for (int i = 0; i < 2; i++)
        CHECK(!spw_batch_submit(b, &request, &id, &err));
    spw_interrupt_raise(&interrupt);
    CHECK(spw_batch_step(b, &err) == -ECANCELED);
    while (spw_batch_step(b, &err) > 0)
        ;
    CHECK_MSG(!err.text[0], "%s", err.text);
    for (uint64_t i = 0; i < 2; i++)
        CHECK(!spw_batch_take(b, i + 1, &r[i]) && r[i].finish == SPW_FINISH_LENGTH);
    CHECK(same(&r[0], &r[1]) && r[1].n_reused == 299);
    for (int i = 0; i < 2; i++)
        spw_result_free(&r[i]);
    spw_batch_close(b);
    spw_engine_close(e);
}

/* ---- sessions of requests that have ended ---- */

enum { COMMON = 300, TAIL = 3, DOCS = 4, NEW = 2 };

/* Documents with a common instruction, through one session of a batch. */
struct job {
    int32_t ids[DOCS][COMMON + TAIL];
    struct spw_request requests[DOCS];
    struct spw_result alone[DOCS];
    struct spw_engine *engine;
    struct spw_batch *batch;
};

static void open_job(struct job *j, uint32_t sessions)
{
    struct spw_error err = {0};
    uint64_t id;
    for (int i = 0; i < DOCS; i++) {
        for (int k = 0; k < COMMON + TAIL; k++)
            j->ids[i][k] = k < COMMON ? (k * 7) % VOCAB : (i + k) % VOCAB;
        j->requests[i] = (struct spw_request){.prompt = j->ids[i],
                                              .n_prompt = COMMON + TAIL,
                                              .max_new_tokens = NEW,
                                              .ignore_eos = true};
        j->engine = open_engine(MODEL, 1);
        CHECK(!batch_run(j->engine, NULL, &j->requests[i], 1, &j->alone[i], NULL, &err));
        spw_engine_close(j->engine);
    }
    j->engine = open_engine(MODEL, sessions);
    CHECK(!spw_batch_open(&j->batch, j->engine, NULL, &err));
    for (int i = 0; i < DOCS; i++)
        CHECK(!spw_batch_submit(j->batch, &j->requests[i], &id, &err));
}

/* Makes steps until request i has ended. */
static void step_to_end(struct job *j, uint64_t i)
{
    struct spw_error err = {0};
    while (spw_batch_result(j->batch, i + 1)->finish == SPW_FINISH_NONE)
        CHECK_MSG(spw_batch_step(j->batch, &err) >= 0, "%s", err.text);
}

/* Takes request i, which has the bits that it has alone. */
static void take(struct job *j, uint64_t i, size_t n_reused)
{
    struct spw_result r;
    CHECK(!spw_batch_take(j->batch, i + 1, &r) && same(&r, &j->alone[i]));
    CHECK_MSG(r.n_reused == n_reused, "request %d: %zu tokens reused, not %zu", (int)i, r.n_reused,
              n_reused);
    spw_result_free(&r);
}

static void close_job(struct job *j)
{
    spw_batch_close(j->batch);
    spw_engine_close(j->engine);
    for (int i = 0; i < DOCS; i++)
        spw_result_free(&j->alone[i]);
}

/* One after the other: each begins with what the one before has computed, whether that was taken
 * from the batch or not. */
static void test_one_by_one(bool takes)
{
    static struct job j;
    open_job(&j, 1);
    for (uint64_t i = 0; i < DOCS; i++) {
        step_to_end(&j, i);
        if (takes)
            take(&j, i, i ? COMMON : 0);
    }
    for (uint64_t i = 0; i < DOCS && !takes; i++)
        take(&j, i, i ? COMMON : 0);
    close_job(&j);
}

/* A caller who opens a session between two steps gets the one of a request that was taken, not one
 * of a request whose events are still there, with pointers to its logits. */
static void test_caller_between_steps(void)
{
    static struct job j;
    struct spw_session *mine = NULL;
    struct spw_error err = {0};
    struct spw_event event;
    const float *logits = NULL;
    float rows[NEW * VOCAB];
    size_t n = 0;
    open_job(&j, 1);
    while (n < NEW) {
        CHECK_MSG(spw_batch_step(j.batch, &err) >= 0, "%s", err.text);
        while (spw_batch_event(j.batch, &event))
            if (event.kind == SPW_EVENT_TOKEN)
                memcpy(rows + n++ * VOCAB, logits = event.logits, VOCAB * sizeof *rows);
    }
    CHECK(spw_session_open(&mine, j.engine, &err) == -ENOMEM);
    memcpy(rows + (NEW - 1) * VOCAB, logits, VOCAB * sizeof *rows);
    CHECK(hash_rows(rows, NEW) == j.alone[0].logits_hash);
    take(&j, 0, 0);
    CHECK_MSG(!spw_session_open(&mine, j.engine, &err), "%s", err.text);
    spw_session_close(mine);
    for (uint64_t i = 1; i < DOCS; i++) {
        step_to_end(&j, i);
        take(&j, i, i > 1 ? COMMON : 0);
    }
    close_job(&j);
}

/* A request that was canceled leaves what it has computed of its prompt, and nobody begins with its
 * answer. */
static void test_canceled_donor(void)
{
    static struct job j;
    struct spw_error err = {0};
    struct spw_result r;
    open_job(&j, 1);
    CHECK(spw_batch_step(j.batch, &err) == 1 && !spw_batch_cancel(j.batch, 1));
    CHECK(!spw_batch_take(j.batch, 1, &r) && r.n_tokens == 1);
    spw_result_free(&r);
    for (uint64_t i = 1; i < DOCS; i++) {
        step_to_end(&j, i);
        take(&j, i, COMMON);
    }
    close_job(&j);
}

/* A prompt that goes on as the answer before did: the answer's tokens are computed again, as the
 * prediction says, which does not know them. */
static void test_answer_is_not_shared(void)
{
    static int32_t longer[COMMON + TAIL + NEW];
    static struct job j;
    struct spw_result r, alone;
    struct spw_error err = {0};
    uint64_t id;
    open_job(&j, 1);
    memcpy(longer, j.ids[DOCS - 1], sizeof j.ids[0]);
    memcpy(longer + COMMON + TAIL, j.alone[DOCS - 1].tokens, NEW * sizeof *longer);
    struct spw_request next = {
        .prompt = longer, .n_prompt = COMMON + TAIL + NEW, .max_new_tokens = 1};
    CHECK(!spw_batch_submit(j.batch, &next, &id, &err));
    step_to_end(&j, DOCS);
    CHECK(!spw_batch_take(j.batch, id, &r) && r.n_reused == COMMON + TAIL);
    struct spw_engine *other = open_engine(MODEL, 1);
    CHECK(!batch_run(other, NULL, &next, 1, &alone, NULL, &err) && same(&r, &alone));
    spw_engine_close(other);
    spw_result_free(&r);
    spw_result_free(&alone);
    close_job(&j);
}

/* Tokens that are fewer than a tile are not shared. */
static void test_short_beginning(void)
{
    struct spw_engine *e = open_engine(MODEL, 1);
    struct spw_result r[2];
    int32_t ids[2][200];
    struct spw_request requests[2];
    for (size_t n = SPW_TILE_TOKENS - 1; n <= SPW_TILE_TOKENS; n++) {
        for (int i = 0; i < 2; i++) {
            for (size_t k = 0; k < 200; k++)
                ids[i][k] = (int32_t)(k + (k >= n) * (size_t)i) % VOCAB;
            requests[i] =
                (struct spw_request){.prompt = ids[i], .n_prompt = 200, .max_new_tokens = 1};
        }
        CHECK(!batch_run(e, NULL, requests, 2, r, NULL, NULL));
        CHECK(r[1].n_reused == (n < SPW_TILE_TOKENS ? 0 : SPW_TILE_TOKENS));
        spw_result_free(&r[0]);
        spw_result_free(&r[1]);
    }
    spw_engine_close(e);
}

/* ---- samples of one prompt ---- */

/* Each sample is what a request with its stream gives. The first session computes the prompt, and
 * those that start with it have all of it; a canceled first sample leaves that to the next one. */
static void test_samples(const char *folder, bool cancels, uint32_t chunks, uint64_t seed)
{
    enum { N = 6, SESSIONS = 4, PROMPT = 300 };
    static int32_t ids[PROMPT];
    struct spw_engine *e = open_engine(folder, SESSIONS);
    struct spw_batch *b;
    struct spw_error err = {0};
    struct spw_result r, alone;
    uint64_t id, other;
    for (int i = 0; i < PROMPT; i++)
        ids[i] = (int32_t)(check_random(&seed) % VOCAB);
    struct spw_request request = {.prompt = ids,
                                  .n_prompt = PROMPT,
                                  .max_new_tokens = 8,
                                  .ignore_eos = true,
                                  .logprobs = true,
                                  .sampling = {.temperature = 2, .seed = seed, .stream = 5},
                                  .n_samples = N};
    struct spw_request beside = {
        .prompt = ids + 7, .n_prompt = 20, .max_new_tokens = 30, .ignore_eos = true};
    CHECK(!spw_batch_open(&b, e, NULL, &err));
    spw_batch_set_prompt_chunks(b, chunks);
    CHECK(!spw_batch_submit(b, &beside, &other, &err) && spw_batch_step(b, &err) == 1);
    CHECK_MSG(!spw_batch_submit(b, &request, &id, &err) && id == 2, "%s", err.text);
    CHECK(!cancels || !spw_batch_cancel(b, id));
    while (spw_batch_step(b, &err) > 0)
        ;
    CHECK_MSG(!*err.text && spw_batch_is_idle(b), "%s", err.text);
    request.n_samples = 1;
    for (uint64_t k = 0; k < N; k++, request.sampling.stream++) {
        CHECK(!spw_batch_take(b, id + k, &r));
        CHECK(r.finish == (cancels && !k ? SPW_FINISH_CANCELED : SPW_FINISH_LENGTH));
        struct spw_engine *single = open_engine(folder, 1);
        CHECK(!batch_run(single, NULL, &request, 1, &alone, NULL, &err));
        spw_engine_close(single);
        const bool child = k > cancels && k < SESSIONS - 1u + cancels;
        CHECK((cancels && !k) || same(&r, &alone));
        CHECK_MSG(!child || r.n_reused == PROMPT, "sample %d: %zu reused", (int)k, r.n_reused);
        spw_result_free(&r);
        spw_result_free(&alone);
    }
    request.n_samples = 2;
    request.given = ids;
    request.n_given = 1;
    CHECK(spw_batch_submit(b, &request, &id, &err) == -EINVAL);
    spw_batch_close(b);
    spw_engine_close(e);
}

/* Memory for 4 tiles of a slice: one sample takes 3, and each further one only the last of them. */
static void test_samples_in_little_room(uint64_t seed)
{
    enum { N = 3, PROMPT = 300 };
    static int32_t ids[PROMPT];
    struct spw_options o = {.backend = SPW_BACKEND_CPU,
                            .context = 400,
                            .sessions = N,
                            .full_sessions = 1,
                            .threads = 1};
    struct spw_engine *e;
    struct spw_batch *b;
    struct spw_error err = {0};
    uint64_t id;
    for (int i = 0; i < PROMPT; i++)
        ids[i] = (int32_t)(check_random(&seed) % VOCAB);
    const struct spw_request request = {
        .prompt = ids, .n_prompt = PROMPT, .max_new_tokens = 8, .ignore_eos = true, .n_samples = N};
    CHECK_MSG(!spw_engine_open(&e, MODEL, &o, &err), "%s", err.text);
    CHECK(!spw_batch_open(&b, e, NULL, &err) && !spw_batch_submit(b, &request, &id, &err));
    CHECK_MSG(spw_batch_step(b, &err) == 1, "%s", err.text);
    CHECK(spw_batch_runs(b, 1) && spw_batch_runs(b, 2) && !spw_batch_runs(b, 3));
    while (spw_batch_step(b, &err) > 0)
        ;
    for (uint64_t i = 1; i <= N; i++)
        CHECK(spw_batch_result(b, i)->finish == SPW_FINISH_LENGTH);
    spw_batch_close(b);
    spw_engine_close(e);
}

/* ---- beams ---- */

/* The best sum of log-probabilities of two tokens, from the logits of all of them. */
static double best_of_all(const int32_t *ids, size_t n, int32_t best[2])
{
    struct spw_engine *e = open_engine(MODEL, 1);
    struct spw_request r[1 + VOCAB];
    static struct spw_result results[1 + VOCAB];
    static int32_t prompts[VOCAB][200];
    double top = -INFINITY;
    r[0] = (struct spw_request){.prompt = ids,
                                .n_prompt = n,
                                .max_new_tokens = 1,
                                .ignore_eos = true,
                                .logprobs = true,
                                .n_top_logprobs = 20};
    for (int32_t i = 0; i < VOCAB; i++) {
        memcpy(prompts[i], ids, n * sizeof *ids);
        prompts[i][n] = i;
        r[1 + i] = r[0];
        r[1 + i].prompt = prompts[i];
        r[1 + i].n_prompt = n + 1;
        r[1 + i].prompt_logprobs = true;
    }
    CHECK(!batch_run(e, NULL, r, 1 + VOCAB, results, NULL, NULL));
    for (int32_t i = 0; i < VOCAB; i++) {
        const struct spw_result *x = &results[1 + i];
        const double sum = x->prompt_logprobs[n] + x->top_logprobs[0].logprob;
        if (sum > top) {
            top = sum;
            best[0] = i;
            best[1] = x->top_logprobs[0].token;
        }
    }
    for (int i = 0; i <= VOCAB; i++)
        spw_result_free(&results[i]);
    spw_engine_close(e);
    return top;
}

/* As many beams as tokens find the best answer of two tokens, beside other requests, too. The
 * penalty changes its score only, also where scores lie far below those of a mean. */
static void test_all_beams(uint64_t seed, float length_penalty)
{
    struct spw_engine *e = open_engine(MODEL, VOCAB);
    struct spw_batch *b;
    struct spw_error err = {0};
    struct spw_result r;
    int32_t ids[130], best[2];
    uint64_t id, other;
    for (int i = 0; i < 130; i++)
        ids[i] = (int32_t)(check_random(&seed) % VOCAB);
    struct spw_request q = {.prompt = ids,
                            .n_prompt = 130,
                            .max_new_tokens = 2,
                            .ignore_eos = true,
                            .beams = {.n_beams = VOCAB, .length_penalty = length_penalty}};
    const struct spw_request beside = {.prompt = ids + 7, .n_prompt = 20, .max_new_tokens = 3};
    CHECK(!spw_batch_open(&b, e, NULL, &err) && !spw_batch_submit(b, &beside, &other, &err));
    CHECK_MSG(!spw_batch_submit(b, &q, &id, &err) && id == 2, "%s", err.text);
    CHECK(spw_batch_step(b, &err) == 1 && !spw_batch_runs(b, id)); /* a place is missing */
    while (spw_batch_step(b, &err) > 0)
        ;
    CHECK(!spw_batch_take(b, id, &r) && r.finish == SPW_FINISH_LENGTH && r.n_tokens == 2);
    const double top = best_of_all(ids, 130, best) / pow(2, (double)length_penalty);
    CHECK_MSG(!memcmp(r.tokens, best, sizeof best) && fabs(r.score - top) < 1e-4 * fabs(top),
              "%d %d: %g, expected %d %d: %g", r.tokens[0], r.tokens[1], r.score, best[0], best[1],
              top);
    spw_result_free(&r);
    for (uint64_t k = 2; k < VOCAB; k++)
        CHECK(spw_batch_result(b, id + k)->score <= spw_batch_result(b, id + k - 1)->score);
    spw_batch_close(b);
    spw_engine_close(e);
}

/* A canceled beam ends its search; a search that cannot be is refused. */
static void test_beams_end(void)
{
    struct spw_engine *e = open_engine(MODEL, 4);
    struct spw_batch *b;
    struct spw_error err = {0};
    uint64_t id;
    struct spw_request q = {.prompt = (int32_t[]){4, 5, 6},
                            .n_prompt = 3,
                            .max_new_tokens = 9,
                            .beams = {.n_beams = 4, .length_penalty = 1}};
    CHECK(!spw_batch_open(&b, e, NULL, &err) && !spw_batch_submit(b, &q, &id, &err));
    CHECK(spw_batch_step(b, &err) == 1 && spw_batch_step(b, &err) == 1);
    CHECK(!spw_batch_cancel(b, id + 2) && spw_batch_cancel(b, id) == -ENOENT);
    for (uint64_t k = 0; k < 4; k++)
        CHECK(spw_batch_result(b, id + k)->finish == SPW_FINISH_CANCELED);
    CHECK(spw_batch_is_idle(b));
    const struct {
        struct spw_beam_search search;
        const char *says;
    } wrong[] = {
        {{.n_beams = 5}, "beams.n_beams: found 5, expected at most 4"},
        {{.n_beams = 2, .n_return = 3}, "beams.n_return: found 3"},
        {{.n_beams = 4, .n_groups = 3, .diversity_penalty = 1}, "beams.n_groups: found 3"},
        {{.n_beams = 4, .n_groups = 2}, "beams.diversity_penalty: found 0"},
        {{.n_beams = 4, .length_penalty = NAN}, "beams.length_penalty: found nan"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        q.beams = wrong[i].search;
        CHECK(spw_batch_submit(b, &q, &id, &err) == -EINVAL);
        CHECK_MSG(strstr(err.text, wrong[i].says), "%s", err.text);
    }
    q.beams = (struct spw_beam_search){.n_beams = 2};
    q.sampling.temperature = 1;
    CHECK(spw_batch_submit(b, &q, &id, &err) == -EINVAL);
    CHECK_MSG(strstr(err.text, "sampling.temperature: a beam search has 0"), "%s", err.text);
    spw_batch_close(b);
    spw_engine_close(e);
}

/* ---- threads ---- */

static void *wake(void *b)
{
    spw_batch_wake(b);
    return NULL;
}

static void test_wake(void)
{
    struct spw_engine *e = open_engine(MODEL, 1);
    struct spw_batch *b;
    uint64_t id;
    pthread_t other;
    CHECK(!spw_batch_open(&b, e, NULL, NULL) && spw_batch_is_idle(b));
    CHECK(!spw_batch_wait(b, 0) && spw_batch_wake_fd(b) >= 0);
    CHECK(!pthread_create(&other, NULL, wake, b));
    CHECK(spw_batch_wait(b, -1) && !spw_batch_wait(b, 0));
    pthread_join(other, NULL);
    struct spw_request request = {.prompt = (int32_t[]){4}, .n_prompt = 1, .max_new_tokens = 2};
    CHECK(!spw_batch_submit(b, &request, &id, NULL) && !spw_batch_is_idle(b));
    CHECK(!spw_batch_cancel(b, id) && spw_batch_is_idle(b));
    spw_batch_wake(b); /* steps do not take it away */
    CHECK(spw_batch_step(b, NULL) == 0 && spw_batch_wait(b, 0));
    spw_batch_close(b);
    spw_engine_close(e);
}

int main(void)
{
    uint64_t seed = check_seed();
    test_shared_prompts(MODEL, false, seed);
    test_shared_prompts("tests/golden/mistral_window_200", true, seed);
    test_interrupted_sharing();
    test_one_by_one(false);
    test_one_by_one(true);
    test_caller_between_steps();
    test_canceled_donor();
    test_answer_is_not_shared();
    test_short_beginning();
    for (int i = 0; i < 4; i++)
        test_samples(i % 2 ? "tests/golden/mistral_window_200" : MODEL, i >= 2, i == 1 ? 2 : 0,
                     seed + (uint64_t)i);
    test_samples_in_little_room(seed);
    test_all_beams(seed, 0.5F);
    test_all_beams(seed + 1, -30);
    test_beams_end();
    test_wake();
    CHECK(spw_alloc_outstanding() == 0);
    return check_done();
}
