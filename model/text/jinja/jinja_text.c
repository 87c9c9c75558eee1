/* Values of Jinja templates as text: Python's str and repr, and JSON as json.dumps writes it. All
 * of it is printed to r->out, whose tail spw_jinja_captured turns into a string. See jinja_impl.h.
 */
#include "model/text/jinja/jinja_impl.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* The shortest digits that read back as the same number; as Python, with an exponent from 1e16 on
 * and below 1e-4. */
static void float_text(double d, bool json, char text[40])
{
    char digits[40];
    if (!isfinite(d)) {
        const char *words[] = {json ? "NaN" : "nan", json ? "-Infinity" : "-inf",
                               json ? "Infinity" : "inf"};
        snprintf(text, 40, "%s", words[isnan(d) ? 0 : d < 0 ? 1 : 2]);
        return;
    }
    int precision = 0;
    do
        snprintf(digits, sizeof digits, "%.*e", precision, d);
    while (strtod(digits, NULL) != d && ++precision < 17);
    char *e = strchr(digits, 'e');
    int exponent = atoi(e + 1);
    if (exponent < -4 || exponent >= 16) {
        *e = 0;
        snprintf(text, 40, "%.25se%c%02d", digits, exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    int decimals = precision - exponent;
    snprintf(text, 40, "%.*f", decimals > 1 ? decimals : 1, d);
}

static void print_float(struct run *r, double d, bool json)
{
    char text[40];
    spw_jinja_charge(r, 16);
    float_text(d, json, text);
    spw_jinja_print_text(r, text);
}

static void print_int(struct run *r, int64_t i)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRId64, i);
    spw_jinja_print_text(r, text);
}

/* How a value and what it holds are written: as Python's repr does, or as JSON. */
struct style {
    bool json, ascii, sort;
    struct value indent; /* a string, or MISSING */
    struct value item_separator, key_separator;
};

/* ---- strings ---- */

/* What stands for a character between quotes; "": the character itself. */
static void escape_of(uint32_t c, char quote, const struct style *o, char text[16])
{
    static const char from[] = "\\\n\r\t\f\b", to[] = "\\nrtfb"; /* the last two in JSON only */
    const char *found = c && c < 128 ? memchr(from, (int)c, o->json ? 6 : 4) : NULL;
    *text = 0;
    if (found || c == (unsigned char)quote)
        snprintf(text, 16, "\\%c", found ? to[found - from] : quote);
    else if (o->json && o->ascii && c >= 0x10000)
        snprintf(text, 16, "\\u%04x\\u%04x", 0xd800 + ((c - 0x10000) >> 10),
                 0xdc00 + ((c - 0x10000) & 0x3ff));
    else if (o->json ? c < 32 || (o->ascii && c > 126) : !spw_jinja_is_printable(c))
        snprintf(text, 16,
                 c < 0x100 && !o->json ? "\\x%02x"
                 : c < 0x10000         ? "\\u%04x"
                                       : "\\U%08x",
                 c);
}

static void print_quoted(struct run *r, const struct string *s, const struct style *o)
{
    const bool has_single = memchr(s->at, '\'', s->bytes),
               has_double = memchr(s->at, '"', s->bytes);
    const char quote = o->json || (has_single && !has_double) ? '"' : '\'';
    const bool markup = s->markup && !o->json;
    const char *end = s->at + s->bytes, *plain = s->at;
    size_t n;
    spw_jinja_print_text(r, markup ? "Markup(" : "");
    spw_jinja_print(r, &quote, 1);
    for (const char *p = plain; p < end; p += n) {
        char text[16];
        escape_of(spw_jinja_decode(p, end, &n), quote, o, text);
        if (!*text)
            continue;
        spw_jinja_print(r, plain, (size_t)(p - plain));
        spw_jinja_print_text(r, text);
        plain = p + n;
    }
    spw_jinja_print(r, plain, (size_t)(end - plain));
    spw_jinja_print(r, &quote, 1);
    spw_jinja_print_text(r, markup ? ")" : "");
}

/* ---- repr and JSON ---- */

static void print(struct run *r, struct value v, const struct style *o, uint32_t level);

static void print_line(struct run *r, const struct style *o, uint32_t level)
{
    if (o->indent.type == SPW_JINJA_MISSING)
        return;
    spw_jinja_print_text(r, "\n");
    for (uint32_t i = 0; i < level; i++)
        spw_jinja_print_value(r, o->indent);
}

static void print_key(struct run *r, struct value key, const struct style *o)
{
    bool quoted = o->json && key.type != SPW_JINJA_STRING;
    if (quoted && !is_number(key) && key.type != SPW_JINJA_NONE)
        spw_jinja_fail(r, "tojson: found a key that is a '%s'", spw_jinja_type_name(key));
    spw_jinja_print_text(r, quoted ? "\"" : "");
    print(r, key, o, 0);
    spw_jinja_print_text(r, quoted ? "\"" : "");
    spw_jinja_print_value(r, o->key_separator);
}

