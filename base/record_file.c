/* Files of records: see record_file.h.
 *
 *     {"<key>": <version>, "checksum": "<XXH3-64 of measured, compact, keys sorted>",
 *      "measured": {"<list>": [{...}, ...], ...}, "end": "<key>"}
 */
#include "base/record_file.h"

#include "base/json.h"
#include "base/kept_file.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#define MAX_BYTES ((size_t)1 << 22) /* far more than the largest file */

/* ---- fields ---- */

/* A count is a field of 4 or 8 bytes; signed fields are never negative. */
static uint64_t load_count(const struct spw_record_field *f, const char *at)
{
    uint32_t small;
    uint64_t large;
    memcpy(&small, at, sizeof small);
    if (f->bytes == sizeof small)
        return small;
    memcpy(&large, at, sizeof large);
    return large;
}

static void store_count(const struct spw_record_field *f, char *at, uint64_t value)
{
    uint32_t small = (uint32_t)value;
    if (f->bytes == sizeof small)
        memcpy(at, &small, sizeof small);
    else
        memcpy(at, &value, sizeof value);
}

static json_t *write_field(const struct spw_record_field *f, const char *at)
{
    switch (f->kind) {
    case SPW_RECORD_TEXT:
        return json_string(at);
    case SPW_RECORD_COUNT:
        return json_integer((json_int_t)load_count(f, at));
    case SPW_RECORD_REAL:
        return json_real(*(const double *)(const void *)at);
    case SPW_RECORD_FLAG:
        break;
    }
    return json_boolean(*(const bool *)at);
}

static bool read_field(const struct spw_record_field *f, const json_t *value, char *at)
{
    switch (f->kind) {
    case SPW_RECORD_TEXT:
        if (!json_is_string(value) || json_string_length(value) >= f->bytes ||
            strlen(json_string_value(value)) != json_string_length(value))
            return false;
        memcpy(at, json_string_value(value), json_string_length(value) + 1);
        return true;
    case SPW_RECORD_COUNT: {
        double n = (double)json_integer_value(value);
        if (!json_is_integer(value) || n < f->min || n > f->max)
            return false;
        store_count(f, at, (uint64_t)json_integer_value(value));
        return true;
    }
    case SPW_RECORD_REAL: {
        double x = json_number_value(value);
        if (!json_is_number(value) || !isfinite(x) || x < f->min || x > f->max)
            return false;
        *(double *)(void *)at = x;
        return true;
    }
    case SPW_RECORD_FLAG:
        break;
    }
    *(bool *)at = json_is_true(value);
    return json_is_boolean(value);
}

/* ---- entries ---- */

static json_t *write_entry(const struct spw_record_list *l, const char *entry)
{
    json_t *o = json_object();
    int failed = 0;
    for (size_t i = 0; i < l->n_fields; i++)
        failed |= json_object_set_new(o, l->fields[i].name,
                                      write_field(&l->fields[i], entry + l->fields[i].at));
    if (!failed)
        return o;
    json_decref(o);
    return NULL;
}

static unsigned *count_of(const struct spw_record_list *l, const void *of)
{
    return (unsigned *)(uintptr_t)((const char *)of + l->n);
}

static char *entry_at(const struct spw_record_list *l, const void *of, size_t i)
{
    return (char *)(uintptr_t)of + l->at + i * l->entry_bytes;
}

