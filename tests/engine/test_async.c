/* Every interleaving of copies and computation gives the same bits: a thousand seeds of random
 * delays around every copy and kernel, with tiles on the host and weights that stream, compared
 * with memcmp to the run without delays and without limits.
 *
 *   test_async [seeds [first]]    default 1000 (sanitizers: fewer); first: 1 + a fresh draw */
#include "tests/engine/engine_run.h"

enum { N_PROMPT = 560, N_DECODE = 6, N_TOKENS = N_PROMPT + N_DECODE, PROMPT_ROWS = 20 };

static const struct tiny_model models[] = {
    {"llama", 2, 32, 48, 2, 1, 16, 67, 1024, NULL, false, false, false, true, false, 51},
    {"gemma3_text", 3, 32, 64, 2, 1, 16, 67, 1024,
     ",\"sliding_window\":200,\"sliding_window_pattern\":2,\"query_pre_attn_scalar\":16,"
     "\"hidden_activation\":\"gelu_pytorch_tanh\"",
     false, true, true, false, true, 52},
};
enum { N_MODELS = sizeof models / sizeof *models };

struct subject {
    char dir[128];
    uint32_t vocab;
    int32_t ids[2][N_TOKENS];
    float *expected[2]; /* [N_TOKENS][vocab] */
};

struct comparison {
    const struct subject *subject;
    uint64_t rows, wrong;
};

static void compare(void *context, size_t span, size_t position, const float *logits)
{
    struct comparison *c = context;
    const struct subject *s = c->subject;
    c->rows++;
    c->wrong += !run_same(logits, s->expected[span] + position * s->vocab, s->vocab);
}

static void make_subject(struct subject *s, const struct tiny_model *m)
{
    run_folder(s->dir, m, "async");
    run_ids(s->ids[0], N_TOKENS, m->vocab, m->seed);
    run_ids(s->ids[1], N_TOKENS, m->vocab, m->seed + 1);
    struct spw_options o = {.backend = TEST_BACKEND, .context = N_TOKENS, .threads = 2};
    for (int i = 0; i < 2; i++)
        s->expected[i] = model_all_logits(s->dir, &o, s->ids[i], N_TOKENS, &s->vocab);
}

/* Two sessions: a prompt, then decode steps of both, one of them late. */
static void run_seed(const struct subject *s, const struct spw_backend *b, struct spw_options o,
                     uint64_t seed)
{
    struct comparison c = {.subject = s};
    struct spw_error err = {{0}};
    o.delay_seed = seed;
    struct spw_engine *e = run_open_on(b, s->dir, &o);
    struct spw_session *sessions[2] = {run_session(e), run_session(e)};
    CHECK(spw_engine_plan(e)->host.kv && spw_engine_plan(e)->device.weights_slots);
    int rc = 0;
    for (size_t n = N_PROMPT; n <= N_TOKENS && !rc; n++) {
        size_t behind = n < N_PROMPT + 3 ? n / 3 : n; /* a second, longer prompt on the way */
        struct spw_span spans[2] = {
            {sessions[0], s->ids[0], n, n == N_PROMPT ? PROMPT_ROWS : 1},
            {sessions[1], s->ids[1], behind, 1},
        };
        rc = spw_sync(e, spans, 2, compare, &c, &err);
    }
    CHECK_MSG(!rc, "delay seed %llu: %s", (unsigned long long)seed, err.text);
    CHECK_MSG(!c.wrong && c.rows == PROMPT_ROWS + 2 * N_DECODE + 1,
              "%s, delay seed %llu: %llu of %llu rows differ", s->dir, (unsigned long long)seed,
              (unsigned long long)c.wrong, (unsigned long long)c.rows);
    run_check_account(e, &o, "delays");
    spw_session_close(sessions[0]);
    spw_session_close(sessions[1]);
    spw_engine_close(e);
}

int main(int argc, char **argv)
{
    static struct subject subjects[N_MODELS];
    struct spw_options o[2][N_MODELS];
    const struct spw_backend backends[2] = {run_backend(true), run_backend(false)};
    struct check_draws seeds = check_draws_of(argc, argv,
                                              RUN_UNDER_TSAN   ? 40
                                              : RUN_UNDER_ASAN ? 100
                                                               : 1000);
    uint64_t first = argc > 2 ? strtoull(argv[2], NULL, 0) : 1 + check_seed() % 1000000007;
    int64_t outstanding = spw_alloc_outstanding();
    for (int i = 0; i < N_MODELS; i++) {
        make_subject(&subjects[i], &models[i]);
        for (int k = 0; k < 2; k++) {
            o[k][i] = (struct spw_options){.backend = TEST_BACKEND,
                                           .context = N_TOKENS,
                                           .sessions = 2,
                                           .threads = 2,
                                           .prefill_chunk = 150};
            run_tight_on(&backends[k], subjects[i].dir, &o[k][i], 0);
        }
    }
    while (check_another(&seeds)) {
        int i = seeds.done - 1;
        run_seed(&subjects[i % N_MODELS], &backends[i / N_MODELS % 2],
                 o[i / N_MODELS % 2][i % N_MODELS], first + (uint64_t)i);
    }
    fprintf(stderr, "delay seeds %llu to %llu\n", (unsigned long long)first,
            (unsigned long long)(first + (uint64_t)seeds.done - 1));
    for (int i = 0; i < N_MODELS; i++) {
        tiny_model_remove(subjects[i].dir);
        free(subjects[i].expected[0]);
        free(subjects[i].expected[1]);
    }
    CHECK(spw_alloc_outstanding() == outstanding);
    return check_done();
}
