/* Finding a model folder's chat template and rendering conversations: see chat_template.h. */
#include "model/text/chat_template.h"

#include "model/config/config_json.h"
#include "model/source/file.h"
#include "model/text/chat_template_parts.h"
#include "model/text/jinja/jinja_impl.h"
#include "model/text/special_tokens.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MAX_FILE_BYTES (64u << 20)
#define TAG "CONTINUE_FINAL_MESSAGE_TAG "

struct spw_chat_template {
    struct spw_jinja *plain, *with_tools; /* with_tools: "tool_use", or NULL */
    json_t *tokens;                       /* bos_token and the like, as texts */
    char name[4096];
};

/* ---- files ---- */

static int join_path(char *out, size_t room, const char *dir, const char *file,
                     struct spw_error *err)
{
    int n = snprintf(out, room, "%s/%s", dir, file);
    return n < 0 || (size_t)n >= room
               ? spw_fail(err, -ENAMETOOLONG, "%s/%s: the path is too long", dir, file)
               : 0;
}

/* ---- opening ---- */

static int parse_from(struct spw_jinja **out, const char *text, size_t bytes, const char *dir,
                      const char *file, struct spw_error *err)
{
    char name[4096];
    SPW_TRY(join_path(name, sizeof name, dir, file, err));
    return spw_jinja_parse(out, text, bytes, name, err);
}

/* A template as text. */
struct found {
    char *text; /* owned; NULL: there is none */
    size_t bytes;
    char file[300]; /* of the folder, for messages */
};

/* -ENOENT without a text when there is no such file. */
static int read_template(struct found *out, const char *dir, const char *file,
                         struct spw_error *err)
{
    char path[4096];
    snprintf(out->file, sizeof out->file, "%s", file);
    SPW_TRY(join_path(path, sizeof path, dir, file, err));
    return spw_file_read(path, MAX_FILE_BYTES, &out->text, &out->bytes, err);
}

static int copy_template(struct found *out, const json_t *text, const char *file, const char *dir,
                         struct spw_error *err)
{
    if (!json_is_string(text))
        return 0;
    snprintf(out->file, sizeof out->file, "%s", file);
    out->bytes = json_string_length(text);
    out->text = spw_alloc(out->bytes + 1);
    if (!out->text)
        return spw_fail(err, -ENOMEM, "%s: out of memory", dir);
    memcpy(out->text, json_string_value(text), out->bytes + 1);
    return 0;
}

/* The template that JSON calls `name`: a text is the default one. */
static const json_t *named_template(const json_t *templates, const char *name)
{
    if (json_is_string(templates))
        return strcmp(name, "default") == 0 ? templates : NULL;
    if (json_is_object(templates))
        return json_object_get(templates, name);
    for (size_t i = 0; i < json_array_size(templates); i++) {
        const json_t *one = json_array_get(templates, i);
        const char *its = json_string_value(json_object_get(one, "name"));
        if (its && !strcmp(its, name))
            return json_object_get(one, "template");
    }
    return NULL;
}

static bool has_file(const char *dir, const char *file)
{
    char path[4096];
    return !join_path(path, sizeof path, dir, file, NULL) && !access(path, F_OK);
}

/* chat_template.json. *out (json_decref) is NULL if there is no such file. */
static int read_processor(json_t **out, const char *dir, struct spw_error *err)
{
    struct found file;
    *out = NULL;
    int rc = read_template(&file, dir, "chat_template.json", err);
    if (!rc)
        rc = spw_json_load(file.text, file.bytes, file.file, SPW_JSON_LARGE_REAL, out, err);
    spw_free(file.text);
    return rc == -ENOENT ? 0 : rc;
}

/* The template called `name`: of a file of its own, or of tokenizer_config.json. As in
 * transformers, the templates of a model lie in one place: with chat_template.jinja those of
 * tokenizer_config.json do not count. */
