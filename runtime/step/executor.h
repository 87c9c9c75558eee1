/* Runs one step: the new tokens of any number of sessions through all layers.
 *
 * Borrows everything it is given at open. A step queues work and waits for it once, at its end. If
 * it fails, the cache holds parts of the step: the caller cuts the sessions back. */
#ifndef SPW_RUNTIME_STEP_EXECUTOR_H
#define SPW_RUNTIME_STEP_EXECUTOR_H

#include "model/forward.h"
#include "runtime/engine/backend.h"
#include "runtime/plan/traffic.h"
#include "runtime/step/attend.h"
#include "runtime/step/hidden.h"
#include "runtime/step/progress.h"
#include "runtime/step/residency.h"

struct spw_executor_options {
    const struct spw_backend *backend;
    struct spw_device *device;
    spw_stream compute, up, down; /* up: of hidden states */
    const struct spw_plan *plan;
    struct spw_weights *weights;
    struct spw_prefetch *prefetch;
    uint8_t *device_arena, *host_arena;
    uint32_t most_spans;
    void (*on_progress)(void *context, const struct spw_progress *progress);
    void *progress_context;
    bool (*interrupted)(void *context); /* may be NULL */
    void *interrupt_context;
    /* Between two passes of a step: caches hold what has passed (spw_executor_passed), and may be
     * read. May be NULL. */
    void (*on_pass)(void *context);
    void *pass_context;
};

/* One session's part of a step. Its cache holds tokens [0, span.from). */
struct spw_executor_item {
    const struct spw_sequence *seq;
    struct spw_step_span span; /* from < to; session: its number in the byte account */
    const int32_t *tokens;     /* [span.to], the whole sequence */
    bool last;                 /* nothing is fetched for a next token: there is none */
};

struct spw_executor;

int spw_executor_open(struct spw_executor **out, const struct spw_executor_options *o);
void spw_executor_close(struct spw_executor *x);
/* The plan has been refit: see engine_refit.c. */
void spw_executor_refit(struct spw_executor *x);
/* -EDOM: keys or values that were to be quantized are not finite. -ECANCELED: `interrupted` has
 * said so, between two chunks of a layer or two rounds of logits. `on_logits` is called in order of
 * passes, spans and positions; [vocab] floats, valid during the call; a negative return ends the
 * step with it. */
int spw_executor_step(struct spw_executor *x, const struct spw_executor_item *items, uint32_t n,
                      int (*on_logits)(void *context, uint32_t span, uint64_t position,
                                       const float *logits),
                      void *context);
/* After a step that failed: the tokens of span i that have passed all layers. */
uint64_t spw_executor_computed(const struct spw_executor *x, uint32_t i);
/* From within on_pass: how far the span is through all layers. */
uint64_t spw_executor_passed(const struct spw_executor *x, uint32_t i);
/* Brings a sequence that was cut back to n tokens to the waterlines of n. */
int spw_executor_apply_residency(struct spw_executor *x, const struct spw_sequence *seq,
                                 uint64_t n);
/* The account that predicts the bytes: it is told which tokens are computed, here what is done with
 * sessions beside steps, and sees no cache. NULL once something happened that it knows no rule for:
 * there is no prediction then. Functions that tell it something take NULL. */
struct spw_traffic_run *spw_executor_account_of(struct spw_executor *x);
void spw_executor_stop_telling(struct spw_executor *x);
/* spw_prefetch_forget; the account is told what was fetched for a step that did not come. */
int spw_executor_forget_ahead(struct spw_executor *x);
/* New rope tables are needed: uploads the small block's. */
int spw_executor_upload_rope(struct spw_executor *x);
/* The predicted bytes of all steps so far. False: there is no prediction. */
bool spw_executor_predicted(struct spw_executor *x, struct spw_traffic *out);

#endif
