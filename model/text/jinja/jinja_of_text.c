/* Methods of strings as Python's str has them, and filters of single values: text, numbers. See
 * jinja_impl.h. A row that is ON_TEXT finds a string in `self`. */
#include "model/text/jinja/jinja_impl.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#define NATIVE(name)                                                                               \
    static struct value name(struct run *r, struct value self, const struct value *a)

/* ---- case ---- */

#define IN_CASE(name, how)                                                                         \
    NATIVE(name)                                                                                   \
    {                                                                                              \
        size_t start = r->out_bytes;                                                               \
        (void)a;                                                                                   \
        spw_jinja_print_case(r, self.u.string->at, self.u.string->bytes, how);                     \
        return spw_jinja_captured(r, start);                                                       \
    }

IN_CASE(lower, SPW_JINJA_LOWER)
IN_CASE(upper, SPW_JINJA_UPPER)
IN_CASE(title, SPW_JINJA_TITLE)
IN_CASE(capitalize, SPW_JINJA_CAPITALIZE)

/* The filter: words begin after white space, '-', '(', '{', '[' and '<'. */
NATIVE(title_filter)
{
    const struct string *s = spw_jinja_to_string(r, self).u.string;
    const char *p = s->at, *end = p + s->bytes;
    size_t start = r->out_bytes, n;
    (void)a;
    while (p < end) {
        const char *word = p;
        bool between = false;
        for (; p < end; p += n) {
            uint32_t c = spw_jinja_decode(p, end, &n);
            bool breaks = spw_jinja_is_space(c) || (c && c < 128 && strchr("-({[<", (int)c));
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

static struct value strip_ends(struct run *r, struct value self, struct value which, bool left,
                               bool right)
{
    const struct string *s = self.u.string, *chars = NULL;
    const char *at = s->at;
    size_t bytes = s->bytes;
    if (given(which))
        chars = spw_jinja_want_string(r, which, "strip()");
    if (chars && chars->bytes > MAX_STRIPPED)
        spw_jinja_fail(r, "strip(): found more than %d bytes of characters to strip", MAX_STRIPPED);
    spw_jinja_strip(&at, &bytes, chars, left, right);
    spw_jinja_charge(r, (s->bytes - bytes) * (chars ? chars->bytes : 1));
    return spw_jinja_borrow(r, at, bytes);
}

NATIVE(strip)
{
    return strip_ends(r, self, a[0], true, true);
}

NATIVE(lstrip)
{
    return strip_ends(r, self, a[0], true, false);
}

NATIVE(rstrip)
{
    return strip_ends(r, self, a[0], false, true);
}

/* The part that start and end (MISSING or None: all) leave. */
static const struct string *part(struct run *r, struct value self, const struct value *range)
{
    const struct value bounds[3] = {range[0], range[1], none_value()};
    if (range[0].type == SPW_JINJA_MISSING && range[1].type == SPW_JINJA_MISSING)
        return self.u.string;
    return spw_jinja_slice(r, self, bounds).u.string;
}

static struct value ends_with(struct run *r, struct value self, const struct value *a,
                              bool at_start)
{
    const struct string *s = part(r, self, a + 1), *end;
    bool tuple = a[0].type == SPW_JINJA_TUPLE, found = false;
    size_t n = tuple ? a[0].u.list->n : 1;
    spw_jinja_charge(r, n);
    for (size_t i = 0; i < n && !found; i++) {
        end = spw_jinja_want_string(r, tuple ? a[0].u.list->at[i] : a[0],
                                    at_start ? "startswith()" : "endswith()");
        spw_jinja_charge(r, end->bytes / 32);
        found = s->bytes >= end->bytes &&
                !memcmp(at_start ? s->at : s->at + s->bytes - end->bytes, end->at, end->bytes);
    }
    return bool_value(found);
}

NATIVE(startswith)
{
    return ends_with(r, self, a, true);
}

NATIVE(endswith)
{
    return ends_with(r, self, a, false);
}

/* ---- searching ---- */

static const char *first_of(const char *at, const char *end, const struct string *what)
{
    return what->bytes ? memmem(at, (size_t)(end - at), what->at, what->bytes) : at;
}

/* It looks at each place: charge_last is what that may cost. */
static const char *last_of(const struct string *s, const struct string *what)
{
    for (size_t at = s->bytes - what->bytes; s->bytes >= what->bytes; at--) {
        if (!memcmp(s->at + at, what->at, what->bytes))
            return s->at + at;
        if (!at)
            break;
    }
    return NULL;
}

static void charge_last(struct run *r, const struct string *s, const struct string *what)
{
    spw_jinja_charge(r, (s->bytes / 8 + 1) * (what->bytes / 32 + 1));
}

static struct value search(struct run *r, struct value self, const struct value *a, bool last)
{
    const struct string *what = spw_jinja_want_string(r, a[0], "find()");
    const struct string *s = part(r, self, a + 1);
    charge_last(r, s, what);
    const char *found = last ? last_of(s, what) : first_of(s->at, s->at + s->bytes, what);
    /* the empty part of a text lies anywhere: all that it has lies at its start */
    const char *start = s->bytes ? self.u.string->at : s->at;
    return int_value(found ? (int64_t)spw_jinja_chars(start, (size_t)(found - start)) : -1);
}

NATIVE(find)
{
    return search(r, self, a, false);
}

NATIVE(rfind)
{
    return search(r, self, a, true);
}

NATIVE(replace)
{
    const struct string *s = self.u.string;
    const struct string *old = spw_jinja_want_string(r, a[0], "replace()");
    const struct string *new = spw_jinja_want_string(r, a[1], "replace()");
    int64_t left = given(a[2]) ? spw_jinja_want_int(r, a[2], "replace()") : -1;
    const char *p = s->at, *end = s->at + s->bytes, *found;
    size_t start = r->out_bytes, n;
    while (left-- != 0 && (found = first_of(p, end, old))) {
        spw_jinja_charge(r, 1);
        spw_jinja_print(r, p, (size_t)(found - p));
        spw_jinja_print(r, new->at, new->bytes);
        p = found + old->bytes;
        if (old->bytes)
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

/* The filter: of anything's text, and plain, also where self was marked safe. */
NATIVE(replace_filter)
{
    const struct value texts[] = {spw_jinja_to_string(r, a[0]), spw_jinja_to_string(r, a[1]), a[2]};
    return replace(r, spw_jinja_to_string(r, self), texts);
}

/* ---- splitting and joining ---- */

static const char *next_space(const char *p, const char *end)
{
    size_t n;
    while (p < end && !spw_jinja_is_space(spw_jinja_decode(p, end, &n)))
        p += n;
    return p < end ? p : NULL;
}

NATIVE(split)
{
    const struct string *s = self.u.string, *sep = NULL;
    int64_t most = a[1].type == SPW_JINJA_MISSING ? -1 : spw_jinja_want_int(r, a[1], "split()");
    const char *p = s->at, *end = s->at + s->bytes, *found;
    struct list *list = spw_jinja_new_list(r);
    if (given(a[0]))
        sep = spw_jinja_want_string(r, a[0], "split()");
    if (sep && !sep->bytes)
        spw_jinja_fail(r, "split(): found an empty text to split at");
    spw_jinja_charge(r, s->bytes / 4);
    for (;; most--) { /* without a separator: at runs of white space */
        size_t left = (size_t)(end - p);
        if (!sep)
            spw_jinja_strip(&p, &left, NULL, true, false);
        found = most == 0 ? NULL : sep ? first_of(p, end, sep) : next_space(p, end);
        if (!found)
            break;
        spw_jinja_append(r, list, spw_jinja_borrow(r, p, (size_t)(found - p)));
        p = found + (sep ? sep->bytes : 0);
    }
    if (sep || p < end)
        spw_jinja_append(r, list, spw_jinja_borrow(r, p, (size_t)(end - p)));
    return list_value(SPW_JINJA_LIST, list);
}

NATIVE(rsplit)
{
    const struct value backwards[3] = {{0}, {0}, int_value(-1)};
    struct string s = *self.u.string;
    struct list *list = spw_jinja_new_list(r);
    int64_t most = a[1].type == SPW_JINJA_MISSING ? -1 : spw_jinja_want_int(r, a[1], "split()");
    const char *found;
    if (!given(a[0])) { /* as split, but what it would not split stands at the start */
        list = split(r, self, (const struct value[]){a[0], int_value(-1)}).u.list;
        if (most < 0 || (int64_t)list->n <= most)
            return list_value(SPW_JINJA_LIST, list);
        const struct string *last = list->at[(int64_t)list->n - most - 1].u.string;
        size_t head = (size_t)(last->at + last->bytes - s.at);
        list->at[(int64_t)list->n - most - 1] = spw_jinja_borrow(r, s.at, head);
        return spw_jinja_slice(r, list_value(SPW_JINJA_LIST, list),
                               (const struct value[]){int_value(-1 - most), {0}, {0}});
    }
    const struct string *sep = spw_jinja_want_string(r, a[0], "split()");
    if (!sep->bytes)
        spw_jinja_fail(r, "split(): found an empty text to split at");
    charge_last(r, &s, sep);
    for (; most-- != 0 && (found = last_of(&s, sep)); s.bytes = (size_t)(found - s.at)) {
        size_t at = (size_t)(found - s.at) + sep->bytes;
        spw_jinja_append(r, list, spw_jinja_borrow(r, s.at + at, s.bytes - at));
    }
    spw_jinja_append(r, list, spw_jinja_borrow(r, s.at, s.bytes));
    return spw_jinja_slice(r, list_value(SPW_JINJA_LIST, list), backwards);
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

NATIVE(splitlines)
{
    const struct string *s = self.u.string;
    const char *p = s->at, *end = p + s->bytes, *line = p;
    struct list *list = spw_jinja_new_list(r);
    bool keep = spw_jinja_truth(a[0]);
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
    return list_value(SPW_JINJA_LIST, list);
}

NATIVE(join)
{
    const struct list *items = spw_jinja_items(r, a[0]);
    size_t start = r->out_bytes;
    for (size_t i = 0; i < items->n; i++) {
        if (items->at[i].type != SPW_JINJA_STRING)
            spw_jinja_fail(r, "join(): item %zu: found '%s', expected a string", i,
                           spw_jinja_type_name(items->at[i]));
        if (i)
            spw_jinja_print_value(r, self);
        spw_jinja_print_value(r, items->at[i]);
    }
    return spw_jinja_captured(r, start);
}

NATIVE(indent)
{
    struct value newline = spw_jinja_borrow(r, "\n", 1), none = none_value();
    bool markup = spw_jinja_want_string(r, self, "indent")->markup, first = spw_jinja_truth(a[1]);
    bool blank = spw_jinja_truth(a[2]);
    const struct list *lines = splitlines(r, spw_jinja_binary(r, '+', self, newline), &none).u.list;
    size_t start = r->out_bytes;
    for (size_t i = 0; i < lines->n; i++) {
        spw_jinja_print_text(r, i ? "\n" : "");
        if ((i ? blank || lines->at[i].u.string->bytes : first) && a[0].type == SPW_JINJA_STRING)
            spw_jinja_print_value(r, a[0]);
        else if (i ? blank || lines->at[i].u.string->bytes : first)
            spw_jinja_print_times(
                r, " ", 1,
                a[0].type == SPW_JINJA_MISSING ? 4 : spw_jinja_want_int(r, a[0], "indent"));
        spw_jinja_print_value(r, lines->at[i]);
    }
    return spw_jinja_mark(r, markup, spw_jinja_captured(r, start));
}

/* ---- any value ---- */

NATIVE(string)
{
    (void)a;
    return spw_jinja_to_string(r, self);
}

NATIVE(safe)
{
    (void)a;
    return spw_jinja_mark(r, true, spw_jinja_to_string(r, self));
}

NATIVE(default_value)
{
    if (self.type != SPW_JINJA_UNDEFINED && (!spw_jinja_truth(a[1]) || spw_jinja_truth(self)))
        return self;
    return a[0].type == SPW_JINJA_MISSING ? spw_jinja_borrow(r, "", 0) : a[0];
}

/* ---- numbers ---- */

NATIVE(absolute)
{
    (void)a;
    if (!is_number(self))
        spw_jinja_fail(r, "abs: found '%s', expected a number", spw_jinja_type_name(self));
    if (self.type == SPW_JINJA_FLOAT)
        return float_value(fabs(self.u.number));
    return spw_jinja_unary(r, integer(self) < 0 ? '-' : '+', self);
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

/* What Python's float(text) reads. */
static bool read_float(const char *text, double *out)
{
    const char *body = text + (*text == '-' || *text == '+');
    bool word =
        !strcasecmp(body, "inf") || !strcasecmp(body, "infinity") || !strcasecmp(body, "nan");
    if (!*body || (!word && body[strspn(body, "0123456789.eE+-")]))
        return false;
    char *end;
    *out = strtod(text, &end);
    return *end == 0;
}

NATIVE(to_int)
{
    struct value otherwise = a[0].type == SPW_JINJA_MISSING ? int_value(0) : a[0];
    char text[128], *end;
    double d = self.type == SPW_JINJA_FLOAT ? self.u.number : 0;
    spw_jinja_must_be_defined(r, self);
    if (is_integer(self))
        return spw_jinja_unary(r, '+', self);
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
        if (!read_float(text, &d))
            return otherwise;
    } else if (self.type != SPW_JINJA_FLOAT) {
        return otherwise;
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
    spw_jinja_must_be_defined(r, self);
    if (self.type == SPW_JINJA_FLOAT)
        return self;
    if (is_integer(self))
        return float_value((double)integer(self));
    if (self.type == SPW_JINJA_STRING) {
        number_text(r, self.u.string, text);
        if (read_float(text, &d))
            return float_value(d);
    }
    return a[0].type == SPW_JINJA_MISSING ? float_value(0) : a[0];
}

/* clang-format off */
enum {
    F = SPW_JINJA_FILTER,
    M = SPW_JINJA_OF_STRING | SPW_JINJA_ON_TEXT,
    BOTH = F | M,
};

const struct callable spw_jinja_of_text[] = {
    /* name, parameters                       what it gives; who uses it */
    {F, "abs", "", .run = absolute},                /* without its sign */
    {BOTH, "capitalize", "", .run = capitalize},    /* "Ab"; OpenChat, SOLAR, Idefics 3 */
    {F, "d", "default_value=,boolean=", .run = default_value},
    {F, "default", "default_value=,boolean=", .run = default_value}, /* for undefined; Gemma 4 */
    {M, "endswith", "suffix,start=,end=", .run = endswith}, /* Qwen3, LFM2.5 */
    {M, "find", "sub,start=,end=", .run = find},    /* where it begins, or -1; Qwen 3.6 */
    {F, "float", "default=", .run = to_float},      /* text as a number */
    {M, "format", "*", .run = spw_jinja_format},    /* Python's '{} {name}' */
    {F, "indent", "width=,first=,blank=", .run = indent}, /* lines moved right */
    {F, "int", "default=", .run = to_int},          /* text as an integer; Jamba */
    {M, "join", "iterable", .run = join},           /* one text of items; Python's usual way */
    {BOTH, "lower", "", .run = lower},              /* "ab"; Command R7B */
    {M, "lstrip", "chars=", .run = lstrip},         /* Qwen3, GLM */
    {M, "replace", "old,new,count=", .run = replace}, /* text for text; Falcon, Nemotron Nano */
    {F, "replace", "old,new,count=", .run = replace_filter}, /* Kimi K3 */
    {M, "rfind", "sub,start=,end=", .run = rfind},  /* as find, from the end; Qwen 3.6 */
    {M, "rsplit", "sep=,maxsplit=", .run = rsplit},
    {M, "rstrip", "chars=", .run = rstrip},         /* Qwen3, GLM */
    {F, "safe", "", .run = safe}, /* `+` escapes beside it; Functionary, Qwen3-Coder */
    {M, "split", "sep=,maxsplit=", .run = split},   /* DeepSeek, Qwen3, MiniMax */
    {M, "splitlines", "keepends=", .run = splitlines},
    {M, "startswith", "prefix,start=,end=", .run = startswith}, /* Qwen3, StepFun */
    {F, "string", "", .run = string},               /* as text; Kimi K2, LFM2.5 */
    {M, "strip", "chars=", .run = strip},           /* Cohere, GLM, MiniMax */
    {M, "title", "", .run = title},                 /* "Ab Cd"; Starling */
    {F, "title", "", .run = title_filter},          /* Jamba, Phi-2 */
    {F, "tojson", "ensure_ascii=,indent=,separators=,sort_keys=", .run = spw_jinja_tojson},
    {F | SPW_JINJA_ON_TEXT, "trim", "chars=", .run = strip}, /* Llama 3, Gemma */
    {BOTH, "upper", "", .run = upper},              /* "AB"; Gemma 4, Command A, LLaVA */
    {0},
};
/* clang-format on */
