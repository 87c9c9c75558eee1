/* libFuzzer target of JSON schemas. The first byte is a seed, the others are a schema. Whatever the
 * bytes: a schema that is refused has an error; a text that the grammar writes goes on or may end
 * wherever it is cut, and is JSON when the grammar says that it may end. Only a grammar that
 * becomes too ambiguous may stop.
 *
 *   build/fuzz/fuzz_schema -max_total_time=60 tests/fuzz/seeds/schema */
#include "base/json.h"
#include "model/text/grammar/run.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool good)
{
    if (!good)
        abort();
}

static void must_be_json(const char *text, size_t bytes)
{
    json_t *value;
    must(!spw_json_parse(&value, text, bytes,
                         JSON_ALLOW_NUL | JSON_DECODE_ANY | SPW_JSON_LARGE_REAL, NULL));
    json_decref(value);
}

/* Appends the first byte that goes on, from a random one on, and checks the text after it. Mostly
 * bytes that JSON has come first, which takes less time. */
static bool add_byte(const struct spw_grammar *g, char *text, size_t n, uint32_t *seed,
                     bool *may_end)
{
    static const char likely[] = "\"}],:0123456789{[tfna-\\ ";
    enum { N_LIKELY = sizeof likely - 1 };
    const uint32_t n_first = *seed >> 28 ? N_LIKELY : 0;
    bool is_too_much = false;
    *seed = *seed * 1664525 + 1013904223;
    for (uint32_t i = 0; i < n_first + 256; i++) {
        struct spw_grammar_run *r;
        text[n] = i < n_first ? likely[((*seed >> 24) + i) % N_LIKELY] : (char)((*seed >> 24) + i);
        int rc = spw_grammar_run_open(&r, g, NULL, false);
        rc = rc ? rc : spw_grammar_run_push(r, text, n + 1);
        must(!rc || rc == -EINVAL || rc == -E2BIG);
        is_too_much |= rc == -E2BIG;
        if (!rc)
            *may_end = spw_grammar_run_may_end(r);
        if (!rc && *may_end)
            must_be_json(text, n + 1);
        spw_grammar_run_close(r);
        if (!rc)
            return true;
    }
    must(*may_end || is_too_much);
    return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { MOST = 24 };
    struct spw_grammar *g;
    struct spw_error err = {0};
    char text[MOST];
    if (!size)
        return 0;
    uint32_t seed = data[0];
    bool may_end = false;
    const int rc = spw_grammar_open_schema(&g, (const char *)data + 1, size - 1, &err);
    must(!rc == (g != NULL) && !rc == !err.text[0]);
    for (size_t n = 0; g && n < MOST && add_byte(g, text, n, &seed, &may_end);)
        n++;
    spw_grammar_close(g);
    return 0;
}
