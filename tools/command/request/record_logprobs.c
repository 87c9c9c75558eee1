/* See record_logprobs.h. */
#include "tools/command/request/record_logprobs.h"

#include <string.h>

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
    json_t *name = json_stringn(text, n); /* NULL: no UTF-8 */
    if (!name)
        name = escape(prefix, text, n);
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

json_t *request_chat_logprobs(const struct spw_result *r, const struct spw_tokenizer *t)
{
    json_t *content = json_array();
    for (size_t i = 0; i < r->n_tokens; i++) {
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
    struct spw_detokenizer *d;                /* owned; NULL: no tokenizer */
    size_t n_characters;                      /* of the text before the next token */
};

/* Moves on by the text of a token. False: out of memory. */
static bool pass_token(struct tokens_list *l, int32_t id)
{
    const char *text;
    size_t n;
    if (!l->d)
        return true;
    if (spw_detokenizer_push(l->d, id, &text, &n))
        return false;
    l->n_characters += count_characters(text, n);
    return true;
}

static void add_token(struct tokens_list *l, const struct request_completion *c, int32_t id,
                      json_t *logprob, json_t *top)
{
    cli_json_append(&l->names, token_name(c->tokenizer, id, "bytes:", NULL));
    cli_json_append(&l->logprobs, logprob);
    cli_json_append(&l->top, top);
    cli_json_append(&l->offsets, json_integer((json_int_t)l->n_characters));
    if (!pass_token(l, id)) {
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
    l->n_characters = count_characters(json_string_value(c->echo), json_string_length(c->echo));
}

json_t *request_completion_logprobs(const struct request_completion *c)
{
    const struct spw_result *r = c->result;
    struct tokens_list l = {json_array(), json_array(), json_array(), json_array(), NULL, 0};
    bool good = !c->tokenizer || !spw_detokenizer_init(&l.d, c->tokenizer, true);
    if (c->echo) {
        add_prompt(&l, c);
    } else {
        for (size_t i = 0; i < c->prompt->n && good; i++)
            good = pass_token(&l, c->prompt->tokens[i]);
        l.n_characters = 0;
    }
    for (size_t i = 0; i < r->n_tokens; i++)
        add_token(&l, c, r->tokens[i], logprob_json(r->logprobs[i]),
                  CLI_OR_NULL(r->n_top_logprobs,
                              top_of(c, r->top_logprobs + i * r->n_top_logprobs, r->n_top_logprobs,
                                     r->tokens[i], r->logprobs[i])));
    spw_detokenizer_free(l.d);
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
