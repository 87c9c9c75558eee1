/* Sessions share the frames of each tier: the pure function, and lives of sessions that open, grow,
 * fork and close beside each other under small budgets. Every row of logits is what a session has
 * that is alone with all the memory; no budget is passed; every byte is predicted. */
#include "runtime/plan/shares.h"
#include "tests/engine/engine_run.h"

enum { CONTEXT = 900, SESSIONS = 3, MOST_VOCAB = 128 };

/* ---- parts ---- */

/* Parts never pass the total or a want; whoever gets less than it wants has the largest part, and
 * nothing but the rest of a division is left. */
static void check_parts(uint64_t *seed)
{
    struct spw_share s[8] = {0};
    uint32_t n = (uint32_t)check_range(seed, 1, 8), n_short = 0;
    uint64_t total = check_range(seed, 0, 400), sum = 0, largest = 0, of_short = UINT64_MAX;
    for (uint32_t i = 0; i < n; i++)
        s[i].want = check_random(seed) % 3 ? check_range(seed, 0, 120) : 0;
    spw_share_fairly(s, n, total);
    for (uint32_t i = 0; i < n; i++) {
        CHECK(s[i].part <= s[i].want);
        sum += s[i].part;
        largest = spw_max_u64(largest, s[i].part);
        if (s[i].part < s[i].want) {
            n_short++;
            of_short = spw_min_u64(of_short, s[i].part);
        }
    }
    CHECK(sum <= total);
    CHECK(!n_short || (of_short == largest && total - sum < n_short));
}

/* ---- lives ---- */

struct life {
    const char *dir;
    const struct spw_options *o;
    struct spw_engine *e;
    struct spw_session *sessions[SESSIONS];
    int32_t ids[SESSIONS][CONTEXT];
    uint64_t n[SESSIONS], most[SESSIONS];
    uint64_t seed;
    uint32_t n_opened, n_closed, n_forks, n_moved;
};

static void expected(const struct life *x, uint32_t i, float out[MOST_VOCAB])
{
    struct spw_options o = {.backend = TEST_BACKEND,
                            .context = CONTEXT,
                            .precision = x->o->precision,
                            .residual_window = x->o->residual_window};
    struct spw_engine *e = run_open(x->dir, &o);
    struct spw_session *s = run_session(e);
    const float *logits = run_to(s, e, x->ids[i], x->n[i]);
    memset(out, 0, MOST_VOCAB * sizeof *out);
    if (logits)
        memcpy(out, logits, spw_engine_config(e)->vocab * sizeof *out);
    spw_session_close(s);
    spw_engine_close(e);
}

static void open_one(struct life *x, uint32_t i)
{
    struct spw_error err = {0};
    uint32_t from = (uint32_t)(check_random(&x->seed) % SESSIONS);
    if (x->sessions[from] && x->n[from] && check_random(&x->seed) % 2) {
        CHECK_MSG(!spw_session_fork(&x->sessions[i], x->sessions[from], &err), "%s", err.text);
        memcpy(x->ids[i], x->ids[from], sizeof x->ids[i]);
        x->most[i] = x->most[from];
        x->n[i] = x->n[from];
        x->n_forks++;
    } else {
        x->most[i] = check_random(&x->seed) % 3 ? check_range(&x->seed, 1, CONTEXT) : CONTEXT;
        CHECK_MSG(!spw_session_open_for(&x->sessions[i], x->e, x->most[i], &err), "%s", err.text);
        run_ids(x->ids[i], CONTEXT, spw_engine_config(x->e)->vocab, check_random(&x->seed));
        x->n[i] = 0;
    }
    x->n_opened++;
}

/* Some sessions grow in one step: by a prompt, by one token, or after they were cut back. */
static void step(struct life *x)
{
    struct spw_span spans[SESSIONS];
    struct spw_error err = {0};
    uint32_t n = 0;
    for (uint32_t i = 0; i < SESSIONS; i++) {
        if (!x->sessions[i] || (n && check_random(&x->seed) % 4 == 0))
            continue;
        uint64_t more = check_random(&x->seed) % 2 ? 1 : check_range(&x->seed, 1, 400);
        if (check_random(&x->seed) % 8 == 0)
            x->n[i] -= spw_min_u64(x->n[i], check_range(&x->seed, 1, 200));
        x->n[i] = spw_min_u64(x->n[i] + more, x->most[i]);
        spans[n++] = (struct spw_span){x->sessions[i], x->ids[i], x->n[i], 1};
    }
    if (n)
        CHECK_MSG(!spw_sync(x->e, spans, n, NULL, NULL, &err), "%s", err.text);
}

static void check_bits(struct life *x)
{
    for (uint32_t i = 0; i < SESSIONS; i++) {
        float right[MOST_VOCAB];
        if (!x->sessions[i] || !spw_session_logits(x->sessions[i]) || check_random(&x->seed) % 3)
            continue;
        expected(x, i, right);
        CHECK_MSG(
            run_same(spw_session_logits(x->sessions[i]), right, spw_engine_config(x->e)->vocab),
            "%s: session %u at %llu tokens", x->dir, i, (unsigned long long)x->n[i]);
    }
}

