/* Runs one step: the new tokens of any number of sessions pass all layers.
 *
 * The executor borrows everything that it gets at open. A step queues its work. The host waits
 *   - at the end of a pass, and for each round of logits;
 *   - in a layer with experts, for the choices of the router;
 *   - for reads from disk, and for a staging buffer that an earlier copy still reads;
 *   - two chunks behind, if the caller wants progress or may interrupt the step.
 *
 * After a step that failed the cache holds parts of the step, and the caller must cut the sessions
 * back. */
#ifndef SPW_RUNTIME_STEP_EXECUTOR_H
#define SPW_RUNTIME_STEP_EXECUTOR_H

#include "model/forward.h"
#include "runtime/step/attend.h"
#include "runtime/step/residency.h"
#include "runtime/step/step.h"

/* Callbacks of a dry run (runtime/dry), which computes nothing. Any member may be NULL. */
struct spw_dry_hooks {
    /* The rows of a pass choose experts of `layer`; nobody knows which. */
    void (*experts)(void *context, uint32_t layer, uint64_t rows);
    /* A step begins. */
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
    /* The second lane, which multiplies in host memory (host_experts.h), and its kernels; NULL. */
    const struct spw_lane *host_lane;
    const struct spw_ops *host_ops;
    uint32_t most_spans;
    void (*on_progress)(void *context, const struct spw_progress *progress);
    void *progress_context;
    bool (*interrupted)(void *context); /* may be NULL */
    bool (*hurried)(void *context);     /* the same; a step that may be set aside is, at once */
    void *interrupt_context;
    /* Called between two passes of a step. The caches hold the tokens that have passed all layers
     * (step->now->spans[i].to), and may be read. May be NULL. */
    void (*on_pass)(void *context);
    void *pass_context;
    struct spw_expert_trace_writer *expert_trace; /* may be NULL */
    const struct spw_dry_hooks *dry;              /* where nothing is computed; else NULL */
};

struct spw_executor {
    const struct spw_lane *lane;
    struct spw_executor_options o;
    const struct spw_model_config *config;
    const struct spw_plan *plan;
    struct spw_forward forward;
    struct spw_host_experts host;
    struct spw_attend attend;
    struct spw_residency_moves residency;
    /* The second step runs beside one that was set aside. Of a step that has failed,
     * step->now->spans[i].from are the tokens of span i that had passed all layers before. */
    struct spw_step steps[2], *step;
    uint32_t n_steps;                    /* 1: one session only, no step can be set aside */
    struct spw_attend_part *chunk_parts; /* [cut.most_parts], of the running chunk */
    struct spw_state_part *state_parts;  /* the same */
    uint64_t n_chunks;                   /* that were computed in a layer, so far */
    uint64_t missed[SPW_MOVED_COUNT];    /* bytes of experts that rows have missed so far: what no
                                            prediction can know without the routing */
    uint64_t host_multiplied_bytes;      /* as in struct spw_stats */
    const void **addresses;              /* owned: of experts, while they go to the device */
};

int spw_executor_open(struct spw_executor **out, const struct spw_lane *lane,
                      const struct spw_executor_options *o);
void spw_executor_close(struct spw_executor *x);
/* The plan was replaced in place: see engine_replan.c. */
void spw_executor_replan(struct spw_executor *x);
/* Computes items [0, n). `most_chunks`: after so many chunks of a layer, or when `hurried` returns
 * true, the step is set aside, and the result is -EAGAIN; 0: never. The next call with the same
 * items continues the step. Until then steps of other sessions may run, which are never set aside.
 * `on_logits` gets each row of logits that a span wants, [vocab] floats that are valid during the
 * call, in the order of passes, spans and positions. If it returns a negative number, the step ends
 * with that. -EDOM: keys or values to be quantized are not finite. -ECANCELED: `interrupted`
 * returned true, between two chunks of a layer or two rounds of logits.
 */
int spw_executor_step(struct spw_executor *x, const struct spw_executor_item *items, uint32_t n,
                      uint64_t most_chunks,
                      int (*on_logits)(void *context, uint32_t span, uint64_t position,
                                       const float *logits),
                      void *context);
/* Drafts: rows pass the MTP layer and the head only. An item's span are tokens whose rows go
 * through the layer; each needs the kept row of the token before (spw_sequence_keeps), and the
 * last ones, of which on_logits gets the logits, leave theirs. Keys and values go into the tile
 * that the newest tokens are in: spw_engine_alike_until. After a failure as after that of a step.
 */
int spw_executor_draft(struct spw_executor *x, const struct spw_executor_item *items, uint32_t n,
                       int (*on_logits)(void *context, uint32_t span, uint64_t position,
                                        const float *logits),
                       void *context);
/* executor_mtp.c. The input of the MTP layer for the rows of chunk k. *h: hidden states of the
 * chunk; becomes the input. */
int spw_executor_join(struct spw_executor *x, const struct spw_layer_weights *w, uint32_t k,
                      void **h);
/* Keeps row `row` of those that the head has read, of a token at `position`. */
int spw_executor_keep(struct spw_executor *x, const struct spw_sequence *seq, uint64_t position,
                      size_t row);
/* At open. */
int spw_executor_begin_kept(struct spw_executor *x);
/* Gives up the step that was set aside. As after a step that failed, the caller must cut the
 * sessions back to what had passed all layers. */
void spw_executor_drop_aside(struct spw_executor *x);
/* Uploads the rope tables, after spw_weights_rope has changed them. */
int spw_executor_upload_rope(struct spw_executor *x);
/* executor_states.c. The rows of a chunk of the running step, h: [rows][hidden], go through the
 * states of a layer. Positions that get a checkpoint are ends of parts. */
int spw_executor_run_states(struct spw_executor *x, uint32_t layer,
                            const struct spw_layer_weights *w, const struct spw_chunk *chunk,
                            void *h);
/* The states of all layers take the rows that are kept of the sequence, of which no layer is being
 * computed. */
int spw_executor_take_kept(const struct spw_executor *x, struct spw_kv_seq *seq);
#endif
