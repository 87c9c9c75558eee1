/* Methods of strings as Python's str has them, and filters of single values: text, numbers. See
 * jinja_impl.h. A row that is ON_TEXT finds a string in `self`. */
#include "model/text/jinja/jinja_impl.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

/* ---- case ---- */

NATIVE(in_case)
{
    size_t start = r->out_bytes;
    spw_jinja_print_case(r, c->self.u.string->at, c->self.u.string->bytes,
                         (enum letters)c->what->how);
    return spw_jinja_captured(r, start);
}

/* The filter: words begin after white space, '-', '(', '{', '[' and '<'. */
NATIVE(title_filter)
{
    const struct string *s = spw_jinja_to_string(r, c->self).u.string;
    const char *p = s->at, *end = p + s->bytes;
    size_t start = r->out_bytes, n;
    while (p < end) {
        const char *word = p;
        bool between = false;
        for (; p < end; p += n) {
            uint32_t its = spw_jinja_decode(p, end, &n);
            bool breaks =
                spw_jinja_is_space(its) || (its && its < 128 && strchr("-({[<", (int)its));
            if (p == word)
                between = breaks;
            else if (breaks != between)
                break;
        }
        spw_jinja_decode(word, p,
                         &n); /* the upper case of its first, which is not its title case */
        spw_jinja_print_case(r, word, n, SPW_JINJA_UPPER);
        spw_jinja_print_case(r, word + n, (size_t)(p - word) - n, SPW_JINJA_LOWER);
    }
    return spw_jinja_captured(r, start);
}

/* ---- ends ---- */

enum { MAX_STRIPPED = 256 }; /* each is looked at for each character of the text */

enum { LEFT = 1, RIGHT = 2 };

NATIVE(strip)
{
    const struct string *s = c->self.u.string, *chars = NULL;
    const char *at = s->at;
    size_t bytes = s->bytes;
    if (given(c->a[0]))
        chars = spw_jinja_want_string(r, c->a[0], "strip()");
    if (chars && chars->bytes > MAX_STRIPPED)
        spw_jinja_fail(r, "strip(): found more than %d bytes of characters to strip", MAX_STRIPPED);
    spw_jinja_strip(&at, &bytes, chars, c->what->how & LEFT, c->what->how & RIGHT);
    spw_jinja_charge(r, (s->bytes - bytes) * (chars ? chars->bytes : 1));
    return spw_jinja_borrow(r, at, bytes);
}

/* The part that start and end (MISSING or None: all) leave. */
static const struct string *part(struct run *r, struct value self, const struct value *range)
{
    const struct value bounds[3] = {range[0], range[1], none_value()};
    if (range[0].type == SPW_JINJA_MISSING && range[1].type == SPW_JINJA_MISSING)
        return self.u.string;
    return spw_jinja_slice(r, self, bounds).u.string;
}

enum { AT_START, AT_END };

NATIVE(begins_or_ends)
{
    const struct string *s = part(r, c->self, c->a + 1), *what;
    bool tuple = c->a[0].type == SPW_JINJA_TUPLE, found = false;
    size_t n = tuple ? c->a[0].u.list->n : 1;
    spw_jinja_charge(r, n);
    for (size_t i = 0; i < n && !found; i++) {
        what = spw_jinja_want_string(r, tuple ? c->a[0].u.list->at[i] : c->a[0], c->what->name);
        spw_jinja_charge(r, what->bytes / 32);
        const size_t at = c->what->how == AT_END ? s->bytes - what->bytes : 0;
        found = s->bytes >= what->bytes && !memcmp(s->at + at, what->at, what->bytes);
    }
    return bool_value(found);
}

/* ---- searching ---- */

static const char *first_of(const char *at, const char *end, const struct string *what)
{
    return what->bytes ? memmem(at, (size_t)(end - at), what->at, what->bytes) : at;
}

/* The last one is the first one of many. */
static const char *last_of(const char *at, const char *end, const struct string *what)
{
    const char *found = what->bytes ? NULL : end, *next = at;
    while (what->bytes && next < end && (next = first_of(next, end, what)))
        found = next++;
    return found;
}

NATIVE(find)
{
    const struct string *what = spw_jinja_want_string(r, c->a[0], "find()");
    const struct string *s = part(r, c->self, c->a + 1);
    const char *end = s->at + s->bytes;
    spw_jinja_charge(r, (s->bytes / 8 + 1) * (what->bytes / 32 + 1));
    const char *found =
        c->what->how == AT_END ? last_of(s->at, end, what) : first_of(s->at, end, what);
    /* the empty part of a text lies anywhere: all that it has lies at its start */
    const char *start = s->bytes ? c->self.u.string->at : s->at;
    return int_value(found ? (int64_t)spw_jinja_chars(start, (size_t)(found - start)) : -1);
}

