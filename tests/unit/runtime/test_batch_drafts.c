/* Drafts of a batch change no result, whatever is drafted: all right, all wrong, right until the
 * last, any: tokens, hashes, log-probabilities, texts and logits are those of runs without drafts,
 * at any temperature, with penalties, biases, rules for tokens, stop strings, schemas and several
 * samples. The bytes are those of a dry run that knows how many drafts each step had and how many
 * stayed.
 *
 *   test_batch_drafts [draws]    SPW_SEED repeats a run */
#include "model/text/grammar/grammar.h"
#include "runtime/batch/batch_parts.h"
#include "runtime/saved.h"
#include "tests/draw_rules.h"
#include "tests/unit/runtime/batch_requests.h"

#include <unistd.h>

enum { N = 12, SESSIONS = 3 };

/* Their MTP layer is often right. */
static const char *const mtp_folders[] = {
    "tests/golden/glm4_moe_mtp",   "tests/golden/glm4_moe_mtp_dense",
    "tests/golden/qwen3_5_mtp",    "tests/golden/qwen3_5_moe_mtp",
    "tests/golden/qwen3_next_mtp", "tests/golden/exaone_moe_mtp"};

static uint64_t mtp_drafted, mtp_accepted;

enum { N_MTP_FOLDERS = sizeof mtp_folders / sizeof *mtp_folders };

static const struct spw_result *right; /* [N], of the run without drafts */
static uint64_t drawn;                 /* the seed of the drafts */
static bool knows;                     /* as if AUTO had measured that drafts cost nothing */

/* As if drafts cost nothing. */
static void be_free(struct spw_batch *b)
{
    b->costs.seconds = 1e9;
    b->costs.n_plain = 2;
    b->costs.spent = 1e15;
}

/* Right drafts, but for one that is drawn. */
static uint32_t propose(struct spw_batch_entry *x, int32_t *out, uint32_t most, uint32_t *match)
{
    const struct spw_result *r = &right[x->id - 1];
    const size_t at = x->answer.result.n_tokens;
    const uint32_t n = (uint32_t)check_range(&drawn, most / 2, most);
    const uint32_t wrong = check_random(&drawn) % 3 ? (uint32_t)check_range(&drawn, 0, n) : n;
    *match = 40;
    for (uint32_t i = 0; i < n; i++) {
        out[i] = at + i < r->n_tokens ? r->tokens[at + i] : 2; /* an end token after the end */
        if (i == wrong)
            out[i] = (out[i] + 1) % VOCAB;
    }
    return n;
}

static struct spw_options drafting_options(enum spw_drafts drafts)
{
    return (struct spw_options){.backend = SPW_BACKEND_CPU,
                                .context = 400,
                                .sessions = SESSIONS,
                                .threads = 2,
                                .drafts = drafts};
}

static void check_moved(struct spw_engine *e, const char *folder, enum spw_drafts drafts,
                        const struct spw_request *requests, const struct spw_result *results)
{
    struct spw_plan_request lengths[N];
    uint64_t predicted[SPW_MOVED_COUNT];
    struct spw_error err = {0};
    struct spw_stats stats;
    for (size_t i = 0; i < N; i++)
        if (results[i].finish == SPW_FINISH_FAILED) /* a schema: its last row is not known */
            return;
    for (size_t i = 0; i < N; i++)
        lengths[i] = (struct spw_plan_request){
            .prompt = requests[i].prompt,
            .n_prompt = requests[i].n_prompt,
            .max_new_tokens = requests[i].max_new_tokens,
            .ends_at = results[i].finish == SPW_FINISH_LENGTH ? 0 : results[i].n_tokens,
            .step_rows = results[i].step_rows};
    CHECK_MSG(!spw_engine_predict(predicted, e, lengths, N, &err), "%s", err.text);
    spw_engine_stats(e, &stats);
    for (int i = 0; i < SPW_MOVED_COUNT; i++)
        CHECK_MSG(stats.moved_bytes[i] == predicted[i], "link %d: %llu, predicted %llu", i,
                  (unsigned long long)stats.moved_bytes[i], (unsigned long long)predicted[i]);
    const struct spw_options o = drafting_options(drafts); /* before the run, too */
    CHECK_MSG(!spw_plan_moved(predicted, NULL, NULL, folder, &o, lengths, N, &err), "%s", err.text);
    for (int i = 0; i < SPW_MOVED_COUNT; i++)
        CHECK_MSG(stats.moved_bytes[i] == predicted[i] + e->executor->missed[i],
                  "link %d: %llu, planned %llu", i, (unsigned long long)stats.moved_bytes[i],
                  (unsigned long long)predicted[i]);
}

