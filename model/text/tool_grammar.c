/* The grammar of an answer that must be a call: see answer_parts.h. A style says how the call of a
 * function stands in an answer, as a text with holes for the name and the arguments
 * (spw_tool_style.call). The answer is such a text for one of the functions. */
#include "model/text/grammar/nodes.h"
#include "model/text/tool_calls.h"

#include <string.h>

struct maker {
    struct spw_grammar *g;
    const struct spw_tool_style *style;
    const struct spw_tokenizer *tokenizer; /* NULL: all marks are texts */
    uint32_t any;                          /* in tags: the value of a text */
    const char *name;                      /* of the function, as what follows */
    json_t *parameters;
};

/* ---- marks ---- */

/* A part of the text around calls: a special token of the tokenizer stands for itself. */
static uint32_t mark(struct maker *m, const char *text, size_t bytes)
{
    const struct spw_tokenizer *t = m->tokenizer;
    uint32_t node = 0;
    int32_t *ids = NULL;
    size_t n = 0;
    if (t && !m->g->rc)
        m->g->rc = spw_tokenizer_encode(t, text, bytes, false, &ids, &n, NULL);
    for (size_t i = 0; i < n && !m->g->rc; i++) {
        const bool is_special = spw_tokenizer_is_special(t, ids[i]);
        const char *token = is_special ? spw_tokenizer_token(t, ids[i]) : NULL;
        const char *at = token ? memmem(text, bytes, token, strlen(token)) : NULL;
        if (!at)
            continue;
        const size_t before = (size_t)(at - text);
        node = SPW_SEQUENCE(m->g, node, spw_node_text(m->g, text, before),
                            spw_node_token(m->g, ids[i]));
        text += before + strlen(token);
        bytes -= before + strlen(token);
    }
    spw_free(ids);
    return SPW_SEQUENCE(m->g, node, spw_node_text(m->g, text, bytes));
}

static uint32_t word(struct maker *m, const char *text)
{
    return mark(m, text, strlen(text));
}

/* ---- holes ---- */

static uint32_t name(struct maker *m)
{
    return spw_node_word(m->g, m->name);
}

static uint32_t id(struct maker *m)
{
    static const struct spw_char_range letters[] = {{'0', '9'}, {'A', 'Z'}, {'a', 'z'}};
    return spw_node_repeat(m->g, spw_node_chars(m->g, letters, 3), 9, 9);
}

static uint32_t arguments(struct maker *m)
{
    return spw_node_schema(m->g, m->parameters, m->parameters);
}

/* {"name": ..., "arguments": {...}} */
static uint32_t object(struct maker *m)
{
    json_t *call =
        json_pack("{s:s, s:{s:{s:s}, s:O}, s:[s, s], s:b}", "type", "object", "properties", "name",
                  "const", m->name, m->style->arguments, m->parameters, "required", "name",
                  m->style->arguments, "additionalProperties", 0);
    const uint32_t node = call ? spw_node_schema(m->g, m->parameters, call) : 0;
    if (!call && !m->g->rc)
        m->g->rc = -ENOMEM;
    json_decref(call);
    return node;
}

static bool is_required(const struct maker *m, const char *key)
{
    const json_t *list = json_object_get(m->parameters, "required");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *one = json_string_value(json_array_get(list, i));
        if (one && !strcmp(one, key))
            return true;
    }
    return false;
}

/* <parameter=KEY> VALUE </parameter> */
static uint32_t tag(struct maker *m, const char *key, const json_t *schema)
{
    const struct spw_tool_tags *t = m->style->tags;
    struct spw_grammar *g = m->g;
    const uint32_t edge = t->breaks ? spw_node_byte(g, '\n') : 0;
    const uint32_t value = spw_tool_allows(m->parameters, key, "string")
                               ? spw_node_bare_text(g, m->parameters, schema, m->any)
                               : spw_node_schema(g, m->parameters, schema);
    const uint32_t begin = SPW_SEQUENCE(g, word(m, t->key), spw_node_word(g, key),
                                        word(m, t->key_end), word(m, t->value ? t->value : ""));
    return SPW_SEQUENCE(g, begin, edge, value, edge, word(m, t->value_end), word(m, t->between));
}

/* KEY=VALUE */
static uint32_t assignment(struct maker *m, const char *key, const json_t *schema)
{
    return SPW_SEQUENCE(m->g, spw_node_word(m->g, key), spw_node_byte(m->g, '='),
                        spw_node_schema(m->g, m->parameters, schema));
}

