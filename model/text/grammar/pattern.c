/* Regular expressions of JSON schema (ECMA 262) inside of a JSON text: see nodes.h.
 *
 *   expression  sequence | sequence ...
 *   sequence    atom with * + ? {m} {m,} {m,n}, one behind the other
 *   atom        a character, ., [...], (...), (?:...), \d \w \s \D \W \S, an escape, ^ and $ at the
 *               ends of a branch
 *
 * A pattern matches anywhere in the text, so what has no ^ or $ may have any text before or behind
 * it. Look-around, references to groups and \b are refused. */
#include "model/text/grammar/nodes.h"

#include <string.h>
#include <utf8proc.h>

enum { MOST_RANGES = 256, DEEPEST = 32 };

struct chars {
    struct spw_char_range ranges[MOST_RANGES]; /* in order after tidy */
    size_t n;
};

struct reader {
    struct spw_grammar *g;
    const char *pattern, *at;
    const char *where; /* for errors */
    int depth;
};

static const struct spw_char_range all_chars[] = {{0, 0x10FFFF}},
                                   dot[] = {{0, 9}, {11, 12}, {14, 0x2027}, {0x202A, 0x10FFFF}},
                                   digit[] = {{'0', '9'}},
                                   word[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
                                   space[] = {{9, 13},          {' ', ' '},       {0xA0, 0xA0},
                                              {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029},
                                              {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000},
                                              {0xFEFF, 0xFEFF}};

static uint32_t expression(struct reader *r);

static uint32_t refuse(struct reader *r, const char *what)
{
    if (!r->g->rc)
        r->g->rc = spw_fail(r->g->err, -EINVAL, "%s: \"pattern\": %s at character %zu", r->where,
                            what, (size_t)(r->at - r->pattern) + 1);
    return 0;
}

/* ---- sets of characters ---- */

static void add(struct reader *r, struct chars *c, uint32_t first, uint32_t last)
{
    if (c->n == MOST_RANGES)
        refuse(r, "too many ranges");
    else
        c->ranges[c->n++] = (struct spw_char_range){first, last};
}

/* In order, without gaps of none. */
static void tidy(struct chars *c)
{
    size_t n = 0;
    for (size_t i = 1; i < c->n; i++)
        for (size_t k = i; k > 0 && c->ranges[k].first < c->ranges[k - 1].first; k--) {
            const struct spw_char_range swap = c->ranges[k];
            c->ranges[k] = c->ranges[k - 1];
            c->ranges[k - 1] = swap;
        }
    for (size_t i = 0; i < c->n; i++)
        if (n && c->ranges[i].first <= c->ranges[n - 1].last + 1)
            c->ranges[n - 1].last = spw_max_u32(c->ranges[n - 1].last, c->ranges[i].last);
        else
            c->ranges[n++] = c->ranges[i];
    c->n = n;
}

static void invert(struct reader *r, struct chars *c)
{
    struct chars out = {.n = 0};
    uint32_t next = 0;
    tidy(c);
    for (size_t i = 0; i < c->n; i++) {
        if (c->ranges[i].first > next)
            add(r, &out, next, c->ranges[i].first - 1);
        next = c->ranges[i].last + 1;
    }
    if (next <= 0x10FFFF)
        add(r, &out, next, 0x10FFFF);
    *c = out;
}

static void add_class(struct reader *r, struct chars *c, const struct spw_char_range *ranges,
                      size_t n, bool inverted)
{
    struct chars of = {.n = 0};
    for (size_t i = 0; i < n; i++)
        add(r, &of, ranges[i].first, ranges[i].last);
    if (inverted)
        invert(r, &of);
    for (size_t i = 0; i < of.n; i++)
        add(r, c, of.ranges[i].first, of.ranges[i].last);
}

/* A character as it stands; the pattern is UTF-8. */
static uint32_t plain(struct reader *r)
{
    utf8proc_int32_t c;
    const utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)r->at, -1, &c);
    if (n <= 0)
        return refuse(r, "found bytes that are no UTF-8");
    r->at += n;
    return (uint32_t)c;
}

static uint32_t hexadecimal(struct reader *r, int n)
{
    uint32_t value = 0;
    for (int i = 0; i < n; i++, r->at++) {
        static const char digits[] = "0123456789abcdefABCDEF";
        const char *found = *r->at ? strchr(digits, *r->at) : NULL;
        if (!found)
            return refuse(r, "found no hexadecimal digit");
        const uint32_t at = (uint32_t)(found - digits);
        value = value * 16 + (at < 16 ? at : at - 6);
    }
    return value;
}

/* Behind a backslash: one character (true), or a class, which is added to *c. */
static bool escape(struct reader *r, struct chars *c, uint32_t *one)
{
    static const char names[] = "tnvfr0", values[] = "\t\n\v\f\r";
    const char name = *r->at;
    const char *found = name ? strchr(names, name) : NULL;
    const char lower = (char)(name | 0x20);
    if (lower == 'd' || lower == 'w' || lower == 's') {
        r->at++;
        add_class(r, c,
                  lower == 'd'   ? digit
                  : lower == 'w' ? word
                                 : space,
                  lower == 'd'   ? 1
                  : lower == 'w' ? 4
                                 : sizeof space / sizeof *space,
                  name != lower);
        return false;
    }
    *one = 0;
    if (name >= '1' && name <= '9')
        return refuse(r, "found a reference to a group, which is not supported"), true;
    if (name == 'b' || name == 'B' || name == 'p' || name == 'P' || name == 'k' || name == 'c')
        return refuse(r, "found an escape that is not supported"), true;
    if (!name)
        return refuse(r, "found nothing behind a backslash"), true;
    if (name == 'x' || name == 'u') {
        r->at++;
        *one = hexadecimal(r, name == 'x' ? 2 : 4);
        if (*one >= 0xD800 && *one <= 0xDFFF)
            refuse(r, "found half a character");
    } else if (found) {
        r->at++;
        *one = (unsigned char)values[found - names];
    } else {
        *one = plain(r);
    }
    return true;
}

