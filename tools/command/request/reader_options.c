/* See reader_parts.h. The keys are those of OpenAI's bodies with a few of vLLM's, and those of
 * short lines. A key is done, or ignored, or refused by name. */
#include "tools/command/request/reader_parts.h"

#include "tools/command/engine.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum {
    SHORT = 1 << REQUEST_SHORT,
    CHAT = 1 << REQUEST_CHAT,
    COMPLETION = 1 << REQUEST_COMPLETION,
    OPENAI = CHAT | COMPLETION,
    ALL = SHORT | OPENAI,
};

/* Defaults of max_new_tokens. OpenAI's default for completions is 16. */
enum { CHAT_TOKENS = 4096, COMPLETION_TOKENS = 16 };

struct key {
    const char *name;
    unsigned forms;
    /* NULL: another part of the program reads the key, or nobody does. */
    int (*read)(struct request *x, const struct key *key, const json_t *value,
                struct request_refusal *why);
    double min, max;
    size_t at; /* of the field in struct request */
};

/* ---- values ---- */

int request_refuse_support(struct request_refusal *why, const char *key, const json_t *value,
                           const char *reason)
{
    char text[64];
    return request_refuse(why, 400, "unsupported_value", key, "%s: found %s, but %s", key,
                          request_found(value, text), reason);
}

static void *field(struct request *x, const struct key *key)
{
    return (char *)x + key->at;
}

static int check_range(const struct key *key, const json_t *value, bool is_right_type,
                       const char *what, struct request_refusal *why)
{
    char expected[96];
    double x = json_number_value(value);
    if (is_right_type && x >= key->min && x <= key->max)
        return 0;
    snprintf(expected, sizeof expected, "%s from %.10g to %.10g", what, key->min, key->max);
    return request_refuse_value(why, key->name, value, expected);
}

static int check_count(const struct key *key, const json_t *value, struct request_refusal *why)
{
    return check_range(key, value, json_is_integer(value), "a whole number", why);
}

static int read_number(struct request *x, const struct key *key, const json_t *value,
                       struct request_refusal *why)
{
    SPW_TRY(check_range(key, value, json_is_number(value), "a number", why));
    *(float *)field(x, key) = (float)json_number_value(value);
    return 0;
}

static int read_count(struct request *x, const struct key *key, const json_t *value,
                      struct request_refusal *why)
{
    SPW_TRY(check_count(key, value, why));
    *(uint32_t *)field(x, key) = (uint32_t)json_integer_value(value);
    return 0;
}

static int read_bool(struct request *x, const struct key *key, const json_t *value,
                     struct request_refusal *why)
{
    if (!json_is_boolean(value))
        return request_refuse_value(why, key->name, value, "true or false");
    *(bool *)field(x, key) = json_is_true(value);
    return 0;
}

/* ---- keys with a meaning of their own ---- */

static int read_max_tokens(struct request *x, const struct key *key, const json_t *value,
                           struct request_refusal *why)
{
    SPW_TRY(check_count(key, value, why));
    x->max_new_tokens = (uint64_t)json_integer_value(value);
    x->max_is_default = false;
    return 0;
}

static int read_model(struct request *x, const struct key *key, const json_t *value,
                      struct request_refusal *why)
{
    (void)x; /* record.h copies the name */
    return json_is_string(value) ? 0 : request_refuse_value(why, key->name, value, "a text");
}

/* A seed of OpenAI's may be negative. */
static int read_seed(struct request *x, const struct key *key, const json_t *value,
                     struct request_refusal *why)
{
    if (!json_is_integer(value) || (x->form == REQUEST_SHORT && json_integer_value(value) < 0))
        return request_refuse_value(why, key->name, value,
                                    x->form == REQUEST_SHORT ? "a whole number of at least 0"
                                                             : "a whole number");
    x->sampling.seed = (uint64_t)json_integer_value(value);
    return 0;
}

/* vLLM's -1 means off, as 0 does. */
static int read_top_k(struct request *x, const struct key *key, const json_t *value,
                      struct request_refusal *why)
{
    SPW_TRY(check_count(key, value, why));
    json_int_t k = json_integer_value(value);
    x->sampling.top_k = k < 0 ? 0 : (uint32_t)k;
    return 0;
}

