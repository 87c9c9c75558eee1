/* The inside of a vocabulary, for vocabulary.c and run.c. */
#ifndef SPW_MODEL_TEXT_GRAMMAR_VOCABULARY_H
#define SPW_MODEL_TEXT_GRAMMAR_VOCABULARY_H

#include "model/text/grammar/run.h"

struct spw_vocabulary_token {
    const char *text; /* [bytes], in the pool */
    size_t at;        /* of the text in the pool */
    int32_t id;
    uint32_t bytes, shared; /* shared: bytes that the token before begins with, too */
    uint32_t next;          /* the first one behind it that begins with another byte */
};

/* A plain character stands for itself in every text: see spw_plain_chars in nodes.h. A token is
 * plain if it consists of 1 to SPW_MOST_PLAIN of them. */
enum { SPW_MOST_PLAIN = 24 };

struct spw_vocabulary {
    uint32_t vocab, n, longest, n_others;
    struct spw_vocabulary_token *tokens; /* [n] of [vocab], in the order of their bytes; owned */
    struct spw_vocabulary_token *others; /* [n_others]: those that are not plain; owned */
    uint64_t *plain; /* [SPW_MOST_PLAIN][(vocab + 63) / 64] bits, owned: tokens of at most 1, 2, ...
                        plain characters */
    uint32_t *place; /* [vocab] in `tokens`, from 1 on; 0: no bytes; owned */
    char *pool;      /* [n_bytes], owned */
    size_t n_bytes;
};

#endif
