/* Conversations: messages, tools and other variables for the model's chat template. */
#include "tools/command/request/reader_parts.h"

#include "base/grow.h"
#include "tools/command/chat/chat_prompt.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

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
    int rc = spw_tool_form_find(&r->tools, r->template, r->model->tokenizer);
    if (!rc && r->model->tokenizer)
        rc = spw_reasoning_find(&r->form, r->template, r->model->tokenizer);
    if (!rc)
        return 0;
    request_reader_close(r);
    return spw_fail(err, rc, "marks of reasoning and of calls: %s", strerror(-rc));
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

static void show(struct request_prompt *out, const struct spw_marks *m)
{
    for (size_t i = 0; i < m->n && out->n_shown < SPW_TOKENIZER_MOST_SHOWN; i++)
        out->shown[out->n_shown++] = m->ids[i];
}

/* The answers of a prompt whose text the template has made. */
static void note_marks(const struct request_reader *r, const char *text, size_t bytes,
                       bool with_tools, struct request_prompt *out)
{
    out->form = r->form;
    out->is_open = spw_reasoning_is_open(&r->form, text, bytes);
    show(out, &r->form.specials);
    if (!with_tools)
        return;
    out->tools = r->tools;
    if (!r->form.has_channels) /* whose marks are those of calls, too */
        show(out, &r->tools.specials);
}

/* ---- rendering ---- */

/* NULL gives NULL. False: out of memory. */
static bool dump(const json_t *value, char **text)
{
    *text = spw_json_dump(value, JSON_COMPACT);
    return *text || !value;
}

int request_render(const struct request_reader *r, const json_t *messages, const json_t *tools,
                   const json_t *extra, const json_t *ending, char **text, size_t *bytes,
                   struct spw_error *err)
{
    char *tools_text = NULL, *extra_text = NULL;
    int rc = -ENOMEM;
    const json_t *adds = json_object_get(ending, "add_generation_prompt");
    const bool continues = json_is_true(json_object_get(ending, "continue_final_message"));
    if (dump(tools, &tools_text) && dump(extra, &extra_text)) {
        struct spw_chat_request request = {
            .tools_json = tools_text,
            .tools_bytes = tools_text ? strlen(tools_text) : 0,
            .extra_json = extra_text,
            .extra_bytes = extra_text ? strlen(extra_text) : 0,
            .continue_final_message = continues,
            .add_generation_prompt = json_is_boolean(adds) ? json_is_true(adds) : !continues,
        };
        rc = cli_chat_render(r->template, messages, r->started, &request, text, bytes, err);
    }
    spw_free(tools_text);
    spw_free(extra_text);
    return rc;
}

/* An id of nine letters and digits stays; another one becomes such an id, always the same one. */
static int shorten_id(json_t *holder, const char *key)
{
    static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    const json_t *id = json_object_get(holder, key);
    char text[10];
    if (!json_is_string(id) || (json_string_length(id) == sizeof text - 1 &&
                                strspn(json_string_value(id), digits) == sizeof text - 1))
        return 0;
    XXH64_hash_t hash = XXH3_64bits(json_string_value(id), json_string_length(id));
    for (size_t i = 0; i < sizeof text - 1; i++, hash /= sizeof digits - 1)
        text[i] = digits[hash % (sizeof digits - 1)];
    return json_object_set_new(holder, key, json_stringn(text, sizeof text - 1)) ? -ENOMEM : 0;
}

/* Ids of calls, and of their results, as the template takes them. 0 or -ENOMEM. */
static int shorten_ids(const json_t *messages)
{
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *message = json_array_get(messages, i),
               *calls = json_object_get(message, "tool_calls");
        SPW_TRY(shorten_id(message, "tool_call_id"));
        for (size_t k = 0; k < json_array_size(calls); k++)
            SPW_TRY(shorten_id(json_array_get(calls, k), "id"));
    }
    return 0;
}

