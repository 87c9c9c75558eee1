/* Operators of Jinja expressions on values, as Python has them: see jinja_impl.h. */
#include "model/text/jinja/jinja_impl.h"

#include <math.h>
#include <stdio.h>

static bool is_integer(struct spw_jj_value v)
{
    return v.type == SPW_JJ_INT || v.type == SPW_JJ_BOOL;
}

static bool is_number(struct spw_jj_value v)
{
    return is_integer(v) || v.type == SPW_JJ_FLOAT;
}

static int64_t as_integer(struct spw_jj_value v)
{
    return v.type == SPW_JJ_BOOL ? v.u.boolean : v.u.integer;
}

static double as_float(struct spw_jj_value v)
{
    return v.type == SPW_JJ_FLOAT ? v.u.number : (double)as_integer(v);
}

static const char *op_text(int op)
{
    static const char *const names[] = {
        [SPW_JJ_T_EQ - 256] = "==", [SPW_JJ_T_NE - 256] = "!=",       [SPW_JJ_T_LE - 256] = "<=",
        [SPW_JJ_T_GE - 256] = ">=", [SPW_JJ_T_FLOORDIV - 256] = "//",
    };
    if (op >= 256)
        return names[op - 256];
    return op == '+'   ? "+"
           : op == '-' ? "-"
           : op == '*' ? "*"
           : op == '/' ? "/"
           : op == '%' ? "%"
           : op == '<' ? "<"
                       : ">";
}

static int unsupported(struct spw_jj_run *r, int op, struct spw_jj_value a, struct spw_jj_value b)
{
    return spw_jj_fail(r, "cannot compute '%s' %s '%s'", spw_jj_type_name(a), op_text(op),
                       spw_jj_type_name(b));
}

/* ---- numbers ---- */

static int overflow(struct spw_jj_run *r, int op)
{
    return spw_jj_fail(r, "the result of %s is an integer of more than 64 bits", op_text(op));
}

static int integers(struct spw_jj_run *r, int op, int64_t a, int64_t b, struct spw_jj_value *out)
{
    int64_t n = 0;
    bool bad = false;
    if ((op == '/' || op == '%' || op == SPW_JJ_T_FLOORDIV) && b == 0)
        return spw_jj_fail(r, "division by zero");
    switch (op) {
    case '+':
        bad = __builtin_add_overflow(a, b, &n);
        break;
    case '-':
        bad = __builtin_sub_overflow(a, b, &n);
        break;
    case '*':
        bad = __builtin_mul_overflow(a, b, &n);
        break;
    case '/':
        *out = spw_jj_float((double)((long double)a / (long double)b));
        return 0;
    case '%':
        n = b == -1 ? 0 : a % b;
        n += n != 0 && (n < 0) != (b < 0) ? b : 0;
        break;
    default: /* // */
        bad = b == -1 && a == INT64_MIN;
        if (!bad)
            n = a / b - (a % b != 0 && (a < 0) != (b < 0));
    }
    *out = spw_jj_int(n);
    return bad ? overflow(r, op) : 0;
}

/* Python's: the remainder has the divisor's sign, and the quotient fits to it. */
static void divide_floats(double a, double b, double *quotient, double *rest)
{
    *rest = fmod(a, b);
    double q = (a - *rest) / b;
    if (*rest != 0) {
        if ((b < 0) != (*rest < 0)) {
            *rest += b;
            q -= 1;
        }
    } else {
        *rest = copysign(0, b);
    }
    *quotient = q != 0 ? floor(q) + (q - floor(q) > 0.5) : copysign(0, a / b);
}

static int floats(struct spw_jj_run *r, int op, double a, double b, struct spw_jj_value *out)
{
    double result = 0, rest = 0;
    if ((op == '/' || op == '%' || op == SPW_JJ_T_FLOORDIV) && b == 0)
        return spw_jj_fail(r, "division by zero");
    switch (op) {
    case '+':
        result = a + b;
        break;
    case '-':
        result = a - b;
        break;
    case '*':
        result = a * b;
        break;
    case '/':
        result = a / b;
        break;
    case '%':
        divide_floats(a, b, &rest, &result);
        break;
    default: /* // */
        divide_floats(a, b, &result, &rest);
    }
    *out = spw_jj_float(result);
    return 0;
}

