/* See json.h. The parser takes and refuses what jansson 2.14 takes and refuses (test_json). One
 * difference: jansson skips a NUL byte behind a number or a word. Here a NUL byte is an error. */
#include "base/json.h"

#include "base/grow.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum { MOST_DEPTH = 2048 };

struct parser {
    const char *begin, *at, *end;
    size_t flags;
    int depth;
    char *text; /* the keys around the value that is read, then its text; each ends with a NUL */
    size_t used, capacity;
    const struct spw_json_parts *parts; /* NULL: none */
    bool in_part;
    json_error_t *why;
};

/* ---- errors ---- */

__attribute__((format(printf, 2, 3))) static int fail(const struct parser *p, const char *format,
                                                      ...)
{
    if (!p->why)
        return -EINVAL;
    p->why->line = p->why->column = 1;
    p->why->position = (int)spw_min_u64((uint64_t)(p->at - p->begin), INT32_MAX);
    for (const char *c = p->begin; c < p->at; c++) {
        p->why->line += *c == '\n';
        p->why->column = *c == '\n' ? 1 : p->why->column + ((*c & 0xc0) != 0x80);
    }
    va_list list;
    va_start(list, format);
    vsnprintf(p->why->text, sizeof p->why->text, format, list);
    va_end(list);
    for (char *c = p->why->text; *c; c++) /* a key may have any bytes */
        if ((unsigned char)*c < ' ' || *c == 127)
            *c = '?';
    return -EINVAL;
}

static int refuse(const struct parser *p, const char *expected)
{
    int n = 0;
    if (p->at == p->end)
        return fail(p, "found the end of the text, expected %s", expected);
    while (n < 20 && p->at + n < p->end && p->at[n] > ' ' && p->at[n] < 127 &&
           (n == 0 || !strchr(",:]}[{\"", p->at[n])))
        n++;
    if (!n)
        return fail(p, "found byte 0x%02x, expected %s", (unsigned char)*p->at, expected);
    return fail(p, "found '%.*s', expected %s", n, p->at, expected);
}

/* ---- text ---- */

/* -1 at the end. */
static int peek(struct parser *p)
{
    while (p->at < p->end && spw_is_blank(*p->at))
        p->at++;
    return p->at < p->end ? (unsigned char)*p->at : -1;
}

/* Room for a text of so many bytes and a NUL after the keys. */
static int reserve(struct parser *p, size_t bytes)
{
    return spw_grow(&p->text, &p->capacity, p->used + bytes + 1, 1);
}

/* \u and four digits. */
static int scan_unit(struct parser *p, uint32_t *out)
{
    *out = 0;
    if (p->end - p->at < 6 || p->at[0] != '\\' || p->at[1] != 'u')
        return refuse(p, "\\u and four digits");
    for (int i = 2; i < 6; i++) {
        const char c = p->at[i];
        if (!c || !strchr("0123456789abcdefABCDEF", c))
            return refuse(p, "\\u and four digits");
        *out = *out << 4 | (uint32_t)(c <= '9' ? c - '0' : (c & 7) + 9);
    }
    p->at += 6;
    return 0;
}

static int scan_unicode(struct parser *p, char *to, size_t *n)
{
    uint32_t c, low;
    SPW_TRY(scan_unit(p, &c));
    if (c >= 0xd800 && c < 0xdc00) {
        SPW_TRY(scan_unit(p, &low));
        if (low < 0xdc00 || low > 0xdfff)
            return fail(p, "found half of a character in UTF-16, expected both halves");
        c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
    } else if (c >= 0xdc00 && c < 0xe000) {
        return fail(p, "found half of a character in UTF-16, expected both halves");
    }
    if (!c && !(p->flags & JSON_ALLOW_NUL))
        return fail(p, "found \\u0000, expected a text without it");
    *n += (size_t)utf8proc_encode_char((utf8proc_int32_t)c, (utf8proc_uint8_t *)to + *n);
    return 0;
}

static int scan_escape(struct parser *p, char *to, size_t *n)
{
    static const char from[] = "\"\\/bfnrt", into[] = "\"\\/\b\f\n\r\t";
    if (p->at[1] == 'u')
        return scan_unicode(p, to, n);
    const char *found = p->at[1] ? strchr(from, p->at[1]) : NULL;
    if (!found)
        return refuse(p, "an escape of JSON");
    to[(*n)++] = into[found - from];
    p->at += 2;
    return 0;
}

