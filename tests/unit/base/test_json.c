/* The parser of JSON against jansson's, with texts of a table and with random changes of them; and
 * reading and writing where one allocation fails, or all from one on. */
#include "base/json.h"
#include "tests/check.h"
#include "tests/json_text.h"

#include <math.h>
#include <string.h>

static const char *const texts[] = {
    "{}",
    "[]",
    " [ ] ",
    "",
    " ",
    "{\"a\": 1, \"b\": [true, false, null], \"c\": {\"d\": \"e\"}}",
    "{\"a\": 1, \"a\": 2}",
    "{\"a\\u0000\": 1}",
    "{\"\": {\"\": []}}",
    "{a: 1}",
    "{\"a\" 1}",
    "{\"a\": }",
    "{\"a\": 1,}",
    "{\"a\": 1 \"b\": 2}",
    "[1,]",
    "[1 2]",
    "[,1]",
    "[1]]",
    "[1] x",
    "[1",
    "[tru, nul]",
    "[truex]",
    "[True]",
    "[0, -0, 1, -1, 9223372036854775807, -9223372036854775808]",
    "[9223372036854775808]",
    "[-9223372036854775809]",
    "[00]",
    "[01]",
    "[-]",
    "[+1]",
    "[.5]",
    "[1.]",
    "[1.e5]",
    "[1e]",
    "[1e+]",
    "[0.0, -0.0, 0.1234567890123456789, 1E5, 1e+5, 1e-5, 2.5e300, 1e-400, 4.9e-324]",
    "[1e999]",
    "[-1e999]",
    "[0x10]",
    "[1a]",
    "[\"a string of more than sixteen bytes\", \"\"]",
    "[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"]",
    "[\"\\x\"]",
    "[\"\\",
    "[\"\\\"",
    "[\"\\\\\"",
    "[\"\\u00e9\\u20ac\\ud83d\\ude00\\u0041\"]",
    "[\"\\u0000\"]",
    "[\"\\ud83d\"]",
    "[\"\\ud83d\\n\"]",
    "[\"\\ud83d\\u0041\"]",
    "[\"\\ude00\"]",
    "[\"\\u12\"]",
    "[\"\\u12g4\"]",
    "[\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\x7f\"]",
    "[\"\xff\"]",
    "[\"\xc0\x80\"]",
    "[\"\xe0\x9f\xbf\"]",
    "[\"\xed\xa0\x80\"]",
    "[\"\xf0\x8f\xbf\xbf\"]",
    "[\"\xf4\x90\x80\x80\"]",
    "[\"\xe2\x82\"]",
    "[\"a\nb\"]",
    "[\"a",
    "\"a\"",
    "12",
    "null",
    "\xef\xbb\xbf[]",
};
enum { N_TEXTS = sizeof texts / sizeof *texts };

static const size_t flags[] = {
    0,
    JSON_REJECT_DUPLICATES,
    JSON_ALLOW_NUL,
    JSON_DECODE_ANY,
    JSON_DISABLE_EOF_CHECK,
    JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY,
};
enum { N_FLAGS = sizeof flags / sizeof *flags };

static int n_good;

static void compare(const char *text, size_t bytes, size_t use)
{
    json_error_t why;
    json_t *mine, *other = json_loadb(text, bytes, use, NULL);
    int rc = spw_json_parse(&mine, text, bytes, use, &why);
    CHECK_MSG(rc == (other ? 0 : -EINVAL) && !mine == !other, "%d: %s, flags %zu: %.*s", rc,
              rc ? why.text : "", use, (int)bytes, text);
    CHECK_MSG(json_equal(mine, other) || !other, "%.*s", (int)bytes, text);
    CHECK(!rc || (why.line > 0 && why.column > 0 && !strncmp(why.text, "found ", 6)));
    n_good += !rc;
    json_decref(mine);
    json_decref(other);
}

/* One byte is changed, removed or added. */
static size_t change(char *text, size_t bytes, uint64_t *seed)
{
    static const char marks[] = "{}[]\",:\\0123456789.eE+-tfnu \xc3\xa9\xed\xa0";
    const size_t at = check_range(seed, 0, bytes);
    const uint64_t how = check_range(seed, 0, 2);
    const char any = (char)check_range(seed, 1, 255); /* jansson takes a NUL after a number */
    const char c = check_range(seed, 0, 9) ? marks[check_range(seed, 0, sizeof marks - 2)] : any;
    if (how == 0 && at < bytes) {
        memmove(text + at, text + at + 1, bytes - at - 1);
        return bytes - 1;
    }
    if (how == 1) {
        memmove(text + at + 1, text + at, bytes - at);
        bytes++;
    }
    if (at < bytes)
        text[at] = c;
    return bytes;
}

static void check_changed(uint64_t *seed)
{
    const char *from = texts[check_range(seed, 0, N_TEXTS - 1)];
    const uint64_t n = check_range(seed, 1, 3);
    size_t bytes = strlen(from);
    char *text = malloc(bytes + n + 1); /* of this size, for AddressSanitizer */
    if (!text)
        abort();
    memcpy(text, from, bytes);
    for (uint64_t i = 0; i < n; i++)
        bytes = change(text, bytes, seed);
    char *exact = realloc(text, bytes + !bytes);
    compare(exact ? exact : text, bytes, flags[check_range(seed, 0, N_FLAGS - 1)]);
    free(exact ? exact : text);
}

