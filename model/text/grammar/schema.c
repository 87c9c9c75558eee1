/* JSON schemas as grammars: see grammar.h.
 *
 * Properties come in the order of the schema, then others, if the schema allows them. A schema with
 * "properties" and no "additionalProperties" allows no others. Between the parts stands no white
 * space, a blank, or one or two line breaks with at most 20 blanks behind them: white space without
 * a limit lets a model write nothing else for ever.
 *
 * A keyword that restricts values and is not carried out is refused by name. */
#include "model/text/grammar/nodes.h"

#include "base/grow.h"
#include "base/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum { DEEPEST_SCHEMA = 64, MOST_PATH = 400 };

struct known { /* a schema that has a node: for references, which may be recursive */
    const json_t *schema;
    uint32_t node;
    int depth;    /* objects and lists around it */
    bool is_open; /* it is being read */
};

struct maker {
    struct spw_grammar *g;
    const json_t *root;
    struct known *known; /* owned */
    size_t n_known, capacity;
    char path[MOST_PATH];        /* of the schema that is being read: "#/properties/a" */
    int depth, n_open;           /* objects and lists, schemas around the present one */
    uint32_t space, text, value; /* white space, any text, any value */
};

static uint32_t of_schema(struct maker *m, const json_t *schema);

/* ---- errors and places ---- */

__attribute__((format(printf, 2, 3))) static uint32_t refuse(struct maker *m, const char *format,
                                                             ...)
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

/* Adds "/KEY" to the path; the length before, for leave_path. */
static size_t enter_path(struct maker *m, const char *key)
{
    const size_t n = strlen(m->path);
    snprintf(m->path + n, sizeof m->path - n, "/%s", key);
    return n;
}

static void leave_path(struct maker *m, size_t n)
{
    m->path[n] = '\0';
}

static uint32_t at_key(struct maker *m, const char *key, const json_t *schema)
{
    const size_t n = enter_path(m, key);
    const uint32_t node = of_schema(m, schema);
    leave_path(m, n);
    return node;
}

static uint32_t at_index(struct maker *m, const char *key, size_t i, const json_t *schema)
{
    char name[64];
    snprintf(name, sizeof name, "%s/%zu", key, i);
    return at_key(m, name, schema);
}

/* ---- small parts ---- */

static uint32_t byte(struct maker *m, char c)
{
    return spw_node_byte(m->g, (unsigned char)c);
}

/* The byte with white space on both sides of it. */
static uint32_t spaced(struct maker *m, char c)
{
    return SPW_SEQUENCE(m->g, m->space, byte(m, c), m->space);
}

static uint32_t maybe(struct maker *m, uint32_t node)
{
    return spw_node_repeat(m->g, node, 0, 1);
}

static uint32_t literal(struct maker *m, const char *text)
{
    return spw_node_text(m->g, text, strlen(text));
}

static uint32_t range(struct maker *m, char first, char last)
{
    const struct spw_char_range r = {(unsigned char)first, (unsigned char)last};
    return spw_node_chars(m->g, &r, 1);
}

static uint32_t white_space(struct maker *m)
{
    const uint32_t blank = SPW_CHOICE(m->g, byte(m, ' '), byte(m, '\t'));
    const uint32_t line = SPW_SEQUENCE(m->g, spw_node_repeat(m->g, byte(m, '\n'), 1, 2),
                                       spw_node_repeat(m->g, blank, 0, 20));
    return maybe(m, SPW_CHOICE(m->g, byte(m, ' '), line));
}