/* ---- strings and lists ---- */

static int escape(struct spw_jj_run *r, const struct spw_jj_string *s, struct spw_jj_value *out)
{
    size_t start = r->out.bytes, plain = 0;
    if (s->markup) {
        *out = spw_jj_constant(s);
        return 0;
    }
    for (size_t i = 0; i < s->bytes; i++) {
        const char *to = s->at[i] == '&'    ? "&amp;"
                         : s->at[i] == '<'  ? "&lt;"
                         : s->at[i] == '>'  ? "&gt;"
                         : s->at[i] == '"'  ? "&#34;"
                         : s->at[i] == '\'' ? "&#39;"
                                            : NULL;
        if (!to)
            continue;
        SPW_TRY(spw_jj_print(r, s->at + plain, i - plain));
        SPW_TRY(spw_jj_print(r, to, strlen(to)));
        plain = i + 1;
    }
    SPW_TRY(spw_jj_print(r, s->at + plain, s->bytes - plain));
    SPW_TRY(spw_jj_captured(r, start, out));
    return spw_jj_mark(r, &(struct spw_jj_string){.markup = true}, out);
}

static int join(struct spw_jj_run *r, const struct spw_jj_string *a, const struct spw_jj_string *b,
                struct spw_jj_value *out)
{
    struct spw_jj_string *s = spw_jj_take(&r->arena, sizeof *s);
    size_t copied = b->bytes;
    char *text;
    if (!s)
        return spw_jj_no_memory(r);
    if (a->bytes && spw_jj_extend_text(&r->arena, a->at + a->bytes, b->bytes)) {
        text = (char *)(uintptr_t)a->at; /* our own arena's: the bytes after it were free */
    } else {
        text = spw_jj_take_text(&r->arena, a->bytes + b->bytes);
        if (!text)
            return spw_jj_no_memory(r);
        if (a->bytes)
            memcpy(text, a->at, a->bytes);
        copied += a->bytes;
    }
    if (b->bytes)
        memcpy(text + a->bytes, b->at, b->bytes);
    *s = (struct spw_jj_string){text, a->bytes + b->bytes, a->chars + b->chars, a->markup};
    *out = spw_jj_constant(s);
    return spw_jj_charge(r, copied / 32);
}

static int add_strings(struct spw_jj_run *r, struct spw_jj_value a, struct spw_jj_value b,
                       struct spw_jj_value *out)
{
    if (a.u.string->markup != b.u.string->markup) {
        SPW_TRY(escape(r, a.u.string, &a));
        SPW_TRY(escape(r, b.u.string, &b));
    }
    return join(r, a.u.string, b.u.string, out);
}

static int add_lists(struct spw_jj_run *r, struct spw_jj_value a, struct spw_jj_value b,
                     struct spw_jj_value *out)
{
    struct spw_jj_value sum;
    SPW_TRY(spw_jj_new_list(r, a.type, &sum));
    for (size_t i = 0; i < a.u.list->n; i++)
        SPW_TRY(spw_jj_append(r, sum.u.list, a.u.list->at[i]));
    for (size_t i = 0; i < b.u.list->n; i++)
        SPW_TRY(spw_jj_append(r, sum.u.list, b.u.list->at[i]));
    *out = sum;
    return 0;
}

static int add(struct spw_jj_run *r, struct spw_jj_value a, struct spw_jj_value b,
               struct spw_jj_value *out)
{
    if (a.type == SPW_JJ_STRING && b.type == SPW_JJ_STRING)
        return add_strings(r, a, b, out);
    if ((a.type == SPW_JJ_LIST || a.type == SPW_JJ_TUPLE) && b.type == a.type)
        return add_lists(r, a, b, out);
    const char *type = spw_jj_type_name(a);
    if (a.type == SPW_JJ_STRING && !a.u.string->markup)
        return spw_jj_fail(r, "can only concatenate %s (not \"%s\") to %s", type,
                           spw_jj_type_name(b), type);
    if (a.type == SPW_JJ_LIST || a.type == SPW_JJ_TUPLE)
        return spw_jj_fail(r, "can only concatenate %s (not \"%s\") to %s", type,
                           spw_jj_type_name(b), type);
    return unsupported(r, '+', a, b);
}

