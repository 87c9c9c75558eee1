/* Answers of /v1/messages. An answer is a list of blocks: thinking, text, tool_use. A stream opens
 * one block after the other. "input" of a call has the text that the model wrote: its numbers are
 * never written anew. */
#include "tools/command/serve/protocol_parts.h"

#include <string.h>

/* Clients send it back, and nobody reads it. */
#define SIGNATURE "c3BpbGx3YXk="
/* While reasoning is hidden the client hears a ping for each so many pieces. */
enum { PIECES_A_PING = 16 };

enum block { BLOCK_NONE, BLOCK_THINKING, BLOCK_TEXT, BLOCK_CALL };

/* The state of a stream. */
struct writing {
    enum block open;
    uint64_t index; /* of the open block, or the next one */
    uint64_t n_hidden;
};

/* ---- parts ---- */

static json_t *usage(const struct serve_answer *a)
{
    const struct request_choice *c = &a->request->choices[0];
    const uint64_t cached = spw_min_u64(c->result.n_reused, a->request->prompts[0].n);
    const struct cli_field fields[] = {
        {"input_tokens", CLI_JSON(a->request->prompts[0].n - cached)},
        {"cache_creation_input_tokens", CLI_JSON(0)},
        {"cache_read_input_tokens", CLI_JSON(cached)},
        {"output_tokens", CLI_JSON(c->result.n_tokens)},
    };
    json_t *object = CLI_OBJECT(fields);
    serve_add_hash(&object, a);
    return object;
}

/* The stop string that has ended the answer: of those in the text of its tokens, the first. */
static json_t *stop_sequence(const struct serve_answer *a)
{
    const struct spw_result *r = &a->request->choices[0].result;
    const char *found = NULL, *first = NULL;
    char *text = NULL;
    size_t bytes;
    if (r->finish != SPW_FINISH_STOP || !a->tokenizer)
        return json_null();
    if (spw_tokenizer_decode(a->tokenizer, r->tokens, r->n_tokens, true, &text, &bytes))
        return NULL;
    for (size_t i = 0; i < a->request->stop.n; i++) {
        const char *at = strstr(text, a->request->stop.items[i]);
        if (at && (!first || at < first)) {
            first = at;
            found = a->request->stop.items[i];
        }
    }
    json_t *value = CLI_JSON(found);
    spw_free(text);
    return value;
}

static const char *stop_reason(const struct serve_answer *a)
{
    const struct request_choice *c = &a->request->choices[0];
    const char *finish = request_record_finish(c);
    if (strcmp(finish, "length") == 0)
        return "max_tokens";
    if (strcmp(finish, "tool_calls") == 0)
        return "tool_use";
    return c->result.finish == SPW_FINISH_STOP ? "stop_sequence" : "end_turn";
}

/* The object without its last brace: the caller adds a member whose text it has, and the brace. */
static int add_open(struct spw_text *out, json_t *object)
{
    SPW_TRY(serve_add_json(out, object));
    out->n--;
    return 0;
}

static json_t *thinking_block(const char *text, size_t bytes, bool is_complete)
{
    const struct cli_field fields[] = {
        {"type", json_string("thinking")},
        {"thinking", json_stringn(text, bytes)},
        {"signature", json_string(is_complete ? SIGNATURE : "")},
    };
    return CLI_OBJECT(fields);
}

static json_t *text_block(const char *text, size_t bytes)
{
    const struct cli_field fields[] = {{"type", json_string("text")},
                                       {"text", json_stringn(text, bytes)}};
    return CLI_OBJECT(fields);
}

/* Without "input". */
static json_t *call_block(const struct serve_answer *a, size_t i)
{
    const struct spw_text *name = &a->request->choices[0].calls[i].name;
    char id[48];
    request_call_id(id, "toolu_", a->id, 0, i);
    const struct cli_field fields[] = {
        {"type", json_string("tool_use")},
        {"id", json_string(id)},
        {"name", cli_json_grown(name)},
    };
    return CLI_OBJECT(fields);
}

static int add_raw(struct spw_text *out, const char *text)
{
    return spw_text_add(out, text, strlen(text));
}

/* ---- whole bodies ---- */

/* 1: a call with arguments that are an object; 0: one that was cut, which is left out; -ENOMEM */
static int is_whole(const struct request_call *call)
{
    json_t *value = NULL;
    int rc = call->is_complete && call->arguments.n
                 ? spw_json_parse(&value, call->arguments.text, call->arguments.n,
                                  JSON_ALLOW_NUL | SPW_JSON_LARGE_REAL, NULL)
                 : -EINVAL;
    const bool is_object = json_is_object(value);
    json_decref(value);
    return rc == -ENOMEM ? rc : is_object;
}

