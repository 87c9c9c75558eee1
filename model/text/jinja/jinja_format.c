/* Python's `%` and str.format for Jinja strings: see jinja_impl.h. */
#include "model/text/jinja/jinja_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    MAX_DIGITS = 200, /* of a precision */
    FLOAT_WORK = 64,  /* long division is what a number of 300 digits costs */
};

struct spec {
    char fill[4];
    size_t fill_bytes;
    char align, sign, type; /* 0: not given */
    bool alternate, zero, comma;
    int64_t width, precision; /* precision < 0: not given */
};

/* ---- one value by a spec ---- */

/* Digits with commas between thousands. */
static size_t group(const char *digits, size_t n, char *out)
{
    size_t at = 0, whole = strspn(digits, "0123456789");
    for (size_t i = 0; i < n; i++) {
        if (i && i < whole && (whole - i) % 3 == 0)
            out[at++] = ',';
        out[at++] = digits[i];
    }
    return at;
}

static int print_padded(struct spw_jj_run *r, const struct spec *f, const char *head,
                        size_t head_bytes, const char *body, size_t bytes, char align)
{
    int64_t n = (int64_t)(spw_jj_chars(body, bytes) + head_bytes);
    int64_t pad = f->width > n ? f->width - n : 0;
    int64_t left = align == '<' ? 0 : align == '^' ? pad / 2 : pad;
    if (align == '=')
        SPW_TRY(spw_jj_print(r, head, head_bytes));
    SPW_TRY(spw_jj_print_times(r, f->fill, f->fill_bytes, left));
    if (align != '=')
        SPW_TRY(spw_jj_print(r, head, head_bytes));
    SPW_TRY(spw_jj_print(r, body, bytes));
    return spw_jj_print_times(r, f->fill, f->fill_bytes, pad - left);
}

static int print_number(struct spw_jj_run *r, const struct spec *f, bool negative,
                        const char *prefix, const char *digits)
{
    char head[8], grouped[2 * MAX_DIGITS + 400];
    size_t n = strlen(digits), head_bytes = 0;
    if (negative || f->sign == '+' || f->sign == ' ')
        head[head_bytes++] = negative ? '-' : f->sign;
    memcpy(head + head_bytes, prefix, strlen(prefix));
    head_bytes += strlen(prefix);
    if (f->comma) {
        n = group(digits, n, grouped);
        digits = grouped;
    }
    return print_padded(r, f, head, head_bytes, digits, n, f->align ? f->align : '>');
}

static int print_integer(struct spw_jj_run *r, const struct spec *f, int64_t i)
{
    uint64_t u = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    char digits[80], text[4];
    size_t at = sizeof digits - 1;
    unsigned base = f->type == 'b'                     ? 2
                    : f->type == 'o'                   ? 8
                    : f->type == 'x' || f->type == 'X' ? 16
                                                       : 10;
    const char *alphabet = f->type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef";
    if (f->type == 'c') {
        if (i < 0 || i > 0x10ffff || (i >= 0xd800 && i <= 0xdfff))
            return spw_jj_fail(r, "%%c arg not in range(0x110000)");
        return print_padded(r, f, "", 0, text, spw_jj_encode((uint32_t)i, text),
                            f->align ? f->align : '<');
    }
    digits[at] = 0;
    do
        digits[--at] = alphabet[u % base];
    while (u /= base);
    while (f->precision > (int64_t)(sizeof digits - 1 - at) && at > 0)
        digits[--at] = '0';
    const char *prefix = !f->alternate    ? ""
                         : f->type == 'x' ? "0x"
                         : f->type == 'X' ? "0X"
                         : f->type == 'o' ? "0o"
                         : f->type == 'b' ? "0b"
                                          : "";
    return print_number(r, f, i < 0, prefix, digits + at);
}

