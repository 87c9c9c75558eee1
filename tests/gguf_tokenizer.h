/* The keys that a GGUF file has for a tokenizer.json: the vocabulary, merges or scores, types of
 * tokens, special tokens. A score is minus the rank of the first merge that makes the token,
 * because tokenizer.json has no scores. */
#ifndef SPW_TESTS_GGUF_TOKENIZER_H
#define SPW_TESTS_GGUF_TOKENIZER_H

#include "model/source/gguf_write.h"
#include "tests/check.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

struct gguf_tokenizer {
    const char *model, *pre;  /* pre NULL: none */
    const char *architecture; /* NULL: none */
    const char *bos, *eos;    /* texts of tokens; NULL: none */
    bool add_bos, prefix;
};

enum { GGUF_MOST_TOKENS = 300000 };

struct gguf_vocab {
    struct spw_gguf_string *tokens;
    int32_t *types;
    float *scores;
    size_t n;
};

static inline void gguf_vocab_put(struct gguf_vocab *v, json_int_t id, const json_t *text, int type)
{
    if (id < 0 || id >= GGUF_MOST_TOKENS)
        return;
    v->tokens[id] = (struct spw_gguf_string){json_string_value(text), json_string_length(text)};
    v->types[id] = type;
    v->n = (size_t)id >= v->n ? (size_t)id + 1 : v->n;
}

static inline int gguf_is_byte(const char *token)
{
    return strlen(token) == 6 && !strncmp(token, "<0x", 3) && token[5] == '>';
}

/* A merge as its halves: "a b" or ["a", "b"]. */
static inline void gguf_merge(const json_t *merge, const char **left, size_t *left_bytes,
                              const char **right)
{
    if (json_is_array(merge)) {
        *left = json_string_value(json_array_get(merge, 0));
        *right = json_string_value(json_array_get(merge, 1));
        *left_bytes = strlen(*left);
    } else {
        *left = json_string_value(merge);
        *right = strchr(*left, ' ') + 1;
        *left_bytes = (size_t)(*right - *left) - 1;
    }
}

static inline void gguf_vocab_read(struct gguf_vocab *v, json_t *root, bool bytes)
{
    json_t *model = json_object_get(root, "model"), *value;
    const char *key;
    size_t i;
    json_object_foreach(json_object_get(model, "vocab"), key, value)
    {
        gguf_vocab_put(v, json_integer_value(value), json_object_get(root, "none"), 1);
        json_int_t id = json_integer_value(value);
        v->tokens[id] = (struct spw_gguf_string){key, strlen(key)};
        v->types[id] = bytes && gguf_is_byte(key) ? 6 : 1;
    }
    json_array_foreach(json_object_get(root, "added_tokens"), i, value) gguf_vocab_put(
        v, json_integer_value(json_object_get(value, "id")), json_object_get(value, "content"),
        json_is_true(json_object_get(value, "special")) ? 3 : 4);
}

static inline void gguf_add_merges(struct spw_gguf_writer *w, struct gguf_vocab *v, json_t *root)
{
    json_t *model = json_object_get(root, "model");
    const json_t *merges = json_object_get(model, "merges");
    size_t n = json_array_size(merges);
    struct spw_gguf_string *texts = calloc(n + 1, sizeof *texts);
    for (size_t i = 0; i < n; i++) {
        const char *left, *right;
        size_t left_bytes;
        gguf_merge(json_array_get(merges, i), &left, &left_bytes, &right);
        size_t bytes = left_bytes + strlen(right);
        char *joined = malloc(bytes + 2);
        memcpy(joined, left, left_bytes);
        memcpy(joined + left_bytes, right, strlen(right) + 1);
        json_t *id = json_object_get(json_object_get(model, "vocab"), joined);
        float *score = id ? &v->scores[json_integer_value(id)] : NULL;
        if (score && *score < (float)-GGUF_MOST_TOKENS)
            *score = -(float)i;
        memmove(joined + left_bytes + 1, right, strlen(right));
        joined[left_bytes] = ' ';
        texts[i] = (struct spw_gguf_string){joined, bytes + 1};
    }
    spw_gguf_add_strings(w, "tokenizer.ggml.merges", texts, n);
    for (size_t i = 0; i < n; i++)
        free((void *)(uintptr_t)texts[i].at);
    free(texts);
}

static inline void gguf_add_special(struct spw_gguf_writer *w, const struct gguf_vocab *v,
                                    const char *key, const char *text)
{
    for (size_t i = 0; text && i < v->n; i++)
        if (v->tokens[i].bytes == strlen(text) && !memcmp(v->tokens[i].at, text, strlen(text)))
            spw_gguf_add_u32(w, key, (uint32_t)i);
}

/* Adds the keys to a writer. */
static inline void gguf_tokenizer_keys(struct spw_gguf_writer *w, json_t *root,
                                       const struct gguf_tokenizer *as)
{
    struct gguf_vocab v = {.tokens = calloc(GGUF_MOST_TOKENS, sizeof *v.tokens),
                           .types = calloc(GGUF_MOST_TOKENS, sizeof *v.types),
                           .scores = calloc(GGUF_MOST_TOKENS, sizeof *v.scores)};
    char *names = malloc((size_t)GGUF_MOST_TOKENS * 16);
    const char *unknown =
        json_string_value(json_object_get(json_object_get(root, "model"), "unk_token"));
    for (size_t i = 0; i < GGUF_MOST_TOKENS; i++)
        v.scores[i] = -1e30f;
    gguf_vocab_read(&v, root, strcmp(as->model, "gpt2") != 0);
    for (size_t i = 0; i < v.n; i++)
        if (!v.types[i]) {
            int n = snprintf(names + 16 * i, 16, "[PAD%d]", (int)i);
            v.tokens[i] = (struct spw_gguf_string){names + 16 * i, (uint64_t)n};
            v.types[i] = 5;
        }
    if (as->architecture)
        spw_gguf_add_string(w, "general.architecture", as->architecture);
    spw_gguf_add_string(w, "tokenizer.ggml.model", as->model);
    if (as->pre)
        spw_gguf_add_string(w, "tokenizer.ggml.pre", as->pre);
    gguf_add_merges(w, &v, root); /* llama has no use for it, but the key does no harm */
    spw_gguf_add_strings(w, "tokenizer.ggml.tokens", v.tokens, v.n);
    spw_gguf_add(w, "tokenizer.ggml.scores", SPW_GGUF_F32, true, v.scores, v.n);
    spw_gguf_add(w, "tokenizer.ggml.token_type", SPW_GGUF_I32, true, v.types, v.n);
    gguf_add_special(w, &v, "tokenizer.ggml.bos_token_id", as->bos);
    gguf_add_special(w, &v, "tokenizer.ggml.eos_token_id", as->eos);
    gguf_add_special(w, &v, "tokenizer.ggml.unknown_token_id", unknown);
    spw_gguf_add_bool(w, "tokenizer.ggml.add_bos_token", as->add_bos);
    spw_gguf_add_bool(w, "tokenizer.ggml.add_space_prefix", as->prefix);
    free(names);
    free(v.tokens);
    free(v.types);
    free(v.scores);
}

#endif
