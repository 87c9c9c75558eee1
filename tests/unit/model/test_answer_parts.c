/* Calls of tools in the text of answers: each style, whatever the pieces in which the text arrives.
 */
#include "model/text/grammar/run.h"
#include "model/text/tool_calls.h"
#include "tests/byte_tokenizer.h"
#include "tests/check.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

static const char tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"s\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"},"
    "\"o\":{\"type\":\"object\"},\"u\":{\"anyOf\":[{\"$ref\":\"#/$defs/T\"},{\"type\":\"null\"}]}},"
    "\"$defs\":{\"T\":{\"type\":[\"string\",\"null\"]}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"g\"}}]";

static const struct spw_reasoning_form none, think = {.open = "<think>", .close = "</think>"},
                                             channels = {.has_channels = true};

/* What is expected: R[reasoning] T[text] C[name|arguments], and ! for a call that is not complete.
 */
struct row {
    const char *sign; /* of the style; NULL: that of channels */
    const struct spw_reasoning_form *form;
    const char *text, *expected;
};

#define HERMES "<tool_call>"
#define LLAMA "\"parameters\": dictionary"
#define MISTRAL "[TOOL_CALLS]"
#define LFM2 "<|tool_call_start|>"
#define MINIMAX "<minimax:tool_call>"
#define KIMI "<|tool_call_begin|>"
#define DEEPSEEK "<｜tool▁call▁begin｜>"
#define DSML "｜DSML｜"
#define GEMMA "<|tool_call>call:"
#define ALL_O "{\"k\": [true, null]}"

