/* Beam searches in a batch whose memory is tight, beside other requests: their bits, what they wait
 * for, and that the beams of a search end together. test_engine's walks have one search among many
 * operations. */
#include "offload/kv/kv_tile.h"
#include "runtime/batch/batch_parts.h"
#include "tests/batch_run.h"
#include "tests/engine/engine_run.h"

enum { CONTEXT = 640, N_PROMPT = 300, N_NEW = 140, N_BEAMS = 3, SPOILED = 7, STEPS = 5000 };

static struct spw_logit_bias never[] = {{SPOILED, -100}}; /* no answer has it */

struct room {
    char dir[128];
    struct spw_options o;
    struct spw_interrupt interrupt;
    struct spw_engine *e;
    struct spw_batch *b;
    int32_t ids[3][CONTEXT];
};

static void room_make(struct room *x, const struct tiny_model *like, uint32_t sessions)
{
    struct tiny_model m = *like;
    m.positions = CONTEXT;
    *x = (struct room){.o = {.backend = TEST_BACKEND,
                             .context = CONTEXT,
                             .sessions = sessions,
                             .threads = 1,
                             .rolls_back = true,
                             .prefill_chunk = 64}};
    run_folder(x->dir, &m, "beams");
    for (uint64_t k = 0; k < 3; k++)
        run_ids(x->ids[k], CONTEXT, m.vocab, 10 + k);
}

static void room_open(struct room *x)
{
    struct spw_error err = {0};
    x->o.interrupt = &x->interrupt;
    x->e = run_open(x->dir, &x->o);
    CHECK_MSG(!spw_batch_open(&x->b, x->e, NULL, &err), "%s", err.text);
}

static void room_close(struct room *x)
{
    spw_batch_close(x->b);
    spw_engine_close(x->e);
}

/* Prompt k; n_beams 0: no search. */
static uint64_t submit(struct room *x, int k, size_t n_prompt, size_t max_new, uint32_t n_beams)
{
    struct spw_error err = {0};
    uint64_t id = 0;
    const struct spw_request q = {.prompt = x->ids[k],
                                  .n_prompt = n_prompt,
                                  .max_new_tokens = max_new,
                                  .sampling.logit_bias = never,
                                  .sampling.n_logit_bias = 1,
                                  .ignore_eos = true,
                                  .beams = {.n_beams = n_beams, .length_penalty = 1}};
    CHECK_MSG(!spw_batch_submit(x->b, &q, &id, &err), "%s", err.text);
    return id;
}

/* Until nobody waits or runs. */
static void until_idle(struct room *x)
{
    struct spw_error err = {0};
    int n = 0, rc = 1;
    while (rc > 0 && n++ < STEPS)
        rc = spw_batch_step(x->b, &err);
    CHECK_MSG(!rc, "%d after %d steps: %s", rc, n, err.text);
}

/* ---- bits ---- */

enum { N_REQUESTS = N_BEAMS + 2 };

/* Closes the sessions of beams that have begun, from beam `from` on, as spw_batch_make_room does.
 */
static void close_beams(const struct room *x, uint64_t first, uint64_t from)
{
    for (uint64_t id = first + from; id < first + N_BEAMS; id++) {
        struct spw_batch_entry *y = spw_batch_find(x->b, id);
        CHECK(y->session && !spw_batch_needs_prompt(y));
        spw_session_close(y->session);
        y->session = NULL;
    }
}

/* One request, a search, and one that comes while the search runs. Every seventh step is
 * interrupted, twice the budgets change, and twice beams lose their sessions, if `tight` says which
 * budgets there are. */