/* The parameters in their order. The grammar of all as one object refuses what is not supported. */
static uint32_t parameters(struct maker *m, const char *separator,
                           uint32_t (*one)(struct maker *m, const char *key, const json_t *schema))
{
    struct spw_grammar *g = m->g;
    uint32_t first = 0, next = 0; /* what follows: no parameter stands before, one does */
    json_t *keys = json_array(), *properties = json_object_get(m->parameters, "properties");
    json_t *schema;
    const char *key;
    spw_node_schema(g, m->parameters, m->parameters);
    json_object_foreach(properties, key, schema)
    {
        if (json_array_append_new(keys, json_string(key)) && !g->rc)
            g->rc = -ENOMEM;
    }
    for (size_t i = json_array_size(keys); i-- > 0 && !g->rc;) {
        key = json_string_value(json_array_get(keys, i));
        const uint32_t node = one(m, key, json_object_get(properties, key));
        const uint32_t at_first = SPW_SEQUENCE(g, node, next);
        const uint32_t behind = SPW_SEQUENCE(g, spw_node_word(g, separator), node, next);
        const bool must = is_required(m, key);
        first = must ? at_first : SPW_CHOICE(g, at_first, first);
        next = must ? behind : SPW_CHOICE(g, behind, next);
    }
    json_decref(keys);
    return first;
}

static uint32_t tags(struct maker *m)
{
    return parameters(m, "", tag);
}

static uint32_t python(struct maker *m)
{
    return parameters(m, ", ", assignment);
}

static const struct {
    const char *name;
    uint32_t (*node)(struct maker *m);
} holes[] = {{"{name}", name},     {"{id}", id},     {"{arguments}", arguments},
             {"{object}", object}, {"{tags}", tags}, {"{python}", python}};

/* ---- calls ---- */

static uint32_t call(struct maker *m)
{
    uint32_t node = 0;
    for (const char *at = m->style->call; *at && !m->g->rc;) {
        const size_t n = strcspn(at, "{");
        node = SPW_SEQUENCE(m->g, node, mark(m, at, n));
        at += n;
        for (size_t i = 0; i < sizeof holes / sizeof *holes; i++)
            if (!strncmp(at, holes[i].name, strlen(holes[i].name))) {
                node = SPW_SEQUENCE(m->g, node, holes[i].node(m));
                at += strlen(holes[i].name);
                break;
            }
    }
    return node;
}

/* A call of one of the tools; of the one with this name. */
static uint32_t calls(struct maker *m, const json_t *tools, const char *wanted,
                      struct spw_error *err)
{
    const size_t n = json_array_size(tools);
    uint32_t *each = spw_alloc(n * sizeof *each);
    size_t n_calls = 0;
    for (size_t i = 0; each && i < n; i++) {
        const json_t *function = json_object_get(json_array_get(tools, i), "function");
        json_t *given = json_object_get(function, "parameters");
        m->name = json_string_value(json_object_get(function, "name"));
        if (!m->name || (wanted && strcmp(m->name, wanted) != 0))
            continue;
        m->parameters = json_object_size(given)
                            ? json_incref(given)
                            : json_pack("{s:s, s:{}}", "type", "object", "properties");
        each[n_calls++] = call(m);
        json_decref(m->parameters);
    }
    if (!n_calls && !m->g->rc)
        m->g->rc = each ? spw_fail(err, -EINVAL, "found no function '%s' among the tools",
                                   wanted ? wanted : "")
                        : -ENOMEM;
    const uint32_t node = spw_node_list(m->g, SPW_NODE_CHOICE, each, n_calls);
    spw_free(each);
    return node;
}

int spw_tool_form_grammar(struct spw_grammar **out, const struct spw_tool_form *f,
                          const struct spw_tokenizer *t, const char *tools_json, const char *name,
                          struct spw_error *err)
{
    json_t *tools = NULL;
    *out = NULL;
    if (!f->style || !f->style->call)
        return spw_fail(err, -ENOTSUP, "spillway cannot force a call of this model");
    int rc = spw_json_parse(&tools, tools_json, strlen(tools_json), SPW_JSON_LARGE_REAL, NULL);
    if (rc)
        return spw_fail(err, rc, "the list of tools is no JSON");
    rc = spw_grammar_begin(out, err);
    struct maker m = {.g = *out, .style = f->style, .tokenizer = t};
    if (!rc && f->style->tags)
        m.any = spw_node_text_before(m.g, f->style->tags->value_end);
    if (!rc)
        rc = spw_grammar_finish(out, calls(&m, tools, name, err));
    json_decref(tools);
    return rc;
}
