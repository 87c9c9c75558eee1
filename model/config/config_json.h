/* Typed reading of the keys of one JSON object, with messages that name the file, the key, what was
 * found and what was expected. Inside model/ only.
 *
 * A reader borrows everything. A key that is absent leaves *out as it is and returns 0: the caller
 * sets the default before the call. So does null through SPW_OR_NULL and to spw_keys_object; else
 * null is refused, as any value of a wrong type. spw_keys_has tells whether the key is present.
 * Errors: -EINVAL, -ENOMEM. */
#ifndef SPW_MODEL_CONFIG_CONFIG_JSON_H
#define SPW_MODEL_CONFIG_CONFIG_JSON_H

#include "base/json.h"

/* Another format has other names for some keys of config.json, and no such key otherwise. */
struct spw_key_name {
    const char *key, *in_file;
};

struct spw_keys {
    const char *file;
    const char *prefix;   /* where the object lies in the file: "", "text_config.", ... */
    const json_t *object; /* borrowed; NULL reads as an empty object */
    struct spw_error *err;
    const json_t
        *renamed; /* borrowed: the file's own names of keys that were renamed; NULL: none */
    const struct spw_key_name *names; /* up to a key NULL; NULL: names are those of the calls */
    json_t *unasked; /* borrowed: a copy of the object, which loses each key that a reader asks for.
                        NULL: nobody wants to know which keys no reader asks for */
};

/* Refuses a pointer file, which git leaves in place of a large file that it has not fetched:
 * -EINVAL. Else 0. */
int spw_json_refuse_pointer(const void *text, size_t bytes, const char *file,
                            struct spw_error *err);
/* Parses one whole text whose top is an object. `flags`: 0, or SPW_JSON_LARGE_REAL. *out is
 * owned: json_decref. */
int spw_json_load(const char *text, size_t bytes, const char *file, size_t flags, json_t **out,
                  struct spw_error *err);
/* Describes a value for a message: "\"silu\"", "-3", "an array". Returns `buffer`. */
const char *spw_json_describe(const json_t *value, char *buffer, size_t bytes);

/* Makes a message one line of printable bytes, because it may quote a file with any content. */
void spw_json_tidy(struct spw_error *err);

/* The name of the key in the file, without the prefix. */
const char *spw_keys_name(const struct spw_keys *keys, const char *key);
/* NULL: the key is absent. */
const json_t *spw_keys_value(const struct spw_keys *keys, const char *key);
/* The key is present and not null. */
bool spw_keys_has(const struct spw_keys *keys, const char *key);
/* The key is present, and null. */
bool spw_keys_is_null(const struct spw_keys *keys, const char *key);
/* Every complaint about a key has this form: "file: prefixkey: found X, expected Y". */
int spw_keys_refuse(const struct spw_keys *keys, const char *key, const char *expected);

/* Reads a key that may be null: SPW_OR_NULL(spw_keys_bool, keys, "truncate", &out). */
#define SPW_OR_NULL(reader, keys, key, ...)                                                        \
    (spw_keys_is_null(keys, key) ? 0 : reader(keys, key, __VA_ARGS__))

int spw_keys_u64(const struct spw_keys *keys, const char *key, uint64_t low, uint64_t high,
                 uint64_t *out);
int spw_keys_u32(const struct spw_keys *keys, const char *key, uint32_t low, uint32_t high,
                 uint32_t *out);
/* A finite number in [low, high]. */
int spw_keys_number(const struct spw_keys *keys, const char *key, double low, double high,
                    double *out);
int spw_keys_bool(const struct spw_keys *keys, const char *key, bool *out);
int spw_keys_string(const struct spw_keys *keys, const char *key, const char **out);
/* A list of n (num_hidden_layers) strings, each of which is names[0] or names[1]: out[i] is 0 or 1.
 * expected: the names, for messages. An absent key is refused. */
int spw_keys_choices(const struct spw_keys *keys, const char *key, uint32_t n,
                     const char *const names[2], const char *expected, uint8_t *out);
int spw_keys_object(const struct spw_keys *keys, const char *key, const json_t **out);

#endif