/* Stores the string at the end of p->text, which has room. The end of the string is known. */
static int scan_characters(struct parser *p, const char *end, size_t *n)
{
    char *to = p->text + p->used;
    *n = 0;
    while (p->at < end) {
        if (*p->at == '\\') {
            SPW_TRY(scan_escape(p, to, n));
            continue;
        }
        if ((signed char)*p->at >= ' ') { /* ASCII; UTF-8 has the highest bit */
            to[(*n)++] = *p->at++;
            continue;
        }
        utf8proc_int32_t c;
        const utf8proc_ssize_t bytes =
            utf8proc_iterate((const utf8proc_uint8_t *)p->at, end - p->at, &c);
        if (bytes < 0)
            return fail(p, "found byte 0x%02x, expected UTF-8", (unsigned char)*p->at);
        if (c < ' ')
            return fail(p, "found byte 0x%02x in a string, expected an escape of JSON", *p->at);
        memcpy(to + *n, p->at, (size_t)bytes);
        *n += (size_t)bytes;
        p->at += bytes;
    }
    to[*n] = '\0';
    return 0;
}

static int scan_string(struct parser *p, size_t *n)
{
    const char *end = p->at + 1;
    while (end < p->end && *end != '"')
        end += *end == '\\' && p->end - end > 1 ? 2 : 1;
    if (end >= p->end)
        return fail(p, "found a string without its end, expected '\"'");
    p->at++;
    SPW_TRY(reserve(p, (size_t)(end - p->at)));
    SPW_TRY(scan_characters(p, end, n));
    p->at = end + 1;
    return 0;
}

/* ---- numbers ---- */

static bool skip_digits(struct parser *p)
{
    const char *from = p->at;
    while (p->at < p->end && *p->at >= '0' && *p->at <= '9')
        p->at++;
    return p->at > from;
}

static bool skip_one_of(struct parser *p, const char *set)
{
    const bool is = p->at < p->end && *p->at && strchr(set, *p->at);
    p->at += is;
    return is;
}

static int scan_number(struct parser *p, bool *is_real)
{
    skip_one_of(p, "-");
    bool good = skip_one_of(p, "0") || skip_digits(p);
    *is_real = false;
    if (good && skip_one_of(p, ".")) {
        *is_real = true;
        good = skip_digits(p);
    }
    if (good && skip_one_of(p, "eE")) {
        *is_real = true;
        skip_one_of(p, "+-");
        good = skip_digits(p);
    }
    return good ? 0 : refuse(p, "a digit");
}

static int real(struct parser *p, char *digits, json_t **out)
{
    char *point = strchr(digits, '.'); /* strtod expects the point of the locale */
    if (point)
        *point = *localeconv()->decimal_point;
    errno = 0;
    const double x = strtod(digits, NULL);
    if (errno == ERANGE && (x > 1 || x < -1))
        return fail(p, "found a number beyond the range of a double, expected a smaller one");
    *out = json_real(x);
    return *out ? 0 : -ENOMEM;
}

static int read_number(struct parser *p, json_t **out)
{
    const char *from = p->at;
    bool is_real;
    SPW_TRY(scan_number(p, &is_real));
    const size_t n = (size_t)(p->at - from);
    SPW_TRY(reserve(p, n));
    char *digits = memcpy(p->text + p->used, from, n);
    digits[n] = '\0';
    if (is_real)
        return real(p, digits, out);
    errno = 0;
    const long long value = strtoll(digits, NULL, 10);
    if (errno == ERANGE && p->flags & SPW_JSON_LARGE_REAL)
        return real(p, digits, out);
    if (errno == ERANGE)
        return fail(p, "found an integer of more than 64 bits, expected a smaller one");
    *out = json_integer(value);
    return *out ? 0 : -ENOMEM;
}

/* ---- values ---- */

static int read_word(struct parser *p, json_t **out)
{
    static const char *const words[] = {"true", "false", "null"};
    size_t n = 0;
    while (p->at + n < p->end && ((p->at[n] | 0x20) >= 'a' && (p->at[n] | 0x20) <= 'z'))
        n++;
    for (int i = 0; i < 3; i++) {
        if (n != strlen(words[i]) || memcmp(p->at, words[i], n) != 0)
            continue;
        p->at += n;
        *out = i == 2 ? json_null() : json_boolean(i == 0);
        return 0;
    }
    return refuse(p, "a value");
}

static int read_value(struct parser *p, json_t **out);

/* Gives the value to its part, or puts it into the tree. `key` is NULL in a list. */
static int put(struct parser *p, json_t *in, int part, const char *key, json_t *value)
{
    if (part < 0 && key)
        return json_object_set_new_nocheck(in, key, value) ? -ENOMEM : 0;
    if (part < 0)
        return json_array_append_new(in, value) ? -ENOMEM : 0;
    const int rc = p->parts->take(p->parts->context, part, key, value);
    json_decref(value);
    return rc;
}

