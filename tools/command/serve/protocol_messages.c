/* Bodies of /v1/messages, as Anthropic's clients send them, become bodies of a chat: see
 * protocol_messages_answer.c for the answers.
 *
 *   system              -> a system message
 *   user:  tool_result  -> tool messages, before the rest of the message
 *   assistant: thinking -> its reasoning; tool_use -> its calls
 *   a last message of the assistant: the answer continues it
 *
 * What a text model has no use for (cache_control, tools of the server, blocks of unknown types) is
 * left out. */
#include "tools/command/serve/conversation.h"

#include <string.h>

/* ---- blocks ---- */

/* Claude Code replaces an image by a text, and goes on, if it reads these words. */
static int refuse_image(struct serve_conversation *c)
{
    return request_refuse(c->why, 400, "unsupported_value", "messages",
                          "Could not process image: the model reads texts only");
}

static const json_t *find_tool(const struct serve_conversation *c, const char *name)
{
    for (size_t i = 0; i < json_array_size(c->tools); i++)
        if (strcmp(serve_word(json_array_get(c->tools, i), "name"), name) == 0)
            return json_array_get(c->tools, i);
    return NULL;
}

/* A function as OpenAI describes it; NULL: out of memory. */
static json_t *function_of(const json_t *tool)
{
    json_t *text = json_object_get(tool, "description");
    json_t *schema = json_object_get(tool, "input_schema");
    const struct cli_field fields[] = {
        {"name", json_incref(json_object_get(tool, "name"))},
        {text ? "description" : NULL, json_incref(text)},
        {schema ? "parameters" : NULL, json_incref(schema)},
    };
    return CLI_OBJECT(fields);
}

/* The client has loaded a tool later: its description stands here, since the begin of the prompt
 * must not change. */
static void add_reference(struct serve_conversation *c, const json_t *block)
{
    const json_t *tool = find_tool(c, serve_word(block, "tool_name"));
    json_t *function = tool ? function_of(tool) : NULL;
    char *text = tool ? spw_json_dump(function, JSON_COMPACT) : NULL;
    json_t *value = tool ? json_string(text) : json_incref(json_object_get(block, "tool_name"));
    c->text.failed |= tool && !value;
    serve_add_text(c, "\n", value);
    json_decref(value);
    json_decref(function);
    spw_free(text);
}

/* A text, or the texts of blocks. */
static int read_text(struct serve_conversation *c, const json_t *content, const char *between)
{
    serve_add_text(c, between, content);
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *block = json_array_get(content, i);
        if (serve_is_type(block, "image") || serve_is_type(block, "document"))
            return refuse_image(c);
        if (serve_is_type(block, "text"))
            serve_add_text(c, between, json_object_get(block, "text"));
        else if (serve_is_type(block, "tool_reference"))
            add_reference(c, block);
    }
    return 0;
}

/* ---- messages ---- */

static int add_user(struct serve_conversation *c, const json_t *content)
{
    const size_t before = json_array_size(c->out);
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *block = json_array_get(content, i);
        if (!serve_is_type(block, "tool_result"))
            continue;
        SPW_TRY(read_text(c, json_object_get(block, "content"), "\n"));
        SPW_TRY(serve_add_result(c, serve_word(block, "tool_use_id")));
    }
    SPW_TRY(read_text(c, content, "\n"));
    return c->text.n || c->text.failed || json_array_size(c->out) == before
               ? serve_add_message(c, "user", true)
               : 0;
}

static int add_part(struct serve_conversation *c, const json_t *block)
{
    json_t *input = json_object_get(block, "input");
    if (serve_is_type(block, "thinking")) {
        serve_add_text(c, "", json_object_get(block, "thinking"));
        return serve_add_reasoning(c);
    }
    if (serve_is_type(block, "tool_use"))
        return serve_add_call(c, serve_word(block, "id"), serve_word(block, "name"),
                              json_is_object(input) ? json_incref(input) : json_object());
    return 0;
}

static int add_assistant(struct serve_conversation *c, const json_t *content)
{
    SPW_TRY(read_text(c, content, "\n"));
    SPW_TRY(serve_add_message(c, "assistant", true));
    for (size_t i = 0; i < json_array_size(content); i++)
        SPW_TRY(add_part(c, json_array_get(content, i)));
    return 0;
}

/* Claude Code's first system text names the session and the version: no two sessions would share
 * a prefix. */
static bool is_billing(const json_t *text)
{
    static const char begin[] = "x-anthropic-billing-header:";
    return json_is_string(text) && strncmp(json_string_value(text), begin, sizeof begin - 1) == 0;
}

static int add_system(struct serve_conversation *c, json_t *content)
{
    for (size_t i = json_array_size(content); i-- > 0;)
        if (is_billing(json_object_get(json_array_get(content, i), "text")))
            json_array_remove(content, i);
    SPW_TRY(read_text(c, content, "\n\n"));
    return serve_add_system(c);
}

static int refuse_part(struct serve_conversation *c, size_t i, const char *rest,
                       const json_t *value, const char *expected)
{
    char key[64];
    snprintf(key, sizeof key, "messages.%zu%s", i, rest);
    return request_refuse_value(c->why, key, value, expected);
}