static int repeat(struct spw_jj_run *r, struct spw_jj_value v, int64_t times,
                  struct spw_jj_value *out)
{
    size_t start = r->out.bytes;
    if (v.type == SPW_JJ_STRING) {
        SPW_TRY(spw_jj_print_times(r, v.u.string->at, v.u.string->bytes, times));
        SPW_TRY(spw_jj_captured(r, start, out));
        return spw_jj_mark(r, v.u.string, out);
    }
    struct spw_jj_value list;
    SPW_TRY(spw_jj_new_list(r, v.type, &list));
    for (int64_t i = 0; i < times && v.u.list->n; i++)
        for (size_t n = 0; n < v.u.list->n; n++)
            SPW_TRY(spw_jj_append(r, list.u.list, v.u.list->at[n]));
    *out = list;
    return 0;
}

static bool is_sequence(struct spw_jj_value v)
{
    return v.type == SPW_JJ_STRING || v.type == SPW_JJ_LIST || v.type == SPW_JJ_TUPLE;
}

int spw_jj_binary(struct spw_jj_run *r, int op, struct spw_jj_value a, struct spw_jj_value b,
                  struct spw_jj_value *out)
{
    if (op == '%' && a.type == SPW_JJ_STRING)
        return spw_jj_refuse(r, "% with", a);
    if (a.type == SPW_JJ_VIEW || b.type == SPW_JJ_VIEW)
        return spw_jj_refuse(r, "an operator with", a.type == SPW_JJ_VIEW ? a : b);
    if (a.type == SPW_JJ_UNDEFINED)
        return spw_jj_fail_undefined(r, a.u.undefined);
    if (b.type == SPW_JJ_UNDEFINED)
        return spw_jj_fail_undefined(r, b.u.undefined);
    if (is_integer(a) && is_integer(b))
        return integers(r, op, as_integer(a), as_integer(b), out);
    if (is_number(a) && is_number(b))
        return floats(r, op, as_float(a), as_float(b), out);
    if (op == '+')
        return add(r, a, b, out);
    if (op == '*' && is_sequence(a) && is_integer(b))
        return repeat(r, a, as_integer(b), out);
    if (op == '*' && is_integer(a) && is_sequence(b))
        return repeat(r, b, as_integer(a), out);
    return unsupported(r, op, a, b);
}

int spw_jj_unary(struct spw_jj_run *r, int op, struct spw_jj_value a, struct spw_jj_value *out)
{
    if (a.type == SPW_JJ_UNDEFINED)
        return spw_jj_fail_undefined(r, a.u.undefined);
    if (a.type == SPW_JJ_FLOAT)
        *out = spw_jj_float(op == '-' ? -a.u.number : a.u.number);
    else if (is_integer(a) && as_integer(a) == INT64_MIN && op == '-')
        return overflow(r, '-');
    else if (is_integer(a))
        *out = spw_jj_int(op == '-' ? -as_integer(a) : as_integer(a));
    else
        return spw_jj_fail(r, "cannot compute %c '%s'", op, spw_jj_type_name(a));
    return 0;
}

int spw_jj_compare(struct spw_jj_run *r, int op, struct spw_jj_value a, struct spw_jj_value b,
                   bool *out)
{
    int c;
    if (op == 'i' || op == 'n') {
        SPW_TRY(spw_jj_contains(r, b, a, out));
        *out ^= op == 'n';
        return 0;
    }
    if (op == SPW_JJ_T_EQ || op == SPW_JJ_T_NE) {
        SPW_TRY(spw_jj_equal(r, a, b, out));
        *out ^= op == SPW_JJ_T_NE;
        return 0;
    }
    SPW_TRY(spw_jj_order(r, a, b, op_text(op), &c));
    *out = c != 2 && (op == '<' ? c < 0 : op == '>' ? c > 0 : op == SPW_JJ_T_LE ? c <= 0 : c >= 0);
    return 0;
}

