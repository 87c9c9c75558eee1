/* Which path has which answer. What needs the model's computation becomes an exchange for the
 * engine's side; everything else is answered here, on the connection's thread. A path may begin
 * with /v1 or not. */
#include "tools/command/serve/serve.h"

#include "tools/command/output/report.h"
#include "tools/command/serve/protocol_parts.h"
#include "tools/command/serve/page_texts.h"
#include "tools/command/serve/work.h"

#include <string.h>
#include <time.h>

static const char json_content[] = "application/json";

static const char *without_version(const char *path)
{
    return strncmp(path, "/v1/", 4) == 0 ? path + 3 : path;
}

static const struct serve_protocol *find_protocol(const char *path)
{
    for (size_t i = 0; i < serve_n_protocols; i++)
        if (strcmp(without_version(serve_protocols[i]->path), without_version(path)) == 0)
            return serve_protocols[i];
    return NULL;
}

/* ---- replies ---- */

void serve_route_refusal(const struct serve_call *call, const struct request_refusal *why,
                         struct serve_reply *reply)
{
    const char *path = call->head.path;
    const struct serve_protocol *p = find_protocol(path);
    if (!p && strncmp(without_version(path), "/messages/", 10) == 0)
        p = find_protocol("/messages");
    reply->status = why->status ? why->status : 400;
    reply->content_type = json_content;
    reply->retry_after = why->status == 503 ? 5 : why->status == 429 ? 1 : 0;
    if ((p ? p->error : serve_write_openai_error)(why, call->id, &reply->body))
        reply->body.n = 0; /* without memory: the status alone */
}

/* Takes the reference of the value. */
static void reply_json(json_t *value, struct serve_reply *reply)
{
    reply->content_type = json_content;
    if (serve_add_json(&reply->body, value))
        reply->status = 503;
}

/* ---- the model ---- */

uint64_t serve_longest(const struct serve_server *s)
{
    return serve_work_context(s->work);
}

static json_t *model_json(const struct serve_server *s)
{
    char date[32];
    struct tm t;
    const time_t created = (time_t)s->created;
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&created, &t));
    const uint64_t longest = serve_longest(s);
    const struct cli_field fields[] = {
        {"id", CLI_JSON(s->name)},
        {"object", json_string("model")},
        {"created", CLI_JSON(s->created)},
        {"owned_by", json_string("spillway")},
        {"type", json_string("model")},
        {"display_name", CLI_JSON(s->name)},
        {"created_at", CLI_JSON(date)},
        {"lifecycle", json_string("active")},
        {"max_model_len", CLI_JSON(longest)},
        {"max_input_tokens", CLI_JSON(longest)},
        {"max_tokens", CLI_JSON(longest)},
    };
    return CLI_OBJECT(fields);
}

static int refuse_model(const struct serve_server *s, const char *name, struct request_refusal *why)
{
    return request_refuse(why, 404, "model_not_found", "model",
                          "found the model '%.200s', but this server has '%s'", name, s->name);
}

static int answer_models(struct serve_server *s, struct serve_call *call, struct serve_reply *reply,
                         struct request_refusal *why)
{
    const char *id = without_version(call->head.path) + strlen("/models");
    if (*id == '/' && id[1]) {
        if (strcmp(id + 1, s->name) != 0)
            return refuse_model(s, id + 1, why);
        reply_json(model_json(s), reply);
        return 0;
    }
    json_t *data = json_array();
    cli_json_append(&data, model_json(s));
    const struct cli_field fields[] = {
        {"object", json_string("list")}, {"data", data},
        {"first_id", CLI_JSON(s->name)}, {"last_id", CLI_JSON(s->name)},
        {"has_more", json_false()},
    };
    reply_json(CLI_OBJECT(fields), reply);
    return 0;
}

static int answer_health(struct serve_server *s, struct serve_call *call, struct serve_reply *reply,
                         struct request_refusal *why)
{
    (void)s, (void)call, (void)reply, (void)why;
    return 0;
}

