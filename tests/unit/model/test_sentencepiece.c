/* Folders with a SentencePiece model in the place of tokenizer.json. What is expected comes from
 * the tokenizers of transformers that use the package sentencepiece: make_sentencepiece.py of
 * tests/golden, and sentencepiece_folders.py of tests/oracle for many more. */
#include "model/text/tokenizer/tokenizer_spm.h"
#include "tests/folder.h"

#include <jansson.h>

#define GOLDEN "tests/golden/sentencepiece/"

static struct spw_tokenizer *open_golden(const char *family)
{
    struct spw_tokenizer *t;
    struct spw_error err = {0};
    char path[128];
    snprintf(path, sizeof path, GOLDEN "%s", family);
    CHECK_MSG(!spw_tokenizer_open_folder(&t, path, &err), "%s", err.text);
    return t;
}

static void compare_ids(const struct spw_tokenizer *t, const char *family, const char *text,
                        size_t bytes, const json_t *expected)
{
    int32_t *ids = NULL;
    size_t n = 0, same = 0;
    CHECK(!spw_tokenizer_encode(t, text, bytes, true, &ids, &n, NULL));
    while (same < n && same < json_array_size(expected) &&
           ids[same] == json_integer_value(json_array_get(expected, same)))
        same++;
    CHECK_MSG(same == n && n == json_array_size(expected), "%s: \"%s\": %zu of %zu", family, text,
              same, n);
    spw_free(ids);
}

/* At once, and token by token. */
static void compare_text(const struct spw_tokenizer *t, const char *family, const json_t *list,
                         const char *expected)
{
    int32_t ids[1024];
    const size_t n = json_array_size(list);
    char *text = NULL;
    struct spw_tok_buf streamed = {0};
    struct spw_detokenizer *d;
    size_t bytes = 0;
    CHECK(n <= 1024 && !spw_detokenizer_init(&d, t, true));
    for (size_t i = 0; i <= n; i++) {
        const char *part;
        size_t part_bytes;
        if (i < n)
            ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
        CHECK(!(i < n ? spw_detokenizer_push(d, ids[i], &part, &part_bytes)
                      : spw_detokenizer_finish(d, &part, &part_bytes)));
        CHECK(!spw_tok_buf_append(&streamed, part, part_bytes));
    }
    CHECK(!spw_tok_buf_append(&streamed, "", 1));
    CHECK(!spw_tokenizer_decode(t, ids, n, true, &text, &bytes));
    CHECK_MSG(!strcmp(text, expected), "%s: \"%s\", not \"%s\"", family, text, expected);
    CHECK_MSG(!strcmp(streamed.data, expected), "%s: \"%s\"", family, streamed.data);
    spw_tok_buf_free(&streamed);
    spw_detokenizer_free(d);
    spw_free(text);
}

static void test_vectors(const char *family)
{
    char path[128];
    size_t i, n_texts = 0;
    json_t *row;
    struct spw_tokenizer *t = open_golden(family);
    snprintf(path, sizeof path, GOLDEN "%s/vectors.json", family);
    json_t *rows = json_load_file(path, JSON_ALLOW_NUL, NULL);
    json_array_foreach(rows, i, row)
    {
        const json_t *text = json_object_get(row, "text"), *ids = json_object_get(row, "ids");
        if (text)
            compare_ids(t, family, json_string_value(text), json_string_length(text), ids);
        n_texts += text != NULL;
        compare_text(t, family, ids, json_string_value(json_object_get(row, "back")));
    }
    CHECK(n_texts >= 30 && i >= n_texts + 30);
    json_decref(rows);
    spw_tokenizer_close(t);
}

/* Names of tokens, as options and templates look for them; ids of pieces without one stay inside.
 */
static void test_names(void)
{
    struct spw_tokenizer *t = open_golden("marian");
    CHECK(spw_tokenizer_vocab_size(t) == 96);
    CHECK(spw_tokenizer_id(t, ">>de<<") == 94 && spw_tokenizer_id(t, "</s>") == 0);
    CHECK(!spw_tokenizer_is_special(t, 94) && spw_tokenizer_is_special(t, 0));
    CHECK(!spw_tokenizer_token(t, 96));
    spw_tokenizer_close(t);
    t = open_golden("m2m_100");
    const int af = spw_tokenizer_id(t, "__af__"), zu = spw_tokenizer_id(t, "__zu__");
    CHECK(af > 0 && zu == af + 99 && (uint32_t)zu + 1 == spw_tokenizer_vocab_size(t));
    spw_tokenizer_close(t);
}