static int add_call(const struct serve_answer *a, size_t i, struct spw_text *out)
{
    const struct spw_text *arguments = &a->request->choices[0].calls[i].arguments;
    SPW_TRY(add_open(out, call_block(a, i)));
    SPW_TRY(add_raw(out, ",\"input\":"));
    SPW_TRY(spw_text_add(out, arguments->text, arguments->n));
    return add_raw(out, "}");
}

static int add_blocks(const struct serve_answer *a, struct spw_text *out)
{
    const struct request_choice *c = &a->request->choices[0];
    const size_t begin = out->n;
    if (c->reasoning.n)
        SPW_TRY(serve_add_json(out, thinking_block(c->reasoning.text,
                                                   a->wish->hides_reasoning ? 0 : c->reasoning.n,
                                                   true)));
    if (c->text.n) {
        SPW_TRY(add_raw(out, out->n > begin ? "," : ""));
        SPW_TRY(serve_add_json(out, text_block(c->text.text, c->text.n)));
    }
    for (size_t i = 0; i < c->n_calls; i++) {
        const int whole = is_whole(&c->calls[i]);
        if (whole > 0)
            SPW_TRY(add_raw(out, out->n > begin ? "," : ""));
        if (whole > 0)
            SPW_TRY(add_call(a, i, out));
        if (whole < 0)
            return whole;
    }
    return 0;
}

static json_t *head_of(const struct serve_answer *a)
{
    const struct cli_field fields[] = {
        {"id", json_sprintf("msg_%s", a->id)},
        {"type", json_string("message")},
        {"role", json_string("assistant")},
        {"model", CLI_JSON(a->model)},
    };
    return CLI_OBJECT(fields);
}

static int write_whole(struct serve_answer *a, struct spw_text *out)
{
    const struct cli_field end[] = {
        {"stop_reason", json_string(stop_reason(a))},
        {"stop_sequence", stop_sequence(a)},
        {"usage", usage(a)},
    };
    struct spw_text rest = {0};
    int rc = serve_add_json(&rest, CLI_OBJECT(end));
    if (!rc)
        rc = add_open(out, head_of(a));
    if (!rc)
        rc = add_raw(out, ",\"content\":[");
    if (!rc)
        rc = add_blocks(a, out);
    if (!rc)
        rc = add_raw(out, "],");
    if (!rc)
        rc = spw_text_add(out, rest.text + 1, rest.n - 1);
    spw_free(rest.text);
    return rc;
}

/* ---- streams ---- */

/* The event {"type": NAME, "index": the open block's, KEY: value}; KEY NULL: without. */
static int add_block_event(const struct serve_answer *a, const char *name, const char *key,
                           json_t *value, struct spw_text *out)
{
    const struct writing *w = a->own;
    const struct cli_field fields[] = {
        {"type", json_string(name)},
        {"index", CLI_JSON(w->index)},
        {key, value},
    };
    return serve_add_event(out, name, CLI_OBJECT(fields));
}

static int add_delta(const struct serve_answer *a, const char *type, const char *key,
                     const char *text, size_t bytes, struct spw_text *out)
{
    const struct cli_field delta[] = {{"type", json_string(type)},
                                      {key, json_stringn(text, bytes)}};
    return add_block_event(a, "content_block_delta", "delta", CLI_OBJECT(delta), out);
}

static int close_block(const struct serve_answer *a, struct spw_text *out)
{
    struct writing *w = a->own;
    if (w->open == BLOCK_NONE)
        return 0;
    if (w->open == BLOCK_THINKING)
        SPW_TRY(add_delta(a, "signature_delta", "signature", SIGNATURE, strlen(SIGNATURE), out));
    SPW_TRY(add_block_event(a, "content_block_stop", NULL, NULL, out));
    w->open = BLOCK_NONE;
    w->index++;
    return 0;
}

/* Takes the reference of `block`. */
static int open_block(const struct serve_answer *a, enum block kind, json_t *block,
                      struct spw_text *out)
{
    struct writing *w = a->own;
    int rc = close_block(a, out);
    if (rc) {
        json_decref(block);
        return rc;
    }
    w->open = kind;
    return add_block_event(a, "content_block_start", "content_block", block, out);
}

static int add_ping(const struct serve_progress *p, struct spw_text *out)
{
    const struct cli_field fields[] = {{"type", json_string("ping")}};
    json_t *event = CLI_OBJECT(fields);
    if (p)
        serve_add_progress(&event, p);
    return serve_add_event(out, "ping", event);
}

static int begin_answer(struct serve_answer *a, struct spw_text *out)
{
    a->own = spw_alloc_zero(1, sizeof(struct writing));
    if (!a->own)
        return -ENOMEM;
    json_t *message = head_of(a);
    const struct cli_field rest[] = {
        {"content", json_array()},
        {"stop_reason", json_null()},
        {"stop_sequence", json_null()},
        {"usage", usage(a)},
    };
    CLI_ADD(&message, rest);
    const struct cli_field fields[] = {{"type", json_string("message_start")},
                                       {"message", message}};
    SPW_TRY(serve_add_event(out, "message_start", CLI_OBJECT(fields)));
    return add_ping(NULL, out);
}

