/* Tokenizers out of the keys of a GGUF file against the same ones out of tokenizer.json: on random
 * texts, and real ones on the vectors of ../shared/data where that is there. Then keys that are
 * wrong, and failed allocations. */
#include "model/text/tokenizer/tokenizer_gguf.h"

#include "model/source/gguf_model.h"
#include "tests/gguf_tokenizer.h"
#include "tests/json_text.h"
#include "tests/tokenizer_json.h"

#include <math.h>

static uint64_t rng;

struct file {
    char *at;
    size_t n;
};

static struct file write_keys(json_t *root, const struct gguf_tokenizer *as)
{
    struct spw_gguf_writer w = {0};
    struct file f = {0};
    FILE *out = open_memstream(&f.at, &f.n);
    gguf_tokenizer_keys(&w, root, as);
    CHECK(!spw_gguf_write_header(&w, out) && !fclose(out));
    spw_gguf_writer_free(&w);
    return f;
}

static struct spw_tokenizer *open_keys(const struct file *f)
{
    struct spw_gguf g;
    struct spw_tokenizer *t = NULL;
    struct spw_error err = {0};
    int rc = spw_gguf_parse(&g, (const uint8_t *)f->at, f->n, "keys", &err);
    if (!rc)
        rc = spw_tokenizer_parse_gguf(&t, &g, "keys", &err);
    CHECK_MSG(!rc, "%s", err.text);
    spw_gguf_free(&g);
    return t;
}

/* ---- comparing ---- */

static bool same_ids(const int32_t *a, size_t n, const int32_t *b, size_t m)
{
    return n == m && (!n || !memcmp(a, b, n * sizeof *a));
}

static void compare_text(const struct spw_tokenizer *a, const struct spw_tokenizer *b,
                         const char *text, size_t bytes, const char *name)
{
    int32_t *x = NULL, *y = NULL;
    size_t n = 0, m = 0, x_bytes = 0, y_bytes = 0;
    char *x_text = NULL, *y_text = NULL;
    struct spw_error err = {0};
    int rc = spw_tokenizer_encode(a, text, bytes, false, &x, &n, &err);
    CHECK_MSG(rc == spw_tokenizer_encode(b, text, bytes, false, &y, &m, &err), "%s", err.text);
    CHECK_MSG(rc || same_ids(x, n, y, m), "%s: \"%.*s\"", name, (int)bytes, text);
    if (!rc) {
        CHECK(!spw_tokenizer_decode(a, x, n, false, &x_text, &x_bytes));
        CHECK(!spw_tokenizer_decode(b, x, n, false, &y_text, &y_bytes));
        CHECK_MSG(x_bytes == y_bytes && !memcmp(x_text, y_text, x_bytes), "%s: '%s' and '%s'", name,
                  x_text, y_text);
    }
    spw_free(x);
    spw_free(y);
    spw_free(x_text);
    spw_free(y_text);
}

/* Pieces that tokenizers treat in different ways. */
static size_t random_text(char out[512])
{
    static const char *const pieces[] = {
        "the",      " the",     "  ",     "\n",    "\n\n\n",   "\t",        " ",
        "1234",     "12",       "don't",  "WE'LL", "é",        "e\xcc\x81", "日本語",
        "한국",     "привет",   "😀",      "\r\n",  "foo_bar(", ")",         "...",
        "/*",       "a",        "b",      "hello", "<s>",      "</s>",      "<|endoftext|>",
        "x",        "world",    " World", ",",     "!?",       "\xc2\xa0",  "<0x41>",
        "<|user|>", "<|end|>\n"};
    size_t n = 0;
    out[0] = 0;
    for (uint64_t k = check_range(&rng, 0, 20); k > 0; k--) {
        const char *p = pieces[check_random(&rng) % (sizeof pieces / sizeof *pieces)];
        if (n + strlen(p) < 512)
            n += (size_t)sprintf(out + n, "%s", p);
    }
    return n;
}

struct pair {
    struct spw_tokenizer *json, *keys;
};

/* GGUF has no flags that let a token take the spaces beside it. Phi-3's tokens take them by rule.
 */
static struct pair make_pair(json_t *root, const char *name, const struct gguf_tokenizer *as)
{
    struct spw_error err = {0};
    struct pair p = {0};
    json_t *token;
    size_t i;
    json_array_foreach(json_object_get(root, "added_tokens"), i, token)
    {
        CHECK(!json_object_set_new(token, "lstrip", json_false()));
        if (!as->architecture)
            CHECK(!json_object_set_new(token, "rstrip", json_false()));
    }
    char *text = json_dumps(root, 0);
    CHECK_MSG(!spw_tokenizer_parse(&p.json, text, strlen(text), name, &err), "%s", err.text);
    free(text);
    struct file f = write_keys(root, as);
    p.keys = open_keys(&f);
    free(f.at);
    json_decref(root);
    return p;
}

static void close_pair(struct pair *p)
{
    spw_tokenizer_close(p->json);
    spw_tokenizer_close(p->keys);
}

/* The same tokenizer by way of the keys that `spillway quantize` writes. */
static struct spw_tokenizer *write_and_open(const struct spw_tokenizer *t,
                                            const struct gguf_tokenizer *as)
{
    struct spw_model_config config = {.vocab = spw_tokenizer_vocab_size(t), .bos = -1, .n_eos = 1};
    struct spw_gguf_writer w = {0};
    if (!strcmp(as->model, "gemma4"))
        strcpy(config.model_type, "gemma4_text");
    if (as->architecture) { /* which is also the name of the model_type here */
        strcpy(config.model_type, as->architecture);
        spw_gguf_add_string(&w, "general.architecture", as->architecture);
    }
    struct spw_gguf_notes notes = {0};
    struct spw_error err = {0};
    struct file f = {0};
    CHECK_MSG(!spw_tokenizer_write_gguf(&w, t, &config, "tokenizer", &notes, &err), "%s", err.text);
    CHECK(!notes.n);
    FILE *out = open_memstream(&f.at, &f.n);
    CHECK(!spw_gguf_write_header(&w, out) && !fclose(out));
    spw_gguf_writer_free(&w);
    struct spw_tokenizer *again = open_keys(&f);
    free(f.at);
    return again;
}

