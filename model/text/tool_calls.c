/* What stands inside of a call, and behind it: see tool_calls.h. How a call begins: tool_styles.c.
 *
 * A call goes through the states of struct spw_answer_parts:
 *
 *   object  HEAD > JSON > REST > BEHIND          tags    HEAD > KEY > VALUE > KEY ... > BEHIND
 *   named   HEAD > JSON > BEHIND                 Python  HEAD > ARGUMENT ... > BEHIND
 *   bare    HEAD > BARE > BEHIND
 *
 * Behind a call, another one may follow without a mark: then the state is HEAD again. */
#include "model/text/tool_calls.h"

#include "base/grow.h"

#include <string.h>

/* ---- held bytes ---- */

size_t spw_tool_skip(const struct spw_answer_parts *a, size_t at)
{
    while (at < a->n && spw_is_blank(a->held[at]))
        at++;
    return at;
}

enum spw_tool_read spw_tool_stands_at(const struct spw_answer_parts *a, size_t at, const char *text)
{
    const size_t n = strlen(text), left = a->n > at ? a->n - at : 0;
    if (left && memcmp(a->held + at, text, left < n ? left : n) != 0)
        return SPW_TOOL_NONE;
    return left < n ? SPW_TOOL_MORE : SPW_TOOL_DONE;
}

size_t spw_tool_look_for(const struct spw_answer_parts *a, size_t at, const char *text)
{
    const char *found = at < a->n ? memmem(a->held + at, a->n - at, text, strlen(text)) : NULL;
    return found ? (size_t)(found - a->held) : a->n;
}

size_t spw_tool_end_of_name(const struct spw_answer_parts *a, size_t at)
{
    while (at < a->n && spw_tool_is_name(a->held[at]))
        at++;
    return at;
}

/* ---- JSON ---- */

void spw_tool_end_call(struct spw_answer_parts *a)
{
    spw_parts_give(a, SPW_PIECE_CALL_END, "", 0);
    a->state = SPW_PARTS_BEHIND;
    a->may_follow = true;
}

/* Arguments that are JSON, as they come. */
static bool read_json(struct spw_answer_parts *a)
{
    const size_t n = spw_json_scan(&a->scan, a->held, a->n);
    if (n)
        spw_parts_give(a, SPW_PIECE_ARGUMENTS, a->held, n);
    spw_parts_drop(a, n);
    if (!spw_json_has_ended(&a->scan))
        return false;
    a->scan = (struct spw_json_scan){.depth = 1, .has_begun = true};
    a->state = SPW_PARTS_REST;
    if (!a->in_object)
        spw_tool_end_call(a);
    return true;
}

/* The other members of the object, and its end: a mark, and the end of the text, are one, too. */
static bool read_rest(struct spw_answer_parts *a)
{
    size_t n = 0;
    bool ends = false;
    for (; n < a->n && !ends && (a->scan.in_text || a->held[n] != '<'); n++) {
        spw_json_scan(&a->scan, a->held + n, 1);
        ends = spw_json_has_ended(&a->scan);
    }
    ends = ends || n < a->n || a->ends;
    spw_parts_drop(a, n);
    if (ends)
        spw_tool_end_call(a);
    return ends;
}

/* ---- tags ---- */

