/* Finding a model folder's chat template and rendering conversations: see chat_template.h. */
#include "model/text/chat_template.h"

#include "model/config/config_json.h"
#include "base/file.h"
#include "model/text/chat_template_parts.h"
#include "model/text/jinja/jinja_impl.h"
#include "model/text/special_tokens.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define TAG "CONTINUE_FINAL_MESSAGE_TAG "

struct spw_chat_template {
    struct spw_jinja *plain, *with_tools; /* with_tools: "tool_use", or NULL */
    json_t *tokens;                       /* bos_token and the like, as texts */
    char name[4096];
};

/* The failures of calls that have no text for it. */
static int explain(int rc, const char *what, struct spw_error *err)
{
    return rc == -ENOMEM ? spw_fail(err, rc, "%s: out of memory", what) : rc;
}

/* ---- opening ---- */

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
    char *path = spw_file_join(dir, file);
    int rc =
        path ? spw_file_read(path, SPW_SPECIAL_MOST_BYTES, &out->text, &out->bytes, err) : -ENOMEM;
    snprintf(out->file, sizeof out->file, "%s", file);
    spw_free(path);
    return rc;
}

static int copy_template(struct found *out, const json_t *text, const char *file)
{
    if (!json_is_string(text))
        return 0;
    snprintf(out->file, sizeof out->file, "%s", file);
    out->bytes = json_string_length(text);
    out->text = spw_alloc(out->bytes + 1);
    if (!out->text)
        return -ENOMEM;
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

/* chat_template.json, where no other file has a template. */
static int read_processor(struct found *out, const char *dir, const char *name,
                          struct spw_error *err)
{
    static const char file[] = "chat_template.json";
    json_t *processor;
    char *path = spw_file_join(dir, file);
    int rc = spw_special_tokens_json(path, &processor, err);
    if (!rc)
        rc = copy_template(out, named_template(json_object_get(processor, "chat_template"), name),
                           file);
    json_decref(processor);
    spw_free(path);
    return rc;
}

static bool has_template_file(const char *dir)
{
    char path[4096];
    int n = snprintf(path, sizeof path, "%s/chat_template.jinja", dir);
    return n > 0 && (size_t)n < sizeof path && !access(path, F_OK);
}

/* The template called `name`: of a file of its own, or of tokenizer_config.json. As in
 * transformers, the templates of a model lie in one place: with chat_template.jinja those of
 * tokenizer_config.json do not count. */
static int find_text(struct found *out, const char *dir, const char *name, const json_t *config,
                     struct spw_error *err)
{
    char file[300] = "chat_template.jinja";
    const bool is_default = !strcmp(name, "default");
    const json_t *own = json_object_get(config, "chat_template");
    *out = (struct found){0};
    if (strchr(name, '/') || strlen(name) > 200)
        return spw_fail(err, -EINVAL, "%s: found '%.200s' for a chat template's name", dir, name);
    if (!is_default)
        snprintf(file, sizeof file, "additional_chat_templates/%s.jinja", name);
    int rc = read_template(out, dir, file, err);
    if (rc != -ENOENT)
        return rc;
    if (!is_default && has_template_file(dir))
        return 0;
    if (json_is_string(own) || json_is_array(own) || json_is_object(own))
        return copy_template(out, named_template(own, name),
                             "tokenizer_config.json: chat_template");
    return read_processor(out, dir, name, err);
}

/* *out NULL when there is none; else `file` gets its name. */
static int find_template(struct spw_jinja **out, const char *dir, const char *name,
                         const json_t *config, char file[300], struct spw_error *err)
{
    struct found found;
    char *path = NULL;
    int rc = find_text(&found, dir, name, config, err);
    if (!rc && found.text) {
        path = spw_file_join(dir, found.file);
        rc = path ? spw_jinja_parse(out, found.text, found.bytes, path, err) : -ENOMEM;
        memcpy(file, found.file, sizeof found.file);
    }
    spw_free(path);
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
    return explain(rc, model_dir, err);
}

/* bos_token and the like, as texts. */
static int texts_of(const struct spw_special_tokens *special, json_t **out)
{
    const char *name;
    json_t *token;
    bool failed = !(*out = json_object());
    json_object_foreach(special->named, name, token) failed =
        failed ||
        (!json_is_null(token) && json_object_set(*out, name, json_object_get(token, "content")));
    return failed ? -ENOMEM : 0;
}

static int open_from(struct spw_chat_template *t, const char *dir, const char *name,
                     const struct spw_special_tokens *special, struct spw_error *err)
{
    SPW_TRY(texts_of(special, &t->tokens));
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
        rc = t ? open_from(t, model_dir, name, &special, err) : -ENOMEM;
    spw_special_tokens_free(&special);
    *out = rc ? NULL : t;
    if (rc)
        spw_chat_template_close(t);
    return explain(rc, model_dir, err);
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
    int rc = spw_file_read(file, SPW_SPECIAL_MOST_BYTES, &plain, &text.plain_bytes, err);
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
        rc = texts_of(&special, &tokens);
    spw_special_tokens_free(&special);
    if (!rc)
        return spw_chat_template_read(out, file, tokens, err);
    json_decref(tokens);
    return explain(rc, model_dir, err);
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
    if (rc == -EINVAL)
        return spw_fail(err, rc, "%s: line %d, column %d: %s", what, error.line, error.column,
                        error.text);
    if (rc || (object ? json_is_object(*out) : json_is_array(*out)))
        return rc;
    json_decref(*out);
    *out = NULL;
    return spw_fail(err, -EINVAL, "%s: expected a JSON %s", what, object ? "object" : "list");
}

/* A variable that is a list of objects, or null. */
static int add_list(json_t *vars, const char *name, const char *text, size_t bytes,
                    struct spw_error *err)
{
    json_t *list;
    SPW_TRY(load(text, bytes, name, false, &list, err));
    if (json_object_set_new(vars, name, list ? list : json_null()))
        return -ENOMEM;
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!json_is_object(json_array_get(list, i)))
            return spw_fail(err, -EINVAL, "%s: item %zu: expected a JSON object", name, i);
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
    return extra && json_object_update(vars, extra) ? -ENOMEM : 0;
}

