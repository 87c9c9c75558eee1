/* Operators of Jinja expressions on values, as Python has them: see jinja_impl.h. */
#include "model/text/jinja/jinja_impl.h"

#include <math.h>

static double as_float(struct value v)
{
    return v.type == SPW_JINJA_FLOAT ? v.u.number : (double)integer(v);
}

static const char *op_text(int op)
{
    static const char texts[] = "+\0-\0*\0/\0%\0<\0>";
    static const char *const names[] = {
        "==", "!=", "<=", ">=", "//"}; /* as the tokens from EQ on */
    return op >= SPW_JINJA_T_EQ ? names[op - SPW_JINJA_T_EQ]
                                : (const char *)memchr(texts, op, sizeof texts);
}

static _Noreturn void unsupported(struct run *r, int op, struct value a, struct value b)
{
    spw_jinja_fail(r, "cannot compute '%s' %s '%s'", spw_jinja_type_name(a), op_text(op),
                   spw_jinja_type_name(b));
}

/* ---- numbers ---- */

static struct value integers(struct run *r, int op, int64_t a, int64_t b)
{
    int64_t n = 0;
    bool bad = false;
    if (op == '+')
        bad = __builtin_add_overflow(a, b, &n);
    else if (op == '-')
        bad = __builtin_sub_overflow(a, b, &n);
    else if (op == '*')
        bad = __builtin_mul_overflow(a, b, &n);
    else if (op == '/')
        return float_value((double)((long double)a / (long double)b));
    else if (b == -1) /* the machine's division would overflow */
        bad = op != '%' && __builtin_sub_overflow(0, a, &n);
    else if (op == '%')
        n = a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0);
    else /* // */
        n = a / b - (a % b != 0 && (a < 0) != (b < 0));
    if (bad)
        spw_jinja_fail(r, "the result of %s is an integer of more than 64 bits", op_text(op));
    return int_value(n);
}

/* Python's: the remainder has the divisor's sign, and the quotient fits to it. */
static double divide_floats(int op, double a, double b)
{
    double rest = fmod(a, b), q = (a - rest) / b;
    if (rest != 0) {
        if ((b < 0) != (rest < 0)) {
            rest += b;
            q -= 1;
        }
    } else {
        rest = copysign(0, b);
    }
    if (op == '%')
        return rest;
    return q != 0 ? floor(q) + (q - floor(q) > 0.5) : copysign(0, a / b);
}

static double floats(int op, double a, double b)
{
    return op == '+'   ? a + b
           : op == '-' ? a - b
           : op == '*' ? a * b
           : op == '/' ? a / b
                       : divide_floats(op, a, b);
}

static struct value numbers(struct run *r, int op, struct value a, struct value b)
{
    if ((op == '/' || op == '%' || op == SPW_JINJA_T_FLOORDIV) && as_float(b) == 0)
        spw_jinja_fail(r, "division by zero");
    if (is_integer(a) && is_integer(b))
        return integers(r, op, integer(a), integer(b));
    return float_value(floats(op, as_float(a), as_float(b)));
}

struct value spw_jinja_unary(struct run *r, int op, struct value a)
{
    spw_jinja_must_be_defined(r, a);
    if (!is_number(a))
        spw_jinja_fail(r, "cannot compute %c '%s'", op, spw_jinja_type_name(a));
    if (a.type == SPW_JINJA_FLOAT)
        return float_value(op == '-' ? -a.u.number : a.u.number);
    return integers(r, op, 0, integer(a));
}

/* ---- strings and lists ---- */

static struct value escape(struct run *r, struct value v)
{
    const struct string *s = v.u.string;
    size_t start = r->out_bytes, plain = 0;
    if (s->markup)
        return v;
    for (size_t i = 0; i < s->bytes; i++) {
        const char *to = s->at[i] == '&'    ? "&amp;"
                         : s->at[i] == '<'  ? "&lt;"
                         : s->at[i] == '>'  ? "&gt;"
                         : s->at[i] == '"'  ? "&#34;"
                         : s->at[i] == '\'' ? "&#39;"
                                            : NULL;
        if (!to)
            continue;
        spw_jinja_print(r, s->at + plain, i - plain);
        spw_jinja_print_text(r, to);
        plain = i + 1;
    }
    spw_jinja_print(r, s->at + plain, s->bytes - plain);
    return spw_jinja_mark(r, true, spw_jinja_captured(r, start));
}

static struct value join(struct run *r, const struct string *a, const struct string *b)
{
    struct string *s = spw_jinja_take(r, sizeof *s);
    bool grown = a->bytes && spw_jinja_extend_text(r, a->at + a->bytes, b->bytes);
    /* grown: our own arena's text, whose next bytes were free */
    char *text = grown ? (char *)(uintptr_t)a->at : spw_jinja_take_text(r, a->bytes + b->bytes);
    if (!grown && a->bytes)
        memcpy(text, a->at, a->bytes);
    if (b->bytes)
        memcpy(text + a->bytes, b->at, b->bytes);
    *s = (struct string){text, a->bytes + b->bytes, a->chars + b->chars, a->markup};
    spw_jinja_charge(r, (b->bytes + (grown ? 0 : a->bytes)) / 32);
    return string_value(s);
}

