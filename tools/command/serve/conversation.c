/* See conversation.h. */
#include "tools/command/serve/conversation.h"

#include <string.h>

const char *serve_word(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

bool serve_is_type(const json_t *object, const char *type)
{
    return strcmp(serve_word(object, "type"), type) == 0;
}

int serve_add_text(struct spw_text *to, const char *between, const json_t *text)
{
    const size_t n = json_string_length(text);
    if (n && to->n)
        SPW_TRY(spw_text_add(to, between, strlen(between)));
    return n ? spw_text_add(to, json_string_value(text), n) : 0;
}

int serve_append(struct serve_conversation *c, json_t *message)
{
    return json_array_append_new(c->out, message) ? request_refuse_memory(c->why) : 0;
}

json_t *serve_last_with(const struct serve_conversation *c, const char *role)
{
    const size_t n = json_array_size(c->out);
    json_t *last = n ? json_array_get(c->out, n - 1) : NULL;
    return strcmp(serve_word(last, "role"), role) == 0 ? last : NULL;
}

static int append_text(struct serve_conversation *c, const char *role, const struct spw_text *text)
{
    const struct cli_field fields[] = {{"role", json_string(role)},
                                       {"content", cli_json_grown(text)}};
    return serve_append(c, CLI_OBJECT(fields));
}

/* The text of `message` under `key` grows by a line. */
static int join(struct serve_conversation *c, json_t *message, const char *key,
                const struct spw_text *text)
{
    struct spw_text both = {0};
    serve_add_text(&both, "", json_object_get(message, key));
    if (text->n && both.n)
        spw_text_add(&both, "\n", 1);
    spw_text_add(&both, text->text, text->n);
    const int rc = json_object_set_new(message, key, cli_json_grown(&both));
    spw_free(both.text);
    return rc ? request_refuse_memory(c->why) : 0;
}

int serve_add_message(struct serve_conversation *c, const char *role, const struct spw_text *text)
{
    json_t *last = serve_last_with(c, role);
    return last ? join(c, last, "content", text) : append_text(c, role, text);
}

int serve_add_system(struct serve_conversation *c, const struct spw_text *text)
{
    return text->n ? append_text(c, "system", text) : 0;
}

int serve_add_result(struct serve_conversation *c, const char *call_id, const struct spw_text *text)
{
    const struct cli_field fields[] = {
        {"role", json_string("tool")},
        {"tool_call_id", json_string(call_id)},
        {"content", cli_json_grown(text)},
    };
    return serve_append(c, CLI_OBJECT(fields));
}

/* The key under which the template finds the reasoning of an earlier answer. */
static const char *reasoning_key(const struct spw_chat_template *t)
{
    return t && !spw_chat_template_has(t, "reasoning_content") &&
                   spw_chat_template_has(t, ".thinking")
               ? "thinking"
               : "reasoning_content";
}

int serve_add_reasoning(struct serve_conversation *c, const struct spw_text *reasoning)
{
    return reasoning->n
               ? join(c, serve_last_with(c, "assistant"), reasoning_key(c->r->template), reasoning)
               : 0;
}

int serve_add_call(struct serve_conversation *c, const char *id, const char *name,
                   json_t *arguments)
{
    json_t *message = serve_last_with(c, "assistant");
    json_t *calls = json_object_get(message, "tool_calls");
    const struct cli_field function[] = {{"name", json_string(name)}, {"arguments", arguments}};
    const struct cli_field fields[] = {
        {"id", json_string(id)},
        {"type", json_string("function")},
        {"function", CLI_OBJECT(function)},
    };
    json_t *call = CLI_OBJECT(fields);
    if (!calls) {
        calls = json_array();
        if (json_object_set_new(message, "tool_calls", calls)) {
            json_decref(call);
            return request_refuse_memory(c->why);
        }
    }
    return json_array_append_new(calls, call) ? request_refuse_memory(c->why) : 0;
}

int serve_end_conversation(struct serve_conversation *c, struct request *x, int rc, bool continues)
{
    if (!rc && json_object_set(x->body, "messages", c->out))
        rc = request_refuse_memory(c->why);
    if (!rc && c->r->template)
        rc = request_fold_systems(x, c->r, c->out, c->why);
    const json_t *last = serve_last_with(c, "assistant");
    if (!rc && continues && last && !json_object_get(last, "tool_calls") &&
        json_object_set_new(x->body, "continue_final_message", json_true()))
        rc = request_refuse_memory(c->why);
    json_decref(c->out);
    return rc;
}
