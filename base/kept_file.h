/* Small files that a program keeps for its next run. A file is replaced as a whole: it is written
 * under another name and renamed, so a reader sees the old or the new file. If two processes write,
 * the last one wins. Any thread. */
#ifndef SPW_BASE_KEPT_FILE_H
#define SPW_BASE_KEPT_FILE_H

#include "base/base.h"

/* Reads the whole file into *data, which the caller frees. -ENOENT: no file; -EINVAL: it is no
 * regular file of at most `most` bytes; -ENOMEM; or an error of the system. */
int spw_kept_file_read(const char *path, size_t most, char **data, size_t *bytes,
                       struct spw_error *err);
/* Creates missing folders (mode 0700). `begin`: how all files of this kind begin. -EINVAL: the name
 * belongs to a file of another kind, a file of another user, or a link. -ENOMEM, or an error of the
 * system. */
int spw_kept_file_write(const char *path, const char *begin, size_t begin_bytes, const void *data,
                        size_t bytes, struct spw_error *err);

#endif
