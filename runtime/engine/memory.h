/* How much memory this process may still take: what the system and its control group leave, and
 * what is free on a disk. */
#ifndef SPW_RUNTIME_ENGINE_MEMORY_H
#define SPW_RUNTIME_ENGINE_MEMORY_H

#include "runtime/engine/memory_group.h"

/* Bytes; 1 GiB when nothing can be found out. Of the system alone, and the least of that and what
 * control groups leave. */
uint64_t spw_memory_of_system(void);
uint64_t spw_memory_available(void);
/* The control groups of this process now. */
void spw_memory_group(struct spw_memory_group *out);
/* -ENOMEM where the control groups leave less than `bytes`, which measuring `what` takes. */
int spw_memory_to_measure(const char *what, uint64_t bytes, struct spw_error *err);
/* For tests: spw_memory_group reads below this folder from now on (borrowed). "" is the system. */
void spw_memory_group_root(const char *root);
/* Bytes free for this user on the filesystem of a directory that files can be made in. -ENOENT,
 * -ENOTDIR, -EACCES, -EROFS, ...: the text names the directory and what would do. */
int spw_memory_on_disk(uint64_t *bytes, const char *dir, struct spw_error *err);

#endif
