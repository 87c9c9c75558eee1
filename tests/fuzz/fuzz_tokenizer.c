/* Fuzzes tokenizer.json: the input is a file, a NUL and a text (no NUL: a text of our own); and
 * SentencePiece models, which begin with the key of their first piece: the input is a file. What is
 * accepted must encode the text, or say why not, and stream what it decodes as it decodes at once.
 */
#include "model/text/tokenizer/tokenizer_spm.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool good)
{
    if (!good)
        abort();
}

static void compare_streams(const struct spw_tokenizer *t, const int32_t *ids, size_t n, bool skip)
{
    struct spw_detokenizer *d = NULL;
    char *whole = NULL;
    size_t bytes = 0, at = 0;
    int rc = spw_tokenizer_decode(t, ids, n, skip, &whole, &bytes);
    if (rc)
        return; /* the match limit of a hostile decoder */
    must(!spw_detokenizer_init(&d, t, skip));
    for (size_t i = 0; i <= n; i++) {
        const char *part = NULL;
        size_t part_bytes = 0;
        must(!(i < n ? spw_detokenizer_push(d, ids[i], &part, &part_bytes)
                     : spw_detokenizer_finish(d, &part, &part_bytes)));
        must(part_bytes <= bytes - at && !memcmp(whole + at, part, part_bytes));
        at += part_bytes;
    }
    must(at == bytes);
    spw_detokenizer_free(d);
    spw_free(whole);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char usual[] = "The access code of B\xc3\xa9rgen\n is 4817.  <s>ab a e\xcc\x81 "
                                "\xe4\xbd\xa0\xf0\x9f\xa6\x99";
    const char *json = (const char *)data, *text = usual;
    const bool is_model = size && data[0] == 0x0a;
    const uint8_t *nul = size && !is_model ? memchr(data, 0, size) : NULL;
    size_t json_bytes = nul ? (size_t)(nul - data) : size, text_bytes = sizeof usual - 1, n = 0;
    struct spw_tokenizer *t = NULL;
    struct spw_error err = {0};
    int32_t *ids = NULL;
    if (nul) {
        text = (const char *)nul + 1;
        text_bytes = size - json_bytes - 1;
    }
    int rc = (is_model ? spw_tokenizer_parse_spm : spw_tokenizer_parse)(&t, json, json_bytes,
                                                                        "fuzz.json", &err);
    must(!rc == !err.text[0]);
    if (rc)
        return 0;
    rc = spw_tokenizer_encode(t, text, text_bytes, true, &ids, &n, &err);
    must(!rc == !err.text[0]);
    for (size_t i = 0; i < n; i++)
        must(spw_tokenizer_token(t, ids[i]) != NULL);
    if (!rc) {
        compare_streams(t, ids, n, false);
        compare_streams(t, ids, n, true);
    }
    spw_free(ids);

    int32_t any[64]; /* ids that no text gives: every byte token, unknown ones */
    size_t n_any = text_bytes < 64 ? text_bytes : 64;
    for (size_t i = 0; i < n_any; i++)
        any[i] = (unsigned char)text[i] - 1;
    compare_streams(t, any, n_any, false);
    spw_tokenizer_close(t);
    return 0;
}
