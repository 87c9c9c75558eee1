/* Filters of single values: text, numbers, JSON. See jinja_impl.h; the ones over sequences are in
 * jinja_filters_seq.c. */
#include "model/text/jinja/jinja_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define FILTER(name)                                                                               \
    int spw_jj_f_##name(struct spw_jj_run *r, struct spw_jj_value self,                            \
                        const struct spw_jj_value *a, struct spw_jj_value *out)

static bool given(struct spw_jj_value v)
{
    return v.type != SPW_JJ_MISSING && v.type != SPW_JJ_NONE;
}

FILTER(upper)
{
    return spw_jj_call_string(r, spw_jj_m_upper, self, a, out);
}

FILTER(lower)
{
    return spw_jj_call_string(r, spw_jj_m_lower, self, a, out);
}

FILTER(capitalize)
{
    return spw_jj_call_string(r, spw_jj_m_capitalize, self, a, out);
}

FILTER(trim)
{
    return spw_jj_call_string(r, spw_jj_m_strip, self, a, out);
}

FILTER(replace)
{
    struct spw_jj_value args[SPW_JJ_MAX_PARAMS] = {{.type = SPW_JJ_MISSING}};
    SPW_TRY(spw_jj_to_string(r, self, &self));
    SPW_TRY(spw_jj_to_string(r, a[0], &args[0]));
    SPW_TRY(spw_jj_to_string(r, a[1], &args[1]));
    if (given(a[2]))
        args[2] = a[2];
    return spw_jj_m_replace(r, self, args, out); /* plain, also where self was marked safe */
}

/* Words begin after white space, '-', '(', '{', '[' and '<'. */
FILTER(title)
{
    (void)a;
    SPW_TRY(spw_jj_to_string(r, self, &self));
    const char *p = self.u.string->at, *end = p + self.u.string->bytes;
    size_t start = r->out.bytes, n;
    while (p < end) {
        const char *word = p;
        bool between = false;
        for (; p < end; p += n) {
            uint32_t c = spw_jj_decode(p, end, &n);
            bool breaks = spw_jj_is_space(c) || (c && c < 128 && strchr("-({[<", (int)c));
            if (p == word)
                between = breaks;
            else if (breaks != between)
                break;
        }
        spw_jj_decode(word, p, &n); /* the upper case of its first, which is not its title case */
        SPW_TRY(spw_jj_print_case(r, word, n, SPW_JJ_UPPER));
        SPW_TRY(spw_jj_print_case(r, word + n, (size_t)(p - word) - n, SPW_JJ_LOWER));
    }
    return spw_jj_captured(r, start, out);
}

FILTER(string)
{
    (void)a;
    return spw_jj_to_string(r, self, out);
}

FILTER(default)
{
    bool boolean = false, truth = true;
    if (a[1].type != SPW_JJ_MISSING)
        SPW_TRY(spw_jj_truth(r, a[1], &boolean));
    if (boolean)
        SPW_TRY(spw_jj_truth(r, self, &truth));
    *out = self;
    if (self.type != SPW_JJ_UNDEFINED && truth)
        return 0;
    *out = a[0];
    return a[0].type == SPW_JJ_MISSING ? spw_jj_borrow(r, "", 0, out) : 0;
}

/* ---- lines ---- */

static int print_indent(struct spw_jj_run *r, struct spw_jj_value width)
{
    int64_t n = 4;
    if (width.type == SPW_JJ_STRING)
        return spw_jj_print_value(r, width);
    if (width.type != SPW_JJ_MISSING)
        SPW_TRY(spw_jj_want_int(r, width, "indent", &n));
    return spw_jj_print_times(r, " ", 1, n);
}

