/* A grammar that follows a text, and the tokens that may come next.
 *
 * A state of the grammar is a set of stacks, because a text may be the begin of several things. A
 * stack is a chain of frames (node, how far, the frame around it). Frames and sets are numbered, so
 * that equal ones are one, and a set stores which set follows after each byte: after the first time
 * a byte costs one look into a table. The tokens that a set allows are found by one walk over the
 * vocabulary in the order of its bytes, and stored with the set. Where any text may follow, all
 * plain tokens (vocabulary.h) are allowed at once, and the walk goes over the others: of 151,643
 * tokens of Qwen2.5, 6,907.
 *
 * One thread at a time. */
#ifndef SPW_MODEL_TEXT_GRAMMAR_RUN_H
#define SPW_MODEL_TEXT_GRAMMAR_RUN_H

#include "model/text/grammar/grammar.h"
#include "model/text/tokenizer/tokenizer.h"

/* The bytes of all tokens; special tokens have bytes of their own (spw_node_token). Never changes.
 */
struct spw_vocabulary;
/* `vocab`: tokens of the model's logits. -ENOMEM. */
int spw_vocabulary_open(struct spw_vocabulary **out, const struct spw_tokenizer *t, uint32_t vocab);
void spw_vocabulary_close(struct spw_vocabulary *v); /* NULL is fine */

struct spw_grammar_run;
/* Borrows both. `breaks`: at most two line breaks may stand before the text. */
int spw_grammar_run_open(struct spw_grammar_run **out, const struct spw_grammar *g,
                         const struct spw_vocabulary *v, bool breaks);
void spw_grammar_run_close(struct spw_grammar_run *r); /* NULL is fine */
/* The text goes on. -EINVAL: the grammar does not allow these bytes, and nothing may follow;
 * -E2BIG: as below; -ENOMEM. */
int spw_grammar_run_push(struct spw_grammar_run *r, const char *bytes, size_t n);
int spw_grammar_run_token(struct spw_grammar_run *r, int32_t token);
/* Whether the text may end here. */
bool spw_grammar_run_may_end(const struct spw_grammar_run *r);
#define SPW_GRAMMAR_TOO_MANY                                                                       \
    "the answer may be the begin of too many things: its schema has counts inside of counts, or "  \
    "choices that begin alike"
/* *out: [vocab] bits: the tokens that may follow; valid until the next call. -E2BIG:
 * SPW_GRAMMAR_TOO_MANY; -ENOMEM. */
int spw_grammar_run_allowed(struct spw_grammar_run *r, const uint64_t **out);

#endif
