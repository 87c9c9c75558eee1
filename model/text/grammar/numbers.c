/* Numbers in decimal digits within bounds: see nodes.h. A number has at most 16 digits before and
 * behind the point, and an exponent of two digits: more is infinity, or no integer, for many
 * readers. A bounded number has no exponent. */
#include "model/text/grammar/nodes.h"

#include <string.h>

static const uint64_t most = UINT64_C(9999999999999999);

static uint32_t digit(struct spw_grammar *g, unsigned first, unsigned last)
{
    struct spw_byte_set set = {0};
    for (unsigned c = '0' + first; c <= '0' + last; c++)
        set.bits[c / 64] |= UINT64_C(1) << c % 64;
    return spw_node_set(g, &set);
}

static uint32_t digits(struct spw_grammar *g, uint32_t min, uint32_t max)
{
    return spw_node_repeat(g, digit(g, 0, 9), min, max);
}

/* Texts of n digits, from a to b. */
static uint32_t same_length(struct spw_grammar *g, uint64_t a, uint64_t b, unsigned n)
{
    uint64_t power = 1, parts_from, parts_to;
    uint32_t parts[3], n_parts = 0;
    for (unsigned i = 1; i < n; i++)
        power *= 10;
    if (n == 1)
        return digit(g, (unsigned)a, (unsigned)b);
    parts_from = a / power, parts_to = b / power;
    if (parts_from == parts_to)
        return SPW_SEQUENCE(g, digit(g, (unsigned)parts_from, (unsigned)parts_from),
                            same_length(g, a % power, b % power, n - 1));
    if (a % power) {
        parts[n_parts++] = SPW_SEQUENCE(g, digit(g, (unsigned)parts_from, (unsigned)parts_from),
                                        same_length(g, a % power, power - 1, n - 1));
        parts_from++;
    }
    if (b % power != power - 1) {
        parts[n_parts++] = SPW_SEQUENCE(g, digit(g, (unsigned)parts_to, (unsigned)parts_to),
                                        same_length(g, 0, b % power, n - 1));
        parts_to--;
    }
    if (parts_from <= parts_to)
        parts[n_parts++] = SPW_SEQUENCE(g, digit(g, (unsigned)parts_from, (unsigned)parts_to),
                                        digits(g, n - 1, n - 1));
    return spw_node_list(g, SPW_NODE_CHOICE, parts, n_parts);
}

/* Whole numbers from a to b without zeros in front. a > b: none: SPW_NODE_CHOICE of nothing. */
static uint32_t whole(struct spw_grammar *g, uint64_t a, uint64_t b)
{
    uint32_t parts[20], n_parts = 0;
    uint64_t first = 0, last = 9; /* of n digits */
    for (unsigned n = 1; first <= b && n <= 16; n++) {
        const uint64_t from = a > first ? a : first, to = b < last ? b : last;
        if (from <= to)
            parts[n_parts++] = same_length(g, from, to, n);
        first = last + 1;
        last = last * 10 + 9;
    }
    return spw_node_list(g, SPW_NODE_CHOICE, parts, n_parts);
}

/* What lies between two magnitudes. */
struct span {
    uint64_t a, b;
    bool above, below; /* a, b itself is excluded */
};

/* The numbers of the bounds with or without a minus: false: there are none. */
static bool span_of(const struct spw_bounds *b, bool minus, struct span *out)
{
    const int64_t limit = (int64_t)most;
    const int64_t low = b->has_min ? b->min : -limit, high = b->has_max ? b->max : limit;
    int64_t from = minus ? -high : low, to = minus ? -low : high;
    bool above = minus ? b->below : b->above, below = minus ? b->above : b->below;
    if (to < 0 || from > limit || (to == 0 && below))
        return false;
    above = above && from >= 0;
    *out = (struct span){from < 0 ? 0 : (uint64_t)from, (uint64_t)(to > limit ? limit : to), above,
                         below && to <= limit};
    return true;
}

/* Both signs. `magnitude` makes the numbers of a span. Minus zero is written only with a fraction.
 */
static uint32_t with_sign(struct spw_grammar *g, const struct spw_bounds *b,
                          uint32_t (*magnitude)(struct spw_grammar *g, const struct span *s))
{
    struct span s;
    uint32_t parts[2], n = 0;
    if (span_of(b, false, &s))
        parts[n++] = magnitude(g, &s);
    if (span_of(b, true, &s)) {
        s.above |= !s.a;
        parts[n++] = SPW_SEQUENCE(g, spw_node_byte(g, '-'), magnitude(g, &s));
    }
    return spw_node_list(g, SPW_NODE_CHOICE, parts, n);
}

