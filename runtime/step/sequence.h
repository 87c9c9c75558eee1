/* The KV cache of one sequence: `kv` has the tiles that move between the tiers, and `exact` has the
 * tiles that are read exactly. Both are the same where the plan quantizes nothing. Otherwise `kv`
 * has the quantized tiles. Embedded by its session; not thread-safe. */
#ifndef SPW_RUNTIME_STEP_SEQUENCE_H
#define SPW_RUNTIME_STEP_SEQUENCE_H

#include "offload/kv/kv_cache.h"

struct spw_sequence {
    struct spw_kv_seq *kv, *exact; /* owned; exact == kv where nothing is quantized */
    /* By layer kind: how many tiles of a layer it may keep in each tier. Borrowed; set by whoever
     * opens the sequence. */
    const struct spw_residency *residency;
};

/* exact: NULL where nothing is quantized. */
int spw_sequence_open(struct spw_sequence *s, struct spw_kv *kv, struct spw_kv *exact);
void spw_sequence_close(struct spw_sequence *s);
/* `to` must be empty. */
void spw_sequence_fork(struct spw_sequence *to, const struct spw_sequence *from);
/* Whether all is still there that queries from position n on read. r: by layer kind, here and
 * below. */
bool spw_sequence_can_truncate(const struct spw_sequence *s, const struct spw_residency *r,
                               uint64_t n);
/* The most tokens up to n of which that can be said: n, those that were held, or none. */
uint64_t spw_sequence_reach(const struct spw_sequence *s, const struct spw_residency *r,
                            uint64_t n);
/* Cuts back to n tokens; nothing queued may still use the sequence. */
void spw_sequence_truncate(struct spw_sequence *s, const struct spw_residency *r, uint64_t n);

#endif
