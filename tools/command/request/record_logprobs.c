/* See record_logprobs.h. */
#include "tools/command/request/record_logprobs.h"

#include <string.h>
#include <utf8proc.h>

/* OpenAI's number for a probability that is too small for a float; JSON has no infinity. */
static json_t *logprob_json(double x)
{
    return CLI_JSON(x < -9999 ? -9999.0 : x);
}

/* Bytes that are no text, as OpenAI writes them: "\xe2\x82". */
static json_t *escape(const char *prefix, const char *bytes, size_t n)
{
    size_t room = strlen(prefix) + 4 * n + 1;
    char *text = spw_alloc(room), *at = text;
    if (!text)
        return NULL;
    at += snprintf(at, room, "%s", prefix);
    for (size_t i = 0; i < n; i++)
        at += snprintf(at, room - (size_t)(at - text), "\\x%02x", (unsigned char)bytes[i]);
    json_t *value = json_string(text);
    spw_free(text);
    return value;
}

static json_t *list_of_bytes(const char *bytes, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        cli_json_append(&list, json_integer((unsigned char)bytes[i]));
    return list;
}

static bool is_utf8(const char *text, size_t n)
{
    utf8proc_ssize_t length = 1;
    utf8proc_int32_t c;
    while (n > 0 && length > 0) {
        length = utf8proc_iterate((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n, &c);
        text += length > 0 ? length : 0;
        n -= length > 0 ? (size_t)length : 0;
    }
    return length > 0;
}

/* The name of a token. *bytes, if wanted, gets the list of its bytes. `prefix` stands before bytes
 * that are no text. */
static json_t *token_name(const struct spw_tokenizer *t, int32_t id, const char *prefix,
                          json_t **bytes)
{
    char *text;
    size_t n;
    if (!t) {
        if (bytes)
            *bytes = json_null();
        return json_sprintf("token_id:%d", (int)id);
    }
    if (spw_tokenizer_token_bytes(t, id, &text, &n)) {
        if (bytes)
            *bytes = NULL;
        return NULL;
    }
    json_t *name = is_utf8(text, n) ? json_stringn(text, n) : escape(prefix, text, n);
    if (bytes)
        *bytes = list_of_bytes(text, n);
    spw_free(text);
    return name;
}

/* ---- chat ---- */

static json_t *chat_token(const struct spw_tokenizer *t, int32_t id, double logprob)
{
    json_t *bytes, *name = token_name(t, id, "", &bytes);
    const struct cli_field fields[] = {
        {"token", name},
        {"logprob", logprob_json(logprob)},
        {"bytes", bytes},
    };
    return CLI_OBJECT(fields);
}

json_t *request_chat_logprobs(const struct spw_result *r, size_t begin,
                              const struct spw_tokenizer *t)
{
    json_t *content = json_array();
    for (size_t i = begin; i < r->n_tokens; i++) {
        json_t *token = chat_token(t, r->tokens[i], r->logprobs[i]), *list = json_array();
        for (uint32_t k = 0; k < r->n_top_logprobs; k++) {
            const struct spw_token_logprob *top = &r->top_logprobs[i * r->n_top_logprobs + k];
            cli_json_append(&list, chat_token(t, top->token, top->logprob));
        }
        cli_json_add(&token, "top_logprobs", list);
        cli_json_append(&content, token);
    }
    const struct cli_field fields[] = {{"content", content}, {"refusal", json_null()}};
    return CLI_OBJECT(fields);
}

/* ---- completions ---- */

/* Code points: what Python's len counts. */
static size_t count_characters(const char *text, size_t bytes)
{
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++)
        n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

struct tokens_list {
    json_t *names, *logprobs, *top, *offsets; /* owned */
    struct request_place *at;
};

/* Moves on by the text of a token. False: out of memory. */
static bool pass_token(struct request_place *at, int32_t id)
{
    const char *text;
    size_t n;
    if (!at->d)
        return true;
    if (spw_detokenizer_push(at->d, id, &text, &n))
        return false;
    at->n_characters += count_characters(text, n);
    return true;
}

static void add_token(struct tokens_list *l, const struct request_completion *c, int32_t id,
                      json_t *logprob, json_t *top)
{
    cli_json_append(&l->names, token_name(c->tokenizer, id, "bytes:", NULL));
    cli_json_append(&l->logprobs, logprob);
    cli_json_append(&l->top, top);
    cli_json_append(&l->offsets, json_integer((json_int_t)l->at->n_characters));
    if (!pass_token(l->at, id)) {
        json_decref(l->offsets);
        l->offsets = NULL;
    }
}

static void add_top(json_t **object, const struct spw_tokenizer *t, int32_t id, double logprob)
{
    json_t *name = token_name(t, id, "bytes:", NULL);
    cli_json_add(object, name ? json_string_value(name) : NULL, logprob_json(logprob));
    json_decref(name);
}

/* The `n` most likely tokens, and the token that is there. */
static json_t *top_of(const struct request_completion *c, const struct spw_token_logprob *top,
                      uint32_t n, int32_t id, double logprob)
{
    json_t *object = json_object();
    while (n-- > 0) /* of equal names, the more likely one stays */
        add_top(&object, c->tokenizer, top[n].token, top[n].logprob);
    add_top(&object, c->tokenizer, id, logprob);
    return object;
}

/* The tokens of the prompt, and where its text ends. */
static void add_prompt(struct tokens_list *l, const struct request_completion *c)
{
    const struct spw_result *r = c->of_prompt;
    const uint32_t n = r->n_top_logprobs;
    const int32_t *ids = c->prompt->tokens;
    for (size_t i = 0; i < c->prompt->n; i++)
        add_token(
            l, c, ids[i],
            CLI_OR_NULL(i > 0 && r->prompt_logprobs, logprob_json(r->prompt_logprobs[i])),
            CLI_OR_NULL(i > 0 && r->prompt_top_logprobs, top_of(c, r->prompt_top_logprobs + i * n,
                                                                n, ids[i], r->prompt_logprobs[i])));
    l->at->n_characters = count_characters(json_string_value(c->echo), json_string_length(c->echo));
}

void request_place_free(struct request_place *at)
{
    spw_detokenizer_free(at->d);
    *at = (struct request_place){0};
}

/* The prompt is written, or passed. False: out of memory. */
static bool begin_place(struct tokens_list *l, const struct request_completion *c)
{
    struct request_place *at = l->at;
    bool good = at->has_begun || !c->tokenizer || !spw_detokenizer_init(&at->d, c->tokenizer, true);
    if (at->has_begun || !good)
        return good;
    at->has_begun = true;
    if (c->echo) {
        add_prompt(l, c);
        return true;
    }
    for (size_t i = 0; i < c->prompt->n && good; i++)
        good = pass_token(at, c->prompt->tokens[i]);
    at->n_characters = 0;
    return good;
}

json_t *request_completion_logprobs(const struct request_completion *c, struct request_place *at)
{
    const struct spw_result *r = c->result;
    struct tokens_list l = {json_array(), json_array(), json_array(), json_array(), at};
    const bool good = begin_place(&l, c);
    for (size_t i = at->n_tokens; i < r->n_tokens && good; i++)
        add_token(&l, c, r->tokens[i], logprob_json(r->logprobs[i]),
                  CLI_OR_NULL(r->n_top_logprobs,
                              top_of(c, r->top_logprobs + i * r->n_top_logprobs, r->n_top_logprobs,
                                     r->tokens[i], r->logprobs[i])));
    at->n_tokens = r->n_tokens;
    if (!r->n_top_logprobs) {
        json_decref(l.top);
        l.top = json_null();
    }
    const struct cli_field fields[] = {
        {"tokens", l.names},
        {"token_logprobs", l.logprobs},
        {"top_logprobs", l.top},
        {"text_offset", l.offsets},
    };
    json_t *object = CLI_OBJECT(fields);
    if (!good) {
        json_decref(object);
        object = NULL;
    }
    return object;
}
