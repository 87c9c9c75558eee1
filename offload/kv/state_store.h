/* States: what layers with a recurrence store of a sequence, a fixed number of bytes for each
 * layer. A state cannot be cut back, so copies of it are kept, checkpoints: see checkpoint.h.
 *
 * Either all states stay on the device, or they lie on the host and move as a whole: before the
 * rows of a pass go through the layer, the state of this layer comes to the device, and afterwards
 * it goes back. All copies are queued on `compute`, whose order is all that they need.
 *
 *   stays   device  [sequences][layers with a state][bytes]
 *   moves   host    [sequences][layers with a state][bytes]     device  [sequences][bytes]
 *
 * Rows that may be taken back, those of drafts, read a state and leave it as it is. What a state
 * needs of them is kept on the device. The layer can be cut back to any of them, and before the
 * next rows pass the layer, the state takes those that stayed. */
#ifndef SPW_OFFLOAD_KV_STATE_STORE_H
#define SPW_OFFLOAD_KV_STATE_STORE_H

#include "offload/kv/kv_cache.h"

extern const struct spw_layer_store_ops spw_state_store;
/* Of layers that store nothing. */
extern const struct spw_layer_store_ops spw_nothing_store;

/* Whether layers of the cache have states. */
bool spw_kv_has_states(const struct spw_kv *kv);
/* Before rows pass the layer: its state comes to the device, if it is not there. */
int spw_kv_state_enter(struct spw_kv_seq *seq, uint32_t layer);
/* Its address there, until leave. */
float *spw_kv_state(const struct spw_kv_seq *seq, uint32_t layer);
/* In place of spw_kv_grow, for rows up to `to` that may be taken back; none is kept. */
void spw_kv_state_keep(struct spw_kv_seq *seq, uint32_t layer, uint64_t to);
/* The rows of the layer that its state has not taken yet. */
struct spw_kept_rows {
    uint64_t from, to; /* positions */
    void *rows;        /* [kept_bytes], on the device; the caller fills and reads this memory */
};
struct spw_kept_rows spw_kv_state_kept(const struct spw_kv_seq *seq, uint32_t layer);
/* The state has taken them, or will before what is queued now. */
void spw_kv_state_took(struct spw_kv_seq *seq, uint32_t layer);
/* After the rows. */
int spw_kv_state_leave(struct spw_kv_seq *seq, uint32_t layer);

/* Copies of the state of a layer where it lies now, on `compute`: to `memory` on the host, and from
 * there. Rows that are kept are no part of it. */
int spw_kv_state_save(const struct spw_kv_seq *seq, uint32_t layer, void *memory);
int spw_kv_state_restore(struct spw_kv_seq *seq, uint32_t layer, const void *memory);

#endif
