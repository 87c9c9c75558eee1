/* Blocks become integers: see blocks.h. type_facts.h says where everything lies; numbers in a block
 * are little-endian. Each type gets a function of its own, in which its facts are constants. */
#include "quant/blocks.h"

#include "base/numbers.h"
#include "quant/type_facts.h"

#include <string.h>

#define AS_IT_IS(x) x
static const int8_t iq4_values[16] = {SPW_IQ4_VALUES(AS_IT_IS)};
static const int8_t e2m1_values[16] = {SPW_E2M1_VALUES(AS_IT_IS)};

static float read_f16(const uint8_t *at)
{
    return spw_f16_to_f32((uint16_t)(at[0] | at[1] << 8));
}

/* ---- codes ---- */

/* Adds `bits` bits of each of n numbers to the codes, from bit `to` on. */
static inline void add_bits(int n, const uint8_t *from, int bits, int run, int to, int8_t *codes)
{
    for (int i = 0; i < n; i += run) { /* `run` numbers lie at the same bits of their bytes */
        const uint8_t *bytes = from + i * bits / 8 / run * run;
        const int shift = i / run % (8 / bits) * bits, mask = (1 << bits) - 1;
        for (int l = 0; l < run; l++)
            codes[i + l] = (int8_t)(codes[i + l] | (bytes[l] >> shift & mask) << to);
    }
}

static inline void unpack_codes(const struct spw_type_facts f, const uint8_t *from, int8_t *codes)
{
    const bool small = f.elements < SPW_BLOCK_ELEMENTS;
    memset(codes, 0, (size_t)f.elements);
    add_bits(f.elements, from + f.low_at, f.low_bits, f.run, 0, codes);
    for (int i = 0; small && f.high_bits && i < f.elements; i++) /* bits of one word */
        codes[i] = (int8_t)(codes[i] | (from[f.high_at + i / 8] >> i % 8 & 1) << f.low_bits);
    if (!small && f.high_bits)
        add_bits(f.elements, from + f.high_at, f.high_bits, 32, f.low_bits, codes);
    if (f.values != SPW_VALUES_PLAIN)
        for (int i = 0; i < f.elements; i++)
            codes[i] = (f.values == SPW_VALUES_IQ4 ? iq4_values : e2m1_values)[codes[i]];
    else if (f.low_bits < 8)
        for (int i = 0; i < f.elements; i++)
            codes[i] = (int8_t)(codes[i] - f.offset);
}

/* ---- scales ---- */

/* Eight scales and eight minima, six bits each, of 32 numbers. */
static void read_6_6(const uint8_t *s, struct spw_quantized_block *out)
{
    for (int j = 0; j < 8; j++) {
        int scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
        int minimum = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4;
        memset(out->scales + 2 * j, scale, 2);
        memset(out->minima + 2 * j, minimum, 2);
    }
}

/* Sixteen scales: four bits of scale j in byte j % 8, two in byte 8 + j % 4. */
static void read_6(const uint8_t *s, struct spw_quantized_block *out)
{
    for (int j = 0; j < SPW_BLOCK_PARTS; j++) {
        int low = j < 8 ? s[j] & 15 : s[j - 8] >> 4;
        out->scales[j] = (int8_t)((low | (s[8 + j % 4] >> j / 4 * 2 & 3) << 4) - 32);
    }
}

/* Eight scales of 32 numbers: two bits each in a word, then four bits each. */
static void read_2_4(const uint8_t *s, struct spw_quantized_block *out)
{
    const int high = s[0] | s[1] << 8;
    for (int j = 0; j < 8; j++) {
        int low = s[2 + j / 2] >> j % 2 * 4 & 15;
        memset(out->scales + 2 * j, (low | (high >> 2 * j & 3) << 4) - 32, 2);
    }
}

static void read_4(const uint8_t *s, struct spw_quantized_block *out)
{
    for (int j = 0; j < SPW_BLOCK_PARTS; j++) {
        out->scales[j] = (int8_t)(s[j] & 15);
        out->minima[j] = (int8_t)(s[j] >> 4);
    }
}

/* A large block stores what its minima are subtracted with: m is negative. */
static inline void unpack_scales(const struct spw_type_facts f, const uint8_t *from,
                                 struct spw_quantized_block *out)
{
    const size_t parts = (size_t)f.elements / SPW_BLOCK_PART;
    const bool small = f.elements < SPW_BLOCK_ELEMENTS;
    const float m = f.has_minima ? read_f16(from + f.d_at + 2) : -0.0f;
    out->d = f.form == SPW_SCALE_POWER ? ldexpf(1.0f, from[f.d_at] - 128) : read_f16(from + f.d_at);
    out->m = f.has_minima && !small ? -m : m;
    memset(out->scales, 1, parts);
    memset(out->minima, f.has_minima, parts);
    from += f.scales_at;
    if (f.form == SPW_SCALES_6_6)
        read_6_6(from, out);
    else if (f.form == SPW_SCALES_6)
        read_6(from, out);
    else if (f.form == SPW_SCALES_2_4)
        read_2_4(from, out);
    else if (f.form == SPW_SCALES_4)
        read_4(from, out);
    else if (f.form == SPW_SCALES_8)
        memcpy(out->scales, from, parts);
}

/* ---- any type ---- */

#define DEFINE(id, ...)                                                                            \
    static void unpack_##id(const uint8_t *from, struct spw_quantized_block *out)                  \
    {                                                                                              \
        unpack_codes(SPW_FACTS(SPW_DTYPE_##id), from, out->codes);                                 \
        unpack_scales(SPW_FACTS(SPW_DTYPE_##id), from, out);                                       \
    }
SPW_QUANTIZED_TYPES(DEFINE)

void spw_block_unpack(enum spw_dtype t, const void *from, struct spw_quantized_block *out)
{
    static void (*const unpack[])(const uint8_t *from, struct spw_quantized_block *out) = {
#define ENTRY(id, ...) unpack_##id,
        SPW_QUANTIZED_TYPES(ENTRY)};
    unpack[t - SPW_DTYPE_Q8_0](from, out);
}