/* Before a parameter, or at the end of the call. */
static bool read_key(struct spw_answer_parts *a)
{
    const struct spw_tool_tags *t = a->tags;
    const size_t at = spw_tool_skip(a, 0);
    if (at == a->n)
        return false;
    const enum spw_tool_read end = spw_tool_stands_at(a, at, t->end),
                             key = spw_tool_stands_at(a, at, t->key);
    if (end == SPW_TOOL_DONE) {
        spw_parts_give(a, SPW_PIECE_ARGUMENTS, a->has_arguments ? "}" : "{}",
                       a->has_arguments ? 1 : 2);
        spw_parts_drop(a, at + strlen(t->end));
        spw_tool_end_call(a);
        return true;
    }
    if (end == SPW_TOOL_NONE && key == SPW_TOOL_NONE) {
        spw_parts_drop(a, at + 1); /* the model has strayed */
        return true;
    }
    const size_t from = at + strlen(t->key), to = spw_tool_look_for(a, from, t->key_end);
    size_t next = to + strlen(t->key_end);
    if (key != SPW_TOOL_DONE || to == a->n)
        return false;
    if (t->value) {
        next = spw_tool_skip(a, next);
        if (spw_tool_stands_at(a, next, t->value) == SPW_TOOL_MORE)
            return false;
        next += spw_tool_stands_at(a, next, t->value) == SPW_TOOL_DONE ? strlen(t->value) : 0;
    }
    spw_free(a->key);
    a->key = spw_alloc(to - from + 1);
    if (!a->key) {
        a->rc = -ENOMEM;
        return false;
    }
    memcpy(a->key, a->held + from, to - from);
    a->key[to - from] = '\0';
    spw_parts_drop(a, next);
    a->is_text = spw_tool_allows(a->parameters, a->key, "string");
    a->may_be_null = a->is_text && spw_tool_allows(a->parameters, a->key, "null");
    char *type = t->says_type ? strchr(a->key, '"') : NULL; /* NAME" string="true */
    if (type) {
        *type = '\0';
        a->is_text = strstr(type + 1, "\"true\"") != NULL;
        a->may_be_null = false;
    }
    a->has_begun = false;
    a->skips_break = t->breaks;
    a->state = SPW_PARTS_VALUE;
    return true;
}

/* "{", or ", ", and "KEY": */
static void give_key(struct spw_answer_parts *a)
{
    spw_parts_give(a, SPW_PIECE_ARGUMENTS, a->has_arguments ? ", \"" : "{\"",
                   a->has_arguments ? 3 : 2);
    spw_tool_give_escaped(a, a->key, strlen(a->key));
    spw_parts_give(a, SPW_PIECE_ARGUMENTS, "\": ", 3);
    a->has_arguments = true;
}

/* The end of the value: a mark that another mark follows. Places in the held bytes: DONE: [*to,
 * *next) is the mark; MORE: bytes from *to on may belong to a mark. */
static enum spw_tool_read find_value_end(const struct spw_answer_parts *a, size_t *to, size_t *next)
{
    const struct spw_tool_tags *t = a->tags;
    for (*to = 0; *to < a->n; ++*to) {
        size_t at = *to + (t->breaks && a->held[*to] == '\n');
        enum spw_tool_read r = spw_tool_stands_at(a, at, t->value_end);
        if (r == SPW_TOOL_MORE)
            return r;
        if (r == SPW_TOOL_NONE)
            continue;
        *next = at + strlen(t->value_end);
        at = spw_tool_skip(a, *next);
        r = spw_tool_stands_at(a, at, t->key);
        if (r == SPW_TOOL_NONE)
            r = spw_tool_stands_at(a, at, t->end);
        if (r != SPW_TOOL_NONE)
            return r;
    }
    return SPW_TOOL_MORE;
}

static void give_value(struct spw_answer_parts *a, size_t n)
{
    char *json = spw_tool_value(a->held, n);
    if (json)
        spw_parts_give(a, SPW_PIECE_ARGUMENTS, json, strlen(json));
    else
        a->rc = -ENOMEM;
    spw_free(json);
}

/* Whether the first n bytes of a value are no text, although texts are allowed; MORE: they may
 * become that. */
static enum spw_tool_read stands_for_null(const struct spw_answer_parts *a, size_t n)
{
    static const char *const nulls[] = {"null", "None"};
    for (size_t i = 0; i < 2; i++)
        if (n <= 4 && !memcmp(a->held, nulls[i], n))
            return n == 4 ? SPW_TOOL_DONE : SPW_TOOL_MORE;
    return SPW_TOOL_NONE;
}

