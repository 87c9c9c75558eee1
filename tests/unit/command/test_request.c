/* Lines of a job: every form and key with right values, wrong types and values out of range,
 * unusual ids, files, broken JSON, and an allocation that fails anywhere. */
#include "tests/job_world.h"

#include <glob.h>
#include <float.h>

/* ---- reading ---- */

static int parse(struct request *x, const char *line, size_t bytes, struct request_refusal *why)
{
    memset(why, 0, sizeof *why);
    int rc = request_parse(x, &reader, line, bytes, 7, why);
    CHECK(!rc == !why->message[0] && x->number == 7);
    return rc;
}

static int read_line(struct request *x, const char *line, struct request_refusal *why)
{
    int rc = parse(x, line, strlen(line), why);
    if (!rc)
        rc = request_encode(x, &reader, why);
    CHECK(!rc == !why->message[0]);
    return rc;
}

/* The line of a body, or the short line with these keys. */
static const char *line_of(enum request_form form, const char *keys)
{
    static char line[1024];
    const char *url = form == REQUEST_CHAT ? "chat/completions" : "completions";
    if (form == REQUEST_SHORT)
        snprintf(line, sizeof line, "{\"id\": 1, %s}", keys);
    else
        snprintf(line, sizeof line,
                 "{\"custom_id\": \"a\", \"method\": \"POST\", \"url\": \"/v1/%s\", \"body\": "
                 "{%s}}",
                 url, keys);
    return line;
}

/* ---- phase 1 ---- */

struct parsed {
    const char *line;
    const char *id; /* as JSON; NULL: none */
    enum request_form form;
    int status; /* -1: the line is right */
    const char *code, *message;
};

#define CHAT_URL "\"url\": \"/v1/chat/completions\""

static const struct parsed lines[] = {
    {"{\"prompt\": \"x\"}", NULL, REQUEST_SHORT, -1, NULL, NULL},
    {"{\"id\": null, \"tokens\": [1]}", NULL, REQUEST_SHORT, -1, NULL, NULL},
    {"{\"id\": 7, \"messages\": []}", "7", REQUEST_SHORT, -1, NULL, NULL},
    {"{\"id\": [1, {\"a\": 2}], \"prompt\": \"x\"}", "[1,{\"a\":2}]", REQUEST_SHORT, -1, NULL,
     NULL},
    {"{\"id\": \"a\\n\\\"\\u0000\", \"prompt\": \"x\"}", "\"a\\n\\\"\\u0000\"", REQUEST_SHORT, -1,
     NULL, NULL},
    {"{\"custom_id\": \"a\\\"\\n\", " CHAT_URL ", \"body\": {}}", "\"a\\\"\\n\"", REQUEST_CHAT, -1,
     NULL, NULL},
    {"{\"custom_id\": \"\", \"url\": \"/v1/completions\", \"body\": {}}", "\"\"",
     REQUEST_COMPLETION, -1, NULL, NULL},
    /* short lines */
    {"{\"id\": 1}", "1", REQUEST_SHORT, 400, "missing_required_parameter",
     "found no prompt, expected"},
    {"{\"id\": 1, \"prompt\": \"x\", \"tokens\": [1]}", "1", REQUEST_SHORT, 400, "invalid_value",
     "found both \"prompt\" and \"tokens\""},
    /* lines of a batch file */
    {"{\"custom_id\": 5, " CHAT_URL ", \"body\": {}}", "5", REQUEST_CHAT, 0, "invalid_value",
     "custom_id: found 5, expected a text"},
    {"{" CHAT_URL ", \"body\": {}}", NULL, REQUEST_CHAT, 0, "missing_required_parameter",
     "custom_id: found nothing, expected a text"},
    {"{\"custom_id\": \"a\", \"body\": {}}", "\"a\"", REQUEST_CHAT, 0, "missing_required_parameter",
     "url: found nothing, expected \"/v1/chat/completions\" or \"/v1/completions\""},
    {"{\"custom_id\": \"a\", \"url\": \"/v1/embeddings\", \"body\": {}}", "\"a\"", REQUEST_CHAT, 0,
     "invalid_url", "url: found \"/v1/embeddings\""},
    {"{\"custom_id\": \"a\", \"method\": \"GET\", " CHAT_URL ", \"body\": {}}", "\"a\"",
     REQUEST_CHAT, 0, "invalid_method", "method: found \"GET\", expected \"POST\""},
    {"{\"custom_id\": \"a\", " CHAT_URL "}", "\"a\"", REQUEST_CHAT, 0, "missing_required_parameter",
     "body: found nothing, expected an object"},
    {"{\"custom_id\": \"a\", " CHAT_URL ", \"body\": \"x\"}", "\"a\"", REQUEST_CHAT, 0,
     "invalid_value", "body: found \"x\", expected an object"},
    /* odd but right */
    {" {\t\"prompt\" :\r\"\\\\\\\"}\" , \"\\u0069d\":\"\\\\\"}\r\n", "\"\\\\\"", REQUEST_SHORT, -1,
     NULL, NULL},
    {"{\"x\": {\"id\": [\"]}\"]}, \"id\": {}, \"tokens\": []}", "{}", REQUEST_SHORT, -1, NULL,
     NULL},
    /* what is no JSON */
    {"{\"id\":, \"prompt\": \"x\"}", NULL, REQUEST_SHORT, 0, "invalid_json_line",
     "found ',', expected a value"},
    {"{\"id\": 3, \"prompt\": \"x\",}", NULL, REQUEST_SHORT, 0, "invalid_json_line",
     "no JSON: found"},
    {"{\"id\": 3, \"prompt\": [}", NULL, REQUEST_SHORT, 0, "invalid_json_line", "no JSON: found"},
    {"{id: 3}", NULL, REQUEST_SHORT, 0, "invalid_json_line", "no JSON: found"},
    {"", NULL, REQUEST_SHORT, 0, "invalid_json_line", "no JSON: found"},
    {"null", NULL, REQUEST_SHORT, 0, "invalid_json_line", "no JSON: found"},
    {"[1]", NULL, REQUEST_SHORT, 0, "invalid_json_line", "found a list, expected an object"},
    {"{\"id\": \"a\", \"prompt\": \"x\"", NULL, REQUEST_SHORT, 0, "invalid_json_line",
     "no JSON: found"},
    {" { \"custom_id\" : \"a\" , oops", NULL, REQUEST_CHAT, 0, "invalid_json_line",
     "no JSON: found"},
    {"{\"id\": 12", NULL, REQUEST_SHORT, 0, "invalid_json_line", "no JSON: found"},
    {"{\"id\": 12,", NULL, REQUEST_SHORT, 0, "invalid_json_line", "no JSON: found"},
    {"{\"id\"", NULL, REQUEST_SHORT, 0, "invalid_json_line", "no JSON: found"},
    {"{\"id\": \"cut", NULL, REQUEST_SHORT, 0, "invalid_json_line", "no JSON: found"},
    {"{\"prompt\": \"x\", \"id\": 3} {\"id\": 4}", NULL, REQUEST_SHORT, 0, "invalid_json_line",
     "expected the end of the text"},
    {"{\"id\": 3, \"prompt\": \"x\", \"prompt\": \"y\"}", NULL, REQUEST_SHORT, 0,
     "invalid_json_line", "found the key \"prompt\" twice"},
    {"{\"id\": 3, \"prompt\": \"\xff\"}", NULL, REQUEST_SHORT, 0, "invalid_json_line",
     "found byte 0xff, expected UTF-8"},
    {"{\"id\": 3, \"tokens\": [99999999999999999999]}", NULL, REQUEST_SHORT, 0, "invalid_json_line",
     "found an integer of more than 64 bits"},
    {"{\"id\": 3, \"tokens\": [1e999]}", NULL, REQUEST_SHORT, 0, "invalid_json_line",
     "beyond the range of a double"},
};

