/* The grammar of an answer that must be a call: see answer_parts.h. A call is an object, so one
 * schema describes it:
 *
 *   {"anyOf": [{"name": the function's name, "arguments": its parameters}, ...], "$defs": ...}
 *
 * Definitions of parameters move to the root, where references look for them. */
#include "model/text/tool_calls.h"

#include <string.h>

/* 0, -ENOMEM, or -EINVAL: two functions define one name in two ways. */
static int move_definitions(json_t *root, const json_t *parameters)
{
    static const char *const places[] = {"$defs", "definitions"};
    for (size_t i = 0; i < 2; i++) {
        json_t *from = json_object_get(parameters, places[i]), *to, *value;
        const char *name;
        if (!json_object_size(from))
            continue;
        if (!(to = json_object_get(root, places[i])) &&
            json_object_set_new(root, places[i], to = json_object()))
            return -ENOMEM;
        json_object_foreach(from, name, value)
        {
            const json_t *other = json_object_get(to, name);
            if (other && !json_equal(other, value))
                return -EINVAL;
            if (json_object_set(to, name, value))
                return -ENOMEM;
        }
    }
    return 0;
}

/* NULL: out of memory. */
static json_t *call_of(const json_t *function, const char *key)
{
    json_t *parameters = json_object_get(function, "parameters");
    parameters = json_object_size(parameters) ? json_incref(parameters)
                                              : json_pack("{s:s, s:{}, s:b}", "type", "object",
                                                          "properties", "additionalProperties", 0);
    return json_pack("{s:s, s:{s:{s:O}, s:o}, s:[s, s], s:b}", "type", "object", "properties",
                     "name", "const", json_object_get(function, "name"), key, parameters,
                     "required", "name", key, "additionalProperties", 0);
}

static int describe(json_t *root, const json_t *tools, const char *key, const char *name,
                    struct spw_error *err)
{
    json_t *calls = json_object_get(root, "anyOf");
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *function = json_object_get(json_array_get(tools, i), "function");
        const char *its = json_string_value(json_object_get(function, "name"));
        if (!its || (name && strcmp(its, name) != 0))
            continue;
        const int rc = move_definitions(root, json_object_get(function, "parameters"));
        if (rc == -EINVAL)
            return spw_fail(err, rc, "two functions define one name of $defs in two ways");
        if (rc || json_array_append_new(calls, call_of(function, key)))
            return spw_fail(err, -ENOMEM, "out of memory");
    }
    return json_array_size(calls)
               ? 0
               : spw_fail(err, -EINVAL, "found no function '%s' among the tools", name ? name : "");
}

int spw_tool_form_grammar(struct spw_grammar **out, const struct spw_tool_form *f,
                          const char *tools_json, const char *name, struct spw_error *err)
{
    json_t *tools = NULL, *root = NULL;
    char *schema = NULL;
    *out = NULL;
    if (!f->style || !f->style->before)
        return spw_fail(err, -ENOTSUP, "spillway cannot force a call of this model");
    int rc = spw_json_parse(&tools, tools_json, strlen(tools_json), SPW_JSON_LARGE_REAL, NULL);
    if (rc)
        return spw_fail(err, rc, "the list of tools is no JSON");
    root = json_pack("{s:[]}", "anyOf");
    rc = root ? describe(root, tools, f->style->arguments, name, err) : -ENOMEM;
    if (!rc && !(schema = spw_json_dump(root, JSON_COMPACT)))
        rc = -ENOMEM;
    if (!rc)
        rc = spw_grammar_open_schema(out, schema, strlen(schema), err);
    if (!rc)
        rc = spw_grammar_wrap(out, f->style->before, f->style->after);
    spw_free(schema);
    json_decref(root);
    json_decref(tools);
    return rc;
}
