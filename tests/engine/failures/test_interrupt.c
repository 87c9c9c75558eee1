/* Steps that the caller ends, after each chunk of each layer in turn: what the sessions hold then
 * is whole, and whatever they do next gives the bits of a run that nobody ended; bytes that moved
 * are those that were predicted. test_engine ends steps and batches at random, among all else. */
#include "runtime/measure.h"
#include "tests/engine/oracle.h"

enum {
    TOKENS = TEST_GPU         ? 220
             : RUN_UNDER_TSAN ? 500
                              : 900,
    EACH_TOKENS = TEST_GPU ? 140 : 300,
    BACK_STRIDE = TEST_GPU         ? 5
                  : RUN_UNDER_TSAN ? 40
                  : RUN_UNDER_ASAN ? 11
                                   : 3,
    MODELS = TEST_GPU ? 1 : N_TINY_MODELS,
};

struct run {
    struct subject *s;
    struct spw_options o;
    struct spw_engine *e;
    struct spw_session *session;
    struct watch watch;
    int64_t left; /* times it is asked before it says so; below 0: never */
    bool ended;
};

static uint64_t n_ended, n_further, n_back;

static bool interrupted(void *context)
{
    struct run *r = context;
    CHECK(!r->ended); /* once is enough */
    return r->ended = r->left >= 0 && r->left-- == 0;
}

/* `tight`: rows of hidden states pass over the host, and few at a time. */
static void open_run(struct run *r, struct subject *s, bool tight)
{
    struct spw_backend b = run_backend(true);
    *r = (struct run){.s = s, .o = s->o, .left = -1};
    r->o.prefill_chunk = tight ? 50 : 128;
    r->o.rolls_back = !tight;
    if (tight) {
        run_tight(s->dir, &r->o, 0);
        r->o.host_bytes = run_plan_on(&b, s->dir, &r->o).smallest_host_bytes + (32 << 10);
    }
    r->e = run_open(s->dir, &r->o);
    r->e->look.is_time = interrupted;
    r->e->look.context = r;
    r->session = run_session(r->e);
    CHECK(tight || spw_engine_plan(r->e)->rolls_back);
}

static void close_run(struct run *r)
{
    run_check_peaks(r->e, &r->o, r->s->dir);
    CHECK_MSG(!r->watch.n_wrong, "%s: %llu rows differ", r->s->dir,
              (unsigned long long)r->watch.n_wrong);
    spw_session_close(r->session);
    spw_engine_close(r->e);
}

/* To n tokens, or as far as it is let. */
static int step(struct run *r, int sequence, size_t n, size_t n_logits)
{
    struct spw_error err = {0};
    struct spw_span span = {r->session, r->s->ids[sequence], n, n_logits};
    size_t before = spw_session_n_tokens(r->session);
    r->ended = false;
    int rc = watch_sync(&r->watch, r->s, r->e, &span, 1, TOKENS, &err);
    size_t now = spw_session_n_tokens(r->session);
    CHECK_MSG(rc == (r->ended ? -ECANCELED : 0), "%s: %d: %s", r->s->dir, rc, err.text);
    CHECK(rc ? strstr(err.text, "interrupted") && now <= n : now == n);
    n_ended += rc != 0;
    n_further += rc && now > before;
    n_back += rc && now && now <= before;
    r->left = -1;
    return rc;
}

/* Each time it is asked in one prompt, in order: ended there, and gone on with. */
static void test_each(struct subject *s)
{
    int rc;
    int64_t i = 0;
    do {
        struct run r;
        open_run(&r, s, true);
        r.left = i++;
        rc = step(&r, 0, EACH_TOKENS, 1);
        step(&r, 0, EACH_TOKENS, 1 + (size_t)i % 4);
        close_run(&r);
    } while (rc && i < 1000);
    CHECK_MSG(i > 2 && !rc, "%lld", (long long)i);
}

/* A conversation that goes on with a long text, ended wherever it is asked in that, in order, or
 * not at all: it can be what it was before, so that another text computes only what is its own. */
static void test_going_back(struct subject *s)
{
    const size_t before = SUBJECT_SHARED - 3;
    struct run r;
    int64_t i = 0;
    int rc;
    open_run(&r, s, false);
    do {
        step(&r, 0, before, 0);
        r.left = i;
        rc = step(&r, 0, TOKENS, 1);
        CHECK(!rc || spw_session_n_tokens(r.session) == before);
        step(&r, 1, TOKENS, 1);
        CHECK(spw_session_reused(r.session) >= before);
        i += BACK_STRIDE;
    } while (rc && i < 1000);
    CHECK_MSG(i > BACK_STRIDE && !rc, "%lld", (long long)i);
    close_run(&r);
}

/* The measuring of the processor ends, and the interrupt stays for the next step. */
static void test_measuring(void)
{
    struct spw_interrupt raised = {0};
    const struct spw_options o = {.backend = SPW_BACKEND_CPU, .threads = 1, .interrupt = &raised};
    struct spw_machine machine;
    struct spw_error err;
    spw_interrupt_raise(&raised);
    int rc = spw_machine_probe(&machine, NULL, &o, &err);
    CHECK_MSG(rc == -ECANCELED && strstr(err.text, "interrupted"), "%d: %s", rc, err.text);
    CHECK(spw_interrupt_clear(&raised));
}

/* Each model as it is, and with old KV in less precision. */
int main(void)
{
    static struct subject s;
    if (!run_is_there())
        return CHECK_SKIP;
    uint64_t seed = check_seed();
    int64_t outstanding = spw_alloc_outstanding();
    alarm(900);
    for (uint64_t i = 0; i < 2 * MODELS; i++) {
        struct spw_options o = {0};
        draw_kv(&o, i % 2 ? 2 + i / 2 % 3 : 0, &seed);
        subject_open(&s, &tiny_models[i / 2], "interrupt", TOKENS, &o);
        if (i % 3 == 1 && (i == 1 || !RUN_UNDER_TSAN))
            test_each(&s);
        if (i == 1 || i >= 8) /* what loses something: old KV in less precision, windows */
            test_going_back(&s);
        subject_close(&s);
    }
    fprintf(stderr,
            "%llu steps ended; sessions: %llu as before, %llu with passes that were through\n",
            (unsigned long long)n_ended, (unsigned long long)n_back, (unsigned long long)n_further);
    test_measuring();
    CHECK(n_ended && (TEST_GPU || (n_back && n_further)));
    CHECK(spw_alloc_outstanding() == outstanding);
    return check_done();
}
