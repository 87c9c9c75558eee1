/* Schemas as grammars: which texts they accept, byte by byte, which tokens may follow, and what is
 * refused by name.
 *
 *   test_grammar                      the tests
 *   test_grammar SCHEMA [TEXT...]     a line for each text: 1 accepted, 0 not; the error, if the
 *                                     schema is refused. For tests/oracle/json_schemas.py
 *   test_grammar --write N SEED SCHEMA   N random texts that the grammar accepts, a line each
 *   test_grammar --masks TOKENIZER_JSON SEED   checks the masks of the schemas and texts in stdin
 *   test_grammar --bench TOKENIZER_JSON  what masks of typical schemas cost */
#include "base/grow.h"
#include "base/json.h"
#include "model/text/grammar/nodes.h"
#include "model/text/grammar/run.h"
#include "tests/byte_tokenizer.h"
#include "tests/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- one text ---- */

static bool accepts(const struct spw_grammar *g, const char *text)
{
    struct spw_grammar_run *r;
    if (spw_grammar_run_open(&r, g, NULL, false))
        return false;
    const bool good = !spw_grammar_run_push(r, text, strlen(text)) && spw_grammar_run_may_end(r);
    spw_grammar_run_close(r);
    return good;
}

struct row {
    const char *schema;
    const char *good[6], *bad[8];
};

#define STRING "{\"type\":\"string\""
#define OBJECT "{\"type\":\"object\",\"properties\":"

