/* Regular files, opened without waiting: see file.h. */
#include "base/file.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
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

bool spw_file_is_named(int fd, const char *path)
{
    struct stat st, named;
    return !fstat(fd, &st) && !lstat(path, &named) && spw_is_same_file(&st, &named);
}

/* -EAGAIN: another process has made or removed it meanwhile. */
static int open_or_make(const char *path, bool *made, struct spw_error *err)
{
    const int flags = O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW;
    struct stat st;
    int fd = open(path, flags | O_CREAT | O_EXCL, 0600);
    *made = fd >= 0;
    if (fd < 0 && errno == EEXIST) {
        fd = open(path, flags);
        if (fd < 0 && errno == ENOENT)
            return -EAGAIN;
    }
    if (fd >= 0)
        return fd;
    const int rc = -errno;
    if (rc == -ELOOP && !lstat(path, &st))
        SPW_TRY(spw_check_replaceable(&st, path, err));
    return spw_fail(err, rc, "%s: %s", path, strerror(-rc));
}

/* -EAGAIN: another file got the name before the lock. */
static int check_and_lock(int fd, const char *path, struct spw_error *err)
{
    struct stat st;
    if (fstat(fd, &st))
        return spw_fail(err, -errno, "%s: %s", path, strerror(errno));
    SPW_TRY(spw_check_replaceable(&st, path, err));
    if (flock(fd, LOCK_EX | LOCK_NB) == 0)
        return spw_file_is_named(fd, path) ? 0 : -EAGAIN;
    return errno == EWOULDBLOCK ? -EBUSY : spw_fail(err, -errno, "%s: %s", path, strerror(errno));
}

int spw_file_open_locked(int *fd, const char *path, bool *made, struct spw_error *err)
{
    enum { TRIES = 10 };
    int rc = -EAGAIN;
    *fd = -1;
    for (int i = 0; i < TRIES && rc == -EAGAIN; i++) {
        const int opened = open_or_make(path, made, err);
        rc = opened < 0 ? opened : check_and_lock(opened, path, err);
        if (!rc)
            *fd = opened;
        else if (opened >= 0)
            close(opened);
    }
    *made &= !rc; /* else it is another process's by now */
    return rc == -EAGAIN
               ? spw_fail(err, -EBUSY, "%s: other processes keep replacing this file", path)
               : rc;
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
