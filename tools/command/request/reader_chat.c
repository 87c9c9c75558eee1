/* Conversations: messages, tools and other variables for the model's chat template. */
#include "tools/command/request/reader_parts.h"

#include "tools/command/chat/chat_prompt.h"

#include <stdlib.h>
#include <string.h>

void request_reader_close(struct request_reader *r)
{
    spw_chat_template_close(r->template);
    r->template = NULL;
}

int request_reader_open_template(struct request_reader *r, struct spw_error *err)
{
    if (r->template)
        return 0;
    SPW_TRY(cli_chat_template_open(&r->template, r->o, r->model, err));
    int rc =
        r->model->tokenizer ? spw_reasoning_find(&r->form, r->template, r->model->tokenizer) : 0;
    if (!rc)
        return 0;
    request_reader_close(r);
    return spw_fail(err, rc, "marks of reasoning: %s", strerror(-rc));
}

/* A model without a template has the same refusal for every line. */
static int open_template(struct request_reader *r, struct request_refusal *why)
{
    struct spw_error err = {0};
    if (!r->no_template.message[0]) {
        int rc = request_reader_open_template(r, &err);
        if (rc == 0 || rc == -ENOMEM)
            return rc ? request_refuse_memory(why) : 0;
        request_refuse_call(&r->no_template, rc, "messages", &err);
    }
    *why = r->no_template;
    return -EINVAL;
}

/* The answers of a prompt whose text the template has made. */
static void note_reasoning(const struct request_reader *r, const char *text, size_t bytes,
                           struct request_prompt *out)
{
    out->form = r->form;
    out->is_open = spw_reasoning_is_open(&r->form, text, bytes);
}

/* ---- rendering ---- */

/* NULL gives NULL. False: out of memory. */
static bool dump(const json_t *value, char **text)
{
    *text = spw_json_dump(value, JSON_COMPACT);
    return *text || !value;
}

static int render(const struct request_reader *r, const json_t *messages, const json_t *tools,
                  const json_t *extra, char **text, size_t *bytes, struct spw_error *err)
{
    char *tools_text = NULL, *extra_text = NULL;
    int rc = -ENOMEM;
    if (dump(tools, &tools_text) && dump(extra, &extra_text)) {
        struct spw_chat_request request = {
            .tools_json = tools_text,
            .tools_bytes = tools_text ? strlen(tools_text) : 0,
            .extra_json = extra_text,
            .extra_bytes = extra_text ? strlen(extra_text) : 0,
        };
        rc = cli_chat_render(r->template, messages, r->started, &request, text, bytes, err);
    }
    spw_free(tools_text);
    spw_free(extra_text);
    return rc;
}

int request_encode_chat(struct request_reader *r, const json_t *messages, const json_t *tools,
                        const json_t *extra, struct request_prompt *out,
                        struct request_refusal *why)
{
    struct spw_error err = {0};
    char *text;
    size_t bytes;
    SPW_TRY(open_template(r, why));
    int rc = render(r, messages, tools, extra, &text, &bytes, &err);
    if (rc)
        return request_refuse_call(why, rc, "messages", &err);
    const struct spw_encoding e = {.text = text, .bytes = bytes};
    rc = request_encode_prompt(r, "messages", &e, out, why);
    note_reasoning(r, text, bytes, out);
    spw_free(text);
    return rc;
}

/* ---- a message with plain spans ---- */

/* The text that stands for a message while the template shows where it puts the message. */
static const char stand_in[] = "spillway-7f2d9c41e0b35a68";

static int add_spans(const struct spw_encoding *content, size_t begin, size_t end, size_t at,
                     struct spw_encoding *text, struct spw_text_span **spans)
{
    struct spw_text_span *grown =
        spw_realloc(*spans, (text->n_plain + content->n_plain) * sizeof *grown);
    if (!grown)
        return -ENOMEM;
    text->plain = *spans = grown;
    for (size_t i = 0; i < content->n_plain; i++) {
        const size_t from = spw_max_u64(content->plain[i].begin, begin);
        const size_t to = spw_min_u64(content->plain[i].end, end);
        grown[text->n_plain] = (struct spw_text_span){at + from - begin, at + to - begin};
        text->n_plain += from < to;
    }
    return 0;
}

