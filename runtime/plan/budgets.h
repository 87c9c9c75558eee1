/* Which budgets would do: the smallest ones, exact to the page, from the candidates of the plan;
 * and the text that says so. Pure. */
#ifndef SPW_RUNTIME_PLAN_BUDGETS_H
#define SPW_RUNTIME_PLAN_BUDGETS_H

#include "runtime/plan/plan.h"

/* How texts name the limit, what it limits, and the setting (as in struct spw_error). */
struct spw_budget_name {
    const char *budget, *memory, *option;
};
extern const struct spw_budget_name spw_budget_names[SPW_BUDGETS];

/* What spw_plan_smallest has found for this tier. */
static inline uint64_t spw_budgets_smallest(const struct spw_plan_info *i, int tier)
{
    return tier == SPW_BUDGET_DEVICE ? i->smallest_device_bytes
           : tier == SPW_BUDGET_HOST ? i->smallest_host_bytes
                                     : i->smallest_disk_bytes;
}

/* Whether there is a plan within these budgets. */
bool spw_budgets_work(const struct spw_plan_input *in);
/* Device and host budgets of `bytes` together, the device's as large as possible. False: no
 * division works. */
bool spw_budgets_split(const struct spw_plan_input *in, uint64_t bytes, uint64_t *device,
                       uint64_t *host);
/* -ENOMEM: says which budget would do, one of them or all, also in err->budgets; fills in
 * info->smallest_*_bytes. */
int spw_budgets_refuse(struct spw_plan_info *info, const struct spw_plan_input *in,
                       struct spw_error *err);
/* -EDQUOT: the plan of `info` writes more than the limit, and so does every other one that fits.
 * Names the budgets with which one does not; fills in info->smallest_*_bytes. */
int spw_budgets_refuse_writes(struct spw_plan_info *info, const struct spw_plan_input *in,
                              struct spw_error *err);
/* The text of a budget that was given, and that is smaller than the one of the text `least`. Texts
 * are rounded up: if both are the same, this one is in bytes. */
const char *spw_budgets_given_text(char text[32], uint64_t bytes, const char *least);

#endif
