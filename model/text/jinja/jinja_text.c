/* Values of Jinja templates as text: Python's str and repr, and JSON as json.dumps writes it. All
 * of it is printed to r->out, whose tail spw_jj_captured turns into a string. See jinja_impl.h. */
#include "model/text/jinja/jinja_impl.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static int print_text(struct spw_jj_run *r, const char *text)
{
    return spw_jj_print(r, text, strlen(text));
}

/* The shortest digits that read back as the same number; as Python, with an exponent from 1e16 on
 * and below 1e-4. */
static void float_text(double d, char text[40])
{
    char digits[40];
    if (!isfinite(d)) {
        snprintf(text, 40, "%s", isnan(d) ? "nan" : d < 0 ? "-inf" : "inf");
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

static int print_float(struct spw_jj_run *r, double d)
{
    char text[40];
    SPW_TRY(spw_jj_charge(r, 16));
    float_text(d, text);
    return print_text(r, text);
}

static int print_int(struct spw_jj_run *r, int64_t i)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRId64, i);
    return print_text(r, text);
}

/* ---- repr ---- */

static int print_repr_char(struct spw_jj_run *r, uint32_t c, const char *at, size_t n, char quote)
{
    char text[16];
    if (c == (unsigned char)quote || c == '\\')
        snprintf(text, sizeof text, "\\%c", (char)c);
    else if (c == '\n' || c == '\r' || c == '\t')
        snprintf(text, sizeof text, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
    else if (spw_jj_is_printable(c))
        return spw_jj_print(r, at, n);
    else if (c < 0x100)
        snprintf(text, sizeof text, "\\x%02x", c);
    else
        snprintf(text, sizeof text, c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
    return print_text(r, text);
}

static int print_string_repr(struct spw_jj_run *r, const struct spw_jj_string *s)
{
    bool has_single = memchr(s->at, '\'', s->bytes), has_double = memchr(s->at, '"', s->bytes);
    char quote = has_single && !has_double ? '"' : '\'';
    const char *end = s->at + s->bytes;
    size_t n;
    if (s->markup)
        SPW_TRY(print_text(r, "Markup("));
    SPW_TRY(spw_jj_print(r, &quote, 1));
    for (const char *p = s->at; p < end; p += n) {
        uint32_t c = spw_jj_decode(p, end, &n);
        SPW_TRY(print_repr_char(r, c, p, n, quote));
    }
    SPW_TRY(spw_jj_print(r, &quote, 1));
    return s->markup ? print_text(r, ")") : 0;
}

static int print_items_repr(struct spw_jj_run *r, struct spw_jj_value v)
{
    bool list = v.type == SPW_JJ_LIST;
    SPW_TRY(print_text(r, list ? "[" : "("));
    for (size_t i = 0; i < v.u.list->n; i++) {
        if (i)
            SPW_TRY(print_text(r, ", "));
        SPW_TRY(spw_jj_print_repr(r, v.u.list->at[i]));
    }
    return print_text(r, list ? "]" : v.u.list->n == 1 ? ",)" : ")");
}

static int print_dict_repr(struct spw_jj_run *r, const struct spw_jj_dict *d)
{
    SPW_TRY(print_text(r, "{"));
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            SPW_TRY(print_text(r, ", "));
        SPW_TRY(spw_jj_print_repr(r, d->at[i].key));
        SPW_TRY(print_text(r, ": "));
        SPW_TRY(spw_jj_print_repr(r, d->at[i].value));
    }
    return print_text(r, "}");
}

static int print_deep_repr(struct spw_jj_run *r, struct spw_jj_value v)
{
    switch (v.type) {
    case SPW_JJ_LIST:
    case SPW_JJ_TUPLE:
        return print_items_repr(r, v);
    case SPW_JJ_DICT:
        return print_dict_repr(r, v.u.dict);
    default: /* what Python prints of these is of no use: an address, or a type's name */
        return spw_jj_fail(r,
                           "found a %s where a text is made, expected a value (a `| list` "
                           "missing, or a call's parentheses?)",
                           spw_jj_type_name(v));
    }
}

int spw_jj_print_repr(struct spw_jj_run *r, struct spw_jj_value v)
{
    switch (v.type) {
    case SPW_JJ_UNDEFINED:
        return print_text(r, "Undefined");
    case SPW_JJ_MISSING:
    case SPW_JJ_NONE:
        return print_text(r, "None");
    case SPW_JJ_BOOL:
        return print_text(r, v.u.boolean ? "True" : "False");
    case SPW_JJ_INT:
        return print_int(r, v.u.integer);
    case SPW_JJ_FLOAT:
        return print_float(r, v.u.number);
    case SPW_JJ_STRING:
        return print_string_repr(r, v.u.string);
    default:
        SPW_TRY(spw_jj_enter(r));
        SPW_TRY(print_deep_repr(r, v));
        r->depth--;
        return 0;
    }
}

int spw_jj_print_value(struct spw_jj_run *r, struct spw_jj_value v)
{
    if (v.type == SPW_JJ_STRING)
        return spw_jj_print(r, v.u.string->at, v.u.string->bytes);
    if (v.type == SPW_JJ_UNDEFINED)
        return 0;
    return spw_jj_print_repr(r, v);
}

int spw_jj_to_string(struct spw_jj_run *r, struct spw_jj_value v, struct spw_jj_value *out)
{
    size_t start = r->out.bytes;
    if (v.type == SPW_JJ_STRING) {
        *out = v;
        return 0;
    }
    SPW_TRY(spw_jj_print_value(r, v));
    return spw_jj_captured(r, start, out);
}

/* ---- JSON ---- */

static int print_json_string(struct spw_jj_run *r, const struct spw_jj_string *s, bool ascii)
{
    const char *end = s->at + s->bytes, *p = s->at, *plain = p;
    size_t n;
    SPW_TRY(print_text(r, "\""));
    for (; p < end; p += n) {
        uint32_t c = spw_jj_decode(p, end, &n);
        static const char short_from[] = "\"\\\n\r\t\f\b", short_to[] = "\"\\nrtfb";
        char text[16] = "";
        const char *found = c && c < 128 ? strchr(short_from, (int)c) : NULL;
        if (found)
            snprintf(text, sizeof text, "\\%c", short_to[found - short_from]);
        else if (c < 32 || (ascii && c > 126 && c < 0x10000))
            snprintf(text, sizeof text, "\\u%04x", c);
        else if (ascii && c >= 0x10000)
            snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xd800 + ((c - 0x10000) >> 10),
                     0xdc00 + ((c - 0x10000) & 0x3ff));
        else
            continue;
        SPW_TRY(spw_jj_print(r, plain, (size_t)(p - plain)));
        SPW_TRY(print_text(r, text));
        plain = p + n;
    }
    SPW_TRY(spw_jj_print(r, plain, (size_t)(end - plain)));
    return print_text(r, "\"");
}

