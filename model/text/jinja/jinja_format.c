/* The method `format` of strings, as Python's str.format as far as templates use it: fields in
 * turn, by number or by name; formats of fill, alignment, width, precision, and 's', 'd' and 'f'.
 * Python's attributes, items, conversions, signs and commas are errors. See jinja_impl.h. */
#include "model/text/jinja/jinja_impl.h"

#include <inttypes.h>
#include <stdio.h>

struct format {
    const char *at, *end; /* what is left of the text */
    struct list *in_turn;
    struct dict *named;
    int64_t next;     /* the field that comes next without a number */
    bool has_numbers; /* such fields were found */
};

struct spec {
    struct string fill;       /* one character */
    char align, type;         /* 0: none */
    int64_t width, precision; /* -1: none */
};

static _Noreturn void not_done(struct run *r, const char *what)
{
    spw_jinja_fail(r, "format(): found %s, which spillway does not do", what);
}

/* Whether one of `which` comes next. */
static bool ahead(const struct format *f, const char *which)
{
    return f->at < f->end && *f->at && strchr(which, *f->at);
}

/* The number that comes next, at most 6 digits; -1: none. */
static int64_t number(struct format *f)
{
    int64_t n = -1;
    for (int i = 0; i < 6 && ahead(f, "0123456789"); i++)
        n = (n < 0 ? 0 : n * 10) + *f->at++ - '0';
    return n;
}

static struct value argument(struct run *r, struct format *f)
{
    const char *start = f->at;
    bool counts = f->at == f->end || ahead(f, "}:.[!");
    int64_t n = counts ? f->next++ : number(f);
    while (f->at < f->end && !ahead(f, "}:.[!{"))
        f->at++;
    size_t bytes = (size_t)(f->at - start);
    if (n < 0) {
        struct value v = spw_jinja_dict_text(f->named, start, bytes);
        if (v.type == SPW_JINJA_MISSING)
            spw_jinja_fail(r, "format(): the argument '%.*s' is missing",
                           (int)spw_min_u64(bytes, 64), start);
        return v;
    }
    f->has_numbers |= !counts;
    if (f->has_numbers && f->next && !ahead(f, ".["))
        spw_jinja_fail(r, "format(): found fields with and without a number");
    if ((size_t)n >= f->in_turn->n)
        spw_jinja_fail(r, "format(): found %zu values for field %zu", f->in_turn->n, (size_t)n);
    return f->in_turn->at[n];
}

static struct spec read_spec(struct run *r, struct format *f)
{
    struct spec s = {.fill = {" ", 1, 1, false}, .width = -1, .precision = -1};
    size_t n = 1;
    if (f->at < f->end)
        spw_jinja_decode(f->at, f->end, &n);
    if (f->at + n < f->end && f->at[n] && strchr("<>^", f->at[n])) {
        s.fill = (struct string){f->at, n, 1, false};
        f->at += n;
    }
    if (ahead(f, "<>^"))
        s.align = *f->at++;
    else if (ahead(f, "0"))
        s = (struct spec){.fill = {"0", 1, 1, false}, .align = '=', .precision = -1};
    s.width = number(f);
    if (ahead(f, ".")) {
        f->at++;
        s.precision = number(f);
    }
    if (ahead(f, "sdf"))
        s.type = *f->at++;
    if (!ahead(f, "}"))
        not_done(r, "a format");
    return s;
}

/* The value's text, before it is padded. */
static struct value text_of(struct run *r, struct value v, const struct spec *s)
{
    const struct value cut[3] = {
        {0}, s->precision < 0 ? none_value() : int_value(s->precision), {0}};
    char text[512];
    if (v.type == SPW_JINJA_STRING && (!s->type || s->type == 's'))
        return spw_jinja_slice(r, v, cut);
    if (!is_number(v) || s->type == 's' || (v.type == SPW_JINJA_BOOL && !s->type))
        not_done(r, "a format for another type");
    if (s->type == 'f') {
        double d = v.type == SPW_JINJA_FLOAT ? v.u.number : (double)integer(v);
        snprintf(text, sizeof text, "%.*f",
                 s->precision < 0 ? 6 : (int)spw_min_u64((uint64_t)s->precision, 100), d);
        return spw_jinja_copy(r, text, strlen(text));
    }
    if (s->precision >= 0 || (s->type && v.type == SPW_JINJA_FLOAT))
        not_done(r, "a format for another type");
    if (s->type)
        v = int_value(integer(v));
    return spw_jinja_to_string(r, v);
}

static void print_formatted(struct run *r, struct value v, const struct spec *s)
{
    const struct string *text = text_of(r, v, s).u.string;
    char align = s->align ? s->align : v.type == SPW_JINJA_STRING ? '<' : '>';
    int64_t pad = s->width - (int64_t)text->chars;
    int64_t left = align == '<' ? 0 : align == '^' ? pad / 2 : pad;
    size_t sign = align == '=' && text->bytes && *text->at == '-'; /* zeros go behind it */
    if (align == '=' && v.type == SPW_JINJA_STRING)
        not_done(r, "zeros before a text");
    spw_jinja_print(r, text->at, sign);
    spw_jinja_print_times(r, s->fill.at, s->fill.bytes, left);
    spw_jinja_print(r, text->at + sign, text->bytes - sign);
    spw_jinja_print_times(r, s->fill.at, s->fill.bytes, pad - left);
}

/* A field after its '{'. */
static void print_field(struct run *r, struct format *f)
{
    struct value v = argument(r, f);
    if (ahead(f, ".[!"))
        not_done(r, "a field with an attribute, an item or a conversion");
    f->at += ahead(f, ":") && f->end - f->at > 1 && f->at[1] == '}';
    if (ahead(f, ":")) {
        f->at++;
        struct spec s = read_spec(r, f);
        print_formatted(r, v, &s);
    } else {
        spw_jinja_print_value(r, v);
    }
    if (!ahead(f, "}"))
        spw_jinja_fail(r, "format(): found a field that does not end in '}'");
    f->at++;
}

struct value spw_jinja_format(struct run *r, const struct call *c)
{
    const struct string *s = c->self.u.string;
    struct format f = {
        .at = s->at, .end = s->at + s->bytes, .in_turn = c->a[0].u.list, .named = c->a[1].u.dict};
    size_t start = r->out_bytes;
    while (f.at < f.end) {
        bool brace = ahead(&f, "{}"), twice = brace && f.end - f.at > 1 && f.at[1] == *f.at;
        char its = *f.at;
        f.at += 1 + twice;
        if (!brace || twice)
            spw_jinja_print(r, &its, 1);
        else if (its == '{')
            print_field(r, &f);
        else
            spw_jinja_fail(r, "format(): found a '}' without a '{'");
    }
    return spw_jinja_captured(r, start);
}
