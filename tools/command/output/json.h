/* The JSON that the command reads and writes. It writes from tables of fields. A table has one row
 * for each key, in the order of the output:
 *
 *     const struct cli_field fields[] = {
 *         CLI_FIELD(w, n_tokens),                           the key has the name of the member
 *         {"model", CLI_JSON(name)},                        any number, text or bool
 *         {"window", CLI_OR_NULL(w > 0, CLI_JSON(w))},      null without the condition
 *         {*note ? "note" : NULL, CLI_JSON(note)},          a row without a key is left out
 *         {"drive", cli_drive_json(d)},                     what another table makes
 *     };
 *     return CLI_OBJECT(fields);
 *
 * NULL instead of a value means "out of memory" everywhere. A table takes the references of its
 * values. An object or a list that could not take a value is freed and becomes NULL, and stays
 * NULL: only the functions that write look at this. */
#ifndef SPW_TOOLS_COMMAND_OUTPUT_JSON_H
#define SPW_TOOLS_COMMAND_OUTPUT_JSON_H

#include "base/grow.h"
#include "base/json.h"

struct cli_field {
    const char *name; /* NULL: the row is left out */
    json_t *value;    /* owned */
};

/* Bytes above 127 become '?' where the text is not UTF-8. NULL gives null. */
json_t *cli_json_text(const char *text);
/* The text so far; NULL where some of it is missing. */
json_t *cli_json_grown(const struct spw_text *text);
/* null for what JSON has no number for. */
json_t *cli_json_real(double value);
json_t *cli_json_count(uint64_t value);
json_t *cli_json_integer(int64_t value);
json_t *cli_json_bool(bool value);

/* By the type of `x`. A comparison has the type int: cast it to bool. */
#define CLI_JSON(x)                                                                                \
    _Generic((x), bool                                                                             \
             : cli_json_bool, double                                                               \
             : cli_json_real, int                                                                  \
             : cli_json_integer, int64_t                                                           \
             : cli_json_integer, uint32_t                                                          \
             : cli_json_count, uint64_t                                                            \
             : cli_json_count, char *                                                              \
             : cli_json_text, const char *                                                         \
             : cli_json_text)(x)
#define CLI_FIELD(s, member)                                                                       \
    {                                                                                              \
#member, CLI_JSON((s)->member)                                                             \
    }
#define CLI_OR_NULL(condition, value) ((condition) ? (value) : json_null())

/* Adds the rows of a table to *object. */
void cli_json_add_fields(json_t **object, const struct cli_field *fields, size_t n);
json_t *cli_json_object(const struct cli_field *fields, size_t n);
#define CLI_ADD(object, fields)                                                                    \
    cli_json_add_fields(object, fields, sizeof(fields) / sizeof *(fields))
#define CLI_OBJECT(fields) cli_json_object(fields, sizeof(fields) / sizeof *(fields))
/* One field; one item. They take the reference of `value`. */
void cli_json_add(json_t **object, const char *name, json_t *value);
void cli_json_append(json_t **list, json_t *value);

/* Parses the text of a file. Returns an exit code, after a message that names the file and the
 * place; *out is NULL then. */
int cli_json_parse(json_t **out, const char *text, size_t bytes, const char *path);

/* Writes `value` to stdout and takes its reference. Returns an exit code. */
int cli_print_json(json_t *value);
/* The same for facts, which are shown as text without --json: see show.c. */
struct cli_options;
int cli_show(const struct cli_options *o, json_t *facts);

#endif
