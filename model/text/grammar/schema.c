/* JSON schemas as grammars: see grammar.h.
 *
 * Properties come in the order of the schema, then others, if the schema allows them. A schema with
 * "properties" and no "additionalProperties" allows no others. Between the parts stands no white
 * space, a blank, or one or two line breaks with at most 20 blanks behind them: white space without
 * a limit lets a model write nothing else for ever.
 *
 * A keyword that restricts values and is not carried out is refused by name. */
#include "model/text/grammar/schema_parts.h"

#include "base/grow.h"
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

enum { DEEPEST_SCHEMA = 64 };

/* ---- errors and places ---- */

uint32_t spw_schema_refuse(struct spw_schema *m, const char *format, ...)
{
    char what[256];
    va_list args;
    if (m->g->rc)
        return 0;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    m->g->rc = spw_fail(m->g->err, -EINVAL, "%s: %s", m->path, what);
    return 0;
}

uint32_t spw_schema_no_memory(struct spw_schema *m)
{
    m->g->rc = m->g->rc ? m->g->rc : -ENOMEM;
    return 0;
}

size_t spw_schema_enter(struct spw_schema *m, const char *key)
{
    const size_t n = strlen(m->path);
    snprintf(m->path + n, sizeof m->path - n, "/%s", key);
    return n;
}

void spw_schema_leave(struct spw_schema *m, size_t n)
{
    m->path[n] = '\0';
}

uint32_t spw_schema_at_key(struct spw_schema *m, const char *key, const json_t *schema)
{
    const size_t n = spw_schema_enter(m, key);
    const uint32_t node = spw_schema_node(m, schema);
    spw_schema_leave(m, n);
    return node;
}

uint32_t spw_schema_at_index(struct spw_schema *m, const char *key, size_t i, const json_t *schema)
{
    char name[64];
    snprintf(name, sizeof name, "%s/%zu", key, i);
    return spw_schema_at_key(m, name, schema);
}

/* ---- keywords ---- */

/* Keywords that restrict values and are not carried out. */
static const char *const refused[] = {"not",
                                      "if",
                                      "then",
                                      "else",
                                      "patternProperties",
                                      "propertyNames",
                                      "dependencies",
                                      "dependentRequired",
                                      "dependentSchemas",
                                      "minProperties",
                                      "maxProperties",
                                      "unevaluatedProperties",
                                      "unevaluatedItems",
                                      "additionalItems",
                                      "contains",
                                      "minContains",
                                      "maxContains",
                                      "multipleOf",
                                      "$dynamicRef",
                                      "$recursiveRef"};
/* Keywords that restrict values, by the type of the value. */
static const struct {
    const char *type, *keys[6];
} restricting[] = {
    {"object", {"properties", "required", "additionalProperties"}},
    {"array", {"items", "prefixItems", "minItems", "maxItems"}},
    {"string", {"pattern", "format", "minLength", "maxLength"}},
    {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}},
};
enum { N_RESTRICTING = sizeof restricting / sizeof *restricting };

const char *spw_schema_restriction(const json_t *schema, const char *type)
{
    for (size_t i = 0; i < N_RESTRICTING; i++)
        for (size_t k = 0; k < 6 && restricting[i].keys[k]; k++)
            if ((!type || strcmp(type, restricting[i].type) == 0) &&
                json_object_get(schema, restricting[i].keys[k]))
                return restricting[i].keys[k];
    return NULL;
}

static bool is_of_type(const json_t *value, const char *type)
{
    return (json_is_object(value) && !strcmp(type, "object")) ||
           (json_is_array(value) && !strcmp(type, "array")) ||
           (json_is_string(value) && !strcmp(type, "string")) ||
           (json_is_number(value) && !strcmp(type, "number")) ||
           (json_is_integer(value) && !strcmp(type, "integer")) ||
           (json_is_boolean(value) && !strcmp(type, "boolean")) ||
           (json_is_null(value) && !strcmp(type, "null"));
}

