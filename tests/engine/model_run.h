/* Helpers of the tests that run whole models through the public API. */
#ifndef SPW_TESTS_ENGINE_MODEL_RUN_H
#define SPW_TESTS_ENGINE_MODEL_RUN_H

#include "model/text/tokenizer/tokenizer.h"
#include "model/text/chat_template.h"
#include "model/source/source.h"
#include "model/config/config.h"
#include "runtime/spillway.h"
#include "tests/check.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

/* What a program runs on. One whose source serves two backends is compiled twice: CMakeLists.txt
 * names the other one. An emulated GPU is slow: tests do less there. */
#ifndef TEST_BACKEND
#define TEST_BACKEND SPW_BACKEND_CPU
#endif
enum { TEST_GPU = TEST_BACKEND == SPW_BACKEND_CUDA };

/* Collects the logits of every position of one span. */
struct model_logits {
    float *rows; /* [n_tokens][vocab] */
    uint32_t vocab;
};

static inline void model_keep_logits(void *context, size_t span, size_t position,
                                     const float *logits)
{
    struct model_logits *l = context;
    (void)span;
    memcpy(l->rows + position * l->vocab, logits, l->vocab * sizeof *logits);
}

static inline float *model_floats(const char *path, size_t n)
{
    float *f = calloc(n, sizeof *f);
    FILE *file = fopen(path, "rb");
    size_t got = file ? fread(f, sizeof *f, n, file) : 0;
    if (file)
        fclose(file);
    CHECK_MSG(got == n, "%s: %zu floats, expected %zu", path, got, n);
    return f;
}

/* The spectrogram of a golden model whose source is audio; NULL: it is text. */
static inline float *model_audio(const char *dir, const struct spw_model_config *c)
{
    char path[600];
    snprintf(path, sizeof path, "%s/golden_audio.f32", dir);
    return c->n_mels ? model_floats(path, SPW_AUDIO_FRAMES * c->n_audio * c->n_mels) : NULL;
}

/* Whole sequence in one step, all logits; NULL after a failure, which is a failed check. audio: of
 * its source, or NULL. */
static inline float *model_logits_of(const char *dir, const struct spw_options *o,
                                     const int32_t *ids, size_t n, const float *audio,
                                     uint32_t *vocab)
{
    struct spw_error err = {0};
    struct spw_engine *e = NULL;
    struct spw_session *s = NULL;
    struct model_logits l = {0};
    int rc = spw_engine_open(&e, dir, o, &err);
    CHECK_MSG(rc == 0, "%s: %s", dir, err.text);
    if (rc)
        return NULL;
    l.vocab = *vocab = spw_engine_config(e)->vocab;
    l.rows = calloc(n * l.vocab, sizeof(float));
    rc = spw_session_open(&s, e, &err);
    const size_t n_source = (size_t)spw_source_length(ids, n);
    struct spw_span span = {s, ids, n, n - n_source};
    float *golden = audio ? NULL : model_audio(dir, spw_engine_config(e));
    if (!rc)
        spw_session_set_audio(s, audio ? audio : golden);
    if (!rc)
        rc = spw_sync(e, &span, 1, model_keep_logits, &l, &err);
    CHECK_MSG(rc == 0, "%s: %s", dir, err.text);
    spw_session_close(s);
    spw_engine_close(e);
    free(golden);
    if (!rc)
        return l.rows;
    free(l.rows);
    return NULL;
}

static inline float *model_all_logits(const char *dir, const struct spw_options *o,
                                      const int32_t *ids, size_t n, uint32_t *vocab)
{
    return model_logits_of(dir, o, ids, n, NULL, vocab);
}

static inline int32_t *model_ids(const json_t *list, size_t *n)
{
    *n = json_array_size(list);
    int32_t *ids = calloc(*n + 1, sizeof *ids);
    for (size_t i = 0; i < *n; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return ids;
}

static inline int32_t model_argmax(const float *x, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return (int32_t)best;
}

#endif
