/* A template's text as tokens, with jinja2's rules for white space around tags: see jinja_impl.h.
 */
#include "model/text/jinja/jinja_impl.h"

#include <stdlib.h>
#include <utf8proc.h>

struct lexer {
    const struct spw_jj_source *source;
    struct spw_jj_tokens *out;
    const char *at, *end;
    uint32_t line;
    bool line_starting; /* what was matched last ended a line */
    char open[256];     /* brackets not closed yet */
    size_t n_open;
};

static int push(struct lexer *x, struct spw_jj_token token)
{
    struct spw_jj_tokens *t = x->out;
    if (t->n == t->room) {
        size_t room = t->room ? t->room * 2 : 256;
        struct spw_jj_token *grown = spw_realloc(t->at, room * sizeof *grown);
        if (!grown)
            return spw_fail(x->source->err, -ENOMEM, "%s: out of memory", x->source->name);
        t->at = grown;
        t->room = room;
    }
    if (!token.line)
        token.line = x->line;
    t->at[t->n++] = token;
    return 0;
}

static bool looking_at(const struct lexer *x, const char *text)
{
    size_t n = strlen(text);
    return (size_t)(x->end - x->at) >= n && !memcmp(x->at, text, n);
}

/* Moves on, counting lines. */
static void consume(struct lexer *x, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        x->line += x->at[i] == '\n';
    if (bytes)
        x->line_starting = x->at[bytes - 1] == '\n';
    x->at += bytes;
}

static size_t space_bytes(const char *at, const char *end)
{
    const char *p = at;
    size_t n;
    while (p < end && spw_jj_is_space(spw_jj_decode(p, end, &n)))
        p += n;
    return (size_t)(p - at);
}

/* The end of a tag, "%}" and the like: its length with the white space it swallows, 0 if none. */
static size_t tag_end(const struct lexer *x, const char *mark, bool block)
{
    const char *p = x->at;
    if (p == x->end)
        return 0;
    char sign = *p == '-' || (*p == '+' && block) ? *p : 0;
    p += sign != 0;
    if ((size_t)(x->end - p) < 2 || memcmp(p, mark, 2) != 0)
        return 0;
    p += 2;
    if (sign == '-')
        p += space_bytes(p, x->end);
    else if (!sign && block && p < x->end && *p == '\n')
        p++;
    return (size_t)(p - x->at);
}

/* The text before a tag that has this sign. `block`: lstrip_blocks applies. */
static int push_data(struct lexer *x, size_t bytes, char sign, bool block)
{
    const char *at = x->at;
    size_t keep = bytes;
    uint32_t line = x->line;
    if (sign == '-') {
        spw_jj_strip(&at, &keep, NULL, false, true);
    } else if (sign != '+' && block) {
        size_t start = bytes;
        while (start > 0 && at[start - 1] != '\n')
            start--;
        if ((start > 0 || x->line_starting) && space_bytes(at + start, at + bytes) == bytes - start)
            keep = start;
    }
    consume(x, bytes);
    if (!keep)
        return 0;
    return push(
        x, (struct spw_jj_token){.type = SPW_JJ_T_DATA, .line = line, .at = at, .bytes = keep});
}

/* The length of `{% word` with any sign and white space, 0 if it is not that. */
static size_t tag_word(const char *at, const char *end, const char *word, char *sign)
{
    const char *p = at;
    size_t n = strlen(word);
    if (end - p < 2 || memcmp(p, "{%", 2) != 0)
        return 0;
    p += 2;
    *sign = p < end && (*p == '-' || *p == '+') ? *p : 0;
    p += *sign != 0;
    p += space_bytes(p, end);
    if ((size_t)(end - p) < n || memcmp(p, word, n) != 0)
        return 0;
    p += n;
    return (size_t)(p + space_bytes(p, end) - at);
}

/* `{% raw %}`, of which `begin` bytes (without the end of the tag) lie ahead. 1: done; 0: no raw.
 */
