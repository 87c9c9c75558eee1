/* What the memory control groups of this process leave it: cgroup v1 and v2, the least of all
 * levels up the tree. Reads files only, keeps nothing; any thread. */
#ifndef SPW_RUNTIME_ENGINE_MEMORY_GROUP_H
#define SPW_RUNTIME_ENGINE_MEMORY_GROUP_H

#include "base/base.h"

/* One level of the tree, the one that leaves the least. UINT64_MAX: no level has a limit. */
struct spw_memory_limit {
    uint64_t left_bytes;  /* that this process may still take; pages of files count as free */
    uint64_t limit_bytes; /* of the group; used_bytes: what it has now, without pages of files; */
    uint64_t used_bytes;
    char group[256]; /* its path below the mount, "/" for the mount itself */
};

struct spw_memory_group {
    struct spw_memory_limit hard; /* memory.max, memory.limit_in_bytes: who passes it is killed */
    struct spw_memory_limit soft; /* the least of that and memory.high: who passes it is slowed */
};

/* `root` is put before every path: "" for this machine, a test's folder for a made-up one. Files
 * that are not there, or not as expected, are no limit. */
void spw_memory_group_read(struct spw_memory_group *out, const char *root);

#endif