static int answer_root(struct serve_server *s, struct serve_call *call, struct serve_reply *reply,
                       struct request_refusal *why)
{
    (void)s, (void)call;
    reply->content_type = "text/html; charset=utf-8";
    return spw_text_add(&reply->body, page_texts[0].text, strlen(page_texts[0].text))
               ? request_refuse_memory(why)
               : 0;
}

static int answer_metrics(struct serve_server *s, struct serve_call *call,
                          struct serve_reply *reply, struct request_refusal *why)
{
    struct serve_counters counters;
    (void)call;
    serve_work_count(s->work, &counters);
    serve_metrics_count(s->metrics, &counters);
    reply->content_type = "text/plain; version=0.0.4";
    return serve_metrics_write(s->metrics, s->name, &reply->body) ? request_refuse_memory(why) : 0;
}

static int answer_state(struct serve_server *s, struct serve_call *call, struct serve_reply *reply,
                        struct request_refusal *why)
{
    struct serve_state state;
    (void)call, (void)why;
    serve_work_look(s->work, &state);
    reply_json(serve_state_json(&state, s->name), reply);
    return 0;
}

/* ---- tokens ---- */

static const char *token_name(const struct serve_server *s, int32_t id)
{
    return id < 0 ? NULL : spw_tokenizer_token(s->model.tokenizer, id);
}

/* lm-eval asks for these. */
static int answer_tokenizer_info(struct serve_server *s, struct serve_call *call,
                                 struct serve_reply *reply, struct request_refusal *why)
{
    const struct spw_model_config *c = &s->model.config;
    const char *eos = c->n_eos ? token_name(s, c->eos[0]) : NULL;
    (void)call, (void)why;
    const struct cli_field fields[] = {
        {"eos_token", CLI_JSON(eos)},
        {"bos_token", CLI_JSON(token_name(s, c->bos))},
        {"pad_token", json_null()},
        {"chat_template", json_null()},
        {"vocab_size", CLI_JSON(spw_tokenizer_vocab_size(s->model.tokenizer))},
    };
    reply_json(CLI_OBJECT(fields), reply);
    return 0;
}

static int reply_tokens(struct serve_server *s, struct serve_call *call, const json_t *body,
                        const int32_t *tokens, size_t n, struct serve_reply *reply,
                        struct request_refusal *why)
{
    enum { JSON_BYTES = 64 }; /* of a value and its text */
    const bool named = json_is_true(json_object_get(body, "return_token_strs"));
    SPW_TRY(serve_share_grow(&call->share, call->share.bytes + (1 + named) * n * JSON_BYTES, why));
    const struct cli_field fields[] = {
        {"count", CLI_JSON((uint64_t)n)},
        {"max_model_len", CLI_JSON(serve_longest(s))},
        {"tokens", cli_report_tokens(tokens, n)},
        {"token_strs", CLI_OR_NULL(named, cli_report_names(s->model.tokenizer, tokens, n))},
    };
    reply_json(CLI_OBJECT(fields), reply);
    return 0;
}

/* A body that a protocol reads, as far as its tokens. The caller frees *x. */
static int read_tokens(const struct serve_server *s, const struct serve_protocol *p,
                       struct spw_text *body, struct request *x, struct request_refusal *why)
{
    struct serve_wish wish;
    struct request_reader reader = s->reader;
    reader.started = time(NULL);
    return serve_read(p, x, &wish, body->text, body->n, &reader, UINT64_MAX / 4, why);
}

static int tokenize_text(struct serve_server *s, struct serve_call *call, const json_t *body,
                         struct serve_reply *reply, struct request_refusal *why)
{
    const json_t *prompt = json_object_get(body, "prompt");
    const json_t *special = json_object_get(body, "add_special_tokens");
    struct spw_error err = {0};
    int32_t *ids;
    size_t n;
    if (!json_is_string(prompt))
        return request_refuse_value(why, "prompt", prompt, "a text (or \"messages\")");
    if (spw_tokenizer_encode(s->model.tokenizer, json_string_value(prompt),
                             json_string_length(prompt), !json_is_false(special), &ids, &n, &err))
        return request_refuse(why, 400, NULL, "prompt", "prompt: %.400s", err.text);
    const int rc = reply_tokens(s, call, body, ids, n, reply, why);
    spw_free(ids);
    return rc;
}

