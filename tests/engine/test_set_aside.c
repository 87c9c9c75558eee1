/* Steps of prompts that are set aside between two chunks of a layer, while other sessions decode,
 * open, close and fork. Logits are those of a session that is alone with all the memory; no budget
 * is passed; every byte is predicted. */
#include "runtime/saved.h"
#include "tests/batch_run.h"
#include "tests/engine/engine_run.h"
#include "tests/engine/persist/pack_run.h"

enum {
    CONTEXT = 900,
    SESSIONS = 4,
    MOST_VOCAB = 128,
    DRAWS = RUN_UNDER_ASAN || RUN_UNDER_TSAN ? 3 : 9,
    STEPS = 60
};

static uint32_t n_paused, n_beside, n_continued, n_dropped, n_held_up;

struct life {
    const char *dir;
    struct spw_options o;
    uint64_t least_device_bytes;
    struct spw_engine *e;
    struct spw_session *sessions[SESSIONS];
    int32_t ids[SESSIONS][CONTEXT];
    uint64_t n[SESSIONS], seed;
    struct spw_span waiting[SESSIONS]; /* [n_waiting], of the step that was set aside */
    uint32_t n_waiting;
};

/* ---- what is right ---- */

/* The last row of n tokens, from an engine of its own. */
static void expected(const struct life *x, const int32_t *ids, uint64_t n, float *out)
{
    struct spw_options o = {.backend = TEST_BACKEND,
                            .context = CONTEXT,
                            .precision = x->o.precision,
                            .residual_window = x->o.residual_window};
    struct spw_engine *e = run_open(x->dir, &o);
    struct spw_session *s = run_session(e);
    memcpy(out, run_to(s, e, ids, n), spw_engine_config(e)->vocab * sizeof *out);
    spw_session_close(s);
    spw_engine_close(e);
}

static void check_session(struct life *x, uint32_t i)
{
    float right[MOST_VOCAB];
    if (!x->sessions[i] || !spw_session_logits(x->sessions[i]))
        return;
    expected(x, x->ids[i], x->n[i], right);
    CHECK_MSG(run_same(spw_session_logits(x->sessions[i]), right, spw_engine_config(x->e)->vocab),
              "%s: session %u at %llu tokens", x->dir, i, (unsigned long long)x->n[i]);
}

/* ---- sessions ---- */

static uint64_t draw(struct life *x, uint64_t from, uint64_t to)
{
    return check_range(&x->seed, from, to);
}

static bool waits(const struct life *x, uint32_t i)
{
    for (uint32_t k = 0; k < x->n_waiting; k++)
        if (x->waiting[k].session == x->sessions[i])
            return true;
    return false;
}

/* spw_sync of a step that is set aside after so many chunks. */
static int sync_chunks(struct spw_engine *e, const struct spw_span *spans, size_t n,
                       uint64_t most_chunks, struct spw_error *err)
{
    const struct spw_sync_options o = {.most_chunks = most_chunks};
    return spw_engine_sync(e, spans, n, &o, NULL, NULL, err);
}

/* The step that was set aside goes on, until it is through or set aside again. */
static void go_on(struct life *x, bool waited)
{
    struct spw_error err = {0};
    bool was_aside = x->e->aside.n;
    int rc = sync_chunks(x->e, x->waiting, x->n_waiting, draw(x, 1, 6), &err);
    CHECK_MSG(!rc || rc == -EAGAIN, "%s: %d: %s", x->dir, rc, err.text);
    CHECK(rc == -EAGAIN ? x->e->aside.n == x->n_waiting : !x->e->aside.n);
    n_continued += waited && was_aside;
    n_dropped += waited && !was_aside;
    n_paused += rc == -EAGAIN;
    if (rc)
        return;
    for (uint32_t i = 0; i < SESSIONS; i++)
        if (waits(x, i) && check_random(&x->seed) % 4 == 0)
            check_session(x, i);
    x->n_waiting = 0;
}

/* Prompts of one session or several. */
static void begin_prompts(struct life *x)
{
    x->n_waiting = 0;
    for (uint32_t i = 0; i < SESSIONS; i++) {
        if (!x->sessions[i] || check_random(&x->seed) % 2)
            continue;
        if (x->n[i] + 50 > CONTEXT)
            x->n[i] = draw(x, 0, CONTEXT / 2);
        x->n[i] = draw(x, x->n[i] + 20, CONTEXT);
        x->waiting[x->n_waiting++] = (struct spw_span){x->sessions[i], x->ids[i], x->n[i], 1};
    }
    if (!x->n_waiting)
        return;
    go_on(x, false);
}

