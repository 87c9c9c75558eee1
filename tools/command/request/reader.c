/* Phase 1, what a line is: see reader.h.
 *
 * A job that is resumed reads every line of its input again, and parsing takes most of that time.
 * So phase 1 only looks for the keys of the line itself, and passes over their values. It may take
 * a line for JSON that is none; phase 2 says so. Measured on an AMD EPYC in November 2026,
 * CPU time: 100,000 lines of 600 bytes 0.12 s (jansson 0.82 s), 2,000 of 54 kB 0.01 s (1.3 s). */
#include "tools/command/request/reader_parts.h"
#include "tools/command/input/text.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum name { CUSTOM_ID, URL, BODY, METHOD, ID, PROMPT, MESSAGES, TOKENS, THE_FILE, N_NAMES };
static const char *const names[N_NAMES] = {"custom_id", "url",      "body",   "method", "id",
                                           "prompt",    "messages", "tokens", "file"};

/* The values that a line has for these keys; the last one of a key. */
struct outline {
    struct part {
        const char *at; /* NULL: none */
        size_t bytes;
    } values[N_NAMES];
    size_t n_commas, n_brackets; /* in all values */
    bool is_short_of_memory;
};

/* A line of 64 MiB could become 5 GB of JSON values. These limits are far above a prompt of a
 * million token ids, and below 1 GB. */
enum { MOST_COMMAS = 1 << 22, MOST_BRACKETS = 1 << 18 };
/* An id is written again and again: to the answer, to the state, into messages. */
enum { MOST_ID_DEPTH = 16 };

/* ---- the outline ---- */

static const char *skip_space(const char *at, const char *end)
{
    while (at < end && (*at == ' ' || *at == '\t' || *at == '\r' || *at == '\n'))
        at++;
    return at;
}

/* `at` is behind the first quote; returns where the text continues behind the last one. */
static const char *skip_text(const char *at, const char *end)
{
    for (const char *begin = at;; at++) {
        const char *c;
        at = at < end ? memchr(at, '"', (size_t)(end - at)) : NULL;
        if (!at)
            return end;
        for (c = at; c > begin && c[-1] == '\\';)
            c--;
        if ((at - c) % 2 == 0)
            return at + 1;
    }
}

/* Passes over a value, valid or not. */
static const char *skip_value(struct outline *o, const char *at, const char *end)
{
    size_t depth = 0;
    while (at < end) {
        char c = *at;
        if (depth == 0 && strchr(",}] \t\r\n", c) && c)
            return at;
        at++;
        if (c == '"')
            at = skip_text(at, end);
        o->n_commas += c == ',';
        o->n_brackets += c == '{' || c == '[';
        depth += c == '{' || c == '[';
        depth -= c == '}' || c == ']';
    }
    return end;
}

static json_t *value_of(struct outline *o, const struct part *p)
{
    const size_t flags = JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY;
    json_t *value = NULL;
    if (p->at && spw_json_parse(&value, p->at, p->bytes, flags, NULL) == -ENOMEM)
        o->is_short_of_memory = true;
    return value;
}

/* `key` has its quotes. */
static void add_value(struct outline *o, struct part key, struct part value)
{
    json_t *name = memchr(key.at, '\\', key.bytes) ? value_of(o, &key) : NULL;
    if (json_is_string(name))
        key = (struct part){json_string_value(name), json_string_length(name)};
    else
        key = (struct part){key.at + 1, key.bytes - 2};
    for (size_t i = 0; i < N_NAMES; i++)
        if (key.bytes == strlen(names[i]) && memcmp(key.at, names[i], key.bytes) == 0)
            o->values[i] = value;
    json_decref(name);
}

