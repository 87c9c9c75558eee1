/* How much memory this process may still take: what the system and its control group leave, and
 * what is free on a disk. */
#ifndef SPW_RUNTIME_MEMORY_H
#define SPW_RUNTIME_MEMORY_H

#include "runtime/base.h"

/* Bytes; 1 GiB when nothing can be found out. */
uint64_t spw_memory_available(void);
/* Bytes free for this user on the filesystem of a directory that files can be made in. -ENOENT,
 * -ENOTDIR, -EACCES, -EROFS, ...: the text names the directory and what would do. */
int spw_memory_on_disk(uint64_t *bytes, const char *dir, struct spw_error *err);

#endif
