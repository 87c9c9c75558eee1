/* The byte account: how much one pass moves over each link, from positions and the plan alone. The
 * counters of the device must agree with it as integers.
 *
 * A tile on disk crosses the drive's link, and the device's too where the disk lands on the host
 * first (plan.direct is false). */
#ifndef SPW_RUNTIME_PLAN_TRAFFIC_H
#define SPW_RUNTIME_PLAN_TRAFFIC_H

#include "prefetch/schedule.h"
#include "runtime/step/cut.h"
#include "runtime/plan/plan.h"

struct spw_traffic {
    uint64_t bytes[SPW_MOVED_COUNT];
};

/* What a pass that got through its layers reads of whether all that was quantized was finite. */
uint64_t spw_traffic_flags(const struct spw_plan *p);
/* What opening the engine moves. */
uint64_t spw_traffic_open_bytes(const struct spw_plan *p, const struct spw_weights *w);
/* Sessions from their first token on, and all that they have moved: told what was computed, never
 * what was counted. by_layer: a step may end between layers; else layers of one kind are one. */
struct spw_traffic_run;

/* How far a pass came that was ended, or that failed while it waited for tiles or weights. */
struct spw_traffic_end {
    uint64_t chunks, begun_chunks; /* counted over the layers: that were through, that had begun */
    uint32_t parts;                /* of the chunk that had begun: whose tokens had got tiles */
    uint64_t heads, begun_heads;   /* rows of logits that were read, and that were to be computed */
    bool through;                  /* all layers */
    uint64_t loads; /* tiles that came up from the disk for layers that had not begun */
    struct spw_schedule_progress rings; /* UINT64_MAX: all of it */
};

/* Borrows plan and weights; the plan changes with spw_traffic_replan only. Opening allocates,
 * nothing else does. What tells a run something takes NULL, and does nothing then. */
int spw_traffic_run_open(struct spw_traffic_run **out, const struct spw_plan *p,
                         const struct spw_weights *w, bool by_layer);
void spw_traffic_run_close(struct spw_traffic_run *r);
/* A step, pass by pass: `spans` stay borrowed until the last one. false: there was none left. */
void spw_traffic_begin(struct spw_traffic_run *r, const struct spw_step_span *spans, uint32_t n);
bool spw_traffic_next(struct spw_traffic_run *r, const struct spw_traffic_end *end);
/* Of the step that was expected to come, one token more for each span of the last one, so much was
 * fetched, and given up. */
void spw_traffic_give_up(struct spw_traffic_run *r, const struct spw_schedule_progress *rings);
/* Tokens of span i that passes have been through. */
uint64_t spw_traffic_passed(const struct spw_traffic_run *r, uint32_t i);
/* All passes. */
void spw_traffic_step(struct spw_traffic_run *r, const struct spw_step_span *spans, uint32_t n);
/* The session is cut back to n tokens, and brought to the waterlines of n. */
void spw_traffic_cut_back(struct spw_traffic_run *r, uint32_t session, uint64_t n);
/* Whether another session has the tile, too. Where such a tile is lost, the traffic of the other
 * session is not known. */
bool spw_traffic_shares(const struct spw_traffic_run *r, uint32_t session, uint32_t row,
                        uint32_t tile);
/* Between steps the plan, which was `from`, has become another one, and caches have followed where
 * they lie (engine_refit.c). n_tokens[i]: what session i holds. n_renumbered: so many tiles on disk
 * went to another place there, as they are. */
void spw_traffic_replan(struct spw_traffic_run *r, const struct spw_plan *from,
                        const uint64_t *n_tokens, uint64_t n_renumbered);
/* `to`, which is empty, begins as `from`; a session ends; tiles [first, end) are found in a file;
 * they are written to one. */
void spw_traffic_fork(struct spw_traffic_run *r, uint32_t to, uint32_t from);
void spw_traffic_close(struct spw_traffic_run *r, uint32_t session);
void spw_traffic_attach(struct spw_traffic_run *r, uint32_t session, uint32_t row, uint32_t first,
                        uint32_t end);
void spw_traffic_export(struct spw_traffic_run *r, uint32_t session, uint32_t row, uint32_t first,
                        uint32_t end);
/* The session gets tiles [first, end) from a file by way of host memory, those of an empty one in
 * order; exact: in that form, which is kept apart where old tiles are. A cut back to its length
 * must follow. */
void spw_traffic_import(struct spw_traffic_run *r, uint32_t session, uint32_t row, uint32_t first,
                        uint32_t end, bool exact);
/* Adds bytes that belong to no tile: weights, logits, tables of a file. */
void spw_traffic_add(struct spw_traffic_run *r, enum spw_moved link, uint64_t bytes);
struct spw_tiles *spw_traffic_tiles(struct spw_traffic_run *r);
/* `ahead`: how much the rings have fetched for the expected step; NULL: nothing. */
void spw_traffic_run_moved(struct spw_traffic_run *r, const struct spw_schedule_progress *ahead,
                           struct spw_traffic *out);

/* All that opening an engine and one batch with these requests move (traffic_requests.c). */
int spw_traffic_requests(struct spw_traffic *out, const struct spw_plan *p,
                         const struct spw_weights *w, const struct spw_plan_request *requests,
                         size_t n);

/* Fills in plan.info: one session that takes `context` tokens from nothing; and the last of them
 * after a prompt of the others. */
int spw_traffic_info(struct spw_plan *p, const struct spw_weights *w);

#endif
