/* Completion scripts for three shells, written from the option table. */
#include "tools/command/common.h"

#include <string.h>

/* The pattern of a command and the word before the cursor. Any command matches if the option means
 * the same in all commands. */
static void bash_pattern(FILE *to, const struct cli_row *row)
{
    bool alone = true;
    for (const struct cli_row *other = cli_rows; other->name; other++)
        alone = alone && (other == row || strcmp(other->name, row->name) != 0);
    fputs("        ", to);
    if (alone) {
        fprintf(to, "*' --%s')", row->name);
        return;
    }
    const char *between = "";
    for (const struct cli_command *c = cli_commands; c->name; c++) {
        if (!(row->commands & c->bit))
            continue;
        fprintf(to, "%s'%s --%s'", between, c->name, row->name);
        between = "|";
    }
    fputc(')', to);
}

static void bash_values(FILE *to)
{
    for (const struct cli_row *row = cli_rows; row->name; row++) {
        if (row->kind == CLI_FLAG)
            continue;
        bash_pattern(to, row);
        if (row->choices) {
            fputs(" COMPREPLY=($(compgen -W \"", to);
            for (const struct cli_choice *c = row->choices; c->name; c++)
                fprintf(to, "%s%s", c == row->choices ? "" : " ", c->name);
            fputs("\" -- \"$word\"))", to);
        } else if (row->kind == CLI_FILE_IN || row->kind == CLI_FILE_OUT) {
            fputs(" mapfile -t COMPREPLY < <(compgen -f -- \"$word\")", to);
        }
        fputs(row->choices || row->kind == CLI_FILE_IN || row->kind == CLI_FILE_OUT ? "; return;;\n"
                                                                                    : " return;;\n",
              to);
    }
}

static void bash(FILE *to)
{
    fputs("# bash completion of spillway, made by: spillway completion bash\n"
          "_spillway() {\n"
          "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}\n"
          "    COMPREPLY=()\n"
          "    # --name=value comes as three words\n"
          "    if [ \"$word\" = = ]; then word=; elif [ \"$before\" = = ]; then "
          "before=${COMP_WORDS[COMP_CWORD-2]}; fi\n"
          "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
          "        COMPREPLY=($(compgen -W \"",
          to);
    for (const struct cli_command *c = cli_commands; c->name; c++)
        fprintf(to, "%s ", c->name);
    fputs("--help --version --man\" -- \"$word\")); return\n"
          "    fi\n"
          "    case \"${COMP_WORDS[1]} $before\" in\n",
          to);
    bash_values(to);
    fputs("    esac\n"
          "    case \"$word\" in\n"
          "        -*) ;;\n"
          "        *) if [ \"${COMP_WORDS[1]}\" = completion ]; then\n"
          "               COMPREPLY=($(compgen -W \"bash zsh fish\" -- \"$word\"))\n"
          "           elif [ \"${COMP_WORDS[1]}\" = cache ] && [ \"$COMP_CWORD\" -eq 2 ]; then\n"
          "               COMPREPLY=($(compgen -W \"ls verify prune\" -- \"$word\"))\n"
          "           else\n"
          "               mapfile -t COMPREPLY < <(compgen -f -- \"$word\")\n"
          "           fi\n"
          "           return;;\n"
          "    esac\n"
          "    case \"${COMP_WORDS[1]}\" in\n",
          to);
    for (const struct cli_command *c = cli_commands; c->name; c++) {
        fprintf(to, "        %s) COMPREPLY=($(compgen -W \"--help", c->name);
        for (const struct cli_row *row = cli_rows; row->name; row++)
            if (row->commands & c->bit)
                fprintf(to, " --%s", row->name);
        fputs("\" -- \"$word\"));;\n", to);
    }
    fputs("    esac\n"
          "}\n"
          "complete -o filenames -F _spillway spillway\n",
          to);
}

/* Writes `text` for the inside of single quotes of a zsh word, with a backslash before `special`
 * characters. */
static void quote(FILE *to, const char *text, const char *special)
{
    for (; *text; text++) {
        if (*text == '\'')
            fputs("'\\''", to);
        else if (strchr(special, *text))
            fprintf(to, "\\%c", *text);
        else
            fputc(*text, to);
    }
}

