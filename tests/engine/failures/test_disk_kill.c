/* SIGKILL while tiles are spilled to disk and stream back, at random moments: no file is left
 * behind, and the next run is right.
 *
 *   test_disk_kill [times]    default 200, under sanitizers 20 */
#include "tests/children.h"
#include "tests/engine/oracle.h"
#include "tests/engine/persist/pack_run.h"

enum { N_PROMPT = 900, N_TOKENS = 920, CONTEXT = 1024, WATCHDOG_SECONDS = 600 };

struct run {
    struct subject s;
    struct spw_options o;
};

/* Tells when it is open, and after the prompt and each token. */
static void spend(void *context, struct child *self)
{
    const struct run *r = context;
    struct spw_engine *e = run_open(r->s.dir, &r->o);
    struct spw_session *s = run_session(e);
    for (size_t n = N_PROMPT; n <= N_TOKENS; n++) {
        child_tell(self, "o", 1);
        run_to(s, e, r->s.ids[0], n);
    }
    spw_session_close(s);
    spw_engine_close(e);
}

/* How long the prompt and a token take. */
struct pace {
    double prompt, token;
};

/* Kills the run `part` of the way into its prompt (step 0) or into the step-th token, and returns
 * whether it was still at work. Step N_STEPS: lets it end, and measures. */
enum { N_STEPS = N_TOKENS - N_PROMPT + 1 };

static bool kill_one(struct run *r, int step, double part, struct pace *pace, uint64_t *seed)
{
    struct children child;
    char byte;
    double start = 0, prompt = 0;
    bool killed = false;
    children_start(&child, 1, spend, r, seed);
    for (int i = 0; i <= step && i < N_STEPS; i++) {
        CHECK(children_told(&child, &byte, 1)); /* from the first on the scratch file is there */
        start = i == 0 ? check_seconds() : start;
        prompt = i == 1 ? check_seconds() - start : prompt;
    }
    if (step == N_STEPS) {
        *pace = (struct pace){prompt, (check_seconds() - start - prompt) / (N_STEPS - 2)};
        children_end(&child);
    } else {
        usleep((useconds_t)(part * (step ? pace->token : pace->prompt) * 1e6));
        killed = children_kill(&child);
    }
    children_close(&child);
    return killed;
}

int main(int argc, char **argv)
{
    static const struct tiny_model model = {TINY("llama", 2, 32, 48, 2, 1, 16, 67, 2048),
                                            .untied = true, .stored = TINY_BF16, .seed = 92};
    static struct run r;
    int times =
        argc > 1 ? atoi(argv[1]) : check_amount(RUN_UNDER_TSAN || RUN_UNDER_ASAN ? 20 : 200);
    int killed = 0;
    uint64_t seed = check_seed();
    char scratch[600];
    alarm(WATCHDOG_SECONDS);
    subject_open(&r.s, &model, "disk_kill", N_TOKENS, &(struct spw_options){0});
    snprintf(scratch, sizeof scratch, "%s/scratch", r.s.dir);
    CHECK(mkdir(scratch, 0700) == 0);
    r.o = (struct spw_options){
        .context = CONTEXT, .threads = 2, .disk_dir = scratch, .disk_bytes = 64 << 20};
    run_tight(r.s.dir, &r.o, 0);
    run_to_disk(r.s.dir, &r.o);
    struct pace pace;
    kill_one(&r, N_STEPS, 0, &pace, &seed);
    for (int i = 0; i < times; i++) {
        int step = i % 2 ? (int)check_range(&seed, 1, N_STEPS - 1) : 0;
        double part = (double)check_range(&seed, 0, 1000) / 1000;
        killed += kill_one(&r, step, part, &pace, &seed);
        CHECK_MSG(pack_count(scratch, NULL, NULL) == 0, "time %d: a file was left behind", i);
    }
    struct spw_engine *e = run_open(r.s.dir, &r.o);
    struct spw_session *s = run_session(e);
    CHECK(oracle_same(&r.s, r.s.ids[0], N_TOKENS, run_to(s, e, r.s.ids[0], N_TOKENS)));
    struct spw_stats stats;
    spw_engine_stats(e, &stats);
    CHECK(stats.moved_bytes[SPW_MOVED_HOST_TO_DISK] > 0); /* that is what was killed */
    spw_session_close(s);
    spw_engine_close(e);
    fprintf(stderr, "%d of %d runs were killed at work\n", killed, times);
    CHECK(killed > times / 2); /* all but those in the last tokens, as a rule */
    CHECK(rmdir(scratch) == 0);
    subject_close(&r.s);
    return check_done();
}
