/* See protocol.h. */
#include "tools/command/serve/protocol_parts.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

const struct serve_protocol *const serve_protocols[] = {&serve_chat, &serve_completions,
                                                        &serve_responses, &serve_messages};
const size_t serve_n_protocols = sizeof serve_protocols / sizeof *serve_protocols;

/* ---- lone surrogates ---- */

/* The UTF-16 unit of "\uXXXX" at `text`; 0: there is none. */
static unsigned unit_at(const char *text, const char *end)
{
    char digits[5] = {0};
    if (end - text < 6 || text[0] != '\\' || text[1] != 'u')
        return 0;
    memcpy(digits, text + 2, 4);
    return strspn(digits, "0123456789abcdefABCDEF") == 4 ? (unsigned)strtoul(digits, NULL, 16) : 0;
}

/* Clients in JavaScript cut texts in the middle of a character, and escape the half. The parser
 * refuses such a half; U+FFFD takes its place. A backslash stands only in a text. */
static void replace_surrogates(char *text, size_t bytes)
{
    const char *end = text + bytes;
    for (char *at = text; (at = memchr(at, '\\', (size_t)(end - at)));) {
        const unsigned unit = unit_at(at, end);
        const unsigned next = unit ? unit_at(at + 6, end) : 0;
        const bool is_pair = unit >> 10 == 0xd800 >> 10 && next >> 10 == 0xdc00 >> 10;
        if (!is_pair && unit >> 11 == 0xd800 >> 11)
            memcpy(at + 2, "fffd", 4);
        at += is_pair ? 12 : unit ? 6 : end - at > 1 ? 2 : 1;
    }
}

/* ---- from a body to a request ---- */

int serve_prepare(struct request_reader *r)
{
    struct spw_error err = {0};
    int rc = request_reader_open_template(r, &err);
    if (rc == -ENOMEM)
        return rc;
    if (!rc)
        request_reader_probe(r);
    else
        request_refuse(&r->no_template, 400, "invalid_value", "messages", "messages: %s", err.text);
    return 0;
}

int serve_refuse_length(const struct serve_protocol *p, uint64_t n_tokens, uint64_t longest,
                        struct request_refusal *why)
{
    /* Clients look for these words. */
    if (p == &serve_messages)
        request_refuse(why, 400, "context_length_exceeded", "messages",
                       "prompt is too long: %llu tokens > %llu maximum",
                       (unsigned long long)n_tokens, (unsigned long long)longest);
    else
        request_refuse(why, 400, "context_length_exceeded",
                       p == &serve_chat ? "messages" : "prompt",
                       "This model's maximum context length is %llu tokens. However, your messages "
                       "resulted in %llu tokens.",
                       (unsigned long long)longest, (unsigned long long)n_tokens);
    return -E2BIG;
}

/* A client may ask for more tokens than the context has room for: it gets what there is. */
static int cut_length(const struct serve_protocol *p, struct request *x, uint64_t longest,
                      struct request_refusal *why)
{
    const uint64_t n_prompt = request_tokens(x) - x->max_new_tokens;
    if (n_prompt + (x->max_new_tokens > 0) > longest)
        return serve_refuse_length(p, n_prompt, longest, why);
    x->max_new_tokens = spw_min_u64(x->max_new_tokens, longest - n_prompt);
    return 0;
}

/* The engine's thread holds all answers of a body, and goes over them with each token. */
static int check_answers(const struct request *x, struct request_refusal *why)
{
    enum { MOST = 4096 };
    if (x->n_prompts * x->n_choices <= MOST)
        return 0;
    return request_refuse(
        why, 400, "invalid_value", "n",
        "n: found %zu prompts with %u answers to each, expected at most %d answers", x->n_prompts,
        x->n_choices, MOST);
}

static int read_body(const struct serve_protocol *p, struct request *x, struct serve_wish *wish,
                     json_t **body, struct request_reader *r, uint64_t longest,
                     struct request_refusal *why)
{
    SPW_TRY(p->read(x, wish, *body, r, why));
    SPW_TRY(request_encode(x, r, why));
    SPW_TRY(check_answers(x, why));
    return cut_length(p, x, longest, why);
}

