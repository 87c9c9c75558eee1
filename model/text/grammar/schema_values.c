/* The values of a schema that are no objects and lists, and white space: see schema_parts.h. */
#include "model/text/grammar/schema_parts.h"

#include "base/json.h"

#include <math.h>
#include <string.h>

/* ---- small parts ---- */

uint32_t spw_schema_spaced(struct spw_schema *m, char c)
{
    return SPW_SEQUENCE(m->g, m->g->space, spw_node_byte(m->g, (unsigned char)c), m->g->space);
}

static uint32_t range(struct spw_schema *m, char first, char last)
{
    const struct spw_char_range r = {(unsigned char)first, (unsigned char)last};
    return spw_node_chars(m->g, &r, 1);
}

static uint32_t white_space(struct spw_schema *m)
{
    const uint32_t blank = SPW_CHOICE(m->g, spw_node_byte(m->g, ' '), spw_node_byte(m->g, '\t'));
    const uint32_t line = SPW_SEQUENCE(m->g, spw_node_repeat(m->g, spw_node_byte(m->g, '\n'), 1, 2),
                                       spw_node_repeat(m->g, blank, 0, 20));
    return spw_node_maybe(m->g, SPW_CHOICE(m->g, spw_node_byte(m->g, ' '), line));
}

/* A character of a text: plain, or escaped; halves of a character only in pairs. */
static uint32_t character(struct spw_schema *m)
{
    static const struct spw_char_range bare[] = {{'\t', '\n'}, {'\r', '\r'}, {' ', 0x10FFFF}};
    struct spw_grammar *g = m->g;
    if (g->is_bare)
        return spw_node_chars(g, bare, sizeof bare / sizeof *bare);
    const uint32_t digit = range(m, '0', '9'),
                   hex = SPW_CHOICE(g, digit, range(m, 'A', 'F'), range(m, 'a', 'f'));
    const uint32_t not_d = SPW_CHOICE(g, digit, range(m, 'A', 'C'), range(m, 'a', 'c'),
                                      range(m, 'E', 'F'), range(m, 'e', 'f'));
    const uint32_t d = SPW_CHOICE(g, spw_node_byte(m->g, 'D'), spw_node_byte(m->g, 'd'));
    const uint32_t high = SPW_CHOICE(g, range(m, '8', '9'), range(m, 'A', 'B'), range(m, 'a', 'b'));
    const uint32_t low = SPW_CHOICE(g, range(m, 'C', 'F'), range(m, 'c', 'f'));
    const uint32_t whole = SPW_CHOICE(
        g, SPW_SEQUENCE(g, not_d, hex, hex, hex), SPW_SEQUENCE(g, d, range(m, '0', '7'), hex, hex),
        SPW_SEQUENCE(g, d, high, hex, hex, spw_node_word(m->g, "\\u"), d, low, hex, hex));
    const uint32_t slash = spw_node_byte(g, '/'),
                   escaped = SPW_SEQUENCE(
                       g, spw_node_byte(g, '\\'),
                       SPW_CHOICE(g, slash, SPW_SEQUENCE(g, spw_node_byte(g, 'u'), whole)));
    return SPW_CHOICE(g, spw_node_json_chars(g, (const struct spw_char_range[]){{0, 0x10FFFF}}, 1),
                      escaped);
}

void spw_schema_make_texts(struct spw_schema *m)
{
    m->g->space = white_space(m);
    m->g->text = spw_node_quoted(m->g, spw_node_repeat(m->g, character(m), 0, SPW_REPEAT_ANY));
}

/* ---- constants ---- */

uint32_t spw_schema_constant(struct spw_schema *m, const json_t *value)
{
    if (m->g->is_bare)
        return spw_node_word(m->g, json_string_value(value));
    char *text = spw_json_dump(value, JSON_ENCODE_ANY | JSON_COMPACT);
    const uint32_t node = text ? spw_node_word(m->g, text) : spw_schema_no_memory(m);
    spw_free(text);
    return node;
}

uint32_t spw_schema_constants(struct spw_schema *m, const json_t *list)
{
    const size_t n = json_array_size(list);
    if (!n)
        return spw_schema_refuse(m, "\"enum\": expected a list of values");
    uint32_t *nodes = spw_alloc(n * sizeof *nodes);
    if (!nodes)
        return spw_schema_no_memory(m);
    for (size_t i = 0; i < n; i++)
        nodes[i] = spw_schema_constant(m, json_array_get(list, i));
    const uint32_t node = spw_node_list(m->g, SPW_NODE_CHOICE, nodes, n);
    spw_free(nodes);
    return node;
}

/* ---- counts and bounds ---- */

uint32_t spw_schema_count(struct spw_schema *m, const json_t *schema, const char *key,
                          uint32_t absent)
{
    const json_t *value = json_object_get(schema, key);
    const json_int_t n = json_integer_value(value);
    if (!value)
        return absent;
    if (!json_is_integer(value) || n < 0 || n > 1000000)
        return spw_schema_refuse(m, "\"%s\": expected a whole number from 0 to 1000000", key);
    return (uint32_t)n;
}