/* Python's general format without a type: repr, but with a precision like g that keeps a ".0". */
static void general(double d, const struct spec *f, char *text, size_t room)
{
    if (f->precision < 0) {
        spw_jj_float_text(d, text);
        return;
    }
    int precision = f->precision ? (int)f->precision : 1;
    snprintf(text, room, "%.*g", precision, d);
    char scientific[MAX_DIGITS + 40];
    snprintf(scientific, sizeof scientific, "%.*e", precision - 1, d);
    const char *e = strchr(scientific, 'e');
    long exponent = strtol(e ? e + 1 : "0", NULL, 10);
    if (exponent == precision - 1 && precision > 0 && !strchr(text, '.') && !strchr(text, 'e'))
        snprintf(text, room, "%.*e", precision - 1, d); /* no place is left for the ".0" */
    else if (!strpbrk(text, ".e"))
        strncat(text, ".0", room - strlen(text) - 1);
}

static int print_double(struct spw_jj_run *r, const struct spec *f, double d)
{
    char text[MAX_DIGITS + 400], pattern[8] = "%.*f";
    bool negative = signbit(d) && !isnan(d);
    int precision = f->precision < 0 ? 6 : (int)f->precision;
    double size = fabs(d);
    SPW_TRY(spw_jj_charge(r, FLOAT_WORK));
    if (f->type == '%')
        size *= 100;
    if (!isfinite(size)) {
        bool upper = f->type == 'F' || f->type == 'E' || f->type == 'G';
        snprintf(text, sizeof text, "%s",
                 isnan(size) ? upper ? "NAN" : "nan"
                 : upper     ? "INF"
                             : "inf");
    } else if (!f->type) {
        general(size, f, text, 400);
    } else {
        pattern[3] = f->type == '%' ? 'f' : f->type;
        if (f->alternate)
            memcpy(pattern, f->type == 'g' ? "%#.*g" : "%#.*f", 6);
        snprintf(text, sizeof text - 1, pattern, precision, size);
    }
    if (f->type == '%')
        strncat(text, "%", 2);
    return print_number(r, f, negative, "", text);
}

static int print_string(struct spw_jj_run *r, const struct spec *f, struct spw_jj_value text)
{
    const struct spw_jj_string *s = text.u.string;
    size_t bytes = s->bytes;
    if (f->precision >= 0 && (uint64_t)f->precision < s->chars)
        bytes = spw_jj_byte_of(s, (size_t)f->precision);
    return print_padded(r, f, "", 0, s->at, bytes, f->align ? f->align : '<');
}

static int too_long(struct spw_jj_run *r)
{
    return spw_jj_fail(r, "found a precision of more than %d in a format", MAX_DIGITS);
}

static bool is_number(struct spw_jj_value v)
{
    return v.type == SPW_JJ_INT || v.type == SPW_JJ_BOOL || v.type == SPW_JJ_FLOAT;
}

static int64_t as_int(struct spw_jj_value v)
{
    return v.type == SPW_JJ_INT ? v.u.integer : v.u.boolean;
}

/* ---- % ---- */

struct percent {
    const char *p, *end;
    struct spw_jj_value args; /* a tuple, a dict, or one value */
    size_t used;
    bool mapping; /* a %(name) was seen */
};

static int next_arg(struct spw_jj_run *r, struct percent *x, struct spw_jj_value *out)
{
    size_t n = x->args.type == SPW_JJ_TUPLE ? x->args.u.list->n : 1;
    if (x->used >= n)
        return spw_jj_fail(r, "not enough arguments for format string");
    *out = x->args.type == SPW_JJ_TUPLE ? x->args.u.list->at[x->used] : x->args;
    x->used++;
    return 0;
}

