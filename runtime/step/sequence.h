/* The KV cache of one sequence: what streams and ages down the tiers, and, where old tiles are kept
 * apart from exact ones (struct spw_residency.aged), the exact ones near its end. Otherwise both
 * are the same. Embedded by its session; not thread-safe. */
#ifndef SPW_RUNTIME_STEP_SEQUENCE_H
#define SPW_RUNTIME_STEP_SEQUENCE_H

#include "offload/kv/kv_cache.h"

struct spw_sequence {
    struct spw_kv_seq *aged, *near; /* owned; near == aged where nothing is kept apart */
};

/* near: NULL where nothing is kept apart. */
int spw_sequence_open(struct spw_sequence *s, struct spw_kv *aged, struct spw_kv *near);
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
