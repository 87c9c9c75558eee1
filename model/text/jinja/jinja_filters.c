/* Filters of single values (text, numbers, JSON), and how a filter is called: see jinja_impl.h. The
 * ones over sequences are in jinja_filters_seq.c. */
#include "model/text/jinja/jinja_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define FILTER(name)                                                                               \
    static int f_##name(struct spw_jj_run *r, struct spw_jj_value self,                            \
                        const struct spw_jj_value *a, struct spw_jj_value *out)

static bool given(struct spw_jj_value v)
{
    return v.type != SPW_JJ_MISSING && v.type != SPW_JJ_NONE;
}

static int by_method(struct spw_jj_run *r, const char *name, struct spw_jj_value self,
                     const struct spw_jj_value *a, struct spw_jj_value *out)
{
    const struct spw_jj_string text = {name, strlen(name), strlen(name), false};
    const struct spw_jj_value none[SPW_JJ_MAX_PARAMS] = {{.type = SPW_JJ_MISSING}};
    SPW_TRY(spw_jj_to_string(r, self, &self));
    return spw_jj_string_method(&text)->run(r, self, a ? a : none, out);
}

FILTER(upper)
{
    (void)a;
    return by_method(r, "upper", self, NULL, out);
}

FILTER(lower)
{
    (void)a;
    return by_method(r, "lower", self, NULL, out);
}

FILTER(capitalize)
{
    (void)a;
    return by_method(r, "capitalize", self, NULL, out);
}

FILTER(trim)
{
    return by_method(r, "strip", self, a, out);
}

FILTER(center)
{
    struct spw_jj_value args[SPW_JJ_MAX_PARAMS] = {a[0]};
    if (a[0].type == SPW_JJ_MISSING)
        args[0] = spw_jj_int(80);
    return by_method(r, "center", self, args, out);
}

FILTER(replace)
{
    struct spw_jj_value args[SPW_JJ_MAX_PARAMS] = {{.type = SPW_JJ_MISSING}};
    SPW_TRY(spw_jj_to_string(r, a[0], &args[0]));
    SPW_TRY(spw_jj_to_string(r, a[1], &args[1]));
    if (given(a[2]))
        args[2] = a[2];
    SPW_TRY(by_method(r, "replace", self, args, out));
    return spw_jj_mark(r, &(struct spw_jj_string){0}, out);
}

/* Words begin behind white space, '-', '(', '{', '[' and '<'. */
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
        SPW_TRY(spw_jj_print_case(r, word, (size_t)(p - word), SPW_JJ_CAPITALIZE));
    }
    return spw_jj_captured(r, start, out);
}

FILTER(string)
{
    (void)a;
    return spw_jj_to_string(r, self, out);
}

FILTER(safe)
{
    (void)a;
    SPW_TRY(spw_jj_to_string(r, self, out));
    return spw_jj_mark(r, &(struct spw_jj_string){.markup = true}, out);
}

FILTER(escape)
{
    (void)a;
    SPW_TRY(spw_jj_to_string(r, self, &self));
    return spw_jj_escape(r, self.u.string, out);
}