static int find_text(struct found *out, const char *dir, const char *name, const json_t *config,
                     struct spw_error *err)
{
    char file[300];
    bool is_default = !strcmp(name, "default");
    *out = (struct found){0};
    if (strchr(name, '/') || strlen(name) > 200)
        return spw_fail(err, -EINVAL, "%s: found '%.200s' for a chat template's name", dir, name);
    snprintf(file, sizeof file, "additional_chat_templates/%s.jinja", name);
    int rc = read_template(out, dir, is_default ? "chat_template.jinja" : file, err);
    if (rc != -ENOENT)
        return rc;
    if (has_file(dir, "chat_template.jinja"))
        return 0;
    json_t *processor, *own = json_object_get(config, "chat_template");
    SPW_TRY(copy_template(out, named_template(own, name), "tokenizer_config.json: chat_template",
                          dir, err));
    if (json_is_string(own) || json_is_array(own) || json_is_object(own))
        return 0;
    SPW_TRY(read_processor(&processor, dir, err));
    rc = copy_template(out, named_template(json_object_get(processor, "chat_template"), name),
                       "chat_template.json", dir, err);
    json_decref(processor);
    return rc;
}

/* *out NULL when there is none; else `file` gets its name. */
static int find_template(struct spw_jinja **out, const char *dir, const char *name,
                         const json_t *config, char file[300], struct spw_error *err)
{
    struct found found;
    *out = NULL;
    SPW_TRY(find_text(&found, dir, name, config, err));
    int rc = found.text ? parse_from(out, found.text, found.bytes, dir, found.file, err) : 0;
    if (found.text)
        memcpy(file, found.file, sizeof found.file);
    spw_free(found.text);
    return rc;
}

int spw_chat_template_text(const char *model_dir, const char *name, char **text,
                           struct spw_error *err)
{
    struct spw_special_tokens special;
    struct found found = {0};
    int rc = spw_special_tokens_read(&special, model_dir, err);
    if (!rc)
        rc = find_text(&found, model_dir, name, special.config, err);
    spw_special_tokens_free(&special);
    *text = found.text;
    return rc;
}

/* bos_token and the like, as texts. */
static int texts_of(const struct spw_special_tokens *special, const char *dir, json_t **out,
                    struct spw_error *err)
{
    const char *name;
    json_t *token;
    bool failed = !(*out = json_object());
    json_object_foreach(special->named, name, token) failed =
        failed ||
        (!json_is_null(token) && json_object_set(*out, name, json_object_get(token, "content")));
    return failed ? spw_fail(err, -ENOMEM, "%s: out of memory", dir) : 0;
}

static int open_from(struct spw_chat_template *t, const char *dir, const char *name,
                     const struct spw_special_tokens *special, struct spw_error *err)
{
    SPW_TRY(texts_of(special, dir, &t->tokens, err));
    if (!name)
        SPW_TRY(find_template(&t->with_tools, dir, "tool_use", special->config, t->name, err));
    SPW_TRY(find_template(&t->plain, dir, name ? name : "default", special->config, t->name, err));
    if (t->plain || t->with_tools)
        return 0;
    return spw_fail(err, -ENOENT,
                    "%s: found no chat template%s%s (chat_template.jinja, or chat_template in "
                    "tokenizer_config.json); put one there, or give the prompt as text",
                    dir, name ? " called " : "", name ? name : "");
}

int spw_chat_template_open(struct spw_chat_template **out, const char *model_dir, const char *name,
                           struct spw_error *err)
{
    spw_error_clear(err);
    struct spw_special_tokens special;
    struct spw_chat_template *t = spw_alloc_zero(1, sizeof *t);
    int rc = spw_special_tokens_read(&special, model_dir, err);
    if (!rc)
        rc = t ? open_from(t, model_dir, name, &special, err)
               : spw_fail(err, -ENOMEM, "%s: out of memory", model_dir);
    spw_special_tokens_free(&special);
    *out = rc ? NULL : t;
    if (rc)
        spw_chat_template_close(t);
    return rc;
}

