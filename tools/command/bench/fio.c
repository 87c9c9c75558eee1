/* Runs fio and reads its JSON: see fio.h.  */
#include "tools/command/bench/fio.h"

#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

#define MOST_OUTPUT ((size_t)1 << 20)

/* fio separates names by colons. */
static void escape(char *out, size_t bytes, const char *file)
{
    size_t n = (size_t)snprintf(out, bytes, "--filename=");
    for (; *file && n + 2 < bytes; file++) {
        if (*file == ':' || *file == '\\')
            out[n++] = '\\';
        out[n++] = *file;
    }
    out[n] = 0;
}

/* Starts fio with stdout and stderr into one pipe. */
static int start(const char *file, bool write, uint64_t bytes, pid_t *pid, int *from)
{
    char name[4200], size[48];
    int ends[2];
    escape(name, sizeof name, file);
    snprintf(size, sizeof size, "--size=%llu", (unsigned long long)bytes);
    const char *arguments[] = {
        "fio",         "--name=spillway",      name,
        size,          "--direct=1",           write ? "--rw=write" : "--rw=read",
        "--bs=1M",     "--ioengine=io_uring",  "--iodepth=16",
        "--fixedbufs", "--output-format=json", NULL};
    if (pipe(ends) != 0)
        return -errno;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    posix_spawn_file_actions_addclose(&actions, ends[1]);
    int rc = -posix_spawnp(pid, "fio", &actions, NULL, (char *const *)arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (rc)
        close(ends[0]);
    *from = ends[0];
    return rc;
}

static size_t read_all(int from, char *text)
{
    size_t n = 0;
    while (n + 1 < MOST_OUTPUT) {
        ssize_t got = read(from, text + n, MOST_OUTPUT - 1 - n);
        if (got <= 0 && !(got < 0 && errno == EINTR))
            break;
        n += got > 0 ? (size_t)got : 0;
    }
    text[n] = 0;
    return n;
}

/* Text before the JSON has fio's error messages. */
static int parse(const char *text, bool write, double *bytes_per_second, struct spw_error *why)
{
    const char *brace = strchr(text, '{');
    json_t *root = NULL;
    if (brace &&
        spw_json_parse(&root, brace, strlen(brace), JSON_DISABLE_EOF_CHECK, NULL) == -ENOMEM)
        return spw_fail(why, -ENOMEM, "fio: no memory for its answer");
    const json_t *job = json_array_get(json_object_get(root, "jobs"), 0);
    const json_t *way = json_object_get(job, write ? "write" : "read");
    *bytes_per_second = json_number_value(json_object_get(way, "bw_bytes"));
    bool failed = json_integer_value(json_object_get(job, "error")) != 0;
    json_decref(root);
    if (!failed && *bytes_per_second > 0)
        return 0;
    return spw_fail(why, -EIO, "fio: %.*s", (int)spw_min_u64(strcspn(text, "\n"), 300),
                    *text ? text : "it printed nothing");
}

int cli_fio_run(const char *file, bool write, uint64_t bytes, double *bytes_per_second,
                struct spw_error *why)
{
    pid_t pid;
    int from, status = 0;
    char *text = spw_alloc(MOST_OUTPUT);
    if (!text)
        return spw_fail(why, -ENOMEM, "no memory for the output of fio");
    int rc = start(file, write, bytes, &pid, &from);
    if (rc) {
        spw_free(text);
        return spw_fail(why, rc, "fio: %s", strerror(-rc));
    }
    read_all(from, text);
    close(from);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    rc = parse(text, write, bytes_per_second, why);
    if (!rc && !(WIFEXITED(status) && WEXITSTATUS(status) == 0))
        rc = spw_fail(why, -EIO, "fio: ended with status %d", status);
    spw_free(text);
    return rc;
}