static int tokenize_messages(struct serve_server *s, struct serve_call *call, const json_t *body,
                             struct serve_reply *reply, struct request_refusal *why)
{
    struct request x;
    int rc = read_tokens(s, &serve_chat, &call->body, &x, why);
    if (!rc)
        rc = reply_tokens(s, call, body, x.prompts[0].tokens, x.prompts[0].n, reply, why);
    request_free(&x);
    return rc;
}

static int answer_tokenize(struct serve_server *s, struct serve_call *call,
                           struct serve_reply *reply, struct request_refusal *why)
{
    json_t *body;
    SPW_TRY(request_parse_json(&body, call->body.text, call->body.n, SPW_JSON_LARGE_REAL, why));
    const int rc = json_object_get(body, "messages") ? tokenize_messages(s, call, body, reply, why)
                                                     : tokenize_text(s, call, body, reply, why);
    json_decref(body);
    return rc;
}

/* Claude Code asks for many counts at once: the engine has no part in them. */
static int answer_count(struct serve_server *s, struct serve_call *call, struct serve_reply *reply,
                        struct request_refusal *why)
{
    struct request x;
    const int rc = read_tokens(s, &serve_messages, &call->body, &x, why);
    if (!rc) {
        const struct cli_field fields[] = {{"input_tokens", CLI_JSON((uint64_t)x.prompts[0].n)}};
        reply_json(CLI_OBJECT(fields), reply);
    }
    request_free(&x);
    return rc;
}

static int read_ids(const json_t *list, int32_t *ids, struct request_refusal *why)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *id = json_array_get(list, i);
        const json_int_t value = json_integer_value(id);
        if (!json_is_integer(id) || value < 0 || value > INT32_MAX)
            return request_refuse_value(why, "tokens", id, "a token id");
        ids[i] = (int32_t)value;
    }
    return 0;
}

static int detokenize(struct serve_server *s, const json_t *list, struct serve_reply *reply,
                      struct request_refusal *why)
{
    char *text = NULL;
    size_t bytes = 0;
    if (!json_is_array(list))
        return request_refuse_value(why, "tokens", list, "a list of token ids");
    const size_t n = json_array_size(list);
    int32_t *ids = spw_alloc_zero(n + 1, sizeof *ids);
    int rc = ids ? read_ids(list, ids, why) : request_refuse_memory(why);
    if (!rc && spw_tokenizer_decode(s->model.tokenizer, ids, n, false, &text, &bytes))
        rc = request_refuse_memory(why);
    if (!rc) {
        const struct cli_field fields[] = {{"prompt", json_stringn(text, bytes)}};
        reply_json(CLI_OBJECT(fields), reply);
    }
    spw_free(text);
    spw_free(ids);
    return rc;
}

static int answer_detokenize(struct serve_server *s, struct serve_call *call,
                             struct serve_reply *reply, struct request_refusal *why)
{
    json_t *body;
    SPW_TRY(request_parse_json(&body, call->body.text, call->body.n, SPW_JSON_LARGE_REAL, why));
    const int rc = detokenize(s, json_object_get(body, "tokens"), reply, why);
    json_decref(body);
    return rc;
}

/* ---- answers of the model ---- */

static int check_model(const struct serve_server *s, const json_t *name,
                       struct request_refusal *why)
{
    if (!json_is_string(name) || strcmp(json_string_value(name), s->name) == 0)
        return 0;
    return refuse_model(s, json_string_value(name), why);
}

static int read_exchange(struct serve_server *s, struct serve_exchange *x, struct serve_call *call,
                         struct request_refusal *why)
{
    struct request_reader reader = s->reader;
    reader.started = time(NULL);
    SPW_TRY(serve_read(x->protocol, &x->request, &x->wish, call->body.text, call->body.n, &reader,
                       serve_longest(s), why));
    SPW_TRY(check_model(s, json_object_get(x->request.body, "model"), why));
    x->answer = (struct serve_answer){.protocol = x->protocol,
                                      .wish = &x->wish,
                                      .request = &x->request,
                                      .model = s->name,
                                      .tokenizer = s->model.tokenizer,
                                      .created = reader.started};
    memcpy(x->answer.id, call->id, sizeof call->id);
    x->share = call->share; /* the request is as large as its body was */
    call->share.bytes = 0;
    return serve_share_grow(&x->share, x->share.bytes + request_bytes(&x->request), why);
}

