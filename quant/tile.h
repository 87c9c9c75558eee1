/* The layout of one KV tile: 128 consecutive positions of one layer, K and V, all KV heads of a
 * slice (struct spw_kv_shape of model/config/config.h): in most models, all KV heads of the layer.
 *
 * The unit of format, residency, transfer and sharing; its bytes are the same in every tier.
 *
 *   tile   = | K head 0 | K head 1 | ... | V head 0 | V head 1 | ... |
 *
 * A K head has k channels, a V head has v (struct spw_tile_widths); most models have k = v. With
 * v = 0 a tile has no V: the values are a view of K, the first channels of each K head, as models
 * with latent attention (MLA) have it.
 *
 *   K head = 8 blocks of 16 positions                 (lanes are positions: scores need no
 *            2-byte types: [8][k/2][16][2]             horizontal sums, and a block is the B
 *            f32:          [8][k][16]                  operand of a matrix tile as it lies)
 *
 *   V head = 2-byte types: [64][v][2]                 (lanes are channels; two positions lie side
 *            f32:          [128][v]                    by side for the paired dot product)
 *
 * Writing an even position of a 2-byte V tile also writes zeros at the odd position of its pair: a
 * pair that is half filled adds an exact zero. Widths are even. */
#ifndef SPW_QUANT_TILE_H
#define SPW_QUANT_TILE_H

#include "base/numbers.h"

enum {
    SPW_TILE_TOKENS = 128,
    SPW_TILE_BLOCK = 16, /* positions in one K block */
    SPW_SPLIT_TILES = 4, /* attention is split at multiples of 512 absolute positions */
    SPW_SPLIT_TOKENS = SPW_TILE_TOKENS * SPW_SPLIT_TILES,
};

/* The channels of a K head, and of a V head. */
struct spw_tile_widths {
    uint32_t k, v;
};

SPW_INLINE struct spw_tile_widths spw_tile_square(uint32_t head_dim)
{
    struct spw_tile_widths w = {head_dim, head_dim};
    return w;
}

/* Bytes of K, or of V, of one head, which has `width` channels. */
SPW_INLINE size_t spw_tile_head_bytes(uint32_t width, enum spw_dtype t)
{
    return (size_t)SPW_TILE_TOKENS * width * spw_dtype_bytes(t);
}

SPW_INLINE size_t spw_tile_bytes(uint32_t n_kv_heads, struct spw_tile_widths w, enum spw_dtype t)
{
    return n_kv_heads * (spw_tile_head_bytes(w.k, t) + spw_tile_head_bytes(w.v, t));
}

/* Where K, or V, of a head begins in a tile. */
SPW_INLINE size_t spw_tile_head_at(uint32_t n_kv_heads, struct spw_tile_widths w, enum spw_dtype t,
                                   uint32_t head, bool values)
{
    if (!values)
        return head * spw_tile_head_bytes(w.k, t);
    return n_kv_heads * spw_tile_head_bytes(w.k, t) + head * spw_tile_head_bytes(w.v, t);
}

/* Element index, inside one K head of `head_dim` channels, of channel c of position j (0..127). */
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
