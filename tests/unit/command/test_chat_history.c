/* The messages of a file where memory is short: all of them are read, or none, and the file is
 * never blamed. */
#include "tests/check.h"
#include "tools/command/chat/chat_history.h"
#include "tools/command/common.h"
#include "tools/command/options/options.h"

#include <fcntl.h>
#include <string.h>

const struct cli_command cli_commands[] = {{.name = NULL}};

static void *allocate(size_t bytes)
{
    return spw_alloc_fails() ? NULL : malloc(bytes);
}

static int read_quietly(json_t **messages, const char *path)
{
    int saved = dup(2), null = open("/dev/null", O_WRONLY);
    dup2(null, 2);
    int code = cli_history_read(messages, path);
    dup2(saved, 2);
    close(saved);
    close(null);
    return code;
}

static void write_file(const char *path)
{
    FILE *f = fopen(path, "w");
    if (!f)
        abort();
    fputs("[{\"role\": \"system\", \"content\": \"a text of more than sixteen bytes\"},\n"
          " {\"role\": \"user\", \"content\": \"another one, with \\u00e9\", "
          "\"number\": 0.12345678901234567}]",
          f);
    fclose(f);
}

int main(void)
{
    char path[64];
    json_t *whole, *messages;
    bool has_failed = true;
    int n = 0;
    snprintf(path, sizeof path, "/tmp/spw_history_%d.json", (int)getpid());
    write_file(path);
    CHECK(cli_history_read(&whole, path) == 0 && json_array_size(whole) == 2);
    json_set_alloc_funcs(allocate, free);
    for (; has_failed; n++) {
        spw_alloc_fail_nth(n);
        int code = read_quietly(&messages, path);
        has_failed = false;
        for (int i = 0; !has_failed && i < 1000; i++)
            has_failed = spw_alloc_fails();
        has_failed = !has_failed; /* the n-th allocation is not still to come */
        spw_alloc_fail_nth(-1);
        CHECK_MSG(has_failed ? code == CLI_FAILED && !messages : code == 0, "%d: %d", n, code);
        CHECK(!messages || json_equal(messages, whole));
        json_decref(messages);
    }
    CHECK(n > 12);
    json_set_alloc_funcs(malloc, free);
    json_decref(whole);
    unlink(path);
    CHECK(spw_alloc_outstanding() == 0);
    return check_done();
}