/* %(name), if it is there. */
static int mapped_arg(struct spw_jj_run *r, struct percent *x, struct spw_jj_value *out)
{
    struct spw_jj_entry *entry;
    struct spw_jj_value key;
    int depth = 1;
    out->type = SPW_JJ_MISSING;
    if (x->p == x->end || *x->p != '(')
        return 0;
    const char *name = ++x->p;
    for (; x->p < x->end && depth; x->p++)
        depth += *x->p == '(' ? 1 : *x->p == ')' ? -1 : 0;
    if (depth)
        return spw_jj_fail(r, "incomplete format key");
    if (x->args.type != SPW_JJ_DICT)
        return spw_jj_fail(r, "format requires a mapping");
    SPW_TRY(spw_jj_borrow(r, name, (size_t)(x->p - 1 - name), &key));
    SPW_TRY(spw_jj_dict_find(r, x->args.u.dict, key, &entry));
    if (!entry)
        return spw_jj_fail(r, "the format asks for '%.*s', which is not among its values",
                           (int)spw_min_u64(key.u.string->bytes, 64), key.u.string->at);
    *out = entry->value;
    x->mapping = true;
    return 0;
}

static int percent_size(struct spw_jj_run *r, struct percent *x, int64_t *out)
{
    struct spw_jj_value v;
    *out = 0;
    if (x->p < x->end && *x->p == '*') {
        x->p++;
        SPW_TRY(next_arg(r, x, &v));
        return spw_jj_want_int(r, v, "* in a format", out);
    }
    for (; x->p < x->end && *x->p >= '0' && *x->p <= '9'; x->p++) {
        *out = *out * 10 + (*x->p - '0');
        if (*out > INT32_MAX)
            return spw_jj_fail(r, "width too big in a format");
    }
    return 0;
}

static int percent_spec(struct spw_jj_run *r, struct percent *x, struct spec *f)
{
    *f = (struct spec){.fill = " ", .fill_bytes = 1, .align = '>', .precision = -1};
    for (; x->p < x->end && strchr("-+ #0", *x->p) && *x->p; x->p++) {
        if (*x->p == '-')
            f->align = '<';
        else if (*x->p == '+' || (*x->p == ' ' && !f->sign))
            f->sign = *x->p;
        else if (*x->p == '#')
            f->alternate = true;
        else if (*x->p == '0')
            f->zero = true;
    }
    SPW_TRY(percent_size(r, x, &f->width));
    if (f->width < 0) {
        f->align = '<';
        f->width = -f->width;
    }
    if (x->p < x->end && *x->p == '.') {
        x->p++;
        SPW_TRY(percent_size(r, x, &f->precision));
        f->precision = f->precision < 0 ? 0 : f->precision;
    }
    while (x->p < x->end && (*x->p == 'l' || *x->p == 'h' || *x->p == 'L'))
        x->p++;
    if (x->p == x->end)
        return spw_jj_fail(r, "incomplete format");
    f->type = *x->p++;
    return 0;
}

static int percent_text(struct spw_jj_run *r, const struct spec *f, struct spw_jj_value v)
{
    size_t start = r->out.bytes;
    if (f->type == 's')
        SPW_TRY(spw_jj_print_value(r, v));
    else
        SPW_TRY(spw_jj_print_repr(r, v));
    SPW_TRY(spw_jj_captured(r, start, &v));
    return print_string(r, f, v);
}

static int percent_integer(struct spw_jj_run *r, struct spec *f, struct spw_jj_value v)
{
    if (v.type == SPW_JJ_STRING && f->type == 'c' && v.u.string->chars == 1)
        return print_string(r, f, v);
    if (f->type == 'd' && v.type == SPW_JJ_FLOAT && isfinite(v.u.number)) {
        if (fabs(v.u.number) >= 9223372036854775808.0)
            return spw_jj_fail(r, "%%d format: found an integer of more than 64 bits");
        v = spw_jj_int((int64_t)v.u.number);
    }
    if (!is_number(v) || v.type == SPW_JJ_FLOAT)
        return spw_jj_fail(r, "%%%c format: an integer is required, not %s", f->type,
                           spw_jj_type_name(v));
    if (f->precision > 60)
        return too_long(r);
    return print_integer(r, f, as_int(v));
}

static int percent_float(struct spw_jj_run *r, const struct spec *f, struct spw_jj_value v)
{
    if (!is_number(v))
        return spw_jj_fail(r, "must be real number, not %s", spw_jj_type_name(v));
    if (f->precision > MAX_DIGITS)
        return too_long(r);
    return print_double(r, f, v.type == SPW_JJ_FLOAT ? v.u.number : (double)as_int(v));
}

