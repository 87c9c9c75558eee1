/* The progress of a step: chunks that were computed, not chunks that were queued. The host runs
 * ahead of the streams. So a mark, an event, is queued after each chunk of a layer, and the host
 * waits for the mark before the previous one. Then two chunks at most are queued, which is enough
 * to keep the streams busy. If nobody wants progress, or if a step only decodes, nothing is waited
 * for. At each mark the caller may end the step; the step then ends within two chunks.
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
    bool wanted; /* marks are set in this step */
    struct spw_progress now;
};

/* The fields up to `interrupt_context` are set by the caller, the others are zero. */
int spw_progress_init(struct spw_progress_marks *m);
void spw_progress_free(struct spw_progress_marks *m);
void spw_progress_begin(struct spw_progress_marks *m, uint64_t n_new_tokens, uint32_t n_layers,
                        bool prefill);
/* A chunk of `rows` tokens has been queued through one layer. -ECANCELED: the step is to end. */
int spw_progress_mark(struct spw_progress_marks *m, uint64_t rows);
/* Asks `interrupted` at once, without a mark: 0, or -ECANCELED: the step is to end. */
int spw_progress_ask(const struct spw_progress_marks *m);
/* The step is done, and all its work. */
void spw_progress_end(struct spw_progress_marks *m);

#endif
