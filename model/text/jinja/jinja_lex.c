/* A template's text as tokens, with jinja2's rules for white space around tags: see jinja_impl.h.
 */
#include "model/text/jinja/jinja_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <utf8proc.h>

struct lexer {
    struct run *run; /* its line is the line of `at` */
    struct tokens *out;
    const char *at, *end;
    bool line_starting; /* what was matched last ended a line */
    char open[256];     /* the ends of the brackets not closed yet */
    size_t n_open;
};

/* Moves on, counting lines. */
static void consume(struct lexer *x, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        x->run->line += x->at[i] == '\n';
    if (bytes)
        x->line_starting = x->at[bytes - 1] == '\n';
    x->at += bytes;
}

/* Adds a token, which begins here, and moves on by `bytes`. */
static void push(struct lexer *x, struct token token, size_t bytes)
{
    struct tokens *t = x->out;
    if (spw_grow(&t->at, &t->room, t->n + 1, sizeof *t->at))
        spw_jinja_stop(x->run, -ENOMEM, "out of memory");
    token.line = x->run->line;
    t->at[t->n++] = token;
    consume(x, bytes);
}

/* A token that is the next `bytes` of the text. */
static void push_text(struct lexer *x, int type, size_t bytes)
{
    push(x, (struct token){.type = type, .at = x->at, .bytes = bytes}, bytes);
}

static bool begins(const char *at, const char *text)
{
    return !strncmp(at, text, strlen(text));
}

static size_t space_bytes(const char *at, const char *end)
{
    const char *p = at;
    size_t n;
    while (p < end && spw_jinja_is_space(spw_jinja_decode(p, end, &n)))
        p += n;
    return (size_t)(p - at);
}

/* The end of a tag, "%}" and the like: its length with the white space it swallows, 0 if none. */
static size_t tag_end(const char *at, const char *end, const char *mark, bool block)
{
    char sign = *at == '-' || (*at == '+' && block) ? *at : 0;
    const char *p = at + (sign != 0);
    if (!begins(p, mark))
        return 0;
    p += 2;
    if (sign == '-')
        p += space_bytes(p, end);
    else if (!sign && block && *p == '\n')
        p++;
    return (size_t)(p - at);
}

/* The text before a tag that has this sign. `block`: lstrip_blocks applies. */
static void push_data(struct lexer *x, size_t bytes, char sign, bool block)
{
    const char *at = x->at;
    size_t keep = bytes, start = bytes;
    if (sign == '-') {
        spw_jinja_strip(&at, &keep, NULL, false, true);
    } else if (sign != '+' && block) {
        while (start > 0 && at[start - 1] != '\n')
            start--;
        if ((start > 0 || x->line_starting) && space_bytes(at + start, at + bytes) == bytes - start)
            keep = start;
    }
    if (keep)
        push(x, (struct token){.type = SPW_JINJA_T_DATA, .at = at, .bytes = keep}, 0);
    consume(x, bytes);
}

/* The length of `{% word` with any sign and white space, 0 if it is not that. */
static size_t tag_word(const char *at, const char *end, const char *word, char *sign)
{
    if (!begins(at, "{%"))
        return 0;
    const char *p = at + 2;
    *sign = *p == '-' || *p == '+' ? *p : 0;
    p += *sign != 0;
    p += space_bytes(p, end);
    if (!begins(p, word))
        return 0;
    p += strlen(word);
    return (size_t)(p + space_bytes(p, end) - at);
}

_Noreturn static void not_closed(struct lexer *x, uint32_t line, const char *expected)
{
    x->run->line = line;
    spw_jinja_fail(x->run, "found the end of the template, expected %s", expected);
}

/* `{% raw %}`, of which `begin` bytes (without the end of the tag) lie ahead; false: no raw. */
static bool lex_raw(struct lexer *x, size_t begin)
{
    uint32_t line = x->run->line;
    size_t close = tag_end(x->at + begin, x->end, "%}", false);
    if (!close)
        return false;
    consume(x, begin + close);
    for (const char *p = x->at; p < x->end; p++) {
        char sign = 0;
        size_t n = *p == '{' ? tag_word(p, x->end, "endraw", &sign) : 0;
        close = n ? tag_end(p + n, x->end, "%}", true) : 0;
        if (!close)
            continue;
        push_data(x, (size_t)(p - x->at), sign, true);
        consume(x, n + close);
        return true;
    }
    not_closed(x, line, "{% endraw %}");
}

static void lex_comment(struct lexer *x)
{
    for (const char *p = x->at; p < x->end; p++) {
        size_t n = tag_end(p, x->end, "#}", true);
        if (n) {
            consume(x, (size_t)(p - x->at) + n);
            return;
        }
    }
    not_closed(x, x->run->line, "#}");
}

