/* What the command prints and writes as JSON. */
#ifndef SPW_TESTS_COMMAND_COMMAND_JSON_H
#define SPW_TESTS_COMMAND_COMMAND_JSON_H

#include "tests/command/command_run.h"

#include <jansson.h>
#include <string.h>

static inline json_t *parse(const char *text)
{
    json_error_t e;
    json_t *j = json_loads(text, 0, &e);
    CHECK_MSG(j, "%s in: %.200s", e.text, text);
    return j;
}

static inline json_t *parse_file(const char *name)
{
    static char text[1 << 20];
    read_file(name, text, sizeof text);
    return parse(text);
}

/* A number at "a.b.c". */
static inline long long number(const json_t *j, const char *path)
{
    char key[64];
    while (*path) {
        size_t n = strcspn(path, ".");
        snprintf(key, sizeof key, "%.*s", (int)n, path);
        j = json_object_get(j, key);
        path += n + (path[n] == '.');
    }
    CHECK_MSG(json_is_integer(j), "no number %s", key);
    return json_integer_value(j);
}

static inline void check_moved(const json_t *report)
{
    const char *link;
    json_t *value;
    json_t *moved = json_object_get(report, "moved_bytes");
    CHECK(json_object_size(moved) == 4);
    json_object_foreach(moved, link, value)
        CHECK_MSG(number(value, "counted") == number(value, "predicted"), "%s", link);
}

#endif