/* Compares the text with `form`, which has stand_in where the text has content[begin, end), and
 * adds the spans of these places. 1: they are equal, 0, -ENOMEM. */
static int match(const char *form, const struct spw_encoding *content, size_t begin, size_t end,
                 struct spw_encoding *text, struct spw_text_span **spans)
{
    size_t at = 0;
    text->n_plain = 0;
    while (*form) {
        const char *next = strstr(form, stand_in);
        const size_t n = next ? (size_t)(next - form) : strlen(form);
        if (n > text->bytes - at || memcmp(text->text + at, form, n) != 0)
            return 0;
        at += n;
        form += n;
        if (!next)
            break;
        if (end - begin > text->bytes - at ||
            memcmp(text->text + at, content->text + begin, end - begin) != 0)
            return 0;
        SPW_TRY(add_spans(content, begin, end, at, text, spans));
        at += end - begin;
        form += sizeof stand_in - 1;
    }
    return at == text->bytes;
}

/* Whether a span has a special token. 0, 1, -errno. */
static int has_special(const struct request_reader *r, const struct spw_encoding *content)
{
    int rc = 0;
    for (size_t i = 0; i < content->n_plain && !rc; i++) {
        const struct spw_text_span *span = &content->plain[i];
        int32_t *ids;
        size_t n;
        rc = spw_tokenizer_encode(r->model->tokenizer, content->text + span->begin,
                                  span->end - span->begin, false, &ids, &n, NULL);
        for (size_t k = 0; !rc && k < n; k++)
            if (spw_tokenizer_is_special(r->model->tokenizer, ids[k]))
                rc = 1;
        if (rc >= 0)
            spw_free(ids);
    }
    return rc;
}

/* Finds the spans of the message in the text of the template, which may leave out the blanks around
 * a message. */
static int find_spans(const char *form, const struct spw_encoding *content,
                      struct spw_encoding *text, struct spw_text_span **spans)
{
    static const char blank[] = " \t\r\n";
    size_t begin = 0, end = content->bytes;
    int rc = match(form, content, begin, end, text, spans);
    while (begin < end && content->text[begin] && strchr(blank, content->text[begin]))
        begin++;
    while (begin < end && content->text[end - 1] && strchr(blank, content->text[end - 1]))
        end--;
    return rc ? rc : match(form, content, begin, end, text, spans);
}

static int encode_rendered(const struct request_reader *r, const char *form,
                           const struct spw_encoding *content, struct spw_encoding *text,
                           struct request_prompt *out, struct request_refusal *why)
{
    struct spw_text_span *spans = NULL;
    int rc = find_spans(form, content, text, &spans);
    if (rc == 0) {
        text->n_plain = 0;
        rc = has_special(r, content) ? -EINVAL : 1;
    }
    if (rc == 1)
        rc = request_encode_prompt(r, "text", text, out, why);
    else if (rc == -ENOMEM)
        request_refuse_memory(why);
    else
        request_refuse(
            why, 400, "invalid_value", "text",
            "found a special token of the model in the text, and the chat template changes "
            "the text, so that the token cannot be found there");
    spw_free(spans);
    return rc;
}

static int render_message(const struct request_reader *r, const char *text, size_t text_bytes,
                          const json_t *extra, char **out, size_t *bytes,
                          struct request_refusal *why)
{
    struct spw_error err = {0};
    json_t *content = json_stringn(text, text_bytes);
    json_t *messages =
        content ? json_pack("[{s:s, s:o}]", "role", "user", "content", content) : NULL;
    int rc = messages ? render(r, messages, NULL, extra, out, bytes, &err) : -ENOMEM;
    json_decref(messages);
    return rc ? request_refuse_call(why, rc, "text", &err) : 0;
}

int request_encode_message(struct request_reader *r, const struct spw_encoding *e,
                           const json_t *extra, struct request_prompt *out,
                           struct request_refusal *why)
{
    struct spw_encoding text = {0};
    char *rendered, *form;
    size_t form_bytes;
    SPW_TRY(open_template(r, why));
    SPW_TRY(render_message(r, e->text, e->bytes, extra, &rendered, &text.bytes, why));
    int rc = render_message(r, stand_in, sizeof stand_in - 1, extra, &form, &form_bytes, why);
    if (!rc) {
        text.text = rendered;
        rc = encode_rendered(r, form, e, &text, out, why);
        note_reasoning(r, rendered, text.bytes, out);
        spw_free(form);
    }
    spw_free(rendered);
    return rc;
}