static void check_id(const struct request *x, const char *expected, const char *line)
{
    char *id = x->id ? json_dumps(x->id, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    CHECK_MSG(!id == !expected && (!id || !strcmp(id, expected)), "%s: %s", line, id);
    free(id);
}

static void check_lines(void)
{
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        const struct parsed *p = &lines[i];
        struct request x;
        struct request_refusal why;
        int rc = parse(&x, p->line, strlen(p->line), &why);
        CHECK_MSG(!rc == (p->status < 0), "%s: %s", p->line, why.message);
        CHECK_MSG(x.form == p->form, "%s", p->line);
        check_id(&x, p->id, p->line);
        if (rc) {
            CHECK_MSG(why.status == p->status && why.code && !strcmp(why.code, p->code),
                      "%s: %d %s", p->line, why.status, why.code);
            CHECK_MSG(strstr(why.message, p->message), "%s: %s", p->line, why.message);
            CHECK(!strcmp(why.type, "invalid_request_error"));
        }
        request_free(&x);
    }
}

/* `begin`, `n` times `middle`, `end`. */
static char *repeat(const char *begin, size_t n, const char *middle, const char *end)
{
    size_t bytes = strlen(begin) + n * strlen(middle) + strlen(end) + 1;
    char *text = malloc(bytes), *at = stpcpy(text, begin);
    while (n-- > 0)
        at = stpcpy(at, middle);
    strcpy(at, end);
    return text;
}

/* Lines that would take gigabytes as JSON: in an object, in a list, beside what is wrong. */
static void check_bombs(void)
{
    static const struct {
        const char *begin, *middle, *end;
        size_t n;
    } bombs[] = {
        {"{\"id\": \"a\", \"tokens\": [", "1,", "1]}", 5000000},
        {"{\"id\": \"a\", \"tokens\": [", "[],", "1]}", 300000},
        {"{\"prompt\": \"x\"", ",\"\":1", "}", 5000000},
        {"{\"id\": [", "{},", "1]}", 300000},
        {"[", "{},", "1]", 300000},
        {"{\"id\": 5, oops [", "{},", "1]}", 300000},
    };
    for (size_t i = 0; i < sizeof bombs / sizeof *bombs; i++) {
        struct request x;
        struct request_refusal why;
        char *line = repeat(bombs[i].begin, bombs[i].n, bombs[i].middle, bombs[i].end);
        CHECK(parse(&x, line, strlen(line), &why) == -EINVAL && why.status == 0);
        CHECK_MSG(strstr(why.message, "expected at most 4194304 and 262144"), "%s", why.message);
        check_id(&x, NULL, bombs[i].begin);
        request_free(&x);
        free(line);
    }
}

static void check_large(void)
{
    struct request x;
    struct request_refusal why;
    char *line = repeat("{\"prompt\": \"x\", \"id\": \"", 10000, "i", "\"}");
    CHECK(parse(&x, line, strlen(line), &why) == 0 && json_string_length(x.id) == 10000);
    request_free(&x);
    free(line);
    line = repeat("{\"id\": 5, \"prompt\": \"x\", \"deep\": ", 100000, "[", "");
    CHECK(parse(&x, line, strlen(line), &why) == -EINVAL && why.status == 0);
    CHECK(strstr(why.message, "nested more than 2048 deep"));
    request_free(&x);
    free(line);
    line = repeat("{\"id\": 5, \"prompt\": [", 3000, "[", "");
    char *deep = repeat(line, 3001, "]", "}");
    CHECK(read_line(&x, deep, &why) == -EINVAL && why.status == 0);
    CHECK(strstr(why.message, "nested more than 2048 deep"));
    request_free(&x);
    free(deep);
    free(line);
    line = repeat("{\"prompt\": \"x\", \"id\": ", 2000, "[", "");
    deep = repeat(line, 2000, "]", "}");
    CHECK(parse(&x, deep, strlen(deep), &why) == -EINVAL && !x.id);
    CHECK_MSG(strstr(why.message, "id: found lists or objects nested more than 16 deep"), "%s",
              why.message);
    request_free(&x);
    free(deep);
    free(line);
    /* the first part of a long line */
    line = repeat("{\"custom_id\": \"long\", \"body\": {\"prompt\": \"", 1000000, "x", "");
    CHECK(parse(&x, line, strlen(line), &why) == -EINVAL && x.form == REQUEST_CHAT);
    request_free(&x);
    free(line);
    const char nul[] = "{\"id\": 6, \"prompt\": \"a\0b\"}";
    CHECK(parse(&x, nul, sizeof nul - 1, &why) == -EINVAL && why.status == 0);
    request_free(&x);
}

/* ---- digests ---- */

static uint64_t digest_of(const char *line)
{
    struct request x;
    struct request_refusal why;
    CHECK(parse(&x, line, strlen(line), &why) == 0);
    uint64_t digest = x.digest;
    request_free(&x);
    return digest;
}

static void check_digests(void)
{
    const char *line = "{\"id\": 1, \"file\": \"text.txt\"}";
    uint64_t before = digest_of(line);
    CHECK(before == digest_of(line));
    CHECK(before != digest_of("{\"id\": 2, \"file\": \"text.txt\"}"));
    write_text("text.txt", "abd");
    CHECK(before != digest_of(line));
    write_text("text.txt", "abc");
    CHECK(before == digest_of(line));
}

/* ---- files ---- */