static struct spw_engine *open_drafting(const char *folder, enum spw_drafts drafts)
{
    struct spw_engine *e = NULL;
    struct spw_error err = {0};
    const struct spw_options o = drafting_options(drafts);
    CHECK_MSG(!spw_engine_open(&e, folder, &o, &err), "%s", err.text);
    if (!e)
        exit(check_done());
    return e;
}

/* All requests in one batch. `drafts` OFF: those that are compared with. */
static void run(const char *folder, enum spw_drafts drafts, const struct spw_tokenizer *t,
                const struct spw_request *requests, struct seen *seen, struct spw_result *results)
{
    struct spw_engine *e = open_drafting(folder, drafts);
    struct batch_watch watch[N];
    struct spw_error err = {0};
    struct spw_batch *b;
    struct spw_batch_times times;
    uint64_t id;
    CHECK_MSG(!spw_batch_open(&b, e, t, &err), "%s", err.text);
    if (drafts && drafts != SPW_DRAFTS_MTP)
        b->propose = propose;
    for (size_t i = 0; i < N; i++) {
        CHECK_MSG(!spw_batch_submit(b, &requests[i], &id, &err), "%s", err.text);
        watch[i] = (struct batch_watch){see_token, see_text, &seen[i]};
        memset(&seen[i], 0, sizeof seen[i]);
    }
    for (int more = 1; more > 0;) {
        if (knows)
            be_free(b);
        more = spw_batch_step(b, &err);
        CHECK_MSG(more >= 0, "%s", err.text);
        batch_events(b, watch, NULL);
    }
    spw_batch_times(b, &times);
    for (size_t i = 0; i < N; i++)
        CHECK(!spw_batch_take(b, i + 1, &results[i]));
    spw_batch_close(b);
    if (drafts) {
        check_moved(e, folder, drafts, requests, results);
        CHECK(times.n_drafted >= times.n_accepted);
    }
    if (drafts == SPW_DRAFTS_MTP) {
        mtp_drafted += times.n_drafted;
        mtp_accepted += times.n_accepted;
    }
    if (drafts == SPW_DRAFTS_TEXT)
        CHECK_MSG(times.n_accepted > N && times.n_drafted > times.n_accepted, "%llu of %llu",
                  (unsigned long long)times.n_accepted, (unsigned long long)times.n_drafted);
    spw_engine_close(e);
}

static bool same_scores(const struct spw_result *a, const struct spw_result *b)
{
    const size_t n = a->n_tokens;
    return !a->logprobs || (!memcmp(a->logprobs, b->logprobs, n * sizeof *a->logprobs) &&
                            !memcmp(a->top_logprobs, b->top_logprobs,
                                    n * a->n_top_logprobs * sizeof *a->top_logprobs));
}

/* Of the rows of steps: they add up to the tokens. */
static void check_rows(const struct spw_result *r)
{
    size_t i = 0;
    while (i < r->n_tokens) {
        const size_t most = i + r->step_rows[i] % SPW_STEP_BY_MTP;
        CHECK(r->step_rows[i]);
        for (i++; i < r->n_tokens && !r->step_rows[i]; i++)
            CHECK(i < most);
    }
}

