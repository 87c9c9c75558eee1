/* See store_parts.h. */
#include "tools/command/job/store/store_parts.h"

#include "base/file.h"

#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static int open_or_make(const char *path, bool *is_new)
{
    const int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    int fd = open(path, flags | O_CREAT | O_EXCL, 0600);
    *is_new = fd >= 0;
    return fd >= 0 || errno != EEXIST ? fd : open(path, flags);
}

/* A process whose run was refused may have removed the file while this one opened it. */
static int lock(struct job_log *l, struct spw_error *err)
{
    const bool is_locked = flock(l->fd, LOCK_EX | LOCK_NB) == 0;
    const int why = is_locked ? EWOULDBLOCK : errno;
    if (is_locked && !job_log_check(l, 0, true))
        return 0;
    l->is_new = false; /* it is the other process's by now */
    if (why != EWOULDBLOCK)
        return spw_fail(err, -why, "%s: %s", l->path, strerror(why));
    return spw_fail(err, -EBUSY, "%s: another process writes this file; wait until it has ended",
                    l->path);
}

int job_log_open(struct job_log *l, const char *path, struct spw_error *err)
{
    struct stat st;
    *l = (struct job_log){0};
    l->fd = open_or_make(path, &l->is_new);
    int rc = l->fd < 0 || fstat(l->fd, &st) ? -errno : 0;
    if (rc == -ELOOP)
        return spw_fail(err, -EINVAL, "%s: is a symbolic link; give the name of the file", path);
    if (!rc)
        rc = spw_check_replaceable(&st, path, err);
    if (!rc && !(l->path = spw_strdup(path)))
        rc = -ENOMEM;
    if (rc) {
        job_log_close(l);
        return spw_fail(err, rc, "%s: %s", path, strerror(-rc));
    }
    l->end = (uint64_t)st.st_size;
    return lock(l, err);
}

void job_log_close(struct job_log *l)
{
    if (l->fd >= 0)
        close(l->fd);
    spw_free(l->path);
    *l = (struct job_log){.fd = -1};
}

int job_log_check(const struct job_log *l, uint64_t end, bool grows)
{
    struct stat is, named;
    if (fstat(l->fd, &is))
        return -errno;
    const uint64_t size = (uint64_t)is.st_size;
    const bool is_named = stat(l->path, &named) == 0 && spw_is_same_file(&is, &named);
    return is_named && (grows ? size >= end : size == end) ? 0 : -ESTALE;
}

int job_log_cut(struct job_log *l, uint64_t end)
{
    struct stat st;
    if (fstat(l->fd, &st) || ((uint64_t)st.st_size > end && ftruncate(l->fd, (off_t)end)))
        return -errno;
    l->end = end;
    return 0;
}

int job_log_append(struct job_log *l, const char *text, size_t bytes)
{
    size_t n;
    const int rc = spw_write_at(l->fd, text, bytes, l->end, &n);
    if (rc) {
        /* If this fails, too, the next run cuts the line off. */
        int ignored = ftruncate(l->fd, (off_t)l->end);
        (void)ignored;
        return rc;
    }
    l->end += bytes;
    return 0;
}
