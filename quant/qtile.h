/* The layout of one quantized tile: 128 positions of one layer, K and V, all KV heads of a slice.
 * The channels of K and of V are those of its exact form (quant/tile.h); with v = 0 a tile has no
 * piece of V.
 *
 *   | K meta | V meta | K high | V high | K low | V low |      each: head 0, head 1, ...
 *   '--------- int4 ------------------'       |       |
 *   '--------- int8:int4 ---------------------'       |
 *   '--------- int8 ----------------------------------'
 *
 *   K meta  f32 mean[channels, padded to 16]                  of the rotated channels
 *           bf16 step[groups][128]                            of each position and 64 channels
 *   V meta  bf16 step[groups][128]
 *   K plane [8 blocks][padded channels / 8][16 positions][4]  a byte: channel 8i + r in the low
 *                                                             half, channel 8i + 4 + r in the high
 *   V plane [16 octets][channels][4]                          a byte: position 8o + r in the low
 *                                                             half, position 8o + 4 + r in the high
 *
 * Every format is the beginning of the next one: a smaller format is made by cutting off the end.
 * Nothing is moved, and nothing is quantized twice. A code has 8 bits, midrise: code u means
 * (u - 127.5) step. Its high half h alone means (h - 7.5) 16 step: the middle of sixteen codes.
 *
 * tools/bench/kv_formats.py compares this format with others. At head dim 128 a tile takes 52.3 %
 * of the bytes of bf16 in int8, 27.3 % in int4.
 *
 * 64 bytes of a plane are two vectors of 16 lanes (positions for K, channels for V) times 4 bytes
 * along the sum: operands of the instructions that multiply four bytes in a lane. One mask and one
 * shift make them from a plane. Padding holds ordinary codes; the q of padding is 0. Every piece of
 * a head is a multiple of 64 bytes. The owner of the tile aligns its start. */
#ifndef SPW_QUANT_QTILE_H
#define SPW_QUANT_QTILE_H

#include <assert.h>

#include "quant/tile.h"

/* The format of an old tile. Keys, then values; in the order of size. */
enum spw_qformat {
    SPW_QFORMAT_INT4,
    SPW_QFORMAT_INT8_INT4,
    SPW_QFORMAT_INT8,
    SPW_QFORMAT_EXACT, /* not quantized: quant/tile.h */
    SPW_QFORMAT_COUNT,
};

enum {
    SPW_QTILE_GROUP = 64, /* channels that share a step */
    SPW_QTILE_OCTET = 8,  /* positions in one row of a V plane */
};

/* Steps a position has in one head. */
SPW_INLINE uint32_t spw_qtile_groups(uint32_t head_dim)
{
    return (head_dim + SPW_QTILE_GROUP - 1) / SPW_QTILE_GROUP;
}

/* Channels of a K plane. */
SPW_INLINE uint32_t spw_qtile_k_channels(uint32_t head_dim)
{
    return (head_dim + 7) / 8 * 8;
}

/* Bytes of one head's steps, of K or of V. */
SPW_INLINE size_t spw_qtile_steps_bytes(uint32_t head_dim)
{
    return (size_t)spw_qtile_groups(head_dim) * SPW_TILE_TOKENS * sizeof(uint16_t);
}

/* Bytes of one head's means. */
SPW_INLINE size_t spw_qtile_means_bytes(uint32_t head_dim)
{
    return (size_t)(head_dim + 15) / 16 * 16 * sizeof(float);
}

/* Bytes of one head's K plane, and of its V plane; the high and the low one alike. */
SPW_INLINE size_t spw_qtile_k_plane_bytes(uint32_t head_dim)
{
    return (size_t)SPW_TILE_TOKENS / 2 * spw_qtile_k_channels(head_dim);
}

SPW_INLINE size_t spw_qtile_v_plane_bytes(uint32_t head_dim)
{
    return (size_t)SPW_TILE_TOKENS / 2 * head_dim;
}

/* Where head `head`'s pieces start in a tile. The low planes are there only in formats that have
 * them. */
struct spw_qtile_head {
    size_t k_means, k_steps, v_steps, k_high, v_high, k_low, v_low;
};

SPW_INLINE struct spw_qtile_head spw_qtile_locate(uint32_t n_kv_heads, struct spw_tile_widths w,
                                                  uint32_t head)
{
    size_t means = spw_qtile_means_bytes(w.k), k_meta = means + spw_qtile_steps_bytes(w.k);
    size_t k = spw_qtile_k_plane_bytes(w.k), v = spw_qtile_v_plane_bytes(w.v);
    size_t n = n_kv_heads, meta = n * (k_meta + spw_qtile_steps_bytes(w.v));
    struct spw_qtile_head h;
    h.k_means = head * k_meta;
    h.k_steps = h.k_means + means;
    h.v_steps = n * k_meta + head * spw_qtile_steps_bytes(w.v);
    h.k_high = meta + head * k;
    h.v_high = meta + n * k + head * v;
    h.k_low = meta + n * (k + v) + head * k;
    h.v_low = meta + n * (2 * k + v) + head * v;
    return h;
}

SPW_INLINE size_t spw_qtile_bytes(uint32_t n_kv_heads, struct spw_tile_widths w,
                                  enum spw_qformat format)
{
    size_t k = spw_qtile_k_plane_bytes(w.k), v = spw_qtile_v_plane_bytes(w.v);
    size_t meta =
        spw_qtile_means_bytes(w.k) + spw_qtile_steps_bytes(w.k) + spw_qtile_steps_bytes(w.v);
    assert(format < SPW_QFORMAT_EXACT);
    size_t low = format == SPW_QFORMAT_INT4 ? 0 : format == SPW_QFORMAT_INT8_INT4 ? k : k + v;
    return n_kv_heads * (meta + k + v + low);
}

/* Byte index, inside a K plane, of channel c of position j; the upper half if c / 4 is odd. */
SPW_INLINE size_t spw_qtile_k_index(uint32_t head_dim, uint32_t j, uint32_t c)
{
    size_t row = (size_t)(j / SPW_TILE_BLOCK) * (spw_qtile_k_channels(head_dim) / 8) + c / 8;
    return (row * SPW_TILE_BLOCK + j % SPW_TILE_BLOCK) * 4 + c % 4;
}

/* Byte index, inside a V plane, of channel c of position j; the upper half if j / 4 is odd. */
SPW_INLINE size_t spw_qtile_v_index(uint32_t head_dim, uint32_t j, uint32_t c)
{
    return ((size_t)(j / SPW_QTILE_OCTET) * head_dim + c) * 4 + j % 4;
}

#endif
