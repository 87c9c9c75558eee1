/* The manual page spillway(1), written from the option table and the table of subcommands, for
 * man(1). */
#include "tools/command/options/options.h"

#include <string.h>

/* Writes `text`, escaped for roff. `text` may begin a line. */
static void put(FILE *to, const char *text)
{
    static const char *const escapes[] = {
        ['\\'] = "\\e",  ['-'] = "\\-",   ['\''] = "\\(aq",
        ['`'] = "\\(ga", ['^'] = "\\(ha", ['~'] = "\\(ti",
    };
    for (bool begins = true; *text; begins = *text++ == '\n') {
        unsigned char c = (unsigned char)*text;
        if (begins && c == '.')
            fputs("\\&", to);
        if (c < sizeof escapes / sizeof *escapes && escapes[c])
            fputs(escapes[c], to);
        else
            fputc(c, to);
    }
}

static void put_in(FILE *to, const char *font, const char *text)
{
    fprintf(to, "\\f%s", font);
    put(to, text);
    fputs("\\fR", to);
}

static void put_lines(FILE *to, const char *lines)
{
    fputs(".PP\n.RS\n.nf\n", to);
    put(to, lines);
    fputs("\n.fi\n.RE\n", to);
}

/* A line of its own. */
static void put_usage(FILE *to, const struct cli_command *c)
{
    if (c != cli_commands)
        fputs(".br\n", to);
    put_in(to, "B", "spillway");
    fputc(' ', to);
    put_in(to, "B", c->name);
    fputc(' ', to);
    put_in(to, "I", c->operand);
    fputs(c->bit == CLI_COMPLETION ? "\n" : " [\\fIoptions\\fR]\n", to);
}

static void put_commands(FILE *to)
{
    fputs(".SH COMMANDS\n", to);
    for (const struct cli_command *c = cli_commands; c->name; c++) {
        fputs(".SS ", to);
        put(to, c->name);
        fputs("\n", to);
        put(to, c->description);
        fputc('\n', to);
        put_lines(to, c->examples);
    }
}

static void put_option(FILE *to, const struct cli_row *row)
{
    char name[80];
    snprintf(name, sizeof name, "--%s", row->name);
    fputs(".TP\n", to);
    put_in(to, "B", name);
    if (row->argument)
        fputc(' ', to);
    if (row->argument && !row->choices)
        put_in(to, "I", row->argument);
    for (const struct cli_choice *c = row->choices; c && c->name; c++) {
        put_in(to, "B", c->name);
        fputs(c[1].name ? "|" : "", to);
    }
    fputc('\n', to);
    put(to, row->help);
    fputs("\n.br\nCommands:", to);
    const char *between = " ";
    for (const struct cli_command *c = cli_commands; c->name; c++) {
        if (!(row->commands & c->bit))
            continue;
        fputs(between, to);
        put(to, c->name);
        between = ", ";
    }
    fputs(".\n", to);
}

static void put_options(FILE *to)
{
    const char *group = "";
    fputs(".SH OPTIONS\n"
          "An option is written \\fB\\-\\-name\\fR \\fIvalue\\fR or "
          "\\fB\\-\\-name=\\fR\\fIvalue\\fR. A default is in parentheses.\n",
          to);
    for (const struct cli_row *row = cli_rows; row->name; row++) {
        if (strcmp(group, row->group) != 0)
            fprintf(to, ".SS %s\n", row->group);
        group = row->group;
        put_option(to, row);
    }
}

static const char rest[] =
    ".SH SIZES\n"
    "\\fISIZE\\fR is a number of bytes (1048576), or a number with a unit.\n"
    "The units K, M, G and T, also written KiB, MiB, GiB and TiB, are powers of 1024.\n"
    "The units KB, MB, GB and TB are powers of 1000.\n"
    "A number with a unit may have a fraction: 1.5G.\n"
    ".SH EXIT STATUS\n"
    ".TP\n0\nDone.\n"
    ".TP\n1\nThe run failed, or \\fBcache verify\\fR found damage.\n"
    ".TP\n2\nThe command line or its input was refused, or the budgets are too small.\n"
    ".TP\n128 + N\nInterrupted by signal N: 130 after Ctrl\\-C.\n"
    ".SH FILES\n"
    ".TP\n\\fIMODEL\\fR/config.json, *.safetensors, tokenizer.json\n"
    "The model: its shape, its weights, its tokenizer.\n"
    "generation_config.json and tokenizer_config.json are read where they exist. A GGUF file has "
    "all\n"
    "of these.\n"
    ".TP\n\\(ti/.cache/spillway/drives.json\n"
    "The measured limits of drives and of this machine (\\fB\\-\\-drive\\-profile\\fR).\n"
    ".TP\n\\(ti/.cache/spillway/kv\\-checks.json\n"
    "The results of \\fBcheck\\-kv\\fR (\\fB\\-\\-kv\\-profile\\fR).\n"
    ".TP\n\\(ti/.cache/spillway/weight\\-checksums\n"
    "Checksums of weights (\\fB\\-\\-weight\\-checksums\\fR).\n"
    ".TP\n\\(ti/.cache/spillway/experts.json\n"
    "How often each expert was chosen (\\fB\\-\\-expert\\-profile\\fR).\n"
    ".SH ENVIRONMENT\n"
    ".TP\nXDG_CACHE_HOME\n"
    "The directory that replaces \\(ti/.cache, if it is absolute.\n";

void cli_man(FILE *to)
{
    /* No date: two builds of one version give the same page. */
    fputs(".TH SPILLWAY 1 \"\" \"spillway " SPW_VERSION "\" \"User Commands\"\n"
          ".SH NAME\n"
          "spillway \\- text generation with models and contexts larger than the device\\(aqs "
          "memory\n"
          ".SH SYNOPSIS\n",
          to);
    for (const struct cli_command *c = cli_commands; c->name; c++)
        put_usage(to, c);
    fputs(
        ".SH DESCRIPTION\n"
        "spillway runs a language model whose weights and KV cache may be larger than the memory\n"
        "of the device. It keeps them on the device, in host memory and on disk, each within a\n"
        "budget. Where they lie never changes the answer.\n"
        "Text goes to stdout, everything else to stderr.\n"
        ".PP\n"
        "\\fIMODEL\\fR is a Hugging Face folder (config.json, *.safetensors, tokenizer.json) or a\n"
        "GGUF file, the first one if there are several.\n",
        to);
    put_commands(to);
    put_options(to);
    fputs(rest, to);
}
