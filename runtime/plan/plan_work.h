/* What one decode step at the full context computes and reads: columns of plan.info from which
 * times are predicted. Pure functions of the plan and the model. */
#ifndef SPW_RUNTIME_PLAN_PLAN_WORK_H
#define SPW_RUNTIME_PLAN_PLAN_WORK_H

#include "runtime/plan/plan.h"

/* Fills in decode_read_bytes, decode_old_kv_bytes, decode_products, decode_old_products,
 * decode_products_of, decode_row_operations, decode_row_numbers, n_expert_layers and
 * n_experts_kept of p->info. */
void spw_plan_count_work(struct spw_plan *p, const struct spw_weights *w);
/* The part of `bytes` that a plan counts as short rows, for a matrix with rows of k numbers. The
 * plan takes the time of a byte as linear in 1 / k from SPW_SHORT_ROW to SPW_LONG_ROW. */
uint64_t spw_plan_short_bytes(uint64_t bytes, uint64_t k);

#endif
