/* Files that are kept: see kept_file.h. */
#include "base/kept_file.h"

#include "base/file.h"

#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int spw_kept_file_read(const char *path, size_t most, char **data, size_t *bytes,
                       struct spw_error *err)
{
    const int rc = spw_file_read(path, most, data, bytes, err);
    return rc ? spw_fail(err, rc, "%s: %s", path, strerror(-rc)) : 0;
}

/* ---- writing ---- */

/* Creates every missing folder of the path. */
static int make_folders(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        int rc = mkdir(path, 0700) == 0 || errno == EEXIST ? 0 : -errno;
        *slash = '/';
        SPW_TRY(rc);
    }
    return 0;
}

/* Writes everything under a temporary name, then renames the file. */
static int replace(const char *path, char *temporary, const void *data, size_t bytes)
{
    size_t n;
    SPW_TRY(make_folders(temporary));
    int fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0)
        return -errno;
    int rc = spw_write_at(fd, data, bytes, 0, &n);
    if (close(fd) != 0 && !rc)
        rc = -errno;
    if (!rc && rename(temporary, path) != 0)
        rc = -errno;
    if (rc)
        unlink(temporary);
    return rc;
}

/* Whether the file has this text at `at`. */
static bool has_at(int fd, const char *text, off_t at)
{
    char found[64];
    const size_t bytes = strlen(text);
    assert(bytes < sizeof found);
    return pread(fd, found, bytes, at) == (ssize_t)bytes && memcmp(found, text, bytes) == 0;
}

/* Whether the file begins or ends like a file of this kind. Damage elsewhere does not matter: the
 * file is replaced. */
static bool is_of_kind(int fd, const struct spw_kept_kind *k, off_t file_bytes)
{
    return has_at(fd, k->begin, 0) || has_at(fd, k->end, file_bytes - (off_t)strlen(k->end));
}

/* Whether the file has no byte but 0: what a power cut may leave of a new file. */
static bool is_blank(int fd)
{
    static const char zeros[4096];
    char piece[sizeof zeros];
    ssize_t n;
    off_t at = 0;
    while ((n = pread(fd, piece, sizeof piece, at)) > 0 && !memcmp(piece, zeros, (size_t)n))
        at += n;
    return n == 0;
}

/* Refuses to replace a file of another kind, a file of another user, and a link. */
static int check_replaceable(const char *path, const struct spw_kept_kind *kind,
                             struct spw_error *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW);
    if (fd < 0 && errno == ENOENT)
        return 0;
    bool is_link = fd < 0 && errno == ELOOP;
    if ((fd < 0 && !is_link) || (is_link ? lstat(path, &st) : fstat(fd, &st)))
        return spw_fail(err, -errno, "%s: cannot be written: %s", path, strerror(errno));
    int rc = spw_check_replaceable(&st, path, err);
    if (!rc && !is_of_kind(fd, kind, st.st_size) && !is_blank(fd))
        rc = spw_fail(err, -EINVAL,
                      "%s: found another kind of file, which is not replaced (remove it, or give "
                      "another name)",
                      path);
    if (fd >= 0)
        close(fd);
    return rc;
}

int spw_kept_file_write(const char *path, const struct spw_kept_kind *kind, const void *data,
                        size_t bytes, struct spw_error *err)
{
    SPW_TRY(check_replaceable(path, kind, err));
    const size_t name_bytes = strlen(path) + sizeof ".XXXXXX";
    char *temporary = spw_alloc(name_bytes);
    int rc = -ENOMEM;
    if (temporary) {
        snprintf(temporary, name_bytes, "%s.XXXXXX", path);
        rc = replace(path, temporary, data, bytes);
    }
    spw_free(temporary);
    return rc ? spw_fail(err, rc, "%s: cannot be written: %s", path, strerror(-rc)) : 0;
}
