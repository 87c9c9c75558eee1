/* Regular files, opened without waiting: see file.h. */
#include "base/file.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

char *spw_file_join(const char *folder, const char *name)
{
    size_t bytes = strlen(folder) + strlen(name) + 2;
    char *path = spw_alloc(bytes);
    if (path)
        snprintf(path, bytes, "%s/%s", folder, name);
    return path;
}

/* O_NONBLOCK: opening a FIFO returns at once instead of waiting for somebody who writes to it. */
int spw_file_open(const char *path, uint64_t *bytes, struct spw_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR))
        return -errno;
    if (fd < 0)
        return spw_fail(err, -errno, "%s: cannot be opened: %s", path, strerror(errno));
    struct stat info;
    int rc = 0;
    if (fstat(fd, &info) < 0)
        rc = spw_fail(err, -errno, "%s: cannot be examined: %s", path, strerror(errno));
    else if (!S_ISREG(info.st_mode))
        rc = spw_fail(err, -EINVAL, "%s: found %s, expected a regular file", path,
                      S_ISDIR(info.st_mode)    ? "a directory"
                      : S_ISFIFO(info.st_mode) ? "a FIFO"
                                               : "a device or a socket");
    if (rc) {
        close(fd);
        return rc;
    }
    *bytes = (uint64_t)info.st_size;
    return fd;
}

int spw_read_at(int fd, void *to, size_t bytes, uint64_t at, size_t *n)
{
    for (*n = 0; *n < bytes;) {
        const ssize_t got = pread(fd, (char *)to + *n, bytes - *n, (off_t)(at + *n));
        if (got == 0 || (got < 0 && errno != EINTR))
            return got ? -errno : 0;
        *n += got > 0 ? (size_t)got : 0;
    }
    return 0;
}

int spw_write_at(int fd, const void *from, size_t bytes, uint64_t at, size_t *n)
{
    for (*n = 0; *n < bytes;) {
        const ssize_t done = pwrite(fd, (const char *)from + *n, bytes - *n, (off_t)(at + *n));
        if (done == 0 || (done < 0 && errno != EINTR))
            return done ? -errno : -EIO;
        *n += done > 0 ? (size_t)done : 0;
    }
    return 0;
}

int spw_file_read(const char *path, uint64_t most, char **text, size_t *bytes,
                  struct spw_error *err)
{
    uint64_t size;
    *text = NULL;
    *bytes = 0;
    int fd = spw_file_open(path, &size, err);
    if (fd < 0)
        return fd;
    int rc = size > most ? spw_fail(err, -EINVAL, "%s: found %llu bytes, expected at most %llu",
                                    path, (unsigned long long)size, (unsigned long long)most)
                         : 0;
    if (!rc && !(*text = spw_alloc((size_t)size + 1)))
        rc = spw_fail(err, -ENOMEM, "%s: out of memory for %llu bytes", path,
                      (unsigned long long)size);
    const int failed = rc ? 0 : spw_read_at(fd, *text, (size_t)size, 0, bytes);
    close(fd);
    if (failed)
        rc = spw_fail(err, failed, "%s: cannot be read: %s", path, strerror(-failed));
    else if (!rc && *bytes < size)
        rc = spw_fail(err, -EIO, "%s: found %zu bytes, expected %llu; the file became shorter",
                      path, *bytes, (unsigned long long)size);
    if (rc) {
        spw_free(*text);
        *text = NULL;
        *bytes = 0;
        return rc;
    }
    (*text)[size] = 0;
    return 0;
}
