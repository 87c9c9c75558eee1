/* A batch whose prompts pass in parts, and which keeps the sessions of requests that have ended:
 * what requests wait for, in steps, what they find, and which of them end when a step fails.
 * test_engine's walks have the bits. */
#include "runtime/batch/batch_parts.h"
#include "tests/engine/engine_run.h"

enum { CONTEXT = 1600, LONG = 1500, SHORT = 40, SPOILED = 7 };

static struct spw_logit_bias never[] = {{SPOILED, -100}}; /* no answer has it */

struct room {
    char dir[128];
    struct spw_engine *e;
    struct spw_batch *b;
    int32_t ids[4][CONTEXT];
};

/* full_sessions: so many contexts have room. spoiled: a token whose embedding is NaN; -1: none. */
static void room_open_spoiled(struct room *x, const struct tiny_model *like, uint32_t sessions,
                              uint32_t full_sessions, int32_t spoiled)
{
    struct tiny_model m = *like;
    struct spw_error err = {0};
    m.positions = CONTEXT;
    m.seed = 17;
    const struct spw_options o = {.backend = TEST_BACKEND,
                                  .context = CONTEXT,
                                  .sessions = sessions,
                                  .full_sessions = full_sessions,
                                  .threads = 1,
                                  .rolls_back = true,
                                  .prefill_chunk = 64};
    *x = (struct room){0};
    run_folder(x->dir, &m, "kept");
    if (spoiled >= 0)
        tiny_model_spoil(x->dir, &m, "embed_tokens.weight", (uint64_t)spoiled * m.hidden);
    x->e = run_open(x->dir, &o);
    for (uint64_t k = 0; k < 4; k++)
        run_ids(x->ids[k], CONTEXT, m.vocab, 10 + k);
    CHECK_MSG(!spw_batch_open(&x->b, x->e, NULL, &err), "%s", err.text);
    spw_batch_set_prompt_chunks(x->b, 1);
    spw_batch_set_pass_tokens(x->b, 256);
    spw_batch_keep_ended(x->b);
}

static void room_open(struct room *x, const struct tiny_model *m, uint32_t sessions,
                      uint32_t full_sessions)
{
    room_open_spoiled(x, m, sessions, full_sessions, -1);
}

static void room_close(struct room *x)
{
    spw_batch_close(x->b);
    spw_engine_close(x->e);
    tiny_model_remove(x->dir);
}

static uint64_t submit(struct room *x, uint32_t k, size_t n_prompt, size_t max_new)
{
    struct spw_error err = {0};
    uint64_t id = 0;
    const struct spw_request q = {.prompt = x->ids[k],
                                  .n_prompt = n_prompt,
                                  .max_new_tokens = max_new,
                                  .sampling.logit_bias = never,
                                  .sampling.n_logit_bias = 1,
                                  .ignore_eos = true};
    CHECK_MSG(!spw_batch_submit(x->b, &q, &id, &err), "%s", err.text);
    return id;
}

static void step(struct room *x)
{
    struct spw_error err = {0};
    CHECK_MSG(spw_batch_step(x->b, &err) >= 0, "%s", err.text);
}

static const struct spw_result *result(const struct room *x, uint64_t id)
{
    return spw_batch_result(x->b, id);
}

/* Steps until the request has a token. */
static uint32_t until_token(struct room *x, uint64_t id)
{
    uint32_t n = 0;
    for (; !result(x, id)->n_tokens && n < 10000; n++)
        step(x);
    return n;
}

/* A running request comes before sessions that are kept, and each has the tokens that it holds. */
static void check_sessions(void)
{
    struct room x;
    struct spw_batch_session seen[3];
    struct spw_stats stats;
    room_open(&x, &tiny_narrow, 3, 3);
    CHECK(spw_batch_sessions(x.b, seen, 3) == 0);
    const uint64_t first = submit(&x, 0, 300, 2);
    while (result(&x, first)->finish == SPW_FINISH_NONE)
        step(&x);
    const uint64_t second = submit(&x, 1, SHORT, 1000);
    until_token(&x, second);
    step(&x);
    CHECK(spw_batch_sessions(x.b, seen, 1) == 1);
    CHECK(spw_batch_sessions(x.b, seen, 3) == 2);
    CHECK(seen[0].request == second && !seen[0].has_ended && seen[0].n_prompt == SHORT);
    CHECK(seen[0].n_generated == 2 && seen[0].waterlines.n_tokens == SHORT + 1);
    spw_engine_stats(x.e, &stats);
    CHECK(stats.kv_tokens == 9 * 128 && stats.most_kv_tokens == 3 * 13 * 128); /* second's alone */
    CHECK(seen[1].request == first && seen[1].has_ended && seen[1].waterlines.n_tokens == 301);
    room_close(&x);
}

