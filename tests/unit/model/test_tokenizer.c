/* Tokenizers: vectors of three real models and the golden prompts of a fourth, hand-made files for
 * each kind of step, bad files, streaming against decoding at once, every allocation failing.
 *
 * `test_tokenizer --serve FILE` answers requests on stdin for tests/oracle/tokenizer_property.py:
 * "e 0|1 HEX" encodes (1: with special tokens), "d 0|1 ID ..." decodes (1: skipping special ones).
 */
#include "model/text/tokenizer/tokenizer.h"
#include "tests/json_text.h"

#include <pthread.h>
#include <string.h>

/* ---- helpers ---- */

static struct spw_tokenizer *parse(const char *json)
{
    struct spw_tokenizer *t = NULL;
    struct spw_error err = {0};
    int rc = spw_tokenizer_parse(&t, json, strlen(json), "test.json", &err);
    CHECK_MSG(!rc, "%s", err.text);
    return rc ? NULL : t;
}

/* Ids as "1 2 3", or "error". */
static const char *encode_text(const struct spw_tokenizer *t, const char *text, size_t bytes,
                               bool special, char out[4096])
{
    int32_t *ids = NULL;
    size_t n = 0, at = 0;
    struct spw_error err = {0};
    out[0] = 0;
    if (spw_tokenizer_encode(t, text, bytes, special, &ids, &n, &err))
        return "error";
    for (size_t i = 0; i < n && at < 4000; i++)
        at += (size_t)snprintf(out + at, 4096 - at, i ? " %d" : "%d", ids[i]);
    spw_free(ids);
    return out;
}

static void expect_ids(const struct spw_tokenizer *t, const char *text, const char *ids)
{
    char out[4096];
    const char *got = encode_text(t, text, strlen(text), false, out);
    CHECK_MSG(!strcmp(got, ids), "\"%s\": %s, expected %s", text, got, ids);
}

static bool valid_utf8(const char *p, size_t n)
{
    for (size_t i = 0; i < n;) {
        unsigned char c = (unsigned char)p[i];
        size_t len = c < 0x80 ? 1 : c >= 0xc2 && c < 0xe0 ? 2 : c >= 0xe0 && c < 0xf0 ? 3 : 4;
        if (c >= 0xf5 || (c >= 0x80 && c < 0xc2) || i + len > n)
            return false;
        for (size_t k = 1; k < len; k++)
            if (((unsigned char)p[i + k] & 0xc0) != 0x80)
                return false;
        i += len;
    }
    return true;
}

/* Streams the ids twice with one detokenizer (finish makes it new) and compares with decode. */
static bool streams_alike(const struct spw_tokenizer *t, const int32_t *ids, size_t n, bool skip)
{
    struct spw_detokenizer *d = NULL;
    char *whole = NULL;
    size_t bytes = 0;
    bool same = true;
    if (spw_tokenizer_decode(t, ids, n, skip, &whole, &bytes) || spw_detokenizer_init(&d, t, skip))
        return false;
    for (int round = 0; round < 2; round++) {
        size_t at = 0;
        for (size_t i = 0; i <= n; i++) {
            const char *part = NULL;
            size_t part_bytes = 0;
            int rc = i < n ? spw_detokenizer_push(d, ids[i], &part, &part_bytes)
                           : spw_detokenizer_finish(d, &part, &part_bytes);
            same = same && !rc && valid_utf8(part, part_bytes) && at + part_bytes <= bytes &&
                   !memcmp(whole + at, part, part_bytes);
            at += part_bytes;
        }
        same = same && at == bytes;
    }
    same = same && strlen(whole) <= bytes && valid_utf8(whole, bytes);
    spw_detokenizer_free(d);
    spw_free(whole);
    return same;
}

static void expect_bytes(const struct spw_tokenizer *t, int32_t id, const char *expected)
{
    char *text = NULL;
    size_t bytes = 99;
    CHECK(!spw_tokenizer_token_bytes(t, id, &text, &bytes));
    CHECK_MSG(bytes == strlen(expected) && text && !strcmp(text, expected), "%d: '%s'", id, text);
    spw_free(text);
}

static void expect_text(const struct spw_tokenizer *t, const int32_t *ids, size_t n,
                        const char *text)
{
    char *got = NULL;
    size_t bytes = 0;
    int rc = spw_tokenizer_decode(t, ids, n, false, &got, &bytes);
    CHECK_MSG(!rc && bytes == strlen(text) && !strcmp(got, text), "\"%s\", expected \"%s\"",
              rc ? "" : got, text);
    spw_free(got);
    CHECK(streams_alike(t, ids, n, false));
    CHECK(streams_alike(t, ids, n, true));
}
#define IDS(...) (const int32_t[]){__VA_ARGS__}, sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t)

static struct spw_tokenizer *open_shared(const char *file, char path[1024])
{
    const char *data = getenv("SPW_DATA");
    struct spw_tokenizer *t = NULL;
    struct spw_error err = {0};
    snprintf(path, 1024, "%s/%s", data ? data : "", file);
    if (!data || access(path, R_OK))
        return NULL;
    int rc = spw_tokenizer_open(&t, path, &err);
    CHECK_MSG(!rc, "%s", err.text);
    return rc ? NULL : t;
}

/* ---- real tokenizers ---- */

static void check_vector(const struct spw_tokenizer *t, const char *name, const json_t *vector,
                         bool round_trip, const char *key, bool special)
{
    const char *text = json_string_value(json_object_get(vector, key));
    size_t bytes = json_string_length(json_object_get(vector, key));
    const json_t *expected = json_object_get(vector, "ids");
    int32_t *ids = NULL;
    size_t n = 0;
    struct spw_error err = {0};
    int rc = spw_tokenizer_encode(t, text, bytes, special, &ids, &n, &err);
    CHECK_MSG(!rc, "%s: \"%s\": %s", name, text, err.text);
    if (rc)
        return;
    bool same = n == json_array_size(expected);
    for (size_t i = 0; same && i < n; i++)
        same = ids[i] == json_integer_value(json_array_get(expected, i));
    CHECK_MSG(same, "%s: \"%s\": wrong ids", name, text);
    CHECK(streams_alike(t, ids, n, false));
    char *back = NULL;
    size_t back_bytes = 0;
    CHECK(!spw_tokenizer_decode(t, ids, n, true, &back, &back_bytes));
    if (round_trip)
        CHECK_MSG(back_bytes == bytes && !memcmp(back, text, bytes),
                  "%s: \"%s\" comes back as "
                  "\"%s\"",
                  name, text, back);
    spw_free(back);
    spw_free(ids);
}