/* ---- files that are not as expected ---- */

static char model[16384]; /* of t5 */
static size_t model_bytes;

static int parse(const char *bytes, size_t n, struct spw_error *err)
{
    struct spw_tokenizer *t;
    const int rc = spw_tokenizer_parse_spm(&t, bytes, n, "a.spm", err);
    spw_tokenizer_close(t);
    return rc;
}

/* Every beginning of a file, and files with another byte, are read or refused with a text. */
static void test_damage(void)
{
    char bytes[sizeof model];
    for (size_t n = 0; n < model_bytes; n++) {
        struct spw_error err = {0};
        const int rc = parse(model, n, &err);
        CHECK_MSG(!rc == !err.text[0], "%zu bytes", n);
    }
    uint64_t state = check_seed();
    for (int k = check_amount(3000); k > 0; k--) {
        struct spw_error err = {0};
        memcpy(bytes, model, model_bytes);
        bytes[check_range(&state, 0, model_bytes - 1)] = (char)check_range(&state, 0, 255);
        CHECK(!parse(bytes, model_bytes, &err) == !err.text[0]);
    }
}

/* Fields behind the others count. The last one: a piece of type UNKNOWN. */
static void test_refusals(void)
{
    static const struct {
        const char *more, *text;
        size_t n;
        int rc;
    } cases[] = {
        {"\x12\x02\x18\x03", "model_type: found 3", 4, -ENOTSUP},
        {"\x12\x03\xc0\x01\x01", "treat_whitespace_as_suffix", 5, -ENOTSUP},
        {"\x1a\x02\x28\x00", "escape_whitespaces false", 4, -ENOTSUP},
        {"\x2a\x05\x12\x03\x61\x62\x63", "a denormalizer", 7, -ENOTSUP},
        {"\x1a\x05\x12\x03\x61\x62\x63", "found no map of characters", 7, -EINVAL},
        {"\x0a\x03\x0a\x01\xff", "without a text or a score", 5, -EINVAL},
        {"\x0a\x02\x0a\x00", "without a text or a score", 4, -EINVAL},
        {"\x0a\x08\x0a\x01z\x15\x00\x00\xc0\x7f", "without a text or a score", 10, -EINVAL},
        {"\x0a\x05\x0a\x01z\x18\x07", "no SentencePiece model", 7, -EINVAL},
        {"\x0a\x05\x0a\x01z\x18\x02", "found 2 unknown pieces", 7, -EINVAL},
        {"\x0a\x07\x0a\x05<unk>", "twice", 9, -EINVAL},
        {"\x0b", "no SentencePiece model", 1, -EINVAL},
        {"\xfa\x01\x03\x61\x62\x63", NULL, 6, 0}, /* a field that nobody knows */
    };
    char bytes[sizeof model + 64];
    memcpy(bytes, model, model_bytes);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct spw_error err = {0};
        memcpy(bytes + model_bytes, cases[i].more, cases[i].n);
        const int rc = parse(bytes, model_bytes + cases[i].n, &err);
        CHECK_MSG(rc == cases[i].rc && (!rc || strstr(err.text, cases[i].text)), "%zu: %d %s", i,
                  rc, err.text);
    }
    struct spw_error err = {0};
    CHECK(parse("", 0, &err) == -EINVAL && strstr(err.text, "found 0 unknown pieces"));
}

static void copy_golden(const char *family, const char *file)
{
    static char bytes[1 << 16];
    char path[128];
    snprintf(path, sizeof path, GOLDEN "%s/%s", family, file);
    FILE *from = fopen(path, "rb");
    const size_t n = from ? fread(bytes, 1, sizeof bytes, from) : 0;
    CHECK(n && n < sizeof bytes && !fclose(from));
    write_bytes(file, bytes, n);
}

/* The class of the tokenizer says more than the type of the model, in both files that name it. A
 * language that is null is not said. */
