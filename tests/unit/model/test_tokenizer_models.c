/* Tokenizers of real models, where ../shared/data is there: vectors of three of them and the golden
 * prompts of a fourth, every special token as plain text, random ids streamed, the bytes of tokens,
 * a whole book. */
#include "tests/tokenizer_json.h"

#include <jansson.h>

static struct spw_tokenizer *open_shared(const char *file, char path[1024])
{
    const char *data = getenv("SPW_DATA");
    snprintf(path, 1024, "%s/%s", data ? data : "", file);
    return data ? parse_file(path) : NULL;
}

/* ---- vectors ---- */

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
    fprintf(stderr, "%s: %u ids\n", name, spw_tokenizer_vocab_size(t));
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

/* ---- plain spans ---- */

/* Every special token of real models. */
static void test_plain_specials(const char *name)
{
    char path[512], text[512];
    snprintf(path, sizeof path, "%s/tokenizers/%s/tokenizer.json", getenv("SPW_DATA"), name);
    struct spw_tokenizer *t = getenv("SPW_DATA") ? parse_file(path) : NULL;
    if (!t)
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

int main(void)
{
    const char *data = getenv("SPW_DATA");
    if (!data || access(data, R_OK))
        return CHECK_SKIP;
    test_plain_specials("gpt2");
    test_plain_specials("qwen2.5");
    test_plain_specials("phi-3-mini");
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