static const struct row rows[] = {
    /* objects between marks */
    {HERMES, &none, "", ""},
    {HERMES, &none, "Hi < there\n", "T[Hi < there\n]"},
    {HERMES, &none, "  Hi", "T[  Hi]"},
    {HERMES, &none,
     "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"a}\\\"\", \"n\": "
     "1.50}}\n</tool_call>",
     "C[f|{\"s\": \"a}\\\"\", \"n\": 1.50}]"},
    {HERMES, &none,
     "Look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n"
     "{\"arguments\": {\"n\": 2}, \"name\": \"g\"}\n</tool_call>\n",
     "T[Look.\n]C[f|{}]C[g|{\"n\": 2}]"},
    {HERMES, &none, "<tool_call>{\"name\": \"f\", \"id\": 3, \"arguments\": \"{\\\"n\\\": 1}\"}",
     "C[f|{\"n\": 1}]"},
    {HERMES, &none, "<tool_call>{\"name\": \"f\"}</tool_call>", "C[f|{}]"},
    {HERMES, &none, /* without the last '}' */
     "<tool_call>{\"name\": \"f\", \"arguments\": {\"n\": 1}, \"x\": "
     "\"<\"\n</tool_call>\n<tool_call>"
     "{\"name\": \"g\", \"arguments\": {}",
     "C[f|{\"n\": 1}]C[g|{}]"},
    {HERMES, &none, "<tool_call>{\"name\": \"f\", \"arguments\": {\"n\": 1",
     "C[f|{\"n\": 1!]"}, /* cut off */
    {HERMES, &none, "<tool_call> is a mark", "T[<tool_call> is a mark]"},
    {HERMES, &none, "a <tool_call>{\"x\": 1}", "T[a <tool_call>{\"x\": 1}]"},
    {HERMES, &none, "a <tool_cal", "T[a <tool_cal]"},
    {HERMES, &think, "<think>\nmm\n</think>\n\n<tool_call>{\"name\": \"g\", \"arguments\": {}}",
     "R[mm]C[g|{}]"},
    {HERMES, &think,
     "<think>\nmm <tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call><tool_call>{\"name\": "
     "\"f\", \"arguments\": {}}</tool_call>",
     "R[mm ]C[g|{}]C[f|{}]"},
    {HERMES, &think, "<think>a <tool_call>{\"na</think>me\": \"f\", \"arguments\": {}}",
     "R[a <tool_call>{\"na]T[me\": \"f\", \"arguments\": {}}]"},
    /* tags */
    {HERMES, &none,
     "<tool_call>\n<function=f>\n<parameter=s>\na\n\"b\" \xc3\xa9\n</parameter>\n<parameter=n>\n1\n"
     "</parameter>\n<parameter=o>\n" ALL_O "\n</parameter>\n</function>\n</tool_call>",
     "C[f|{\"s\": \"a\\n\\\"b\\\" \xc3\xa9\", \"n\": 1, \"o\": " ALL_O "}]"},
    {HERMES, &none, "<function=f>\n</function>\n</tool_call>", "C[f|{}]"},
    {HERMES, &none, "<function=f><parameter=n>\n1.50\n</parameter></function>",
     "C[f|{\"n\": 1.50}]"},
    {HERMES, &none, "<function=h>", "T[<function=h>]"},
    {HERMES, &none,
     "<tool_call><function=f><parameter=s>x</parameter> y</parameter>\n<parameter=u>null"
     "</parameter><parameter=o>{'a': True, 'b': (None, \"c'\")}</parameter><parameter=w>plain"
     "</parameter></function>",
     "C[f|{\"s\": \"x</parameter> y\", \"u\": null, \"o\": {\"a\": true, \"b\": [null, "
     "\"c'\"]}, \"w\": \"plain\"}]"},
    {HERMES, &none, "<tool_call><function=f><parameter=s>\nab", "C[f|{\"s\": \"ab!]"},
    {HERMES, &none,
     "<tool_call><function=f><parameter=u>nullify</parameter><parameter=u>None</parameter>"
     "<parameter=u>nul</parameter><parameter=s>null</parameter></function>",
     "C[f|{\"u\": \"nullify\", \"u\": null, \"u\": \"nul\", \"s\": \"null\"}]"},
    {HERMES, &none,
     "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>1</arg_value>\n<arg_key>n</arg_key>\n"
     "<arg_value>1</arg_value>\n</tool_call>",
     "C[f|{\"s\": \"1\", \"n\": 1}]"},
    {HERMES, &none, "<tool_call>tags\nare marks</tool_call>",
     "T[<tool_call>tags\nare marks</tool_call>]"},
    {HERMES, &none, "<tool_call>g</tool_call><tool_call>g</tool_call>", "C[g|{}]C[g|{}]"},
    {MINIMAX, &none,
     "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"s\">a b</parameter>\n</invoke>\n"
     "<invoke name=\"g\">\n</invoke>\n</minimax:tool_call>",
     "C[f|{\"s\": \"a b\"}]C[g|{}]"},
    {DSML, &none,
     "Hm.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n"
     "<｜DSML｜parameter name=\"n\" string=\"true\">1</｜DSML｜parameter>\n"
     "<｜DSML｜parameter name=\"s\" string=\"false\">[2]</｜DSML｜parameter>\n"
     "</｜DSML｜invoke>\n<｜DSML｜invoke name=\"g\">\n</｜DSML｜invoke>\n"
     "</｜DSML｜function_calls>",
     "T[Hm.\n\n]C[f|{\"n\": \"1\", \"s\": [2]}]C[g|{}]"},
    /* DeepSeek */
    {DEEPSEEK, &none,
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"n\": 1}\n```"
     "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
     "<｜tool▁calls▁end｜>",
     "C[f|{\"n\": 1}]C[g|{}]"},
    {DEEPSEEK, &none, "<｜tool▁call▁begin｜> is a mark", "T[<｜tool▁call▁begin｜> is a mark]"},
    /* bare keys */
    {GEMMA, &none,
     "<|tool_call>call:f{n:1,o:{k:[true,null]},s:<|\"|>a\n\"b\" <\xc3\xa9<|\"|>}<tool_call|>"
     "<|tool_call>call:g{}<tool_call|><channel|>",
     "C[f|{\"n\":1,\"o\":{\"k\":[true,null]},\"s\":\"a\\n\\\"b\\\" <\xc3\xa9\"}]C[g|{}]"},
    {GEMMA, &none, "<|tool_call>call:f{s:<|\"|>ab", "C[f|{\"s\":\"ab!]"},
    /* objects without marks */
    {LLAMA, &none, "{\"name\": \"f\", \"parameters\": {\"n\": 1}}", "C[f|{\"n\": 1}]"},
    {LLAMA, &none,
     "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {}}",
     "C[f|{}]C[g|{}]"},
    {LLAMA, &none, "{\"name\": \"Ada\", \"parameters\": {}} is",
     "T[{\"name\": \"Ada\", "
     "\"parameters\": {}} is]"},
    {LLAMA, &none, " {\"answer\": 1}", "T[ {\"answer\": 1}]"},
    {LLAMA, &none, "See {\"name\": \"f\", \"parameters\": {}}",
     "T[See {\"name\": \"f\", \"parameters\": {}}]"},
    {LLAMA, &none, "{\"x <|python_tag|>{\"name\": \"f\", \"parameters\": {}}", "T[{\"x ]C[f|{}]"},
    /* Mistral */
    {MISTRAL, &none,
     "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"n\": 1}, \"id\": \"abcdefghi\"}, "
     "{\"name\": \"g\", \"arguments\": {}}]",
     "C[f|{\"n\": 1}]C[g|{}]"},
    {MISTRAL, &none, "a[TOOL_CALLS]f[ARGS]{\"s\": \"]\"}[TOOL_CALLS]g[CALL_ID]abcdefg12[ARGS]{}",
     "T[a]C[f|{\"s\": \"]\"}]C[g|{}]"},
    /* LFM2 */
    {LFM2, &none,
     "<|tool_call_start|>[f(s='a\n\"b\" \\'\xc3\xa9', n=1, o=" ALL_O "), g()]<|tool_call_end|>ok",
     "C[f|{\"s\": \"a\\n\\\"b\\\" '\xc3\xa9\", \"n\": 1, \"o\": " ALL_O "}]C[g|{}]"},
    {LFM2, &none, "<|tool_call_start|>[g()]<|tool_call_end|>g() is called", "C[g|{}]"},
    {LFM2, &none, "<|tool_call_start|>[f(n=1", "C[f|!]"},
    {LFM2, &none, "<|tool_call_start|>[g()], no<|tool_call_start|>[g()]", "C[g|{}]C[g|{}]"},
    /* Kimi */
    {KIMI, &none,
     "ok<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
     "{\"n\":1}<|tool_call_end|><|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}"
     "<|tool_call_end|><|tool_calls_section_end|>",
     "T[ok]C[f|{\"n\":1}]C[g|{}]"},
    /* gpt-oss */
    {NULL, &channels,
     "<|channel|>analysis<|message|>mm<|end|><|start|>assistant<|channel|>commentary "
     "to=functions.f <|constrain|>json<|message|>{\"n\":1}<|call|>",
     "R[mm]C[f|{\"n\":1}]"},
    {NULL, &channels,
     "<|channel|>analysis<|message|>mm<|end|><|start|>assistant to=functions.f<|channel|>"
     "commentary json<|message|>{\"n\":1}<|call|>",
     "R[mm]C[f|{\"n\":1}]"},
    {NULL, &channels, "<|channel|>commentary to=python code<|message|>1 + 1<|call|>",
     "T[<|channel|>commentary to=python code<|message|>1 + 1]"},
    {NULL, &channels, "<|channel|>final<|message|>{\"n\":1}", "T[{\"n\":1}]"},
};