/* A step of sessions that do not wait. */
static void decode(struct life *x)
{
    struct spw_span spans[SESSIONS];
    struct spw_error err = {0};
    uint32_t n = 0;
    for (uint32_t i = 0; i < SESSIONS; i++) {
        if (!x->sessions[i] || waits(x, i) || !x->n[i])
            continue;
        if (x->n[i] + 3 > CONTEXT || check_random(&x->seed) % 8 == 0)
            x->n[i] -= spw_min_u64(x->n[i] - 1, draw(x, 1, 200));
        x->n[i] += spw_min_u64(draw(x, 1, 3), CONTEXT - x->n[i]);
        spans[n++] = (struct spw_span){x->sessions[i], x->ids[i], x->n[i], 1};
    }
    if (!n)
        return;
    bool was_aside = x->e->aside.n;
    CHECK_MSG(!spw_sync(x->e, spans, n, NULL, NULL, &err), "%s: %s", x->dir, err.text);
    n_beside += was_aside && x->e->aside.n;
    for (uint32_t i = 0; i < SESSIONS; i++)
        if (check_random(&x->seed) % 12 == 0 && !waits(x, i))
            check_session(x, i);
}

static void open_one(struct life *x, uint32_t i)
{
    struct spw_error err = {0};
    uint32_t from = (uint32_t)draw(x, 0, SESSIONS - 1);
    if (x->sessions[from] && !waits(x, from) && x->n[from]) {
        CHECK_MSG(!spw_session_fork(&x->sessions[i], x->sessions[from], &err), "%s", err.text);
        memcpy(x->ids[i], x->ids[from], sizeof x->ids[i]);
        x->n[i] = x->n[from];
    } else {
        x->sessions[i] = run_session(x->e);
        run_ids(x->ids[i], CONTEXT, spw_engine_config(x->e)->vocab, check_random(&x->seed));
        x->n[i] = 0;
    }
}

static uint32_t count_open(const struct life *x)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < SESSIONS; i++)
        n += x->sessions[i] != NULL;
    return n;
}

/* Sessions open and close, or the budgets change: then the prompts are computed again. */
static void disturb(struct life *x)
{
    struct spw_error err = {0};
    uint32_t i = (uint32_t)draw(x, 0, SESSIONS - 1);
    if (check_random(&x->seed) % 3 == 0) {
        x->o.device_bytes = x->least_device_bytes + draw(x, 0, 20) * 4096;
        CHECK_MSG(!spw_engine_set_budgets(x->e, x->o.device_bytes, x->o.host_bytes, x->o.disk_bytes,
                                          &err),
                  "%s: %s", x->dir, err.text);
    } else if (!x->sessions[i]) {
        open_one(x, i);
    } else if (!waits(x, i) && count_open(x) > 2) {
        spw_session_close(x->sessions[i]);
        x->sessions[i] = NULL;
    }
}

static void live(struct life *x)
{
    for (uint32_t i = 0; i < SESSIONS / 2; i++)
        open_one(x, i);
    for (uint32_t k = 0; k < STEPS; k++) {
        if (check_random(&x->seed) % 6 == 0)
            disturb(x);
        if (check_random(&x->seed) % 3)
            decode(x);
        if (x->n_waiting)
            go_on(x, true);
        else
            begin_prompts(x);
        run_check_peaks(x->e, &x->o, x->dir);
    }
    while (x->n_waiting)
        go_on(x, true);
    for (uint32_t i = 0; i < SESSIONS; i++)
        check_session(x, i);
}

/* ---- a batch ---- */

enum { REQUESTS = 7, MOST_NEW = 30 };

struct request {
    int32_t prompt[CONTEXT];
    size_t n_prompt, max_new;
    int32_t tokens[MOST_NEW];
    uint64_t logits_hash;
    size_t n_tokens;
};

static void read_events(struct spw_batch *b, struct request *r, uint32_t vocab)
{
    struct spw_event e;
    while (spw_batch_event(b, &e)) {
        struct request *x = &r[e.request - 1];
        CHECK_MSG(e.kind != SPW_EVENT_END || !e.text_bytes, "%s", e.text);
        if (e.kind != SPW_EVENT_TOKEN)
            continue;
        const unsigned char *at = (const unsigned char *)e.logits;
        for (size_t i = 0; i < vocab * sizeof *e.logits; i++)
            x->logits_hash = (x->logits_hash ^ at[i]) * 0x100000001b3u;
        x->tokens[x->n_tokens++] = e.token;
    }
}