static void check_drafts(const char *folder, struct spw_tokenizer *t,
                         const struct spw_grammar *grammar, uint64_t *seed)
{
    const bool mtp = strstr(folder, "mtp");
    static struct prompt prompts[N];
    static struct seen seen[2][N];
    static int32_t rules[N][SPW_TOKEN_LISTS];
    static const char *const stops[] = {"e", "ab", "\n"};
    static const struct spw_logit_bias bias = {7, 3.0f};
    struct spw_request requests[N];
    static struct spw_result results[2][N];
    for (size_t i = 0; i < N; i++) {
        struct spw_request *r = &requests[i];
        draw_prompt(&prompts[i], seed);
        *r = prompts[i].request;
        r->text = true;
        r->logprobs = check_random(seed) % 2;
        r->n_top_logprobs = r->logprobs ? 4 : 0;
        r->n_stop = check_random(seed) % 3 ? 0 : 3;
        r->stop = stops;
        r->sampling.logit_bias = &bias;
        r->sampling.n_logit_bias = check_random(seed) % 2;
        r->grammar = check_random(seed) % 3 ? NULL : grammar;
        r->max_new_tokens = check_range(seed, 1, MOST);
        r->sampling.rules = draw_rules(rules[i], VOCAB, r->max_new_tokens, seed);
    }
    run(folder, SPW_DRAFTS_OFF, t, requests, seen[0], results[0]);
    right = results[0];
    for (int drafts = mtp ? SPW_DRAFTS_MTP : SPW_DRAFTS_AUTO;
         drafts <= (mtp ? SPW_DRAFTS_MTP : SPW_DRAFTS_TEXT); drafts++) {
        run(folder, (enum spw_drafts)drafts, t, requests, seen[1], results[1]);
        for (size_t i = 0; i < N; i++) {
            const struct seen *a = &seen[0][i], *b = &seen[1][i];
            const struct spw_result *r = &results[1][i];
            CHECK(same(&results[0][i], r) && same_scores(&results[0][i], r));
            CHECK(a->n_text == b->n_text && !memcmp(a->text, b->text, a->n_text));
            CHECK(b->n_tokens == r->n_tokens &&
                  hash_rows(b->logits, r->n_tokens) == r->logits_hash);
            check_rows(r);
            spw_result_free(&results[1][i]);
        }
    }
    for (size_t i = 0; i < N; i++)
        spw_result_free(&results[0][i]);
}

/* A model drafts for itself: all that is picked without chance stays. The budgets hold both. */
static void test_model(uint64_t *seed)
{
    enum { REQUESTS = 3 };
    static struct prompt prompts[REQUESTS];
    struct spw_request requests[REQUESTS];
    struct spw_result results[2][REQUESTS];
    for (int i = 0; i < REQUESTS; i++) {
        draw_prompt(&prompts[i], seed);
        requests[i] = prompts[i].request;
        requests[i].max_new_tokens = MOST;
        requests[i].ignore_eos = true;
        if (!i) /* of the others, chance picks other tokens than the model */
            requests[i].sampling = (struct spw_sampling){0};
    }
    struct spw_options o = {.backend = SPW_BACKEND_CPU,
                            .context = 400,
                            .sessions = 2,
                            .threads = 2,
                            .device_bytes = 64 << 20,
                            .host_bytes = 64 << 20};
    for (int drafts = 0; drafts < 2; drafts++) {
        struct spw_engine *e = NULL;
        struct spw_batch *b;
        struct spw_error err = {0};
        struct spw_batch_times times;
        struct spw_stats stats;
        uint64_t id;
        o.drafts = drafts ? SPW_DRAFTS_AUTO : SPW_DRAFTS_OFF;
        o.draft_model = drafts ? MODEL : NULL;
        CHECK_MSG(!spw_engine_open(&e, MODEL, &o, &err), "%s", err.text);
        CHECK(!spw_batch_open(&b, e, NULL, &err));
        for (int i = 0; i < REQUESTS; i++)
            CHECK_MSG(!spw_batch_submit(b, &requests[i], &id, &err), "%s", err.text);
        for (int more = 1; more > 0;) {
            be_free(b);
            more = spw_batch_step(b, &err);
            CHECK_MSG(more >= 0, "%s", err.text);
        }
        spw_batch_times(b, &times);
        CHECK(!drafts || (times.n_accepted > MOST / 2 && times.draft_seconds > 0));
        CHECK(!drafts || (times.decode_seconds > times.draft_seconds));
        for (int i = 0; i < REQUESTS; i++)
            CHECK(!spw_batch_take(b, (uint64_t)i + 1, &results[drafts][i]));
        spw_batch_close(b);
        spw_engine_stats(e, &stats);
        CHECK(stats.device_peak_bytes <= o.device_bytes && stats.host_peak_bytes <= o.host_bytes);
        CHECK(stats.device_budget_bytes <= o.device_bytes);
        spw_engine_close(e);
    }
    for (int i = 0; i < REQUESTS; i++) {
        CHECK(same(&results[0][i], &results[1][i]));
        spw_result_free(&results[0][i]);
        spw_result_free(&results[1][i]);
    }
}