static void test_vectors(const char *name, bool round_trip)
{
    char file[256], path[1024];
    snprintf(file, sizeof file, "tokenizers/%s/tokenizer.json", name);
    struct spw_tokenizer *t = open_shared(file, path);
    if (!t)
        return;
    strcpy(strrchr(path, '/'), "/vectors.json");
    json_t *vectors = json_load_file(path, 0, NULL), *v;
    size_t i;
    CHECK(json_array_size(vectors) == 46);
    json_array_foreach(vectors, i, v) check_vector(t, name, v, round_trip, "text", false);
    json_decref(vectors);
    fprintf(stderr, "%s: %u ids, %.1f MB\n", name, spw_tokenizer_vocab_size(t),
            (double)spw_tokenizer_bytes(t) / 1e6);
    spw_tokenizer_close(t);
}

static void test_golden_prompts(void)
{
    char path[1024];
    struct spw_tokenizer *t = open_shared("models/stories260K/tokenizer.json", path);
    if (!t)
        return;
    strcpy(strrchr(path, '/'), "/golden.json");
    json_t *golden = json_load_file(path, 0, NULL), *cases = json_object_get(golden, "cases"), *c;
    size_t i;
    CHECK(json_array_size(cases) > 0);
    json_array_foreach(cases, i, c) check_vector(t, "stories260K", c, true, "prompt", true);
    json_decref(golden);
    CHECK(spw_tokenizer_vocab_size(t) == 512);
    CHECK(spw_tokenizer_id(t, "<s>") == 1);
    CHECK(spw_tokenizer_id(t, "no such token") == -ENOENT);
    CHECK(spw_tokenizer_is_special(t, 1) && !spw_tokenizer_is_special(t, 300));
    CHECK(!spw_tokenizer_is_special(t, -1) && !spw_tokenizer_is_special(t, 512));
    CHECK(!strcmp(spw_tokenizer_token(t, 2), "</s>") && !spw_tokenizer_token(t, 512));
    spw_tokenizer_close(t);
}

static char *read_text(const char *file, size_t *bytes)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", getenv("SPW_DATA") ? getenv("SPW_DATA") : "", file);
    FILE *f = fopen(path, "rb");
    if (!f)
        return NULL;
    char *text = malloc(4u << 20);
#ifdef __SANITIZE_THREAD__ /* every access takes twenty times as long */
    const size_t most = 300000;
#else
    const size_t most = 4u << 20;
#endif
    *bytes = text ? fread(text, 1, most, f) : 0;
    fclose(f);
    return text;
}

/* A whole book as one call, and back. A quadratic step would take minutes. */
static void test_book(const char *tokenizer)
{
    char file[256], path[1024];
    snprintf(file, sizeof file, "tokenizers/%s/tokenizer.json", tokenizer);
    size_t bytes = 0, n = 0, back_bytes = 0;
    struct timespec a, b;
    char *book = read_text("texts/moby-dick.txt", &bytes), *back = NULL;
    struct spw_tokenizer *t = book ? open_shared(file, path) : NULL;
    int32_t *ids = NULL;
    if (t) {
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
        CHECK(!spw_tokenizer_encode(t, book, bytes, false, &ids, &n, NULL));
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
        double seconds = (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) / 1e9;
        fprintf(stderr, "%s: %zu bytes, %zu tokens, %.2f s of CPU\n", tokenizer, bytes, n, seconds);
        CHECK(seconds < 60); /* of one CPU, also in a sanitizer build */
        CHECK(!spw_tokenizer_decode(t, ids, n, false, &back, &back_bytes));
        CHECK(back_bytes == bytes && !memcmp(back, book, bytes));
    }
    spw_free(ids);
    spw_free(back);
    spw_tokenizer_close(t);
    free(book);
}

/* ---- one tokenizer, many threads ---- */

struct worker {
    const struct spw_tokenizer *t;
    const char *text;
    char out[4096];
};

static void *encode_often(void *arg)
{
    struct worker *w = arg;
    char out[4096];
    for (int i = 0; i < 50; i++) {
        encode_text(w->t, w->text, strlen(w->text), false, out);
        if (!i)
            strcpy(w->out, out);
        else if (strcmp(w->out, out))
            w->out[0] = 0;
    }
    return NULL;
}

/* ---- hand-made tokenizers ---- */

#define MODEL                                                                                      \
    "\"model\":{\"type\":\"BPE\",\"unk_token\":\"?\",\"vocab\":{\"?\":0,\"a\":1,\"b\":2,\"c\":3,"  \
    "\" \":4,\"_\":5,\"ab\":6,\"abc\":7,\"_a\":8,\"1\":9,\".\":10,\"<0xC3>\":11,\"<0xA9>\":12,"    \
    "\"bc\":13},\"merges\":[\"a b\",[\"ab\",\"c\"],\"_ a\",\"b c\"]"
#define SIMPLE(parts) "{\"version\":\"1.0\"," parts MODEL "}}"

static void test_models(void)
{
    struct spw_tokenizer *t = parse(SIMPLE(""));
    expect_ids(t, "", "");
    expect_ids(t, "abc", "7");
    expect_ids(t, "abbc", "6 13"); /* by rank, not from the left */
    expect_ids(t, "xabyy", "0 6 0 0");
    expect_text(t, IDS(6, 4, 99, -1, 1), "ab   a");
    expect_text(t, NULL, 0, "");
    spw_tokenizer_close(t);

    t = parse("{" MODEL ",\"fuse_unk\":true,\"byte_fallback\":true}}");
    expect_ids(t, "xya\xc3\xa9 x", "0 1 11 12 4 0");
    /* Byte-fallback symbols overtake a pending unk, as in the tokenizers package. */
    expect_ids(t, "x\xc3\xa9", "11 12 0");
    spw_tokenizer_close(t);

    t = parse("{" MODEL ",\"ignore_merges\":true}}");
    expect_ids(t, "abc", "7");
    expect_ids(t, "bc", "13");
    spw_tokenizer_close(t);

    t = parse("{\"pre_tokenizer\":{\"type\":\"WhitespaceSplit\"},\"model\":{\"type\":\"WordLevel\","
              "\"unk_token\":\"u\",\"vocab\":{\"u\":0,\"the\":1,\"access\":2}}}");
    expect_ids(t, "the  access\tcode", "1 2 0");
    expect_text(t, IDS(1, 2, 0), "the access u");
    spw_tokenizer_close(t);

    t = parse("{\"model\":{\"type\":\"WordLevel\",\"unk_token\":\"u\",\"vocab\":{\"a\":0}}}");
    expect_ids(t, "a", "0");
    expect_ids(t, "b", "error");
    spw_tokenizer_close(t);
}