static int add_each(struct serve_conversation *c, const json_t *messages)
{
    if (json_array_size(messages) == 0)
        return request_refuse_value(c->why, "messages", messages, "a list of at least one message");
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *message = json_array_get(messages, i);
        json_t *content = json_object_get(message, "content");
        const char *role = serve_word(message, "role");
        if (!json_is_string(content) && !json_is_array(content))
            return refuse_part(c, i, ".content", content, "a text or a list of blocks");
        if (strcmp(role, "user") == 0)
            SPW_TRY(add_user(c, content));
        else if (strcmp(role, "assistant") == 0)
            SPW_TRY(add_assistant(c, content));
        else if (strcmp(role, "system") == 0)
            SPW_TRY(add_system(c, content));
        else
            return refuse_part(c, i, ".role", json_object_get(message, "role"),
                               "\"user\", \"assistant\" or \"system\"");
    }
    return 0;
}

/* ---- tools ---- */

/* Tools of the server have a type of their own. A tool that is loaded later is called as any other
 * one, but its description is not at the begin of the prompt. */
static int copy_tools(json_t *to, const json_t *tools, bool deferred)
{
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i);
        const char *type = serve_word(tool, "type");
        const bool is_late = json_is_true(json_object_get(tool, "defer_loading"));
        if (!json_is_string(json_object_get(tool, "name")) || (is_late && !deferred) ||
            (*type && strcmp(type, "custom") != 0))
            continue;
        cli_json_append(&list, function_of(tool));
    }
    return serve_set_tools(to, list);
}

static int copy_choice(json_t *to, const json_t *choice)
{
    const bool is_any = serve_is_type(choice, "any"), is_none = serve_is_type(choice, "none");
    return json_is_object(choice)
               ? serve_set_choice(to,
                                  is_any    ? "required"
                                  : is_none ? "none"
                                            : "auto",
                                  serve_is_type(choice, "tool") ? serve_word(choice, "name") : NULL)
               : 0;
}

/* ---- options ---- */

/* {"type": "json_schema", "schema": ...} */
static int copy_format(json_t *to, const json_t *format)
{
    if (!serve_is_type(format, "json_schema"))
        return 0;
    json_t *schema = json_object_get(format, "schema");
    const struct cli_field named[] = {{"name", json_string("output_config")},
                                      {"schema", CLI_OR_NULL(schema, json_incref(schema))}};
    return json_object_set_new(to, "response_format",
                               serve_typed("json_schema", CLI_OBJECT(named)));
}

static int copy_options(json_t *to, struct serve_wish *wish, const json_t *body,
                        const struct request_reader *r)
{
    const json_t *thinking = json_object_get(body, "thinking");
    const json_t *output = json_object_get(body, "output_config");
    wish->hides_reasoning = strcmp(serve_word(thinking, "display"), "omitted") == 0;
    if (serve_copy_options(to, body, "max_tokens", "stop_sequences") ||
        copy_tools(to, json_object_get(body, "tools"), false) ||
        copy_choice(to, json_object_get(body, "tool_choice")) ||
        copy_format(to, json_object_get(output, "format")) ||
        serve_set_effort(to, serve_word(output, "effort"), r))
        return -ENOMEM;
    return json_is_object(thinking) ? serve_set_thinking(to, !serve_is_type(thinking, "disabled"))
                                    : 0;
}

/* The tools that an answer may call, also those that are loaded later; none if it may call none. */
static int note_tools(struct request *x, const json_t *body, struct request_refusal *why)
{
    if (serve_is_type(json_object_get(body, "tool_choice"), "none"))
        return 0;
    json_t *all = json_object();
    int rc = all && !copy_tools(all, json_object_get(body, "tools"), true) ? 0 : -ENOMEM;
    json_t *tools = json_object_get(all, "tools");
    if (!rc && tools) {
        x->tools_json = spw_json_dump(tools, JSON_COMPACT);
        rc = x->tools_json ? 0 : -ENOMEM;
    }
    json_decref(all);
    return rc ? request_refuse_memory(why) : 0;
}

static int fill(struct request *x, json_t *body, struct request_reader *r,
                struct request_refusal *why)
{
    struct serve_conversation c = {
        .r = r, .tools = json_object_get(body, "tools"), .out = json_array(), .why = why};
    int rc = c.out ? add_system(&c, json_object_get(body, "system")) : request_refuse_memory(why);
    if (!rc)
        rc = add_each(&c, json_object_get(body, "messages"));
    return serve_end_conversation(&c, x, rc, true);
}

int serve_read_messages(struct request *x, struct serve_wish *wish, json_t *body,
                        struct request_reader *r, struct request_refusal *why)
{
    SPW_TRY(serve_read_wish(wish, body, why));
    json_t *to = json_object();
    if (!to || copy_options(to, wish, body, r)) {
        json_decref(to);
        return request_refuse_memory(why);
    }
    SPW_TRY(serve_set_body(x, REQUEST_CHAT, to, NULL, r, why));
    SPW_TRY(note_tools(x, body, why));
    return fill(x, body, r, why);
}
