/* What a template calls by name, and how it is called; the tests after `is`, and the functions
 * every template has: see jinja_impl.h. The tables here, of jinja_of_text.c and of jinja_of_items.c
 * hold what the chat templates of public models use (some 450 were read), and what costs nearly
 * nothing besides. A name that is in none of them is an error that says so. */
#include "model/text/jinja/jinja_impl.h"

#include <time.h>

/* ---- tests ---- */

/* Of one of the types whose bits are set in `how`. */
NATIVE(is_of_type)
{
    (void)r;
    return bool_value(c->what->how >> c->self.type & 1);
}

/* Compared with the argument by the operator `how`. */
NATIVE(compares)
{
    return bool_value(spw_jinja_compare(r, c->what->how, c->self, c->a[0]));
}

/* x % 2 == how */
NATIVE(is_rest)
{
    struct value rest = spw_jinja_binary(r, '%', c->self, int_value(2));
    return bool_value(spw_jinja_equal(r, rest, int_value(c->what->how)));
}

NATIVE(is_bool)
{
    (void)r;
    return bool_value(c->self.type == SPW_JINJA_BOOL && c->self.u.boolean == c->what->how);
}

/* ---- functions ---- */

NATIVE(range_of)
{
    const struct value *a = c->a;
    int64_t start = 0, stop = spw_jinja_want_int(r, a[0], "range()"), step = 1;
    if (a[1].type != SPW_JINJA_MISSING) {
        start = stop;
        stop = spw_jinja_want_int(r, a[1], "range()");
    }
    if (a[2].type != SPW_JINJA_MISSING)
        step = spw_jinja_want_int(r, a[2], "range()");
    if (step == 0)
        spw_jinja_fail(r, "range(): found a step of 0, expected another");
    uint64_t n = 0, width = step > 0 ? (uint64_t)step : 0 - (uint64_t)step;
    if (step > 0 && start < stop)
        n = ((uint64_t)stop - (uint64_t)start - 1) / width + 1;
    if (step < 0 && start > stop)
        n = ((uint64_t)start - (uint64_t)stop - 1) / width + 1;
    if (n > SPW_JINJA_MAX_RANGE)
        spw_jinja_fail(r, "range(): found more than %d numbers", SPW_JINJA_MAX_RANGE);
    struct list *list = spw_jinja_new_list(r);
    list->room = n;
    list->at = spw_jinja_take(r, n * sizeof *list->at);
    for (uint64_t i = 0; i < n; i++)
        spw_jinja_append(r, list, int_value(start + (int64_t)i * step));
    return list_value(SPW_JINJA_LIST, list);
}

static void fill_from(struct run *r, const char *what, struct value from, struct dict *to)
{
    const struct list *pairs =
        from.type == SPW_JINJA_DICT ? spw_jinja_pairs(r, from.u.dict) : spw_jinja_items(r, from);
    for (size_t i = 0; i < pairs->n; i++) {
        const struct list *pair = spw_jinja_items(r, pairs->at[i]);
        if (pair->n != 2)
            spw_jinja_fail(r, "%s(): found an item of %zu, expected pairs", what, pair->n);
        spw_jinja_dict_set(r, to, pair->at[0], pair->at[1]);
    }
}

/* A value of type `how`, from a dict or pairs, then from the named. */
NATIVE(new_dict)
{
    const struct list *given = c->a[0].u.list;
    struct dict *to = spw_jinja_new_dict(r);
    if (given->n > 1)
        spw_jinja_fail(r, "%s(): found %zu values, expected at most 1", c->what->name, given->n);
    if (given->n)
        fill_from(r, c->what->name, given->at[0], to);
    fill_from(r, c->what->name, c->a[1], to);
    return (struct value){.type = (enum type)c->what->how, .u.dict = to};
}

_Noreturn NATIVE(raise_exception)
{
    const struct string *text = spw_jinja_to_string(r, c->a[0]).u.string;
    spw_jinja_fail(r, "%.*s", (int)spw_min_u64(text->bytes, 900), text->at);
}

/* The format without what a time that has no zone prints nothing for. A space in front tells an
 * empty result from one that does not fit. */
static void plain_format(struct run *r, const struct string *format, char plain[256])
{
    size_t n = 0;
    plain[n++] = ' ';
    for (size_t i = 0; i < format->bytes; i++) {
        if (n + 8 > 256 || !format->at[i])
            spw_jinja_fail(r, "strftime_now(): found a format that is too long or has a NUL");
        bool percent = format->at[i] == '%' && i + 1 < format->bytes;
        char what = percent ? format->at[i + 1] : 0;
        i += percent;
        if (what == 'f') {
            memcpy(plain + n, "000000", 6);
            n += 6;
        } else if (what != 'Z' && what != 'z') {
            if (percent)
                plain[n++] = '%';
            plain[n++] = format->at[i];
        }
    }
    plain[n] = 0;
}