static void run_all(struct room *x, const struct spw_options *tight, struct spw_result *results)
{
    struct spw_error err = {0}, why = {0};
    bool is_beside = false;
    uint64_t id = submit(x, 0, 200, 10, 0);
    int rc = 1;
    CHECK(id == 1 && submit(x, 1, N_PROMPT, N_NEW, N_BEAMS) == 2);
    for (int i = 0; (rc > 0 || rc == -ECANCELED) && i < STEPS; i++) {
        if (i == 52)
            submit(x, 2, 190, 60, 0);
        if (tight && (i == 40 || i == 90)) {
            const struct spw_options *to = i == 40 ? &(struct spw_options){0} : tight;
            CHECK_MSG(!spw_engine_set_budgets(x->e, to->device_bytes, to->host_bytes,
                                              to->disk_bytes, &err),
                      "%s", err.text);
        }
        if (tight && (i == 60 || i == 75))
            close_beams(x, 2, i == 60 ? 1 : 0);
        if (tight && i % 7 == 3)
            spw_interrupt_raise(&x->interrupt);
        rc = spw_batch_step(x->b, &err);
        is_beside |= x->e->paused.n && spw_batch_runs(x->b, 2) &&
                     !spw_batch_needs_prompt(spw_batch_find(x->b, 2));
        batch_events(x->b, NULL, &why);
    }
    CHECK_MSG(!rc, "%d: %s", rc, err.text);
    CHECK(is_beside == (x->b->prompt_chunks > 0)); /* beams move while a prompt is paused */
    for (uint64_t i = 0; i < N_REQUESTS; i++)
        CHECK_MSG(!spw_batch_take(x->b, i + 1, &results[i]) &&
                      results[i].finish == SPW_FINISH_LENGTH,
                  "request %d has not ended: %s", (int)i + 1, why.text);
}

/* chunks: of a prompt, between two steps of those that decode; 0: all */
static void check_bits(const struct tiny_model *m, uint32_t full_sessions, uint32_t chunks,
                       enum spw_kv_precision precision)
{
    struct room x;
    struct spw_result all[N_REQUESTS], few[N_REQUESTS];
    room_make(&x, m, N_BEAMS + 2);
    x.o.precision = precision;
    room_open(&x);
    run_all(&x, NULL, all);
    room_close(&x);
    x.o.sessions = N_BEAMS + 1;
    x.o.full_sessions = full_sessions;
    x.o.disk_dir = x.dir;
    run_tight(x.dir, &x.o, 0);
    run_to_disk(x.dir, &x.o);
    room_open(&x);
    if (chunks)
        spw_batch_set_prompt_chunks(x.b, chunks);
    const struct spw_options tight = x.o;
    run_all(&x, &tight, few);
    run_check_peaks(x.e, &x.o, m->family);
    room_close(&x);
    for (int i = 0; i < N_REQUESTS; i++) {
        CHECK_MSG(all[i].n_tokens == few[i].n_tokens && all[i].logits_hash == few[i].logits_hash &&
                      !memcmp(&all[i].score, &few[i].score, sizeof all[i].score) &&
                      !memcmp(all[i].tokens, few[i].tokens, all[i].n_tokens * sizeof(int32_t)),
                  "%s: request %d: score %.17g, expected %.17g", m->family, i + 1, few[i].score,
                  all[i].score);
        spw_result_free(&all[i]);
        spw_result_free(&few[i]);
    }
    tiny_model_remove(x.dir);
}

/* ---- bytes ---- */

/* What a search beside another request moves is what a dry run with the same parents moves. */
static void check_moved(const struct tiny_model *m, enum spw_kv_precision precision, bool to_disk)
{
    struct room x;
    struct spw_error err = {0};
    struct spw_stats stats;
    uint64_t predicted[SPW_MOVED_COUNT];
    room_make(&x, m, N_BEAMS + 1);
    x.o.precision = precision;
    x.o.disk_dir = to_disk ? x.dir : NULL;
    run_tight(x.dir, &x.o, 0);
    if (to_disk)
        run_to_disk(x.dir, &x.o);
    room_open(&x);
    submit(&x, 0, 200, 10, 0);
    const uint64_t id = submit(&x, 1, N_PROMPT, N_NEW, N_BEAMS);
    until_idle(&x);
    const struct spw_result *r = spw_batch_result(x.b, id);
    CHECK(r->n_steps == N_NEW && r->finish == SPW_FINISH_LENGTH);
    const struct spw_plan_request lengths[] = {
        {.prompt = x.ids[0], .n_prompt = 200, .max_new_tokens = 10},
        {.prompt = x.ids[1],
         .n_prompt = N_PROMPT,
         .max_new_tokens = N_NEW,
         .n_beams = N_BEAMS,
         .parents = r->parents,
         .n_steps = r->n_steps}};
    const int rc = spw_engine_predict(predicted, x.e, lengths, 2, &err);
    CHECK_MSG(rc == (to_disk ? -ENODATA : 0), "%d: %s", rc, err.text); /* a drive takes its time */
    spw_engine_stats(x.e, &stats);
    for (int i = 0; i < SPW_MOVED_COUNT && !to_disk; i++)
        CHECK_MSG(stats.moved_bytes[i] == predicted[i], "%s: link %d: %llu, predicted %llu",
                  m->family, i, (unsigned long long)stats.moved_bytes[i],
                  (unsigned long long)predicted[i]);
    room_close(&x);
    tiny_model_remove(x.dir);
}

