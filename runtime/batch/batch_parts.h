/* What a batch consists of, for batch.c (requests and their events), batch_step.c (steps) and
 * batch_sessions.c (requests that start, and their sessions), batch_repeat.c and dry/dry_run.c
 * (batches that compute nothing). Nobody else includes this file. */
#ifndef SPW_RUNTIME_BATCH_BATCH_PARTS_H
#define SPW_RUNTIME_BATCH_BATCH_PARTS_H

#include "runtime/batch/group.h"
#include "runtime/rules/shared_prompt.h"
#include "runtime/engine/engine.h"

struct spw_batch_entry {
    uint64_t id;
    struct spw_answer answer;
    struct spw_group *group;     /* decides how it goes on; its users share it */
    struct spw_session *session; /* owned unless it is the request's own; NULL: it waits or ended */
    bool runs;                   /* or has run: it no longer waits */
    bool has_row;                /* the step has computed its next row of logits */
    bool knows_reuse;            /* the result has n_reused */
    int score_rc;                /* why a log-probability of its step is missing; 0 */
    struct spw_batch_entry *next_unread; /* in the queue of those with events */
    bool is_unread;                      /* it is in this queue */
    /* Events that nobody has read yet: */
    const float *logits;  /* of the token that was generated; NULL: none was */
    float *kept_logits;   /* owned, [vocab] or NULL: for a copy */
    bool has_end;         /* the request has ended; the answer has its text */
    struct spw_error why; /* of a failed one */
};

/* A session of the batch whose request has ended. Events of the request may point to its logits.
 * In the step after that, a request that starts takes it over, or it is closed. */
struct spw_ended_session {
    struct spw_session *session; /* owned */
    uint64_t request;            /* its number */
    uint64_t n_prompt;           /* tokens of its prompt; 0: it failed, and nobody may have them */
    uint32_t place;              /* in `running` */
    bool is_free;                /* nobody can read the request's events any more */
};

struct spw_batch {
    struct spw_engine *engine;
    const struct spw_tokenizer *tokenizer;
    struct spw_batch_entry *
        *entries; /* owned, [capacity]: request first_id + i; NULL: it was taken */
    uint64_t first_id, n_submitted, capacity;
    uint64_t first_waiting;                       /* no request with a lower number waits */
    uint32_t n_own_waiting;                       /* waiting requests that bring their session */
    struct spw_batch_entry *unread, **end_unread; /* the queue of those with events */
    struct spw_ended_session *ended;              /* owned, [max_running] */
    uint32_t n_ended;
    struct spw_batch_entry **running;  /* owned, [max_running]; NULL: free */
    struct spw_batch_entry **stepping; /* owned, [max_running]: the request of each span */
    struct spw_span *spans;            /* owned, [max_running]: the step's */
    struct spw_batch_entry **deciding; /* owned, [max_running]: of a group that decides; */
    struct spw_group_member *members;  /* owned, [max_running]: the same */
    struct spw_prompt *prompts;        /* owned, [max_running]: while sessions are opened */
    struct spw_prompt *ended_prompts;  /* owned, [max_running]: of `ended`, by place */
    uint32_t max_running;
    uint32_t prompt_chunks;       /* see spw_batch_set_prompt_chunks */
    uint32_t most_chunks;         /* of the steps that are being made; 0: any number */
    uint64_t refused, refused_at; /* a request that had no room, at this engine.sharing.n_left */
    uint32_t n_stale;             /* steps one after the other that have ended with -ESTALE */
    int late_rc;                  /* of a step of prompts beside others; 0: none has failed */
    struct spw_error late;
    int wake_fd;                      /* owned: an eventfd, above 0 when the batch was woken */
    struct spw_sampler *sampler;      /* owned */
    uint32_t n_alike, n_were_running; /* batch_repeat.c: steps since the latest that differed;
                                         requests that ran after it */
    struct spw_batch_times times;
};

/* NULL: there is no such request, or it was taken. */
static inline struct spw_batch_entry *spw_batch_find(const struct spw_batch *b, uint64_t id)
{
    return id >= b->first_id && id <= b->n_submitted ? b->entries[id - b->first_id] : NULL;
}

static inline bool spw_batch_waits(const struct spw_batch_entry *x)
{
    return x && !x->runs && x->answer.result.finish == SPW_FINISH_NONE;
}

/* Tokens that the request's session holds in the end: the last token of an answer is only
 * picked. */
static inline uint64_t spw_batch_most_tokens(const struct spw_request *r)
{
    return r->n_prompt + spw_sub_u64(r->max_new_tokens, 1);
}

/* Tokens of the request's first step: all but the last token of an answer that is given as a
 * whole. */
static inline uint64_t spw_batch_first_tokens(const struct spw_request *r)
{
    return spw_min_u64(r->n_prompt + r->n_given, spw_batch_most_tokens(r));
}

/* The request's next step computes its prompt. */
static inline bool spw_batch_is_first(const struct spw_batch_entry *x)
{
    return x->answer.result.n_tokens == x->answer.request.n_given;
}

/* The request of the same group whose session computes the prompt of both. NULL: there is none; the
 * request needs a session of its own. */
static inline const struct spw_batch_entry *spw_batch_parent(const struct spw_batch *b,
                                                             const struct spw_batch_entry *x)
{
    if (x->session || !spw_batch_is_first(x))
        return NULL;
    for (uint64_t id = x->group->first; id < x->id; id++) {
        const struct spw_batch_entry *y = spw_batch_find(b, id);
        if (y && y->runs && y->answer.result.finish == SPW_FINISH_NONE && spw_batch_is_first(y))
            return y;
    }
    return NULL;
}

static inline bool spw_batch_any_runs(const struct spw_batch *b)
{
    for (uint32_t i = 0; i < b->max_running; i++)
        if (b->running[i])
            return true;
    return false;
}

/* batch.c. The request has events from now on. */
void spw_batch_note_events(struct spw_batch *b, struct spw_batch_entry *x);
/* Closes the sessions of ended requests whose events nobody can read any more. */
void spw_batch_close_ended(struct spw_batch *b);
/* Copies logits that are in events which nobody has read yet. -ENOMEM. */
int spw_batch_copy_logits(struct spw_batch *b);
/* Events of earlier steps go. */
void spw_batch_forget_events(struct spw_batch *b);
/* The request is over. Text that was held back is final now, unless more was to come. */
void spw_batch_end(struct spw_batch *b, struct spw_batch_entry *x, enum spw_finish finish);

/* batch_step.c. The request ends as it should, and the prefix cache keeps its tokens for later
 * requests. The cache reports what it cannot keep; the request does not fail by that. */
void spw_batch_end_well(struct spw_batch *b, struct spw_batch_entry *x, enum spw_finish finish);
/* rc, or x->why if it has a text: why the request fails. */
void spw_batch_fail(struct spw_batch *b, struct spw_batch_entry *x, int rc);
/* Computes the first n spans of the batch. prefill: they have prompts. */
int spw_batch_compute(struct spw_batch *b, uint32_t n, bool prefill, struct spw_error *err);

/* As in struct spw_batch_hooks. */
void spw_batch_make_room(struct spw_batch *b);
/* batch_sessions.c. Whether a request waits. */
bool spw_batch_any_waits(struct spw_batch *b);
/* Starts requests that wait, as many as there are places, and opens their sessions. Sessions of
 * requests that ended before this step are closed then. */
int spw_batch_start(struct spw_batch *b, struct spw_error *err);

#endif
