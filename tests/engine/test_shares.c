/* Sessions share the frames of each tier: what sharing does that no row of logits shows: who gets
 * which frames, and what is read once. That every tier has frames for all shares is for the lives
 * of test_plan; sessions that open, grow, fork and close beside each other are walks of
 * test_engine. */
#include "runtime/plan/shares.h"
#include "tests/engine/engine_run.h"

enum { CONTEXT = 900, SESSIONS = 3 };

static struct tiny_model tiny_llama(uint64_t seed)
{
    struct tiny_model m = tiny_narrow;
    m.positions = 4096;
    m.seed = seed;
    return m;
}

/* ---- parts ---- */

/* Parts never pass the total or a want; whoever gets less than it wants has the
 * largest part, and nothing but the rest of a division is left. */
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

/* ---- engines ---- */

/* A session that is alone gets the frames that two others would have had, and
 * gives them back. */
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
    run_check_peaks(e, &o, dir);
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

/* Forked sessions that decode together read the tiles they share once a step.
 */
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
    uint64_t before = brought_up(e),
             tile = spw_tile_bytes(2, spw_tile_square(8), spw_engine_plan(e)->kv);
    for (uint32_t i = 0; i < SESSIONS; i++)
        spans[i].n_tokens++;
    CHECK_MSG(!spw_sync(e, spans, SESSIONS, NULL, NULL, &err), "%s", err.text);
    uint64_t once = spw_waterline_tiles(LONG) * m.layers * tile;
    CHECK_MSG(brought_up(e) - before < once + once / 4, "%llu bytes for %llu of tiles",
              (unsigned long long)(brought_up(e) - before), (unsigned long long)once);
    CHECK(brought_up(e) - before > once / 2);
    run_check_peaks(e, &o, dir);
    for (uint32_t i = 0; i < SESSIONS; i++)
        spw_session_close(s[i]);
    spw_engine_close(e);
    tiny_model_remove(dir);
}

/* Forked sessions whose last tile was not full when they went different ways:
 * the next token reads this tile from lower tiers, each session its own, and so
 * says what is fetched ahead. */
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
        run_check_peaks(e, &o, dir);
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
    if (!run_is_there())
        return CHECK_SKIP;
    for (int i = 0; i < 2000; i++)
        check_parts(&seed);
    check_alone();
    check_shared_reads();
    check_forked_tails();
    return check_done();
}
