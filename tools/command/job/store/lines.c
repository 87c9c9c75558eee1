/* See lines.h. */
#include "tools/command/job/store/lines.h"

#include "base/grow.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LEAST_READ = 1 << 16 };

int job_lines_open(struct job_lines *l, const char *path)
{
    *l = (struct job_lines){.fd = STDIN_FILENO, .wait_ms = -1, .most = JOB_MAX_LINE_BYTES};
    struct stat s;
    if (strcmp(path, "-") != 0)
        l->fd = open(path, O_RDONLY | O_CLOEXEC);
    const int rc = l->fd < 0 || fstat(l->fd, &s) ? -errno : S_ISDIR(s.st_mode) ? -EISDIR : 0;
    if (rc)
        job_lines_close(l);
    return rc;
}

void job_lines_close(struct job_lines *l)
{
    if (l->fd > STDIN_FILENO)
        close(l->fd);
    spw_free(l->buffer);
    *l = (struct job_lines){.fd = -1};
}

bool job_line_is_blank(const struct job_line *line)
{
    return strspn(line->text, " \t\r") == line->bytes;
}

void job_lines_folder(char folder[4096], const char *path)
{
    const char *slash = strrchr(path, '/');
    snprintf(folder, 4096, "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
}

int job_lines_seek(struct job_lines *l, uint64_t offset, uint64_t number)
{
    if (lseek(l->fd, (off_t)offset, SEEK_SET) < 0)
        return -errno;
    l->start = l->end = l->n_searched = 0;
    l->n_skipped = 0;
    l->offset = offset;
    l->number = number - 1;
    l->is_at_end = false;
    return 0;
}

static int wait_for_bytes(const struct job_lines *l)
{
    struct pollfd input = {.fd = l->fd, .events = POLLIN};
    return l->wait_ms < 0 || poll(&input, 1, l->wait_ms) > 0 ? 0 : -EAGAIN;
}

/* Reads more behind buffer[end). */
static int read_more(struct job_lines *l)
{
    if (l->start > 0) {
        memmove(l->buffer, l->buffer + l->start, l->end - l->start);
        l->end -= l->start;
        l->start = 0;
    }
    /* one byte stays for a NUL */
    SPW_TRY(spw_grow(&l->buffer, &l->capacity, l->end + LEAST_READ + 1, 1));
    SPW_TRY(wait_for_bytes(l));
    ssize_t n;
    do
        n = read(l->fd, l->buffer + l->end, l->capacity - l->end - 1);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return -errno;
    l->is_at_end = n == 0;
    l->end += (size_t)n;
    return 0;
}

/* Reads up to the newline that ends the line at buffer[start], or to the end of the input. *bytes:
 * the length of the line as far as it was read. Of a line that is too long, the rest is passed
 * over. */
static int read_line(struct job_lines *l, size_t *bytes)
{
    for (;;) {
        size_t have = l->end - l->start;
        const char *newline = l->n_searched < have ? memchr(l->buffer + l->start + l->n_searched,
                                                            '\n', have - l->n_searched)
                                                   : NULL;
        if (newline || l->is_at_end) {
            *bytes = newline ? (size_t)(newline - l->buffer) - l->start : have;
            return 0;
        }
        l->n_searched = have;
        if (have > l->most) { /* keeps the beginning */
            l->n_skipped += have - l->most;
            l->end = l->start + l->most;
            l->n_searched = l->most;
        }
        SPW_TRY(read_more(l));
    }
}

int job_lines_next(struct job_lines *l, struct job_line *out)
{
    size_t bytes;
    SPW_TRY(read_line(l, &bytes));
    if (bytes == 0 && l->start == l->end)
        return 0;
    bool has_newline = l->start + bytes < l->end;
    *out = (struct job_line){.text = l->buffer + l->start,
                             .bytes = spw_min_u64(bytes, l->most),
                             .number = ++l->number,
                             .offset = l->offset,
                             .has_newline = has_newline,
                             .is_too_long = bytes > l->most || l->n_skipped > 0};
    out->text[bytes] = '\0';
    if (l->number == 1 && strncmp(out->text, "\xef\xbb\xbf", 3) == 0)
        memset(out->text, ' ', 3);
    l->start += bytes + has_newline;
    l->offset += bytes + has_newline + l->n_skipped;
    l->n_searched = 0;
    l->n_skipped = 0;
    return 1;
}
