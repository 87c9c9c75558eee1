/* Facts as text. The JSON of a command is the only list of its facts; the text follows from it:
 *
 *     layers                       3                           a key in words, and its value
 *     budget                       device 64.00 MiB, host 2.00 GiB, disk 0 B
 *     moved                                                    what is too long for one line
 *       a prompt of the context    host to device 31.94 GiB, ...
 *
 * What says nothing is left out: null, an empty text or list, 0 bytes, and a 0 or a "no" that is no
 * member of another fact. The name of a key says its unit, also for what lies in its value. */
#include "tools/command/limits.h"

#include <stdlib.h>
#include <string.h>

enum unit { PLAIN, BYTES, RATE, FLOPS, SECONDS, DATE, UNITS };
enum { COLUMN = 28, WIDTH = 130 };

/* ---- words ---- */

/* The ends of keys that say a unit, and what is left out of the words. A key with "bytes" in it has
 * bytes in any case. */
static const struct {
    const char *end;
    enum unit unit;
} unit_ends[] = {
    {"_bytes_per_second", RATE}, {"_bytes", BYTES}, {"_flops", FLOPS},
    {"_seconds", SECONDS},       {"_at", DATE},
};

/* The unit that the key says, and the length of the key without it. */
static enum unit read_key(const char *key, size_t *n)
{
    *n = strlen(key);
    for (size_t i = 0; i < sizeof unit_ends / sizeof *unit_ends; i++) {
        const size_t end = strlen(unit_ends[i].end);
        if (*n > end && strcmp(key + *n - end, unit_ends[i].end) == 0) {
            *n -= unit_ends[i].unit == DATE ? 0 : end;
            return unit_ends[i].unit;
        }
    }
    return strstr(key, "bytes") ? BYTES : UNITS;
}

static enum unit unit_of(const char *key, const json_t *value, enum unit above)
{
    static const char *const tiers[] = {"device", "host", "disk"}; /* parts of a plan */
    size_t n;
    const enum unit unit = read_key(key, &n);
    for (size_t i = 0; i < 3 && json_is_object(value); i++)
        if (strcmp(key, tiers[i]) == 0)
            return BYTES;
    return unit == UNITS ? above : unit;
}

/* "n_kv_heads": "kv heads"; "budget_bytes": "budget"; some facts of a plan have words of their own.
 * Returns the number of columns. */
static int put_words(FILE *to, const char *key, const json_t *value)
{
    static const char *const own[][2] = {
        {"prefill", "a prompt of the context"},
        {"decode_step", "each token then"},
        {"run", "the run"},
        {"smallest_bytes", "smallest budgets"},
        {"disk_write_bytes", "written to disk"},
        {"decode_weights_bytes", "weights of each token"},
        {"kv_bytes_per_token", "kv of a token"},
        {"session_states_bytes", "states of a session"},
        {"disk_end", "on disk up to token"},
        {"host_end", "in host memory up to token"},
        {"decode_read_bytes", "reads of each token"},
        {"read_bytes_per_second", "reads"},
        {"write_bytes_per_second", "writes"},
        {"copy_bytes_per_second", "copies"},
        {"host_bytes_per_second", "products in host memory"},
        {"small_read_bytes_per_second", "small reads"},
        {"latency_seconds", "time of one request"},
        {"few_row_flops", "products of one row"},
        {"many_row_flops", "products of many rows"},
        {"predicted_step", "expected time of a token"},
        {"predicted_prompt", "expected time of a prompt"},
        {"predicted_tokens_per_second", "expected tokens/s"},
        {"predicted_run", "expected time of the run"},
    };
    const size_t begin = strncmp(key, "n_", 2) == 0 ? 2 : 0;
    size_t n;
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (strcmp(key, own[i][0]) == 0 && (i > 2 || json_is_object(value)))
            return fprintf(to, "%s", own[i][1]);
    read_key(key, &n);
    for (size_t i = begin; i < n; i++)
        fputc(key[i] == '_' ? ' ' : key[i], to);
    return (int)(n - begin);
}

/* ---- values ---- */

static bool is_zero(const json_t *value)
{
    return json_is_false(value) || (json_is_number(value) && json_number_value(value) == 0);
}

static bool says_nothing(const json_t *value, enum unit unit, int depth)
{
    return json_is_null(value) || (json_is_string(value) && !json_string_length(value)) ||
           (json_is_array(value) && !json_array_size(value)) ||
           (is_zero(value) && (unit == BYTES || !depth));
}

