/* Which tiles of a session go to files, and when it pays to begin with tiles from files. Pure
 * functions of positions; persist/ carries them out. */
#ifndef SPW_RUNTIME_RULES_SNAPSHOT_TILES_H
#define SPW_RUNTIME_RULES_SNAPSHOT_TILES_H

#include "offload/kv/layer_store.h"

/* The tiles that a section of this kind has of a layer with this residency, if the old tiles before
 * token `from` are stored already and the snapshot ends at token `to`. */
static inline struct spw_snapshot_tiles spw_snapshot_tiles(const struct spw_residency *r,
                                                           enum spw_snapshot_kind kind,
                                                           uint64_t from, uint64_t to)
{
    return spw_layer_stores[r->store]->snapshot(r, kind, from, to);
}

/* Whether it pays to replace the `held` tokens of a session by the `found` tokens of files. Reading
 * the KV of a token costs a small part of computing it. */
bool spw_prefix_is_useful(uint64_t held, uint64_t found);

/* The least position at which a checkpoint is worth a step of its own, if the last checkpoint is at
 * `after`. */
uint64_t spw_prefix_min_branch(uint64_t after);

/* Whether a session with n tokens has dropped tiles of windows without which the same n tokens, of
 * which the last one must be computed, cannot begin at their last tile border. Then n is a tile
 * border, or a window is no multiple of a tile. */
bool spw_prefix_window_passed(const struct spw_residency kinds[SPW_LAYER_KINDS], uint64_t n);

#endif
