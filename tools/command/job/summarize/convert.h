/* Runs a program that writes a document as text to its stdout.
 *
 * No shell takes part. The program reads /dev/null, has no open files but its three streams, and is
 * the leader of a process group of its own, which is killed before the function returns. Then the
 * program is reaped. It is also killed if this process dies. Its memory, processor time and files
 * are limited. */
#ifndef SPW_TOOLS_COMMAND_JOB_SUMMARIZE_CONVERT_H
#define SPW_TOOLS_COMMAND_JOB_SUMMARIZE_CONVERT_H

#include "base/base.h"

struct job_limits {        /* 0: the default */
    double seconds;        /* of time, and of processor time; 120 */
    uint64_t bytes;        /* of a text, and of a file that is read as text; 256 MiB */
    uint64_t memory_bytes; /* that a program may write to; 2 GiB */
};
struct job_limits job_limits_or_defaults(const struct job_limits *limits); /* NULL: all defaults */

/* `argv` ends with NULL; argv[0] is searched in PATH. *data is what the program wrote, owned by the
 * caller (spw_free), and ends in a NUL. -ENOENT: the program is not installed; -ETIMEDOUT; -EFBIG:
 * too much text; -ECANCELED: cli_interrupted; -EIO: the program failed, and the error has the first
 * line of its stderr. */
int job_convert(const char *const *argv, const struct job_limits *limits, char **data,
                size_t *bytes, struct spw_error *err);

#endif
