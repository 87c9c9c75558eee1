/* What an executor consists of, for executor.c (one step) and executor_open.c (memory). Nobody else
 * includes this file. */
#ifndef SPW_RUNTIME_STEP_EXECUTOR_PARTS_H
#define SPW_RUNTIME_STEP_EXECUTOR_PARTS_H

#include "runtime/experts/trace.h"
#include "runtime/step/executor.h"

struct spw_executor {
    const struct spw_lane *lane;
    struct spw_executor_options o;
    const struct spw_model_config *config;
    const struct spw_plan *plan;
    struct spw_forward forward;
    struct spw_attend attend;
    struct spw_residency_moves residency;
    struct spw_step steps[2], *step;      /* the second one beside a step that was set aside */
    uint32_t n_steps;                     /* 1: one session only, no step can be set aside */
    struct spw_attend_part *rows;         /* [cut.most_parts], of the running chunk */
    struct spw_expert_residency followed; /* by the routing; empty if no expert moves */
    uint64_t missed[SPW_MOVED_COUNT];     /* of `followed` */
    const void **addresses;               /* owned: of experts, while they go to the device */
};

#endif