/* A character of a text: plain, or escaped; halves of a character only in pairs. */
static uint32_t character(struct maker *m)
{
    struct spw_grammar *g = m->g;
    const uint32_t digit = range(m, '0', '9'),
                   hex = SPW_CHOICE(g, digit, range(m, 'A', 'F'), range(m, 'a', 'f'));
    const uint32_t not_d = SPW_CHOICE(g, digit, range(m, 'A', 'C'), range(m, 'a', 'c'),
                                      range(m, 'E', 'F'), range(m, 'e', 'f'));
    const uint32_t d = SPW_CHOICE(g, byte(m, 'D'), byte(m, 'd'));
    const uint32_t high = SPW_CHOICE(g, range(m, '8', '9'), range(m, 'A', 'B'), range(m, 'a', 'b'));
    const uint32_t low = SPW_CHOICE(g, range(m, 'C', 'F'), range(m, 'c', 'f'));
    const uint32_t whole = SPW_CHOICE(
        g, SPW_SEQUENCE(g, not_d, hex, hex, hex), SPW_SEQUENCE(g, d, range(m, '0', '7'), hex, hex),
        SPW_SEQUENCE(g, d, high, hex, hex, literal(m, "\\u"), d, low, hex, hex));
    const uint32_t escaped =
        SPW_CHOICE(g, literal(m, "\\/"), SPW_SEQUENCE(g, literal(m, "\\u"), whole));
    return SPW_CHOICE(g, spw_node_json_chars(g, (const struct spw_char_range[]){{0, 0x10FFFF}}, 1),
                      escaped);
}

/* ---- constants ---- */

static uint32_t constant(struct maker *m, const json_t *value)
{
    char *text = spw_json_dump(value, JSON_ENCODE_ANY | JSON_COMPACT);
    if (!text)
        m->g->rc = m->g->rc ? m->g->rc : -ENOMEM;
    const uint32_t node = text ? literal(m, text) : 0;
    spw_free(text);
    return node;
}

static uint32_t any_constant(struct maker *m, const json_t *list)
{
    const size_t n = json_array_size(list);
    if (!n)
        return refuse(m, "\"enum\": expected a list of values");
    uint32_t node = constant(m, json_array_get(list, 0));
    for (size_t i = 1; i < n; i++) {
        const uint32_t next = constant(m, json_array_get(list, i));
        node = SPW_CHOICE(m->g, node, next);
    }
    return node;
}

/* ---- counts and bounds ---- */

/* A count of the schema; `absent` if the schema does not have the key. */
static uint32_t count(struct maker *m, const json_t *schema, const char *key, uint32_t absent)
{
    const json_t *value = json_object_get(schema, key);
    const json_int_t n = json_integer_value(value);
    if (!value)
        return absent;
    if (!json_is_integer(value) || n < 0 || n > 1000000)
        return refuse(m, "\"%s\": expected a whole number from 0 to 1000000", key);
    return (uint32_t)n;
}

/* A bound as a whole number; for integers a fraction is rounded inwards. */
static bool bound(struct maker *m, const json_t *value, const char *key, bool is_integer,
                  bool is_low, int64_t *out)
{
    const double x = json_number_value(value);
    const double inward = is_low ? ceil(x) : floor(x);
    if (!json_is_number(value) || fabs(x) > 9e15)
        refuse(m, "\"%s\": expected a number of at most 15 digits", key);
    else if (!is_integer && inward != x)
        refuse(m, "\"%s\": bounds of a number must be whole", key);
    *out = m->g->rc ? 0 : (int64_t)inward;
    return inward != x; /* the bound is no value itself */
}

static uint32_t number(struct maker *m, const json_t *schema, bool is_integer)
{
    static const char *const keys[] = {"minimum", "exclusiveMinimum", "maximum",
                                       "exclusiveMaximum"};
    struct spw_bounds b = {0};
    for (size_t i = 0; i < 4; i++) {
        const json_t *value = json_object_get(schema, keys[i]);
        const bool is_low = i < 2;
        int64_t at;
        if (!value)
            continue;
        const bool excluded = !bound(m, value, keys[i], is_integer, is_low, &at) && i % 2 == 1;
        if (is_low && (!b.has_min || at > b.min || (at == b.min && excluded)))
            b.has_min = true, b.min = at, b.above = excluded;
        if (!is_low && (!b.has_max || at < b.max || (at == b.max && excluded)))
            b.has_max = true, b.max = at, b.below = excluded;
    }
    return is_integer ? spw_node_integer(m->g, &b) : spw_node_number(m->g, &b);
}

