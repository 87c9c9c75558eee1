/* /v1/chat/completions: bodies and answers as OpenAI has them. reasoning_content is vLLM's. */
#include "tools/command/serve/protocol_parts.h"

#include <string.h>

/* ---- bodies ---- */

static void read_stream_options(struct serve_wish *wish, json_t *body)
{
    const json_t *options = json_object_get(body, "stream_options");
    wish->include_usage = json_is_true(json_object_get(options, "include_usage"));
    wish->continuous_usage = json_is_true(json_object_get(options, "continuous_usage_stats"));
    json_object_del(body, "stream_options");
}

/* Tools that the server would have to execute, and sorts that nobody knows yet, are left out: an
 * agent sends them all. */
static void drop_tools(json_t *body)
{
    json_t *tools = json_object_get(body, "tools");
    for (size_t i = json_array_size(tools); i-- > 0;) {
        const json_t *type = json_object_get(json_array_get(tools, i), "type");
        if (json_is_string(type) && !serve_is_type(json_array_get(tools, i), "function"))
            json_array_remove(tools, i);
    }
    if (json_is_array(tools) && json_array_size(tools) == 0)
        json_object_del(body, "tools");
}

/* {"type": "allowed_tools", "allowed_tools": {"mode", "tools"}} becomes its mode, which is "auto"
 * if the client names none. A choice without any tool is left out. */
static int tidy_choice(json_t *body)
{
    const json_t *choice = json_object_get(body, "tool_choice");
    const bool is_list = serve_is_type(choice, "allowed_tools");
    json_t *mode = json_object_get(json_object_get(choice, "allowed_tools"), "mode");
    if (!json_object_get(body, "tools") || (is_list && !mode))
        json_object_del(body, "tool_choice");
    else if (is_list)
        return json_object_set(body, "tool_choice", mode);
    return 0;
}

/* Clients of llama.cpp's server say -1 for "no limit". */
static void drop_negative(json_t *body, const char *name)
{
    const json_t *value = json_object_get(body, name);
    if (json_is_integer(value) && json_integer_value(value) == -1)
        json_object_del(body, name);
}

static int read_chat(struct request *x, struct serve_wish *wish, json_t *body,
                     struct request_reader *r, struct request_refusal *why)
{
    json_t *messages = json_object_get(body, "messages");
    SPW_TRY(serve_read_wish(wish, body, why));
    read_stream_options(wish, body);
    drop_tools(body);
    drop_negative(body, "max_tokens");
    drop_negative(body, "max_completion_tokens");
    char name[16] = "";
    snprintf(name, sizeof name, "%s", serve_word(body, "reasoning_effort"));
    if (tidy_choice(body) || serve_set_effort(body, name, r))
        return request_refuse_memory(why);
    SPW_TRY(serve_set_body(x, REQUEST_CHAT, json_incref(body), NULL, r, why));
    return r->template ? request_fold_systems(x, r, messages, why) : 0;
}

static int read_completion(struct request *x, struct serve_wish *wish, json_t *body,
                           struct request_reader *r, struct request_refusal *why)
{
    SPW_TRY(serve_read_wish(wish, body, why));
    read_stream_options(wish, body);
    drop_negative(body, "max_tokens");
    return serve_set_body(x, REQUEST_COMPLETION, json_incref(body), NULL, r, why);
}

/* ---- streams ---- */

/* What is written of a choice. */
struct written {
    size_t n_logprobs;          /* chat */
    struct request_place place; /* completions */
    bool has_begun;
};

static void close_answer(struct serve_answer *a)
{
    struct written *w = a->own;
    for (size_t i = 0; w && i < serve_n_choices(a); i++)
        request_place_free(&w[i].place);
    spw_free(w);
    a->own = NULL;
}

static json_t *usage(const struct serve_answer *a)
{
    json_t *object = request_record_usage(a->request);
    serve_add_hash(&object, a);
    return object;
}

