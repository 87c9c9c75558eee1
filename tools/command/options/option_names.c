/* Which option of the command sets which member of struct spw_options: see cli_name_options.
 * tools/check_layers.sh checks that every member that a text of the library names has a row, and
 * that the members and options of the rows exist. */
#include "tools/command/options/options.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

static const struct {
    const char *member, *option;
} names[] = {
    {"backend", "--device"},
    {"compute", "--compute"},
    {"context", "--context"},
    {"device_bytes", "--device-memory"},
    {"disk_bytes", "--disk-memory"},
    {"disk_dir", "--disk"},
    {"disk_write_limit", "--disk-write-limit"},
    {"draft_model", "--draft-model"},
    {"drafts", "--drafts"},
    {"host_bytes", "--host-memory"},
    {"kv", "--kv-dtype"},
    {"on_oom", "--on-oom"},
    {"past_positions", "--allow-long-context"},
    {"precision", "--kv-dtype"},
    {"prefill_chunk", "--prefill-chunk"},
    {"prefix_cache_bytes", "--prefix-cache-size"},
    {"prefix_cache_dir", "--prefix-cache"},
    {"prefix_cache_trusts_others", "--trust-prefix-cache"},
    {"residual_window", "--residual-window"},
};

static const char *option_of(const char *member, size_t n)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i].member) == n && !memcmp(names[i].member, member, n))
            return names[i].option;
    return NULL;
}

/* NULL: the command has chosen the smallest context that it can use. */
static const char *smaller_context = "lower --context";

/* Where no context is given, it is as long as the text and its answer. Items of a job are refused
 * for their own length, so a smaller --context would only refuse them, too. */
void cli_name_context(const struct cli_options *o)
{
    const unsigned is = o->command->bit;
    const bool is_job = is & (CLI_BATCH | CLI_SUMMARIZE) || (is & CLI_GENERATE && o->prompts);
    if (is & (CLI_CHAT | CLI_SERVE) || (o->context && !is_job))
        smaller_context = "lower --context";
    else if (is & (CLI_GENERATE | CLI_PLAN | CLI_BATCH))
        smaller_context = "shorten the prompt or the answer";
    else
        smaller_context = is & CLI_SCORE   ? "shorten the text"
                          : is & CLI_BENCH ? "lower --contexts"
                                           : NULL;
}

/* Replaces `n` bytes at `at` by a text that is no longer. */
static char *replace(char *at, size_t n, const char *text)
{
    const size_t bytes = strlen(text);
    assert(bytes <= n);
    memcpy(at, text, bytes);
    memmove(at + bytes, at + n, strlen(at + n) + 1);
    return at + bytes;
}

static void name_smaller_context(char *text)
{
    static const char ask[] = "ask for a smaller options.context";
    static const char *const separators[] = {", or ", "; "};
    char *at = strstr(text, ask), *begin = at;
    for (size_t i = 0; at && !smaller_context && i < sizeof separators / sizeof *separators; i++) {
        const size_t n = strlen(separators[i]);
        if (at - text >= (ptrdiff_t)n && !memcmp(at - n, separators[i], n))
            begin = at - n;
    }
    if (at)
        replace(begin, (size_t)(at - begin) + strlen(ask), smaller_context ? smaller_context : "");
}

void cli_name_options(char *text)
{
    static const char prefix[] = "options.", letters[] = "abcdefghijklmnopqrstuvwxyz_";
    name_smaller_context(text);
    for (char *at = text; (at = strstr(at, prefix));) {
        char *member = at + strlen(prefix), *rest = member + strspn(member, letters);
        const char *option = option_of(member, (size_t)(rest - member));
        bool inside = at > text && (strchr(letters, at[-1]) || strchr("-./", at[-1]));
        if (!option || inside) { /* part of a name of the user */
            at = member;
            continue;
        }
        at = replace(at, (size_t)(rest - at), option);
    }
}
