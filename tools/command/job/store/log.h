/* A file of lines that only grows: the state of a job, and the files that follow from it.
 *
 * A line is committed by its newline. If the process dies within a line, the next one cuts the line
 * off. A line that cannot be written whole (a full disk) is taken back. Functions return 0 or
 * -errno. */
#ifndef SPW_TOOLS_COMMAND_JOB_STORE_LOG_H
#define SPW_TOOLS_COMMAND_JOB_STORE_LOG_H

#include "base/base.h"

struct job_log {
    int fd;       /* owned; -1: not open */
    char *path;   /* owned */
    uint64_t end; /* after the last committed line */
    bool is_new;  /* this process made the file */
};

/* Opens a regular file of this user for reading and appending, and creates it if it is missing;
 * follows no link. Only one process at a time has it open: -EBUSY. -EINVAL, -EPERM: see
 * spw_check_replaceable. */
int job_log_open(struct job_log *l, const char *path, struct spw_error *err);
void job_log_close(struct job_log *l);
/* The file ends here from now on. */
int job_log_cut(struct job_log *l, uint64_t end);
/* Appends lines, all of them or nothing. `bytes`: with the last newline. */
int job_log_append(struct job_log *l, const char *text, size_t bytes);
/* -ESTALE: another program has deleted, replaced, cut or lengthened the file since. `end`: the file
 * ends there; `grows`: or behind it. Any thread. */
int job_log_check(const struct job_log *l, uint64_t end, bool grows);

#endif
