/* Stop strings against a direct search of the whole text, for every division of the text into
 * pieces. */
#include "runtime/batch/stop.h"
#include "tests/check.h"

#include <string.h>

struct sink {
    char text[4096];
    size_t n, n_pieces;
    int fail_at; /* the piece that returns -EPIPE; -1: none */
};

static int collect(void *context, const char *text, size_t bytes)
{
    struct sink *s = context;
    CHECK(bytes > 0 && s->n + bytes < sizeof s->text);
    if (s->fail_at == (int)s->n_pieces++)
        return -EPIPE;
    memcpy(s->text + s->n, text, bytes);
    s->n += bytes;
    s->text[s->n] = 0;
    return 0;
}

static bool ends_with(const char *text, size_t n, const char *end)
{
    size_t m = strlen(end);
    return m <= n && memcmp(text + n - m, end, m) == 0;
}

/* Before the first complete stop string; of several at the same end the longest. */
static size_t naive(const char *text, size_t n, const char *const *stops, size_t n_stops,
                    bool *found)
{
    for (size_t end = 1; end <= n; end++) {
        size_t longest = 0;
        for (size_t k = 0; k < n_stops; k++)
            if (ends_with(text, end, stops[k]) && strlen(stops[k]) > longest)
                longest = strlen(stops[k]);
        if (longest > 0) {
            *found = true;
            return end - longest;
        }
    }
    *found = false;
    return n;
}

/* The most text that may be released after text[0, n): all but the longest end that begins a stop
 * string. */
static size_t most_final(const char *text, size_t n, const char *const *stops, size_t n_stops)
{
    size_t held = 0;
    for (size_t k = 0; k < n_stops; k++)
        for (size_t m = 1; m < strlen(stops[k]) && m <= n; m++)
            if (m > held && memcmp(text + n - m, stops[k], m) == 0)
                held = m;
    return n - held;
}

static void test_random(uint64_t seed)
{
    for (int round = 0; round < 20000; round++) {
        char text[64], strings[4][8];
        const char *stops[4];
        size_t n = check_range(&seed, 0, 60), n_stops = check_range(&seed, 0, 4);
        for (size_t i = 0; i < n; i++)
            text[i] = (char)('a' + check_range(&seed, 0, 1));
        for (size_t k = 0; k < n_stops; k++) {
            size_t m = check_range(&seed, 1, 7);
            for (size_t i = 0; i < m; i++)
                strings[k][i] = (char)('a' + check_range(&seed, 0, 1));
            strings[k][m] = 0;
            stops[k] = strings[k];
        }
        struct spw_stop *s;
        struct sink out = {.fail_at = -1};
        bool found;
        size_t expected = naive(text, n, stops, n_stops, &found);
        CHECK(spw_stop_open(&s, stops, n_stops, NULL) == 0);
        for (size_t at = 0; at < n;) {
            size_t piece = check_range(&seed, 1, n - at);
            CHECK(spw_stop_push(s, text + at, piece, collect, &out) == 0);
            at += piece;
            if (!spw_stop_found(s)) /* no text is held back longer than necessary */
                CHECK(out.n == most_final(text, at, stops, n_stops));
        }
        CHECK(spw_stop_found(s) == found);
        CHECK(spw_stop_finish(s, collect, &out) == 0);
        CHECK_MSG(out.n == expected && memcmp(out.text, text, out.n) == 0,
                  "text %.*s: found %zu bytes, expected %zu", (int)n, text, out.n, expected);
        spw_stop_close(s);
    }
}

static void test_characters(void)
{
    /* Two characters with the same first byte: only complete characters are released. */
    const char *stops[] = {"\xc3\xa8nd", "###"};
    struct spw_stop *s;
    struct sink out = {.fail_at = -1};
    CHECK(spw_stop_open(&s, stops, 2, NULL) == 0);
    CHECK(spw_stop_push(s, "a\xc3\xa9", 3, collect, &out) == 0 && out.n == 3);
    CHECK(spw_stop_push(s, "\xc3\xa8", 2, collect, &out) == 0 && out.n == 3);
    CHECK(spw_stop_push(s, "n!", 2, collect, &out) == 0 && out.n == 7);
    CHECK(spw_stop_push(s, "x##", 3, collect, &out) == 0 && out.n == 8);
    CHECK(spw_stop_push(s, "# and the rest of the token", 27, collect, &out) == 0);
    CHECK(spw_stop_found(s) && out.n == 8);
    CHECK(spw_stop_push(s, "more", 4, collect, &out) == 0 && out.n == 8);
    CHECK(spw_stop_finish(s, collect, &out) == 0 && out.n == 8);
    CHECK(strcmp(out.text, "a\xc3\xa9\xc3\xa8n!x") == 0);
    spw_stop_close(s);
}

static void test_failures(void)
{
    struct spw_stop *s;
    struct spw_error err = {0};
    CHECK(spw_stop_open(&s, (const char *[]){"a", ""}, 2, &err) == -EINVAL && !s);
    CHECK(strstr(err.text, "stop string 2"));
    for (int fail_at = 0; fail_at < 3; fail_at++) {
        struct sink out = {.fail_at = fail_at};
        CHECK(spw_stop_open(&s, (const char *[]){"stop"}, 1, NULL) == 0);
        int rc = spw_stop_push(s, "one st", 6, collect, &out);
        if (rc == 0)
            rc = spw_stop_push(s, "ill sto", 7, collect, &out);
        CHECK(rc == -EPIPE);
        spw_stop_close(s);
    }
    for (int64_t n = 0;; n++) {
        spw_alloc_fail_nth(n);
        int rc = spw_stop_open(&s, (const char *[]){"one", "two"}, 2, NULL);
        spw_alloc_fail_nth(-1);
        spw_stop_close(s);
        CHECK(spw_alloc_outstanding() == 0);
        if (rc == 0)
            break;
        CHECK(rc == -ENOMEM && n < 10);
    }
    spw_stop_close(NULL);
}

int main(void)
{
    test_random(check_seed());
    test_characters();
    test_failures();
    return check_done();
}