static const struct row rows[] = {
    {"{\"type\":\"number\",\"exclusiveMaximum\":100}",
     {"99.5", "99.9999999999", "-7"},
     {"100", "99.9999999999999999"}},
    {STRING ",\"format\":\"date\"}",
     {"\"2026-02-28\"", "\"2026-12-31\""},
     {"\"2026-02-31\"", "\"2026-04-31\"", "\"0000-01-01\""}},
    {"true",
     {"1", "-0.5e3", "\"a\\u00e9\"", "[1, {\"a\": null}]", "{}", "true"},
     {"01", "1.", "[1,]", "{a:1}", "\"\\ud800\"", "\"\n\"", "1e400", "nul"}},
    {STRING "}",
     {"\"\"", "\"\xc3\xa9\xf0\x9f\x98\x80\"", "\"\\\"\\/\\ud83d\\ude00\""},
     {"\"", "\"\xc3\"", "\"\\x\"", "\"\\ud83d\"", "\"\xed\xa0\x80\"", "a"}},
    {STRING ",\"minLength\":2,\"maxLength\":3}",
     {"\"\xc3\xa9z\"", "\"\\n\\u0041b\""},
     {"\"a\"", "\"abcd\"", "\"\""}},
    {STRING ",\"pattern\":\"^[a-c]{2,}(x|\\\\d+)?$\"}",
     {"\"ab\"", "\"abcx\"", "\"aa12\""},
     {"\"a\"", "\"abd\"", "\"abx1\"", "\"ab\\n\""}},
    {STRING ",\"pattern\":\"^\\\\S$\"}", {"\"a\""}, {"\" \"", "\"\xe2\x80\x83\""}},
    {STRING ",\"pattern\":\"^.{0,2}[a-z]{4}$\"}",
     {"\"word\"", "\"a-word\"", "\"\xc3\xa9<then\""},
     {"\"abc\"", "\"longest\""}},
    {STRING ",\"pattern\":\"q\\\\\\\\\"}", {"\"q\\\\\"", "\"aq\\\\z\""}, {"\"q\"", "\"a\""}},
    {STRING ",\"format\":\"date-time\"}",
     {"\"2026-11-29T06:00:00Z\"", "\"2026-01-31T23:59:59.5+02:00\""},
     {"\"2026-13-01T00:00:00Z\"", "\"2026-11-29\""}},
    {STRING ",\"format\":\"uuid\"}", {"\"123e4567-e89b-12d3-a456-426614174000\""}, {"\"123\""}},
    {"{\"type\":\"integer\"}",
     {"0", "-7", "9007199254740993"},
     {"1.0", "-", "+1", "00", "12345678901234567"}},
    {"{\"type\":\"integer\",\"minimum\":-3,\"maximum\":120}",
     {"-3", "-1", "0", "99", "120"},
     {"-4", "121", "1000", "-10", "099", "-0"}},
    {"{\"type\":\"integer\",\"exclusiveMinimum\":7,\"maximum\":10.5}",
     {"8", "9", "10"},
     {"7", "11", "1"}},
    {"{\"type\":\"number\",\"minimum\":0,\"exclusiveMaximum\":1}",
     {"0", "0.5", "0.999", "0.0"},
     {"1", "1.0", "-0.1", "2"}},
    {"{\"type\":\"number\",\"exclusiveMinimum\":-2,\"maximum\":3}",
     {"-1.99", "3", "3.0", "2.7", "-0.1"},
     {"-2", "-2.0", "3.1", "4"}},
    {"{\"enum\":[\"a\",1,null,{\"x\":[1,2]}]}",
     {"\"a\"", "1", "null", "{\"x\":[1,2]}"},
     {"\"b\"", "2", "{}"}},
    {"{\"const\":\"a\",\"enum\":[\"a\"],\"type\":\"string\"}", {"\"a\""}, {"\"b\""}},
    {"{\"const\":\"\\u00e9\\\"\"}", {"\"\xc3\xa9\\\"\""}, {"\"e\""}},
    {"{\"type\":[\"string\",\"null\"],\"maxLength\":1}",
     {"\"a\"", "null", "\"\""},
     {"\"ab\"", "1"}},
    {"{\"anyOf\":[{\"type\":\"boolean\"},{\"type\":\"integer\",\"minimum\":5}]}",
     {"true", "5", "77"},
     {"4", "\"a\""}},
    {OBJECT "{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"boolean\"},\"c\":true},\"required\":["
            "\"a\",\"c\"]}",
     {"{\"a\":1,\"c\":2}", "{ \"a\": 1,\n  \"b\": true, \"c\": [] }",
      "{\"a\": 1, \"c\": {\"d\": 1}}"},
     {"{}", "{\"a\":1}", "{\"c\":1,\"a\":1}", "{\"a\":1,\"c\":2,\"d\":3}",
      "{\"a\":1,\"b\":1,\"c\":2}", "{\"a\":1,,\"c\":2}"}},
    {OBJECT "{\"ab\":{\"type\":\"integer\"},\"\xc3\xa9\":true},\"additionalProperties\":{\"type\":"
            "\"null\"}}",
     {"{}", "{\"ab\":1,\"a\":null}", "{\"abc\":null,\"\":null}", "{\"\xc3\xaa\":null}",
      "{\"\xc3\xa9\":1}"},
     {"{\"ab\":null}", "{\"a\":1}", "{\"a\":null,\"ab\":1}", "{\"\\u0061b\":null}"}},
    {OBJECT "{\"a\":{\"type\":\"integer\",\"minimum\":5,\"maximum\":3},\"b\":true}}",
     {"{}", "{\"b\":1}"},
     {"{\"a\":5}"}},
    {"{\"type\":\"object\"}", {"{}", "{\"x\": {\"y\": [1]}, \"z\": 2}"}, {"[]", "{\"x\":}"}},
    {"{\"type\":\"object\",\"additionalProperties\":false}", {"{}", "{ }"}, {"{\"a\":1}"}},
    {"{\"type\":\"object\",\"required\":[\"k\"],\"additionalProperties\":{\"type\":\"integer\"}}",
     {"{\"k\":1}", "{\"k\":1,\"l\":2}"},
     {"{}", "{\"l\":2}", "{\"k\":\"\"}"}},
    {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":1,\"maxItems\":3}",
     {"[1]", "[1, 2,3]", "[ 1 ]"},
     {"[]", "[1,2,3,4]", "[1 2]", "[\"a\"]"}},
    {"{\"type\":\"array\"}", {"[]", "[1,\"a\",[]]"}, {"[", "{}"}},
    {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}],\"items\":"
     "{\"type\":\"null\"},\"minItems\":1}",
     {"[1]", "[1,\"a\"]", "[1,\"a\",null,null]"},
     {"[]", "[\"a\"]", "[1,2]", "[1,null]"}},
    {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}],\"items\":"
     "false}",
     {"[]", "[1]", "[1,\"a\"]"},
     {"[1,\"a\",1]"}},
    {"{\"$ref\":\"#/$defs/N\",\"$defs\":{\"N\":" OBJECT
     "{\"v\":{\"type\":\"integer\"},\"next\":{\"anyOf\":[{\"$ref\":\"#/$defs/"
     "N\"},{\"type\":\"null\"}]}},\"required\":[\"v\",\"next\"]}}}",
     {"{\"v\":1,\"next\":null}", "{\"v\":1,\"next\":{\"v\":2,\"next\":null}}"},
     {"{\"v\":1}", "{\"v\":1,\"next\":{}}"}},
    {"{\"allOf\":[{\"$ref\":\"#/$defs/A\"}," OBJECT
     "{\"b\":{\"type\":\"null\"}},\"required\":[\"b\"]}],\"$defs\":{\"A\":" OBJECT
     "{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]}}}",
     {"{\"a\":1,\"b\":null}"},
     {"{\"a\":1}", "{\"b\":null}"}},
};

