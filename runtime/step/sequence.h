/* One sequence: its KV cache, and the share of the frames that it may take. Embedded by its
 * session. */
#ifndef SPW_RUNTIME_STEP_SEQUENCE_H
#define SPW_RUNTIME_STEP_SEQUENCE_H

#include "offload/kv/kv_cache.h"

struct spw_sequence {
    struct spw_kv_seq *kv; /* owned */
    /* By layer kind: how many tiles of a layer it may keep in each tier. Borrowed; set by whoever
     * opens the sequence. */
    const struct spw_residency *residency;
};

#endif