/* A model of another family, and a folder without the layer. */
static void test_no_mtp(void)
{
    struct spw_engine *e = NULL;
    struct spw_error err = {0};
    const struct spw_options o = {
        .backend = SPW_BACKEND_CPU, .context = 400, .drafts = SPW_DRAFTS_MTP};
    CHECK(spw_engine_open(&e, MODEL, &o, &err) == -EINVAL && strstr(err.text, "MTP"));
    CHECK(spw_engine_open(&e, "tests/golden/glm4_moe_plain", &o, &err) == -EINVAL);
    CHECK_MSG(strstr(err.text, "MTP") && strstr(err.text, "glm4_moe_plain"), "%s", err.text);
}

/* A session that was saved without the layer lacks its keys and values. */
static void test_saved_without(void)
{
    static const int32_t ids[] = {5, 9, 12, 33, 40};
    char path[64];
    struct spw_error err = {0};
    struct spw_options o = {.backend = SPW_BACKEND_CPU, .context = 400, .saves = true};
    snprintf(path, sizeof path, "/tmp/spw_batch_drafts_%d", (int)getpid());
    for (int mtp = 0; mtp < 2; mtp++) {
        struct spw_engine *e;
        struct spw_session *s;
        struct spw_saved *saved;
        o.drafts = mtp ? SPW_DRAFTS_MTP : SPW_DRAFTS_OFF;
        CHECK_MSG(!spw_engine_open(&e, mtp_folders[2], &o, &err), "%s", err.text);
        CHECK(!mtp || (!spw_saved_open(&saved, path, &err) &&
                       spw_session_resume(&s, e, saved, &err) == -ESTALE));
        CHECK_MSG(!mtp || strstr(err.text, "without drafts by the MTP layer"), "%s", err.text);
        if (mtp)
            spw_saved_close(saved);
        CHECK(!spw_session_open(&s, e, &err));
        const struct spw_span span = {s, ids, sizeof ids / sizeof *ids, 1};
        CHECK(!spw_sync(e, &span, 1, NULL, NULL, &err));
        CHECK_MSG(!spw_session_save(s, path, NULL, 0, NULL, &err), "%s", err.text);
        spw_session_close(s);
        spw_engine_close(e);
    }
    unlink(path);
}

/* The plan of a model whose MTP layer is not asked for is that of one without. */
static void test_mtp_costs(void)
{
    struct spw_error err = {0};
    struct spw_options o = {.backend = SPW_BACKEND_CPU, .context = 400};
    struct spw_plan_info off, on;
    CHECK(!spw_plan_query(&off, mtp_folders[0], &o, &err));
    o.drafts = SPW_DRAFTS_MTP;
    CHECK_MSG(!spw_plan_query(&on, mtp_folders[0], &o, &err), "%s", err.text);
    CHECK(off.n_layers == 2 && on.n_layers == 3 && on.weights_bytes > off.weights_bytes);
    CHECK(on.kv_bytes_per_token * 2 == off.kv_bytes_per_token * 3);
}