/* ---- what a search waits for ---- */

/* A search that has too few places waits for a request with a session of the caller's, too. */
static void check_places(void)
{
    struct room x;
    struct spw_error err = {0};
    uint64_t own = 0;
    room_make(&x, &tiny_narrow, N_BEAMS);
    room_open(&x);
    struct spw_session *s = run_session(x.e);
    const struct spw_request q = {
        .prompt = x.ids[0], .n_prompt = 20, .max_new_tokens = 8, .ignore_eos = true, .session = s};
    CHECK_MSG(!spw_batch_submit(x.b, &q, &own, &err), "%s", err.text);
    const uint64_t id = submit(&x, 1, 30, 4, N_BEAMS);
    CHECK(spw_batch_step(x.b, &err) == 1 && !spw_batch_runs(x.b, id));
    while (spw_batch_runs(x.b, own))
        CHECK_MSG(spw_batch_step(x.b, &err) >= 0, "%s", err.text);
    spw_session_close(s);
    until_idle(&x);
    CHECK(spw_batch_result(x.b, id)->finish == SPW_FINISH_LENGTH);
    room_close(&x);
    tiny_model_remove(x.dir);
}

/* Room for 10 tiles: a request takes 1, and a search 3 for its prompt and 1 for each beam. */
static void check_room(void)
{
    struct room x;
    struct spw_error err = {0};
    room_make(&x, &tiny_narrow, N_BEAMS + 1);
    x.o.full_sessions = 2;
    x.o.prefill_chunk = 512;
    room_open(&x);
    submit(&x, 0, 20, 50, 0);
    const uint64_t id = submit(&x, 1, 3 * SPW_TILE_TOKENS, 100, N_BEAMS);
    CHECK(spw_batch_step(x.b, &err) == 1 && spw_batch_runs(x.b, id));
    until_idle(&x);
    CHECK(spw_batch_result(x.b, id)->finish == SPW_FINISH_LENGTH);
    room_close(&x);
    tiny_model_remove(x.dir);
}

/* ---- how a search ends ---- */

/* Beams that have lost their sessions fail with a reason if the caller has taken their room. */
static void check_lost_room(void)
{
    struct room x;
    struct spw_error err = {0};
    struct spw_session *s = NULL;
    room_make(&x, &tiny_narrow, N_BEAMS + 1);
    x.o.full_sessions = 1;
    room_open(&x);
    const uint64_t id = submit(&x, 1, 2 * SPW_TILE_TOKENS, 100, N_BEAMS);
    for (int i = 0; i < 3; i++)
        CHECK_MSG(spw_batch_step(x.b, &err) == 1, "%s", err.text);
    close_beams(&x, id, N_BEAMS - 1);
    CHECK_MSG(!spw_session_open_for(&s, x.e, SPW_TILE_TOKENS, &err), "%s", err.text);
    until_idle(&x);
    for (uint64_t i = id; i < id + N_BEAMS; i++)
        CHECK(spw_batch_result(x.b, i)->finish == SPW_FINISH_FAILED);
    spw_session_close(s);
    room_close(&x);
    tiny_model_remove(x.dir);
}

/* A prompt whose layers' numbers are not finite fails with all beams, also those that nobody wants,
 * and no other request does. */
