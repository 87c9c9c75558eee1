/* The messages of a file where memory is short: all of them are read or written, or none, and the
 * file is never blamed. */
#include "tests/check.h"
#include "tests/json_text.h"
#include "tools/command/chat/chat_history.h"
#include "tools/command/common.h"
#include "tools/command/options/options.h"

#include <fcntl.h>
#include <string.h>

const struct cli_command cli_commands[] = {{.name = NULL}};

/* Reads or writes the messages while allocation n fails, without a word on stderr. */
static int run(json_t **messages, const char *path, bool writes, int n, bool *has_failed)
{
    int saved = dup(2), null = open("/dev/null", O_WRONLY);
    dup2(null, 2);
    spw_alloc_fail_nth(n);
    int code = writes ? cli_history_write(*messages, path) : cli_history_read(messages, path);
    *has_failed = json_allocation_has_failed();
    spw_alloc_fail_nth(-1);
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

static void check_reads(json_t *whole, const char *path)
{
    json_t *messages;
    bool has_failed = true;
    int n = 0;
    for (; has_failed; n++) {
        int code = run(&messages, path, false, n, &has_failed);
        CHECK_MSG(has_failed ? code == CLI_FAILED && !messages : code == 0, "%d: %d", n, code);
        CHECK(!messages || json_equal(messages, whole));
        json_decref(messages);
    }
    CHECK(n > 12);
}

/* The file is whole, or there is none. */
static void check_writes(json_t *whole, const char *path)
{
    json_t *messages;
    bool has_failed = true;
    int n = 0;
    for (; has_failed; n++) {
        unlink(path);
        int code = run(&whole, path, true, n, &has_failed);
        CHECK_MSG(code == 0 || has_failed, "%d: %d", n, code);
        CHECK_MSG((access(path, F_OK) == 0) == (code == 0), "%d: %d", n, code);
        if (code)
            continue;
        CHECK(cli_history_read(&messages, path) == 0 && json_equal(messages, whole));
        json_decref(messages);
    }
    CHECK(n > 4);
}

int main(void)
{
    char path[64];
    json_t *whole;
    snprintf(path, sizeof path, "/tmp/spw_history_%d.json", (int)getpid());
    write_file(path);
    CHECK(cli_history_read(&whole, path) == 0 && json_array_size(whole) == 2);
    json_set_alloc_funcs(json_alloc, json_free);
    check_reads(whole, path);
    check_writes(whole, path);
    json_set_alloc_funcs(malloc, free);
    json_decref(whole);
    unlink(path);
    CHECK(spw_alloc_outstanding() == 0);
    return check_done();
}
