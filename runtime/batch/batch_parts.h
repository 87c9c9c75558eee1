/* The structs of a batch, for the files of this folder and for dry/dry_run.c (a batch that computes
 * nothing). No other file includes this one. */
#ifndef SPW_RUNTIME_BATCH_BATCH_PARTS_H
#define SPW_RUNTIME_BATCH_BATCH_PARTS_H

#include "runtime/batch/answer.h"
#include "runtime/rules/draft_length.h"
#include "runtime/rules/draft_text.h"
#include "runtime/rules/shared_prompt.h"
#include "runtime/engine/engine.h"
#include "runtime/sampler.h"

/* A group: requests of a batch that are decided together. After a step the batch hands the group
 * what its requests have computed, and the group says how each of them goes on:
 *
 *   rows of logits -> decide -> for each request: a parent, tokens that stay, the next token
 *
 * One answer is a group of one request. The samples of a prompt are a group, too: the session of
 * the first one computes the prompt, and those of the others become its children. A group knows
 * nothing of sessions and steps: the batch carries out what it decides (batch_step.c). */

/* A request of the group that takes part in a decision. */
struct spw_group_member {
    const struct spw_answer *answer;
    const float *logits; /* [vocab], after the last token of its session; NULL: it has no session */
    /* The decision: */
    uint32_t parent; /* the member whose session this one continues; its own number: its own */
    uint64_t n_stay; /* tokens of that session that stay */
    int32_t token;   /* follows them; or -errno: the member fails */
};

struct spw_beams;

struct spw_group {
    /* Fills in the decision of each of n members. Those without a session have the tokens of a
     * member that has one. */
    void (*decide)(const struct spw_group *g, struct spw_sampler *s,
                   struct spw_group_member *members, uint32_t n);
    uint64_t first; /* its requests: n numbers from `first` on */
    uint32_t n;
    /* Of a beam search: its requests start, step and end together; else each goes its own way. */
    bool together;
    struct spw_beams *beams; /* owned by the entry of the first request; NULL: in a dry run */
    /* Of a dry run, borrowed: as in struct spw_result; from step n_steps on each goes on as itself
     */
    const uint8_t *parents;
    uint64_t n_steps;
};

/* Any token follows: where nothing is computed (struct spw_engine.dry). */
void spw_group_any(const struct spw_group *g, struct spw_sampler *s,
                   struct spw_group_member *members, uint32_t n);
/* The same for a beam search, whose parents are known. */
void spw_group_replay(const struct spw_group *g, struct spw_sampler *s,
                      struct spw_group_member *members, uint32_t n);
/* Each member picks its next token, with draws of its own. */
void spw_group_sample(const struct spw_group *g, struct spw_sampler *s,
                      struct spw_group_member *members, uint32_t n);
/* The next step of a beam search. */
void spw_group_search(const struct spw_group *g, struct spw_sampler *s,
                      struct spw_group_member *members, uint32_t n);

/* Drafts of a request: batch_draft.c. */
struct spw_batch_drafts {
    struct spw_draft_text text;  /* owned, if the batch drafts from the text */
    struct spw_session *session; /* owned: of the draft model; NULL: not yet, or never */
    uint64_t n_read;             /* tokens of prompt and answer that the draft model has computed */
    bool no_model;               /* the draft model has failed for this answer: no more drafts */
    struct spw_draft_odds odds;
    bool knows_odds;    /* `odds` is set: it begins with those of the batch */
    uint32_t n;         /* drafts of the step: answer.tokens[n_tokens] and those after it */
    uint32_t row;       /* the row of logits that is decided next: the one after so many drafts */
    uint32_t first_row; /* where the rows of the request begin: spw_draft_logits */
    uint32_t match;     /* length of the match that has proposed the drafts: draft_length.h */
    bool by_mtp;        /* the MTP layer proposes them */
    int32_t next;       /* without drafts: the first token that was proposed; -1: none */
    /* Of a dry run: [n_known], borrowed, as in struct spw_result; NULL: the run has no drafts */
    const uint8_t *step_rows;
    uint64_t n_known;
};