static void test_rows(void)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct row *row = &rows[i];
        struct spw_grammar *g;
        struct spw_error err = {0};
        int rc = spw_grammar_open_schema(&g, row->schema, strlen(row->schema), &err);
        CHECK_MSG(!rc, "%s: %s", row->schema, err.text);
        for (size_t k = 0; !rc && k < 6 && row->good[k]; k++)
            CHECK_MSG(accepts(g, row->good[k]), "%s refuses %s", row->schema, row->good[k]);
        for (size_t k = 0; !rc && k < 8 && row->bad[k]; k++)
            CHECK_MSG(!accepts(g, row->bad[k]), "%s accepts %s", row->schema, row->bad[k]);
        spw_grammar_close(g);
    }
}

/* ---- refusals ---- */

static void test_refusals(void)
{
    static const char *const refusals[][2] = {
        {"{\"not\":{}}", "#: \"not\" is not supported"},
        {OBJECT "{\"a\":{\"type\":\"array\",\"uniqueItems\":true}}}",
         "#/properties/a: \"uniqueItems\""},
        {STRING ",\"pattern\":\"(?=a)\"}", "look-around"},
        {STRING ",\"pattern\":\"a{2\"}", "{m,n}"},
        {STRING ",\"format\":\"phone\"}", "\"format\": \"phone\""},
        {"{\"allOf\":[" OBJECT "{\"a\":true},\"additionalProperties\":false}," OBJECT
         "{\"b\":true}}]}",
         "\"b\" is no property"},
        {"{\"$ref\":\"#\"}", "refers to itself"},
        {"{\"$ref\":\"#/$defs/X\"}", "found nothing"},
        {"{\"anyOf\":[{\"$ref\":\"#\"}]}", "refers to itself"},
        {"{\"type\":\"number\",\"minimum\":0.5}", "\"minimum\""},
        {"{\"type\":[\"string\",\"null\"],\"enum\":[\"a\",1]}", "not of the \"type\""},
        {"{\"$ref\":\"#/$defs/A\",\"enum\":[1],\"$defs\":{\"A\":true}}", "\"enum\" beside"},
        {"{\"anyOf\":[true],\"const\":1}", "\"const\" beside"},
        {"{\"type\":\"string\",\"allOf\":[{\"enum\":[1]}]}", "only schemas of objects"},
        {"{\"allOf\":[{\"type\":\"object\"},{\"minProperties\":2}]}", "\"minProperties\""},
        {"{\"type\":\"thing\"}", "\"thing\""},
        {OBJECT "{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}", "without an end"},
        {"{\"type\":\"integer\",\"minimum\":5,\"maximum\":3}", "exclude each other"},
        {OBJECT "{\"a\":{\"enum\":[1]}},\"required\":[\"b\"]}", "\"b\" is no property"},
        {"[]", "expected a schema"},
        {"{", "no JSON"},
    };
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        struct spw_grammar *g;
        struct spw_error err = {0};
        CHECK(spw_grammar_open_schema(&g, refusals[i][0], strlen(refusals[i][0]), &err) ==
                  -EINVAL &&
              !g);
        CHECK_MSG(strstr(err.text, refusals[i][1]), "%s: %s", refusals[i][0], err.text);
    }
}

/* ---- nesting ---- */

static void test_nesting(void)
{
    struct spw_grammar *g;
    char text[140];
    CHECK(!spw_grammar_open_schema(&g, "true", 4, NULL));
    for (int n = 63; n < 66; n++) {
        memset(text, '[', (size_t)n);
        memset(text + n, ']', (size_t)n);
        text[2 * n] = '\0';
        CHECK(accepts(g, text) == (n <= 64));
    }
    spw_grammar_close(g);
}

/* ---- tokens ---- */

/* The ids of its tokens are their bytes. */
static struct spw_tokenizer *open_bytes(void)
{
    static char json[ALL_BYTES_TOKENIZER_BYTES];
    struct spw_tokenizer *t;
    const size_t n = all_bytes_tokenizer_json(json, NULL, 0);
    CHECK(!spw_tokenizer_parse(&t, json, n, "bytes", NULL));
    return t;
}

