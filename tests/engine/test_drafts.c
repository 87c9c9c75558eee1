/* Several new tokens of a session in one step, as a draft that is checked: the rows of logits are
 * those of one token after the other, and tokens that are not accepted are cut off again. */
#include "tests/engine/engine_run.h"

enum { CONTEXT = 900, MOST_VOCAB = 128, SESSIONS = 2, MOST_DRAFT = 6, ROUNDS = 12 };

/* Steps of models without states that reused all that was accepted. Where a window has moved on,
 * and there is no memory for what it left behind, all is computed again. */
static int n_kept;

struct rows {
    float logits[SESSIONS][CONTEXT][MOST_VOCAB];
    uint32_t vocab;
};

static void keep_row(void *context, size_t span, size_t position, const float *logits)
{
    struct rows *r = context;
    memcpy(r->logits[span][position], logits, r->vocab * sizeof *logits);
}

/* One token after the other, with all the memory; the last draft's rows of it are compared. */
static void one_by_one(const char *dir, const struct spw_options *drafted, const int32_t *ids,
                       uint64_t from, uint64_t to, const struct rows *r, uint32_t span)
{
    struct spw_options o = {.backend = TEST_BACKEND,
                            .context = CONTEXT,
                            .precision = drafted->precision,
                            .residual_window = drafted->residual_window};
    struct spw_engine *e = run_open(dir, &o);
    struct spw_session *s = run_session(e);
    for (uint64_t n = from; n <= to; n++)
        CHECK_MSG(run_same(run_to(s, e, ids, n), r->logits[span][n - 1], r->vocab),
                  "%s: draft from %llu, token %llu", dir, (unsigned long long)from,
                  (unsigned long long)n);
    spw_session_close(s);
    spw_engine_close(e);
}

static void check_drafts(const struct tiny_model *m, struct spw_options *o, uint64_t *seed)
{
    static struct rows r;
    static int32_t ids[SESSIONS][CONTEXT];
    char dir[128];
    struct spw_session *s[SESSIONS];
    struct spw_error err = {0};
    uint64_t n[SESSIONS], least[SESSIONS]; /* tokens that each step must reuse */
    const bool states = m >= &tiny_models[TINY_STATES];
    run_folder(dir, m, "drafts");
    run_tight(dir, o, check_range(seed, 0, 40) * 4096);
    struct spw_engine *e = run_open(dir, o);
    r.vocab = m->vocab;
    for (uint32_t i = 0; i < SESSIONS; i++) {
        run_ids(ids[i], CONTEXT, m->vocab, check_random(seed));
        s[i] = run_session(e);
        n[i] = check_range(seed, 100, 700);
        run_to(s[i], e, ids[i], n[i]);
        least[i] = n[i];
    }
    for (uint32_t round = 0; round < ROUNDS; round++) {
        struct spw_span spans[SESSIONS];
        uint64_t draft[SESSIONS];
        for (uint32_t i = 0; i < SESSIONS; i++) {
            draft[i] = check_range(seed, 1, MOST_DRAFT);
            spans[i] = (struct spw_span){s[i], ids[i], n[i] + draft[i], draft[i]};
        }
        CHECK_MSG(!spw_sync(e, spans, SESSIONS, keep_row, &r, &err), "%s: %s", dir, err.text);
        for (uint32_t i = 0; i < SESSIONS; i++) {
            bool kept = spw_session_reused(s[i]) == n[i];
            n_kept += kept && !states;
            CHECK_MSG(spw_session_reused(s[i]) >= least[i] || !spw_engine_plan(e)->rolls_back,
                      "%s: %zu tokens reused of %llu", dir, spw_session_reused(s[i]),
                      (unsigned long long)n[i]);
            if (check_random(seed) % 4 == 0)
                one_by_one(dir, o, ids[i], n[i] + 1, n[i] + draft[i], &r, i);
            n[i] += check_range(seed, 1, draft[i]); /* accepted; the next token is another one */
            ids[i][n[i]] = (ids[i][n[i]] + 1) % (int32_t)m->vocab;
            least[i] = states ? least[i] : n[i]; /* a state: from a checkpoint on */
        }
    }
    run_check_peaks(e, o, dir);
    for (uint32_t i = 0; i < SESSIONS; i++)
        spw_session_close(s[i]);
    spw_engine_close(e);
    tiny_model_remove(dir);
}

int main(void)
{
    uint64_t seed = check_seed();
    if (!run_is_there())
        return CHECK_SKIP;
    for (int i = 0; i < N_TINY_MODELS; i++) {
        struct spw_options o = {.backend = TEST_BACKEND,
                                .context = CONTEXT,
                                .sessions = SESSIONS,
                                .threads = 2,
                                .rolls_back = true};
        check_drafts(&tiny_models[i], &o, &seed);
        o.precision = (enum spw_kv_precision)check_range(&seed, 1, 3);
        o.residual_window = 128;
        o.device_bytes = o.host_bytes = 0;
        check_drafts(&tiny_models[i], &o, &seed);
    }
    CHECK_MSG(n_kept > TINY_STATES * 2 * SESSIONS * ROUNDS * 3 / 4, "%d steps", n_kept);
    return check_done();
}