/* ---- texts ---- */

/* Without leap days and the year 0. */
#define DATE                                                                                       \
    "[1-9][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|"  \
    "02-(0[1-9]|1[0-9]|2[0-8]))"
#define TIME                                                                                       \
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9]" \
    ")"
#define OCTET "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"

static const struct {
    const char *name, *pattern;
} formats[] = {
    {"date", "^" DATE "$"},
    {"time", "^" TIME "$"},
    {"date-time", "^" DATE "T" TIME "$"},
    {"uuid", "^[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$"},
    {"email", "^[A-Za-z0-9_%+-]+(\\.[A-Za-z0-9_%+-]+)*@" LABEL "(\\." LABEL ")+$"},
    {"hostname", "^" LABEL "(\\." LABEL "){0,3}$"},
    {"ipv4", "^" OCTET "\\." OCTET "\\." OCTET "\\." OCTET "$"},
    {"uri", "^[a-z][a-z0-9+.-]{0,20}://[A-Za-z0-9._~:/?#@!$&'()*+,;=%-]+$"},
};

static uint32_t format(struct maker *m, const char *name)
{
    for (size_t i = 0; name && i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i].name, name) == 0)
            return spw_node_pattern(m->g, formats[i].pattern, m->path);
    return refuse(m,
                  "\"format\": \"%s\" is not supported: expected date, time, date-time, uuid, "
                  "email, hostname, ipv4 or uri",
                  name ? name : "");
}

static uint32_t text(struct maker *m, const json_t *schema)
{
    const json_t *pattern = json_object_get(schema, "pattern"),
                 *of = json_object_get(schema, "format");
    const uint32_t min = count(m, schema, "minLength", 0);
    const uint32_t max = count(m, schema, "maxLength", SPW_REPEAT_ANY);
    const bool is_counted = min || max != SPW_REPEAT_ANY;
    if ((pattern != NULL) + (of != NULL) + is_counted > 1)
        return refuse(m, "\"pattern\", \"format\" and lengths together are not supported");
    if (max < min)
        return refuse(m, "\"maxLength\" is below \"minLength\"");
    if (pattern && !json_is_string(pattern))
        return refuse(m, "\"pattern\": expected a text");
    if (pattern)
        return spw_node_quoted(m->g, spw_node_pattern(m->g, json_string_value(pattern), m->path));
    if (of)
        return spw_node_quoted(m->g, format(m, json_string_value(of)));
    return is_counted ? spw_node_quoted(m->g, spw_node_repeat(m->g, character(m), min, max))
                      : m->text;
}

/* ---- objects ---- */

