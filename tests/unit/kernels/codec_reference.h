/* The decoder of quantized tiles: plain C, one thread. Numbers are divided by 2^24 until the last
 * product, as in quant/codec_simd.c: a tile of the largest f32 comes back finite. */
#ifndef SPW_TESTS_UNIT_KERNELS_CODEC_REFERENCE_H
#define SPW_TESTS_UNIT_KERNELS_CODEC_REFERENCE_H

#include "quant/codec.h"

#include <float.h>
#include <string.h>

#include "quant/hadamard.h"
#include "tests/unit/kernels/ops_cpu_each.h"

enum { CODEC_MOST_CHANNELS = 1024 };

static const float CODEC_SHRINK = 0x1p-24f, CODEC_GROW = 0x1p24f;

struct codec_half {
    const unsigned char *high, *low; /* low: NULL where the format has none */
    const uint16_t *steps;
    const float *means; /* NULL: values */
    uint32_t head_dim;
};

static inline struct codec_half codec_half_of(const void *qtile, enum spw_qformat format,
                                              uint32_t n_kv_heads, struct spw_tile_widths w,
                                              uint32_t head, bool values)
{
    const unsigned char *from = qtile;
    struct spw_qtile_head at = spw_qtile_locate(n_kv_heads, w, head);
    struct codec_half h = {.head_dim = values ? w.v : w.k};
    bool low = format == SPW_QFORMAT_INT8 || (format == SPW_QFORMAT_INT8_INT4 && !values);
    h.high = from + (values ? at.v_high : at.k_high);
    h.low = low ? from + (values ? at.v_low : at.k_low) : NULL;
    h.steps = (const uint16_t *)(from + (values ? at.v_steps : at.k_steps));
    h.means = values ? NULL : (const float *)(from + at.k_means);
    return h;
}

static inline float codec_widen_bf16(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, sizeof y);
    return y;
}

/* Where the code of channel c of position j begins in its byte. */
static inline uint32_t codec_shift(bool values, uint32_t j, uint32_t c)
{
    return (values ? j : c) / 4 % 2 * 4;
}

/* Channel c of position j, rotated and shrunk. */
static inline float codec_decode_one(const struct codec_half *h, uint32_t j, uint32_t c)
{
    size_t at =
        h->means ? spw_qtile_k_index(h->head_dim, j, c) : spw_qtile_v_index(h->head_dim, j, c);
    uint32_t shift = codec_shift(!h->means, j, c);
    float step =
        codec_widen_bf16(h->steps[c / SPW_QTILE_GROUP * SPW_TILE_TOKENS + j]) * CODEC_SHRINK;
    float code = (float)(h->high[at] >> shift & 15) * 16;
    code = h->low ? code + (float)(h->low[at] >> shift & 15) - 127.5f : code - 120.0f;
    return h->means ? code * step + h->means[c] * CODEC_SHRINK : code * step;
}

/* Clamped to +-most: a number half a step beyond the largest one becomes the largest one. */
static inline float codec_grow(float x, float most)
{
    x = x > most * CODEC_SHRINK    ? most * CODEC_SHRINK
        : x < -most * CODEC_SHRINK ? -most * CODEC_SHRINK
                                   : x;
    return x * CODEC_GROW;
}

/* Decodes without rotating back: f32 [128][channels] of one head's K or V. Attention on codes is
 * attention on these numbers. */
static inline void codec_decode_rotated(const void *qtile, enum spw_qformat format,
                                        uint32_t n_kv_heads, struct spw_tile_widths widths,
                                        uint32_t head, bool values, float *out)
{
    struct codec_half h = codec_half_of(qtile, format, n_kv_heads, widths, head, values);
    for (uint32_t j = 0; j < SPW_TILE_TOKENS; j++)
        for (uint32_t c = 0; c < h.head_dim; c++)
            out[(size_t)j * h.head_dim + c] = codec_grow(codec_decode_one(&h, j, c), FLT_MAX);
}

static inline float codec_largest(enum spw_dtype t)
{
    return t == SPW_DTYPE_F32 ? FLT_MAX : t == SPW_DTYPE_F16 ? 65504.0f : 0x1.fep127f;
}

static inline void codec_decode_half(const struct codec_half *h, uint32_t block, enum spw_dtype t,
                                     char *exact)
{
    float row[CODEC_MOST_CHANNELS];
    for (uint32_t j = 0; j < SPW_TILE_TOKENS; j++) {
        for (uint32_t c = 0; c < h->head_dim; c++)
            row[c] = codec_decode_one(h, j, c);
        spw_hadamard_rotate(row, h->head_dim, block);
        for (uint32_t c = 0; c < h->head_dim; c++) {
            size_t at = h->means ? spw_tile_k_index(h->head_dim, t, j, c)
                                 : spw_tile_v_index(h->head_dim, t, j, c);
            each_store(exact, at, t, (double)codec_grow(row[c], codec_largest(t)));
        }
    }
}

/* Decodes a quantized tile to an exact tile of type `dtype`; a number too large for the type
 * becomes its largest finite value. */
static inline void codec_decode(const void *qtile, enum spw_qformat format, uint32_t n_kv_heads,
                                struct spw_tile_widths widths, enum spw_dtype dtype, void *tile)
{
    for (uint32_t i = 0; i < 2 * n_kv_heads; i++) {
        const bool values = i >= n_kv_heads;
        const uint32_t head = i % n_kv_heads;
        const struct codec_half h = codec_half_of(qtile, format, n_kv_heads, widths, head, values);
        codec_decode_half(
            &h, values ? spw_hadamard_v_block(widths.v) : spw_hadamard_k_block(widths.k), dtype,
            (char *)tile + spw_tile_head_at(n_kv_heads, widths, dtype, head, values));
    }
}

#endif