FILTER(indent)
{
    const struct spw_jj_value none[SPW_JJ_MAX_PARAMS] = {{.type = SPW_JJ_MISSING}};
    struct spw_jj_value lines, newline;
    bool first = false, blank = false;
    if (self.type == SPW_JJ_UNDEFINED)
        return spw_jj_fail_undefined(r, self.u.undefined);
    if (self.type != SPW_JJ_STRING)
        return spw_jj_fail(r, "indent: found '%s', expected a string", spw_jj_type_name(self));
    SPW_TRY(spw_jj_truth(r, a[1], &first));
    SPW_TRY(spw_jj_truth(r, a[2], &blank));
    SPW_TRY(spw_jj_borrow(r, "\n", 1, &newline));
    SPW_TRY(spw_jj_mark(r, self.u.string, &newline));
    SPW_TRY(spw_jj_binary(r, '+', self, newline, &lines));
    SPW_TRY(spw_jj_m_splitlines(r, lines, none, &lines));
    size_t start = r->out.bytes;
    for (size_t i = 0; i < lines.u.list->n; i++) {
        struct spw_jj_value line = lines.u.list->at[i];
        if (i)
            SPW_TRY(spw_jj_print(r, "\n", 1));
        if (i ? blank || line.u.string->bytes : first)
            SPW_TRY(print_indent(r, a[0]));
        SPW_TRY(spw_jj_print_value(r, line));
    }
    SPW_TRY(spw_jj_captured(r, start, out));
    return spw_jj_mark(r, self.u.string, out);
}

/* ---- numbers ---- */

