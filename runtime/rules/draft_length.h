/* How many tokens to draft, and from which source: a decision by measured times, which no result
 * depends on. Pure.
 *
 *   a step with k drafts gives 1 + p + p^2 + ... + p^k tokens, if each draft stays with odds p,
 *   and takes cost(k) times as long as one without
 *
 * The most tokens a second win, of all sources and lengths. Without a gain of a fiftieth there are
 * no drafts. While there are none, nothing is measured, and costs are hoped to be less and less,
 * until drafts are tried again; while each step has some, so is the time of a step without them.
 *
 * What wrong hopes can cost is bounded by an account of what drafts have lost in all: they may lose
 * a hundredth of the time. A step is drafted only if the account bears that no draft stays. A step
 * without drafts counts in the account by the least that it probably takes, so a gain that is not
 * sure counts as a loss. Numbers of rows that were not measured are tried one after the other (1,
 * 3, 7, ...). The most promising source is never put off for a lesser one, which would use up what
 * may be lost. */
#ifndef SPW_RUNTIME_RULES_DRAFT_LENGTH_H
#define SPW_RUNTIME_RULES_DRAFT_LENGTH_H

#include "base/base.h"

/* The most drafts of a request in a step; the most rows of logits for the drafts of all requests
 * and for the tokens before the drafts; classes of matches (see struct spw_draft_odds). */
enum { SPW_DRAFT_MOST = 15, SPW_DRAFT_ROWS = 32, SPW_DRAFT_MATCHES = 5 };
/* A draft from the text has the length of its match, at most SPW_DRAFT_MOST_MATCH. A draft of a
 * model has no match: this number, longer than any match, stands for it. */
enum { SPW_DRAFT_BY_MODEL = 1000 };

/* How long decode steps take. A step has one row for each session, and *additional rows*: drafts,
 * and tokens that are computed once more because a state was set back. Zeros: nothing was measured.
 */
struct spw_draft_costs {
    uint32_t n_sessions;  /* of the latest step */
    double seconds;       /* a step of so many sessions without additional rows; 0: not measured */
    uint32_t n_plain;     /* such steps so far. The first one is often slow: two are waited for */
    uint32_t n_drafting;  /* steps since the latest one of these */
    double row_seconds;   /* a row of a prompt; 0: not measured, or the model has experts, of which
                             each row chooses its own */
    double model_seconds; /* the draft model proposes a token; 0: not measured */
    double read_seconds;  /* the draft model computes a token that is known; 0: not measured */
    double times[SPW_DRAFT_ROWS + 1]; /* times[n]: a step with n additional rows takes so many times
                                         as long as one without; 0: not measured */
    uint32_t n_since;                 /* steps since the latest one with additional rows */
    double spent;                     /* seconds of all steps, also of those with prompts */
    double lost;                      /* seconds that drafts have cost, of these or of the model;
                                         below 0: they have saved more than they cost */
};

/* A step of n_sessions, with n_beside additional rows, has taken so many seconds. */
void spw_draft_costs_note(struct spw_draft_costs *c, uint32_t n_sessions, uint32_t n_beside,
                          double seconds);
/* n of the step's drafts have stayed. */
void spw_draft_costs_note_stayed(struct spw_draft_costs *c, uint32_t n);
/* The seconds that drafts may lose now. */
double spw_draft_costs_bearable(const struct spw_draft_costs *c);
/* The draft model has proposed n tokens, or has read n tokens, in so many seconds. */
void spw_draft_costs_note_model(struct spw_draft_costs *c, uint32_t n, double seconds);
void spw_draft_costs_note_read(struct spw_draft_costs *c, uint64_t n, double seconds);

/* The odds that a drafted token stays, by the length of the match that proposed it. Zeros: as at
 * the start. */
struct spw_draft_odds {
    double shift[SPW_DRAFT_MATCHES]; /* from the odds at the start */
};

double spw_draft_odds_of(const struct spw_draft_odds *o, uint32_t match);
/* n_stayed of the drafts were picked, and then, `ended`, another token was. */
void spw_draft_odds_note(struct spw_draft_odds *o, uint32_t match, uint32_t n_stayed, bool ended);

/* A step before the drafts of a session are added. */
struct spw_draft_step {
    uint32_t n_sessions; /* this one included */
    uint32_t n_beside;   /* additional rows so far: drafts of the sessions before this one */
    double n_tokens;     /* tokens that the step will probably give to the other sessions */
    double seconds;      /* the time that the draft model has taken for the step so far */
};
/* What a source of drafts can propose: at most `most` tokens (SPW_DRAFT_MOST), each of which stays
 * with these odds and takes `each` seconds to propose. */
struct spw_draft_offer {
    double odds, each;
    uint32_t most;
};
/* How many tokens to draft, and from which of n sources; of equally good sources, and for no
 * tokens, the first one. 0 before a step of so many sessions was measured. */
uint32_t spw_draft_length(const struct spw_draft_costs *c, const struct spw_draft_step *before,
                          const struct spw_draft_offer *offers, uint32_t n, uint32_t *source);

#endif