/* Requests come in while others run. Returns how many steps gave a token while prompts waited. */
static uint32_t run_batch(struct spw_engine *e, struct request *r, uint32_t chunks, uint64_t *seed)
{
    struct spw_batch *b = NULL;
    struct spw_error err = {0};
    uint64_t id;
    uint32_t n_sent = 0, n_waited = 0;
    int more = 1;
    CHECK_MSG(!spw_batch_open(&b, e, NULL, &err), "%s", err.text);
    spw_batch_set_prompt_chunks(b, chunks);
    while (more || n_sent < REQUESTS) {
        if (n_sent < REQUESTS && (!n_sent || check_random(seed) % 4 == 0)) {
            const struct request *x = &r[n_sent++];
            const struct spw_request q = {
                .prompt = x->prompt, .n_prompt = x->n_prompt, .max_new_tokens = x->max_new};
            CHECK_MSG(!spw_batch_submit(b, &q, &id, &err), "%s", err.text);
        }
        more = spw_batch_step(b, &err);
        CHECK_MSG(more >= 0, "%s", err.text);
        read_events(b, r, spw_engine_config(e)->vocab);
        n_waited += e->aside.n > 0;
    }
    spw_batch_close(b);
    return n_waited;
}

static void check_batch(const char *dir, const struct spw_options *o, uint64_t seed)
{
    static struct request right[REQUESTS], beside[REQUESTS];
    struct spw_options whole = {.backend = TEST_BACKEND,
                                .context = CONTEXT,
                                .sessions = SESSIONS,
                                .precision = o->precision,
                                .residual_window = o->residual_window};
    struct spw_engine *e = run_open(dir, &whole);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        right[i] = (struct request){.n_prompt = !i || check_random(&seed) % 3 == 0
                                                    ? check_range(&seed, 1, 40)
                                                    : check_range(&seed, 300, CONTEXT - MOST_NEW),
                                    .max_new = i ? check_range(&seed, 1, MOST_NEW) : MOST_NEW};
        run_ids(right[i].prompt, CONTEXT, spw_engine_config(e)->vocab, check_random(&seed) % 3);
        beside[i] = right[i];
    }
    CHECK(!run_batch(e, right, 0, &seed));
    spw_engine_close(e);
    e = run_open(dir, o);
    n_held_up += run_batch(e, beside, (uint32_t)check_range(&seed, 1, 3), &seed);
    for (uint32_t i = 0; i < REQUESTS; i++)
        CHECK_MSG(right[i].n_tokens == beside[i].n_tokens &&
                      right[i].logits_hash == beside[i].logits_hash &&
                      !memcmp(right[i].tokens, beside[i].tokens, sizeof right[i].tokens),
                  "%s: request %u: %zu tokens, %zu beside others", dir, i, right[i].n_tokens,
                  beside[i].n_tokens);
    run_check_peaks(e, o, dir);
    spw_engine_close(e);
}

/* ---- what they run under ---- */

static void check_draw(uint64_t seed, uint32_t number)
{
    static const char window[] = ",\"use_sliding_window\":true,\"sliding_window\":200,"
                                 "\"max_window_layers\":1";
    const bool slides = number % 3 == 1;
    const struct tiny_model m = {.family = slides ? "qwen2" : "llama",
                                 .layers = 3,
                                 .hidden = 32,
                                 .intermediate = 48,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .head_dim = 8,
                                 .vocab = 96,
                                 .positions = 1024,
                                 .more = slides ? window : "",
                                 .bias = slides,
                                 .seed = seed};
    char dir[128], disk[160];
    struct spw_options o = {.backend = TEST_BACKEND,
                            .context = CONTEXT,
                            .sessions = SESSIONS,
                            .threads = 1,
                            .prefill_chunk = (uint32_t)check_range(&seed, 16, 200)};
    run_folder(dir, &m, "aside");
    snprintf(disk, sizeof disk, "%s/disk", dir);
    if (number % 3 == 2) {
        o.precision = SPW_KV_INT8;
        o.residual_window = 128;
    }
    run_tight(dir, &o, check_range(&seed, 0, 30) * 4096);
    if (number % 2) {
        mkdir(disk, 0700);
        o.disk_dir = disk;
        run_to_disk(dir, &o);
        o.host_bytes += check_range(&seed, 0, 60) * 4096;
    }
    struct life x = {.dir = dir,
                     .o = o,
                     .least_device_bytes = o.device_bytes,
                     .e = run_open(dir, &o),
                     .seed = seed};
    live(&x);
    for (uint32_t i = 0; i < SESSIONS; i++)
        spw_session_close(x.sessions[i]);
    spw_engine_close(x.e);
    check_batch(dir, &o, seed);
    rmdir(disk);
    tiny_model_remove(dir);
}

