/* How the open sessions share the frames of a plan: one pool a tier, divided by what each session
 * may still need. A pure function of the plan and of the lengths that the sessions may reach.
 *
 *   device frames   divided fairly (max-min): who needs little gets all of it, and the rest is
 *   host frames     divided equally among the others
 *
 * A session that is short, or alone, leaves frames to the others. The open sessions may hold the
 * tiles of info.full_sessions contexts together (spw_share_fits), where a tile that several
 * sessions of a batch share counts once, and the frames of every tier suffice for any such set:
 *
 *   full_sessions = sessions   No session gets less than the plan counted for it (plan.residency),
 *                              where all sessions are open and as long as the context.
 *   full_sessions < sessions   Each session has a tile of each layer on the device, and the lowest
 *                              tier in use has room for all tiles of the set (plan_kv.c). */
#ifndef SPW_RUNTIME_PLAN_SHARES_H
#define SPW_RUNTIME_PLAN_SHARES_H

#include "runtime/plan/plan.h"

/* The tiles that one slice of a session may hold: of a full layer, those that may leave the device;
 * of a sliding layer, those of the window, and those that may be retained. */
struct spw_session_tiles {
    uint32_t full, window, retained;
};

/* One session's part of the frames. */
struct spw_share {
    uint64_t most_tokens;                            /* that it may hold; 0: it is not open */
    struct spw_residency residency[SPW_LAYER_KINDS]; /* the result */
    struct spw_session_tiles tiles;                  /* what follows is scratch */
    uint64_t want, part;                             /* frames of the tier that is being shared */
};

struct spw_session_tiles spw_session_tiles(const struct spw_plan *p, uint64_t most_tokens);
/* The device frames that hold all of them. */
uint64_t spw_session_frames(const struct spw_plan *p, const struct spw_session_tiles *t);
/* Divides device frames of one session among its slices: sets `resident`, `resident_pass` and
 * `pass` of the kinds. frames: at least one for each slice whose tiles may leave the device. */
void spw_session_divide(struct spw_residency kinds[SPW_LAYER_KINDS], const struct spw_plan *p,
                        const struct spw_session_tiles *t, uint64_t frames);

/* Gives the layers so many tiles on the device, whatever passes. */
static inline void spw_residency_fix(struct spw_residency *r, uint64_t tiles)
{
    r->resident = r->resident_pass = r->pass = (uint32_t)tiles;
}

/* The most tiles of a slice that all open sessions may hold together. The number does not depend on
 * the budgets, so sessions that fit a plan fit another one that takes its place. */
static inline uint64_t spw_share_most_tiles(const struct spw_plan *p)
{
    return p->info.full_sessions * (uint64_t)p->max_tiles;
}
/* Whether sessions may be open that together hold `tiles`: the sum of spw_waterline_tiles of the
 * most tokens of each, less the tiles that were counted more than once. */
static inline bool spw_share_fits(const struct spw_plan *p, uint64_t tiles)
{
    return tiles <= spw_share_most_tiles(p);
}

/* Divides `total` among n by their `want`, max-min fair: sets each `part`. Small wants are met
 * whole, and the others get equal parts of the rest. */
void spw_share_fairly(struct spw_share *shares, uint32_t n, uint64_t total);
/* Whether tiles of a session have to move when it gets `b` in the place of `a`. */
bool spw_share_differs(const struct spw_residency a[SPW_LAYER_KINDS],
                       const struct spw_residency b[SPW_LAYER_KINDS]);
/* Sets the residency of all n. A session that is not open gets the plan's residency. n_shared: of
 * the tiles of a slice of each session, those that were counted more than once; only full layers
 * that quantize nothing share tiles like that (spw_plan_sharing). */
void spw_share_frames(const struct spw_plan *p, struct spw_share *shares, uint32_t n,
                      uint64_t n_shared);

#endif
