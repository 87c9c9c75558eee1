/* Runs one step: the new tokens of any number of sessions pass all layers.
 *
 * The executor borrows everything that it gets at open. A step queues its work on the streams. The
 * host waits
 *   - at the end of a pass, and for each round of logits (a round: as many rows as the logits
 *     buffer has);
 *   - in a layer with experts, for the choices of the router;
 *   - for reads from disk, and for a staging buffer that an earlier copy still reads;
 *   - after each chunk for the chunk before the previous one, if the caller wants progress or may
 *     interrupt the step.
 *
 * If a step fails, the cache contains parts of this step. Then the caller must cut the sessions
 * back. */
#ifndef SPW_RUNTIME_STEP_EXECUTOR_H
#define SPW_RUNTIME_STEP_EXECUTOR_H

#include "model/forward.h"
#include "runtime/step/attend.h"
#include "runtime/step/residency.h"
#include "runtime/step/step.h"

/* Callbacks of a dry run (runtime/dry), which computes nothing. Any member may be NULL. */
struct spw_dry_hooks {
    /* So many rows of a pass are at the router of `layer`. The dry run does not know which experts
     * they would choose. */
    void (*experts)(void *context, uint32_t layer, uint64_t rows);
    /* A step begins. */
    void (*step)(void *context, const struct spw_executor_item *items, uint32_t n);
    void *context;
};

struct spw_executor_options {
    const struct spw_ops *ops; /* kernels */
    void (*embed)(const struct spw_weights *w,
                  const struct spw_embed_args *a); /* as in struct spw_backend */
    const struct spw_plan *plan;
    struct spw_weights *weights;
    struct spw_prefetch *prefetch;
    /* The second lane, which multiplies in host memory (host_products.h), and its kernels; NULL. */
    const struct spw_lane *host_lane;
    const struct spw_ops *host_ops;
    uint32_t most_spans;
    void (*on_progress)(void *context, const struct spw_progress *progress);
    void *progress_context;
    /* Whether the step must end. May be NULL. */
    bool (*interrupted)(void *context);
    /* Whether a step that may be paused must be paused now. May be NULL. */
    bool (*hurried)(void *context);
    void *interrupt_context; /* of both */
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
    struct spw_host_products host;
    struct spw_attend attend;
    struct spw_residency_moves residency;
    /* steps[0] can be paused; then steps[1] runs. `step` is the one that runs, or the latest.
     * After a failure, step->now->spans[i].from tokens of session i have passed all layers. */
    struct spw_step steps[2], *step;
    uint32_t n_steps;                    /* 1: one session only, no step can be paused */
    struct spw_attend_part *chunk_parts; /* [cut.most_parts], of the running chunk */
    struct spw_state_part *state_parts;  /* the same */
    uint64_t n_chunks;                /* chunks that were computed so far, counted in each layer */
    uint64_t missed[SPW_MOVED_COUNT]; /* bytes of experts that were not on the device when rows
                                         chose them: only the routing says how many */
    uint64_t host_multiplied_bytes;   /* as in struct spw_stats */
    const void **addresses;           /* owned: of experts, while they go to the device */
};

int spw_executor_open(struct spw_executor **out, const struct spw_lane *lane,
                      const struct spw_executor_options *o);
void spw_executor_close(struct spw_executor *x);
/* The plan was replaced in place: see engine_replan.c. */
void spw_executor_replan(struct spw_executor *x);
/* Computes items [0, n).
 *
 * most_chunks: after this number of chunks (counted in each layer), or when `hurried` returns true,
 * the step is paused: the call returns -EAGAIN. 0: never. The next call with the same items
 * continues the step. Until then, steps of other sessions may run. Those are never paused.
 *
 * on_logits gets each row of logits that a span wants: [vocab] floats, valid during the call, in
 * the order of passes, spans and positions. If on_logits returns a negative number, the step ends
 * and returns this number.
 *
 * -EDOM: keys or values to be quantized are not finite. -ECANCELED: `interrupted` returned true,
 * between two chunks of a layer or two rounds of logits. */
int spw_executor_step(struct spw_executor *x, const struct spw_executor_item *items, uint32_t n,
                      uint64_t most_chunks,
                      int (*on_logits)(void *context, uint32_t span, uint64_t position,
                                       const float *logits),
                      void *context);
/* Computes drafts: the tokens of each item's span pass the MTP layer and the head only. on_logits
 * gets the logits after the last token of each span.
 *
 * The input of the layer for a token is the kept row of the token before (executor_mtp.c): the
 * caller makes sure that this row is there (spw_sequence_keeps). The rows of those tokens that have
 * logits are kept in turn. Keys and values go into the last tile of the sequence, so a span must
 * not begin a new tile (spw_engine_alike_until). A failure is handled as that of a step. */
int spw_executor_draft(struct spw_executor *x, const struct spw_executor_item *items, uint32_t n,
                       int (*on_logits)(void *context, uint32_t span, uint64_t position,
                                        const float *logits),
                       void *context);
/* ---- executor_mtp.c ---- */

/* Computes the input of the MTP layer for the rows of chunk k. *h: hidden states of the chunk. In a
 * step of drafts the input replaces them. In other steps the head still needs them: the input goes
 * to another buffer, and *h becomes the address of this buffer. */
int spw_executor_join(struct spw_executor *x, const struct spw_layer_weights *w, uint32_t k,
                      void **h);
/* Keeps the row of the token at `position` for the next token's input: row number `row` of
 * plan.device.rows, which the head has read. */
int spw_executor_keep(struct spw_executor *x, const struct spw_sequence *seq, uint64_t position,
                      size_t row);
/* When the executor is opened: writes the row of zeros that stands for a row that is not known. */
int spw_executor_begin_kept(struct spw_executor *x);

/* ---- executor.c, executor_open.c ---- */

/* Gives up the step that was paused. As after a step that failed, the caller must cut the
 * sessions back to the tokens that have passed all layers. */
void spw_executor_drop_paused(struct spw_executor *x);
/* Uploads the rope tables, after spw_weights_rope has changed them. */
int spw_executor_upload_rope(struct spw_executor *x);

/* ---- executor_states.c ---- */

/* The rows h [rows][hidden] of a chunk of the running step pass a layer with states. Copies the
 * state at the end of each part that wants a checkpoint (spw_step_wants_checkpoint). */
int spw_executor_run_states(struct spw_executor *x, uint32_t layer,
                            const struct spw_layer_weights *w, const struct spw_chunk *chunk,
                            void *h);
/* Updates the states of all layers of the sequence by its kept rows (state_store.h). No layer of
 * the sequence may be in progress. */
int spw_executor_apply_kept_rows(const struct spw_executor *x, struct spw_kv_seq *seq);

#endif
