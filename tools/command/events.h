/* What an engine and its batch report: messages on stderr, lists for the report. */
#ifndef SPW_TOOLS_COMMAND_EVENTS_H
#define SPW_TOOLS_COMMAND_EVENTS_H

#include "tools/command/common.h"

/* The events of one engine for its report, as JSON; zero at first. */
struct cli_events {
    json_t *fallbacks, *lost_tiles; /* owned lists; NULL: none yet */
};
void cli_events_free(struct cli_events *v);
/* Prints every event that was not read yet, and stores it in `v`. */
void cli_read_events(struct cli_events *v, struct spw_engine *e);
/* Prints what gave way to make a plan, once in a process. */
void cli_say_plan_fallback(const struct spw_plan_info *plan);

/* A batch and the handlers of its events. */
struct cli_batch {
    struct spw_engine *engine;
    struct spw_batch *batch;
    struct cli_events *events;
    /* Submits requests, before each step. 1: more are left; 0: none is. May be NULL. */
    int (*submit)(void *context, struct spw_error *err);
    int (*on_event)(void *context, const struct spw_event *e, struct spw_error *err);
    void *context;
};
/* spw_batch_submit, whose refusal then names options. */
int cli_submit(const struct cli_batch *b, const struct spw_request *request, uint64_t *id,
               struct spw_error *err);
/* Runs one request in a batch of its own, with number 1: `batch` of *b is open meanwhile. *result
 * and *times: also after a failure, with the tokens so far. */
int cli_run_request(struct cli_batch *b, const struct spw_tokenizer *t,
                    const struct spw_request *request, struct spw_result *result,
                    struct spw_batch_times *times, struct spw_error *err);
/* Steps until all requests have ended, or until something fails: then the first failure is
 * returned, after all events of that step. */
int cli_run_batch(const struct cli_batch *b, struct spw_error *err);

#endif
