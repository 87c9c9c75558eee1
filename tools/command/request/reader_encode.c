/* The tokens of prompts: see reader.h. */
#include "tools/command/input/speech.h"
#include "tools/command/request/reader_parts.h"

#include <stdlib.h>
#include <string.h>

/* Of one line, which has n answers to each: limits of memory. */
enum { MOST_PROMPTS = 2048, MOST_ANSWERS = 65536 };

int request_refuse_call(struct request_refusal *why, int rc, const char *key,
                        const struct spw_error *err)
{
    if (rc == -ENOMEM)
        return request_refuse_memory(why);
    return request_refuse(why, 400, "invalid_value", key, "%s: %s", key,
                          err->text[0] ? err->text : strerror(-rc));
}

static int check_vocab(const char *param, const struct request_prompt *p, uint32_t vocab,
                       struct request_refusal *why)
{
    for (size_t i = 0; i < p->n; i++)
        if (p->tokens[i] < 0 || (uint32_t)p->tokens[i] >= vocab)
            return request_refuse(why, 400, "invalid_value", param,
                                  "%s: token %zu: found id %d, expected 0 to %u", param, i + 1,
                                  (int)p->tokens[i], vocab - 1);
    return 0;
}

static int check_ids(const struct request_reader *r, const char *param,
                     const struct request_prompt *p, struct request_refusal *why)
{
    const struct spw_model_config *c = &r->model->config;
    if (c->stack_positions && p->n > c->stack_positions)
        return request_refuse(why, 400, "context_length_exceeded", param,
                              "%s: found %zu tokens, expected at most %llu, as many as the model "
                              "has positions for",
                              param, p->n, (unsigned long long)c->stack_positions);
    return check_vocab(param, p, spw_config_vocab(c, c->n_source_layers), why);
}

int request_encode_prompt(const struct request_reader *r, const char *param,
                          const struct spw_encoding *e, struct request_prompt *out,
                          struct request_refusal *why)
{
    struct spw_error err = {0};
    if (!r->model->tokenizer)
        return request_refuse(why, 400, "unsupported_value", param,
                              "%s: the model has no tokenizer; give a prompt of token ids", param);
    int rc = cli_encode_spans(r->model->tokenizer, e, &out->tokens, &out->n, &err);
    const struct spw_model_config *c = &r->model->config;
    if (rc)
        return request_refuse_call(why, rc, param, &err);
    return check_vocab(param, out, spw_config_vocab(c, c->n_source_layers), why);
}

static int encode_text(const struct request_reader *r, const char *param, const char *text,
                       size_t bytes, struct request_prompt *out, struct request_refusal *why)
{
    const struct spw_encoding e = {.text = text, .bytes = bytes, .add_special = true};
    SPW_TRY(request_encode_prompt(r, param, &e, out, why));
    return check_ids(r, param, out, why);
}

static int list_ids(const char *param, const json_t *list, struct request_prompt *out,
                    struct request_refusal *why)
{
    size_t n = json_array_size(list);
    if (n == 0)
        return request_refuse_value(why, param, list, "a list of at least one token id");
    out->tokens = spw_alloc_zero(n, sizeof *out->tokens);
    if (!out->tokens)
        return request_refuse_memory(why);
    out->n = n;
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(list, i);
        json_int_t value = json_is_integer(id) ? json_integer_value(id) : -1;
        if (value < 0 || value > INT32_MAX)
            return request_refuse_value(why, param, id, "a token id");
        out->tokens[i] = (int32_t)value;
    }
    return 0;
}

static int read_ids(const struct request_reader *r, const char *param, const json_t *list,
                    struct request_prompt *out, struct request_refusal *why)
{
    SPW_TRY(list_ids(param, list, out, why));
    return check_ids(r, param, out, why);
}

/* A text or a list of token ids. */
static int read_prompt(const struct request_reader *r, const char *param, const json_t *value,
                       struct request_prompt *out, struct request_refusal *why)
{
    if (json_is_array(value))
        return read_ids(r, param, value, out, why);
    if (!json_is_string(value))
        return request_refuse_value(why, param, value, "a text or a list of token ids");
    return encode_text(r, param, json_string_value(value), json_string_length(value), out, why);
}

static int add_prompts(struct request *x, size_t n, struct request_refusal *why)
{
    x->prompts = spw_alloc_zero(n, sizeof *x->prompts);
    if (!x->prompts)
        return request_refuse_memory(why);
    x->n_prompts = n;
    return 0;
}

/* str | [int] | [str] | [[int]] */
static int read_completion(struct request *x, const struct request_reader *r,
                           struct request_refusal *why)
{
    const json_t *prompt = json_object_get(x->body, "prompt");
    size_t n = json_array_size(prompt);
    if (n == 0 || json_is_integer(json_array_get(prompt, 0))) {
        SPW_TRY(add_prompts(x, 1, why));
        return read_prompt(r, "prompt", prompt, &x->prompts[0], why);
    }
    if (n > MOST_PROMPTS)
        return request_refuse(why, 400, "invalid_value", "prompt",
                              "prompt: found %zu prompts, expected at most %d in a line", n,
                              MOST_PROMPTS);
    SPW_TRY(add_prompts(x, n, why));
    for (size_t i = 0; i < n; i++) {
        char param[32];
        snprintf(param, sizeof param, "prompt[%zu]", i);
        SPW_TRY(read_prompt(r, param, json_array_get(prompt, i), &x->prompts[i], why));
    }
    return 0;
}