static int print_line(struct spw_jj_run *r, const struct spw_jj_json *o, uint32_t level)
{
    if (!o->indented)
        return 0;
    SPW_TRY(print_text(r, "\n"));
    for (uint32_t i = 0; i < level; i++)
        SPW_TRY(spw_jj_print_value(r, o->indent));
    return 0;
}

static int print_json_list(struct spw_jj_run *r, const struct spw_jj_list *l,
                           const struct spw_jj_json *o, uint32_t level)
{
    if (!l->n)
        return print_text(r, "[]");
    SPW_TRY(print_text(r, "["));
    for (size_t i = 0; i < l->n; i++) {
        if (i)
            SPW_TRY(spw_jj_print_value(r, o->item_separator));
        SPW_TRY(print_line(r, o, level + 1));
        SPW_TRY(spw_jj_print_json(r, l->at[i], o, level + 1));
    }
    SPW_TRY(print_line(r, o, level));
    return print_text(r, "]");
}

static int print_json_key(struct spw_jj_run *r, struct spw_jj_value key,
                          const struct spw_jj_json *o)
{
    if (key.type == SPW_JJ_STRING)
        return print_json_string(r, key.u.string, o->ascii);
    if (key.type != SPW_JJ_INT && key.type != SPW_JJ_FLOAT && key.type != SPW_JJ_BOOL &&
        key.type != SPW_JJ_NONE)
        return spw_jj_fail(r, "tojson: found a key that is a '%s'", spw_jj_type_name(key));
    SPW_TRY(print_text(r, "\""));
    SPW_TRY(spw_jj_print_json(r, key, o, 0));
    return print_text(r, "\"");
}