/* Whether a session that has opened or closed has changed the numbers of another one. */
static void note_moves(struct life *x, const struct spw_residency before[SESSIONS])
{
    for (uint32_t i = 0; i < SESSIONS; i++)
        x->n_moved += x->sessions[i] && before[i].resident &&
                      x->sessions[i]->residency[SPW_LAYER_FULL].resident != before[i].resident;
}

static void live(struct life *x, uint32_t n_steps)
{
    for (uint32_t k = 0; k < n_steps; k++) {
        struct spw_residency before[SESSIONS] = {0};
        for (uint32_t i = 0; i < SESSIONS; i++)
            if (x->sessions[i])
                before[i] = x->sessions[i]->residency[SPW_LAYER_FULL];
        uint32_t i = (uint32_t)(check_random(&x->seed) % SESSIONS);
        if (!x->sessions[i]) {
            open_one(x, i);
        } else if (check_random(&x->seed) % 3 == 0) {
            spw_session_close(x->sessions[i]);
            x->sessions[i] = NULL;
            before[i].resident = 0;
            x->n_closed++;
        }
        step(x);
        note_moves(x, before);
        check_bits(x);
        run_check_account(x->e, x->o, x->dir);
    }
}

/* ---- what a life runs under ---- */

enum { LIVES = 10 };

static void check_life(uint64_t seed, uint32_t number, struct life *total)
{
    static const char window[] = ",\"use_sliding_window\":true,\"sliding_window\":200,"
                                 "\"max_window_layers\":1";
    const struct tiny_model m = {.family = number % 3 == 1 ? "qwen2" : "llama",
                                 .layers = 3,
                                 .hidden = 32,
                                 .intermediate = 48,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .head_dim = 8,
                                 .vocab = 96,
                                 .positions = 1024,
                                 .more = number % 3 == 1 ? window : "",
                                 .bias = number % 3 == 1,
                                 .seed = seed};
    char dir[128], disk[160];
    struct spw_options o = {.backend = TEST_BACKEND,
                            .context = CONTEXT,
                            .sessions = SESSIONS,
                            .threads = 1,
                            .prefill_chunk = (uint32_t)check_range(&seed, 16, 300)};
    run_folder(dir, &m, "shares");
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
    struct life x = {.dir = dir, .o = &o, .e = run_open(dir, &o), .seed = seed};
    live(&x, 24);
    for (uint32_t i = 0; i < SESSIONS; i++)
        spw_session_close(x.sessions[i]);
    spw_engine_close(x.e);
    rmdir(disk);
    tiny_model_remove(dir);
    total->n_opened += x.n_opened;
    total->n_closed += x.n_closed;
    total->n_forks += x.n_forks;
    total->n_moved += x.n_moved;
}

static struct tiny_model tiny_llama(uint64_t seed)
{
    return (struct tiny_model){.family = "llama",
                               .layers = 3,
                               .hidden = 32,
                               .intermediate = 48,
                               .heads = 4,
                               .kv_heads = 2,
                               .head_dim = 8,
                               .vocab = 96,
                               .positions = 4096,
                               .more = "",
                               .seed = seed};
}

/* A session that is alone gets the frames that two others would have had, and gives them back. */
static void check_alone(void)
{
    const struct tiny_model m = tiny_llama(3);
    char dir[128];
    int32_t ids[CONTEXT];
    struct spw_waterlines alone, beside, again;
    struct spw_options o = {
        .backend = TEST_BACKEND, .context = CONTEXT, .sessions = SESSIONS, .threads = 1};
    run_folder(dir, &m, "alone");
    run_tight(dir, &o, 24 * 4096);
    run_ids(ids, CONTEXT, m.vocab, 1);
    struct spw_engine *e = run_open(dir, &o);
    struct spw_session *s = run_session(e);
    run_to(s, e, ids, 800);
    spw_session_waterlines(s, &alone);
    struct spw_session *other = run_session(e), *third = run_session(e);
    run_to(other, e, ids, 800);
    spw_session_waterlines(s, &beside);
    spw_session_close(other);
    spw_session_close(third);
    run_to(s, e, ids, 801);
    spw_session_waterlines(s, &again);
    CHECK_MSG(alone.host_end < beside.host_end, "%llu tokens on the host alone, %llu beside others",
              (unsigned long long)alone.host_end, (unsigned long long)beside.host_end);
    CHECK(again.host_end == alone.host_end);
    run_check_account(e, &o, dir);
    spw_session_close(s);
    spw_engine_close(e);
    tiny_model_remove(dir);
}

static uint64_t brought_up(struct spw_engine *e)
{
    struct spw_stats s;
    spw_engine_stats(e, &s);
    return s.moved_bytes[SPW_MOVED_HOST_TO_DEVICE];
}

