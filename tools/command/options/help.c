/* --help, written from the option table and the table of subcommands. */
#include "tools/command/options/options.h"

#include <string.h>

enum {
    WIDTH = 80,
    COLUMN = 30, /* where help texts begin */
};

/* Writes the words of `text` between COLUMN and WIDTH. The line has already reached column `at`. */
static void wrap(FILE *to, const char *text, size_t at)
{
    bool fresh = true;
    if (at >= COLUMN) {
        fputc('\n', to);
        at = 0;
    }
    fprintf(to, "%*s", (int)(COLUMN - at), "");
    at = COLUMN;
    while (*text) {
        size_t bytes = strcspn(text, " ");
        if (!fresh && at + 1 + bytes > WIDTH) {
            fprintf(to, "\n%*s", COLUMN, "");
            at = COLUMN;
            fresh = true;
        }
        fprintf(to, "%s%.*s", fresh ? "" : " ", (int)bytes, text);
        at += bytes + !fresh;
        fresh = false;
        text += bytes;
        text += *text == ' ';
    }
    fputc('\n', to);
}

static void show_row(FILE *to, const struct cli_row *row)
{
    char left[80], words[256] = "";
    const char *argument = row->argument;
    if (row->choices) { /* the choices are shown instead of a name for them */
        for (const struct cli_choice *c = row->choices; c->name; c++) {
            size_t n = strlen(words);
            snprintf(words + n, sizeof words - n, "%s%s", n ? "|" : "", c->name);
        }
        argument = words;
    }
    int n = snprintf(left, sizeof left, "  --%s%s%s", row->name, argument ? " " : "",
                     argument ? argument : "");
    fputs(left, to);
    wrap(to, row->help, (size_t)n + 1 > COLUMN ? COLUMN : (size_t)n);
}

/* Whether help shows the option. With few options it shows all. */
static bool is_shown(const struct cli_row *row, const struct cli_command *command, bool all)
{
    enum { FEW = 12 };
    size_t n = 0;
    for (const struct cli_row *r = cli_rows; r->name; r++)
        n += (r->commands & command->bit) != 0;
    return row->commands & command->bit && (all || n <= FEW || row->everyday & command->bit);
}

void cli_help(FILE *to, const struct cli_command *command, bool all)
{
    fprintf(to, "Usage: spillway %s %s%s\n\n%s\n", command->name, command->operand,
            command->bit == CLI_COMPLETION ? "" : " [options]", command->description);
    const char *group = "";
    size_t n_left = 0;
    for (const struct cli_row *row = cli_rows; row->name; row++) {
        if (!is_shown(row, command, all)) {
            n_left += (row->commands & command->bit) != 0;
            continue;
        }
        if (strcmp(group, row->group) != 0)
            fprintf(to, "\n%s:\n", row->group);
        group = row->group;
        show_row(to, row);
    }
    if (n_left)
        fprintf(to, "\n'spillway %s --help all' shows %zu more options.\n", command->name, n_left);
    if (command->bit & (CLI_GENERATE | CLI_CHAT | CLI_SCORE | CLI_PLAN | CLI_BENCH | CLI_CACHE |
                        CLI_BATCH | CLI_SERVE))
        fputs("\nSIZE is 64MiB, 2GiB, 1.5G or a number of bytes. Defaults are in parentheses.\n",
              to);
    fputs("\nExamples:\n", to);
    for (const char *line = command->examples; *line;) {
        size_t bytes = strcspn(line, "\n");
        fprintf(to, "  %.*s\n", (int)bytes, line);
        line += bytes + (line[bytes] == '\n');
    }
}

void cli_help_commands(FILE *to)
{
    fputs("Usage: spillway COMMAND ...\n\n"
          "Text generation with models and contexts larger than the device's memory.\n\n"
          "Commands:\n",
          to);
    for (const struct cli_command *c = cli_commands; c->name; c++) {
        int n = fprintf(to, "  %s %s", c->name, c->operand);
        wrap(to, c->summary, (size_t)n);
    }
    fputs(
        "\nMODEL is a Hugging Face folder (config.json, *.safetensors, tokenizer.json) or a GGUF\n"
        "file, the first one if there are several.\n"
        "'spillway COMMAND --help' shows the options of a command, 'spillway --version'\n"
        "the version, 'spillway --man | man -l -' the manual page. Exit status: 0 done,\n"
        "1 failed while running, 2 bad usage or input, 130 interrupted.\n\n"
        "Examples:\n"
        "  spillway plan model.gguf --prompt-file book.txt --device-memory 7GiB\n"
        "  spillway generate model.gguf --prompt-file book.txt --device-memory 7GiB\n"
        "  spillway chat FOLDER --context 100000\n",
        to);
}