/* ---- single cases ---- */

enum { LENGTH = 700 };

/* A model, and an engine whose prompts take several passes. */
struct room {
    char dir[128], file[160];
    struct spw_options o;
    struct spw_engine *e;
    int32_t ids[2][CONTEXT];
    struct spw_session *saved; /* written to `file` between passes */
    uint32_t n_passes;
};

static void between_passes(void *context)
{
    struct room *x = context;
    struct spw_error err = {0};
    x->n_passes++;
    if (x->saved)
        CHECK_MSG(!spw_session_save(x->saved, x->file, NULL, 0, NULL, &err), "%s", err.text);
}

static void room_open_model(struct room *x, uint32_t sessions, const char *family, const char *more,
                            uint32_t chunk)
{
    const struct tiny_model m = {.family = family,
                                 .layers = 3,
                                 .hidden = 32,
                                 .intermediate = 48,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .head_dim = 8,
                                 .vocab = 96,
                                 .positions = 1024,
                                 .more = more,
                                 .stored = TINY_BF16,
                                 .seed = 41};
    *x = (struct room){.o = {.backend = TEST_BACKEND,
                             .context = CONTEXT,
                             .sessions = sessions,
                             .threads = 1,
                             .saves = true,
                             .on_pass = between_passes,
                             .pass_context = x,
                             .prefill_chunk = chunk}};
    run_folder(x->dir, &m, "aside_room");
    snprintf(x->file, sizeof x->file, "%s/saved", x->dir);
    run_tight(x->dir, &x->o, 0);
    x->e = run_open(x->dir, &x->o);
    run_ids(x->ids[0], CONTEXT, m.vocab, 1);
    run_ids(x->ids[1], CONTEXT, m.vocab, 2);
}

static void room_open(struct room *x, uint32_t sessions)
{
    room_open_model(x, sessions, "llama", NULL, 64);
}

static void room_close(struct room *x)
{
    run_check_peaks(x->e, &x->o, x->dir);
    spw_engine_close(x->e);
    unlink(x->file);
    tiny_model_remove(x->dir);
}

static struct spw_batch *room_batch(struct room *x)
{
    struct spw_batch *b = NULL;
    struct spw_error err = {0};
    CHECK_MSG(!spw_batch_open(&b, x->e, NULL, &err), "%s", err.text);
    spw_batch_set_prompt_chunks(b, 1);
    return b;
}

static uint64_t room_submit(struct room *x, struct spw_batch *b, uint32_t k, size_t n_prompt,
                            size_t max_new, struct spw_session *session)
{
    struct spw_error err = {0};
    uint64_t id = 0;
    const struct spw_request q = {.prompt = x->ids[k],
                                  .n_prompt = n_prompt,
                                  .max_new_tokens = max_new,
                                  .ignore_eos = true,
                                  .session = session};
    CHECK_MSG(!spw_batch_submit(b, &q, &id, &err), "%s", err.text);
    return id;
}

static void room_steps(struct spw_batch *b, uint32_t n)
{
    struct spw_error err = {0};
    while (n--)
        CHECK_MSG(spw_batch_step(b, &err) >= 0, "%s", err.text);
}

static enum spw_finish room_finish(struct spw_batch *b, uint64_t id)
{
    return spw_batch_result(b, id)->finish;
}