static json_t *write_list(const struct spw_record_list *l, const void *of)
{
    json_t *list = json_array();
    for (size_t i = 0; i < *count_of(l, of); i++) {
        json_t *entry = write_entry(l, entry_at(l, of, i));
        if (json_array_append_new(list, entry) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static int read_entry(const struct spw_record_list *l, void *of, size_t i, const json_t *entry,
                      const char *path, struct spw_error *err)
{
    char *at = entry_at(l, of, i);
    if (!json_is_object(entry) || json_object_size(entry) != l->n_fields)
        return spw_fail(err, -EINVAL, "%s: %s: entry %zu: expected an object of %zu fields", path,
                        l->name, i + 1, l->n_fields);
    for (size_t f = 0; f < l->n_fields; f++)
        if (!read_field(&l->fields[f], json_object_get(entry, l->fields[f].name),
                        at + l->fields[f].at))
            return spw_fail(err, -EINVAL, "%s: %s: entry %zu: %s is missing or out of range", path,
                            l->name, i + 1, l->fields[f].name);
    return 0;
}

static int read_list(const struct spw_record_list *l, void *of, const json_t *list,
                     const char *path, struct spw_error *err)
{
    if (!json_is_array(list) || json_array_size(list) > l->max)
        return spw_fail(err, -EINVAL, "%s: %s: expected a list of at most %zu", path, l->name,
                        l->max);
    for (size_t i = 0; i < json_array_size(list); i++)
        SPW_TRY(read_entry(l, of, i, json_array_get(list, i), path, err));
    *count_of(l, of) = (unsigned)json_array_size(list);
    return 0;
}

/* ---- the file ---- */

static bool sum_of(const json_t *measured, char out[17])
{
    char *text = spw_json_dump(measured, JSON_COMPACT | JSON_SORT_KEYS);
    if (text)
        snprintf(out, 17, "%016llx", (unsigned long long)XXH3_64bits(text, strlen(text)));
    spw_free(text);
    return text != NULL;
}

static int check_frame(const struct spw_record_file *f, const json_t *root, const json_t **measured,
                       const char *path, struct spw_error *err)
{
    const json_t *version = json_object_get(root, f->key);
    const char *sum = json_string_value(json_object_get(root, "checksum"));
    char expected[17];
    *measured = json_object_get(root, "measured");
    if (!json_is_integer(version) || !sum || !json_is_object(*measured))
        return spw_fail(err, -EINVAL, "%s: found no %s of spillway", path, f->what);
    if (json_integer_value(version) != f->version)
        return spw_fail(err, -EINVAL, "%s: found version %lld of the %s, expected %d", path,
                        (long long)json_integer_value(version), f->what, f->version);
    if (!sum_of(*measured, expected))
        return spw_fail(err, -ENOMEM, "%s: no memory to check it", path);
    if (strcmp(sum, expected) != 0)
        return spw_fail(err, -EINVAL, "%s: found checksum %.16s, expected %s", path, sum, expected);
    return 0;
}

static int read_root(const struct spw_record_file *f, void *of, const json_t *root,
                     const char *path, struct spw_error *err)
{
    const json_t *measured;
    SPW_TRY(check_frame(f, root, &measured, path, err));
    for (const struct spw_record_list *l = f->lists; l < f->lists + f->n_lists; l++)
        SPW_TRY(read_list(l, of, json_object_get(measured, l->name), path, err));
    return 0;
}

static void clear(const struct spw_record_file *f, void *of)
{
    for (const struct spw_record_list *l = f->lists; l < f->lists + f->n_lists; l++) {
        memset(entry_at(l, of, 0), 0, l->max * l->entry_bytes);
        *count_of(l, of) = 0;
    }
}

int spw_record_file_read(const struct spw_record_file *f, void *of, const char *path,
                         struct spw_error *err)
{
    char *text;
    size_t bytes;
    json_error_t why;
    json_t *root;
    clear(f, of);
    SPW_TRY(spw_kept_file_read(path, MAX_BYTES, &text, &bytes, err));
    int rc = spw_json_parse(&root, text, bytes, JSON_REJECT_DUPLICATES, &why);
    spw_free(text);
    if (rc == -ENOMEM)
        rc = spw_fail(err, rc, "%s: no memory for its JSON", path);
    else
        rc = rc ? spw_fail(err, rc, "%s: line %d: %s", path, why.line, why.text)
                : read_root(f, of, root, path, err);
    json_decref(root);
    if (rc)
        clear(f, of);
    return rc;
}

static json_t *write_root(const struct spw_record_file *f, const void *of)
{
    char sum[17];
    json_t *measured = json_object(), *root = json_object();
    int failed = 0;
    for (size_t i = 0; i < f->n_lists; i++)
        failed |= json_object_set_new(measured, f->lists[i].name, write_list(&f->lists[i], of));
    failed |= !sum_of(measured, sum);
    failed |= json_object_set_new(root, f->key, json_integer(f->version));
    failed |= json_object_set_new(root, "checksum", failed ? NULL : json_string(sum));
    failed |= json_object_set_new(root, "measured", measured);
    failed |= json_object_set_new(root, "end", json_string(f->key));
    if (!failed)
        return root;
    json_decref(root);
    return NULL;
}

int spw_record_file_write(const struct spw_record_file *f, const void *of, const char *path,
                          struct spw_error *err)
{
    char begin[64], tail[64];
    snprintf(begin, sizeof begin, "{\n  \"%s\":", f->key);
    snprintf(tail, sizeof tail, "\n  \"end\": \"%s\"\n}\n", f->key);
    json_t *root = write_root(f, of);
    char *text = spw_json_dump(root, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
    json_decref(root);
    if (!text)
        return spw_fail(err, -ENOMEM, "%s: cannot be written: no memory", path);
    const size_t end = strlen(text);
    text[end] = '\n'; /* in place of the NUL */
    int rc = spw_kept_file_write(path, &(struct spw_kept_kind){begin, tail}, text, end + 1, err);
    spw_free(text);
    return rc;
}

/* ---- one entry ---- */

static bool is_same(const struct spw_record_list *l, const char *a, const char *b)
{
    for (const struct spw_record_field *f = l->fields; f < l->fields + l->n_fields; f++)
        if (f->is_key && (f->kind == SPW_RECORD_TEXT ? strcmp(a + f->at, b + f->at)
                                                     : memcmp(a + f->at, b + f->at, f->bytes)))
            return false;
    return true;
}

const void *spw_record_find(const struct spw_record_list *l, const void *of, const void *key)
{
    for (size_t i = 0; i < *count_of(l, of); i++)
        if (is_same(l, entry_at(l, of, i), key))
            return entry_at(l, of, i);
    return NULL;
}

static char *find_oldest(const struct spw_record_list *l, const void *of)
{
    char *oldest = entry_at(l, of, 0);
    int64_t date, oldest_date = INT64_MAX;
    for (size_t i = 0; i < *count_of(l, of); i++) {
        memcpy(&date, entry_at(l, of, i) + l->date, sizeof date);
        if (date >= oldest_date)
            continue;
        oldest = entry_at(l, of, i);
        oldest_date = date;
    }
    return oldest;
}

void spw_record_put(const struct spw_record_list *l, void *of, const void *entry)
{
    char *to = (char *)(uintptr_t)spw_record_find(l, of, entry);
    unsigned *n = count_of(l, of);
    if (!to)
        to = *n < l->max ? entry_at(l, of, (*n)++) : find_oldest(l, of);
    memcpy(to, entry, l->entry_bytes);
}
