/* Answers of /v1/responses. An answer is a list of items: reasoning, message, function_call. In a
 * stream an item is added, its text comes in deltas, and the item is done; the last event has the
 * whole response with the same items. */
#include "tools/command/serve/protocol_parts.h"

#include "base/grow.h"

#include <string.h>

enum kind { ITEM_REASONING, ITEM_MESSAGE, ITEM_CALL };

static const struct {
    const char *type, *prefix, *part; /* of the item, of its id, of its content */
    const char *delta, *done;         /* events */
    const char *done_key;
} kinds[] = {
    [ITEM_REASONING] = {"reasoning", "rs", "reasoning_text", "response.reasoning_text.delta",
                        "response.reasoning_text.done", "text"},
    [ITEM_MESSAGE] = {"message", "msg", "output_text", "response.output_text.delta",
                      "response.output_text.done", "text"},
    [ITEM_CALL] = {"function_call", "fc", NULL, "response.function_call_arguments.delta",
                   "response.function_call_arguments.done", "arguments"},
};

struct item {
    enum kind kind;
    size_t begin, end; /* of the choice's text or reasoning */
    size_t call;       /* of the choice */
};

struct writing {
    struct item *items; /* owned, [n] */
    size_t n, capacity;
    bool is_open; /* the last item */
    uint64_t sequence;
    size_t n_logprobs; /* tokens whose log-probabilities are written */
};

/* ---- items ---- */

static const struct request_choice *choice_of(const struct serve_answer *a)
{
    return &a->request->choices[0];
}

/* The text of an item so far; "" if `is_empty`. */
static json_t *text_of(const struct serve_answer *a, const struct item *item, bool is_empty)
{
    const struct request_choice *c = choice_of(a);
    if (is_empty || (item->kind != ITEM_CALL && item->begin == item->end))
        return json_string("");
    if (item->kind == ITEM_CALL)
        return cli_json_grown(&c->calls[item->call].arguments);
    return json_stringn((item->kind == ITEM_MESSAGE ? &c->text : &c->reasoning)->text + item->begin,
                        item->end - item->begin);
}

static json_t *item_id(const struct serve_answer *a, size_t i)
{
    const struct writing *w = a->own;
    return json_sprintf("%s_%s_%zu", kinds[w->items[i].kind].prefix, a->id, i);
}

/* Log-probabilities of the answer's tokens from `begin` on. */
static json_t *logprobs_of(const struct serve_answer *a, size_t begin)
{
    if (!a->request->logprobs)
        return json_array();
    json_t *both = request_chat_logprobs(&choice_of(a)->result, begin, a->tokenizer);
    json_t *list = json_incref(json_object_get(both, "content"));
    json_decref(both);
    return list;
}

static json_t *part_of(const struct serve_answer *a, const struct item *item, bool is_empty)
{
    const bool is_text = item->kind == ITEM_MESSAGE;
    const struct cli_field fields[] = {
        {"type", json_string(kinds[item->kind].part)},
        {"text", text_of(a, item, is_empty)},
        {is_text ? "annotations" : NULL, json_array()},
        {is_text ? "logprobs" : NULL, is_empty || !is_text ? json_array() : logprobs_of(a, 0)},
    };
    return CLI_OBJECT(fields);
}

static json_t *call_fields(const struct serve_answer *a, size_t i, bool is_empty)
{
    const struct item *item = &((struct writing *)a->own)->items[i];
    const struct spw_text *name = &choice_of(a)->calls[item->call].name;
    char id[48];
    request_call_id(id, "call_", a->id, 0, item->call);
    const struct cli_field fields[] = {
        {"call_id", json_string(id)},
        {"name", cli_json_grown(name)},
        {"arguments", text_of(a, item, is_empty)},
    };
    return CLI_OBJECT(fields);
}

static json_t *content_fields(const struct serve_answer *a, size_t i, bool is_empty)
{
    const struct item *item = &((struct writing *)a->own)->items[i];
    const bool thinks = item->kind == ITEM_REASONING;
    json_t *content = json_array();
    if (!is_empty)
        cli_json_append(&content, part_of(a, item, false));
    const struct cli_field fields[] = {
        {thinks ? NULL : "role", json_string("assistant")},
        {thinks ? "summary" : NULL, json_array()},
        {"content", content},
        {thinks ? "encrypted_content" : NULL, json_null()},
    };
    return CLI_OBJECT(fields);
}

