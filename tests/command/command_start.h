/* Starts commands in the background, in the folder of command_run.h. */
#ifndef SPW_TESTS_COMMAND_COMMAND_START_H
#define SPW_TESTS_COMMAND_COMMAND_START_H

#include "tests/command/command_run.h"

#include <fcntl.h>
#include <signal.h>

/* Starts a line of shell with stdin on `in` and stdout on `to`; -1: those of the test. */
static inline pid_t start_on(int in, int to, const char *line)
{
    char command[4096];
    const int n = snprintf(command, sizeof command, "cd %s && %s", folder, line);
    CHECK(n > 0 && (size_t)n < sizeof command);
    pid_t child = fork();
    if (child == 0) {
        if (in >= 0)
            dup2(in, STDIN_FILENO);
        if (to >= 0)
            dup2(to, STDOUT_FILENO);
        signal(SIGINT, SIG_DFL); /* a shell's background jobs have it ignored */
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(98);
    }
    return child;
}

/* Starts spillway with stdout on `fd`, stderr in the file err. */
static inline pid_t start(int fd, const char *arguments)
{
    char line[4096];
    snprintf(line, sizeof line, "exec \"$S\" %s 2>err", arguments);
    return start_on(-1, fd, line);
}

static inline int end_of(pid_t child)
{
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    return status;
}

/* Whether a process ended by itself, with this status. */
static inline bool has_exited(int status, int code)
{
    return WIFEXITED(status) && WEXITSTATUS(status) == code;
}

#endif