static int percent_one(struct spw_jj_run *r, struct percent *x)
{
    struct spec f;
    struct spw_jj_value v;
    SPW_TRY(mapped_arg(r, x, &v));
    SPW_TRY(percent_spec(r, x, &f));
    if (f.type == '%')
        return spw_jj_print(r, "%", 1);
    if (v.type == SPW_JJ_MISSING)
        SPW_TRY(next_arg(r, x, &v));
    bool numeric = f.type && strchr("diuoxXeEfFgG", f.type);
    if (numeric && f.zero && f.align != '<') {
        *f.fill = '0';
        f.align = '=';
    }
    if (f.type == 'i' || f.type == 'u')
        f.type = 'd';
    if (f.type == 's' || f.type == 'r')
        return percent_text(r, &f, v);
    if (f.type && strchr("doxXc", f.type))
        return percent_integer(r, &f, v);
    if (numeric)
        return percent_float(r, &f, v);
    return spw_jj_fail(r, "unsupported format character '%c' (0x%x)",
                       f.type >= ' ' && f.type < 127 ? f.type : '?', (unsigned char)f.type);
}

int spw_jj_percent(struct spw_jj_run *r, const struct spw_jj_string *format,
                   struct spw_jj_value args, struct spw_jj_value *out)
{
    struct percent x = {.p = format->at, .end = format->at + format->bytes, .args = args};
    size_t start = r->out.bytes;
    if (format->markup)
        return spw_jj_fail(r, "%% on a string that was marked safe");
    while (x.p < x.end) {
        const char *next = memchr(x.p, '%', (size_t)(x.end - x.p));
        size_t plain = (size_t)((next ? next : x.end) - x.p);
        SPW_TRY(spw_jj_print(r, x.p, plain));
        x.p += plain + (next != NULL);
        if (next)
            SPW_TRY(percent_one(r, &x));
    }
    /* Python only asks for the use of what has no items of its own. */
    bool all = args.type == SPW_JJ_DICT || args.type == SPW_JJ_LIST || args.type == SPW_JJ_RANGE ||
               args.type == SPW_JJ_UNDEFINED ||
               x.used == (args.type == SPW_JJ_TUPLE ? args.u.list->n : 1);
    if (!all && !x.mapping)
        return spw_jj_fail(r, "not all arguments converted during string formatting");
    return spw_jj_captured(r, start, out);
}

/* ---- str.format ---- */

struct fields {
    const struct spw_jj_value *args; /* a tuple */
    const struct spw_jj_dict *named;
    int64_t automatic; /* the next {}; -1: numbers were given */
};

static int first_field(struct spw_jj_run *r, struct fields *x, const char *at, size_t bytes,
                       struct spw_jj_value *out)
{
    int64_t index = 0;
    size_t digits = 0;
    while (digits < bytes && at[digits] >= '0' && at[digits] <= '9' && digits < 9)
        index = index * 10 + (at[digits++] - '0');
    if (bytes && digits < bytes) {
        const struct spw_jj_value *v = spw_jj_dict_text(x->named, at, bytes);
        if (!v)
            return spw_jj_fail(r, "format(): there is no argument '%.*s'",
                               (int)spw_min_u64(bytes, 64), at);
        *out = *v;
        return 0;
    }
    if (!bytes && x->automatic < 0)
        return spw_jj_fail(
            r, "cannot switch from manual field specification to automatic field numbering");
    if (bytes && x->automatic > 0)
        return spw_jj_fail(
            r, "cannot switch from automatic field numbering to manual field specification");
    if (bytes)
        x->automatic = -1;
    else
        index = x->automatic++;
    if (index >= (int64_t)x->args->u.list->n)
        return spw_jj_fail(r, "Replacement index %lld out of range for positional args tuple",
                           (long long)index);
    *out = x->args->u.list->at[index];
    return 0;
}

