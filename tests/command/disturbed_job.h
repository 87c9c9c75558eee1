/* Jobs that are disturbed: by signals at any moment, by a second process, by a full disk, by a
 * folder that is not writable. The same for every command that has jobs. */
#ifndef SPW_TESTS_COMMAND_DISTURBED_JOB_H
#define SPW_TESTS_COMMAND_DISTURBED_JOB_H

#include "tests/command/batch_files.h"

struct job {
    /* Arguments as the shell reads them. The name of the output stands between the two: */
    const char *before, *after;
    int code; /* exit status of a run that nothing disturbs */
    size_t n_items;
    double seconds; /* that such a run takes */
    /* Every line is right, and no item has two. Returns how many items have ended. */
    size_t (*check)(const char *output);
};

static inline int run_job(const struct job *j, const char *output)
{
    return sh("\"$S\" %s %s %s", j->before, output, j->after);
}

/* Runs the job, or the rest of it. */
static inline void check_end(const struct job *j, const char *output)
{
    int code = run_job(j, output);
    CHECK_MSG(code == j->code, "status %d: %s", code, err);
    size_t n = j->check(output);
    CHECK_MSG(n == j->n_items, "%zu items", n);
}

/* Starts the job in the background. It writes to the file "started". */
static inline pid_t start_job(const struct job *j, const char *output)
{
    char line[1024];
    snprintf(line, sizeof line, "exec \"$S\" %s %s %s >started 2>&1", j->before, output, j->after);
    return start_on(-1, -1, line);
}

/* ---- signals ---- */

/* argv[1]; else `most` in a full run, but `few` under a sanitizer, which makes the command slow. */
static inline int kills_of(int argc, char **argv, int most, int few)
{
    const bool all = check_full() && !RUN_UNDER_ASAN && !RUN_UNDER_TSAN;
    return argc > 1 ? atoi(argv[1]) : all ? most : few;
}

/* Ends the job `kills` times, every fourth time with SIGTERM, and runs it to its end. */
static inline void check_kills(const struct job *j, uint64_t *random, int kills)
{
    size_t n_before = 0;
    int n_finished = 0, n_kept = 0, n_terminated = 0;
    double slowest = 0;
    for (int i = 0; i < kills; i++) {
        bool terminates = check_range(random, 0, 3) == 0;
        pid_t child = start_job(j, "k");
        usleep((useconds_t)(1e6 * j->seconds * (double)check_range(random, 0, 1000) / 1000));
        double start = check_seconds();
        check_kill(child, terminates ? SIGTERM : SIGKILL);
        int status = end_of(child);
        double took = check_seconds() - start;
        slowest = terminates && took > slowest ? took : slowest;
        n_terminated += terminates;
        size_t n = j->check("k");
        CHECK_MSG(n >= n_before, "%zu items, %zu before", n, n_before);
        n_before = n;
        n_kept += sh("cat k.state k/*.state 2>&1 | grep -q ' kept '") == 0;
        if (has_exited(status, j->code)) {
            CHECK(n == j->n_items);
            n_finished++;
            n_before = 0;
            remove_job("k");
        } else {
            CHECK_MSG(
                (WIFSIGNALED(status) && WTERMSIG(status) == (terminates ? SIGTERM : SIGKILL)) ||
                    (terminates && has_exited(status, 128 + SIGTERM)),
                "status %x", status);
        }
    }
    check_end(j, "k");
    CHECK(slowest < 30);
    fprintf(stderr,
            "%d ends, %d by SIGTERM (the slowest took %.2f s), %d finished jobs, tokens under way "
            "in %d states\n",
            kills, n_terminated, slowest, n_finished, n_kept);
    remove_job("k");
}

/* ---- a second process ---- */

/* Starts the job, which something holds up, and waits until `state` is written. The same job is
 * refused meanwhile. */
static inline pid_t start_beside(const struct job *j, const char *output, const char *state)
{
    pid_t child = start_job(j, output);
    while (sh("test -s %s", state) != 0 && waitpid(child, NULL, WNOHANG) == 0)
        usleep(1000);
    int code = run_job(j, output);
    CHECK_MSG(code == 2 && strstr(err, "another process writes this file"), "status %d: %s", code,
              err);
    return child;
}