struct spw_batch_entry {
    uint64_t id;
    struct spw_answer answer;
    struct spw_group group;      /* decides how it goes on */
    struct spw_session *session; /* owned unless it is the request's own; NULL: the request waits,
                                    has ended, or gets a session before its next step */
    bool has_started;            /* the request runs or has run: it no longer waits */
    uint32_t place;              /* in `running`, while it runs */
    bool has_row;                /* a row of logits waits for the decision of the group */
    struct spw_batch_drafts drafts;
    bool knows_reuse;    /* result.n_reused is set */
    bool is_in_pass;     /* its prompt is in the next pass of prompts */
    uint32_t n_failures; /* steps for it that have failed since its latest token: a prompt that
                            fails late begins anew, and passes well up to there */
    int score_rc;        /* why a log-probability of its step could not be computed; 0: all could */
    /* Events that nobody has read yet: */
    uint32_t n_new;       /* tokens that were generated, the last ones of the answer */
    const float *logits;  /* [n_new][vocab], from which these tokens were picked */
    float *kept_logits;   /* owned: a copy of them (spw_batch_copy_logits); NULL: no copy yet */
    bool is_kept;         /* `logits` points to kept_logits */
    bool has_end;         /* the event that the request has ended */
    struct spw_error why; /* why the request has failed */
    int rc;               /* the same as -errno */
};

/* A session of the batch whose request has ended. Events of the request may point to its logits.
 * In the step after that, a request that starts takes it over, or it is closed; or it stays, if the
 * batch keeps such sessions (batch_keep.c). */
struct spw_ended_session {
    struct spw_session *session; /* owned */
    uint64_t request;            /* its number */
    uint64_t n_prompt; /* tokens of its prompt; 0: it failed: no request may take it over */
    uint32_t place;    /* in `running`, where the request was */
    bool is_free;      /* the events of the request are gone: the session may be closed */
    bool was_canceled;
};

struct spw_batch {
    struct spw_engine *engine;
    const struct spw_tokenizer *tokenizer;
    struct spw_vocabulary *vocabulary; /* owned; NULL until a request has a grammar */
    struct spw_batch_entry *
        *entries; /* owned, [capacity]: request first_id + i; NULL: it was taken */
    uint64_t first_id, n_submitted;
    size_t capacity;
    uint64_t first_waiting; /* no request with a lower number waits */
    uint32_t n_own_waiting; /* waiting requests that bring their session */
    uint64_t unread;        /* no request with a lower number has events that nobody has read */
    struct spw_ended_session *ended; /* owned, [max_running], in the order in which they ended */
    uint32_t n_ended;
    bool keeps_ended;                  /* see spw_batch_keep_ended */
    struct spw_batch_entry **running;  /* owned, [max_running]; NULL: free */
    struct spw_batch_entry **stepping; /* owned, [max_running]: the request of each span */
    struct spw_span *spans;            /* owned, [max_running]: the step's */
    struct spw_span *draft_spans;      /* owned, [max_running]: of the MTP layer */
    struct spw_batch_entry **deciding; /* owned, [max_running]: of a group that decides; */
    struct spw_group_member *members;  /* owned, [max_running]: the same */
    struct spw_session **sessions;     /* owned, [2 * max_running]: scratch of the same */
    struct spw_prompt *prompts;        /* owned, [max_running]: while sessions are opened */
    struct spw_prompt *ended_prompts;  /* owned, [max_running]: of `ended`, by place */
    uint32_t max_running;
    uint32_t prompt_chunks; /* see spw_batch_set_prompt_chunks */
    uint64_t pass_tokens;   /* see spw_batch_set_pass_tokens */
    bool had_short;         /* the latest pass had short prompts: the next one has old ones */
    uint32_t most_chunks;   /* of the step that runs now: spw_sync_options; 0: any number */
    uint64_t most_tokens;   /* of the step that runs now: spw_sync_options; 0: any number */
    double published_at;    /* when prompts were published between two passes; 0: not yet */
    /* The latest request that had no room, and engine.sharing.n_departures at that time: before
     * another session closes, this request is not tried again. */
    uint64_t refused, refused_at;
    uint32_t n_stale; /* steps in a row that have ended with -ESTALE */
    /* A step of prompts has failed after the other requests had their tokens: the next call of
     * spw_batch_step reports this failure. 0: none. */
    int late_rc;
    struct spw_error late;
    int wake_fd;                 /* owned: an eventfd, above 0 when the batch was woken */
    struct spw_sampler *sampler; /* owned */
    struct spw_batch_times times;
    /* Proposes at most `most` tokens that may follow the answer of x, and returns how many. *match:
     * see draft_length.h. NULL: no drafts. */
    uint32_t (*propose)(struct spw_batch_entry *x, int32_t *out, uint32_t most, uint32_t *match);
    bool drafts_all;      /* no measurement shortens a draft */
    bool mtp;             /* the MTP layer may propose drafts, too */
    double layer_share;   /* spw_batch_layer_share */
    uint32_t rows_beside; /* additional rows of the step: n_beside in draft_length.h */
    struct spw_draft_costs costs;
    struct spw_draft_odds odds; /* of all requests; a new one begins with them */
};