/* What may follow is what can be pushed. */
static void check_allowed(const struct spw_grammar *g, const struct spw_vocabulary *v,
                          uint32_t vocab, const char *text)
{
    struct spw_grammar_run *r, *other;
    CHECK(!spw_grammar_run_open(&r, g, v, false));
    CHECK(!spw_grammar_run_push(r, text, strlen(text)));
    for (int again = 0; again < 2; again++) { /* the second time from what is stored */
        const uint64_t *allowed;
        CHECK(!spw_grammar_run_allowed(r, &allowed));
        for (uint32_t id = 0; id < vocab && allowed; id++) {
            CHECK(!spw_grammar_run_open(&other, g, v, false));
            CHECK(!spw_grammar_run_push(other, text, strlen(text)));
            const bool can = !spw_grammar_run_token(other, (int32_t)id);
            CHECK_MSG(can == (allowed[id / 64] >> id % 64 & 1), "after %s: token %u", text, id);
            spw_grammar_run_close(other);
        }
    }
    spw_grammar_run_close(r);
}

/* ---- schemas that want too much ---- */

/* The begin, n times the unit with commas or without, the end. */
static const struct attack {
    const char *begin, *unit, *end;
    size_t n;
    bool commas;
    int rc; /* of opening the schema */
} attacks[] = {
    {STRING ",\"pattern\":\"^((.{0,50}){0,50}){0,50}$\"}", "", "", 0, false, 0},
    {STRING ",\"pattern\":\"^(.|..|...)*x$\"}", "", "", 0, false, 0},
    {STRING ",\"pattern\":\"^(|a){0,99999}$\"}", "", "", 0, false, 0},
    {STRING ",\"pattern\":\"^.*a.{9000}b.{9000}$\"}", "", "", 0, false, 0},
    {STRING ",\"pattern\":\"^", ".?", "$\"}", 2000, false, 0},
    {STRING ",\"pattern\":\"", "\\\\S", "\"}", 16000, false, -E2BIG},
    {STRING ",\"minLength\":1000000,\"maxLength\":1000000}", "", "", 0, false, 0},
    {"{\"anyOf\":[", STRING ",\"maxLength\":900}", "]}", 1500, true, 0},
    {"{\"enum\":[", "12345", "]}", 10000, true, 0},
    {"{\"$ref\":\"#/$defs/A\",\"$defs\":{\"A\":{\"anyOf\":[",
     "{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/A\"}}", "]}}}", 3, true, 0},
    {"{\"$ref\":\"#/$defs/A\",\"$defs\":{\"A\":{\"allOf\":[", "{\"$ref\":\"#/$defs/B\"}",
     "]},\"B\":{\"allOf\":[{\"$ref\":\"#/$defs/A\"},{\"$ref\":\"#/$defs/A\"}]}}}", 300, true,
     -EINVAL},
    {OBJECT "{\"", "a", "\":true},\"additionalProperties\":true}", 60000, false, -EINVAL},
};

static char *attack_schema(const struct attack *a)
{
    const size_t n_unit = strlen(a->unit);
    char *text = malloc(strlen(a->begin) + a->n * (n_unit + 1) + strlen(a->end) + 1), *at = text;
    at += sprintf(at, "%s", a->begin);
    for (size_t i = 0; i < a->n; i++)
        at += sprintf(at, "%s%s", i && a->commas ? "," : "", a->unit);
    sprintf(at, "%s", a->end);
    return text;
}

/* Each ends soon, refused or not, and when the answer has become too ambiguous. */
static void test_attacks(const struct spw_vocabulary *v, uint32_t vocab)
{
    enum { TOKENS = 30, MOST_SECONDS = 30 };
    uint64_t seed = check_seed();
    for (size_t i = 0; i < sizeof attacks / sizeof *attacks; i++) {
        const clock_t start = clock();
        char *schema = attack_schema(&attacks[i]);
        struct spw_grammar *g;
        struct spw_grammar_run *r = NULL;
        struct spw_error err = {0};
        int rc = spw_grammar_open_schema(&g, schema, strlen(schema), &err);
        CHECK_MSG(rc == attacks[i].rc, "%.60s: %d: %s", schema, rc, err.text);
        rc = rc ? rc : spw_grammar_run_open(&r, g, v, false);
        for (int k = 0; k < TOKENS && !rc; k++) {
            const uint64_t *allowed;
            uint32_t chosen = 0, n = 0;
            rc = spw_grammar_run_allowed(r, &allowed);
            for (uint32_t id = 0; !rc && id < vocab; id++)
                if ((allowed[id / 64] >> id % 64 & 1) && check_random(&seed) % ++n == 0)
                    chosen = id;
            rc = rc ? rc : n ? spw_grammar_run_token(r, (int32_t)chosen) : -ENOENT;
        }
        CHECK_MSG(!rc || rc == attacks[i].rc || rc == -E2BIG || rc == -ENOENT, "%.60s: %d", schema,
                  rc);
        CHECK_MSG((clock() - start) / CLOCKS_PER_SEC < MOST_SECONDS, "%.60s", schema);
        spw_grammar_run_close(r);
        spw_grammar_close(g);
        free(schema);
    }
}

