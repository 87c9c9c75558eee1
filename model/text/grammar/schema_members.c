/* The objects and lists of a schema: see schema_parts.h. */
#include "model/text/grammar/schema_parts.h"

#include "base/json.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* ---- objects ---- */

static uint32_t member(struct spw_schema *m, uint32_t key, uint32_t value)
{
    return SPW_SEQUENCE(m->g, key, spw_schema_spaced(m, ':'), value);
}

/* The code point at `at`, and its bytes. */
static uint32_t code_point(const char *at, size_t *bytes)
{
    utf8proc_int32_t c;
    *bytes = (size_t)utf8proc_iterate((const utf8proc_uint8_t *)at, -1, &c);
    return (uint32_t)c;
}

static int by_value(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* One character without an escape that is none of `c`, [n] in order. */
static uint32_t other_character(struct spw_schema *m, const uint32_t *c, size_t n)
{
    struct spw_char_range *ranges = spw_alloc((n + 1) * sizeof *ranges);
    uint32_t next = 0x20;
    size_t n_ranges = 0;
    if (!ranges)
        return spw_schema_no_memory(m);
    for (size_t i = 0; i < n; i++) {
        if (c[i] > next)
            ranges[n_ranges++] = (struct spw_char_range){next, c[i] - 1};
        next = spw_max_u32(next, c[i] + 1);
    }
    ranges[n_ranges++] = (struct spw_char_range){next, 0x10FFFF};
    const uint32_t node = spw_node_chars(m->g, ranges, n_ranges);
    spw_free(ranges);
    return node;
}

/* A key without escapes that is none of `keys`, [n_keys] in order, of which each has the first n
 * bytes: a character that no such key has there, and then any text; or a character that some have,
 * and so on. */
static uint32_t other_key(struct spw_schema *m, const char *const *keys, size_t n_keys, size_t n,
                          uint32_t any)
{
    uint32_t *taken = spw_alloc((n_keys + 2) * sizeof *taken);
    uint32_t *parts = spw_alloc((n_keys + 1) * sizeof *parts);
    size_t n_taken = 0, n_parts = 0, next, bytes;
    bool is_key = false;
    for (size_t i = 0; taken && parts && i < n_keys; i = next) {
        next = i + 1;
        is_key |= !keys[i][n];
        if (!keys[i][n])
            continue;
        const uint32_t c = code_point(keys[i] + n, &bytes);
        while (next < n_keys && !strncmp(keys[next] + n, keys[i] + n, bytes))
            next++;
        taken[n_taken++] = c;
        if (c >= 0x20 && c != '"' && c != '\\' && !m->g->rc)
            parts[n_parts++] = SPW_SEQUENCE(m->g, spw_node_text(m->g, keys[i] + n, bytes),
                                            other_key(m, keys + i, next - i, n + bytes, any));
    }
    uint32_t node = 0;
    if (taken && parts) {
        taken[n_taken++] = '"';
        taken[n_taken++] = '\\';
        qsort(taken, n_taken, sizeof *taken, by_value);
        const uint32_t other = SPW_SEQUENCE(m->g, other_character(m, taken, n_taken), any);
        parts[n_parts++] = is_key ? other : spw_node_maybe(m->g, other);
        node = spw_node_list(m->g, SPW_NODE_CHOICE, parts, n_parts);
    } else {
        spw_schema_no_memory(m);
    }
    spw_free(taken);
    spw_free(parts);
    return node;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* A key that is none of the members of `all`, which has some. */
static uint32_t key_beside(struct spw_schema *m, json_t *all)
{
    enum { MOST_BYTES = 1000 }; /* other_key calls itself as often */
    const char **keys = spw_alloc(json_object_size(all) * sizeof *keys), *key;
    size_t n = 0;
    json_t *ignored;
    if (!keys)
        return spw_schema_no_memory(m);
    json_object_foreach(all, key, ignored)
    {
        if (strlen(key) > MOST_BYTES)
            spw_schema_refuse(m, "a name of more than %d bytes beside other properties",
                              MOST_BYTES);
        keys[n++] = key;
    }
    qsort(keys, n, sizeof *keys, by_text);
    const uint32_t any = spw_node_repeat(m->g, other_character(m, (const uint32_t[]){'"', '\\'}, 2),
                                         0, SPW_REPEAT_ANY);
    const uint32_t node = m->g->rc ? 0 : spw_node_quoted(m->g, other_key(m, keys, n, 0, any));
    spw_free(keys);
    return node;
}

/* Members from the last one to the first: `rest[1]` is what follows when a member stands before,
 * `rest[0]` when none does. */
static void add_member(struct spw_schema *m, uint32_t node, bool is_required, uint32_t rest[2])
{
    struct spw_grammar *g = m->g;
    const uint32_t first = SPW_SEQUENCE(g, node, rest[1]);
    const uint32_t next = SPW_SEQUENCE(g, spw_schema_spaced(m, ','), node, rest[1]);
    rest[0] = is_required ? first : SPW_CHOICE(g, first, rest[0]);
    rest[1] = is_required ? next : SPW_CHOICE(g, next, rest[1]);
}

static uint32_t braces(struct spw_schema *m, uint32_t members)
{
    return spw_node_nests(m->g, SPW_SEQUENCE(m->g, spw_node_byte(m->g, '{'), m->g->space, members,
                                             m->g->space, spw_node_byte(m->g, '}')));
}

/* The names of "required" as the keys of an object; owned. The result of a merge has such an object
 * already. */
static json_t *required_names(struct spw_schema *m, const json_t *schema)
{
    const json_t *list = json_object_get(schema, "required");
    json_t *names = json_is_object(list) ? json_copy((json_t *)list) : json_object();
    for (size_t i = 0; names && i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        if (!name)
            spw_schema_refuse(m, "\"required\": expected a list of names");
        else if (json_object_set(names, name, json_true()))
            spw_schema_no_memory(m);
    }
    if (!names)
        spw_schema_no_memory(m);
    return names;
}

/* The schema of all properties, with those that are only required; owned. */
static json_t *all_properties(struct spw_schema *m, const json_t *schema, json_t *required,
                              const json_t *others)
{
    const json_t *given = json_object_get(schema, "properties");
    json_t *all = given ? json_copy((json_t *)given) : json_object(), *ignored;
    const char *key;
    json_object_foreach(required, key, ignored)
    {
        if (!json_object_get(all, key) && !others)
            spw_schema_refuse(m, "\"required\": \"%s\" is no property, and others are not allowed",
                              key);
        else if (!json_object_get(all, key) && json_object_set(all, key, (json_t *)others))
            spw_schema_no_memory(m);
    }
    if (!all)
        spw_schema_no_memory(m);
    return all;
}

static uint32_t key_of(struct spw_schema *m, const char *key)
{
    json_t *name = json_string(key);
    const uint32_t node = spw_schema_constant(m, name);
    json_decref(name);
    return node;
}

uint32_t spw_schema_object(struct spw_schema *m, const json_t *schema)
{
    const json_t *given = json_object_get(schema, "properties");
    const json_t *others = json_object_get(schema, "additionalProperties");
    json_t *any = json_true();
    if (given && !json_is_object(given))
        return spw_schema_refuse(m, "\"properties\": expected an object");
    others = json_is_false(others) || (!others && given) ? NULL : others ? others : any;
    json_t *required = required_names(m, schema);
    json_t *all = all_properties(m, schema, required, others);
    const size_t n = json_object_size(all);
    struct {
        const char *key;
        uint32_t node;
    } *members = spw_alloc((n + 1) * sizeof *members);
    uint32_t rest[2] = {0, 0};
    const char *key;
    json_t *of;
    size_t i = 0;
    if (!members)
        spw_schema_no_memory(m);
    m->depth++;
    if (members)
        json_object_foreach(all, key, of)
        {
            const size_t path = spw_schema_enter(m, "properties");
            members[i].key = key;
            members[i++].node = member(m, key_of(m, key), spw_schema_at_key(m, key, of));
            spw_schema_leave(m, path);
        }
    if (others && !m->g->rc) {
        const uint32_t any_key = json_object_size(all) ? key_beside(m, all) : m->g->text;
        const uint32_t node =
            member(m, any_key, spw_schema_at_key(m, "additionalProperties", others));
        const uint32_t more = spw_node_repeat(
            m->g, SPW_SEQUENCE(m->g, spw_schema_spaced(m, ','), node), 0, SPW_REPEAT_ANY);
        rest[1] = more;
        rest[0] = spw_node_maybe(m->g, SPW_SEQUENCE(m->g, node, more));
    }
    while (i-- > 0 && !m->g->rc)
        add_member(m, members[i].node, json_object_get(required, members[i].key), rest);
    m->depth--;
    spw_free(members);
    json_decref(required);
    json_decref(all);
    return braces(m, rest[0]);
}

/* ---- allOf ---- */

enum { DEEPEST_MERGE = 16, MOST_MERGED = 256 };

/* Adds the members of an object schema to `all`. */
static void merge(struct spw_schema *m, json_t *all, const json_t *from, int depth)
{
    static const char *const taken[] = {"type", "additionalProperties"},
                             *const types[] = {"array", "string", "number"},
                             *const choices[] = {"anyOf", "oneOf", "enum", "const"};
    const char *reference = json_string_value(json_object_get(from, "$ref")), *key;
    json_t *value;
    if (m->g->rc || !json_is_object(from) || !depth || ++m->n_merged > MOST_MERGED) {
        spw_schema_refuse(m, "\"allOf\": expected schemas of objects, at most %d", MOST_MERGED);
        return;
    }
    spw_schema_check_keywords(m, from);
    if (reference)
        merge(m, all, spw_schema_resolve(m, reference), depth - 1);
    for (size_t i = 0; i < json_array_size(json_object_get(from, "allOf")); i++)
        merge(m, all, json_array_get(json_object_get(from, "allOf"), i), depth - 1);
    bool is_object = true;
    for (size_t i = 0; i < 3; i++)
        is_object &= !spw_schema_restriction(from, types[i]);
    for (size_t i = 0; i < 4; i++)
        is_object &= !json_object_get(from, choices[i]);
    if (!is_object)
        spw_schema_refuse(m, "\"allOf\": only schemas of objects are supported");
    json_object_foreach(json_object_get(from, "properties"), key, value)
    {
        json_t *properties = json_object_get(all, "properties");
        const json_t *before = json_object_get(properties, key);
        if (before && !json_equal((json_t *)before, value))
            spw_schema_refuse(m, "\"allOf\": \"%s\" has two schemas, which is not supported", key);
        if (json_object_set(properties, key, value))
            spw_schema_no_memory(m);
    }
    json_t *required = required_names(m, from);
    if (required && json_object_update(json_object_get(all, "required"), required))
        spw_schema_no_memory(m);
    json_decref(required);
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
        json_t *of = json_object_get(from, taken[i]), *before = json_object_get(all, taken[i]);
        if (of && before && !json_equal(of, before))
            spw_schema_refuse(m, "\"allOf\": two schemas differ in \"%s\"", taken[i]);
        if (of && json_object_set(all, taken[i], of))
            spw_schema_no_memory(m);
    }
}

/* What a part says of other properties holds for all that the other parts have. */
static void check_others(struct spw_schema *m, const json_t *all, const json_t *from, int depth)
{
    const char *reference = json_string_value(json_object_get(from, "$ref")), *key;
    const json_t *others = json_object_get(from, "additionalProperties");
    json_t *ignored;
    if (m->g->rc || !depth)
        return;
    if (reference)
        check_others(m, all, spw_schema_resolve(m, reference), depth - 1);
    for (size_t i = 0; i < json_array_size(json_object_get(from, "allOf")); i++)
        check_others(m, all, json_array_get(json_object_get(from, "allOf"), i), depth - 1);
    if (!others || json_is_true(others))
        return;
    json_object_foreach(json_object_get(all, "properties"), key, ignored)
    {
        if (!json_object_get(json_object_get(from, "properties"), key))
            spw_schema_refuse(
                m, "\"allOf\": \"%s\" is no property of a part with \"additionalProperties\"", key);
    }
}

uint32_t spw_schema_all_of(struct spw_schema *m, const json_t *schema)
{
    const json_t *list_of = json_object_get(schema, "allOf");
    static const char *const beside[] = {"type", "$ref", "anyOf", "oneOf", "enum", "const"};
    bool is_alone = json_array_size(list_of) == 1 && !spw_schema_restriction(schema, NULL);
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++)
        is_alone &= !json_object_get(schema, beside[i]);
    if (is_alone)
        return spw_schema_at_index(m, "allOf", 0, json_array_get(list_of, 0));
    json_t *all = json_object();
    if (!all || json_object_set_new(all, "properties", json_object()) ||
        json_object_set_new(all, "required", json_object()))
        spw_schema_no_memory(m);
    merge(m, all, schema, DEEPEST_MERGE);
    check_others(m, all, schema, DEEPEST_MERGE);
    const uint32_t node = m->g->rc ? 0 : spw_schema_object(m, all);
    json_decref(all);
    return node;
}