#define ADDED(id, content, more)                                                                   \
    "{\"id\":" #id ",\"content\":\"" content "\",\"special\":true" more "}"

/* The vocabulary is read by a scanner of our own: its strings against jansson's reading of JSON. */
static void test_escapes(void)
{
    struct spw_tokenizer *t =
        parse("{\"mod\\u0065l\" : {\"merges\":[ [ \"\\u00e9\" , \"\\ud83e\\udd99\" ], \"a \\/\" ] ,"
              "\"vocab\" : {\"\\u00E9\":0 , \"\xf0\x9f\xa6\x99\":1,\"a\":2,\"/\":3,\"a/\":4,"
              "\"\\u00e9\xf0\x9f\xa6\x99\":5,\"\\\"\\\\\\b\\f\\n\\r\\t\":6 } } }");
    expect_ids(t,
               "\xc3\xa9\xf0\x9f\xa6\x99"
               "a/",
               "5 4");
    CHECK(spw_tokenizer_id(t, "\"\\\b\f\n\r\t") == 6);
    spw_tokenizer_close(t);
}

static void test_added_tokens(void)
{
    struct spw_tokenizer *t =
        parse(SIMPLE("\"added_tokens\":[" ADDED(20, "<s>", "") "," ADDED(21, "<s>a", "") "," ADDED(
            22, "<l>",
            ",\"lstrip\":true") "," ADDED(23, "<r>",
                                          ",\"rstrip\":true") "," ADDED(24, "cab",
                                                                        ",\"single_word\":"
                                                                        "true") "],"));
    expect_ids(t, "a<s>b", "1 20 2");
    expect_ids(t, "<s>ab", "21 2"); /* the longest */
    expect_ids(t, "a  <l> b", "1 22 4 2");
    expect_ids(t, "a <r> \nb", "1 4 23 2");
    expect_ids(t, "a cab.cab", "1 4 24 10 24");
    expect_ids(t, "acab", "1 3 6");
    CHECK(spw_tokenizer_vocab_size(t) == 25);
    char *text = NULL;
    size_t bytes = 0;
    CHECK(!spw_tokenizer_decode(t, (const int32_t[]){20, 1, 22}, 3, true, &text, &bytes));
    CHECK(bytes == 1 && text[0] == 'a');
    spw_free(text);
    spw_tokenizer_close(t);
}

/* ---- plain spans ---- */

static void expect_spans(const struct spw_tokenizer *t, const char *text,
                         const struct spw_text_span *spans, size_t n_spans, const char *want)
{
    const struct spw_encoding e = {
        .text = text, .bytes = strlen(text), .plain = spans, .n_plain = n_spans};
    char got[256] = "";
    int32_t *ids = NULL;
    size_t n = 0, at = 0;
    if (spw_tokenizer_encode_spans(t, &e, &ids, &n, NULL))
        snprintf(got, sizeof got, "error");
    for (size_t i = 0; i < n; i++)
        at += (size_t)snprintf(got + at, sizeof got - at, i ? " %d" : "%d", ids[i]);
    spw_free(ids);
    CHECK_MSG(!strcmp(got, want), "\"%s\": %s, expected %s", text, got, want);
}

#define SPANS(...)                                                                                 \
    (const struct spw_text_span[]){__VA_ARGS__},                                                   \
        sizeof((const struct spw_text_span[]){__VA_ARGS__}) / sizeof(struct spw_text_span)

static void test_plain_spans(void)
{
    struct spw_tokenizer *t = parse(SIMPLE("\"added_tokens\":[" ADDED(20, "<s>", "") "," ADDED(
        21, "<s>a", "") ",{\"id\":22,\"content\":\"<n>\",\"special\":false}],"));
    expect_spans(t, "a<s>b<s>", SPANS({0, 5}), "1 0 0 0 2 20");
    expect_spans(t, "a<s>b<s>", SPANS({1, 4}), "1 0 0 0 2 20");
    expect_spans(t, "<s>b<s>", SPANS({3, 4}), "20 2 20");
    expect_spans(t, "<s>b<s>b<s>", SPANS({0, 3}, {8, 11}), "0 0 0 2 20 2 0 0 0");
    expect_spans(t, "<s>ab", SPANS({3, 5}),
                 "20 6"); /* not the longer token, which has a byte of it */
    expect_spans(t, "<s>", SPANS({2, 3}), "0 0 0"); /* begins before the span */
    expect_spans(t, "<s>", SPANS({0, 1}), "0 0 0");
    expect_spans(t, "b<n>b", SPANS({0, 5}), "2 22 2"); /* not special */
    expect_spans(t, "<s>", SPANS({1, 1}), "20");
    spw_tokenizer_close(t);
    t = parse(SIMPLE("\"normalizer\":{\"type\":\"Lowercase\"},\"added_tokens\":[" ADDED(
        20, "<s>", ",\"normalized\":true") "," ADDED(21, "<r>", "") "],"));
    expect_spans(t, "a<s><r>", SPANS({0, 1}), "1 20 21");
    expect_spans(t, "a<s><r>", SPANS({4, 7}), "1 20 0 0 0");
    expect_spans(t, "a<s><r>", SPANS({0, 4}), "error");
    spw_tokenizer_close(t);
}

/* Every special token of real models. */
static void test_plain_specials(const char *name)
{
    char path[512], text[512];
    struct spw_tokenizer *t;
    snprintf(path, sizeof path, "%s/tokenizers/%s/tokenizer.json", getenv("SPW_DATA"), name);
    if (!getenv("SPW_DATA") || access(path, R_OK) || spw_tokenizer_open(&t, path, NULL))
        return;
    for (int32_t id = 0; id < (int32_t)spw_tokenizer_vocab_size(t); id++) {
        if (!spw_tokenizer_is_special(t, id))
            continue;
        const char *token = spw_tokenizer_token(t, id);
        size_t begin = strlen(token), end;
        snprintf(text, sizeof text, "%sA %s b%s", token, token, token);
        end = 2 * begin + 4;
        const struct spw_text_span span = {begin, end};
        const struct spw_encoding e = {
            .text = text, .bytes = strlen(text), .plain = &span, .n_plain = 1};
        int32_t *ids = NULL;
        size_t n = 0, n_special = 0;
        CHECK(!spw_tokenizer_encode_spans(t, &e, &ids, &n, NULL));
        for (size_t i = 0; i < n; i++)
            n_special += spw_tokenizer_is_special(t, ids[i]);
        CHECK_MSG(n_special == 2 && ids[0] == id && ids[n - 1] == id, "%s: %s", name, token);
        spw_free(ids);
    }
    spw_tokenizer_close(t);
}

