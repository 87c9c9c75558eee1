/* Several sessions share the frames of each tier, and the drive fails while they open, grow, fork
 * and close: tiles are lost, or cannot be written, when a step of other sessions runs or when
 * shares change. Every row of logits is that of one plain run, an error is one line, and once the
 * drive is well every session goes on. At the end every frame is free. The same with requests of a
 * batch.
 *
 *   test_shared_disk [draws]           SPW_SEED repeats a run
 *   test_shared_disk number seed       a single draw */
#include "offload/kv/kv_tile.h"
#include "tests/engine/io_fault.h"
#include "tests/engine/oracle.h"

enum { SUBJECTS = 3, TOKENS = 900, SESSIONS = 4, STEPS = 20, DRAWS = 24, WATCHDOG_SECONDS = 120 };

/* Each session has a sequence of its own, which begins as that of the session it was forked
 * from. */
struct life {
    struct subject *s;
    struct spw_backend backend;
    struct spw_options o;
    struct spw_engine *e;
    struct spw_session *sessions[SESSIONS];
    int32_t ids[SESSIONS][TOKENS];
    size_t to[SESSIONS], most[SESSIONS];
    struct io_fault fault;
    int left;        /* steps until the drive is well; 0: it is */
    bool waits;      /* steps are set aside */
    bool late_write; /* a write has failed, of which a later step may be told */
    uint64_t *seed;
    char what[200];
};

static struct {
    uint64_t steps, beside, errors, losses, closed, forks, with_fault;
} count;

static bool is_one_line(const struct spw_error *err)
{
    return err->text[0] && !strchr(err->text, '\n');
}

/* ---- sessions ---- */

static void open_session(struct life *x, uint32_t i)
{
    struct spw_error err = {0};
    uint32_t from = (uint32_t)(check_random(x->seed) % SESSIONS);
    bool forks = x->sessions[from] && check_random(x->seed) % 2;
    size_t held = forks ? spw_session_n_tokens(x->sessions[from]) : 0;
    x->most[i] = forks                       ? x->most[from]
                 : check_random(x->seed) % 2 ? TOKENS
                                             : check_range(x->seed, 1, TOKENS);
    bool fits = spw_share_fits(&x->e->plan, spw_engine_open_tiles(x->e, false) +
                                                spw_waterline_tiles(x->most[i]));
    int rc = forks ? spw_session_fork(&x->sessions[i], x->sessions[from], &err)
                   : spw_session_open_for(&x->sessions[i], x->e, x->most[i], &err);
    CHECK_MSG(!rc == fits, "%s: %s", x->what, err.text);
    if (rc)
        return;
    run_ids(x->ids[i], TOKENS, x->s->vocab, check_random(x->seed));
    if (forks)
        memcpy(x->ids[i], x->ids[from], held * sizeof x->ids[i][0]);
    x->to[i] = held;
    count.forks += forks;
}

static void open_or_close(struct life *x)
{
    uint32_t i = (uint32_t)(check_random(x->seed) % SESSIONS);
    if (!x->sessions[i]) {
        open_session(x, i);
    } else if (check_random(x->seed) % 2) {
        spw_session_close(x->sessions[i]);
        x->sessions[i] = NULL;
        count.closed++;
    }
}

/* ---- steps ---- */

/* Logits that a session has are those of the tokens that it holds. */
static void check_logits(struct life *x)
{
    for (uint32_t i = 0; i < SESSIONS; i++) {
        const struct spw_session *s = x->sessions[i];
        size_t n = s ? spw_session_n_tokens(s) : 0;
        if (s && spw_session_logits(s))
            CHECK_MSG(n && oracle_same(x->s, x->ids[i], n, spw_session_logits(s)),
                      "%s: session %u: wrong logits after %zu tokens", x->what, i, n);
    }
}

/* While a step waits: the next token of a session that is not in it. */
static void step_beside(struct life *x, const size_t to[SESSIONS])
{
    uint32_t i = (uint32_t)(check_random(x->seed) % SESSIONS);
    struct spw_error err = {0};
    size_t n = x->sessions[i] && !to[i] ? spw_session_n_tokens(x->sessions[i]) + 1 : 0;
    if (n < 2 || n > x->most[i])
        return;
    struct spw_span span = {x->sessions[i], x->ids[i], n, 1};
    struct watch watch = {0};
    int rc = watch_sync(&watch, x->s, x->e, &span, 1, TOKENS, &err);
    CHECK_MSG(!watch.n_wrong, "%s: beside a step: wrong", x->what);
    CHECK_MSG(!rc || x->left || x->late_write, "%s: beside a step: %d %s", x->what, rc, err.text);
    x->late_write = x->late_write && (!rc || x->left);
    x->to[i] = spw_max_u64(x->to[i], n);
    count.beside += !rc;
}