FILTER(abs)
{
    (void)a;
    if (self.type == SPW_JJ_FLOAT) {
        *out = spw_jj_float(fabs(self.u.number));
        return 0;
    }
    if (self.type != SPW_JJ_INT && self.type != SPW_JJ_BOOL)
        return spw_jj_fail(r, "abs: found '%s', expected a number", spw_jj_type_name(self));
    bool negative = self.type == SPW_JJ_INT && self.u.integer < 0;
    return spw_jj_unary(r, negative ? '-' : '+', self, out);
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* What Python's int(text) reads. *big: it is an integer, but of more than 64 bits. */
static bool read_int(const struct spw_jj_string *s, int64_t *out, bool *big)
{
    const char *p = s->at;
    size_t n = s->bytes;
    spw_jj_strip(&p, &n, NULL, true, true);
    const char *end = p + n;
    bool negative = p < end && *p == '-', digit_before = false;
    p += p < end && (*p == '-' || *p == '+');
    int64_t value = 0;
    *big = false;
    for (; p < end; p++) {
        if (*p == '_' && digit_before && p + 1 < end) {
            digit_before = false;
            continue;
        }
        if (!is_digit(*p))
            return false;
        int digit = *p - '0';
        digit_before = true;
        *big |= __builtin_mul_overflow(value, 10, &value) ||
                (negative ? __builtin_sub_overflow(value, digit, &value)
                          : __builtin_add_overflow(value, digit, &value));
    }
    *out = value;
    return digit_before;
}

/* What Python's float(text) reads. */
static bool read_float(const struct spw_jj_string *s, double *out)
{
    static const char *const words[] = {"inf", "infinity", "nan"};
    char text[128];
    const char *p = s->at;
    size_t n = s->bytes, used = 0;
    spw_jj_strip(&p, &n, NULL, true, true);
    if (!n || n >= sizeof text)
        return false;
    for (size_t i = 0; i < n; i++) {
        bool between = i > 0 && i + 1 < n && is_digit(p[i - 1]) && is_digit(p[i + 1]);
        if (p[i] == '_' && between)
            continue;
        text[used++] = p[i];
    }
    text[used] = 0;
    const char *body = text + (*text == '-' || *text == '+');
    for (size_t i = 0; i < 3; i++)
        if (!strcasecmp(body, words[i])) {
            double value = i < 2 ? INFINITY : NAN;
            *out = *text == '-' ? -value : value;
            return true;
        }
    if (!*body || body[strspn(body, "0123456789.eE+-")])
        return false;
    char *end;
    *out = strtod(text, &end);
    return *end == 0;
}

FILTER(int)
{
    int64_t i = 0;
    bool big = false;
    double d = 0;
    *out = a[0].type == SPW_JJ_MISSING ? spw_jj_int(0) : a[0];
    switch (self.type) {
    case SPW_JJ_UNDEFINED:
        return spw_jj_fail_undefined(r, self.u.undefined);
    case SPW_JJ_INT:
    case SPW_JJ_BOOL:
        return spw_jj_unary(r, '+', self, out);
    case SPW_JJ_STRING:
        SPW_TRY(spw_jj_charge(r, self.u.string->bytes / 8));
        if (read_int(self.u.string, &i, &big)) {
            *out = spw_jj_int(i);
            return big ? spw_jj_fail(r, "int: the text is an integer of more than 64 bits") : 0;
        }
        if (!read_float(self.u.string, &d))
            return 0;
        break;
    case SPW_JJ_FLOAT:
        d = self.u.number;
        if (isinf(d))
            return spw_jj_fail(r, "int: found infinity, expected a number");
        break;
    default:
        return 0;
    }
    if (!isfinite(d))
        return 0;
    if (fabs(d) >= 9223372036854775808.0)
        return spw_jj_fail(r, "int: the value is an integer of more than 64 bits");
    *out = spw_jj_int((int64_t)d);
    return 0;
}

FILTER(float)
{
    double d = 0;
    *out = a[0].type == SPW_JJ_MISSING ? spw_jj_float(0) : a[0];
    if (self.type == SPW_JJ_UNDEFINED)
        return spw_jj_fail_undefined(r, self.u.undefined);
    if (self.type == SPW_JJ_STRING)
        SPW_TRY(spw_jj_charge(r, self.u.string->bytes / 8));
    if (self.type == SPW_JJ_FLOAT)
        *out = self;
    else if (self.type == SPW_JJ_INT)
        *out = spw_jj_float((double)self.u.integer);
    else if (self.type == SPW_JJ_BOOL)
        *out = spw_jj_float(self.u.boolean);
    else if (self.type == SPW_JJ_STRING && read_float(self.u.string, &d))
        *out = spw_jj_float(d);
    return 0;
}

/* ---- JSON, as transformers has it ---- */

static int json_indent(struct spw_jj_run *r, struct spw_jj_value v, struct spw_jj_json *o)
{
    int64_t n;
    size_t start = r->out.bytes;
    if (!given(v))
        return 0;
    o->indented = true;
    o->indent = v;
    if (v.type == SPW_JJ_STRING)
        return 0;
    SPW_TRY(spw_jj_want_int(r, v, "tojson: indent", &n));
    SPW_TRY(spw_jj_print_times(r, " ", 1, n));
    return spw_jj_captured(r, start, &o->indent);
}

static int json_separators(struct spw_jj_run *r, struct spw_jj_value v, struct spw_jj_json *o)
{
    if (given(v)) {
        if ((v.type != SPW_JJ_TUPLE && v.type != SPW_JJ_LIST) || v.u.list->n != 2 ||
            v.u.list->at[0].type != SPW_JJ_STRING || v.u.list->at[1].type != SPW_JJ_STRING)
            return spw_jj_fail(r, "tojson: separators: expected two strings");
        o->item_separator = v.u.list->at[0];
        o->key_separator = v.u.list->at[1];
        return 0;
    }
    SPW_TRY(spw_jj_borrow(r, o->indented ? "," : ", ", o->indented ? 1 : 2, &o->item_separator));
    return spw_jj_borrow(r, ": ", 2, &o->key_separator);
}

FILTER(tojson)
{
    struct spw_jj_json o = {.ascii = false};
    SPW_TRY(spw_jj_truth(r, a[0], &o.ascii));
    SPW_TRY(json_indent(r, a[1], &o));
    SPW_TRY(json_separators(r, a[2], &o));
    SPW_TRY(spw_jj_truth(r, a[3], &o.sort));
    size_t start = r->out.bytes;
    SPW_TRY(spw_jj_print_json(r, self, &o, 0));
    return spw_jj_captured(r, start, out);
}
