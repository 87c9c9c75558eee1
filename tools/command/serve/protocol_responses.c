/* Bodies of /v1/responses become bodies of a chat: see protocol_responses_answer.c for the answers.
 * The server keeps no conversations: each request has all of its own. Items of a turn of the
 * assistant (reasoning, texts, calls) become one message. */
#include "tools/command/serve/conversation.h"

#include <string.h>

/* ---- items ---- */

static int refuse_part(struct serve_conversation *c, const json_t *part, const char *reason)
{
    return request_refuse(c->why, 400, "unsupported_value", "input",
                          "input: found \"%.40s\", but %s", serve_word(part, "type"), reason);
}

/* A text, or the texts of parts. */
static int read_text(struct serve_conversation *c, const json_t *content)
{
    static const char *const texts[] = {"input_text", "output_text", "text", "reasoning_text",
                                        "summary_text"};
    serve_add_text(c, "", content);
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *part = json_array_get(content, i);
        if (serve_is_type(part, "input_image") || serve_is_type(part, "input_file") ||
            serve_is_type(part, "input_audio"))
            return refuse_part(c, part, "the model reads texts only");
        for (size_t k = 0; k < sizeof texts / sizeof *texts; k++)
            if (serve_is_type(part, texts[k]))
                serve_add_text(c, "\n", json_object_get(part, "text"));
        if (serve_is_type(part, "refusal"))
            serve_add_text(c, "\n", json_object_get(part, "refusal"));
    }
    return 0;
}

static int add_message(struct serve_conversation *c, const json_t *item)
{
    static const char *const roles[] = {"user", "assistant", "system", "developer"};
    const char *role = serve_word(item, "role");
    bool is_known = false;
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        is_known = is_known || strcmp(role, roles[i]) == 0;
    if (!is_known)
        return request_refuse_value(c->why, "input.role", json_object_get(item, "role"),
                                    "\"user\", \"assistant\", \"system\" or \"developer\"");
    const bool answers = strcmp(role, "assistant") == 0;
    SPW_TRY(read_text(c, json_object_get(item, "content")));
    return answers || strcmp(role, "user") == 0 ? serve_add_message(c, role, answers)
                                                : serve_add_system(c);
}

static int add_reasoning(struct serve_conversation *c, const json_t *item)
{
    const json_t *content = json_object_get(item, "content");
    SPW_TRY(read_text(c, json_array_size(content) ? content : json_object_get(item, "summary")));
    return serve_add_reasoning(c);
}

/* Calls of tools that are no functions: what the model reads must only be the same each time. */
static int add_other_call(struct serve_conversation *c, const json_t *item)
{
    json_t *input = json_object_get(item, "input"), *action = json_object_get(item, "action");
    const struct cli_field fields[] = {{input ? "input" : NULL, json_incref(input)},
                                       {action ? "action" : NULL, json_incref(action)}};
    const char *name = serve_word(item, "name");
    return serve_add_call(c, serve_word(item, "call_id"), *name ? name : "shell",
                          CLI_OBJECT(fields));
}

static int add_output(struct serve_conversation *c, const json_t *item)
{
    SPW_TRY(read_text(c, json_object_get(item, "output")));
    return serve_add_result(c, serve_word(item, "call_id"));
}

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static int add_item(struct serve_conversation *c, const json_t *item)
{
    const char *type = serve_word(item, "type");
    if (!*type || strcmp(type, "message") == 0)
        return add_message(c, item);
    if (strcmp(type, "reasoning") == 0)
        return add_reasoning(c, item);
    if (strcmp(type, "function_call") == 0)
        return serve_add_call(c, serve_word(item, "call_id"), serve_word(item, "name"),
                              json_string(serve_word(item, "arguments")));
    if (strcmp(type, "item_reference") == 0)
        return refuse_part(c, item, "the server keeps no items: send the item itself");
    if (ends_with(type, "_call_output"))
        return add_output(c, item);
    if (strcmp(type, "custom_tool_call") == 0 || ends_with(type, "shell_call"))
        return add_other_call(c, item);
    return 0; /* of a tool that the server does not have */
}

