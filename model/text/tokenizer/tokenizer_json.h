/* What the files that read tokenizer.json share. Not for other modules. */
#ifndef SPW_MODEL_TEXT_TOKENIZER_TOKENIZER_JSON_H
#define SPW_MODEL_TEXT_TOKENIZER_TOKENIZER_JSON_H

#include "model/text/special_tokens.h"
#include "model/text/tokenizer/tokenizer_impl.h"

struct spw_tok_loader {
    struct spw_tok_build build;
    struct spw_tokenizer *t;
    /* model.merges as they stand in the file: of each the two halves joined, and where the right
     * one begins and ends. The file may have them before the vocabulary. */
    struct spw_tok_buf merges; /* owned */
    struct spw_tok_merge_text {
        uint32_t left_bytes, bytes;
    } * merge_texts; /* owned */
    size_t n_merges, merge_capacity;
    size_t n_vocab;
    const struct spw_special_tokens *special; /* borrowed; NULL: there is no folder */
    size_t n_own;     /* added tokens of the file itself; the others follow */
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

/* Adds the tokens of `special` to added_tokens of the root: those that are new have no id. -ENOMEM.
 */
int spw_tok_merge_added(const struct spw_special_tokens *special, json_t *root);

/* Adds the tokens of that list: n_vocab ids are those of the vocabulary. */
int spw_tok_load_added(const struct spw_tok_loader *l, const json_t *added);

/* normalizer, pre_tokenizer, post_processor, decoder */
int spw_tok_load_pipeline(const struct spw_tok_loader *l, const json_t *root);

#endif