static void check_files(void)
{
    static const struct {
        const char *name, *message;
    } refused[] = {
        {"\"missing.txt\"", "missing.txt: No such file or directory"},
        {"\"text.txt/x\"", "Not a directory"},
        {"\"sub\"", "found a folder, expected a file"},
        {"\"..\"", "found a folder, expected a file"},
        {"\"\"", "file: found \"\", expected the name of a file"},
        {"\"text.txt\\u0000\"", "expected the name of a file"},
        {"5", "file: found 5, expected the name of a file"},
        {"\"fifo\"", "found a device or a pipe, expected a file"},
        {"\"/dev/zero\"", "found a device or a pipe, expected a file"},
        {"\"/dev/stdin\"", "found a device or a pipe, expected a file"},
        {"\"sub/../../\"", "found a folder, expected a file"},
        {"\"loop\"", "Too many levels of symbolic links"},
        {"\"loop/a\"", "Too many levels of symbolic links"},
    };
    static const char *const good[] = {"text.txt", "./text.txt", "sub/../text.txt",
                                       "here/here/here/text.txt"};
    char line[256];
    struct request x;
    struct request_refusal why;
    int in[2];
    CHECK(pipe(in) == 0 && dup2(in[0], STDIN_FILENO) == STDIN_FILENO);
    snprintf(line, sizeof line, "cd %s && ln -s loop loop && ln -s . here", folder);
    CHECK(system(line) == 0);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        snprintf(line, sizeof line, "{\"id\": 1, \"file\": %s}", refused[i].name);
        CHECK(parse(&x, line, strlen(line), &why) == -EINVAL && why.status == 400);
        CHECK_MSG(strstr(why.message, refused[i].message), "%s", why.message);
        CHECK(!strcmp(why.param, "file"));
        check_id(&x, "1", line);
        request_free(&x);
    }
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        snprintf(line, sizeof line, "{\"file\": \"%s\"}", good[i]);
        CHECK(read_line(&x, line, &why) == 0 && x.n_prompts == 1 && x.prompts[0].n == 3);
        CHECK(x.prompts[0].tokens[0] == 'a' - '!' && !x.file);
        request_free(&x);
    }
    write_text("marked.txt", "\xef\xbb\xbfxyz");
    snprintf(line, sizeof line, "{\"file\": \"marked.txt\"}");
    CHECK(parse(&x, line, strlen(line), &why) == 0 && x.file_bytes == 3 && !strcmp(x.file, "xyz"));
    request_free(&x);
    snprintf(line, sizeof line, "{\"file\": \"%s/text.txt\"}", folder);
    CHECK(read_line(&x, line, &why) == 0);
    request_free(&x);
    CHECK(read_line(&x, "{\"file\": \"empty.txt\"}", &why) == -EINVAL);
    CHECK(strstr(why.message, "file: found an empty text"));
    request_free(&x);
    CHECK(read_line(&x, "{\"file\": \"latin.txt\"}", &why) == -EINVAL);
    CHECK_MSG(strstr(why.message, "UTF-8"), "%s", why.message);
    request_free(&x);
}

/* ---- keys that are refused ---- */

enum { SHORT = 1 << REQUEST_SHORT, CHAT = 1 << REQUEST_CHAT, COMPLETION = 1 << REQUEST_COMPLETION };
enum { OPENAI = CHAT | COMPLETION, ALL = SHORT | OPENAI };

struct refused {
    unsigned forms;
    const char *keys, *param, *code, *message;
};

#define VALUE "invalid_value"
#define SUPPORT "unsupported_value"

