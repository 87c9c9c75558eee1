/* See json.h. */
#include "tools/command/output/json.h"

#include "tools/command/common.h"

#include <math.h>
#include <string.h>

json_t *cli_json_text(const char *text)
{
    if (!text)
        return json_null();
    json_t *value = json_string(text);
    char *copy = value ? NULL : spw_strdup(text);
    if (!copy)
        return value;
    for (char *c = copy; *c; c++)
        if (*c & 0x80)
            *c = '?';
    value = json_string(copy);
    spw_free(copy);
    return value;
}

json_t *cli_json_grown(const struct spw_text *text)
{
    return text->failed ? NULL : json_stringn(text->n ? text->text : "", text->n);
}

json_t *cli_json_real(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

json_t *cli_json_count(uint64_t value)
{
    return json_integer((json_int_t)spw_min_u64(value, INT64_MAX));
}

json_t *cli_json_integer(int64_t value)
{
    return json_integer(value);
}

json_t *cli_json_bool(bool value)
{
    return json_boolean(value);
}

static void drop(json_t **value)
{
    json_decref(*value);
    *value = NULL;
}

/* Jansson's setters take the reference even when they fail, and they fail for NULL. */
void cli_json_add(json_t **object, const char *name, json_t *value)
{
    if (json_object_set_new(*object, name, value))
        drop(object);
}

void cli_json_append(json_t **list, json_t *value)
{
    if (json_array_append_new(*list, value))
        drop(list);
}

void cli_json_add_fields(json_t **object, const struct cli_field *fields, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (fields[i].name)
            cli_json_add(object, fields[i].name, fields[i].value);
        else
            json_decref(fields[i].value);
    }
}

json_t *cli_json_object(const struct cli_field *fields, size_t n)
{
    json_t *object = json_object();
    cli_json_add_fields(&object, fields, n);
    return object;
}

static int fail_stdout(int rc)
{
    if (rc == -EPIPE)
        return CLI_FAILED;
    return cli_fail(CLI_FAILED, "stdout: %s", strerror(-rc));
}

int cli_json_parse(json_t **out, const char *text, size_t bytes, const char *path)
{
    json_error_t why;
    int rc = spw_json_parse(out, text, bytes, JSON_REJECT_DUPLICATES, &why);
    if (rc == -ENOMEM)
        return cli_fail(CLI_FAILED, "%s: no memory for its JSON", path);
    return rc ? cli_fail(CLI_REFUSED, "%s: line %d, column %d: %s", path, why.line, why.column,
                         why.text)
              : 0;
}

int cli_print_json(json_t *value)
{
    char *text = spw_json_dump(value, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
    json_decref(value);
    if (!text)
        return cli_fail(CLI_FAILED, "no memory for the JSON answer");
    int rc = cli_write(text, strlen(text));
    if (rc == 0)
        rc = cli_write("\n", 1);
    spw_free(text);
    return rc ? fail_stdout(rc) : CLI_DONE;
}