static void compare_random(struct pair *p, const char *name, const struct gguf_tokenizer *as,
                           int draws)
{
    char text[512];
    struct spw_tokenizer *written = p->json ? write_and_open(p->json, as) : NULL;
    for (int k = check_amount(draws); p->json && p->keys && k > 0; k--) {
        size_t n = random_text(text);
        compare_text(p->json, p->keys, text, n, name);
        if (written)
            compare_text(p->json, written, text, n, name);
    }
    spw_tokenizer_close(written);
    close_pair(p);
}

/* The bundled model's: byte-level BPE with the pattern of Qwen2, which normalizes. */
static void test_bundled(void)
{
    json_t *root = json_load_file("models/records/tokenizer.json", 0, NULL);
    CHECK(!json_object_set_new(root, "normalizer", json_pack("{ss}", "type", "NFC")));
    const struct gguf_tokenizer as = {.model = "gpt2", .pre = "qwen2"};
    struct pair p = make_pair(root, "records", &as);
    compare_random(&p, "records", &as, 4000);
}

/* A SentencePiece model of some tokens. tokenizer.json has all pairs that make a token. */
static json_t *sentencepiece(bool prefix)
{
    static const char *const tokens[] = {"he",        "\u2581t",
                                         "ll",        "\u2581\u2581",
                                         "\u2581the", "or",
                                         "\u2581w",   "llo",
                                         "ld",        "hello",
                                         "\u2581he",  "world",
                                         "\u2581wor", "\u2581\u2581\u2581\u2581",
                                         "12",        "123",
                                         "WE",        "do",
                                         "don",       "foo",
                                         "oo",        "bar",
                                         "ar",        "..."};
    static const char characters[] = "abcdefghijklmnopqrstuvwxyzWELTH0123.,!?<>|_()/*'";
    json_t *vocab = json_object(), *merges = json_array();
    char text[32];
    json_int_t id = 0;
    json_object_set_new(vocab, "<unk>", json_integer(id++));
    for (int byte = 0; byte < 256; byte++) {
        snprintf(text, sizeof text, "<0x%02X>", (unsigned)byte);
        json_object_set_new(vocab, text, json_integer(id++));
    }
    for (const char *c = characters; *c; c++) {
        snprintf(text, sizeof text, "%c", *c);
        json_object_set_new(vocab, text, json_integer(id++));
    }
    json_object_set_new(vocab, "\u2581", json_integer(id++));
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++)
        json_object_set_new(vocab, tokens[i], json_integer(id++));
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++)
        for (size_t cut = 1; cut < strlen(tokens[i]); cut++) {
            snprintf(text, sizeof text, "%.*s", (int)cut, tokens[i]);
            if (json_object_get(vocab, text) && json_object_get(vocab, tokens[i] + cut))
                json_array_append_new(merges, json_pack("[ss]", text, tokens[i] + cut));
        }
    static const char start[] =
        "{'normalizer': {'type': 'Sequence', 'normalizers': [%s{'type': 'Replace', 'pattern': "
        "{'String': ' '}, 'content': '\u2581'}]}, 'decoder': {'type': 'Sequence', 'decoders': "
        "[{'type': 'Replace', 'pattern': {'String': '\u2581'}, 'content': ' '}, {'type': "
        "'ByteFallback'}, {'type': 'Fuse'}%s]}, 'model': {'type': 'BPE', 'unk_token': '<unk>', "
        "'fuse_unk': true, 'byte_fallback': true}, 'added_tokens': [{'id': 0, 'content': '<unk>', "
        "'special': true}]}";
    const char *prepend = prefix ? "{'type': 'Prepend', 'prepend': '\u2581'}, " : "";
    const char *strip = prefix ? ", {'type': 'Strip', 'content': ' ', 'start': 1, 'stop': 0}" : "";
    char json[1024];
    snprintf(json, sizeof json, start, prepend, strip);
    json_t *root = json_loads(json_quoted(json), 0, NULL);
    json_t *model = json_object_get(root, "model");
    CHECK(root && !json_object_set_new(model, "vocab", vocab) &&
          !json_object_set_new(model, "merges", merges));
    return root;
}

/* "llo" also from "l" and "lo", long after "ll" and "o". */
static void add_apart(json_t *root)
{
    json_t *model = json_object_get(root, "model"), *merges = json_object_get(model, "merges");
    json_t *vocab = json_object_get(model, "vocab");
    json_object_set_new(vocab, "lo", json_integer((json_int_t)json_object_size(vocab)));
    json_array_append_new(merges, json_pack("[ss]", "l", "o"));
    json_array_append_new(merges, json_pack("[ss]", "l", "lo"));
}

/* The flags of Phi-3. */
static void add_phi3(json_t *root)
{
    static const char *const texts[] = {"<s>", "</s>", "<|endoftext|>", "<|user|>", "<|end|>"};
    json_t *added = json_object_get(root, "added_tokens");
    json_int_t id =
        (json_int_t)json_object_size(json_object_get(json_object_get(root, "model"), "vocab"));
    for (int i = 0; i < 5; i++)
        CHECK(!json_array_append_new(
            added, json_pack("{si, ss, sb, sb, sb}", "id", (int)id + i, "content", texts[i],
                             "normalized", 0, "special", i != 1, "rstrip", i == 1 || i > 2)));
}

