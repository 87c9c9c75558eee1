/* The lines of a job's input, against a plain search for newlines: a file and a pipe that gives a
 * few bytes at a time. And the parts of a job: each item is in one of them. */
#include "tests/folder.h"
#include "tools/command/job/store/lines.h"
#include "tools/command/job/job.h"

#include <fcntl.h>

const struct cli_command cli_commands[] = {{.name = NULL}};

/* ---- lines ---- */

static char *random_text(uint64_t *seed, size_t *n)
{
    static const size_t lengths[] = {0, 1, 2, 100, 65535, 65536, 65537, 200000};
    char *text = malloc(1 << 21);
    *n = 0;
    for (uint64_t left = check_range(seed, 0, 12); left > 0; left--) {
        size_t bytes = lengths[check_range(seed, 0, 7)] + check_range(seed, 0, 3);
        for (size_t i = 0; i < bytes && *n + 1 < 1 << 21; i++)
            text[(*n)++] = "ab\r \xff"[check_range(seed, 0, 4)];
        if (left > 1 || check_range(seed, 0, 1))
            text[(*n)++] = '\n';
    }
    return text;
}

static void check_line(const struct job_line *line, const char *text, size_t n, size_t *at)
{
    const char *newline = memchr(text + *at, '\n', n - *at);
    size_t bytes = newline ? (size_t)(newline - text) - *at : n - *at;
    CHECK(line->bytes == bytes && memcmp(line->text, text + *at, bytes) == 0);
    CHECK(line->text[bytes] == 0 && line->has_newline == !!newline && !line->is_too_long);
    CHECK(line->offset == *at);
    *at += bytes + !!newline;
}

/* A pipe gives few bytes at a time. */
static pid_t feed(int fd, const char *text, size_t n, uint64_t *seed)
{
    pid_t child = fork();
    if (child)
        return child;
    for (size_t at = 0, some; at < n; at += some) {
        some = spw_min_u64(check_range(seed, 1, 40000), n - at);
        if (write(fd, text + at, some) != (ssize_t)some)
            _exit(1);
    }
    _exit(0);
}

static void check_lines(struct job_lines *l, const char *text, size_t n)
{
    struct job_line line;
    size_t at = 0;
    for (uint64_t number = 1; at < n; number++) {
        CHECK(job_lines_next(l, &line) == 1);
        CHECK(line.number == number);
        check_line(&line, text, n, &at);
    }
    CHECK(job_lines_next(l, &line) == 0 && job_lines_next(l, &line) == 0);
}

static void check_seeks(struct job_lines *l, const char *text, size_t n, uint64_t *seed)
{
    struct job_line line;
    uint64_t offsets[64], count = 0;
    CHECK(job_lines_seek(l, 0, 1) == 0);
    while (job_lines_next(l, &line) == 1 && count < 64)
        offsets[count++] = line.offset;
    for (int i = 0; i < 5 && count; i++) {
        uint64_t k = check_range(seed, 0, count - 1);
        size_t at = offsets[k];
        CHECK(job_lines_seek(l, offsets[k], k + 1) == 0 && job_lines_next(l, &line) == 1);
        CHECK(line.number == k + 1);
        check_line(&line, text, n, &at);
    }
}

static void test_random_lines(uint64_t *seed)
{
    size_t n;
    char *text = random_text(seed, &n), path[128];
    int ends[2];
    struct job_lines l;
    write_bytes("lines", text, n);
    CHECK(job_lines_open(&l, in_folder("lines")) == 0);
    check_lines(&l, text, n);
    check_seeks(&l, text, n, seed);
    job_lines_close(&l);
    CHECK(pipe(ends) == 0);
    pid_t child = feed(ends[1], text, n, seed);
    close(ends[1]);
    snprintf(path, sizeof path, "/dev/fd/%d", ends[0]);
    CHECK(job_lines_open(&l, path) == 0);
    close(ends[0]);
    CHECK(job_lines_seek(&l, 0, 1) == -ESPIPE);
    check_lines(&l, text, n);
    job_lines_close(&l);
    check_kill(child, SIGKILL);
    free(text);
}