static const struct refused refused[] = {
    {ALL, "\"temperature\": -1", "temperature", VALUE, "found -1, expected a number from 0 to"},
    {ALL, "\"temperature\": \"1\"", "temperature", VALUE, "found \"1\", expected a number"},
    {ALL, "\"temperature\": true", "temperature", VALUE, "found true, expected a number"},
    {SHORT, "\"temperature\": null", "temperature", VALUE, "found null, expected a number"},
    {ALL, "\"top_p\": 1.5", "top_p", VALUE, "found 1.5, expected a number from 0 to 1"},
    {ALL, "\"min_p\": -0.5", "min_p", VALUE, "found -0.5, expected a number from 0 to 1"},
    {ALL, "\"repetition_penalty\": []", "repetition_penalty", VALUE,
     "found an empty list, expected"},
    {ALL, "\"repetition_penalty\": 0", "repetition_penalty", VALUE,
     "found 0, expected a number from 0.001 to 1000"},
    {ALL, "\"repetition_penalty\": 1e-40", "repetition_penalty", VALUE, "from 0.001 to 1000"},
    {ALL, "\"logit_bias\": {\"5\": 1, \"05\": 2}", "logit_bias", VALUE,
     "the key \"05\", expected a token id"},
    {ALL, "\"top_k\": 1.5", "top_k", VALUE, "found 1.5, expected a whole number"},
    {ALL, "\"top_k\": 2e1", "top_k", VALUE, "found 20.0, expected a whole number"},
    {SHORT, "\"top_k\": -1", "top_k", VALUE, "found -1, expected a whole number from 0"},
    {OPENAI, "\"top_k\": -2", "top_k", VALUE, "found -2, expected a whole number from -1"},
    {ALL, "\"top_k\": 4294967296", "top_k", VALUE, "expected a whole number"},
    {ALL, "\"presence_penalty\": 2.5", "presence_penalty", VALUE, "a number from -2 to 2"},
    {ALL, "\"num_beams\": 2, \"n\": 2", "n", VALUE, "num_return_sequences"},
    {ALL, "\"num_beams\": 257", "num_beams", VALUE, "found 257"},
    {ALL, "\"num_beams\": 2, \"early_stopping\": \"no\"", "early_stopping", VALUE, "never"},
    {ALL, "\"num_beams\": 2, \"num_return_sequences\": 3", "num_return_sequences", VALUE,
     "found 3"},
    {ALL, "\"frequency_penalty\": \"\"", "frequency_penalty", VALUE, "found \"\", expected"},
    {ALL, "\"logit_bias\": [1]", "logit_bias", VALUE, "found a list, expected an object"},
    {ALL, "\"logit_bias\": {\"a\": 1}", "logit_bias", VALUE, "the key \"a\", expected a token id"},
    {ALL, "\"logit_bias\": {\"-1\": 1}", "logit_bias", VALUE, "expected a token id"},
    {ALL, "\"logit_bias\": {\"1\": 101}", "logit_bias", VALUE, "found 101, expected an object"},
    {ALL, "\"logit_bias\": {\"1\": \"x\"}", "logit_bias", VALUE, "found \"x\", expected"},
    {ALL, "\"logit_bias\": {\"96\": 1}", "logit_bias", VALUE,
     "found token id 96, expected 0 to 95"},
    {ALL, "\"seed\": 1.5", "seed", VALUE, "found 1.5, expected a whole number"},
    {SHORT, "\"seed\": -1", "seed", VALUE, "found -1, expected a whole number of at least 0"},
    {ALL, "\"n\": 0", "n", VALUE, "found 0, expected a whole number from 1 to 128"},
    {ALL, "\"n\": 129", "n", VALUE, "found 129, expected a whole number from 1 to 128"},
    {ALL, "\"stop\": 5", "stop", VALUE, "found 5, expected a text or a list of texts"},
    {ALL, "\"stop\": {}", "stop", VALUE, "found an object, expected a text"},
    {ALL, "\"stop\": [\"a\", 5]", "stop", VALUE, "found 5, expected a text"},
    {ALL, "\"stop\": \"\"", "stop", VALUE, "expected a text that is not empty"},
    {ALL, "\"stop\": [\"a\\u0000b\"]", "stop", VALUE, "no NUL character"},
    {ALL, "\"ignore_eos\": 1", "ignore_eos", VALUE, "found 1, expected true or false"},
    {SHORT, "\"max_new_tokens\": -1", "max_new_tokens", VALUE, "expected a whole number from 0"},
    {CHAT, "\"max_tokens\": 0", "max_tokens", VALUE, "expected a whole number from 1"},
    {COMPLETION, "\"max_tokens\": -1", "max_tokens", VALUE, "expected a whole number from 0"},
    {CHAT, "\"max_completion_tokens\": \"9\"", "max_completion_tokens", VALUE, "found \"9\""},
    {OPENAI, "\"min_tokens\": -1", "min_tokens", VALUE, "expected a whole number from 0"},
    {ALL, "\"min_length\": 1.5", "min_length", VALUE, "found 1.5, expected a whole number"},
    {ALL, "\"suppress_tokens\": [1, -1]", "suppress_tokens", VALUE,
     "found -1, expected a token id"},
    {ALL, "\"forced_eos_token_id\": \"a\"", "forced_eos_token_id", VALUE, "found \"a\""},
    {ALL, "\"forced_bos_token_id\": 96", "forced_bos_token_id", VALUE,
     "found token id 96, expected 0 to 95"},
    {OPENAI, "\"stream\": true", "stream", SUPPORT, "found true, but a job writes whole answers"},
    {OPENAI, "\"stream_options\": {}", "stream_options", SUPPORT, "found an object, but a job"},
    {COMPLETION, "\"best_of\": 2", "best_of", SUPPORT, "found 2, but spillway gives all answers"},
    {COMPLETION, "\"n\": 3, \"best_of\": 2", "best_of", SUPPORT, "found 2, but"},
    {COMPLETION, "\"suffix\": \"x\"", "suffix", SUPPORT, "does not fill gaps"},
    {COMPLETION, "\"echo\": \"yes\"", "echo", VALUE, "found \"yes\", expected true or false"},
    {COMPLETION, "\"logprobs\": true", "logprobs", VALUE, "found true, expected a whole number"},
    {COMPLETION, "\"logprobs\": 6", "logprobs", VALUE, "found 6, expected a whole number from 0"},
    {CHAT, "\"logprobs\": 1", "logprobs", VALUE, "found 1, expected true or false"},
    {CHAT, "\"top_logprobs\": 3", "top_logprobs", VALUE, "found 3 without \"logprobs\": true"},
    {CHAT, "\"logprobs\": true, \"top_logprobs\": 21", "top_logprobs", VALUE, "from 0 to 20"},
    {OPENAI, "\"response_format\": \"json\"", "response_format", VALUE, "an object with a"},
    {OPENAI, "\"response_format\": {\"type\": \"xml\"}", "response_format.type", VALUE,
     "\"json_schema\""},
    {OPENAI,
     "\"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"name\": \"r\", "
     "\"schema\": {\"not\": {}}}}",
     "response_format", VALUE, "Invalid schema for response_format 'r': #: \"not\""},
    {CHAT, "\"reasoning_effort\": \"low\"", "reasoning_effort", SUPPORT, "does not use it"},
    {CHAT, "\"reasoning_effort\": 5", "reasoning_effort", VALUE, "found 5, expected a text"},
    {CHAT, "\"tool_choice\": \"required\"", "tool_choice", VALUE, "only with \"tools\""},
    {CHAT, "\"tool_choice\": {\"type\": \"function\"}", "tool_choice", VALUE, "found an object"},
    {CHAT, "\"tool_choice\": \"some\"", "tool_choice", VALUE, "found \"some\", expected \"auto\""},
    {CHAT, "\"tools\": {}", "tools", VALUE, "found an object, expected a list of tools"},
    {CHAT, "\"tools\": [{\"type\": \"function\"}]", "tools[0].function.name", VALUE, "expected {"},
    {CHAT, "\"chat_template_kwargs\": [1]", "chat_template_kwargs", VALUE, "found a list"},
    {CHAT, "\"chat_template_kwargs\": {\"tools\": 1}", "messages", VALUE, "found 'tools'"},
    {OPENAI, "\"model\": 5", "model", VALUE, "model: found 5, expected a text"},
    {SHORT, "\"max_token\": 5", "max_token", "unknown_parameter", "found the unknown key"},
    {SHORT, "\"max_tokens\": 5", "max_tokens", "unknown_parameter",
     "\"max_tokens\"; did you mean \"max_new_tokens\"?"},
    {SHORT, "\"temperatur\": 5", "temperatur", "unknown_parameter",
     "\"temperatur\"; did you mean \"temperature\"?"},
    {SHORT, "\"stream\": true", "stream", "unknown_parameter", "found the unknown key \"stream\""},
};

static const char *const prompts[] = {[REQUEST_SHORT] = "\"prompt\": \"ab\"",
                                      [REQUEST_CHAT] = ("\"messages\": [{\"role\": \"user\", "
                                                        "\"content\": \"ab\"}]"),
                                      [REQUEST_COMPLETION] = "\"prompt\": \"ab\""};

static void check_refused_line(const char *line, const struct refused *r)
{
    struct request x;
    struct request_refusal why;
    int rc = read_line(&x, line, &why);
    CHECK_MSG(rc == -EINVAL && why.status == 400, "%s: %s", line, why.message);
    CHECK_MSG(!strcmp(why.param, r->param), "%s: %s", line, why.param);
    CHECK_MSG(why.code && !strcmp(why.code, r->code), "%s: %s", line, why.code);
    CHECK_MSG(strstr(why.message, r->message), "%s: %s", line, why.message);
    request_free(&x);
}

static void check_refused(void)
{
    char keys[512];
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        for (int form = REQUEST_SHORT; form <= REQUEST_COMPLETION; form++)
            if (refused[i].forms & 1u << form) {
                snprintf(keys, sizeof keys, "%s, %s", prompts[form], refused[i].keys);
                check_refused_line(line_of((enum request_form)form, keys), &refused[i]);
            }
}

/* ---- prompts that are refused ---- */

