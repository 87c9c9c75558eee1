/* Sessions in files: what a session computes after it was saved and resumed is what it would have
 * computed, to the last bit, under other budgets than it was saved under, in this process and in
 * another, for exact KV and every precision. */
#include "tests/engine_run.h"

#include <sys/wait.h>

enum { CONTEXT = 1280, MOST = 1200, WINDOW = 300, MOST_VOCAB = 128 };

static const struct tiny_model dynamic = {
    "llama", 2,     32,    48,   2,
    1,       16,    67,    200,  ",\"rope_scaling\":{\"rope_type\":\"dynamic\",\"factor\":2.0}",
    false,   false, false, true, false,
    31};

/* ---- one session, saved, grown, saved again, resumed ---- */

struct world {
    const struct tiny_model *m;
    char dir[128], file[160], scratch[160];
    struct spw_options base;
    int32_t ids[MOST];
    size_t n[4]; /* lengths: saved, saved again, resumed to, and further */
    float expected[4][MOST_VOCAB];
};

/* What a session that was never saved computes, under no budgets. */
static void expect(struct world *w)
{
    struct spw_options o = w->base;
    o.keeps = false;
    struct spw_engine *e = run_open(w->dir, &o);
    struct spw_session *s = run_session(e);
    for (int i = 0; i < 4; i++) {
        const float *logits = run_to(s, e, w->ids, w->n[i]);
        if (logits)
            memcpy(w->expected[i], logits, w->m->vocab * sizeof *logits);
    }
    spw_session_close(s);
    spw_engine_close(e);
}

static void world_open(struct world *w, const struct tiny_model *m, enum spw_kv_precision precision,
                       uint64_t *seed)
{
    *w = (struct world){.m = m};
    run_folder(w->dir, m, "save");
    snprintf(w->file, sizeof w->file, "%s/session", w->dir);
    snprintf(w->scratch, sizeof w->scratch, "%s/scratch", w->dir);
    CHECK(mkdir(w->scratch, 0700) == 0);
    run_ids(w->ids, MOST, m->vocab, m->seed);
    w->base = (struct spw_options){.backend = TEST_BACKEND,
                                   .context = CONTEXT,
                                   .threads = 1,
                                   .precision = precision,
                                   .residual_window = WINDOW,
                                   .keeps = true};
    /* Some lengths are whole tiles, or a token beside. */
    uint64_t n = check_range(seed, 1, 400);
    for (int i = 0; i < 4; i++) {
        w->n[i] = n;
        if (check_range(seed, 0, 2) == 0)
            w->n[i] = spw_align_up(n, SPW_TILE_TOKENS) + check_range(seed, 0, 2);
        n = w->n[i] + check_range(seed, 1, i == 2 ? 3 : 260);
    }
    expect(w);
}

static void world_close(struct world *w)
{
    unlink(w->file);
    CHECK(rmdir(w->scratch) == 0);
    tiny_model_remove(w->dir);
}

/* Everything that may change without changing a bit. */
static struct spw_options draw_budgets(const struct world *w, uint64_t *seed)
{
    struct spw_options o = w->base;
    o.threads = (uint32_t)check_range(seed, 1, 2);
    o.prefill_chunk = (uint32_t)check_range(seed, 100, 300);
    uint64_t how = check_range(seed, 0, 2);
    if (how == 1) {
        o.disk_dir = w->scratch;
        o.disk_bytes = 64 << 20;
    }
    if (how)
        run_tight(w->dir, &o, check_range(seed, 0, 1) ? 0 : check_range(seed, 0, 200000));
    if (how == 1)
        o.host_bytes = 0;
    return o;
}

static void check_logits(const struct world *w, int i, const float *logits, const char *what)
{
    CHECK_MSG(run_same(logits, w->expected[i], w->m->vocab), "%s, %zu tokens: %s", w->dir, w->n[i],
              what);
}

/* Bytes of all tiles of a save that cannot have been there: the tail, the window, what has aged and
 * what is new, of every layer, and tables. */
