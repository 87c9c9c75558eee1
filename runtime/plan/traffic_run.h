/* The parts of the prediction that its files share: traffic.c (a run, and what happens to sessions
 * between two steps), traffic_step.c (one step, pass by pass). Nobody else includes this file. */
#ifndef SPW_RUNTIME_PLAN_TRAFFIC_RUN_H
#define SPW_RUNTIME_PLAN_TRAFFIC_RUN_H

#include "runtime/plan/traffic.h"
#include "runtime/plan/traffic_tiles.h"

/* A step and its running pass. */
struct spw_traffic_account {
    struct spw_cut cut;                /* owned, as what follows */
    struct spw_pass_span *pass_spans;  /* [sessions], of the pass */
    struct spw_step_span *rest;        /* [sessions], what no pass has taken yet */
    const struct spw_step_span *spans; /* [n_spans], borrowed */
    uint32_t n_spans;
    struct spw_traffic_end from; /* what is counted of the pass */
    bool is_aside;
};

/* A layer, as a pass meets it; or the layers of a row. */
struct spw_traffic_visit {
    uint32_t row, n_rows; /* whose tiles it reads: n_rows alike, from `row` on */
    bool first, last;     /* it stores them; no later visit reads them */
};

struct spw_traffic_run {
    const struct spw_plan *plan;            /* borrowed */
    const struct spw_weights *weights;      /* borrowed */
    struct spw_tiles *tiles;                /* owned, as what follows */
    struct spw_traffic_visit *visits;       /* [n_visits], in the order of a pass */
    struct spw_share *shares;               /* [sessions], their residency */
    struct spw_part_reads *parts;           /* [cut.most_parts], of the running row: only numbers */
    struct spw_step_span *ahead;            /* [sessions], scratch */
    struct spw_step_span *expected;         /* [n_expected], the step that may come next */
    struct spw_traffic_account accounts[2]; /* the second one beside a step that was set aside */
    struct spw_traffic_account *now;
    uint32_t n_expected, n_visits;
    struct spw_expert_residency experts;  /* owned; empty if no expert moves */
    struct spw_expert_forecast *forecast; /* borrowed, or NULL */
    struct spw_traffic moved;
};

uint32_t spw_traffic_n_rows(const struct spw_traffic_run *r);
const struct spw_residency *spw_traffic_residency(const struct spw_traffic_run *r, uint32_t session,
                                                  uint32_t row);
/* No tile of the row leaves the device before it is dropped. */
bool spw_traffic_is_fixed(const struct spw_traffic_run *r, uint32_t row);

/* Moves of tiles, as the executor does them; counted in *m. apply: as spw_residency_apply. */
void spw_traffic_spill(struct spw_traffic_run *r, uint32_t session, uint32_t row, uint32_t begin,
                       struct spw_tiles_moved *m);
void spw_traffic_apply(struct spw_traffic_run *r, uint32_t session, uint64_t n,
                       struct spw_tiles_moved *m);
/* Adds the bytes of these tiles. What comes from the disk crosses the device's link too, unless it
 * lands there itself. */
void spw_traffic_add_tiles(struct spw_traffic *t, const struct spw_plan *p,
                           const struct spw_tiles_moved *m);

#endif