/* With merges also a tokenizer that no scores give. */
static void test_sentencepiece(void)
{
    static const struct gguf_tokenizer all[] = {{.model = "llama", .prefix = true},
                                                {.model = "llama"},
                                                {.model = "gemma4"},
                                                {.model = "gemma4"},
                                                {.model = "llama", .architecture = "phi3"}};
    for (int i = 0; i < 5; i++) {
        json_t *root = sentencepiece(all[i].prefix);
        if (i == 3)
            add_apart(root);
        if (all[i].architecture)
            add_phi3(root);
        struct pair p = make_pair(root, all[i].model, &all[i]);
        compare_random(&p, all[i].model, &all[i], 4000);
    }
}

/* Merges that no scores give are refused: one is missing, or those of a token lie apart. */
static void test_no_scores(void)
{
    for (int apart = 0; apart < 2; apart++) {
        const struct spw_model_config config = {.bos = -1};
        struct spw_gguf_writer w = {0};
        struct spw_gguf_notes notes = {0};
        struct spw_error err = {0};
        struct spw_tokenizer *t;
        json_t *root = sentencepiece(true);
        json_t *merges = json_object_get(json_object_get(root, "model"), "merges");
        if (apart)
            add_apart(root);
        else
            json_array_remove(merges, 0);
        char *text = json_dumps(root, 0);
        CHECK(!spw_tokenizer_parse(&t, text, strlen(text), "tokenizer", &err));
        CHECK(spw_tokenizer_write_gguf(&w, t, &config, "tokenizer", &notes, &err) == -ENOTSUP);
        const struct spw_model_config gemma4 = {.bos = -1, .model_type = "gemma4_text"};
        struct spw_error prefix = {0};
        CHECK(spw_tokenizer_write_gguf(&w, t, &gemma4, "tokenizer", &notes, &prefix) == -ENOTSUP);
        CHECK_MSG(strstr(prefix.text, "normalizer: found a space in front of a text"), "%s",
                  prefix.text);
        CHECK_MSG(strstr(err.text, apart ? "model.merges: found another order"
                                         : "model.merges: found less than all merges"),
                  "%s", err.text);
        free(text);
        json_decref(root);
        spw_tokenizer_close(t);
        spw_gguf_writer_free(&w);
    }
}

/* ---- real ones ---- */

static void test_vectors(const char *data, const char *name, const struct gguf_tokenizer *as)
{
    char path[512];
    snprintf(path, sizeof path, "%s/tokenizers/%s/vectors.json", data, name);
    json_t *vectors = json_load_file(path, 0, NULL), *v;
    size_t i;
    if (!vectors)
        return;
    snprintf(path, sizeof path, "%s/tokenizers/%s/tokenizer.json", data, name);
    struct pair p = make_pair(json_load_file(path, 0, NULL), name, as);
    json_array_foreach(vectors, i, v)
    {
        const char *its = json_string_value(json_object_get(v, "text"));
        json_t *want = json_object_get(v, "ids");
        int32_t *ids = NULL;
        size_t n = 0;
        CHECK(!spw_tokenizer_encode(p.keys, its, strlen(its), false, &ids, &n, NULL));
        bool same = n == json_array_size(want);
        for (size_t k = 0; same && k < n; k++)
            same = ids[k] == json_integer_value(json_array_get(want, k));
        CHECK_MSG(same, "%s: \"%s\"", name, its);
        spw_free(ids);
        compare_text(p.json, p.keys, its, strlen(its), name);
    }
    compare_random(&p, name, as, 4000);
    json_decref(vectors);
}

/* ---- keys by hand ---- */

/* A file with these keys, JSON without braces: names without a point stand behind
 * "tokenizer.ggml.". A list of texts that begins with a number is one of numbers: "nan" is none.
 * The text "ff" of a list is a byte that is no character. */
static struct file write_json(const char *keys)
{
    char text[1024];
    struct spw_gguf_writer w = {0};
    struct file f = {0};
    FILE *out = open_memstream(&f.at, &f.n);
    const char *key;
    json_t *value;
    snprintf(text, sizeof text, "{%s}", keys);
    json_t *root = json_loads(json_quoted(text), 0, NULL);
    CHECK_MSG(root, "%s", keys);
    json_object_foreach(root, key, value)
    {
        struct spw_gguf_string strings[16];
        float reals[16];
        int32_t integers[16];
        char name[64];
        const size_t n = json_array_size(value);
        const json_t *first = json_array_get(value, 0);
        snprintf(name, sizeof name, "%s%s", strchr(key, '.') ? "" : "tokenizer.ggml.", key);
        for (size_t i = 0; i < n; i++) {
            const json_t *x = json_array_get(value, i);
            const char *its = json_string_value(x) ? json_string_value(x) : "";
            strings[i] = (struct spw_gguf_string){strcmp(its, "ff") ? its : "\xff",
                                                  strcmp(its, "ff") ? strlen(its) : 1};
            reals[i] = json_is_string(x) ? NAN : (float)json_number_value(x);
            integers[i] = (int32_t)json_integer_value(x);
        }
        if (json_is_string(value))
            spw_gguf_add_string(&w, name, json_string_value(value));
        else if (json_is_boolean(value))
            spw_gguf_add_bool(&w, name, json_is_true(value));
        else if (json_is_integer(value))
            spw_gguf_add_u32(&w, name, (uint32_t)json_integer_value(value));
        else if (json_is_string(first))
            spw_gguf_add_strings(&w, name, strings, n);
        else if (json_is_real(first))
            spw_gguf_add(&w, name, SPW_GGUF_F32, true, reals, n);
        else
            spw_gguf_add(&w, name, SPW_GGUF_I32, true, integers, n);
    }
    CHECK(!spw_gguf_write_header(&w, out) && !fclose(out));
    spw_gguf_writer_free(&w);
    json_decref(root);
    return f;
}

