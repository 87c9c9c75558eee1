/* States: what layers with a recurrence store of a sequence, a fixed number of bytes for each
 * layer. A state cannot be cut back. So the engine makes checkpoints, copies of it (checkpoint.h).
 *
 * Either all states stay on the device, or they lie on the host and move as a whole: before the
 * rows of a pass go through the layer, the state of this layer comes to the device, and afterwards
 * it goes back. All copies are queued on `compute`, whose order is all that they need.
 *
 *   stays   device  [sequences][layers with a state][bytes]
 *   moves   host    [sequences][layers with a state][bytes]     device  [sequences][bytes]
 *
 * The rows of a step with drafts read the state, but do not update it: some drafts will be
 * rejected. What an update needs of these rows is copied to device memory: the *kept rows*. Then
 * the layer can be cut back to any of them without a checkpoint. Before the next rows pass the
 * layer, the state is updated by the kept rows that are left: they are *applied*. */
#ifndef SPW_OFFLOAD_KV_STATE_STORE_H
#define SPW_OFFLOAD_KV_STATE_STORE_H

#include "offload/kv/kv_cache.h"

extern const struct spw_layer_store_ops spw_state_store;
/* Of layers that store nothing. */
extern const struct spw_layer_store_ops spw_nothing_store;

/* Before rows pass the layer: its state comes to the device, if it is not there. */
int spw_kv_state_enter(struct spw_kv_seq *seq, uint32_t layer);
/* Its address there, until leave. */
float *spw_kv_state(const struct spw_kv_seq *seq, uint32_t layer);
/* In place of spw_kv_grow, for rows up to `to` that are kept and not applied. No row may be kept
 * yet. The caller fills the memory of spw_kv_state_kept_rows. */
void spw_kv_state_keep_rows(struct spw_kv_seq *seq, uint32_t layer, uint64_t to);
/* The kept rows of the layer. */
struct spw_kept_rows {
    uint64_t from, to; /* positions */
    void *rows;        /* [kept_bytes], on the device; the caller fills and reads this memory */
};
struct spw_kept_rows spw_kv_state_kept_rows(const struct spw_kv_seq *seq, uint32_t layer);
/* The kept rows are applied, or will be by work that is queued already. */
void spw_kv_state_applied(struct spw_kv_seq *seq, uint32_t layer);
/* After the rows. */
int spw_kv_state_leave(struct spw_kv_seq *seq, uint32_t layer);

/* Queues a copy of the layer's state on `compute`: to `memory` on the host, or from there. Kept
 * rows are not in the copy. */
int spw_kv_state_save(const struct spw_kv_seq *seq, uint32_t layer, void *memory);
int spw_kv_state_restore(struct spw_kv_seq *seq, uint32_t layer, const void *memory);

#endif