/* ---- what came ---- */

struct heard {
    char text[1024];
    size_t n;
    int kind; /* of the latest piece; -1: none */
    uint32_t n_calls;
};

static void say(struct heard *h, const char *text, size_t n)
{
    n = n < sizeof h->text - 1 - h->n ? n : sizeof h->text - 1 - h->n;
    memcpy(h->text + h->n, text, n);
    h->n += n;
    h->text[h->n] = '\0';
}

static void end_part(struct heard *h)
{
    if (h->kind == SPW_PIECE_TEXT || h->kind == SPW_PIECE_REASONING)
        say(h, "]", 1);
    else if (h->kind == SPW_PIECE_CALL || h->kind == SPW_PIECE_ARGUMENTS)
        say(h, "!]", 2);
}

static int hear(void *context, const struct spw_answer_piece *p)
{
    struct heard *h = context;
    const bool is_part = p->kind == SPW_PIECE_TEXT || p->kind == SPW_PIECE_REASONING;
    if (is_part && (int)p->kind != h->kind) {
        end_part(h);
        say(h, p->kind == SPW_PIECE_TEXT ? "T[" : "R[", 2);
    }
    if (p->kind == SPW_PIECE_CALL) {
        end_part(h);
        say(h, "C[", 2);
        CHECK(p->call == h->n_calls++);
    }
    CHECK(is_part || p->call + 1 == h->n_calls);
    CHECK(p->bytes || p->kind == SPW_PIECE_CALL_END);
    say(h, p->text, p->bytes);
    if (p->kind == SPW_PIECE_CALL)
        say(h, "|", 1);
    if (p->kind == SPW_PIECE_CALL_END)
        say(h, "]", 1);
    h->kind = (int)p->kind;
    return 0;
}

static const struct spw_tool_style *style_of(const char *sign)
{
    for (size_t i = 0; sign && i < spw_tool_n_styles; i++)
        if (!strcmp(spw_tool_styles[i].sign, sign))
            return &spw_tool_styles[i];
    return &spw_tool_channels;
}