/* The filter is one of anything's text, and plain, also where self was marked safe. */
NATIVE(replace)
{
    const struct string *s = spw_jinja_to_string(r, c->self).u.string;
    const bool filter = c->what->as & SPW_JINJA_FILTER;
    struct value old = filter ? spw_jinja_to_string(r, c->a[0]) : c->a[0];
    struct value new = filter ? spw_jinja_to_string(r, c->a[1]) : c->a[1];
    const struct string *from = spw_jinja_want_string(r, old, "replace()");
    const struct string *to = spw_jinja_want_string(r, new, "replace()");
    int64_t left = given(c->a[2]) ? spw_jinja_want_int(r, c->a[2], "replace()") : -1;
    const char *p = s->at, *end = s->at + s->bytes, *found;
    size_t start = r->out_bytes, n;
    while (left-- != 0 && (found = first_of(p, end, from))) {
        spw_jinja_charge(r, 1);
        spw_jinja_print(r, p, (size_t)(found - p));
        spw_jinja_print(r, to->at, to->bytes);
        p = found + from->bytes;
        if (from->bytes)
            continue;
        if (p == end) /* an empty text is found before each character and at the end */
            break;
        spw_jinja_decode(p, end, &n);
        spw_jinja_print(r, p, n);
        p += n;
    }
    spw_jinja_print(r, p, (size_t)(end - p));
    return spw_jinja_captured(r, start);
}

/* ---- splitting and joining ---- */

static const char *next_space(const char *p, const char *end)
{
    size_t n;
    while (p < end && !spw_jinja_is_space(spw_jinja_decode(p, end, &n)))
        p += n;
    return p < end ? p : NULL;
}

/* At `sep`, or at runs of white space where it is None, at most so often (-1: always). */
static struct list *split_text(struct run *r, const struct string *s, struct value sep,
                               int64_t most)
{
    const struct string *at = given(sep) ? spw_jinja_want_string(r, sep, "split()") : NULL;
    const char *p = s->at, *end = s->at + s->bytes, *found;
    struct list *list = spw_jinja_new_list(r);
    if (at && !at->bytes)
        spw_jinja_fail(r, "split(): found an empty text to split at");
    spw_jinja_charge(r, s->bytes / 4);
    for (;; most--) {
        size_t left = (size_t)(end - p);
        if (!at)
            spw_jinja_strip(&p, &left, NULL, true, false);
        found = most == 0 ? NULL : at ? first_of(p, end, at) : next_space(p, end);
        if (!found)
            break;
        spw_jinja_append(r, list, spw_jinja_borrow(r, p, (size_t)(found - p)));
        p = found + (at ? at->bytes : 0);
    }
    if (at || p < end)
        spw_jinja_append(r, list, spw_jinja_borrow(r, p, (size_t)(end - p)));
    return list;
}

/* From the end: what is split too often at the start of the text becomes one again. */
NATIVE(split)
{
    const struct string *s = c->self.u.string;
    int64_t most =
        c->a[1].type == SPW_JINJA_MISSING ? -1 : spw_jinja_want_int(r, c->a[1], "split()");
    const bool back = c->what->how == AT_END;
    struct list *list = split_text(r, s, c->a[0], back ? -1 : most);
    if (back && most >= 0 && (int64_t)list->n > most) {
        struct value *last = &list->at[(int64_t)list->n - most - 1];
        const struct string *its = last->u.string;
        *last = spw_jinja_borrow(r, s->at, (size_t)(its->at + its->bytes - s->at));
        list->at += (int64_t)list->n - most - 1;
        list->n = list->room = (size_t)most + 1;
    }
    return list_value(SPW_JINJA_LIST, list);
}