/* To the sampler 0 means off. In an OpenAI body it leaves the most likely token alone. */
static int read_top_p(struct request *x, const struct key *key, const json_t *value,
                      struct request_refusal *why)
{
    SPW_TRY(read_number(x, key, value, why));
    if (x->form != REQUEST_SHORT && x->sampling.top_p == 0)
        x->sampling.top_p = FLT_MIN;
    return 0;
}

static int read_stop(struct request *x, const struct key *key, const json_t *value,
                     struct request_refusal *why)
{
    enum { MOST_STOPS = 1024 }; /* each is compared with each byte of each answer */
    size_t n = json_is_array(value) ? json_array_size(value) : 1;
    if (n > MOST_STOPS)
        return request_refuse(why, 400, "invalid_value", key->name,
                              "stop: found %zu texts, expected at most %d", n, MOST_STOPS);
    const char **items = spw_alloc_zero(n ? n : 1, sizeof *items);
    if (!items)
        return request_refuse_memory(why);
    spw_free(x->stop.items);
    x->stop = (struct cli_strings){.items = items};
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_is_array(value) ? json_array_get(value, i) : value;
        if (!json_is_string(item))
            return request_refuse_value(why, key->name, item, "a text or a list of texts");
        items[x->stop.n++] = json_string_value(item);
        if (json_string_length(item) == 0 ||
            strlen(json_string_value(item)) != json_string_length(item))
            return request_refuse_value(why, key->name, item,
                                        "a text that is not empty and has no NUL character");
    }
    return 0;
}

/* {"ID": BIAS, ...} */
static int read_logit_bias(struct request *x, const struct key *key, const json_t *value,
                           struct request_refusal *why)
{
    static const char expected[] = "an object of token ids with numbers from -100 to 100";
    const char *name;
    const json_t *bias;
    if (!json_is_object(value))
        return request_refuse_value(why, key->name, value, expected);
    x->logit_bias = spw_alloc_zero(json_object_size(value) + 1, sizeof *x->logit_bias);
    if (!x->logit_bias)
        return request_refuse_memory(why);
    x->sampling.logit_bias = x->logit_bias;
    x->sampling.n_logit_bias = 0;
    json_object_foreach((json_t *)value, name, bias)
    {
        const size_t digits = strspn(name, "0123456789");
        const double b = json_number_value(bias);
        /* "05" would be a second bias of token 5. */
        if (digits == 0 || digits > 9 || name[digits] || (*name == '0' && digits > 1))
            return request_refuse(why, 400, "invalid_value", key->name,
                                  "logit_bias: found the key \"%.40s\", expected a token id", name);
        if (!json_is_number(bias) || !(b >= -100 && b <= 100))
            return request_refuse_value(why, key->name, bias, expected);
        x->logit_bias[x->sampling.n_logit_bias++] =
            (struct spw_logit_bias){.token = atoi(name), .bias = (float)b};
    }
    return 0;
}

/* 0 means off, whatever the model's files say. */
static int read_rule(struct request *x, const struct key *key, const json_t *value,
                     struct request_refusal *why)
{
    SPW_TRY(check_count(key, value, why));
    const json_int_t n = json_integer_value(value);
    *(uint64_t *)field(x, key) = n ? (uint64_t)n : SPW_NONE;
    return 0;
}

/* A token, or a list of tokens. */
static int read_tokens(struct request *x, const struct key *key, const json_t *value,
                       struct request_refusal *why)
{
    struct spw_token_list *list = field(x, key);
    const size_t n = json_is_array(value) ? json_array_size(value) : 1;
    int32_t **own = &x->token_lists[list - x->sampling.rules.lists];
    *own = spw_alloc_zero(n, sizeof **own);
    if (!*own)
        return request_refuse_memory(why);
    *list = (struct spw_token_list){*own, n};
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_is_array(value) ? json_array_get(value, i) : value;
        const json_int_t id = json_integer_value(item);
        if (!json_is_integer(item) || id < 0 || id > INT32_MAX)
            return request_refuse_value(why, key->name, item, "a token id or a list of token ids");
        (*own)[i] = (int32_t)id;
    }
    return 0;
}

/* A chat says whether, and top_logprobs how many. Other lines give the number of alternatives. */
static int read_chat_logprobs(struct request *x, const struct key *key, const json_t *value,
                              struct request_refusal *why)
{
    x->n_top_logprobs = 0;
    return read_bool(x, key, value, why);
}