/* The text in pieces: the first one ends at `cut`, the others have `step` bytes. Each piece lies in
 * a block of its own, so that a read behind it is seen. */
static void hear_row(const struct row *r, size_t cut, size_t step, struct heard *h)
{
    const struct spw_tool_form form = {.style = style_of(r->sign)};
    const struct spw_answer_parts_options o = {
        .reasoning = r->form, .tools = &form, .tools_json = tools, .tools_bytes = sizeof tools - 1};
    struct spw_answer_parts *a;
    const size_t n = strlen(r->text);
    *h = (struct heard){.kind = -1};
    CHECK(!spw_answer_parts_open(&a, &o));
    for (size_t at = 0; at < n;) {
        const size_t bytes = at ? (step < n - at ? step : n - at) : (cut && cut < n ? cut : n);
        char *piece = malloc(bytes);
        memcpy(piece, r->text + at, bytes);
        CHECK(!spw_answer_parts_push(a, piece, bytes, hear, h));
        free(piece);
        at += bytes;
    }
    CHECK(!spw_answer_parts_finish(a, hear, h));
    end_part(h);
    spw_answer_parts_close(a);
}

static void test_rows(void)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const size_t n = strlen(rows[i].text);
        struct heard h;
        for (size_t cut = 0; cut <= n; cut++) {
            hear_row(&rows[i], cut, n, &h);
            CHECK_MSG(!strcmp(h.text, rows[i].expected), "row %zu cut at %zu: %s, expected %s", i,
                      cut, h.text, rows[i].expected);
        }
        for (size_t step = 1; step < 4; step++) {
            hear_row(&rows[i], step, step, &h);
            CHECK_MSG(!strcmp(h.text, rows[i].expected), "row %zu in steps of %zu: %s", i, step,
                      h.text);
        }
    }
}

/* Arguments come as soon as they are certain. */
static void test_stream(void)
{
    const struct spw_tool_form form = {.style = style_of(HERMES)};
    const struct spw_answer_parts_options o = {
        .tools = &form, .tools_json = tools, .tools_bytes = sizeof tools - 1};
    static const char *const pushes[][2] = {
        {"<tool_call>\n<function=f>\n<parameter=s>\n", "C[f|{\"s\": \""},
        {"ab\n", "C[f|{\"s\": \"ab"},
        {"c</par", "C[f|{\"s\": \"ab\\nc"},
        {"ameter>\n</function>", "C[f|{\"s\": \"ab\\nc\"}]"},
    };
    struct heard h = {.kind = -1};
    struct spw_answer_parts *a;
    CHECK(!spw_answer_parts_open(&a, &o));
    for (size_t i = 0; i < sizeof pushes / sizeof *pushes; i++) {
        CHECK(!spw_answer_parts_push(a, pushes[i][0], strlen(pushes[i][0]), hear, &h));
        CHECK_MSG(!strcmp(h.text, pushes[i][1]), "%s, expected %s", h.text, pushes[i][1]);
    }
    spw_answer_parts_close(a);
}

/* ---- what templates make of calls ---- */

struct calls {
    json_t *list; /* owned: [[name, arguments], ...] */
    char arguments[512];
    size_t n;
};

static int collect(void *context, const struct spw_answer_piece *p)
{
    struct calls *c = context;
    json_t *last = json_array_get(c->list, json_array_size(c->list) - 1);
    if (p->kind == SPW_PIECE_CALL) {
        json_array_append_new(c->list, json_pack("[s%]", p->text, p->bytes));
        c->n = 0;
    } else if (p->kind == SPW_PIECE_ARGUMENTS && p->bytes < sizeof c->arguments - c->n) {
        memcpy(c->arguments + c->n, p->text, p->bytes);
        c->n += p->bytes;
    } else if (p->kind == SPW_PIECE_CALL_END) {
        json_array_append_new(last, json_loadb(c->arguments, c->n, 0, NULL));
    }
    return 0;
}

/* The calls of the answer that a template has written: those of `messages`, if the model has a
 * style. Text that is beside calls does not count: it has the marks of turns. */
static json_t *calls_of(const struct spw_tool_form *form, const char *text)
{
    const struct spw_answer_parts_options o = {
        .reasoning = form->style == &spw_tool_channels ? &channels : &none,
        .tools = form,
        .tools_json = tools,
        .tools_bytes = sizeof tools - 1};
    struct spw_answer_parts *a;
    struct calls c = {.list = json_array()};
    CHECK(!spw_answer_parts_open(&a, &o));
    CHECK(!spw_answer_parts_push(a, text, strlen(text), collect, &c));
    CHECK(!spw_answer_parts_finish(a, collect, &c));
    spw_answer_parts_close(a);
    return c.list;
}