static uint32_t member(struct maker *m, uint32_t key, uint32_t value)
{
    return SPW_SEQUENCE(m->g, key, spaced(m, ':'), value);
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

/* One plain character that is none of `c`, [n] in order. */
static uint32_t other_character(struct maker *m, const uint32_t *c, size_t n)
{
    struct spw_char_range *ranges = spw_alloc((n + 1) * sizeof *ranges);
    uint32_t next = 0x20;
    size_t n_ranges = 0;
    for (size_t i = 0; ranges && i < n; i++) {
        if (c[i] > next)
            ranges[n_ranges++] = (struct spw_char_range){next, c[i] - 1};
        next = spw_max_u32(next, c[i] + 1);
    }
    if (!ranges) {
        m->g->rc = m->g->rc ? m->g->rc : -ENOMEM;
        return 0;
    }
    ranges[n_ranges++] = (struct spw_char_range){next, 0x10FFFF};
    const uint32_t node = spw_node_chars(m->g, ranges, n_ranges);
    spw_free(ranges);
    return node;
}

/* A key without escapes that is none of `keys`, behind the first n bytes of `common`: a character
 * that no such key has there, and then any text; or a character that some have, and so on. */
static uint32_t other_key(struct maker *m, json_t *keys, const char *common, size_t n)
{
    const size_t n_keys = json_object_size(keys);
    uint32_t *taken = spw_alloc((n_keys + 2) * sizeof *taken), n_taken = 0, node;
    bool is_key = false;
    const char *key;
    json_t *ignored;
    if (!taken) {
        m->g->rc = m->g->rc ? m->g->rc : -ENOMEM;
        return 0;
    }
    taken[n_taken++] = '"';
    taken[n_taken++] = '\\';
    json_object_foreach(keys, key, ignored)
    {
        size_t bytes;
        if (strlen(key) < n || memcmp(key, common, n) != 0)
            continue;
        is_key |= !key[n];
        if (key[n])
            taken[n_taken++] = code_point(key + n, &bytes);
    }
    qsort(taken, n_taken, sizeof *taken, by_value);
    node = SPW_SEQUENCE(m->g, other_character(m, taken, n_taken),
                        spw_node_repeat(m->g, other_character(m, (const uint32_t[]){'"', '\\'}, 2),
                                        0, SPW_REPEAT_ANY));
    node = is_key ? node : maybe(m, node);
    json_object_foreach(keys, key, ignored)
    {
        size_t bytes;
        if (strlen(key) <= n || memcmp(key, common, n) != 0)
            continue;
        const uint32_t c = code_point(key + n, &bytes);
        bool is_first = c >= 0x20 && c != '"' && c != '\\' && !m->g->rc;
        const char *earlier;
        json_t *skipped;
        json_object_foreach(keys, earlier, skipped)
        {
            if (earlier == key)
                break;
            is_first &= strlen(earlier) <= n || memcmp(earlier, key, n + bytes) != 0;
        }
        if (!is_first)
            continue;
        const uint32_t more = SPW_SEQUENCE(m->g, spw_node_text(m->g, key + n, bytes),
                                           other_key(m, keys, key, n + bytes));
        node = SPW_CHOICE(m->g, node, more);
    }
    spw_free(taken);
    return node;
}

/* Members from the last one to the first: `rest[1]` is what follows when a member stands before,
 * `rest[0]` when none does. */
static void add_member(struct maker *m, uint32_t node, bool is_required, uint32_t rest[2])
{
    struct spw_grammar *g = m->g;
    const uint32_t first = SPW_SEQUENCE(g, node, rest[1]);
    const uint32_t next = SPW_SEQUENCE(g, spaced(m, ','), node, rest[1]);
    rest[0] = is_required ? first : SPW_CHOICE(g, first, rest[0]);
    rest[1] = is_required ? next : SPW_CHOICE(g, next, rest[1]);
}

static uint32_t braces(struct maker *m, uint32_t members)
{
    return spw_node_nests(
        m->g, SPW_SEQUENCE(m->g, byte(m, '{'), m->space, members, m->space, byte(m, '}')));
}

static bool is_required(const json_t *schema, const char *key)
{
    const json_t *list = json_object_get(schema, "required");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        if (name && strcmp(name, key) == 0)
            return true;
    }
    return false;
}

/* The schema of all properties, with those that are only required; owned. */
static json_t *all_properties(struct maker *m, const json_t *schema, const json_t *others)
{
    const json_t *given = json_object_get(schema, "properties"),
                 *list = json_object_get(schema, "required");
    json_t *all = given ? json_copy((json_t *)given) : json_object();
    for (size_t i = 0; all && i < json_array_size(list); i++) {
        const char *key = json_string_value(json_array_get(list, i));
        if (!key)
            refuse(m, "\"required\": expected a list of names");
        else if (!json_object_get(all, key) && !others)
            refuse(m, "\"required\": \"%s\" is no property, and others are not allowed", key);
        else if (!json_object_get(all, key) && json_object_set(all, key, (json_t *)others))
            m->g->rc = -ENOMEM;
    }
    if (!all)
        m->g->rc = m->g->rc ? m->g->rc : -ENOMEM;
    return all;
}

static uint32_t key_of(struct maker *m, const char *key)
{
    json_t *name = json_string(key);
    const uint32_t node = constant(m, name);
    json_decref(name);
    return node;
}