int spw_chat_template_parse(struct spw_chat_template **out,
                            const struct spw_chat_template_text *text, struct spw_error *err)
{
    *out = NULL;
    struct spw_chat_template *t = text->tokens ? spw_alloc_zero(1, sizeof *t) : NULL;
    if (!t) {
        json_decref(text->tokens);
        return spw_fail(err, -ENOMEM, "%s: out of memory", text->name);
    }
    t->tokens = text->tokens;
    snprintf(t->name, sizeof t->name, "%s", text->name);
    int rc = 0;
    if (text->plain)
        rc = spw_jinja_parse(&t->plain, text->plain, text->plain_bytes, t->name, err);
    if (!rc && text->with_tools)
        rc =
            spw_jinja_parse(&t->with_tools, text->with_tools, text->with_tools_bytes, t->name, err);
    if (rc)
        spw_chat_template_close(t);
    else
        *out = t;
    return rc;
}

int spw_chat_template_read(struct spw_chat_template **out, const char *file, json_t *tokens,
                           struct spw_error *err)
{
    struct spw_chat_template_text text = {.name = file, .tokens = tokens};
    char *plain;
    *out = NULL;
    int rc = spw_file_read(file, MAX_FILE_BYTES, &plain, &text.plain_bytes, err);
    if (rc) {
        json_decref(tokens);
        return rc == -ENOENT || rc == -ENOTDIR ? spw_fail(err, -EINVAL, "%s: no such file", file)
                                               : rc;
    }
    text.plain = plain;
    rc = spw_chat_template_parse(out, &text, err);
    spw_free(plain);
    return rc;
}

int spw_chat_template_open_file(struct spw_chat_template **out, const char *model_dir,
                                const char *file, struct spw_error *err)
{
    struct spw_special_tokens special;
    json_t *tokens = NULL;
    spw_error_clear(err);
    *out = NULL;
    int rc = spw_special_tokens_read(&special, model_dir, err);
    if (!rc)
        rc = texts_of(&special, model_dir, &tokens, err);
    spw_special_tokens_free(&special);
    if (rc) {
        json_decref(tokens);
        return rc;
    }
    return spw_chat_template_read(out, file, tokens, err);
}

const char *spw_chat_template_name(const struct spw_chat_template *t)
{
    return t->name;
}

void spw_chat_template_close(struct spw_chat_template *t)
{
    if (!t)
        return;
    spw_jinja_free(t->plain);
    spw_jinja_free(t->with_tools);
    json_decref(t->tokens);
    spw_free(t);
}

bool spw_chat_template_has(const struct spw_chat_template *t, const char *words)
{
    return spw_jinja_has(t->plain, words) || spw_jinja_has(t->with_tools, words);
}

/* ---- the variables ---- */

/* A NUL in a text is a character like others; a key that comes twice has its last value. */
static int load(const char *text, size_t bytes, const char *what, bool object, json_t **out,
                struct spw_error *err)
{
    json_error_t error;
    *out = NULL;
    if (!text)
        return 0;
    int rc = spw_json_parse(out, text, bytes, JSON_ALLOW_NUL, &error);
    if (rc == -ENOMEM)
        return spw_fail(err, rc, "%s: out of memory while reading the JSON", what);
    if (rc)
        return spw_fail(err, rc, "%s: line %d, column %d: %s", what, error.line, error.column,
                        error.text);
    if (object ? json_is_object(*out) : json_is_array(*out))
        return 0;
    json_decref(*out);
    *out = NULL;
    return spw_fail(err, -EINVAL, "%s: expected a JSON %s", what, object ? "object" : "list");
}

static int check_objects(const json_t *list, const char *what, struct spw_error *err)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!json_is_object(json_array_get(list, i)))
            return spw_fail(err, -EINVAL, "%s: item %zu: expected a JSON object", what, i);
    return 0;
}

/* Takes over `value`; NULL is none. */
static int set(json_t *vars, const char *name, json_t *value, struct spw_error *err)
{
    if (json_object_set_new(vars, name, value ? value : json_null()))
        return spw_fail(err, -ENOMEM, "chat template: out of memory");
    return 0;
}

