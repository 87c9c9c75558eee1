/* Characters of Jinja strings, as Python's str sees them: see jinja_impl.h. All text is valid
 * UTF-8: templates are checked when parsed, and jansson lets nothing else in. */
#include "model/text/jinja/jinja_impl.h"

#include <utf8proc.h>

uint32_t spw_jinja_decode(const char *at, const char *end, size_t *bytes)
{
    utf8proc_int32_t c = 0xfffd;
    utf8proc_ssize_t n =
        utf8proc_iterate((const utf8proc_uint8_t *)at, (utf8proc_ssize_t)(end - at), &c);
    *bytes = n > 0 ? (size_t)n : 1;
    return n > 0 ? (uint32_t)c : 0xfffd;
}

size_t spw_jinja_chars(const char *at, size_t bytes)
{
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++)
        n += (at[i] & 0xc0) != 0x80;
    return n;
}

const char *spw_jinja_before(const char *start, const char *at)
{
    do
        at--;
    while (at > start && (*at & 0xc0) == 0x80);
    return at;
}

bool spw_jinja_is_space(uint32_t c)
{
    if (c < 128)
        return (c >= 9 && c <= 13) || (c >= 28 && c <= 32);
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
           c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool spw_jinja_is_printable(uint32_t c)
{
    if (c < 128)
        return c >= 32 && c < 127;
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
        return false;
    default:
        return true;
    }
}

/* Characters whose upper case is several (Unicode's SpecialCasing.txt, those of Latin and Armenian
 * letters); utf8proc maps one to one. */
static const struct {
    uint32_t from;
    const char *upper, *title;
} special[] = {
    {0xdf, "SS", "Ss"},
    {0x149, "\xca\xbcN", "\xca\xbcN"},
    {0x1f0, "J\xcc\x8c", "J\xcc\x8c"},
    {0x587, "\xd4\xb5\xd5\x92", "\xd4\xb5\xd6\x82"},
    {0x1e96, "H\xcc\xb1", "H\xcc\xb1"},
    {0x1e97, "T\xcc\x88", "T\xcc\x88"},
    {0x1e98, "W\xcc\x8a", "W\xcc\x8a"},
    {0x1e99, "Y\xcc\x8a", "Y\xcc\x8a"},
    {0x1e9a, "A\xca\xbe", "A\xca\xbe"},
    {0xfb00, "FF", "Ff"},
    {0xfb01, "FI", "Fi"},
    {0xfb02, "FL", "Fl"},
    {0xfb03, "FFI", "Ffi"},
    {0xfb04, "FFL", "Ffl"},
    {0xfb05, "ST", "St"},
    {0xfb06, "ST", "St"},
};

static bool is_cased(uint32_t c)
{
    if (c < 128)
        return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT;
}

static bool is_case_ignorable(uint32_t c)
{
    if (c < 128)
        return c == '\'' || c == '.' || c == ':' || c == '^' || c == '`';
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_ME || k == UTF8PROC_CATEGORY_CF ||
           k == UTF8PROC_CATEGORY_LM || k == UTF8PROC_CATEGORY_SK || c == 0xb7 || c == 0x2019;
}

/* Unicode's Final_Sigma: a cased letter before, none after. */
static bool is_final_sigma(const char *start, const char *at, const char *end)
{
    const char *p = at;
    size_t n;
    uint32_t c = 0;
    while (p > start) {
        p = spw_jinja_before(start, p);
        c = spw_jinja_decode(p, end, &n);
        if (!is_case_ignorable(c))
            break;
        c = 0;
    }
    if (!is_cased(c))
        return false;
    for (p = at + 2; p < end; p += n) {
        c = spw_jinja_decode(p, end, &n);
        if (!is_case_ignorable(c))
            return !is_cased(c);
    }
    return true;
}

static void print_char(struct run *r, utf8proc_int32_t c)
{
    utf8proc_uint8_t text[4];
    spw_jinja_print(r, (const char *)text, (size_t)utf8proc_encode_char(c, text));
}

static void print_upper(struct run *r, uint32_t c, bool title)
{
    for (size_t i = 0; i < sizeof special / sizeof *special; i++)
        if (special[i].from == c) {
            spw_jinja_print_text(r, title ? special[i].title : special[i].upper);
            return;
        }
    print_char(r, title ? utf8proc_totitle((utf8proc_int32_t)c)
                        : utf8proc_toupper((utf8proc_int32_t)c));
}

static void print_lower(struct run *r, const char *start, const char *at, const char *end,
                        uint32_t c)
{
    if (c == 0x130)
        spw_jinja_print(r, "i\xcc\x87", 3);
    else if (c == 0x3a3)
        spw_jinja_print(r, is_final_sigma(start, at, end) ? "\xcf\x82" : "\xcf\x83", 2);
    else
        print_char(r, utf8proc_tolower((utf8proc_int32_t)c));
}

void spw_jinja_print_case(struct run *r, const char *at, size_t bytes, enum letters how)
{
    const char *end = at + bytes;
    bool inside = false; /* a word: after a cased letter, or after the first character */
    bool title = how == SPW_JINJA_CAPITALIZE || how == SPW_JINJA_TITLE;
    size_t n;
    spw_jinja_charge(r, bytes / 4);
    for (const char *p = at; p < end; p += n) {
        uint32_t c = spw_jinja_decode(p, end, &n);
        if (how == SPW_JINJA_UPPER || (title && !inside))
            print_upper(r, c, title);
        else
            print_lower(r, at, p, end, c);
        inside = how == SPW_JINJA_CAPITALIZE || is_cased(c);
    }
}

static bool strips(uint32_t c, const struct string *chars)
{
    if (!chars)
        return spw_jinja_is_space(c);
    const char *end = chars->at + chars->bytes;
    size_t n;
    for (const char *p = chars->at; p < end; p += n)
        if (spw_jinja_decode(p, end, &n) == c)
            return true;
    return false;
}

void spw_jinja_strip(const char **at, size_t *bytes, const struct string *chars, bool left,
                     bool right)
{
    const char *start = *at, *end = *at + *bytes;
    size_t n;
    while (left && start < end && strips(spw_jinja_decode(start, end, &n), chars))
        start += n;
    while (right && start < end) {
        const char *last = spw_jinja_before(start, end);
        if (!strips(spw_jinja_decode(last, end, &n), chars))
            break;
        end = last;
    }
    *at = start;
    *bytes = (size_t)(end - start);
}

size_t spw_jinja_byte_of(const struct string *s, size_t index)
{
    if (s->chars == s->bytes || index == 0)
        return index;
    size_t i = 0;
    while (i < s->bytes) {
        if ((s->at[i] & 0xc0) != 0x80 && index-- == 0)
            break;
        i++;
    }
    return i;
}