static void test_steps(void)
{
    static const struct {
        const char *parts, *text, *ids;
    } cases[] = {
#define NORM(x) "\"normalizer\":" x ","
#define PRE(x) "\"pre_tokenizer\":" x ","
#define SPLIT(pattern, behavior, invert)                                                           \
    PRE("{\"type\":\"Split\",\"pattern\":" pattern ",\"behavior\":\"" behavior                     \
        "\",\"invert\":" invert "}")
        {NORM("{\"type\":\"Lowercase\"}"), "ABC", "7"},
        {NORM("{\"type\":\"Prepend\",\"prepend\":\"_\"}"), "ab", "5 6"}, /* a b before _ a */
        {NORM("{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":false}"), " \n a ", "1 4"},
        {NORM("{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"[xy]+\"},\"content\":\"b\"}"),
         "axyxc", "7"},
        {NORM("{\"type\":\"NFKD\"}"), "\xef\xbd\x81", "1"}, /* fullwidth a */
        {NORM("{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFD\"},{\"type\":\"Replace\","
              "\"pattern\":{\"String\":\"\\u0301\"},\"content\":\"\"}]}"),
         "\xc3\xa1"
         "bc",
         "7"},
        {SPLIT("{\"String\":\"b\"}", "Isolated", "false"), "abc", "1 2 3"},
        {SPLIT("{\"String\":\"b\"}", "Removed", "false"), "abc", "1 3"},
        {SPLIT("{\"String\":\"b\"}", "Removed", "true"), "abcb", "2 2"},
        {SPLIT("{\"String\":\"b\"}", "MergedWithPrevious", "false"), "abc", "6 3"},
        {SPLIT("{\"String\":\"b\"}", "MergedWithNext", "false"), "abc", "1 13"},
        {SPLIT("{\"Regex\":\"[ab]\"}", "Contiguous", "false"), "abcab", "6 3 6"},
        {SPLIT("{\"String\":\"\"}", "Isolated", "false"), "abc", "1 2 3"},
        {PRE("{\"type\":\"Digits\",\"individual_digits\":true}"), "ab11", "6 9 9"},
        {PRE("{\"type\":\"Punctuation\"}"), "ab.c", "6 10 3"},
        {PRE("{\"type\":\"Whitespace\"}"), "ab .. c", "6 10 10 3"},
        {PRE("{\"type\":\"Metaspace\",\"replacement\":\"_\"}"), "a b", "8 5 2"},
        {PRE("{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"never\"}"), "a a",
         "1 8"},
        {PRE("{\"type\":\"ByteLevel\",\"add_prefix_space\":false}"), "abc", "7"},
        /* An interval with a plus repeats, it is not possessive; (?m) is the dot's. */
        {SPLIT("{\"Regex\":\"b{1,2}+c\"}", "Removed", "false"), "abbbbca", "1 1"},
        {SPLIT("{\"Regex\":\"b{,2}c\"}", "Removed", "false"), "abbca", "1 1"},
        {SPLIT("{\"Regex\":\"(?m)b.c\"}", "Removed", "false"), "ab\nca", "1 1"},
        {SPLIT("{\"Regex\":\"a\\\\b.\"}", "Removed", "false"), "ab.a.", "6 10"},
        /* What Oniguruma's \s and \w mean: U+180E is no space, a mark is part of a word. */
        {SPLIT("{\"Regex\":\"\\\\s\"}", "Removed", "false"),
         "a\xe1\xa0\x8e"
         "b\xc2\x85"
         "c",
         "1 0 2 3"},
        {SPLIT("{\"Regex\":\"\\\\w+\"}", "Removed", "false"),
         "a\xcc\x81"
         "b.c",
         "10"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char json[4096];
        snprintf(json, sizeof json, "{%s" MODEL "}}", cases[i].parts);
        struct spw_tokenizer *t = parse(json);
        if (t)
            expect_ids(t, cases[i].text, cases[i].ids);
        spw_tokenizer_close(t);
    }
}

static void test_template(void)
{
    struct spw_tokenizer *t = parse(SIMPLE("\"added_tokens\":[" ADDED(20, "<s>", "") "," ADDED(
        21, "</s>",
        "") "],"
            "\"post_processor\":{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"},"
            "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"B\"}},"
            "{\"Sequence\":{\"id\":\"A\"}},{\"SpecialToken\":{\"id\":\"E\"}}],\"special_tokens\":"
            "{\"B\":{\"ids\":[20]},\"E\":{\"ids\":[21,21]}}}]},"));
    char out[4096];
    CHECK(!strcmp(encode_text(t, "ab", 2, true, out), "20 6 21 21"));
    CHECK(!strcmp(encode_text(t, "", 0, true, out), "20 21 21"));
    CHECK(!strcmp(encode_text(t, "ab", 2, false, out), "6"));
    spw_tokenizer_close(t);
}

static void test_decoders(void)
{
    struct spw_tokenizer *t = parse(
        "{\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":"
        "{\"String\":\"_\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":"
        "\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":1}]}," MODEL "}}");
    expect_text(t, IDS(8, 8), "a a");
    expect_text(t, IDS(5, 5, 1, 5, 5), " a ");
    expect_text(t, IDS(1, 11, 12, 2),
                "a\xc3\xa9"
                "b");
    /* One bad byte makes the whole run U+FFFD, one for each byte. */
    expect_text(t, IDS(1, 11, 12, 12), "a\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
    expect_bytes(t, 11, "\xc3");
    expect_bytes(t, 12, "\xa9");
    expect_bytes(t, 8, " a");
    expect_bytes(t, 5, " ");
    expect_bytes(t, 99, "");
    expect_bytes(t, -1, "");
    spw_tokenizer_close(t);

    t = parse("{\"decoder\":{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":"
              "\"always\"}," MODEL "}}");
    expect_text(t, IDS(8, 8), "a a");
    expect_bytes(t, 8, " a");
    spw_tokenizer_close(t);

    /* Stand-ins of E2 82 AC (the euro sign) and of FF; Rust replaces each maximal part. */
    t = parse("{\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"merges\":[],"
              "\"vocab\":{\"\xc3\xa2\":0,\"\xc4\xa4\":1,\"\xc2\xac\":2,\"\xc3\xbf\":3,"
              "\"\xc4\xa0x\":4,\"\xe2\x82\xac\":5}}}");
    expect_text(t, IDS(0, 1, 2, 4), "\xe2\x82\xac x");
    expect_text(t, IDS(0, 1, 4, 3, 0), "\xef\xbf\xbd x\xef\xbf\xbd\xef\xbf\xbd");
    expect_text(t, IDS(0, 1), "\xef\xbf\xbd");
    expect_bytes(t, 0, "\xe2");
    expect_bytes(t, 1, "\x82");
    expect_bytes(t, 3, "\xff");
    expect_bytes(t, 4, " x");
    expect_bytes(t, 5, "\xe2\x82\xac");
    expect_text(t, IDS(5), "\xe2\x82\xac"); /* not of the alphabet: itself */
    struct spw_detokenizer *d = NULL;
    const char *text = NULL;
    size_t bytes = 0;
    CHECK(!spw_detokenizer_init(&d, t, false));
    CHECK(!spw_detokenizer_push(d, 0, &text, &bytes) && bytes == 0);
    CHECK(!spw_detokenizer_push(d, 1, &text, &bytes) && bytes == 0);
    CHECK(!spw_detokenizer_push(d, 2, &text, &bytes) && bytes == 3);
    spw_detokenizer_free(d);
    spw_tokenizer_close(t);
}