int serve_read(const struct serve_protocol *p, struct request *x, struct serve_wish *wish,
               char *text, size_t bytes, struct request_reader *r, uint64_t longest,
               struct request_refusal *why)
{
    json_t *body = NULL;
    *x = (struct request){.bytes = bytes};
    *wish = (struct serve_wish){0};
    replace_surrogates(text, bytes);
    int rc = request_parse_json(&body, text, bytes, SPW_JSON_LARGE_REAL, why);
    if (!rc)
        rc = read_body(p, x, wish, &body, r, longest, why);
    json_decref(body);
    if (rc && !why->status)
        why->status = 400;
    return rc;
}

int serve_read_wish(struct serve_wish *wish, json_t *body, struct request_refusal *why)
{
    const json_t *stream = json_object_get(body, "stream");
    if (stream && !json_is_boolean(stream) && !json_is_null(stream))
        return request_refuse_value(why, "stream", stream, "true or false");
    wish->stream = json_is_true(stream);
    wish->logits_hash = json_is_true(json_object_get(body, "logits_hash"));
    json_object_del(body, "stream");
    return 0;
}

/* The seed of a request without one. JSON's readers keep 53 bits exactly. */
static int draw_seed(json_t *body)
{
    uint64_t seed = 0;
    if (getrandom(&seed, sizeof seed, 0) != sizeof seed)
        return -ENOMEM;
    return json_object_set_new(body, "seed", json_integer((json_int_t)(seed >> 11)));
}

int serve_set_body(struct request *x, enum request_form form, json_t *body, json_t *echo,
                   const struct request_reader *r, struct request_refusal *why)
{
    const json_t *seed = json_object_get(body, "seed");
    const struct cli_field fields[] = {{"body", body}, {"echo", echo ? echo : json_null()}};
    x->form = form;
    x->line = CLI_OBJECT(fields);
    x->body = json_object_get(x->line, "body");
    if (!x->body)
        return request_refuse_memory(why);
    if ((!seed || json_is_null(seed)) && !cli_given(r->o, "seed") && draw_seed(x->body))
        return request_refuse_memory(why);
    return 0;
}