/* The session of a request that has ended is not free before the caller has read its events. */
static void check_places(void)
{
    for (uint32_t sessions = 1; sessions < 3; sessions++) {
        struct room x;
        struct spw_error err = {0};
        room_open(&x, sessions);
        struct spw_batch *b = room_batch(&x);
        for (uint32_t i = 0; i < 5; i++)
            room_submit(&x, b, i % 2, 20 + 100 * i, 3, NULL);
        int rc = 1;
        for (uint32_t i = 0; rc > 0 && i < 1000; i++)
            rc = spw_batch_step(b, &err);
        CHECK_MSG(!rc, "%d: %s", rc, err.text);
        for (uint64_t id = 1; id <= 5; id++)
            CHECK_MSG(room_finish(b, id) == SPW_FINISH_LENGTH, "%u sessions: request %llu: %d",
                      sessions, (unsigned long long)id, (int)room_finish(b, id));
        spw_batch_close(b);
        room_close(&x);
    }
}

/* A pause that is due where a pass ends comes in the next pass. */
static void check_passes(void)
{
    struct room x;
    struct spw_error err = {0};
    room_open(&x, 2);
    struct spw_session *s = run_session(x.e);
    const struct spw_span span = {s, x.ids[0], LENGTH, 1};
    const struct spw_plan *p = &x.e->plan;
    int rc = -EAGAIN;
    uint32_t n = 0;
    CHECK(p->pass_rows < LENGTH / 2);
    const uint64_t most_chunks = 3 * spw_div_up(p->pass_rows, p->chunk);
    for (; rc == -EAGAIN; n++)
        rc = sync_chunks(x.e, &span, 1, most_chunks, &err);
    CHECK_MSG(!rc, "%s", err.text);
    CHECK_MSG(n >= x.n_passes && x.n_passes, "%u calls for %u passes", n, x.n_passes + 1);
    spw_session_close(s);
    room_close(&x);
}

/* A prompt is the beginning of another one. When it is computed, the rest of the other one still
 * waits between its chunks, and the first one gets its tokens meanwhile, or ends. */
static void check_beginning(size_t max_new)
{
    struct room x;
    uint32_t n_waited = 0;
    room_open(&x, 4);
    struct spw_batch *b = room_batch(&x);
    room_submit(&x, b, 0, 3, 300, NULL);
    room_steps(b, 2);
    uint64_t beginning = room_submit(&x, b, 1, 256, max_new, NULL);
    uint64_t whole = room_submit(&x, b, 1, LENGTH, 3, NULL);
    while (!spw_batch_result(b, whole)->n_tokens) {
        room_steps(b, 1);
        n_waited += room_finish(b, beginning) || spw_batch_result(b, beginning)->n_tokens;
    }
    CHECK(spw_batch_result(b, whole)->n_reused == 256);
    CHECK_MSG(n_waited > 5, "%u steps after the first prompt", n_waited);
    spw_batch_close(b);
    room_close(&x);
}

/* Between two passes of a step that was set aside before, its session can be saved. */
static void check_saved(void)
{
    struct room x;
    struct spw_error err = {0};
    float right[MOST_VOCAB];
    room_open(&x, 2);
    struct life plain = {.dir = x.dir};
    struct spw_session *s = run_session(x.e);
    const struct spw_span span = {s, x.ids[0], LENGTH, 1};
    x.saved = s;
    CHECK(sync_chunks(x.e, &span, 1, 2, &err) == -EAGAIN);
    CHECK_MSG(!spw_sync(x.e, &span, 1, NULL, NULL, &err), "%s", err.text);
    CHECK(x.n_passes);
    expected(&plain, x.ids[0], LENGTH, right);
    CHECK(run_same(spw_session_logits(s), right, spw_engine_config(x.e)->vocab));
    spw_session_close(s);
    room_close(&x);
}

/* A request of the caller's session is canceled while its step waits: others start. */
static void check_canceled(void)
{
    struct room x;
    room_open(&x, 3);
    struct spw_session *s = run_session(x.e);
    struct spw_batch *b = room_batch(&x);
    uint64_t first = room_submit(&x, b, 0, 3, 100, NULL);
    room_steps(b, 2);
    uint64_t waiting = room_submit(&x, b, 1, LENGTH, 3, s);
    room_steps(b, 2);
    CHECK(x.e->aside.n == 1 && !spw_batch_cancel(b, waiting));
    uint64_t other = room_submit(&x, b, 1, 20, 1, NULL);
    room_steps(b, 10);
    CHECK(room_finish(b, other) == SPW_FINISH_LENGTH && room_finish(b, first) == SPW_FINISH_NONE);
    spw_batch_close(b);
    spw_session_close(s);
    room_close(&x);
}