/* ---- random streams ---- */

static void test_streaming(const char *file)
{
    char path[1024];
    struct spw_tokenizer *t = open_shared(file, path);
    if (!t)
        return;
    uint64_t seed = check_seed(), state = seed;
    uint32_t vocab = spw_tokenizer_vocab_size(t);
    bool same = true;
    for (int round = 0; same && round < 400; round++) {
        int32_t ids[48];
        size_t n = check_range(&state, 0, 48);
        /* Low ids are the byte tokens of these vocabularies. */
        for (size_t i = 0; i < n; i++)
            ids[i] = (int32_t)check_range(&state, 0, check_random(&state) % 2 ? 260 : vocab + 3);
        same = streams_alike(t, ids, n, round % 2);
    }
    CHECK_MSG(same, "%s: streamed text differs, SPW_SEED=%llu", file, (unsigned long long)seed);
    spw_tokenizer_close(t);
}

/* The bytes of a text's tokens, one after the other, are the text. */
static void test_token_bytes(const char *file, bool keeps_text)
{
    static const char text[] =
        " Za\xc5\xbc\xc3\xb3\xc5\x82\xc4\x87 \xf0\x9f\x99\x82 <0x41> \xe4\xbd\xa0\xe5\xa5\xbd"
        "\n\n  x=1;\t\xe2\x82\xac ok";
    char path[1024], *all = NULL;
    struct spw_tokenizer *t = open_shared(file, path);
    struct spw_error err = {0};
    int32_t *ids = NULL;
    size_t n = 0, n_all = 0;
    if (!t)
        return;
    CHECK(!spw_tokenizer_encode(t, text, sizeof text - 1, false, &ids, &n, &err) && n > 10);
    for (size_t i = 0; i < n; i++) {
        char *part = NULL;
        size_t bytes = 0;
        CHECK(!spw_tokenizer_token_bytes(t, ids[i], &part, &bytes));
        all = spw_realloc(all, n_all + bytes + 1);
        memcpy(all + n_all, part, bytes + 1);
        n_all += bytes;
        spw_free(part);
    }
    size_t front = keeps_text ? 0 : 1; /* the space that the normalizer adds */
    CHECK_MSG(n_all == sizeof text - 1 + front && !strcmp(all + front, text), "%s: '%s'", file,
              all);
    spw_free(all);
    spw_free(ids);
    spw_tokenizer_close(t);
}

/* ---- bad input ---- */

static void expect_refusal(const char *json, size_t bytes, int code, const char *part)
{
    struct spw_tokenizer *t = NULL;
    struct spw_error err = {0};
    int rc = spw_tokenizer_parse(&t, json, bytes, "bad.json", &err);
    CHECK_MSG(rc == code, "%d for %.200s", rc, json);
    CHECK_MSG(!strncmp(err.text, "bad.json: ", 10) && strstr(err.text, part), "\"%s\" lacks \"%s\"",
              err.text, part);
    CHECK(!strchr(err.text, '\n'));
    if (!rc)
        spw_tokenizer_close(t);
}

#define BPE(vocab, merges)                                                                         \
    "{\"model\":{\"type\":\"BPE\",\"vocab\":{" vocab "},\"merges\":[" merges "]}}"

struct refused {
    const char *json;
    int code;
    const char *part;
};

static void expect_refusals(const struct refused *cases, size_t n)
{
    for (size_t i = 0; i < n; i++)
        expect_refusal(cases[i].json, strlen(cases[i].json), cases[i].code, cases[i].part);
}

#define EXPECT_REFUSALS(cases) expect_refusals(cases, sizeof(cases) / sizeof *(cases))

static void refuse_bad_json(void)
{
    static const struct refused cases[] = {
        {"", -EINVAL, "empty"},
        {" ", -EINVAL, "line 1"},
        {"{\"model\":{},\"model\":{}}", -EINVAL, "twice"},
        {"{\"model\":{\"vocab\":{},\"vocab\":{}}}", -EINVAL, "twice"},
        {"\n{\"model\":{\"vocab\":{\n\"a\":0\n\"b\":1},\"merges\":[]}}", -EINVAL, "line 4"},
        {"{\"model\":{\"vocab\":{\n\n},\"merges\":[]},\n\"x\":}", -EINVAL, "line 4"},
        {BPE("\"a\":0,", ""), -EINVAL, "not JSON"},
        {BPE("\"a\":00", ""), -EINVAL, "not JSON"},
        {BPE("\"a\\u0000\":0", ""), -EINVAL, "not JSON"},
        {BPE("\"a\\ud800\":0", ""), -EINVAL, "not JSON"},
        {BPE("\"a\\x\":0", ""), -EINVAL, "not JSON"},
        {BPE("\"a\n\":0", ""), -EINVAL, "not JSON"},
        {BPE("\"a\":true", ""), -EINVAL, "found true"},
        {BPE("\"a\":0", "\"a a\",,"), -EINVAL, "merges"},
        {BPE("\"a\":99999999999999999999", ""), -EINVAL, "not JSON"},
    };
    EXPECT_REFUSALS(cases);
    expect_refusal("{\"model\":\xff}", 11, -EINVAL, "line 1");
}