/* Takes the reference of `choice`; NULL: an event without choices. */
static json_t *chunk(const struct serve_answer *a, json_t *choice, bool is_last)
{
    const bool chat = a->request->form == REQUEST_CHAT;
    const bool has_usage = a->wish->include_usage || a->wish->continuous_usage;
    const bool shows_usage = is_last || a->wish->continuous_usage;
    json_t *choices = json_array();
    if (!is_last)
        cli_json_append(&choices, choice);
    const struct cli_field fields[] = {
        {"id", json_sprintf("%s%s", chat ? "chatcmpl-" : "cmpl-", a->id)},
        {"object", json_string(chat ? "chat.completion.chunk" : "text_completion")},
        {"created", json_integer(a->created)},
        {"model", CLI_JSON(a->model)},
        {"choices", choices},
        {has_usage ? "usage" : NULL, CLI_OR_NULL(shows_usage, usage(a))},
    };
    return CLI_OBJECT(fields);
}

/* The log-probabilities that are not written yet. */
static json_t *new_chat_logprobs(const struct serve_answer *a, size_t i)
{
    struct written *w = (struct written *)a->own + i;
    const struct spw_result *r = &a->request->choices[i].result;
    if (!a->request->logprobs || w->n_logprobs >= r->n_tokens)
        return json_null();
    json_t *list = request_chat_logprobs(r, w->n_logprobs, a->tokenizer);
    w->n_logprobs = r->n_tokens;
    return list;
}

static json_t *chat_choice(const struct serve_answer *a, size_t i, json_t *delta,
                           const char *finish, bool has_logprobs)
{
    const struct cli_field fields[] = {
        {"index", CLI_JSON(i)},
        {"delta", delta},
        {"logprobs", CLI_OR_NULL(has_logprobs, new_chat_logprobs(a, i))},
        {"finish_reason", CLI_JSON(finish)},
    };
    return CLI_OBJECT(fields);
}

static int open_answer(struct serve_answer *a)
{
    a->own = spw_alloc_zero(serve_n_choices(a), sizeof(struct written));
    return a->own ? 0 : -ENOMEM;
}

static int begin_chat(struct serve_answer *a, struct spw_text *out)
{
    SPW_TRY(open_answer(a));
    for (size_t i = 0; i < serve_n_choices(a); i++) {
        const struct cli_field delta[] = {
            {"role", json_string("assistant")},
            {"content", json_string("")},
        };
        SPW_TRY(serve_add_event(
            out, NULL, chunk(a, chat_choice(a, i, CLI_OBJECT(delta), NULL, false), false)));
    }
    return 0;
}

static int progress_chat(struct serve_answer *a, const struct serve_progress *p,
                         struct spw_text *out)
{
    json_t *event = chunk(a, chat_choice(a, 0, json_object(), NULL, false), false);
    serve_add_progress(&event, p);
    return serve_add_event(out, NULL, event);
}

static json_t *call_delta(const struct serve_answer *a, size_t i, const struct spw_answer_piece *p)
{
    const bool begins = p->kind == SPW_PIECE_CALL;
    char id[48];
    request_call_id(id, "call_", a->id, i, p->call);
    const struct cli_field function[] = {
        {begins ? "name" : NULL, json_stringn(p->text, p->bytes)},
        {"arguments", begins ? json_string("") : json_stringn(p->text, p->bytes)},
    };
    const struct cli_field call[] = {
        {"index", CLI_JSON(p->call)},
        {begins ? "id" : NULL, json_string(id)},
        {begins ? "type" : NULL, json_string("function")},
        {"function", CLI_OBJECT(function)},
    };
    json_t *list = json_array();
    cli_json_append(&list, CLI_OBJECT(call));
    return list;
}

static int piece_chat(struct serve_answer *a, size_t i, const struct spw_answer_piece *p,
                      struct spw_text *out)
{
    static const char *const names[] = {[SPW_PIECE_TEXT] = "content",
                                        [SPW_PIECE_REASONING] = "reasoning_content",
                                        [SPW_PIECE_CALL] = "tool_calls",
                                        [SPW_PIECE_ARGUMENTS] = "tool_calls"};
    const bool is_call = p->kind == SPW_PIECE_CALL || p->kind == SPW_PIECE_ARGUMENTS;
    if (p->kind == SPW_PIECE_CALL_END)
        return 0;
    const struct cli_field delta[] = {
        {names[p->kind], is_call ? call_delta(a, i, p) : json_stringn(p->text, p->bytes)}};
    return serve_add_event(out, NULL,
                           chunk(a, chat_choice(a, i, CLI_OBJECT(delta), NULL, true), false));
}

static int end_choice_chat(struct serve_answer *a, size_t i, struct spw_text *out)
{
    const char *finish = request_record_finish(&a->request->choices[i]);
    return serve_add_event(out, NULL,
                           chunk(a, chat_choice(a, i, json_object(), finish, true), false));
}