/* False: the line is no JSON object. The values before the fault are in *o. */
static bool read_outline(struct outline *o, const char *line, size_t bytes)
{
    const char *end = line + bytes, *at = skip_space(line, end);
    *o = (struct outline){0};
    if (at == end || *at != '{')
        return false;
    at = skip_space(at + 1, end);
    while (at < end && *at == '"') {
        struct part key = {.at = at}, value;
        at = skip_text(at + 1, end);
        key.bytes = (size_t)(at - key.at);
        at = skip_space(at, end);
        if (at == end || *at != ':')
            return false;
        value.at = skip_space(at + 1, end);
        at = skip_value(o, value.at, end);
        value.bytes = (size_t)(at - value.at);
        at = skip_space(at, end);
        if (at == end) /* the value may be cut off */
            return false;
        add_value(o, key, value);
        if (*at == '}')
            return skip_space(at + 1, end) == end;
        if (*at != ',')
            return false;
        o->n_commas++;
        at = skip_space(at + 1, end);
    }
    return at < end && *at == '}' && skip_space(at + 1, end) == end;
}

/* ---- the file of a line ---- */

static int read_file(struct request *x, const char *path, struct request_refusal *why)
{
    struct spw_error err = {0};
    int rc = cli_text_read(path, REQUEST_MAX_FILE_BYTES, &x->file, &x->file_bytes, NULL, &err);
    if (rc)
        return rc == -ENOMEM
                   ? request_refuse_memory(why)
                   : request_refuse(why, 400, "invalid_file", "file", "file: %s", err.text);
    x->digest = XXH3_64bits_withSeed(x->file, x->file_bytes, x->digest);
    return 0;
}

static int find_file(struct request *x, const struct request_reader *r, const json_t *name,
                     struct request_refusal *why)
{
    const char *text = json_string_value(name);
    size_t bytes = json_string_length(name);
    if (!text || bytes == 0 || strlen(text) != bytes)
        return request_refuse_value(why, "file", name, "the name of a file");
    const char *folder = text[0] == '/' || !r->folder ? "" : r->folder;
    size_t room = strlen(folder) + bytes + 2;
    char *path = spw_alloc(room);
    if (!path)
        return request_refuse_memory(why);
    snprintf(path, room, "%s%s%s", folder, *folder ? "/" : "", text);
    int rc = read_file(x, path, why);
    spw_free(path);
    return rc;
}

/* ---- the line ---- */

static int refuse_key(struct request_refusal *why, struct outline *o, enum name name,
                      const char *code, const char *expected)
{
    const struct part *value = &o->values[name];
    json_t *found = value_of(o, value);
    request_refuse_value(why, names[name], found, expected);
    why->status = 0;
    why->code = value->at ? code : "missing_required_parameter";
    json_decref(found);
    return -EINVAL;
}

static bool is_too_large(const struct outline *o)
{
    return o->n_commas > MOST_COMMAS || o->n_brackets > MOST_BRACKETS;
}

/* null is no id. */
static json_t *find_id(struct outline *o, enum name name)
{
    const struct part *value = &o->values[name];
    json_t *id = value->at && (*value->at == '"' || !is_too_large(o)) ? value_of(o, value) : NULL;
    return json_is_null(id) ? NULL : id; /* null has no count of references */
}

/* Whether lists and objects are nested deeper than `most`. The parser allows 2048. */
static bool is_deep(json_t *value, int most)
{
    const char *name;
    json_t *item;
    size_t i;
    if (!json_is_array(value) && !json_is_object(value))
        return false;
    bool any = most == 0;
    json_array_foreach(value, i, item) any = any || is_deep(item, most - 1);
    json_object_foreach(value, name, item) any = any || is_deep(item, most - 1);
    return any;
}

static bool is_word(struct outline *o, enum name name, const char *word)
{
    json_t *text = value_of(o, &o->values[name]);
    bool same = json_is_string(text) && strcmp(json_string_value(text), word) == 0;
    json_decref(text);
    return same;
}

static int parse_openai(struct request *x, struct outline *o, struct request_refusal *why)
{
    const struct part *v = o->values;
    if (!json_is_string(x->id))
        return refuse_key(why, o, CUSTOM_ID, "invalid_value", "a text");
    if (v[METHOD].at && !is_word(o, METHOD, "POST"))
        return refuse_key(why, o, METHOD, "invalid_method", "\"POST\"");
    if (is_word(o, URL, "/v1/completions"))
        x->form = REQUEST_COMPLETION;
    else if (!is_word(o, URL, "/v1/chat/completions"))
        return refuse_key(why, o, URL, "invalid_url",
                          "\"/v1/chat/completions\" or \"/v1/completions\"");
    if (v[BODY].at && *v[BODY].at == '{')
        return 0;
    return refuse_key(why, o, BODY, "invalid_value", "an object with the request");
}

