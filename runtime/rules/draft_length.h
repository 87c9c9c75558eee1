/* How many tokens to draft: a decision by measured times, which no result depends on. Pure.
 *
 *   a step with k drafts gives 1 + p + p^2 + ... + p^k tokens, if each draft stays with odds p
 *   and takes cost(k) times as long as one without
 *
 * The most tokens a second win. Without a gain of a fiftieth there are no drafts. */
#ifndef SPW_RUNTIME_RULES_DRAFT_LENGTH_H
#define SPW_RUNTIME_RULES_DRAFT_LENGTH_H

#include "base/base.h"

/* The most drafts of a request in a step; rows of logits for the drafts of all requests, and of the
 * tokens before them; classes of matches. */
enum { SPW_DRAFT_MOST = 15, SPW_DRAFT_ROWS = 32, SPW_DRAFT_MATCHES = 5 };
/* The length of a match that stands for a draft of a model. */
enum { SPW_DRAFT_BY_MODEL = 1000 };

/* What steps cost that have n drafts, of all sessions together. Zeros: nothing was measured. */
struct spw_draft_costs {
    uint32_t n_sessions;  /* of the steps that were measured */
    double seconds;       /* of a step without drafts; 0: not measured */
    double model_seconds; /* in which the draft model proposes a token; 0: not measured */
    double times[SPW_DRAFT_ROWS + 1]; /* a step with n drafts takes so many times as long; 0:
                                              not measured */
};

/* Measured: a step of n_sessions with n_drafts. Numbers that were not measured for long come near
 * to 1, so that they are tried again. */
void spw_draft_costs_note(struct spw_draft_costs *c, uint32_t n_sessions, uint32_t n_drafts,
                          double seconds);

/* The draft model has proposed a token in so many seconds. */
void spw_draft_costs_note_model(struct spw_draft_costs *c, double seconds);

/* The odds that a drafted token stays, by the length of the match that proposed it. Zeros: as at
 * the start. */
struct spw_draft_odds {
    double shift[SPW_DRAFT_MATCHES]; /* from the odds at the start */
};

double spw_draft_odds_of(const struct spw_draft_odds *o, uint32_t match);
/* n_stayed of the drafts were picked, and then, `ended`, another token was. */
void spw_draft_odds_note(struct spw_draft_odds *o, uint32_t match, uint32_t n_stayed, bool ended);

/* A step before this session is added. */
struct spw_draft_step {
    uint32_t n_sessions, n_drafts; /* n_sessions: with this one */
    double n_tokens;               /* that it is expected to give to the other sessions */
    double seconds;                /* in which the draft model has proposed their drafts */
};
/* How many of at most `most` (SPW_DRAFT_MOST) tokens to draft that stay with odds p each, and take
 * `each` seconds to propose. 0 before a step of so many sessions was measured. */
uint32_t spw_draft_length(const struct spw_draft_costs *c, const struct spw_draft_step *before,
                          double p, double each, uint32_t most);

#endif