/* The template's text of a small conversation; NULL: the template fails. */
static char *render_effort(const struct request_reader *r, const char *effort)
{
    char *text = NULL;
    size_t bytes;
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", "x");
    json_t *extra = json_pack("{s:s}", "reasoning_effort", effort);
    if (!messages || !extra || render(r, messages, NULL, extra, &text, &bytes, NULL))
        text = NULL;
    json_decref(messages);
    json_decref(extra);
    return text;
}

/* Whether a prompt depends on reasoning_effort. */
static bool takes_effort(struct request_reader *r)
{
    if (!r->takes_effort) {
        char *low = render_effort(r, "low"), *high = render_effort(r, "high");
        r->takes_effort = low && high && strcmp(low, high) != 0 ? 1 : -1;
        spw_free(low);
        spw_free(high);
    }
    return r->takes_effort > 0;
}

/* ---- messages ---- */

/* Refuses `value`, which is `rest` of message i. */
static int refuse_message(struct request_refusal *why, size_t i, const char *rest,
                          const json_t *value, const char *expected)
{
    char key[96];
    snprintf(key, sizeof key, "messages[%zu]%s", i, rest);
    return request_refuse_value(why, key, value, expected);
}

static int check_part(size_t i, size_t k, const json_t *part, struct request_refusal *why)
{
    char rest[48], key[96];
    const json_t *type = json_object_get(part, "type");
    snprintf(rest, sizeof rest, ".content[%zu].type", k);
    snprintf(key, sizeof key, "messages[%zu]%s", i, rest);
    if (!json_is_string(type))
        return refuse_message(why, i, rest, type, "\"text\"");
    if (strcmp(json_string_value(type), "text") != 0)
        return request_refuse_support(why, key, type,
                                      "spillway reads texts only: expected \"text\"");
    snprintf(rest, sizeof rest, ".content[%zu].text", k);
    const json_t *text = json_object_get(part, "text");
    return json_is_string(text) ? 0 : refuse_message(why, i, rest, text, "a text");
}

/* Texts with line breaks between them, as vLLM joins them; NULL: out of memory. */
static json_t *join_parts(const json_t *parts)
{
    size_t n = json_array_size(parts), room = 1, bytes = 0;
    for (size_t k = 0; k < n; k++)
        room += json_string_length(json_object_get(json_array_get(parts, k), "text")) + 1;
    char *text = spw_alloc(room);
    for (size_t k = 0; k < n && text; k++) {
        const json_t *part = json_object_get(json_array_get(parts, k), "text");
        if (k > 0)
            text[bytes++] = '\n';
        memcpy(text + bytes, json_string_value(part), json_string_length(part));
        bytes += json_string_length(part);
    }
    json_t *joined = text ? json_stringn(text, bytes) : NULL;
    spw_free(text);
    return joined;
}

static int tidy_content(json_t *message, size_t i, struct request_refusal *why)
{
    const json_t *content = json_object_get(message, "content");
    if (json_is_string(content) || json_is_null(content) ||
        (!content && json_object_get(message, "tool_calls")))
        return 0;
    if (!json_is_array(content))
        return refuse_message(why, i, ".content", content, "a text or a list of parts");
    for (size_t k = 0; k < json_array_size(content); k++)
        SPW_TRY(check_part(i, k, json_array_get(content, k), why));
    return json_object_set_new(message, "content", join_parts(content)) ? request_refuse_memory(why)
                                                                        : 0;
}

/* Clients send the arguments of a call as a text with JSON. Templates print an object. */
static int tidy_calls(json_t *message, size_t i, struct request_refusal *why)
{
    json_t *calls = json_object_get(message, "tool_calls");
    if (calls && !json_is_null(calls) && !json_is_array(calls))
        return refuse_message(why, i, ".tool_calls", calls, "a list");
    for (size_t k = 0; k < json_array_size(calls); k++) {
        json_t *function = json_object_get(json_array_get(calls, k), "function");
        const json_t *text = json_object_get(function, "arguments");
        json_t *arguments = NULL;
        if (json_is_string(text) &&
            spw_json_parse(&arguments, json_string_value(text), json_string_length(text),
                           JSON_ALLOW_NUL, NULL) == -ENOMEM)
            return request_refuse_memory(why);
        if (!json_is_object(arguments))
            json_decref(arguments);
        else if (json_object_set_new(function, "arguments", arguments))
            return request_refuse_memory(why);
    }
    return 0;
}