static int submit(struct serve_server *s, struct serve_exchange *x, struct request_refusal *why)
{
    const int rc = serve_work_submit(s->work, x);
    if (rc == -EBUSY)
        return request_refuse(why, 429, "queue_full", NULL,
                              "%llu answers may wait, and there is no place for %zu more; ask "
                              "again later",
                              (unsigned long long)s->o->max_queue, serve_n_choices(&x->answer));
    if (rc)
        return request_refuse(why, 503, "shutting_down", NULL, "the server ends");
    return 0;
}

static int answer_protocol(struct serve_server *s, const struct serve_protocol *p,
                           struct serve_call *call, struct serve_reply *reply,
                           struct request_refusal *why)
{
    struct serve_exchange *x = serve_exchange_open(p);
    int rc = x ? read_exchange(s, x, call, why) : request_refuse_memory(why);
    if (!rc)
        rc = submit(s, x, why);
    if (!rc)
        reply->exchange = x;
    else
        serve_exchange_put(x);
    return rc;
}

/* ---- the table ---- */

static const struct route {
    const char *path;
    bool is_post, is_public, while_loading, has_more; /* has_more: the path may continue */
    int (*answer)(struct serve_server *s, struct serve_call *call, struct serve_reply *reply,
                  struct request_refusal *why);
} routes[] = {
    {"/", .is_public = true, .while_loading = true, .answer = answer_root},
    {"/health", .is_public = true, .answer = answer_health},
    {"/models", .has_more = true, .answer = answer_models},
    {"/metrics", .answer = answer_metrics},
    {"/state", .answer = answer_state},
    {"/tokenize", .is_post = true, .answer = answer_tokenize},
    {"/detokenize", .is_post = true, .answer = answer_detokenize},
    {"/messages/count_tokens", .is_post = true, .answer = answer_count},
    {"/tokenizer_info", .answer = answer_tokenizer_info},
};

static const struct route *find_route(const char *path)
{
    path = without_version(path);
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        const size_t n = strlen(routes[i].path);
        if (strncmp(routes[i].path, path, n) == 0 &&
            (!path[n] || (routes[i].has_more && path[n] == '/')))
            return &routes[i];
    }
    return NULL;
}

bool serve_route_is_public(const char *path)
{
    const struct route *r = find_route(path);
    return r && r->is_public;
}

static int check_method(const struct serve_call *call, bool is_post, struct serve_reply *reply,
                        struct request_refusal *why)
{
    const char *wanted = is_post ? "POST" : "GET";
    if (strcmp(call->head.method, wanted) == 0)
        return 0;
    reply->allow = is_post ? "POST, OPTIONS" : "GET, HEAD, OPTIONS";
    return request_refuse(why, 405, "method_not_allowed", NULL, "found %.20s, expected %s",
                          call->head.method, wanted);
}

static int route(struct serve_server *s, struct serve_call *call, struct serve_reply *reply,
                 struct request_refusal *why)
{
    const struct route *r = find_route(call->head.path);
    const struct serve_protocol *p = r ? NULL : find_protocol(call->head.path);
    if (!r && !p)
        return request_refuse(why, 404, "not_found", NULL, "found no such path: %.200s",
                              call->head.path);
    SPW_TRY(check_method(call, p || r->is_post, reply, why));
    if (!s->is_ready && !(r && r->while_loading))
        return request_refuse(why, 503, "loading", NULL, "the model is being loaded");
    SPW_TRY(serve_share_grow(
        &call->share, call->share.bytes + request_tree_bytes(call->body.text, call->body.n), why));
    return r ? r->answer(s, call, reply, why) : answer_protocol(s, p, call, reply, why);
}

void serve_route(void *context, struct serve_call *call, struct serve_reply *reply)
{
    struct request_refusal why = {0};
    if (route(context, call, reply, &why))
        serve_route_refusal(call, &why, reply);
}