/* What the answer to a file begins with. */
static int read_begin(struct request *x, const struct request_reader *r, struct request_prompt *out,
                      struct request_refusal *why)
{
    const json_t *prompt = json_object_get(x->body, "prompt");
    const json_t *tokens = json_object_get(x->body, "tokens");
    const struct spw_encoding e = {.text = json_string_value(prompt),
                                   .bytes = json_string_length(prompt)};
    if (tokens)
        SPW_TRY(list_ids("tokens", tokens, out, why));
    else if (prompt && !json_is_string(prompt))
        return request_refuse_value(why, "prompt", prompt, "a text");
    else if (prompt)
        SPW_TRY(request_encode_prompt(r, "prompt", &e, out, why));
    return check_vocab(tokens ? "tokens" : "prompt", out,
                       spw_config_vocab(&r->model->config, false), why);
}

/* What has no meaning for several windows. */
static int check_speech(const struct request *x, struct request_refusal *why)
{
    const struct {
        const char *key, *expected;
        bool is_given;
    } rows[] = {{"n", "one answer", x->n_choices > 1},
                {"num_beams", "no search", x->beams.n_beams},
                {"stop", "no stop texts", x->stop.n},
                {"logprobs", "no log-probabilities", x->logprobs}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].is_given)
            return request_refuse(why, 400, "unsupported_value", rows[i].key,
                                  "%s: the transcription of a file has %s", rows[i].key,
                                  rows[i].expected);
    return 0;
}

static int open_speech(struct request *x, const struct request_reader *r,
                       struct request_prompt *begin, struct request_refusal *why)
{
    struct spw_error err = {0};
    const struct cli_speech_file f = {json_string_value(json_object_get(x->body, "file")), x->file,
                                      x->file_bytes, begin->tokens, begin->n};
    SPW_TRY(check_speech(x, why));
    x->speech = spw_alloc_zero(1, sizeof *x->speech);
    const int rc = x->speech ? cli_speech_open(x->speech, &r->model->config, &f, &err) : -ENOMEM;
    if (rc == -ENOMEM)
        return request_refuse_memory(why);
    if (rc)
        return request_refuse(why, 400, "invalid_file", "file", "file: %s", err.text);
    spw_free(begin->tokens); /* the windows have them */
    *begin = (struct request_prompt){.n = x->speech->n_tokens};
    return 0;
}

/* The file is the source of a model with an encoder: audio, or a text. */
static int read_source(struct request *x, const struct request_reader *r,
                       struct request_refusal *why)
{
    const struct spw_model_config *c = &r->model->config;
    struct request_prompt source = {.n = c->n_audio}, *out = &x->prompts[0];
    SPW_TRY(read_begin(x, r, out, why));
    int rc = c->n_mels ? open_speech(x, r, out, why)
                       : encode_text(r, "file", x->file, x->file_bytes, &source, why);
    if (!rc && !c->n_mels && cli_join_source(&out->tokens, &out->n, c, source.tokens, source.n))
        rc = request_refuse_memory(why);
    spw_free(source.tokens);
    if (!rc && x->max_is_default)
        x->max_new_tokens = cli_max_new_tokens(r->o, c, out->n - source.n);
    return rc;
}

static int read_file(struct request *x, const struct request_reader *r, struct request_refusal *why)
{
    int rc = r->model->config.n_source_layers
                 ? read_source(x, r, why)
                 : encode_text(r, "file", x->file, x->file_bytes, &x->prompts[0], why);
    spw_free(x->file);
    x->file = NULL;
    return rc;
}

static int read_short(struct request *x, struct request_reader *r, struct request_refusal *why)
{
    const json_t *prompt = json_object_get(x->body, "prompt");
    SPW_TRY(add_prompts(x, 1, why));
    if (x->file)
        return read_file(x, r, why);
    if (prompt && !json_is_string(prompt))
        return request_refuse_value(why, "prompt", prompt, "a text");
    if (prompt)
        return read_prompt(r, "prompt", prompt, &x->prompts[0], why);
    if (json_object_get(x->body, "messages"))
        return request_read_chat(x, r, &x->prompts[0], why);
    return read_ids(r, "tokens", json_object_get(x->body, "tokens"), &x->prompts[0], why);
}

static int read_prompts(struct request *x, struct request_reader *r, struct request_refusal *why)
{
    if (x->form == REQUEST_SHORT)
        return read_short(x, r, why);
    if (x->form == REQUEST_COMPLETION)
        return read_completion(x, r, why);
    SPW_TRY(add_prompts(x, 1, why));
    return request_read_chat(x, r, &x->prompts[0], why);
}

int request_encode(struct request *x, struct request_reader *r, struct request_refusal *why)
{
    SPW_TRY(request_read_options(x, r, why));
    if (r->model->config.n_mels && !x->file)
        return request_refuse(why, 400, "unsupported_value", "file",
                              "the model (%s) listens to audio, expected a line with \"file\": the "
                              "name of a WAV file",
                              r->model->config.model_type);
    SPW_TRY(read_prompts(x, r, why));
    if (r->model->config.stack_positions)
        x->max_new_tokens = spw_min_u64(x->max_new_tokens, r->model->config.stack_positions);
    if (x->n_prompts * x->n_choices > MOST_ANSWERS)
        return request_refuse(why, 400, "invalid_value", "n",
                              "n: found %zu prompts with %u answers to each, expected at most %d "
                              "answers in a line",
                              x->n_prompts, x->n_choices, MOST_ANSWERS);
    x->choices = spw_alloc_zero(x->n_prompts * x->n_choices, sizeof *x->choices);
    return x->choices ? 0 : request_refuse_memory(why);
}
