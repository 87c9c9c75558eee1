/* A group: requests of a batch that are decided together. After a step the batch hands the group
 * what its requests have computed, and the group says how each of them goes on:
 *
 *   rows of logits -> decide -> for each request: a parent, tokens that stay, the next token
 *
 * One answer is a group of one request. The samples of a prompt are a group, too: the session of
 * the first one computes the prompt, and those of the others become its children. A group knows
 * nothing of sessions and steps: the batch carries out what it decides (batch_step.c). */
#ifndef SPW_RUNTIME_BATCH_GROUP_H
#define SPW_RUNTIME_BATCH_GROUP_H

#include "runtime/batch/answer.h"
#include "runtime/sampler.h"

/* A request of the group that takes part in a decision. */
struct spw_group_member {
    const struct spw_answer *answer;
    const float *logits; /* [vocab], after the last token of its session; NULL: it has no session */
    /* The decision: */
    uint32_t parent; /* the member whose session goes on as this one's; its own number: its own */
    uint64_t n_stay; /* tokens of that session that stay */
    int32_t token;   /* follows them; or -errno: the member fails */
};

struct spw_group {
    /* Fills in the decision of each of n members. Those without a session have the tokens of a
     * member that has one. */
    void (*decide)(struct spw_sampler *s, struct spw_group_member *members, uint32_t n);
    uint64_t first; /* its requests: the numbers from `first` on */
    uint32_t n;
    uint32_t n_users; /* requests that the batch has not forgotten yet */
};

/* Any token follows: where nothing is computed (struct spw_backend.counts). */
void spw_group_any(struct spw_sampler *s, struct spw_group_member *members, uint32_t n);
/* Each member picks its next token, with draws of its own. */
void spw_group_sample(struct spw_sampler *s, struct spw_group_member *members, uint32_t n);

#endif