/* Another plan drops a step that waits, and the events of the call before can still be read. */
static void check_other_plan(void)
{
    struct room x;
    struct spw_error err = {0};
    struct spw_event event = {0};
    float logits[MOST_VOCAB];
    room_open(&x, 2);
    struct spw_batch *b = room_batch(&x);
    const size_t bytes = spw_engine_config(x.e)->vocab * sizeof *logits;
    room_submit(&x, b, 0, 3, 190, NULL);
    room_steps(b, 2);
    room_submit(&x, b, 1, LENGTH, 2, NULL);
    const uint64_t tight = x.o.device_bytes;
    for (uint32_t i = 0; i < 3; i++) { /* up, down, up */
        while (!x.e->aside.n)
            room_steps(b, 1);
        memcpy(logits, spw_session_logits(x.e->sessions[0]), bytes);
        x.o.device_bytes = tight + (i % 2 ? 0 : 1 << 20);
        CHECK(!spw_engine_set_budgets(x.e, x.o.device_bytes, x.o.host_bytes, 0, &err));
        CHECK(!x.e->aside.n && spw_batch_event(b, &event) && event.kind == SPW_EVENT_TOKEN);
        CHECK(!memcmp(logits, event.logits, bytes) && !spw_batch_event(b, &event));
    }
    spw_batch_close(b);
    room_close(&x);
}

/* A new session drops a step that waits. Tokens that had passed all layers were computed, not
 * reused. */
static void check_reuse(void)
{
    struct room x;
    room_open(&x, 3);
    struct spw_batch *b = room_batch(&x);
    room_submit(&x, b, 0, 3, 190, NULL);
    room_steps(b, 2);
    uint64_t waiting = room_submit(&x, b, 1, LENGTH, 2, NULL);
    while (!x.n_passes)
        room_steps(b, 1);
    CHECK(x.e->aside.n == 1);
    struct spw_session *s = run_session(x.e);
    run_to(s, x.e, x.ids[0], 10);
    CHECK(!x.e->aside.n);
    while (room_finish(b, waiting) == SPW_FINISH_NONE)
        room_steps(b, 1);
    CHECK_MSG(!spw_batch_result(b, waiting)->n_reused, "%zu tokens reused",
              spw_batch_result(b, waiting)->n_reused);
    spw_batch_close(b);
    spw_session_close(s);
    room_close(&x);
}

/* A fork drops the step that its session waits in. Windows have moved on since: both are empty. */
static void check_fork(void)
{
    struct room x;
    struct spw_error err = {0};
    float right[MOST_VOCAB];
    room_open_model(&x, 2, "mistral", ",\"sliding_window\":100", 256);
    struct life plain = {.dir = x.dir};
    struct spw_session *s = run_session(x.e), *fork;
    const struct spw_span span = {s, x.ids[0], LENGTH, 1};
    run_to(s, x.e, x.ids[0], 100);
    x.n_passes = 0;
    while (!x.n_passes)
        CHECK(sync_chunks(x.e, &span, 1, 2, &err) == -EAGAIN);
    CHECK(x.e->aside.n == 1 && spw_session_n_tokens(s) > 100);
    CHECK_MSG(!spw_session_fork(&fork, s, &err), "%s", err.text);
    CHECK(!x.e->aside.n && !spw_session_n_tokens(s) && !spw_session_n_tokens(fork));
    expected(&plain, x.ids[0], LENGTH, right);
    run_to(fork, x.e, x.ids[0], LENGTH);
    CHECK(run_same(spw_session_logits(fork), right, spw_engine_config(x.e)->vocab));
    spw_session_close(fork);
    spw_session_close(s);
    room_close(&x);
}

/* A session is resumed from its file while a step waits: it gets its share of the frames, and the
 * step is dropped. */