static int encode_chat(struct request_reader *r, const json_t *body, const json_t *tools,
                       const json_t *extra, bool may_call, struct request_prompt *out,
                       struct request_refusal *why)
{
    struct spw_error err = {0};
    char *text;
    size_t bytes;
    const json_t *messages = json_object_get(body, "messages");
    SPW_TRY(open_template(r, why));
    if (spw_tool_form_wants_short_ids(&r->tools) && shorten_ids(messages))
        return request_refuse_memory(why);
    int rc = request_render(r, messages, tools, extra, body, &text, &bytes, &err);
    if (rc)
        return request_refuse_call(why, rc, "messages", &err);
    const struct spw_encoding e = {.text = text, .bytes = bytes};
    rc = request_encode_prompt(r, "messages", &e, out, why);
    note_marks(r, text, bytes, may_call, out);
    spw_free(text);
    return rc;
}

/* ---- a message with plain spans ---- */

/* The template shows with this text where it puts a message. */
static const char stand_in[] = "spillway-7f2d9c41e0b35a68";

/* A text that grows, and its plain spans; all owned. */
struct filled {
    struct spw_text text;
    struct spw_text_span *spans; /* [n_spans] */
    size_t n_spans, n_places;
};

static int add_spans(struct filled *f, const struct spw_encoding *message, size_t begin, size_t end)
{
    SPW_TRY(spw_resize(&f->spans, f->n_spans + message->n_plain, sizeof *f->spans));
    for (size_t i = 0; i < message->n_plain; i++) {
        const size_t from = spw_max_u64(message->plain[i].begin, begin);
        const size_t to = spw_min_u64(message->plain[i].end, end);
        f->spans[f->n_spans] =
            (struct spw_text_span){f->text.n + from - begin, f->text.n + to - begin};
        f->n_spans += from < to;
    }
    return 0;
}

/* Copies `form` with message[begin, end) in every place of stand_in. */
static int fill(struct filled *f, const char *form, const struct spw_encoding *message,
                size_t begin, size_t end)
{
    for (const char *next; (next = strstr(form, stand_in)); form = next + sizeof stand_in - 1) {
        SPW_TRY(spw_text_add(&f->text, form, (size_t)(next - form)));
        SPW_TRY(add_spans(f, message, begin, end));
        SPW_TRY(spw_text_add(&f->text, message->text + begin, end - begin));
        f->n_places++;
    }
    return spw_text_add(&f->text, form, strlen(form));
}

/* The template's text for stand_in with the blanks around the message, which a template may leave
 * out. */
static int render_form(const struct request_reader *r, const struct spw_encoding *message,
                       size_t begin, size_t end, const json_t *extra, char **form,
                       struct spw_error *err)
{
    struct spw_text content = {0};
    size_t bytes;
    int rc = spw_text_add(&content, message->text, begin);
    if (!rc)
        rc = spw_text_add(&content, stand_in, sizeof stand_in - 1);
    if (!rc)
        rc = spw_text_add(&content, message->text + end, message->bytes - end);
    json_t *messages =
        rc ? NULL : json_pack("[{s:s, s:s}]", "role", "user", "content", content.text);
    rc = messages ? request_render(r, messages, NULL, extra, NULL, form, &bytes, err) : -ENOMEM;
    json_decref(messages);
    spw_free(content.text);
    return rc;
}

static int encode_filled(const struct request_reader *r, const struct filled *f,
                         struct request_prompt *out, struct request_refusal *why)
{
    const struct spw_encoding text = {
        .text = f->text.text, .bytes = f->text.n, .plain = f->spans, .n_plain = f->n_spans};
    if (!f->n_places)
        return request_refuse(why, 400, "invalid_value", "text",
                              "the chat template leaves out the message, or changes its text");
    note_marks(r, text.text, text.bytes, false, out);
    return request_encode_prompt(r, "text", &text, out, why);
}