static struct value add(struct run *r, struct value a, struct value b)
{
    bool is_string = a.type == SPW_JINJA_STRING;
    bool is_list = a.type == SPW_JINJA_LIST || a.type == SPW_JINJA_TUPLE;
    if (is_string && a.type == b.type) {
        if (a.u.string->markup == b.u.string->markup)
            return join(r, a.u.string, b.u.string);
        return join(r, escape(r, a).u.string, escape(r, b).u.string);
    }
    if (is_list && a.type == b.type) {
        struct list *sum = spw_jinja_new_list(r);
        spw_jinja_append_all(r, sum, a.u.list);
        spw_jinja_append_all(r, sum, b.u.list);
        return list_value(a.type, sum);
    }
    const char *type = spw_jinja_type_name(a);
    if (is_list || (is_string && !a.u.string->markup))
        spw_jinja_fail(r, "can only concatenate %s (not \"%s\") to %s", type,
                       spw_jinja_type_name(b), type);
    unsupported(r, '+', a, b);
}

static struct value repeat(struct run *r, struct value v, int64_t times)
{
    size_t start = r->out_bytes;
    if (v.type == SPW_JINJA_STRING) {
        spw_jinja_print_times(r, v.u.string->at, v.u.string->bytes, times);
        return spw_jinja_mark(r, v.u.string->markup, spw_jinja_captured(r, start));
    }
    struct list *list = spw_jinja_new_list(r);
    for (int64_t i = 0; i < times && v.u.list->n; i++)
        spw_jinja_append_all(r, list, v.u.list);
    return list_value(v.type, list);
}

static bool is_sequence(struct value v)
{
    return v.type == SPW_JINJA_STRING || v.type == SPW_JINJA_LIST || v.type == SPW_JINJA_TUPLE;
}

struct value spw_jinja_binary(struct run *r, int op, struct value a, struct value b)
{
    if (op == '~') {
        a = spw_jinja_to_string(r, a);
        b = spw_jinja_to_string(r, b);
        return spw_jinja_mark(r, false, join(r, a.u.string, b.u.string));
    }
    if (op == '%' && a.type == SPW_JINJA_STRING)
        spw_jinja_refuse(r, "% with", a);
    spw_jinja_must_be_defined(r, a);
    spw_jinja_must_be_defined(r, b);
    if (is_number(a) && is_number(b))
        return numbers(r, op, a, b);
    if (op == '+')
        return add(r, a, b);
    if (op == '*' && is_sequence(a) && is_integer(b))
        return repeat(r, a, integer(b));
    if (op == '*' && is_integer(a) && is_sequence(b))
        return repeat(r, b, integer(a));
    unsupported(r, op, a, b);
}

bool spw_jinja_compare(struct run *r, int op, struct value a, struct value b)
{
    if (op == 'i' || op == 'n')
        return spw_jinja_contains(r, b, a) == (op == 'i');
    if (op == SPW_JINJA_T_EQ || op == SPW_JINJA_T_NE)
        return spw_jinja_equal(r, a, b) == (op == SPW_JINJA_T_EQ);
    int c = spw_jinja_order(r, a, b, op_text(op));
    return c != 2 && (op == '<'              ? c < 0
                      : op == '>'            ? c > 0
                      : op == SPW_JINJA_T_LE ? c <= 0
                                             : c >= 0);
}

/* ---- slices ---- */

/* One bound as Python reads it: counted from the end where negative, and cut to what there is. */
static int64_t bound(struct run *r, struct value v, int64_t n, bool back, int64_t otherwise)
{
    int64_t low = back ? -1 : 0, high = back ? n - 1 : n;
    if (!given(v))
        return otherwise;
    if (!is_integer(v))
        spw_jinja_fail(r, "found '%s' in a slice, expected an integer", spw_jinja_type_name(v));
    int64_t i = integer(v);
    if (i < 0)
        i = i < -n ? -1 : i + n;
    if (i < 0)
        i = low;
    return i > high ? high : i;
}

static struct value substring(struct run *r, const struct string *s, int64_t start, int64_t n)
{
    size_t from = spw_jinja_byte_of(s, (size_t)start);
    struct string rest = {s->at + from, s->bytes - from, s->chars - (size_t)start, false};
    /* where each character is a byte, none is looked for */
    spw_jinja_charge(r, s->chars == s->bytes ? 1 : s->bytes / 32 + (uint64_t)n);
    size_t bytes = spw_jinja_byte_of(&rest, (size_t)n);
    return spw_jinja_mark(r, s->markup, spw_jinja_borrow(r, rest.at, bytes));
}

struct value spw_jinja_slice(struct run *r, struct value v, const struct value bounds[3])
{
    int64_t length = spw_jinja_length(v), step = 1, n = 0;
    if (given(bounds[2]))
        step = spw_jinja_want_int(r, bounds[2], "a slice's step");
    if (step == 0)
        spw_jinja_fail(r, "found a slice with a step of 0");
    if (step < -INT64_MAX)
        step = -INT64_MAX;
    int64_t start = bound(r, bounds[0], length, step < 0, step < 0 ? length - 1 : 0);
    int64_t stop = bound(r, bounds[1], length, step < 0, step < 0 ? -1 : length);
    if (step > 0 && start < stop)
        n = (stop - start - 1) / step + 1;
    if (step < 0 && start > stop)
        n = (start - stop - 1) / -step + 1;
    if (v.type == SPW_JINJA_STRING && step == 1)
        return substring(r, v.u.string, n ? start : 0, n);
    const struct list *from = spw_jinja_items(r, v);
    struct list *list = spw_jinja_new_list(r);
    size_t before = r->out_bytes;
    for (int64_t i = 0; i < n; i++) {
        struct value item = from->at[start + i * step];
        if (v.type == SPW_JINJA_STRING)
            spw_jinja_print_value(r, item);
        else
            spw_jinja_append(r, list, item);
    }
    if (v.type != SPW_JINJA_STRING)
        return list_value(v.type, list);
    return spw_jinja_mark(r, v.u.string->markup, spw_jinja_captured(r, before));
}