/* ---- a full disk ---- */

/* A finished job has nothing to write, also if a file could not get a single byte. */
static inline void check_finished(const struct job *j, const char *output)
{
    char status[32];
    snprintf(status, sizeof status, "status %d\n", j->code);
    sh("(ulimit -f 0; \"$S\" %s %s %s; echo \"status $?\") 2>&1 | cat", j->before, output,
       j->after);
    CHECK_MSG(strstr(out, status) && !strstr(out, "File too large"), "%s", out);
}

/* No file gets longer than so many blocks of 512 bytes. Returns whether one was too short: then the
 * job has ended, and said so once. */
static inline bool run_short_files(const struct job *j, const char *output, int blocks)
{
    int code = sh("ulimit -f %d; \"$S\" %s %s %s", blocks, j->before, output, j->after);
    const char *is_full = strstr(err, "File too large");
    CHECK_MSG(code == (is_full ? 1 : j->code), "%d blocks: status %d: %s", blocks, code, err);
    CHECK_MSG(!is_full || !strstr(is_full + 1, "File too large"), "said twice: %s", err);
    return is_full;
}

/* The limit grows until the whole job fits. */
static inline void check_short_files(const struct job *j)
{
    int n_failed = 0;
    for (int blocks = 1;; blocks += 1 + blocks / 4) {
        remove_job("f");
        const bool is_full = run_short_files(j, "f", blocks);
        check_end(j, "f");
        if (!is_full)
            break;
        n_failed++;
    }
    CHECK_MSG(n_failed > 3, "%d", n_failed);
    check_finished(j, "f");
    /* They have texts: a file and its state, or the files of a folder. */
    CHECK(sh("test $(find f f.state -type f -perm 600 | wc -l) -ge 2") == 0);
    CHECK(sh("test -z \"$(find f f.state -type f ! -perm 600)\"") == 0);
    remove_job("f");
}

/* A drive of so many KiB, which grows until the whole job fits. */
static inline void check_small_drives(const struct job *j)
{
    int n_failed = 0;
    bool is_full = true;
    CHECK(sh("mkdir -p tiny") == 0);
    for (int kib = 4; is_full; kib += 4) { /* pages */
        if (sh("mount -t tmpfs -o size=%dk tmpfs tiny", kib) != 0) {
            fprintf(stderr, "no tmpfs: the test of a full disk is left out\n");
            return;
        }
        int code = run_job(j, "tiny/f");
        is_full = strstr(err, "No space left on device");
        CHECK_MSG(code == (is_full ? 1 : j->code), "%d KiB: status %d: %s", kib, code, err);
        n_failed += is_full;
        CHECK(sh("mount -o remount,size=8m tiny") == 0);
        check_end(j, "tiny/f");
        CHECK(sh("umount tiny") == 0);
    }
    CHECK_MSG(n_failed > 1, "%d", n_failed);
}

/* ---- a folder that is not writable ---- */

/* Neither a new job nor one that lies there; root may write everywhere. */
static inline void check_unwritable_folder(const struct job *j)
{
    if (geteuid() == 0 && sh("setpriv --reuid=65534 --clear-groups \"$S\" --version") != 0) {
        fprintf(stderr, "no setpriv: the test of a folder that is not writable is left out\n");
        return;
    }
    const char *as = geteuid() == 0 ? "setpriv --reuid=65534 --clear-groups" : "";
    CHECK(sh("mkdir closed") == 0);
    check_end(j, "closed/u");
    CHECK(sh("chmod -R a-w closed && chmod -R a+rX . && cp -a closed closed_was") == 0);
    CHECK(sh("%s \"$S\" %s closed/new %s", as, j->before, j->after) == 2);
    CHECK_MSG(strstr(err, "closed/new: Permission denied"), "%s", err);
    CHECK(sh("%s \"$S\" %s closed/u %s", as, j->before, j->after) == 2);
    CHECK_MSG(strstr(err, "closed/u"), "%s", err);
    CHECK(sh("diff -r closed closed_was && chmod -R u+w closed closed_was && rm -r closed "
             "closed_was") == 0);
}

#endif
