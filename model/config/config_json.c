/* Typed reading of JSON keys: see config_json.h. */
#include "model/config/config_json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

int spw_json_refuse_pointer(const void *text, size_t bytes, const char *file, struct spw_error *err)
{
    static const char start[] = "version https://git-lfs.github.com/spec/";
    if (bytes < sizeof start - 1 || memcmp(text, start, sizeof start - 1) != 0)
        return 0;
    return spw_fail(err, -EINVAL,
                    "%s: found a git-lfs pointer, expected the file itself; 'git lfs pull' in its "
                    "folder fetches it",
                    file);
}

int spw_json_load(const char *text, size_t bytes, const char *file, size_t flags, json_t **out,
                  struct spw_error *err)
{
    json_error_t error;
    SPW_TRY(spw_json_refuse_pointer(text, bytes, file, err));
    json_t *root;
    int rc = spw_json_parse(&root, text, bytes, JSON_REJECT_DUPLICATES | flags, &error);
    if (rc == -ENOMEM)
        return spw_fail(err, rc, "%s: out of memory while reading its JSON", file);
    if (rc)
        return spw_fail(err, rc, "%s: line %d, column %d: %s", file, error.line, error.column,
                        error.text);
    if (!json_is_object(root)) {
        char found[64];
        spw_fail(err, -EINVAL, "%s: found %s, expected a JSON object", file,
                 spw_json_describe(root, found, sizeof found));
        json_decref(root);
        return -EINVAL;
    }
    *out = root;
    return 0;
}

const char *spw_json_describe(const json_t *value, char *buffer, size_t bytes)
{
    if (!value)
        snprintf(buffer, bytes, "nothing");
    else if (json_is_string(value))
        snprintf(buffer, bytes, "\"%.40s\"", json_string_value(value));
    else if (json_is_integer(value))
        snprintf(buffer, bytes, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else if (json_is_real(value))
        snprintf(buffer, bytes, "%.17g", json_real_value(value));
    else if (json_is_object(value))
        snprintf(buffer, bytes, "an object");
    else if (json_is_array(value))
        snprintf(buffer, bytes, "a list of %zu", json_array_size(value));
    else
        snprintf(buffer, bytes, "%s",
                 json_is_true(value)    ? "true"
                 : json_is_false(value) ? "false"
                                        : "null");
    return buffer;
}

void spw_json_tidy(struct spw_error *err)
{
    if (!err)
        return;
    for (char *c = err->text; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127)
            *c = '?';
}

static const char *find_name(const struct spw_keys *keys, const char *key)
{
    if (!keys->names)
        return key;
    const struct spw_key_name *name = keys->names;
    while (name->key && strcmp(name->key, key) != 0)
        name++;
    return name->in_file;
}

const char *spw_keys_name(const struct spw_keys *keys, const char *key)
{
    const char *name = find_name(keys, key);
    return name ? name : key;
}

const json_t *spw_keys_value(const struct spw_keys *keys, const char *key)
{
    const char *name = find_name(keys, key);
    if (keys->unasked && name)
        json_object_del(keys->unasked, name);
    return keys->object && name ? json_object_get(keys->object, name) : NULL;
}

static const json_t *get(const struct spw_keys *keys, const char *key)
{
    const json_t *value = spw_keys_value(keys, key);
    return value && !json_is_null(value) ? value : NULL;
}

bool spw_keys_has(const struct spw_keys *keys, const char *key)
{
    return get(keys, key) != NULL;
}

bool spw_keys_is_null(const struct spw_keys *keys, const char *key)
{
    return json_is_null(spw_keys_value(keys, key));
}

int spw_keys_refuse(const struct spw_keys *keys, const char *key, const char *expected)
{
    char found[64];
    const char *name = spw_keys_name(keys, key);
    const char *own = json_string_value(json_object_get(keys->renamed, name));
    return spw_fail(keys->err, -EINVAL, "%s: %s%s: found %s, expected %s", keys->file, keys->prefix,
                    own ? own : name,
                    spw_json_describe(spw_keys_value(keys, key), found, sizeof found), expected);
}

int spw_keys_u64(const struct spw_keys *keys, const char *key, uint64_t low, uint64_t high,
                 uint64_t *out)
{
    const json_t *value = spw_keys_value(keys, key);
    if (!value)
        return 0;
    json_int_t number = json_integer_value(value);
    if (!json_is_integer(value) || number < 0 || (uint64_t)number < low ||
        (uint64_t)number > high) {
        char expected[96];
        snprintf(expected, sizeof expected, "an integer from %" PRIu64 " to %" PRIu64, low, high);
        return spw_keys_refuse(keys, key, expected);
    }
    *out = (uint64_t)number;
    return 0;
}

int spw_keys_u32(const struct spw_keys *keys, const char *key, uint32_t low, uint32_t high,
                 uint32_t *out)
{
    uint64_t wide = *out;
    SPW_TRY(spw_keys_u64(keys, key, low, high, &wide));
    *out = (uint32_t)wide;
    return 0;
}

int spw_keys_number(const struct spw_keys *keys, const char *key, double low, double high,
                    double *out)
{
    const json_t *value = spw_keys_value(keys, key);
    if (!value)
        return 0;
    double number = json_number_value(value);
    if (!json_is_number(value) || !isfinite(number) || number < low || number > high) {
        char expected[96];
        snprintf(expected, sizeof expected, "a number from %g to %g", low, high);
        return spw_keys_refuse(keys, key, expected);
    }
    *out = number;
    return 0;
}

int spw_keys_bool(const struct spw_keys *keys, const char *key, bool *out)
{
    const json_t *value = spw_keys_value(keys, key);
    if (!value)
        return 0;
    if (!json_is_boolean(value))
        return spw_keys_refuse(keys, key, "true or false");
    *out = json_is_true(value);
    return 0;
}

int spw_keys_string(const struct spw_keys *keys, const char *key, const char **out)
{
    const json_t *value = spw_keys_value(keys, key);
    if (!value)
        return 0;
    if (!json_is_string(value))
        return spw_keys_refuse(keys, key, "a string");
    *out = json_string_value(value);
    return 0;
}

int spw_keys_choices(const struct spw_keys *keys, const char *key, uint32_t n,
                     const char *const names[2], const char *expected, uint8_t *out)
{
    const json_t *list = spw_keys_value(keys, key);
    char text[96];
    snprintf(text, sizeof text, "a list of %u (num_hidden_layers) strings", n);
    if (json_array_size(list) != n)
        return spw_keys_refuse(keys, key, text);
    for (uint32_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(list, i);
        const char *name = json_is_string(item) ? json_string_value(item) : "";
        out[i] = !strcmp(name, names[1]);
        if (!out[i] && strcmp(name, names[0]) != 0)
            return spw_fail(keys->err, -EINVAL, "%s: %s%s[%u]: found %s, expected %s", keys->file,
                            keys->prefix, key, i, spw_json_describe(item, text, sizeof text),
                            expected);
    }
    return 0;
}

int spw_keys_object(const struct spw_keys *keys, const char *key, const json_t **out)
{
    const json_t *value = get(keys, key);
    if (!value)
        return 0;
    if (!json_is_object(value))
        return spw_keys_refuse(keys, key, "an object");
    *out = value;
    return 0;
}
