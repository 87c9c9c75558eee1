/* What one decode step at the full context computes and reads: columns of plan.info from which
 * times are predicted. Pure functions of the plan and the model. */
#ifndef SPW_RUNTIME_PLAN_PLAN_WORK_H
#define SPW_RUNTIME_PLAN_PLAN_WORK_H

#include "runtime/plan/plan.h"

/* Fills in decode_read_bytes, decode_old_kv_bytes, decode_products, decode_weights,
 * decode_quantized_weights, n_expert_layers and n_experts_kept of p->info. */
void spw_plan_count_work(struct spw_plan *p, const struct spw_weights *w);

#endif