static const struct refused bad_prompts[] = {
    {COMPLETION, "\"x\": 1", "prompt", VALUE, "prompt: found nothing, expected a text or a list"},
    {COMPLETION, "\"prompt\": null", "prompt", VALUE, "prompt: found null"},
    {COMPLETION, "\"prompt\": \"\"", "prompt", VALUE, "prompt: found an empty text"},
    {COMPLETION, "\"prompt\": []", "prompt", VALUE, "a list of at least one token id"},
    {COMPLETION, "\"prompt\": [\"a\", \"\"]", "prompt[1]", VALUE, "prompt[1]: found an empty text"},
    {COMPLETION, "\"prompt\": [\"a\", 5]", "prompt[1]", VALUE, "prompt[1]: found 5, expected"},
    {COMPLETION, "\"prompt\": [1, \"a\"]", "prompt", VALUE, "found \"a\", expected a token id"},
    {COMPLETION, "\"prompt\": [[1], [96]]", "prompt[1]", VALUE, "found id 96, expected 0 to 95"},
    {COMPLETION, "\"prompt\": [-1]", "prompt", VALUE, "found -1, expected a token id"},
    {COMPLETION, "\"prompt\": [1.0]", "prompt[0]", VALUE, "found 1.0, expected a text or a list"},
    {SHORT, "\"prompt\": [1]", "prompt", VALUE, "prompt: found a list, expected a text"},
    {SHORT, "\"prompt\": null", "prompt", VALUE, "prompt: found null, expected a text"},
    {SHORT, "\"tokens\": []", "tokens", VALUE,
     "tokens: found an empty list, expected a list of at least"},
    {SHORT, "\"tokens\": \"1 2\"", "tokens", VALUE, "expected a list of at least one token id"},
    {SHORT, "\"tokens\": [1, 4294967296]", "tokens", VALUE, "expected a token id"},
    {CHAT, "\"x\": 1", "messages", VALUE, "messages: found nothing, expected a list"},
    {CHAT | SHORT, "\"messages\": []", "messages", VALUE, "a list of at least one message"},
    {CHAT | SHORT, "\"messages\": \"Hi\"", "messages", VALUE, "found \"Hi\", expected a list"},
    {CHAT | SHORT, "\"messages\": [5]", "messages[0]", VALUE, "found 5, expected an object"},
    {CHAT | SHORT, "\"messages\": [{\"content\": \"a\"}]", "messages[0].role", VALUE,
     "found nothing"},
    {CHAT, "\"messages\": [{\"role\": \"usr\", \"content\": \"a\"}]", "messages[0].role", VALUE,
     "found \"usr\", expected \"system\""},
    {CHAT | SHORT, "\"messages\": [{\"role\": \"user\"}]", "messages[0].content", VALUE,
     "found nothing, expected a text or a list of parts"},
    {CHAT | SHORT, "\"messages\": [{\"role\": \"user\", \"content\": 5}]", "messages[0].content",
     VALUE, "found 5, expected a text or a list of parts"},
    {CHAT | SHORT,
     "\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, "
     "{\"type\": \"image_url\", \"image_url\": {\"url\": \"x\"}}]}]",
     "messages[0].content[1].type", SUPPORT, "found \"image_url\", but spillway reads texts only"},
    {CHAT, "\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"input_audio\"}]}]",
     "messages[0].content[0].type", SUPPORT, "found \"input_audio\", but"},
    {CHAT, "\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\"}]}]",
     "messages[0].content[0].text", VALUE, "found nothing, expected a text"},
    {CHAT, "\"messages\": [{\"role\": \"user\", \"content\": [\"a\"]}]",
     "messages[0].content[0].type", VALUE, "found nothing, expected \"text\""},
    {CHAT, "\"messages\": [{\"role\": \"assistant\", \"tool_calls\": 5}]", "messages[0].tool_calls",
     VALUE, "found 5, expected a list"},
    {CHAT | SHORT, "\"messages\": [{\"role\": \"tool\", \"content\": \"a\"}]", "messages", VALUE,
     "no tools here"},
};

static void check_bad_prompts(void)
{
    struct refused many = {COMPLETION, NULL, "prompt", VALUE,
                           "found 2049 prompts, expected at most"};
    for (size_t i = 0; i < sizeof bad_prompts / sizeof *bad_prompts; i++)
        for (int form = REQUEST_SHORT; form <= REQUEST_COMPLETION; form++)
            if (bad_prompts[i].forms & 1u << form)
                check_refused_line(line_of((enum request_form)form, bad_prompts[i].keys),
                                   &bad_prompts[i]);
    char *line =
        repeat("{\"custom_id\": \"a\", \"url\": \"/v1/completions\", \"body\": {\"prompt\": "
               "[[1]",
               2048, ",[1]", "]}}");
    check_refused_line(line, &many);
    free(line);
    const struct refused answers = {COMPLETION, NULL, "n", VALUE,
                                    "513 prompts with 128 answers to each, expected at most 65536"};
    line = repeat("{\"custom_id\": \"a\", \"url\": \"/v1/completions\", \"body\": {\"n\": 128, "
                  "\"prompt\": [[1]",
                  512, ",[1]", "]}}");
    check_refused_line(line, &answers);
    free(line);
    const struct refused stops = {SHORT, NULL, "stop", VALUE, "1025 texts, expected at most 1024"};
    line = repeat("{\"id\": \"a\", \"prompt\": \"a\", \"stop\": [\"x\"", 1024, ",\"x\"", "]}");
    check_refused_line(line, &stops);
    free(line);
}

/* ---- what a line means ---- */

static struct request good(const char *line)
{
    struct request x;
    struct request_refusal why;
    CHECK_MSG(read_line(&x, line, &why) == 0, "%s: %s", line, why.message);
    CHECK(x.choices && x.n_prompts);
    return x;
}

/* The text of a prompt, with the tokenizer of bytes. */
static bool is_text(const struct request_prompt *p, const char *text)
{
    for (size_t i = 0; i < p->n; i++)
        if (!text[i] || p->tokens[i] != text[i] - '!')
            return false;
    return !text[p->n];
}

static void check_defaults(void)
{
    struct request x = good("{\"prompt\": \"ab\"}");
    CHECK(x.max_new_tokens == 128 && x.max_is_default && x.n_choices == 1 && x.n_prompts == 1);
    CHECK(x.sampling.temperature == 0 && x.sampling.seed == 0 && x.sampling.top_p == 1);
    CHECK(!x.ignore_eos && !x.logprobs && !x.echo && x.stop.n == 0);
    CHECK(is_text(&x.prompts[0], "ab"));
    request_free(&x);

    x = good(line_of(REQUEST_CHAT, prompts[REQUEST_CHAT]));
    CHECK(x.max_new_tokens == 4096 && x.max_is_default && x.sampling.temperature == 1);
    CHECK(x.sampling.seed != 0 && x.sampling.seed < UINT64_C(1) << 53);
    CHECK(is_text(&x.prompts[0], "<user>ab2001"));
    uint64_t seed = x.sampling.seed;
    request_free(&x);

    x = good(line_of(REQUEST_COMPLETION, prompts[REQUEST_COMPLETION]));
    CHECK(x.max_new_tokens == 16 && x.max_is_default && x.sampling.temperature == 1);
    CHECK(x.sampling.seed == seed); /* of the same id */
    request_free(&x);

    x = good("{\"custom_id\": \"b\", \"url\": \"/v1/completions\", \"body\": {\"prompt\": \"a\"}}");
    CHECK(x.sampling.seed != seed);
    request_free(&x);
}