/* Old keys and values become smaller in place: the rows that the layer needs stay as they are. */
static void test_mtp_replan(void)
{
    enum { LENGTH = 900 };
    int32_t ids[LENGTH];
    struct spw_engine *e;
    struct spw_session *s;
    struct spw_error err = {0};
    struct spw_options o = {.backend = SPW_BACKEND_CPU,
                            .context = 1000,
                            .threads = 2,
                            .prefill_chunk = 16,
                            .residual_window = 128,
                            .host_bytes = 4 << 20,
                            .drafts = SPW_DRAFTS_MTP};
    struct spw_plan_info info;
    for (int i = 0; i < LENGTH; i++)
        ids[i] = 5 + i * i % 80;
    CHECK_MSG(!spw_plan_query(&info, mtp_folders[1], &o, &err), "%s", err.text);
    o.device_bytes = (info.smallest_device_bytes + info.device.total) / 2;
    CHECK_MSG(!spw_engine_open(&e, mtp_folders[1], &o, &err), "%s", err.text);
    CHECK(!spw_session_open(&s, e, &err));
    const struct spw_span span = {s, ids, LENGTH, 1};
    CHECK_MSG(!spw_sync(e, &span, 1, NULL, NULL, &err), "%s", err.text);
    const uint8_t *kept = e->lane.device_arena + e->plan.device.mtp_kept;
    const uint64_t bytes = (SPW_MTP_KEPT + 1) * e->plan.hidden_row_bytes;
    uint8_t *before = spw_alloc(bytes);
    struct spw_plan_input in = e->in;
    memcpy(before, kept, bytes);
    spw_plan_set_precision(&in, SPW_KV_INT8);
    CHECK(!spw_engine_replan(e, &in) && !memcmp(before, kept, bytes));
    spw_free(before);
    spw_session_close(s);
    spw_engine_close(e);
}

/* The draft model reads a prompt in parts, one beside each step, and proposes nothing before it has
 * read all but a few tokens. poor: AUTO, and drafts may lose nothing, so it reads nothing. */
static void test_reading(bool poor)
{
    enum { LENGTH = 190, PART = 32 };
    int32_t ids[LENGTH];
    struct spw_engine *e = NULL;
    struct spw_batch *b;
    struct spw_batch_times times = {0};
    struct spw_error err = {0};
    uint64_t id, n_parts = 0;
    const struct spw_options o = {.backend = SPW_BACKEND_CPU,
                                  .context = 400,
                                  .threads = 2,
                                  .drafts = poor ? SPW_DRAFTS_AUTO : SPW_DRAFTS_MODEL,
                                  .draft_model = MODEL};
    for (int i = 0; i < LENGTH; i++)
        ids[i] = 5 + i * i % 80;
    const struct spw_request r = {
        .prompt = ids, .n_prompt = LENGTH, .max_new_tokens = MOST, .ignore_eos = true};
    CHECK_MSG(!spw_engine_open(&e, MODEL, &o, &err), "%s", err.text);
    CHECK(!spw_batch_open(&b, e, NULL, &err) && !spw_batch_submit(b, &r, &id, &err));
    const struct spw_batch_entry *x = spw_batch_find(b, id);
    for (int more = 1; more > 0;) {
        const uint64_t before = x->drafts.n_read, n_drafted = times.n_drafted;
        const bool lacks = x->answer.n_tokens > before + PART;
        be_free(b);
        b->costs.spent = poor ? 0 : b->costs.spent;
        b->costs.read_seconds = 0; /* not known: the least part */
        b->costs.n_sessions = 1;
        more = spw_batch_step(b, &err);
        CHECK_MSG(more >= 0, "%s", err.text);
        spw_batch_times(b, &times);
        CHECK(!poor || (!x->drafts.n_read && !times.n_drafted));
        if (poor || !lacks || x->answer.result.n_tokens < 2)
            continue;
        CHECK(x->drafts.n_read == before + PART && times.n_drafted == n_drafted);
        n_parts++;
    }
    CHECK(poor || (n_parts >= LENGTH / PART - 1 && times.n_accepted > MOST / 4));
    spw_batch_close(b);
    spw_engine_close(e);
}

