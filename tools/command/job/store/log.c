/* See log.h. */
#include "tools/command/job/store/log.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static int open_or_make(const char *path, bool *is_new)
{
    const int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    int fd = open(path, flags | O_CREAT | O_EXCL, 0600);
    *is_new = fd >= 0;
    return fd >= 0 || errno != EEXIST ? fd : open(path, flags);
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
    return 0;
}

void job_log_close(struct job_log *l)
{
    if (l->fd >= 0)
        close(l->fd);
    spw_free(l->path);
    *l = (struct job_log){.fd = -1};
}

int job_log_cut_torn_line(struct job_log *l)
{
    char part[4096];
    uint64_t end = l->end;
    while (end > 0) {
        size_t bytes = (size_t)spw_min_u64(end, sizeof part);
        ssize_t n = pread(l->fd, part, bytes, (off_t)(end - bytes));
        if (n != (ssize_t)bytes)
            return n < 0 ? -errno : -EIO;
        const char *newline = memrchr(part, '\n', bytes);
        if (newline) {
            end -= bytes - (size_t)(newline + 1 - part);
            break;
        }
        end -= bytes;
    }
    if (end < l->end && ftruncate(l->fd, (off_t)end))
        return -errno;
    l->end = end;
    return 0;
}

/* All of it, or nothing. */
static int write_all(struct job_log *l, struct iovec *parts, int n)
{
    off_t at = (off_t)l->end;
    while (n > 0) {
        ssize_t written = pwritev(l->fd, parts, n, at);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return written < 0 ? -errno : -EIO;
        at += written;
        for (; n > 0 && (size_t)written >= parts->iov_len; parts++, n--)
            written -= (ssize_t)parts->iov_len;
        if (n > 0) {
            parts->iov_base = (char *)parts->iov_base + written;
            parts->iov_len -= (size_t)written;
        }
    }
    return 0;
}

int job_log_append(struct job_log *l, const char *text, size_t bytes)
{
    char newline[] = "\n";
    /* pwritev only reads from the parts. */
    struct iovec parts[] = {{(void *)(uintptr_t)text, bytes}, {newline, 1}};
    int rc = write_all(l, parts, 2);
    if (rc) {
        /* If this fails, too, the next run cuts the line off. */
        int ignored = ftruncate(l->fd, (off_t)l->end);
        (void)ignored;
        return rc;
    }
    l->end += bytes + 1;
    return 0;
}

/* ---- syncing ---- */

enum { SYNC_AFTER_NS = 500000000, SECOND_NS = 1000000000 };

/* Waits for half a second, or until the job ends. Called with the lock. */
static void wait_for_more(struct job_syncer *s)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += SYNC_AFTER_NS;
    if (until.tv_nsec >= SECOND_NS) {
        until.tv_sec++;
        until.tv_nsec -= SECOND_NS;
    }
    while (!s->ends && pthread_cond_timedwait(&s->changed, &s->lock, &until) != ETIMEDOUT)
        ;
}

static void *sync_lines(void *context)
{
    struct job_syncer *s = context;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!s->is_dirty && !s->ends)
            pthread_cond_wait(&s->changed, &s->lock);
        if (!s->is_dirty)
            break;
        wait_for_more(s);
        s->is_dirty = false;
        pthread_mutex_unlock(&s->lock);
        int rc = 0;
        for (size_t i = 0; i < s->n && !rc; i++)
            rc = fdatasync(s->logs[i]->fd) ? -errno : 0;
        pthread_mutex_lock(&s->lock);
        s->rc = s->rc ? s->rc : rc;
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

int job_syncer_start(struct job_syncer *s, struct job_log *const *logs, size_t n)
{
    pthread_condattr_t monotonic;
    sigset_t all, before;
    *s = (struct job_syncer){.logs = logs, .n = n, .lock = PTHREAD_MUTEX_INITIALIZER};
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&s->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    sigfillset(&all); /* signals belong to the other threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&s->thread, NULL, sync_lines, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc)
        pthread_cond_destroy(&s->changed);
    return -rc;
}

static int change(struct job_syncer *s, bool is_dirty, bool ends)
{
    pthread_mutex_lock(&s->lock);
    s->is_dirty |= is_dirty;
    s->ends |= ends;
    pthread_cond_signal(&s->changed);
    int rc = s->rc;
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int job_syncer_note(struct job_syncer *s)
{
    return change(s, true, false);
}

int job_syncer_end(struct job_syncer *s)
{
    change(s, false, true);
    pthread_join(s->thread, NULL);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    return s->rc;
}
