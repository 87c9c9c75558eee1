/* The inside of a vocabulary, for vocabulary.c and run.c. */
#ifndef SPW_MODEL_TEXT_GRAMMAR_VOCABULARY_H
#define SPW_MODEL_TEXT_GRAMMAR_VOCABULARY_H

#include "model/text/grammar/run.h"

struct spw_vocabulary_token {
    const char *text; /* [bytes], in the pool */
    size_t at;        /* of the text in the pool */
    int32_t id;
    uint32_t bytes, shared; /* shared: bytes that the token before begins with, too */
};

struct spw_vocabulary {
    uint32_t vocab, n, longest;
    struct spw_vocabulary_token *tokens; /* [n] of [vocab], in the order of their bytes; owned */
    uint32_t *place;                     /* [vocab] in `tokens`, from 1 on; 0: no bytes; owned */
    char *pool;                          /* [n_bytes], owned */
    size_t n_bytes;
};

#endif
