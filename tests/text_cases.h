/* Cases in a file of text: a line for each, and below it, indented, what must come of it.
 *
 *     # a comment
 *     [section]
 *     name = text                 from here on $name is this text, and so is the name where a line
 *                                 begins
 *     a line that ends in \       goes on in the next one
 *     one <<x|y>>, again <<1>>    one line with x, one with y, and so on in every such place; <<1>>
 *                                 is what the first place has */
#ifndef SPW_TESTS_TEXT_CASES_H
#define SPW_TESTS_TEXT_CASES_H

#include "tests/check.h"

#include <jansson.h>
#include <string.h>

enum { TEXT_CASES_SAYS = 64, TEXT_CASES_BYTES = 4096 };

struct text_cases {
    const char *path;
    void (*run)(struct text_cases *c, char *line); /* a line is complete, and may be changed */
    void *context;
    int number, n_lines;                          /* of the line that is read; lines that ran */
    char says[TEXT_CASES_SAYS][TEXT_CASES_BYTES]; /* what stands below it, without the indent */
    size_t n_says;
    json_t *names;
};

#define CHECK_CASE(c, is_right, ...)                                                               \
    do {                                                                                           \
        const bool right_ = (is_right);                                                            \
        CHECK_MSG(right_, "before %s:%d", (c)->path, (c)->number);                                 \
        if (!right_)                                                                               \
            fprintf(stderr, "  " __VA_ARGS__), fputc('\n', stderr);                                \
    } while (0)

static inline void text_cases_put_names(const json_t *names, const char *line,
                                        char out[TEXT_CASES_BYTES])
{
    size_t n = 0;
    for (const char *at = line; *at && n < TEXT_CASES_BYTES;) {
        char word[32] = "";
        int bytes = 0;
        if (at == line || *at == '$')
            sscanf(at + (*at == '$'), "%31[a-z0-9_A-Z]%n", word, &bytes);
        const char *text = json_string_value(json_object_get(names, word));
        n += (size_t)snprintf(out + n, TEXT_CASES_BYTES - n, "%.*s", text ? TEXT_CASES_BYTES : 1,
                              text ? text : at);
        at += text ? bytes + (*at == '$') : 1;
    }
    out[n < TEXT_CASES_BYTES ? n : TEXT_CASES_BYTES - 1] = '\0';
}

/* Runs the line with every choice. first: that of the first place; NULL: there was none. */
static inline void text_cases_choose(struct text_cases *c, const char *line, const char *first)
{
    char text[TEXT_CASES_BYTES];
    const char *open = strstr(line, "<<"), *close = open ? strstr(open, ">>") : NULL;
    if (!close) {
        text_cases_put_names(c->names, line, text);
        c->run(c, text);
        c->n_lines++;
        return;
    }
    for (const char *at = open + 2, *end; at <= close; at = end + 1) {
        char word[64];
        end = at + strcspn(at, "|>");
        snprintf(word, sizeof word, "%.*s", (int)(end - at), at);
        const bool again = !strcmp(word, "1") && first;
        snprintf(text, sizeof text, "%.*s%s%s", (int)(open - line), line, again ? first : word,
                 close + 2);
        text_cases_choose(c, text, first ? first : word);
    }
}

static inline bool text_cases_is_name(json_t *names, const char *line)
{
    char name[32];
    int n = 0;
    if (sscanf(line, "%31s = %n", name, &n) != 1 || !n)
        return false;
    json_object_set_new(names, name, json_string(line + n));
    return true;
}

/* A line, and those in which it goes on. */
static inline bool text_cases_next(struct text_cases *c, FILE *file, char line[TEXT_CASES_BYTES])
{
    size_t n = 0;
    while (fgets(line + n, (int)(TEXT_CASES_BYTES - n), file)) {
        c->number++;
        n += strcspn(line + n, "\n");
        line[n] = '\0';
        if (!n || line[n - 1] != '\\')
            return true;
        n--;
        for (int byte = ' '; byte == ' ';) /* the indent of what follows */
            if ((byte = getc(file)) != ' ')
                ungetc(byte, file);
    }
    return false;
}

static inline void run_text_cases(struct text_cases *c)
{
    char line[TEXT_CASES_BYTES], before[TEXT_CASES_BYTES] = "";
    c->names = json_object();
    FILE *file = fopen(c->path, "r");
    for (bool more = file; more;) {
        more = text_cases_next(c, file, line);
        if (more && *line == ' ') {
            memcpy(c->says[c->n_says++ % TEXT_CASES_SAYS], line + 2, sizeof line - 2);
            continue;
        }
        if (*before)
            text_cases_choose(c, before, NULL);
        c->n_says = 0;
        const bool is_case =
            more && *line && !strchr("#[", *line) && !text_cases_is_name(c->names, line);
        snprintf(before, sizeof before, "%s", is_case ? line : "");
    }
    CHECK_MSG(c->n_lines > 0, "%s", c->path);
    if (file)
        fclose(file);
    json_decref(c->names);
}

#endif