const char *serve_word(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

bool serve_is_type(const json_t *object, const char *type)
{
    return strcmp(serve_word(object, "type"), type) == 0;
}

json_t *serve_typed(const char *type, json_t *value)
{
    const struct cli_field fields[] = {{"type", json_string(type)}, {type, value}};
    return CLI_OBJECT(fields);
}

int serve_copy(json_t *body, const char *name, json_t *value)
{
    return value && !json_is_null(value) && json_object_set(body, name, value) ? -ENOMEM : 0;
}

int serve_copy_options(json_t *body, const json_t *from, const char *max_tokens, const char *stop)
{
    static const char *const same[] = {"model",
                                       "temperature",
                                       "top_p",
                                       "top_k",
                                       "min_p",
                                       "repetition_penalty",
                                       "presence_penalty",
                                       "frequency_penalty",
                                       "logit_bias",
                                       "num_beams",
                                       "num_beam_groups",
                                       "diversity_penalty",
                                       "length_penalty",
                                       "early_stopping",
                                       "no_repeat_ngram_size",
                                       "min_length",
                                       "min_new_tokens",
                                       "min_tokens",
                                       "forced_bos_token_id",
                                       "forced_eos_token_id",
                                       "suppress_tokens",
                                       "begin_suppress_tokens",
                                       "seed",
                                       "ignore_eos",
                                       "chat_template_kwargs"};
    const char *const keys[][2] = {{max_tokens, "max_tokens"}, {stop, "stop"}};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (serve_copy(body, same[i], json_object_get(from, same[i])))
            return -ENOMEM;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (serve_copy(body, keys[i][1], json_object_get(from, keys[i][0])))
            return -ENOMEM;
    return 0;
}

int serve_set_tools(json_t *body, json_t *functions)
{
    json_t *tools = functions ? json_array() : NULL;
    for (size_t i = 0; i < json_array_size(functions); i++)
        cli_json_append(&tools, serve_typed("function", json_incref(json_array_get(functions, i))));
    json_decref(functions);
    if (!tools || json_array_size(tools))
        return json_object_set_new(body, "tools", tools);
    json_decref(tools);
    return 0;
}

int serve_set_choice(json_t *body, const char *word, const char *function)
{
    if (!json_object_get(body, "tools"))
        return 0;
    if (!function)
        return json_object_set_new(body, "tool_choice", json_string(word));
    const struct cli_field fields[] = {{"name", json_string(function)}};
    return json_object_set_new(body, "tool_choice", serve_typed("function", CLI_OBJECT(fields)));
}

int serve_set_thinking(json_t *body, bool thinks)
{
    static const char *const names[] = {"enable_thinking", "thinking"};
    json_t *given = json_object_get(body, "chat_template_kwargs");
    if (!json_is_object(given)) {
        given = json_object();
        if (json_object_set_new(body, "chat_template_kwargs", given))
            return -ENOMEM;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!json_object_get(given, names[i]) &&
            json_object_set_new(given, names[i], json_boolean(thinks)))
            return -ENOMEM;
    return 0;
}

int serve_set_effort(json_t *body, const char *effort, const struct request_reader *r)
{
    static const struct {
        const char *name, *effort; /* NULL: does not think */
    } efforts[] = {{"none", NULL},   {"minimal", "low"}, {"low", "low"}, {"medium", "medium"},
                   {"high", "high"}, {"xhigh", "high"},  {"max", "high"}};
    json_object_del(body, "reasoning_effort");
    for (size_t i = 0; i < sizeof efforts / sizeof *efforts && effort; i++) {
        if (strcmp(effort, efforts[i].name) != 0)
            continue;
        if (!efforts[i].effort)
            return serve_set_thinking(body, false);
        if (r->takes_effort > 0 &&
            json_object_set_new(body, "reasoning_effort", json_string(efforts[i].effort)))
            return -ENOMEM;
    }
    return 0;
}

/* ---- bytes ---- */

int serve_add_json(struct spw_text *out, json_t *value)
{
    char *text = spw_json_dump(value, JSON_COMPACT);
    int rc = text ? spw_text_add(out, text, strlen(text)) : -ENOMEM;
    spw_free(text);
    json_decref(value);
    return rc;
}

int serve_add_event(struct spw_text *out, const char *name, json_t *value)
{
    char line[64];
    snprintf(line, sizeof line, "%s%s%sdata: ", name ? "event: " : "", name ? name : "",
             name ? "\n" : "");
    int rc = spw_text_add(out, line, strlen(line));
    if (rc)
        json_decref(value);
    else
        rc = serve_add_json(out, value);
    return rc ? rc : spw_text_add(out, "\n\n", 2);
}

void serve_add_progress(json_t **event, const struct serve_progress *p)
{
    const struct cli_field fields[] = {
        {"prompt_tokens_read", CLI_JSON(p->n_read)},
        {"prompt_tokens", CLI_JSON(p->n_prompt)},
        {"seconds_left", CLI_OR_NULL(p->seconds_left >= 0, CLI_JSON(p->seconds_left))},
        {"requests_before", CLI_JSON(p->n_before)},
    };
    cli_json_add(event, "spillway", CLI_OBJECT(fields));
}

size_t serve_n_choices(const struct serve_answer *a)
{
    return a->request->n_prompts * a->request->n_choices;
}

void serve_add_hash(json_t **usage, const struct serve_answer *a)
{
    if (a->wish->logits_hash)
        cli_json_add(usage, "logits_hash", request_record_hashes(a->request));
}

struct request_names serve_names(const struct serve_answer *a)
{
    return (struct request_names){
        .model = a->model, .created = a->created, .tokenizer = a->tokenizer, .id = a->id};
}

/* ---- errors ---- */

json_t *serve_openai_error(const struct request_refusal *why)
{
    struct request_refusal named = *why;
    if (why->status == 401)
        named.type = "authentication_error";
    else if (why->status == 403)
        named.type = "permission_error";
    else if (why->status == 429)
        named.type = "rate_limit_error";
    const struct cli_field fields[] = {{"error", request_record_reason(&named)}};
    return CLI_OBJECT(fields);
}

int serve_write_openai_error(const struct request_refusal *why, const char *id,
                             struct spw_text *out)
{
    (void)id; /* only a header has it */
    return serve_add_json(out, serve_openai_error(why));
}