int request_encode_message(struct request_reader *r, const struct spw_encoding *e,
                           const json_t *extra, struct request_prompt *out,
                           struct request_refusal *why)
{
    static const char blank[] = " \t\r\n\f\v";
    struct spw_error err = {0};
    struct filled f = {0};
    size_t begin = 0, end = e->bytes;
    char *form;
    SPW_TRY(open_template(r, why));
    while (begin < end && e->text[begin] && strchr(blank, e->text[begin]))
        begin++;
    while (begin < end && e->text[end - 1] && strchr(blank, e->text[end - 1]))
        end--;
    int rc = render_form(r, e, begin, end, extra, &form, &err);
    if (rc)
        return request_refuse_call(why, rc, "text", &err);
    rc =
        fill(&f, form, e, begin, end) ? request_refuse_memory(why) : encode_filled(r, &f, out, why);
    spw_free(form);
    spw_free(f.text.text);
    spw_free(f.spans);
    return rc;
}

/* The template's text of a small conversation; NULL: the template fails. */
static char *render_effort(const struct request_reader *r, const char *effort)
{
    char *text = NULL;
    size_t bytes;
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", "x");
    json_t *extra = json_pack("{s:s}", "reasoning_effort", effort);
    if (!messages || !extra || request_render(r, messages, NULL, extra, NULL, &text, &bytes, NULL))
        text = NULL;
    json_decref(messages);
    json_decref(extra);
    return text;
}

/* Whether a prompt depends on reasoning_effort. */
bool request_takes_effort(struct request_reader *r)
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
    struct spw_text all = {0};
    for (size_t k = 0; k < json_array_size(parts); k++) {
        const json_t *part = json_object_get(json_array_get(parts, k), "text");
        spw_text_add(&all, "\n", k > 0);
        spw_text_add(&all, json_string_value(part), json_string_length(part));
    }
    json_t *joined = cli_json_grown(&all);
    spw_free(all.text);
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

/* Clients send the arguments of a call as a text with JSON, or as an empty one. Templates print an
 * object. */
static int tidy_calls(json_t *message, size_t i, struct request_refusal *why)
{
    json_t *calls = json_object_get(message, "tool_calls");
    if (calls && !json_is_null(calls) && !json_is_array(calls))
        return refuse_message(why, i, ".tool_calls", calls, "a list");
    for (size_t k = 0; k < json_array_size(calls); k++) {
        json_t *function = json_object_get(json_array_get(calls, k), "function");
        const json_t *text = json_object_get(function, "arguments");
        json_t *arguments = NULL;
        const bool is_empty = json_is_string(text) && !json_string_length(text);
        if (is_empty ? !(arguments = json_object())
                     : json_is_string(text) && spw_json_parse(&arguments, json_string_value(text),
                                                              json_string_length(text),
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

int request_tidy_messages(const struct request *x, const json_t *messages,
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

/* "required", or one function: the answer is a call. */
static int force_call(struct request *x, struct request_reader *r, struct request_refusal *why)
{
    struct spw_error err = {0};
    const json_t *choice = json_object_get(x->body, "tool_choice");
    const json_t *name = json_object_get(json_object_get(choice, "function"), "name");
    const char *word = json_string_value(choice);
    if (!json_is_object(choice) && !(word && strcmp(word, "required") == 0))
        return 0;
    SPW_TRY(open_template(r, why));
    if (x->grammar || !x->tools_json)
        return request_refuse(why, 400, "invalid_value", "tool_choice",
                              "tool_choice: a call can be forced only with \"tools\", and without "
                              "a \"response_format\"");
    const int rc = spw_tool_form_grammar(&x->grammar, &r->tools, r->model->tokenizer, x->tools_json,
                                         json_string_value(name), &err);
    x->forces_call = !rc;
    if (rc == -ENOTSUP)
        return request_refuse_support(why, "tool_choice", choice, err.text);
    return rc ? request_refuse_call(why, rc, "tool_choice", &err) : 0;
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
        if (!request_takes_effort(r))
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
    SPW_TRY(request_tidy_messages(x, messages, why));
    SPW_TRY(find_tools(body, &tools, why));
    if (!x->tools_json && !dump(tools, &x->tools_json))
        return request_refuse_memory(why);
    SPW_TRY(force_call(x, r, why));
    SPW_TRY(find_extra(r, body, &extra, why));
    int rc = encode_chat(r, body, tools, extra, x->tools_json != NULL, out, why);
    json_decref(extra);
    return rc;
}