static void check_command_line(void)
{
    char *argv[] = {"test",   folder, "--temperature", "0.5", "--seed",       "9",
                    "--stop", "xx",   "--stop",        "yy",  "--logit-bias", "3=-5",
                    "--n",    "2",    "--logprobs",    "4",   "--ignore-eos", "--max-new-tokens",
                    "7"};
    use_options(19, argv);
    for (int form = REQUEST_SHORT; form <= REQUEST_COMPLETION; form++) {
        struct request x = good(line_of((enum request_form)form, prompts[form]));
        CHECK(x.sampling.temperature == 0.5f && x.sampling.seed == 9 && x.ignore_eos);
        CHECK(x.max_new_tokens == 7 && !x.max_is_default);
        CHECK(x.stop.n == 2 && !strcmp(x.stop.items[1], "yy"));
        CHECK(x.n_choices == 2 && x.logprobs && x.n_top_logprobs == 4);
        CHECK(x.sampling.n_logit_bias == 1 && x.sampling.logit_bias[0].bias == -5);
        request_free(&x);
    }
    struct request x =
        good("{\"prompt\": \"a\", \"temperature\": 2, \"seed\": 3, \"stop\": \"z\", "
             "\"max_new_tokens\": 0, \"ignore_eos\": false, \"logit_bias\": {}, \"logprobs\": 0}");
    CHECK(x.sampling.temperature == 2 && x.sampling.seed == 3 && !x.ignore_eos);
    CHECK(x.max_new_tokens == 0 && !x.max_is_default && x.sampling.n_logit_bias == 0);
    CHECK(x.stop.n == 1 && !strcmp(x.stop.items[0], "z") && x.logprobs && !x.n_top_logprobs);
    request_free(&x);
    x = good(line_of(REQUEST_CHAT, "\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], "
                                   "\"logprobs\": false"));
    CHECK(!x.logprobs && !x.n_top_logprobs);
    request_free(&x);
    no_options();
}

/* The search of the options is that of each line that says nothing else. */
static void check_search(void)
{
    static const char *const without[] = {"\"temperature\": 0", "\"n\": 2", "\"num_beams\": 1"};
    static const char *const nothing[] = {"\"num_beams\": null", "\"temperature\": null",
                                          "\"stop\": [], \"n\": 1",
                                          "\"response_format\": {\"type\": \"text\"}"};
    char *argv[] = {
        "test", folder, "--num-beams", "3", "--length-penalty", "2", "--num-beam-groups", "1"};
    char body[200];
    use_options(8, argv);
    for (int form = REQUEST_SHORT; form <= REQUEST_COMPLETION; form++) {
        struct request x = good(line_of((enum request_form)form, prompts[form]));
        CHECK(x.beams.n_beams == 3 && x.beams.length_penalty == 2 && x.sampling.temperature == 0);
        CHECK(x.n_choices == 1 && request_sessions(&x, &reader) == 3);
        request_free(&x);
        for (size_t i = 0; i < sizeof without / sizeof *without; i++) {
            snprintf(body, sizeof body, "%s, %s", prompts[form], without[i]);
            x = good(line_of((enum request_form)form, body));
            CHECK_MSG(!x.beams.n_beams && request_sessions(&x, &reader) == 1, "%s", body);
            CHECK(x.sampling.temperature == (form == REQUEST_SHORT || !i ? 0 : 1));
            request_free(&x);
        }
        for (size_t i = 0; form != REQUEST_SHORT && i < sizeof nothing / sizeof *nothing; i++) {
            snprintf(body, sizeof body, "%s, %s", prompts[form], nothing[i]);
            x = good(line_of((enum request_form)form, body));
            CHECK_MSG(x.beams.n_beams == 3 && request_sessions(&x, &reader) == 3, "%s", body);
            CHECK(x.sampling.temperature == 0);
            request_free(&x);
        }
        snprintf(body, sizeof body, "%s, \"num_beams\": 5, \"length_penalty\": 0.5%s",
                 prompts[form], form == REQUEST_SHORT ? "" : ", \"temperature\": null");
        x = good(line_of((enum request_form)form, body));
        CHECK(x.beams.n_beams == 5 && x.beams.length_penalty == 0.5f);
        CHECK(x.sampling.temperature == 0);
        CHECK(request_sessions(&x, &reader) == 5);
        request_free(&x);
    }
    no_options();
}

static void check_openai_keys(void)
{
    struct request x = good(line_of(
        REQUEST_CHAT,
        "\"messages\": [{\"role\": \"developer\", \"content\": [{\"type\": \"text\", \"text\": "
        "\"a\"}]}, {\"role\": \"assistant\", \"content\": \"b\", \"tool_calls\": [{\"id\": \"c\", "
        "\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": \"{\\\"a\\\": "
        "1}\"}}]}], \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}], "
        "\"tool_choice\": \"auto\", \"chat_template_kwargs\": {\"extra\": \"E\"}, \"max_tokens\": "
        "5, "
        "\"max_completion_tokens\": 6, \"n\": 2, \"logprobs\": true, \"top_logprobs\": 3, "
        "\"top_p\": 0, \"top_k\": -1, \"seed\": -1, \"stop\": [\"u\", \"v\"], \"user\": 5, "
        "\"whatever\": {}, \"stream\": false, \"response_format\": {\"type\": \"text\"}, "
        "\"temperature\": null, \"min_tokens\": 0"));
    CHECK(is_text(&x.prompts[0], "<developer>a<assistant>b[1]T1E2001"));
    CHECK(x.max_new_tokens == 6 && !x.max_is_default && x.n_choices == 2 && x.logprobs);
    CHECK(x.n_top_logprobs == 3 && x.sampling.top_p == FLT_MIN && x.sampling.top_k == 0);
    CHECK(x.sampling.seed == UINT64_MAX && x.stop.n == 2 && x.sampling.temperature == 1);
    request_free(&x);

    x = good(line_of(REQUEST_CHAT,
                     "\"messages\": [{\"role\": \"user\", \"content\": null}], \"tools\": "
                     "[{\"function\": {\"name\": \"f\"}}], \"tool_choice\": \"none\""));
    CHECK(is_text(&x.prompts[0], "<user>None2001"));
    request_free(&x);
}

