/* How much of the prompts a step of the server takes, from measured times of this run.
 *
 *   time  |decode|chunks of prompts|decode|chunks of prompts|...
 *                 <------- T ------>
 *
 * T is as long as the longest gap between two tokens of an answer allows, but not more than
 * SHARE decode steps: so prompts lose about a tenth of their speed, and answers go on as fast as
 * that leaves. A pass is about as long as the longest gap, since requests can start between two
 * passes; or 20 decode steps: each pass reads the weights once more, and so that costs 5 %.
 *
 * T is a number of chunks, whose time is known from earlier ones. Where they take longer than
 * those, because other programs have the processor, serve_pace_is_late ends the step. */
#ifndef SPW_TOOLS_COMMAND_SERVE_PACE_H
#define SPW_TOOLS_COMMAND_SERVE_PACE_H

#include "runtime/plan_query.h"

struct serve_pace {
    double max_gap;        /* seconds */
    uint64_t chunk_tokens; /* of the plan */
    bool streams;          /* weights do: each pass reads them */
    struct spw_batch_times seen;
    double pass_seconds; /* of steps with prompts, since a pass has ended */
    /* Measured; 0: not known yet. */
    double decode_seconds;  /* of a step without prompts */
    double chunk_seconds;   /* of a chunk in one layer */
    double tokens_a_second; /* of prompts, in steps that compute them */
    double began;           /* the step: cli_now_seconds */
    /* The result. */
    uint32_t chunks;
    uint64_t pass_tokens;
};

void serve_pace_init(struct serve_pace *p, const struct spw_plan_info *plan, double max_gap);
void serve_pace_begin(struct serve_pace *p, double now);
/* In a step, after a chunk, when two more are queued: they pass the longest gap. */
bool serve_pace_is_late(const struct serve_pace *p, double now);
/* After a step. `decodes`: answers have tokens, and wait for the next one. */
void serve_pace_update(struct serve_pace *p, const struct spw_batch_times *times, bool decodes);

#endif