/* Whether the session has all tokens of the span. */
static inline bool spw_batch_has_passed(const struct spw_span *s)
{
    return s->session->n_tokens == s->n_tokens;
}

/* The request with this number. NULL: there is none, or its result was taken (spw_batch_take). */
static inline struct spw_batch_entry *spw_batch_find(const struct spw_batch *b, uint64_t id)
{
    return id >= b->first_id && id <= b->n_submitted ? b->entries[id - b->first_id] : NULL;
}

/* Whether the request has not started yet. */
static inline bool spw_batch_waits(const struct spw_batch_entry *x)
{
    return x && !x->has_started && x->answer.result.finish == SPW_FINISH_NONE;
}

/* The most tokens that the request's session will have: all but the last token of the answer, which
 * is picked but never computed. */
static inline uint64_t spw_batch_most_tokens(const struct spw_request *r)
{
    return r->n_prompt + spw_sub_u64(r->max_new_tokens, 1);
}

/* Tokens of the request's first step: prompt and given tokens, but never the last token of the
 * longest answer. */
static inline uint64_t spw_batch_first_tokens(const struct spw_request *r)
{
    return spw_min_u64(r->n_prompt + r->n_given, spw_batch_most_tokens(r));
}

/* Whether the request's next step computes its prompt: it has no token of its own yet. */
static inline bool spw_batch_needs_prompt(const struct spw_batch_entry *x)
{
    const struct spw_answer *a = &x->answer;
    return a->n_tokens == a->request.n_prompt + a->request.n_given;
}

/* The earlier request of the same group whose session computes the prompt for both. NULL: there is
 * none, so the request needs a session of its own. */
static inline const struct spw_batch_entry *spw_batch_parent(const struct spw_batch *b,
                                                             const struct spw_batch_entry *x)
{
    if (x->session || !spw_batch_needs_prompt(x))
        return NULL;
    for (uint64_t id = x->group.first; id < x->id; id++) {
        const struct spw_batch_entry *y = spw_batch_find(b, id);
        if (y && y->has_started && y->answer.result.finish == SPW_FINISH_NONE &&
            spw_batch_needs_prompt(y))
            return y;
    }
    return NULL;
}

/* The running request after x, by place; x NULL: the first one. NULL: there are no more. */
static inline struct spw_batch_entry *spw_batch_next(const struct spw_batch *b,
                                                     const struct spw_batch_entry *x)
{
    for (uint32_t i = x ? x->place + 1 : 0; i < b->max_running; i++)
        if (b->running[i])
            return b->running[i];
    return NULL;
}

/* ---- batch.c ---- */

/* The request has events from now on. */
void spw_batch_note_events(struct spw_batch *b, const struct spw_batch_entry *x);
/* Closes the sessions of ended requests whose events nobody can read any more. */
void spw_batch_close_ended(struct spw_batch *b);
/* Copies logits that are in events which nobody has read yet. -ENOMEM. */
int spw_batch_copy_logits(struct spw_batch *b);
/* Drops the events of earlier steps that nobody has read. */
void spw_batch_forget_events(struct spw_batch *b);
/* The request is over. The text that was not final yet becomes final, unless the request was
 * canceled, has failed, or a later batch continues the answer. */
void spw_batch_end(struct spw_batch *b, struct spw_batch_entry *x, enum spw_finish finish);

/* ---- batch_step.c ---- */

/* The request ends without a failure, and its tokens are published in the prefix cache. If that
 * fails, the cache reports it, and the request is complete all the same. */
void spw_batch_end_well(struct spw_batch *b, struct spw_batch_entry *x, enum spw_finish finish);
/* The request fails, and with it all beams of its search. rc says why, or x->why, if it has a text.
 */
void spw_batch_fail(struct spw_batch *b, struct spw_batch_entry *x, int rc);
/* Computes the first n spans of the batch. prefill: some of them are prompts. */
int spw_batch_compute(struct spw_batch *b, uint32_t n, bool prefill, struct spw_error *err);

/* batch_beams.c. -EINVAL, if the request has a beam search that cannot be. */
int spw_batch_check_beams(const struct spw_batch *b, const struct spw_request *r,
                          struct spw_error *err);
/* Sets the decision of the group, if the request has a beam search. -ENOMEM. */
int spw_batch_open_beams(const struct spw_batch *b, const struct spw_request *r,
                         struct spw_group *g);