static int lex_raw(struct lexer *x, size_t begin)
{
    uint32_t line = x->line;
    const char *p = x->at + begin;
    if (x->end - p >= 3 && !memcmp(p, "-%}", 3))
        p += 3 + space_bytes(p + 3, x->end);
    else if (x->end - p >= 2 && !memcmp(p, "%}", 2))
        p += 2;
    else
        return 0;
    consume(x, (size_t)(p - x->at));
    for (p = x->at; p < x->end; p++) {
        char sign = 0;
        size_t n = *p == '{' ? tag_word(p, x->end, "endraw", &sign) : 0;
        struct lexer ahead = *x;
        ahead.at = p + n;
        size_t close = n ? tag_end(&ahead, "%}", true) : 0;
        if (!close)
            continue;
        SPW_TRY(push_data(x, (size_t)(p - x->at), sign, true));
        consume(x, n + close);
        return 1;
    }
    return spw_jj_syntax(x->source, line, "found the end of the template, expected {%% endraw %%}");
}

static int lex_comment(struct lexer *x)
{
    uint32_t line = x->line;
    for (const char *p = x->at; p < x->end; p++) {
        struct lexer ahead = *x;
        ahead.at = p;
        size_t n = *p == '#' || *p == '-' || *p == '+' ? tag_end(&ahead, "#}", true) : 0;
        if (!n)
            continue;
        consume(x, (size_t)(p - x->at) + n);
        return 0;
    }
    return spw_jj_syntax(x->source, line, "found the end of the template, expected #}");
}

/* ---- inside a tag ---- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static const char *skip_digits(const char *p, const char *end)
{
    while (p < end && is_digit(*p))
        p++;
    return p;
}

static int digit_value(char c)
{
    if (is_digit(c))
        return c - '0';
    char lower = (char)(c | 0x20);
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : 99;
}

static int push_integer(struct lexer *x, const char *end)
{
    int64_t value = 0;
    for (const char *p = x->at; p < end; p++)
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, *p - '0', &value))
            return spw_jj_syntax(x->source, x->line,
                                 "found an integer of more than 64 bits, expected a smaller one");
    SPW_TRY(push(x, (struct spw_jj_token){.type = SPW_JJ_T_INTEGER, .integer = value}));
    consume(x, (size_t)(end - x->at));
    return 0;
}

static int push_float(struct lexer *x, const char *end)
{
    char text[64];
    size_t n = 0;
    for (const char *p = x->at; p < end; p++) {
        text[n++] = *p;
        if (n == sizeof text)
            return spw_jj_syntax(x->source, x->line, "found a number of more than 63 digits");
    }
    text[n] = 0;
    SPW_TRY(push(x, (struct spw_jj_token){.type = SPW_JJ_T_FLOAT, .number = strtod(text, NULL)}));
    consume(x, (size_t)(end - x->at));
    return 0;
}

static int lex_number(struct lexer *x)
{
    const char *p = x->at, *end = x->end, *digits = skip_digits(p, end), *fraction = digits;
    bool after_dot = x->out->n && x->out->at[x->out->n - 1].type == '.' && p[-1] == '.';
    if (digits + 1 < end && *digits == '.' && is_digit(digits[1]))
        fraction = skip_digits(digits + 1, end);
    const char *e = fraction;
    if (e < end && (*e == 'e' || *e == 'E')) {
        const char *power = e + 1;
        power += power < end && (*power == '+' || *power == '-');
        if (power < end && is_digit(*power))
            e = skip_digits(power, end);
    }
    if (e > digits && !after_dot)
        return push_float(x, e);
    if (*p == '0') /* no number begins with a zero but zero itself */
        for (digits = p + 1; digits < end && *digits == '0';)
            digits++;
    return push_integer(x, digits);
}