static void test_wrong(void)
{
    static const struct {
        const char *keys, *refused;
    } cases[] = {
        {"'model': 'bert'", "model: found \"bert\", expected llama, gpt2, gemma4 or t5"},
        {"'model': 'no_vocab'", "found no tokenizer"},
        {"'model': 'none'", "found no tokenizer"},
        {"'model': 'no_vocabulary'", "model: found \"no_vocabulary\", exp"},
        {"'model': 'gpt2', 'pre': 'new', 'tokens': ['a']",
         "pre: found \"new\", expected llama-bpe"},
        {"'model': 'gpt2'", "tokens: found nothing, expected a list"},
        {"'model': 'gpt2', 'tokens': ['a']", "merges: found nothing, expected a list"},
        {"'model': 'llama', 'tokens': ['a']", "scores: found nothing, expected a list"},
        {"'model': 'llama', 'tokens': ['a'], 'scores': [0.0], 'add_bos_token': true",
         "bos_token_id: found nothing, expected the id of a token"},
        {"'model': 'llama', 'tokens': ['a', 'b'], 'scores': [0.0]",
         "scores: found 1 elements, expected one for each of 2 tokens"},
        {"'model': 'llama', 'tokens': ['a', 'b'], 'scores': [0.0, 0.0], 'token_type': [0]",
         "token_type: found 1 elements"},
        {"'model': 'llama', 'tokens': ['a', 'b'], 'scores': [1.0, 'nan']",
         "scores[1]: found no number"},
        {"'model': 'llama', 'tokens': ['a', 'a'], 'scores': [0.0, 0.0]",
         "tokens: found \"a\" twice"},
        {"'model': 'llama', 'tokens': ['a', 'ff'], 'scores': [0.0, 0.0]",
         "tokens[1]: found bytes that are no character"},
        {"'model': 'gpt2', 'tokens': ['a', 'b'], 'merges': ['a b']",
         "merges[0]: found the token \"ab\", expected one of tokenizer.ggml.tokens"},
        {"'model': 'gpt2', 'tokens': ['a', 'b'], 'merges': ['ab']", "merges[0]: found no space"},
        {"'model': 'llama', 'tokens': ['a', 'b'], 'scores': [0.0, 0.0], 'bos_token_id': 7",
         "bos_token_id: found 7, expected an integer from 0 to 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct file f = write_json(cases[i].keys);
        struct spw_gguf g;
        struct spw_tokenizer *t = NULL;
        struct spw_error err = {0};
        CHECK(!spw_gguf_parse(&g, (const uint8_t *)f.at, f.n, "f.gguf", &err));
        int rc = spw_tokenizer_parse_gguf(&t, &g, "f.gguf", &err);
        const bool none = strstr(cases[i].refused, "no tokenizer");
        CHECK_MSG((none ? rc == -ENOENT : rc == -EINVAL || rc == -ENOTSUP) && !t &&
                      strstr(err.text, cases[i].refused) && !strncmp(err.text, "f.gguf: ", 8),
                  "%s: %d '%s'", cases[i].keys, rc, err.text);
        spw_tokenizer_close(t);
        spw_gguf_free(&g);
        free(f.at);
    }
}

/* A byte-level tokenizer whose merges join whatever is in one piece of this text. `more`: a token,
 * or NULL. */
static struct spw_tokenizer *pieces_tokenizer(const char *architecture, const char *pre,
                                              const char *more)
{
    static const char *const characters[] = {"d", "o", "n", "'", "t", "\u0120", "A",
                                             "1", "2", "3", "4", "b", "\u010a"};
    static const char text[][8] = {"d", "o", "n", "'",      "t",      "\u0120", "A",     "1",
                                   "2", "3", "4", "\u0120", "\u0120", "b",      "\u010a"};
    enum { N = 15, MOST = 14 + N * N };
    static char names[MOST][64], joins[N * N][192];
    struct spw_gguf_string tokens[MOST], merges[N * N];
    struct spw_gguf_writer w = {0};
    struct file f = {0};
    size_t n = 0, n_merges = 0;
    for (; n < 13; n++)
        tokens[n] = (struct spw_gguf_string){characters[n], strlen(characters[n])};
    for (size_t at = 0; at < N; at++) /* what begins first merges first, from the left */
        for (size_t length = 2; at + length <= N; length++) {
            names[n][0] = 0;
            for (size_t i = 0; i < length; i++)
                strcat(names[n], text[at + i]);
            size_t last = strlen(text[at + length - 1]), all = strlen(names[n]);
            snprintf(joins[n_merges], sizeof joins[0], "%.*s %s", (int)(all - last), names[n],
                     text[at + length - 1]);
            bool twice = false;
            for (size_t i = 0; i < n; i++)
                twice = twice || (tokens[i].bytes == all && !memcmp(tokens[i].at, names[n], all));
            if (twice)
                continue;
            merges[n_merges] = (struct spw_gguf_string){joins[n_merges], strlen(joins[n_merges])};
            tokens[n] = (struct spw_gguf_string){names[n], all};
            n++, n_merges++;
        }
    if (more)
        tokens[n++] = (struct spw_gguf_string){more, strlen(more)};
    FILE *out = open_memstream(&f.at, &f.n);
    spw_gguf_add_string(&w, "general.architecture", architecture);
    spw_gguf_add_string(&w, "tokenizer.ggml.model", "gpt2");
    if (pre)
        spw_gguf_add_string(&w, "tokenizer.ggml.pre", pre);
    spw_gguf_add_strings(&w, "tokenizer.ggml.tokens", tokens, n);
    spw_gguf_add_strings(&w, "tokenizer.ggml.merges", merges, n_merges);
    CHECK(!spw_gguf_write_header(&w, out) && !fclose(out));
    spw_gguf_writer_free(&w);
    struct spw_tokenizer *t = open_keys(&f);
    free(f.at);
    return t;
}

/* Cuts "don't A1234  b\n" into pieces of these lengths. */
static void check_pieces(struct spw_tokenizer *t, const char *name, const char *pieces)
{
    char got[64] = "";
    int32_t *ids = NULL;
    size_t n = 0;
    CHECK(t && !spw_tokenizer_encode(t, "don't A1234  b\n", 15, false, &ids, &n, NULL));
    for (size_t k = 0; k < n; k++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%d", k ? " " : "",
                 (int)strlen(spw_tokenizer_token(t, ids[k])) -
                     (strstr(spw_tokenizer_token(t, ids[k]), "\u0120") != NULL) -
                     (strstr(spw_tokenizer_token(t, ids[k]), "\u010a") != NULL));
    CHECK_MSG(!strcmp(got, pieces), "%s: %s, not %s", name, got, pieces);
    spw_free(ids);
    spw_tokenizer_close(t);
}

/* ---- Unigram ---- */

/* A map of characters: A is a, AB is z, a tab is a space. Children of a unit at `at` begin at
 * at ^ (unit >> 10). */
static size_t make_map(uint32_t map[1 + 0x400 + 2])
{
    static const char texts[] = "a\0z\0 ";
    uint32_t *units = map + 1;
    memset(map, 0, (1 + 0x400 + 2) * sizeof *map);
    map[0] = 0x400 * sizeof *units;
    units[0] = 0x100 << 10;
    units[0x141] = 'A' | 1 << 8 | (0x141 ^ 0x200) << 10;
    units[0x200] = 1u << 31 | 0;
    units[0x242] = 'B' | 1 << 8 | (0x242 ^ 0x300) << 10;
    units[0x300] = 1u << 31 | 2;
    units[0x109] = '\t' | 1 << 8 | (0x109 ^ 0x304) << 10;
    units[0x304] = 1u << 31 | 4;
    memcpy(units + 0x400, texts, sizeof texts);
    return (1 + 0x400) * sizeof *map + sizeof texts;
}

/* strips: as SentencePiece does it, else each space stays. */
static struct spw_tokenizer *open_unigram(bool strips, const void *map, size_t map_bytes)
{
    static const char *const texts[] = {"<unk>",    "</s>", "\u2581", "a",      "b", "\u2581a",
                                        "\u2581ab", "z",    "<x>",    "<0x43>", "q"};
    static const int32_t types[] = {2, 3, 1, 1, 1, 1, 1, 1, 4, 6, 5};
    static const float scores[] = {0, 0, -2, -3, -3, -4, -4.5f, -5, 0, 0, 0};
    enum { N = sizeof scores / sizeof *scores };
    struct spw_gguf_string tokens[N];
    struct spw_gguf_writer w = {0};
    struct file f = {0};
    for (int i = 0; i < N; i++)
        tokens[i] = (struct spw_gguf_string){texts[i], strlen(texts[i])};
    FILE *out = open_memstream(&f.at, &f.n);
    spw_gguf_add_string(&w, "general.architecture", "llama");
    spw_gguf_add_string(&w, "tokenizer.ggml.model", "t5");
    spw_gguf_add_strings(&w, "tokenizer.ggml.tokens", tokens, N);
    spw_gguf_add(&w, "tokenizer.ggml.scores", SPW_GGUF_F32, true, scores, N);
    spw_gguf_add(&w, "tokenizer.ggml.token_type", SPW_GGUF_I32, true, types, N);
    if (strips) /* else the types say it */
        spw_gguf_add_u32(&w, "tokenizer.ggml.unknown_token_id", 0);
    spw_gguf_add_u32(&w, "tokenizer.ggml.eos_token_id", 1);
    spw_gguf_add_bool(&w, "tokenizer.ggml.remove_extra_whitespaces", strips);
    if (map)
        spw_gguf_add(&w, "tokenizer.ggml.precompiled_charsmap", SPW_GGUF_U8, true, map, map_bytes);
    CHECK(!spw_gguf_write_header(&w, out) && !fclose(out));
    spw_gguf_writer_free(&w);
    struct spw_tokenizer *t = open_keys(&f);
    free(f.at);
    return t;
}

static void expect_ids(const struct spw_tokenizer *t, const char *text, const char *expected)
{
    char got[128] = "";
    int32_t *ids = NULL;
    size_t n = 0;
    CHECK(!spw_tokenizer_encode(t, text, strlen(text), true, &ids, &n, NULL));
    for (size_t i = 0; i < n; i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%d ", ids[i]);
    CHECK_MSG(!strcmp(got, expected), "\"%s\": %s, not %s", text, got, expected);
    spw_free(ids);
}

static void test_unigram(void)
{
    uint32_t map[1 + 0x400 + 2];
    const size_t bytes = make_map(map);
    struct spw_tokenizer *t = open_unigram(true, map, bytes);
    expect_ids(t, "ab", "6 1 ");
    expect_ids(t, "  AB  a\tb ", "2 7 5 2 4 1 "); /* the longest key of the map */
    expect_ids(t, "ACA", "5 9 3 1 ");
    expect_ids(t, "a<x>b", "5 8 2 4 1 ");
    expect_ids(t, "<0x43>", "2 0 1 "); /* bytes and unused tokens are in no text */
    expect_ids(t, "C", "2 9 1 ");
    expect_ids(t, "q", "2 0 1 ");
    expect_ids(t, "  ", "1 ");
    spw_tokenizer_close(t);
    t = open_unigram(false, NULL, 0);
    expect_ids(t, " a  b", "2 5 2 2 4 1 ");
    expect_ids(t, "AB", "2 0 1 ");
    spw_tokenizer_close(t);
}

/* As T5's tokenizer.json has it; and by way of the keys that `spillway quantize` writes. White
 * space other than spaces is no white space to a reader of the file; maps of characters make spaces
 * of it. */
static void test_written_unigram(void)
{
    static const char text[] =
        "{'model': {'type': 'Unigram', 'unk_id': 2, 'vocab': [['<pad>', 0], ['</s>', 0], "
        "['<unk>', 0], ['▁', -2], ['a', -3], ['b', -3.5], ['▁the', -4], ['hello', -5], "
        "['x', -3.25], ['12', -6], ['1', -6.5], ['▁World', -7]]}, "
        "'added_tokens': [{'id': 1, 'content': '</s>', 'special': true}, "
        "{'id': 12, 'content': '<|user|>', 'special': true}], "
        "'pre_tokenizer': {'type': 'Sequence', 'pretokenizers': [{'type': 'WhitespaceSplit'}, "
        "{'type': 'Metaspace', 'replacement': '▁', 'prepend_scheme': 'always'}]}, "
        "'post_processor': {'type': 'TemplateProcessing', 'single': [{'Sequence': {'id': 'A', "
        "'type_id': 0}}, {'SpecialToken': {'id': '</s>', 'type_id': 0}}], 'pair': [], "
        "'special_tokens': {'</s>': {'id': '</s>', 'ids': [1], 'tokens': ['</s>']}}}, "
        "'decoder': {'type': 'Metaspace', 'replacement': '▁', 'prepend_scheme': 'always'}}";
    const struct gguf_tokenizer as = {.model = "t5"};
    struct spw_error err = {0};
    struct pair p = {0};
    char *json = strdup(json_quoted(text)), random[512];
    CHECK_MSG(!spw_tokenizer_parse(&p.json, json, strlen(json), "t5", &err), "%s", err.text);
    p.keys = write_and_open(p.json, &as);
    for (int k = check_amount(2000); p.json && p.keys && k > 0; k--) {
        const size_t n = random_text(random);
        for (char *at = random; (at = strpbrk(at, "\t\r\n"));)
            *at = ' ';
        if (!strstr(random, "\xc2\xa0"))
            compare_text(p.json, p.keys, random, n, "t5");
    }
    close_pair(&p);
    free(json);
}

/* The same of a folder that has SentencePiece's model in the place of tokenizer.json. */
static void test_written_model(void)
{
    const struct gguf_tokenizer as = {.model = "t5"};
    struct spw_error err = {0};
    struct pair p = {0};
    char random[512];
    CHECK_MSG(!spw_tokenizer_open_folder(&p.json, "tests/golden/sentencepiece/t5", &err), "%s",
              err.text);
    p.keys = write_and_open(p.json, &as);
    for (int k = check_amount(2000); p.json && p.keys && k > 0; k--)
        compare_text(p.json, p.keys, random, random_text(random), "model");
    close_pair(&p);
}

/* Every pre-tokenizer that docs/models.md names can be read, and cuts as its pattern says: words,
 * then numbers of one, up to three or any digits. */
static void test_pres(void)
{
    static const struct {
        const char *names, *pieces; /* of "don't A1234  b\n", as lengths; "": not checked */
    } kinds[] = {
        {"llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 smaug-bpe dbrx chatglm-bpe "
         "glm4 "
         "jais-2 minicpm5 lfm2",
         "3 2 2 3 1 1 2 1"},
        {"qwen2 deepseek-r1-qwen stablelm2 hunyuan solar-open kormo megrez exaone-moe "
         "qwen35",
         "3 2 2 1 1 1 1 1 2 1"},
        {"gpt-4o llama4 minimax-m2", "5 2 3 1 1 2 1"},
        {"tiny_aya", "5 2 1 3 1 2 1"},
        {"tekken", "3 2 2 1 1 1 1 1 2 1"},
        {"deepseek-v3 hunyuan-dense", "3 2 2 3 1 1 2 1"},
        {"deepseek-llm", "3 1 1 2 4 1 2 1"},
        {"deepseek-coder", "3 1 1 2 1 1 1 1 1 2 1"},
        {"seed-coder", "3 2 2 1 1 1 1 1 2 1"},
        {"smollm starcoder refact mellum2 minerva-7b command-r", "3 2 2 1 1 1 1 1 2 1"},
        {"gpt-2 phi-2 mellum trillion a.x-4.0 exaone4 olmo", "3 2 2 4 1 2 1"},
        {"default", "3 1 1 2 3 1 1 2 1"},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char names[128], *rest = names;
        snprintf(names, sizeof names, "%s", kinds[i].names);
        for (char *name; (name = strtok_r(rest, " ", &rest));)
            check_pieces(pieces_tokenizer("qwen2", name, NULL), name, kinds[i].pieces);
    }
}

/* Files without a name for it, or with "default", of architectures that have one pre-tokenizer. */
static void test_usual_pres(void)
{
    static const char *const default_pieces = "3 1 1 2 3 1 1 2 1";
    static const struct {
        const char *architecture, *more, *pieces;
    } cases[] = {
        {"gptoss", NULL, "5 2 3 1 1 2 1"},
        {"llama4", NULL, "5 2 3 1 1 2 1"},
        {"mistral3", NULL, "3 2 2 1 1 1 1 1 2 1"},
        {"olmo3", NULL, "3 2 2 3 1 1 2 1"},
        {"llama", "<|eot_id|>", "3 2 2 3 1 1 2 1"},
        {"llama", "<|eot|>", default_pieces},
        {"llama", NULL, default_pieces},
        {"qwen2", "<|eot_id|>", default_pieces},
        {"unknown", NULL, default_pieces},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int named = 0; named < 2; named++)
            check_pieces(
                pieces_tokenizer(cases[i].architecture, named ? "default" : NULL, cases[i].more),
                cases[i].architecture, cases[i].pieces);
    check_pieces(pieces_tokenizer("gptoss", "qwen2", NULL), "named", "3 2 2 1 1 1 1 1 2 1");
}

#define PADDED                                                                                     \
    "'model': 'llama', 'tokens': ['a', '[', '[PAD0]', '[PAD3]', '[PADx]', '[PAD]', 'P'], "         \
    "'scores': [0.0, 0, 0, 0, 0, 0, 0], 'token_type': [1, 1, 4, 5, 4, 4, 1]"
#define PIECES                                                                                     \
    "'model': 'llama', 'tokens': ['<', '/', 's', '>', '<end_of_turn>', '<start_of_turn>', "        \
    "'</s>', '<0x0A>'], 'scores': [0.0, 0, 0, 0, 0, 0, 0, 0], 'token_type': [1, 1, 1, 1, 1, 4, "   \
    "1, "                                                                                          \
    "1]"
#define MERGES                                                                                     \
    "'model': 'gemma4', 'tokens': ['<', '|im_end|>', '<|im_end|>', 'a', 'b', 'ab'], 'merges': "    \
    "['< |im_end|>', 'a b'], 'token_type': [1, 1, 5, 1, 1, 3]"
#define SCORES                                                                                     \
    "'model': 'llama', 'tokens': ['a', 'aa', 'aaa', 'b', 'ab', '<c>', 'aab', 'c'], 'scores': "     \
    "[0.0, -1, -2, 0, -1, 5, -3, 0], 'token_type': [1, 1, 1, 1, 1, 3, 1, 1]"
#define SPACES                                                                                     \
    "'model': 'llama', 'tokens': ['a', '\u2581', '\u2581a'], 'scores': [0.0, 0, 0], "              \
    "'general.architecture': "

/* Ids of texts. */
static void test_ids(void)
{
    static const struct {
        const char *keys, *text,
            *ids; /* with ... behind the first one: the others are not checked */
    } cases[] = {
        /* Padding is no token of a text, whatever it counts. Other tokens of a user are. */
        {PADDED, "[PAD0]", "1 ..."},
        {PADDED, "[PAD3]", "1 ..."},
        {PADDED, "[PADx]", "4"},
        {PADDED, "[PAD]", "5"},
        /* Ollama calls the kind of Gemma 4's tokenizer "llama". There is no space in front. */
        {"'model': 'llama', 'pre': 'gemma4', 'tokens': ['a', 'b', 'ab', '\u2581'], 'merges': ['a "
         "b'], 'scores': [0.0, 0, 0, 0]",
         "ab a", "2 3 0"},
        /* Ollama's converter does not say whether a text begins with a space: Gemma's do not. */
        {SPACES "'gemma'", "a", "0"},
        {SPACES "'gemma2'", "a", "0"},
        {SPACES "'gemma3'", "a", "0"},
        {SPACES "'llama'", "a", "2"},
        {SPACES "'phi3'", "a", "2"},
        /* Tokens around a message are special, and those of bytes stand for them, whatever type a
         * file gives them. A merge may give a special token of a tokenizer with merges: the file
         * has both. */
        {PIECES, "<start_of_turn>", "5"},
        {PIECES, "<end_of_turn>", "4"},
        {PIECES, "</s>", "0 1 2 3"},
        {PIECES, "\n", "7"},
        {MERGES, "<|im_end|>", "2"},
        {MERGES, "ab", "5"},
        /* Merges by score: the best pair first, of equal ones the leftmost; control tokens never.
         */
        {SCORES, "aab", "6"},
        {SCORES, "aaa", "2"},
        {SCORES, "aaaa", "1 1"},
        {SCORES, "<c>a", "5 0"},
        {SCORES, "cab", "7 4"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char ids[4096] = "error";
        struct file f = write_json(cases[i].keys);
        struct spw_tokenizer *t = open_keys(&f);
        const char *wanted = cases[i].ids, *more = strstr(wanted, "...");
        if (t)
            encode_text(t, cases[i].text, strlen(cases[i].text), false, ids);
        CHECK_MSG(more ? !strncmp(ids, wanted, (size_t)(more - wanted)) : !strcmp(ids, wanted),
                  "%s: %s, not %s", cases[i].text, ids, wanted);
        spw_tokenizer_close(t);
        free(f.at);
    }
}

/* bos and eos that no key names: those of SentencePiece, if the file has such tokens. */
static void test_default_ids(void)
{
#define THREE "'tokens': ['a', 'b', 'c'], 'scores': [0.0, 0, 0]"
#define MERGED "'tokens': ['a', 'b', 'ab'], 'merges': ['a b']"
    static const struct {
        const char *keys;
        int bos, eos; /* -1: none */
    } cases[] = {
        {"'model': 'llama', " THREE, 1, 2},
        {"'model': 'llama', 'tokens': ['a', 'b'], 'scores': [0.0, 0], 'add_bos_token': true", 1,
         -1},
        {"'model': 'llama', 'tokens': ['a'], 'scores': [0.0]", -1, -1},
        {"'model': 'llama', 'bos_token_id': 0, 'add_bos_token': true, " THREE, 0, 2},
        {"'model': 'llama', 'bos_token_id': 0, 'add_bos_token': false, " THREE, -1, 2},
        {"'model': 'gemma4', 'bos_token_id': 0, 'add_bos_token': false, " MERGED, 0, -1},
        {"'model': 'gemma4', 'add_bos_token': false, " MERGED, -1, -1},
        {"'model': 'llama', 'pre': 'gemma4', " MERGED, -1, -1},
        {"'model': 'gpt2', 'pre': 'llama-bpe', " MERGED, -1, -1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct file f = write_json(cases[i].keys);
        struct spw_gguf g;
        struct spw_tokenizer *t = NULL;
        json_t *keys;
        size_t n;
        bool by_default;
        CHECK(!spw_gguf_parse(&g, (const uint8_t *)f.at, f.n, "f.gguf", NULL));
        CHECK(!spw_gguf_tokenizer_keys(&g, &keys, &by_default));
        const json_t *eos = json_object_get(keys, "eos_token_id");
        CHECK_MSG((eos ? json_integer_value(eos) : -1) == cases[i].eos, "%zu", i);
        CHECK_MSG(by_default == (cases[i].eos >= 0 || cases[i].bos == 1), "%zu", i);
        CHECK(!spw_tokenizer_parse_gguf(&t, &g, "f.gguf", NULL));
        const int32_t *bos = spw_tokenizer_prefix(t, &n);
        CHECK_MSG((n ? bos[0] : -1) == cases[i].bos, "%zu", i);
        spw_tokenizer_close(t);
        json_decref(keys);
        spw_gguf_free(&g);
        free(f.at);
    }
}

/* A file cannot say that no token ends an answer, and one of Gemma 4 not that none begins a text.
 * It has no token without a row of the embedding. */
static void test_notes(void)
{
    static const struct spw_model_config configs[] = {{.vocab = 1, .bos = -1},
                                                      {.bos = 1, .model_type = "gemma4_text"},
                                                      {.vocab = 1, .bos = -1, .n_eos = 1}};
    static const char *const texts[] = {"no token ends an answer",
                                        "the bos token in front of a text",
                                        "some added tokens have no row in the embedding"};
    for (int i = 0; i < 3; i++) {
        struct spw_gguf_writer w = {0};
        struct spw_gguf_notes notes = {0};
        struct spw_error err = {0};
        struct spw_tokenizer *t;
        json_t *root = sentencepiece(i != 1);
        json_int_t n =
            (json_int_t)json_object_size(json_object_get(json_object_get(root, "model"), "vocab"));
        if (i == 2)
            json_array_append_new(json_object_get(root, "added_tokens"),
                                  json_pack("{s:I, s:s}", "id", n, "content", "[PAD]"));
        char *text = json_dumps(root, 0);
        CHECK(!spw_tokenizer_parse(&t, text, strlen(text), "tokenizer", &err));
        CHECK(!spw_tokenizer_write_gguf(&w, t, &configs[i], "tokenizer", &notes, &err));
        CHECK(notes.n == 1 && strstr(notes.at[0], texts[i]));
        struct file f = {0};
        FILE *out = open_memstream(&f.at, &f.n);
        CHECK(!spw_gguf_write_header(&w, out) && !fclose(out));
        struct spw_tokenizer *again = open_keys(&f);
        CHECK(again && spw_tokenizer_vocab_size(again) == n);
        spw_tokenizer_close(again);
        free(f.at);
        free(text);
        json_decref(root);
        spw_tokenizer_close(t);
        spw_gguf_writer_free(&w);
    }
}

static void test_failed_allocations(void)
{
    json_t *root = sentencepiece(true);
    struct file f = write_keys(root, &(struct gguf_tokenizer){.model = "llama", .prefix = true});
    int64_t before = spw_alloc_outstanding();
    int rc = -ENOMEM;
    for (int64_t n = 0; rc == -ENOMEM; n++) {
        struct spw_gguf g = {0};
        struct spw_tokenizer *t = NULL;
        struct spw_error err = {0};
        spw_alloc_fail_nth(n);
        rc = spw_gguf_parse(&g, (const uint8_t *)f.at, f.n, "keys", &err);
        if (!rc)
            rc = spw_tokenizer_parse_gguf(&t, &g, "keys", &err);
        spw_alloc_fail_nth(-1);
        CHECK_MSG(!rc || (rc == -ENOMEM && err.text[0] && !t), "%lld: %d %s", (long long)n, rc,
                  err.text);
        spw_tokenizer_close(t);
        spw_gguf_free(&g);
        CHECK(spw_alloc_outstanding() == before);
    }
    free(f.at);
    json_decref(root);
}

int main(void)
{
    const char *data = getenv("SPW_DATA");
    rng = check_seed();
    test_bundled();
    test_sentencepiece();
    test_no_scores();
    test_wrong();
    test_ids();
    test_unigram();
    test_written_unigram();
    test_written_model();
    test_pres();
    test_usual_pres();
    test_default_ids();
    test_notes();
    test_failed_allocations();
    if (data) {
        test_vectors(data, "gpt2", &(struct gguf_tokenizer){.model = "gpt2", .pre = "gpt-2"});
        test_vectors(data, "qwen2.5", &(struct gguf_tokenizer){.model = "gpt2", .pre = "qwen2"});
        test_vectors(
            data, "phi-3-mini",
            &(struct gguf_tokenizer){.model = "llama", .architecture = "phi3", .prefix = true});
    }
    return check_done();
}