static void check_resume(void)
{
    struct room x;
    struct spw_error err = {0};
    float right[MOST_VOCAB];
    struct spw_saved *saved = NULL;
    room_open(&x, 3);
    struct life plain = {.dir = x.dir};
    struct spw_session *s = run_session(x.e);
    run_to(s, x.e, x.ids[1], LENGTH);
    CHECK_MSG(!spw_session_save(s, x.file, NULL, 0, NULL, &err), "%s", err.text);
    spw_session_close(s);
    s = run_session(x.e);
    const struct spw_span span = {s, x.ids[0], LENGTH, 1};
    for (x.n_passes = 0; x.n_passes < 2;)
        CHECK(sync_chunks(x.e, &span, 1, 2, &err) == -EAGAIN);
    struct spw_session *again = NULL;
    CHECK_MSG(!spw_saved_open(&saved, x.file, &err), "%s", err.text);
    CHECK_MSG(!spw_session_resume(&again, x.e, saved, &err), "%s", err.text);
    spw_saved_close(saved);
    CHECK(!x.e->aside.n);
    expected(&plain, x.ids[0], LENGTH, right);
    run_to(s, x.e, x.ids[0], LENGTH);
    CHECK(run_same(spw_session_logits(s), right, spw_engine_config(x.e)->vocab));
    expected(&plain, x.ids[1], LENGTH + 1, right);
    run_to(again, x.e, x.ids[1], LENGTH + 1);
    CHECK(run_same(spw_session_logits(again), right, spw_engine_config(x.e)->vocab));
    spw_session_close(again);
    spw_session_close(s);
    room_close(&x);
}

/* As if a tile that the running step has quantized were not finite. */
static void set_flag(struct spw_engine *e)
{
    static const uint32_t not_finite = 1;
    const struct spw_lane *l = &e->lane;
    CHECK(!spw_lane_copy(l, l->device_arena + e->plan.device.flags, &not_finite, sizeof not_finite,
                         SPW_LINK_HOST_TO_DEVICE, l->compute));
    CHECK(!spw_lane_stream_sync(l, l->compute));
}

/* Tiles of the prefix cache are loaded ahead of the layers that need them. harm: quantized tiles,
 * which turn out not to be numbers while the step waits, and are computed again. */
static void check_loads(bool harm)
{
    struct room x;
    struct spw_error err = {0};
    char cache[160];
    float right[MOST_VOCAB];
    room_open(&x, 2);
    spw_engine_close(x.e);
    snprintf(cache, sizeof cache, "%s/cache", x.dir);
    x.o.device_bytes = x.o.host_bytes = 1 << 30;
    x.o.prefix_cache_dir = cache;
    x.o.prefix_cache_bytes = 64 << 20;
    x.o.precision = harm ? SPW_KV_INT8 : SPW_KV_EXACT;
    x.o.residual_window = harm ? 128 : 0;
    x.e = run_open(x.dir, &x.o);
    struct life plain = {.dir = x.dir, .o = x.o};
    struct spw_session *s = run_session(x.e);
    run_to(s, x.e, x.ids[0], LENGTH);
    CHECK_MSG(!spw_session_publish(s, &err), "%s", err.text);
    spw_session_close(s);
    s = run_session(x.e);
    const struct spw_span span = {s, x.ids[0], LENGTH + 100, 1};
    int rc = -EAGAIN;
    for (uint32_t n = 0; rc == -EAGAIN; n++) {
        rc = sync_chunks(x.e, &span, 1, 1, &err);
        run_check_peaks(x.e, &x.o, x.dir);
        CHECK(n || (rc == -EAGAIN && spw_session_from_store(s) > LENGTH / 2));
        if (!n && harm)
            set_flag(x.e);
    }
    CHECK_MSG(!rc && (spw_session_from_store(s) == 0) == harm, "%d: %s", rc, err.text);
    expected(&plain, x.ids[0], LENGTH + 100, right);
    CHECK(run_same(spw_session_logits(s), right, spw_engine_config(x.e)->vocab));
    spw_session_close(s);
    pack_remove_folder(cache);
    room_close(&x);
}

static bool has_seen_all(void)
{
    return n_paused > 10 * DRAWS && n_beside > 2 * DRAWS && n_continued > 5 * DRAWS &&
           n_dropped > DRAWS / 2 && n_held_up > 10 * DRAWS;
}

int main(void)
{
    uint64_t seed = check_seed();
    if (!run_is_there())
        return CHECK_SKIP;
    check_places();
    check_passes();
    check_beginning(150);
    check_beginning(0);
    check_saved();
    check_canceled();
    check_other_plan();
    check_reuse();
    check_fork();
    check_resume();
    check_loads(false);
    check_loads(true);
    check_draw(UINT64_C(7823087550272311987), 1); /* tiles of two layers change places */
    for (uint32_t i = 0; i < DRAWS || (!has_seen_all() && i < 5 * DRAWS); i++)
        check_draw(check_random(&seed), i);
    CHECK_MSG(has_seen_all(),
              "%u steps set aside, %u steps beside, %u continued, %u dropped, %u steps of a batch",
              n_paused, n_beside, n_continued, n_dropped, n_held_up);
    return check_done();
}