/* One escape of Python's "unicode-escape" after the backslash at p[-1]. Returns what follows it. */
static int unescape(struct lexer *x, const char **at, const char *end, char *out, size_t *n)
{
    static const char plain[] = "\\\\''\"\"a\ab\bf\fn\nr\rt\tv\v";
    const char *p = *at;
    char c = *p++;
    uint32_t value = 0;
    int wanted = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    *at = p;
    if (c == '\n')
        return 0;
    for (size_t i = 0; i + 1 < sizeof plain; i += 2)
        if (plain[i] == c) {
            out[(*n)++] = plain[i + 1];
            return 0;
        }
    if (c >= '0' && c <= '7') {
        value = (uint32_t)(c - '0');
        for (int i = 0; i < 2 && p < end && *p >= '0' && *p <= '7'; i++)
            value = value * 8 + (uint32_t)(*p++ - '0');
    } else if (wanted) {
        for (int i = 0; i < wanted; i++, p++) {
            if (p >= end || digit_value(*p) > 15)
                return spw_jj_syntax(x->source, x->line, "found a \\%c of less than %d digits", c,
                                     wanted);
            value = value * 16 + (uint32_t)digit_value(*p);
        }
    } else if (c == 'N') {
        return spw_jj_syntax(x->source, x->line, "found \\N in a string: write the character");
    } else {
        out[(*n)++] = '\\';
        *at = p - 1;
        return 0;
    }
    if (value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff))
        return spw_jj_syntax(x->source, x->line, "found \\%c%x in a string, which is no character",
                             c, value);
    *n += spw_jj_encode(value, out + *n);
    *at = p;
    return 0;
}

static int lex_string(struct lexer *x)
{
    const char quote = *x->at, *start = x->at + 1, *p = start;
    while (p < x->end && *p != quote)
        p += *p == '\\' && p + 1 < x->end ? 2 : 1;
    if (p >= x->end)
        return spw_jj_syntax(x->source, x->line, "found a string that does not end");
    char *text = spw_jj_take_text(x->source->arena, (size_t)(p - start) + 1);
    if (!text)
        return spw_fail(x->source->err, -ENOMEM, "%s: out of memory", x->source->name);
    size_t n = 0;
    for (const char *q = start; q < p;) {
        if (*q != '\\') {
            text[n++] = *q++;
            continue;
        }
        q++;
        SPW_TRY(unescape(x, &q, p, text, &n));
    }
    SPW_TRY(push(x, (struct spw_jj_token){.type = SPW_JJ_T_STRING, .at = text, .bytes = n}));
    consume(x, (size_t)(p + 1 - x->at));
    return 0;
}

/* The bytes of a name: letters, digits, '_', and letters of other scripts. */
static size_t name_bytes(const char *at, const char *end)
{
    const char *p = at;
    while (p < end) {
        size_t n;
        uint32_t c = spw_jj_decode(p, end, &n);
        bool letter = c == '_' || (c < 128 && ((c | 0x20) >= 'a' && (c | 0x20) <= 'z'));
        if (c >= 128) {
            utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
            letter = k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_MC;
        }
        if (!letter && !(p > at && c < 128 && is_digit((char)c)))
            break;
        p += n;
    }
    return (size_t)(p - at);
}

static int track_bracket(struct lexer *x, char c)
{
    if (c == '(' || c == '[' || c == '{') {
        if (x->n_open == sizeof x->open)
            return spw_jj_syntax(x->source, x->line, "found more than %zu brackets in each other",
                                 sizeof x->open);
        x->open[x->n_open++] = (char)(c == '(' ? ')' : c == '[' ? ']' : '}');
    } else if (c == ')' || c == ']' || c == '}') {
        if (!x->n_open)
            return spw_jj_syntax(x->source, x->line, "found '%c', which closes nothing", c);
        char expected = x->open[--x->n_open];
        if (expected != c)
            return spw_jj_syntax(x->source, x->line, "found '%c', expected '%c'", c, expected);
    }
    return 0;
}

