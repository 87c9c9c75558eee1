/* Completion for three shells. A script of a few lines asks `spillway --complete WORD...` for the
 * words that may stand in the place of the last one: a line for each, with a description behind a
 * tab. The line ":file" stands for the names of files. */
#include "tools/command/common.h"

#include <string.h>

static const struct {
    const char *shell, *script;
} scripts[] = {
    {"bash", "# bash completion of spillway, made by: spillway completion bash\n"
             "_spillway() {\n"
             "    local word=${COMP_WORDS[COMP_CWORD]}\n"
             "    if [ \"$word\" = = ]; then word=; fi # --name=value comes as three words\n"
             "    mapfile -t COMPREPLY < <(\"${COMP_WORDS[0]}\" --complete "
             "\"${COMP_WORDS[@]:1:COMP_CWORD}\" "
             "| cut -f 1)\n"
             "    if [ \"${COMPREPLY[0]}\" = :file ]; then mapfile -t COMPREPLY < <(compgen -f -- "
             "\"$word\"); fi\n"
             "}\n"
             "complete -o filenames -F _spillway spillway\n"},
    {"zsh", "#compdef spillway\n"
            "# zsh completion of spillway, made by: spillway completion zsh\n"
            "_spillway() {\n"
            "    local -a lines\n"
            "    lines=(${(f)\"$($words[1] --complete \"${(@)words[2,CURRENT]}\")\"})\n"
            "    if [[ $lines[1] = :file ]]; then _files; return; fi\n"
            "    lines=(${lines//:/\\\\:})\n"
            "    _describe spillway '(${lines/$'\\t'/:})'\n"
            "}\n"
            "_spillway \"$@\"\n"},
    {"fish", "# fish completion of spillway, made by: spillway completion fish\n"
             "function __spillway_words\n"
             "    set -l words (commandline -opc) (commandline -ct)\n"
             "    set -l lines ($words[1] --complete $words[2..-1])\n"
             "    if test \"$lines[1]\" = :file\n"
             "        __fish_complete_path (commandline -ct)\n"
             "    else\n"
             "        printf '%s\\n' $lines\n"
             "    end\n"
             "end\n"
             "complete -c spillway -f -a '(__spillway_words)'\n"},
};

int cli_completion(FILE *to, const char *shell)
{
    for (size_t i = 0; i < sizeof scripts / sizeof *scripts; i++)
        if (strcmp(scripts[i].shell, shell) == 0)
            return fputs(scripts[i].script, to) < 0 ? CLI_FAILED : CLI_DONE;
    return cli_fail(CLI_REFUSED, "completion: found '%s', expected bash, zsh or fish", shell);
}

/* ---- words ---- */

/* The word that is not complete, and where its offers go. */
struct offers {
    FILE *to;
    const char *word;
};

static void offer(const struct offers *o, const char *dashes, const char *text, const char *help)
{
    char name[80];
    snprintf(name, sizeof name, "%s%s", dashes, text);
    if (strncmp(name, o->word, strlen(o->word)) == 0)
        fprintf(o->to, "%s%s%s\n", name, *help ? "\t" : "", help);
}

static void offer_all(const struct offers *o, const char *const *texts)
{
    for (; *texts; texts++)
        offer(o, "", *texts, "");
}

static void offer_value(const struct offers *o, const struct cli_row *row)
{
    for (const struct cli_choice *c = row->choices; c && c->name; c++)
        offer(o, "", c->name, "");
    if (row->kind == CLI_FILE_IN || row->kind == CLI_FILE_OUT)
        fputs(":file\n", o->to);
}

static void offer_options(const struct offers *o, const struct cli_command *command)
{
    offer(o, "--", "help", "show the options");
    for (const struct cli_row *row = cli_rows; row->name; row++)
        if (row->commands & command->bit)
            offer(o, "--", row->name, row->help);
}

static void offer_operand(const struct offers *o, const struct cli_command *command, int n)
{
    static const char *const shells[] = {"bash", "zsh", "fish", NULL}, *const verbs[] = {
                                                                           "ls", "verify", "prune",
                                                                           NULL};
    if (command->bit == CLI_COMPLETION)
        offer_all(o, shells);
    else if (command->bit == CLI_CACHE && n == 2)
        offer_all(o, verbs);
    else
        fputs(":file\n", o->to);
}

void cli_complete(FILE *to, int n, char **words)
{
    static const char *const pages[] = {"--help", "--version", "--man", NULL};
    struct offers o = {to, n ? words[n - 1] : ""};
    if (n <= 1) {
        for (const struct cli_command *c = cli_commands; c->name; c++)
            offer(&o, "", c->name, c->summary);
        offer_all(&o, pages);
        return;
    }
    const struct cli_command *command = cli_find_command(words[0]);
    const char *before = words[n - 2];
    if (strcmp(o.word, "=") == 0) /* "--name" "=" "value" */
        o.word = "";
    else if (strcmp(before, "=") == 0 && n > 2)
        before = words[n - 3];
    if (!command)
        return;
    const struct cli_row *row =
        strncmp(before, "--", 2) == 0 ? cli_find_row(command, before + 2) : NULL;
    if (row && row->kind != CLI_FLAG)
        offer_value(&o, row);
    else if (*o.word == '-')
        offer_options(&o, command);
    else
        offer_operand(&o, command, n);
}