static void test_classes(void)
{
    static const struct {
        const char *tokenizer, *model;
        bool is_known;
    } cases[] = {
        {"{\"src_lang\": null, \"language_codes\": null}", "\"MBart50Tokenizer\"", true},
        {"{\"tokenizer_class\": null}", "\"MBart50TokenizerFast\"", true},
        {"{\"tokenizer_class\": \"MBart50Tokenizer\"}", "\"MBartTokenizer\"", true},
        {"{\"tokenizer_class\": \"BarthezTokenizer\"}", "null", false},
        {"{}", "\"BarthezTokenizer\"", false},
    };
    static const char text[] = "A house.";
    struct spw_tokenizer *t, *expected = open_golden("mbart50");
    int32_t *ids, *expected_ids;
    size_t n, n_expected;
    CHECK(!spw_tokenizer_encode(expected, text, strlen(text), true, &expected_ids, &n_expected,
                                NULL));
    open_folder("sentencepiece");
    copy_golden("mbart50", "sentencepiece.bpe.model");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct spw_error err = {0};
        char config[128];
        snprintf(config, sizeof config, "{\"model_type\": \"mbart\", \"tokenizer_class\": %s}",
                 cases[i].model);
        write_text("config.json", config);
        write_text("tokenizer_config.json", cases[i].tokenizer);
        const int rc = spw_tokenizer_open_folder(&t, folder, &err);
        CHECK_MSG(rc == (cases[i].is_known ? 0 : -ENOENT), "%zu: %d %s", i, rc, err.text);
        if (rc)
            continue;
        CHECK(!spw_tokenizer_encode(t, text, strlen(text), true, &ids, &n, NULL));
        CHECK_MSG(n == n_expected && !memcmp(ids, expected_ids, n * sizeof *ids), "%zu", i);
        spw_free(ids);
        spw_tokenizer_close(t);
    }
    close_folder();
    spw_free(expected_ids);
    spw_tokenizer_close(expected);
}

/* A folder without vocab.json, and of a family that is not known, has no tokenizer. */
static void test_folders(void)
{
    struct spw_tokenizer *t;
    struct spw_error err = {0};
    open_folder("sentencepiece");
    write_bytes("source.spm", model, model_bytes);
    write_text("config.json", "{\"model_type\": \"marian\"}");
    CHECK(spw_tokenizer_open_folder(&t, folder, &err) == -ENOENT);
    write_text("vocab.json", "{\"a\": 0}");
    CHECK(spw_tokenizer_open_folder(&t, folder, &err) == -EINVAL && strstr(err.text, "<unk>"));
    write_text("vocab.json", "{\"<unk>\": 0, \"</s>\": 1, \"<pad>\": 2}");
    CHECK_MSG(!spw_tokenizer_open_folder(&t, folder, &err), "%s", err.text);
    spw_tokenizer_close(t);
    write_text("tokenizer_config.json", "{\"separate_vocabs\": true}");
    CHECK(spw_tokenizer_open_folder(&t, folder, &err) == -EINVAL &&
          strstr(err.text, "separate_vocabs"));
    write_text("tokenizer_config.json", "{\"tokenizer_class\": \"PegasusTokenizerFast\"}");
    CHECK(spw_tokenizer_open_folder(&t, folder, &err) == -ENOENT);
    write_text("config.json", "{\"model_type\": \"llama\"}");
    write_text("tokenizer_config.json", "{}");
    CHECK(spw_tokenizer_open_folder(&t, folder, &err) == -ENOENT);
    close_folder();
}

static void test_allocations(const char *family)
{
    struct spw_tokenizer *t;
    char path[128];
    int rc = -ENOMEM;
    const int64_t before = spw_alloc_outstanding();
    snprintf(path, sizeof path, GOLDEN "%s", family);
    for (int64_t n = 0; rc == -ENOMEM; n++) {
        struct spw_error err = {0};
        spw_alloc_fail_nth(n);
        rc = spw_tokenizer_open_folder(&t, path, &err);
        spw_alloc_fail_nth(-1);
        CHECK_MSG(!rc || (rc == -ENOMEM && err.text[0] && !t), "%d %s", rc, err.text);
        spw_tokenizer_close(t);
        CHECK(spw_alloc_outstanding() == before);
    }
    CHECK(!rc);
}

int main(void)
{
    static const char *const families[] = {"marian",  "m2m_100", "mbart",
                                           "mbart50", "pegasus", "t5"};
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        test_vectors(families[i]);
        test_allocations(families[i]);
    }
    test_names();
    FILE *file = fopen(GOLDEN "t5/spiece.model", "rb");
    model_bytes = file ? fread(model, 1, sizeof model, file) : 0;
    CHECK(model_bytes && model_bytes < sizeof model && !fclose(file));
    test_damage();
    test_refusals();
    test_folders();
    test_classes();
    return check_done();
}