static int read_logprobs(struct request *x, const struct key *key, const json_t *value,
                         struct request_refusal *why)
{
    SPW_TRY(check_count(key, value, why));
    x->logprobs = true;
    x->n_top_logprobs = (uint32_t)json_integer_value(value);
    return 0;
}

static int read_top_logprobs(struct request *x, const struct key *key, const json_t *value,
                             struct request_refusal *why)
{
    SPW_TRY(read_count(x, key, value, why));
    if (x->logprobs || x->n_top_logprobs == 0)
        return 0;
    return request_refuse(why, 400, "invalid_value", key->name,
                          "top_logprobs: found %u without \"logprobs\": true, expected both",
                          x->n_top_logprobs);
}

/* ---- beams ---- */

static const char num_beams[] = "num_beams";

/* What clients write for a key that they do not use. */
static bool says_nothing(const json_t *value)
{
    return !value || json_is_null(value) || json_is_false(value) ||
           (json_is_array(value) && !json_array_size(value));
}

/* Whether the line makes the search of the options: it says nothing of one, and nothing that no
 * search has. */
static bool obeys_search(const struct request *x, const struct cli_options *o)
{
    const json_t *format = json_object_get(x->body, "response_format");
    const char *type = json_string_value(json_object_get(format, "type"));
    bool any = o->num_beams < 2 || !says_nothing(json_object_get(x->body, num_beams)) ||
               !(says_nothing(format) || (type && !strcmp(type, "text")));
    for (size_t i = 0; cli_no_beams[i]; i++) {
        const json_t *value = json_object_get(x->body, cli_no_beams[i]);
        const bool is_one = !strcmp(cli_no_beams[i], "n") && json_integer_value(value) == 1;
        any |= !is_one && !says_nothing(value);
    }
    return !any;
}

uint32_t request_sessions(const struct request *x, const struct request_reader *r)
{
    const json_int_t n = obeys_search(x, r->o)
                             ? (json_int_t)r->o->num_beams
                             : json_integer_value(json_object_get(x->body, num_beams));
    return n > 1 && n <= SPW_BEAMS_MOST ? (uint32_t)n : 1;
}

/* One beam is no search. Without a temperature, as a search has none. */
static int read_beams(struct request *x, const struct key *key, const json_t *value,
                      struct request_refusal *why)
{
    SPW_TRY(read_count(x, key, value, why));
    if (x->beams.n_beams > 1 && x->n_choices > 1)
        return request_refuse(why, 400, "invalid_value", "n",
                              "n: found %u with \"num_beams\", expected \"num_return_sequences\"",
                              x->n_choices);
    if (x->beams.n_beams > 1 && says_nothing(json_object_get(x->body, "temperature")))
        x->sampling.temperature = 0;
    x->beams.n_beams = x->beams.n_beams > 1 ? x->beams.n_beams : 0;
    return 0;
}

static int read_early_stopping(struct request *x, const struct key *key, const json_t *value,
                               struct request_refusal *why)
{
    const char *text = json_string_value(value);
    if (!json_is_boolean(value) && !(text && !strcmp(text, "never")))
        return request_refuse_value(why, key->name, value, "true, false or \"never\"");
    x->beams.early_stopping = text                  ? SPW_BEAMS_NEVER_EARLY
                              : json_is_true(value) ? SPW_BEAMS_STOP_EARLY
                                                    : SPW_BEAMS_STOP_LATE;
    return 0;
}

static int read_return(struct request *x, const struct key *key, const json_t *value,
                       struct request_refusal *why)
{
    SPW_TRY(check_count(key, value, why));
    if (json_integer_value(value) > spw_max_u32(x->beams.n_beams, 1))
        return request_refuse_value(why, key->name, value, "at most \"num_beams\"");
    if (x->beams.n_beams)
        x->n_choices = (uint32_t)json_integer_value(value);
    return 0;
}

/* ---- keys that are refused ---- */

static int refuse_stream(struct request *x, const struct key *key, const json_t *value,
                         struct request_refusal *why)
{
    (void)x;
    if (json_is_false(value))
        return 0;
    return request_refuse_support(why, key->name, value,
                                  "a job writes whole answers: leave the key out");
}

static int read_best_of(struct request *x, const struct key *key, const json_t *value,
                        struct request_refusal *why)
{
    SPW_TRY(check_count(key, value, why));
    if (json_integer_value(value) == x->n_choices)
        return 0;
    return request_refuse_support(
        why, key->name, value, "spillway gives all answers that it makes: ask for more with \"n\"");
}