/* name.attribute[item]... */
static int field_value(struct spw_jj_run *r, struct fields *x, const char *at, size_t bytes,
                       struct spw_jj_value *out)
{
    const char *p = at, *end = at + bytes;
    struct spw_jj_value key;
    while (p < end && *p != '.' && *p != '[')
        p++;
    SPW_TRY(first_field(r, x, at, (size_t)(p - at), out));
    while (p < end) {
        char kind = *p++;
        const char *name = p;
        if (kind != '.' && kind != '[')
            return spw_jj_fail(r, "Only '.' or '[' may follow ']' in format field specifier");
        while (p < end && (kind == '[' ? *p != ']' : *p != '.' && *p != '['))
            p++;
        size_t n = (size_t)(p - name), digits = 0;
        int64_t index = 0;
        if (!n || (kind == '[' && p == end))
            return spw_jj_fail(r, "Empty attribute in format string");
        while (digits < n && name[digits] >= '0' && name[digits] <= '9' && digits < 9)
            index = index * 10 + (name[digits++] - '0');
        SPW_TRY(spw_jj_copy(r, name, n, &key));
        if (kind == '.')
            SPW_TRY(spw_jj_get_attr(r, *out, key.u.string, out));
        else
            SPW_TRY(spw_jj_get_item(r, *out, digits == n ? spw_jj_int(index) : key, out));
        p += kind == '[';
    }
    return 0;
}

static const char *spec_size(const char *p, const char *end, int64_t *out)
{
    for (*out = 0; p < end && *p >= '0' && *p <= '9'; p++)
        *out = *out > INT32_MAX ? *out : *out * 10 + (*p - '0');
    return p;
}

/* [[fill]align][sign][#][0][width][,][.precision][type] */
static int parse_spec(struct spw_jj_run *r, const char *p, const char *end, struct spec *f)
{
    size_t n = 0;
    *f = (struct spec){.fill = " ", .fill_bytes = 1, .precision = -1};
    if (p < end)
        spw_jj_decode(p, end, &n);
    if (p + n < end && strchr("<>=^", p[n]) && p[n]) {
        memcpy(f->fill, p, n);
        f->fill_bytes = n;
        f->align = p[n];
        p += n + 1;
    } else if (p < end && strchr("<>=^", *p) && *p) {
        f->align = *p++;
    }
    if (p < end && (*p == '+' || *p == '-' || *p == ' '))
        f->sign = *p++;
    if (p < end && *p == '#') {
        f->alternate = true;
        p++;
    }
    if (p < end && *p == '0') {
        f->zero = true;
        p++;
    }
    p = spec_size(p, end, &f->width);
    if (p < end && *p == ',') {
        f->comma = true;
        p++;
    }
    if (p < end && *p == '.') {
        const char *digits = p + 1;
        p = spec_size(digits, end, &f->precision);
        if (p == digits)
            return spw_jj_fail(r, "Format specifier missing precision");
    }
    if (p < end)
        f->type = *p++;
    if (p != end)
        return spw_jj_fail(r, "Invalid format specifier");
    return 0;
}

static int unknown_code(struct spw_jj_run *r, const struct spec *f, struct spw_jj_value v)
{
    return spw_jj_fail(r, "Unknown format code '%c' for object of type '%s'",
                       f->type >= ' ' && f->type < 127 ? f->type : '?', spw_jj_type_name(v));
}

