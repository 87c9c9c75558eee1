/* The keys of items, and the lines that earlier runs have written: see store_parts.h. */
#include "tools/command/job/store/store_parts.h"

#include "tools/command/job/store/lines.h"
#include "tools/command/request/reader.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* ---- keys ---- */

static struct job_key key_of_text(const char *text)
{
    XXH128_hash_t h = XXH3_128bits(text, strlen(text));
    return (struct job_key){h.low64 | (!h.low64 && !h.high64), h.high64};
}

struct job_key job_key_of_number(uint64_t number)
{
    char text[32];
    snprintf(text, sizeof text, "#%" PRIu64, number);
    return key_of_text(text);
}

int job_key_of(const struct request *x, struct job_key *out)
{
    char *text =
        x->id ? spw_json_dump(x->id, JSON_ENCODE_ANY | JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    if (x->id && !text)
        return cli_fail(CLI_FAILED, "line %" PRIu64 ": out of memory", x->number);
    *out = text ? key_of_text(text) : job_key_of_number(x->number);
    spw_free(text);
    return 0;
}

const char *job_key_text(char buffer[JOB_KEY_BYTES], struct job_key key)
{
    snprintf(buffer, JOB_KEY_BYTES, "%016" PRIx64 "%016" PRIx64, key.high, key.low);
    return buffer;
}

bool job_key_parse(const char *text, struct job_key *out)
{
    int n = 0;
    return text && sscanf(text, "%16" SCNx64 "%16" SCNx64 "%n", &out->high, &out->low, &n) == 2 &&
           n == JOB_KEY_BYTES - 1;
}

int job_store_no_memory(const struct job_store *s)
{
    return cli_fail(CLI_FAILED, "%s: out of memory", s->logs[JOB_OUTPUT].path);
}

/* ---- sums ---- */

#define SUM_KEY ",\"sum\":\""
enum { SUM_BYTES = sizeof SUM_KEY - 1 + 16 + 2 }; /* with "} */

static void print_sum(char out[SUM_BYTES + 1], const char *text, size_t bytes)
{
    snprintf(out, SUM_BYTES + 1, SUM_KEY "%016" PRIx64 "\"}", (uint64_t)XXH3_64bits(text, bytes));
}

char *job_line_seal(const json_t *value)
{
    char *text = spw_json_dump(value, JSON_COMPACT | JSON_PRESERVE_ORDER);
    const size_t bytes = text ? strlen(text) - 1 : 0; /* without } */
    char *sealed = text ? spw_realloc(text, bytes + SUM_BYTES + 1) : NULL;
    if (sealed)
        print_sum(sealed + bytes, sealed, bytes);
    else
        spw_free(text);
    return sealed;
}

bool job_line_has_sum(const char *text, size_t bytes)
{
    char sum[SUM_BYTES + 1];
    if (bytes < SUM_BYTES)
        return false;
    print_sum(sum, text, bytes - SUM_BYTES);
    return memcmp(text + bytes - SUM_BYTES, sum, SUM_BYTES) == 0;
}

/* ---- reading what earlier runs have written ---- */

/* Calls `take` for each line of a file. */
int job_store_read(struct job_store *s, const char *path,
                   int (*take)(struct job_store *s, const char *path, const struct job_line *line))
{
    struct job_lines lines;
    struct job_line line;
    int rc = job_lines_open(&lines, path), code = 0;
    while (!rc && !code && (rc = job_lines_next(&lines, &line)) == 1) {
        rc = 0;
        if (line.has_newline) /* else another process is just writing it */
            code = take(s, path, &line);
    }
    job_lines_close(&lines);
    return code || !rc ? code : cli_fail(CLI_FAILED, "%s: %s", path, strerror(-rc));
}

static int refuse_line(const char *path, const struct job_line *line)
{
    return cli_fail(CLI_REFUSED,
                    "%s: line %" PRIu64 ": found something else than a line of this job; remove "
                    "that line, or give another output",
                    path, line->number);
}

/* Parses a line of a file of this job. */
static int load_line(const struct job_store *s, const char *path, const struct job_line *line,
                     json_t **out)
{
    int rc = spw_json_parse(out, line->text, line->bytes, JSON_ALLOW_NUL, NULL);
    return rc == -ENOMEM ? job_store_no_memory(s) : rc ? refuse_line(path, line) : 0;
}

/* The key of a line without an id. */
static int key_of_numbered(const struct job_store *s, const char *path, const struct job_line *line,
                           struct job_key *out)
{
    json_t *parsed;
    int code = load_line(s, path, line, &parsed);
    if (code)
        return code;
    const json_t *number = json_object_get(parsed, "line"),
                 *id = json_object_get(parsed, "custom_id");
    id = id ? id : json_object_get(parsed, "id");
    *out = job_key_of_number((uint64_t)json_integer_value(number));
    code = json_is_integer(number) && (!id || json_is_null(id)) ? 0 : refuse_line(path, line);
    json_decref(parsed);
    return code;
}

int job_key_of_line(const struct job_store *s, const char *path, const struct job_line *line,
                    struct job_key *out)
{
    const struct request_reader reader = {.folder = "."};
    struct request_refusal why;
    struct request x;
    int rc = request_parse(&x, &reader, line->text, line->bytes, line->number, &why), code;
    if (x.id)
        code = job_key_of(&x, out);
    else if (rc == -ENOMEM)
        code = job_store_no_memory(s);
    else
        code = key_of_numbered(s, path, line, out);
    request_free(&x);
    return code;
}

/* A line of results or of errors: which item has ended. */
static int take_ended(struct job_store *s, const char *path, const struct job_line *line,
                      enum job_ended ended)
{
    struct job_key key;
    int code = job_key_of_line(s, path, line, &key);
    if (code)
        return code;
    struct job_entry *e = job_table_add(&s->table, key);
    if (!e)
        return job_store_no_memory(s);
    if (e->ended == JOB_HAS_ANSWER || e->ended == ended)
        return cli_fail(CLI_REFUSED,
                        "%s: line %" PRIu64 ": found a second line of the same item; remove that "
                        "line, or give another output",
                        path, line->number);
    e->ended = ended;
    ++*(ended == JOB_HAS_ANSWER ? &s->totals.n_done : &s->totals.n_failed);
    return 0;
}

int job_store_take_answer(struct job_store *s, const char *path, const struct job_line *line)
{
    return take_ended(s, path, line, JOB_HAS_ANSWER);
}

int job_store_take_error(struct job_store *s, const char *path, const struct job_line *line)
{
    return take_ended(s, path, line, JOB_HAS_ERROR);
}

/* A damaged line is no part: the part is computed again. */
int job_store_take_part(struct job_store *s, const char *path, const struct job_line *line)
{
    char name[JOB_KEY_BYTES];
    struct job_key key;
    if (!job_line_has_sum(line->text, line->bytes))
        return cli_fail(0, "%s: line %" PRIu64 " is damaged; its part is computed again", path,
                        line->number);
    int code = job_key_of_line(s, path, line, &key);
    if (code)
        return code;
    struct job_entry *e = job_table_add(&s->table, key);
    if (!e)
        return job_store_no_memory(s);
    e->part_end = line->offset + line->bytes + 1;
    e->part_bytes = line->bytes + 1;
    json_object_del(s->answers, job_key_text(name, key));
    return 0;
}

/* NULL for any other value. False: out of memory. */
static bool copy_text(char **out, const json_t *value)
{
    *out = json_is_string(value) ? spw_strdup(json_string_value(value)) : NULL;
    return *out || !json_is_string(value);
}

/* A state of another version may have no sums. */
static int check_first(const char *path, const struct job_line *line, const json_t *parsed)
{
    const int64_t found = json_integer_value(json_object_get(parsed, "spillway_job"));
    if (found > 0 && found != JOB_STATE_VERSION)
        return cli_fail(CLI_REFUSED,
                        "%s: found a state of version %" PRId64 ", expected %d; use the version of "
                        "spillway that wrote it, or give another output",
                        path, found, JOB_STATE_VERSION);
    return found && job_line_has_sum(line->text, line->bytes) ? 0 : refuse_line(path, line);
}

/* The first line: see state_head. */
static int take_common(struct job_store *s, const char *path, const struct job_line *line)
{
    json_t *parsed;
    int code = load_line(s, path, line, &parsed);
    if (code)
        return code;
    code = check_first(path, line, parsed);
    if (code) {
        json_decref(parsed);
        return code;
    }
    s->started = (time_t)json_integer_value(json_object_get(parsed, "started"));
    s->identity = json_incref(json_object_get(parsed, "identity"));
    s->is_counted = json_object_get(parsed, "items");
    s->n_expected = (uint64_t)json_integer_value(json_object_get(parsed, "items"));
    bool has_all = copy_text(&s->input, json_object_get(parsed, "input"));
    has_all &= copy_text(&s->errors, json_object_get(parsed, "errors"));
    json_object_del(parsed, "sum");
    s->head = parsed;
    if (!has_all)
        return job_store_no_memory(s);
    return json_is_object(s->identity) ? 0 : refuse_line(path, line);
}

int job_store_take_state(struct job_store *s, const char *path, const struct job_line *line)
{
    if (line->number == 1)
        return take_common(s, path, line);
    json_t *parsed;
    struct job_key key;
    int code = job_line_has_sum(line->text, line->bytes) ? load_line(s, path, line, &parsed)
                                                         : refuse_line(path, line);
    if (code)
        return code;
    json_object_del(parsed, "sum");
    const char *digest = json_string_value(json_object_get(parsed, "digest"));
    const char *name = json_string_value(json_object_get(parsed, "item"));
    code = job_key_parse(name, &key) && digest ? 0 : refuse_line(path, line);
    struct job_entry *e = code ? NULL : job_table_add(&s->table, key);
    if (!code && !e)
        code = job_store_no_memory(s);
    if (!code) {
        e->has_digest = true;
        e->digest = strtoull(digest, NULL, 16);
        if (!json_object_get(parsed, "answers"))
            json_object_del(s->answers, name);
        else if (json_object_set(s->answers, name, parsed))
            code = job_store_no_memory(s);
    }
    json_decref(parsed);
    return code;
}

/* An option's value as a user would write it. */
const char *job_value_text(char buffer[128], const json_t *value)
{
    char *text = value ? spw_json_dump(value, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    snprintf(buffer, 128, "%s", text ? text : "nothing");
    spw_free(text);
    return buffer;
}

void job_store_forget_error(struct job_store *s, struct job_entry *e)
{
    e->ended = JOB_NOT_ENDED;
    s->totals.n_failed--;
    s->forgets = true;
}
