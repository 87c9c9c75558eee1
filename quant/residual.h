/* Which tiles are read quantized: a pure function of positions.
 *
 * Queries come in blocks of 128, block b holding positions [128 b, 128 b + 128). For block b tile j
 * is read quantized if and only if 0 < j < b - R / 128: the sink (tile 0) and the window of the R
 * newest tokens are exact. The chunk, the batch, the tier and earlier computation do not enter, so
 * they cannot change a result.
 *
 *      tile   0      1 ... end - 1      end ... b - 1     b
 *             sink   quantized          window, exact     the queries' own
 *
 * A tile's exact form is needed until the queries of block `until` - 1 are done, and its quantized
 * form from `until` on; both exist while a prompt passes. A sequence cut back to a position in an
 * earlier block needs again the exact forms from that block's `end` on: what has been dropped
 * of them must be computed anew. Any thread; nothing can fail. */
#ifndef SPW_QUANT_RESIDUAL_H
#define SPW_QUANT_RESIDUAL_H

#include "quant/tile.h"

/* The window in tiles: rounded up, so that at least `tokens` are exact. */
SPW_INLINE uint64_t spw_residual_tiles(uint64_t tokens)
{
    return spw_div_up(tokens, SPW_TILE_TOKENS);
}

/* The block of the query at `position`. */
SPW_INLINE uint64_t spw_residual_block(uint64_t position)
{
    return position / SPW_TILE_TOKENS;
}

/* Block `block` reads tiles [1, end) quantized; `end` is at least 1. */
SPW_INLINE uint64_t spw_residual_end(uint64_t block, uint64_t window_tiles)
{
    return spw_max_u64(spw_sub_u64(block, window_tiles), 1);
}

/* The first block that reads `tile` quantized; UINT64_MAX: none does. */
SPW_INLINE uint64_t spw_residual_until(uint64_t tile, uint64_t window_tiles)
{
    bool never = tile == 0 || window_tiles >= UINT64_MAX - tile;
    return never ? UINT64_MAX : tile + window_tiles + 1;
}

#endif
