/* The file that a session is saved to: see snapshot.h. */
#include "runtime/persist/snapshot.h"

#include "base/file.h"
#include "runtime/saved.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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
    s->file = NULL;
    if (!f)
        return;
    if (f->fd >= 0 && f->made && spw_file_is_named(f->fd, f->path) && spw_save_file_is_empty(f))
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

/* Whether another session of the engine has reserved the file. */
static bool another_has(const struct spw_session *s)
{
    const struct spw_engine *e = s->engine;
    for (struct spw_session *x = NULL; (x = spw_engine_next(e, x));)
        if (x->file && x->file != s->file && spw_file_is_named(x->file->fd, s->file->path))
            return true;
    return false;
}

static int open_file(struct spw_session *s, struct spw_error *err)
{
    struct spw_save_file *f = s->file;
    int rc = spw_file_open_locked(&f->fd, f->path, &f->made, err);
    if (rc == -EBUSY)
        return spw_fail(err, rc, "%s: another %s saves to this file; give another name", f->path,
                        another_has(s) ? "session of this engine" : "process or engine");
    return rc ? rc : check_kind(f, err);
}

int spw_session_save_to(struct spw_session *s, const char *path, struct spw_error *err)
{
    spw_error_clear(err);
    struct stat st;
    if (s->file && strcmp(s->file->path, path) == 0 &&
        (spw_file_is_named(s->file->fd, path) || (lstat(path, &st) && errno == ENOENT)))
        return 0;
    spw_save_file_release(s);
    s->file = spw_alloc_zero(1, sizeof *s->file);
    if (s->file) {
        s->file->fd = -1;
        s->file->path = spw_strdup(path);
    }
    int rc = s->file && s->file->path ? open_file(s, err) : -ENOMEM;
    if (rc) {
        spw_save_file_release(s);
        return spw_fail(err, rc, "%s: %s", path, strerror(-rc));
    }
    return 0;
}
