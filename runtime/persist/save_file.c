/* The file that a session is saved to: see snapshot.h. */
#include "runtime/persist/snapshot.h"

#include "runtime/saved.h"

#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LOCK_TRIES = 10 };

/* Whether the name still belongs to this file. *gone: no file has the name. */
static bool is_named(const struct spw_save_file *f, bool *gone)
{
    struct stat st, named;
    *gone = lstat(f->path, &named) != 0 && errno == ENOENT;
    return !*gone && !fstat(f->fd, &st) && !lstat(f->path, &named) && spw_is_same_file(&st, &named);
}

bool spw_save_file_is_empty(const struct spw_save_file *f)
{
    struct stat st;
    return fstat(f->fd, &st) == 0 && !st.st_size;
}

bool spw_save_file_is_private(const struct spw_save_file *f)
{
    struct stat st;
    return fstat(f->fd, &st) == 0 && !(st.st_mode & 077);
}

void spw_save_file_release(struct spw_session *s)
{
    struct spw_save_file *f = s->file;
    bool gone;
    s->file = NULL;
    if (!f)
        return;
    if (f->fd >= 0 && f->made && is_named(f, &gone) && spw_save_file_is_empty(f))
        unlink(f->path); /* this session created the file, and saved nothing */
    if (f->fd >= 0)
        close(f->fd);
    spw_free(f->path);
    spw_free(f);
}

/* A save replaces only a saved session, which may be damaged. */
static int check_kind(const struct spw_save_file *f, struct spw_error *err)
{
    struct spw_saved *v = NULL;
    struct spw_error why = {0};
    if (spw_save_file_is_empty(f))
        return 0;
    int rc = spw_pack_has_magic(f->fd) ? spw_saved_open(&v, f->path, &why) : -EINVAL;
    spw_saved_close(v);
    if (rc == -ENOMEM)
        return spw_fail(err, rc, "%s", why.text);
    if (!rc || rc == -EBADMSG)
        return 0;
    return spw_fail(err, -EINVAL, "%s%s; expected a saved session or a name that is free",
                    *why.text ? why.text : f->path,
                    *why.text ? "" : ": found a file that is not a saved session");
}

/* Creates or opens the file. -EAGAIN: another process has created or removed it meanwhile. */
static int open_file(struct spw_save_file *f)
{
    const int flags = O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW;
    f->fd = open(f->path, flags | O_CREAT | O_EXCL, 0600);
    f->made = f->fd >= 0;
    if (f->fd < 0 && errno == EEXIST) {
        f->fd = open(f->path, flags);
        if (f->fd < 0 && errno == ENOENT)
            return -EAGAIN;
    }
    return f->fd < 0 ? -errno : 0;
}

/* Whether another session of the engine has reserved the file. */
static bool another_has(const struct spw_session *s, const struct stat *file)
{
    const struct spw_engine *e = s->engine;
    struct stat st;
    for (struct spw_session *x = NULL; (x = spw_engine_next(e, x));)
        if (x->file && x->file != s->file && fstat(x->file->fd, &st) == 0 &&
            spw_is_same_file(&st, file))
            return true;
    return false;
}

static int check_file(const struct spw_session *s, struct spw_error *err)
{
    const struct spw_save_file *f = s->file;
    struct stat st;
    if (fstat(f->fd, &st))
        return spw_fail(err, -errno, "%s: %s", f->path, strerror(errno));
    SPW_TRY(spw_check_replaceable(&st, f->path, err));
    if (flock(f->fd, LOCK_EX | LOCK_NB) == 0)
        return 0;
    if (errno != EWOULDBLOCK)
        return spw_fail(err, -errno, "%s: %s", f->path, strerror(errno));
    return spw_fail(err, -EBUSY, "%s: another %s saves to this file; give another name", f->path,
                    another_has(s, &st) ? "session of this engine" : "process or engine");
}

static int lock_file(struct spw_session *s, struct spw_error *err)
{
    struct spw_save_file *f = s->file;
    for (int i = 0; i < LOCK_TRIES; i++) {
        bool gone;
        int rc = open_file(f);
        if (rc == -EAGAIN)
            continue;
        struct stat st;
        if (rc == -ELOOP && !lstat(f->path, &st)) /* a symbolic link is refused */
            SPW_TRY(spw_check_replaceable(&st, f->path, err));
        if (rc)
            return spw_fail(err, rc, "%s: %s", f->path, strerror(-rc));
        rc = check_file(s, err);
        if (!rc && is_named(f, &gone))
            return check_kind(f, err);
        close(f->fd); /* refused, or another file got the name before the lock */
        f->fd = -1;
        SPW_TRY(rc);
    }
    return spw_fail(err, -EBUSY, "%s: other processes keep replacing this file", f->path);
}

int spw_session_save_to(struct spw_session *s, const char *path, struct spw_error *err)
{
    spw_error_clear(err);
    bool gone;
    if (s->file && strcmp(s->file->path, path) == 0 && (is_named(s->file, &gone) || gone))
        return 0;
    spw_save_file_release(s);
    s->file = spw_alloc_zero(1, sizeof *s->file);
    if (s->file) {
        s->file->fd = -1;
        s->file->path = spw_strdup(path);
    }
    int rc = s->file && s->file->path ? lock_file(s, err) : -ENOMEM;
    if (rc) {
        spw_save_file_release(s);
        return spw_fail(err, rc, "%s: %s", path, strerror(-rc));
    }
    return 0;
}