/* The functions of jansson that do this do not report a failure. */
static void add_all(json_t **to, json_t *from)
{
    const char *name;
    json_t *value;
    if (!from)
        cli_json_add(to, "", NULL);
    json_object_foreach(from, name, value) cli_json_add(to, name, json_incref(value));
}

/* `status`: "in_progress" of an item without content, "completed" or "incomplete". */
static json_t *item_json(const struct serve_answer *a, size_t i, const char *status)
{
    const struct item *item = &((struct writing *)a->own)->items[i];
    const bool is_empty = strcmp(status, "in_progress") == 0;
    const struct cli_field fields[] = {
        {"type", json_string(kinds[item->kind].type)},
        {"id", item_id(a, i)},
        {"status", json_string(status)},
    };
    json_t *object = CLI_OBJECT(fields);
    json_t *rest =
        item->kind == ITEM_CALL ? call_fields(a, i, is_empty) : content_fields(a, i, is_empty);
    add_all(&object, rest);
    json_decref(rest);
    return object;
}

static const char *item_status(const struct serve_answer *a, const struct item *item)
{
    return item->kind == ITEM_CALL && !choice_of(a)->calls[item->call].is_complete ? "incomplete"
                                                                                   : "completed";
}

static int begin_item(struct writing *w, enum kind kind, size_t begin, size_t end, size_t call)
{
    SPW_TRY(spw_grow(&w->items, &w->capacity, w->n + 1, sizeof *w->items));
    w->items[w->n++] = (struct item){kind, begin, end, call};
    return 0;
}

/* ---- the response ---- */

static json_t *usage_of(const struct serve_answer *a)
{
    const struct request_choice *c = choice_of(a);
    const uint64_t n = a->request->prompts[0].n, n_new = c->result.n_tokens;
    const struct cli_field in[] = {
        {"cached_tokens", CLI_JSON(spw_min_u64(c->result.n_reused, n))},
        {"cache_write_tokens", CLI_JSON(0)},
    };
    const struct cli_field out[] = {{"reasoning_tokens", CLI_JSON(c->n_reasoning_tokens)}};
    const struct cli_field fields[] = {
        {"input_tokens", CLI_JSON(n)},         {"input_tokens_details", CLI_OBJECT(in)},
        {"output_tokens", CLI_JSON(n_new)},    {"output_tokens_details", CLI_OBJECT(out)},
        {"total_tokens", CLI_JSON(n + n_new)},
    };
    json_t *object = CLI_OBJECT(fields);
    serve_add_hash(&object, a);
    return object;
}

/* `status`: "in_progress" has no items. Takes the reference of `error`. */
static json_t *response_of(const struct serve_answer *a, const char *status, json_t *error)
{
    const struct writing *w = a->own;
    const bool has_begun = strcmp(status, "in_progress") != 0;
    const struct cli_field why[] = {{"reason", json_string("max_output_tokens")}};
    json_t *details = CLI_OBJECT(why), *items = json_array();
    for (size_t i = 0; i < w->n && has_begun; i++)
        cli_json_append(&items, item_json(a, i, item_status(a, &w->items[i])));
    const bool is_cut = strcmp(status, "incomplete") == 0;
    const struct cli_field fields[] = {
        {"id", json_sprintf("resp_%s", a->id)},
        {"object", json_string("response")},
        {"created_at", json_integer(a->created)},
        {"status", json_string(status)},
        {"error", error},
        {"incomplete_details", CLI_OR_NULL(is_cut, json_incref(details))},
        {"model", CLI_JSON(a->model)},
        {"output", items},
        {"usage", CLI_OR_NULL(has_begun, usage_of(a))},
    };
    json_t *object = CLI_OBJECT(fields);
    json_decref(details);
    add_all(&object, json_object_get(a->request->line, "echo"));
    return object;
}

static const char *status_of(const struct serve_answer *a)
{
    return choice_of(a)->result.finish == SPW_FINISH_LENGTH ? "incomplete" : "completed";
}

/* ---- events ---- */

