/* Descriptions of tools, and the values of arguments as JSON: see tool_calls.h. */
#include "model/text/tool_calls.h"

#include "base/grow.h"

#include <string.h>

/* ---- descriptions ---- */

const json_t *spw_tool_find(const json_t *tools, const char *name, size_t bytes)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_object_get(json_array_get(tools, i), "function");
        const json_t *found = json_object_get(tool, "name");
        if (json_string_length(found) == bytes && bytes &&
            !memcmp(json_string_value(found), name, bytes))
            return tool;
    }
    return NULL;
}

/* The part of the root that "#/$defs/NAME" names; NULL: none. */
static const json_t *follow(const json_t *root, const char *reference)
{
    static const char *const places[] = {"$defs", "definitions"};
    const char *name = reference ? strrchr(reference, '/') : NULL;
    const json_t *found = NULL;
    for (size_t i = 0; name && !found && i < sizeof places / sizeof *places; i++)
        found = json_object_get(json_object_get(root, places[i]), name + 1);
    return found;
}

/* `named`: a name, or a list of names. */
static bool names_type(const json_t *named, const char *type)
{
    const char *name = json_string_value(named);
    bool found = name && !strcmp(name, type);
    for (size_t i = 0; i < json_array_size(named) && !found; i++)
        found = names_type(json_array_get(named, i), type);
    return found;
}

static bool allows(const json_t *root, const json_t *schema, const char *type, int depth)
{
    static const char *const choices[] = {"anyOf", "oneOf", "allOf"};
    if (!schema || !depth)
        return false;
    bool found = names_type(json_object_get(schema, "type"), type);
    found = found || allows(root, follow(root, json_string_value(json_object_get(schema, "$ref"))),
                            type, depth - 1);
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        const json_t *list = json_object_get(schema, choices[i]);
        for (size_t k = 0; k < json_array_size(list) && !found; k++)
            found = allows(root, json_array_get(list, k), type, depth - 1);
    }
    return found;
}

bool spw_tool_allows(const json_t *parameters, const char *key, const char *type)
{
    enum { DEEPEST = 8 };
    return allows(parameters, json_object_get(json_object_get(parameters, "properties"), key), type,
                  DEEPEST);
}

/* ---- JSON as it comes ---- */

/* One byte outside of texts. Whether it belongs to the value. */
static bool scan_byte(struct spw_json_scan *s, char c)
{
    const bool opens = c == '{' || c == '[', closes = c == '}' || c == ']';
    const bool separates = spw_is_blank(c) || c == ',' || c == ':';
    if (!s->depth && s->has_begun && (closes || separates))
        return false;
    if (closes && !s->depth)
        return false;
    s->depth += opens;
    s->depth -= closes;
    s->in_text = c == '"';
    s->has_begun |= !separates;
    return true;
}

size_t spw_json_scan(struct spw_json_scan *s, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        const bool was_deep = s->depth || s->in_text;
        if (s->in_text) {
            s->in_text = s->escaped || text[i] != '"';
            s->escaped = !s->escaped && text[i] == '\\';
        } else if (!scan_byte(s, text[i])) {
            return i;
        }
        if (was_deep && !s->depth && !s->in_text)
            return i + 1;
    }
    return bytes;
}

/* ---- values ---- */

/* The byte in a JSON text: [at most 7] with a NUL. */
static size_t escape(char c, char out[8])
{
    static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
    const char *found = c ? strchr(from, c) : NULL;
    if (found)
        return (size_t)snprintf(out, 8, "\\%c", to[found - from]);
    if ((unsigned char)c < 0x20)
        return (size_t)snprintf(out, 8, "\\u%04x", (unsigned)c);
    out[0] = c;
    return 1;
}

void spw_tool_give_escaped(struct spw_answer_parts *a, const char *text, size_t bytes)
{
    struct spw_text t = {0};
    char one[8];
    for (size_t i = 0; i < bytes; i++)
        spw_text_add(&t, one, escape(text[i], one));
    if (t.failed)
        a->rc = -ENOMEM;
    else if (t.n)
        spw_parts_give(a, SPW_PIECE_ARGUMENTS, t.text, t.n);
    spw_free(t.text);
}

static bool is_json(const char *text, size_t bytes)
{
    json_t *value;
    const bool good =
        !spw_json_parse(&value, text, bytes, JSON_DECODE_ANY | SPW_JSON_LARGE_REAL, NULL);
    if (good)
        json_decref(value);
    return good;
}

/* A text in Python's quotes, as JSON. The bytes read. */
static size_t add_python_text(struct spw_text *t, const char *raw, size_t bytes)
{
    const char quote = raw[0];
    char one[8];
    size_t i = 1;
    spw_text_add(t, "\"", 1);
    for (; i < bytes && raw[i] != quote; i++) {
        static const char from[] = "ntrbf'\"\\", to[] = "\n\t\r\b\f'\"\\";
        const bool escaped = raw[i] == '\\' && i + 1 < bytes;
        const char *found = escaped && raw[i + 1] ? strchr(from, raw[i + 1]) : NULL;
        spw_text_add(t, one, escape(found ? to[found - from] : raw[i], one));
        i += found != NULL;
    }
    spw_text_add(t, "\"", 1);
    return i < bytes ? i + 1 : i;
}

/* A Python literal as JSON; what is no literal gives no JSON. */
static void add_python(struct spw_text *t, const char *raw, size_t bytes)
{
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
    for (size_t i = 0; i < bytes;) {
        const char c = raw[i];
        size_t n = 0;
        for (size_t w = 0; w < 3 && !n; w++)
            if (strlen(words[w][0]) <= bytes - i &&
                !memcmp(raw + i, words[w][0], strlen(words[w][0])))
                spw_text_add(t, words[w][1], strlen(words[w][1])), n = strlen(words[w][0]);
        if (!n && (c == '\'' || c == '"'))
            n = add_python_text(t, raw + i, bytes - i);
        if (!n)
            spw_text_add(t, c == '(' ? "[" : c == ')' ? "]" : &raw[i], 1), n = 1;
        i += n;
    }
}

char *spw_tool_value(const char *raw, size_t bytes)
{
    struct spw_text t = {0};
    char one[8];
    const char *all = raw;
    const size_t n_all = bytes;
    spw_trim(&raw, &bytes);
    if (is_json(raw, bytes))
        spw_text_add(&t, raw, bytes);
    else
        add_python(&t, raw, bytes);
    if (!t.failed && !is_json(t.text ? t.text : "", t.n)) {
        t.n = 0;
        spw_text_add(&t, "\"", 1);
        for (size_t i = 0; i < n_all; i++)
            spw_text_add(&t, one, escape(all[i], one));
        spw_text_add(&t, "\"", 1);
    }
    if (t.failed) {
        spw_free(t.text);
        return NULL;
    }
    return t.text;
}