/* NULL: the template refuses to. */
static char *render(const struct spw_chat_template *t, const char *messages, bool prompt)
{
    const time_t now = 1722000000;
    struct tm utc;
    char *text = NULL;
    size_t bytes;
    const struct spw_chat_request q = {.messages_json = messages,
                                       .messages_bytes = strlen(messages),
                                       .tools_json = tools,
                                       .tools_bytes = sizeof tools - 1,
                                       .add_generation_prompt = prompt,
                                       .now = gmtime_r(&now, &utc)};
    int rc = spw_chat_template_render(t, &q, &text, &bytes, NULL);
    CHECK(rc == 0 || rc == -EINVAL);
    return text;
}

#define ASK "{\"role\":\"user\",\"content\":\"Question?\"}"
#define CALL_F                                                                                     \
    "{\"id\":\"abcdefgh1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":"      \
    "{\"s\":\"a\\n\\\"b\\\" \xc3\xa9\",\"n\":1,\"o\":{\"k\":[true,null]}}}}"
#define CALL_G                                                                                     \
    "{\"id\":\"abcdefgh2\",\"type\":\"function\",\"function\":{\"name\":\"g\",\"arguments\":{}}}"
#define ANSWER(calls) "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[" calls "]}"

static void test_template(const char *file, size_t *n_tested)
{
    static const char wanted[] =
        "[[\"f\",{\"s\":\"a\\n\\\"b\\\" \xc3\xa9\",\"n\":1,\"o\":{\"k\":[true,null]}}],[\"g\",{}]]";
    struct spw_error err = {0};
    struct spw_chat_template *t;
    struct spw_tool_form form;
    const bool is_one = strstr(file, "Llama-3") || strstr(file, "gpt-oss"); /* calls at a time */
    CHECK_MSG(!spw_chat_template_open_file(&t, "tests/golden/arcee_plain", file, &err), "%s",
              err.text);
    CHECK(!spw_tool_form_find(&form, t, NULL));
    if (strstr(file, "gpt-oss"))
        form.style = &spw_tool_channels; /* which the tokenizer tells */
    char *prompt = form.style ? render(t, "[" ASK "]", true) : NULL;
    char *all = prompt ? render(t,
                                is_one ? "[" ASK "," ANSWER(CALL_F) "]"
                                       : "[" ASK "," ANSWER(CALL_F "," CALL_G) "]",
                                false)
                       : NULL;
    if (all) {
        const size_t n = strlen(prompt);
        const char *answer = !strncmp(all, prompt, n) ? all + n : strstr(all, "Question?");
        json_t *expected = json_loads(wanted, 0, NULL), *calls = calls_of(&form, answer);
        if (is_one)
            json_array_remove(expected, 1);
        CHECK_MSG(json_equal(calls, expected), "%s: %s", file, answer);
        json_decref(expected);
        json_decref(calls);
        ++*n_tested;
    }
    spw_free(prompt);
    spw_free(all);
    spw_chat_template_close(t);
}

static void test_templates(void)
{
    const char *data = getenv("SPW_DATA");
    char folder[4096], file[4400];
    size_t n = 0;
    snprintf(folder, sizeof folder, "%s/chat/templates", data ? data : "../shared/data");
    DIR *dir = opendir(folder);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        snprintf(file, sizeof file, "%s/%s", folder, e->d_name);
        if (e->d_name[0] != '.')
            test_template(file, &n);
    }
    if (dir)
        closedir(dir);
    CHECK_MSG(!dir || n >= 20, "%zu templates", n);
}

/* ---- answers that must be calls ---- */

#define QWEN "<parameter="
#define GLM "<arg_key>"
#define MISTRAL_ARGS "[ARGS]"
#define MISTRAL_ID "[CALL_ID]"