NATIVE(strftime_now)
{
    const struct string *format = spw_jinja_want_string(r, c->a[0], "strftime_now()");
    char plain[256], text[1024];
    if (!r->in->now)
        spw_jinja_fail(r, "strftime_now() asks for the date, and the caller gave none");
    plain_format(r, format, plain);
    size_t n = strftime(text, sizeof text, plain, r->in->now);
    if (!n)
        spw_jinja_fail(r, "strftime_now(): found a format that makes more than %zu bytes",
                       sizeof text);
    return spw_jinja_copy(r, text + 1, n - 1);
}

/* clang-format off */
enum { T = SPW_JINJA_TEST, FUNCTION = SPW_JINJA_FUNCTION };

#define IS(type) (1 << SPW_JINJA_##type)
#define NUMBER (IS(INT) | IS(FLOAT) | IS(BOOL))
#define SEQUENCE (IS(STRING) | IS(LIST) | IS(TUPLE) | IS(DICT) | IS(UNDEFINED))
#define CALLABLE (IS(MACRO) | IS(METHOD) | IS(LOOP) | IS(UNDEFINED))

static const struct callable tests[] = {
    /* of these types; who uses it */
    {T, "boolean", "", is_of_type, IS(BOOL)},       /* Gemma 4, Kimi K3 */
    {T, "callable", "", is_of_type, CALLABLE},
    {T, "defined", "", is_of_type, ~IS(UNDEFINED)}, /* nearly all */
    {T, "float", "", is_of_type, IS(FLOAT)},
    {T, "integer", "", is_of_type, IS(INT)},
    {T, "iterable", "", is_of_type, SEQUENCE | IS(GENERATOR) | IS(LOOP)},/* GLM, Qwen3-Coder */
    {T, "mapping", "", is_of_type, IS(DICT)},       /* Gemma 4, GLM */
    {T, "none", "", is_of_type, IS(NONE)},          /* Mistral, Kimi K2 */
    {T, "number", "", is_of_type, NUMBER},          /* Kimi K3 */
    {T, "sequence", "", is_of_type, SEQUENCE},      /* Qwen3-Coder, Gemma 4 */
    {T, "string", "", is_of_type, IS(STRING)},      /* nearly all */
    {T, "undefined", "", is_of_type, IS(UNDEFINED)},/* Mistral, Kimi K3 */
    {T, "even", "", is_rest, 0},
    {T, "false", "", is_bool, false},               /* Qwen3, Nemotron Nano */
    {T, "odd", "", is_rest, 1},
    {T, "true", "", is_bool, true},                 /* EXAONE 4, Qwen 3.6 */
    /* compared with the argument */
    {T, "in", "seq", compares, 'i'},                /* Qwen3-Coder's first */
    {T, "eq", "b", compares, SPW_JINJA_T_EQ},
    {T, "equalto", "b", compares, SPW_JINJA_T_EQ},  /* Mistral, Functionary, Llama 3.1 */
    {T, "==", "b", compares, SPW_JINJA_T_EQ},
    {T, "ne", "b", compares, SPW_JINJA_T_NE},
    {T, "!=", "b", compares, SPW_JINJA_T_NE},
    {T, "lt", "b", compares, '<'},
    {T, "lessthan", "b", compares, '<'},
    {T, "<", "b", compares, '<'},
    {T, "gt", "b", compares, '>'},
    {T, "greaterthan", "b", compares, '>'},
    {T, ">", "b", compares, '>'},
    {T, "le", "b", compares, SPW_JINJA_T_LE},
    {T, "<=", "b", compares, SPW_JINJA_T_LE},
    {T, "ge", "b", compares, SPW_JINJA_T_GE},
    {T, ">=", "b", compares, SPW_JINJA_T_GE},
    /* what it gives; who uses it */
    {FUNCTION, "dict", "*", new_dict, SPW_JINJA_DICT},/* transformers' own example */
    {FUNCTION, "namespace", "*", new_dict, SPW_JINJA_NAMESPACE}, /* variables that loops change; nearly all */
    {FUNCTION, "raise_exception", "message", .run = raise_exception},/* transformers'; Gemma */
    {FUNCTION, "range", "start,stop=,step=", .run = range_of},/* Gemma 4 */
    {FUNCTION, "strftime_now", "format", .run = strftime_now},/* transformers'; gpt-oss, Apertus */
    {0},
};
/* clang-format on */

/* ---- names ---- */

const struct callable *spw_jinja_find(unsigned as, const struct string *name)
{
    static const struct callable *const tables[] = {spw_jinja_of_text, spw_jinja_of_items, tests};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        for (const struct callable *c = tables[i]; c->name; c++)
            if ((c->as & as) && spw_jinja_is_text(name, c->name))
                return c;
    return NULL;
}

/* ---- arguments ---- */