static uint32_t object(struct maker *m, const json_t *schema)
{
    const json_t *given = json_object_get(schema, "properties");
    const json_t *others = json_object_get(schema, "additionalProperties");
    json_t *any = json_true();
    if (given && !json_is_object(given))
        return refuse(m, "\"properties\": expected an object");
    others = json_is_false(others) || (!others && given) ? NULL : others ? others : any;
    json_t *all = all_properties(m, schema, others);
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
        m->g->rc = m->g->rc ? m->g->rc : -ENOMEM;
    m->depth++;
    if (members)
        json_object_foreach(all, key, of)
        {
            const size_t path = enter_path(m, "properties");
            members[i].key = key;
            members[i++].node = member(m, key_of(m, key), at_key(m, key, of));
            leave_path(m, path);
        }
    if (others && !m->g->rc) {
        const uint32_t any_key =
            json_object_size(all) ? spw_node_quoted(m->g, other_key(m, all, "", 0)) : m->text;
        const uint32_t node = member(m, any_key, at_key(m, "additionalProperties", others));
        const uint32_t more =
            spw_node_repeat(m->g, SPW_SEQUENCE(m->g, spaced(m, ','), node), 0, SPW_REPEAT_ANY);
        rest[1] = more;
        rest[0] = maybe(m, SPW_SEQUENCE(m->g, node, more));
    }
    while (i-- > 0 && !m->g->rc)
        add_member(m, members[i].node, is_required(schema, members[i].key), rest);
    m->depth--;
    spw_free(members);
    json_decref(all);
    return braces(m, rest[0]);
}

/* ---- lists ---- */

static uint32_t list(struct maker *m, const json_t *schema)
{
    const json_t *first = json_object_get(schema, "prefixItems");
    const json_t *items = json_object_get(schema, "items");
    const uint32_t min = count(m, schema, "minItems", 0);
    uint32_t max = count(m, schema, "maxItems", SPW_REPEAT_ANY);
    const size_t n = json_array_size(first);
    if ((first && !json_is_array(first)) || json_is_array(items))
        return refuse(m, "\"items\" must be a schema, \"prefixItems\" a list of schemas");
    if (json_is_false(items))
        max = spw_max_u32((uint32_t)n, 0) < max ? (uint32_t)n : max;
    if (max < min)
        return refuse(m, "\"maxItems\" is below \"minItems\"");
    m->depth++;
    const uint32_t item = max <= n ? 0 : items ? at_key(m, "items", items) : m->value;
    uint32_t rest = 0;
    if (max > n) {
        const uint32_t n_first = n ? (uint32_t)n : 1; /* the first one has no comma before it */
        rest = spw_node_repeat(m->g, SPW_SEQUENCE(m->g, spaced(m, ','), item),
                               min > n_first ? min - n_first : 0,
                               max == SPW_REPEAT_ANY ? max : max - n_first);
        if (!n)
            rest = SPW_SEQUENCE(m->g, item, rest);
        if (!n && !min)
            rest = maybe(m, rest);
    }
    for (size_t i = n < max ? n : max; i-- > 0;) {
        const uint32_t node = at_index(m, "prefixItems", i, json_array_get(first, i));
        rest = i ? SPW_SEQUENCE(m->g, spaced(m, ','), node, rest) : SPW_SEQUENCE(m->g, node, rest);
        if (i >= min)
            rest = maybe(m, rest);
    }
    m->depth--;
    return spw_node_nests(m->g,
                          SPW_SEQUENCE(m->g, byte(m, '['), m->space, rest, m->space, byte(m, ']')));
}

/* ---- any value ---- */

