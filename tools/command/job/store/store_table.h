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

enum job_ended { JOB_NOT_ENDED, JOB_HAS_ANSWER, JOB_HAS_ERROR };

struct job_entry {
    struct job_key key; /* 0, 0: the place is empty */
    uint64_t digest;
    uint64_t part_end, part_bytes; /* the line of a part in its file; 0: there is none */
    uint32_t pass;                 /* the last pass that has met it; 0: none */
    enum job_ended ended;
    bool has_digest;
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