/* A conversation of a short line may have roles that only its template knows. */
static int check_role(const struct request *x, size_t i, const json_t *role,
                      struct request_refusal *why)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};
    const char *name = json_string_value(role);
    bool is_known = name && x->form == REQUEST_SHORT;
    for (size_t k = 0; k < sizeof roles / sizeof *roles && name; k++)
        is_known = is_known || strcmp(name, roles[k]) == 0;
    return is_known ? 0
                    : refuse_message(why, i, ".role", role,
                                     "\"system\", \"developer\", \"user\", \"assistant\" or "
                                     "\"tool\"");
}

static int tidy_messages(const struct request *x, const json_t *messages,
                         struct request_refusal *why)
{
    if (json_array_size(messages) == 0)
        return request_refuse_value(why, "messages", messages, "a list of at least one message");
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *message = json_array_get(messages, i);
        if (!json_is_object(message))
            return refuse_message(why, i, "", message, "an object");
        SPW_TRY(check_role(x, i, json_object_get(message, "role"), why));
        SPW_TRY(tidy_content(message, i, why));
        SPW_TRY(tidy_calls(message, i, why));
    }
    return 0;
}

/* ---- other variables ---- */

/* *tools becomes NULL if there are none, or none may be called. */
static int find_tools(const json_t *body, const json_t **tools, struct request_refusal *why)
{
    const char *choice = json_string_value(json_object_get(body, "tool_choice"));
    const json_t *list = json_object_get(body, "tools");
    *tools = NULL;
    if (!list || json_is_null(list))
        return 0;
    if (!json_is_array(list))
        return request_refuse_value(why, "tools", list, "a list of tools");
    for (size_t i = 0; i < json_array_size(list); i++) {
        char key[64];
        const json_t *tool = json_array_get(list, i);
        snprintf(key, sizeof key, "tools[%zu].function.name", i);
        if (!json_is_string(json_object_get(json_object_get(tool, "function"), "name")))
            return request_refuse_value(why, key, tool,
                                        "{\"type\": \"function\", \"function\": {\"name\": ...}}");
    }
    if (json_array_size(list) > 0 && !(choice && strcmp(choice, "none") == 0))
        *tools = list;
    return 0;
}

/* *extra is owned by the caller; NULL: none. */
static int find_extra(struct request_reader *r, const json_t *body, json_t **extra,
                      struct request_refusal *why)
{
    json_t *given = json_object_get(body, "chat_template_kwargs");
    json_t *effort = json_object_get(body, "reasoning_effort");
    *extra = NULL;
    if (given && !json_is_null(given) && !json_is_object(given))
        return request_refuse_value(why, "chat_template_kwargs", given, "an object of variables");
    if (effort && !json_is_null(effort)) {
        SPW_TRY(open_template(r, why));
        if (!json_is_string(effort))
            return request_refuse_value(why, "reasoning_effort", effort, "a text");
        if (!takes_effort(r))
            return request_refuse_support(
                why, "reasoning_effort", effort,
                "the chat template of this model does not use it: leave the "
                "key out");
    }
    *extra = json_is_object(given) ? json_copy(given) : json_object();
    if (*extra && (!json_is_string(effort) || !json_object_set(*extra, "reasoning_effort", effort)))
        return 0;
    json_decref(*extra);
    return request_refuse_memory(why);
}

int request_read_chat(struct request *x, struct request_reader *r, struct request_prompt *out,
                      struct request_refusal *why)
{
    const json_t *body = x->body, *tools;
    const json_t *messages = json_object_get(body, "messages");
    json_t *extra;
    SPW_TRY(tidy_messages(x, messages, why));
    SPW_TRY(find_tools(body, &tools, why));
    SPW_TRY(find_extra(r, body, &extra, why));
    int rc = request_encode_chat(r, messages, tools, extra, out, why);
    json_decref(extra);
    return rc;
}