static void refuse_vocabularies(void)
{
    static const struct refused cases[] = {
        {"[]", -EINVAL, "found a list, expected an object"},
        {"{}", -EINVAL, "model: found nothing"},
        {"{\"model\":3}", -EINVAL, "model: found 3"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", -ENOTSUP, "found \"Unigram\""},
        {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{}}}", -ENOTSUP, "found \"WordPiece\""},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":[],\"merges\":[]}}", -EINVAL, "model.vocab"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{}}}", -EINVAL, "model.merges: found nothing"},
        {BPE("\"a\":0,\"a\":1", ""), -EINVAL, "found \"a\" twice"},
        {BPE("\"a\":0,\"b\":0", ""), -EINVAL, "found id 0 for both"},
        {BPE("\"a\":-1", ""), -EINVAL, "model.vocab.a: found -1"},
        {BPE("\"a\":1.5", ""), -EINVAL, "found 1.5"},
        {BPE("\"a\":\"1\"", ""), -EINVAL, "found \"1\""},
        {BPE("\"a\":4194304", ""), -EINVAL, "found 4194304"},
        {BPE("\"a\":99999999999", ""), -EINVAL, "found 99999999999"},
        {BPE("\"a\":0", "\"a b\""), -EINVAL, "merges[0]: found the token \"b\""},
        {BPE("\"a\":0,\"b\":1", "\"a b\""), -EINVAL, "found the token \"ab\""},
        {BPE("\"a\":0,\"b\":1", "\"ab\""), -EINVAL, "merges[0]: found \"ab\""},
        {BPE("\"a\":0,\"b\":1", "\"a b c\""), -EINVAL, "merges[0]"},
        {BPE("\"a\":0,\"b\":1", "[\"a\"]"), -EINVAL, "merges[0]: found a list"},
        {BPE("\"a\":0,\"b\":1", "7"), -EINVAL, "merges[0]: found 7"},
        {"{\"model\":{\"type\":\"BPE\",\"dropout\":0.1,\"vocab\":{},\"merges\":[]}}", -ENOTSUP,
         "model.dropout: found 0.1"},
        {"{\"model\":{\"type\":\"BPE\",\"end_of_word_suffix\":\"</w>\",\"vocab\":{},\"merges\":[]"
         "}}",
         -ENOTSUP, "end_of_word_suffix"},
    };
    EXPECT_REFUSALS(cases);
}

static void refuse_added_tokens(void)
{
    static const struct refused cases[] = {
        {SIMPLE("\"added_tokens\":{},"), -EINVAL, "added_tokens: found an object"},
        {SIMPLE("\"added_tokens\":[3],"), -EINVAL, "added_tokens[0]: found 3"},
        {SIMPLE("\"added_tokens\":[{\"id\":20}],"), -EINVAL, "added_tokens[0].content"},
        {SIMPLE("\"added_tokens\":[{\"content\":\"x\"}],"), -EINVAL, "added_tokens[0].id"},
        {SIMPLE("\"added_tokens\":[" ADDED(3, "x", "") "],"), -EINVAL, "found id 3 for \"x\""},
        {SIMPLE("\"added_tokens\":[" ADDED(20, "a", "") "],"), -EINVAL, "found id 20 for \"a\""},
        {SIMPLE("\"added_tokens\":[" ADDED(20, "x", "") "," ADDED(20, "y", "") "],"), -EINVAL,
         "added_tokens[1]"},
        {SIMPLE("\"added_tokens\":[" ADDED(20, "x", "") "," ADDED(21, "x", "") "],"), -EINVAL,
         "added_tokens[1]"},
        {SIMPLE("\"added_tokens\":[" ADDED(20, "x", ",\"lstrip\":1") "],"), -EINVAL,
         "added_tokens[0].lstrip: found 1"},
    };
    EXPECT_REFUSALS(cases);
}

/* Normalizers and pre-tokenizers. */
static void refuse_rules(void)
{
    static const struct refused cases[] = {
        {SIMPLE(NORM("{\"type\":\"BertNormalizer\"}")), -ENOTSUP,
         "normalizer.type: found \"BertNormalizer\", expected Sequence, NFC"},
        {SIMPLE(NORM("7")), -EINVAL, "normalizer: found 7"},
        {SIMPLE(NORM("{}")), -EINVAL, "normalizer.type: found nothing"},
        {SIMPLE(NORM("{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Nmt\""
                     "}]}")),
         -ENOTSUP, "normalizer.normalizers[1].type: found \"Nmt\""},
        {SIMPLE(NORM("{\"type\":\"Prepend\"}")), -EINVAL, "normalizer.prepend"},
        {SIMPLE(NORM("{\"type\":\"Replace\",\"pattern\":\"x\",\"content\":\"\"}")), -EINVAL,
         "normalizer.pattern: found \"x\""},
        {SIMPLE(PRE("{\"type\":\"FixedLength\"}")), -ENOTSUP, "found \"FixedLength\""},
        {SIMPLE(SPLIT("{\"Regex\":\"(\"}", "Isolated", "false")), -EINVAL, "does not compile"},
        {SIMPLE(SPLIT("{\"Regex\":\"[a[b]]\"}", "Isolated", "false")), -ENOTSUP, "byte 2"},
        {SIMPLE(SPLIT("{\"Regex\":\"[a&&b]\"}", "Isolated", "false")), -ENOTSUP, "&&"},
        {SIMPLE(SPLIT("{\"Regex\":\"(ab){2}+\"}", "Isolated", "false")), -ENOTSUP, "byte 4"},
        {SIMPLE(SPLIT("{\"Regex\":\"(*UTF)a\"}", "Isolated", "false")), -ENOTSUP, "byte 0"},
        {SIMPLE(SPLIT("{\"Regex\":\"[[:upper:]]\"}", "Isolated", "false")), -ENOTSUP, "byte 1"},
        {SIMPLE(SPLIT("{\"Regex\":\"\\\\C\"}", "Isolated", "false")), -EINVAL, "does not compile"},
        {SIMPLE(SPLIT("{\"String\":\"x\"}", "Sometimes", "false")), -EINVAL, "behavior"},
        {SIMPLE(SPLIT("{\"String\":\"x\"}", "Isolated", "0")), -EINVAL, "invert: found 0"},
        {SIMPLE(PRE("{\"type\":\"Metaspace\",\"replacement\":\"__\"}")), -EINVAL, "replacement"},
        {SIMPLE(PRE("{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"x\"}")),
         -EINVAL, "prepend_scheme: found \"x\""},
    };
    EXPECT_REFUSALS(cases);
}