static uint64_t most_second_bytes(const struct world *w, const struct spw_engine *e)
{
    const struct spw_plan *p = &e->plan;
    uint64_t before = w->n[0] / SPW_TILE_TOKENS, now = spw_waterline_tiles(w->n[1]);
    uint64_t tiles = (now - before) * (p->residency.aged ? 2 : 1) + 1;
    return w->m->layers * tiles * p->near_tile_bytes + spw_align_up(w->m->vocab * 4, 4096) +
           3 * 65536;
}

static void save(struct world *w, uint64_t *seed)
{
    struct spw_options o = draw_budgets(w, seed);
    struct spw_error err = {{0}};
    struct spw_engine *e = run_open(w->dir, &o);
    struct spw_session *s = run_session(e);
    uint64_t written;
    for (int i = 0; i < 2; i++) {
        check_logits(w, i, run_to(s, e, w->ids, w->n[i]), "computed");
        int rc = spw_session_save(s, w->file, "state", 5, &written, &err);
        CHECK_MSG(rc == 0, "%s: %s", w->dir, err.text);
    }
    if (w->m != &dynamic)
        CHECK_MSG(written <= most_second_bytes(w, e), "%s: %llu bytes for %zu after %zu tokens",
                  w->dir, (unsigned long long)written, w->n[1], w->n[0]);
    check_logits(w, 2, run_to(s, e, w->ids, w->n[2]), "computed after a save");
    run_check_account(e, &o, "save");
    spw_session_close(s);
    spw_engine_close(e);
}

static void resume(struct world *w, uint64_t *seed)
{
    struct spw_options o = draw_budgets(w, seed);
    struct spw_error err = {{0}};
    struct spw_engine *e = run_open(w->dir, &o);
    struct spw_saved *saved = NULL;
    struct spw_session *s = NULL;
    CHECK_MSG(spw_saved_open(&saved, w->file, &err) == 0, "%s", err.text);
    if (saved) {
        const struct spw_saved_info *i = spw_saved_info(saved);
        CHECK(i->n_tokens == w->n[1] && !memcmp(i->tokens, w->ids, w->n[1] * sizeof *w->ids));
        CHECK(i->state_bytes == 5 && !memcmp(i->state, "state", 5));
        CHECK_MSG(spw_session_resume(&s, e, saved, &err) == 0, "%s: %s", w->dir, err.text);
    }
    spw_saved_close(saved);
    if (s) {
        check_logits(w, 1, run_to(s, e, w->ids, w->n[1]), "resumed");
        CHECK(spw_session_reused(s) == w->n[1]);
        check_logits(w, 2, run_to(s, e, w->ids, w->n[2]), "after a resume");
        CHECK_MSG(w->m == &dynamic || spw_session_reused(s) == w->n[1], "%s: reused %zu of %zu",
                  w->dir, spw_session_reused(s), w->n[1]);
        check_logits(w, 3, run_to(s, e, w->ids, w->n[3]), "further");
    }
    run_check_account(e, &o, "resume");
    spw_session_close(s);
    spw_engine_close(e);
}

static void resume_elsewhere(struct world *w, uint64_t *seed)
{
    int status;
    pid_t child = fork(); /* no engine is open: no thread is lost */
    if (child == 0) {
        resume(w, seed);
        _exit(check_failed_ != 0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
}

static void check_round(const struct tiny_model *m, enum spw_kv_precision precision, uint64_t *seed)
{
    struct world w;
    world_open(&w, m, precision, seed);
    save(&w, seed);
    resume(&w, seed);
    resume_elsewhere(&w, seed);
    world_close(&w);
}

int main(void)
{
    uint64_t seed = check_seed();
    alarm(600);
    for (uint64_t i = 0; i < N_TINY_MODELS; i++)
        for (enum spw_kv_precision p = SPW_KV_EXACT; p <= SPW_KV_INT4; p++)
            check_round(&tiny_models[i], p, &seed);
    check_round(&dynamic, SPW_KV_EXACT, &seed);
    return check_done();
}
