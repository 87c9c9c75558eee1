/* Drafts from the text: what followed the last tokens where they occurred before. Pure, but for the
 * memory of the index.
 *
 *   tokens   ... a b c d e ... x b c | d e ...      the draft: d e
 *                  ^ match ^     ^n
 *
 * The index has the position of each run of three tokens. Of the newest places where the last three
 * occurred, the one counts whose tokens before agree furthest; of equals, the newest. */
#ifndef SPW_RUNTIME_RULES_DRAFT_TEXT_H
#define SPW_RUNTIME_RULES_DRAFT_TEXT_H

#include "base/base.h"

enum { SPW_DRAFT_LEAST_MATCH = 3, SPW_DRAFT_MOST_MATCH = 32 };

struct spw_draft_text {
    uint32_t *heads;  /* owned, [mask + 1]: by hash, 1 + the place of the newest run; 0: none */
    uint32_t *before; /* owned, [most_tokens]: the place before that with the same hash, likewise */
    uint64_t mask, n; /* n: tokens that the index has */
};

/* For sequences of at most most_tokens (below 2^32). -ENOMEM: nothing is left to close. */
int spw_draft_text_open(struct spw_draft_text *d, uint64_t most_tokens);
void spw_draft_text_close(struct spw_draft_text *d); /* zeros are fine */
/* Tokens [n_tokens] begin with those of all calls before. Fills `out` with at most `most`
 * tokens that may follow, and returns how many; *match: how many of the last tokens agreed. */
uint32_t spw_draft_text_propose(struct spw_draft_text *d, const int32_t *tokens, uint64_t n_tokens,
                                int32_t *out, uint32_t most, uint32_t *match);

#endif