/* Behind the "[". */
static uint32_t bracket(struct reader *r)
{
    struct chars c = {.n = 0};
    const bool inverted = *r->at == '^';
    r->at += inverted;
    while (*r->at && *r->at != ']' && !r->g->rc) {
        uint32_t first, last;
        const bool escaped = *r->at == '\\';
        r->at += escaped;
        if (escaped && *r->at == 'b')
            first = '\b', r->at++;
        else if (escaped ? !escape(r, &c, &first) : !(first = plain(r)) && r->g->rc)
            continue;
        last = first;
        if (r->at[0] == '-' && r->at[1] && r->at[1] != ']') {
            r->at++;
            const bool is_escaped = *r->at == '\\';
            r->at += is_escaped;
            if (is_escaped ? !escape(r, &c, &last) : !(last = plain(r)) && r->g->rc)
                return refuse(r, "found a class at the end of a range");
        }
        if (last < first)
            return refuse(r, "found a range whose end comes before its begin");
        add(r, &c, first, last);
    }
    if (*r->at != ']')
        return refuse(r, "expected ]");
    r->at++;
    if (inverted)
        invert(r, &c);
    tidy(&c);
    return spw_node_json_chars(r->g, c.ranges, c.n);
}

/* ---- atoms ---- */

static uint32_t any_text(struct reader *r)
{
    return spw_node_repeat(r->g, spw_node_json_chars(r->g, all_chars, 1), 0, SPW_REPEAT_ANY);
}

static uint32_t group(struct reader *r)
{
    if (r->at[0] == '?' && r->at[1] != ':')
        return refuse(r, "found look-around or a named group, which is not supported");
    r->at += r->at[0] == '?' ? 2 : 0;
    if (++r->depth > DEEPEST)
        return refuse(r, "found groups that nest too deeply");
    const uint32_t node = expression(r);
    r->depth--;
    if (*r->at != ')')
        return refuse(r, "expected )");
    r->at++;
    return node;
}

static uint32_t atom(struct reader *r)
{
    struct chars c = {.n = 0};
    uint32_t one;
    const char next = *r->at;
    if (next == '^' || next == '$' || next == '*' || next == '+' || next == '?' || next == '{')
        return refuse(r, next == '^' || next == '$' ? "found ^ or $ inside of a branch"
                                                    : "found nothing to repeat");
    if (next == '[' || next == '(' || next == '.' || next == '\\')
        r->at++;
    if (next == '[')
        return bracket(r);
    if (next == '(')
        return group(r);
    if (next == '.')
        return spw_node_json_chars(r->g, dot, sizeof dot / sizeof *dot);
    if (next != '\\')
        one = plain(r);
    else if (!escape(r, &c, &one)) {
        tidy(&c);
        return spw_node_json_chars(r->g, c.ranges, c.n);
    }
    return spw_node_json_chars(r->g, &(struct spw_char_range){one, one}, 1);
}

/* A whole number of at most 4 digits; UINT32_MAX: there is none. */
static uint32_t count(struct reader *r)
{
    uint32_t n = 0;
    int digits = 0;
    for (; *r->at >= '0' && *r->at <= '9' && digits < 5; r->at++, digits++)
        n = n * 10 + (uint32_t)(*r->at - '0');
    return digits ? n : UINT32_MAX;
}

static uint32_t repeated(struct reader *r)
{
    uint32_t node = atom(r), min = 1, max = 1;
    const char next = *r->at;
    if (next == '*' || next == '+' || next == '?') {
        r->at++;
        min = next == '+';
        max = next == '?' ? 1 : SPW_REPEAT_ANY;
    } else if (next == '{') {
        r->at++;
        min = max = count(r);
        if (*r->at == ',') {
            r->at++;
            max = count(r);
        }
        if (*r->at != '}' || min == UINT32_MAX || max < min)
            return refuse(r, "expected {m}, {m,} or {m,n}");
        r->at++;
    } else {
        return node;
    }
    r->at += *r->at == '?'; /* as few as possible: the same texts */
    return spw_node_repeat(r->g, node, min, max);
}

/* ---- sequences ---- */

/* `outside`: the branch is one of the whole pattern, so that other text may stand beside it. */
static uint32_t sequence(struct reader *r, bool outside)
{
    const bool begins = outside && *r->at == '^';
    uint32_t node = begins || !outside ? 0 : any_text(r);
    r->at += begins;
    while (*r->at && *r->at != '|' && *r->at != ')' && !r->g->rc) {
        const bool ends = outside && r->at[0] == '$' && (!r->at[1] || r->at[1] == '|');
        if (ends) {
            r->at++;
            return node;
        }
        const uint32_t next = repeated(r);
        node = SPW_SEQUENCE(r->g, node, next);
    }
    return outside ? SPW_SEQUENCE(r->g, node, any_text(r)) : node;
}

static uint32_t expression(struct reader *r)
{
    const bool outside = r->depth == 0;
    uint32_t node = sequence(r, outside);
    while (*r->at == '|' && !r->g->rc) {
        r->at++;
        const uint32_t other = sequence(r, outside);
        node = SPW_CHOICE(r->g, node, other);
    }
    return node;
}

uint32_t spw_node_pattern(struct spw_grammar *g, const char *pattern, const char *where)
{
    struct reader r = {.g = g, .pattern = pattern, .at = pattern, .where = where};
    const uint32_t node = expression(&r);
    return *r.at && !g->rc ? refuse(&r, "found )") : node;
}