static const struct {
    const char *sign, *name, *text; /* name NULL: any function */
    const char *expected;           /* as in the rows above; NULL: it is not allowed */
} forced[] = {
    {HERMES, "f", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 1}}\n</tool_call>",
     "C[f|{\"n\": 1}]"},
    {HERMES, "f", "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>", NULL},
    {HERMES, "f", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": \"\"}}\n</tool_call>",
     NULL},
    {HERMES, NULL, "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>", "C[g|{}]"},
    {HERMES, NULL, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"u\": null}}\n</tool_call>",
     "C[f|{\"u\": null}]"},
    {HERMES, NULL, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"u\": null}}", NULL},
    {HERMES, NULL, "Hi", NULL},
    {LLAMA, "g", "{\"name\": \"g\", \"parameters\": {}}", "C[g|{}]"},
    {QWEN, "f",
     "<tool_call>\n<function=f>\n<parameter=s>\na <b> << </para </ \"\\\n\xc3\xa9<\n</parameter>\n"
     "<parameter=n>\n-3\n</parameter>\n<parameter=u>\nnull\n</parameter>\n</function>\n"
     "</tool_call>",
     "C[f|{\"s\": \"a <b> << </para </ \\\"\\\\\\n\xc3\xa9<\", \"n\": -3, \"u\": null}]"},
    {QWEN, "f", "<tool_call>\n<function=f>\n</function>\n</tool_call>", "C[f|{}]"},
    {QWEN, "g", "<tool_call>\n<function=g>\n</function>\n</tool_call>", "C[g|{}]"},
    {QWEN, "f",
     "<tool_call>\n<function=f>\n<parameter=s>\na</parameter>b\n</parameter>\n</function>\n"
     "</tool_call>",
     NULL},
    {QWEN, "f",
     "<tool_call>\n<function=f>\n<parameter=n>\nx\n</parameter>\n</function>\n</tool_call>", NULL},
    {QWEN, "f", "<tool_call>\n<function=g>\n</function>\n</tool_call>", NULL},
    {GLM, "f",
     "<tool_call>f\n<arg_key>s</arg_key><arg_value>a\"b</arg_value>\n<arg_key>n</arg_key>"
     "<arg_value>12</arg_value>\n</tool_call>",
     "C[f|{\"s\": \"a\\\"b\", \"n\": 12}]"},
    {MINIMAX, "f",
     "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"s\">a b</parameter>\n</invoke>\n"
     "</minimax:tool_call>",
     "C[f|{\"s\": \"a b\"}]"},
    {MISTRAL, "f", "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"n\": 2}}]", "C[f|{\"n\": 2}]"},
    {MISTRAL_ARGS, NULL, "[TOOL_CALLS]f[ARGS]{\"n\": 2}", "C[f|{\"n\": 2}]"},
    {MISTRAL_ARGS, NULL, "[TOOL_CALLS]f[ARGS]{\"n\": 2", NULL},
    {MISTRAL_ID, NULL, "[TOOL_CALLS]g[CALL_ID]abcDEF123[ARGS]{}", "C[g|{}]"},
    {LFM2, "f", "<|tool_call_start|>[f(s=\"a)\\n\", o={\"k\": [1]})]<|tool_call_end|>",
     "C[f|{\"s\": \"a)\\n\", \"o\": {\"k\": [1]}}]"},
    {LFM2, "f", "<|tool_call_start|>[f()]<|tool_call_end|>", "C[f|{}]"},
    {LFM2, "f", "<|tool_call_start|>[f(s=a)]<|tool_call_end|>", NULL},
    {KIMI, "f",
     "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
     "{\"n\": 1}<|tool_call_end|><|tool_calls_section_end|>",
     "C[f|{\"n\": 1}]"},
    {NULL, "f", "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"n\": 1}",
     "C[f|{\"n\": 1}]"},
};

static void test_forced(void)
{
    struct spw_error err = {0};
    struct spw_grammar *g;
    for (size_t i = 0; i < sizeof forced / sizeof *forced; i++) {
        const struct spw_tool_form form = {.style = style_of(forced[i].sign)};
        const struct row row = {forced[i].sign, forced[i].sign ? &none : &channels, forced[i].text,
                                forced[i].expected};
        struct spw_grammar_run *run;
        struct heard h;
        CHECK_MSG(!spw_tool_form_grammar(&g, &form, NULL, tools, forced[i].name, &err), "%s",
                  err.text);
        CHECK(!spw_grammar_run_open(&run, g, NULL, false));
        const bool good = !spw_grammar_run_push(run, forced[i].text, strlen(forced[i].text)) &&
                          spw_grammar_run_may_end(run);
        CHECK_MSG(good == (forced[i].expected != NULL), "%zu: %s", i, forced[i].text);
        if (row.expected) {
            hear_row(&row, 0, 1, &h);
            CHECK_MSG(!strcmp(h.text, row.expected), "%zu: %s, expected %s", i, h.text,
                      row.expected);
        }
        spw_grammar_run_close(run);
        spw_grammar_close(g);
    }
    const struct spw_tool_form hermes = {.style = style_of(HERMES)},
                               gemma = {.style = style_of(GEMMA)};
    CHECK(spw_tool_form_grammar(&g, &hermes, NULL, tools, "h", &err) == -EINVAL && !g);
    CHECK(spw_tool_form_grammar(&g, &gemma, NULL, tools, NULL, &err) == -ENOTSUP && !g);
}