/* ---- inside a tag ---- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static int digit_value(char c)
{
    if (is_digit(c))
        return c - '0';
    char lower = (char)(c | 0x20);
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : 99;
}

/* An integer, or a number with a fraction or a power; zero is all that begins with a 0. */
static void lex_number(struct lexer *x)
{
    static const char decimal[] = "0123456789";
    const char *p = x->at, *digits = p + strspn(p, decimal), *e = digits;
    bool after_dot = x->out->n && x->out->at[x->out->n - 1].type == '.' && p[-1] == '.';
    if (*e == '.' && is_digit(e[1]))
        e += 1 + strspn(e + 1, decimal);
    if (*e == 'e' || *e == 'E') {
        const char *power = e + 1;
        power += *power == '-' || *power == '+';
        if (is_digit(*power))
            e = power + strspn(power, decimal);
    }
    bool whole = e == digits || after_dot;
    if (whole && *p == '0')
        digits = p + strspn(p, "0");
    size_t n = (size_t)((whole ? digits : e) - p);
    char text[64] = "";
    if (n >= sizeof text)
        spw_jinja_fail(x->run, "found a number of more than 63 digits");
    memcpy(text, p, n);
    errno = 0;
    struct value number =
        whole ? int_value(strtoll(text, NULL, 10)) : float_value(strtod(text, NULL));
    if (whole && errno == ERANGE)
        spw_jinja_fail(x->run, "found an integer of more than 64 bits, expected a smaller one");
    push(x,
         (struct token){.type = whole ? SPW_JINJA_T_INTEGER : SPW_JINJA_T_FLOAT, .number = number},
         n);
}

/* The number of at most `most` digits of a base at *p; -1 when there are fewer than `least`. */
static int64_t escape_number(const char **p, const char *end, int base, int least, int most)
{
    int64_t value = 0;
    int n = 0;
    for (; n < most && *p < end && digit_value(**p) < base; n++)
        value = value * base + digit_value(*(*p)++);
    return n < least ? -1 : value;
}

/* One escape of Python's "unicode-escape" after the backslash at (*at)[-1]; moves *at behind it. */
static size_t unescape(struct lexer *x, const char **at, const char *end, char *out)
{
    static const char plain[] = "\\\\''\"\"a\ab\bf\fn\nr\rt\tv\v";
    char c = *(*at)++;
    int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    int64_t value;
    if (c == '\n')
        return 0;
    for (size_t i = 0; i + 1 < sizeof plain; i += 2)
        if (plain[i] == c) {
            *out = plain[i + 1];
            return 1;
        }
    if (c == 'N')
        spw_jinja_fail(x->run, "found \\N in a string: write the character");
    if (c >= '0' && c <= '7')
        --*at;
    else if (!digits) { /* no escape: the backslash is one */
        --*at;
        *out = '\\';
        return 1;
    }
    value = escape_number(at, end, digits ? 16 : 8, digits, digits ? digits : 3);
    if (value < 0)
        spw_jinja_fail(x->run, "found a \\%c of less than %d digits", c, digits);
    if (value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff))
        spw_jinja_fail(x->run, "found \\%c%x in a string, which is no character", c,
                       (unsigned)value);
    return (size_t)utf8proc_encode_char((utf8proc_int32_t)value, (utf8proc_uint8_t *)out);
}

static void lex_string(struct lexer *x)
{
    const char quote = *x->at, *start = x->at + 1, *p = start;
    while (p < x->end && *p != quote)
        p += *p == '\\' && p + 1 < x->end ? 2 : 1;
    if (p >= x->end)
        spw_jinja_fail(x->run, "found a string that does not end");
    char *text = spw_jinja_take_text(x->run, (size_t)(p - start) + 1);
    size_t n = 0;
    for (const char *q = start; q < p;) {
        if (*q++ == '\\')
            n += unescape(x, &q, p, text + n);
        else
            text[n++] = q[-1];
    }
    push(x, (struct token){.type = SPW_JINJA_T_STRING, .at = text, .bytes = n},
         (size_t)(p + 1 - x->at));
}

/* The bytes of a name: letters, digits, '_', and letters of other scripts. */
static size_t name_bytes(const char *at, const char *end)
{
    const char *p = at;
    size_t n;
    for (; p < end; p += n) {
        uint32_t c = spw_jinja_decode(p, end, &n);
        bool letter = c == '_' || (c < 128 && ((c | 0x20) >= 'a' && (c | 0x20) <= 'z'));
        if (c >= 128) {
            utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
            letter = k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_MC;
        }
        if (!letter && !(p > at && c < 128 && is_digit((char)c)))
            break;
    }
    return (size_t)(p - at);
}