static void until_end(struct room *x, uint64_t id)
{
    for (uint32_t n = 0; result(x, id)->finish == SPW_FINISH_NONE && n < 10000; n++)
        step(x);
    step(x); /* its events are over */
}

/* Each step gives an answer its token; a short prompt waits for a pass of the long one, not for its
 * end; and a step is short also if there is no answer. */
static void check_fair(void)
{
    struct room x;
    room_open(&x, &tiny_narrow, 4, 4);
    const uint32_t layers = spw_engine_config(x.e)->n_layers;
    uint64_t whole = submit(&x, 0, LONG, 4);
    step(&x);
    CHECK(x.e->paused.n == 1 && !result(&x, whole)->n_tokens);
    uint64_t answer = submit(&x, 1, 3, 1000);
    uint32_t n = until_token(&x, answer);
    CHECK_MSG(n <= 2 * layers * (256 / 64 + 1), "%u steps", n);
    CHECK(spw_batch_n_read(x.b, whole, NULL) >= 128 && spw_batch_n_read(x.b, whole, NULL) < 600);
    uint64_t brief = submit(&x, 2, SHORT, 4);
    size_t before = result(&x, answer)->n_tokens;
    n = until_token(&x, brief);
    CHECK_MSG(n <= 2 * layers * (256 / 64 + 1), "%u steps", n);
    CHECK(result(&x, answer)->n_tokens >= before + n - 1);
    CHECK(!result(&x, whole)->n_tokens);
    CHECK(until_token(&x, whole) < 10000);
    room_close(&x);
}

/* A canceled prompt leaves what has passed all layers, and a request that ended all it had. */
static void check_retry(const struct tiny_model *m)
{
    struct room x;
    room_open(&x, m, 3, 3);
    uint64_t id = submit(&x, 0, LONG, 4);
    while (spw_batch_n_read(x.b, id, NULL) < 700)
        step(&x);
    step(&x);
    CHECK(x.e->paused.n == 1);
    CHECK(!spw_batch_cancel(x.b, id));
    uint64_t again = submit(&x, 0, LONG, 4), third;
    until_end(&x, again);
    CHECK_MSG(result(&x, again)->n_reused >= 512, "%s: %zu reused", m->family,
              result(&x, again)->n_reused);
    third = submit(&x, 0, LONG, 4);
    until_end(&x, third);
    CHECK_MSG(result(&x, third)->n_reused + 2 * SPW_TILE_TOKENS >= LONG, "%s: %zu reused",
              m->family, result(&x, third)->n_reused);
    CHECK(result(&x, third)->logits_hash == result(&x, again)->logits_hash);
    room_close(&x);
}

/* What is kept gives way to requests; the oldest goes first, and one whose tokens another session
 * has goes before it. */
static void check_order(void)
{
    struct room x;
    uint64_t n_tokens, id;
    room_open(&x, &tiny_narrow, 3, 3);
    for (uint32_t k = 0; k < 3; k++) {
        id = submit(&x, k, 300, 2);
        until_end(&x, id);
    }
    CHECK(spw_batch_n_kept(x.b, &n_tokens) == 3 && n_tokens == 3 * 301);
    id = submit(&x, 3, 300, 2); /* in the place of the oldest */
    until_end(&x, id);
    CHECK(spw_batch_n_kept(x.b, &n_tokens) == 3 && !result(&x, id)->n_reused);
    id = submit(&x, 1, 300, 2);
    until_end(&x, id);
    CHECK(result(&x, id)->n_reused == 299);
    id = submit(&x, 0, 300, 2);
    until_end(&x, id);
    CHECK(!result(&x, id)->n_reused);
    room_close(&x);
}

/* Two that begin alike: the second one gets a fork, if there is room, and the first one's tokens
 * stay. */
static void check_fork(uint32_t full_sessions)
{
    struct room x;
    const bool has_room = full_sessions > 1;
    room_open(&x, &tiny_narrow, 4, full_sessions);
    memcpy(x.ids[1], x.ids[0], 600 * sizeof *x.ids[0]);
    uint64_t first = submit(&x, 0, 1200, 2);
    until_end(&x, first);
    uint64_t second = submit(&x, 1, 1200, 2);
    until_end(&x, second);
    CHECK_MSG(result(&x, second)->n_reused >= 600, "%zu reused", result(&x, second)->n_reused);
    first = submit(&x, 0, 1200, 2);
    until_end(&x, first);
    CHECK_MSG((result(&x, first)->n_reused == 1199) == has_room, "%zu reused",
              result(&x, first)->n_reused);
    room_close(&x);
}

/* Steps, gives up what has failed `tries` times, and goes on, until the request has ended. Returns
 * how many steps have failed. */