/* And decoders. */
static void refuse_post_processors(void)
{
    static const struct refused cases[] = {
        {SIMPLE("\"post_processor\":{\"type\":\"BertProcessing\"},"), -ENOTSUP, "post_processor"},
        {SIMPLE("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":"
                "{\"id\":\"<s>\"}},{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{}},"),
         -EINVAL, "special_tokens"},
        {SIMPLE("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":"
                "{\"id\":\"s\"}},{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"s\":{\"ids\":"
                "[77]}}},"),
         -EINVAL, "special token id 77"},
        {SIMPLE("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[]},"), -ENOTSUP,
         "exactly one"},
        {SIMPLE("\"decoder\":{\"type\":\"WordPiece\"},"), -ENOTSUP, "decoder.type"},
        {SIMPLE("\"decoder\":{\"type\":\"Strip\",\"content\":\" \",\"start\":-1,\"stop\":0},"),
         -EINVAL, "decoder.start: found -1"},
    };
    EXPECT_REFUSALS(cases);
}

/* A Sequence in a Sequence, too often. */
static void refuse_nesting(void)
{
    char json[4096] = "{\"normalizer\":";
    for (int i = 0; i < 20; i++)
        strcat(json, "{\"type\":\"Sequence\",\"normalizers\":[");
    strcat(json, "{\"type\":\"NFC\"}");
    for (int i = 0; i < 20; i++)
        strcat(json, "]}");
    strcat(json, "," MODEL "}}");
    expect_refusal(json, strlen(json), -ENOTSUP, "8 deep");
}

static void refuse_files(void)
{
    struct spw_tokenizer *t = NULL;
    struct spw_error err = {0};
    CHECK(spw_tokenizer_open(&t, "no/such/tokenizer.json", &err) == -ENOENT);
    CHECK(strstr(err.text, "no/such/tokenizer.json: "));
    spw_error_clear(&err);
    CHECK(spw_tokenizer_open(&t, "/", &err) == -EINVAL);
}

static void test_refusals(void)
{
    refuse_bad_json();
    refuse_vocabularies();
    refuse_added_tokens();
    refuse_rules();
    refuse_post_processors();
    refuse_nesting();
    refuse_files();
}

static void test_invalid_text(void)
{
    static const struct {
        const char *text;
        const char *offset;
    } cases[] = {
        {"ab\xff", "offset 2"},
        {"\xc3", "offset 0"},
        {"a\xc0\x80", "offset 1"},
        {"\xed\xa0\x80", "offset 0"},
        {"abc\xf4\x90\x80\x80", "offset 3"},
        {"\xe2\x82", "offset 0"},
    };
    struct spw_tokenizer *t = parse(SIMPLE(""));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int32_t *ids = NULL;
        size_t n = 0;
        struct spw_error err = {0};
        int rc =
            spw_tokenizer_encode(t, cases[i].text, strlen(cases[i].text), true, &ids, &n, &err);
        CHECK(rc == -EILSEQ && !ids);
        CHECK_MSG(strstr(err.text, cases[i].offset), "%s", err.text);
    }
    spw_tokenizer_close(t);
}

/* A pattern that backtracks without end gives an error, not a hang. */
static void test_match_limit(void)
{
    struct spw_tokenizer *t =
        parse(SIMPLE(SPLIT("{\"Regex\":\"(a+)+[cd]\"}", "Isolated", "false")));
    char text[201], out[4096];
    memset(text, 'a', 200);
    text[200] = 0;
    CHECK(!strcmp(encode_text(t, text, 200, false, out), "error"));
    spw_tokenizer_close(t);
}