/* The entries in the order of their keys. */
static int sort_entries(struct spw_jj_run *r, const struct spw_jj_dict *d, struct spw_jj_value *out)
{
    struct spw_jj_value keys, pair;
    SPW_TRY(spw_jj_new_list(r, SPW_JJ_LIST, out));
    SPW_TRY(spw_jj_new_list(r, SPW_JJ_LIST, &keys));
    for (size_t i = 0; i < d->n; i++) {
        SPW_TRY(spw_jj_pair(r, d->at[i].key, d->at[i].value, &pair));
        SPW_TRY(spw_jj_append(r, out->u.list, pair));
        SPW_TRY(spw_jj_append(r, keys.u.list, d->at[i].key));
    }
    return spw_jj_sort(r, out->u.list, keys.u.list, false);
}

static int print_json_dict(struct spw_jj_run *r, const struct spw_jj_dict *d,
                           const struct spw_jj_json *o, uint32_t level)
{
    struct spw_jj_value sorted;
    if (!d->n)
        return print_text(r, "{}");
    if (o->sort)
        SPW_TRY(sort_entries(r, d, &sorted));
    SPW_TRY(print_text(r, "{"));
    for (size_t i = 0; i < d->n; i++) {
        const struct spw_jj_value *pair = o->sort ? sorted.u.list->at[i].u.list->at : NULL;
        if (i)
            SPW_TRY(spw_jj_print_value(r, o->item_separator));
        SPW_TRY(print_line(r, o, level + 1));
        SPW_TRY(print_json_key(r, pair ? pair[0] : d->at[i].key, o));
        SPW_TRY(spw_jj_print_value(r, o->key_separator));
        SPW_TRY(spw_jj_print_json(r, pair ? pair[1] : d->at[i].value, o, level + 1));
    }
    SPW_TRY(print_line(r, o, level));
    return print_text(r, "}");
}

int spw_jj_print_json(struct spw_jj_run *r, struct spw_jj_value v, const struct spw_jj_json *o,
                      uint32_t level)
{
    switch (v.type) {
    case SPW_JJ_NONE:
        return print_text(r, "null");
    case SPW_JJ_BOOL:
        return print_text(r, v.u.boolean ? "true" : "false");
    case SPW_JJ_INT:
        return print_int(r, v.u.integer);
    case SPW_JJ_FLOAT:
        if (!isfinite(v.u.number))
            return print_text(r, isnan(v.u.number) ? "NaN"
                                 : v.u.number < 0  ? "-Infinity"
                                                   : "Infinity");
        return print_float(r, v.u.number);
    case SPW_JJ_STRING:
        return print_json_string(r, v.u.string, o->ascii);
    case SPW_JJ_LIST:
    case SPW_JJ_TUPLE:
        SPW_TRY(spw_jj_enter(r));
        SPW_TRY(print_json_list(r, v.u.list, o, level));
        r->depth--;
        return 0;
    case SPW_JJ_DICT:
        SPW_TRY(spw_jj_enter(r));
        SPW_TRY(print_json_dict(r, v.u.dict, o, level));
        r->depth--;
        return 0;
    default:
        return spw_jj_fail(r, "Object of type %s is not JSON serializable", spw_jj_type_name(v));
    }
}
