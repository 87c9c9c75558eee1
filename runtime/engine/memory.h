/* How much memory this process can still allocate: what the system and its control group leave,
 * and the free space of a disk. */
#ifndef SPW_RUNTIME_ENGINE_MEMORY_H
#define SPW_RUNTIME_ENGINE_MEMORY_H

#include "base/base.h"

/* ---- what the memory control groups (cgroup v1 and v2) leave: the least over all levels of the
 * tree ---- */

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

/* `root` is put before every path: "" for this machine, a folder for a test.
 * Missing and unexpected files count as no limit. */
void spw_memory_group_read(struct spw_memory_group *out, const char *root);

/* ---- memory that is free ---- */

/* Bytes of the system alone; and the least of that and what the control groups leave. 1 GiB if
 * the system does not say. */
uint64_t spw_memory_of_system(void);
uint64_t spw_memory_available(void);
/* The control groups of this process now. */
void spw_memory_group(struct spw_memory_group *out);
/* -ENOMEM: the control groups leave less than `bytes`, which measuring `what` takes. */
int spw_memory_to_measure(const char *what, uint64_t bytes, struct spw_error *err);
/* For tests: spw_memory_group reads below this folder from now on (borrowed). "": the real
 * system. */
void spw_memory_group_root(const char *root);
/* Bytes that this user can write to the filesystem of a directory. -ENOENT, -ENOTDIR, -EACCES,
 * -EROFS, ...: the text names the directory and says what to do. */
int spw_memory_on_disk(uint64_t *bytes, const char *dir, struct spw_error *err);

#endif
