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
/* How all files of a kind begin and end, at most 63 bytes each. A damaged file of the kind may have
 * lost one of them. */
struct spw_kept_kind {
    const char *begin, *end;
};
/* Creates missing folders (mode 0700). -EINVAL: the name belongs to a file of another kind, a file
 * of another user, or a link. -ENOMEM, or an error of the system. */
int spw_kept_file_write(const char *path, const struct spw_kept_kind *kind, const void *data,
                        size_t bytes, struct spw_error *err);

#endif