/* Lives of some numbers set their steps aside. */
static int sync_to(struct life *x, const size_t to[SESSIONS], struct spw_error *err)
{
    struct spw_span spans[SESSIONS];
    struct watch watch = {.s = x->s};
    size_t n = 0;
    int rc = -EAGAIN;
    for (uint32_t i = 0; i < SESSIONS; i++)
        if (to[i]) {
            watch.rows[n] = oracle_rows(x->s, x->ids[i], to[i], TOKENS);
            spans[n++] = (struct spw_span){x->sessions[i], x->ids[i], to[i], 1};
        }
    if (!n)
        return 0;
    for (bool first = true; rc == -EAGAIN; first = false) {
        const struct spw_sync_options o = {.most_chunks =
                                               x->waits ? check_range(x->seed, 1, 6) : 0};
        if (!first)
            step_beside(x, to);
        rc = spw_engine_sync(x->e, spans, n, &o, watch_logits, &watch, err);
    }
    CHECK_MSG(!watch.n_wrong, "%s: %llu wrong rows", x->what, (unsigned long long)watch.n_wrong);
    CHECK_MSG(rc || watch.n_rows >= n, "%s: %llu rows", x->what, (unsigned long long)watch.n_rows);
    count.steps++;
    check_logits(x);
    run_check_peaks(x->e, &x->o, x->what);
    return rc;
}

/* Some sessions grow by a prompt or by a token, are cut back, or ask for what they hold. */
static void choose(struct life *x, size_t to[SESSIONS])
{
    for (uint32_t i = 0; i < SESSIONS; i++) {
        uint64_t kind = check_random(x->seed) % 8;
        to[i] = 0;
        if (!x->sessions[i] || check_random(x->seed) % 3 == 0)
            continue;
        if (kind == 0)
            x->to[i] -= spw_min_u64(x->to[i], check_range(x->seed, 1, 200));
        if (kind > 1)
            x->to[i] += kind > 4 ? 1 : check_range(x->seed, 1, 400);
        to[i] = x->to[i] = spw_max_u64(spw_min_u64(x->to[i], x->most[i]), 1);
    }
}

/* A write that failed when nobody waited for it fails one later step. */
static void must_sync(struct life *x, const size_t to[SESSIONS])
{
    struct spw_error err = {0};
    int rc = sync_to(x, to, &err);
    if (rc && x->late_write) {
        x->late_write = false;
        CHECK_MSG((rc == -EIO || rc == -ENOSPC) && is_one_line(&err), "%s: %d %s", x->what, rc,
                  err.text);
        rc = sync_to(x, to, &err);
    }
    CHECK_MSG(!rc, "%s: the drive is well, but: %d %s", x->what, rc, err.text);
}

static void break_drive(struct life *x)
{
    enum io_fault_kind kind = (enum io_fault_kind)(check_random(x->seed) % CUT);
    x->left = (int)check_range(x->seed, 1, 3);
    io_fault_set(&x->fault, kind,
                 (int64_t)check_range(x->seed, 0, 1 << check_range(x->seed, 0, 5)));
}

static void mend_drive(struct life *x)
{
    bool met = io_fault_end(&x->fault);
    x->late_write |= met && (x->fault.kind == WRITE_FOREVER || x->fault.kind == ALL_WRITES);
    count.with_fault += met;
}

static void step(struct life *x)
{
    size_t to[SESSIONS];
    struct spw_error err = {0};
    choose(x, to);
    if (!x->left) {
        must_sync(x, to);
        return;
    }
    int rc = sync_to(x, to, &err);
    if (rc) {
        CHECK_MSG((rc == -EIO || rc == -ENOSPC) && is_one_line(&err) &&
                      x->fault.kind >= READ_FOREVER,
                  "%s: %s: %d %s", x->what, io_fault_names[x->fault.kind], rc, err.text);
        count.errors++;
    }
    if (--x->left)
        return;
    mend_drive(x);
    if (rc)
        must_sync(x, to);
}

/* ---- a life ---- */

/* Most of the KV goes to the disk, and no weights. */
static void draw_life(struct life *x)
{
    struct spw_options *o = &x->o;
    x->backend = run_backend(check_random(x->seed) % 2);
    x->backend.io_fault = &x->fault.hook;
    *o = x->s->o;
    draw_speed(o, x->seed);
    if (x->waits && o->prefill_chunk < 16) /* a part has a few chunks */
        o->prefill_chunk = 16;
    o->context = TOKENS;
    o->sessions = SESSIONS;
    o->full_sessions = check_random(x->seed) % 2 ? 0 : (uint32_t)check_range(x->seed, 2, SESSIONS);
    o->on_oom = SPW_ON_OOM_SPILL;
    o->disk_dir = x->s->dir;
    o->disk_bytes = 64 << 20;
    run_tight_on(&x->backend, x->s->dir, o, check_range(x->seed, 0, 20) * 4096);
    run_to_disk_on(&x->backend, x->s->dir, o);
    o->host_bytes += check_range(x->seed, 0, 40) * 4096;
    while (run_plan_on(&x->backend, x->s->dir, o).weights_disk_bytes)
        o->host_bytes += 4096;
}

