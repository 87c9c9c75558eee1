/* Groups whose requests are the beams of a search (runtime/rules/beams.h).
 *
 * All requests of the group start together, and each step decides all of them. Their answers have
 * the tokens of the beams until the search ends; then they have its answers, the best one first,
 * and only then their events. */
#include "runtime/batch/batch_parts.h"
#include "runtime/batch/beam_row.h"
#include "runtime/rules/beams.h"

#include <stdio.h>
#include <string.h>

/* The members of the search itself. */
static int check_search(const struct spw_batch *b, const struct spw_beam_search *s,
                        struct spw_error *err)
{
    char most[96];
    const uint32_t n = spw_min_u32(b->max_running, SPW_BEAMS_MOST);
    snprintf(most, sizeof most, "at most %u: the sessions of the engine, and at most %d", n,
             SPW_BEAMS_MOST);
    const struct {
        const char *member;
        double found;
        bool fits;
        const char *expected;
    } rows[] = {
        {"n_beams", s->n_beams, s->n_beams <= n, most},
        {"n_return", s->n_return, s->n_return <= s->n_beams, "at most the number of beams"},
        {"n_groups", s->n_groups, !s->n_groups || s->n_beams % s->n_groups == 0,
         "a divisor of the number of beams"},
        {"diversity_penalty", (double)s->diversity_penalty,
         s->n_groups < 2 || s->diversity_penalty > 0, "a number above 0, because there are groups"},
        {"length_penalty", (double)s->length_penalty,
         s->length_penalty >= -30 && s->length_penalty <= 30, "a number from -30 to 30"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!rows[i].fits)
            return spw_fail(err, -EINVAL, "request %llu: beams.%s: found %g, expected %s",
                            (unsigned long long)b->n_submitted + 1, rows[i].member, rows[i].found,
                            rows[i].expected);
    return 0;
}

int spw_batch_check_beams(const struct spw_batch *b, const struct spw_request *r,
                          struct spw_error *err)
{
    const struct {
        const char *member;
        bool is_wrong;
        const char *expected;
    } rows[] = {
        {"max_new_tokens", !r->max_new_tokens, "at least 1"},
        {"n_samples", r->n_samples > 1, "one"},
        {"session", r->session, "none"},
        {"given", r->n_given, "none"},
        {"grammar", r->grammar, "none"},
        {"stop", r->n_stop, "none"},
        {"logprobs", r->logprobs || r->prompt_logprobs, "none"},
        {"sampling.temperature", r->sampling.temperature != 0, "0"},
    };
    if (!r->beams.n_beams)
        return 0;
    SPW_TRY(check_search(b, &r->beams, err));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].is_wrong)
            return spw_fail(err, -EINVAL, "request %llu: %s: a beam search has %s",
                            (unsigned long long)b->n_submitted + 1, rows[i].member,
                            rows[i].expected);
    return 0;
}

int spw_batch_open_beams(const struct spw_batch *b, const struct spw_request *r,
                         struct spw_group *g)
{
    const struct spw_model_config *c = spw_engine_config(b->engine);
    const struct spw_beam_search *s = &r->beams;
    g->together = s->n_beams;
    if (s->n_beams && b->engine->dry)
        g->decide = spw_group_replay;
    if (!s->n_beams || b->engine->dry)
        return 0;
    const struct spw_beam_options o = {.n_beams = s->n_beams,
                                       .n_groups = spw_max_u32(s->n_groups, 1),
                                       .diversity_penalty = s->diversity_penalty,
                                       .length_penalty = s->length_penalty,
                                       .stops_early = s->early_stopping == SPW_BEAMS_STOP_EARLY,
                                       .never_early = s->early_stopping == SPW_BEAMS_NEVER_EARLY,
                                       .vocab = c->vocab,
                                       .most_tokens = r->max_new_tokens,
                                       .eos = c->eos,
                                       .n_eos = r->ignore_eos ? 0 : c->n_eos,
                                       .pad = c->n_eos ? c->eos[0] : 0};
    g->decide = spw_group_search;
    return spw_beams_open(&g->beams, &o);
}