static void check_give_up(void)
{
    enum { TRIES = 2 };
    const struct tiny_model *m = &tiny_models[TINY_STATES];
    struct room x;
    struct spw_event event;
    struct spw_result taken;
    uint32_t n_failed = 0, n_ends = 0;
    room_make(&x, m, N_BEAMS + 1);
    tiny_model_spoil(x.dir, m, "embed_tokens.weight", (uint64_t)SPOILED * m->hidden);
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < CONTEXT; i++)
            x.ids[k][i] += x.ids[k][i] == SPOILED;
    x.ids[1][N_PROMPT / 2] = SPOILED;
    room_open(&x);
    spw_batch_set_prompt_chunks(x.b, 1);
    const uint64_t good = submit(&x, 0, 20, 40, 0);
    CHECK(spw_batch_step(x.b, NULL) == 1);
    const uint64_t bad = submit(&x, 1, N_PROMPT, 4, N_BEAMS);
    for (int i = 0; i < STEPS && !spw_batch_is_idle(x.b); i++) {
        struct spw_error err = {0};
        const int rc = spw_batch_step(x.b, &err);
        n_failed += rc < 0;
        if (rc < 0)
            spw_batch_give_up(x.b, TRIES, rc, &err);
        while (spw_batch_event(x.b, &event))
            if (event.request >= bad && event.kind == SPW_EVENT_END) {
                CHECK(event.rc == -EDOM && event.text_bytes);
                CHECK(!spw_batch_take(x.b, event.request, &taken));
                spw_result_free(&taken);
                n_ends++;
            }
    }
    CHECK(spw_batch_is_idle(x.b));
    CHECK_MSG(n_failed == TRIES && n_ends == N_BEAMS, "%u failures, %u ends", n_failed, n_ends);
    CHECK(spw_batch_result(x.b, good)->finish == SPW_FINISH_LENGTH);
    room_close(&x);
    tiny_model_remove(x.dir);
}

/* Canceled after any step, and taken at once, or never. */
static void check_cancel(bool keeps)
{
    struct room x;
    struct spw_result taken;
    uint64_t hash = 0;
    room_make(&x, &tiny_narrow, N_BEAMS + 1);
    room_open(&x);
    if (keeps)
        spw_batch_keep_ended(x.b);
    for (uint64_t n = 0; n < 8; n++) {
        const uint64_t beside = submit(&x, 0, 20, 9, 0), id = submit(&x, 1, 140, 6, N_BEAMS);
        for (uint64_t i = 0; i < n; i++)
            CHECK(spw_batch_step(x.b, NULL) >= 0);
        const bool is_over = spw_batch_result(x.b, id)->finish != SPW_FINISH_NONE;
        CHECK(is_over == (n > 5) && spw_batch_cancel(x.b, id + n % 3) == (is_over ? -ENOENT : 0));
        for (uint64_t k = 0; k < N_BEAMS && n % 2; k++) {
            CHECK(!spw_batch_take(x.b, id + k, &taken));
            CHECK(taken.finish == (is_over ? SPW_FINISH_LENGTH : SPW_FINISH_CANCELED));
            spw_result_free(&taken);
        }
        until_idle(&x);
        CHECK(!hash || spw_batch_result(x.b, beside)->logits_hash == hash);
        hash = spw_batch_result(x.b, beside)->logits_hash;
    }
    room_close(&x);
    tiny_model_remove(x.dir);
}

/* ---- a long prompt ---- */

enum { LONG = RUN_UNDER_TSAN ? 1000 : 4000, N_LONG = 4, WIDE = RUN_UNDER_TSAN ? 12 : 40, FEW = 8 };

static struct spw_options long_options(uint32_t sessions)
{
    return (struct spw_options){.backend = TEST_BACKEND,
                                .compute = SPW_DTYPE_F32,
                                .context = LONG + N_LONG,
                                .past_positions = true,
                                .sessions = sessions,
                                .threads = 2};
}

/* n beams in as many groups. Returns the most frames that tiles had on the device. */
static uint32_t search_long(const char *dir, const struct spw_options *o, uint32_t n,
                            struct spw_result *results)
{
    struct spw_error err = {0};
    struct spw_batch *b = NULL;
    int32_t prompt[LONG];
    uint32_t most = 0;
    uint64_t id;
    int rc = 1;
    run_ids(prompt, LONG, 90, 5);
    struct spw_engine *e = run_open(dir, o);
    const struct spw_request q = {
        .prompt = prompt,
        .n_prompt = LONG,
        .max_new_tokens = N_LONG,
        .ignore_eos = true,
        .beams = {.n_beams = n, .n_groups = n, .diversity_penalty = 0.5F, .length_penalty = 1}};
    CHECK_MSG(!spw_batch_open(&b, e, NULL, &err), "%s", err.text);
    CHECK_MSG(!spw_batch_submit(b, &q, &id, &err), "%s", err.text);
    while (rc > 0) {
        rc = spw_batch_step(b, &err);
        const struct spw_tier *t = &e->kv->device;
        most = spw_max_u32(most, t->frames.n_frames - spw_tier_n_free(t));
    }
    CHECK_MSG(!rc, "%s", err.text);
    for (uint32_t i = 0; i < n; i++)
        CHECK(!spw_batch_take(b, id + i, &results[i]));
    run_check_peaks(e, o, dir);
    spw_batch_close(b);
    spw_engine_close(e);
    return most;
}

