/* Faults: the n-th allocation fails, for n = 0, 1, ... until nothing fails any more; then the n-th
 * command of the device does. Each time a clean error with a text or the right answer, no leak, and
 * never an abort. An allocation fails once, so the call that met it must work when it is repeated:
 * nothing half made may have stayed behind.
 *
 *   test_faults [stride]    of the device's commands; default 7 under sanitizers, else 3 */
#include "tests/engine_run.h"

#ifndef TEST_STRIDE
#define TEST_STRIDE (RUN_UNDER_TSAN || RUN_UNDER_ASAN ? 7 : 3)
#define TEST_ALLOCATION_STRIDE 1
#define TEST_GENERATION_STRIDE 15
#endif

enum { N_PROMPT = 300, N_MORE = 5, N_GENERATED = 4, CONTEXT = 400, MOST_VOCAB = 128 };

static const struct tiny_model models[] = {
    {"llama", 2, 32, 48, 2, 1, 16, 67, 512, NULL, false, false, false, true, false, 61},
    {"gemma3_text", 2, 32, 64, 2, 1, 16, 67, 512,
     ",\"sliding_window\":150,\"sliding_window_pattern\":2,\"query_pre_attn_scalar\":16,"
     "\"hidden_activation\":\"gelu_pytorch_tanh\"",
     false, true, true, false, true, 62},
};

struct answer {
    float prompt[MOST_VOCAB], parent[MOST_VOCAB], child[MOST_VOCAB];
    int32_t generated[N_GENERATED];
    uint64_t hash;
};

