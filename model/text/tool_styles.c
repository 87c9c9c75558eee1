/* The styles in which models write calls, and how each one begins: see tool_calls.h.
 *
 *   object    {"name": "f", "arguments": {...}}        also "parameters"; in any order
 *   named     f MARK {...}                             the arguments alone are JSON
 *   tags      <function=f> <parameter=s> ... </parameter> </function>
 *   Python    [f(s='a', n=1), g()]
 *   bare      f{n:1,s:<|"|>a<|"|>} */
#include "model/text/tool_calls.h"

#include <string.h>

/* ---- the begin of a call ---- */

/* Bytes [from, to) are the name. What follows the head begins at `next`, in the given state. */
static enum spw_tool_read begin_call(struct spw_answer_parts *a, size_t from, size_t to,
                                     size_t next, enum spw_parts_state state)
{
    const char *name = a->held + from;
    if (a->style->drops_namespace) {
        const char *number = memchr(name, ':', to - from);
        to = number ? (size_t)(number - a->held) : to;
        from += to - from > 10 && !memcmp(name, "functions.", 10) ? 10 : 0;
    }
    if (from == to)
        return SPW_TOOL_NONE;
    const json_t *tool = spw_tool_find(a->tools, a->held + from, to - from);
    a->parameters = json_object_get(tool, "parameters");
    a->scan = (struct spw_json_scan){0};
    a->has_arguments = a->in_object = false;
    a->state = state;
    a->n_calls++;
    spw_parts_give(a, SPW_PIECE_CALL, a->held + from, to - from);
    spw_parts_drop(a, next);
    return SPW_TOOL_DONE;
}

/* ---- an object ---- */

/* What the begin of an object has told: places in the held bytes, 0: not yet. */
struct object_head {
    size_t name, name_end, arguments, arguments_end, end;
};

/* The bytes of the JSON value at `at`; 0: it is not complete. */
static size_t value_bytes(const struct spw_answer_parts *a, size_t at)
{
    struct spw_json_scan s = {0};
    const size_t n = at < a->n ? spw_json_scan(&s, a->held + at, a->n - at) : 0;
    return spw_json_has_ended(&s) && (at + n < a->n || a->held[at] == '"' || a->held[at] == '{')
               ? n
               : 0;
}

static bool key_is(const struct spw_answer_parts *a, size_t at, size_t n, const char *key)
{
    return n == strlen(key) + 2 && !memcmp(a->held + at + 1, key, n - 2);
}

/* Reads members until the name and the begin of the arguments are known, or the object ends. */
static enum spw_tool_read read_members(struct spw_answer_parts *a, size_t at, struct object_head *h)
{
    for (;;) {
        at = spw_tool_skip(a, at);
        if (at < a->n && (a->held[at] == ',' || a->held[at] == '{'))
            at = spw_tool_skip(a, at + 1);
        if (at < a->n && a->held[at] == '}') {
            h->end = at + 1;
            return SPW_TOOL_DONE;
        }
        if (at < a->n && a->held[at] != '"')
            return SPW_TOOL_NONE;
        const size_t key = at, n_key = value_bytes(a, at);
        at = spw_tool_skip(a, key + n_key);
        if (!n_key || at == a->n)
            return SPW_TOOL_MORE;
        if (a->held[at] != ':')
            return SPW_TOOL_NONE;
        const size_t value = spw_tool_skip(a, at + 1), n = value_bytes(a, value);
        const bool holds =
            key_is(a, key, n_key, "arguments") || key_is(a, key, n_key, "parameters");
        const bool names = key_is(a, key, n_key, "name");
        if (a->style->may_be_bare && !holds && !names && !key_is(a, key, n_key, "type"))
            return SPW_TOOL_NONE; /* an answer that is JSON */
        if (value == a->n)
            return SPW_TOOL_MORE;
        if (holds && a->held[value] != '{' && a->held[value] != '"')
            return SPW_TOOL_NONE;
        if (holds)
            h->arguments = value, h->arguments_end = value + n;
        if (holds && h->name && a->held[value] == '{')
            return SPW_TOOL_DONE;
        if (!n)
            return SPW_TOOL_MORE;
        if (names && a->held[value] != '"')
            return SPW_TOOL_NONE;
        if (names)
            h->name = value + 1, h->name_end = value + n - 1;
        at = value + n;
    }
}

