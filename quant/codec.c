/* The decoder: see codec.h. Numbers are divided by 2^24 until the last product, as in codec_simd.c:
 * a tile of the largest f32 comes back finite. */
#include "quant/codec.h"

#include <float.h>
#include <string.h>

#include "quant/hadamard.h"

enum { MOST_CHANNELS = 1024 };

static const float SHRINK = 0x1p-24f, GROW = 0x1p24f;

struct half {
    const unsigned char *high, *low; /* low: NULL where the format has none */
    const uint16_t *steps;
    const float *means; /* NULL: values */
    uint32_t head_dim;
};

static struct half half_of(const void *qtile, enum spw_qformat format, uint32_t n_kv_heads,
                           struct spw_tile_widths w, uint32_t head, bool values)
{
    const unsigned char *from = qtile;
    struct spw_qtile_head at = spw_qtile_locate(n_kv_heads, w, head);
    struct half h = {.head_dim = values ? w.v : w.k};
    bool low = format == SPW_QFORMAT_INT8 || (format == SPW_QFORMAT_INT8_INT4 && !values);
    h.high = from + (values ? at.v_high : at.k_high);
    h.low = low ? from + (values ? at.v_low : at.k_low) : NULL;
    h.steps = (const uint16_t *)(from + (values ? at.v_steps : at.k_steps));
    h.means = values ? NULL : (const float *)(from + at.k_means);
    return h;
}

static float widen_bf16(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, sizeof y);
    return y;
}

/* Channel c of position j, rotated and shrunk. */
static float decode_one(const struct half *h, uint32_t j, uint32_t c)
{
    size_t at =
        h->means ? spw_qtile_k_index(h->head_dim, j, c) : spw_qtile_v_index(h->head_dim, j, c);
    uint32_t shift = h->means ? spw_qtile_k_shift(c) : spw_qtile_v_shift(j);
    float step = widen_bf16(h->steps[c / SPW_QTILE_GROUP * SPW_TILE_TOKENS + j]) * SHRINK;
    float code = (float)(h->high[at] >> shift & 15) * 16;
    code = h->low ? code + (float)(h->low[at] >> shift & 15) - 127.5f : code - 120.0f;
    return h->means ? code * step + h->means[c] * SHRINK : code * step;
}

/* Clamped to +-most: a number half a step beyond the largest one becomes the largest one. */
static float grow(float x, float most)
{
    x = x > most * SHRINK ? most * SHRINK : x < -most * SHRINK ? -most * SHRINK : x;
    return x * GROW;
}

void spw_codec_decode_rotated(const void *qtile, enum spw_qformat format, uint32_t n_kv_heads,
                              struct spw_tile_widths widths, uint32_t head, bool values, float *out)
{
    struct half h = half_of(qtile, format, n_kv_heads, widths, head, values);
    for (uint32_t j = 0; j < SPW_TILE_TOKENS; j++)
        for (uint32_t c = 0; c < h.head_dim; c++)
            out[(size_t)j * h.head_dim + c] = grow(decode_one(&h, j, c), FLT_MAX);
}

/* Halves to even; x is finite and not beyond the type's range. */
static uint16_t narrow(float x, enum spw_dtype t)
{
    uint32_t bits, sign;
    memcpy(&bits, &x, sizeof bits);
    if (t == SPW_DTYPE_BF16)
        return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
    sign = bits >> 16 & 0x8000u;
    bits &= 0x7fffffffu;
    if (bits < 0x38800000u) { /* below 2^-14 f16 has steps of 2^-24, which are those of f32 at 0.5:
                                 the sum rounds, and its last bits are the code */
        memcpy(&x, &bits, sizeof x);
        x += 0.5f;
        memcpy(&bits, &x, sizeof bits);
        return (uint16_t)(sign | (bits - 0x3f000000u));
    }
    bits += 0xfffu + (bits >> 13 & 1u);
    return (uint16_t)(sign | (bits - 0x38000000u) >> 13);
}

static float largest(enum spw_dtype t)
{
    return t == SPW_DTYPE_F32 ? FLT_MAX : t == SPW_DTYPE_F16 ? 65504.0f : 0x1.fep127f;
}

static void decode_half(const struct half *h, uint32_t block, enum spw_dtype t, char *exact)
{
    float row[MOST_CHANNELS];
    for (uint32_t j = 0; j < SPW_TILE_TOKENS; j++) {
        for (uint32_t c = 0; c < h->head_dim; c++)
            row[c] = decode_one(h, j, c);
        spw_hadamard_rotate(row, h->head_dim, block);
        for (uint32_t c = 0; c < h->head_dim; c++) {
            size_t at = h->means ? spw_tile_k_index(h->head_dim, t, j, c)
                                 : spw_tile_v_index(h->head_dim, t, j, c);
            float x = grow(row[c], largest(t));
            uint16_t small = narrow(x, t);
            if (t == SPW_DTYPE_F32)
                memcpy(exact + at * sizeof x, &x, sizeof x);
            else
                memcpy(exact + at * sizeof small, &small, sizeof small);
        }
    }
}

void spw_codec_decode(const void *qtile, enum spw_qformat format, uint32_t n_kv_heads,
                      struct spw_tile_widths widths, enum spw_dtype dtype, void *tile)
{
    for (uint32_t i = 0; i < 2 * n_kv_heads; i++) {
        const bool values = i >= n_kv_heads;
        const uint32_t head = i % n_kv_heads;
        const struct half h = half_of(qtile, format, n_kv_heads, widths, head, values);
        decode_half(&h, values ? spw_hadamard_v_block(widths.v) : spw_hadamard_k_block(widths.k),
                    dtype,
                    (char *)tile + spw_tile_head_at(n_kv_heads, widths, dtype, head, values));
    }
}