static uint32_t of_type(struct spw_schema *m, const json_t *schema, const char *type)
{
    if (!strcmp(type, "object"))
        return spw_schema_object(m, schema);
    if (!strcmp(type, "array"))
        return spw_schema_list(m, schema);
    if (!strcmp(type, "string"))
        return spw_schema_text(m, schema);
    if (!strcmp(type, "number") || !strcmp(type, "integer"))
        return spw_schema_number(m, schema, type[0] == 'i');
    if (!strcmp(type, "boolean"))
        return SPW_CHOICE(m->g, spw_node_word(m->g, "true"), spw_node_word(m->g, "false"));
    if (!strcmp(type, "null"))
        return spw_node_word(m->g, "null");
    return spw_schema_refuse(m, "\"type\": found \"%s\"", type);
}

/* Whether `types`, a name, a list of names or NULL, has the type of the value. */
static bool has_type_of(const json_t *types, const json_t *value)
{
    bool found = !types || (json_is_string(types) && is_of_type(value, json_string_value(types)));
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *name = json_string_value(json_array_get(types, i));
        found |= name && is_of_type(value, name);
    }
    return found;
}

/* Constants, of which those that have another type are no values of the schema. */
static uint32_t constants(struct spw_schema *m, const json_t *schema, const json_t *values)
{
    const json_t *type = json_object_get(schema, "type");
    const char *restricts = spw_schema_restriction(schema, NULL);
    for (size_t i = 0; i < json_array_size(values); i++)
        if (!has_type_of(type, json_array_get(values, i)))
            return spw_schema_refuse(m, "value %zu of \"enum\" or \"const\" is not of the \"type\"",
                                     i);
    if (restricts)
        return spw_schema_refuse(m, "\"%s\" beside \"enum\" or \"const\" is not supported",
                                 restricts);
    return spw_schema_constants(m, values);
}

static uint32_t by_types(struct spw_schema *m, const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type");
    uint32_t node = 0;
    if (json_is_string(type))
        return of_type(m, schema, json_string_value(type));
    for (size_t i = 0; i < json_array_size(type) && !m->g->rc; i++) {
        const char *name = json_string_value(json_array_get(type, i));
        const uint32_t next = of_type(m, schema, name ? name : "");
        node = i ? SPW_CHOICE(m->g, node, next) : next;
    }
    if (json_array_size(type))
        return node;
    if (type)
        return spw_schema_refuse(m, "\"type\": expected a text, or a list of texts");
    for (size_t i = 0; i < N_RESTRICTING; i++)
        if (spw_schema_restriction(schema, restricting[i].type))
            return of_type(m, schema, restricting[i].type);
    return m->g->value;
}

const json_t *spw_schema_resolve(struct spw_schema *m, const char *reference)
{
    const json_t *at = m->root;
    char key[256];
    if (reference[0] != '#' || (reference[1] && reference[1] != '/')) {
        spw_schema_refuse(m, "\"$ref\": found \"%s\", expected a place in this schema (\"#/...\")",
                          reference);
        return NULL;
    }
    for (const char *c = reference + 1; *c && at;) {
        size_t n = 0;
        for (c++; *c && *c != '/' && n + 1 < sizeof key; c++)
            if (c[0] == '~' && (c[1] == '0' || c[1] == '1'))
                key[n++] = *++c == '0' ? '~' : '/';
            else
                key[n++] = *c;
        key[n] = '\0';
        at = json_is_array(at) ? json_array_get(at, strtoul(key, NULL, 10))
                               : json_object_get(at, key);
    }
    if (!at)
        spw_schema_refuse(m, "\"$ref\": found nothing at \"%s\"", reference);
    return at;
}

