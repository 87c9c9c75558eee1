/* What the two files of the engine's side share: work.c has the thread, the queue and the engine,
 * work_active.c the exchanges that are in the batch. The life of an exchange on this side:
 *
 *   queue -> active: its requests are in the batch -> answered, refused, or gone
 *
 * All but the queue belongs to the engine's thread. */
#ifndef SPW_TOOLS_COMMAND_SERVE_WORK_PARTS_H
#define SPW_TOOLS_COMMAND_SERVE_WORK_PARTS_H

#include "tools/command/job/engine.h"
#include "tools/command/serve/pace.h"
#include "tools/command/serve/work.h"

#include <stdatomic.h>

/* A request of the batch: one choice of an exchange. */
struct serve_ask {
    uint64_t id; /* 0: it has ended, and its result was taken */
    uint64_t n_tokens;
    double latest;                  /* when its latest token came */
    struct spw_answer_parts *parts; /* owned */
};

/* An exchange whose requests are in the batch. */
struct serve_active {
    struct serve_exchange *x; /* held */
    struct serve_ask *asks;   /* owned, [n] */
    size_t n, n_ended;
    double started, first;      /* when it got a place, and its first token; 0: not yet */
    double reported_at;         /* when its client got its latest progress */
    uint64_t read_before;       /* tokens of prompts that had been read when it started */
    bool fails;                 /* its answer cannot be written */
    struct request_refusal why; /* status 0: nobody is there to read it */
};

struct serve_work {
    struct serve_work_options is;
    struct cli_options o; /* with the defaults of a job */
    struct job_run_options run;
    struct request least; /* each engine has room for its beams */
    struct job_engine e;
    struct serve_pace pace;
    struct serve_active *active; /* owned, [n_active], in the order in which they came */
    size_t n_active, capacity;
    double stops_at;   /* when the grace ends; 0: the server goes on */
    uint32_t n_broken; /* steps one after the other that have ended with -EIO; */
    uint64_t done;     /* and what had been done before the latest one */

    pthread_mutex_t mutex;         /* of what follows */
    struct serve_exchange **queue; /* owned, [most_waiting] */
    uint32_t n_queue;              /* exchanges */
    uint32_t n_queued;             /* their choices */
    uint32_t n_waiting, n_running; /* choices in the batch: without a place, with one */
    uint64_t context;
    struct serve_counters counters;
    struct serve_counters shown; /* their copy for others */
    struct serve_state state;    /* the same: of the engine's thread, and the copy */
    struct serve_state shown_state;

    /* Any thread, and signal handlers: */
    atomic_bool is_stopped;
    atomic_int wake_fd; /* owned: wakes the batch; below 0: it is not open */
};

/* ---- work_active.c ---- */

/* The answer is an error. Puts the exchange. */
void serve_work_refuse(struct serve_exchange *x, const struct request_refusal *why,
                       uint32_t retry_after);
/* Takes the exchange: its requests go to the batch, or it is refused. */
void serve_active_begin(struct serve_work *w, struct serve_exchange *x);
/* Cancels the requests of the exchange and removes it from the active ones. The caller owns the
 * exchange then. */
struct serve_exchange *serve_active_detach(struct serve_work *w, struct serve_active *a);
void serve_active_event(struct serve_work *w, const struct spw_event *e);
/* Reports to each exchange, once a second, how much of its prompt is computed. Is also called
 * inside a step. */
void serve_active_report(struct serve_work *w, const struct spw_progress *p);
/* Ends the exchanges whose client has left, and those that cannot be answered. */
void serve_active_sweep(struct serve_work *w);

#endif
