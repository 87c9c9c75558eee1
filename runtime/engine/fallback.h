/* Fallbacks: what the engine does when memory does not suffice. Pure functions.
 *
 * Under lower budgets the planner itself first chooses fallbacks that change no answer: smaller
 * chunks, fewer slots, tiles on the host, tiles on disk. These functions decide which budget is
 * lowered after a tier has failed, when old KV gets less precision instead, and when nothing is
 * left to try. Each step of a descent lowers something or says that nothing can be lowered, so a
 * descent always ends. */
#ifndef SPW_RUNTIME_ENGINE_FALLBACK_H
#define SPW_RUNTIME_ENGINE_FALLBACK_H

#include "runtime/plan/budgets.h"

/* More steps than any descent has: from 2^50 bytes a tier, by a quarter each time. */
enum { SPW_FALLBACK_STEPS = 512 };

struct spw_descent {
    uint64_t budgets[SPW_BUDGETS];
    enum spw_kv_precision precision; /* of old KV */
    bool quantize;                   /* the precision may become lower */
    uint32_t n_steps;                /* made so far */
};

enum { SPW_FALLBACK_NO_TIER = -1 };

/* The system refused to give a tier `asked` bytes; it gave at most `held` of them. */
struct spw_fallback_failure {
    int tier;
    uint64_t asked, held; /* held: 0 is unknown, too */
};

/* No plan works: takes the next lower precision. False: there is none, or the precision may not
 * change. */
bool spw_fallback_quantize(struct spw_descent *l);
/* A tier failed: sets its budget to what it can hold, if that is known, and in any case to less
 * than was asked for. False: its budget is 0 already. */
bool spw_fallback_lower(struct spw_descent *l, const struct spw_fallback_failure *f);

/* The tier of a refused plan that lacks the fewest bytes (but at least one), and the bytes that it
 * needs. */
int spw_fallback_lacking(const struct spw_plan_info *refused, const uint64_t given[SPW_BUDGETS],
                         uint64_t *needed);
/* The fallback between two plans: of all changes, the one that matters most to a user. */
enum spw_fallback_kind spw_fallback_between(const struct spw_plan_info *from,
                                            const struct spw_plan_info *to);
/* The bytes of this tier that the plan takes. */
uint64_t spw_fallback_total(const struct spw_plan_info *p, int tier);

#endif
