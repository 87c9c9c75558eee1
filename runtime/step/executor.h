/* Runs one step: the new tokens of any number of sessions pass all layers.
 *
 * The executor borrows everything that it gets at open. A step queues its work; it waits at the end
 * of a pass and for each round of logits. After a step that failed the cache holds parts of the
 * step, and the caller must cut the sessions back. */
#ifndef SPW_RUNTIME_STEP_EXECUTOR_H
#define SPW_RUNTIME_STEP_EXECUTOR_H

#include "model/forward.h"
#include "runtime/step/attend.h"
#include "runtime/step/residency.h"
#include "runtime/step/step.h"

/* What a run that computes nothing is asked, and told. Any member may be NULL. */
struct spw_dry_hooks {
    /* Fills `visit` with the experts of `layer` that the rows of a pass choose, and returns their
     * number: see spw_experts_sort_rows. NULL: none. */
    uint32_t (*choose)(void *context, uint32_t layer, uint64_t rows,
                       struct spw_expert_visit *visit);
    void (*step)(void *context, const struct spw_executor_item *items, uint32_t n);
    void *context;
};

struct spw_executor_options {
    const struct spw_ops *ops; /* kernels */
    void (*embed)(const struct spw_weights *w, const int32_t *tokens, size_t n,
                  enum spw_dtype compute, void *rows, void *inputs); /* as in struct spw_backend */
    const struct spw_plan *plan;
    struct spw_weights *weights;
    struct spw_prefetch *prefetch;
    uint32_t most_spans;
    void (*on_progress)(void *context, const struct spw_progress *progress);
    void *progress_context;
    bool (*interrupted)(void *context); /* may be NULL */
    void *interrupt_context;
    /* Called between two passes of a step. The caches hold the tokens that have passed all layers
     * (spw_executor_held_after_pass), and may be read. May be NULL. */
    void (*on_pass)(void *context);
    void *pass_context;
    const double *expert_counts; /* [experts of all layers], at the start; used by open only */
    void *expert_tables;         /* of what follows the routing, as in expert_residency.h */
    struct spw_expert_trace_writer *expert_trace; /* may be NULL */
    const struct spw_dry_hooks *dry;              /* where nothing is computed; else NULL */
};

struct spw_executor;

int spw_executor_open(struct spw_executor **out, const struct spw_lane *lane,
                      const struct spw_executor_options *o);
void spw_executor_close(struct spw_executor *x);
/* The plan was replaced in place: see engine_replan.c. */
void spw_executor_replan(struct spw_executor *x);
/* Computes items [0, n). `most_chunks`: after so many chunks of a layer the step is set aside, and
 * the result is -EAGAIN; 0: never. The next call with the same items continues the step. Until then
 * steps of other sessions may run, which are never set aside. `on_logits` gets each row of logits
 * that a span wants, [vocab] floats that are valid during the call, in the order of passes, spans
 * and positions. If it returns a negative number, the step ends with that. -EDOM: keys or values to
 * be quantized are not finite. -ECANCELED: `interrupted` returned true, between two chunks of a
 * layer or two rounds of logits.
 */
int spw_executor_step(struct spw_executor *x, const struct spw_executor_item *items, uint32_t n,
                      uint64_t most_chunks,
                      int (*on_logits)(void *context, uint32_t span, uint64_t position,
                                       const float *logits),
                      void *context);
bool spw_executor_is_aside(const struct spw_executor *x);
/* Gives up the step that was set aside. As after a step that failed, the caller must cut the
 * sessions back to spw_executor_held_before_pass. */
void spw_executor_drop_aside(struct spw_executor *x);
/* After a step that failed: the tokens of span i that had passed all layers before the pass that
 * failed. */
uint64_t spw_executor_held_before_pass(const struct spw_executor *x, uint32_t i);
/* For on_pass: the tokens of span i that have passed all layers, those of the last pass included.
 */
uint64_t spw_executor_held_after_pass(const struct spw_executor *x, uint32_t i);
/* Moves the tiles of a sequence that was cut back to n tokens to the waterlines of n. */
int spw_executor_apply_residency(struct spw_executor *x, const struct spw_sequence *seq,
                                 uint64_t n);
/* The bytes of the experts that rows have missed so far, by the rule of expert_residency.h alone:
 * what a prediction cannot know without the routing. */
const uint64_t *spw_executor_missed(const struct spw_executor *x);
/* Uploads the rope tables, after spw_weights_rope has changed them. */
int spw_executor_upload_rope(struct spw_executor *x);
#endif
