/* Starts the command in the background, in the folder of command_run.h. */
#ifndef SPW_TESTS_COMMAND_COMMAND_START_H
#define SPW_TESTS_COMMAND_COMMAND_START_H

#include "tests/command/command_run.h"

#include <fcntl.h>
#include <signal.h>

/* Starts the command with stdout on `fd`, stderr in the file err. */
static inline pid_t start(int fd, const char *const *arguments)
{
    pid_t pid = fork();
    if (pid == 0) {
        if (chdir(folder) != 0)
            _exit(99);
        int log = open("err", O_CREAT | O_TRUNC | O_WRONLY, 0600);
        dup2(fd, 1);
        dup2(log, 2);
        signal(SIGINT, SIG_DFL); /* a shell's background jobs have it ignored */
        execv(getenv("S"), (char *const *)(uintptr_t)arguments);
        _exit(98);
    }
    return pid;
}

#endif