/* The draft model has no room, or is not there. */
static void test_refused_model(void)
{
    struct spw_engine *e;
    struct spw_error err = {0};
    struct spw_plan_info alone;
    struct spw_options o = {.backend = SPW_BACKEND_CPU, .context = 400};
    CHECK(!spw_plan_query(&alone, MODEL, &o, &err));
    o.drafts = SPW_DRAFTS_AUTO;
    o.draft_model = "tests/golden/none";
    CHECK(spw_engine_open(&e, MODEL, &o, &err) == -ENOENT && strstr(err.text, "draft model"));
    o.draft_model = MODEL;
    o.device_bytes = 4 * alone.smallest_device_bytes - 4;
    CHECK(spw_engine_open(&e, MODEL, &o, &err) == -ENOMEM && strstr(err.text, "quarter"));
    CHECK(err.budgets[SPW_BUDGET_DEVICE].smallest_bytes == 4 * alone.smallest_device_bytes);
    /* the smallest budgets are those of both models */
    o.device_bytes = 4 * alone.smallest_device_bytes;
    o.prefill_chunk = 2048; /* of the model alone: it needs more than three quarters */
    memset(&err, 0, sizeof err);
    CHECK(spw_engine_open(&e, MODEL, &o, &err) == -ENOMEM);
    o.device_bytes = err.budgets[SPW_BUDGET_DEVICE].smallest_bytes;
    CHECK_MSG(!spw_engine_open(&e, MODEL, &o, &err), "%s", err.text);
    spw_engine_close(e);
}

/* What AUTO drafts with takes memory from nothing else: its smallest budgets are those without
 * drafts, and a step under them moves no more bytes. */
static void test_tight(void)
{
    struct spw_engine *e = open_drafting(MODEL, SPW_DRAFTS_AUTO);
    struct spw_error err = {0};
    struct spw_plan_info off, on;
    struct spw_options o = {.backend = SPW_BACKEND_CPU, .context = 400, .threads = 2};
    CHECK(e->plan.draft_rows >= SPW_DRAFT_MOST);
    spw_engine_close(e);
    CHECK(!spw_plan_query(&off, MODEL, &o, &err));
    const uint64_t least = off.smallest_device_bytes;
    for (uint64_t part = 0; part <= 8; part++) {
        o.device_bytes = least + part * (off.device.total - least) / 8;
        struct spw_plan_info without;
        o.drafts = SPW_DRAFTS_OFF;
        CHECK(!spw_plan_query(&without, MODEL, &o, &err));
        o.drafts = SPW_DRAFTS_AUTO;
        CHECK_MSG(!spw_plan_query(&on, MODEL, &o, &err), "%s", err.text);
        CHECK(on.smallest_device_bytes == without.smallest_device_bytes &&
              on.smallest_host_bytes == without.smallest_host_bytes);
        for (int i = 0; i < SPW_MOVED_COUNT; i++)
            CHECK(on.decode_moved_bytes[i] <=
                  without.decode_moved_bytes[i] + without.decode_moved_bytes[i] / 50);
    }
}

/* A text that repeats itself is drafted from itself. */
static void test_text(void)
{
    enum { LENGTH = 120 };
    int32_t ids[LENGTH];
    struct spw_result r;
    struct spw_batch_times times;
    for (int i = 0; i < LENGTH; i++)
        ids[i] = 10 + i % 7;
    const struct spw_logit_bias only = {11, 100};
    const struct spw_request request = {.prompt = ids,
                                        .n_prompt = LENGTH,
                                        .max_new_tokens = 100,
                                        .ignore_eos = true,
                                        .sampling = {.logit_bias = &only, .n_logit_bias = 1}};
    struct spw_engine *e = open_drafting(MODEL, SPW_DRAFTS_TEXT);
    CHECK(!batch_run(e, NULL, &request, 1, &r, &times, NULL));
    CHECK(r.n_tokens == 100 && times.n_decode_steps < 50 && times.n_accepted > 50);
    spw_result_free(&r);
    spw_engine_close(e);
}