static int print_by_spec(struct spw_jj_run *r, struct spw_jj_value v, const char *at, size_t bytes)
{
    struct spec f;
    if (!bytes)
        return spw_jj_print_value(r, v);
    SPW_TRY(parse_spec(r, at, at + bytes, &f));
    bool text = v.type == SPW_JJ_STRING;
    if (!text && !is_number(v))
        return spw_jj_fail(r, "unsupported format string passed to %s.__format__",
                           spw_jj_type_name(v));
    if (text && (f.sign || f.comma || f.alternate || f.align == '='))
        return spw_jj_fail(r, "found a number's format for a string");
    if (f.zero && !(f.align)) {
        *f.fill = '0';
        f.fill_bytes = 1;
        f.align = text ? '<' : '=';
    }
    if (text) {
        if (f.type && f.type != 's')
            return unknown_code(r, &f, v);
        return print_string(r, &f, v);
    }
    if (f.precision > MAX_DIGITS)
        return too_long(r);
    if (v.type != SPW_JJ_FLOAT && (!f.type || strchr("bcdoxXn", f.type))) {
        if (f.precision >= 0)
            return spw_jj_fail(r, "Precision not allowed in integer format specifier");
        return print_integer(r, &f, as_int(v));
    }
    if (f.type && !strchr("eEfFgG%", f.type))
        return unknown_code(r, &f, v);
    return print_double(r, &f, v.type == SPW_JJ_FLOAT ? v.u.number : (double)as_int(v));
}

/* What stands between braces: field[!conversion][:spec], the spec with fields of its own. */
static int print_field(struct spw_jj_run *r, struct fields *x, const char *at, const char *end);

/* Prints text with fields; `deep` in a spec, which has no specs inside its fields' specs. */
static int print_fields(struct spw_jj_run *r, struct fields *x, const char *p, const char *end,
                        bool deep)
{
    while (p < end) {
        size_t plain = 0;
        while (p + plain < end && p[plain] != '{' && p[plain] != '}')
            plain++;
        SPW_TRY(spw_jj_print(r, p, plain));
        p += plain;
        if (p == end)
            return 0;
        if (p + 1 < end && p[1] == *p && !deep) {
            SPW_TRY(spw_jj_print(r, p, 1));
            p += 2;
            continue;
        }
        if (*p == '}')
            return spw_jj_fail(r, "Single '}' encountered in format string");
        const char *field = ++p;
        int depth = 1;
        for (; p < end && depth; p++)
            depth += *p == '{' ? 1 : *p == '}' ? -1 : 0;
        if (depth)
            return spw_jj_fail(r, field == end ? "Single '{' encountered in format string"
                                               : "expected '}' before end of string");
        SPW_TRY(spw_jj_enter(r));
        SPW_TRY(print_field(r, x, field, p - 1));
        r->depth--;
    }
    return 0;
}

static int print_field(struct spw_jj_run *r, struct fields *x, const char *at, const char *end)
{
    const char *p = at;
    struct spw_jj_value v, spec;
    char conversion = 0;
    bool bracket = false;
    for (; p < end && (bracket || (*p != '!' && *p != ':')); p++)
        bracket = *p == '[' || (bracket && *p != ']');
    SPW_TRY(field_value(r, x, at, (size_t)(p - at), &v));
    if (p < end && *p == '!') {
        conversion = p + 1 < end ? p[1] : '?';
        p += 2;
        if (conversion != 'r' && conversion != 's')
            return spw_jj_fail(r, "found conversion '!%c' in a format, expected !s or !r",
                               conversion >= ' ' && conversion < 127 ? conversion : '?');
        if (p < end && *p != ':')
            return spw_jj_fail(r, "expected ':' after conversion specifier");
    }
    size_t start = r->out.bytes;
    if (conversion == 'r') {
        SPW_TRY(spw_jj_print_repr(r, v));
        SPW_TRY(spw_jj_captured(r, start, &v));
    } else if (conversion) {
        SPW_TRY(spw_jj_to_string(r, v, &v));
    }
    if (p < end)
        SPW_TRY(print_fields(r, x, p + 1, end, true));
    SPW_TRY(spw_jj_captured(r, start, &spec));
    return print_by_spec(r, v, spec.u.string->at, spec.u.string->bytes);
}

int spw_jj_format(struct spw_jj_run *r, const struct spw_jj_string *format,
                  const struct spw_jj_value *args, const struct spw_jj_dict *named,
                  struct spw_jj_value *out)
{
    struct fields x = {args, named, 0};
    size_t start = r->out.bytes;
    SPW_TRY(print_fields(r, &x, format->at, format->at + format->bytes, false));
    return spw_jj_captured(r, start, out);
}
