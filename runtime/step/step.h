/* One step of the executor, and where it is: its spans, the running pass and the next one, and what
 * each of these passes will read of lower tiers. step.c computes this from the plan, from positions
 * and from where tiles lie. The executor opens `hidden`, `experts` and `progress`, which it uses in
 * this step. */
#ifndef SPW_RUNTIME_STEP_STEP_H
#define SPW_RUNTIME_STEP_STEP_H

#include "prefetch/schedule.h"
#include "runtime/plan/plan.h"
#include "runtime/rules/cut.h"
#include "runtime/step/experts.h"
#include "runtime/step/hidden.h"
#include "runtime/step/progress.h"
#include "runtime/step/residency.h"

/* One session's part of a step. Its cache holds tokens [0, span.from). */
struct spw_executor_item {
    const struct spw_sequence *seq;
    struct spw_step_span span; /* from < to */
    const int32_t *tokens;     /* [span.to], the whole sequence */
    bool is_last_step;         /* nothing is fetched for a next token */
    uint64_t n_drafts;         /* of the span's tokens, after the one that an answer goes on by */
};

/* A pass as it was cut, and its list of transfers. Two of them: the running one and the next. */
struct spw_pass {
    struct spw_cut cut;
    struct spw_pass_span *spans; /* [most_spans] */
    /* Where tiles lie, by layer kind: [most_spans], [cut.most_parts]. */
    struct spw_span_tiles (*span_tiles)[SPW_LAYER_KINDS];
    struct spw_part_tiles (*part_tiles)[SPW_LAYER_KINDS];
    struct spw_part_reads *parts; /* [cut.most_parts] */
    struct spw_schedule schedule;
};

/* One step, and where it is. */
struct spw_step {
    const struct spw_plan *plan; /* borrowed, as what follows */
    const struct spw_model_config *config;
    uint32_t most_spans;
    uint32_t first_slice[SPW_LAYER_KINDS]; /* of each kind; n_slices: there is none */
    struct spw_pass passes[2], *now, *next;
    struct spw_executor_item *items; /* [n_items], [most_spans] */
    uint32_t n_items;
    struct spw_step_span *spans;     /* [most_spans], as the caller gave them */
    struct spw_step_span *left;      /* [most_spans], what no pass has taken yet */
    struct spw_step_span *next_left; /* [most_spans], of the step that may come next */
    /* [most_spans]: where the latest pass of a prompt began, if only this step needs the checkpoint
     * there; 0: there is none */
    uint64_t *began_at;
    /* [most_spans], of each span the first tile that is not on disk: when the next pass begins, and
     * when the chunk begins that is being described. */
    uint32_t (*disk_end)[SPW_LAYER_KINDS], (*disk_end_at_chunk)[SPW_LAYER_KINDS];
    struct spw_hidden hidden;
    struct spw_experts experts;
    struct spw_progress_marks progress;
    uint32_t layer, chunk;        /* where this pass continues */
    uint64_t chunks_before_pause; /* of layers, until the step is set aside */
    bool is_aside;
    bool is_draft; /* rows pass the MTP layer and the head only */
};

/* pass_rows: the most rows of a pass. `hidden`, `experts` and `progress` are for the caller to
 * open. After a failure close must follow. */
int spw_step_open(struct spw_step *s, const struct spw_plan *plan,
                  const struct spw_weights *weights, uint32_t most_spans, uint64_t pass_rows);
void spw_step_close(struct spw_step *s);
/* The plan was replaced in place. */
void spw_step_replan(struct spw_step *s);
/* A step of these items begins. Returns its new tokens. */
uint64_t spw_step_begin(struct spw_step *s, const struct spw_executor_item *items, uint32_t n);
/* Cuts the next pass, s->now, and describes it. If the pass is the last one, and `expects`, s->next
 * becomes the decode step that may follow. False: no token is left. */
bool spw_step_next_pass(struct spw_step *s, bool expects);
/* Span i has more than what an answer goes on by. */
static inline bool spw_step_is_prompt(const struct spw_step *s, uint32_t i)
{
    return s->spans[i].to > s->spans[i].from + 1 + s->items[i].n_drafts;
}
/* Whether the part is a whole span with drafts, no more rows than a layer with a state keeps. */
static inline bool spw_step_may_take_back(const struct spw_step *s, const struct spw_part *part)
{
    const struct spw_step_span *span = &s->spans[part->span];
    return s->items[part->span].n_drafts && !spw_step_is_prompt(s, part->span) &&
           part->from == span->from && part->to == span->to &&
           part->to - part->from <= s->plan->kept_rows;
}
/* Whether the states at the end of part n of the running pass become a checkpoint: it is the end of
 * a prompt, or the last part before it that ends with a tile (its border, where it is cut there);
 * or it is far enough from the checkpoint before it. */
bool spw_step_wants_checkpoint(const struct spw_step *s, uint32_t n);
bool spw_step_is_last_pass(const struct spw_step *s);
/* The pass is over: swaps s->now and s->next. */
void spw_step_end_pass(struct spw_step *s);

#endif
