/* Converters: scripts that sleep, write forever, leave children behind, fail, take all memory. No
 * process and no open file is left. */
#include "tests/folder.h"
#include "tools/command/common.h"
#include "tools/command/job/summarize/convert.h"

#include <fcntl.h>
#include <sys/wait.h>

/* Makes the program "fake" in PATH. */
static void script(const char *lines)
{
    char text[1000];
    snprintf(text, sizeof text, "#!/bin/sh\ncd %s\n%s\n", folder, lines);
    write_text("fake", text);
    CHECK(chmod(in_folder("fake"), 0755) == 0);
}

static char *data;
static size_t bytes;
static struct spw_error err;
static double seconds; /* that the last conversion took */

static int convert_with(const struct job_limits *limits, const char *argument)
{
    const char *const argv[] = {"fake", argument, NULL};
    double before = check_seconds();
    spw_free(data);
    spw_error_clear(&err);
    int rc = job_convert(argv, limits, &data, &bytes, &err);
    seconds = check_seconds() - before;
    CHECK((rc == 0) == (data != NULL) && (rc == 0 || err.text[0]));
    return rc;
}

static int convert(const char *lines)
{
    script(lines);
    return convert_with(NULL, NULL);
}

static bool wrote(const char *text)
{
    return bytes == strlen(text) && memcmp(data, text, bytes) == 0;
}

/* Whether the process whose number the script wrote to a file runs. */
static bool runs(const char *name)
{
    char path[100], state = 0;
    long pid = 0;
    FILE *file = fopen(in_folder(name), "r");
    CHECK(file && fscanf(file, "%ld", &pid) == 1 && pid > 1);
    if (file)
        fclose(file);
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    file = fopen(path, "r");
    bool found = file && fscanf(file, "%*d %*s %c", &state) == 1;
    if (file)
        fclose(file);
    return found && state != 'Z';
}

/* A process that was killed needs a moment to end. */
static bool has_ended(const char *name)
{
    for (int i = 0; i < 500 && runs(name); i++)
        usleep(10000);
    return !runs(name);
}

static void wait_for_file(const char *name)
{
    for (int i = 0; i < 500 && access(name, F_OK) != 0; i++)
        usleep(10000);
}

static void what_it_gets(void)
{
    CHECK(convert("echo one; echo two >&2; echo three") == 0 && wrote("one\nthree\n"));
    CHECK(convert("cat; echo end") == 0 && wrote("end\n"));
    CHECK(convert("exit 0") == 0 && wrote(""));
    CHECK(dup2(STDERR_FILENO, 57) == 57);
    CHECK(convert("exec ls /proc/self/fd") == 0 && strcmp(data, "0\n1\n2\n3\n") == 0);
    close(57);
    CHECK(convert("exec grep -E 'Sig(Ign|Blk)' /proc/self/status") == 0);
    for (const char *at = data; at && (at = strstr(at, ":\t")); at += 2)
        CHECK((strtoull(at + 2, NULL, 16) & 0x7fffffff) == 0); /* those that have names */
    script("printf %s \"$1\"");
    CHECK(convert_with(NULL, "-x; $(touch y) `z` 'a b'\n") == 0);
    CHECK(wrote("-x; $(touch y) `z` 'a b'\n"));
}

static void all_that_it_wrote(uint64_t *seed)
{
    static const size_t sizes[] = {1, 65535, 65536, 65537, 131071, 131072, 1000000, 5000000};
    for (size_t i = 0; i < 16; i++) {
        size_t size = i < 8 ? sizes[i] : check_range(seed, 1, 300000);
        char line[200];
        snprintf(line, sizeof line, "head -c %zu /dev/zero | tr '\\0' x; head -c %zu /dev/zero >&2",
                 size, i % 2 * size);
        CHECK(convert(line) == 0 && bytes == size && data[0] == 'x' && data[size - 1] == 'x');
    }
}