/* {"type": NAME, "sequence_number": N} */
static json_t *event_of(const struct serve_answer *a, const char *name)
{
    struct writing *w = a->own;
    const struct cli_field fields[] = {{"type", json_string(name)},
                                       {"sequence_number", CLI_JSON(w->sequence)}};
    w->sequence++;
    return CLI_OBJECT(fields);
}

/* An event about the last item: with its id, and the index of its content where it has one. */
static json_t *item_event(const struct serve_answer *a, const char *name, bool has_id)
{
    const struct writing *w = a->own;
    json_t *event = event_of(a, name);
    const bool has_content = has_id && w->items[w->n - 1].kind != ITEM_CALL;
    const struct cli_field fields[] = {
        {has_id ? "item_id" : NULL, item_id(a, w->n - 1)},
        {"output_index", CLI_JSON(w->n - 1)},
        {has_content ? "content_index" : NULL, CLI_JSON(0)},
    };
    CLI_ADD(&event, fields);
    return event;
}

/* Takes the reference of `value`. */
static int add_item_event(const struct serve_answer *a, const char *name, bool has_id,
                          const char *key, json_t *value, struct spw_text *out)
{
    json_t *event = item_event(a, name, has_id);
    cli_json_add(&event, key, value);
    return serve_add_event(out, name, event);
}

/* Takes the reference of `response`. */
static int add_response(const struct serve_answer *a, const char *name, json_t *response,
                        const struct serve_progress *p, struct spw_text *out)
{
    json_t *event = event_of(a, name);
    cli_json_add(&event, "response", response);
    if (p)
        serve_add_progress(&event, p);
    return serve_add_event(out, name, event);
}

static int add_done(const struct serve_answer *a, const struct item *item, struct spw_text *out)
{
    json_t *event = item_event(a, kinds[item->kind].done, true);
    cli_json_add(&event, kinds[item->kind].done_key, text_of(a, item, false));
    if (item->kind == ITEM_MESSAGE)
        cli_json_add(&event, "logprobs", logprobs_of(a, 0));
    return serve_add_event(out, kinds[item->kind].done, event);
}

static int close_item(const struct serve_answer *a, struct spw_text *out)
{
    struct writing *w = a->own;
    if (!w->is_open)
        return 0;
    const struct item *item = &w->items[w->n - 1];
    w->is_open = false;
    SPW_TRY(add_done(a, item, out));
    if (item->kind != ITEM_CALL)
        SPW_TRY(add_item_event(a, "response.content_part.done", true, "part",
                               part_of(a, item, false), out));
    return add_item_event(a, "response.output_item.done", false, "item",
                          item_json(a, w->n - 1, item_status(a, item)), out);
}

static int open_item(const struct serve_answer *a, enum kind kind, size_t begin, size_t call,
                     struct spw_text *out)
{
    struct writing *w = a->own;
    SPW_TRY(close_item(a, out));
    SPW_TRY(begin_item(w, kind, begin, begin, call));
    w->is_open = true;
    SPW_TRY(add_item_event(a, "response.output_item.added", false, "item",
                           item_json(a, w->n - 1, "in_progress"), out));
    return kind == ITEM_CALL ? 0
                             : add_item_event(a, "response.content_part.added", true, "part",
                                              part_of(a, &w->items[w->n - 1], true), out);
}

static int add_delta(const struct serve_answer *a, const struct spw_answer_piece *p,
                     struct spw_text *out)
{
    struct writing *w = a->own;
    const struct item *item = &w->items[w->n - 1];
    json_t *event = item_event(a, kinds[item->kind].delta, true);
    cli_json_add(&event, "delta", json_stringn(p->text, p->bytes));
    if (item->kind == ITEM_MESSAGE) {
        cli_json_add(&event, "logprobs", logprobs_of(a, w->n_logprobs));
        w->n_logprobs = choice_of(a)->result.n_tokens;
    }
    return serve_add_event(out, kinds[item->kind].delta, event);
}

/* ---- streams ---- */

static int open_answer(struct serve_answer *a)
{
    a->own = spw_alloc_zero(1, sizeof(struct writing));
    return a->own ? 0 : -ENOMEM;
}

