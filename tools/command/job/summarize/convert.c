/* A converter as a child process: see convert.h.
 *
 * The child is made by vfork: fork would copy the page tables of a process with a large model, and
 * would share pages that devices write to. posix_spawn cannot set limits. Memory is limited by
 * RLIMIT_DATA: some programs (pandoc) reserve far more address space than they use, and RLIMIT_DATA
 * counts only what can be written. */
#include "tools/command/job/summarize/convert.h"

#include "base/grow.h"
#include "tools/command/common.h"

#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* How often the child's state is asked for: while it may write, and when its streams are closed. */
enum { TICK_MS = 50, LAST_TICK_MS = 2 };

struct converter {
    const char *name;
    struct job_limits limits;
    pid_t pid;
    int out, errors; /* read ends of pipes; -1: closed */
    char *data;      /* owned, [capacity] */
    size_t bytes, capacity;
    char first_line[200]; /* of stderr */
    size_t line_bytes;
    bool line_ended;
    bool has_exited;
    siginfo_t exit;
    struct spw_error *err;
};

struct job_limits job_limits_or_defaults(const struct job_limits *limits)
{
    struct job_limits x = limits ? *limits : (struct job_limits){0};
    if (x.seconds == 0)
        x.seconds = 120;
    if (x.bytes == 0)
        x.bytes = UINT64_C(256) << 20;
    if (x.memory_bytes == 0)
        x.memory_bytes = UINT64_C(2) << 30;
    return x;
}

/* ---- start ---- */

struct child {
    const char *const *argv;
    int null, out, errors, failure; /* what becomes its streams; where it writes why it has none */
    struct rlimit data, cpu, file, core;
};

/* Runs in the child, in the memory of the parent: changes nothing in it. */
static void become(const struct child *x)
{
    struct sigaction usual = {.sa_handler = SIG_DFL};
    sigset_t none;
    sigemptyset(&none);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* the end of the thread that waits */
    for (int i = 1; i < NSIG; i++)
        sigaction(i, &usual, NULL);
    setrlimit(RLIMIT_DATA, &x->data);
    setrlimit(RLIMIT_CPU, &x->cpu);
    setrlimit(RLIMIT_FSIZE, &x->file);
    setrlimit(RLIMIT_CORE, &x->core);
    close_range(STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC); /* Linux before 5.9 lacks it */
    if (dup2(x->null, STDIN_FILENO) == STDIN_FILENO &&
        dup2(x->out, STDOUT_FILENO) == STDOUT_FILENO &&
        dup2(x->errors, STDERR_FILENO) == STDERR_FILENO) {
        sigprocmask(SIG_SETMASK, &none, NULL);
        execvp(x->argv[0], (char *const *)(uintptr_t)x->argv);
    }
    int error = errno;
    while (write(x->failure, &error, sizeof error) < 0 && errno == EINTR)
        ;
    _exit(127);
}

/* Signals are blocked: a handler of the parent must not run in the child. */
static pid_t spawn(const struct child *x)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pid_t pid = vfork();
    if (pid == 0)
        become(x);
    int error = errno;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return pid < 0 ? -error : pid;
}

static int make_pipe(int *read_end, int *write_end)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return -errno;
    *read_end = ends[0];
    *write_end = ends[1];
    return 0;
}

