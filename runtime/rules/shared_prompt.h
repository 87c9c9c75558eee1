/* Which request of a batch can begin with tokens that another request computes. Pure functions, for
 * batch_sessions.c and for the prediction of bytes.
 *
 *   donor  |------ shared -------|---- its own rest ----|
 *   taker  |------ shared -------|--- another rest ---|
 *
 * The donor's session computes the shared tokens first. Then the taker's session is forked from it:
 * both have the same tiles by reference, and the first one that writes into the last tile copies it
 * before. If the donor has ended, the taker may get its session, cut back to the shared tokens. */
#ifndef SPW_RUNTIME_RULES_SHARED_PROMPT_H
#define SPW_RUNTIME_RULES_SHARED_PROMPT_H

#include "base/base.h"

/* What the plan says of sharing: see spw_plan_sharing. */
struct spw_sharing {
    bool needs_checkpoint; /* a session cannot be cut back to any length, only to a checkpoint */
    uint32_t chunk;        /* the donor makes no step of its own for fewer tokens than these,
                              unless they have a source */
};

struct spw_prompt {
    const int32_t *tokens; /* [n_tokens]; NULL: nobody knows them, and nothing is shared */
    uint64_t n_tokens;
    uint64_t n_held; /* how many of them its session has */
    bool is_open;    /* it has a session */
    bool is_alone;   /* it shares nothing */
};

/* How far two sequences of n_a and n_b tokens agree. A source (spw_source_token) is the same as a
 * whole or not at all: every row of it depends on all the others. */
uint64_t spw_common_prefix(const int32_t *a, uint64_t n_a, const int32_t *b, uint64_t n_b);

/* Of n prompts in the order of the batch, the one that prompt `taker` should begin with: the
 * result is how many of its tokens, and *donor the prompt that has the most of them in common with
 * it. 0: none. A donor without a session comes before the taker. At least one token is left for the
 * taker to compute.
 *
 * Fewer tokens than a tile are not shared. A donor that has not computed all of them yet needs a
 * step for the others, which takes about as long as a chunk: if they are fewer, the taker begins
 * with those that the donor holds. A source is worth a step, however short. */
uint64_t spw_shared_prompt(struct spw_sharing by, const struct spw_prompt *prompts, uint32_t n,
                           uint32_t taker, uint32_t *donor);

/* Whole tiles that the taker will have in common with prompt *donor at least, before anything is
 * computed: a donor that does not hold all of them may leave up to a chunk to the taker, but
 * nothing of a source. 0 where sessions begin at checkpoints. */
uint64_t spw_shared_tiles(struct spw_sharing by, const struct spw_prompt *prompts, uint32_t n,
                          uint32_t taker, uint32_t *donor);

/* Lets prompts without a session take over the session of the request that ran in their place
 * before: ended[i] describes what this session holds of that request's prompt. Where prompt i takes
 * it over, prompts[i] is open then, and n_held says how many of its tokens the session keeps. It
 * does not if there is nothing to share, or if it can share more with an open session. */
void spw_take_over_prompts(struct spw_sharing by, struct spw_prompt *prompts,
                           const struct spw_prompt *ended, uint32_t n);

/* How many tokens a donor computes for its takers: the earlier takers need `before` (0: there are
 * none), and this one needs `shared`. The result is the larger number. With needs_checkpoint it is
 * the smaller one; the takers that share more get their tokens in a later step. */
uint64_t spw_shared_span_end(struct spw_sharing by, uint64_t before, uint64_t shared);

#endif
