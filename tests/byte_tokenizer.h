/* Tokenizers of single bytes. The first one is for tiny models of 96 tokens: one byte each,
 * printable ASCII from '!' (id 0), and two bytes that only make a character together (0xc3 0xa9,
 * ids 94 and 95). */
#ifndef SPW_TESTS_BYTE_TOKENIZER_H
#define SPW_TESTS_BYTE_TOKENIZER_H

#include <stdio.h>

enum { BYTE_TOKENIZER_VOCAB = 96, BYTE_TOKENIZER_BYTES = 8192 };

/* Writes tokenizer.json to `json` and returns its length. */
static inline size_t byte_tokenizer_json(char json[BYTE_TOKENIZER_BYTES])
{
    char *at = json;
    at +=
        sprintf(at, "{\"version\":\"1.0\",\"added_tokens\":[],\"normalizer\":null,"
                    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                    "\"trim_offsets\":true,\"use_regex\":true},\"post_processor\":null,"
                    "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{");
    for (int i = 0; i < BYTE_TOKENIZER_VOCAB - 2; i++) {
        int c = 33 + i;
        at += sprintf(at, "\"%s%c\":%d,", c == '"' || c == '\\' ? "\\" : "", c, i);
    }
    /* In the alphabet of byte-level tokenizers: U+00C3 and U+00A9. */
    at += sprintf(at, "\"\xc3\x83\":94,\"\xc2\xa9\":95},\"merges\":[]}}");
    return (size_t)(at - json);
}

enum { ALL_BYTES_TOKENIZER_BYTES = 16384 };

/* All bytes (their ids), and [n] special tokens, from 256 on. */
static inline size_t all_bytes_tokenizer_json(char json[ALL_BYTES_TOKENIZER_BYTES],
                                              const char *const *specials, size_t n)
{
    char *at = json;
    at += sprintf(at, "{\"added_tokens\":[");
    for (size_t i = 0; i < n; i++)
        at += sprintf(at, "%s{\"id\":%zu,\"content\":\"%s\",\"special\":true}", i ? "," : "",
                      256 + i, specials[i]);
    at += sprintf(at, "],\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                      "\"use_regex\":true},\"decoder\":{\"type\":\"ByteLevel\"},"
                      "\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{");
    for (unsigned c = 0, n_odd = 0; c < 256; c++) { /* the alphabet of byte-level tokenizers */
        const int is_odd = c < 33 || (c > 126 && c < 161) || c == 173;
        at += sprintf(at, "%s\"\\u%04x\":%u", c ? "," : "", is_odd ? 256 + n_odd : c, c);
        n_odd += (unsigned)is_odd;
    }
    at += sprintf(at, "}}}");
    return (size_t)(at - json);
}

#endif