/* Nothing holds a frame when all sessions are closed. */
static void check_frames(struct life *x)
{
    struct spw_kv *kv = x->e->kv;
    if (!x->e->executor)
        return;
    spw_engine_finish(x->e);
    spw_kv_release_free_soon(kv);
    CHECK_MSG(spw_tier_n_free(&kv->device) == kv->o.n_device_frames, "%s: %u of %u device frames",
              x->what, spw_tier_n_free(&kv->device), kv->o.n_device_frames);
    CHECK_MSG(spw_tier_n_free(&kv->host) == kv->o.n_host_frames, "%s: %u of %u host frames",
              x->what, spw_tier_n_free(&kv->host), kv->o.n_host_frames);
    CHECK_MSG(!x->e->disk || !spw_disk_n_used(x->e->disk), "%s: %u disk frames are in use", x->what,
              spw_disk_n_used(x->e->disk));
}

static void live(struct subject *subjects, int number, uint64_t seed)
{
    static struct life x;
    struct subject *s = &subjects[number % SUBJECTS];
    uint64_t start = seed;
    x = (struct life){.s = s, .seed = &seed, .waits = number % 4 == 1 || number % 4 == 2};
    io_fault_open(&x.fault);
    draw_life(&x);
    alarm(WATCHDOG_SECONDS);
    x.e = run_open_on(&x.backend, s->dir, &x.o);
    for (int k = 0; k < STEPS; k++) {
        snprintf(x.what, sizeof x.what, "draw %d (%llu), %.60s, step %d", number,
                 (unsigned long long)start, s->dir, k);
        if (!x.left && check_random(&seed) % 2)
            break_drive(&x);
        open_or_close(&x);
        step(&x);
    }
    count.losses += x.e->events.n_lost_tiles;
    mend_drive(&x);
    for (uint32_t i = 0; i < SESSIONS; i++)
        spw_session_close(x.sessions[i]);
    check_frames(&x);
    spw_engine_close(x.e);
    pthread_mutex_destroy(&x.fault.lock);
}

/* ---- a batch ---- */

enum { REQUESTS = 9, MOST_NEW = 8 };

/* Steps a batch until all its requests have ended. A step that fails because of the drive is made
 * again; the next call may tell of a step in which others have got a token, and of a late write. */
static void run_batch(struct life *x, struct spw_engine *e, struct spw_request *list, bool breaks,
                      struct spw_result *results)
{
    struct spw_batch *b = NULL;
    struct spw_error err = {0};
    uint64_t id;
    int may_fail = 0;
    CHECK(!spw_batch_open(&b, e, NULL, &err));
    spw_batch_set_prompt_chunks(b, (uint32_t)(breaks ? check_random(x->seed) % 6 : 0));
    for (uint32_t i = 0; i < REQUESTS; i++)
        CHECK_MSG(!spw_batch_submit(b, &list[i], &id, &err), "%s: %s", x->what, err.text);
    for (int rc = 1; rc;) {
        if (breaks && !x->left && check_random(x->seed) % 4 == 0)
            break_drive(x);
        rc = spw_batch_step(b, &err);
        may_fail = x->left ? 2 : may_fail - (rc < 0);
        CHECK_MSG(rc >= 0 || (may_fail >= 0 && is_one_line(&err)), "%s: %d %s", x->what, rc,
                  err.text);
        count.errors += rc < 0;
        if (x->left && !--x->left)
            mend_drive(x);
    }
    for (uint32_t i = 0; i < REQUESTS; i++)
        CHECK(!spw_batch_take(b, i + 1, &results[i]));
    spw_batch_close(b);
}

static void draw_requests(struct life *x, struct spw_request list[REQUESTS])
{
    static int32_t ids[REQUESTS][TOKENS];
    for (uint32_t i = 0; i < REQUESTS; i++) {
        size_t longest = check_random(x->seed) % 3 ? 200 : TOKENS - MOST_NEW;
        list[i] = (struct spw_request){.prompt = ids[i],
                                       .n_prompt = check_range(x->seed, 1, longest),
                                       .max_new_tokens = check_range(x->seed, 1, MOST_NEW),
                                       .ignore_eos = true};
        run_ids(ids[i], TOKENS, x->s->vocab, check_random(x->seed));
        if (i && check_random(x->seed) % 2) /* they begin alike */
            memcpy(ids[i], ids[i - 1], TOKENS / 2 * sizeof ids[i][0]);
    }
}