static void failures(void)
{
    CHECK(convert("echo text; echo >&2; echo 'Syntax Error: bad' >&2; echo more >&2; exit 3") ==
          -EIO);
    CHECK_MSG(strcmp(err.text, "fake: failed with status 3: Syntax Error: bad") == 0, "%s",
              err.text);
    CHECK(convert("exit 9") == -EIO && strcmp(err.text, "fake: failed with status 9") == 0);
    CHECK(convert("kill -SEGV $$") == -EIO && strstr(err.text, "signal 11"));
    CHECK(convert("exec >&- 2>&-; sleep 0.1; exit 4") == -EIO && strstr(err.text, "status 4"));
    CHECK(convert("exec >&- 2>&-; sleep 0.1") == 0 && wrote(""));
    /* The first line is there even if the machine starts `yes` late. */
    CHECK(convert("echo error >&2; yes error >&2 & sleep 0.1; exit 1") == -EIO &&
          strstr(err.text, "1: error"));
    const char *const argv[] = {"no_such_program", NULL};
    CHECK(job_convert(argv, NULL, &data, &bytes, NULL) == -ENOENT && !data);
}

static void limits(void)
{
    struct job_limits few = {.seconds = 1}; /* the script has written both files by then */
    script("sleep 100 & echo $! >child; echo $$ >self; wait");
    CHECK(convert_with(&few, NULL) == -ETIMEDOUT && strstr(err.text, "within 1 s"));
    CHECK(seconds < 30 && has_ended("self") && has_ended("child"));

    script("echo $$ >self; exec yes");
    CHECK(convert_with(&(struct job_limits){.bytes = 1 << 20}, NULL) == -EFBIG);
    CHECK_MSG(strstr(err.text, "more than 1.00MiB"), "%s", err.text);
    CHECK(has_ended("self"));

    CHECK(convert("sleep 100 & echo $! >child; echo text") == 0 && wrote("text\n"));
    CHECK(seconds < 30 && has_ended("child"));

    script("exec tail /dev/zero");
    CHECK(convert_with(&(struct job_limits){.memory_bytes = 64 << 20}, NULL) == -EIO);
    CHECK_MSG(strstr(err.text, "memory"), "%s", err.text);

    script("trap '' XCPU; while :; do :; done");
    CHECK(convert_with(&(struct job_limits){.seconds = 0.5}, NULL) == -ETIMEDOUT);

    script("head -c 3000000 /dev/zero >big");
    int rc = convert_with(&(struct job_limits){.bytes = 1 << 20}, NULL);
    CHECK_MSG(rc == -EIO, "%d: %s", rc, err.text);
}

static void interruption(void)
{
    cli_catch_interrupt();
    script("echo $$ >self.new; mv self.new self; echo text; sleep 100");
    CHECK(unlink("self") == 0);
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        wait_for_file("self");
        kill(parent, SIGINT);
        _exit(0);
    }
    CHECK(convert_with(NULL, NULL) == -ECANCELED && seconds < 3 && has_ended("self"));
    CHECK(waitpid(child, NULL, 0) == child);
    cli_interrupt_clear();
    CHECK(convert("echo text") == 0 && wrote("text\n"));
}

/* The converter does not outlive a process that was killed. */
static void killed(void)
{
    script("echo $$ >self.new; mv self.new self; exec sleep 100");
    CHECK(unlink("self") == 0 || errno == ENOENT);
    pid_t child = fork();
    if (child == 0) {
        convert_with(NULL, NULL);
        _exit(1);
    }
    wait_for_file("self");
    check_kill(child, SIGKILL);
    CHECK(waitpid(child, NULL, 0) == child && has_ended("self"));
}

static void no_memory(void)
{
    int rc = -ENOMEM;
    script("echo text");
    for (int i = 0; rc == -ENOMEM; i++) {
        spw_alloc_fail_nth(i);
        rc = convert_with(NULL, NULL);
        spw_alloc_fail_nth(-1);
        CHECK(i < 20);
    }
    CHECK(rc == 0 && wrote("text\n"));
}

static int open_files(void)
{
    int n = 0;
    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

int main(void)
{
    uint64_t seed = check_seed();
    char path[4096];
    open_folder("convert");
    CHECK(chdir(folder) == 0);
    snprintf(path, sizeof path, "%s:%s", folder, getenv("PATH"));
    setenv("PATH", path, 1);
    cli_ignore_write_signals();
    int n_files = open_files();
    what_it_gets();
    all_that_it_wrote(&seed);
    failures();
    limits();
    interruption();
    killed();
    no_memory();
    spw_free(data);
    CHECK(open_files() == n_files);
    CHECK(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
    close_folder();
    CHECK(spw_alloc_outstanding() == 0);
    return check_done();
}