/* One of several schemas, which have the type of the schema around them if they name none. */
static uint32_t any_of(struct spw_schema *m, const json_t *schema, const char *key)
{
    const json_t *list_of = json_object_get(schema, key), *type = json_object_get(schema, "type");
    const char *restricts = spw_schema_restriction(schema, NULL);
    const size_t n = json_array_size(list_of);
    if (restricts)
        return spw_schema_refuse(m, "\"%s\" beside \"%s\" is not supported", restricts, key);
    if (!n)
        return spw_schema_refuse(m, "\"%s\": expected a list of schemas", key);
    uint32_t *nodes = spw_alloc_zero(n, sizeof *nodes);
    if (!nodes)
        return spw_schema_no_memory(m);
    for (size_t i = 0; i < n && !m->g->rc; i++) {
        json_t *one = json_array_get(list_of, i);
        const json_t *own = json_object_get(one, "type");
        if (type && own && !json_equal((json_t *)type, (json_t *)own))
            spw_schema_refuse(m, "\"type\" beside \"%s\" of other types is not supported", key);
        if (type && !own)
            spw_schema_refuse(
                m, "\"%s\": a schema without \"type\" below one with it is not supported", key);
        nodes[i] = spw_schema_at_index(m, key, i, one);
    }
    const uint32_t node = spw_node_list(m->g, SPW_NODE_CHOICE, nodes, n);
    spw_free(nodes);
    return node;
}

void spw_schema_check_keywords(struct spw_schema *m, const json_t *schema)
{
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (json_object_get(schema, refused[i]))
            spw_schema_refuse(m, "\"%s\" is not supported", refused[i]);
    if (json_is_true(json_object_get(schema, "uniqueItems")))
        spw_schema_refuse(m, "\"uniqueItems\" is not supported");
}

/* A schema is carried out by the first of these keywords. The second one that it has; NULL: none.
 */
static const char *second_choice(const json_t *schema)
{
    static const char *const keys[] = {"$ref", "anyOf", "oneOf", "enum", "const"};
    const json_t *values = json_object_get(schema, "enum"), *one = json_object_get(schema, "const");
    /* Some versions of pydantic write a constant in both ways. */
    const bool is_same =
        one && json_array_size(values) == 1 && json_equal(json_array_get(values, 0), (json_t *)one);
    size_t n = 0;
    for (size_t i = 0; i < sizeof keys / sizeof *keys - is_same; i++)
        if (json_object_get(schema, keys[i]) && n++)
            return keys[i];
    return NULL;
}

static uint32_t body(struct spw_schema *m, const json_t *schema)
{
    const char *reference = json_string_value(json_object_get(schema, "$ref"));
    json_t *constant_value = json_object_get(schema, "const"),
           *values = json_object_get(schema, "enum");
    const char *second = second_choice(schema);
    spw_schema_check_keywords(m, schema);
    if (json_object_get(schema, "allOf"))
        return spw_schema_all_of(m, schema);
    if (second)
        return spw_schema_refuse(
            m, "\"%s\" beside \"$ref\", \"anyOf\", \"oneOf\" or \"enum\" is not supported", second);
    if (reference && spw_schema_restriction(schema, NULL))
        return spw_schema_refuse(m, "\"%s\" beside \"$ref\" is not supported",
                                 spw_schema_restriction(schema, NULL));
    if (reference) {
        const json_t *at = spw_schema_resolve(m, reference);
        return at ? spw_schema_node(m, at) : 0;
    }
    if (json_object_get(schema, "anyOf"))
        return any_of(m, schema, "anyOf");
    if (json_object_get(schema, "oneOf"))
        return any_of(m, schema, "oneOf");
    if (values)
        return constants(m, schema, values);
    if (constant_value) {
        json_t *one = json_pack("[O]", constant_value);
        const uint32_t node = one ? constants(m, schema, one) : 0;
        if (!one)
            spw_schema_no_memory(m);
        json_decref(one);
        return node;
    }
    return by_types(m, schema);
}

/* The node of a schema that was met before; 0: none. A schema that refers to itself without an
 * object or a list between allows nothing that has an end. */
