/* See store_parts.h. */
#include "tools/command/job/store/store_parts.h"

#include "base/file.h"

#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

int job_log_open(struct job_log *l, const char *path, struct spw_error *err)
{
    struct stat st;
    *l = (struct job_log){.fd = -1};
    int rc = spw_file_open_locked(&l->fd, path, &l->is_new, err);
    if (rc == -EBUSY)
        return spw_fail(err, rc, "%s: another process writes this file; wait until it has ended",
                        path);
    SPW_TRY(rc);
    l->path = spw_strdup(path);
    rc = !l->path ? -ENOMEM : fstat(l->fd, &st) ? -errno : 0;
    if (rc) {
        job_log_close(l);
        return spw_fail(err, rc, "%s: %s", path, strerror(-rc));
    }
    l->end = (uint64_t)st.st_size;
    return 0;
}

void job_log_close(struct job_log *l)
{
    if (l->fd >= 0)
        close(l->fd);
    spw_free(l->path);
    *l = (struct job_log){.fd = -1};
}

int job_log_check(const struct job_log *l, uint64_t end)
{
    struct stat st;
    if (fstat(l->fd, &st))
        return -errno;
    const uint64_t size = (uint64_t)st.st_size;
    return spw_file_is_named(l->fd, l->path) && size == end ? 0 : -ESTALE;
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