/* Begins a value whose first bytes, up to `to`, are there; `ends`: they are all. */
static bool begin_value(struct spw_answer_parts *a, size_t to, bool ends)
{
    if (a->may_be_null) {
        const enum spw_tool_read r = stands_for_null(a, to);
        if (r != SPW_TOOL_NONE && !ends)
            return false;
        a->is_text = r != SPW_TOOL_DONE;
    }
    give_key(a);
    if (a->is_text)
        spw_parts_give(a, SPW_PIECE_ARGUMENTS, "\"", 1);
    a->has_begun = true;
    return true;
}

/* Texts are given as they come, other values when they are complete. */
static bool read_value(struct spw_answer_parts *a)
{
    size_t to, next = 0;
    if (!a->n)
        return false;
    if (a->skips_break && a->held[0] == '\n')
        spw_parts_drop(a, 1);
    a->skips_break = false;
    const enum spw_tool_read r = find_value_end(a, &to, &next);
    if (!a->has_begun && !begin_value(a, to, r == SPW_TOOL_DONE))
        return false;
    if (a->is_text) {
        spw_tool_give_escaped(a, a->held, to);
        if (r == SPW_TOOL_DONE)
            spw_parts_give(a, SPW_PIECE_ARGUMENTS, "\"", 1);
    } else if (r == SPW_TOOL_DONE) {
        give_value(a, to);
    }
    if (r == SPW_TOOL_DONE) {
        spw_parts_drop(a, next);
        a->state = SPW_PARTS_KEY;
    } else if (a->is_text) {
        spw_parts_drop(a, to);
    }
    return r == SPW_TOOL_DONE;
}

/* ---- Python ---- */

/* Bytes of the Python literal that the held bytes begin with; a->n: its end is not there. */
static size_t literal_bytes(const struct spw_answer_parts *a, size_t at)
{
    int depth = 0;
    char quote = 0;
    for (; at < a->n; at++) {
        const char c = a->held[at];
        if (quote) {
            at += c == '\\';
            quote = c == quote ? 0 : quote;
        } else if (c == '\'' || c == '"') {
            quote = c;
        } else if (!depth && (c == ',' || c == ')')) {
            return at;
        } else {
            depth += (c == '[' || c == '{' || c == '(') - (c == ']' || c == '}' || c == ')');
        }
    }
    return a->n;
}

/* NAME=LITERAL, or the end of the call. */
static bool read_argument(struct spw_answer_parts *a)
{
    size_t at = spw_tool_skip(a, 0);
    if (at < a->n && a->held[at] == ',')
        at = spw_tool_skip(a, at + 1);
    if (at < a->n && a->held[at] == ')') {
        spw_parts_give(a, SPW_PIECE_ARGUMENTS, a->has_arguments ? "}" : "{}",
                       a->has_arguments ? 1 : 2);
        spw_parts_drop(a, at + 1);
        spw_tool_end_call(a);
        return true;
    }
    const size_t to = spw_tool_end_of_name(a, at), equals = spw_tool_skip(a, to);
    const size_t value = equals < a->n ? spw_tool_skip(a, equals + 1) : a->n,
                 end = literal_bytes(a, value);
    if (end >= a->n)
        return false;
    if (a->held[equals] != '=') {
        spw_parts_drop(a, end); /* the model has strayed: no name */
        return true;
    }
    spw_free(a->key);
    a->key = spw_alloc(to - at + 1);
    if (!a->key) {
        a->rc = -ENOMEM;
        return false;
    }
    memcpy(a->key, a->held + at, to - at);
    a->key[to - at] = '\0';
    give_key(a);
    spw_parts_drop(a, value);
    give_value(a, end - value);
    spw_parts_drop(a, end - value);
    return true;
}

/* ---- objects with bare keys ---- */