static uint32_t known_node(struct spw_schema *m, const json_t *schema)
{
    for (size_t i = 0; i < m->n_known; i++)
        if (m->known[i].schema == schema) {
            if (m->known[i].is_open && m->known[i].depth == m->depth)
                spw_schema_refuse(m, "\"$ref\": the schema refers to itself");
            return m->known[i].node;
        }
    return 0;
}

uint32_t spw_schema_node(struct spw_schema *m, const json_t *schema)
{
    if (json_is_true(schema))
        return m->g->value;
    if (!json_is_object(schema))
        return spw_schema_refuse(m, "expected a schema, an object");
    if (m->n_open >= DEEPEST_SCHEMA)
        return spw_schema_refuse(m, "schemas nest more than %d deep", DEEPEST_SCHEMA);
    const uint32_t found = known_node(m, schema);
    if (found || m->g->rc)
        return found;
    if (spw_grow(&m->known, &m->capacity, m->n_known + 1, sizeof *m->known))
        return spw_schema_no_memory(m);
    const size_t i = m->n_known++;
    const uint32_t node = spw_node_reserve(m->g);
    m->known[i] = (struct spw_schema_known){
        .schema = schema, .node = node, .depth = m->depth, .is_open = true};
    m->n_open++;
    const uint32_t made = body(m, schema);
    m->n_open--;
    m->known[i].is_open = false;
    spw_node_define(m->g, node, made);
    return node;
}

/* ---- the whole ---- */

static uint32_t make(struct spw_grammar *g, const json_t *root, const json_t *schema, bool is_bare,
                     uint32_t any)
{
    struct spw_schema m = {.g = g, .root = root, .path = "#", .any = any};
    if (!g->value) {
        spw_schema_make_texts(&m);
        spw_schema_make_value(&m);
    }
    g->is_bare = is_bare;
    const uint32_t node = spw_schema_node(&m, schema);
    g->is_bare = false;
    spw_free(m.known);
    return node;
}

uint32_t spw_node_schema(struct spw_grammar *g, const json_t *root, const json_t *schema)
{
    return make(g, root, schema, false, 0);
}

/* Whether all values are texts: the type, or the constants, say so. */
static bool is_text(const json_t *schema)
{
    const json_t *values = json_object_get(schema, "enum"), *one = json_object_get(schema, "const");
    const char *type = json_string_value(json_object_get(schema, "type"));
    bool all = values || one || (type && !strcmp(type, "string"));
    for (size_t i = 0; i < json_array_size(values); i++)
        all &= json_is_string(json_array_get(values, i));
    return all && (!one || json_is_string(one));
}

uint32_t spw_node_bare_text(struct spw_grammar *g, const json_t *root, const json_t *schema,
                            uint32_t any)
{
    struct spw_schema m = {.g = g, .root = root, .path = "#"};
    const char *reference = json_string_value(json_object_get(schema, "$ref"));
    const json_t *at = reference ? spw_schema_resolve(&m, reference) : schema;
    return is_text(at) ? make(g, root, at, true, any) : any;
}

static int finish(struct spw_grammar **out, const json_t *schema)
{
    return spw_grammar_finish(out, spw_node_schema(*out, schema, schema));
}

int spw_grammar_open_schema(struct spw_grammar **out, const char *schema, size_t bytes,
                            struct spw_error *err)
{
    json_t *parsed;
    json_error_t why;
    *out = NULL;
    spw_error_clear(err);
    int rc = spw_json_parse(&parsed, schema, bytes, SPW_JSON_LARGE_REAL | JSON_DECODE_ANY, &why);
    if (rc)
        return spw_fail(err, rc, "the schema is no JSON: line %d: %s", why.line, why.text);
    rc = spw_grammar_begin(out, err);
    rc = rc ? rc : finish(out, parsed);
    json_decref(parsed);
    return rc;
}

int spw_grammar_open_json(struct spw_grammar **out, struct spw_error *err)
{
    static const char schema[] = "{\"type\":\"object\"}";
    return spw_grammar_open_schema(out, schema, sizeof schema - 1, err);
}