static int refuse_suffix(struct request *x, const struct key *key, const json_t *value,
                         struct request_refusal *why)
{
    (void)x;
    if (json_is_string(value) && json_string_length(value) == 0)
        return 0;
    return request_refuse_support(
        why, key->name, value,
        "spillway continues texts and does not fill gaps: leave the key out");
}

static int read_response_format(struct request *x, const struct key *key, const json_t *value,
                                struct request_refusal *why)
{
    const json_t *type = json_object_get(value, "type");
    const char *name = json_string_value(type);
    const json_t *given = json_object_get(value, "json_schema");
    struct spw_error err = {0};
    if (!name)
        return request_refuse_value(why, key->name, value, "an object with a \"type\"");
    if (strcmp(name, "text") == 0)
        return 0;
    if (strcmp(name, "json_object") == 0)
        return spw_grammar_open_json(&x->grammar, &err) ? request_refuse_memory(why) : 0;
    if (strcmp(name, "json_schema") != 0)
        return request_refuse_value(why, "response_format.type", type,
                                    "\"text\", \"json_object\" or \"json_schema\"");
    char *schema = spw_json_dump(json_object_get(given, "schema"), JSON_ENCODE_ANY);
    int rc = schema ? spw_grammar_open_schema(&x->grammar, schema, strlen(schema), &err)
                    : spw_fail(&err, -EINVAL, "json_schema.schema: found nothing");
    spw_free(schema);
    if (rc == -ENOMEM)
        return request_refuse_memory(why);
    const char *title = json_string_value(json_object_get(given, "name"));
    return rc ? request_refuse(why, 400, "invalid_value", key->name,
                               "Invalid schema for response_format '%s': %s", title ? title : "",
                               err.text)
              : 0;
}

static int read_tool_choice(struct request *x, const struct key *key, const json_t *value,
                            struct request_refusal *why)
{
    (void)x;
    const char *name = json_string_value(value);
    const json_t *function = json_object_get(json_object_get(value, "function"), "name");
    if (json_is_string(function) ||
        (name && (!strcmp(name, "none") || !strcmp(name, "auto") || !strcmp(name, "required"))))
        return 0;
    return request_refuse_value(why, key->name, value,
                                "\"auto\", \"none\", \"required\" or a function");
}

/* ---- the table ---- */

#define AT(member) offsetof(struct request, member)

