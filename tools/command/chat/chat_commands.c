/* The commands of a conversation, one row for each. They print to stderr, because answers go to
 * stdout. */
#include "tools/command/chat/chat.h"
#include "tools/command/output/output.h"

#include <string.h>
#include <sys/stat.h>

struct chat_command {
    const char *name, *argument, *help;
    int (*run)(struct chat *c, const char *argument);
};

static int run_help(struct chat *c, const char *argument);

/* A file has these messages now. If memory is short, /save will refuse the file. */
static void keep(struct chat *c)
{
    json_decref(c->kept);
    c->kept = json_copy(c->messages);
}

static int save(struct chat *c, const char *path)
{
    int code = cli_output_check(c->o, "/save", path);
    if (!code)
        code = cli_history_check_file(c->messages, c->kept, path);
    if (!code)
        code = cli_history_write(c->messages, path);
    if (code)
        return code;
    keep(c);
    const size_t n = json_array_size(c->messages);
    return cli_note("saved %zu message%s to %s", n, cli_plural(n), path);
}

/* Refuses what a read could wait for: a pipe, a terminal. */
static int check_file(const char *path)
{
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return cli_fail(CLI_REFUSED, "%s: found no file, expected one", path);
    return 0;
}

static int load(struct chat *c, const char *path)
{
    json_t *messages;
    int code = check_file(path);
    if (!code)
        code = cli_history_read(&messages, path);
    if (code)
        return code;
    if (c->document_at != SIZE_MAX)
        cli_chat_read(c, "");
    c->is_known = false;
    json_decref(c->messages);
    c->messages = messages;
    c->n_again = 0;
    keep(c);
    const size_t n = json_array_size(messages);
    return cli_note("%zu message%s from %s", n, cli_plural(n), path);
}

static int read_document(struct chat *c, const char *path)
{
    int32_t *tokens;
    size_t n;
    int code = check_file(path);
    if (!code)
        code = cli_chat_read(c, path);
    if (code)
        return code;
    if (!*path)
        return cli_note("no text stands before the next question now");
    code = cli_encode(c->model.tokenizer, path, c->document, c->document_bytes, false, &tokens, &n);
    if (code) {
        cli_chat_read(c, "");
        return code;
    }
    spw_free(tokens);
    return cli_note(
        "%s: %zu tokens of a context of %llu; the text stands before your next question", path, n,
        (unsigned long long)spw_engine_plan(c->engine)->context);
}

static int undo(struct chat *c, const char *argument)
{
    (void)argument;
    size_t n = cli_history_before_question(c->messages);
    if (n == SIZE_MAX)
        return cli_fail(CLI_REFUSED, "/undo: found no question, expected one to remove");
    cli_chat_cut(c, n);
    c->n_again = 0;
    c->is_known = false;
    return cli_note("the last question was removed; messages left: %zu", n);
}

/* If there is no new answer, the old answer stays. */
static int regen(struct chat *c, const char *argument)
{
    (void)argument;
    size_t n = cli_history_before_answer(c->messages);
    if (n == 0 || (n == 1 && cli_history_has_system(c->messages)))
        return cli_fail(CLI_REFUSED, "/regen: found no question, expected one to answer again");
    if (c->is_known && c->o->temperature == 0)
        return cli_note("/regen: at temperature 0 the same question has the same answer; "
                        "'/set temperature 0.7' gives others");
    json_t *old = json_copy(c->messages);
    if (!old)
        return cli_fail(CLI_FAILED, "out of memory");
    bool again = n < json_array_size(old);
    cli_history_cut(c->messages, n);
    c->n_again += again;
    int code = cli_chat_answer(c);
    if (code) {
        c->n_again -= again;
        json_decref(c->messages);
        c->messages = old;
        return code;
    }
    json_decref(old);
    return 0;
}

static int set_system(struct chat *c, const char *text)
{
    const size_t before = json_array_size(c->messages);
    int code = cli_history_set_system(c->messages, text);
    if (c->document_at != SIZE_MAX)
        c->document_at += json_array_size(c->messages) - before;
    c->is_known = false;
    return code ? code : cli_note(*text ? "the system message is set" : "no system message now");
}

/* "NAME VALUE", or nothing: shows the settings. */
static int set(struct chat *c, const char *argument)
{
    char name[64];
    const size_t n = strcspn(argument, " \t");
    if (!*argument) {
        cli_show_settings(stderr, &c->own);
        return 0;
    }
    snprintf(name, sizeof name, "%.*s", (int)spw_min_u64(n, sizeof name - 1), argument);
    c->is_known = false;
    return cli_set(&c->own, name, argument + n + strspn(argument + n, " \t"));
}

static double rate(size_t n, double seconds)
{
    return seconds > 0 ? (double)n / seconds : 0;
}