/* Arguments that stand before the name, or are a text with JSON in it. */
static void give_arguments(struct spw_answer_parts *a, const char *text, size_t bytes)
{
    json_t *inner = NULL;
    if (*text == '"' && !spw_json_parse(&inner, text, bytes, JSON_DECODE_ANY, NULL))
        spw_parts_give(a, SPW_PIECE_ARGUMENTS, json_string_value(inner), json_string_length(inner));
    else if (*text != '"')
        spw_parts_give(a, SPW_PIECE_ARGUMENTS, text, bytes);
    json_decref(inner);
}

static enum spw_tool_read read_object(struct spw_answer_parts *a, size_t at)
{
    struct object_head h = {0};
    at = spw_tool_skip(a, at);
    if (at < a->n && a->held[at] != '{')
        return SPW_TOOL_NONE;
    enum spw_tool_read r = at < a->n ? read_members(a, at, &h) : SPW_TOOL_MORE;
    if (r != SPW_TOOL_DONE)
        return r;
    if (!h.name ||
        (a->style->may_be_bare && !spw_tool_find(a->tools, a->held + h.name, h.name_end - h.name)))
        return SPW_TOOL_NONE;
    if (!h.end) { /* the arguments are not complete */
        r = begin_call(a, h.name, h.name_end, h.arguments, SPW_PARTS_JSON);
        a->in_object = true;
        return r;
    }
    const size_t n = h.arguments_end - h.arguments;
    char *arguments = spw_alloc(n + 2);
    if (!arguments) {
        a->rc = -ENOMEM;
        return SPW_TOOL_MORE;
    }
    memcpy(arguments, n ? a->held + h.arguments : "{}", n ? n : 2);
    r = begin_call(a, h.name, h.name_end, h.end, SPW_PARTS_BEHIND);
    if (r == SPW_TOOL_DONE) {
        give_arguments(a, arguments, n ? n : 2);
        spw_tool_end_call(a);
    }
    spw_free(arguments);
    return r;
}

/* ---- tags ---- */

static const struct spw_tool_tags qwen_tags = {.name = "<function=",
                                               .name_end = ">",
                                               .key = "<parameter=",
                                               .key_end = ">",
                                               .value_end = "</parameter>",
                                               .end = "</function>",
                                               .between = "\n",
                                               .breaks = true},
                                  glm_tags = {.name = "",
                                              .name_end = "",
                                              .key = "<arg_key>",
                                              .key_end = "</arg_key>",
                                              .value = "<arg_value>",
                                              .value_end = "</arg_value>",
                                              .end = "</tool_call>",
                                              .between = "\n"},
                                  deepseek_tags = {.name = "<｜DSML｜invoke name=\"",
                                                   .name_end = "\">",
                                                   .key = "<｜DSML｜parameter name=\"",
                                                   .key_end = ">",
                                                   .value_end = "</｜DSML｜parameter>",
                                                   .end = "</｜DSML｜invoke>",
                                                   .between = "\n",
                                                   .says_type = true},
                                  minimax_tags = {.name = "<invoke name=\"",
                                                  .name_end = "\">",
                                                  .key = "<parameter name=\"",
                                                  .key_end = "\">",
                                                  .value_end = "</parameter>",
                                                  .end = "</invoke>",
                                                  .between = "\n"};

/* Whether a parameter or the end of the call stands at `at`, behind white space. */
static enum spw_tool_read begins_tags(const struct spw_answer_parts *a, size_t at,
                                      const struct spw_tool_tags *tags)
{
    at = spw_tool_skip(a, at);
    const enum spw_tool_read key = spw_tool_stands_at(a, at, tags->key);
    return key == SPW_TOOL_NONE ? spw_tool_stands_at(a, at, tags->end) : key;
}