static void track_bracket(struct lexer *x, char c)
{
    if (c == '(' || c == '[' || c == '{') {
        if (x->n_open == sizeof x->open)
            spw_jinja_fail(x->run, "found more than %zu brackets in each other", sizeof x->open);
        x->open[x->n_open++] = (char)(c == '(' ? ')' : c == '[' ? ']' : '}');
    } else if (c == ')' || c == ']' || c == '}') {
        if (!x->n_open)
            spw_jinja_fail(x->run, "found '%c', which closes nothing", c);
        if (x->open[--x->n_open] != c)
            spw_jinja_fail(x->run, "found '%c', expected '%c'", c, x->open[x->n_open]);
    }
}

static void lex_operator(struct lexer *x)
{
    static const char pairs[][3] = {"==", "!=", "<=", ">=", "//"}; /* as the tokens from EQ on */
    size_t n;
    for (int i = 0; i < (int)(sizeof pairs / sizeof *pairs); i++)
        if (begins(x->at, pairs[i])) {
            push_text(x, SPW_JINJA_T_EQ + i, 2);
            return;
        }
    spw_jinja_decode(x->at, x->end, &n);
    if (!*x->at || !strchr("+-/*%~[](){}<>=.:|,;", *x->at))
        spw_jinja_fail(x->run, "found '%.*s', which no expression has", (int)n, x->at);
    track_bracket(x, *x->at);
    push_text(x, *x->at, 1);
}

static void lex_tag(struct lexer *x, bool block)
{
    const char *mark = block ? "%}" : "}}";
    uint32_t line = x->run->line;
    x->n_open = 0;
    while (x->at < x->end) {
        size_t n = x->n_open ? 0 : tag_end(x->at, x->end, mark, block);
        if (n) {
            push_text(x, block ? SPW_JINJA_T_BLOCK_END : SPW_JINJA_T_VARIABLE_END, n);
            return;
        }
        if ((n = space_bytes(x->at, x->end)))
            consume(x, n);
        else if (is_digit(*x->at))
            lex_number(x);
        else if (*x->at == '"' || *x->at == '\'')
            lex_string(x);
        else if ((n = name_bytes(x->at, x->end)))
            push_text(x, SPW_JINJA_T_NAME, n);
        else
            lex_operator(x);
    }
    not_closed(x, line, mark);
}

/* Text up to a tag, and the tag. */
static void lex_part(struct lexer *x)
{
    const char *p = x->at;
    while (p < x->end && !(*p == '{' && (p[1] == '%' || p[1] == '{' || p[1] == '#')))
        p++;
    if (p == x->end) {
        push_data(x, (size_t)(p - x->at), '+', false);
        return;
    }
    char kind = p[1], sign = p[2] == '-' || p[2] == '+' ? p[2] : 0, raw_sign;
    push_data(x, (size_t)(p - x->at), sign, kind != '{');
    size_t raw = tag_word(x->at, x->end, "raw", &raw_sign);
    if (raw && lex_raw(x, raw))
        return;
    if (kind == '#') {
        consume(x, sign ? 3 : 2);
        lex_comment(x);
        return;
    }
    push_text(x, kind == '%' ? SPW_JINJA_T_BLOCK_BEGIN : SPW_JINJA_T_VARIABLE_BEGIN, sign ? 3 : 2);
    lex_tag(x, kind == '%');
}

void spw_jinja_lex(struct run *r, const char *text, size_t bytes, struct tokens *out)
{
    struct lexer x = {.run = r, .out = out, .line_starting = true};
    char *copy = spw_jinja_take_text(r, bytes + 1); /* with one kind of line end */
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == '\n' && i > 0 && text[i - 1] == '\r')
            continue;
        copy[n++] = text[i] == '\r' ? '\n' : text[i];
    }
    if (n && copy[n - 1] == '\n')
        n--;
    copy[n] = 0; /* so that looking a byte or two ahead is safe */
    x.at = copy;
    x.end = copy + n;
    for (size_t i = 0; i < n;) {
        utf8proc_int32_t c;
        utf8proc_ssize_t step =
            utf8proc_iterate((const utf8proc_uint8_t *)copy + i, (utf8proc_ssize_t)(n - i), &c);
        if (step <= 0)
            spw_jinja_fail(r, "found bytes that are not UTF-8");
        r->line += copy[i] == '\n';
        i += (size_t)step;
    }
    r->line = 1;
    while (x.at < x.end)
        lex_part(&x);
    push(&x, (struct token){.type = SPW_JINJA_T_END}, 0);
}