/* Between marks; `pairs`: the items are those of a dict. */
static void print_items(struct run *r, const struct list *l, bool pairs, const char marks[2],
                        const struct style *o, uint32_t level)
{
    spw_jinja_print(r, marks, 1);
    for (size_t i = 0; i < l->n; i++) {
        struct value item = l->at[i];
        if (i)
            spw_jinja_print_value(r, o->item_separator);
        print_line(r, o, level + 1);
        if (pairs) {
            print_key(r, item.u.list->at[0], o);
            item = item.u.list->at[1];
        }
        print(r, item, o, level + 1);
    }
    if (l->n)
        print_line(r, o, level);
    if (*marks == '(' && l->n == 1)
        spw_jinja_print_text(r, ",");
    spw_jinja_print(r, marks + 1, 1);
}

static void print_dict(struct run *r, struct value v, const struct style *o, uint32_t level)
{
    struct list *pairs = spw_jinja_pairs(r, v.u.dict);
    if (o->sort)
        spw_jinja_sort(r, pairs, spw_jinja_items(r, v), false);
    print_items(r, pairs, true, "{}", o, level);
}

_Noreturn static void no_text(struct run *r, struct value v, const struct style *o)
{
    if (o->json)
        spw_jinja_fail(r, "Object of type %s is not JSON serializable", spw_jinja_type_name(v));
    /* what Python prints of these is of no use: an address, or a type's name */
    spw_jinja_fail(r,
                   "found a %s where a text is made, expected a value (a `| list` "
                   "missing, or a call's parentheses?)",
                   spw_jinja_type_name(v));
}

static void print(struct run *r, struct value v, const struct style *o, uint32_t level)
{
    spw_jinja_enter(r);
    if (v.type == SPW_JINJA_NONE)
        spw_jinja_print_text(r, o->json ? "null" : "None");
    else if (v.type == SPW_JINJA_UNDEFINED && !o->json)
        spw_jinja_print_text(r, "Undefined");
    else if (v.type == SPW_JINJA_BOOL && o->json)
        spw_jinja_print_text(r, v.u.boolean ? "true" : "false");
    else if (v.type == SPW_JINJA_BOOL)
        spw_jinja_print_text(r, v.u.boolean ? "True" : "False");
    else if (v.type == SPW_JINJA_INT)
        print_int(r, v.u.integer);
    else if (v.type == SPW_JINJA_FLOAT)
        print_float(r, v.u.number, o->json);
    else if (v.type == SPW_JINJA_STRING)
        print_quoted(r, v.u.string, o);
    else if (v.type == SPW_JINJA_LIST || v.type == SPW_JINJA_TUPLE)
        print_items(r, v.u.list, false, o->json || v.type == SPW_JINJA_LIST ? "[]" : "()", o,
                    level);
    else if (v.type == SPW_JINJA_DICT)
        print_dict(r, v, o, level);
    else
        no_text(r, v, o);
    r->depth--;
}

static struct value text_value(struct run *r, const char *text)
{
    return spw_jinja_borrow(r, text, strlen(text));
}

void spw_jinja_print_repr(struct run *r, struct value v)
{
    print(r, v,
          &(struct style){.item_separator = text_value(r, ", "),
                          .key_separator = text_value(r, ": ")},
          0);
}

void spw_jinja_print_value(struct run *r, struct value v)
{
    if (v.type == SPW_JINJA_STRING)
        spw_jinja_print(r, v.u.string->at, v.u.string->bytes);
    else if (v.type != SPW_JINJA_UNDEFINED)
        spw_jinja_print_repr(r, v);
}

struct value spw_jinja_to_string(struct run *r, struct value v)
{
    size_t start = r->out_bytes;
    if (v.type == SPW_JINJA_STRING)
        return v;
    spw_jinja_print_value(r, v);
    return spw_jinja_captured(r, start);
}

static void separators(struct run *r, struct value v, struct style *o)
{
    if (given(v)) {
        if (!is_list(v) || v.u.list->n != 2 || v.u.list->at[0].type != SPW_JINJA_STRING ||
            v.u.list->at[1].type != SPW_JINJA_STRING)
            spw_jinja_fail(r, "tojson: separators: expected two strings");
        o->item_separator = v.u.list->at[0];
        o->key_separator = v.u.list->at[1];
        return;
    }
    o->item_separator = text_value(r, given(o->indent) ? "," : ", ");
    o->key_separator = text_value(r, ": ");
}

/* The filter, as transformers has it. */
struct value spw_jinja_tojson(struct run *r, const struct call *c)
{
    const struct value *a = c->a;
    struct style o = {.json = true, .ascii = spw_jinja_truth(a[0]), .sort = spw_jinja_truth(a[3])};
    size_t start = r->out_bytes;
    if (a[1].type == SPW_JINJA_STRING) {
        o.indent = a[1];
    } else if (given(a[1])) {
        spw_jinja_print_times(r, " ", 1, spw_jinja_want_int(r, a[1], "tojson: indent"));
        o.indent = spw_jinja_captured(r, start);
    }
    separators(r, a[2], &o);
    print(r, c->self, &o, 0);
    return spw_jinja_captured(r, start);
}