/* ---- forced calls, token by token ---- */

#define SIMPLE                                                                                     \
    "{\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"integer\",\"minimum\":-9,\"maximum\":" \
    "99},\"k\":{\"enum\":[\"a b\",\"c<d\"],\"type\":\"string\"},\"t\":{\"type\":\"string\","       \
    "\"maxLength\":4},\"b\":{\"type\":\"boolean\"},\"l\":{\"type\":\"array\",\"items\":{\"enum\":" \
    "["                                                                                            \
    "1,2]},\"maxItems\":2}},\"required\":[\"n\",\"k\"]}"

/* Any of the tokens that are allowed, until the text may end. */
static size_t write_call(struct spw_grammar_run *r, const struct spw_tokenizer *t, uint64_t *seed,
                         char *out, size_t most, bool *has_special)
{
    const uint32_t vocab = spw_tokenizer_vocab_size(t);
    size_t n = 0;
    *has_special = false;
    while (!spw_grammar_run_may_end(r)) {
        const uint64_t *allowed;
        int32_t id = -1;
        uint32_t n_allowed = 0;
        char *text;
        size_t bytes;
        CHECK(!spw_grammar_run_allowed(r, &allowed));
        for (uint32_t i = 0; allowed && i < vocab; i++)
            if ((allowed[i / 64] >> i % 64 & 1) && check_random(seed) % ++n_allowed == 0)
                id = (int32_t)i;
        CHECK(id >= 0 && !spw_grammar_run_token(r, id));
        if (id < 0 || spw_tokenizer_token_bytes(t, id, &text, &bytes) || n + bytes > most)
            return 0;
        memcpy(out + n, text, bytes);
        n += bytes;
        *has_special |= spw_tokenizer_is_special(t, id);
        spw_free(text);
    }
    return n;
}

/* Each style, its marks texts or special tokens: what the masks let through is one call, with
 * arguments of the schema. */
static void test_forced_tokens(void)
{
    enum { MOST = 4096, ROUNDS = 40 };
    static const char some[] = "[{\"type\":\"function\",\"function\":{\"name\":\"f\","
                               "\"parameters\":" SIMPLE "}}]";
    static const char *const specials[] = {"<|start|>",
                                           "[TOOL_CALLS]",
                                           "[ARGS]",
                                           "[CALL_ID]",
                                           "<|tool_call_start|>",
                                           "<|tool_call_end|>",
                                           "<arg_key>",
                                           "</arg_key>",
                                           "<arg_value>",
                                           "</arg_value>",
                                           "<tool_call>",
                                           "</tool_call>",
                                           "<minimax:tool_call>",
                                           "</minimax:tool_call>",
                                           "<|tool_calls_section_begin|>",
                                           "<|tool_call_begin|>",
                                           "<|tool_call_argument_begin|>",
                                           "<|channel|>",
                                           "<|constrain|>",
                                           "<|message|>"};
    uint64_t seed = check_seed();
    char text[MOST];
    static char json[ALL_BYTES_TOKENIZER_BYTES];
    struct spw_tokenizer *t;
    struct spw_vocabulary *v;
    struct spw_grammar *arguments;
    const size_t n_json =
        all_bytes_tokenizer_json(json, specials, sizeof specials / sizeof *specials);
    CHECK(!spw_tokenizer_parse(&t, json, n_json, "bytes", NULL));
    CHECK(!spw_vocabulary_open(&v, t, spw_tokenizer_vocab_size(t)));
    CHECK(!spw_grammar_open_schema(&arguments, SIMPLE, sizeof SIMPLE - 1, NULL));
    for (size_t i = 0; i <= spw_tool_n_styles; i++) {
        const struct spw_tool_form form = {.style = i < spw_tool_n_styles ? &spw_tool_styles[i]
                                                                          : &spw_tool_channels};
        const struct spw_answer_parts_options o = {.reasoning =
                                                       i < spw_tool_n_styles ? &none : &channels,
                                                   .tools = &form,
                                                   .tools_json = some,
                                                   .tools_bytes = sizeof some - 1};
        for (int round = 0; form.style->call && round < ROUNDS; round++) {
            struct spw_grammar *g;
            struct spw_grammar_run *r;
            struct spw_answer_parts *a;
            struct spw_error err = {0};
            struct heard h = {.kind = -1};
            const struct spw_tokenizer *of_marks = round % 2 ? t : NULL;
            CHECK_MSG(!spw_tool_form_grammar(&g, &form, of_marks, some, "f", &err), "%s", err.text);
            CHECK(!spw_grammar_run_open(&r, g, v, false));
            bool has_special;
            const size_t n = write_call(r, t, &seed, text, sizeof text, &has_special);
            CHECK(has_special == (of_marks && spw_tokenizer_id(t, form.style->starts[0]) >= 0));
            spw_grammar_run_close(r);
            CHECK(!spw_answer_parts_open(&a, &o));
            CHECK(!spw_answer_parts_push(a, text, n, hear, &h));
            CHECK(!spw_answer_parts_finish(a, hear, &h));
            end_part(&h);
            spw_answer_parts_close(a);
            const size_t n_heard = strlen(h.text);
            CHECK(!spw_grammar_run_open(&r, arguments, NULL, false));
            CHECK_MSG(n_heard > 5 && !strncmp(h.text, "C[f|", 4) &&
                          !spw_grammar_run_push(r, h.text + 4, n_heard - 5) &&
                          spw_grammar_run_may_end(r) && !strcmp(h.text + n_heard - 1, "]"),
                      "%s: %.*s: %s", form.style->sign, (int)n, text, h.text);
            spw_grammar_run_close(r);
            spw_grammar_close(g);
        }
    }
    spw_grammar_close(arguments);
    spw_vocabulary_close(v);
    spw_tokenizer_close(t);
}

