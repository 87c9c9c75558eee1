/* One step of the executor and its progress: the spans, the running pass and the next one, and what
 * each of these passes will read from lower tiers. step.c computes this from the plan, from
 * positions and from where tiles lie. The executor opens and uses the members `hidden`, `experts`
 * and `progress`. */
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
    const float *audio;        /* of a source that is audio: as in struct spw_embed_args */
    bool is_last_step;         /* no token follows: nothing is fetched ahead for a next step */
    uint64_t n_drafts;         /* the last n_drafts tokens of the span are drafts */
};

/* A pass as it was cut, and its list of transfers. */
struct spw_pass {
    struct spw_cut cut;
    struct spw_pass_span *spans; /* [most_spans] */
    /* Where tiles lie, by layer kind: [most_spans], [cut.most_parts]. */
    struct spw_span_tiles (*span_tiles)[SPW_LAYER_KINDS];
    struct spw_part_tiles (*part_tiles)[SPW_LAYER_KINDS];
    struct spw_part_reads *parts; /* [cut.most_parts] */
    struct spw_schedule schedule;
};

struct spw_step {
    const struct spw_plan *plan;           /* borrowed */
    const struct spw_model_config *config; /* borrowed */
    uint32_t most_spans;
    /* By kind: one slice with this kind, which stands for all of them: all slices of a kind have
     * the same tiles of a session. n_slices: the model has none. */
    uint32_t slice_of_kind[SPW_LAYER_KINDS];
    struct spw_pass passes[2], *now, *next; /* the running pass and the next one */
    struct spw_executor_item *items;        /* [n_items], [most_spans] */
    uint32_t n_items;
    struct spw_step_span *spans;     /* [most_spans], as the caller gave them */
    struct spw_step_span *left;      /* [most_spans], tokens that are in no pass yet */
    struct spw_step_span *next_left; /* [most_spans], the same of the step that may come next */
    /* [most_spans]: where the latest pass of the span began, if this made a checkpoint that the
     * next pass or the end of the step drops; 0: there is none */
    uint64_t *began_at;
    /* [most_spans], the first tile of each span that is not on disk: disk_end at the begin of the
     * next pass, disk_end_at_chunk at the begin of the chunk that describe_pass has come to. */
    uint32_t (*disk_end)[SPW_LAYER_KINDS], (*disk_end_at_chunk)[SPW_LAYER_KINDS];
    struct spw_hidden hidden;
    struct spw_experts experts;
    struct spw_progress_marks progress;
    uint32_t layer, chunk;        /* the running pass computes this chunk of this layer next */
    uint64_t chunks_before_pause; /* chunks until the step is paused, counted in each layer; 0:
                                     it is never paused */
    bool is_paused;               /* the step was paused */
    bool is_draft;                /* rows pass the MTP layer and the head only */
};

/* pass_rows: the most rows of a pass. The caller opens `hidden`, `experts` and `progress`. The
 * caller closes the step also after a failure. */
int spw_step_open(struct spw_step *s, const struct spw_plan *plan,
                  const struct spw_weights *weights, uint32_t most_spans, uint64_t pass_rows);
void spw_step_close(struct spw_step *s);
/* The plan was replaced in place. */
void spw_step_replan(struct spw_step *s);
/* A step of these items begins. Returns its new tokens. */
uint64_t spw_step_begin(struct spw_step *s, const struct spw_executor_item *items, uint32_t n);
/* Cuts the next pass, s->now, and describes it. With `expects`, if the pass is the last one,
 * s->next becomes the pass of the decode step that will probably follow. False: no token is left.
 */
bool spw_step_next_pass(struct spw_step *s, bool expects);
/* Whether span i has more tokens than a decode step: one token, and drafts. */
static inline bool spw_step_is_prompt(const struct spw_step *s, uint32_t i)
{
    return s->spans[i].to > s->spans[i].from + 1 + s->items[i].n_drafts;
}
/* Whether rows of a source pass in the running pass: else it begins with the decoder. */
static inline bool spw_step_has_source(const struct spw_pass *pass)
{
    bool any = false;
    for (uint32_t k = 0; k < pass->cut.n_chunks; k++)
        any |= pass->cut.chunks[k].source;
    return any;
}
/* The tiles that queries of a part of span i read in layers of a kind, of those up to `to`: those
 * of the source, or those of the other tokens; whatever tier they lie in. */
struct spw_stream_range spw_step_reads(const struct spw_step *s, uint32_t i, uint32_t kind,
                                       uint64_t to);
/* Whether rows of the part may be rejected after the step: the part is a whole span with drafts. A
 * layer with a state then keeps the rows and leaves its state as it is (executor_states.c). */
static inline bool spw_step_may_roll_back(const struct spw_step *s, const struct spw_part *part)
{
    const struct spw_step_span *span = &s->spans[part->span];
    return s->items[part->span].n_drafts && !spw_step_is_prompt(s, part->span) &&
           part->from == span->from && part->to == span->to &&
           part->to - part->from <= s->plan->kept_rows;
}
/* Whether the states at the end of part n of the running pass become a checkpoint. They do
 *   - at the end of a prompt;
 *   - where a tile ends, at most a chunk (or a tile) before the end of a prompt: there is the
 *     border of the span (cut.h);
 *   - if the part passes a multiple of SPW_CHECKPOINT_TOKENS. */
bool spw_step_wants_checkpoint(const struct spw_step *s, uint32_t n);
/* Whether all tokens of the step are in the running pass, or in passes before it. */
bool spw_step_is_last_pass(const struct spw_step *s);
/* The running pass is over: swaps s->now and s->next. */
void spw_step_end_pass(struct spw_step *s);

#endif
