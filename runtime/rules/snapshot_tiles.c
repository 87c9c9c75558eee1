/* Tiles in files: see snapshot_tiles.h. */
#include "runtime/rules/snapshot_tiles.h"

enum {
    WORTH_SHARE = 8,   /* new tokens must be at least 1 / 8 of those that the session holds */
    BRANCH_TILES = 16, /* fewer tiles are computed again: an extra step reads all weights */
};

struct spw_snapshot_tiles spw_snapshot_tiles(const struct spw_residency *r,
                                             enum spw_snapshot_kind kind, uint64_t from,
                                             uint64_t to)
{
    uint32_t whole = (uint32_t)(to / SPW_TILE_TOKENS);
    const struct spw_snapshot_tiles none = {0, 0};
    switch (kind) {
    case SPW_SNAPSHOT_OLD:
        if (r->window.tokens)
            return none;
        return (struct spw_snapshot_tiles){spw_waterline_end(r, from),
                                           spw_waterline_end(r, (uint64_t)whole * SPW_TILE_TOKENS)};
    case SPW_SNAPSHOT_SINK:
        return r->quantizes && whole ? (struct spw_snapshot_tiles){0, 1} : none;
    case SPW_SNAPSHOT_RECENT:
        return r->quantizes ? (struct spw_snapshot_tiles){spw_waterline_first_exact(r, to), whole}
                            : none;
    case SPW_SNAPSHOT_WINDOW:
        return r->window.tokens
                   ? (struct spw_snapshot_tiles){spw_waterline_first_visible(r, to), whole}
                   : none;
    case SPW_SNAPSHOT_TAIL:
        return (struct spw_snapshot_tiles){whole, spw_waterline_tiles(to)};
    case SPW_SNAPSHOT_LOGITS:
        break;
    }
    return none;
}

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