/* A message may have its reasoning under one of several keys. Templates read the first of these
 * keys, or `thinking` (gpt-oss). As in transformers, the message gets both keys. */
static int alias_reasoning(json_t *messages)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *message = json_array_get(messages, i), *text = NULL, *both;
        for (size_t k = 0; k < 3 && (!text || json_is_null(text)); k++)
            text = json_object_get(message, names[k]);
        if (!text || json_is_null(text))
            continue;
        both = json_object();
        bool failed = json_object_set(both, "thinking", text) ||
                      json_object_update(both, message) ||
                      json_object_set(both, "reasoning_content", text);
        if (json_array_set_new(messages, i, both) || failed)
            return -ENOMEM;
    }
    return 0;
}

static int make_vars(const struct spw_chat_template *t, const struct spw_chat_request *q,
                     json_t *vars, struct spw_error *err)
{
    json_t *extra, *prompt = json_boolean(q->add_generation_prompt);
    if (!q->messages_json)
        return spw_fail(err, -EINVAL, "messages: found none, expected a JSON list");
    SPW_TRY(load(q->extra_json, q->extra_bytes, "extra variables", true, &extra, err));
    int rc = json_object_update(vars, t->tokens) ? -ENOMEM : add_extra(vars, extra, err);
    json_decref(extra);
    SPW_TRY(rc);
    SPW_TRY(add_list(vars, "messages", q->messages_json, q->messages_bytes, err));
    SPW_TRY(alias_reasoning(json_object_get(vars, "messages")));
    SPW_TRY(add_list(vars, "tools", q->tools_json, q->tools_bytes, err));
    SPW_TRY(add_list(vars, "documents", q->documents_json, q->documents_bytes, err));
    return json_object_set_new(vars, "add_generation_prompt", prompt) ? -ENOMEM : 0;
}

/* ---- continue_final_message: a tag after the last text shows where it ends ---- */

/* The text that is continued, as the caller gave it. */
struct continued {
    char *text; /* owned; the tag follows */
    size_t bytes;
};

static int tag_text(json_t *owner, const char *key, struct continued *c)
{
    const json_t *text = json_object_get(owner, key);
    const size_t bytes = c->bytes = json_string_length(text);
    c->text = spw_alloc(bytes + sizeof TAG);
    if (!c->text)
        return -ENOMEM;
    memcpy(c->text, json_string_value(text), bytes);
    memcpy(c->text + bytes, TAG, sizeof TAG);
    return json_object_set_new(owner, key, json_stringn(c->text, bytes + sizeof TAG - 1)) ? -ENOMEM
                                                                                          : 0;
}

static int tag_final(json_t *messages, struct continued *c, struct spw_error *err)
{
    size_t n = json_array_size(messages);
    if (!n)
        return spw_fail(err, -EINVAL, "messages: found none, expected one to continue");
    json_t *last = json_array_get(messages, n - 1), *content = json_object_get(last, "content");
    if (json_is_string(content))
        return tag_text(last, "content", c);
    for (size_t i = json_array_size(content); i-- > 0;) {
        json_t *part = json_array_get(content, i);
        if (json_is_string(json_object_get(part, "text")))
            return tag_text(part, "text", c);
    }
    return spw_fail(err, -EINVAL, "messages: the last one has no text to continue");
}

/* Cuts the text at the last tag. If the template trimmed the tag, white space before the tag is cut
 * off, too. The template must have printed the message unchanged. */
static int cut_at_tag(const struct continued *c, char *text, size_t *bytes, struct spw_error *err)
{
    static const char tag[] = TAG;
    size_t n = sizeof tag - 2, at = *bytes; /* without the space at its end */
    const char *own = c->text, *cut = text;
    size_t own_bytes = c->bytes;
    spw_jinja_strip(&own, &own_bytes, NULL, true, true);
    do {
        if (at == 0)
            return spw_fail(err, -EINVAL,
                            "the chat template does not print the end of the last message, which "
                            "is to be continued");
        at--;
    } while (at + n > *bytes || memcmp(text + at, tag, n) != 0);
    if (!memmem(text, *bytes, own, own_bytes))
        return spw_fail(err, -EINVAL,
                        "the chat template changes the last message, which is to be continued; "
                        "give a message that the template prints as it is");
    if (text[at + n] != ' ')
        spw_jinja_strip(&cut, &at, NULL, false, true);
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
    int rc = vars ? render(t, request, vars, text, bytes, err) : -ENOMEM;
    json_decref(vars);
    if (rc) {
        spw_free(*text);
        *text = NULL;
    }
    return explain(rc, "chat template", err);
}