/* A text in tags: what looks like the closing mark has its own states. */
static struct spw_grammar *text_in_tags(void)
{
    struct spw_grammar *g;
    CHECK(!spw_grammar_begin(&g, NULL));
    CHECK(!spw_grammar_finish(
        &g, SPW_SEQUENCE(g, spw_node_text_before(g, "</end>"), spw_node_word(g, "\n</end>"))));
    return g;
}

static void test_tokens(void)
{
    static const char *const in_tags[] = {"",     "a",       "a<",       "<<",       "</",
                                          "</en", "</end",   "</e<",     "<\n</end", "\n",
                                          "\n</", "</end\n", "x\n</end>"};
    static const char schema[] = OBJECT "{\"ab\":{\"enum\":[12,\"x y\"]}},\"required\":[\"ab\"]}";
    static const char *const texts[] = {
        "", "{", "{\"a", "{\"ab\": ", "{\"ab\":1", "{\"ab\":\"x", "{\"ab\":12}"};
    struct spw_tokenizer *t = open_bytes();
    struct spw_vocabulary *v;
    struct spw_grammar *g;
    const uint32_t vocab = spw_tokenizer_vocab_size(t);
    CHECK(!spw_vocabulary_open(&v, t, vocab));
    CHECK(!spw_grammar_open_schema(&g, schema, sizeof schema - 1, NULL));
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        check_allowed(g, v, vocab, texts[i]);
    spw_grammar_close(g);
    g = text_in_tags();
    for (size_t i = 0; i < sizeof in_tags / sizeof *in_tags; i++)
        check_allowed(g, v, vocab, in_tags[i]);
    spw_grammar_close(g);
    test_attacks(v, vocab);
    spw_vocabulary_close(v);
    spw_tokenizer_close(t);
}

/* ---- tokens of a real tokenizer ---- */

struct tokens {   /* their bytes, without special ones */
    char **bytes; /* owned, as each of them; NULL: none */
    size_t *n;    /* owned */
    uint32_t vocab;
    uint32_t *by_first; /* owned: ids in the order of their first bytes; byte c: [first[c],
                           first[c + 1]) */
    uint32_t first[257];
    struct spw_vocabulary *v; /* owned */
};

static struct spw_tokenizer *read_tokenizer(const char *path)
{
    struct spw_tokenizer *t = NULL;
    struct spw_error err = {0};
    char *json = NULL;
    size_t n = 0, capacity = 0, got;
    FILE *f = fopen(path, "r");
    while (f && !spw_grow(&json, &capacity, n + 65536, 1) && (got = fread(json + n, 1, 65536, f)))
        n += got;
    if (f)
        fclose(f);
    if (!n || spw_tokenizer_parse(&t, json, n, path, &err))
        fprintf(stderr, "%s: %s\n", path, n ? err.text : strerror(errno));
    spw_free(json);
    return t;
}

static bool read_tokens(struct tokens *out, const char *path)
{
    struct spw_tokenizer *t = read_tokenizer(path);
    if (!t)
        return false;
    out->vocab = spw_tokenizer_vocab_size(t);
    out->bytes = spw_alloc_zero(out->vocab, sizeof *out->bytes);
    out->n = spw_alloc_zero(out->vocab, sizeof *out->n);
    for (uint32_t id = 0; id < out->vocab; id++)
        if (spw_tokenizer_token(t, (int32_t)id) && !spw_tokenizer_is_special(t, (int32_t)id))
            CHECK(!spw_tokenizer_token_bytes(t, (int32_t)id, &out->bytes[id], &out->n[id]));
    out->by_first = spw_alloc_zero(out->vocab, sizeof *out->by_first);
    for (unsigned c = 0; c < 256; c++) {
        out->first[c + 1] = out->first[c];
        for (uint32_t id = 0; id < out->vocab; id++)
            if (out->n[id] && (unsigned char)out->bytes[id][0] == c)
                out->by_first[out->first[c + 1]++] = id;
    }
    CHECK(!spw_vocabulary_open(&out->v, t, out->vocab));
    spw_tokenizer_close(t);
    return true;
}

