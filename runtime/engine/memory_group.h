/* What the memory control groups (cgroup v1 and v2) leave to this process: the least over all
 * levels of the tree. Reads files only, keeps no state; any thread. */
#ifndef SPW_RUNTIME_ENGINE_MEMORY_GROUP_H
#define SPW_RUNTIME_ENGINE_MEMORY_GROUP_H

#include "base/base.h"

/* The level of the tree that leaves the least. UINT64_MAX: no level has a limit. */
struct spw_memory_limit {
    uint64_t left_bytes;  /* that this process can still allocate; pages of files count as free */
    uint64_t limit_bytes; /* of the group; used_bytes: in use now, without pages of files */
    uint64_t used_bytes;
    char group[256]; /* its path below the mount, "/" for the mount itself */
};

struct spw_memory_group {
    struct spw_memory_limit
        hard; /* memory.max, memory.limit_in_bytes: the system kills a process beyond it */
    struct spw_memory_limit
        soft; /* the least of that and memory.high: the system slows a process beyond it */
};

/* `root` is put before every path: "" for this machine, a folder for a test. Missing and
 * unexpected files count as no limit. */
void spw_memory_group_read(struct spw_memory_group *out, const char *root);

#endif