static int add_extra(json_t *vars, json_t *extra, struct spw_error *err)
{
    static const char *const taken[] = {"messages", "tools", "documents", "add_generation_prompt"};
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
        if (json_object_get(extra, taken[i]))
            return spw_fail(err, -EINVAL,
                            "extra variables: found '%s', which has an option of its own",
                            taken[i]);
    if (extra && json_object_update(vars, extra))
        return spw_fail(err, -ENOMEM, "chat template: out of memory");
    return 0;
}

/* A message may have its reasoning under one of several keys. Templates read the first of these
 * keys, or `thinking` (gpt-oss). As in transformers, the message gets both keys. */
static int alias_reasoning(json_t *messages, struct spw_error *err)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *message = json_array_get(messages, i), *text = NULL, *both;
        for (size_t k = 0; k < 3 && (!text || json_is_null(text)); k++)
            text = json_object_get(message, names[k]);
        if (!text || json_is_null(text))
            continue;
        both = json_object();
        if (json_object_set(both, "thinking", text) || json_object_update(both, message) ||
            json_object_set(both, "reasoning_content", text) || json_array_set(messages, i, both)) {
            json_decref(both);
            return spw_fail(err, -ENOMEM, "chat template: out of memory");
        }
        json_decref(both);
    }
    return 0;
}

static int make_vars(const struct spw_chat_template *t, const struct spw_chat_request *q,
                     json_t *vars, struct spw_error *err)
{
    json_t *value;
    if (!q->messages_json)
        return spw_fail(err, -EINVAL, "messages: found none, expected a JSON list");
    if (json_object_update(vars, t->tokens))
        return spw_fail(err, -ENOMEM, "chat template: out of memory");
    SPW_TRY(load(q->extra_json, q->extra_bytes, "extra variables", true, &value, err));
    int rc = add_extra(vars, value, err);
    json_decref(value);
    SPW_TRY(rc);
    SPW_TRY(load(q->messages_json, q->messages_bytes, "messages", false, &value, err));
    SPW_TRY(set(vars, "messages", value, err));
    SPW_TRY(check_objects(value, "messages", err));
    SPW_TRY(alias_reasoning(value, err));
    SPW_TRY(load(q->tools_json, q->tools_bytes, "tools", false, &value, err));
    SPW_TRY(set(vars, "tools", value, err));
    SPW_TRY(check_objects(value, "tools", err));
    SPW_TRY(load(q->documents_json, q->documents_bytes, "documents", false, &value, err));
    SPW_TRY(set(vars, "documents", value, err));
    SPW_TRY(check_objects(value, "documents", err));
    return set(vars, "add_generation_prompt", json_boolean(q->add_generation_prompt), err);
}

/* ---- continue_final_message: a tag after the last text shows where it ends ---- */

/* The text that is continued, as the caller gave it. */
struct continued {
    char *text; /* owned */
    size_t bytes;
};

static int tag_text(json_t *owner, const char *key, struct continued *c, struct spw_error *err)
{
    const json_t *text = json_object_get(owner, key);
    size_t bytes = c->bytes = json_string_length(text);
    c->text = spw_alloc(bytes + 1);
    if (!c->text)
        return spw_fail(err, -ENOMEM, "chat template: out of memory");
    memcpy(c->text, json_string_value(text), bytes + 1);
    char *tagged = spw_alloc(bytes + sizeof TAG);
    if (!tagged)
        return spw_fail(err, -ENOMEM, "chat template: out of memory");
    memcpy(tagged, json_string_value(text), bytes);
    memcpy(tagged + bytes, TAG, sizeof TAG);
    json_t *value = json_stringn(tagged, bytes + sizeof TAG - 1);
    spw_free(tagged);
    if (!value || json_object_set_new(owner, key, value))
        return spw_fail(err, -ENOMEM, "chat template: out of memory");
    return 0;
}