static uint32_t integer_magnitude(struct spw_grammar *g, const struct span *s)
{
    const uint64_t a = s->a + s->above;
    return s->b < s->below || a > s->b - s->below ? spw_node_list(g, SPW_NODE_CHOICE, NULL, 0)
                                                  : whole(g, a, s->b - s->below);
}

uint32_t spw_node_integer(struct spw_grammar *g, const struct spw_bounds *b)
{
    return with_sign(g, b, integer_magnitude);
}

/* A point and at most `most_digits` digits; `not_zero`: they are not all zeros. */
static uint32_t fraction(struct spw_grammar *g, bool not_zero, uint32_t most_digits)
{
    uint32_t parts[16], n = 0;
    if (!not_zero)
        return SPW_SEQUENCE(g, spw_node_byte(g, '.'), digits(g, 1, most_digits));
    for (uint32_t zeros = 0; zeros < most_digits && zeros < 16; zeros++)
        parts[n++] = SPW_SEQUENCE(g, spw_node_repeat(g, spw_node_byte(g, '0'), zeros, zeros),
                                  digit(g, 1, 9), digits(g, 0, most_digits - zeros - 1));
    return SPW_SEQUENCE(g, spw_node_byte(g, '.'), spw_node_list(g, SPW_NODE_CHOICE, parts, n));
}

/* Digits behind the point that keep a number beside the excluded bound `at` apart from the bound
 * as a double, which holds 15 digits. 0: none does. */
static uint32_t digits_beside(uint64_t at, bool excluded)
{
    uint32_t n = 15;
    if (!excluded)
        return 16;
    for (; at && n; at /= 10)
        n--;
    return n;
}

static uint32_t maybe_fraction(struct spw_grammar *g, uint32_t most_digits)
{
    return most_digits ? spw_node_maybe(g, fraction(g, false, most_digits)) : 0;
}

static uint32_t number_magnitude(struct spw_grammar *g, const struct span *s)
{
    uint32_t parts[5], n = 0;
    const uint32_t zeros =
        SPW_SEQUENCE(g, spw_node_byte(g, '.'), spw_node_repeat(g, spw_node_byte(g, '0'), 1, 16));
    const bool is_narrow = s->b <= s->a + 1; /* a is beside both bounds */
    const uint32_t low = digits_beside(s->a, s->above), high = digits_beside(s->b, s->below),
                   first = is_narrow && high < low ? high : low;
    if (s->b > s->a + 2)
        parts[n++] = SPW_SEQUENCE(g, whole(g, s->a + 1, s->b - 2), maybe_fraction(g, 16));
    if (!is_narrow)
        parts[n++] = SPW_SEQUENCE(g, whole(g, s->b - 1, s->b - 1), maybe_fraction(g, high));
    if (s->a < s->b && !s->above)
        parts[n++] = SPW_SEQUENCE(g, whole(g, s->a, s->a), maybe_fraction(g, first));
    if (s->a < s->b && s->above && first)
        parts[n++] = SPW_SEQUENCE(g, whole(g, s->a, s->a), fraction(g, true, first));
    if (!s->below && !(s->above && s->a == s->b))
        parts[n++] = SPW_SEQUENCE(g, whole(g, s->b, s->b), spw_node_maybe(g, zeros));
    return spw_node_list(g, SPW_NODE_CHOICE, parts, n);
}

uint32_t spw_node_number(struct spw_grammar *g, const struct spw_bounds *b)
{
    if (b->has_min || b->has_max)
        return with_sign(g, b, number_magnitude);
    struct spw_byte_set e = {0}, sign = {0};
    e.bits['e' / 64] |= UINT64_C(1) << 'e' % 64;
    e.bits['E' / 64] |= UINT64_C(1) << 'E' % 64;
    sign.bits['+' / 64] |= UINT64_C(1) << '+' % 64;
    sign.bits['-' / 64] |= UINT64_C(1) << '-' % 64;
    const uint32_t exponent = SPW_SEQUENCE(
        g, spw_node_set(g, &e), spw_node_maybe(g, spw_node_set(g, &sign)), digits(g, 1, 2));
    return SPW_SEQUENCE(g, spw_node_maybe(g, spw_node_byte(g, '-')), whole(g, 0, most),
                        maybe_fraction(g, 16), spw_node_maybe(g, exponent));
}
