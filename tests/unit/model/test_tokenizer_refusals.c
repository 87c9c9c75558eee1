/* Tokenizer files that are refused, and why; texts that are not UTF-8; patterns that would match
 * for ever. */
#include "tests/tokenizer_json.h"

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
        {BPE("\"a\":0", "\"a a\",,"), -EINVAL, "not JSON: found ','"},
        {BPE("\"a\":99999999999999999999", ""), -EINVAL, "not JSON"},
    };
    EXPECT_REFUSALS(cases);
    expect_refusal("{\"model\":\xff}", 11, -EINVAL, "line 1");
}

static void refuse_vocabularies(void)
{
    static const struct refused cases[] = {
        {"[]", -EINVAL, "found a list of 0, expected an object"},
        {"{}", -EINVAL, "model: found nothing"},
        {"{\"model\":3}", -EINVAL, "model: found 3"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":{}}}", -EINVAL, "expected a list"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\"]]}}", -EINVAL,
         "vocab[0]: found a list of 1"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",0],[\"a\",1]]}}", -EINVAL, "twice"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",0]],\"unk_id\":1}}", -EINVAL,
         "unk_id: found 1"},
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
        {SIMPLE(NORM("{\"type\":\"Precompiled\"}")), -EINVAL, "charsmap: found nothing"},
        {SIMPLE(NORM("{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"?\"}")), -EINVAL,
         "in base64"},
        {SIMPLE(NORM("{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"BAAAAAAA\"}")), -EINVAL,
         "as SentencePiece makes it"},
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
        {SIMPLE("\"post_processor\":{\"type\":\"RobertaProcessing\",\"cls\":[\"a\",1]},"), -EINVAL,
         "post_processor.sep: found nothing"},
        {SIMPLE("\"post_processor\":{\"type\":\"RobertaProcessing\",\"cls\":[\"a\",77],"
                "\"sep\":[\"a\",1]},"),
         -EINVAL, "special token id 77"},
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
    CHECK(spw_tokenizer_open_folder(&t, "no/such", &err) == -ENOENT);
    CHECK(strstr(err.text, "no/such/tokenizer.json: "));
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
              err.text, n);
    spw_free(ids);
    free(text);
    spw_error_clear(&err);
    spw_tokenizer_close(t);
}

int main(void)
{
    test_refusals();
    test_invalid_text();
    test_match_limit();
    test_long_run();
    CHECK(spw_alloc_outstanding() == 0);
    return check_done();
}