static int begin_answer(struct serve_answer *a, struct spw_text *out)
{
    SPW_TRY(open_answer(a));
    SPW_TRY(
        add_response(a, "response.created", response_of(a, "in_progress", json_null()), NULL, out));
    return add_response(a, "response.in_progress", response_of(a, "in_progress", json_null()), NULL,
                        out);
}

static int add_progress(struct serve_answer *a, const struct serve_progress *p,
                        struct spw_text *out)
{
    return add_response(a, "response.in_progress", response_of(a, "in_progress", json_null()), p,
                        out);
}

/* A piece of text or reasoning, which the choice has already. */
static int add_content(struct serve_answer *a, const struct spw_answer_piece *p,
                       struct spw_text *out)
{
    struct writing *w = a->own;
    const enum kind kind = p->kind == SPW_PIECE_TEXT ? ITEM_MESSAGE : ITEM_REASONING;
    const size_t end = (kind == ITEM_MESSAGE ? &choice_of(a)->text : &choice_of(a)->reasoning)->n;
    if (!w->is_open || w->items[w->n - 1].kind != kind)
        SPW_TRY(open_item(a, kind, end - p->bytes, 0, out));
    w->items[w->n - 1].end = end;
    return add_delta(a, p, out);
}

static int add_piece(struct serve_answer *a, size_t choice, const struct spw_answer_piece *p,
                     struct spw_text *out)
{
    (void)choice; /* there is one */
    switch (p->kind) {
    case SPW_PIECE_TEXT:
    case SPW_PIECE_REASONING:
        return add_content(a, p, out);
    case SPW_PIECE_CALL:
        return open_item(a, ITEM_CALL, 0, p->call, out);
    case SPW_PIECE_ARGUMENTS:
        return add_delta(a, p, out);
    case SPW_PIECE_CALL_END:
        return close_item(a, out);
    }
    return 0;
}

static int end_choice(struct serve_answer *a, size_t choice, struct spw_text *out)
{
    (void)choice;
    return close_item(a, out);
}

static int end_answer(struct serve_answer *a, struct spw_text *out)
{
    char name[32];
    snprintf(name, sizeof name, "response.%s", status_of(a));
    return add_response(a, name, response_of(a, status_of(a), json_null()), NULL, out);
}

/* Codex ends at once for some of these codes, and sends the request again for others. */
static const char *code_of(const struct request_refusal *why)
{
    if (why->status == 429)
        return "rate_limit_exceeded";
    if (why->code && strcmp(why->code, "context_length_exceeded") == 0)
        return why->code;
    return why->status >= 500 ? "server_error" : "invalid_prompt";
}

static int fail_answer(struct serve_answer *a, const struct request_refusal *why,
                       struct spw_text *out)
{
    const struct cli_field error[] = {{"code", json_string(code_of(why))},
                                      {"message", CLI_JSON((const char *)why->message)}};
    return add_response(a, "response.failed", response_of(a, "failed", CLI_OBJECT(error)), NULL,
                        out);
}

static void close_answer(struct serve_answer *a)
{
    struct writing *w = a->own;
    if (w)
        spw_free(w->items);
    spw_free(w);
    a->own = NULL;
}

/* ---- whole bodies ---- */

static int find_items(const struct serve_answer *a)
{
    const struct request_choice *c = choice_of(a);
    struct writing *w = a->own;
    if (c->reasoning.n)
        SPW_TRY(begin_item(w, ITEM_REASONING, 0, c->reasoning.n, 0));
    if (c->text.n || !c->n_calls)
        SPW_TRY(begin_item(w, ITEM_MESSAGE, 0, c->text.n, 0));
    for (size_t i = 0; i < c->n_calls; i++)
        SPW_TRY(begin_item(w, ITEM_CALL, 0, 0, i));
    return 0;
}

static int write_whole(struct serve_answer *a, struct spw_text *out)
{
    SPW_TRY(open_answer(a));
    SPW_TRY(find_items(a));
    return serve_add_json(out, response_of(a, status_of(a), json_null()));
}

const struct serve_protocol serve_responses = {
    .path = "/v1/responses",
    .read = serve_read_responses,
    .begin = begin_answer,
    .progress = add_progress,
    .piece = add_piece,
    .end_choice = end_choice,
    .end = end_answer,
    .failed = fail_answer,
    .whole = write_whole,
    .error = serve_write_openai_error,
    .close = close_answer,
};