/* ---- text without calls ---- */

struct same {
    const char *text; /* what has not come yet */
};

static int compare(void *context, const struct spw_answer_piece *p)
{
    struct same *s = context;
    CHECK(p->kind == SPW_PIECE_TEXT && !memcmp(s->text, p->text, p->bytes));
    s->text += p->bytes;
    return 0;
}

/* A book has no calls, and nothing of it is lost. */
static void test_book(void)
{
    enum { MOST = 1 << 16, PIECE = 700 };
    const char *data = getenv("SPW_DATA");
    static char text[MOST + 1];
    char path[4096];
    snprintf(path, sizeof path, "%s/texts/tinyshakespeare.txt", data ? data : "../shared/data");
    FILE *f = fopen(path, "rb");
    const size_t n = f ? fread(text, 1, MOST, f) : 0;
    if (f)
        fclose(f);
    for (size_t i = 0; i < spw_tool_n_styles && n; i++) {
        const struct spw_tool_form form = {.style = &spw_tool_styles[i]};
        const struct spw_answer_parts_options o = {
            .tools = &form, .tools_json = tools, .tools_bytes = sizeof tools - 1};
        struct spw_answer_parts *a;
        struct same s = {text};
        CHECK(!spw_answer_parts_open(&a, &o));
        for (size_t at = 0; at < n; at += PIECE)
            CHECK(
                !spw_answer_parts_push(a, text + at, n - at < PIECE ? n - at : PIECE, compare, &s));
        CHECK(!spw_answer_parts_finish(a, compare, &s));
        CHECK(s.text == text + n);
        spw_answer_parts_close(a);
    }
}

static int stop(void *context, const struct spw_answer_piece *p)
{
    (void)context, (void)p;
    return -EPIPE;
}

static void test_refusals(void)
{
    const struct spw_tool_form form = {.style = style_of(HERMES)};
    struct spw_answer_parts_options o = {.tools = &form, .tools_json = "{}", .tools_bytes = 2};
    struct spw_answer_parts *a;
    CHECK(spw_answer_parts_open(&a, &o) == -EINVAL && !a);
    o.tools_json = NULL;
    CHECK(!spw_answer_parts_open(&a, &o));
    CHECK(spw_answer_parts_push(a, "text", 4, stop, NULL) == -EPIPE);
    spw_answer_parts_close(a);
}

int main(void)
{
    int64_t outstanding = spw_alloc_outstanding();
    test_rows();
    test_stream();
    test_templates();
    test_book();
    test_forced();
    test_forced_tokens();
    test_refusals();
    CHECK(spw_alloc_outstanding() == outstanding);
    return check_done();
}