/* The first draft is right, and the others are not: each step takes drafts back. */
static uint32_t propose_one(struct spw_batch_entry *x, int32_t *out, uint32_t most, uint32_t *match)
{
    const size_t at = x->answer.result.n_tokens;
    const struct spw_plan *p = &x->session->engine->plan;
    *match = 40;
    /* nothing is computed again, but what a window dropped before a step ended early */
    CHECK(x->session->n_tokens + 1 == x->answer.n_tokens ||
          (p->n_slices[p->window_kind] && !p->retains));
    for (uint32_t i = 0; i < most; i++)
        out[i] = (right->tokens[at] + (i > 0)) % VOCAB;
    return most;
}

static struct spw_session *interrupted; /* if its step has drafts, now and then */
static struct spw_interrupt interrupt;
static int n_interrupted, n_moving, n_resumed;

static void interrupt_drafts(void *context, const struct spw_progress *p)
{
    (void)context, (void)p;
    if (interrupted && interrupted->n_drafts && check_random(&drawn) % 16 == 0)
        spw_interrupt_raise(&interrupt);
}

static char saved_at[64];

static void save(struct spw_session *s)
{
    struct spw_error err = {0};
    snprintf(saved_at, sizeof saved_at, "/tmp/spw_batch_drafts_%d", (int)getpid());
    CHECK_MSG(!spw_session_save(s, saved_at, NULL, 0, NULL, &err), "%s", err.text);
}

/* The session that was saved on the way comes to the same logits. */
static void check_saved(struct spw_session *s)
{
    struct spw_error err = {0};
    struct spw_session *again;
    struct spw_saved *v;
    if (!*saved_at || !spw_session_logits(s))
        return;
    CHECK_MSG(!spw_saved_open(&v, saved_at, &err) &&
                  !spw_session_resume(&again, s->engine, v, &err),
              "%s", err.text);
    const struct spw_span span = {again, s->tokens, s->n_tokens, 1};
    CHECK_MSG(!spw_sync(s->engine, &span, 1, NULL, NULL, &err), "%s", err.text);
    CHECK(!memcmp(spw_session_logits(again), s->logits, VOCAB * sizeof(float)));
    n_resumed++;
    spw_saved_close(v);
    spw_session_close(again);
    remove(saved_at);
    *saved_at = 0;
}

/* Answers the request. disturbs: steps with drafts end early, and between them the session gets
 * checkpoints and is saved. */
static void step_all(const char *folder, struct spw_batch *b, struct spw_session *s, bool disturbs)
{
    struct spw_error err = {0};
    interrupted = disturbs ? s : NULL;
    for (int more = 1; more > 0 || more == -ECANCELED;) {
        more = spw_batch_step(b, &err);
        CHECK_MSG(more >= 0 || more == -ECANCELED, "%s: %s", folder, err.text);
        n_interrupted += more == -ECANCELED;
        spw_interrupt_clear(&interrupt); /* it came too late for the step */
        if (disturbs && check_random(&drawn) % 8 == 0)
            CHECK(!spw_session_checkpoint(s));
        if (disturbs && s->n_tokens && check_random(&drawn) % 8 == 0)
            save(s);
    }
    interrupted = NULL;
}

/* A question and another one that begins alike, in a session of the caller, which can be cut back
 * to the end of the first one then. little: of memory, so that states move; and steps are
 * disturbed. */
