/* docs/options.md, written from the option table: `spillway --options`. */
#include "tools/command/options/options.h"

#include <string.h>

static const char head[] =
    "# Options\n\n"
    "`spillway COMMAND --help` shows the everyday options of a command, `spillway COMMAND --help "
    "all`\n"
    "all of its options. This page has all options of all commands. `spillway --options` writes "
    "it.\n\n"
    "SIZE is `64MiB`, `2GiB`, `1.5G` or a number of bytes. `G` is `GiB`: 1,073,741,824 bytes; `GB` "
    "is\n"
    "1,000,000,000 bytes. The default is in parentheses at the end. An option that is given again\n"
    "replaces its earlier value, so a script can add options to a default. An option of the table\n"
    "Input is refused then, and `--stop` and `--logit-bias` add up.\n\n"
    "Apart from the options that choose tokens, only these can change an answer: `--device`,\n"
    "`--compute`, `--kv-dtype`, `--residual-window`, `--on-oom` and `--allow-long-context`. "
    "Budgets,\n"
    "threads, chunks and buffers never do.\n";

/* What the rows of a group have in common. */
static const struct {
    const char *group, *text;
} notes[] = {
    {"Input", "A UTF-8 byte order mark at the start of a file is left out."},
    {"Generation",
     "A draw depends only on the seed, the position and the number of the answer (`--n`). Biases\n"
     "and penalties come first, in this order: bias, repetition, frequency, presence. Then come\n"
     "temperature, top-k, top-p and min-p."},
    {"Memory", "[The page about memory](memory.md) explains budgets and fallbacks."},
    {"Machine",
     "The files in `~/.cache` are in `$XDG_CACHE_HOME` if that is set to an absolute path."},
    {"Sweep", "These belong to [`spillway bench`](measuring.md#bench)."},
    {"Output",
     "Output files have mode 0600, because they contain your texts. An output replaces your old "
     "file\n"
     "of that name when it is complete (`quantize` does not replace a file). spillway does not\n"
     "overwrite a file of another user, or an input of the same command."},
};

static void begin_group(FILE *to, const char *group)
{
    fprintf(to, "\n## %s\n\n", group);
    for (size_t i = 0; i < sizeof notes / sizeof *notes; i++)
        if (strcmp(notes[i].group, group) == 0)
            fprintf(to, "%s\n\n", notes[i].text);
    fputs("| option | commands | meaning |\n|---|---|---|\n", to);
}

/* Options within the text become code. */
static void put_text(FILE *to, const char *text)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz-";
    while (*text) {
        size_t n = strncmp(text, "--", 2) == 0 ? strspn(text, letters) : 0;
        if (n)
            fprintf(to, "`%.*s`", (int)n, text);
        else
            fprintf(to, *text == '|' || *text == '<' ? "\\%c" : "%c", *text);
        text += n ? n : 1;
    }
}

static void put_row(FILE *to, const struct cli_row *row)
{
    const char *between = "";
    fprintf(to, "| `--%s%s", row->name, row->kind == CLI_FLAG ? "" : " ");
    for (const struct cli_choice *c = row->choices; c && c->name; c++)
        fprintf(to, "%s%s", c == row->choices ? "" : "\\|", c->name);
    fprintf(to, "%s` | ", row->choices || !row->argument ? "" : row->argument);
    for (const struct cli_command *c = cli_commands; c->name; c++) {
        if (row->commands & c->bit) {
            fprintf(to, "%s%s", between, c->name);
            between = ", ";
        }
    }
    fputs(" | ", to);
    put_text(to, row->help);
    fputs(" |\n", to);
}

void cli_options_page(FILE *to)
{
    const char *group = "";
    fputs(head, to);
    for (const struct cli_row *row = cli_rows; row->name; row++) {
        if (strcmp(group, row->group) != 0)
            begin_group(to, row->group);
        group = row->group;
        put_row(to, row);
    }
}