int spw_batch_open_parents(struct spw_batch_entry *x)
{
    const struct spw_request *r = &x->answer.request;
    x->answer.result.parents = spw_alloc_zero(r->max_new_tokens, r->beams.n_beams);
    return x->answer.result.parents ? 0 : -ENOMEM;
}

/* ---- the decision ---- */

struct search_step {
    struct spw_sampler *sampler;
    const struct spw_group_member *members;
};

static const float *row_of_beam(void *context, uint32_t i, const int32_t *chosen, uint32_t n_chosen)
{
    const struct search_step *s = context;
    const struct spw_answer *a = s->members[i].answer;
    const float *logits = s->members[i].logits; /* before the first step the first one has them */
    const struct spw_row_of_beam b = {.sampling = &a->request.sampling,
                                      .logits = logits ? logits : s->members[0].logits,
                                      .tokens = a->tokens,
                                      .n_prompt = a->request.n_prompt,
                                      .n_tokens = a->n_tokens,
                                      .chosen = chosen,
                                      .n_chosen = n_chosen,
                                      .diversity_penalty = a->request.beams.diversity_penalty};
    return spw_sampler_log_probs(s->sampler, &b);
}

void spw_group_search(const struct spw_group *g, struct spw_sampler *s,
                      struct spw_group_member *members, uint32_t n)
{
    struct spw_beam_move moves[SPW_BEAMS_MOST];
    struct search_step step = {s, members};
    const struct spw_beam_rows rows = {row_of_beam, &step};
    const int rc = spw_beams_step(g->beams, &rows, moves);
    for (uint32_t i = 0; i < n; i++) {
        /* before the first step one beam has the session of all */
        const uint32_t parent = rc < 0 ? i : moves[i].parent;
        members[i].parent = members[parent].logits ? parent : 0;
        members[i].n_stay = members[i].answer->n_tokens;
        members[i].token = rc < 0 ? rc : moves[i].token;
    }
}

/* ---- how the beams go on ---- */

static void end_search(struct spw_batch *b, const struct spw_group *g, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        struct spw_batch_entry *x = b->deciding[i];
        uint64_t n_tokens;
        double score;
        const int32_t *tokens = spw_beams_answer(g->beams, i, &n_tokens, &score);
        const int rc = spw_answer_replace(&x->answer, tokens, n_tokens);
        const enum spw_finish finish = spw_answer_finish(&x->answer);
        x->answer.result.has_score = true;
        x->answer.result.score = score;
        if (rc) {
            spw_batch_fail(b, x, rc);
            return;
        }
        spw_batch_end_well(b, x, finish == SPW_FINISH_NONE ? SPW_FINISH_LENGTH : finish);
    }
}

void spw_batch_advance_beams(struct spw_batch *b, const struct spw_group *g, uint32_t n)
{
    struct spw_result *first = &b->deciding[0]->answer.result;
    for (uint32_t i = 0; i < n; i++)
        first->parents[first->n_steps * n + i] = (uint8_t)b->members[i].parent;
    first->n_steps++;
    for (uint32_t i = 0; i < n; i++)
        if (b->members[i].token < 0) {
            spw_batch_fail(b, b->deciding[i], b->members[i].token);
            return;
        }
    if (spw_beams_has_ended(g->beams)) {
        end_search(b, g, n);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        struct spw_batch_entry *x = b->deciding[i];
        struct spw_answer *a = &x->answer;
        uint64_t n_made;
        const int32_t *tokens = spw_beams_tokens(g->beams, i, &n_made);
        x->n_failures = 0;
        memcpy(a->tokens + a->request.n_prompt, tokens, n_made * sizeof *tokens);
        a->n_tokens = a->request.n_prompt + n_made;
    }
}