/* Memory of the first request of a search, for its result. -ENOMEM. */
int spw_batch_open_parents(struct spw_batch_entry *x);
/* Carries out what was decided of the n beams that decide; their sessions are those of their
 * parents. */
void spw_batch_advance_beams(struct spw_batch *b, const struct spw_group *g, uint32_t n);

/* batch_draft.c. When the batch is opened. */
void spw_batch_choose_drafts(struct spw_batch *b);
/* Memory for the drafts of a request; -ENOMEM. */
int spw_batch_open_drafts(const struct spw_batch *b, struct spw_batch_entry *x);
/* No more drafts are needed: gives up the session of the draft model. */
void spw_batch_end_drafts(struct spw_batch_entry *x);
/* Adds drafts to the first n spans of the batch, of a step without prompts. */
void spw_batch_add_drafts(struct spw_batch *b, uint32_t n);
/* batch_mtp.c. What a draft of the MTP layer reads of weights, as a part of what a step without
 * drafts reads; 0: there is no such layer. */
double spw_batch_layer_share(const struct spw_weights *w);
/* How many drafts of the MTP layer are likely to stay, at most `most`. */
uint32_t spw_batch_likely_drafts(const struct spw_batch_entry *x, uint32_t most);
/* The MTP layer fills in its drafts of the first n requests that step. After a failure these may
 * have drafts that nobody has filled in. */
int spw_batch_fill_drafts(struct spw_batch *b, uint32_t n);
/* The row of logits [vocab] from which the next token of x is picked. NULL: in a dry run. */
const float *spw_batch_row(const struct spw_batch *b, const struct spw_batch_entry *x);
/* The next token of x is `token`. Returns whether it is the next draft, too: then the next row of
 * the same step picks another token. */
bool spw_batch_takes_draft(struct spw_batch_entry *x, int32_t token);
/* The step of n spans has failed: takes the drafts off the spans. */
void spw_batch_drop_drafts(struct spw_batch *b, uint32_t n);
/* The step is over for x: cuts the rejected drafts off its session. */
int spw_batch_settle(struct spw_batch *b, struct spw_batch_entry *x);
/* A step of n spans has taken so many seconds, and computed so many tokens of prompts. */
void spw_batch_note_costs(struct spw_batch *b, uint32_t n, uint64_t n_prompt, double seconds);

/* What the batch's sessions need, and how many more can be opened. */
struct spw_batch_room {
    uint64_t tiles; /* of all open sessions */
    int64_t n_free; /* sessions that can still be opened */
};

/* ---- batch_sessions.c ---- */

/* Counts as if each running request had its session already, and as if the sessions of ended
 * requests were closed; with `all`, these are still open. */
struct spw_batch_room spw_batch_count_room(struct spw_batch *b, bool all);
/* Whether the running request in this place needs a session for the next step. */
bool spw_batch_needs_session(const struct spw_batch *b, uint32_t place);
/* Whether the request shares its prompt with no other session: all logits of the prompt are wanted,
 * or its keys have rope frequencies of their own. */
bool spw_batch_is_private(const struct spw_batch *b, const struct spw_batch_entry *x);
/* Whether no other request can begin with the session's tokens: its length has a rope table of its
 * own, or its older tokens were computed with another precision. */
bool spw_session_is_private(const struct spw_session *s);
/* How many tiles of its prompt the running request in this place, which has no session yet, will
 * share with another running request. */
uint64_t spw_batch_shared_tiles(struct spw_batch *b, uint32_t place);

/* ---- batch_keep.c: only if the batch keeps sessions of ended requests ---- */

/* Requests that start get kept sessions, or forks of them. */
void spw_batch_reuse_kept(struct spw_batch *b);
/* Closes kept sessions until those that are left have room beside the running requests. */
void spw_batch_evict_kept(struct spw_batch *b);
/* Keeps an ended session that has become free. From now on it has only the room that its tokens
 * need. */
void spw_batch_keep_session(struct spw_batch *b, struct spw_ended_session *x);

/* ---- batch_sessions.c ---- */

/* As in struct spw_batch_hooks. */
void spw_batch_make_room(struct spw_batch *b);
/* Whether a request waits. */
bool spw_batch_any_waits(struct spw_batch *b);
/* Starts requests that wait, as many as there are places, and opens their sessions. Sessions of
 * requests that ended before this step are closed then. */
int spw_batch_start(struct spw_batch *b, struct spw_error *err);

#endif