static void check_where(const char *text, int line, int column, const char *what)
{
    json_error_t why;
    json_t *value;
    CHECK(spw_json_parse(&value, text, strlen(text), JSON_REJECT_DUPLICATES, &why) == -EINVAL);
    CHECK_MSG(why.line == line && why.column == column && !strcmp(why.text, what), "%d, %d: %s",
              why.line, why.column, why.text);
    CHECK(spw_json_parse(&value, text, strlen(text), JSON_REJECT_DUPLICATES, NULL) == -EINVAL);
}

static void check_messages(void)
{
    check_where("{\"a\": 1,\n \"\xc3\xa9\": no}", 2, 7, "found 'no', expected a value");
    check_where("[1", 1, 3, "found the end of the text, expected ',' or ']'");
    check_where("x", 1, 1, "found 'x', expected '{' or '['");
    check_where("{\"a\" 1}", 1, 6, "found '1', expected ':'");
    check_where("[\"\xff\"]", 1, 3, "found byte 0xff, expected UTF-8");
    check_where("{\"a\": 1, \"a\": 1}", 1, 13, "found the key \"a\" twice, expected it once");
    check_where("[]\n\n\x01", 3, 1, "found byte 0x01, expected the end of the text");
}

static void check_large_integers(void)
{
    static const char text[] = "[1000000000000000019884624838656, -9223372036854775809, 7]";
    json_t *value = NULL;
    CHECK(spw_json_parse(&value, text, sizeof text - 1, 0, NULL) == -EINVAL);
    CHECK(spw_json_parse(&value, text, sizeof text - 1, SPW_JSON_LARGE_REAL, NULL) == 0);
    CHECK(json_real_value(json_array_get(value, 0)) == 1e30);
    CHECK(json_real_value(json_array_get(value, 1)) == -9223372036854775808.0);
    CHECK(json_integer_value(json_array_get(value, 2)) == 7);
    json_decref(value);
}

/* jansson skips a NUL byte behind a number or a word. */
static void check_nul_bytes(void)
{
    static const char text[] = "[1\0, true\0, \"a\0\"]\0";
    json_error_t why;
    json_t *value;
    for (size_t nul = 0; nul < sizeof text - 1; nul++) {
        char one[sizeof text - 1];
        size_t n = 0;
        for (size_t i = 0; i < sizeof text - 1; i++)
            if (text[i] || i == nul)
                one[n++] = text[i];
        const int rc = spw_json_parse(&value, one, n, JSON_ALLOW_NUL, &why);
        CHECK_MSG(rc == (text[nul] ? 0 : -EINVAL), "NUL byte %zu: %d", nul, rc);
        CHECK(!rc || !strncmp(why.text, "found byte 0x00", 15));
        json_decref(value);
    }
}

/* jansson allows 2,048 values in each other, too; a number is one of them. */
static void check_depth(void)
{
    static char deep[2 * 2049 + 1];
    for (size_t n = 2046; n <= 2049; n++)
        for (size_t n_numbers = 0; n_numbers < 2; n_numbers++) {
            memset(deep, '[', n);
            deep[n] = '7';
            memset(deep + n + n_numbers, ']', n);
            compare(deep, 2 * n + n_numbers, 0);
        }
}

/* ---- short memory ---- */

static const char long_text[] =
    "{\"a key of more than sixteen bytes\": \"a text of more than sixteen bytes\", \"numbers\": "
    "[1234567890123456, 123456789012345, 0.12345678901234567, 1e-300], \"twelve bytes\": [[[[]]]], "
    "\"1\": 1, \"2\": 2, \"3\": 3, \"4\": 4, \"5\": 5, \"6\": 6, \"7\": 7, \"8\": 8, \"9\": 9}";

/* Every allocation fails once: a text is read and written whole, or not at all. */
static void check_short_memory(void)
{
    json_error_t why;
    json_t *whole, *value;
    CHECK(spw_json_parse(&whole, long_text, sizeof long_text - 1, 0, &why) == 0);
    char *dumped = spw_json_dump(whole, JSON_COMPACT | JSON_SORT_KEYS);
    bool has_failed = true;
    int n = 0;
    for (; has_failed; n++) {
        const int64_t before = spw_alloc_outstanding();
        json_set_alloc_funcs(json_alloc, json_free);
        spw_alloc_fail_nth(n);
        const int rc = spw_json_parse(&value, long_text, sizeof long_text - 1, 0, &why);
        char *text = rc ? NULL : spw_json_dump(whole, JSON_COMPACT | JSON_SORT_KEYS);
        has_failed = json_allocation_has_failed();
        spw_alloc_fail_nth(-1);
        json_set_alloc_funcs(malloc, free);
        CHECK_MSG(rc == 0 || (rc == -ENOMEM && !value && has_failed), "%d: %d", n, rc);
        CHECK_MSG(rc || json_equal(value, whole), "allocation %d", n);
        CHECK_MSG(text ? !strcmp(text, dumped) : has_failed, "allocation %d", n);
        json_decref(value);
        spw_free(text);
        CHECK(spw_alloc_outstanding() == before);
    }
    CHECK(n > 40);
    spw_free(dumped);
    json_decref(whole);
}

int main(int argc, char **argv)
{
    uint64_t seed = check_seed();
    for (size_t i = 0; i < N_TEXTS; i++)
        for (size_t k = 0; k < N_FLAGS; k++)
            compare(texts[i], strlen(texts[i]), flags[k]);
    const int n_table = n_good;
    struct check_draws draws = check_draws_of(argc, argv, 400000);
    while (check_another(&draws))
        check_changed(&seed);
    CHECK(n_table > 60 && n_good > n_table + draws.done / 20 && n_good < draws.done / 2);
    check_messages();
    check_large_integers();
    check_nul_bytes();
    check_depth();
    check_short_memory();
    CHECK(spw_alloc_outstanding() == 0);
    return check_done();
}