/* Memory for three sessions, and no more, has room for the beams: they share the prompt, which in a
 * model with an encoder is the source. */
static void check_long(const char *dir, uint32_t n_slices)
{
    struct spw_result all[WIDE], few[WIDE], one;
    struct spw_error err = {0};
    struct spw_options o = long_options(WIDE);
    struct spw_plan_info info;
    search_long(dir, &o, WIDE, all);
    o.full_sessions = 3;
    run_tight(dir, &o, 0);
    CHECK_MSG(!spw_plan_query(&info, dir, &o, &err), "%s", err.text);
    o.host_bytes = info.smallest_host_bytes;
    o.full_sessions++;
    CHECK(spw_plan_query(&info, dir, &o, &err) == -ENOMEM);
    o.full_sessions--;
    search_long(dir, &o, WIDE, few);
    for (int i = 0; i < WIDE; i++) {
        CHECK_MSG(all[i].n_tokens == few[i].n_tokens &&
                      !memcmp(all[i].tokens, few[i].tokens, all[i].n_tokens * sizeof(int32_t)) &&
                      !memcmp(&all[i].score, &few[i].score, sizeof all[i].score),
                  "%s: beam %d", dir, i);
        spw_result_free(&all[i]);
        spw_result_free(&few[i]);
    }
    o = long_options(FEW);
    const uint32_t of_one = search_long(dir, &o, 1, &one), of_few = search_long(dir, &o, FEW, few);
    const uint32_t own = spw_waterline_tiles(LONG + N_LONG) - LONG / SPW_TILE_TOKENS;
    CHECK_MSG(of_few <= 1.05 * of_one + FEW * own * n_slices, "%s: %u beams: %u frames, one: %u",
              dir, FEW, of_few, of_one);
    spw_result_free(&one);
    for (int i = 0; i < FEW; i++)
        spw_result_free(&few[i]);
}

int main(void)
{
    struct room x;
    if (!run_is_there())
        return CHECK_SKIP;
    room_make(&x, &tiny_narrow, 1);
    check_long(x.dir, tiny_narrow.layers);
    tiny_model_remove(x.dir);
    check_long("tests/golden/t5_relu", 2);
    check_bits(&tiny_models[0], 2, 1, SPW_KV_EXACT);
    check_bits(&tiny_models[0], 3, 0, SPW_KV_INT8);
    check_bits(tiny_model_of("mistral"), 3, 1, SPW_KV_EXACT);
    check_bits(tiny_model_of("gemma3_text"), 3, 0, SPW_KV_EXACT);
    check_bits(tiny_model_of("qwen2_moe"), 2, 1, SPW_KV_EXACT);
    check_bits(tiny_model_of("qwen3_5_text"), 3, 0, SPW_KV_EXACT);
    check_bits(tiny_model_of("lfm2"), 3, 1, SPW_KV_EXACT);
    check_moved(&tiny_models[0], SPW_KV_EXACT, true);
    check_moved(&tiny_models[0], SPW_KV_INT8, false);
    check_moved(&tiny_models[0], SPW_KV_EXACT, false);
    check_moved(tiny_model_of("gemma3_text"), SPW_KV_EXACT, false);
    check_moved(tiny_model_of("qwen3_5_text"), SPW_KV_EXACT, false);
    check_moved(tiny_model_of("lfm2"), SPW_KV_EXACT, false);
    check_places();
    check_room();
    check_lost_room();
    check_give_up();
    check_cancel(false);
    check_cancel(true);
    return check_done();
}
