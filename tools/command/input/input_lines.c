/* See input_lines.h. */
#include "runtime/sampler.h"
#include "tools/command/engine.h"
#include "tools/command/input/input_lines.h"

#include <stdlib.h>
#include <string.h>

struct cli_input cli_input_defaults(const struct cli_options *o)
{
    return (struct cli_input){.max_new_tokens = o->max_new_tokens,
                              .sampling = cli_sampling(o),
                              .stop = o->stop,
                              .ignore_eos = o->ignore_eos,
                              .logprobs = cli_given(o, "logprobs"),
                              .n_top_logprobs = (uint32_t)o->top_logprobs,
                              .n = (uint32_t)o->n};
}

/* One line of the file being read. */
struct reader {
    const struct cli_model *model;
    const char *where; /* "FILE: line 3" */
};

static int refuse(const struct reader *r, const char *key, const char *expected)
{
    return cli_fail(CLI_REFUSED, "%s: \"%s\": found another kind of value, expected %s", r->where,
                    key, expected);
}

static int read_count(const struct reader *r, const char *key, const json_t *v, uint64_t max,
                      uint64_t *out)
{
    json_int_t value = json_integer_value(v);
    if (!json_is_integer(v) || value < 0)
        return refuse(r, key, "a whole number of at least 0");
    if ((uint64_t)value > max)
        return cli_fail(CLI_REFUSED, "%s: \"%s\": found %lld, expected at most %llu", r->where, key,
                        (long long)value, (unsigned long long)max);
    *out = (uint64_t)value;
    return 0;
}

static int read_float(const struct reader *r, const char *key, const json_t *v, float *out)
{
    if (!json_is_number(v))
        return refuse(r, key, "a number");
    *out = (float)json_number_value(v);
    return 0;
}

static int read_tokens(const struct reader *r, const json_t *v, struct cli_input *in)
{
    size_t n = json_array_size(v);
    if (!json_is_array(v) || n == 0)
        return refuse(r, "tokens", "a list of at least one token id");
    in->tokens = spw_alloc_zero(n, sizeof *in->tokens);
    if (!in->tokens)
        return cli_fail(CLI_FAILED, "out of memory");
    in->n_tokens = n;
    for (size_t i = 0; i < n; i++) {
        uint64_t id = 0;
        int code = read_count(r, "tokens", json_array_get(v, i), INT32_MAX, &id);
        if (code)
            return code;
        in->tokens[i] = (int32_t)id;
    }
    return 0;
}

/* Takes a string or a list of strings, borrowed from the JSON of the line. */
static int read_stop(const struct reader *r, const json_t *v, struct cli_input *in)
{
    size_t n = json_is_string(v) ? 1 : json_array_size(v);
    in->stop = (struct cli_strings){.items = spw_alloc_zero(n, sizeof *in->stop.items)};
    if (!in->stop.items)
        return cli_fail(CLI_FAILED, "out of memory");
    if (!json_is_string(v) && !json_is_array(v))
        return refuse(r, "stop", "a string or a list of strings");
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_is_string(v) ? v : json_array_get(v, i);
        if (!json_is_string(item) || json_string_length(item) == 0)
            return refuse(r, "stop", "strings that are not empty");
        in->stop.items[in->stop.n++] = json_string_value(item);
    }
    return 0;
}

/* {"ID": X, ...} */
static int read_biases(const struct reader *r, json_t *v, struct cli_input *in)
{
    static const char expected[] = "an object with a number for each token id";
    const char *id;
    json_t *bias;
    size_t n = 0;
    if (!json_is_object(v))
        return refuse(r, "logit_bias", expected);
    in->biases = spw_alloc_zero(json_object_size(v), sizeof *in->biases);
    if (!in->biases)
        return cli_fail(CLI_FAILED, "out of memory");
    json_object_foreach(v, id, bias)
    {
        unsigned long long token = strtoull(id, NULL, 10);
        if (!*id || id[strspn(id, "0123456789")] || token > INT32_MAX || !json_is_number(bias))
            return refuse(r, "logit_bias", expected);
        in->biases[n++] = (struct spw_logit_bias){(int32_t)token, (float)json_number_value(bias)};
    }
    in->sampling.logit_bias = in->biases;
    in->sampling.n_logit_bias = n;
    return 0;
}