static int read_element(struct parser *p, json_t *list, int part)
{
    json_t *value;
    SPW_TRY(read_value(p, &value));
    return put(p, list, part, NULL, value);
}

/* The key becomes the last text of p->text, before that of the value. */
static int read_member(struct parser *p, json_t *object, int part)
{
    const size_t key = p->used;
    size_t n;
    json_t *value;
    if (peek(p) != '"')
        return refuse(p, "a key in quotes");
    SPW_TRY(scan_string(p, &n));
    if (strlen(p->text + key) != n)
        return fail(p, "found \\u0000 in a key, expected one without it");
    if (p->flags & JSON_REJECT_DUPLICATES && json_object_get(object, p->text + key))
        return fail(p, "found the key \"%.40s\" twice, expected it once", p->text + key);
    if (peek(p) != ':')
        return refuse(p, "':'");
    p->at++;
    p->used += n + 1;
    SPW_TRY(read_value(p, &value));
    p->used = key;
    return put(p, object, part, p->text + key, value);
}

/* The part that the keys around a value name; -1: none. */
static int part_at(const struct parser *p)
{
    for (int i = 0; p->parts && !p->in_part && i < p->parts->n; i++)
        if (p->used == p->parts->bytes[i] && !memcmp(p->text, p->parts->paths[i], p->used))
            return i;
    return -1;
}

/* Reads up to the bracket that closes `value`. */
static int read_elements(struct parser *p, json_t *value)
{
    const bool is_object = *p->at++ == '{';
    const char close = is_object ? '}' : ']';
    const int part = part_at(p);
    int c = peek(p);
    if (c == close) {
        p->at++;
        return 0;
    }
    p->in_part |= part >= 0;
    do {
        SPW_TRY(is_object ? read_member(p, value, part) : read_element(p, value, part));
        c = peek(p);
        if (c != ',' && c != close)
            return refuse(p, is_object ? "',' or '}'" : "',' or ']'");
        p->at++;
    } while (c == ',');
    p->in_part &= part < 0;
    return 0;
}

static int read_nested(struct parser *p, json_t **out)
{
    json_t *value = *p->at == '{' ? json_object() : json_array();
    if (!value)
        return -ENOMEM;
    p->depth++;
    const int rc = read_elements(p, value);
    p->depth--;
    if (rc)
        json_decref(value);
    else
        *out = value;
    return rc;
}

static int read_value(struct parser *p, json_t **out)
{
    const int c = peek(p);
    size_t n;
    *out = NULL;
    if (p->depth == MOST_DEPTH)
        return fail(p, "found values nested more than %d deep, expected at most that", MOST_DEPTH);
    if (c == '{' || c == '[')
        return read_nested(p, out);
    if (c == '-' || (c >= '0' && c <= '9'))
        return read_number(p, out);
    if (c != '"')
        return read_word(p, out);
    SPW_TRY(scan_string(p, &n));
    *out = json_stringn_nocheck(p->text + p->used, n);
    return *out ? 0 : -ENOMEM;
}

int spw_json_parse(json_t **out, const char *text, size_t bytes, size_t flags, json_error_t *why)
{
    return spw_json_parse_parts(out, text, bytes, flags, NULL, why);
}

int spw_json_parse_parts(json_t **out, const char *text, size_t bytes, size_t flags,
                         const struct spw_json_parts *parts, json_error_t *why)
{
    struct parser p = {
        .begin = text, .at = text, .end = text + bytes, .flags = flags, .parts = parts, .why = why};
    const int c = peek(&p);
    int rc = 0;
    *out = NULL;
    if (!(flags & JSON_DECODE_ANY) && c != '{' && c != '[')
        rc = refuse(&p, "'{' or '['");
    if (!rc)
        rc = read_value(&p, out);
    if (!rc && !(flags & JSON_DISABLE_EOF_CHECK) && peek(&p) != -1)
        rc = refuse(&p, "the end of the text");
    spw_free(p.text);
    if (!rc)
        return 0;
    json_decref(*out);
    *out = NULL;
    return rc;
}

/* ---- writing ---- */

static int add(const char *text, size_t bytes, void *to)
{
    return spw_text_add(to, text, bytes);
}

char *spw_json_dump(const json_t *value, size_t flags)
{
    struct spw_text d = {0};
    if (value && !json_dump_callback(value, add, &d, flags) && !d.failed)
        return d.text;
    spw_free(d.text);
    return NULL;
}