/* Forked sessions that decode together read the tiles they share once a step. */
static void check_shared_reads(void)
{
    const struct tiny_model m = tiny_llama(4);
    enum { LONG = 3000 };
    char dir[128];
    static int32_t ids[LONG + 2];
    struct spw_session *s[SESSIONS];
    struct spw_span spans[SESSIONS];
    struct spw_error err = {0};
    struct spw_options o = {
        .backend = TEST_BACKEND, .context = LONG + 2, .sessions = SESSIONS, .threads = 1};
    run_folder(dir, &m, "shared");
    run_tight(dir, &o, 0);
    run_ids(ids, LONG + 2, m.vocab, 1);
    struct spw_engine *e = run_open(dir, &o);
    s[0] = run_session(e);
    run_to(s[0], e, ids, LONG);
    for (uint32_t i = 1; i < SESSIONS; i++)
        CHECK(!spw_session_fork(&s[i], s[0], &err));
    for (uint32_t i = 0; i < SESSIONS; i++)
        spans[i] = (struct spw_span){s[i], ids, LONG + 1, 1};
    CHECK_MSG(!spw_sync(e, spans, SESSIONS, NULL, NULL, &err), "%s", err.text);
    uint64_t before = brought_up(e), tile = spw_tile_bytes(2, 8, spw_engine_plan(e)->kv);
    for (uint32_t i = 0; i < SESSIONS; i++)
        spans[i].n_tokens++;
    CHECK_MSG(!spw_sync(e, spans, SESSIONS, NULL, NULL, &err), "%s", err.text);
    uint64_t once = spw_waterline_tiles(LONG) * m.layers * tile;
    CHECK_MSG(brought_up(e) - before < once + once / 4, "%llu bytes for %llu of tiles",
              (unsigned long long)(brought_up(e) - before), (unsigned long long)once);
    CHECK(brought_up(e) - before > once / 2);
    run_check_account(e, &o, dir);
    for (uint32_t i = 0; i < SESSIONS; i++)
        spw_session_close(s[i]);
    spw_engine_close(e);
    tiny_model_remove(dir);
}

/* Forked sessions whose last tile was not full when they went different ways: the next token reads
 * this tile from lower tiers, each session its own, and so says what is fetched ahead. */
static void check_forked_tails(void)
{
    const struct tiny_model m = tiny_llama(5);
    enum { FORK = 400, LONG = 1000 };
    char dir[128];
    int32_t ids[2][LONG + 1];
    struct spw_session *s[2];
    struct spw_span spans[2];
    struct spw_error err = {0};
    struct spw_options alone = {.backend = TEST_BACKEND, .context = LONG + 1, .threads = 1};
    struct spw_options o = alone;
    o.sessions = 2;
    o.prefill_chunk = 128;
    o.prefetch_splits = 1;
    run_folder(dir, &m, "tails");
    run_tight(dir, &o, 30 * 4096); /* a prompt in one pass */
    for (uint32_t i = 0; i < 2; i++) {
        run_ids(ids[i], LONG + 1, m.vocab, i + 1);
        memcpy(ids[i], ids[0], FORK * sizeof ids[i][0]);
    }
    struct spw_engine *e = run_open(dir, &o), *plain = run_open(dir, &alone);
    s[0] = run_session(e);
    run_to(s[0], e, ids[0], FORK);
    CHECK(!spw_session_fork(&s[1], s[0], &err));
    for (size_t n = LONG; n <= LONG + 1; n++) {
        for (uint32_t i = 0; i < 2; i++)
            spans[i] = (struct spw_span){s[i], ids[i], n, 1};
        CHECK_MSG(!spw_sync(e, spans, 2, NULL, NULL, &err), "%s", err.text);
        for (uint32_t i = 0; i < 2; i++) {
            struct spw_session *right = run_session(plain);
            CHECK_MSG(run_same(spw_session_logits(s[i]), run_to(right, plain, ids[i], n), m.vocab),
                      "session %u at %zu tokens", i, n);
            spw_session_close(right);
        }
        run_check_account(e, &o, dir);
    }
    for (uint32_t i = 0; i < 2; i++)
        spw_session_close(s[i]);
    spw_engine_close(e);
    spw_engine_close(plain);
    tiny_model_remove(dir);
}

int main(void)
{
    uint64_t seed = check_seed();
    struct life total = {0};
    if (!run_is_there())
        return CHECK_SKIP;
    for (int i = 0; i < 2000; i++)
        check_parts(&seed);
    check_alone();
    check_shared_reads();
    check_forked_tails();
    for (uint32_t i = 0; i < LIVES; i++)
        check_life(check_random(&seed), i, &total);
    CHECK_MSG(total.n_moved > LIVES && total.n_forks > LIVES / 2 && total.n_closed > LIVES,
              "%u shares changed, %u forks, %u closed", total.n_moved, total.n_forks,
              total.n_closed);
    return check_done();
}
