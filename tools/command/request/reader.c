/* What a line is: see reader.h. */
#include "tools/command/request/reader_parts.h"
#include "tools/command/input/text.h"

#include <string.h>
#include <xxhash.h>

/* A line of 64 MiB could become 5 GB of JSON values. These limits are far above a prompt of a
 * million token ids, and below 1 GB. */
enum { MOST_COMMAS = 1 << 22, MOST_BRACKETS = 1 << 18 };
/* An id is written again and again: to the answer, to the state, into messages. */
enum { MOST_ID_DEPTH = 16 };

/* ---- the file of a line ---- */

static int read_file(struct request *x, const char *path, struct request_refusal *why)
{
    struct spw_error err = {0};
    int rc = cli_text_read(path, REQUEST_MAX_FILE_BYTES, &x->file, &x->file_bytes, NULL, &err);
    if (rc == -ENOMEM)
        return request_refuse_memory(why);
    if (rc)
        return request_refuse(why, 400, "invalid_file", "file", "file: %s%s", err.text,
                              rc == -ENOENT ? "; names begin in the folder of the input" : "");
    x->digest = XXH3_64bits_withSeed(x->file, x->file_bytes, x->digest);
    cli_drop_mark(x->file, &x->file_bytes);
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

/* Refuses a line without a request that can be executed. */
static int refuse_key(struct request_refusal *why, const json_t *line, const char *key,
                      const char *code, const char *expected)
{
    const json_t *found = json_object_get(line, key);
    request_refuse_value(why, key, found, expected);
    why->status = 0;
    why->code = found ? code : "missing_required_parameter";
    return -EINVAL;
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

static bool is_word(const json_t *text, const char *word)
{
    return json_is_string(text) && strcmp(json_string_value(text), word) == 0;
}

static int parse_openai(struct request *x, struct request_refusal *why)
{
    const json_t *method = json_object_get(x->line, "method");
    const json_t *url = json_object_get(x->line, "url");
    x->body = json_object_get(x->line, "body");
    if (!json_is_string(x->id))
        return refuse_key(why, x->line, "custom_id", "invalid_value", "a text");
    if (method && !is_word(method, "POST"))
        return refuse_key(why, x->line, "method", "invalid_method", "\"POST\"");
    if (is_word(url, "/v1/completions"))
        x->form = REQUEST_COMPLETION;
    else if (!is_word(url, "/v1/chat/completions"))
        return refuse_key(why, x->line, "url", "invalid_url",
                          "\"/v1/chat/completions\" or \"/v1/completions\"");
    if (json_is_object(x->body))
        return 0;
    return refuse_key(why, x->line, "body", "invalid_value", "an object with the request");
}

static int parse_short(struct request *x, const struct request_reader *r,
                       struct request_refusal *why)
{
    static const char *const prompts[] = {"prompt", "messages", "tokens", "file"};
    const json_t *file = json_object_get(x->line, "file");
    const bool begins = file && r->model->config.n_source_layers; /* the answer to the file */
    const char *found = NULL;
    x->body = x->line;
    for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++) {
        if (!json_object_get(x->line, prompts[i]))
            continue;
        if (found && !(begins && !strcmp(prompts[i], "file") && strcmp(found, "messages")))
            return request_refuse(why, 400, "invalid_value", prompts[i],
                                  "found both \"%s\" and \"%s\", expected one of them", found,
                                  prompts[i]);
        found = prompts[i];
    }
    if (!found)
        return request_refuse(why, 400, "missing_required_parameter", "prompt",
                              "found no prompt, expected \"prompt\", \"messages\", \"tokens\" or "
                              "\"file\"");
    return file ? find_file(x, r, file, why) : 0;
}

/* Marks of a JSON text that stand in no string. */
struct marks {
    size_t n_commas, n_colons, n_brackets;
};

static struct marks count_marks(const char *text, size_t bytes)
{
    struct marks m = {0};
    bool in_text = false;
    for (size_t i = 0; i < bytes; i++) {
        const char c = text[i];
        i += in_text && c == '\\';
        in_text ^= c == '"';
        m.n_commas += !in_text && c == ',';
        m.n_colons += !in_text && c == ':';
        m.n_brackets += !in_text && (c == '{' || c == '[');
    }
    return m;
}

uint64_t request_tree_bytes(const char *text, size_t bytes)
{
    enum { VALUE = 48 }; /* a number in a list; a member, a list or an object takes about two */
    const struct marks m = count_marks(text, bytes);
    return VALUE * ((uint64_t)m.n_commas + 2 * m.n_colons + 2 * m.n_brackets);
}

/* Refuses a line that would take too much memory. */
static int check_size(const char *line, size_t bytes, struct request_refusal *why)
{
    const struct marks m = count_marks(line, bytes);
    if (m.n_commas <= MOST_COMMAS && m.n_brackets <= MOST_BRACKETS)
        return 0;
    return request_refuse(why, 0, "invalid_json_line", NULL,
                          "found %zu commas and %zu lists and objects, expected at most %d and %d: "
                          "give a long prompt as a text",
                          m.n_commas, m.n_brackets, MOST_COMMAS, MOST_BRACKETS);
}

int request_parse_json(json_t **out, const char *text, size_t bytes, size_t flags,
                       struct request_refusal *why)
{
    json_error_t e;
    SPW_TRY(check_size(text, bytes, why));
    int rc = spw_json_parse(out, text, bytes, flags | JSON_ALLOW_NUL, &e);
    if (rc == -ENOMEM)
        return request_refuse_memory(why);
    if (rc)
        return request_refuse(why, 0, "invalid_json_line", NULL, "byte %d: no JSON: %s", e.position,
                              e.text);
    return json_is_object(*out) ? 0
                                : request_refuse(why, 0, "invalid_json_line", NULL,
                                                 "found a list, expected an object with a request");
}

int request_parse(struct request *x, const struct request_reader *r, const char *line, size_t bytes,
                  uint64_t number, struct request_refusal *why)
{
    *x = (struct request){.number = number, .bytes = bytes, .digest = XXH3_64bits(line, bytes)};
    const int rc = request_parse_json(&x->line, line, bytes, JSON_REJECT_DUPLICATES, why);
    /* the error of a broken line has a form, too */
    const bool is_openai = rc ? memmem(line, bytes, "\"custom_id\"", 11) != NULL
                              : json_object_get(x->line, "custom_id") ||
                                    json_object_get(x->line, "url") ||
                                    json_object_get(x->line, "body");
    x->form = is_openai ? REQUEST_CHAT : REQUEST_SHORT;
    if (rc)
        return rc;
    json_t *id = json_object_get(x->line, is_openai ? "custom_id" : "id");
    if (is_deep(id, MOST_ID_DEPTH)) /* the line of errors has the number of the line */
        return request_refuse(why, 400, "invalid_value", is_openai ? "custom_id" : "id",
                              "id: found lists or objects nested more than %d deep", MOST_ID_DEPTH);
    x->id = json_is_null(id) ? NULL : json_incref(id); /* null is no id */
    return is_openai ? parse_openai(x, why) : parse_short(x, r, why);
}