/* The byte order mark of a file: blanks in the first line, bytes of any other line. */
static void test_byte_order_mark(void)
{
    static const char text[] = "\xef\xbb\xbf{}\n\xef\xbb\xbf{}\n";
    int ends[2];
    struct job_lines l = {.wait_ms = -1, .most = JOB_MAX_LINE_BYTES};
    struct job_line line;
    CHECK(pipe(ends) == 0 && write(ends[1], text, sizeof text - 1) == sizeof text - 1);
    close(ends[1]);
    l.fd = ends[0];
    CHECK(job_lines_next(&l, &line) == 1 && strcmp(line.text, "   {}") == 0 && line.bytes == 5);
    CHECK(job_lines_next(&l, &line) == 1 && strcmp(line.text, "\xef\xbb\xbf{}") == 0);
    job_lines_close(&l);
}

/* A pipe whose writer pauses, within a line too: a call ends, and a later call continues. */
static void test_pauses(void)
{
    char path[128], *text = malloc(1 << 15);
    int ends[2];
    struct job_lines l;
    struct job_line line;
    uint64_t n_late = 0, left = JOB_MAX_LINE_BYTES + 54321;
    memset(text, 'x', 1 << 15);
    CHECK(pipe(ends) == 0);
    snprintf(path, sizeof path, "/dev/fd/%d", ends[0]);
    CHECK(job_lines_open(&l, path) == 0);
    l.wait_ms = 0;
    CHECK(job_lines_next(&l, &line) == -EAGAIN && job_lines_next(&l, &line) == -EAGAIN);
    CHECK(write(ends[1], "a\nbc", 4) == 4);
    CHECK(job_lines_next(&l, &line) == 1 && strcmp(line.text, "a") == 0);
    CHECK(job_lines_next(&l, &line) == -EAGAIN);
    CHECK(write(ends[1], "d\n", 2) == 2);
    CHECK(job_lines_next(&l, &line) == 1 && strcmp(line.text, "bcd") == 0 && line.offset == 2);
    for (; left > 0; n_late++) { /* a line that is too long, in pieces */
        size_t n = spw_min_u64(left, 1 << 15);
        CHECK(write(ends[1], text, n) == (ssize_t)n);
        CHECK(job_lines_next(&l, &line) == -EAGAIN);
        left -= n;
    }
    CHECK(write(ends[1], "\nlast", 5) == 5);
    CHECK(job_lines_next(&l, &line) == 1 && line.is_too_long && line.number == 3);
    CHECK(line.bytes == JOB_MAX_LINE_BYTES && line.offset == 6);
    CHECK(job_lines_next(&l, &line) == -EAGAIN);
    close(ends[1]);
    CHECK(job_lines_next(&l, &line) == 1 && strcmp(line.text, "last") == 0);
    CHECK(line.offset == 6 + JOB_MAX_LINE_BYTES + 54322 && !line.is_too_long);
    CHECK(n_late > 2000 && job_lines_next(&l, &line) == 0);
    close(ends[0]);
    job_lines_close(&l);
    free(text);
}

/* A line of more than 64 MiB: its beginning, and then the line after it. The file has a hole. */
static void test_too_long_line(void)
{
    const char *path = in_folder("long");
    struct job_lines l;
    struct job_line line;
    const uint64_t long_bytes = JOB_MAX_LINE_BYTES + 12345;
    int fd = open(path, O_CREAT | O_RDWR, 0600);
    CHECK(write(fd, "first\nx", 7) == 7);
    CHECK(pwrite(fd, "\nlast", 5, (off_t)(6 + long_bytes)) == 5);
    CHECK(job_lines_open(&l, path) == 0);
    CHECK(job_lines_next(&l, &line) == 1 && !line.is_too_long);
    CHECK(job_lines_next(&l, &line) == 1 && line.is_too_long && line.number == 2);
    CHECK(line.bytes == JOB_MAX_LINE_BYTES && line.text[0] == 'x' && line.text[line.bytes] == 0);
    CHECK(l.capacity < 3 * JOB_MAX_LINE_BYTES);
    CHECK(job_lines_next(&l, &line) == 1 && line.number == 3 && strcmp(line.text, "last") == 0);
    CHECK(line.offset == 7 + long_bytes && job_lines_next(&l, &line) == 0);
    CHECK(job_lines_seek(&l, 7 + long_bytes, 3) == 0 && job_lines_next(&l, &line) == 1);
    CHECK(strcmp(line.text, "last") == 0);
    job_lines_close(&l);
    /* Exactly the longest line is no error. */
    CHECK(ftruncate(fd, 0) == 0 && pwrite(fd, "\nz", 2, (off_t)JOB_MAX_LINE_BYTES) == 2);
    CHECK(job_lines_open(&l, path) == 0);
    CHECK(job_lines_next(&l, &line) == 1 && !line.is_too_long);
    CHECK(line.bytes == JOB_MAX_LINE_BYTES);
    CHECK(job_lines_next(&l, &line) == 1 && strcmp(line.text, "z") == 0);
    job_lines_close(&l);
    close(fd);
}

