/* A file of lines that only grows: results, errors and the state of a job.
 *
 * A line is committed by its newline. If the process dies within a line, the next opener cuts the
 * line off. A line that cannot be written whole (a full disk) is taken back. A thread writes
 * committed lines to the drive within half a second. Functions return 0 or -errno; all but the
 * thread run on one thread. */
#ifndef SPW_TOOLS_COMMAND_JOB_STORE_LOG_H
#define SPW_TOOLS_COMMAND_JOB_STORE_LOG_H

#include "base/base.h"

#include <pthread.h>

struct job_log {
    int fd;       /* owned; -1: not open */
    char *path;   /* owned */
    uint64_t end; /* after the last committed line */
    bool is_new;  /* this process made the file */
};

/* Opens a regular file of this user for reading and appending, and creates it if it is missing;
 * follows no link. -EINVAL, -EPERM: see spw_check_replaceable. */
int job_log_open(struct job_log *l, const char *path, struct spw_error *err);
void job_log_close(struct job_log *l);
/* Cuts off what follows the last newline. */
int job_log_cut_torn_line(struct job_log *l);
/* Appends `bytes` of text and a newline. */
int job_log_append(struct job_log *l, const char *text, size_t bytes);

/* Writes the lines of logs to the drive, in the order of the list. */
struct job_syncer {
    struct job_log *const *logs; /* [n], borrowed */
    size_t n;
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    bool is_dirty; /* lines were appended since the last sync */
    bool ends;
    int rc; /* of the first sync that failed */
};
int job_syncer_start(struct job_syncer *s, struct job_log *const *logs, size_t n);
/* After an append. Returns the failure of an earlier sync. */
int job_syncer_note(struct job_syncer *s);
/* Syncs what is left, and ends the thread. Returns the first failure. */
int job_syncer_end(struct job_syncer *s);

#endif
