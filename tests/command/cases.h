/* Cases in a file of text, tests/command/NAME.cases: commands, and what they must say. They run in
 * the folder of command_run.h, where `spillway` is the tested program.
 *
 *     [section]                  of cases; a test runs one after the other
 *     # a comment
 *     $ spillway inspect m       a line of shell whose exit status is 0; a line that ends in \
 *                                continues on the next line
 *     2$ spillway generate m     one with another exit status
 *     R generate m               arguments that spillway refuses: status 2, one line on stderr (and
 *                                notes of what is measured before it), nothing on stdout
 *     ? command -v bash          a line of shell; if it fails, the rest of the section is left out
 *
 * What a command must say stands below it, or behind " => " on its line:
 *
 *       words        stderr has them; "! words": it has not; "=": it is empty
 *       > words      stdout has them; ">! words": it has not; ">= text": it is this line, or empty
 *       . a.0.b 5    stdout is JSON with this value there; "> 5": a larger one, "< 5": a smaller;
 *                    "~ text": a text that has this one; "none": nothing
 *       $name a.b    from now on $name is the number there */
#ifndef SPW_TESTS_COMMAND_CASES_H
#define SPW_TESTS_COMMAND_CASES_H

#include "tests/command/command_json.h"

struct cases {
    const char *file;
    int number;          /* of the line */
    char command[16384]; /* the latest one */
};

static inline void cases_check(const struct cases *c, bool is_right, const char *what)
{
    CHECK_MSG(is_right, "%s:%d: %s\n  expected %s\n  stderr: %.500s\n  stdout: %.500s", c->file,
              c->number, c->command, what, err, out);
}

/* One line, after notes if the drive and the machine had to be measured. */
static inline bool cases_refused(int code)
{
    const char *text = err, *end = strchr(text, '\n');
    for (; end && !strncmp(text, "spillway: measuring ", 20); end = strchr(text, '\n'))
        text = end + 1;
    return code == 2 && !n_out && !strncmp(text, "spillway: ", 10) && end && !end[1];
}

static inline bool cases_has_value(const char *text)
{
    char path[128];
    int n = 0;
    json_t *root = json_loads(out, JSON_DECODE_ANY, NULL);
    sscanf(text, "%127s %n", path, &n);
    const char *value = text + n;
    const json_t *j = value_at(root, path);
    char *is = j ? json_dumps(j, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    bool right = is ? !strcmp(is, value) : !strcmp(value, "none");
    if (strchr("<>", *value))
        right = json_is_number(j) && (*value == '>' ? json_number_value(j) > atof(value + 1)
                                                    : json_number_value(j) < atof(value + 1));
    if (*value == '~')
        right = json_is_string(j) && strstr(json_string_value(j), value + 2);
    free(is);
    json_decref(root);
    return right;
}

/* Sets a variable of the shell to a number: "name path". */
static inline void cases_take(const struct cases *c, const char *text)
{
    char name[32], path[128] = "", value[32];
    sscanf(text, "%31s %127s", name, path);
    json_t *root = json_loads(out, JSON_DECODE_ANY, NULL);
    const json_t *j = value_at(root, path);
    cases_check(c, json_is_integer(j), text);
    snprintf(value, sizeof value, "%lld", (long long)json_integer_value(j));
    setenv(name, value, 1);
    json_decref(root);
}

static inline void cases_expect(const struct cases *c, const char *says)
{
    const bool of_out = *says == '>', lacks = says[of_out] == '!', is = says[of_out] == '=';
    const char *text = of_out ? out : err, *words = says + of_out + (lacks || is);
    words += *words == ' ' && words > says;
    if (!strncmp(says, ". ", 2))
        cases_check(c, cases_has_value(says + 2), says);
    else if (*says == '$')
        cases_take(c, says + 1);
    else if (is)
        cases_check(
            c,
            !strncmp(text, words, strlen(words)) &&
                (!*words ? !*text : !text[strlen(words)] || !strcmp(text + strlen(words), "\n")),
            says);
    else
        cases_check(c, !strstr(text, words) == lacks, says);
}

/* False: the rest of the section is left out. */
static inline bool cases_run(struct cases *c)
{
    char *line = c->command, *says = strstr(line, " => ");
    if (says)
        *says = 0;
    if (*line == '?')
        return sh("%s", line + 2) == 0;
    if (*line == 'R') {
        int code = sh("spillway %s", line + 2);
        cases_check(c, cases_refused(code), "a refusal in one line");
    } else {
        char what[32], *command;
        const int expected = (int)strtol(line, &command, 10), code = sh("%s", command + 2);
        snprintf(what, sizeof what, "status %d, found %d", expected, code);
        cases_check(c, code == expected && !strncmp(command, "$ ", 2), what);
    }
    if (says)
        cases_expect(c, says + 4);
    return true;
}

/* Runs a section of tests/command/NAME.cases; NULL: all of them. */
static inline void run_cases(const char *name, const char *section)
{
    struct cases c = {.file = name};
    char path[128], line[8192];
    bool is_here = false, continues = false;
    int n_commands = 0;
    snprintf(path, sizeof path, "tests/command/%s.cases", name);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        c.number++;
        line[strcspn(line, "\n")] = 0;
        if (*line == '[' && !continues)
            is_here = !section || (!strncmp(line + 1, section, strlen(section)) &&
                                   !strcmp(line + 1 + strlen(section), "]"));
        else if (is_here && *line == ' ' && !continues)
            cases_expect(&c, line + 2);
        else if (is_here && (continues || (*line && *line != '#'))) {
            const size_t n = continues ? strlen(c.command) : 0;
            snprintf(c.command + n, sizeof c.command - n, "%s%s", n ? "\n" : "", line);
            continues = *line && line[strlen(line) - 1] == '\\';
            n_commands += !continues;
            is_here = continues || cases_run(&c);
        }
    }
    CHECK_MSG(n_commands > 0 && !continues, "%s: no section %s", path, section ? section : "");
    if (file)
        fclose(file);
}

#endif