/* Requests of a batch get what they get where the drive is well. */
static void check_batch(struct subject *subjects, int number, uint64_t seed)
{
    static struct life x;
    struct spw_request list[REQUESTS];
    struct spw_result alone[REQUESTS], results[REQUESTS];
    struct subject *s = &subjects[number % SUBJECTS];
    uint64_t start = seed;
    x = (struct life){.s = s, .seed = &seed, .waits = true};
    snprintf(x.what, sizeof x.what, "batch %d (%llu), %.60s", number, (unsigned long long)start,
             s->dir);
    io_fault_open(&x.fault);
    draw_life(&x);
    alarm(WATCHDOG_SECONDS);
    draw_requests(&x, list);
    struct spw_engine *plain = run_open(s->dir, &s->o);
    run_batch(&x, plain, list, false, alone);
    spw_engine_close(plain);
    x.e = run_open_on(&x.backend, s->dir, &x.o);
    run_batch(&x, x.e, list, true, results);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        CHECK_MSG(results[i].finish == SPW_FINISH_LENGTH &&
                      results[i].n_tokens == alone[i].n_tokens &&
                      results[i].logits_hash == alone[i].logits_hash,
                  "%s: request %u: finish %d, %zu tokens of %zu", x.what, i, (int)results[i].finish,
                  results[i].n_tokens, alone[i].n_tokens);
        spw_result_free(&results[i]);
        spw_result_free(&alone[i]);
    }
    count.losses += x.e->events.n_lost_tiles;
    mend_drive(&x);
    check_frames(&x);
    spw_engine_close(x.e);
    pthread_mutex_destroy(&x.fault.lock);
}

int main(int argc, char **argv)
{
    static const char window[] = ",\"use_sliding_window\":true,\"sliding_window\":200,"
                                 "\"max_window_layers\":1";
    static const struct tiny_model models[] = {
        {.family = "llama",
         .layers = 3,
         .hidden = 32,
         .intermediate = 48,
         .heads = 4,
         .kv_heads = 2,
         .head_dim = 8,
         .vocab = 96,
         .positions = 1024,
         .more = "",
         .untied = true,
         .seed = 31},
        {.family = "qwen2",
         .layers = 3,
         .hidden = 32,
         .intermediate = 48,
         .heads = 4,
         .kv_heads = 2,
         .head_dim = 8,
         .vocab = 96,
         .positions = 1024,
         .more = window,
         .bias = true,
         .untied = true,
         .seed = 32},
    };
    static const struct {
        int number;
        uint64_t seed;
    } found[] = {
        {16, 1483925169024748721u}, /* tiles of another session held the host frames of a step */
        {31, 2697480094787618882u}, /* a session was cut back when shares changed: its logits */
        {9, 18225431161782385183u}, /* a step that was set aside lost tiles again and again */
    };
    static struct subject subjects[SUBJECTS];
    if (!run_is_there())
        return CHECK_SKIP;
    uint64_t seed = check_seed();
    int64_t outstanding = spw_alloc_outstanding();
    for (int i = 0; i < SUBJECTS; i++)
        subject_open(&subjects[i], &models[i % 2], i < 2 ? "shared_disk" : "shared_disk_old",
                     TOKENS,
                     &(struct spw_options){.precision = i < 2 ? SPW_KV_EXACT : SPW_KV_INT8,
                                           .residual_window = i < 2 ? 0 : 128});
    struct check_draws draws = check_draws_of(argc, argv, DRAWS);
    if (argc > 2)
        live(subjects, atoi(argv[1]), strtoull(argv[2], NULL, 0));
    for (int i = 0; i < 3 && argc < 3; i++)
        live(subjects, found[i].number, found[i].seed);
    while (argc < 3 && check_another(&draws)) {
        live(subjects, draws.done, check_random(&seed));
        check_batch(subjects, draws.done, check_random(&seed));
    }
    for (int i = 0; i < SUBJECTS; i++)
        subject_close(&subjects[i]);
    fprintf(stderr,
            "%d draws: %llu steps, %llu beside others, %llu errors, %llu lost tiles, %llu faults "
            "met, %llu sessions "
            "closed, %llu forked\n",
            draws.done, (unsigned long long)count.steps, (unsigned long long)count.beside,
            (unsigned long long)count.errors, (unsigned long long)count.losses,
            (unsigned long long)count.with_fault, (unsigned long long)count.closed,
            (unsigned long long)count.forks);
    CHECK(argc > 2 || (count.errors && count.losses && count.forks));
    CHECK(spw_alloc_outstanding() == outstanding);
    return check_done();
}