/* The bytes of a line end at p, 0 if there is none. */
static size_t line_end(const char *p, const char *end)
{
    size_t n;
    uint32_t c = spw_jinja_decode(p, end, &n);
    if (c == '\r' && p + 1 < end && p[1] == '\n')
        return 2;
    bool ends =
        (c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029;
    return ends ? n : 0;
}

static struct list *lines_of(struct run *r, const struct string *s, bool keep)
{
    const char *p = s->at, *end = p + s->bytes, *line = p;
    struct list *list = spw_jinja_new_list(r);
    spw_jinja_charge(r, s->bytes / 4);
    while (p < end) {
        size_t n = line_end(p, end);
        if (n) {
            size_t bytes = (size_t)(p - line) + (keep ? n : 0);
            spw_jinja_append(r, list, spw_jinja_borrow(r, line, bytes));
            line = p + n;
        }
        p += n ? n : 1;
    }
    if (line < end)
        spw_jinja_append(r, list, spw_jinja_borrow(r, line, (size_t)(end - line)));
    return list;
}

NATIVE(splitlines)
{
    const bool keep = spw_jinja_truth(c->a[0]);
    return list_value(SPW_JINJA_LIST, lines_of(r, c->self.u.string, keep));
}

NATIVE(join)
{
    const struct list *items = spw_jinja_items(r, c->a[0]);
    size_t start = r->out_bytes;
    for (size_t i = 0; i < items->n; i++) {
        if (items->at[i].type != SPW_JINJA_STRING)
            spw_jinja_fail(r, "join(): item %zu: found '%s', expected a string", i,
                           spw_jinja_type_name(items->at[i]));
        if (i)
            spw_jinja_print_value(r, c->self);
        spw_jinja_print_value(r, items->at[i]);
    }
    return spw_jinja_captured(r, start);
}

NATIVE(indent)
{
    const bool markup = spw_jinja_want_string(r, c->self, "indent")->markup;
    const bool first = spw_jinja_truth(c->a[1]), blank = spw_jinja_truth(c->a[2]);
    struct value newline = spw_jinja_borrow(r, "\n", 1), by = c->a[0];
    const struct list *lines =
        lines_of(r, spw_jinja_binary(r, '+', c->self, newline).u.string, false);
    size_t start = r->out_bytes;
    if (by.type != SPW_JINJA_STRING) {
        int64_t n = by.type == SPW_JINJA_MISSING ? 4 : spw_jinja_want_int(r, by, "indent");
        spw_jinja_print_times(r, " ", 1, n);
        by = spw_jinja_captured(r, start);
    }
    for (size_t i = 0; i < lines->n; i++) {
        spw_jinja_print_text(r, i ? "\n" : "");
        if (i ? blank || lines->at[i].u.string->bytes : first)
            spw_jinja_print_value(r, by);
        spw_jinja_print_value(r, lines->at[i]);
    }
    return spw_jinja_mark(r, markup, spw_jinja_captured(r, start));
}

/* ---- any value ---- */

NATIVE(string)
{
    return spw_jinja_to_string(r, c->self);
}

NATIVE(safe)
{
    return spw_jinja_mark(r, true, spw_jinja_to_string(r, c->self));
}

NATIVE(default_value)
{
    const bool falsy = spw_jinja_truth(c->a[1]) && !spw_jinja_truth(c->self);
    if (c->self.type != SPW_JINJA_UNDEFINED && !falsy)
        return c->self;
    return c->a[0].type == SPW_JINJA_MISSING ? spw_jinja_borrow(r, "", 0) : c->a[0];
}

/* ---- numbers ---- */

NATIVE(absolute)
{
    if (!is_number(c->self))
        spw_jinja_fail(r, "abs: found '%s', expected a number", spw_jinja_type_name(c->self));
    if (c->self.type == SPW_JINJA_FLOAT)
        return float_value(fabs(c->self.u.number));
    return spw_jinja_unary(r, integer(c->self) < 0 ? '-' : '+', c->self);
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* The text for strtoll and strtod, without what Python lets stand between digits and around; "" if
 * it is no number. */
static void number_text(struct run *r, const struct string *s, char text[128])
{
    const char *p = s->at;
    size_t n = s->bytes, used = 0, i = 0;
    spw_jinja_charge(r, n / 8);
    spw_jinja_strip(&p, &n, NULL, true, true);
    for (; i < n && used < 127 && p[i]; i++)
        if (p[i] != '_' || !i || i + 1 == n || !is_digit(p[i - 1]) || !is_digit(p[i + 1]))
            text[used++] = p[i];
    text[i < n ? 0 : used] = 0;
}

/* What Python's float(text) reads. Text that is no number leaves *out as it was. */
static bool read_float(const char *text, double *out)
{
    const char *body = text + (*text == '-' || *text == '+');
    bool word =
        !strcasecmp(body, "inf") || !strcasecmp(body, "infinity") || !strcasecmp(body, "nan");
    if (!*body || (!word && body[strspn(body, "0123456789.eE+-")]))
        return false;
    char *end;
    double d = strtod(text, &end);
    if (*end)
        return false;
    *out = d;
    return true;
}

NATIVE(to_int)
{
    struct value self = c->self, otherwise = c->a[0];
    char text[128], *end;
    double d = self.type == SPW_JINJA_FLOAT ? self.u.number : NAN;
    spw_jinja_must_be_defined(r, self);
    if (otherwise.type == SPW_JINJA_MISSING)
        otherwise = int_value(0);
    if (is_integer(self))
        return int_value(integer(self));
    if (self.type == SPW_JINJA_FLOAT && isinf(d))
        spw_jinja_fail(r, "int: found infinity, expected a number");
    if (self.type == SPW_JINJA_STRING) {
        number_text(r, self.u.string, text);
        errno = 0;
        long long i = strtoll(text, &end, 10);
        if (end > text && !*end && errno != ERANGE)
            return int_value(i);
        if (end > text && !*end)
            spw_jinja_fail(r, "int: the text is an integer of more than 64 bits");
        read_float(text, &d);
    }
    if (!isfinite(d))
        return otherwise;
    if (fabs(d) >= 9223372036854775808.0)
        spw_jinja_fail(r, "int: the value is an integer of more than 64 bits");
    return int_value((int64_t)d);
}

NATIVE(to_float)
{
    char text[128];
    double d = 0;
    spw_jinja_must_be_defined(r, c->self);
    if (c->self.type == SPW_JINJA_FLOAT)
        return c->self;
    if (is_integer(c->self))
        return float_value((double)integer(c->self));
    if (c->self.type == SPW_JINJA_STRING) {
        number_text(r, c->self.u.string, text);
        if (read_float(text, &d))
            return float_value(d);
    }
    return c->a[0].type == SPW_JINJA_MISSING ? float_value(0) : c->a[0];
}

/* clang-format off */
enum {
    F = SPW_JINJA_FILTER,
    M = SPW_JINJA_OF_STRING | SPW_JINJA_ON_TEXT,
    BOTH = F | M,
};

const struct callable spw_jinja_of_text[] = {
    /* name, parameters, what it gives; who uses it */
    {F, "abs", "", .run = absolute},                /* without its sign */
    {BOTH, "capitalize", "", in_case, SPW_JINJA_CAPITALIZE},/* "Ab"; OpenChat, SOLAR, Idefics 3 */
    {F, "d", "default_value=,boolean=", .run = default_value},
    {F, "default", "default_value=,boolean=", .run = default_value},/* for undefined; Gemma 4 */
    {M, "endswith", "suffix,start=,end=", begins_or_ends, AT_END},/* Qwen3, LFM2.5 */
    {M, "find", "sub,start=,end=", find, AT_START}, /* where it begins, or -1; Qwen 3.6 */
    {F, "float", "default=", .run = to_float},      /* text as a number */
    {M, "format", "*", .run = spw_jinja_format},    /* Python's '{} {name}' */
    {F, "indent", "width=,first=,blank=", .run = indent},/* lines moved right */
    {F, "int", "default=", .run = to_int},          /* text as an integer; Jamba */
    {M, "join", "iterable", .run = join},           /* one text of items; Python's usual way */
    {BOTH, "lower", "", in_case, SPW_JINJA_LOWER},  /* "ab"; Command R7B */
    {M, "lstrip", "chars=", strip, LEFT},           /* Qwen3, GLM */
    {M, "replace", "old,new,count=", .run = replace},/* text for text; Falcon, Nemotron Nano */
    {F, "replace", "old,new,count=", .run = replace},/* Kimi K3 */
    {M, "rfind", "sub,start=,end=", find, AT_END},  /* as find, from the end; Qwen 3.6 */
    {M, "rsplit", "sep=,maxsplit=", split, AT_END},
    {M, "rstrip", "chars=", strip, RIGHT},          /* Qwen3, GLM */
    {F, "safe", "", .run = safe}, /* `+` escapes beside it; Functionary, Qwen3-Coder */
    {M, "split", "sep=,maxsplit=", split, AT_START},/* DeepSeek, Qwen3, MiniMax */
    {M, "splitlines", "keepends=", .run = splitlines},
    {M, "startswith", "prefix,start=,end=", begins_or_ends, AT_START},/* Qwen3, StepFun */
    {F, "string", "", .run = string},               /* as text; Kimi K2, LFM2.5 */
    {M, "strip", "chars=", strip, LEFT | RIGHT},    /* Cohere, GLM, MiniMax */
    {M, "title", "", in_case, SPW_JINJA_TITLE},     /* "Ab Cd"; Starling */
    {F, "title", "", .run = title_filter},          /* Jamba, Phi-2 */
    {F, "tojson", "ensure_ascii=,indent=,separators=,sort_keys=", .run = spw_jinja_tojson},
    {F | SPW_JINJA_ON_TEXT, "trim", "chars=", strip, LEFT | RIGHT},/* Llama 3, Gemma */
    {BOTH, "upper", "", in_case, SPW_JINJA_UPPER},  /* "AB"; Gemma 4, Command A, LLaVA */
    {0},
};
/* clang-format on */
