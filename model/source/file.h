/* The files of a model folder, opened and read so that nothing which lies there can make the
 * program wait: a FIFO or a device is refused, only regular files are read.
 *
 * Errors: -ENOENT and -ENOTDIR come without a text, because the caller knows what the file was for;
 * all others name the path. Any thread. */
#ifndef SPW_MODEL_SOURCE_FILE_H
#define SPW_MODEL_SOURCE_FILE_H

#include "base/base.h"

/* "FOLDER/NAME", owned by the caller (spw_free); NULL when out of memory. */
char *spw_file_join(const char *folder, const char *name);
/* A descriptor of a regular file, and the file's size; or -errno. The caller closes it. */
int spw_file_open(const char *path, uint64_t *bytes, struct spw_error *err);
/* The whole file, with a zero byte behind it that *bytes does not count. -EINVAL for a file of more
 * than `most` bytes. *text is owned by the caller (spw_free). */
int spw_file_read(const char *path, uint64_t most, char **text, size_t *bytes,
                  struct spw_error *err);

#endif
