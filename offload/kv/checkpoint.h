/* Checkpoints: copies of the states of a sequence at a position, to which the sequence can be cut
 * back. Forked sequences share them by reference.
 *
 *   begin -> one copy for each layer with a state, to host memory -> end -> maybe to disk
 *
 * Room for all checkpoints is taken at open. Where host memory has none left, the oldest one goes
 * to disk. Where the disk has none either, one of those goes without which the least must be
 * computed again, measured by the age of the position: the distances of those that stay grow with
 * their age. This rule knows those that are being made, too: of a long prompt those are made that
 * would stay. The newest complete one of a sequence, and the newest that is being made, go last.
 * What a shared one is worth says the sequence that needs it most. On disk each state has a
 * checksum: a checkpoint that is damaged is dropped. */
#ifndef SPW_OFFLOAD_KV_CHECKPOINT_H
#define SPW_OFFLOAD_KV_CHECKPOINT_H

#include "offload/kv/kv_cache.h"

/* The distance between checkpoints of a sequence that goes on. */
enum { SPW_CHECKPOINT_TOKENS = 1024 };

/* What a sequence of n_tokens with checkpoints at positions [0, n), in rising order, loses without
 * the one with number i. Pure. */
double spw_checkpoint_loss(const uint64_t *positions, uint32_t i, uint32_t n, uint64_t n_tokens);

/* Takes memory for a checkpoint at n tokens, which the layers will reach, if that finds room; may
 * write another one to disk, and wait. */
void spw_kv_checkpoint_begin(struct spw_kv_seq *seq, uint64_t n);
/* The layer has n tokens now: queues the copy of its state, if such a checkpoint was begun. */
int spw_kv_checkpoint_layer(struct spw_kv_seq *seq, uint64_t n, uint32_t layer);
/* All layers are copied, of all checkpoints that were begun; or, not `complete`, these are given
 * up. */
void spw_kv_checkpoints_end(struct spw_kv_seq *seq, bool complete);
/* Between steps: all of this for the n tokens that all layers hold. Does nothing where there is no
 * memory, or no state. */
int spw_kv_checkpoint(struct spw_kv_seq *seq, uint64_t n);
/* Drops the checkpoint at n tokens, if the sequence has one there. */
void spw_kv_checkpoint_drop(struct spw_kv_seq *seq, uint64_t n);
/* The position of the newest complete checkpoint at n tokens or before; 0: there is none. */
uint64_t spw_kv_last_checkpoint(const struct spw_kv_seq *seq, uint64_t n);

#endif
