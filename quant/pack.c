/* Packing blocks: see pack.h; blocks.c draws the formats.
 *
 *   q8_0   d = max |x| / 127,                         code = round(x / d), halves away from zero
 *   q4_0   d = x / -8, x the first of largest |x|,    code = floor(x / d + 8.5), 0 .. 15
 *
 * x / d is x times the rounded reciprocal of d, and d is rounded to f16 only when it is stored:
 * this is what the gguf package does, and its files are equal to the bit. */
#include "quant/pack.h"

#include "base/numbers.h"

enum { SMALL = 32 };

/* To nearest, ties to even; too large a number becomes infinite, NaN stays NaN. */
static uint16_t f32_to_f16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    const uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    if (magnitude >= 0x477ff000u) /* 65520 */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) /* subnormal: a multiple of 2^-24 */
        return (uint16_t)(sign | (uint32_t)lrintf(fabsf(f) * 0x1p24f));
    return (uint16_t)(sign | (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1)) >> 13);
}

static void put_u16(uint8_t *at, uint16_t bits)
{
    memcpy(at, &bits, sizeof bits);
}

/* The first number of the largest absolute value. */
static float largest(const float *x)
{
    float found = x[0];
    for (int i = 1; i < SMALL; i++)
        if (fabsf(x[i]) > fabsf(found))
            found = x[i];
    return found;
}

static void pack_q8_0(const float *x, uint8_t *out)
{
    const float d = fabsf(largest(x)) / 127, inverse = d > 0 ? 1 / d : 0;
    put_u16(out, f32_to_f16(d));
    for (int i = 0; i < SMALL; i++)
        out[2 + i] = (uint8_t)(int8_t)roundf(x[i] * inverse);
}

static int four_bits(float x, float inverse)
{
    const float code = x * inverse + 8.5f;
    return code >= 15 ? 15 : (int)code;
}

static void pack_q4_0(const float *x, uint8_t *out)
{
    const float d = largest(x) / -8, inverse = d < 0 || d > 0 ? 1 / d : 0;
    put_u16(out, f32_to_f16(d));
    for (int i = 0; i < SMALL / 2; i++)
        out[2 + i] =
            (uint8_t)(four_bits(x[i], inverse) | four_bits(x[i + SMALL / 2], inverse) << 4);
}

void spw_type_write(enum spw_dtype t, const float *from, size_t n, void *row)
{
    uint8_t *out = row;
    if (t == SPW_DTYPE_F32)
        memcpy(out, from, n * sizeof *from);
    else if (t == SPW_DTYPE_F16)
        for (size_t i = 0; i < n; i++)
            put_u16(out + 2 * i, f32_to_f16(from[i]));
    else if (t == SPW_DTYPE_BF16)
        for (size_t i = 0; i < n; i++)
            put_u16(out + 2 * i, spw_f32_to_bf16(from[i]));
    else
        for (const struct spw_type type = spw_type_of(t); n; n -= SMALL, from += SMALL) {
            (t == SPW_DTYPE_Q8_0 ? pack_q8_0 : pack_q4_0)(from, out);
            out += type.bytes;
        }
}
