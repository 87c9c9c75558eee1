/* Steps of prompts that are paused between two chunks of a layer: what callers of a batch see of
 * it, and cases that no walk of test_engine would meet often. There steps wait while other sessions
 * decode, open, close, fork, are resumed, and while budgets change and the drive fails. */
#include "runtime/saved.h"
#include "tests/batch_run.h"
#include "tests/engine/engine_run.h"
#include "tests/engine/persist/pack_run.h"

enum { CONTEXT = 900, MOST_VOCAB = 128 };

/* The last row of n tokens, from an engine of its own. */
static void expected(const char *dir, const struct spw_options *as, const int32_t *ids, uint64_t n,
                     float *out)
{
    struct spw_options o = {.backend = TEST_BACKEND,
                            .context = CONTEXT,
                            .precision = as->precision,
                            .residual_window = as->residual_window};
    struct spw_engine *e = run_open(dir, &o);
    struct spw_session *s = run_session(e);
    memcpy(out, run_to(s, e, ids, n), spw_engine_config(e)->vocab * sizeof *out);
    spw_session_close(s);
    spw_engine_close(e);
}

/* spw_sync of a step that is paused after so many chunks. */
static int sync_chunks(struct spw_engine *e, const struct spw_span *spans, size_t n,
                       uint64_t most_chunks, struct spw_error *err)
{
    const struct spw_sync_options o = {.most_chunks = most_chunks};
    return spw_engine_sync(e, spans, n, &o, NULL, NULL, err);
}

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
    struct tiny_model m = tiny_narrow;
    m.family = family;
    m.more = more;
    m.positions = 1024;
    m.stored = TINY_BF16;
    m.seed = 41;
    *x = (struct room){.o = {.backend = TEST_BACKEND,
                             .context = CONTEXT,
                             .sessions = sessions,
                             .threads = 1,
                             .saves = true,
                             .on_pass = between_passes,
                             .pass_context = x,
                             .prefill_chunk = chunk}};
    run_folder(x->dir, &m, "pause_room");
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
                            size_t max_new)
{
    struct spw_error err = {0};
    uint64_t id = 0;
    const struct spw_request q = {
        .prompt = x->ids[k], .n_prompt = n_prompt, .max_new_tokens = max_new, .ignore_eos = true};
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
            room_submit(&x, b, i % 2, 20 + 100 * i, 3);
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
    room_submit(&x, b, 0, 3, 300);
    room_steps(b, 2);
    uint64_t beginning = room_submit(&x, b, 1, 256, max_new);
    uint64_t whole = room_submit(&x, b, 1, LENGTH, 3);
    while (!spw_batch_result(b, whole)->n_tokens) {
        room_steps(b, 1);
        n_waited += room_finish(b, beginning) || spw_batch_result(b, beginning)->n_tokens;
    }
    CHECK(spw_batch_result(b, whole)->n_reused == 256);
    CHECK_MSG(n_waited > 5, "%u steps after the first prompt", n_waited);
    spw_batch_close(b);
    room_close(&x);
}

/* Between two passes of a step that was paused before, its session can be saved. */
static void check_saved(void)
{
    struct room x;
    struct spw_error err = {0};
    float right[MOST_VOCAB];
    room_open(&x, 2);
    struct spw_session *s = run_session(x.e);
    const struct spw_span span = {s, x.ids[0], LENGTH, 1};
    x.saved = s;
    CHECK(sync_chunks(x.e, &span, 1, 2, &err) == -EAGAIN);
    CHECK_MSG(!spw_sync(x.e, &span, 1, NULL, NULL, &err), "%s", err.text);
    CHECK(x.n_passes);
    expected(x.dir, &x.o, x.ids[0], LENGTH, right);
    CHECK(run_same(spw_session_logits(s), right, spw_engine_config(x.e)->vocab));
    spw_session_close(s);
    room_close(&x);
}

