/* Tiles in files: see snapshot_tiles.h. */
#include "runtime/rules/snapshot_tiles.h"

enum {
    WORTH_SHARE = 8,   /* new tokens must be at least 1 / 8 of those that the session holds */
    BRANCH_TILES = 16, /* fewer tiles are computed again: an extra step reads all weights */
};

bool spw_prefix_is_useful(uint64_t held, uint64_t found)
{
    return found >= held + SPW_TILE_TOKENS && (found - held) * WORTH_SHARE > held;
}

uint64_t spw_prefix_min_branch(uint64_t after)
{
    return after + BRANCH_TILES * SPW_TILE_TOKENS;
}

bool spw_prefix_window_passed(const struct spw_residency kinds[SPW_LAYER_KINDS], uint64_t n)
{
    uint64_t whole = (n - 1) - (n - 1) % SPW_TILE_TOKENS;
    bool moves = false;
    for (int k = 0; k < SPW_LAYER_KINDS; k++)
        moves |= spw_waterline_first_visible(&kinds[k], n) >
                 spw_waterline_first_visible(&kinds[k], whole);
    return moves;
}