static void free_tokens(struct tokens *t)
{
    for (uint32_t id = 0; id < t->vocab; id++)
        spw_free(t->bytes[id]);
    spw_free(t->bytes);
    spw_free(t->n);
    spw_free(t->by_first);
    spw_vocabulary_close(t->v);
}

static bool is_allowed(const uint64_t *allowed, uint32_t id)
{
    return allowed[id / 64] >> id % 64 & 1;
}

/* Whether the text may go on with the token, byte by byte. */
static bool may_follow(const struct spw_grammar *g, const char *text, size_t n,
                       const struct tokens *t, uint32_t id)
{
    struct spw_grammar_run *r;
    CHECK(!spw_grammar_run_open(&r, g, NULL, false));
    const bool good = t->n[id] && !spw_grammar_run_push(r, text, n) &&
                      !spw_grammar_run_push(r, t->bytes[id], t->n[id]);
    spw_grammar_run_close(r);
    return good;
}

/* A text that the grammar accepts, cut into tokens at random: each token that stands there is
 * allowed; and of tokens at random those are, and only those, that can follow byte by byte. */
static void check_masks(const struct spw_grammar *g, const struct tokens *t, const char *text,
                        uint64_t *seed)
{
    enum { N_SAMPLES = 12 };
    const size_t bytes = strlen(text);
    struct spw_grammar_run *r;
    CHECK(!spw_grammar_run_open(&r, g, t->v, false));
    for (size_t at = 0; at < bytes;) {
        const uint64_t *allowed;
        uint32_t chosen = 0, n_fit = 0;
        if (spw_grammar_run_allowed(r, &allowed)) {
            CHECK_MSG(false, "no mask after %.*s", (int)at, text);
            break;
        }
        const unsigned char first = (unsigned char)text[at];
        for (uint32_t i = t->first[first]; i < t->first[first + 1]; i++) {
            const uint32_t id = t->by_first[i];
            if (t->n[id] > bytes - at || memcmp(t->bytes[id], text + at, t->n[id]))
                continue;
            CHECK_MSG(is_allowed(allowed, id), "after %.*s: token %u, %.*s", (int)at, text, id,
                      (int)t->n[id], t->bytes[id]);
            if (check_random(seed) % ++n_fit == 0)
                chosen = id;
        }
        for (int i = 0; i < N_SAMPLES; i++) {
            const uint32_t id = (uint32_t)(check_random(seed) % t->vocab);
            CHECK_MSG(is_allowed(allowed, id) == may_follow(g, text, at, t, id),
                      "after %.*s: token %u, %.*s", (int)at, text, id, (int)t->n[id], t->bytes[id]);
        }
        if (!n_fit || spw_grammar_run_token(r, (int32_t)chosen)) {
            CHECK_MSG(false, "nothing follows %.*s of %s", (int)at, text, text);
            break;
        }
        at += t->n[chosen];
    }
    CHECK_MSG(spw_grammar_run_may_end(r), "%s", text);
    spw_grammar_run_close(r);
}

/* The accepted texts of the rows above. */
static void test_masks(void)
{
    const char *data = getenv("SPW_DATA");
    struct tokens t = {0};
    char path[4096];
    uint64_t seed = check_seed();
    snprintf(path, sizeof path, "%s/tokenizers/qwen2.5/tokenizer.json",
             data ? data : "../shared/data");
    if (access(path, R_OK) || !read_tokens(&t, path))
        return;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct spw_grammar *g;
        CHECK(!spw_grammar_open_schema(&g, rows[i].schema, strlen(rows[i].schema), NULL));
        for (size_t k = 0; k < 6 && rows[i].good[k]; k++)
            check_masks(g, &t, rows[i].good[k], &seed);
        spw_grammar_close(g);
    }
    struct spw_grammar *g = text_in_tags();
    check_masks(g, &t, "some <b>text</b> <</en </end \"\xc3\xa9\" <\n</end>", &seed);
    spw_grammar_close(g);
    free_tokens(&t);
}

/* ---- for the oracle ---- */

/* Lines of stdin are lists: a schema, and texts that it accepts. */
static int masks_of_lines(char **argv)
{
    struct tokens t = {0};
    uint64_t seed = strtoull(argv[3], NULL, 10);
    char *line = NULL;
    size_t capacity = 0;
    if (!read_tokens(&t, argv[2]))
        return 2;
    while (getline(&line, &capacity, stdin) > 0) {
        json_t *row = json_loads(line, 0, NULL);
        const char *schema = json_string_value(json_array_get(row, 0));
        struct spw_grammar *g;
        CHECK_MSG(schema && !spw_grammar_open_schema(&g, schema, strlen(schema), NULL), "%s", line);
        for (size_t i = 1; schema && i < json_array_size(row); i++)
            check_masks(g, &t, json_string_value(json_array_get(row, i)), &seed);
        spw_grammar_close(g);
        json_decref(row);
    }
    free(line);
    free_tokens(&t);
    return check_done();
}

