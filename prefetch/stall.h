/* Time in which computation stood still because the host waited for the disk.
 *
 * The host queues a kernel only after the reads of its tiles are over, so no stream sees the wait
 * for a read. A wait counts as a whole if the compute stream ran empty during the wait: the sum is
 * at most the last kernel's length too large, and never too small. One host thread. */
#ifndef SPW_PREFETCH_STALL_H
#define SPW_PREFETCH_STALL_H

#include "offload/device/lane.h"

#include <time.h>

struct spw_stall {
    const struct spw_lane *lane;
    spw_event reached; /* owned; the work that was queued when the wait began is over */
    struct timespec since;
    double seconds[SPW_RANGES + 1]; /* by layer; the last: outside of all layers */
};

/* Initializes a stall whose `lane` is set. */
int spw_stall_init(struct spw_stall *s);
void spw_stall_free(struct spw_stall *s);

int spw_stall_begin(struct spw_stall *s);
/* `range`: the layer that waited; SPW_RANGES or more: none. */
void spw_stall_end(struct spw_stall *s, uint32_t range);

#endif