/* ---- lists ---- */

uint32_t spw_schema_list(struct spw_schema *m, const json_t *schema)
{
    const json_t *first = json_object_get(schema, "prefixItems");
    const json_t *items = json_object_get(schema, "items");
    const uint32_t min = spw_schema_count(m, schema, "minItems", 0);
    uint32_t max = spw_schema_count(m, schema, "maxItems", SPW_REPEAT_ANY);
    const size_t n = json_array_size(first);
    if ((first && !json_is_array(first)) || json_is_array(items))
        return spw_schema_refuse(m,
                                 "\"items\" must be a schema, \"prefixItems\" a list of schemas");
    if (json_is_false(items))
        max = spw_max_u32((uint32_t)n, 0) < max ? (uint32_t)n : max;
    if (max < min)
        return spw_schema_refuse(m, "\"maxItems\" is below \"minItems\"");
    m->depth++;
    const uint32_t item = max <= n ? 0 : items ? spw_schema_at_key(m, "items", items) : m->g->value;
    uint32_t rest = 0;
    if (max > n) {
        const uint32_t n_first = n ? (uint32_t)n : 1; /* the first one has no comma before it */
        rest = spw_node_repeat(m->g, SPW_SEQUENCE(m->g, spw_schema_spaced(m, ','), item),
                               min > n_first ? min - n_first : 0,
                               max == SPW_REPEAT_ANY ? max : max - n_first);
        if (!n)
            rest = SPW_SEQUENCE(m->g, item, rest);
        if (!n && !min)
            rest = spw_node_maybe(m->g, rest);
    }
    for (size_t i = n < max ? n : max; i-- > 0;) {
        const uint32_t node = spw_schema_at_index(m, "prefixItems", i, json_array_get(first, i));
        rest = i ? SPW_SEQUENCE(m->g, spw_schema_spaced(m, ','), node, rest)
                 : SPW_SEQUENCE(m->g, node, rest);
        if (i >= min)
            rest = spw_node_maybe(m->g, rest);
    }
    m->depth--;
    return spw_node_nests(m->g, SPW_SEQUENCE(m->g, spw_node_byte(m->g, '['), m->g->space, rest,
                                             m->g->space, spw_node_byte(m->g, ']')));
}

