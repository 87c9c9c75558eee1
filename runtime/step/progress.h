/* Progress of a step as it is computed, not as it is queued: the host runs ahead of the streams, so
 * a mark after each chunk of a layer is waited for before the second one after it is queued. That
 * keeps two chunks queued, which is enough to hide the host, and nothing is waited for when nobody
 * asked or when a step only decodes. At each mark the caller may end the step, which for the same
 * reason then ends within two chunks.
 *
 * Borrows the lane. init may fail with -ENOMEM; mark with what the device says. */
#ifndef SPW_RUNTIME_STEP_PROGRESS_H
#define SPW_RUNTIME_STEP_PROGRESS_H

#include "offload/device/lane.h"
#include "runtime/spillway.h"

struct spw_progress_marks {
    const struct spw_lane *lane;
    void (*report)(void *context, const struct spw_progress *progress); /* NULL: nobody asked */
    void *context;
    bool (*interrupted)(void *context); /* NULL: nobody will end it */
    void *interrupt_context;
    spw_event events[2]; /* owned */
    uint64_t rows[2];    /* of the chunk before each event */
    uint64_t n_marks;
    bool wanted; /* in this step */
    struct spw_progress now;
};

/* The fields up to `interrupt_context` are set by the caller, the others are zero. */
int spw_progress_init(struct spw_progress_marks *m);
void spw_progress_free(struct spw_progress_marks *m);
void spw_progress_begin(struct spw_progress_marks *m, uint64_t n_new_tokens, uint32_t n_layers,
                        bool prefill);
/* A chunk of `rows` tokens has been queued through one layer. -ECANCELED: the step is to end. */
int spw_progress_mark(struct spw_progress_marks *m, uint64_t rows);
/* Whether the step is to end, without waiting for a chunk: 0 or -ECANCELED. */
int spw_progress_ask(const struct spw_progress_marks *m);
/* The step is done, and all its work. */
void spw_progress_end(struct spw_progress_marks *m);

#endif
