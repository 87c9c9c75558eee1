/* The files of a job, and what they say about each item.
 *
 *   OUTPUT.state   a log of all that has happened: what every run of the job has in common, the
 *                  lines of answers and errors, parts of answers, tokens of answers under way
 *   OUTPUT         the lines of the items that have an answer
 *   OUTPUT.errors  the lines of the items that have none (--errors gives another name)
 *
 * The state is the truth. It only grows, and each of its lines has a sum. The other two follow from
 * it: what they lack after a kill is written again. A line of any file that is not as it was
 * written refuses the run by its number; --retry-failed takes such a line of the state for none,
 * and writes the other two again. One process at a time: all three are locked while the store is
 * open. Functions return 0, or an exit code after one line on stderr. One thread. */
#ifndef SPW_TOOLS_COMMAND_JOB_STORE_STORE_H
#define SPW_TOOLS_COMMAND_JOB_STORE_STORE_H

#include "tools/command/request/request.h"

#include <time.h>

struct job_store;

struct job_store_options {
    const char *output, *errors; /* borrowed; errors NULL: OUTPUT.errors */
    /* Borrowed: what every run of the job has in common. {"option": value}: a refusal names the
     * first one that differs. */
    const json_t *identity;
    const char *report; /* borrowed: what the run writes, no file of the job; or NULL */
    bool retry_failed;  /* items that had no answer are new */
};
int job_store_open(struct job_store **out, const struct job_store_options *o);
/* Brings the state to the drive, and then to the other files the lines that the state on the drive
 * has. Refuses files that another program has changed meanwhile. Call it from time to time. */
int job_store_flush(struct job_store *s);
/* Ends with everything on the drive. `code`: of the run; if the run has failed and has written no
 * line, the files that it made are removed. Returns the code, or that of a failure here. */
int job_store_close(struct job_store *s, int code);

/* Reads the files of a job that another process may be writing, for job_store_meet alone. An item
 * whose line is not in its file, or is damaged there, has not ended. Messages name damaged lines:
 * *is_damaged. */
int job_store_look(struct job_store **out, const char *output, bool *is_damaged);
const char *job_store_errors_path(const struct job_store *s);
/* How many items the job has, if they can be counted before it begins. job_store_expected: false:
 * not known. */
void job_store_expect(struct job_store *s, uint64_t n_items);
bool job_store_expected(const struct job_store *s, uint64_t *n_items);
const json_t *job_store_identity(const struct job_store *s);

/* The first start of the job. */
time_t job_store_started(const struct job_store *s);

enum job_standing {
    JOB_NEW,
    JOB_DONE,
    JOB_FAILED,    /* it has a line of errors */
    JOB_DUPLICATE, /* another item of this pass has its id, and it has no line of errors yet */
};
/* A pass over all items begins. */
void job_store_begin_pass(struct job_store *s);
/* What the state says of the item. Refuses an item that is done and has another digest now. A
 * failed item that has another digest is new. */
int job_store_meet(struct job_store *s, const struct request *x, enum job_standing *out);
/* Brings the files to what the state says. Call this before the first commit. */
int job_store_begin(struct job_store *s);

/* Writes the line of an item, and takes its reference; NULL means out of memory. */
int job_store_commit(struct job_store *s, const struct request *x, json_t *line);
int job_store_commit_error(struct job_store *s, const struct request *x, json_t *line);

/* A part of an answer: a later run takes its line, and does not compute the part again. Its id is
 * no answer's id. Of two lines of one id the later one counts. */
int job_store_commit_part(struct job_store *s, const struct request *x, json_t *line);
/* *line: the line of the part, owned by the caller; NULL: there is none with this digest. */
int job_store_part(struct job_store *s, const struct request *x, json_t **line);

/* Answers of an item that are under way, so that a later run continues them: the tokens that each
 * choice has beyond its n_kept, which grows. `machine`: the backend; others may give other bits. */
int job_store_keep_answers(struct job_store *s, struct request *x, const char *machine);
/* What an earlier run has kept of answer `choice`: tokens, and the hash of their logits. Tokens of
 * another machine are left out. */
struct job_kept {
    int32_t *tokens; /* owned by the caller; NULL: none */
    size_t n_tokens;
    uint64_t hash;
};
int job_store_answer(struct job_store *s, const struct request *x, size_t choice,
                     const char *machine, struct job_kept *out);

/* Writes the names of the files in the folder of `path` to the drive. */
int job_sync_folder(const char *path);

struct job_totals {
    uint64_t n_done, n_failed;
};
struct job_totals job_store_totals(const struct job_store *s);

#endif