/* In the order in which keys are read: a later key may need an earlier one. */
static const struct key keys[] = {
    /* read by reader.c, reader_chat.c, reader_encode.c */
    {"id", SHORT, NULL, 0, 0, 0},
    {"model", OPENAI, read_model, 0, 0, 0},
    {"prompt", SHORT | COMPLETION, NULL, 0, 0, 0},
    {"messages", SHORT | CHAT, NULL, 0, 0, 0},
    {"tokens", SHORT, NULL, 0, 0, 0},
    {"file", SHORT, NULL, 0, 0, 0},
    {"tools", SHORT | CHAT, NULL, 0, 0, 0},
    {"chat_template_kwargs", SHORT | CHAT, NULL, 0, 0, 0},
    {"reasoning_effort", CHAT, NULL, 0, 0, 0},
    {"add_generation_prompt", CHAT, NULL, 0, 0, 0},
    {"continue_final_message", CHAT, NULL, 0, 0, 0},

    {"stream", OPENAI, refuse_stream, 0, 0, 0},
    {"stream_options", OPENAI, refuse_stream, 0, 0, 0},
    {"max_new_tokens", SHORT, read_max_tokens, 0, 1e9, 0},
    {"max_tokens", COMPLETION, read_max_tokens, 0, 1e9, 0},
    {"max_tokens", CHAT, read_max_tokens, 1, 1e9, 0},
    {"max_completion_tokens", CHAT, read_max_tokens, 1, 1e9, 0},
    {"min_tokens", OPENAI, read_rule, 0, 1e9, AT(sampling.rules.min_new_tokens)},
    {"n", ALL, read_count, 1, 128, AT(n_choices)},
    {"best_of", COMPLETION, read_best_of, 1, 128, 0},
    {"temperature", ALL, read_number, 0, 1e6, AT(sampling.temperature)},
    {"top_k", SHORT, read_top_k, 0, UINT32_MAX, 0},
    {"top_k", OPENAI, read_top_k, -1, UINT32_MAX, 0},
    {"top_p", ALL, read_top_p, 0, 1, AT(sampling.top_p)},
    {"min_p", ALL, read_number, 0, 1, AT(sampling.min_p)},
    {"repetition_penalty", ALL, read_number, 0.001, 1000, AT(sampling.repetition_penalty)},
    {"presence_penalty", ALL, read_number, -2, 2, AT(sampling.presence_penalty)},
    {"frequency_penalty", ALL, read_number, -2, 2, AT(sampling.frequency_penalty)},
    {num_beams, ALL, read_beams, 1, SPW_BEAMS_MOST, AT(beams.n_beams)},
    {"num_beam_groups", ALL, read_count, 1, SPW_BEAMS_MOST, AT(beams.n_groups)},
    {"diversity_penalty", ALL, read_number, 0, 1e6, AT(beams.diversity_penalty)},
    {"length_penalty", ALL, read_number, -30, 30, AT(beams.length_penalty)},
    {"early_stopping", ALL, read_early_stopping, 0, 0, 0},
    {"num_return_sequences", ALL, read_return, 1, SPW_BEAMS_MOST, 0},
    {"no_repeat_ngram_size", ALL, read_rule, 0, 1e9, AT(sampling.rules.no_repeat_ngram_size)},
    {"min_length", ALL, read_rule, 0, 1e9, AT(sampling.rules.min_length)},
    {"min_new_tokens", ALL, read_rule, 0, 1e9, AT(sampling.rules.min_new_tokens)},
    {"forced_bos_token_id", ALL, read_tokens, 0, 0, AT(sampling.rules.lists[SPW_FORCED_BOS])},
    {"forced_eos_token_id", ALL, read_tokens, 0, 0, AT(sampling.rules.lists[SPW_FORCED_EOS])},
    {"suppress_tokens", ALL, read_tokens, 0, 0, AT(sampling.rules.lists[SPW_SUPPRESS])},
    {"begin_suppress_tokens", ALL, read_tokens, 0, 0, AT(sampling.rules.lists[SPW_BEGIN_SUPPRESS])},
    {"logit_bias", ALL, read_logit_bias, 0, 0, 0},
    {"seed", ALL, read_seed, 0, 0, 0},
    {"stop", ALL, read_stop, 0, 0, 0},
    {"ignore_eos", ALL, read_bool, 0, 0, AT(ignore_eos)},
    {"echo", COMPLETION, read_bool, 0, 0, AT(echo)},
    {"logprobs", CHAT, read_chat_logprobs, 0, 0, AT(logprobs)},
    {"top_logprobs", CHAT, read_top_logprobs, 0, 20, AT(n_top_logprobs)},
    {"logprobs", COMPLETION, read_logprobs, 0, 5, 0},
    {"logprobs", SHORT, read_logprobs, 0, 20, 0},
    {"suffix", COMPLETION, refuse_suffix, 0, 0, 0},
    {"response_format", OPENAI, read_response_format, 0, 0, 0},
    {"tool_choice", CHAT, read_tool_choice, 0, 0, 0},
};
enum { N_KEYS = sizeof keys / sizeof *keys };

/* A typing error in an option would change answers: a short line refuses keys that it does not
 * know. Clients send OpenAI bodies with keys of many servers. */
static int check_known(const struct request *x, struct request_refusal *why)
{
    const char *names[N_KEYS], *name;
    const json_t *value;
    size_t n = 0;
    for (size_t i = 0; i < N_KEYS; i++)
        if (keys[i].forms & SHORT)
            names[n++] = keys[i].name;
    json_object_foreach((json_t *)x->line, name, value)
    {
        size_t i = 0;
        while (i < n && strcmp(name, names[i]) != 0)
            i++;
        const char *nearest = i < n ? NULL : cli_nearest(name, names, n);
        if (i == n)
            return request_refuse(
                why, 400, "unknown_parameter", name, "found the unknown key \"%.80s\"%s%s%s", name,
                nearest ? "; did you mean \"" : "", nearest ? nearest : "", nearest ? "\"?" : "");
    }
    return 0;
}

/* ---- defaults ---- */

/* OpenAI draws a seed. Here a job that runs again must give the same answers: the seed is a
 * function of the id, of at most 53 bits, which every reader of JSON keeps exactly. */
