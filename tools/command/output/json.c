/* See json.h. */
#include "tools/command/output/json.h"

#include "tools/command/common.h"

#include <math.h>
#include <stdlib.h>
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

struct dump {
    char *text;
    size_t n, capacity;
    bool has_failed;
};

static int add(const char *text, size_t bytes, void *context)
{
    struct dump *d = context;
    if (d->n + bytes + 1 > d->capacity) {
        size_t capacity = 2 * (d->n + bytes + 1);
        char *grown = d->has_failed ? NULL : spw_realloc(d->text, capacity);
        d->has_failed = !grown;
        if (!grown)
            return -1;
        d->text = grown;
        d->capacity = capacity;
    }
    memcpy(d->text + d->n, text, bytes);
    d->n += bytes;
    d->text[d->n] = '\0';
    return 0;
}

char *cli_json_dump(const json_t *value, size_t flags)
{
    struct dump d = {0};
    if (value && !json_dump_callback(value, add, &d, flags) && !d.has_failed)
        return d.text;
    spw_free(d.text);
    return NULL;
}

static struct {
    json_malloc_t allocate;
    bool has_failed;
} watched;

static void *watch(size_t bytes)
{
    void *p = watched.allocate(bytes);
    watched.has_failed |= !p;
    return p;
}

int cli_json_load(json_t **out, const char *text, size_t bytes, size_t flags, json_error_t *e)
{
    json_free_t release;
    json_get_alloc_funcs(&watched.allocate, &release);
    watched.has_failed = false;
    json_set_alloc_funcs(watch, release);
    *out = json_loadb(text, bytes, flags, e);
    json_set_alloc_funcs(watched.allocate, release);
    if (watched.has_failed)
        drop(out);
    return watched.has_failed ? -ENOMEM : *out ? 0 : -EINVAL;
}

int cli_print_json(json_t *value)
{
    char *text = value ? json_dumps(value, JSON_INDENT(2) | JSON_PRESERVE_ORDER) : NULL;
    json_decref(value);
    if (!text)
        return cli_fail(CLI_FAILED, "no memory for the JSON answer");
    int rc = cli_write(text, strlen(text));
    if (rc == 0)
        rc = cli_write("\n", 1);
    free(text);
    return rc ? fail_stdout(rc) : CLI_DONE;
}
