/* Time that computation stood still because the host waited for the disk.
 *
 * The host queues kernels only when what they read has landed, so a wait for a read is not one that
 * a stream could tell of. Counted is the whole of a wait in whose course the compute stream ran
 * empty: at most the last kernel's length too much, and never too little. One host thread. */
#ifndef SPW_PREFETCH_STALL_H
#define SPW_PREFETCH_STALL_H

#include "offload/device/lane.h"

#include <time.h>

struct spw_stall {
    const struct spw_lane *lane;
    spw_event reached; /* owned; what was queued when the wait began */
    struct timespec since;
    double seconds[SPW_RANGES + 1]; /* by layer; the last: outside of any */
};

/* The lane is given. */
int spw_stall_init(struct spw_stall *s);
void spw_stall_free(struct spw_stall *s);

int spw_stall_begin(struct spw_stall *s);
/* `range`: the layer that waited; from SPW_RANGES on: none. */
void spw_stall_end(struct spw_stall *s, uint32_t range);

#endif
