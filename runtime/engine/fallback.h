/* What gives way when memory does not suffice. Pure functions.
 *
 * Under lower budgets the planner itself chooses what changes no answer: smaller chunks, fewer
 * slots, tiles on the host, tiles on disk. These functions decide which budget is lowered after a
 * tier has failed, when old KV gets less precision instead, and when nothing is left. Each step of
 * a descent lowers something or says that there is nothing to lower, so a descent always ends. */
#ifndef SPW_RUNTIME_ENGINE_FALLBACK_H
#define SPW_RUNTIME_ENGINE_FALLBACK_H

#include "runtime/plan/budgets.h"

/* More steps than any descent has: from 2^50 bytes a tier, by a quarter each time. */
enum { SPW_FALLBACK_STEPS = 512 };

struct spw_descent {
    uint64_t budgets[SPW_BUDGETS];
    enum spw_kv_precision precision; /* of old KV */
    bool quantize;                   /* it may become less */
    uint32_t n_steps;                /* made so far */
};

enum { SPW_FALLBACK_NO_TIER = -1 };

/* The system did not give a tier `asked` bytes, or no more than `held` of them. */
struct spw_fallback_failure {
    int tier;
    uint64_t asked, held; /* held: 0 is unknown, too */
};

/* No plan works: the next precision. False: there is none, or it may not change. */
bool spw_fallback_quantize(struct spw_descent *l);
/* A tier failed: its budget becomes what it can hold, as far as that is known; in any case less
 * than was asked. False: it was to give nothing, and can give no less. */
bool spw_fallback_lower(struct spw_descent *l, const struct spw_fallback_failure *f);

/* Of a plan that was refused: the tier that lacks the fewest bytes, of those that lack any, and how
 * many it needs. */
int spw_fallback_lacking(const struct spw_plan_info *refused, const uint64_t given[SPW_BUDGETS],
                         uint64_t *needed);
/* What gave way between two plans: of all that has changed, what says most. */
enum spw_fallback_kind spw_fallback_between(const struct spw_plan_info *from,
                                            const struct spw_plan_info *to);
/* How many bytes of this tier the plan takes. */
uint64_t spw_fallback_total(const struct spw_plan_info *p, int tier);

#endif
