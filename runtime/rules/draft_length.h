/* How many tokens to draft, and from which source: a decision by measured times, which no result
 * depends on. Pure.
 *
 *   a step with k drafts gives 1 + p + p^2 + ... + p^k tokens, if each draft stays with odds p,
 *   and takes cost(k) times as long as one without
 *
 * The most tokens a second win, of all sources and lengths. Without a gain of a fiftieth there are
 * no drafts. While there are none, nothing is measured, and costs are hoped to be less and less,
 * until drafts are tried again. Two rules bound what wrong hopes can cost: numbers of rows that
 * were not measured are tried one after the other (1, 3, 7, ...), and what drafts have lost in all
 * stays below a hundredth of the time. */
#ifndef SPW_RUNTIME_RULES_DRAFT_LENGTH_H
#define SPW_RUNTIME_RULES_DRAFT_LENGTH_H

#include "base/base.h"

/* The most drafts of a request in a step; rows of logits for the drafts of all requests, and of the
 * tokens before them; classes of matches. */
enum { SPW_DRAFT_MOST = 15, SPW_DRAFT_ROWS = 32, SPW_DRAFT_MATCHES = 5 };
/* The length of a match that stands for a draft of a model. */
enum { SPW_DRAFT_BY_MODEL = 1000 };

/* What steps cost by the rows that they compute beside one for each session: drafts, and tokens
 * that pass once more because a state was set back. Zeros: nothing was measured. */
struct spw_draft_costs {
    uint32_t n_sessions;  /* of the latest step */
    double seconds;       /* of a step of so many sessions without such rows; 0: not measured */
    uint32_t n_plain;     /* such steps; the first one is often slow, so two are waited for */
    double row_seconds;   /* of a row of a prompt; 0: not measured, or it says little of a step */
    double model_seconds; /* in which the draft model proposes a token; 0: not measured */
    double read_seconds;  /* in which it reads a token of a text; 0: not measured */
    double times[SPW_DRAFT_ROWS + 1]; /* a step with n such rows takes so many times as long; 0:
                                              not measured */
    uint32_t n_since;                 /* steps since the latest that had such rows */
    double spent;                     /* seconds of all steps, of those of prompts, too */
    double lost;                      /* seconds of these that drafts have cost; below 0: they have
                                         saved more */
};

/* Measured: a step of n_sessions with so many rows beside. */
void spw_draft_costs_note(struct spw_draft_costs *c, uint32_t n_sessions, uint32_t n_beside,
                          double seconds);
/* n of the step's drafts have stayed. */
void spw_draft_costs_note_stayed(struct spw_draft_costs *c, uint32_t n);
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
    uint32_t n_sessions, n_beside; /* n_sessions: with this one; n_beside: rows, as above */
    double n_tokens;               /* that it is expected to give to the other sessions */
    double seconds;                /* in which the draft model has worked for it */
};
/* What a source of drafts can propose: at most `most` tokens (SPW_DRAFT_MOST), each of which stays
 * with these odds and takes `each` seconds to propose. */
struct spw_draft_offer {
    double odds, each;
    uint32_t most;
};
/* How many tokens to draft, and from which of n sources; of equally good sources, from the first
 * one. 0 before a step of so many sessions was measured. */
uint32_t spw_draft_length(const struct spw_draft_costs *c, const struct spw_draft_step *before,
                          const struct spw_draft_offer *offers, uint32_t n, uint32_t *source);

#endif