/* A name in the tags, behind white space. `known`: only that of a function that is known. */
static enum spw_tool_read read_tags(struct spw_answer_parts *a, size_t at,
                                    const struct spw_tool_tags *tags, bool known)
{
    at = spw_tool_skip(a, at);
    enum spw_tool_read r = spw_tool_stands_at(a, at, tags->name);
    if (r != SPW_TOOL_DONE)
        return r;
    const size_t from = at + strlen(tags->name), to = spw_tool_end_of_name(a, from);
    if (to == a->n)
        return SPW_TOOL_MORE;
    if ((r = spw_tool_stands_at(a, to, tags->name_end)) != SPW_TOOL_DONE)
        return r;
    if (!*tags->name_end && (r = begins_tags(a, to, tags)) != SPW_TOOL_DONE)
        return r;
    if (known && !spw_tool_find(a->tools, a->held + from, to - from))
        return SPW_TOOL_NONE;
    a->tags = tags;
    return begin_call(a, from, to, to + strlen(tags->name_end), SPW_PARTS_KEY);
}

/* ---- Python ---- */

static enum spw_tool_read read_python(struct spw_answer_parts *a, size_t at)
{
    const size_t from = spw_tool_skip(a, at), to = spw_tool_end_of_name(a, from);
    if (to == a->n)
        return SPW_TOOL_MORE;
    if (a->held[to] != '(')
        return SPW_TOOL_NONE;
    return begin_call(a, from, to, to + 1, SPW_PARTS_ARGUMENT);
}

/* ---- the styles ---- */

/* {"name": ...}, or tags. */
static enum spw_tool_read tool_call_head(struct spw_answer_parts *a)
{
    const size_t at = spw_tool_skip(a, a->head);
    if (a->head && a->held[a->head - 1] == '=') /* <function= without <tool_call> before it */
        return read_tags(a, a->head - strlen(qwen_tags.name), &qwen_tags, true);
    if (at == a->n)
        return SPW_TOOL_MORE;
    if (a->held[at] == '{')
        return read_object(a, at);
    if (spw_tool_stands_at(a, at, qwen_tags.name) != SPW_TOOL_NONE)
        return read_tags(a, at, &qwen_tags, false);
    return read_tags(a, at, &glm_tags, false);
}

static enum spw_tool_read minimax_head(struct spw_answer_parts *a)
{
    return read_tags(a, a->head, &minimax_tags, false);
}

static enum spw_tool_read deepseek_tags_head(struct spw_answer_parts *a)
{
    return read_tags(a, a->head, &deepseek_tags, false);
}

static enum spw_tool_read object_head(struct spw_answer_parts *a)
{
    return read_object(a, a->head);
}

/* Where a mark stands, at most `most` bytes behind `at`. What it says depends on these bytes only.
 */
static enum spw_tool_read look_near(const struct spw_answer_parts *a, size_t at, size_t most,
                                    const char *mark, size_t *to)
{
    *to = spw_tool_look_for(a, at, mark);
    if (*to < a->n)
        return *to - at > most ? SPW_TOOL_NONE : SPW_TOOL_DONE;
    return a->n >= at + most + strlen(mark) ? SPW_TOOL_NONE : SPW_TOOL_MORE;
}

/* NAME MARK {...}; another mark with an id may stand between them. */
static enum spw_tool_read read_named(struct spw_answer_parts *a, size_t from, const char *mark)
{
    enum { MOST = 256 };
    size_t to, name_end = from = spw_tool_skip(a, from);
    while (name_end < a->n && (spw_tool_is_name(a->held[name_end]) || a->held[name_end] == ':'))
        name_end++;
    if (name_end < a->n && a->held[name_end] != mark[0])
        return SPW_TOOL_NONE;
    enum spw_tool_read r = look_near(a, from, MOST, mark, &to);
    if (r != SPW_TOOL_DONE)
        return r;
    const size_t next = spw_tool_skip(a, to + strlen(mark));
    if ((r = spw_tool_stands_at(a, next, "{")) != SPW_TOOL_DONE)
        return r;
    return begin_call(a, from, name_end, next, SPW_PARTS_JSON);
}

