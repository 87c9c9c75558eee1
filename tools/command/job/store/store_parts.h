/* What the files of the store share: store_read.c, store_open.c, store.c. Functions that return an
 * int return 0, or an exit code after one line on stderr. */
#ifndef SPW_TOOLS_COMMAND_JOB_STORE_STORE_PARTS_H
#define SPW_TOOLS_COMMAND_JOB_STORE_STORE_PARTS_H

#include "tools/command/job/store/lines.h"
#include "tools/command/job/store/log.h"
#include "tools/command/job/store/store.h"
#include "tools/command/job/store/store_table.h"

/* In the order in which they are synced. */
enum { JOB_STATE, JOB_PARTS, JOB_OUTPUT, JOB_ERRORS, JOB_N_LOGS };
enum { JOB_STATE_VERSION = 2, JOB_KEY_BYTES = 33 };

struct job_store {
    struct job_log logs[JOB_N_LOGS]; /* JOB_PARTS is open if the job has parts */
    struct job_log *in_order[JOB_N_LOGS];
    size_t n_open;
    struct job_syncer syncer;
    bool syncs;
    struct job_table table;
    json_t *answers; /* owned: answers under way, by the text of the item's key */
    json_t *identity;
    json_t *head; /* owned: the first line of the state, as it was read; NULL: there was none */
    char *input;  /* owned; NULL: not known */
    char *errors; /* owned: the file of errors that the job was begun with; NULL: OUTPUT.errors */
    bool is_counted;     /* n_expected is known */
    uint64_t n_expected; /* items */
    time_t started;
    uint32_t pass;
    bool has_new; /* a pass has met an item that has not ended */
    struct job_totals totals;
    bool has_lines; /* this run has written a line of an item */
    bool forgets;   /* errors of items that are new again are still in their file */
};

int job_store_no_memory(const struct job_store *s);

/* ---- keys ---- */

struct job_key job_key_of_number(uint64_t number);
int job_key_of(const struct request *x, struct job_key *out);
const char *job_key_text(char buffer[JOB_KEY_BYTES], struct job_key key);
bool job_key_parse(const char *text, struct job_key *out);
/* The item that a line of results or of errors belongs to. */
int job_key_of_line(const struct job_store *s, const char *path, const struct job_line *line,
                    struct job_key *out);

/* ---- lines ---- */

/* A line of the state or of the parts, owned by the caller: the last key of the object is the sum
 * of the text before it. NULL: out of memory. */
char *job_line_seal(const json_t *value);
/* Whether the line of such a file, without its newline, is as it was written. */
bool job_line_has_sum(const char *text, size_t bytes);

/* Calls `take` for each complete line of a file. */
int job_store_read(struct job_store *s, const char *path,
                   int (*take)(struct job_store *s, const char *path, const struct job_line *line));
int job_store_take_answer(struct job_store *s, const char *path, const struct job_line *line);
int job_store_take_error(struct job_store *s, const char *path, const struct job_line *line);
int job_store_take_part(struct job_store *s, const char *path, const struct job_line *line);
int job_store_take_state(struct job_store *s, const char *path, const struct job_line *line);
/* The item is new again. */
void job_store_forget_error(struct job_store *s, struct job_entry *e);
/* A value as a user would write it. */
const char *job_value_text(char buffer[128], const json_t *value);

/* ---- files ---- */

int job_store_open_log(struct job_log *l, const char *path);
/* Only one process at a time has the file open. */
int job_store_open_locked(struct job_log *l, const char *path);

#endif