static void test_failures(void)
{
    struct job_lines l;
    struct job_line line;
    CHECK(job_lines_open(&l, "/nowhere/lines") == -ENOENT);
    job_lines_close(&l);
    CHECK(job_lines_open(&l, folder) == -EISDIR);
    job_lines_close(&l);
    CHECK(job_lines_open(&l, "/proc/self/mem") == 0 && job_lines_next(&l, &line) == -EIO);
    job_lines_close(&l);
    CHECK(job_lines_open(&l, "/proc/self/exe") == 0);
    spw_alloc_fail_nth(0);
    CHECK(job_lines_next(&l, &line) == -ENOMEM);
    spw_alloc_fail_nth(-1);
    CHECK(job_lines_next(&l, &line) == 1); /* and the next call continues */
    job_lines_close(&l);
    CHECK(spw_alloc_outstanding() == 0);
}

/* ---- shards ---- */

static void test_shard_texts(void)
{
    static const char *const bad[] = {
        "",     "1",    "/",    "1/",   "/2",    "2/2",   "3/2", "0/0",
        "-1/2", "+1/2", "1/2 ", " 1/2", "1/2/3", "0x1/2", "1,2", "1/99999999999999999999"};
    struct job_shard s;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_MSG(!job_shard_parse(bad[i], &s), "'%s'", bad[i]);
    CHECK(job_shard_parse("0/1", &s) && s.index == 0 && s.n == 1);
    CHECK(job_shard_parse("15/16", &s) && s.index == 15 && s.n == 16);
}

static json_t *random_id(uint64_t *seed)
{
    switch (check_range(seed, 0, 3)) {
    case 0:
        return NULL;
    case 1:
        return json_integer((json_int_t)check_random(seed));
    case 2:
        return json_pack("[i,s]", (int)check_range(seed, 0, 9), "\n\"");
    default:
        return json_sprintf("item %d", (int)check_range(seed, 0, 1 << 20));
    }
}

/* Every item is in exactly one part, whatever line it is on; the parts are about equal. */
static void test_shard_items(uint64_t *seed)
{
    enum { ITEMS = 2000 };
    const uint64_t n = check_range(seed, 1, 9);
    uint64_t sizes[9] = {0};
    for (uint64_t i = 1; i <= ITEMS; i++) {
        struct request x = {.id = random_id(seed), .number = i};
        uint64_t n_in = 0;
        for (uint64_t k = 0; k < n; k++) {
            const struct job_shard s = {k, n};
            int has = job_shard_has(&s, &x);
            CHECK(has == 0 || has == 1);
            x.number += x.id ? 7 : 0;
            n_in += (uint64_t)has;
            sizes[k] += (uint64_t)has;
        }
        const struct job_shard whole = {0};
        CHECK(n_in == 1 && job_shard_has(&whole, &x) == 1);
        json_decref(x.id);
    }
    for (uint64_t k = 0; k < n; k++)
        CHECK_MSG(sizes[k] * n > ITEMS / 2 && sizes[k] * n < ITEMS * 2, "part %d of %d: %d items",
                  (int)k, (int)n, (int)sizes[k]);
}

int main(int argc, char **argv)
{
    uint64_t seed = check_seed();
    open_folder("lines");
    signal(SIGCHLD, SIG_IGN);
    struct check_draws d = check_draws_of(argc, argv, 100);
    while (check_another(&d))
        test_random_lines(&seed);
    test_byte_order_mark();
    test_pauses();
    test_too_long_line();
    test_failures();
    test_shard_texts();
    for (int i = 0; i < 10; i++)
        test_shard_items(&seed);
    signal(SIGCHLD, SIG_DFL);
    close_folder();
    return check_done();
}