static int parse_short(struct request *x, const struct request_reader *r, struct outline *o,
                       struct request_refusal *why)
{
    const char *found = NULL;
    for (int i = PROMPT; i <= THE_FILE; i++) {
        if (!o->values[i].at)
            continue;
        if (found)
            return request_refuse(why, 400, "invalid_value", names[i],
                                  "found both \"%s\" and \"%s\", expected one of them", found,
                                  names[i]);
        found = names[i];
    }
    if (!found)
        return request_refuse(why, 400, "missing_required_parameter", "prompt",
                              "found no prompt, expected \"prompt\", \"messages\", \"tokens\" or "
                              "\"file\"");
    if (!o->values[THE_FILE].at)
        return 0;
    json_t *file = value_of(o, &o->values[THE_FILE]);
    int rc = find_file(x, r, file, why);
    json_decref(file);
    return rc;
}

int request_refuse_json(struct request_refusal *why, int rc, const json_error_t *e)
{
    if (rc == -ENOMEM)
        return request_refuse_memory(why);
    return request_refuse(why, 0, "invalid_json_line", NULL, "byte %d: no JSON: %s", e->position,
                          e->text);
}

/* Refuses a line that is no object, and a line that would take too much memory. */
static int check_line(struct outline *o, const char *line, size_t bytes, bool is_object,
                      struct request_refusal *why)
{
    json_error_t e;
    json_t *found;
    if (!is_object) /* the outline ends at the fault */
        skip_value(o, line, line + bytes);
    if (is_too_large(o))
        return request_refuse(
            why, 0, "invalid_json_line", NULL,
            "found %zu commas and %zu lists and objects, expected at most %d and %d: "
            "give a long prompt as a text",
            o->n_commas, o->n_brackets, MOST_COMMAS, MOST_BRACKETS);
    if (is_object)
        return 0;
    int rc = spw_json_parse(&found, line, bytes, JSON_ALLOW_NUL, &e);
    json_decref(found);
    return rc ? request_refuse_json(why, rc, &e)
              : request_refuse(why, 0, "invalid_json_line", NULL,
                               "found a list, expected an object with a request");
}

int request_parse(struct request *x, const struct request_reader *r, const char *line, size_t bytes,
                  uint64_t number, struct request_refusal *why)
{
    struct outline o;
    bool is_object = read_outline(&o, line, bytes);
    bool is_openai = o.values[CUSTOM_ID].at || o.values[URL].at || o.values[BODY].at;
    *x = (struct request){.form = is_openai ? REQUEST_CHAT : REQUEST_SHORT,
                          .number = number,
                          .digest = XXH3_64bits(line, bytes),
                          .id = find_id(&o, is_openai ? CUSTOM_ID : ID)};
    if (o.is_short_of_memory) { /* the id may be there */
        json_decref(x->id);
        x->id = NULL;
        return request_refuse_memory(why);
    }
    SPW_TRY(check_line(&o, line, bytes, is_object, why));
    if (is_deep(x->id, MOST_ID_DEPTH)) {
        json_decref(x->id); /* the line of errors has the number of the line */
        x->id = NULL;
        return request_refuse(why, 400, "invalid_value", is_openai ? "custom_id" : "id",
                              "id: found lists or objects nested more than %d deep", MOST_ID_DEPTH);
    }
    int rc = is_openai ? parse_openai(x, &o, why) : parse_short(x, r, &o, why);
    if (rc || o.is_short_of_memory)
        return o.is_short_of_memory ? request_refuse_memory(why) : rc;
    x->text = spw_alloc(bytes + 1);
    if (!x->text)
        return request_refuse_memory(why);
    memcpy(x->text, line, bytes);
    x->text_bytes = bytes;
    return 0;
}