/* [TOOL_CALLS] with a list of objects, or NAME[ARGS]{...} */
static enum spw_tool_read mistral_head(struct spw_answer_parts *a)
{
    const size_t at = spw_tool_skip(a, a->head);
    if (at == a->n)
        return SPW_TOOL_MORE;
    if (a->held[at] == '[' || a->held[at] == '{')
        return read_object(a, at + (a->held[at] == '['));
    return read_named(a, at, "[ARGS]");
}

static enum spw_tool_read lfm2_head(struct spw_answer_parts *a)
{
    const size_t at = spw_tool_skip(a, a->head);
    if (at == a->n)
        return SPW_TOOL_MORE;
    return read_python(a, at + (a->held[at] == '['));
}

static enum spw_tool_read kimi_head(struct spw_answer_parts *a)
{
    static const char begin[] = "<|tool_call_begin|>";
    const size_t at = spw_tool_skip(a, a->head);
    const enum spw_tool_read r =
        spw_tool_stands_at(a, at, begin); /* behind the mark of the section */
    return r == SPW_TOOL_MORE ? r
                              : read_named(a, at + (r == SPW_TOOL_DONE ? sizeof begin - 1 : 0),
                                           "<|tool_call_argument_begin|>");
}

/* function SEP NAME, and JSON in a fence; or NAME SEP {...} */
static enum spw_tool_read deepseek_head(struct spw_answer_parts *a)
{
    static const char begin[] = "<｜tool▁call▁begin｜>", sep[] = "<｜tool▁sep｜>",
                      fence[] = "```json";
    size_t at = spw_tool_skip(a, a->head);
    enum spw_tool_read r = spw_tool_stands_at(a, at, begin);
    if (r == SPW_TOOL_MORE)
        return r;
    at += r == SPW_TOOL_DONE ? sizeof begin - 1 : 0; /* behind the mark of all calls */
    const size_t type_end = spw_tool_end_of_name(a, at);
    if ((r = spw_tool_stands_at(a, type_end, sep)) != SPW_TOOL_DONE)
        return r;
    const size_t from = spw_tool_skip(a, type_end + sizeof sep - 1),
                 to = spw_tool_end_of_name(a, from);
    if (from < a->n && a->held[from] == '{')
        return begin_call(a, at, type_end, from, SPW_PARTS_JSON);
    if ((r = spw_tool_stands_at(a, spw_tool_skip(a, to), fence)) != SPW_TOOL_DONE)
        return r;
    const size_t json = spw_tool_skip(a, spw_tool_skip(a, to) + sizeof fence - 1);
    if ((r = spw_tool_stands_at(a, json, "{")) != SPW_TOOL_DONE)
        return r;
    return begin_call(a, from, to, json, SPW_PARTS_JSON);
}

/* call:NAME{...} */
static enum spw_tool_read gemma_head(struct spw_answer_parts *a)
{
    static const char begin[] = "call:";
    const size_t at = spw_tool_skip(a, a->head), from = at + sizeof begin - 1,
                 to = spw_tool_end_of_name(a, from);
    enum spw_tool_read r = spw_tool_stands_at(a, at, begin);
    if (r != SPW_TOOL_DONE || (r = spw_tool_stands_at(a, to, "{")) != SPW_TOOL_DONE)
        return r;
    return begin_call(a, from, to, to, SPW_PARTS_BARE);
}

/* The splitter gives the header of a message to a tool (reasoning.h): "to=functions.NAME". */
static enum spw_tool_read channel_head(struct spw_answer_parts *a)
{
    static const char to[] = " to=", message[] = "<|message|>";
    size_t end;
    enum spw_tool_read r = look_near(a, 0, SPW_REASONING_MOST_HELD, message, &end);
    if (r != SPW_TOOL_DONE)
        return r;
    const size_t at = spw_tool_look_for(a, 0, to);
    if (at > end)
        return SPW_TOOL_NONE;
    const size_t from = at + sizeof to - 1, json = spw_tool_skip(a, end + sizeof message - 1);
    if ((r = spw_tool_stands_at(a, json, "{")) != SPW_TOOL_DONE)
        return r;
    return begin_call(a, from, spw_tool_end_of_name(a, from), json, SPW_PARTS_JSON);
}