/* Also lists and objects of any values. */
static void make_value(struct maker *m)
{
    struct spw_grammar *g = m->g;
    const struct spw_bounds none = {0};
    m->value = spw_node_reserve(g);
    const uint32_t pair = member(m, m->text, m->value);
    const uint32_t pairs = SPW_SEQUENCE(
        g, pair, spw_node_repeat(g, SPW_SEQUENCE(g, spaced(m, ','), pair), 0, SPW_REPEAT_ANY));
    const uint32_t items = SPW_SEQUENCE(
        g, m->value,
        spw_node_repeat(g, SPW_SEQUENCE(g, spaced(m, ','), m->value), 0, SPW_REPEAT_ANY));
    const uint32_t brackets = spw_node_nests(
        g, SPW_SEQUENCE(g, byte(m, '['), m->space, maybe(m, items), m->space, byte(m, ']')));
    spw_node_define(g, m->value,
                    SPW_CHOICE(g, braces(m, maybe(m, pairs)), brackets, m->text,
                               spw_node_number(g, &none), literal(m, "true"), literal(m, "false"),
                               literal(m, "null")));
}

/* ---- schemas ---- */

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

/* A keyword of the schema that restricts values of this type, NULL: of any type; NULL: none. */
static const char *restriction(const json_t *schema, const char *type)
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

static uint32_t of_type(struct maker *m, const json_t *schema, const char *type)
{
    if (!strcmp(type, "object"))
        return object(m, schema);
    if (!strcmp(type, "array"))
        return list(m, schema);
    if (!strcmp(type, "string"))
        return text(m, schema);
    if (!strcmp(type, "number") || !strcmp(type, "integer"))
        return number(m, schema, type[0] == 'i');
    if (!strcmp(type, "boolean"))
        return SPW_CHOICE(m->g, literal(m, "true"), literal(m, "false"));
    if (!strcmp(type, "null"))
        return literal(m, "null");
    return refuse(m, "\"type\": found \"%s\"", type);
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
static uint32_t constants(struct maker *m, const json_t *schema, const json_t *values)
{
    const json_t *type = json_object_get(schema, "type");
    const char *restricts = restriction(schema, NULL);
    for (size_t i = 0; i < json_array_size(values); i++)
        if (!has_type_of(type, json_array_get(values, i)))
            return refuse(m, "value %zu of \"enum\" or \"const\" is not of the \"type\"", i);
    if (restricts)
        return refuse(m, "\"%s\" beside \"enum\" or \"const\" is not supported", restricts);
    return any_constant(m, values);
}

static uint32_t by_types(struct maker *m, const json_t *schema)
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
        return refuse(m, "\"type\": expected a text, or a list of texts");
    for (size_t i = 0; i < N_RESTRICTING; i++)
        if (restriction(schema, restricting[i].type))
            return of_type(m, schema, restricting[i].type);
    return m->value;
}