static int lex_operator(struct lexer *x)
{
    static const struct {
        char text[3];
        int type;
    } pairs[] = {{"==", SPW_JJ_T_EQ},
                 {"!=", SPW_JJ_T_NE},
                 {"<=", SPW_JJ_T_LE},
                 {">=", SPW_JJ_T_GE},
                 {"//", SPW_JJ_T_FLOORDIV}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (looking_at(x, pairs[i].text)) {
            SPW_TRY(push(x, (struct spw_jj_token){.type = pairs[i].type, .at = x->at, .bytes = 2}));
            consume(x, 2);
            return 0;
        }
    if (!*x->at || !strchr("+-/*%~[](){}<>=.:|,;", *x->at)) {
        size_t n;
        spw_jj_decode(x->at, x->end, &n);
        return spw_jj_syntax(x->source, x->line, "found '%.*s', which no expression has", (int)n,
                             x->at);
    }
    SPW_TRY(track_bracket(x, *x->at));
    SPW_TRY(push(x, (struct spw_jj_token){.type = *x->at, .at = x->at, .bytes = 1}));
    consume(x, 1);
    return 0;
}

static int lex_tag(struct lexer *x, bool block)
{
    const char *mark = block ? "%}" : "}}";
    uint32_t line = x->line;
    x->n_open = 0;
    while (x->at < x->end) {
        size_t n = x->n_open ? 0 : tag_end(x, mark, block);
        if (n) {
            SPW_TRY(push(x, (struct spw_jj_token){.type = block ? SPW_JJ_T_BLOCK_END
                                                                : SPW_JJ_T_VARIABLE_END}));
            consume(x, n);
            return 0;
        }
        if ((n = space_bytes(x->at, x->end))) {
            consume(x, n);
        } else if (is_digit(*x->at)) {
            SPW_TRY(lex_number(x));
        } else if (*x->at == '"' || *x->at == '\'') {
            SPW_TRY(lex_string(x));
        } else if ((n = name_bytes(x->at, x->end))) {
            SPW_TRY(push(x, (struct spw_jj_token){.type = SPW_JJ_T_NAME, .at = x->at, .bytes = n}));
            consume(x, n);
        } else {
            SPW_TRY(lex_operator(x));
        }
    }
    return spw_jj_syntax(x->source, line, "found the end of the template, expected %s", mark);
}

/* Text up to a tag, and the tag. */
static int lex_part(struct lexer *x)
{
    const char *p = x->at;
    while (p < x->end && !(*p == '{' && p + 1 < x->end && strchr("{%#", p[1]) && p[1]))
        p++;
    if (p == x->end)
        return push_data(x, (size_t)(p - x->at), '+', false);
    char kind = p[1], sign = 0;
    if (p + 2 < x->end && (p[2] == '-' || p[2] == '+'))
        sign = p[2];
    SPW_TRY(push_data(x, (size_t)(p - x->at), sign, kind != '{'));
    char raw_sign;
    size_t raw = kind == '%' ? tag_word(x->at, x->end, "raw", &raw_sign) : 0;
    if (raw) {
        int rc = lex_raw(x, raw);
        if (rc)
            return rc < 0 ? rc : 0;
    }
    if (kind != '#')
        SPW_TRY(push(x, (struct spw_jj_token){.type = kind == '%' ? SPW_JJ_T_BLOCK_BEGIN
                                                                  : SPW_JJ_T_VARIABLE_BEGIN}));
    consume(x, sign ? 3 : 2);
    return kind == '#' ? lex_comment(x) : lex_tag(x, kind == '%');
}

int spw_jj_lex(const struct spw_jj_source *s, const char *text, size_t bytes,
               struct spw_jj_tokens *out)
{
    struct lexer x = {.source = s, .out = out, .line = 1, .line_starting = true};
    char *copy = spw_jj_take_text(s->arena, bytes + 1); /* with one kind of line end */
    size_t n = 0;
    if (!copy)
        return spw_fail(s->err, -ENOMEM, "%s: out of memory", s->name);
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == '\n' && i > 0 && text[i - 1] == '\r')
            continue;
        copy[n++] = text[i] == '\r' ? '\n' : text[i];
    }
    if (n && copy[n - 1] == '\n')
        n--;
    x.at = copy;
    x.end = copy + n;
    for (size_t i = 0; i < n;) {
        utf8proc_int32_t c;
        utf8proc_ssize_t step =
            utf8proc_iterate((const utf8proc_uint8_t *)copy + i, (utf8proc_ssize_t)(n - i), &c);
        if (step <= 0)
            return spw_jj_syntax(s, x.line, "found bytes that are not UTF-8");
        x.line += copy[i] == '\n';
        i += (size_t)step;
    }
    x.line = 1;
    while (x.at < x.end)
        SPW_TRY(lex_part(&x));
    return push(&x, (struct spw_jj_token){.type = SPW_JJ_T_END});
}
