/* How the requests of a group go on: see group.h. */
#include "runtime/batch/group.h"

/* The member whose session has the tokens of member i. */
static uint32_t parent_of(const struct spw_group_member *members, uint32_t i)
{
    uint32_t p = i;
    if (!members[i].logits)
        for (p = 0;
             !members[p].logits || members[p].answer->n_tokens != members[i].answer->n_tokens;)
            p++;
    return p;
}

void spw_group_sample(struct spw_sampler *s, struct spw_group_member *members, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        struct spw_group_member *m = &members[i];
        const struct spw_answer *a = m->answer;
        m->parent = parent_of(members, i);
        m->n_stay = a->n_tokens;
        m->token = spw_sampler_pick(s, &a->request.sampling, members[m->parent].logits, a->tokens,
                                    a->request.n_prompt, a->n_tokens);
    }
}

void spw_group_any(struct spw_sampler *s, struct spw_group_member *members, uint32_t n)
{
    (void)s;
    for (uint32_t i = 0; i < n; i++) {
        members[i].parent = i;
        members[i].n_stay = members[i].answer->n_tokens;
        members[i].token = 0;
    }
}
