/* What the two files that read tokenizer.json share. Not for other modules. */
#ifndef SPW_MODEL_TOKENIZER_JSON_H
#define SPW_MODEL_TOKENIZER_JSON_H

#include "model/tokenizer_impl.h"

#include <jansson.h>

struct spw_tok_loader {
    struct spw_tokenizer *t;
    const char *name; /* the file, for error texts */
    struct spw_error *err;
};

/* "file: path.key: found X, expected Y"; returns `code`. */
int spw_tok_bad(const struct spw_tok_loader *l, int code, const char *path, const char *key,
                const json_t *found, const char *expected);
int spw_tok_get_string(const struct spw_tok_loader *l, const json_t *object, const char *path,
                       const char *key, const char **out);
/* Absent or null gives `otherwise`. */
int spw_tok_get_bool(const struct spw_tok_loader *l, const json_t *object, const char *path,
                     const char *key, bool otherwise, bool *out);
int spw_tok_get_id(const struct spw_tok_loader *l, const json_t *value, const char *path,
                   const char *key, int32_t *out);

/* normalizer, pre_tokenizer, post_processor, decoder */
int spw_tok_load_pipeline(const struct spw_tok_loader *l, const json_t *root);

#endif