/* A new session drops a step that waits. Tokens that had passed all layers were computed, not
 * reused. */
static void check_reuse(void)
{
    struct room x;
    room_open(&x, 3);
    struct spw_batch *b = room_batch(&x);
    room_submit(&x, b, 0, 3, 190);
    room_steps(b, 2);
    uint64_t waiting = room_submit(&x, b, 1, LENGTH, 2);
    while (!x.n_passes)
        room_steps(b, 1);
    CHECK(x.e->paused.n == 1);
    struct spw_session *s = run_session(x.e);
    run_to(s, x.e, x.ids[0], 10);
    CHECK(!x.e->paused.n);
    while (room_finish(b, waiting) == SPW_FINISH_NONE)
        room_steps(b, 1);
    CHECK_MSG(!spw_batch_result(b, waiting)->n_reused, "%zu tokens reused",
              spw_batch_result(b, waiting)->n_reused);
    spw_batch_close(b);
    spw_session_close(s);
    room_close(&x);
}

/* The session goes to n tokens of a sequence, with the right logits. */
static void go_to(struct room *x, struct spw_session *s, uint32_t k, uint64_t n)
{
    float right[MOST_VOCAB];
    expected(x->dir, &x->o, x->ids[k], n, right);
    run_to(s, x->e, x->ids[k], n);
    CHECK(run_same(spw_session_logits(s), right, spw_engine_config(x->e)->vocab));
}

/* A fork drops the step that its session waits in. Windows have moved on since: both are empty. */
static void check_fork(void)
{
    struct room x;
    struct spw_error err = {0};
    room_open_model(&x, 2, "mistral", ",\"sliding_window\":100", 256);
    struct spw_session *s = run_session(x.e), *fork;
    const struct spw_span span = {s, x.ids[0], LENGTH, 1};
    run_to(s, x.e, x.ids[0], 100);
    x.n_passes = 0;
    while (!x.n_passes)
        CHECK(sync_chunks(x.e, &span, 1, 2, &err) == -EAGAIN);
    CHECK(x.e->paused.n == 1 && spw_session_n_tokens(s) > 100);
    CHECK_MSG(!spw_session_fork(&fork, s, &err), "%s", err.text);
    CHECK(!x.e->paused.n && !spw_session_n_tokens(s) && !spw_session_n_tokens(fork));
    go_to(&x, fork, 0, LENGTH);
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
    struct spw_saved *saved = NULL;
    room_open(&x, 3);
    struct spw_session *s = run_session(x.e), *again = NULL;
    run_to(s, x.e, x.ids[1], LENGTH);
    CHECK_MSG(!spw_session_save(s, x.file, NULL, 0, NULL, &err), "%s", err.text);
    spw_session_close(s);
    s = run_session(x.e);
    const struct spw_span span = {s, x.ids[0], LENGTH, 1};
    for (x.n_passes = 0; x.n_passes < 2;)
        CHECK(sync_chunks(x.e, &span, 1, 2, &err) == -EAGAIN);
    CHECK_MSG(!spw_saved_open(&saved, x.file, &err), "%s", err.text);
    CHECK_MSG(!spw_session_resume(&again, x.e, saved, &err), "%s", err.text);
    spw_saved_close(saved);
    CHECK(!x.e->paused.n);
    go_to(&x, s, 0, LENGTH);
    go_to(&x, again, 1, LENGTH + 1);
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
    expected(x.dir, &x.o, x.ids[0], LENGTH + 100, right);
    CHECK(run_same(spw_session_logits(s), right, spw_engine_config(x.e)->vocab));
    spw_session_close(s);
    pack_remove_folder(cache);
    room_close(&x);
}

int main(void)
{
    if (!run_is_there())
        return CHECK_SKIP;
    check_places();
    check_passes();
    check_beginning(150);
    check_beginning(0);
    check_saved();
    check_reuse();
    check_fork();
    check_resume();
    check_loads(false);
    check_loads(true);
    return check_done();
}