static void ask_again(const char *folder, bool drafts, bool little, struct spw_result *out)
{
    enum { FIRST = 144, LENGTH = 146 }; /* the first draft moves the window */
    int32_t ids[LENGTH];
    struct spw_engine *e = NULL;
    struct spw_session *s;
    struct spw_batch *b;
    struct spw_error err = {0};
    struct spw_result first;
    struct spw_plan_info least;
    uint64_t id;
    struct spw_options o = {.backend = SPW_BACKEND_CPU,
                            .context = 400,
                            .threads = 2,
                            .prefill_chunk = 16,
                            .sessions = 2,
                            .rolls_back = true,
                            .saves = true,
                            .interrupt = &interrupt,
                            .on_progress = interrupt_drafts,
                            .drafts = drafts ? SPW_DRAFTS_TEXT : SPW_DRAFTS_OFF};
    CHECK(!spw_plan_query(&least, folder, &o, &err));
    if (little)
        o.device_bytes = least.smallest_device_bytes;
    for (int i = 0; i < LENGTH; i++)
        ids[i] = 5 + i * i % 80;
    CHECK_MSG(!spw_engine_open(&e, folder, &o, &err), "%s", err.text);
    CHECK(!spw_session_open(&s, e, &err) && !spw_batch_open(&b, e, NULL, &err));
    struct spw_request r = {
        .prompt = ids, .n_prompt = FIRST, .max_new_tokens = 1, .ignore_eos = true, .session = s};
    CHECK(!spw_batch_submit(b, &r, &id, &err) && !spw_batch_step(b, &err));
    CHECK(!spw_batch_take(b, id, &first));
    spw_result_free(&first);
    if (drafts)
        b->propose = propose_one;
    r.n_prompt = LENGTH;
    r.max_new_tokens = 120; /* to a tile that is not there yet */
    CHECK(!spw_batch_submit(b, &r, &id, &err));
    step_all(folder, b, s, little);
    n_moving += drafts && e->plan.n_states && !e->plan.states_stay;
    spw_batch_cancel(b, id);
    CHECK(!spw_batch_take(b, id, out));
    spw_batch_close(b);
    const uint64_t reach = spw_kv_reach(s->seq.kv, e->plan.residency, FIRST);
    CHECK_MSG(little || reach == FIRST, "%s: %llu", folder, (unsigned long long)reach);
    check_saved(s);
    spw_session_close(s);
    spw_engine_close(e);
}

/* Drafts that are taken back leave a session what it needs to go back to an earlier question. */
static void test_taken_back(void)
{
    static const char *const folders[] = {
        "tests/golden/exaone_moe_listed", /* a window of 20; then states of each kind */
        "tests/golden/qwen3_next_plain",     "tests/golden/qwen3_5_bf16",
        "tests/golden/lfm2_plain",           "tests/golden/mamba_plain",
        "tests/golden/mamba2_plain",         "tests/golden/falcon_h1_plain",
        "tests/golden/nemotron_h_plain",     "tests/golden/granitemoehybrid_plain",
        "tests/golden/recurrent_gemma_plain"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        struct spw_result off, on;
        ask_again(folders[i], false, false, &off);
        right = &off;
        for (int little = 0; little < 2; little++) {
            ask_again(folders[i], true, little, &on);
            CHECK_MSG(same(&off, &on), "%s", folders[i]);
            spw_result_free(&on);
        }
        spw_result_free(&off);
    }
    CHECK_MSG(n_interrupted > 4 && n_moving > 4 && n_resumed > 4, "%d interrupted, %d move, %d",
              n_interrupted, n_moving, n_resumed);
}

int main(int argc, char **argv)
{
    static const char schema[] =
        "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"string\"}, "
        "\"b\": {\"type\": \"integer\"}}, \"required\": [\"a\", \"b\"]}";
    uint64_t seed = check_seed();
    struct spw_tokenizer *t = make_tokenizer();
    struct spw_grammar *grammar;
    CHECK(!spw_grammar_open_schema(&grammar, schema, sizeof schema - 1, NULL));
    drawn = seed;
    for (struct check_draws d = check_draws_of(argc, argv, 40); check_another(&d);) {
        knows = d.done % 2;
        check_drafts(MODEL, t, grammar, &seed);
        check_drafts(mtp_folders[d.done % N_MTP_FOLDERS], t, grammar, &seed);
    }
    CHECK_MSG(mtp_accepted * 20 > mtp_drafted && mtp_accepted < mtp_drafted, "%llu of %llu",
              (unsigned long long)mtp_accepted, (unsigned long long)mtp_drafted);
    test_text();
    test_taken_back();
    test_model(&seed);
    test_reading(false);
    test_reading(true);
    test_refused_model();
    test_tight();
    test_no_mtp();
    test_mtp_costs();
    test_mtp_replan();
    test_saved_without();
    spw_grammar_close(grammar);
    spw_tokenizer_close(t);
    return check_done();
}
