/* Fills the tables of a tokenizer, from any format: tables, then all tokens of the model, then the
 * characters, then merges, the pipeline, added tokens, and the finish. Errors as in tokenizer.h.
 * Not for other modules. */
#ifndef SPW_MODEL_TEXT_TOKENIZER_TOKENIZER_BUILD_H
#define SPW_MODEL_TEXT_TOKENIZER_TOKENIZER_BUILD_H

#include "model/text/tokenizer/tokenizer_impl.h"

struct spw_tok_build {
    struct spw_tokenizer *t;
    const char *name; /* the file, for error texts */
    struct spw_error *err;
    const char *vocab_key, *merges_key; /* the same */
};

/* Counted first, so that each table is taken once. */
struct spw_tok_sizes {
    uint32_t n_ids; /* largest id + 1 */
    size_t n_vocab, n_added;
    size_t blob_bytes; /* of all texts, each with a NUL */
};

int spw_tok_build_tables(const struct spw_tok_build *b, const struct spw_tok_sizes *sizes);
/* A token of the model. */
int spw_tok_build_token(const struct spw_tok_build *b, const char *token, size_t bytes, int32_t id);
/* Call it when all tokens and byte_fallback are known. */
void spw_tok_build_characters(const struct spw_tok_build *b);
/* After spw_tok_merges_init. `joined`: the left half and the right half. */
int spw_tok_build_merge(const struct spw_tok_build *b, const char *joined, size_t bytes,
                        size_t left_bytes, uint32_t rank);
/* The normalizers are known. `path`: of the token in the file. */
int spw_tok_build_added(const struct spw_tok_build *b, const struct spw_tok_added *added,
                        const char *content, size_t bytes, bool special, const char *path);
int spw_tok_build_finish(const struct spw_tok_build *b);

#endif