static int tag_final(json_t *messages, struct continued *c, struct spw_error *err)
{
    size_t n = json_array_size(messages);
    if (!n)
        return spw_fail(err, -EINVAL, "messages: found none, expected one to continue");
    json_t *last = json_array_get(messages, n - 1), *content = json_object_get(last, "content");
    if (json_is_string(content))
        return tag_text(last, "content", c, err);
    for (size_t i = json_array_size(content); i-- > 0;) {
        json_t *part = json_array_get(content, i);
        if (json_is_string(json_object_get(part, "text")))
            return tag_text(part, "text", c, err);
    }
    return spw_fail(err, -EINVAL, "messages: the last one has no text to continue");
}

/* The length without white space at the end, as Python's rstrip counts white space. */
static size_t strip_end(const char *text, size_t n)
{
    while (n > 0) {
        size_t at = n - 1, step;
        while (at > 0 && ((unsigned char)text[at] & 0xc0) == 0x80)
            at--;
        if (!spw_jinja_is_space(spw_jinja_decode(text + at, text + n, &step)))
            break;
        n = at;
    }
    return n;
}

static size_t strip_start(const char *text, size_t n)
{
    size_t at = 0, step;
    while (at < n && spw_jinja_is_space(spw_jinja_decode(text + at, text + n, &step)))
        at += step;
    return at;
}

/* Cuts the text at the last tag. If the template trimmed the tag, white space before the tag is cut
 * off, too. The template must have printed the message unchanged. */
static int cut_at_tag(const struct continued *c, char *text, size_t *bytes, struct spw_error *err)
{
    static const char tag[] = TAG;
    size_t n = sizeof tag - 2, at = *bytes; /* without the space at its end */
    size_t end = strip_end(c->text, c->bytes), start = strip_start(c->text, end);
    do {
        if (at == 0)
            return spw_fail(err, -EINVAL,
                            "the chat template does not print the end of the last message, which "
                            "is to be continued");
        at--;
    } while (at + n > *bytes || memcmp(text + at, tag, n) != 0);
    if (!memmem(text, *bytes, c->text + start, end - start))
        return spw_fail(err, -EINVAL,
                        "the chat template changes the last message, which is to be continued; "
                        "give a message that the template prints as it is");
    if (text[at + n] != ' ')
        at = strip_end(text, at);
    text[at] = 0;
    *bytes = at;
    return 0;
}

static int render(const struct spw_chat_template *t, const struct spw_chat_request *q, json_t *vars,
                  char **text, size_t *bytes, struct spw_error *err)
{
    const struct spw_jinja_input in = {vars, q->now};
    const struct spw_jinja *jinja = t->with_tools && q->tools_json ? t->with_tools : t->plain;
    SPW_TRY(make_vars(t, q, vars, err));
    if (!jinja)
        return spw_fail(err, -ENOENT, "the model's only chat template is for requests with tools");
    if (q->continue_final_message && q->add_generation_prompt)
        return spw_fail(err, -EINVAL,
                        "add_generation_prompt and continue_final_message: found "
                        "both, expected at most one");
    struct continued c = {0};
    int rc = 0;
    if (q->continue_final_message)
        rc = tag_final(json_object_get(vars, "messages"), &c, err);
    if (!rc)
        rc = spw_jinja_render(jinja, &in, text, bytes, err);
    if (!rc && q->continue_final_message)
        rc = cut_at_tag(&c, *text, bytes, err);
    spw_free(c.text);
    return rc;
}

int spw_chat_template_render(const struct spw_chat_template *t,
                             const struct spw_chat_request *request, char **text, size_t *bytes,
                             struct spw_error *err)
{
    spw_error_clear(err);
    json_t *vars = json_object();
    *text = NULL;
    int rc = vars ? render(t, request, vars, text, bytes, err)
                  : spw_fail(err, -ENOMEM, "chat template: out of memory");
    json_decref(vars);
    if (rc) {
        spw_free(*text);
        *text = NULL;
    }
    return rc;
}