static void check_completions(void)
{
    struct request x =
        good(line_of(REQUEST_COMPLETION, "\"prompt\": [\"a\", [1, 2]], \"n\": 2, "
                                         "\"best_of\": 2, \"echo\": true, \"suffix\": "
                                         "\"\", \"logprobs\": 0, \"max_tokens\": 0"));
    CHECK(x.n_prompts == 2 && x.n_choices == 2 && x.echo && x.logprobs && !x.n_top_logprobs);
    CHECK(is_text(&x.prompts[0], "a") && is_text(&x.prompts[1], "\"#") && x.max_new_tokens == 0);
    request_free(&x);
    x = good(line_of(REQUEST_COMPLETION, "\"prompt\": [1, 2, 3]"));
    CHECK(x.n_prompts == 1 && is_text(&x.prompts[0], "\"#$"));
    request_free(&x);
    x = good("{\"tokens\": [0, 95], \"logprobs\": 2, \"n\": 3, \"presence_penalty\": -2, "
             "\"frequency_penalty\": 1.5, \"logit_bias\": {\"5\": -100, \"95\": 0.5}}");
    CHECK(x.sampling.presence_penalty == -2 && x.sampling.frequency_penalty == 1.5f);
    CHECK(x.sampling.n_logit_bias == 2 && x.sampling.logit_bias[0].token == 5);
    CHECK(x.sampling.logit_bias[0].bias == -100 && x.sampling.logit_bias[1].bias == 0.5f);
    CHECK(x.prompts[0].n == 2 && x.prompts[0].tokens[1] == 95 && x.logprobs);
    CHECK(x.n_top_logprobs == 2 && x.n_choices == 3);
    request_free(&x);
    x = good("{\"tokens\": [0], \"no_repeat_ngram_size\": 3, \"min_length\": 0, "
             "\"forced_bos_token_id\": 5, \"suppress_tokens\": [6, 7], "
             "\"begin_suppress_tokens\": []}");
    const struct spw_token_rules *rules = &x.sampling.rules;
    CHECK(rules->no_repeat_ngram_size == 3 && rules->min_length == SPW_NONE);
    CHECK(rules->min_new_tokens == 0 && !rules->lists[SPW_FORCED_EOS].ids);
    CHECK(rules->lists[SPW_FORCED_BOS].n == 1 && rules->lists[SPW_FORCED_BOS].ids[0] == 5);
    CHECK(rules->lists[SPW_SUPPRESS].n == 2 && rules->lists[SPW_SUPPRESS].ids[1] == 7);
    CHECK(rules->lists[SPW_BEGIN_SUPPRESS].ids && rules->lists[SPW_BEGIN_SUPPRESS].n == 0);
    request_free(&x);
    x = good("{\"messages\": [{\"role\": \"ipython\", \"content\": \"a\"}]}");
    CHECK(is_text(&x.prompts[0], "<ipython>a2001"));
    request_free(&x);
}

/* ---- templates and tokenizers ---- */

/* Ids that Mistral's templates refuse; arguments that are empty. */
static void check_calls(void)
{
    use_template("{{ messages[0].tool_calls[0].id | length }}"
                 "{{ messages[0].tool_calls[0].id == messages[1].tool_call_id }}"
                 "{{ messages[0].tool_calls[1].id }}[TOOL_CALLS]"
                 "{{ messages[0].tool_calls[1].function.arguments }}");
    struct request x = good(
        line_of(REQUEST_CHAT, "\"messages\": [{\"role\": \"assistant\", \"tool_calls\": [{\"id\": "
                              "\"call_1\"}, {\"id\": \"abcDEF123\", \"function\": {\"arguments\": "
                              "\"\"}}]}, {\"role\": \"tool\", "
                              "\"tool_call_id\": \"call_1\", \"content\": \"\"}]"));
    CHECK(is_text(&x.prompts[0], "9TrueabcDEF123[TOOL_CALLS]{}"));
    request_free(&x);
#define FORCED(choice)                                                                             \
    "\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"tools\": [{\"function\": "        \
    "{\"name\": "                                                                                  \
    "\"f\"}}], \"tool_choice\": " choice
    const struct refused none = {CHAT, NULL, "tool_choice", SUPPORT, "cannot force a call"};
    use_template("no marks");
    check_refused_line(line_of(REQUEST_CHAT, FORCED("\"required\"")), &none);
    use_template("<tool_call>");
    x = good(line_of(REQUEST_CHAT, FORCED("\"required\"")));
    CHECK(x.grammar);
    request_free(&x);
    const struct refused other = {CHAT, NULL, "tool_choice", VALUE, "found no function 'g'"};
    check_refused_line(
        line_of(REQUEST_CHAT, FORCED("{\"type\": \"function\", \"function\": {\"name\": \"g\"}}")),
        &other);
    use_template(template);
}

static void check_templates(void)
{
    const char *line =
        line_of(REQUEST_CHAT, "\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], "
                              "\"reasoning_effort\": \"high\"");
    use_template("{{ reasoning_effort }}{{ messages[0].content }}");
    struct request x = good(line);
    CHECK(is_text(&x.prompts[0], "higha"));
    request_free(&x);
    use_template("{{ messages[0].content | replace('\n', '|') }}");
    x = good(line_of(REQUEST_CHAT,
                     "\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", "
                     "\"text\": \"a\"}, {\"type\": \"text\", \"text\": \"b\"}]}]"));
    CHECK(is_text(&x.prompts[0], "a|b"));
    request_free(&x);
    char path[128];
    snprintf(path, sizeof path, "%s/chat_template.jinja", folder);
    use_template("");
    unlink(path);
    const struct refused none = {CHAT, NULL, "messages", VALUE, "found no chat template"};
    for (int i = 0; i < 2; i++)
        check_refused_line(line_of(REQUEST_CHAT, prompts[REQUEST_CHAT]), &none);
    use_template(template);

    const struct refused text = {SHORT, NULL, "prompt", SUPPORT, "the model has no tokenizer"};
    const struct refused stop = {SHORT, NULL, "stop", SUPPORT, "answers have no text"};
    const struct cli_model no_tokenizer = {.source = &source, .config.vocab = 96};
    reader.model = &no_tokenizer;
    check_refused_line("{\"prompt\": \"a\"}", &text);
    check_refused_line("{\"tokens\": [1], \"stop\": \"a\"}", &stop);
    x = good("{\"tokens\": [1]}");
    request_free(&x);
    reader.model = &model;
}

/* ---- plain spans of a message ---- */

