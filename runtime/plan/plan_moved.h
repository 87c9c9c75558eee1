/* The bytes that plan.info tells of: of a prompt that fills the context, and of a decode step at
 * its end. Pure functions of the plan and the model.
 *
 * A run's bytes are those of a dry run (runtime/dry/dry_run.h). These here are of one session
 * alone, so that a plan is made quickly: test_traffic compares them with the counters of an engine.
 */
#ifndef SPW_RUNTIME_PLAN_PLAN_MOVED_H
#define SPW_RUNTIME_PLAN_PLAN_MOVED_H

#include "runtime/plan/plan.h"

/* Fills in prefill_moved_bytes, decode_moved_bytes, decode_slot_bytes and
 * waterlines.disk_end of p->info. Missed experts are not in these bytes. */
void spw_plan_count_moved(struct spw_plan *p, const struct spw_weights *w);

#endif