/* A bound as a whole number; for integers a fraction is rounded inwards. */
static bool bound(struct spw_schema *m, const json_t *value, const char *key, bool is_integer,
                  bool is_low, int64_t *out)
{
    const double x = json_number_value(value);
    const double inward = is_low ? ceil(x) : floor(x);
    if (!json_is_number(value) || fabs(x) > 9e15)
        spw_schema_refuse(m, "\"%s\": expected a number of at most 15 digits", key);
    else if (!is_integer && inward != x)
        spw_schema_refuse(m, "\"%s\": bounds of a number must be whole", key);
    *out = m->g->rc ? 0 : (int64_t)inward;
    return inward != x; /* the bound is no value itself */
}

uint32_t spw_schema_number(struct spw_schema *m, const json_t *schema, bool is_integer)
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

static uint32_t format(struct spw_schema *m, const char *name)
{
    for (size_t i = 0; name && i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i].name, name) == 0)
            return spw_node_pattern(m->g, formats[i].pattern, m->path);
    return spw_schema_refuse(
        m,
        "\"format\": \"%s\" is not supported: expected date, time, date-time, uuid, "
        "email, hostname, ipv4 or uri",
        name ? name : "");
}

static uint32_t quoted(struct spw_schema *m, uint32_t content)
{
    return m->g->is_bare ? content : spw_node_quoted(m->g, content);
}

uint32_t spw_schema_text(struct spw_schema *m, const json_t *schema)
{
    const json_t *pattern = json_object_get(schema, "pattern"),
                 *of = json_object_get(schema, "format");
    const uint32_t min = spw_schema_count(m, schema, "minLength", 0);
    const uint32_t max = spw_schema_count(m, schema, "maxLength", SPW_REPEAT_ANY);
    const bool is_counted = min || max != SPW_REPEAT_ANY;
    if ((pattern != NULL) + (of != NULL) + is_counted > 1)
        return spw_schema_refuse(m,
                                 "\"pattern\", \"format\" and lengths together are not supported");
    if (max < min)
        return spw_schema_refuse(m, "\"maxLength\" is below \"minLength\"");
    if (pattern && !json_is_string(pattern))
        return spw_schema_refuse(m, "\"pattern\": expected a text");
    if (pattern)
        return quoted(m, spw_node_pattern(m->g, json_string_value(pattern), m->path));
    if (of)
        return quoted(m, format(m, json_string_value(of)));
    return is_counted      ? quoted(m, spw_node_repeat(m->g, character(m), min, max))
           : m->g->is_bare ? m->any
                           : m->g->text;
}

/* ---- texts in tags ---- */

/* Any character but '<', and but one more of ASCII; 0: no other. */
static uint32_t not_mark(struct spw_grammar *g, unsigned char but)
{
    struct spw_char_range r[5] = {{'\t', '\n'}, {'\r', '\r'}, {' ', '<' - 1}, {'<' + 1, 0x10FFFF}};
    const uint32_t k = but > '<' ? 3 : 2;
    if (!but)
        return spw_node_chars(g, r, 4);
    r[4] = (struct spw_char_range){but + 1u, r[k].last};
    r[k].last = but - 1u;
    return spw_node_chars(g, r, 5);
}

/* What follows the '<' of a text that may be the mark: n bytes of the mark, and then something
 * else. `at_end`: the text may also end there, and other text does not follow. */
static uint32_t begun_mark(struct spw_grammar *g, const char *mark, bool at_end)
{
    const uint32_t first = spw_node_reserve(g);
    const uint32_t again = SPW_SEQUENCE(g, spw_node_byte(g, '<'), first);
    uint32_t node = 0;
    for (size_t n = strlen(mark); n-- > 1;) {
        const unsigned char next = (unsigned char)mark[n];
        const uint32_t other = at_end ? 0 : not_mark(g, next);
        const uint32_t goes_on = SPW_SEQUENCE(g, spw_node_byte(g, next), node);
        node = mark[n + 1] ? SPW_CHOICE(g, other, again, goes_on) : SPW_CHOICE(g, other, again);
    }
    spw_node_define(g, first, node);
    return again;
}

uint32_t spw_node_text_before(struct spw_grammar *g, const char *mark)
{
    /* The repetition of one hides '<' from those who look for plain characters around it. */
    const uint32_t begun = spw_node_repeat(g, begun_mark(g, mark, false), 1, 1);
    const uint32_t one = SPW_CHOICE(g, not_mark(g, 0), begun);
    return SPW_SEQUENCE(g, spw_node_repeat(g, one, 0, SPW_REPEAT_ANY),
                        spw_node_maybe(g, begun_mark(g, mark, true)));
}
