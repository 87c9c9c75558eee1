/* Conversions between the element types, bit-exact and portable: for slow paths and tests' sake the
 * kernels have their own vector forms. bf16 rounds to nearest, ties to even; NaN stays NaN. */
#ifndef SPW_MODEL_NUMBERS_H
#define SPW_MODEL_NUMBERS_H

#include "runtime/base.h"

#include <string.h>

static inline float spw_bf16_to_f32(uint16_t b)
{
    uint32_t bits = (uint32_t)b << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint16_t spw_f32_to_bf16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

static inline float spw_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = h >> 10 & 31, fraction = h & 1023u;
    uint32_t bits;
    float f;
    if (exponent == 0) { /* zero and subnormals: fraction * 2^-24 is exact */
        f = (float)fraction * 0x1p-24f;
        return sign ? -f : f;
    }
    bits = exponent == 31 ? sign | 0x7f800000u | fraction << 13
                          : sign | (exponent + 112) << 23 | fraction << 13;
    memcpy(&f, &bits, sizeof f);
    return f;
}

#endif