static int add_progress(struct serve_answer *a, const struct serve_progress *p,
                        struct spw_text *out)
{
    (void)a;
    return add_ping(p, out);
}

static int add_reasoning(struct serve_answer *a, const struct spw_answer_piece *p,
                         struct spw_text *out)
{
    struct writing *w = a->own;
    if (w->open != BLOCK_THINKING)
        SPW_TRY(open_block(a, BLOCK_THINKING, thinking_block("", 0, false), out));
    if (!a->wish->hides_reasoning)
        return add_delta(a, "thinking_delta", "thinking", p->text, p->bytes, out);
    return ++w->n_hidden % PIECES_A_PING == 0 ? add_ping(NULL, out) : 0;
}

static int add_text(struct serve_answer *a, const struct spw_answer_piece *p, struct spw_text *out)
{
    const struct writing *w = a->own;
    if (w->open != BLOCK_TEXT)
        SPW_TRY(open_block(a, BLOCK_TEXT, text_block("", 0), out));
    return add_delta(a, "text_delta", "text", p->text, p->bytes, out);
}

static int begin_call(struct serve_answer *a, const struct spw_answer_piece *p,
                      struct spw_text *out)
{
    json_t *block = call_block(a, p->call);
    cli_json_add(&block, "input", json_object());
    SPW_TRY(open_block(a, BLOCK_CALL, block, out));
    return add_delta(a, "input_json_delta", "partial_json", "", 0, out);
}

static int add_piece(struct serve_answer *a, size_t choice, const struct spw_answer_piece *p,
                     struct spw_text *out)
{
    (void)choice; /* there is one */
    switch (p->kind) {
    case SPW_PIECE_TEXT:
        return add_text(a, p, out);
    case SPW_PIECE_REASONING:
        return add_reasoning(a, p, out);
    case SPW_PIECE_CALL:
        return begin_call(a, p, out);
    case SPW_PIECE_ARGUMENTS:
        return add_delta(a, "input_json_delta", "partial_json", p->text, p->bytes, out);
    case SPW_PIECE_CALL_END:
        return close_block(a, out);
    }
    return 0;
}

static int end_choice(struct serve_answer *a, size_t choice, struct spw_text *out)
{
    (void)choice;
    SPW_TRY(close_block(a, out));
    const struct cli_field delta[] = {
        {"stop_reason", json_string(stop_reason(a))},
        {"stop_sequence", stop_sequence(a)},
    };
    const struct cli_field fields[] = {
        {"type", json_string("message_delta")},
        {"delta", CLI_OBJECT(delta)},
        {"usage", usage(a)},
    };
    return serve_add_event(out, "message_delta", CLI_OBJECT(fields));
}

static int end_answer(struct serve_answer *a, struct spw_text *out)
{
    (void)a;
    const struct cli_field fields[] = {{"type", json_string("message_stop")}};
    return serve_add_event(out, "message_stop", CLI_OBJECT(fields));
}

/* ---- errors ---- */

static json_t *error_of(const struct request_refusal *why, const char *id)
{
    static const struct {
        int status;
        const char *type;
    } types[] = {
        {400, "invalid_request_error"}, {401, "authentication_error"}, {403, "permission_error"},
        {404, "not_found_error"},       {413, "request_too_large"},    {429, "rate_limit_error"},
        {503, "overloaded_error"},      {504, "timeout_error"},        {529, "overloaded_error"}};
    const char *type = why->status >= 500 ? "api_error" : "invalid_request_error";
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].status == why->status)
            type = types[i].type;
    const struct cli_field error[] = {{"type", json_string(type)},
                                      {"message", CLI_JSON((const char *)why->message)}};
    const struct cli_field fields[] = {{"type", json_string("error")},
                                       {"error", CLI_OBJECT(error)},
                                       {*id ? "request_id" : NULL, json_sprintf("req_%s", id)}};
    return CLI_OBJECT(fields);
}

static int fail_answer(struct serve_answer *a, const struct request_refusal *why,
                       struct spw_text *out)
{
    return serve_add_event(out, "error", error_of(why, a->id));
}

static int write_error(const struct request_refusal *why, const char *id, struct spw_text *out)
{
    return serve_add_json(out, error_of(why, id));
}

static void close_answer(struct serve_answer *a)
{
    spw_free(a->own);
    a->own = NULL;
}

const struct serve_protocol serve_messages = {
    .path = "/v1/messages",
    .read = serve_read_messages,
    .begin = begin_answer,
    .progress = add_progress,
    .piece = add_piece,
    .end_choice = end_choice,
    .end = end_answer,
    .failed = fail_answer,
    .whole = write_whole,
    .error = write_error,
    .close = close_answer,
};
