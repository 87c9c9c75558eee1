/* Predicted bytes: how many bytes a run moves over each link, computed from the plan and from token
 * positions alone. The counters of the device must agree with the prediction as integers.
 *
 * A tile on disk crosses the drive's link. It crosses the device's link too where the disk cannot
 * read into device memory (plan.disk_to_device is false). */
#ifndef SPW_RUNTIME_PLAN_TRAFFIC_H
#define SPW_RUNTIME_PLAN_TRAFFIC_H

#include "prefetch/expert_residency.h"
#include "prefetch/schedule.h"
#include "runtime/plan/expert_forecast.h"
#include "runtime/plan/shares.h"
#include "runtime/rules/cut.h"

struct spw_traffic {
    uint64_t bytes[SPW_MOVED_COUNT];
};

/* Bytes of the flag that a pass reads after its layers: were all quantized values finite? */
uint64_t spw_traffic_flags(const struct spw_plan *p);
/* Bytes that opening the engine moves. */
uint64_t spw_traffic_open_bytes(const struct spw_plan *p, const struct spw_weights *w);
/* The prediction of one engine: its sessions from their first token on, and all bytes that they
 * have moved. The caller reports what was computed, never what was counted.
 *
 * `row` in the functions below is a row of the table of tiles (traffic_tiles.h): one slice if the
 * run was opened with by_layer, else all slices of one kind. A step can end between two layers only
 * in a run with by_layer. */
struct spw_traffic_run;

/* How far a pass came that the caller interrupted, or that failed while it waited for tiles or
 * weights. */
struct spw_traffic_end {
    uint64_t chunks, begun_chunks; /* chunks of all layers that had passed; that had begun */
    uint32_t parts; /* of the chunk that had begun: parts with tiles for their tokens */
    uint64_t logits, begun_logits;      /* rows of logits that the host has read; that were begun */
    uint64_t expert_layers;             /* layers whose rows were sorted by expert */
    bool through;                       /* the pass was through all layers */
    uint64_t loads;                     /* tiles read from disk for layers that had not begun */
    struct spw_schedule_progress rings; /* UINT64_MAX: all of it */
};

/* Borrows plan and weights. The plan may change with spw_traffic_replan only. Only opening
 * allocates. expert_counts: at the start; expert_tables: memory; as in expert_residency.h. The
 * functions that return nothing accept NULL and do nothing then. */
int spw_traffic_run_open(struct spw_traffic_run **out, const struct spw_plan *p,
                         const struct spw_weights *w, bool by_layer, const double *expert_counts,
                         void *expert_tables);
void spw_traffic_run_close(struct spw_traffic_run *r);
/* A step, pass by pass. `spans` stay borrowed until the last pass. end: NULL for a whole pass. next
 * returns false if no pass was left. */
void spw_traffic_begin(struct spw_traffic_run *r, const struct spw_step_span *spans, uint32_t n);
bool spw_traffic_next(struct spw_traffic_run *r, const struct spw_traffic_end *end);
/* A layer of a pass visits these experts (runtime/step/experts.h): the bytes of those that lie in
 * no frame of the device. v gets where they lie. */
void spw_traffic_visit_experts(struct spw_traffic_run *r, struct spw_expert_visit *v, uint32_t n);
/* For a run that visits no experts: `f`, borrowed, gets the rows of each pass. */
void spw_traffic_forecast(struct spw_traffic_run *r, struct spw_expert_forecast *f);
/* The pass is set aside: it came to `end`, between two chunks, and `end.rings` was dropped
 * after it. The steps that follow run beside it, until continue: the next `next` or set_aside is
 * about the rest of the pass. `end` counts from the begin of the pass, its rings from set_aside. */
void spw_traffic_set_aside(struct spw_traffic_run *r, const struct spw_traffic_end *end);
void spw_traffic_continue(struct spw_traffic_run *r);
/* The rings had fetched `rings` for the next decode step (one more token for each span of the last
 * step). That step did not come, and the fetched slots were dropped. */
