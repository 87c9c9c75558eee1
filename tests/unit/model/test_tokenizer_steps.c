/* Tokenizers out of hand-made files: the models, added tokens, plain spans, each kind of
 * normalizer, pre-tokenizer, post-processor and decoder. */
#include "model/text/tokenizer/tokenizer_impl.h"
#include "tests/tokenizer_json.h"

#include <time.h>
#include <utf8proc.h>

static void expect_ids(const struct spw_tokenizer *t, const char *text, const char *ids)
{
    char out[4096];
    const char *got = encode_text(t, text, strlen(text), false, out);
    CHECK_MSG(!strcmp(got, ids), "\"%s\": %s, expected %s", text, got, ids);
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

/* ---- models and tokens ---- */

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

/* The ids are those of the tokenizers package. */
static void test_unigram(void)
{
#define UNIGRAM(more, model)                                                                       \
    "{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"<unk>\",0],[\"a\",-1],[\"b\",-1],[\"ab\",-2]," \
    "[\"abc\",-2.5],[\"c\",-1],[\"bc\",-1.5],[\"\\u00e9\",-3]" more "]" model "}}"
    struct spw_tokenizer *t = parse(UNIGRAM("", ",\"unk_id\":0"));
    expect_ids(t, "abc", "4"); /* as good as a bc, and found first */
    expect_ids(t, "ab", "3");
    expect_ids(t, "xya", "0 1"); /* unknown characters are one token */
    expect_ids(t,
               "\xc3\xa9\xe6\x97\xa5\xe6\x9c\xac"
               "b",
               "7 0 2");
    expect_ids(t, "xabx", "0 3 0");
    expect_ids(t, "<unk>", "0");
    expect_text(t, IDS(4, 7), "abc \xc3\xa9");
    spw_tokenizer_close(t);

    t = parse(UNIGRAM(",[\"<0x78>\",0],[\"<0xE6>\",0],[\"<0x97>\",0],[\"<0xA5>\",0]",
                      ",\"unk_id\":0,\"byte_fallback\":true"));
    expect_ids(t, "xx", "8 8");
    expect_ids(t, "xy", "0"); /* one token, and there is no byte of y */
    expect_ids(t,
               "\xe6\x97\xa5"
               "a",
               "9 10 11 1");
    spw_tokenizer_close(t);

    t = parse(UNIGRAM("", ""));
    expect_ids(t, "a", "1");
    expect_ids(t, "x", "error");
    spw_tokenizer_close(t);
}

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

/* ---- steps ---- */

/* ! becomes b, carriage return and newline become c, a tab vanishes. */
#define CHARSMAP                                                                                   \
    "hAAAAAAEAAAAAAAABAAAgAAAAAACAACAAAAAgAAAAAAAAAAACSkAAAo1AAAAAAAAAAAAAA08AAAAAAAAAAAAAAAAAAAA" \
    "AAAA"                                                                                         \
    "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAIZUAAGIAYwAA"

static void test_steps(void)
{
    static const struct {
        const char *parts, *text, *ids;
    } cases[] = {
        {NORM("{\"type\":\"Lowercase\"}"), "ABC", "7"},
        {NORM("{\"type\":\"Prepend\",\"prepend\":\"_\"}"), "ab", "5 6"}, /* a b before _ a */
        {NORM("{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":false}"), " \n a ", "1 4"},
        {NORM("{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"[xy]+\"},\"content\":\"b\"}"),
         "axyxc", "7"},
        {NORM("{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"" CHARSMAP "\"}"), "a!\t\r\n",
         "7"},
        /* A cluster is replaced as a whole; one of seven bytes is not. */
        {NORM("{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"" CHARSMAP "\"}"),
         "a!\xcc\x81\r\na!\xcc\x81\xcc\x81\xcc\x81", "7 6 0 0 0"},
        {NORM("{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"\"}"), "abc", "7"},
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

/* Doublings: a text of one byte does not become gigabytes, and neither does an added token. */
static void test_normal_limit(void)
{
    enum { DOUBLINGS = 60 };
    static const char one[] =
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aa\"}";
    char json[8192] = "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[";
    for (int i = 0; i < DOUBLINGS; i++)
        sprintf(json + strlen(json), "%s%s", i ? "," : "", one);
    size_t head = strlen(json);
    sprintf(json + head, "]}," MODEL "}}");
    struct spw_tokenizer *t = parse(json);
    struct spw_error err = {0};
    int32_t *ids;
    size_t n;
    CHECK(spw_tokenizer_encode(t, "a", 1, false, &ids, &n, &err) == -EINVAL);
    CHECK_MSG(!strcmp(err.text, "text: the normalizer of the tokenizer makes more than 1048592 "
                                "bytes of it"),
              "%s", err.text);
    spw_tokenizer_close(t);
    sprintf(json + head,
            "]},\"added_tokens\":[" ADDED(20, "a!", ",\"normalized\":true") "]," MODEL "}}");
    spw_error_clear(&err);
    CHECK(spw_tokenizer_parse(&t, json, strlen(json), "test.json", &err) == -EINVAL);
    CHECK_MSG(strstr(err.text, "makes more than 1048608 bytes of \"a!\""), "%s", err.text);
}

static void expect_form(const char *text, size_t bytes, utf8proc_option_t options,
                        enum spw_tok_kind kind)
{
    struct spw_tokenizer t = {.norms = {.n = 1, .at = {{.kind = kind}}}};
    struct spw_tok_matcher m = {0};
    struct spw_tok_buf out = {0};
    utf8proc_uint8_t *expected = NULL;
    bool at_start = true;
    utf8proc_ssize_t n = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)bytes,
                                      &expected, options | UTF8PROC_STABLE);
    CHECK(!spw_tok_normalize(&t, &m, text, bytes, &out, &at_start));
    CHECK_MSG((size_t)n == out.n && (!n || !memcmp(out.data, expected, out.n)), "%.*s", (int)bytes,
              text);
    free(expected);
    spw_tok_buf_free(&out);
}

/* Marks in any order: as utf8proc has them, and a run of any length takes its time once. */
static void test_marks(void)
{
    static const char *const chars[] = {"a",        "\xcc\x81", "\xcc\x96",     "\xd6\xb0",
                                        "\xcd\x85", "\xc3\xa1", "\xef\xb7\xba", "\xea\xb0\x81",
                                        "\xcc\xa7", "1"};
    static char text[4 * 200000 + 16];
    uint64_t seed = check_seed();
    for (int round = 0; round < 2000; round++) {
        text[0] = 0;
        for (uint64_t n = check_random(&seed) % 24; n; n--)
            strcat(text, chars[check_random(&seed) % (sizeof chars / sizeof *chars)]);
        expect_form(text, strlen(text), UTF8PROC_COMPOSE, SPW_TOK_NFC);
        expect_form(text, strlen(text), UTF8PROC_DECOMPOSE, SPW_TOK_NFD);
        expect_form(text, strlen(text), UTF8PROC_COMPOSE | UTF8PROC_COMPAT, SPW_TOK_NFKC);
        expect_form(text, strlen(text), UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT, SPW_TOK_NFKD);
    }
    text[0] = 'a';
    for (int i = 0; i < 200000; i++)
        memcpy(text + 1 + 2 * i, i % 2 ? "\xcc\x96" : "\xcc\x81", 2);
    struct spw_tokenizer *t = parse(SIMPLE(NORM("{\"type\":\"NFD\"}")));
    struct spw_error err = {0};
    int32_t *ids = NULL;
    size_t n = 0;
    clock_t begin = clock();
    CHECK_MSG(!spw_tokenizer_encode(t, text, 1 + 400000, false, &ids, &n, &err), "%s", err.text);
    double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
    CHECK_MSG(seconds < 20, "%.1f s", seconds); /* quadratic: 190 s */
    spw_free(ids);
    spw_tokenizer_close(t);
}

static bool stopped_now(void)
{
    return true;
}

static void test_stopped(void)
{
    struct spw_tokenizer *t = parse(SIMPLE(""));
    const struct spw_encoding e = {.text = "abc", .bytes = 3, .stopped = stopped_now};
    struct spw_error err = {0};
    int32_t *ids = NULL;
    size_t n = 0;
    CHECK(spw_tokenizer_encode_spans(t, &e, &ids, &n, &err) == -ECANCELED && !ids);
    spw_tokenizer_close(t);
}

static int n_asked;

static bool stopped_later(void)
{
    return n_asked++;
}

/* One piece of 200,000 characters: the model asks, too. */
static void test_stopped_inside(void)
{
    static const char *const models[] = {
        UNIGRAM("", ",\"unk_id\":0"),
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"aa\":1},\"merges\":[[\"a\",\"a\"]]}}"};
    static char text[200000];
    memset(text, 'a', sizeof text);
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct spw_tokenizer *t = parse(models[i]);
        const struct spw_encoding e = {
            .text = text, .bytes = sizeof text, .stopped = stopped_later};
        struct spw_error err = {0};
        int32_t *ids = NULL;
        size_t n = 0;
        n_asked = 0;
        CHECK(spw_tokenizer_encode_spans(t, &e, &ids, &n, &err) == -ECANCELED && n_asked == 2);
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
    t = parse(SIMPLE("\"added_tokens\":[" ADDED(20, "<s>", "") "," ADDED(
        21, "</s>", "") "],"
                        "\"post_processor\":{\"type\":\"RobertaProcessing\",\"sep\":[\"</s>\",21],"
                        "\"cls\":[\"<s>\",20],\"trim_offsets\":true,\"add_prefix_space\":false},"));
    CHECK(!strcmp(encode_text(t, "ab", 2, true, out), "20 6 21"));
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

int main(void)
{
    test_models();
    test_unigram();
    test_escapes();
    test_added_tokens();
    test_plain_spans();
    test_steps();
    test_template();
    test_normal_limit();
    test_marks();
    test_stopped();
    test_stopped_inside();
    test_decoders();
    CHECK(spw_alloc_outstanding() == 0);
    return check_done();
}
