/* A converter as a child process: see convert.h.
 *
 * The child is made by vfork: fork would copy the page tables of a process with a large model, and
 * would share pages that devices write to. posix_spawn cannot set limits. Memory is limited by
 * RLIMIT_DATA: some programs (pandoc) reserve far more address space than they use, and RLIMIT_DATA
 * counts only what can be written. Its stdout and stderr are files in memory, which are read after
 * its end. RLIMIT_FSIZE limits them: SIGXFSZ ends a program that writes more. */
#include "tools/command/job/summarize/convert.h"

#include "base/file.h"
#include "tools/command/common.h"

#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

struct converter {
    const char *const *argv; /* argv[0]: its name in messages */
    struct job_limits limits;
    pid_t pid;
    int null, out, errors; /* what become its streams; -1: closed */
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

/* Runs in the child, in the memory of the parent: changes nothing in it. Ends as shells do if there
 * is no such program: 127, or another error: 126. */
static void become(const struct converter *c)
{
    const struct sigaction usual = {.sa_handler = SIG_DFL};
    const rlim_t seconds = (rlim_t)ceil(c->limits.seconds);
    const struct rlimit data = {c->limits.memory_bytes, c->limits.memory_bytes},
                        cpu = {seconds, seconds + 1}, file = {c->limits.bytes, c->limits.bytes},
                        core = {0};
    sigset_t none;
    sigemptyset(&none);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* the end of the thread that waits */
    for (int i = 1; i < NSIG; i++)
        sigaction(i, &usual, NULL);
    setrlimit(RLIMIT_DATA, &data);
    setrlimit(RLIMIT_CPU, &cpu);
    setrlimit(RLIMIT_FSIZE, &file);
    setrlimit(RLIMIT_CORE, &core);
    close_range(STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC); /* Linux before 5.9 lacks it */
    if (dup2(c->null, STDIN_FILENO) == STDIN_FILENO &&
        dup2(c->out, STDOUT_FILENO) == STDOUT_FILENO &&
        dup2(c->errors, STDERR_FILENO) == STDERR_FILENO) {
        sigprocmask(SIG_SETMASK, &none, NULL);
        execvp(c->argv[0], (char *const *)(uintptr_t)c->argv);
    }
    _exit(errno == ENOENT || errno == EACCES ? 127 : 126); /* PATH may have folders of others */
}

/* Signals are blocked: a handler of the parent must not run in the child. */
static pid_t spawn(const struct converter *c)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pid_t pid = vfork();
    if (pid == 0)
        become(c);
    int error = errno;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return pid < 0 ? -error : pid;
}

static int start(struct converter *c)
{
    c->null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    c->out = memfd_create("text", MFD_CLOEXEC);
    c->errors = memfd_create("errors", MFD_CLOEXEC);
    c->pid = c->null < 0 || c->out < 0 || c->errors < 0 ? -errno : spawn(c);
    if (c->pid > 0)
        return 0;
    return spw_fail(c->err, (int)c->pid, "%s: %s", c->argv[0], strerror((int)-c->pid));
}

/* ---- its end ---- */

/* Waits until the process has ended. It stays a zombie, so that its number belongs to its group
 * until the group is killed. */
static int follow(struct converter *c)
{
    enum { TICK_US = 5000 };
    const double end = spw_now_seconds() + c->limits.seconds;
    for (;; usleep(TICK_US)) {
        c->exit.si_pid = 0;
        if (waitid(P_PID, (id_t)c->pid, &c->exit, WEXITED | WNOHANG | WNOWAIT) && errno != EINTR)
            return spw_fail(c->err, -errno, "%s: waiting for its end: %s", c->argv[0],
                            strerror(errno));
        if (c->exit.si_pid == c->pid)
            return 0;
        if (cli_interrupted())
            return spw_fail(c->err, -ECANCELED, "%s: interrupted", c->argv[0]);
        if (spw_now_seconds() > end)
            return spw_fail(c->err, -ETIMEDOUT, "%s: did not end within %g s", c->argv[0],
                            c->limits.seconds);
    }
}

static void kill_and_reap(const struct converter *c)
{
    kill(-c->pid, SIGKILL);
    while (waitpid(c->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    while (waitpid(-c->pid, NULL, 0) > 0 || errno == EINTR)
        ; /* members of its group, if this process is the one that adopts them */
}

static uint64_t size_of(int fd)
{
    struct stat st;
    return fstat(fd, &st) ? 0 : (uint64_t)st.st_size;
}

/* The first line of stderr that is not empty, without control characters. */
static void first_line(const struct converter *c, char line[200])
{
    char text[4096];
    ssize_t n = pread(c->errors, text, sizeof text, 0);
    size_t bytes = 0;
    for (ssize_t i = 0; i < n && bytes < 199 && !(text[i] == '\n' && bytes); i++)
        if ((unsigned char)text[i] >= ' ')
            line[bytes++] = text[i];
    line[bytes] = 0;
}

static int check_exit(const struct converter *c)
{
    const char *name = c->argv[0];
    const int status = c->exit.si_status;
    const bool ends_itself = c->exit.si_code == CLD_EXITED;
    char line[200], most[32];
    if (ends_itself && status == 0)
        return 0;
    first_line(c, line);
    const char *colon = *line ? ": " : "";
    if (size_of(c->out) >= c->limits.bytes)
        return spw_fail(c->err, -EFBIG, "%s: wrote more than %s of text", name,
                        spw_bytes_text(most, c->limits.bytes));
    if (ends_itself && status == 127 && !*line)
        return spw_fail(c->err, -ENOENT, "%s: %s", name, strerror(ENOENT));
    if (ends_itself)
        return spw_fail(c->err, -EIO, "%s: failed with status %d%s%s", name, status, colon, line);
    if (status == SIGXCPU)
        return spw_fail(c->err, -ETIMEDOUT, "%s: took more than %g s of processor time", name,
                        c->limits.seconds);
    return spw_fail(c->err, -EIO, "%s: ended by signal %d (%s)%s%s", name, status,
                    strsignal(status), colon, line);
}

static int read_text(const struct converter *c, char **data, size_t *bytes)
{
    const size_t size = size_of(c->out);
    *data = spw_alloc(size + 1);
    if (!*data)
        return spw_fail(c->err, -ENOMEM, "%s: no memory for its output", c->argv[0]);
    const int rc = spw_read_at(c->out, *data, size, 0, bytes);
    (*data)[*bytes] = 0;
    return rc;
}

static int run(struct converter *c, char **data, size_t *bytes)
{
    SPW_TRY(start(c));
    const int rc = follow(c);
    kill_and_reap(c);
    SPW_TRY(rc);
    SPW_TRY(check_exit(c));
    return read_text(c, data, bytes);
}

int job_convert(const char *const *argv, const struct job_limits *limits, char **data,
                size_t *bytes, struct spw_error *err)
{
    struct converter c = {.argv = argv, .limits = job_limits_or_defaults(limits), .err = err};
    *data = NULL;
    *bytes = 0;
    const int rc = run(&c, data, bytes);
    const int files[] = {c.null, c.out, c.errors};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (files[i] >= 0)
            close(files[i]);
    return rc;
}