FILTER(forceescape)
{
    (void)a;
    SPW_TRY(spw_jj_to_string(r, self, &self));
    SPW_TRY(spw_jj_mark(r, &(struct spw_jj_string){0}, &self));
    return spw_jj_escape(r, self.u.string, out);
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
    SPW_TRY(by_method(r, "splitlines", lines, NULL, &lines));
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

FILTER(truncate)
{
    static const struct spw_jj_string dots = {"...", 3, 3, false};
    const struct spw_jj_string *end = &dots;
    int64_t length = 255, leeway = 5, n;
    bool kill = false;
    if (a[0].type != SPW_JJ_MISSING)
        SPW_TRY(spw_jj_want_int(r, a[0], "truncate", &length));
    SPW_TRY(spw_jj_truth(r, a[1], &kill));
    if (a[2].type != SPW_JJ_MISSING)
        SPW_TRY(spw_jj_want_string(r, a[2], "truncate", &end));
    if (given(a[3]))
        SPW_TRY(spw_jj_want_int(r, a[3], "truncate", &leeway));
    if (length < (int64_t)end->chars)
        return spw_jj_fail(r, "expected length >= %zu, got %lld", end->chars, (long long)length);
    if (leeway < 0)
        return spw_jj_fail(r, "expected leeway >= 0, got %lld", (long long)leeway);
    SPW_TRY(spw_jj_length(r, self, &n));
    *out = self;
    if (n <= length || n - length <= leeway)
        return 0;
    const struct spw_jj_value bounds[3] = {spw_jj_none(), spw_jj_int(length - (int64_t)end->chars),
                                           spw_jj_none()};
    if (self.type != SPW_JJ_STRING)
        return spw_jj_fail(r, "truncate: found '%s', expected a string", spw_jj_type_name(self));
    SPW_TRY(spw_jj_slice(r, self, bounds, &self));
    size_t bytes = self.u.string->bytes, start = r->out.bytes;
    const char *space = kill ? NULL : memrchr(self.u.string->at, ' ', bytes);
    SPW_TRY(
        spw_jj_print(r, self.u.string->at, space ? (size_t)(space - self.u.string->at) : bytes));
    SPW_TRY(spw_jj_print(r, end->at, end->bytes));
    return spw_jj_captured(r, start, out);
}

FILTER(wordcount)
{
    int64_t n = 0;
    bool inside = false;
    size_t step;
    (void)a;
    SPW_TRY(spw_jj_to_string(r, self, &self));
    const char *p = self.u.string->at, *end = p + self.u.string->bytes;
    SPW_TRY(spw_jj_charge(r, self.u.string->bytes / 4));
    for (; p < end; p += step) {
        uint32_t c = spw_jj_decode(p, end, &step);
        bool word = c == '_' || (c >= '0' && c <= '9') || spw_jj_is_letter(c);
        n += word && !inside;
        inside = word;
    }
    *out = spw_jj_int(n);
    return 0;
}

FILTER(format)
{
    struct spw_jj_value args = a[0];
    SPW_TRY(spw_jj_to_string(r, self, &self));
    if (a[1].u.dict->n) {
        if (a[0].u.list->n)
            return spw_jj_fail(r, "can't handle positional and keyword arguments at the same time");
        args = a[1];
    }
    return spw_jj_percent(r, self.u.string, args, out);
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
        return spw_jj_fail(r, "bad operand type for abs(): '%s'", spw_jj_type_name(self));
    bool negative = self.type == SPW_JJ_INT && self.u.integer < 0;
    return spw_jj_unary(r, negative ? '-' : '+', self, out);
}

static int digit_of(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'z' ? c - 'a' + 10 : 99;
}

/* What Python's int(text, base) reads. *big: it is an integer, but of more than 64 bits. */
static bool read_int(const struct spw_jj_string *s, int base, int64_t *out, bool *big)
{
    const char *p = s->at;
    size_t n = s->bytes;
    spw_jj_strip(&p, &n, NULL, true, true);
    const char *end = p + n;
    bool negative = p < end && *p == '-', digit_before = false;
    p += p < end && (*p == '-' || *p == '+');
    int64_t value = 0;
    *big = false;
    if (end - p > 2 && *p == '0') {
        char mark = (char)(p[1] | 0x20);
        int marked = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
        if (marked && (base == marked || base == 0)) {
            base = marked;
            p += 2;
            p += *p == '_';
        }
    }
    bool zero_base = base == 0;
    base = zero_base ? 10 : base;
    if (zero_base && end - p > 1 && *p == '0') /* 007 is no integer of base 0 */
        for (const char *q = p; q < end; q++)
            if (*q != '0' && *q != '_')
                return false;
    for (; p < end; p++) {
        if (*p == '_' && digit_before && p + 1 < end) {
            digit_before = false;
            continue;
        }
        int digit = digit_of(*p);
        if (digit >= base)
            return false;
        digit_before = true;
        *big |= __builtin_mul_overflow(value, base, &value) ||
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
        bool between = i > 0 && i + 1 < n && digit_of(p[i - 1]) < 10 && digit_of(p[i + 1]) < 10;
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
    int64_t base = 10, i = 0;
    bool big = false;
    double d = 0;
    if (a[1].type != SPW_JJ_MISSING)
        SPW_TRY(spw_jj_want_int(r, a[1], "int", &base));
    if (base < 0 || base == 1 || base > 36)
        return spw_jj_fail(r, "int: found base %lld, expected 0 or 2 to 36", (long long)base);
    *out = a[0].type == SPW_JJ_MISSING ? spw_jj_int(0) : a[0];
    switch (self.type) {
    case SPW_JJ_UNDEFINED:
        return spw_jj_fail_undefined(r, self.u.undefined);
    case SPW_JJ_INT:
    case SPW_JJ_BOOL:
        return spw_jj_unary(r, '+', self, out);
    case SPW_JJ_STRING:
        SPW_TRY(spw_jj_charge(r, self.u.string->bytes / 8));
        if (read_int(self.u.string, (int)base, &i, &big)) {
            *out = spw_jj_int(i);
            return big ? spw_jj_fail(r, "int: the text is an integer of more than 64 bits") : 0;
        }
        if (!read_float(self.u.string, &d))
            return 0;
        break;
    case SPW_JJ_FLOAT:
        d = self.u.number;
        if (isinf(d))
            return spw_jj_fail(r, "cannot convert float infinity to integer");
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

FILTER(round)
{
    int64_t precision = 0;
    char text[400];
    bool whole = self.type == SPW_JJ_INT || self.type == SPW_JJ_BOOL;
    if (a[0].type != SPW_JJ_MISSING)
        SPW_TRY(spw_jj_want_int(r, a[0], "round", &precision));
    if (!whole && self.type != SPW_JJ_FLOAT)
        return spw_jj_fail(r, "type %s doesn't define __round__ method", spw_jj_type_name(self));
    double d =
        whole ? (double)(self.type == SPW_JJ_INT ? self.u.integer : self.u.boolean) : self.u.number;
    if (a[1].type == SPW_JJ_MISSING || spw_jj_is_text(a[1], "common")) {
        if (precision < 0)
            return spw_jj_fail(r, "round: found a negative precision, expected 0 or more");
        if (whole)
            return spw_jj_unary(r, '+', self, out);
        *out = self;
        if (!isfinite(d) || precision > 22)
            return 0;
        SPW_TRY(spw_jj_charge(r, 16));
        snprintf(text, sizeof text, "%.*f", (int)precision, d);
        *out = spw_jj_float(strtod(text, NULL));
        return 0;
    }
    bool up = spw_jj_is_text(a[1], "ceil");
    if (!up && !spw_jj_is_text(a[1], "floor"))
        return spw_jj_fail(r, "method must be common, ceil or floor");
    double scale = pow(10, (double)precision), scaled = d * scale;
    *out = spw_jj_float((up ? ceil(scaled) : floor(scaled)) / scale);
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

FILTER(attr)
{
    const struct spw_jj_string *name;
    SPW_TRY(spw_jj_want_string(r, a[0], "attr", &name));
    SPW_TRY(spw_jj_get_attr(r, self, name, out));
    if (self.type != SPW_JJ_DICT || out->type == SPW_JJ_METHOD || out->type == SPW_JJ_UNDEFINED)
        return 0;
    return spw_jj_undefined_of(r, self, a[0], out); /* an item is no attribute */
}

static const struct spw_jj_callable filters[] = {
    {"upper", "", f_upper, false},
    {"lower", "", f_lower, false},
    {"capitalize", "", f_capitalize, false},
    {"title", "", f_title, false},
    {"trim", "chars=", f_trim, false},
    {"center", "width=", f_center, false},
    {"replace", "old,new,count=", f_replace, false},
    {"string", "", f_string, false},
    {"safe", "", f_safe, false},
    {"escape", "", f_escape, false},
    {"e", "", f_escape, false},
    {"forceescape", "", f_forceescape, false},
    {"default", "default_value=,boolean=", f_default, false},
    {"d", "default_value=,boolean=", f_default, false},
    {"indent", "width=,first=,blank=", f_indent, false},
    {"truncate", "length=,killwords=,end=,leeway=", f_truncate, false},
    {"wordcount", "", f_wordcount, false},
    {"format", "*", f_format, false},
    {"abs", "", f_abs, false},
    {"int", "default=,base=", f_int, false},
    {"float", "default=", f_float, false},
    {"round", "precision=,method=", f_round, false},
    {"tojson", "ensure_ascii=,indent=,separators=,sort_keys=", f_tojson, false},
    {"attr", "name", f_attr, false},
};

const struct spw_jj_callable *spw_jj_filter(const struct spw_jj_string *name)
{
    const struct spw_jj_callable *f =
        spw_jj_in_table(filters, sizeof filters / sizeof *filters, name);
    return f ? f : spw_jj_filter_of_sequences(name);
}

int spw_jj_call_filter(struct spw_jj_run *r, const struct spw_jj_string *name,
                       struct spw_jj_value self, const struct spw_jj_args *args,
                       struct spw_jj_value *out)
{
    const struct spw_jj_callable *f = spw_jj_filter(name);
    if (!f)
        return spw_jj_fail(r, "No filter named '%.*s'.", (int)spw_min_u64(name->bytes, 64),
                           name->at);
    return spw_jj_call_callable(r, f, "filter ", self, args, out);
}
