/* The routing of a run, in a file and in memory: see runtime/experts.h; trace.c has the format. */
#ifndef SPW_RUNTIME_EXPERTS_TRACE_H
#define SPW_RUNTIME_EXPERTS_TRACE_H

#include "prefetch/expert_residency.h"
#include "runtime/experts.h"

struct spw_expert_trace {
    struct spw_expert_shape shape;
    double *counts;                 /* owned, [n_layers * n_experts]: at the start */
    struct spw_expert_visit *items; /* owned: of all visits, only experts and rows */
    uint64_t *ends;                 /* owned, [n_visits]: where the items of each visit end */
    uint64_t n_visits, n_items;
    size_t visits_capacity, items_capacity;
};

/* An engine begins. A writer of an earlier engine keeps its head: the engine is the same one, with
 * other budgets. */
void spw_expert_trace_begin(struct spw_expert_trace_writer *w, const struct spw_expert_shape *shape,
                            const double *counts);
/* v [n]: the experts of a visit in the order of their numbers, which count over all layers. An
 * error is reported by close. */
void spw_expert_trace_add(struct spw_expert_trace_writer *w, const struct spw_expert_visit *v,
                          uint32_t n);

/* What a plan makes of the experts of a trace. */
struct spw_expert_costs {
    uint32_t n_frames;     /* of the device; 0: all experts lie there, and none is missed */
    uint32_t host_rows;    /* passes of so many rows have the host multiply what they miss */
    const uint64_t *bytes; /* [experts of all layers], of weights */
    /* Adds what a missed expert of a pass with so many rows moves. */
    void (*add_moved)(const void *context, const struct spw_expert_visit *v, uint64_t rows,
                      uint64_t moved[SPW_MOVED_COUNT]);
    const void *context;
};

/* replay.c: what a trace costs; pure. -ENOMEM. */
int spw_expert_replay(struct spw_expert_replay *out, const struct spw_expert_trace *t,
                      const struct spw_expert_costs *costs);

#endif
