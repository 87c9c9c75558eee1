/* Helpers of the tests that run the built command through sh, in a folder of this process alone. */
#ifndef SPW_TESTS_COMMAND_COMMAND_RUN_H
#define SPW_TESTS_COMMAND_COMMAND_RUN_H

#include "base/base.h" /* before `out`: its functions have parameters of that name */
#include "tests/command/made_up_limits.h"
#include "tests/folder.h" /* out, err, the models and what the cases write */

#include <stdarg.h>
#include <sys/wait.h>

static char out[1 << 20], err[1 << 16];
static size_t n_out;

/* Whether SPW_COMMAND names a program. From now on $S is this program, also found by its name, and
 * $REPOSITORY this folder. */
static inline bool command_is_there(void)
{
    const char *command = getenv("SPW_COMMAND");
    if (!command || !*command || access(command, X_OK) != 0) {
        fprintf(stderr, "SPW_COMMAND names no command (build/release/spillway): skipped\n");
        return false;
    }
    char path[8192];
    snprintf(path, sizeof path, "%.*s:%s", (int)(strrchr(command, '/') - command), command,
             getenv("PATH"));
    setenv("PATH", path, 1);
    setenv("S", command, 1);
    char *repository = realpath(".", NULL); /* $PWD is that of the caller's shell */
    setenv("REPOSITORY", repository ? repository : "", 1);
    free(repository);
    return true;
}

/* Runs a line of shell in `folder`, where $S is the command; fills out and err. */
__attribute__((format(printf, 1, 2))) static inline int sh(const char *format, ...)
{
    char line[4096];
    int n = snprintf(line, sizeof line, "cd %s && { ", folder);
    va_list args;
    va_start(args, format);
    n += vsnprintf(line + n, sizeof line - (size_t)n, format, args);
    va_end(args);
    snprintf(line + n, sizeof line - (size_t)n, "\n} >out 2>err");
    int status = system(line);
    n_out = read_file("out", out, sizeof out);
    read_file("err", err, sizeof err);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Runs of the command find limits of machine and drive, which nobody measured: see
 * made_up_limits.h. Nothing goes to the user's files. */
static inline void command_limits(void)
{
    setenv("XDG_CACHE_HOME", folder, 1);
    CHECK(write_made_up_limits(in_folder("spillway/drives.json"), folder) == 0);
}

#endif
