/* The commands of a conversation, one row for each. They print to stderr, because answers go to
 * stdout. */
#include "tools/command/chat/chat.h"
#include "tools/command/output/output.h"

#include <string.h>

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

static int load(struct chat *c, const char *path)
{
    json_t *messages;
    int code = cli_history_read(&messages, path);
    if (code)
        return code;
    json_decref(c->messages);
    c->messages = messages;
    c->n_again = 0;
    keep(c);
    const size_t n = json_array_size(messages);
    return cli_note("%zu message%s from %s", n, cli_plural(n), path);
}

static int undo(struct chat *c, const char *argument)
{
    (void)argument;
    size_t n = cli_history_before_question(c->messages);
    if (n == SIZE_MAX)
        return cli_fail(CLI_REFUSED, "/undo: found no question, expected one to remove");
    cli_history_cut(c->messages, n);
    c->n_again = 0;
    return cli_note("the last question was removed; messages left: %zu", n);
}

/* If there is no new answer, the old answer stays. */
static int regen(struct chat *c, const char *argument)
{
    (void)argument;
    size_t n = cli_history_before_answer(c->messages);
    if (n == 0 || (n == 1 && cli_history_has_system(c->messages)))
        return cli_fail(CLI_REFUSED, "/regen: found no question, expected one to answer again");
    json_t *old = json_copy(c->messages);
    if (!old)
        return cli_fail(CLI_FAILED, "out of memory");
    bool again = n < json_array_size(old);
    if (again && c->o->temperature == 0)
        cli_note("/regen: at temperature 0 the same question has the same answer; start with "
                 "--temperature 0.7 to get another answer");
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
    int code = cli_history_set_system(c->messages, text);
    return code ? code : cli_note(*text ? "the system message is set" : "no system message now");
}

static double rate(size_t n, double seconds)
{
    return seconds > 0 ? (double)n / seconds : 0;
}

static void show_turns(const char *name, const struct chat_turn *t)
{
    fprintf(stderr,
            "%-14s prompt %zu tokens: %zu reused, %zu computed in %.2f s; answer %zu tokens, "
            "%.1f tokens/s\n",
            name, t->n_prompt, t->n_reused, t->n_prompt - t->n_reused, t->prefill_seconds,
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
    {"/undo", NULL, "remove the last question and its answer", undo},
    {"/regen", NULL, "answer the last question again, with the next seed", regen},
    {"/system", "[TEXT]", "set the system message, or remove it", set_system},
    {"/stats", NULL, "tokens reused and computed, speed, memory", stats},
    {"/help", NULL, "show this list", run_help},
    {"/quit", NULL, "end the conversation; Ctrl-D does this too", quit},
};
enum { N_ROWS = sizeof rows / sizeof *rows };

static int run_help(struct chat *c, const char *argument)
{
    (void)c;
    (void)argument;
    for (size_t i = 0; i < N_ROWS; i++) {
        int n = fprintf(stderr, "%s%s%s", rows[i].name, rows[i].argument ? " " : "",
                        rows[i].argument ? rows[i].argument : "");
        fprintf(stderr, "%*s%s\n", n < 16 ? 16 - n : 1, "", rows[i].help);
    }
    fputs("A line that ends in \\ is continued by the next line; lines between two lines of \"\"\" "
          "are "
          "one text.\n"
          "Ctrl-C ends an answer after the running step. A second Ctrl-C during that step ends the "
          "program.\n",
          stderr);
    return 0;
}

static int refuse(const char *name)
{
    const char *names[N_ROWS];
    for (size_t i = 0; i < N_ROWS; i++)
        names[i] = rows[i].name;
    const char *nearest = cli_nearest(name, names, N_ROWS);
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
