/* SIGKILL while tiles are spilled to disk and stream back, at random moments: no file is left
 * behind, and the next run is right.
 *
 *   test_disk_kill [times]    default 200, under sanitizers 20 */
#include "tests/engine/engine_run.h"

#include <dirent.h>
#include <signal.h>
#include <sys/wait.h>

enum { N_PROMPT = 900, N_TOKENS = 920, CONTEXT = 1024, WATCHDOG_SECONDS = 600 };

/* Tells when it is open, and after the prompt and each token. */
static void spend(const char *dir, const struct spw_options *o, const int32_t *ids, int tell)
{
    struct spw_engine *e = run_open(dir, o);
    struct spw_session *s = run_session(e);
    for (size_t n = N_PROMPT; n <= N_TOKENS; n++) {
        if (write(tell, "o", 1) != 1)
            exit(1);
        run_to(s, e, ids, n);
    }
    spw_session_close(s);
    spw_engine_close(e);
    _exit(check_failed_ != 0);
}

static int count_files(const char *dir)
{
    int n = 0;
    DIR *d = opendir(dir);
    if (!d)
        return -1;
    for (struct dirent *entry; (entry = readdir(d));)
        n += strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..");
    closedir(d);
    return n;
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* How long the prompt and a token take. */
struct pace {
    double prompt, token;
};

/* Kills the run `part` of the way into its prompt (step 0) or into the step-th token, and returns
 * whether it was still at work. Step N_STEPS: lets it end, and measures. */
enum { N_STEPS = N_TOKENS - N_PROMPT + 1 };

static bool kill_one(const char *dir, const struct spw_options *o, const int32_t *ids, int step,
                     double part, struct pace *pace)
{
    int tell[2], status;
    char byte;
    double start = 0, prompt = 0;
    CHECK(pipe(tell) == 0);
    pid_t child = fork();
    if (child == 0)
        spend(dir, o, ids, tell[1]);
    close(tell[1]);
    for (int i = 0; i <= step && i < N_STEPS; i++) {
        CHECK(read(tell[0], &byte, 1) == 1); /* from the first on the scratch file is there */
        start = i == 0 ? seconds() : start;
        prompt = i == 1 ? seconds() - start : prompt;
    }
    if (step == N_STEPS) {
        *pace = (struct pace){prompt, (seconds() - start - prompt) / (N_STEPS - 2)};
    } else {
        usleep((useconds_t)(part * (step ? pace->token : pace->prompt) * 1e6));
        check_kill(child, SIGKILL);
    }
    close(tell[0]);
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_MSG(WIFSIGNALED(status) || WEXITSTATUS(status) == 0, "the run failed: %d", status);
    return WIFSIGNALED(status);
}

int main(int argc, char **argv)
{
    static const struct tiny_model model = {"llama", 2,    32,    48,    2,     1,    16,   67,
                                            2048,    NULL, false, false, false, true, true, 92};
    int times =
        argc > 1 ? atoi(argv[1]) : check_amount(RUN_UNDER_TSAN || RUN_UNDER_ASAN ? 20 : 200);
    int killed = 0;
    uint64_t seed = check_seed();
    char dir[128], scratch[160];
    int32_t ids[N_TOKENS];
    uint32_t vocab = 0;
    struct spw_options o = {.context = CONTEXT, .threads = 2};
    alarm(WATCHDOG_SECONDS);
    run_folder(dir, &model, "disk_kill");
    snprintf(scratch, sizeof scratch, "%s/scratch", dir);
    CHECK(mkdir(scratch, 0700) == 0);
    run_ids(ids, N_TOKENS, model.vocab, 6);
    float *expected = model_all_logits(dir, &o, ids, N_TOKENS, &vocab);
    o.disk_dir = scratch;
    o.disk_bytes = 64 << 20;
    run_tight(dir, &o, 0);
    run_to_disk(dir, &o);
    struct pace pace;
    kill_one(dir, &o, ids, N_STEPS, 0, &pace);
    for (int i = 0; i < times; i++) {
        int step = i % 2 ? (int)check_range(&seed, 1, N_STEPS - 1) : 0;
        double part = (double)check_range(&seed, 0, 1000) / 1000;
        killed += kill_one(dir, &o, ids, step, part, &pace);
        CHECK_MSG(count_files(scratch) == 0, "time %d: a file was left behind", i);
    }
    struct spw_engine *e = run_open(dir, &o);
    struct spw_session *s = run_session(e);
    const float *logits = run_to(s, e, ids, N_TOKENS);
    CHECK(run_same(logits, expected + (size_t)(N_TOKENS - 1) * vocab, vocab));
    struct spw_stats stats;
    spw_engine_stats(e, &stats);
    CHECK(stats.moved_bytes[SPW_MOVED_HOST_TO_DISK] > 0); /* that is what was killed */
    spw_session_close(s);
    spw_engine_close(e);
    fprintf(stderr, "%d of %d runs were killed at work\n", killed, times);
    CHECK(killed > times / 2); /* all but those in the last tokens, as a rule */
    CHECK(rmdir(scratch) == 0);
    tiny_model_remove(dir);
    free(expected);
    return check_done();
}
