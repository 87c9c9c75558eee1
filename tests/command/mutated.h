/* Random damage to the files of a model, and what the library may do with them: it refuses a file
 * with one line of text, or gives an answer. */
#ifndef SPW_TESTS_COMMAND_MUTATED_H
#define SPW_TESTS_COMMAND_MUTATED_H

#include "model/text/chat_template.h"
#include "model/text/tokenizer/tokenizer.h"
#include "tests/batch_run.h"
#include "tests/engine/model_run.h"

enum { MOST_BYTES = 1 << 20, SECONDS = 60 /* of one model: else the alarm ends the program */ };

#define PICK(list, seed) list[check_random(seed) % (sizeof(list) / sizeof *(list))]

struct bytes {
    uint8_t *at; /* [MOST_BYTES] */
    size_t n;
};

static inline bool read_bytes(struct bytes *b, const char *path)
{
    FILE *file = fopen(path, "rb");
    b->n = file ? fread(b->at, 1, MOST_BYTES / 2, file) : 0;
    if (file)
        fclose(file);
    return file != NULL;
}

static inline void write_bytes(const struct bytes *b, const char *dir, const char *name)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "wb");
    CHECK(file && fwrite(b->at, 1, b->n, file) == b->n && !fclose(file));
}

/* Puts `text` in the place of [at, at + gone). */
static inline void replace(struct bytes *b, size_t at, size_t gone, const char *text, size_t n)
{
    if (b->n - gone + n > MOST_BYTES)
        return;
    memmove(b->at + at + n, b->at + at + gone, b->n - at - gone);
    memcpy(b->at + at, text, n);
    b->n = b->n - gone + n;
}

static inline void change_bytes(struct bytes *b, size_t from, size_t to, uint64_t *seed)
{
    for (uint64_t n = check_range(seed, 1, 4); n > 0; n--)
        b->at[from + check_random(seed) % (to - from)] = (uint8_t)check_random(seed);
}

/* ---- the library's result ---- */

static inline void check_refusal(int rc, const struct spw_error *err, const char *what)
{
    CHECK_MSG(rc == 0 || (rc < 0 && err->text[0] && !strchr(err->text, '\n')), "%s: %d: '%s'", what,
              rc, err->text);
}

/* True: it gave an answer. */
static inline bool use_model(const char *dir, const struct spw_tokenizer *tokenizer)
{
    static const int32_t prompt[] = {5, 9, 14, 3, 8, 21, 33, 40, 17, 6, 5, 9, 14, 3, 8, 21, 33, 40};
    struct spw_options o = {.backend = TEST_BACKEND, .context = 32, .threads = 1};
    struct spw_engine *e = NULL;
    struct spw_error err = {0};
    int rc = spw_engine_open(&e, dir, &o, &err);
    check_refusal(rc, &err, "engine");
    if (rc)
        return false;
    struct spw_request request = {.prompt = prompt, .n_prompt = 18, .max_new_tokens = 3};
    struct spw_result result;
    rc = batch_run(e, tokenizer, &request, 1, &result, NULL, &err);
    check_refusal(rc, &err, "generate");
    spw_result_free(&result);
    spw_engine_close(e);
    return rc == 0;
}

#endif
