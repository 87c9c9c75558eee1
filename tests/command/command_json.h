/* What the command prints and writes as JSON. */
#ifndef SPW_TESTS_COMMAND_COMMAND_JSON_H
#define SPW_TESTS_COMMAND_COMMAND_JSON_H

#include "tests/json_text.h"

#include "tests/command/command_run.h" /* behind headers with parameters `out` and `err` */

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

static inline long long number(const json_t *j, const char *path)
{
    const json_t *found = value_at(j, path);
    CHECK_MSG(json_is_integer(found), "no number %s", path);
    return json_integer_value(found);
}

static inline double real(const json_t *j, const char *path)
{
    return json_real_value(value_at(j, path));
}

static inline const char *text_at(const json_t *j, const char *path)
{
    const char *text = json_string_value(value_at(j, path));
    CHECK_MSG(text, "no text %s", path);
    return text ? text : "";
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