/* Patterns of models step back through a whole run of white space. No run is too long for them. */
static void test_long_run(void)
{
    enum { SPACES = 3000000 };
    struct spw_tokenizer *t = parse(SIMPLE(
        SPLIT("{\"Regex\":\"\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"}", "Removed", "false")));
    char *text = malloc(SPACES + 2);
    int32_t *ids = NULL;
    size_t n = 0;
    struct spw_error err = {0};
    CHECK(text);
    memset(text, ' ', SPACES);
    memcpy(text + SPACES, "a", 2);
    /* Both parts of the run are removed. */
    CHECK_MSG(!spw_tokenizer_encode(t, text, SPACES + 1, false, &ids, &n, &err) && n == 1, "%s %zu",
              err.text ? err.text : "", n);
    spw_free(ids);
    free(text);
    spw_error_clear(&err);
    spw_tokenizer_close(t);
}

/* ---- allocation failures ---- */

static const char rich[] = SIMPLE(
    "\"added_tokens\":[" ADDED(20, "<s>", "") "," ADDED(
        21, "B a",
        ",\"normalized\":true") "]," NORM("{\"type\":\"Sequence\",\"normalizers\":[{\"type\":"
                                          "\"NFC\"},{\"type\":\"Replace\","
                                          "\"pattern\":{\"Regex\":\"\\\\p{Han}+ "
                                          "\"},\"content\":\"_\"},{\"type\":\"Lowercase\"}]}")
        PRE("{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"
            "\"\\\\s\\\\w\"},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\"},"
            "{\"type\":\"Metaspace\",\"replacement\":\"_\"}]}") "\"post_processor\":{\"type\":"
                                                                "\"TemplateProcessing\",\"single\":"
                                                                "[{\"SpecialToken\":{\"id\":"
                                                                "\"B\"}},{\"Sequence\":{\"id\":"
                                                                "\"A\"}}],\"special_tokens\":{"
                                                                "\"B\":{\"ids\":[20]}}},"
                                                                "\"decoder\":{\"type\":"
                                                                "\"Sequence\",\"decoders\":[{"
                                                                "\"type\":\"Replace\",\"pattern\":{"
                                                                "\"Regex\":"
                                                                "\"_\"},\"content\":\" "
                                                                "\"},{\"type\":\"ByteFallback\"},{"
                                                                "\"type\":\"Fuse\"},{\"type\":"
                                                                "\"ByteLevel\"}]},");

static int use_all(char out[4096])
{
    static const char text[] = "ab <s> B a \xc3\xa9\xcc\x81 a b c abc abc abc";
    struct spw_tokenizer *t = NULL;
    struct spw_error err = {0};
    int32_t *ids = NULL;
    size_t n = 0, bytes = 0;
    char *back = NULL;
    int rc = spw_tokenizer_parse(&t, rich, sizeof rich - 1, "rich.json", &err);
    if (!rc)
        rc = spw_tokenizer_encode(t, text, sizeof text - 1, true, &ids, &n, &err);
    if (!rc)
        rc = spw_tokenizer_decode(t, ids, n, false, &back, &bytes);
    if (!rc)
        snprintf(out, 4096, "%zu %s", n, back);
    spw_free(back);
    spw_free(ids);
    spw_tokenizer_close(t);
    return rc;
}

static void test_allocation_failures(void)
{
    char expected[4096], got[4096];
    int64_t before = spw_alloc_outstanding(), n = 0;
    int rc = use_all(expected);
    CHECK_MSG(!rc, "%d", rc);
    json_set_alloc_funcs(json_alloc, json_free);
    /* Success need not be the end: some failures (of a JIT compiler) only make things slower. */
    for (int successes = 0; successes < 20 && n < 10000; n++) {
        spw_alloc_fail_nth(n);
        rc = use_all(got);
        spw_alloc_fail_nth(-1);
        CHECK_MSG(!rc || rc == -ENOMEM, "allocation %lld: %d", (long long)n, rc);
        CHECK_MSG(rc || !strcmp(got, expected), "allocation %lld", (long long)n);
        CHECK_MSG(spw_alloc_outstanding() == before, "allocation %lld leaks", (long long)n);
        successes = rc ? 0 : successes + 1;
    }
    json_set_alloc_funcs(malloc, free);
    CHECK(!rc && n > 60 && !json_outstanding);
    fprintf(stderr, "%lld allocations failed in turn\n", (long long)n);

    /* Cut anywhere, the file is refused and nothing leaks. */
    for (size_t cut = 0; cut < sizeof rich - 1; cut++) {
        struct spw_tokenizer *t = NULL;
        struct spw_error err = {0};
        CHECK(spw_tokenizer_parse(&t, rich, cut, "cut.json", &err) == -EINVAL && err.text[0]);
    }
    CHECK(spw_alloc_outstanding() == before);
}

static void test_threads(void)
{
    struct spw_tokenizer *t = parse(rich);
    struct worker workers[4];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        workers[i] = (struct worker){.t = t, .text = "a b <s> abc B a \xe4\xbd\xa0 cab ab. 11"};
        CHECK(!pthread_create(&threads[i], NULL, encode_often, &workers[i]));
    }
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 4; i++)
        CHECK(workers[i].out[0] && !strcmp(workers[i].out, workers[0].out));
    spw_tokenizer_close(t);
}

/* ---- answers for the property script ---- */

static void serve_encode(const struct spw_tokenizer *t, bool special, const char *hex)
{
    size_t bytes = strlen(hex) / 2, n = 0;
    char *text = malloc(bytes + 1);
    int32_t *ids = NULL;
    struct spw_error err = {0};
    for (size_t i = 0; text && i < bytes; i++) {
        char digits[3] = {hex[2 * i], hex[2 * i + 1], 0};
        text[i] = (char)strtoul(digits, NULL, 16);
    }
    if (!text || spw_tokenizer_encode(t, text, bytes, special, &ids, &n, &err))
        printf("error %s", err.text);
    for (size_t i = 0; i < n; i++)
        printf(i ? " %d" : "%d", ids[i]);
    spw_free(ids);
    free(text);
}

static void serve_decode(const struct spw_tokenizer *t, bool skip, char *list)
{
    static int32_t ids[1 << 16];
    size_t n = 0, bytes = 0;
    char *text = NULL;
    for (char *p = strtok(list, " "); p && n < 1 << 16; p = strtok(NULL, " "))
        ids[n++] = (int32_t)strtol(p, NULL, 10);
    if (spw_tokenizer_decode(t, ids, n, skip, &text, &bytes))
        printf("error");
    else if (!streams_alike(t, ids, n, skip))
        printf("error: streamed text differs");
    for (size_t i = 0; i < bytes; i++)
        printf("%02x", (unsigned)(unsigned char)text[i]);
    spw_free(text);
}

static int serve(const char *file)
{
    struct spw_tokenizer *t = NULL;
    struct spw_error err = {0};
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    if (spw_tokenizer_open(&t, file, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 2;
    }
    while ((n = getline(&line, &room, stdin)) > 0) {
        line[n - 1] = 0;
        if (n > 4 && line[0] == 'e')
            serve_encode(t, line[2] == '1', line + 4);
        else if (n > 4)
            serve_decode(t, line[2] == '1', line + 4);
        putchar('\n');
        fflush(stdout);
    }
    free(line);
    spw_tokenizer_close(t);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "--serve"))
        return serve(argv[2]);
    test_models();
    test_escapes();
    test_added_tokens();
    test_plain_spans();
    test_plain_specials("gpt2");
    test_plain_specials("qwen2.5");
    test_plain_specials("phi-3-mini");
    test_steps();
    test_template();
    test_decoders();
    test_refusals();
    test_invalid_text();
    test_match_limit();
    test_long_run();
    test_allocation_failures();
    test_threads();
    test_vectors("gpt2", true);
    test_vectors("qwen2.5", false); /* NFC changes the text */
    test_vectors("phi-3-mini", true);
    test_golden_prompts();
    test_streaming("tokenizers/gpt2/tokenizer.json");
    test_streaming("tokenizers/phi-3-mini/tokenizer.json");
    test_token_bytes("tokenizers/gpt2/tokenizer.json", true);
    test_token_bytes("tokenizers/qwen2.5/tokenizer.json", true);
    test_token_bytes("tokenizers/phi-3-mini/tokenizer.json", false);
    test_book("gpt2");
    test_book("phi-3-mini");
    CHECK(spw_alloc_outstanding() == 0);
    return check_done();
}