static int answer(int argc, char **argv)
{
    struct spw_grammar *g;
    struct spw_error err = {0};
    if (spw_grammar_open_schema(&g, argv[1], strlen(argv[1]), &err)) {
        printf("%s\n", err.text);
        return 2;
    }
    for (int i = 2; i < argc; i++)
        printf("%d\n", accepts(g, argv[i]));
    spw_grammar_close(g);
    return 0;
}

/* One of the bytes that may follow, mostly one that ends something, so that the text ends. */
static int next_byte(const uint64_t *allowed, uint64_t *seed)
{
    static const char likely[] = "\"}],:0123456789{[tfn";
    const bool any = check_random(seed) % 4 == 0;
    int found = -1;
    uint32_t n = 0;
    for (unsigned i = 0; i < sizeof likely - 1 && !any; i++)
        if (is_allowed(allowed, (unsigned char)likely[i]) && check_random(seed) % ++n == 0)
            found = likely[i];
    for (int c = 0; c < 256 && !n; c++)
        if (is_allowed(allowed, (uint32_t)c) && (found < 0 || check_random(seed) % 8 == 0))
            found = c;
    return found;
}

/* Ends as soon as it may, from some length on. */
static void write_one(const struct spw_grammar *g, const struct spw_vocabulary *v, uint64_t *seed)
{
    enum { MOST = 4000 };
    struct spw_grammar_run *r;
    const uint64_t *allowed;
    char text[MOST];
    size_t n = 0;
    int c = 0;
    const size_t wanted = check_range(seed, 0, 60);
    if (spw_grammar_run_open(&r, g, v, false))
        return;
    while (n < MOST && !(spw_grammar_run_may_end(r) && n >= wanted) &&
           !spw_grammar_run_allowed(r, &allowed) && (c = next_byte(allowed, seed)) >= 0 &&
           !spw_grammar_run_token(r, c))
        text[n++] = (char)c;
    if (spw_grammar_run_may_end(r))
        printf("%.*s%c", (int)n, text, 0);
    spw_grammar_run_close(r);
}

static int write_texts(char **argv)
{
    struct spw_grammar *g;
    struct spw_vocabulary *v;
    struct spw_tokenizer *t = open_bytes();
    struct spw_error err = {0};
    uint64_t seed = strtoull(argv[3], NULL, 10);
    if (spw_grammar_open_schema(&g, argv[4], strlen(argv[4]), &err)) {
        printf("%s\n", err.text);
        return 2;
    }
    CHECK(!spw_vocabulary_open(&v, t, 256));
    for (int i = atoi(argv[2]); i-- > 0;)
        write_one(g, v, &seed);
    spw_vocabulary_close(v);
    spw_tokenizer_close(t);
    spw_grammar_close(g);
    return check_done();
}

/* ---- what a mask costs ---- */

static char long_text[4096]; /* a JSON text of some prose */