/* A key, or a value that is no text: JSON, or a word of Python. */
static bool read_bare_word(struct spw_answer_parts *a)
{
    static const char *const words[][2] = {{"None", "null"}, {"True", "true"}, {"False", "false"}};
    size_t n = 0;
    while (n < a->n && !(a->held[n] && strchr("{}[],:", a->held[n])))
        n++;
    if (n == a->n)
        return false;
    const bool is_key = a->held[n] == ':' && a->held[0] != '"';
    const char *word = a->held;
    size_t bytes = n;
    for (size_t i = 0; i < 3 && !is_key; i++)
        if (n == strlen(words[i][0]) && !memcmp(a->held, words[i][0], n))
            word = words[i][1], bytes = strlen(word);
    if (is_key)
        spw_parts_give(a, SPW_PIECE_ARGUMENTS, "\"", 1);
    spw_parts_give(a, SPW_PIECE_ARGUMENTS, word, bytes);
    if (is_key)
        spw_parts_give(a, SPW_PIECE_ARGUMENTS, "\"", 1);
    spw_parts_drop(a, n);
    return true;
}

/* {n:1,s:<|"|>text<|"|>} as JSON. */
static bool read_bare(struct spw_answer_parts *a)
{
    static const char quote[] = "<|\"|>";
    const enum spw_tool_read r = a->n ? spw_tool_stands_at(a, 0, quote) : SPW_TOOL_MORE;
    if (r == SPW_TOOL_MORE)
        return false;
    if (r == SPW_TOOL_DONE) {
        spw_parts_give(a, SPW_PIECE_ARGUMENTS, "\"", 1);
        spw_parts_drop(a, sizeof quote - 1);
        a->scan.in_text = !a->scan.in_text;
        return true;
    }
    if (a->scan.in_text) {
        const char *next = memchr(a->held + 1, '<', a->n - 1);
        const size_t n = next ? (size_t)(next - a->held) : a->n;
        spw_tool_give_escaped(a, a->held, n);
        spw_parts_drop(a, n);
        return true;
    }
    const char c = a->held[0];
    if (!c || !strchr("{}[],:", c))
        return read_bare_word(a);
    spw_parts_give(a, SPW_PIECE_ARGUMENTS, &c, 1);
    spw_parts_drop(a, 1);
    a->scan.depth += c == '{' || c == '[';
    a->scan.depth -= c == '}' || c == ']';
    if (!a->scan.depth)
        spw_tool_end_call(a);
    return true;
}

/* ---- behind a call ---- */

/* What may begin another call without a mark. */
static bool may_follow(const struct spw_answer_parts *a)
{
    const char c = a->held[0];
    if (!a->may_follow)
        return false;
    return c == '{' || (a->style->is_list && spw_tool_is_name(c)) ||
           (a->tags && *a->tags->name && spw_tool_stands_at(a, 0, a->tags->name) != SPW_TOOL_NONE);
}

static bool read_behind(struct spw_answer_parts *a)
{
    spw_parts_drop(a, spw_tool_skip(a, 0));
    if (!a->n)
        return false;
    for (size_t i = 0; i < SPW_TOOL_MOST_PASSES && a->style->passes[i]; i++) {
        const enum spw_tool_read r = spw_tool_stands_at(a, 0, a->style->passes[i]);
        if (r == SPW_TOOL_DONE) {
            a->may_follow &= strlen(a->style->passes[i]) == 1; /* longer ones end all calls */
            spw_parts_drop(a, strlen(a->style->passes[i]));
        }
        if (r == SPW_TOOL_DONE || (r == SPW_TOOL_MORE && !a->ends))
            return r == SPW_TOOL_DONE;
    }
    a->head = 0;
    a->state = may_follow(a) ? SPW_PARTS_HEAD : SPW_PARTS_TEXT;
    a->is_reasoning = false;
    return true;
}

bool spw_tool_step(struct spw_answer_parts *a)
{
    switch (a->state) {
    case SPW_PARTS_JSON:
        return read_json(a);
    case SPW_PARTS_REST:
        return read_rest(a);
    case SPW_PARTS_KEY:
        return read_key(a);
    case SPW_PARTS_VALUE:
        return read_value(a);
    case SPW_PARTS_ARGUMENT:
        return read_argument(a);
    case SPW_PARTS_BARE:
        return read_bare(a);
    case SPW_PARTS_BEHIND:
        return read_behind(a);
    default:
        return false;
    }
}