static bool is_scalar(const json_t *value)
{
    return !json_is_object(value) && !json_is_array(value);
}

/* A text of a file may have codes that a terminal obeys. */
static void put_text(FILE *to, const char *text)
{
    for (; *text; text++)
        fputc((unsigned char)*text < ' ' || *text == 0x7f ? '?' : *text, to);
}

static void put_number(FILE *to, const json_t *value, enum unit unit)
{
    char text[32];
    const double x = json_number_value(value);
    if (unit == BYTES)
        fputs(cli_format_bytes(text, (uint64_t)x), to);
    else if (unit == RATE)
        fprintf(to, "%.3g GB/s", x * 1e-9);
    else if (unit == FLOPS)
        fprintf(to, "%.3g GFLOP/s", x * 1e-9);
    else if (unit == SECONDS)
        fprintf(to, "%s s", cli_format_number(text, x));
    else if (unit == DATE)
        fputs(cli_format_date(text, (int64_t)x), to);
    else if (json_is_integer(value))
        fprintf(to, "%lld", (long long)json_integer_value(value));
    else
        fputs(cli_format_number(text, x), to);
}

static void put_value(FILE *to, json_t *value, enum unit unit);

/* The items of a list, or the members of an object. */
static void put_members(FILE *to, json_t *value, enum unit unit)
{
    const char *key, *between = "";
    json_t *item;
    size_t i;
    json_array_foreach(value, i, item)
    {
        fputs(between, to);
        put_value(to, item, unit);
        between = ", ";
    }
    json_object_foreach(value, key, item)
    {
        const enum unit own = unit_of(key, item, unit);
        if (says_nothing(item, own, 1))
            continue;
        fputs(between, to);
        put_words(to, key, item);
        fputc(' ', to);
        put_value(to, item, own);
        between = ", ";
    }
}

/* In one line. */
static void put_value(FILE *to, json_t *value, enum unit unit)
{
    const bool is_list = json_is_array(value);
    if (json_is_string(value))
        put_text(to, json_string_value(value));
    else if (json_is_boolean(value))
        fputs(json_is_true(value) ? "yes" : "no", to);
    else if (json_is_number(value))
        put_number(to, value, unit);
    else if (is_list)
        fputs("[", to);
    put_members(to, value, unit);
    if (is_list)
        fputs("]", to);
}

/* Whether the value may stand in one line: it has no objects in it. */
static bool is_flat(json_t *value)
{
    const char *key;
    json_t *item;
    size_t i;
    bool flat = true;
    json_object_foreach(value, key, item) flat =
        flat && (is_scalar(item) || (json_is_array(item) && is_flat(item)));
    json_array_foreach(value, i, item) flat = flat && is_scalar(item);
    return flat;
}

static void print_members(json_t *value, int depth, enum unit unit);

/* A fact with its name; NULL: an item of a list. */
static void print_fact(const char *key, json_t *value, int depth, enum unit unit)
{
    char *line = NULL;
    size_t bytes = 0;
    FILE *to = is_flat(value) ? open_memstream(&line, &bytes) : NULL;
    if (to)
        (json_array_size(value) ? put_members : put_value)(to, value, unit);
    if (to)
        fclose(to);
    const int indent = 2 * depth;
    const bool fits =
        line && (is_scalar(value) || indent + (key ? COLUMN + 1 : 0) + (int)bytes <= WIDTH);
    const int before = key || fits ? printf("%*s", indent, "") : 0;
    const int at = key ? before + put_words(stdout, key, value) : COLUMN;
    const int blanks = !key ? 0 : at < COLUMN ? COLUMN - at + 1 : 1;
    printf("%*s%s\n", fits ? blanks : 0, "", fits ? line : "");
    if (!fits)
        print_members(value, depth + 1, unit);
    free(line);
}

static void print_members(json_t *value, int depth, enum unit unit)
{
    const char *key;
    json_t *item;
    size_t i;
    json_object_foreach(value, key, item)
    {
        const enum unit own = unit_of(key, item, unit);
        if (!says_nothing(item, own, depth))
            print_fact(key, item, depth, own);
    }
    json_array_foreach(value, i, item) print_fact(NULL, item, depth, unit);
}

int cli_show(const struct cli_options *o, json_t *facts)
{
    if (o->json || !facts)
        return cli_print_json(facts);
    print_members(facts, 0, PLAIN);
    json_decref(facts);
    return CLI_DONE;
}
