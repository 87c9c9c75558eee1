/* The tests after `is`, and the functions every template has: see jinja_impl.h. */
#include "model/text/jinja/jinja_impl.h"

#define CALLABLE(name)                                                                             \
    int spw_jj_##name(struct spw_jj_run *r, struct spw_jj_value self,                              \
                      const struct spw_jj_value *a, struct spw_jj_value *out)

/* ---- tests ---- */

static bool is_integer(struct spw_jj_value v)
{
    return v.type == SPW_JJ_INT;
}

/* A test that needs no argument and cannot fail. */
#define KIND(name, condition)                                                                      \
    CALLABLE(t_##name)                                                                             \
    {                                                                                              \
        (void)r;                                                                                   \
        (void)a;                                                                                   \
        *out = spw_jj_bool(condition);                                                             \
        return 0;                                                                                  \
    }

KIND(defined, self.type != SPW_JJ_UNDEFINED)
KIND(undefined, self.type == SPW_JJ_UNDEFINED)
KIND(none, self.type == SPW_JJ_NONE)
KIND(boolean, self.type == SPW_JJ_BOOL)
KIND(false, self.type == SPW_JJ_BOOL && !self.u.boolean)
KIND(true, self.type == SPW_JJ_BOOL && self.u.boolean)
KIND(integer, is_integer(self))
KIND(float, self.type == SPW_JJ_FLOAT)
KIND(number, is_integer(self) || self.type == SPW_JJ_FLOAT || self.type == SPW_JJ_BOOL)
KIND(string, self.type == SPW_JJ_STRING)
KIND(mapping, self.type == SPW_JJ_DICT)
KIND(callable, self.type == SPW_JJ_MACRO || self.type == SPW_JJ_FUNCTION ||
                   self.type == SPW_JJ_METHOD || self.type == SPW_JJ_LOOP ||
                   self.type == SPW_JJ_UNDEFINED)
KIND(iterable,
     self.type == SPW_JJ_STRING || self.type == SPW_JJ_LIST || self.type == SPW_JJ_TUPLE ||
         self.type == SPW_JJ_DICT || self.type == SPW_JJ_RANGE || self.type == SPW_JJ_VIEW ||
         self.type == SPW_JJ_ITERATOR || self.type == SPW_JJ_LOOP || self.type == SPW_JJ_UNDEFINED)
/* has a length and items by number or key, in Python's loose sense */
KIND(sequence, self.type == SPW_JJ_STRING || self.type == SPW_JJ_LIST ||
                   self.type == SPW_JJ_TUPLE || self.type == SPW_JJ_DICT ||
                   self.type == SPW_JJ_RANGE || self.type == SPW_JJ_UNDEFINED)

/* self % divisor == rest */
static int divides(struct spw_jj_run *r, struct spw_jj_value self, struct spw_jj_value divisor,
                   int64_t rest, struct spw_jj_value *out)
{
    struct spw_jj_value left;
    bool same;
    SPW_TRY(spw_jj_binary(r, '%', self, divisor, &left));
    SPW_TRY(spw_jj_equal(r, left, spw_jj_int(rest), &same));
    *out = spw_jj_bool(same);
    return 0;
}

CALLABLE(t_odd)
{
    (void)a;
    return divides(r, self, spw_jj_int(2), 1, out);
}

CALLABLE(t_even)
{
    (void)a;
    return divides(r, self, spw_jj_int(2), 0, out);
}

static int compares(struct spw_jj_run *r, int op, struct spw_jj_value self, struct spw_jj_value b,
                    struct spw_jj_value *out)
{
    bool yes;
    SPW_TRY(spw_jj_compare(r, op, self, b, &yes));
    *out = spw_jj_bool(yes);
    return 0;
}

#define COMPARISON(name, op)                                                                       \
    CALLABLE(t_##name)                                                                             \
    {                                                                                              \
        return compares(r, op, self, a[0], out);                                                   \
    }

COMPARISON(eq, SPW_JJ_T_EQ)
COMPARISON(ne, SPW_JJ_T_NE)
COMPARISON(lt, '<')
COMPARISON(gt, '>')
COMPARISON(le, SPW_JJ_T_LE)
COMPARISON(ge, SPW_JJ_T_GE)
COMPARISON(in, 'i')

/* ---- functions ---- */

CALLABLE(range_of)
{
    int64_t start = 0, stop, step = 1;
    struct spw_jj_range *range = spw_jj_take(&r->arena, sizeof *range);
    (void)self;
    if (!range)
        return spw_jj_no_memory(r);
    SPW_TRY(spw_jj_want_int(r, a[0], "range()", &stop));
    if (a[1].type != SPW_JJ_MISSING) {
        start = stop;
        SPW_TRY(spw_jj_want_int(r, a[1], "range()", &stop));
    }
    if (a[2].type != SPW_JJ_MISSING)
        SPW_TRY(spw_jj_want_int(r, a[2], "range()", &step));
    if (step == 0)
        return spw_jj_fail(r, "range(): found a step of 0, expected another");
    uint64_t n = 0, width = step > 0 ? (uint64_t)step : 0 - (uint64_t)step;
    if (step > 0 && start < stop)
        n = ((uint64_t)stop - (uint64_t)start - 1) / width + 1;
    if (step < 0 && start > stop)
        n = ((uint64_t)start - (uint64_t)stop - 1) / width + 1;
    if (n > SPW_JINJA_MAX_RANGE)
        return spw_jj_fail(r, "range(): found more than %d numbers", SPW_JINJA_MAX_RANGE);
    *range = (struct spw_jj_range){start, stop, step, (int64_t)n};
    *out = (struct spw_jj_value){.type = SPW_JJ_RANGE, .u.range = range};
    return 0;
}

/* From a dict or pairs, then the named. */
static int fill(struct spw_jj_run *r, const char *what, const struct spw_jj_value *a,
                struct spw_jj_dict *to)
{
    struct spw_jj_value from, pair, item;
    struct spw_jj_iterator *it;
    bool more;
    if (a[0].u.list->n > 1)
        return spw_jj_fail(r, "%s(): found %zu values, expected at most 1", what, a[0].u.list->n);
    if (a[0].u.list->n) {
        from = a[0].u.list->at[0];
        SPW_TRY(spw_jj_iterate(r, from, &it));
        for (;;) {
            SPW_TRY(spw_jj_next(r, it, &item, &more));
            if (!more)
                break;
            if (from.type == SPW_JJ_DICT) {
                struct spw_jj_entry *entry;
                SPW_TRY(spw_jj_dict_find(r, from.u.dict, item, &entry));
                SPW_TRY(spw_jj_dict_set(r, to, item, entry->value));
                continue;
            }
            SPW_TRY(spw_jj_to_list(r, item, SPW_JJ_TUPLE, &pair));
            if (pair.u.list->n != 2)
                return spw_jj_fail(r, "%s: found an item of %zu, expected pairs", what,
                                   pair.u.list->n);
            SPW_TRY(spw_jj_dict_set(r, to, pair.u.list->at[0], pair.u.list->at[1]));
        }
    }
    for (size_t i = 0; i < a[1].u.dict->n; i++)
        SPW_TRY(spw_jj_dict_set(r, to, a[1].u.dict->at[i].key, a[1].u.dict->at[i].value));
    return 0;
}

CALLABLE(dict)
{
    (void)self;
    SPW_TRY(spw_jj_new_dict(r, SPW_JJ_DICT, out));
    return fill(r, "dict", a, out->u.dict);
}

CALLABLE(namespace)
{
    (void)self;
    SPW_TRY(spw_jj_new_dict(r, SPW_JJ_NAMESPACE, out));
    return fill(r, "namespace", a, out->u.dict);
}

CALLABLE(raise_exception)
{
    struct spw_jj_value text;
    (void)self;
    (void)out;
    SPW_TRY(spw_jj_to_string(r, a[0], &text));
    return spw_jj_fail(r, "%.*s", (int)spw_min_u64(text.u.string->bytes, 900), text.u.string->at);
}

CALLABLE(strftime_now)
{
    const struct spw_jj_string *format;
    char plain[256], text[1024];
    size_t n = 0;
    (void)self;
    SPW_TRY(spw_jj_want_string(r, a[0], "strftime_now()", &format));
    if (!r->in->now)
        return spw_jj_fail(r, "strftime_now() asks for the date, and the caller gave none");
    /* A time without a zone: Python prints nothing for it. A space in front tells an empty result
     * from one that does not fit. */
    plain[n++] = ' ';
    for (size_t i = 0; i < format->bytes; i++) {
        if (n + 8 > sizeof plain || !format->at[i])
            return spw_jj_fail(r, "strftime_now(): found a format that is too long or has a NUL");
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
    n = strftime(text, sizeof text, plain, r->in->now);
    if (!n)
        return spw_jj_fail(r, "strftime_now(): found a format that makes more than %zu bytes",
                           sizeof text);
    return spw_jj_copy(r, text + 1, n - 1, out);
}
