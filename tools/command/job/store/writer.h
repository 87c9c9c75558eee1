/* The thread that brings the lines of a job to the drive: first those of the state, and then, in
 * the files that follow from the state, the lines that the state on the drive has. It looks for new
 * lines twice a second. */
#ifndef SPW_TOOLS_COMMAND_JOB_STORE_WRITER_H
#define SPW_TOOLS_COMMAND_JOB_STORE_WRITER_H

#include "tools/command/job/store/log.h"

#include <pthread.h>

enum { JOB_OUTPUT, JOB_ERRORS, JOB_N_OUTS };

struct job_text {
    char *text; /* owned, [capacity] */
    size_t n, capacity;
};

struct job_writer {
    struct job_log *state, *outs; /* borrowed; outs [JOB_N_OUTS] are the thread's while it runs */
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    struct job_text texts[JOB_N_OUTS]; /* lines that are not in the files yet */
    uint64_t state_end;
    bool is_dirty, ends;
    int rc; /* the first failure, after which nothing is written, and its file */
    const char *path;
};
int job_writer_start(struct job_writer *w, struct job_log *state, struct job_log *outs);
/* The state has grown. `out`: the file that gets a line of it, `bytes` with the newline; < 0: none.
 * Returns the first failure of the thread. -ENOMEM. */
int job_writer_add(struct job_writer *w, int out, const char *text, size_t bytes);
/* Writes what is left, and ends the thread. Returns the first failure. */
int job_writer_end(struct job_writer *w);

#endif