void spw_traffic_give_up(struct spw_traffic_run *r, const struct spw_schedule_progress *rings);
/* Tokens of span i that have passed all layers. */
uint64_t spw_traffic_passed(const struct spw_traffic_run *r, uint32_t i);
/* begin, and next until no pass is left. */
void spw_traffic_step(struct spw_traffic_run *r, const struct spw_step_span *spans, uint32_t n);
/* The session was cut back to n tokens, and its tiles moved to the waterlines of n. */
void spw_traffic_cut_back(struct spw_traffic_run *r, uint32_t session, uint64_t n);
/* Whether another session shares the tile. If such a tile is lost, the bytes of the other session
 * cannot be predicted. */
bool spw_traffic_shares(const struct spw_traffic_run *r, uint32_t session, uint32_t row,
                        uint32_t tile);
/* The plan was replaced between two steps; the old plan is `from`. Tiles kept their place as far as
 * engine_replan.c could keep them. n_tokens[i]: tokens that session i holds. n_renumbered: tiles
 * that were copied to another frame of the disk. */
void spw_traffic_replan(struct spw_traffic_run *r, const struct spw_plan *from,
                        const struct spw_share *shares, const uint64_t *n_tokens,
                        uint64_t n_renumbered);
/* Sessions were opened or closed: these are the shares from now on. True: they differ for a session
 * that holds tokens, and tiles have left the frames that belong to others now. Then cut_back with
 * its length and drop_copies (as spw_kv_drop_copies) must follow for each session. shares,
 * n_tokens: of all sessions, here and above. */
bool spw_traffic_share(struct spw_traffic_run *r, const struct spw_share *shares,
                       const uint64_t *n_tokens);
void spw_traffic_drop_copies(struct spw_traffic_run *r, uint32_t session);
/* fork: the empty session `to` gets the tiles of n tokens of `from`. truncate: the session was cut
 * back to n tokens, and the next step moves its tiles. close: the session ends.
 * attach: tiles [first, end) lie in a file of the prefix cache. export: they are written to a file.
 */
void spw_traffic_fork(struct spw_traffic_run *r, uint32_t to, uint32_t from, uint64_t n_tokens);
void spw_traffic_truncate(struct spw_traffic_run *r, uint32_t session, uint64_t n);
void spw_traffic_close(struct spw_traffic_run *r, uint32_t session);
void spw_traffic_attach(struct spw_traffic_run *r, uint32_t session, uint32_t row, uint32_t first,
                        uint32_t end);
void spw_traffic_export(struct spw_traffic_run *r, uint32_t session, uint32_t row, uint32_t first,
                        uint32_t end);
/* An empty session gets tiles [first, end) from a file through host memory, in order. exact: exact
 * tiles, in a plan that keeps old tiles apart. spw_traffic_cut_back with its length must follow. */
void spw_traffic_import(struct spw_traffic_run *r, uint32_t session, uint32_t row, uint32_t first,
                        uint32_t end, bool exact);
/* Adds bytes that belong to no tile: weights, logits, the tables of a file. */
void spw_traffic_add(struct spw_traffic_run *r, enum spw_moved link, uint64_t bytes);
struct spw_tiles *spw_traffic_tiles(struct spw_traffic_run *r);
/* All bytes so far. ahead: how much the rings have fetched for the next step; NULL: nothing. */
void spw_traffic_run_moved(struct spw_traffic_run *r, const struct spw_schedule_progress *ahead,
                           struct spw_traffic *out);

/* Bytes of a whole run: opening an engine, and one batch with these requests. `experts` gets its
 * passes, and `steps` its steps; NULL: nobody asks. */
int spw_traffic_requests(struct spw_traffic *out, const struct spw_plan *p,
                         const struct spw_weights *w, const struct spw_plan_request *requests,
                         size_t n, struct spw_expert_forecast *experts,
                         const struct spw_plan_steps *steps);

/* Fills in the bytes of plan.info: a prompt of `context` tokens, and one decode step at the end of
 * the context. */
int spw_traffic_info(struct spw_plan *p, const struct spw_weights *w, const double *expert_counts);

#endif
