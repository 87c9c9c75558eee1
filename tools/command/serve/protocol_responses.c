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
static int read_text(struct serve_conversation *c, const json_t *content, struct spw_text *to)
{
    static const char *const texts[] = {"input_text", "output_text", "text", "reasoning_text",
                                        "summary_text"};
    int rc = json_is_string(content) ? serve_add_text(to, "", content) : 0;
    for (size_t i = 0; i < json_array_size(content) && !rc; i++) {
        const json_t *part = json_array_get(content, i);
        if (serve_is_type(part, "input_image") || serve_is_type(part, "input_file") ||
            serve_is_type(part, "input_audio"))
            return refuse_part(c, part, "the model reads texts only");
        for (size_t k = 0; k < sizeof texts / sizeof *texts && !rc; k++)
            if (serve_is_type(part, texts[k]))
                rc = serve_add_text(to, "\n", json_object_get(part, "text"));
        if (!rc && serve_is_type(part, "refusal"))
            rc = serve_add_text(to, "\n", json_object_get(part, "refusal"));
    }
    return rc ? request_refuse_memory(c->why) : 0;
}

static int add_message(struct serve_conversation *c, const json_t *item)
{
    static const char *const roles[] = {"user", "assistant", "system", "developer"};
    const char *role = serve_word(item, "role");
    struct spw_text text = {0};
    bool is_known = false;
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        is_known = is_known || strcmp(role, roles[i]) == 0;
    if (!is_known)
        return request_refuse_value(c->why, "input.role", json_object_get(item, "role"),
                                    "\"user\", \"assistant\", \"system\" or \"developer\"");
    int rc = read_text(c, json_object_get(item, "content"), &text);
    if (!rc && strcmp(role, "assistant") == 0)
        rc = serve_add_message(c, role, &text);
    else if (!rc && strcmp(role, "user") == 0) {
        const struct cli_field fields[] = {{"role", json_string(role)},
                                           {"content", cli_json_grown(&text)}};
        rc = serve_append(c, CLI_OBJECT(fields));
    } else if (!rc)
        rc = serve_add_system(c, &text);
    spw_free(text.text);
    return rc;
}

/* The message of the assistant's turn, which begins here if it has not begun. */
static int begin_turn(struct serve_conversation *c)
{
    const struct spw_text none = {0};
    return serve_last_with(c, "assistant") ? 0 : serve_add_message(c, "assistant", &none);
}

static int add_reasoning(struct serve_conversation *c, const json_t *item)
{
    const json_t *content = json_object_get(item, "content");
    struct spw_text text = {0};
    int rc =
        read_text(c, json_array_size(content) ? content : json_object_get(item, "summary"), &text);
    if (!rc && text.n)
        rc = begin_turn(c);
    if (!rc)
        rc = serve_add_reasoning(c, &text);
    spw_free(text.text);
    return rc;
}

static int add_call(struct serve_conversation *c, const json_t *item, const char *name,
                    json_t *arguments)
{
    int rc = begin_turn(c);
    if (rc) {
        json_decref(arguments);
        return rc;
    }
    return serve_add_call(c, serve_word(item, "call_id"), name, arguments);
}

/* Calls of tools that are no functions: what the model reads must only be the same each time. */
static int add_other_call(struct serve_conversation *c, const json_t *item)
{
    json_t *input = json_object_get(item, "input"), *action = json_object_get(item, "action");
    const struct cli_field fields[] = {{input ? "input" : NULL, json_incref(input)},
                                       {action ? "action" : NULL, json_incref(action)}};
    const char *name = serve_word(item, "name");
    return add_call(c, item, *name ? name : "shell", CLI_OBJECT(fields));
}

static int add_output(struct serve_conversation *c, const json_t *item)
{
    struct spw_text text = {0};
    int rc = read_text(c, json_object_get(item, "output"), &text);
    if (!rc)
        rc = serve_add_result(c, serve_word(item, "call_id"), &text);
    spw_free(text.text);
    return rc;
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
        return add_call(c, item, serve_word(item, "name"),
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
    const json_t *instructions = json_object_get(body, "instructions");
    const json_t *input = json_object_get(body, "input");
    struct spw_text text = {0};
    int rc = serve_add_text(&text, "", instructions) ? request_refuse_memory(c->why)
                                                     : serve_add_system(c, &text);
    text.n = 0;
    if (!rc && json_is_string(input)) {
        rc = serve_add_text(&text, "", input) ? request_refuse_memory(c->why)
                                              : serve_add_message(c, "user", &text);
    } else if (!rc && !json_is_array(input)) {
        rc = request_refuse_value(c->why, "input", input, "a text or a list of items");
    }
    for (size_t i = 0; i < json_array_size(input) && !rc; i++)
        rc = add_item(c, json_array_get(input, i));
    spw_free(text.text);
    return rc;
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
        const struct cli_field fields[] = {{"type", json_string("function")},
                                           {"function", function}};
        cli_json_append(&list, CLI_OBJECT(fields));
    }
    const bool is_empty = list && json_array_size(list) == 0;
    if (!is_empty)
        return json_object_set_new(to, "tools", list);
    json_decref(list);
    return 0;
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
    if (!json_object_get(to, "tools"))
        return 0;
    if (!is_function)
        return json_object_set_new(to, "tool_choice", json_string(word));
    const struct cli_field function[] = {{"name", json_string(serve_word(choice, "name"))}};
    const struct cli_field fields[] = {{"type", json_string("function")},
                                       {"function", CLI_OBJECT(function)}};
    return json_object_set_new(to, "tool_choice", CLI_OBJECT(fields));
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
    const struct cli_field fields[] = {{"type", json_string("json_schema")},
                                       {"json_schema", inner}};
    return json_object_set_new(to, "response_format", CLI_OBJECT(fields));
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
    static const char *const keys[][2] = {{"model", "model"},
                                          {"temperature", "temperature"},
                                          {"top_p", "top_p"},
                                          {"max_output_tokens", "max_tokens"},
                                          {"seed", "seed"},
                                          {"top_k", "top_k"},
                                          {"min_p", "min_p"},
                                          {"repetition_penalty", "repetition_penalty"},
                                          {"presence_penalty", "presence_penalty"},
                                          {"frequency_penalty", "frequency_penalty"},
                                          {"stop", "stop"},
                                          {"ignore_eos", "ignore_eos"},
                                          {"chat_template_kwargs", "chat_template_kwargs"}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (serve_copy(to, keys[i][1], json_object_get(body, keys[i][0])))
            return -ENOMEM;
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
