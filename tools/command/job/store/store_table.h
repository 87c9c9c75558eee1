/* What a job knows of its items: a hash table by the hash of an item's key, for store.c. Not
 * thread-safe. */
#ifndef SPW_TOOLS_COMMAND_JOB_STORE_STORE_TABLE_H
#define SPW_TOOLS_COMMAND_JOB_STORE_STORE_TABLE_H

#include "base/base.h"

/* The key of an item is the JSON text of its id; of a line without an id, "#" and its number. Two
 * keys with one XXH3-128 do not occur. */
struct job_key {
    uint64_t low, high;
};

enum job_ended { JOB_NOT_ENDED, JOB_HAS_ANSWER, JOB_HAS_ERROR, JOB_IS_PART };

struct job_under_way; /* store_parts.h */

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

#endif
