/* Bytes of files as text: see text.h. */
#include "tools/command/input/text.h"

#include "base/file.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utf8proc.h>
#include <xxhash.h>

/* ---- files ---- */

static int64_t mtime_of(const struct stat *st)
{
    return (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec;
}

static int fail(struct spw_error *err, const char *path, int code)
{
    return spw_fail(err, code, "%s: %s", path, strerror(-code));
}

/* A device is not opened: that alone may change its state. A name that becomes a pipe without a
 * writer meanwhile must not block. */
static int open_file(const char *path, int *fd, struct stat *st, struct spw_error *err)
{
    *fd = -1;
    int rc = stat(path, st);
    if (!rc && S_ISREG(st->st_mode)) {
        *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        rc = *fd < 0 ? -1 : fstat(*fd, st);
    }
    if (rc)
        return fail(err, path, -errno);
    if (S_ISREG(st->st_mode))
        return 0;
    return spw_fail(err, -EINVAL, "%s: found a %s, expected a file", path,
                    S_ISDIR(st->st_mode) ? "folder" : "device or a pipe");
}

/* Whether the file is still as it was when it was opened. */
static int check_same(int fd, const char *path, const struct stat *before, struct spw_error *err)
{
    struct stat after;
    if (fstat(fd, &after) != 0)
        return fail(err, path, -errno);
    if (after.st_size == before->st_size && mtime_of(&after) == mtime_of(before))
        return 0;
    return spw_fail(err, -EAGAIN, "%s: the file changed while it was read", path);
}

static int read_opened(int fd, const char *path, const struct stat *st, uint64_t most_bytes,
                       char **data, size_t *bytes, struct spw_error *err)
{
    uint64_t size = (uint64_t)st->st_size;
    char found[32], most[32];
    if (size > most_bytes)
        return spw_fail(err, -EFBIG, "%s: found %s, expected at most %s", path,
                        spw_bytes_text(found, size), spw_bytes_text(most, most_bytes));
    *data = spw_alloc(size + 1);
    if (!*data)
        return fail(err, path, -ENOMEM);
    int rc = spw_read_at(fd, *data, size, 0, bytes);
    if (rc)
        return fail(err, path, rc);
    (*data)[*bytes] = 0;
    return check_same(fd, path, st, err);
}

int cli_text_read(const char *path, uint64_t most_bytes, char **data, size_t *bytes,
                  struct cli_digest *digest, struct spw_error *err)
{
    int fd;
    struct stat st;
    *data = NULL;
    *bytes = 0;
    int rc = open_file(path, &fd, &st, err);
    if (!rc)
        rc = read_opened(fd, path, &st, most_bytes, data, bytes, err);
    if (fd >= 0)
        close(fd);
    if (rc) {
        spw_free(*data);
        *data = NULL;
        *bytes = 0;
    } else if (digest) {
        *digest = (struct cli_digest){XXH3_64bits(*data, *bytes), *bytes, mtime_of(&st)};
    }
    return rc;
}

static int digest_opened(int fd, const char *path, XXH3_state_t *state, char *buffer, size_t room,
                         struct cli_digest *out, struct spw_error *err)
{
    size_t n;
    XXH3_64bits_reset(state);
    out->bytes = 0;
    do {
        int rc = spw_read_at(fd, buffer, room, out->bytes, &n);
        if (rc)
            return fail(err, path, rc);
        XXH3_64bits_update(state, buffer, n);
        out->bytes += n;
    } while (n == room);
    out->hash = XXH3_64bits_digest(state);
    return 0;
}

int cli_digest_file(const char *path, struct cli_digest *digest, struct spw_error *err)
{
    enum { ROOM = 1 << 16 };
    int fd;
    struct stat st;
    *digest = (struct cli_digest){0};
    int rc = open_file(path, &fd, &st, err);
    char *buffer = spw_alloc(ROOM);
    XXH3_state_t *state = XXH3_createState();
    if (!rc && (!buffer || !state))
        rc = fail(err, path, -ENOMEM);
    if (!rc)
        rc = digest_opened(fd, path, state, buffer, ROOM, digest, err);
    if (!rc)
        rc = check_same(fd, path, &st, err);
    digest->mtime_ns = rc ? 0 : mtime_of(&st);
    XXH3_freeState(state);
    spw_free(buffer);
    if (fd >= 0)
        close(fd);
    return rc;
}

int cli_stat_file(const char *path, struct cli_digest *digest, struct spw_error *err)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return fail(err, path, -errno);
    digest->bytes = (uint64_t)st.st_size;
    digest->mtime_ns = mtime_of(&st);
    return 0;
}