#define MISTRAL(its_sign, its_call)                                                                \
    {                                                                                              \
        .sign = its_sign, .starts = {"[TOOL_CALLS]"}, .read_head = mistral_head,                   \
        .inside = {"[CALL_ID]", "[ARGS]"}, .call = its_call, .arguments = "arguments",             \
        .wants_short_ids = true, .passes = {                                                       \
            "]",                                                                                   \
            ","                                                                                    \
        }                                                                                          \
    }

/* Order: a sign that stands in the templates of other styles, too, comes later. */
const struct spw_tool_style spw_tool_styles[] = {
    MISTRAL("[CALL_ID]", "[TOOL_CALLS]{name}[CALL_ID]{id}[ARGS]{arguments}"),
    MISTRAL("[ARGS]", "[TOOL_CALLS]{name}[ARGS]{arguments}"),
    MISTRAL("[TOOL_CALLS]", "[TOOL_CALLS][{object}]"),
    {.sign = "<|tool_call_start|>",
     .starts = {"<|tool_call_start|>"},
     .is_list = true,
     .read_head = lfm2_head,
     .call = "<|tool_call_start|>[{name}({python})]<|tool_call_end|>",
     .passes = {",", "]", "<|tool_call_end|>"}},
    {.sign = "<minimax:tool_call>",
     .starts = {"<minimax:tool_call>"},
     .read_head = minimax_head,
     .call = "<minimax:tool_call>\n<invoke name=\"{name}\">\n{tags}</invoke>\n"
             "</minimax:tool_call>",
     .tags = &minimax_tags,
     .passes = {"</minimax:tool_call>"}},
    {.sign = "<|tool_call_begin|>",
     .starts = {"<|tool_calls_section_begin|>", "<|tool_call_begin|>"},
     .drops_namespace = true,
     .read_head = kimi_head,
     .inside = {"<|tool_call_argument_begin|>"},
     .call = "<|tool_calls_section_begin|><|tool_call_begin|>functions.{name}:0"
             "<|tool_call_argument_begin|>{arguments}<|tool_call_end|><|tool_calls_section_end|>",
     .passes = {"<|tool_call_end|>", "<|tool_calls_section_end|>"}},
    {.sign = "<｜tool▁call▁begin｜>",
     .starts = {"<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"},
     .read_head = deepseek_head,
     .inside = {"<｜tool▁sep｜>"},
     .passes = {"```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"}},
    {.sign = "｜DSML｜",
     .starts = {"<｜DSML｜function_calls>", "<｜DSML｜tool_calls>"},
     .read_head = deepseek_tags_head,
     .passes = {"</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"}},
    {.sign = "<|tool_call>call:",
     .starts = {"<|tool_call>"},
     .read_head = gemma_head,
     .inside = {"<|\"|>"},
     .passes = {"<tool_call|>", "<channel|>"}},
    {.sign = "<parameter=",
     .starts = {"<tool_call>", "<function="},
     .read_head = tool_call_head,
     .call = "<tool_call>\n<function={name}>\n{tags}</function>\n</tool_call>",
     .tags = &qwen_tags,
     .passes = {"</tool_call>"}},
    {.sign = "<arg_key>",
     .starts = {"<tool_call>"},
     .read_head = tool_call_head,
     .call = "<tool_call>{name}\n{tags}</tool_call>",
     .tags = &glm_tags,
     .passes = {"</tool_call>"}},
    {.sign = "<tool_call>",
     .starts = {"<tool_call>", "<function="},
     .read_head = tool_call_head,
     .call = "<tool_call>\n{object}\n</tool_call>",
     .arguments = "arguments",
     .passes = {"</tool_call>"}},
    {.sign = "\"parameters\": dictionary",
     .starts = {"<|python_tag|>"},
     .may_be_bare = true,
     .read_head = object_head,
     .call = "{object}",
     .arguments = "parameters",
     .passes = {";"}},
};
const size_t spw_tool_n_styles = sizeof spw_tool_styles / sizeof *spw_tool_styles;

const struct spw_tool_style spw_tool_channels = {
    .starts = {"<|start|>", "<|channel|>"},
    .call = "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}",
    .drops_namespace = true,
    .read_head = channel_head,
};