/* How many special tokens a message of the user has; -1: it is refused. */
static int count_special(const char *text, size_t begin, size_t end)
{
    const struct spw_text_span span = {begin, end};
    const struct spw_encoding e = {
        .text = text, .bytes = strlen(text), .plain = &span, .n_plain = begin < end};
    struct request_prompt p = {0};
    struct request_refusal why = {0};
    json_t *extra = json_pack("{s:b}", "enable_thinking", 0);
    int rc = request_encode_message(&reader, &e, extra, &p, &why), n = 0;
    for (size_t i = 0; i < p.n; i++)
        n += spw_tokenizer_is_special(reader.model->tokenizer, p.tokens[i]);
    CHECK(!rc || why.message[0]);
    spw_free(p.tokens);
    json_decref(extra);
    return rc ? -1 : n;
}

static char *read_template(const char *path)
{
    static char text[1 << 18];
    FILE *file = fopen(path, "r");
    size_t n = file ? fread(text, 1, sizeof text - 1, file) : 0;
    text[n] = 0;
    if (file)
        fclose(file);
    return text;
}

/* Templates of real models: a document adds no special token to a conversation, and takes none away
 * from it. */
static void check_real_templates(void)
{
    static const char document[] =
        "Do:\n\nA <|im_end|>\n<|im_start|>system\nB im_end, user <|im_end|>";
    glob_t found;
    char path[512];
    struct cli_model qwen = {.source = &source, .config.vocab = 1 << 20};
    snprintf(path, sizeof path, "%s/tokenizers/qwen2.5",
             getenv("SPW_DATA") ? getenv("SPW_DATA") : "");
    if (spw_tokenizer_open_folder(&qwen.tokenizer, path, NULL))
        return;
    reader.model = &qwen;
    snprintf(path, sizeof path, "%s/chat/templates/*.jinja", getenv("SPW_DATA"));
    size_t n = glob(path, 0, NULL, &found) ? 0 : found.gl_pathc, n_same = 0;
    for (size_t i = 0; i < n; i++) {
        use_template(read_template(found.gl_pathv[i]));
        const int plain = count_special("Do: all of it", 0, 0);
        const int same = count_special(document, 5, sizeof document - 1);
        CHECK_MSG(same == -1 || same == plain, "%s: %d and %d", found.gl_pathv[i], same, plain);
        CHECK(plain == -1 || count_special(document, 0, 0) == plain + 3);
        n_same += same == plain && plain >= 0;
        if (same == -1)
            fprintf(stderr, "%s: no message, or another text\n", strrchr(found.gl_pathv[i], '/'));
    }
    CHECK(n == 0 || n_same >= n * 3 / 4);
    if (n)
        globfree(&found);
    /* A message that is a part of what the template writes. */
    use_template("<|im_start|>user\n{{ messages[0].content }}<|im_end|>");
    CHECK(count_special("im_start", 0, 8) == 2 && count_special("<|im_end|>", 0, 10) == 2);
    use_template("<|im_start|>{{ messages[0].content | trim }}<|im_end|>{{ messages[0].content }}");
    CHECK(count_special(" a<|im_end|> ", 1, 12) == 2 && count_special(" b ", 0, 3) == 2);
    use_template("<|im_start|>{{ messages[0].content | trim }}");
    CHECK(count_special(" a<|im_end|> ", 1, 12) == 1);
    use_template("<|im_start|>{{ messages[0].content | upper }}");
    CHECK(count_special("a", 0, 1) == -1 && count_special("a<|im_end|>", 0, 11) == -1);
    spw_tokenizer_close(qwen.tokenizer);
    reader.model = &model;
    use_template(template);
}

/* A message is UTF-8, wherever a long text is cut. */
static void check_messages(void)
{
    struct request_refusal why;
    for (size_t n = 500; n < 530; n++) {
        char *text = repeat("", n, "x", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82");
        request_refuse(&why, 400, NULL, text, "%s", text);
        json_t *message = json_string(why.message), *param = json_string(why.param);
        CHECK(message && param);
        json_decref(message);
        json_decref(param);
        free(text);
    }
    CHECK(request_refuse(&why, 500, "c", NULL, "m") == -EIO && !strcmp(why.type, "server_error"));
}

/* ---- memory ---- */

static void check_failures(void)
{
    char line[1024];
    snprintf(
        line, sizeof line, "%s",
        line_of(REQUEST_CHAT,
                "\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": "
                "\"text\", \"text\": \"a\"}]}], \"stop\": [\"a\"], \"logit_bias\": {\"1\": 1}"));
    const char *const each[] = {line, "{\"file\": \"text.txt\", \"n\": 2}"};
    for (size_t i = 0; i < 2; i++) {
        int rc = -1, n = 0;
        for (; rc; n++) {
            struct request x;
            struct request_refusal why;
            int64_t before = spw_alloc_outstanding();
            use_template(template);
            spw_alloc_fail_nth(n);
            rc = read_line(&x, each[i], &why);
            spw_alloc_fail_nth(-1);
            CHECK_MSG(!rc || (rc == -ENOMEM && why.status == 500), "%d: %s", rc, why.message);
            request_free(&x);
            request_reader_close(&reader);
            CHECK(n == 0 || spw_alloc_outstanding() <= before);
        }
        CHECK(n > 4);
    }
}

static int64_t json_fails_after = -1; /* < 0: none fails */

static void *allocate_json(size_t bytes)
{
    return json_fails_after >= 0 && json_fails_after-- == 0 ? NULL : malloc(bytes);
}

/* The JSON library loses bytes of a text if an allocation fails. A request must not have another id
 * or another text then. */
static void check_short_json(void)
{
    static const char id[] = "an id of more than 16 bytes", stop[] = "a text of more than 16 bytes";
    char line[256];
    bool has_failed = true;
    int n = 0;
    snprintf(line, sizeof line, "{\"i\\u0064\": \"%s\", \"prompt\": \"a\", \"stop\": [\"%s\"]}", id,
             stop);
    json_set_alloc_funcs(allocate_json, free);
    for (; has_failed; n++) {
        struct request x;
        struct request_refusal why;
        json_fails_after = n;
        int rc = parse(&x, line, strlen(line), &why);
        CHECK(x.id ? !strcmp(json_string_value(x.id), id) : rc == -ENOMEM);
        if (!rc)
            rc = request_encode(&x, &reader, &why);
        CHECK(rc || (x.stop.n == 1 && !strcmp(x.stop.items[0], stop)));
        has_failed = json_fails_after < 0;
        json_fails_after = -1;
        CHECK_MSG(rc == (has_failed ? -ENOMEM : 0), "allocation %d: %s", n, why.message);
        request_free(&x);
    }
    CHECK(n > 4);
    json_set_alloc_funcs(malloc, free);
}

int main(void)
{
    job_world_open();
    check_lines();
    check_large();
    check_bombs();
    check_digests();
    check_files();
    check_refused();
    check_bad_prompts();
    check_defaults();
    check_command_line();
    check_search();
    check_openai_keys();
    check_completions();
    check_templates();
    check_calls();
    check_real_templates();
    check_messages();
    check_failures();
    check_short_json();
    job_world_close();
    return check_done();
}
