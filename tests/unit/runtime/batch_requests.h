/* Requests on a tiny committed model, and what was seen of them: for the tests of a batch. */
#ifndef SPW_TESTS_UNIT_RUNTIME_BATCH_REQUESTS_H
#define SPW_TESTS_UNIT_RUNTIME_BATCH_REQUESTS_H

#include "model/config/config.h"
#include "model/source/source.h"
#include "model/text/chat_template.h"
#include "model/text/tokenizer/tokenizer.h"
#include "runtime/engine/engine.h"
#include "runtime/sampler.h"
#include "tests/batch_run.h"
#include "tests/byte_tokenizer.h"
#include "tests/check.h"

#include <math.h>
#include <string.h>
#include <xxhash.h>

#define MODEL "tests/golden/llama_700" /* 96 tokens, 1024 positions, eos 2 */

enum { VOCAB = BYTE_TOKENIZER_VOCAB, MOST = 64 };

static inline struct spw_tokenizer *make_tokenizer(void)
{
    char json[BYTE_TOKENIZER_BYTES];
    size_t bytes = byte_tokenizer_json(json);
    struct spw_tokenizer *t = NULL;
    struct spw_error err = {0};
    int rc = spw_tokenizer_parse(&t, json, bytes, "test", &err);
    CHECK_MSG(rc == 0, "%s", err.text);
    return t;
}

static inline struct spw_engine *open_engine(const char *folder, uint32_t sessions)
{
    struct spw_engine *e = NULL;
    struct spw_error err = {0};
    struct spw_options o = {
        .backend = SPW_BACKEND_CPU, .context = 400, .sessions = sessions, .threads = 2};
    int rc = spw_engine_open(&e, folder, &o, &err);
    CHECK_MSG(rc == 0, "%s", err.text);
    if (!e)
        exit(check_done());
    return e;
}

/* The events of one request. */
struct seen {
    char text[4096];
    size_t n_text, n_tokens;
    int32_t tokens[MOST];
    float logits[MOST * VOCAB];
    size_t stop_at; /* the callback that ends the call; 0: none */
};

static inline void see_text(void *context, const char *text, size_t bytes)
{
    struct seen *s = context;
    CHECK(bytes > 0);
    memcpy(s->text + s->n_text, text, bytes);
    s->n_text += bytes;
    /* Complete characters: no piece begins inside one. */
    CHECK(((unsigned char)text[0] & 0xc0) != 0x80);
}

static inline int see_token(void *context, int32_t token, const float *logits)
{
    struct seen *s = context;
    s->tokens[s->n_tokens] = token;
    memcpy(s->logits + s->n_tokens * VOCAB, logits, VOCAB * sizeof *logits);
    return ++s->n_tokens == s->stop_at ? -ECANCELED : 0;
}

struct prompt {
    int32_t ids[200];
    struct spw_request request;
};

static inline void draw_prompt(struct prompt *p, uint64_t *seed)
{
    size_t n = check_range(seed, 1, 200);
    for (size_t i = 0; i < n; i++)
        p->ids[i] = (int32_t)(check_random(seed) % VOCAB);
    p->request = (struct spw_request){.prompt = p->ids,
                                      .n_prompt = n,
                                      .max_new_tokens = check_range(seed, 0, MOST),
                                      .sampling = {.temperature = (float)check_range(seed, 0, 3),
                                                   .top_p = 0.95f,
                                                   .repetition_penalty = 1.1f,
                                                   .frequency_penalty = 0.3f,
                                                   .seed = check_random(seed)},
                                      .ignore_eos = check_range(seed, 0, 1)};
}

static inline bool same(const struct spw_result *a, const struct spw_result *b)
{
    return a->n_tokens == b->n_tokens && a->finish == b->finish &&
           a->logits_hash == b->logits_hash &&
           memcmp(a->tokens, b->tokens, a->n_tokens * sizeof *a->tokens) == 0;
}

/* What a result says of the logits of n tokens. */
static inline uint64_t hash_rows(const float *rows, size_t n)
{
    uint64_t hash = 0;
    for (size_t i = 0; i < n; i++)
        hash = XXH3_64bits_withSeed(rows + i * VOCAB, VOCAB * sizeof *rows, hash);
    return hash;
}

#endif