/* The k-th of "name,name=": its length and whether it must be given. NULL after the last. */
static const char *param(const char *params, size_t k, size_t *bytes, bool *needed)
{
    const char *p = params;
    for (; k && p; k--) {
        p = strchr(p, ',');
        p = p ? p + 1 : NULL;
    }
    if (!p || !*p)
        return NULL;
    *bytes = strcspn(p, ",=");
    *needed = p[*bytes] != '=';
    return p;
}

static void bind_named(struct run *r, const struct callable *c, const struct entry *given,
                       struct value *a)
{
    const struct string *name = given->key.u.string;
    size_t bytes, k = 0;
    const char *p;
    bool needed;
    while ((p = param(c->params, k, &bytes, &needed)) &&
           (bytes != name->bytes || memcmp(p, name->at, bytes) != 0))
        k++;
    if (!p)
        spw_jinja_fail(r, "%s: found the argument '%.*s', which it does not take", c->name,
                       (int)spw_min_u64(name->bytes, 64), name->at);
    if (a[k].type != SPW_JINJA_MISSING)
        spw_jinja_fail(r, "%s: found the argument '%.*s' twice", c->name, (int)bytes, p);
    a[k] = given->value;
}

static void bind_all(struct run *r, const struct args *args, struct value *a)
{
    struct list *list = spw_jinja_new_list(r);
    *list = (struct list){.at = args->at, .n = args->n, .room = args->n};
    a[0] = list_value(SPW_JINJA_TUPLE, list);
    a[1] = (struct value){.type = SPW_JINJA_DICT, .u.dict = args->named};
}

static void bind(struct run *r, const struct callable *c, const struct args *args, struct value *a)
{
    size_t bytes, n_params = 0;
    const char *p;
    bool needed;
    if (*c->params == '*') {
        bind_all(r, args, a);
        return;
    }
    while (param(c->params, n_params, &bytes, &needed))
        n_params++;
    if (args->n > n_params)
        spw_jinja_fail(r, "%s: found %zu arguments, expected at most %zu", c->name, args->n,
                       n_params);
    if (args->n)
        memcpy(a, args->at, args->n * sizeof *a);
    for (size_t i = 0; i < args->named->n; i++)
        bind_named(r, c, &args->named->at[i], a);
    for (size_t k = 0; k < n_params; k++) {
        p = param(c->params, k, &bytes, &needed);
        if (needed && a[k].type == SPW_JINJA_MISSING)
            spw_jinja_fail(r, "%s: the argument '%.*s' is missing", c->name, (int)bytes, p);
    }
}

int64_t spw_jinja_want_int(struct run *r, struct value v, const char *what)
{
    if (!is_integer(v))
        spw_jinja_fail(r, "%s: found '%s', expected an integer", what, spw_jinja_type_name(v));
    return integer(v);
}

const struct string *spw_jinja_want_string(struct run *r, struct value v, const char *what)
{
    if (v.type != SPW_JINJA_STRING)
        spw_jinja_fail(r, "%s: found '%s', expected a string", what, spw_jinja_type_name(v));
    return v.u.string;
}

/* ---- calls ---- */

/* jinja2 escapes the texts that a method of a string that was marked safe is given, in some
 * versions and for some methods. */
static bool would_escape(struct value v)
{
    for (size_t i = 0; v.type == SPW_JINJA_STRING && i < v.u.string->bytes; i++)
        if (v.u.string->at[i] && strchr("&<>\"'", v.u.string->at[i]))
            return true;
    return v.type > SPW_JINJA_STRING; /* what join() takes */
}

static struct value call(struct run *r, const struct callable *what, struct value self,
                         const struct args *args)
{
    struct call c = {.what = what, .self = self};
    bind(r, what, args, c.a);
    if (!(what->as & SPW_JINJA_ON_TEXT))
        return what->run(r, &c);
    c.self = spw_jinja_to_string(r, self);
    const bool markup = c.self.u.string->markup;
    for (int i = 0; markup && i < SPW_JINJA_MAX_PARAMS; i++)
        if (would_escape(c.a[i]))
            spw_jinja_fail(r, "found a method with a text to escape, of a string that was marked "
                              "safe, which spillway does not do");
    struct value out = what->run(r, &c);
    if (out.type == SPW_JINJA_STRING)
        return spw_jinja_mark(r, markup, out);
    for (size_t i = 0; out.type == SPW_JINJA_LIST && i < out.u.list->n; i++)
        out.u.list->at[i] = spw_jinja_mark(r, markup, out.u.list->at[i]);
    return out;
}

struct value spw_jinja_call_method(struct run *r, const struct method *m, const struct args *args)
{
    return call(r, m->what, m->self, args);
}

struct value spw_jinja_call_named(struct run *r, unsigned as, const struct string *name,
                                  struct value self, const struct args *args)
{
    const struct callable *c = spw_jinja_find(as, name);
    if (!c)
        spw_jinja_fail(r, "the template uses the %s '%.*s', which spillway does not know",
                       as == SPW_JINJA_TEST ? "test" : "filter", (int)spw_min_u64(name->bytes, 64),
                       name->at);
    return call(r, c, self, args);
}
