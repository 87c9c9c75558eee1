/* Beam search: of all answers, those with the best score. Pure, but for its memory.
 *
 *   beam 0  ... a b          log-probabilities of the next token, for each beam
 *   beam 1  ... a c    ->    the best sums of score and log-probability
 *                      ->    moves: beam 0 becomes a child of beam 1 with token x, ...
 *
 * An answer ends with an end token, or at its longest length. The score of an ended answer is its
 * sum of log-probabilities, divided by its number of tokens to the power of length_penalty.
 *
 * As transformers 5.24 defines beam search (GenerationMixin._beam_search), and transformers 4.55.4
 * diverse groups (_group_beam_search; A. Vijayakumar et al., "Diverse Beam Search", 2016). */
#ifndef SPW_RUNTIME_RULES_BEAMS_H
#define SPW_RUNTIME_RULES_BEAMS_H

#include "base/base.h"

/* When the search ends: see struct spw_beam_search of spillway.h. */
struct spw_beam_options {
    uint32_t n_beams, n_groups; /* n_groups divides n_beams */
    float diversity_penalty, length_penalty;
    bool stops_early, never_early;
    uint32_t vocab;
    uint64_t most_tokens; /* of an answer; above 0 */
    const int32_t *eos;   /* [n_eos], borrowed: tokens that end an answer */
    uint32_t n_eos;
    int32_t pad; /* the token of a group that has ended while others go on */
};

/* How a beam goes on: as the child of the beam `parent`, with another token. */
struct spw_beam_move {
    uint32_t parent;
    int32_t token;
};

/* The log-probabilities [vocab] of the token after beam i, once all changes are made. `chosen`
 * [n_chosen]: tokens that earlier groups have chosen in this step; each of them lowers its token by
 * diversity_penalty, before any other change. The row is valid until the next call. NULL: the
 * logits are not numbers. */
struct spw_beam_rows {
    const float *(*row)(void *context, uint32_t i, const int32_t *chosen, uint32_t n_chosen);
    void *context;
};

struct spw_beams;

/* Takes 16 bytes for each beam and token. -ENOMEM. */
int spw_beams_open(struct spw_beams **out, const struct spw_beam_options *o);
void spw_beams_close(struct spw_beams *s); /* NULL is fine */

/* Chooses the next token of each beam: moves [n_beams]. All beams begin with the same tokens.
 * -EDOM: the logits are not numbers. */
int spw_beams_step(struct spw_beams *s, const struct spw_beam_rows *rows,
                   struct spw_beam_move *moves);
bool spw_beams_has_ended(const struct spw_beams *s);
/* The tokens [n] that beam i has chosen so far; n: how many steps there were. */
const int32_t *spw_beams_tokens(const struct spw_beams *s, uint32_t i, uint64_t *n);
/* After the search has ended: answer k of n_beams, the best one first, with its end token. */
const int32_t *spw_beams_answer(const struct spw_beams *s, uint32_t k, uint64_t *n, double *score);

#endif