/* ---- any value ---- */

/* Also lists and objects of any values. */
void spw_schema_make_value(struct spw_schema *m)
{
    struct spw_grammar *g = m->g;
    const struct spw_bounds none = {0};
    m->g->value = spw_node_reserve(g);
    const uint32_t pair = member(m, m->g->text, m->g->value);
    const uint32_t pairs = SPW_SEQUENCE(
        g, pair,
        spw_node_repeat(g, SPW_SEQUENCE(g, spw_schema_spaced(m, ','), pair), 0, SPW_REPEAT_ANY));
    const uint32_t items =
        SPW_SEQUENCE(g, m->g->value,
                     spw_node_repeat(g, SPW_SEQUENCE(g, spw_schema_spaced(m, ','), m->g->value), 0,
                                     SPW_REPEAT_ANY));
    const uint32_t brackets = spw_node_nests(
        g, SPW_SEQUENCE(g, spw_node_byte(m->g, '['), m->g->space, spw_node_maybe(m->g, items),
                        m->g->space, spw_node_byte(m->g, ']')));
    spw_node_define(g, m->g->value,
                    SPW_CHOICE(g, braces(m, spw_node_maybe(m->g, pairs)), brackets, m->g->text,
                               spw_node_number(g, &none), spw_node_word(m->g, "true"),
                               spw_node_word(m->g, "false"), spw_node_word(m->g, "null")));
}