/* What "#/a/b" names. */
static const json_t *resolve(struct maker *m, const char *reference)
{
    const json_t *at = m->root;
    char key[256];
    if (reference[0] != '#' || (reference[1] && reference[1] != '/')) {
        refuse(m, "\"$ref\": found \"%s\", expected a place in this schema (\"#/...\")", reference);
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
        refuse(m, "\"$ref\": found nothing at \"%s\"", reference);
    return at;
}

/* One of several schemas, which have the type of the schema around them if they name none. */
static uint32_t any_of(struct maker *m, const json_t *schema, const char *key)
{
    const json_t *list_of = json_object_get(schema, key), *type = json_object_get(schema, "type");
    const char *restricts = restriction(schema, NULL);
    uint32_t node = 0;
    if (restricts)
        return refuse(m, "\"%s\" beside \"%s\" is not supported", restricts, key);
    if (!json_array_size(list_of))
        return refuse(m, "\"%s\": expected a list of schemas", key);
    for (size_t i = 0; i < json_array_size(list_of) && !m->g->rc; i++) {
        json_t *one = json_array_get(list_of, i);
        const json_t *own = json_object_get(one, "type");
        if (type && own && !json_equal((json_t *)type, (json_t *)own))
            return refuse(m, "\"type\" beside \"%s\" of other types is not supported", key);
        if (type && !own)
            return refuse(m, "\"%s\": a schema without \"type\" below one with it is not supported",
                          key);
        const uint32_t next = at_index(m, key, i, one);
        node = i ? SPW_CHOICE(m->g, node, next) : next;
    }
    return node;
}

/* Refuses keywords that are not carried out. */
static void check_keywords(struct maker *m, const json_t *schema)
{
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (json_object_get(schema, refused[i]))
            refuse(m, "\"%s\" is not supported", refused[i]);
    if (json_is_true(json_object_get(schema, "uniqueItems")))
        refuse(m, "\"uniqueItems\" is not supported");
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

/* Adds the members of an object schema to `all`. */
static void merge(struct maker *m, json_t *all, const json_t *from, int depth)
{
    static const char *const taken[] = {"type", "additionalProperties"};
    const json_t *required = json_object_get(from, "required");
    const char *reference = json_string_value(json_object_get(from, "$ref")), *key;
    json_t *value;
    if (m->g->rc || !json_is_object(from) || !depth) {
        refuse(m, "\"allOf\": expected schemas of objects");
        return;
    }
    check_keywords(m, from);
    if (reference)
        merge(m, all, resolve(m, reference), depth - 1);
    for (size_t i = 0; i < json_array_size(json_object_get(from, "allOf")); i++)
        merge(m, all, json_array_get(json_object_get(from, "allOf"), i), depth - 1);
    for (size_t i = 1; i < N_RESTRICTING; i++)
        if (restriction(from, restricting[i].type))
            refuse(m, "\"allOf\": only schemas of objects are supported");
    if (json_object_get(from, "anyOf") || json_object_get(from, "oneOf") ||
        json_object_get(from, "enum") || json_object_get(from, "const"))
        refuse(m, "\"allOf\": only schemas of objects are supported");
    json_object_foreach(json_object_get(from, "properties"), key, value)
    {
        json_t *properties = json_object_get(all, "properties");
        const json_t *before = json_object_get(properties, key);
        if (before && !json_equal((json_t *)before, value))
            refuse(m, "\"allOf\": \"%s\" has two schemas, which is not supported", key);
        if (json_object_set(properties, key, value))
            m->g->rc = -ENOMEM;
    }
    for (size_t i = 0; i < json_array_size(required); i++)
        if (json_array_append(json_object_get(all, "required"), json_array_get(required, i)))
            m->g->rc = -ENOMEM;
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
        json_t *of = json_object_get(from, taken[i]), *before = json_object_get(all, taken[i]);
        if (of && before && !json_equal(of, before))
            refuse(m, "\"allOf\": two schemas differ in \"%s\"", taken[i]);
        if (of && json_object_set(all, taken[i], of))
            m->g->rc = -ENOMEM;
    }
}

/* What a part says of other properties holds for all that the other parts have. */
static void check_others(struct maker *m, const json_t *all, const json_t *from, int depth)
{
    const char *reference = json_string_value(json_object_get(from, "$ref")), *key;
    const json_t *others = json_object_get(from, "additionalProperties");
    json_t *ignored;
    if (m->g->rc || !depth)
        return;
    if (reference)
        check_others(m, all, resolve(m, reference), depth - 1);
    for (size_t i = 0; i < json_array_size(json_object_get(from, "allOf")); i++)
        check_others(m, all, json_array_get(json_object_get(from, "allOf"), i), depth - 1);
    if (!others || json_is_true(others))
        return;
    json_object_foreach(json_object_get(all, "properties"), key, ignored)
    {
        if (!json_object_get(json_object_get(from, "properties"), key))
            refuse(m, "\"allOf\": \"%s\" is no property of a part with \"additionalProperties\"",
                   key);
    }
}

static uint32_t all_of(struct maker *m, const json_t *schema)
{
    enum { DEEPEST_MERGE = 16 };
    const json_t *list_of = json_object_get(schema, "allOf");
    static const char *const beside[] = {"type", "$ref", "anyOf", "oneOf", "enum", "const"};
    bool is_alone = json_array_size(list_of) == 1 && !restriction(schema, NULL);
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++)
        is_alone &= !json_object_get(schema, beside[i]);
    if (is_alone)
        return at_index(m, "allOf", 0, json_array_get(list_of, 0));
    json_t *all = json_object();
    if (!all || json_object_set_new(all, "properties", json_object()) ||
        json_object_set_new(all, "required", json_array()))
        m->g->rc = m->g->rc ? m->g->rc : -ENOMEM;
    merge(m, all, schema, DEEPEST_MERGE);
    check_others(m, all, schema, DEEPEST_MERGE);
    const uint32_t node = m->g->rc ? 0 : object(m, all);
    json_decref(all);
    return node;
}