static int add_input(struct serve_conversation *c, const json_t *body)
{
    const json_t *input = json_object_get(body, "input");
    serve_add_text(c, "", json_object_get(body, "instructions"));
    SPW_TRY(serve_add_system(c));
    if (json_is_string(input)) {
        serve_add_text(c, "", input);
        return serve_add_message(c, "user", true);
    }
    if (!json_is_array(input))
        return request_refuse_value(c->why, "input", input, "a text or a list of items");
    for (size_t i = 0; i < json_array_size(input); i++)
        SPW_TRY(add_item(c, json_array_get(input, i)));
    return 0;
}

/* ---- options ---- */

/* What needs answers that the server has kept. */
static int refuse_state(const json_t *body, struct request_refusal *why)
{
    static const char *const keys[] = {"previous_response_id", "conversation", "prompt"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *value = json_object_get(body, keys[i]);
        if (value && !json_is_null(value))
            return request_refuse(why, 400, "unsupported_parameter", keys[i],
                                  "%s: the server keeps no responses: send the whole conversation "
                                  "as \"input\"",
                                  keys[i]);
    }
    if (json_is_true(json_object_get(body, "background")))
        return request_refuse(why, 400, "unsupported_parameter", "background",
                              "background: the server answers while the client waits: leave the "
                              "key out");
    return 0;
}

/* The functions among the tools, as they came. */
static json_t *functions_of(const json_t *tools)
{
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(tools); i++) {
        json_t *tool = json_array_get(tools, i);
        if (serve_is_type(tool, "function") && *serve_word(tool, "name"))
            cli_json_append(&list, json_incref(tool));
    }
    return list;
}

static int copy_tools(json_t *to, const json_t *functions)
{
    static const char *const keys[] = {"name", "description", "parameters"};
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(functions); i++) {
        json_t *function = json_object();
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
            json_t *value = json_object_get(json_array_get(functions, i), keys[k]);
            if (value && !json_is_null(value))
                cli_json_add(&function, keys[k], json_incref(value));
        }
        cli_json_append(&list, function);
    }
    return serve_set_tools(to, list);
}

/* "auto", "none", "required", or {"type": "function", "name"}; *echo: as the answer repeats it. */
static int copy_choice(json_t *to, json_t *choice, json_t **echo)
{
    static const char *const words[] = {"none", "auto", "required"};
    const bool is_function = serve_is_type(choice, "function") && *serve_word(choice, "name");
    const char *name = serve_is_type(choice, "allowed_tools") ? serve_word(choice, "mode")
                                                              : json_string_value(choice);
    const char *word = "auto";
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (name && strcmp(name, words[i]) == 0)
            word = words[i];
    *echo = is_function ? json_incref(choice) : json_string(word);
    return serve_set_choice(to, word, is_function ? serve_word(choice, "name") : NULL);
}

/* {"type": "json_schema", "name", "schema", "strict"?}; *echo: of the answer. */
static int copy_format(json_t *to, json_t *format, json_t **echo)
{
    const bool is_schema = serve_is_type(format, "json_schema");
    const bool is_json = is_schema || serve_is_type(format, "json_object");
    const struct cli_field none[] = {{"type", json_string("text")}};
    const struct cli_field text[] = {{"format", is_json ? json_incref(format) : CLI_OBJECT(none)}};
    if (is_json)
        json_decref(none[0].value);
    *echo = CLI_OBJECT(text);
    if (!is_json)
        return 0;
    if (!is_schema)
        return json_object_set(to, "response_format", format);
    json_t *inner = json_object(), *value;
    const char *name;
    json_object_foreach(format, name, value) if (strcmp(name, "type") != 0)
        cli_json_add(&inner, name, json_incref(value));
    return json_object_set_new(to, "response_format", serve_typed("json_schema", inner));
}

static json_t *number_or(const json_t *body, const char *key, double otherwise)
{
    json_t *value = json_object_get(body, key);
    return json_is_number(value) ? json_incref(value) : json_real(otherwise);
}

