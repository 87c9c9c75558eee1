/* Which option of the command sets which member of struct spw_options, and of a request: options.h.
 * tools/check_layers.sh checks that every member that a text of the library names has a row, and
 * that the members and options of the rows exist. */
#include "tools/command/options/options.h"

#include <assert.h>
#include <stddef.h>
#include <stdio.h>
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

/* ---- requests ---- */

static const struct {
    const char *member, *key;
} members[] = {{"beams.n_beams", "num_beams"},
               {"beams.n_groups", "num_beam_groups"},
               {"beams.n_return", "num_return_sequences"},
               {"beams.diversity_penalty", "diversity_penalty"},
               {"beams.length_penalty", "length_penalty"},
               {"sampling.temperature", "temperature"},
               {"max_new_tokens", "max_new_tokens"},
               {"grammar", "response_format"},
               {"stop", "stop"},
               {"logprobs", "logprobs"}};

const char *cli_name_request(struct spw_error *err, bool as_option)
{
    const struct spw_error from = *err;
    unsigned long long number;
    int n = 0;
    sscanf(from.text, "request %llu: %n", &number, &n);
    const char *text = from.text + n, *key = NULL;
    for (size_t i = 0; i < sizeof members / sizeof *members && !key; i++) {
        const size_t bytes = strlen(members[i].member);
        if (!strncmp(text, members[i].member, bytes) && text[bytes] == ':') {
            key = members[i].key;
            text += bytes;
        }
    }
    snprintf(err->text, sizeof err->text, "%s%s%.900s", key && as_option ? "--" : "",
             key ? key : "", text);
    for (char *c = err->text; key && as_option && *c != ':'; c++)
        *c = *c == '_' ? '-' : *c;
    return key;
}