static const struct {
    const char *key;
    size_t at;
} numbers[] = {
    {"temperature", offsetof(struct spw_sampling, temperature)},
    {"top_p", offsetof(struct spw_sampling, top_p)},
    {"min_p", offsetof(struct spw_sampling, min_p)},
    {"repetition_penalty", offsetof(struct spw_sampling, repetition_penalty)},
    {"presence_penalty", offsetof(struct spw_sampling, presence_penalty)},
    {"frequency_penalty", offsetof(struct spw_sampling, frequency_penalty)},
};

static int read_small(const struct reader *r, const char *key, const json_t *v, uint32_t max,
                      uint32_t *out)
{
    uint64_t count = 0;
    int code = read_count(r, key, v, max, &count);
    *out = (uint32_t)count;
    return code;
}

static int read_key(const struct reader *r, const char *key, json_t *v, struct cli_input *in)
{
    static const char *const known[] = {"prompt",
                                        "tokens",
                                        "max_new_tokens",
                                        "seed",
                                        "temperature",
                                        "top_k",
                                        "top_p",
                                        "min_p",
                                        "repetition_penalty",
                                        "presence_penalty",
                                        "frequency_penalty",
                                        "logit_bias",
                                        "logprobs",
                                        "n",
                                        "stop",
                                        "ignore_eos",
                                        "id"};
    struct spw_sampling *s = &in->sampling;
    if (strcmp(key, "prompt") == 0) {
        char source[320];
        snprintf(source, sizeof source, "%s: \"prompt\"", r->where);
        if (!json_is_string(v))
            return refuse(r, key, "a text");
        if (!r->model->tokenizer)
            return cli_fail(CLI_REFUSED,
                            "%s: \"prompt\": the model has no tokenizer.json; give \"tokens\"",
                            r->where);
        return cli_encode(r->model->tokenizer, source, json_string_value(v), json_string_length(v),
                          true, &in->tokens, &in->n_tokens);
    }
    if (strcmp(key, "tokens") == 0)
        return read_tokens(r, v, in);
    if (strcmp(key, "max_new_tokens") == 0)
        return read_count(r, key, v, 1000000000, &in->max_new_tokens);
    if (strcmp(key, "seed") == 0)
        return read_count(r, key, v, UINT64_MAX, &s->seed);
    if (strcmp(key, "top_k") == 0)
        return read_small(r, key, v, UINT32_MAX, &s->top_k);
    if (strcmp(key, "n") == 0)
        return json_integer_value(v) < 1 ? refuse(r, key, "a whole number of at least 1")
                                         : read_small(r, key, v, 128, &in->n);
    if (strcmp(key, "logprobs") == 0) {
        in->logprobs = true;
        return read_small(r, key, v, 20, &in->n_top_logprobs);
    }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (strcmp(key, numbers[i].key) == 0)
            return read_float(r, key, v, (float *)(void *)((char *)s + numbers[i].at));
    if (strcmp(key, "logit_bias") == 0)
        return read_biases(r, v, in);
    if (strcmp(key, "stop") == 0 && !r->model->tokenizer)
        return cli_fail(CLI_REFUSED, "%s: \"stop\": the model has no tokenizer.json", r->where);
    if (strcmp(key, "stop") == 0)
        return read_stop(r, v, in);
    if (strcmp(key, "ignore_eos") == 0) {
        in->ignore_eos = json_is_true(v);
        return json_is_boolean(v) ? 0 : refuse(r, key, "true or false");
    }
    if (strcmp(key, "id") == 0) /* any value: it is copied to the answer */
        return 0;
    const char *nearest = cli_nearest(key, known, sizeof known / sizeof *known);
    return cli_fail(CLI_REFUSED, "%s: found the unknown key \"%s\"%s%s%s", r->where, key,
                    nearest ? "; did you mean \"" : "", nearest ? nearest : "",
                    nearest ? "\"?" : "");
}

