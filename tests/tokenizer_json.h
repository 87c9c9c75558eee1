/* tokenizer.json in tests: hand-made files with a vocabulary of 14 tokens, ids as text, and
 * streamed text against the text that is decoded at once. */
#ifndef SPW_TESTS_TOKENIZER_JSON_H
#define SPW_TESTS_TOKENIZER_JSON_H

#include "base/file.h"
#include "model/text/tokenizer/tokenizer.h"
#include "tests/check.h"

#include <string.h>

/* ---- files ---- */

#define MODEL                                                                                      \
    "\"model\":{\"type\":\"BPE\",\"unk_token\":\"?\",\"vocab\":{\"?\":0,\"a\":1,\"b\":2,\"c\":3,"  \
    "\" \":4,\"_\":5,\"ab\":6,\"abc\":7,\"_a\":8,\"1\":9,\".\":10,\"<0xC3>\":11,\"<0xA9>\":12,"    \
    "\"bc\":13},\"merges\":[\"a b\",[\"ab\",\"c\"],\"_ a\",\"b c\"]"
#define SIMPLE(parts) "{\"version\":\"1.0\"," parts MODEL "}}"
#define ADDED(id, content, more)                                                                   \
    "{\"id\":" #id ",\"content\":\"" content "\",\"special\":true" more "}"
#define NORM(x) "\"normalizer\":" x ","
#define PRE(x) "\"pre_tokenizer\":" x ","
#define SPLIT(pattern, behavior, invert)                                                           \
    PRE("{\"type\":\"Split\",\"pattern\":" pattern ",\"behavior\":\"" behavior                     \
        "\",\"invert\":" invert "}")

static inline struct spw_tokenizer *parse(const char *json)
{
    struct spw_tokenizer *t = NULL;
    struct spw_error err = {0};
    int rc = spw_tokenizer_parse(&t, json, strlen(json), "test.json", &err);
    CHECK_MSG(!rc, "%s", err.text);
    return rc ? NULL : t;
}

/* A tokenizer.json without the other files of its folder. NULL: it cannot be read. */
static inline struct spw_tokenizer *parse_file(const char *path)
{
    struct spw_tokenizer *t = NULL;
    struct spw_error err = {0};
    char *json;
    size_t bytes;
    if (spw_file_read(path, SPW_TOKENIZER_MOST_BYTES, &json, &bytes, &err))
        return NULL;
    CHECK_MSG(!spw_tokenizer_parse(&t, json, bytes, path, &err), "%s", err.text);
    spw_free(json);
    return t;
}

/* ---- ids and texts ---- */

/* Ids as "1 2 3", or "error". */
static inline const char *encode_text(const struct spw_tokenizer *t, const char *text, size_t bytes,
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

static inline bool valid_utf8(const char *p, size_t n)
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
static inline bool streams_alike(const struct spw_tokenizer *t, const int32_t *ids, size_t n,
                                 bool skip)
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

#endif