static void close_end(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void kill_and_reap(struct converter *c)
{
    kill(-c->pid, SIGKILL);
    while (waitpid(c->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    while (waitpid(-c->pid, NULL, 0) > 0 || errno == EINTR)
        ; /* members of its group, if this process is the one that adopts them */
}

/* Starts the child with these files; waits until it runs the program. */
static int start_child(struct converter *c, struct child *x, int *failed)
{
    int error = 0;
    uint64_t seconds = (uint64_t)ceil(c->limits.seconds);
    SPW_TRY(make_pipe(&c->out, &x->out));
    SPW_TRY(make_pipe(&c->errors, &x->errors));
    SPW_TRY(make_pipe(failed, &x->failure));
    x->null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (x->null < 0 || fcntl(c->out, F_SETFL, O_NONBLOCK) || fcntl(c->errors, F_SETFL, O_NONBLOCK))
        return -errno;
    x->data = (struct rlimit){c->limits.memory_bytes, c->limits.memory_bytes};
    x->cpu = (struct rlimit){seconds, seconds + 1};
    x->file = (struct rlimit){c->limits.bytes, c->limits.bytes};
    SPW_TRY(c->pid = spawn(x));
    close_end(&x->failure);
    ssize_t n = read(*failed, &error, sizeof error);
    if (n <= 0)
        return 0;
    kill_and_reap(c);
    return error == EACCES ? -ENOENT : -error; /* PATH may have folders of other users */
}

static int start(struct converter *c, const char *const *argv)
{
    struct child x = {.argv = argv, .null = -1, .out = -1, .errors = -1, .failure = -1};
    int failed = -1;
    int rc = start_child(c, &x, &failed);
    close_end(&x.null);
    close_end(&x.out);
    close_end(&x.errors);
    close_end(&x.failure);
    close_end(&failed);
    return rc < 0 ? spw_fail(c->err, rc, "%s: %s", c->name, strerror(-rc)) : 0;
}

/* ---- its output ---- */

static int fail_memory(struct converter *c)
{
    return spw_fail(c->err, -ENOMEM, "%s: no memory for its output", c->name);
}

/* Reads what is there: up to a few pages. 1: there may be more; 0: not now, or never. */
static int read_out(struct converter *c)
{
    if (spw_grow(&c->data, &c->capacity, c->bytes + (1 << 16), 1))
        return fail_memory(c);
    ssize_t n = read(c->out, c->data + c->bytes, c->capacity - c->bytes - 1);
    if (n == 0)
        close_end(&c->out);
    if (n <= 0)
        return n < 0 && errno == EINTR;
    c->bytes += (size_t)n;
    if (c->bytes <= c->limits.bytes)
        return 1;
    char most[32];
    return spw_fail(c->err, -EFBIG, "%s: wrote more than %s of text", c->name,
                    spw_bytes_text(most, c->limits.bytes));
}

/* Keeps the first line that is not empty. */
static void take_line(struct converter *c, const char *text, size_t n)
{
    for (size_t i = 0; i < n && !c->line_ended; i++) {
        if (text[i] == '\n' || c->line_bytes + 1 == sizeof c->first_line)
            c->line_ended = c->line_bytes > 0;
        else if ((unsigned char)text[i] >= ' ')
            c->first_line[c->line_bytes++] = text[i];
    }
}

static int read_errors(struct converter *c)
{
    char text[4096];
    ssize_t n = read(c->errors, text, sizeof text);
    if (n == 0)
        close_end(&c->errors);
    if (n <= 0)
        return n < 0 && errno == EINTR;
    take_line(c, text, (size_t)n);
    return 1;
}

/* Reads at most so much of each stream that the other one, the clock and the signals get their
 * turn. */
static int read_streams(struct converter *c)
{
    int more = 1;
    for (int i = 0; i < 64 && c->out >= 0 && more; i++)
        SPW_TRY(more = read_out(c));
    more = 1;
    for (int i = 0; i < 64 && c->errors >= 0 && more; i++)
        more = read_errors(c);
    return 0;
}

/* ---- its end ---- */

/* The process stays a zombie, so that its number belongs to its group until the group is killed. */
static int ask_exit(struct converter *c)
{
    c->exit.si_pid = 0;
    if (waitid(P_PID, (id_t)c->pid, &c->exit, WEXITED | WNOHANG | WNOWAIT) != 0 && errno != EINTR)
        return spw_fail(c->err, -errno, "%s: waiting for its end: %s", c->name, strerror(errno));
    c->has_exited = c->exit.si_pid == c->pid;
    return 0;
}

/* Waits until the process has ended and its streams are read. */
static int follow(struct converter *c)
{
    double end = spw_now_seconds() + c->limits.seconds;
    while (!c->has_exited) {
        struct pollfd fds[2] = {{c->out, POLLIN, 0}, {c->errors, POLLIN, 0}};
        if (cli_interrupted())
            return spw_fail(c->err, -ECANCELED, "%s: interrupted", c->name);
        if (spw_now_seconds() > end)
            return spw_fail(c->err, -ETIMEDOUT, "%s: did not end within %g s", c->name,
                            c->limits.seconds);
        poll(fds, 2, c->out < 0 && c->errors < 0 ? LAST_TICK_MS : TICK_MS);
        SPW_TRY(ask_exit(c)); /* first, so that all that it wrote is read now */
        SPW_TRY(read_streams(c));
    }
    return 0;
}

/* What the process wrote before its end lies in the pipes. Other processes that have the pipes
 * open are killed by now. */
static int read_rest(struct converter *c)
{
    size_t before;
    do {
        before = c->bytes;
        SPW_TRY(read_streams(c));
    } while (c->out >= 0 && c->bytes > before);
    return 0;
}

static int check_exit(const struct converter *c)
{
    int status = c->exit.si_status;
    const char *colon = c->line_bytes ? ": " : "";
    if (c->exit.si_code == CLD_EXITED && status == 0)
        return 0;
    if (c->exit.si_code == CLD_EXITED)
        return spw_fail(c->err, -EIO, "%s: failed with status %d%s%s", c->name, status, colon,
                        c->first_line);
    if (status == SIGXCPU)
        return spw_fail(c->err, -ETIMEDOUT, "%s: took more than %g s of processor time", c->name,
                        c->limits.seconds);
    return spw_fail(c->err, -EIO, "%s: ended by signal %d (%s)%s%s", c->name, status,
                    strsignal(status), colon, c->first_line);
}

static int run(struct converter *c, const char *const *argv)
{
    SPW_TRY(start(c, argv));
    int rc = follow(c);
    kill_and_reap(c);
    SPW_TRY(rc);
    SPW_TRY(read_rest(c));
    return check_exit(c);
}

int job_convert(const char *const *argv, const struct job_limits *limits, char **data,
                size_t *bytes, struct spw_error *err)
{
    struct converter c = {.name = argv[0],
                          .limits = job_limits_or_defaults(limits),
                          .out = -1,
                          .errors = -1,
                          .err = err};
    int rc = run(&c, argv);
    close_end(&c.out);
    close_end(&c.errors);
    if (!rc && !c.data) {
        c.data = spw_alloc(1);
        rc = c.data ? 0 : fail_memory(&c);
    }
    if (rc) {
        spw_free(c.data);
        c = (struct converter){0};
    } else {
        c.data[c.bytes] = 0;
    }
    *data = c.data;
    *bytes = c.bytes;
    return rc;
}
