/* Bytes of plain numbers, and conversions between their types, exact to the bit and portable, for
 * slow paths and for tests; kernels have their own vector forms. bf16 rounds to nearest, ties to
 * even; NaN stays NaN. */
#ifndef SPW_BASE_NUMBERS_H
#define SPW_BASE_NUMBERS_H

#include "base/base.h"
#include "base/dtype.h"

#include <math.h>
#include <string.h>

/* Bytes of one number of a plain type; 0 for AUTO and quantized types. */
SPW_INLINE size_t spw_dtype_bytes(enum spw_dtype t)
{
    switch (t) {
    case SPW_DTYPE_F64:
        return 8;
    case SPW_DTYPE_F32:
        return 4;
    case SPW_DTYPE_F16:
    case SPW_DTYPE_BF16:
        return 2;
    case SPW_DTYPE_F8_E4M3:
    case SPW_DTYPE_F8_E5M2:
        return 1;
    default:
        return 0;
    }
}

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
    uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
    return (uint16_t)(f == f ? rounded : bits >> 16 | 0x40);
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

/* sign | exponent 4, bias 7 | fraction 3; no infinity; NaN only if all other bits are set. */
static inline float spw_f8_e4m3_to_f32(uint8_t b)
{
    uint32_t exponent = b >> 3 & 15, fraction = b & 7u;
    float f = (b & 0x7f) == 0x7f ? NAN
              : exponent         ? (float)(8 + fraction) * exp2f((float)exponent - 10)
                                 : (float)fraction * 0x1p-9f;
    return b & 0x80 ? -f : f;
}

/* It is the upper byte of an f16. */
static inline float spw_f8_e5m2_to_f32(uint8_t b)
{
    return spw_f16_to_f32((uint16_t)(b << 8));
}

#endif