/* Calls once, and a second time if the first met the fault. Returns the second's result. */
#define TWICE(call)                                                                                \
    do {                                                                                           \
        struct spw_error err = {{0}};                                                              \
        int rc = (call);                                                                           \
        if (rc) {                                                                                  \
            faults++;                                                                              \
            CHECK_MSG(rc == -ENOMEM, #call ": %d", rc);                                            \
            CHECK_MSG(err.text[0] && !strchr(err.text, '\n'), #call ": no line of text");          \
            spw_error_clear(&err);                                                                 \
            rc = (call);                                                                           \
            CHECK_MSG(rc == 0, #call " again: %s", err.text);                                      \
        }                                                                                          \
        if (rc)                                                                                    \
            goto done;                                                                             \
    } while (0)

/* The whole of the API once. Returns how many calls failed. */
static int run_api(const struct spw_backend *b, const char *dir, const struct spw_options *o,
                   const int32_t *ids, struct answer *a)
{
    struct spw_plan_info info;
    struct spw_engine *e = NULL;
    struct spw_session *s = NULL, *fork = NULL;
    struct spw_result result = {0};
    struct spw_request request = {
        .prompt = ids + 7, .n_prompt = 40, .max_new_tokens = N_GENERATED, .ignore_eos = true};
    struct spw_span span, both[2];
    size_t bytes;
    int faults = 0;
    TWICE(spw_plan_query_on(&info, b, dir, o, &err));
    TWICE(spw_engine_open_on(&e, b, dir, o, &err));
    bytes = spw_engine_config(e)->vocab * sizeof(float);
    TWICE(spw_session_open(&s, e, &err));
    span = (struct spw_span){s, ids, N_PROMPT, 1};
    TWICE(spw_sync(e, &span, 1, NULL, NULL, &err));
    memcpy(a->prompt, spw_session_logits(s), bytes);
    TWICE(spw_session_fork(&fork, s, &err));
    both[0] = (struct spw_span){s, ids, N_PROMPT + 1, 1};
    both[1] = (struct spw_span){fork, ids, N_PROMPT + N_MORE, 1};
    TWICE(spw_sync(e, both, 2, NULL, NULL, &err));
    memcpy(a->parent, spw_session_logits(s), bytes);
    memcpy(a->child, spw_session_logits(fork), bytes);
    spw_session_close(s);
    s = NULL;
    TWICE((spw_result_free(&result), spw_generate(e, NULL, &request, 1, &result, NULL, &err)));
    memcpy(a->generated, result.tokens, sizeof a->generated);
    a->hash = result.logits_hash;
done:
    spw_result_free(&result);
    spw_session_close(fork);
    spw_session_close(s);
    spw_engine_close(e);
    return faults;
}

/* Whether the fault that was set has struck; it is off then. */
static bool was_met(void)
{
    for (int i = 0; i < 1 << 20; i++)
        if (spw_alloc_fails())
            return false;
    return true;
}

static void fail_allocations(const struct spw_backend *b, const char *dir,
                             const struct spw_options *o, const int32_t *ids)
{
    static struct answer expected, got;
    int64_t outstanding = spw_alloc_outstanding();
    int n = 0;
    bool met;
    CHECK(run_api(b, dir, o, ids, &expected) == 0);
    CHECK(spw_alloc_outstanding() == outstanding);
    do {
        memset(&got, 0, sizeof got);
        spw_alloc_fail_nth(n);
        n += TEST_ALLOCATION_STRIDE;
        run_api(b, dir, o, ids, &got);
        met = was_met(); /* a tier that refused an arena may have been planned around */
        CHECK_MSG(memcmp(&got, &expected, sizeof got) == 0, "allocation %d: another answer",
                  n - TEST_ALLOCATION_STRIDE);
        CHECK_MSG(spw_alloc_outstanding() == outstanding, "allocation %d: %lld blocks lost",
                  n - TEST_ALLOCATION_STRIDE, (long long)(spw_alloc_outstanding() - outstanding));
    } while (met);
    CHECK(n > 40);
    fprintf(stderr, "%s: allocations 0, %d, ... %d failed\n", dir, TEST_ALLOCATION_STRIDE,
            n - 2 * TEST_ALLOCATION_STRIDE);
}

/* ---- the device ---- */

/* A step that ends in an error leaves its sessions empty; one that does not is right. */
static int run_step(struct spw_engine *e, const struct spw_span *spans, size_t n,
                    float expected[][MOST_VOCAB], uint32_t vocab, int64_t nth)
{
    struct spw_error err = {{0}};
    int rc = spw_sync(e, spans, n, NULL, NULL, &err);
    CHECK_MSG(rc == 0 || rc == -EIO, "command %lld: %d", (long long)nth, rc);
    for (size_t i = 0; i < n; i++) {
        if (rc)
            CHECK_MSG(spw_session_n_tokens(spans[i].session) == 0, "command %lld", (long long)nth);
        else
            CHECK_MSG(run_same(spw_session_logits(spans[i].session), expected[i], vocab),
                      "command %lld: another answer", (long long)nth);
    }
    if (rc)
        CHECK_MSG(err.text[0] && !strchr(err.text, '\n'), "command %lld: no text", (long long)nth);
    return rc;
}

/* Returns whether the fault was met. */
static bool run_device(const struct spw_backend *b, const char *dir, const struct spw_options *o,
                       const int32_t *ids, float expected[4][MOST_VOCAB], int64_t nth)
{
    struct spw_engine *e = run_open_on(b, dir, o);
    struct spw_session *s = run_session(e), *fork = NULL;
    struct spw_error err = {{0}};
    uint32_t vocab = spw_engine_config(e)->vocab;
    run_lose_device(e, nth);
    struct spw_span spans[2] = {{s, ids, N_PROMPT, 1}};
    int rc = run_step(e, spans, 1, expected, vocab, nth);
    if (!rc) {
        CHECK_MSG(spw_session_fork(&fork, s, &err) == 0, "%s", err.text);
        spans[0].n_tokens = N_PROMPT + 1;
        spans[1] = (struct spw_span){fork, ids, N_PROMPT + N_MORE, 1};
        rc = run_step(e, spans, 2, expected + 1, vocab, nth);
    }
    if (!rc) { /* back: cutting moves tiles too */
        spans[0].n_tokens = N_PROMPT / 2;
        rc = run_step(e, spans, 1, expected + 3, vocab, nth);
    }
    if (rc)
        CHECK(spw_sync(e, spans, 1, NULL, NULL, &err) == -EIO && err.text[0]);
    bool met = e->backend.device_ops->stream_sync(e->device, e->streams[0]) != 0;
    spw_session_close(fork);
    spw_session_close(s);
    spw_engine_close(e);
    run_restore_device();
    return met || rc;
}

static void fail_commands(const struct spw_backend *b, const char *dir, const struct spw_options *o,
                          const int32_t *ids, int64_t stride)
{
    static float expected[4][MOST_VOCAB];
    static const size_t lengths[4] = {N_PROMPT, N_PROMPT + 1, N_PROMPT + N_MORE, N_PROMPT / 2};
    int64_t outstanding = spw_alloc_outstanding(), n = 0;
    struct spw_engine *e = run_open_on(b, dir, o);
    struct spw_session *s = run_session(e);
    uint32_t vocab = spw_engine_config(e)->vocab;
    for (int i = 0; i < 4; i++) {
        const float *logits = run_to(s, e, ids, lengths[i]);
        if (logits)
            memcpy(expected[i], logits, vocab * sizeof *logits);
    }
    spw_session_close(s);
    spw_engine_close(e);
    while (run_device(b, dir, o, ids, expected, n)) {
        CHECK_MSG(spw_alloc_outstanding() == outstanding, "command %lld: blocks lost",
                  (long long)n);
        n += stride;
    }
    CHECK(n > 100);
    fprintf(stderr, "%s: commands 0, %lld, ... %lld of the device failed\n", dir, (long long)stride,
            (long long)n);
}

/* ---- generation ---- */

enum { N_NEW = 6 };

/* What was generated before the device failed is the beginning of what would have been. */
static void fail_generation(const struct spw_backend *b, const char *dir,
                            const struct spw_options *o, const int32_t *ids, int64_t stride)
{
    struct spw_request r = {
        .prompt = ids, .n_prompt = N_PROMPT, .max_new_tokens = N_NEW, .ignore_eos = true};
    struct spw_result expected, result;
    struct spw_error err = {{0}};
    struct spw_engine *e = run_open_on(b, dir, o);
    CHECK_MSG(!spw_generate(e, NULL, &r, 1, &expected, NULL, &err), "%s", err.text);
    spw_engine_close(e);
    CHECK(expected.n_tokens == N_NEW && expected.finish == SPW_FINISH_LENGTH);
    bool seen[N_NEW + 1] = {false}, part = false;
    int rc = -EIO;
    for (int64_t n = 0; rc; n += stride) {
        e = run_open_on(b, dir, o);
        run_lose_device(e, n);
        rc = spw_generate(e, NULL, &r, 1, &result, NULL, &err);
        CHECK_MSG(rc == 0 || rc == -EIO, "command %lld: %d", (long long)n, rc);
        CHECK(result.finish == (rc ? SPW_FINISH_FAILED : SPW_FINISH_LENGTH));
        CHECK(result.n_tokens <= N_NEW && (rc || result.n_tokens == N_NEW));
        CHECK(!result.n_tokens ||
              !memcmp(result.tokens, expected.tokens, result.n_tokens * sizeof *result.tokens));
        seen[result.n_tokens] = true;
        part = part || (result.n_tokens && result.n_tokens < N_NEW);
        spw_result_free(&result);
        spw_engine_close(e);
        run_restore_device();
    }
    CHECK(seen[0] && part && seen[N_NEW]);
    spw_result_free(&expected);
}

int main(int argc, char **argv)
{
    if (!run_is_there())
        return CHECK_SKIP;
    int64_t stride = argc > 1 ? atoll(argv[1]) : TEST_STRIDE;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char dir[128];
        int32_t ids[CONTEXT];
        struct spw_options o = {.backend = TEST_BACKEND,
                                .context = CONTEXT,
                                .sessions = 2,
                                .threads = 1,
                                .prefill_chunk = 100};
        run_folder(dir, &models[i], "faults");
        run_ids(ids, CONTEXT, models[i].vocab, i);
        struct spw_backend b = run_backend(i == 0); /* one with images of its units, one without */
        run_tight_on(&b, dir, &o, 0);
        fail_allocations(&b, dir, &o, ids);
        if (run_can_lose_device()) {
            fail_commands(&b, dir, &o, ids, stride);
            fail_generation(&b, dir, &o, ids, TEST_GENERATION_STRIDE);
        }
        tiny_model_remove(dir);
    }
    return check_done();
}
