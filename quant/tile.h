/* The layout of one KV tile: 128 consecutive positions of one layer, K and V, all KV heads of a
 * slice (struct spw_kv_shape of model/config/config.h): in most models, all KV heads of the layer.
 *
 * The unit of format, residency, transfer and sharing; its bytes are the same in every tier.
 *
 *   tile   = | K head 0 | K head 1 | ... | V head 0 | V head 1 | ... |
 *
 *   K head = 8 blocks of 16 positions                 (lanes are positions: scores need no
 *            2-byte types: [8][head_dim/2][16][2]      horizontal sums, and a block is the B
 *            f32:          [8][head_dim][16]           operand of a matrix tile as it lies)
 *
 *   V head = 2-byte types: [64][head_dim][2]          (lanes are channels; two positions lie side
 *            f32:          [128][head_dim]             by side for the paired dot product)
 *
 * Writing an even position of a 2-byte V tile also writes zeros at the odd position of its pair: a
 * pair that is half filled adds an exact zero. head_dim is even. */
#ifndef SPW_QUANT_TILE_H
#define SPW_QUANT_TILE_H

#include "quant/types.h"

enum {
    SPW_TILE_TOKENS = 128,
    SPW_TILE_BLOCK = 16, /* positions in one K block */
    SPW_SPLIT_TILES = 4, /* attention is split at multiples of 512 absolute positions */
    SPW_SPLIT_TOKENS = SPW_TILE_TOKENS * SPW_SPLIT_TILES,
};

/* Bytes of the K (or the V) half of one head. */
SPW_INLINE size_t spw_tile_head_bytes(uint32_t head_dim, enum spw_dtype t)
{
    return (size_t)SPW_TILE_TOKENS * head_dim * spw_dtype_bytes(t);
}

SPW_INLINE size_t spw_tile_bytes(uint32_t n_kv_heads, uint32_t head_dim, enum spw_dtype t)
{
    return 2 * (size_t)n_kv_heads * spw_tile_head_bytes(head_dim, t);
}

/* Element index, inside one K head, of channel c of position j (0..127). */
SPW_INLINE size_t spw_tile_k_index(uint32_t head_dim, enum spw_dtype t, uint32_t j, uint32_t c)
{
    size_t block = (size_t)(j / SPW_TILE_BLOCK) * SPW_TILE_BLOCK * head_dim;
    uint32_t lane = j % SPW_TILE_BLOCK;
    if (t == SPW_DTYPE_F32)
        return block + (size_t)c * SPW_TILE_BLOCK + lane;
    return block + ((size_t)(c / 2) * SPW_TILE_BLOCK + lane) * 2 + c % 2;
}

/* Element index, inside one V head, of channel c of position j. */
SPW_INLINE size_t spw_tile_v_index(uint32_t head_dim, enum spw_dtype t, uint32_t j, uint32_t c)
{
    if (t == SPW_DTYPE_F32)
        return (size_t)j * head_dim + c;
    return ((size_t)(j / 2) * head_dim + c) * 2 + j % 2;
}

#endif
