/* Regular files, opened without waiting: see file.h. */
#include "model/source/file.h"

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

static int read_all(int fd, const char *path, char *text, size_t bytes, struct spw_error *err)
{
    for (size_t at = 0; at < bytes;) {
        ssize_t n = read(fd, text + at, bytes - at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return spw_fail(err, -errno, "%s: cannot be read: %s", path, strerror(errno));
        if (n == 0)
            return spw_fail(err, -EIO, "%s: found %zu bytes, expected %zu; the file became shorter",
                            path, at, bytes);
        at += (size_t)n;
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
    if (!rc)
        rc = read_all(fd, path, *text, (size_t)size, err);
    close(fd);
    if (rc) {
        spw_free(*text);
        *text = NULL;
        return rc;
    }
    (*text)[size] = 0;
    *bytes = (size_t)size;
    return 0;
}