static const struct {
    const char *what, *schema, *document;
} typical[] = {
    {"any object", "{\"type\":\"object\"}",
     "{\"name\": \"Ada\", \"list\": [1, 2.5, {\"deep\": null}, \"text of some words\"], \"ok\": "
     "true}"},
    {"object",
     OBJECT
     "{\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\"},\"kind\":{\"enum\":[\"red\","
     "\"green\",\"blue\"]},\"tags\":{\"type\":\"array\",\"items\":" STRING "}},\"at\":" OBJECT
     "{\"x\":{\"type\":\"number\"},\"y\":{\"type\":\"number\"}}}},\"required\":[\"name\",\"age\"]}",
     "{\"name\": \"Ada Lovelace\", \"age\": 36, \"kind\": \"green\", \"tags\": [\"first\", \"of "
     "all\"], \"at\": "
     "{\"x\": 12.5, \"y\": -0.25}}"},
    {"bounds",
     OBJECT
     "{\"n\":{\"type\":\"integer\",\"minimum\":-100,\"maximum\":123456},\"x\":{\"type\":\"number\","
     "\"minimum\":0,\"maximum\":1}},\"required\":[\"n\",\"x\"]}",
     "{\"n\": 98765, \"x\": 0.125}"},
    {"pattern", STRING ",\"pattern\":\"^[A-Z][a-z]+( [A-Z][a-z]+)*$\"}",
     "\"Grace Brewster Murray Hopper\""},
    {"format", STRING ",\"format\":\"email\"}", "\"ada.lovelace@example.org\""},
    {"lengths", STRING ",\"minLength\":5,\"maxLength\":5000}", long_text},
    {"long text", STRING "}", long_text},
    {"list of objects",
     "{\"type\":\"array\",\"items\":{\"type\":\"object\",\"properties\":{\"id\":{\"type\":"
     "\"integer\"},\"text\":" STRING "}}},\"minItems\":1,\"maxItems\":50}",
     "[{\"id\": 1, \"text\": \"one\"}, {\"id\": 2, \"text\": \"two\"}, {\"id\": 3, \"text\": "
     "\"three and more\"}]"},
};

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The times of the masks of an answer, token by token: of each, the best of some rounds. */
static void bench_one(size_t i, const struct spw_tokenizer *t, const struct spw_vocabulary *v)
{
    enum { MOST = 4096, ROUNDS = 5 };
    struct spw_grammar *g;
    struct spw_error err = {0};
    int32_t *ids;
    size_t n;
    static double seconds[MOST];
    double sum = 0;
    CHECK_MSG(!spw_grammar_open_schema(&g, typical[i].schema, strlen(typical[i].schema), &err),
              "%s", err.text);
    CHECK(!spw_tokenizer_encode(t, typical[i].document, strlen(typical[i].document), false, &ids,
                                &n, NULL) &&
          n < MOST);
    for (size_t k = 0; k < n; k++)
        seconds[k] = HUGE_VAL;
    for (int round = 0; round < ROUNDS; round++) {
        struct spw_grammar_run *r;
        CHECK(!spw_grammar_run_open(&r, g, v, false));
        for (size_t k = 0; k < n; k++) {
            const uint64_t *allowed;
            const double start = spw_now_seconds();
            CHECK(!spw_grammar_run_allowed(r, &allowed));
            seconds[k] = fmin(seconds[k], spw_now_seconds() - start);
            CHECK_MSG(allowed[ids[k] / 64] >> ids[k] % 64 & 1, "%s: token %zu of %s",
                      typical[i].what, k, typical[i].document);
            CHECK(!spw_grammar_run_token(r, ids[k]));
        }
        CHECK(spw_grammar_run_may_end(r));
        spw_grammar_run_close(r);
    }
    for (size_t k = 0; k < n; k++)
        sum += seconds[k];
    qsort(seconds, n, sizeof *seconds, by_value);
    printf("%-16s %4zu tokens: a mask: mean %.3f, median %.3f, worst %.2f ms\n", typical[i].what, n,
           sum / (double)n * 1e3, seconds[n / 2] * 1e3, seconds[n - 1] * 1e3);
    spw_free(ids);
    spw_grammar_close(g);
}

static int bench(const char *path)
{
    struct spw_vocabulary *v;
    struct spw_tokenizer *t = read_tokenizer(path);
    if (!t)
        return 2;
    size_t n = (size_t)sprintf(long_text, "\"");
    while (n < sizeof long_text - 100)
        n += (size_t)sprintf(long_text + n,
                             "The %zuth line says that all is well, and \\\"more\\\" will follow. ",
                             n);
    sprintf(long_text + n, "\"");
    const double begin = spw_now_seconds();
    CHECK(!spw_vocabulary_open(&v, t, spw_tokenizer_vocab_size(t)));
    printf("%u tokens, in order after %.0f ms\n", spw_tokenizer_vocab_size(t),
           (spw_now_seconds() - begin) * 1e3);
    for (size_t i = 0; i < sizeof typical / sizeof *typical; i++)
        bench_one(i, t, v);
    spw_vocabulary_close(v);
    spw_tokenizer_close(t);
    return check_done();
}

int main(int argc, char **argv)
{
    if (argc == 4 && !strcmp(argv[1], "--masks"))
        return masks_of_lines(argv);
    if (argc == 3 && !strcmp(argv[1], "--bench"))
        return bench(argv[2]);
    if (argc == 5 && !strcmp(argv[1], "--write"))
        return write_texts(argv);
    if (argc > 1)
        return answer(argc, argv);
    int64_t outstanding = spw_alloc_outstanding();
    test_rows();
    test_refusals();
    test_nesting();
    test_tokens();
    test_masks();
    CHECK(spw_alloc_outstanding() == outstanding);
    return check_done();
}
