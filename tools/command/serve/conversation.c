/* See conversation.h. */
#include "tools/command/serve/conversation.h"

#include <string.h>

void serve_add_text(struct serve_conversation *c, const char *between, const json_t *text)
{
    const size_t n = json_string_length(text);
    if (n && c->text.n)
        spw_text_add(&c->text, between, strlen(between));
    if (n)
        spw_text_add(&c->text, json_string_value(text), n);
}

static bool has_text(const struct serve_conversation *c)
{
    return c->text.n || c->text.failed;
}

/* The text, which a message takes. NULL: out of memory. */
static json_t *take_text(struct serve_conversation *c)
{
    json_t *text = cli_json_grown(&c->text);
    c->text.n = 0;
    return text;
}

/* Takes the reference of `message`. */
static int append(struct serve_conversation *c, json_t *message)
{
    return json_array_append_new(c->out, message) ? request_refuse_memory(c->why) : 0;
}

/* The last message, if it has this role; else NULL. */
static json_t *last_with(const struct serve_conversation *c, const char *role)
{
    const size_t n = json_array_size(c->out);
    json_t *last = n ? json_array_get(c->out, n - 1) : NULL;
    return strcmp(serve_word(last, "role"), role) == 0 ? last : NULL;
}

/* The assistant's message that is the last one, which may begin here. NULL: out of memory. */
static json_t *turn_of(struct serve_conversation *c)
{
    const struct cli_field fields[] = {{"role", json_string("assistant")},
                                       {"content", json_string("")}};
    json_t *begun = CLI_OBJECT(fields), *last = last_with(c, "assistant");
    if (!last && !json_array_append(c->out, begun))
        last = begun;
    json_decref(begun);
    return last;
}

/* What stands under `key` grows by a line, the text. */
static int join(struct serve_conversation *c, json_t *message, const char *key)
{
    struct spw_text line = c->text;
    c->text = (struct spw_text){.failed = line.failed};
    serve_add_text(c, "", json_object_get(message, key));
    if (line.n && c->text.n)
        spw_text_add(&c->text, "\n", 1);
    spw_text_add(&c->text, line.text, line.n);
    spw_free(line.text);
    return json_object_set_new(message, key, take_text(c)) ? request_refuse_memory(c->why) : 0;
}

int serve_add_message(struct serve_conversation *c, const char *role, bool joins)
{
    json_t *last = joins ? last_with(c, role) : NULL;
    if (last)
        return join(c, last, "content");
    const struct cli_field fields[] = {{"role", json_string(role)}, {"content", take_text(c)}};
    return append(c, CLI_OBJECT(fields));
}

int serve_add_system(struct serve_conversation *c)
{
    return has_text(c) ? serve_add_message(c, "system", false) : 0;
}

int serve_add_result(struct serve_conversation *c, const char *call_id)
{
    const struct cli_field fields[] = {
        {"role", json_string("tool")},
        {"tool_call_id", json_string(call_id)},
        {"content", take_text(c)},
    };
    return append(c, CLI_OBJECT(fields));
}

/* The key under which the template finds the reasoning of an earlier answer. */
static const char *reasoning_key(const struct spw_chat_template *t)
{
    return t && !spw_chat_template_has(t, "reasoning_content") &&
                   spw_chat_template_has(t, ".thinking")
               ? "thinking"
               : "reasoning_content";
}

int serve_add_reasoning(struct serve_conversation *c)
{
    return has_text(c) ? join(c, turn_of(c), reasoning_key(c->r->template)) : 0;
}

int serve_add_call(struct serve_conversation *c, const char *id, const char *name,
                   json_t *arguments)
{
    json_t *message = turn_of(c);
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
    const json_t *last = last_with(c, "assistant");
    if (!rc && continues && last && !json_object_get(last, "tool_calls") &&
        json_object_set_new(x->body, "continue_final_message", json_true()))
        rc = request_refuse_memory(c->why);
    json_decref(c->out);
    spw_free(c->text.text);
    return rc;
}