static void show_turns(const char *name, const struct chat_turn *t)
{
    char again[48] = "";
    if (t->n_recomputed > 0)
        snprintf(again, sizeof again, " (%zu of them again)", t->n_recomputed);
    fprintf(stderr,
            "%-14s prompt %zu tokens: %zu reused, %zu computed%s in %.2f s; answer %zu tokens, "
            "%.1f tokens/s\n",
            name, t->n_prompt, t->n_reused, t->n_prompt - t->n_reused, again, t->prefill_seconds,
            t->n_generated, rate(t->n_generated, t->decode_seconds));
}

static int stats(struct chat *c, const char *argument)
{
    (void)argument;
    struct spw_stats s;
    char a[32], b[32], d[32];
    const size_t n = json_array_size(c->messages);
    spw_engine_stats(c->engine, &s);
    fprintf(stderr, "%-14s %zu message%s; %zu of %llu tokens held, on %s\n", "conversation", n,
            cli_plural(n), spw_session_n_tokens(c->session),
            (unsigned long long)spw_engine_plan(c->engine)->context, spw_engine_backend(c->engine));
    if (c->n_turns > 0) {
        show_turns("last turn", &c->last);
        show_turns(c->n_turns == 1 ? "1 turn" : "all turns", &c->sum);
    }
    fprintf(stderr, "%-14s at most %s on the device, %s on the host, %s on disk\n", "memory",
            cli_format_bytes(a, s.device_peak_bytes), cli_format_bytes(b, s.host_peak_bytes),
            cli_format_bytes(d, s.disk_peak_bytes));
    return 0;
}

static int quit(struct chat *c, const char *argument)
{
    (void)argument;
    c->quit = true;
    return 0;
}

static const struct chat_command rows[] = {
    {"/save", "FILE", "write the conversation as JSON messages", save},
    {"/load", "FILE", "continue the conversation of a file", load},
    {"/read", "[FILE]", "a text to ask about: it stands before the next question", read_document},
    {"/undo", NULL, "remove the last question and its answer", undo},
    {"/regen", NULL, "answer the last question again, with the next seed", regen},
    {"/system", "[TEXT]", "set the system message, or remove it", set_system},
    {"/set", "[NAME VALUE]", "set temperature, max-new-tokens and the like, or show them", set},
    {"/stats", NULL, "tokens reused and computed, speed, memory", stats},
    {"/help", NULL, "show this list", run_help},
    {"/quit", NULL, "end the conversation; Ctrl-D does this too", quit},
};
enum { N_ROWS = sizeof rows / sizeof *rows };

const char *const *cli_chat_words(void)
{
    static const char *words[N_ROWS + 1];
    for (size_t i = 0; i < N_ROWS; i++)
        words[i] = rows[i].name;
    return words;
}

static int run_help(struct chat *c, const char *argument)
{
    (void)c;
    (void)argument;
    for (size_t i = 0; i < N_ROWS; i++) {
        int n = fprintf(stderr, "%s%s%s", rows[i].name, rows[i].argument ? " " : "",
                        rows[i].argument ? rows[i].argument : "");
        fprintf(stderr, "%*s%s\n", n < 20 ? 20 - n : 1, "", rows[i].help);
    }
    fputs("A pasted text is one message. A line that ends in \\ is continued by the next line; "
          "lines between two lines of \"\"\" are one text.\n"
          "Ctrl-C ends an answer after the running step. A second Ctrl-C during that step ends the "
          "program.\n",
          stderr);
    return 0;
}

static int refuse(const char *name)
{
    const char *nearest = cli_nearest(name, cli_chat_words(), N_ROWS);
    if (nearest)
        return cli_fail(CLI_REFUSED, "unknown command %s; did you mean %s?", name, nearest);
    return cli_fail(CLI_REFUSED,
                    "unknown command %s; see /help (a text may begin with / between two "
                    "lines of \"\"\")",
                    name);
}

int cli_chat_command(struct chat *c, char *line)
{
    char name[64];
    for (size_t n = strlen(line); strchr(" \t\n", line[n - 1]); n--)
        line[n - 1] = 0; /* no name of a file ends in a blank */
    size_t bytes = strcspn(line, " \t\n");
    snprintf(name, sizeof name, "%.*s", (int)spw_min_u64(bytes, sizeof name - 1), line);
    const char *argument = line + bytes + strspn(line + bytes, " \t\n");
    for (size_t i = 0; i < N_ROWS; i++) {
        const struct chat_command *row = &rows[i];
        if (strcmp(row->name, name) != 0)
            continue;
        if (!row->argument && *argument)
            return cli_fail(CLI_REFUSED, "%s: found '%s', expected nothing after it", name,
                            argument);
        if (row->argument && row->argument[0] != '[' && !*argument)
            return cli_fail(CLI_REFUSED, "%s: found nothing, expected %s", name, row->argument);
        return row->run(c, argument);
    }
    return refuse(name);
}
