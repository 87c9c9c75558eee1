/* Children of a test. Each runs a function until it returns, until the child is asked to end, or
 * until it is killed, and reports its work to the test through a pipe. Children are made by fork:
 * only engines that the child itself opened have threads. */
#ifndef SPW_TESTS_CHILDREN_H
#define SPW_TESTS_CHILDREN_H

#include "tests/check.h"

#include <fcntl.h>
#include <sys/wait.h>

enum { CHILDREN_MOST = 2 };

/* The child's side. */
struct child {
    int tell, until;
    uint64_t seed;
};

/* The test's side. */
struct children {
    pid_t pids[CHILDREN_MOST];
    int n, told;
    int end[2]; /* a byte in it asks one child to end */
};

/* A child exits with 0 if `work` returns and none of its checks failed. */
static inline void children_start(struct children *c, int n,
                                  void (*work)(void *context, struct child *), void *context,
                                  uint64_t *seed)
{
    int tell[2];
    *c = (struct children){.n = n};
    CHECK(n <= CHILDREN_MOST && pipe(tell) == 0 && pipe2(c->end, O_NONBLOCK) == 0);
    c->told = tell[0];
    for (int i = 0; i < n; i++) {
        struct child child = {tell[1], c->end[0], check_random(seed)};
        fflush(NULL);
        c->pids[i] = fork();
        CHECK(c->pids[i] >= 0);
        if (c->pids[i])
            continue;
        close(tell[0]);
        check_failed_ = 0;
        work(context, &child);
        _exit(check_failed_ != 0);
    }
    close(tell[1]);
}

/* Whether the child may continue: the test has not asked it to end. */
static inline bool child_goes_on(const struct child *c)
{
    char byte;
    return read(c->until, &byte, 1) < 0;
}

static inline void child_tell(const struct child *c, const void *record, size_t bytes)
{
    CHECK(write(c->tell, record, bytes) == (ssize_t)bytes);
}

/* Waits for the next record. False: there is none, and no child is left. */
static inline bool children_told(const struct children *c, void *record, size_t bytes)
{
    return read(c->told, record, bytes) == (ssize_t)bytes;
}

/* Kills the children, and returns how many were still running; the others have ended well. Their
 * reports can still be read. */
static inline int children_kill(const struct children *c)
{
    int status, killed = 0;
    for (int i = 0; i < c->n; i++) {
        check_kill(c->pids[i], SIGKILL);
        CHECK(waitpid(c->pids[i], &status, 0) == c->pids[i]);
        CHECK_MSG(WIFSIGNALED(status) || WEXITSTATUS(status) == 0, "a child failed: %x", status);
        killed += WIFSIGNALED(status);
    }
    return killed;
}

/* Asks the children to end, and waits until all have ended well. */
static inline void children_end(const struct children *c)
{
    int status;
    for (int i = 0; i < c->n; i++)
        CHECK(write(c->end[1], "e", 1) == 1);
    for (int i = 0; i < c->n; i++) {
        CHECK(waitpid(c->pids[i], &status, 0) == c->pids[i]);
        CHECK_MSG(WIFEXITED(status) && !WEXITSTATUS(status), "a child failed: %x", status);
    }
}

static inline void children_close(const struct children *c)
{
    close(c->told);
    close(c->end[0]);
    close(c->end[1]);
}

/* Runs `work` in a child and returns its exit status: 0 if it returns and no check failed. */
static inline int in_child(void (*work)(void *context, struct child *), void *context,
                           uint64_t *seed)
{
    struct children c;
    int status = 1;
    children_start(&c, 1, work, context, seed);
    CHECK(waitpid(c.pids[0], &status, 0) == c.pids[0]);
    children_close(&c);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

#endif