static json_t *text_or_null(const json_t *body, const char *key)
{
    json_t *value = json_object_get(body, key);
    return CLI_OR_NULL(json_is_string(value), json_incref(value));
}

/* What a response repeats of its request. */
static json_t *echo_of(const json_t *body, json_t *tools, json_t *choice, json_t *text)
{
    static const char *const efforts[] = {"none", "minimal", "low", "medium",
                                          "high", "xhigh",   "max"};
    const json_t *most = json_object_get(body, "max_output_tokens");
    const char *effort = serve_word(json_object_get(body, "reasoning"), "effort"), *known = NULL;
    json_t *metadata = json_object_get(body, "metadata");
    for (size_t i = 0; i < sizeof efforts / sizeof *efforts; i++)
        if (strcmp(effort, efforts[i]) == 0)
            known = efforts[i];
    const struct cli_field reasoning[] = {{"effort", CLI_JSON(known)}, {"summary", json_null()}};
    const bool parallel = !json_is_false(json_object_get(body, "parallel_tool_calls"));
    const struct cli_field fields[] = {
        {"instructions", text_or_null(body, "instructions")},
        {"max_output_tokens",
         CLI_OR_NULL(json_is_integer(most), json_integer(json_integer_value(most)))},
        {"parallel_tool_calls", CLI_JSON(parallel)},
        {"previous_response_id", json_null()},
        {"reasoning", CLI_OBJECT(reasoning)},
        {"store", json_false()},
        {"temperature", number_or(body, "temperature", 1)},
        {"text", text},
        {"tool_choice", choice},
        {"tools", tools},
        {"top_p", number_or(body, "top_p", 1)},
        {"truncation", json_string("disabled")},
        {"metadata", json_is_object(metadata) ? json_incref(metadata) : json_object()},
    };
    return CLI_OBJECT(fields);
}

/* "message.output_text.logprobs" in `include` */
static bool wants_logprobs(const json_t *body)
{
    const json_t *include = json_object_get(body, "include");
    for (size_t i = 0; i < json_array_size(include); i++) {
        const char *name = json_string_value(json_array_get(include, i));
        if (name && strcmp(name, "message.output_text.logprobs") == 0)
            return true;
    }
    return false;
}

static int copy_options(json_t *to, const json_t *body, const struct request_reader *r)
{
    SPW_TRY(serve_copy_options(to, body, "max_output_tokens", "stop"));
    if (wants_logprobs(body) &&
        (json_object_set_new(to, "logprobs", json_true()) ||
         serve_copy(to, "top_logprobs", json_object_get(body, "top_logprobs"))))
        return -ENOMEM;
    return serve_set_effort(to, serve_word(json_object_get(body, "reasoning"), "effort"), r);
}

int serve_read_responses(struct request *x, struct serve_wish *wish, json_t *body,
                         struct request_reader *r, struct request_refusal *why)
{
    SPW_TRY(serve_read_wish(wish, body, why));
    SPW_TRY(refuse_state(body, why));
    json_t *to = json_object(), *choice = NULL, *text = NULL;
    json_t *functions = functions_of(json_object_get(body, "tools"));
    int rc = to && functions ? copy_options(to, body, r) : -ENOMEM;
    if (!rc)
        rc = copy_tools(to, functions);
    if (!rc)
        rc = copy_choice(to, json_object_get(body, "tool_choice"), &choice);
    if (!rc)
        rc = copy_format(to, json_object_get(json_object_get(body, "text"), "format"), &text);
    json_t *echo = echo_of(body, functions, choice, text);
    if (rc || !echo) {
        json_decref(to);
        json_decref(echo);
        return request_refuse_memory(why);
    }
    SPW_TRY(serve_set_body(x, REQUEST_CHAT, to, echo, r, why));
    struct serve_conversation c = {.r = r, .out = json_array(), .why = why};
    rc = c.out ? add_input(&c, body) : request_refuse_memory(why);
    return serve_end_conversation(&c, x, rc, false);
}
