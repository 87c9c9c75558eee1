/* Regular files: opened without waiting (a FIFO or a device is refused), locked, read as a whole,
 * and parts that are read or written in as many calls as it takes.
 *
 * Errors of opening: -ENOENT and -ENOTDIR have no text, because the caller knows the purpose of the
 * file; all other errors name the path. Any thread. */
#ifndef SPW_BASE_FILE_H
#define SPW_BASE_FILE_H

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

/* Opens a regular file of this user to read and write it, or makes it with mode 0600, and locks it:
 * one process at a time. Follows no link. *made: this call has made the file. 0: *fd is the
 * caller's; -EBUSY, without a text: another process has the lock; other errors name the path. */
int spw_file_open_locked(int *fd, const char *path, bool *made, struct spw_error *err);
/* Whether the open file still has this name. */
bool spw_file_is_named(int fd, const char *path);

/* Reads `bytes` from `at` on; *n: how many the file has there. 0 or -errno. */
int spw_read_at(int fd, void *to, size_t bytes, uint64_t at, size_t *n);
/* Writes `bytes` from `at` on; *n: how many are written, also after a failure. 0 or -errno. */
int spw_write_at(int fd, const void *from, size_t bytes, uint64_t at, size_t *n);

#endif