/* ---- slices ---- */

/* One bound as Python reads it: counted from the end where negative, and cut to what there is. */
static int bound(struct spw_jj_run *r, struct spw_jj_value v, int64_t n, bool back,
                 int64_t otherwise, int64_t *out)
{
    int64_t low = back ? -1 : 0, high = back ? n - 1 : n;
    *out = otherwise;
    if (v.type == SPW_JJ_MISSING || v.type == SPW_JJ_NONE)
        return 0;
    if (!is_integer(v))
        return spw_jj_fail(r, "found '%s' in a slice, expected an integer", spw_jj_type_name(v));
    int64_t i = as_integer(v);
    if (i < 0)
        i = i < -n ? -1 : i + n;
    if (i < 0)
        i = low;
    *out = i > high ? high : i;
    return 0;
}

static int slice_string(struct spw_jj_run *r, const struct spw_jj_string *s, int64_t start,
                        int64_t step, int64_t n, struct spw_jj_value *out)
{
    size_t from = spw_jj_byte_of(s, (size_t)(n ? start : 0)), before = r->out.bytes;
    /* where each character is a byte, none is looked for */
    SPW_TRY(spw_jj_charge(r, s->chars == s->bytes && step == 1 ? 1 : s->bytes / 32 + (uint64_t)n));
    if (step == 1) {
        struct spw_jj_string rest = {s->at + from, s->bytes - from, s->chars - (size_t)start,
                                     false};
        if (s->chars == s->bytes)
            rest.chars = rest.bytes;
        SPW_TRY(spw_jj_borrow(r, rest.at, spw_jj_byte_of(&rest, (size_t)n), out));
        return spw_jj_mark(r, s, out);
    }
    const char *p = s->at + from, *end = s->at + s->bytes;
    for (int64_t i = 0; i < n; i++) {
        size_t bytes;
        spw_jj_decode(p, end, &bytes);
        SPW_TRY(spw_jj_print(r, p, bytes));
        for (int64_t move = 0; i + 1 < n && move < (step < 0 ? -step : step); move++) {
            SPW_TRY(spw_jj_charge(r, 1));
            do
                p += step < 0 ? -1 : 1;
            while ((*p & 0xc0) == 0x80);
        }
    }
    SPW_TRY(spw_jj_captured(r, before, out));
    return spw_jj_mark(r, s, out);
}

int spw_jj_slice(struct spw_jj_run *r, struct spw_jj_value v, const struct spw_jj_value bounds[3],
                 struct spw_jj_value *out)
{
    int64_t length, start, stop, step = 1, n = 0;
    SPW_TRY(spw_jj_length(r, v, &length));
    if (bounds[2].type != SPW_JJ_MISSING && bounds[2].type != SPW_JJ_NONE) {
        SPW_TRY(spw_jj_want_int(r, bounds[2], "a slice's step", &step));
        if (step == 0)
            return spw_jj_fail(r, "found a slice with a step of 0");
    }
    if (step < -INT64_MAX)
        step = -INT64_MAX;
    SPW_TRY(bound(r, bounds[0], length, step < 0, step < 0 ? length - 1 : 0, &start));
    SPW_TRY(bound(r, bounds[1], length, step < 0, step < 0 ? -1 : length, &stop));
    if (step > 0 && start < stop)
        n = (stop - start - 1) / step + 1;
    if (step < 0 && start > stop)
        n = (start - stop - 1) / -step + 1;
    if (v.type == SPW_JJ_STRING)
        return slice_string(r, v.u.string, n ? start : 0, step, n, out);
    struct spw_jj_value list;
    SPW_TRY(spw_jj_new_list(r, v.type, &list));
    for (int64_t i = 0; i < n; i++)
        SPW_TRY(spw_jj_append(r, list.u.list, v.u.list->at[start + i * step]));
    *out = list;
    return 0;
}