/* ---- characters ---- */

static int check_utf8(const char *path, const char *data, size_t bytes, struct spw_error *err)
{
    for (size_t i = 0; i < bytes;) {
        int32_t c;
        ptrdiff_t n = utf8proc_iterate((const uint8_t *)data + i, (ptrdiff_t)(bytes - i), &c);
        if (n > 0 && c > 0) {
            i += (size_t)n;
            continue;
        }
        return spw_fail(err, -EILSEQ,
                        "%s: found byte 0x%02x at offset %zu, expected text; if it is text, "
                        "convert it to UTF-8, for example with iconv",
                        path, (unsigned char)data[i], i);
    }
    return 0;
}

/* Code unit `i` of UTF-16. */
static int32_t unit_at(const char *data, size_t i, bool big)
{
    const unsigned char *at = (const unsigned char *)data + 2 * i;
    return big ? at[0] << 8 | at[1] : at[1] << 8 | at[0];
}

/* `out` has room for 3 bytes for each unit. Returns the number of units that are text. */
static size_t utf16_to_utf8(const char *data, size_t n_units, bool big, char *out, size_t *bytes)
{
    size_t i = 0;
    while (i < n_units) {
        int32_t c = unit_at(data, i, big);
        int32_t low = i + 1 < n_units ? unit_at(data, i + 1, big) : 0;
        bool pair = c >= 0xd800 && c < 0xdc00 && low >= 0xdc00 && low < 0xe000;
        if (pair)
            c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
        if (c == 0 || (c >= 0xd800 && c < 0xe000))
            break;
        *bytes += (size_t)utf8proc_encode_char(c, (uint8_t *)out + *bytes);
        i += pair ? 2 : 1;
    }
    return i;
}

static int decode_utf16(const char *path, char **data, size_t *bytes, struct spw_error *err)
{
    size_t n_units = *bytes / 2, n = 0; /* with the mark */
    bool big = (unsigned char)**data == 0xfe;
    char *out = spw_alloc(3 * n_units + 1);
    if (!out)
        return fail(err, path, -ENOMEM);
    size_t good = utf16_to_utf8(*data + 2, n_units - 1, big, out, &n);
    if (good < n_units - 1 || *bytes % 2) {
        spw_free(out);
        return spw_fail(err, -EILSEQ,
                        "%s: found no character of UTF-16 at offset %zu, expected text; if it "
                        "is text, convert it to UTF-8, for example with iconv",
                        path, 2 + 2 * good);
    }
    out[n] = 0;
    spw_free(*data);
    *data = out;
    *bytes = n;
    return 0;
}

void cli_drop_mark(char *text, size_t *bytes)
{
    if (strncmp(text, "\xef\xbb\xbf", 3) != 0)
        return;
    *bytes -= 3;
    memmove(text, text + 3, *bytes + 1);
}

int cli_decode_text(const char *path, char **data, size_t *bytes, struct spw_error *err)
{
    if (*bytes >= 2 && (memcmp(*data, "\xff\xfe", 2) == 0 || memcmp(*data, "\xfe\xff", 2) == 0))
        return decode_utf16(path, data, bytes, err);
    SPW_TRY(check_utf8(path, *data, *bytes, err));
    cli_drop_mark(*data, bytes);
    return 0;
}

int cli_repair_text(char **data, size_t *bytes)
{
    static const char replacement[] = "\xef\xbf\xbd";
    if (check_utf8("", *data, *bytes, NULL) == 0)
        return 0;
    char *out = spw_alloc(3 * *bytes + 1);
    size_t n = 0;
    if (!out)
        return -ENOMEM;
    for (size_t i = 0; i < *bytes;) {
        int32_t c;
        ptrdiff_t good = utf8proc_iterate((const uint8_t *)*data + i, (ptrdiff_t)(*bytes - i), &c);
        size_t from = good > 0 ? (size_t)good : 1;
        bool keep = good > 0 && c > 0;
        memcpy(out + n, keep ? *data + i : replacement, keep ? from : 3);
        n += keep ? from : 3;
        i += from;
    }
    out[n] = 0;
    spw_free(*data);
    *data = out;
    *bytes = n;
    return 0;
}

bool cli_text_is_blank(const char *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)data[i] > ' ' && data[i] != 0x7f)
            return false;
    return true;
}