static int end_answer(struct serve_answer *a, struct spw_text *out)
{
    static const char done[] = "data: [DONE]\n\n";
    if (a->wish->include_usage)
        SPW_TRY(serve_add_event(out, NULL, chunk(a, NULL, true)));
    return spw_text_add(out, done, sizeof done - 1);
}

static int fail_answer(struct serve_answer *a, const struct request_refusal *why,
                       struct spw_text *out)
{
    (void)a;
    return serve_add_event(out, NULL, serve_openai_error(why));
}

static int write_whole(struct serve_answer *a, struct spw_text *out)
{
    const struct request_names names = serve_names(a);
    json_t *body = request_record_body(a->request, &names);
    if (a->wish->logits_hash)
        cli_json_add(&body, "usage", usage(a));
    return serve_add_json(out, body);
}

/* ---- completions ---- */

/* The log-probabilities that are not written yet, and the text of the prompt before the first. */
static json_t *new_logprobs(const struct serve_answer *a, size_t i, const json_t *echo)
{
    const struct request *x = a->request;
    const size_t prompt = i / x->n_choices;
    const struct request_completion c = {.prompt = &x->prompts[prompt],
                                         .result = &x->choices[i].result,
                                         .of_prompt = &x->choices[prompt * x->n_choices].result,
                                         .echo = echo,
                                         .tokenizer = a->tokenizer};
    return request_completion_logprobs(&c, &((struct written *)a->own)[i].place);
}

static int add_text(struct serve_answer *a, size_t i, const char *text, size_t bytes,
                    const char *finish, struct spw_text *out)
{
    const struct request *x = a->request;
    struct written *w = (struct written *)a->own + i;
    json_t *echo = NULL;
    if (x->echo && !w->has_begun) {
        echo = request_record_prompt(x, i / x->n_choices, a->tokenizer);
        if (!echo)
            return -ENOMEM;
    }
    w->has_begun = true;
    const struct cli_field fields[] = {
        {"index", CLI_JSON(i)},
        {"text", request_record_text(echo, text, bytes)},
        {"logprobs", CLI_OR_NULL(x->logprobs, new_logprobs(a, i, echo))},
        {"finish_reason", CLI_JSON(finish)},
    };
    int rc = serve_add_event(out, NULL, chunk(a, CLI_OBJECT(fields), false));
    json_decref(echo);
    return rc;
}

static int begin_completion(struct serve_answer *a, struct spw_text *out)
{
    (void)out;
    return open_answer(a);
}

static int progress_completion(struct serve_answer *a, const struct serve_progress *p,
                               struct spw_text *out)
{
    const struct cli_field choice[] = {
        {"index", CLI_JSON(0)},
        {"text", json_string("")},
        {"logprobs", json_null()},
        {"finish_reason", json_null()},
    };
    json_t *event = chunk(a, CLI_OBJECT(choice), false);
    serve_add_progress(&event, p);
    return serve_add_event(out, NULL, event);
}

/* A completion has no parts: its text is all that it has. */
static int piece_completion(struct serve_answer *a, size_t i, const struct spw_answer_piece *p,
                            struct spw_text *out)
{
    return p->kind == SPW_PIECE_TEXT ? add_text(a, i, p->text, p->bytes, NULL, out) : 0;
}

static int end_choice_completion(struct serve_answer *a, size_t i, struct spw_text *out)
{
    return add_text(a, i, "", 0, request_record_finish(&a->request->choices[i]), out);
}

const struct serve_protocol serve_chat = {
    .path = "/v1/chat/completions",
    .read = read_chat,
    .begin = begin_chat,
    .progress = progress_chat,
    .piece = piece_chat,
    .end_choice = end_choice_chat,
    .end = end_answer,
    .failed = fail_answer,
    .whole = write_whole,
    .error = serve_write_openai_error,
    .close = close_answer,
};

const struct serve_protocol serve_completions = {
    .path = "/v1/completions",
    .read = read_completion,
    .begin = begin_completion,
    .progress = progress_completion,
    .piece = piece_completion,
    .end_choice = end_choice_completion,
    .end = end_answer,
    .failed = fail_answer,
    .whole = write_whole,
    .error = serve_write_openai_error,
    .close = close_answer,
};