static uint32_t body(struct maker *m, const json_t *schema)
{
    const char *reference = json_string_value(json_object_get(schema, "$ref"));
    json_t *constant_value = json_object_get(schema, "const"),
           *values = json_object_get(schema, "enum");
    const char *second = second_choice(schema);
    check_keywords(m, schema);
    if (json_object_get(schema, "allOf"))
        return all_of(m, schema);
    if (second)
        return refuse(
            m, "\"%s\" beside \"$ref\", \"anyOf\", \"oneOf\" or \"enum\" is not supported", second);
    if (reference && restriction(schema, NULL))
        return refuse(m, "\"%s\" beside \"$ref\" is not supported", restriction(schema, NULL));
    if (reference) {
        const json_t *at = resolve(m, reference);
        return at ? of_schema(m, at) : 0;
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
            m->g->rc = m->g->rc ? m->g->rc : -ENOMEM;
        json_decref(one);
        return node;
    }
    return by_types(m, schema);
}

/* The node of a schema that was met before; 0: none. A schema that refers to itself without an
 * object or a list between allows nothing that has an end. */
static uint32_t known_node(struct maker *m, const json_t *schema)
{
    for (size_t i = 0; i < m->n_known; i++)
        if (m->known[i].schema == schema) {
            if (m->known[i].is_open && m->known[i].depth == m->depth)
                refuse(m, "\"$ref\": the schema refers to itself");
            return m->known[i].node;
        }
    return 0;
}

static uint32_t of_schema(struct maker *m, const json_t *schema)
{
    if (json_is_true(schema))
        return m->value;
    if (!json_is_object(schema))
        return refuse(m, "expected a schema, an object");
    if (m->n_open >= DEEPEST_SCHEMA)
        return refuse(m, "schemas nest more than %d deep", DEEPEST_SCHEMA);
    const uint32_t found = known_node(m, schema);
    if (found || m->g->rc)
        return found;
    if (spw_grow(&m->known, &m->capacity, m->n_known + 1, sizeof *m->known)) {
        m->g->rc = -ENOMEM;
        return 0;
    }
    const size_t i = m->n_known++;
    const uint32_t node = spw_node_reserve(m->g);
    m->known[i] =
        (struct known){.schema = schema, .node = node, .depth = m->depth, .is_open = true};
    m->n_open++;
    const uint32_t made = body(m, schema);
    m->n_open--;
    m->known[i].is_open = false;
    spw_node_define(m->g, node, made);
    return node;
}

/* ---- the whole ---- */

static int make(struct spw_grammar **out, json_t *schema, bool only_objects, struct spw_error *err)
{
    SPW_TRY(spw_grammar_begin(out, err));
    struct maker m = {.g = *out, .root = schema, .path = "#"};
    m.space = white_space(&m);
    m.text = spw_node_quoted(m.g, spw_node_repeat(m.g, character(&m), 0, SPW_REPEAT_ANY));
    make_value(&m);
    json_t *object_schema = only_objects ? json_pack("{s:s}", "type", "object") : NULL;
    const uint32_t node = of_schema(&m, only_objects ? object_schema : schema);
    json_decref(object_schema);
    spw_free(m.known);
    return spw_grammar_finish(out, node);
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
    rc = make(out, parsed, false, err);
    json_decref(parsed);
    return rc;
}

int spw_grammar_open_json(struct spw_grammar **out, struct spw_error *err)
{
    *out = NULL;
    spw_error_clear(err);
    return make(out, NULL, true, err);
}
