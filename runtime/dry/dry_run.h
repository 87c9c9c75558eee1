/* A dry run: a batch of requests through an engine that computes nothing and counts the bytes that
 * it would move (runtime/engine/engine_dry.c). So the prediction of a run is the run itself, and no
 * rule is written twice.
 *
 * Every answer gets max_new_tokens tokens. Steps between two borders of tiles are made once and
 * multiplied (runtime/batch/batch_repeat.h). Experts that move are not in the bytes: nobody knows
 * the routing; the forecast gets the rows of each pass. */
#ifndef SPW_RUNTIME_DRY_DRY_RUN_H
#define SPW_RUNTIME_DRY_DRY_RUN_H

#include "runtime/engine/engine.h"
#include "runtime/plan/expert_forecast.h"

/* The bytes of opening an engine like `like`, which has a plan, and of one batch with these
 * requests, which have been checked. `experts` gets its passes, and `steps` its steps; NULL: nobody
 * asks. */
int spw_dry_run(uint64_t moved[SPW_MOVED_COUNT], const struct spw_engine *like,
                const struct spw_plan_request *requests, size_t n,
                struct spw_expert_forecast *experts, const struct spw_plan_steps *steps,
                struct spw_error *err);

#endif
