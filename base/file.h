/* Opens and reads the files of a model folder. No file there can make the program wait: only
 * regular files are read, a FIFO or a device is refused.
 *
 * Errors: -ENOENT and -ENOTDIR have no text, because the caller knows the purpose of the file; all
 * other errors name the path. Any thread. */
#ifndef SPW_MODEL_SOURCE_FILE_H
#define SPW_MODEL_SOURCE_FILE_H

#include "base/base.h"

/* "FOLDER/NAME", owned by the caller (spw_free); NULL when out of memory. */
char *spw_file_join(const char *folder, const char *name);
/* Opens a regular file: returns its descriptor, which the caller closes, and its size; or
 * -errno. */
int spw_file_open(const char *path, uint64_t *bytes, struct spw_error *err);
/* Reads the whole file and appends a zero byte, which *bytes does not count. -EINVAL if the file
 * has more than `most` bytes. The caller owns *text (spw_free). */
int spw_file_read(const char *path, uint64_t most, char **text, size_t *bytes,
                  struct spw_error *err);

#endif