static int read_line(struct cli_input *in, const struct cli_options *o, const struct cli_model *m,
                     const char *where, const char *text, size_t bytes)
{
    struct reader r = {.model = m, .where = where};
    struct spw_error err = {0};
    char source[320];
    json_error_t json_error;
    *in = cli_input_defaults(o);
    json_t *line = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &json_error);
    if (!json_is_object(line)) {
        int code = cli_fail(
            CLI_REFUSED, "%s: %s%s, expected an object with \"prompt\" or \"tokens\"", where,
            line ? "found another value" : "found no JSON: ", line ? "" : json_error.text);
        json_decref(line);
        return code;
    }
    in->line = line;
    bool own_stop = json_object_get(line, "stop");
    int code = 0;
    if (!own_stop && o->stop.n > 0) { /* a copy: every line owns its list */
        in->stop.items = spw_alloc_zero(o->stop.n, sizeof *in->stop.items);
        if (!in->stop.items)
            return cli_fail(CLI_FAILED, "out of memory");
        memcpy(in->stop.items, o->stop.items, o->stop.n * sizeof *in->stop.items);
    } else {
        in->stop = (struct cli_strings){0};
    }
    if (!json_object_get(line, "prompt") == !json_object_get(line, "tokens"))
        return cli_fail(CLI_REFUSED, "%s: found %s, expected one of \"prompt\" and \"tokens\"",
                        where, json_object_get(line, "prompt") ? "both" : "neither");
    const char *key;
    json_t *value;
    json_object_foreach(line, key, value)
    {
        code = read_key(&r, key, value, in);
        if (code)
            return code;
    }
    if (spw_sampling_check(&in->sampling, &err) < 0)
        return cli_fail(CLI_REFUSED, "%s: %s", where, err.text);
    snprintf(source, sizeof source, "%s: \"logit_bias\"", where);
    code = cli_check_biases(source, &in->sampling, m->config.vocab);
    return code ? code : cli_check_ids(where, in->tokens, in->n_tokens, m->config.vocab);
}

static int add_line(struct cli_inputs *in, struct cli_input **item)
{
    /* The capacity is a power of two; the list grows when it is full. */
    if ((in->n & (in->n - 1)) == 0) {
        size_t capacity = in->n ? 2 * in->n : 1;
        struct cli_input *grown = spw_realloc(in->items, capacity * sizeof *grown);
        if (!grown)
            return cli_fail(CLI_FAILED, "out of memory");
        in->items = grown;
    }
    *item = &in->items[in->n++];
    **item = (struct cli_input){0};
    return 0;
}

/* The line that was read last gets the inputs of its other answers. */
static int add_choices(struct cli_inputs *in)
{
    const size_t first = in->n - 1;
    const uint32_t n = in->items[first].n;
    int code = 0;
    for (uint32_t k = 1; k < n && !code; k++) {
        struct cli_input *item = NULL;
        code = add_line(in, &item);
        if (!item)
            break;
        *item = in->items[first];
        item->choice = k;
        item->sampling.stream = k;
    }
    return code;
}

int cli_read_lines(struct cli_inputs *in, const struct cli_options *o, const struct cli_model *m)
{
    char *text;
    size_t bytes, number = 0, index = 0;
    int code = cli_read_file(o->prompts, &text, &bytes);
    if (code)
        return code;
    for (const char *at = text, *end = text + bytes; at < end && code == 0;) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        size_t length = (size_t)((stop ? stop : end) - at);
        char where[256];
        snprintf(where, sizeof where, "%.200s: line %zu", o->prompts, ++number);
        struct cli_input *item = NULL;
        if (strspn(at, " \t\r") < length) { /* blank lines are ignored */
            code = add_line(in, &item);
            if (code == 0)
                code = read_line(item, o, m, where, at, length);
            if (item) {
                item->number = number;
                item->index = index++;
            }
            if (code == 0)
                code = add_choices(in);
        }
        at += length + (stop != NULL);
    }
    spw_free(text);
    if (code == 0 && in->n == 0)
        code =
            cli_fail(CLI_REFUSED, "%s: found no lines, expected at least one prompt", o->prompts);
    return code;
}