static uint64_t seed_of(const json_t *id)
{
    return XXH3_64bits(json_string_value(id), json_string_length(id)) >> 11;
}

static int copy_stops(struct request *x, const struct cli_strings *stop,
                      struct request_refusal *why)
{
    x->stop.items = spw_alloc_zero(stop->n + 1, sizeof *x->stop.items);
    if (!x->stop.items)
        return request_refuse_memory(why);
    if (stop->n > 0)
        memcpy(x->stop.items, stop->items, stop->n * sizeof *x->stop.items);
    x->stop.n = stop->n;
    return 0;
}

static int set_defaults(struct request *x, const struct request_reader *r,
                        struct request_refusal *why)
{
    const struct cli_options *o = r->o;
    x->sampling = cli_sampling(o);
    x->max_new_tokens = cli_max_new_tokens(o, &r->model->config, 1);
    x->max_is_default = !cli_given(o, "max-new-tokens");
    x->n_choices = (uint32_t)o->n;
    x->beams = cli_beams(o);
    if (!obeys_search(x, o))
        x->beams.n_beams = 0;
    x->logprobs = cli_given(o, "logprobs");
    x->n_top_logprobs = (uint32_t)o->top_logprobs;
    x->ignore_eos = o->ignore_eos;
    if (x->form != REQUEST_SHORT) {
        if (!cli_given(o, "temperature") && !x->beams.n_beams)
            x->sampling.temperature = 1;
        if (!cli_given(o, "seed"))
            x->sampling.seed = seed_of(x->id);
        if (x->max_is_default)
            x->max_new_tokens = x->form == REQUEST_CHAT ? CHAT_TOKENS : COMPLETION_TOKENS;
    }
    return copy_stops(x, &o->stop, why);
}

static int check_list(const struct request *x, enum spw_token_list_kind kind, uint32_t vocab,
                      struct request_refusal *why)
{
    const struct spw_token_list *list = &x->sampling.rules.lists[kind];
    const char *name = spw_token_list_name(kind);
    if (list->n > vocab) /* each answer has a copy */
        return request_refuse(why, 400, "invalid_value", name,
                              "%s: found %zu token ids, expected at most %u", name, list->n, vocab);
    for (size_t i = 0; i < list->n; i++)
        if ((uint32_t)list->ids[i] >= vocab)
            return request_refuse(why, 400, "invalid_value", name,
                                  "%s: found token id %d, expected 0 to %u", name,
                                  (int)list->ids[i], vocab - 1);
    return 0;
}

/* What a key alone does not show. */
static int check_together(const struct request *x, const struct request_reader *r,
                          struct request_refusal *why)
{
    if (x->echo && x->logprobs && r->model->config.n_source_layers)
        return request_refuse(why, 400, "unsupported_value", "echo",
                              "echo: found true with logprobs, but the encoder of this model reads "
                              "the prompt, so tokens of the prompt have no probabilities");
    if (x->stop.n > 0 && !r->model->tokenizer)
        return request_refuse(why, 400, "unsupported_value", "stop",
                              "stop: the model has no tokenizer, and its answers have no text");
    for (size_t i = 0; i < x->sampling.n_logit_bias; i++)
        if ((uint32_t)x->sampling.logit_bias[i].token >= r->model->config.vocab)
            return request_refuse(why, 400, "invalid_value", "logit_bias",
                                  "logit_bias: found token id %d, expected 0 to %u",
                                  (int)x->sampling.logit_bias[i].token, r->model->config.vocab - 1);
    for (int k = 0; k < SPW_TOKEN_LISTS; k++)
        SPW_TRY(check_list(x, (enum spw_token_list_kind)k, r->model->config.vocab, why));
    return 0;
}

int request_read_options(struct request *x, const struct request_reader *r,
                         struct request_refusal *why)
{
    const json_t *body = x->body;
    SPW_TRY(set_defaults(x, r, why));
    if (x->form == REQUEST_SHORT)
        SPW_TRY(check_known(x, why));
    for (size_t i = 0; i < N_KEYS; i++) {
        const json_t *value = json_object_get(body, keys[i].name);
        bool absent = !value || (x->form != REQUEST_SHORT && json_is_null(value));
        if (keys[i].read && keys[i].forms & 1u << x->form && !absent)
            SPW_TRY(keys[i].read(x, &keys[i], value, why));
    }
    return check_together(x, r, why);
}
