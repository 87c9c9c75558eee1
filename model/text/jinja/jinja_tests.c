/* The tests after `is`, and the functions every template has: see jinja_impl.h. */
#include "model/text/jinja/jinja_impl.h"

#include <time.h>

#define NATIVE(name)                                                                               \
    static struct value name(struct run *r, struct value self, const struct value *a)

/* ---- tests ---- */

/* x % 2 == 1, or 0 */
static struct value rest_is(struct run *r, struct value self, int64_t rest)
{
    struct value left = spw_jinja_binary(r, '%', self, int_value(2));
    return bool_value(spw_jinja_equal(r, left, int_value(rest)));
}

NATIVE(is_odd)
{
    (void)a;
    return rest_is(r, self, 1);
}

NATIVE(is_even)
{
    (void)a;
    return rest_is(r, self, 0);
}

NATIVE(is_true)
{
    (void)r;
    (void)a;
    return bool_value(self.type == SPW_JINJA_BOOL && self.u.boolean);
}

NATIVE(is_false)
{
    (void)r;
    (void)a;
    return bool_value(self.type == SPW_JINJA_BOOL && !self.u.boolean);
}

/* ---- functions ---- */

NATIVE(range_of)
{
    int64_t start = 0, stop = spw_jinja_want_int(r, a[0], "range()"), step = 1;
    (void)self;
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
    const struct list *items = spw_jinja_items(r, from);
    for (size_t i = 0; i < items->n; i++) {
        if (from.type == SPW_JINJA_DICT) {
            spw_jinja_dict_set(r, to, items->at[i], from.u.dict->at[i].value);
            continue;
        }
        const struct list *pair = spw_jinja_items(r, items->at[i]);
        if (pair->n != 2)
            spw_jinja_fail(r, "%s(): found an item of %zu, expected pairs", what, pair->n);
        spw_jinja_dict_set(r, to, pair->at[0], pair->at[1]);
    }
}

/* From a dict or pairs, then the named. */
static struct value new_dict(struct run *r, const char *what, enum type type, const struct value *a)
{
    const struct list *given = a[0].u.list;
    struct dict *to = spw_jinja_new_dict(r);
    if (given->n > 1)
        spw_jinja_fail(r, "%s(): found %zu values, expected at most 1", what, given->n);
    if (given->n)
        fill_from(r, what, given->at[0], to);
    fill_from(r, what, a[1], to);
    return (struct value){.type = type, .u.dict = to};
}

NATIVE(dict)
{
    (void)self;
    return new_dict(r, "dict", SPW_JINJA_DICT, a);
}

NATIVE(namespace)
{
    (void)self;
    return new_dict(r, "namespace", SPW_JINJA_NAMESPACE, a);
}

_Noreturn NATIVE(raise_exception)
{
    const struct string *text = spw_jinja_to_string(r, a[0]).u.string;
    (void)self;
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
    const struct string *format = spw_jinja_want_string(r, a[0], "strftime_now()");
    char plain[256], text[1024];
    (void)self;
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

#define IS(type) (1u << SPW_JINJA_##type)
#define NUMBER (IS(INT) | IS(FLOAT) | IS(BOOL))
#define SEQUENCE (IS(STRING) | IS(LIST) | IS(TUPLE) | IS(DICT) | IS(UNDEFINED))
#define CALLABLE (IS(MACRO) | IS(METHOD) | IS(LOOP) | IS(UNDEFINED))

const struct callable spw_jinja_tests[] = {
    /* of these types; who uses it */
    {T, "boolean", "", .types = IS(BOOL)},          /* Gemma 4, Kimi K3 */
    {T, "callable", "", .types = CALLABLE},
    {T, "defined", "", .types = ~IS(UNDEFINED)},    /* nearly all */
    {T, "float", "", .types = IS(FLOAT)},
    {T, "integer", "", .types = IS(INT)},
    {T, "iterable", "", .types = SEQUENCE | IS(GENERATOR) | IS(LOOP)}, /* GLM, Qwen3-Coder */
    {T, "mapping", "", .types = IS(DICT)},          /* Gemma 4, GLM */
    {T, "none", "", .types = IS(NONE)},             /* Mistral, Kimi K2 */
    {T, "number", "", .types = NUMBER},             /* Kimi K3 */
    {T, "sequence", "", .types = SEQUENCE},         /* Qwen3-Coder, Gemma 4 */
    {T, "string", "", .types = IS(STRING)},         /* nearly all */
    {T, "undefined", "", .types = IS(UNDEFINED)},   /* Mistral, Kimi K3 */
    {T, "even", "", .run = is_even},
    {T, "false", "", .run = is_false},              /* Qwen3, Nemotron Nano */
    {T, "odd", "", .run = is_odd},
    {T, "true", "", .run = is_true},                /* EXAONE 4, Qwen 3.6 */
    /* compared with the argument */
    {T, "in", "seq", .op = 'i'},                    /* Qwen3-Coder's first */
    {T, "eq", "b", .op = SPW_JINJA_T_EQ},
    {T, "equalto", "b", .op = SPW_JINJA_T_EQ},      /* Mistral, Functionary, Llama 3.1 */
    {T, "==", "b", .op = SPW_JINJA_T_EQ},
    {T, "ne", "b", .op = SPW_JINJA_T_NE},
    {T, "!=", "b", .op = SPW_JINJA_T_NE},
    {T, "lt", "b", .op = '<'},
    {T, "lessthan", "b", .op = '<'},
    {T, "<", "b", .op = '<'},
    {T, "gt", "b", .op = '>'},
    {T, "greaterthan", "b", .op = '>'},
    {T, ">", "b", .op = '>'},
    {T, "le", "b", .op = SPW_JINJA_T_LE},
    {T, "<=", "b", .op = SPW_JINJA_T_LE},
    {T, "ge", "b", .op = SPW_JINJA_T_GE},
    {T, ">=", "b", .op = SPW_JINJA_T_GE},
    /* what it gives; who uses it */
    {FUNCTION, "dict", "*", .run = dict},           /* transformers' own example */
    {FUNCTION, "namespace", "*", .run = namespace}, /* variables that loops change; nearly all */
    {FUNCTION, "raise_exception", "message", .run = raise_exception}, /* transformers'; Gemma */
    {FUNCTION, "range", "start,stop=,step=", .run = range_of}, /* Gemma 4 */
    {FUNCTION, "strftime_now", "format", .run = strftime_now}, /* transformers'; gpt-oss, Apertus */
    {0},
};
/* clang-format on */
