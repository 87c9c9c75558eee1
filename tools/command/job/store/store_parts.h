/* What the files of the store share: store.c (items), store_open.c (opening and closing),
 * store_read.c (records of the state), store_follow.c (the files that follow from the state).
 * Functions that return an int return 0, or an exit code after one line on stderr. */
#ifndef SPW_TOOLS_COMMAND_JOB_STORE_STORE_PARTS_H
#define SPW_TOOLS_COMMAND_JOB_STORE_STORE_PARTS_H

#include "tools/command/job/store/lines.h"
#include "tools/command/job/store/store.h"

/* ---- a file of lines: log.c ----
 *
 * A line is committed by its newline. If the process dies within a line, the next one cuts the line
 * off. A line that cannot be written whole (a full disk) is taken back. Functions return 0 or
 * -errno. */

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
/* -ESTALE: another program has deleted or replaced the file, or it does not end at `end` any more.
 */
int job_log_check(const struct job_log *l, uint64_t end);

/* ---- what a job knows of its items, by the hash of an item's key: store_table.c ---- */

/* The key of an item is the JSON text of its id; of a line without an id, "#" and its number. Two
 * keys with one XXH3-128 do not occur. */
struct job_key {
    uint64_t low, high;
};

enum job_ended { JOB_NOT_ENDED, JOB_HAS_ANSWER, JOB_HAS_ERROR, JOB_IS_PART };

struct job_entry {
    struct job_key key; /* 0, 0: the place is empty */
    uint64_t digest;    /* if it has ended, as what follows */
    uint64_t at, bytes; /* its record in the state, without the newline */
    uint32_t pass;      /* the last pass that has met it; 0: none */
    enum job_ended ended;
    bool is_retried; /* its error does not count any more, which the state does not say yet */
    struct job_under_way *under_way; /* owned by the store; NULL: nothing was kept */
};

struct job_table {
    struct job_entry *entries; /* owned, [n_places], a power of two */
    size_t n_places, n;
};
void job_table_free(struct job_table *t);
/* NULL: there is none. */
struct job_entry *job_table_find(const struct job_table *t, struct job_key key);
/* The entry of the key, new or not; valid until the next new one. NULL: out of memory. */
struct job_entry *job_table_add(struct job_table *t, struct job_key key);

/* ---- the store ---- */

enum { JOB_STATE_VERSION = 3 };
enum { JOB_OUTPUT, JOB_ERRORS, JOB_N_OUTS };

struct job_store {
    struct job_log state, outs[JOB_N_OUTS];
    struct spw_text texts[JOB_N_OUTS]; /* lines that are not in the files yet */
    bool has_begun;                    /* commits are allowed */
    bool is_dirty;                     /* the state has grown since the last flush */
    struct job_table table;
    json_t *identity;    /* owned */
    json_t *head;        /* owned: the latest one in the state; NULL: there is none */
    char *errors;        /* owned: the file of errors, if it is not OUTPUT.errors */
    bool is_counted;     /* n_expected is known */
    uint64_t n_expected; /* items */
    time_t started;
    uint32_t pass;
    struct job_totals totals;
    bool has_lines; /* this run has written a line of an item */
    bool mends;     /* --retry-failed: damaged lines are dropped */
    bool is_damaged;
    bool has_failed; /* a file could not be written: nothing follows */
};

int job_store_no_memory(const struct job_store *s);
/* Fails with the text of an error number of a file. */
int job_store_fail(const char *path, int rc);

/* ---- records of the state ----
 *
 * SUM KIND KEY DIGEST TEXT: the sum of all that follows it, six letters, the item, what it was made
 * of. The text is the line that OUTPUT or the file of errors gets, or JSON of our own. */

enum job_kind { JOB_HEAD, JOB_ANSWER, JOB_ERROR, JOB_PART, JOB_KEPT, JOB_RETRY, JOB_N_KINDS };
enum { JOB_RECORD_HEAD = 74 }; /* bytes before the text */

struct job_record {
    enum job_kind kind;
    struct job_key key;
    uint64_t digest;
    const char *text; /* borrowed */
    size_t bytes;
};
/* False: the line is no record, or it is not as it was written. */
bool job_record_parse(struct job_record *out, const char *line, size_t bytes);
/* The first line of the state, as far as it was written before a kill. */
bool job_record_begins(const char *line, size_t bytes);
/* The line of a record with its newline, owned by the caller. NULL: out of memory. */
char *job_record_line(const struct job_record *r, size_t *bytes);

/* Reads the state from a line on. `take` gets each whole record; the last line may be torn: the
 * state ends before it. */
int job_store_read(struct job_store *s, uint64_t offset, uint64_t number,
                   int (*take)(struct job_store *s, const struct job_line *line,
                               const struct job_record *r, void *context),
                   void *context);
/* The first reading: fills the table. */
int job_store_load(struct job_store *s);
json_t *job_store_head(const struct job_store *s);

/* ---- items ---- */

struct job_under_way { /* of one digest, of one machine */
    uint64_t digest;
    char *machine;            /* owned */
    struct job_kept *choices; /* owned, [n] */
    size_t n;
};
void job_under_way_free(struct job_entry *e);

struct job_key job_key_of_number(uint64_t number);
int job_key_of(const struct request *x, struct job_key *out);
/* The item has ended so, or is new again; the totals follow. */
void job_store_end(struct job_store *s, struct job_entry *e, enum job_ended ended);
/* Before the first commit: an item that has an error is new again. `e` may be NULL. */
void job_store_retry(struct job_store *s, struct job_entry *e);
/* A value as a user would write it. */
const char *job_value_text(char buffer[128], const json_t *value);

/* ---- files that follow ---- */

struct job_out {
    struct job_log *log;
    uint64_t size, at;     /* of the file; what was compared */
    uint64_t line;         /* the last one that was compared */
    uint64_t damaged;      /* the first line that is not one of the job; 0: none */
    bool departs;          /* something differs from `good` on: */
    uint64_t good;         /* bytes that stay */
    uint64_t rest, number; /* the first record that the file lacks: its place in the state */
};

struct job_follow {
    struct job_out outs[JOB_N_OUTS];
    char *text; /* owned, [capacity]: of a file */
    size_t capacity;
    bool forgets; /* items whose line is not there */
};

/* Compares OUTPUT and the file of errors with the state. `mends`: a damaged line is refused, but
 * for
 * --retry-failed. Else the line is named, and an item whose line is not there has not ended. */
int job_store_compare(struct job_store *s, struct job_follow *f, bool mends);
/* Writes what the files lack. */
int job_store_mend(struct job_store *s, struct job_follow *f);

#endif