static void zsh_row(FILE *to, const struct cli_row *row)
{
    fprintf(to, "            '%s--%s%s[",
            row->kind == CLI_TEXTS || row->kind == CLI_BIASES ? "*" : "", row->name,
            row->kind == CLI_FLAG ? "" : "=");
    quote(to, row->help, "[]:\\");
    fputc(']', to);
    if (row->kind == CLI_FILE_IN || row->kind == CLI_FILE_OUT) {
        fprintf(to, ":%s:_files", row->argument);
    } else if (row->choices) {
        fprintf(to, ":%s:(", row->argument);
        for (const struct cli_choice *c = row->choices; c->name; c++)
            fprintf(to, "%s%s", c == row->choices ? "" : " ", c->name);
        fputc(')', to);
    } else if (row->kind != CLI_FLAG) {
        fputc(':', to);
        quote(to, row->argument, ":[]");
        fputs(": ", to);
    }
    fputs("' \\\n", to);
}

static void zsh(FILE *to)
{
    fputs("#compdef spillway\n"
          "# zsh completion of spillway, made by: spillway completion zsh\n"
          "_spillway() {\n"
          "    if (( CURRENT == 2 )); then\n"
          "        local -a commands=(\n",
          to);
    for (const struct cli_command *c = cli_commands; c->name; c++) {
        fprintf(to, "            '%s:", c->name);
        quote(to, c->summary, ":\\");
        fputs("'\n", to);
    }
    fputs("        )\n"
          "        _describe command commands\n"
          "        return\n"
          "    fi\n"
          "    local command=$words[2]\n"
          "    shift words\n"
          "    (( CURRENT-- ))\n"
          "    case $command in\n",
          to);
    for (const struct cli_command *c = cli_commands; c->name; c++) {
        fprintf(to, "        %s)\n        _arguments '--help[show the options]' \\\n", c->name);
        for (const struct cli_row *row = cli_rows; row->name; row++)
            if (row->commands & c->bit)
                zsh_row(to, row);
        if (c->bit == CLI_COMPLETION)
            fputs("            '1:shell:(bash zsh fish)';;\n", to);
        else if (c->bit == CLI_CACHE)
            fputs("            '1:what:(ls verify prune)' '2:folder:_files -/';;\n", to);
        else
            fputs("            '1:model:_files';;\n", to);
    }
    fputs("    esac\n"
          "}\n"
          "_spillway \"$@\"\n",
          to);
}

static void fish_row(FILE *to, const struct cli_command *c, const struct cli_row *row)
{
    fprintf(to, "complete -c spillway -n '__fish_seen_subcommand_from %s' -l %s", c->name,
            row->name);
    if (row->kind == CLI_FILE_IN || row->kind == CLI_FILE_OUT)
        fputs(" -r -F", to);
    else if (row->kind != CLI_FLAG)
        fputs(" -x", to);
    if (row->choices) {
        fputs(" -a '", to);
        for (const struct cli_choice *choice = row->choices; choice->name; choice++)
            fprintf(to, "%s%s", choice == row->choices ? "" : " ", choice->name);
        fputc('\'', to);
    }
    fputs(" -d '", to);
    for (const char *h = row->help; *h; h++) /* inside quotes, fish escapes with a backslash */
        fprintf(to, *h == '\'' || *h == '\\' ? "\\%c" : "%c", *h);
    fputs("'\n", to);
}

static void fish(FILE *to)
{
    fputs("# fish completion of spillway, made by: spillway completion fish\n"
          "complete -c spillway -f\n"
          "complete -c spillway -n __fish_use_subcommand -l help -d 'show the commands'\n"
          "complete -c spillway -n __fish_use_subcommand -l version -d 'show the version'\n"
          "complete -c spillway -n __fish_use_subcommand -l man -d 'write the manual page'\n",
          to);
    for (const struct cli_command *c = cli_commands; c->name; c++) {
        fprintf(to, "complete -c spillway -n __fish_use_subcommand -a %s -d '%s'\n", c->name,
                c->summary);
        fprintf(to, "complete -c spillway -n '__fish_seen_subcommand_from %s' -a '%s'\n", c->name,
                c->bit == CLI_COMPLETION ? "bash zsh fish"
                : c->bit == CLI_CACHE    ? "ls verify prune (__fish_complete_directories)"
                                         : "(__fish_complete_path)");
        for (const struct cli_row *row = cli_rows; row->name; row++)
            if (row->commands & c->bit)
                fish_row(to, c, row);
    }
}

int cli_completion(FILE *to, const char *shell)
{
    static const struct {
        const char *name;
        void (*write)(FILE *to);
    } shells[] = {{"bash", bash}, {"zsh", zsh}, {"fish", fish}};
    for (size_t i = 0; i < sizeof shells / sizeof *shells; i++) {
        if (strcmp(shells[i].name, shell) == 0) {
            shells[i].write(to);
            return CLI_DONE;
        }
    }
    return cli_fail(CLI_REFUSED, "completion: found '%s', expected bash, zsh or fish", shell);
}