static uint32_t bear(struct room *x, uint64_t id, uint32_t tries)
{
    uint32_t n_failed = 0;
    for (uint32_t n = 0; result(x, id)->finish == SPW_FINISH_NONE && n < 10000; n++) {
        struct spw_error err = {0};
        const int rc = spw_batch_step(x->b, &err);
        if (rc >= 0)
            continue;
        CHECK_MSG(rc == -EDOM && *err.text, "%d: %s", rc, err.text);
        n_failed++;
        CHECK(spw_batch_give_up(x->b, tries, rc, &err) == (n_failed == tries));
    }
    return n_failed;
}

/* A prompt whose layers' numbers are not finite fails, and nobody else: a state cannot hold them.
 */
static void check_give_up(const struct tiny_model *m)
{
    struct room x;
    struct spw_event event;
    bool said = false;
    room_open_spoiled(&x, m, 3, 3, SPOILED);
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < CONTEXT; i++)
            x.ids[k][i] += x.ids[k][i] == SPOILED;
    x.ids[1][300] = SPOILED;
    const uint64_t alone = submit(&x, 0, SHORT, 200);
    CHECK(bear(&x, alone, 1) == 0);
    const uint64_t answer = submit(&x, 0, SHORT, 200);
    until_token(&x, answer);
    const uint64_t bad = submit(&x, 1, 500, 2), good = submit(&x, 2, 500, 2);
    CHECK(bear(&x, bad, 3) == 3);
    while (spw_batch_event(x.b, &event))
        said |= event.request == bad && event.kind == SPW_EVENT_END && event.rc == -EDOM &&
                event.text_bytes;
    CHECK(said && result(&x, bad)->finish == SPW_FINISH_FAILED);
    CHECK(result(&x, answer)->finish == SPW_FINISH_NONE && bear(&x, answer, 1) == 0);
    CHECK(bear(&x, good, 1) == 0 && result(&x, good)->finish == SPW_FINISH_LENGTH);
    CHECK(result(&x, answer)->logits_hash == result(&x, alone)->logits_hash);
    room_close(&x);
}

static struct spw_device_ops failing;
static int (*copy)(struct spw_device *, void *, const void *, uint64_t, enum spw_link, spw_stream);
static int n_copies; /* until one fails */

static int fail_copy(struct spw_device *d, void *to, const void *from, uint64_t bytes,
                     enum spw_link link, spw_stream s)
{
    return n_copies-- ? copy(d, to, from, bytes, link, s) : -EIO;
}

/* A kept session of 701 tokens, and a device whose n-th copy from now on fails. Returns how many
 * tokens another prompt finds in the session. */
static uint64_t open_failing(struct room *x, int n)
{
    room_open(x, &tiny_models[TINY_STATES], 2, 2);
    memcpy(x->ids[1], x->ids[0], 600 * sizeof *x->ids[0]);
    until_end(x, submit(x, 0, 700, 2));
    const struct spw_session *s = x->b->ended[0].session;
    const uint64_t found = spw_kv_reach(s->seq.kv, x->e->plan.residency, 600);
    CHECK(s->n_tokens == 701 && found > 0 && found <= 600);
    failing = *x->e->lane.ops;
    copy = failing.copy;
    failing.copy = fail_copy;
    x->e->lane.ops = &failing;
    n_copies = n;
    return found;
}

/* Each copy of a cut fails in turn. The session has its tokens then, but not what they need: a
 * batch closes it, and the other prompt gets a new one. */
static void check_failed_cut(void)
{
    uint64_t hashes[2] = {0};
    int n = 0;
    for (int rc = -EIO; rc; n++) {
        struct room x;
        const uint64_t found = open_failing(&x, n);
        struct spw_session *s = x.b->ended[0].session;
        rc = spw_session_take_over(s, found, found + 1);
        CHECK((!rc || rc == -EIO) && s->n_tokens == (rc ? 701 : found));
        CHECK(!memcmp(s->tokens, x.ids[0], spw_min_u64(s->n_tokens, 700) * sizeof *s->tokens));
        room_close(&x);
        open_failing(&x, rc ? n : -1);
        const uint64_t id = submit(&x, 1, 700, 1);
        step(&x);
        CHECK(!x.b->n_ended);
        until_end(&x, id);
        CHECK(result(&x, id)->n_reused == (rc ? 0 : found));
        hashes[!rc] = result(&x, id)->logits_hash;
        CHECK(!n || rc || hashes[0] == hashes[1]);
        room_close(&x);
    }
    CHECK_MSG(n > 1, "no copy of a cut has failed");
}

int main(void)
{
    if (!run_is_there())
        return CHECK_SKIP;
    check_fair();
    check_sessions();
    check_retry(&tiny_narrow);
    for (size_t i = 0; i < sizeof tiny_models / sizeof *tiny_models; i++)
        check_retry(&tiny_models[i]);
    check_give_up(&tiny_models[TINY_STATES]);
    check_order();
    check_fork(4);
    check_fork(1);
    check_failed_cut();
    return check_done();
}
